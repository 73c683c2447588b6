//! Output for users: fitted to the width of the terminal, and coloured on a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;

use evenkeel_common::wire::{Level, StatusValue};
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;

/// Properties of standard output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terminal {
    /// Columns; `None` if the output is not a terminal, so that nothing is cut.
    width: Option<usize>,
    colour: bool,
    /// Whether the cursor can be moved.
    live: bool,
}

/// Colours by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    /// Normal.
    Good,
    /// In progress, or needs a look.
    Attention,
    /// Needs action.
    Bad,
    /// Secondary information.
    Faint,
    /// No colour.
    Plain,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Attention => "33",
            Self::Bad => "31",
            Self::Faint => "2",
            Self::Plain => "0",
        }
    }
}

impl From<StatusValue> for Colour {
    fn from(status: StatusValue) -> Self {
        match status {
            StatusValue::Ok => Self::Good,
            StatusValue::Deploying | StatusValue::Degraded | StatusValue::NotFound => Self::Attention,
            StatusValue::Unknown => Self::Faint,
            StatusValue::Exhausted | StatusValue::Errored | StatusValue::Blocked | StatusValue::Unhealthy => {
                Self::Bad
            }
        }
    }
}

impl From<Level> for Colour {
    fn from(level: Level) -> Self {
        match level {
            Level::Info => Self::Plain,
            Level::Warning => Self::Attention,
            Level::Error | Level::Critical => Self::Bad,
        }
    }
}

impl Terminal {
    /// Inspects standard output. `NO_COLOR` and `COLUMNS` are honoured.
    pub(super) fn of_process() -> Self {
        let out = io::stdout();
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if !out.is_terminal() {
            return Self { width: None, colour: false, live: false };
        }
        let columns = rustix::termios::tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
        let named = variable("COLUMNS").and_then(|text| text.parse().ok());
        let width = columns.filter(|columns| *columns > 0).or(named).unwrap_or(80);
        let live = variable("TERM").as_deref() != Some("dumb");
        let colour = variable("NO_COLOR").is_none() && live;
        Self { width: Some(width.max(20)), colour, live }
    }

    /// Not a terminal: no colours, nothing is cut.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self { width: None, colour: false, live: false }
    }

    /// Reports whether a line can be rewritten.
    pub(super) fn is_live(self) -> bool {
        self.live
    }

    /// Returns a copy that never rewrites a line.
    pub(super) fn without_cursor(self) -> Self {
        Self { live: false, ..self }
    }

    /// Colours the text.
    pub(super) fn paint(self, colour: Colour, text: &str) -> String {
        if self.colour && colour != Colour::Plain {
            format!("\x1b[{}m{text}\x1b[0m", colour.code())
        } else {
            text.to_owned()
        }
    }

    /// Draws a progress bar of this many columns for a share from 0 to 1.
    pub(super) fn bar(columns: usize, share: f64) -> String {
        let full = (share.clamp(0.0, 1.0) * columns as f64).round();
        // At most `columns`, which is small.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let full = full as usize;
        format!("[{}{}]", "#".repeat(full), "-".repeat(columns - full))
    }

    /// Formats rows under a header, each column as wide as necessary. If the table is too wide, the last column is cut.
    pub(super) fn table(self, head: &[&str], rows: &[Vec<(Colour, String)>]) -> String {
        self.lay_out(head, rows, |text, columns| vec![Self::clean(text, columns)]).concat()
    }

    /// Like [`Self::table`], but wraps the last column.
    pub(super) fn wrapped_table(self, head: &[&str], rows: &[Vec<(Colour, String)>]) -> String {
        self.wrapped_rows(head, rows).concat()
    }

    /// The header and each row of [`Self::wrapped_table`]. A row may have several lines.
    pub(super) fn wrapped_rows(self, head: &[&str], rows: &[Vec<(Colour, String)>]) -> Vec<String> {
        self.lay_out(head, rows, break_lines)
    }

    fn lay_out(
        self,
        head: &[&str],
        rows: &[Vec<(Colour, String)>],
        last: impl Fn(&str, usize) -> Vec<String>,
    ) -> Vec<String> {
        let columns = head.len();
        let cell = |row: &Vec<(Colour, String)>, n: usize| row.get(n).map_or(0, |(_, text)| width_of(text));
        let widths: Vec<usize> = (0..columns)
            .map(|n| rows.iter().map(|row| cell(row, n)).chain([width_of(head[n])]).max().unwrap_or(0))
            .collect();
        let head: Vec<(Colour, String)> =
            head.iter().map(|text| (Colour::Faint, (*text).to_owned())).collect();
        let mut all = Vec::new();
        for row in std::iter::once(&head).chain(rows) {
            let mut out = String::new();
            let mut left = self.width.unwrap_or(usize::MAX);
            for (n, (colour, text)) in row.iter().enumerate() {
                if n + 1 == columns {
                    let indent = " ".repeat(self.width.unwrap_or_default().saturating_sub(left));
                    let lines = last(text, left).into_iter().map(|line| self.paint(*colour, &line));
                    out.push_str(&lines.collect::<Vec<_>>().join(&format!("\n{indent}")));
                    break;
                }
                let text = Self::clean(text, left);
                let _ = write!(out, "{}", self.paint(*colour, &text));
                let gap =
                    (widths[n] + 2).saturating_sub(width_of(&text)).min(left.saturating_sub(width_of(&text)));
                out.push_str(&" ".repeat(gap));
                left = left.saturating_sub(widths[n] + 2);
            }
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            all.push(out);
        }
        all
    }

    /// The width in columns; `None` if the output is not a terminal.
    pub(super) fn columns(self) -> Option<usize> {
        self.width
    }

    /// A terminal of this width without colours.
    #[cfg(test)]
    pub(super) fn with_columns(columns: usize) -> Self {
        Self { width: Some(columns), colour: false, live: false }
    }

    /// Wraps `text` after `head`; the following lines are indented by `indent` columns. Nothing is cut.
    pub(super) fn hanging(self, head: &str, indent: usize, text: &str) -> String {
        let width = self.width.unwrap_or(usize::MAX);
        let (mut out, mut line) = (String::new(), Self::clean(head, usize::MAX));
        let (mut has_words, mut is_first) = (false, true);
        for word in crate::model::output::clean(text).split_whitespace() {
            let gap = usize::from(has_words);
            if width_of(&line) + gap + width_of(word) > width && (has_words || is_first) {
                out.push_str(line.trim_end_matches(' '));
                out.push('\n');
                line = " ".repeat(indent);
                (has_words, is_first) = (false, false);
            }
            if has_words {
                line.push(' ');
            }
            line.push_str(word);
            has_words = true;
        }
        out.push_str(line.trim_end_matches(' '));
        out.push('\n');
        out
    }

    /// Wraps `text` after `head`; the following lines are indented by the width of the head. Nothing is cut: a word that is
    /// too long gets its own line.
    pub(super) fn wrap(self, head: &str, text: &str) -> String {
        let indent = " ".repeat(width_of(head));
        let heads = std::iter::once(head).chain(std::iter::repeat(indent.as_str()));
        let room = self.width.map_or(usize::MAX, |width| width.saturating_sub(width_of(head)));
        let mut out = String::new();
        for (head, line) in heads.zip(break_lines(text, room)) {
            let _ = writeln!(out, "{head}{line}");
        }
        out
    }

    /// Formats the text on one line, cut to the width of the terminal.
    pub(super) fn line(self, text: &str) -> String {
        Self::clean(text, self.width.unwrap_or(usize::MAX))
    }

    /// Removes control sequences from untrusted text, such as output of containers and registries, and cuts it to `columns`.
    fn clean(text: &str, columns: usize) -> String {
        let text = crate::model::output::clean(text).replace(['\n', '\t'], " ");
        if width_of(&text) <= columns {
            return text;
        }
        let mut cut: String = text.chars().take(columns.saturating_sub(1)).collect();
        if columns > 0 {
            cut.push('…');
        }
        cut
    }
}

/// Splits a text into lines of at most `columns` columns, broken between words.
fn break_lines(text: &str, columns: usize) -> Vec<String> {
    let text = crate::model::output::clean(text);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always one line");
        if line.is_empty() {
            line.push_str(word);
        } else if width_of(line) + 1 + width_of(word) <= columns {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn width_of(text: &str) -> usize {
    text.chars().count()
}

/// Writes to standard output, without a panic if the reader has closed it (`| head`). Returns whether it is still open.
pub(super) fn print(text: &str) -> bool {
    write(&mut io::stdout(), text)
}

fn write(out: &mut impl Write, text: &str) -> bool {
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    !written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Waits until the reader of this pipe has closed it.
pub(super) async fn reader_gone(out: impl AsFd) {
    // Unchecked, because the check would make the pipe non-blocking, also for other processes that write to it.
    let pipe = out.as_fd().try_clone_to_owned().and_then(|out| Sender::from_file_unchecked(out.into()));
    match pipe {
        Ok(pipe) => drop(pipe.ready(Interest::ERROR).await),
        // A file can't be watched, and never closes.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 3]) -> Vec<(Colour, String)> {
        cells.map(|text| (Colour::Plain, text.to_owned())).to_vec()
    }

    #[test]
    fn a_table_fits_the_terminal_and_is_not_cut_elsewhere() {
        let rows = [row(["web", "ok", "a very long explanation"]), row(["database", "blocked", "short"])];
        let head = ["NAME", "STATUS", "WHY"];
        let narrow = Terminal { width: Some(30), colour: false, live: false }.table(&head, &rows);
        assert_eq!(
            narrow,
            "NAME      STATUS   WHY\nweb       ok       a very lon…\ndatabase  blocked  short\n"
        );
        let free = Terminal { width: None, colour: false, live: false }.table(&head, &rows);
        assert!(free.contains("a very long explanation"));
    }

    #[test]
    fn a_long_text_is_wrapped_between_words_without_loss() {
        let narrow = Terminal { width: Some(20), colour: false, live: false };
        let text = "run the command\nhttp://a.very.long.address/ now";
        assert_eq!(
            narrow.wrap("  do  ", text),
            "  do  run the\n      command\n      http://a.very.long.address/\n      now\n"
        );
        assert_eq!(
            Terminal::plain().wrap("  do  ", text),
            "  do  run the command http://a.very.long.address/ now\n"
        );
        assert_eq!(narrow.wrap("  do  ", ""), "  do  \n");
    }

    #[test]
    fn control_sequences_from_containers_are_removed() {
        let terminal = Terminal { width: Some(80), colour: false, live: false };
        assert_eq!(terminal.line("a\u{1b}[2Jb\nc"), "ab c");
    }

    #[test]
    fn colours_are_for_terminals_only() {
        let row = [vec![(Colour::Bad, "x".to_owned())]];
        assert_eq!(Terminal { width: None, colour: false, live: false }.table(&["A"], &row), "A\nx\n");
        assert!(
            Terminal { width: None, colour: true, live: false }
                .table(&["A"], &row)
                .contains("\x1b[31mx\x1b[0m")
        );
    }

    #[tokio::test]
    async fn a_closed_pipe_is_detected_with_and_without_writing() {
        let (reader, mut pipe) = io::pipe().unwrap();
        assert!(write(&mut pipe, "a\n"));
        let wait = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(wait, reader_gone(&pipe)).await.is_err());
        drop(reader);
        assert!(!write(&mut pipe, "b\n"));
        tokio::time::timeout(wait * 100, reader_gone(&pipe)).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_never_counts_as_closed() {
        let gone = reader_gone(std::fs::File::create("/dev/null").unwrap());
        let wait = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(wait, gone).await.is_err());
    }

    #[test]
    fn a_bar_never_exceeds_its_width() {
        assert_eq!(Terminal::bar(4, 0.5), "[##--]");
        assert_eq!(Terminal::bar(4, 7.0), "[####]");
        assert_eq!(Terminal::bar(4, f64::NAN), "[----]");
    }
}
