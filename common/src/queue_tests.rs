//! Tests of the outbox: many short runs on one store.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::*;
use crate::clock::SystemClock;
use crate::store::MemoryStore;
use crate::wire::{Kind, Level};

pub(super) fn entry(message: impl Into<String>) -> Arc<AuditEntry> {
    Arc::new(AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::UPDATED, Level::Info, message))
}

pub(super) fn next(outbox: &Outbox) -> u64 {
    outbox.log.borrow().next
}

/// The visible entries of the journal.
pub(super) fn visible(outbox: &Outbox) -> Vec<String> {
    outbox.journal().recent(HISTORY).iter().map(|entry| entry.message.clone()).collect()
}

pub(super) async fn open(store: impl Store, names: &[&str]) -> Opened {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Outbox::open(Arc::new(store), Arc::new(SystemClock), "evenkeel", &names).await.unwrap()
}

/// Receives the waiting entries of a destination and marks them as done.
pub(super) async fn drain(destination: &mut Destination) -> Vec<(Option<u64>, String)> {
    let mut found = Vec::new();
    while !destination.is_empty() {
        let item = tokio::time::timeout(Duration::from_mins(1), destination.next()).await.unwrap();
        destination.done(&item);
        found.push((item.seq, item.entry.message.clone()));
    }
    found
}

/// The visible entries that wait for a destination.
fn waiting(outbox: &Outbox, name: &str) -> Vec<String> {
    outbox.waiting_entries(name).iter().map(|entry| entry.message.clone()).collect()
}

fn messages(found: &[(Option<u64>, String)]) -> Vec<&str> {
    found.iter().map(|(_, message)| message.as_str()).collect()
}

/// A store that accepts or rejects writes, and counts them.
#[derive(Clone, Default)]
pub(super) struct Disk {
    rows: MemoryStore,
    pub(super) full: Arc<AtomicBool>,
    /// Whether reads fail.
    pub(super) gone: Arc<AtomicBool>,
    pub(super) writes: Arc<AtomicUsize>,
}

#[async_trait]
impl Store for Disk {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if self.full.load(Ordering::SeqCst) {
            return Err(StoreError { doing: "write", path: "test".into(), cause: "full".into() });
        }
        self.rows.put_all(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        if self.gone.load(Ordering::SeqCst) {
            return Err(StoreError { doing: "read", path: "test".into(), cause: "gone".into() });
        }
        self.rows.get(key).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.rows.scan(prefix).await
    }
}

#[tokio::test(start_paused = true)]
async fn every_destination_gets_every_entry_in_order_under_one_number() {
    let outbox = open(MemoryStore::new(), &["a", "b"]).await.outbox;
    let (mut a, mut b) = (outbox.destination("a").unwrap(), outbox.destination("b").unwrap());
    assert!(outbox.destination("c").is_none());
    let stop = CancellationToken::new();
    let first = next(&outbox);
    let scenario = async {
        for n in 0..5 {
            outbox.put(entry(format!("{n}")));
        }
        assert_eq!((outbox.waiting("a"), outbox.waiting("b")), (5, 5));
        let got = drain(&mut a).await;
        assert_eq!(messages(&got), ["0", "1", "2", "3", "4"]);
        assert_eq!(got[4].0, Some(first + 4));
        assert_eq!(drain(&mut b).await, got);
        stop.cancel();
        drop((a, b));
    };
    tokio::join!(outbox.clone().run(stop.clone()), scenario);
}

#[tokio::test(start_paused = true)]
async fn an_undelivered_entry_is_redelivered_after_a_restart_with_its_number() {
    let store = MemoryStore::new();
    let first = {
        let outbox = open(store.clone(), &["a"]).await.outbox;
        let mut a = outbox.destination("a").unwrap();
        for n in 0..4 {
            outbox.put(entry(format!("{n}")));
        }
        tokio::select! {
            () = outbox.clone().run(CancellationToken::new()) => {}
            () = async {
                for _ in 0..2 {
                    let item = a.next().await;
                    a.done(&item);
                }
                a.next().await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            } => {}
        }
        next(&outbox)
    };
    let opened = open(store, &["a", "new"]).await;
    assert!(opened.continued);
    assert_eq!(next(&opened.outbox), first);
    assert_eq!(visible(&opened.outbox).len(), 4);
    let (outbox, mut a) = (opened.outbox.clone(), opened.outbox.destination("a").unwrap());
    assert_eq!(drain(&mut a).await, [(Some(first - 2), "2".to_owned()), (Some(first - 1), "3".to_owned())]);
    assert_eq!(outbox.waiting("new"), 0, "a new destination gets entries from now on");
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_not_visible_before_it_is_durable() {
    let disk = Disk::default();
    let opened = open(disk.clone(), &["a"]).await;
    let (outbox, mut a) = (opened.outbox.clone(), opened.outbox.destination("a").unwrap());
    outbox.put(entry("x"));
    assert!(a.next().now_or_never().is_none());
    assert_eq!(visible(&outbox), [] as [&str; 0]);
    let mut subscription = outbox.journal().subscribe(50, None);
    let watch = async {
        subscription.next().await;
        assert_eq!(visible(&open(disk, &["a"]).await.outbox), ["x"], "the next run has it");
        a.next().await;
    };
    tokio::select! {
        () = outbox.clone().run(CancellationToken::new()) => {}
        () = watch => {}
    }
}

#[tokio::test(start_paused = true)]
async fn journal_ids_stay_consistent_across_restarts_a_full_disk_and_an_overflow() {
    let disk = Disk::default();
    let ids = |outbox: &Outbox| (outbox.journal().next_id(), next(outbox));
    for run in 0..2 {
        let outbox = open(disk.clone(), &[]).await.outbox;
        assert_eq!(ids(&outbox).0, ids(&outbox).1);
        disk.full.store(false, Ordering::SeqCst);
        let stop = CancellationToken::new();
        let work = async {
            outbox.put(entry("kept"));
            tokio::time::sleep(Duration::from_secs(1)).await;
            disk.full.store(true, Ordering::SeqCst);
            outbox.put(entry("refused"));
            tokio::time::sleep(Duration::from_secs(1)).await;
            outbox.put(entry("refused too"));
            assert_eq!(visible(&outbox).last().unwrap(), "refused too", "visible immediately");
            for n in 0..=CAPACITY {
                outbox.put(entry(format!("{run}.{n}")));
            }
            assert_eq!(ids(&outbox).0, ids(&outbox).1);
            stop.cancel();
        };
        tokio::join!(outbox.clone().run(stop.clone()), work);
    }
}

#[tokio::test(start_paused = true)]
async fn several_entries_are_received_at_once_in_order() {
    let outbox = open(MemoryStore::new(), &["a"]).await.outbox;
    let mut a = outbox.destination("a").unwrap();
    let stop = CancellationToken::new();
    let scenario = async {
        for n in 0..5 {
            outbox.put(entry(format!("{n}")));
        }
        let mut found = Vec::new();
        for expected in [3, 2] {
            let items = a.next_batch(3).await;
            assert_eq!(items.len(), expected);
            a.done(&items[expected - 1]);
            found.extend(items.into_iter().map(|item| item.entry.message.clone()));
        }
        assert_eq!(found, ["0", "1", "2", "3", "4"]);
        assert!(a.is_empty());
        stop.cancel();
        drop(a);
    };
    tokio::join!(outbox.clone().run(stop.clone()), scenario);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_entries_are_dropped_and_one_entry_says_how_many() {
    let store = MemoryStore::new();
    let outbox = open(store.clone(), &["a", "b"]).await.outbox;
    let (mut a, mut b) = (outbox.destination("a").unwrap(), outbox.destination("b").unwrap());
    let stop = CancellationToken::new();
    let first = next(&outbox);
    let scenario = async {
        outbox.put(entry("early"));
        assert_eq!(drain(&mut b).await.len(), 1);
        for n in 0..CAPACITY + 6 {
            outbox.put(entry(format!("{n}")));
        }
        assert_eq!(outbox.waiting("a"), CAPACITY);
        let item = a.next().await;
        assert!(item.is_loss);
        assert_eq!(item.entry.message, "7 audit entries before this one were lost for a");
        assert_eq!(item.seq, None, "the next attempt may say something else");
        outbox.put(entry("late"));
        let item = a.next().await;
        assert_eq!(
            (item.seq, item.entry.message.as_str()),
            (None, "8 audit entries before this one were lost for a")
        );
        a.done(&item);
        let rest = drain(&mut a).await;
        assert_eq!((rest.len() as u64, rest[0].clone()), (CAPACITY, (Some(first + 8), "7".to_owned())));
        assert_eq!(drain(&mut b).await[0].1, "7 audit entries before this one were lost for b");
        stop.cancel();
        drop((a, b));
    };
    tokio::join!(outbox.clone().run(stop.clone()), scenario);
    assert_eq!(store.scan(ENTRIES).await.unwrap().len(), HISTORY);
    assert_eq!(visible(&open(store, &[]).await.outbox).len(), HISTORY);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_delays_no_delivery_and_the_outbox_catches_up() {
    let disk = Disk::default();
    let outbox = open(disk.clone(), &["a", "b"]).await.outbox;
    let (mut a, b) = (outbox.destination("a").unwrap(), outbox.destination("b").unwrap());
    let stop = CancellationToken::new();
    let first = next(&outbox);
    let scenario = async {
        disk.full.store(true, Ordering::SeqCst);
        outbox.put(entry("x"));
        outbox.put(entry("y"));
        assert_eq!(drain(&mut a).await, [(None, "x".to_owned()), (None, "y".to_owned())]);
        assert_eq!(waiting(&outbox, "a"), [] as [&str; 0]);
        assert_eq!(waiting(&outbox, "b"), ["x", "y"]);
        disk.full.store(false, Ordering::SeqCst);
        tokio::time::sleep(LAST_RETRY * 2).await;
        outbox.put(entry("z"));
        assert_eq!(drain(&mut a).await, [(Some(first + 2), "z".to_owned())]);
        stop.cancel();
        drop((a, b));
    };
    tokio::join!(outbox.clone().run(stop.clone()), scenario);
    let outbox = open(disk, &["a", "b"]).await.outbox;
    assert_eq!((outbox.waiting("a"), outbox.waiting("b")), (0, 3));
    assert_eq!(waiting(&outbox, "b"), ["x", "y", "z"]);
    let mut b = outbox.destination("b").unwrap();
    assert_eq!(messages(&drain(&mut b).await), ["x", "y", "z"]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_can_no_longer_be_read_keeps_back_no_entry_that_is_still_in_memory() {
    let disk = Disk::default();
    let outbox = open(disk.clone(), &["a"]).await.outbox;
    let mut a = outbox.destination("a").unwrap();
    let stop = CancellationToken::new();
    let first = next(&outbox);
    let scenario = async {
        outbox.put(entry("x"));
        while outbox.unwritten() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        disk.full.store(true, Ordering::SeqCst);
        disk.gone.store(true, Ordering::SeqCst);
        outbox.put(entry("y"));
        assert_eq!(drain(&mut a).await, [(Some(first), "x".to_owned()), (None, "y".to_owned())]);
        stop.cancel();
        drop(a);
    };
    tokio::join!(outbox.clone().run(stop.clone()), scenario);
}

#[tokio::test(start_paused = true)]
async fn a_burst_costs_few_transactions() {
    let disk = Disk::default();
    let outbox = open(disk.clone(), &["a", "b", "c"]).await.outbox;
    let stop = CancellationToken::new();
    let mut ends: Vec<_> = ["a", "b", "c"].iter().map(|name| outbox.destination(name).unwrap()).collect();
    let scenario = async {
        for n in 0..1000 {
            outbox.put(entry(format!("{n}")));
        }
        for end in &mut ends {
            assert_eq!(drain(end).await.len(), 1000);
        }
        stop.cancel();
        ends.clear();
    };
    tokio::join!(outbox.clone().run(stop.clone()), scenario);
    let writes = disk.writes.load(Ordering::SeqCst);
    assert!(writes < 20, "{writes}");
}

#[tokio::test(start_paused = true)]
async fn damaged_rows_are_skipped() {
    let store = MemoryStore::new();
    let opened = open(store.clone(), &["a"]).await;
    let stop = CancellationToken::new();
    stop.cancel();
    let first = next(&opened.outbox);
    for n in 0..4 {
        opened.outbox.put(entry(format!("{n}")));
    }
    opened.outbox.run(stop).await;
    store.put(&entry_key(first + 1), b"{".to_vec()).await.unwrap();
    store.put("outbox/entry/what", b"{}".to_vec()).await.unwrap();
    store.put_all(vec![(entry_key(first + 2), None)]).await.unwrap();
    let outbox = open(store.clone(), &["a"]).await.outbox;
    let mut a = outbox.destination("a").unwrap();
    assert_eq!(messages(&drain(&mut a).await), ["0", "3"]);
    store.put(NEXT, b"x".to_vec()).await.unwrap();
    assert!(next(&open(store, &["a"]).await.outbox) > first + 3, "a number is never reused");
}

/// A receiver that stores each number once, as the warden does.
#[derive(Default)]
struct Receiver(Mutex<Vec<(u64, String)>>);

impl Receiver {
    fn take(&self, item: &Item) {
        let seq = item.seq.expect("the disk accepts writes");
        let mut stored = self.0.lock();
        if stored.last().is_none_or(|(last, _)| *last < seq) {
            stored.push((seq, item.entry.message.clone()));
        } else {
            let same =
                stored.iter().find(|(known, _)| *known == seq).expect("a duplicate, not an older entry");
            assert_eq!(same.1, item.entry.message, "one number for two entries");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_killed_runs_lose_no_durable_entry_and_reuse_no_number() {
    for seed in 0..40_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |most: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % most
        };
        let disk = Disk::default();
        let receiver = Receiver::default();
        let mut recorded = Vec::new();
        for run in 0..12 {
            let opened = open(disk.clone(), &["a"]).await;
            // Entries that did not reach the outbox; the state of a service would produce them again.
            recorded.truncate(recorded.len().min(visible(&opened.outbox).last().map_or(0, |last| {
                recorded.iter().position(|message| message == last).map_or(0, |at| at + 1)
            })));
            let outbox = opened.outbox;
            let mut a = outbox.destination("a").unwrap();
            let stop = CancellationToken::new();
            let (puts, kill_after, is_up) = (draw(8), draw(60), draw(3) > 0);
            let work = async {
                for n in 0..puts {
                    let message = format!("{run}.{n}");
                    recorded.push(message.clone());
                    outbox.put(entry(message));
                    tokio::task::yield_now().await;
                }
                std::future::pending::<()>().await;
            };
            let deliver = async {
                loop {
                    let item = a.next().await;
                    if !is_up {
                        std::future::pending::<()>().await;
                    }
                    receiver.take(&item);
                    tokio::task::yield_now().await;
                    a.done(&item);
                }
            };
            let killed = async {
                for _ in 0..kill_after {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                () = killed => {}
                () = outbox.clone().run(stop) => {}
                () = work => {}
                () = deliver => {}
            }
        }
        let opened = open(disk.clone(), &["a"]).await;
        let durable = visible(&opened.outbox);
        let mut a = opened.outbox.destination("a").unwrap();
        while !a.is_empty() {
            let item = a.next().await;
            receiver.take(&item);
            a.done(&item);
        }
        let stored: Vec<_> = receiver.0.lock().iter().map(|(_, message)| message.clone()).collect();
        assert_eq!(stored, durable, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_set_of_destinations_persists_across_restarts() {
    let store = MemoryStore::new();
    let outbox = open(store.clone(), &["kept", "gone"]).await.outbox;
    let stop = CancellationToken::new();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let scenario = async {
        outbox.put(entry("0"));
        outbox.put(entry("1"));
        assert_eq!(outbox.set_destinations(&names(&["kept", "new"])), [("gone".to_owned(), 2)]);
        assert!(outbox.destination("gone").is_none());
        outbox.put(entry("2"));
        // A destination that is added again starts empty, whether or not its removal was written in between.
        assert_eq!(outbox.set_destinations(&names(&["kept", "new", "gone"])), []);
        outbox.put(entry("3"));
        stop.cancel();
    };
    tokio::join!(outbox.clone().run(stop.clone()), scenario);
    let again = open(store, &["kept", "gone", "new"]).await.outbox;
    for (name, expected) in [("kept", &["0", "1", "2", "3"][..]), ("new", &["2", "3"]), ("gone", &["3"])] {
        let mut destination = again.destination(name).unwrap();
        assert_eq!(messages(&drain(&mut destination).await), expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_parts_of_a_destination_continue_where_it_was_and_keep_their_queues_while_it_is_off() {
    for at_start in [true, false] {
        let store = MemoryStore::new();
        let outbox = open(store.clone(), &["mail", "hook/a"]).await.outbox;
        let stop = CancellationToken::new();
        let scenario = async {
            outbox.put(entry("0"));
            stop.cancel();
        };
        tokio::join!(outbox.clone().run(stop.clone()), scenario);
        let names = ["mail/a", "mail/b", "hook/b"];
        let outbox = if at_start {
            open(store.clone(), &names).await.outbox
        } else {
            let outbox = open(store.clone(), &["mail", "hook/a"]).await.outbox;
            // Nobody replaces this one.
            assert_eq!(outbox.set_destinations(&names.map(str::to_owned)), [("hook/a".to_owned(), 1)]);
            outbox
        };
        for (name, expected) in [("mail/a", &["0"][..]), ("hook/b", &[])] {
            let mut destination = outbox.destination(name).unwrap();
            assert_eq!(messages(&drain(&mut destination).await), expected, "{name}");
        }
        // Off, and on again, with another part: that one is new.
        assert_eq!(outbox.set_destinations(&["mail/*".to_owned()]), [("hook/b".to_owned(), 0)]);
        let names = ["mail/a", "mail/b"].map(str::to_owned);
        assert_eq!(outbox.set_destinations(&names), []);
        for (name, expected) in [("mail/a", &[][..]), ("mail/b", &["0"])] {
            let mut destination = outbox.destination(name).unwrap();
            assert_eq!(messages(&drain(&mut destination).await), expected, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_destination_leaves_nothing_in_the_store() {
    let store = MemoryStore::new();
    let outbox = open(store.clone(), &["a"]).await.outbox;
    let stop = CancellationToken::new();
    let scenario = async {
        outbox.put(entry("0"));
        let mut kept = outbox.destination("a").unwrap();
        kept.next().await;
        drop(kept);
        outbox.set_destinations(&[]);
        stop.cancel();
    };
    tokio::join!(outbox.clone().run(stop.clone()), scenario);
    assert_eq!(store.scan(DONE).await.unwrap(), []);
}
