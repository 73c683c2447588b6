//! The warden's view of a fleet: the entries of all machines, and the machines themselves.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{ImageDigest, Tenths};

/// An entry as the warden takes, stores and sends it (`POST /ingest`, `GET /events`). Unlike an `AuditEntry` it may come from
/// another program, so level and kind can be any string, and `also_failed` and `outage_seconds` are left out if they are
/// something else there.
///
/// Field order is wire order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetEntry {
    /// When it happened, RFC 3339 UTC.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
    /// Machine on which it happened, as given by the sender, or the agent's id.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub machine: String,
    /// Service name, `evenkeel` for an agent itself, `warden` for the warden.
    pub service: String,
    /// What happened.
    pub event: String,
    /// One human-readable sentence.
    pub message: String,
    /// Severity: `info`, `warning`, `error`, `critical`, or any other value from the sender.
    pub level: String,
    /// Digest that ran before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_digest: Option<String>,
    /// Digest that the entry is about: running, tried or to be deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_digest: Option<String>,
    /// Name of the affected container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Why, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Longer output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Sequence number among the entries of its agent, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Identifies the numbering that `seq` belongs to, if its agent sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Affected image, including the registry host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Further images that failed in the same deployment.
    #[serde(default, deserialize_with = "known_images", skip_serializing_if = "Vec::is_empty")]
    pub also_failed: Vec<ImageDigest>,
    /// For how many seconds a deployment interrupted the service.
    #[serde(default, deserialize_with = "known_seconds", skip_serializing_if = "Option::is_none")]
    pub outage_seconds: Option<Tenths>,
    /// Id of the agent whose token was used to send the entry; the body cannot override it.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub agent: String,
}

/// A text, or `null` for an empty one.
fn null_as_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// A text; anything else is an empty one.
fn text_or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Value::deserialize(from).map(|value| value.as_str().unwrap_or_default().to_owned())
}

/// The elements that are images.
fn known_images<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ImageDigest>, D::Error> {
    let Value::Array(elements) = Value::deserialize(from)? else { return Ok(Vec::new()) };
    // serde would also accept an array of the two texts.
    let objects = elements.into_iter().filter(Value::is_object);
    Ok(objects.filter_map(|element| serde_json::from_value(element).ok()).collect())
}

/// A number of seconds; anything else is unknown.
fn known_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Tenths>, D::Error> {
    let seconds = Value::deserialize(from)?.as_f64();
    Ok(seconds.filter(|seconds| *seconds >= 0.0).map(Tenths::from))
}

/// Response of `POST /ingest`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IngestReply {
    /// `accepted`
    pub status: String,
    /// Revision of the fleet's decisions; 0 before the first.
    #[serde(default)]
    pub fleet: u64,
    /// Rejected entries of an array; the others were accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedEntry>,
}

/// A rejected entry of an array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RejectedEntry {
    /// Its index in the array, starting at 0.
    pub index: usize,
    /// Why.
    pub error: String,
}

/// An entry with its id at the warden. Ids only increase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// The id, as in the event stream.
    pub id: u64,
    /// The entry.
    #[serde(flatten)]
    pub entry: FleetEntry,
}

/// Response of `GET /history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPage {
    /// Newest first. A page may have fewer entries than requested, even none, and still have a next page.
    pub entries: Vec<HistoryEntry>,
    /// `before` for the next page; absent at the end.
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
    /// Since when it has been online or offline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// Why it is offline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When its last entry was received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_entry: Option<Timestamp>,
    /// Highest sequence number of its entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
    /// Number of missing sequence numbers below that.
    pub missing: u64,
    /// Number of received entries per level.
    pub counts_by_level: LevelCounts,
}

/// Number of received entries per level.
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
    /// Any other level.
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

    /// The total.
    pub fn total(&self) -> u64 {
        let counts = [self.info, self.warning, self.error, self.critical, self.other];
        counts.into_iter().fold(0, u64::saturating_add)
    }
}
