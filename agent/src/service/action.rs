//! What a service wants done: everything that leaves the decision core.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::FleetAsk;

use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId, Reference};
use crate::model::{Members, Project, PullPolicy, UpMode};
use crate::ports::GateQuestion;

use super::maintenance::MaintenanceTask;
use super::newer_tags::NewerTags;
use super::rollout::tag::LineChange;
use super::scope::Scope;
use super::swarm::plan::SwarmStep;

/// One thing to do outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Read registry and engine.
    Check {
        /// Goes back into the fact.
        generation: u64,
        /// Whether a person waits.
        asked: bool,
        /// Whether the images are compared with the registry.
        images: bool,
        /// Whether the compose files are read, and the hash that is known; `None`: they are not.
        files: Option<FilesAsked>,
        /// Images as configured, with digests that were decided on before, so that they need not be confirmed.
        settled: BTreeSet<(String, Digest)>,
        /// Per image as configured: a digest that is known to have come from its registry.
        published: FewMap<String, Digest>,
        /// Newer tags of the images whose tag is written into the env file.
        newer: NewerTags,
    },
    /// Read the containers.
    Inspect {
        /// Goes back into the fact.
        generation: u64,
        /// Which.
        members: Members,
    },
    /// Take one step of the deployment.
    Step(Step),
    /// Read a swarm service and its tasks.
    LookAtSwarm {
        /// Goes back into the fact.
        generation: u64,
        /// Its name.
        service: String,
    },
    /// Take one step of the update of a swarm service.
    Swarm(SwarmStep),
    /// A task beside checks and deployments.
    Maintain(MaintenanceTask),
    /// Ask the gate command.
    AskCommand {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Image as configured; goes back into the answer.
        image: String,
        /// What it is asked.
        question: GateQuestion,
    },
    /// Ask the wardens whether an update may begin.
    AskFleet {
        /// Image as configured; goes back into the answer.
        image: String,
        /// What they are asked; goes back into the answer.
        ask: FleetAsk,
    },
    /// Give back a lease that nothing comes of.
    ReleaseFleet(FleetAsk),
    /// Restart a container.
    Restart {
        /// Its name.
        name: String,
        /// Its full ID.
        id: String,
    },
}

/// Compose files to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesAsked {
    /// The project they make up.
    pub project: Project,
    /// Hash that was deployed last; `None` before the first read.
    pub known: Option<String>,
}

/// One step of a deployment. Each can be taken again after a crash in the middle of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Pin the old images, so that no prune removes what a rollback needs.
    PinImages {
        /// Project whose images are pinned.
        project: String,
        /// What to pin.
        images: Vec<OldImage>,
    },
    /// Fetch the new images by digest.
    Pull {
        /// Image as configured, and what to fetch.
        images: Vec<(String, Reference)>,
        /// Image as configured, and what runs of it.
        old: BTreeMap<String, ImageId>,
    },
    /// Write the tag into its line of the env file, or put the line back.
    WriteTag {
        /// What compose is given.
        project: Project,
        /// The variable.
        variable: String,
        /// The tag that is to stand there.
        tag: String,
        /// The line.
        line: LineChange,
        /// Whether the line is put back.
        back: bool,
        /// Images of which the compose files must come to the new tag.
        images: Vec<Reference>,
    },
    /// Read what the tags of other services name, before any of them is moved.
    ReadTags {
        /// The tags, and the images that their services run on.
        sibling_tags: Vec<(Reference, ImageId)>,
    },
    /// Point the tags, then let compose bring the project there.
    Start {
        /// Where each tag must point.
        tags: Vec<(Reference, OldImage)>,
        /// Tags that name what runs only while compose is at work.
        displaced: Vec<DisplacedTag>,
        /// What compose is given.
        project: Project,
        /// Whether the project is taken down first (volumes stay).
        down: bool,
        /// Whether unchanged containers are recreated.
        up_mode: UpMode,
        /// What compose keeps to, in place of `recreate`; `None`: it is given what that says.
        scope: Option<Scope>,
        /// Which images compose may fetch.
        pull: PullPolicy,
    },
    /// Point the tags back without touching any container.
    RestoreTags {
        /// Where each tag must point.
        tags: Vec<(Reference, OldImage)>,
    },
    /// Read what the container that failed wrote last.
    Diagnose {
        /// Full container ID; empty when there is none to ask.
        container: String,
    },
    /// Unpin the old images.
    Unpin {
        /// Project whose images were pinned.
        project: String,
        /// Tags of other services that may still name what runs.
        displaced: Vec<DisplacedTag>,
        /// An image that stays in use: the pin's tag is moved there before it is removed, since removing the
        /// last tag of an old image would delete the image.
        onto: Option<ImageId>,
    },
}

/// A tag of a service that the deployment is not about. It names another image than the service runs on, and is moved
/// while compose is at work, so that compose leaves the service alone.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DisplacedTag {
    /// The tag.
    pub tag: Reference,
    /// What its service runs on.
    pub runs: ImageId,
    /// What it named, to be put back.
    pub named: ImageId,
}

/// An image that is here, and how to get it again where it is not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct OldImage {
    /// Its ID.
    pub id: ImageId,
    /// Where it can be fetched: the repository pinned to a digest. `None` for an image that was only built here.
    pub source: Option<Reference>,
}
