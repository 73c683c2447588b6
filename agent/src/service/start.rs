//! When a project is brought up although no image changed: nothing runs, containers are stuck half-made, or the
//! compose files changed (spec 1.4, 1.6, DOMAIN 3.2).

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::ports::{Container, State};

use super::deploy::Cause;
use super::fact::Files;
use super::heal::ended_as_asked;
use super::{Durable, Service};

/// A container must be stuck so long, and in two checks, before it is forced: it may just be someone's deploy.
const STUCK_FOR: SignedDuration = SignedDuration::from_secs(10);
/// Events so fresh mean that somebody is at work on the project.
const BUSY: SignedDuration = SignedDuration::from_secs(5);

/// What is remembered between checks.
#[derive(Debug, Default)]
pub(super) struct Starter {
    /// Containers that looked stuck: since when, and in how many checks.
    stuck: BTreeMap<String, (Timestamp, u32)>,
    /// The last time the project was forced, and whether it was taken down for it.
    forced: Option<(Timestamp, bool)>,
}

impl Starter {
    /// The times that are waited by.
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let forced = self.forced.iter_mut().map(|(at, _)| at);
        self.stuck.values_mut().map(|(since, _)| since).chain(forced)
    }

    /// Counts what is stuck; whether something has been for long enough.
    fn count_stuck(&mut self, containers: &[Container], with_loops: bool, now: Timestamp) -> bool {
        let is_stuck = |c: &Container| match c.state {
            // With an error the healer knows it, if there is one.
            State::Created => with_loops || c.error.is_empty(),
            State::Restarting => with_loops,
            _ => false,
        };
        self.stuck.retain(|id, _| containers.iter().any(|c| c.id == *id && is_stuck(c)));
        for container in containers.iter().filter(|c| is_stuck(c)) {
            self.stuck.entry(container.id.clone()).or_insert((now, 0)).1 += 1;
        }
        self.stuck.values().any(|(since, checks)| *checks >= 2 && now.duration_since(*since) >= STUCK_FOR)
    }

    /// How to force it: compose's own repair first, down and up only when that did not help, and not again within
    /// the cooldown.
    fn force(&mut self, cooldown: Duration, now: Timestamp) -> Option<Cause> {
        let cooldown = SignedDuration::try_from(cooldown).unwrap_or(SignedDuration::MAX);
        let down = match self.forced {
            Some((at, _)) if now.duration_since(at) > cooldown => false,
            None => false,
            Some((_, false)) => true,
            Some((_, true)) => return None,
        };
        self.forced = Some((now, down));
        Some(Cause::Unstick { down })
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
            Some(known) if known == hash && !self.durable.files_owed => Ok(None),
            Some(_) => Ok(Some(Cause::Drift)),
        }
    }

    /// What `auto_start` wants. `matching`: the digests match, as far as they are compared.
    pub(super) fn start_wanted(
        &mut self,
        containers: &[Container],
        matching: bool,
        now: Timestamp,
    ) -> Option<Cause> {
        if !self.config.auto_start || self.config.project().is_none() || self.durable.given_up {
            return None;
        }
        let with_loops = !self.config.auto_heal;
        let stuck = self.starter.count_stuck(containers, with_loops, now);
        let busy = self.last_event.is_some_and(|at| now.duration_since(at) < BUSY);
        if !matching || busy {
            return None;
        }
        if stuck {
            return self.starter.force(self.config.heal_cooldown, now);
        }
        let resting = containers.iter().all(|c| matches!(c.state, State::Exited | State::Dead));
        let done = !containers.is_empty() && containers.iter().all(|c| is_done(c, &self.durable));
        (resting && !done).then_some(Cause::Start)
    }
}

/// A one-shot that did its work is not something to start again at every check.
fn is_done(container: &Container, durable: &Durable) -> bool {
    container.state == State::Exited
        && container.exit_code == 0
        && !container.restarts_itself
        && container.health_timing.is_none()
        && !ended_as_asked(container, &durable.stops)
        && !ended_as_asked(container, &durable.engine_stops)
}
