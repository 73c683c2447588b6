//! Every series has a description and exists from the first scrape on.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::testing::service_status as service;
use evenkeel_common::wire::{FailedUpdate, LeftOutService};

use super::*;

fn scrape(metrics: &Metrics, services: Vec<ServiceStatus>) -> String {
    scrape_with(metrics, services, Vec::new(), &FleetView::default())
}

fn scrape_with(
    metrics: &Metrics,
    services: Vec<ServiceStatus>,
    left_out: Vec<LeftOutService>,
    fleet: &FleetView,
) -> String {
    let queues: [(String, Depth); 1] = [("file".to_owned(), Arc::new(|| 3))];
    let view = View {
        report: &StatusReport {
            starting: false,
            uptime_seconds: 7,
            last_poll: None,
            poll_count: 0,
            services,
            engine_error: None,
            left_out,
            undelivered: Vec::new(),
        },
        polls: &PollState::default(),
        engine: &EngineHealth { error: None, checks: 5, consecutive_failures: 0 },
        fleet,
        stream_clients: 2,
        queues: &queues,
        deliveries: &[crate::audit::DeliveryStats {
            name: "push".to_owned(),
            sent: 4,
            failed: 1,
            refused: 0,
            queued: 2,
        }],
        channels_off: 0,
    };
    String::from_utf8(metrics.text(&view).unwrap()).unwrap()
}

/// Parses series (name and labels) and their values.
fn series(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect()
}

#[test]
fn every_series_is_described_once_and_named_by_the_conventions() {
    let mut measured = service("web");
    measured.has_stats = true;
    let text = scrape(&Metrics::new(), vec![measured]);
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helps = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(helps.insert(name) && help.ends_with('.') || name.starts_with("process_"), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(kinds.insert(name, kind).is_none(), "{line}");
        }
    }
    for name in series(&text).keys() {
        let name = name.split('{').next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
            name.strip_suffix(suffix).filter(|base| kinds.get(base) == Some(&"histogram"))
        });
        let base = base.unwrap_or(name);
        assert!(kinds.contains_key(base) && helps.contains(base), "{name} has no HELP or TYPE");
        let ours = base.starts_with("evenkeel_")
            || base.starts_with("docker_daemon_")
            || base.starts_with("process_");
        assert!(ours, "{name}");
        assert_eq!(kinds[base] == "counter", base.ends_with("_total"), "{name}");
    }
    assert_eq!(
        (kinds["docker_daemon_healthy"], kinds["docker_daemon_consecutive_failures"]),
        ("gauge", "gauge")
    );
    assert_eq!(kinds["docker_daemon_checks_total"], "counter");
    assert!(kinds.contains_key("process_start_time_seconds"), "{text}");
}

#[test]
fn the_guide_from_dockward_names_the_series_for_each_of_its_own() {
    let guide = include_str!("../../../dist/docs/from-dockward.md");
    let text = scrape(&Metrics::new(), vec![service("web")]);
    let known: BTreeSet<&str> =
        series(&text).keys().map(|name| name.split('{').next().unwrap_or_default()).collect();
    let rows: Vec<&str> = guide.lines().filter(|line| line.starts_with("| `watcher_")).collect();
    assert!(rows.len() > 4, "{rows:?}");
    for row in rows {
        let ours: Vec<&str> =
            row.split('|').nth(2).unwrap_or_default().split('`').skip(1).step_by(2).collect();
        assert!(!ours.is_empty() && ours.iter().all(|name| known.contains(name)), "{row}");
    }
}

#[test]
fn every_series_exists_from_the_first_scrape() {
    let metrics = Metrics::new();
    let first = scrape(&metrics, vec![service("web"), service("api")]);
    for outcome in DeployOutcome::ALL {
        metrics.deployed(outcome, Duration::from_secs(9), Some(Duration::from_secs(3)));
    }
    for outcome in RequestOutcome::ALL {
        metrics.requested(outcome, Duration::from_millis(9));
    }
    metrics.cycled(Duration::from_millis(9));
    let busy = ServiceStatus {
        status: StatusValue::Deploying,
        deploying: true,
        healthy: Some(false),
        blocked: Some("x".to_owned()),
        updates_total: 4,
        ..service("web")
    };
    let later = scrape(&metrics, vec![busy, service("api")]);
    let (first, later) = (series(&first), series(&later));
    assert_eq!(first.keys().collect::<Vec<_>>(), later.keys().collect::<Vec<_>>());
    for (name, expected) in [
        ("evenkeel_deploy_duration_seconds_count{outcome=\"rolled_back\"}", (0.0, 1.0)),
        ("evenkeel_registry_request_duration_seconds_sum{outcome=\"unreachable\"}", (0.0, 0.009)),
        ("evenkeel_poll_cycle_duration_seconds_count", (0.0, 1.0)),
        ("evenkeel_service_updates_total{service=\"web\"}", (0.0, 4.0)),
        ("evenkeel_service_blocked{service=\"web\"}", (0.0, 1.0)),
        // Also while the status is another one.
        ("evenkeel_service_unhealthy{service=\"web\"}", (0.0, 1.0)),
        ("evenkeel_service_healthy{service=\"web\"}", (0.0, 0.0)),
        ("evenkeel_service_status{service=\"web\",status=\"unknown\"}", (1.0, 0.0)),
        ("evenkeel_service_status{service=\"web\",status=\"deploying\"}", (0.0, 1.0)),
        ("evenkeel_audit_queue_entries{destination=\"file\"}", (3.0, 3.0)),
        ("evenkeel_stream_clients", (2.0, 2.0)),
        ("docker_daemon_checks_total", (5.0, 5.0)),
        ("docker_daemon_healthy", (1.0, 1.0)),
    ] {
        assert_eq!((first[name], later[name]), expected, "{name}");
    }
}

#[test]
fn a_rollback_that_has_failed_differs_from_one_that_worked() {
    let value = |rolled_back| {
        let failed = FailedUpdate {
            at: jiff::Timestamp::UNIX_EPOCH,
            image: "web:1".to_owned(),
            digest: None,
            reason: "container web-1 exited with code 3".to_owned(),
            container: None,
            output: String::new(),
            rolled_back,
            by_hand: false,
        };
        let blocked = Some("sha256:bb".to_owned());
        let record = ServiceStatus { blocked, failed_update: Some(failed), ..service("web") };
        let text = scrape(&Metrics::new(), vec![record]);
        let series = series(&text);
        series["evenkeel_service_rollback_failed{service=\"web\"}"]
    };
    assert_eq!((value(true), value(false)), (0.0, 1.0));
}

#[test]
fn services_that_are_left_out_are_counted() {
    let blog = LeftOutService { name: "blog".to_owned(), reason: "images: is empty".to_owned() };
    for (left_out, expected) in [(Vec::new(), 0.0), (vec![blog], 1.0)] {
        let text = scrape_with(&Metrics::new(), vec![service("web")], left_out, &FleetView::default());
        let series = series(&text);
        assert_eq!((series["evenkeel_services"], series["evenkeel_services_left_out"]), (1.0, expected));
    }
}

#[test]
fn a_fleet_that_is_away_differs_from_no_fleet() {
    let since = Timestamp::UNIX_EPOCH;
    for (link, expected) in [
        (Link::None, (0.0, 0.0)),
        (Link::Unknown, (0.0, 0.0)),
        (Link::Present, (1.0, 0.0)),
        (Link::Away { since }, (0.0, 1.0)),
    ] {
        let fleet = FleetView { link, ..FleetView::default() };
        let text = scrape_with(&Metrics::new(), vec![service("web")], Vec::new(), &fleet);
        let series = series(&text);
        assert_eq!((series["evenkeel_fleet_reachable"], series["evenkeel_fleet_away"]), expected, "{link:?}");
    }
}

#[test]
fn unmeasured_values_are_omitted() {
    let mut measured = service("web");
    measured.has_stats = true;
    (measured.cpu_percent, measured.memory_usage_mb) = (150.0, 2.5);
    let text = scrape(&Metrics::new(), vec![measured, service("api")]);
    let series = series(&text);
    let value = |name: &str| series.get(name).copied();
    assert_eq!(value("evenkeel_service_cpu_cores{service=\"web\"}"), Some(1.5));
    assert_eq!(value("evenkeel_service_memory_usage_bytes{service=\"web\"}"), Some(2_621_440.0));
    assert_eq!(value("evenkeel_service_cpu_cores{service=\"api\"}"), None);
    assert_eq!(value("evenkeel_service_has_stats{service=\"api\"}"), Some(0.0));
}
