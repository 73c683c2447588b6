//! Metrics hook: the outcome and duration of requests to registries and their token services; and the time of a server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::DATE;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Answered, redirects included.
    Ok,
    /// 404.
    NotFound,
    /// 401 or 403. The first request to a registry that requires a login has this outcome.
    Unauthorized,
    /// 429.
    Limited,
    /// Any other 4xx.
    Refused,
    /// 5xx.
    ServerError,
    /// No response: connection failure, TLS failure or timeout.
    Unreachable,
}

impl RequestOutcome {
    /// All outcomes.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::NotFound,
        Self::Unauthorized,
        Self::Limited,
        Self::Refused,
        Self::ServerError,
        Self::Unreachable,
    ];

    pub(crate) fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            401 | 403 => Self::Unauthorized,
            404 => Self::NotFound,
            429 => Self::Limited,
            400..500 => Self::Refused,
            500.. => Self::ServerError,
            _ => Self::Ok,
        }
    }

    /// Its metric label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotFound => "not_found",
            Self::Unauthorized => "unauthorized",
            Self::Limited => "limited",
            Self::Refused => "refused",
            Self::ServerError => "server_error",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Returns a server's time (`Date` header, whole seconds), if it sends it.
pub(crate) fn server_time(headers: &HeaderMap) -> Option<Timestamp> {
    DateTimeParser::new().parse_timestamp(headers.get(DATE)?.to_str().ok()?).ok()
}

/// Receives the server's time.
pub type DateSink = Arc<dyn Fn(Timestamp) + Send + Sync>;

/// Callback that records every request.
#[derive(Clone)]
pub struct Meter(Arc<dyn Fn(RequestOutcome, Duration) + Send + Sync>);

impl Meter {
    /// Creates a meter that calls `record`.
    pub fn new(record: impl Fn(RequestOutcome, Duration) + Send + Sync + 'static) -> Self {
        Self(Arc::new(record))
    }

    pub(crate) fn record(&self, outcome: RequestOutcome, took: Duration) {
        (self.0)(outcome, took);
    }
}

impl Default for Meter {
    /// Records nothing.
    fn default() -> Self {
        Self::new(|_, _| {})
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}
