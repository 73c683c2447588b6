//! `GET /`: the dashboard as one document, or the login form.

use std::sync::LazyLock;

use evenkeel_common::http::{Request, Response, StatusCode};
use evenkeel_common::page::{self, Document};

use super::assets::STYLE;
use super::{Api, login};
use crate::auth::tokens;
const SCRIPT: &str = concat!(include_str!("../ui/map.js"), include_str!("../ui/page.js"));
static DASHBOARD: LazyLock<Document> =
    LazyLock::new(|| page::document(include_str!("../ui/page.html"), STYLE, SCRIPT));

pub(super) async fn page(api: Api, request: Request) -> Response {
    if let Err(refused) = api.authorize_page(&request) {
        return login::deny(refused, &request.headers);
    }
    let mut response = DASHBOARD.reply(StatusCode::OK, &request.headers);
    let (config, now) = (api.config(), api.clock.now());
    let sessions = tokens::cookies(&request.headers);
    let remaining = sessions.iter().filter_map(|value| config.tokens.session_remaining(value, now)).max();
    if remaining.is_none_or(|remaining| remaining < tokens::SESSION_LIFETIME / 2) {
        login::start_session(&mut response, &config.tokens, now, &request);
    }
    response
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::Kind;

    use super::*;

    #[test]
    fn every_kind_can_be_selected_in_the_history() {
        for kind in Kind::ALL {
            assert!(SCRIPT.contains(&format!("\"{kind}\"")), "{kind}");
        }
    }

    #[test]
    fn the_dashboard_is_complete() {
        let text = std::str::from_utf8(DASHBOARD.text()).unwrap();
        assert!(text.starts_with("<!doctype html>"));
        assert!(!text.contains("<!--"), "a placeholder is left");
        assert!(DASHBOARD.size() < 150 * 1024, "{} bytes", DASHBOARD.size());
    }
}
