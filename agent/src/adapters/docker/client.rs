//! Requests in the negotiated API version: plain ones are made here, those with a codec of their own by the client
//! library.
//!
//! The library (bollard 0.21) puts no version into its paths, so the transport under it does. Engine 29 and the proxies
//! in front of engines refuse a version that they do not know, and an unversioned path means another version with every
//! engine.

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
use super::version::{ApiVersion, Spoken};

/// The library's own limit, in whole seconds. It only counts until an answer begins; calls set shorter ones.
pub(super) const ANSWER_LIMIT_SECS: u64 = 120;

/// No answer about some containers or images is larger. One that is must not take the agent's memory.
const ANSWER_LIMIT: usize = 64 << 20;

/// A query's parameters.
pub(super) type Query<'a> = &'a [(&'a str, &'a str)];

/// A client that speaks one version.
#[derive(Clone)]
pub(super) struct Client {
    /// For what the library encodes or decodes: logs, pulls, and changes without an answer.
    pub(super) docker: Docker,
    transport: Arc<Transport>,
    pub(super) version: ApiVersion,
    /// Whether the engine is podman.
    pub(super) podman: bool,
}

/// Negotiates the API version with an engine, by a request that names none.
pub(super) async fn negotiate(transport: &Arc<Transport>) -> Result<Client, Error> {
    let told = match ask(transport, Method::GET, "/version", Bytes::new()).await {
        Ok(response) => Spoken::told(&json(response).await?),
        // A proxy may forbid it. `/_ping`, which proxies let through, names the newest version in a header.
        Err(Error::DockerResponseServerError { status_code: 400..=499, .. }) => {
            let pong = ask(transport, Method::GET, "/_ping", Bytes::new()).await?;
            let header = pong.headers().get("api-version").and_then(|version| version.to_str().ok());
            Spoken::hinted(header.unwrap_or_default())
        }
        Err(error) => return Err(error),
    };
    let version = told.agreed();
    if version.is_tested() {
        tracing::debug!(%version, podman = told.podman, "agreed upon a version of the engine's API");
    } else {
        tracing::warn!(%version, "the engine speaks no version of its API that this program was tested with");
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
    // The address only serves to build a URL, of which the transport takes the path.
    let docker = Docker::connect_with_custom_transport(
        send,
        Some("http://engine"),
        ANSWER_LIMIT_SECS,
        &version.for_client(),
    )?;
    Ok(Client { docker, transport: transport.clone(), version, podman: told.podman })
}

impl Client {
    /// The answer to a question.
    pub(super) async fn get(&self, path: &str, query: Query<'_>) -> Result<Value, Error> {
        json(self.stream(path, query).await?).await
    }

    /// The head of a streamed answer.
    pub(super) async fn stream(&self, path: &str, query: Query<'_>) -> Result<Response<Incoming>, Error> {
        ask(&self.transport, Method::GET, &self.path(path, query), Bytes::new()).await
    }

    /// The answer to a question that the engine passes on to a registry, with its login.
    pub(super) async fn get_with_login(
        &self,
        path: &str,
        login: Option<&HeaderValue>,
    ) -> Result<Value, Error> {
        let path = self.path(path, &[]);
        json(ask_with(&self.transport, Method::GET, &path, Bytes::new(), login).await?).await
    }

    /// A change that the engine needs the login of a registry for.
    pub(super) async fn send_with_login(
        &self,
        path: &str,
        query: Query<'_>,
        body: Bytes,
        login: Option<&HeaderValue>,
    ) -> Result<(), Error> {
        let path = self.path(path, query);
        let answer = ask_with(&self.transport, Method::POST, &path, body, login).await?;
        let _ = Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await;
        Ok(())
    }

    /// A change. The body of a successful answer does not matter.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        query: Query<'_>,
        body: Bytes,
    ) -> Result<(), Error> {
        let answer = ask(&self.transport, method, &self.path(path, query), body).await?;
        // Read to its end, the connection can be used again.
        let _ = Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await;
        Ok(())
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

/// One request. An answer that is no success is the engine's error.
async fn ask(
    transport: &Transport,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Response<Incoming>, Error> {
    ask_with(transport, method, path, body, None).await
}

/// The same with the login of a registry (`X-Registry-Auth`).
async fn ask_with(
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
            error: format!("the answer is larger than {} MiB", ANSWER_LIMIT >> 20),
        },
    })?;
    Ok(whole.to_bytes())
}

/// The library writes the login in plain base64, the engine reads it URL-safe and silently goes on without one
/// where it can't: a password with `~`, `?` or `>` in the wrong place would be an anonymous pull.
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
