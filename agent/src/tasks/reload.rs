//! Starts the workers, and reconfigures them on SIGHUP (DECISIONS 2).
//!
//! A service with an unchanged configuration is not touched. A changed service continues under its new configuration as
//! after a restart: a step in progress may finish, and an unfinished deployment is resumed in the project recorded in the
//! journal; then the service moves to its configured project. A removed service finishes its deployment first; a service
//! that replaces it in the project has to wait for that.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::config::OutdatedVariables;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::systemd::ServiceManager;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::signal::unix::Signal;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;
use crate::audit::{Deliveries, Reconfigured, Settings, trial, upgrade};
use crate::config::active::ActiveConfig;
use crate::config::{Config, ConfigSource, ConfiguredImage, RegistryConfig, ServiceConfig};
use crate::model::text;
use crate::ports::Urgency;
use crate::project::cycle::Cycle;
use crate::project::handle::{Command, Handle};
use crate::project::services::{Workers, with_leaving};
use crate::project::worker::Member;
use crate::project::worker::Placement;
use crate::project::world::{World, state_key};
use crate::service::Durable;
use crate::service::boot::StartReason;
use crate::service::input::Input;
use crate::service::rollout::plan::{ImageChange, Plan};

mod losses;
mod renames;

pub(crate) use losses::faults;
use losses::{keep_unresponsive, losses, watches_more};
use renames::{left_behind, postponed, renamed, take_over};

/// Time between attempts to watch services that are left out: a file system may be mounted after the start.
const RETRY: Duration = Duration::from_mins(1);
/// Time between attempts to read a service's state.
const REREAD: Duration = Duration::from_secs(5);
/// Time limit for stopping all workers; the limit of each worker is shorter.
const STOP_GRACE: Duration = Duration::from_secs(25);

/// Replaces the registry client with one for the given configuration.
pub type ReplaceRegistry = Box<dyn Fn(&RegistryConfig) -> anyhow::Result<()> + Send + Sync>;

/// Withholds variables that hold secrets from child processes.
pub type Withhold = Box<dyn Fn(&BTreeSet<String>) + Send + Sync>;

/// The task that manages the workers.
pub struct Reloader {
    deps: ServiceDeps,
    world: Arc<World>,
    /// Warnings from start-up, kept until the agent ends.
    notices: Vec<String>,
    /// Changes of the active file that take effect only after a restart.
    restart_notices: Vec<String>,
    tasks: TaskSet,
    placement: Placement,
    /// Handles to all services, including those that are no longer configured.
    handles: HashMap<String, Handle>,
    /// A service is to be renamed when its deployment has ended.
    waits_to_rename: bool,
    stop: CancellationToken,
}

/// The effect of a reload on the services.
#[derive(Default)]
struct ServiceChanges {
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
    /// Added services that continue removed ones.
    continued: Vec<String>,
    untouched: usize,
    /// New and changed services.
    fresh: Vec<Handle>,
    notes: Vec<String>,
}

/// Dependencies of the reload task.
pub struct ServiceDeps {
    /// Source of the configuration.
    pub source: ConfigSource,
    /// Called when the registry settings change.
    pub replace_registry: ReplaceRegistry,
    /// Called with the names of secret variables before a new configuration is applied.
    pub withhold: Withhold,
    /// The service manager, which is notified of reloads.
    pub manager: Arc<ServiceManager>,
    /// Delivery channels, which are reconfigured too.
    pub deliveries: Deliveries,
    /// Published workers.
    pub workers: watch::Sender<Option<Workers>>,
    /// The same, and those that are no longer configured and finish a deployment: the receivers of the engine's events.
    pub listeners: watch::Sender<Workers>,
    /// Published active configuration.
    pub active: watch::Sender<ActiveConfig>,
}

impl Reloader {
    /// Creates the task without services. Workers run until `stop`.
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
            handles: HashMap::new(),
            waits_to_rename: false,
            stop,
        }
    }

    /// Restores the services of the active configuration and starts them. `recorded`: the last entries of earlier runs, if
    /// known. `notices`: warnings from start-up.
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
            let (member, handle) = self.new_member(service.clone(), StartReason::Start).await;
            members.push(member);
            handles.push(handle);
        }
        // All at once, so that an unfinished deployment gets its project before any other service.
        self.placement.place(members);
        let warnings = [&self.notices[..], &config.warnings[..]].concat();
        self.deps.active.send_modify(|active| active.warnings = Arc::new(warnings));
        self.publish(handles.into());
    }

    /// Returns the active configuration.
    fn config(&self) -> Arc<Config> {
        self.deps.active.borrow().config.clone()
    }

    /// Returns the configured services.
    fn workers(&self) -> Workers {
        self.deps.workers.borrow().clone().unwrap_or_default()
    }

    /// Reloads the configuration on each of `hangups` until the agent stops, then waits for the workers. Returns early if a
    /// worker has panicked. While services are left out, it tries again to watch them.
    pub async fn run(mut self, mut hangups: Signal) {
        let (stop, tasks) = (self.stop.clone(), self.tasks.clone());
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tasks.panicked() => return,
                // A file system that hangs must not delay the end of the agent.
                Some(()) = hangups.recv() => tokio::select! {
                    () = tasks.panicked() => return,
                    _ = stop.run_until_cancelled(self.reload()) => {}
                },
                () = sleep(RETRY), if self.waits_to_rename || !self.config().left_out.is_empty() => tokio::select! {
                    () = tasks.panicked() => return,
                    _ = stop.run_until_cancelled(self.retry()) => {}
                },
            }
        }
        tasks.finish(STOP_GRACE).await;
    }

    /// Reads the file.
    async fn read(&self) -> Result<Config, String> {
        let source = self.deps.source.clone();
        match tokio::task::spawn_blocking(move || source.load::<Config>()).await {
            Ok(loaded) => loaded.map_err(|faults| faults.in_one_line()),
            Err(_) => Err("reading the file failed".to_owned()),
        }
    }

    /// Returns which variables a reload leaves as they are; `same`: the file has not changed.
    async fn outdated_variables(&self, same: bool) -> Option<OutdatedVariables> {
        let source = self.deps.source.clone();
        tokio::task::spawn_blocking(move || source.outdated_variables(same)).await.ok().flatten()
    }

    /// Watches services that were left out and no longer have a fault, because what the file names exists now. A file that was
    /// edited waits for its reload. The same holds for services that keep their names until a deployment has ended.
    async fn retry(&mut self) {
        let Ok(mut config) = self.read().await else { return };
        let active = self.config();
        // What keeps its settings is not lost, and holds back none of the others.
        keep_unresponsive(&active, &mut config);
        let may_rename = self.waits_to_rename
            && active.text_hash == config.text_hash
            && active.left_out == config.left_out
            && self.postponed(&mut config.services.clone()).is_empty();
        if (may_rename || watches_more(&active, &config)) && self.apply(config).await.is_ok() {
            self.deps.manager.ready(&self.summary());
        }
    }

    /// Returns the services that can't be renamed yet, and lets them keep their names.
    fn postponed(&self, services: &mut [Arc<ServiceConfig>]) -> Vec<(String, String)> {
        let before = self.workers();
        let former: Vec<&ServiceConfig> = before.iter().map(|handle| handle.config.as_ref()).collect();
        let is_deploying = |name: &str| {
            let mut named = before.iter().filter(|handle| handle.config.name == name);
            named.any(|handle| handle.published.get().service.durable().is_deploying())
        };
        postponed(&former, services, is_deploying)
    }

    async fn reload(&mut self) {
        self.deps.manager.reloading();
        let applied = match self.read().await {
            Err(why) | Ok(Config { unusable_services: Some(why), .. }) => Err(why),
            Ok(config) => self.apply(config).await,
        };
        let mut status = self.summary();
        if let Err(reason) = applied {
            self.reject(&reason);
            status.push_str("; the file has errors and is not active");
        }
        self.deps.manager.ready(&status);
    }

    /// Returns the status text for the service manager.
    pub fn summary(&self) -> String {
        format!("watching {}", text::count(self.workers().len(), "service"))
    }

    fn reject(&self, reason: &str) {
        let message = "the new configuration is invalid; the active one is kept";
        let mut entry = self.entry(Kind::CONFIG_REJECTED, Level::Error, message.to_owned());
        entry.reason = Some(reason.to_owned());
        self.emit(entry);
        let mut warnings = self.config().warnings.clone();
        warnings.push(format!("the file has errors and is not active: {reason}"));
        self.warn(warnings);
    }

    /// Applies a valid configuration.
    async fn apply(&mut self, mut config: Config) -> Result<(), String> {
        (self.deps.withhold)(&config.named_variables);
        let old = self.config();
        if !same_registry(&old.registry, &config.registry) {
            (self.deps.replace_registry)(&config.registry).map_err(|error| format!("registry: {error:#}"))?;
        }
        let fixed = keep_fixed(&old, &mut config);
        let mut notes = keep_unresponsive(&old, &mut config);
        let (settings, machine) = (Settings::of(&config), trial::machine_name(&config));
        let channels = self.deps.deliveries.reconfigure(settings, &config.faulty_channels, &machine).await;
        config.warnings.extend(channels.faults.iter().cloned());
        for (name, waited) in channels.removed.iter().filter(|(_, waited)| *waited > 0) {
            notes.push(format!("undelivered entries dropped for {name}: {waited}"));
        }

        let renames = self.postponed(&mut config.services);
        self.waits_to_rename = !renames.is_empty();
        notes.extend(renames.iter().map(|(old, new)| {
            format!("{old} has a deployment in progress and is renamed to {new} when it has ended")
        }));
        let Some(changes) = self.replace_services(&config).await else { return Ok(()) };
        notes.extend(changes.notes.iter().cloned());
        notes.extend(losses(&old, &config));
        let outdated = self.outdated_variables(old.text_hash == config.text_hash).await;
        notes.extend(outdated.iter().map(|outdated| outdated.text.clone()));
        let outdated = outdated.filter(|outdated| outdated.is_certain).map(|outdated| outdated.text);
        let warnings = config.warnings.clone();
        self.deps.active.send_modify(|active| active.config = Arc::new(config));
        let restart = |key| format!("{key}: changed in the file, which needs a restart");
        self.restart_notices = fixed.iter().map(restart).chain(outdated).collect();
        self.warn(warnings);
        self.record_reload(&changes, &channels, &fixed, notes);
        self.check(&changes.fresh);
        Ok(())
    }

    /// Replaces the services; unchanged ones are not touched. `None` if the agent stops meanwhile.
    async fn replace_services(&mut self, config: &Config) -> Option<ServiceChanges> {
        let services = &config.services;
        let before = self.workers();
        let wanted = |name: &str| services.iter().any(|service| service.name == name);
        let mut changes = ServiceChanges::default();
        let removed = before.iter().map(|handle| handle.config.name.clone());
        changes.removed = removed.filter(|name| !wanted(name)).collect();
        // Services to be changed serve requests until they are reconfigured.
        self.publish(before.iter().filter(|handle| wanted(&handle.config.name)).cloned().collect());
        let former: Vec<&ServiceConfig> = before.iter().map(|handle| handle.config.as_ref()).collect();
        let renamed = renamed(&former, services);
        for handle in before.iter().filter(|handle| !wanted(&handle.config.name)) {
            let name = &handle.config.name;
            if retire(handle).await {
                let note = format!("{name} has a deployment in progress and is removed when it ends");
                changes.notes.push(note);
            } else if let Some((_, new)) = renamed.iter().find(|(old, _)| old == name)
                && take_over(self.world.store.as_ref(), handle, new).await
            {
                changes.continued.push(format!("{new} continues {name}"));
                continue;
            }
            let published = handle.published.get();
            changes.notes.extend(left_behind(name, published.service.durable(), &config.left_out));
        }
        let is_same = |service: &Arc<ServiceConfig>| before.iter().find(|handle| handle.config == *service);
        let others = services.iter().filter(|service| is_same(service).is_none());
        // Concurrently, because each may have to wait for a step in progress.
        let changing = join_all(others.map(|service| reconfigure(self.handles.get(&service.name), service)));
        let mut changing = changing.await.into_iter();
        let (mut members, mut handles) = (Vec::new(), Vec::with_capacity(services.len()));
        let mut new = Vec::new();
        for service in services {
            if let Some(handle) = is_same(service) {
                handles.push(handle.clone());
                changes.untouched += 1;
                continue;
            }
            let is_known = before.iter().any(|handle| handle.config.name == service.name);
            let list = if is_known { &mut changes.changed } else { &mut changes.added };
            list.push(service.name.clone());
            let handle = match changing.next().flatten() {
                Some(handle) => {
                    self.handles.insert(service.name.clone(), handle.clone());
                    handle
                }
                None if self.stop.is_cancelled() => return None,
                None => {
                    let (member, handle) = self.new_member(service.clone(), StartReason::Reload).await;
                    members.push(member);
                    new.push(handle.clone());
                    handle
                }
            };
            changes.fresh.push(handle.clone());
            handles.push(handle);
        }
        self.tell_engine_since(&new).await;
        self.placement.place(members);
        self.publish(handles.into());
        Some(changes)
    }

    /// Publishes these configured services, and those that are no longer configured.
    fn publish(&self, configured: Workers) {
        self.deps.listeners.send_replace(with_leaving(&configured, self.handles.values()));
        self.deps.workers.send_replace(Some(configured));
    }

    /// Tells new services since when the engine has been running, as the others learn when the event stream begins: it tells
    /// which of their containers were stopped on purpose.
    async fn tell_engine_since(&self, new: &[Handle]) {
        if new.is_empty() {
            return;
        }
        // If it can't be reached, they learn it with the next event stream.
        let Ok(engine_since) = self.world.engine.running_since(Timestamp::UNIX_EPOCH).await else { return };
        let at = self.world.clock.now();
        for handle in new {
            let _ = handle.inbox.send(Command::Input(Box::new(Input::EngineBack { at, engine_since })));
        }
    }

    /// Records what the reload has changed.
    fn record_reload(
        &self,
        changes: &ServiceChanges,
        channels: &Reconfigured,
        fixed: &[&'static str],
        mut notes: Vec<String>,
    ) {
        let ServiceChanges { added, changed, removed, continued, untouched, .. } = changes;
        let message = format!(
            "the configuration was reloaded: {} services added, {} changed, {} removed, {untouched} untouched",
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
            ("renamed", continued),
            ("channels added", &channels.added),
            ("channels changed", &channels.changed),
            ("channels removed", &channels_removed),
            ("needs a restart", &fixed),
        ];
        let non_empty = lists.iter().filter(|(_, names)| !names.is_empty());
        notes.splice(..0, non_empty.map(|(what, names)| format!("{what}: {}", names.join(", "))));
        entry.reason = Some(notes.join("; ")).filter(|text| !text.is_empty());
        self.emit(entry);
    }

    /// Starts a check of these services now, because the next cycle may be hours away.
    fn check(&self, workers: &[Handle]) {
        let registry = self.world.registry.clone();
        let cycle = Cycle::new(registry, Urgency::Routine);
        for worker in workers {
            let (done, _) = oneshot::channel();
            let _ = worker.inbox.send(Command::Check(cycle.clone(), done));
        }
    }

    /// Restores services that are no longer configured but have an unfinished deployment, so that it can end.
    async fn orphans(&mut self, services: &[Arc<ServiceConfig>]) -> Vec<Member> {
        let store = self.world.store.clone();
        let prefix = state_key("");
        let rows = self.until_read("the state of former services", || store.scan(&prefix)).await;
        let mut members = Vec::new();
        for (key, row) in rows {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            let known = services.iter().any(|service| service.name == name);
            let durable = serde_json::from_slice::<Durable>(&row).unwrap_or_default();
            let deployed = durable.deployment.as_ref().and_then(|d| former(name, d.plan()));
            if let Some(service) = deployed.filter(|_| !known) {
                let (member, handle) = self.new_member(Arc::new(service), StartReason::Start).await;
                let (reply, _) = oneshot::channel();
                let _ = handle.inbox.send(Command::Retire(reply));
                members.push(member);
            }
        }
        members
    }

    /// Restores a service from the journal. It still has to be placed.
    async fn new_member(&mut self, service: Arc<ServiceConfig>, reason: StartReason) -> (Member, Handle) {
        let durable = self.restore(&service.name).await;
        let (member, handle) = Member::new(service, durable, self.world.clone(), reason);
        self.handles.retain(|_, handle| !handle.inbox.is_closed());
        self.handles.insert(handle.config.name.clone(), handle.clone());
        (member, handle)
    }

    /// Records entries that the previous version had not yet recorded when it was killed.
    async fn record_unrecorded(&self, recorded: &[Arc<AuditEntry>]) {
        // A read error is reported where the rows are needed.
        let rows = self.world.store.scan(&state_key("")).await.unwrap_or_default();
        for entry in rows.iter().flat_map(|(_, row)| upgrade::unrecorded(row, recorded)) {
            self.emit(entry);
        }
    }

    /// Reads from the store. While that fails, this waits: an empty state would be written over what is there, blocked images
    /// would be deployed again, and an unfinished deployment would stay as it is.
    async fn until_read<T, E: Display, F: Future<Output = Result<T, E>>>(
        &self,
        what: &str,
        read: impl Fn() -> F,
    ) -> T {
        let mut is_reported = false;
        loop {
            match read().await {
                Ok(found) => return found,
                Err(error) if !is_reported => {
                    let message = format!("{what} can't be read; services start once it can be: {error}");
                    self.deps.manager.status(&message);
                    self.emit(self.entry(Kind::ERROR, Level::Critical, message));
                    is_reported = true;
                }
                Err(_) => {}
            }
            sleep(REREAD).await;
        }
    }

    /// Loads a service's state. A damaged row is kept under another key and reported.
    async fn restore(&mut self, name: &str) -> Durable {
        let (store, key) = (self.world.store.clone(), state_key(name));
        let row = self.until_read(&format!("{name}: its state"), || store.get(&key)).await;
        let Some(row) = row else { return Durable::default() };
        match serde_json::from_slice(&row) {
            Ok(durable) => durable,
            Err(error) => {
                self.notice(format!(
                    "{name}: its state is damaged; it starts with an empty state, and a copy is kept: {error}"
                ));
                if let Err(error) = store.put(&format!("damaged/{name}"), row).await {
                    tracing::error!(%error, "the copy of the damaged state could not be written");
                }
                Durable::default()
            }
        }
    }

    /// Records an error and adds it to the warnings until the agent ends.
    fn notice(&mut self, notice: String) {
        self.emit(self.entry(Kind::ERROR, Level::Error, notice.clone()));
        self.notices.push(notice);
    }

    /// Publishes these warnings, after those from start-up.
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

    fn emit(&self, entry: AuditEntry) {
        (self.world.record)(entry);
    }
}

/// Reconfigures an existing service; `None` if there is none, or if it has just ended.
async fn reconfigure(handle: Option<&Handle>, service: &Arc<ServiceConfig>) -> Option<Handle> {
    let handle = handle?;
    let config = service.clone();
    let (reply, answer) = oneshot::channel();
    handle.inbox.send(Command::Reconfigure(config.clone(), reply)).ok()?;
    answer.await.ok()?;
    Some(Handle { config, ..handle.clone() })
}

/// Retires a service that is no longer configured. Returns whether it has to finish a deployment first.
async fn retire(worker: &Handle) -> bool {
    let (reply, answer) = oneshot::channel();
    let _ = worker.inbox.send(Command::Retire(reply));
    answer.await.unwrap_or(false)
}

/// Builds a configuration for a service that is no longer configured, with what its deployment needs.
fn former(name: &str, plan: &Plan) -> Option<ServiceConfig> {
    let bare = bare(name, &plan.image_changes, plan.grace);
    if let Some(swarm) = &plan.swarm {
        return Some(ServiceConfig { swarm_service: Some(swarm.service.clone()), ..bare });
    }
    let project = plan.project.clone()?;
    Some(ServiceConfig {
        compose_files: project.files,
        compose_project: Some(project.name),
        env_file: project.env_file,
        ..bare
    })
}

/// Builds a configuration with all automatic actions disabled.
fn bare(name: &str, images: &[ImageChange], grace: Duration) -> ServiceConfig {
    let images = images.iter();
    let images =
        images.map(|m| ConfiguredImage { configured: m.configured.clone(), reference: m.reference.clone() });
    ServiceConfig {
        name: name.to_owned(),
        images: images.collect(),
        health_grace: grace,
        keep_images: 3,
        ..ServiceConfig::default()
    }
}

/// Reports whether both can use the same client: only the poll interval may differ.
fn same_registry(a: &RegistryConfig, b: &RegistryConfig) -> bool {
    *a == RegistryConfig { poll_interval: a.poll_interval, ..b.clone() }
}

/// Copies settings from `old` that can't change while the agent runs. Returns the keys that differ.
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
        keep("api.base_path", &old.api.base_path, &mut new.api.base_path),
        keep("audit.path", &old.audit_path, &mut new.audit_path),
        keep("state.path", &old.state_path, &mut new.state_path),
    ];
    kept.into_iter().flatten().collect()
}
