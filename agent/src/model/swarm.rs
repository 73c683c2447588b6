//! A service of a swarm as a manager shows it: its image, its update and its tasks.
//!
//! Facts (measured on Docker 20.10, `dist/docs/engines.md`): a change of the specification takes away the update's
//! status; then it is `updating`, and ends as `completed`, as `paused`, or as `rollback_started` followed by
//! `rollback_completed` or `rollback_paused`. With `rollback_started` the specification is the previous one again, and
//! there is no previous one any more. `completed` says only that every task was replaced: with `failure_action:
//! continue` all of them may be crashing.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::container::{Container, State};
use super::image::{Digest, ImageId, Reference};

/// A service, read from a manager.
#[derive(Debug, Clone, PartialEq)]
pub struct SwarmService {
    /// Its ID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `Version.Index`; every update names the one that it is based on.
    pub version: u64,
    /// Image of the specification, usually `repository:tag@digest`.
    pub image: String,
    /// Image of the specification before; `None` after a rollback, and before the first update.
    pub previous_image: Option<String>,
    /// `TaskTemplate.ForceUpdate`: raising it recreates the tasks.
    pub force_update: u64,
    /// How tasks are spread.
    pub mode: SwarmMode,
    /// How the last update stands; `None` where there was none since the specification changed.
    pub update: Option<UpdateStatus>,
    /// All tasks that the managers remember.
    pub tasks: Vec<Task>,
    /// Host names of the nodes that the managers do not hear of.
    pub nodes_down: BTreeSet<String>,
}

/// How tasks of a service are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwarmMode {
    /// So many tasks.
    Replicated(u64),
    /// One on every node that is suitable.
    Global,
    /// Tasks that are meant to end.
    Job,
}

/// `UpdateStatus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateStatus {
    /// How it stands.
    pub state: UpdateState,
    /// The manager's words.
    pub message: String,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
}

impl UpdateStatus {
    /// Whether a person asked for this rollback, not the update's own `failure_action`.
    pub fn is_manual_rollback(&self) -> bool {
        self.message.contains("manually requested")
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
    /// Tasks are being put back.
    RollbackStarted,
    /// The way back was stopped by its own `failure_action`.
    RollbackPaused,
    /// Every task was put back.
    RollbackCompleted,
    /// A word that is not known.
    Unknown,
}

/// A task: one attempt to run one replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its ID.
    pub id: String,
    /// `service.slot`, or `service.node` for a global service.
    pub name: String,
    /// Host name of its node; empty while it has none.
    pub node: String,
    /// Image of its specification.
    pub image: String,
    /// Whether the managers want it to run (or to be ready to).
    pub is_wanted: bool,
    /// What it is doing.
    pub state: TaskState,
    /// When that began, by the node's clock.
    pub since: Option<Timestamp>,
    /// Why it does not run, or why it ended.
    pub error: String,
    /// Exit code of its container, where there was one.
    pub exit_code: Option<i64>,
    /// Full ID of its container where that is on the engine that was asked.
    pub local_container: Option<String>,
}

/// States of a task, as far as they make a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// Waits for a node.
    Pending,
    /// Has a node, and fetches its image or starts. One with a health check stays here until that passes.
    Preparing,
    /// Runs, and is healthy where it has a health check.
    Running,
    /// Ended by itself with exit code 0.
    Complete,
    /// Ended because the managers wanted it to, or its node is gone.
    Shutdown,
    /// Ended with another exit code, turned unhealthy, or could not be started.
    Failed,
    /// The node could not even try, for example because it can't fetch the image.
    Rejected,
}

impl TaskState {
    /// The word that people see.
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
    /// Whether it ended, or never began, without anybody wanting that.
    pub fn is_failed(&self) -> bool {
        match self.state {
            // A service's task is meant to run for good, so that one that is complete has failed, too.
            TaskState::Failed | TaskState::Rejected | TaskState::Complete => true,
            TaskState::Pending | TaskState::Preparing | TaskState::Running | TaskState::Shutdown => false,
        }
    }

    /// Whether it failed for a reason that says nothing about its image: the node could not fetch it, has another
    /// platform, or lacks something that the service needs.
    pub fn is_failed_by_node(&self) -> bool {
        // An image without a command is rejected as well, on every node.
        let is_image = self.error.to_lowercase().contains("no command specified");
        (self.state == TaskState::Rejected && !is_image) || self.error.contains("No such image")
    }
}

/// Whether two texts name the same image: clients and the agent spell those of Docker Hub differently.
pub fn is_same_image(a: &str, b: &str) -> bool {
    a == b || matches!((Reference::parse(a), Reference::parse(b)), (Ok(a), Ok(b)) if a == b)
}

impl SwarmService {
    /// The image of the specification as a reference; `None` where it is none.
    pub fn reference(&self) -> Option<Reference> {
        Reference::parse(&self.image).ok()
    }

    /// Digest of the specification's image; `None` where it names none.
    pub fn digest(&self) -> Option<Digest> {
        self.reference()?.digest
    }

    /// Tasks that the managers want to run.
    pub fn wanted(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(|task| task.is_wanted)
    }

    /// Tasks that run and are meant to.
    pub fn running(&self) -> impl Iterator<Item = &Task> {
        self.wanted().filter(|task| task.state == TaskState::Running)
    }

    /// How many tasks are meant to run.
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

    /// Whether somebody's update or rollback is under way.
    pub fn is_changing(&self) -> bool {
        let state = self.update.as_ref().map(|update| update.state);
        matches!(state, Some(UpdateState::Updating | UpdateState::RollbackStarted))
    }

    /// Whether the swarm has stopped an update or a rollback halfway.
    pub fn is_paused(&self) -> bool {
        let state = self.update.as_ref().map(|update| update.state);
        matches!(state, Some(UpdateState::Paused | UpdateState::RollbackPaused))
    }

    /// Whether the swarm went back to the previous specification by itself (`failure_action: rollback`): there is no
    /// previous one any more then. After a person's `docker service rollback` it is the one that was left.
    pub fn is_rolled_back_by_swarm(&self) -> bool {
        let is_back = |update: &UpdateStatus| {
            let state = update.state;
            let is_rollback = matches!(
                state,
                UpdateState::RollbackStarted | UpdateState::RollbackPaused | UpdateState::RollbackCompleted
            );
            is_rollback && !update.is_manual_rollback()
        };
        self.previous_image.is_none() && self.update.as_ref().is_some_and(is_back)
    }

    /// Why not as many tasks run as are meant to; `None` while they do.
    pub fn shortage(&self) -> Option<String> {
        let (desired, running) = (self.desired(), self.running().count() as u64);
        if running >= desired && running > 0 {
            return None;
        }
        if desired == 0 {
            return Some("it has no tasks (scaled to 0, or no node is suitable)".to_owned());
        }
        let waits = self.wanted().filter(|task| task.state != TaskState::Running);
        let why = waits.map(|task| {
            let error = if task.error.is_empty() { String::new() } else { format!(": {}", task.error) };
            format!("{} is {}{error}", task.name, task.state.as_str())
        });
        let why: BTreeSet<String> = why.collect();
        let why: Vec<String> = why.into_iter().take(3).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        Some(format!("{running} of {desired} tasks run{why}"))
    }

    /// The tasks as containers, one for each replica: the one that is wanted, or else the last one.
    pub fn containers(&self) -> Vec<Container> {
        let mut shown: Vec<&Task> = Vec::new();
        for task in &self.tasks {
            match shown.iter_mut().find(|other| other.name == task.name) {
                Some(other) if (task.is_wanted, task.since) > (other.is_wanted, other.since) => *other = task,
                Some(_) => {}
                None => shown.push(task),
            }
        }
        // What was scaled away, or ran on a node that is gone, is history.
        shown.retain(|task| task.is_wanted || self.running().count() == 0);
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
        compose_service: String::new(),
        compose_files: Vec::new(),
        config_image: reference.map_or_else(|| task.image.clone(), |reference| reference.tagged()),
        image: digest.as_ref().map_or_else(|| ImageId("".into()), ImageId::from),
        state,
        status: String::new(),
        health: None,
        health_output: String::new(),
        health_timing: None,
        restart_count: 0,
        started_at: task.since.filter(|_| state == State::Running),
        finished_at: task.since.filter(|_| ended),
        stop_signal: 15,
        stop_timeout: std::time::Duration::from_secs(10),
        exit_code: task.exit_code.unwrap_or_default(),
        oom_killed: false,
        error: task.error.clone(),
        restarts_itself: true,
        restarts_with: Vec::new(),
        network_of: None,
        mounts: Vec::new(),
    }
}
