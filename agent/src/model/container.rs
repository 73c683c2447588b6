//! Containers as reported by the engine, and their events.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compose::{ModelService, duration};
use super::image::{ImageId, Reference};
use super::project::{Origin, Project};

/// Selects containers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Members {
    /// All containers of a compose project.
    Project(String),
    /// All containers of a compose project, or the one with this name if the project has none.
    ProjectOrName(String, String),
    /// The container with this name.
    Name(String),
}

impl Members {
    /// Selects the containers of a service with these keys; `None` if it has neither (spec 2.9).
    pub fn of(project: Option<&str>, name: Option<&str>) -> Option<Self> {
        match (project.map(str::to_owned), name.map(str::to_owned)) {
            (Some(project), Some(name)) => Some(Self::ProjectOrName(project, name)),
            (Some(project), None) => Some(Self::Project(project)),
            (None, name) => name.map(Self::Name),
        }
    }
}

/// What manages a container instead of the agent (DECISIONS 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manager {
    /// A systemd unit.
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

/// Why compose must not stop a container to make it anew: what it is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It runs in it.
    ToRun,
    /// It may run in it: several containers have the agent's network, and it can't tell which of them is its own.
    MayRun,
    /// It reaches the engine through it.
    ForEngine,
    /// Others share its network, and the engine removes it only after them.
    ForOthers,
}

impl Need {
    /// What would become of compose once it has stopped the container.
    pub fn consequence(self) -> &'static str {
        match self {
            Need::ToRun | Need::MayRun | Need::ForEngine => "end with it before the new container is started",
            Need::ForOthers => "could not remove it, as podman refuses to",
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Need::ToRun => "in which the agent runs",
            Need::MayRun => {
                "which shares its network with the agent and may be the agent's own (to rule that out, run the agent with a \
                 network of its own)"
            }
            Need::ForEngine => "through which the agent reaches the engine",
            Need::ForOthers => "whose network other containers share",
        })
    }
}

/// One container, as inspected.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Full ID.
    pub id: String,
    /// Name without the leading slash.
    pub name: String,
    /// What manages it instead of the agent; if set, the agent neither updates nor heals it.
    pub manager: Option<Manager>,
    /// Compose project that it belongs to; empty outside compose.
    pub project: String,
    /// Compose service that it belongs to; empty outside compose.
    pub compose_service: String,
    /// Compose files that it was created from, as recorded in its label; empty outside compose.
    pub compose_files: Vec<PathBuf>,
    /// Project directory and env files that it was created with, as recorded in its labels.
    pub origin: Origin,
    /// Env files that its image is labelled with as well, so that it does not say with which ones it was created.
    pub env_files_of_image: Vec<PathBuf>,
    /// Image reference that it was created from (`Config.Image`); empty while unknown.
    pub config_image: String,
    /// Image that it runs; empty while unknown.
    pub image: ImageId,
    /// Current state.
    pub state: State,
    /// Health check state of the current run; `None` without a health check, and while it is not running.
    pub health: Option<HealthState>,
    /// Last output of the health check in its last run, trimmed.
    pub health_output: String,
    /// When the last probe of its health check began; `None` if there was none in its last run, or if unknown.
    pub probed_at: Option<Timestamp>,
    /// Whether its health check has passed, in its last run as far as the engine remembers, or when it was inspected earlier: it
    /// was there to serve, and is no job.
    pub served: bool,
    /// Health check timing; `None` without a health check.
    pub health_timing: Option<HealthTiming>,
    /// Restarts by the engine's restart policy since the last manual start.
    pub restart_count: u64,
    /// When the main process was last started; `None` if never.
    pub started_at: Option<Timestamp>,
    /// When the last run ended; `None` if none has ended, or if unknown.
    pub finished_at: Option<Timestamp>,
    /// Signal that asks it to stop.
    pub stop_signal: i32,
    /// Time that it gets to stop before it is killed.
    pub stop_timeout: Duration,
    /// Exit code of the last run; 0 during the first run, -1 if it ended with an unknown code.
    pub exit_code: i64,
    /// Whether the OOM killer has killed one of its processes, not necessarily the main one. The engine may keep this
    /// from an earlier run, so it proves nothing without an exit code other than 0.
    pub oom_killed: bool,
    /// Whether somebody is stopping it: it still runs, but was told to end.
    pub is_stopping: bool,
    /// Why the engine could not start it.
    pub error: String,
    /// Whether the engine starts it again when it ends.
    pub restart_policy: RestartPolicy,
    /// Cores that it may use at most, by its CPU quota and the cores that it is pinned to; `None` without either.
    pub cpu_limit: Option<f64>,
    /// Compose services that it is restarted with, according to its label (`depends_on` with `restart: true`). With
    /// `--no-deps` compose omits the dependencies, so the compose files are more complete.
    pub restarts_with: Vec<String>,
    /// Compose services that compose waits for before it starts it, with what they must have reached, according to its label.
    pub waits_for: Vec<(String, Awaited)>,
    /// The container whose network it shares (`network_mode: service:…`, `container:…`).
    pub network_of: Option<NetworkOwner>,
    /// IDs of the networks that it is to be connected to when it is started, and that the engine no longer has. Docker looks
    /// them up by ID, so that the container can't be started any more, not even if there is another network of that name.
    pub lost_networks: Vec<String>,
    /// Mounts.
    pub mounts: Vec<evenkeel_common::wire::MountRecord>,
}

impl Container {
    /// Reports whether it has a main process, even if paused or restarting. A container in an unknown state may have one.
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Running | State::Paused | State::Restarting | State::Unknown)
    }

    /// Reports whether it has a main process that is not paused.
    pub fn is_active(&self) -> bool {
        self.is_live() && self.state != State::Paused
    }

    /// Reports whether it may be a job that ends by itself: nothing restarts it, and nothing checks its health.
    pub fn is_one_shot(&self) -> bool {
        matches!(self.restart_policy, RestartPolicy::No | RestartPolicy::Removed)
            && self.health_timing.is_none()
    }

    /// Reports whether a compose run may be about to start it: it was created, and what it waits for, among all containers
    /// of its project, is still on its way.
    pub fn is_held_back(&self, all: &[Container]) -> bool {
        let is_on_its_way = |c: &Container, awaited: Awaited| match (c.state, awaited) {
            (State::Created, _) => c.error.is_empty(),
            // Compose gives up at once on one that is unhealthy.
            (State::Running, Awaited::Healthy) => c.health == Some(HealthState::Starting),
            (_, Awaited::Healthy) => false,
            (_, Awaited::Completed) => c.is_live(),
        };
        let is_pending = |(service, awaited): &(String, Awaited)| {
            all.iter().any(|c| c.compose_service == *service && is_on_its_way(c, *awaited))
        };
        self.state == State::Created && self.error.is_empty() && self.waits_for.iter().any(is_pending)
    }

    /// Reports whether it was created from this reference.
    pub fn is_made_from(&self, reference: &Reference) -> bool {
        Reference::parse(&self.config_image).is_ok_and(|made_from| made_from == *reference)
    }
}

impl Origin {
    /// Returns the origin of these containers for a project of these files: of one that was made from them if possible,
    /// of a live one, and of one whose image does not name env files. `None` if no container says where it comes from.
    ///
    /// Compose keeps a container whose definition has not changed, with the labels of the folder that the project was moved
    /// from, and two projects may have one name.
    pub fn of(containers: &[Container], files: &[PathBuf]) -> Option<Self> {
        let known = containers.iter().filter(|container| container.origin != Self::default());
        let is_of_files =
            |container: &Container| files.first().is_some_and(|file| container.compose_files.contains(file));
        known
            .min_by_key(|container| {
                (!is_of_files(container), !container.is_live(), !container.env_files_of_image.is_empty())
            })
            .map(|container| container.origin.clone())
    }
}

impl Project {
    /// Returns the project as a person has started it, according to its containers.
    #[must_use]
    pub fn as_started_by(self, containers: &[Container]) -> Self {
        let origin = Origin::of(containers, &self.files);
        self.as_started(origin.as_ref()).with_present(containers)
    }

    /// Returns the project with the compose services of these containers as those that are present.
    #[must_use]
    pub fn with_present(self, containers: &[Container]) -> Self {
        let services: BTreeSet<&str> = containers.iter().map(|c| c.compose_service.as_str()).collect();
        Self { present: services.into_iter().map(str::to_owned).collect(), ..self }
    }
}

/// What a compose service must have reached before compose starts those that wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Its health check has passed.
    Healthy,
    /// It has exited with code 0.
    Completed,
}

/// When the engine starts a container again that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Never.
    No,
    /// Never: the engine removes it (`docker run --rm`).
    Removed,
    /// After an exit code other than 0, possibly only a few times (`on-failure`).
    OnFailure,
    /// Always, unless somebody has stopped it and the engine has not been started since (`always`).
    Always,
    /// Always, unless somebody has stopped it (`unless-stopped`).
    UnlessStopped,
}

impl RestartPolicy {
    /// Reports whether the engine starts a container again whatever its exit code.
    pub fn is_endless(self) -> bool {
        matches!(self, Self::Always | Self::UnlessStopped)
    }
}

/// The container whose network another container shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkOwner {
    /// Its ID or name, as passed to the engine. Compose passes the ID, which still refers to the old container after the
    /// owner is recreated.
    pub id_or_name: String,
    /// The container that this ID or name resolves to now.
    pub resolved: Option<NetworkOwnerState>,
}

impl NetworkOwner {
    /// Reports whether it was given by ID, so that no other container can ever take its place.
    pub fn is_given_by_id(&self) -> bool {
        is_full_id(&self.id_or_name)
    }
}

/// Reports whether this is a full ID as the engine makes them, also as the name of a volume that it made for one container.
pub(crate) fn is_full_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Current state of a network owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkOwnerState {
    /// Name.
    pub name: String,
    /// Current state.
    pub state: State,
    /// When its main process was last started; `None` if never.
    pub started_at: Option<Timestamp>,
}

impl NetworkOwnerState {
    /// Describes this container as a network owner.
    pub fn of(container: &Container) -> Self {
        Self { name: container.name.clone(), state: container.state, started_at: container.started_at }
    }
}

/// Resource usage of a container at one moment, as reported by the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Time of the reading, by the engine's clock.
    pub read: Timestamp,
    /// CPU time since the container's start, over all cores.
    pub cpu: Duration,
    /// Number of cores available to the container.
    pub cores: u32,
    /// Memory in bytes, without reclaimable file cache.
    pub memory: u64,
    /// Memory limit in bytes; `None` if the engine reports none. A limit above the machine's memory has no effect.
    pub memory_limit: Option<u64>,
}

/// State of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Created, but never started (or the start failed).
    Created,
    /// Its main process runs.
    Running,
    /// Its processes are frozen.
    Paused,
    /// Waiting to be restarted by its restart policy.
    Restarting,
    /// Being deleted.
    Removing,
    /// Its main process has ended.
    Exited,
    /// The engine could not delete it.
    Dead,
    /// The engine reported no state or an unknown one: the container may be running or not.
    Unknown,
}

impl State {
    /// Returns the engine's name for the state.
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

/// State of a health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthState {
    /// No result yet.
    Starting,
    /// Passing.
    Healthy,
    /// Failed as often as the configured number of retries.
    Unhealthy,
    /// The engine says unhealthy, but has not probed it since it was paused (`docker pause`, `docker commit`): it stops
    /// probing then, and marks the container unhealthy until the next result.
    Unmeasured,
}

/// Timing of a health check, with the engine's defaults applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthTiming {
    /// Time after the start during which failures do not count.
    pub start_period: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Timeout of one probe.
    pub timeout: Duration,
    /// Consecutive failures until the container is unhealthy.
    pub retries: u32,
}

impl HealthTiming {
    /// What the engine takes where nothing is said.
    pub const DEFAULT: Self = Self {
        start_period: Duration::ZERO,
        interval: Duration::from_secs(30),
        timeout: Duration::from_secs(30),
        retries: 3,
    };

    /// Returns the timing that the compose files give to a health check; `None` if they say nothing of it.
    pub fn of_files(service: ModelService<'_>) -> Option<Self> {
        let check = service.element().get("healthcheck")?.as_object()?;
        let time = |key: &str| duration(check.get(key)?.as_str()?).filter(|time| !time.is_zero());
        let retries = check.get("retries").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        Some(Self {
            start_period: time("start_period").unwrap_or(Self::DEFAULT.start_period),
            interval: time("interval").unwrap_or(Self::DEFAULT.interval),
            timeout: time("timeout").unwrap_or(Self::DEFAULT.timeout),
            retries: retries.filter(|n| *n > 0).unwrap_or(Self::DEFAULT.retries),
        })
    }

    /// Maximum budget. An image can set these times to any value, up to centuries.
    const LONGEST: Duration = Duration::from_hours(7 * 24);

    /// Returns the longest time that a good container may take to become healthy (DECISIONS 4).
    pub fn budget(&self) -> Duration {
        let probes = self.interval.saturating_mul(self.retries.saturating_add(1));
        self.start_period.saturating_add(probes).saturating_add(self.timeout).min(Self::LONGEST)
    }
}

/// One container event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEvent {
    /// Engine's time in nanoseconds since the epoch.
    pub time_nano: i64,
    /// Full container ID.
    pub id: String,
    /// Container name.
    pub name: String,
    /// Compose project; empty outside compose.
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
        /// Signal number; `None` if the engine does not report it (podman).
        signal: Option<i32>,
    },
    /// Its main process ended.
    Die {
        /// Exit code.
        exit_code: i64,
    },
    /// A stop through the API has completed.
    Stop,
    /// One of its processes was killed by the OOM killer.
    Oom,
    /// Its health state changed.
    Health(HealthState),
    /// It was unpaused.
    Unpause,
    /// It was deleted.
    Destroy,
    /// Anything else (`create`, `rename`, `pause`, …).
    Other(String),
}

#[cfg(test)]
impl Container {
    /// A running container, the only one of its compose service, without a health check.
    pub(crate) fn running(service: &str, image: &str) -> Self {
        Self {
            id: format!("id-{service}"),
            name: service.into(),
            manager: None,
            project: String::new(),
            compose_service: service.into(),
            compose_files: Vec::new(),
            origin: Origin::default(),
            env_files_of_image: Vec::new(),
            config_image: image.into(),
            image: ImageId("sha256:one".into()),
            state: State::Running,
            health: None,
            health_output: String::new(),
            probed_at: None,
            served: false,
            health_timing: None,
            restart_count: 0,
            started_at: None,
            finished_at: None,
            stop_signal: 15,
            stop_timeout: Duration::from_secs(10),
            exit_code: 0,
            oom_killed: false,
            is_stopping: false,
            error: String::new(),
            restart_policy: RestartPolicy::No,
            cpu_limit: None,
            restarts_with: Vec::new(),
            waits_for: Vec::new(),
            network_of: None,
            lost_networks: Vec::new(),
            mounts: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_id_has_64_hexadecimal_digits() {
        assert!(is_full_id(&"0123456789abcdef".repeat(4)));
        for other in [String::new(), "0".repeat(63), "x".repeat(64), "web".to_owned()] {
            assert!(!is_full_id(&other), "{other}");
        }
    }

    #[test]
    fn a_project_is_where_a_container_made_from_its_files_was_started() {
        let made = |name: &str, folder: &str, is_live: bool| {
            let mut one = Container::running(name, "web:1");
            one.compose_files = vec![format!("{folder}/compose.yml").into()];
            one.origin = Origin { folder: Some(folder.into()), env_files: Vec::new() };
            if !is_live {
                one.state = State::Exited;
            }
            one
        };
        let files = [PathBuf::from("/opt/web/compose.yml")];
        let (moved, kept) = (made("web", "/opt/web", true), made("cache", "/root/web", true));
        let stopped = made("job", "/opt/web", false);
        for (what, containers, expected) in [
            (
                "an unchanged container has the folder of before",
                vec![kept.clone(), moved.clone()],
                "/opt/web",
            ),
            ("a stopped one says where it is", vec![kept.clone(), stopped.clone()], "/opt/web"),
            ("a live one says it better", vec![stopped, moved], "/opt/web"),
            ("no container is of these files", vec![kept], "/root/web"),
        ] {
            let origin = Origin::of(&containers, &files).expect("all have one");
            assert_eq!(origin.folder, Some(expected.into()), "{what}");
        }
        assert_eq!(Origin::of(&[Container::running("web", "web:1")], &files), None);
    }

    #[test]
    fn a_container_with_the_label_of_its_image_does_not_speak_for_the_others_of_its_project() {
        let made = |name: &str, env_files: &[&str]| {
            let mut one = Container::running(name, "web:1");
            one.origin.folder = Some("/opt/web".into());
            one.origin.env_files = env_files.iter().map(PathBuf::from).collect();
            one
        };
        let committed = Container { env_files_of_image: vec!["/x.env".into()], ..made("api", &[]) };
        let both = [committed, made("web", &["/opt/web/prod.env"])];
        let env_files =
            |containers: &[Container]| Origin::of(containers, &[]).expect("all have one").env_files;
        assert_eq!(env_files(&both), [PathBuf::from("/opt/web/prod.env")]);
        assert!(env_files(&both[..1]).is_empty());
    }
}
