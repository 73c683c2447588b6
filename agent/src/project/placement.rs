//! Which project has a worker, and the way of a service to the worker of its project.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_common::clock::Clock;
use evenkeel_common::supervisor::TaskSet;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::inbox;
use super::worker::{Member, ProjectKey, Worker};

/// Workers that decide and write at once. At the start, and in a poll cycle, all have something to decide: drafts and rows
/// of hundreds of services at once would be the most memory that the program ever takes, and would stay with it.
const DECIDING: usize = 16;

/// The workers by project. Clones are the same.
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
    /// No workers yet. They will run in `tasks` until `stop`.
    pub fn new(clock: Arc<dyn Clock>, tasks: TaskSet, stop: CancellationToken) -> Self {
        let deciding = Semaphore::new(DECIDING);
        Self(Arc::new(Inner { clock, tasks, stop, workers: Mutex::default(), deciding }))
    }

    /// Hands services to the workers of the projects that they have to work on; those of one project together.
    pub fn place(&self, members: Vec<Member>) {
        let mut homes: HashMap<ProjectKey, Vec<Member>> = HashMap::new();
        for member in members {
            homes.entry(member.home()).or_default().push(member);
        }
        for (key, members) in homes {
            let mut workers = self.workers();
            let worker = workers.entry(key).or_insert_with_key(|key| {
                let (sender, arrivals) = inbox::channel();
                let worker = Worker::new(key.clone(), self.0.clock.clone(), arrivals, self.clone());
                self.0.tasks.spawn(key.to_string(), worker.run(self.0.stop.clone()));
                sender
            });
            // It is there as long as it is in the map, unless the program ends.
            let _ = worker.send(members);
        }
    }

    /// Forgets a worker that has no service left; `false` where some are just arriving.
    pub(super) fn close(&self, key: &ProjectKey) -> bool {
        let mut workers = self.workers();
        let is_left = workers.get(key).is_none_or(inbox::Sender::is_empty);
        if is_left {
            workers.remove(key);
        }
        is_left
    }

    /// Waits until this worker is one of the few that decide at the same time.
    pub(super) async fn may_decide(&self) -> SemaphorePermit<'_> {
        self.0.deciding.acquire().await.expect("it is never closed")
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<ProjectKey, inbox::Sender<Vec<Member>>>> {
        self.0.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
