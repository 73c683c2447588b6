//! The warden's command line: flags, and what the exit codes mean (DECISIONS 2).

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use evenkeel_common::telemetry;

use crate::config::{Config, ConfigFaults};
use crate::{app, wizard};

/// `EX_CONFIG` of sysexits.h: service managers can tell it from a failure that goes away by itself.
const EXIT_CONFIG: u8 = 78;
/// Where the configuration is unless the flag says otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/evenkeel/warden.json";

/// Flags of the warden.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Configuration file
    #[arg(long, value_name = "PATH", default_value = DEFAULT_CONFIG, global = true)]
    pub config: PathBuf,
    /// Check the configuration, print every fault and warning, start nothing
    #[arg(long)]
    pub check: bool,
    /// Form of the log lines
    #[arg(long, value_enum, default_value_t = LogFormat::Auto)]
    pub log_format: LogFormat,
    /// Log more
    #[arg(long)]
    pub verbose: bool,
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Coloured on a terminal, plain elsewhere
    Auto,
    /// Lines for people
    Plain,
    /// One JSON object a line
    Json,
}

impl From<LogFormat> for telemetry::LogFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Auto => Self::Auto,
            LogFormat::Plain => Self::Plain,
            LogFormat::Json => Self::Json,
        }
    }
}

/// Collects the audit entries of many agents and shows a whole fleet
#[derive(Debug, Parser)]
#[command(name = "evenkeel-warden", version)]
struct Command {
    #[command(flatten)]
    args: Args,
    #[command(subcommand)]
    task: Option<Task>,
}

/// What the warden's program can do besides running.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Task {
    /// Create or edit the warden's configuration in a conversation
    WardenConfig,
}

/// The program `evenkeel-warden`. Wrong flags end it here with code 2.
pub fn main() -> ExitCode {
    let command = Command::parse();
    match command.task {
        Some(task) => perform(task, &command.args.config),
        None => run(&command.args),
    }
}

/// Does what was asked instead of running. `warden-config`: 0 when the file was written or left by choice, 1 when the
/// conversation was ended before that.
pub fn perform(task: Task, config: &Path) -> ExitCode {
    match task {
        Task::WardenConfig => wizard::main(config),
    }
}

/// Runs the warden: 0 when it was told to stop, 78 for a configuration with faults, 1 for any other failure.
pub fn run(args: &Args) -> ExitCode {
    let loaded = Config::load(&args.config, &|name| std::env::var(name).ok());
    if args.check {
        return check(&args.config, &loaded);
    }
    match loaded {
        Err(faults) => {
            complain(&faults);
            ExitCode::from(EXIT_CONFIG)
        }
        Ok(config) => {
            telemetry::init(args.log_format.into(), args.verbose);
            for warning in &config.warnings {
                tracing::warn!("configuration: {warning}");
            }
            match app::run(config) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    say(format_args!("evenkeel-warden: {error:#}"));
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// `--check`: everything that is to be said about the file.
fn check(path: &Path, loaded: &Result<Config, ConfigFaults>) -> ExitCode {
    match loaded {
        Err(faults) => {
            complain(faults);
            ExitCode::from(EXIT_CONFIG)
        }
        Ok(config) => {
            for warning in &config.warnings {
                say(format_args!("{}: warning: {warning}", path.display()));
            }
            let (agents, warnings) = (config.agents.len(), config.warnings.len());
            say(format_args!("{}: valid; agents: {agents}, warnings: {warnings}", path.display()));
            ExitCode::SUCCESS
        }
    }
}

fn complain(faults: &ConfigFaults) {
    say(format_args!("{faults}"));
    for warning in faults.warnings() {
        say(format_args!("{}: warning: {warning}", faults.path().display()));
    }
}

/// A line on stderr. Unlike `eprintln` it does not panic when nobody reads it any more.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
