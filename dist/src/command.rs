//! The command line of the program `evenkeel`; the maker of the packages' pages reads it, too (`examples/pages.rs`).

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use evenkeel_agent::cli;
use evenkeel_common::cli::pages::{Pages, Place};
use evenkeel_warden::cli as warden;

/// Keeps container services up to date, proves every new image, goes back when it is bad
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version)]
pub(crate) struct Command {
    /// What to run as
    #[arg(long, value_enum, default_value_t = Mode::Agent)]
    pub(crate) mode: Mode,
    #[command(flatten)]
    pub(crate) agent: cli::Args,
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Mode {
    /// Update, heal and report the services of this machine
    Agent,
    /// Collect the entries of many agents (configuration: /etc/evenkeel/warden.json unless --config says otherwise)
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

/// The whole command line.
pub(crate) fn whole() -> clap::Command {
    Command::command()
}

/// The paths of both modes.
pub(crate) fn places() -> Vec<Place> {
    cli::PLACES.into_iter().chain(warden::PLACES).collect()
}
