//! The HTTP server: listeners, limits, access rules and a routing table, built around one warp filter.
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

// An error response is created once and sent; boxing it everywhere would gain nothing.
#![allow(clippy::result_large_err)]

mod authority;
mod base_path;
mod bind;
mod bodies;
mod connection;
mod connections;
mod guard;
mod limiter;
pub mod openapi;
mod reply;
mod routes;
mod server;

use std::time::Duration;

pub use http::{HeaderMap, Method, StatusCode};
pub use warp::reply::Response;

pub use base_path::BasePath;
pub use bind::{BindError, bind};
pub use bodies::{Admitted, Bodies};
pub use guard::Guard;
pub use limiter::{Limiter, Permit, too_many};
pub use reply::{error, json, retry_later};
pub use routes::{Request, Routes};
pub use server::{Arrival, serve};

/// Resource limits for clients (DECISIONS 6).
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum size of a request head; a larger one gets 431.
    pub header_bytes: usize,
    /// Time limit for a request head, from its first byte (or from connecting); after it the connection is closed.
    pub header_time: Duration,
    /// Maximum size of a request body; a larger one gets 413.
    pub body_bytes: usize,
    /// Time limit for a request body; after it the client gets 408.
    pub body_time: Duration,
    /// How long a connection may stay open between two requests.
    pub idle: Duration,
    /// Time limit for sending a finite response, from its first byte until hyper has accepted the last one.
    pub answer_time: Duration,
    /// Time in which a write must make progress, including in streams.
    pub write_time: Duration,
    /// Maximum number of connections. For a new one beyond it, the connection that has kept the server waiting longest is
    /// closed. If none is waiting, the new one gets 503.
    pub connections: usize,
    /// Maximum number of connections per peer address, by the same rule.
    pub connections_per_peer: usize,
    /// Maximum total size of responses that clients have not read yet. Beyond it, the connection that has been waiting
    /// longest is closed.
    pub unsent_bytes: usize,
    /// How long requests in progress may take to finish during shutdown.
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
            // Each stream needs one, and the usual limit on open files is 1,024.
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
