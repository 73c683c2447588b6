//! What stopped because the machine went down: an orderly shutdown ends containers as a person would, one by one and
//! with exit code 0, and the agent is gone by then.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ports::{Container, State};

use super::Service;

/// How it was when the agent was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The machine's boot at that time.
    pub boot: String,
    /// Full IDs of the containers that ran.
    pub running: BTreeSet<String>,
}

impl Service {
    /// The agent was started: notes in which boot of the machine, so that it is known even if the agent can't note
    /// how it was when it is stopped.
    ///
    /// A container that ended by a signal while the agent was away, and of whose end the engine does not tell any more
    /// (it keeps its last 256 events, and none over a restart of its own), may have been stopped by a person, or have
    /// been killed. In the same boot it is left alone: a person's stop that is undone is worse than a crash that has
    /// to be started by hand, and is the usual one of the two. In another boot it is started: the machine went down
    /// meanwhile and ended all that ran, and a service that stays away after a power cut is worse than one that has to
    /// be stopped twice. (Most of what a power cut ends is told by the engine itself, with code 255.) Where the boot
    /// can't be known it might always be another one.
    pub(super) fn arrive(&mut self, now: Timestamp) {
        let before = std::mem::replace(&mut self.durable.boot, self.boot.to_string());
        if !self.boot.is_empty() && (before.is_empty() || before == *self.boot) {
            self.healer.deaf_until(now);
        }
    }

    /// The agent is being stopped: notes what runs.
    pub fn leave(&mut self) {
        // Before the first look nothing new is known.
        if self.containers.is_none() || self.boot.is_empty() {
            return;
        }
        let running: BTreeSet<String> = self.running().map(|container| container.id.clone()).collect();
        self.durable.left = Some(Left { boot: self.boot.to_string(), running });
    }

    /// Containers that ran when the agent was stopped, in an earlier boot of the machine, and have ended since: the
    /// engine stopped them. In the same boot it may have been anybody.
    pub(super) fn compare_with_left(&mut self, containers: &[Container], now: Timestamp) {
        let Some(left) = self.durable.left.take() else { return };
        if self.boot.is_empty() || left.boot == *self.boot {
            return;
        }
        let stopped = containers.iter().filter(|c| c.state == State::Exited && left.running.contains(&c.id));
        let stopped = stopped.map(|c| (c.id.clone(), c.finished_at.unwrap_or(now)));
        self.durable.engine_stops.extend(stopped);
    }
}
