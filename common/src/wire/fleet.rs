//! What the warden keeps and shows of a fleet: entries of many machines, and the machines themselves.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An entry as the warden keeps it and as `GET /events` sends it. Unlike an
/// [`AuditEntry`](super::AuditEntry) it may come from another program: level and kind can be any words.
///
/// Field order is wire order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetEntry {
    /// When it happened, RFC 3339 UTC.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
    /// Which machine it happened on: the sender's word, or the agent's id.
    #[serde(default)]
    pub machine: String,
    /// Service name, `evenkeel` for an agent itself, `warden` for the warden.
    pub service: String,
    /// What happened.
    pub event: String,
    /// One sentence for people.
    pub message: String,
    /// How much it matters: `info`, `warning`, `error`, `critical`, or what the sender says.
    pub level: String,
    /// Digest that ran before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_digest: Option<String>,
    /// Digest that runs now or was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_digest: Option<String>,
    /// Name of the container it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Why, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Longer evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Number among the entries of its agent, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Which numbering `seq` belongs to, where its agent says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Image that it is about, with its registry's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Id of the agent whose token came with the entry; a body cannot say another.
    #[serde(default)]
    pub agent: String,
}

/// Answer of `POST /ingest`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IngestReply {
    /// `accepted`
    pub status: String,
    /// Revision of the fleet's decisions; 0 before the first.
    #[serde(default)]
    pub fleet: u64,
    /// Entries of an array that were refused; the others were accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedEntry>,
}

/// An entry of an array that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RejectedEntry {
    /// Its place in the array, from 0.
    pub index: usize,
    /// Why.
    pub error: String,
}

/// An entry with its id at the warden, which only grows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// The id, as in the event stream.
    pub id: u64,
    /// The entry.
    #[serde(flatten)]
    pub entry: FleetEntry,
}

/// Answer of `GET /history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPage {
    /// Newest first. A page may have fewer than were asked for, even none, and go on all the same.
    pub entries: Vec<HistoryEntry>,
    /// `before` of the next page; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// One agent as the warden sees it (`GET /machines`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineRecord {
    /// Its id in the warden's configuration.
    pub id: String,
    /// Whether its last heartbeat was answered; omitted before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online: Option<bool>,
    /// Since when it is online or offline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// Why it is offline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When its last entry came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_entry: Option<Timestamp>,
    /// Greatest number that an entry of it carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
    /// How many numbers below that have not come.
    pub missing: u64,
    /// How many entries of each level have come.
    pub counts_by_level: LevelCounts,
}

/// How many entries of each level have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LevelCounts {
    /// `info`
    pub info: u64,
    /// `warning`
    pub warning: u64,
    /// `error`
    pub error: u64,
    /// `critical`
    pub critical: u64,
    /// Any other word.
    pub other: u64,
}

impl LevelCounts {
    /// Counts an entry of this level.
    pub fn add(&mut self, level: &str) {
        let count = match level {
            "info" => &mut self.info,
            "warning" => &mut self.warning,
            "error" => &mut self.error,
            "critical" => &mut self.critical,
            _ => &mut self.other,
        };
        *count = count.saturating_add(1);
    }

    /// All together.
    pub fn total(&self) -> u64 {
        let counts = [self.info, self.warning, self.error, self.critical, self.other];
        counts.into_iter().fold(0, u64::saturating_add)
    }
}
