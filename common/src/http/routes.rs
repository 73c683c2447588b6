//! The routing table behind one warp filter, with 404, 405 and `HEAD` as HTTP requires.
//!
//! warp's method and path filters do not support `Allow`, `HEAD` or percent-encoding, and a rejection in one route can
//! surface as the response of another. So warp only extracts the parts of a request, and this table routes it.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, Stream, StreamExt};
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, EXPECT, HeaderValue, LOCATION, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, timeout};
use warp::Filter;
use warp::filters::BoxedFilter;
use warp::path::FullPath;

use super::base_path::Place;
use super::connection::{Connection, Phase};
use super::reply::harden;
use super::{Admitted, Arrival, BasePath, Bodies, Guard, Limits, Response, error};
use crate::supervisor::panic_text;

/// An unused body is read and discarded for at most this time and up to this many bytes, so that the connection can be
/// reused. If it is longer or slower, the connection is closed after the response.
const DISCARD_TIME: Duration = Duration::from_millis(500);
const DISCARD_BYTES: usize = 64 * 1024;

/// The request that a handler receives.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET` for `HEAD` requests as well.
    pub method: Method,
    /// Values of the `{names}` in the path, percent-decoded.
    pub params: HashMap<&'static str, String>,
    /// Query parameters, decoded; the first one of repeated parameters.
    pub query: HashMap<String, String>,
    /// Headers as sent.
    pub headers: HeaderMap,
    /// The complete body as sent; empty if the endpoint does not read it.
    pub body: Bytes,
    /// The peer and the HTTP version.
    pub arrival: Arrival,
    /// The path below which the program is served, for links.
    pub base: BasePath,
}

impl Request {
    /// The value of a `{name}` in the path; empty if the path has no such parameter.
    pub fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }
}

type Handler<S> = Box<dyn Fn(S, Request) -> Pin<Box<dyn Future<Output = Response> + Send>> + Send + Sync>;

/// Decides whether to read the body of a request, from its headers alone.
pub(super) type Admit<S> = fn(&S, &HeaderMap, &Arrival) -> Result<Admitted, Response>;

struct Route<S> {
    method: Method,
    pattern: Vec<Segment>,
    /// Who may send a body, and its budget; `None` if the body is not used.
    body: Option<(Admit<S>, Bodies)>,
    handler: Handler<S>,
}

enum Segment {
    Text(&'static str),
    Param(&'static str),
}

/// The endpoints, and the state that their handlers share.
pub struct Routes<S> {
    state: S,
    rows: Vec<Route<S>>,
    base: BasePath,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// Creates an empty table.
    pub fn new(state: S) -> Self {
        Self { state, rows: Vec::new(), base: BasePath::default() }
    }

    /// Serves all endpoints below this path, and `/health` outside as well.
    #[must_use]
    pub fn below(mut self, base: BasePath) -> Self {
        self.base = base;
        self
    }

    /// Adds an endpoint that uses no body. If a client sends one, it is not stored, but its size is still limited. In
    /// `path`, `{name}` matches one segment. `GET` endpoints also serve `HEAD`. If two endpoints match a path, the first
    /// one is used.
    #[must_use]
    pub fn route<F>(
        self,
        method: Method,
        path: &'static str,
        handler: impl Fn(S, Request) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.add(method, path, None, handler)
    }

    /// Adds an endpoint that reads a body. `admit` decides from the headers alone, and rejected bodies are not read; its
    /// permit is held as long as the request. `bodies` is the memory budget.
    #[must_use]
    pub fn route_with_body<F>(
        self,
        method: Method,
        path: &'static str,
        bodies: &Bodies,
        admit: Admit<S>,
        handler: impl Fn(S, Request) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.add(method, path, Some((admit, bodies.clone())), handler)
    }

    fn add<F>(
        mut self,
        method: Method,
        path: &'static str,
        body: Option<(Admit<S>, Bodies)>,
        handler: impl Fn(S, Request) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let pattern = path.split('/').map(|segment| {
            match segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}')) {
                Some(name) => Segment::Param(name),
                None => Segment::Text(segment),
            }
        });
        let pattern = pattern.collect();
        let handler: Handler<S> = Box::new(move |state, request| Box::pin(handler(state, request)));
        self.rows.push(Route { method, pattern, body, handler });
        self
    }

    /// Builds the filter that answers all requests.
    pub fn into_filter(self, guard: Guard, limits: Limits) -> BoxedFilter<(Response,)> {
        let table = Arc::new(Table { state: self.state, rows: self.rows, base: self.base, guard, limits });
        warp::method()
            .and(warp::path::full())
            .and(warp::query::raw().or(warp::any().map(String::new)).unify())
            .and(warp::header::headers_cloned())
            .and(warp::ext::optional::<Arrival>())
            .and(warp::ext::optional::<Arc<Connection>>())
            .and(warp::body::stream())
            .then(move |method, path: FullPath, query: String, headers, arrival, conn, body| {
                let table = table.clone();
                let arrival: Option<Arrival> = arrival;
                async move {
                    let head = Head { method, headers, arrival: arrival.unwrap_or_default(), conn };
                    table.answer(head, path.as_str(), &query, body).await
                }
            })
            .map(harden)
            .boxed()
    }
}

struct Table<S> {
    state: S,
    rows: Vec<Route<S>>,
    base: BasePath,
    guard: Guard,
    limits: Limits,
}

/// The parts of a request other than its target and body.
struct Head {
    method: Method,
    headers: HeaderMap,
    arrival: Arrival,
    conn: Option<Arc<Connection>>,
}

impl<S: Clone + Send + Sync + 'static> Table<S> {
    async fn answer(
        &self,
        head: Head,
        path: &str,
        query: &str,
        body: impl Stream<Item = Result<impl Buf, warp::Error>> + Send,
    ) -> Response {
        let mut body = std::pin::pin!(body);
        let framing = Framing::of(&head.headers);
        let (answer, is_read) = match self.handle(head, path, query, &framing, body.as_mut()).await {
            Ok(answer) => answer,
            Err(refusal) => (refusal, false),
        };
        if is_read || !framing.has_body || discard(&framing, body).await { answer } else { closing(answer) }
    }

    /// Returns the response, and whether the body was read completely.
    async fn handle(
        &self,
        head: Head,
        path: &str,
        query: &str,
        framing: &Framing,
        body: Pin<&mut (impl Stream<Item = Result<impl Buf, warp::Error>> + Send)>,
    ) -> Result<(Response, bool), Response> {
        let Head { method, headers, arrival, conn } = head;
        let place = self.base.place(path);
        // Elsewhere no path is exempt from a rule. Without its slash, the base path leads to the same page.
        let ruled = match place {
            Place::Inside(path) => path,
            Place::NoSlash => "/",
            Place::Outside => "",
        };
        self.guard.check(&method, ruled, arrival.version, &headers)?;
        let path = match place {
            Place::Inside(path) => path,
            Place::NoSlash if method == Method::GET || method == Method::HEAD => {
                return Err(self.redirect_to_slash(query));
            }
            Place::NoSlash | Place::Outside => {
                let text = format!("no such path; the API is served below {} (api.base_path)", self.base);
                return Err(error(StatusCode::NOT_FOUND, text));
            }
        };
        let (route, params) = self.find(&method, path)?;
        if !is_well_encoded(query) {
            return Err(error(StatusCode::BAD_REQUEST, "the query is not percent-encoded UTF-8"));
        }
        // The permit and the charge for the body are held until the response is complete.
        let mut kept = None;
        if let Some((admit, bodies)) = &route.body {
            let admitted = admit(&self.state, &headers, &arrival)?;
            framing.check_limit(bodies.per_body())?;
            let mut growing = bodies.begin(admitted.sender.clone());
            self.read(conn.as_deref(), bodies.per_body(), body, |part| growing.push(part)).await?;
            kept = Some((growing, admitted));
        } else {
            framing.check_limit(self.limits.body_bytes)?;
            // The length of a chunked body is only known at its end.
            if framing.has_unknown_length() {
                self.read(conn.as_deref(), self.limits.body_bytes, body, |_| Ok(())).await?;
            }
        }
        let body = kept.as_mut().map(|(growing, _)| growing.take()).unwrap_or_default();
        let mut query_map = HashMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            query_map.entry(name.into_owned()).or_insert_with(|| value.into_owned());
        }
        let request = Request {
            method: route.method.clone(),
            params,
            query: query_map,
            headers,
            body,
            arrival,
            base: self.base.clone(),
        };
        // Both the call and the returned future may panic.
        let answer = AssertUnwindSafe(async { (route.handler)(self.state.clone(), request).await });
        let answer = answer.catch_unwind().await.unwrap_or_else(|panic| {
            tracing::error!(%method, path, panic = panic_text(panic.as_ref()), "a handler panicked");
            error(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
        });
        Ok((answer, kept.is_some() || framing.has_unknown_length()))
    }

    /// Redirects from the base path to the same with a slash at its end, which relative links need.
    fn redirect_to_slash(&self, query: &str) -> Response {
        let mark = if query.is_empty() { "" } else { "?" };
        let mut response = Response::default();
        *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
        if let Ok(target) = HeaderValue::from_str(&format!("{}/{mark}{query}", self.base)) {
            response.headers_mut().insert(LOCATION, target);
        }
        response
    }

    /// Returns the endpoint for a request and its path parameters, or the error response.
    fn find(
        &self,
        method: &Method,
        path: &str,
    ) -> Result<(&Route<S>, HashMap<&'static str, String>), Response> {
        let Some(segments) = path.split('/').map(decode).collect::<Option<Vec<_>>>() else {
            return Err(error(StatusCode::BAD_REQUEST, "the path is not percent-encoded UTF-8"));
        };
        let wanted = if *method == Method::HEAD { &Method::GET } else { method };
        let mut allow: Vec<&str> = Vec::new();
        for route in &self.rows {
            let Some(params) = route.matches(&segments) else { continue };
            if route.method == *wanted {
                return Ok((route, params));
            }
            allow.push(route.method.as_str());
            if route.method == Method::GET {
                allow.push("HEAD");
            }
        }
        if allow.is_empty() {
            return Err(error(StatusCode::NOT_FOUND, "no such path"));
        }
        let allow = allow.join(", ");
        let text = format!("the method {method} is not allowed here; allowed: {allow}");
        let mut refusal = error(StatusCode::METHOD_NOT_ALLOWED, text);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_str(&allow).expect("methods are header text"));
        Err(refusal)
    }

    /// Reads the complete body and passes its parts to `keep`, or returns the error response.
    async fn read(
        &self,
        conn: Option<&Connection>,
        limit: usize,
        mut body: Pin<&mut (impl Stream<Item = Result<impl Buf, warp::Error>> + Send)>,
        mut keep: impl FnMut(&[u8]) -> Result<(), Response> + Send,
    ) -> Result<(), Response> {
        if let Some(conn) = conn {
            conn.enter(Phase::Body(Instant::now()));
        }
        let whole = async {
            let mut length = 0;
            while let Some(part) = body.next().await {
                let Ok(mut part) = part else {
                    return Err(error(StatusCode::BAD_REQUEST, "the body is incomplete or malformed"));
                };
                length += part.remaining();
                if length > limit {
                    return Err(too_large(limit));
                }
                while part.has_remaining() {
                    keep(part.chunk())?;
                    part.advance(part.chunk().len());
                }
            }
            Ok(())
        };
        timeout(self.limits.body_time, whole).await.unwrap_or_else(|_| {
            let seconds = self.limits.body_time.as_secs();
            Err(error(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not arrive within {seconds} seconds"),
            ))
        })?;
        if let Some(conn) = conn {
            conn.enter(Phase::Handling);
        }
        Ok(())
    }
}

/// The body framing according to the headers.
struct Framing {
    has_body: bool,
    content_length: Option<u64>,
    /// The client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
}

impl Framing {
    fn of(headers: &HeaderMap) -> Self {
        let content_length =
            headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let has_body =
            headers.contains_key(TRANSFER_ENCODING) || content_length.is_some_and(|length| length > 0);
        Self { has_body, content_length, expects_continue: headers.contains_key(EXPECT) }
    }

    /// Reports whether there is a body without a content length.
    fn has_unknown_length(&self) -> bool {
        self.has_body && self.content_length.is_none()
    }

    fn check_limit(&self, limit: usize) -> Result<(), Response> {
        if self.content_length.is_some_and(|length| length > limit as u64) {
            Err(too_large(limit))
        } else {
            Ok(())
        }
    }
}

fn too_large(limit: usize) -> Response {
    error(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than the limit of {limit} bytes"))
}

/// Reads and discards an unused body. Reports whether its end was reached.
async fn discard(
    framing: &Framing,
    mut body: Pin<&mut (impl Stream<Item = Result<impl Buf, warp::Error>> + Send)>,
) -> bool {
    if framing.expects_continue || framing.content_length.is_some_and(|length| length > DISCARD_BYTES as u64)
    {
        return false;
    }
    let mut length = 0;
    let ended = timeout(DISCARD_TIME, async {
        while let Some(part) = body.next().await {
            length += part.map_or(DISCARD_BYTES, |part| part.remaining());
            if length > DISCARD_BYTES {
                return false;
            }
        }
        true
    });
    ended.await == Ok(true)
}

/// Closes the connection after this response: the rest of the body must not be parsed as a request.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

impl<S> Route<S> {
    fn matches(&self, segments: &[String]) -> Option<HashMap<&'static str, String>> {
        if self.pattern.len() != segments.len() {
            return None;
        }
        let mut params = HashMap::new();
        for (pattern, segment) in self.pattern.iter().zip(segments) {
            match pattern {
                Segment::Text(text) if text == segment => {}
                Segment::Param(name) if !segment.is_empty() => {
                    params.insert(*name, segment.clone());
                }
                Segment::Text(_) | Segment::Param(_) => return None,
            }
        }
        Some(params)
    }
}

/// Decodes a path segment; `None` if its encoding is invalid.
fn decode(segment: &str) -> Option<String> {
    if !is_well_encoded(segment) {
        return None;
    }
    percent_decode_str(segment).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// Reports whether every `%` is followed by two hex digits, and the decoded bytes are UTF-8.
fn is_well_encoded(text: &str) -> bool {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    let mut escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    escapes.all(|(at, _)| is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2)))
        && percent_decode_str(text).decode_utf8().is_ok()
}
