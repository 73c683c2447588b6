//! Answers of the endpoints that change something (spec 2.8), and of every refusal.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of every answer that is an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// What was wrong and why.
    pub error: String,
}

/// Answer of `POST /trigger` and `POST /trigger/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum TriggerReply {
    /// A poll was started.
    Triggered {
        /// `all` or the service's name.
        scope: String,
    },
    /// Nothing was started.
    Skipped {
        /// `auto_update is false` or `deploy in progress`.
        reason: String,
    },
}

/// Answer of `POST /redeploy/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RedeployReply {
    /// The redeployment was started.
    Redeploying {
        /// The service's name.
        service: String,
        /// Images that keep what they run, as the last check saw them; left out where there are none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kept: Vec<KeptImage>,
    },
    /// Nothing was started.
    Skipped {
        /// `deploy in progress` or `no compose files configured`.
        reason: String,
    },
}

/// An image that a redeployment leaves on what it runs.
// DECISIONS 7.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptImage {
    /// As configured.
    pub image: String,
    /// The digest that is not deployed.
    pub digest: String,
    /// `blocked` or `signature`.
    pub gate: String,
    /// Why, in one sentence.
    pub why: String,
}

/// What `POST /approve/<name>` may carry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ApproveRequest {
    /// The digest that is meant, `sha256:<hex>`; without it the one that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub digest: Option<String>,
}

/// Answer of `POST /approve/<name>`.
// DECISIONS 7.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ApproveReply {
    /// The digest may be deployed, as far as the approval goes.
    Approved {
        /// The service's name.
        service: String,
        /// What was approved.
        digest: String,
    },
    /// No digest waits for an approval.
    NothingWaiting,
}

/// Answer of `POST /unblock/<name>` and `DELETE /blocked/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnblockReply {
    /// `unblocked` or `not_blocked`.
    pub status: String,
    /// The service's name.
    pub service: String,
}
