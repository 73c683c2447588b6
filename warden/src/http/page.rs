//! `GET /`: the dashboard as one document, or the form that asks for the token. `POST /logout`.

use std::sync::LazyLock;

use evenkeel_common::http::{HeaderMap, Request, Response, StatusCode, json};
use evenkeel_common::page::{self, Document};
use http::header::{ACCEPT, CACHE_CONTROL, HeaderValue, SET_COOKIE};

use super::{Api, challenge, unauthorised};
use crate::access;

const STYLE: &str = include_str!("../ui/page.css");
static DASHBOARD: LazyLock<Document> =
    LazyLock::new(|| page::document(include_str!("../ui/page.html"), STYLE, include_str!("../ui/page.js")));
static LOGIN: LazyLock<Document> =
    LazyLock::new(|| page::document(include_str!("../ui/login.html"), STYLE, include_str!("../ui/login.js")));

pub(super) async fn page(api: Api, request: Request) -> Response {
    if !api.admits_page(&request) {
        if !wants_html(&request.headers) {
            return unauthorised("api.token is needed: as ?token= or as the cookie \"token\"");
        }
        let mut form = challenge(LOGIN.reply(StatusCode::UNAUTHORIZED, &request.headers));
        form.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return form;
    }
    let mut response = DASHBOARD.reply(StatusCode::OK, &request.headers);
    if let Some(token) = request.query.get(access::TOKEN).filter(|token| api.live().access.is_api(token)) {
        put_cookie(&mut response, &access::set_cookie(token, is_https(&request.headers)));
    }
    response
}

/// Takes the cookie back, which no script can. It needs no token: there is nothing to lose but a login, and the Origin
/// rule keeps pages of other sites away.
pub(super) async fn logout(_: Api, request: Request) -> Response {
    let mut response = json(StatusCode::OK, &serde_json::json!({ "status": "logged_out" }));
    put_cookie(&mut response, &access::forget_cookie(is_https(&request.headers)));
    response
}

fn put_cookie(response: &mut Response, cookie: &str) {
    let cookie = HeaderValue::from_str(cookie).expect("what is percent-encoded is header text");
    response.headers_mut().insert(SET_COOKIE, cookie);
}

fn is_https(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https")
}

/// Whether a person's browser asks.
fn wants_html(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).into_iter().filter_map(|accept| accept.to_str().ok());
    accepted.any(|accept| accept.contains("text/html"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_are_whole() {
        for document in [&DASHBOARD, &LOGIN] {
            let text = std::str::from_utf8(document.text()).unwrap();
            assert!(text.starts_with("<!doctype html>"));
            assert!(!text.contains("<!--"), "a mark is left");
            assert!(document.size() < 150 * 1024, "{} bytes", document.size());
        }
    }
}
