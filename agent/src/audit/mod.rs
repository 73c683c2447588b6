//! The audit trail. Entries are recorded immediately and durably; each destination has its own queue and task
//! (SPEC 6).

mod archives;
mod channel;
pub mod channels;
mod delivery;
mod file;
mod read;
mod receiver;
mod redact;
mod sink;
pub mod trial;
pub mod upgrade;

use std::sync::Arc;

use evenkeel_common::journal::Journal;
use evenkeel_common::queue::Outbox;
use evenkeel_common::store::{Change, StoreError};
use evenkeel_common::wire::{AuditEntry, Level};

pub use channel::Channel;
pub use channels::Settings;
pub use file::FileSink;
pub use read::read_latest;
pub use sink::{Deliveries, DeliveryStats, Reconfigured, UNDELIVERED, names_of_off};

/// The handle through which every part of the agent records entries.
#[derive(Clone)]
pub struct Audit(Outbox);

impl Audit {
    /// Creates an audit whose entries go to the destinations of `outbox`, and to the streams.
    pub fn new(outbox: Outbox) -> Self {
        Self(outbox)
    }

    /// Logs an entry and queues it for every destination. Never blocks, never fails.
    pub fn record(&self, entry: AuditEntry) {
        log(&entry);
        self.0.put(Arc::new(entry));
    }

    /// Commits state changes and the entries that describe them atomically, then logs the entries. On failure nothing
    /// is changed or recorded.
    pub async fn commit(&self, changes: Vec<Change>, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        let entries: Vec<_> = entries.into_iter().map(Arc::new).collect();
        self.0.commit(changes, entries.clone()).await?;
        for entry in &entries {
            log(entry);
        }
        Ok(())
    }

    /// Identifies the numbering of the entries: that of this agent's state.
    pub fn epoch(&self) -> &str {
        self.0.epoch()
    }

    /// The current position in the outbox, for [`Audit::is_delivered`].
    pub fn next_seq(&self) -> u64 {
        self.0.next_seq()
    }

    /// Reports whether a destination has received every entry up to `mark`.
    pub fn is_delivered(&self, destination: &str, mark: u64) -> bool {
        self.0.is_delivered(destination, mark)
    }

    /// The most recent entries that a destination has not received yet, oldest first.
    pub fn waiting_entries(&self, destination: &str) -> Vec<Arc<AuditEntry>> {
        self.0.waiting_entries(destination)
    }

    /// The most recent entries and the live feed, for the streams.
    pub fn journal(&self) -> &Journal<Arc<AuditEntry>> {
        self.0.journal()
    }
}

fn log(entry: &AuditEntry) {
    macro_rules! at {
        ($level:ident) => {
            tracing::$level!(
                service = entry.service,
                event = entry.event.as_str(),
                container = entry.container.as_deref(),
                old_digest = entry.old_digest.as_deref(),
                new_digest = entry.new_digest.as_deref(),
                reason = entry.reason.as_deref(),
                outage_seconds = entry.outage_seconds.map(f64::from),
                "{}",
                entry.message
            )
        };
    }
    match entry.level {
        Level::Info => at!(info),
        Level::Warning => at!(warn),
        Level::Error | Level::Critical => at!(error),
    }
}
