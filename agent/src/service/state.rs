//! The durable state of a service.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::FailedUpdate;
use serde::{Deserialize, Serialize};

use crate::model::Origin;
use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId};

use super::action::OldImage;
use super::boot;
use super::candidate::Found;
use super::history::ProvenImage;
use super::input::StopTimes;
use super::late::LateWatch;
use super::maintenance::{DeployedImage, WayBack};
use super::newer_tags::FailedTags;
use super::restart_state::RestartState;
use super::rollout::deployment::{self, Deployment};
use super::running::Proof;
use super::swarm::plan::{Postponed, SwarmRollout};

/// The durable state of a service: journaled before every step and after every change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Durable {
    /// Blocked digest per image as configured (spec 2.6).
    pub blocked: BTreeMap<String, Digest>,
    /// Digests that have failed here, oldest first, per image as configured: a tag that returns to one is blocked again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_digests: BTreeMap<String, Vec<Digest>>,
    /// Digest per image as configured that was pulled while no container used the image. It is deployed, and proven, once one
    /// does; until then the tag stays on the earlier image, so that nothing starts an unproven one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pulled: BTreeMap<String, Digest>,
    /// Digests that were proven here and left for others, oldest first, per image as configured: a registry that serves one
    /// again may be playing it back.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub left_digests: BTreeMap<String, Vec<Digest>>,
    /// Failed digests of tags that are newer than the one in force (`tag_variable`).
    #[serde(skip_serializing_if = "FailedTags::is_empty")]
    pub failed_tags: FailedTags,
    /// Remote digest per image that could not be resolved locally (spec 2.6).
    pub not_found: BTreeMap<String, Digest>,
    /// Digest per image that was seen both locally and in its registry. With the containerd store this distinguishes pulled
    /// images from those built locally, even if the registry no longer has the digest (DECISIONS 9).
    pub published: FewMap<String, Digest>,
    /// Records of the digests in the registry, if gates may hold them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<Found>,
    /// Digest per image as configured that an operator has replaced in the swarm although the registry has it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub declined: BTreeMap<String, Digest>,
    /// Counters (spec 2.1).
    pub totals: Totals,
    /// A rollback failed; nothing is done until a user acts or the registry has a new digest.
    #[serde(alias = "given_up")]
    pub rollback_failed: bool,
    /// The last update that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_update: Option<Box<FailedUpdate>>,
    /// The deployment in progress.
    #[serde(deserialize_with = "deployment::read")]
    pub deployment: Option<Box<Deployment>>,
    /// The update of a swarm service in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swarm: Option<Box<SwarmRollout>>,
    /// An update that failed because of the swarm's nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postponed: Option<Postponed>,
    /// The last proven image, per image as configured: a tag is reset to it if nothing runs.
    pub proven: BTreeMap<String, OldImage>,
    /// Deployed images, oldest first, per image as configured.
    pub deployed: BTreeMap<String, Vec<DeployedImage>>,
    /// Newer tags that were announced, per image as configured.
    pub told_tags: BTreeMap<String, String>,
    /// Tags of another numbering scheme that were announced, per image as configured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub told_tags_of_other_scheme: BTreeMap<String, String>,
    /// The result of the last check of the way back.
    pub way_back: Option<WayBack>,
    /// The digest that last passed its probation, and when, per image as configured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub proofs: BTreeMap<String, Proof>,
    /// What is watched after the last update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<LateWatch>,
    /// Images that were proven here, oldest first, per image as configured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub history: BTreeMap<String, Vec<ProvenImage>>,
    /// Unproven images that run or ran last, per image as configured: never a rollback target.
    pub unproven: BTreeMap<String, ImageId>,
    /// IDs of containers with images of this service that compose does not update.
    pub left_behind: BTreeSet<String>,
    /// Restart histories of containers that are or were failing, by name.
    #[serde(alias = "patients")]
    pub restart_states: BTreeMap<String, RestartState>,
    /// When containers were told to stop through the engine's API, by ID.
    pub stops: StopTimes,
    /// When containers were stopped by the engine itself during its shutdown, by ID.
    pub engine_stops: StopTimes,
    /// The containers that ran when the agent was stopped; cleared once compared with the current ones.
    #[serde(alias = "left")]
    pub at_shutdown: Option<boot::ShutdownSnapshot>,
    /// Where a person's `compose up` took the project from, according to the containers that were last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Hash of the last deployed compose files (`compose_watch`).
    pub files_hash: Option<String>,
    /// Changed compose files whose deployment has not succeeded yet.
    #[serde(alias = "files_owed")]
    pub files_pending: bool,
    /// The clock that all these times refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<boot::NotedClock>,
}

/// How many failed digests of an image are remembered, and how many that it has left.
const MAX_DIGESTS: usize = 50;

/// Adds a digest as the newest one.
fn remember(digests: &mut Vec<Digest>, digest: &Digest) {
    digests.retain(|known| known != digest);
    digests.push(digest.clone());
    let surplus = digests.len().saturating_sub(MAX_DIGESTS);
    digests.drain(..surplus);
}

impl Durable {
    /// Blocks a digest that has failed, and remembers it for the case that the tag returns to it.
    pub(super) fn block(&mut self, image: &str, digest: &Digest) {
        self.blocked.insert(image.to_owned(), digest.clone());
        remember(self.failed_digests.entry(image.to_owned()).or_default(), digest);
    }

    /// Notes that an image has moved from one proven digest to another.
    pub(super) fn leave(&mut self, image: &str, old: &Digest, new: &Digest) {
        let left = self.left_digests.entry(image.to_owned()).or_default();
        left.retain(|known| known != new);
        remember(left, old);
    }

    /// Whether this digest was proven here and left for another.
    pub(super) fn has_left(&self, image: &str, digest: &Digest) -> bool {
        self.left_digests.get(image).is_some_and(|left| left.contains(digest))
    }

    /// Forgets that a digest has failed: it was proven, or a user has unblocked it.
    pub(super) fn forget_failure(&mut self, image: &str, digest: &Digest) {
        if let Some(failed) = self.failed_digests.get_mut(image) {
            failed.retain(|known| known != digest);
            if failed.is_empty() {
                self.failed_digests.remove(image);
            }
        }
    }

    /// Whether this digest of an image has failed here before, at whatever time.
    pub(super) fn failed_before(&self, image: &str, digest: &Digest) -> bool {
        self.failed_digests.get(image).is_some_and(|failed| failed.contains(digest))
    }

    /// Whether a deployment is in progress that must be completed.
    pub fn is_deploying(&self) -> bool {
        self.deployment.is_some() || self.swarm.is_some()
    }

    /// Whether a digest of an image, as configured, has failed here.
    pub fn is_blocked(&self, image: &str, digest: &Digest) -> bool {
        let failed = self.failed_tags.get(image);
        self.blocked.get(image) == Some(digest)
            || failed.is_some_and(|tags| tags.values().any(|failed| failed == digest))
    }

    /// The step of the deployment in progress, and the number of attempts.
    pub fn step(&self) -> Option<(&'static str, u32)> {
        let of_swarm = || self.swarm.as_ref().map(|rollout| (rollout.phase.name(), rollout.attempt));
        self.deployment.as_ref().map(|d| (d.phase.name(), d.attempt)).or_else(of_swarm)
    }
}

/// Counters of a service (spec 2.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// New images that passed probation.
    pub updates: u64,
    /// Deployments that were rolled back.
    pub rollbacks: u64,
    /// Restarts by the healer.
    pub restarts: u64,
    /// Deployments, rollbacks and restarts that failed.
    pub failures: u64,
}
