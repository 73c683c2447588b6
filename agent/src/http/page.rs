//! The dashboard (spec 4.2): a single document that is assembled once.

use std::sync::LazyLock;

use evenkeel_common::http::{Request, Response, StatusCode};
use evenkeel_common::page::{self, Document};

use http::header::{HeaderValue, LOCATION};

use super::Api;

static PAGE: LazyLock<Document> = LazyLock::new(|| {
    page::document(
        include_str!("../ui/page.html"),
        include_str!("../ui/page.css"),
        include_str!("../ui/page.js"),
    )
});

/// `GET /`: redirects to the dashboard.
pub(super) async fn root(_: Api, request: Request) -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::FOUND;
    let target = HeaderValue::from_str(&format!("{}/ui", request.base));
    response.headers_mut().insert(LOCATION, target.expect("a base path is header text"));
    response
}

pub(super) async fn page(_: Api, request: Request) -> Response {
    PAGE.reply(StatusCode::OK, &request.headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_keeps_within_its_bounds() {
        assert!(PAGE.size() < 150 * 1024, "{} bytes", PAGE.size());
    }
}
