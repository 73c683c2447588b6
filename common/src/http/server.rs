//! The accept loop. It replaces warp's own server, which has no timeouts, no limits on connections and their memory, and no
//! bounded shutdown.

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

use super::connection::{Connection, Phase, Socket};
use super::connections::{Connections, Slot};
use super::reply::{harden, raw};
use super::{Limits, Response, error};
use crate::supervisor::TaskSet;

/// Delay after a failed accept, for example because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// A peer that acknowledges nothing for this long is gone (its machine is suspended, or the network is down).
const UNACKNOWLEDGED_MILLISECONDS: u32 = 60_000;
/// Send buffer of the system per connection (it doubles this value). By default it can grow to several megabytes.
const SEND_BUFFER: usize = 64 * 1024;
/// hyper's buffer per connection, for requests and for responses that the system does not accept yet. A head fits in it.
const HYPER_BUFFER: usize = 32 * 1024;
/// Size of the pieces in which a response is passed on. Each piece is a copy, so that it does not keep the whole response
/// alive while it waits.
const PIECE: usize = 16 * 1024;

/// How a request arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Address of the client or of the last proxy.
    pub peer: SocketAddr,
    /// HTTP version.
    pub version: Version,
}

impl Default for Arrival {
    /// A request without a connection, as in tests of a filter.
    fn default() -> Self {
        Self { peer: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), version: Version::HTTP_11 }
    }
}

/// Serves `routes` on all listeners until `stop` is cancelled; requests in progress may then finish within
/// `limits.drain`. Streams must end by themselves on shutdown.
pub async fn serve(
    listeners: Vec<TcpListener>,
    routes: BoxedFilter<(Response,)>,
    limits: Limits,
    stop: CancellationToken,
) {
    let connections = Connections::new(&limits);
    let server = Arc::new(Server { routes, limits, stop, connections, tasks: TaskSet::new() });
    join_all(listeners.into_iter().map(|listener| server.accept(listener))).await;
    if !server.tasks.finish(limits.drain).await {
        tracing::debug!("connections that did not finish in time were closed");
    }
}

struct Server {
    routes: BoxedFilter<(Response,)>,
    limits: Limits,
    stop: CancellationToken,
    connections: Arc<Connections>,
    tasks: TaskSet,
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
                Err(error) if is_client_error(&error) => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "cannot accept connections; retrying");
                    }
                    failing = true;
                    tokio::select! {
                        () = sleep(ACCEPT_RETRY_DELAY) => {}
                        () = self.stop.cancelled() => return,
                    }
                }
            }
        }
    }

    fn open(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let conn = Connection::new(peer.ip());
        let Some(slot) = self.connections.admit(conn.clone()) else {
            let full = raw(StatusCode::SERVICE_UNAVAILABLE, "too many connections", Some(10));
            // Best effort: the send buffer is empty, so this normally fits.
            let _ = stream.try_write(&full);
            return;
        };
        let server = self.clone();
        self.tasks.spawn("connection", async move {
            server.connection(stream, peer, conn, Arc::new(slot)).await;
        });
    }

    async fn connection(&self, stream: TcpStream, peer: SocketAddr, conn: Arc<Connection>, slot: Arc<Slot>) {
        // These are optimizations; the connection works without them.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MILLISECONDS);
        let _ = sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
        let service = service_fn(|request| self.answer(request, peer, &conn, &slot).boxed());
        let socket = Socket::new(stream, conn.clone(), self.limits.write_time);
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // hyper uses one timer for both heads and idle connections; `Connection` distinguishes the two.
            .header_read_timeout(None)
            .max_header_size(self.limits.header_bytes)
            .max_buf_size(HYPER_BUFFER.max(2 * self.limits.header_bytes))
            .serve_connection(TokioIo::new(socket), service);
        let mut deadline_passed = pin!(conn.deadline_passed(&self.limits));
        let mut stopping = pin!(self.stop.cancelled());
        let mut stopped = false;
        loop {
            tokio::select! {
                // Errors here are caused by the client: it disconnected, or it does not speak HTTP.
                _ = poll_fn(|cx| connection.poll_without_shutdown(cx)) => break,
                () = deadline_passed.as_mut() => return,
                () = conn.evicted.cancelled() => return,
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
                () = conn.evicted.cancelled() => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    async fn answer(
        &self,
        mut request: http::Request<Incoming>,
        peer: SocketAddr,
        conn: &Arc<Connection>,
        slot: &Arc<Slot>,
    ) -> Result<
        http::Response<Tracked<impl Body<Data: Send, Error: std::error::Error + Send + Sync> + use<>>>,
        Infallible,
    > {
        conn.enter(Phase::Handling);
        let answered = Answered { conn: conn.clone(), slot: slot.clone() };
        let arrival = Arrival { peer, version: request.version() };
        request.extensions_mut().insert(arrival);
        request.extensions_mut().insert(conn.clone());
        // In a request for `http://host/path` that host takes precedence over the Host header (RFC 9112, 3.2.2).
        if let Some(host) =
            request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok())
        {
            request.headers_mut().insert(HOST, host);
        }
        // warp panics on the targets of CONNECT and `OPTIONS *`.
        let answer = if request.uri().path().starts_with('/') {
            TowerToHyperService::new(warp::service(self.routes.clone())).call(request).await?
        } else {
            harden(error(StatusCode::BAD_REQUEST, "the request target has no path"))
        };
        match answer.body().size_hint().exact() {
            Some(size) => {
                conn.enter(Phase::Sending(Instant::now()));
                slot.set_unsent(usize::try_from(size).unwrap_or(usize::MAX));
            }
            None => conn.enter(Phase::Streaming),
        }
        Ok(answer.map(|body| Tracked { body, rest: Bytes::new(), is_split: false, _answered: answered }))
    }
}

/// Reports whether the client disconnected before its connection was accepted.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Marks the end of a response when it is dropped.
struct Answered {
    conn: Arc<Connection>,
    slot: Arc<Slot>,
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.slot.set_unsent(0);
        self.conn.enter(Phase::Idle(Instant::now()));
    }
}

/// A body that is passed on in pieces and marks the end of the response when it is dropped.
struct Tracked<B> {
    body: B,
    /// The rest of the last frame.
    rest: Bytes,
    /// Whether `rest` is split into pieces.
    is_split: bool,
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
                    self.is_split = self.rest.len() > PIECE;
                }
                Err(frame) => {
                    return Poll::Ready(frame.into_trailers().ok().map(|map| Ok(Frame::trailers(map))));
                }
            }
        }
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        let piece = if self.is_split { Bytes::copy_from_slice(&piece) } else { piece };
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
