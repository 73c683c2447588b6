//! An entry as an agent pushes it to the warden (DECISIONS 3, `POST /ingest`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AuditEntry;

/// An audit entry with the additional fields for a fleet. They follow the fields of the entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PushedEntry {
    /// The entry.
    #[serde(flatten)]
    pub entry: AuditEntry,
    /// Sequence number among the entries of its agent, which only increases; absent if the agent does not send one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Identifies the numbering that `seq` belongs to: an opaque string of at most 64 characters, created with the agent's
    /// state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Affected image, including the registry host, so that different spellings on different machines match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Id of the agent whose token was used to send the entry. The warden sets it and ignores the value in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}
