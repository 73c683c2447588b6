//! The world outside, behind narrow traits: engine, swarm, registry, compose. Everything above runs against fakes.

pub mod fleet;
pub mod meter;
pub mod survey;
pub mod swarm;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::sync::watch;

pub use swarm::Swarm;

use crate::model::image::ImageLabels;
use crate::model::{
    ComposeError, Container, ContainerEvent, Digest, EngineError, ImageId, Members, Model, Platform, Project,
    PullPolicy, Reference, RegistryError, Repository, SignatureError, SignatureVerdict, UpMode, Usage,
};

/// The container engine, as far as an update needs it. Every call has a deadline of its own.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Asks whether the engine answers.
    async fn ping(&self) -> Result<(), EngineError>;

    /// All containers that belong to `members`, running or not, one-off containers left out, sorted by name. One that
    /// the engine can't describe is there all the same, with what the listing says of it.
    async fn containers(&self, members: &Members) -> Result<Vec<Container>, EngineError>;

    /// The local image that a reference or an ID names; `None` when there is none. With the containerd store, an image
    /// that a container runs on may be none: its record goes when its tag moves (DECISIONS 9).
    async fn image(&self, name: &str) -> Result<Option<Image>, EngineError>;

    /// Fetches `reference` (which is pinned to a digest) and reports how far it is. Without a platform the engine takes
    /// its own.
    async fn pull(
        &self,
        reference: &Reference,
        platform: Option<&Platform>,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<(), EngineError>;

    /// Lets the tag of `reference` name the image `id`.
    async fn tag(&self, id: &ImageId, reference: &Reference) -> Result<(), EngineError>;

    /// Removes a tag (the image stays while something else names or uses it). A tag that is not there is fine.
    async fn untag(&self, reference: &Reference) -> Result<(), EngineError>;

    /// Removes an image that no container uses and no other tag names than `tags`, which go with it; whether it is gone.
    /// One that is used or otherwise named stays, with its tags.
    async fn remove_image(&self, id: &ImageId, tags: &[Reference]) -> Result<bool, EngineError>;

    /// Bytes that are free where the engine keeps images; `None` where that can't be seen from here.
    async fn free_space(&self) -> Result<Option<u64>, EngineError>;

    /// All local tags of a repository, which is not on Docker Hub: there the engine has other names for them.
    async fn tags(&self, repository: &Repository) -> Result<Vec<Reference>, EngineError>;

    /// Makes sure that a container of this name exists on image `id` without ever being started, so that no
    /// prune can take the image. It carries the label [`HOLD_LABEL`] with the project's name.
    async fn anchor(&self, name: &str, id: &ImageId, project: &str) -> Result<(), EngineError>;

    /// Names of all containers that carry [`HOLD_LABEL`] with this project's name.
    async fn anchors(&self, project: &str) -> Result<Vec<String>, EngineError>;

    /// Removes a container that is not running. One that is not there is fine.
    async fn remove_anchor(&self, name: &str) -> Result<(), EngineError>;

    /// The last `lines` lines that a container wrote, control characters taken out, at most 8 KiB.
    async fn log_tail(&self, container: &str, lines: u32) -> Result<String, EngineError>;

    /// Gives a container another name.
    async fn rename(&self, container: &str, name: &str) -> Result<(), EngineError>;

    /// Restarts a container, or starts one that never ran. Returns when its main process was started.
    async fn restart(&self, container: &str) -> Result<(), EngineError>;

    /// Container events since `since_nano` (the engine's time in nanoseconds since the epoch, as far back as its
    /// buffer goes). The stream ends when the connection does; the reader must only read, since an engine drops
    /// events of a slow one.
    async fn events(&self, since_nano: i64) -> Result<BoxStream<'static, ContainerEvent>, EngineError>;
    /// What a container has used so far; `None` when it does not run or is gone.
    async fn stats(&self, container: &str) -> Result<Option<Usage>, EngineError>;

    /// Memory of the engine's machine in bytes.
    async fn machine_memory(&self) -> Result<u64, EngineError>;
}

/// Label of the containers that hold an image during a deployment; its value is the compose project.
pub const HOLD_LABEL: &str = "evenkeel.hold";

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PullProgress {
    /// Bytes fetched so far.
    pub bytes: u64,
    /// Bytes to fetch as far as the engine has said; 0 while unknown.
    pub total: u64,
}

/// A local image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its ID.
    pub id: ImageId,
    /// `repository@digest` texts, as the engine keeps them.
    pub repo_digests: Vec<String>,
    /// Uncompressed size in bytes; 0 while unknown.
    pub size: u64,
    /// What it says of itself.
    pub labels: ImageLabels,
    /// What it is made for; `None` while unknown.
    pub platform: Option<Platform>,
    /// Whether all of it seems to be here. Fetching one that is not brings the rest.
    pub whole: bool,
}

/// Asks registries what a tag points at.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// The digest that the tag of `reference` has now, by one `HEAD` where the registry allows it.
    /// While a registry is backed off from, the answer is its last error, without a request; `Urgency::Asked`
    /// (a person waits) tries all the same unless the registry itself named a time (429).
    async fn digest(&self, reference: &Reference, urgency: Urgency) -> Result<Digest, RegistryError>;

    /// Fetches the manifest and hashes it: the digest that the content really has. Where a registry's header
    /// differs, this is remembered and [`Registry::digest`] answers with the true one from then on.
    async fn confirm(&self, reference: &Reference) -> Result<Digest, RegistryError>;

    /// Whether the repository has a manifest of this digest, tagged or not. An image that was only built here has a
    /// digest, too, with the containerd store (DECISIONS 9): the registry does not know it.
    async fn has(&self, repository: &Repository, digest: &Digest) -> Result<bool, RegistryError>;

    /// What an image says of itself, without fetching it; nothing where the registry does not tell it soon.
    async fn labels(&self, repository: &Repository, digest: &Digest) -> ImageLabels;
}

/// Asks registries for signatures.
#[async_trait]
pub trait Signatures: Send + Sync + 'static {
    /// Whether one of the public keys in the files `keys` signed exactly this digest (cosign, with a key). The files are
    /// read each time; a positive verdict is remembered for the digest and the content of the files.
    async fn verify(
        &self,
        repository: &Repository,
        digest: &Digest,
        keys: &[PathBuf],
    ) -> Result<SignatureVerdict, SignatureError>;

    /// What is wrong with those of the files that can't be used.
    async fn unusable_keys(&self, keys: &[PathBuf]) -> Vec<String>;
}

/// Asks registries which tags there are.
#[async_trait]
pub trait Tags: Send + Sync + 'static {
    /// All tags of a repository, in the registry's order. It is read at most once an hour, and what could not be read
    /// stays an error as long. A list of more than 100,000 is one. `anew`: something was pushed, so that a list that was
    /// read more than a second ago does not count.
    async fn tags(&self, repository: &Repository, anew: bool) -> Result<Arc<[String]>, RegistryError>;
}

/// Asks a program whether an update may begin (DECISIONS 7).
#[async_trait]
pub trait GateCommand: Send + Sync + 'static {
    /// Runs `argv` without a shell and waits for its answer, a minute at most.
    async fn ask(&self, argv: &[String], question: &GateQuestion) -> GateAnswer;
}

/// What the gate command is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateQuestion {
    /// The service's name.
    pub service: String,
    /// The image in normal form.
    pub image: Reference,
    /// What the registry has.
    pub digest: Digest,
    /// What runs, where that is known.
    pub old_digest: Option<Digest>,
}

/// What the gate command says. A reason is one line, without control characters; empty where it printed none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateAnswer {
    /// The update may begin.
    Go {
        /// The last line that it printed.
        reason: String,
    },
    /// The update has to wait.
    Wait {
        /// The last line that it printed.
        reason: String,
    },
    /// It gave no answer, so the update has to wait.
    Failed {
        /// What went wrong, in a stable text.
        fault: String,
        /// The last line that it printed.
        reason: String,
    },
}

/// How much it matters to get a fresh answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A poll cycle.
    Routine,
    /// A person, or an event, asked.
    Asked,
}

/// Runs compose. One call at a time per project is the caller's business.
#[async_trait]
pub trait Compose: Send + Sync + 'static {
    /// `compose up -d --pull <policy> --no-build`, with one retry where a killed run left its half-made
    /// container in the way. Returns what compose printed (the last 8 KiB).
    async fn up(&self, project: &Project, up_mode: &UpMode, pull: PullPolicy)
    -> Result<String, ComposeError>;

    /// `compose down`, without `-v`: volumes stay.
    async fn down(&self, project: &Project) -> Result<String, ComposeError>;

    /// `compose config --quiet`: whether the files can be used.
    async fn validate(&self, project: &Project) -> Result<(), ComposeError>;

    /// `compose config --format json`: what the files come to.
    async fn model(&self, project: &Project) -> Result<Model, ComposeError>;

    /// What is wrong with compose itself, in one sentence that says what to install: it is missing, too old, or does
    /// harm with the engine's image store. Where nothing can be known, nothing is wrong.
    async fn unfit(&self) -> Option<String> {
        None
    }
}
