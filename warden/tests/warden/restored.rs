//! Stores that go back, are damaged, or have just been opened: what is read again, and which agents report again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_common::clock::TokioClock;
use evenkeel_common::sse::Frame;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::{FreezeScope, Inventory, Permission};
use evenkeel_warden::fleet::answer::Asking;
use evenkeel_warden::fleet::decisions::Decision;
use evenkeel_warden::fleet::verdict;
use evenkeel_warden::keep::embedded::Embedded;
use evenkeel_warden::keep::{self, Change, Keep, KeepError, News, Position};
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{A, API_TOKEN, TestWarden, entry, eventually, in_memory, new_collector, status};

/// A store that can be replaced by another one while wardens use it, with or without damage: a database that was restored
/// from a backup, or a damaged file.
struct Restored {
    keep: Mutex<Arc<dyn Keep>>,
    /// The store that the session which reads what is new still sees, if it is another one.
    watched: Mutex<Option<Arc<dyn Keep>>>,
    /// The number of that session.
    connection: AtomicU64,
    damage: Mutex<Option<String>>,
    is_unreadable: AtomicBool,
    /// Whether it never tells its size.
    hangs: AtomicBool,
    writes: Mutex<Writes>,
    /// The time of a round trip to the database.
    trip: Mutex<Duration>,
}

/// What becomes of writes.
#[derive(Clone, Copy, Default)]
enum Writes {
    #[default]
    Work,
    Fail,
    /// Those of leases hang, and the others fail.
    Hang,
}

impl Restored {
    fn new(keep: Arc<dyn Keep>) -> Arc<Self> {
        Arc::new(Self {
            keep: Mutex::new(keep),
            watched: Mutex::default(),
            connection: AtomicU64::default(),
            damage: Mutex::default(),
            is_unreadable: AtomicBool::default(),
            hangs: AtomicBool::default(),
            writes: Mutex::default(),
            trip: Mutex::default(),
        })
    }

    async fn travel(&self, trips: u32) {
        let time = *self.trip.lock() * trips;
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }

    fn now(&self) -> Arc<dyn Keep> {
        self.keep.lock().clone()
    }
}

#[async_trait]
impl Keep for Restored {
    async fn commit(
        &self,
        changes: Vec<Change>,
        now: jiff::Timestamp,
    ) -> Result<Vec<keep::Outcome>, KeepError> {
        let writes = *self.writes.lock();
        match writes {
            Writes::Work => self.now().commit(changes, now).await,
            Writes::Fail | Writes::Hang => Err(KeepError("it is read-only".to_owned())),
        }
    }
    async fn news(&self, after: Position, limit: usize) -> Result<News, KeepError> {
        if self.is_unreadable.load(Ordering::Relaxed) {
            return Err(KeepError("connection refused".to_owned()));
        }
        let watched = self.watched.lock().clone();
        let news = watched.unwrap_or_else(|| self.now()).news(after, limit).await?;
        Ok(News { connection: self.connection.load(Ordering::Relaxed), ..news })
    }
    async fn tail(&self, after: u64, limit: usize) -> Result<Vec<keep::Stored>, KeepError> {
        self.now().tail(after, limit).await
    }
    async fn history(&self, query: &keep::Query) -> Result<keep::Page, KeepError> {
        self.now().history(query).await
    }
    async fn value(&self, name: &str) -> Result<keep::Versioned, KeepError> {
        self.travel(1).await;
        self.now().value(name).await
    }
    async fn values(&self, names: &[String]) -> Result<Vec<keep::Versioned>, KeepError> {
        self.travel(1).await;
        self.now().values(names).await
    }
    async fn swap(&self, name: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, KeepError> {
        // As many as a transaction of PostgreSQL takes.
        self.travel(5).await;
        let writes = *self.writes.lock();
        match writes {
            Writes::Work => self.now().swap(name, expected, value).await,
            Writes::Fail => Err(KeepError("it is read-only".to_owned())),
            Writes::Hang => std::future::pending().await,
        }
    }
    async fn remove(&self, name: &str, expected: u64) -> Result<bool, KeepError> {
        self.now().remove(name, expected).await
    }
    async fn hold(&self, duty: keep::Duty) -> Result<bool, KeepError> {
        self.now().hold(duty).await
    }
    async fn retain(&self, limits: keep::Retention, now: jiff::Timestamp) -> Result<u64, KeepError> {
        self.now().retain(limits, now).await
    }
    async fn usage(&self) -> Result<keep::Usage, KeepError> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.now().usage().await
    }
    fn hints(&self) -> watch::Receiver<u64> {
        self.now().hints()
    }
    fn damage(&self) -> Option<String> {
        self.damage.lock().clone()
    }
}

/// A store in memory whose ids and revisions start at a time of the year 1970.
fn store_of(seconds: i64) -> Arc<dyn Keep> {
    let clock = TokioClock::starting_at(jiff::Timestamp::from_second(seconds).unwrap());
    Arc::new(Embedded::in_memory(Arc::new(clock)).unwrap())
}

#[tokio::test]
async fn a_store_that_goes_back_is_read_again_from_its_beginning() {
    let keep = Restored::new(store_of(1000));
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    let (collector, task) = new_collector(&["a"], keep.clone());
    tasks.spawn("collector", task.run(stop.clone()));
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let freeze =
        |reason: &str| Decision::Freeze { reason: reason.to_owned(), until, scope: FreezeScope::default() };
    let reasons = || {
        let freezes = collector.decisions_for("a").freezes.into_iter();
        freezes.map(|freeze| freeze.reason).collect::<Vec<_>>()
    };
    collector.decide(freeze("lost")).await.unwrap();
    collector.record_heartbeat("a", Err("gone".to_owned())).await.unwrap();
    assert_eq!((reasons(), collector.machine_records()[0].online), (vec!["lost".to_owned()], Some(false)));
    let mut viewer = Box::pin(collector.follow(None).await);
    for _ in 0..2 {
        assert!(viewer.next().await.is_some());
    }

    *keep.keep.lock() = store_of(10);
    collector.decide(freeze("kept")).await.unwrap();
    assert_eq!((reasons(), collector.machine_records()[0].online), (vec!["kept".to_owned()], None));
    assert!(viewer.next().await.is_none(), "the viewer connects again");
    let frames: Vec<_> = collector.follow(None).await.take(1).collect().await;
    assert!(matches!(&frames[0], Frame::Event { data, .. } if data.contains("kept")), "{frames:?}");
    collector.decide(freeze("later")).await.unwrap();
    assert_eq!(reasons(), ["kept", "later"]);
    stop.cancel();
    assert!(tasks.finish(Duration::from_secs(10)).await);
}

/// Two stores with the same entry: this agent is offline.
async fn twins(agent: &str) -> [Arc<dyn Keep>; 2] {
    let stores = [store_of(1000), store_of(1000)];
    for store in &stores {
        let offline = Change::Heartbeat { agent: agent.to_owned(), outcome: Err("gone".to_owned()) };
        store.commit(vec![offline], jiff::Timestamp::from_second(1000).unwrap()).await.unwrap();
    }
    stores
}

/// A standby without the last commit takes over, and has as many entries and revisions again before they are read.
#[tokio::test(start_paused = true)]
async fn a_store_that_has_lost_a_commit_and_written_another_is_read_again() {
    let [first, second] = twins("a").await;
    let keep = Restored::new(first);
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    let (collector, task) = new_collector(&["a", "b"], keep.clone());
    tasks.spawn("collector", task.run(stop.clone()));
    let online = || collector.machine_records().iter().map(|record| record.online).collect::<Vec<_>>();
    assert!(collector.record_heartbeat("a", Ok(())).await.unwrap());
    assert_eq!(online(), [Some(true), None]);
    let mut viewer = Box::pin(collector.follow(None).await);
    for _ in 0..2 {
        assert!(viewer.next().await.is_some());
    }

    *keep.keep.lock() = second;
    keep.connection.fetch_add(1, Ordering::Relaxed);
    assert!(collector.record_heartbeat("b", Err("gone".to_owned())).await.unwrap());
    assert_eq!(online(), [Some(false), Some(false)]);
    assert!(viewer.next().await.is_none(), "the viewer connects again");
    assert!(collector.record_heartbeat("a", Ok(())).await.unwrap(), "it is online again");
    assert_eq!(online(), [Some(true), Some(false)]);
    stop.cancel();
    assert!(tasks.finish(Duration::from_secs(10)).await);
}

/// What was lost has no entry. Viewers miss nothing.
#[tokio::test(start_paused = true)]
async fn machines_and_values_are_read_again_over_a_new_connection() {
    let [first, second] = twins("b").await;
    let keep = Restored::new(first);
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    let (collector, task) = new_collector(&["a", "b"], keep.clone());
    tasks.spawn("collector", task.run(stop.clone()));
    assert!(!collector.record_heartbeat("a", Ok(())).await.unwrap(), "the first success is no entry");
    let online = || collector.machine_records().iter().map(|record| record.online).collect::<Vec<_>>();
    assert_eq!(online(), [Some(true), Some(false)]);
    let mut viewer = Box::pin(collector.follow(None).await);
    assert!(viewer.next().await.is_some());

    *keep.keep.lock() = second;
    keep.connection.fetch_add(1, Ordering::Relaxed);
    assert!(collector.record_heartbeat("b", Ok(())).await.unwrap());
    assert_eq!(online(), [None, Some(true)]);
    assert!(viewer.next().await.is_some(), "the viewer goes on");
    stop.cancel();
    assert!(tasks.finish(Duration::from_secs(10)).await);
}

/// Two sessions that see different states, as during a restore in several transactions or with a replica, do not keep the
/// warden busy.
#[tokio::test]
async fn a_store_whose_sessions_see_different_states_is_away_until_they_agree() {
    let keep = Restored::new(store_of(1000));
    let offline = Change::Heartbeat { agent: "a".to_owned(), outcome: Err("gone".to_owned()) };
    keep.commit(vec![offline], jiff::Timestamp::now()).await.unwrap();
    *keep.watched.lock() = Some(store_of(10));
    let (collector, mut task) = new_collector(&["a"], keep.clone());
    let error = || collector.store_state().borrow().error().map(str::to_owned);
    task.prepare().await;
    assert_eq!(error().as_deref(), Some("its sessions do not see the same state"));
    *keep.watched.lock() = None;
    task.prepare().await;
    assert_eq!((error(), collector.machine_records()[0].online), (None, Some(false)));
}

/// A lease may be all that is written for days.
#[tokio::test(start_paused = true)]
async fn a_store_that_can_only_be_read_is_away_once_a_lease_could_not_be_taken() {
    for writes in [Writes::Fail, Writes::Hang] {
        let keep = Restored::new(in_memory());
        let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
        let (collector, mut task) = new_collector(&["a"], keep.clone());
        task.prepare().await;
        tasks.spawn("collector", task.run(stop.clone()));
        let is_away = || collector.store_state().borrow().error().is_some();
        *keep.writes.lock() = writes;
        let (repository, image, digest) = ("r:5000/web", "r:5000/web:1", "sha256:new");
        let asking =
            Asking { agent: "a", ring: 0, service: "web", repository, image, digest, progress: None };
        assert!(!is_away());
        assert_eq!(collector.ask(&asking).await.answer, Permission::Wait);
        eventually("the store counts as away", is_away).await;
        assert_eq!(collector.decisions_for("a").store.as_deref(), Some("away"));
        *keep.writes.lock() = Writes::Work;
        eventually("the store is back", || !is_away()).await;
        assert_eq!(collector.ask(&asking).await.answer, Permission::Go);
        stop.cancel();
        assert!(tasks.finish(Duration::from_secs(10)).await);
    }
}

/// An agent waits for two seconds.
#[tokio::test(start_paused = true)]
async fn a_first_lease_is_given_in_time_by_a_database_that_is_far_away() {
    let keep = Restored::new(in_memory());
    let (collector, mut task) = new_collector(&["a"], keep.clone());
    task.prepare().await;
    *keep.trip.lock() = Duration::from_millis(240);
    let (repository, image, digest) = ("r:5000/web", "r:5000/web:1", "sha256:new");
    let asking = Asking { agent: "a", ring: 0, service: "web", repository, image, digest, progress: None };
    assert_eq!(collector.ask(&asking).await.answer, Permission::Go);
}

/// What could not be saved of a damaged store is not shown until the next restart. Commits follow each other so closely that
/// nothing else lets the store be read.
#[tokio::test]
async fn a_store_that_was_damaged_is_read_again_and_agents_report_again() {
    let keep = Restored::new(store_of(1000));
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    let (collector, task) = new_collector(&["a"], keep.clone());
    tasks.spawn("collector", task.run(stop.clone()));
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let freeze = Decision::Freeze { reason: "lost".to_owned(), until, scope: FreezeScope::default() };
    collector.decide(freeze).await.unwrap();
    assert_eq!(collector.decisions_for("a").freezes.len(), 1);
    assert!(!collector.is_report_expected("a", true));
    *keep.keep.lock() = store_of(2000);
    *keep.damage.lock() = Some("the store was damaged".to_owned());
    collector.record_heartbeat("a", Err("gone".to_owned())).await.unwrap();
    assert_eq!(collector.decisions_for("a").freezes, []);
    assert!(collector.is_report_expected("a", false));
    stop.cancel();
    tasks.finish(Duration::ZERO).await;
}

/// The machines may have had other ids when this warden was last started.
#[tokio::test]
async fn agents_without_a_report_are_asked_for_it_once_the_store_has_been_read() {
    let keep = in_memory();
    let (before, _) = new_collector(&["a", "b"], keep.clone());
    before.report("a", Inventory { ring: 0, images: Vec::new() }).await.unwrap();
    let (collector, mut task) = new_collector(&["a", "b"], keep);
    task.prepare().await;
    let expected = |is_first| ["a", "b"].map(|id| collector.is_report_expected(id, is_first));
    assert_eq!(expected(false), [false, true]);
    assert_eq!(expected(true), [false, false], "the report follows the first poll of a series");
    task.prepare().await;
    assert_eq!(expected(false), [false, false], "they are asked once");
}

/// The verdict was in the store that was lost. A verdict that is known counts, also one that a person has lifted.
#[tokio::test]
async fn a_digest_that_failed_by_a_report_is_withheld_while_its_verdict_is_unknown() {
    let (repository, image, digest) = ("r:5000/web", "r:5000/web:1", "sha256:bad");
    let asking = Asking { agent: "b", ring: 0, service: "web", repository, image, digest, progress: None };
    let report = |blocked: &str| -> Inventory {
        let image = format!(r#"{{"service":"web","image":"{image}"{blocked}}}"#);
        serde_json::from_str(&format!(r#"{{"ring":0,"images":[{image}]}}"#)).unwrap()
    };
    let failed = r#","blocked":"sha256:bad","has_failed":true"#;
    // A person went back from it, or an agent of an earlier version has blocked it.
    let left = r#","blocked":"sha256:bad""#;
    for (blocked, verdict, expected) in [
        (failed, None, Permission::No),
        (left, None, Permission::Go),
        (r#","blocked":"sha256:other","has_failed":true"#, None, Permission::Go),
        (failed, Some(r#""verdict":"failed","lifted":true"#), Permission::Go),
        (left, Some(r#""verdict":"failed""#), Permission::No),
    ] {
        let keep = in_memory();
        if let Some(verdict) = verdict {
            let at = jiff::Timestamp::now();
            let latest = format!(r#"{{{verdict},"at":"{at}","since":"{at}","entry":1,"service":"web"}}"#);
            let record =
                format!(r#"{{"repository":"{repository}","digest":"{digest}","agents":{{"a":{latest}}}}}"#);
            let name = verdict::name(repository, digest);
            assert!(keep.swap(&name, 0, record.into_bytes()).await.unwrap().is_some());
        }
        let (collector, mut task) = new_collector(&["a", "b"], keep);
        task.prepare().await;
        collector.report("a", report(blocked)).await.unwrap();
        collector.report("b", report("")).await.unwrap();
        let answer = collector.ask(&asking).await;
        assert_eq!(answer.answer, expected, "{blocked} {verdict:?}: {}", answer.why);
        let by = (expected == Permission::No).then_some("a");
        assert_eq!(answer.agent.as_deref(), by, "{blocked} {verdict:?}");
    }
}

/// Zeros until then would be a reset of the counters, after which the stored totals look like new entries.
#[tokio::test]
async fn the_metrics_have_no_figures_of_machines_and_fleet_until_the_store_has_been_read() {
    let keep = Restored::new(in_memory());
    let before = TestWarden::with_store(keep.clone());
    assert_eq!(status(&before.post(A, &entry(1)).await), 200);
    before.finish().await;
    keep.is_unreadable.store(true, Ordering::Relaxed);
    let warden = TestWarden::with_store(keep.clone());
    let metrics = async || warden.get("/metrics", &format!("authorization: Bearer {API_TOKEN}\r\n")).await;
    let unread = metrics().await;
    assert!(unread.contains("evenkeel_warden_store_up 0"), "{unread}");
    for name in ["entries_total", "repeated_entries_total", "missing_entries", "freezes", "withheld_digests"]
    {
        assert!(!unread.contains(&format!("evenkeel_warden_{name}")), "{name}: {unread}");
    }
    keep.is_unreadable.store(false, Ordering::Relaxed);
    assert_eq!(status(&warden.post(A, &entry(2)).await), 200);
    let known = metrics().await;
    for line in [r#"evenkeel_warden_entries_total{agent="a",level="info"} 2"#, "evenkeel_warden_freezes 0"] {
        assert!(known.contains(line), "{line} is not in {known}");
    }
    warden.finish().await;
}

/// A scraper would take the warden for one that is down, and end the alerts of all others.
#[tokio::test]
async fn the_metrics_do_not_wait_for_a_store_that_hangs() {
    let keep = Restored::new(in_memory());
    keep.hangs.store(true, Ordering::Relaxed);
    let warden = TestWarden::with_store(keep.clone());
    assert_eq!(status(&warden.post(A, &entry(1)).await), 200);
    let metrics = async || warden.get("/metrics", &format!("authorization: Bearer {API_TOKEN}\r\n")).await;
    let hung = metrics().await;
    assert!(hung.contains("evenkeel_warden_store_up 1"), "{hung}");
    assert!(!hung.contains("evenkeel_warden_store_entries"), "{hung}");
    keep.hangs.store(false, Ordering::Relaxed);
    let well = metrics().await;
    assert!(well.contains("evenkeel_warden_store_entries 1"), "{well}");
    warden.finish().await;
}

/// Empty lists would say that nothing is frozen or withheld.
#[tokio::test]
async fn the_map_says_so_if_the_store_is_away_and_is_refused_until_it_was_read() {
    let keep = Restored::new(in_memory());
    keep.is_unreadable.store(true, Ordering::Relaxed);
    let warden = TestWarden::with_store(keep.clone());
    let user = format!("authorization: Bearer {API_TOKEN}\r\n");
    for path in ["/fleet/images", "/fleet/images?format=csv"] {
        let unread = warden.get(path, &user).await;
        assert_eq!(status(&unread), 503, "{unread}");
        assert!(unread.to_lowercase().contains("\r\nretry-after: "), "{unread}");
    }
    keep.is_unreadable.store(false, Ordering::Relaxed);
    assert_eq!(status(&warden.post(A, &entry(1)).await), 200);
    let read = warden.get("/fleet/images", &user).await;
    assert_eq!(status(&read), 200, "{read}");
    assert!(!read.contains("away"), "{read}");
    *keep.writes.lock() = Writes::Fail;
    assert_eq!(status(&warden.post(A, &entry(2)).await), 503);
    let stale = warden.get("/fleet/images", &user).await;
    assert_eq!(status(&stale), 200, "{stale}");
    assert!(stale.contains(r#""store":"away""#), "{stale}");
    warden.finish().await;
}
