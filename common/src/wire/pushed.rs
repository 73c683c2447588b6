//! The entry as an agent pushes it and as the warden keeps it (DECISIONS 3, `POST /ingest`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AuditEntry;

/// An audit entry with what makes it one of a fleet's. The additions come after the entry's own fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PushedEntry {
    /// The entry.
    #[serde(flatten)]
    pub entry: AuditEntry,
    /// Number of the entry among those of its agent, which only grows; absent from an agent that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Which numbering `seq` belongs to: an opaque text of at most 64 characters, made with the agent's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Image that the entry is about, with its registry's host, so that two machines that spell it differently agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Id of the agent whose token came with the entry. The warden sets it; what a body says is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}
