//! The restart history of a container: when it is restarted, whether that helped, and when the healer gives up.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::ServiceConfig;
use crate::model::{Container, HealthState, State};

use super::assess::{Condition, ProblemKind, Symptom};
use super::event::Event;
use super::heal::{Findings, LOOP_WINDOW, settle_time};
use super::wording;

/// The restart history of a container that is failing, or was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartState {
    /// Restarts in a row that did not help, or not for long.
    pub failures: u32,
    /// When it was restarted last.
    pub last_restart: Option<Timestamp>,
    /// The healer gave up on it.
    pub exhausted: bool,
    /// What is wrong with it, since when, and whether that was reported.
    #[serde(alias = "illness")]
    pub problem: Option<Problem>,
    /// Begin of the restart whose effect is being watched.
    pub watched_since: Option<Timestamp>,
    /// Whether its last restart is one of them.
    pub counted: bool,
    /// When it was first healthy after its last restart; cleared once it stayed so long enough (see [`proven_at`]).
    pub well_since: Option<Timestamp>,
}

impl RestartState {
    /// Whether nothing is known to be wrong with it.
    pub(super) fn has_no_known_problem(&self) -> bool {
        self.problem.is_none() && self.watched_since.is_none()
    }

    /// Whether the healer is at work on it.
    pub fn is_being_healed(&self) -> bool {
        let ill = self.problem.as_ref().is_some_and(|problem| problem.said);
        !self.exhausted && (ill || self.watched_since.is_some())
    }
}

/// What is wrong with a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// In words, as it goes into an entry's reason.
    pub what: String,
    /// Whether its process ended (else: it runs and is unhealthy).
    pub ended: bool,
    /// Since when.
    pub since: Timestamp,
    /// Whether it was reported.
    pub said: bool,
}

/// Marks the restart of a container as begun. Written down before it is done.
pub(super) fn begin_restart(restart: &mut RestartState, now: Timestamp) {
    restart.last_restart = Some(now);
    restart.watched_since = Some(now);
    restart.counted = false;
    restart.well_since = None;
}

/// A restart did not help, or could not be made. `problem`: what is wrong now, and whether the process has ended.
pub(super) fn restart_failed(
    restart: &mut RestartState,
    config: &ServiceConfig,
    container: &str,
    problem: (&str, bool),
    now: Timestamp,
) -> Event {
    let (what, ended) = problem;
    restart.watched_since = None;
    restart.problem = Some(Problem { what: what.to_owned(), ended, since: now, said: true });
    record_failed_restart(restart, config, container, false)
}

/// Counts the last restart as one that failed. `relapsed`: it had helped for a while.
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

/// When a container that is healthy after a restart has stayed so long enough for the restart to count as a success:
/// a cooldown has passed, and its own health check had the time to notice a relapse.
fn proven_at(well_since: Timestamp, budget: Duration, config: &ServiceConfig) -> Timestamp {
    well_since + config.heal_cooldown.max(config.health_grace).max(LOOP_WINDOW) + budget
}

/// A person acted: the restart limits begin again.
pub(super) fn reset_backoff(restart_states: &mut BTreeMap<String, RestartState>) {
    for restart in restart_states.values_mut() {
        restart.failures = 0;
        restart.exhausted = false;
        // A restart that is under way is not followed by another at once.
        if restart.watched_since.is_none() {
            restart.last_restart = None;
        }
        restart.well_since = None;
    }
}

/// When a container is to be restarted.
pub(super) fn restart_at(restart: &RestartState, config: &ServiceConfig) -> Option<Timestamp> {
    let problem = restart.problem.as_ref().filter(|problem| problem.said)?;
    if !config.auto_heal || restart.exhausted || restart.watched_since.is_some() {
        return None;
    }
    Some(restart.last_restart.map_or(problem.since, |last| last + config.heal_cooldown))
}

/// A container, as one inspection shows it.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub container: &'a Container,
    pub condition: &'a Condition,
    pub config: &'a ServiceConfig,
    /// When the agent was started; `None` where it ran all the time that it knows of.
    pub listening_since: Option<Timestamp>,
    pub now: Timestamp,
}

impl Look<'_> {
    /// Takes in how a container is doing now: what is news, what is to be watched, and when to give up.
    pub(super) fn reconcile(self, restart: &mut RestartState, findings: &mut Findings) {
        let Look { container, condition, config, now, .. } = self;
        // Nobody knows whether a restart would have helped. It is not the container's fault, and waits for no cooldown.
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
                *restart = RestartState { last_restart: restart.last_restart, ..RestartState::default() };
            }
            match condition {
                Condition::Failing(symptom) => self.note_problem(restart, symptom, findings),
                Condition::Healthy => self.note_healthy(restart, findings),
                Condition::Inactive(_) => *restart = RestartState::default(),
                Condition::Starting | Condition::Restarting => {}
            }
        }

        let is_unwell =
            restart.problem.as_ref().is_some_and(|problem| problem.said) && restart.watched_since.is_none();
        if is_unwell && config.auto_heal && !restart.exhausted && restart.failures >= config.heal_max_restarts
        {
            restart.exhausted = true;
            findings.events.push(Event::Exhausted {
                container: container.name.clone(),
                failures: restart.failures,
                problem: restart.problem.as_ref().map(|problem| problem.what.clone()),
            });
        }
        if let Some(since) = restart.well_since.filter(|_| restart.problem.is_none()) {
            later(&mut findings.inspect_at, self.proven_at(since));
        }
        // A cooldown that is over, and nothing else, is worth forgetting.
        if restart.problem.is_none() && restart.watched_since.is_none() && restart.well_since.is_none() {
            let cooling = restart.last_restart.is_some_and(|last| last + config.heal_cooldown > now);
            if !cooling {
                *restart = RestartState::default();
            }
        }
    }

    /// Time that it gets to show that it is healthy.
    fn budget(&self) -> Duration {
        self.container.health_timing.map_or(self.config.health_grace, |timing| timing.budget())
    }

    /// When its run began. A begin in the future was before the clock was set back, and says nothing.
    fn started_at(&self) -> Option<Timestamp> {
        self.container.started_at.filter(|start| *start <= self.now)
    }

    /// Whether an agent that was started has heard of the stops that were asked for before.
    fn has_heard(&self) -> bool {
        self.listening_since.is_none_or(|since| self.now >= since + settle_time(ProblemKind::Down))
    }

    fn proven_at(&self, well_since: Timestamp) -> Timestamp {
        proven_at(well_since, self.budget(), self.config)
    }

    /// Records whether a restart helped. `false` while that can't be said yet.
    fn judge_restart(&self, restart: &mut RestartState, since: Timestamp, findings: &mut Findings) -> bool {
        let Look { container, condition, config, now, .. } = *self;
        // What is seen before the restart took effect is the old run. A busy engine takes its time for a restart; the
        // new run is judged by how long it lasts itself.
        let run = self.started_at().filter(|start| *start >= since);
        let is_fresh = run.is_some();
        let decided_at = run.unwrap_or(since) + self.budget();
        let is_over = now >= decided_at;
        let helped = match condition {
            Condition::Healthy if container.health_timing.is_some() && is_fresh => Some(true),
            Condition::Healthy => is_over.then_some(true),
            // Reconnected by the restart, and cut off once more: that is another fault, and not this container's.
            Condition::Failing(symptom) if symptom.kind() == ProblemKind::CutOff && is_fresh => Some(true),
            // A stop that a person asked for may be told again only a moment after a start of the agent.
            Condition::Failing(_) if container.state == State::Exited && !self.has_heard() => None,
            Condition::Failing(_) if is_fresh || is_over => Some(false),
            // An agent that was restarted in between does not know whose stop it sees, and waits.
            Condition::Inactive(_) => (is_fresh || is_over).then_some(true),
            Condition::Starting | Condition::Restarting | Condition::Failing(_) => is_over.then_some(false),
        };
        match helped {
            None => later(&mut findings.inspect_at, decided_at.max(now + Duration::from_secs(1))),
            Some(true) => {
                *restart = RestartState {
                    failures: restart.failures,
                    last_restart: restart.last_restart,
                    well_since: Some(now),
                    ..RestartState::default()
                };
                if *condition == Condition::Healthy {
                    findings.events.push(Event::Restarted { container: container.name.clone() });
                }
            }
            Some(false) => {
                let problem = if let Condition::Failing(symptom) = condition {
                    wording::symptom(symptom)
                } else {
                    let output = container.health_output.clone();
                    wording::symptom(&Symptom::NotHealthyInTime { output })
                };
                let problem = (problem.as_str(), container.state != State::Running);
                findings.events.push(restart_failed(restart, config, &container.name, problem, now));
            }
        }
        helped.is_some()
    }

    /// Something is wrong with it: reported once it has lasted.
    fn note_problem(&self, restart: &mut RestartState, symptom: &Symptom, findings: &mut Findings) {
        let (container, now) = (&self.container.name, self.now);
        let (what, kind) = (wording::symptom(symptom), symptom.kind());
        // It was unwell, and now it has ended. As with every end it may be told a moment later that a person asked for it:
        // an agent that starts sees containers before it hears what happened while it was away.
        let ended = matches!(kind, ProblemKind::Down | ProblemKind::EngineGone);
        if ended && restart.problem.as_ref().is_some_and(|problem| !problem.ended) {
            restart.problem = None;
        }
        let problem = restart.problem.get_or_insert_with(|| Problem {
            what: what.clone(),
            ended,
            since: now,
            said: false,
        });
        if problem.said {
            return;
        }
        (problem.what, problem.ended) = (what.clone(), ended);
        let heard_since = self.listening_since.filter(|_| ended).unwrap_or(problem.since);
        let said_at = problem.since.max(heard_since) + settle_time(kind);
        if now < said_at {
            return later(&mut findings.inspect_at, said_at);
        }
        problem.said = true;
        findings.events.push(Event::Unwell { container: container.clone(), ended, problem: what });
        // The network and the engine are not its own.
        let is_own = matches!(kind, ProblemKind::Down | ProblemKind::Unhealthy);
        let is_relapse = restart.well_since.is_some_and(|since| now < self.proven_at(since));
        if is_own && is_relapse && !restart.counted {
            findings.events.push(record_failed_restart(restart, self.config, container, true));
        }
    }

    /// It is healthy: reported once that is certain, if a problem was reported before.
    fn note_healthy(&self, restart: &mut RestartState, findings: &mut Findings) {
        let Look { container, config, now, .. } = *self;
        let seen_since = restart.problem.as_ref().map(|problem| problem.since);
        let since = self.started_at().or(seen_since).unwrap_or(now);
        // Without a health check only time tells.
        let is_certain = container.health == Some(HealthState::Healthy) || now >= since + config.health_grace;
        let was_told = restart.problem.as_ref().is_some_and(|problem| problem.said);
        if !was_told {
            restart.problem = None;
        } else if is_certain {
            findings.events.push(Event::Healthy { container: container.name.clone() });
            let last_restart = restart.last_restart;
            *restart = if restart.exhausted {
                RestartState { last_restart, ..RestartState::default() }
            } else {
                let well_since = last_restart.map(|_| now);
                RestartState { problem: None, well_since, ..restart.clone() }
            };
        } else {
            later(&mut findings.inspect_at, since + config.health_grace);
        }
    }
}

pub(super) fn later(slot: &mut Option<Timestamp>, at: Timestamp) {
    *slot = Some(slot.map_or(at, |old| old.min(at)));
}

pub(super) fn signed(time: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(time).unwrap_or(jiff::SignedDuration::MAX)
}
