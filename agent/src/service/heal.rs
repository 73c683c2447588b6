//! The healer: which container is unwell, when it is restarted, and when to give up (DECISIONS 5, DOMAIN 4.3).
//!
//! Level-triggered: everything follows from how the containers look and from who was told to stop; events only
//! make the next inspection come sooner. A container is known by its name, which outlives its replacement.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::config::ServiceConfig;
use crate::model::few::FewMap;
use crate::model::{Container, EngineError, State};

use super::action::Action;
use super::assess::{Condition, Inactive, ProblemKind, Stops, assess};
use super::event::{Event, Note};
use super::input::StopTimes;
use super::restart_state::{self, Look, RestartState, later, restart_at, signed};
use super::{ENGINE_RETRY, Service};

/// A process that ended counts as down only after this: the event of a requested stop may still be on its way, and so
/// may the engine's own restart (DOMAIN 4.3).
const SETTLE_END: Duration = Duration::from_secs(2);
/// After the engine came back it restarts containers itself; ours is the rest.
const SETTLE_ENGINE: Duration = Duration::from_secs(6);
/// A stop that was asked for so shortly before the engine went away was the engine's own shutdown.
const ENGINE_SHUTDOWN: Duration = Duration::from_secs(15);
/// Its last stops may be reported a moment before the end of its event stream is noticed.
const SHUTDOWN_SEEN: Duration = Duration::from_millis(500);
/// Events of so long before a break are told again after it, at most.
const REPLAY: Duration = Duration::from_mins(1);
/// Whoever restarts a container may be about to restart those that use its network, too.
const SETTLE_CUT_OFF: Duration = Duration::from_secs(10);
/// So many restarts by its policy within [`LOOP_WINDOW`] are a loop. What was restarted by the healer and is unwell
/// again so soon goes round in circles, too, however short the cooldown is.
const LOOP_RESTARTS: u64 = 3;
/// Restarts of one service's containers that may be under way at once.
const MAX_RESTARTING: usize = 8;
/// See [`LOOP_RESTARTS`].
pub(super) const LOOP_WINDOW: Duration = Duration::from_mins(1);
/// A container that waits between two runs and was restarted so often loops with a long pause.
const LOOP_COUNT: u64 = 5;

/// Signals that ask every process to end: INT, QUIT, KILL, TERM (DOMAIN 4.3).
const ASK_TO_STOP: [i32; 4] = [2, 3, 9, 15];
/// Exit codes of a process that was ended by KILL or TERM, which is how a stop ends one.
const ENDED_BY_SIGNAL: [i64; 2] = [137, 143];

/// What helps a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remedy {
    /// To be restarted.
    Restart {
        /// Its full ID.
        id: String,
    },
    /// To be recreated by compose: the engine could not even start it again.
    Recreate {
        /// Its compose service.
        compose_service: String,
    },
}

/// What the healer knows and remembers of one service.
#[derive(Debug, Clone, Default)]
pub(super) struct Healer {
    /// When the engine went away and, once it did, came back, as far as its events may be told again: what stopped
    /// meanwhile, it stopped itself.
    away: Vec<(Timestamp, Option<Timestamp>)>,
    /// Restart counts by policy: container ID to begin of the window and count at that time.
    windows: FewMap<String, (Timestamp, u64)>,
    /// Remedies for the containers that the last inspection found failing, by name.
    remedies: BTreeMap<String, Remedy>,
    /// When the agent was started. It may see how a container ended before it hears from the engine who asked for that.
    listening_since: Option<Timestamp>,
    /// When the agent began to listen, where ends before that may have been anybody's doing (see `boot.rs`).
    events_unseen_before: Option<Timestamp>,
    /// Containers that ended for an unknown cause, which was logged, by ID.
    unknown: BTreeSet<String>,
    /// Containers that somebody else manages, which was logged, by ID.
    managed: BTreeSet<String>,
}

/// How containers ended, as far as the engine's events tell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends<'a> {
    /// Exit codes of those whose end was reported, by ID. A requested stop is reported before that.
    pub told: &'a BTreeMap<String, i64>,
    /// When containers were told to stop, by whom.
    pub stops: Stops<'a>,
}

/// What an inspection leads to.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What is new.
    pub events: Vec<Event>,
    /// What the log is told.
    pub notes: Vec<Note>,
    /// When to inspect again although nothing happens.
    pub inspect_at: Option<Timestamp>,
}

impl Healer {
    /// The engine went away: the stops of the last seconds count as its own, unless they are told again once it is back.
    pub(super) fn engine_gap(&mut self, asked: &mut StopTimes, by_engine: &mut StopTimes, now: Timestamp) {
        let is_open = self.away.last().is_some_and(|(_, back)| back.is_none());
        self.away
            .retain(|(_, back)| back.is_none_or(|back| now.duration_since(back).abs() <= signed(REPLAY)));
        if !is_open {
            self.away.push((now - SHUTDOWN_SEEN, None));
        }
        let own: Vec<String> = asked
            .iter()
            // A stop in the future is one before the clock was set back.
            .filter(|(_, at)| now.duration_since(**at).abs() <= signed(ENGINE_SHUTDOWN))
            .map(|(id, _)| id.clone())
            .collect();
        for id in own {
            if let Some(at) = asked.remove(&id) {
                by_engine.insert(id, at);
            }
        }
    }

    /// The times that are waited by.
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.windows.values_mut().map(|(since, _)| since).chain(&mut self.listening_since)
    }

    /// The clock was set by `by`: when the engine was away can't be compared with what follows. What ends from now on, by
    /// either clock, has not ended before the agent listened.
    pub(super) fn clock_was_set(&mut self, by: SignedDuration) {
        self.away.retain(|(_, back)| back.is_none());
        if let Some(at) = &mut self.events_unseen_before {
            *at = at.checked_add(by).unwrap_or(*at).min(*at);
        }
    }

    /// Nothing is restarted before the next inspection.
    pub(super) fn inspect_first(&mut self) {
        self.remedies.clear();
    }

    /// The engine answers again. One that was killed first stops the containers that outlived it.
    pub(super) fn engine_back(&mut self, now: Timestamp) {
        if let Some((_, back)) = self.away.last_mut() {
            back.get_or_insert(now);
        }
    }

    /// A stop is reported (perhaps again, when the event stream is replayed after it merely broke off). The container is
    /// restarted only if the next inspection still calls for it.
    pub(super) fn stopped(
        &mut self,
        asked: &mut StopTimes,
        by_engine: &mut StopTimes,
        id: String,
        at: Timestamp,
    ) {
        self.remedies.retain(|_, remedy| !matches!(remedy, Remedy::Restart { id: of } if *of == id));
        if self.away.iter().any(|(from, to)| at >= *from && to.is_none_or(|to| at <= to)) {
            by_engine.insert(id, at);
        } else {
            by_engine.remove(&id);
            asked.insert(id, at);
        }
    }

    /// Takes in how all containers look: what is new, and when to inspect again.
    pub(super) fn look(
        &mut self,
        restart_states: &mut BTreeMap<String, RestartState>,
        containers: &[Container],
        ends: Ends<'_>,
        restarting: &BTreeSet<String>,
        config: &ServiceConfig,
        now: Timestamp,
    ) -> Findings {
        let mut findings = Findings::default();
        self.remedies.clear();
        self.windows.retain_keys(|id| containers.iter().any(|c| c.id == *id));
        restart_states.retain(|name, _| containers.iter().any(|c| c.name == *name && c.manager.is_none()));
        self.managed.retain(|id| containers.iter().any(|c| c.id == *id));
        self.unknown.retain(|id| containers.iter().any(|c| c.id == *id && c.state == State::Exited));
        // A container that is being restarted looks as if somebody had stopped it. One of which nothing is known
        // keeps its state.
        let judged = |c: &&Container| !restarting.contains(&c.name) && c.state != State::Unknown;
        for container in containers.iter().filter(judged) {
            if let Some(manager) = &container.manager {
                if self.managed.insert(container.id.clone()) {
                    let (container, manager) = (container.name.clone(), manager.clone());
                    findings.notes.push(Note::Managed { container, manager });
                }
                continue;
            }
            let known = restart_states.get(&container.name);
            if matches!(container.state, State::Running | State::Restarting) {
                self.note_restarts(container, now);
            }
            let mut condition = assess(container, ends.stops, self.is_in_crash_loop(container), now);
            if known.is_none_or(RestartState::has_no_known_problem)
                && matches!(&condition, Condition::Failing(symptom) if symptom.kind() == ProblemKind::Down)
                && self.is_of_unknown_cause(container, ends.told)
            {
                condition = Condition::Inactive(Inactive::Stopped);
                self.note_unknown_cause(container, now, &mut findings);
            }
            if matches!(condition, Condition::Failing(_))
                && let Some(remedy) = remedy(container, config)
            {
                self.remedies.insert(container.name.clone(), remedy);
            }
            if known.is_none() && !matches!(condition, Condition::Failing(_)) {
                continue;
            }
            let mut restart = known.cloned().unwrap_or_default();
            let look =
                Look { container, condition: &condition, config, listening_since: self.listening_since, now };
            look.reconcile(&mut restart, &mut findings);
            if restart == RestartState::default() {
                restart_states.remove(&container.name);
            } else {
                restart_states.insert(container.name.clone(), restart);
            }
        }
        findings
    }

    /// The container to treat next, how, and when. `restarting`: how many are being restarted now.
    pub(super) fn next_remedy<'a>(
        &'a self,
        restart_states: &'a BTreeMap<String, RestartState>,
        restarting: usize,
        config: &ServiceConfig,
        is_left_alone: impl Fn(&str) -> bool,
    ) -> Option<(Timestamp, &'a str, &'a Remedy)> {
        let remedies = restart_states.iter().filter_map(|(name, restart)| {
            let remedy = self.remedies.get(name).filter(|_| !is_left_alone(name))?;
            let most = match remedy {
                Remedy::Restart { .. } => MAX_RESTARTING,
                // Compose has the project for itself.
                Remedy::Recreate { .. } => 1,
            };
            (restarting < most).then_some((restart_at(restart, config)?, name.as_str(), remedy))
        });
        remedies.min_by_key(|(at, ..)| *at)
    }

    /// The agent was started, and is told now what happened while it was away.
    pub(super) fn listen(&mut self, now: Timestamp) {
        self.listening_since = Some(now);
    }

    /// The agent begins to listen to events now. What ended by a signal before, and is no longer in the engine's event
    /// buffer, may have been stopped by a person.
    pub(super) fn events_unseen_before(&mut self, now: Timestamp) {
        self.events_unseen_before = Some(now);
    }

    fn is_of_unknown_cause(&self, container: &Container, told: &BTreeMap<String, i64>) -> bool {
        container.state == State::Exited
            && !container.oom_killed
            && ENDED_BY_SIGNAL.contains(&container.exit_code)
            && !told.contains_key(&container.id)
            && (self.unknown.contains(&container.id) || self.ended_unseen(container))
    }

    /// Whether it ended before the agent listened to events.
    fn ended_unseen(&self, container: &Container) -> bool {
        container.finished_at.zip(self.events_unseen_before).is_some_and(|(end, until)| end < until)
    }

    /// Logged once: nothing happened that needs an audit entry. The engine's event may still arrive.
    fn note_unknown_cause(&mut self, container: &Container, now: Timestamp, findings: &mut Findings) {
        let known_by = self.events_unseen_before.map_or(now, |until| until + SETTLE_END);
        if now < known_by {
            later(&mut findings.inspect_at, known_by);
        } else if self.unknown.insert(container.id.clone()) {
            let (container, exit_code) = (container.name.clone(), container.exit_code);
            findings.notes.push(Note::UnknownCause { container, exit_code });
        }
    }

    /// Notes how often the restart policy has restarted it.
    fn note_restarts(&mut self, container: &Container, now: Timestamp) {
        let is_open = |(since, count): &(Timestamp, u64)| {
            now.duration_since(*since) <= signed(LOOP_WINDOW) && container.restart_count >= *count
        };
        if !self.windows.get(&container.id).is_some_and(is_open) {
            self.windows.insert(container.id.clone(), (now, container.restart_count));
        }
    }

    /// Whether its own restart policy restarts it again and again.
    pub(super) fn is_in_crash_loop(&self, container: &Container) -> bool {
        let before = self.windows.get(&container.id).map_or(container.restart_count, |(_, count)| *count);
        container.restart_count.saturating_sub(before) >= LOOP_RESTARTS
            || (container.state == State::Restarting && container.restart_count >= LOOP_COUNT)
    }
}

impl Service {
    /// When the next container is to be treated, its name, and how.
    pub(super) fn next_remedy(&self) -> Option<(Timestamp, &str, &Remedy)> {
        let (states, restarting) = (&self.durable.restart_states, self.restarting.len());
        self.healer.next_remedy(states, restarting, &self.config, |name| self.is_left_alone(name))
    }

    /// Whether a container runs an image whose rollback failed: it is not touched again until somebody acts (DECISIONS 4).
    fn is_left_alone(&self, name: &str) -> bool {
        let is_unproven = |c: &Container| self.durable.unproven.values().any(|id| *id == c.image);
        self.durable.rollback_failed && self.containers().iter().any(|c| c.name == name && is_unproven(c))
    }

    /// Whether the healer is at work: on something that it does not leave alone.
    pub(super) fn is_healing(&self) -> bool {
        let mut states = self.durable.restart_states.iter();
        self.config.auto_heal
            && states.any(|(name, restart)| restart.is_being_healed() && !self.is_left_alone(name))
    }

    pub(super) fn remedy_due(&self, now: Timestamp) -> Option<(String, Remedy)> {
        let (_, name, remedy) = self.next_remedy().filter(|(at, ..)| *at <= now)?;
        Some((name.to_owned(), remedy.clone()))
    }

    pub(super) fn begin_restart(&mut self, name: String, id: String, now: Timestamp) -> Action {
        self.restarting.insert(name.clone());
        self.begin_remedy(&name, false, now);
        Action::Restart { name, id }
    }

    pub(super) fn begin_remedy(&mut self, name: &str, recreates: bool, now: Timestamp) {
        self.generation += 1;
        let restart = self.durable.restart_states.entry(name.to_owned()).or_default();
        restart_state::begin_restart(restart, now);
        let problem = restart.problem.as_ref().map(|problem| problem.what.clone());
        self.emit(Event::Restarting { container: name.to_owned(), recreates, problem }, now);
    }

    pub(super) fn restarted(&mut self, name: &str, result: Result<(), EngineError>, now: Timestamp) {
        let Some(restart) = self.durable.restart_states.get_mut(name) else { return };
        match result {
            Ok(()) => {}
            // Nothing is known: neither that it was restarted, nor that it did not help.
            Err(error) if error.is_unavailable() => {
                restart.watched_since = None;
                restart.last_restart = None;
                self.healer.inspect_first();
                self.inspect_at = Some(now + ENGINE_RETRY);
                self.emit(Event::RestartUnanswered, now);
            }
            Err(error) => {
                let (config, what) = (&self.config, error.to_string());
                let ended = restart.problem.as_ref().is_none_or(|problem| problem.ended);
                let failed = restart_state::restart_failed(restart, config, name, (&what, ended), now);
                self.emit(failed, now);
            }
        }
    }
}

/// The remedy for a failing container; `None` while there is none: it can't be started before the container whose
/// network it uses.
fn remedy(container: &Container, config: &ServiceConfig) -> Option<Remedy> {
    if let Some(owner) = &container.network_of {
        match &owner.found {
            Some(found) if matches!(found.state, State::Running | State::Paused) => {}
            None if owner.is_given_by_id() => {
                let compose_service = container.compose_service.clone();
                let by_compose = !compose_service.is_empty() && config.project().is_some();
                return by_compose.then_some(Remedy::Recreate { compose_service });
            }
            _ => return None,
        }
    }
    Some(Remedy::Restart { id: container.id.clone() })
}

/// How long a problem of this kind must last before it is reported: it may be over by then.
pub(super) fn settle_time(kind: ProblemKind) -> Duration {
    match kind {
        ProblemKind::Down => SETTLE_END,
        ProblemKind::Unhealthy => Duration::ZERO,
        ProblemKind::CutOff => SETTLE_CUT_OFF,
        ProblemKind::EngineGone => SETTLE_ENGINE,
    }
}

/// Whether a signal through the engine asks this container to stop, and does not only tell it something. An engine
/// that does not say which signal it was leaves no other reading.
pub(super) fn asks_to_stop(signal: Option<i32>, container: Option<&Container>) -> bool {
    let Some(signal) = signal else { return true };
    ASK_TO_STOP.contains(&signal) || container.is_some_and(|container| container.stop_signal == signal)
}
