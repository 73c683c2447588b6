//! Fleet coordination (DECISIONS 8): freezes, failed digests, leases, inventory and the map of images.
//!
//! A decision can only hold back a deployment; no response of a warden makes an agent deploy anything. Fields that are added
//! later have a default, and unknown fields are ignored, so that agents and wardens of different versions can be mixed.
//! Nested objects only accept JSON objects: serde would otherwise accept an array as the fields in their order.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::object;

/// Response of `GET /fleet`: the decisions in force.
// Every warden has always sent the first three fields. They are required, so that JSON of another server does not pass for the
// decision that nothing is withheld.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetDecisions {
    /// Grows with every change of a decision; 0 before the first.
    pub revision: u64,
    /// Freezes that have not ended.
    pub freezes: Vec<Freeze>,
    /// Digests that are withheld because they failed on more machines than they were proven on.
    pub failed: Vec<FailedDigest>,
    /// Digests behind the tags of the agent's images, as reported by the machines of the fleet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seen: Vec<SeenDigest>,
    /// Changes with every verdict on a digest that is available to the agent but not running there: a request that was
    /// answered with `wait` may now have another answer. 0 if there is no verdict.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub verdicts: u64,
    /// Number of withheld digests and sightings that are not listed, so that the response stays small. Freezes are never
    /// left out, and a request for an unlisted digest is refused all the same.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// `away` while the warden cannot reach its store: the decisions may be stale, and another warden may have newer ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The digest of a tag, and how long the fleet has known it.
// DECISIONS 7, first seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeenDigest {
    /// Image reference, including registry host and tag.
    pub image: String,
    /// `sha256:<hex>`
    pub digest: String,
    /// Seconds since a machine first reported it, by the warden's clock, as of this response.
    pub seconds_ago: u64,
}

/// A freeze: updates in its scope do not start before it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Freeze {
    /// Id for `POST /thaw`.
    pub id: String,
    /// Why, in one line.
    pub reason: String,
    /// Who created it: `operator`, or `fuse` for the warden itself.
    pub by: String,
    /// When it started.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// When it expires.
    #[schemars(with = "String")]
    pub until: Timestamp,
    /// Seconds until it expires, as of this response, for agents whose clock is wrong.
    #[serde(default)]
    pub seconds_left: u64,
    /// What it covers; absent for the whole fleet.
    #[serde(default, skip_serializing_if = "FreezeScope::is_all")]
    pub scope: FreezeScope,
    /// Ids of the agents whose rollbacks tripped the fuse; absent for a freeze by an operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
}

/// What a freeze covers. If both fields are set, both must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FreezeScope {
    /// Id of the agent to which it is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The image to which it is limited: a repository including the registry host, or a reference, of which only the
    /// repository counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl FreezeScope {
    /// Reports whether it covers the whole fleet.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// A digest that is withheld from machines that do not run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedDigest {
    /// Repository, including the registry host, without a tag.
    pub repository: String,
    /// `sha256:<hex>`
    pub digest: String,
    /// Ids of the agents whose latest verdict is that it failed, earliest first, at most 32.
    pub agents: Vec<String>,
    /// Number of further agents on which it failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_agents: u64,
    /// When it failed on the first of these agents.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Why it failed on that agent, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The last log lines of that failure, at most 8 KiB. Only for users: an agent does not get those of another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// Body of `POST /fleet/ask` and `POST /fleet/release`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetAsk {
    /// Image reference, including the registry host.
    pub image: String,
    /// The digest to deploy, `sha256:<hex>`.
    pub digest: String,
    /// The service to deploy it to.
    pub service: String,
    /// The agent's ring, 0 to 9.
    #[serde(default)]
    pub ring: u8,
    /// Grows while the deployment makes progress; absent from earlier versions. A lease that is renewed three times with the
    /// same value ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
}

/// Response of `POST /fleet/ask`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetAnswer {
    /// Whether the fleet allows the deployment to start.
    pub answer: Permission,
    /// Why, in one sentence.
    pub why: String,
    /// Name of the gate that holds it: `freeze`, `immunity` or `ring`; absent with `go`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// Seconds after which to ask again. With `go`, the lease must be renewed at least this often during the deployment.
    pub again: u64,
    /// The agent that holds the lease or on which the digest failed, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// `away` if the unreachable store is the only reason to wait: another warden may be able to answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

/// Whether the fleet allows a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// It may start.
    Go,
    /// Not now.
    Wait,
    /// Not this digest.
    No,
}

/// Response of `POST /fleet/release`, which releases an unused lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReleaseReply {
    /// `released` or `not_held`.
    pub status: String,
}

/// Body of `POST /inventory`: the images that run on a machine. Each inventory replaces the previous one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Inventory {
    /// The agent's ring, 0 to 9.
    pub ring: u8,
    /// One entry per image and service.
    #[serde(deserialize_with = "object::many")]
    pub images: Vec<InventoryImage>,
}

/// One image of one service on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventoryImage {
    /// The service.
    pub service: String,
    /// Image reference, including the registry host.
    pub image: String,
    /// The running digest, `sha256:<hex>`; absent if nothing is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Since when that digest has been proven there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub proven_at: Option<Timestamp>,
    /// The digest in the registry, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<String>,
    /// Its image reference, if it differs from `image`: a newer tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_image: Option<String>,
    /// Since when the image has lacked what its tag points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub behind_since: Option<Timestamp>,
    /// The blocked digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Whether the blocked digest is known to have failed there, and was not left by a person. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_failed: bool,
    /// Name of the gate that holds the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// Why, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How long a new digest is on probation there, in seconds; absent from earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probation: Option<u32>,
}

/// Response of `POST /inventory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventoryReply {
    /// `accepted`
    pub status: String,
    /// Revision of the fleet's decisions.
    #[serde(default)]
    pub fleet: u64,
    /// Number of images at the end of the report that were not stored because it is too large.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

/// Response of `GET /fleet/images`: the images on each machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FleetImages {
    /// Revision of the fleet's decisions.
    pub revision: u64,
    /// Ids of all agents, in configuration order.
    pub machines: Vec<String>,
    /// Freezes in force.
    pub freezes: Vec<Freeze>,
    /// Digests that are withheld from the fleet, and that a machine runs, is offered or has blocked.
    pub failed: Vec<FailedDigest>,
    /// Images sorted by repository.
    pub images: Vec<FleetImage>,
    /// Number of images that are not listed, so that the response stays small. Those that are up to date are left out
    /// first, and first those of the machines with the most images.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// `away` while the warden cannot reach its store: all of this may be stale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

/// One repository on all machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetImage {
    /// Repository, including the registry host.
    pub repository: String,
    /// Cells sorted by machine, then by service.
    pub cells: Vec<FleetCell>,
}

/// An image of a repository on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetCell {
    /// Id of the agent.
    pub machine: String,
    /// The agent's ring.
    pub ring: u8,
    /// When the inventory was received.
    #[schemars(with = "String")]
    pub reported: Timestamp,
    /// The reported image.
    #[serde(flatten)]
    pub image: InventoryImage,
    /// The machine's latest verdict on the running digest, or on the available one if it has tried that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<CellVerdict>,
}

/// The verdict of a machine on a digest.
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
    /// What it covers; absent for the whole fleet.
    #[serde(default, deserialize_with = "object::one")]
    pub scope: FreezeScope,
}

/// Response of `POST /freeze`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FreezeReply {
    /// `frozen`
    pub status: String,
    /// Id for `POST /thaw`.
    pub id: String,
    /// When it expires.
    #[schemars(with = "String")]
    pub until: Timestamp,
    /// Revision of the fleet's decisions.
    pub revision: u64,
}

/// Body of `POST /thaw`; without an id, all freezes end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ThawRequest {
    /// The freeze to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Response of `POST /thaw`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThawReply {
    /// `thawed`, or `nothing_frozen`.
    pub status: String,
    /// Revision of the fleet's decisions.
    pub revision: u64,
}

/// Body of the warden's `POST /unblock`: the digest may be deployed again everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetUnblockRequest {
    /// Image reference or repository, including the registry host.
    pub image: String,
    /// `sha256:<hex>`
    pub digest: String,
}

/// Response of the warden's `POST /unblock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetUnblockReply {
    /// `unblocked` or `not_blocked`.
    pub status: String,
    /// Revision of the fleet's decisions.
    pub revision: u64,
}
