//! Responses: JSON, errors, and the headers that every response has.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response as HttpResponse, StatusCode};
use serde::Serialize;

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

/// An error response.
pub fn error(status: StatusCode, text: impl Into<String>) -> Response {
    json(status, &ErrorBody { error: text.into() })
}

/// An error response with `Retry-After`, in seconds.
pub fn retry_later(status: StatusCode, text: impl Into<String>, seconds: u16) -> Response {
    let mut refusal = error(status, text);
    refusal.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    refusal
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
