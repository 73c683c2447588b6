//! The accept loop: what warp's own server lacks is time limits, a cap on connections, and an end.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::join_all;
use http::header::HOST;
use http::{HeaderValue, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use warp::filters::BoxedFilter;

use super::reply::harden;
use super::{Limits, Response, Seats, error};
use crate::supervisor::TaskSet;

/// How long to wait after an accept that failed for want of something, such as open files.
const PAUSE: Duration = Duration::from_millis(200);
/// A peer that takes nothing for so long is gone (its machine sleeps, its link is cut).
const UNACKNOWLEDGED_MILLISECONDS: u32 = 60_000;

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Address of the client or of the last proxy.
    pub peer: SocketAddr,
    /// HTTP version.
    pub version: Version,
}

impl Default for Arrival {
    /// A request that came over no connection, as in tests of a filter.
    fn default() -> Self {
        Self { peer: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), version: Version::HTTP_11 }
    }
}

/// Serves `routes` on all listeners until `stop` is cancelled; then requests under way may end within
/// `limits.drain`. Streams must end by themselves when the program stops.
pub async fn serve(
    listeners: Vec<TcpListener>,
    routes: BoxedFilter<(Response,)>,
    limits: Limits,
    stop: CancellationToken,
) {
    let server = Arc::new(Server {
        routes,
        limits,
        stop,
        seats: Seats::new(limits.connections, limits.connections_per_peer),
        connections: TaskSet::new(),
    });
    join_all(listeners.into_iter().map(|listener| server.accept(listener))).await;
    if !server.connections.finish(limits.drain).await {
        tracing::debug!("connections were cut that did not end in time");
    }
}

struct Server {
    routes: BoxedFilter<(Response,)>,
    limits: Limits,
    stop: CancellationToken,
    seats: Seats,
    connections: TaskSet,
}

impl Server {
    async fn accept(self: &Arc<Self>, listener: TcpListener) {
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    failing = false;
                    self.open(stream, peer);
                }
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "cannot accept connections; trying on");
                    }
                    failing = true;
                    tokio::select! {
                        () = sleep(PAUSE) => {}
                        () = self.stop.cancelled() => return,
                    }
                }
            }
        }
    }

    fn open(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let Some(seat) = self.seats.take_for(peer.ip()) else {
            // The socket's buffer is empty, so this fits, or the client does without.
            let _ = stream.try_write(FULL.as_bytes());
            return;
        };
        let server = self.clone();
        self.connections.spawn("connection", async move {
            server.connection(stream, peer).await;
            drop(seat);
        });
    }

    async fn connection(&self, stream: TcpStream, peer: SocketAddr) {
        // Both only make things better; a connection works without them.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MILLISECONDS);
        let pace = Pace(watch::Sender::new(Phase::Head(Instant::now())));
        let routes = TowerToHyperService::new(warp::service(self.routes.clone()));
        let service = service_fn(|mut request: http::Request<Incoming>| {
            pace.0.send_replace(Phase::Answering);
            let arrival = Arrival { peer, version: request.version() };
            request.extensions_mut().insert(arrival);
            // A request for `http://host/path` means that host, whatever its Host header says (RFC 9112, 3.2.2).
            if let Some(host) =
                request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok())
            {
                request.headers_mut().insert(HOST, host);
            }
            // warp panics on the targets of CONNECT and `OPTIONS *`.
            let answer = request.uri().path().starts_with('/').then(|| routes.call(request));
            let answered = Answered(pace.clone());
            async move {
                let answer = match answer {
                    Some(answer) => answer.await?,
                    None => harden(error(StatusCode::BAD_REQUEST, "the request names no path")),
                };
                Ok::<_, Infallible>(answer.map(|body| Tracked { body, _answered: answered }))
            }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                // hyper's one timer is for heads and for idling alike; `Pace` tells the two apart.
                .header_read_timeout(None)
                .max_header_size(self.limits.header_bytes)
                .serve_connection(TokioIo::new(Paced { stream, pace: pace.clone() }), service)
        );
        let mut too_slow = pin!(pace.too_slow(&self.limits));
        let mut stopping = pin!(self.stop.cancelled());
        let mut stopped = false;
        loop {
            tokio::select! {
                // An error here is the client's: it left, or it does not speak HTTP.
                _ = connection.as_mut() => return,
                () = too_slow.as_mut() => return,
                () = stopping.as_mut(), if !stopped => {
                    stopped = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 10\r\n\
    connection: close\r\ncontent-length: 32\r\n\r\n{\"error\":\"too many connections\"}";

/// Whether the client went away between connecting and being accepted.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Where a connection is between two requests, and since when.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// A head is awaited or has begun to arrive.
    Head(Instant),
    /// A request is being answered; its body and its handler have limits of their own.
    Answering,
    /// Nothing has arrived since the last answer.
    Idle(Instant),
}

/// The phase of one connection, and its deadline.
#[derive(Debug, Clone)]
struct Pace(watch::Sender<Phase>);

impl Pace {
    /// Returns when the connection is past its deadline.
    async fn too_slow(&self, limits: &Limits) {
        let mut phase = self.0.subscribe();
        loop {
            let due = match *phase.borrow_and_update() {
                Phase::Head(since) => Some(since + limits.header_time),
                Phase::Idle(since) => Some(since + limits.idle),
                Phase::Answering => None,
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
        self.0.send_if_modified(|phase| {
            let first = matches!(phase, Phase::Idle(_));
            if first {
                *phase = Phase::Head(Instant::now());
            }
            first
        });
    }
}

/// A connection that reports when bytes come.
struct Paced {
    stream: TcpStream,
    pace: Pace,
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pace.bytes_came();
        }
        polled
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
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
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Its drop is the end of an answer.
struct Answered(Pace);

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.0.send_replace(Phase::Idle(Instant::now()));
    }
}

/// A body that ends the answer when it is dropped.
struct Tracked<B> {
    body: B,
    _answered: Answered,
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
