//! The watch over a new image after its probation (DECISIONS 4).

use jiff::{SignedDuration, Timestamp};

use crate::model::Container;
use crate::service::rollout::plan::{Cause, GoBack, GoBackReason, ImageChange, LateFailure};
use crate::service::upkeep::late::{LateWatch, SETTLED};
use crate::service::{Durable, Service, wording};

/// How many unwanted exits within [`WINDOW`] are too many.
const MAX_EXITS: usize = 3;
const WINDOW: SignedDuration = SignedDuration::from_mins(10);

impl Service {
    /// Begins to watch the images of an update that has just been proven.
    pub(in crate::service) fn begin_late_watch(&mut self, changes: &[ImageChange], now: Timestamp) {
        self.end_watch_over(changes);
        // A swarm has its own `monitor`, and nobody goes back to an earlier image there.
        let Some(length) = self.watch_length().filter(|_| self.config.swarm_service.is_none()) else {
            self.durable.watch.clear();
            return;
        };
        self.durable.watch.push(LateWatch {
            since: now,
            until: now.checked_add(length).unwrap_or(Timestamp::MAX),
            images: changes.iter().map(|change| change.configured.clone()).collect(),
            exits: Vec::new(),
            clock_set: Vec::new(),
        });
    }

    /// Ends the watch over these images, in whose place others run by now. Those that were updated with them are watched on.
    pub(in crate::service) fn end_watch_over(&mut self, changes: &[ImageChange]) {
        let mut watches = std::mem::take(&mut self.durable.watch);
        for LateWatch { images, exits, .. } in &mut watches {
            let before = images.len();
            images.retain(|name| changes.iter().all(|change| change.configured != *name));
            if images.len() < before {
                let images = &*images;
                let is_left = |c: &Container| self.is_made_from_any(c, images);
                exits.retain(|(_, id)| self.containers().iter().any(|c| c.id == *id && is_left(c)));
            }
        }
        watches.retain(|watch| !watch.images.is_empty());
        self.durable.watch = watches;
    }

    /// How long an update is watched; `None` if it is not.
    pub(in crate::service) fn watch_length(&self) -> Option<SignedDuration> {
        let seconds = self.config.update.as_ref()?.watch.as_secs();
        (seconds > 0).then(|| SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX)))
    }

    /// Ends the watch that has asked for this way back, which is tried once. After a person's, which may fail, it goes on.
    pub(in crate::service) fn end_watch_that_asked(&mut self, back: &GoBack) {
        if back.why != GoBackReason::ByHand {
            let goes = |name: &String| back.to.iter().any(|to| to.configured == *name);
            self.durable.watch.retain(|watch| !watch.images.iter().any(goes));
        }
    }

    /// Notes that a container has exited, if nobody wanted that.
    pub(in crate::service) fn note_exit(&mut self, id: &str, at: Timestamp, exit_code: i64) {
        if self.is_deploying() {
            return;
        }
        let Some(container) = self.containers().iter().find(|c| c.id == id) else { return };
        let is_on = |watch: &LateWatch| {
            at >= watch.since && at <= watch.until && self.is_made_from_any(container, &watch.images)
        };
        let Some(watching) = self.durable.watch.iter().position(is_on) else { return };
        let is_own = self.restarting.contains(&container.name);
        let stop = self.durable.stops.get(id);
        // A start after the exit dates from before the clock was set back, or is that of the next run.
        let of_this_run =
            |stop: &Timestamp| container.started_at.is_none_or(|start| *stop >= start || start > at);
        let is_stopped = stop.is_some_and(of_this_run);
        // It has finished its work, even if the engine starts it again (DECISIONS 5).
        let has_finished = exit_code == 0;
        let watch = &mut self.durable.watch[watching];
        if is_own || is_stopped || has_finished || watch.has_noted(at, id) {
            return;
        }
        watch.exits.push((at, id.to_owned()));
        self.inspections.request_by(at + SETTLED);
    }

    fn is_made_from_any(&self, container: &Container, images: &[String]) -> bool {
        let mut images =
            images.iter().filter_map(|name| self.config.images.iter().find(|i| i.configured == *name));
        images.any(|image| container.is_made_from(self.reference_of(image)))
    }

    /// Goes back to the earlier images if those of an update fail by now.
    pub(in crate::service) fn follow_late_watch(&mut self, now: Timestamp) {
        if self.durable.is_deploying()
            || self.going_back.is_some()
            || matches!(self.wanted, Some(Cause::GoBack(_)))
        {
            return;
        }
        let failed = |watch: &LateWatch| Some((watch.images.clone(), self.late_failure(watch, now)?));
        let failed = self.durable.watch.iter().find_map(failed);
        let Some((images, reason)) = failed else {
            self.durable.watch.retain(|watch| now <= watch.until + SETTLED);
            return;
        };
        let Ok(to) = self.earlier_of(&images) else {
            // There is nothing to go back to.
            self.durable.watch.retain(|watch| watch.images != images);
            return;
        };
        let has_snapshot = self.config.update.as_ref().is_some_and(|update| update.snapshot.is_some());
        if has_snapshot {
            // Without a digest a person would go back from what was updated last.
            let is_last = self.earlier(None).is_ok_and(|last| last == to);
            let named = to.first().map(|one| &one.digest).filter(|_| !is_last);
            let has_data = self.data_with(&to).is_some();
            let why = wording::go_back::left_to_a_person(&self.config.name, named, has_data);
            let back = GoBack { to, data: None, why: GoBackReason::Late { reason } };
            return self.not_gone_back(back, why, String::new(), now);
        }
        self.going_back = Some(GoBack { to, data: None, why: GoBackReason::Late { reason } });
        self.checks.request_redeploy();
    }

    fn late_failure(&self, watch: &LateWatch, now: Timestamp) -> Option<LateFailure> {
        let is_of_update = |name: &String| {
            let mut containers = self.containers().iter().filter(|c| c.name == *name);
            containers.any(|c| self.is_made_from_any(c, &watch.images))
        };
        let mut exhausted = self.durable.restart_states.iter().filter(|(_, restart)| restart.is_given_up());
        if let Some((name, _)) = exhausted.find(|(name, _)| is_of_update(name)) {
            return Some(LateFailure::RestartsExhausted { container: name.clone() });
        }
        let mut exits: Vec<Timestamp> =
            watch.exits.iter().map(|(at, _)| *at).filter(|at| now.duration_since(*at) >= SETTLED).collect();
        exits.sort();
        let is_close = |of: &[Timestamp]| of[MAX_EXITS - 1].duration_since(of[0]) <= WINDOW;
        exits
            .windows(MAX_EXITS)
            .any(is_close)
            .then(|| LateFailure::Crashes { crashes: MAX_EXITS, minutes: WINDOW.as_mins() })
    }
}

impl Durable {
    /// Forgets exits that an engine going away at this time may have caused.
    pub(in crate::service) fn forget_exits_before_gap(&mut self, at: Timestamp) {
        for watch in &mut self.watch {
            watch.exits.retain(|(exit, _)| *exit < at - SETTLED);
        }
    }
}
