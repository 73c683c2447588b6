//! A swarm with one service, whose tasks are replaced one after the other, as swarmkit does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_agent::model::SwarmError;
use evenkeel_agent::model::image::{Digest, Reference};
use evenkeel_agent::model::swarm::{
    Restarts, SwarmMode, SwarmService, Task, TaskState, UpdateState, UpdateStatus,
};
use evenkeel_agent::ports::Swarm;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::FakeWorld;

/// What happens to the tasks of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They run.
    Runs,
    /// They exit this many milliseconds after their start.
    Ends(i64),
    /// The first one that an update or a rollback makes exits this many milliseconds after its start; all others run.
    FirstEnds(i64),
    /// No node can pull the image.
    NotFetched,
}

/// What the swarm does when a task of an update fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureAction {
    Pause,
    Continue,
    Rollback,
}

/// How long each new task is monitored.
const MONITOR: SignedDuration = SignedDuration::from_secs(3);
/// From the creation of a task until it runs.
const START: SignedDuration = SignedDuration::from_millis(500);
/// Between the end of a task and the next one in its slot.
const RESTART: SignedDuration = SignedDuration::from_secs(1);
const STEP: SignedDuration = SignedDuration::from_millis(100);
const REPLICAS: u64 = 2;

#[derive(Debug, Clone, PartialEq)]
struct Spec {
    image: String,
    force: u64,
    /// Stands for the rest of the specification.
    label: u64,
}

#[derive(Debug, Clone)]
struct FakeTask {
    id: u64,
    slot: u64,
    spec: Spec,
    created: Timestamp,
    state: TaskState,
    wanted: bool,
    since: Timestamp,
}

struct State {
    now: Timestamp,
    version: u64,
    spec: Spec,
    previous: Option<Spec>,
    update: Option<UpdateState>,
    is_manual: bool,
    action: FailureAction,
    tasks: Vec<FakeTask>,
    /// The task that was created last by the update.
    watched: Option<u64>,
    fates: BTreeMap<Digest, Fate>,
    next_id: u64,
    /// There is no leader until then.
    leaderless_until: Option<Timestamp>,
    /// How many of the agent's next changes are preceded by a foreign change.
    others: u32,
    /// How many of the agent's next changes are applied, but answered with an error.
    unanswered: u32,
    sets: Vec<String>,
    violations: Vec<String>,
}

/// A swarm. Clones share their state.
#[derive(Clone)]
pub(crate) struct FakeSwarm {
    world: FakeWorld,
    state: Arc<Mutex<State>>,
    /// The row of the agent's service in the store.
    key: String,
}

impl FakeSwarm {
    /// Creates a swarm whose service runs `image`.
    pub(crate) fn new(world: &FakeWorld, key: &str, image: &Reference, action: FailureAction) -> Self {
        let now = world.clock().now();
        let spec = Spec { image: image.to_string(), force: 0, label: 7 };
        let tasks = (1..=REPLICAS).map(|slot| FakeTask {
            id: slot,
            slot,
            spec: spec.clone(),
            created: now,
            state: TaskState::Running,
            wanted: true,
            since: now,
        });
        let state = State {
            now,
            version: 10,
            tasks: tasks.collect(),
            spec,
            previous: None,
            update: None,
            is_manual: false,
            action,
            watched: None,
            fates: BTreeMap::new(),
            next_id: REPLICAS,
            leaderless_until: None,
            others: 0,
            unanswered: 0,
            sets: Vec::new(),
            violations: Vec::new(),
        };
        Self { world: world.clone(), state: Arc::new(Mutex::new(state)), key: key.to_owned() }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let now = self.world.clock().now();
        while state.now + STEP <= now {
            state.now += STEP;
            state.step();
        }
        f(&mut state)
    }

    /// Sets the fate of the tasks of a digest. By default they run.
    pub(crate) fn fate(&self, digest: Digest, fate: Fate) {
        self.with(|state| state.fates.insert(digest, fate));
    }

    /// There is no leader for `span` from now on.
    pub(crate) fn lose_leader(&self, span: SignedDuration) {
        self.with(|state| state.leaderless_until = Some(state.now + span));
    }

    /// The leader changes in the middle of each of the agent's next `times` changes, which it applies before.
    pub(crate) fn lose_answers(&self, times: u32) {
        self.with(|state| state.unanswered = times);
    }

    /// Has another client change the service just before each of the agent's next `times` changes.
    pub(crate) fn interfere(&self, times: u32) {
        self.with(|state| state.others = times);
    }

    /// An operator rolls back to the previous specification.
    pub(crate) fn roll_back_by_hand(&self) {
        self.with(State::go_back);
    }

    /// Returns the image of the specification, those of the running tasks, and the rest of the specification.
    pub(crate) fn runs(&self) -> (String, Vec<String>, u64) {
        self.with(|state| {
            let runs = state.tasks.iter().filter(|task| task.wanted && task.state == TaskState::Running);
            (state.spec.image.clone(), runs.map(|task| task.spec.image.clone()).collect(), state.spec.label)
        })
    }

    /// Returns the images that the agent has set, in order.
    pub(crate) fn sets(&self) -> Vec<String> {
        self.with(|state| state.sets.clone())
    }

    /// Returns the violations so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.with(|state| state.violations.clone())
    }

    async fn call<T>(&self, f: impl FnOnce(&mut State) -> Result<T, SwarmError>) -> Result<T, SwarmError> {
        self.world.point().await;
        let result = self.with(|state| match state.leaderless_until {
            Some(until) if state.now < until => {
                Err(SwarmError::NoLeader("the swarm has no leader".to_owned()))
            }
            _ => f(state),
        });
        self.world.point().await;
        result
    }

    async fn change(
        &self,
        service: &SwarmService,
        change: impl FnOnce(&mut State) -> Spec,
    ) -> Result<(), SwarmError> {
        let images = self.world.durable(&self.key).await.images;
        self.call(|state| {
            if state.others > 0 {
                (state.others, state.version) = (state.others - 1, state.version + 1);
            }
            if state.version != service.version {
                return Err(SwarmError::Conflict);
            }
            let spec = change(state);
            let digest = Reference::parse(&spec.image).ok().and_then(|image| image.digest);
            if digest.is_some_and(|digest| images.blocked().any(|(_, one)| *one == digest)) {
                state.violations.push(format!("{} is set although it is blocked", spec.image));
            }
            state.sets.push(spec.image);
            if state.unanswered > 0 {
                state.unanswered -= 1;
                return Err(SwarmError::NoLeader("the leader has changed".to_owned()));
            }
            Ok(())
        })
        .await
    }
}

impl State {
    fn set(&mut self, spec: Spec) {
        self.previous = Some(std::mem::replace(&mut self.spec, spec));
        (self.update, self.is_manual, self.watched) = (None, false, None);
        self.version += 1;
    }

    fn go_back(&mut self) {
        let Some(previous) = self.previous.take() else { return };
        self.set(previous);
        (self.update, self.is_manual) = (Some(UpdateState::RollbackStarted), true);
    }

    /// Advances the swarm by `STEP`.
    fn step(&mut self) {
        let now = self.now;
        for task in &mut self.tasks {
            let digest = Reference::parse(&task.spec.image).ok().and_then(|image| image.digest);
            let fate = digest.as_ref().and_then(|digest| self.fates.get(digest).copied());
            let fate = fate.unwrap_or(Fate::Runs);
            let age = now.duration_since(task.created);
            let ends_after = match fate {
                Fate::Ends(after) => Some(after),
                Fate::FirstEnds(after) => Some(after).filter(|_| self.watched == Some(task.id)),
                Fate::Runs | Fate::NotFetched => None,
            };
            let next = match (task.state, fate) {
                (TaskState::Preparing, Fate::NotFetched) if age >= START => TaskState::Rejected,
                (TaskState::Preparing, _) if age >= START => TaskState::Running,
                (TaskState::Running, _)
                    if ends_after.is_some_and(|after| age >= START + SignedDuration::from_millis(after)) =>
                {
                    TaskState::Failed
                }
                (state, _) => state,
            };
            if let (TaskState::Failed, Fate::FirstEnds(_), Some(digest)) = (next, fate, digest) {
                self.fates.remove(&digest);
            }
            if next != task.state {
                (task.state, task.since) = (next, now);
                self.version += 1;
            }
        }
        self.restart();
        self.replace();
    }

    /// Returns the newest task of a slot.
    fn newest(&self, slot: u64) -> &FakeTask {
        self.tasks.iter().filter(|task| task.slot == slot).max_by_key(|task| task.id).expect("it had one")
    }

    fn create(&mut self, slot: u64) -> u64 {
        self.next_id += 1;
        let task = FakeTask {
            id: self.next_id,
            slot,
            spec: self.spec.clone(),
            created: self.now,
            state: TaskState::Preparing,
            wanted: true,
            since: self.now,
        };
        for old in self.tasks.iter_mut().filter(|task| task.slot == slot) {
            old.wanted = false;
            if matches!(old.state, TaskState::Preparing | TaskState::Running) {
                (old.state, old.since) = (TaskState::Shutdown, self.now);
            }
        }
        self.tasks.push(task);
        self.version += 1;
        self.next_id
    }

    /// Recreates failed tasks from the current specification.
    fn restart(&mut self) {
        for slot in 1..=REPLICAS {
            let task = self.newest(slot);
            let is_over = matches!(task.state, TaskState::Failed | TaskState::Rejected);
            if is_over && self.now.duration_since(task.since) >= RESTART {
                self.create(slot);
            }
        }
    }

    /// Runs the updater, which replaces the tasks of outdated slots.
    fn replace(&mut self) {
        let dirty = (1..=REPLICAS).find(|slot| self.newest(*slot).spec != self.spec);
        match self.update {
            None if dirty.is_some() => self.update = Some(UpdateState::Updating),
            Some(UpdateState::Updating | UpdateState::RollbackStarted) => {}
            _ => return,
        }
        if let Some(id) = self.watched {
            let task = self.tasks.iter().find(|task| task.id == id).expect("tasks are kept");
            if matches!(task.state, TaskState::Failed | TaskState::Rejected) {
                self.watched = None;
                return self.failed();
            }
            if task.state != TaskState::Running || self.now.duration_since(task.since) < MONITOR {
                return;
            }
        }
        self.watched = dirty.map(|slot| self.create(slot));
        if dirty.is_none() {
            let back = self.update == Some(UpdateState::RollbackStarted);
            self.update = Some(if back { UpdateState::RollbackCompleted } else { UpdateState::Completed });
            self.version += 1;
        }
    }

    fn failed(&mut self) {
        self.version += 1;
        match (self.update, self.action) {
            (Some(UpdateState::RollbackStarted), _) => self.update = Some(UpdateState::RollbackPaused),
            (_, FailureAction::Continue) => {}
            (_, FailureAction::Pause) => self.update = Some(UpdateState::Paused),
            (_, FailureAction::Rollback) => {
                let previous = self.previous.take().expect("an update has a previous specification");
                (self.spec, self.update) = (previous, Some(UpdateState::RollbackStarted));
            }
        }
    }
}

#[async_trait]
impl Swarm for FakeSwarm {
    async fn service(&self, name: &str) -> Result<SwarmService, SwarmError> {
        let name = name.to_owned();
        self.call(|state| {
            let task = |task: &FakeTask| Task {
                id: task.id.to_string(),
                name: format!("{name}.{}", task.slot),
                node: "n1".to_owned(),
                image: task.spec.image.clone(),
                should_run: task.wanted,
                state: task.state,
                since: Some(task.since),
                error: match task.state {
                    TaskState::Failed => "task: non-zero exit (7)".to_owned(),
                    TaskState::Rejected => "No such image".to_owned(),
                    _ => String::new(),
                },
                exit_code: None,
                local_container: None,
            };
            let message = if state.is_manual { "manually requested rollback" } else { "as configured" };
            Ok(SwarmService {
                id: "s1".to_owned(),
                name: name.clone(),
                version: state.version,
                image: state.spec.image.clone(),
                previous_image: state.previous.as_ref().map(|spec| spec.image.clone()),
                force_update: state.spec.force,
                mode: SwarmMode::Replicated(REPLICAS),
                update: state
                    .update
                    .map(|update| UpdateStatus { state: update, message: message.to_owned() }),
                tasks: state.tasks.iter().map(task).collect(),
                nodes_down: BTreeSet::new(),
                nodes_paused: BTreeSet::new(),
                restarts: Restarts::All,
                is_constrained: false,
            })
        })
        .await
    }

    async fn admits(&self, _: &SwarmService, _: &Reference) -> Result<(), SwarmError> {
        self.call(|_| Ok(())).await
    }

    async fn set_image(&self, service: &SwarmService, image: &str, force: bool) -> Result<(), SwarmError> {
        self.change(service, |state| {
            let force = state.spec.force + u64::from(force);
            let spec = Spec { image: image.to_owned(), force, ..state.spec.clone() };
            state.set(spec.clone());
            spec
        })
        .await
    }

    async fn roll_back(&self, service: &SwarmService) -> Result<(), SwarmError> {
        self.change(service, |state| {
            state.go_back();
            state.spec.clone()
        })
        .await
    }

    async fn task_log(&self, _: &str, _: u32) -> Result<String, SwarmError> {
        self.call(|_| Ok("it went wrong".to_owned())).await
    }

    async fn health_check(&self, _: &str) -> Result<String, SwarmError> {
        self.call(|_| Ok(String::new())).await
    }
}

/// The maximum duration of a run with a swarm: an update, a rollback, and both health graces.
pub(crate) const MAX_RUN: Duration = Duration::from_secs(100);
