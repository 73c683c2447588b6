//! Read-only endpoints (spec 4.1).

use evenkeel_common::http::{Request, Response, StatusCode, error, json};
use evenkeel_common::metrics::TEXT_FORMAT;
use evenkeel_common::wire::{AuditEntry, Health};

use serde::Serialize;

use super::{Api, refused, retry_soon, with_type};
use crate::audit::FileSink;
use crate::config::says_it_is_off;
use crate::http::metrics::View;
use crate::model::text;
use crate::project::services::ServiceError;

/// Number of entries that `GET /audit` returns without `limit` (spec 8).
const AUDIT_DEFAULT: usize = 100;
/// Maximum number of entries that `GET /audit` returns (spec 8).
const AUDIT_MAX: usize = 500;

pub(super) async fn blocked(api: Api, _: Request) -> Response {
    read(api.services.blocked())
}

pub(super) async fn not_found(api: Api, _: Request) -> Response {
    read(api.services.not_found())
}

pub(super) async fn errored(api: Api, _: Request) -> Response {
    read(api.services.errored(api.clock.now()))
}

pub(super) async fn status(api: Api, _: Request) -> Response {
    // An empty list would mean that nothing is configured.
    if api.services.is_starting() {
        return refused(&ServiceError::Starting);
    }
    let undelivered = channels_off(&api).into_iter().chain(undelivered(&api)).collect();
    match api.status_answers.get(&api.services, undelivered, api.clock.now()) {
        Ok(body) => with_type(body, "application/json"),
        Err(fault) => {
            error(StatusCode::INTERNAL_SERVER_ERROR, format!("the status can't be written: {fault}"))
        }
    }
}

/// Why channels, or the push, are off.
fn channels_off(api: &Api) -> Vec<String> {
    let warnings = api.active.borrow().warnings.clone();
    warnings.iter().filter(|warning| says_it_is_off(warning)).cloned().collect()
}

/// The channels through which nothing has been delivered for some time.
fn undelivered(api: &Api) -> Vec<String> {
    api.recording.get().map(|recording| recording.deliveries.warnings()).unwrap_or_default()
}

pub(super) async fn status_of(api: Api, request: Request) -> Response {
    read(api.services.status(request.param("name"), api.clock.now()))
}

pub(super) async fn why(api: Api, request: Request) -> Response {
    read(api.services.why(request.param("name"), api.clock.now()))
}

fn read<T: Serialize>(answer: Result<T, ServiceError>) -> Response {
    answer.map_or_else(|fault| refused(&fault), |value| json(StatusCode::OK, &value))
}

/// Newest first. A limit above the maximum is capped; one that is not a positive integer is rejected (DECISIONS 3).
pub(super) async fn audit(api: Api, request: Request) -> Response {
    let limit = match request.query.get("limit").map(|text| text.parse::<usize>()) {
        None => AUDIT_DEFAULT,
        Some(Ok(limit)) if limit > 0 => limit.min(AUDIT_MAX),
        // A number that overflows is above the maximum, too.
        Some(Err(_)) if request.query.get("limit").is_some_and(|text| is_huge(text)) => AUDIT_MAX,
        Some(_) => {
            return error(
                StatusCode::BAD_REQUEST,
                format!("limit must be a positive integer (at most {AUDIT_MAX})"),
            );
        }
    };
    let Some(path) = api.audit_path else { return json(StatusCode::OK, &Vec::<AuditEntry>::new()) };
    let recording = api.recording.get();
    let waiting =
        || recording.map(|recording| recording.audit.waiting_entries(FileSink::NAME)).unwrap_or_default();
    match api.audit_answers.get(&path, limit, waiting).await {
        Ok(body) => with_type(body, "application/json"),
        Err(fault) => error(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the audit file can't be read: {}", text::describe_io_error(&fault)),
        ),
    }
}

fn is_huge(text: &str) -> bool {
    text.len() > 18 && text.bytes().all(|b| b.is_ascii_digit()) && text.bytes().any(|b| b != b'0')
}

/// Returns 200 only once the services are loaded, so that clients waiting for 200 wait for that, too.
pub(super) async fn health(api: Api, _: Request) -> Response {
    let error = api.engine.borrow().error.clone();
    let is_starting = api.services.is_starting();
    let (code, status) = match (is_starting, &error) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
        (false, Some(_)) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        (false, None) => (StatusCode::OK, "ok"),
    };
    let mut config_warnings = api.active.borrow().warnings.as_ref().clone();
    config_warnings.extend(api.services.warnings());
    config_warnings.extend(api.fleet.borrow().warning());
    config_warnings.extend(undelivered(&api));
    let state = api.services.state_error();
    let answer =
        json(code, &Health { status: status.to_owned(), error, state, store: None, config_warnings });
    if is_starting { retry_soon(answer) } else { answer }
}

pub(super) async fn metrics(api: Api, _: Request) -> Response {
    let recording = api.recording.get();
    let view = View {
        report: &api.services.report(api.clock.now()),
        polls: &api.services.poll_state(),
        engine: &api.engine.borrow().clone(),
        fleet: &api.fleet.borrow().clone(),
        stream_clients: api.stream_limiter.taken(),
        queues: recording.map_or(&[], |recording| &recording.queues),
        deliveries: &recording.map(|recording| recording.deliveries.stats()).unwrap_or_default(),
        channels_off: channels_off(&api).len(),
    };
    match api.metrics.text(&view) {
        Ok(text) => with_type(text, TEXT_FORMAT),
        Err(fault) => {
            error(StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics can't be written: {fault}"))
        }
    }
}
