//! Container inspections: input for the rollout on probation, or for the healer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::model::{Container, EngineError, EventKind, RestartPolicy, State};
use crate::service::action::Action;
use crate::service::event::{Event, NoRemedy};
use crate::service::health::assess::{Stops, Symptom, Trouble, signed};
use crate::service::health::gap::{Engine, Sight};
use crate::service::health::healer as heal;
use crate::service::health::restart_state::RestartState;
use crate::service::{Durable, ENGINE_RETRY, Service};

/// Events come in bursts: they are covered by one inspection this long after the first.
const SETTLE: Duration = Duration::from_millis(300);

/// How long after a start the engine reports it.
const START_REPORTED: SignedDuration = SignedDuration::from_secs(1);

impl Service {
    /// Returns the inspection that is due, if any.
    pub(in crate::service) fn next_inspection(&mut self, now: Timestamp) -> Option<Action> {
        if !self.inspections.start(now) {
            return None;
        }
        if let Some(service) = self.swarm_name() {
            let service = service.to_owned();
            return Some(Action::InspectSwarm { generation: self.inspection_generation(), service });
        }
        let Some(members) = self.members() else {
            self.inspections.end();
            return None;
        };
        Some(Action::Inspect { generation: self.inspection_generation(), members })
    }

    /// Handles an engine event of a container.
    pub(in crate::service) fn event(&mut self, at: Timestamp, id: String, what: &EventKind, now: Timestamp) {
        if self.repeats_health(&id, what) {
            return;
        }
        match what {
            EventKind::Kill { signal } => {
                let known = self.containers().iter().find(|container| container.id == id);
                if heal::asks_to_stop(*signal, known) {
                    if heal::is_of_stop(*signal, known) {
                        self.known.signals.remove(&id);
                    } else {
                        self.known.signals.insert(id.clone(), at);
                    }
                    self.note_stop_request(id, at, now);
                }
            }
            EventKind::Stop => self.note_stop_request(id, at, now),
            // Events come in order, also after the clock was set, but those of before a gap are replayed.
            EventKind::Start if self.is_start_of_run_told_to_stop(&id, at) => {}
            EventKind::Start => {
                self.known.told_to_stop.remove(&id);
            }
            EventKind::Unpause => {
                self.known.resumed.insert(id, at);
            }
            EventKind::Die { exit_code } => {
                if let Some(deployment) = &mut self.durable.deployment {
                    deployment.outage.ended(&id, at);
                }
                self.note_exit(&id, at, *exit_code);
                self.note_finished(&id, at, *exit_code);
                self.known.exit_codes.insert(id, *exit_code);
            }
            EventKind::Destroy => {
                self.note_removed(&id, now);
                self.durable.stops.remove(&id);
                self.durable.engine_stops.remove(&id);
                self.known.exit_codes.remove(&id);
                self.known.served.remove(&id);
                self.durable.finished.remove(&id);
                self.known.signals.remove(&id);
                self.known.told_to_stop.remove(&id);
                self.known.resumed.remove(&id);
            }
            _ => {}
        }
        // Exits and restarts by a restart policy are not changes from outside.
        if matches!(
            what,
            EventKind::Kill { .. }
                | EventKind::Stop
                | EventKind::Unpause
                | EventKind::Destroy
                | EventKind::Other(_)
        ) {
            // Older events are replayed after a start of the agent.
            self.known.external_change_at = self.known.external_change_at.max(Some(at.min(now)));
        }
        self.inspections.request_by(now + SETTLE);
    }

    /// Whether an event only repeats what the last one has reported, and an inspection has shown since. Podman before 6 reports
    /// each probe of a health check.
    fn repeats_health(&mut self, id: &str, what: &EventKind) -> bool {
        let EventKind::Health(health) = what else {
            self.known.reported_health.remove(id);
            return false;
        };
        let is_reported = self.known.reported_health.insert(id.to_owned(), *health) == Some(*health);
        is_reported && self.containers().iter().any(|c| c.id == id && c.health == Some(*health))
    }

    /// Notes that a container has done its work: it has ended with code 0, and nobody has stopped it. One that has served was to
    /// go on, unless its restart policy starts it again whatever its code. One that has run for longer than a probation lasts
    /// says nothing about what ends on probation: it may be a server that was told to end.
    fn note_finished(&mut self, id: &str, at: Timestamp, exit_code: i64) {
        let Some(container) = self.containers().iter().find(|c| c.id == id) else { return };
        let is_of_this_run = |at: &Timestamp| container.started_at.is_none_or(|start| *at >= start);
        let stops = [&self.durable.stops, &self.durable.engine_stops];
        let is_stopped = stops.into_iter().filter_map(|stops| stops.get(id)).any(is_of_this_run);
        let is_stopped = is_stopped || self.restarting.contains(&container.name);
        let restart = self.durable.restart_states.get(&container.name);
        if restart.is_some_and(RestartState::has_ended_its_service) {
            return;
        }
        let lasted = container.started_at.map(|start| at.duration_since(start));
        let probation = SignedDuration::ZERO..=signed(self.usual_probation());
        let is_short = lasted.is_some_and(|lasted| probation.contains(&lasted));
        let is_done = exit_code == 0 && is_short && !is_stopped;
        if is_done && (!container.served || container.restart_policy.is_endless()) {
            self.durable.finished.insert(id.to_owned());
        }
    }

    /// Whether a container was told to stop in the run that began then.
    fn is_start_of_run_told_to_stop(&self, id: &str, at: Timestamp) -> bool {
        let began = self.containers().iter().find(|c| c.id == id).and_then(|c| c.started_at);
        let is_of_run = began.is_some_and(|began| at.duration_since(began).abs() <= START_REPORTED);
        is_of_run && self.durable.stops.get(id).is_some_and(|stop| at <= *stop)
    }

    fn note_stop_request(&mut self, id: String, at: Timestamp, now: Timestamp) {
        // A restart by the healer is a stop and a start. If the start fails, nobody has asked for the stop.
        let is_own = |c: &Container| c.id == id && self.restarting.contains(&c.name);
        if self.containers().iter().any(is_own) {
            return;
        }
        // Podman may report the stop after the end.
        self.durable.finished.remove(&id);
        // The time by the clock as it is set now: that of an event which is replayed may be by an earlier one.
        if self.durable.stops.get(&id) != Some(&at) || !self.known.told_to_stop.contains_key(&id) {
            self.known.told_to_stop.insert(id.clone(), now);
        }
        let durable = &mut self.durable;
        self.healer.stopped(&mut durable.stops, &mut durable.engine_stops, id, at);
    }

    /// Reports a container that has crashed and that the engine has removed at once (`--rm`): no inspection finds it any more.
    fn note_removed(&mut self, id: &str, now: Timestamp) {
        let Some((container, exit_code)) = self.crashed_before_removal(id) else { return };
        let problem = Trouble::Symptom(Symptom::Exited { exit_code });
        let no_remedy = Some(NoRemedy::Removed);
        self.emit(Event::Unhealthy { container, ended: true, problem, no_remedy }, now);
    }

    /// The name and exit code of a container that is being removed, if it ran until now, and has crashed.
    fn crashed_before_removal(&self, id: &str) -> Option<(String, i64)> {
        let durable = &self.durable;
        let is_explained = durable.stops.contains_key(id) || durable.engine_stops.contains_key(id);
        let is_ours =
            durable.is_changing_containers() || self.project.is_busy() || self.swarm_name().is_some();
        let exit_code = self.known.exit_codes.get(id).copied()?;
        // Podman does not report that somebody stops a container.
        if is_explained || is_ours || exit_code == 0 || heal::ENDED_BY_SIGNAL.contains(&exit_code) {
            return None;
        }
        // No engine takes a restart policy together with `--rm`.
        let is_crashed = |c: &&Container| {
            c.id == id
                && c.state == State::Running
                && matches!(c.restart_policy, RestartPolicy::No | RestartPolicy::Removed)
                && c.manager.is_none()
                && !self.restarting.contains(&c.name)
        };
        let own = self.project.healed_by(&self.config.name, self.containers());
        let container = own.iter().find(is_crashed)?.name.clone();
        Some((container, exit_code))
    }

    /// Handles the result of an inspection.
    pub(in crate::service) fn inspected(
        &mut self,
        result: Result<Vec<Container>, EngineError>,
        now: Timestamp,
    ) {
        let containers = match result {
            Ok(containers) => self.with_events(containers, now),
            Err(error) => return self.not_inspected(&error, now),
        };
        self.compare_with_shutdown(&containers, now);
        match self.healer.gaps.sight(now) {
            Sight::Clear => {}
            Sight::Waiting => {
                self.note_containers(&containers);
                return self.inspections.request_by(now + ENGINE_RETRY);
            }
            Sight::GivenUp => {
                self.note_containers(&containers);
                self.engine_back(now, runs_since(&containers), now);
                if self.durable.deployment.is_some() {
                    return;
                }
            }
        }
        if let Some(deployment) = &mut self.durable.deployment {
            deployment.outage.look(&containers, now);
            let outcome = deployment.look(&containers, &self.durable.stops, now);
            let phase = deployment.phase.clone();
            // Events below refer to these containers.
            self.note_containers(&containers);
            if let Some(outcome) = outcome {
                self.probation_judged(phase, outcome, now);
            }
        }
        // While another service is changing the project, that service handles the state of the containers.
        if self.heals() && !self.project.is_busy() {
            self.heal(&containers, now);
        }
        self.note_containers(&containers);
        self.follow_late_watch(now);
    }

    /// Stores the current containers. If they equal those of the last check, which is the usual case, both share one copy.
    pub(in crate::service) fn note_containers(&mut self, containers: &[Container]) {
        let known = self
            .known
            .observation
            .as_ref()
            .map(|seen| &seen.containers)
            .filter(|known| ***known == *containers);
        self.known.containers = Some(known.map_or_else(|| containers.into(), Arc::clone));
    }

    /// The containers as of the last inspection or check; empty before the first.
    pub(in crate::service) fn containers(&self) -> &[Container] {
        self.known.containers.as_deref().unwrap_or_default()
    }

    /// Handles a failed inspection.
    fn not_inspected(&mut self, error: &EngineError, now: Timestamp) {
        let is_deploying = self.durable.deployment.is_some();
        if is_deploying && error.is_unavailable() {
            self.healer.gaps.await_events(now);
        }
        if is_deploying || !self.durable.restart_states.is_empty() || !error.is_unavailable() {
            self.inspections.postpone(now + ENGINE_RETRY);
        } else if !self.healer.gaps.is_open() {
            // An engine that is only slow keeps its event stream, so that nothing tells that it can be asked again.
            self.inspections.request_by(now + heal::LOOK_AGAIN);
        }
    }

    /// The event stream is back after a gap.
    pub(in crate::service) fn engine_back(
        &mut self,
        at: Timestamp,
        engine_since: Option<Timestamp>,
        now: Timestamp,
    ) {
        // Otherwise the agent was not there: what the engine has stopped can't be told from what a person has.
        let was_seen = self.healer.gaps.is_lost();
        let Durable { stops, engine_stops, .. } = &mut self.durable;
        match self.healer.engine_back(stops, engine_stops, engine_since, at) {
            Some(Engine::Survived) => self.probation_continues(now),
            Some(Engine::Restarted) if was_seen => self.interrupted(now),
            Some(Engine::Restarted) => self.starts_over(now),
            None => {}
        }
        self.inspections.request_by(now);
    }

    /// Passes the containers on to the healer.
    fn heal(&mut self, containers: &[Container], now: Timestamp) {
        let own = self.project.healed_by(&self.config.name, containers);
        let durable = &mut self.durable;
        // A stop request before the current run says nothing about the end of this run. A start in the future dates from
        // before the clock was set back, and can't be compared.
        let ran_on = |c: &Container, at: Timestamp| {
            let is_later = |start: Timestamp| start >= at && start <= now;
            c.state == State::Running && c.started_at.is_some_and(is_later)
        };
        durable.stops.retain(|id, at| containers.iter().any(|c| c.id == *id && !ran_on(c, *at)));
        durable.engine_stops.retain(|id, _| containers.iter().any(|c| c.id == *id));
        durable.finished.retain(|id| containers.iter().any(|c| c.id == *id));
        self.known.served.retain(|id| containers.iter().any(|c| c.id == *id));
        let is_down = |c: &Container| !c.is_live() || c.state == State::Unknown;
        // It may have been started and stopped again between two inspections.
        let has_run_since =
            |c: &Container, at: Timestamp| c.started_at.is_some_and(|start| start > at && start <= now);
        let stays = |c: &Container, at: Timestamp| is_down(c) && !has_run_since(c, at);
        durable.left_stopped.retain(|id, left| containers.iter().any(|c| c.id == *id && stays(c, left.at)));
        let stops = Stops {
            requested: &durable.stops,
            by_engine: &durable.engine_stops,
            told: &self.known.told_to_stop,
        };
        let ends = heal::Ends { exit_codes: &self.known.exit_codes, stops };
        let restart_states = &mut durable.restart_states;
        let found = self.healer.look(restart_states, &own, ends, &self.restarting, &self.config, now);
        let is_other = |(name, _): &(String, PathBuf)| self.config.compose_project.as_ref() != Some(name);
        if durable.origin_of.as_ref().is_some_and(is_other) {
            durable.down.clear();
        }
        // A project that is gone was taken down.
        let is_gone = |service: &str| containers.iter().all(|c| c.compose_service != service);
        durable.down.retain(|service, _| !containers.is_empty() && is_gone(service));
        let has_ended = |c: &&Container| {
            !c.is_live() && durable.restart_states.get(&c.name).is_some_and(RestartState::has_ended)
        };
        let down = own.iter().filter(has_ended).filter(|c| !c.compose_service.is_empty());
        durable.down.extend(down.map(|c| (c.compose_service.clone(), c.name.clone())));
        for event in found.events {
            self.emit(event, now);
        }
        self.emitted.notes.extend(found.notes);
        if let Some(at) = found.inspect_at {
            self.inspections.request_by(at);
        }
    }
}

/// Since when the container that has been running for the longest has been running: so long the engine has stopped none.
fn runs_since(containers: &[Container]) -> Option<Timestamp> {
    containers.iter().filter(|c| c.state == State::Running).filter_map(|c| c.started_at).min()
}
