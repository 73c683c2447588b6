//! What follows from how the containers look: an answer for the rollout on probation, or for the healer.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{Container, EngineError, EventKind, State};

use super::action::Action;
use super::assess::Stops;
use super::rollout::step::Phase;
use super::{ENGINE_RETRY, Service, heal};

/// Events come in bursts: one inspection after the last of them is enough.
const SETTLE: Duration = Duration::from_millis(300);

impl Service {
    /// The inspection that is due.
    pub(super) fn next_inspection(&mut self, now: Timestamp) -> Option<Action> {
        if self.inspecting || self.inspect_at.is_none_or(|at| at > now) {
            return None;
        }
        self.inspect_at = None;
        if let Some(service) = self.swarm_name() {
            let service = service.to_owned();
            self.inspecting = true;
            return Some(Action::LookAtSwarm { generation: self.inspection_generation(), service });
        }
        let members = self.members()?;
        self.inspecting = true;
        Some(Action::Inspect { generation: self.inspection_generation(), members })
    }

    /// Something happened to a container.
    pub(super) fn event(&mut self, at: Timestamp, id: String, what: &EventKind, now: Timestamp) {
        match what {
            EventKind::Kill { signal } => {
                let known = self.containers().iter().find(|container| container.id == id);
                if heal::asks_to_stop(*signal, known) {
                    self.told_to_stop(id, at);
                }
            }
            EventKind::Stop => self.told_to_stop(id, at),
            EventKind::Die { exit_code } => {
                self.exits.insert(id, *exit_code);
            }
            EventKind::Destroy => {
                self.durable.stops.remove(&id);
                self.durable.engine_stops.remove(&id);
                self.exits.remove(&id);
            }
            _ => {}
        }
        // What a restart policy does with a container that ends is nobody's work.
        if matches!(what, EventKind::Kill { .. } | EventKind::Stop | EventKind::Destroy | EventKind::Other(_))
        {
            // Events of before are told again after a start of the agent.
            self.touched_at = self.touched_at.max(Some(at.min(now)));
        }
        let soon = now + SETTLE;
        self.inspect_at = Some(self.inspect_at.map_or(soon, |at| at.min(soon)));
    }

    fn told_to_stop(&mut self, id: String, at: Timestamp) {
        let durable = &mut self.durable;
        self.healer.stopped(&mut durable.stops, &mut durable.engine_stops, id, at);
    }

    /// The containers were read, or could not be.
    pub(super) fn inspected(&mut self, result: Result<Vec<Container>, EngineError>, now: Timestamp) {
        let containers = match result {
            Ok(containers) => self.with_exit_codes(containers),
            Err(error) => return self.not_inspected(&error, now),
        };
        self.compare_with_shutdown(&containers, now);
        if let Some(deployment) = &mut self.durable.deployment {
            let outcome = deployment.look(&containers, self.config.health_grace, &self.durable.stops, now);
            let phase = deployment.phase.clone();
            // Events tell of what was seen here.
            self.note_containers(&containers);
            if let Some(outcome) = outcome {
                match phase {
                    Phase::VerifyRollback { failed, .. } => self.rollback_seen(failed, outcome, now),
                    _ => self.probation_seen(outcome, now),
                }
            }
        }
        // While another service works on the project, how the containers are is its business.
        if self.durable.deployment.is_none() && !self.project.is_busy() {
            self.heal(&containers, now);
        }
        self.note_containers(&containers);
    }

    /// The containers as they are now. For the most part that is how the check has seen them: then they are kept once.
    pub(super) fn note_containers(&mut self, containers: &[Container]) {
        let known = self.seen.as_ref().map(|seen| &seen.containers).filter(|known| ***known == *containers);
        self.containers = Some(known.map_or_else(|| containers.into(), Arc::clone));
    }

    /// The containers as they were read last; none where they were not read yet.
    pub(super) fn containers(&self) -> &[Container] {
        self.containers.as_deref().unwrap_or_default()
    }

    /// The containers could not be read.
    fn not_inspected(&mut self, error: &EngineError, now: Timestamp) {
        let is_deploying = self.durable.deployment.is_some();
        if is_deploying && error.is_unavailable() {
            self.interrupted(now);
        }
        if is_deploying || !self.durable.restart_states.is_empty() || !error.is_unavailable() {
            self.inspect_at = Some(now + ENGINE_RETRY);
        }
    }

    /// Fills in the exit codes of containers that run again: an inspection no longer has them.
    fn with_exit_codes(&self, mut containers: Vec<Container>) -> Vec<Container> {
        let again = |c: &&mut Container| c.restart_count > 0 && c.exit_code == 0 && c.state != State::Exited;
        for container in containers.iter_mut().filter(again) {
            container.exit_code = self.exits.get(&container.id).copied().unwrap_or_default();
        }
        containers
    }

    /// Passes the containers on to the healer.
    fn heal(&mut self, containers: &[Container], now: Timestamp) {
        let own = self.project.healed_by(&self.config.name, containers);
        let durable = &mut self.durable;
        // A stop before the present run says nothing about the end of that. Times in the future are of before the clock was
        // set back, and can't be compared with those of after it.
        let ran_on = |c: &Container, at: Timestamp| {
            let is_later = |start: Timestamp| start >= at && (start <= now) == (at <= now);
            c.state == State::Running && c.started_at.is_some_and(is_later)
        };
        durable.stops.retain(|id, at| containers.iter().any(|c| c.id == *id && !ran_on(c, *at)));
        durable.engine_stops.retain(|id, _| containers.iter().any(|c| c.id == *id));
        let stops = Stops { asked: &durable.stops, by_engine: &durable.engine_stops };
        let ends = heal::Ends { told: &self.exits, stops };
        let restart_states = &mut durable.restart_states;
        let found = self.healer.look(restart_states, &own, ends, &self.restarting, &self.config, now);
        for event in found.events {
            self.emit(event, now);
        }
        self.notes.extend(found.notes);
        if let Some(at) = found.inspect_at {
            self.inspect_at = Some(self.inspect_at.map_or(at, |old| old.min(at)));
        }
    }
}
