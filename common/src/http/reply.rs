//! Answers: JSON, errors in their one shape, and the headers that every answer carries.

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
