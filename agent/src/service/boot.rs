//! Restarts of the agent and of the machine: which deployment is resumed, and which containers stopped because the
//! machine went down. A clean shutdown stops containers the same way an operator does, one by one and with exit code
//! 0, and the agent no longer runs at that point.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Why a service is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartReason {
    /// The agent was started.
    Start,
    /// Its configuration was changed while the agent ran.
    Reload,
}

/// The boots of the machine that are known to the agent; an ID is empty if unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Boot {
    /// The current boot.
    pub now: Arc<str>,
    /// The boot in which the agent was last stopped, if it could be recorded.
    pub before: Arc<str>,
    /// Time of the current boot by the current clock.
    pub at: Timestamp,
}

/// The clock that the times in the durable state refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedClock {
    /// The machine's boot.
    pub boot: String,
    /// Time of that boot by this clock.
    pub at: Timestamp,
    /// The clock is behind: it showed an earlier time than in a previous boot, and was not set forward since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_behind: bool,
}

/// The containers that ran when the agent was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownSnapshot {
    /// The machine's boot at that time.
    pub boot: String,
    /// Full IDs of the containers that ran.
    pub running: BTreeSet<String>,
}
