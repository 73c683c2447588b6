//! The durable state of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use evenkeel_common::wire::{FailedUpdate, LastDeployment};
use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::model::Origin;
use crate::model::snapshot::{Mounter, Source};
use crate::service::boot;
use crate::service::event::Fault;
use crate::service::health::assess::StopTimes;
use crate::service::health::restart_state::RestartState;
use crate::service::images::Images;
use crate::service::observation::FilesApplied;
use crate::service::rollout::deployment;
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::Postponed;
use crate::service::rollout::snapshot::KeptSnapshot;
use crate::service::rollout::step::Phase;
use crate::service::upkeep::late::LateWatch;
use crate::service::upkeep::maintenance::WayBack;

/// The durable state of a service: journaled before every step and after every change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct Durable {
    /// What is remembered of each image.
    pub images: Images,
    /// Counters (spec 2.1).
    pub totals: Totals,
    /// A rollback failed; nothing is done until a user acts or the registry has a new digest.
    #[serde(alias = "given_up")]
    pub rollback_failed: bool,
    /// The last update that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_update: Option<Box<FailedUpdate>>,
    /// Copies of data that are kept, and those still to be removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<KeptSnapshot>,
    /// The last deployment that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_deployment: Option<LastDeployment>,
    /// The deployment in progress.
    #[serde(deserialize_with = "deployment::read")]
    pub deployment: Option<Box<Deployment>>,
    /// Updates that failed for reasons that are not their images', each with the images that are updated together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub postponed: Vec<Postponed>,
    /// The result of the last check of the way back.
    pub way_back: Option<WayBack>,
    /// The persistent fault (spec 3.1, `errored`). It was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<StandingFault>,
    /// What is watched after updates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<LateWatch>,
    /// IDs of containers with images of this service that compose does not update.
    pub left_behind: BTreeSet<String>,
    /// Restart histories of containers that are or were failing, by name.
    #[serde(alias = "patients")]
    pub restart_states: BTreeMap<String, RestartState>,
    /// Containers that were down when last seen, though nobody had stopped them, by compose service: also one that was removed
    /// since, as long as its compose service has no other.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub down: BTreeMap<String, String>,
    /// When containers were told to stop through the engine's API, by ID.
    pub stops: StopTimes,
    /// The containers, by ID, that the agent has left stopped after a rollback that has failed. Nobody wants them down.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub left_stopped: BTreeMap<String, LeftStopped>,
    /// When containers were stopped by the engine itself during its shutdown, by ID.
    pub engine_stops: StopTimes,
    /// IDs of containers that have done their work before: they have ended with code 0 within the time of a probation, and
    /// nobody had stopped them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub finished: BTreeSet<String>,
    /// The containers that ran when the agent was stopped; cleared once compared with the current ones.
    #[serde(alias = "left")]
    pub at_shutdown: Option<boot::ShutdownSnapshot>,
    /// Where a person's `compose up` took the project from, according to the containers that were last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Name and first compose file of that project. `None` in rows of earlier versions: it is the configured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_of: Option<(String, PathBuf)>,
    /// Hash of the last deployed compose files (`compose_watch`).
    pub files_hash: Option<String>,
    /// Changed compose files whose deployment has not succeeded yet.
    #[serde(alias = "files_owed")]
    pub files_pending: bool,
    /// The compose files that this service has last applied to the whole project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_applied: Option<FilesApplied>,
    /// The clock that all these times refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<boot::NotedClock>,
}

/// A persistent fault that was reported, and is not again until its text changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingFault {
    /// What is wrong.
    pub text: String,
    /// Whether a check has found it.
    pub from_check: bool,
    /// When it was first seen.
    pub since: Timestamp,
}

impl From<&StandingFault> for Fault {
    fn from(fault: &StandingFault) -> Self {
        Self { text: fault.text.clone(), from_check: fault.from_check }
    }
}

/// A container that the agent has left stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftStopped {
    /// Why.
    pub why: WhyLeft,
    /// Since when. If it has run later, a person has started it, so that this no longer holds.
    pub at: Timestamp,
    /// The container.
    pub container: Mounter,
}

impl LeftStopped {
    /// The entry of a container, with its ID.
    pub(in crate::service) fn entry(container: &Mounter, why: WhyLeft, at: Timestamp) -> (String, Self) {
        (container.id.clone(), Self { why, at, container: container.clone() })
    }
}

/// Why a container is left stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyLeft {
    /// The data of before was put back, and its image has failed on its own.
    EarlierData,
    /// The data is of two times, so no image may run on it unless a person says so.
    MixedData,
}

impl Durable {
    /// Whether a deployment is in progress that must be completed.
    pub fn is_deploying(&self) -> bool {
        self.deployment.is_some()
    }

    /// Whether a deployment is in progress that may still change containers.
    pub fn is_changing_containers(&self) -> bool {
        self.deployment.as_ref().is_some_and(|deployment| !deployment.phase.is_aftermath())
    }

    /// The data that is at rest for the deployment in progress, or that it may put back, and what was copied for images that are
    /// not proven yet.
    pub fn data_in_use(&self) -> impl Iterator<Item = &Source> {
        let is_begun = |deployment: &&Deployment| {
            let snapshot = &deployment.snapshot;
            !deployment.phase.is_aftermath() && (snapshot.at.is_some() || !snapshot.stopped.is_empty())
        };
        let deployment = self.deployment.as_deref().filter(is_begun);
        let planned = deployment.and_then(|deployment| deployment.plan().snapshot.as_ref());
        let kept = self.snapshots.iter().filter(|kept| !kept.is_expired);
        let pending = kept.filter_map(|kept| kept.pending.as_ref());
        let copied = pending.flat_map(|pending| pending.copies.iter().map(|copy| &copy.source));
        planned.into_iter().flat_map(|plan| &plan.sources).chain(copied)
    }

    /// Whether there is such data, or about to be.
    pub fn may_use_data(&self) -> bool {
        let is_begun = self.deployment.as_ref().is_some_and(|deployment| deployment.phase == Phase::Quiesce);
        is_begun || self.data_in_use().next().is_some()
    }

    /// The step of the deployment in progress, and the number of attempts.
    pub fn step(&self) -> Option<(&'static str, u32)> {
        self.deployment.as_ref().map(|deployment| (deployment.phase.name(), deployment.attempt))
    }
}

impl Serialize for Durable {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Durable::serialize(self, to)
    }
}

impl<'de> Deserialize<'de> for Durable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut row = Map::deserialize(from)?;
        gather_by_image(&mut row);
        // Earlier versions kept one.
        for name in ["postponed", "watch"] {
            if let Some(kept) = row.remove(name).filter(|kept| !kept.is_null()) {
                let all = if kept.is_array() { kept } else { Value::Array(vec![kept]) };
                row.insert(name.to_owned(), all);
            }
        }
        if let Some(rollout) = row.remove("swarm").filter(|rollout| !rollout.is_null()) {
            let deployment = deployment::from_swarm_rollout(rollout);
            let broken = || D::Error::custom("the update of a swarm service is incomplete");
            row.insert("deployment".to_owned(), deployment.ok_or_else(broken)?);
        }
        Durable::deserialize(Value::Object(row)).map_err(D::Error::custom)
    }
}

/// What earlier versions kept in one map for each kind of fact, with the field of [`ImageMemory`](crate::service::images::ImageMemory)
/// that it is now.
const EARLIER_MAPS: [(&str, &str); 15] = [
    ("blocked", "blocked"),
    ("failed_digests", "failed_digests"),
    ("failed_tags", "failed_tags"),
    ("left_digests", "left_digests"),
    ("pulled", "pulled"),
    ("not_found", "not_found"),
    ("published", "published"),
    ("declined", "declined"),
    ("proven", "proven"),
    ("unproven", "unproven"),
    ("proofs", "proof"),
    ("history", "history"),
    ("deployed", "deployed"),
    ("told_tags", "told_tag"),
    ("told_tags_of_other_scheme", "told_tag_of_other_scheme"),
];

/// Moves what earlier versions kept by kind to the images that it is about.
fn gather_by_image(row: &mut Map<String, Value>) {
    let mut facts: Vec<(String, &str, Value)> = Vec::new();
    for (map, field) in EARLIER_MAPS {
        if let Some(Value::Object(map)) = row.remove(map) {
            facts.extend(map.into_iter().map(|(image, value)| (image, field, value)));
        }
    }
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    if let Some(Value::Array(records)) = row.remove("found") {
        for mut record in records {
            let image = record.as_object_mut().and_then(|record| record.remove("image"));
            if let Some(Value::String(image)) = image {
                found.entry(image).or_default().push(record);
            }
        }
    }
    facts.extend(found.into_iter().map(|(image, records)| (image, "found", Value::Array(records))));
    if facts.is_empty() {
        return;
    }
    let images = row.entry("images").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(images) = images else { return };
    for (image, field, value) in facts {
        if let Value::Object(memory) = images.entry(image).or_insert_with(|| Value::Object(Map::new())) {
            memory.insert(field.to_owned(), value);
        }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn facts_that_earlier_versions_kept_by_kind_are_gathered_by_image() {
        let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let at = "2026-01-01T00:00:00Z";
        let old = json!({"id": "sha256:old", "source": null});
        let written = json!({
            "blocked": {"web:1": digest("2")}, "failed_digests": {"web:1": [digest("2")]},
            "failed_tags": {"web:1": {"2": digest("3")}}, "left_digests": {"web:1": [digest("4")]},
            "pulled": {"db:1": digest("5")}, "not_found": {"db:1": digest("6")}, "published": {"db:1": digest("5")},
            "declined": {"web:1": digest("7")}, "proven": {"web:1": old}, "unproven": {"web:1": "sha256:new"},
            "proofs": {"web:1": {"digest": digest("1"), "at": at}},
            "history": {"web:1": [{"digest": digest("1"), "id": "sha256:old", "reference": "localhost:5000/web:1",
                "proven_at": at}]},
            "deployed": {"web:1": [{"id": "sha256:old", "proven": true}]},
            "told_tags": {"web:1": "2"}, "told_tags_of_other_scheme": {"db:1": "20260101"},
            "found": [{"image": "db:1", "digest": digest("6"), "first_seen": at, "approved": true}],
            "rollback_failed": true,
        });
        let read: Durable = serde_json::from_value(written).unwrap();
        assert!(read.rollback_failed);
        let expected = json!({
            "db:1": {
                "pulled": digest("5"), "not_found": digest("6"), "published": digest("5"),
                "found": [{"digest": digest("6"), "first_seen": at, "approved": true, "triggered": false,
                    "announced": false}],
                "told_tag_of_other_scheme": "20260101",
            },
            "web:1": {
                "blocked": digest("2"), "failed_digests": [digest("2")], "failed_tags": {"2": digest("3")},
                "left_digests": [digest("4")], "declined": digest("7"), "proven": old, "unproven": "sha256:new",
                "proof": {"digest": digest("1"), "at": at},
                "history": [{"digest": digest("1"), "id": "sha256:old", "reference": "localhost:5000/web:1",
                    "proven_at": at}],
                "deployed": [{"id": "sha256:old", "proven": true}], "told_tag": "2",
            },
        });
        let again = serde_json::to_value(&read).unwrap();
        assert_eq!(again["images"], expected);
        assert_eq!(serde_json::from_value::<Durable>(again).unwrap(), read);
    }

    #[test]
    fn the_one_update_that_an_earlier_version_has_postponed_is_read() {
        let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let one = json!({"digest": digest("1"), "others": [digest("2")], "until": "2026-01-01T00:00:00Z", "tries": 3,
            "why": "no space left on device"});
        let read: Durable = serde_json::from_value(json!({"postponed": one})).unwrap();
        assert_eq!(read.postponed.iter().map(|one| one.tries).collect::<Vec<_>>(), [3]);
        let again = serde_json::to_value(&read).unwrap();
        assert_eq!(again["postponed"], json!([one]));
        assert_eq!(serde_json::from_value::<Durable>(again).unwrap(), read);
    }

    #[test]
    fn the_one_update_that_an_earlier_version_has_watched_is_read() {
        let at = "2026-01-01T00:00:00Z";
        let one =
            json!({"since": at, "until": "2026-01-01T06:00:00Z", "images": ["web:1"], "exits": [[at, "id"]]});
        let read: Durable = serde_json::from_value(json!({"watch": one})).unwrap();
        assert_eq!(read.watch.iter().map(|one| one.exits.len()).collect::<Vec<_>>(), [1]);
        let again = serde_json::to_value(&read).unwrap();
        assert_eq!(again["watch"], json!([one]));
        assert_eq!(serde_json::from_value::<Durable>(again).unwrap(), read);
    }

    #[test]
    fn a_state_that_is_none_is_an_error() {
        let texts = [
            "[]",
            "1",
            r#"{"images": 1}"#,
            r#"{"images": 1, "blocked": {"web:1": "x"}}"#,
            r#"{"swarm": {}}"#,
            r#"{"swarm": {"plan": {"cause": "update", "grace": {"secs": 1, "nanos": 0}}, "phase": {"step": "admit"}}}"#,
        ];
        for text in texts {
            assert!(serde_json::from_str::<Durable>(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Durable>("{}").unwrap(), Durable::default());
    }
}
