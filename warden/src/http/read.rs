//! `GET /events`, `GET /machines`, `GET /health`.

use std::sync::Arc;

use evenkeel_common::http::{Request, Response, StatusCode, json};
use evenkeel_common::sse;
use evenkeel_common::wire::Health;

use super::Api;

const REQUIRED: &str = "api.token is needed: as ?token=, as the cookie \"token\", or as bearer";

/// `GET /events`: the last 50 entries, then every new one.
pub(super) async fn events(api: Api, request: Request) -> Response {
    // Taken before the token is checked: a token that changes meanwhile ends the stream.
    let stop = api.config().streams.clone();
    if let Err(refused) = api.authorize(&request) {
        return refused.reply(REQUIRED);
    }
    let permit = match api.streams.admit(request.arrival.peer.ip()) {
        Ok(permit) => permit,
        Err(refusal) => return refusal,
    };
    let entries = api.fleet.subscribe(sse::last_event_id(&request.headers));
    sse::reply(sse::frames(entries, None, Arc::clone), stop, permit)
}

/// `GET /machines`: the state of every agent.
pub(super) async fn machines(api: Api, request: Request) -> Response {
    if let Err(refused) = api.authorize(&request) {
        return refused.reply(REQUIRED);
    }
    json(StatusCode::OK, &api.fleet.machine_records())
}

/// `GET /health`: needs no token, and says no more than that the program runs.
pub(super) async fn health(_: Api, _: Request) -> Response {
    json(
        StatusCode::OK,
        &Health { status: "ok".to_owned(), error: None, state: None, config_warnings: Vec::new() },
    )
}
