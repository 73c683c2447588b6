//! The next remedy for a failing container, and its result (DECISIONS 5).

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::model::{Container, EngineError, State};
use crate::service::action::Action;
use crate::service::event::Event;
use crate::service::health::assess::{self, Condition, Trouble};
use crate::service::health::healer::Remedy;
use crate::service::health::restart_state::{self, RestartState};
use crate::service::state::WhyLeft;
use crate::service::{ENGINE_RETRY, Service};

/// The IDs of the containers for which `is_down` holds, of compose services of which nothing runs.
pub(in crate::service) fn down(
    containers: &[Container],
    is_down: impl Fn(&Container) -> bool,
) -> BTreeSet<String> {
    let runs = |service: &str| containers.iter().any(|c| c.is_live() && c.compose_service == service);
    let down = containers.iter().filter(|c| !runs(&c.compose_service) && is_down(c));
    down.map(|c| c.id.clone()).collect()
}

impl Service {
    /// Returns the next remedy with its time and container name.
    pub(in crate::service) fn next_remedy(&self) -> Option<(Timestamp, &str, &Remedy)> {
        let (states, restarting) = (&self.durable.restart_states, self.restarting.len());
        // To make a container anew is a deployment.
        let is_deploying = self.durable.is_deploying();
        let waits = |name: &str, remedy: &Remedy| {
            (is_deploying && matches!(remedy, Remedy::Recreate { .. })) || self.is_left_alone(name)
        };
        self.healer.next_remedy(states, restarting, &self.config, waits)
    }

    /// Whether a container runs an image whose rollback failed: it is not touched until a user acts (DECISIONS 4).
    fn is_left_alone(&self, name: &str) -> bool {
        let is_unproven = |c: &Container| self.durable.images.is_unproven(&c.image);
        self.durable.rollback_failed && self.containers().iter().any(|c| c.name == name && is_unproven(c))
    }

    /// Whether the healer is working on a container that it does not leave alone, and that it has a remedy for.
    pub(in crate::service) fn is_healing(&self) -> bool {
        let mut states = self.durable.restart_states.iter();
        let is_cut_off = |name: &str| {
            self.containers().iter().any(|c| c.name == name && assess::is_cut_off(c, &self.config))
        };
        self.config.auto_heal
            && states.any(|(name, restart)| {
                restart.is_being_healed() && !self.is_left_alone(name) && !is_cut_off(name)
            })
    }

    /// Whether containers are failing, and the healer leaves all of them as they are for now: it has given up on them, waits
    /// for the end of a cooldown, or watches a restart.
    pub(in crate::service) fn is_left_failing(&self, containers: &[Container], now: Timestamp) -> bool {
        let is_failing = |c: &&Container| matches!(self.condition(c), Condition::Failing(_));
        let mut failing = containers.iter().filter(is_failing).peekable();
        let is_left = |restart: &RestartState| {
            let due = restart_state::restart_at(restart, &self.config);
            restart.exhausted || restart.watched_since.is_some() || due.is_some_and(|at| at > now)
        };
        self.config.auto_heal
            && failing.peek().is_some()
            && failing.all(|c| self.durable.restart_states.get(&c.name).is_some_and(is_left))
    }

    /// The containers, by ID, that an update is to replace although they are down: those that have crashed, if nothing of
    /// their compose service runs. With `auto_start`, a project of which nothing runs is started as a whole.
    pub(in crate::service) fn crashed(&self, containers: &[Container], now: Timestamp) -> BTreeSet<String> {
        if self.starts_project(containers) {
            return BTreeSet::new();
        }
        down(containers, |c| self.has_crashed(c, now))
    }

    /// Whether a container is down because it has failed. A job that has failed is not run again, and neither is what
    /// somebody may have stopped unseen. One that was left stopped on data that was put back is replaced, since another image
    /// may run on that.
    fn has_crashed(&self, container: &Container, now: Timestamp) -> bool {
        match self.durable.left_stopped.get(&container.id).map(|left| left.why) {
            Some(WhyLeft::EarlierData) => return container.state == State::Exited,
            Some(WhyLeft::MixedData) => return false,
            None => {}
        }
        let restart = self.durable.restart_states.get(&container.name);
        let is_job = container.is_one_shot()
            && !restart.is_some_and(|restart| restart.exhausted)
            && !self.durable.images.is_unproven(&container.image);
        let is_known = restart.is_some_and(|restart| !restart.has_no_known_problem());
        container.state == State::Exited
            && self.is_wanted(container)
            && !is_job
            && (is_known || !self.healer.is_of_unknown_cause(container, &self.known.exit_codes, now))
    }

    pub(in crate::service) fn remedy_due(&self, now: Timestamp) -> Option<(String, Remedy)> {
        let (_, name, remedy) = self.next_remedy().filter(|(at, ..)| *at <= now)?;
        Some((name.to_owned(), remedy.clone()))
    }

    pub(in crate::service) fn begin_restart(&mut self, name: String, id: String, now: Timestamp) -> Action {
        self.restarting.insert(name.clone());
        self.begin_remedy(&name, false, now);
        Action::Restart { name, id }
    }

    pub(in crate::service) fn begin_remedy(&mut self, name: &str, recreates: bool, now: Timestamp) {
        self.generation += 1;
        let restart = self.durable.restart_states.entry(name.to_owned()).or_default();
        restart_state::begin_restart(restart, now);
        let problem = restart.problem.as_ref().map(|problem| problem.what.clone());
        self.emit(Event::Restarting { container: name.to_owned(), recreates, problem }, now);
    }

    pub(in crate::service) fn restarted(
        &mut self,
        name: &str,
        result: Result<(), EngineError>,
        now: Timestamp,
    ) {
        let Some(restart) = self.durable.restart_states.get_mut(name) else { return };
        match result {
            Ok(()) => {}
            // The outcome is unknown: the container may or may not have been restarted.
            Err(error) if error.is_unavailable() => {
                restart.watched_since = None;
                (restart.last_restart, restart.restarted) = (None, None);
                self.healer.inspect_first();
                self.inspections.postpone(now + ENGINE_RETRY);
                self.emit(Event::RestartUnanswered, now);
            }
            Err(error) => {
                let (config, what) = (&self.config, Trouble::Words(error.to_string()));
                let ended = restart.problem.as_ref().is_none_or(|problem| problem.ended);
                let failed = restart_state::restart_failed(restart, config, name, (what, ended), now);
                self.emit(failed, now);
            }
        }
    }
}
