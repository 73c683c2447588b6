//! What the command lines of both programs have in common: flags, `--check`, what the exit codes mean (DECISIONS 2).

pub mod pages;

use std::fmt::{Arguments, Display};
use std::io::{self, Write};
use std::process::ExitCode;

use crate::config::{ConfigFaults, ConfigSource, Configuration};
use crate::telemetry::{self, LogFormat};

/// `EX_CONFIG` of sysexits.h: service managers can tell it from a failure that goes away by itself.
const EXIT_CONFIG: u8 = 78;

/// Flags that every mode has.
#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
    /// Check the configuration, print every fault and warning, start nothing
    #[arg(long)]
    pub check: bool,
    /// Form of the log lines
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Log more
    #[arg(long)]
    pub verbose: bool,
}

/// Runs `program`: 0 when it was told to stop or the checked file is valid, 78 for a configuration with faults, 1 for
/// any other failure.
pub fn run<C: Configuration, E: Display>(
    program: &str,
    source: &ConfigSource,
    flags: &Flags,
    serve: impl FnOnce(C) -> Result<(), E>,
) -> ExitCode {
    let loaded = source.load::<C>();
    if flags.check {
        return check(source, loaded);
    }
    match loaded {
        Err(faults) => complain(&faults),
        Ok(config) => {
            telemetry::init(flags.log_format, flags.verbose);
            for warning in config.warnings() {
                tracing::warn!("configuration: {warning}");
            }
            match serve(config) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    say(format_args!("{program}: {error:#}"));
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// `--check`: everything that is to be said about the file.
fn check<C: Configuration>(source: &ConfigSource, loaded: Result<C, ConfigFaults>) -> ExitCode {
    match loaded {
        Err(faults) => complain(&faults),
        Ok(config) => {
            warn(source, &config);
            let (extent, warnings) = (config.extent(), config.warnings().len());
            say(format_args!("{}: valid; {extent}, warnings: {warnings}", source.path().display()));
            ExitCode::SUCCESS
        }
    }
}

/// Prints the warnings of a file that is valid.
pub fn warn(source: &ConfigSource, config: &impl Configuration) {
    for warning in config.warnings() {
        say(format_args!("{}: warning: {warning}", source.path().display()));
    }
}

/// Prints what is wrong with a file; the exit code for it.
pub fn complain(faults: &ConfigFaults) -> ExitCode {
    say(format_args!("{faults}"));
    for warning in faults.warnings() {
        say(format_args!("{}: warning: {warning}", faults.path().display()));
    }
    ExitCode::from(EXIT_CONFIG)
}

/// A line on stderr. Unlike `eprintln` it does not panic when nobody reads it any more.
pub fn say(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
