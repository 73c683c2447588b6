//! What the fleet decides and asks (DECISIONS 8): freezes, failed digests, leases, inventory and the map of images.
//!
//! A decision may only hold back: no answer of a warden makes an agent deploy anything. Every number that is added later
//! has a default, and unknown fields are ignored, so that agents and wardens of different versions can be mixed. What a
//! body holds inside is an object where one is meant: an array would be taken for its fields in their order.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::object;

/// Answer of `GET /fleet`: the decisions in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FleetDecisions {
    /// Grows with every change of a decision; 0 before the first.
    pub revision: u64,
    /// Freezes that have not ended.
    pub freezes: Vec<Freeze>,
    /// Digests that are withheld, because more machines failed than proved them.
    pub failed: Vec<FailedDigest>,
    /// What the tags of the agent's images name, as far as machines of the fleet have seen it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seen: Vec<SeenDigest>,
    /// Changes with every verdict on a digest that the agent has found and does not run: a question that was answered
    /// with "wait" may now be answered otherwise. 0 without one.
    #[serde(skip_serializing_if = "is_zero")]
    pub verdicts: u64,
    /// `away` while the warden's store is: these may be old, and another warden may know better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A digest that a tag names, and how long the fleet has known that.
// DECISIONS 7, first seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeenDigest {
    /// Image reference with its registry's host and its tag.
    pub image: String,
    /// `sha256:<hex>`
    pub digest: String,
    /// Seconds since a machine first reported it, by the warden's clock, when this was sent.
    pub seconds_ago: u64,
}

/// A freeze: updates in its scope do not begin before it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Freeze {
    /// Its id, for `POST /thaw`.
    pub id: String,
    /// Why, in one line.
    pub reason: String,
    /// Who froze: `operator`, or `fuse` for the warden itself.
    pub by: String,
    /// When it began.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// When it ends by itself.
    #[schemars(with = "String")]
    pub until: Timestamp,
    /// Seconds until then when this was sent, for an agent whose clock is wrong.
    #[serde(default)]
    pub seconds_left: u64,
    /// What it covers; all without one.
    #[serde(default, skip_serializing_if = "FreezeScope::is_all")]
    pub scope: FreezeScope,
}

/// What a freeze covers. Both must match where both are given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FreezeScope {
    /// Id of the only agent that it covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The only image that it covers: a repository with its registry's host, or a reference of which that counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl FreezeScope {
    /// Whether it covers the whole fleet.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// A digest that is withheld from machines that do not run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedDigest {
    /// Repository with its registry's host, without a tag.
    pub repository: String,
    /// `sha256:<hex>`
    pub digest: String,
    /// Ids of the agents whose latest verdict is that it failed, the first one first.
    pub agents: Vec<String>,
    /// When the first of them failed.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Why it failed there, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The black box of the first one: last log lines, at most 8 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// Body of `POST /fleet/ask` and `POST /fleet/release`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetAsk {
    /// Image reference with its registry's host.
    pub image: String,
    /// The digest that is to be deployed, `sha256:<hex>`.
    pub digest: String,
    /// The service that wants it.
    pub service: String,
    /// The agent's ring, 0 to 9.
    #[serde(default)]
    pub ring: u8,
}

/// Answer of `POST /fleet/ask`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetAnswer {
    /// Whether the deployment may begin as far as the fleet is concerned.
    pub answer: Permission,
    /// Why, in one sentence.
    pub why: String,
    /// Word of the gate that holds: `freeze`, `immunity` or `ring`; absent with `go`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// Seconds after which to ask again. With `go`: the lease is to be renewed at least that often while it deploys.
    pub again: u64,
    /// The agent that has the lease or failed, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// `away` where that is the only reason to wait: another warden may be able to answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

/// What the fleet says to a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// It may begin.
    Go,
    /// Not now.
    Wait,
    /// Not this digest.
    No,
}

/// Answer of `POST /fleet/release`, by which a lease that was not used is given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReleaseReply {
    /// `released` or `not_held`.
    pub status: String,
}

/// Body of `POST /inventory`: what runs on a machine. Each one replaces the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Inventory {
    /// The agent's ring, 0 to 9.
    pub ring: u8,
    /// One for each image of each service.
    #[serde(deserialize_with = "object::many")]
    pub images: Vec<InventoryImage>,
}

/// One image of one service on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventoryImage {
    /// The service.
    pub service: String,
    /// Image reference with its registry's host.
    pub image: String,
    /// What runs, `sha256:<hex>`; absent where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Since when that digest is proven there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub proven_at: Option<Timestamp>,
    /// What the registry has, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<String>,
    /// Reference that names that, where it is another than `image`: a newer tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_image: Option<String>,
    /// Since when the registry is known to have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub behind_since: Option<Timestamp>,
    /// Digest that is blocked there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Word of the gate that holds the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// Why, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Answer of `POST /inventory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventoryReply {
    /// `accepted`
    pub status: String,
    /// Revision of the fleet's decisions.
    #[serde(default)]
    pub fleet: u64,
}

/// Answer of `GET /fleet/images`: which machine runs what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FleetImages {
    /// Revision of the fleet's decisions.
    pub revision: u64,
    /// Ids of all agents in the order of the configuration.
    pub machines: Vec<String>,
    /// Freezes in force.
    pub freezes: Vec<Freeze>,
    /// Digests that are withheld from the fleet.
    pub failed: Vec<FailedDigest>,
    /// By repository, in alphabetical order.
    pub images: Vec<FleetImage>,
}

/// One repository on all machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetImage {
    /// Repository with its registry's host.
    pub repository: String,
    /// By machine, then by service.
    pub cells: Vec<FleetCell>,
}

/// What one machine runs of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetCell {
    /// Id of the agent.
    pub machine: String,
    /// The agent's ring.
    pub ring: u8,
    /// When the inventory came.
    #[schemars(with = "String")]
    pub reported: Timestamp,
    /// What it reported.
    #[serde(flatten)]
    pub image: InventoryImage,
    /// The machine's latest word on what runs, or on what is available where it tried that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<CellVerdict>,
}

/// How a digest stands on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CellVerdict {
    /// It is being tried.
    Trying,
    /// It passed probation.
    Proven,
    /// It was rolled back.
    Failed,
}

/// Body of `POST /freeze`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FreezeRequest {
    /// Why, in one line of 1 to 500 characters.
    pub reason: String,
    /// When it ends, at most 30 days from now.
    #[schemars(with = "String")]
    pub until: Timestamp,
    /// What it covers; all without one.
    #[serde(default, deserialize_with = "object::one")]
    pub scope: FreezeScope,
}

/// Answer of `POST /freeze`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FreezeReply {
    /// `frozen`
    pub status: String,
    /// For `POST /thaw`.
    pub id: String,
    /// When it ends by itself.
    #[schemars(with = "String")]
    pub until: Timestamp,
    /// Revision of the fleet's decisions.
    pub revision: u64,
}

/// Body of `POST /thaw`; all freezes end without an id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ThawRequest {
    /// The freeze to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Answer of `POST /thaw`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThawReply {
    /// `thawed`, or `nothing_frozen`.
    pub status: String,
    /// Revision of the fleet's decisions.
    pub revision: u64,
}

/// Body of the warden's `POST /unblock`: the digest may be tried again everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetUnblockRequest {
    /// Image reference or repository, with its registry's host.
    pub image: String,
    /// `sha256:<hex>`
    pub digest: String,
}

/// Answer of the warden's `POST /unblock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetUnblockReply {
    /// `unblocked` or `not_blocked`.
    pub status: String,
    /// Revision of the fleet's decisions.
    pub revision: u64,
}
