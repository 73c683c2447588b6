//! When the machine's clock is set: waiting times are meant as time that passes, so they move with it.

use jiff::{SignedDuration, Timestamp};

use super::{Durable, Service};

/// A clock that differs by less from the time that passed was not set.
const LEAST_JUMP: SignedDuration = SignedDuration::from_secs(2);

/// Whether a clock that differs by so much from the time that passed was set.
pub fn is_jump(by: &SignedDuration) -> bool {
    by.abs() > LEAST_JUMP
}

fn move_by(at: &mut Timestamp, by: SignedDuration) {
    *at = at.checked_add(by).unwrap_or(*at);
}

impl Service {
    /// The clock was set by `by`. All that is waited for stays as far away as it was; times that the engine gave
    /// are its own, and are only compared with each other.
    pub fn shift(&mut self, by: SignedDuration) {
        let moved = |at: &mut Timestamp| move_by(at, by);
        let moved_if = |at: &mut Option<Timestamp>| at.iter_mut().for_each(moved);
        self.durable.shift(by);
        self.looked.values_mut().for_each(moved);
        self.healer.times().for_each(moved);
        self.healer.clock_was_set(by);
        self.starter.times().for_each(moved);
        self.gauges.times().for_each(moved);
        self.maintenance.times().for_each(moved);
        moved(&mut self.begun);
        moved(&mut self.last_input);
        moved_if(&mut self.inspect_at);
        moved_if(&mut self.retry_at);
        moved_if(&mut self.touched_at);
        moved_if(&mut self.recheck_at);
    }
}

impl Durable {
    /// The same of what outlives the agent.
    pub(super) fn shift(&mut self, by: SignedDuration) {
        let moved = |at: &mut Timestamp| move_by(at, by);
        let moved_if = |at: &mut Option<Timestamp>| at.iter_mut().for_each(moved);
        if let Some(deployment) = &mut self.deployment {
            moved(&mut deployment.begun);
            moved(&mut deployment.since);
            if let Some(probation) = deployment.phase.probation_mut() {
                moved(&mut probation.since);
            }
        }
        if let Some(rollout) = &mut self.swarm {
            moved(&mut rollout.begun);
            moved(&mut rollout.since);
            if let Some(watch) = rollout.phase.watch_mut() {
                moved_if(&mut watch.steady_since);
                moved_if(&mut watch.done_since);
            }
        }
        self.postponed.iter_mut().for_each(|one| moved(&mut one.until));
        for found in &mut self.found {
            moved(&mut found.first_seen);
            moved_if(&mut found.not_before);
        }
        for restart in self.restart_states.values_mut() {
            moved_if(&mut restart.last_restart);
            moved_if(&mut restart.watched_since);
            moved_if(&mut restart.well_since);
            restart.problem.iter_mut().for_each(|problem| moved(&mut problem.since));
        }
        if let Some(clock) = &mut self.clock {
            moved(&mut clock.at);
            clock.is_behind &= by.is_negative();
        }
    }
}
