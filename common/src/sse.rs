//! Event streams (SSE): turns a journal subscription into a response with ids, replay, live entries and heartbeats.
//!
//! ```no_run
//! # use evenkeel_common::http::{Request, Response, Limiter};
//! # use evenkeel_common::{journal::Journal, sse, wire::AuditEntry};
//! # use tokio_util::sync::CancellationToken;
//! # fn events(journal: &Journal<AuditEntry>, limiter: &Limiter, stop: CancellationToken, request: &Request) -> Response {
//! let permit = match limiter.admit(request.arrival.peer.ip()) {
//!     Ok(permit) => permit,
//!     Err(refusal) => return refusal,
//! };
//! let entries = journal.subscribe(sse::REPLAY, sse::resume_after(request));
//! sse::reply(sse::frames(entries, None, sse::json), stop, permit)
//! # }
//! ```
//!
//! To send more than entries, merge the frames of several sources: `stream::select(sse::frames(…), status_frames)`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use warp::Reply;

use crate::http::{Permit, Request, Response};
use crate::journal::{Item, Subscription};

/// Number of entries that are replayed to a new client (spec 8).
pub const REPLAY: usize = 50;
/// Time between two heartbeats (DECISIONS 3).
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Frames within this time are sent together, so a busy stream causes at most fifty writes per second and client. The first
/// frame after a pause is sent immediately.
const BATCH_TIME: Duration = Duration::from_millis(20);
/// Target size of a chunk.
const CHUNK: usize = 64 * 1024;

/// One block of an event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// An event for the client.
    Event {
        /// `event:`; `None` for an unnamed event.
        name: Option<&'static str>,
        /// `id:`, which the client sends back as `Last-Event-ID`.
        id: Option<u64>,
        /// `data:`
        data: Arc<str>,
    },
    /// A comment, which clients ignore.
    Comment(String),
}

impl Frame {
    fn write(&self, out: &mut String) {
        match self {
            Self::Event { name, id, data } => {
                if let Some(name) = name {
                    out.extend(["event: ", name, "\n"]);
                }
                if let Some(id) = id {
                    out.push_str(&format!("id: {id}\n"));
                }
                // A line break would end the field, and the rest would be parsed as another field.
                for line in data.split(['\n', '\r']) {
                    out.extend(["data: ", line, "\n"]);
                }
            }
            Self::Comment(text) => {
                for line in text.split(['\n', '\r']) {
                    out.extend([": ", line, "\n"]);
                }
            }
        }
        out.push('\n');
    }
}

/// The frames for the entries of a journal: each with its id, and a comment in place of missed entries.
pub fn frames<T: Clone + Send + Sync + 'static>(
    subscription: Subscription<T>,
    name: Option<&'static str>,
    encode: impl Fn(&T) -> Arc<str> + Send + Sync + 'static,
) -> impl Stream<Item = Frame> + Send + Sync + 'static {
    subscription.into_stream().map(move |item| match item {
        Item::Entry(id, entry) => Frame::Event { name, id: Some(id), data: encode(&entry) },
        Item::Missed(count) => Frame::Comment(format!("missed {count}")),
    })
}

/// One line of JSON, for [`frames`].
pub fn json<T: Serialize>(value: &T) -> Arc<str> {
    serde_json::to_string(value).expect("wire types have text keys and finite numbers").into()
}

/// The id of the last event that a client has received: from the header of a browser that reconnects, or else from the query
/// parameter `after`, since a page that opens a new stream cannot set the header.
pub fn resume_after(request: &Request) -> Option<u64> {
    last_event_id(&request.headers).or_else(|| request.query.get("after")?.trim().parse().ok())
}

fn last_event_id(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.trim().parse().ok()
}

/// Returns a response that sends the frames, with heartbeats in between, until the frames end or `stop` is cancelled. The
/// permit is released when the client disconnects.
pub fn reply(
    frames: impl Stream<Item = Frame> + Send + Sync + 'static,
    stop: CancellationToken,
    permit: Permit,
) -> Response {
    let now = Instant::now();
    let feed =
        Feed { frames: Some(Box::pin(frames)), heartbeat: now + HEARTBEAT, next_chunk: now, _permit: permit };
    let chunks = stream::unfold(feed, |mut feed| async move {
        let chunk = feed.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(chunk)), feed))
    });
    let mut response = warp::reply::stream(chunks.take_until(stop.cancelled_owned())).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A proxy that buffers the response would never pass anything on.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The remaining output for one client.
struct Feed {
    /// `None` once they have ended.
    frames: Option<Pin<Box<dyn Stream<Item = Frame> + Send + Sync>>>,
    /// When the next heartbeat is due.
    heartbeat: Instant,
    /// When the next chunk may be sent.
    next_chunk: Instant,
    _permit: Permit,
}

impl Feed {
    async fn next(&mut self) -> Option<String> {
        sleep_until(self.next_chunk).await;
        let frames = self.frames.as_mut()?;
        let mut chunk = String::new();
        tokio::select! {
            biased;
            () = sleep_until(self.heartbeat) => {
                self.heartbeat = Instant::now() + HEARTBEAT;
                Frame::Comment("heartbeat".to_owned()).write(&mut chunk);
            }
            frame = frames.next() => frame?.write(&mut chunk),
        }
        while chunk.len() < CHUNK {
            match frames.next().now_or_never() {
                Some(Some(frame)) => frame.write(&mut chunk),
                Some(None) => {
                    self.frames = None;
                    break;
                }
                None => break,
            }
        }
        self.next_chunk = Instant::now() + BATCH_TIME;
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::http::Limiter;
    use crate::journal::Journal;

    fn feed(frames: impl Stream<Item = Frame> + Send + Sync + 'static, limiter: &Limiter) -> Feed {
        let permit = limiter.take_for(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        let now = Instant::now();
        Feed { frames: Some(Box::pin(frames)), heartbeat: now + HEARTBEAT, next_chunk: now, _permit: permit }
    }

    fn numbers(journal: &Journal<u32>, replay: usize) -> impl Stream<Item = Frame> + Send + Sync + 'static {
        frames(journal.subscribe(replay, None), None, json::<u32>)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_gets_the_replay_then_the_live_entries_with_their_ids() {
        let journal = Journal::new(10, 7);
        for n in 0..3 {
            journal.append(n);
        }
        let mut feed = feed(numbers(&journal, 2), &Limiter::new(1, 1));
        assert_eq!(feed.next().await.unwrap(), "id: 8\ndata: 1\n\nid: 9\ndata: 2\n\n");
        journal.append(3);
        assert_eq!(feed.next().await.unwrap(), "id: 10\ndata: 3\n\n");
        journal.append(4);
        journal.close();
        assert_eq!(feed.next().await.unwrap(), "id: 11\ndata: 4\n\n");
        assert_eq!(feed.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_gets_the_number_of_missed_entries() {
        let journal = Journal::new(2, 1);
        let mut feed = feed(numbers(&journal, 0), &Limiter::new(1, 1));
        for n in 0..5 {
            journal.append(n);
        }
        assert_eq!(feed.next().await.unwrap(), ": missed 3\n\nid: 4\ndata: 3\n\nid: 5\ndata: 4\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeats_are_sent_every_15_seconds_with_and_without_entries() {
        let journal = Arc::new(Journal::new(100, 1));
        let mut feed = feed(numbers(&journal, 0), &Limiter::new(1, 1));
        let start = Instant::now();
        for beat in 1..=2 {
            assert_eq!(feed.next().await.unwrap(), ": heartbeat\n\n");
            assert_eq!(start.elapsed().as_secs(), 15 * beat);
        }
        let mut beats = 0;
        for n in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            journal.append(n);
            beats += feed.next().await.unwrap().matches(": heartbeat\n\n").count();
        }
        assert!((3..=4).contains(&beats), "{beats}");
    }

    #[tokio::test(start_paused = true)]
    async fn entries_within_a_short_time_are_sent_together() {
        let journal = Journal::new(100, 1);
        let mut feed = feed(numbers(&journal, 0), &Limiter::new(1, 1));
        journal.append(0);
        let start = Instant::now();
        feed.next().await.unwrap();
        assert!(start.elapsed() < BATCH_TIME, "the first frame is sent immediately");
        for n in 1..=10 {
            journal.append(n);
        }
        assert_eq!(feed.next().await.unwrap().matches("data: ").count(), 10);
        assert!(start.elapsed() >= BATCH_TIME && start.elapsed() < 2 * BATCH_TIME);
    }

    #[test]
    fn a_line_break_in_the_data_does_not_start_a_new_field() {
        let mut out = String::new();
        let data = "a\nid: 9\r\nevent: x".into();
        Frame::Event { name: Some("audit"), id: Some(3), data }.write(&mut out);
        assert_eq!(out, "event: audit\nid: 3\ndata: a\ndata: id: 9\ndata: \ndata: event: x\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_ends_on_shutdown_and_releases_its_permit() {
        let limiter = Limiter::new(1, 1);
        let journal = Journal::new(10, 1);
        let stop = CancellationToken::new();
        let permit = limiter.take_for(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        let response = reply(numbers(&journal, 0), stop.clone(), permit);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        let mut body = Box::pin(response.into_body());
        assert_eq!(limiter.taken(), 1);
        stop.cancel();
        let frame = std::future::poll_fn(|cx| http_body::Body::poll_frame(body.as_mut(), cx)).await;
        assert!(frame.is_none());
        drop(body);
        assert_eq!(limiter.taken(), 0);
    }

    #[test]
    fn the_last_event_id_is_a_number_or_nothing() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("last-event-id", text.parse().unwrap());
            last_event_id(&headers)
        };
        assert_eq!(of("17"), Some(17));
        assert_eq!(of(" 17 "), Some(17));
        for text in ["", "x", "-1", "18446744073709551616", "1.5"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
