//! The warden's command line: flags, subcommands, exit codes (DECISIONS 2).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use evenkeel_common::cli::pages::{self, About, Line, Pages};
use evenkeel_common::cli::{self, Flags};
use evenkeel_common::config::ConfigSource;

use crate::{app, wizard};

/// Default path of the configuration file.
pub const DEFAULT_CONFIG: &str = "/etc/evenkeel/warden.json";

/// Name of the environment file, which the systemd unit reads.
const UNIT_VARIABLES: &str = "warden.env";

/// The paths that the warden uses by default.
const FILES: [Line; 3] = [
    (DEFAULT_CONFIG, "Configuration of the warden."),
    ("/etc/evenkeel/warden.env", "Variables used in the configuration, read when the service starts."),
    ("/var/lib/evenkeel-warden", "Stored entries and the state of each machine."),
];

const EXAMPLES: [Line; 1] =
    [("warden-config", "Ask for all settings of the warden, and write its configuration and its tokens.")];

/// What the warden's manual page contains beyond its command line.
pub fn about() -> About {
    About { files: FILES.into(), examples: EXAMPLES.into() }
}

/// Flags of the warden.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Configuration file
    #[arg(long, value_name = "PATH", default_value = DEFAULT_CONFIG, global = true)]
    pub config: PathBuf,
    /// Common flags
    #[command(flatten)]
    pub flags: Flags,
}

/// Collects the audit entries of many agents and shows the whole fleet
#[derive(Debug, Parser)]
#[command(name = "evenkeel-warden", version)]
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

/// The warden's subcommands.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Task {
    /// Create or edit the warden's configuration interactively
    WardenConfig,
}

/// The whole command line of the program `evenkeel-warden`.
pub fn command() -> clap::Command {
    Command::command()
}

/// Entry point of `evenkeel-warden`. Exits with code 2 on invalid flags.
pub fn main() -> ExitCode {
    let command = Command::parse();
    match command.task {
        Some(Work::Task(task)) => perform(task, &command.args.config),
        Some(Work::Pages(task)) => pages::perform(&task, self::command(), &about()),
        None => run(&command.args),
    }
}

/// Runs a subcommand. `warden-config` exits with 0 when the file was written or deliberately left unchanged, and with 1
/// when the wizard was interrupted.
pub fn perform(task: Task, config: &Path) -> ExitCode {
    match task {
        Task::WardenConfig => wizard::main(config),
    }
}

/// Runs the warden. Exits with 0 after a requested stop, 78 for a configuration with faults, 1 for any other failure.
pub fn run(args: &Args) -> ExitCode {
    let source = if args.flags.check {
        cli::source_with_unit_variables("evenkeel-warden", &args.config, UNIT_VARIABLES)
    } else {
        ConfigSource::of_process(args.config.clone()).with_unit_file(UNIT_VARIABLES)
    };
    cli::run("evenkeel-warden", &source, &args.flags, |config| app::run(config, &source))
}
