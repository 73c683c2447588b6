//! The accept loop: what warp's own server lacks is time limits, a bound on connections and on what is kept for them,
//! and an end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
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
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use warp::filters::BoxedFilter;

use super::crowd::{Crowd, Place};
use super::line::{Line, Phase, Socket};
use super::reply::{HasEnd, harden, raw};
use super::{Limits, Response, error};
use crate::supervisor::TaskSet;

/// How long to wait after an accept that failed for want of something, such as open files.
const PAUSE: Duration = Duration::from_millis(200);
/// A peer that takes nothing for so long is gone (its machine sleeps, its link is cut).
const UNACKNOWLEDGED_MILLISECONDS: u32 = 60_000;
/// What the system keeps of an answer that a client has not taken yet (it doubles this). By itself it goes up to
/// megabytes for each connection.
const SEND_BUFFER: usize = 64 * 1024;
/// What hyper keeps of requests, and of answers that the system does not take yet. A head fits.
const HYPER_BUFFER: usize = 32 * 1024;
/// Pieces in which an answer is handed on. Each is a copy, so that what is waiting keeps no more than itself alive.
const PIECE: usize = 16 * 1024;

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
    let crowd = Crowd::new(&limits);
    let server = Arc::new(Server { routes, limits, stop, crowd, connections: TaskSet::new() });
    join_all(listeners.into_iter().map(|listener| server.accept(listener))).await;
    if !server.connections.finish(limits.drain).await {
        tracing::debug!("connections were cut that did not end in time");
    }
}

struct Server {
    routes: BoxedFilter<(Response,)>,
    limits: Limits,
    stop: CancellationToken,
    crowd: Arc<Crowd>,
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
        let line = Line::new(peer.ip());
        let Some(place) = self.crowd.admit(line.clone()) else {
            let full = raw(StatusCode::SERVICE_UNAVAILABLE, "too many connections", Some(10));
            // The socket's buffer is empty, so this fits, or the client does without.
            let _ = stream.try_write(&full);
            return;
        };
        let server = self.clone();
        self.connections.spawn("connection", async move {
            server.connection(stream, peer, line, Arc::new(place)).await;
        });
    }

    async fn connection(&self, stream: TcpStream, peer: SocketAddr, line: Arc<Line>, place: Arc<Place>) {
        // All only make things better; a connection works without them.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MILLISECONDS);
        let _ = sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
        let service = service_fn(|request| self.answer(request, peer, &line, &place).boxed());
        let socket = Socket::new(stream, line.clone(), self.limits.write_time);
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // hyper's one timer is for heads and for idling alike; `Line` tells the two apart.
            .header_read_timeout(None)
            .max_header_size(self.limits.header_bytes)
            .max_buf_size(HYPER_BUFFER.max(2 * self.limits.header_bytes))
            .serve_connection(TokioIo::new(socket), service);
        let mut too_slow = pin!(line.too_slow(&self.limits));
        let mut stopping = pin!(self.stop.cancelled());
        let mut stopped = false;
        loop {
            tokio::select! {
                // An error here is the client's: it left, or it does not speak HTTP.
                _ = poll_fn(|cx| connection.poll_without_shutdown(cx)) => break,
                () = too_slow.as_mut() => return,
                () = line.cut.cancelled() => return,
                () = stopping.as_mut(), if !stopped => {
                    stopped = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
            }
        }
        if !stopped {
            let socket = connection.into_parts().io.into_inner();
            tokio::select! {
                () = socket.linger() => {}
                () = line.cut.cancelled() => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    async fn answer(
        &self,
        mut request: http::Request<Incoming>,
        peer: SocketAddr,
        line: &Arc<Line>,
        place: &Arc<Place>,
    ) -> Result<
        http::Response<Tracked<impl Body<Data: Send, Error: std::error::Error + Send + Sync> + use<>>>,
        Infallible,
    > {
        line.enter(Phase::Handling);
        let answered = Answered { line: line.clone(), place: place.clone() };
        let arrival = Arrival { peer, version: request.version() };
        request.extensions_mut().insert(arrival);
        request.extensions_mut().insert(line.clone());
        // A request for `http://host/path` means that host, whatever its Host header says (RFC 9112, 3.2.2).
        if let Some(host) =
            request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok())
        {
            request.headers_mut().insert(HOST, host);
        }
        // warp panics on the targets of CONNECT and `OPTIONS *`.
        let answer = if request.uri().path().starts_with('/') {
            TowerToHyperService::new(warp::service(self.routes.clone())).call(request).await?
        } else {
            harden(error(StatusCode::BAD_REQUEST, "the request names no path"))
        };
        let whole =
            || answer.body().size_hint().exact().map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        match answer.extensions().get::<HasEnd>().map(|part| part.held).or_else(whole) {
            Some(held) => {
                line.enter(Phase::Sending(Instant::now()));
                place.holds(held);
            }
            None => line.enter(Phase::Streaming),
        }
        Ok(answer.map(|body| Tracked { body, rest: Bytes::new(), is_cut: false, _answered: answered }))
    }
}

/// Whether the client went away between connecting and being accepted.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Its drop is the end of an answer.
struct Answered {
    line: Arc<Line>,
    place: Arc<Place>,
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.place.holds(0);
        self.line.enter(Phase::Idle(Instant::now()));
    }
}

/// A body that is handed on in pieces and ends the answer when it is dropped.
struct Tracked<B> {
    body: B,
    /// Of the last part that came.
    rest: Bytes,
    /// Whether `rest` is cut into pieces.
    is_cut: bool,
    _answered: Answered,
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        while self.rest.is_empty() {
            let frame = match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(mut data) => {
                    self.rest = data.copy_to_bytes(data.remaining());
                    self.is_cut = self.rest.len() > PIECE;
                }
                Err(frame) => {
                    return Poll::Ready(frame.into_trailers().ok().map(|map| Ok(Frame::trailers(map))));
                }
            }
        }
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        let piece = if self.is_cut { Bytes::copy_from_slice(&piece) } else { piece };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        match of_body.exact() {
            Some(exact) => SizeHint::with_exact(exact + rest),
            None => SizeHint::default(),
        }
    }
}
