//! The healer: which container is failing, when it is restarted, and when to give up (DECISIONS 5, DOMAIN 4.3).
//!
//! Level-triggered: decisions depend only on the state of the containers and on recorded stop requests; events only
//! trigger an earlier inspection. Containers are identified by name, which is kept when they are recreated.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::config::ServiceConfig;
use crate::model::few::FewMap;
use crate::model::{Container, State};
use crate::service::event::Note;
use crate::service::health::assess::{
    Condition, Inactive, ProblemKind, StopTimes, Stops, Symptom, TERMINATED, assess, is_unprobed, ran_since,
    signed, stuck_at,
};
use crate::service::health::gap::{Engine, Gaps};
use crate::service::health::restart_state::{
    Findings, LOOP_WINDOW, Look, RestartState, SETTLE_END, SLOW_LOOP_WINDOW, not_later, restart_at,
};

/// This many restarts by the restart policy within one of the windows are a crash loop. A container that fails again within
/// [`LOOP_WINDOW`] after a restart by the healer is also in a loop, however short the cooldown is.
const LOOP_RESTARTS: u64 = 3;
/// How many restart counts are remembered: enough to tell whether there were so many restarts.
const LOOP_MEMORY: usize = 4;
/// A run longer than this, the average of a slow loop, ends the loop.
const SLOW_LOOP_RUN: Duration = Duration::from_secs(SLOW_LOOP_WINDOW.as_secs() / LOOP_RESTARTS);
/// How often a container is inspected of which no event tells what comes next: one that is being stopped may go on after all,
/// and one that could not be inspected may have failed already.
pub(in crate::service) const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// The same for a container whose health check has no result since a pause: the engine reports a pass, but not a failure,
/// because it calls such a container unhealthy already. Otherwise the interval of the health check.
const LOOK_AT_UNMEASURED: Duration = Duration::from_mins(1);
/// The longest pause before a container that can't be inspected is inspected again: it grows with the time that this has lasted.
const LONGEST_LOOK_AGAIN: Duration = Duration::from_mins(5);
/// Maximum number of concurrent container restarts per service.
const MAX_RESTARTING: usize = 8;
/// A container that waits for its next run and was restarted this often is in a crash loop with a long backoff.
const LOOP_COUNT: u64 = 5;

/// Signals that ask every process to end: INT, QUIT, KILL, TERM (DOMAIN 4.3).
const ASK_TO_STOP: [i32; 4] = [2, 3, 9, 15];
/// Exit codes of a process that was ended by KILL or TERM, the signals of a regular stop.
pub(in crate::service) const ENDED_BY_SIGNAL: [i64; 2] = [KILLED, TERMINATED];
const KILLED: i64 = 137;
/// The exit codes of most programs that were stopped.
const ENDED_WHEN_STOPPED: [i64; 3] = [0, KILLED, TERMINATED];
/// The signal that a process can't handle.
const KILL: i32 = 9;

/// How to repair a failing container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) enum Remedy {
    /// Restart it.
    Restart {
        /// Its full ID.
        id: String,
    },
    /// Recreate it with compose: the engine can no longer start it.
    Recreate {
        /// Its compose service.
        compose_service: String,
    },
}

/// The healer's state for one service.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Healer {
    /// Gaps in the event stream.
    pub(in crate::service) gaps: Gaps,
    /// Restarts by policy: container ID to its last restart counts and when each was last seen, oldest first.
    restart_counts: FewMap<String, Vec<(Timestamp, u64)>>,
    /// Remedies for the containers that the last inspection found failing, by name.
    remedies: BTreeMap<String, Remedy>,
    /// When the agent was started. It may see an exited container before it receives the event of the stop request.
    listening_since: Option<Timestamp>,
    /// When the agent began to receive events, if the origin of earlier stops is unknown: when it was started (see
    /// `boot.rs`), or after a gap in the event stream.
    events_unseen_before: Option<Timestamp>,
    /// When the machine was started, if the agent last ran in an earlier boot: the shutdown has ended what ran before.
    booted_at: Option<Timestamp>,
    /// A time since when the engine has been running, if known.
    engine_since: Option<Timestamp>,
    /// Containers that exited for an unknown reason, already logged, by ID.
    unknown: BTreeSet<String>,
    /// Containers managed by another tool, already logged, by ID.
    managed: BTreeSet<String>,
    /// Since when containers can't be inspected, by ID.
    unseen: BTreeMap<String, Timestamp>,
}

/// Container exits and stop requests that the engine's events have reported.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct Ends<'a> {
    /// Reported exit codes by container ID. A requested stop is reported before the exit.
    pub exit_codes: &'a BTreeMap<String, i64>,
    /// When containers were told to stop, by origin of the request.
    pub stops: Stops<'a>,
}

impl Healer {
    /// The times that deadlines are measured from.
    pub(in crate::service) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.restart_counts
            .values_mut()
            .flatten()
            .map(|(since, _)| since)
            .chain(&mut self.listening_since)
            .chain(self.gaps.times())
            .chain(self.unseen.values_mut())
    }

    /// The clock was set by `by`: past gaps can't be compared with times by the new clock. `events_unseen_before` is set
    /// to the earlier of both clocks, so that containers that exit from now on do not count as unseen, and so is the boot.
    pub(in crate::service) fn clock_was_set(&mut self, by: SignedDuration) {
        self.gaps.clock_was_set();
        self.engine_since = None;
        for at in self.events_unseen_before.iter_mut().chain(&mut self.booted_at) {
            *at = at.checked_add(by).unwrap_or(*at).min(*at);
        }
    }

    /// The event stream is back, see [`Gaps::end`].
    pub(in crate::service) fn engine_back(
        &mut self,
        requested: &mut StopTimes,
        by_engine: &mut StopTimes,
        engine_since: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Engine> {
        let engine = self.gaps.end(requested, by_engine, engine_since, now);
        // What was known of the same run stays true.
        if engine != Some(Engine::Survived) || self.engine_since.is_none() {
            self.engine_since = engine_since;
        }
        if engine == Some(Engine::Survived) {
            // The engine's buffer may not reach back to the begin of the gap.
            self.events_unseen_before = self.events_unseen_before.max(Some(now));
        }
        engine
    }

    /// Discards pending remedies: nothing is restarted before the next inspection.
    pub(in crate::service) fn inspect_first(&mut self) {
        self.remedies.clear();
    }

    /// Records a stop request (possibly again, when events are replayed after a mere disconnect). The container is
    /// restarted only if the next inspection still requires it.
    pub(in crate::service) fn stopped(
        &mut self,
        requested: &mut StopTimes,
        by_engine: &mut StopTimes,
        id: String,
        at: Timestamp,
    ) {
        self.remedies.retain(|_, remedy| !matches!(remedy, Remedy::Restart { id: of } if *of == id));
        self.gaps.attribute(requested, by_engine, id, at);
    }

    /// Evaluates the state of all containers; returns new events and when to inspect again.
    pub(in crate::service) fn look(
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
        // What the healer restarts begins anew.
        self.restart_counts
            .retain_keys(|id| containers.iter().any(|c| c.id == *id && !restarting.contains(&c.name)));
        restart_states.retain(|name, _| containers.iter().any(|c| c.name == *name && c.manager.is_none()));
        self.managed.retain(|id| containers.iter().any(|c| c.id == *id));
        self.unknown.retain(|id| containers.iter().any(|c| c.id == *id && c.state == State::Exited));
        self.unseen.retain(|id, _| containers.iter().any(|c| c.id == *id && c.state == State::Unknown));
        // A container that is being restarted looks as if it had been stopped on request.
        for container in containers.iter().filter(|c| !restarting.contains(&c.name)) {
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
            let condition = self.condition(container, known, ends, now, &mut findings);
            match condition {
                // The engine reports neither that it goes on, nor that it has failed a probe, nor that it can be inspected again.
                // Its restart history is kept.
                Condition::Inactive(Inactive::Stopping) => {
                    not_later(&mut findings.inspect_at, now + LOOK_AGAIN);
                    continue;
                }
                Condition::Inactive(Inactive::Unknown) => {
                    let since = *self.unseen.entry(container.id.clone()).or_insert(now);
                    let lasted = now.duration_since(since).unsigned_abs();
                    not_later(&mut findings.inspect_at, now + lasted.clamp(LOOK_AGAIN, LONGEST_LOOK_AGAIN));
                    continue;
                }
                Condition::Unmeasured => {
                    let interval =
                        container.health_timing.map_or(LOOK_AT_UNMEASURED, |timing| timing.interval);
                    let again = interval.clamp(Duration::from_secs(1), LOOK_AT_UNMEASURED);
                    not_later(&mut findings.inspect_at, now + again);
                    continue;
                }
                // Its restart history is kept: a pause is no recovery.
                Condition::Inactive(Inactive::Paused) => continue,
                Condition::Restarting => {
                    let at = stuck_at(container).filter(|at| *at > now);
                    if let Some(at) = at {
                        not_later(&mut findings.inspect_at, at);
                    }
                }
                _ => {}
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

    /// Assesses a container by its history, too: whether somebody may have stopped it unseen, whether it has served before its
    /// last run, and whether its health check is run at all.
    fn condition(
        &mut self,
        container: &Container,
        known: Option<&RestartState>,
        ends: Ends<'_>,
        now: Timestamp,
        findings: &mut Findings,
    ) -> Condition {
        match assess(container, ends.stops, self.is_in_crash_loop(container, now), now) {
            Condition::Failing(symptom)
                if symptom.kind() == ProblemKind::Down
                    && known.is_none_or(RestartState::has_no_known_problem)
                    && self.is_of_unknown_cause(container, ends.exit_codes, now) =>
            {
                self.note_unknown_cause(container, now, findings);
                Condition::Inactive(Inactive::Stopped)
            }
            Condition::Inactive(Inactive::Finished)
                if known.is_some_and(RestartState::has_ended_its_service) =>
            {
                Condition::Failing(Symptom::Exited { exit_code: 0 })
            }
            // It is like one without a health check.
            Condition::Starting
                if container.started_at.is_some_and(|run| is_unprobed(container, run, now)) =>
            {
                Condition::Healthy
            }
            condition => condition,
        }
    }

    /// Returns the next remedy with its time and container. `restarting`: number of restarts in progress. `waits`: what may not
    /// begin, and holds back none of the others.
    pub(in crate::service) fn next_remedy<'a>(
        &'a self,
        restart_states: &'a BTreeMap<String, RestartState>,
        restarting: usize,
        config: &ServiceConfig,
        waits: impl Fn(&str, &Remedy) -> bool,
    ) -> Option<(Timestamp, &'a str, &'a Remedy)> {
        let remedies = restart_states.iter().filter_map(|(name, restart)| {
            let remedy = self.remedies.get(name).filter(|remedy| !waits(name, remedy))?;
            let most = match remedy {
                Remedy::Restart { .. } => MAX_RESTARTING,
                // Compose needs exclusive access to the project.
                Remedy::Recreate { .. } => 1,
            };
            (restarting < most).then_some((restart_at(restart, config)?, name.as_str(), remedy))
        });
        remedies.min_by_key(|(at, ..)| *at)
    }

    /// The agent was started; the engine now replays events from before the start.
    pub(in crate::service) fn listen(&mut self, now: Timestamp) {
        self.listening_since = Some(now);
    }

    /// The agent receives events from now on. A container that was ended by a signal before, and whose event is no longer
    /// in the engine's buffer, may have been stopped by an operator.
    pub(in crate::service) fn events_unseen_before(&mut self, now: Timestamp) {
        self.events_unseen_before = Some(now);
    }

    /// The agent last ran in an earlier boot of the machine than this one, which began at `boot`.
    pub(in crate::service) fn rebooted(&mut self, boot: Timestamp) {
        self.booted_at = Some(boot);
    }

    /// The healer of a service whose configuration has changed: what it knows of the engine's events stays true. Remedies
    /// follow from the next inspection. `is_of_same`: it watches the same containers as before.
    pub(in crate::service) fn continuing(self, before: Self, is_of_same: bool) -> Self {
        let of = if is_of_same { &before } else { &self };
        let (events_unseen_before, booted_at) = (of.events_unseen_before, of.booted_at);
        Self { events_unseen_before, booted_at, remedies: BTreeMap::new(), ..before }
    }

    /// Whether somebody may have stopped a container that exited before the agent received events.
    pub(in crate::service) fn is_of_unknown_cause(
        &self,
        container: &Container,
        exit_codes: &BTreeMap<String, i64>,
        now: Timestamp,
    ) -> bool {
        container.state == State::Exited
            // The OOM killer sends KILL. It may also have killed another process, earlier.
            && !(container.oom_killed && container.exit_code == KILLED)
            && (ENDED_WHEN_STOPPED.contains(&container.exit_code) || self.was_kept_down(container))
            && !exit_codes.contains_key(&container.id)
            && (self.unknown.contains(&container.id) || self.ended_unseen(container, now))
    }

    /// Whether the engine has been running since before the end of a container that it would have started again if nobody had
    /// stopped it. Its exit code says nothing: not every program ends by the signal, or with 0.
    fn was_kept_down(&self, container: &Container) -> bool {
        let since = self.engine_since.zip(container.finished_at);
        container.restart_policy.is_endless()
            && container.error.is_empty()
            && since.is_some_and(|(since, ended)| since <= ended)
    }

    /// Whether the container exited before the agent received events, and not by the machine's shutdown. An end in the future
    /// dates from before the clock was set back.
    fn ended_unseen(&self, container: &Container, now: Timestamp) -> bool {
        let Some((end, until)) = container.finished_at.zip(self.events_unseen_before) else { return false };
        let is_since_start = self.listening_since.is_some_and(|start| start <= end) && end <= now;
        if !is_since_start && self.booted_at.is_some_and(|boot| !ran_since(container, boot, now)) {
            return false;
        }
        end < until || end > now
    }

    /// Logs once that a container exited for an unknown reason, after waiting for a late event. Not worth an audit entry.
    fn note_unknown_cause(&mut self, container: &Container, now: Timestamp, findings: &mut Findings) {
        let known_by = self.events_unseen_before.map_or(now, |until| until + SETTLE_END);
        if now < known_by {
            not_later(&mut findings.inspect_at, known_by);
        } else if self.unknown.insert(container.id.clone()) {
            let (container, exit_code) = (container.name.clone(), container.exit_code);
            findings.notes.push(Note::UnknownCause { container, exit_code });
        }
    }

    /// Records the container's restart count.
    fn note_restarts(&mut self, container: &Container, now: Timestamp) {
        let count = container.restart_count;
        let counts = self.restart_counts.entry(container.id.as_str());
        // A lower one than before: it was started by someone.
        counts.retain(|(_, earlier)| *earlier < count);
        if counts.len() == LOOP_MEMORY {
            counts.remove(0);
        }
        counts.push((now, count));
    }

    /// Whether the restart policy keeps restarting the container. The last run has failed, as a container that finishes its work
    /// again and again has not crashed, unless the engine takes longer and longer to start it. In a slow loop the current run has
    /// not outlasted the loop.
    pub(in crate::service) fn is_in_crash_loop(&self, container: &Container, now: Timestamp) -> bool {
        let counts = self.restart_counts.get(&container.id).map_or(&[][..], Vec::as_slice);
        let is_looping = |window: Duration| {
            let mut within = counts.iter().filter(|(at, _)| now.duration_since(*at) <= signed(window));
            let before = within.next().map_or(container.restart_count, |(_, count)| *count);
            container.restart_count.saturating_sub(before) >= LOOP_RESTARTS
        };
        let is_young = || {
            let ran = container.started_at.map(|start| now.duration_since(start));
            container.state == State::Restarting || ran.is_none_or(|ran| ran < signed(SLOW_LOOP_RUN))
        };
        let has_failed = container.exit_code != 0;
        (has_failed && (is_looping(LOOP_WINDOW) || (is_looping(SLOW_LOOP_WINDOW) && is_young())))
            || (container.state == State::Restarting && container.restart_count >= LOOP_COUNT)
    }
}

/// Returns the remedy for a failing container; `None` while there is none, because the container whose network it uses
/// must be started first.
pub(in crate::service) fn remedy(container: &Container, config: &ServiceConfig) -> Option<Remedy> {
    let recreated = || {
        let compose_service = container.compose_service.clone();
        config.can_recreate(container).then_some(Remedy::Recreate { compose_service })
    };
    if let Some(owner) = &container.network_of {
        match &owner.resolved {
            Some(found) if matches!(found.state, State::Running | State::Paused) => {}
            None if owner.is_given_by_id() => return recreated(),
            _ => return None,
        }
    }
    let remade = if container.lost_networks.is_empty() { None } else { recreated() };
    remade.or_else(|| Some(Remedy::Restart { id: container.id.clone() }))
}

/// Whether a signal sent through the engine asks the container to stop, as opposed to, for example, a reload. If the engine
/// does not report the signal, assume that it does.
pub(in crate::service) fn asks_to_stop(signal: Option<i32>, container: Option<&Container>) -> bool {
    let Some(signal) = signal else { return true };
    ASK_TO_STOP.contains(&signal) || container.is_some_and(|container| container.stop_signal == signal)
}

/// Whether a signal that asks a container to end can be part of a stop, which is followed up with KILL: only the
/// container's own stop signal, or KILL itself. If the engine does not report the signal, assume that it can.
pub(in crate::service) fn is_of_stop(signal: Option<i32>, container: Option<&Container>) -> bool {
    let own = container.map(|container| container.stop_signal);
    signal.is_none_or(|signal| signal == KILL || own.is_none_or(|own| own == signal))
}
