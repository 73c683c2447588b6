//! Fleet endpoints for agents: `GET /fleet`, `POST /fleet/ask`, `POST /fleet/release`, `POST /inventory` (DECISIONS 8).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::http::{Request, Response, StatusCode, error, json, retry_later, too_many};
use evenkeel_common::wire::{FleetAsk, Inventory, InventoryImage, InventoryReply, ReleaseReply};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Api;
use super::ingest::{agent, authenticate, store_away};
use super::quota::Quota;
use crate::auth::tokens;
use crate::fleet::answer::Asking;
use crate::fleet::entry::{MAX_IMAGE, object};
use crate::fleet::repository;
use crate::reload::ActiveConfig;

/// `Retry-After` of a poll that has to begin again, in seconds.
const POLL_AGAIN: u16 = 1;
/// Longest wait of a long poll, in seconds.
const MAX_WAIT: u64 = 60;
/// Highest ring.
const MAX_RING: u8 = 9;
/// How many images one machine may report.
const MAX_IMAGES: usize = 1000;
/// Longest accepted digest or service name, and the length to which sentences are truncated, in bytes.
const MAX_NAME: usize = 256;
const MAX_TEXT: usize = 1024;
/// Size limit of the texts of a report, in bytes. Beyond it, sentences are truncated to the length below, and images are left
/// out.
const MAX_REPORT: usize = 512 * 1024;
const SHORT_TEXT: usize = 200;

/// `GET /fleet`: the decisions that apply to the agent. Answers at once if `after` or `verdicts` is outdated, otherwise after
/// a change or when `wait` expires.
pub(super) async fn decisions(api: Api, request: Request) -> Response {
    let id = match authenticate(&api, &request.headers, &request.arrival) {
        Ok(id) => id,
        Err(refusal) => return refusal,
    };
    if let Err(refusal) = api.quotas.take(&id, Quota::Polls, 1) {
        return refusal;
    }
    let [after, wait, verdicts] = match numbers(&request, ["after", "wait", "verdicts"]) {
        Ok(numbers) => numbers,
        Err(fault) => return error(StatusCode::BAD_REQUEST, fault),
    };
    let Some(_permit) = api.polls.acquire(id.clone()) else {
        return too_many("this agent has too many concurrent polls, or too many agents are polling", 10);
    };
    let config = api.config();
    if config.agents.iter().any(|agent| agent.id == id && agent.url.is_none()) {
        api.collector.record_poll(&id).await;
    }
    let wait = wait.unwrap_or(0);
    if api.collector.is_report_expected(&id, wait == 0) {
        return poll_again();
    }
    if let Some(after) = after {
        let news = api.collector.news_for(&id, after, verdicts);
        tokio::select! {
            () = is_other(&api, &request, &id) => return poll_again(),
            _ = timeout(Duration::from_secs(wait.min(MAX_WAIT)), news) => {}
            () = config.streams.cancelled() => {}
        }
    }
    json(StatusCode::OK, &api.collector.decisions_for(&id))
}

/// Waits until the token of a request no longer belongs to this agent.
async fn is_other(api: &Api, request: &Request, id: &str) {
    let token = tokens::bearer(&request.headers).unwrap_or_default();
    let mut active = api.config.clone();
    let has_other = |active: &Arc<ActiveConfig>| {
        active.tokens.agent(token).is_none_or(|agent| active.agents[agent].id != id)
    };
    if active.wait_for(has_other).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ends a series of polls. The agent begins another one, and reports what it runs.
fn poll_again() -> Response {
    let text = "the warden needs a new report; poll again";
    retry_later(StatusCode::SERVICE_UNAVAILABLE, text, POLL_AGAIN)
}

/// Parses parameters that are whole numbers; `None` for one that is absent or empty.
fn numbers<const N: usize>(request: &Request, names: [&str; N]) -> Result<[Option<u64>; N], String> {
    let mut numbers = [None; N];
    for (number, name) in numbers.iter_mut().zip(names) {
        let Some(value) = request.query.get(name).filter(|value| !value.is_empty()) else { continue };
        *number = Some(value.parse().map_err(|_| format!("{name} is not a whole number"))?);
    }
    Ok(numbers)
}

/// `POST /fleet/ask`
pub(super) async fn ask(api: Api, request: Request) -> Response {
    match asked(&api, &request) {
        Ok((agent, ask)) => json(StatusCode::OK, &api.collector.ask(&asking(&agent, &ask)).await),
        Err(refusal) => refusal,
    }
}

/// `POST /fleet/release`
pub(super) async fn release(api: Api, request: Request) -> Response {
    let (agent, ask) = match asked(&api, &request) {
        Ok(asked) => asked,
        Err(refusal) => return refusal,
    };
    match api.collector.release(&asking(&agent, &ask)).await {
        Ok(released) => {
            let status = if released { "released" } else { "not_held" };
            json(StatusCode::OK, &ReleaseReply { status: status.to_owned() })
        }
        Err(fault) => store_away(&fault),
    }
}

/// `POST /inventory`
pub(super) async fn inventory(api: Api, request: Request) -> Response {
    let agent = match agent(&api, &request.headers) {
        Ok(agent) => agent,
        Err(refusal) => return refusal,
    };
    let mut inventory: Inventory = match body(&request) {
        Ok(inventory) => inventory,
        Err(refusal) => return refusal,
    };
    // A gate's text comes from a command or an operator. Truncate a long one rather than reject the whole inventory.
    inventory.images.iter_mut().filter_map(|image| image.why.as_mut()).for_each(|why| cut(why, MAX_TEXT));
    if let Some(fault) = fault_of(&inventory) {
        return error(StatusCode::BAD_REQUEST, fault);
    }
    if let Err(refusal) = api.quotas.take(&agent, Quota::Reports, 1) {
        return refusal;
    }
    let left_out = shorten(&mut inventory);
    match api.collector.report(&agent, inventory).await {
        Ok(()) => {
            let fleet = api.collector.fleet_revision();
            json(StatusCode::OK, &InventoryReply { status: "accepted".to_owned(), fleet, left_out })
        }
        Err(fault) => store_away(&fault),
    }
}

fn cut(text: &mut String, bytes: usize) {
    text.truncate(text.floor_char_boundary(bytes));
}

/// Shortens a report that is too large. Returns how many images are left out.
fn shorten(inventory: &mut Inventory) -> u64 {
    let size = |image: &InventoryImage| {
        let texts = [
            &image.digest,
            &image.available,
            &image.available_image,
            &image.blocked,
            &image.gate,
            &image.why,
        ];
        let texts = texts.into_iter().flatten().map(String::len);
        image.service.len() + image.image.len() + texts.sum::<usize>()
    };
    if inventory.images.iter().map(size).sum::<usize>() <= MAX_REPORT {
        return 0;
    }
    inventory.images.iter_mut().filter_map(|image| image.why.as_mut()).for_each(|why| cut(why, SHORT_TEXT));
    let before = inventory.images.len();
    let mut room = MAX_REPORT;
    inventory.images.retain(|image| {
        let fits = size(image) <= room;
        room = if fits { room - size(image) } else { 0 };
        fits
    });
    (before - inventory.images.len()) as u64
}

fn fault_of(inventory: &Inventory) -> Option<String> {
    if inventory.ring > MAX_RING {
        return Some(format!("ring: {}; allowed: 0 to {MAX_RING}", inventory.ring));
    }
    if inventory.images.len() > MAX_IMAGES {
        return Some(format!("images: {} of them; allowed: up to {MAX_IMAGES}", inventory.images.len()));
    }
    for (number, image) in inventory.images.iter().enumerate() {
        let texts = [
            ("service", Some(&image.service), MAX_NAME),
            ("image", Some(&image.image), MAX_IMAGE),
            ("digest", image.digest.as_ref(), MAX_NAME),
            ("available", image.available.as_ref(), MAX_NAME),
            ("available_image", image.available_image.as_ref(), MAX_IMAGE),
            ("blocked", image.blocked.as_ref(), MAX_NAME),
            ("gate", image.gate.as_ref(), MAX_NAME),
        ];
        for (key, text, limit) in texts {
            if text.is_some_and(|text| text.len() > limit) {
                return Some(format!("images[{number}].{key}: is too long; allowed: up to {limit} bytes"));
            }
        }
    }
    None
}

/// Returns the agent and its request, or the refusal.
#[allow(clippy::result_large_err)]
fn asked(api: &Api, request: &Request) -> Result<(String, FleetAsk), Response> {
    let agent = agent(api, &request.headers)?;
    let ask: FleetAsk = body(request)?;
    let texts = [
        ("image", &ask.image, MAX_IMAGE),
        ("digest", &ask.digest, MAX_NAME),
        ("service", &ask.service, MAX_NAME),
    ];
    for (key, text, limit) in texts {
        if text.is_empty() || text.len() > limit {
            let text = format!("{key}: has {} bytes; allowed: 1 to {limit}", text.len());
            return Err(error(StatusCode::BAD_REQUEST, text));
        }
    }
    if ask.ring > MAX_RING {
        let text = format!("ring: {}; allowed: 0 to {MAX_RING}", ask.ring);
        return Err(error(StatusCode::BAD_REQUEST, text));
    }
    api.quotas.take(&agent, Quota::Asks, 1)?;
    Ok((agent, ask))
}

fn asking<'a>(agent: &'a str, ask: &'a FleetAsk) -> Asking<'a> {
    Asking {
        agent,
        ring: ask.ring,
        service: &ask.service,
        repository: repository(&ask.image),
        image: &ask.image,
        digest: &ask.digest,
        progress: ask.progress,
    }
}

/// Parses the body. The refusal says what is wrong and where.
#[allow(clippy::result_large_err)]
pub(super) fn body<T: DeserializeOwned>(request: &Request) -> Result<T, Response> {
    object(&request.body).map_err(|fault| {
        let fault: String = fault.to_string().chars().take(MAX_NAME).collect();
        error(StatusCode::BAD_REQUEST, format!("the body is invalid: {fault}"))
    })
}
