//! The agent's API: one line per endpoint, in the order of spec 4.1. No login (spec 5.1); the access rules of
//! DECISIONS 6 are applied before any of this.

mod control;
mod page;
mod read;

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_common::clock::Clock;
use evenkeel_common::http::{Guard, Limits, Method, Response, Routes, StatusCode, error};
use tokio::sync::watch;
use warp::filters::BoxedFilter;

use crate::fleet::{Fleet, FleetError};
use crate::live;
use crate::tasks::daemon_health::EngineHealth;

/// What the endpoints share.
#[derive(Clone)]
pub struct Api {
    /// All services.
    pub fleet: Arc<Fleet>,
    /// How the engine is.
    pub engine: watch::Receiver<EngineHealth>,
    /// The configuration in force.
    pub live: live::Watch,
    /// Audit file; `None` when it is off.
    pub audit_path: Option<PathBuf>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// All endpoints as one filter.
pub fn routes(api: Api, allowed_hosts: &[String], limits: Limits) -> BoxedFilter<(Response,)> {
    Routes::new(api)
        .route(Method::POST, "/trigger", control::trigger_all)
        .route(Method::POST, "/trigger/{name}", control::trigger)
        .route(Method::GET, "/blocked", read::blocked)
        .route(Method::DELETE, "/blocked/{name}", control::unblock)
        .route(Method::POST, "/unblock/{name}", control::unblock)
        .route(Method::GET, "/not-found", read::not_found)
        .route(Method::GET, "/errored", read::errored)
        .route(Method::GET, "/status", read::status)
        .route(Method::GET, "/status/{name}", read::status_of)
        .route(Method::GET, "/audit", read::audit)
        .route(Method::GET, "/health", read::health)
        .route(Method::GET, "/ui", page::page)
        .route(Method::POST, "/redeploy/{name}", control::redeploy)
        .into_filter(Guard::new(allowed_hosts, &[]), limits)
}

/// A refusal of the fleet as an answer.
fn refused(fault: &FleetError) -> Response {
    let status = match fault {
        FleetError::Unknown(_) => StatusCode::NOT_FOUND,
        FleetError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, fault.to_string())
}
