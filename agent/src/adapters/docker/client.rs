//! Requests in the negotiated API version. Plain requests are sent directly; those that need special encoding go through
//! the client library.
//!
//! The library (bollard 0.21) sends unversioned paths, so its transport adds the version. Engine 29 and proxies in front
//! of engines reject versions that they do not support, and the meaning of an unversioned path depends on the engine.

use std::sync::Arc;

use bollard::errors::Error;
use bollard::{BollardRequest, Docker, body_full};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::answer;
use super::transport::Transport;
use super::version::{ApiVersion, Supported};

/// The library's timeout, in whole seconds. It only covers the time to the response headers; calls set shorter ones.
pub(super) const ANSWER_LIMIT_SECS: u64 = 120;

/// Maximum size of a response, to bound memory. Real responses about containers and images are smaller.
const ANSWER_LIMIT: usize = 64 << 20;

/// A query's parameters.
pub(super) type Query<'a> = &'a [(&'a str, &'a str)];

/// A client for one API version.
#[derive(Clone)]
pub(super) struct Client {
    /// For requests that the library encodes or decodes: logs, pulls, and changes without a response body.
    pub(super) docker: Docker,
    transport: Arc<Transport>,
    pub(super) version: ApiVersion,
    /// Whether the engine is podman.
    pub(super) podman: bool,
}

/// Negotiates the API version with an engine, using an unversioned request.
pub(super) async fn negotiate(transport: &Arc<Transport>) -> Result<Client, Error> {
    let supported = match ask(transport, Method::GET, "/version", Bytes::new(), None).await {
        Ok(response) => Supported::from_version(&json(response).await?),
        // A proxy may forbid this request. `/_ping`, which proxies allow, returns the newest version in a header.
        Err(Error::DockerResponseServerError { status_code: 400..=499, .. }) => {
            let pong = ask(transport, Method::GET, "/_ping", Bytes::new(), None).await?;
            let header = pong.headers().get("api-version").and_then(|version| version.to_str().ok());
            Supported::from_ping(header.unwrap_or_default())
        }
        Err(error) => return Err(error),
    };
    let version = supported.negotiated();
    if version.is_tested() {
        tracing::debug!(%version, podman = supported.podman, "negotiated the engine API version");
    } else {
        tracing::warn!(%version, "the engine supports no API version that Evenkeel was tested with");
    }
    let under = transport.clone();
    let send = move |mut request: BollardRequest| {
        let transport = under.clone();
        async move {
            make_login_url_safe(&mut request);
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            let path = versioned(version, path);
            transport.send(request, &path).await
        }
    };
    // The address is a dummy: the transport uses only the path of the URL.
    let docker = Docker::connect_with_custom_transport(
        send,
        Some("http://engine"),
        ANSWER_LIMIT_SECS,
        &version.for_client(),
    )?;
    Ok(Client { docker, transport: transport.clone(), version, podman: supported.podman })
}

impl Client {
    /// Sends a `GET` request and returns the JSON response. The engine forwards `login` to a registry.
    pub(super) async fn get(
        &self,
        path: &str,
        query: Query<'_>,
        login: Option<&HeaderValue>,
    ) -> Result<Value, Error> {
        json(ask(&self.transport, Method::GET, &self.path(path, query), Bytes::new(), login).await?).await
    }

    /// Sends a `GET` request and returns the response with its body still to be read.
    pub(super) async fn stream(&self, path: &str, query: Query<'_>) -> Result<Response<Incoming>, Error> {
        ask(&self.transport, Method::GET, &self.path(path, query), Bytes::new(), None).await
    }

    /// Sends a request whose response body is ignored. The engine forwards `login` to a registry.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        query: Query<'_>,
        body: Bytes,
        login: Option<&HeaderValue>,
    ) -> Result<(), Error> {
        let answer = ask(&self.transport, method, &self.path(path, query), body, login).await?;
        // Draining the body allows the connection to be reused.
        let _ = Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await;
        Ok(())
    }

    /// Pings the engine on another transport.
    pub(super) async fn ping_on(&self, transport: &Transport) -> Result<(), Error> {
        ask(transport, Method::GET, &self.path("/_ping", &[]), Bytes::new(), None).await.map(drop)
    }

    fn path(&self, path: &str, query: Query<'_>) -> String {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let pairs: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let mark = if pairs.is_empty() { "" } else { "?" };
        versioned(self.version, &format!("{path}{mark}{}", pairs.join("&")))
    }
}

fn versioned(version: ApiVersion, path: &str) -> String {
    format!("/v{version}{path}")
}

/// Sends a request, with the registry's credentials (`X-Registry-Auth`) if it needs any. A status other than success is
/// returned as the engine's error.
async fn ask(
    transport: &Transport,
    method: Method,
    path: &str,
    body: Bytes,
    login: Option<&HeaderValue>,
) -> Result<Response<Incoming>, Error> {
    let mut request = Request::builder().method(method).header(header::CONTENT_TYPE, "application/json");
    if let Some(login) = login {
        request = request.header("x-registry-auth", login);
    }
    let response = transport.send(request.body(body_full(body))?, path).await?;
    let status = response.status();
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        return Ok(response);
    }
    let body = read(response).await?;
    let message = match serde_json::from_slice::<Value>(&body) {
        Ok(said) if said.is_object() => answer::text(&said, "/message").unwrap_or_default().to_owned(),
        _ => String::from_utf8_lossy(&body).into_owned(),
    };
    Err(Error::DockerResponseServerError { status_code: status.as_u16(), message })
}

async fn json(response: Response<Incoming>) -> Result<Value, Error> {
    Ok(serde_json::from_slice(&read(response).await?)?)
}

async fn read(response: Response<Incoming>) -> Result<Bytes, Error> {
    let whole = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
    let whole = whole.map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(broken) => Error::from(*broken),
        Err(_) => Error::DockerStreamError {
            error: format!("the response is larger than {} MiB", ANSWER_LIMIT >> 20),
        },
    })?;
    Ok(whole.to_bytes())
}

/// Converts the credentials to URL-safe base64. The library writes plain base64, but the engine expects the URL-safe form
/// and silently ignores credentials that it cannot decode. A password with `~`, `?` or `>` in the wrong place would lead
/// to an anonymous pull.
fn make_login_url_safe(request: &mut BollardRequest) {
    let Some(login) = request.headers_mut().get_mut("x-registry-auth") else { return };
    let safe: Vec<u8> = login
        .as_bytes()
        .iter()
        .map(|b| match b {
            b'+' => b'-',
            b'/' => b'_',
            other => *other,
        })
        .collect();
    if let Ok(mut safe) = HeaderValue::from_bytes(&safe) {
        safe.set_sensitive(true);
        *login = safe;
    }
}
