//! The durable outbox: one log of entries and, per destination, how far it has got (DECISIONS 5).
//!
//! Every entry is one row, written once for all destinations; a destination is a cursor into the rows. The number of
//! an entry is its place in the log and is never given twice, so a receiver can tell a repeat and a gap. The rows
//! that everyone has passed are kept up to [`HISTORY`], so that the next life knows what was recorded.
//!
//! [`Outbox::commit`] writes entries in one transaction with the state that they tell of. [`Outbox::put`] takes an entry
//! that no state goes with into memory; [`Outbox::run`] writes what has come since its last transaction, and
//! how far each destination got, with the next one. So an entry is durable some milliseconds after it was put. Nobody
//! sees it before, neither a destination nor a reader of [`Outbox::journal`]: what was seen anywhere arrives
//! everywhere, whenever the program is killed, and a number that was seen is not given to another entry. Only while
//! the disk refuses writes are entries shown at once, then without a number for the destinations.

mod destination;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::journal::Journal;
use crate::store::{Change, Store, StoreError};
use crate::wire::AuditEntry;

/// How many entries wait for a destination at most; beyond that the oldest go (DECISIONS 5).
pub const CAPACITY: u64 = 10_000;
/// How many entries are kept after all destinations have them, and shown again to readers of the journal.
pub const HISTORY: usize = 500;

const ENTRIES: &str = "outbox/entry/";
const DONE: &str = "outbox/done/";
const NEXT: &str = "outbox/next";
const EPOCH: &str = "outbox/epoch";
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_mins(1);

pub use destination::Destination;
use stored::{Read, number, read_entries, read_places};

/// The log and the place of each destination in it.
#[derive(Clone)]
pub struct Outbox {
    log: Arc<watch::Sender<Log>>,
    /// One transaction at a time.
    turn: Arc<Mutex<()>>,
    journal: Arc<Journal<Arc<AuditEntry>>>,
    store: Arc<dyn Store>,
    /// Where the state is, if it is not in the same store.
    state: Option<Arc<dyn Store>>,
    clock: Arc<dyn Clock>,
    program: &'static str,
    /// Which numbering the numbers belong to.
    epoch: Arc<str>,
}

/// What was found when the outbox was opened.
pub struct Opened {
    /// The outbox.
    pub outbox: Outbox,
    /// Whether there was an outbox before, so that an entry that is not in it was never recorded.
    pub continued: bool,
}

#[derive(Debug)]
struct Log {
    /// The entries that may be seen.
    journal: Arc<Journal<Arc<AuditEntry>>>,
    /// Number of the oldest entry that is kept.
    first: u64,
    /// Number that the next entry gets.
    next: u64,
    /// Entries of a transaction with state that is under way. They get the numbers from `next` on if it succeeds, and
    /// are nobody's if it fails.
    committing: Vec<Arc<AuditEntry>>,
    /// Entries that came meanwhile, which get their numbers after those.
    behind: Vec<Arc<AuditEntry>>,
    /// Entries that are not durable yet.
    fresh: BTreeMap<u64, Arc<AuditEntry>>,
    /// Numbers of the rows that are in the store.
    stored: Range<u64>,
    /// The store has the number that comes next.
    is_next_stored: bool,
    /// The store has the epoch.
    is_epoch_stored: bool,
    places: BTreeMap<String, Place>,
    /// Destinations whose places are still in the store, but no longer here.
    forgotten: BTreeSet<String>,
    /// The store refuses writes.
    failing: bool,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    /// Number of the entry that is to be delivered next.
    next: u64,
    /// The same as the store has it.
    stored: Option<u64>,
    /// Somebody delivers.
    open: bool,
}

impl Log {
    fn put(&mut self, entry: Arc<AuditEntry>) {
        if !self.committing.is_empty() {
            self.behind.push(entry);
            return;
        }
        self.fresh.insert(self.next, entry);
        self.next += 1;
        if self.failing {
            self.show(self.next);
        }
        if self.next - self.first > CAPACITY {
            self.first = self.next - CAPACITY;
            self.show(self.first);
            self.fresh = self.fresh.split_off(&self.first);
        }
    }

    /// The transaction with state is over: its entries are there or never were, and those that came meanwhile follow.
    /// Of one that was dropped on its way it is not known how it ended; what may be durable keeps its number.
    fn settle(&mut self, is_made: bool) {
        let committed = std::mem::take(&mut self.committing);
        let behind = std::mem::take(&mut self.behind);
        for entry in committed.into_iter().filter(|_| is_made).chain(behind) {
            self.put(entry);
        }
    }

    /// Lets everyone see the entries before this number.
    fn show(&self, end: u64) {
        let begin = self.journal.next_id().min(end);
        for entry in self.fresh.range(begin..end).map(|(_, entry)| entry) {
            self.journal.append(entry.clone());
        }
    }

    /// Lets go of what everyone has, but for the history.
    fn trim(&mut self) {
        let passed = self.places.values().map(|place| place.next).min().unwrap_or(self.next);
        self.first = self.first.max(passed.min(self.next.saturating_sub(HISTORY as u64)));
    }

    fn offers(&self, name: &str) -> bool {
        self.places.get(name).is_some_and(|place| self.offers_at(place.next))
    }

    fn offers_at(&self, place: u64) -> bool {
        place < self.next && (place < self.first || self.failing || !self.fresh.contains_key(&place))
    }

    fn has_news(&self) -> bool {
        !self.fresh.is_empty()
            || !self.behind.is_empty()
            || !self.is_next_stored
            || !self.is_epoch_stored
            || !self.forgotten.is_empty()
            || self.places.values().any(|place| place.stored != Some(place.next))
    }

    fn is_open(&self) -> bool {
        self.places.values().any(|place| place.open)
    }
}

/// An entry for a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The entry.
    pub entry: Arc<AuditEntry>,
    /// Its number; `None` while the disk refuses writes, since it might then be given again after a crash.
    pub seq: Option<u64>,
    /// The entry only says how many were lost; it goes to the destination whatever that filters.
    pub is_loss: bool,
    /// Place to go on from once it is delivered.
    after: u64,
}

impl Outbox {
    /// Opens the outbox in `store` for these destinations. A destination that is new gets what comes from now on;
    /// one that is no longer named is forgotten. `program` is who says that entries were lost.
    pub async fn open(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        program: &'static str,
        names: &[String],
    ) -> Result<Opened, StoreError> {
        let Read { mut history, first, end } = read_entries(store.as_ref()).await?;
        let stored_next = store.get(NEXT).await?.and_then(|row| number(&row));
        // Where no number is known, one that is greater than every number of an earlier life: entries are fewer
        // than one in a microsecond.
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
        let places = read_places(store.as_ref(), names, next, stored_next.is_some()).await?;
        let journal = Arc::new(Journal::new(HISTORY, next - history.len() as u64));
        for entry in &history {
            journal.append(Arc::clone(entry));
        }
        let log = Log {
            journal: journal.clone(),
            first,
            next,
            committing: Vec::new(),
            behind: Vec::new(),
            fresh: BTreeMap::new(),
            stored: first..next,
            is_next_stored: stored_next.is_some(),
            is_epoch_stored,
            places,
            forgotten: BTreeSet::new(),
            failing: false,
        };
        let log = Arc::new(watch::Sender::new(log));
        let outbox = Self {
            log,
            turn: Arc::default(),
            journal,
            store,
            state: None,
            clock,
            program,
            epoch: epoch.into(),
        };
        Ok(Opened { outbox, continued: stored_next.is_some() })
    }

    /// The last entries, those of earlier lives too, and what follows them. Each has its number as id, and is seen here
    /// once it is durable, or the disk refuses it.
    pub fn journal(&self) -> &Journal<Arc<AuditEntry>> {
        &self.journal
    }

    /// Which numbering the numbers belong to: a random text that is made with the first number, and kept as long as the
    /// numbers are.
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The number that the next entry gets: what was recorded before has a smaller one.
    pub fn mark(&self) -> u64 {
        let log = self.log.borrow();
        log.next + (log.committing.len() + log.behind.len()) as u64
    }

    /// Whether a destination has everything that was recorded before this mark. One that does not exist has nothing.
    pub fn is_delivered(&self, name: &str, mark: u64) -> bool {
        self.log.borrow().places.get(name).is_some_and(|place| place.next >= mark)
    }

    /// Takes an entry for all destinations. Never waits, never fails.
    pub fn put(&self, entry: Arc<AuditEntry>) {
        self.log.send_modify(|log| log.put(entry));
    }

    /// Writes entries for all destinations in one transaction with `changes`, the state that they tell of. They are
    /// seen when this returns; where it fails, neither the state is changed nor the entries are there.
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

    /// The same outbox for a state that is in another store: where the entries can't be with it, they follow it.
    #[must_use]
    pub fn with_state_in(mut self, store: Arc<dyn Store>) -> Self {
        self.state = Some(store);
        self
    }

    /// Whether there is a destination of this name.
    pub fn has(&self, name: &str) -> bool {
        self.log.borrow().places.contains_key(name)
    }

    /// How many entries wait for a destination.
    pub fn waiting(&self, name: &str) -> u64 {
        let log = self.log.borrow();
        log.places.get(name).map_or(0, |place| log.next - place.next.max(log.first))
    }

    /// How many entries are not durable yet.
    pub fn unwritten(&self) -> usize {
        let log = self.log.borrow();
        log.fresh.len() + log.behind.len()
    }

    /// Names the destinations anew. One that is new gets what comes from now on. One that is no longer named, and that
    /// nobody delivers to, is forgotten; it and how many entries waited for it are returned.
    pub fn rename(&self, names: &[String]) -> Vec<(String, u64)> {
        let mut left = Vec::new();
        self.log.send_modify(|log| {
            let (next, first) = (log.next, log.first);
            for (name, place) in log.places.extract_if(.., |name, place| !place.open && !names.contains(name))
            {
                left.push((name.clone(), next - place.next.max(first)));
                log.forgotten.insert(name);
            }
            for name in names {
                log.forgotten.remove(name);
                log.places.entry(name.clone()).or_insert(Place { next, stored: None, open: false });
            }
        });
        left
    }

    /// One destination's end of the outbox, for one task. `None` for a name that was not given to
    /// [`open`](Self::open) or [`rename`](Self::rename).
    pub fn destination(&self, name: &str) -> Option<Destination> {
        let found = self
            .log
            .send_if_modified(|log| log.places.get_mut(name).map(|place| place.open = true).is_some());
        found.then(|| Destination {
            outbox: self.clone(),
            changes: self.log.subscribe(),
            name: name.to_owned(),
        })
    }

    /// Writes until `stop` is cancelled, everything is written, and no destination is open any more. What can't be
    /// written waits and is tried again; after `stop` it is tried once more.
    pub async fn run(self, stop: CancellationToken) {
        let mut changes = self.log.subscribe();
        let mut pause = FIRST_RETRY;
        loop {
            // An error would mean that the log is gone, but it is ours.
            tokio::select! {
                _ = changes.wait_for(Log::has_news) => {}
                () = self.everyone_is_done(&stop) => {}
            }
            let last_chance = stop.is_cancelled() && !self.log.borrow().is_open();
            match self.write(Vec::new(), Vec::new()).await {
                Ok(()) => {
                    pause = FIRST_RETRY;
                    if last_chance && !self.log.borrow().has_news() {
                        return;
                    }
                }
                Err(error) if last_chance => {
                    tracing::error!(%error, "entries that were not delivered yet could not be kept for the next start");
                    return;
                }
                Err(error) => {
                    let began = |log: &mut Log| {
                        log.show(log.next);
                        !std::mem::replace(&mut log.failing, true)
                    };
                    if self.log.send_if_modified(began) {
                        tracing::warn!(%error, "entries can't be kept durably; they are delivered from memory");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.everyone_is_done(&stop) => {}
                    }
                    pause = LAST_RETRY.min(pause * 2);
                }
            }
        }
    }

    async fn everyone_is_done(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        let _ = self.log.subscribe().wait_for(|log| !log.is_open()).await;
    }

    /// One transaction: the entries that are not durable yet, how far each destination is, and what can go; and a
    /// change of state with the entries that tell of it.
    async fn write(&self, mut changes: Vec<Change>, entries: Vec<Arc<AuditEntry>>) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        self.log.send_if_modified(|log| {
            // One that was dropped on its way may have been made.
            log.settle(true);
            log.trim();
            log.committing = entries;
            false
        });
        let (first, next, places, forgotten) = {
            let log = self.log.borrow();
            let (next, committing) = (log.next, &log.committing);
            let fresh = log.fresh.iter().map(|(seq, entry)| (*seq, entry)).chain((next..).zip(committing));
            for (seq, entry) in fresh {
                let row =
                    serde_json::to_vec(&**entry).expect("an entry has only text keys and finite values");
                changes.push((entry_key(seq), Some(row)));
            }
            let next = next + committing.len() as u64;
            if !log.fresh.is_empty() || next > log.next || !log.is_next_stored {
                changes.push((NEXT.to_owned(), Some(next.to_string().into_bytes())));
            }
            if !log.is_epoch_stored {
                changes.push((EPOCH.to_owned(), Some(self.epoch.as_bytes().to_vec())));
            }
            let gone = log.stored.start..log.first.min(log.stored.end);
            changes.extend(gone.map(|seq| (entry_key(seq), None)));
            for (name, place) in &log.places {
                if place.stored != Some(place.next) {
                    changes.push((place_key(name), Some(place.next.to_string().into_bytes())));
                }
            }
            changes.extend(log.forgotten.iter().map(|name| (place_key(name), None)));
            (log.first, next, log.places.clone(), log.forgotten.clone())
        };
        let made = if changes.is_empty() { Ok(()) } else { self.store.put_all(changes).await };
        if made.is_err() {
            self.log.send_modify(|log| log.settle(false));
            return made;
        }
        self.log.send_modify(|log| {
            log.settle(true);
            log.show(next);
            log.fresh = log.fresh.split_off(&next);
            log.stored = first..next;
            (log.is_next_stored, log.is_epoch_stored) = (true, true);
            log.forgotten.retain(|name| !forgotten.contains(name));
            for (name, written) in places {
                if let Some(place) = log.places.get_mut(&name) {
                    place.stored = Some(written.next);
                }
            }
            if std::mem::take(&mut log.failing) {
                tracing::info!("entries are kept durably again");
            }
        });
        Ok(())
    }
}

fn entry_key(seq: u64) -> String {
    // As wide as the largest number, so that the order of the keys is that of the numbers.
    format!("{ENTRIES}{seq:020}")
}

fn place_key(name: &str) -> String {
    format!("{DONE}{name}")
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "queue/commit_tests.rs"]
mod commit_tests;
