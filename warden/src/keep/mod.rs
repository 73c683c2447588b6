//! The store behind one trait (DECISIONS 8): the state that must outlive the warden or is shared by several wardens.
//!
//! The store receives raw changes. They are applied inside its transaction, by the same pure function for every store
//! ([`fold()`]). So duplicates are detected and transitions happen once, however many wardens there are. Ids and revisions
//! only grow, without gaps, in the order in which they become readable: a reader that continues after the last id it has
//! seen skips nothing.

pub mod embedded;
mod fold;
pub mod postgres;
mod query;

use std::ops::RangeInclusive;

use async_trait::async_trait;
use evenkeel_common::wire::FleetEntry;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use tokio::sync::watch;

use crate::fleet::decisions::{Decision, FuseRule};
use crate::fleet::{AHEAD, Machine};

pub use fold::{Folded, Needs, fold, needs};
pub use query::{MAX_PAGE, Page, Query, SCAN_BUDGET};

/// A change to record.
#[derive(Debug, Clone)]
pub enum Change {
    /// An entry from an agent.
    Entry(Box<FleetEntry>),
    /// The outcome of a heartbeat. Only a transition is recorded.
    Heartbeat {
        /// Id of the agent.
        agent: String,
        /// The error says why the agent does not answer.
        outcome: Result<(), String>,
    },
    /// An operator's decision.
    Decision(Decision),
    /// Checks the fuse after the preceding changes.
    Fuse(FuseRule),
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was stored as an entry with this id.
    Stored(u64),
    /// The entry was a duplicate, or the heartbeat or decision changed nothing.
    Unchanged,
}

/// A stored entry: a line of JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Ids only grow, without gaps.
    pub id: u64,
    /// The [`FleetEntry`].
    pub line: String,
}

/// Returns the agent that a stored line is of; empty if it names none.
pub fn agent_of(line: &str) -> String {
    /// The part of an entry that says whose it is.
    #[derive(Deserialize)]
    struct Sent {
        #[serde(default)]
        agent: String,
    }
    serde_json::from_str::<Sent>(line).map(|sent| sent.agent).unwrap_or_default()
}

/// How far a reader has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Id of the last entry.
    pub entry: u64,
    /// Revision of the last change to a machine or a value.
    pub revision: u64,
}

/// Everything recorded after a position.
#[derive(Debug, Clone, Default)]
pub struct News {
    /// Ascending.
    pub entries: Vec<Stored>,
    /// Changed machines, in their current state.
    pub machines: Vec<Machine>,
    /// Changed values, in their current state, by name.
    pub values: Vec<(String, Versioned)>,
    /// The position to continue from. A part of it is less than that of the reader if the store has lost what the reader has
    /// read, because it was restored from a backup, for example: then everything must be read again.
    pub position: Position,
    /// The number of the connection over which it was read. A new one may lead to a server that took over without the last
    /// commits, which a position does not show once as many others have been written there.
    pub connection: u64,
}

impl News {
    /// Reports whether the store has lost what a reader at this position has read.
    pub fn is_behind(&self, reader: Position) -> bool {
        self.position.entry < reader.entry || self.position.revision < reader.revision
    }
}

/// A value of the fleet's state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versioned {
    /// Revision of its last change; 0 if it does not exist.
    pub revision: u64,
    /// Its content; empty if it does not exist.
    pub value: Vec<u8>,
}

/// Work that one warden does on behalf of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Duty {
    /// Probing the agents.
    Heartbeat,
    /// Removing entries and values beyond the age or size limits.
    Retention,
}

/// How much is kept in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Entries that arrived longer ago are removed. Days.
    pub days: u32,
    /// When the text of all entries is larger, the oldest entries of the agent with the most text are removed. Bytes.
    pub bytes: u64,
}

impl Retention {
    /// Returns when entries arrived that are not too old, in microseconds. One that seems to have arrived later did so while a
    /// clock was wrong: it is older than the next one.
    fn kept(&self, now: Timestamp) -> RangeInclusive<i64> {
        let age = i64::from(self.days).saturating_mul(24 * 3600 * 1_000_000);
        let now = now.as_microsecond();
        let ahead = i64::try_from(AHEAD.as_micros()).unwrap_or(i64::MAX);
        now.saturating_sub(age)..=now.saturating_add(ahead)
    }
}

/// The size of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Number of entries.
    pub entries: u64,
    /// Total text of the entries, in bytes.
    pub bytes: u64,
    /// When the oldest one arrived.
    pub oldest: Option<Timestamp>,
}

/// The store is unavailable. The call was not recorded, or its outcome is unknown. Entries can be sent again, since
/// duplicates are detected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeepError(pub String);

/// A store for entries, machines and decisions.
#[async_trait]
pub trait Keep: Send + Sync + 'static {
    /// Reports whether other wardens may use it.
    fn is_shared(&self) -> bool {
        true
    }

    /// Records all changes or none, together with the resulting values of the fleet's state ([`needs`] lists the values that
    /// are read, [`fold()`] computes the new ones). Returns one outcome per change once they are durable. An empty batch is
    /// written, too: it checks whether the store is writable.
    async fn commit(&self, changes: Vec<Change>, now: Timestamp) -> Result<Vec<Outcome>, KeepError>;

    /// Returns everything recorded after `after`, with at most `limit` entries.
    async fn news(&self, after: Position, limit: usize) -> Result<News, KeepError>;

    /// Returns at most `limit` entries with an id greater than `after`, ascending.
    async fn tail(&self, after: u64, limit: usize) -> Result<Vec<Stored>, KeepError>;

    /// Returns one page of the matching entries, newest first.
    async fn history(&self, query: &Query) -> Result<Page, KeepError>;

    /// Returns a value of the fleet's state.
    async fn value(&self, name: &str) -> Result<Versioned, KeepError>;

    /// Returns values of the fleet's state in the order of their names. None is older than those before it.
    async fn values(&self, names: &[String]) -> Result<Vec<Versioned>, KeepError> {
        let mut values = Vec::with_capacity(names.len());
        for name in names {
            values.push(self.value(name).await?);
        }
        Ok(values)
    }

    /// Replaces a value if its revision is still `expected`. Returns its new revision, or `None` if another warden changed it
    /// first. An empty value is kept, with its revision.
    async fn swap(&self, name: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, KeepError>;

    /// Removes a value if its revision is still `expected`. Returns whether it did. Other wardens are not notified.
    async fn remove(&self, name: &str, expected: u64) -> Result<bool, KeepError>;

    /// Reports whether this warden holds the duty now; exactly one does.
    async fn hold(&self, duty: Duty) -> Result<bool, KeepError>;

    /// Removes some entries beyond `limits`. Returns how many; 0 if there are none.
    async fn retain(&self, limits: Retention, now: Timestamp) -> Result<u64, KeepError>;

    /// Returns the size of the store.
    async fn usage(&self) -> Result<Usage, KeepError>;

    /// Returns a receiver that is woken when another warden may have recorded something. Hints may be spurious or missing.
    fn hints(&self) -> watch::Receiver<u64>;

    /// Returns what is known about a damaged file that was set aside; `None` if there is none.
    fn damage(&self) -> Option<String> {
        None
    }

    /// Returns how far this machine's clock is ahead of the store's; negative if it is behind. `None` if the store has no
    /// clock of its own, or has not been asked yet.
    fn clock_ahead(&self) -> Option<SignedDuration> {
        None
    }
}
