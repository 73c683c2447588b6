//! Decides whether the tasks of a service have converged on an image and stay there.
//!
//! While the swarm is updating, it decides: `update_config` says how many tasks may fail and what happens then. Its report
//! of completion is not trusted: every task must run the image, and must have done so for the grace. Nor does it decide for
//! ever: an engine (20.10) was seen to restart failing tasks without end, in an update that had nothing left to replace.
//!
//! A task that failed while its node or engine was unavailable says nothing about the image. But an update that does not
//! converge after such an outage is given up like any other, since nothing else would ever end it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::Reference;
use crate::model::swarm::{SwarmService, Task, TaskState, UpdateState, is_same_image};
use crate::service::rollout::probation::{Failed, Failure, Reason, TaskFault};

/// How long tasks may take to converge after the swarm has finished, stay in one state before that is told, and be watched by
/// the swarm after the last was replaced, if three times the grace is less.
const PATIENCE: Duration = Duration::from_mins(5);

/// Findings so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Watch {
    /// Since when the same tasks have been running, and no others.
    pub steady_since: Option<Timestamp>,
    /// Those tasks.
    pub steady: BTreeSet<String>,
    /// Tasks that had already failed when the swarm reported completion, so that it tolerated them. `None` before that.
    pub excused: Option<BTreeSet<String>>,
    /// Nodes that were down during the update, as in [`Task::node`]: failures there are no evidence against an image.
    #[serde(default)]
    pub lost: BTreeSet<String>,
    /// Whether the agent's own engine or machine was restarted during the update: the same applies to tasks there.
    #[serde(default)]
    pub engine_away: bool,
    /// Since when the swarm reports completion without an outage.
    #[serde(default)]
    pub done_since: Option<Timestamp>,
    /// Rejected tasks as last seen: the swarm may drop them before it names them.
    #[serde(default)]
    pub rejected: BTreeSet<String>,
    /// Since when the tasks that should run have been in the same states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchanged_since: Option<Timestamp>,
    /// Those tasks with their states.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub states: BTreeMap<String, TaskState>,
    /// Since when nothing is left for the swarm to replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_since: Option<Timestamp>,
}

/// State that the tasks must reach.
#[derive(Debug, Clone, Copy)]
pub struct Goal<'a> {
    /// The image.
    pub image: &'a str,
    /// Tasks that do not count.
    pub known: &'a BTreeSet<String>,
    /// How long they must run.
    pub grace: Duration,
}

/// Verdict on the tasks.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Not converged yet.
    Wait {
        /// Why not, if tasks can't be placed, or do not get on.
        trouble: Option<String>,
    },
    /// All tasks have run the image for the grace.
    Passed,
    /// The image or the nodes failed.
    Failed(Box<Failed>),
    /// The specification names another image.
    Foreign,
}

impl Watch {
    /// Evaluates the current state of the service.
    pub fn look(&mut self, service: &SwarmService, goal: Goal<'_>, now: Timestamp) -> Verdict {
        let lost = self.lost.len();
        self.lost.extend(service.nodes_down.iter().cloned());
        if self.lost.len() > lost {
            self.done_since = None;
        }
        if !is_same_image(&service.image, goal.image) {
            return Verdict::Foreign;
        }
        let states: BTreeMap<String, TaskState> =
            service.wanted().map(|task| (task.id.clone(), task.state)).collect();
        if self.states != states || self.unchanged_since.is_none() {
            (self.states, self.unchanged_since) = (states, Some(now));
        }
        let rejected = failed(service, goal).filter(|task| task.is_failed_by_node());
        let rejected: BTreeSet<String> = rejected.map(|task| task.id.clone()).collect();
        if !rejected.is_empty() {
            self.rejected = rejected;
        }
        let is_replaced = service.wanted().all(|task| goal.is_about(task));
        self.replaced_since = is_replaced.then(|| self.replaced_since.unwrap_or(now));
        let is_overdue = self.replaced_since.is_some_and(|since| now >= since + goal.patience());
        match service.update.as_ref().map(|update| update.state) {
            Some(UpdateState::Paused | UpdateState::RollbackPaused) => {
                Verdict::Failed(Box::new(self.blame(service, goal)))
            }
            Some(UpdateState::Updating | UpdateState::RollbackStarted)
                if is_overdue
                    && self.fails_repeatedly(service, goal)
                    && service.wanted().any(|task| task.state != TaskState::Running) =>
            {
                Verdict::Failed(Box::new(self.blame(service, goal)))
            }
            Some(UpdateState::Updating | UpdateState::RollbackStarted) => {
                self.swarm_is_updating(service, goal, now)
            }
            // The specification was changed a moment ago, and the swarm has not started yet.
            None if !is_replaced => self.swarm_is_updating(service, goal, now),
            _ => self.look_when_done(service, goal, now),
        }
    }

    /// Waits for the swarm, which handles failures itself until it has finished. Resets an earlier completion.
    fn swarm_is_updating(&mut self, service: &SwarmService, goal: Goal<'_>, now: Timestamp) -> Verdict {
        (self.steady_since, self.done_since, self.excused) = (None, None, None);
        Verdict::Wait { trouble: self.trouble(service, goal, now) }
    }

    /// Returns what the update waits for; `None` if its tasks get on.
    fn trouble(&self, service: &SwarmService, goal: Goal<'_>, now: Timestamp) -> Option<String> {
        unplaced(service).or_else(|| {
            let patience = goal.patience();
            if self.unchanged_since.is_none_or(|since| now < since + patience) {
                return None;
            }
            if let Some(hangs) = service.wanted().find(|task| task.state != TaskState::Running) {
                return Some(stuck(hangs, patience));
            }
            // While it updates, the swarm may wait for longer between two tasks (`delay`).
            let is_over = self.done_since.is_some() || service.update.is_none();
            let left = service.wanted().find(|task| is_over && !goal.is_about(task))?;
            Some(left_as_it_was(left, service, patience))
        })
    }

    fn look_when_done(&mut self, service: &SwarmService, goal: Goal<'_>, now: Timestamp) -> Verdict {
        let done_since = *self.done_since.get_or_insert(now);
        if self.excused.is_none() {
            self.excused = Some(failed(service, goal).map(|task| task.id.clone()).collect());
        }
        if failed(service, goal).any(|task| !self.is_lost(task) && !self.is_excused(task)) {
            return Verdict::Failed(Box::new(self.blame(service, goal)));
        }
        if service.desired() == 0 {
            (self.steady_since, self.done_since) = (None, None);
            return Verdict::Wait { trouble: service.shortage() };
        }
        let running: BTreeSet<String> =
            service.running().filter(|task| goal.is_about(task)).map(|task| task.id.clone()).collect();
        let all = running.len() as u64 >= service.desired() && !running.is_empty();
        if !all || !service.wanted().all(|task| running.contains(&task.id)) {
            self.steady_since = None;
            if now >= done_since + goal.patience() && self.is_hopeless(service, goal) {
                return Verdict::Failed(Box::new(self.blame(service, goal)));
            }
            return Verdict::Wait { trouble: self.trouble(service, goal, now) };
        }
        if self.steady != running || self.steady_since.is_none() {
            (self.steady, self.steady_since) = (running, Some(now));
        }
        let passed = self.steady_since.is_some_and(|since| now >= since + goal.grace);
        if passed { Verdict::Passed } else { Verdict::Wait { trouble: None } }
    }

    /// Reports whether tasks have failed and no replacements are starting, or the replacements fail as well. A task that
    /// waits for its restart looks as if it were starting.
    fn is_hopeless(&self, service: &SwarmService, goal: Goal<'_>) -> bool {
        let is_starting = |task: &Task| matches!(task.state, TaskState::Pending | TaskState::Preparing);
        let has_failed = failed(service, goal).next().is_some();
        (has_failed && !service.wanted().any(is_starting)) || self.fails_repeatedly(service, goal)
    }

    /// Reports whether a task and one of its replacements have failed.
    fn fails_repeatedly(&self, service: &SwarmService, goal: Goal<'_>) -> bool {
        let mut names = BTreeSet::new();
        failed(service, goal).filter(|task| !self.is_excused(task)).any(|task| !names.insert(&task.name))
    }

    /// Returns when the tasks pass if nothing changes.
    pub fn deadline(&self, grace: Duration) -> Option<Timestamp> {
        self.steady_since.map(|since| since + grace)
    }

    /// Reports whether the node or engine of a task was unavailable during the update.
    fn is_lost(&self, task: &Task) -> bool {
        self.lost.contains(&task.node) || (self.engine_away && task.local_container.is_some())
    }

    fn is_by_node(&self, task: &Task) -> bool {
        task.is_failed_by_node() || self.is_lost(task)
    }

    fn is_excused(&self, task: &Task) -> bool {
        self.excused.as_ref().is_some_and(|excused| excused.contains(&task.id))
    }

    /// Returns what failed: the task that says most about the image, or else the managers' message.
    pub(in crate::service) fn blame(&self, service: &SwarmService, goal: Goal<'_>) -> Failed {
        let mut tasks: Vec<&Task> = failed(service, goal).filter(|task| !self.is_excused(task)).collect();
        if tasks.is_empty() {
            tasks.extend(failed(service, goal));
        }
        let by_itself = tasks.iter().filter(|task| !self.is_by_node(task)).max_by_key(|task| task.since);
        match by_itself.or_else(|| tasks.iter().max_by_key(|task| task.since)) {
            Some(task) => {
                let fault = match task.state {
                    _ if !task.error.is_empty() => TaskFault::Error(task.error.clone()),
                    TaskState::Complete => TaskFault::Complete,
                    state => TaskFault::State(state),
                };
                blamed(task, fault, self.is_by_node(task))
            }
            None => self.blame_by_message(service, goal),
        }
    }

    /// Returns what failed if no task has. The swarm also counts tasks that it stopped itself while it monitored them, for
    /// example because their node was drained, and may have dropped the task that it names.
    fn blame_by_message(&self, service: &SwarmService, goal: Goal<'_>) -> Failed {
        let message = service.update.as_ref().map(|update| update.message.clone()).unwrap_or_default();
        let is_named = |id: &str| message.split_whitespace().any(|word| word == id);
        let is_stopped = |task: &&Task| {
            is_named(&task.id)
                && goal.is_about(task)
                && task.state == TaskState::Shutdown
                && task.error.is_empty()
        };
        if let Some(task) = service.tasks.iter().find(is_stopped) {
            return blamed(task, TaskFault::Stopped, true);
        }
        let by_node = self.rejected.iter().any(|id| is_named(id));
        let failure = Failure::general(Reason::Swarm { swarm_message: message.clone() });
        Failed { by_node, ..Failed::new(failure, String::new()) }
    }
}

impl Goal<'_> {
    fn patience(&self) -> Duration {
        self.grace.saturating_mul(3).max(PATIENCE)
    }

    /// Reports whether a task counts.
    fn is_about(&self, task: &Task) -> bool {
        is_same_image(&task.image, self.image) && !self.known.contains(&task.id)
    }
}

/// Builds the failure of a task.
fn blamed(task: &Task, fault: TaskFault, by_node: bool) -> Failed {
    let tagged = Reference::parse(&task.image).map(|image| image.tagged()).unwrap_or_default();
    let mut facts = format!("task {} on node {}: {}\n", task.name, task.node, task.state.as_str());
    if let Some(code) = task.exit_code.filter(|code| *code != 0) {
        facts.push_str(&format!("exit code {code}\n"));
    }
    if !task.error.is_empty() {
        facts.push_str(&format!("{}\n", task.error));
    }
    let failure = Failure {
        reason: Reason::Task { task: task.name.clone(), node: task.node.clone(), fault },
        container_id: task.local_container.clone().unwrap_or_default(),
        container: task.name.clone(),
        image: tagged,
        facts,
        ..Failure::default()
    };
    Failed { task: task.id.clone(), by_node, ..Failed::new(failure, String::new()) }
}

fn failed<'a>(service: &'a SwarmService, goal: Goal<'a>) -> impl Iterator<Item = &'a Task> {
    service.tasks.iter().filter(move |task| goal.is_about(task) && task.is_failed())
}

/// Returns why tasks wait for a node; `None` if none does.
fn unplaced(service: &SwarmService) -> Option<String> {
    let waits = service.wanted().find(|task| task.state == TaskState::Pending && !task.error.is_empty())?;
    Some(format!("{} waits for a node: {}", waits.name, waits.error))
}

/// Describes a task that has been in one state for too long. The text stays the same, so that it is told once.
fn stuck(task: &Task, patience: Duration) -> String {
    let place = if task.node.is_empty() { String::new() } else { format!(" on node {}", task.node) };
    let error = if task.error.is_empty() { String::new() } else { format!(": {}", task.error) };
    let minutes = patience.as_secs() / 60;
    let state = task.state.as_str();
    format!("{} is {state}{place}, and has not changed for more than {minutes} min{error}", task.name)
}

/// Describes a task that the swarm has not replaced for too long.
fn left_as_it_was(task: &Task, service: &SwarmService, patience: Duration) -> String {
    let Task { name, node, .. } = task;
    let minutes = patience.as_secs() / 60;
    let why = if service.nodes_paused.contains(node) {
        format!(
            "that node is paused; to let the swarm go on, run `docker node update --availability active {node}`"
        )
    } else {
        format!("`docker service ps {}` and `docker node ls` may show why", service.name)
    };
    format!("the swarm has not replaced {name} on node {node} for more than {minutes} min: {why}")
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
