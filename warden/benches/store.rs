//! Benchmark: entries that each store makes durable, a burst with slow viewers, and pages of a long history.
//!
//! `cargo bench -p evenkeel-warden --bench store` prints figures, and exits with 1 if a target was missed. `-- embedded`
//! and `-- postgres` measure one store. PostgreSQL is started by `dist/scripts/postgres.sh`, with its default durability
//! (`fsync` and `synchronous_commit` on), on the same machine and disk.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_common::clock::SystemClock;
use evenkeel_common::sse::Frame;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::FleetEntry;
use evenkeel_warden::collector::Collector;
use evenkeel_warden::config::StoreUrl;
use evenkeel_warden::keep::embedded::Embedded;
use evenkeel_warden::keep::postgres::Postgres;
use evenkeel_warden::keep::{Change, Keep, Outcome, Query, Retention};
use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/scripts/postgres.sh");
/// Senders per warden; each waits for the response to its entries before it sends the next ones.
const SENDERS: u64 = 50;
/// Entries per request of a sender, and the number of requests.
const AT_ONCE: u64 = 20;
const TIMES: u64 = 20;
const ROWS: u64 = 1_000_000;
const PAGES: usize = 500;
/// Maximum time for a page, in milliseconds.
const MAX_PAGE_TIME: f64 = 50.0;
/// Entries of a burst, and its viewers; each viewer pauses after some entries.
const BURST: u64 = 20_000;
const VIEWERS: usize = 8;
const VIEWED_AT_ONCE: u64 = 500;
const REST: Duration = Duration::from_millis(50);

static MISSED: AtomicBool = AtomicBool::new(false);

/// Prints a figure, and whether its target was met.
fn say(figure: &str, met: bool) {
    println!("{figure}{}", if met { "" } else { "  MISSED" });
    if !met {
        MISSED.store(true, Ordering::Relaxed);
    }
}

fn entry(agent: u64, seq: u64) -> FleetEntry {
    let text = format!(
        r#"{{"timestamp":"2026-01-02T03:04:05.678Z","machine":"rack-{agent}","service":"web-{}","event":"{}",
            "message":"registry.example/team/web:latest was updated and is healthy","level":"info",
            "old_digest":"sha256:3f1d2c4b5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff001",
            "new_digest":"sha256:8c7b6a594837261504f3e2d1c0b9a8978685746352413029181716151413121f",
            "container":"web-1","seq":{seq},"epoch":"e","agent":"agent-{agent}"}}"#,
        seq % 20,
        if seq.is_multiple_of(100) { "unhealthy" } else { "checked" },
    );
    serde_json::from_str(&text).unwrap()
}

/// Measures the entries per second that these wardens make durable together; at least `target`.
async fn ingest(name: &str, wardens: Vec<Arc<dyn Keep>>, target: f64) {
    let (tasks, senders, stop) = (TaskSet::new(), TaskSet::new(), CancellationToken::new());
    let retention = Retention { days: 90, bytes: 1 << 40 };
    let count = wardens.len() as u64;
    let mut collectors = Vec::new();
    for keep in wardens {
        let (collector, mut task) = Collector::new(keep, [], retention, Arc::new(SystemClock));
        task.prepare().await;
        tasks.spawn("collector", task.run(stop.clone()));
        collectors.push(collector);
    }
    let start = Instant::now();
    for (n, collector) in (0..).zip(&collectors) {
        for sender in 0..SENDERS {
            let (collector, agent) = (collector.clone(), n * SENDERS + sender);
            senders.spawn("sender", async move {
                for first in (0..TIMES).map(|n| n * AT_ONCE) {
                    let entries = (1..=AT_ONCE).map(|n| entry(agent, first + n)).collect();
                    let stored = collector.store(entries).await.unwrap();
                    assert!(stored.iter().all(|outcome| matches!(outcome, Outcome::Stored(_))));
                }
            });
        }
    }
    assert!(senders.finish(Duration::from_mins(5)).await, "not done in time");
    let (seconds, entries) = (start.elapsed().as_secs_f64(), count * SENDERS * AT_ONCE * TIMES);
    let rate = entries as f64 / seconds;
    say(&format!("{name}: {entries} entries durable in {seconds:.2} s: {rate:.0}/s"), rate >= target);
    stop.cancel();
    tasks.finish(Duration::from_secs(10)).await;
}

/// Measures a burst with viewers that are slower than it.
async fn burst(name: &str, keep: Arc<dyn Keep>) {
    let (tasks, viewers, stop) = (TaskSet::new(), TaskSet::new(), CancellationToken::new());
    let retention = Retention { days: 90, bytes: 1 << 40 };
    let (collector, mut task) = Collector::new(keep, [], retention, Arc::new(SystemClock));
    task.prepare().await;
    tasks.spawn("collector", task.run(stop.clone()));
    // The first entry; those that follow it are counted.
    let first = match collector.store(vec![entry(1000, 1)]).await.unwrap()[0] {
        Outcome::Stored(id) => id,
        Outcome::Unchanged => panic!("it already existed"),
    };
    let whole = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let start = Instant::now();
    for _ in 0..VIEWERS {
        let (frames, whole) = (collector.follow(Some(first)).await, whole.clone());
        viewers.spawn("viewer", async move {
            let (mut frames, mut next) = (Box::pin(frames), first + 1);
            while next <= first + BURST {
                if let Some(Frame::Event { id, .. }) = frames.next().await {
                    assert_eq!(id, Some(next), "each once, ascending");
                    next += 1;
                }
                if next.is_multiple_of(VIEWED_AT_ONCE) {
                    sleep(REST).await;
                }
            }
            whole.lock().push(start.elapsed());
        });
    }
    for first in (0..BURST).step_by(500) {
        collector.store((0..500).map(|n| entry(1000, first + n + 2)).collect()).await.unwrap();
    }
    let stored = start.elapsed().as_secs_f64();
    assert!(viewers.finish(Duration::from_mins(1)).await, "a viewer did not get everything");
    let mut whole = std::mem::take(&mut *whole.lock());
    whole.sort_unstable();
    let last = whole.last().map_or(f64::NAN, Duration::as_secs_f64);
    say(
        &format!(
            "{name}: a burst of {BURST} entries, stored in {stored:.2} s, reached {} of {VIEWERS} slow viewers whole, the last after {last:.2} s",
            whole.len()
        ),
        whole.len() == VIEWERS,
    );
    stop.cancel();
    tasks.finish(Duration::from_secs(10)).await;
}

/// Measures pages of a history of a million entries, at positions all over it and with each kind of filter.
async fn history(name: &str, keep: &dyn Keep) {
    let (mut filled, mut last, start) = (0, 0, Instant::now());
    while filled < ROWS {
        let agent = filled / 4000 % 50;
        let change = |n| Change::Entry(Box::new(entry(agent, 1_000_000 + filled + n)));
        let outcomes = keep.commit((0..4000).map(change).collect(), Timestamp::now()).await.unwrap();
        if let Some(Outcome::Stored(id)) = outcomes.last() {
            last = *id;
        }
        filled += 4000;
    }
    println!("{name}: filled with {ROWS} entries in {:.0} s", start.elapsed().as_secs_f64());
    let some = |text: &str| Some(text.to_owned());
    let forms: [(&str, Query); 6] = [
        ("no filter", Query::default()),
        ("machine", Query { machine: some("rack-7"), ..Query::default() }),
        (
            "machine and service",
            Query { machine: some("rack-7"), service: some("web-3"), ..Query::default() },
        ),
        ("event, 1 in 100", Query { event: some("unhealthy"), ..Query::default() }),
        ("text that is everywhere", Query { text: some("healthy"), ..Query::default() }),
        ("text that is nowhere", Query { text: some("no such text"), ..Query::default() }),
    ];
    for (form, query) in forms {
        let mut times = Vec::new();
        for n in 0..PAGES as u64 {
            let before = last - n * (ROWS - 50_000) / PAGES as u64;
            let start = Instant::now();
            keep.history(&Query { before, ..query.clone() }).await.unwrap();
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1000.0;
        let (middle, high) = (at(50), at(99));
        let figure = format!("{name}, page of {ROWS} entries, {form}: p50 {middle:.1} ms, p99 {high:.1} ms");
        say(&figure, high < MAX_PAGE_TIME);
    }
}

struct Server(Child, String);

impl Server {
    fn start() -> Option<Self> {
        let child = Command::new(SCRIPT).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Dropping it waits for its end, even if it printed nothing.
        let mut server = Self(child, String::new());
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.split_whitespace().next()?;
        server.1 = format!("postgres://evenkeel:secret@127.0.0.1:{port}/postgres");
        Some(server)
    }

    fn keep(&self) -> Arc<dyn Keep> {
        Arc::new(Postgres::new(StoreUrl::parse(&self.1).unwrap(), Arc::new(SystemClock)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

async fn embedded() {
    let folder = tempfile::tempdir().unwrap();
    let keep: Arc<dyn Keep> = Arc::new(Embedded::open(folder.path(), Arc::new(SystemClock)).unwrap());
    ingest("embedded, one warden", vec![keep.clone()], 5000.0).await;
    burst("embedded", keep.clone()).await;
    history("embedded", &*keep).await;
}

async fn postgres() {
    let Some(server) = Server::start() else {
        println!("NOT MEASURED: PostgreSQL (what it takes stands above)");
        return;
    };
    ingest("PostgreSQL, one warden", vec![server.keep()], 0.0).await;
    drop(server);
    let Some(server) = Server::start() else { return };
    ingest("PostgreSQL, two wardens", vec![server.keep(), server.keep()], 2000.0).await;
    burst("PostgreSQL", server.keep()).await;
    history("PostgreSQL", &*server.keep()).await;
}

fn main() -> ExitCode {
    // Cargo adds its own flags.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if is_wanted("embedded") {
            embedded().await;
        }
        if is_wanted("postgres") {
            postgres().await;
        }
    });
    if MISSED.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
