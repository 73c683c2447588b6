//! Stores entries from agents and heartbeat outcomes in batches, and follows the store for the live view.
//!
//! One task does both: it commits the queued changes, and then reads what is new in the store, its own changes and those of
//! other wardens. So the live view shows the store's content in the store's order, and an entry is visible in it once its
//! request is answered.

mod fleet;
mod live;
mod task;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::journal::Journal;
use evenkeel_common::wire::{FleetEntry, MachineRecord};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::fleet::{Machine, Machines};
use crate::keep::{Change, Keep, KeepError, Outcome, Retention};

pub use task::Task;

/// How many entries are kept in memory for followers, and their size limit in bytes. Followers that are slower, or that
/// reconnect later, are served from the store.
const BUFFERED_ENTRIES: usize = 4096;
const BUFFERED_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of requests waiting for the store.
const MAX_WAITING: usize = 4096;

/// A batch of changes, and the channel for its outcome.
struct Job {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<Vec<Outcome>, KeepError>>,
}

/// Why the store is unavailable, if it is. The last write and the last read may have different outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreState {
    write: Option<String>,
    read: Option<String>,
    /// Whether the view has ever been read completely. Until then, freezes, withheld digests and inventories are missing.
    is_read: bool,
}

impl StoreState {
    /// Returns why the store is unavailable; `None` if it works.
    pub fn error(&self) -> Option<&str> {
        let unread = (!self.is_read).then_some("it has not been read yet");
        self.write.as_deref().or(self.read.as_deref()).or(unread)
    }

    /// Reports whether the store has ever been read completely. Until then, nothing is known about the fleet.
    pub fn is_read(&self) -> bool {
        self.is_read
    }
}

/// The state shared by the endpoints and the heartbeat.
pub struct Collector {
    keep: Arc<dyn Keep>,
    machines: Mutex<Machines>,
    entries: Journal<Arc<str>>,
    /// Id before the first entry of the view, once the view has been loaded.
    begin: Mutex<Option<u64>>,
    jobs: mpsc::Sender<Job>,
    store: watch::Sender<StoreState>,
    /// When the store was last read completely.
    read_at: Mutex<Instant>,
    counters: Counters,
    fleet: fleet::Fleet,
    /// Wakes the removal of outdated data: the verdicts of a removed agent should not wait for it.
    removal: Notify,
    /// Address of the last authenticated request of each agent.
    addresses: Mutex<HashMap<String, IpAddr>>,
    clock: Arc<dyn Clock>,
}

/// Counters of the store's operations.
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
    /// Batches committed.
    pub commits: u64,
    /// Failed calls to the store.
    pub failures: u64,
    /// Total time spent on commits, in microseconds.
    pub commit_micros: u64,
    /// Entries removed because of age or total size.
    pub removed: u64,
    /// Requests currently waiting for the store.
    pub waiting: usize,
    /// Time since the store was last read completely: how far the live view may be behind.
    pub lag: Duration,
}

impl Collector {
    /// Creates a collector for the agents with these ids, and its task.
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
            begin: Mutex::default(),
            jobs,
            store: watch::Sender::new(StoreState::default()),
            read_at: Mutex::new(Instant::now()),
            counters: Counters::default(),
            fleet: fleet::Fleet::default(),
            removal: Notify::new(),
            addresses: Mutex::default(),
            clock,
        });
        let task = Task::new(collector.clone(), receiver, retention);
        (collector, task)
    }

    /// Returns the current time.
    pub fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    /// Returns the store.
    pub fn keep(&self) -> &Arc<dyn Keep> {
        &self.keep
    }

    /// Stores entries, and returns once they are durable.
    pub async fn store(&self, entries: Vec<FleetEntry>) -> Result<Vec<Outcome>, KeepError> {
        self.commit(entries.into_iter().map(|entry| Change::Entry(Box::new(entry))).collect()).await
    }

    /// Records the outcome of a heartbeat. Returns whether it was a transition.
    pub async fn record_heartbeat(
        &self,
        agent: &str,
        outcome: Result<(), String>,
    ) -> Result<bool, KeepError> {
        if self.machines.lock().get(agent).and_then(Machine::online) == Some(outcome.is_ok()) {
            return Ok(false);
        }
        let outcomes = self.commit(vec![Change::Heartbeat { agent: agent.to_owned(), outcome }]).await?;
        Ok(outcomes.iter().any(|outcome| matches!(outcome, Outcome::Stored(_))))
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, KeepError> {
        let (done, outcome) = oneshot::channel();
        if self.jobs.try_send(Job { changes, done }).is_err() {
            return Err(KeepError("too many requests are waiting for the store".to_owned()));
        }
        outcome.await.unwrap_or_else(|_| Err(KeepError("the warden is stopping".to_owned())))
    }

    /// Replaces the configured agents; those that remain keep their state. `is_complete`: whether the configuration lists no
    /// others, such as those that are left out because of a fault. Only then are the verdicts of the others removed.
    pub fn set_agents(&self, ids: impl IntoIterator<Item = String>, is_complete: bool) {
        self.machines.lock().configure(ids, is_complete);
        self.removal.notify_one();
    }

    /// Subscribes to the state of the store.
    pub fn store_state(&self) -> watch::Receiver<StoreState> {
        self.store.subscribe()
    }

    /// Returns figures for the metrics.
    pub fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            commits: of(&self.counters.commits),
            failures: of(&self.counters.failures),
            commit_micros: of(&self.counters.commit_micros),
            removed: of(&self.counters.removed),
            waiting: self.jobs.max_capacity() - self.jobs.capacity(),
            lag: self.read_at.lock().elapsed(),
        }
    }

    /// Remembers the address from which an agent authenticated.
    pub fn record_address(&self, agent: &str, client: IpAddr) {
        let mut addresses = self.addresses.lock();
        if addresses.get(agent) != Some(&client) {
            addresses.insert(agent.to_owned(), client);
        }
    }

    /// Reports whether the agent's last authenticated request came from this address.
    pub fn is_known_address(&self, agent: &str, client: IpAddr) -> bool {
        self.addresses.lock().get(agent) == Some(&client)
    }

    /// Returns the machine name in the agent's latest entry, if it differs from the agent's id.
    pub fn machine_name(&self, agent: &str) -> Option<String> {
        self.machines.lock().get(agent)?.name().map(str::to_owned)
    }

    /// `GET /machines`
    pub fn machine_records(&self) -> Vec<MachineRecord> {
        self.machines.lock().all().map(|machine| machine.record()).collect()
    }

    /// Returns a copy of all machines, in configuration order.
    pub fn machines(&self) -> Vec<Machine> {
        self.machines.lock().all().collect()
    }

    /// Returns the last entries in memory, oldest first.
    pub fn recent(&self, count: usize) -> Vec<Arc<str>> {
        self.entries.recent(count)
    }

    /// Returns the id before the first entry of the view; 0 if the store was empty or has not been read yet.
    fn begin(&self) -> u64 {
        self.begin.lock().unwrap_or(0)
    }
}
