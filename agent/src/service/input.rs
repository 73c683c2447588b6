//! Inputs: everything that enters the decision core.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_common::wire::{FleetAnswer, FleetAsk, KeptImage};
use jiff::Timestamp;

use super::action::DisplacedTag;
use super::fleet::FleetView;
use super::maintenance::MaintenanceResult;
use super::shared::SharedCandidate;
use super::state::FilesApplied;
use super::swarm::plan::SwarmResult;
use super::wording;
use crate::model::env_file::TagSetting;
use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId, Reference};
use crate::model::image_config::{ConfigChange, ConfigDifference};
use crate::model::probe::{Answer, Target};
use crate::model::snapshot::{CopyMade, EarlierData, FolderId, Mounter, Room, Source};
use crate::model::swarm::SwarmService;
use crate::model::{
    ComposeError, Container, Difference, EngineError, EventKind, Model, SignatureFlaw, SwarmError,
};
use crate::ports::fleet::FleetError;
use crate::ports::{GateAnswer, HookError};

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
    /// A step of the update of a swarm service ended.
    SwarmStepped(SwarmResult),
    /// Containers on probation were asked whether they serve.
    Probed {
        /// As in [`Action::Probe`](super::action::Action::Probe).
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
            | Input::SwarmStepped(_)
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
    /// Bytes.
    pub memory: u64,
    /// Bytes; `None` without a limit of its own.
    pub memory_limit: Option<u64>,
}

/// The state of registry and engine as of one check.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observation {
    /// One view per configured image, in the configuration's order.
    pub images: Vec<ImageView>,
    /// All containers of the service.
    pub containers: Arc<[Container]>,
    /// The swarm service, if this is one.
    pub swarm: Option<Box<SwarmService>>,
    /// Blocked images of other services in the same project: a deployment of this service must not move their tags.
    pub blocked_elsewhere: Vec<(Reference, Digest)>,
    /// The compose files that another service of the project was the last to apply: one edit needs only one run of compose.
    pub files_applied_elsewhere: Option<FilesApplied>,
    /// The digests as seen by other services of the project, by image as configured.
    pub others: BTreeMap<String, Vec<SharedCandidate>>,
    /// The compose files.
    pub files: Files,
    /// Compose files that containers were created with and that are not configured, if bringing up the project without
    /// them would change these containers.
    pub unlisted_files: Vec<PathBuf>,
    /// How compose's definition of what an update would bring up compares with what runs; `None` if there is no update to
    /// compare for.
    pub definition: Option<Result<Definition, String>>,
    /// Images, as configured, for which the registry returned no digest; their view has none.
    pub unanswered: BTreeMap<String, Unanswered>,
    /// Images, as configured, that must be signed (`signed_by`), and whose digest in the registry is not known to be.
    pub unsigned: BTreeMap<String, Unsigned>,
    /// Images, as configured, that must be signed, and whose digest in the registry was signed before the one that runs.
    pub signed_earlier: BTreeSet<String>,
    /// Per image as configured: how the configuration of its digest in the registry differs from that of the running image.
    /// Only for images that an update would replace, and only if the service has gates.
    pub configs: BTreeMap<String, ConfigsCompared>,
    /// Errors of unusable `signed_by` files.
    pub key_faults: Vec<String>,
    /// The tag that the env file sets (`tag_variable`); `None` if not configured or not readable.
    pub tag: Option<TagInForce>,
    /// The data that an update copies first (`snapshot`), or why it can't; `None` if there is no update to copy it for.
    pub snapshot: Option<Result<SnapshotSeen, String>>,
}

/// The data that a snapshot is taken of, as of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSeen {
    /// The data.
    pub sources: Vec<Source>,
    /// The folder of each copy, and the room that it needs.
    pub rooms: Vec<(PathBuf, Room)>,
    /// Where hooks leave what they save of the data.
    pub dumps: PathBuf,
    /// The earlier data that is to be put back, with what tells each of its folders from others, in the order of the sources.
    pub earlier: Option<(EarlierData, Vec<FolderId>)>,
}

/// What a step of a snapshot has led to.
#[derive(Debug, Clone, PartialEq)]
pub enum SnapshotStepped {
    /// These containers mount the data and run.
    Running(Vec<Mounter>),
    /// The data is copied.
    Copied(Vec<CopyMade>),
    /// The containers were started; the containers of the project immediately afterwards.
    Resumed {
        /// The containers.
        containers: Vec<Container>,
    },
    /// The step is done.
    Done,
}

/// How the configuration of a new image differs from that of the running one, or what of them is not known.
pub type ConfigsCompared = Result<Vec<ConfigDifference>, String>;

/// The tag that a line of the env file sets, as of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagInForce {
    /// Where it is set, and to which tag.
    pub setting: TagSetting,
    /// SHA-256 of the whole file in hex.
    pub file_hash: String,
}

/// Why the registry's digest of an image is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// There is no answer yet: the rest of the check follows.
    Pending,
    /// The registry returned none; the error text is stable.
    Failed(String),
}

/// Why an image does not count as signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsigned {
    /// It has no signature.
    Missing,
    /// It has signatures, but none is valid.
    Invalid(SignatureFlaw),
    /// It is unknown whether it has one; the error text is stable.
    Unknown(String),
    /// Another service of the project requires a signature that is missing or not known to exist; the text says which.
    Elsewhere(String),
}

impl Observation {
    /// Whether another observation of the same check follows with the missing answers.
    pub fn is_pending(&self) -> bool {
        self.unanswered.values().any(|why| *why == Unanswered::Pending)
    }

    /// The error texts of the registries, without duplicates.
    pub fn registry_fault(&self) -> Option<String> {
        let texts: BTreeSet<&str> = self
            .unanswered
            .values()
            .filter_map(|why| match why {
                Unanswered::Failed(text) => Some(text.as_str()),
                Unanswered::Pending => None,
            })
            .collect();
        (!texts.is_empty()).then(|| texts.into_iter().collect::<Vec<_>>().join("; "))
    }
}

/// The definition of what an update would bring up, as of one check (DECISIONS 4a).
#[derive(Default, Debug, Clone, PartialEq)]
pub struct Definition {
    /// The resolved model.
    pub model: Arc<Model>,
    /// Per image as configured: how the compose services that its update would bring up differ from what runs.
    pub differences: BTreeMap<String, Vec<Difference>>,
    /// The host paths of bind mounts that are no directories.
    pub bound_files: BTreeSet<String>,
}

/// The compose files as of one check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Files {
    /// Not read.
    #[default]
    Unread,
    /// Hash of the files. If it differs from the known one, compose accepts them.
    Hash(String),
    /// The hash of the files, which are those of the known hash: that was computed by an earlier version.
    Unchanged(String),
    /// The files are being written: the next check reads them again.
    Unsettled,
    /// They can't be read, or compose does not accept them.
    Unusable(String),
}

/// One configured image, remote and local.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageView {
    /// As configured.
    pub configured: String,
    /// The reference in the compose files: the configured one, normalized, with the tag from the env file if that sets a
    /// different one.
    pub reference: Reference,
    /// The same with a newer tag, if there is one that may be deployed. The registry was queried for that.
    pub newer: Option<Reference>,
    /// The reference that the containers were created from: `reference`, unless the env file has changed since.
    pub from: Reference,
    /// The digest in the registry; `None` for a pinned reference, which never updates, and if the registry was not queried
    /// or did not answer.
    pub remote: Option<Digest>,
    /// The images of the running containers of this reference, without duplicates.
    pub running: Vec<LocalImage>,
    /// The local image that the tag points to.
    pub tagged: Option<LocalImage>,
}

impl ImageView {
    /// Creates a view without any information yet.
    pub fn new(configured: String, reference: Reference) -> Self {
        let from = reference.clone();
        Self { configured, reference, newer: None, from, remote: None, running: Vec::new(), tagged: None }
    }

    /// Lets equal digests and IDs share their text, also with the known `digest` and `ids`: they make up most of the memory
    /// of a view.
    pub fn intern_digests(&mut self, digest: Option<&Digest>, ids: &[ImageId]) {
        fn share<T: Clone + PartialEq>(known: &mut Vec<T>, value: &mut T) {
            match known.iter().find(|one| *one == value) {
                Some(same) => value.clone_from(same),
                None => known.push(value.clone()),
            }
        }
        let mut digests: Vec<Digest> = digest.cloned().into_iter().collect();
        let mut ids = ids.to_vec();
        self.remote.iter_mut().for_each(|digest| share(&mut digests, digest));
        for image in self.running.iter_mut().chain(&mut self.tagged) {
            share(&mut ids, &mut image.id);
            image.digests.iter_mut().for_each(|digest| share(&mut digests, digest));
        }
    }

    /// The reference that the registry is queried for.
    pub fn target(&self) -> &Reference {
        self.newer.as_ref().unwrap_or(&self.reference)
    }
}

/// A local image in relation to one repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalImage {
    /// Its ID.
    pub id: ImageId,
    /// Its digests in exactly the repository of the reference. With the containerd store this includes its ID, if the
    /// registry has it, even if the engine no longer has a record of the image (DECISIONS 9).
    pub digests: Vec<Digest>,
    /// Uncompressed size in bytes.
    pub size: u64,
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
    /// The tags of other services were resolved.
    TagsRead {
        /// Tags that do not point to the running image.
        displaced: Vec<DisplacedTag>,
    },
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
    /// The hook has ended.
    HookEnded(Result<(), HookError>),
    /// A step of a handover was taken.
    HandoverStepped {
        /// What went wrong without stopping it, in words.
        problems: Vec<String>,
        /// The containers immediately afterwards.
        containers: Vec<Container>,
    },
    /// A step of a snapshot was taken.
    Snapshot(SnapshotStepped),
    /// The step failed permanently.
    Failed(String),
    /// The engine did not answer during the step; the step must be retried.
    EngineAway(String),
}

impl StepResult {
    /// The error text of a step that did not end as expected.
    pub(super) fn failure(self) -> String {
        match self {
            Self::Failed(text) | Self::EngineAway(text) => text,
            Self::Started { up: Err(error), .. } => error.to_string(),
            other => wording::unexpected_result(&other),
        }
    }
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

/// When containers were told to stop, by ID.
pub(super) type StopTimes = BTreeMap<String, Timestamp>;
