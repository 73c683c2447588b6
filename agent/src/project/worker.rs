//! One task per service: feeds the decision core, writes down what it decides, then does it.
//!
//! The order is the point. A decision is made on a draft; the draft's state, with the entries in it, is written in one
//! go; only then it replaces the service, its entries are recorded, and its action begins. A write that fails changes
//! nothing and loses nothing: the draft is dropped, and what was to be decided on waits. A worker that is killed
//! anywhere begins again from what was made durable.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::store::{Store, StoreError};
use evenkeel_common::wire::AuditEntry;
use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::ServiceConfig;
use crate::model::image::{Digest, Reference};
use crate::ports::{Compose, Engine, PullProgress, Registry, Urgency};
use crate::service::action::Action;
use crate::service::boot::{Boot, StartReason};
use crate::service::input::{CheckFault, Input, Observation, ServiceReply, ServiceRequest};
use crate::service::outcome::{DeployOutcome, Ended};
use crate::service::status::Snapshot;
use crate::service::{Durable, Service};

use super::cycle::Cycle;
use super::observe::Check;
use super::perform;

/// Where entries go.
pub type Record = Arc<dyn Fn(AuditEntry) + Send + Sync>;

/// Where it is told how a deployment ended and how long it took.
pub type Deployed = Arc<dyn Fn(DeployOutcome, Duration) + Send + Sync>;

/// What is blocked in a compose project by services other than the named one.
pub type BlockedElsewhere = Arc<dyn Fn(&str, &str) -> Vec<(Reference, Digest)> + Send + Sync>;

/// Everything that a worker touches.
#[derive(Clone)]
pub struct World {
    /// Container engine.
    pub engine: Arc<dyn Engine>,
    /// Image registries.
    pub registry: Arc<dyn Registry>,
    /// Compose.
    pub compose: Arc<dyn Compose>,
    /// Durable state.
    pub store: Arc<dyn Store>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Audit.
    pub record: Record,
    /// Whom to tell about deployments that ended.
    pub deployed: Deployed,
    /// Compose projects, one deployment at a time each.
    pub projects: Projects,
    /// Boots of the machine.
    pub boot: Boot,
}

/// One lock per compose project (DECISIONS 4: one deploy at a time per project).
#[derive(Clone, Default)]
pub struct Projects(Arc<Mutex<HashMap<String, ProjectLock>>>);

impl Projects {
    fn lock(&self, project: &str) -> ProjectLock {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.entry(project.to_owned()).or_default().clone()
    }
}

/// The lock of one project.
#[derive(Clone, Default)]
struct ProjectLock {
    lock: Arc<AsyncMutex<()>>,
    /// Changes whenever it is taken or given back; odd while it is taken.
    turn: Arc<watch::Sender<u64>>,
}

impl ProjectLock {
    fn try_take(&self) -> Option<Lease> {
        self.lock.clone().try_lock_owned().ok().map(|guard| Lease::new(guard, self.turn.clone()))
    }

    async fn take(self) -> Lease {
        Lease::new(self.lock.lock_owned().await, self.turn)
    }

    fn turn(&self) -> u64 {
        *self.turn.borrow()
    }

    /// Until nobody has it.
    async fn freed(self) {
        // Its sender is right here.
        let _ = self.turn.subscribe().wait_for(|turn| turn % 2 == 0).await;
    }
}

/// The right to work on a compose project.
struct Lease {
    _guard: OwnedMutexGuard<()>,
    turn: Arc<watch::Sender<u64>>,
}

impl Lease {
    fn new(guard: OwnedMutexGuard<()>, turn: Arc<watch::Sender<u64>>) -> Self {
        turn.send_modify(|turn| *turn += 1);
        Self { _guard: guard, turn }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.turn.send_modify(|turn| *turn += 1);
    }
}

/// What a worker is told.
pub enum Command {
    /// A person asks. An error means that the answer could not be made durable, and that nothing was changed.
    Request(ServiceRequest, oneshot::Sender<Result<ServiceReply, StoreError>>),
    /// A cycle asks for a check; it is told how that ended. The sender is dropped when there is nothing to check.
    Check(Arc<Cycle>, oneshot::Sender<CheckEnd>),
    /// Look at the containers.
    Inspect,
    /// Something happened.
    Input(Input),
    /// The service is configured no more: end as soon as no deployment is under way. Answers whether one is.
    Retire(oneshot::Sender<bool>),
    /// Whoever watches over the program wants to know whether the worker still works.
    Ping(oneshot::Sender<()>),
}

/// How a check ended: the world was read, or why it could not be.
pub type CheckEnd = Result<(), CheckFault>;

/// The door to a worker.
#[derive(Clone)]
pub struct Handle {
    /// The service's configuration.
    pub config: Arc<ServiceConfig>,
    /// Where commands go.
    pub inbox: mpsc::UnboundedSender<Command>,
    /// What it shows.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
}

/// Key of a service's state in the store.
pub fn state_key(service: &str) -> String {
    format!("service/{service}")
}

/// What ended inside a worker.
enum Done {
    Input(Input),
    /// A part of a check, and how it goes on.
    Part(Input, BoxFuture<'static, Done>),
    Lease(String, Lease),
    /// The others are done with its project.
    Free,
}

/// Time that a step under way gets when the program stops; what is longer is left to the journal.
const STOP_GRACE: Duration = Duration::from_secs(20);
/// Wall clock and steady time that drift apart by more than this: the clock was set.
const CLOCK_JUMP: SignedDuration = SignedDuration::from_secs(2);
/// Time between two tries to write the state down.
const SAVE_RETRY: Duration = Duration::from_secs(2);
/// Events that wait while the state can't be written; beyond that the oldest are lost, as in a gap of the stream.
const MAX_HELD: usize = 256;
/// How long what does not depend on a registry waits for it.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(2);
/// How often a pull's progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// The task of one service.
pub struct Worker {
    service: Service,
    world: World,
    blocked_elsewhere: BlockedElsewhere,
    inbox: mpsc::UnboundedReceiver<Command>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    pulled: Arc<watch::Sender<PullProgress>>,
    /// Its project's name, and the right to work on it.
    lease: Option<(String, Lease)>,
    waits_for_lease: bool,
    waits_for_others: bool,
    retires: bool,
    cycle: Option<Arc<Cycle>>,
    waiting: Vec<oneshot::Sender<CheckEnd>>,
    saved: Durable,
    /// The last write failed: why, and when the next one is tried.
    failed: Option<(StoreError, Instant)>,
    /// Facts that could not be decided on yet, because what follows from them could not be written.
    held: VecDeque<Input>,
    /// Entries of the service's first state, until that is written.
    said_first: Vec<AuditEntry>,
    /// Wall clock and steady time when they were read last.
    last_seen: (Timestamp, Instant),
}

impl Worker {
    /// A worker as it was left (`durable`), and the door to it. An unfinished deployment has its project at once,
    /// before any other service can take it.
    pub fn new(
        config: Arc<ServiceConfig>,
        durable: Durable,
        world: World,
        blocked_elsewhere: BlockedElsewhere,
        reason_to_start: StartReason,
    ) -> (Self, Handle) {
        let saved = durable.clone();
        let last_seen = (world.clock.now(), Instant::now());
        let (service, said_first) =
            Service::new(config.clone(), durable, world.boot.clone(), reason_to_start, world.clock.now());
        let (sender, inbox) = mpsc::unbounded_channel();
        let (snapshot, shown) = watch::channel(Arc::new(service.snapshot(PullProgress::default())));
        let mut worker = Self {
            service,
            world,
            blocked_elsewhere,
            inbox,
            snapshot,
            running: FuturesUnordered::new(),
            pulled: Arc::new(watch::Sender::new(PullProgress::default())),
            lease: None,
            waits_for_lease: false,
            waits_for_others: false,
            retires: false,
            cycle: None,
            waiting: Vec::new(),
            saved,
            failed: None,
            held: VecDeque::new(),
            said_first,
            last_seen,
        };
        worker.take_lease();
        (worker, Handle { config, inbox: sender, snapshot: shown })
    }

    /// Works until `stop`, then lets a step under way end.
    pub async fn run(&mut self, stop: CancellationToken) {
        loop {
            if self.retires && self.service.durable().deployment.is_none() {
                break;
            }
            self.act().await;
            self.publish();
            let wake = self.wake_in();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(done) = self.running.next(), if !self.running.is_empty() => self.done(done).await,
                command = self.inbox.recv(), if !self.is_let_go() => match command {
                    Some(command) => self.command(command).await,
                    None if self.retires => {}
                    None => break,
                },
                () = sleep_for(wake), if wake.is_some() => {}
            }
        }
        // Whoever still asks is told at once that nobody answers any more.
        self.inbox.close();
        while self.inbox.try_recv().is_ok() {}
        let last_step = async {
            while self.service.is_stepping() {
                let Some(done) = self.running.next().await else { break };
                self.done(done).await;
            }
        };
        if tokio::time::timeout(STOP_GRACE, last_step).await.is_err() {
            tracing::warn!("a step of the deployment is still under way; the next start takes it up");
        }
        let mut draft = self.service.clone();
        draft.on_shutdown();
        if let Err(error) = self.commit(draft, Vec::new()).await {
            tracing::error!(service = self.service.config().name, %error, "the last state could not be written");
        }
    }

    /// Whether nobody is left who could tell it anything.
    fn is_let_go(&self) -> bool {
        self.retires && self.inbox.is_closed()
    }

    /// Begins everything that is to be done now.
    async fn act(&mut self) {
        if self.catch_up().await.is_err() {
            return;
        }
        loop {
            self.take_lease();
            let (now, leased) = (self.now(), self.is_leased());
            let mut draft = self.service.clone();
            let action = draft.next(now, leased);
            if self.commit(draft, Vec::new()).await.is_err() {
                return;
            }
            let Some(action) = action else { return };
            let work = self.work(action);
            self.running.push(work);
        }
    }

    fn work(&mut self, action: Action) -> BoxFuture<'static, Done> {
        let world = self.world.clone();
        match action {
            Action::Check { generation, asked, images, files, settled, published } => {
                let cycle = self.cycle.take();
                let cycle = cycle.unwrap_or_else(|| Cycle::new(world.registry.clone(), Urgency::Asked));
                let config = Arc::new(self.service.config().clone());
                let blocked_elsewhere = self.blocked_elsewhere.clone();
                let check =
                    Check { world, cycle, config, blocked_elsewhere, images, files, settled, published };
                async move {
                    let result = check.observe(Some(REGISTRY_PATIENCE)).await;
                    let is_part = result.as_ref().is_ok_and(Observation::is_pending);
                    let first = Input::Checked { generation, asked, result };
                    if !is_part {
                        return Done::Input(first);
                    }
                    let rest = async move {
                        let result = check.observe(None).await;
                        Done::Input(Input::Checked { generation, asked, result })
                    };
                    Done::Part(first, rest.boxed())
                }
                .boxed()
            }
            Action::Inspect { generation, members } => {
                let project = self.service.project_name();
                // Its own lease outlasts its looks.
                let others = project.filter(|_| self.lease.is_none()).map(|name| world.projects.lock(name));
                let turn = others.as_ref().map(ProjectLock::turn);
                async move {
                    let result = world.engine.containers(&members).await;
                    let meddled = turn.is_some_and(|turn| turn % 2 == 1)
                        || turn != others.as_ref().map(ProjectLock::turn);
                    Done::Input(Input::Inspected { generation, meddled, result })
                }
                .boxed()
            }
            Action::Restart { name, id } => async move {
                let result = world.engine.restart(&id).await;
                Done::Input(Input::Restarted { name, result })
            }
            .boxed(),
            Action::Step(step) => {
                let progress = self.pulled.clone();
                async move {
                    let (engine, compose) = (world.engine.as_ref(), world.compose.as_ref());
                    let result = perform::perform(engine, compose, step, &progress).await;
                    Done::Input(Input::Stepped(result))
                }
                .boxed()
            }
        }
    }

    async fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Request(ask, reply) => {
                let mut draft = self.service.clone();
                let (answer, entries) = draft.ask(ask, now);
                let answer = self.commit(draft, entries).await.map(|()| answer);
                self.publish();
                // A client that has gone away does not need its answer.
                let _ = reply.send(answer);
            }
            Command::Check(cycle, done) => {
                if cycle.is_by_person() {
                    let mut draft = self.service.clone();
                    draft.asked_with_all();
                    // Where it can't be written now, the record says why, and nothing could be done about it anyway.
                    let _ = self.commit(draft, Vec::new()).await;
                }
                if self.service.check() {
                    self.cycle = Some(cycle);
                    self.waiting.push(done);
                } else {
                    self.service.look(now);
                }
            }
            Command::Inspect => self.service.look(now),
            Command::Input(input) => self.take_in(input).await,
            Command::Retire(reply) => {
                self.retires = true;
                // Whoever does not wait for the answer learns of the end.
                let _ = reply.send(self.service.durable().deployment.is_some());
            }
            Command::Ping(reply) => {
                let _ = reply.send(());
            }
        }
    }

    async fn done(&mut self, done: Done) {
        match done {
            Done::Lease(project, lease) => {
                self.lease = Some((project, lease));
                self.waits_for_lease = false;
                let now = self.now();
                self.service.plan_anew(now);
            }
            Done::Free => {
                self.waits_for_others = false;
                let now = self.now();
                self.service.look(now);
            }
            Done::Part(input, rest) => {
                self.running.push(rest);
                self.take_in(input).await;
            }
            Done::Input(input) => {
                if let Input::Inspected { meddled: true, .. } = &input {
                    self.look_when_free();
                }
                let checked = match &input {
                    Input::Checked { result, .. } => Some(check_end(result)),
                    _ => None,
                };
                if let Some(Err(CheckFault::Failed(text) | CheckFault::EngineAway(text))) = &checked {
                    tracing::debug!(service = self.service.config().name, "check failed: {text}");
                }
                self.take_in(input).await;
                if let Some(end) = checked {
                    self.publish();
                    for waiting in self.waiting.drain(..) {
                        // A cycle that has ended needs no answer.
                        let _ = waiting.send(end.clone());
                    }
                }
            }
        }
    }

    /// Decides on a fact; one that can't be decided on now waits for its turn.
    async fn take_in(&mut self, input: Input) {
        if self.held.is_empty() {
            let now = self.now();
            let mut draft = self.service.clone();
            let entries = draft.apply(input.clone(), now);
            if self.commit(draft, entries).await.is_ok() {
                return;
            }
        }
        self.held.push_back(input.held());
        if self.held.len() > MAX_HELD
            && let Some(oldest) = self.held.iter().position(|input| !input.ends_an_action())
        {
            self.held.remove(oldest);
        }
    }

    /// Writes what could not be written before, and decides on what had to wait for that.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        if self.held.is_empty() && self.said_first.is_empty() {
            return Ok(());
        }
        self.commit(self.service.clone(), Vec::new()).await?;
        while let Some(input) = self.held.front().cloned() {
            if let Some((error, _)) = self.waits_to_write() {
                return Err(error.clone());
            }
            let now = self.now();
            let mut draft = self.service.clone();
            let entries = draft.apply(input, now);
            self.commit(draft, entries).await?;
            self.held.pop_front();
        }
        Ok(())
    }

    /// Makes a decision durable, then makes it the service's state, then tells of it.
    async fn commit(&mut self, mut draft: Service, mut entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        entries.splice(..0, draft.take_unsaid());
        let ended = draft.take_ended();
        self.save(draft.durable()).await?;
        self.service = draft;
        for entry in std::mem::take(&mut self.said_first).into_iter().chain(entries) {
            (self.world.record)(entry);
        }
        if let Some(Ended { outcome, begun }) = ended {
            let took = self.now().duration_since(begun);
            (self.world.deployed)(outcome, Duration::try_from(took).unwrap_or_default());
        }
        Ok(())
    }

    /// The last write failed, and it is not yet time for the next one.
    fn waits_to_write(&self) -> Option<&(StoreError, Instant)> {
        self.failed.as_ref().filter(|(_, retry)| Instant::now() < *retry)
    }

    /// Writes a state if it differs from what was written last. After a failure the next try waits a moment.
    async fn save(&mut self, durable: &Durable) -> Result<(), StoreError> {
        if *durable == self.saved {
            return Ok(());
        }
        if let Some((error, _)) = self.waits_to_write() {
            return Err(error.clone());
        }
        let name = &self.service.config().name;
        let value = serde_json::to_vec(durable).expect("the state has only text keys and finite numbers");
        if let Err(error) = self.world.store.put(&state_key(name), value).await {
            tracing::error!(service = name, %error, "nothing is deployed or healed until the state can be written");
            self.failed = Some((error.clone(), Instant::now() + SAVE_RETRY));
            return Err(error);
        }
        let step = |durable: &Durable| durable.deployment.as_ref().map(|d| (d.phase.name(), d.attempt));
        if step(durable) != step(&self.saved) {
            let step = durable.deployment.as_ref().map_or("done", |d| d.phase.name());
            tracing::info!(service = name, step, "journaled");
        }
        self.failed = None;
        self.saved = durable.clone();
        Ok(())
    }

    /// The time now. A clock that was set since the last time moves everything that is waited for.
    fn now(&mut self) -> Timestamp {
        let (wall, steady) = (self.world.clock.now(), Instant::now());
        let passed = SignedDuration::try_from(steady - self.last_seen.1).unwrap_or(SignedDuration::MAX);
        let jump = wall.duration_since(self.last_seen.0).saturating_sub(passed);
        self.last_seen = (wall, steady);
        if jump.abs() > CLOCK_JUMP {
            tracing::warn!(
                service = self.service.config().name,
                seconds = jump.as_secs(),
                "the clock was set"
            );
            self.service.shift(jump);
        }
        wall
    }

    /// Holds the project exactly as long as it is needed.
    fn take_lease(&mut self) {
        let now = self.now();
        if !self.service.wants_project(now) {
            self.lease = None;
            return;
        }
        let Some(project) = self.service.project_name().map(str::to_owned) else { return };
        // One whose project was changed in the file goes on to it when it is done with the one before.
        self.lease.take_if(|(leased, _)| *leased != project);
        if self.lease.is_some() || self.waits_for_lease {
            return;
        }
        let lock = self.world.projects.lock(&project);
        if let Some(lease) = lock.try_take() {
            self.lease = Some((project, lease));
        } else {
            self.waits_for_lease = true;
            self.running.push(async move { Done::Lease(project, lock.take().await) }.boxed());
        }
    }

    /// What was seen while somebody else worked on the project says nothing about the health of its containers.
    fn look_when_free(&mut self) {
        let Some(project) = self.service.project_name() else { return };
        if self.waits_for_others {
            return;
        }
        let lock = self.world.projects.lock(project);
        self.waits_for_others = true;
        self.running.push(lock.freed().map(|()| Done::Free).boxed());
    }

    /// Whether nobody else works on its project. A service without one has only itself.
    fn is_leased(&self) -> bool {
        self.lease.is_some() || self.service.project_name().is_none()
    }

    fn publish(&self) {
        let shown = self.service.snapshot(*self.pulled.borrow());
        self.snapshot.send_if_modified(|old| {
            let changed = **old != shown;
            if changed {
                *old = Arc::new(shown);
            }
            changed
        });
    }

    fn wake_in(&mut self) -> Option<Duration> {
        if let Some((_, retry)) = self.waits_to_write() {
            return Some(retry.saturating_duration_since(Instant::now()));
        }
        let (now, leased) = (self.now(), self.is_leased());
        let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
        let due = self.service.wake_at(now, leased).map(until);
        if self.service.is_pulling() { Some(due.unwrap_or(PROGRESS_EVERY).min(PROGRESS_EVERY)) } else { due }
    }
}

fn check_end(result: &Result<Observation, CheckFault>) -> CheckEnd {
    let seen = result.as_ref().map_err(Clone::clone)?;
    seen.registry_fault().map_or(Ok(()), |text| Err(CheckFault::Failed(text)))
}

async fn sleep_for(time: Option<Duration>) {
    tokio::time::sleep(time.unwrap_or_default()).await;
}
