//! Tests of commits: state and entries in one transaction.

use std::sync::atomic::Ordering;

use futures_util::FutureExt;

use super::tests::{Disk, drain, entry, next, open, visible};
use super::*;
use crate::store::MemoryStore;

/// A state change, as a service makes it.
fn state(value: &str) -> Vec<Change> {
    vec![("state".to_owned(), Some(value.as_bytes().to_vec()))]
}

#[tokio::test(start_paused = true)]
async fn a_commit_writes_state_and_entries_together_or_neither() {
    let disk = Disk::default();
    let outbox = open(disk.clone(), &["a"]).await.outbox;
    let mut a = outbox.destination("a").unwrap();
    let first = next(&outbox);
    outbox.commit(state("one"), vec![entry("1"), entry("2")]).await.unwrap();
    assert_eq!((visible(&outbox), disk.writes.load(Ordering::SeqCst)), (vec!["1".into(), "2".into()], 1));
    disk.full.store(true, Ordering::SeqCst);
    outbox.commit(state("two"), vec![entry("3")]).await.unwrap_err();
    assert_eq!((visible(&outbox).len(), outbox.waiting("a")), (2, 2), "the failed commit left nothing");
    disk.full.store(false, Ordering::SeqCst);
    outbox.commit(state("three"), vec![entry("4")]).await.unwrap();
    let expected = [(Some(first), "1"), (Some(first + 1), "2"), (Some(first + 2), "4")];
    assert_eq!(
        drain(&mut a).await,
        expected.map(|(seq, text)| (seq, text.to_owned())),
        "no number is skipped"
    );
    assert_eq!(disk.get("state").await.unwrap().unwrap(), b"three");
    assert_eq!(visible(&open(disk, &["a"]).await.outbox), ["1", "2", "4"], "without `Outbox::run`");
}

#[tokio::test(start_paused = true)]
async fn entries_around_a_commit_keep_their_order_and_numbers_whether_it_succeeds_or_not() {
    for fails in [false, true] {
        let disk = Disk::default();
        let outbox = open(disk.clone(), &["a"]).await.outbox;
        outbox.put(entry("before"));
        disk.full.store(fails, Ordering::SeqCst);
        let mut commit = Box::pin(outbox.commit(state("x"), vec![entry("committed")]));
        assert!((&mut commit).now_or_never().is_none(), "the commit is in progress");
        outbox.put(entry("meanwhile"));
        assert_eq!(visible(&outbox), [] as [&str; 0]);
        assert_eq!(commit.await.is_err(), fails);
        disk.full.store(false, Ordering::SeqCst);
        let stop = CancellationToken::new();
        stop.cancel();
        outbox.clone().run(stop).await;
        let expected: &[&str] =
            if fails { &["before", "meanwhile"] } else { &["before", "committed", "meanwhile"] };
        assert_eq!(visible(&outbox), expected);
        assert_eq!(visible(&open(disk, &["a"]).await.outbox), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_numbers_of_a_dropped_commit_are_not_reused() {
    let disk = Disk::default();
    let outbox = open(disk.clone(), &["a"]).await.outbox;
    let mut commit = Box::pin(outbox.commit(state("x"), vec![entry("committed")]));
    assert!((&mut commit).now_or_never().is_none());
    drop(commit);
    outbox.put(entry("after"));
    outbox.commit(state("y"), vec![entry("next")]).await.unwrap();
    assert_eq!(visible(&outbox), ["committed", "after", "next"]);
}

#[tokio::test(start_paused = true)]
async fn a_state_in_another_store_is_written_there_before_its_entries_are_queued() {
    let disk = Disk::default();
    let outbox = open(MemoryStore::new(), &[]).await.outbox.with_state_in(Arc::new(disk.clone()));
    disk.full.store(true, Ordering::SeqCst);
    outbox.commit(state("x"), vec![entry("1")]).await.unwrap_err();
    disk.full.store(false, Ordering::SeqCst);
    outbox.commit(state("y"), vec![entry("2")]).await.unwrap();
    assert_eq!(disk.get("state").await.unwrap().unwrap(), b"y");
    assert_eq!(
        outbox.log.borrow().pending.values().map(|entry| entry.message.clone()).collect::<Vec<_>>(),
        ["2"]
    );
}
