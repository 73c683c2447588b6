//! The agent's warden client against real wardens in the test's process, so that tests can disconnect a warden's store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_agent::adapters::warden::Wardens;
use evenkeel_agent::config::PushConfig;
use evenkeel_agent::ports::fleet::{Fleet, KnownRevisions};
use evenkeel_common::clock::SystemClock;
use evenkeel_common::http::{self, BasePath};
use evenkeel_common::secret::Secret;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::{FleetAsk, Permission};
use evenkeel_warden::collector::Collector;
use evenkeel_warden::config::{AgentConfig, Config, FuseRule, Rules, StoreConfig};
use evenkeel_warden::http::{
    Api, Metrics, bodies, limits, poll_limiter, request_limiter, routes, stream_limiter,
};
use evenkeel_warden::keep::embedded::Embedded;
use evenkeel_warden::keep::{
    Change, Duty, Keep, KeepError, News, Outcome, Page, Position, Query, Retention, Stored, Usage, Versioned,
};
use evenkeel_warden::reload::ActiveConfig;
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "0123456789abcdef-of-a";

/// A store with the latency of a network, which can be unreachable or hang.
struct Store {
    inner: Arc<Embedded>,
    is_unreachable: Arc<AtomicBool>,
    is_hung: Arc<AtomicBool>,
}

impl Store {
    async fn reach(&self) -> Result<&Embedded, KeepError> {
        tokio::time::sleep(Duration::from_millis(3)).await;
        if self.is_hung.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.is_unreachable.load(Ordering::Relaxed) {
            Err(KeepError("away".to_owned()))
        } else {
            Ok(&self.inner)
        }
    }
}

#[async_trait]
impl Keep for Store {
    async fn commit(&self, changes: Vec<Change>, now: Timestamp) -> Result<Vec<Outcome>, KeepError> {
        self.reach().await?.commit(changes, now).await
    }

    async fn news(&self, after: Position, limit: usize) -> Result<News, KeepError> {
        self.reach().await?.news(after, limit).await
    }

    async fn tail(&self, after: u64, limit: usize) -> Result<Vec<Stored>, KeepError> {
        self.reach().await?.tail(after, limit).await
    }

    async fn history(&self, query: &Query) -> Result<Page, KeepError> {
        self.reach().await?.history(query).await
    }

    async fn value(&self, name: &str) -> Result<Versioned, KeepError> {
        self.reach().await?.value(name).await
    }

    async fn swap(&self, name: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, KeepError> {
        self.reach().await?.swap(name, expected, value).await
    }

    async fn remove(&self, name: &str, expected: u64) -> Result<bool, KeepError> {
        self.reach().await?.remove(name, expected).await
    }

    async fn hold(&self, duty: Duty) -> Result<bool, KeepError> {
        self.reach().await?.hold(duty).await
    }

    async fn retain(&self, limits: Retention, now: Timestamp) -> Result<u64, KeepError> {
        self.reach().await?.retain(limits, now).await
    }

    async fn usage(&self) -> Result<Usage, KeepError> {
        self.reach().await?.usage().await
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.inner.hints()
    }
}

/// A warden in the test's process.
struct Warden {
    at: SocketAddr,
    collector: Arc<Collector>,
    /// Disconnects its store.
    is_disconnected: Arc<AtomicBool>,
    /// Makes its store hang.
    is_hung: Arc<AtomicBool>,
    stop: CancellationToken,
    tasks: TaskSet,
}

impl Warden {
    async fn start(inner: &Arc<Embedded>) -> Self {
        let is_disconnected = Arc::new(AtomicBool::new(false));
        let is_hung = Arc::new(AtomicBool::new(false));
        let (is_unreachable, hangs) = (is_disconnected.clone(), is_hung.clone());
        let keep = Arc::new(Store { inner: inner.clone(), is_unreachable, is_hung: hangs });
        let retention = Retention { days: 90, bytes: 64 * 1024 * 1024 };
        let (collector, mut task) =
            Collector::new(keep, vec!["a".to_owned()], retention, Arc::new(SystemClock));
        task.prepare().await;
        let stop = CancellationToken::new();
        let config = Config {
            addresses: Vec::new(),
            base_path: BasePath::default(),
            token: Secret::new("0123456789abcdef-people"),
            state_path: None,
            store: StoreConfig::default(),
            rules: Rules::default(),
            fuse: FuseRule::default(),
            agents: vec![AgentConfig { id: "a".to_owned(), url: None, token: Secret::new(TOKEN) }],
            left_out: 0,
            warnings: Vec::new(),
        };
        let limits = limits();
        let api = Api {
            config: watch::Sender::new(Arc::new(ActiveConfig::new(&config, stop.clone()))).subscribe(),
            collector: collector.clone(),
            streams: stream_limiter(),
            requests: request_limiter(),
            polls: poll_limiter(),
            bodies: bodies(limits),
            throttle: Arc::default(),
            quotas: Arc::default(),
            clock: Arc::new(SystemClock),
            metrics: Arc::new(Metrics::default()),
        };
        let listeners = http::bind(&["127.0.0.1:0".to_owned()]).unwrap();
        let at = listeners[0].local_addr().unwrap();
        let tasks = TaskSet::new();
        tasks.spawn("collector", task.run(stop.clone()));
        tasks.spawn("api", http::serve(listeners, routes(api, limits), limits, stop.clone()));
        Self { at, collector, is_disconnected, is_hung, stop, tasks }
    }

    /// Disconnects its store, and waits until it notices.
    async fn disconnect_store(&self) {
        self.is_disconnected.store(true, Ordering::Relaxed);
        let mut store = self.collector.store_state();
        let known = store.wait_for(|store| store.error().is_some());
        tokio::time::timeout(Duration::from_mins(1), known).await.expect("the warden notices").unwrap();
    }

    async fn finish(self) {
        self.stop.cancel();
        assert!(self.tasks.finish(Duration::from_mins(1)).await, "the warden shuts down");
    }
}

fn store() -> Arc<Embedded> {
    Arc::new(Embedded::in_memory(Arc::new(SystemClock)).unwrap())
}

fn agent_of(wardens: &[&Warden]) -> Wardens {
    Wardens::new(&PushConfig {
        warden_urls: wardens.iter().map(|warden| format!("http://{}", warden.at)).collect(),
        token: Secret::new(TOKEN),
        ring: 0,
        patience: Duration::ZERO,
    })
    .unwrap()
}

fn ask(number: usize) -> FleetAsk {
    FleetAsk {
        image: format!("r.example/web-{number}:1"),
        digest: format!("sha256:{number:064}"),
        service: format!("web-{number}"),
        ring: 0,
        progress: None,
    }
}

#[tokio::test]
async fn forty_concurrent_lease_requests_are_all_answered() {
    let warden = Warden::start(&store()).await;
    let agent = agent_of(&[&warden]);
    let mut asks: Vec<_> = (0..40).map(ask).collect();
    // On a busy machine the warden may answer that its store takes too long: then an agent asks again.
    while !asks.is_empty() {
        let answers = join_all(asks.iter().map(|ask| agent.ask(ask))).await;
        let answers: Vec<_> = answers.into_iter().map(|answer| answer.map(|answer| answer.answer)).collect();
        assert!(
            answers.iter().all(|answer| matches!(answer, Ok(Permission::Go | Permission::Wait))),
            "{answers:?}"
        );
        let mut is_open = answers.iter().map(|answer| *answer == Ok(Permission::Wait));
        asks.retain(|_| is_open.next() == Some(true));
    }
    assert_eq!(warden.collector.live_leases(), 40);
    warden.finish().await;
}

#[tokio::test]
async fn an_agent_uses_the_next_warden_when_one_has_lost_its_store() {
    let store = store();
    let (one, other) = (Warden::start(&store).await, Warden::start(&store).await);
    one.disconnect_store().await;
    let agent = agent_of(&[&one, &other]);
    let answer = agent.ask(&ask(1)).await.unwrap();
    assert_eq!((answer.answer, answer.store), (Permission::Go, None));

    let agent = agent_of(&[&one, &other]);
    let mut stores = Vec::new();
    for _ in 0..3 {
        let received = agent.decisions(KnownRevisions::default(), Duration::ZERO).await.unwrap();
        stores.push(received.decisions.store);
    }
    assert_eq!(stores, [Some("away".to_owned()), None, None], "it stays with the warden that has a store");

    other.disconnect_store().await;
    let answer = agent.ask(&ask(2)).await.unwrap();
    assert_eq!((answer.answer, answer.store.as_deref()), (Permission::Wait, Some("away")));
    one.finish().await;
    other.finish().await;
}

#[tokio::test]
async fn an_offline_agent_receives_decisions_while_the_store_hangs() {
    let warden = Warden::start(&store()).await;
    let agent = agent_of(&[&warden]);
    agent.decisions(KnownRevisions::default(), Duration::ZERO).await.unwrap();
    assert_eq!(warden.collector.record_heartbeat("a", Err("it has not polled".to_owned())).await, Ok(true));
    while warden.collector.machine_records()[0].online != Some(false) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    warden.is_hung.store(true, Ordering::Relaxed);
    // The store hangs for ever.
    let decisions = agent.decisions(KnownRevisions::default(), Duration::ZERO);
    tokio::time::timeout(contract_tests::WAIT_LIMIT, decisions)
        .await
        .expect("an answer without the store")
        .unwrap();
    warden.is_hung.store(false, Ordering::Relaxed);
    warden.stop.cancel();
}
