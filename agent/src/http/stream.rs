//! Streaming endpoints (DECISIONS 3).

use std::sync::Arc;

use evenkeel_common::http::{Permit, Request, Response};
use evenkeel_common::sse::{self, Frame};
use evenkeel_common::wire::AuditEntry;
use futures_util::{Stream, StreamExt, stream};

use super::{Api, refused};
use crate::project::services::ServiceError;

/// Streams audit entries in unnamed events.
pub(super) async fn events(api: Api, request: Request) -> Response {
    let admitted = begin(&api, &request, None);
    admitted.map_or_else(|refusal| refusal, |(permit, entries)| sse::reply(entries, api.stop, permit))
}

/// Streams audit entries and status, distinguished by event name, after the epoch of the entries' numbers: a page that was opened
/// for another agent, which the same tunnel led to, must not mix the two.
pub(super) async fn both(api: Api, request: Request) -> Response {
    let (permit, entries) = match begin(&api, &request, Some("audit")) {
        Ok(admitted) => admitted,
        Err(refusal) => return refusal,
    };
    let status = api.status_frames.follow().map(|data| Frame::Event { name: Some("status"), id: None, data });
    let epoch = api.recording.get().map(|recording| sse::json(&recording.audit.epoch()));
    let epoch = epoch.map(|data| Frame::Event { name: Some("epoch"), id: None, data });
    sse::reply(stream::iter(epoch).chain(stream::select(status, entries)), api.stop, permit)
}

/// Takes a stream permit and subscribes to the entries. Refuses while the outbox is not loaded or the limit is reached.
#[allow(clippy::result_large_err)] // The error is the response itself.
fn begin(
    api: &Api,
    request: &Request,
    name: Option<&'static str>,
) -> Result<(Permit, impl Stream<Item = Frame> + Send + Sync + use<>), Response> {
    let recording = api.recording.get().ok_or_else(|| refused(&ServiceError::Starting))?;
    let permit = api.stream_limiter.admit(request.arrival.peer.ip())?;
    let after = sse::resume_after(request);
    let subscription = recording.audit.journal().subscribe(sse::REPLAY, after);
    let entries = sse::frames(subscription, name, |entry: &Arc<AuditEntry>| sse::json(entry.as_ref()));
    Ok((permit, entries))
}
