//! The program `evenkeel`: all modes in one executable (spec, introduction).

mod command;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches as _};
use evenkeel_agent::cli;
use evenkeel_common::cli::pages;
use evenkeel_warden::cli as warden;

use command::{Command, Mode, Task};

fn main() -> ExitCode {
    let matches = command::whole().get_matches();
    let command = Command::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let warden = warden_args(&command.agent, is_given(&matches));
    match (command.mode, command.task) {
        (_, Some(Task::Agent(task))) => cli::perform(&task, &command.agent),
        (_, Some(Task::Warden(task))) => warden::perform(task, &warden.config),
        (_, Some(Task::Pages(task))) => pages::perform(&task, command::whole(), &command::places()),
        (Mode::Agent, None) => cli::run(&command.agent),
        (Mode::Warden, None) => warden::run(&warden),
    }
}

/// Whether `--config` stands on the command line, before a subcommand or behind it.
fn is_given(matches: &ArgMatches) -> bool {
    let here = |matches: &ArgMatches| matches.value_source("config") == Some(ValueSource::CommandLine);
    here(matches) || matches.subcommand().is_some_and(|(_, matches)| here(matches))
}

/// The flags are the same; only the place of the configuration differs.
fn warden_args(args: &cli::Args, config_is_given: bool) -> warden::Args {
    warden::Args {
        config: if config_is_given { args.config.clone() } else { PathBuf::from(warden::DEFAULT_CONFIG) },
        flags: args.flags.clone(),
    }
}
