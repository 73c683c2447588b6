//! Inputs: everything that enters the decision core.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_common::wire::{FleetAnswer, FleetAsk, KeptImage};
use jiff::Timestamp;

use crate::config::ServiceConfig;
use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId};
use crate::model::image_config::ConfigChange;
use crate::model::probe::{Answer, Target};
use crate::model::snapshot::{CopyMade, KeptFolder, Mounter};
use crate::model::swarm::SwarmService;
use crate::model::{ComposeError, Container, EngineError, EventKind, SwarmError};
use crate::ports::fleet::FleetError;
use crate::ports::{GateAnswer, HookError};
use crate::service::action::DisplacedTag;
use crate::service::fleet::FleetView;
use crate::service::observation::Observation;
use crate::service::upkeep::maintenance::MaintenanceResult;

/// An input of the decision core: the result of an action, or an external event.
#[derive(Debug, Clone, PartialEq)]
// Inputs travel boxed.
#[allow(clippy::large_enum_variant)]
pub enum Input {
    /// A check of registry and engine ended.
    Checked {
        /// Generation in which the check began. If an action has changed it since, the result is stale.
        generation: u64,
        /// Whether a user requested the check.
        is_manual: bool,
        /// The observation, or why there is none.
        result: Result<Observation, CheckFault>,
    },
    /// An inspection of the containers ended.
    Inspected {
        /// As in [`Input::Checked`]. Changes by other services of the project also make it stale.
        generation: u64,
        /// The containers, or why they could not be inspected.
        result: Result<Vec<Container>, EngineError>,
    },
    /// A swarm service was inspected.
    SwarmInspected {
        /// As in [`Input::Checked`].
        generation: u64,
        /// The service, or why it could not be inspected.
        result: Result<SwarmService, SwarmError>,
    },
    /// Containers on probation were asked whether they serve.
    Probed {
        /// As in [`Action::Probe`](crate::service::action::Action::Probe).
        since: Timestamp,
        /// Their answers.
        answers: BTreeMap<Target, Answer>,
    },
    /// A step of the deployment ended.
    Stepped(StepResult),
    /// A restart ended.
    Restarted {
        /// Container name.
        name: String,
        /// Whether the restart succeeded.
        result: Result<(), EngineError>,
    },
    /// The engine reported an event of one of the containers.
    Event {
        /// When, by the engine's clock.
        at: Timestamp,
        /// Full container ID.
        id: String,
        /// What happened.
        what: EventKind,
    },
    /// The engine's event stream was interrupted or reopened: events were missed, and the engine itself may have stopped
    /// containers.
    EngineGap {
        /// When, by the clock at that time; compared with times reported by the engine.
        at: Timestamp,
    },
    /// The engine's event stream is connected (again).
    EngineBack {
        /// When, likewise.
        at: Timestamp,
        /// The engine has been running at least since then, without stopping the containers; `None` if unknown.
        engine_since: Option<Timestamp>,
    },
    /// Resource usage was measured.
    Measured(Measurement),
    /// A maintenance task ended.
    Maintained(MaintenanceResult),
    /// The gate command has answered.
    CommandAnswered {
        /// Image as configured.
        image: String,
        /// The digest it decides on.
        digest: Digest,
        /// Its answer.
        answer: GateAnswer,
    },
    /// The fleet view has changed.
    Fleet(Arc<FleetView>),
    /// The wardens have answered, or none did.
    FleetAnswered {
        /// Image as configured.
        image: String,
        /// The request.
        ask: FleetAsk,
        /// The answer.
        answer: Result<FleetAnswer, FleetError>,
    },
    /// A lease was released, or no warden accepted the release.
    FleetReleased(FleetAsk),
}

impl Input {
    /// Marks the input for later delivery: results of reads are then stale and are read again.
    #[must_use]
    pub fn deferred(mut self) -> Self {
        if let Input::Checked { generation, .. }
        | Input::Inspected { generation, .. }
        | Input::SwarmInspected { generation, .. } = &mut self
        {
            *generation = u64::MAX;
        }
        self
    }

    /// Whether the service waits for this input. Other inputs are hints and may be lost.
    pub fn ends_an_action(&self) -> bool {
        match self {
            Input::Checked { .. }
            | Input::Inspected { .. }
            | Input::Stepped(_)
            | Input::Probed { .. }
            | Input::SwarmInspected { .. }
            | Input::Restarted { .. }
            | Input::Maintained(_)
            | Input::CommandAnswered { .. }
            | Input::Fleet(_)
            | Input::FleetAnswered { .. }
            | Input::FleetReleased(_) => true,
            Input::Event { .. } | Input::EngineGap { .. } | Input::EngineBack { .. } | Input::Measured(_) => {
                false
            }
        }
    }

    /// Whether an inspection, or the next input of the kind, tells as much.
    pub fn is_hint(&self) -> bool {
        match self {
            Input::Event { what, .. } => matches!(what, EventKind::Health(_) | EventKind::Oom),
            Input::Measured(_) => true,
            _ => false,
        }
    }

    /// Whether it tells who has stopped a container: a person, or the engine when it went away.
    pub fn tells_who_stops(&self) -> bool {
        match self {
            Input::Event { what, .. } => matches!(what, EventKind::Kill { .. } | EventKind::Stop),
            Input::EngineGap { .. } | Input::EngineBack { .. } => true,
            _ => false,
        }
    }
}

/// Resource usage of the containers of a service. Contains only containers with two readings.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Whether it spans a whole interval. Usage in the first seconds of a container is shown, but raises no alert.
    pub is_full: bool,
    /// Memory of the engine's machine in bytes.
    pub machine_memory: u64,
    /// By full container ID.
    pub containers: FewMap<String, ContainerUse>,
}

/// Resource usage of one container.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContainerUse {
    /// Percent of one core.
    pub cpu_percent: f64,
    /// Cores that the engine says it could use without a limit of its own.
    pub cores: u32,
    /// Bytes.
    pub memory: u64,
    /// Bytes; `None` without a limit of its own.
    pub memory_limit: Option<u64>,
}

/// What a step of a snapshot has led to.
#[derive(Debug, Clone, PartialEq)]
pub enum SnapshotStepped {
    /// These containers mount the data and run.
    Running(Vec<Mounter>),
    /// Nothing was stopped: another service may put back the data.
    Waiting {
        /// Which one.
        why: String,
    },
    /// The copies were put back, and these containers were started meanwhile.
    Disturbed(Vec<Mounter>),
    /// The data is copied.
    Copied(Vec<CopyMade>),
    /// The containers were started; the containers of the project immediately afterwards.
    Resumed {
        /// The containers.
        containers: Vec<Container>,
        /// Those that were stopped and don't run again.
        not_started: Vec<NotStarted>,
    },
    /// Some folders have their earlier data, others not, and that can't be undone.
    Mixed {
        /// Why, and where the data is.
        why: String,
    },
    /// What is no longer kept was removed, as far as that was possible.
    Expired {
        /// What could not be removed.
        left: Vec<KeptFolder>,
        /// Why; empty if nothing is left.
        why: String,
    },
    /// The step is done.
    Done,
}

/// A container that was stopped for a snapshot and does not run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotStarted {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
}

/// Why a check returned no observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckFault {
    /// Containers or images could not be read; the error text is stable.
    Failed(String),
    /// The engine did not answer: nothing is known, and it is not a fault of the service.
    EngineAway(String),
}

/// How a step of a deployment ended.
#[derive(Debug, Clone, PartialEq)]
pub enum StepResult {
    /// The old images are pinned, except for the missing ones.
    ImagesPinned {
        /// References whose old image is gone and could not be pulled again.
        missing: Vec<String>,
    },
    /// The new images are pulled.
    Pulled {
        /// Image as configured, and its ID.
        ids: Vec<(String, ImageId)>,
        /// Image as configured, and the labels of the old and the new image.
        labels: BTreeMap<String, ConfigChange>,
    },
    /// A new image could not be pulled.
    PullFailed {
        /// Image as configured.
        image: String,
        /// Why.
        why: String,
        /// Whether the image exists, but not for the platform of this machine.
        lacks_platform: bool,
        /// Images as configured that are on this machine now, with their IDs.
        pulled: Vec<(String, ImageId)>,
    },
    /// The tags of other services were resolved.
    TagsRead {
        /// Tags that do not point to the running image.
        displaced: Vec<DisplacedTag>,
    },
    /// Compose did not run, because not all containers are as they were before.
    Looked {
        /// The containers.
        containers: Vec<Container>,
    },
    /// Nothing was done, because another compose run changes the project, and does not end, or one follows another.
    Occupied,
    /// Compose ran.
    Started {
        /// Compose's output, or why it failed.
        up: Result<String, ComposeError>,
        /// The compose services that it was limited to; empty for the whole project.
        named: Vec<String>,
        /// The containers immediately afterwards.
        containers: Vec<Container>,
    },
    /// Diagnostics of the failure were collected.
    Diagnosed {
        /// Last log lines of the container that failed.
        log: String,
    },
    /// The line of the env file has the requested content.
    TagWritten,
    /// The line of the env file was changed by someone else in the meantime; it is left alone.
    TagLineChanged,
    /// The tags are restored.
    TagsRestored,
    /// The old images are unpinned.
    Unpinned,
    /// The hook has ended, with the containers immediately afterwards if they were to be looked at.
    HookEnded(Result<Option<Vec<Container>>, HookError>),
    /// A step of a handover was taken.
    HandoverStepped {
        /// What went wrong without stopping it, in words.
        problems: Vec<String>,
        /// The containers immediately afterwards.
        containers: Vec<Container>,
    },
    /// A step of a snapshot was taken.
    Snapshot(SnapshotStepped),
    /// A step in a swarm was taken.
    Swarm(SwarmResult),
    /// The step failed permanently.
    Failed(String),
    /// The engine did not answer during the step; the step must be retried.
    EngineAway(String),
}

/// Result of a step in a swarm.
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
    Transient(SwarmError),
}

/// Something that makes work due, or that others do. It changes nothing durable, so it counts at once.
#[derive(Debug, Clone)]
pub enum Notice<'a> {
    /// A check is requested, if [`Service::may_check`](crate::service::Service::may_check).
    Check {
        /// Whether the request is from a poll cycle or a user, not from a push notification of a registry (DECISIONS 7: the
        /// gate command runs once per cycle).
        is_new: bool,
    },
    /// The containers are to be inspected as soon as possible.
    Inspect,
    /// Requests to stop containers were lost on their way.
    StopsLost,
    /// A registry has reported a push that may be a newer tag.
    TagPushed,
    /// All services of the compose project, in the order in which they are considered as healers.
    Siblings(Arc<[Arc<ServiceConfig>]>),
    /// Another service, of this name, has begun to change the project.
    SiblingBegins(&'a str),
    /// The project is free again.
    SiblingEnds,
    /// The service is no longer configured.
    Retired,
}

/// A user request to a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceRequest {
    /// Check now, past the gates that a person's trigger passes.
    Check,
    /// Check now, and pass no gate.
    CheckGated,
    /// Pull and recreate regardless of the digests.
    Redeploy,
    /// Go back to the named image, or to the one that was proven before.
    Rollback {
        /// The digest to go back to; `None`: the one that was proven before.
        to: Option<Digest>,
        /// Whether its data is put back, too.
        data: bool,
    },
    /// Remove all blocks.
    Unblock,
    /// Approve the waiting digest, or the given one.
    Approve(Option<Digest>),
}

/// The reply of a service to a user request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceReply {
    /// The request was accepted.
    Accepted,
    /// The project will be redeployed, except for these images, which are kept.
    Redeploying(Vec<KeptImage>),
    /// The service goes back to this image.
    RollingBack(Digest),
    /// The request can't be met, for this reason.
    Refused(String),
    /// The request was skipped for this reason.
    Skipped(&'static str),
    /// Blocks were removed.
    Unblocked,
    /// There was no block.
    NotBlocked,
    /// This digest is approved.
    Approved(Digest),
    /// The named digest does not wait, but this one does.
    OtherWaiting(Digest),
    /// No digest waits for approval.
    NothingWaiting,
}
