//! All services by name. API and tasks reach the workers only through this module.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_common::clock::Uptime;
use evenkeel_common::store::{Failing, StoreError};
use evenkeel_common::wire::{LeftOutService, ServiceStatus, StatusReport, WhyReport};
use futures_util::{Stream, StreamExt, future, stream};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::active::Watch;
use crate::model::image::Digest;
use crate::project::handle::{Command, Handle};
use crate::service::Service;
use crate::service::images::ImageMemory;
use crate::service::input::{ServiceReply, ServiceRequest};
use crate::service::view::status::StatusContext;
use crate::service::view::why::why;

/// Sends requests for a poll cycle.
pub type Polls = mpsc::UnboundedSender<()>;

/// Published state of the poller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PollState {
    /// End of the last cycle.
    pub last_poll: Option<Timestamp>,
    /// Number of completed cycles.
    pub poll_count: u64,
    /// Start of the next cycle.
    pub next: Option<Timestamp>,
}

/// Health of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineHealth {
    /// Why it counts as unavailable; `None` while it responds, or before the first check.
    pub error: Option<String>,
    /// Number of checks.
    pub checks: u64,
    /// Consecutive failed checks.
    pub consecutive_failures: u64,
}

/// Handles to all services, in configuration order; replaced as a whole when the configuration changes.
pub type Workers = Arc<[Handle]>;

/// Returns the configured services, and those of all that are no longer configured and finish a deployment.
pub fn with_leaving<'a>(configured: &[Handle], all: impl Iterator<Item = &'a Handle>) -> Workers {
    let is_configured = |handle: &Handle| configured.iter().any(|one| one.config.name == handle.config.name);
    let leaving = all.filter(|handle| !handle.inbox.is_closed() && !is_configured(handle));
    configured.iter().cloned().chain(leaving.cloned()).collect()
}

/// Published handles: `None` during start-up, until the services are loaded.
pub type WorkersWatch = watch::Receiver<Option<Workers>>;

/// All configured services.
pub struct Services {
    polls: Polls,
    dependencies: Dependencies,
    uptime: Uptime,
}

/// State that affects all services.
#[derive(Clone)]
pub struct Dependencies {
    /// Handles to the services.
    pub workers: WorkersWatch,
    /// State of the poller.
    pub poll_state: watch::Receiver<PollState>,
    /// Health of the container engine.
    pub engine: watch::Receiver<EngineHealth>,
    /// Signals that the published state of a service has changed.
    pub services: watch::Receiver<()>,
    /// Current failure to write the state.
    pub state: watch::Receiver<Option<Failing>>,
    /// The active configuration, for the services that it leaves out; `None` where there is no file.
    pub active: Option<Watch>,
}

/// Why a request to a service failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No such service.
    #[error("no service named \"{0}\" is configured")]
    Unknown(String),
    /// The service is configured, but its configuration has a fault.
    #[error("\"{0}\" is not watched: {1}")]
    LeftOut(String, String),
    /// The services are not loaded yet.
    #[error("the agent is starting and has not loaded its services yet; try again in a moment")]
    Starting,
    /// The worker has ended: the agent is stopping, or the service's configuration has just changed.
    #[error("the service is stopping; try again in a moment")]
    Stopping,
    /// The request's effect must survive a restart, but the state can't be written (DECISIONS 4).
    #[error("{0}; nothing was changed")]
    Unwritable(StoreError),
}

/// A moment at which the data in [`Services::report`] was seen.
pub struct Seen(Dependencies);

impl Seen {
    /// Reports whether any of the data has changed since then, or can change no more.
    pub fn has_changed(&self) -> bool {
        fn since<T>(watched: &watch::Receiver<T>) -> bool {
            watched.has_changed().unwrap_or(true)
        }
        let Dependencies { workers, poll_state, engine, services, state, active } = &self.0;
        since(workers)
            || since(poll_state)
            || since(engine)
            || since(services)
            || since(state)
            || active.as_ref().is_some_and(since)
    }
}

impl Services {
    /// Creates the view of these workers.
    pub fn new(polls: Polls, dependencies: Dependencies, uptime: Uptime) -> Self {
        Self { polls, dependencies, uptime }
    }

    /// Returns why the container engine counts as unavailable.
    pub fn engine_error(&self) -> Option<String> {
        self.dependencies.engine.borrow().error.clone()
    }

    /// Returns why the state can't be written, with the consequences; `None` while it can.
    pub fn state_error(&self) -> Option<String> {
        let failing = self.dependencies.state.borrow();
        failing.as_ref().map(|failing| {
            format!("{}; nothing is deployed or healed until it can be written again", failing.error)
        })
    }

    /// Returns the current status records of all services, built lazily.
    pub fn records(&self, now: Timestamp) -> impl Iterator<Item = ServiceStatus> + Send + use<> {
        self.records_of(&self.workers(), now)
    }

    fn records_of(
        &self,
        workers: &[Handle],
        now: Timestamp,
    ) -> impl Iterator<Item = ServiceStatus> + Send + use<> {
        let shown: Vec<_> = workers.iter().map(|worker| worker.published.get()).collect();
        let context = self.context(now);
        shown.into_iter().map(move |shown| shown.record(&context))
    }

    fn context(&self, now: Timestamp) -> StatusContext {
        let (engine_error, state_error) = (self.engine_error(), self.state_error());
        StatusContext {
            now,
            next_poll: self.dependencies.poll_state.borrow().next,
            engine_error,
            state_error,
        }
    }

    /// Returns a service as it is now.
    pub fn service(&self, name: &str) -> Result<Arc<Service>, ServiceError> {
        Ok(self.worker(name)?.published.get().service)
    }

    /// `GET /why/<name>` (DECISIONS 7).
    pub fn why(&self, name: &str, now: Timestamp) -> Result<WhyReport, ServiceError> {
        Ok(why(&*self.service(name)?, &self.context(now)))
    }

    /// Reports whether the services are not loaded yet.
    pub fn is_starting(&self) -> bool {
        self.dependencies.workers.borrow().is_none()
    }

    /// Returns handles to all current services; empty during start-up.
    pub fn workers(&self) -> Workers {
        self.dependencies.workers.borrow().clone().unwrap_or_default()
    }

    /// Returns handles to all services, or an error during start-up.
    fn loaded(&self) -> Result<Workers, ServiceError> {
        self.dependencies.workers.borrow().clone().ok_or(ServiceError::Starting)
    }

    /// Pings all workers and waits for their replies. A worker that is being replaced is skipped.
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
        found.cloned().ok_or_else(|| self.not_watched(name))
    }

    fn not_watched(&self, name: &str) -> ServiceError {
        match self.left_out().into_iter().find(|left_out| left_out.name == name) {
            Some(left_out) => ServiceError::LeftOut(left_out.name, left_out.reason),
            None => ServiceError::Unknown(name.to_owned()),
        }
    }

    /// Returns the services that are not watched because of a fault in the configuration.
    fn left_out(&self) -> Vec<LeftOutService> {
        let active = self.dependencies.active.as_ref();
        active.map(|active| active.borrow().config.left_out.clone()).unwrap_or_default()
    }

    /// Sends a request to one service and waits for its reply.
    pub async fn ask(&self, name: &str, ask: ServiceRequest) -> Result<ServiceReply, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.worker(name)?.inbox.send(Command::Request(ask, reply));
        sent.map_err(|_| ServiceError::Stopping)?;
        answer.await.map_err(|_| ServiceError::Stopping)?.map_err(ServiceError::Unwritable)
    }

    /// Requests an immediate poll cycle over all services.
    pub fn poll_now(&self) -> Result<(), ServiceError> {
        self.polls.send(()).map_err(|_| ServiceError::Stopping)
    }

    /// `GET /status` (spec 2.5), which includes whether the services are still being loaded.
    pub fn report(&self, now: Timestamp) -> StatusReport {
        StatusReport { services: self.records(now).collect(), ..self.head() }
    }

    /// Returns the report without the services' records, and without what is not known here: undelivered notifications.
    pub fn head(&self) -> StatusReport {
        let state = self.dependencies.poll_state.borrow().clone();
        StatusReport {
            starting: self.is_starting(),
            uptime_seconds: self.uptime.seconds(),
            last_poll: state.last_poll,
            poll_count: state.poll_count,
            services: Vec::new(),
            engine_error: self.engine_error(),
            left_out: self.left_out(),
            undelivered: Vec::new(),
        }
    }

    /// Returns the agent's uptime in seconds.
    pub fn uptime_seconds(&self) -> u64 {
        self.uptime.seconds()
    }

    /// Notes that the data in [`Services::report`] is seen as it is now.
    pub fn seen(&self) -> Seen {
        let mut seen = self.dependencies.clone();
        seen.workers.mark_unchanged();
        seen.poll_state.mark_unchanged();
        seen.engine.mark_unchanged();
        seen.services.mark_unchanged();
        seen.state.mark_unchanged();
        if let Some(active) = &mut seen.active {
            active.mark_unchanged();
        }
        Seen(seen)
    }

    /// Returns the state of the poller.
    pub fn poll_state(&self) -> PollState {
        self.dependencies.poll_state.borrow().clone()
    }

    /// Signals changes of the data in [`Services::report`]. Several changes may be merged into one.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::select_all([
            changes_of(self.dependencies.workers.clone()).boxed(),
            changes_of(self.dependencies.services.clone()).boxed(),
            changes_of(self.dependencies.poll_state.clone()).boxed(),
            changes_of(self.dependencies.state.clone()).boxed(),
            changes_in(self.dependencies.engine.clone(), |engine| engine.error.clone()).boxed(),
        ])
    }

    /// `GET /status/<name>` (spec 2.1).
    pub fn status(&self, name: &str, now: Timestamp) -> Result<ServiceStatus, ServiceError> {
        Ok(self.worker(name)?.published.get().record(&self.context(now)))
    }

    /// `GET /blocked` (spec 2.6).
    pub fn blocked(&self) -> Result<BTreeMap<String, String>, ServiceError> {
        self.by_image(|memory| memory.blocked.as_ref())
    }

    /// `GET /not-found` (spec 2.6).
    pub fn not_found(&self) -> Result<BTreeMap<String, String>, ServiceError> {
        self.by_image(|memory| memory.not_found.as_ref())
    }

    /// `GET /errored` (spec 2.6).
    pub fn errored(&self, now: Timestamp) -> Result<BTreeMap<String, String>, ServiceError> {
        let records = self.records_of(&self.loaded()?, now);
        Ok(records.filter_map(|record| Some((record.name, record.errored?))).collect())
    }

    /// Returns warnings about things that the agent does not do because it is not responsible for them, prefixed with the
    /// service's name.
    pub fn warnings(&self) -> Vec<String> {
        let of_one = |worker: &Handle| {
            let service = worker.published.get().service;
            service.warnings().map(|warning| format!("{}: {warning}", worker.config.name)).collect::<Vec<_>>()
        };
        self.workers().iter().flat_map(of_one).collect()
    }

    fn by_image(
        &self,
        digest_of: fn(&ImageMemory) -> Option<&Digest>,
    ) -> Result<BTreeMap<String, String>, ServiceError> {
        let mut all = BTreeMap::new();
        for worker in self.loaded()?.iter() {
            let service = worker.published.get().service;
            for (image, memory) in service.durable().images.iter() {
                if let Some(digest) = digest_of(memory) {
                    all.insert(format!("{}/{image}", worker.config.name), digest.to_string());
                }
            }
        }
        Ok(all)
    }
}

fn changes_of<T: Send + Sync + 'static>(shown: watch::Receiver<T>) -> impl Stream<Item = ()> + Send {
    stream::unfold(shown, |mut shown| async move { shown.changed().await.ok().map(|()| ((), shown)) })
}

/// Signals changes of one part of a watched value.
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
