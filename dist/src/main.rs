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
        (_, Some(Task::Pages(task))) => pages::perform(&task, command::whole(), &command::about()),
        (Mode::Agent, None) => cli::run(&command.agent),
        (Mode::Warden, None) => warden::run(&warden),
    }
}

/// Reports whether `--config` is given on the command line, before or after a subcommand.
fn is_given(matches: &ArgMatches) -> bool {
    let given = |matches: &ArgMatches| matches.value_source("config") == Some(ValueSource::CommandLine);
    given(matches) || matches.subcommand().is_some_and(|(_, matches)| given(matches))
}

/// The same flags with the warden's default path of the configuration.
fn warden_args(args: &cli::Args, config_is_given: bool) -> warden::Args {
    warden::Args {
        config: if config_is_given { args.config.clone() } else { PathBuf::from(warden::DEFAULT_CONFIG) },
        flags: args.flags.clone(),
    }
}
