//! Actions: everything the decision core asks its worker to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_common::wire::FleetAsk;
use jiff::Timestamp;

use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId, Reference};
use crate::model::probe::{Probe, Target};
use crate::model::snapshot::{CopyMade, EarlierData, KeptFolder, Mounter, Place, Room, Source};
use crate::model::{Container, Drain, Members, Model, Project, PullPolicy, UpMode};
use crate::ports::{DrainCall, GateQuestion, HookCall, Priority};
use crate::service::images::OldImage;
use crate::service::rollout::tag::LineChange;
use crate::service::scope::Scope;
use crate::service::upkeep::maintenance::MaintenanceTask;
use crate::service::upkeep::newer_tags::NewerTags;

/// An operation to be executed outside the decision core.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Check: query registry and engine.
    Check {
        /// Returned with the result.
        generation: u64,
        /// Whether a user requested the check.
        is_manual: bool,
        /// What is read and compared.
        asked: CheckAsked,
    },
    /// Inspect the containers.
    Inspect {
        /// Returned with the result.
        generation: u64,
        /// The containers.
        members: Members,
    },
    /// Ask containers on probation whether they serve.
    Probe {
        /// When the probation began; returned with the answers.
        since: Timestamp,
        /// What to ask.
        probe: Probe,
        /// Whom to ask.
        targets: Vec<Target>,
    },
    /// Execute one step of the deployment.
    Step(Step),
    /// Inspect a swarm service and its tasks.
    InspectSwarm {
        /// Returned with the result.
        generation: u64,
        /// Its name.
        service: String,
    },
    /// Run a maintenance task.
    Maintain(MaintenanceTask),
    /// Run the gate command.
    RunGateCommand {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Image as configured; returned with the answer.
        image: String,
        /// The update it decides on.
        question: GateQuestion,
    },
    /// Ask the wardens whether an update may begin.
    AskFleet {
        /// Image as configured; returned with the answer.
        image: String,
        /// The request; returned with the answer.
        ask: FleetAsk,
    },
    /// Release a lease that is no longer needed.
    ReleaseFleet(FleetAsk),
    /// Restart a container.
    Restart {
        /// Its name.
        name: String,
        /// Its full ID.
        id: String,
    },
}

/// What a check reads and compares.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckAsked {
    /// Whether the images are compared with the registry.
    pub images: bool,
    /// The compose files to read, with the last deployed hash; `None` if they are not read.
    pub files: Option<FilesAsked>,
    /// Images as configured, with digests that were already decided on and need no confirmation.
    pub settled: BTreeSet<(String, Digest)>,
    /// Images as configured, with digests that this check leads to no update to: they are blocked, and nobody has asked.
    pub withheld: BTreeSet<(String, Digest)>,
    /// Per image as configured: a digest that is known to originate from its registry.
    pub published: FewMap<String, Digest>,
    /// Newer tags of the images whose tag is written into the env file.
    pub newer: NewerTags,
    /// Whether somebody has asked for this check, or for a redeployment.
    pub is_asked_for: bool,
    /// Whether the definition of what runs is compared even if no image is out of date.
    pub compares_all: bool,
    /// Containers, by ID, that an update replaces although they are down.
    pub crashed: BTreeSet<String>,
    /// The earlier data that is to be put back.
    pub earlier: Option<EarlierData>,
    /// Data that was measured not long ago, and the room that its copy needs: it is not measured again.
    pub measured: Vec<(Source, Room)>,
}

/// Compose files to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesAsked {
    /// The compose project.
    pub project: Project,
    /// The last deployed hash; `None` before the first read.
    pub known: Option<String>,
    /// The variables of env files that the agent itself writes (`tag_variable`): their values do not count.
    pub own_variables: BTreeSet<String>,
}

impl FilesAsked {
    /// Returns the same files where these containers were started from.
    #[must_use]
    pub fn as_started(&self, containers: &[Container]) -> Self {
        Self { project: self.project.clone().as_started_by(containers), ..self.clone() }
    }
}

/// One step of a deployment. Every step can be repeated after a crash in the middle of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Pin the old images so that a prune can't remove an image that a rollback needs.
    PinImages {
        /// Project whose images are pinned.
        project: String,
        /// The images to pin.
        images: Vec<OldImage>,
    },
    /// Pull the new images by digest.
    Pull {
        /// Image as configured, and the reference to pull.
        images: Vec<(String, Reference)>,
        /// Image as configured, and the image it replaces.
        old: BTreeMap<String, Replaced>,
        /// Image as configured, and the ID that it had on this machine: if it is still there, nothing is pulled.
        local: BTreeMap<String, ImageId>,
        /// The data that no new image may leave behind; `None` if that is accepted.
        keeps: Option<Keeps>,
    },
    /// Write the tag into its line of the env file, or restore the line. Before it is written, the compose files are checked
    /// for the variable.
    WriteTag {
        /// The compose project.
        project: Project,
        /// The variable.
        variable: String,
        /// The tag to write.
        tag: String,
        /// The line; `None` if it already has the tag, so that there is only the check.
        line: Option<LineChange>,
        /// Whether the line is restored.
        back: bool,
        /// Images that must resolve to the new tag in the compose files.
        images: Vec<Reference>,
    },
    /// Resolve the tags of other services before any of them is moved.
    ReadTags {
        /// The tags, and the images that their services run.
        sibling_tags: Vec<(Reference, ImageId)>,
    },
    /// Set the tags, then run `compose up`.
    Start(BringUp),
    /// Restore the tags without touching any container.
    RestoreTags {
        /// The image that each tag must point to.
        tags: Vec<(Reference, OldImage)>,
    },
    /// Read the last log lines of the container that failed.
    Diagnose {
        /// Full container ID; empty if there is no container.
        container: String,
    },
    /// Run a hook.
    RunHook {
        /// The hook.
        call: HookCall,
        /// The project whose containers are looked at once it has ended well; `None` if nothing comes after it.
        look_at: Option<String>,
    },
    /// A step of a handover.
    Handover {
        /// The compose project whose containers are looked at afterwards.
        project: String,
        /// The step.
        step: HandoverStep,
    },
    /// A step of a snapshot.
    Snapshot(SnapshotStep),
    /// A step in a swarm.
    Swarm(SwarmStep),
    /// Unpin the old images.
    Unpin {
        /// Project whose images were pinned.
        project: String,
        /// Tags of other services that may still point to the running image.
        displaced: Vec<DisplacedTag>,
        /// An image that stays in use. The pin's tag is moved there before it is removed, because removing the
        /// last tag of an old image would delete the image.
        onto: Option<ImageId>,
    },
}

/// A compose run, after the tags have been set.
#[derive(Debug, Clone, PartialEq)]
pub struct BringUp {
    /// The image that each tag must point to.
    pub tags: Vec<(Reference, OldImage)>,
    /// Tags that point to the running image only while compose runs.
    pub displaced: Vec<DisplacedTag>,
    /// The compose project.
    pub project: Project,
    /// Whether the containers that are stuck are recreated first (their volumes are kept).
    pub down: bool,
    /// Whether unchanged containers are recreated.
    pub up_mode: UpMode,
    /// Limits compose to the services of this scope, in place of `up_mode`; `None`: `up_mode` applies.
    pub scope: Option<Scope>,
    /// Compose services that the next run brings up beside their old containers: this one waits for what they depend on.
    pub next: Vec<String>,
    /// Which images compose may pull.
    pub pull: PullPolicy,
    /// The definition that was recorded before the deployment began. It is used where the files say something else by now.
    pub definition: Option<Arc<Model>>,
    /// Whether the files are compared with the containers first: nothing but what exists is brought up.
    pub is_guarded: bool,
    /// Whether the containers that are brought up must be as they were before: if not, all are returned, and compose does not
    /// run.
    pub must_look: bool,
    /// What happens if the image is gone that another service runs which compose is called for.
    pub if_gone: IfGone,
    /// Whether it goes ahead of updates that wait.
    pub priority: Priority,
    /// What must be there of a project that has no containers.
    pub expects: Expects,
}

/// What must be there of a project that has no containers before compose runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expects {
    /// Nothing: it never ran here, or a person asks for it.
    Nothing,
    /// One of its volumes: it ran here, and nobody asks for it. An engine that has lost all it had would begin with empty ones.
    Volumes,
}

/// What a compose run does if the image that another of its services runs is gone, so that the tag can't be pointed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfGone {
    /// It ends before compose is called, which would bring that service up on another image.
    Stop,
    /// Compose uses the tag as it is: what is down comes up.
    GoOn,
}

/// A step of the update of a swarm service.
#[derive(Debug, Clone, PartialEq)]
pub enum SwarmStep {
    /// Check whether the swarm can pull an image, and run it where the service runs.
    Admit {
        /// Name of the service.
        service: String,
        /// The image with its digest.
        image: Reference,
        /// Running digest of its repository.
        old: Option<Digest>,
    },
    /// Set another image in the specification.
    Set(SetImage),
    /// Read the last log lines of a task.
    Diagnose {
        /// Its ID; empty if there is none.
        task: String,
        /// Full ID of its container; empty if that is on another node.
        container: String,
    },
}

/// Another image for the specification of a swarm service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetImage {
    /// Name of the service.
    pub service: String,
    /// Image that it must name now; any other was set by someone else.
    pub from: String,
    /// Image to set.
    pub to: String,
    /// Value that `ForceUpdate` must reach.
    pub force: Option<u64>,
    /// Whether this is a rollback: it restores the previous specification if that names the image, and may interrupt an
    /// update.
    pub back: bool,
    /// Image that ran before, if the rollback target is another one: the swarm's own rollback restores it.
    pub before: Option<String>,
}

/// A step of a handover. Containers are named by full ID; one that is gone is none of the step's business.
#[derive(Debug, Clone, PartialEq)]
pub enum HandoverStep {
    /// Relieve containers of their requests.
    Drain(DrainCall),
    /// Stop the old containers. They are kept.
    Retire {
        /// The containers to stop, each with its own grace.
        stop: Vec<String>,
        /// The new containers, if they may have been stopped by the engine: they are started before that.
        start: Vec<String>,
    },
    /// Remove the old containers.
    Settle {
        /// The containers to remove.
        remove: Vec<String>,
    },
    /// Start the old containers again.
    Revive {
        /// The containers to start.
        start: Vec<String>,
        /// What undoes their draining.
        undo: Drain,
    },
    /// Relieve the new containers of their requests, as far as they serve, and remove them.
    Withdraw {
        /// How they are drained.
        call: DrainCall,
        /// The containers to remove.
        remove: Vec<String>,
    },
}

/// A step of a snapshot. Containers are named by full ID; one that is gone is none of the step's business.
#[derive(Debug, Clone, PartialEq)]
pub enum SnapshotStep {
    /// Stop these containers, and find what else mounts the data and runs.
    Quiesce {
        /// The service that is updated.
        service: String,
        /// The containers to stop, each with its own grace.
        stop: Vec<Mounter>,
        /// The data.
        of: Vec<Source>,
        /// Whether the room for the copy is judged again before: nothing is stopped yet.
        measures: bool,
    },
    /// Copy the data.
    Copy {
        /// The data, and where the copies go.
        places: Vec<(Source, Place)>,
        /// Labels of the volumes that stand for the copies.
        labels: Vec<(String, String)>,
        /// Part of their names.
        id: String,
    },
    /// Stop these containers, and put the copies back unless something else that mounts the data runs.
    Restore {
        /// The containers to stop, each with its own grace.
        stop: Vec<Mounter>,
        /// The copies, and the folders that they take the place of.
        copies: Vec<(CopyMade, Place)>,
        /// Labels of the volumes that stand for what is set aside.
        labels: Vec<(String, String)>,
        /// Part of their names.
        id: String,
    },
    /// The same the other way: what was set aside is put back.
    UndoRestore {
        /// The containers to stop, each with its own grace.
        stop: Vec<Mounter>,
        /// The copies, and the folders that they have taken the place of.
        copies: Vec<(CopyMade, Place)>,
    },
    /// Start containers that were stopped, as far as they are still there.
    Resume {
        /// The containers to start, those that others depend on first.
        start: Vec<Mounter>,
        /// The compose project whose containers are looked at afterwards.
        project: String,
    },
    /// Remove copies, and the volumes that stand for them.
    Expire {
        /// What to remove.
        remove: Vec<KeptFolder>,
    },
}

/// An image that is about to be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// Its ID.
    pub id: ImageId,
    /// Its tag.
    pub tag: Option<String>,
    /// The tag of the image that replaces it.
    pub new_tag: Option<String>,
}

/// The containers whose data an update must not leave behind. Where an image no longer declares the volume that a container has
/// its data in, a new container would begin without the data, and so would one that is brought up by a rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeps {
    /// The compose project.
    pub project: String,
    /// What the compose files define.
    pub definition: Arc<Model>,
    /// Image as configured, and the IDs of the containers that get another one in its place.
    pub replaced: BTreeMap<String, BTreeSet<String>>,
}

/// A tag of a service that is not part of the deployment. It points to a different image than the service runs, or is missing.
/// It points to the image that runs while compose runs, so that compose does not bring up the service on another one.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DisplacedTag {
    /// The tag.
    pub tag: Reference,
    /// The image that its service runs.
    pub runs: ImageId,
    /// The image it pointed to, to be restored; `None` if there was no such tag. It is then set only if compose needs it, and
    /// stays: it may be the only tag of its image, which would be deleted with it if no container were left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<ImageId>,
}
