//! The test cases of the suite.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::{FleetEntry, FreezeScope};
use evenkeel_warden::collector::Collector;
use evenkeel_warden::fleet::decisions::{DECISIONS, Decision, Decisions, FuseRule};
use evenkeel_warden::fleet::inventory;
use evenkeel_warden::fleet::verdict::{self, DigestRecord, Verdict};
use evenkeel_warden::keep::{
    Change, Keep, News, Outcome, Position, Query, Retention, SCAN_BUDGET, Stored, Versioned,
};
use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use super::World;
use crate::support::SetClock;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

/// An entry of service `web`, with its number as message.
fn entry(agent: &str, seq: u64) -> FleetEntry {
    let text = format!(
        r#"{{"timestamp":"{}","machine":"{agent}","service":"web","event":"updated","message":"{agent} {seq}","level":"info"}}"#,
        at(i64::try_from(seq).unwrap())
    );
    let seq = Some(seq);
    FleetEntry {
        seq,
        epoch: Some("e1".to_owned()),
        agent: agent.to_owned(),
        ..serde_json::from_str(&text).unwrap()
    }
}

fn changes(entries: impl IntoIterator<Item = FleetEntry>) -> Vec<Change> {
    entries.into_iter().map(|entry| Change::Entry(Box::new(entry))).collect()
}

async fn put(keep: &dyn Keep, entries: impl IntoIterator<Item = FleetEntry>) -> Vec<Outcome> {
    keep.commit(changes(entries), at(0)).await.unwrap()
}

/// Stores that an agent has reported these images: only for these do its verdicts count.
async fn report(keep: &dyn Keep, agent: &str, images: &[&str]) {
    let images: Vec<_> =
        images.iter().map(|image| serde_json::json!({"service": "s", "image": image})).collect();
    let value = serde_json::json!({"at": at(0), "inventory": {"ring": 0, "images": images}});
    let name = inventory::name(agent);
    assert!(keep.swap(&name, 0, value.to_string().into_bytes()).await.unwrap().is_some());
}

fn messages(entries: &[Stored]) -> Vec<String> {
    entries.iter().map(|stored| serde_json::from_str::<FleetEntry>(&stored.line).unwrap().message).collect()
}

fn ids(entries: &[Stored]) -> Vec<u64> {
    entries.iter().map(|entry| entry.id).collect()
}

async fn all(keep: &dyn Keep) -> Vec<Stored> {
    keep.tail(0, usize::MAX >> 1).await.unwrap()
}

pub(crate) async fn ids_ascend_without_gaps_and_entries_are_read_in_order(world: &dyn World) {
    let keep = world.open().await;
    let first = put(&*keep, [entry("a", 1), entry("b", 1), entry("a", 2)]).await;
    let Outcome::Stored(id) = first[0] else { panic!("{first:?}") };
    assert_eq!(first, [0, 1, 2].map(|n| Outcome::Stored(id + n)));
    assert_eq!(put(&*keep, [entry("a", 3)]).await, [Outcome::Stored(id + 3)]);
    assert_eq!(messages(&all(&*keep).await), ["a 1", "b 1", "a 2", "a 3"]);
    assert_eq!(ids(&keep.tail(id, 2).await.unwrap()), [id + 1, id + 2]);
    assert_eq!(keep.tail(id + 3, 10).await.unwrap(), []);
    let line = all(&*keep).await.remove(0).line;
    assert_eq!(line, serde_json::to_string(&entry("a", 1)).unwrap(), "byte for byte");
    assert!(id < 1 << 53, "a browser can hold it");
}

pub(crate) async fn a_resent_entry_is_stored_once(world: &dyn World) {
    let keep = world.open().await;
    put(&*keep, [entry("a", 1), entry("a", 1)]).await;
    assert_eq!(put(&*keep, [entry("a", 1)]).await, [Outcome::Unchanged]);
    let other_epoch = FleetEntry { epoch: Some("e2".to_owned()), ..entry("a", 1) };
    let no_number = FleetEntry { seq: None, epoch: None, ..entry("a", 1) };
    put(&*keep, [entry("b", 1), other_epoch.clone(), other_epoch, no_number.clone(), no_number]).await;
    assert_eq!(messages(&all(&*keep).await), ["a 1", "b 1", "a 1", "a 1", "a 1"]);
    let machines = keep.news(Position::default(), 10).await.unwrap().machines;
    let of_a = machines.iter().find(|machine| machine.id() == "a").unwrap();
    assert_eq!((of_a.duplicates(), of_a.counts().info), (3, 4));
}

pub(crate) async fn committed_changes_survive_reopening(world: &dyn World) {
    let keep = world.open().await;
    let Outcome::Stored(id) = put(&*keep, [entry("a", 1)]).await[0] else { panic!("stored") };
    let revision = keep.swap("fleet", 0, b"one".to_vec()).await.unwrap().unwrap();
    let position = keep.news(Position::default(), 10).await.unwrap().position;
    drop(keep);
    let keep = world.open().await;
    assert_eq!(keep.value("fleet").await.unwrap().revision, revision);
    assert_eq!(
        put(&*keep, [entry("a", 1), entry("a", 2)]).await,
        [Outcome::Unchanged, Outcome::Stored(id + 1)]
    );
    let news = keep.news(position, 10).await.unwrap();
    assert_eq!((ids(&news.entries), news.machines.len(), news.values), (vec![id + 1], 1, Vec::new()));
}

pub(crate) async fn a_reader_gets_every_change_once(world: &dyn World) {
    let keep = world.open().await;
    let none = keep.news(Position::default(), 10).await.unwrap();
    assert!(none.entries.is_empty() && none.machines.is_empty() && none.values.is_empty());
    put(&*keep, (1..=5).map(|seq| entry("a", seq))).await;
    put(&*keep, [entry("b", 1)]).await;
    let revision = keep.swap("fleet", 0, b"x".to_vec()).await.unwrap().unwrap();
    let mut seen = Vec::new();
    let (mut machines, mut values) = (Vec::new(), Vec::new());
    let mut position = none.position;
    for _ in 0..4 {
        let News { entries, machines: changed, values: more, position: next, .. } =
            keep.news(position, 2).await.unwrap();
        assert!(entries.len() <= 2);
        seen.extend(messages(&entries));
        machines.extend(changed.iter().map(|machine| machine.id().to_owned()));
        values.extend(more);
        position = next;
    }
    assert_eq!(seen, ["a 1", "a 2", "a 3", "a 4", "a 5", "b 1"]);
    assert_eq!(machines, ["a", "b"]);
    assert_eq!(values.len(), 1);
    assert_eq!(
        (values[0].0.as_str(), values[0].1.revision, values[0].1.value.as_slice()),
        ("fleet", revision, &b"x"[..])
    );
    put(&*keep, [entry("a", 6)]).await;
    let news = keep.news(position, 10).await.unwrap();
    assert_eq!(
        (messages(&news.entries), news.machines.len(), news.values.len()),
        (vec!["a 6".to_owned()], 1, 0)
    );
}

pub(crate) async fn many_writers_lose_nothing_and_readers_skip_nothing(world: &dyn World) {
    const WRITERS: u64 = 8;
    const EACH: u64 = 25;
    let keep = world.open().await;
    put(&*keep, [entry("first", 1)]).await;
    let mut last = all(&*keep).await[0].id;
    let first = last;
    let tasks = TaskSet::new();
    for writer in 0..WRITERS {
        let keep = keep.clone();
        tasks.spawn("writer", async move {
            for seq in 1..=EACH {
                put(&*keep, [entry(&format!("w{writer}"), seq), entry(&format!("w{writer}"), seq)]).await;
            }
        });
    }
    let mut seen = Vec::new();
    while seen.len() < usize::try_from(WRITERS * EACH).unwrap() {
        let done = tasks.is_empty();
        let page = keep.tail(last, 7).await.unwrap();
        assert!(!(done && page.is_empty()), "only {} came", seen.len());
        last = page.last().map_or(last, |entry| entry.id);
        seen.extend(page);
    }
    assert_eq!(ids(&seen), (first + 1..=first + WRITERS * EACH).collect::<Vec<_>>());
    let mut of: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for stored in &seen {
        let entry: FleetEntry = serde_json::from_str(&stored.line).unwrap();
        of.entry(entry.agent).or_default().push(entry.seq.unwrap());
    }
    assert!(of.len() == 8 && of.values().all(|seqs| *seqs == (1..=EACH).collect::<Vec<_>>()), "{of:?}");
}

pub(crate) async fn only_transitions_of_a_heartbeat_are_entries(world: &dyn World) {
    let keep = world.open().await;
    let beat = |outcome: Result<(), &str>| {
        vec![Change::Heartbeat { agent: "a".to_owned(), outcome: outcome.map_err(str::to_owned) }]
    };
    let mut stored = Vec::new();
    for outcome in [Ok(()), Err("gone"), Err("gone"), Err("other"), Ok(()), Ok(())] {
        stored.extend(keep.commit(beat(outcome), at(0)).await.unwrap());
    }
    let is_stored: Vec<bool> = stored.iter().map(|outcome| *outcome != Outcome::Unchanged).collect();
    assert_eq!(is_stored, [false, true, false, false, true, false]);
    let events: Vec<_> = all(&*keep).await;
    assert_eq!(messages(&events), ["a does not answer", "a answers again after 0 s"]);
}

pub(crate) async fn only_one_of_two_concurrent_swaps_succeeds(world: &dyn World) {
    let keep = world.open().await;
    assert_eq!(keep.value("fleet").await.unwrap().revision, 0);
    assert_eq!(keep.swap("fleet", 7, b"wrong".to_vec()).await.unwrap(), None);
    let tasks = TaskSet::new();
    let wins = Arc::new(parking_lot::Mutex::new(Vec::new()));
    for racer in 0..8_u8 {
        let (keep, wins) = (keep.clone(), wins.clone());
        tasks.spawn("racer", async move {
            if let Some(revision) = keep.swap("fleet", 0, vec![racer]).await.unwrap() {
                wins.lock().push((racer, revision));
            }
        });
    }
    assert!(tasks.finish(std::time::Duration::from_secs(30)).await);
    let wins = wins.lock().clone();
    let [(racer, revision)] = wins[..] else { panic!("{wins:?}") };
    let value = keep.value("fleet").await.unwrap();
    assert_eq!((value.revision, value.value), (revision, vec![racer]));
    let next = keep.swap("fleet", revision, b"next".to_vec()).await.unwrap().unwrap();
    assert!(next > revision);
}

pub(crate) async fn a_value_is_removed_unless_it_has_changed(world: &dyn World) {
    let keep = world.open().await;
    let first = keep.swap("fleet", 0, b"one".to_vec()).await.unwrap().unwrap();
    let second = keep.swap("fleet", first, b"two".to_vec()).await.unwrap().unwrap();
    keep.swap("other", 0, b"stays".to_vec()).await.unwrap();
    assert!(!keep.remove("fleet", first).await.unwrap());
    assert_eq!(keep.value("fleet").await.unwrap().value, b"two");
    assert!(keep.remove("fleet", second).await.unwrap());
    assert_eq!(keep.value("fleet").await.unwrap(), Versioned::default());
    assert_eq!(keep.value("other").await.unwrap().value, b"stays");
    let names = ["missing", "other", "fleet"].map(str::to_owned);
    let values = keep.values(&names).await.unwrap();
    assert_eq!(values, [Versioned::default(), keep.value("other").await.unwrap(), Versioned::default()]);
    let again = keep.swap("fleet", 0, b"three".to_vec()).await.unwrap().unwrap();
    assert!(again > second, "revisions only grow");
}

pub(crate) async fn outdated_fleet_values_are_marked_and_then_removed(world: &dyn World) {
    let keep = world.open().await;
    let clock = Arc::new(SetClock::default());
    let limits = Retention { days: 30, bytes: 1 << 30 };
    let ids = || ["a".to_owned(), "b".to_owned()];
    let (first, task) = Collector::new(keep.clone(), ids(), limits, clock.clone());
    let (second, other_task) = Collector::new(keep.clone(), ids(), limits, clock.clone());
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    tasks.spawn("collector", task.run(stop.clone()));
    tasks.spawn("other collector", other_task.run(stop.clone()));
    let day = |n: i64| clock.set_hours(n * 24);
    let keep_for = SignedDuration::from_hours(30 * 24);

    let failed = FleetEntry {
        event: "rolled_back".to_owned(),
        image: Some("r/web:1".to_owned()),
        new_digest: Some("sha256:bad".to_owned()),
        ..entry("a", 1)
    };
    let image = r#"{"images":[{"service":"web","image":"r/web:1","blocked":"sha256:bad"}]}"#;
    first.report("a", serde_json::from_str(image).unwrap()).await.unwrap();
    first.store(vec![failed.clone()]).await.unwrap();
    assert_eq!(first.decisions_for("b").failed.len(), 1);
    // As long as a machine has blocked it, it is kept, however old it is.
    day(29);
    first.report("a", serde_json::from_str(image).unwrap()).await.unwrap();
    day(58);
    first.forget_outdated(keep_for, first.now()).await.unwrap();
    assert_eq!(first.decisions_for("b").failed.len(), 1);
    day(60);
    first.forget_outdated(keep_for, first.now()).await.unwrap();
    first.forget_outdated(keep_for, first.now()).await.unwrap();
    assert_eq!(first.decisions_for("b").failed, [], "the report is gone, and so is the verdict");
    crate::support::eventually("the other warden", || second.decisions_for("b").failed.is_empty()).await;
    let verdicts = "verdicts/r/web@sha256:bad";
    assert!(keep.value(verdicts).await.unwrap().value.starts_with(b"gone "));
    day(62);
    first.forget_outdated(keep_for, first.now()).await.unwrap();
    for name in [verdicts, "inventory/a"] {
        assert_eq!(keep.value(name).await.unwrap(), Versioned::default(), "{name}");
    }
    // A new failure counts again, once the repository is reported again.
    first.report("a", serde_json::from_str(image).unwrap()).await.unwrap();
    first.store(vec![FleetEntry { seq: Some(2), ..failed }]).await.unwrap();
    assert_eq!(first.decisions_for("b").failed.len(), 1);
    stop.cancel();
    assert!(tasks.finish(std::time::Duration::from_secs(30)).await);
}

pub(crate) async fn the_fuse_trips_once_however_many_wardens_see_the_rollbacks(world: &dyn World) {
    let keep = world.open().await;
    let clock = Arc::new(SetClock::default());
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    let wardens = [0, 1].map(|_| {
        let limits = Retention { days: 30, bytes: 1 << 30 };
        let (collector, task) = Collector::new(keep.clone(), ["a".to_owned()], limits, clock.clone());
        tasks.spawn("collector", task.run(stop.clone()));
        collector
    });
    let rolled_back = |n: u64| FleetEntry {
        event: "rolled_back".to_owned(),
        image: Some(format!("r/image-{n}:1")),
        new_digest: Some("sha256:bad".to_owned()),
        timestamp: at(0),
        ..entry("a", n)
    };
    let images: Vec<String> =
        (1..=12).map(|n| format!(r#"{{"service":"s","image":"r/image-{n}:1"}}"#)).collect();
    let images = format!(r#"{{"images":[{}]}}"#, images.join(","));
    wardens[0].report("a", serde_json::from_str(&images).unwrap()).await.unwrap();
    let told = (1..=12).map(|n| {
        let warden = wardens[usize::try_from(n % 2).unwrap()].clone();
        async move { warden.store(vec![rolled_back(n)]).await.unwrap() }
    });
    futures_util::future::join_all(told).await;
    for warden in &wardens {
        crate::support::eventually("the freeze", || warden.decisions_for("a").freezes.len() == 1).await;
        assert_eq!(warden.decisions_for("a").freezes[0].by, "fuse");
    }
    let frozen = Query { event: Some("frozen".to_owned()), ..Query::default() };
    assert_eq!(keep.history(&frozen).await.unwrap().entries.len(), 1);
    stop.cancel();
    assert!(tasks.finish(std::time::Duration::from_secs(30)).await);
}

pub(crate) async fn the_latest_verdict_of_a_machine_counts(world: &dyn World) {
    let keep = world.open().await;
    let told = |agent: &str, seq, event: &str, digest: &str| FleetEntry {
        event: event.to_owned(),
        image: Some("r:5000/web:1".to_owned()),
        new_digest: Some(digest.to_owned()),
        ..entry(agent, seq)
    };
    for agent in ["a", "b", "c"] {
        report(&*keep, agent, &["r:5000/web:1"]).await;
    }
    put(&*keep, [told("a", 1, "updated", "d1"), told("b", 1, "rolled_back", "d1")]).await;
    put(
        &*keep,
        [told("a", 2, "rolled_back", "d1"), told("b", 2, "error", "d1"), told("c", 1, "updated", "d2")],
    )
    .await;
    let record = async |repository: &str, digest: &str| {
        let value = keep.value(&verdict::name(repository, digest)).await.unwrap().value;
        let record: DigestRecord = serde_json::from_slice(&value).unwrap_or_default();
        record.agents.into_iter().map(|(agent, latest)| (agent, latest.verdict)).collect::<Vec<_>>()
    };
    let both = [("a".to_owned(), Verdict::Failed), ("b".to_owned(), Verdict::Failed)];
    assert_eq!(record("r:5000/web", "d1").await, both);
    assert_eq!(record("r:5000/web", "d2").await, [], "c was not seen trying it");
    assert_eq!(record("r:5000/we", "d1").await, []);
}

/// Decisions are made in the store, whichever warden asks: their entries and the resulting values are one commit.
pub(crate) async fn a_decision_and_its_entry_are_one_commit(world: &dyn World) {
    let keep = world.open().await;
    let decide = async |decision| keep.commit(vec![Change::Decision(decision)], at(0)).await.unwrap()[0];
    let decisions = async || {
        let found = keep.value(DECISIONS).await.unwrap();
        let value: Decisions = serde_json::from_slice(&found.value).unwrap_or_default();
        (found.revision, value)
    };
    let freeze = Decision::Freeze {
        reason: "audit".to_owned(),
        until: at(0) + SignedDuration::from_hours(1),
        scope: FreezeScope::default(),
    };
    let Outcome::Stored(id) = decide(freeze).await else { panic!("it is an entry") };
    let (first, frozen) = decisions().await;
    assert_eq!(frozen.freezes[0].id, id.to_string());
    assert_eq!(all(&*keep).await.last().unwrap().id, id);
    put(&*keep, [FleetEntry { image: Some("web:1".to_owned()), ..entry("a", 1) }]).await;
    assert_eq!(decisions().await.0, first, "an entry without a verdict changes no decision");
    assert_eq!(decide(Decision::Thaw { id: Some("0".to_owned()) }).await, Outcome::Unchanged);
    assert!(matches!(decide(Decision::Thaw { id: None }).await, Outcome::Stored(_)));
    let (last, thawed) = decisions().await;
    assert!(last > first && thawed.freezes.is_empty());
    let rule = FuseRule { rollbacks: 2, ..FuseRule::default() };
    report(&*keep, "a", &["web", "db"]).await;
    let failed = |image: &str, seq| FleetEntry {
        timestamp: at(0),
        event: "rolled_back".to_owned(),
        image: Some(image.to_owned()),
        new_digest: Some("d".to_owned()),
        ..entry("a", seq)
    };
    put(&*keep, [failed("web", 2), failed("db", 3)]).await;
    for expected in [1, 1] {
        keep.commit(vec![Change::Fuse(rule)], at(0)).await.unwrap();
        let (_, frozen) = decisions().await;
        assert_eq!((frozen.freezes.len(), frozen.failed.len()), (expected, 2));
    }
}

/// Returns the messages of all pages of a search, newest first.
async fn search(keep: &dyn Keep, mut query: Query) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let page = keep.history(&query).await.unwrap();
        assert!(page.entries.len() <= query.limit);
        found.extend(messages(&page.entries));
        let Some(next) = page.next else { return found };
        assert!(next < query.before, "each page makes progress");
        query.before = next;
    }
}

pub(crate) async fn every_filter_finds_what_it_should_page_by_page(world: &dyn World) {
    let keep = world.open().await;
    let of = |seq: u64| FleetEntry {
        machine: format!("m{}", seq % 2),
        service: format!("s{}", seq % 3),
        image: (seq.is_multiple_of(5)).then(|| "web:1".to_owned()),
        event: if seq.is_multiple_of(7) { "rolled_back" } else { "updated" }.to_owned(),
        level: if seq.is_multiple_of(7) { "warning" } else { "info" }.to_owned(),
        reason: (seq.is_multiple_of(11)).then(|| "Exit CODE 1, 100% of \"it\" failed_".to_owned()),
        // Its first character is the Kelvin sign, whose lower case is an ASCII letter.
        container: (seq.is_multiple_of(13)).then(|| "273 \u{212a}elvin".to_owned()),
        message: seq.to_string(),
        ..entry("a", seq)
    };
    put(&*keep, (1..=200).map(of)).await;
    let some = |text: &str| Some(text.to_owned());
    let base = || Query { limit: 9, ..Query::default() };
    let expect = |holds: &dyn Fn(u64) -> bool| {
        (1..=200).rev().filter(|seq| holds(*seq)).map(|seq: u64| seq.to_string()).collect::<Vec<_>>()
    };
    let cases: [(Query, &dyn Fn(u64) -> bool); 13] = [
        (base(), &|_| true),
        (Query { machine: some("m1"), ..base() }, &|n| n % 2 == 1),
        (Query { machine: some("m1"), service: some("s2"), ..base() }, &|n| n % 2 == 1 && n % 3 == 2),
        (Query { image: some("web:1"), level: some("warning"), ..base() }, &|n| n.is_multiple_of(35)),
        (Query { event: some("rolled_back"), ..base() }, &|n| n.is_multiple_of(7)),
        (Query { level: some("critical"), ..base() }, &|_| false),
        (Query { text: some("exit code"), ..base() }, &|n| n.is_multiple_of(11)),
        (Query { text: some("100% of \"IT\" failed_"), service: some("s0"), ..base() }, &|n| {
            n.is_multiple_of(33)
        }),
        (Query { text: some("kelvin"), ..base() }, &|n| n.is_multiple_of(13)),
        (Query { text: some("nowhere"), ..base() }, &|_| false),
        (Query { since: Some(at(50)), until: Some(at(60)), ..base() }, &|n| (50..60).contains(&n)),
        (Query { machine: some("m0"), since: Some(at(190)), ..base() }, &|n| n >= 190 && n.is_multiple_of(2)),
        (Query { machine: some("m"), ..base() }, &|_| false),
    ];
    for (query, holds) in cases {
        assert_eq!(search(&*keep, query.clone()).await, expect(holds), "{query:?}");
    }
}

pub(crate) async fn a_long_search_is_split_into_pages(world: &dyn World) {
    let keep = world.open().await;
    let count = u64::try_from(SCAN_BUDGET).unwrap() + 500;
    for first in (1..=count).step_by(2000) {
        put(&*keep, (first..(first + 2000).min(count + 1)).map(|seq| entry("a", seq))).await;
    }
    let rare = Query { text: Some("a 3".to_owned()), until: Some(at(4)), ..Query::default() };
    let page = keep.history(&rare).await.unwrap();
    assert!(page.entries.is_empty() && page.next.is_some(), "{page:?}");
    assert_eq!(search(&*keep, rare).await, ["a 3"]);
}

pub(crate) async fn entries_beyond_the_limits_are_removed_oldest_first(world: &dyn World) {
    let keep = world.open().await;
    let day = |n: i64| at(0) + SignedDuration::from_hours(24 * n);
    for n in 0..6_i64 {
        let batch = changes([entry("a", u64::try_from(n).unwrap() + 1)]);
        keep.commit(batch, day(n)).await.unwrap();
    }
    let wide = Retention { days: 365, bytes: 1 << 30 };
    assert_eq!(keep.retain(wide, day(6)).await.unwrap(), 0);
    let usage = keep.usage().await.unwrap();
    assert_eq!((usage.entries, usage.oldest), (6, Some(day(0))));
    assert_eq!(keep.retain(Retention { days: 4, ..wide }, day(6)).await.unwrap(), 2);
    let left = all(&*keep).await;
    assert_eq!(messages(&left), ["a 3", "a 4", "a 5", "a 6"]);
    let two: usize = left[2..].iter().map(|entry| entry.line.len()).sum();
    assert_eq!(keep.retain(Retention { bytes: two as u64, ..wide }, day(6)).await.unwrap(), 2);
    assert_eq!(messages(&all(&*keep).await), ["a 5", "a 6"]);
    let usage = keep.usage().await.unwrap();
    assert_eq!((usage.entries, usage.bytes, usage.oldest), (2, two as u64, Some(day(4))));
    assert_eq!(
        search(&*keep, Query { service: Some("web".to_owned()), ..Query::default() }).await,
        ["a 6", "a 5"]
    );
    assert_eq!(put(&*keep, [entry("a", 1)]).await, [Outcome::Unchanged], "a removed entry is still known");
}

/// A warden's clock was a year ahead at its start, and once more later.
pub(crate) async fn entries_of_a_clock_that_was_ahead_hold_back_no_older_ones(world: &dyn World) {
    let keep = world.open().await;
    let day = |n: i64| at(0) + SignedDuration::from_hours(24 * n);
    for (seq, arrived) in [(1, 365), (2, 0), (3, 365), (4, 1), (5, 365), (6, 5)] {
        keep.commit(changes([entry("a", seq)]), day(arrived)).await.unwrap();
    }
    let limits = Retention { days: 4, bytes: 1 << 30 };
    assert_eq!(keep.retain(limits, day(4)).await.unwrap(), 0);
    assert_eq!(keep.retain(limits, day(5)).await.unwrap(), 2, "the first two");
    assert_eq!(messages(&all(&*keep).await), ["a 3", "a 4", "a 5", "a 6"]);
    assert_eq!(keep.retain(limits, day(6)).await.unwrap(), 2);
    assert_eq!(messages(&all(&*keep).await), ["a 5", "a 6"], "how old the first one is, the next one tells");
}

pub(crate) async fn an_agent_that_sends_a_lot_only_shortens_its_own_history(world: &dyn World) {
    let keep = world.open().await;
    put(&*keep, (1..=3).map(|seq| entry("quiet", seq))).await;
    for first in [1, 401, 801] {
        put(&*keep, (first..first + 400).map(|seq| entry("loud", seq))).await;
    }
    put(&*keep, [entry("quiet", 4)]).await;
    let size = |entries: &[Stored]| entries.iter().map(|entry| entry.line.len()).sum::<usize>() as u64;
    let before = size(&all(&*keep).await);
    let limits = Retention { days: 365, bytes: before / 10 };
    while keep.retain(limits, at(0)).await.unwrap() > 0 {}
    let left = all(&*keep).await;
    let said = messages(&left);
    let (quiet, loud): (Vec<_>, Vec<_>) = said.iter().partition(|said| said.starts_with("quiet"));
    assert_eq!(quiet, ["quiet 1", "quiet 2", "quiet 3", "quiet 4"]);
    assert_eq!(
        loud.first().map(|said| said.as_str()),
        Some(&*format!("loud {}", 1201 - loud.len())),
        "the oldest go"
    );
    assert!(size(&left) <= limits.bytes && size(&left) + 300 > limits.bytes, "no more than necessary");
    let usage = keep.usage().await.unwrap();
    assert_eq!((usage.entries, usage.bytes), (left.len() as u64, size(&left)));
    // Below the limit, nothing is removed; and the loud agent's next entries are its own again.
    assert_eq!(keep.retain(limits, at(0)).await.unwrap(), 0);
    put(&*keep, (1201..=1300).map(|seq| entry("loud", seq))).await;
    while keep.retain(limits, at(0)).await.unwrap() > 0 {}
    let left = messages(&all(&*keep).await);
    assert_eq!(left.iter().filter(|said| said.starts_with("quiet")).count(), 4);
    assert_eq!(left.last().map(String::as_str), Some("loud 1300"));
}

pub(crate) async fn the_failures_of_a_removed_agent_do_not_trip_the_fuse(world: &dyn World) {
    let keep = world.open().await;
    let clock = Arc::new(SetClock::default());
    let limits = Retention { days: 30, bytes: 1 << 30 };
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    let ids = ["a".to_owned(), "b".to_owned()];
    let (collector, task) = Collector::new(keep.clone(), ids, limits, clock.clone());
    tasks.spawn("collector", task.run(stop.clone()));
    let images: Vec<String> =
        (1..=3).map(|n| format!(r#"{{"service":"s","image":"r/image-{n}:1"}}"#)).collect();
    let images = format!(r#"{{"images":[{}]}}"#, images.join(","));
    for agent in ["a", "b"] {
        collector.report(agent, serde_json::from_str(&images).unwrap()).await.unwrap();
    }
    let rolled_back = |agent: &str, n: u64| FleetEntry {
        event: "rolled_back".to_owned(),
        image: Some(format!("r/image-{n}:1")),
        new_digest: Some("sha256:bad".to_owned()),
        timestamp: at(0),
        ..entry(agent, n)
    };
    collector.store(vec![rolled_back("a", 1), rolled_back("a", 2)]).await.unwrap();
    // Nothing but the fuse's own count is left of them.
    for n in [1, 2] {
        let (repository, digest) = (format!("r/image-{n}"), "sha256:bad".to_owned());
        collector.decide(Decision::Unblock { repository, digest }).await.unwrap();
    }
    collector.set_agents(["b".to_owned()], true);
    for _ in 0..3 {
        collector.forget_outdated(SignedDuration::from_hours(30 * 24), at(0)).await.unwrap();
    }
    collector.store(vec![rolled_back("b", 3)]).await.unwrap();
    assert_eq!(collector.decisions_for("b").freezes, []);
    stop.cancel();
    assert!(tasks.finish(std::time::Duration::from_secs(30)).await);
}

pub(crate) async fn a_clock_that_leaps_removes_nothing(world: &dyn World) {
    let keep = world.open().await;
    let clock = Arc::new(SetClock::default());
    let limits = Retention { days: 30, bytes: 1 << 30 };
    let wardens = [0, 1].map(|_| Collector::new(keep.clone(), ["a".to_owned()], limits, clock.clone()).0);
    put(&*keep, [entry("a", 1)]).await;
    for hour in [0, 20, 40] {
        clock.set_hours(hour);
        assert_eq!(wardens[0].retention_time().await.unwrap(), at(hour * 3600));
    }
    clock.set_hours(24 * 365);
    for warden in &wardens {
        let time = warden.retention_time().await.unwrap();
        assert_eq!(time, at(40 * 3600));
        assert_eq!(keep.retain(limits, time).await.unwrap(), 0);
    }
    assert_eq!(messages(&all(&*keep).await), ["a 1"]);
}

pub(crate) async fn an_empty_batch_checks_whether_the_store_is_writable(world: &dyn World) {
    let keep = world.open().await;
    assert_eq!(keep.commit(Vec::new(), at(0)).await.unwrap(), []);
    assert_eq!(all(&*keep).await, []);
    assert_eq!(put(&*keep, [entry("a", 1)]).await.len(), 1);
}
