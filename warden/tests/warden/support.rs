//! A warden on its own port, clients that write raw bytes to it, and a collector without a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::http::{self, BasePath, Limiter, Limits};
use evenkeel_common::secret::Secret;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::systemd::ServiceManager;
use evenkeel_warden::collector::{Collector, Task};
use evenkeel_warden::config::{
    AgentConfig, Config, ConfigSource, Configuration, FuseRule, Rules, StoreConfig,
};
use evenkeel_warden::http::{
    Api, Budgets, Metrics, bodies, limits, poll_limiter, request_limiter, routes, stream_limiter,
};
use evenkeel_warden::keep::embedded::Embedded;
use evenkeel_warden::keep::{Keep, Retention};
use evenkeel_warden::reload::{ActiveConfig, ConfigReceiver, Reload};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// `api.token`.
pub(crate) const API_TOKEN: &str = "0123456789abcdef-people";
/// Tokens of the agents `a` and `b`.
pub(crate) const AGENT_TOKENS: [(&str, &str); 2] =
    [("a", "0123456789abcdef-of-a"), ("b", "0123456789abcdef-of-b")];
/// Token of the agent `a`.
pub(crate) const A: &str = AGENT_TOKENS[0].1;
/// Token of the agent `b`.
pub(crate) const B: &str = AGENT_TOKENS[1].1;
const TIMEOUT: Duration = Duration::from_mins(1);

/// A running warden.
pub(crate) struct TestWarden {
    pub(crate) at: SocketAddr,
    pub(crate) collector: Arc<Collector>,
    pub(crate) stop: CancellationToken,
    /// Limit on agents' requests.
    pub(crate) requests: Limiter<String>,
    /// Memory for request bodies.
    pub(crate) bodies: Budgets,
    reload: Mutex<Reload>,
    tasks: TaskSet,
}

impl TestWarden {
    pub(crate) fn start() -> Self {
        Self::with(limits())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        Self::of(limits, in_memory(), API_TOKEN, AGENT_TOKENS)
    }

    pub(crate) fn with_store(keep: Arc<dyn Keep>) -> Self {
        Self::of(limits(), keep, API_TOKEN, AGENT_TOKENS)
    }

    /// Starts a warden whose agents have no URL.
    pub(crate) fn with_unreachable_agents() -> Self {
        Self::with_urls(limits(), in_memory(), API_TOKEN, AGENT_TOKENS, "")
    }

    pub(crate) fn with_tokens(api_token: &str, agents: [(&str, &str); 2]) -> Self {
        Self::of(limits(), in_memory(), api_token, agents)
    }

    fn of(limits: Limits, keep: Arc<dyn Keep>, api_token: &str, agents: [(&str, &str); 2]) -> Self {
        Self::with_urls(limits, keep, api_token, agents, "http://127.0.0.1:1")
    }

    fn with_urls(
        limits: Limits,
        keep: Arc<dyn Keep>,
        api_token: &str,
        agents: [(&str, &str); 2],
        url: &str,
    ) -> Self {
        let (collector, task) = new_collector(&AGENT_TOKENS.map(|(id, _)| id), keep);
        let stop = CancellationToken::new();
        let agents = agents.map(|(id, token)| (id, url.to_owned(), token));
        let requests = request_limiter();
        let bodies = bodies(limits);
        let reload = Reload::new(
            config_of(api_token, &agents),
            ConfigSource::new(PathBuf::new(), |_| None),
            collector.clone(),
            Arc::new(ServiceManager::new(&|_| None)),
            stop.clone(),
        );
        let api = Api {
            config: reload.subscribe(),
            collector: collector.clone(),
            streams: stream_limiter(),
            requests: requests.clone(),
            polls: poll_limiter(),
            quotas: Arc::default(),
            bodies: bodies.clone(),
            throttle: Arc::default(),
            clock: Arc::new(SystemClock),
            metrics: Arc::new(Metrics::default()),
        };
        let listeners = http::bind(&["127.0.0.1:0".to_owned()]).expect("a free port");
        let at = listeners[0].local_addr().expect("it listens");
        let tasks = TaskSet::new();
        tasks.spawn("collector", task.run(stop.clone()));
        tasks.spawn("api", http::serve(listeners, routes(api, limits), limits, stop.clone()));
        Self { at, collector, stop, requests, bodies, reload: Mutex::new(reload), tasks }
    }

    /// Reloads with these agents, a part of a configuration file.
    pub(crate) fn reload(&self, agents: &Value) {
        self.reload_text(&serde_json::json!({"api": {"token": API_TOKEN}, "agents": agents}).to_string());
    }

    /// Reloads with this file.
    pub(crate) fn reload_text(&self, file: &str) {
        let config = Config::parse(file, Path::new("warden.json"), &|_| None).unwrap();
        self.reload.lock().activate(config);
    }

    pub(crate) async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.at).await.expect("the warden listens"))
    }

    /// Sends one request on its own connection, and returns the whole response.
    pub(crate) async fn send(&self, request: &str) -> String {
        let mut client = self.connect().await;
        client.write(request.as_bytes()).await;
        client.rest().await
    }

    /// Sends `GET` with these header lines.
    pub(crate) async fn get(&self, path: &str, headers: &str) -> String {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nhost: warden.example\r\nconnection: close\r\n{headers}\r\n"
        ))
        .await
    }

    /// Sends `POST /ingest` with a bearer token and a body.
    pub(crate) async fn post(&self, token: &str, body: &str) -> String {
        self.send(&post(&format!("authorization: Bearer {token}\r\nconnection: close\r\n"), body)).await
    }

    pub(crate) async fn finish(self) {
        self.stop.cancel();
        assert!(self.tasks.finish(TIMEOUT).await, "the server ends");
    }
}

/// A fixed configuration with these agents (id, URL, token).
pub(crate) fn config(agents: &[(&str, String, &str)], stop: &CancellationToken) -> ConfigReceiver {
    let active = ActiveConfig::new(&config_of(API_TOKEN, agents), stop.clone());
    watch::Sender::new(Arc::new(active)).subscribe()
}

fn config_of(api_token: &str, agents: &[(&str, String, &str)]) -> Config {
    let agents = agents.iter().map(|(id, url, token)| AgentConfig {
        id: (*id).to_owned(),
        url: (!url.is_empty()).then(|| Secret::new(url.as_str())),
        token: Secret::new(*token),
    });
    Config {
        addresses: Vec::new(),
        base_path: BasePath::default(),
        token: Secret::new(api_token),
        state_path: None,
        store: StoreConfig::default(),
        rules: Rules::default(),
        fuse: FuseRule::default(),
        agents: agents.collect(),
        left_out: 0,
        warnings: Vec::new(),
    }
}

/// The bytes of a `POST /ingest` request.
pub(crate) fn post(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /ingest HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// The body of an entry.
pub(crate) fn entry(seq: u64) -> String {
    format!(
        r#"{{"timestamp":"2026-01-02T03:04:05Z","service":"web","event":"updated","message":"entry {seq}","level":"info","seq":{seq}}}"#
    )
}

/// A connection.
pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        // The warden may have closed the connection already; the response shows that.
        let _ = self.0.write_all(bytes).await;
    }

    /// Reads until the end.
    pub(crate) async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        let read = timeout(TIMEOUT, self.0.read_to_end(&mut bytes)).await;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(read.is_ok(), "no end after: {text}");
        text
    }

    /// Reads until a text has arrived.
    pub(crate) async fn until(&mut self, wanted: &str) -> String {
        self.until_after(Vec::new(), wanted).await
    }

    /// Reads the next data, a few kilobytes at most.
    pub(crate) async fn take(&mut self, bytes: &mut Vec<u8>) {
        let mut buffer = [0; 8192];
        let count =
            timeout(TIMEOUT, self.0.read(&mut buffer)).await.expect("something").expect("a connection");
        assert!(count > 0, "ended after {}", String::from_utf8_lossy(bytes));
        bytes.extend_from_slice(&buffer[..count]);
    }

    /// Reads until a text has arrived, and includes the data read before.
    pub(crate) async fn until_after(&mut self, mut bytes: Vec<u8>, wanted: &str) -> String {
        let read = timeout(TIMEOUT, async {
            let mut buffer = [0; 8192];
            let mut from = 0;
            while !String::from_utf8_lossy(&bytes[from..]).contains(wanted) {
                from = bytes.len().saturating_sub(wanted.len());
                let count = self.0.read(&mut buffer).await.expect("a connection");
                assert!(count > 0, "ended before {wanted:?}: {}", String::from_utf8_lossy(&bytes));
                bytes.extend_from_slice(&buffer[..count]);
            }
        });
        let read = read.await;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(read.is_ok(), "{wanted:?} did not come after: {text}");
        text
    }
}

pub(crate) fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

pub(crate) fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next().unwrap_or_default();
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

pub(crate) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

pub(crate) fn assert_refused(answer: &str, code: u16) {
    assert_eq!(status(answer), code, "{answer}");
    let error: Value = serde_json::from_str(body(answer)).expect("errors are JSON");
    assert!(error["error"].is_string(), "{answer}");
    if code == 401 {
        assert_eq!(header(answer, "www-authenticate"), Some("Bearer"), "{answer}");
    }
}

pub(crate) fn count(warden: &TestWarden, agent: usize) -> u64 {
    warden.collector.machine_records()[agent].counts_by_level.total()
}

pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(1), "{what} did not come");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A store in memory.
pub(crate) fn in_memory() -> Arc<dyn Keep> {
    Arc::new(Embedded::in_memory(Arc::new(SystemClock)).unwrap())
}

pub(crate) fn new_collector(ids: &[&str], keep: Arc<dyn Keep>) -> (Arc<Collector>, Task) {
    let retention = Retention { days: 90, bytes: 64 * 1024 * 1024 };
    Collector::new(keep, ids.iter().map(|id| (*id).to_owned()), retention, Arc::new(SystemClock))
}

pub(crate) fn lines(collector: &Collector) -> Vec<Value> {
    collector.recent(usize::MAX).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A manually set clock, in seconds since its start.
#[derive(Default)]
pub(crate) struct SetClock(AtomicI64);

impl SetClock {
    pub(crate) fn set_hours(&self, hours: i64) {
        self.set_seconds(hours * 3600);
    }

    pub(crate) fn set_seconds(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + self.0.load(Ordering::Relaxed)).unwrap()
    }

    fn at_boot(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}
