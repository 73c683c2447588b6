//! Waits between the two compose runs of a handover. Compose waits only for services that the same run names, so it would start a
//! new container beside the old ones while a migration that it depends on still runs.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::model::{ComposeError, Container, HealthState, Members, Model, State};
use crate::ports::Engine;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// What the services of the next run wait for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Awaited {
    /// Compose services that have to end with code 0.
    jobs: BTreeSet<String>,
    /// Compose services that have to be healthy.
    healthy: BTreeSet<String>,
    /// How long that may take.
    limit: Duration,
}

impl Awaited {
    /// What the services that are brought up next wait for, of those that compose is called for now.
    pub(super) fn of(model: &Model, named: &[String], next: &[String], limit: Duration) -> Self {
        let mut awaited = Self { limit, ..Self::default() };
        for service in next.iter().filter_map(|name| model.service(name)) {
            let is_named = |name: &&str| named.iter().any(|one| one == *name);
            awaited.jobs.extend(service.waits_for().filter(is_named).map(str::to_owned));
            awaited.healthy.extend(service.waits_for_health_of().filter(is_named).map(str::to_owned));
        }
        awaited
    }

    /// Waits. The error says what can't be reached any more, or was not reached in time.
    pub(super) async fn wait(&self, engine: &dyn Engine, project: &str) -> Result<(), ComposeError> {
        if self.jobs.is_empty() && self.healthy.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.jobs.union(&self.healthy).map(String::as_str).collect();
        let names = names.join(", ");
        tracing::info!(project, "waiting for {names} before the containers that depend on it are started");
        let deadline = Instant::now() + self.limit;
        loop {
            // If the engine does not answer for a moment, nothing is known.
            if let Ok(containers) = engine.containers(&Members::Project(project.to_owned())).await
                && self.is_reached(&containers)?
            {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let limit = self.limit.as_secs();
                return Err(ComposeError::new(format!("not ready after {limit} s: {names}")));
            }
            sleep(LOOK).await;
        }
    }

    fn is_reached(&self, containers: &[Container]) -> Result<bool, ComposeError> {
        let mut is_reached = true;
        for c in containers {
            let (service, code) = (&c.compose_service, c.exit_code);
            let (is_job, must_be_healthy) = (self.jobs.contains(service), self.healthy.contains(service));
            let is_ready = match (c.state, c.health) {
                (State::Exited, _) if is_job && code == 0 => true,
                (State::Exited | State::Dead, _) if is_job || must_be_healthy => {
                    return Err(ComposeError::new(format!("dependency {service} exited with code {code}")));
                }
                (State::Running, Some(HealthState::Unhealthy)) if must_be_healthy => {
                    return Err(ComposeError::new(format!("dependency {service} is unhealthy")));
                }
                (State::Running, None | Some(HealthState::Healthy)) => !is_job,
                _ => !(is_job || must_be_healthy),
            };
            is_reached &= is_ready;
        }
        Ok(is_reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        serde_json::from_value(serde_json::json!({"services": {
            "db": {"image": "db:1"},
            "api": {"image": "api:1"},
            "migrate": {"image": "web:1"},
            "web": {"image": "web:1", "depends_on": {
                "db": {"condition": "service_healthy"},
                "api": {"condition": "service_healthy"},
                "migrate": {"condition": "service_completed_successfully"}}},
        }}))
        .expect("a model")
    }

    fn awaited(named: &[&str]) -> Awaited {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        Awaited::of(&model(), &named, &["web".to_owned()], Duration::from_mins(1))
    }

    fn container(service: &str, state: State, health: Option<HealthState>, exit_code: i64) -> Container {
        Container { state, health, exit_code, ..Container::running(service, "web:1") }
    }

    #[test]
    fn only_what_compose_was_called_for_is_awaited() {
        let of = |named: &[&str]| {
            let Awaited { jobs, healthy, .. } = awaited(named);
            jobs.into_iter().chain(healthy).collect::<Vec<String>>()
        };
        assert_eq!(of(&["migrate", "api", "other"]), ["migrate", "api"]);
        assert_eq!(of(&[]), [""; 0]);
    }

    #[test]
    fn a_job_is_awaited_until_it_has_ended_and_one_that_fails_ends_the_wait() {
        let awaited = awaited(&["migrate"]);
        for (state, code, expected) in [
            (State::Running, 0, Some(false)),
            (State::Restarting, 1, Some(false)),
            (State::Created, 0, Some(false)),
            (State::Exited, 0, Some(true)),
            (State::Exited, 7, None),
            (State::Dead, 0, None),
        ] {
            let seen = awaited.is_reached(&[container("migrate", state, None, code)]);
            assert_eq!(seen.ok(), expected, "{state:?} {code}");
        }
        assert_eq!(awaited.is_reached(&[]).ok(), Some(true), "it is scaled to 0");
        let other = container("other", State::Exited, None, 1);
        assert_eq!(awaited.is_reached(&[other]).ok(), Some(true));
    }

    #[test]
    fn a_health_check_is_awaited_until_it_passes_and_one_that_fails_ends_the_wait() {
        let awaited = awaited(&["api"]);
        for (state, health, expected) in [
            (State::Running, Some(HealthState::Starting), Some(false)),
            (State::Running, Some(HealthState::Unmeasured), Some(false)),
            (State::Running, Some(HealthState::Healthy), Some(true)),
            (State::Running, None, Some(true)),
            (State::Restarting, None, Some(false)),
            (State::Running, Some(HealthState::Unhealthy), None),
            (State::Exited, None, None),
        ] {
            let seen = awaited.is_reached(&[container("api", state, health, 0)]);
            assert_eq!(seen.ok(), expected, "{state:?} {health:?}");
        }
    }
}
