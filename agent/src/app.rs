//! The composition root: build · listen · load · spawn · drain.
//!
//! Everything that needs no I/O wait is built first, so that the API answers immediately. The state is loaded after that;
//! until loading is done, `GET /health` reports `starting`.
//!
//! Shutdown follows the data flow: first the producers (workers, poller, events, API), then the sinks.

pub mod clients;
mod fleet_tasks;

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_common::clock::{Clock, SystemClock, Uptime};
use evenkeel_common::http::{self, BindError, Limiter, Limits, Response};
use evenkeel_common::queue::{self, Outbox};
use evenkeel_common::store::{self, Failing, MemoryStore, MonitoredStore, Store, Unopened, Writes};
use evenkeel_common::supervisor::{self, Supervisor};
use evenkeel_common::systemd::{self, ServiceManager};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use futures_util::{FutureExt, StreamExt};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use warp::filters::BoxedFilter;

use crate::PROGRAM;
use crate::adapters::compose::ComposeCli;
use crate::adapters::docker::{DockerEngine, Endpoint, HostEnvironment};
use crate::adapters::env_file::LocalEnvFiles;
use crate::adapters::gate_command::GateCommandRunner;
use crate::adapters::probe::ProbeClient;
use crate::adapters::registry::{AskInsecure, Credentials, CurrentRegistry, RegistryClient};
use crate::adapters::snapshot::FolderSnapshots;
use crate::adapters::warden::Wardens;
use crate::audit::{self, Audit, Deliveries, FileSink, Settings, trial};
use crate::config::active::ActiveConfig;
use crate::config::{Config, ConfigSource, RegistryConfig};
use crate::http::metrics::{Depth, Metrics};
use crate::http::{Api, AuditAnswers, Recording, StatusAnswers, routes};
use crate::model::text;
use crate::ports::Compose as _;
use crate::ports::meter::Meter;
use crate::ports::survey::Survey as _;
use crate::project::files::Offload;
use crate::project::needed_images::NeededImages;
use crate::project::published::Changed;
use crate::project::services::{Dependencies, EngineHealth, PollState, Services, Workers};
use crate::project::snapshot::{AtRest, Data};
use crate::project::world::{Record, World};
use crate::service::boot::Boot;
use crate::service::fleet::FleetView;
use crate::service::view::status::StatusContext;
use crate::service::wording;
use crate::tasks::engine_health::EngineProbe;
use crate::tasks::events::Events;
use crate::tasks::fleet;
use crate::tasks::monitor::Monitor;
use crate::tasks::poller::Poller;
use crate::tasks::registry_events::{RegistryEventSender, RegistryEvents};
use crate::tasks::reload::{self, Reloader, ReplaceRegistry, ServiceDeps};
use crate::tasks::state_health::{self, StateHealth};
use crate::tasks::status_publisher::{Publisher, StatusFrames};

/// Time that tasks get to shut down. A deployment step may need most of it.
const STOP_GRACE: Duration = Duration::from_secs(25);

/// What becomes of the deployments that are in progress when the agent is stopped.
const LEFT_AT_STOP: &str = "what was stopped so that data can be copied is started again if the time suffices, and that update is \
                            given up; every other deployment is finished or undone when the agent runs again, and what it has \
                            stopped stays stopped until then";

/// How long the service manager waits for the start, well within its limit of 90 s. Then the start counts as done.
const START_SHOWN: Duration = Duration::from_secs(20);
/// Time between attempts to open a state that can't be read.
const REOPEN_EVERY: Duration = Duration::from_secs(5);

/// Runs the agent until it receives a signal to stop.
pub fn run(config: Config, source: &ConfigSource) -> anyhow::Result<()> {
    // The tasks are idle most of the time, so one thread is enough. Memory freed by one task is reused by the others.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    supervisor::run_to_end(runtime, serve(config, source))
}

/// The default port of the agent (spec 2.9) is also that of Prometheus, which often runs on the same machine.
fn name_the_usual_holder(error: BindError) -> anyhow::Error {
    match &error {
        BindError::Listen { address, cause }
            if cause.kind() == io::ErrorKind::AddrInUse && address.ends_with(":9090") =>
        {
            anyhow!(
                "{error}; Prometheus listens on port 9090 by default, too: change api.address, or its port"
            )
        }
        _ => error.into(),
    }
}

async fn serve(config: Config, source: &ConfigSource) -> anyhow::Result<()> {
    let mut signals = supervisor::signals().context("cannot listen for signals")?;
    let hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let listeners = http::bind(&config.api.addresses).map_err(name_the_usual_holder)?;
    let mut supervisor = Supervisor::new();
    let stop = supervisor.token();
    let parts = Parts::build(config, source, &listeners)?;

    let limits = Limits::default();
    supervisor.spawn("api", http::serve(listeners, parts.routes(limits, &stop), limits, stop.clone()));
    let loaded = tokio::select! {
        loaded = load(&parts, &mut supervisor) => Some(loaded?),
        Some(signal) = signals.next() => {
            tracing::info!(signal, "stopping during start-up");
            stop.cancel();
            None
        }
        never = outlast(&parts.manager) => match never {},
    };
    if let Some(loaded) = loaded {
        spawn(parts, loaded, hangups, &mut supervisor);
    }
    let end = supervisor.run_until(signals, STOP_GRACE).await;
    end.context("stopped by a fault")
}

/// Keeps the service manager from ending a start that waits, for example for its disk, or from waiting for it: it must not hold
/// up the boot, and a restart would not help.
async fn outlast(manager: &ServiceManager) -> Infallible {
    let timeout = systemd::watchdog(&|name| std::env::var_os(name));
    let every = timeout.map_or(START_SHOWN, |timeout| START_SHOWN.min(timeout / 2));
    sleep(START_SHOWN).await;
    loop {
        manager.waiting();
        sleep(every).await;
    }
}

/// The parts of the agent that are built before the state is loaded.
struct Parts {
    source: ConfigSource,
    clock: Arc<dyn Clock>,
    manager: Arc<ServiceManager>,
    metrics: Arc<Metrics>,
    endpoint: Endpoint,
    /// A problem with the way the engine's endpoint was chosen.
    engine_warning: Option<String>,
    engine: Arc<DockerEngine>,
    registry: Arc<CurrentRegistry>,
    make_registry: MakeRegistry,
    compose: Arc<ComposeCli>,
    gate_command: Arc<GateCommandRunner>,
    wardens: Arc<Wardens>,
    watches: Watches,
    services: Arc<Services>,
    recording: Arc<OnceLock<Recording>>,
    poll_requests: mpsc::UnboundedReceiver<()>,
    publisher: Publisher,
    status_frames: StatusFrames,
    push_poller: RegistryEvents,
    pushes: RegistryEventSender,
}

type MakeRegistry = Arc<dyn Fn(&RegistryConfig) -> anyhow::Result<RegistryClient> + Send + Sync>;

/// The watch channels that tasks publish their state on.
struct Watches {
    workers: watch::Sender<Option<Workers>>,
    listeners: watch::Sender<Workers>,
    services: Changed,
    active: watch::Sender<ActiveConfig>,
    engine: watch::Sender<EngineHealth>,
    polls: watch::Sender<PollState>,
    failing_state: watch::Sender<Option<Failing>>,
    writes: Writes,
    fleet: watch::Sender<Arc<FleetView>>,
}

impl Watches {
    fn new(config: Config) -> Self {
        let warnings = Arc::new(config.warnings.clone());
        Self {
            workers: watch::Sender::new(None),
            listeners: watch::Sender::default(),
            services: Changed::default(),
            active: watch::Sender::new(ActiveConfig { config: Arc::new(config), warnings }),
            engine: watch::Sender::default(),
            polls: watch::Sender::default(),
            failing_state: watch::Sender::new(None),
            writes: Writes::default(),
            fleet: watch::Sender::default(),
        }
    }
}

impl Parts {
    fn build(config: Config, source: &ConfigSource, listeners: &[TcpListener]) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let variable = |name: &str| std::env::var(name).ok();
        let surroundings = HostEnvironment { variable: &variable, root: Path::new("/") };
        let (endpoint, engine_warning) = Endpoint::find(config.runtime, &surroundings);
        let credentials = Arc::new(Credentials::from_env(config.runtime));
        let engine = Arc::new(DockerEngine::new(endpoint.clone(), credentials.clone()));
        let metrics = Arc::new(Metrics::new());
        let make_registry = registry_maker(metrics.clone(), credentials, insecure_of(&engine), listeners);
        let registry = Arc::new(CurrentRegistry::new(Arc::new(make_registry(&config.registry)?)));
        let compose = ComposeCli::new(config.runtime, &endpoint, std::env::vars_os());
        let compose = Arc::new(compose.with_definitions(config.state_path.join("definitions")));
        compose.withhold(&config.named_variables);

        let gate_command = Arc::new(GateCommandRunner::new(&config.state_path));
        let watches = Watches::new(config);
        let (polls, poll_requests) = mpsc::unbounded_channel();
        let dependencies = Dependencies {
            workers: watches.workers.subscribe(),
            poll_state: watches.polls.subscribe(),
            engine: watches.engine.subscribe(),
            services: watches.services.subscribe(),
            state: watches.failing_state.subscribe(),
            active: Some(watches.active.subscribe()),
        };
        let services = Arc::new(Services::new(polls, dependencies, Uptime::starting_now()));
        let (publisher, status_frames) = Publisher::new(services.clone(), clock.clone());
        let (push_poller, pushes) = RegistryEvents::new(services.clone(), registry.clone());
        Ok(Self {
            source: source.clone(),
            clock,
            manager: Arc::new(ServiceManager::new(&|name| std::env::var_os(name))),
            metrics,
            endpoint,
            engine_warning,
            engine,
            registry,
            make_registry,
            compose,
            gate_command,
            wardens: Arc::default(),
            watches,
            services,
            recording: Arc::default(),
            poll_requests,
            publisher,
            status_frames,
            push_poller,
            pushes,
        })
    }

    /// Returns the active configuration.
    fn config(&self) -> Arc<Config> {
        self.watches.active.borrow().config.clone()
    }

    fn routes(&self, limits: Limits, stop: &CancellationToken) -> BoxedFilter<(Response,)> {
        let config = self.config();
        let api = Api {
            services: self.services.clone(),
            images: self.engine.clone(),
            registry: self.registry.clone(),
            engine: self.watches.engine.subscribe(),
            active: self.watches.active.subscribe(),
            fleet: self.watches.fleet.subscribe(),
            audit_path: config.audit_path.clone(),
            recording: self.recording.clone(),
            status_frames: self.status_frames.clone(),
            stream_limiter: Limiter::for_streams(),
            audit_answers: Arc::new(AuditAnswers::default()),
            status_answers: Arc::new(StatusAnswers::default()),
            metrics: self.metrics.clone(),
            pushes: self.pushes.clone(),
            stop: stop.clone(),
            clock: self.clock.clone(),
        };
        routes(api, &config.api, limits)
    }

    fn world(&self, store: Arc<dyn Store>, audit: Audit, boot: Boot) -> World {
        let metrics = self.metrics.clone();
        World {
            engine: self.engine.clone(),
            registry: self.registry.clone(),
            signatures: self.registry.clone(),
            tags: self.registry.clone(),
            swarm: self.engine.clone(),
            compose: self.compose.clone(),
            env_files: Arc::new(LocalEnvFiles),
            offload: Offload::Threads,
            gate_command: self.gate_command.clone(),
            probes: Arc::new(ProbeClient::new(self.engine.clone())),
            data: Data {
                folders: Arc::new(FolderSnapshots::here()),
                volumes: self.engine.clone(),
                dumps: self.config().state_path.join("snapshots"),
                at_rest: AtRest::default(),
            },
            needed_images: NeededImages::default(),
            fleet: self.wardens.clone(),
            fleet_view: self.watches.fleet.subscribe(),
            changed: self.watches.services.clone(),
            store,
            record: record(&audit),
            commit: Arc::new(move |changes, entries| {
                let audit = audit.clone();
                async move { audit.commit(changes, entries).await }.boxed()
            }),
            clock: self.clock.clone(),
            deployed: Arc::new(move |outcome, took, outage| metrics.deployed(outcome, took, outage)),
            boot,
        }
    }

    fn service_deps(&self, deliveries: Deliveries) -> ServiceDeps {
        let (registry, make, compose) =
            (self.registry.clone(), self.make_registry.clone(), self.compose.clone());
        let replace_registry: ReplaceRegistry = Box::new(move |config| {
            registry.replace(Arc::new(make(config)?));
            Ok(())
        });
        ServiceDeps {
            source: self.source.clone(),
            replace_registry,
            withhold: Box::new(move |names| compose.withhold(names)),
            manager: self.manager.clone(),
            deliveries,
            workers: self.watches.workers.clone(),
            listeners: self.watches.listeners.clone(),
            active: self.watches.active.clone(),
        }
    }
}

/// Returns a function that builds the registry client for a configuration.
fn registry_maker(
    metrics: Arc<Metrics>,
    credentials: Arc<Credentials>,
    insecure: AskInsecure,
    listeners: &[TcpListener],
) -> MakeRegistry {
    let meter = Meter::new(move |outcome, took| metrics.requested(outcome, took));
    let port = |listener: &TcpListener| Some(listener.local_addr().ok()?.port());
    let own_ports: Vec<u16> = listeners.iter().filter_map(port).collect();
    Arc::new(move |config| {
        let client = RegistryClient::new(config, credentials.clone())?;
        let client = client.with_meter(meter.clone()).with_own_ports(own_ports.clone());
        Ok(client.with_engine(insecure.clone()))
    })
}

/// Asks the engine which registries it uses without TLS.
fn insecure_of(engine: &Arc<DockerEngine>) -> AskInsecure {
    let engine = engine.clone();
    Arc::new(move || {
        let engine = engine.clone();
        Box::pin(async move {
            let about = engine.about().await.ok()?;
            Some(clients::insecure(&about))
        })
    })
}

/// What is available once the state has been loaded.
struct Loaded {
    store: Arc<dyn Store>,
    record: Record,
    reloader: Reloader,
}

/// Loads the state and starts the services.
async fn load(parts: &Parts, supervisor: &mut Supervisor) -> anyhow::Result<Loaded> {
    let started = parts.clock.now();
    let mut warnings = Vec::new();
    if let Some(fault) = &parts.engine_warning {
        tracing::warn!("container engine: {fault}");
        warnings.push(format!("container engine at start-up: {fault}"));
    }
    let store = open_store(parts, &mut warnings).await?;
    let config = parts.config();
    if config.services.iter().any(|service| service.project().is_some())
        && let Some(fault) = parts.compose.problem().await
    {
        tracing::warn!("{fault}");
        warnings.push(format!("compose at start-up: {fault}"));
    }
    let (audit, deliveries, continued) = open_audit(parts, store.clone(), &mut warnings, supervisor).await;
    // With a new outbox, it is unknown which entries were recorded before.
    let recorded = continued.then(|| audit.journal().recent(queue::HISTORY));
    let record = record(&audit);
    record(started_entry(&config, started));
    let services = parts.watches.listeners.subscribe();
    let shutdown = record_shutdown(record.clone(), parts.clock.clone(), services, supervisor.token());
    supervisor.spawn("shutdown", shutdown);
    supervisor.spawn("compose turns", close_at_stop(parts.compose.clone(), supervisor.token()));

    let known = fleet::load(store.as_ref(), &config, parts.clock.now()).await;
    parts.watches.fleet.send_replace(Arc::new(known));
    let boot = boot(store.as_ref()).await;
    store_boot(&boot, store.as_ref()).await;
    let world = parts.world(store.clone(), audit, boot.clone());
    let mut reloader = Reloader::new(parts.service_deps(deliveries), Arc::new(world), supervisor.token());
    reloader.load(recorded, warnings).await;
    Ok(Loaded { store, record, reloader })
}

/// The entry about the start. It is a warning if a fault in the file leaves something out: nobody may be reading the log.
fn started_entry(config: &Config, at: Timestamp) -> AuditEntry {
    let faults = reload::faults(config);
    let level = if faults.is_empty() { Level::Info } else { Level::Warning };
    let message = format!("watching {}", text::count(config.services.len(), "service"));
    let mut entry = AuditEntry::new(at, PROGRAM, Kind::STARTED, level, message);
    entry.reason = Some(faults.join("; ")).filter(|text| !text.is_empty());
    entry
}

/// Opens the state on disk, or in memory if it can't be kept on disk. While a state can't be read, it waits: without it,
/// blocked images would be deployed again.
async fn open_store(parts: &Parts, warnings: &mut Vec<String>) -> anyhow::Result<Arc<dyn Store>> {
    let failing = &parts.watches.failing_state;
    let opened = loop {
        let path = parts.config().state_path.clone();
        match tokio::task::spawn_blocking(move || store::open(&path))
            .await
            .context("cannot open the state")?
        {
            Err(Unopened::Unreadable(error)) => {
                if failing.borrow().as_ref().is_none_or(|last| last.error != error) {
                    tracing::error!("{error}; nothing is watched or deployed until it can be read");
                }
                parts.manager.status(&format!("waiting for its state: {error}"));
                failing.send_replace(Some(Failing { error, at: Instant::now() }));
                sleep(REOPEN_EVERY).await;
            }
            other => break other?,
        }
    };
    failing.send_replace(None);
    // Only now is it certain that no other agent has this state. Nothing waits for it.
    let commands = parts.gate_command.clone();
    drop(tokio::task::spawn_blocking(move || commands.kill_stragglers()));
    let compose = parts.compose.clone();
    let _ = tokio::task::spawn_blocking(move || compose.remove_leftovers()).await;
    warnings.extend(opened.warning.map(|warning| format!("state.path: {warning}")));
    Ok(Arc::new(MonitoredStore::new(opened.store, failing.clone(), parts.watches.writes.clone())))
}

/// Opens the audit with all its destinations. The flag reports whether it continues an existing outbox.
async fn open_audit(
    parts: &Parts,
    store: Arc<dyn Store>,
    warnings: &mut Vec<String>,
    supervisor: &mut Supervisor,
) -> (Audit, Deliveries, bool) {
    let config = parts.config();
    let channels = Settings::of(&config);
    let mut names: Vec<String> = channels.iter().map(Settings::name).collect();
    names.extend(config.audit_path.is_some().then(|| FileSink::NAME.to_owned()));
    // A channel that is off because a variable is not set keeps its queue: the variable may be set later.
    names.extend(audit::names_of_off(&config.faulty_channels));
    let queue::Opened { outbox, continued } = open_outbox(store, &parts.clock, &names, warnings).await;
    supervisor.spawn_delivery("outbox", outbox.clone().run(supervisor.delivery_token()));
    let unwritten = outbox.clone();
    let mut queues: Vec<(String, Depth)> =
        vec![("outbox".to_owned(), Arc::new(move || unwritten.unwritten()))];
    if let (Some(path), Some(destination)) = (&config.audit_path, outbox.destination(FileSink::NAME)) {
        let waiting = outbox.clone();
        let depth = move || usize::try_from(waiting.waiting(FileSink::NAME)).unwrap_or(usize::MAX);
        queues.push((FileSink::NAME.to_owned(), Arc::new(depth)));
        let sink = FileSink::new(path.clone(), destination, parts.clock.clone());
        supervisor.spawn_delivery("audit file", sink.run(supervisor.delivery_token()));
    }
    let deliveries = Deliveries::new(outbox.clone(), parts.clock.clone(), supervisor.delivery_token());
    let (off, machine) = (&config.faulty_channels, trial::machine_name(&config));
    let faults = deliveries.reconfigure(channels, off, &machine).await.faults;
    if !faults.is_empty() {
        parts.watches.active.send_modify(|active| Arc::make_mut(&mut active.config).warnings.extend(faults));
    }
    supervisor.spawn_delivery("deliveries", deliveries.clone().run());
    let audit = Audit::new(outbox);
    let recording = Recording { audit: audit.clone(), queues, deliveries: deliveries.clone() };
    assert!(parts.recording.set(recording).is_ok(), "the audit is opened once");
    (audit, deliveries, continued)
}

/// Opens the outbox, or a new one in memory if it can't be read.
async fn open_outbox(
    store: Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    names: &[String],
    warnings: &mut Vec<String>,
) -> queue::Opened {
    match Outbox::open(store.clone(), clock.clone(), PROGRAM, names).await {
        Ok(opened) => opened,
        Err(error) => {
            warnings.push(format!("state.path: undelivered entries are kept in memory only: {error}"));
            let memory = Arc::new(MemoryStore::new());
            let opened = Outbox::open(memory, clock.clone(), PROGRAM, names).await;
            let opened = opened.expect("memory can always be read and written");
            queue::Opened { outbox: opened.outbox.with_state_in(store), ..opened }
        }
    }
}

fn record(audit: &Audit) -> Record {
    let audit = audit.clone();
    Arc::new(move |entry| audit.record(entry))
}

/// Records that the agent is stopping. It is a warning if a deployment is in progress: whoever stops the agent for good has to
/// know what it leaves, and may stop it just because a service is down for an update.
async fn record_shutdown(
    record: Record,
    clock: Arc<dyn Clock>,
    services: watch::Receiver<Workers>,
    stop: CancellationToken,
) {
    stop.cancelled().await;
    let now = clock.now();
    let context = StatusContext { now, next_poll: None, engine_error: None, state_error: None };
    let services = services.borrow().clone();
    let deploying = services.iter().filter_map(|handle| {
        let progress = handle.published.get().record(&context).deploy?;
        Some(format!("{} ({})", handle.config.name, wording::phase(&progress)))
    });
    let deploying: Vec<String> = deploying.collect();
    let entry = |level, message: String| AuditEntry::new(now, PROGRAM, Kind::SHUTDOWN, level, message);
    record(if deploying.is_empty() {
        entry(Level::Info, "stopping".to_owned())
    } else {
        let message = format!("stopping while a deployment is in progress: {}", deploying.join(", "));
        AuditEntry { reason: Some(LEFT_AT_STOP.to_owned()), ..entry(Level::Warning, message) }
    });
}

/// Lets those that wait for compose end once the agent is stopping: their steps stay in the journal.
async fn close_at_stop(compose: Arc<ComposeCli>, stop: CancellationToken) {
    stop.cancelled().await;
    compose.close();
}

/// Starts all tasks and reports readiness to the service manager.
fn spawn(parts: Parts, loaded: Loaded, hangups: Signal, supervisor: &mut Supervisor) {
    let Loaded { store, record, reloader, .. } = loaded;
    fleet_tasks::spawn(&parts, &store, &record, supervisor);
    let Parts { clock, manager, metrics, engine, registry, services, watches, .. } = parts;
    let check_now = Arc::new(Notify::new());
    let active = watches.active.subscribe();
    let health = EngineProbe {
        engine: engine.clone(),
        active: active.clone(),
        clock: clock.clone(),
        record: record.clone(),
        state: watches.engine.clone(),
        check_now: check_now.clone(),
    };
    let state_health =
        StateHealth { store, failing: watches.failing_state, clock: clock.clone(), record: record.clone() };
    let poller = Poller {
        services: services.clone(),
        registry,
        active: active.clone(),
        clock: clock.clone(),
        record,
        cycled: Arc::new(move |took| metrics.cycled(took)),
        state: watches.polls,
        requests: parts.poll_requests,
    };
    let monitor = Monitor { services: services.clone(), engine: engine.clone(), active };
    let events = Events {
        engine,
        listeners: watches.listeners.subscribe(),
        health: watches.engine.subscribe(),
        check_now,
        clock,
        last_nano: 0,
        ended_at: None,
        ran_since: None,
    };
    let interval = systemd::watchdog(&|name| std::env::var_os(name));
    let writes = watches.writes;
    let probe = move || {
        let (services, writes) = (services.clone(), writes.clone());
        async move { state_health::responds(services.round_trip(), &writes).await }
    };
    let watchdog = systemd::watchdog_loop(manager.clone(), interval, probe, supervisor.token());

    let summary = reloader.summary();
    supervisor.spawn("services", reloader.run(hangups));
    supervisor.spawn("monitor", monitor.run(supervisor.token()));
    supervisor.spawn("daemon health", health.run(supervisor.token()));
    supervisor.spawn("state health", state_health.run(supervisor.token()));
    supervisor.spawn("events", events.run(supervisor.token()));
    supervisor.spawn("poller", poller.run(supervisor.token()));
    supervisor.spawn("push poller", parts.push_poller.run(supervisor.token()));
    supervisor.spawn("status publisher", parts.publisher.run(supervisor.token()));
    supervisor.spawn("service manager", watchdog);
    let config = watches.active.borrow().config.clone();
    let (api, base_path) = (&config.api.addresses, &config.api.base_path);
    tracing::info!(config = %parts.source.path().display(), ?api, %base_path, engine = %parts.endpoint, "ready");
    manager.ready(&summary);
}

/// Store key of the boot ID of the agent's last run.
const BOOT: &str = "boot";

/// Reads the current boot ID and the one of the agent's last run.
async fn boot(store: &dyn Store) -> Boot {
    let now = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let before = store.get(BOOT).await.ok().flatten().and_then(|row| String::from_utf8(row).ok());
    Boot { now: now.trim().into(), before: before.unwrap_or_default().into(), ..Boot::default() }
}

/// Stores the current boot ID. This happens at start-up because the agent may be killed later.
async fn store_boot(boot: &Boot, store: &dyn Store) {
    if boot.before != boot.now {
        // A failed write is reported by the state health task.
        let _ = store.put(BOOT, boot.now.as_bytes().to_vec()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use evenkeel_common::clock::TokioClock;
    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::*;
    use crate::project::handle::Handle;
    use crate::project::{inbox, published};
    use crate::service::Service;
    use crate::service::tests::{config, copying, idle};
    use crate::service::view::status::Published;

    /// Stops an agent with this service, and returns what is recorded of that.
    async fn recorded_at_stop(service: Service) -> AuditEntry {
        let published = Published::new(Arc::new(service));
        let (_shown, published) = published::channel(published, Changed::default());
        let (inbox, _commands) = inbox::channel();
        let handle = Handle { config: Arc::new(config()), inbox, published };
        let services = watch::Sender::new(Workers::from([handle]));
        let entries = Arc::new(Mutex::new(Vec::new()));
        let log = entries.clone();
        let record: Record = Arc::new(move |entry| log.lock().push(entry));
        let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        let stop = CancellationToken::new();
        stop.cancel();
        record_shutdown(record, clock, services.subscribe(), stop).await;
        let mut entries = entries.lock();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }

    #[tokio::test]
    async fn a_stop_in_the_middle_of_a_deployment_is_a_warning_that_names_the_service_and_the_phase() {
        let entry = recorded_at_stop(copying()).await;
        assert_eq!((entry.event, entry.level), (Kind::SHUTDOWN, Level::Warning));
        assert_eq!(entry.message, "stopping while a deployment is in progress: web (copying the data)");
        assert!(entry.reason.unwrap_or_default().contains("when the agent runs again"));

        let entry = recorded_at_stop(idle()).await;
        assert_eq!((entry.level, entry.message.as_str()), (Level::Info, "stopping"));
        assert_eq!(entry.reason, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_waits_counts_as_done_after_a_while_and_keeps_the_watchdog_quiet() {
        let name = format!("evenkeel-outlast-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let manager = ServiceManager::new(&|_| Some(format!("@{name}").into()));
        let mut buffer = [0; 100];
        for (seconds, expected) in [(19, 0), (45, 2)] {
            timeout(Duration::from_secs(seconds), outlast(&manager)).await.unwrap_err();
            for _ in 0..expected {
                let length = listener.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], b"READY=1\nWATCHDOG=1\n");
            }
            assert!(listener.recv(&mut buffer).is_err(), "within {seconds} s");
        }
    }

    #[test]
    fn a_taken_default_port_names_prometheus() {
        let error = |address: &str, kind: io::ErrorKind| {
            name_the_usual_holder(BindError::Listen { address: address.to_owned(), cause: kind.into() })
                .to_string()
        };
        let taken = io::ErrorKind::AddrInUse;
        assert!(error("127.0.0.1:9090", taken).contains("Prometheus"));
        assert!(!error("127.0.0.1:9091", taken).contains("Prometheus"));
        assert!(!error("127.0.0.1:9090", io::ErrorKind::PermissionDenied).contains("Prometheus"));
    }
}
