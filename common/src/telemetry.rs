//! Logging to stderr: filter, format, and escaping of control characters.

use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Writer, debug_fn, format};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Format of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// Coloured on a terminal, plain elsewhere
    #[default]
    Auto,
    /// Human-readable lines without colour
    Plain,
    /// One JSON object per line
    Json,
}

/// Our own crates, to which `verbose` applies.
const OURS: [&str; 4] = ["evenkeel", "evenkeel_agent", "evenkeel_common", "evenkeel_warden"];

/// Starts logging to stderr. `RUST_LOG` takes precedence over `verbose`. For the systemd journal, each line has a priority
/// and no timestamp, since the journal adds its own. Has no effect if logging has been started before.
pub fn init(log_format: LogFormat, verbose: bool) {
    let (filter, fault) = filter(std::env::var("RUST_LOG").ok().as_deref(), verbose);
    let ansi = log_format == LogFormat::Auto && io::stderr().is_terminal();
    let journal = is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), io::stderr());
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(ansi && !journal);
    let registry = tracing_subscriber::registry().with(filter);
    // Another subscriber may be installed already, as in tests.
    let _ = match (log_format, journal) {
        (LogFormat::Json, false) => registry.with(layer.json().flatten_event(true)).try_init(),
        (LogFormat::Json, true) => {
            let lines = Prioritised(format().json().flatten_event(true));
            registry.with(layer.json().event_format(lines)).try_init()
        }
        (_, false) => registry.with(layer.fmt_fields(escaping())).try_init(),
        (_, true) => {
            let lines = Prioritised(format().without_time());
            registry.with(layer.fmt_fields(escaping()).event_format(lines)).try_init()
        }
    };
    if let Some(fault) = fault {
        tracing::warn!("ignoring RUST_LOG: {fault}");
    }
}

/// Reports whether `JOURNAL_STREAM` refers to this stream (systemd.exec(5)). A child process inherits the variable even if
/// its stderr is redirected.
fn is_journal(variable: Option<&str>, stream: impl AsFd) -> bool {
    let named = variable.and_then(|text| text.split_once(':'));
    let (Some((device, inode)), Ok(stat)) = (named, rustix::fs::fstat(stream)) else { return false };
    device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino)
}

/// Prefixes each line with its priority for the journal (sd-daemon(3)).
struct Prioritised<F>(F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

/// Returns the filter by target and level, and the error of an invalid `RUST_LOG`. Span filters are not supported: there are
/// no spans, and their patterns would need a regex engine.
fn filter(from_environment: Option<&str>, verbose: bool) -> (Targets, Option<String>) {
    let default = || {
        let targets = Targets::new().with_default(Level::INFO);
        if verbose { targets.with_targets(OURS.map(|name| (name, Level::DEBUG))) } else { targets }
    };
    let directives = from_environment.unwrap_or_default().split(',').map(str::trim);
    let directives: Vec<&str> = directives.filter(|directive| !directive.is_empty()).collect();
    if directives.is_empty() {
        return (default(), None);
    }
    match directives.join(",").parse() {
        Ok(filter) => (filter, None),
        Err(error) => (default(), Some(error.to_string())),
    }
}

/// Writes `message name=value …` with all control characters escaped. Names, labels and error texts come from outside, and
/// the default formatter does not escape all of them.
fn escaping() -> impl for<'writer> FormatFields<'writer> {
    debug_fn(|writer, field, value| {
        if field.name() != "message" {
            write!(writer, "{field}=")?;
        }
        for character in format!("{value:?}").chars() {
            if is_harmful(character) {
                write!(writer, "{}", character.escape_default())?;
            } else {
                writer.write_char(character)?;
            }
        }
        Ok(())
    })
    .delimited(" ")
}

/// Reports whether a terminal acts on a character instead of showing it: control characters, and bidirectional ones, which
/// reorder a line on the screen.
pub fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, event: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(event);
            Ok(event.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(ansi: bool) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
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
        let bytes = buffer.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn values_cannot_control_the_terminal_or_fake_a_line() {
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
    fn the_environment_takes_precedence_and_an_invalid_one_is_reported() {
        assert_eq!(filter(Some("debug"), false).0.to_string(), "debug");
        assert_eq!(filter(None, false).0.to_string(), "info");
        for nothing in [" ", ",", " , "] {
            assert_eq!(filter(Some(nothing), false).0.to_string(), "info");
        }
        let one = filter(Some("warn, evenkeel_agent=trace,"), true).0;
        assert!(one.would_enable("evenkeel_agent::service", &Level::TRACE));
        assert!(one.would_enable("hyper", &Level::WARN) && !one.would_enable("hyper", &Level::INFO));
        let verbose = filter(None, true).0;
        assert!(verbose.would_enable("evenkeel_agent::service", &Level::DEBUG));
        assert!(verbose.would_enable("hyper", &Level::INFO) && !verbose.would_enable("hyper", &Level::DEBUG));
        let (used, fault) = filter(Some("a=b=c"), false);
        assert_eq!(used.to_string(), "info");
        assert!(fault.is_some());
    }

    #[test]
    fn the_journal_gets_the_priority_of_each_line() {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .event_format(Prioritised(format().without_time()))
            .fmt_fields(escaping())
            .with_max_level(Level::TRACE)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("a\n<0>b");
            tracing::warn!("c");
            tracing::info!(name = "e", "d");
            tracing::debug!("f");
            tracing::trace!("g");
        });
        let text = String::from_utf8(buffer.0.lock().clone()).unwrap();
        let from = module_path!();
        let wanted = [
            format!("<3>ERROR {from}: a\\n<0>b"),
            format!("<4> WARN {from}: c"),
            format!("<6> INFO {from}: d name=\"e\""),
            format!("<7>DEBUG {from}: f"),
            format!("<7>TRACE {from}: g"),
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn only_the_stream_in_the_variable_is_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let stream = File::create(folder.path().join("stream")).unwrap();
        let other = File::create(folder.path().join("other")).unwrap();
        let facts = stream.metadata().unwrap();
        let named = format!("{}:{}", facts.dev(), facts.ino());
        assert!(is_journal(Some(&named), &stream));
        assert!(!is_journal(Some(&named), &other));
        for nonsense in [None, Some(""), Some("1"), Some("a:b"), Some(":")] {
            assert!(!is_journal(nonsense, &stream), "{nonsense:?}");
        }
    }
}
