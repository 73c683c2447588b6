//! `GET /`: the dashboard as one document, or the form that asks for the token. `POST /login` and `POST /logout`.

use std::sync::LazyLock;

use evenkeel_common::http::{Admitted, Arrival, HeaderMap, Request, Response, StatusCode, json};
use evenkeel_common::page::{self, Document};
use http::header::{ACCEPT, CACHE_CONTROL, HeaderValue, LOCATION, RETRY_AFTER, SET_COOKIE};

use super::{Api, Refused, challenge};
use crate::access;

const STYLE: &str = include_str!("../ui/page.css");
static DASHBOARD: LazyLock<Document> =
    LazyLock::new(|| page::document(include_str!("../ui/page.html"), STYLE, include_str!("../ui/page.js")));
static LOGIN: LazyLock<Document> = LazyLock::new(|| form(None));

/// The form, with what is said about the last try. Its `referrer` policy makes the browser name the form's origin; with
/// `no-referrer` it would send `Origin: null`, which is refused.
fn form(refusal: Option<&str>) -> Document {
    let mut html = include_str!("../ui/login.html").to_owned();
    if let Some(refusal) = refusal {
        // The text is ours and has nothing to escape.
        html = html.replace(" hidden></p>", &format!(">{refusal}</p>"));
    }
    page::document(&html, STYLE, include_str!("../ui/login.js"))
}

pub(super) async fn page(api: Api, request: Request) -> Response {
    if let Err(refused) = api.admit_page(&request) {
        return turned_away(refused, &request.headers);
    }
    let mut response = DASHBOARD.reply(StatusCode::OK, &request.headers);
    let (live, now) = (api.live(), api.clock.now());
    let left = access::cookies(&request.headers);
    let left = left.iter().filter_map(|value| live.access.session_left(value, now)).max();
    if left.is_none_or(|left| left < access::SESSION / 2) {
        put_cookie(&mut response, &access::set_cookie(&live.access.session(now), is_https(&request.headers)));
    }
    response
}

/// Whoever logs in has nothing to show yet; the body is what shows it.
// A refusal is an answer, made once and sent; boxing it would only add a step.
#[allow(clippy::result_large_err, clippy::unnecessary_wraps)]
pub(super) fn admit(_: &Api, _: &HeaderMap, arrival: &Arrival) -> Result<Admitted, Response> {
    Ok(Admitted::as_peer(arrival))
}

/// Takes the form, and leads to the dashboard with the view that was asked for.
pub(super) async fn login(api: Api, request: Request) -> Response {
    let fields = form_urlencoded::parse(&request.body);
    let tokens =
        fields.filter(|(name, _)| name == access::TOKEN).map(|(_, value)| value.into_owned()).take(1);
    let live = api.live();
    if let Err(refused) = api.check_people(&live, &request.headers, &request.arrival, tokens) {
        return turned_away(refused, &request.headers);
    }
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SEE_OTHER;
    let mut view = form_urlencoded::Serializer::new(String::new());
    view.extend_pairs(request.query.iter().filter(|(name, _)| *name != access::TOKEN));
    let view = view.finish();
    let target = if view.is_empty() { "/".to_owned() } else { format!("/?{view}") };
    let target = HeaderValue::from_str(&target).expect("what is percent-encoded is header text");
    response.headers_mut().insert(LOCATION, target);
    let session = live.access.session(api.clock.now());
    put_cookie(&mut response, &access::set_cookie(&session, is_https(&request.headers)));
    response
}

/// The form for a person, JSON for a program.
fn turned_away(refused: Refused, headers: &HeaderMap) -> Response {
    let answer = refused.reply("api.token is needed: as ?token= or as the cookie \"token\"");
    if !wants_html(headers) {
        return answer;
    }
    let said = refused.in_words();
    let document = said.as_deref().map(|said| form(Some(said)));
    let mut page = document.as_ref().unwrap_or(&LOGIN).reply(answer.status(), headers);
    page.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = answer.headers().get(RETRY_AFTER) {
        page.headers_mut().insert(RETRY_AFTER, seconds.clone());
    }
    if answer.status() == StatusCode::UNAUTHORIZED { challenge(page) } else { page }
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
    // In a list the first one is what the person's browser speaks.
    let proto = headers.get("x-forwarded-proto").and_then(|proto| proto.to_str().ok()?.split(',').next());
    proto.is_some_and(|proto| proto.trim().eq_ignore_ascii_case("https"))
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
        for document in [&*DASHBOARD, &*LOGIN, &form(Some("That token is not accepted."))] {
            let text = std::str::from_utf8(document.text()).unwrap();
            assert!(text.starts_with("<!doctype html>"));
            assert!(!text.contains("<!--"), "a mark is left");
            assert!(document.size() < 150 * 1024, "{} bytes", document.size());
        }
    }

    #[test]
    fn a_refusal_stands_in_the_form_without_any_script() {
        let text = String::from_utf8(form(Some("That token is not accepted.")).text().to_vec()).unwrap();
        assert!(text.contains("role=\"alert\">That token is not accepted.</p>"), "{text}");
        assert!(!String::from_utf8_lossy(LOGIN.text()).contains("not accepted"));
    }

    #[test]
    fn https_is_what_the_persons_browser_speaks() {
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
    }
}
