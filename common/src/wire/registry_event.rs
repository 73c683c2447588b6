//! What a distribution registry tells about itself (`application/vnd.docker.distribution.events.v1+json`), as far as
//! it is read: whatever else stands in it, and whatever is missing, is no fault.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The envelope of `POST /registry/events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryEvents {
    /// What happened, in order. Each is read for itself, so that one that can't be read spoils no other.
    #[serde(default)]
    pub events: Vec<serde_json::Value>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryEvent {
    /// `push`, `pull`, `delete` or `mount`.
    pub action: String,
    /// What it happened to.
    pub target: RegistryTarget,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryTarget {
    /// Kind of content.
    #[serde(default)]
    pub media_type: String,
    /// Path of the repository.
    #[serde(default)]
    pub repository: String,
    /// Absent for what is not named by a tag.
    #[serde(default)]
    pub tag: String,
}

/// Answer of `POST /registry/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventsReply {
    /// Always `accepted`.
    pub status: String,
}
