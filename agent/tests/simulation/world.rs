//! A world in memory: engine, registry and compose with scripted images, in virtual time, in which the agent can
//! be killed before and after every single call.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_agent::model::image::{Digest, ImageId, ImageLabels, Reference, Repository};
use evenkeel_agent::model::{
    ComposeError, Container, ContainerEvent, EngineError, HealthState, HealthTiming, Members, Model, Project,
    RegistryError, SignatureError, SignatureVerdict, State, UpMode, Usage,
};
use evenkeel_agent::ports::{
    Compose, Engine, GateAnswer, GateCommand, GateQuestion, Image, PullProgress, Registry, Signatures, Tags,
    Urgency,
};
use evenkeel_common::clock::Clock;
use evenkeel_common::store::{Change, MemoryStore, Store, StoreError};
use evenkeel_common::wire::AuditEntry;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use jiff::Timestamp;
use tokio::sync::{Notify, watch};

/// How an image behaves once it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Healthy two seconds after its start.
    Good,
    /// Runs, but its health check never passes.
    Unhealthy,
    /// Ends with code 1 after three seconds; nothing restarts it.
    Crash,
    /// Ends with code 1 every two seconds and is restarted by the engine.
    CrashLoop,
    /// Healthy, then unhealthy.
    Flapping,
    /// Killed for its memory use.
    Oom,
    /// Can't be started at all: compose fails.
    BadEntrypoint,
}

#[derive(Debug, Clone)]
struct FakeContainer {
    id: String,
    service: String,
    image: ImageId,
    started: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct FakeImage {
    behaviour: Behaviour,
    digests: BTreeSet<String>,
    tags: BTreeSet<String>,
}

#[derive(Default)]
struct Inner {
    /// Digests with a signature; where it is said, nothing else may be fetched.
    signed: BTreeSet<Digest>,
    only_signed: bool,
    /// What the registry has: `host/path:tag` to digest.
    registry: BTreeMap<String, Digest>,
    published: BTreeMap<Digest, (ImageId, Behaviour)>,
    images: BTreeMap<ImageId, FakeImage>,
    containers: Vec<FakeContainer>,
    anchors: BTreeMap<String, ImageId>,
    /// The compose file: service to image reference.
    services: Vec<(String, Reference)>,
    engine_down: bool,
    /// Images that the engine refuses to describe.
    unreadable: Vec<ImageId>,
    next_id: u64,
    calls: usize,
    crash_at: Option<usize>,
    /// Prunes every image that nothing uses at each look (the worst neighbour there is).
    prune_always: bool,
    violations: Vec<String>,
    pub_ups: usize,
    restarts: usize,
    /// Calls under way that change the project.
    changing: usize,
    /// Projects that compose brought up, and those whose containers were asked for.
    brought_up: BTreeSet<String>,
    asked: HashSet<Members>,
    /// Whether the next write of the state fails.
    refuses_write: Option<Box<dyn FnMut() -> bool + Send>>,
    entries: Vec<AuditEntry>,
}

/// The world. Clones are the same world.
#[derive(Clone)]
pub(crate) struct FakeWorld {
    inner: Arc<Mutex<Inner>>,
    clock: Arc<dyn Clock>,
    store: MemoryStore,
    /// Told when the agent is to be killed.
    pub crash: Arc<Notify>,
}

pub(crate) fn digest_of(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

pub(crate) fn id_of(name: &str) -> ImageId {
    ImageId(Digest::of(format!("config of {name}").as_bytes()).to_string())
}

impl FakeWorld {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { inner: Arc::default(), clock, store: MemoryStore::new(), crash: Arc::default() }
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics while it holds the world")
    }

    /// Publishes an image under a tag; its digest and ID follow from `name`.
    pub(crate) fn push(&self, reference: &Reference, name: &str, behaviour: Behaviour) {
        let mut inner = self.lock();
        inner.registry.insert(reference.tagged(), digest_of(name));
        inner.published.insert(digest_of(name), (id_of(name), behaviour));
    }

    /// From now on nothing may be fetched that is not signed.
    pub(crate) fn demand_signatures(&self) {
        self.lock().only_signed = true;
    }

    /// Signs an image by its name.
    pub(crate) fn sign(&self, name: &str) {
        self.lock().signed.insert(digest_of(name));
    }

    /// Adds a service to the compose file.
    pub(crate) fn compose_service(&self, service: &str, reference: &Reference) {
        self.lock().services.push((service.to_owned(), reference.clone()));
    }

    /// Lets the engine have an image under its tag, as after an earlier pull (or a build, without `digest`).
    pub(crate) fn have(&self, reference: &Reference, name: &str, behaviour: Behaviour, with_digest: bool) {
        let mut inner = self.lock();
        let digests =
            if with_digest { [reference.repository.at(&digest_of(name))].into() } else { BTreeSet::new() };
        let tags = BTreeSet::from([reference.tagged()]);
        for image in inner.images.values_mut() {
            image.tags.remove(&reference.tagged());
        }
        inner.images.insert(id_of(name), FakeImage { behaviour, digests, tags });
    }

    /// Brings the project up outside of the agent.
    pub(crate) fn operator_up(&self) {
        let now = self.clock.now();
        self.lock().up_all(now, false);
    }

    pub(crate) fn crash_at(&self, call: Option<usize>) {
        let mut inner = self.lock();
        inner.calls = 0;
        inner.crash_at = call;
    }

    pub(crate) fn prune_always(&self) {
        self.lock().prune_always = true;
    }

    pub(crate) fn ups(&self) -> usize {
        self.lock().pub_ups
    }

    pub(crate) fn restarts(&self) -> usize {
        self.lock().restarts
    }

    /// Asks before each write of the state whether it fails.
    pub(crate) fn refuse_writes(&self, refuses: impl FnMut() -> bool + Send + 'static) {
        self.lock().refuses_write = Some(Box::new(refuses));
    }

    /// What a tag names on this machine.
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

    /// The engine restarts: everything is stopped and started again, nothing is restarted by policy.
    pub(crate) fn restart_containers_stopped(&self) {
        for container in &mut self.lock().containers {
            container.started = None;
        }
    }

    pub(crate) fn record(&self, entry: AuditEntry) {
        self.lock().entries.push(entry);
    }

    /// What was recorded: durable with the state that it tells of, or by itself.
    pub(crate) fn entries(&self) -> Vec<AuditEntry> {
        let rows = self.store.scan("outbox/entry/").now_or_never().expect("memory").expect("memory");
        let entry = |(_, row): &(String, Vec<u8>)| serde_json::from_slice(row).expect("the agent wrote it");
        rows.iter().map(entry).chain(self.lock().entries.clone()).collect()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Image IDs that the containers of a compose service run on, those that never started left out.
    pub(crate) fn running(&self, service: &str) -> Vec<ImageId> {
        let inner = self.lock();
        let started = inner.containers.iter().filter(|c| c.service == service && c.started.is_some());
        started.map(|c| c.image.clone()).collect()
    }

    /// Everything that is left of holds.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let inner = self.lock();
        let tags =
            inner.images.values().flat_map(|image| image.tags.iter()).filter(|t| t.contains("evenkeel.hold"));
        tags.cloned().chain(inner.anchors.keys().cloned()).collect()
    }

    /// One point at which the agent may be killed. A killed agent never comes back from it.
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

    fn up_or_away(&self) -> Result<MutexGuard<'_, Inner>, EngineError> {
        let inner = self.lock();
        if inner.engine_down {
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
            let now = self.clock.now();
            let mut inner = self.up_or_away()?;
            f(&mut inner, now)
        };
        self.point().await;
        result
    }
}

impl Inner {
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
        let found = self
            .images
            .iter()
            .find(|(id, image)| id.0 == name || image.tags.contains(name) || image.digests.contains(name))?;
        Some((found.0.clone(), found.1.clone()))
    }

    /// `docker image prune -af`
    fn prune(&mut self) {
        let used: BTreeSet<ImageId> =
            self.containers.iter().map(|c| c.image.clone()).chain(self.anchors.values().cloned()).collect();
        self.images.retain(|id, _| used.contains(id));
    }

    fn new_id(&mut self) -> String {
        self.next_id += 1;
        format!("{:064x}", self.next_id)
    }

    /// One service; whether it could be started.
    fn up_one(
        &mut self,
        service: &str,
        reference: &Reference,
        now: Timestamp,
        force: bool,
    ) -> Result<(), String> {
        let (id, image) = self.by_name(&reference.tagged()).ok_or(format!("No such image: {reference}"))?;
        let same = self.containers.iter().position(|c| c.service == service && c.image == id);
        let startable = image.behaviour != Behaviour::BadEntrypoint;
        match same {
            Some(at) if !force => {
                let stopped = self.containers[at].started.is_none();
                if stopped {
                    self.containers[at].started = startable.then_some(now);
                }
            }
            _ => {
                self.containers.retain(|c| c.service != service);
                let started = startable.then_some(now);
                let container =
                    FakeContainer { id: self.new_id(), service: service.to_owned(), image: id, started };
                self.containers.push(container);
            }
        }
        if startable { Ok(()) } else { Err("exec: no such file".to_owned()) }
    }

    fn up_all(&mut self, now: Timestamp, force: bool) {
        for (service, reference) in self.services.clone() {
            self.up_one(&service, &reference, now, force).expect("the operator's images start");
        }
    }

    fn view(&self, container: &FakeContainer, now: Timestamp) -> Container {
        let reference =
            &self.services.iter().find(|(service, _)| *service == container.service).expect("known").1;
        let behaviour = self.images.get(&container.image).map_or(Behaviour::Good, |image| image.behaviour);
        let age = container.started.map_or(0, |started| now.duration_since(started).as_secs());
        let timing = HealthTiming {
            start_period: Duration::ZERO,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            retries: 3,
        };
        let mut view = Container {
            id: container.id.clone(),
            name: format!("p-{}-1", container.service),
            manager: None,
            compose_service: container.service.clone(),
            compose_files: Vec::new(),
            config_image: reference.tagged(),
            image: container.image.clone(),
            state: if container.started.is_some() { State::Running } else { State::Created },
            status: String::new(),
            health: None,
            health_output: String::new(),
            health_timing: None,
            restart_count: 0,
            started_at: container.started,
            finished_at: None,
            stop_signal: 15,
            stop_timeout: Duration::from_secs(10),
            exit_code: 0,
            oom_killed: false,
            error: String::new(),
            restarts_itself: false,
            restarts_with: Vec::new(),
            network_of: None,
            mounts: Vec::new(),
        };
        if container.started.is_none() {
            return view;
        }
        let mut checked = |health| {
            view.health_timing = Some(timing);
            view.health = Some(health);
        };
        match behaviour {
            Behaviour::Good if age >= 2 => checked(HealthState::Healthy),
            Behaviour::Unhealthy if age >= 3 => checked(HealthState::Unhealthy),
            Behaviour::Flapping if age >= 4 => checked(HealthState::Unhealthy),
            Behaviour::Flapping if age >= 1 => checked(HealthState::Healthy),
            Behaviour::Good | Behaviour::Unhealthy | Behaviour::Flapping => checked(HealthState::Starting),
            Behaviour::Crash if age >= 3 => (view.state, view.exit_code) = (State::Exited, 1),
            Behaviour::CrashLoop => {
                view.restart_count = u64::try_from(age / 2).unwrap_or_default();
                view.restarts_itself = true;
            }
            Behaviour::Oom if age >= 2 => {
                (view.state, view.exit_code, view.oom_killed) = (State::Exited, 137, true);
            }
            Behaviour::Crash | Behaviour::Oom | Behaviour::BadEntrypoint => {}
        }
        view
    }
}

#[async_trait]
impl Engine for FakeWorld {
    async fn ping(&self) -> Result<(), EngineError> {
        self.call(|_, _| Ok(())).await
    }

    async fn containers(&self, members: &Members) -> Result<Vec<Container>, EngineError> {
        self.call(|inner, now| {
            inner.asked.insert(members.clone());
            if inner.prune_always {
                inner.prune();
            }
            Ok(inner.containers.iter().map(|c| inner.view(c, now)).collect())
        })
        .await
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        self.call(|inner, _| {
            let Some((id, image)) = inner.by_name(name) else { return Ok(None) };
            if inner.unreadable.contains(&id) {
                return Err(EngineError::Refused("readlink: invalid argument".into()));
            }
            let (repo_digests, labels) = (image.digests.into_iter().collect(), ImageLabels::default());
            Ok(Some(Image { id, repo_digests, size: 1, labels, whole: true }))
        })
        .await
    }

    async fn pull(&self, reference: &Reference, _: &watch::Sender<PullProgress>) -> Result<(), EngineError> {
        self.call(|inner, _| {
            let digest = reference.digest.clone().expect("the agent pulls by digest only");
            if inner.only_signed && !inner.signed.contains(&digest) {
                inner.violations.push(format!("{digest} is fetched without a signature"));
            }
            let (id, behaviour) = inner
                .published
                .get(&digest)
                .cloned()
                .ok_or(EngineError::Refused("manifest unknown".into()))?;
            let empty = FakeImage { behaviour, digests: BTreeSet::new(), tags: BTreeSet::new() };
            inner.images.entry(id).or_insert(empty).digests.insert(reference.repository.at(&digest));
            Ok(())
        })
        .await
    }

    async fn tag(&self, id: &ImageId, reference: &Reference) -> Result<(), EngineError> {
        self.call(|inner, _| inner.tag(id, reference.tagged())).await
    }

    async fn untag(&self, reference: &Reference) -> Result<(), EngineError> {
        self.call(|inner, _| {
            for image in inner.images.values_mut() {
                image.tags.remove(&reference.tagged());
            }
            Ok(())
        })
        .await
    }

    async fn remove_image(&self, id: &ImageId) -> Result<bool, EngineError> {
        self.call(|inner, _| {
            let is_used = inner.containers.iter().any(|container| container.image == *id);
            let is_named = inner.images.get(id).is_some_and(|image| !image.tags.is_empty());
            if is_used || is_named || inner.anchors.values().any(|held| held == id) {
                return Ok(false);
            }
            inner.images.remove(id);
            Ok(true)
        })
        .await
    }

    async fn free_space(&self) -> Result<Option<u64>, EngineError> {
        self.call(|_, _| Ok(Some(1 << 40))).await
    }

    async fn tags(&self, repository: &Repository) -> Result<Vec<Reference>, EngineError> {
        self.call(|inner, _| {
            let names = inner.images.values().flat_map(|image| image.tags.iter());
            let tags = names.filter_map(|name| Reference::parse(name).ok());
            Ok(tags.filter(|tag| tag.repository == *repository).collect())
        })
        .await
    }

    async fn anchor(&self, name: &str, id: &ImageId, _: &str) -> Result<(), EngineError> {
        self.call(|inner, _| {
            if !inner.images.contains_key(id) {
                return Err(EngineError::NotFound("No such image".into()));
            }
            inner.anchors.insert(name.to_owned(), id.clone());
            Ok(())
        })
        .await
    }

    async fn anchors(&self, _: &str) -> Result<Vec<String>, EngineError> {
        self.call(|inner, _| Ok(inner.anchors.keys().cloned().collect())).await
    }

    async fn remove_anchor(&self, name: &str) -> Result<(), EngineError> {
        self.call(|inner, _| {
            inner.anchors.remove(name);
            Ok(())
        })
        .await
    }

    async fn log_tail(&self, _: &str, _: u32) -> Result<String, EngineError> {
        self.call(|_, _| Ok("it went wrong".into())).await
    }

    async fn rename(&self, _: &str, _: &str) -> Result<(), EngineError> {
        Ok(())
    }

    async fn restart(&self, container: &str) -> Result<(), EngineError> {
        if self.deployments().await > 0 {
            self.lock().violations.push("a container is restarted in the middle of a deployment".to_owned());
        }
        let _changing = Changing::begin(self);
        self.call(|inner, now| {
            inner.restarts += 1;
            for found in inner.containers.iter_mut().filter(|c| c.id == container) {
                found.started = Some(now);
            }
            Ok(())
        })
        .await
    }

    async fn stats(&self, _: &str) -> Result<Option<Usage>, EngineError> {
        Ok(None)
    }

    async fn machine_memory(&self) -> Result<u64, EngineError> {
        Ok(1 << 30)
    }

    async fn events(&self, _: i64) -> Result<BoxStream<'static, ContainerEvent>, EngineError> {
        Ok(futures_util::stream::pending().boxed())
    }
}

#[async_trait]
impl Registry for FakeWorld {
    async fn digest(&self, reference: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
        self.point().await;
        let digest = self.lock().registry.get(&reference.tagged()).cloned();
        digest.ok_or_else(|| RegistryError("tag not found".into()))
    }

    async fn confirm(&self, reference: &Reference) -> Result<Digest, RegistryError> {
        self.digest(reference, Urgency::Asked).await
    }

    async fn has(&self, _: &Repository, digest: &Digest) -> Result<bool, RegistryError> {
        self.point().await;
        Ok(self.lock().registry.values().any(|known| known == digest))
    }
}

#[async_trait]
impl Tags for FakeWorld {
    async fn tags(&self, _: &Repository) -> Result<Arc<[String]>, RegistryError> {
        self.point().await;
        Ok(Arc::new([]))
    }
}

#[async_trait]
impl Signatures for FakeWorld {
    async fn verify(
        &self,
        _: &Repository,
        digest: &Digest,
        _: &[PathBuf],
    ) -> Result<SignatureVerdict, SignatureError> {
        self.point().await;
        let is_signed = self.lock().signed.contains(digest);
        Ok(if is_signed { SignatureVerdict::Valid } else { SignatureVerdict::Missing })
    }
}

#[async_trait]
impl GateCommand for FakeWorld {
    async fn ask(&self, _: &[String], _: &GateQuestion) -> GateAnswer {
        self.point().await;
        GateAnswer::Go { reason: String::new() }
    }
}

#[async_trait]
impl Compose for FakeWorld {
    async fn down(&self, _: &Project) -> Result<String, ComposeError> {
        self.point().await;
        self.lock().containers.clear();
        Ok(String::new())
    }

    async fn validate(&self, _: &Project) -> Result<(), ComposeError> {
        Ok(())
    }

    async fn model(&self, _: &Project) -> Result<Model, ComposeError> {
        let services = self.lock().services.clone();
        let element = |reference: &Reference| serde_json::json!({ "image": reference.tagged() });
        let services: serde_json::Map<String, serde_json::Value> =
            services.iter().map(|(name, reference)| (name.clone(), element(reference))).collect();
        Ok(serde_json::from_value(serde_json::json!({ "services": services })).expect("a model"))
    }

    async fn up(&self, project: &Project, up_mode: &UpMode) -> Result<String, ComposeError> {
        if self.deployments().await > 1 {
            self.lock().violations.push("two services deploy at once".to_owned());
        }
        let changing = Changing::begin(self);
        if changing.is_second {
            self.lock().violations.push("compose up while something else changes the project".to_owned());
        }
        self.lock().brought_up.insert(project.name.clone());
        let failed = |cause: &str| ComposeError { cause: cause.to_owned(), output: cause.to_owned() };
        self.point().await;
        let services = {
            let mut inner = self.lock();
            if inner.engine_down {
                return Err(failed("cannot connect"));
            }
            inner.pub_ups += 1;
            inner.services.clone()
        };
        let blocked = self.blocked_now().await;
        let named = up_mode.services();
        for (service, reference) in services {
            if !named.is_empty() && !named.contains(&service) {
                continue;
            }
            let result = {
                let now = self.clock.now();
                let mut inner = self.lock();
                if let Some((_, image)) = inner.by_name(&reference.tagged())
                    && blocked.iter().any(|digest| image.digests.contains(&reference.repository.at(digest)))
                {
                    inner.violations.push(format!("a blocked digest of {reference} was deployed"));
                }
                inner.up_one(&service, &reference, now, *up_mode == UpMode::All)
            };
            // Killed in the middle of compose's own work: some services are done, some are not.
            self.point().await;
            if let Err(cause) = result {
                return Err(failed(&cause));
            }
        }
        Ok(String::new())
    }
}

/// A call that changes the project; over when it is dropped, be it by a kill.
struct Changing {
    fake: FakeWorld,
    /// There is another one.
    is_second: bool,
}

impl Changing {
    fn begin(fake: &FakeWorld) -> Self {
        let mut inner = fake.lock();
        inner.changing += 1;
        Self { is_second: inner.changing > 1, fake: fake.clone() }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.fake.lock().changing -= 1;
    }
}

impl FakeWorld {
    pub(crate) fn projects_brought_up(&self) -> BTreeSet<String> {
        self.lock().brought_up.clone()
    }

    /// Whose containers were asked for.
    pub(crate) fn asked(&self) -> HashSet<Members> {
        self.lock().asked.clone()
    }

    pub(crate) fn forget_asked(&self) {
        self.lock().asked.clear();
    }

    /// Deployments under way, as the journal has them.
    async fn deployments(&self) -> usize {
        let rows = self.store.scan("service/").await.expect("memory");
        rows.iter()
            .filter_map(|(_, row)| serde_json::from_slice::<evenkeel_agent::service::Durable>(row).ok())
            .filter(|durable| durable.deployment.is_some())
            .count()
    }

    /// Digests that the durable state says are blocked.
    async fn blocked_now(&self) -> Vec<Digest> {
        let rows = self.store.scan("service/").await.expect("memory");
        rows.iter()
            .filter_map(|(_, row)| serde_json::from_slice::<evenkeel_agent::service::Durable>(row).ok())
            .flat_map(|durable| durable.blocked.into_values())
            .collect()
    }

    /// Nothing that was written is there any more.
    pub(crate) async fn lose_state(&self) {
        let rows = self.store.scan("").await.expect("memory");
        self.store.put_all(rows.into_iter().map(|(key, _)| (key, None)).collect()).await.expect("memory");
    }

    /// The durable state as the next start will read it.
    pub(crate) async fn durable(&self, key: &str) -> evenkeel_agent::service::Durable {
        let row = self.store.get(key).await.expect("memory");
        row.map(|row| serde_json::from_slice(&row).expect("the agent wrote it")).unwrap_or_default()
    }
}

#[async_trait]
impl Store for FakeWorld {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.point().await;
        let refused = self.lock().refuses_write.as_mut().is_some_and(|refuses| refuses());
        if refused {
            let cause = "No space left on device (os error 28)".to_owned();
            return Err(StoreError { doing: "write", path: "state.redb".into(), cause });
        }
        self.store.put_all(changes).await?;
        self.point().await;
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.get(key).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.store.scan(prefix).await
    }
}

pub(crate) fn reference(text: &str) -> Reference {
    let parsed = Reference::parse(text).expect("a valid reference");
    let Repository { host, path } = &parsed.repository;
    assert!(!host.is_empty() && !path.is_empty());
    parsed
}
