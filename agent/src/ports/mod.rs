//! The world outside, behind narrow traits: engine, registry, compose. Everything above runs against fakes.

pub mod compose;
pub mod engine;
mod login;
mod model;
pub mod registry;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::image::{Digest, ImageId, Reference, Repository};

pub use model::{Model, ModelService};

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

    /// Fetches `reference` (which is pinned to a digest) and reports how far it is.
    async fn pull(&self, reference: &Reference, progress: &watch::Sender<Pulled>) -> Result<(), EngineError>;

    /// Lets the tag of `reference` name the image `id`.
    async fn tag(&self, id: &ImageId, reference: &Reference) -> Result<(), EngineError>;

    /// Removes a tag (the image stays while something else names or uses it). A tag that is not there is fine.
    async fn untag(&self, reference: &Reference) -> Result<(), EngineError>;

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

/// Which containers are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Members {
    /// All of a compose project.
    Project(String),
    /// The one with this name.
    Name(String),
}

/// What the engine could not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No answer at all: not running, connection broken, or too slow. Says nothing about the world.
    #[error("container engine unavailable: {0}")]
    Unavailable(String),
    /// The thing that was named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The engine answered and refused.
    #[error("{0}")]
    Refused(String),
}

impl EngineError {
    /// Whether the engine gave no answer, so that nothing is known.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, EngineError::Unavailable(_))
    }
}

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pulled {
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
    /// Whether all of it seems to be here. Fetching one that is not brings the rest.
    pub whole: bool,
}

/// Who keeps a container in the agent's place (DECISIONS 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manager {
    /// This systemd unit.
    Unit(String),
    /// `podman auto-update`.
    AutoUpdate,
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Manager::Unit(unit) => write!(f, "systemd ({unit})"),
            Manager::AutoUpdate => f.write_str("podman auto-update"),
        }
    }
}

/// One container, as its inspection shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Full ID.
    pub id: String,
    /// Name without the leading slash.
    pub name: String,
    /// Who keeps it in the agent's place: it is neither updated nor healed then.
    pub manager: Option<Manager>,
    /// Compose service that it belongs to, empty outside compose.
    pub compose_service: String,
    /// Files that compose made it from, as its label names them; empty outside compose.
    pub compose_files: Vec<PathBuf>,
    /// Image reference that it was made from (`Config.Image`); empty while unknown.
    pub config_image: String,
    /// Image that it runs on; empty while unknown.
    pub image: ImageId,
    /// What it is doing.
    pub state: State,
    /// The runtime's own words, for example `Up 3 minutes (healthy)`.
    pub status: String,
    /// What its health check says; `None` without a health check. Only meaningful while running.
    pub health: Option<HealthState>,
    /// Last output of the health check, trimmed.
    pub health_output: String,
    /// How its health check is timed; `None` without one.
    pub health_timing: Option<HealthTiming>,
    /// Restarts by the engine's restart policy since it was last started by hand.
    pub restart_count: u64,
    /// When the main process was started last; `None` when never.
    pub started_at: Option<Timestamp>,
    /// When the last run ended; `None` where none has, or nobody knows.
    pub finished_at: Option<Timestamp>,
    /// Signal by which it is asked to stop.
    pub stop_signal: i32,
    /// Time that it gets to stop before it is killed.
    pub stop_timeout: Duration,
    /// Exit code of the last run; 0 while the first run goes on, -1 where it ended and did not say how.
    pub exit_code: i64,
    /// Whether the kernel killed the last run for its memory use.
    pub oom_killed: bool,
    /// Why the engine could not start it.
    pub error: String,
    /// Whether the engine starts it again by itself (`always`, `unless-stopped`, `on-failure`).
    pub restarts_itself: bool,
    /// Compose services that it is restarted with, as its label has it (`depends_on` with `restart: true`). Compose
    /// leaves out those that it was told to keep away from, so the files say more.
    pub restarts_with: Vec<String>,
    /// The container whose network it uses instead of one of its own (`network_mode: service:…`, `container:…`).
    pub network_of: Option<Lender>,
    /// What is mounted.
    pub mounts: Vec<evenkeel_common::wire::MountRecord>,
}

impl Container {
    /// Whether it has a main process, be it frozen or between two runs. One of which nothing is known may have.
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Running | State::Paused | State::Restarting | State::Unknown)
    }

    /// Whether it was made from this reference, by the name that it was given then.
    pub fn is_made_from(&self, reference: &Reference) -> bool {
        Reference::parse(&self.config_image).is_ok_and(|made_from| made_from == *reference)
    }
}

/// A container whose network another one uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lender {
    /// What the engine was given for it: its ID or its name. Compose gives the ID, which stays that of the old one
    /// when the lender is made anew.
    pub given: String,
    /// The container that this names now.
    pub found: Option<FoundLender>,
}

impl Lender {
    /// Whether it was given by ID, so that no other container can ever take its place.
    pub fn is_given_by_id(&self) -> bool {
        self.given.len() == 64 && self.given.bytes().all(|b| b.is_ascii_hexdigit())
    }
}

/// A lender as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLender {
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: State,
    /// When its main process was started last; `None` when never.
    pub started_at: Option<Timestamp>,
}

impl FoundLender {
    /// The lender that this container is.
    pub fn of(container: &Container) -> Self {
        Self { name: container.name.clone(), state: container.state, started_at: container.started_at }
    }
}

/// What a container has used at one moment, as the engine counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// When this was read, by the engine's clock.
    pub read: Timestamp,
    /// CPU time since its start, over all cores.
    pub cpu: Duration,
    /// Cores that it can use.
    pub cores: u32,
    /// Memory in bytes, without file cache that can be dropped at any time.
    pub memory: u64,
    /// Limit of its memory in bytes; `None` where the engine names none. One beyond the machine's memory is none.
    pub memory_limit: Option<u64>,
}

/// What a container is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Made, never started (or the start failed).
    Created,
    /// Its main process runs.
    Running,
    /// Its processes are frozen.
    Paused,
    /// Between two runs under its restart policy.
    Restarting,
    /// Being deleted.
    Removing,
    /// Its main process has ended.
    Exited,
    /// The engine could not delete it.
    Dead,
    /// The engine did not say, or in a word that is not known: it may run, or not.
    Unknown,
}

impl State {
    /// The engine's word.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Created => "created",
            State::Running => "running",
            State::Paused => "paused",
            State::Restarting => "restarting",
            State::Removing => "removing",
            State::Exited => "exited",
            State::Dead => "dead",
            State::Unknown => "unknown",
        }
    }
}

/// What a health check says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthState {
    /// No verdict yet.
    Starting,
    /// Passing.
    Healthy,
    /// Failed as often as it may.
    Unhealthy,
}

/// How a health check is timed, the engine's defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthTiming {
    /// Time in which failures do not count.
    pub start_period: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Longest time of one probe.
    pub timeout: Duration,
    /// Failures in a row that make it unhealthy.
    pub retries: u32,
}

impl HealthTiming {
    /// The longest budget. Whoever makes the image sets these times, up to centuries.
    const LONGEST: Duration = Duration::from_hours(7 * 24);

    /// Longest time that a good container may take to turn healthy (DECISIONS 4).
    pub fn budget(&self) -> Duration {
        let probes = self.interval.saturating_mul(self.retries.saturating_add(1));
        self.start_period.saturating_add(probes).saturating_add(self.timeout).min(Self::LONGEST)
    }
}

/// One event about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEvent {
    /// Engine's time in nanoseconds since the epoch.
    pub time_nano: i64,
    /// Full container ID.
    pub id: String,
    /// Container name.
    pub name: String,
    /// Compose project, empty outside compose.
    pub project: String,
    /// What happened.
    pub what: Happening,
}

/// What happened to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// Its main process was started.
    Start,
    /// A signal was sent through the engine's API.
    Kill {
        /// Signal number; `None` where the engine does not tell (podman).
        signal: Option<i32>,
    },
    /// Its main process ended.
    Die {
        /// Exit code.
        exit_code: i64,
    },
    /// A stop through the API is done.
    Stop,
    /// The kernel killed a process of it for its memory use.
    Oom,
    /// Its health check changed its mind.
    Health(HealthState),
    /// It was deleted.
    Destroy,
    /// Anything else (`create`, `rename`, `pause`, …).
    Other(String),
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
}

/// How much it matters to get a fresh answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A poll cycle.
    Routine,
    /// A person, or an event, asked.
    Asked,
}

/// Why a registry gave no digest. Texts are stable: the same fault gives the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RegistryError(pub String);

/// Runs compose. One call at a time per project is the caller's business.
#[async_trait]
pub trait Compose: Send + Sync + 'static {
    /// `compose up -d --pull never --no-build`, with one retry where a killed run left its half-made
    /// container in the way. Returns what compose printed (the last 8 KiB).
    async fn up(&self, project: &Project, recreate: &Recreate) -> Result<String, ComposeError>;

    /// `compose down`, without `-v`: volumes stay.
    async fn down(&self, project: &Project) -> Result<String, ComposeError>;

    /// `compose config --quiet`: whether the files can be used.
    async fn validate(&self, project: &Project) -> Result<(), ComposeError>;

    /// `compose config --format json`: what the files come to.
    async fn model(&self, project: &Project) -> Result<Model, ComposeError>;
}

/// What `up` does with containers that need no change.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recreate {
    /// Leave them alone.
    Changed,
    /// Make all anew (`--force-recreate`).
    All,
    /// Make and change nothing, only start what is there (`compose start`).
    Nothing,
    /// Make those of one compose service anew, and touch no other (`--no-deps`).
    Only(String),
    /// Leave alone what needs no change, and all that is not of these compose services (`--no-deps`).
    Alone(Vec<String>),
    /// The same, with a number of containers other than the files' for some of them (`--scale`).
    Services {
        /// The compose services.
        names: Vec<String>,
        /// How many containers each of these keeps.
        replicas: BTreeMap<String, usize>,
    },
}

impl Recreate {
    /// The compose services that compose is told to keep to; none where it has the whole project.
    pub fn services(&self) -> &[String] {
        match self {
            Recreate::Changed | Recreate::All | Recreate::Nothing => &[],
            Recreate::Only(service) => std::slice::from_ref(service),
            Recreate::Alone(names) | Recreate::Services { names, .. } => names,
        }
    }

    /// Whether it is for a list of services, and that is empty.
    pub fn is_for_none(&self) -> bool {
        matches!(self, Recreate::Alone(names) | Recreate::Services { names, .. } if names.is_empty())
    }
}

/// A compose project as configured.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Project {
    /// Its name (`-p`).
    pub name: String,
    /// Its files in order (`-f`).
    pub files: Vec<PathBuf>,
    /// File whose variables are added to compose's environment.
    pub env_file: Option<PathBuf>,
}

/// Why compose did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct ComposeError {
    /// One stable line: compose's last line, or what kept it from running.
    pub cause: String,
    /// What compose printed (the last 8 KiB).
    pub output: String,
}
