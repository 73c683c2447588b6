//! The composition root: everything is made here and handed to those who need it; one line per task.
//!
//! Shutdown goes the way of the data: first the tasks that produce (workers, poller, events, API), then the sinks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_common::clock::{Clock, SystemClock, Uptime};
use evenkeel_common::http::{self, Limiter, Limits};
use evenkeel_common::queue::{self, Outbox};
use evenkeel_common::store::{self, MemoryStore, MonitoredStore, Store};
use evenkeel_common::supervisor::{self, Supervisor};
use evenkeel_common::systemd::{self, ServiceManager};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use futures_util::FutureExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};

use crate::PROGRAM;
use crate::adapters::compose::ComposeCli;
use crate::adapters::docker::{DockerEngine, Endpoint, Surroundings};
use crate::adapters::registry::{Credentials, CurrentRegistry, RegistryClient, RegistrySettings};
use crate::audit::{Audit, Deliveries, FileSink, Settings, trial};
use crate::config::{Config, ConfigSource, RegistryConfig};
use crate::http::metrics::{Depth, Metrics};
use crate::http::{Api, AuditAnswers, routes};
use crate::model::text;
use crate::ports::meter::Meter;
use crate::ports::{Engine, Registry};
use crate::project::services::{Dependencies, EngineHealth, PollState, Services};
use crate::project::worker::{Record, World};
use crate::service::boot::Boot;
use crate::tasks::engine_health::EngineProbe;
use crate::tasks::events::Events;
use crate::tasks::monitor::Monitor;
use crate::tasks::poller::Poller;
use crate::tasks::registry_events::RegistryEvents;
use crate::tasks::reload::{Reloader, ServiceDeps};
use crate::tasks::state_health::StateHealth;
use crate::tasks::status_publisher::Publisher;

/// Time that tasks get to end: a step of a deployment may need most of it.
const STOP_GRACE: Duration = Duration::from_secs(25);

/// Runs the agent until it is told to stop.
pub fn run(config: Config, source: &ConfigSource) -> anyhow::Result<()> {
    // One thread is enough for what waits most of its life, and what it frees is of use to all.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(serve(config, source))
}

async fn serve(mut config: Config, source: &ConfigSource) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (started, uptime) = (clock.now(), Uptime::starting_now());
    let signals = supervisor::signals().context("cannot listen for signals")?;
    let hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let manager = Arc::new(ServiceManager::new(&|name| std::env::var_os(name)));
    let listeners = http::bind(&config.api.addresses)?;

    let opened = store::open(&config.state_path)?;
    let mut warnings = Vec::new();
    if let Some(warning) = opened.warning {
        warnings.push(format!("state.path: {warning}"));
    }
    let (store, failing) = MonitoredStore::new(opened.store);
    let store: Arc<dyn Store> = Arc::new(store);

    let variable = |name: &str| std::env::var(name).ok();
    let surroundings = Surroundings { variable: &variable, root: Path::new("/") };
    let endpoint =
        Endpoint::resolve(config.runtime, &surroundings).context("cannot find the container engine")?;
    let credentials = Arc::new(Credentials::from_env());
    let engine: Arc<dyn Engine> = Arc::new(DockerEngine::new(endpoint.clone(), credentials.clone()));
    let metrics = Arc::new(Metrics::new());
    let meter = {
        let metrics = metrics.clone();
        Meter::new(move |outcome, took| metrics.requested(outcome, took))
    };
    let own_ports: Vec<u16> =
        listeners.iter().filter_map(|listener| Some(listener.local_addr().ok()?.port())).collect();
    let make_registry = move |config: &RegistryConfig| -> anyhow::Result<RegistryClient> {
        let client = RegistryClient::new(RegistrySettings::from(config), credentials.clone())?;
        Ok(client.metered(meter.clone()).shielding(own_ports.clone()))
    };
    let current = Arc::new(CurrentRegistry::new(Arc::new(make_registry(&config.registry)?)));
    let registry: Arc<dyn Registry> = current.clone();
    let compose = Arc::new(ComposeCli::new(config.runtime, &endpoint, std::env::vars_os()));
    compose.withhold(&config.named_variables);
    let withhold = {
        let compose = compose.clone();
        Box::new(move |names: &_| compose.withhold(names))
    };
    if config.services.iter().any(|service| service.project().is_some())
        && let Some(fault) = compose.unfit().await
    {
        tracing::warn!("{fault}");
        warnings.push(format!("compose, as it was at the start: {fault}"));
    }

    let mut supervisor = Supervisor::new();
    let mut queues: Vec<(String, Depth)> = Vec::new();
    let channels = Settings::of(&config);
    let mut names: Vec<String> = channels.iter().map(Settings::name).collect();
    names.extend(config.audit_path.is_some().then(|| FileSink::NAME.to_owned()));
    let queue::Opened { outbox, continued } = open_outbox(store.clone(), &clock, &names, &mut warnings).await;
    supervisor.spawn_delivery("outbox", outbox.clone().run(supervisor.delivery_token()));
    let unwritten = outbox.clone();
    queues.push(("outbox".to_owned(), Arc::new(move || unwritten.unwritten())));
    if let (Some(path), Some(destination)) = (&config.audit_path, outbox.destination(FileSink::NAME)) {
        let waiting = outbox.clone();
        let depth = move || usize::try_from(waiting.waiting(FileSink::NAME)).unwrap_or(usize::MAX);
        queues.push((FileSink::NAME.to_owned(), Arc::new(depth)));
        let sink = FileSink::new(path.clone(), destination, clock.clone());
        supervisor.spawn_delivery("audit file", sink.run(supervisor.delivery_token()));
    }
    let deliveries = Deliveries::new(outbox.clone(), supervisor.delivery_token());
    let reconfigured = deliveries.reconfigure(channels, &trial::machine_name(&config)).await;
    config.warnings.extend(reconfigured.faults);
    supervisor.spawn_delivery("deliveries", deliveries.clone().run());
    let audit = Audit::new(outbox);
    // Where there was no outbox, nothing tells what it had.
    let recorded = continued.then(|| audit.journal().recent(queue::HISTORY));
    let record: Record = {
        let audit = audit.clone();
        Arc::new(move |entry| audit.record(entry))
    };

    let message = format!("watching {}", text::count(config.services.len(), "service"));
    record(AuditEntry::new(started, PROGRAM, Kind::STARTED, Level::Info, message));

    let boot = boot(store.as_ref()).await;
    let world = World {
        engine: engine.clone(),
        registry: registry.clone(),
        compose,
        store: store.clone(),
        commit: {
            let audit = audit.clone();
            Arc::new(move |changes, entries| {
                let audit = audit.clone();
                async move { audit.commit(changes, entries).await }.boxed()
            })
        },
        clock: clock.clone(),
        record: record.clone(),
        deployed: {
            let metrics = metrics.clone();
            Arc::new(move |outcome, took| metrics.deployed(outcome, took))
        },
        boot: boot.clone(),
    };
    let origin = ServiceDeps {
        source: source.clone(),
        replace_registry: Box::new(move |config| {
            current.replace(Arc::new(make_registry(config)?));
            Ok(())
        }),
        withhold,
        manager: manager.clone(),
        deliveries: deliveries.clone(),
    };
    let (listening, audit_path) = (config.api.clone(), config.audit_path.clone());
    let reloader = Reloader::start(config, origin, world, recorded, warnings, supervisor.token()).await;
    let active = reloader.active();

    let (polls, asked) = mpsc::unbounded_channel();
    let poll_state = Arc::new(watch::Sender::new(PollState::default()));
    let engine_state = Arc::new(watch::Sender::new(EngineHealth::default()));
    let dependencies = Dependencies { engine: engine_state.subscribe(), state: failing.subscribe() };
    let services =
        Arc::new(Services::new(reloader.workers(), polls, poll_state.subscribe(), dependencies, uptime));
    let state_health =
        StateHealth { store: store.clone(), failing, clock: clock.clone(), record: record.clone() };

    let check_now = Arc::new(Notify::new());
    let health = EngineProbe {
        engine: engine.clone(),
        active: active.clone(),
        clock: clock.clone(),
        record: record.clone(),
        state: engine_state.clone(),
        check_now: check_now.clone(),
    };
    let (publisher, status_frames) = Publisher::new(services.clone(), clock.clone());
    let (push_poller, pushes) = RegistryEvents::new(services.clone(), registry.clone());
    let poller = Poller {
        services: services.clone(),
        registry,
        active: active.clone(),
        clock: clock.clone(),
        record: record.clone(),
        cycled: {
            let metrics = metrics.clone();
            Arc::new(move |took| metrics.cycled(took))
        },
        state: poll_state,
        asked,
    };
    let monitor = Monitor { services: services.clone(), engine: engine.clone(), active: active.clone() };
    let within = systemd::watchdog(&|name| std::env::var_os(name));
    let alive = services.clone();
    let proof = move || alive.clone().round_trip();
    let signs = systemd::watchdog_loop(manager.clone(), within, proof, supervisor.token());
    let events = Events {
        engine,
        services: services.clone(),
        health: engine_state.subscribe(),
        check_now,
        last_nano: 0,
    };
    let api = Api {
        services,
        engine: engine_state.subscribe(),
        active,
        audit_path,
        audit,
        queues: Arc::new(queues),
        deliveries,
        status_frames,
        stream_limiter: Limiter::for_streams(),
        audit_answers: Arc::new(AuditAnswers::default()),
        metrics,
        pushes,
        stop: supervisor.token(),
        clock: clock.clone(),
    };
    let limits = Limits::default();
    let filter = routes(api, &listening.allowed_hosts, limits);

    let what = reloader.summary();
    supervisor.spawn("services", reloader.run(hangups));
    supervisor.spawn("monitor", monitor.run(supervisor.token()));
    supervisor.spawn("daemon health", health.run(supervisor.token()));
    supervisor.spawn("state health", state_health.run(supervisor.token()));
    supervisor.spawn("events", events.run(supervisor.token()));
    supervisor.spawn("poller", poller.run(supervisor.token()));
    supervisor.spawn("push poller", push_poller.run(supervisor.token()));
    supervisor.spawn("status publisher", publisher.run(supervisor.token()));
    supervisor.spawn("api", http::serve(listeners, filter, limits, supervisor.token()));
    tracing::info!(config = %source.path().display(), api = ?listening.addresses, engine = %endpoint, "ready");

    let stopping = supervisor.token();
    let (said, at) = (record.clone(), clock.clone());
    supervisor.spawn("farewell", async move {
        stopping.cancelled().await;
        said(AuditEntry::new(at.now(), PROGRAM, Kind::SHUTDOWN, Level::Info, "stopping"));
    });
    supervisor.spawn("service manager", signs);
    manager.ready(&what);
    let end = supervisor.run_until(signals, STOP_GRACE).await;
    if boot.before != boot.now {
        // A state that can't be written is told of elsewhere.
        let _ = store.put(BOOT, boot.now.as_bytes().to_vec()).await;
    }
    end.context("stopped by a fault")
}

/// Key of the machine's boot in the store.
const BOOT: &str = "boot";

/// Reads which boot of the machine this is, and in which one the agent was stopped.
async fn boot(store: &dyn Store) -> Boot {
    let now = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let before = store.get(BOOT).await.ok().flatten().and_then(|row| String::from_utf8(row).ok());
    Boot { now: now.trim().into(), before: before.unwrap_or_default().into() }
}

/// The outbox as it was left; a new one in memory where it can't be read.
async fn open_outbox(
    store: Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    names: &[String],
    warnings: &mut Vec<String>,
) -> queue::Opened {
    match Outbox::open(store.clone(), clock.clone(), PROGRAM, names).await {
        Ok(opened) => opened,
        Err(error) => {
            warnings.push(format!("state.path: entries wait for their delivery in memory only: {error}"));
            let memory = Arc::new(MemoryStore::new());
            let opened = Outbox::open(memory, clock.clone(), PROGRAM, names).await;
            let opened = opened.expect("memory can always be read and written");
            queue::Opened { outbox: opened.outbox.with_state_in(store), ..opened }
        }
    }
}
