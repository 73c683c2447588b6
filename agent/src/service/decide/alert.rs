//! Measurements of the containers: what is reported, and when it is an alert.

use jiff::Timestamp;

use crate::model::Container;
use crate::service::Service;
use crate::service::event::{Event, ResourceAlert};
use crate::service::input::Measurement;
use crate::service::upkeep::gauges::{Alerts, Gauge, Load};

/// Key of the service as a whole.
const WHOLE_SERVICE: &str = "";

impl Service {
    /// Returns the usage of a container; `None` until it was measured.
    pub(in crate::service) fn usage_of(&self, container: &Container) -> Option<Load> {
        let last = self.gauges.last.as_ref()?;
        let used = last.containers.get(&container.id)?;
        Some(Load::of(container, used, last.machine_memory))
    }

    /// Returns the total usage of all running containers; `None` until one was measured. The limits of memory add up, but
    /// if one container has none, the machine's memory is the limit of all (DOMAIN 5). The cores are all of the machine.
    pub(in crate::service) fn usage(&self) -> Option<Load> {
        let last = self.gauges.last.as_ref()?;
        let mut total = Load::default();
        let mut unlimited = false;
        for used in self.running().filter_map(|container| last.containers.get(&container.id)) {
            total.cpu_percent += used.cpu_percent;
            total.cores = total.cores.max(f64::from(used.cores));
            total.memory += used.memory;
            total.memory_limit = total.memory_limit.saturating_add(used.memory_limit.unwrap_or_default());
            unlimited |= used.memory_limit.is_none();
        }
        if unlimited {
            total.memory_limit = last.machine_memory;
        }
        Some(total)
    }

    pub(in crate::service) fn measured(&mut self, measurement: Measurement, now: Timestamp) {
        let is_full = measurement.is_full;
        self.gauges.last = Some(measurement);
        let Some(total) = self.usage().filter(|_| is_full) else { return };
        let (cpu_threshold, memory_threshold) = (self.config.cpu_threshold, self.config.memory_threshold);
        let cpu = Gauge { resource: "CPU", threshold: cpu_threshold, of: Load::cpu_share };
        let memory = Gauge { resource: "memory", threshold: memory_threshold, of: Load::memory_percent };
        let mut alerts = std::mem::take(&mut self.gauges.cpu_alerts);
        let over_cpu = self.judge_load(&cpu, total, &mut alerts, now);
        self.gauges.cpu_alerts = alerts;
        let mut alerts = std::mem::take(&mut self.gauges.memory_alerts);
        let over_memory = self.judge_load(&memory, total, &mut alerts, now);
        self.gauges.memory_alerts = alerts;
        for alert in over_cpu.into_iter().chain(over_memory) {
            self.emit(Event::ResourceAlert(alert), now);
        }
    }

    /// Compares the service as a whole and each container by its own limit with the threshold (spec 1.7). An alert for
    /// the service also covers the containers above the threshold. The service and each container have separate cooldowns.
    fn judge_load(
        &self,
        gauge: &Gauge,
        total: Load,
        alerts: &mut Alerts,
        now: Timestamp,
    ) -> Vec<ResourceAlert> {
        let cooldown = self.config.heal_cooldown;
        alerts.retain(|_, at| now < *at + cooldown);
        let is_over = |value: f64| gauge.threshold > 0.0 && value > gauge.threshold;
        let load = |c: &Container| Some((c.name.clone(), (gauge.of)(self.usage_of(c)?)));
        let loads: Vec<(String, f64)> = self.running().filter_map(load).collect();
        let too_high = loads.iter().filter(|(_, value)| is_over(*value));
        let whole = (gauge.of)(total);
        let alert = |percent: f64| ResourceAlert {
            resource: gauge.resource,
            container: None,
            percent,
            threshold: gauge.threshold,
            largest: None,
        };
        if is_over(whole) && !alerts.contains_key(WHOLE_SERVICE) {
            let largest = loads.iter().max_by(|a, b| a.1.total_cmp(&b.1));
            let covered = too_high.chain(largest).map(|(name, _)| name.clone());
            alerts.extend(covered.chain([WHOLE_SERVICE.to_owned()]).map(|name| (name, now)));
            return vec![ResourceAlert { largest: largest.cloned(), ..alert(whole) }];
        }
        let mut found = Vec::new();
        for (name, value) in too_high {
            if !alerts.contains_key(name) {
                found.push(ResourceAlert { container: Some(name.clone()), ..alert(*value) });
                alerts.insert(name.clone(), now);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use evenkeel_common::wire::Kind;

    use super::*;
    use crate::config::ServiceConfig;
    use crate::model::State;
    use crate::service::input::{ContainerUse, Input};
    use crate::service::tests::{config, running};

    const MIB: u64 = 1 << 20;

    fn container(id: &str, state: State) -> Container {
        Container { id: id.into(), name: format!("shop-{id}-1"), state, ..running(id) }
    }

    fn service(cpu_threshold: f64, memory_threshold: f64) -> Service {
        let config = ServiceConfig {
            name: "shop".into(),
            cpu_threshold,
            memory_threshold,
            heal_cooldown: Duration::from_mins(5),
            ..config()
        };
        let (mut service, _) = Service::new(
            Arc::new(config),
            crate::service::Durable::default(),
            crate::service::Boot::default(),
            crate::service::boot::StartReason::Start,
            at(0),
        );
        let all =
            [container("a", State::Running), container("b", State::Paused), container("c", State::Exited)];
        service.known.containers = Some(all.into());
        service
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn measurement(is_full: bool, containers: &[(&str, f64, u64, Option<u64>)]) -> Input {
        measurement_on(1, is_full, containers)
    }

    fn measurement_on(cores: u32, is_full: bool, containers: &[(&str, f64, u64, Option<u64>)]) -> Input {
        let containers = containers.iter().map(|(id, cpu_percent, memory, limit)| {
            let used = ContainerUse {
                cpu_percent: *cpu_percent,
                cores,
                memory: memory * MIB,
                memory_limit: limit.map(|limit| limit * MIB),
            };
            ((*id).to_owned(), used)
        });
        Input::Measured(Measurement { is_full, machine_memory: 1000 * MIB, containers: containers.collect() })
    }

    #[test]
    fn fields_are_absent_until_measured_and_limits_add_up() {
        let mut service = service(0.0, 0.0);
        let status = |service: &Service| {
            service.record(crate::ports::PullProgress::default(), &crate::service::tests::undisturbed(at(0)))
        };
        let before = status(&service);
        assert!(!before.has_stats);
        assert!(before.containers.unwrap().iter().all(|c| c.cpu_percent.is_none()));

        service.apply(
            measurement(
                true,
                &[("a", 12.345, 100, Some(200)), ("b", 1.0, 50, Some(300)), ("c", 9.0, 9, None)],
            ),
            at(1),
        );
        let limited = status(&service);
        assert!(limited.has_stats);
        let numbers = |s: &evenkeel_common::wire::ServiceStatus| {
            format!("{} {} {} {}", s.cpu_percent, s.memory_percent, s.memory_usage_mb, s.memory_limit_mb)
        };
        assert_eq!(numbers(&limited), "13.35 30 150 500", "stopped containers do not count");
        let containers = limited.containers.unwrap();
        assert_eq!((containers[0].cpu_percent, containers[0].memory_percent), (Some(12.35), Some(50.0)));
        assert_eq!((containers[2].cpu_percent, containers[2].memory_usage_mb), (None, None));

        service.apply(measurement(true, &[("a", 1.0, 100, Some(200)), ("b", 1.0, 50, None)]), at(2));
        assert_eq!(numbers(&status(&service)), "2 15 150 1000", "one without a limit: the machine's memory");
    }

    #[test]
    fn an_alert_is_raised_strictly_above_the_threshold_and_repeated_only_after_the_cooldown() {
        let mut service = service(80.0, 0.0);
        let mut seen = |second, cpu| {
            let entries =
                service.apply(measurement(true, &[("a", cpu, 1, None), ("b", 10.0, 999, None)]), at(second));
            entries.into_iter().map(|entry| entry.message).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(seen(0, 70.0), none, "a value equal to the threshold is not above it");
        assert_eq!(seen(10, 70.5), ["CPU is at 80.50 %, above the threshold of 80 %"]);
        assert_eq!(seen(20, 200.0), none);
        assert_eq!(seen(30, 1.0), none);
        assert_eq!(seen(309, 200.0), none, "a lower value in between does not shorten the cooldown");
        assert_eq!(seen(310, 200.0).len(), 1);
    }

    #[test]
    fn an_alert_is_not_repeated_within_its_cooldown_after_a_reload() {
        let high = || measurement(true, &[("a", 190.0, 1, None), ("b", 10.0, 1, None)]);
        let mut before = service(80.0, 0.0);
        assert_eq!(before.apply(high(), at(0)).len(), 1);
        let mut service = service(80.0, 0.0).continuing(&before);
        assert_eq!(service.apply(high(), at(10)), []);
        assert_eq!(service.apply(high(), at(310)).len(), 1);
    }

    #[test]
    fn the_cpu_threshold_is_a_part_of_what_a_container_and_the_machine_can_use() {
        let mut service = service(90.0, 0.0);
        let limited = Container { cpu_limit: Some(0.5), ..container("b", State::Running) };
        service.known.containers = Some([container("a", State::Running), limited].into());
        let mut seen = |second, a, b| {
            let used = [("a", a, 1, None), ("b", b, 1, None)];
            let entries = service.apply(measurement_on(8, true, &used), at(second));
            entries.into_iter().map(|entry| entry.message).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(seen(0, 700.0, 10.0), none, "seven of eight cores");
        assert_eq!(seen(10, 730.0, 10.0), ["CPU is at 92.50 %, above the threshold of 90 %"]);
        let own_limit = "CPU of shop-b-1 is at 96.00 %, above the threshold of 90 %";
        assert_eq!(seen(20, 10.0, 48.0), [own_limit], "it may use half a core");
    }

    #[test]
    fn each_resource_has_its_own_cooldown_and_names_the_largest_container() {
        let mut service = service(80.0, 50.0);
        let cpu = service.apply(measurement(true, &[("a", 90.0, 10, None), ("b", 1.0, 20, None)]), at(0));
        assert_eq!((cpu.len(), cpu[0].container.as_deref()), (1, Some("shop-a-1")));
        let memory = service.apply(measurement(true, &[("a", 90.0, 10, None), ("b", 1.0, 800, None)]), at(1));
        assert_eq!((memory.len(), memory[0].container.as_deref()), (1, Some("shop-b-1")));
        assert_eq!(memory[0].event, Kind::RESOURCE_ALERT);
        assert_eq!(memory[0].reason.as_deref(), Some("shop-b-1 has the largest share: 80.00 %"));
    }

    #[test]
    fn a_container_near_its_own_limit_alerts_even_if_another_has_no_limit() {
        let mut service = service(0.0, 80.0);
        let mut seen = |second, a: u64| {
            let use_of = [("a", 1.0, a, Some(200)), ("b", 1.0, 20, None)];
            let entries = service.apply(measurement(true, &use_of), at(second));
            entries.into_iter().map(|entry| (entry.container, entry.message)).collect::<Vec<_>>()
        };
        assert_eq!(seen(0, 150), []);
        let message = "memory of shop-a-1 is at 95.00 %, above the threshold of 80 %".to_owned();
        assert_eq!(
            seen(10, 190),
            [(Some("shop-a-1".to_owned()), message)],
            "the service is at 21 % of the machine"
        );
        assert_eq!(seen(20, 195), [], "in its cooldown");
        assert_eq!(seen(310, 195).len(), 1);
    }

    #[test]
    fn an_alert_of_the_service_covers_only_the_containers_above_the_threshold() {
        let mut service = service(80.0, 0.0);
        let mut seen = |second, a, b| {
            let entries =
                service.apply(measurement(true, &[("a", a, 1, None), ("b", b, 1, None)]), at(second));
            entries.into_iter().map(|entry| entry.container.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(seen(0, 90.0, 10.0), ["shop-a-1"], "once, although service and container are too high");
        assert_eq!(seen(10, 90.0, 95.0), ["shop-b-1"], "the first alert did not cover this container");
        assert_eq!(seen(20, 90.0, 95.0), [""; 0]);
    }

    #[test]
    fn the_first_seconds_of_a_container_raise_no_alert() {
        let mut service = service(80.0, 50.0);
        assert_eq!(service.apply(measurement(false, &[("a", 400.0, 900, None)]), at(0)), []);
    }
}
