//! What follows when the agent or the machine stops and starts: which deployment is resumed, and what stopped because
//! the machine went down. An orderly shutdown ends containers as a person would, one by one and with exit code
//! 0, and the agent is gone by then.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{Container, State};

use super::clock_shift::is_jump;
use super::event::{Event, Note};
use super::{Durable, Service};

/// Why a service begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartReason {
    /// The agent was started.
    Start,
    /// Its configuration was changed while the agent ran.
    Reload,
}

/// Which boots of the machine the agent has seen; empty where one can't be known.
#[derive(Debug, Clone, Default)]
pub struct Boot {
    /// This one.
    pub now: Arc<str>,
    /// The one in which the agent was stopped, as far as it could note that.
    pub before: Arc<str>,
    /// What the clock showed at this one, by what it shows now.
    pub at: Timestamp,
}

/// The clock by which the times of a state are meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedClock {
    /// The machine's boot.
    pub boot: String,
    /// What the clock showed then.
    pub at: Timestamp,
    /// It is behind: it showed less than in an earlier boot, and was not set forward since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_behind: bool,
}

/// What ran when the agent was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownSnapshot {
    /// The machine's boot at that time.
    pub boot: String,
    /// Full IDs of the containers that ran.
    pub running: BTreeSet<String>,
}

impl Service {
    /// Decides how to treat containers that ended before the agent listened to events.
    ///
    /// A container that ended by a signal while the agent was away, and of whose end the engine does not tell any more
    /// (it keeps its last 256 events, and none over a restart of its own), may have been stopped by a person, or have
    /// been killed. In the same boot it is left alone: a person's stop that is undone is worse than a crash that has
    /// to be started by hand, and is the usual one of the two. In another boot it is started: the machine went down
    /// meanwhile and ended all that ran, and a service that stays away after a power cut is worse than one that has to
    /// be stopped twice. (Most of what a power cut ends is told by the engine itself, with code 255.) Where the boot
    /// can't be known it might always be another one.
    pub(super) fn on_start(&mut self, reason_to_start: StartReason, now: Timestamp) {
        let missed_events = match reason_to_start {
            StartReason::Start => self.boot.before.is_empty() || self.boot.before == self.boot.now,
            // Who was there already has heard of every stop.
            StartReason::Reload => self.durable == Durable::default(),
        };
        if matches!(reason_to_start, StartReason::Start) {
            self.healer.listen(now);
        }
        if missed_events && !self.boot.now.is_empty() {
            self.healer.events_unseen_before(now);
        }
    }

    /// Where the clock was set in this boot while the agent was away, the times of the state move with it, as they do while
    /// it runs. What the clock did while the machine was down nobody knows: then it counts from now since when a digest is
    /// known, if that is yet to come, or was noted by a clock that is known to have been behind.
    pub(super) fn follow_clock(&mut self, now: Timestamp) {
        let Boot { now: boot, at, .. } = self.boot.clone();
        match self.durable.clock.take() {
            Some(noted) if noted.boot == *boot => {
                let jump = at.duration_since(noted.at);
                self.durable.clock = Some(noted);
                if is_jump(&jump) {
                    self.durable.shift(jump);
                }
            }
            noted => {
                let found = &mut self.durable.found;
                let is_behind = found.iter().any(|found| found.first_seen > now);
                if noted.is_some_and(|noted| noted.is_behind) {
                    for known in found {
                        known.first_seen = now;
                    }
                }
                let boot = boot.to_string();
                self.durable.clock = (!boot.is_empty()).then_some(NotedClock { boot, at, is_behind });
            }
        }
        self.cap_first_seen(now);
    }

    /// Resumes the deployment that was under way, if there is one.
    pub(super) fn resume(&mut self, reason: StartReason, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        if self.project_at_work().is_none() {
            self.notes.push(Note::DeploymentDropped);
            self.durable.deployment = None;
            return;
        }
        let (image_changes, step) = (deployment.plan().image_changes.clone(), deployment.phase.name());
        self.emit(Event::Resumed { image_changes, step, reason }, now);
        // Machine and engine may have been restarted too: bring the project up again, and begin the probation again.
        self.interrupted(now);
    }

    /// The agent is being stopped: notes what runs.
    pub fn on_shutdown(&mut self) {
        // Nothing is known before the first inspection.
        if self.containers.is_none() || self.boot.now.is_empty() {
            return;
        }
        let running: BTreeSet<String> = self.running().map(|container| container.id.clone()).collect();
        self.durable.at_shutdown = Some(ShutdownSnapshot { boot: self.boot.now.to_string(), running });
    }

    /// Containers that ran when the agent was stopped, in an earlier boot of the machine, and have ended since: the
    /// engine stopped them. In the same boot it may have been anybody.
    pub(super) fn compare_with_shutdown(&mut self, containers: &[Container], now: Timestamp) {
        let Some(left) = self.durable.at_shutdown.take() else { return };
        if self.boot.now.is_empty() || left.boot == *self.boot.now {
            return;
        }
        let stopped = containers.iter().filter(|c| c.state == State::Exited && left.running.contains(&c.id));
        let stopped = stopped.map(|c| (c.id.clone(), c.finished_at.unwrap_or(now)));
        self.durable.engine_stops.extend(stopped);
    }
}
