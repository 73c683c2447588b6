//! When a project is brought up although no image changed: nothing runs, containers are stuck half-made, or the
//! compose files changed (spec 1.4, 1.6, DOMAIN 3.2).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::{Container, State};

use super::Service;
use super::assess::{Condition, Inactive};
use super::input::Files;
use super::rollout::plan::Cause;

/// A container must be stuck so long before it is forced: it may just be someone's deploy.
const STUCK_FOR: SignedDuration = SignedDuration::from_secs(10);
/// Events so recent mean that somebody is working on the project.
const BUSY: SignedDuration = SignedDuration::from_secs(5);

/// What is remembered between checks.
#[derive(Debug, Clone, Default)]
pub(super) struct Starter {
    /// Containers that look stuck, by ID: since when.
    stuck: BTreeMap<String, Timestamp>,
    /// When the project was forced last.
    forced: Option<Timestamp>,
}

impl Starter {
    /// The times that are waited by.
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.stuck.values_mut().chain(self.forced.as_mut())
    }

    /// Notes what is stuck; since when the longest of them has been.
    fn stuck_since(
        &mut self,
        containers: &[Container],
        with_loops: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let is_stuck = |c: &Container| match c.state {
            // With an error the healer knows it, if there is one.
            State::Created => with_loops || c.error.is_empty(),
            State::Restarting => with_loops,
            _ => false,
        };
        self.stuck.retain(|id, _| containers.iter().any(|c| c.id == *id && is_stuck(c)));
        for container in containers.iter().filter(|c| is_stuck(c)) {
            self.stuck.entry(container.id.clone()).or_insert(now);
        }
        self.stuck.values().min().copied()
    }
}

impl Service {
    /// What the compose files want. Stores the hash of the first read without deploying (spec 1.6).
    pub(super) fn follow_files(&mut self, files: &Files) -> Result<Option<Cause>, String> {
        let hash = match files {
            Files::Unread | Files::Unsettled => return Ok(None),
            Files::Unusable(text) => return Err(text.clone()),
            Files::Hash(hash) => hash,
        };
        self.files_seen = Some(hash.clone());
        match &self.durable.files_hash {
            None => {
                self.durable.files_hash = Some(hash.clone());
                Ok(None)
            }
            Some(known) if known == hash && !self.durable.files_pending => Ok(None),
            Some(_) => Ok(Some(Cause::ComposeChanged)),
        }
    }

    /// How to force what is stuck, at most once in a cooldown. Compose starts by itself what was only made; what keeps
    /// restarting is taken down first (spec 1.4).
    fn force(&mut self, containers: &[Container], now: Timestamp) -> Option<Cause> {
        if self.starter.forced.is_some_and(|at| now <= at + self.config.heal_cooldown) {
            return None;
        }
        self.starter.forced = Some(now);
        let loops = |c: &Container| c.state == State::Restarting && self.starter.stuck.contains_key(&c.id);
        Some(Cause::ForceUp { down: containers.iter().any(loops) })
    }

    /// What `auto_start` wants. `matching`: the digests match, as far as they are compared.
    pub(super) fn start_wanted(
        &mut self,
        containers: &[Container],
        matching: bool,
        now: Timestamp,
    ) -> Option<Cause> {
        if !self.config.auto_start || self.config.project().is_none() || self.durable.rollback_failed {
            return None;
        }
        // Compose would start it in competition with whoever keeps it (DECISIONS 9).
        if containers.iter().any(|c| c.manager.is_some()) {
            return None;
        }
        let with_loops = !self.config.auto_heal;
        let stuck = self.starter.stuck_since(containers, with_loops, now);
        if !matching {
            return None;
        }
        // The next cycle may be hours away.
        let calm = self.touched_at.map_or(now, |at| at + BUSY);
        if let Some(since) = stuck {
            let due = calm.max(since + STUCK_FOR);
            if now < due {
                self.recheck_at = Some(due);
                return None;
            }
            return self.force(containers, now);
        }
        let resting = containers.iter().all(|c| matches!(c.state, State::Exited | State::Dead));
        // A one-shot that did its work is not something to start again at every check.
        let is_done = |c: &Container| {
            self.condition(c) == Condition::Inactive(Inactive::Finished)
                && !c.restarts_itself
                && c.health_timing.is_none()
        };
        let done = !containers.is_empty() && containers.iter().all(is_done);
        if !resting || done {
            return None;
        }
        if now < calm {
            self.recheck_at = Some(calm);
            return None;
        }
        Some(Cause::Start)
    }
}
