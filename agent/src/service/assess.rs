//! How a container is doing: the one answer to "is it well?", for probation, healer, start and status.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::{Container, HealthState, State};

use super::Service;
use super::input::StopTimes;
use super::restart_state::signed;

/// What a stop may take beyond the container's own time for it.
const STOP_SLACK: Duration = Duration::from_secs(5);

/// How a container is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    /// It runs, and its health check passes if it has one.
    Healthy,
    /// It runs, and its health check has no result yet.
    Starting,
    /// It has ended, and its restart policy is about to start it again.
    Restarting,
    /// It does not run, and nothing is wrong with that.
    Inactive(Inactive),
    /// Something is wrong with it.
    Failing(Symptom),
}

/// Why a container does not run although nothing is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inactive {
    /// Somebody stopped it.
    Stopped,
    /// It ended by itself, with exit code 0.
    Finished,
    /// Somebody froze it.
    Paused,
    /// It was created and never started, maybe in the middle of somebody's deploy.
    Created,
    /// It is being removed.
    Removing,
    /// The engine does not say.
    Unknown,
}

/// What is wrong with a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Symptom {
    /// Its restart policy starts it again and again.
    CrashLoop { restarts: u64, exit_code: i64 },
    /// Its process ended with a code other than 0.
    Exited { exit_code: i64 },
    /// The kernel killed it for its memory use.
    OutOfMemory,
    /// The engine could not start it.
    NotStarted { error: String },
    /// The engine could not remove it.
    Dead,
    /// The engine stopped it when it went away.
    EngineStopped,
    /// Its health check fails.
    Unhealthy { output: String },
    /// Its health check did not pass in the time that it allows itself.
    NotHealthyInTime { output: String },
    /// It uses the network of a container that is gone for good.
    NetworkGone,
    /// It uses the network of a container that is not there.
    NetworkMissing { owner: String },
    /// It uses the network of a container that was started after it: what it has is what is left of the old network,
    /// which is nothing.
    NetworkRestarted { owner: String },
}

/// In what way a container is unwell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProblemKind {
    /// Its process ended, or never began.
    Down,
    /// Its health check fails.
    Unhealthy,
    /// It runs, but the network that it uses is gone.
    CutOff,
    /// The engine stopped it when it went away.
    EngineGone,
}

impl Symptom {
    /// In what way the container is unwell.
    pub(super) fn kind(&self) -> ProblemKind {
        match self {
            Symptom::CrashLoop { .. }
            | Symptom::Exited { .. }
            | Symptom::OutOfMemory
            | Symptom::NotStarted { .. }
            | Symptom::Dead => ProblemKind::Down,
            Symptom::EngineStopped => ProblemKind::EngineGone,
            Symptom::Unhealthy { .. } | Symptom::NotHealthyInTime { .. } => ProblemKind::Unhealthy,
            Symptom::NetworkGone | Symptom::NetworkMissing { .. } | Symptom::NetworkRestarted { .. } => {
                ProblemKind::CutOff
            }
        }
    }
}

/// When containers were told to stop, by whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stops<'a> {
    /// Somebody, through the engine's API.
    pub asked: &'a StopTimes,
    /// The engine itself, when it went away.
    pub by_engine: &'a StopTimes,
}

/// How a container is doing. `in_crash_loop`: its restart policy starts it again and again.
pub(super) fn assess(
    container: &Container,
    stops: Stops<'_>,
    in_crash_loop: bool,
    now: Timestamp,
) -> Condition {
    let symptom = match container.state {
        State::Running | State::Restarting if in_crash_loop => {
            let (restarts, exit_code) = (container.restart_count, container.exit_code);
            Some(Symptom::CrashLoop { restarts, exit_code })
        }
        State::Running => cut_off(container, now),
        _ => None,
    };
    symptom.map_or_else(|| assess_alone(container, stops), Condition::Failing)
}

/// How a container is doing by itself, whatever came before and whosever network it uses.
pub(super) fn assess_alone(container: &Container, stops: Stops<'_>) -> Condition {
    let exit_code = container.exit_code;
    match container.state {
        State::Running => match container.health {
            Some(HealthState::Unhealthy) => {
                Condition::Failing(Symptom::Unhealthy { output: container.health_output.clone() })
            }
            Some(HealthState::Starting) => Condition::Starting,
            Some(HealthState::Healthy) | None => Condition::Healthy,
        },
        State::Restarting => Condition::Restarting,
        State::Created if container.error.is_empty() => Condition::Inactive(Inactive::Created),
        State::Created => Condition::Failing(Symptom::NotStarted { error: container.error.clone() }),
        State::Paused => Condition::Inactive(Inactive::Paused),
        State::Removing => Condition::Inactive(Inactive::Removing),
        State::Unknown => Condition::Inactive(Inactive::Unknown),
        State::Exited | State::Dead if ended_as_asked(container, stops.asked) => {
            Condition::Inactive(Inactive::Stopped)
        }
        State::Dead => Condition::Failing(Symptom::Dead),
        State::Exited if ended_as_asked(container, stops.by_engine) => {
            Condition::Failing(Symptom::EngineStopped)
        }
        State::Exited if container.oom_killed => Condition::Failing(Symptom::OutOfMemory),
        State::Exited if exit_code != 0 => Condition::Failing(Symptom::Exited { exit_code }),
        State::Exited => Condition::Inactive(Inactive::Finished),
    }
}

/// Why a running container has no network any more, if it uses that of another one. Its engine does not notice.
fn cut_off(container: &Container, now: Timestamp) -> Option<Symptom> {
    let owner = container.network_of.as_ref()?;
    let Some(found) = &owner.found else {
        return Some(if owner.is_given_by_id() {
            Symptom::NetworkGone
        } else {
            Symptom::NetworkMissing { owner: owner.given.clone() }
        });
    };
    // A start in the future was before the clock was set back, and says nothing about the order of the two.
    let started = found.started_at.filter(|start| *start <= now)?;
    (found.state == State::Running && started > container.started_at?)
        .then(|| Symptom::NetworkRestarted { owner: found.name.clone() })
}

impl Service {
    /// How one of its containers is doing.
    pub(super) fn condition(&self, container: &Container) -> Condition {
        let stops = Stops { asked: &self.durable.stops, by_engine: &self.durable.engine_stops };
        assess(container, stops, self.healer.is_in_crash_loop(container), self.last_input)
    }
}

/// Whether the last run ended because it was told to: after it began, and not so long before its end that it must
/// have lived through that. A run that ended before it began is one in which the clock was set back; only its end can be
/// compared then.
fn ended_as_asked(container: &Container, told: &StopTimes) -> bool {
    let Some(at) = told.get(&container.id) else { return false };
    let patience = container.stop_timeout + STOP_SLACK;
    let lived_on = container.finished_at.map(|end| end.duration_since(*at));
    if container.started_at.zip(container.finished_at).is_some_and(|(start, end)| end < start) {
        return lived_on.is_some_and(|lived_on| lived_on.abs() <= signed(patience));
    }
    container.started_at.is_none_or(|start| *at >= start)
        && lived_on.is_none_or(|lived_on| lived_on <= signed(patience))
}
