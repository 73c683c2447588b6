//! The program `evenkeel`: all modes in one executable (spec, introduction).

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use evenkeel_agent::cli;

/// Keeps container services up to date, proves every new image, goes back when it is bad
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version)]
struct Command {
    /// What to run as
    #[arg(long, value_enum, default_value_t = Mode::Agent)]
    mode: Mode,
    #[command(flatten)]
    agent: cli::Args,
    #[command(subcommand)]
    task: Option<cli::Task>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    /// Update, heal and report the services of this machine
    Agent,
}

fn main() -> ExitCode {
    let command = Command::parse();
    match (command.mode, &command.task) {
        (Mode::Agent, None) => cli::run(&command.agent),
        (_, Some(task)) => cli::perform(task, &command.agent),
    }
}
