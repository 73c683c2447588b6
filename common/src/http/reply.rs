//! Answers: JSON, errors in their one shape, and the headers that every answer carries.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response as HttpResponse, StatusCode};
use serde::Serialize;

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
