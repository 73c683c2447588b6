//! The restart history of a container: when it is restarted, whether the restart helped, and when the healer gives up.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::ServiceConfig;
use crate::model::{Container, HealthState, State};
use crate::service::event::{Event, NoRemedy, Note};
use crate::service::health::assess::{Condition, ProblemKind, Symptom, Trouble, is_cut_off};

/// Restarts within this time are one loop (`healer.rs`).
pub(in crate::service) const LOOP_WINDOW: Duration = Duration::from_mins(1);
/// The same for a container that runs for a while each time. The engine waits longer and longer before a restart only if
/// the runs are shorter than 10 s.
pub(in crate::service) const SLOW_LOOP_WINDOW: Duration = Duration::from_mins(10);

/// A process that exited counts as down only after this delay: the event of a requested stop may not have arrived yet,
/// and the engine may be about to restart it (DOMAIN 4.3).
pub(in crate::service) const SETTLE_END: Duration = Duration::from_secs(2);
/// The engine reports a stop only after it has sent the signal, and a container that drains may fail a probe before that. Counts
/// from the beginning of the probe.
const SETTLE_UNHEALTHY: Duration = Duration::from_secs(1);
/// After a restart the engine restarts containers itself; the healer handles the rest after this delay.
pub(in crate::service) const SETTLE_ENGINE: Duration = Duration::from_secs(6);
/// Whoever restarts a container may be about to restart the containers that use its network.
pub(in crate::service) const SETTLE_DISCONNECTED: Duration = Duration::from_secs(10);

/// The restart history of a container that is or was failing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartState {
    /// Consecutive restarts that did not help, or not for long.
    pub failures: u32,
    /// Time of the last restart.
    pub last_restart: Option<Timestamp>,
    /// The same by the clock as it was set then, for comparison with times of the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarted: Option<Timestamp>,
    /// The healer gave up on the container, which has not stayed healthy for long enough since (see [`proven_at`]).
    pub exhausted: bool,
    /// The current problem.
    #[serde(alias = "illness")]
    pub problem: Option<Problem>,
    /// Start of the restart whose effect is being watched.
    pub watched_since: Option<Timestamp>,
    /// Whether the last restart is counted in `failures`.
    pub counted: bool,
    /// When it was first healthy after its last restart, or after the healer gave up; cleared once it has stayed healthy long
    /// enough (see [`proven_at`]).
    pub well_since: Option<Timestamp>,
    /// When it was last reported as healthy after its health check had failed. One that fails again within a cooldown is not
    /// reported once more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told_at: Option<Timestamp>,
}

impl RestartState {
    /// Whether the problem is that it has served and then ended with code 0. It is no job because its next run has not come so
    /// far.
    pub(in crate::service) fn has_ended_its_service(&self) -> bool {
        let what = Trouble::Symptom(Symptom::Exited { exit_code: 0 });
        self.problem.as_ref().is_some_and(|problem| problem.what == what)
    }

    /// Whether the container has no known problem, and no restart is being watched.
    pub(in crate::service) fn has_no_known_problem(&self) -> bool {
        self.problem.is_none() && self.watched_since.is_none()
    }

    /// The times of the last restart and of the last report, and nothing else.
    fn only_time(&self) -> Self {
        let (last_restart, restarted, told_at) = (self.last_restart, self.restarted, self.told_at);
        Self { last_restart, restarted, told_at, ..Self::default() }
    }

    /// Whether it is certain that its process has ended although nobody has stopped it. It may have been started since.
    pub(in crate::service) fn has_ended(&self) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.said && problem.ended)
    }

    /// Whether the healer gave up on the container, which is not healthy.
    pub(in crate::service) fn is_given_up(&self) -> bool {
        self.exhausted && self.problem.is_some()
    }

    /// Whether the healer is working on the container.
    pub fn is_being_healed(&self) -> bool {
        let is_reported = self.problem.as_ref().is_some_and(|problem| problem.said);
        !self.exhausted && (is_reported || self.watched_since.is_some())
    }
}

/// A problem of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong.
    pub what: Trouble,
    /// Whether its process ended (otherwise: it runs and is unhealthy).
    pub ended: bool,
    /// Since when.
    pub since: Timestamp,
    /// Whether it is certain: it is healed.
    pub said: bool,
    /// Whether it is certain, and not reported, because the container was reported as healthy not long ago.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub muted: bool,
}

/// Marks the restart of a container as begun. Journaled before the restart.
pub(in crate::service) fn begin_restart(restart: &mut RestartState, now: Timestamp) {
    (restart.last_restart, restart.restarted) = (Some(now), Some(now));
    restart.watched_since = Some(now);
    restart.counted = false;
    restart.well_since = None;
}

/// Records a restart that did not help or failed. `problem`: the current problem, and whether the process has ended.
pub(in crate::service) fn restart_failed(
    restart: &mut RestartState,
    config: &ServiceConfig,
    container: &str,
    problem: (Trouble, bool),
    now: Timestamp,
) -> Event {
    let (what, ended) = problem;
    restart.watched_since = None;
    restart.problem = Some(Problem { what, ended, since: now, said: true, muted: false });
    record_failed_restart(restart, config, container, false)
}

/// Counts the last restart as failed. `relapsed`: it had helped for a while.
fn record_failed_restart(
    restart: &mut RestartState,
    config: &ServiceConfig,
    container: &str,
    relapsed: bool,
) -> Event {
    restart.failures += 1;
    restart.counted = true;
    Event::RestartFailed {
        container: container.to_owned(),
        failures: restart.failures,
        limit: config.heal_max_restarts,
        relapsed,
        problem: restart.problem.as_ref().map(|problem| problem.what.clone()),
    }
}

/// When a container has been healthy long enough after a restart for it to count as a success: a cooldown has passed, and
/// the container's health check had enough time to detect a relapse.
fn proven_at(well_since: Timestamp, budget: Duration, config: &ServiceConfig) -> Timestamp {
    well_since + config.heal_cooldown.max(config.health_grace).max(LOOP_WINDOW) + budget
}

/// Resets the restart limits after a manual action.
pub(in crate::service) fn reset_backoff(restart_states: &mut BTreeMap<String, RestartState>) {
    for restart in restart_states.values_mut() {
        restart.failures = 0;
        restart.exhausted = false;
        // A restart in progress is not followed immediately by another one.
        if restart.watched_since.is_none() {
            (restart.last_restart, restart.restarted) = (None, None);
        }
        restart.well_since = None;
    }
}

/// When a container is due for a restart, if at all.
pub(in crate::service) fn restart_at(restart: &RestartState, config: &ServiceConfig) -> Option<Timestamp> {
    let problem = restart.problem.as_ref().filter(|problem| problem.said)?;
    if !config.auto_heal || restart.exhausted || restart.watched_since.is_some() {
        return None;
    }
    Some(restart.last_restart.map_or(problem.since, |last| last + config.heal_cooldown))
}

/// A container as of one inspection.
#[derive(Clone, Copy)]
pub(in crate::service) struct Look<'a> {
    pub container: &'a Container,
    pub condition: &'a Condition,
    pub config: &'a ServiceConfig,
    /// When the agent was started; `None` if no events from before the start are expected.
    pub listening_since: Option<Timestamp>,
    pub now: Timestamp,
}

impl Look<'_> {
    /// Updates the restart history with the container's current condition: new events, the effect of a restart, giving up.
    pub(in crate::service) fn reconcile(self, restart: &mut RestartState, findings: &mut Findings) {
        let Look { container, condition, config, now, .. } = self;
        // The engine stopped the container during a watched restart, so the effect of that is unknown. This is not the
        // container's fault, and there is no cooldown.
        if restart.watched_since.is_some()
            && matches!(condition, Condition::Failing(symptom) if symptom.kind() == ProblemKind::EngineGone)
        {
            *restart = RestartState::default();
        }
        if let Some(since) = restart.watched_since {
            if !self.judge_restart(restart, since, findings) {
                return;
            }
        } else {
            let proven = restart.well_since.is_some_and(|since| now >= self.proven_at(since));
            if proven && restart.problem.is_none() {
                *restart = restart.only_time();
            }
            match condition {
                Condition::Failing(symptom) => self.note_problem(restart, symptom, findings),
                Condition::Healthy => self.note_healthy(restart, findings),
                Condition::Inactive(_) => *restart = RestartState::default(),
                // The engine does not report that it runs no health check.
                Condition::Starting => self.look_after_budget(findings),
                Condition::Unmeasured | Condition::Restarting => {}
            }
        }

        let is_unhealthy =
            restart.problem.as_ref().is_some_and(|problem| problem.said) && restart.watched_since.is_none();
        if is_unhealthy
            && config.auto_heal
            && !restart.exhausted
            && restart.failures >= config.heal_max_restarts
        {
            restart.exhausted = true;
            findings.events.push(Event::Exhausted {
                container: container.name.clone(),
                failures: restart.failures,
                problem: restart.problem.as_ref().map(|problem| problem.what.clone()),
            });
        }
        if let Some(since) = restart.well_since.filter(|_| restart.problem.is_none()) {
            not_later(&mut findings.inspect_at, self.proven_at(since));
        }
        // Drop a history that contains only an expired cooldown.
        if restart.problem.is_none() && restart.watched_since.is_none() && restart.well_since.is_none() {
            let is_recent = |at: Option<Timestamp>| at.is_some_and(|at| at + config.heal_cooldown > now);
            if !is_recent(restart.last_restart) && !is_recent(restart.told_at) {
                *restart = RestartState::default();
            }
        }
    }

    /// Time allowed for the container to become healthy.
    fn budget(&self) -> Duration {
        self.container.health_timing.map_or(self.config.health_grace, |timing| timing.budget())
    }

    /// Has a container inspected once its health check has had the time to pass.
    fn look_after_budget(&self, findings: &mut Findings) {
        let at = self.started_at().map(|run| run + self.budget()).filter(|at| *at > self.now);
        if let Some(at) = at {
            not_later(&mut findings.inspect_at, at);
        }
    }

    /// When the container's run began. Ignores a time in the future, which dates from before the clock was set back.
    fn started_at(&self) -> Option<Timestamp> {
        self.container.started_at.filter(|start| *start <= self.now)
    }

    /// Whether stop requests from before the start of the agent have been replayed.
    fn has_replayed_stops(&self) -> bool {
        self.listening_since.is_none_or(|since| self.now >= since + settle_time(ProblemKind::Down))
    }

    /// If the engine has restarted it since, it has to prove itself once more.
    fn proven_at(&self, well_since: Timestamp) -> Timestamp {
        let restarted_at = self.started_at().filter(|_| self.container.restart_count > 0);
        proven_at(restarted_at.map_or(well_since, |at| at.max(well_since)), self.budget(), self.config)
    }

    /// Evaluates a restart; returns whether it was decided.
    fn judge_restart(&self, restart: &mut RestartState, since: Timestamp, findings: &mut Findings) -> bool {
        let Look { container, condition, config, now, .. } = *self;
        // Before the restart takes effect, the old run is seen. A busy engine may take long for a restart; the time
        // budget of the new run begins with that run.
        let run = self.started_at().filter(|start| *start >= since);
        let is_fresh = run.is_some();
        let decided_at = run.unwrap_or(since) + self.budget();
        let is_over = now >= decided_at;
        let helped = match condition {
            Condition::Healthy if container.health_timing.is_some() && is_fresh => Some(true),
            Condition::Healthy => is_over.then_some(true),
            // The restart reconnected it, and its network is gone again: a separate fault, not caused by this container.
            Condition::Failing(symptom) if symptom.kind() == ProblemKind::Disconnected && is_fresh => {
                Some(true)
            }
            // After a start of the agent, the event of a requested stop may be replayed with a short delay.
            Condition::Failing(_) if container.state == State::Exited && !self.has_replayed_stops() => None,
            Condition::Failing(_) if is_fresh || is_over => Some(false),
            // If the agent was restarted in between, the origin of the stop may still be unknown: wait.
            Condition::Inactive(_) => (is_fresh || is_over).then_some(true),
            Condition::Starting | Condition::Restarting | Condition::Failing(_) => is_over.then_some(false),
            // Nothing is known until the next probe.
            Condition::Unmeasured => None,
        };
        match helped {
            None => not_later(&mut findings.inspect_at, decided_at.max(now + Duration::from_secs(1))),
            Some(true) => {
                *restart =
                    RestartState { failures: restart.failures, well_since: Some(now), ..restart.only_time() };
                if *condition == Condition::Healthy {
                    findings.events.push(Event::Restarted { container: container.name.clone() });
                }
            }
            Some(false) => {
                let symptom = if let Condition::Failing(symptom) = condition {
                    symptom.clone()
                } else {
                    Symptom::NotHealthyInTime { output: container.health_output.clone() }
                };
                let problem = (Trouble::Symptom(symptom), container.state != State::Running);
                findings.events.push(restart_failed(restart, config, &container.name, problem, now));
            }
        }
        helped.is_some()
    }

    /// Records a problem; reported once it has lasted for [`settle_time`].
    fn note_problem(&self, restart: &mut RestartState, symptom: &Symptom, findings: &mut Findings) {
        let (container, now) = (&self.container.name, self.now);
        let (what, kind) = (Trouble::Symptom(symptom.clone()), symptom.kind());
        // It was unhealthy, and has now exited. As with every exit, the event of a stop request may arrive later: a starting
        // agent sees the containers before the events from before its start are replayed.
        let ended = matches!(kind, ProblemKind::Down | ProblemKind::EngineGone);
        if ended && restart.problem.as_ref().is_some_and(|problem| !problem.ended) {
            restart.problem = None;
        }
        let problem = restart.problem.get_or_insert_with(|| Problem {
            what: what.clone(),
            ended,
            since: now,
            said: false,
            muted: false,
        });
        let is_flapping = kind == ProblemKind::Unhealthy;
        // Nothing else tells of one that the healer has given up on.
        let cooldown = self.config.heal_cooldown;
        let quiet = if restart.exhausted { cooldown.min(LOOP_WINDOW) } else { cooldown };
        let quiet_until = restart.told_at.filter(|_| is_flapping).map(|at| at + quiet);
        let quiet_until = quiet_until.filter(|until| now < *until);
        if problem.said {
            if problem.muted {
                self.tell(problem, quiet_until, findings);
            }
            return;
        }
        (problem.what, problem.ended) = (what, ended);
        let listening_since = self.listening_since.filter(|_| ended).unwrap_or(problem.since);
        let report_at = match (kind, self.container.probed_at) {
            (ProblemKind::Unhealthy, Some(probed)) => probed.min(problem.since) + SETTLE_UNHEALTHY,
            _ => problem.since.max(listening_since) + settle_time(kind),
        };
        if now < report_at {
            return not_later(&mut findings.inspect_at, report_at);
        }
        problem.said = true;
        self.tell(problem, quiet_until, findings);
        // Network and engine problems are not caused by the container.
        let is_own = matches!(kind, ProblemKind::Down | ProblemKind::Unhealthy);
        let is_relapse = restart.well_since.is_some_and(|since| now < self.proven_at(since));
        if is_own && is_relapse && !restart.counted && !restart.exhausted {
            findings.events.push(record_failed_restart(restart, self.config, container, true));
        }
    }

    /// Reports a problem, unless nothing is to be said before some time.
    fn tell(&self, problem: &mut Problem, quiet_until: Option<Timestamp>, findings: &mut Findings) {
        problem.muted = quiet_until.is_some();
        if let Some(until) = quiet_until {
            return not_later(&mut findings.inspect_at, until);
        }
        findings.events.push(Event::Unhealthy {
            container: self.container.name.clone(),
            ended: problem.ended,
            problem: problem.what.clone(),
            no_remedy: is_cut_off(self.container, self.config).then_some(NoRemedy::CutOff),
        });
    }

    /// Records that the container is healthy; reported once that is certain, if a problem was reported before.
    fn note_healthy(&self, restart: &mut RestartState, findings: &mut Findings) {
        let Look { container, config, now, .. } = *self;
        let seen_since = restart.problem.as_ref().map(|problem| problem.since);
        let since = self.started_at().or(seen_since).unwrap_or(now);
        // Without a health check, it must have run for the grace period.
        let is_certain = container.health == Some(HealthState::Healthy) || now >= since + config.health_grace;
        let was_reported = restart.problem.as_ref().is_some_and(|problem| problem.said);
        if !was_reported {
            restart.problem = None;
        } else if is_certain {
            if let Some(problem) = restart.problem.take().filter(|problem| !problem.muted) {
                findings.events.push(Event::Healthy { container: container.name.clone() });
                restart.told_at = Some(now).filter(|_| !problem.ended);
            }
            restart.well_since = Some(now).filter(|_| restart.exhausted || restart.last_restart.is_some());
        } else {
            not_later(&mut findings.inspect_at, since + config.health_grace);
        }
    }
}

/// Sets a deadline to `at` unless it is already earlier.
pub(in crate::service) fn not_later(slot: &mut Option<Timestamp>, at: Timestamp) {
    *slot = Some(slot.map_or(at, |old| old.min(at)));
}

/// The result of an inspection.
#[derive(Debug, Default)]
pub(in crate::service) struct Findings {
    /// New events.
    pub events: Vec<Event>,
    /// New log lines.
    pub notes: Vec<Note>,
    /// When to inspect again if no event arrives.
    pub inspect_at: Option<Timestamp>,
}

/// How long a problem of this kind must last before it is reported, because it may resolve itself.
pub(in crate::service) fn settle_time(kind: ProblemKind) -> Duration {
    match kind {
        ProblemKind::Down => SETTLE_END,
        ProblemKind::Unhealthy => Duration::ZERO,
        ProblemKind::Disconnected => SETTLE_DISCONNECTED,
        ProblemKind::EngineGone => SETTLE_ENGINE,
    }
}
