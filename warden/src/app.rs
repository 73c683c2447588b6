//! The composition root: builds everything, spawns the tasks, and drains them on shutdown.
//!
//! Shutdown follows the data flow: the server and the heartbeat stop first, then the collector stores the remaining entries.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::http;
use evenkeel_common::supervisor::{self, Supervisor};
use evenkeel_common::systemd::{self, ServiceManager};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::collector::Collector;
use crate::config::{Config, ConfigSource};
use crate::heartbeat::Heartbeat;
use crate::http::{Api, Metrics, bodies, limits, poll_limiter, request_limiter, routes, stream_limiter};
use crate::keep::embedded::Embedded;
use crate::keep::postgres::Postgres;
use crate::keep::{Keep, Retention};
use crate::reload::{ConfigReceiver, Reload};

/// Timeout for tasks to end on shutdown, for each of the two stages.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// File descriptors besides the server's connections: those of the heartbeat, and connections that are being closed.
const OTHER_FILES: u64 = 1024;

/// Runs the warden until it is asked to stop.
pub fn run(config: Config, source: &ConfigSource) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    supervisor::run_to_end(runtime, serve(config, source))
}

async fn serve(config: Config, source: &ConfigSource) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let signals = supervisor::signals().context("cannot listen for signals")?;
    let hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let manager = Arc::new(ServiceManager::new(&|name| std::env::var_os(name)));
    let limits = limits();
    raise_file_limit(limits.connections as u64 + OTHER_FILES);

    let listeners = http::bind(&config.addresses)?;
    let keep = open_store(&config, &clock)?;
    let retention =
        Retention { days: config.store.keep_days, bytes: u64::from(config.store.keep_mib) * 1024 * 1024 };
    let (collector, mut collecting) = Collector::new(keep, config.ids(), retention, clock.clone());
    collector.set_rules(config.rules, config.fuse);
    collector.set_agents(config.ids(), config.left_out == 0);

    let mut supervisor = Supervisor::new();
    tracing::info!(api = ?config.addresses, agents = config.agents.len(), "ready");
    let reload = Reload::new(config, source.clone(), collector.clone(), manager.clone(), supervisor.token());
    let status_line = reload.status_line();
    let api = new_api(reload.subscribe(), collector.clone(), clock);
    let heartbeat = Heartbeat::new(reload.subscribe(), collector.clone())?;

    collecting.prepare().await;
    supervisor.spawn_delivery("collector", collecting.run(supervisor.delivery_token()));
    supervisor.spawn("heartbeat", heartbeat.run(supervisor.token()));
    supervisor.spawn("api", http::serve(listeners, routes(api, limits), limits, supervisor.token()));
    supervisor.spawn("reload", reload.run(hangups));
    supervisor.spawn("watchdog", watchdog(manager.clone(), collector, supervisor.token()));
    manager.ready(&status_line);
    supervisor.run_until(signals, DRAIN_TIMEOUT).await.context("stopped by a fault")
}

fn open_store(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Arc<dyn Keep>> {
    if let Some(url) = &config.store.url {
        return Ok(Arc::new(Postgres::new(url.clone(), clock.clone())));
    }
    Ok(match &config.state_path {
        Some(folder) => Arc::new(Embedded::open(folder, clock.clone())?),
        None => Arc::new(Embedded::in_memory(clock.clone())?),
    })
}

fn new_api(config: ConfigReceiver, collector: Arc<Collector>, clock: Arc<dyn Clock>) -> Api {
    Api {
        config,
        collector,
        streams: stream_limiter(),
        requests: request_limiter(),
        polls: poll_limiter(),
        quotas: Arc::default(),
        bodies: bodies(limits()),
        throttle: Arc::default(),
        metrics: Arc::new(Metrics::default()),
        clock,
    }
}

/// Sends keep-alives to the service manager as long as the lock on the machines can be acquired.
async fn watchdog(manager: Arc<ServiceManager>, collector: Arc<Collector>, stop: CancellationToken) {
    let timeout = systemd::watchdog(&|name| std::env::var_os(name));
    let is_alive = move || {
        drop(collector.machines());
        std::future::ready(())
    };
    systemd::watchdog_loop(manager, timeout, is_alive, stop).await;
}

/// Raises the soft limit on open files as far as the hard limit allows. On most systems it is lower than the warden's own
/// limits.
fn raise_file_limit(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let Some(current) = limit.current.filter(|current| *current < wanted) else { return };
    let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    limit.current = Some(raised);
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, current, wanted, "cannot raise the limit on open files");
    } else if raised < wanted {
        tracing::warn!(
            raised,
            wanted,
            "the hard limit on open files is lower than the warden's limit on connections"
        );
    }
}
