//! Responses: JSON, errors, and the headers that every response has.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response as HttpResponse, StatusCode};
use serde::Serialize;
use warp::Reply as _;

use super::Response;
use crate::wire::ErrorBody;

/// A response with a JSON body.
pub fn json<T: Serialize + ?Sized>(status: StatusCode, value: &T) -> Response {
    let (status, body) = match serde_json::to_vec(value) {
        Ok(body) => (status, body),
        Err(cause) => {
            tracing::error!(%cause, "a response cannot be serialized to JSON");
            (StatusCode::INTERNAL_SERVER_ERROR, br#"{"error":"internal error"}"#.to_vec())
        }
    };
    let mut response = HttpResponse::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Marks a response that is streamed but finite. Unlike an event stream it is subject to the limits for finite responses.
#[derive(Debug, Clone, Copy)]
pub(super) struct FiniteStream {
    /// Approximate number of bytes that it holds in memory until it is sent.
    pub(super) held: usize,
}

/// Approximate size of an element that has not been serialized yet.
const ELEMENT: usize = 2048;
/// Size of a part.
const PART: usize = 16 * 1024;

/// A response with a JSON object whose last field is an array; in `object` it is empty. Elements are created and serialized
/// as they are sent, so a long response is never in memory as a whole: the allocator would return such a large block to
/// the system only in part. To compute the content length, all elements are created once beforehand, so `elements` must
/// yield the same items each time.
pub fn json_with_array<T: Serialize>(
    object: &impl Serialize,
    elements: impl Iterator<Item = T> + Clone + Send + Sync + 'static,
) -> Response {
    let mut head = match serde_json::to_vec(object) {
        Ok(head) if head.ends_with(b"[]}") => head,
        written => {
            tracing::error!(?written, "a response cannot be serialized to JSON");
            return error(StatusCode::INTERNAL_SERVER_ERROR, "internal error");
        }
    };
    head.truncate(head.len() - b"]}".len());
    let held = elements.size_hint().0.saturating_mul(ELEMENT);
    let parts = Parts { next: Some(head), elements: elements.enumerate() };
    let lengths = parts.clone().map(|part| part.map(|part| part.len()));
    let length = match lengths.sum::<Result<usize, _>>() {
        Ok(length) => length,
        Err(cause) => {
            tracing::error!(%cause, "a response cannot be serialized to JSON");
            return error(StatusCode::INTERNAL_SERVER_ERROR, "internal error");
        }
    };
    let mut response = warp::reply::stream(futures_util::stream::iter(parts)).into_response();
    response.extensions_mut().insert(FiniteStream { held });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, length.into());
    response
}

/// The parts of such a response.
#[derive(Clone)]
struct Parts<I> {
    /// The beginning of the next part; `None` after the last one.
    next: Option<Vec<u8>>,
    elements: std::iter::Enumerate<I>,
}

impl<T: Serialize, I: Iterator<Item = T>> Iterator for Parts<I> {
    type Item = Result<Vec<u8>, serde_json::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut part = self.next.take()?;
        while part.len() < PART {
            let Some((n, element)) = self.elements.next() else {
                part.extend_from_slice(b"]}");
                return Some(Ok(part));
            };
            if n > 0 {
                part.push(b',');
            }
            if let Err(cause) = serde_json::to_writer(&mut part, &element) {
                return Some(Err(cause));
            }
        }
        self.next = Some(Vec::with_capacity(PART + ELEMENT));
        Some(Ok(part))
    }
}

/// An error response.
pub fn error(status: StatusCode, text: impl Into<String>) -> Response {
    json(status, &ErrorBody { error: text.into() })
}

/// The bytes of an error response that is written without hyper, after which the connection is closed.
pub(super) fn raw(status: StatusCode, text: &str, retry_after: Option<u16>) -> Bytes {
    let body = serde_json::to_vec(&ErrorBody { error: text.to_owned() }).expect("a text is JSON");
    let reason = status.canonical_reason().unwrap_or_default();
    let mut head = format!("HTTP/1.1 {} {reason}\r\n", status.as_str());
    for (name, value) in harden(error(status, text)).headers() {
        head.extend([name.as_str(), ": ", value.to_str().expect("our own headers are text"), "\r\n"]);
    }
    if let Some(seconds) = retry_after {
        head.push_str(&format!("retry-after: {seconds}\r\n"));
    }
    head.push_str(&format!("connection: close\r\ncontent-length: {}\r\n\r\n", body.len()));
    [head.into_bytes(), body].concat().into()
}

/// The same as a replacement for an error response of hyper, selected by the last two digits of its status code.
pub(super) fn raw_for_status(code: &[u8]) -> Option<Bytes> {
    let (status, text) = match code {
        b"00" => (StatusCode::BAD_REQUEST, "the request is not well-formed HTTP"),
        b"14" => (StatusCode::URI_TOO_LONG, "the request target is too long"),
        b"31" => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "the request head is larger than 16 KiB or has more than 100 headers",
        ),
        _ => return None,
    };
    Some(raw(status, text, None))
}

/// Adds the security headers that keep a browser from misinterpreting or embedding a response (DECISIONS 6).
pub(super) fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Pages set their own caching and their own policy, which allows their style and script.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static("default-src 'none'"));
    response
}
