//! Command-line pieces shared by both programs: common flags, `--check`, exit codes (DECISIONS 2).

pub mod pages;

use std::fmt::{Arguments, Display};
use std::io::{self, Write};
use std::process::ExitCode;

use crate::config::{ConfigErrors, ConfigSource, Configuration};
use crate::telemetry::{self, LogFormat};

/// `EX_CONFIG` of sysexits.h. It lets a service manager distinguish a configuration error from a transient failure.
const EXIT_CONFIG: u8 = 78;

/// Flags that every mode accepts.
#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
    /// Check the configuration, print all errors and warnings, and exit without starting
    #[arg(long)]
    pub check: bool,
    /// Format of the log lines
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Log more
    #[arg(long)]
    pub verbose: bool,
}

/// Runs `program`. Returns 0 after a requested shutdown or if the checked file is valid, 78 for an invalid configuration,
/// 1 for any other failure.
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
        Err(faults) => report_errors(&faults),
        Ok(config) => {
            telemetry::init(flags.log_format, flags.verbose);
            for warning in config.warnings() {
                tracing::warn!("configuration: {warning}");
            }
            match serve(config) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprint_line(format_args!("{program}: {error:#}"));
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// `--check`: prints the errors and warnings of the file, or that it is valid.
fn check<C: Configuration>(source: &ConfigSource, loaded: Result<C, ConfigErrors>) -> ExitCode {
    match loaded {
        Err(faults) => report_errors(&faults),
        Ok(config) => {
            warn(source, &config);
            let (extent, warnings) = (config.extent(), config.warnings().len());
            eprint_line(format_args!("{}: valid; {extent}, warnings: {warnings}", source.path().display()));
            ExitCode::SUCCESS
        }
    }
}

/// Prints the warnings of a valid file.
pub fn warn(source: &ConfigSource, config: &impl Configuration) {
    for warning in config.warnings() {
        eprint_line(format_args!("{}: warning: {warning}", source.path().display()));
    }
}

/// Prints the errors and warnings of an invalid file and returns the exit code for it.
pub fn report_errors(faults: &ConfigErrors) -> ExitCode {
    eprint_line(format_args!("{faults}"));
    for warning in faults.warnings() {
        eprint_line(format_args!("{}: warning: {warning}", faults.path().display()));
    }
    ExitCode::from(EXIT_CONFIG)
}

/// Writes a line to stderr. Unlike `eprintln` it does not panic if stderr is closed.
pub fn eprint_line(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
