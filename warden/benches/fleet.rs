//! Benchmark: idle memory, entries of 200 agents fanned out to 100 clients, and 2,000 idle streams.
//!
//! `cargo bench -p evenkeel-warden` builds the release program, runs it as a process on this machine, and prints
//! figures. Agents, clients and warden share the machine's cores. The load is open-loop: each entry has a time at
//! which it is due, and its latency counts from then.
//!
//! Size and idle memory are those of the packaged program: build it with `cargo build --release -p evenkeel`, or set
//! `$EVENKEEL_BIN`. `$EVENKEEL_OTHER` is a second program with the same flags (`--mode warden --config FILE`), which gets
//! the same load; the ratios to it are printed.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::supervisor::TaskSet;
use memchr::memmem;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const API_TOKEN: &str = "0123456789abcdef-people";
const AGENTS: u64 = 200;
const RATE: u64 = 5000;
const SECONDS: u64 = 20;
const CLIENTS: usize = 100;
const IDLE: usize = 2000;
/// Limits of the packaged program, in MiB.
const MAX_SIZE: f64 = 9.0;
const MAX_AT_REST: f64 = 7.0;
/// Number of starts; the median counts.
const STARTS: usize = 5;

struct Warden {
    child: Child,
    at: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Warden {
    fn start() -> Self {
        Self::run(Path::new(env!("CARGO_BIN_EXE_evenkeel-warden")), &[], AGENTS)
    }

    fn run(program: &Path, flags: &[&str], agents: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let agents: Vec<_> = (0..agents)
            .map(|n| json!({"id": format!("agent-{n}"), "url": format!("http://{at}"), "token": token(n)}))
            .collect();
        let config = json!({
            "api": {"address": [at.to_string()], "token": API_TOKEN, "state_path": folder.path().join("state")},
            "agents": agents,
        });
        let path = folder.path().join("warden.json");
        fs::write(&path, config.to_string()).unwrap();
        let child = Command::new(program)
            .args(flags)
            .arg("--config")
            .arg(path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, at, _folder: folder }
    }

    /// Resident memory in MiB.
    fn memory(&self) -> f64 {
        self.status("VmRSS:")
    }

    /// A figure of `/proc/<pid>/status` in MiB.
    fn status(&self, key: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }

    /// Seconds of processor time so far.
    fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn token(agent: u64) -> String {
    format!("0123456789abcdef-agent-{agent}")
}

fn post(bearer: &str, seq: u64) -> Vec<u8> {
    let body = json!({
        "timestamp": "2026-01-02T03:04:05.678Z", "machine": "rack-7", "service": "web", "event": "updated",
        "message": "registry.example/team/web:latest was updated and is healthy", "level": "info",
        "old_digest": "sha256:3f1d2c4b5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff001",
        "new_digest": "sha256:8c7b6a594837261504f3e2d1c0b9a8978685746352413029181716151413121f",
        "container": "web-1", "seq": seq,
    })
    .to_string();
    format!(
        "POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {bearer}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

async fn connect(at: SocketAddr) -> TcpStream {
    let start = Instant::now();
    loop {
        match TcpStream::connect(at).await {
            Ok(stream) => {
                stream.set_nodelay(true).unwrap();
                return stream;
            }
            Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// The packaged program: `$EVENKEEL_BIN`, or the last built one.
fn packaged() -> Option<PathBuf> {
    let built = || Path::new(env!("CARGO_BIN_EXE_evenkeel-warden")).with_file_name("evenkeel");
    Some(std::env::var_os("EVENKEEL_BIN").map_or_else(built, PathBuf::from))
        .filter(|program| program.exists())
}

/// Resident memory of a program in mode `warden`, and its anonymous part, 10 s after its first response.
async fn at_rest(program: &Path) -> (f64, f64) {
    let mut figures = Vec::new();
    for _ in 0..STARTS {
        let warden = Warden::run(program, &["--mode", "warden"], 1);
        drop(connect(warden.at).await);
        sleep(Duration::from_secs(10)).await;
        figures.push((warden.memory(), warden.status("RssAnon:")));
    }
    figures.sort_by(|one, other| one.0.total_cmp(&other.0));
    figures[STARTS / 2]
}

fn size(program: &Path) -> f64 {
    fs::metadata(program).unwrap().len() as f64 / 1024.0 / 1024.0
}

/// Size and idle memory of the packaged program, compared with the other one.
async fn lean() {
    let Some(program) = packaged() else {
        println!("NOT MEASURED: the packaged program (cargo build --release -p evenkeel)");
        return;
    };
    let (size_of_ours, (ours, private)) = (size(&program), at_rest(&program).await);
    println!("size of {}: {size_of_ours:.2} MiB", program.display());
    println!("at rest: {ours:.1} MiB ({private:.1} MiB of it anonymous)");
    if let Some(other) = std::env::var_os("EVENKEEL_OTHER").map(PathBuf::from) {
        let (size_of_other, (theirs, private)) = (size(&other), at_rest(&other).await);
        println!(
            "size of {}: {size_of_other:.2} MiB, ratio {:.2}",
            other.display(),
            size_of_ours / size_of_other
        );
        println!("at rest: {theirs:.1} MiB ({private:.1} MiB of it anonymous), ratio {:.2}", ours / theirs);
    }
    assert!(size_of_ours < MAX_SIZE, "more than {MAX_SIZE} MiB on disk");
    assert!(ours < MAX_AT_REST, "more than {MAX_AT_REST} MiB at rest");
}

/// Sends one request, and returns its latency counted from `due`.
async fn exchange(stream: &mut TcpStream, request: &[u8], expected: &str, due: Instant) -> Duration {
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::with_capacity(1024);
    while memmem::find(&answer, b"}").is_none() {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "the warden closed");
    }
    assert!(answer.starts_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&answer));
    due.elapsed()
}

/// Follows the entries until `done`; counts them and the reported gaps.
async fn follow(
    at: SocketAddr,
    entries: Arc<AtomicU64>,
    missed: Arc<AtomicU64>,
    ready: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
) {
    let mut stream = connect(at).await;
    let request = format!("GET /events HTTP/1.1\r\nhost: w\r\ncookie: token={API_TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (data, gap) = (memmem::Finder::new(b"data: {"), memmem::Finder::new(b": missed"));
    let mut buffer = vec![0; 256 * 1024];
    // Bytes that may be the beginning of a mark that the next read completes.
    let mut kept = 0;
    let mut is_ready = false;
    while !done.load(Ordering::Relaxed) {
        let Ok(count) = timeout(Duration::from_millis(200), stream.read(&mut buffer[kept..])).await else {
            continue;
        };
        let end = kept + count.unwrap();
        assert!(end > kept, "the warden closed");
        if !is_ready {
            is_ready = true;
            ready.fetch_add(1, Ordering::Relaxed);
        }
        entries.fetch_add(data.find_iter(&buffer[..end]).count() as u64, Ordering::Relaxed);
        missed.fetch_add(gap.find_iter(&buffer[..end]).count() as u64, Ordering::Relaxed);
        let tail = 6.min(end);
        buffer.copy_within(end - tail..end, 0);
        kept = tail;
    }
}

fn milliseconds(sorted: &[Duration], share: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
    let place = ((sorted.len() - 1) as f64 * share) as usize;
    sorted[place].as_secs_f64() * 1000.0
}

fn total(entries: &[Arc<AtomicU64>]) -> u64 {
    entries.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

/// Waits until all frames have arrived, or none has for 10 s: a client that lags has not missed any. Returns how long it took.
async fn until_nothing_comes(entries: &[Arc<AtomicU64>], expected: u64) -> Duration {
    let start = Instant::now();
    let (mut got, mut last) = (total(entries), start);
    while got < expected && last.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(20)).await;
        let now = total(entries);
        if now > got {
            (got, last) = (now, Instant::now());
        }
    }
    last - start
}

async fn load(warden: &Warden) {
    let tasks = TaskSet::new();
    let (missed, ready) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let entries: Vec<Arc<AtomicU64>> = (0..CLIENTS).map(|_| Arc::default()).collect();
    let done = Arc::new(AtomicBool::new(false));
    for entries in &entries {
        tasks
            .spawn("client", follow(warden.at, entries.clone(), missed.clone(), ready.clone(), done.clone()));
    }
    while ready.load(Ordering::Relaxed) < CLIENTS as u64 {
        sleep(Duration::from_millis(20)).await;
    }
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let agents = TaskSet::new();
    let (cpu, start) = (warden.cpu(), Instant::now() + Duration::from_millis(500));
    let each = RATE * SECONDS / AGENTS;
    for agent in 0..AGENTS {
        let (at, latencies) = (warden.at, latencies.clone());
        agents.spawn("agent", async move {
            let mut stream = connect(at).await;
            let mut mine = Vec::new();
            let gap = Duration::from_secs(SECONDS) / u32::try_from(each).unwrap();
            let first = start + gap * u32::try_from(agent).unwrap() / u32::try_from(AGENTS).unwrap();
            for n in 0..each {
                let due = first + gap * u32::try_from(n).unwrap();
                let request = post(&token(agent), n + 1);
                sleep_until(due).await;
                mine.push(exchange(&mut stream, &request, "HTTP/1.1 200", due).await);
            }
            latencies.lock().append(&mut mine);
        });
    }
    assert!(agents.finish(Duration::from_secs(SECONDS * 4)).await, "the agents did not get through");
    let took = start.elapsed().as_secs_f64();
    let (cpu, memory) = (warden.cpu() - cpu, warden.memory());
    let mut latencies = latencies.lock().clone();
    latencies.sort_unstable();
    let expected = (RATE * SECONDS) * CLIENTS as u64;
    let behind = until_nothing_comes(&entries, expected).await;
    done.store(true, Ordering::Relaxed);
    tasks.finish(Duration::from_secs(5)).await;
    let (got, gaps) = (total(&entries), missed.load(Ordering::Relaxed));
    println!(
        "ingest: {} entries over {AGENTS} connections in {took:.1} s: {:.0}/s",
        latencies.len(),
        latencies.len() as f64 / took
    );
    println!(
        "ingest latency from due time: p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, greatest {:.2} ms",
        milliseconds(&latencies, 0.5),
        milliseconds(&latencies, 0.99),
        milliseconds(&latencies, 0.999),
        milliseconds(&latencies, 1.0)
    );
    println!(
        "fan-out to {CLIENTS} clients: {got} of {expected} frames, {gaps} gaps reported, the last {:.1} s after the last entry",
        behind.as_secs_f64()
    );
    for (client, count) in entries.iter().map(|count| count.load(Ordering::Relaxed)).enumerate() {
        if count != RATE * SECONDS {
            println!("  client {client} got {count} of {}", RATE * SECONDS);
        }
    }
    println!("warden meanwhile: {:.0} % of one core, {memory:.0} MiB", cpu / took * 100.0);
    assert!(got == expected && gaps == 0, "a client missed entries");
}

async fn idle(warden: &Warden) {
    let before = warden.memory();
    let mut streams = Vec::new();
    for _ in 0..IDLE {
        let mut stream = connect(warden.at).await;
        let request = format!("GET /events HTTP/1.1\r\nhost: w\r\ncookie: token={API_TOKEN}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        streams.push(stream);
    }
    println!("{IDLE} idle streams, just opened: {:.0} MiB (before: {before:.0} MiB)", warden.memory());
    // Two heartbeats for each stream.
    let cpu = warden.cpu();
    sleep(Duration::from_secs(32)).await;
    println!(
        "{IDLE} idle streams after 32 s: {:.0} MiB, {:.1} % of one core",
        warden.memory(),
        (warden.cpu() - cpu) / 32.0 * 100.0
    );
    let start = Instant::now();
    let mut stream = connect(warden.at).await;
    exchange(&mut stream, &post(&token(0), 1_000_000), "HTTP/1.1 200", start).await;
    println!(
        "an entry amid {IDLE} streams is accepted after {:.1} ms",
        start.elapsed().as_secs_f64() * 1000.0
    );
    assert!(warden.memory() < 150.0, "more than 150 MiB");
}

/// The response time for a wrong token reveals nothing about the right ones.
async fn wrong_tokens(warden: &Warden) {
    let mut stream = connect(warden.at).await;
    let right = token(0);
    let forms = [
        ("none of it right", "x".repeat(right.len())),
        ("all but the last letter right", format!("{}x", &right[..right.len() - 1])),
        ("right and one letter more", format!("{right}x")),
        ("one letter", "x".to_owned()),
    ];
    let mut times = vec![Vec::new(); forms.len()];
    for _ in 0..3000 {
        for (form, times) in forms.iter().zip(&mut times) {
            let request = format!(
                "POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
                form.1
            );
            times.push(exchange(&mut stream, request.as_bytes(), "HTTP/1.1 401", Instant::now()).await);
        }
    }
    for ((name, _), mut times) in forms.iter().zip(times) {
        times.sort_unstable();
        println!("401 to a token, {name}: median {:.3} ms", milliseconds(&times, 0.5));
    }
}

fn main() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        lean().await;
        let warden = Warden::start();
        drop(connect(warden.at).await);
        wrong_tokens(&warden).await;
        drop(warden);
        let warden = Warden::start();
        load(&warden).await;
        idle(&warden).await;
    });
}
