//! Clock changes: deadlines are meant as elapsed time, so they are shifted when the machine's clock is set.

use jiff::{SignedDuration, Timestamp};

use crate::service::{Durable, Service};

/// A smaller difference between clock and elapsed time is not a clock change.
const MIN_JUMP: SignedDuration = SignedDuration::from_secs(2);

/// The longest time that an update waits after a failure before it is tried again.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_hours(24);

/// Whether this difference between clock and elapsed time means that the clock was set.
pub fn is_jump(by: &SignedDuration) -> bool {
    by.abs() > MIN_JUMP
}

fn move_by(at: &mut Timestamp, by: SignedDuration) {
    *at = at.checked_add(by).unwrap_or(*at);
}

impl Service {
    /// Shifts all deadlines after the clock was set by `by`, so that the remaining time does not change. Times reported by
    /// the engine are not shifted; they are only compared with each other.
    pub(in crate::service) fn shift(&mut self, by: SignedDuration) {
        let moved = |at: &mut Timestamp| move_by(at, by);
        let moved_if = |at: &mut Option<Timestamp>| at.iter_mut().for_each(moved);
        self.durable.shift(by);
        self.known.registry_answered_at.values_mut().for_each(moved);
        self.known.told_to_stop.values_mut().for_each(moved);
        self.healer.times().for_each(moved);
        self.healer.clock_was_set(by);
        self.starter.times().for_each(moved);
        self.gauges.times().for_each(moved);
        self.maintenance.times().for_each(moved);
        self.permits.times().for_each(moved);
        moved(&mut self.begun);
        moved(&mut self.last_input);
        moved_if(&mut self.inspections.due_at);
        moved_if(&mut self.steps.retry_at);
        moved_if(&mut self.probing.due_at);
        moved_if(&mut self.known.external_change_at);
        moved_if(&mut self.checks.again_at);
        moved_if(&mut self.checks.manual_at);
    }
}

impl Durable {
    /// Shifts the times of the durable state.
    pub(in crate::service) fn shift(&mut self, by: SignedDuration) {
        let moved = |at: &mut Timestamp| move_by(at, by);
        let moved_if = |at: &mut Option<Timestamp>| at.iter_mut().for_each(moved);
        if let Some(deployment) = &mut self.deployment {
            moved(&mut deployment.begun);
            moved(&mut deployment.since);
            deployment.outage.forget();
            if let Some(probation) = deployment.phase.probation_mut() {
                moved(&mut probation.since);
                probation.seen.values_mut().for_each(|seen| moved_if(&mut seen.unknown_since));
            }
            if let Some(watch) = deployment.phase.watch_mut() {
                moved_if(&mut watch.steady_since);
                moved_if(&mut watch.done_since);
                moved_if(&mut watch.unchanged_since);
            }
        }
        if let Some(last) = &mut self.last_deployment {
            moved(&mut last.at);
        }
        if let Some(watch) = &mut self.watch {
            moved(&mut watch.until);
        }
        self.postponed.iter_mut().for_each(|one| moved(&mut one.until));
        let not_copied = self.images.iter_mut().filter_map(|(_, memory)| memory.not_copied.as_mut());
        not_copied.for_each(|one| moved(&mut one.until));
        self.images.iter_mut().for_each(|(_, memory)| moved_if(&mut memory.behind_since));
        for found in self.images.found_mut() {
            moved(&mut found.first_seen);
            moved_if(&mut found.not_before);
            moved_if(&mut found.unread_since);
        }
        for restart in self.restart_states.values_mut() {
            moved_if(&mut restart.last_restart);
            moved_if(&mut restart.watched_since);
            moved_if(&mut restart.well_since);
            moved_if(&mut restart.told_at);
            restart.problem.iter_mut().for_each(|problem| moved(&mut problem.since));
        }
        if let Some(applied) = &mut self.files_applied {
            moved(&mut applied.at);
        }
        if let Some(clock) = &mut self.clock {
            moved(&mut clock.at);
            clock.is_behind &= by.is_negative();
        }
    }

    /// Sets times back that lie further ahead than they may, because the clock was ahead when they were recorded, or is behind
    /// now: nothing has begun after now, and nothing ends later than if it began now. `watch`: how long an update is watched.
    pub(in crate::service) fn cap(&mut self, now: Timestamp, watch: Option<SignedDuration>) {
        let cap = |at: &mut Timestamp| *at = (*at).min(now);
        let cap_if = |at: &mut Option<Timestamp>| at.iter_mut().for_each(cap);
        let cap_end = |at: &mut Timestamp, longest: SignedDuration| {
            *at = (*at).min(now.checked_add(longest).unwrap_or(Timestamp::MAX));
        };
        if let Some(deployment) = &mut self.deployment {
            cap(&mut deployment.begun);
            cap(&mut deployment.since);
            if let Some(probation) = deployment.phase.probation_mut() {
                cap(&mut probation.since);
                probation.seen.values_mut().for_each(|seen| cap_if(&mut seen.unknown_since));
            }
            if let Some(watch) = deployment.phase.watch_mut() {
                cap_if(&mut watch.steady_since);
                cap_if(&mut watch.done_since);
                cap_if(&mut watch.unchanged_since);
            }
        }
        if let Some(last) = &mut self.last_deployment {
            cap(&mut last.at);
        }
        if let (Some(watched), Some(longest)) = (&mut self.watch, watch) {
            cap(&mut watched.since);
            cap_end(&mut watched.until, longest);
        }
        self.postponed.iter_mut().for_each(|one| cap_end(&mut one.until, LONGEST_WAIT));
        let not_copied = self.images.iter_mut().filter_map(|(_, memory)| memory.not_copied.as_mut());
        not_copied.for_each(|one| cap_end(&mut one.until, LONGEST_WAIT));
        for found in self.images.found_mut() {
            cap_if(&mut found.not_before);
            cap_if(&mut found.unread_since);
        }
        for restart in self.restart_states.values_mut() {
            cap_if(&mut restart.last_restart);
            cap_if(&mut restart.watched_since);
            cap_if(&mut restart.well_since);
            cap_if(&mut restart.told_at);
            restart.problem.iter_mut().for_each(|problem| cap(&mut problem.since));
        }
        if let Some(applied) = &mut self.files_applied {
            cap(&mut applied.at);
        }
    }
}
