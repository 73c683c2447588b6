//! Starts the workers, and on SIGHUP brings them in line with the file as it is then (DECISIONS 2).
//!
//! A service whose configuration is the same is not touched. One that changed ends as at a shutdown: a step under way
//! gets its time, what is left of a deployment stays in the journal. It begins again from there, under its new
//! configuration, but in the project that the journal names. One that went away ends its deployment first; a service
//! that takes its place in the project has to wait that long.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::systemd::ServiceManager;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use tokio::signal::unix::Signal;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;
use crate::adapters::registry::{CurrentRegistry, RegistryClient};
use crate::audit::{Deliveries, Settings, trial};
use crate::config::active::ActiveConfig;
use crate::config::{Config, ConfigSource, ConfiguredImage, RegistryConfig, ServiceConfig};
use crate::model::text;
use crate::ports::{Registry, Urgency};
use crate::project::cycle::Cycle;
use crate::project::services::Workers;
use crate::project::worker::{BlockedElsewhere, Command, Handle, Worker, World, state_key};
use crate::service::Durable;
use crate::service::boot::StartReason;
use crate::service::rollout::plan::Deployment;

/// Longest time that the workers get to end; each has a shorter one of its own.
const STOP_GRACE: Duration = Duration::from_secs(25);

/// Makes a client for a registry.
pub type MakeRegistry = Box<dyn Fn(&RegistryConfig) -> anyhow::Result<RegistryClient> + Send + Sync>;

/// Keeps variables that a configuration names as secrets from child processes.
pub type Withhold = Box<dyn Fn(&BTreeSet<String>) + Send + Sync>;

/// Takes the entries that a service said last.
pub type Recall<'a> = &'a (dyn Fn(&[AuditEntry]) + Send + Sync);

/// The task that has the workers.
pub struct Reloader {
    world: World,
    source: ConfigSource,
    registry: Arc<CurrentRegistry>,
    make_registry: MakeRegistry,
    withhold: Withhold,
    manager: Arc<ServiceManager>,
    deliveries: Deliveries,
    workers: watch::Sender<Workers>,
    active: watch::Sender<ActiveConfig>,
    /// Warnings of the start that stay true.
    notices: Vec<String>,
    tasks: TaskSet,
    running: HashMap<String, Running>,
    stop: CancellationToken,
}

/// A worker's task.
struct Running {
    stop: CancellationToken,
    /// Its other end is dropped with the task.
    ended: oneshot::Receiver<()>,
}

/// What the workers and their configuration come from.
pub struct ServiceDeps {
    /// Where the configuration is read again.
    pub source: ConfigSource,
    /// What the workers ask; exchanged when `registry.url` changes.
    pub registry: Arc<CurrentRegistry>,
    /// How to make another.
    pub make_registry: MakeRegistry,
    /// What is told the secrets of a new configuration before anything of it runs.
    pub withhold: Withhold,
    /// Who is told about it.
    pub manager: Arc<ServiceManager>,
    /// The ways out, which the file names too.
    pub deliveries: Deliveries,
}

impl Reloader {
    /// Starts a worker for each service. `recall` gets what each said last, to say again what a crash kept from
    /// being written. `notices`: warnings of the start.
    pub async fn start(
        config: Config,
        origin: ServiceDeps,
        world: World,
        recall: Recall<'_>,
        notices: Vec<String>,
        stop: CancellationToken,
    ) -> Self {
        let active = ActiveConfig { config: Arc::new(config), warnings: Arc::default() };
        let services = active.config.services.clone();
        let mut this = Self {
            world,
            source: origin.source,
            registry: origin.registry,
            make_registry: origin.make_registry,
            withhold: origin.withhold,
            manager: origin.manager,
            deliveries: origin.deliveries,
            workers: watch::Sender::new(Workers::from([])),
            active: watch::Sender::new(active),
            notices: Vec::new(),
            tasks: TaskSet::new(),
            running: HashMap::new(),
            stop,
        };
        for notice in notices {
            this.notice(notice);
        }
        this.end_orphans(&services, recall).await;
        let mut handles = Vec::with_capacity(services.len());
        for service in services {
            handles.push(this.begin(service, Some(recall)).await);
        }
        this.workers.send_replace(handles.into());
        let warnings = [&this.notices[..], &this.active.borrow().config.warnings[..]].concat();
        this.active.send_modify(|active| active.warnings = Arc::new(warnings));
        this
    }

    /// The workers.
    pub fn workers(&self) -> watch::Receiver<Workers> {
        self.workers.subscribe()
    }

    /// The configuration in force.
    pub fn active(&self) -> watch::Receiver<ActiveConfig> {
        self.active.subscribe()
    }

    /// Reads the file again at each of `hangups` until the program stops, then waits for the workers. Ends unasked
    /// when a worker has panicked.
    pub async fn run(mut self, mut hangups: Signal) {
        let (stop, tasks) = (self.stop.clone(), self.tasks.clone());
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tasks.panicked() => return,
                Some(()) = hangups.recv() => self.reload().await,
            }
        }
        tasks.finish(STOP_GRACE).await;
    }

    async fn reload(&mut self) {
        self.manager.reloading();
        let source = self.source.clone();
        let loaded = tokio::task::spawn_blocking(move || source.load::<Config>()).await;
        let taken = match loaded {
            Ok(Ok(config)) => self.take_over(config).await,
            Ok(Err(faults)) => Err(faults.in_one_line()),
            Err(_) => Err("reading the file failed".to_owned()),
        };
        let mut words = self.summary();
        if let Err(reason) = taken {
            self.refuse(&reason);
            words.push_str("; the file has faults and is not in force");
        }
        self.manager.ready(&words);
    }

    /// What the program does, for the service manager.
    pub fn summary(&self) -> String {
        format!("watching {}", text::count(self.workers.borrow().len(), "service"))
    }

    fn refuse(&self, reason: &str) {
        let message = "the configuration was read again and refused; the one in force stays";
        let mut entry = self.entry(Kind::CONFIG_REJECTED, Level::Error, message.to_owned());
        entry.reason = Some(reason.to_owned());
        self.say(entry);
        let mut warnings = self.active.borrow().config.warnings.clone();
        warnings.push(format!("the file has faults and is not in force: {reason}"));
        self.warn(warnings);
    }

    /// Puts a valid file into force.
    async fn take_over(&mut self, mut config: Config) -> Result<(), String> {
        (self.withhold)(&config.named_variables);
        let old = self.active.borrow().config.clone();
        if !same_registry(&old.registry, &config.registry) {
            match (self.make_registry)(&config.registry) {
                Ok(client) => self.registry.replace(Arc::new(client)),
                Err(error) => return Err(format!("registry: {error:#}")),
            }
        }
        let fixed = keep_fixed(&old, &mut config);
        let mut notes = Vec::new();
        let channels =
            self.deliveries.reconfigure(Settings::of(&config), &trial::machine_name(&config)).await;
        config.warnings.extend(channels.faults);
        for (name, waited) in channels.removed.iter().filter(|(_, waited)| *waited > 0) {
            notes.push(format!("entries that waited for {name} and are dropped: {waited}"));
        }

        let before = self.workers.borrow().clone();
        let stays = |handle: &Handle| config.services.iter().any(|service| *service == *handle.config);
        let wanted = |name: &str| config.services.iter().any(|service| service.name == name);
        let leaving: Vec<String> =
            before.iter().filter(|h| !stays(h)).map(|handle| handle.config.name.clone()).collect();
        let (changed, removed): (Vec<String>, Vec<String>) =
            leaving.into_iter().partition(|name| wanted(name));
        self.workers.send_replace(before.iter().filter(|h| wanted(&h.config.name)).cloned().collect());
        let mut ending = changed.clone();
        for name in &removed {
            if retire(&before, name).await {
                notes.push(format!("{name} is in the middle of a deployment, and goes when that is over"));
            } else {
                ending.push(name.clone());
            }
        }
        self.end(ending.iter()).await;
        if self.stop.is_cancelled() {
            return Ok(());
        }

        let mut added = Vec::new();
        let mut fresh = Vec::new();
        let mut handles = Vec::with_capacity(config.services.len());
        for service in &config.services {
            let same = before.iter().find(|handle| *handle.config == *service).cloned();
            if let Some(handle) = same {
                handles.push(handle);
                continue;
            }
            if !changed.contains(&service.name) {
                added.push(service.name.clone());
            }
            // One that was removed before may still have a deployment to end.
            self.end(std::iter::once(&service.name)).await;
            let handle = self.begin(service.clone(), None).await;
            fresh.push(handle.clone());
            handles.push(handle);
        }
        self.workers.send_replace(handles.into());

        let untouched = config.services.len() - fresh.len();
        let warnings = config.warnings.clone();
        self.active.send_modify(|active| active.config = Arc::new(config));
        let restart =
            fixed.iter().map(|key| format!("{key}: has changed in the file, which needs a restart"));
        self.warn(warnings.into_iter().chain(restart).collect());

        let message = format!(
            "the configuration was read again: {} services added, {} changed, {} removed, {untouched} untouched",
            added.len(),
            changed.len(),
            removed.len()
        );
        let level = if fixed.is_empty() && notes.is_empty() { Level::Info } else { Level::Warning };
        let mut entry = self.entry(Kind::CONFIG_RELOADED, level, message);
        let fixed: Vec<String> = fixed.into_iter().map(str::to_owned).collect();
        let channels_removed: Vec<String> = channels.removed.into_iter().map(|(name, _)| name).collect();
        let lists = [
            ("added", &added),
            ("changed", &changed),
            ("removed", &removed),
            ("channels added", &channels.added),
            ("channels changed", &channels.changed),
            ("channels removed", &channels_removed),
            ("needs a restart", &fixed),
        ];
        let told = lists.iter().filter(|(_, names)| !names.is_empty());
        notes.splice(..0, told.map(|(what, names)| format!("{what}: {}", names.join(", "))));
        entry.reason = Some(notes.join("; ")).filter(|text| !text.is_empty());
        self.say(entry);
        self.check(&fresh);
        Ok(())
    }

    /// Asks these to check now: the next cycle may be hours away.
    fn check(&self, workers: &[Handle]) {
        let registry: Arc<dyn Registry> = self.registry.clone();
        let cycle = Cycle::new(registry, Urgency::Routine);
        for worker in workers {
            let (done, _) = oneshot::channel();
            let _ = worker.inbox.send(Command::Check(cycle.clone(), done));
        }
    }

    /// Ends workers and waits for them.
    async fn end(&mut self, names: impl Iterator<Item = &String>) {
        let ending: Vec<Running> = names.filter_map(|name| self.running.remove(name)).collect();
        for worker in &ending {
            worker.stop.cancel();
        }
        for worker in ending {
            // Nothing is ever sent: it ends with the task.
            let _ = worker.ended.await;
        }
    }

    /// Lets the deployments end that services have left which are configured no more. They come before the others,
    /// so that they have their projects first.
    async fn end_orphans(&mut self, services: &[ServiceConfig], recall: Recall<'_>) {
        let rows = match self.world.store.scan(&state_key("")).await {
            Ok(rows) => rows,
            Err(error) => {
                self.notices.push(format!("the state of former services can't be read: {error}"));
                return;
            }
        };
        for (key, row) in rows {
            let Some(name) = key.strip_prefix(&state_key("")) else { continue };
            let known = services.iter().any(|service| service.name == name);
            let durable = serde_json::from_slice::<Durable>(&row).unwrap_or_default();
            if let Some(deployment) = durable.deployment.filter(|_| !known)
                && let Some(service) = former(name, &deployment)
            {
                let handle = self.begin(service, Some(recall)).await;
                let (reply, _) = oneshot::channel();
                let _ = handle.inbox.send(Command::Retire(reply));
            }
        }
    }

    /// Starts a worker as it was left.
    async fn begin(&mut self, service: ServiceConfig, recall: Option<Recall<'_>>) -> Handle {
        let name = service.name.clone();
        let durable = self.restore(&name).await;
        if let Some(recall) = recall {
            recall(&durable.said);
        }
        let everyone = self.workers.subscribe();
        let elsewhere: BlockedElsewhere =
            Arc::new(move |project, name| blocked_elsewhere(&everyone.borrow().clone(), project, name));
        let reason_to_start = if recall.is_some() { StartReason::Start } else { StartReason::Reload };
        let (mut worker, handle) =
            Worker::new(Arc::new(service), durable, self.world.clone(), elsewhere, reason_to_start);
        let stop = self.stop.child_token();
        let (end, ended) = oneshot::channel::<()>();
        let stopped = stop.clone();
        self.tasks.spawn(format!("service {name}"), async move {
            worker.run(stopped).await;
            // Its lease has ended, too, when its end is told.
            drop(worker);
            drop(end);
        });
        self.running.insert(name, Running { stop, ended });
        handle
    }

    /// A service's state as it was left. A row that can't be read is kept under another key and said loudly.
    async fn restore(&mut self, name: &str) -> Durable {
        let store = self.world.store.clone();
        let row = match store.get(&state_key(name)).await {
            Ok(row) => row,
            Err(error) => {
                self.notice(format!("{name}: its state can't be read, it starts afresh: {error}"));
                return Durable::default();
            }
        };
        let Some(row) = row else { return Durable::default() };
        match serde_json::from_slice(&row) {
            Ok(durable) => durable,
            Err(error) => {
                self.notice(format!(
                    "{name}: its state is damaged, it starts afresh; the old one is kept aside: {error}"
                ));
                if let Err(error) = store.put(&format!("damaged/{name}"), row).await {
                    tracing::error!(%error, "the damaged state could not be kept");
                }
                Durable::default()
            }
        }
    }

    /// Says that something of the state is lost, and shows it until the program ends.
    fn notice(&mut self, notice: String) {
        self.say(self.entry(Kind::ERROR, Level::Error, notice.clone()));
        self.notices.push(notice);
    }

    /// Shows these warnings, after those of the start.
    fn warn(&self, warnings: Vec<String>) {
        for warning in &warnings {
            tracing::warn!("configuration: {warning}");
        }
        let all = [self.notices.clone(), warnings].concat();
        self.active.send_modify(|active| active.warnings = Arc::new(all));
    }

    fn entry(&self, kind: Kind, level: Level, message: String) -> AuditEntry {
        AuditEntry::new(self.world.clock.now(), PROGRAM, kind, level, message)
    }

    fn say(&self, entry: AuditEntry) {
        (self.world.record)(entry);
    }
}

/// Tells a worker that its service is configured no more. Whether it has a deployment to end first.
async fn retire(workers: &[Handle], name: &str) -> bool {
    let Some(worker) = workers.iter().find(|worker| worker.config.name == name) else { return false };
    let (reply, answer) = oneshot::channel();
    let _ = worker.inbox.send(Command::Retire(reply));
    answer.await.unwrap_or(false)
}

/// What is known of a service that is configured no more: what its deployment needs.
fn former(name: &str, deployment: &Deployment) -> Option<ServiceConfig> {
    let project = deployment.project.clone()?;
    let images = deployment.image_changes.iter();
    let images =
        images.map(|m| ConfiguredImage { configured: m.configured.clone(), reference: m.reference.clone() });
    Some(ServiceConfig {
        name: name.to_owned(),
        images: images.collect(),
        silent: false,
        compose_files: project.files,
        compose_project: Some(project.name),
        container_name: None,
        env_file: project.env_file,
        auto_update: false,
        auto_start: false,
        auto_heal: false,
        compose_watch: false,
        cpu_threshold: 0.0,
        memory_threshold: 0.0,
        health_grace: deployment.grace,
        heal_cooldown: Duration::ZERO,
        heal_max_restarts: 0,
    })
}

/// Whether the client of one serves the other: only the time between two cycles may differ.
fn same_registry(a: &RegistryConfig, b: &RegistryConfig) -> bool {
    *a == RegistryConfig { poll_interval: a.poll_interval, ..b.clone() }
}

/// Takes over from `old` what can't change while the program runs, and names the keys where that makes a difference.
fn keep_fixed(old: &Config, new: &mut Config) -> Vec<&'static str> {
    fn keep<T: PartialEq + Clone>(key: &'static str, old: &T, new: &mut T) -> Option<&'static str> {
        let differs = old != new;
        new.clone_from(old);
        differs.then_some(key)
    }
    let kept = [
        keep("runtime", &old.runtime, &mut new.runtime),
        keep("api.address", &old.api.addresses, &mut new.api.addresses),
        keep("api.allowed_hosts", &old.api.allowed_hosts, &mut new.api.allowed_hosts),
        keep("audit.path", &old.audit_path, &mut new.audit_path),
        keep("state.path", &old.state_path, &mut new.state_path),
    ];
    kept.into_iter().flatten().collect()
}

/// What is blocked in a project by services other than `name`, as they show it now.
fn blocked_elsewhere(
    everyone: &[Handle],
    project: &str,
    name: &str,
) -> Vec<(crate::model::image::Reference, crate::model::image::Digest)> {
    let others = everyone.iter().filter(|handle| {
        handle.config.compose_project.as_deref() == Some(project) && handle.config.name != name
    });
    others.flat_map(|handle| handle.snapshot.borrow().blocked_references.clone()).collect()
}
