//! The composition root: everything is made here and handed to those who need it; one line per task.
//!
//! Shutdown goes the way of the data: first the tasks that produce (workers, poller, events, API), then the sinks.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::http::{self, Limits};
use evenkeel_common::queue::{self, Outbox};
use evenkeel_common::store::{self, MemoryStore, Store};
use evenkeel_common::supervisor::{self, Supervisor};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::PROGRAM;
use crate::audit::recall::{Lack, Tail, missing};
use crate::audit::{Audit, Channel, FileSink, Inbox, delivery, read_latest, sinks};
use crate::config::{Config, ConfigSource};
use crate::fleet::Fleet;
use crate::http::{Api, routes};
use crate::ports::compose::ComposeCli;
use crate::ports::engine::{DockerEngine, Endpoint, Surroundings};
use crate::ports::registry::{Credentials, RegistryClient, RegistrySettings};
use crate::ports::{Engine, Registry};
use crate::service::Durable;
use crate::tasks::daemon_health::{DaemonHealth, EngineHealth};
use crate::tasks::events::Events;
use crate::tasks::poller::{PollState, Poller};
use crate::tasks::worker::{Handle, Projects, Record, Worker, World, state_key};

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
    let listeners = http::bind(&config.api.addresses)?;

    let opened = store::open(&config.state_path)?;
    let mut warnings = config.warnings.clone();
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
    let registry: Arc<dyn Registry> =
        Arc::new(RegistryClient::new(RegistrySettings::from(&config.registry), credentials)?);
    let compose = Arc::new(ComposeCli::new(config.runtime, &endpoint, std::env::vars_os()));

    let mut supervisor = Supervisor::new();
    let mut inboxes: Vec<Arc<dyn Inbox>> = Vec::new();
    let mut file_inbox: Option<Arc<dyn Inbox>> = None;
    if let Some(path) = &config.audit_path {
        let sink = FileSink::new(path.clone(), clock.clone());
        let inbox: Arc<dyn Inbox> = sink.inbox();
        inboxes.push(inbox.clone());
        file_inbox = Some(inbox);
        supervisor.spawn_delivery("audit file", sink.run(supervisor.delivery_token()));
    }
    let (channels, faults) = delivery::channels(&config);
    warnings.extend(faults);
    let opened_outbox = open_outbox(opened.store.clone(), &clock, &channels, &mut warnings).await;
    let outbox = opened_outbox.outbox;
    let machine = delivery::machine_name(&config);
    let (sinks, deliveries) = sinks(&channels, &outbox, &machine);
    supervisor.spawn_delivery("outbox", outbox.clone().run(supervisor.delivery_token()));
    for sink in sinks {
        supervisor.spawn_delivery(sink.name().to_owned(), sink.run(supervisor.delivery_token()));
    }
    inboxes.push(Arc::new(outbox.clone()));
    let history = opened_outbox.history;
    let first_id = outbox.next() - u64::try_from(history.len()).unwrap_or_default();
    let audit = Audit::new(first_id, inboxes);
    audit.remember(history.clone());
    let record: Record = {
        let audit = audit.clone();
        Arc::new(move |entry| audit.record(entry))
    };

    let message = format!("watching {} services", config.services.len());
    record(AuditEntry::new(started, PROGRAM, Kind::STARTED, Level::Info, message));

    let in_outbox = opened_outbox.continued.then(|| {
        let limit = usize::try_from(queue::HISTORY).unwrap_or(usize::MAX);
        Tail::new(history, limit)
    });
    let in_file = match &config.audit_path {
        Some(path) => {
            let written = read_latest(path.clone(), AUDIT_TAIL).await.unwrap_or_default();
            Some(Tail::new(written, AUDIT_TAIL))
        }
        None => None,
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
    let everyone: Arc<OnceLock<Vec<Handle>>> = Arc::default();
    let mut handles = Vec::with_capacity(config.services.len());
    for service in config.services {
        let service = Arc::new(service);
        let durable = restore(opened.store.as_ref(), &service.name, &mut warnings).await;
        for (entry, lack) in missing(&durable.said, in_outbox.as_ref(), in_file.as_ref()) {
            let has_it =
                |inbox: &Arc<dyn Inbox>| file_inbox.as_ref().is_some_and(|file| Arc::ptr_eq(file, inbox));
            match (lack, &file_inbox) {
                (Lack::Both, _) => audit.record(entry),
                (Lack::Outbox, _) => audit.record_unless(entry, has_it),
                (Lack::File, Some(file)) => file.put(0, &Arc::new(entry)),
                (Lack::File, None) => {}
            }
        }
        let neighbours = everyone.clone();
        let blocked_elsewhere =
            Arc::new(move |project: &str, name: &str| blocked_elsewhere(&neighbours, project, name));
        let (worker, handle) = Worker::new(service.clone(), durable, world.clone(), blocked_elsewhere);
        supervisor.spawn(format!("service {}", service.name), worker.run(supervisor.token()));
        handles.push(handle);
    }
    let _ = everyone.set(handles.clone());

    let (polls, asked) = mpsc::unbounded_channel();
    let poll_state = Arc::new(watch::Sender::new(PollState::default()));
    let engine_state = Arc::new(watch::Sender::new(EngineHealth::default()));
    let fleet = Arc::new(Fleet::new(handles, polls, poll_state.subscribe(), started));

    let health = DaemonHealth {
        engine: engine.clone(),
        interval: config.docker_health.check_interval,
        timeout: config.docker_health.timeout,
        clock: clock.clone(),
        record: record.clone(),
        state: engine_state.clone(),
    };
    let poller = Poller {
        fleet: fleet.clone(),
        registry,
        interval: config.registry.poll_interval,
        clock: clock.clone(),
        record: record.clone(),
        state: poll_state,
        asked,
    };
    let events = Events { engine, fleet: fleet.clone(), health: engine_state.subscribe() };
    let api = Api {
        fleet,
        engine: engine_state.subscribe(),
        config_warnings: Arc::new(warnings),
        audit_path: config.audit_path,
        deliveries,
        clock: clock.clone(),
    };
    let limits = Limits::default();
    let filter = routes(api, &config.api.allowed_hosts, limits);

    supervisor.spawn("daemon health", health.run(supervisor.token()));
    supervisor.spawn("events", events.run(supervisor.token()));
    supervisor.spawn("poller", poller.run(supervisor.token()));
    supervisor.spawn("api", http::serve(listeners, filter, limits, supervisor.token()));
    tracing::info!(config = %source.path().display(), api = ?config.api.addresses, engine = %endpoint, "ready");

    let stopping = supervisor.token();
    let (said, at) = (record.clone(), clock.clone());
    supervisor.spawn("farewell", async move {
        stopping.cancelled().await;
        said(AuditEntry::new(at.now(), PROGRAM, Kind::SHUTDOWN, Level::Info, "stopping"));
    });
    supervisor.run_until(signals, STOP_GRACE).await.context("stopped by a fault")
}

/// The outbox as it was left; a new one in memory where it can't be read.
async fn open_outbox(
    store: Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    channels: &[Arc<dyn Channel>],
    warnings: &mut Vec<String>,
) -> queue::Opened {
    let names: Vec<String> = channels.iter().map(|channel| channel.name().to_owned()).collect();
    match Outbox::open(store, clock.clone(), PROGRAM, &names).await {
        Ok(opened) => opened,
        Err(error) => {
            warnings.push(format!("state.path: entries wait for their delivery in memory only: {error}"));
            let opened = Outbox::open(Arc::new(MemoryStore::new()), clock.clone(), PROGRAM, &names).await;
            opened.expect("memory can always be read and written")
        }
    }
}

/// A service's state as it was left. A row that can't be read is kept under another key and said loudly.
async fn restore(store: &dyn Store, name: &str, warnings: &mut Vec<String>) -> Durable {
    let key = state_key(name);
    let row = match store.get(&key).await {
        Ok(row) => row,
        Err(error) => {
            warnings.push(format!("{name}: its state can't be read, it starts afresh: {error}"));
            return Durable::default();
        }
    };
    let Some(row) = row else { return Durable::default() };
    match serde_json::from_slice(&row) {
        Ok(durable) => durable,
        Err(error) => {
            let warning =
                format!("{name}: its state is damaged, it starts afresh; the old one is kept aside: {error}");
            tracing::error!("{warning}");
            warnings.push(warning);
            if let Err(error) = store.put(&format!("damaged/{name}"), row).await {
                tracing::error!(%error, "the damaged state could not be kept");
            }
            Durable::default()
        }
    }
}

/// What is blocked in a project by services other than `name`, as they show it now.
fn blocked_elsewhere(
    everyone: &OnceLock<Vec<Handle>>,
    project: &str,
    name: &str,
) -> Vec<(crate::image::Reference, crate::image::Digest)> {
    let others = everyone.get().map(Vec::as_slice).unwrap_or_default().iter().filter(|handle| {
        handle.config.compose_project.as_deref() == Some(project) && handle.config.name != name
    });
    others.flat_map(|handle| handle.snapshot.borrow().blocked_references.clone()).collect()
}
