//! Takes what agents send and heartbeats find, has it stored in batches, and shows the store's end live.
//!
//! One task does both: it commits what has come, and then reads what is new in the store, its own and other wardens'. So
//! the live view is the store's content in the store's order, and whoever is answered finds the entry in the view.

mod fleet;
mod live;
mod task;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::journal::Journal;
use evenkeel_common::wire::{FleetEntry, MachineRecord};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::fleet::{Machine, Machines};
use crate::keep::{Change, Keep, KeepError, Outcome, Retention};

pub use task::Task;

/// How many entries are kept in memory for those that follow, and their size limit in bytes. Who is slower, or comes back
/// later, is served from the store.
const BUFFERED_ENTRIES: usize = 4096;
const BUFFERED_BYTES: usize = 4 * 1024 * 1024;
/// Requests that may wait for the store.
const MAX_WAITING: usize = 4096;

/// A batch of changes, and who waits for its outcome.
struct Job {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<Vec<Outcome>, KeepError>>,
}

/// Why the store is away, as far as it is: the last write and the last read may tell different things.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreState {
    write: Option<String>,
    read: Option<String>,
}

impl StoreState {
    /// Why the store is away; `None` when it works.
    pub fn error(&self) -> Option<&str> {
        self.write.as_deref().or(self.read.as_deref())
    }
}

/// What the endpoints and the heartbeat share.
pub struct Collector {
    keep: Arc<dyn Keep>,
    machines: Mutex<Machines>,
    entries: Journal<Arc<str>>,
    /// Id before the first entry of the view, since it has begun.
    begin: OnceLock<u64>,
    jobs: mpsc::Sender<Job>,
    store: watch::Sender<StoreState>,
    /// When the store was last read to its end.
    read_at: Mutex<Instant>,
    counters: Counters,
    fleet: fleet::Fleet,
    /// Address of the last authenticated request of each agent.
    addresses: Mutex<HashMap<String, IpAddr>>,
    clock: Arc<dyn Clock>,
}

/// What the store has been asked to do.
#[derive(Debug, Default)]
struct Counters {
    commits: AtomicU64,
    failures: AtomicU64,
    commit_micros: AtomicU64,
    removed: AtomicU64,
}

/// Figures for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Batches that were committed.
    pub commits: u64,
    /// Calls of the store that failed.
    pub failures: u64,
    /// Time that commits have taken together, in microseconds.
    pub commit_micros: u64,
    /// Entries that were removed for their age or for size.
    pub removed: u64,
    /// Requests that wait for the store now.
    pub waiting: usize,
    /// Time since the store was last read to its end: how far the live view may be behind.
    pub lag: Duration,
}

impl Collector {
    /// A collector for the agents with these ids, and its task.
    pub fn new(
        keep: Arc<dyn Keep>,
        ids: impl IntoIterator<Item = String>,
        retention: Retention,
        clock: Arc<dyn Clock>,
    ) -> (Arc<Self>, Task) {
        let (jobs, receiver) = mpsc::channel(MAX_WAITING);
        let collector = Arc::new(Self {
            keep,
            machines: Mutex::new(Machines::new(ids)),
            entries: Journal::weighed(BUFFERED_ENTRIES, 0, BUFFERED_BYTES, |entry: &Arc<str>| entry.len()),
            begin: OnceLock::new(),
            jobs,
            store: watch::Sender::new(StoreState::default()),
            read_at: Mutex::new(Instant::now()),
            counters: Counters::default(),
            fleet: fleet::Fleet::default(),
            addresses: Mutex::default(),
            clock,
        });
        let task = Task::new(collector.clone(), receiver, retention);
        (collector, task)
    }

    /// The time.
    pub fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    /// The store.
    pub fn keep(&self) -> &Arc<dyn Keep> {
        &self.keep
    }

    /// Stores entries of their agents, and returns when they are durable.
    pub async fn store(&self, entries: Vec<FleetEntry>) -> Result<Vec<Outcome>, KeepError> {
        self.commit(entries.into_iter().map(|entry| Change::Entry(Box::new(entry))).collect()).await
    }

    /// Records the outcome of a heartbeat; whether it was a transition.
    pub async fn record_heartbeat(
        &self,
        agent: &str,
        outcome: Result<(), String>,
    ) -> Result<bool, KeepError> {
        if self.lock().get(agent).and_then(Machine::online) == Some(outcome.is_ok()) {
            return Ok(false);
        }
        let outcomes = self.commit(vec![Change::Heartbeat { agent: agent.to_owned(), outcome }]).await?;
        Ok(outcomes.iter().any(|outcome| matches!(outcome, Outcome::Stored(_))))
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, KeepError> {
        let (done, outcome) = oneshot::channel();
        if self.jobs.try_send(Job { changes, done }).is_err() {
            return Err(KeepError("too many requests wait for the store".to_owned()));
        }
        outcome.await.unwrap_or_else(|_| Err(KeepError("the warden is stopping".to_owned())))
    }

    /// Replaces the configured agents; those that remain keep their state.
    pub fn set_agents(&self, ids: impl IntoIterator<Item = String>) {
        self.lock().configure(ids);
    }

    /// Whether the store works.
    pub fn store_state(&self) -> watch::Receiver<StoreState> {
        self.store.subscribe()
    }

    /// Figures for the metrics.
    pub fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            commits: of(&self.counters.commits),
            failures: of(&self.counters.failures),
            commit_micros: of(&self.counters.commit_micros),
            removed: of(&self.counters.removed),
            waiting: self.jobs.max_capacity() - self.jobs.capacity(),
            lag: self.read_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed(),
        }
    }

    /// Remembers the address from which an agent authenticated.
    pub fn record_address(&self, agent: &str, client: IpAddr) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.get(agent) != Some(&client) {
            addresses.insert(agent.to_owned(), client);
        }
    }

    /// Whether the agent's last authenticated request came from this address.
    pub fn is_known_address(&self, agent: &str, client: IpAddr) -> bool {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).get(agent) == Some(&client)
    }

    /// What an agent called itself last in its entries, where that is not its id.
    pub fn machine_name(&self, agent: &str) -> Option<String> {
        self.lock().get(agent)?.name().map(str::to_owned)
    }

    /// `GET /machines`
    pub fn machine_records(&self) -> Vec<MachineRecord> {
        self.lock().all().map(|machine| machine.record()).collect()
    }

    /// A copy of all machines, in the order of the configuration.
    pub fn machines(&self) -> Vec<Machine> {
        self.lock().all().collect()
    }

    /// The last entries that are in memory, oldest first.
    pub fn recent(&self, count: usize) -> Vec<Arc<str>> {
        self.entries.recent(count)
    }

    /// Id before the first entry of the view; 0 where the store was empty, or was not read yet.
    fn begin(&self) -> u64 {
        self.begin.get().copied().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
