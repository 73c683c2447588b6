//! Text for people: as wide as the terminal, coloured where one looks at it.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use evenkeel_common::wire::{Level, StatusValue};

/// Where the output goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terminal {
    /// Columns; `None` where nobody looks and nothing is cut.
    width: Option<usize>,
    colour: bool,
}

/// Colours by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    /// As it should be.
    Good,
    /// Under way, or to be looked at.
    Attention,
    /// Someone must act.
    Bad,
    /// Beside the point.
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
    /// The terminal behind standard output. `NO_COLOR` and `COLUMNS` are honoured.
    pub(super) fn of_process() -> Self {
        let out = io::stdout();
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if !out.is_terminal() {
            return Self { width: None, colour: false };
        }
        let columns = rustix::termios::tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
        let named = variable("COLUMNS").and_then(|text| text.parse().ok());
        let width = columns.filter(|columns| *columns > 0).or(named).unwrap_or(80);
        let colour = variable("NO_COLOR").is_none() && variable("TERM").as_deref() != Some("dumb");
        Self { width: Some(width.max(20)), colour }
    }

    /// Nobody looks: no colours, nothing is cut.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self { width: None, colour: false }
    }

    /// The text in a colour.
    pub(super) fn paint(self, colour: Colour, text: &str) -> String {
        if self.colour && colour != Colour::Plain {
            format!("\x1b[{}m{text}\x1b[0m", colour.code())
        } else {
            text.to_owned()
        }
    }

    /// A bar of this many columns for a share from 0 to 1.
    pub(super) fn bar(columns: usize, share: f64) -> String {
        let full = (share.clamp(0.0, 1.0) * columns as f64).round();
        // At most `columns`, which is small.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let full = full as usize;
        format!("[{}{}]", "#".repeat(full), "-".repeat(columns - full))
    }

    /// Rows under a head, each column as wide as it needs to be. Where that is too wide, the last column is cut.
    pub(super) fn table(self, head: &[&str], rows: &[Vec<(Colour, String)>]) -> String {
        let columns = head.len();
        let cell = |row: &Vec<(Colour, String)>, n: usize| row.get(n).map_or(0, |(_, text)| wide(text));
        let widths: Vec<usize> = (0..columns)
            .map(|n| rows.iter().map(|row| cell(row, n)).chain([wide(head[n])]).max().unwrap_or(0))
            .collect();
        let head: Vec<(Colour, String)> =
            head.iter().map(|text| (Colour::Faint, (*text).to_owned())).collect();
        let mut out = String::new();
        for row in std::iter::once(&head).chain(rows) {
            let mut left = self.width.unwrap_or(usize::MAX);
            for (n, (colour, text)) in row.iter().enumerate() {
                let is_last = n + 1 == columns;
                let text = Self::clean(text, left);
                let _ = write!(out, "{}", self.paint(*colour, &text));
                if is_last {
                    break;
                }
                let gap = (widths[n] + 2).saturating_sub(wide(&text)).min(left.saturating_sub(wide(&text)));
                out.push_str(&" ".repeat(gap));
                left = left.saturating_sub(widths[n] + 2);
            }
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
        }
        out
    }

    /// One line of this text, in as many columns as there are.
    pub(super) fn line(self, text: &str) -> String {
        Self::clean(text, self.width.unwrap_or(usize::MAX))
    }

    /// What comes from containers and registries moves no cursor and fits into the columns.
    fn clean(text: &str, columns: usize) -> String {
        let text = crate::model::output::clean(text).replace(['\n', '\t'], " ");
        if wide(&text) <= columns {
            return text;
        }
        let mut cut: String = text.chars().take(columns.saturating_sub(1)).collect();
        if columns > 0 {
            cut.push('…');
        }
        cut
    }
}

fn wide(text: &str) -> usize {
    text.chars().count()
}

/// Writes to standard output. Who stops reading (`| head`) ends nothing with a panic.
pub(super) fn print(text: &str) {
    let mut out = io::stdout();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 3]) -> Vec<(Colour, String)> {
        cells.map(|text| (Colour::Plain, text.to_owned())).to_vec()
    }

    #[test]
    fn a_table_fits_the_terminal_and_nothing_is_cut_where_nobody_looks() {
        let rows = [row(["web", "ok", "a very long explanation"]), row(["database", "blocked", "short"])];
        let head = ["NAME", "STATUS", "WHY"];
        let narrow = Terminal { width: Some(30), colour: false }.table(&head, &rows);
        assert_eq!(
            narrow,
            "NAME      STATUS   WHY\nweb       ok       a very lon…\ndatabase  blocked  short\n"
        );
        let free = Terminal { width: None, colour: false }.table(&head, &rows);
        assert!(free.contains("a very long explanation"));
    }

    #[test]
    fn what_a_container_wrote_moves_no_cursor() {
        let terminal = Terminal { width: Some(80), colour: false };
        assert_eq!(terminal.line("a\u{1b}[2Jb\nc"), "ab c");
    }

    #[test]
    fn colours_are_for_terminals_only() {
        let row = [vec![(Colour::Bad, "x".to_owned())]];
        assert_eq!(Terminal { width: None, colour: false }.table(&["A"], &row), "A\nx\n");
        assert!(Terminal { width: None, colour: true }.table(&["A"], &row).contains("\x1b[31mx\x1b[0m"));
    }

    #[test]
    fn a_bar_is_never_longer_than_its_place() {
        assert_eq!(Terminal::bar(4, 0.5), "[##--]");
        assert_eq!(Terminal::bar(4, 7.0), "[####]");
        assert_eq!(Terminal::bar(4, f64::NAN), "[----]");
    }
}
