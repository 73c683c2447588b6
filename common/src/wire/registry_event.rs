//! Notifications of a distribution registry (`application/vnd.docker.distribution.events.v1+json`), limited to the fields that
//! are used. Unknown and missing fields are not an error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The envelope of `POST /registry/events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryEvents {
    /// The events, in order. Each is parsed separately, so that a malformed one does not affect the others.
    #[serde(default)]
    pub events: Vec<serde_json::Value>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryEvent {
    /// `push`, `pull`, `delete` or `mount`.
    pub action: String,
    /// Target of the event.
    pub target: RegistryTarget,
}

/// The target of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryTarget {
    /// Media type of the content.
    #[serde(default)]
    pub media_type: String,
    /// Path of the repository.
    #[serde(default)]
    pub repository: String,
    /// The tag; absent for untagged content.
    #[serde(default)]
    pub tag: String,
}

/// Response of `POST /registry/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventsReply {
    /// Always `accepted`.
    pub status: String,
}
