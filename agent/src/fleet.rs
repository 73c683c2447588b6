//! All workers by name: the only door through which the API reaches them.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_common::wire::{ServiceStatus, StatusReport};
use futures_util::{Stream, StreamExt, future, stream};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use crate::service::fact::{Answer, Ask};
use crate::tasks::poller::{PollState, Polls};
use crate::tasks::worker::{Command, Handle};

/// The doors to all workers, in the configuration's order; exchanged as a whole when the configuration changes.
pub type Workers = Arc<[Handle]>;

/// All workers, whoever they are at the moment.
pub struct Fleet {
    workers: watch::Receiver<Workers>,
    polls: Polls,
    poll_state: watch::Receiver<PollState>,
    started: Timestamp,
}

/// Why a question got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// No such service.
    #[error("no service named \"{0}\" is configured")]
    Unknown(String),
    /// The worker is gone: the program is stopping, or the service's configuration has just changed.
    #[error("the service is stopping; try again in a moment")]
    Stopping,
}

impl Fleet {
    /// A fleet of these workers.
    pub fn new(
        workers: watch::Receiver<Workers>,
        polls: mpsc::UnboundedSender<()>,
        poll_state: watch::Receiver<PollState>,
        started: Timestamp,
    ) -> Self {
        Self { workers, polls, poll_state, started }
    }

    /// All workers as they are now.
    pub fn workers(&self) -> Workers {
        self.workers.borrow().clone()
    }

    /// All workers, and when they are others.
    pub fn watch_workers(&self) -> watch::Receiver<Workers> {
        self.workers.clone()
    }

    /// Ends when every worker has answered. One that is just being exchanged does not count.
    pub async fn round_trip(self: Arc<Self>) {
        let ping = |worker: &Handle| {
            let (reply, answer) = oneshot::channel();
            let _ = worker.inbox.send(Command::Ping(reply));
            answer
        };
        let answers: Vec<_> = self.workers().iter().map(ping).collect();
        future::join_all(answers).await;
    }

    fn worker(&self, name: &str) -> Result<Handle, FleetError> {
        let workers = self.workers();
        let found = workers.iter().find(|worker| worker.config.name == name);
        found.cloned().ok_or_else(|| FleetError::Unknown(name.to_owned()))
    }

    /// Asks one service and waits for its answer.
    pub async fn ask(&self, name: &str, ask: Ask) -> Result<Answer, FleetError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.worker(name)?.inbox.send(Command::Ask(ask, reply));
        sent.map_err(|_| FleetError::Stopping)?;
        answer.await.map_err(|_| FleetError::Stopping)
    }

    /// Starts a poll cycle over all services now.
    pub fn poll_now(&self) -> Result<(), FleetError> {
        self.polls.send(()).map_err(|_| FleetError::Stopping)
    }

    /// `GET /status` (spec 2.5).
    pub fn report(&self, now: Timestamp) -> StatusReport {
        let state = self.poll_state.borrow().clone();
        StatusReport {
            uptime_seconds: u64::try_from(now.duration_since(self.started).as_secs()).unwrap_or_default(),
            last_poll: state.last_poll,
            poll_count: state.poll_count,
            services: self.workers().iter().map(|worker| record(worker, &state)).collect(),
        }
    }

    /// What the poller shows.
    pub fn poll_state(&self) -> PollState {
        self.poll_state.borrow().clone()
    }

    /// Says that something that [`Fleet::report`] shows of the workers of now has changed. Several changes of one
    /// service may be one.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let workers = self.workers();
        let services: Vec<_> =
            workers.iter().map(|worker| changes_of(worker.snapshot.clone()).boxed()).collect();
        stream::select_all(services.into_iter().chain([changes_of(self.poll_state.clone()).boxed()]))
    }

    /// `GET /status/<name>` (spec 2.1).
    pub fn status(&self, name: &str) -> Result<ServiceStatus, FleetError> {
        Ok(record(&self.worker(name)?, &self.poll_state.borrow()))
    }

    /// `GET /blocked` (spec 2.6).
    pub fn blocked(&self) -> BTreeMap<String, String> {
        self.by_image(|worker| worker.snapshot.borrow().blocked.clone())
    }

    /// `GET /not-found` (spec 2.6).
    pub fn not_found(&self) -> BTreeMap<String, String> {
        self.by_image(|worker| worker.snapshot.borrow().not_found.clone())
    }

    /// `GET /errored` (spec 2.6).
    pub fn errored(&self) -> BTreeMap<String, String> {
        let fault = |worker: &Handle| {
            let text = worker.snapshot.borrow().status.errored.clone()?;
            Some((worker.config.name.clone(), text))
        };
        self.workers().iter().filter_map(fault).collect()
    }

    fn by_image(
        &self,
        map: impl Fn(&Handle) -> BTreeMap<String, crate::image::Digest>,
    ) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for worker in self.workers().iter() {
            for (image, digest) in map(worker) {
                all.insert(format!("{}/{image}", worker.config.name), digest.to_string());
            }
        }
        all
    }
}

fn changes_of<T: Send + Sync + 'static>(shown: watch::Receiver<T>) -> impl Stream<Item = ()> + Send {
    stream::unfold(shown, |mut shown| async move { shown.changed().await.ok().map(|()| ((), shown)) })
}

fn record(worker: &Handle, state: &PollState) -> ServiceStatus {
    let shown: Arc<_> = worker.snapshot.borrow().clone();
    let polled = worker.config.auto_update && !worker.config.silent;
    ServiceStatus { next_check: state.next.filter(|_| polled), ..shown.status.clone() }
}
