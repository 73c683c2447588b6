//! The reported state of a swarm service: its health, and why nothing is deployed.

use jiff::Timestamp;

use crate::model::swarm::{SwarmMode, Task, TaskState};
use crate::service::Service;
use crate::service::rollout::plan::Cause;
use crate::service::wording::swarm as wording;

impl Service {
    /// Returns whether the desired number of tasks runs, or why not; `None` if the service is scaled to 0. Tasks that have done
    /// their work are well, as are the jobs of a project; `None` if the next run finds no node.
    pub(in crate::service) fn swarm_health(&self) -> Option<Result<(), String>> {
        let service = self.known.swarm.as_deref()?;
        // It is down on purpose.
        if service.mode == SwarmMode::Replicated(0) {
            return None;
        }
        match service.shortage() {
            None => Some(Ok(())),
            Some(_) if service.has_done_its_work(self.last_input) => {
                // A task that was replaced before it found a node is history, and stays pending. The managers want a task of a job
                // to complete, not to run.
                let is_next = |task: &Task| task.should_run || service.mode == SwarmMode::Job;
                let waits = |task: &Task| task.state == TaskState::Pending && is_next(task);
                (!service.tasks.iter().any(waits)).then_some(Ok(()))
            }
            Some(why) => Some(Err(why)),
        }
    }

    /// Returns why nothing is deployed to the service: it has no tasks that could prove an image, or they end by themselves,
    /// which looks like a failure, and would be done again by a rollback.
    pub(in crate::service) fn undeployable(&self) -> Option<String> {
        let service = self.known.swarm.as_ref()?;
        match service.mode {
            SwarmMode::Job => Some(wording::job(&service.name)),
            SwarmMode::Replicated(1..) | SwarmMode::Global if service.works_to_its_end(self.last_input) => {
                Some(wording::works_to_its_end(&service.name))
            }
            _ if service.desired() > 0 => None,
            SwarmMode::Replicated(_) => Some(wording::scaled_to_zero(&service.name)),
            SwarmMode::Global => Some(wording::on_no_node(&service.name)),
        }
    }

    /// Returns why the image of the specification may not be the one that runs: the swarm has paused in the middle. An update
    /// ends the pause. The swarm takes the end of a short job for a failure.
    pub(in crate::service) fn paused_fault(&self) -> Option<String> {
        let service = self.known.swarm.as_deref().filter(|service| service.is_paused())?;
        if self.wanted.is_some() || service.has_done_its_work(self.last_input) {
            return None;
        }
        let update = service.update.as_ref()?;
        Some(wording::paused(&service.name, &update.message, update.is_rollback()))
    }

    /// Cancels the wanted deployment of a service to which nothing is deployed. Returns the reason if it was an update.
    pub(in crate::service) fn hold_undeployable(&mut self, now: Timestamp) -> Option<String> {
        let why = self.undeployable()?;
        match self.wanted.take()? {
            Cause::Update => return Some(why),
            Cause::Redeploy => self.redeploy_failed(why, String::new(), now),
            _ => {}
        }
        None
    }

    /// Returns the full IDs of the tasks' containers on this engine, the only ones that can be measured here.
    pub fn measurable(&self) -> Vec<String> {
        let is_local = |id: &str| match &self.known.swarm {
            Some(service) => service.tasks.iter().any(|task| task.local_container.as_deref() == Some(id)),
            None => true,
        };
        let mut ids = Vec::with_capacity(self.running().count());
        ids.extend(self.running().filter(|one| is_local(&one.id)).map(|one| one.id.clone()));
        ids
    }
}
