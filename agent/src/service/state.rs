//! What of a service must outlive the agent: written before every step and after every change.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId};

use super::action::OldImage;
use super::boot;
use super::candidate::Found;
use super::input::StopTimes;
use super::maintenance::{DeployedImage, WayBack};
use super::newer_tags::FailedTags;
use super::restart_state::RestartState;
use super::rollout::deployment::{self, Deployment};
use super::running::Proof;
use super::swarm::plan::{Postponed, SwarmRollout};

/// What must last: written before every step and after every change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Durable {
    /// Blocked digest per image as configured (spec 2.6).
    pub blocked: BTreeMap<String, Digest>,
    /// Digests that failed under tags that are newer than the one in force (`tag_variable`).
    #[serde(skip_serializing_if = "FailedTags::is_empty")]
    pub failed_tags: FailedTags,
    /// Remote digest per image that could not be resolved locally (spec 2.6).
    pub not_found: BTreeMap<String, Digest>,
    /// Digest per image that was seen here and in its registry at once: with the containerd store it tells what came
    /// from there from what was built here, also when the registry has dropped it since (DECISIONS 9).
    pub published: FewMap<String, Digest>,
    /// What is known of the digests that the registry has, where gates may hold them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<Found>,
    /// Digest per image as configured that a person has replaced in the swarm although the registry has it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub declined: BTreeMap<String, Digest>,
    /// Counters (spec 2.1).
    pub totals: Totals,
    /// A rollback failed; nothing is done until someone acts or the registry has a new digest.
    #[serde(alias = "given_up")]
    pub rollback_failed: bool,
    /// The deployment under way.
    #[serde(deserialize_with = "deployment::read")]
    pub deployment: Option<Box<Deployment>>,
    /// The update of a swarm service under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swarm: Option<Box<SwarmRollout>>,
    /// An update that failed because of the swarm's nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postponed: Option<Postponed>,
    /// Image that was proven last, per image as configured: what a tag goes back to when nothing runs.
    pub proven: BTreeMap<String, OldImage>,
    /// Images that were deployed, the last one last, per image as configured.
    pub deployed: BTreeMap<String, Vec<DeployedImage>>,
    /// Newer tags that were told of, per image as configured.
    pub told_tags: BTreeMap<String, String>,
    /// What was found of the way back last.
    pub way_back: Option<WayBack>,
    /// The digest that passed its probation last, and when, per image as configured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub proofs: BTreeMap<String, Proof>,
    /// Images, as configured, that run or ran last without having proven themselves: never something to go back to.
    pub unproven: BTreeMap<String, ImageId>,
    /// IDs of containers on images of this service that compose does not bring along.
    pub left_behind: BTreeSet<String>,
    /// Restart histories of containers that are failing, or were, by name.
    #[serde(alias = "patients")]
    pub restart_states: BTreeMap<String, RestartState>,
    /// When containers were told to stop through the engine's API, by ID.
    pub stops: StopTimes,
    /// When containers were stopped by the engine itself, as it went away, by ID.
    pub engine_stops: StopTimes,
    /// What ran when the agent was stopped; cleared once it was compared with what runs now.
    #[serde(alias = "left")]
    pub at_shutdown: Option<boot::ShutdownSnapshot>,
    /// Hash of the compose files that were deployed last (`compose_watch`).
    pub files_hash: Option<String>,
    /// They were deployed, but it failed.
    #[serde(alias = "files_owed")]
    pub files_pending: bool,
    /// The clock by which all these times are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<boot::NotedClock>,
}

impl Durable {
    /// Whether anything is under way that must be brought to its end.
    pub fn is_deploying(&self) -> bool {
        self.deployment.is_some() || self.swarm.is_some()
    }

    /// Whether a digest of an image, as configured, has failed here.
    pub fn is_blocked(&self, image: &str, digest: &Digest) -> bool {
        let failed = self.failed_tags.get(image);
        self.blocked.get(image) == Some(digest)
            || failed.is_some_and(|tags| tags.values().any(|failed| failed == digest))
    }

    /// Step of what is under way, and how often it was tried.
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
