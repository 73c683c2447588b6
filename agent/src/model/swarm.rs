//! A swarm service as reported by a manager: its image, its update and its tasks.
//!
//! Facts (measured on Docker 20.10, `dist/docs/engines.md`): changing the specification clears the update status. The
//! status then becomes `updating` and ends as `completed`, as `paused`, or as `rollback_started` followed by
//! `rollback_completed` or `rollback_paused`. With `rollback_started` the previous specification becomes the current one,
//! and there is no longer a previous one. `completed` means only that every task was replaced: with `failure_action:
//! continue` all of them may be crashing.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::container::{Container, RestartPolicy, State};
use super::image::{Digest, ImageId, Reference};
use super::machine::is_at_fault;
use super::output::says;

/// How the words of a node begin about a container that it could not start.
const NOT_STARTED: &str = "starting container failed";

/// A service, read from a manager.
#[derive(Debug, Clone, PartialEq)]
pub struct SwarmService {
    /// ID.
    pub id: String,
    /// Name.
    pub name: String,
    /// `Version.Index`; an update must state the version that it is based on.
    pub version: u64,
    /// Image of the specification, usually `repository:tag@digest`.
    pub image: String,
    /// Image of the previous specification; `None` after a rollback and before the first update.
    pub previous_image: Option<String>,
    /// `TaskTemplate.ForceUpdate`: raising it recreates the tasks.
    pub force_update: u64,
    /// Scheduling mode.
    pub mode: SwarmMode,
    /// Status of the last update; `None` if there was none since the specification changed.
    pub update: Option<UpdateStatus>,
    /// All tasks in the managers' task history.
    pub tasks: Vec<Task>,
    /// The nodes that are down, as in [`Task::node`].
    pub nodes_down: BTreeSet<String>,
    /// Those that are paused: the swarm neither places tasks there nor replaces those of global services.
    pub nodes_paused: BTreeSet<String>,
    /// Which tasks that have ended its restart policy replaces.
    pub restarts: Restarts,
    /// Whether it may run on some nodes only (`placement.constraints`).
    pub is_constrained: bool,
}

/// Which ended tasks the swarm replaces soon, by the service's restart policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restarts {
    /// All of them.
    All,
    /// Not those that have ended with code 0, or all of them, but only after a long delay: both are ways to run work at
    /// intervals.
    NotDone,
    /// None: work that something else starts.
    Never,
}

/// Scheduling mode of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwarmMode {
    /// A fixed number of tasks.
    Replicated(u64),
    /// One task on every suitable node.
    Global,
    /// Tasks that run to completion.
    Job,
}

/// `UpdateStatus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateStatus {
    /// State.
    pub state: UpdateState,
    /// Message of the manager.
    pub message: String,
}

impl UpdateStatus {
    /// Reports whether this rollback was requested by an operator, and not caused by the update's `failure_action`.
    pub fn is_manual_rollback(&self) -> bool {
        says(&self.message, "manually requested")
    }

    /// Reports whether this is a rollback, whoever requested it.
    pub fn is_rollback(&self) -> bool {
        matches!(
            self.state,
            UpdateState::RollbackStarted | UpdateState::RollbackPaused | UpdateState::RollbackCompleted
        )
    }
}

/// States of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateState {
    /// Tasks are being replaced.
    Updating,
    /// Stopped by `failure_action: pause`.
    Paused,
    /// Every task was replaced.
    Completed,
    /// Tasks are being rolled back.
    RollbackStarted,
    /// The rollback was stopped by its own `failure_action`.
    RollbackPaused,
    /// Every task was rolled back.
    RollbackCompleted,
    /// An unknown state.
    Unknown,
}

/// A task: one attempt to run one replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// ID.
    pub id: String,
    /// `service.slot`, or `service.node` for a global service.
    pub name: String,
    /// Host name of its node, or the node's ID if other nodes have that host name, too; empty until it is assigned to one.
    pub node: String,
    /// Image of its specification.
    pub image: String,
    /// Whether its desired state is to run (or to be ready to run).
    pub should_run: bool,
    /// Current state.
    pub state: TaskState,
    /// When it entered this state, by the node's clock.
    pub since: Option<Timestamp>,
    /// Why it is not running, or why it ended.
    pub error: String,
    /// Exit code of its container, if there was one.
    pub exit_code: Option<i64>,
    /// Full ID of its container, if that is on the queried engine.
    pub local_container: Option<String>,
}

/// States of a task, as far as the agent distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Waits for a node.
    Pending,
    /// Assigned to a node; pulls its image or starts. A task with a health check stays here until it passes.
    Preparing,
    /// Running, and healthy if it has a health check.
    Running,
    /// Exited by itself with code 0.
    Complete,
    /// Ended by the managers, or because its node is gone.
    Shutdown,
    /// Exited with another code, became unhealthy, or could not be started.
    Failed,
    /// Rejected by its node, for example because it can't pull the image.
    Rejected,
}

impl TaskState {
    /// Returns the name shown to users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Shutdown => "shut down",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }
}

impl Task {
    /// Reports whether the task ended, or never started, although it should be running.
    pub fn is_failed(&self) -> bool {
        match self.state {
            // A task of a service should never exit, so a completed one has failed, too.
            TaskState::Failed | TaskState::Rejected | TaskState::Complete => true,
            TaskState::Pending | TaskState::Preparing | TaskState::Running | TaskState::Shutdown => false,
        }
    }

    /// Reports whether the task failed for a reason unrelated to its image's quality: the node could not pull it, has
    /// another platform, or lacks a resource that the service needs.
    pub fn is_failed_by_node(&self) -> bool {
        // An image without a command is rejected too, but by every node.
        let is_image = says(&self.error, "no command specified");
        // What the node lacks when it starts the container fails the task, as the end of its program does.
        let is_start = self.error.starts_with(NOT_STARTED) && is_at_fault(&self.error);
        (self.state == TaskState::Rejected && !is_image) || says(&self.error, "no such image") || is_start
    }
}

/// Reports whether two texts refer to the same image: other clients and the agent spell Docker Hub images differently.
pub fn is_same_image(a: &str, b: &str) -> bool {
    a == b || matches!((Reference::parse(a), Reference::parse(b)), (Ok(a), Ok(b)) if a == b)
}

impl SwarmService {
    /// Returns the image of the specification as a reference; `None` if it is not a valid one.
    pub fn reference(&self) -> Option<Reference> {
        Reference::parse(&self.image).ok()
    }

    /// Returns the digest of the specification's image; `None` if it has none.
    pub fn digest(&self) -> Option<Digest> {
        self.reference()?.digest
    }

    /// Returns the tasks that should be running.
    pub fn wanted(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(|task| task.should_run)
    }

    /// Returns the running tasks that should be running.
    pub fn running(&self) -> impl Iterator<Item = &Task> {
        self.wanted().filter(|task| task.state == TaskState::Running)
    }

    /// Returns how many tasks should be running.
    pub fn desired(&self) -> u64 {
        match self.mode {
            SwarmMode::Replicated(replicas) => replicas,
            SwarmMode::Global => {
                let names: BTreeSet<&str> = self.wanted().map(|task| task.name.as_str()).collect();
                names.len() as u64
            }
            SwarmMode::Job => 0,
        }
    }

    /// Reports whether its tasks do their work and end, as those of a job: it is one, or none of its tasks is ever restarted,
    /// or one has ended with code 0 and is not started again, or only after a long delay. A task that has been running for an
    /// hour is that of a service, and so is one that ran on when the last of those ended with code 0. If two of its image have
    /// ended so in its place, it may be work that takes long, and has to run for twice the time between them.
    pub fn works_to_its_end(&self, now: Timestamp) -> bool {
        let done = || self.tasks.iter().filter(|task| task.state == TaskState::Complete);
        let (may_end, last_end) = match (self.mode, self.restarts) {
            (SwarmMode::Job, _) => return true,
            (_, Restarts::All) => return false,
            (_, Restarts::NotDone) => (done().next().is_some(), done().filter_map(|task| task.since).max()),
            // The tasks of work on several nodes end one after the other.
            (_, Restarts::Never) => (true, None),
        };
        // Work that takes long ends in its place about as often as that.
        let took = |task: &Task| {
            let is_like = |other: &&Task| (&other.name, &other.image) == (&task.name, &task.image);
            let mut ends: Vec<Timestamp> = done().filter(is_like).filter_map(|other| other.since).collect();
            ends.sort_unstable();
            match ends.as_slice() {
                [.., before, latest] => latest.duration_since(*before) * 2,
                _ => SignedDuration::ZERO,
            }
        };
        let runs_on = |task: &Task| {
            let since = task.since.filter(|_| task.state == TaskState::Running);
            since.is_some_and(|since| {
                let limit = took(task).max(SignedDuration::from_hours(1));
                last_end.is_some_and(|end| since < end) || now.duration_since(since) > limit
            })
        };
        may_end && !self.wanted().any(runs_on)
    }

    /// Reports whether its tasks are meant to end, and the last one that has ended by itself has done its work.
    pub fn has_done_its_work(&self, now: Timestamp) -> bool {
        let by_itself = |task: &&Task| {
            matches!(task.state, TaskState::Complete | TaskState::Failed | TaskState::Rejected)
        };
        let last = self.tasks.iter().filter(by_itself).max_by_key(|task| task.since);
        // The managers do not keep the tasks of a job for ever.
        let is_done = last.map_or(self.mode == SwarmMode::Job, |last| last.state == TaskState::Complete);
        is_done && self.works_to_its_end(now)
    }

    /// Reports whether an update or a rollback is in progress.
    pub fn is_changing(&self) -> bool {
        let state = self.update.as_ref().map(|update| update.state);
        matches!(state, Some(UpdateState::Updating | UpdateState::RollbackStarted))
    }

    /// Reports whether the swarm has paused an update or a rollback.
    pub fn is_paused(&self) -> bool {
        let state = self.update.as_ref().map(|update| update.state);
        matches!(state, Some(UpdateState::Paused | UpdateState::RollbackPaused))
    }

    /// Returns the digest of the same repository that all running tasks are still on, if the swarm has paused the change to
    /// that of the specification.
    pub fn runs_instead(&self) -> Option<Digest> {
        let own = self.reference().filter(|_| self.is_paused())?;
        let mut running = self.running().map(|task| Reference::parse(&task.image).ok());
        let first = running.next()??;
        let is_other = first.repository == own.repository && first.digest != own.digest;
        let is_same = |other: Option<Reference>| {
            other
                .is_some_and(|other| (&other.repository, &other.digest) == (&first.repository, &first.digest))
        };
        if is_other && running.all(is_same) { first.digest } else { None }
    }

    /// Reports whether the swarm rolled back to the previous specification by itself (`failure_action: rollback`). There
    /// is no previous specification then. After a manual `docker service rollback` the replaced one is the previous one.
    pub fn is_rolled_back_by_swarm(&self) -> bool {
        let is_back = |update: &UpdateStatus| update.is_rollback() && !update.is_manual_rollback();
        self.previous_image.is_none() && self.update.as_ref().is_some_and(is_back)
    }

    /// Reports whether the service was rolled back from this digest: on request, or by the swarm because its tasks failed.
    /// The previous specification alone shows nothing: after an update it is the one before.
    pub fn is_rolled_back_from(&self, digest: &Digest) -> bool {
        let has_digest = |image: &str| {
            Reference::parse(image).is_ok_and(|reference| reference.digest.as_ref() == Some(digest))
        };
        if self.is_rolled_back_by_swarm() {
            return self.tasks.iter().any(|task| task.is_failed() && has_digest(&task.image));
        }
        self.update.as_ref().is_some_and(UpdateStatus::is_rollback)
            && self.previous_image.as_deref().is_some_and(has_digest)
    }

    /// Describes why fewer tasks are running than desired; `None` if all are running.
    pub fn shortage(&self) -> Option<String> {
        let (desired, running) = (self.desired(), self.running().count() as u64);
        if running >= desired && running > 0 {
            return None;
        }
        if desired == 0 {
            return Some("it has no tasks (scaled to 0, or no node is suitable)".to_owned());
        }
        let not_running = self.wanted().filter(|task| task.state != TaskState::Running);
        let why = not_running.map(|task| {
            let error = if task.error.is_empty() { String::new() } else { format!(": {}", task.error) };
            format!("{} is {}{error}", task.name, task.state.as_str())
        });
        let why: BTreeSet<String> = why.collect();
        let why: Vec<String> = why.into_iter().take(3).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        Some(format!("{running} of {desired} tasks run{why}"))
    }

    /// Returns the tasks as containers, one per replica: the one that should be running, or else the latest one.
    pub fn containers(&self) -> Vec<Container> {
        let mut shown: Vec<&Task> = Vec::new();
        for task in &self.tasks {
            match shown.iter_mut().find(|other| other.name == task.name) {
                Some(other) if (task.should_run, task.since) > (other.should_run, other.since) => {
                    *other = task;
                }
                Some(_) => {}
                None => shown.push(task),
            }
        }
        // Tasks that were scaled down, or ran on a removed node, are history.
        shown.retain(|task| task.should_run || self.running().count() == 0);
        let mut containers: Vec<Container> = shown.into_iter().map(container).collect();
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        containers
    }
}

fn container(task: &Task) -> Container {
    let reference = Reference::parse(&task.image).ok();
    let digest = reference.as_ref().and_then(|reference| reference.digest.clone());
    let state = match task.state {
        TaskState::Pending | TaskState::Preparing => State::Created,
        TaskState::Running => State::Running,
        TaskState::Complete | TaskState::Shutdown | TaskState::Failed => State::Exited,
        TaskState::Rejected => State::Dead,
    };
    let ended = state == State::Exited;
    Container {
        id: task.local_container.clone().unwrap_or_else(|| task.id.clone()),
        name: task.name.clone(),
        manager: None,
        project: String::new(),
        compose_service: String::new(),
        compose_files: Vec::new(),
        origin: super::project::Origin::default(),
        env_files_of_image: Vec::new(),
        config_image: reference.map_or_else(|| task.image.clone(), |reference| reference.tagged()),
        image: digest.as_ref().map_or_else(|| ImageId("".into()), ImageId::from),
        state,
        health: None,
        health_output: String::new(),
        probed_at: None,
        served: false,
        health_timing: None,
        restart_count: 0,
        started_at: task.since.filter(|_| state == State::Running),
        finished_at: task.since.filter(|_| ended),
        stop_signal: 15,
        stop_timeout: std::time::Duration::from_secs(10),
        exit_code: task.exit_code.unwrap_or_default(),
        oom_killed: false,
        is_stopping: false,
        error: task.error.clone(),
        restart_policy: RestartPolicy::Always,
        cpu_limit: None,
        restarts_with: Vec::new(),
        waits_for: Vec::new(),
        network_of: None,
        lost_networks: Vec::new(),
        mounts: Vec::new(),
    }
}
