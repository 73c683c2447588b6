//! Whether the tasks of a service have come to an image, and stay there.
//!
//! While the swarm is at work, it decides: `update_config` says how many tasks may fail, and what follows. When it says
//! that it is done, its word is not taken: every task must run the image, and must have done so for the grace.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::Reference;
use crate::model::swarm::{SwarmService, Task, TaskState, UpdateState};
use crate::service::rollout::probation::Failure;

use super::plan::SwarmFailed;

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
        self.lost.extend(service.nodes_down.iter().cloned());
        if service.image != goal.image {
            return Verdict::Foreign;
        }
        let state = service.update.as_ref().map(|update| update.state);
        match state {
            Some(UpdateState::Paused | UpdateState::RollbackPaused) => {
                return Verdict::Failed(Box::new(self.blame(service, goal)));
            }
            Some(UpdateState::Updating | UpdateState::RollbackStarted) => {
                self.steady_since = None;
                return Verdict::Wait { trouble: unplaced(service) };
            }
            _ => {}
        }
        let failed = failed(service, goal).filter(|task| !self.is_lost(task));
        let failed: BTreeSet<String> = failed.map(|task| task.id.clone()).collect();
        let excused = self.excused.get_or_insert_with(|| failed.clone());
        if !failed.is_subset(excused) {
            return Verdict::Failed(Box::new(self.blame(service, goal)));
        }
        if service.desired() == 0 {
            self.steady_since = None;
            return Verdict::Wait { trouble: service.shortage() };
        }
        let is_there = |task: &&Task| task.image == goal.image && !goal.known.contains(&task.id);
        let running: BTreeSet<String> =
            service.running().filter(is_there).map(|task| task.id.clone()).collect();
        let all = running.len() as u64 >= service.desired() && !running.is_empty();
        if !all || !service.wanted().all(|task| running.contains(&task.id)) {
            self.steady_since = None;
            return Verdict::Wait { trouble: unplaced(service) };
        }
        if self.steady != running || self.steady_since.is_none() {
            (self.steady, self.steady_since) = (running, Some(now));
        }
        let passed = self.steady_since.is_some_and(|since| now >= since + goal.grace);
        if passed { Verdict::Passed } else { Verdict::Wait { trouble: None } }
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

    /// What failed: the task that says most about the image, or else the managers' words.
    pub(super) fn blame(&self, service: &SwarmService, goal: Goal<'_>) -> SwarmFailed {
        let by_itself =
            failed(service, goal).filter(|task| !self.is_by_node(task)).max_by_key(|task| task.since);
        let task = by_itself.or_else(|| failed(service, goal).max_by_key(|task| task.since));
        let Some(task) = task else {
            let words = service.update.as_ref().map(|update| update.message.clone()).unwrap_or_default();
            let failure = Failure { reason: format!("the swarm says: {words}"), ..Failure::default() };
            return SwarmFailed { failure, output: String::new(), task: String::new(), by_node: false };
        };
        let tagged = Reference::parse(&task.image).map(|image| image.tagged()).unwrap_or_default();
        let mut facts = format!("task {} on node {}: {}\n", task.name, task.node, task.state.as_str());
        if let Some(code) = task.exit_code.filter(|code| *code != 0) {
            facts.push_str(&format!("exit code {code}\n"));
        }
        if !task.error.is_empty() {
            facts.push_str(&format!("{}\n", task.error));
        }
        // What is unhealthy is told to stop, and may end well.
        let why = match task.state {
            _ if !task.error.is_empty() => task.error.as_str(),
            TaskState::Complete => "it ended with exit code 0, by itself or because its health check failed",
            state => state.as_str(),
        };
        let failure = Failure {
            reason: format!("{} on {}: {why}", task.name, task.node),
            container_id: task.local_container.clone().unwrap_or_default(),
            container: task.name.clone(),
            image: tagged,
            facts,
            ..Failure::default()
        };
        SwarmFailed { failure, output: String::new(), task: task.id.clone(), by_node: self.is_by_node(task) }
    }
}

fn failed<'a>(service: &'a SwarmService, goal: Goal<'a>) -> impl Iterator<Item = &'a Task> {
    service
        .tasks
        .iter()
        .filter(move |task| task.image == goal.image && !goal.known.contains(&task.id) && task.is_failed())
}

/// Why tasks wait for a node; `None` where none does.
fn unplaced(service: &SwarmService) -> Option<String> {
    let waits = service.wanted().find(|task| task.state == TaskState::Pending && !task.error.is_empty())?;
    Some(format!("{} waits for a node: {}", waits.name, waits.error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::swarm::{SwarmMode, UpdateStatus};

    const OLD: &str =
        "localhost:5000/web:1@sha256:1111111111111111111111111111111111111111111111111111111111111111";
    const NEW: &str =
        "localhost:5000/web:1@sha256:2222222222222222222222222222222222222222222222222222222222222222";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn task(id: &str, image: &str, state: TaskState) -> Task {
        Task {
            id: id.into(),
            name: "web.1".into(),
            node: "n1".into(),
            image: image.into(),
            is_wanted: matches!(state, TaskState::Pending | TaskState::Preparing | TaskState::Running),
            state,
            since: None,
            error: String::new(),
            exit_code: None,
            local_container: None,
        }
    }

    fn service(state: Option<UpdateState>, tasks: Vec<Task>) -> SwarmService {
        let update =
            state.map(|state| UpdateStatus { state, message: "update paused".into(), completed_at: None });
        SwarmService {
            id: "s".into(),
            name: "web".into(),
            version: 1,
            image: NEW.into(),
            previous_image: Some(OLD.into()),
            force_update: 0,
            mode: SwarmMode::Replicated(2),
            update,
            tasks,
            nodes_down: BTreeSet::new(),
        }
    }

    /// Each look one second after the other, the grace being 2 s; the last verdict.
    fn look(services: &[SwarmService]) -> Verdict {
        let known = BTreeSet::from(["before".to_owned()]);
        let goal = Goal { image: NEW, known: &known, grace: Duration::from_secs(2) };
        let mut watch = Watch::default();
        let verdicts =
            services.iter().zip(0..).map(|(service, second)| watch.look(service, goal, at(second)));
        verdicts.last().unwrap()
    }

    fn both(state: Option<UpdateState>) -> SwarmService {
        service(state, vec![task("a", NEW, TaskState::Running), task("b", NEW, TaskState::Running)])
    }

    fn failed_for(verdict: Verdict) -> SwarmFailed {
        match verdict {
            Verdict::Failed(failed) => *failed,
            other => panic!("it failed: {other:?}"),
        }
    }

    #[test]
    fn passed_only_when_all_have_run_for_the_grace_after_the_swarm_was_done() {
        let done = || both(Some(UpdateState::Completed));
        assert_eq!(look(&[done(), done()]), Verdict::Wait { trouble: None });
        assert_eq!(look(&[done(), done(), done()]), Verdict::Passed);
        let at_work = both(Some(UpdateState::Updating));
        assert_eq!(look(&[at_work, done(), done()]), Verdict::Wait { trouble: None });
        // Tasks from before do not count, nor do too few, nor any on the old image.
        let replaced = |id, image| {
            service(
                Some(UpdateState::Completed),
                vec![task("a", NEW, TaskState::Running), task(id, image, TaskState::Running)],
            )
        };
        for odd in [replaced("before", NEW), replaced("b", OLD)] {
            assert_eq!(look(&[odd.clone(), odd.clone(), odd.clone(), odd]), Verdict::Wait { trouble: None });
        }
    }

    #[test]
    fn completed_is_not_believed_while_tasks_go_on_failing() {
        let crashing = |ids: &[&str]| {
            let tasks = ids.iter().map(|id| task(id, NEW, TaskState::Failed)).collect();
            service(Some(UpdateState::Completed), tasks)
        };
        assert_eq!(look(&[crashing(&["a"]), crashing(&["a"])]), Verdict::Wait { trouble: None });
        let failed = failed_for(look(&[crashing(&["a"]), crashing(&["a", "b"])]));
        assert_eq!((failed.task.as_str(), failed.by_node), ("b", false));
    }

    #[test]
    fn a_paused_update_has_failed_and_a_node_that_can_not_fetch_the_image_is_not_the_image() {
        let mut rejected = task("a", NEW, TaskState::Rejected);
        rejected.error = "No such image: web".into();
        let paused = |tasks| service(Some(UpdateState::Paused), tasks);
        assert!(failed_for(look(&[paused(vec![rejected.clone()])])).by_node);
        // One that failed by itself says more.
        let failed = failed_for(look(&[paused(vec![task("b", NEW, TaskState::Failed), rejected])]));
        assert_eq!((failed.task.as_str(), failed.by_node), ("b", false));
        let failed = failed_for(look(&[paused(Vec::new())]));
        assert_eq!(
            (failed.failure.reason.as_str(), failed.by_node),
            ("the swarm says: update paused", false)
        );
    }

    #[test]
    fn tasks_that_no_node_takes_fail_nothing() {
        let mut pending = task("a", NEW, TaskState::Pending);
        pending.error = "no suitable node (1 node not available for new tasks)".into();
        let trouble = "web.1 waits for a node: no suitable node (1 node not available for new tasks)";
        let waits = service(Some(UpdateState::Updating), vec![pending]);
        assert_eq!(look(&[waits]), Verdict::Wait { trouble: Some(trouble.to_owned()) });
    }

    /// Its containers end with its engine, and the swarm counts them as failed.
    #[test]
    fn what_fails_on_a_node_that_was_down_is_not_the_image() {
        let failed = task("a", NEW, TaskState::Failed);
        let at_work = SwarmService {
            nodes_down: BTreeSet::from(["n1".to_owned()]),
            ..service(Some(UpdateState::Updating), Vec::new())
        };
        let paused = |tasks| service(Some(UpdateState::Paused), tasks);
        assert!(failed_for(look(&[at_work.clone(), paused(vec![failed.clone()])])).by_node);
        assert!(!failed_for(look(&[paused(vec![failed.clone()])])).by_node);
        let elsewhere = Task { node: "n2".into(), ..task("b", NEW, TaskState::Failed) };
        let found = failed_for(look(&[at_work.clone(), paused(vec![failed.clone(), elsewhere])]));
        assert_eq!((found.task.as_str(), found.by_node), ("b", false));
        // When the swarm is done such a task is replaced like any other.
        let done = |tasks| service(Some(UpdateState::Completed), tasks);
        let after = [at_work, done(Vec::new()), done(vec![failed])];
        assert_eq!(look(&after), Verdict::Wait { trouble: None });
        // The same of the agent's own engine.
        let local = Task { local_container: Some("c".into()), ..task("a", NEW, TaskState::Failed) };
        let goal = Goal { image: NEW, known: &BTreeSet::new(), grace: Duration::ZERO };
        let mut watch = Watch { engine_away: true, ..Watch::default() };
        assert!(failed_for(watch.look(&paused(vec![local]), goal, at(0))).by_node);
    }

    /// Somebody scales it to 0 in the middle of an update.
    #[test]
    fn without_tasks_nothing_passes_and_nothing_fails() {
        let service = service(Some(UpdateState::Completed), Vec::new());
        let none = SwarmService { mode: SwarmMode::Replicated(0), ..service };
        let trouble = Some("it has no tasks (scaled to 0, or no node is suitable)".to_owned());
        assert_eq!(look(&[none.clone(), none.clone(), none.clone(), none]), Verdict::Wait { trouble });
    }

    #[test]
    fn another_image_is_somebody_elses() {
        let other = SwarmService { image: OLD.into(), ..both(Some(UpdateState::Completed)) };
        assert_eq!(look(&[other]), Verdict::Foreign);
    }
}
