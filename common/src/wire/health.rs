//! Response of `GET /health` (spec 2.8).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `{"status":"ok"}` with 200; with 503 `{"status":"starting"}` until the services are loaded, or
/// `{"status":"unavailable","error":…}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `ok`, `starting` or `unavailable`.
    pub status: String,
    /// Why the container engine is considered unavailable. From the warden: why its store is unreachable, or what was
    /// damaged, only for requests with `api.token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why the program cannot write its state; nothing is deployed or healed meanwhile. Absent if writes succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `away` while the warden cannot reach its store; `damaged` as long as a damaged file of it is set aside, while the store
    /// itself works. Absent otherwise, and from an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Configuration warnings, each `<service>: <reason>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_warnings: Vec<String>,
}
