//! Responses of the endpoints that change something (spec 2.8), and error responses.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SnapshotRecord, Tenths};

/// Body of every error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The error and its cause.
    pub error: String,
}

/// Response of `POST /trigger` and `POST /trigger/<name>`.
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

/// Response of the warden's `POST /logout`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum LogoutReply {
    /// The session cookie is deleted.
    LoggedOut,
}

/// Response of `POST /redeploy/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RedeployReply {
    /// The redeployment was started.
    Redeploying {
        /// The service's name.
        service: String,
        /// Images that stay on their running digest, as of the last check; omitted if there are none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kept: Vec<KeptImage>,
    },
    /// Nothing was started.
    Skipped {
        /// `deploy in progress` or `no compose files configured`.
        reason: String,
    },
}

/// An image that a redeployment leaves on its running digest.
// DECISIONS 7.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptImage {
    /// Image as configured.
    pub image: String,
    /// The digest that will not be deployed.
    pub digest: String,
    /// `blocked` or `signature`.
    pub gate: String,
    /// Why, in one sentence.
    pub why: String,
}

/// Optional body of `POST /approve/<name>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ApproveRequest {
    /// The digest to approve, `sha256:<hex>`; by default the one that is waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub digest: Option<String>,
}

/// Response of `POST /approve/<name>`.
// DECISIONS 7.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ApproveReply {
    /// The digest is approved; other gates may still hold it.
    Approved {
        /// The service's name.
        service: String,
        /// The approved digest.
        digest: String,
    },
    /// No digest is waiting for approval.
    NothingWaiting,
}

/// Optional body of `POST /rollback/<name>`.
// DECISIONS 14.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RollbackRequest {
    /// The digest to go back to, `sha256:<hex>`, as listed by `GET /history/<name>`; by default the one that was proven before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub to: Option<String>,
    /// Whether to put back the data of that image, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub data: bool,
    /// Whether only to say what would be done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Response of `POST /rollback/<name>`.
// DECISIONS 14.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RollbackReply {
    /// The earlier image is being deployed.
    RollingBack {
        /// The service's name.
        service: String,
        /// The digest that it goes back to; of several images, the first.
        to: String,
    },
    /// Nothing was started.
    Skipped {
        /// `deploy in progress`, `no earlier image` or `no compose files configured`.
        reason: String,
    },
    /// What would be done (`dry_run`).
    Planned(RollbackPlan),
}

/// What a rollback by hand would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RollbackPlan {
    /// The service's name.
    pub service: String,
    /// The images that go back.
    pub images: Vec<PlannedImage>,
    /// The data that the earlier images had when they were left, if there is a snapshot of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotRecord>,
    /// Whether it is put back, and the data of now set aside.
    pub puts_data_back: bool,
    /// How long the last deployment has interrupted the service, in seconds; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_outage_seconds: Option<Tenths>,
}

/// An image that would go back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedImage {
    /// The digest that is left, and blocked; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<String>,
    /// What it goes back to.
    pub to: ProvenRecord,
}

/// An image that was proven here, in the response of `GET /history/<name>`.
// DECISIONS 14.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProvenRecord {
    /// Image as configured.
    pub image: String,
    /// Its digest, `sha256:<hex>`.
    pub digest: String,
    /// Its ID on this machine.
    pub id: String,
    /// When it was proven last.
    #[schemars(with = "String")]
    pub proven_at: Timestamp,
    /// When it was left for another one that was proven; absent for the one that was proven last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub left_at: Option<Timestamp>,
    /// Whether it runs now. The one that was proven last does not if somebody has put another one in its place. Absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs: bool,
    /// Whether it is on this machine's disk. One that is not is pulled by its digest.
    pub on_disk: bool,
    /// Its version, according to its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The ID of the snapshot that was taken when it was left: the data that `"data": true` puts back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// Response of `POST /unblock/<name>` and `DELETE /blocked/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnblockReply {
    /// `unblocked` or `not_blocked`.
    pub status: String,
    /// The service's name.
    pub service: String,
}
