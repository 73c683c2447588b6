//! Starts the workers, and on SIGHUP brings them in line with the file as it is then (DECISIONS 2).
//!
//! A service whose configuration is the same is not touched. One that changed goes on under its new configuration as
//! after a restart: a step under way gets its time, and what is left of a deployment is taken up again, in the project
//! that the journal names; then it moves to the project that it is configured for. One that went away ends its
//! deployment first; a service that takes its place in the project has to wait that long.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::systemd::ServiceManager;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use futures_util::future::join_all;
use tokio::signal::unix::Signal;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;
use crate::audit::{Deliveries, Reconfigured, Settings, trial, upgrade};
use crate::config::active::ActiveConfig;
use crate::config::{Config, ConfigSource, ConfiguredImage, RegistryConfig, ServiceConfig};
use crate::model::text;
use crate::ports::Urgency;
use crate::project::cycle::Cycle;
use crate::project::placement::Placement;
use crate::project::services::Workers;
use crate::project::worker::{Command, Handle, Member, World, state_key};
use crate::service::Durable;
use crate::service::boot::StartReason;
use crate::service::rollout::plan::{ImageChange, Plan};
use crate::service::swarm::plan::SwarmPlan;

/// Longest time that the workers get to end; each has a shorter one of its own.
const STOP_GRACE: Duration = Duration::from_secs(25);

/// Asks the registry that a configuration describes from now on.
pub type ReplaceRegistry = Box<dyn Fn(&RegistryConfig) -> anyhow::Result<()> + Send + Sync>;

/// Keeps variables that a configuration names as secrets from child processes.
pub type Withhold = Box<dyn Fn(&BTreeSet<String>) + Send + Sync>;

/// The task that has the workers.
pub struct Reloader {
    deps: ServiceDeps,
    world: Arc<World>,
    /// Warnings of the start that stay true.
    notices: Vec<String>,
    /// What the last file that was taken over changes with the next start only.
    restart_notices: Vec<String>,
    tasks: TaskSet,
    placement: Placement,
    /// The doors to all services, those that are configured no more too.
    doors: HashMap<String, Handle>,
    stop: CancellationToken,
}

/// What a reload did with the services.
#[derive(Default)]
struct Exchanged {
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
    untouched: usize,
    /// Those that are new or have changed.
    fresh: Vec<Handle>,
    notes: Vec<String>,
}

/// What the workers and their configuration come from.
pub struct ServiceDeps {
    /// Where the configuration is read again.
    pub source: ConfigSource,
    /// What is called when `registry.url` changes.
    pub replace_registry: ReplaceRegistry,
    /// What is told the secrets of a new configuration before anything of it runs.
    pub withhold: Withhold,
    /// Who is told about it.
    pub manager: Arc<ServiceManager>,
    /// The ways out, which the file names too.
    pub deliveries: Deliveries,
    /// Where the workers are shown.
    pub workers: watch::Sender<Option<Workers>>,
    /// Where the configuration in force is shown.
    pub active: watch::Sender<ActiveConfig>,
}

impl Reloader {
    /// No service yet. They will work until `stop`.
    pub fn new(deps: ServiceDeps, world: Arc<World>, stop: CancellationToken) -> Self {
        let tasks = TaskSet::new();
        let placement = Placement::new(world.clock.clone(), tasks.clone(), stop.clone());
        Self {
            deps,
            world,
            notices: Vec::new(),
            restart_notices: Vec::new(),
            tasks,
            placement,
            doors: HashMap::new(),
            stop,
        }
    }

    /// Loads the services of the configuration in force as they were left, and lets them work. `recorded`: the last
    /// entries of earlier lives, where they are known. `notices`: warnings of the start.
    pub async fn load(&mut self, recorded: Option<Vec<Arc<AuditEntry>>>, notices: Vec<String>) {
        for notice in notices {
            self.notice(notice);
        }
        if let Some(recorded) = recorded {
            self.record_unrecorded(&recorded).await;
        }
        let config = self.config();
        let mut members = self.orphans(&config.services).await;
        members.reserve_exact(config.services.len());
        let mut handles = Vec::with_capacity(config.services.len());
        for service in &config.services {
            let (member, handle) = self.begin(service.clone(), StartReason::Start).await;
            members.push(member);
            handles.push(handle);
        }
        // All at once, so that a deployment under way has its project before any other service.
        self.placement.place(members);
        let warnings = [&self.notices[..], &config.warnings[..]].concat();
        self.deps.active.send_modify(|active| active.warnings = Arc::new(warnings));
        self.deps.workers.send_replace(Some(handles.into()));
    }

    /// The configuration in force.
    fn config(&self) -> Arc<Config> {
        self.deps.active.borrow().config.clone()
    }

    /// The services that are configured.
    fn workers(&self) -> Workers {
        self.deps.workers.borrow().clone().unwrap_or_default()
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
        self.deps.manager.reloading();
        let source = self.deps.source.clone();
        let loaded = tokio::task::spawn_blocking(move || source.load::<Config>()).await;
        let taken = match loaded {
            Ok(Ok(Config { unusable_services: Some(why), .. })) => Err(why),
            Ok(Ok(config)) => self.take_over(config).await,
            Ok(Err(faults)) => Err(faults.in_one_line()),
            Err(_) => Err("reading the file failed".to_owned()),
        };
        let mut words = self.summary();
        if let Err(reason) = taken {
            self.refuse(&reason);
            words.push_str("; the file has faults and is not in force");
        }
        self.deps.manager.ready(&words);
    }

    /// What the program does, for the service manager.
    pub fn summary(&self) -> String {
        format!("watching {}", text::count(self.workers().len(), "service"))
    }

    fn refuse(&self, reason: &str) {
        let message = "the configuration was read again and refused; the one in force stays";
        let mut entry = self.entry(Kind::CONFIG_REJECTED, Level::Error, message.to_owned());
        entry.reason = Some(reason.to_owned());
        self.say(entry);
        let mut warnings = self.config().warnings.clone();
        warnings.push(format!("the file has faults and is not in force: {reason}"));
        self.warn(warnings);
    }

    /// Puts a valid file into force.
    async fn take_over(&mut self, mut config: Config) -> Result<(), String> {
        (self.deps.withhold)(&config.named_variables);
        let old = self.config();
        if !same_registry(&old.registry, &config.registry) {
            (self.deps.replace_registry)(&config.registry).map_err(|error| format!("registry: {error:#}"))?;
        }
        let fixed = keep_fixed(&old, &mut config);
        let mut notes = Vec::new();
        let (settings, machine) = (Settings::of(&config), trial::machine_name(&config));
        let channels = self.deps.deliveries.reconfigure(settings, &config.faulty_channels, &machine).await;
        config.warnings.extend(channels.faults.iter().cloned());
        for (name, waited) in channels.removed.iter().filter(|(_, waited)| *waited > 0) {
            notes.push(format!("entries that waited for {name} and are dropped: {waited}"));
        }

        let Some(exchanged) = self.exchange(&config.services).await else { return Ok(()) };
        notes.extend(exchanged.notes.iter().cloned());
        let warnings = config.warnings.clone();
        self.deps.active.send_modify(|active| active.config = Arc::new(config));
        let restart = |key| format!("{key}: has changed in the file, which needs a restart");
        self.restart_notices = fixed.iter().map(restart).collect();
        self.warn(warnings);
        self.tell_reload(&exchanged, &channels, &fixed, notes);
        self.check(&exchanged.fresh);
        Ok(())
    }

    /// Lets these services work from now on: those that are the same as before are not touched. `None` when the
    /// program stops meanwhile.
    async fn exchange(&mut self, services: &[Arc<ServiceConfig>]) -> Option<Exchanged> {
        let before = self.workers();
        let wanted = |name: &str| services.iter().any(|service| service.name == name);
        let mut exchanged = Exchanged::default();
        let removed = before.iter().map(|handle| handle.config.name.clone());
        exchanged.removed = removed.filter(|name| !wanted(name)).collect();
        // Those that change answer until they have changed.
        let staying = before.iter().filter(|handle| wanted(&handle.config.name)).cloned();
        self.deps.workers.send_replace(Some(staying.collect()));
        for name in &exchanged.removed {
            if retire(&before, name).await {
                let note = format!("{name} is in the middle of a deployment, and goes when that is over");
                exchanged.notes.push(note);
            }
        }
        let is_same = |service: &Arc<ServiceConfig>| before.iter().find(|handle| handle.config == *service);
        let others = services.iter().filter(|service| is_same(service).is_none());
        // All at once: each may have a step under way that gets its time.
        let changing = join_all(others.map(|service| reconfigure(self.doors.get(&service.name), service)));
        let mut changing = changing.await.into_iter();
        let (mut members, mut handles) = (Vec::new(), Vec::with_capacity(services.len()));
        for service in services {
            if let Some(handle) = is_same(service) {
                handles.push(handle.clone());
                exchanged.untouched += 1;
                continue;
            }
            let is_known = before.iter().any(|handle| handle.config.name == service.name);
            let list = if is_known { &mut exchanged.changed } else { &mut exchanged.added };
            list.push(service.name.clone());
            let handle = match changing.next().flatten() {
                Some(handle) => {
                    self.doors.insert(service.name.clone(), handle.clone());
                    handle
                }
                None if self.stop.is_cancelled() => return None,
                None => {
                    let (member, handle) = self.begin(service.clone(), StartReason::Reload).await;
                    members.push(member);
                    handle
                }
            };
            exchanged.fresh.push(handle.clone());
            handles.push(handle);
        }
        self.placement.place(members);
        self.deps.workers.send_replace(Some(handles.into()));
        Some(exchanged)
    }

    /// Says what the reload has changed.
    fn tell_reload(
        &self,
        exchanged: &Exchanged,
        channels: &Reconfigured,
        fixed: &[&'static str],
        mut notes: Vec<String>,
    ) {
        let Exchanged { added, changed, removed, untouched, .. } = exchanged;
        let message = format!(
            "the configuration was read again: {} services added, {} changed, {} removed, {untouched} untouched",
            added.len(),
            changed.len(),
            removed.len()
        );
        let level = if fixed.is_empty() && notes.is_empty() { Level::Info } else { Level::Warning };
        let mut entry = self.entry(Kind::CONFIG_RELOADED, level, message);
        let fixed: Vec<String> = fixed.iter().map(|key| (*key).to_owned()).collect();
        let channels_removed: Vec<String> = channels.removed.iter().map(|(name, _)| name.clone()).collect();
        let lists = [
            ("added", added),
            ("changed", changed),
            ("removed", removed),
            ("channels added", &channels.added),
            ("channels changed", &channels.changed),
            ("channels removed", &channels_removed),
            ("needs a restart", &fixed),
        ];
        let told = lists.iter().filter(|(_, names)| !names.is_empty());
        notes.splice(..0, told.map(|(what, names)| format!("{what}: {}", names.join(", "))));
        entry.reason = Some(notes.join("; ")).filter(|text| !text.is_empty());
        self.say(entry);
    }

    /// Asks these to check now: the next cycle may be hours away.
    fn check(&self, workers: &[Handle]) {
        let registry = self.world.registry.clone();
        let cycle = Cycle::new(registry, Urgency::Routine);
        for worker in workers {
            let (done, _) = oneshot::channel();
            let _ = worker.inbox.send(Command::Check(cycle.clone(), done));
        }
    }

    /// Services that are configured no more and have left a deployment, which has to end.
    async fn orphans(&mut self, services: &[Arc<ServiceConfig>]) -> Vec<Member> {
        let rows = match self.world.store.scan(&state_key("")).await {
            Ok(rows) => rows,
            Err(error) => {
                self.notices.push(format!("the state of former services can't be read: {error}"));
                return Vec::new();
            }
        };
        let mut members = Vec::new();
        for (key, row) in rows {
            let Some(name) = key.strip_prefix(&state_key("")) else { continue };
            let known = services.iter().any(|service| service.name == name);
            let durable = serde_json::from_slice::<Durable>(&row).unwrap_or_default();
            let deployed = durable.deployment.as_ref().and_then(|d| former(name, d.plan()));
            let in_swarm = || durable.swarm.as_ref().map(|rollout| former_in_swarm(name, &rollout.plan));
            if let Some(service) = deployed.or_else(in_swarm).filter(|_| !known) {
                let (member, handle) = self.begin(Arc::new(service), StartReason::Start).await;
                let (reply, _) = oneshot::channel();
                let _ = handle.inbox.send(Command::Retire(reply));
                members.push(member);
            }
        }
        members
    }

    /// A service as it was left, which is still to be placed.
    async fn begin(&mut self, service: Arc<ServiceConfig>, reason_to_start: StartReason) -> (Member, Handle) {
        let durable = self.restore(&service.name).await;
        let (member, handle) = Member::new(service, durable, self.world.clone(), reason_to_start);
        self.doors.retain(|_, door| !door.inbox.is_closed());
        self.doors.insert(handle.config.name.clone(), handle.clone());
        (member, handle)
    }

    /// Records what the version before had not recorded when it was killed.
    async fn record_unrecorded(&self, recorded: &[Arc<AuditEntry>]) {
        // That rows can't be read is told where they are needed.
        let rows = self.world.store.scan(&state_key("")).await.unwrap_or_default();
        for entry in rows.iter().flat_map(|(_, row)| upgrade::unrecorded(row, recorded)) {
            self.say(entry);
        }
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
        let all = [self.notices.clone(), warnings, self.restart_notices.clone()].concat();
        self.deps.active.send_modify(|active| active.warnings = Arc::new(all));
    }

    fn entry(&self, kind: Kind, level: Level, message: String) -> AuditEntry {
        AuditEntry::new(self.world.clock.now(), PROGRAM, kind, level, message)
    }

    fn say(&self, entry: AuditEntry) {
        (self.world.record)(entry);
    }
}

/// Gives a service that is there another configuration; `None` where there is none, or where it has just ended.
async fn reconfigure(door: Option<&Handle>, service: &Arc<ServiceConfig>) -> Option<Handle> {
    let door = door?;
    let config = service.clone();
    let (reply, answer) = oneshot::channel();
    door.inbox.send(Command::Reconfigure(config.clone(), reply)).ok()?;
    answer.await.ok()?;
    Some(Handle { config, ..door.clone() })
}

/// Tells a worker that its service is configured no more. Whether it has a deployment to end first.
async fn retire(workers: &[Handle], name: &str) -> bool {
    let Some(worker) = workers.iter().find(|worker| worker.config.name == name) else { return false };
    let (reply, answer) = oneshot::channel();
    let _ = worker.inbox.send(Command::Retire(reply));
    answer.await.unwrap_or(false)
}

/// What is known of a service that is configured no more: what its deployment needs.
fn former(name: &str, plan: &Plan) -> Option<ServiceConfig> {
    let project = plan.project.clone()?;
    Some(ServiceConfig {
        compose_files: project.files,
        compose_project: Some(project.name),
        env_file: project.env_file,
        ..bare(name, &plan.image_changes, plan.grace)
    })
}

/// The same of a swarm service.
fn former_in_swarm(name: &str, plan: &SwarmPlan) -> ServiceConfig {
    ServiceConfig {
        swarm_service: Some(plan.service.clone()),
        ..bare(name, plan.change.as_slice(), plan.grace)
    }
}

/// A service that does nothing by itself.
fn bare(name: &str, images: &[ImageChange], grace: Duration) -> ServiceConfig {
    let images = images.iter();
    let images =
        images.map(|m| ConfiguredImage { configured: m.configured.clone(), reference: m.reference.clone() });
    ServiceConfig {
        name: name.to_owned(),
        images: images.collect(),
        silent: false,
        compose_files: Vec::new(),
        compose_project: None,
        container_name: None,
        swarm_service: None,
        env_file: None,
        auto_update: false,
        auto_start: false,
        auto_heal: false,
        compose_watch: false,
        cpu_threshold: 0.0,
        memory_threshold: 0.0,
        health_grace: grace,
        heal_cooldown: Duration::ZERO,
        heal_max_restarts: 0,
        keep_images: 3,
        update: None,
    }
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
