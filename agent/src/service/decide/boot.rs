//! The start of the agent: what happened to the containers meanwhile, and the deployment that was in progress.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::model::{Container, State};
use crate::service::Service;
use crate::service::boot::{Boot, NotedClock, ShutdownSnapshot, StartReason};
use crate::service::decide::clock_shift::is_jump;
use crate::service::event::{Event, Note};
use crate::service::health::assess::ran_since;
use crate::service::rollout::step::Phase;

impl Service {
    /// Decides how to treat containers that ended before the agent listened to events.
    ///
    /// A container that was ended by a signal while the agent was not running may have been stopped by an operator or
    /// killed, if the engine no longer reports the event (it keeps its last 256 events, and none across its own restart).
    /// If its last run began in this boot, it is left alone: undoing an operator's stop is worse than leaving a crashed container
    /// to be started manually, and an operator's stop is the more likely cause. If it began before a reboot, the container is
    /// started: the machine's shutdown ended all containers, and a service that stays down after a power failure is worse than
    /// one that has to be stopped twice. (For most containers ended by a power failure the engine itself reports this, with
    /// code 255.) If the agent had recorded what ran, what was down already is left alone as in the same boot. If the current boot ID is unknown, the container is started, as after a reboot. What ended before a service
    /// was added by a reload is treated as within the same boot.
    pub(in crate::service) fn on_start(&mut self, reason_to_start: StartReason, now: Timestamp) {
        let is_same_boot = match reason_to_start {
            StartReason::Start => self.boot.before.is_empty() || self.boot.before == self.boot.now,
            // It was not configured until now. A service that was takes over what it has received (`continuing`).
            StartReason::Reload => true,
        };
        if matches!(reason_to_start, StartReason::Start) {
            self.healer.listen(now);
            // A container may be failing its health check because somebody has been stopping it since before the start.
            self.healer.gaps.await_events(now);
        }
        if self.boot.now.is_empty() {
            return;
        }
        self.healer.events_unseen_before(now);
        // If what ran was recorded, the shutdown has ended nothing else, see `compare_with_shutdown`.
        if !is_same_boot && self.durable.at_shutdown.is_none() {
            self.healer.rebooted(self.boot.at);
        }
    }

    /// If the clock was set in this boot while the agent was not running, shifts the times of the durable state with it, as
    /// is done at runtime. Clock changes while the machine was down are unknown. In that case `first_seen` of a digest is
    /// set to now if it is in the future, or if it was recorded by a clock that is known to have been behind. Other times are
    /// set back as far as they lie too far ahead.
    pub(in crate::service) fn follow_clock(&mut self, now: Timestamp) {
        let Boot { now: boot, at, .. } = self.boot.clone();
        match self.durable.clock.take() {
            Some(noted) if noted.boot == *boot => {
                let jump = at.duration_since(noted.at);
                self.durable.clock = Some(noted);
                if is_jump(&jump) {
                    self.durable.shift(jump);
                }
                let told = self.durable.stops.iter();
                self.known.told_to_stop =
                    told.map(|(id, at)| (id.clone(), at.checked_add(jump).unwrap_or(*at))).collect();
            }
            noted => {
                let images = &mut self.durable.images;
                let is_behind = images.found().any(|found| found.first_seen > now);
                if noted.is_some_and(|noted| noted.is_behind) {
                    for known in images.found_mut() {
                        known.first_seen = now;
                    }
                }
                let watch = self.watch_length();
                self.durable.cap(now, watch);
                let boot = boot.to_string();
                self.durable.clock = (!boot.is_empty()).then_some(NotedClock { boot, at, is_behind });
            }
        }
        self.cap_first_seen(now);
    }

    /// Resumes the deployment that was in progress, if any.
    pub(in crate::service) fn resume(&mut self, reason: StartReason, now: Timestamp) {
        if let Some(deployment) = &mut self.durable.deployment {
            // Compose may have run already.
            deployment.must_look = false;
            if deployment.phase == Phase::BeforeHook {
                // It runs again, and has all of its time.
                deployment.since = now;
            }
        }
        let Some(deployment) = &self.durable.deployment else { return };
        let in_swarm = deployment.plan().swarm.is_some();
        if self.current_project().is_none() && !in_swarm {
            self.emitted.notes.push(Note::DeploymentDropped);
            self.durable.deployment = None;
            return;
        }
        let (image_changes, step) = (deployment.plan().image_changes.clone(), deployment.phase.name());
        let (since, is_on_probation) = (deployment.since, deployment.phase.is_probation());
        self.emit(Event::Resumed { image_changes, step, reason }, now);
        if in_swarm {
            return self.watch_again(now);
        }
        // It has missed no event, and what a person stops must stay stopped.
        if reason == StartReason::Reload && is_on_probation {
            return;
        }
        let is_same_boot = !self.boot.now.is_empty() && self.boot.before == self.boot.now;
        if reason == StartReason::Start && is_same_boot && is_on_probation {
            // Somebody may have stopped containers meanwhile; the events will tell, and whether the engine was restarted.
            self.healer.gaps.await_events(since);
            return;
        }
        self.copy_cut_short(now);
        // Machine and engine may have been restarted too: bring the project up again and restart the probation. What the
        // shutdown has stopped can't be told from what a person has.
        self.starts_over(now);
    }

    /// The agent is shutting down: records the running containers.
    pub(in crate::service) fn on_shutdown(&mut self) {
        // Nothing is known before the first inspection.
        if self.known.containers.is_none() || self.boot.now.is_empty() {
            return;
        }
        let running: BTreeSet<String> = self.running().map(|container| container.id.clone()).collect();
        self.durable.at_shutdown = Some(ShutdownSnapshot { boot: self.boot.now.to_string(), running });
    }

    /// Marks containers as stopped by the engine if they ran when the agent was stopped in an earlier boot, and have
    /// exited since, without having run in this boot. Within the same boot they may have been stopped by anyone.
    pub(in crate::service) fn compare_with_shutdown(&mut self, containers: &[Container], now: Timestamp) {
        let Some(left) = self.durable.at_shutdown.take() else { return };
        if self.boot.now.is_empty() || left.boot == *self.boot.now {
            return;
        }
        let stopped = containers.iter().filter(|c| c.state == State::Exited && left.running.contains(&c.id));
        let boot = self.boot.at;
        let stopped = stopped.filter(|c| !ran_since(c, boot, now));
        let stopped = stopped.map(|c| (c.id.clone(), c.finished_at.unwrap_or(now)));
        self.durable.engine_stops.extend(stopped);
    }
}
