//! One container that is, or was, unwell: what is said of it, when it is treated, and when that is given up.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::ServiceConfig;
use crate::model::{Container, HealthState};

use super::heal::{Condition, Findings, LOOP_WINDOW, ProblemKind};

/// What must last about one container that is, or was, unwell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartState {
    /// Restarts in a row that did not help, or not for long.
    pub failures: u32,
    /// When it was restarted last.
    pub last_restart: Option<Timestamp>,
    /// The healer gave up on it.
    pub exhausted: bool,
    /// What is wrong with it, since when, and whether that was said.
    #[serde(alias = "illness")]
    pub problem: Option<Problem>,
    /// Begin of the restart whose effect is being watched.
    pub watched_since: Option<Timestamp>,
    /// Whether its last restart is one of them.
    pub counted: bool,
    /// When it was found well after its last restart; over once it stayed so long enough (see [`proven_at`]).
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
    /// Whether it was said.
    pub said: bool,
}

/// Marks the restart of a container as begun. Written down before it is done.
pub(super) fn begin_restart(restart: &mut RestartState, now: Timestamp) {
    restart.last_restart = Some(now);
    restart.watched_since = Some(now);
    restart.counted = false;
    restart.well_since = None;
}

/// The engine refused to restart a container: that did not help either.
pub(super) fn refused(
    restart: &mut RestartState,
    config: &ServiceConfig,
    name: &str,
    why: &str,
    now: Timestamp,
) -> AuditEntry {
    restart.watched_since = None;
    restart.problem = Some(Problem { what: why.to_owned(), ended: true, since: now, said: true });
    record_failed_restart(restart, config, name, "did not help", now)
}

/// Counts the last restart as one that failed.
fn record_failed_restart(
    restart: &mut RestartState,
    config: &ServiceConfig,
    name: &str,
    how: &str,
    now: Timestamp,
) -> AuditEntry {
    restart.failures += 1;
    restart.counted = true;
    let message =
        format!("the restart of {name} {how} ({} of {})", restart.failures, config.heal_max_restarts);
    let mut entry = AuditEntry::new(now, &config.name, Kind::RESTART_FAILED, Level::Error, message);
    entry.container = Some(name.to_owned());
    entry.reason = restart.problem.as_ref().map(|problem| problem.what.clone());
    entry
}

/// When a container that is well after a restart has stayed so long enough for the restart to count as a success: it
/// lived through a cooldown, and its own health check had the time to notice a relapse.
fn proven_at(well_since: Timestamp, budget: Duration, config: &ServiceConfig) -> Timestamp {
    well_since + config.heal_cooldown.max(config.health_grace).max(LOOP_WINDOW) + budget
}

/// A person wants another try.
pub(super) fn reset_backoff(restart_states: &mut BTreeMap<String, RestartState>) {
    for restart in restart_states.values_mut() {
        restart.failures = 0;
        restart.exhausted = false;
        restart.last_restart = None;
        restart.well_since = None;
    }
}

/// When a patient is to be restarted.
pub(super) fn restart_at(restart: &RestartState, config: &ServiceConfig) -> Option<Timestamp> {
    let problem = restart.problem.as_ref().filter(|problem| problem.said)?;
    if !config.auto_heal || restart.exhausted || restart.watched_since.is_some() {
        return None;
    }
    Some(restart.last_restart.map_or(problem.since, |last| last + config.heal_cooldown))
}

/// One container, one look.
pub(super) fn reconcile(
    restart: &mut RestartState,
    container: &Container,
    condition: &Condition,
    config: &ServiceConfig,
    now: Timestamp,
    findings: &mut Findings,
) {
    let entry = |kind: Kind, level: Level, message: String| {
        let mut entry = AuditEntry::new(now, &config.name, kind, level, message);
        entry.container = Some(container.name.clone());
        entry
    };
    let name = &container.name;
    let budget = container.health_timing.map_or(config.health_grace, |timing| timing.budget());
    let proven_at = |since: Timestamp| proven_at(since, budget, config);

    if let Some(since) = restart.watched_since {
        // What is seen before the restart took effect is the old run. A busy engine takes its time for a restart; the
        // new run is judged by how long it lasts itself.
        let run = container.started_at.filter(|start| *start >= since);
        let fresh = run.is_some();
        let verdict_at = run.unwrap_or(since) + budget;
        let over = now >= verdict_at;
        let helped = match condition {
            Condition::Healthy if container.health_timing.is_some() && fresh => Some(true),
            Condition::Healthy => over.then_some(true),
            // Reconnected by the restart, and cut off once more: that is another fault, and not this container's.
            Condition::Failing { kind: ProblemKind::CutOff, .. } if fresh => Some(true),
            // Nobody knows whether it would have helped. It is not the container's fault, and waits for no cooldown.
            Condition::Failing { kind: ProblemKind::EngineGone, .. } => {
                *restart = RestartState::default();
                return reconcile(restart, container, condition, config, now, findings);
            }
            Condition::Failing { .. } if fresh || over => Some(false),
            // An agent that was restarted in between does not know whose stop it sees, and waits.
            Condition::Inactive => (fresh || over).then_some(true),
            Condition::Starting | Condition::Failing { .. } => over.then_some(false),
        };
        match helped {
            None => {
                later(&mut findings.inspect_at, verdict_at.max(now + Duration::from_secs(1)));
                return;
            }
            Some(true) => {
                let well = matches!(condition, Condition::Healthy);
                *restart = RestartState {
                    failures: restart.failures,
                    last_restart: restart.last_restart,
                    well_since: Some(now),
                    ..RestartState::default()
                };
                if well {
                    findings.entries.push(entry(
                        Kind::RESTARTED,
                        Level::Info,
                        format!("the restart of {name} helped; it is well again"),
                    ));
                }
            }
            Some(false) => {
                findings.failures += 1;
                let what = match condition {
                    Condition::Failing { what, .. } => what.clone(),
                    _ => with_health_output("not healthy within its own health-check time", container),
                };
                findings.entries.push(refused(restart, config, name, &what, now));
            }
        }
    } else {
        let proven = restart.well_since.is_some_and(|since| now >= proven_at(since));
        if proven && restart.problem.is_none() {
            *restart = RestartState { last_restart: restart.last_restart, ..RestartState::default() };
        }
        match condition {
            Condition::Failing { what, kind, settle } => {
                let ended = matches!(kind, ProblemKind::Down | ProblemKind::EngineGone);
                let problem = restart.problem.get_or_insert_with(|| Problem {
                    what: what.clone(),
                    ended,
                    since: now,
                    said: false,
                });
                if !problem.said && problem.what != *what {
                    problem.what.clone_from(what);
                    problem.ended = ended;
                }
                let said_at = problem.since + *settle;
                if !problem.said && now < said_at {
                    later(&mut findings.inspect_at, said_at);
                } else if !problem.said {
                    problem.said = true;
                    let (event, verb) =
                        if ended { (Kind::DIED, "is down") } else { (Kind::UNHEALTHY, "is unhealthy") };
                    let mut said = entry(event, Level::Warning, format!("container {name} {verb}"));
                    said.reason = Some(what.clone());
                    findings.entries.push(said);
                    // The network and the engine are not its own.
                    let own = matches!(kind, ProblemKind::Down | ProblemKind::Unhealthy);
                    let soon = restart.well_since.is_some_and(|since| now < proven_at(since));
                    if own && soon && !restart.counted {
                        findings.failures += 1;
                        let how = "did not help for long";
                        findings.entries.push(record_failed_restart(restart, config, name, how, now));
                    }
                }
            }
            Condition::Healthy => {
                let since = container.started_at.unwrap_or(now);
                // Without a health check only time tells that it is well again.
                let proven =
                    container.health == Some(HealthState::Healthy) || now >= since + config.health_grace;
                let said = restart.problem.as_ref().is_some_and(|problem| problem.said);
                if !said {
                    restart.problem = None;
                } else if proven {
                    findings.entries.push(entry(
                        Kind::HEALTHY,
                        Level::Info,
                        format!("container {name} is well again"),
                    ));
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
            Condition::Inactive => *restart = RestartState::default(),
            Condition::Starting => {}
        }
    }

    let ill = restart.problem.as_ref().is_some_and(|problem| problem.said) && restart.watched_since.is_none();
    if ill && config.auto_heal && !restart.exhausted && restart.failures >= config.heal_max_restarts {
        restart.exhausted = true;
        let message = format!(
            "gave up on container {name} after {} restarts that did not help; someone must look at it",
            restart.failures
        );
        let mut said = entry(Kind::EXHAUSTED, Level::Critical, message);
        said.reason = restart.problem.as_ref().map(|problem| problem.what.clone());
        findings.entries.push(said);
    }
    if let Some(since) = restart.well_since.filter(|_| restart.problem.is_none()) {
        later(&mut findings.inspect_at, proven_at(since));
    }
    // A cooldown that is over, and nothing else, is worth forgetting.
    if restart.problem.is_none() && restart.watched_since.is_none() && restart.well_since.is_none() {
        let cooling = restart.last_restart.is_some_and(|last| last + config.heal_cooldown > now);
        if !cooling {
            *restart = RestartState::default();
        }
    }
}

/// What is wrong, and what its last health check said.
pub(super) fn with_health_output(what: &str, container: &Container) -> String {
    match container.health_output.as_str() {
        "" => what.to_owned(),
        output => format!("{what}: {output}"),
    }
}

pub(super) fn later(slot: &mut Option<Timestamp>, at: Timestamp) {
    *slot = Some(slot.map_or(at, |old| old.min(at)));
}

pub(super) fn signed(time: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(time).unwrap_or(jiff::SignedDuration::MAX)
}
