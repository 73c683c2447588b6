//! Serving HTTP: listeners, limits, access rules and a table of endpoints, all around one warp filter.
//!
//! ```no_run
//! # use evenkeel_common::http::{self, Guard, Limits, Method, Request, Response, Routes, StatusCode};
//! # use tokio_util::sync::CancellationToken;
//! # type State = ();
//! async fn status_of(_: State, request: Request) -> Response {
//!     http::json(StatusCode::OK, &request.param("name"))
//! }
//! # async fn run(state: State, stop: CancellationToken) -> Result<(), http::BindError> {
//! let limits = Limits::default();
//! let routes = Routes::new(state)
//!     .route(Method::GET, "/status/{name}", status_of)
//!     .into_filter(Guard::new(&[]).open(&["/registry/events"]), limits);
//! let listeners = http::bind(&["127.0.0.1:9090".to_owned()])?;
//! http::serve(listeners, routes, limits, stop).await;
//! # Ok(())
//! # }
//! ```

// A refusal is an answer, made once and sent; boxing it would only add a step everywhere.
#![allow(clippy::result_large_err)]

mod bind;
mod bodies;
mod crowd;
mod guard;
mod limiter;
mod line;
pub mod openapi;
mod reply;
mod routes;
mod server;

use std::time::Duration;

pub use http::{HeaderMap, Method, StatusCode};
pub use warp::reply::Response;

pub use bind::{BindError, bind};
pub use bodies::{Admitted, Bodies};
pub use guard::Guard;
pub use limiter::{Limiter, Permit, too_many};
pub use reply::{error, json, json_with_array};
pub use routes::{Request, Routes};
pub use server::{Arrival, serve};

/// What a client may take from us (DECISIONS 6).
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Size of a request's head; more is 431.
    pub header_bytes: usize,
    /// Time from the first byte of a head (or from connecting) to its end; then the connection is cut.
    pub header_time: Duration,
    /// Size of a request's body; more is 413.
    pub body_bytes: usize,
    /// Time for a request's body; then 408.
    pub body_time: Duration,
    /// Time that a connection may stay open between two requests.
    pub idle: Duration,
    /// Time for an answer that has an end, from its first byte to the last one that hyper takes.
    pub answer_time: Duration,
    /// Time in which a write must make progress, in a stream too.
    pub write_time: Duration,
    /// Connections in all. For one more, the one that has kept us waiting longest is cut; where none waits it gets 503.
    pub connections: usize,
    /// Connections of one peer address, by the same rule.
    pub connections_per_peer: usize,
    /// What answers may hold together that their clients have not taken; beyond it the oldest such client is cut.
    pub unsent_bytes: usize,
    /// Time for requests under way to end when the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 16 * 1024,
            header_time: Duration::from_secs(10),
            body_bytes: 1024 * 1024,
            body_time: Duration::from_secs(30),
            idle: Duration::from_mins(2),
            // Streams hold one each, and the usual limit on open files is 1,024.
            connections: 768,
            connections_per_peer: 640,
            unsent_bytes: 32 * 1024 * 1024,
            answer_time: Duration::from_mins(2),
            write_time: Duration::from_secs(30),
            drain: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod tests;
