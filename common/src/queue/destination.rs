//! One destination's end of the outbox.

use std::sync::Arc;

use tokio::sync::watch;

use crate::wire::{AuditEntry, Kind, Level};

use super::{CAPACITY, FIRST_RETRY, Item, Log, Outbox, entry_key};

/// One destination's end of the outbox. As long as it exists, [`Outbox::run`] goes on.
pub struct Destination {
    pub(super) outbox: Outbox,
    pub(super) changes: watch::Receiver<Log>,
    pub(super) name: String,
}

impl Destination {
    /// Waits for the oldest entry that is not [`done`](Self::done). Dropping the future loses nothing.
    pub async fn next(&mut self) -> Item {
        loop {
            // An error would mean that the log is gone, but it is ours.
            let _ = self.changes.wait_for(|log| log.offers(&self.name)).await;
            let place = self.place();
            if let Some(item) = self.look(place).await {
                return item;
            }
        }
    }

    /// The same, with what can be had at once after it: at least one, at most `limit`, in order.
    pub async fn next_some(&mut self, limit: usize) -> Vec<Item> {
        let mut items = vec![self.next().await];
        while items.len() < limit {
            let place = items[items.len() - 1].after;
            let offered = self.outbox.log.borrow().offers_at(place);
            let Some(item) = (if offered { self.look(place).await } else { None }) else { break };
            items.push(item);
        }
        items
    }

    fn place(&self) -> u64 {
        let log = self.outbox.log.borrow();
        log.places.get(&self.name).map_or(log.next, |place| place.next)
    }

    /// The entry at this place; `None` when it is worth another look.
    async fn look(&self, place: u64) -> Option<Item> {
        let fresh = {
            let log = self.outbox.log.borrow();
            if place < log.first {
                return Some(self.loss(log.first - place, log.first, log.failing));
            }
            log.fresh.get(&place).cloned()
        };
        if let Some(entry) = fresh {
            return Some(Item { entry, seq: None, is_loss: false, after: place + 1 });
        }
        match self.outbox.store.get(&entry_key(place)).await {
            Ok(Some(row)) => match serde_json::from_slice(&row) {
                Ok(entry) => {
                    return Some(Item {
                        entry: Arc::new(entry),
                        seq: Some(place),
                        is_loss: false,
                        after: place + 1,
                    });
                }
                Err(error) => self.pass_over(place, &error.to_string()),
            },
            Ok(None) => self.pass_over(place, "it is not there"),
            Err(error) => {
                tracing::warn!(destination = self.name, %error, "cannot read the entries that wait");
                tokio::time::sleep(FIRST_RETRY).await;
            }
        }
        None
    }

    fn loss(&self, lost: u64, first: u64, failing: bool) -> Item {
        let message = format!("{lost} audit entries before this one are lost to {}", self.name);
        let mut entry = AuditEntry::new(
            self.outbox.clock.now(),
            self.outbox.program,
            Kind::ERROR,
            Level::Warning,
            message,
        );
        entry.reason = Some(format!("more than {CAPACITY} entries were waiting for it"));
        // It takes the number of the last one that is lost.
        let seq = (!failing).then_some(first - 1);
        Item { entry: Arc::new(entry), seq, is_loss: true, after: first }
    }

    fn pass_over(&self, place: u64, why: &str) {
        // It may just have become too old.
        if place >= self.outbox.log.borrow().first {
            tracing::error!(destination = self.name, seq = place, why, "an entry that waited can't be read");
            self.advance(place + 1);
        }
    }

    fn advance(&self, to: u64) {
        self.outbox.log.send_modify(|log| {
            if let Some(place) = log.places.get_mut(&self.name) {
                place.next = place.next.max(to);
            }
        });
    }

    /// Takes an entry off: it was delivered, or is not for this destination. Durable with the next transaction.
    pub fn done(&self, item: &Item) {
        self.advance(item.after);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.outbox.waiting(&self.name) == 0
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        self.outbox.log.send_modify(|log| {
            if let Some(place) = log.places.get_mut(&self.name) {
                place.open = false;
            }
        });
    }
}
