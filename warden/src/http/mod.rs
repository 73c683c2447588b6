//! The warden's HTTP API: one route per endpoint, in the order of spec 4.3.

mod assets;
mod authorize;
mod decide;
mod docs;
mod fleet;
mod fleet_metrics;
mod history;
mod ingest;
mod login;
mod metrics;
mod page;
mod quota;
mod read;
mod store_metrics;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::http::openapi::Endpoints;
use evenkeel_common::http::{Bodies, Guard, Limiter, Limits, Method, Response};
use warp::filters::BoxedFilter;

use crate::auth::throttle::LoginThrottle;
use crate::collector::Collector;
use crate::reload::ConfigReceiver;

pub use metrics::Metrics;
pub use quota::Quotas;

/// State shared by the endpoints.
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
    /// Limit on long polls of agents, by id.
    pub polls: Limiter<String>,
    /// Limits on the rates of agents.
    pub quotas: Arc<Quotas>,
    /// Memory for request bodies.
    pub bodies: Budgets,
    /// Limit on wrong tokens.
    pub throttle: Arc<LoginThrottle>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Memory for request bodies by who sends them; none of them can use up another's.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// Agents.
    pub agents: Bodies,
    /// Users with a session or `api.token`.
    pub users: Bodies,
    /// Anybody, at the login form.
    pub logins: Bodies,
}

/// Maximum size of a body of a user or of a login form, in bytes.
const SMALL: usize = 4096;

/// The server's limits. They are higher than the agent's (DECISIONS 6): all streams need the token, and behind a proxy all
/// clients have the same address.
pub fn limits() -> Limits {
    Limits {
        connections: 8192,
        connections_per_peer: 7168,
        // The largest responses cover ten thousand agents.
        unsent_bytes: 128 * 1024 * 1024,
        // Agents keep their connection open between two entries.
        idle: Duration::from_mins(2),
        ..Limits::default()
    }
}

/// Limit on streams: 4,096, even from one address.
pub fn stream_limiter() -> Limiter {
    Limiter::new(4096, 4096)
}

/// Limit on concurrent requests: 16 per agent. A correct agent sends in order and needs one; an agent that floods the warden
/// takes neither memory nor time from the others.
pub fn request_limiter() -> Limiter<String> {
    Limiter::new(usize::MAX, 16)
}

/// Limit on long polls: 4 per agent, which needs one. The total is lower than the number of connections, so that there is
/// always one left for other requests.
pub fn poll_limiter() -> Limiter<String> {
    Limiter::new(6144, 4)
}

/// Memory for request bodies. One agent may use a sixteenth of that for agents, and so may a stranger of that for logins.
pub fn bodies(limits: Limits) -> Budgets {
    Budgets {
        agents: Bodies::new(limits.body_bytes, 64 * limits.body_bytes, 4 * limits.body_bytes),
        users: Bodies::new(SMALL, 64 * SMALL, 64 * SMALL),
        logins: Bodies::new(SMALL, 256 * SMALL, 16 * SMALL),
    }
}

/// All endpoints as one filter.
pub fn routes(api: Api, limits: Limits) -> BoxedFilter<(Response,)> {
    let Budgets { agents, users, logins } = &api.bodies.clone();
    let base_path = api.config().base_path.clone();
    Endpoints::new(docs::ABOUT, api)
        .route_with_body(Method::POST, "/ingest", agents, ingest::admit, ingest::ingest, docs::ingest())
        .route(Method::GET, "/events", read::events, docs::events())
        .route(Method::GET, "/", page::page, docs::page())
        .route_with_body(Method::POST, "/login", logins, login::admit, login::login, docs::login())
        .route(Method::POST, "/logout", login::logout, docs::logout())
        .route(Method::GET, "/health", read::health, docs::health())
        .route(Method::GET, "/machines", read::machines, docs::machines())
        .route(Method::GET, "/history", history::history, docs::history())
        .route(Method::GET, "/fleet", fleet::decisions, docs::decisions())
        .route_with_body(Method::POST, "/fleet/ask", agents, ingest::admit, fleet::ask, docs::ask())
        .route_with_body(
            Method::POST,
            "/fleet/release",
            agents,
            ingest::admit,
            fleet::release,
            docs::release(),
        )
        .route_with_body(
            Method::POST,
            "/inventory",
            agents,
            ingest::admit,
            fleet::inventory,
            docs::inventory(),
        )
        .route(Method::GET, "/fleet/images", decide::images, docs::images())
        .route_with_body(Method::POST, "/freeze", users, decide::admit, decide::freeze, docs::freeze())
        .route_with_body(Method::POST, "/thaw", users, decide::admit, decide::thaw, docs::thaw())
        .route_with_body(Method::POST, "/unblock", users, decide::admit, decide::unblock, docs::unblock())
        .route(Method::GET, "/metrics", metrics::metrics, docs::metrics())
        .below(base_path)
        .into_filter(Guard::any_host().pages(&["/"]), limits)
}
