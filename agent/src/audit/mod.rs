//! Where everything notable is recorded: at once and for certain, while each destination has a queue and a task of
//! its own (SPEC 6).

mod channel;
pub mod delivery;
mod file;
mod letter;
pub mod notify;
mod push;
mod queue;
mod read;
pub mod recall;
mod sink;

use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_common::journal::Journal;
use evenkeel_common::queue::Outbox;
use evenkeel_common::wire::{AuditEntry, Level};

pub use channel::{Channel, Settings};
pub use file::FileSink;
pub use queue::Queue;
pub use read::read_latest;
pub use sink::{Deliveries, Exchanged, Tally};

/// How many entries are kept for replay.
const RING: usize = 500;

/// Takes entries for one destination. What it does with them is its own business and its own task's; taking one
/// neither waits nor fails.
pub trait Inbox: Send + Sync + 'static {
    /// Takes an entry; `id` is the one that subscribers see too.
    fn put(&self, id: u64, entry: &Arc<AuditEntry>);
}

impl Inbox for Outbox {
    fn put(&self, id: u64, entry: &Arc<AuditEntry>) {
        let number = Outbox::put(self, entry.clone());
        debug_assert_eq!(number, id, "the journal is numbered as the outbox is");
    }
}

/// The handle through which every part of the agent records.
#[derive(Clone)]
pub struct Audit(Arc<Inner>);

struct Inner {
    journal: Journal<Arc<AuditEntry>>,
    /// The lock gives all destinations the same order.
    inboxes: Mutex<Vec<Arc<dyn Inbox>>>,
}

impl Audit {
    /// An audit whose entries are numbered from `first_id` on and go to `inboxes`. For ids that mean the same entry
    /// to a browser after a restart, `first_id` must be greater than every id of an earlier life.
    pub fn new(first_id: u64, inboxes: Vec<Arc<dyn Inbox>>) -> Self {
        Self(Arc::new(Inner { journal: Journal::new(RING, first_id), inboxes: Mutex::new(inboxes) }))
    }

    /// Puts entries of earlier lives before all others, for replay only; the first of them got the id that this audit
    /// was made with.
    pub fn remember(&self, entries: Vec<AuditEntry>) {
        for entry in entries {
            self.0.journal.append(Arc::new(entry));
        }
    }

    /// Records an entry: for replay and live streams, in the log, and for every destination. Never waits, never
    /// fails.
    pub fn record(&self, entry: AuditEntry) {
        self.record_unless(entry, |_| false);
    }

    /// Records an entry, but not for those destinations that have it.
    pub fn record_unless(&self, entry: AuditEntry, has_it: impl Fn(&Arc<dyn Inbox>) -> bool) {
        log(&entry);
        let entry = Arc::new(entry);
        let inboxes = self.0.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.0.journal.append(entry.clone());
        for inbox in inboxes.iter().filter(|inbox| !has_it(inbox)) {
            inbox.put(id, &entry);
        }
    }

    /// The last entries and what follows them, for the streams.
    pub fn journal(&self) -> &Journal<Arc<AuditEntry>> {
        &self.0.journal
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

#[cfg(test)]
mod tests {
    use evenkeel_common::journal::Item;
    use evenkeel_common::wire::Kind;
    use jiff::Timestamp;

    use super::*;

    fn entry(message: &str) -> AuditEntry {
        AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::UPDATED, Level::Info, message)
    }

    #[derive(Default)]
    struct Seen(Mutex<Vec<(u64, String)>>);

    impl Inbox for Seen {
        fn put(&self, id: u64, entry: &Arc<AuditEntry>) {
            self.0.lock().unwrap().push((id, entry.message.clone()));
        }
    }

    #[tokio::test]
    async fn an_entry_reaches_the_streams_and_every_destination_under_one_id() {
        let (one, two) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let audit = Audit::new(7, vec![one.clone(), two.clone()]);
        let mut stream = audit.journal().subscribe(50, None);
        audit.record(entry("a"));
        audit.record(entry("b"));
        assert_eq!(stream.next().await, Some(Item::Entry(7, Arc::new(entry("a")))));
        assert_eq!(stream.next().await, Some(Item::Entry(8, Arc::new(entry("b")))));
        for seen in [one, two] {
            assert_eq!(*seen.0.lock().unwrap(), [(7, "a".to_owned()), (8, "b".to_owned())]);
        }
    }

    #[test]
    fn all_destinations_see_entries_of_many_threads_in_the_order_of_their_ids() {
        let seen = Arc::new(Seen::default());
        let audit = Audit::new(1, vec![seen.clone()]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..200).for_each(|_| audit.record(entry("x"))));
            }
        });
        let ids: Vec<u64> = seen.0.lock().unwrap().iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, (1..=1600).collect::<Vec<_>>());
    }
}
