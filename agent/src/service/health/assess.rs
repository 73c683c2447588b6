//! Container health: the only definition of "healthy", shared by probation, healer, start and status.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::ServiceConfig;
use crate::model::{Container, HealthState, HealthTiming, NetworkOwner, State};

/// Extra time that a stop may take beyond the container's stop timeout.
pub(in crate::service) const STOP_SLACK: Duration = Duration::from_secs(5);

/// The exit code of a process that was ended by TERM.
pub(in crate::service) const TERMINATED: i64 = 143;

/// A restart policy starts a container again within this time, unless it is in a crash loop.
const STUCK_AFTER: Duration = Duration::from_secs(15);
/// How long a container may take to stop at most: whoever asked for it may have set a longer timeout than the container's
/// own (`docker stop --time`), which the engine does not report.
pub(in crate::service) const LONGEST_STOP: Duration = Duration::from_hours(1);

/// The condition of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) enum Condition {
    /// It runs, and its health check passes if it has one.
    Healthy,
    /// It runs, and its health check has no result yet.
    Starting,
    /// It runs, and its health check has no result since it was paused.
    Unmeasured,
    /// It exited, and its restart policy is about to start it again.
    Restarting,
    /// It does not run, as expected.
    Inactive(Inactive),
    /// Something is wrong with it.
    Failing(Symptom),
}

/// Why a container that is not failing does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Inactive {
    /// It was stopped on request.
    Stopped,
    /// It was told to stop, and is still running: it may be finishing its work, and its health says nothing.
    Stopping,
    /// It exited by itself with exit code 0, and its health check had not passed: a job.
    Finished,
    /// It was paused.
    Paused,
    /// It was created and never started, possibly by a deployment in progress elsewhere.
    Created,
    /// It is being removed.
    Removing,
    /// The engine does not report its state.
    Unknown,
}

/// What is wrong with a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Symptom {
    /// Its restart policy keeps restarting it.
    CrashLoop {
        /// Restarts so far.
        restarts: u64,
        /// Exit code of the last run.
        exit_code: i64,
    },
    /// Its restart policy is to start it again, and has not done so for a long time.
    StuckRestarting {
        /// Exit code of the last run.
        exit_code: i64,
    },
    /// Its process exited with a nonzero code, or has served until then.
    Exited {
        /// Its exit code.
        exit_code: i64,
    },
    /// The kernel's OOM killer killed it.
    OutOfMemory,
    /// The engine could not start it.
    NotStarted {
        /// The engine's error.
        error: String,
    },
    /// The engine could not remove it.
    Dead,
    /// The engine stopped it when the engine shut down.
    EngineStopped,
    /// Its health check fails.
    Unhealthy {
        /// Output of the last check.
        output: String,
    },
    /// Its health check did not pass within its own time limit.
    NotHealthyInTime {
        /// Output of the last check.
        output: String,
    },
    /// It uses the network of a container that was removed and can't come back under the same ID.
    NetworkGone,
    /// It uses the network of a container that does not exist.
    NetworkMissing {
        /// The container's name or ID.
        owner: String,
    },
    /// It uses the network of a container that was started after it: it is attached to the old network namespace, which
    /// has no connection.
    NetworkRestarted {
        /// The container's name.
        owner: String,
    },
}

/// The kind of problem a container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum ProblemKind {
    /// Its process ended, or was never started.
    Down,
    /// Its health check fails.
    Unhealthy,
    /// It runs, but has lost the network of another container that it uses.
    Disconnected,
    /// The engine stopped it when the engine shut down.
    EngineGone,
}

impl Symptom {
    /// The kind of this problem.
    pub(in crate::service) fn kind(&self) -> ProblemKind {
        match self {
            Symptom::CrashLoop { .. }
            | Symptom::StuckRestarting { .. }
            | Symptom::Exited { .. }
            | Symptom::OutOfMemory
            | Symptom::NotStarted { .. }
            | Symptom::Dead => ProblemKind::Down,
            Symptom::EngineStopped => ProblemKind::EngineGone,
            Symptom::Unhealthy { .. } | Symptom::NotHealthyInTime { .. } => ProblemKind::Unhealthy,
            Symptom::NetworkGone | Symptom::NetworkMissing { .. } | Symptom::NetworkRestarted { .. } => {
                ProblemKind::Disconnected
            }
        }
    }
}

/// When containers were told to stop, by origin of the request.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct Stops<'a> {
    /// Requested through the engine's API.
    pub requested: &'a StopTimes,
    /// By the engine itself when it shut down.
    pub by_engine: &'a StopTimes,
    /// The same as `requested` by the clock as it is set now, where it was set since.
    pub told: &'a BTreeMap<String, Timestamp>,
}

/// Assesses a container. `in_crash_loop`: its restart policy keeps restarting it.
pub(in crate::service) fn assess(
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
        State::Running if container.is_stopping => None,
        State::Running => lost_network(container, now),
        State::Restarting => stuck_at(container)
            .is_some_and(|at| now >= at)
            .then_some(Symptom::StuckRestarting { exit_code: container.exit_code }),
        _ => None,
    };
    symptom.map_or_else(|| assess_alone(container, stops), Condition::Failing)
}

/// Reports whether the last run of a container began after the machine was started at `boot`. Times in the future date from before
/// the clock was set back.
pub(in crate::service) fn ran_since(container: &Container, boot: Timestamp, now: Timestamp) -> bool {
    let is_past = |at: Option<Timestamp>| at.is_some_and(|at| at > boot && at <= now);
    is_past(container.started_at) && is_past(container.finished_at)
}

/// Assesses a container on its own, without regard to its history or to the container whose network it uses.
pub(in crate::service) fn assess_alone(container: &Container, stops: Stops<'_>) -> Condition {
    let exit_code = container.exit_code;
    match container.state {
        State::Running if container.is_stopping => Condition::Inactive(Inactive::Stopping),
        State::Running => match container.health {
            Some(HealthState::Unhealthy) => {
                Condition::Failing(Symptom::Unhealthy { output: container.health_output.clone() })
            }
            Some(HealthState::Unmeasured) => Condition::Unmeasured,
            Some(HealthState::Starting) => Condition::Starting,
            Some(HealthState::Healthy) | None => Condition::Healthy,
        },
        State::Restarting => Condition::Restarting,
        State::Created if container.error.is_empty() => Condition::Inactive(Inactive::Created),
        State::Created => Condition::Failing(Symptom::NotStarted { error: container.error.clone() }),
        State::Paused => Condition::Inactive(Inactive::Paused),
        State::Removing => Condition::Inactive(Inactive::Removing),
        State::Unknown => Condition::Inactive(Inactive::Unknown),
        State::Exited | State::Dead if ended_as_requested(container, stops.requested, stops.told) => {
            Condition::Inactive(Inactive::Stopped)
        }
        State::Dead => Condition::Failing(Symptom::Dead),
        State::Exited if ended_as_requested(container, stops.by_engine, &BTreeMap::new()) => {
            Condition::Failing(Symptom::EngineStopped)
        }
        // What has served was to go on. That a job has a health check proves nothing: it may be that of its image.
        State::Exited if exit_code == 0 && !container.served => Condition::Inactive(Inactive::Finished),
        // The OOM killer may have killed a child that the main process coped with.
        State::Exited if container.oom_killed && exit_code != 0 => Condition::Failing(Symptom::OutOfMemory),
        State::Exited => Condition::Failing(Symptom::Exited { exit_code }),
    }
}

/// When a container whose restart policy is to start it again counts as stuck, if it has not been started by then. The
/// engine waits up to a minute between two runs, but so long only in a crash loop.
pub(in crate::service) fn stuck_at(container: &Container) -> Option<Timestamp> {
    container.finished_at.map(|end| end + STUCK_AFTER)
}

/// Reports whether the engine runs no health check of a container: none has ended since then, in all the time that a good one
/// may take to pass. One that hangs ends with its timeout. Docker 20.10 runs none after a restart with `live-restore`, and
/// podman none without systemd.
pub(in crate::service) fn is_unprobed(container: &Container, since: Timestamp, now: Timestamp) -> bool {
    let has_no_result =
        container.state == State::Running && matches!(container.health, None | Some(HealthState::Starting));
    let is_over = |timing: HealthTiming| now.duration_since(since) >= signed(timing.budget());
    has_no_result
        && container.health_timing.is_some_and(is_over)
        && container.probed_at.is_none_or(|probed| probed < since)
}

/// Reports why a running container that uses another container's network has lost it. The engine does not detect this.
fn lost_network(container: &Container, now: Timestamp) -> Option<Symptom> {
    let owner = container.network_of.as_ref()?;
    let Some(found) = &owner.resolved else {
        return Some(if owner.is_given_by_id() {
            Symptom::NetworkGone
        } else {
            Symptom::NetworkMissing { owner: owner.id_or_name.clone() }
        });
    };
    // A start time in the future dates from before the clock was set back, and says nothing about the order of the two.
    let started = found.started_at.filter(|start| *start <= now)?;
    (found.state == State::Running && started > container.started_at?)
        .then(|| Symptom::NetworkRestarted { owner: found.name.clone() })
}

/// Reports whether the healer has no remedy for a container, and never will have: the container whose network it uses is gone
/// for good, and compose can't make this one anew.
pub(in crate::service) fn is_cut_off(container: &Container, config: &ServiceConfig) -> bool {
    let is_gone = |owner: &NetworkOwner| owner.resolved.is_none() && owner.is_given_by_id();
    container.network_of.as_ref().is_some_and(is_gone) && !config.can_recreate(container)
}

/// Whether somebody is stopping a running container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum StopProgress {
    /// Nobody is, or that is not known.
    None,
    /// It was told to stop in this run, and may still do so.
    Stopping,
    /// It was told to stop, but goes on: it has passed its health check after the time it has for a stop.
    GoesOn,
}

/// Whether the last run ended because of a stop request: one that came after its start, and not so long before its end
/// that the container must have survived it. `docker stop --time` gives it longer than its own timeout. If the end
/// precedes the start, the clock was set back during the run, and only the end can be compared.
fn ended_as_requested(container: &Container, stops: &StopTimes, told: &BTreeMap<String, Timestamp>) -> bool {
    let Some(at) = stops.get(&container.id) else { return false };
    let limit = container.stop_timeout + STOP_SLACK;
    // By a stop of this very run.
    let longest = if matches!(container.exit_code, 0 | TERMINATED) { LONGEST_STOP.max(limit) } else { limit };
    if container.started_at.zip(container.finished_at).is_some_and(|(start, end)| end < start) {
        let is_near = |at: Timestamp, limit: Duration| {
            container.finished_at.is_some_and(|end| end.duration_since(at).abs() <= signed(limit))
        };
        // By the clock as it was then, or as it was set in between.
        return is_near(*at, limit) || told.get(&container.id).is_some_and(|told| is_near(*told, longest));
    }
    let stop_took = container.finished_at.map(|end| end.duration_since(*at));
    container.started_at.is_none_or(|start| *at >= start)
        && stop_took.is_none_or(|stop_took| stop_took <= signed(longest))
}

/// When containers were told to stop, by ID.
pub type StopTimes = BTreeMap<String, Timestamp>;

pub(in crate::service) fn signed(time: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(time).unwrap_or(jiff::SignedDuration::MAX)
}

/// What is wrong with a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Trouble {
    /// As it was found.
    Symptom(Symptom),
    /// In the words of engine or compose. Earlier versions recorded everything in words.
    Words(String),
}
