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
        moved(&mut self.boot.at);
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
        if let Some(deployment) = &mut self.deployment {
            deployment.outage.forget();
        }
        self.change_times(SignedDuration::MAX, &|at, _| move_by(at, by));
        self.watch.iter_mut().for_each(|watch| watch.clock_was_set(by));
        self.images.found_mut().for_each(|found| move_by(&mut found.first_seen, by));
        if let Some(clock) = &mut self.clock {
            move_by(&mut clock.at, by);
            clock.is_behind &= by.is_negative();
        }
    }

    /// Sets times back that lie further ahead than they may, because the clock was ahead when they were recorded, or is behind
    /// now: nothing has begun after now, and nothing ends later than if it began now. `watch`: how long an update is watched.
    pub(in crate::service) fn cap(&mut self, now: Timestamp, watch: Option<SignedDuration>) {
        let cap = |at: &mut Timestamp, longest: Option<SignedDuration>| {
            let latest = now.checked_add(longest.unwrap_or_default()).unwrap_or(Timestamp::MAX);
            *at = (*at).min(latest);
        };
        self.change_times(watch.unwrap_or(SignedDuration::MAX), &cap);
    }

    /// Changes each time that is compared with the clock, but those at which digests were first seen and watched containers
    /// have crashed. With the end of something comes the longest that it takes, which is `watch` for what is watched after an
    /// update.
    fn change_times(
        &mut self,
        watch: SignedDuration,
        change: &impl Fn(&mut Timestamp, Option<SignedDuration>),
    ) {
        let since = |at: &mut Timestamp| change(at, None);
        let since_if = |at: &mut Option<Timestamp>| at.iter_mut().for_each(since);
        if let Some(deployment) = &mut self.deployment {
            since(&mut deployment.begun);
            since(&mut deployment.since);
            if let Some(probation) = deployment.phase.probation_mut() {
                since(&mut probation.since);
                probation.seen.values_mut().for_each(|seen| since_if(&mut seen.unknown_since));
            }
            if let Some(watch) = deployment.phase.watch_mut() {
                since_if(&mut watch.steady_since);
                since_if(&mut watch.done_since);
                since_if(&mut watch.unchanged_since);
                since_if(&mut watch.replaced_since);
            }
        }
        if let Some(last) = &mut self.last_deployment {
            since(&mut last.at);
        }
        if let Some(fault) = &mut self.fault {
            since(&mut fault.since);
        }
        for watched in &mut self.watch {
            since(&mut watched.since);
            change(&mut watched.until, Some(watch));
        }
        self.postponed.iter_mut().for_each(|one| change(&mut one.until, Some(LONGEST_WAIT)));
        for (_, memory) in self.images.iter_mut() {
            memory.not_copied.iter_mut().for_each(|one| change(&mut one.until, Some(LONGEST_WAIT)));
            since_if(&mut memory.behind_since);
        }
        for found in self.images.found_mut() {
            since_if(&mut found.not_before);
            since_if(&mut found.unread_since);
        }
        for restart in self.restart_states.values_mut() {
            since_if(&mut restart.last_restart);
            since_if(&mut restart.watched_since);
            since_if(&mut restart.well_since);
            since_if(&mut restart.told_at);
            restart.problem.iter_mut().for_each(|problem| since(&mut problem.since));
        }
        if let Some(applied) = &mut self.files_applied {
            since(&mut applied.at);
        }
    }
}
