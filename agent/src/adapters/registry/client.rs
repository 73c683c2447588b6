//! An HTTP/1.1 client for untrusted servers. Responses are bounded in time; the size of the headers and the number of
//! informational responses are bounded, too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::ext::on_informational;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpInfo;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::connect::{AGENT, Connector};

/// Timeout of an exchange from the connection to the end of the body.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum size of the response headers. Registries and proxies in front of them send a few kilobytes.
const HEADER_LIMIT: usize = 64 * 1024;
/// Maximum number of informational (1xx) responses before the final one. The client requests none.
const MAX_INFORMATIONAL: usize = 8;

/// Why a request did not complete.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// The exchange timed out.
    #[error("no answer in time")]
    Timeout,
    /// Too many informational responses without a final one.
    #[error("it sends 1xx responses without a final answer")]
    Flood,
    /// No connection, or no response on it.
    #[error("the request failed")]
    Request(#[source] legacy::Error),
    /// The body was truncated.
    #[error("the response was incomplete")]
    Body(#[source] hyper::Error),
}

impl ExchangeError {
    /// Reports whether no connection could be established.
    pub(super) fn is_connect(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_connect())
    }
}

/// Sends requests and pools connections.
#[derive(Clone)]
pub(super) struct Client {
    client: legacy::Client<Connector, Full<Bytes>>,
    connector: Connector,
}

impl Client {
    pub(super) fn new(connector: Connector) -> Self {
        let client = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http1_max_buf_size(HEADER_LIMIT)
            .build(connector.clone());
        Self { client, connector }
    }

    #[cfg(test)]
    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.connector.is_same(&other.connector)
    }

    /// Sends a request to `url`, which must match the request's URI. Redirects are not followed.
    pub(super) async fn send(
        &self,
        url: &Url,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response, ExchangeError> {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        request.headers_mut().insert(USER_AGENT, AGENT);
        // For https, the credentials were already sent when the tunnel was opened.
        if request.uri().scheme_str() == Some("http")
            && let Some(proxy) = self.connector.proxy(request.uri())
            && let Some(login) = proxy.basic_auth()
        {
            request.headers_mut().insert(PROXY_AUTHORIZATION, login.clone());
        }
        let informational = Arc::new(Informational::default());
        let counted = informational.clone();
        on_informational(&mut request, move |_| counted.add());
        // The first branch drops the request, which makes hyper close the connection.
        tokio::select! {
            biased;
            () = informational.too_many.notified() => Err(ExchangeError::Flood),
            answer = timeout_at(deadline, self.client.request(request)) => {
                let answer = answer.map_err(|_| ExchangeError::Timeout)?.map_err(ExchangeError::Request)?;
                let (head, body) = answer.into_parts();
                Ok(Response { url: url.clone(), head, body, deadline })
            }
        }
    }
}

/// Counts informational responses.
#[derive(Default)]
struct Informational {
    count: AtomicUsize,
    too_many: Notify,
}

impl Informational {
    fn add(&self) {
        if self.count.fetch_add(1, Ordering::Relaxed) == MAX_INFORMATIONAL {
            self.too_many.notify_one();
        }
    }
}

/// A response whose body is still to be read.
#[derive(Debug)]
pub(super) struct Response {
    url: Url,
    head: http::response::Parts,
    body: Incoming,
    deadline: Instant,
}

impl Response {
    /// The requested URL.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn status(&self) -> StatusCode {
        self.head.status
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The other end of the connection: the server, or a proxy.
    pub(super) fn remote_addr(&self) -> Option<SocketAddr> {
        self.head.extensions.get::<HttpInfo>().map(HttpInfo::remote_addr)
    }

    /// Returns the next chunk of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, ExchangeError> {
        loop {
            let frame = timeout_at(self.deadline, self.body.frame()).await;
            match frame.map_err(|_| ExchangeError::Timeout)? {
                None => return Ok(None),
                Some(Err(error)) => return Err(ExchangeError::Body(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}
