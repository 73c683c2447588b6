//! How long a deployment interrupts its services: a figure in every entry about its outcome (DECISIONS 12).
//!
//! A compose service is up while at least one of its containers runs and, if it has a health check, is healthy. The engine
//! says when a container was started and when it ended; events and inspections bring this in any order, and not all of them
//! arrive. So the periods in which each container was up are collected, and the gaps between them are computed at the end.
//! If it is not known when a container ended, neither is the outage: no figure is better than a wrong one.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::swarm::{SwarmService, Task, TaskState};
use crate::model::{Container, HealthState, State};

/// The periods in which containers were up, per changed service and container ID.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Outage(BTreeMap<String, BTreeMap<String, Vec<Up>>>);

/// A period in which a container was up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Up {
    from: Timestamp,
    #[serde(default, skip_serializing_if = "End::is_open")]
    to: End,
}

/// The end of such a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum End {
    /// The container is up.
    #[default]
    Open,
    /// It was down, or unhealthy, from then on.
    At(Timestamp),
    /// It is gone, and nobody has reported when it ended.
    Unknown,
}

impl End {
    // The signature is serde's.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_open(&self) -> bool {
        *self == Self::Open
    }
}

/// A container or task as last seen.
#[derive(Debug, Clone, Copy)]
struct Seen<'a> {
    service: &'a str,
    id: &'a str,
    is_up: bool,
    /// When it came up, if it is up; when it was started, otherwise.
    since: Option<Timestamp>,
    started: Option<Timestamp>,
    /// When its last run ended.
    ended: Option<Timestamp>,
}

impl Outage {
    /// Begins to measure. `services`: the compose services that change, of which these containers are the current ones.
    pub(in crate::service) fn of_containers(
        services: Vec<String>,
        containers: &[Container],
        now: Timestamp,
    ) -> Self {
        let mut outage = Self(services.into_iter().map(|service| (service, BTreeMap::new())).collect());
        outage.begin(containers.iter().map(Seen::of_container), now);
        outage
    }

    /// The same for a swarm service.
    pub(in crate::service) fn of_swarm(service: &SwarmService, now: Timestamp) -> Self {
        let mut outage = Self(BTreeMap::from([(service.name.clone(), BTreeMap::new())]));
        outage.begin(service.tasks.iter().map(|task| Seen::of_task(service, task)), now);
        outage
    }

    fn begin<'a>(&mut self, seen: impl Iterator<Item = Seen<'a>>, now: Timestamp) {
        for one in seen.filter(|one| one.is_up) {
            if let Some(containers) = self.0.get_mut(one.service) {
                containers.insert(one.id.to_owned(), vec![Up { from: now, to: End::Open }]);
            }
        }
        // A service that was down before is not interrupted.
        self.0.retain(|_, containers| !containers.is_empty());
    }

    /// Takes over how all containers are now.
    pub(in crate::service) fn look(&mut self, containers: &[Container], now: Timestamp) {
        let known = containers.iter().filter(|container| container.state != State::Unknown);
        let seen: Vec<Seen<'_>> = known.map(Seen::of_container).collect();
        self.take_over(&seen, now);
    }

    /// Takes over how all tasks of a swarm service are now.
    pub(in crate::service) fn look_in_swarm(&mut self, service: &SwarmService, now: Timestamp) {
        let seen: Vec<Seen<'_>> = service.tasks.iter().map(|task| Seen::of_task(service, task)).collect();
        self.take_over(&seen, now);
    }

    fn take_over(&mut self, seen: &[Seen<'_>], now: Timestamp) {
        for (service, containers) in &mut self.0 {
            for (id, periods) in containers.iter_mut() {
                let Some(last) = periods.last_mut().filter(|last| last.to == End::Open) else { continue };
                let Some(one) = seen.iter().find(|one| one.service == service && one.id == id) else {
                    last.to = End::Unknown;
                    continue;
                };
                let is_other_run = one.started.is_some_and(|started| started > last.from);
                if is_other_run || !one.is_up {
                    let ended = one.ended.filter(|ended| *ended >= last.from && *ended <= now);
                    // Without the end of the earlier run, it is known at least when the next one began.
                    let next = one.started.filter(|_| is_other_run);
                    last.to = End::At(ended.or(next).unwrap_or(now));
                }
            }
            for one in seen.iter().filter(|one| one.is_up && one.service == service) {
                let periods = containers.entry(one.id.to_owned()).or_default();
                let before = match periods.last().map(|last| last.to) {
                    Some(End::Open) => continue,
                    Some(End::At(at)) => at,
                    Some(End::Unknown) | None => Timestamp::MIN,
                };
                // A clock that was set back must not make it come up later than it was seen.
                let since = one.since.filter(|since| *since <= now).unwrap_or(now);
                periods.push(Up { from: since.max(before), to: End::Open });
            }
        }
    }

    /// A container has ended.
    pub(in crate::service) fn ended(&mut self, id: &str, at: Timestamp) {
        let periods = self.0.values_mut().filter_map(|containers| containers.get_mut(id));
        for last in periods.filter_map(|periods| periods.last_mut()) {
            if !matches!(last.to, End::At(_)) && last.from <= at {
                last.to = End::At(at);
            }
        }
    }

    /// The outage can't be measured, because the clock was set.
    pub(in crate::service) fn forget(&mut self) {
        self.0.clear();
    }

    /// Returns how long the service that was interrupted longest was down between these times; `None` if unknown, and if
    /// no changed service was up in the first place.
    pub(in crate::service) fn longest(&self, begun: Timestamp, now: Timestamp) -> Option<Duration> {
        let of_service = |containers: &BTreeMap<String, Vec<Up>>| down(containers, begun, now);
        // An unknown one may have been the longest.
        let all: Vec<Duration> = self.0.values().map(of_service).collect::<Option<_>>()?;
        all.into_iter().max()
    }
}

/// Returns how long none of these containers was up; `None` if that depends on an end that nobody has seen.
fn down(containers: &BTreeMap<String, Vec<Up>>, begun: Timestamp, now: Timestamp) -> Option<Duration> {
    let at_most = down_if(containers, begun, now, |up| up.from);
    (at_most == down_if(containers, begun, now, |_| now)).then_some(at_most)
}

/// The same, with `unseen` as the end of a period whose end nobody has seen.
fn down_if(
    containers: &BTreeMap<String, Vec<Up>>,
    begun: Timestamp,
    now: Timestamp,
    unseen: impl Fn(&Up) -> Timestamp,
) -> Duration {
    let period = |up: &Up| match up.to {
        End::Open => (up.from, now),
        End::At(at) => (up.from, at),
        End::Unknown => (up.from, unseen(up)),
    };
    let mut periods: Vec<(Timestamp, Timestamp)> = containers.values().flatten().map(period).collect();
    periods.sort_unstable();
    let (mut down, mut covered) = (Duration::ZERO, begun);
    for (from, to) in periods.into_iter().chain([(now, now)]) {
        down += Duration::try_from(from.min(now).duration_since(covered)).unwrap_or_default();
        covered = covered.max(to).min(now.max(begun));
    }
    down
}

impl<'a> Seen<'a> {
    fn of_container(container: &'a Container) -> Self {
        let is_up = container.state == State::Running
            && matches!(container.health, None | Some(HealthState::Healthy));
        // It became healthy by the probe that began last: an inspection follows each change of its health.
        let probed = container.probed_at.filter(|_| container.health.is_some());
        Self {
            service: &container.compose_service,
            id: &container.id,
            is_up,
            since: if container.health.is_some() { probed } else { container.started_at },
            started: container.started_at,
            ended: container.finished_at,
        }
    }

    fn of_task(service: &'a SwarmService, task: &'a Task) -> Self {
        let is_up = task.state == TaskState::Running;
        let has_ended = matches!(
            task.state,
            TaskState::Complete | TaskState::Shutdown | TaskState::Failed | TaskState::Rejected
        );
        Self {
            service: &service.name,
            id: &task.id,
            is_up,
            since: task.since,
            started: task.since.filter(|_| is_up),
            ended: task.since.filter(|_| has_ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000 + milliseconds).expect("in range")
    }

    fn running(id: &str, started: i64) -> Container {
        let container = Container::running("web", "localhost:5000/web:1");
        Container { id: id.to_owned(), started_at: Some(at(started)), ..container }
    }

    fn exited(id: &str, started: i64, finished: i64) -> Container {
        Container { state: State::Exited, finished_at: Some(at(finished)), ..running(id, started) }
    }

    fn with_health(container: Container, health: HealthState, probed: i64) -> Container {
        Container { health: Some(health), probed_at: Some(at(probed)), ..container }
    }

    fn begun(containers: &[Container]) -> Outage {
        Outage::of_containers(vec!["web".to_owned()], containers, at(0))
    }

    fn milliseconds(outage: &Outage, now: i64) -> Option<u128> {
        outage.longest(at(0), at(now)).map(|down| down.as_millis())
    }

    #[test]
    fn the_time_between_the_end_of_the_old_container_and_the_start_of_the_new_one_counts() {
        let mut outage = begun(&[running("old", -9_000)]);
        outage.ended("old", at(2_000));
        outage.look(&[running("new", 5_200)], at(6_000));
        assert_eq!(milliseconds(&outage, 30_000), Some(3_200));
        // The event arrives after the containers were read.
        let mut outage = begun(&[running("old", -9_000)]);
        outage.look(&[running("new", 5_200)], at(6_000));
        assert_eq!(milliseconds(&outage, 30_000), None, "it is not known when the old one ended");
        outage.ended("old", at(2_000));
        assert_eq!(milliseconds(&outage, 30_000), Some(3_200));
        // Written in between, as by an agent that is killed.
        let written = serde_json::to_string(&outage).expect("it is serializable");
        assert_eq!(serde_json::from_str::<Outage>(&written).expect("it was written"), outage);
    }

    #[test]
    fn a_container_with_a_health_check_is_up_once_it_is_healthy() {
        let mut outage = begun(&[running("old", -9_000)]);
        outage.ended("old", at(1_000));
        outage.look(&[with_health(running("new", 2_000), HealthState::Starting, 2_500)], at(3_000));
        outage.look(&[with_health(running("new", 2_000), HealthState::Healthy, 7_000)], at(7_100));
        assert_eq!(milliseconds(&outage, 30_000), Some(6_000));
        outage.look(&[with_health(running("new", 2_000), HealthState::Unhealthy, 19_000)], at(20_000));
        assert_eq!(milliseconds(&outage, 30_000), Some(16_000), "and as long as it is");
    }

    #[test]
    fn a_service_is_up_while_one_of_its_containers_is() {
        let mut outage = begun(&[running("one", -9_000), running("two", -9_000)]);
        outage.ended("one", at(1_000));
        outage.look(&[running("two", -9_000), running("three", 2_000)], at(3_000));
        outage.ended("two", at(4_000));
        outage.look(&[running("three", 2_000)], at(5_000));
        assert_eq!(milliseconds(&outage, 30_000), Some(0));
    }

    #[test]
    fn a_crash_that_a_restart_policy_mends_counts() {
        let mut outage = begun(&[running("old", -9_000)]);
        outage.ended("old", at(1_000));
        outage.look(&[running("new", 1_500)], at(2_000));
        // Both the end and the next start happened between two inspections, and no event came.
        let again = Container { finished_at: Some(at(4_000)), ..running("new", 6_000) };
        outage.look(&[again], at(7_000));
        assert_eq!(milliseconds(&outage, 10_000), Some(500 + 2_000));
        outage.look(&[exited("new", 6_000, 8_000)], at(9_000));
        assert_eq!(milliseconds(&outage, 10_000), Some(500 + 2_000 + 2_000), "it is still down");
    }

    #[test]
    fn of_several_services_the_longest_counts_and_one_that_was_down_does_not() {
        let of = |service: &str, container: Container| Container {
            compose_service: service.to_owned(),
            ..container
        };
        let services = ["web", "api", "job"].map(str::to_owned).to_vec();
        let before =
            [running("web-1", -9_000), of("api", running("api-1", -9_000)), of("job", exited("job-1", 0, 1))];
        let mut outage = Outage::of_containers(services, &before, at(0));
        outage.ended("web-1", at(1_000));
        outage.ended("api-1", at(1_000));
        let after =
            [running("web-2", 1_700), of("api", running("api-2", 4_000)), of("job", running("job-2", 9_000))];
        outage.look(&after, at(9_500));
        assert_eq!(milliseconds(&outage, 10_000), Some(3_000));
        assert_eq!(milliseconds(&begun(&[]), 10_000), None, "nothing was up");
        outage.forget();
        assert_eq!(milliseconds(&outage, 10_000), None);
    }
}
