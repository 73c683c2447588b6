//! The containers as they were before a deployment, and those that must run in the end.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::image::{ImageId, Reference};
use crate::model::{Container, State};
use crate::service::health::assess::{Condition, StopTimes, Stops, assess_alone};

/// No container was told to stop.
pub(in crate::service) const NO_STOPS: Stops<'static> =
    Stops { requested: &NO_TIMES, by_engine: &NO_TIMES, told: &BTreeMap::new() };
static NO_TIMES: StopTimes = StopTimes::new();

/// A container as it was before the deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// Full ID.
    pub id: String,
    /// Compose service.
    pub compose_service: String,
    /// Image reference that it was created from.
    pub config_image: String,
    /// Image that it ran on.
    pub image: ImageId,
    /// Whether it was running.
    pub running: bool,
    /// Whether it was running and not unhealthy.
    pub well: bool,
    /// Restarts by its restart policy up to that point.
    pub restart_count: u64,
    /// Whether it had a main process, including while paused or between two runs. Also whether it is down, and brought up
    /// with the others. Before an update not while paused.
    #[serde(default)]
    pub live: bool,
    /// Compose services that it is restarted with, according to its label and the container whose network it uses.
    #[serde(default)]
    pub restarts_with: Vec<String>,
}

impl Baseline {
    /// Records all containers of a project.
    pub(crate) fn all(containers: &[Container]) -> Vec<Self> {
        containers.iter().map(|container| Self::of(container, containers)).collect()
    }

    /// The same, where these that are down, by ID, are to be brought up with those that run.
    pub(crate) fn all_and(containers: &[Container], down: &BTreeSet<String>) -> Vec<Self> {
        let mut all = Self::all(containers);
        for was in &mut all {
            was.live |= down.contains(&was.id);
        }
        all
    }

    /// The same before an update. A compose service of which somebody has paused all that runs is not brought up: compose
    /// would put a running container in the place of a paused one.
    pub(crate) fn all_with(containers: &[Container], crashed: &BTreeSet<String>) -> Vec<Self> {
        let mut all = Self::all_and(containers, crashed);
        let is_active =
            |service: &str| containers.iter().any(|c| c.compose_service == service && c.is_active());
        for (was, container) in all.iter_mut().zip(containers) {
            was.live &= container.state != State::Paused || is_active(&container.compose_service);
        }
        all
    }

    /// The same after a hook has made containers anew, each in the place of one of its compose service that is gone; `None` if
    /// all are as they were. A compose service that it has removed altogether is brought up nevertheless.
    pub(crate) fn renewed(before: &[Self], containers: &[Container]) -> Option<Vec<Self>> {
        let is_left = |was: &Self| containers.iter().any(|c| c.id == was.id);
        let is_removed = |was: &Self| !containers.iter().any(|c| c.compose_service == was.compose_service);
        let mut new = Self::all(containers);
        new.retain(|one| !before.iter().any(|was| was.id == one.id));
        if new.is_empty() && before.iter().all(|was| is_left(was) || is_removed(was)) {
            return None;
        }
        let mut renewed = Vec::with_capacity(containers.len());
        for was in before {
            if is_left(was) || is_removed(was) {
                renewed.push(was.clone());
            } else if let Some(at) = new.iter().position(|one| one.compose_service == was.compose_service) {
                let one = new.remove(at);
                renewed.push(Self { running: one.running || was.running, live: one.live || was.live, ..one });
            }
        }
        renewed.extend(new);
        Some(renewed)
    }

    /// The reference that it was created from, if that is one.
    pub(in crate::service) fn made_from(&self) -> Option<Reference> {
        Reference::parse(&self.config_image).ok()
    }

    fn of(container: &Container, all: &[Container]) -> Self {
        let running = container.state == State::Running;
        let owner = container.network_of.as_ref().and_then(|owner| owner.resolved.as_ref());
        let owner = owner.and_then(|owner| all.iter().find(|other| other.name == owner.name));
        let owner = owner.map(|owner| owner.compose_service.clone());
        Self {
            id: container.id.clone(),
            compose_service: container.compose_service.clone(),
            config_image: container.config_image.clone(),
            image: container.image.clone(),
            running,
            well: running
                && matches!(
                    assess_alone(container, NO_STOPS),
                    Condition::Healthy | Condition::Starting | Condition::Unmeasured
                ),
            restart_count: container.restart_count,
            live: container.is_live(),
            restarts_with: container.restarts_with.iter().cloned().chain(owner).collect(),
        }
    }
}

/// A container that must exist in the end: of this compose service, on this image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// Compose service.
    pub compose_service: String,
    /// Image that it must run on.
    pub image: ImageId,
}

impl Expected {
    /// Reports whether all of them run; not if there are none.
    pub(in crate::service) fn all_run(expected: &[Self], containers: &[Container]) -> bool {
        let runs = |one: &Self| {
            containers.iter().any(|c| {
                c.compose_service == one.compose_service && c.image == one.image && c.state == State::Running
            })
        };
        !expected.is_empty() && expected.iter().all(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str, service: &str, state: State) -> Container {
        Container { id: id.to_owned(), state, ..Container::running(service, "web:1") }
    }

    #[test]
    fn what_a_hook_has_made_anew_takes_the_place_of_what_is_gone() {
        let old = [
            container("web-a", "web", State::Running),
            container("web-b", "web", State::Running),
            container("web-c", "web", State::Running),
            container("db-a", "db", State::Running),
            container("cron-a", "cron", State::Running),
        ];
        let before = Baseline::all(&old);
        assert_eq!(Baseline::renewed(&before, &old), None);
        let stopped = old.clone().map(|c| Container { state: State::Exited, ..c });
        assert_eq!(
            Baseline::renewed(&before, &stopped),
            None,
            "what it has stopped is brought up nevertheless"
        );
        // Of three one is as it was, one is made anew, and one is gone; of another nothing is left; another is new.
        let now = [
            container("web-b", "web", State::Running),
            container("web-d", "web", State::Exited),
            container("cron-b", "cron", State::Running),
            container("job-a", "job", State::Exited),
        ];
        let renewed = Baseline::renewed(&before, &now).unwrap();
        let seen: Vec<_> = renewed.iter().map(|was| (was.id.as_str(), was.running, was.live)).collect();
        assert_eq!(
            seen,
            [
                ("web-d", true, true),
                ("web-b", true, true),
                ("db-a", true, true),
                ("cron-b", true, true),
                ("job-a", false, false),
            ]
        );
        assert_eq!(Baseline::renewed(&renewed, &now), None, "once is enough");
    }
}
