//! Tries probes (DECISIONS 15): a `GET` request or a TCP connection to a container, or to an address of the probe's own.
//!
//! Every try is a new connection: one that is kept open says nothing about the next client. Bodies are not read.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_common::tls;
use futures_util::future::join_all;
use http::{HeaderValue, header};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use tokio::net::{TcpStream, lookup_host};

use super::docker::DockerEngine;
use crate::model::output::{clean, clip_end, stable};
use crate::model::probe::{Answer, Ask, HttpAsk, Probe, Target, TlsCheck};
use crate::model::text::describe_io_error;
use crate::ports::Probes;

/// Maximum length of an answer.
const ANSWER_LIMIT: usize = 200;

/// Tries probes at the containers of an engine.
pub struct ProbeClient {
    engine: Arc<DockerEngine>,
}

impl ProbeClient {
    /// Creates a client. Sends nothing yet.
    pub fn new(engine: Arc<DockerEngine>) -> Self {
        Self { engine }
    }

    /// Returns what a try asks, or why there is nothing to ask. `None` if the engine does not say where the container is, which
    /// says nothing about its image. Not limited by the probe's timeout: the engine may be slow, and has limits of its own.
    async fn host(&self, probe: &Probe, target: &Target) -> Option<Result<String, String>> {
        Some(match (target.container(), &probe.from) {
            (Some(id), _) => match self.engine.address(id).await.ok()? {
                Some(address) => Ok(address.to_string()),
                None => Err("the container has no address of its own: set \"from\" in the probe".to_owned()),
            },
            (None, Some(host)) => Ok(host.clone()),
            (None, None) => Err("there is nothing to ask".to_owned()),
        })
    }
}

#[async_trait]
impl Probes for ProbeClient {
    async fn ask(&self, probe: &Probe, targets: &[Target]) -> BTreeMap<Target, Answer> {
        let tries = targets.iter().map(async |target| {
            let answer = match self.host(probe, target).await? {
                Ok(host) => try_once(probe, &host).await,
                Err(why) => Err(why),
            };
            let line = |text: String| {
                clip_end(&clean(&text).split_whitespace().collect::<Vec<_>>().join(" "), ANSWER_LIMIT)
            };
            Some((target.clone(), answer.map(line).map_err(line)))
        });
        join_all(tries).await.into_iter().flatten().collect()
    }
}

async fn try_once(probe: &Probe, host: &str) -> Answer {
    let asked = async {
        match &probe.ask {
            Ask::Http(http) => get(http, host, probe.timeout).await,
            Ask::Tcp(port) => connect(host, *port).await,
        }
    };
    let late = |_| Err(format!("no answer within {} s", probe.timeout.as_secs()));
    tokio::time::timeout(probe.timeout, asked).await.unwrap_or_else(late)
}

async fn connect(host: &str, port: u16) -> Answer {
    match TcpStream::connect((host, port)).await {
        Ok(_) => Ok("connected".to_owned()),
        Err(error) => Err(describe_io_error(&error)),
    }
}

async fn get(ask: &HttpAsk, host: &str, timeout: Duration) -> Answer {
    let tls = match ask.tls {
        Some(TlsCheck::Unverified) => tls::unverified_client_config(),
        Some(TlsCheck::Verified) => tls::client_config(),
        None => tls::client_config_without_roots(),
    };
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .no_proxy()
        .timeout(timeout);
    // With TLS the name is also the one that the certificate is for, so that it stands in the URL.
    let (in_url, client) = match &ask.host {
        Some(name) if ask.tls.is_some() && name.parse::<IpAddr>().is_err() => {
            let addresses = lookup_host((host, ask.port)).await.map_err(|error| describe_io_error(&error))?;
            let addresses: Vec<SocketAddr> = addresses.collect();
            (name.as_str(), client.resolve_to_addrs(name, &addresses))
        }
        _ => (host, client),
    };
    let in_url = if in_url.contains(':') { format!("[{in_url}]") } else { in_url.to_owned() };
    let scheme = if ask.tls.is_some() { "https" } else { "http" };
    let url = Url::parse(&format!("{scheme}://{in_url}:{}{}", ask.port, ask.path));
    let url = url.map_err(|error| format!("the address is not valid: {error}"))?;
    let client =
        client.build().map_err(|error| format!("cannot create the HTTP client: {}", error.without_url()))?;
    let mut request = client.get(url);
    if let Some(name) = &ask.host {
        let name = HeaderValue::from_str(name).map_err(|_| "\"host\" is not a host name".to_owned())?;
        request = request.header(header::HOST, name);
    }
    match request.send().await {
        Ok(response) => {
            let status = response.status();
            let mut answer = format!("status {status}");
            let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            if let Some(to) = location.filter(|_| status.is_redirection()) {
                answer.push_str(&format!(", redirect to {to}"));
            }
            if ask.status.contain(status.as_u16()) { Ok(answer) } else { Err(answer) }
        }
        Err(error) => Err(describe(&error, timeout)),
    }
}

/// Describes why a request got no answer, without addresses, which differ from try to try.
fn describe(error: &reqwest::Error, timeout: Duration) -> String {
    if let Some(certificate) = tls::certificate_error(error) {
        return format!("the certificate was not accepted: {certificate}");
    }
    if error.is_timeout() {
        return format!("no answer within {} s", timeout.as_secs());
    }
    let mut cause: &(dyn std::error::Error + 'static) = error;
    loop {
        if let Some(error) = cause.downcast_ref::<io::Error>().filter(|error| error.raw_os_error().is_some())
        {
            return describe_io_error(error);
        }
        match cause.source() {
            Some(inner) => cause = inner,
            None => return stable(&cause.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use evenkeel_common::testing::self_signed;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use wiremock::matchers::path;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::adapters::docker::{Endpoint, PullCredentials};
    use crate::model::image::Repository;
    use crate::model::probe::StatusCodes;

    fn asks(port: u16, path: &str, status: &str, host: Option<&str>) -> HttpAsk {
        HttpAsk {
            port,
            path: path.into(),
            status: StatusCodes::parse(status).expect("valid"),
            host: host.map(str::to_owned),
            tls: None,
        }
    }

    /// Answers one request with this head on a port of `address`, and returns what was sent.
    fn serve(address: &str, head: &'static str) -> (u16, JoinHandle<String>) {
        let listener = TcpListener::bind(address).expect("an unused port");
        let port = listener.local_addr().expect("it is bound").port();
        let task = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).expect("a request");
            stream.write_all(head.as_bytes()).expect("it can be answered");
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        (port, task)
    }

    const LIMIT: Duration = Duration::from_secs(10);

    /// Nothing is pulled here.
    struct NoLogin;

    #[async_trait]
    impl PullCredentials for NoLogin {
        async fn login(&self, _: &Repository) -> Result<Option<bollard::auth::DockerCredentials>, String> {
            Ok(None)
        }
    }

    fn client(endpoint: Endpoint) -> ProbeClient {
        ProbeClient::new(Arc::new(DockerEngine::new(endpoint, Arc::new(NoLogin))))
    }

    fn connects(port: u16, timeout: Duration, from: Option<&str>) -> Probe {
        let from = from.map(str::to_owned);
        Probe { ask: Ask::Tcp(port), service: None, from, interval: LIMIT, timeout }
    }

    #[tokio::test]
    async fn a_container_that_the_engine_says_nothing_of_has_given_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an unused port");
        let port = listener.local_addr().expect("it is bound").port();
        let client = client(Endpoint::Unusable("the engine is busy".to_owned()));
        let containers = [Target("web".to_owned())];
        assert_eq!(client.ask(&connects(port, LIMIT, None), &containers).await, BTreeMap::new());
        // No engine is needed for an address of its own.
        let own = client.ask(&connects(port, LIMIT, Some("127.0.0.1")), &[Target::own_address()]).await;
        assert_eq!(own, BTreeMap::from([(Target::own_address(), Ok("connected".to_owned()))]));
    }

    #[tokio::test]
    async fn the_time_that_the_engine_takes_is_not_that_of_the_container() {
        let server = MockServer::start().await;
        for (at, answer) in [
            ("/version", json!({"ApiVersion": "1.41", "MinAPIVersion": "1.12"})),
            ("/v1.41/containers/web/json", json!({"Id": "web", "HostConfig": {"NetworkMode": "none"}})),
        ] {
            let answer = ResponseTemplate::new(200).set_body_json(answer);
            Mock::given(path(at)).respond_with(answer).mount(&server).await;
        }
        let client = client(Endpoint::Tcp(server.address().to_string()));
        // No engine is so quick.
        let probe = connects(1, Duration::ZERO, None);
        let answers = client.ask(&probe, &[Target("web".to_owned())]).await;
        let answer = answers.into_values().next().expect("the engine has answered");
        assert!(answer.is_err_and(|why| why.contains("has no address of its own")));
    }

    #[tokio::test]
    async fn the_status_decides_and_the_body_is_not_waited_for() {
        let endless = "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
        let (port, request) = serve("127.0.0.1:0", endless);
        let ask = asks(port, "/health?full=1", "200-399", Some("app.example.org"));
        assert_eq!(get(&ask, "127.0.0.1", LIMIT).await, Ok("status 200 OK".to_owned()));
        let request = request.join().expect("answered").to_lowercase();
        assert!(request.starts_with("get /health?full=1 http/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nhost: app.example.org\r\n"), "{request}");

        let (port, _) = serve("127.0.0.1:0", "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
        let answer = get(&asks(port, "/", "200-399", None), "127.0.0.1", LIMIT).await;
        assert_eq!(answer, Err("status 503 Service Unavailable".to_owned()));
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed() {
        let head = "HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n";
        let expected = "status 302 Found, redirect to /login".to_owned();
        for (status, is_fine) in [("200-399", true), ("200-299", false)] {
            let (port, _) = serve("127.0.0.1:0", head);
            let answer = get(&asks(port, "/", status, None), "127.0.0.1", LIMIT).await;
            assert_eq!(answer, if is_fine { Ok(expected.clone()) } else { Err(expected.clone()) });
        }
    }

    #[tokio::test]
    async fn ipv6_addresses_are_asked_too() {
        let Ok(probe) = TcpListener::bind("[::1]:0") else { return eprintln!("no IPv6 here") };
        drop(probe);
        let (port, request) = serve("[::1]:0", "HTTP/1.1 204 No Content\r\n\r\n");
        let answer = get(&asks(port, "/", "204", None), "::1", LIMIT).await;
        assert_eq!(answer, Ok("status 204 No Content".to_owned()));
        assert!(request.join().expect("answered").to_lowercase().contains(&format!("host: [::1]:{port}")));
    }

    #[tokio::test]
    async fn failures_are_in_stable_words() {
        let free = TcpListener::bind("127.0.0.1:0").expect("an unused port");
        let port = free.local_addr().expect("it is bound").port();
        drop(free);
        assert_eq!(connect("127.0.0.1", port).await, Err("Connection refused".to_owned()));
        let refused = get(&asks(port, "/", "200", None), "127.0.0.1", LIMIT).await;
        assert_eq!(refused, Err("Connection refused".to_owned()));

        // Accepts connections, and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").expect("an unused port");
        let port = silent.local_addr().expect("it is bound").port();
        assert_eq!(connect("127.0.0.1", port).await, Ok("connected".to_owned()));
        let late = get(&asks(port, "/", "200", None), "127.0.0.1", Duration::from_secs(1)).await;
        assert_eq!(late, Err("no answer within 1 s".to_owned()));

        let (port, _) = serve("127.0.0.1:0", "SSH-2.0-OpenSSH_9.2\r\n");
        let nonsense = get(&asks(port, "/", "200", None), "127.0.0.1", LIMIT).await;
        assert!(nonsense.as_ref().is_err_and(|why| !why.contains(&port.to_string())), "{nonsense:?}");
    }

    /// Answers TLS requests with a self-signed certificate for `app.example.org`.
    async fn serve_tls() -> (u16, impl Future<Output = ()>) {
        let acceptor = self_signed("app.example.org");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an unused port");
        let port = listener.local_addr().expect("it is bound").port();
        let serve = async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a client");
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let name = stream.get_ref().1.server_name().unwrap_or("no name").to_owned();
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = format!("HTTP/1.1 302 Found\r\nlocation: {name}\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        };
        (port, serve)
    }

    #[tokio::test]
    async fn a_certificate_is_verified_unless_told_otherwise_and_its_name_is_that_of_the_host() {
        let (port, serve) = serve_tls().await;
        let ask = |tls, host| HttpAsk { tls: Some(tls), ..asks(port, "/", "302", host) };
        let tries = async {
            let refused = get(&ask(TlsCheck::Verified, Some("app.example.org")), "127.0.0.1", LIMIT).await;
            assert!(
                refused.as_ref().is_err_and(|why| why.starts_with("the certificate was not accepted")),
                "{refused:?}"
            );
            let named = get(&ask(TlsCheck::Unverified, Some("app.example.org")), "127.0.0.1", LIMIT).await;
            assert_eq!(named, Ok("status 302 Found, redirect to app.example.org".to_owned()));
            // The name of the machine that is asked is another matter.
            let elsewhere =
                get(&ask(TlsCheck::Unverified, Some("app.example.org")), "localhost", LIMIT).await;
            assert_eq!(elsewhere, Ok("status 302 Found, redirect to app.example.org".to_owned()));
            let bare = get(&ask(TlsCheck::Unverified, None), "127.0.0.1", LIMIT).await;
            assert_eq!(bare, Ok("status 302 Found, redirect to no name".to_owned()));
        };
        tokio::select! {
            () = tries => {}
            () = serve => unreachable!("it serves until it is dropped"),
        }
    }
}
