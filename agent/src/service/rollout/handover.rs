//! The handover: the new containers start beside the old ones, which serve until the new ones are proven, and are kept,
//! stopped, until those have proven themselves alone (DECISIONS 12).
//!
//! ```text
//! start ─► spread ─► probation ─► drain ─► retire ─► soak ─► settle ─► unpin        updated
//!            │          │           │         └────────┴─► diagnose ─► revive ─► rollback ─► verify_rollback ─► withdraw ─► unpin
//!            └──────────┴───────────┴─► diagnose ─► rollback ─► withdraw ─► unpin   rolled_back, the old ones never stopped
//! ```
//!
//! `start` and `rollback` run compose for those services of the deployment that do not hand over, if there are any. The
//! steps name containers by ID: the old ones are in the plan, the new ones are recorded once compose has made them. Old
//! containers that were drained for good are removed by `revive`, and `rollback` makes others in the place of the new ones. So
//! are those that do not run a second time, after `verify_rollback` has found that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{Container, Drain, Obstacle};
use crate::service::rollout::baseline::Baseline;

/// What is planned of a handover.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverPlan {
    /// The compose services that hand over, with the number of their containers.
    #[serde(default)]
    pub services: BTreeMap<String, usize>,
    /// The compose services that were to hand over, and can't.
    #[serde(default)]
    pub obstacles: BTreeMap<String, Obstacle>,
    /// How containers are relieved of their requests.
    #[serde(default)]
    pub drain: Drain,
    /// IDs of containers that an earlier handover could not remove. They are not counted, and nothing is done to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

impl HandoverPlan {
    /// Counts the containers anew after a hook has made them anew. A compose service that it has left without any has none that
    /// could hand over.
    pub(in crate::service) fn recount(&mut self, before: &[Baseline], containers: &[Container]) {
        let Self { services, left, .. } = self;
        services.retain(|service, _| {
            containers.iter().any(|c| c.compose_service == *service && !left.contains(&c.id))
        });
        for (service, count) in services {
            let is_one = |was: &&Baseline| was.running && was.compose_service == *service;
            *count = before.iter().filter(is_one).filter(|was| !left.contains(&was.id)).count();
        }
    }
}

/// How far the old containers have been put aside, as far as the journal allows: it is written before the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldContainers {
    /// They serve, and nobody has touched them.
    #[default]
    Serving,
    /// They may have been told that no more requests will follow.
    Drained,
    /// They may have been stopped.
    Retired,
    /// None of them is left.
    Gone,
}

/// The state of a handover.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// The old containers.
    pub old: OldContainers,
    /// Full IDs of the new containers.
    #[serde(default)]
    pub new: Vec<String>,
    /// Whether the old containers may have been told that no more requests will follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_drained: bool,
    /// Whether the old containers were started again, and one of them did not keep running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_spent: bool,
    /// Whether the new containers were removed again.
    #[serde(default)]
    pub is_withdrawn: bool,
    /// What went wrong on the way without stopping it, in words.
    #[serde(default)]
    pub problems: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compose_service_that_a_hook_has_left_without_containers_does_not_hand_over() {
        let services = BTreeMap::from([("web".to_owned(), 1), ("api".to_owned(), 1)]);
        let mut plan = HandoverPlan { services, ..HandoverPlan::default() };
        let container = |id: &str| Container { id: id.to_owned(), ..Container::running("web", "web:1") };
        let containers = ["web-1", "web-2"].map(container);
        plan.recount(&Baseline::all(&containers), &containers);
        assert_eq!(plan.services, BTreeMap::from([("web".to_owned(), 2)]));
        // One that an earlier handover has left does not count.
        plan.left = vec!["web-2".to_owned()];
        plan.recount(&Baseline::all(&containers), &containers);
        assert_eq!(plan.services, BTreeMap::from([("web".to_owned(), 1)]));
    }
}
