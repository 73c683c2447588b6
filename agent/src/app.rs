//! The composition root: everything is made here and handed to those who need it; one line per task.
//!
//! Shutdown goes the way of the data: first the tasks that produce (workers, poller, events, API), then the sinks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::http::{self, Limits};
use evenkeel_common::store;
use evenkeel_common::supervisor::{self, Supervisor};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::PROGRAM;
use crate::audit::{Audit, FileSink, Inbox, read_latest};
use crate::config::{Config, ConfigSource, RegistryConfig};
use crate::fleet::Fleet;
use crate::http::{Api, routes};
use crate::ports::compose::ComposeCli;
use crate::ports::engine::{DockerEngine, Endpoint, Surroundings};
use crate::ports::registry::{Credentials, CurrentRegistry, RegistryClient, RegistrySettings};
use crate::ports::{Engine, Registry};
use crate::tasks::daemon_health::{DaemonHealth, EngineHealth};
use crate::tasks::events::Events;
use crate::tasks::monitor::Monitor;
use crate::tasks::poller::{PollState, Poller};
use crate::tasks::services::{Origin, Services};
use crate::tasks::systemd::{self, ServiceManager, Watchdog};
use crate::tasks::worker::{Projects, Record, World};

/// Time that tasks get to end: a step of a deployment may need most of it.
const STOP_GRACE: Duration = Duration::from_secs(25);
/// Checks that may read from the engine at once.
const ENGINE_SLOTS: usize = 16;
/// How many of the audit file's last entries are compared with what the state says was said.
const AUDIT_TAIL: usize = 500;

/// Runs the agent until it is told to stop.
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
    let started = clock.now();
    let signals = supervisor::signals().context("cannot listen for signals")?;
    let hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let manager = Arc::new(ServiceManager::new(&|name| std::env::var_os(name)));
    let listeners = http::bind(&config.api.addresses)?;

    let opened = store::open(&config.state_path)?;
    let mut warnings = Vec::new();
    if let Some(warning) = opened.warning {
        tracing::error!("{warning}");
        warnings.push(format!("state.path: {warning}"));
    }

    let variable = |name: &str| std::env::var(name).ok();
    let surroundings = Surroundings { variable: &variable, root: Path::new("/") };
    let endpoint =
        Endpoint::resolve(config.runtime, &surroundings).context("cannot find the container engine")?;
    let credentials = Arc::new(Credentials::from_env());
    let engine: Arc<dyn Engine> = Arc::new(DockerEngine::new(endpoint.clone(), credentials.clone()));
    let client = RegistryClient::new(RegistrySettings::from(&config.registry), credentials.clone())?;
    let current = Arc::new(CurrentRegistry::new(Arc::new(client)));
    let registry: Arc<dyn Registry> = current.clone();
    let compose = Arc::new(ComposeCli::new(config.runtime, &endpoint, std::env::vars_os()));

    let mut supervisor = Supervisor::new();
    let mut inboxes: Vec<Arc<dyn Inbox>> = Vec::new();
    if let Some(path) = &config.audit_path {
        let sink = FileSink::new(path.clone(), clock.clone());
        inboxes.push(sink.inbox());
        supervisor.spawn_delivery("audit file", sink.run(supervisor.delivery_token()));
    }
    // Greater than every number of an earlier life: entries are fewer than one in a microsecond.
    let first_id = u64::try_from(started.as_microsecond()).unwrap_or_default();
    let audit = Audit::new(first_id, inboxes);
    let record: Record = {
        let audit = audit.clone();
        Arc::new(move |entry| audit.record(entry))
    };

    let message = format!("watching {} services", config.services.len());
    record(AuditEntry::new(started, PROGRAM, Kind::STARTED, Level::Info, message));

    let written = match &config.audit_path {
        Some(path) => read_latest(path.clone(), AUDIT_TAIL).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let world = World {
        engine: engine.clone(),
        registry: registry.clone(),
        compose,
        store: opened.store.clone(),
        clock: clock.clone(),
        record: record.clone(),
        projects: Projects::default(),
        engine_slots: Arc::new(Semaphore::new(ENGINE_SLOTS)),
    };
    let make_registry = move |config: &RegistryConfig| {
        Ok(RegistryClient::new(RegistrySettings::from(config), credentials.clone())?)
    };
    let origin = Origin {
        source: source.clone(),
        registry: current,
        make_registry: Box::new(make_registry),
        manager: manager.clone(),
    };
    let (listening, audit_path) = (config.api.clone(), config.audit_path.clone());
    let written = audit_path.is_some().then_some(&written[..]);
    let services = Services::start(config, origin, world, written, warnings, supervisor.token()).await;
    let live = services.live();

    let (polls, asked) = mpsc::unbounded_channel();
    let poll_state = Arc::new(watch::Sender::new(PollState::default()));
    let engine_state = Arc::new(watch::Sender::new(EngineHealth::default()));
    let fleet = Arc::new(Fleet::new(services.workers(), polls, poll_state.subscribe(), started));

    let health = DaemonHealth {
        engine: engine.clone(),
        live: live.clone(),
        clock: clock.clone(),
        record: record.clone(),
        state: engine_state.clone(),
    };
    let poller = Poller {
        fleet: fleet.clone(),
        registry,
        live: live.clone(),
        clock: clock.clone(),
        record: record.clone(),
        state: poll_state,
        asked,
    };
    let monitor = Monitor { fleet: fleet.clone(), engine: engine.clone(), live: live.clone() };
    let within = systemd::watchdog(&|name| std::env::var_os(name));
    let watchdog = Watchdog { manager: manager.clone(), fleet: fleet.clone(), within };
    let events = Events { engine, fleet: fleet.clone(), health: engine_state.subscribe(), last_nano: 0 };
    let api = Api { fleet, engine: engine_state.subscribe(), live, audit_path, clock: clock.clone() };
    let limits = Limits::default();
    let filter = routes(api, &listening.allowed_hosts, limits);

    let count = services.workers().borrow().len();
    supervisor.spawn("services", services.run(hangups));
    supervisor.spawn("monitor", monitor.run(supervisor.token()));
    supervisor.spawn("daemon health", health.run(supervisor.token()));
    supervisor.spawn("events", events.run(supervisor.token()));
    supervisor.spawn("poller", poller.run(supervisor.token()));
    supervisor.spawn("api", http::serve(listeners, filter, limits, supervisor.token()));
    tracing::info!(config = %source.path().display(), api = ?listening.addresses, engine = %endpoint, "ready");

    let stopping = supervisor.token();
    let (said, at) = (record.clone(), clock.clone());
    supervisor.spawn("farewell", async move {
        stopping.cancelled().await;
        said(AuditEntry::new(at.now(), PROGRAM, Kind::SHUTDOWN, Level::Info, "stopping"));
    });
    supervisor.spawn("service manager", watchdog.run(supervisor.token()));
    manager.ready(count);
    supervisor.run_until(signals, STOP_GRACE).await.context("stopped by a fault")
}
