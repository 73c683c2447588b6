//! The last entries and the machines that they came from, under one lock: what is stored is counted, once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_common::clock::Clock;
use evenkeel_common::journal::{Journal, Subscription};
use evenkeel_common::sse;
use evenkeel_common::wire::{FleetEntry, Level, MachineRecord};
use tokio::sync::watch;

use crate::machines::{Machine, Machines};
use crate::state_file::State;

/// How many entries are kept for the next life (spec 8).
pub const KEPT: usize = 200;
/// How many more are at hand for clients that are slow or come back after a moment, and what they may weigh.
const AT_HAND: usize = 16 * 1024;
const AT_HAND_BYTES: usize = 32 * 1024 * 1024;
/// After a crash ids go on so far behind the last one that is known that none is given twice.
const LEAP: u64 = 10_000_000;

/// The entries, as lines of JSON, and the machines.
pub struct Ring {
    machines: Mutex<Machines>,
    entries: Journal<Arc<str>>,
    /// Where agents' right tokens came from the last time.
    origins: Mutex<HashMap<String, IpAddr>>,
    /// Counts changes, for the state file.
    changes: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
}

/// What is to be written.
pub struct Changes {
    /// Lines of JSON and their ids, oldest first.
    pub entries: Vec<(u64, Arc<str>)>,
    /// Id that the next entry gets.
    pub next_id: u64,
    /// Machines as they are now.
    pub machines: Vec<Machine>,
}

impl Ring {
    /// The ring for these agents, with what an earlier life left.
    pub fn new(ids: impl IntoIterator<Item = String>, state: State, clock: Arc<dyn Clock>) -> Self {
        let kept = state.entries.len().saturating_sub(KEPT);
        let entries: Vec<Arc<str>> =
            state.entries.into_iter().skip(kept).map(|entry| sse::json(&entry)).collect();
        let count = entries.len() as u64;
        let first = if state.is_complete && state.next_id > count {
            state.next_id - count
        } else {
            // Greater than every id of an earlier life: entries are fewer than one in a microsecond.
            let now = u64::try_from(clock.now().as_microsecond()).unwrap_or_default();
            now.max(state.next_id.saturating_add(LEAP))
        };
        let journal = Journal::weighed(AT_HAND, first, AT_HAND_BYTES, |entry: &Arc<str>| entry.len());
        for entry in entries {
            journal.append(entry);
        }
        Self {
            machines: Mutex::new(Machines::new(ids, &state.machines)),
            entries: journal,
            origins: Mutex::default(),
            changes: watch::Sender::new(0),
            clock,
        }
    }

    /// Has these agents from now on; those that stay keep what is known of them.
    pub fn know(&self, ids: impl IntoIterator<Item = String>) {
        let mut machines = self.machines();
        *machines = Machines::new(ids, machines.all());
        self.changed();
    }

    /// Stores an entry of its agent, unless it came before; says whether it did not.
    pub fn take(&self, entry: &FleetEntry) -> bool {
        let line = sse::json(entry);
        let mut machines = self.machines();
        let is_new = machines.arrived(entry, self.clock.now());
        if is_new {
            self.entries.append(line);
        }
        self.changed();
        is_new
    }

    /// Notes what a heartbeat found; a change is an entry.
    pub fn heard(&self, agent: &str, outcome: Result<(), String>) {
        let mut machines = self.machines();
        let before = machines.of(agent).and_then(Machine::online);
        if let Some(entry) = machines.heard(agent, outcome, self.clock.now()) {
            let (agent, reason) = (&entry.agent, &entry.reason);
            if entry.level == Level::Info.as_str() {
                tracing::info!(agent, reason, "{}", entry.event);
            } else {
                tracing::warn!(agent, reason, "{}", entry.event);
            }
            self.entries.append(sse::json(&entry));
        }
        if machines.of(agent).and_then(Machine::online) != before {
            self.changed();
        }
    }

    /// Follows the entries.
    pub fn subscribe(&self, after: Option<u64>) -> Subscription<Arc<str>> {
        self.entries.subscribe(sse::REPLAY, after)
    }

    /// Notes the address that an agent's right token came from.
    pub fn comes_from(&self, agent: &str, client: IpAddr) {
        let mut origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        if origins.get(agent) != Some(&client) {
            origins.insert(agent.to_owned(), client);
        }
    }

    /// Whether an agent's right token came from there the last time.
    pub fn came_from(&self, agent: &str, client: IpAddr) -> bool {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner).get(agent) == Some(&client)
    }

    /// `GET /machines`
    pub fn records(&self) -> Vec<MachineRecord> {
        self.machines().records()
    }

    /// All machines as they are now.
    pub fn machines_now(&self) -> Vec<Machine> {
        self.machines().all().to_vec()
    }

    /// Tells of every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// What has changed since the last call, for the state file: the kept entries from the id `from` on, the next id, and
    /// the machines.
    pub fn take_changes(&self, from: u64) -> Changes {
        let mut machines = self.machines();
        let (lines, next_id) = (self.entries.recent(KEPT), self.entries.next_id());
        let first = next_id - lines.len() as u64;
        let entries = (first..).zip(lines).filter(|(id, _)| *id >= from).collect();
        Changes { entries, next_id, machines: machines.take_changed() }
    }

    /// What the next life needs: the lines of the last entries, the next id, the machines.
    pub fn state(&self) -> (Vec<Arc<str>>, u64, Vec<Machine>) {
        let machines = self.machines();
        (self.entries.recent(KEPT), self.entries.next_id(), machines.all().to_vec())
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
