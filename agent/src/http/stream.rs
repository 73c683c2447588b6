//! Endpoints that stream (DECISIONS 3).

use std::sync::Arc;

use evenkeel_common::http::{Request, Response};
use evenkeel_common::sse::{self, Frame};
use evenkeel_common::wire::AuditEntry;
use futures_util::{Stream, StreamExt, stream};

use super::Api;

/// Entries only, in unnamed frames.
pub(super) async fn events(api: Api, request: Request) -> Response {
    match api.stream_limiter.admit(request.arrival.peer.ip()) {
        Ok(permit) => sse::reply(entries(&api, &request, None), api.stop, permit),
        Err(refusal) => refusal,
    }
}

/// Entries and status, told apart by name.
pub(super) async fn both(api: Api, request: Request) -> Response {
    let permit = match api.stream_limiter.admit(request.arrival.peer.ip()) {
        Ok(permit) => permit,
        Err(refusal) => return refusal,
    };
    let status = api.status_frames.follow().map(|data| Frame::Event { name: Some("status"), id: None, data });
    sse::reply(stream::select(status, entries(&api, &request, Some("audit"))), api.stop, permit)
}

fn entries(
    api: &Api,
    request: &Request,
    name: Option<&'static str>,
) -> impl Stream<Item = Frame> + Send + Sync + 'static {
    let after = sse::last_event_id(&request.headers);
    let subscription = api.audit.journal().subscribe(sse::REPLAY, after);
    sse::frames(subscription, name, |entry: &Arc<AuditEntry>| sse::json(entry.as_ref()))
}
