//! Following the entries: from memory while the reader keeps up, otherwise from the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::journal::{Item, Subscription};
use evenkeel_common::sse::{self, Frame};
use futures_util::{Stream, stream};
use tokio::time::sleep;

use super::Collector;
use crate::keep::Stored;

/// Entries read from the store at once for a reader that is behind.
const PAGE: usize = 256;
/// Time between two attempts to read from an unavailable store.
const RETRY: Duration = Duration::from_secs(1);

/// One reader.
struct Reader {
    collector: Arc<Collector>,
    subscription: Subscription<Arc<str>>,
    /// Id of the last entry delivered, or the id before its replay; 0 before any entry was known.
    last: u64,
    /// Read from the store, but not delivered yet.
    ready: VecDeque<Stored>,
    /// Entries with ids below this one are in the store only; 0 when the reader has caught up.
    behind: u64,
}

impl Collector {
    /// Follows the entries: first those after the entry `after` if the store still has it, otherwise the last ones; then
    /// every new one. No entry is skipped, however slow the reader is.
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

    /// Reports whether the store still has an entry to continue after. While the store is unavailable this is assumed: the
    /// entries after it are read as soon as the store answers.
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
                // It was already delivered from the store.
                Item::Entry(id, _) if id <= self.last => {}
                Item::Entry(id, line) => {
                    self.last = id;
                    return Some(frame(id, line));
                }
                // The reader subscribed before the view was loaded; it starts where the view starts.
                Item::Missed(count) if self.last == 0 => {
                    (self.last, self.behind) = (self.collector.begin(), count);
                }
                Item::Missed(count) => self.behind = (self.last + 1).saturating_add(count),
            }
        }
    }

    /// Reads the next entries from the store. If there are none before those in memory, they have been removed.
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

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use evenkeel_common::clock::SystemClock;
    use evenkeel_common::supervisor::TaskSet;
    use evenkeel_common::wire::FleetEntry;
    use futures_util::StreamExt;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::collector::BUFFERED_ENTRIES;
    use crate::fleet::testing;
    use crate::keep::embedded::Embedded;
    use crate::keep::{Keep, Retention};

    /// More than are kept in memory.
    const BURST: u64 = BUFFERED_ENTRIES as u64 + 300;

    fn entries(first: u64, count: u64) -> Vec<FleetEntry> {
        let entry = |seq| FleetEntry {
            seq: Some(seq),
            message: seq.to_string(),
            ..testing::entry("a", "checked", "web", "d")
        };
        (first..first + count).map(entry).collect()
    }

    async fn messages(frames: &mut Pin<Box<impl Stream<Item = Frame>>>, count: u64) -> Vec<u64> {
        let mut found = Vec::new();
        for _ in 0..count {
            let Some(Frame::Event { data, .. }) = frames.next().await else { panic!("an entry") };
            let entry: FleetEntry = serde_json::from_str(&data).unwrap();
            found.push(entry.message.parse().unwrap());
        }
        found
    }

    /// Viewers that subscribe before the first entry, and are not woken until a whole burst has arrived.
    #[tokio::test]
    async fn a_viewer_that_subscribes_first_misses_no_entry_of_a_burst() {
        // How many entries exist before the warden starts, and whether it has read them when the viewer subscribes.
        for (before, is_read) in [(0, true), (0, false), (60, true), (60, false)] {
            let keep: Arc<dyn Keep> = Arc::new(Embedded::in_memory(Arc::new(SystemClock)).unwrap());
            let (tasks, stop) = (TaskSet::new(), CancellationToken::new());
            let collector = |keep| {
                let retention = Retention { days: 90, bytes: 1 << 40 };
                Collector::new(keep, ["a".to_owned()], retention, Arc::new(SystemClock))
            };
            if before > 0 {
                let (earlier, task) = collector(keep.clone());
                let stop = CancellationToken::new();
                tasks.spawn("earlier", task.run(stop.clone()));
                earlier.store(entries(1, before)).await.unwrap();
                stop.cancel();
            }
            let (collector, mut task) = collector(keep);
            if is_read {
                task.prepare().await;
            }
            let mut frames = Box::pin(collector.follow(None).await);
            tasks.spawn("collector", task.run(stop.clone()));
            collector.store(entries(before + 1, BURST)).await.unwrap();
            let first = before.saturating_sub(sse::REPLAY as u64) + 1;
            let all: Vec<u64> = (first..=before + BURST).collect();
            let found = messages(&mut frames, all.len() as u64).await;
            assert!(found == all, "{before} {is_read}: begins with {:?}", found.first());
            stop.cancel();
            assert!(tasks.finish(Duration::from_secs(10)).await);
        }
    }
}
