//! A container as the engine shows it, and what happens to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use super::image::{ImageId, Reference};

/// Which containers are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Members {
    /// All of a compose project.
    Project(String),
    /// All of a compose project; where that has none, the one with this name.
    ProjectOrName(String, String),
    /// The one with this name.
    Name(String),
}

impl Members {
    /// The containers of a service with these keys; `None` where it has neither (spec 2.9).
    pub fn of(project: Option<&str>, name: Option<&str>) -> Option<Self> {
        match (project.map(str::to_owned), name.map(str::to_owned)) {
            (Some(project), Some(name)) => Some(Self::ProjectOrName(project, name)),
            (Some(project), None) => Some(Self::Project(project)),
            (None, name) => name.map(Self::Name),
        }
    }
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
    pub network_of: Option<NetworkOwner>,
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
pub struct NetworkOwner {
    /// What the engine was given for it: its ID or its name. Compose gives the ID, which stays that of the old one
    /// when the owner is recreated.
    pub given: String,
    /// The container that this names now.
    pub found: Option<CurrentOwner>,
}

impl NetworkOwner {
    /// Whether it was given by ID, so that no other container can ever take its place.
    pub fn is_given_by_id(&self) -> bool {
        self.given.len() == 64 && self.given.bytes().all(|b| b.is_ascii_hexdigit())
    }
}

/// A lender as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentOwner {
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: State,
    /// When its main process was started last; `None` when never.
    pub started_at: Option<Timestamp>,
}

impl CurrentOwner {
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
    pub what: EventKind,
}

/// What happened to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
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

#[cfg(test)]
impl Container {
    /// One that runs, as the only one of its compose service, without a health check.
    pub(crate) fn running(service: &str, image: &str) -> Self {
        Self {
            id: format!("id-{service}"),
            name: service.into(),
            manager: None,
            compose_service: service.into(),
            compose_files: Vec::new(),
            config_image: image.into(),
            image: ImageId("sha256:one".into()),
            state: State::Running,
            status: "Up".into(),
            health: None,
            health_output: String::new(),
            health_timing: None,
            restart_count: 0,
            started_at: None,
            finished_at: None,
            stop_signal: 15,
            stop_timeout: Duration::from_secs(10),
            exit_code: 0,
            oom_killed: false,
            error: String::new(),
            restarts_itself: false,
            restarts_with: Vec::new(),
            network_of: None,
            mounts: Vec::new(),
        }
    }
}
