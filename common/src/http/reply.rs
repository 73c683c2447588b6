//! Answers: JSON, errors in their one shape, and the headers that every answer carries.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response as HttpResponse, StatusCode};
use serde::Serialize;
use warp::Reply as _;

use super::Response;
use crate::wire::ErrorBody;

/// An answer with a JSON body.
pub fn json<T: Serialize + ?Sized>(status: StatusCode, value: &T) -> Response {
    let (status, body) = match serde_json::to_vec(value) {
        Ok(body) => (status, body),
        Err(cause) => {
            tracing::error!(%cause, "an answer cannot be written as JSON");
            (StatusCode::INTERNAL_SERVER_ERROR, br#"{"error":"internal error"}"#.to_vec())
        }
    };
    let mut response = HttpResponse::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer that is sent in parts, but has an end: a client that does not take it is cut as with any other answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct HasEnd {
    /// About how many bytes it keeps in memory until then.
    pub(super) held: usize,
}

/// About how many bytes an element keeps that is still to be written.
const ELEMENT: usize = 2048;
/// Bytes that are handed on at once.
const PART: usize = 16 * 1024;

/// An answer with a JSON object whose last field is an array. `object` has it empty. Each element is made and written when
/// those before it were sent, so that a long answer takes no memory of its size: what is freed in one piece goes back
/// to the system only in part. For its length all are made once before, so `elements` must be the same each time.
pub fn json_with_array<T: Serialize>(
    object: &impl Serialize,
    elements: impl Iterator<Item = T> + Clone + Send + Sync + 'static,
) -> Response {
    let mut head = match serde_json::to_vec(object) {
        Ok(head) if head.ends_with(b"[]}") => head,
        written => {
            tracing::error!(?written, "an answer cannot be written as JSON");
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
            tracing::error!(%cause, "an answer cannot be written as JSON");
            return error(StatusCode::INTERNAL_SERVER_ERROR, "internal error");
        }
    };
    let mut response = warp::reply::stream(futures_util::stream::iter(parts)).into_response();
    response.extensions_mut().insert(HasEnd { held });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, length.into());
    response
}

/// The parts of such an answer.
#[derive(Clone)]
struct Parts<I> {
    /// How the next part begins; `None` after the last one.
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

/// An answer that says what was wrong and why.
pub fn error(status: StatusCode, text: impl Into<String>) -> Response {
    json(status, &ErrorBody { error: text.into() })
}

/// The bytes of an answer that is written without hyper: a refusal after which the connection is closed.
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

/// The same for a refusal that hyper makes by itself, by the last two digits of its code.
pub(super) fn raw_for_status(code: &[u8]) -> Option<Bytes> {
    let (status, text) = match code {
        b"00" => (StatusCode::BAD_REQUEST, "the request is not well-formed HTTP"),
        b"14" => (StatusCode::URI_TOO_LONG, "the request's target is too long"),
        b"31" => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "the request's head is larger than 16 KiB or has more than 100 headers",
        ),
        _ => return None,
    };
    Some(raw(status, text, None))
}

/// Adds the headers that keep a browser from using an answer for anything but what it is (DECISIONS 6).
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
    // A page brings its own rules: the policy that allows its style and script, and that it may be kept.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static("default-src 'none'"));
    response
}
