//! Pauses, backups that commit containers, and stops that take their time. None of them is an excuse for blaming an image.

use evenkeel_agent::model::EventKind;
use jiff::SignedDuration;

use super::{FakeWorld, Inner};

/// How long after a pause a container is probed again: longer than the agent needs to notice.
pub(super) const NEXT_PROBE: SignedDuration = SignedDuration::from_secs(4);

impl Inner {
    /// Does something that is no excuse for blaming an image.
    pub(super) fn in_passing(&mut self, service: &str, what: impl FnOnce(&mut Self, usize)) {
        let Some(at) = self.any_of(service).filter(|_| !self.engine_down) else { return };
        for baseline in self.truth.baselines.values_mut() {
            baseline.touched.insert(service.to_owned());
        }
        what(self, at);
    }

    pub(super) fn stop_slowly(&mut self, at: usize, seconds: i64) {
        if !self.containers[at].is_up() || self.containers[at].stopping.is_some() {
            return;
        }
        self.note_lost_event(at);
        let (now, service) = (self.now, self.containers[at].service.clone());
        if self.containers[at].is_paused {
            self.unpause(at);
        }
        self.container_event(at, now, EventKind::Kill { signal: Some(15) });
        self.containers[at].stopping = Some((now, now + SignedDuration::from_secs(seconds)));
        self.truth.stopped_by_operator.insert(service);
    }

    /// The engine stops a container that an operator has been stopping for a moment. Nothing tells the two stops apart.
    pub(super) fn forget_recent_stop(&mut self, at: usize) {
        let container = &self.containers[at];
        let recently = SignedDuration::from_secs(20);
        if container.stopping.is_some_and(|(since, _)| self.now.duration_since(since) <= recently) {
            self.truth.stopped_by_operator.remove(&container.service);
            self.truth.unknown.insert(container.id.clone());
        }
    }

    /// `docker commit`, which pauses the container for a moment.
    pub(super) fn commit(&mut self, at: usize) {
        if !self.containers[at].is_paused {
            self.pause(at);
            self.unpause(at);
        }
    }

    pub(super) fn paused(&self) -> Vec<String> {
        self.containers.iter().filter(|c| c.is_paused).map(|c| c.service.clone()).collect()
    }

    pub(super) fn pause(&mut self, at: usize) {
        if !self.containers[at].is_up() || self.containers[at].is_paused {
            return;
        }
        self.containers[at].is_paused = true;
        self.container_event(at, self.now, EventKind::Other("pause".to_owned()));
    }

    pub(super) fn unpause(&mut self, at: usize) {
        if !self.containers[at].is_paused {
            return;
        }
        self.containers[at].is_paused = false;
        self.containers[at].unmeasured_until = Some(self.now + NEXT_PROBE);
        self.container_event(at, self.now, EventKind::Unpause);
    }
}

impl FakeWorld {
    /// The engine stops all containers and restarts none.
    pub(crate) fn stop_all_containers(&self) {
        let mut inner = self.lock();
        let now = inner.now;
        for container in &mut inner.containers {
            container.end(now, 143, false);
        }
    }
}
