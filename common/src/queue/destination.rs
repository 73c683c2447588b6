//! The handle of one destination of the outbox.

use std::sync::Arc;

use tokio::sync::watch;

use crate::wire::{AuditEntry, Kind, Level};

use super::{CAPACITY, FIRST_RETRY, Item, Log, Outbox, entry_key};

/// The handle of one destination of the outbox. [`Outbox::run`] continues as long as it exists.
pub struct Destination {
    pub(super) outbox: Outbox,
    pub(super) changes: watch::Receiver<Log>,
    pub(super) name: String,
}

impl Destination {
    /// Waits for the oldest entry that is not [`done`](Self::done). Cancel safe.
    pub async fn next(&mut self) -> Item {
        loop {
            // An error would mean that the log has been dropped, but we own it.
            let _ = self.changes.wait_for(|log| log.has_item(&self.name)).await;
            let cursor = self.cursor();
            if let Some(item) = self.fetch(cursor).await {
                return item;
            }
        }
    }

    /// Like [`next`](Self::next), with the entries after it that are available without waiting: at least one and at most
    /// `limit`, in order.
    pub async fn next_batch(&mut self, limit: usize) -> Vec<Item> {
        let mut items = vec![self.next().await];
        while items.len() < limit {
            let Some(item) = self.after(&items[items.len() - 1]).await else { break };
            items.push(item);
        }
        items
    }

    /// Returns the entry after this one, if it is available without waiting.
    pub async fn after(&self, item: &Item) -> Option<Item> {
        let available = self.outbox.log.borrow().has_item_at(item.after);
        if available { self.fetch(item.after).await } else { None }
    }

    fn cursor(&self) -> u64 {
        let log = self.outbox.log.borrow();
        log.cursors.get(&self.name).map_or(log.next, |cursor| cursor.next)
    }

    /// Fetches the entry at this position; `None` if the caller should try again.
    async fn fetch(&self, cursor: u64) -> Option<Item> {
        let pending = {
            let log = self.outbox.log.borrow();
            if cursor < log.first {
                return Some(self.loss(log.first - cursor, log.first));
            }
            log.pending.get(&cursor).cloned()
        };
        if let Some(entry) = pending {
            return Some(Item { entry, seq: None, is_loss: false, after: cursor + 1 });
        }
        let durable = |entry| Some(Item { entry, seq: Some(cursor), is_loss: false, after: cursor + 1 });
        match self.outbox.store.get(&entry_key(cursor)).await {
            Ok(Some(row)) => match serde_json::from_slice(&row) {
                Ok(entry) => return durable(Arc::new(entry)),
                Err(error) => self.skip(cursor, &error.to_string()),
            },
            Ok(None) => self.skip(cursor, "it does not exist"),
            Err(error) => {
                // A disk that fails must not keep back what is known of it.
                if let Some(entry) = self.outbox.journal.get(cursor) {
                    return durable(entry);
                }
                tracing::warn!(destination = self.name, %error, "cannot read waiting entries");
                tokio::time::sleep(FIRST_RETRY).await;
            }
        }
        None
    }

    fn loss(&self, lost: u64, first: u64) -> Item {
        let message = format!("{lost} audit entries before this one were lost for {}", self.name);
        let mut entry = AuditEntry::new(
            self.outbox.clock.now(),
            self.outbox.program,
            Kind::ERROR,
            Level::Warning,
            message,
        );
        entry.reason = Some(format!("more than {CAPACITY} entries were waiting for it"));
        // Without a number: if there is no answer, the next attempt says something else, and one number must not stand for two
        // entries.
        Item { entry: Arc::new(entry), seq: None, is_loss: true, after: first }
    }

    fn skip(&self, cursor: u64, why: &str) {
        // It may have been dropped in the meantime.
        if cursor >= self.outbox.log.borrow().first {
            tracing::error!(
                destination = self.name,
                seq = cursor,
                why,
                "cannot read a waiting entry; skipping it"
            );
            self.advance(cursor + 1);
        }
    }

    fn advance(&self, to: u64) {
        self.outbox.log.send_modify(|log| {
            if let Some(cursor) = log.cursors.get_mut(&self.name) {
                cursor.next = cursor.next.max(to);
            }
        });
    }

    /// Removes an entry that was delivered or is not for this destination. Durable with the next transaction.
    pub fn done(&self, item: &Item) {
        self.advance(item.after);
    }

    /// Reports whether no entry is waiting.
    pub fn is_empty(&self) -> bool {
        self.outbox.waiting(&self.name) == 0
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        self.outbox.log.send_modify(|log| {
            if let Some(cursor) = log.cursors.get_mut(&self.name) {
                cursor.open = false;
            }
        });
    }
}
