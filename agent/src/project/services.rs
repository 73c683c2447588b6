//! All workers by name: the only door through which the API reaches them.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_common::clock::Uptime;
use evenkeel_common::store::{Failing, StoreError};
use evenkeel_common::wire::{ServiceStatus, StatusReport, WhyReport};
use futures_util::{Stream, StreamExt, future, stream};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use crate::project::worker::{Command, Handle};
use crate::service::gates;
use crate::service::input::{ServiceReply, ServiceRequest};
use crate::service::status::StatusContext;

/// Where a request for a cycle goes.
pub type Polls = mpsc::UnboundedSender<()>;

/// What the poller shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PollState {
    /// End of the last cycle.
    pub last_poll: Option<Timestamp>,
    /// Cycles that ended.
    pub poll_count: u64,
    /// Begin of the next cycle.
    pub next: Option<Timestamp>,
}

/// How the engine is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineHealth {
    /// Why it counts as unavailable; `None` while it answers, or before the first check.
    pub error: Option<String>,
    /// Checks made.
    pub checks: u64,
    /// Checks in a row that failed.
    pub consecutive_failures: u64,
}

/// The doors to all workers, in the configuration's order; replaced as a whole when the configuration changes.
pub type Workers = Arc<[Handle]>;

/// The workers as they are shown to others: `None` while the program starts and they are not loaded yet.
pub type WorkersWatch = watch::Receiver<Option<Workers>>;

/// All services as they are configured at the moment.
pub struct Services {
    workers: WorkersWatch,
    polls: Polls,
    poll_state: watch::Receiver<PollState>,
    dependencies: Dependencies,
    uptime: Uptime,
}

/// What every service depends on.
#[derive(Clone)]
pub struct Dependencies {
    /// Whether the container engine answers.
    pub engine: watch::Receiver<EngineHealth>,
    /// Signal that a service shows something else.
    pub services: watch::Receiver<()>,
    /// Whether the state can be written.
    pub state: watch::Receiver<Option<Failing>>,
}

/// Why a question got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No such service.
    #[error("no service named \"{0}\" is configured")]
    Unknown(String),
    /// The services are not loaded yet.
    #[error("the agent is starting and has not loaded its services yet; try again in a moment")]
    Starting,
    /// The worker is gone: the program is stopping, or the service's configuration has just changed.
    #[error("the service is stopping; try again in a moment")]
    Stopping,
    /// The answer must outlive a restart, and the state can't be written (DECISIONS 4).
    #[error("{0}; nothing was changed")]
    Unwritable(StoreError),
}

/// What records depend on besides their services.
#[derive(Clone)]
struct Around {
    now: Timestamp,
    next_poll: Option<Timestamp>,
    engine_error: Option<String>,
    state_error: Option<String>,
}

impl Around {
    fn context(&self) -> StatusContext<'_> {
        StatusContext {
            now: self.now,
            next_poll: self.next_poll,
            engine_error: self.engine_error.as_deref(),
            state_error: self.state_error.as_deref(),
        }
    }
}

impl Services {
    /// A fleet of these workers.
    pub fn new(
        workers: WorkersWatch,
        polls: mpsc::UnboundedSender<()>,
        poll_state: watch::Receiver<PollState>,
        dependencies: Dependencies,
        uptime: Uptime,
    ) -> Self {
        Self { workers, polls, poll_state, dependencies, uptime }
    }

    /// Why the container engine counts as unavailable.
    pub fn engine_error(&self) -> Option<String> {
        self.dependencies.engine.borrow().error.clone()
    }

    /// Why the state can't be written, and what follows from that; `None` while it can.
    pub fn state_error(&self) -> Option<String> {
        let failing = self.dependencies.state.borrow();
        failing.as_ref().map(|failing| {
            format!("{}; nothing is deployed or healed until it can be written again", failing.error)
        })
    }

    /// The records of all services as they are to be answered now. Each is made when it is asked for.
    pub fn records(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = ServiceStatus> + Clone + Send + Sync + use<> {
        self.records_of(&self.workers(), now)
    }

    fn records_of(
        &self,
        workers: &[Handle],
        now: Timestamp,
    ) -> impl Iterator<Item = ServiceStatus> + Clone + Send + Sync + use<> {
        let shown: Vec<_> = workers.iter().map(|worker| worker.published.get()).collect();
        let around = self.around(now);
        shown.into_iter().map(move |shown| shown.snapshot().record(&around.context()))
    }

    fn around(&self, now: Timestamp) -> Around {
        let (engine_error, state_error) = (self.engine_error(), self.state_error());
        Around { now, next_poll: self.poll_state.borrow().next, engine_error, state_error }
    }

    /// `GET /why/<name>` (DECISIONS 7).
    pub fn why(&self, name: &str, now: Timestamp) -> Result<WhyReport, ServiceError> {
        let worker = self.worker(name)?;
        let snapshot = worker.published.snapshot();
        Ok(gates::why(&snapshot, &worker.config, &self.around(now).context()))
    }

    /// Whether the services are still to be loaded.
    pub fn is_starting(&self) -> bool {
        self.workers.borrow().is_none()
    }

    /// All workers as they are now; none while the program starts.
    pub fn workers(&self) -> Workers {
        self.workers.borrow().clone().unwrap_or_default()
    }

    /// All workers, once they are loaded.
    fn loaded(&self) -> Result<Workers, ServiceError> {
        self.workers.borrow().clone().ok_or(ServiceError::Starting)
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

    fn worker(&self, name: &str) -> Result<Handle, ServiceError> {
        let workers = self.loaded()?;
        let found = workers.iter().find(|worker| worker.config.name == name);
        found.cloned().ok_or_else(|| ServiceError::Unknown(name.to_owned()))
    }

    /// Asks one service and waits for its answer.
    pub async fn ask(&self, name: &str, ask: ServiceRequest) -> Result<ServiceReply, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.worker(name)?.inbox.send(Command::Request(ask, reply));
        sent.map_err(|_| ServiceError::Stopping)?;
        answer.await.map_err(|_| ServiceError::Stopping)?.map_err(ServiceError::Unwritable)
    }

    /// Starts a poll cycle over all services now.
    pub fn poll_now(&self) -> Result<(), ServiceError> {
        self.polls.send(()).map_err(|_| ServiceError::Stopping)
    }

    /// `GET /status` (spec 2.5). It says so while the services are not loaded yet.
    pub fn report(&self, now: Timestamp) -> StatusReport {
        StatusReport { services: self.records(now).collect(), ..self.head() }
    }

    /// The same without the services' records.
    pub fn head(&self) -> StatusReport {
        let state = self.poll_state.borrow().clone();
        StatusReport {
            starting: self.is_starting(),
            uptime_seconds: self.uptime.seconds(),
            last_poll: state.last_poll,
            poll_count: state.poll_count,
            services: Vec::new(),
        }
    }

    /// What the poller shows.
    pub fn poll_state(&self) -> PollState {
        self.poll_state.borrow().clone()
    }

    /// Says that something that [`Services::report`] shows has changed. Several changes may be one.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::select_all([
            changes_of(self.workers.clone()).boxed(),
            changes_of(self.dependencies.services.clone()).boxed(),
            changes_of(self.poll_state.clone()).boxed(),
            changes_of(self.dependencies.state.clone()).boxed(),
            changes_in(self.dependencies.engine.clone(), |engine| engine.error.clone()).boxed(),
        ])
    }

    /// `GET /status/<name>` (spec 2.1).
    pub fn status(&self, name: &str, now: Timestamp) -> Result<ServiceStatus, ServiceError> {
        let worker = self.worker(name)?;
        let record = self.records_of(&[worker], now).next();
        record.ok_or_else(|| ServiceError::Unknown(name.to_owned()))
    }

    /// `GET /blocked` (spec 2.6).
    pub fn blocked(&self) -> Result<BTreeMap<String, String>, ServiceError> {
        self.by_image(|worker| worker.published.snapshot().blocked)
    }

    /// `GET /not-found` (spec 2.6).
    pub fn not_found(&self) -> Result<BTreeMap<String, String>, ServiceError> {
        self.by_image(|worker| worker.published.snapshot().not_found)
    }

    /// `GET /errored` (spec 2.6).
    pub fn errored(&self, now: Timestamp) -> Result<BTreeMap<String, String>, ServiceError> {
        let records = self.records_of(&self.loaded()?, now);
        Ok(records.filter_map(|record| Some((record.name, record.errored?))).collect())
    }

    /// What is not done because it is not the agent's to do, each with the service's name.
    pub fn warnings(&self) -> Vec<String> {
        let of_one = |worker: &Handle| {
            let warnings = worker.published.snapshot().warnings;
            warnings
                .into_iter()
                .map(|warning| format!("{}: {warning}", worker.config.name))
                .collect::<Vec<_>>()
        };
        self.workers().iter().flat_map(of_one).collect()
    }

    fn by_image(
        &self,
        map: impl Fn(&Handle) -> BTreeMap<String, crate::model::image::Digest>,
    ) -> Result<BTreeMap<String, String>, ServiceError> {
        let mut all = BTreeMap::new();
        for worker in self.loaded()?.iter() {
            for (image, digest) in map(worker) {
                all.insert(format!("{}/{image}", worker.config.name), digest.to_string());
            }
        }
        Ok(all)
    }
}

fn changes_of<T: Send + Sync + 'static>(shown: watch::Receiver<T>) -> impl Stream<Item = ()> + Send {
    stream::unfold(shown, |mut shown| async move { shown.changed().await.ok().map(|()| ((), shown)) })
}

/// Changes of one part of what is shown.
fn changes_in<T, K>(shown: watch::Receiver<T>, part: fn(&T) -> K) -> impl Stream<Item = ()> + Send
where
    T: Send + Sync + 'static,
    K: PartialEq + Send + 'static,
{
    let known = part(&shown.borrow());
    stream::unfold((shown, known), move |(mut shown, known)| async move {
        loop {
            shown.changed().await.ok()?;
            let now = part(&shown.borrow_and_update());
            if now != known {
                return Some(((), (shown, now)));
            }
        }
    })
}
