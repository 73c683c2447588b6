//! When a project is brought up although no image has changed: nothing runs, containers are stuck during creation, or
//! the compose files have changed (spec 1.4, 1.6, DOMAIN 3.2).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::{Container, State};

/// How long a container may wait for others before it counts as stuck all the same: nothing says whether somebody's compose
/// run still waits with it.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_hours(1);

/// The state that is kept between checks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Starter {
    /// Containers that look stuck, with the time since when, by ID.
    pub(in crate::service) stuck: BTreeMap<String, Timestamp>,
    /// Containers that compose may be holding back until others are ready, with the time since when, by ID.
    pub(in crate::service) held_back: BTreeMap<String, Timestamp>,
    /// When the project was last forced up.
    pub(in crate::service) forced_at: Option<Timestamp>,
}

impl Starter {
    /// The times that deadlines are measured from.
    pub(in crate::service) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.stuck.values_mut().chain(self.held_back.values_mut()).chain(self.forced_at.as_mut())
    }

    /// Records the stuck containers; returns the earliest time since when one of them is stuck.
    pub(in crate::service) fn stuck_since(
        &mut self,
        containers: &[Container],
        with_loops: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let held_back: Vec<&Container> = containers.iter().filter(|c| c.is_held_back(containers)).collect();
        self.held_back.retain(|id, _| held_back.iter().any(|c| c.id == *id));
        for container in held_back {
            self.held_back.entry(container.id.clone()).or_insert(now);
        }
        let waits =
            |c: &Container| self.held_back.get(&c.id).is_some_and(|since| now < *since + LONGEST_WAIT);
        let is_stuck = |c: &Container| match c.state {
            State::Created if waits(c) => false,
            // With an error, the container is handled by the healer, if that is enabled.
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
