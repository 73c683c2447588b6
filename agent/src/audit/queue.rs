//! A bounded queue in memory between `record` and a destination's task: the oldest go, and their number is kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_common::wire::AuditEntry;
use tokio::sync::Notify;

use super::Inbox;

/// Entries that a destination has not taken yet.
#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    entries: VecDeque<Arc<AuditEntry>>,
    lost: u64,
}

impl Waiting {
    fn shrink_to(&mut self, capacity: usize) {
        while self.entries.len() > capacity {
            self.entries.pop_front();
            self.lost += 1;
        }
    }
}

/// What a destination is to deliver next.
#[derive(Debug, Default)]
pub struct Batch {
    /// How many entries were lost before these.
    pub lost: u64,
    /// The entries, oldest first.
    pub entries: VecDeque<Arc<AuditEntry>>,
}

impl Queue {
    /// A queue that keeps the last `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        Self { waiting: Mutex::default(), arrived: Notify::new(), capacity }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting().entries.is_empty()
    }

    /// How many entries wait.
    pub fn len(&self) -> usize {
        self.waiting().entries.len()
    }

    /// Returns when something waits. For one task only.
    pub async fn wait(&self) {
        while self.is_empty() {
            self.arrived.notified().await;
        }
    }

    /// Takes the oldest entries, at most `count`.
    pub fn take(&self, count: usize) -> Batch {
        let mut waiting = self.waiting();
        let count = count.min(waiting.entries.len());
        Batch { lost: std::mem::take(&mut waiting.lost), entries: waiting.entries.drain(..count).collect() }
    }

    /// Puts back what could not be delivered, before everything that came since.
    pub fn put_back(&self, batch: Batch) {
        let mut waiting = self.waiting();
        waiting.lost += batch.lost;
        for entry in batch.entries.into_iter().rev() {
            waiting.entries.push_front(entry);
        }
        waiting.shrink_to(self.capacity);
    }
}

impl Inbox for Queue {
    fn put(&self, _id: u64, entry: &Arc<AuditEntry>) {
        let mut waiting = self.waiting();
        waiting.entries.push_back(entry.clone());
        waiting.shrink_to(self.capacity);
        drop(waiting);
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{Kind, Level};
    use jiff::Timestamp;

    use super::*;

    fn put(queue: &Queue, messages: &[&str]) {
        for message in messages {
            let entry =
                AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::DIED, Level::Info, message.to_owned());
            queue.put(0, &Arc::new(entry));
        }
    }

    fn messages(batch: &Batch) -> Vec<&str> {
        batch.entries.iter().map(|entry| entry.message.as_str()).collect()
    }

    #[test]
    fn the_oldest_go_and_are_counted_once() {
        let queue = Queue::new(3);
        put(&queue, &["a", "b", "c", "d"]);
        let batch = queue.take(2);
        assert_eq!((batch.lost, messages(&batch)), (1, vec!["b", "c"]));
        put(&queue, &["e", "f"]);
        queue.put_back(batch);
        let batch = queue.take(10);
        assert_eq!((batch.lost, messages(&batch)), (3, vec!["d", "e", "f"]));
        assert_eq!(queue.take(10).lost, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_first_entry() {
        let queue = Queue::new(3);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), queue.wait()).await;
        assert!(waited.is_err());
        put(&queue, &["a"]);
        queue.wait().await;
        assert_eq!(queue.len(), 1);
    }
}
