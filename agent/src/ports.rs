//! Traits for the external systems: engine, swarm, registry, compose, fleet. Tests of the layers above use fakes.

pub mod fleet;
pub mod meter;
pub mod snapshot;
pub mod survey;
pub mod swarm;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, watch};

pub use swarm::Swarm;

use crate::model::image_config::ImageConfig;
use crate::model::probe::{Answer, Probe, Target};
use crate::model::{
    ComposeError, Container, ContainerEvent, Digest, Drain, EngineError, HookEvent, ImageId, Members, Model,
    Need, Platform, Project, PullPolicy, Reference, RegistryError, Repository, Running, SignatureError,
    SignatureVerdict, Signers, UpMode, Usage,
};

/// The container engine operations that updates need. Every call has its own deadline.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Checks that the engine responds.
    async fn ping(&self) -> Result<(), EngineError>;

    /// Checks that the engine answers what it is asked about containers: it may hang there, and still answer a ping.
    async fn check_reads(&self) -> Result<(), EngineError>;

    /// Returns all containers of `members` in any state, sorted by name, those of a project without one-off containers. If the engine cannot
    /// inspect a container, it is included with the fields from the container list, in an unknown state if it may run.
    async fn containers(&self, members: &Members) -> Result<Vec<Container>, EngineError>;

    /// Returns the containers, by ID, that compose must not stop to make them anew: those that the agent needs, because
    /// compose, which it runs, would end with them before it has started the new ones, and those of a project's containers
    /// that the engine would not remove.
    async fn needed_containers(
        &self,
        _containers: &[Container],
    ) -> Result<BTreeMap<String, Need>, EngineError> {
        Ok(BTreeMap::new())
    }

    /// Returns the local image for a reference or an ID, or `None` if it does not exist. With the containerd store, the
    /// image of a running container may be missing: its record is deleted when its tag moves (DECISIONS 9).
    async fn image(&self, name: &str) -> Result<Option<Image>, EngineError>;

    /// Pulls `reference`, which is pinned to a digest, and reports progress. Without a platform the engine uses its
    /// own.
    async fn pull(
        &self,
        reference: &Reference,
        platform: Option<&Platform>,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<(), EngineError>;

    /// Tags the image `id` as `reference`.
    async fn tag(&self, id: &ImageId, reference: &Reference) -> Result<(), EngineError>;

    /// Removes a tag. The image stays while another name or a container refers to it. A missing tag is not an error.
    async fn untag(&self, reference: &Reference) -> Result<(), EngineError>;

    /// Removes an image and its `tags` if no container uses it and it has no other tags. Returns whether the image is
    /// gone. An image that is in use or has other tags stays, with all its tags.
    async fn remove_image(&self, id: &ImageId, tags: &[Reference]) -> Result<bool, EngineError>;

    /// Returns the free bytes on the engine's image storage, or `None` if this process cannot access it.
    async fn free_space(&self) -> Result<Option<u64>, EngineError>;

    /// Returns all local tags of a repository. Not for Docker Hub repositories, which the engine lists under other names.
    async fn tags(&self, repository: &Repository) -> Result<Vec<Reference>, EngineError>;

    /// Ensures that a container of this name exists for image `id`. It is never started; it only keeps the image
    /// from being pruned. Its label [`HOLD_LABEL`] is the project's name, and its own name begins with [`HOLD_PREFIX`].
    async fn anchor(&self, name: &str, id: &ImageId, project: &str) -> Result<(), EngineError>;

    /// Returns the names of all these containers of a project.
    async fn anchors(&self, project: &str) -> Result<Vec<String>, EngineError>;

    /// Removes a container that is not running. A missing container is not an error.
    async fn remove_anchor(&self, name: &str) -> Result<(), EngineError>;

    /// Inspects what the definition of a project is compared with: these containers, their images, and the project's
    /// networks. A container that is gone is left out.
    async fn running(&self, project: &str, containers: &[String]) -> Result<Running, EngineError>;

    /// Returns the last `lines` lines of a container's log without control characters, at most 8 KiB.
    async fn log_tail(&self, container: &str, lines: u32) -> Result<String, EngineError>;

    /// Renames a container.
    async fn rename(&self, container: &str, name: &str) -> Result<(), EngineError>;

    /// Restarts a container, or starts one that never ran. Returns once its main process has started.
    async fn restart(&self, container: &str) -> Result<(), EngineError>;

    /// Starts a container. One that runs already is left as it is.
    async fn start(&self, container: &str) -> Result<(), EngineError>;

    /// Stops a container with its own signal and grace, and waits for its end. One that does not run is left as it is.
    async fn stop(&self, container: &str) -> Result<(), EngineError>;

    /// Removes a container that does not run, and, with `volumes`, the anonymous volumes that were created with it.
    async fn remove(&self, container: &str, volumes: bool) -> Result<(), EngineError>;

    /// Runs a command in a container and waits for its end, at most for `limit`.
    async fn exec(&self, container: &str, argv: &[String], limit: Duration) -> Result<ExecEnd, EngineError>;

    /// Streams container events since `since_nano` (the engine's clock, in nanoseconds since the epoch), as far back as
    /// the engine's buffer reaches. The stream ends after the events of `until_nano`, or without one, with the connection.
    /// With `until_nano`, changes of health are left out: an inspection tells what has come of them.
    /// Consumers must do no other work while reading: the engine drops events for slow readers.
    async fn events(
        &self,
        since_nano: i64,
        until_nano: Option<i64>,
    ) -> Result<BoxStream<'static, ContainerEvent>, EngineError>;

    /// Returns a time since when the engine has been running without stopping the containers at a start or an end of its own;
    /// the first one found up to `wanted`, or else the earliest one found. `None` if unknown, and the epoch for an engine
    /// without a daemon that containers depend on. Tells a cut connection from a restart of the engine.
    /// It is asked for the epoch when the events are read for the first time.
    async fn running_since(&self, wanted: Timestamp) -> Result<Option<Timestamp>, EngineError>;

    /// Returns a container's resource counters, or `None` if it is not running or gone.
    async fn stats(&self, container: &str) -> Result<Option<Usage>, EngineError>;

    /// Returns the memory of the engine's host in bytes.
    async fn machine_memory(&self) -> Result<u64, EngineError>;
}

/// How a command in a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEnd {
    /// With this exit status.
    Exited {
        /// 0 if it succeeded.
        status: i64,
    },
    /// It has not ended in time, and runs on.
    TimedOut,
}

/// Label of the containers that keep an image during a deployment. Its value is the compose project.
pub const HOLD_LABEL: &str = "evenkeel.hold";
/// What the names of these containers begin with. An image can't set the name of a container, unlike its labels.
pub const HOLD_PREFIX: &str = "evenkeel-hold-";

/// Progress of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PullProgress {
    /// Bytes fetched so far.
    pub bytes: u64,
    /// Total bytes reported by the engine so far; 0 while unknown.
    pub total: u64,
}

/// A local image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its ID.
    pub id: ImageId,
    /// `repository@digest` strings, as stored by the engine.
    pub repo_digests: Vec<String>,
    /// Uncompressed size in bytes; 0 while unknown.
    pub size: u64,
    /// Its configuration.
    pub config: ImageConfig,
    /// Its platform; `None` while unknown.
    pub platform: Option<Platform>,
    /// Whether its content appears complete. Pulling an incomplete image fetches the rest.
    pub is_complete: bool,
}

/// Resolves tags at registries.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Returns the current digest of the tag of `reference`, with a single `HEAD` if the registry supports it.
    /// During backoff, the registry's last error is returned without a request. `Urgency::Manual` (a user is
    /// waiting) bypasses the backoff unless the registry requested it (429).
    async fn digest(&self, reference: &Reference, urgency: Urgency) -> Result<Digest, RegistryError>;

    /// Fetches the manifest and returns the digest of its content. If the registry's header reports a different digest,
    /// this is remembered, and [`Registry::digest`] returns the content's digest from then on.
    async fn digest_from_content(&self, reference: &Reference) -> Result<Digest, RegistryError>;

    /// Reports whether the repository has a manifest with this digest, tagged or not. With the containerd store, a
    /// locally built image also has a digest (DECISIONS 9), but the registry does not have it.
    async fn has(&self, repository: &Repository, digest: &Digest) -> Result<bool, RegistryError>;

    /// Returns an image's configuration without pulling it; of an index, that of the image for this platform, or of the first
    /// one. `None` if the registry has none that can be read. Read once per digest.
    async fn config(
        &self,
        _: &Repository,
        _: &Digest,
        _: Option<&Platform>,
    ) -> Result<Option<ImageConfig>, RegistryError> {
        Ok(None)
    }

    /// Returns when an image was created, by its own account. `None` if it does not say (a reproducible build often gives the
    /// epoch).
    async fn created(&self, _: &Reference) -> Result<Option<Timestamp>, RegistryError> {
        Ok(None)
    }

    /// Reports whether the registry's last answer about the tag of `reference` was that it has none: lists of tags may name
    /// such tags for ever. Sends no request.
    fn is_gone(&self, _: &Reference) -> bool {
        false
    }
}

/// Verifies image signatures.
#[async_trait]
pub trait Signatures: Send + Sync + 'static {
    /// Reports whether one of the keys signed exactly this digest, for this repository or one that is allowed in its place
    /// (cosign, key-based). The files are read each time. A valid verdict is cached for the digest and the content of the
    /// files.
    async fn verify(
        &self,
        repository: &Repository,
        digest: &Digest,
        signers: &Signers,
    ) -> Result<SignatureVerdict, SignatureError>;

    /// Returns an error for each key file that cannot be used.
    async fn key_errors(&self, keys: &[PathBuf]) -> Vec<String>;
}

/// Lists tags at registries.
#[async_trait]
pub trait Tags: Send + Sync + 'static {
    /// Returns all tags of a repository, in the registry's order. The result, including an error, is cached for an hour.
    /// More than 100,000 tags are an error. With `refresh` (something was pushed), a result older than a second is
    /// not used.
    async fn tags(&self, repository: &Repository, refresh: bool) -> Result<Arc<[String]>, RegistryError>;
}

/// Accesses the env files that set tags (`tag_variable`). Errors are stable and contain no values.
#[async_trait]
pub trait EnvFiles: Send + Sync + 'static {
    /// Returns the content.
    async fn read(&self, path: &Path) -> Result<String, String>;

    /// Replaces the content atomically and keeps mode and owner. If `path` is a symbolic link, its target is replaced.
    async fn replace(&self, path: &Path, text: String) -> Result<(), String>;
}

/// Runs a command that decides whether an update may start (DECISIONS 7).
#[async_trait]
pub trait GateCommand: Send + Sync + 'static {
    /// Runs `argv` without a shell and waits at most a minute for its answer.
    async fn ask(&self, argv: &[String], question: &GateQuestion) -> GateAnswer;

    /// Runs a hook by the same rules, with a time limit of its own.
    async fn run_hook(&self, call: &HookCall) -> Result<(), HookError>;

    /// Runs the command that drains containers, by the same rules, within the time limit of the drain.
    async fn run_drain(&self, call: &DrainCall) -> Result<(), HookError>;
}

/// Asks containers whether they serve (DECISIONS 15).
#[async_trait]
pub trait Probes: Send + Sync + 'static {
    /// Asks each target once, all at the same time; takes at most the probe's timeout, besides what the engine takes to say where
    /// the containers are. An answer is one line in stable wording. A target that the engine says nothing of has none.
    async fn ask(&self, probe: &Probe, targets: &[Target]) -> BTreeMap<Target, Answer>;
}

/// A run of a hook (DECISIONS 15).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookCall {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// What it is run for.
    pub event: HookEvent,
    /// How long it may take.
    pub timeout: Duration,
    /// The update; of several images the first.
    pub question: GateQuestion,
    /// The folder that is kept with the snapshot (`EK_SNAPSHOT`); `None` without a snapshot.
    pub snapshot: Option<PathBuf>,
}

/// Draining containers (DECISIONS 12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainCall {
    /// How.
    pub drain: Drain,
    /// The update; of several images the first.
    pub question: GateQuestion,
    /// Full IDs of the containers that are relieved of their requests (`EK_OLD`).
    pub leaving: Vec<String>,
    /// Full IDs of those that serve in their place (`EK_NEW`).
    pub staying: Vec<String>,
}

/// Why a hook has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct HookError {
    /// The failure, in stable wording.
    pub why: String,
    /// The last lines of its output.
    pub output: String,
}

/// The update that a gate command decides on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateQuestion {
    /// The service's name.
    pub service: String,
    /// The normalized image reference.
    pub image: Reference,
    /// The digest in the registry.
    pub digest: Digest,
    /// The running digest, if known.
    pub old_digest: Option<Digest>,
}

/// A gate command's decision. The reason is a single line without control characters; empty if it printed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateAnswer {
    /// The update may start.
    Go {
        /// The last line that it printed.
        reason: String,
    },
    /// The update has to wait.
    Wait {
        /// The last line that it printed.
        reason: String,
    },
    /// The command gave no valid answer, so the update has to wait.
    Failed {
        /// The failure, in stable wording.
        fault: String,
        /// The last line that it printed.
        reason: String,
    },
}

/// Whether a request may bypass the backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A regular poll cycle.
    Routine,
    /// Requested by a user or an event.
    Manual,
}

/// The hashes of the compose services of a project.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hashes {
    /// By compose service, with the services of all profiles.
    pub by_service: BTreeMap<String, String>,
    /// The version of compose, such as `2.26.1`; empty if it is not known.
    pub version: String,
    /// Variables of the files that compose reports as not set.
    pub unset: Vec<String>,
    /// The home directory that compose puts in the place of `~`; empty if it is not known.
    pub home: String,
    /// The variables that docker's `proxies` have compose set in new containers; `None` if they are not known.
    pub proxies: Option<BTreeMap<String, String>>,
}

/// The right to begin to change containers with compose. Others wait for it until it is dropped.
#[derive(Debug, Default)]
pub struct Turn(pub Option<OwnedSemaphorePermit>);

/// Which of those that wait to change containers with compose may go ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// A change of what runs: an update, or an edit of the compose files.
    Routine,
    /// What it brings up is down or has failed, or a person has asked for a redeploy or a way back.
    Urgent,
}

/// Runs compose. The caller must serialize calls for the same project, and have a [`Turn`] to begin to change containers.
#[async_trait]
pub trait Compose: Send + Sync + 'static {
    /// Waits for a turn to change containers; `None` if the agent is stopping. Who has one must not wait for another.
    async fn turn(&self, _: Priority) -> Option<Turn> {
        Some(Turn::default())
    }

    /// Waits until no other compose run changes the project, such as a person's, or one that outlived a killed agent; about a
    /// minute at most. What is seen of the project before is no longer true afterwards.
    async fn settle(&self, _: &Project) {}

    /// Reports whether another compose run changes the project now, other than an attached `up`, which may have done its work long
    /// ago.
    async fn is_in_use(&self, _: &Project) -> bool {
        false
    }

    /// `compose up -d --pull <policy> --no-build`, retried if a killed run left a half-created container that
    /// conflicts. Returns compose's output (the last 8 KiB).
    async fn up(&self, project: &Project, up_mode: &UpMode, pull: PullPolicy)
    -> Result<String, ComposeError>;

    /// `compose config --quiet`: checks that the files are valid, with the services of all profiles if they are not without.
    async fn validate(&self, project: &Project) -> Result<(), ComposeError>;

    /// `compose config --format json`: returns the resolved model, with the services of all profiles; if compose can't render
    /// all of them, with those of [`Project::present`] and what they depend on.
    async fn model(&self, project: &Project) -> Result<Model, ComposeError>;

    /// `compose config --services`: returns the services that `up` covers without their names, so none of a profile that is
    /// off here.
    async fn active_services(&self, project: &Project) -> Result<BTreeSet<String>, ComposeError> {
        let model = self.model(project).await?;
        let active = model.services().filter(|service| !service.has_profiles());
        Ok(active.map(|service| service.name.to_owned()).collect())
    }

    /// `compose config --hash`: returns the hashes with which compose would label the containers.
    async fn hashes(&self, project: &Project) -> Result<Hashes, ComposeError>;

    /// Returns why compose cannot be used, in one sentence that says what to install: it is missing, too old, or
    /// broken with the engine's image store. Returns `None` if this cannot be determined.
    async fn problem(&self) -> Option<String> {
        None
    }
}
