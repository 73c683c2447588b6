//! Endpoints that only show (spec 4.1).

use evenkeel_common::http::{Request, Response, StatusCode, error, json};
use evenkeel_common::wire::{AuditEntry, Health};

use super::{Api, refused, with_type};
use crate::http::metrics::View;
use crate::model::text;

/// Entries that `GET /audit` gives without `limit` (spec 8).
const AUDIT_DEFAULT: usize = 100;
/// Prometheus' text form.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Most entries that `GET /audit` gives (spec 8).
const AUDIT_MAX: usize = 500;

pub(super) async fn blocked(api: Api, _: Request) -> Response {
    json(StatusCode::OK, &api.services.blocked())
}

pub(super) async fn not_found(api: Api, _: Request) -> Response {
    json(StatusCode::OK, &api.services.not_found())
}

pub(super) async fn errored(api: Api, _: Request) -> Response {
    json(StatusCode::OK, &api.services.errored(api.clock.now()))
}

pub(super) async fn status(api: Api, _: Request) -> Response {
    json(StatusCode::OK, &api.services.report(api.clock.now()))
}

pub(super) async fn status_of(api: Api, request: Request) -> Response {
    match api.services.status(request.param("name"), api.clock.now()) {
        Ok(record) => json(StatusCode::OK, &record),
        Err(fault) => refused(&fault),
    }
}

pub(super) async fn why(api: Api, request: Request) -> Response {
    match api.services.why(request.param("name"), api.clock.now()) {
        Ok(report) => json(StatusCode::OK, &report),
        Err(fault) => refused(&fault),
    }
}

/// Newest first. A limit over the maximum is the maximum; one that is no positive integer is refused
/// (DECISIONS 3).
pub(super) async fn audit(api: Api, request: Request) -> Response {
    let limit = match request.query.get("limit").map(|text| text.parse::<usize>()) {
        None => AUDIT_DEFAULT,
        Some(Ok(limit)) if limit > 0 => limit.min(AUDIT_MAX),
        // Digits only, but more than fit: that is over the maximum, too.
        Some(Err(_)) if request.query.get("limit").is_some_and(|text| is_huge(text)) => AUDIT_MAX,
        Some(_) => {
            return error(
                StatusCode::BAD_REQUEST,
                format!("limit must be a positive integer (at most {AUDIT_MAX})"),
            );
        }
    };
    let Some(path) = api.audit_path else { return json(StatusCode::OK, &Vec::<AuditEntry>::new()) };
    match api.audit_answers.get(&path, limit).await {
        Ok(body) => with_type(body, "application/json"),
        Err(fault) => error(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the audit file cannot be read: {}", text::plainly(&fault)),
        ),
    }
}

fn is_huge(text: &str) -> bool {
    text.len() > 18 && text.bytes().all(|b| b.is_ascii_digit()) && text.bytes().any(|b| b != b'0')
}

pub(super) async fn health(api: Api, _: Request) -> Response {
    let error = api.engine.borrow().error.clone();
    let (code, status) = if error.is_some() {
        (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
    } else {
        (StatusCode::OK, "ok")
    };
    let mut config_warnings = api.active.borrow().warnings.as_ref().clone();
    config_warnings.extend(api.services.warnings());
    json(
        code,
        &Health { status: status.to_owned(), error, state: api.services.state_error(), config_warnings },
    )
}

pub(super) async fn metrics(api: Api, _: Request) -> Response {
    let view = View {
        report: &api.services.report(api.clock.now()),
        polls: &api.services.poll_state(),
        engine: &api.engine.borrow().clone(),
        stream_clients: api.stream_limiter.taken(),
        queues: &api.queues,
        deliveries: &api.deliveries.stats(),
    };
    match api.metrics.text(&view) {
        Ok(text) => with_type(text, TEXT_FORMAT),
        Err(fault) => {
            error(StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics can't be written: {fault}"))
        }
    }
}
