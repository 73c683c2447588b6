//! The agent's API: one line per endpoint, in the order of spec 4.1. There is no authentication (spec 5.1); the access
//! rules of DECISIONS 6 are applied before any handler runs.

mod audit_answers;
mod control;
mod docs;
mod history;
pub mod metrics;
mod page;
mod push;
mod read;
mod status_answers;
mod stream;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use evenkeel_common::clock::Clock;
use evenkeel_common::http::openapi::Endpoints;
use evenkeel_common::http::{
    Admitted, Arrival, Bodies, Guard, HeaderMap, Limiter, Limits, Method, Response, StatusCode, error,
};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use warp::filters::BoxedFilter;

pub use audit_answers::AuditAnswers;
pub use push::published;
pub use status_answers::StatusAnswers;

use crate::audit::{Audit, Deliveries};
use crate::config::{ApiConfig, active};
use crate::http::metrics::{Depth, Metrics};
use crate::ports::{Engine, Registry};
use crate::project::services::EngineHealth;
use crate::project::services::{ServiceError, Services};
use crate::service::fleet::FleetView;
use crate::tasks::registry_events::RegistryEventSender;
use crate::tasks::status_publisher::StatusFrames;

/// State shared by all endpoints.
#[derive(Clone)]
pub struct Api {
    /// All services.
    pub services: Arc<Services>,
    /// The engine's images.
    pub images: Arc<dyn Engine>,
    /// The registries.
    pub registry: Arc<dyn Registry>,
    /// Health of the engine.
    pub engine: watch::Receiver<EngineHealth>,
    /// The active configuration.
    pub active: active::Watch,
    /// View of the fleet.
    pub fleet: watch::Receiver<Arc<FleetView>>,
    /// Audit file; `None` if disabled.
    pub audit_path: Option<PathBuf>,
    /// Audit and deliveries; empty until the outbox is loaded.
    pub recording: Arc<OnceLock<Recording>>,
    /// Status frames for streams.
    pub status_frames: StatusFrames,
    /// Limits the number of streams.
    pub stream_limiter: Limiter,
    /// Shared responses of `GET /audit`.
    pub audit_answers: Arc<AuditAnswers>,
    /// The shared response of `GET /status`.
    pub status_answers: Arc<StatusAnswers>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Receives notifications of pushed images.
    pub pushes: RegistryEventSender,
    /// Closes the streams at shutdown.
    pub stop: CancellationToken,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Entries on their way to those who read them.
pub struct Recording {
    /// Entries for replay and live streams.
    pub audit: Audit,
    /// Waiting entries by destination.
    pub queues: Vec<(String, Depth)>,
    /// What became of the entries that leave this machine.
    pub deliveries: Deliveries,
}

/// All endpoints as one filter.
pub fn routes(api: Api, config: &ApiConfig, limits: Limits) -> BoxedFilter<(Response,)> {
    Endpoints::new(docs::ABOUT, api)
        .route(Method::POST, "/trigger", control::trigger_all, docs::trigger_all())
        .route(Method::POST, "/trigger/{name}", control::trigger, docs::trigger())
        .route(Method::GET, "/blocked", read::blocked, docs::blocked())
        .route(Method::DELETE, "/blocked/{name}", control::unblock, docs::unblock())
        .route(Method::POST, "/unblock/{name}", control::unblock, docs::unblock())
        .route_with_body(
            Method::POST,
            "/approve/{name}",
            &small_bodies(),
            allow_all,
            control::approve,
            docs::approve(),
        )
        .route_with_body(
            Method::POST,
            "/rollback/{name}",
            &small_bodies(),
            allow_all,
            history::rollback,
            docs::rollback(),
        )
        .route(Method::GET, "/history/{name}", history::history, docs::history())
        .route(Method::GET, "/not-found", read::not_found, docs::not_found())
        .route(Method::GET, "/errored", read::errored, docs::errored())
        .route(Method::GET, "/status", read::status, docs::status())
        .route(Method::GET, "/status/{name}", read::status_of, docs::status_of())
        .route(Method::GET, "/why/{name}", read::why, docs::why())
        .route(Method::GET, "/audit", read::audit, docs::audit())
        .route(Method::GET, "/health", read::health, docs::health())
        .route(Method::GET, "/metrics", read::metrics, docs::metrics())
        .route(Method::GET, "/ui", page::page, docs::ui())
        .route(Method::POST, "/redeploy/{name}", control::redeploy, docs::redeploy())
        .route(Method::GET, "/ui/events", stream::events, docs::ui_events())
        .route(Method::GET, "/ui/stream", stream::both, docs::ui_stream())
        .route_with_body(
            Method::POST,
            "/registry/events",
            &event_bodies(limits),
            allow_all,
            push::events,
            docs::registry_events(),
        )
        .route(Method::GET, "/", page::root, docs::root())
        .below(config.base_path.clone())
        .into_filter(
            Guard::new(&config.allowed_hosts).open(&["/registry/events"]).pages(&["/", "/ui"]),
            limits,
        )
}

/// Admits a body from every client.
// `Err` would be a refusal; the signature is given by `route_with_body`.
#[allow(clippy::result_large_err, clippy::unnecessary_wraps)]
fn allow_all(_: &Api, _: &HeaderMap, arrival: &Arrival) -> Result<Admitted, Response> {
    Ok(Admitted::as_peer(arrival))
}

/// Memory limits for registry events: eight bodies of maximum size, and half of that per address.
fn event_bodies(limits: Limits) -> Bodies {
    Bodies::new(limits.body_bytes, 8 * limits.body_bytes, 4 * limits.body_bytes)
}

/// Memory limits for requests by users, whose bodies hold only a digest.
fn small_bodies() -> Bodies {
    Bodies::new(4096, 64 * 4096, 16 * 4096)
}

/// Maps a service error to a response.
fn refused(fault: &ServiceError) -> Response {
    let status = match fault {
        ServiceError::Unknown(_) | ServiceError::LeftOut(..) => StatusCode::NOT_FOUND,
        ServiceError::Starting | ServiceError::Stopping | ServiceError::Unwritable(_) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    let answer = error(status, fault.to_string());
    // An agent that stops is usually restarted.
    let is_soon_over = matches!(fault, ServiceError::Starting | ServiceError::Stopping);
    if is_soon_over { retry_soon(answer) } else { answer }
}

/// Adds `Retry-After: 1` to a response.
fn retry_soon(mut answer: Response) -> Response {
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// Builds a response with the given media type.
fn with_type(body: impl Into<Bytes>, media_type: &'static str) -> Response {
    let mut response = Response::new(body.into().into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
