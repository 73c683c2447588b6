//! Containers and images of the world, and what becomes of them as time passes.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_agent::model::image::{ImageId, Reference};
use evenkeel_agent::model::{Container, EventKind, HealthState, HealthTiming, State};
use jiff::{SignedDuration, Timestamp};

/// How an image behaves once it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Healthy two seconds after its start.
    Good,
    /// Runs for good, and has no health check.
    Unchecked,
    /// Runs, but its health check never passes.
    Unhealthy,
    /// Ends with code 1 after three seconds; nothing restarts it.
    Crash,
    /// The same after 25 seconds, when every probation is over.
    LateCrash,
    /// Ends with code 1 every two seconds and is restarted by the engine.
    CrashLoop,
    /// Healthy, then unhealthy.
    Flapping,
    /// Killed for its memory use.
    Oom,
    /// Can't be started at all: compose fails.
    BadEntrypoint,
}

impl Behaviour {
    /// Whether it works until somebody or something makes it stop.
    pub(crate) fn works(self) -> bool {
        matches!(self, Self::Good | Self::Unchecked)
    }

    /// In words, after "an image that".
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Good => "is healthy",
            Self::Unchecked => "runs without a health check",
            Self::Unhealthy => "is never healthy",
            Self::Crash => "crashes at once",
            Self::LateCrash => "crashes after 25 s",
            Self::CrashLoop => "crashes again and again",
            Self::Flapping => "is healthy for 3 s only",
            Self::Oom => "runs out of memory",
            Self::BadEntrypoint => "can't be started",
        }
    }

    /// When a run ends by itself: after how long, with which code, whether for its memory use.
    fn end(self) -> Option<(i64, i64, bool)> {
        match self {
            Self::Crash => Some((3, 1, false)),
            Self::LateCrash => Some((25, 1, false)),
            Self::CrashLoop => Some((2, 1, false)),
            Self::Oom => Some((2, 137, true)),
            _ => None,
        }
    }

    /// What its health check says so many milliseconds after its start.
    fn health(self, age: i128) -> Option<HealthState> {
        let (healthy_from, unhealthy_from) = match self {
            Self::Good | Self::LateCrash => (2_000, i128::MAX),
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

    /// The ages, in seconds, at which its health check changes its mind.
    fn health_changes(self) -> &'static [i64] {
        match self {
            Self::Good | Self::LateCrash => &[2],
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

/// What the main process of a container does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Run {
    /// It was never started.
    Never,
    /// It runs since then.
    Up(Timestamp),
    /// It ran, and has ended.
    Ended { since: Timestamp, at: Timestamp, code: i64, oom: bool },
}

#[derive(Debug, Clone)]
pub(super) struct FakeContainer {
    pub(super) id: String,
    pub(super) service: String,
    /// What it was made from.
    pub(super) reference: Reference,
    pub(super) image: ImageId,
    pub(super) behaviour: Behaviour,
    /// Version of its service in the compose file that it was made with.
    pub(super) made_with: u64,
    /// The engine starts it again when it ends by itself, and after its own restart.
    pub(super) restarts_itself: bool,
    pub(super) run: Run,
    pub(super) restarts: u64,
    /// Its health check fails until it is started again.
    pub(super) sick: bool,
    /// Its health check fails however often it is started: what it works with is broken.
    pub(super) ruined: bool,
    /// What its health check said last.
    pub(super) told: Option<HealthState>,
}

/// Time that the engine takes to start a container again.
const RESTART_PAUSE: SignedDuration = SignedDuration::from_secs(1);

impl FakeContainer {
    pub(super) fn is_up(&self) -> bool {
        matches!(self.run, Run::Up(_))
    }

    /// Whether it works until somebody or something makes it stop.
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
        format!("p-{}-1", self.service)
    }

    pub(super) fn health(&self, now: Timestamp) -> Option<HealthState> {
        let Run::Up(since) = self.run else { return None };
        let age = (now.as_millisecond() - since.as_millisecond()).into();
        let health = self.behaviour.health(age)?;
        Some(if self.sick || self.ruined { HealthState::Unhealthy } else { health })
    }

    /// Whether it runs, and is not unhealthy.
    pub(super) fn is_well(&self, now: Timestamp) -> bool {
        self.is_up() && self.health(now) != Some(HealthState::Unhealthy)
    }

    pub(super) fn start(&mut self, now: Timestamp) {
        (self.run, self.sick, self.told) = (Run::Up(now), false, None);
    }

    pub(super) fn end(&mut self, at: Timestamp, code: i64, oom: bool) {
        if let Run::Up(since) = self.run {
            self.run = Run::Ended { since, at, code, oom };
        }
    }

    /// When something becomes of it by itself.
    pub(super) fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        match self.run {
            Run::Up(since) => {
                let end = self.behaviour.end().map(|(after, ..)| since + SignedDuration::from_secs(after));
                let checks = self.behaviour.health_changes().iter();
                let checks = checks.map(|age| since + SignedDuration::from_secs(*age)).filter(|at| *at > now);
                checks.chain(end).min()
            }
            Run::Ended { at, code, .. } if self.restarts_itself && code == 1 => Some(at + RESTART_PAUSE),
            _ => None,
        }
    }

    /// Lets come what has come by itself until `now`: what happened, and when.
    pub(super) fn advance(&mut self, now: Timestamp) -> Vec<(Timestamp, EventKind)> {
        let mut happened = Vec::new();
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
        if let Some(health) = health.filter(|_| health != self.told) {
            self.told = Some(health);
            if health != HealthState::Starting {
                happened.push((now, EventKind::Health(health)));
            }
        }
        happened
    }

    /// How the engine shows it.
    pub(super) fn view(&self, now: Timestamp) -> Container {
        let timing = HealthTiming {
            start_period: Duration::ZERO,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            retries: 3,
        };
        let (state, exit_code, oom_killed, finished_at) = match self.run {
            Run::Never => (State::Created, 0, false, None),
            Run::Up(_) => (State::Running, 0, false, None),
            Run::Ended { at, code, oom, .. } => (State::Exited, code, oom, Some(at)),
        };
        let health = self.health(now);
        Container {
            id: self.id.clone(),
            name: self.name(),
            manager: None,
            compose_service: self.service.clone(),
            compose_files: Vec::new(),
            config_image: self.reference.tagged(),
            image: self.image.clone(),
            state,
            status: String::new(),
            health,
            health_output: String::new(),
            health_timing: health.map(|_| timing),
            restart_count: self.restarts,
            started_at: self.started(),
            finished_at,
            stop_signal: 15,
            stop_timeout: Duration::from_secs(10),
            exit_code,
            oom_killed,
            error: String::new(),
            restarts_itself: self.restarts_itself || self.behaviour == Behaviour::CrashLoop,
            restarts_with: Vec::new(),
            network_of: None,
            mounts: Vec::new(),
        }
    }
}
