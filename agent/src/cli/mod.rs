//! The agent's command line: flags, subcommands and exit codes (DECISIONS 2 and 11).

mod adopt;
mod answer;
mod attention;
mod client;
mod doctor;
mod fleet;
mod fleet_views;
mod follow;
mod remote;
mod rollback;
mod terminal;
mod times;
mod updaters;
mod views;
mod wait;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use evenkeel_common::cli::pages::{self, About, Line, Pages};
use evenkeel_common::cli::{self, Flags, eprint_line};
use evenkeel_common::config::ConfigSource;

use self::fleet::FleetTask;
use self::remote::RemoteTask;
use crate::app;
use crate::audit::trial;
use crate::config::Config;

/// Name of the environment file beside the configuration, which the systemd unit reads.
const UNIT_VARIABLES: &str = "agent.env";

/// The agent's default paths.
const FILES: [Line; 4] = [
    ("/etc/evenkeel/config.json", "Configuration of the agent."),
    ("/etc/evenkeel/agent.env", "Variables used in the configuration, read when the service starts."),
    ("/var/lib/evenkeel", "Durable state: blocked digests, the journal of a deployment."),
    ("/var/log/evenkeel", "Folder for the audit file."),
];

const EXAMPLES: [Line; 7] = [
    ("adopt", "Print a configuration for the containers that run here."),
    ("--check", "Check the configuration, as before a reload."),
    ("doctor", "Check the engine, compose, the registries and the channels that the configuration names."),
    ("status", "Show the services; the exit status is 1 if one needs attention."),
    ("why shop", "Show what prevents an update of the service shop."),
    ("trigger shop --wait", "Check for a new image now, and follow it until it is proven or rejected."),
    ("rollback shop", "Go back to the image that was proven before the one that runs."),
];

/// What the agent's manual page contains beyond its command line.
pub fn about() -> About {
    About { files: FILES.into(), examples: EXAMPLES.into() }
}

/// Flags of the agent; the combined `evenkeel` command has the same.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Configuration file
    #[arg(long, value_name = "PATH", default_value = "/etc/evenkeel/config.json", global = true)]
    pub config: PathBuf,
    /// Common flags
    #[command(flatten)]
    pub flags: Flags,
}

/// Subcommands of the agent.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Task {
    /// Send a sample entry to the notification channels and the warden, and show their answers
    TestNotify {
        /// Only this channel: its section, such as discord, smtp or push, or the name of a webhook
        channel: Option<String>,
    },
    /// Check everything that the agent depends on and show how to fix problems; exits with 1 if there is an error
    Doctor(doctor::Args),
    /// Print a configuration for the containers running on this machine
    Adopt(adopt::Args),
    /// Requests to a running agent
    #[command(flatten)]
    Remote(RemoteTask),
    /// Requests to a warden
    #[command(flatten)]
    Fleet(FleetTask),
}

/// Keeps container services up to date, verifies every new image, and rolls back bad ones
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

/// The complete command line of the program `evenkeel-agent`.
pub fn command() -> clap::Command {
    Command::command()
}

/// Entry point of the program `evenkeel-agent`. Invalid flags exit here with code 2.
pub fn main() -> ExitCode {
    let command = Command::parse();
    match &command.task {
        None => run(&command.args),
        Some(Work::Task(task)) => perform(task, &command.args),
        Some(Work::Pages(task)) => pages::perform(task, self::command(), &about()),
    }
}

/// Runs one subcommand and returns its exit code; 0 means success.
pub fn perform(task: &Task, args: &Args) -> ExitCode {
    // These do what the agent does, in a shell.
    if matches!(task, Task::TestNotify { .. } | Task::Doctor(_) | Task::Adopt(_)) {
        doctor::take_unit_variables();
    }
    match task {
        Task::TestNotify { channel } => test_notify(channel.as_deref(), args),
        Task::Doctor(task) => doctor::perform(task, &args.config),
        Task::Adopt(task) => adopt::perform(task, &args.config),
        Task::Remote(task) => remote::perform(task, &args.config),
        Task::Fleet(task) => fleet::perform(task, &args.config),
    }
}

fn source_with_unit_variables(config: &Path) -> ConfigSource {
    cli::source_with_unit_variables("evenkeel", config, UNIT_VARIABLES)
}

fn test_notify(channel: Option<&str>, args: &Args) -> ExitCode {
    let source = source_with_unit_variables(&args.config);
    let config: Config = match source.load() {
        Ok(config) => config,
        Err(faults) => return cli::report_errors(&faults),
    };
    cli::warn(&source, &config);
    let trials = match trial::trials(&config, channel) {
        Ok(trials) => trials,
        Err(error) => {
            eprint_line(format_args!("evenkeel: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match block_on(trials.run(&mut io::stdout())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(code) => code,
    }
}

/// Runs a command that waits for others. The error, with its exit code, has been printed.
fn block_on<T>(command: impl Future<Output = T>) -> Result<T, ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        eprint_line(format_args!("evenkeel: cannot start the async runtime: {error}"));
        ExitCode::FAILURE
    })?;
    let outcome = runtime.block_on(command);
    // Do not wait for a thread that is blocked by a hanging file system.
    runtime.shutdown_background();
    Ok(outcome)
}

/// Runs the agent: 0 after a requested shutdown, 78 for a configuration with fatal faults, 1 for any other failure.
pub fn run(args: &Args) -> ExitCode {
    let source = if args.flags.check {
        source_with_unit_variables(&args.config)
    } else {
        ConfigSource::of_process(args.config.clone()).with_unit_file(UNIT_VARIABLES)
    };
    cli::run("evenkeel", &source, &args.flags, |config| app::run(config, &source))
}
