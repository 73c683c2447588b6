//! Endpoints for users: `GET /fleet/images`, `POST /freeze`, `POST /thaw`, `POST /unblock` (DECISIONS 8). Requests from other
//! origins have already been refused.

use evenkeel_common::http::{
    Admitted, Arrival, HeaderMap, Request, Response, StatusCode, error, json, retry_later,
};
use evenkeel_common::wire::{
    FleetUnblockReply, FleetUnblockRequest, FreezeReply, FreezeRequest, FreezeScope, ThawReply, ThawRequest,
};
use http::header::{ACCEPT, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use jiff::{SignedDuration, Timestamp};

use super::Api;
use super::fleet::body;
use super::ingest::{STORE_RETRY_AFTER, store_away};
use crate::fleet::decisions::{Decision, MAX_FREEZE, MAX_FREEZES};
use crate::fleet::entry::MAX_IMAGE;
use crate::fleet::{repository, view};

const REQUIRED: &str = "api.token is needed: as bearer token, or as the cookie \"token\"";
/// Longest reason of a freeze, in characters.
const MAX_REASON: usize = 500;
/// Longest accepted digest, in bytes.
const MAX_NAME: usize = 256;
/// How far a user's clock may be ahead.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

/// `GET /fleet/images`: the images of all machines, as JSON or CSV.
pub(super) async fn images(api: Api, request: Request) -> Response {
    if let Err(refused) = api.authorize(&request) {
        return refused.reply(REQUIRED);
    }
    let accepts_csv = || {
        let accept = request.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        accept.is_some_and(|accept| accept.contains("text/csv"))
    };
    let is_csv = match request.query.get("format").map(String::as_str) {
        None | Some("") => accepts_csv(),
        Some("csv") => true,
        Some("json") => false,
        Some(_) => return error(StatusCode::BAD_REQUEST, "format is unknown; allowed: json, csv"),
    };
    // Empty lists would say that nothing is frozen or withheld.
    if !api.collector.store_state().borrow().is_read() {
        let text = "the warden has not read its store yet; try again later";
        return retry_later(StatusCode::SERVICE_UNAVAILABLE, text, STORE_RETRY_AFTER);
    }
    let images = api.collector.fleet_images();
    if !is_csv {
        return json(StatusCode::OK, &images);
    }
    let mut response = Response::new(view::csv(&images).into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    headers
        .insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"fleet-images.csv\""));
    response
}

/// Refuses a request before its body is read: without a session or `api.token`. Whoever has neither cannot use up the memory
/// that users need for a freeze.
// The large error is a response that is created once and sent; boxing it has no benefit.
#[allow(clippy::result_large_err)]
pub(super) fn admit(api: &Api, headers: &HeaderMap, arrival: &Arrival) -> Result<Admitted, Response> {
    match api.authorize_body(headers, arrival) {
        Ok(()) => Ok(Admitted::as_sender("user", ())),
        Err(refused) => Err(refused.reply(REQUIRED)),
    }
}

/// `POST /freeze`
pub(super) async fn freeze(api: Api, request: Request) -> Response {
    let asked: FreezeRequest = match body(&request) {
        Ok(asked) => asked,
        Err(refusal) => return refusal,
    };
    let config = api.config();
    let ids: Vec<&str> = config.agents.iter().map(|agent| agent.id.as_str()).collect();
    let (reason, until, scope) = match checked(asked, &ids, api.clock.now()) {
        Ok(checked) => checked,
        Err(fault) => return error(StatusCode::BAD_REQUEST, fault),
    };
    if let Some(fault) = scope.image.as_deref().and_then(|image| unmatched(&api, image)) {
        return error(StatusCode::BAD_REQUEST, fault);
    }
    match api.collector.decide(Decision::Freeze { reason, until, scope }).await {
        Ok((Some(id), revision)) => {
            let reply = FreezeReply { status: "frozen".to_owned(), id: id.to_string(), until, revision };
            json(StatusCode::OK, &reply)
        }
        Ok((None, _)) => error(
            StatusCode::CONFLICT,
            format!("{MAX_FREEZES} freezes are already in force; thaw some first"),
        ),
        Err(fault) => store_away(&fault),
    }
}

/// Validates a freeze request. The error says what is wrong and what is allowed.
fn checked(
    asked: FreezeRequest,
    ids: &[&str],
    now: Timestamp,
) -> Result<(String, Timestamp, FreezeScope), String> {
    let reason = asked.reason.trim().to_owned();
    let length = reason.chars().count();
    if length == 0 || length > MAX_REASON || reason.chars().any(char::is_control) {
        return Err(format!("reason: has {length} characters; allowed: one line of 1 to {MAX_REASON}"));
    }
    let latest = now.checked_add(MAX_FREEZE).unwrap_or(Timestamp::MAX);
    if asked.until <= now || asked.until.duration_since(latest) > CLOCK_TOLERANCE {
        return Err(format!("until: {}; allowed: after {now}, and not after {latest}", asked.until));
    }
    let mut scope = asked.scope;
    scope.machine = scope.machine.filter(|machine| !machine.is_empty());
    scope.image = scope.image.filter(|image| !image.is_empty());
    if let Some(machine) = scope.machine.as_deref().filter(|machine| !ids.contains(machine)) {
        let machine: String = machine.chars().take(100).collect();
        return Err(format!("scope.machine: {machine:?} is not an agent; allowed: {}", ids.join(", ")));
    }
    if let Some(image) = scope.image.take() {
        if image.len() > MAX_IMAGE || image.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(format!(
                "scope.image: is not an image; allowed: a repository of up to {MAX_IMAGE} bytes"
            ));
        }
        scope.image = Some(repository(&image).to_owned());
    }
    Ok((reason, asked.until.min(latest), scope))
}

/// Returns the fault of a repository without a registry. Agents report repositories with the registry's host, so it would
/// never match. Returns `None` if it names a registry, or if a machine reports exactly this repository.
fn unmatched(api: &Api, image: &str) -> Option<String> {
    let is_host = |host: &str| host.contains(['.', ':']) || host == "localhost";
    if image.split_once('/').is_some_and(|(host, path)| is_host(host) && !path.is_empty()) {
        return None;
    }
    let known: Vec<String> =
        api.collector.fleet_images().images.into_iter().map(|known| known.repository).collect();
    if known.iter().any(|known| known == image) {
        return None;
    }
    let is_meant = |known: &&String| known.strip_suffix(image).is_some_and(|host| host.ends_with('/'));
    let meant = known.iter().find(is_meant).map_or("registry.example/team/web", String::as_str);
    Some(format!("scope.image: names no registry; allowed: a repository with its host, such as {meant}"))
}

/// `POST /thaw`
pub(super) async fn thaw(api: Api, request: Request) -> Response {
    let asked: ThawRequest = if request.body.is_empty() {
        ThawRequest::default()
    } else {
        match body(&request) {
            Ok(asked) => asked,
            Err(refusal) => return refusal,
        }
    };
    match api.collector.decide(Decision::Thaw { id: asked.id }).await {
        Ok((id, revision)) => {
            let status = if id.is_some() { "thawed" } else { "nothing_frozen" };
            json(StatusCode::OK, &ThawReply { status: status.to_owned(), revision })
        }
        Err(fault) => store_away(&fault),
    }
}

/// `POST /unblock`
pub(super) async fn unblock(api: Api, request: Request) -> Response {
    let FleetUnblockRequest { image, digest } = match body(&request) {
        Ok(asked) => asked,
        Err(refusal) => return refusal,
    };
    if image.is_empty() || image.len() > MAX_IMAGE {
        return error(StatusCode::BAD_REQUEST, format!("image: allowed: 1 to {MAX_IMAGE} bytes"));
    }
    if digest.len() > MAX_NAME || !digest.starts_with("sha256:") {
        return error(StatusCode::BAD_REQUEST, "digest: is not a digest; allowed: sha256:<hex>");
    }
    let repository = repository(&image).to_owned();
    match api.collector.decide(Decision::Unblock { repository, digest }).await {
        Ok((id, revision)) => {
            let status = if id.is_some() { "unblocked" } else { "not_blocked" };
            json(StatusCode::OK, &FleetUnblockReply { status: status.to_owned(), revision })
        }
        Err(fault) => store_away(&fault),
    }
}
