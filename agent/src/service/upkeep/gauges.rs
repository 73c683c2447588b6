//! Resource usage of the containers, and threshold alerts (spec 1.7).

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::Container;
use crate::service::input::{ContainerUse, Measurement};

/// The last measurement, and the times of the last alerts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Gauges {
    pub(in crate::service) last: Option<Measurement>,
    pub(in crate::service) cpu_alerts: Alerts,
    pub(in crate::service) memory_alerts: Alerts,
}

/// Time of the last alert by container name; the empty name stands for the service as a whole.
pub(in crate::service) type Alerts = BTreeMap<String, Timestamp>;

impl Gauges {
    /// The times that cooldowns are measured from.
    pub(in crate::service) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.cpu_alerts.values_mut().chain(self.memory_alerts.values_mut())
    }
}

/// A resource with a threshold.
pub(in crate::service) struct Gauge {
    pub(in crate::service) resource: &'static str,
    pub(in crate::service) threshold: f64,
    /// Its value in percent.
    pub(in crate::service) of: fn(Load) -> f64,
}

/// Usage of one container or of all, with the limit in effect.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(in crate::service) struct Load {
    /// Percent of one core.
    pub(in crate::service) cpu_percent: f64,
    /// Cores that may be used.
    pub(in crate::service) cores: f64,
    /// Bytes.
    pub(in crate::service) memory: u64,
    /// Bytes.
    pub(in crate::service) memory_limit: u64,
}

impl Load {
    pub(in crate::service) fn of(container: &Container, used: &ContainerUse, machine_memory: u64) -> Self {
        let cores = f64::from(used.cores);
        let cores = container.cpu_limit.map_or(cores, |limit| limit.min(cores));
        let memory_limit = used.memory_limit.unwrap_or(machine_memory);
        Self { cpu_percent: used.cpu_percent, cores, memory: used.memory, memory_limit }
    }

    /// The part of the cores that may be used (DECISIONS 5).
    pub(in crate::service) fn cpu_share(self) -> f64 {
        if self.cores > 0.0 { self.cpu_percent / self.cores } else { 0.0 }
    }

    pub(in crate::service) fn memory_percent(self) -> f64 {
        if self.memory_limit == 0 { 0.0 } else { self.memory as f64 / self.memory_limit as f64 * 100.0 }
    }
}
