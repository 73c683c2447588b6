//! What a service learns: everything that enters the decision core.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_common::wire::{FleetAnswer, FleetAsk, KeptImage};
use jiff::Timestamp;

use super::action::DisplacedTag;
use super::fleet::FleetView;
use super::maintenance::MaintenanceResult;
use super::shared::SharedCandidate;
use super::swarm::plan::SwarmResult;
use super::wording;
use crate::model::env_file::TagSetting;
use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId, LabelChange, Reference};
use crate::model::swarm::SwarmService;
use crate::model::{ComposeError, Container, EngineError, EventKind, SignatureFlaw, SwarmError};
use crate::ports::GateAnswer;
use crate::ports::fleet::FleetError;

/// Something that is known now and was not before.
#[derive(Debug, Clone, PartialEq)]
// Inputs travel boxed.
#[allow(clippy::large_enum_variant)]
pub enum Input {
    /// A check of registry and engine ended.
    Checked {
        /// Generation that the check was begun in; what an action changed meanwhile makes it worthless.
        generation: u64,
        /// Whether a person waits for its result.
        asked: bool,
        /// What was seen, or why nothing was.
        result: Result<Observation, CheckFault>,
    },
    /// An inspection of the containers ended.
    Inspected {
        /// As in [`Input::Checked`]. What another service of the project has changed meanwhile counts, too.
        generation: u64,
        /// The containers, or why they could not be read.
        result: Result<Vec<Container>, EngineError>,
    },
    /// A swarm service was read.
    SwarmSeen {
        /// As in [`Input::Checked`].
        generation: u64,
        /// The service, or why it could not be read.
        result: Result<SwarmService, SwarmError>,
    },
    /// A step of the update of a swarm service ended.
    SwarmStepped(SwarmResult),
    /// A step of the deployment ended.
    Stepped(StepResult),
    /// A restart ended.
    Restarted {
        /// Container name.
        name: String,
        /// Whether the engine did it.
        result: Result<(), EngineError>,
    },
    /// Something happened to one of the containers.
    Event {
        /// When, by the engine's clock.
        at: Timestamp,
        /// Full container ID.
        id: String,
        /// What happened.
        what: EventKind,
    },
    /// The engine's event stream broke off or was reopened: whatever happened meanwhile was not seen, and
    /// containers may have been stopped by the engine itself.
    EngineGap {
        /// When, by the clock as it was then: it is compared with times of the engine's.
        at: Timestamp,
    },
    /// The engine's event stream is there (again).
    EngineBack {
        /// When, likewise.
        at: Timestamp,
    },
    /// What the containers use was measured.
    Measured(Measurement),
    /// A task beside checks and deployments ended.
    Maintained(MaintenanceResult),
    /// The gate command has answered.
    CommandAnswered {
        /// Image as configured.
        image: String,
        /// What it was asked about.
        digest: Digest,
        /// Its answer.
        answer: GateAnswer,
    },
    /// What is known of the fleet has changed.
    Fleet(Arc<FleetView>),
    /// The wardens have answered, or have not.
    FleetAnswered {
        /// Image as configured.
        image: String,
        /// What they were asked.
        ask: FleetAsk,
        /// Their answer.
        answer: Result<FleetAnswer, FleetError>,
    },
    /// A lease was given back, or no warden took it.
    FleetReleased(FleetAsk),
}

impl Input {
    /// The same for later: what was read by then is out of date, and is read again.
    #[must_use]
    pub fn held(mut self) -> Self {
        if let Input::Checked { generation, .. }
        | Input::Inspected { generation, .. }
        | Input::SwarmSeen { generation, .. } = &mut self
        {
            *generation = u64::MAX;
        }
        self
    }

    /// Whether the service waits for it; others are hints, of which any may be lost.
    pub fn ends_an_action(&self) -> bool {
        match self {
            Input::Checked { .. }
            | Input::Inspected { .. }
            | Input::Stepped(_)
            | Input::SwarmSeen { .. }
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

/// What the containers of a service use. It holds only containers of which there are two readings.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Whether it spans a whole interval. What a container used in its first seconds is shown, but alarms nobody.
    pub whole: bool,
    /// Memory of the engine's machine in bytes.
    pub machine_memory: u64,
    /// By full container ID.
    pub containers: FewMap<String, ContainerUse>,
}

/// What one container uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContainerUse {
    /// Percent of one core.
    pub cpu_percent: f64,
    /// Bytes.
    pub memory: u64,
    /// Bytes; `None` where only the machine limits it.
    pub memory_limit: Option<u64>,
}

/// Registry and engine as one check saw them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observation {
    /// One view per configured image, in the configuration's order.
    pub images: Vec<ImageView>,
    /// All containers of the service.
    pub containers: Arc<[Container]>,
    /// The swarm service, where it is one.
    pub swarm: Option<Box<SwarmService>>,
    /// Blocked images of other services that share the project: their tag must not be moved by our deploy.
    pub blocked_elsewhere: Vec<(Reference, Digest)>,
    /// What other services of the project make of the digests, by image as configured.
    pub others: BTreeMap<String, Vec<SharedCandidate>>,
    /// The compose files.
    pub files: Files,
    /// Compose files that containers were made with and the configuration does not name, where it would change these
    /// containers to bring the project up without them.
    pub left_out: Vec<PathBuf>,
    /// Images, as configured, whose digest the registry was asked for in vain; their view has none.
    pub unanswered: BTreeMap<String, Unanswered>,
    /// Images, as configured, that must be signed (`signed_by`), and whose digest in the registry is not known to be.
    pub unsigned: BTreeMap<String, Unsigned>,
    /// What is wrong with files of `signed_by` that can't be used.
    pub key_faults: Vec<String>,
    /// The tag that the env file sets (`tag_variable`); `None` where none is configured, or it could not be read.
    pub tag: Option<TagInForce>,
}

/// The tag that a line of the env file sets, as one check read it.
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
    /// The registry gave none, with a stable text.
    Failed(String),
}

/// Why an image does not count as signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsigned {
    /// It has no signature.
    Missing,
    /// It has signatures, and none of them counts.
    Invalid(SignatureFlaw),
    /// It is not known whether it has one, with a stable text.
    Unknown(String),
    /// Another service of the project asks for a signature that it has not, or is not known to have, in words.
    Elsewhere(String),
}

impl Observation {
    /// Whether another observation of the same check follows, with the answers that are missing here.
    pub fn is_pending(&self) -> bool {
        self.unanswered.values().any(|why| *why == Unanswered::Pending)
    }

    /// What the registries gave instead of digests, each text once.
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

/// The compose files as one check saw them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Files {
    /// Not read.
    #[default]
    Unread,
    /// Read; compose accepts them where they differ from what is known.
    Hash(String),
    /// They are being written: the next check reads them again.
    Unsettled,
    /// They can't be read, or compose does not accept them.
    Unusable(String),
}

/// One configured image, remote and local.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageView {
    /// As configured.
    pub configured: String,
    /// What the compose files come to: the configured reference in normal form, with the tag that the env file sets where
    /// that is another.
    pub reference: Reference,
    /// The same with a newer tag, where there is one that may be deployed. The registry was asked for that.
    pub newer: Option<Reference>,
    /// What the containers here were made from: `reference`, unless the tag in the env file was changed since.
    pub from: Reference,
    /// What the registry has; `None` for a pinned reference, which never updates, and where it was not asked or gave no
    /// answer.
    pub remote: Option<Digest>,
    /// The images that the running containers of this reference run on, without repeats.
    pub running: Vec<LocalImage>,
    /// The image that the tag names on this machine.
    pub tagged: Option<LocalImage>,
}

impl ImageView {
    /// An image of which nothing is known yet.
    pub fn new(configured: String, reference: Reference) -> Self {
        let from = reference.clone();
        Self { configured, reference, newer: None, from, remote: None, running: Vec::new(), tagged: None }
    }

    /// Lets digests and IDs that are the same share their text, with `digest` and `ids` that are known already, too: they are
    /// most of what is kept of an image.
    pub fn share_texts(&mut self, digest: Option<&Digest>, ids: &[ImageId]) {
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

    /// What the registry is asked for.
    pub fn target(&self) -> &Reference {
        self.newer.as_ref().unwrap_or(&self.reference)
    }
}

/// A local image as seen from one repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalImage {
    /// Its ID.
    pub id: ImageId,
    /// Its digests in exactly the repository of the reference. With the containerd store its ID is one, if the
    /// registry knows it, also where the engine has no record of the image any more (DECISIONS 9).
    pub digests: Vec<Digest>,
    /// Uncompressed size in bytes.
    pub size: u64,
}

/// Why a check saw nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckFault {
    /// The reading of containers or images failed, with a stable text.
    Failed(String),
    /// The engine gave no answer: nothing is known, and it is the engine's fault, not the service's.
    EngineAway(String),
}

/// How a step of a deployment ended.
#[derive(Debug, Clone, PartialEq)]
pub enum StepResult {
    /// The old images are pinned; those named here were gone already and could not be fetched again.
    ImagesPinned {
        /// References whose old image is gone.
        missing: Vec<String>,
    },
    /// The new images are here.
    Pulled {
        /// Image as configured, and its ID.
        ids: Vec<(String, ImageId)>,
        /// Image as configured, and what the old and the new one say of themselves.
        labels: BTreeMap<String, LabelChange>,
    },
    /// What the tags of other services name was read.
    TagsRead {
        /// Those that name another image than runs.
        displaced: Vec<DisplacedTag>,
    },
    /// Compose ran.
    Started {
        /// What compose printed, or why it failed.
        up: Result<String, ComposeError>,
        /// The compose services that it was told to keep to; none where it had the whole project.
        named: Vec<String>,
        /// The containers right after.
        containers: Vec<Container>,
    },
    /// Evidence of the failure was gathered.
    Diagnosed {
        /// Last log lines of the container that failed.
        log: String,
    },
    /// The line of the env file is as it is wanted.
    TagWritten,
    /// Somebody has changed the line of the env file meanwhile; it is left alone.
    TagTaken,
    /// The tags are where they were.
    TagsRestored,
    /// The old images are unpinned.
    Unpinned,
    /// The step failed for good.
    Failed(String),
    /// The engine gave no answer during the step; it must be taken again.
    EngineAway(String),
}

impl StepResult {
    /// What is said of a step that did not end as it should.
    pub(super) fn failure(self) -> String {
        match self {
            Self::Failed(text) | Self::EngineAway(text) => text,
            Self::Started { up: Err(error), .. } => error.to_string(),
            other => wording::foreign_result(&other),
        }
    }
}

/// What a person asks of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceRequest {
    /// Check now.
    Check,
    /// Pull and recreate whatever the digests say.
    Redeploy,
    /// Forget the blocks.
    Unblock,
    /// Approve the digest that waits: this one where one is named.
    Approve(Option<Digest>),
}

/// What a service answers to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceReply {
    /// It will be done.
    Accepted,
    /// All of it will be deployed anew, but what these images run stays.
    Redeploying(Vec<KeptImage>),
    /// It will not, for this reason.
    Skipped(&'static str),
    /// Blocks were removed.
    Unblocked,
    /// There was no block.
    NotBlocked,
    /// This digest is approved.
    Approved(Digest),
    /// Not the named digest waits, but this one.
    OtherWaiting(Digest),
    /// No digest waits for an approval.
    NothingWaiting,
}

/// When containers were told to stop, by ID.
pub(super) type StopTimes = BTreeMap<String, Timestamp>;
