//! Following the entries: from memory while the reader keeps up, from the store when it does not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::journal::{Item, Subscription};
use evenkeel_common::sse::{self, Frame};
use futures_util::{Stream, stream};
use tokio::time::sleep;

use super::Collector;
use crate::keep::Stored;

/// Entries that are read from the store at once for a reader that is behind.
const PAGE: usize = 256;
/// Time between two tries to read from a store that is away.
const RETRY: Duration = Duration::from_secs(1);

/// One reader.
struct Reader {
    collector: Arc<Collector>,
    subscription: Subscription<Arc<str>>,
    /// Id of the last entry that it got, or before which its replay begins.
    last: u64,
    /// Read from the store, and not given yet.
    ready: VecDeque<Stored>,
    /// Entries with ids below this one are in the store only; 0 when the reader has caught up.
    behind: u64,
}

impl Collector {
    /// Follows the entries: what came after the entry `after`, as far as the store has it; else the last ones. Then every
    /// new one. Nothing is left out, however slow the reader is.
    pub async fn follow(self: &Arc<Self>, after: Option<u64>) -> impl Stream<Item = Frame> + Send + use<> {
        let next = match after {
            Some(id) if self.is_kept(id).await => id.saturating_add(1),
            _ => self.entries.next_id().saturating_sub(self.recent(sse::REPLAY).len() as u64),
        };
        let reader = Reader {
            collector: self.clone(),
            subscription: self.entries.subscribe_from(next),
            last: next.saturating_sub(1),
            ready: VecDeque::new(),
            behind: 0,
        };
        stream::unfold(reader, |mut reader| async move { reader.next().await.map(|frame| (frame, reader)) })
    }

    /// Whether an entry is there to continue after. While the store is away its word is taken: the entries after it are read
    /// from the store as soon as it answers.
    async fn is_kept(&self, id: u64) -> bool {
        if self.entries.contains(id) {
            return true;
        }
        let found = self.keep.tail(id.saturating_sub(1), 1).await;
        found.map_or(true, |found| found.first().is_some_and(|entry| entry.id == id))
    }
}

impl Reader {
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                self.last = entry.id;
                return Some(frame(entry.id, entry.line.into()));
            }
            if self.last + 1 < self.behind {
                self.fill().await;
                continue;
            }
            match self.subscription.next().await? {
                // It came from the store before it came here.
                Item::Entry(id, _) if id <= self.last => {}
                Item::Entry(id, line) => {
                    self.last = id;
                    return Some(frame(id, line));
                }
                // It came before anything was known: it begins with what is in memory now.
                Item::Missed(_) if self.last == 0 => {}
                Item::Missed(count) => self.behind = (self.last + 1).saturating_add(count),
            }
        }
    }

    /// Reads the next entries from the store. Where there are none before those in memory, they were removed.
    async fn fill(&mut self) {
        match self.collector.keep.tail(self.last, PAGE).await {
            Ok(page) => {
                self.ready = page.into_iter().filter(|entry| entry.id < self.behind).collect();
                if self.ready.is_empty() {
                    (self.last, self.behind) = (self.behind - 1, 0);
                }
            }
            Err(_) => sleep(RETRY).await,
        }
    }
}

fn frame(id: u64, data: Arc<str>) -> Frame {
    Frame::Event { name: None, id: Some(id), data }
}
