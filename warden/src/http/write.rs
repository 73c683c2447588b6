//! `POST /ingest`: one entry of an agent (DECISIONS 3).

use evenkeel_common::http::{HeaderMap, Request, Response, StatusCode, error, json};
use evenkeel_common::wire::IngestReply;

use super::{Api, unauthorised};
use crate::{access, entry};

/// Refuses whoever is no agent before the body is read.
// A refusal is an answer, made once and sent; boxing it would only add a step.
#[allow(clippy::result_large_err)]
pub(super) fn admit(api: &Api, headers: &HeaderMap) -> Result<(), Response> {
    if agent(api, headers).is_some() {
        return Ok(());
    }
    api.metrics.refused("unauthorised");
    Err(unauthorised("the bearer token is missing, or belongs to no agent of this warden"))
}

fn agent(api: &Api, headers: &HeaderMap) -> Option<usize> {
    api.access.agent(access::bearer(headers).unwrap_or_default())
}

pub(super) async fn ingest(api: Api, request: Request) -> Response {
    let Some(place) = agent(&api, &request.headers) else {
        return unauthorised("the bearer token belongs to no agent of this warden");
    };
    match entry::parse(&request.body, &api.ids[place]) {
        Ok(entry) => {
            api.ring.take(place, &entry);
            json(StatusCode::OK, &IngestReply { status: "accepted".to_owned() })
        }
        Err(fault) => {
            api.metrics.refused("malformed");
            tracing::warn!(agent = api.ids[place], %fault, "an entry was refused");
            error(StatusCode::BAD_REQUEST, fault.to_string())
        }
    }
}
