//! The plan of a swarm service update, its phases and its steps; the state is journaled before each step.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_common::wire::KeptImage;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, Reference};
use crate::model::image_config::ConfigChange;
use crate::model::swarm::is_same_image;
use crate::service::rollout::outage::Outage;
use crate::service::rollout::plan::{Cause, ImageChange};
use crate::service::rollout::swarm::watch::{SwarmFailed, Watch};

/// An update in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmRollout {
    /// The plan, which never changes.
    pub plan: SwarmPlan,
    /// Current phase.
    pub phase: SwarmPhase,
    /// When it began.
    pub begun: Timestamp,
    /// When the phase was entered.
    pub since: Timestamp,
    /// How often the step has failed.
    pub attempt: u32,
    /// How long the service is interrupted.
    #[serde(default)]
    pub outage: Outage,
    /// Labels of the old and the new image; known once the new image is admitted.
    #[serde(default)]
    pub labels: ConfigChange,
}

/// The plan of an update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmPlan {
    /// Why the update was started.
    pub cause: Cause,
    /// Name of the service in the swarm.
    pub service: String,
    /// The image that changes; `None` if tasks are only recreated or rolled back.
    pub change: Option<ImageChange>,
    /// Image of the specification at the time of planning, as the managers reported it.
    pub from: String,
    /// Image to set.
    pub to: String,
    /// Rollback target.
    pub back: String,
    /// Value that `ForceUpdate` must reach if the tasks are recreated whatever the image.
    pub force: Option<u64>,
    /// IDs of the tasks that existed before: they say nothing about the update.
    pub known: BTreeSet<String>,
    /// `health_grace` when it began.
    pub grace: Duration,
    /// Images that a manual redeploy leaves unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptImage>,
}

impl SwarmPlan {
    /// Returns the deployed image for messages, or the service if no image changes.
    pub fn image(&self) -> &str {
        self.change.as_ref().map_or(&self.service, |change| &change.configured)
    }

    /// Reports whether there is a different image to roll back to.
    pub fn is_reversible(&self) -> bool {
        self.change.is_some() && !is_same_image(&self.back, &self.to)
    }
}

/// Phase of an update, with the data that only this phase needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum SwarmPhase {
    /// Checking whether the swarm can pull and run the image. Nothing is changed yet.
    Admit,
    /// Changing the specification.
    Update,
    /// The swarm replaces the tasks, which then have to prove the image.
    Converge {
        /// The watch and its findings so far.
        watch: Watch,
    },
    /// The update failed. Reading the last log lines of the task.
    Diagnose(SwarmFailed),
    /// Restoring the specification, unless the swarm has done so.
    Rollback(SwarmFailed),
    /// The tasks on the old image have to prove it.
    VerifyRollback {
        /// Why the update was rejected.
        failed: SwarmFailed,
        /// The watch and its findings so far.
        watch: Watch,
    },
}

impl SwarmPhase {
    /// Name of the step in the journal and in the log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Update => "update",
            Self::Converge { .. } => "converge",
            Self::Diagnose(_) => "diagnose",
            Self::Rollback(_) => "rollback",
            Self::VerifyRollback { .. } => "verify_rollback",
        }
    }

    /// Returns the watch of this phase mutably, if it waits for tasks.
    pub(in crate::service) fn watch_mut(&mut self) -> Option<&mut Watch> {
        match self {
            Self::Converge { watch } | Self::VerifyRollback { watch, .. } => Some(watch),
            _ => None,
        }
    }

    /// Returns the watch of this phase, if it waits for tasks.
    pub(in crate::service) fn watch(&self) -> Option<&Watch> {
        match self {
            Self::Converge { watch } | Self::VerifyRollback { watch, .. } => Some(watch),
            _ => None,
        }
    }
}

/// One external step. Each can be repeated after a crash in the middle of it.
#[derive(Debug, Clone, PartialEq)]
pub enum SwarmStep {
    /// Check whether the swarm can pull and run an image.
    Admit {
        /// The image with its digest.
        image: Reference,
        /// Running digest of its repository.
        old: Option<Digest>,
    },
    /// Set another image in the specification.
    Set {
        /// Name of the service.
        service: String,
        /// Image that it must name now; any other was set by someone else.
        from: String,
        /// Image to set.
        to: String,
        /// Value that `ForceUpdate` must reach.
        force: Option<u64>,
        /// Whether this is a rollback: it restores the previous specification if that names the image, and may interrupt
        /// an update.
        back: bool,
        /// Image that ran before, if the rollback target is another one: the swarm's own rollback restores it.
        before: Option<String>,
    },
    /// Read the last log lines of a task.
    Diagnose {
        /// Its ID; empty if there is none.
        task: String,
        /// Full ID of its container; empty if that is on another node.
        container: String,
    },
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum SwarmResult {
    /// The swarm can pull and run the image.
    Admitted {
        /// Labels of the old and the new image, as far as the registry provides them.
        labels: ConfigChange,
    },
    /// The specification names the image.
    Set,
    /// The specification names an image that is neither the old nor the new one.
    Foreign {
        /// That image.
        image: String,
    },
    /// An external update is in progress.
    Busy,
    /// The log of the task.
    Diagnosed {
        /// Its last lines.
        log: String,
        /// Output of its last health check; empty if there is none or the container is on another node.
        health: String,
    },
    /// A permanent error.
    Failed(String),
    /// A transient error; the step must be retried.
    Transient(crate::model::SwarmError),
}

/// An update that failed for reasons unrelated to its image. It is retried with increasing delays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Postponed {
    /// Digest to deploy.
    pub digest: Digest,
    /// When it may be retried.
    pub until: Timestamp,
    /// How often it was tried.
    pub tries: u32,
}

impl SwarmRollout {
    /// Creates a rollout that is about to begin.
    pub fn new(plan: SwarmPlan, outage: Outage, now: Timestamp) -> Self {
        let phase = if plan.change.is_some() { SwarmPhase::Admit } else { SwarmPhase::Update };
        Self { plan, phase, begun: now, since: now, attempt: 0, outage, labels: ConfigChange::default() }
    }

    /// Enters a phase.
    pub fn enter(&mut self, phase: SwarmPhase, now: Timestamp) {
        (self.phase, self.since, self.attempt) = (phase, now, 0);
    }

    /// Returns the next external step; `None` while it waits for tasks.
    pub fn step(&self) -> Option<SwarmStep> {
        let SwarmPlan { service, from, to, back, force, .. } = &self.plan;
        match &self.phase {
            SwarmPhase::Admit => {
                let old = self.plan.change.as_ref().and_then(|change| change.old_digest.clone());
                Reference::parse(to).ok().map(|image| SwarmStep::Admit { image, old })
            }
            SwarmPhase::Update => Some(SwarmStep::Set {
                service: service.clone(),
                from: from.clone(),
                to: to.clone(),
                force: *force,
                back: false,
                before: None,
            }),
            SwarmPhase::Diagnose(failed) => Some(SwarmStep::Diagnose {
                task: failed.task.clone(),
                container: failed.failure.container_id.clone(),
            }),
            SwarmPhase::Rollback(_) => Some(SwarmStep::Set {
                service: service.clone(),
                from: to.clone(),
                to: back.clone(),
                force: None,
                back: true,
                before: Some(self.plan.from.clone()).filter(|from| !is_same_image(from, back)),
            }),
            SwarmPhase::Converge { .. } | SwarmPhase::VerifyRollback { .. } => None,
        }
    }
}
