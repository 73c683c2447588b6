//! The composition root: everything is made here and handed to those who need it; one line per task.
//!
//! Shutdown goes the way of the data: first the server and the heartbeat, then the state file writes what they left.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::http;
use evenkeel_common::supervisor::{self, Supervisor};
use evenkeel_common::systemd::{self, ServiceManager};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{Config, ConfigSource};
use crate::heartbeat::Heartbeat;
use crate::http::{Api, Metrics, bodies, limits, request_seats, routes, stream_seats};
use crate::live::Reload;
use crate::ring::Ring;
use crate::state_file::{self, State, StateFile};

/// Time that tasks get to end.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Files that are open beside the connections: those of the heartbeat, and of connections that are just being cut.
const OTHER_FILES: u64 = 1024;

/// Runs the warden until it is told to stop.
pub fn run(config: Config, source: &ConfigSource) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(serve(config, source))
}

async fn serve(config: Config, source: &ConfigSource) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let signals = supervisor::signals().context("cannot listen for signals")?;
    let hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let manager = Arc::new(ServiceManager::new(&|name| std::env::var_os(name)));
    let limits = limits();
    open_more_files(limits.connections as u64 + OTHER_FILES);
    let listeners = http::bind(&config.addresses)?;

    let state_path = config.state_path.clone();
    let _lock = state_path.as_deref().map(state_file::lock).transpose()?;
    let (state, damage) = match &state_path {
        Some(path) => state_file::load(path, clock.as_ref()),
        None => (State::default(), None),
    };
    if let Some(damage) = damage {
        tracing::error!("{damage}");
    }
    let ring = Arc::new(Ring::new(config.agents.iter().map(|agent| agent.id.clone()), state, clock.clone()));

    let mut supervisor = Supervisor::new();
    tracing::info!(api = ?config.addresses, agents = config.agents.len(), "ready");
    let reload = Reload::new(config, source.clone(), ring.clone(), manager.clone(), supervisor.token());
    let what = reload.in_words();
    let api = Api {
        live: reload.live(),
        ring: ring.clone(),
        limiter: stream_seats(),
        requests: request_seats(),
        bodies: bodies(limits),
        guesses: Arc::default(),
        clock: clock.clone(),
        metrics: Arc::new(Metrics::default()),
    };
    let heartbeat = Heartbeat::new(reload.live(), ring.clone())?;

    let within = systemd::watchdog(&|name| std::env::var_os(name));
    let alive = ring.clone();
    let proof = move || {
        // Whoever can have all that is kept waits for nobody.
        drop(alive.state());
        std::future::ready(())
    };
    let signs = systemd::watchdog_loop(manager.clone(), within, proof, supervisor.token());
    if let Some(path) = state_path {
        let file = StateFile::new(path, ring);
        supervisor.spawn_delivery("state file", file.run(supervisor.delivery_token()));
    }
    supervisor.spawn("heartbeat", heartbeat.run(supervisor.token()));
    supervisor.spawn("api", http::serve(listeners, routes(api, limits), limits, supervisor.token()));
    supervisor.spawn("reload", reload.run(hangups));
    supervisor.spawn("service manager", signs);
    manager.ready(&what);
    supervisor.run_until(signals, STOP_GRACE).await.context("stopped by a fault")
}

/// Raises the soft limit on open files, which is lower than our own limits on most systems, as far as the hard one
/// allows.
fn open_more_files(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let Some(now) = limit.current.filter(|now| *now < wanted) else { return };
    let raised = limit.maximum.map_or(wanted, |most| most.min(wanted));
    limit.current = Some(raised);
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, now, wanted, "cannot raise the limit on open files");
    } else if raised < wanted {
        tracing::warn!(
            raised,
            wanted,
            "the limit on open files is lower than the warden's limit on connections"
        );
    }
}
