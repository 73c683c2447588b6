//! One connection of the server: its phase and deadline, its socket, and how it is closed.

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

/// How long, and up to how many bytes, the server still reads from a connection that it closes. Closing a socket with
/// unread bytes resets it, and a client that sends everything before it reads would lose its response.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 * 1024 * 1024;

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waiting for a request head, or for the rest of one.
    Head(Instant),
    /// Waiting for the body of an admitted request.
    Body(Instant),
    /// A handler is running; it has its own limits.
    Handling,
    /// Sending a finite response.
    Sending(Instant),
    /// Sending an event stream.
    Streaming,
    /// Nothing has arrived since the last response.
    Idle(Instant),
}

/// The shared state of one connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// Canonical address of the peer.
    pub(super) peer: IpAddr,
    phase: watch::Sender<Phase>,
    /// Closes the connection immediately, to make room for another.
    pub(super) evicted: CancellationToken,
}

impl Connection {
    pub(super) fn new(peer: IpAddr) -> Arc<Self> {
        let phase = watch::Sender::new(Phase::Head(Instant::now()));
        Arc::new(Self { peer, phase, evicted: CancellationToken::new() })
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Since when the connection has been waiting for its client; `None` while the server is handling a request, and for
    /// streams, which have their own permits.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        match *self.phase.borrow() {
            Phase::Head(since) | Phase::Body(since) | Phase::Sending(since) | Phase::Idle(since) => {
                Some(since)
            }
            Phase::Handling | Phase::Streaming => None,
        }
    }

    /// Completes when the deadline of the connection has passed.
    pub(super) async fn deadline_passed(&self, limits: &Limits) {
        let mut phase = self.phase.subscribe();
        loop {
            let due = match *phase.borrow_and_update() {
                Phase::Head(since) => Some(since + limits.header_time),
                Phase::Idle(since) => Some(since + limits.idle),
                Phase::Sending(since) => Some(since + limits.answer_time),
                // A late body gets a 408 response instead of a closed connection.
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

    fn bytes_received(&self) {
        self.phase.send_if_modified(|phase| {
            let first = matches!(phase, Phase::Idle(_));
            if first {
                *phase = Phase::Head(Instant::now());
            }
            first
        });
    }
}

/// The socket of a connection. It reports received bytes, times out writes that make no progress, and replaces hyper's own
/// error responses (400, 414, 431) with ones that have the usual body and headers.
pub(super) struct Socket {
    stream: TcpStream,
    conn: Arc<Connection>,
    write_time: Duration,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Replacement for a response of hyper, and the length of the original.
    replacement: Option<(Bytes, usize)>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, conn: Arc<Connection>, write_time: Duration) -> Self {
        Self { stream, conn, write_time, stalled: None, replacement: None }
    }

    /// Shuts down the sending side and drains what the client still sends, within limits.
    pub(super) async fn linger(mut self) {
        self.conn.enter(Phase::Idle(Instant::now()));
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

    /// Returns the result of the write, or a timeout error if the client does not read.
    fn with_timeout(
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

    /// Sends the replacement for a response of hyper.
    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while let Some((bytes, length)) = &mut self.replacement {
            if bytes.is_empty() {
                let length = *length;
                self.replacement = None;
                return Poll::Ready(Ok(length));
            }
            let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
            match polled {
                Poll::Ready(Ok(count)) => bytes.advance(count),
                other => return self.with_timeout(cx, other),
            }
        }
        Poll::Ready(Ok(0))
    }
}

/// Returns the replacement for `head` if it is a complete error response generated by hyper. Our own error responses always
/// have a body.
fn replacement_for(head: &[u8]) -> Option<Bytes> {
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
            self.conn.bytes_received();
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
        if self.replacement.is_none()
            && let Some((head, rest)) = bufs.split_first()
            && rest.iter().all(|part| part.is_empty())
            && let Some(bytes) = replacement_for(head)
        {
            self.replacement = Some((bytes, head.len()));
        }
        if self.replacement.is_some() {
            return self.poll_replacement(cx);
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.with_timeout(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
