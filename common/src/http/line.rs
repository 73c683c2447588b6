//! One connection as the server sees it: what it waits for and since when, how its bytes move, and when it is cut.

use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Limits;
use super::reply::raw_for_status;

/// How long, and how many bytes, a connection that we end is still read, so that a client that sends first and reads
/// then gets its answer: closing a socket with unread bytes resets it.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 * 1024 * 1024;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A head is awaited or has begun to arrive.
    Head(Instant),
    /// The body of an admitted request is awaited.
    Body(Instant),
    /// A handler is at work; it has limits of its own.
    Handling,
    /// An answer is being sent that has an end.
    Sending(Instant),
    /// An event stream is being sent.
    Streaming,
    /// Nothing has arrived since the last answer.
    Idle(Instant),
}

/// The state of one connection, shared by all who deal with it.
#[derive(Debug)]
pub(super) struct Line {
    /// Address of the peer, canonical.
    pub(super) peer: IpAddr,
    phase: watch::Sender<Phase>,
    /// Ends the connection at once, to make room.
    pub(super) cut: CancellationToken,
}

impl Line {
    pub(super) fn new(peer: IpAddr) -> Arc<Self> {
        let phase = watch::Sender::new(Phase::Head(Instant::now()));
        Arc::new(Self { peer, phase, cut: CancellationToken::new() })
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Since when the connection has been waiting for its client; `None` while the server is at work for it, and for
    /// a stream, which has a permit of its own.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        match *self.phase.borrow() {
            Phase::Head(since) | Phase::Body(since) | Phase::Sending(since) | Phase::Idle(since) => {
                Some(since)
            }
            Phase::Handling | Phase::Streaming => None,
        }
    }

    /// Returns when the connection is past its deadline.
    pub(super) async fn too_slow(&self, limits: &Limits) {
        let mut phase = self.phase.subscribe();
        loop {
            let due = match *phase.borrow_and_update() {
                Phase::Head(since) => Some(since + limits.header_time),
                Phase::Idle(since) => Some(since + limits.idle),
                Phase::Sending(since) => Some(since + limits.answer_time),
                // The body's own deadline is answered, not cut (408).
                Phase::Body(_) | Phase::Handling | Phase::Streaming => None,
            };
            let deadline = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = deadline => return,
                changed = phase.changed() => if changed.is_err() { return },
            }
        }
    }

    fn bytes_came(&self) {
        self.phase.send_if_modified(|phase| {
            let first = matches!(phase, Phase::Idle(_));
            if first {
                *phase = Phase::Head(Instant::now());
            }
            first
        });
    }
}

/// The socket of a connection: it reports when bytes come, ends a write that makes no progress, and gives hyper's own
/// refusals (400, 414, 431) the body and the headers that all others have.
pub(super) struct Socket {
    stream: TcpStream,
    line: Arc<Line>,
    write_time: Duration,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
    /// What is sent in the place of an answer of hyper's own, and how many bytes that had.
    instead: Option<(Bytes, usize)>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, line: Arc<Line>, write_time: Duration) -> Self {
        Self { stream, line, write_time, stalled: None, instead: None }
    }

    /// Says that nothing more will be sent, and reads what the client still sends, within bounds.
    pub(super) async fn linger(mut self) {
        self.line.enter(Phase::Idle(Instant::now()));
        let _ = timeout(LINGER, async {
            if self.stream.shutdown().await.is_err() {
                return;
            }
            let (mut read, mut buffer) = (0, [0; 8192]);
            while read < LINGER_BYTES
                && let Ok(count @ 1..) = self.stream.read(&mut buffer).await
            {
                read += count;
            }
        })
        .await;
    }

    /// The write's result, or the end of a client that takes nothing.
    fn within_time(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let write_time = self.write_time;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(write_time)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Sends what stands in for an answer of hyper's own.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while let Some((bytes, length)) = &mut self.instead {
            if bytes.is_empty() {
                let length = *length;
                self.instead = None;
                return Poll::Ready(Ok(length));
            }
            let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
            match polled {
                Poll::Ready(Ok(count)) => bytes.advance(count),
                other => return self.within_time(cx, other),
            }
        }
        Poll::Ready(Ok(0))
    }
}

/// What to send in the place of `head`, where that is the whole of a refusal that hyper makes by itself. Every refusal
/// of ours has a body.
fn stand_in(head: &[u8]) -> Option<Bytes> {
    let code = head.strip_prefix(b"HTTP/1.1 4")?.get(..2)?;
    if !head.ends_with(b"\r\n\r\n") || !head.windows(21).any(|part| part == b"\r\ncontent-length: 0\r\n") {
        return None;
    }
    raw_for_status(code)
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.line.bytes_came();
        }
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.instead.is_none()
            && let Some((head, rest)) = bufs.split_first()
            && rest.iter().all(|part| part.is_empty())
            && let Some(bytes) = stand_in(head)
        {
            self.instead = Some((bytes, head.len()));
        }
        if self.instead.is_some() {
            return self.poll_instead(cx);
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.within_time(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
