//! `POST /ingest`: one entry of an agent (DECISIONS 3).

use evenkeel_common::http::{
    Admitted, Arrival, HeaderMap, Request, Response, StatusCode, error, json, too_many,
};
use evenkeel_common::wire::IngestReply;

use super::Api;
use super::authorize::{unauthorized, whole_seconds};
use super::metrics::IngestRefusal;
use crate::auth::throttle;
use crate::auth::tokens::{self, MIN_TOKEN_BYTES};
use crate::fleet::entry;

/// `Retry-After` in seconds for an agent with too many concurrent requests.
const RETRY_AFTER: u16 = 1;

/// Refuses a request before its body is read: without an agent's token, or beyond the agent's limit.
// A refusal is an answer, made once and sent; boxing it would only add a step.
#[allow(clippy::result_large_err)]
pub(super) fn admit(api: &Api, headers: &HeaderMap, arrival: &Arrival) -> Result<Admitted, Response> {
    let token = tokens::bearer(headers).unwrap_or_default();
    let client = throttle::client_address(arrival, headers);
    let config = api.config();
    let agent = config.tokens.agent(token);
    // An agent that has authenticated from this address before is not guessing: it goes on while another client behind
    // the same proxy is throttled.
    if !agent.is_some_and(|agent| api.fleet.is_known_address(&config.agents[agent.index].id, client))
        && let Some(wait) = api.throttle.retry_after(client)
    {
        api.metrics.count_ingest_refusal(IngestRefusal::Throttled);
        return Err(too_many("too many wrong tokens came from this address", whole_seconds(wait)));
    }
    let Some(agent) = agent.filter(|agent| !agent.is_short || client.is_loopback()) else {
        api.metrics.count_ingest_refusal(IngestRefusal::Unauthorized);
        if !token.is_empty() {
            api.throttle.record_failure(client, &tokens::digest(token), "agent");
        }
        // One text for all cases, so that it does not tell whether a short token was right.
        return Err(unauthorized(&format!(
            "the bearer token is missing, belongs to no agent of this warden, or has fewer than {MIN_TOKEN_BYTES} \
             characters and came from another machine"
        )));
    };
    let id = config.agents[agent.index].id.clone();
    api.fleet.record_address(&id, client);
    let Some(permit) = api.requests.acquire(id.clone()) else {
        api.metrics.count_ingest_refusal(IngestRefusal::TooMany);
        return Err(too_many("this agent has too many requests under way", RETRY_AFTER));
    };
    Ok(Admitted::as_sender(id, permit))
}

pub(super) async fn ingest(api: Api, request: Request) -> Response {
    let Some(agent) = agent(&api, &request.headers) else {
        return unauthorized("the bearer token belongs to no agent of this warden");
    };
    match entry::parse(&request.body, &agent) {
        Ok(entry) => {
            api.fleet.store(&entry);
            json(StatusCode::OK, &IngestReply { status: "accepted".to_owned() })
        }
        Err(fault) => {
            api.metrics.count_ingest_refusal(IngestRefusal::Malformed);
            tracing::warn!(agent, %fault, "an entry was refused");
            error(StatusCode::BAD_REQUEST, fault.to_string())
        }
    }
}

/// Id of the agent that the bearer token belongs to.
fn agent(api: &Api, headers: &HeaderMap) -> Option<String> {
    let config = api.config();
    let agent = config.tokens.agent(tokens::bearer(headers).unwrap_or_default())?;
    Some(config.agents.get(agent.index)?.id.clone())
}
