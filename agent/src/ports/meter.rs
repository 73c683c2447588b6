//! How requests to registries and their token services end and how long they take, told to whoever counts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;

/// How one request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Answered, redirects included.
    Ok,
    /// 404.
    NotFound,
    /// 401 or 403. The first request to a registry with a login ends so.
    Unauthorized,
    /// 429.
    Limited,
    /// Refused with any other 4xx.
    Refused,
    /// 5xx.
    ServerError,
    /// No answer: no connection, no TLS, too slow.
    Unreachable,
}

impl RequestOutcome {
    /// All of them.
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

    /// Its word in metrics.
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

/// Is told the time that the other side says it is (`Date`, whole seconds).
pub type DateSink = Arc<dyn Fn(Timestamp) + Send + Sync>;

/// Is told about every request.
#[derive(Clone)]
pub struct Meter(Arc<dyn Fn(RequestOutcome, Duration) + Send + Sync>);

impl Meter {
    /// A meter that calls `tell`.
    pub fn new(tell: impl Fn(RequestOutcome, Duration) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, outcome: RequestOutcome, took: Duration) {
        (self.0)(outcome, took);
    }
}

impl Default for Meter {
    /// Nobody counts.
    fn default() -> Self {
        Self::new(|_, _| {})
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}
