//! HTTP over the engine's Unix socket or TCP, with a small connection pool.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bollard::BollardRequest;
use bollard::errors::Error;
use bytes::Bytes;
use futures_util::Stream;
use http::{Response, Uri};
use http_body::Frame;
use http_body_util::{Either, Full, StreamBody};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyperlocal::UnixConnector;

use super::endpoint::Endpoint;

/// Maximum number of concurrent read requests and of idle connections. Each costs 50 KiB in the agent and a thread's work
/// in the engine. When the agent starts, all services send requests at the same time.
pub(super) const AT_ONCE: usize = 8;
/// Idle timeout of connections: longer than the usual interval of the engine health check, so that an idle agent keeps
/// one open.
const IDLE: Duration = Duration::from_mins(1);
/// How long a TCP connection is silent before its peer is asked whether it is there; what answers is below HTTP.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Maximum size of a read and of the response headers, which take a few hundred bytes. A connection keeps a buffer as large
/// as its largest read: with hyper's default limit, 400 KiB after a long container list.
const READ_SIZE: usize = 16 * 1024;

/// The type of the client library's request bodies. The library's own alias is private.
type Body =
    Either<Full<Bytes>, StreamBody<Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, io::Error>> + Send>>>>;

/// The connections to one engine. Creating it does not connect.
pub(super) struct Transport {
    /// Scheme and authority of every request.
    base: String,
    pool: Pool,
}

enum Pool {
    Unix(Client<UnixConnector, Body>),
    Tcp(Client<HttpConnector, Body>),
    /// No usable address.
    None,
}

impl Transport {
    pub(super) fn new(endpoint: &Endpoint) -> Self {
        Self::keeping(endpoint, AT_ONCE)
    }

    /// The same, with a new connection for each request.
    pub(super) fn without_pool(endpoint: &Endpoint) -> Self {
        Self::keeping(endpoint, 0)
    }

    /// The same, with so many idle connections at most.
    fn keeping(endpoint: &Endpoint, idle: usize) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(idle)
            .http1_max_buf_size(READ_SIZE);
        let (base, pool) = match endpoint {
            Endpoint::Unix(path) => {
                // The connector finds the socket's path in the host. The port is ignored.
                let host = hex::encode(path.as_os_str().as_encoded_bytes());
                (format!("unix://{host}:0"), Pool::Unix(builder.build(UnixConnector)))
            }
            Endpoint::Tcp(address) => (format!("http://{address}"), Pool::Tcp(builder.build(tcp()))),
            Endpoint::Unusable(_) => (String::new(), Pool::None),
        };
        Self { base, pool }
    }

    /// Sends a request to `path`, which starts with a slash and may have a query.
    pub(super) async fn send(
        &self,
        mut request: BollardRequest,
        path: &str,
    ) -> Result<Response<Incoming>, Error> {
        *request.uri_mut() = format!("{}{path}", self.base).parse::<Uri>()?;
        match &self.pool {
            Pool::Unix(client) => Ok(client.request(request).await?),
            Pool::Tcp(client) => Ok(client.request(request).await?),
            Pool::None => Err(Error::IOError { err: io::ErrorKind::AddrNotAvailable.into() }),
        }
    }
}

/// Opens TCP connections with keepalive: what is in between drops one that is silent for minutes without telling (moby#34359),
/// and no event would ever arrive on it again.
fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE / 3));
    connector.set_keepalive_retries(Some(3));
    connector
}
