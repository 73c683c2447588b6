//! The warden's endpoints: one line each, in the order of spec 4.3.

mod metrics;
mod page;
mod read;
mod write;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::http::{
    Guard, HeaderMap, Limits, Method, Request, Response, Routes, Seats, StatusCode, error,
};
use http::header::{HeaderValue, WWW_AUTHENTICATE};
use warp::filters::BoxedFilter;

use crate::access;
use crate::live::{Live, Watch};
use crate::ring::Ring;

pub use metrics::Metrics;

/// What the endpoints share.
#[derive(Clone)]
pub struct Api {
    /// Who may ask.
    pub live: Watch,
    /// Entries and machines.
    pub ring: Arc<Ring>,
    /// Places for streams.
    pub seats: Seats,
    /// Places for the requests of agents, by their ids.
    pub requests: Seats<String>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// The warden's limits are wider than the agent's (DECISIONS 6): all its streams need the token, and behind a proxy
/// all its clients have one address.
pub fn limits() -> Limits {
    Limits {
        connections: 8192,
        connections_per_peer: 7168,
        // A connection that an agent keeps between two entries.
        idle: Duration::from_mins(2),
        ..Limits::default()
    }
}

/// Places for streams: 4,096, for one address too.
pub fn stream_seats() -> Seats {
    Seats::new(4096, 4096)
}

/// Places for requests of agents: 16 for each. One that sends in order, as it should, needs one; one that floods the
/// warden takes neither memory nor time from the others.
pub fn request_seats() -> Seats<String> {
    Seats::new(usize::MAX, 16)
}

/// All endpoints as one filter.
pub fn routes(api: Api, limits: Limits) -> BoxedFilter<(Response,)> {
    Routes::new(api)
        .route_admitting(Method::POST, "/ingest", write::admit, write::ingest)
        .route(Method::GET, "/events", read::events)
        .route(Method::GET, "/", page::page)
        .route(Method::POST, "/logout", page::logout)
        .route(Method::GET, "/health", read::health)
        .route(Method::GET, "/machines", read::machines)
        .route(Method::GET, "/metrics", metrics::metrics)
        .into_filter(Guard::any_host(), limits)
}

impl Api {
    /// The configuration in force at this moment.
    fn live(&self) -> Arc<Live> {
        self.live.borrow().clone()
    }

    /// Whether a request brings the token for people: in the query, in the cookie, or as bearer.
    fn admits(&self, request: &Request) -> bool {
        self.admits_page(request) || self.admits_bearer(&request.headers)
    }

    /// In the query or in the cookie.
    fn admits_page(&self, request: &Request) -> bool {
        let query = request.query.get(access::TOKEN);
        query.is_some_and(|token| self.live().access.is_api(token)) || self.admits_cookie(&request.headers)
    }

    fn admits_cookie(&self, headers: &HeaderMap) -> bool {
        access::cookies(headers).iter().any(|token| self.live().access.is_api(token))
    }

    fn admits_bearer(&self, headers: &HeaderMap) -> bool {
        access::bearer(headers).is_some_and(|token| self.live().access.is_api(token))
    }
}

/// 401 as JSON.
fn unauthorised(what: &str) -> Response {
    challenge(error(StatusCode::UNAUTHORIZED, what))
}

fn challenge(mut response: Response) -> Response {
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
