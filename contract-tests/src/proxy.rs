//! A reverse proxy in front of a registry, with configurable faults.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use crate::{request, unused_port};

/// How the proxy treats requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Forwards everything.
    None,
    /// Accepts requests and never responds.
    Hang,
    /// Responds to every request with this status, headers and body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Responds with this status to requests about one repository, and with a number that differs each time in the text.
    Repository(&'static str, u16),
    /// Removes `Docker-Content-Digest` from responses.
    NoDigest,
    /// Responds to requests for a tag with this `Docker-Content-Digest`.
    WrongDigest(String),
    /// Responds to `HEAD` with 405.
    NoHead,
    /// Serves manifests but no blobs.
    NoBlobs,
}

/// The proxy.
pub struct Proxy {
    /// `127.0.0.1:port`
    pub host: String,
    fault: Arc<Mutex<Fault>>,
    server: MockServer,
    runtime: Runtime,
}

struct Forward {
    upstream: String,
    /// Added in front of the names of repositories.
    namespace: Option<String>,
    fault: Arc<Mutex<Fault>>,
    /// Number of requests refused by [`Fault::Repository`].
    refused: AtomicU64,
}

impl Proxy {
    /// Starts it in front of the registry at `upstream`.
    pub fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", unused_port())).expect("the port is free");
        Self::start_on(listener, upstream)
    }

    /// Starts it on a listener that is already bound.
    pub fn start_on(listener: TcpListener, upstream: &str) -> Self {
        Self::start_with(listener, upstream, None)
    }

    /// Starts one through which only the repositories of `namespace` are visible, without the namespace in their names.
    pub(crate) fn with_namespace(upstream: &str, namespace: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", unused_port())).expect("the port is free");
        Self::start_with(listener, upstream, Some(namespace.to_owned()))
    }

    fn start_with(listener: TcpListener, upstream: &str, namespace: Option<String>) -> Self {
        let runtime = Runtime::new().expect("a runtime can be created");
        let fault = Arc::new(Mutex::new(Fault::None));
        let forward = Forward {
            upstream: upstream.to_owned(),
            namespace,
            fault: fault.clone(),
            refused: AtomicU64::new(0),
        };
        let server = runtime.block_on(async {
            let server = MockServer::builder().listener(listener).start().await;
            Mock::given(wiremock::matchers::any()).respond_with(forward).mount(&server).await;
            server
        });
        Self { host: server.address().to_string(), fault, server, runtime }
    }

    /// Sets its fault from now on.
    pub fn set(&self, fault: Fault) {
        *self.fault.lock() = fault;
    }

    /// Returns the number of requests for manifests so far.
    pub fn manifest_requests(&self) -> usize {
        let requests = self.runtime.block_on(self.server.received_requests()).unwrap_or_default();
        requests.iter().filter(|request| request.url.path().contains("/manifests/")).count()
    }
}

impl Respond for Forward {
    fn respond(&self, asked: &Request) -> ResponseTemplate {
        let fault = self.fault.lock().clone();
        match &fault {
            Fault::Hang => return ResponseTemplate::new(200).set_delay(Duration::from_hours(1)),
            Fault::Answer(status, headers, body) => {
                let mut answer = ResponseTemplate::new(*status).set_body_string(body.clone());
                for (name, value) in headers {
                    answer = answer.insert_header(*name, value.as_str());
                }
                return answer;
            }
            Fault::Repository(name, status) if asked.url.path().contains(&format!("/{name}/")) => {
                let id = self.refused.fetch_add(1, Ordering::Relaxed);
                let text =
                    format!(r#"{{"errors": [{{"code": "UNKNOWN", "message": "request {id} failed"}}]}}"#);
                return ResponseTemplate::new(*status).set_body_string(text);
            }
            Fault::NoHead if asked.method.as_str() == "HEAD" => return ResponseTemplate::new(405),
            Fault::NoBlobs if asked.url.path().contains("/blobs/") => return ResponseTemplate::new(404),
            _ => {}
        }
        let headers: Vec<(&str, &str)> = asked
            .headers
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "host" | "connection" | "content-length"))
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
            .collect();
        let query = asked.url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let path = match (&self.namespace, asked.url.path().strip_prefix("/v2/")) {
            // A link of the registry to another page already has the namespace.
            (Some(namespace), Some(rest)) if !rest.is_empty() && !rest.starts_with(&**namespace) => {
                format!("/v2/{namespace}/{rest}{query}")
            }
            _ => format!("{}{query}", asked.url.path()),
        };
        let reply = match request(&self.upstream, asked.method.as_str(), &path, &headers, &asked.body) {
            Ok(reply) => reply,
            Err(error) => return ResponseTemplate::new(502).set_body_string(error.to_string()),
        };
        let by_tag = path.contains("/manifests/") && !path.contains("/manifests/sha256:");
        let mut answer = ResponseTemplate::new(reply.status).set_body_bytes(reply.body.clone());
        for (name, value) in &reply.headers {
            let value = match (name.as_str(), &fault) {
                ("connection" | "transfer-encoding" | "date", _)
                | ("docker-content-digest" | "etag", Fault::NoDigest) => continue,
                ("docker-content-digest", Fault::WrongDigest(wrong)) if by_tag => wrong,
                _ => value,
            };
            answer = answer.insert_header(name.as_str(), value.as_str());
        }
        answer
    }
}
