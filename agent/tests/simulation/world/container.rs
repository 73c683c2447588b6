//! Containers and images of the world, and how they change over time.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_agent::model::image::{ImageId, Reference};
use evenkeel_agent::model::{Container, EventKind, HealthState, HealthTiming, Origin, RestartPolicy, State};
use evenkeel_common::wire::MountRecord;
use jiff::{SignedDuration, Timestamp};

/// How an image behaves once it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Healthy two seconds after its start.
    Good,
    /// Keeps running, and has no health check.
    Unchecked,
    /// Keeps running without a health check, and never answers a probe.
    Mute,
    /// Runs, but its health check never passes.
    Unhealthy,
    /// Exits with code 1 after 3 s; nothing restarts it.
    Crash,
    /// Exits with code 1 after 25 s, when every probation is over.
    LateCrash,
    /// Exits with code 0 after 12 s; nothing restarts it.
    Quits,
    /// Exits with code 1 every 2 s and is restarted by the engine.
    CrashLoop,
    /// Healthy, then unhealthy.
    Flapping,
    /// Killed for running out of memory.
    Oom,
    /// Can't be started at all: compose fails.
    BadEntrypoint,
}

impl Behaviour {
    /// Reports whether it works until something stops it.
    pub(crate) fn works(self) -> bool {
        matches!(self, Self::Good | Self::Unchecked)
    }

    /// Completes the phrase "an image that …".
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Good => "is healthy",
            Self::Unchecked => "runs without a health check",
            Self::Mute => "runs but never answers",
            Self::Unhealthy => "is never healthy",
            Self::Crash => "crashes at once",
            Self::LateCrash => "crashes after 25 s",
            Self::Quits => "ends after 12 s",
            Self::CrashLoop => "crashes again and again",
            Self::Flapping => "is healthy for 3 s only",
            Self::Oom => "runs out of memory",
            Self::BadEntrypoint => "can't be started",
        }
    }

    /// Returns when the process exits by itself: seconds after its start, exit code, and whether it ran out of memory.
    fn end(self) -> Option<(i64, i64, bool)> {
        match self {
            Self::Crash => Some((3, 1, false)),
            Self::LateCrash => Some((25, 1, false)),
            Self::Quits => Some((12, 0, false)),
            Self::CrashLoop => Some((2, 1, false)),
            Self::Oom => Some((2, 137, true)),
            _ => None,
        }
    }

    /// Returns the result of its health check `age` milliseconds after its start.
    fn health(self, age: i128) -> Option<HealthState> {
        let (healthy_from, unhealthy_from) = match self {
            Self::Good | Self::LateCrash | Self::Quits => (2_000, i128::MAX),
            Self::Unhealthy => (i128::MAX, 3_000),
            Self::Flapping => (1_000, 4_000),
            _ => return None,
        };
        Some(if age >= unhealthy_from {
            HealthState::Unhealthy
        } else if age >= healthy_from {
            HealthState::Healthy
        } else {
            HealthState::Starting
        })
    }

    /// The ages, in seconds, at which the result of its health check changes.
    fn health_changes(self) -> &'static [i64] {
        match self {
            Self::Good | Self::LateCrash | Self::Quits => &[2],
            Self::Unhealthy => &[3],
            Self::Flapping => &[1, 4],
            _ => &[],
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct FakeImage {
    pub(super) behaviour: Behaviour,
    pub(super) digests: BTreeSet<String>,
    pub(super) tags: BTreeSet<String>,
}

/// The state of a container's main process.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Run {
    /// Never started.
    Never,
    /// Running since then.
    Up(Timestamp),
    /// Exited.
    Ended { since: Timestamp, at: Timestamp, code: i64, oom: bool },
}

#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(super) struct FakeContainer {
    pub(super) id: String,
    pub(super) service: String,
    /// Its number among the containers of its service.
    pub(super) number: u32,
    /// The image reference that it was created from.
    pub(super) reference: Reference,
    pub(super) image: ImageId,
    pub(super) behaviour: Behaviour,
    /// The surroundings in which compose was called.
    pub(super) origin: Origin,
    /// The version of the compose file's service that it was created with.
    pub(super) made_with: u64,
    /// The file of the secret that it was created with; empty for none.
    pub(super) secret_file: String,
    /// It has a restart policy: the engine starts it again when it crashes, and after an engine restart.
    pub(super) restarts_itself: bool,
    pub(super) run: Run,
    pub(super) restarts: u64,
    /// Its health check fails until the next start.
    pub(super) sick: bool,
    /// Its health check fails even after restarts: a dependency is broken.
    pub(super) ruined: bool,
    /// It was told that no more requests will follow: its health check fails until it is told otherwise.
    pub(super) is_draining: bool,
    /// The last reported result of its health check.
    pub(super) reported_health: Option<HealthState>,
    /// Its processes are frozen: it is neither probed nor does it change.
    pub(super) is_paused: bool,
    /// The engine calls it unhealthy until the next probe, since it was paused before that.
    pub(super) unmeasured_until: Option<Timestamp>,
    /// It was told to stop then, and ends at this later time. Its health check fails meanwhile.
    pub(super) stopping: Option<(Timestamp, Timestamp)>,
}

/// How long the engine takes to restart a container.
const RESTART_PAUSE: SignedDuration = SignedDuration::from_secs(1);

impl FakeContainer {
    pub(super) fn is_up(&self) -> bool {
        matches!(self.run, Run::Up(_))
    }

    /// Reports whether it works until something stops it.
    pub(super) fn works(&self) -> bool {
        self.behaviour.works() && !self.ruined
    }

    pub(super) fn started(&self) -> Option<Timestamp> {
        match self.run {
            Run::Never => None,
            Run::Up(since) | Run::Ended { since, .. } => Some(since),
        }
    }

    pub(super) fn name(&self) -> String {
        format!("p-{}-{}", self.service, self.number)
    }

    /// Reports whether it answers a probe.
    pub(super) fn answers(&self, now: Timestamp) -> bool {
        let is_up = self.started().is_some_and(|since| now >= since + SignedDuration::from_secs(1));
        self.is_up() && is_up && !self.is_paused && self.behaviour != Behaviour::Mute
    }

    /// Returns the health that the engine reports.
    pub(super) fn health(&self, now: Timestamp) -> Option<HealthState> {
        let Run::Up(since) = self.run else { return None };
        if self.is_paused {
            return None;
        }
        let age = (now.as_millisecond() - since.as_millisecond()).into();
        let health = self.behaviour.health(age)?;
        if self.stopping.is_some() || self.sick || self.ruined || self.is_draining {
            return Some(HealthState::Unhealthy);
        }
        Some(if self.unmeasured_until.is_some_and(|until| now < until) {
            HealthState::Unmeasured
        } else {
            health
        })
    }

    /// Reports whether it is running and not unhealthy.
    pub(super) fn is_well(&self, now: Timestamp) -> bool {
        self.is_up() && self.health(now) != Some(HealthState::Unhealthy)
    }

    pub(super) fn start(&mut self, now: Timestamp) {
        (self.run, self.sick, self.reported_health) = (Run::Up(now), false, None);
        (self.is_paused, self.unmeasured_until, self.stopping) = (false, None, None);
    }

    pub(super) fn end(&mut self, at: Timestamp, code: i64, oom: bool) {
        (self.is_paused, self.stopping) = (false, None);
        if let Run::Up(since) = self.run {
            self.run = Run::Ended { since, at, code, oom };
        }
    }

    /// Returns when it next changes by itself.
    pub(super) fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_paused {
            return None;
        }
        match self.run {
            Run::Up(since) => {
                let end = self.behaviour.end().map(|(after, ..)| since + SignedDuration::from_secs(after));
                let checks = self.behaviour.health_changes().iter();
                let checks = checks.map(|age| since + SignedDuration::from_secs(*age)).filter(|at| *at > now);
                let measured = self.unmeasured_until.filter(|until| *until > now);
                checks.chain(end).chain(measured).chain(self.stopping.map(|(_, until)| until)).min()
            }
            Run::Ended { at, code, .. } if self.restarts_itself && code == 1 => Some(at + RESTART_PAUSE),
            _ => None,
        }
    }

    /// Advances it to `now`, and returns its events and their times.
    pub(super) fn advance(&mut self, now: Timestamp) -> Vec<(Timestamp, EventKind)> {
        let mut happened = Vec::new();
        if self.is_paused {
            return happened;
        }
        if let Some((_, at)) = self.stopping.filter(|(_, until)| *until <= now) {
            self.end(at, 143, false);
            happened.push((at, EventKind::Die { exit_code: 143 }));
            happened.push((at, EventKind::Stop));
        }
        loop {
            match self.run {
                Run::Up(since) => {
                    let Some((after, code, oom)) = self.behaviour.end() else { break };
                    let at = since + SignedDuration::from_secs(after);
                    if at > now {
                        break;
                    }
                    self.end(at, code, oom);
                    if oom {
                        happened.push((at, EventKind::Oom));
                    }
                    happened.push((at, EventKind::Die { exit_code: code }));
                    if self.behaviour == Behaviour::CrashLoop {
                        self.restarts += 1;
                        self.start(at);
                        happened.push((at, EventKind::Start));
                    }
                }
                Run::Ended { at, code: 1, .. } if self.restarts_itself && at + RESTART_PAUSE <= now => {
                    self.restarts += 1;
                    self.start(at + RESTART_PAUSE);
                    happened.push((at + RESTART_PAUSE, EventKind::Start));
                }
                _ => break,
            }
        }
        let health = self.health(now);
        if let Some(health) = health.filter(|_| health != self.reported_health) {
            self.reported_health = Some(health);
            if !matches!(health, HealthState::Starting | HealthState::Unmeasured) {
                happened.push((now, EventKind::Health(health)));
            }
        }
        happened
    }

    pub(super) fn mounts(&self) -> Vec<MountRecord> {
        let secret = MountRecord {
            kind: "bind".to_owned(),
            name: String::new(),
            source: self.secret_file.clone(),
            destination: "/run/secrets/key".to_owned(),
            read_only: true,
        };
        Some(secret).filter(|secret| !secret.source.is_empty()).into_iter().collect()
    }

    /// Returns it as the engine's API shows it.
    pub(super) fn view(&self, now: Timestamp) -> Container {
        let timing = HealthTiming {
            start_period: Duration::ZERO,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            retries: 3,
        };
        let (state, exit_code, oom_killed, finished_at) = match self.run {
            Run::Never => (State::Created, 0, false, None),
            Run::Up(_) if self.is_paused => (State::Paused, 0, false, None),
            Run::Up(_) => (State::Running, 0, false, None),
            Run::Ended { at, code, oom, .. } => (State::Exited, code, oom, Some(at)),
        };
        let health = self.health(now);
        let served = match self.run {
            Run::Never => false,
            Run::Up(_) => health == Some(HealthState::Healthy),
            Run::Ended { since, at, .. } => {
                let age = (at.as_millisecond() - since.as_millisecond()).into();
                self.behaviour.health(age) == Some(HealthState::Healthy)
            }
        };
        Container {
            id: self.id.clone(),
            name: self.name(),
            manager: None,
            project: "shop".to_owned(),
            compose_service: self.service.clone(),
            compose_files: Vec::new(),
            origin: self.origin.clone(),
            env_files_of_image: Vec::new(),
            config_image: self.reference.tagged(),
            image: self.image.clone(),
            state,
            health,
            health_output: String::new(),
            probed_at: None,
            served,
            health_timing: self.behaviour.health(0).map(|_| timing),
            restart_count: self.restarts,
            started_at: self.started(),
            finished_at,
            stop_signal: 15,
            stop_timeout: Duration::from_secs(10),
            exit_code,
            oom_killed,
            is_stopping: false,
            error: String::new(),
            restart_policy: if self.restarts_itself || self.behaviour == Behaviour::CrashLoop {
                RestartPolicy::OnFailure
            } else {
                RestartPolicy::No
            },
            cpu_limit: None,
            restarts_with: Vec::new(),
            waits_for: Vec::new(),
            network_of: None,
            lost_networks: Vec::new(),
            mounts: self.mounts(),
        }
    }
}
