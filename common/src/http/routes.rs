//! The table of endpoints: one line each, with 404, 405 and `HEAD` as HTTP wants them, behind one warp filter.
//!
//! warp's own method and path filters know neither `Allow` nor `HEAD` nor percent-encoding, and a rejection of one
//! route turns into the answer of another; so warp hands over the parts of a request, and the table decides.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::{FutureExt, Stream, StreamExt};
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, EXPECT, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;
use warp::Filter;
use warp::filters::BoxedFilter;
use warp::path::FullPath;

use super::reply::harden;
use super::{Arrival, Guard, Limits, Response, error};
use crate::supervisor::panic_text;

/// How long the rest of a body that is too large is read and forgotten, so that a client that sends first and reads
/// then gets its answer.
const FORGETTING: Duration = Duration::from_secs(2);

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
    /// As sent, whole.
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

/// Leave to be read and handled; given back when the answer is there.
pub type Permit = Box<dyn Send>;

/// Looks at a request before its body is read.
type Admit<S> = fn(&S, &HeaderMap) -> Result<Permit, Response>;

struct Route<S> {
    method: Method,
    pattern: Vec<Segment>,
    admit: Admit<S>,
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

    /// Adds an endpoint. In `path`, `{name}` stands for one segment. What `GET` serves, `HEAD` serves too. Of two
    /// endpoints that fit a path the earlier one is taken.
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
        self.route_admitting(method, path, |_, _| Ok(Box::new(())), handler)
    }

    /// The same for an endpoint with a login: `admit` refuses by the head alone, and the body of a stranger is not
    /// kept. What it gives lasts as long as the request.
    #[must_use]
    pub fn route_admitting<F>(
        mut self,
        method: Method,
        path: &'static str,
        admit: fn(&S, &HeaderMap) -> Result<Permit, Response>,
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
        self.routes.push(Route { method, pattern, admit, handler });
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
            .and(warp::body::stream())
            .then(move |method, path: FullPath, query: String, headers, arrival: Option<Arrival>, body| {
                let table = table.clone();
                async move {
                    let arrival = arrival.unwrap_or_default();
                    table.answer(method, path.as_str(), &query, headers, arrival, body).await
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

impl<S: Clone + Send + Sync + 'static> Table<S> {
    async fn answer(
        &self,
        method: Method,
        path: &str,
        query: &str,
        headers: HeaderMap,
        arrival: Arrival,
        body: impl Stream<Item = Result<impl Buf, warp::Error>> + Send,
    ) -> Response {
        if let Err(refusal) = self.guard.check(&method, path, arrival.version, &headers) {
            return refusal;
        }
        let (route, params) = match self.find(&method, path) {
            Ok(found) => found,
            Err(refusal) => return refusal,
        };
        if !is_well_encoded(query) {
            return error(StatusCode::BAD_REQUEST, "the query is not percent-encoded UTF-8");
        }
        let _permit = match (route.admit)(&self.state, &headers) {
            Ok(permit) => permit,
            Err(refusal) => return self.turn_away(refusal, &headers, body).await,
        };
        let body = match self.read(&route.method, &headers, body).await {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let mut query_map = HashMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            query_map.entry(name.into_owned()).or_insert_with(|| value.into_owned());
        }
        let request =
            Request { method: route.method.clone(), params, query: query_map, headers, body, arrival };
        // Both the call and the future that it gives may panic.
        let answer = AssertUnwindSafe(async { (route.handler)(self.state.clone(), request).await });
        answer.catch_unwind().await.unwrap_or_else(|panic| {
            tracing::error!(%method, path, panic = panic_text(panic.as_ref()), "a handler panicked");
            error(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
        })
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

    /// The refusal for a request whose body nobody wants: what has come of it is forgotten, so that the client gets
    /// to read the answer; the connection goes on when that was all.
    async fn turn_away(
        &self,
        refusal: Response,
        headers: &HeaderMap,
        body: impl Stream<Item = Result<impl Buf, warp::Error>>,
    ) -> Response {
        if headers.contains_key(EXPECT) {
            return closing(refusal);
        }
        let (limit, mut length) = (self.limits.body_bytes, 0);
        let mut body = std::pin::pin!(body);
        let ended = timeout(FORGETTING, async {
            while let Some(part) = body.next().await {
                length += part.map_or(limit, |part| part.remaining());
                if length > limit {
                    return false;
                }
            }
            true
        });
        if ended.await == Ok(true) { refusal } else { closing(refusal) }
    }

    /// The whole body, or the answer that refuses it. What comes with a `GET` is counted but not kept.
    async fn read(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body: impl Stream<Item = Result<impl Buf, warp::Error>>,
    ) -> Result<Bytes, Response> {
        let limit = self.limits.body_bytes;
        let too_large = || {
            error(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than the {limit} bytes allowed"))
        };
        let announced =
            headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limit as u64) && headers.contains_key(EXPECT) {
            // It waits for our word before it sends.
            return Err(closing(too_large()));
        }
        let mut body = std::pin::pin!(body);
        let whole = async {
            let mut bytes = BytesMut::new();
            let mut length = 0;
            while let Some(part) = body.next().await {
                let Ok(mut part) = part else {
                    return Err(error(StatusCode::BAD_REQUEST, "the body ended before its end"));
                };
                length += part.remaining();
                if length > limit {
                    return Err(too_large());
                }
                if *method != Method::GET {
                    bytes.put(&mut part);
                }
            }
            Ok(bytes.freeze())
        };
        let outcome = timeout(self.limits.body_time, whole).await.unwrap_or_else(|_| {
            let seconds = self.limits.body_time.as_secs();
            Err(error(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not arrive within {seconds} seconds"),
            ))
        });
        if let Err(refusal) = outcome {
            if refusal.status() == StatusCode::PAYLOAD_TOO_LARGE {
                let _ = timeout(FORGETTING, async { while let Some(Ok(_)) = body.next().await {} }).await;
            }
            return Err(closing(refusal));
        }
        outcome
    }
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
