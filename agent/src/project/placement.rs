//! Assigns services to the workers of their projects.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_common::clock::Clock;
use evenkeel_common::supervisor::TaskSet;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::inbox;
use super::worker::{Member, ProjectKey, Worker};

/// Number of workers that decide and write concurrently. At start-up and in a poll cycle all workers have something to
/// decide. Without this limit, the drafts and rows of hundreds of services would determine the agent's peak memory.
const DECIDING: usize = 16;

/// The workers by project. Clones share them.
#[derive(Clone)]
pub struct Placement(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    tasks: TaskSet,
    stop: CancellationToken,
    workers: Mutex<HashMap<ProjectKey, inbox::Sender<Vec<Member>>>>,
    deciding: Semaphore,
}

impl Placement {
    /// Creates a placement without workers. Workers run in `tasks` until `stop`.
    pub fn new(clock: Arc<dyn Clock>, tasks: TaskSet, stop: CancellationToken) -> Self {
        let deciding = Semaphore::new(DECIDING);
        Self(Arc::new(Inner { clock, tasks, stop, workers: Mutex::default(), deciding }))
    }

    /// Passes services to the workers of their projects; services of one project are passed together.
    pub fn place(&self, members: Vec<Member>) {
        let mut by_project: HashMap<ProjectKey, Vec<Member>> = HashMap::new();
        for member in members {
            by_project.entry(member.project_key()).or_default().push(member);
        }
        for (key, members) in by_project {
            let mut workers = self.workers();
            let worker = workers.entry(key).or_insert_with_key(|key| {
                let (sender, arrivals) = inbox::channel();
                let worker = Worker::new(key.clone(), self.0.clock.clone(), arrivals, self.clone());
                self.0.tasks.spawn(key.to_string(), worker.run(self.0.stop.clone()));
                sender
            });
            // The worker runs as long as it is in the map, unless the agent is stopping.
            let _ = worker.send(members);
        }
    }

    /// Removes a worker without services; `false` if services are just arriving.
    pub(super) fn close(&self, key: &ProjectKey) -> bool {
        let mut workers = self.workers();
        let is_left = workers.get(key).is_none_or(inbox::Sender::is_empty);
        if is_left {
            workers.remove(key);
        }
        is_left
    }

    /// Waits for a permit to decide, see [`DECIDING`].
    pub(super) async fn may_decide(&self) -> SemaphorePermit<'_> {
        self.0.deciding.acquire().await.expect("the semaphore is never closed")
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<ProjectKey, inbox::Sender<Vec<Member>>>> {
        self.0.workers.lock()
    }
}
