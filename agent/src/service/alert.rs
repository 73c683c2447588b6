//! What the containers use, and when that is too much (spec 1.7).

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;

use super::Service;
use super::fact::{ContainerUse, Measurement};

/// The last measurement, and when it was last complained about.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    last: Option<Measurement>,
    cpu_alert: Option<Timestamp>,
    memory_alert: Option<Timestamp>,
}

impl Gauges {
    /// The times that are waited by.
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.cpu_alert.iter_mut().chain(self.memory_alert.iter_mut())
    }
}

/// What one container or all of them use, with the limit that really holds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Load {
    /// Percent of one core.
    pub(super) cpu_percent: f64,
    /// Bytes.
    pub(super) memory: u64,
    /// Bytes.
    pub(super) memory_limit: u64,
}

impl Load {
    fn of(used: &ContainerUse, machine_memory: u64) -> Self {
        let memory_limit = used.memory_limit.unwrap_or(machine_memory);
        Self { cpu_percent: used.cpu_percent, memory: used.memory, memory_limit }
    }

    pub(super) fn memory_percent(self) -> f64 {
        if self.memory_limit == 0 { 0.0 } else { self.memory as f64 / self.memory_limit as f64 * 100.0 }
    }
}

impl Service {
    /// What a container uses; `None` until it was measured.
    pub(super) fn usage_of(&self, id: &str) -> Option<Load> {
        let last = self.gauges.last.as_ref()?;
        last.containers.get(id).map(|used| Load::of(used, last.machine_memory))
    }

    /// What all running containers use together; `None` until any was measured. Several limits add up, but where
    /// one container has none, the machine's memory is the limit of all (DOMAIN 5).
    pub(super) fn usage(&self) -> Option<Load> {
        let last = self.gauges.last.as_ref()?;
        let mut total = Load::default();
        let mut unlimited = false;
        for used in self.running().filter_map(|container| last.containers.get(&container.id)) {
            total.cpu_percent += used.cpu_percent;
            total.memory += used.memory;
            total.memory_limit = total.memory_limit.saturating_add(used.memory_limit.unwrap_or_default());
            unlimited |= used.memory_limit.is_none();
        }
        if unlimited {
            total.memory_limit = last.machine_memory;
        }
        Some(total)
    }

    pub(super) fn measured(
        &mut self,
        measurement: Measurement,
        now: Timestamp,
        entries: &mut Vec<AuditEntry>,
    ) {
        let whole = measurement.whole;
        self.gauges.last = Some(measurement);
        let Some(total) = self.usage().filter(|_| whole) else { return };
        let cooldown = self.config.heal_cooldown;
        let due = |last: Option<Timestamp>| last.is_none_or(|at| now >= at + cooldown);
        let over = |threshold: f64, value: f64| threshold > 0.0 && value > threshold;
        if over(self.config.cpu_threshold, total.cpu_percent) && due(self.gauges.cpu_alert) {
            self.gauges.cpu_alert = Some(now);
            let by = |load: Load| load.cpu_percent;
            entries.push(self.alert("CPU", self.config.cpu_threshold, total, by, now));
        }
        if over(self.config.memory_threshold, total.memory_percent()) && due(self.gauges.memory_alert) {
            self.gauges.memory_alert = Some(now);
            entries.push(self.alert(
                "memory",
                self.config.memory_threshold,
                total,
                Load::memory_percent,
                now,
            ));
        }
    }

    fn alert(
        &self,
        what: &str,
        threshold: f64,
        total: Load,
        by: impl Fn(Load) -> f64,
        now: Timestamp,
    ) -> AuditEntry {
        let message = format!("{what} is at {:.2} %, above the threshold of {threshold} %", by(total));
        let mut entry = self.entry(now, Kind::RESOURCE_ALERT, Level::Warning, message);
        let loads = self.running().filter_map(|c| Some((c.name.clone(), by(self.usage_of(&c.id)?))));
        if let Some((name, value)) = loads.max_by(|a, b| a.1.total_cmp(&b.1)) {
            entry.reason = Some(format!("{name} has the largest share: {value:.2} %"));
            entry.container = Some(name);
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::fact::Fact;
    use super::*;
    use crate::config::ServiceConfig;
    use crate::image::ImageId;
    use crate::ports::{Container, State};

    const MIB: u64 = 1 << 20;

    fn container(id: &str, state: State) -> Container {
        Container {
            id: id.into(),
            name: format!("shop-{id}-1"),
            compose_service: id.into(),
            compose_files: Vec::new(),
            config_image: "web:1".into(),
            image: ImageId("sha256:1".into()),
            state,
            status: String::new(),
            health: None,
            health_output: String::new(),
            health_timing: None,
            restart_count: 0,
            started_at: None,
            finished_at: None,
            stop_signal: 15,
            stop_timeout: Duration::ZERO,
            exit_code: 0,
            oom_killed: false,
            error: String::new(),
            restarts_itself: false,
            network_of: None,
            mounts: Vec::new(),
        }
    }

    fn service(cpu_threshold: f64, memory_threshold: f64) -> Service {
        let config = ServiceConfig {
            name: "shop".into(),
            images: Vec::new(),
            silent: false,
            compose_files: Vec::new(),
            compose_project: Some("shop".into()),
            container_name: None,
            env_file: None,
            auto_update: false,
            auto_start: false,
            auto_heal: false,
            compose_watch: false,
            cpu_threshold,
            memory_threshold,
            health_grace: Duration::from_mins(1),
            heal_cooldown: Duration::from_mins(5),
            heal_max_restarts: 3,
        };
        let (mut service, _) = Service::new(
            Arc::new(config),
            super::super::Durable::default(),
            super::super::Boot::default(),
            super::super::boot::Occasion::Start,
            at(0),
        );
        service.containers = Some(vec![
            container("a", State::Running),
            container("b", State::Paused),
            container("c", State::Exited),
        ]);
        service
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn measurement(whole: bool, containers: &[(&str, f64, u64, Option<u64>)]) -> Fact {
        let containers = containers.iter().map(|(id, cpu_percent, memory, limit)| {
            let used = ContainerUse {
                cpu_percent: *cpu_percent,
                memory: memory * MIB,
                memory_limit: limit.map(|limit| limit * MIB),
            };
            ((*id).to_owned(), used)
        });
        Fact::Measured(Measurement { whole, machine_memory: 1000 * MIB, containers: containers.collect() })
    }

    #[test]
    fn fields_are_absent_until_measured_and_sums_follow_the_limits() {
        let mut service = service(0.0, 0.0);
        let status = |service: &Service| service.snapshot(crate::ports::Pulled::default()).status;
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
        assert_eq!(numbers(&limited), "13.35 30 150 500", "what no longer runs does not count");
        let containers = limited.containers.unwrap();
        assert_eq!((containers[0].cpu_percent, containers[0].memory_percent), (Some(12.35), Some(50.0)));
        assert_eq!((containers[2].cpu_percent, containers[2].memory_usage_mb), (None, None));

        service.apply(measurement(true, &[("a", 1.0, 100, Some(200)), ("b", 1.0, 50, None)]), at(2));
        assert_eq!(numbers(&status(&service)), "2 15 150 1000", "one without limit: the machine's");
    }

    #[test]
    fn an_alert_comes_strictly_above_the_threshold_and_again_only_after_the_cooldown() {
        let mut service = service(80.0, 0.0);
        let mut seen = |second, cpu| {
            let entries =
                service.apply(measurement(true, &[("a", cpu, 1, None), ("b", 10.0, 999, None)]), at(second));
            entries.into_iter().map(|entry| entry.message).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(seen(0, 70.0), none, "as high as the threshold is not above it");
        assert_eq!(seen(10, 70.5), ["CPU is at 80.50 %, above the threshold of 80 %"]);
        assert_eq!(seen(20, 200.0), none);
        assert_eq!(seen(30, 1.0), none);
        assert_eq!(seen(309, 200.0), none, "below in between does not shorten the cooldown");
        assert_eq!(seen(310, 200.0).len(), 1);
    }

    #[test]
    fn each_resource_has_a_cooldown_of_its_own_and_names_the_largest_container() {
        let mut service = service(80.0, 50.0);
        let cpu = service.apply(measurement(true, &[("a", 90.0, 10, None), ("b", 1.0, 20, None)]), at(0));
        assert_eq!((cpu.len(), cpu[0].container.as_deref()), (1, Some("shop-a-1")));
        let memory = service.apply(measurement(true, &[("a", 90.0, 10, None), ("b", 1.0, 800, None)]), at(1));
        assert_eq!((memory.len(), memory[0].container.as_deref()), (1, Some("shop-b-1")));
        assert_eq!(memory[0].event, Kind::RESOURCE_ALERT);
        assert_eq!(memory[0].reason.as_deref(), Some("shop-b-1 has the largest share: 80.00 %"));
    }

    #[test]
    fn the_first_seconds_of_a_container_alarm_nobody() {
        let mut service = service(80.0, 50.0);
        assert_eq!(service.apply(measurement(false, &[("a", 400.0, 900, None)]), at(0)), []);
    }
}
