//! Connections to registries, directly or through the environment's proxy, with TLS for https URLs. They are read in small
//! portions, so that a large response does not block other tasks.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_common::proxy::Proxies;
use evenkeel_common::tls;
use http::header::USER_AGENT;
use http::{Extensions, HeaderMap, HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector, HttpInfo};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::reach::Resolver;

/// Timeout of name resolution, connection, proxy and TLS handshake together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The `User-Agent`.
pub(super) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("evenkeel/", env!("CARGO_PKG_VERSION")));
/// Default port of SOCKS proxies.
const SOCKS_PORT: u16 = 1080;
/// Maximum number of bytes read from a connection before other tasks may run.
const PORTION: usize = 16 * 1024;

type BoxError = Box<dyn Error + Send + Sync>;

/// TLS settings, created lazily: the system's root certificates alone take a few hundred kilobytes. Clones share them.
#[derive(Clone)]
pub(super) enum Tls {
    /// Made when they are first needed: loading the CA certificates takes time and memory.
    Lazy(Arc<LazyLock<Arc<ClientConfig>>>),
    /// Made.
    Ready(Arc<ClientConfig>),
}

impl Tls {
    /// Verifies certificates.
    pub(super) fn verified() -> Self {
        Self::Lazy(Arc::new(LazyLock::new(|| Arc::new(tls::client_config()))))
    }

    /// Accepts any certificate.
    pub(super) fn unverified() -> Self {
        Self::Lazy(Arc::new(LazyLock::new(|| Arc::new(tls::unverified_client_config()))))
    }

    /// These settings.
    pub(super) fn with(config: ClientConfig) -> Self {
        Self::Ready(Arc::new(config))
    }

    fn config(&self) -> Arc<ClientConfig> {
        match self {
            Self::Lazy(config) => LazyLock::force(config).clone(),
            Self::Ready(config) => config.clone(),
        }
    }
}

/// Connects to the host of a URL, or to its proxy.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector<Resolver>,
    tls: Tls,
    proxies: Option<Arc<Proxies>>,
}

impl Connector {
    /// Creates a connector. `proxies` is `None` if none are used.
    pub(super) fn new(tls: Tls, resolver: Resolver, proxies: Option<Arc<Proxies>>) -> Self {
        let mut tcp = HttpConnector::new_with_resolver(resolver);
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // The connector divides this time among the addresses of a name.
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self { tcp, tls, proxies }
    }

    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_same_tls = match (&self.tls, &other.tls) {
            (Tls::Lazy(one), Tls::Lazy(other)) => Arc::ptr_eq(one, other),
            (Tls::Ready(one), Tls::Ready(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        is_same_tls && self.proxies.is_some() == other.proxies.is_some()
    }

    #[cfg(test)]
    pub(super) fn has_proxies(&self) -> bool {
        self.proxies.is_some()
    }

    /// Returns the proxy for a URL.
    pub(super) fn proxy(&self, to: &Uri) -> Option<Intercept> {
        let address = self.proxies.as_ref()?.of(&to.to_string())?;
        Matcher::builder().all(address).build().intercept(to)
    }

    /// Connects directly.
    async fn dial(mut self, to: Uri) -> Result<MaybeHttpsStream<TokioIo<TcpStream>>, BoxError> {
        if to.scheme_str() == Some("https") {
            return HttpsConnector::from((self.tcp, self.tls.config())).call(to).await;
        }
        Ok(MaybeHttpsStream::Http(self.tcp.call(to).await?))
    }

    async fn connect(self, to: Uri) -> Result<Paced, BoxError> {
        let Some(proxy) = self.proxy(&to) else {
            let stream = self.dial(to).await?;
            let peer = peer(&stream);
            return Ok(Paced::new(TokioIo::new(stream), peer, false));
        };
        if to.scheme_str() == Some("https") {
            let tls = self.tls.config();
            let host = to.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(host.to_owned())?;
            let stream = self.tunnel(&proxy, to).await?;
            let peer = peer(&stream);
            let stream = TlsConnector::from(tls).connect(name, TokioIo::new(stream)).await?;
            return Ok(Paced::new(stream, peer, false));
        }
        let is_tunnel = is_socks(&proxy);
        let stream =
            if is_tunnel { self.tunnel(&proxy, to).await? } else { self.dial(proxy.uri().clone()).await? };
        let peer = peer(&stream);
        Ok(Paced::new(TokioIo::new(stream), peer, !is_tunnel))
    }

    /// Connects through a proxy that does not see what is sent.
    async fn tunnel(
        self,
        proxy: &Intercept,
        to: Uri,
    ) -> Result<MaybeHttpsStream<TokioIo<TcpStream>>, BoxError> {
        if is_socks(proxy) {
            let mut socks = SocksV5::new(with_port(proxy.uri(), SOCKS_PORT)?, self.tcp);
            if let Some((user, password)) = proxy.raw_auth() {
                socks = socks.with_auth(user.to_owned(), password.to_owned());
            }
            let port = if to.scheme_str() == Some("https") { 443 } else { 80 };
            return Ok(MaybeHttpsStream::Http(socks.call(with_port(&to, port)?).await?));
        }
        let dial = HttpsConnector::from((self.tcp, self.tls.config()));
        let mut tunnel =
            Tunnel::new(proxy.uri().clone(), dial).with_headers(HeaderMap::from_iter([(USER_AGENT, AGENT)]));
        if let Some(login) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(login.clone());
        }
        Ok(tunnel.call(to).await?)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Paced>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.clone().connect(to);
        Box::pin(async move {
            match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(outcome) => outcome.map(TokioIo::new),
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        })
    }
}

fn is_socks(proxy: &Intercept) -> bool {
    proxy.uri().scheme_str().is_some_and(|scheme| scheme.starts_with("socks"))
}

/// Adds this port to an address without one.
fn with_port(address: &Uri, port: u16) -> http::Result<Uri> {
    let host = address.host().unwrap_or_default();
    let port = address.port_u16().unwrap_or(port);
    Uri::builder()
        .scheme(address.scheme_str().unwrap_or_default())
        .authority(format!("{host}:{port}"))
        .path_and_query("/")
        .build()
}

/// Returns the addresses of a connection.
fn peer(stream: &impl Connection) -> Option<HttpInfo> {
    let mut extras = Extensions::new();
    stream.connected().get_extras(&mut extras);
    extras.remove()
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection whose reader yields after every [`PORTION`]. HTTP parsers read and grow their buffers as long as data is
/// available: without yielding, one poll of a task may read tens of megabytes.
pub(super) struct Paced {
    stream: Box<dyn Stream>,
    peer: Option<HttpInfo>,
    /// Whether the other end is a proxy that needs absolute URLs in requests.
    is_proxy: bool,
    /// Bytes left until the next yield.
    left: usize,
}

impl Paced {
    fn new(stream: impl Stream + 'static, peer: Option<HttpInfo>, is_proxy: bool) -> Self {
        Self { stream: Box::new(stream), peer, is_proxy, left: PORTION }
    }
}

impl Connection for Paced {
    fn connected(&self) -> Connected {
        let connected = Connected::new().proxy(self.is_proxy);
        match &self.peer {
            Some(peer) => connected.extra(peer.clone()),
            None => connected,
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            self.left = PORTION;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let most = self.left.min(into.remaining());
        let mut part = ReadBuf::new(into.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let count = part.filled().len();
        into.advance(count);
        self.left -= count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use bytes::Bytes;
    use evenkeel_common::testing::self_signed;
    use http::{Request, StatusCode};
    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use url::Url;

    use super::super::client::Client;
    use super::super::reach::system_lookup;
    use super::*;

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

    #[tokio::test]
    async fn a_connection_with_more_data_yields_after_every_portion() {
        let (mut theirs, ours) = tokio::io::duplex(8 * PORTION);
        theirs.write_all(&vec![0; 4 * PORTION]).await.unwrap();
        let mut paced = Paced::new(ours, None, false);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..4 {
            let mut bytes = vec![0; 4 * PORTION];
            let mut into = ReadBuf::new(&mut bytes);
            assert!(Pin::new(&mut paced).poll_read(&mut cx, &mut into).is_ready());
            assert_eq!(into.filled().len(), PORTION);
            assert!(Pin::new(&mut paced).poll_read(&mut cx, &mut into).is_pending());
            assert_eq!(into.filled().len(), PORTION);
        }
    }

    /// A client that accepts any certificate, behind a proxy with authentication.
    async fn behind_a_proxy() -> (TcpListener, Client) {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://ann:s3cret@{}", proxy.local_addr().unwrap());
        (proxy, through(&address))
    }

    /// A client that accepts any certificate and uses this proxy.
    fn through(address: &str) -> Client {
        let proxies = Proxies::new(|name| match name {
            "ALL_PROXY" => Some(address.to_owned()),
            "NO_PROXY" => Some("*.direct.example,10.0.0.5:5000".to_owned()),
            _ => None,
        });
        let resolver = Resolver { lookup: system_lookup(), limit: None };
        Client::new(Connector::new(Tls::unverified(), resolver, Some(Arc::new(proxies))))
    }

    async fn get(client: &Client, url: &str) -> StatusCode {
        let request = Request::builder().uri(url).body(Full::<Bytes>::default()).unwrap();
        client.send(&Url::parse(url).unwrap(), request).await.unwrap().status()
    }

    /// Reads the request headers, in lower case.
    async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(char::from(stream.read_u8().await.unwrap()));
        }
        head.to_ascii_lowercase()
    }

    #[tokio::test]
    async fn a_plain_request_goes_to_the_proxy_with_its_absolute_url_and_the_connection_is_reused() {
        let (proxy, client) = behind_a_proxy().await;
        let serve = async {
            let (mut stream, _) = proxy.accept().await.unwrap();
            for path in ["a", "b"] {
                let head = head(&mut stream).await;
                let line = format!("get http://registry.example/v2/{path} http/1.1\r\n");
                assert!(head.starts_with(&line), "{head}");
                for line in ["host: registry.example", "proxy-authorization: basic ", "user-agent: evenkeel/"]
                {
                    assert!(head.contains(&format!("\r\n{line}")), "{head}");
                }
                stream.write_all(OK).await.unwrap();
            }
        };
        let ask = async {
            for path in ["a", "b"] {
                let status = get(&client, &format!("http://registry.example/v2/{path}")).await;
                assert_eq!(status, StatusCode::OK);
            }
        };
        tokio::join!(serve, ask);
        let connector = client.connector();
        assert!(connector.proxy(&Uri::from_static("http://reg.direct.example/v2/")).is_none());
        assert!(connector.proxy(&Uri::from_static("https://reg.direct.example/v2/")).is_none());
        assert!(connector.proxy(&Uri::from_static("https://10.0.0.5:5000/v2/")).is_none());
        assert!(connector.proxy(&Uri::from_static("https://10.0.0.5/v2/")).is_some());
    }

    #[tokio::test]
    async fn a_request_with_tls_goes_through_a_tunnel_that_hides_it_from_the_proxy() {
        let acceptor = self_signed("registry.example");
        let (proxy, client) = behind_a_proxy().await;
        let serve = async {
            let (mut stream, _) = proxy.accept().await.unwrap();
            let outside = head(&mut stream).await;
            assert!(outside.starts_with("connect registry.example:443 http/1.1\r\n"), "{outside}");
            assert!(outside.contains("\r\nproxy-authorization: basic "), "{outside}");
            assert!(!outside.contains("/v2/"), "{outside}");
            stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            assert_eq!(stream.get_ref().1.server_name(), Some("registry.example"));
            let inside = head(&mut stream).await;
            assert!(inside.starts_with("get /v2/ http/1.1\r\n"), "{inside}");
            assert!(!inside.contains("proxy-authorization"), "{inside}");
            stream.write_all(OK).await.unwrap();
            stream.flush().await.unwrap();
        };
        let (status, ()) = tokio::join!(get(&client, "https://registry.example/v2/"), serve);
        assert_eq!(status, StatusCode::OK);
    }
    #[tokio::test]
    async fn a_socks_proxy_gets_the_name_and_not_a_request_of_its_own_protocol() {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = through(&format!("socks5://ann:s3cret@{}", proxy.local_addr().unwrap()));
        let serve = async {
            for port in [80, 443] {
                let (mut stream, _) = proxy.accept().await.unwrap();
                let mut hello = [0; 3];
                stream.read_exact(&mut hello).await.unwrap();
                assert_eq!(hello, [5, 1, 2], "with a login");
                stream.write_all(&[5, 2]).await.unwrap();
                let mut login = [0; 12];
                stream.read_exact(&mut login).await.unwrap();
                assert_eq!(&login, b"\x01\x03ann\x06s3cret");
                stream.write_all(&[1, 0]).await.unwrap();
                let mut request = [0; 5 + 16 + 2];
                stream.read_exact(&mut request).await.unwrap();
                assert_eq!(&request[..21], b"\x05\x01\x00\x03\x10registry.example");
                assert_eq!(u16::from_be_bytes([request[21], request[22]]), port);
                stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
                if port == 80 {
                    let head = head(&mut stream).await;
                    assert!(head.starts_with("get /v2/ http/1.1\r\n"), "{head}");
                    stream.write_all(OK).await.unwrap();
                    continue;
                }
                let mut stream = self_signed("registry.example").accept(stream).await.unwrap();
                head(&mut stream).await;
                stream.write_all(OK).await.unwrap();
                stream.flush().await.unwrap();
            }
        };
        let ask = async {
            for url in ["http://registry.example/v2/", "https://registry.example/v2/"] {
                assert_eq!(get(&client, url).await, StatusCode::OK);
            }
        };
        tokio::join!(serve, ask);
    }
}
