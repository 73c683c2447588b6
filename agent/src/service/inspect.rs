//! What follows from how the containers look: an answer for the rollout on probation, or for the healer.

use jiff::Timestamp;

use crate::model::{Container, EngineError, State};

use super::assess::Stops;
use super::rollout::step::Phase;
use super::{ENGINE_RETRY, Service, heal};

impl Service {
    /// The containers were read, or could not be.
    pub(super) fn inspected(&mut self, result: Result<Vec<Container>, EngineError>, now: Timestamp) {
        let containers = match result {
            Ok(containers) => self.with_exit_codes(containers),
            Err(error) => return self.not_inspected(&error, now),
        };
        self.compare_with_shutdown(&containers, now);
        if let Some(deployment) = &mut self.durable.deployment {
            let outcome = deployment.look(&containers, self.config.health_grace, &self.durable.stops, now);
            // Events tell of what was seen here.
            self.containers = Some(containers.clone());
            if let Some(outcome) = outcome {
                match deployment.phase.clone() {
                    Phase::VerifyRollback { failed, .. } => self.rollback_seen(failed, outcome, now),
                    _ => self.probation_seen(outcome, now),
                }
            }
        }
        // While another service works on the project, how the containers are is its business.
        if self.durable.deployment.is_none() && !self.project.is_busy {
            self.heal(&containers, now);
        }
        self.containers = Some(containers);
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
        durable.stops.retain(|id, _| containers.iter().any(|c| c.id == *id));
        durable.engine_stops.retain(|id, _| containers.iter().any(|c| c.id == *id));
        let stops = Stops { asked: &durable.stops, by_engine: &durable.engine_stops };
        let ends = heal::Ends { told: &self.exits, stops };
        let restart_states = &mut durable.restart_states;
        let found = self.healer.look(restart_states, &own, ends, &self.restarting, &self.config, now);
        for event in found.events {
            self.emit(event, now);
        }
        if let Some(at) = found.inspect_at {
            self.inspect_at = Some(self.inspect_at.map_or(at, |old| old.min(at)));
        }
    }
}
