//! `GET /events`, `GET /machines`, `GET /health`.

use evenkeel_common::http::{Request, Response, StatusCode, json};
use evenkeel_common::sse;
use evenkeel_common::wire::Health;
use sync_wrapper::SyncStream;

use super::Api;

const REQUIRED: &str = "api.token is needed: as ?token=, as the cookie \"token\", or as bearer";

/// `GET /events`: the last 50 entries, or those after the one that is named, then every new one.
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
    // A page that opens a new stream in place of a dead one can't set the header.
    let asked = || request.query.get("after")?.parse().ok();
    let after = sse::last_event_id(&request.headers).or_else(asked);
    let frames = api.collector.follow(after).await;
    sse::reply(SyncStream::new(frames), stop, permit)
}

/// `GET /machines`: the state of every agent.
pub(super) async fn machines(api: Api, request: Request) -> Response {
    if let Err(refused) = api.authorize(&request) {
        return refused.reply(REQUIRED);
    }
    json(StatusCode::OK, &api.collector.machine_records())
}

/// `GET /health`: needs no token, and says no more than that the program runs and whether its store works; why that is away
/// it says to people only. That it is away is no reason to restart the warden.
pub(super) async fn health(api: Api, request: Request) -> Response {
    let away = api.collector.store_state().borrow().error().map(str::to_owned);
    let health = Health {
        status: "ok".to_owned(),
        store: away.as_ref().map(|_| "away".to_owned()),
        error: away.filter(|_| api.authorize(&request).is_ok()),
        state: None,
        config_warnings: Vec::new(),
    };
    json(StatusCode::OK, &health)
}
