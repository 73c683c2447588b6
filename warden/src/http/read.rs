//! `GET /events`, `GET /machines`, `GET /health`.

use evenkeel_common::http::{Request, Response, StatusCode, json};
use evenkeel_common::sse;
use evenkeel_common::wire::Health;
use sync_wrapper::SyncStream;

use super::Api;

pub(super) const REQUIRED: &str =
    "api.token is needed: as ?token=, as the cookie \"token\", or as bearer token";

/// `GET /events`: the last 50 entries, or those after the requested one, then every new one.
pub(super) async fn events(api: Api, request: Request) -> Response {
    // Read before the token is checked, so that a concurrent change of the token ends the stream.
    let stop = api.config().streams.clone();
    if let Err(refused) = api.authorize(&request) {
        return refused.reply(REQUIRED);
    }
    let permit = match api.streams.admit(request.arrival.peer.ip()) {
        Ok(permit) => permit,
        Err(refusal) => return refusal,
    };
    let frames = api.collector.follow(sse::resume_after(&request)).await;
    sse::reply(SyncStream::new(frames), stop, permit)
}

/// `GET /machines`: the state of every agent.
pub(super) async fn machines(api: Api, request: Request) -> Response {
    if let Err(refused) = api.authorize(&request) {
        return refused.reply(REQUIRED);
    }
    json(StatusCode::OK, &api.collector.machine_records())
}

/// `GET /health`: needs no token, and only reports that the program is running and whether its store works. The reason why
/// the store is unavailable, or what was lost of it, is shown to users only. The status stays 200: restarting the warden would not help.
pub(super) async fn health(api: Api, request: Request) -> Response {
    let away = api.collector.store_state().borrow().error().map(str::to_owned);
    let store = |text: String| ("away", text);
    let trouble = away.map(store).or_else(|| Some(("damaged", api.collector.keep().damage()?)));
    let health = Health {
        status: "ok".to_owned(),
        store: trouble.as_ref().map(|(word, _)| (*word).to_owned()),
        error: trouble.map(|(_, text)| text).filter(|_| api.authorize(&request).is_ok()),
        state: None,
        config_warnings: Vec::new(),
    };
    json(StatusCode::OK, &health)
}
