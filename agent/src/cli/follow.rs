//! `audit --follow`: new entries as they arrive and, on a terminal, a line below them with the progress of deployments.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::Duration;

use evenkeel_common::sse;
use evenkeel_common::wire::{AuditEntry, ServiceStatus, StatusFrame};
use jiff::Timestamp;
use reqwest::Response;
use tokio::time::{Instant, sleep, timeout_at};

use super::client::{Client, ClientError, MAX_ANSWER};
use super::terminal::{Terminal, print, reader_gone};
use super::views;

/// Pause before a stream that ended is opened again.
const RECONNECT: Duration = Duration::from_secs(1);
/// Refresh interval of the progress line: a probation advances without any events.
const TICK: Duration = Duration::from_secs(1);
/// Time within which a stream sends its replayed entries.
const REPLAY: Duration = Duration::from_millis(500);
/// Number of entries to request and remember, to detect those that a stream repeats: the API's maximum.
const REMEMBERED: u32 = 500;

/// Shows the last `limit` entries and then new ones as they arrive, until the output is closed (`show` returns false).
/// Reopens the stream when it ends. Deployments are shown on terminals that can rewrite a line.
pub(super) async fn follow(
    client: &Client,
    limit: u32,
    terminal: Terminal,
    show: impl Fn(&AuditEntry) -> bool,
) -> Result<(), ClientError> {
    let path = if terminal.is_live() { ["ui", "stream"] } else { ["ui", "events"] };
    // Open the stream first, so that it includes entries recorded while the last ones are read.
    let mut stream = client.stream(&path, None).await?;
    let mut last: Vec<AuditEntry> = client.audit(REMEMBERED).await?;
    let mut view = View::new(&last, terminal);
    if last.is_empty() {
        last = view.replayed(&mut stream).await;
    }
    if !last.iter().take(limit as usize).rev().all(&show) {
        return Ok(());
    }
    let mut gone = pin!(reader_gone(io::stdout()));
    loop {
        let chunk = tokio::select! {
            chunk = stream.chunk() => chunk,
            () = &mut gone => return Ok(()),
            () = sleep(TICK), if view.below.has_something() => {
                view.below.draw();
                continue;
            }
        };
        let Ok(Some(chunk)) = chunk else {
            view.below.set(Vec::new());
            view.lines = Lines::default();
            tokio::select! {
                again = reopen(client, &path, view.id.as_deref()) => stream = again?,
                () = &mut gone => return Ok(()),
            }
            continue;
        };
        for entry in view.take(&chunk) {
            view.below.erase();
            if !show(&entry) {
                return Ok(());
            }
            view.below.draw();
        }
    }
}

/// Returns the entries that the agent replays to a new stream, newest first.
pub(super) async fn replayed(client: &Client) -> Result<Vec<AuditEntry>, ClientError> {
    let mut stream = client.stream(&["ui", "events"], None).await?;
    let mut view = View::new(&[], Terminal::of_process().without_cursor());
    Ok(view.replayed(&mut stream).await)
}

/// State of a followed stream.
struct View {
    /// Id of the last entry.
    id: Option<String>,
    known: Known,
    lines: Lines,
    below: Below,
}

impl View {
    /// Creates the state for a stream that was opened when these were the last entries, newest first.
    fn new(last: &[AuditEntry], terminal: Terminal) -> Self {
        let known = Known::of(last.to_vec());
        Self { id: None, known, lines: Lines::default(), below: Below::on(terminal) }
    }

    /// Returns the new entries in a chunk of the stream.
    fn take(&mut self, chunk: &[u8]) -> Vec<AuditEntry> {
        let mut entries = Vec::new();
        for line in self.lines.push(chunk) {
            match Frame::of(&line) {
                Some(Frame::Id(text)) => self.id = Some(text.to_owned()),
                Some(Frame::Entry(entry)) if self.known.add(&entry) => entries.push(*entry),
                Some(Frame::Status(services)) => self.below.set(services),
                Some(Frame::Entry(_)) | None => {}
            }
        }
        entries
    }

    /// Returns the entries at the beginning of the stream, newest first: the only ones if the agent has no audit file.
    async fn replayed(&mut self, stream: &mut Response) -> Vec<AuditEntry> {
        let (mut entries, end) = (Vec::new(), Instant::now() + REPLAY);
        while entries.len() < sse::REPLAY
            && let Ok(Ok(Some(chunk))) = timeout_at(end, stream.chunk()).await
        {
            entries.extend(self.take(&chunk));
        }
        self.below.erase();
        entries.reverse();
        entries
    }
}

/// Reopens the stream after its last entry. Waits until an agent answers again and has finished loading.
async fn reopen(client: &Client, path: &[&str], id: Option<&str>) -> Result<Response, ClientError> {
    loop {
        sleep(RECONNECT).await;
        match client.stream(path, id).await {
            Err(ClientError::Unreachable { .. } | ClientError::Busy(_)) => {}
            outcome => return outcome,
        }
    }
}

/// The entries seen so far, to detect those that a stream repeats.
struct Known {
    /// Oldest first.
    entries: VecDeque<AuditEntry>,
    /// Time of the newest entry when the first stream was opened; the stream may begin with older ones.
    newest: Option<Timestamp>,
    /// Number of entries of the first stream that may still be repeated ones.
    repeated: usize,
}

impl Known {
    fn of(newest_first: Vec<AuditEntry>) -> Self {
        let newest = newest_first.first().map(|entry| entry.timestamp);
        Self { entries: newest_first.into_iter().rev().collect(), newest, repeated: sse::REPLAY }
    }

    /// Adds an entry of the stream; returns whether it is new.
    fn add(&mut self, entry: &AuditEntry) -> bool {
        // If the audit file is new or was moved away, the agent repeats entries that are not in the file. All entries
        // after a new one are new, regardless of the clock.
        let is_older = self.repeated > 0 && self.newest.is_some_and(|newest| entry.timestamp < newest);
        let is_known = self.entries.contains(entry);
        self.repeated = if is_older || is_known { self.repeated.saturating_sub(1) } else { 0 };
        if !is_known {
            self.entries.push_back(entry.clone());
            self.entries.drain(..self.entries.len().saturating_sub(REMEMBERED as usize));
        }
        !is_known && !is_older
    }
}

/// A parsed line of a stream. The two kinds of data have no required field in common.
#[derive(Debug, PartialEq)]
enum Frame<'a> {
    Id(&'a str),
    Entry(Box<AuditEntry>),
    Status(Vec<ServiceStatus>),
}

impl<'a> Frame<'a> {
    fn of(line: &'a str) -> Option<Self> {
        if let Some(id) = line.strip_prefix("id:") {
            return Some(Self::Id(id.trim()));
        }
        let data = line.strip_prefix("data:")?;
        let entry = || serde_json::from_str(data).ok().map(|entry| Self::Entry(Box::new(entry)));
        let status =
            || serde_json::from_str(data).ok().map(|frame: StatusFrame| Self::Status(frame.services));
        entry().or_else(status)
    }
}

/// The progress line below the entries.
struct Below {
    terminal: Terminal,
    services: Vec<ServiceStatus>,
    drawn: bool,
}

impl Below {
    fn on(terminal: Terminal) -> Self {
        Self { terminal, services: Vec::new(), drawn: false }
    }

    fn has_something(&self) -> bool {
        self.services.iter().any(|service| service.deploy.is_some())
    }

    fn set(&mut self, services: Vec<ServiceStatus>) {
        self.services = services;
        self.draw();
    }

    /// Redraws the line.
    fn draw(&mut self) {
        self.erase();
        if let Some(text) = views::deployments(&self.services, self.terminal, Timestamp::now()) {
            print(&text);
            self.drawn = true;
        }
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.drawn) {
            print("\r\x1b[K");
        }
    }
}

/// Splits chunks into lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// Returns the lines that this chunk completes.
    fn push(&mut self, chunk: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(chunk);
        let mut lines = Vec::new();
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        // A line without an end is no entry.
        if self.0.len() > MAX_ANSWER {
            self.0 = Vec::new();
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{Kind, Level};

    use super::*;

    #[test]
    fn lines_are_reassembled_from_chunks() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"id: 1\nda"), ["id: 1"]);
        assert_eq!(lines.push("ta: \u{e9}".as_bytes()), Vec::<String>::new());
        assert_eq!(lines.push(b"\r\n\n"), ["data: \u{e9}", ""]);
    }

    fn entry(second: i64, message: &str) -> AuditEntry {
        let at = Timestamp::from_second(1_800_000_000 + second).unwrap();
        AuditEntry::new(at, "web", Kind::CHECKED, Level::Info, message)
    }

    #[test]
    fn repeated_and_older_entries_are_not_new_until_the_first_new_one() {
        let mut known = Known::of(vec![entry(9, "c"), entry(8, "b")]);
        let mut is_new = |second, message| known.add(&entry(second, message));
        for (second, message) in [(1, "before the file"), (8, "b"), (8, "beside b"), (9, "c")] {
            assert!(!is_new(second, message), "{message}");
        }
        assert!(is_new(9, "d"));
        assert!(is_new(2, "the clock was set back"));
        // The stream was reopened and begins with everything.
        for (second, message) in [(1, "before the file"), (8, "b"), (9, "c"), (9, "d")] {
            assert!(!is_new(second, message), "{message}");
        }
        assert!(is_new(3, "e"));
    }

    #[test]
    fn without_an_audit_file_all_entries_of_the_stream_are_new() {
        let mut known = Known::of(Vec::new());
        assert!(known.add(&entry(1, "a")) && known.add(&entry(2, "b")) && !known.add(&entry(1, "a")));
    }

    #[test]
    fn a_clock_that_was_set_back_hides_no_more_than_a_replay() {
        let mut known = Known::of(vec![entry(1000, "c")]);
        for second in 0..50 {
            assert!(!known.add(&entry(second, "replayed")));
        }
        assert!(known.add(&entry(50, "new")));
    }

    #[test]
    fn entries_and_status_frames_are_distinguished() {
        let at = Timestamp::from_second(1_800_000_000).unwrap();
        let entry = AuditEntry::new(at, "web", Kind::ERROR, Level::Error, "it failed");
        let line = format!("data:{}", serde_json::to_string(&entry).unwrap());
        assert_eq!(Frame::of(&line), Some(Frame::Entry(Box::new(entry))));
        assert_eq!(Frame::of("data: {\"uptime_seconds\":1,\"services\":[]}"), Some(Frame::Status(vec![])));
        assert_eq!(Frame::of("id: 7-1"), Some(Frame::Id("7-1")));
        for other in ["", ": heartbeat", "event: status", "data: nonsense", "retry: 1"] {
            assert_eq!(Frame::of(other), None, "{other}");
        }
    }
}
