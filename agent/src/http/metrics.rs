//! Metrics for `GET /metrics` in the Prometheus text format.
//!
//! Histograms are updated as events happen. All other metrics are collected at scrape time from the same snapshots as
//! the status. The three `docker_daemon_*` names are defined by the spec (4.1); all others follow the Prometheus naming
//! conventions: base units, `_total` for counters, `_info` for descriptive labels.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::metrics::{self, family, flag, single};
use evenkeel_common::wire::{ServiceStatus, StatusReport, StatusValue, WayBackValue};
use jiff::Timestamp;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, HistogramVec, Registry};

use crate::audit::DeliveryStats;
use crate::ports::meter::RequestOutcome;
use crate::project::services::EngineHealth;
use crate::project::services::PollState;
use crate::service::fleet::{FleetView, Link};
use evenkeel_common::wire::DeployOutcome;

/// From a pull with all layers present to a large image with a long probation.
const DEPLOY_SECONDS: [f64; 10] = [1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 900.0];
/// From a container that is replaced at once to a slow start with retries. The first bucket counts deployments that interrupted
/// nothing.
const OUTAGE_SECONDS: [f64; 10] = [0.05, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0];
/// From a registry on this machine to the request timeout.
const REQUEST_SECONDS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0];
/// From a few images on this machine to many behind a registry that hangs.
const CYCLE_SECONDS: [f64; 10] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

const MIB: f64 = 1_048_576.0;

/// Every status value of spec 3.1 with its text on the wire.
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

/// Returns the number of entries in a queue.
pub type Depth = Arc<dyn Fn() -> usize + Send + Sync>;

/// Metrics that are updated as events happen.
pub struct Metrics {
    registry: Registry,
    deploys: HistogramVec,
    outages: HistogramVec,
    requests: HistogramVec,
    cycles: Histogram,
}

/// State at scrape time.
pub struct View<'a> {
    /// All services.
    pub report: &'a StatusReport,
    /// State of the poller.
    pub polls: &'a PollState,
    /// Health of the engine.
    pub engine: &'a EngineHealth,
    /// Number of event stream clients.
    pub stream_clients: usize,
    /// View of the fleet.
    pub fleet: &'a FleetView,
    /// Waiting entries by destination.
    pub queues: &'a [(String, Depth)],
    /// Delivery statistics of remote destinations.
    pub deliveries: &'a [DeliveryStats],
    /// Number of errors that keep a channel or the push off.
    pub channels_off: usize,
}

impl Metrics {
    /// Registers the metrics. Every series exists from the first scrape on, at zero.
    pub fn new() -> Self {
        let opts = |name: &str, help: &str, buckets: &[f64]| {
            HistogramOpts::new(name, help).buckets(buckets.to_vec())
        };
        let deploys = opts(
            "evenkeel_deploy_duration_seconds",
            "Time from the decision to deploy to the outcome, including probation.",
            &DEPLOY_SECONDS,
        );
        let deploys = HistogramVec::new(deploys, &["outcome"]).expect(VALID);
        for outcome in DeployOutcome::ALL {
            deploys.with_label_values(&[outcome.as_str()]);
        }
        let outages = opts(
            "evenkeel_deployment_outage_seconds",
            "Time in which a deployment left a changed service without a container that was running and healthy.",
            &OUTAGE_SECONDS,
        );
        let outages = HistogramVec::new(outages, &["outcome"]).expect(VALID);
        for outcome in DeployOutcome::ALL {
            outages.with_label_values(&[outcome.as_str()]);
        }
        let requests = opts(
            "evenkeel_registry_request_duration_seconds",
            "Duration of requests to registries and their token services, until the response headers.",
            &REQUEST_SECONDS,
        );
        let requests = HistogramVec::new(requests, &["outcome"]).expect(VALID);
        for outcome in RequestOutcome::ALL {
            requests.with_label_values(&[outcome.as_str()]);
        }
        let cycles = opts(
            "evenkeel_poll_cycle_duration_seconds",
            "Duration of a poll cycle over all services.",
            &CYCLE_SECONDS,
        );
        let cycles = Histogram::with_opts(cycles).expect(VALID);

        let registry = Registry::new();
        add(&registry, deploys.clone());
        add(&registry, outages.clone());
        add(&registry, requests.clone());
        add(&registry, cycles.clone());
        add(&registry, prometheus::process_collector::ProcessCollector::for_self());
        Self { registry, deploys, outages, requests, cycles }
    }

    /// Records a finished deployment.
    pub fn deployed(&self, outcome: DeployOutcome, took: Duration, outage: Option<Duration>) {
        self.deploys.with_label_values(&[outcome.as_str()]).observe(took.as_secs_f64());
        if let Some(outage) = outage {
            self.outages.with_label_values(&[outcome.as_str()]).observe(outage.as_secs_f64());
        }
    }

    /// Records a finished request to a registry.
    pub fn requested(&self, outcome: RequestOutcome, took: Duration) {
        self.requests.with_label_values(&[outcome.as_str()]).observe(took.as_secs_f64());
    }

    /// Records a finished poll cycle.
    pub fn cycled(&self, took: Duration) {
        self.cycles.observe(took.as_secs_f64());
    }

    /// Returns all metrics as text.
    pub fn text(&self, view: &View<'_>) -> Result<Vec<u8>, prometheus::Error> {
        let mut families = self.registry.gather();
        families.extend(view.collect());
        metrics::text(families)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

const VALID: &str = "names and labels are valid constants, each registered once";

fn add(registry: &Registry, collector: impl Collector + 'static) {
    registry.register(Box::new(collector)).expect(VALID);
}

/// A per-service metric: name, help, value. An unmeasured value is omitted, because 0 would be a valid measurement.
type PerService = (&'static str, &'static str, fn(&ServiceStatus) -> Option<f64>);

const PER_SERVICE: [PerService; 21] = [
    ("evenkeel_service_healthy", "1 if its containers are known to be healthy.", |s| {
        Some(flag(s.healthy == Some(true)))
    }),
    ("evenkeel_service_unhealthy", "1 if a container is known to be unhealthy or not running.", |s| {
        Some(flag(s.healthy == Some(false)))
    }),
    ("evenkeel_service_deploying", "Whether a deployment is in progress.", |s| Some(flag(s.deploying))),
    ("evenkeel_service_degraded", "Whether the healer is active.", |s| Some(flag(s.degraded))),
    ("evenkeel_service_exhausted", "Whether the healer gave up.", |s| Some(flag(s.exhausted))),
    ("evenkeel_service_blocked", "Whether a bad image is blocked.", |s| Some(flag(s.blocked.is_some()))),
    ("evenkeel_service_rollback_failed", "Whether a rollback failed, and its image still stands.", |s| {
        Some(flag(s.failed_update.as_ref().is_some_and(|failed| !failed.rolled_back)))
    }),
    ("evenkeel_service_not_found", "Whether an image is missing on this machine.", |s| {
        Some(flag(s.not_found.is_some()))
    }),
    ("evenkeel_service_errored", "Whether a fault persists.", |s| Some(flag(s.errored.is_some()))),
    ("evenkeel_service_way_back_at_risk", "Whether a rollback would fail.", |s| {
        Some(flag(s.way_back == Some(WayBackValue::AtRisk)))
    }),
    ("evenkeel_service_restart_failures", "Consecutive restarts that did not help.", |s| {
        Some(f64::from(s.restart_failures))
    }),
    ("evenkeel_service_containers", "Number of containers, running or not.", |s| {
        Some(s.containers.as_ref().map_or(0, Vec::len) as f64)
    }),
    ("evenkeel_service_last_check_timestamp_seconds", "End of the last check; 0 before the first.", |s| {
        Some(seconds(s.last_check))
    }),
    ("evenkeel_service_has_stats", "Whether CPU and memory were measured.", |s| Some(flag(s.has_stats))),
    ("evenkeel_service_cpu_cores", "CPU in use, in cores.", |s| measured(s, s.cpu_percent / 100.0)),
    ("evenkeel_service_memory_usage_bytes", "Memory in use.", |s| measured(s, s.memory_usage_mb * MIB)),
    ("evenkeel_service_memory_limit_bytes", "Memory limit.", |s| measured(s, s.memory_limit_mb * MIB)),
    ("evenkeel_service_updates_total", "Updates that passed probation.", |s| Some(s.updates_total as f64)),
    ("evenkeel_service_rollbacks_total", "Rollbacks of deployments, and those by a person.", |s| {
        Some(s.rollbacks_total as f64)
    }),
    ("evenkeel_service_restarts_total", "Restarts by the healer.", |s| Some(s.restarts_total as f64)),
    ("evenkeel_service_failures_total", "Deployments, rollbacks and restarts that failed.", |s| {
        Some(s.failures_total as f64)
    }),
];

fn measured(service: &ServiceStatus, value: f64) -> Option<f64> {
    service.has_stats.then_some(value)
}

/// A view exists for one scrape only, so it is collected directly and never registered.
impl Collector for View<'_> {
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.agent_families();
        families.extend(self.service_families());
        families
    }
}

impl View<'_> {
    fn agent_families(&self) -> Vec<MetricFamily> {
        let of_queues = self.queues.iter().map(|(name, depth)| (name.as_str(), depth() as f64));
        let of_deliveries = self.deliveries.iter().map(|stats| (stats.name.as_str(), stats.queued as f64));
        let waiting = of_queues.chain(of_deliveries);
        let delivered = self.deliveries.iter().flat_map(|stats| {
            let counts = [("failed", stats.failed), ("refused", stats.refused), ("sent", stats.sent)];
            counts.map(|(outcome, count)| {
                ([("destination", stats.name.as_str()), ("outcome", outcome)], count as f64)
            })
        });
        vec![
            family(
                "evenkeel_build_info",
                "Always 1; the version is in the label.",
                [([("version", env!("CARGO_PKG_VERSION"))], 1.0)],
            ),
            single(
                "evenkeel_uptime_seconds",
                "Time since the agent started.",
                self.report.uptime_seconds as f64,
            ),
            single("evenkeel_services", "Configured services.", self.report.services.len() as f64),
            single(
                "evenkeel_services_left_out",
                "Services that are not watched because of faults in their configuration.",
                self.report.left_out.len() as f64,
            ),
            single(
                "evenkeel_last_poll_timestamp_seconds",
                "End of the last poll cycle; 0 before the first.",
                seconds(self.polls.last_poll),
            ),
            single("evenkeel_stream_clients", "Clients of the event streams.", self.stream_clients as f64),
            family(
                "evenkeel_audit_queue_entries",
                "Audit entries waiting for delivery, by destination.",
                waiting.map(|(destination, count)| ([("destination", destination)], count)),
            ),
            family("evenkeel_deliveries_total", "Attempts to deliver audit entries, by outcome.", delivered),
            single(
                "evenkeel_channels_off",
                "Errors that keep a notification channel or the push off.",
                self.channels_off as f64,
            ),
            single(
                "evenkeel_fleet_reachable",
                "1 while a warden that manages the fleet can be asked.",
                flag(self.fleet.link == Link::Present),
            ),
            single(
                "evenkeel_fleet_away",
                "1 while a warden is configured and none can be asked.",
                flag(matches!(self.fleet.link, Link::Away { .. })),
            ),
            single(
                "evenkeel_fleet_revision",
                "Revision of the fleet decisions in force on this machine.",
                self.fleet.revision as f64,
            ),
            single(
                "evenkeel_fleet_held",
                "Services with an update deferred by the fleet.",
                self.held_by_fleet() as f64,
            ),
            single(
                "docker_daemon_healthy",
                "Whether the container engine responds.",
                flag(self.engine.error.is_none()),
            ),
            single(
                "docker_daemon_consecutive_failures",
                "Consecutive failed checks of the container engine.",
                self.engine.consecutive_failures as f64,
            ),
            single(
                "docker_daemon_checks_total",
                "Checks of the container engine.",
                self.engine.checks as f64,
            ),
        ]
    }

    fn held_by_fleet(&self) -> usize {
        let is_fleet_gate = |gate: &str| matches!(gate, "freeze" | "immunity" | "ring");
        let waiting = self.report.services.iter().filter_map(|service| service.waiting.as_ref());
        waiting.filter(|waiting| is_fleet_gate(&waiting.gate)).count()
    }

    fn service_families(&self) -> Vec<MetricFamily> {
        let services = &self.report.services;
        let status = services.iter().flat_map(|service| {
            STATUS_VALUES.map(|(value, word)| {
                ([("service", service.name.as_str()), ("status", word)], flag(service.status == value))
            })
        });
        let status = family(
            "evenkeel_service_status",
            "1 for the current status of the service, 0 for all others.",
            status,
        );
        let per_service = PER_SERVICE.iter().map(|(name, help, value)| {
            let samples = services.iter().filter_map(|s| Some(([("service", s.name.as_str())], value(s)?)));
            family(name, help, samples)
        });
        let waiting = services.iter().filter_map(|s| {
            let waiting = s.waiting.as_ref()?;
            Some(([("gate", waiting.gate.as_str()), ("service", s.name.as_str())], 1.0))
        });
        let waiting = family(
            "evenkeel_update_waiting",
            "1 while a gate defers an available update; the label names the first such gate.",
            waiting,
        );
        // The text encoder rejects a family without samples.
        let waiting = Some(waiting).filter(|family| !family.get_metric().is_empty());
        std::iter::once(status).chain(per_service).chain(waiting).collect()
    }
}

fn seconds(at: Option<Timestamp>) -> f64 {
    at.map_or(0.0, |at| at.as_millisecond() as f64 / 1000.0)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
