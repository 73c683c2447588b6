//! The phases of a rollout, and the transition after each step.

use serde::{Deserialize, Serialize};

use crate::model::HookEvent;
use crate::model::snapshot::KeptFolder;
use crate::service::rollout::probation::{Failed, Interference, Probation, Reason};
use crate::service::rollout::target::watch::Watch;

/// Phase of a deployment, with the data that only this phase needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum Phase {
    /// Pinning the old images, so that no prune removes them.
    #[serde(alias = "hold")]
    PinImages,
    /// Pulling the new images.
    Pull,
    /// Writing the newer tag to the env file.
    WriteTag,
    /// Bringing up the project on the new images.
    Start,
    /// Stopping what writes to the data that is to be copied.
    Quiesce,
    /// Copying the data.
    Copy,
    /// Putting the copies of the data back.
    Restore(Failed),
    /// Starting what was stopped for the sake of the data and not made anew.
    Resume {
        /// Why the new images were rejected, if the old ones are up again or about to be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<Failed>,
        /// Whether the images are yet to be brought up, which may need it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_early: bool,
    },
    /// Removing copies that are no longer kept.
    Expire {
        /// What to remove.
        remove: Vec<KeptFolder>,
    },
    /// The new containers are on probation.
    Probation {
        /// The probation and its findings so far.
        #[serde(alias = "trial")]
        probation: Probation,
    },
    /// Starting new containers beside the old ones.
    Spread,
    /// Relieving the old containers of their requests.
    Drain,
    /// Stopping the old containers.
    Retire,
    /// The new containers serve alone, and are on probation once more.
    Soak {
        /// The probation and its findings so far.
        probation: Probation,
    },
    /// Removing the old containers.
    Settle {
        /// What somebody has done to the new ones, if they are not proven because of that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interference: Option<Interference>,
    },
    /// The new images failed after the old containers were drained or stopped: starting these again, or removing them if they
    /// were drained for good, or do not run a second time.
    Revive(Failed),
    /// The new images failed: removing their containers.
    Withdraw {
        /// Why the new images were rejected.
        #[serde(flatten)]
        failed: Failed,
        /// What is wrong with the old containers nevertheless.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remaining: Option<Reason>,
        /// Whether the old containers have passed their probation.
        is_verified: bool,
    },
    /// Somebody has interfered before the new images were proven: removing their containers.
    Abort {
        /// What was done.
        why: Interference,
    },
    /// Compose failed before it touched any container: restoring only the tags.
    #[serde(alias = "tags_back")]
    RestoreTags,
    /// The new images failed, and their digests are blocked. Reading the last log lines of the container.
    #[serde(alias = "evidence")]
    Diagnose(Failed),
    /// Bringing up the old images again.
    #[serde(alias = "undo")]
    Rollback(Failed),
    /// The old containers are on probation.
    #[serde(alias = "proof")]
    VerifyRollback {
        /// Why the new images were rejected.
        #[serde(flatten)]
        failed: Failed,
        /// The probation and its findings so far.
        #[serde(alias = "trial")]
        probation: Probation,
    },
    /// The outcome is decided; removing the pins.
    #[serde(alias = "release")]
    Unpin,
    /// Checking whether the swarm can pull and run the image. Nothing is changed yet.
    Admit,
    /// Changing the specification of the swarm service.
    Update,
    /// The swarm replaces the tasks, which then have to prove the image.
    Converge {
        /// The watch and its findings so far.
        watch: Watch,
    },
    /// The tasks on the old image have to prove it.
    VerifyTasks {
        /// Why the new image was rejected.
        #[serde(flatten)]
        failed: Failed,
        /// The watch and its findings so far.
        watch: Watch,
    },
    /// Nothing has been done yet: running the hook that comes first.
    BeforeHook,
    /// The outcome is recorded: running the hook that comes last.
    LastHook {
        /// What it is run for.
        event: HookEvent,
    },
}

impl Phase {
    /// Name of the step in the journal and in the log.
    pub fn name(&self) -> &'static str {
        match self {
            Phase::PinImages => "pin_images",
            Phase::Pull => "pull",
            Phase::WriteTag => "write_tag",
            Phase::Start => "start",
            Phase::Probation { .. } => "probation",
            Phase::RestoreTags => "restore_tags",
            Phase::Diagnose(_) => "diagnose",
            Phase::Rollback(_) => "rollback",
            Phase::VerifyRollback { .. } | Phase::VerifyTasks { .. } => "verify_rollback",
            Phase::Unpin => "unpin",
            Phase::Admit => "admit",
            Phase::Update => "update",
            Phase::Converge { .. } => "converge",
            Phase::BeforeHook => "before_hook",
            Phase::LastHook { .. } => "last_hook",
            Phase::Spread => "spread",
            Phase::Drain => "drain",
            Phase::Retire => "retire",
            Phase::Soak { .. } => "soak",
            Phase::Settle { .. } => "settle",
            Phase::Revive(_) => "revive",
            Phase::Withdraw { .. } => "withdraw",
            Phase::Abort { .. } => "abort",
            Phase::Quiesce => "quiesce",
            Phase::Copy => "copy",
            Phase::Restore(_) => "restore",
            Phase::Resume { .. } => "resume",
            Phase::Expire { .. } => "expire",
        }
    }

    /// Reports whether the outcome is decided and recorded, and what is left to do changes no container.
    pub fn is_aftermath(&self) -> bool {
        matches!(self, Phase::Expire { .. } | Phase::LastHook { .. })
    }

    /// Returns the probation of this phase, if it has one.
    pub(in crate::service) fn probation(&self) -> Option<&Probation> {
        match self {
            Phase::Probation { probation }
            | Phase::Soak { probation }
            | Phase::VerifyRollback { probation, .. } => Some(probation),
            _ => None,
        }
    }

    /// Returns the probation of this phase if new images are on it.
    pub(in crate::service) fn probation_of_new(&self) -> Option<&Probation> {
        match self {
            Phase::Probation { probation } | Phase::Soak { probation } => Some(probation),
            _ => None,
        }
    }

    /// Reports whether containers are on probation in this phase.
    pub(in crate::service) fn is_probation(&self) -> bool {
        self.probation().is_some()
    }

    /// Returns the probation of this phase mutably, if it has one.
    pub(in crate::service) fn probation_mut(&mut self) -> Option<&mut Probation> {
        match self {
            Phase::Probation { probation }
            | Phase::Soak { probation }
            | Phase::VerifyRollback { probation, .. } => Some(probation),
            _ => None,
        }
    }

    /// Returns the watch of this phase, if it waits for tasks.
    pub(in crate::service) fn watch(&self) -> Option<&Watch> {
        match self {
            Phase::Converge { watch } | Phase::VerifyTasks { watch, .. } => Some(watch),
            _ => None,
        }
    }

    /// Returns the watch of this phase mutably, if it waits for tasks.
    pub(in crate::service) fn watch_mut(&mut self) -> Option<&mut Watch> {
        match self {
            Phase::Converge { watch } | Phase::VerifyTasks { watch, .. } => Some(watch),
            _ => None,
        }
    }
}
