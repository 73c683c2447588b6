//! Answers: JSON, errors in their one shape, and the headers that every answer carries.

use bytes::Bytes;
use futures_util::stream;
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

/// Least size of the parts in which a long list is sent.
const PART: usize = 16 * 1024;

/// An answer whose JSON body ends in a list that may be long: `head` is all of it with the list empty, which is its last field.
/// Each element is asked for and written when it is about to be sent, so that they are never all there at once.
pub fn json_with_list<T, U>(head: &T, list: impl Iterator<Item = U> + Send + Sync + 'static) -> Response
where
    T: Serialize + ?Sized,
    U: Serialize,
{
    let begin = serde_json::to_vec(head).ok().and_then(|text| Some(text.strip_suffix(b"]}")?.to_vec()));
    let Some(begin) = begin else {
        tracing::error!("an answer cannot be written as JSON: it does not end in a list");
        return error(StatusCode::INTERNAL_SERVER_ERROR, "internal error");
    };
    let mut parts = ListParts { list, written: begin, is_begun: false, is_over: false };
    // A short one is sent as any other, with its length.
    let mut response = match parts.next() {
        Some(Ok(first)) if parts.is_over => HttpResponse::new(first.into()),
        Some(first) => warp::reply::stream(stream::iter(std::iter::once(first).chain(parts))).into_response(),
        None => HttpResponse::default(),
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The parts of an answer that ends in a list.
struct ListParts<I> {
    list: I,
    written: Vec<u8>,
    is_begun: bool,
    is_over: bool,
}

impl<U: Serialize, I: Iterator<Item = U>> Iterator for ListParts<I> {
    type Item = Result<Vec<u8>, serde_json::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over && self.written.len() < PART {
            let Some(element) = self.list.next() else {
                self.is_over = true;
                self.written.extend(b"]}");
                break;
            };
            if std::mem::replace(&mut self.is_begun, true) {
                self.written.push(b',');
            }
            if let Err(cause) = serde_json::to_writer(&mut self.written, &element) {
                self.is_over = true;
                self.written.clear();
                return Some(Err(cause));
            }
        }
        let part = std::mem::take(&mut self.written);
        (!part.is_empty()).then_some(Ok(part))
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use http_body::Body as _;
    use serde_json::{Value, json};

    use super::*;

    /// Whether its length is known, and its body.
    async fn answer(count: usize) -> (bool, Value) {
        let list = (0..count).map(|n| json!({"n": n, "text": "x".repeat(100)}));
        let answer = json_with_list(&json!({"count": count, "list": []}), list);
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
        let mut body = pin!(answer.into_body());
        let is_known = body.size_hint().exact().is_some();
        let mut whole = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            whole.extend(frame.expect("a part").into_data().expect("data"));
        }
        (is_known, serde_json::from_slice(&whole).expect("JSON"))
    }

    #[tokio::test]
    async fn a_list_is_whole_however_long_it_is_and_only_a_long_one_comes_in_parts() {
        for (count, is_short) in [(0, true), (1, true), (10, true), (1000, false)] {
            let (is_known, body) = answer(count).await;
            assert_eq!(is_known, is_short, "{count}");
            assert_eq!(body["count"], count);
            let numbers = body["list"].as_array().expect("a list").iter().map(|one| one["n"].as_u64());
            assert!(numbers.eq((0..count as u64).map(Some)), "{count}");
        }
    }

    #[test]
    fn what_does_not_end_in_a_list_is_our_own_fault() {
        for head in [json!({"list": [], "more": 1}), json!(1), json!({})] {
            assert_eq!(json_with_list(&head, std::iter::empty::<u8>()).status(), 500, "{head}");
        }
    }
}
