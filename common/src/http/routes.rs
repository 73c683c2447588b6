//! The table of endpoints: one line each, with 404, 405 and `HEAD` as HTTP wants them, behind one warp filter.
//!
//! warp's own method and path filters know neither `Allow` nor `HEAD` nor percent-encoding, and a rejection of one
//! route turns into the answer of another; so warp hands over the parts of a request, and the table decides.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, Stream, StreamExt};
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, EXPECT, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, timeout};
use warp::Filter;
use warp::filters::BoxedFilter;
use warp::path::FullPath;

use super::line::{Line, Phase};
use super::reply::harden;
use super::{Admitted, Arrival, Bodies, Guard, Limits, Response, error};
use crate::supervisor::panic_text;

/// A body that nobody wants is read and forgotten for so long and up to so many bytes, so that its connection can go on;
/// else the connection ends with the answer.
const FORGETTING: Duration = Duration::from_millis(500);
const FORGOTTEN: usize = 64 * 1024;

/// What a handler gets.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET` also stands for `HEAD`.
    pub method: Method,
    /// Values of the `{names}` in the path, percent-decoded.
    pub params: HashMap<&'static str, String>,
    /// Query parameters, decoded; of repeated ones the first.
    pub query: HashMap<String, String>,
    /// As sent.
    pub headers: HeaderMap,
    /// As sent, whole; empty where the endpoint reads none.
    pub body: Bytes,
    /// Who asks, and how.
    pub arrival: Arrival,
}

impl Request {
    /// The value of a `{name}` in the path; empty where the path has none of that name.
    pub fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }
}

type Handler<S> = Box<dyn Fn(S, Request) -> Pin<Box<dyn Future<Output = Response> + Send>> + Send + Sync>;

/// Looks at a request before its body is read.
type Admit<S> = fn(&S, &HeaderMap, &Arrival) -> Result<Admitted, Response>;

struct Route<S> {
    method: Method,
    pattern: Vec<Segment>,
    /// Who may send a body, and how much; without it none is read.
    body: Option<(Admit<S>, Bodies)>,
    handler: Handler<S>,
}

enum Segment {
    Text(&'static str),
    Param(&'static str),
}

/// Endpoints, and the state that their handlers share.
pub struct Routes<S> {
    state: S,
    routes: Vec<Route<S>>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// No endpoints yet.
    pub fn new(state: S) -> Self {
        Self { state, routes: Vec::new() }
    }

    /// Adds an endpoint that uses no body: one that comes all the same is never kept, and is under the limit, too. In `path`, `{name}` stands for
    /// one segment. What `GET` serves, `HEAD` serves too. Of two endpoints that fit a path the earlier one is taken.
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

    /// Adds an endpoint that reads a body. `admit` judges by the head alone, and what it refuses is not read; what it
    /// gives lasts as long as the request. `bodies` is what may be kept.
    #[must_use]
    pub fn route_with_body<F>(
        self,
        method: Method,
        path: &'static str,
        bodies: &Bodies,
        admit: fn(&S, &HeaderMap, &Arrival) -> Result<Admitted, Response>,
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
        self.routes.push(Route { method, pattern, body, handler });
        self
    }

    /// The filter that answers every request.
    pub fn into_filter(self, guard: Guard, limits: Limits) -> BoxedFilter<(Response,)> {
        let table = Arc::new(Table { state: self.state, routes: self.routes, guard, limits });
        warp::method()
            .and(warp::path::full())
            .and(warp::query::raw().or(warp::any().map(String::new)).unify())
            .and(warp::header::headers_cloned())
            .and(warp::ext::optional::<Arrival>())
            .and(warp::ext::optional::<Arc<Line>>())
            .and(warp::body::stream())
            .then(move |method, path: FullPath, query: String, headers, arrival, line, body| {
                let table = table.clone();
                let arrival: Option<Arrival> = arrival;
                async move {
                    let head = Head { method, headers, arrival: arrival.unwrap_or_default(), line };
                    table.answer(head, path.as_str(), &query, body).await
                }
            })
            .map(harden)
            .boxed()
    }
}

struct Table<S> {
    state: S,
    routes: Vec<Route<S>>,
    guard: Guard,
    limits: Limits,
}

/// A request without its target and its body.
struct Head {
    method: Method,
    headers: HeaderMap,
    arrival: Arrival,
    line: Option<Arc<Line>>,
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
        if is_read || !framing.has_body || forget(&framing, body).await { answer } else { closing(answer) }
    }

    /// The answer, and whether the body was read to its end.
    async fn handle(
        &self,
        head: Head,
        path: &str,
        query: &str,
        framing: &Framing,
        body: Pin<&mut (impl Stream<Item = Result<impl Buf, warp::Error>> + Send)>,
    ) -> Result<(Response, bool), Response> {
        let Head { method, headers, arrival, line } = head;
        self.guard.check(&method, path, arrival.version, &headers)?;
        let (route, params) = self.find(&method, path)?;
        if !is_well_encoded(query) {
            return Err(error(StatusCode::BAD_REQUEST, "the query is not percent-encoded UTF-8"));
        }
        // What is admitted, and the room that its body takes, last until the answer is there.
        let mut kept = None;
        if let Some((admit, bodies)) = &route.body {
            let admitted = admit(&self.state, &headers, &arrival)?;
            framing.fits(bodies.each())?;
            let mut growing = bodies.begin(admitted.sender.clone());
            self.read(line.as_deref(), bodies.each(), body, |part| growing.push(part)).await?;
            kept = Some((growing, admitted));
        } else {
            framing.fits(self.limits.body_bytes)?;
            // Only its end tells how long a chunked body is.
            if framing.is_unannounced() {
                self.read(line.as_deref(), self.limits.body_bytes, body, |_| Ok(())).await?;
            }
        }
        let body = kept.as_mut().map(|(growing, _)| growing.take()).unwrap_or_default();
        let mut query_map = HashMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            query_map.entry(name.into_owned()).or_insert_with(|| value.into_owned());
        }
        let request =
            Request { method: route.method.clone(), params, query: query_map, headers, body, arrival };
        // Both the call and the future that it gives may panic.
        let answer = AssertUnwindSafe(async { (route.handler)(self.state.clone(), request).await });
        let answer = answer.catch_unwind().await.unwrap_or_else(|panic| {
            tracing::error!(%method, path, panic = panic_text(panic.as_ref()), "a handler panicked");
            error(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
        });
        Ok((answer, kept.is_some() || framing.is_unannounced()))
    }

    /// The endpoint for a request and the values in its path, or the answer that refuses it.
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
        for route in &self.routes {
            let Some(params) = route.fits(&segments) else { continue };
            if route.method == *wanted {
                return Ok((route, params));
            }
            allow.push(route.method.as_str());
            if route.method == Method::GET {
                allow.push("HEAD");
            }
        }
        if allow.is_empty() {
            return Err(error(StatusCode::NOT_FOUND, "there is nothing at this path"));
        }
        let allow = allow.join(", ");
        let text = format!("the method {method} is not allowed here, only {allow}");
        let mut refusal = error(StatusCode::METHOD_NOT_ALLOWED, text);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_str(&allow).expect("methods are header text"));
        Err(refusal)
    }

    /// Reads the whole body and passes its parts to `keep`, or gives the answer that refuses it.
    async fn read(
        &self,
        line: Option<&Line>,
        limit: usize,
        mut body: Pin<&mut (impl Stream<Item = Result<impl Buf, warp::Error>> + Send)>,
        mut keep: impl FnMut(&[u8]) -> Result<(), Response> + Send,
    ) -> Result<(), Response> {
        if let Some(line) = line {
            line.enter(Phase::Body(Instant::now()));
        }
        let whole = async {
            let mut length = 0;
            while let Some(part) = body.next().await {
                let Ok(mut part) = part else {
                    return Err(error(StatusCode::BAD_REQUEST, "the body ended before its end"));
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
        if let Some(line) = line {
            line.enter(Phase::Handling);
        }
        Ok(())
    }
}

/// What a head says about its body.
struct Framing {
    has_body: bool,
    announced: Option<u64>,
    /// It waits for our word before it sends.
    waits: bool,
}

impl Framing {
    fn of(headers: &HeaderMap) -> Self {
        let announced =
            headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let has_body = headers.contains_key(TRANSFER_ENCODING) || announced.is_some_and(|length| length > 0);
        Self { has_body, announced, waits: headers.contains_key(EXPECT) }
    }

    /// Whether there is a body whose length the head does not tell.
    fn is_unannounced(&self) -> bool {
        self.has_body && self.announced.is_none()
    }

    fn fits(&self, limit: usize) -> Result<(), Response> {
        if self.announced.is_some_and(|length| length > limit as u64) {
            Err(too_large(limit))
        } else {
            Ok(())
        }
    }
}

fn too_large(limit: usize) -> Response {
    error(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than the {limit} bytes allowed"))
}

/// Reads a body that nobody wants, and keeps nothing; whether it came to its end.
async fn forget(
    framing: &Framing,
    mut body: Pin<&mut (impl Stream<Item = Result<impl Buf, warp::Error>> + Send)>,
) -> bool {
    if framing.waits || framing.announced.is_some_and(|length| length > FORGOTTEN as u64) {
        return false;
    }
    let mut length = 0;
    let ended = timeout(FORGETTING, async {
        while let Some(part) = body.next().await {
            length += part.map_or(FORGOTTEN, |part| part.remaining());
            if length > FORGOTTEN {
                return false;
            }
        }
        true
    });
    ended.await == Ok(true)
}

/// The connection ends with this answer: what the client still sends is no request.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

impl<S> Route<S> {
    fn fits(&self, segments: &[String]) -> Option<HashMap<&'static str, String>> {
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

/// A path segment's text; `None` when it is badly encoded.
fn decode(segment: &str) -> Option<String> {
    if !is_well_encoded(segment) {
        return None;
    }
    percent_decode_str(segment).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// Whether every `%` is followed by two hex digits, and the bytes so written are UTF-8.
fn is_well_encoded(text: &str) -> bool {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    let mut escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    escapes.all(|(at, _)| is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2)))
        && percent_decode_str(text).decode_utf8().is_ok()
}
