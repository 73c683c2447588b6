//! Log lines on stderr: filter, format, and nothing in them that could act on a terminal.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// Coloured on a terminal, plain elsewhere
    #[default]
    Auto,
    /// Lines for people
    Plain,
    /// One JSON object a line
    Json,
}

/// Our own crates, which `verbose` is about.
const OURS: [&str; 4] = ["evenkeel", "evenkeel_agent", "evenkeel_common", "evenkeel_warden"];

/// Starts logging to stderr. `RUST_LOG` wins over `verbose`. Times are left out where the journal adds its own. Has
/// no effect when logging was started before.
pub fn init(format: LogFormat, verbose: bool) {
    let (filter, fault) = filter(std::env::var("RUST_LOG").ok().as_deref(), verbose);
    let ansi = format == LogFormat::Auto && io::stderr().is_terminal();
    let journald = std::env::var_os("JOURNAL_STREAM").is_some_and(|value| !value.is_empty());
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(ansi);
    let registry = tracing_subscriber::registry().with(filter);
    // Somebody else's subscriber, as in tests, is as good as ours.
    let _ = match (format, journald) {
        (LogFormat::Json, _) => registry.with(layer.json().flatten_event(true)).try_init(),
        (_, true) => registry.with(layer.fmt_fields(escaping()).without_time()).try_init(),
        (_, false) => registry.with(layer.fmt_fields(escaping())).try_init(),
    };
    if let Some(fault) = fault {
        tracing::warn!("RUST_LOG is not used: {fault}");
    }
}

/// The filter, and what is wrong with the environment's.
fn filter(from_environment: Option<&str>, verbose: bool) -> (EnvFilter, Option<String>) {
    let ours = || {
        let debug = if verbose { OURS.map(|name| format!(",{name}=debug")).concat() } else { String::new() };
        EnvFilter::new(format!("info{debug}"))
    };
    match from_environment {
        Some(text) if !text.trim().is_empty() => match EnvFilter::try_new(text) {
            Ok(filter) => (filter, None),
            Err(error) => (ours(), Some(error.to_string())),
        },
        _ => (ours(), None),
    }
}

/// Writes `message name=value …` with the control characters of all values escaped: names, labels and error texts
/// come from outside, and the formatter lets some of them through.
fn escaping() -> impl for<'writer> FormatFields<'writer> {
    debug_fn(|writer, field, value| {
        if field.name() != "message" {
            write!(writer, "{field}=")?;
        }
        for character in format!("{value:?}").chars() {
            if character.is_control() || is_bidi(character) {
                write!(writer, "{}", character.escape_default())?;
            } else {
                writer.write_char(character)?;
            }
        }
        Ok(())
    })
    .delimited(" ")
}

/// Characters that reorder a line on the screen.
fn is_bidi(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::Level;

    use super::*;

    #[derive(Clone, Default)]
    struct Sheet(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sheet {
        fn write(&mut self, event: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(event);
            Ok(event.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(ansi: bool) -> String {
        let sheet = Sheet::default();
        let writer = sheet.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .fmt_fields(escaping())
            .with_ansi(ansi)
            .with_max_level(Level::INFO)
            .finish();
        let evil = "a\nfake line\r\u{1b}[31mred\u{1b}]0;title\u{7}\u{9b}31m\u{202e}";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(name = evil, shown = %evil, debug = ?evil, "{evil}");
        });
        let bytes = sheet.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn nothing_in_a_value_acts_on_the_terminal_or_fakes_a_line() {
        for ansi in [false, true] {
            let text = logged(ansi);
            assert_eq!(text.matches('\n').count(), 1, "{text:?}");
            assert!(text.ends_with('\n'));
            assert!(!text.contains("\u{1b}[31mred"), "{text:?}");
            for character in ['\r', '\u{7}', '\u{9b}', '\u{202e}'] {
                assert!(!text.contains(character), "{text:?}");
            }
            assert_eq!(text.contains('\u{1b}'), ansi, "{text:?}");
            assert!(text.contains(r"a\nfake line\r\u{1b}[31mred"), "{text:?}");
            assert!(text.contains(" shown=a"), "{text:?}");
        }
    }

    #[test]
    fn the_environment_wins_and_a_bad_one_is_told() {
        assert_eq!(filter(Some("debug"), false).0.to_string(), "debug");
        assert_eq!(filter(None, false).0.to_string(), "info");
        assert_eq!(filter(Some(" "), false).0.to_string(), "info");
        assert!(filter(None, true).0.to_string().contains("evenkeel_agent=debug"));
        let (used, fault) = filter(Some("a=b=c"), false);
        assert_eq!(used.to_string(), "info");
        assert!(fault.is_some());
    }
}
