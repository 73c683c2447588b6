//! What the warden knows: the latest entries and the state of every agent, changed together under one lock.

pub mod entry;
mod machine;
mod machines;
mod saved;
mod sequence;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_common::clock::Clock;
use evenkeel_common::journal::{Journal, Subscription};
use evenkeel_common::sse;
use evenkeel_common::wire::{FleetEntry, Level, MachineRecord};
use tokio::sync::watch;

pub use machine::Machine;
use machines::Machines;
pub use saved::{Changes, SavedState};

/// How many entries survive a restart (spec 8).
pub const PERSISTED_ENTRIES: usize = 200;
/// How many are buffered for clients that are slow or reconnect, and their size limit in bytes.
const BUFFERED_ENTRIES: usize = 16 * 1024;
const BUFFERED_BYTES: usize = 32 * 1024 * 1024;
/// After a crash the ids skip ahead this far, so that none is issued twice.
const ID_GAP_AFTER_CRASH: u64 = 10_000_000;

/// Entries as lines of JSON, and the machines.
pub struct Fleet {
    machines: Mutex<Machines>,
    entries: Journal<Arc<str>>,
    /// Address of the last authenticated request of each agent.
    addresses: Mutex<HashMap<String, IpAddr>>,
    /// Incremented with every change; wakes the state file's writer.
    revision: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
}

impl Fleet {
    /// The fleet of these agents, with the state that was saved before.
    pub fn new(ids: impl IntoIterator<Item = String>, saved: SavedState, clock: Arc<dyn Clock>) -> Self {
        let surplus = saved.entries.len().saturating_sub(PERSISTED_ENTRIES);
        let entries: Vec<Arc<str>> =
            saved.entries.into_iter().skip(surplus).map(|entry| sse::json(&entry)).collect();
        let count = entries.len() as u64;
        let first_id = if saved.is_complete && saved.next_id > count {
            saved.next_id - count
        } else {
            // Greater than any id issued before: fewer than one entry a microsecond is stored.
            let now = u64::try_from(clock.now().as_microsecond()).unwrap_or_default();
            now.max(saved.next_id.saturating_add(ID_GAP_AFTER_CRASH))
        };
        let journal =
            Journal::weighed(BUFFERED_ENTRIES, first_id, BUFFERED_BYTES, |entry: &Arc<str>| entry.len());
        for entry in entries {
            journal.append(entry);
        }
        Self {
            machines: Mutex::new(Machines::new(ids, &saved.machines)),
            entries: journal,
            addresses: Mutex::default(),
            revision: watch::Sender::new(0),
            clock,
        }
    }

    /// Replaces the configured agents; those that remain keep their state.
    pub fn set_agents(&self, ids: impl IntoIterator<Item = String>) {
        let mut machines = self.lock();
        *machines = Machines::new(ids, machines.all());
        self.notify();
    }

    /// Stores an entry of its agent. `false` for a duplicate, which is counted but not stored.
    pub fn store(&self, entry: &FleetEntry) -> bool {
        let line = sse::json(entry);
        let mut machines = self.lock();
        let is_new = machines.record_entry(entry, self.clock.now());
        if is_new {
            self.entries.append(line);
        }
        self.notify();
        is_new
    }

    /// Records the outcome of a heartbeat; a transition is stored as an entry.
    pub fn record_heartbeat(&self, agent: &str, outcome: Result<(), String>) {
        let mut machines = self.lock();
        let before = machines.get(agent).and_then(Machine::online);
        if let Some(entry) = machines.record_heartbeat(agent, outcome, self.clock.now()) {
            let (agent, reason) = (&entry.agent, &entry.reason);
            if entry.level == Level::Info.as_str() {
                tracing::info!(agent, reason, "{}", entry.event);
            } else {
                tracing::warn!(agent, reason, "{}", entry.event);
            }
            self.entries.append(sse::json(&entry));
        }
        if machines.get(agent).and_then(Machine::online) != before {
            self.notify();
        }
    }

    /// Follows the entries.
    pub fn subscribe(&self, after: Option<u64>) -> Subscription<Arc<str>> {
        self.entries.subscribe(sse::REPLAY, after)
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

    /// `GET /machines`
    pub fn machine_records(&self) -> Vec<MachineRecord> {
        self.lock().all().iter().map(Machine::record).collect()
    }

    /// A copy of all machines, in the order of the configuration.
    pub fn machines(&self) -> Vec<Machine> {
        self.lock().all().to_vec()
    }

    /// Wakes its receiver after every change.
    pub fn subscribe_to_changes(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// What has changed since the last call: the persisted entries from id `first` on, the next id, and the machines.
    pub fn take_changes(&self, first: u64) -> Changes {
        let mut machines = self.lock();
        let (lines, next_id) = (self.entries.recent(PERSISTED_ENTRIES), self.entries.next_id());
        let oldest = next_id - lines.len() as u64;
        let entries = (oldest..).zip(lines).filter(|(id, _)| *id >= first).collect();
        Changes { entries, next_id, machines: machines.take_changed() }
    }

    /// Everything that survives a restart: the last entries, the next id, and the machines.
    pub fn snapshot(&self) -> (Vec<Arc<str>>, u64, Vec<Machine>) {
        let machines = self.lock();
        (self.entries.recent(PERSISTED_ENTRIES), self.entries.next_id(), machines.all().to_vec())
    }

    fn notify(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
