//! Endpoints that only read.

use std::sync::Arc;

use evenkeel_common::http::{Request, Response, StatusCode, json};
use evenkeel_common::sse;
use evenkeel_common::wire::Health;

use super::Api;

const WHO: &str = "api.token is needed: as ?token=, as the cookie \"token\", or as bearer";

/// `GET /events`: the last 50 entries, then every new one.
pub(super) async fn events(api: Api, request: Request) -> Response {
    // Before it is asked whether the token is right: a token that changes meanwhile ends the stream.
    let end = api.live().streams.clone();
    if let Err(refused) = api.admit(&request) {
        return refused.reply(WHO);
    }
    let permit = match api.limiter.admit(request.arrival.peer.ip()) {
        Ok(permit) => permit,
        Err(refusal) => return refusal,
    };
    let entries = api.ring.subscribe(sse::last_event_id(&request.headers));
    sse::reply(sse::frames(entries, None, Arc::clone), end, permit)
}

/// `GET /machines`: what the page shows beside the entries.
pub(super) async fn machines(api: Api, request: Request) -> Response {
    if let Err(refused) = api.admit(&request) {
        return refused.reply(WHO);
    }
    json(StatusCode::OK, &api.ring.records())
}

/// `GET /health`: open, and says no more than that the program runs.
pub(super) async fn health(_: Api, _: Request) -> Response {
    json(
        StatusCode::OK,
        &Health { status: "ok".to_owned(), error: None, state: None, config_warnings: Vec::new() },
    )
}
