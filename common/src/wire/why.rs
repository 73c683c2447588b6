//! What keeps an update of a service from going live now (`GET /why/<name>`, DECISIONS 7).

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `GET /why/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhyReport {
    /// The service's name.
    pub service: String,
    /// One sentence for people.
    pub answer: String,
    /// All gates, in the order in which they are asked.
    pub gates: Vec<Gate>,
}

/// One condition that an update has to pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gate {
    /// Its word: `config`, `engine`, `registry`, `deploying`, `blocked`, `not_found`, `fault`, `freeze`, `immunity`,
    /// `ring`, `signature`, `command`, `approval`, `min_age`, `window`, `project` or `schedule`.
    pub gate: String,
    /// Whether it holds an update back now.
    pub holds: bool,
    /// Why, in one sentence.
    pub why: String,
    /// When it stops holding by itself; absent where only an event or a person ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub lifts_at: Option<Timestamp>,
    /// The request or change by which a person ends it; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear: Option<String>,
    /// Id of the agent of the fleet on which the digest failed, or that is trying it; absent where it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// What was found there: the last log lines of that machine, at most 8 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}
