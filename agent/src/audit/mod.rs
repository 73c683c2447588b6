//! Where everything notable is recorded: at once and for certain, while each destination has a queue and a task of
//! its own (SPEC 6).

mod channel;
pub mod channels;
mod delivery;
mod file;
mod read;
mod redact;
mod sink;
pub mod trial;
pub mod upgrade;

use std::sync::Arc;

use evenkeel_common::journal::Journal;
use evenkeel_common::queue::Outbox;
use evenkeel_common::store::{Change, StoreError};
use evenkeel_common::wire::{AuditEntry, Level};

pub use channel::{Channel, Settings};
pub use file::FileSink;
pub use read::read_latest;
pub use sink::{Deliveries, DeliveryStats, Reconfigured};

/// The handle through which every part of the agent records.
#[derive(Clone)]
pub struct Audit(Outbox);

impl Audit {
    /// An audit whose entries go to the destinations of `outbox`, and to the streams.
    pub fn new(outbox: Outbox) -> Self {
        Self(outbox)
    }

    /// Records an entry: in the log, and for every destination. Never waits, never fails.
    pub fn record(&self, entry: AuditEntry) {
        log(&entry);
        self.0.put(Arc::new(entry));
    }

    /// Makes a change of state durable together with the entries that tell of it, and records these. Where it fails,
    /// nothing is changed and nothing recorded.
    pub async fn commit(&self, changes: Vec<Change>, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        let entries: Vec<_> = entries.into_iter().map(Arc::new).collect();
        self.0.commit(changes, entries.clone()).await?;
        for entry in &entries {
            log(entry);
        }
        Ok(())
    }

    /// What was recorded up to now, for [`Audit::is_delivered`].
    pub fn mark(&self) -> u64 {
        self.0.mark()
    }

    /// Whether a destination has everything up to a mark.
    pub fn is_delivered(&self, destination: &str, mark: u64) -> bool {
        self.0.is_delivered(destination, mark)
    }

    /// The last entries and what follows them, for the streams.
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
