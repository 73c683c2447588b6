//! The agent's command line: flags, and what the exit codes mean (DECISIONS 2).

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use evenkeel_common::telemetry;

use crate::app;
use crate::config::{Config, ConfigFaults, ConfigSource};

/// `EX_CONFIG` of sysexits.h: service managers can tell it from a failure that goes away by itself.
const EXIT_CONFIG: u8 = 78;

/// Flags of the agent; the wrapper takes the same.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Configuration file
    #[arg(long, value_name = "PATH", default_value = "/etc/evenkeel/config.json", global = true)]
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

/// Keeps container services up to date, proves every new image, goes back when it is bad
#[derive(Debug, Parser)]
#[command(name = "evenkeel-agent", version)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// The program `evenkeel-agent`. Wrong flags end it here with code 2.
pub fn main() -> ExitCode {
    run(&Command::parse().args)
}

/// Runs the agent: 0 when it was told to stop, 78 for a configuration with faults, 1 for any other failure.
pub fn run(args: &Args) -> ExitCode {
    let source = ConfigSource::new(args.config.clone(), |name| std::env::var(name).ok());
    let loaded = source.load();
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
            match app::run(config, &source) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    say(format_args!("evenkeel: {error:#}"));
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
            let (services, warnings) = (config.services.len(), config.warnings.len());
            say(format_args!("{}: valid; services: {services}, warnings: {warnings}", path.display()));
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
