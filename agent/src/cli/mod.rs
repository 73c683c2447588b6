//! The agent's command line: flags, subcommands, and what the exit codes mean (DECISIONS 2 and 11).

mod adopt;
mod client;
mod doctor;
mod fleet;
mod fleet_views;
mod follow;
mod remote;
mod terminal;
mod views;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use evenkeel_common::cli::pages::{self, Pages, Place};
use evenkeel_common::cli::{self, Flags, say};
use evenkeel_common::config::ConfigSource;

use self::fleet::FleetTask;
use self::remote::RemoteTask;
use crate::app;
use crate::audit::trial;
use crate::config::Config;

/// The paths that the agent uses by default.
pub const PLACES: [Place; 4] = [
    ("/etc/evenkeel/config.json", "Configuration of the agent."),
    ("/etc/evenkeel/agent.env", "Variables that the configuration names, read by the systemd unit."),
    ("/var/lib/evenkeel", "What it must not forget: blocked digests, the journal of a deployment."),
    ("/var/log/evenkeel", "Where the audit file belongs."),
];

/// Flags of the agent; the wrapper takes the same.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Configuration file
    #[arg(long, value_name = "PATH", default_value = "/etc/evenkeel/config.json", global = true)]
    pub config: PathBuf,
    /// What every mode has
    #[command(flatten)]
    pub flags: Flags,
}

/// What the agent's program can do besides running.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Task {
    /// Send a sample entry to the notification channels and the warden, and show what they answer
    TestNotify {
        /// Only this one: discord, smtp, push, or a webhook's name
        channel: Option<String>,
    },
    /// Look at everything that the agent needs and say what to do about what is wrong; exits with 1 where there is an error
    Doctor(doctor::Args),
    /// Print the configuration of what runs on this machine
    Adopt(adopt::Args),
    /// A question or an order to a running agent
    #[command(flatten)]
    Remote(RemoteTask),
    /// A question or an order to a warden
    #[command(flatten)]
    Fleet(FleetTask),
}

/// Keeps container services up to date, proves every new image, goes back when it is bad
#[derive(Debug, Parser)]
#[command(name = "evenkeel-agent", version)]
struct Command {
    #[command(flatten)]
    args: Args,
    #[command(subcommand)]
    task: Option<Work>,
}

#[derive(Debug, Subcommand)]
enum Work {
    #[command(flatten)]
    Task(Task),
    #[command(flatten)]
    Pages(Pages),
}

/// The whole command line of the program `evenkeel-agent`.
pub fn command() -> clap::Command {
    Command::command()
}

/// The program `evenkeel-agent`. Wrong flags end it here with code 2.
pub fn main() -> ExitCode {
    let command = Command::parse();
    match &command.task {
        None => run(&command.args),
        Some(Work::Task(task)) => perform(task, &command.args),
        Some(Work::Pages(task)) => pages::perform(task, self::command(), &PLACES),
    }
}

/// Does one task and ends: 0 when all of it succeeded.
pub fn perform(task: &Task, args: &Args) -> ExitCode {
    match task {
        Task::TestNotify { channel } => test_notify(channel.as_deref(), args),
        Task::Doctor(task) => doctor::perform(task, &args.config),
        Task::Adopt(task) => adopt::perform(task, &args.config),
        Task::Remote(task) => remote::perform(task, &args.config),
        Task::Fleet(task) => fleet::perform(task, &args.config),
    }
}

fn test_notify(channel: Option<&str>, args: &Args) -> ExitCode {
    let source = ConfigSource::of_process(args.config.clone());
    let config: Config = match source.load() {
        Ok(config) => config,
        Err(faults) => return cli::complain(&faults),
    };
    cli::warn(&source, &config);
    let trials = match trial::trials(&config, channel) {
        Ok(trials) => trials,
        Err(error) => {
            say(format_args!("evenkeel: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map(|runtime| runtime.block_on(trials.run(&mut io::stdout())));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(format_args!("evenkeel: cannot start the async runtime: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the agent: 0 when it was told to stop, 78 for a configuration with faults, 1 for any other failure.
pub fn run(args: &Args) -> ExitCode {
    let source = ConfigSource::of_process(args.config.clone());
    cli::run("evenkeel", &source, &args.flags, |config| app::run(config, &source))
}
