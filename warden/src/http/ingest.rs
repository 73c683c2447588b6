//! `POST /ingest`: an entry from an agent, or an array of entries (DECISIONS 3 and 8).

use evenkeel_common::http::{
    Admitted, Arrival, HeaderMap, Request, Response, StatusCode, error, json, retry_later, too_many,
};
use evenkeel_common::wire::{FleetEntry, IngestReply, RejectedEntry};

use super::Api;
use super::authorize::{unauthorized, whole_seconds};
use super::metrics::IngestRefusal;
use super::quota::Quota;
use crate::auth::throttle;
use crate::auth::tokens;
use crate::config::SHORT_TOKEN;
use crate::fleet::entry::{self, InvalidEntry};
use crate::fleet::verdict::claims;
use crate::keep::KeepError;
use crate::reload::ActiveConfig;

/// `Retry-After` in seconds for an agent with too many concurrent requests.
const CROWD_RETRY_AFTER: u16 = 1;
/// The same while the store is unavailable.
pub(super) const STORE_RETRY_AFTER: u16 = 5;
/// Maximum number of entries in one request (DECISIONS 8).
const MAX_ENTRIES: usize = 500;

/// Refuses a request before its body is read: without an agent's token, or beyond the agent's limit.
// The large error is a response that is created once and sent; boxing it has no benefit.
#[allow(clippy::result_large_err)]
pub(super) fn admit(api: &Api, headers: &HeaderMap, arrival: &Arrival) -> Result<Admitted, Response> {
    let id = authenticate(api, headers, arrival)?;
    let Some(permit) = api.requests.acquire(id.clone()) else {
        api.metrics.count_ingest_refusal(IngestRefusal::TooMany);
        return Err(too_many("this agent has too many requests in progress", CROWD_RETRY_AFTER));
    };
    Ok(Admitted::as_sender(id, permit))
}

/// Returns the id of the agent whose token a request carries.
#[allow(clippy::result_large_err)]
pub(super) fn authenticate(api: &Api, headers: &HeaderMap, arrival: &Arrival) -> Result<String, Response> {
    let token = tokens::bearer(headers).unwrap_or_default();
    let client = throttle::client_address(arrival, headers);
    let config = api.config();
    let agent = config.tokens.agent(token);
    // An agent that has authenticated from this address before is not guessing, and neither is one with a token too long to
    // be guessed: they are not affected while another client behind the same proxy is throttled.
    let is_guess = |agent: usize| {
        token.len() < SHORT_TOKEN && !api.collector.is_known_address(&config.agents[agent].id, client)
    };
    if agent.is_none_or(is_guess)
        && let Some(wait) = api.throttle.retry_after(client)
    {
        api.metrics.count_ingest_refusal(IngestRefusal::Throttled);
        return Err(too_many("too many wrong tokens came from this address", whole_seconds(wait)));
    }
    let Some(agent) = agent else {
        api.metrics.count_ingest_refusal(IngestRefusal::Unauthorized);
        if !token.is_empty() {
            api.throttle.record_failure(client, &tokens::digest(token), "agent");
        }
        return Err(unauthorized("the bearer token is missing or belongs to no agent of this warden"));
    };
    let id = config.agents[agent].id.clone();
    api.collector.record_address(&id, client);
    Ok(id)
}

pub(super) async fn ingest(api: Api, request: Request) -> Response {
    let agent = match agent(&api, &request.headers) {
        Ok(agent) => agent,
        Err(refusal) => return refusal,
    };
    if let Err(refusal) = api.quotas.take(&agent, Quota::Bytes, request.body.len()) {
        api.metrics.count_ingest_refusal(IngestRefusal::TooMany);
        return refusal;
    }
    let (mut entries, rejected) = match read(&request.body, &agent) {
        Ok(read) => read,
        Err(fault) => {
            note_malformed(&api, &agent, 1, &fault.to_string());
            if let Err(refusal) = api.quotas.take(&agent, Quota::Entries, 1) {
                api.metrics.count_ingest_refusal(IngestRefusal::TooMany);
                return refusal;
            }
            return error(StatusCode::BAD_REQUEST, fault.to_string());
        }
    };
    if let Some(latest) = rejected.last() {
        note_malformed(&api, &agent, rejected.len(), &latest.error);
    }
    let verdicts = entries.iter().map(|entry| claims(entry).count()).sum();
    // What is rejected costs as much as what is stored.
    let sent = entries.len() + rejected.len();
    for (quota, count) in [(Quota::Entries, sent), (Quota::Verdicts, verdicts)] {
        if let Err(refusal) = api.quotas.take(&agent, quota, count) {
            api.metrics.count_ingest_refusal(IngestRefusal::TooMany);
            return refusal;
        }
    }
    keep_own_names(&api.config(), &mut entries);
    if !entries.is_empty()
        && let Err(fault) = api.collector.store(entries).await
    {
        api.metrics.count_ingest_refusal(IngestRefusal::StoreAway);
        return store_away(&fault);
    }
    let fleet = api.collector.fleet_revision();
    json(StatusCode::OK, &IngestReply { status: "accepted".to_owned(), fleet, rejected })
}

/// Parses a body, which is one entry or an array of them. Invalid elements of an array are returned separately.
fn read(body: &[u8], agent: &str) -> Result<(Vec<FleetEntry>, Vec<RejectedEntry>), InvalidEntry> {
    let Some(elements) = entry::elements(body, MAX_ENTRIES) else {
        return Ok((vec![entry::parse(body, agent)?], Vec::new()));
    };
    let (mut entries, mut rejected) = (Vec::new(), Vec::new());
    for (index, element) in elements?.into_iter().enumerate() {
        match entry::parse(element.get().as_bytes(), agent) {
            Ok(entry) => entries.push(entry),
            Err(fault) => rejected.push(RejectedEntry { index, error: fault.to_string() }),
        }
    }
    Ok((entries, rejected))
}

/// Replaces machine names that are the id of another agent: a token speaks for one machine. Agents that share a token can't be
/// distinguished, so each of them may use the id of the other.
fn keep_own_names(config: &ActiveConfig, entries: &mut [FleetEntry]) {
    for entry in entries.iter_mut().filter(|entry| entry.machine != entry.agent) {
        let of = |id: &str| config.agents.iter().find(|agent| agent.id == id);
        let Some(named) = of(&entry.machine) else { continue };
        if of(&entry.agent).is_none_or(|own| own.token != named.token) {
            entry.machine.clone_from(&entry.agent);
        }
    }
}

fn note_malformed(api: &Api, agent: &str, count: usize, fault: &str) {
    for _ in 0..count {
        api.metrics.count_ingest_refusal(IngestRefusal::Malformed);
    }
    api.quotas.note_refused(agent, count, fault);
}

/// Returns a 503 response: the store is unavailable, and the sender keeps its data. The reason is only in the log, since it
/// may contain details that are not meant for agents.
pub(super) fn store_away(fault: &KeepError) -> Response {
    tracing::debug!(%fault, "a request was refused: the store is away");
    let text = "the warden's store is away; try again later";
    retry_later(StatusCode::SERVICE_UNAVAILABLE, text, STORE_RETRY_AFTER)
}

/// Returns the id of the agent that the bearer token of an admitted request belongs to. The tokens may have changed since.
#[allow(clippy::result_large_err)]
pub(super) fn agent(api: &Api, headers: &HeaderMap) -> Result<String, Response> {
    let config = api.config();
    let agent = config.tokens.agent(tokens::bearer(headers).unwrap_or_default());
    let agent = agent.and_then(|agent| config.agents.get(agent));
    let no_agent = || unauthorized("the bearer token belongs to no agent of this warden");
    agent.map(|agent| agent.id.clone()).ok_or_else(no_agent)
}
