//! One container that is, or was, unwell: what is said of it, when it is treated, and when that is given up.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::ServiceConfig;
use crate::ports::{Container, HealthState};

use super::heal::{Ailment, Condition, Findings, LOOP_WINDOW};

/// What must last about one container that is, or was, unwell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Patient {
    /// Restarts in a row that did not help, or not for long.
    pub failures: u32,
    /// When it was restarted last.
    pub last_restart: Option<Timestamp>,
    /// The healer gave up on it.
    pub exhausted: bool,
    /// What is wrong with it, since when, and whether that was said.
    pub illness: Option<Illness>,
    /// Begin of the restart whose effect is being watched.
    pub watched_since: Option<Timestamp>,
    /// Whether its last restart is one of them.
    pub counted: bool,
    /// When it was found well after its last restart; over once it stayed so long enough (see [`proven_at`]).
    pub well_since: Option<Timestamp>,
}

impl Patient {
    /// Whether nothing is known to be wrong with it.
    pub(super) fn is_unsuspected(&self) -> bool {
        self.illness.is_none() && self.watched_since.is_none()
    }

    /// Whether the healer is at work on it.
    pub fn is_in_treatment(&self) -> bool {
        let ill = self.illness.as_ref().is_some_and(|illness| illness.said);
        !self.exhausted && (ill || self.watched_since.is_some())
    }
}

/// What is wrong with a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Illness {
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
pub(super) fn begin_restart(patient: &mut Patient, now: Timestamp) {
    patient.last_restart = Some(now);
    patient.watched_since = Some(now);
    patient.counted = false;
    patient.well_since = None;
}

/// The engine refused to restart a container: that did not help either.
pub(super) fn refused(
    patient: &mut Patient,
    config: &ServiceConfig,
    name: &str,
    why: &str,
    now: Timestamp,
) -> AuditEntry {
    patient.watched_since = None;
    patient.illness = Some(Illness { what: why.to_owned(), ended: true, since: now, said: true });
    in_vain(patient, config, name, "did not help", now)
}

/// Counts the last restart as one that failed.
fn in_vain(
    patient: &mut Patient,
    config: &ServiceConfig,
    name: &str,
    how: &str,
    now: Timestamp,
) -> AuditEntry {
    patient.failures += 1;
    patient.counted = true;
    let message =
        format!("the restart of {name} {how} ({} of {})", patient.failures, config.heal_max_restarts);
    let mut entry = AuditEntry::new(now, &config.name, Kind::RESTART_FAILED, Level::Error, message);
    entry.container = Some(name.to_owned());
    entry.reason = patient.illness.as_ref().map(|illness| illness.what.clone());
    entry
}

/// When a container that is well after a restart has stayed so long enough for the restart to count as a success: it
/// lived through a cooldown, and its own health check had the time to notice a relapse.
fn proven_at(well_since: Timestamp, budget: Duration, config: &ServiceConfig) -> Timestamp {
    well_since + config.heal_cooldown.max(config.health_grace).max(LOOP_WINDOW) + budget
}

/// A person wants another try.
pub(super) fn forgive(patients: &mut BTreeMap<String, Patient>) {
    for patient in patients.values_mut() {
        patient.failures = 0;
        patient.exhausted = false;
        patient.last_restart = None;
        patient.well_since = None;
    }
}

/// When a patient is to be restarted.
pub(super) fn restart_at(patient: &Patient, config: &ServiceConfig) -> Option<Timestamp> {
    let illness = patient.illness.as_ref().filter(|illness| illness.said)?;
    if !config.auto_heal || patient.exhausted || patient.watched_since.is_some() {
        return None;
    }
    Some(patient.last_restart.map_or(illness.since, |last| last + config.heal_cooldown))
}

/// One container, one look.
pub(super) fn visit(
    patient: &mut Patient,
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

    if let Some(since) = patient.watched_since {
        // What is seen before the restart took effect is the old run. A busy engine takes its time for a restart; the
        // new run is judged by how long it lasts itself.
        let run = container.started_at.filter(|start| *start >= since);
        let fresh = run.is_some();
        let verdict_at = run.unwrap_or(since) + budget;
        let over = now >= verdict_at;
        let helped = match condition {
            Condition::Well if container.health_timing.is_some() && fresh => Some(true),
            Condition::Well => over.then_some(true),
            // Reconnected by the restart, and cut off once more: that is another fault, and not this container's.
            Condition::Ill { ailment: Ailment::CutOff, .. } if fresh => Some(true),
            // Nobody knows whether it would have helped. It is not the container's fault, and waits for no cooldown.
            Condition::Ill { ailment: Ailment::EngineGone, .. } => {
                *patient = Patient::default();
                return visit(patient, container, condition, config, now, findings);
            }
            Condition::Ill { .. } if fresh || over => Some(false),
            // An agent that was restarted in between does not know whose stop it sees, and waits.
            Condition::Resting => (fresh || over).then_some(true),
            Condition::Starting | Condition::Ill { .. } => over.then_some(false),
        };
        match helped {
            None => {
                later(&mut findings.look_at, verdict_at.max(now + Duration::from_secs(1)));
                return;
            }
            Some(true) => {
                let well = matches!(condition, Condition::Well);
                *patient = Patient {
                    failures: patient.failures,
                    last_restart: patient.last_restart,
                    well_since: Some(now),
                    ..Patient::default()
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
                    Condition::Ill { what, .. } => what.clone(),
                    _ => with_health_output("not healthy within its own health-check time", container),
                };
                findings.entries.push(refused(patient, config, name, &what, now));
            }
        }
    } else {
        let proven = patient.well_since.is_some_and(|since| now >= proven_at(since));
        if proven && patient.illness.is_none() {
            *patient = Patient { last_restart: patient.last_restart, ..Patient::default() };
        }
        match condition {
            Condition::Ill { what, ailment, settle } => {
                let ended = matches!(ailment, Ailment::Down | Ailment::EngineGone);
                let illness = patient.illness.get_or_insert_with(|| Illness {
                    what: what.clone(),
                    ended,
                    since: now,
                    said: false,
                });
                if !illness.said && illness.what != *what {
                    illness.what.clone_from(what);
                    illness.ended = ended;
                }
                let said_at = illness.since + *settle;
                if !illness.said && now < said_at {
                    later(&mut findings.look_at, said_at);
                } else if !illness.said {
                    illness.said = true;
                    let (kind, verb) =
                        if ended { (Kind::DIED, "is down") } else { (Kind::UNHEALTHY, "is unhealthy") };
                    let mut said = entry(kind, Level::Warning, format!("container {name} {verb}"));
                    said.reason = Some(what.clone());
                    findings.entries.push(said);
                    // The network and the engine are not its own.
                    let own = matches!(ailment, Ailment::Down | Ailment::Unhealthy);
                    let soon = patient.well_since.is_some_and(|since| now < proven_at(since));
                    if own && soon && !patient.counted {
                        findings.failures += 1;
                        let how = "did not help for long";
                        findings.entries.push(in_vain(patient, config, name, how, now));
                    }
                }
            }
            Condition::Well => {
                let since = container.started_at.unwrap_or(now);
                // Without a health check only time tells that it is well again.
                let proven =
                    container.health == Some(HealthState::Healthy) || now >= since + config.health_grace;
                let said = patient.illness.as_ref().is_some_and(|illness| illness.said);
                if !said {
                    patient.illness = None;
                } else if proven {
                    findings.entries.push(entry(
                        Kind::HEALTHY,
                        Level::Info,
                        format!("container {name} is well again"),
                    ));
                    let last_restart = patient.last_restart;
                    *patient = if patient.exhausted {
                        Patient { last_restart, ..Patient::default() }
                    } else {
                        let well_since = last_restart.map(|_| now);
                        Patient { illness: None, well_since, ..patient.clone() }
                    };
                } else {
                    later(&mut findings.look_at, since + config.health_grace);
                }
            }
            Condition::Resting => *patient = Patient::default(),
            Condition::Starting => {}
        }
    }

    let ill = patient.illness.as_ref().is_some_and(|illness| illness.said) && patient.watched_since.is_none();
    if ill && config.auto_heal && !patient.exhausted && patient.failures >= config.heal_max_restarts {
        patient.exhausted = true;
        let message = format!(
            "gave up on container {name} after {} restarts that did not help; someone must look at it",
            patient.failures
        );
        let mut said = entry(Kind::EXHAUSTED, Level::Critical, message);
        said.reason = patient.illness.as_ref().map(|illness| illness.what.clone());
        findings.entries.push(said);
    }
    if let Some(since) = patient.well_since.filter(|_| patient.illness.is_none()) {
        later(&mut findings.look_at, proven_at(since));
    }
    // A cooldown that is over, and nothing else, is worth forgetting.
    if patient.illness.is_none() && patient.watched_since.is_none() && patient.well_since.is_none() {
        let cooling = patient.last_restart.is_some_and(|last| last + config.heal_cooldown > now);
        if !cooling {
            *patient = Patient::default();
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
