//! Command-line pieces shared by both programs: common flags, `--check`, exit codes (DECISIONS 2).

pub mod pages;

use std::fmt::{Arguments, Display};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::config::source::ReadError;
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
    /// With --check: exit with 1 if something that the file lists is left out
    #[arg(long, requires = "check")]
    pub strict: bool,
    /// Format of the log lines
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Log more
    #[arg(long)]
    pub verbose: bool,
}

/// The configuration with the variables of this process and, for those that are not set, of the environment file `name`
/// beside it, which the systemd unit reads: for commands that run in a shell. If that file can't be read, that is printed.
pub fn source_with_unit_variables(program: &str, config: &Path, name: &str) -> ConfigSource {
    let source = ConfigSource::of_process(config.to_owned());
    let path = config.with_file_name(name);
    match source.with_environment_file(&path) {
        Ok(source) => source,
        Err(ReadError::Missing | ReadError::Empty) => source,
        Err(error) => {
            eprint_line(format_args!("{program}: {} is not used: {error}", path.display()));
            source
        }
    }
}

/// Runs `program`. Returns 0 after a requested shutdown or if the checked file is valid (with `--strict`: and nothing in it is left out), 78 for an invalid configuration,
/// 1 for any other failure.
pub fn run<C: Configuration, E: Display>(
    program: &str,
    source: &ConfigSource,
    flags: &Flags,
    serve: impl FnOnce(C) -> Result<(), E>,
) -> ExitCode {
    let loaded = source.load::<C>();
    if flags.check {
        return check(source, loaded, flags.strict);
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

/// `--check`: prints the errors and warnings of the file, and what the program would do with it.
fn check<C: Configuration>(
    source: &ConfigSource,
    loaded: Result<C, ConfigErrors>,
    is_strict: bool,
) -> ExitCode {
    let config = match loaded {
        Err(faults) => return report_errors(&faults),
        Ok(config) => config,
    };
    let path = source.path().display();
    warn(source, &config);
    let of_unit = source.environment_file().map(|file| {
        format!("variables that are not set here are read from {}, as by the systemd unit", file.display())
    });
    for note in of_unit.into_iter().chain(config.notes()) {
        eprint_line(format_args!("{path}: note: {note}"));
    }
    let (extent, warnings) = (config.extent(), config.warnings().len());
    let verdict = if extent.is_complete { "valid; " } else { "" };
    eprint_line(format_args!("{path}: {verdict}warnings: {warnings}; {}", extent.summary));
    if is_strict && !extent.is_complete { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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

/// Writes a line to stderr, with control characters other than newlines and tabs escaped, because part of it may come from
/// outside. Unlike `eprintln` it does not panic if stderr is closed.
pub fn eprint_line(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", escaped(&line.to_string()));
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if telemetry::is_harmful(c) && !matches!(c, '\n' | '\t') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_from_outside_can_not_control_the_terminal() {
        assert_eq!(escaped("a\u{1b}[2J\u{9b}b\u{202e}c\r\n\té"), "a\\u{1b}[2J\\u{9b}b\\u{202e}c\\r\n\té");
    }
}
