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
        // A swarm has its own `monitor`, and nobody goes back to an earlier image there.
        let length = self.watch_length().filter(|_| self.config.swarm_service.is_none());
        self.durable.watch = length.map(|length| LateWatch {
            since: now,
            until: now.checked_add(length).unwrap_or(Timestamp::MAX),
            images: changes.iter().map(|change| change.configured.clone()).collect(),
            exits: Vec::new(),
        });
    }

    /// How long an update is watched; `None` if it is not.
    pub(in crate::service) fn watch_length(&self) -> Option<SignedDuration> {
        let seconds = self.config.update.as_ref()?.watch.as_secs();
        (seconds > 0).then(|| SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX)))
    }

    /// Ends the watch that has asked for this way back, which is tried once. After a person's, which may fail, it goes on.
    pub(in crate::service) fn end_watch_that_asked(&mut self, back: &GoBack) {
        if back.why != GoBackReason::ByHand {
            self.durable.watch = None;
        }
    }

    /// Notes that a container has exited, if nobody wanted that.
    pub(in crate::service) fn note_exit(&mut self, id: &str, at: Timestamp, exit_code: i64) {
        let Some(watch) = self.durable.watch.as_ref().filter(|_| !self.is_deploying()) else {
            return;
        };
        if at < watch.since || at > watch.until {
            return;
        }
        let Some(container) = self.containers().iter().find(|c| c.id == id && self.is_watched(c)) else {
            return;
        };
        let is_own = self.restarting.contains(&container.name);
        let stop = self.durable.stops.get(id);
        // A start after the exit dates from before the clock was set back, or is that of the next run.
        let of_this_run =
            |stop: &Timestamp| container.started_at.is_none_or(|start| *stop >= start || start > at);
        let is_stopped = stop.is_some_and(of_this_run);
        // It has finished its work, even if the engine starts it again (DECISIONS 5).
        let has_finished = exit_code == 0;
        let exit = (at, id.to_owned());
        if is_own || is_stopped || has_finished || watch.exits.contains(&exit) {
            return;
        }
        if let Some(watch) = &mut self.durable.watch {
            watch.exits.push(exit);
        }
        self.inspections.request_by(at + SETTLED);
    }

    fn is_watched(&self, container: &Container) -> bool {
        let watched = self.durable.watch.iter().flat_map(|watch| &watch.images);
        let mut images = watched.filter_map(|name| self.config.images.iter().find(|i| i.configured == *name));
        images.any(|image| container.is_made_from(self.reference_of(image)))
    }

    /// Goes back to the earlier images if those of the last update fail by now.
    pub(in crate::service) fn follow_late_watch(&mut self, now: Timestamp) {
        let Some(watch) = &self.durable.watch else { return };
        if self.durable.is_deploying()
            || self.going_back.is_some()
            || matches!(self.wanted, Some(Cause::GoBack(_)))
        {
            return;
        }
        let Some(reason) = self.late_failure(now) else {
            if now > watch.until + SETTLED {
                self.durable.watch = None;
            }
            return;
        };
        let has_snapshot = self.config.update.as_ref().is_some_and(|update| update.snapshot.is_some());
        match self.way_back(None, false) {
            Ok((to, data)) if has_snapshot => {
                let why = wording::go_back::left_to_a_person(&self.config.name, data.is_some());
                let back = GoBack { to, data: None, why: GoBackReason::Late { reason } };
                self.not_gone_back(back, why, String::new(), now);
            }
            Ok((to, _)) => {
                self.going_back = Some(GoBack { to, data: None, why: GoBackReason::Late { reason } });
                self.checks.request_redeploy();
            }
            // There is nothing to go back to.
            Err(_) => self.durable.watch = None,
        }
    }

    fn late_failure(&self, now: Timestamp) -> Option<LateFailure> {
        let watch = self.durable.watch.as_ref()?;
        let is_of_update =
            |name: &String| self.containers().iter().any(|c| c.name == *name && self.is_watched(c));
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
        if let Some(watch) = &mut self.watch {
            watch.exits.retain(|(exit, _)| *exit < at - SETTLED);
        }
    }
}
