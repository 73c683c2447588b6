//! The warden's HTTP API: one line for each endpoint, in the order of spec 4.3.

mod authorize;
mod history;
mod ingest;
mod login;
mod metrics;
mod page;
mod read;
mod store_metrics;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::http::{Bodies, Guard, Limiter, Limits, Method, Response, Routes};
use warp::filters::BoxedFilter;

use crate::auth::throttle::LoginThrottle;
use crate::collector::Collector;
use crate::reload::ConfigReceiver;

pub use metrics::Metrics;

/// What the endpoints share.
#[derive(Clone)]
pub struct Api {
    /// Tokens and agents.
    pub config: ConfigReceiver,
    /// Entries and machines.
    pub collector: Arc<Collector>,
    /// Limit on streams.
    pub streams: Limiter,
    /// Limit on concurrent requests of agents, by id.
    pub requests: Limiter<String>,
    /// Memory for the bodies of agents, and for those of logins: neither takes the other's.
    pub bodies: (Bodies, Bodies),
    /// Limit on wrong tokens.
    pub throttle: Arc<LoginThrottle>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Bytes that the login form may send.
const LOGIN_BYTES: usize = 4096;

/// The server's limits. They are wider than the agent's (DECISIONS 6): all streams need the token, and behind a proxy all
/// clients have one address.
pub fn limits() -> Limits {
    Limits {
        connections: 8192,
        connections_per_peer: 7168,
        // The largest answers are those about ten thousand agents.
        unsent_bytes: 128 * 1024 * 1024,
        // An agent keeps its connection between two entries.
        idle: Duration::from_mins(2),
        ..Limits::default()
    }
}

/// Limit on streams: 4,096, also from one address.
pub fn stream_limiter() -> Limiter {
    Limiter::new(4096, 4096)
}

/// Limit on concurrent requests: 16 for each agent. One that sends in order, as it should, needs one; one that floods the
/// warden takes neither memory nor time from the others.
pub fn request_limiter() -> Limiter<String> {
    Limiter::new(usize::MAX, 16)
}

/// Memory for the bodies of agents, of which one may take a sixteenth, and for those of logins.
pub fn bodies(limits: Limits) -> (Bodies, Bodies) {
    let agents = Bodies::new(limits.body_bytes, 64 * limits.body_bytes, 4 * limits.body_bytes);
    (agents, Bodies::new(LOGIN_BYTES, 256 * LOGIN_BYTES, 64 * LOGIN_BYTES))
}

/// All endpoints as one filter.
pub fn routes(api: Api, limits: Limits) -> BoxedFilter<(Response,)> {
    let (agent_bodies, login_bodies) = api.bodies.clone();
    Routes::new(api)
        .route_with_body(Method::POST, "/ingest", &agent_bodies, ingest::admit, ingest::ingest)
        .route(Method::GET, "/events", read::events)
        .route(Method::GET, "/", page::page)
        .route_with_body(Method::POST, "/login", &login_bodies, login::admit, login::login)
        .route(Method::POST, "/logout", login::logout)
        .route(Method::GET, "/health", read::health)
        .route(Method::GET, "/machines", read::machines)
        .route(Method::GET, "/history", history::history)
        .route(Method::GET, "/metrics", metrics::metrics)
        .into_filter(Guard::any_host().pages(&["/"]), limits)
}
