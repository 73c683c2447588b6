//! The store behind one trait (DECISIONS 8): what must outlive the warden, and what several wardens share.
//!
//! A change is given to the store as it came; what it means is decided inside the store's transaction, by the same pure
//! function for every store ([`fold()`]). So a duplicate is found and a transition is made once, however many wardens there
//! are. Ids and revisions only grow, without gaps, in the order in which they can be read: a reader that continues after
//! the last id it has seen skips nothing.

pub mod embedded;
mod fold;
pub mod postgres;
mod query;

use async_trait::async_trait;
use evenkeel_common::wire::FleetEntry;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::fleet::Machine;
use crate::fleet::decisions::{Decision, FuseRule};

pub use fold::{Folded, Needs, fold, needs};
pub use query::{MAX_PAGE, Page, Query, SCAN_BUDGET};

/// What happened, in the order in which it is to be recorded.
#[derive(Debug, Clone)]
pub enum Change {
    /// An entry of an agent.
    Entry(Box<FleetEntry>),
    /// The outcome of a heartbeat. Only a transition is recorded.
    Heartbeat {
        /// Id of the agent.
        agent: String,
        /// Why it does not answer, where it does not.
        outcome: Result<(), String>,
    },
    /// What a person decides.
    Decision(Decision),
    /// Has the fuse look at what was recorded.
    Fuse(FuseRule),
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is an entry with this id now.
    Stored(u64),
    /// The entry came before, or the heartbeat or the decision changed nothing.
    Unchanged,
}

/// An entry as the store has it: a line of JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Only grows, without gaps.
    pub id: u64,
    /// The [`FleetEntry`].
    pub line: String,
}

/// How far a reader has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Id of the last entry.
    pub entry: u64,
    /// Revision of the last change to a machine or a value.
    pub revision: u64,
}

/// What was recorded after a position.
#[derive(Debug, Clone, Default)]
pub struct News {
    /// Ascending.
    pub entries: Vec<Stored>,
    /// Machines that have changed, as they are now.
    pub machines: Vec<Machine>,
    /// Values that have changed, as they are now, by name.
    pub values: Vec<(String, Versioned)>,
    /// Where to continue.
    pub position: Position,
}

/// A value of the fleet's state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versioned {
    /// Revision of its last change; 0 where there is none.
    pub revision: u64,
    /// Its content; empty where there is none.
    pub value: Vec<u8>,
}

/// Work that one warden does for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Duty {
    /// Probing the agents.
    Heartbeat,
    /// Removing what is too old or too much.
    Retention,
}

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Entries that arrived longer ago are removed. Days.
    pub days: u32,
    /// The oldest entries are removed when their text together is larger. Bytes.
    pub bytes: u64,
}

/// How much is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// How many entries.
    pub entries: u64,
    /// Their text together, in bytes.
    pub bytes: u64,
    /// When the oldest one arrived.
    pub oldest: Option<Timestamp>,
}

/// The store cannot do its work now. Nothing of that call was recorded, or it cannot be told whether it was; entries can be
/// sent again, since a duplicate is found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeepError(pub String);

/// Where entries, machines and decisions are kept.
#[async_trait]
pub trait Keep: Send + Sync + 'static {
    /// Records all changes or none, with the values of the fleet's state that follow from them ([`needs`] says which they
    /// read, [`fold()`] what they become), and returns when they would survive a power cut: one outcome for each. An empty batch
    /// is written too: it tells whether the store can be.
    async fn commit(&self, changes: Vec<Change>, now: Timestamp) -> Result<Vec<Outcome>, KeepError>;

    /// What was recorded after `after`, with at most `limit` entries.
    async fn news(&self, after: Position, limit: usize) -> Result<News, KeepError>;

    /// At most `limit` entries with an id greater than `after`, ascending.
    async fn tail(&self, after: u64, limit: usize) -> Result<Vec<Stored>, KeepError>;

    /// One page of the entries that match, newest first.
    async fn history(&self, query: &Query) -> Result<Page, KeepError>;

    /// A value of the fleet's state.
    async fn value(&self, name: &str) -> Result<Versioned, KeepError>;

    /// Replaces a value if its revision is still `expected` (an empty one stays, with its revision): its new revision, or `None` when somebody was faster.
    async fn swap(&self, name: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, KeepError>;

    /// Removes a value if its revision is still `expected`; whether it did. Other wardens are not told of it.
    async fn remove(&self, name: &str, expected: u64) -> Result<bool, KeepError>;

    /// Whether this warden has the duty now; exactly one has.
    async fn hold(&self, duty: Duty) -> Result<bool, KeepError>;

    /// Removes some of what is beyond `limits`: how many entries; 0 when nothing is.
    async fn retain(&self, limits: Retention, now: Timestamp) -> Result<u64, KeepError>;

    /// How much is there.
    async fn usage(&self) -> Result<Usage, KeepError>;

    /// Wakes its receiver when somebody else may have recorded something. A hint: it may come in vain, or not at all.
    fn hints(&self) -> watch::Receiver<u64>;

    /// How far this machine's clock is ahead of the store's; negative where it is behind. `None` where the store has none
    /// of its own, or has not been asked.
    fn clock_ahead(&self) -> Option<SignedDuration> {
        None
    }
}
