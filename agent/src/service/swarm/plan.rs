//! What an update of a swarm service is about, and where it stands; all of it is journaled before each step.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_common::wire::KeptImage;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, LabelChange, Reference};
use crate::model::swarm::is_same_image;
use crate::service::rollout::plan::{Cause, ImageChange};
use crate::service::rollout::probation::Failure;

use super::watch::Watch;

/// An update under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmRollout {
    /// What it is about; never changes.
    pub plan: SwarmPlan,
    /// Where it stands.
    pub phase: SwarmPhase,
    /// When it was begun.
    pub begun: Timestamp,
    /// When the phase was entered.
    pub since: Timestamp,
    /// How often the step was tried in vain.
    pub attempt: u32,
    /// What the old and the new image say of themselves; known once the swarm has admitted it.
    #[serde(default)]
    pub labels: LabelChange,
}

/// What an update is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmPlan {
    /// Why.
    pub cause: Cause,
    /// Name of the service in the swarm.
    pub service: String,
    /// The image that changes; `None` where tasks are only recreated or put back.
    pub change: Option<ImageChange>,
    /// Image of the specification when it was planned, as the managers had it.
    pub from: String,
    /// Image that it is set to.
    pub to: String,
    /// Image that a rollback leads to.
    pub back: String,
    /// Value that `ForceUpdate` must reach, where the tasks are recreated whatever the image.
    pub force: Option<u64>,
    /// IDs of the tasks before: they say nothing about the update.
    pub known: BTreeSet<String>,
    /// `health_grace` when it was begun.
    pub grace: Duration,
    /// As in a plan for a compose project.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptImage>,
}

impl SwarmPlan {
    /// What is deployed, in words.
    pub fn image(&self) -> &str {
        self.change.as_ref().map_or(&self.service, |change| &change.configured)
    }

    /// What there is to be rolled back.
    pub fn is_reversible(&self) -> bool {
        self.change.is_some() && !is_same_image(&self.back, &self.to)
    }
}

/// Why an update is not kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmFailed {
    /// What failed.
    pub failure: Failure,
    /// Evidence.
    pub output: String,
    /// ID of the task whose log tells more; empty where there is none.
    pub task: String,
    /// Whether nodes are to blame and not the image: it is not blocked then.
    pub by_node: bool,
}

/// Where an update stands, with all that this step alone needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum SwarmPhase {
    /// It is seen whether the swarm can get and run the image. Nothing is changed yet.
    Admit,
    /// The specification is being changed.
    Update,
    /// The swarm replaces the tasks, and then they must prove themselves.
    Converge {
        /// What was seen so far.
        watch: Watch,
    },
    /// It failed. The digest is blocked; what the task wrote last is being read.
    Diagnose(SwarmFailed),
    /// The specification is being put back, where the swarm has not done so.
    Rollback(SwarmFailed),
    /// The tasks on the old image must prove themselves.
    VerifyRollback {
        /// Why.
        failed: SwarmFailed,
        /// What was seen so far.
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

    /// The watch of this phase, if it waits for tasks.
    pub(in crate::service) fn watch_mut(&mut self) -> Option<&mut Watch> {
        match self {
            Self::Converge { watch } | Self::VerifyRollback { watch, .. } => Some(watch),
            _ => None,
        }
    }

    /// The same, to be read.
    pub(in crate::service) fn watch(&self) -> Option<&Watch> {
        match self {
            Self::Converge { watch } | Self::VerifyRollback { watch, .. } => Some(watch),
            _ => None,
        }
    }
}

/// One step outside. Each can be taken again after a crash in the middle of it.
#[derive(Debug, Clone, PartialEq)]
pub enum SwarmStep {
    /// See whether the swarm can get and run an image.
    Admit {
        /// The image with its digest.
        image: Reference,
        /// What runs of its repository.
        old: Option<Digest>,
    },
    /// Let the specification name another image.
    Set {
        /// Name of the service.
        service: String,
        /// What it must name now; another image there is somebody else's.
        from: String,
        /// What it is to name.
        to: String,
        /// Value that `ForceUpdate` must reach.
        force: Option<u64>,
        /// Whether it goes back: to the previous specification where that is the one, and also in the middle of an
        /// update.
        back: bool,
        /// Image that ran before, where the way back leads to another one: the swarm goes back to it by itself.
        before: Option<String>,
    },
    /// Read what a task wrote last.
    Diagnose {
        /// Its ID; empty where there is none.
        task: String,
        /// Full ID of its container; empty where that is on another node.
        container: String,
    },
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq)]
pub enum SwarmResult {
    /// The swarm can get and run the image.
    Admitted {
        /// What the old and the new image say of themselves, as far as the registry tells.
        labels: LabelChange,
    },
    /// The specification names the image.
    Set,
    /// The specification names an image that is neither of the two.
    Foreign {
        /// That image.
        image: String,
    },
    /// Somebody else's update is under way.
    Busy,
    /// What the task wrote.
    Diagnosed {
        /// Its last lines.
        log: String,
        /// Output of its last health check; empty where there is none, or the container is on another node.
        health: String,
    },
    /// It failed for good.
    Failed(String),
    /// Nobody answered; the step must be taken again.
    Passing(crate::model::SwarmError),
}

/// An update that failed for reasons that are no image's: it is tried again later each time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Postponed {
    /// What was to be deployed.
    pub digest: Digest,
    /// When it may be tried again.
    pub until: Timestamp,
    /// How often it was tried.
    pub tries: u32,
}

impl SwarmRollout {
    /// One that is about to begin.
    pub fn new(plan: SwarmPlan, now: Timestamp) -> Self {
        let phase = if plan.change.is_some() { SwarmPhase::Admit } else { SwarmPhase::Update };
        Self { plan, phase, begun: now, since: now, attempt: 0, labels: LabelChange::default() }
    }

    /// Enters a phase.
    pub fn enter(&mut self, phase: SwarmPhase, now: Timestamp) {
        (self.phase, self.since, self.attempt) = (phase, now, 0);
    }

    /// What is to be done outside now; `None` while it waits for tasks.
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
