//! The command line of the program `evenkeel`, also used to generate the manual pages of the packages (`examples/pages.rs`).

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use evenkeel_agent::cli;
use evenkeel_common::cli::pages::{About, Pages};
use evenkeel_warden::cli as warden;

/// Keeps container services up to date, verifies every new image, and rolls back bad ones
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version)]
pub(crate) struct Command {
    /// Mode to run in
    #[arg(long, value_enum, default_value_t = Mode::Agent)]
    pub(crate) mode: Mode,
    #[command(flatten)]
    pub(crate) agent: cli::Args,
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Mode {
    /// Update, heal and report on the services of this machine
    Agent,
    /// Collect the entries of many agents (default configuration: /etc/evenkeel/warden.json)
    Warden,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    #[command(flatten)]
    Agent(cli::Task),
    #[command(flatten)]
    Warden(warden::Task),
    #[command(flatten)]
    Pages(Pages),
}

/// The complete command line.
pub(crate) fn whole() -> clap::Command {
    Command::command()
}

/// What the manual page contains beyond the command line: the parts of both modes.
pub(crate) fn about() -> About {
    let (mut about, warden) = (cli::about(), warden::about());
    about.files.extend(warden.files);
    about.examples.extend(warden.examples);
    about
}
