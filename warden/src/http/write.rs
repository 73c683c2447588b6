//! `POST /ingest`: one entry of an agent (DECISIONS 3).

use evenkeel_common::http::{HeaderMap, Permit, Request, Response, StatusCode, error, json, too_many};
use evenkeel_common::wire::IngestReply;

use super::metrics::Refusal;
use super::{Api, unauthorised};
use crate::{access, entry};

/// Seconds after which an agent with too many requests at once may come back.
const COME_BACK: u16 = 1;

/// Refuses whoever is no agent, or sends too much at once, before the body is read.
// A refusal is an answer, made once and sent; boxing it would only add a step.
#[allow(clippy::result_large_err)]
pub(super) fn admit(api: &Api, headers: &HeaderMap) -> Result<Permit, Response> {
    let Some(agent) = agent(api, headers) else {
        api.metrics.refused(Refusal::Unauthorised);
        return Err(unauthorised("the bearer token is missing, or belongs to no agent of this warden"));
    };
    let Some(seat) = api.requests.take(agent) else {
        api.metrics.refused(Refusal::TooMany);
        return Err(too_many("too many requests of this agent at once", COME_BACK));
    };
    Ok(Box::new(seat))
}

/// Id of the agent whose token came.
fn agent(api: &Api, headers: &HeaderMap) -> Option<String> {
    let live = api.live();
    let place = live.access.agent(access::bearer(headers).unwrap_or_default())?;
    Some(live.agents.get(place)?.id.clone())
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
