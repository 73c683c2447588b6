//! `POST /ingest`: one entry of an agent (DECISIONS 3).

use evenkeel_common::http::{
    Admitted, Arrival, HeaderMap, Request, Response, StatusCode, error, json, too_many,
};
use evenkeel_common::wire::IngestReply;

use super::metrics::Refusal;
use super::{Api, unauthorised, whole_seconds};
use crate::access::{self, SHORT_TOKEN};
use crate::{entry, guesses};

/// Seconds after which an agent with too many requests at once may come back.
const COME_BACK: u16 = 1;

/// Refuses whoever is no agent, or sends too much at once, before the body is read.
// A refusal is an answer, made once and sent; boxing it would only add a step.
#[allow(clippy::result_large_err)]
pub(super) fn admit(api: &Api, headers: &HeaderMap, arrival: &Arrival) -> Result<Admitted, Response> {
    let token = access::bearer(headers).unwrap_or_default();
    let client = guesses::client(arrival, headers);
    let live = api.live();
    let agent = live.access.agent(token);
    // An agent that was right from there before has nothing to guess: it goes on while somebody behind the same proxy
    // is slowed.
    if !agent.is_some_and(|agent| api.ring.came_from(&live.agents[agent.place].id, client))
        && let Some(wait) = api.guesses.wait(client)
    {
        api.metrics.refused(Refusal::Slowed);
        return Err(too_many("too many wrong tokens came from this address", whole_seconds(wait)));
    }
    let Some(agent) = agent.filter(|agent| !agent.is_short || client.is_loopback()) else {
        api.metrics.refused(Refusal::Unauthorised);
        if !token.is_empty() {
            api.guesses.wrong(client, &access::digest(token), "agents");
        }
        // The same for all, so that nobody learns whether a short one was right.
        return Err(unauthorised(&format!(
            "the bearer token is missing, belongs to no agent of this warden, or has fewer than {SHORT_TOKEN} \
             characters and came from another machine"
        )));
    };
    let id = live.agents[agent.place].id.clone();
    api.ring.comes_from(&id, client);
    let Some(permit) = api.requests.acquire(id.clone()) else {
        api.metrics.refused(Refusal::TooMany);
        return Err(too_many("too many requests of this agent at once", COME_BACK));
    };
    Ok(Admitted::as_sender(id, permit))
}

/// Id of the agent whose token came.
fn agent(api: &Api, headers: &HeaderMap) -> Option<String> {
    let live = api.live();
    let agent = live.access.agent(access::bearer(headers).unwrap_or_default())?;
    Some(live.agents.get(agent.place)?.id.clone())
}

pub(super) async fn ingest(api: Api, request: Request) -> Response {
    let Some(agent) = agent(&api, &request.headers) else {
        return unauthorised("the bearer token belongs to no agent of this warden");
    };
    match entry::parse(&request.body, &agent) {
        Ok(entry) => {
            api.ring.take(&entry);
            json(StatusCode::OK, &IngestReply { status: "accepted".to_owned() })
        }
        Err(fault) => {
            api.metrics.refused(Refusal::Malformed);
            tracing::warn!(agent, %fault, "an entry was refused");
            error(StatusCode::BAD_REQUEST, fault.to_string())
        }
    }
}
