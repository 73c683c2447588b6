//! `audit --follow`: entries as they come, and at a terminal a line below them with how far deployments are.

use std::collections::VecDeque;
use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, ServiceStatus, StatusFrame};
use jiff::Timestamp;
use reqwest::Response;
use tokio::time::sleep;

use super::client::{Client, ClientError};
use super::terminal::{Terminal, print};
use super::views;

/// Pause before a stream that ended is opened again.
const RECONNECT: Duration = Duration::from_secs(1);
/// Time between two looks at how far a deployment is: a probation goes on without any news.
const TICK: Duration = Duration::from_secs(1);
/// A stream begins with at most so many entries that were shown already, as do those of an agent that was restarted.
const REPLAYED: usize = 500;

/// Passes on entries as they come that are not among `shown`; opens the stream again when it ends. Deployments are shown
/// on a terminal whose line can be written anew.
pub(super) async fn follow(
    client: &Client,
    mut shown: VecDeque<AuditEntry>,
    terminal: Terminal,
    mut show: impl FnMut(&AuditEntry),
) -> Result<(), ClientError> {
    let path = if terminal.is_live() { ["ui", "stream"] } else { ["ui", "events"] };
    let mut id: Option<String> = None;
    let mut stream = client.stream(&path, None).await?;
    let (mut lines, mut below) = (Lines::default(), Below::on(terminal));
    loop {
        let chunk = tokio::select! {
            chunk = stream.chunk() => chunk,
            () = sleep(TICK), if below.has_something() => {
                below.draw();
                continue;
            }
        };
        let Ok(Some(chunk)) = chunk else {
            below.set(Vec::new());
            lines = Lines::default();
            stream = reopen(client, &path, id.as_deref()).await?;
            continue;
        };
        for line in lines.push(&chunk) {
            match Frame::of(&line) {
                Some(Frame::Id(text)) => id = Some(text.to_owned()),
                Some(Frame::Entry(entry)) if !shown.contains(&entry) => {
                    below.erase();
                    show(&entry);
                    below.draw();
                    shown.push_back(*entry);
                    shown.drain(..shown.len().saturating_sub(REPLAYED));
                }
                Some(Frame::Status(services)) => below.set(services),
                Some(Frame::Entry(_)) | None => {}
            }
        }
    }
}

/// The stream from where it ended; waits until an agent answers again, and has loaded what it streams.
async fn reopen(client: &Client, path: &[&str], id: Option<&str>) -> Result<Response, ClientError> {
    loop {
        sleep(RECONNECT).await;
        match client.stream(path, id).await {
            Err(ClientError::Unreachable { .. } | ClientError::Busy(_)) => {}
            outcome => return outcome,
        }
    }
}

/// What a line of a stream says. The two kinds of data have no field in common that is always there.
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

/// The line below the entries.
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

    /// Draws it anew, as it is now.
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

/// Whole lines out of chunks.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The lines that this chunk completes.
    fn push(&mut self, chunk: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(chunk);
        let mut lines = Vec::new();
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{Kind, Level};

    use super::*;

    #[test]
    fn lines_are_whole_however_they_arrive() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"id: 1\nda"), ["id: 1"]);
        assert_eq!(lines.push("ta: \u{e9}".as_bytes()), Vec::<String>::new());
        assert_eq!(lines.push(b"\r\n\n"), ["data: \u{e9}", ""]);
    }

    #[test]
    fn entries_and_states_are_told_apart() {
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
