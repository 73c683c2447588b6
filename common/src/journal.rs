//! A ring buffer of the last N entries with live subscribers. Replay and stream use the same buffer, so there are no gaps
//! and no duplicates.
//!
//! A subscriber is a cursor into the ring without a queue. If a reader is too slow and its next entry has been overwritten,
//! it gets the number of missed entries. Neither readers nor writers block each other.

use std::collections::VecDeque;

use futures_util::Stream;
use tokio::sync::watch;

/// The last entries, numbered, with live subscriptions.
#[derive(Debug)]
pub struct Journal<T> {
    ring: watch::Sender<Ring<T>>,
}

#[derive(Debug)]
struct Ring<T> {
    entries: VecDeque<T>,
    capacity: usize,
    /// The maximum total weight, the current total, and the function that weighs an entry.
    budget: usize,
    weight: usize,
    weigh: fn(&T) -> usize,
    /// Id of the next entry.
    next: u64,
    /// How often it was restarted.
    restarts: u64,
    closed: bool,
}

impl<T> Ring<T> {
    /// Id of the oldest entry in the ring; `next` if it is empty.
    fn oldest(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    fn push(&mut self, entry: T) {
        self.weight += (self.weigh)(&entry);
        self.entries.push_back(entry);
        self.next += 1;
        while self.entries.len() > self.capacity || (self.weight > self.budget && self.entries.len() > 1) {
            let dropped = self.entries.pop_front().expect("there is more than one");
            self.weight -= (self.weigh)(&dropped);
        }
    }

    fn get(&self, id: u64) -> Option<&T> {
        let index = id.checked_sub(self.oldest())?;
        self.entries.get(usize::try_from(index).ok()?)
    }
}

impl<T: Clone> Journal<T> {
    /// Creates a journal of at most `capacity` entries, starting with the id `first_id`. To keep ids unique across
    /// restarts, pass a number that only grows.
    pub fn new(capacity: usize, first_id: u64) -> Self {
        Self::weighed(capacity, first_id, usize::MAX, |_| 0)
    }

    /// Like [`new`](Self::new), with an additional limit on the total weight of the entries. The last entry is always kept.
    pub fn weighed(capacity: usize, first_id: u64, budget: usize, weigh: fn(&T) -> usize) -> Self {
        let (entries, capacity) = (VecDeque::new(), capacity.max(1));
        let ring =
            Ring { entries, capacity, budget, weight: 0, weigh, next: first_id, restarts: 0, closed: false };
        Self { ring: watch::Sender::new(ring) }
    }

    /// Appends an entry and returns its id. Never waits for a reader.
    pub fn append(&self, entry: T) -> u64 {
        let mut id = 0;
        self.ring.send_modify(|ring| {
            id = ring.next;
            ring.push(entry);
        });
        id
    }

    /// Appends an entry with a given id. If the id does not follow the last one, the journal is cleared first, since the
    /// entries in between are missing.
    pub fn append_as(&self, id: u64, entry: T) {
        self.ring.send_modify(|ring| {
            if ring.next != id {
                (ring.next, ring.weight) = (id, 0);
                ring.entries.clear();
            }
            ring.push(entry);
        });
    }

    /// Forgets all entries and ends all subscriptions: ids that were given before will be given again.
    pub fn restart(&self) {
        self.ring.send_modify(|ring| {
            (ring.next, ring.weight) = (0, 0);
            ring.entries.clear();
            ring.restarts += 1;
        });
    }

    /// Id of the next entry.
    pub fn next_id(&self) -> u64 {
        self.ring.borrow().next
    }

    /// The last `count` entries, oldest first.
    pub fn recent(&self, count: usize) -> Vec<T> {
        let ring = self.ring.borrow();
        ring.entries.iter().skip(ring.entries.len().saturating_sub(count)).cloned().collect()
    }

    /// The entries from the id `first` on, oldest first.
    pub fn since(&self, first: u64) -> Vec<T> {
        let ring = self.ring.borrow();
        let before = first.saturating_sub(ring.oldest());
        ring.entries.iter().skip(usize::try_from(before).unwrap_or(usize::MAX)).cloned().collect()
    }

    /// Subscribes to the journal. The subscription starts after the entry `after`, or with the last `replay` entries if
    /// `after` is `None` or no longer in the ring, and continues with every new entry.
    pub fn subscribe(&self, replay: usize, after: Option<u64>) -> Subscription<T> {
        let ring = self.ring.subscribe();
        let (next, restarts) = {
            let ring = ring.borrow();
            let next = match after {
                Some(id) if id < ring.next && id.saturating_add(1) >= ring.oldest() => id + 1,
                _ => ring.next.saturating_sub(replay as u64).max(ring.oldest()),
            };
            (next, ring.restarts)
        };
        Subscription { ring, next, restarts }
    }

    /// Subscribes starting with the entry `next`. Entries that are no longer in the ring are reported as missed.
    pub fn subscribe_from(&self, next: u64) -> Subscription<T> {
        let ring = self.ring.subscribe();
        let restarts = ring.borrow().restarts;
        Subscription { ring, next, restarts }
    }

    /// The entry with this id, if it is in the ring.
    pub fn get(&self, id: u64) -> Option<T> {
        self.ring.borrow().get(id).cloned()
    }

    /// Reports whether the entry with this id is in the ring.
    pub fn contains(&self, id: u64) -> bool {
        self.ring.borrow().get(id).is_some()
    }

    /// Ends all subscriptions once they have read the remaining entries.
    pub fn close(&self) {
        self.ring.send_modify(|ring| ring.closed = true);
    }
}

/// An item of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item<T> {
    /// An entry and its id.
    Entry(u64, T),
    /// That many entries were dropped because this subscriber was too slow.
    Missed(u64),
}

/// The position of one subscriber in a journal.
#[derive(Debug)]
pub struct Subscription<T> {
    ring: watch::Receiver<Ring<T>>,
    next: u64,
    /// [`Ring::restarts`] when it began.
    restarts: u64,
}

impl<T: Clone> Subscription<T> {
    /// Waits for the next item; `None` once the journal is closed and all entries have been read, or after a restart. Cancel
    /// safe.
    pub async fn next(&mut self) -> Option<Item<T>> {
        loop {
            {
                let ring = self.ring.borrow_and_update();
                if ring.restarts != self.restarts {
                    return None;
                }
                let oldest = ring.oldest();
                if self.next < oldest {
                    let missed = oldest - self.next;
                    self.next = oldest;
                    return Some(Item::Missed(missed));
                }
                if let Some(entry) = ring.get(self.next) {
                    self.next += 1;
                    return Some(Item::Entry(self.next - 1, entry.clone()));
                }
                if ring.closed {
                    return None;
                }
            }
            // An error means that the journal has been dropped, which ends its subscriptions as well.
            self.ring.changed().await.ok()?;
        }
    }

    /// Converts the subscription into a stream.
    pub fn into_stream(self) -> impl Stream<Item = Item<T>> + Send + Sync
    where
        T: Send + Sync,
    {
        futures_util::stream::unfold(self, |mut me| async move { me.next().await.map(|item| (item, me)) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::*;

    fn drain(subscription: &mut Subscription<u32>) -> Vec<Item<u32>> {
        let mut items = Vec::new();
        while let Some(Some(item)) = subscription.next().now_or_never() {
            items.push(item);
        }
        items
    }

    #[tokio::test]
    async fn replay_is_oldest_first_and_then_live() {
        let journal = Journal::new(10, 1);
        for n in 0..5 {
            journal.append(n);
        }
        let mut subscription = journal.subscribe(2, None);
        journal.append(5);
        assert_eq!(drain(&mut subscription), [Item::Entry(4, 3), Item::Entry(5, 4), Item::Entry(6, 5)]);
        assert_eq!(journal.recent(2), [4, 5]);
        assert_eq!(journal.recent(100).len(), 6);
    }

    #[tokio::test]
    async fn a_known_id_continues_where_it_was() {
        let journal = Journal::new(3, 100);
        for n in 0..5 {
            journal.append(n); // ids 100 to 104; 102 to 104 are kept
        }
        let ids = |after| {
            let mut subscription = journal.subscribe(1, Some(after));
            std::iter::from_fn(move || match subscription.next().now_or_never() {
                Some(Some(Item::Entry(id, _))) => Some(id),
                _ => None,
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(ids(103), [104]);
        assert_eq!(ids(104), [] as [u64; 0]);
        assert_eq!(ids(101), [102, 103, 104], "the entry after it is still in the ring");
        assert_eq!(ids(100), [104], "no longer in the ring: the plain replay");
        assert_eq!(ids(105), [104], "an id from another run: the plain replay");
        assert_eq!(ids(u64::MAX), [104]);
        assert_eq!((journal.since(103), journal.since(7)), (vec![3, 4], vec![2, 3, 4]));
        assert_eq!(journal.since(u64::MAX), [] as [i32; 0]);
    }

    #[tokio::test]
    async fn a_slow_reader_gets_the_number_of_missed_entries() {
        let journal = Journal::new(3, 1);
        let mut subscription = journal.subscribe(0, None);
        for n in 1..=10 {
            journal.append(n);
        }
        assert_eq!(
            drain(&mut subscription),
            [Item::Missed(7), Item::Entry(8, 8), Item::Entry(9, 9), Item::Entry(10, 10)]
        );
    }

    #[tokio::test]
    async fn heavy_entries_evict_the_oldest_sooner() {
        let journal = Journal::weighed(100, 1, 10, |n: &u32| *n as usize);
        for n in [4, 4, 4, 1, 1] {
            journal.append(n);
        }
        assert_eq!(journal.recent(100), [4, 4, 1, 1]);
        journal.append(50);
        assert_eq!((journal.recent(100), journal.next_id()), (vec![50], 7));
        journal.append(2);
        assert_eq!(journal.recent(100), [2]);
    }

    #[tokio::test]
    async fn a_subscription_ends_on_close_after_the_last_entry() {
        let journal = Journal::new(3, 1);
        let mut subscription = journal.subscribe(0, None);
        journal.append(7);
        journal.close();
        assert_eq!(subscription.next().await, Some(Item::Entry(1, 7)));
        assert_eq!(subscription.next().await, None);
        let mut orphan = {
            let journal = Journal::<u32>::new(3, 1);
            journal.subscribe(0, None)
        };
        assert_eq!(orphan.next().await, None);
    }

    #[tokio::test]
    async fn a_subscription_ends_with_a_restart() {
        let journal = Journal::new(3, 1);
        journal.append_as(7, 7);
        let mut before = journal.subscribe_from(8);
        journal.append_as(20, 20);
        assert_eq!(drain(&mut before), [Item::Missed(12), Item::Entry(20, 20)]);
        journal.restart();
        journal.append_as(5, 5);
        assert_eq!(before.next().await, None);
        assert_eq!(drain(&mut journal.subscribe(3, None)), [Item::Entry(5, 5)]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn subscribing_during_appends_yields_no_gaps_or_duplicates() {
        let journal = Arc::new(Journal::new(100_000, 1));
        let writer = {
            let journal = journal.clone();
            tokio::task::spawn_blocking(move || {
                for n in 0..20_000u32 {
                    journal.append(n);
                }
                journal.close();
            })
        };
        let mut readers = Vec::new();
        for _ in 0..20 {
            let mut subscription = journal.subscribe(50, None);
            let mut last = None;
            while let Some(item) = subscription.next().now_or_never() {
                let Some(Item::Entry(id, _)) = item else { break };
                assert!(last.is_none_or(|last| id == last + 1), "{last:?} then {id}");
                last = Some(id);
            }
            readers.push((subscription, last));
        }
        writer.await.unwrap();
        for (mut subscription, mut last) in readers {
            while let Some(item) = subscription.next().await {
                let Item::Entry(id, _) = item else { panic!("nothing can be missed here") };
                assert!(last.is_none_or(|last| id == last + 1), "{last:?} then {id}");
                last = Some(id);
            }
            assert_eq!(last, Some(20_000));
        }
    }
}
