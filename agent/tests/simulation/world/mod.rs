//! A simulated world in memory: engine, registry, compose and store with scripted images, in virtual time. The agent can
//! be killed before and after every single call.
//!
//! | file | contents |
//! |---|---|
//! | `container.rs` | containers and images, and their scripted behaviour |
//! | `ports.rs` | the agent's ports: engine, registry, store |
//! | `compose.rs` | the compose port |
//! | `data.rs` | the data of a service, which new images migrate |
//! | `events.rs` | the engine's event stream, with optional faults |
//! | `env_file.rs` | the env file that sets the tag of a service |
//! | `operators.rs` | operator actions and faults |
//! | `pauses.rs` | pauses and slow stops |
//! | `wall.rs` | the machine's clock, which operators may set |
//! | `swarm.rs` | a swarm with one service, independent of the rest |
//! | `properties.rs`, `properties/` | what must hold after every step and at the end |

mod compose;
mod container;
mod data;
mod env_file;
mod events;
mod handover;
mod operators;
mod pauses;
mod ports;
mod properties;
pub(crate) mod swarm;
mod wall;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_agent::model::image::{Digest, ImageId, Reference, Repository};
use evenkeel_agent::model::image_config::ImageConfig;
use evenkeel_agent::model::{EngineError, HealthState, Members};
use evenkeel_agent::service::Durable;
use evenkeel_common::clock::Clock;
use evenkeel_common::store::{Change, MemoryStore, Store as _};
use evenkeel_common::wire::AuditEntry;
use futures_util::FutureExt;
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

pub(crate) use container::Behaviour;
use container::{FakeContainer, FakeImage, Run};
pub(crate) use data::DiskFault;
pub(crate) use env_file::VARIABLE;
pub(crate) use events::EventFault;
pub(crate) use operators::Act;
pub(crate) use properties::AtEnd;
use properties::Truth;
use wall::Wall;

/// How the registry responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RegistryFault {
    #[default]
    None,
    /// With an error.
    Errors,
    /// Not at all, until the client times out.
    Hangs,
    /// After a delay of 5 s.
    Slow,
}

/// How compose fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum UpFault {
    #[default]
    None,
    /// Before it changes anything.
    AtOnce,
    /// After its first service.
    Halfway,
}

/// What the gate command answers instead of "go".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CommandFault {
    #[default]
    None,
    /// "wait"
    Waits,
    /// It fails without a valid answer.
    Fails,
}

/// How probes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ProbeFault {
    #[default]
    None,
    /// Nothing answers.
    Fails,
    /// Everything answers.
    Passes,
}

/// How a write of the state fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StoreFault {
    #[default]
    None,
    /// Nothing is written.
    Refuses,
    /// An error is reported although everything is written.
    Torn,
}

/// The faults that are active at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) registry: RegistryFault,
    pub(crate) pull: bool,
    pub(crate) up: UpFault,
    pub(crate) store: StoreFault,
    pub(crate) events: EventFault,
    pub(crate) command: CommandFault,
    pub(crate) probe: ProbeFault,
}

/// A service of the compose file.
#[derive(Debug, Clone)]
struct Definition {
    name: String,
    reference: Reference,
    /// Incremented by every edit.
    version: u64,
    /// Its containers have a restart policy.
    restarts_itself: bool,
    /// Its tag is a variable that the env file sets.
    has_variable: bool,
    /// It has `deploy.update_config.order: start-first`.
    starts_first: bool,
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // independent faults of the world
struct Inner {
    /// When the machine's clock was set, and its offset from then on.
    clock_set: Vec<(Timestamp, SignedDuration)>,
    /// Digests with a signature. If `only_signed` is set, no other digest may be fetched.
    signed: BTreeSet<Digest>,
    only_signed: bool,
    /// How often the signatures of an image were read.
    signature_reads: usize,
    /// The registry's tags: `host/path:tag` to digest.
    registry: BTreeMap<String, Digest>,
    published: BTreeMap<Digest, (ImageId, Behaviour)>,
    images: BTreeMap<ImageId, FakeImage>,
    /// Which volume each service's next images declare, and each published image does.
    next_volumes: BTreeMap<String, u32>,
    volumes: BTreeMap<ImageId, u32>,
    containers: Vec<FakeContainer>,
    anchors: BTreeMap<String, ImageId>,
    /// The compose services in whose containers the agent runs.
    of_agent: BTreeSet<String>,
    services: Vec<Definition>,
    /// Services that are restarted with another one, and that one.
    ties: BTreeMap<String, String>,
    /// The file of the secret that all services have; empty for none.
    secret_file: String,
    /// The containers, by ID, whose restart policy somebody has changed with `docker update`.
    docker_updated: BTreeSet<String>,
    data: data::Data,
    env_file: Option<env_file::EnvFile>,
    engine_down: bool,
    /// When the engine was last started; `None` before the beginning.
    engine_since: Option<Timestamp>,
    /// The connection to the engine is cut: it can't be reached, but runs on.
    is_cut: bool,
    /// Images that the engine refuses to describe.
    unreadable: Vec<ImageId>,
    /// Containers, by ID, that the engine can't stop.
    unstoppable: BTreeSet<String>,
    faults: Faults,
    /// The path of the compose file, if the agent is to see edits of it.
    file: Option<PathBuf>,
    /// The compose file on the disk is invalid.
    is_file_broken: bool,
    next_id: u64,
    calls: usize,
    crash_at: Option<usize>,
    /// The previous values of the rows of the last write.
    last_write: Vec<Change>,
    /// Prunes all unused images whenever containers are listed, as a hostile neighbour would.
    prune_always: bool,
    /// Nobody may change containers with compose.
    gives_no_turns: bool,
    violations: Vec<String>,
    up_count: usize,
    /// Numbers of containers that the current run of compose was told to keep.
    kept_counts: BTreeMap<String, usize>,
    /// How often compose was asked what its files define.
    definition_reads: usize,
    restarts: usize,
    /// Calls in progress that change the project: those of compose, and restarts.
    composing: usize,
    restarting: usize,
    /// Projects that compose brought up, and queries for containers.
    brought_up: BTreeSet<String>,
    queries: HashSet<Members>,
    /// Decides before each write of the state whether it fails.
    refuses_write: Option<Box<dyn FnMut() -> bool + Send>>,
    entries: Vec<AuditEntry>,
    events: events::EventLog,
    /// The last written state of each service.
    durable: BTreeMap<String, Durable>,
    truth: Truth,
    transcript: Vec<String>,
    started: Option<Timestamp>,
    now: Timestamp,
}

/// The simulated world. Clones share their state.
#[derive(Clone)]
pub(crate) struct FakeWorld {
    inner: Arc<Mutex<Inner>>,
    /// The simulation's own time, which is never set.
    clock: Arc<dyn Clock>,
    /// The machine's clock, which operators may set.
    wall: Arc<Wall>,
    store: MemoryStore,
    /// Notified when the agent is to be killed.
    pub crash: Arc<Notify>,
    /// Notified when the time of the next change of a container may be different.
    moved: Arc<Notify>,
}

pub(crate) fn digest_of(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

pub(crate) fn id_of(name: &str) -> ImageId {
    ImageId::from(&Digest::of(format!("config of {name}").as_bytes()))
}

impl FakeWorld {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let wall = Arc::new(Wall::of(clock.clone()));
        let world = Self {
            inner: Arc::default(),
            clock,
            wall,
            store: MemoryStore::new(),
            crash: Arc::default(),
            moved: Arc::default(),
        };
        let now = Some(world.clock.now());
        (world.lock().started, world.lock().engine_since) = (now, now);
        world
    }

    /// Returns the machine's clock.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.wall.clone()
    }

    /// Locks the world and advances it to the current time.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        inner.advance(now);
        inner
    }

    /// Advances the world whenever a container changes or a late event is due. Never returns.
    pub(crate) async fn advance(&self) {
        loop {
            let next = {
                let inner = self.lock();
                let next = inner.containers.iter().filter_map(|c| c.next_change(inner.now));
                next.chain(inner.events.next_late()).min()
            };
            let wait = next.map(|at| at.duration_since(self.clock.now()));
            let wait = wait.map(|wait| Duration::try_from(wait).unwrap_or_default());
            tokio::select! {
                biased;
                () = self.moved.notified() => {}
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
            }
        }
    }

    /// Publishes an image under a tag; its digest and ID follow from `name`.
    pub(crate) fn push(&self, reference: &Reference, name: &str, behaviour: Behaviour) {
        self.lock().publish(reference, name, behaviour);
    }

    /// From now on the containers of an image, given by its name, behave in this way.
    pub(crate) fn image_turns(&self, name: &str, behaviour: Behaviour) {
        if let Some(image) = self.lock().images.get_mut(&id_of(name)) {
            image.behaviour = behaviour;
        }
    }

    /// From now on only signed images may be fetched.
    pub(crate) fn demand_signatures(&self) {
        self.lock().only_signed = true;
    }

    /// Signs an image, given by its name.
    pub(crate) fn sign(&self, name: &str) {
        self.lock().signed.insert(digest_of(name));
    }

    /// Adds a service to the compose file.
    pub(crate) fn compose_service(&self, service: &str, reference: &Reference) {
        let (name, reference) = (service.to_owned(), reference.clone());
        let definition = Definition {
            name,
            reference,
            version: 0,
            restarts_itself: false,
            has_variable: false,
            starts_first: false,
        };
        self.lock().services.push(definition);
    }

    /// Edits the image of a compose service in the file.
    pub(crate) fn edit_image(&self, service: &str, reference: &Reference) {
        let mut inner = self.lock();
        inner.services.iter_mut().filter(|s| s.name == service).for_each(|s| s.reference = reference.clone());
    }

    /// Edits the file of the secret that all services have.
    pub(crate) fn edit_secret(&self, file: &str) {
        let mut inner = self.lock();
        file.clone_into(&mut inner.secret_file);
        inner.write_file();
    }

    /// Changes the restart policy of the containers of a compose service that exist with `docker update`.
    pub(crate) fn docker_update(&self, service: &str) {
        let mut inner = self.lock();
        let of_service = inner.containers.iter().filter(|c| c.service == service);
        let ids: Vec<String> = of_service.map(|c| c.id.clone()).collect();
        inner.docker_updated.extend(ids);
    }

    /// Lets the agent run in the container of a compose service, or in the task of a swarm that has this name.
    pub(crate) fn agent_runs_in(&self, service: &str) {
        self.lock().of_agent.insert(service.to_owned());
    }

    /// From now on the engine can't stop a container.
    pub(crate) fn refuse_stop(&self, id: &str) {
        self.lock().unstoppable.insert(id.to_owned());
    }

    /// Lets the new containers of a compose service start beside the old ones.
    pub(crate) fn starts_first(&self, service: &str) {
        let mut inner = self.lock();
        inner.services.iter_mut().filter(|s| s.name == service).for_each(|s| s.starts_first = true);
    }

    /// Reports whether a container of a compose service has passed its health check.
    pub(crate) fn is_healthy(&self, service: &str) -> bool {
        let inner = self.lock();
        inner.container(service).is_some_and(|c| c.health(inner.now) == Some(HealthState::Healthy))
    }

    /// Returns the full IDs of the containers of a compose service, with whether they run and since when.
    pub(crate) fn containers_of(&self, service: &str) -> Vec<(String, bool, Option<Timestamp>)> {
        let inner = self.lock();
        let all = inner.containers.iter().filter(|c| c.service == service);
        all.map(|c| (c.id.clone(), c.is_up(), c.started())).collect()
    }

    /// Sets the path of the compose file, and whether its services have a restart policy.
    pub(crate) fn set_compose_file(&self, file: &Path, restarts_itself: bool) {
        let mut inner = self.lock();
        inner.file = Some(file.to_owned());
        inner.services.iter_mut().for_each(|service| service.restarts_itself = restarts_itself);
        inner.write_file();
    }

    /// Adds an image under its tag to the engine, with a digest if it was `pulled` and not built.
    pub(crate) fn add_image(&self, reference: &Reference, name: &str, behaviour: Behaviour, pulled: bool) {
        let mut inner = self.lock();
        let digests =
            if pulled { [reference.repository.at(&digest_of(name))].into() } else { BTreeSet::new() };
        let tags = BTreeSet::from([reference.tagged()]);
        for image in inner.images.values_mut() {
            image.tags.remove(&reference.tagged());
        }
        inner.images.insert(id_of(name), FakeImage { behaviour, digests, tags });
    }

    /// Loses the record of an image that runs, as the containerd store does once its tag is moved. There the ID is the digest;
    /// `is_in_registry`: it can be pulled by that.
    pub(crate) fn lose_image(&self, name: &str, is_in_registry: bool) {
        let mut inner = self.lock();
        let id = id_of(name);
        let lost = inner.images.remove(&id).expect("it is present");
        if is_in_registry {
            let digest = Digest::parse(&id.0).expect("it has the form of one");
            inner.published.insert(digest, (id, lost.behaviour));
        }
    }

    /// Lets a compose service be restarted with another one.
    pub(crate) fn tie(&self, service: &str, to: &str) {
        self.lock().ties.insert(service.to_owned(), to.to_owned());
    }

    /// Brings the project up without the agent.
    pub(crate) fn operator_up(&self) {
        self.lock().up_all();
    }

    pub(crate) fn crash_at(&self, call: Option<usize>) {
        let mut inner = self.lock();
        inner.calls = 0;
        inner.crash_at = call;
    }

    /// Whether a deployment may change containers with compose.
    pub(crate) fn give_turns(&self, does: bool) {
        self.lock().gives_no_turns = !does;
    }

    pub(crate) fn prune_always(&self) {
        self.lock().prune_always = true;
    }

    /// How often compose was asked what its files define.
    pub(crate) fn definition_reads(&self) -> usize {
        self.lock().definition_reads
    }

    pub(crate) fn signature_reads(&self) -> usize {
        self.lock().signature_reads
    }

    pub(crate) fn ups(&self) -> usize {
        self.lock().up_count
    }

    pub(crate) fn restarts(&self) -> usize {
        self.lock().restarts
    }

    /// Returns from when to when events were read, in nanoseconds since the epoch.
    pub(crate) fn event_reads(&self) -> Vec<(i64, Option<i64>)> {
        self.lock().events.reads.clone()
    }

    /// Calls `refuses` before each write of the state; the write fails if it returns true.
    pub(crate) fn refuse_writes(&self, refuses: impl FnMut() -> bool + Send + 'static) {
        self.lock().refuses_write = Some(Box::new(refuses));
    }

    /// Returns the image that a tag names on this machine.
    pub(crate) fn named(&self, reference: &Reference) -> Option<ImageId> {
        self.lock().by_name(&reference.tagged()).map(|(id, _)| id)
    }

    /// From now on the engine refuses to describe this image.
    pub(crate) fn make_unreadable(&self, id: ImageId) {
        self.lock().unreadable.push(id);
    }

    pub(crate) fn set_engine_down(&self, down: bool) {
        self.lock().engine_down = down;
    }

    pub(crate) fn record(&self, entry: AuditEntry) {
        self.lock().entries.push(entry);
    }

    /// Returns all recorded entries: those written together with the state, and those recorded alone.
    pub(crate) fn entries(&self) -> Vec<AuditEntry> {
        let rows = self.store.scan("outbox/entry/").now_or_never().expect("memory").expect("memory");
        let entry = |(_, row): &(String, Vec<u8>)| serde_json::from_slice(row).expect("the agent wrote it");
        rows.iter().map(entry).chain(self.lock().entries.clone()).collect()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Returns the image IDs of the containers of a compose service, except of those that never started.
    pub(crate) fn running(&self, service: &str) -> Vec<ImageId> {
        let inner = self.lock();
        let started = inner.containers.iter().filter(|c| c.service == service && c.run != Run::Never);
        started.map(|c| c.image.clone()).collect()
    }

    /// Returns the tags and anchors of holds that are left.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let inner = self.lock();
        let tags =
            inner.images.values().flat_map(|image| image.tags.iter()).filter(|t| t.contains("evenkeel.hold"));
        tags.cloned().chain(inner.anchors.keys().cloned()).collect()
    }

    pub(crate) fn projects_brought_up(&self) -> BTreeSet<String> {
        self.lock().brought_up.clone()
    }

    /// Returns the queries for containers.
    pub(crate) fn queries(&self) -> HashSet<Members> {
        self.lock().queries.clone()
    }

    pub(crate) fn forget_queries(&self) {
        self.lock().queries.clear();
    }

    /// Deletes everything in the store.
    pub(crate) async fn lose_state(&self) {
        let rows = self.store.scan("").await.expect("memory");
        self.store.put_all(rows.into_iter().map(|(key, _)| (key, None)).collect()).await.expect("memory");
        self.lock().durable.clear();
    }

    /// Returns the durable state that the next start will read.
    pub(crate) async fn durable(&self, key: &str) -> Durable {
        let row = self.store.get(key).await.expect("memory");
        row.map(|row| serde_json::from_slice(&row).expect("the agent wrote it")).unwrap_or_default()
    }

    /// A point at which the agent may be killed. It then never returns.
    async fn point(&self) {
        tokio::time::sleep(Duration::from_millis(7)).await;
        let dies = {
            let mut inner = self.lock();
            inner.calls += 1;
            inner.crash_at.is_some_and(|at| inner.calls == at)
        };
        if dies {
            self.crash.notify_one();
            std::future::pending::<()>().await;
        }
    }

    fn lock_if_up(&self) -> Result<MutexGuard<'_, Inner>, EngineError> {
        let inner = self.lock();
        if inner.engine_down || inner.is_cut {
            return Err(EngineError::Unavailable("connection refused".into()));
        }
        Ok(inner)
    }

    async fn call<T>(
        &self,
        f: impl FnOnce(&mut Inner, Timestamp) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.point().await;
        let result = {
            let mut inner = self.lock_if_up()?;
            let now = inner.now;
            f(&mut inner, now)
        };
        self.moved.notify_one();
        self.point().await;
        result
    }
}

impl Inner {
    /// Advances all containers and late events to `now`.
    fn advance(&mut self, now: Timestamp) {
        self.now = now;
        for at in 0..self.containers.len() {
            for (when, what) in self.containers[at].advance(now) {
                self.container_event(at, when, what);
            }
            self.note_health(at);
        }
        self.events.flush_late(now);
    }

    fn publish(&mut self, reference: &Reference, name: &str, behaviour: Behaviour) {
        self.registry.insert(reference.tagged(), digest_of(name));
        self.published.insert(digest_of(name), (id_of(name), behaviour));
        self.truth.name(name);
        let service = self.definitions(None).into_iter().find(|service| service.reference == *reference);
        if let Some(service) = service {
            let volume = self.next_volumes.get(&service.name).copied().unwrap_or_default();
            self.volumes.insert(id_of(name), volume);
            self.truth.tags.entry(service.name).or_default().push(name.to_owned());
        }
    }

    /// The number of the volume that an image declares.
    fn volume_of(&self, id: &ImageId) -> u32 {
        self.volumes.get(id).copied().unwrap_or_default()
    }

    fn config_of(&self, id: &ImageId) -> ImageConfig {
        ImageConfig { volumes: [format!("/data/{}", self.volume_of(id))].into(), ..ImageConfig::default() }
    }

    fn tag(&mut self, id: &ImageId, tag: String) -> Result<(), EngineError> {
        if !self.images.contains_key(id) {
            return Err(EngineError::NotFound(format!("No such image: {id}")));
        }
        for image in self.images.values_mut() {
            image.tags.remove(&tag);
        }
        self.images.get_mut(id).expect("looked up above").tags.insert(tag);
        Ok(())
    }

    fn by_name(&self, name: &str) -> Option<(ImageId, FakeImage)> {
        let found = self.images.iter().find(|(id, image)| {
            *id.0 == *name || image.tags.contains(name) || image.digests.contains(name)
        })?;
        Some((found.0.clone(), found.1.clone()))
    }

    fn container(&self, service: &str) -> Option<&FakeContainer> {
        self.containers.iter().find(|c| c.service == service)
    }

    fn new_id(&mut self) -> String {
        self.next_id += 1;
        format!("{:064x}", self.next_id)
    }

    fn violated(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.trace("VIOLATED", &what);
        self.violations.push(what);
    }

    /// Adds a line to the transcript.
    fn trace(&mut self, who: &str, what: &str) {
        let since = self.started.map_or(0, |started| self.now.as_millisecond() - started.as_millisecond());
        self.transcript.push(format!("{:>4}.{:03}  {who:<9} {what}", since / 1000, since % 1000));
    }
}

pub(crate) fn reference(text: &str) -> Reference {
    let parsed = Reference::parse(text).expect("a valid reference");
    let Repository { host, path } = &parsed.repository;
    assert!(!host.is_empty() && !path.is_empty());
    parsed
}
