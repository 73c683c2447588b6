//! `POST /login`, `POST /logout`, and the login form.

use std::sync::LazyLock;

use evenkeel_common::http::{Admitted, Arrival, HeaderMap, Request, Response, StatusCode, json};
use evenkeel_common::page::{self, Document};
use evenkeel_common::wire::LogoutReply;
use http::header::{ACCEPT, CACHE_CONTROL, HeaderValue, LOCATION, RETRY_AFTER, SET_COOKIE};
use jiff::Timestamp;

use super::Api;
use super::assets::STYLE;
use super::authorize::{LoginError, challenge};
use crate::auth::throttle;
use crate::auth::tokens::{self, Tokens};

const REQUIRED: &str = "api.token is needed: as ?token= or as the cookie \"token\"";

// Rendered once each, so that guessing tokens is cheap to refuse.
static FORM: LazyLock<Document> = LazyLock::new(|| form(None));
static WRONG: LazyLock<Document> = LazyLock::new(|| form(Some("That token is not accepted.")));
// The exact time is in `Retry-After`.
static THROTTLED: LazyLock<Document> =
    LazyLock::new(|| form(Some("Too many wrong tokens came from this address. Try again in a few seconds.")));

/// Renders the form, with the reason why the last attempt failed.
fn form(refusal: Option<&str>) -> Document {
    let mut html = include_str!("../ui/login.html").to_owned();
    if let Some(refusal) = refusal {
        // The text is a constant without characters to escape.
        html = html.replace(" hidden></p>", &format!(">{refusal}</p>"));
    }
    page::document(&html, STYLE, include_str!("../ui/login.js"))
}

/// Admits every request; the token is in the body. The sender is the client, as for the limit on wrong tokens: behind a proxy
/// on this machine, one client must not use up what is left for the others.
// The large error is a response that is created once and sent; boxing it has no benefit.
#[allow(clippy::result_large_err, clippy::unnecessary_wraps)]
pub(super) fn admit(_: &Api, headers: &HeaderMap, arrival: &Arrival) -> Result<Admitted, Response> {
    let client = throttle::network(throttle::client_address(arrival, headers));
    Ok(Admitted::as_sender(client.to_string(), ()))
}

/// Starts a session and redirects to the dashboard with the requested view.
pub(super) async fn login(api: Api, request: Request) -> Response {
    let fields = form_urlencoded::parse(&request.body);
    let sent = fields.filter(|(name, _)| name == tokens::TOKEN).map(|(_, value)| value.into_owned()).take(1);
    let config = api.config();
    if let Err(refused) = api.check_api_token(&config, &request.headers, &request.arrival, sent) {
        return deny(refused, &request.headers);
    }
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SEE_OTHER;
    let mut view = form_urlencoded::Serializer::new(String::new());
    view.extend_pairs(request.query.iter().filter(|(name, _)| *name != tokens::TOKEN));
    let view = view.finish();
    let mark = if view.is_empty() { "" } else { "?" };
    let target = format!("{}/{mark}{view}", request.base);
    let target = HeaderValue::from_str(&target).expect("percent-encoded text is header text");
    response.headers_mut().insert(LOCATION, target);
    start_session(&mut response, &config.tokens, api.clock.now(), &request);
    response
}

/// Refuses a user: the form for a browser's navigation, JSON for scripts and programs.
pub(super) fn deny(refused: LoginError, headers: &HeaderMap) -> Response {
    let answer = refused.reply(refused.message().as_deref().unwrap_or(REQUIRED));
    if !accepts_html(headers) {
        return answer;
    }
    let document = match refused {
        LoginError::Missing => &FORM,
        LoginError::Wrong => &WRONG,
        LoginError::Throttled(_) => &THROTTLED,
    };
    let mut page = document.reply(answer.status(), headers);
    page.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = answer.headers().get(RETRY_AFTER) {
        page.headers_mut().insert(RETRY_AFTER, seconds.clone());
    }
    if answer.status() == StatusCode::UNAUTHORIZED { challenge(page) } else { page }
}

/// Deletes the cookie, which scripts cannot do. It needs no token: a request can only end the client's own session, and
/// requests from other sites are refused by the Origin check.
pub(super) async fn logout(_: Api, request: Request) -> Response {
    let mut response = json(StatusCode::OK, &LogoutReply::LoggedOut);
    set_cookie(&mut response, &tokens::delete_cookie(&request.base, is_https(&request.headers)));
    response
}

/// Adds the cookie of a new session.
pub(super) fn start_session(response: &mut Response, tokens: &Tokens, now: Timestamp, request: &Request) {
    let is_https = is_https(&request.headers);
    set_cookie(response, &tokens::set_cookie(&tokens.session(now), &request.base, is_https));
}

fn set_cookie(response: &mut Response, cookie: &str) {
    let cookie = HeaderValue::from_str(cookie).expect("percent-encoded text is header text");
    response.headers_mut().insert(SET_COOKIE, cookie);
}

/// Reports whether the browser uses HTTPS: according to the proxy that it connects to, or to the origin of its page. A proxy
/// that is not the first may know only about the connection between the two.
fn is_https(headers: &HeaderMap) -> bool {
    let first = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()?.split(',').next());
    let is = |value: &str| value.trim().trim_matches('"').eq_ignore_ascii_case("https");
    let forwarded = first("forwarded").into_iter().flat_map(|element| element.split(';'));
    let mut protos = forwarded.filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("proto").then_some(value)
    });
    let is_secure_page = |origin: &str| origin.starts_with("https://");
    first("x-forwarded-proto").is_some_and(is)
        || protos.any(is)
        || first("origin").is_some_and(is_secure_page)
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).into_iter().filter_map(|accept| accept.to_str().ok());
    accepted.any(|accept| accept.contains("text/html"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_complete_and_sends_no_referrer() {
        for document in [&*FORM, &*WRONG, &*THROTTLED] {
            let text = std::str::from_utf8(document.text()).unwrap();
            assert!(text.starts_with("<!doctype html>"));
            assert!(!text.contains("<!--"), "a placeholder is left");
            assert!(!text.contains("name=\"referrer\""), "the policy is set by the header");
        }
    }

    #[test]
    fn a_refusal_is_in_the_form_without_any_script() {
        for (document, reason) in [
            (&WRONG, "That token is not accepted."),
            (&THROTTLED, "Too many wrong tokens came from this address. Try again in a few seconds."),
        ] {
            let text = String::from_utf8_lossy(document.text());
            assert!(text.contains(&format!("role=\"alert\">{reason}</p>")), "{text}");
        }
        assert!(!String::from_utf8_lossy(FORM.text()).contains("role=\"alert\">"));
    }

    #[test]
    fn the_browsers_protocol_decides_about_https() {
        for (proto, expected) in [
            ("https", true),
            ("HTTPS", true),
            ("https, http", true),
            (" Https ,http", true),
            ("http, https", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-proto", proto.parse().unwrap());
            assert_eq!(is_https(&headers), expected, "{proto}");
        }
        for (name, value, expected) in [
            ("forwarded", "for=1.2.3.4;proto=https", true),
            ("forwarded", "Proto=\"HTTPS\";for=x, proto=http", true),
            ("forwarded", "proto=http, proto=https", false),
            ("forwarded", "for=https", false),
            ("origin", "https://warden.test:8443", true),
            ("origin", "http://warden.test", false),
            ("origin", "null", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(is_https(&headers), expected, "{name}: {value}");
            headers.insert("x-forwarded-proto", "http".parse().unwrap());
            assert_eq!(is_https(&headers), expected, "{name}: {value}, and an inner proxy without TLS");
        }
    }
}
