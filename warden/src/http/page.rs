//! `GET /`: the dashboard as one document, or the form that asks for the token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_common::http::{HeaderMap, Request, Response, StatusCode};
use http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, SET_COOKIE};
use sha2::{Digest, Sha256};

use super::{Api, challenge, unauthorised};
use crate::access;

/// The two documents, each with the policy that allows its own style and script and nothing else.
pub struct Page {
    dashboard: Document,
    login: Document,
}

struct Document {
    html: String,
    policy: HeaderValue,
}

impl Page {
    /// The documents that are built in.
    pub fn new() -> Self {
        let css = include_str!("../ui/page.css");
        Self {
            dashboard: Document::new(include_str!("../ui/page.html"), css, include_str!("../ui/page.js")),
            login: Document::new(include_str!("../ui/login.html"), css, ""),
        }
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

impl Document {
    /// `html` with the style and the script where their marks stand.
    fn new(html: &str, css: &str, js: &str) -> Self {
        let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            hash(css),
            hash(js)
        );
        Self {
            html: html.replace("<!--style-->", css).replace("<!--script-->", js),
            policy: HeaderValue::from_str(&policy).expect("base64 is header text"),
        }
    }

    fn answer(&self, status: StatusCode) -> Response {
        let mut response = Response::new(self.html.clone().into());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        response
    }
}

pub(super) async fn page(api: Api, request: Request) -> Response {
    if !api.admits_page(&request) {
        return if wants_html(&request.headers) {
            challenge(api.page.login.answer(StatusCode::UNAUTHORIZED))
        } else {
            unauthorised("api.token is needed: as ?token= or as the cookie \"token\"")
        };
    }
    let mut response = api.page.dashboard.answer(StatusCode::OK);
    if let Some(token) = request.query.get(access::TOKEN).filter(|token| api.access.is_api(token)) {
        let https = request.headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
        let cookie = access::set_cookie(token, https);
        response.headers_mut().insert(
            SET_COOKIE,
            HeaderValue::from_str(&cookie).expect("what is percent-encoded is header text"),
        );
    }
    response
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
    fn the_documents_are_whole_and_their_policy_fits() {
        let page = Page::new();
        for document in [&page.dashboard, &page.login] {
            assert!(document.html.starts_with("<!doctype html>"), "{}", &document.html[..40]);
            assert!(!document.html.contains("<!--"), "a mark is left");
            let policy = document.policy.to_str().unwrap();
            for (start, end) in [("<style>", "</style>"), ("<script type=\"module\">", "</script>")] {
                let Some((_, rest)) = document.html.split_once(start) else { continue };
                let (text, _) = rest.split_once(end).unwrap();
                let hash = STANDARD.encode(Sha256::digest(text.as_bytes()));
                assert!(policy.contains(&format!("'sha256-{hash}'")), "{start}");
            }
            assert!(!document.html.contains("style=\""), "the policy forbids it");
            assert!(!document.html.contains("http://") && !document.html.contains("https://"));
        }
        assert!(page.dashboard.html.contains("<script"));
    }
}
