//! What `GET /metrics` shows, in Prometheus' text form.
//!
//! What happens is counted here as it happens; how things are is read off the same snapshots as the status, at the
//! moment of the scrape. The three `docker_daemon_*` names are the spec's (4.1); all others follow the conventions of
//! the ecosystem: base units, `_total` for counters, `_info` for labels that describe.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::wire::{ServiceStatus, StatusReport, StatusValue};
use jiff::Timestamp;
use prometheus::core::{AtomicF64, AtomicU64};
use prometheus::core::{Collector, GenericCounter, GenericCounterVec, GenericGauge, GenericGaugeVec};
use prometheus::{Encoder, Histogram, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder};

use crate::audit::DeliveryStats;
use crate::ports::meter::RequestOutcome;
use crate::project::services::EngineHealth;
use crate::project::services::PollState;
use crate::service::outcome::DeployOutcome;

/// From a pull that finds everything here to a large image and a long probation.
const DEPLOY_SECONDS: [f64; 10] = [1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 900.0];
/// From a registry on this machine to the longest time that a request may take.
const REQUEST_SECONDS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0];
/// From a few images on this machine to many behind a registry that hangs.
const CYCLE_SECONDS: [f64; 10] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

const MIB: f64 = 1_048_576.0;

/// Every word of spec 3.1 with its text on the wire.
const STATUS_VALUES: [(StatusValue, &str); 9] = [
    (StatusValue::Exhausted, "exhausted"),
    (StatusValue::Degraded, "degraded"),
    (StatusValue::Errored, "errored"),
    (StatusValue::Blocked, "blocked"),
    (StatusValue::NotFound, "not_found"),
    (StatusValue::Deploying, "deploying"),
    (StatusValue::Ok, "ok"),
    (StatusValue::Unhealthy, "unhealthy"),
    (StatusValue::Unknown, "unknown"),
];

/// How many entries wait in a queue.
pub type Depth = Arc<dyn Fn() -> usize + Send + Sync>;

/// What is counted as it happens.
pub struct Metrics {
    registry: Registry,
    deploys: HistogramVec,
    requests: HistogramVec,
    cycles: Histogram,
}

/// How things are at the moment of a scrape.
pub struct View<'a> {
    /// All services.
    pub report: &'a StatusReport,
    /// What the poller shows.
    pub polls: &'a PollState,
    /// How the engine is.
    pub engine: &'a EngineHealth,
    /// Clients of the event streams.
    pub stream_clients: usize,
    /// Waiting entries by destination.
    pub queues: &'a [(String, Depth)],
    /// What became of entries that leave this machine.
    pub deliveries: &'a [DeliveryStats],
}

impl Metrics {
    /// Every series from the first scrape on, at zero.
    pub fn new() -> Self {
        let opts = |name: &str, help: &str, buckets: &[f64]| {
            HistogramOpts::new(name, help).buckets(buckets.to_vec())
        };
        let deploys = opts(
            "evenkeel_deploy_duration_seconds",
            "Time from the decision to deploy to its outcome, probation included.",
            &DEPLOY_SECONDS,
        );
        let deploys = HistogramVec::new(deploys, &["outcome"]).expect(VALID);
        for outcome in DeployOutcome::ALL {
            deploys.with_label_values(&[outcome.as_str()]);
        }
        let requests = opts(
            "evenkeel_registry_request_duration_seconds",
            "Time of a request to a registry or its token service, until the answer's head.",
            &REQUEST_SECONDS,
        );
        let requests = HistogramVec::new(requests, &["outcome"]).expect(VALID);
        for outcome in RequestOutcome::ALL {
            requests.with_label_values(&[outcome.as_str()]);
        }
        let cycles = opts(
            "evenkeel_poll_cycle_duration_seconds",
            "Time of a poll cycle over all services.",
            &CYCLE_SECONDS,
        );
        let cycles = Histogram::with_opts(cycles).expect(VALID);

        let registry = Registry::new();
        add(&registry, deploys.clone());
        add(&registry, requests.clone());
        add(&registry, cycles.clone());
        add(&registry, prometheus::process_collector::ProcessCollector::for_self());
        Self { registry, deploys, requests, cycles }
    }

    /// A deployment ended.
    pub fn deployed(&self, outcome: DeployOutcome, took: Duration) {
        self.deploys.with_label_values(&[outcome.as_str()]).observe(took.as_secs_f64());
    }

    /// A request to a registry ended.
    pub fn requested(&self, outcome: RequestOutcome, took: Duration) {
        self.requests.with_label_values(&[outcome.as_str()]).observe(took.as_secs_f64());
    }

    /// A poll cycle ended.
    pub fn cycled(&self, took: Duration) {
        self.cycles.observe(took.as_secs_f64());
    }

    /// Everything as text.
    pub fn text(&self, view: &View<'_>) -> Result<String, prometheus::Error> {
        let mut families = self.registry.gather();
        families.extend(now(view).gather());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

const VALID: &str = "names and labels are constants that prometheus allows, each used once";

fn add(registry: &Registry, collector: impl Collector + 'static) {
    registry.register(Box::new(collector)).expect(VALID);
}

/// What is read off the snapshots.
fn now(view: &View<'_>) -> Registry {
    let registry = Registry::new();
    let gauge = |name: &str, help: &str, value: f64| {
        let gauge = GenericGauge::<AtomicF64>::new(name, help).expect(VALID);
        gauge.set(value);
        add(&registry, gauge);
    };
    let counter = |name: &str, help: &str, value: u64| {
        let counter = GenericCounter::<AtomicU64>::new(name, help).expect(VALID);
        counter.inc_by(value);
        add(&registry, counter);
    };
    let labelled = |name: &str, help: &str, labels: &[&str]| {
        let gauges = GenericGaugeVec::<AtomicF64>::new(Opts::new(name, help), labels).expect(VALID);
        add(&registry, gauges.clone());
        gauges
    };
    let services = &view.report.services;

    let build = labelled("evenkeel_build_info", "Always 1; the version stands in the label.", &["version"]);
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
    gauge("evenkeel_uptime_seconds", "Time since the agent started.", view.report.uptime_seconds as f64);
    gauge("evenkeel_services", "Configured services.", services.len() as f64);
    let last_poll = seconds(view.polls.last_poll);
    gauge(
        "evenkeel_last_poll_timestamp_seconds",
        "End of the last poll cycle; 0 before the first.",
        last_poll,
    );
    gauge("evenkeel_stream_clients", "Clients of the event streams.", view.stream_clients as f64);
    let queues = labelled(
        "evenkeel_audit_queue_entries",
        "Audit entries that wait for a destination.",
        &["destination"],
    );
    for (destination, depth) in view.queues {
        queues.with_label_values(&[destination]).set(depth() as f64);
    }
    let delivered = GenericCounterVec::<AtomicU64>::new(
        Opts::new("evenkeel_deliveries_total", "Tries to deliver audit entries, by how they ended."),
        &["destination", "outcome"],
    )
    .expect(VALID);
    add(&registry, delivered.clone());
    for stats in view.deliveries {
        queues.with_label_values(&[&stats.name]).set(stats.queued as f64);
        for (outcome, count) in [("sent", stats.sent), ("failed", stats.failed), ("refused", stats.refused)] {
            delivered.with_label_values(&[stats.name.as_str(), outcome]).inc_by(count);
        }
    }

    let engine = view.engine;
    gauge("docker_daemon_healthy", "Whether the container engine answers.", flag(engine.error.is_none()));
    gauge(
        "docker_daemon_consecutive_failures",
        "Checks of the container engine in a row that failed.",
        engine.consecutive_failures as f64,
    );
    counter("docker_daemon_checks_total", "Checks of the container engine.", engine.checks);

    let status = labelled(
        "evenkeel_service_status",
        "1 for the word that the service's status is, 0 for all others.",
        &["service", "status"],
    );
    for service in services {
        for (value, word) in STATUS_VALUES {
            status.with_label_values(&[&service.name, word]).set(flag(service.status == value));
        }
    }

    let per_service = |name: &str, help: &str, value: &dyn Fn(&ServiceStatus) -> Option<f64>| {
        let gauges = labelled(name, help, &["service"]);
        for service in services {
            if let Some(value) = value(service) {
                gauges.with_label_values(&[&service.name]).set(value);
            }
        }
    };
    per_service("evenkeel_service_healthy", "1 when its containers are known to be healthy.", &|s| {
        Some(flag(s.healthy == Some(true)))
    });
    per_service("evenkeel_service_deploying", "Whether a deployment runs.", &|s| Some(flag(s.deploying)));
    per_service("evenkeel_service_degraded", "Whether the healer is at work.", &|s| Some(flag(s.degraded)));
    per_service("evenkeel_service_exhausted", "Whether the healer gave up.", &|s| Some(flag(s.exhausted)));
    per_service("evenkeel_service_blocked", "Whether a bad image is blocked.", &|s| {
        Some(flag(s.blocked.is_some()))
    });
    per_service("evenkeel_service_not_found", "Whether an image is missing on this machine.", &|s| {
        Some(flag(s.not_found.is_some()))
    });
    per_service("evenkeel_service_errored", "Whether a fault persists.", &|s| {
        Some(flag(s.errored.is_some()))
    });
    per_service("evenkeel_service_restart_failures", "Restarts in a row that did not help.", &|s| {
        Some(f64::from(s.restart_failures))
    });
    per_service("evenkeel_service_containers", "Containers, running or not.", &|s| {
        Some(s.containers.as_ref().map_or(0, Vec::len) as f64)
    });
    per_service(
        "evenkeel_service_last_check_timestamp_seconds",
        "End of the last check; 0 before it.",
        &|s| Some(seconds(s.last_check)),
    );
    // What was not measured has no value; a zero would be taken for one.
    let measured = |s: &ServiceStatus, value: f64| s.has_stats.then_some(value);
    per_service("evenkeel_service_has_stats", "Whether CPU and memory were measured.", &|s| {
        Some(flag(s.has_stats))
    });
    per_service("evenkeel_service_cpu_cores", "CPU in use, in cores.", &|s| {
        measured(s, s.cpu_percent / 100.0)
    });
    per_service("evenkeel_service_memory_usage_bytes", "Memory in use.", &|s| {
        measured(s, s.memory_usage_mb * MIB)
    });
    per_service("evenkeel_service_memory_limit_bytes", "Memory that may be used.", &|s| {
        measured(s, s.memory_limit_mb * MIB)
    });

    let total = |name: &str, help: &str, value: &dyn Fn(&ServiceStatus) -> u64| {
        let counters = GenericCounterVec::<AtomicU64>::new(Opts::new(name, help), &["service"]).expect(VALID);
        for service in services {
            counters.with_label_values(&[&service.name]).inc_by(value(service));
        }
        add(&registry, counters);
    };
    total("evenkeel_service_updates_total", "New images that were proven.", &|s| s.updates_total);
    total("evenkeel_service_rollbacks_total", "Deployments that were undone.", &|s| s.rollbacks_total);
    total("evenkeel_service_restarts_total", "Restarts by the healer.", &|s| s.restarts_total);
    total("evenkeel_service_failures_total", "Deployments, ways back and restarts that failed.", &|s| {
        s.failures_total
    });
    registry
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn seconds(at: Option<Timestamp>) -> f64 {
    at.map_or(0.0, |at| at.as_millisecond() as f64 / 1000.0)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
