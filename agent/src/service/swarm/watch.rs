//! Whether the tasks of a service have come to an image, and stay there.
//!
//! While the swarm is at work, it decides: `update_config` says how many tasks may fail, and what follows. When it says
//! that it is done, its word is not taken: every task must run the image, and must have done so for the grace.
//!
//! A task that failed where a node, or the engine, was away says nothing about the image. But what comes to nothing after
//! such an outage is given up like anything else, since nobody else would ever end it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::Reference;
use crate::model::swarm::{SwarmService, Task, TaskState, UpdateState, is_same_image};
use crate::service::rollout::probation::Failure;

use super::plan::SwarmFailed;

/// How long tasks may come to nothing after the swarm was done, if three times the grace is less.
const PATIENCE: Duration = Duration::from_mins(5);

/// What was seen so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Watch {
    /// Since when the same tasks run, and nothing else.
    pub steady_since: Option<Timestamp>,
    /// Those tasks.
    pub steady: BTreeSet<String>,
    /// Tasks that had failed when the swarm said that it was done: its business. `None` before that.
    pub excused: Option<BTreeSet<String>>,
    /// Host names of nodes that were down meanwhile: what fails there is no evidence against an image.
    #[serde(default)]
    pub lost: BTreeSet<String>,
    /// The agent's own engine, or its machine, was away meanwhile: the same for what runs there.
    #[serde(default)]
    pub engine_away: bool,
    /// Since when the swarm says that it is done, and nothing was away.
    #[serde(default)]
    pub done_since: Option<Timestamp>,
    /// Tasks that no node could run, as they were seen last: the swarm may forget them before it names them.
    #[serde(default)]
    pub rejected: BTreeSet<String>,
}

/// What the tasks must come to.
#[derive(Debug, Clone, Copy)]
pub struct Goal<'a> {
    /// The image.
    pub image: &'a str,
    /// Tasks that do not count.
    pub known: &'a BTreeSet<String>,
    /// How long they must run.
    pub grace: Duration,
}

/// How it stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Not yet.
    Wait {
        /// Why not, where tasks can't be placed.
        trouble: Option<String>,
    },
    /// All tasks run the image, and have for the grace.
    Passed,
    /// The image, or the nodes, have failed.
    Failed(Box<SwarmFailed>),
    /// The specification names another image.
    Foreign,
}

impl Watch {
    /// Takes in how the service is now.
    pub fn look(&mut self, service: &SwarmService, goal: Goal<'_>, now: Timestamp) -> Verdict {
        let lost = self.lost.len();
        self.lost.extend(service.nodes_down.iter().cloned());
        if self.lost.len() > lost {
            self.done_since = None;
        }
        if !is_same_image(&service.image, goal.image) {
            return Verdict::Foreign;
        }
        let rejected = failed(service, goal).filter(|task| task.is_failed_by_node());
        let rejected: BTreeSet<String> = rejected.map(|task| task.id.clone()).collect();
        if !rejected.is_empty() {
            self.rejected = rejected;
        }
        match service.update.as_ref().map(|update| update.state) {
            Some(UpdateState::Paused | UpdateState::RollbackPaused) => {
                Verdict::Failed(Box::new(self.blame(service, goal)))
            }
            Some(UpdateState::Updating | UpdateState::RollbackStarted) => self.swarm_works(service),
            // The specification was changed a moment ago, and the swarm is about to begin.
            None if !service.wanted().all(|task| goal.is_about(task)) => self.swarm_works(service),
            _ => self.look_when_done(service, goal, now),
        }
    }

    /// What fails now is the swarm's business, and it is not done, whatever it was before.
    fn swarm_works(&mut self, service: &SwarmService) -> Verdict {
        (self.steady_since, self.done_since, self.excused) = (None, None, None);
        Verdict::Wait { trouble: unplaced(service) }
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
            let patience = goal.grace.saturating_mul(3).max(PATIENCE);
            if now >= done_since + patience && self.is_hopeless(service, goal) {
                return Verdict::Failed(Box::new(self.blame(service, goal)));
            }
            return Verdict::Wait { trouble: unplaced(service) };
        }
        if self.steady != running || self.steady_since.is_none() {
            (self.steady, self.steady_since) = (running, Some(now));
        }
        let passed = self.steady_since.is_some_and(|since| now >= since + goal.grace);
        if passed { Verdict::Passed } else { Verdict::Wait { trouble: None } }
    }

    /// Whether tasks have failed and no others are on their way, or those fail as well: while a task waits for its
    /// restart it looks as if it was on its way.
    fn is_hopeless(&self, service: &SwarmService, goal: Goal<'_>) -> bool {
        let mut times: BTreeMap<&str, u32> = BTreeMap::new();
        for task in failed(service, goal).filter(|task| !self.is_excused(task)) {
            *times.entry(&task.name).or_default() += 1;
        }
        let is_coming = |task: &Task| matches!(task.state, TaskState::Pending | TaskState::Preparing);
        let has_failed = failed(service, goal).next().is_some();
        (has_failed && !service.wanted().any(is_coming)) || times.values().any(|times| *times > 1)
    }

    /// When it is over if nothing changes.
    pub fn deadline(&self, grace: Duration) -> Option<Timestamp> {
        self.steady_since.map(|since| since + grace)
    }

    /// Whether a task ran where a node, or its engine, was away meanwhile.
    fn is_lost(&self, task: &Task) -> bool {
        self.lost.contains(&task.node) || (self.engine_away && task.local_container.is_some())
    }

    fn is_by_node(&self, task: &Task) -> bool {
        task.is_failed_by_node() || self.is_lost(task)
    }

    fn is_excused(&self, task: &Task) -> bool {
        self.excused.as_ref().is_some_and(|excused| excused.contains(&task.id))
    }

    /// What failed: the task that says most about the image, or else the managers' words.
    pub(super) fn blame(&self, service: &SwarmService, goal: Goal<'_>) -> SwarmFailed {
        let mut tasks: Vec<&Task> = failed(service, goal).filter(|task| !self.is_excused(task)).collect();
        if tasks.is_empty() {
            tasks.extend(failed(service, goal));
        }
        let by_itself = tasks.iter().filter(|task| !self.is_by_node(task)).max_by_key(|task| task.since);
        match by_itself.or_else(|| tasks.iter().max_by_key(|task| task.since)) {
            Some(task) => {
                // What is unhealthy is told to stop, and may end well.
                let why = match task.state {
                    _ if !task.error.is_empty() => task.error.as_str(),
                    TaskState::Complete => {
                        "it ended with exit code 0, by itself or because its health check failed"
                    }
                    state => state.as_str(),
                };
                blamed(task, why, self.is_by_node(task))
            }
            None => self.blame_by_words(service, goal),
        }
    }

    /// None of its tasks has failed. The swarm counts those that it has stopped itself while it watched them, for example
    /// because their node was drained, and may have forgotten the one that it names.
    fn blame_by_words(&self, service: &SwarmService, goal: Goal<'_>) -> SwarmFailed {
        let words = service.update.as_ref().map(|update| update.message.clone()).unwrap_or_default();
        let is_named = |id: &str| words.split_whitespace().any(|word| word == id);
        let is_stopped = |task: &&Task| {
            is_named(&task.id)
                && goal.is_about(task)
                && task.state == TaskState::Shutdown
                && task.error.is_empty()
        };
        if let Some(task) = service.tasks.iter().find(is_stopped) {
            return blamed(task, "the swarm has stopped it in the middle of the update", true);
        }
        let failure = Failure { reason: format!("the swarm says: {words}"), ..Failure::default() };
        let by_node = self.rejected.iter().any(|id| is_named(id));
        SwarmFailed { failure, output: String::new(), task: String::new(), by_node }
    }
}

impl Goal<'_> {
    /// Whether a task counts.
    fn is_about(&self, task: &Task) -> bool {
        is_same_image(&task.image, self.image) && !self.known.contains(&task.id)
    }
}

/// What is told of a task.
fn blamed(task: &Task, why: &str, by_node: bool) -> SwarmFailed {
    let tagged = Reference::parse(&task.image).map(|image| image.tagged()).unwrap_or_default();
    let mut facts = format!("task {} on node {}: {}\n", task.name, task.node, task.state.as_str());
    if let Some(code) = task.exit_code.filter(|code| *code != 0) {
        facts.push_str(&format!("exit code {code}\n"));
    }
    if !task.error.is_empty() {
        facts.push_str(&format!("{}\n", task.error));
    }
    let failure = Failure {
        reason: format!("{} on {}: {why}", task.name, task.node),
        container_id: task.local_container.clone().unwrap_or_default(),
        container: task.name.clone(),
        image: tagged,
        facts,
        ..Failure::default()
    };
    SwarmFailed { failure, output: String::new(), task: task.id.clone(), by_node }
}

fn failed<'a>(service: &'a SwarmService, goal: Goal<'a>) -> impl Iterator<Item = &'a Task> {
    service.tasks.iter().filter(move |task| goal.is_about(task) && task.is_failed())
}

/// Why tasks wait for a node; `None` where none does.
fn unplaced(service: &SwarmService) -> Option<String> {
    let waits = service.wanted().find(|task| task.state == TaskState::Pending && !task.error.is_empty())?;
    Some(format!("{} waits for a node: {}", waits.name, waits.error))
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
