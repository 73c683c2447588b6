//! The condition of each container, from what is known of it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::model::{Awaited, Container, HealthState, State};
use crate::service::Service;
use crate::service::health::assess::{
    Condition, LONGEST_STOP, STOP_SLACK, StopProgress, Stops, assess, signed,
};
use crate::service::observation::Observation;
use crate::service::rollout::baseline::NO_STOPS;

/// Follows a stop. `at`: when it was told to stop, by the engine's clock then; `told_at`: the same by the clock as it is set
/// now. `is_signal`: it was told by a signal only, which no stop follows up.
fn stop_progress(
    container: &Container,
    (at, told_at): (Timestamp, Timestamp),
    is_signal: bool,
    now: Timestamp,
) -> StopProgress {
    // A start in the future dates from before the clock was set back, and can't be compared.
    let is_of_this_run = container.started_at.is_some_and(|start| start <= at || start > now);
    // A time far in the future dates from before the clock was set back.
    let is_recent = now.duration_since(told_at).abs() <= signed(LONGEST_STOP);
    if container.state != State::Running || !is_of_this_run || !is_recent {
        return StopProgress::None;
    }
    let limit = told_at + container.stop_timeout + STOP_SLACK;
    if now < limit {
        return StopProgress::Stopping;
    }
    // Without a health check nothing tells whether it is still stopping, and nothing depends on it.
    let Some(health) = container.health.filter(|_| !is_signal) else { return StopProgress::None };
    if health == HealthState::Healthy && container.probed_at.is_some_and(|probed| probed >= limit) {
        return StopProgress::GoesOn;
    }
    StopProgress::Stopping
}

/// The compose services that compose waits for to end before it starts the container.
fn awaited_ends(container: &Container) -> impl Iterator<Item = &str> {
    let awaited = container.waits_for.iter().filter(|(_, what)| *what == Awaited::Completed);
    awaited.map(|(service, _)| service.as_str())
}

impl Service {
    /// Adds what only events and earlier inspections tell about containers: the exit codes of earlier runs, which have served,
    /// who is being stopped, and which results of health checks are older than a pause.
    pub(in crate::service) fn with_events(
        &mut self,
        mut containers: Vec<Container>,
        now: Timestamp,
    ) -> Vec<Container> {
        let jobs: BTreeSet<String> = containers.iter().flat_map(awaited_ends).map(str::to_owned).collect();
        for container in &mut containers {
            let id = &container.id;
            if container.served || container.health == Some(HealthState::Healthy) {
                self.known.served.insert(id.clone());
            }
            // The health check of a job is that of its image, which others serve with.
            container.served = self.known.served.contains(id) && !jobs.contains(&container.compose_service);
            // An inspection no longer reports the exit code of the last run once the next one has begun.
            if container.restart_count > 0 && container.exit_code == 0 && container.state != State::Exited {
                container.exit_code = self.known.exit_codes.get(id).copied().unwrap_or_default();
            }
            let stop = self.durable.stops.get(id).copied();
            if stop.is_some_and(|at| self.is_of_failed_restart(container, at)) {
                self.durable.stops.remove(id);
                self.known.told_to_stop.remove(id);
            }
            let stop = self.durable.stops.get(id).zip(self.known.told_to_stop.get(id));
            if let Some((at, told)) = stop.map(|(at, told)| (*at, *told)) {
                let is_signal = self.known.signals.get(id) == Some(&at);
                match stop_progress(container, (at, told), is_signal, now) {
                    StopProgress::None => {}
                    StopProgress::Stopping => container.is_stopping = true,
                    StopProgress::GoesOn => {
                        self.known.signals.insert(id.clone(), at);
                    }
                }
            }
            let is_older = |at: &Timestamp| container.probed_at.is_some_and(|probed| probed <= *at);
            if container.health == Some(HealthState::Unhealthy)
                && self.known.resumed.get(id).is_some_and(is_older)
            {
                container.health = Some(HealthState::Unmeasured);
            }
        }
        containers
    }

    /// Whether a stop was the first half of a restart by the healer whose start has failed. Its event may be read late, or
    /// again after the event stream was interrupted.
    fn is_of_failed_restart(&self, container: &Container, at: Timestamp) -> bool {
        let restart = self.durable.restart_states.get(&container.name);
        // Earlier versions did not record the time by the clock as it was set then.
        let restarted = restart.and_then(|restart| restart.restarted.or(restart.last_restart));
        restarted.is_some_and(|restart| {
            container.started_at.is_some_and(|start| start < restart)
                && at >= restart
                && at <= restart + container.stop_timeout + STOP_SLACK
        })
    }

    /// The same for the containers of a check.
    pub(in crate::service) fn with_events_in(
        &mut self,
        mut seen: Observation,
        now: Timestamp,
    ) -> Observation {
        // They are shared with other parts of the state as long as they are equal.
        let containers = self.with_events(seen.containers.to_vec(), now);
        if *containers != *seen.containers {
            seen.containers = containers.into();
        }
        seen
    }

    /// Assesses one of the service's containers.
    pub(in crate::service) fn condition(&self, container: &Container) -> Condition {
        let stops = Stops {
            requested: &self.durable.stops,
            by_engine: &self.durable.engine_stops,
            told: &self.known.told_to_stop,
        };
        // Stopped by the agent, and not by a person.
        let stops = if self.durable.left_stopped.contains_key(&container.id) { NO_STOPS } else { stops };
        let in_crash_loop = self.healer.is_in_crash_loop(container, self.last_input);
        assess(container, stops, in_crash_loop, self.last_input)
    }
}
