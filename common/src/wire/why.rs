//! Why an update of a service is not deployed now (`GET /why/<name>`, DECISIONS 7).

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `GET /why/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhyReport {
    /// The service's name.
    pub service: String,
    /// One human-readable sentence.
    pub answer: String,
    /// All gates, in the order in which they are evaluated.
    pub gates: Vec<Gate>,
}

/// One condition that an update has to pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gate {
    /// Its name: `config`, `engine`, `registry`, `deploying`, `blocked`, `not_found`, `fault`, `freeze`, `immunity`, `ring`,
    /// `order`, `definition`, `signature`, `breaking`, `snapshot`, `command`, `approval`, `min_age`, `window`, `project` or
    /// `schedule`.
    pub gate: String,
    /// Whether it currently holds back an update.
    pub holds: bool,
    /// Why, in one sentence.
    pub why: String,
    /// When it opens by itself; absent if it only opens on an event or a manual action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub lifts_at: Option<Timestamp>,
    /// The request or change with which an operator opens it; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear: Option<String>,
    /// Id of the agent on which the digest failed, or that is trying it; absent if neither is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// The last log lines of the failure on that machine, at most 8 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}
