//! The durable outbox: one log of entries, and a cursor per destination (DECISIONS 5).
//!
//! Every entry is one row, written once for all destinations; a destination is a cursor into the rows. The sequence number
//! of an entry is its position in the log and is never reused, so receivers can detect duplicates and gaps. After all
//! destinations have passed them, the last [`HISTORY`] rows are kept, so that they can be replayed after a restart.
//!
//! [`Outbox::commit`] writes entries in one transaction with the related state. [`Outbox::put`] queues an entry without
//! related state in memory, and [`Outbox::run`] writes the queued entries and the cursors of the destinations with its next
//! transaction. An entry is therefore durable some milliseconds after it was put. Until then it is not visible, neither to
//! a destination nor to a reader of [`Outbox::journal`]. So an entry that was visible anywhere reaches every destination
//! even if the program is killed, and its number is not reused. Only while the disk refuses writes are entries visible
//! immediately, without a number for the destinations.

mod destination;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::journal::Journal;
use crate::store::{Change, Store, StoreError};
use crate::wire::AuditEntry;

/// Maximum number of entries that wait for a destination; beyond that the oldest are dropped (DECISIONS 5).
pub const CAPACITY: u64 = 10_000;
/// How many delivered entries are kept and replayed to readers of the journal.
pub const HISTORY: usize = 500;

const ENTRIES: &str = "outbox/entry/";
const DONE: &str = "outbox/done/";
const NEXT: &str = "outbox/next";
const EPOCH: &str = "outbox/epoch";
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_mins(1);

pub use destination::Destination;
use stored::{Read, number, read_cursors, read_entries};

/// The log, and the cursor of each destination.
#[derive(Clone)]
pub struct Outbox {
    log: Arc<watch::Sender<Log>>,
    /// Serializes the transactions.
    write_lock: Arc<Mutex<()>>,
    journal: Arc<Journal<Arc<AuditEntry>>>,
    store: Arc<dyn Store>,
    /// The store of the state, if it is not the same one.
    state: Option<Arc<dyn Store>>,
    clock: Arc<dyn Clock>,
    program: &'static str,
    /// Identifies the numbering that the sequence numbers belong to.
    epoch: Arc<str>,
}

/// The result of opening the outbox.
pub struct Opened {
    /// The outbox.
    pub outbox: Outbox,
    /// Whether the store already had an outbox. If so, an entry that is not in it was never recorded.
    pub continued: bool,
}

#[derive(Debug)]
struct Log {
    /// The visible entries.
    journal: Arc<Journal<Arc<AuditEntry>>>,
    /// Number of the oldest entry that is kept.
    first: u64,
    /// Number of the next entry.
    next: u64,
    /// Entries of the state transaction in progress. They get the numbers from `next` on if it succeeds, and are dropped
    /// if it fails.
    committing: Vec<Arc<AuditEntry>>,
    /// Entries put during that transaction; they get their numbers after it.
    deferred: Vec<Arc<AuditEntry>>,
    /// Entries that are not durable yet.
    pending: BTreeMap<u64, Arc<AuditEntry>>,
    /// Numbers of the rows in the store.
    stored: Range<u64>,
    /// Whether the next number is stored.
    is_next_stored: bool,
    /// Whether the epoch is stored.
    is_epoch_stored: bool,
    cursors: BTreeMap<String, Cursor>,
    /// Removed destinations whose cursors are still in the store.
    to_remove: BTreeSet<String>,
    /// Whether writes to the store are failing.
    failing: bool,
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    /// Number of the next entry to deliver.
    next: u64,
    /// The stored value of `next`.
    stored: Option<u64>,
    /// Whether a [`Destination`] handle exists.
    open: bool,
}

impl Log {
    fn put(&mut self, entry: Arc<AuditEntry>) {
        if !self.committing.is_empty() {
            self.deferred.push(entry);
            return;
        }
        self.pending.insert(self.next, entry);
        self.next += 1;
        if self.failing {
            self.publish(self.next);
        }
        if self.next - self.first > CAPACITY {
            self.first = self.next - CAPACITY;
            self.publish(self.first);
            self.pending = self.pending.split_off(&self.first);
        }
    }

    /// Ends the state transaction: its entries are added if it succeeded, followed by those put during it. The outcome of a
    /// dropped transaction is unknown; its entries may be durable, so they keep their numbers.
    fn end_commit(&mut self, succeeded: bool) {
        let committed = std::mem::take(&mut self.committing);
        let deferred = std::mem::take(&mut self.deferred);
        for entry in committed.into_iter().filter(|_| succeeded).chain(deferred) {
            self.put(entry);
        }
    }

    /// Makes the entries before this number visible.
    fn publish(&self, end: u64) {
        let begin = self.journal.next_id().min(end);
        for entry in self.pending.range(begin..end).map(|(_, entry)| entry) {
            self.journal.append(entry.clone());
        }
    }

    /// Drops the entries that all destinations have passed, except for the history.
    fn trim(&mut self) {
        let passed = self.cursors.values().map(|cursor| cursor.next).min().unwrap_or(self.next);
        self.first = self.first.max(passed.min(self.next.saturating_sub(HISTORY as u64)));
    }

    fn has_item(&self, name: &str) -> bool {
        self.cursors.get(name).is_some_and(|cursor| self.has_item_at(cursor.next))
    }

    fn has_item_at(&self, cursor: u64) -> bool {
        cursor < self.next && (cursor < self.first || self.failing || !self.pending.contains_key(&cursor))
    }

    fn is_dirty(&self) -> bool {
        !self.pending.is_empty()
            || !self.deferred.is_empty()
            || !self.is_next_stored
            || !self.is_epoch_stored
            || !self.to_remove.is_empty()
            || self.cursors.values().any(|cursor| cursor.stored != Some(cursor.next))
    }

    fn is_open(&self) -> bool {
        self.cursors.values().any(|cursor| cursor.open)
    }
}

/// Reports whether two destinations are of one family, of which a name is the first part: `mail`, `mail/a`, `mail/b`.
fn is_family(one: &str, other: &str) -> bool {
    let is_part = |whole: &str, part: &str| {
        part == whole || part.strip_prefix(whole).is_some_and(|rest| rest.starts_with('/'))
    };
    is_part(one, other) || is_part(other, one)
}

/// Reports whether listing a name keeps a destination: its own name, or `mail/*` for all parts of `mail`.
fn is_kept_by(listed: &str, name: &str) -> bool {
    listed == name || listed.strip_suffix('*').is_some_and(|family| name.starts_with(family))
}

/// Where a new destination continues: where the first of its family is, of those that are not listed any more.
fn start_of<'a>(name: &str, listed: &[String], known: impl Iterator<Item = (&'a str, u64)>) -> Option<u64> {
    let is_replaced = |known: &str| is_family(name, known) && !listed.iter().any(|name| name == known);
    known.filter(|(known, _)| is_replaced(known)).map(|(_, at)| at).min()
}

/// An entry for a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The entry.
    pub entry: Arc<AuditEntry>,
    /// Its number; `None` while the disk refuses writes, since the number could be reused after a crash, and for an entry that
    /// only reports how many were lost.
    pub seq: Option<u64>,
    /// Whether the entry only reports how many were lost. Such an entry bypasses the filters of the destination.
    pub is_loss: bool,
    /// The cursor after its delivery.
    after: u64,
}

impl Outbox {
    /// Opens the outbox in `store` for these destinations. A new destination gets the entries from now on; the cursor of a
    /// destination that is no longer configured is removed. `program` is the service name in entries about lost entries.
    pub async fn open(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        program: &'static str,
        names: &[String],
    ) -> Result<Opened, StoreError> {
        let Read { mut history, first, end } = read_entries(store.as_ref()).await?;
        let stored_next = store.get(NEXT).await?.and_then(|row| number(&row));
        // Without a stored number, start with one that is greater than all numbers of earlier runs: there is less than one
        // entry per microsecond.
        let fresh_start = || u64::try_from(clock.now().as_microsecond()).unwrap_or_default();
        let next = stored_next.unwrap_or_else(fresh_start).max(end);
        if next != end {
            history.clear();
        }
        let kept_epoch = store.get(EPOCH).await?.and_then(|row| String::from_utf8(row).ok());
        let kept_epoch = kept_epoch.filter(|epoch| stored_next.is_some() && !epoch.is_empty());
        let is_epoch_stored = kept_epoch.is_some();
        let epoch = kept_epoch.unwrap_or_else(|| format!("{:032x}", fastrand::u128(..)));
        let first = first.unwrap_or(next);
        let cursors = read_cursors(store.as_ref(), names, next, stored_next.is_some()).await?;
        let journal = Arc::new(Journal::new(HISTORY, next - history.len() as u64));
        for entry in &history {
            journal.append(Arc::clone(entry));
        }
        let log = Log {
            journal: journal.clone(),
            first,
            next,
            committing: Vec::new(),
            deferred: Vec::new(),
            pending: BTreeMap::new(),
            stored: first..next,
            is_next_stored: stored_next.is_some(),
            is_epoch_stored,
            cursors,
            to_remove: BTreeSet::new(),
            failing: false,
        };
        let log = Arc::new(watch::Sender::new(log));
        let outbox = Self {
            log,
            write_lock: Arc::default(),
            journal,
            store,
            state: None,
            clock,
            program,
            epoch: epoch.into(),
        };
        Ok(Opened { outbox, continued: stored_next.is_some() })
    }

    /// The last entries, including those of earlier runs, and the ones that follow. The id of an entry is its number. An entry
    /// becomes visible once it is durable or the disk has refused it.
    pub fn journal(&self) -> &Journal<Arc<AuditEntry>> {
        &self.journal
    }

    /// Identifies the numbering that the sequence numbers belong to: a random string that is created with the first number
    /// and stored along with the numbers.
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The number of the next entry; all entries recorded so far have a smaller one.
    pub fn next_seq(&self) -> u64 {
        let log = self.log.borrow();
        log.next + (log.committing.len() + log.deferred.len()) as u64
    }

    /// Reports whether a destination has received all entries before this mark; `false` for an unknown destination.
    pub fn is_delivered(&self, name: &str, mark: u64) -> bool {
        self.log.borrow().cursors.get(name).is_some_and(|cursor| cursor.next >= mark)
    }

    /// Adds an entry for all destinations. Never waits and never fails.
    pub fn put(&self, entry: Arc<AuditEntry>) {
        self.log.send_modify(|log| log.put(entry));
    }

    /// Writes entries for all destinations in one transaction with `changes`, the related state. The entries are visible when
    /// this returns. If it fails, neither the state nor the entries are written.
    pub async fn commit(
        &self,
        changes: Vec<Change>,
        entries: Vec<Arc<AuditEntry>>,
    ) -> Result<(), StoreError> {
        if let Some(state) = &self.state {
            state.put_all(changes).await?;
            for entry in entries {
                self.put(entry);
            }
            return Ok(());
        }
        if entries.is_empty() {
            return self.store.put_all(changes).await;
        }
        self.write(changes, entries).await
    }

    /// Uses another store for the state. The entries then cannot be part of its transaction and are written after it.
    #[must_use]
    pub fn with_state_in(mut self, store: Arc<dyn Store>) -> Self {
        self.state = Some(store);
        self
    }

    /// Reports whether there is a destination with this name.
    pub fn has_destination(&self, name: &str) -> bool {
        self.log.borrow().cursors.contains_key(name)
    }

    /// Number of entries waiting for a destination.
    pub fn waiting(&self, name: &str) -> u64 {
        let log = self.log.borrow();
        log.cursors.get(name).map_or(0, |cursor| log.next - cursor.next.max(log.first))
    }

    /// The visible entries that wait for a destination, oldest first: the last of them if there are more than the journal has.
    pub fn waiting_entries(&self, name: &str) -> Vec<Arc<AuditEntry>> {
        let next = self.log.borrow().cursors.get(name).map(|cursor| cursor.next);
        next.map(|next| self.journal.since(next)).unwrap_or_default()
    }

    /// Number of entries that are not durable yet.
    pub fn unwritten(&self) -> usize {
        let log = self.log.borrow();
        log.pending.len() + log.deferred.len()
    }

    /// Replaces the set of destinations; `mail/*` keeps those of a family as they are. A new destination gets the entries from
    /// now on, or continues for those of its family that it replaces. A destination that is no longer listed and has no [`Destination`] handle is removed; the removed ones
    /// that have no successor are returned with the number of their waiting entries.
    pub fn set_destinations(&self, names: &[String]) -> Vec<(String, u64)> {
        let mut removed = Vec::new();
        self.log.send_modify(|log| {
            let (next, first) = (log.next, log.first);
            let known: Vec<(String, u64)> =
                log.cursors.iter().map(|(name, cursor)| (name.clone(), cursor.next)).collect();
            let is_listed = |name: &String| names.iter().any(|listed| is_kept_by(listed, name));
            for (name, cursor) in log.cursors.extract_if(.., |name, cursor| !cursor.open && !is_listed(name))
            {
                if !names.iter().any(|listed| is_family(listed, &name)) {
                    removed.push((name.clone(), next - cursor.next.max(first)));
                }
                log.to_remove.insert(name);
            }
            for name in names.iter().filter(|name| !name.ends_with('*')) {
                log.to_remove.remove(name);
                let inherited = start_of(name, names, known.iter().map(|(known, at)| (known.as_str(), *at)));
                let start = inherited.unwrap_or(next);
                log.cursors.entry(name.clone()).or_insert(Cursor { next: start, stored: None, open: false });
            }
        });
        removed
    }

    /// Returns the handle of a destination, for one task. `None` for a name that was not passed to
    /// [`open`](Self::open) or [`set_destinations`](Self::set_destinations).
    pub fn destination(&self, name: &str) -> Option<Destination> {
        let found = self
            .log
            .send_if_modified(|log| log.cursors.get_mut(name).map(|cursor| cursor.open = true).is_some());
        found.then(|| Destination {
            outbox: self.clone(),
            changes: self.log.subscribe(),
            name: name.to_owned(),
        })
    }

    /// Writes until `stop` is cancelled, everything is written and all destination handles have been dropped. A failed write
    /// is retried; after `stop` it is retried once.
    pub async fn run(self, stop: CancellationToken) {
        let mut changes = self.log.subscribe();
        let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
        loop {
            // An error would mean that the log has been dropped, but we own it.
            tokio::select! {
                _ = changes.wait_for(Log::is_dirty) => {}
                () = self.destinations_dropped(&stop) => {}
            }
            let last_attempt = stop.is_cancelled() && !self.log.borrow().is_open();
            match self.write(Vec::new(), Vec::new()).await {
                Ok(()) => {
                    backoff.succeeded();
                    if last_attempt && !self.log.borrow().is_dirty() {
                        return;
                    }
                }
                Err(error) if last_attempt => {
                    tracing::error!(%error, "undelivered entries could not be saved for the next start");
                    return;
                }
                Err(error) => {
                    let began = |log: &mut Log| {
                        log.publish(log.next);
                        !std::mem::replace(&mut log.failing, true)
                    };
                    if self.log.send_if_modified(began) {
                        tracing::warn!(%error, "cannot write entries to disk; they are delivered from memory");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(backoff.failed()) => {}
                        () = self.destinations_dropped(&stop) => {}
                    }
                }
            }
        }
    }

    async fn destinations_dropped(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        let _ = self.log.subscribe().wait_for(|log| !log.is_open()).await;
    }

    /// Runs one transaction. It writes the pending entries, the cursors, and the state changes with their entries, and removes
    /// old rows.
    async fn write(&self, mut changes: Vec<Change>, entries: Vec<Arc<AuditEntry>>) -> Result<(), StoreError> {
        let _guard = self.write_lock.lock().await;
        self.log.send_if_modified(|log| {
            // A dropped transaction may have been committed.
            log.end_commit(true);
            log.trim();
            log.committing = entries;
            false
        });
        let (first, next, cursors, to_remove) = {
            let log = self.log.borrow();
            let (next, committing) = (log.next, &log.committing);
            let pending =
                log.pending.iter().map(|(seq, entry)| (*seq, entry)).chain((next..).zip(committing));
            for (seq, entry) in pending {
                let row =
                    serde_json::to_vec(&**entry).expect("an entry has only text keys and finite values");
                changes.push((entry_key(seq), Some(row)));
            }
            let next = next + committing.len() as u64;
            if !log.pending.is_empty() || next > log.next || !log.is_next_stored {
                changes.push((NEXT.to_owned(), Some(next.to_string().into_bytes())));
            }
            if !log.is_epoch_stored {
                changes.push((EPOCH.to_owned(), Some(self.epoch.as_bytes().to_vec())));
            }
            let trimmed = log.stored.start..log.first.min(log.stored.end);
            changes.extend(trimmed.map(|seq| (entry_key(seq), None)));
            for (name, cursor) in &log.cursors {
                if cursor.stored != Some(cursor.next) {
                    changes.push((cursor_key(name), Some(cursor.next.to_string().into_bytes())));
                }
            }
            changes.extend(log.to_remove.iter().map(|name| (cursor_key(name), None)));
            (log.first, next, log.cursors.clone(), log.to_remove.clone())
        };
        let written = if changes.is_empty() { Ok(()) } else { self.store.put_all(changes).await };
        if written.is_err() {
            self.log.send_modify(|log| log.end_commit(false));
            return written;
        }
        self.log.send_modify(|log| {
            log.end_commit(true);
            log.publish(next);
            log.pending = log.pending.split_off(&next);
            log.stored = first..next;
            (log.is_next_stored, log.is_epoch_stored) = (true, true);
            log.to_remove.retain(|name| !to_remove.contains(name));
            for (name, stored) in cursors {
                if let Some(cursor) = log.cursors.get_mut(&name) {
                    cursor.stored = Some(stored.next);
                }
            }
            if std::mem::take(&mut log.failing) {
                tracing::info!("entries are written to disk again");
            }
        });
        Ok(())
    }
}

fn entry_key(seq: u64) -> String {
    // Padded to the width of the largest number, so that the keys sort like the numbers.
    format!("{ENTRIES}{seq:020}")
}

fn cursor_key(name: &str) -> String {
    format!("{DONE}{name}")
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "queue/commit_tests.rs"]
mod commit_tests;
