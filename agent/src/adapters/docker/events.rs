//! The engine's event stream: one JSON object per line. Invalid lines are skipped.

use std::pin::pin;
use std::time::Duration;

use bollard::errors::Error;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::Value;

use super::client::Client;
use super::convert;
use crate::model::ContainerEvent;

/// Maximum length of a line. An event carries the container's labels, of which there may be many.
const LINE_LIMIT: usize = 1 << 20;

/// How long to wait for the oldest event: an engine that remembers none sends the next one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Streams the events that match `filters`, from `since` to `until`. The request is sent when the stream is first polled:
/// podman sends no response headers before the first event.
pub(super) fn of(
    client: Client,
    filters: String,
    since: String,
    until: Option<String>,
) -> BoxStream<'static, ContainerEvent> {
    let answer = async move {
        let mut query = vec![("filters", filters.as_str()), ("since", since.as_str())];
        query.extend(until.as_deref().map(|until| ("until", until)));
        client.stream("/events", &query).await
    };
    stream::once(answer)
        .flat_map(|answer| match answer {
            Ok(answer) => lines(answer.into_body()).left_stream(),
            Err(error) => stream::once(async { Err(error) }).right_stream(),
        })
        .scan((), |(), line| {
            let line = line.inspect_err(|error| tracing::debug!(%error, "event stream failed"));
            std::future::ready(line.ok())
        })
        .filter_map(|line| std::future::ready(read(&line)))
        .boxed()
}

/// Returns the time of the oldest event that the engine remembers, by its own clock.
pub(super) async fn oldest(client: &Client) -> Option<Timestamp> {
    let query = [("since", "0")];
    let first = async {
        let answer = client.stream("/events", &query).await.ok()?;
        let mut lines = pin!(lines(answer.into_body()));
        lines.next().await?.ok()
    };
    let line = tokio::time::timeout(PATIENCE, first).await.ok()??;
    let seen: Value = serde_json::from_slice(&line).ok()?;
    Timestamp::from_nanosecond(convert::event_time(&seen)?.into()).ok()
}

fn read(line: &[u8]) -> Option<ContainerEvent> {
    let seen = serde_json::from_slice::<Value>(line);
    convert::event(&seen.inspect_err(|error| tracing::debug!(%error, "skipping an invalid event")).ok()?)
}

fn lines(body: Incoming) -> impl futures_util::Stream<Item = Result<Vec<u8>, Error>> + Send {
    stream::unfold((body, Lines::default()), |(mut body, mut lines)| async move {
        loop {
            if let Some(line) = lines.next() {
                return Some((Ok(line), (body, lines)));
            }
            match body.frame().await {
                None => return None,
                Some(Ok(frame)) => lines.push(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(error)) => return Some((Err(error.into()), (body, lines))),
            }
        }
    })
}

/// Splits chunks into lines. A line that is too long is skipped.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    /// How much of the buffer is known to contain no line break.
    scanned: usize,
    /// The rest of the current line is skipped.
    skipping: bool,
}

impl Lines {
    fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        while let Some(at) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
            let rest = self.buffer.split_off(self.scanned + at + 1);
            let line = std::mem::replace(&mut self.buffer, rest);
            self.scanned = 0;
            let skipped = std::mem::take(&mut self.skipping) || line.len() > LINE_LIMIT;
            if !skipped && !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
        self.scanned = self.buffer.len();
        if self.scanned > LINE_LIMIT {
            (self.buffer, self.scanned, self.skipping) = (Vec::new(), 0, true);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        for piece in pieces {
            lines.push(piece);
            while let Some(line) = lines.next() {
                out.push(String::from_utf8(line).unwrap().trim_end().to_owned());
            }
        }
        out
    }

    #[test]
    fn lines_are_assembled_from_chunks() {
        assert_eq!(all(&[b"a", b"b\nc\n\n", b"", b"d\r\n", b"e"]), ["ab", "c", "d"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_read() {
        let long = vec![b'x'; LINE_LIMIT / 2 + 1];
        assert_eq!(all(&[&long, &long, b"y\nz\n"]), ["z"]);
        let whole = [&long[..], &long[..], b"\nz\n"].concat();
        assert_eq!(all(&[&whole]), ["z"]);
    }
}
