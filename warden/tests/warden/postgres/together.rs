//! Two wardens on one database: nothing is lost or stored twice, whatever fails, and each duty is held by one warden.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::testing::wait_for_async;
use evenkeel_warden::heartbeat::Heartbeat;
use evenkeel_warden::keep::{Duty, Keep};
use parking_lot::Mutex;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Server, keep};
use crate::support::{self, API_TOKEN, eventually, new_collector, post, status};

const SENDERS: usize = 20;
/// Time between two entries of a sender: 500 per second in total.
const GAP: Duration = Duration::from_millis(40);

/// How long entries are sent, in seconds: `$EVENKEEL_TEST_SECONDS`.
fn seconds() -> u64 {
    std::env::var("EVENKEEL_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// How many clients follow the entries: `$EVENKEEL_TEST_CLIENTS`.
fn clients() -> usize {
    std::env::var("EVENKEEL_TEST_CLIENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// A warden process.
struct Program {
    child: Child,
    at: SocketAddr,
    folder: TempDir,
}

impl Program {
    fn start(url: &str) -> Self {
        let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let agents: Vec<_> = (0..SENDERS)
            .map(|n| json!({"id": format!("agent-{n}"), "url": format!("http://{at}"), "token": token(n)}))
            .collect();
        let config = json!({
            "api": {"address": [at.to_string()], "token": API_TOKEN}, "agents": agents, "store": {"url": url},
        });
        std::fs::write(folder.path().join("warden.json"), config.to_string()).unwrap();
        Self { child: Self::spawn(&folder), at, folder }
    }

    fn spawn(folder: &TempDir) -> Child {
        let program = env!("CARGO_BIN_EXE_evenkeel-warden");
        let config = folder.path().join("warden.json");
        Command::new(program).arg("--config").arg(config).stderr(Stdio::null()).spawn().unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Self::spawn(&self.folder);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn token(sender: usize) -> String {
    format!("0123456789abcdef-agent-{sender}")
}

/// Sends one entry. Returns whether the response was 200.
async fn send(at: SocketAddr, sender: usize, seq: u64) -> bool {
    let body = format!(
        r#"{{"timestamp":"2026-01-02T03:04:05Z","service":"web","event":"updated","message":"m {seq}","level":"info","seq":{seq},"epoch":"e"}}"#
    );
    let headers = format!("authorization: Bearer {}\r\nconnection: close\r\n", token(sender));
    let exchange = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(post(&headers, &body).as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    match timeout(Duration::from_secs(15), exchange).await {
        Ok(Ok(answer)) if !answer.is_empty() => status(&answer) == 200,
        _ => false,
    }
}

/// Sends like an agent: retries each entry until it is accepted, and switches to the other warden on failure.
async fn sender(wardens: [SocketAddr; 2], sender: usize, each: u64, stored: Arc<AtomicU64>) {
    let start = Instant::now();
    let mut warden = sender % 2;
    for seq in 1..=each {
        sleep_until(start + GAP * u32::try_from(seq).unwrap()).await;
        while !send(wardens[warden], sender, seq).await {
            warden = 1 - warden;
            sleep(Duration::from_millis(100)).await;
        }
        stored.fetch_add(1, Ordering::Relaxed);
    }
}

/// Follows the entries after the last one seen, and switches to the other warden every now and then.
async fn client(wardens: [SocketAddr; 2], first: u64, seen: Arc<Mutex<Vec<u64>>>, stop: Arc<AtomicBool>) {
    let (mut last, mut warden) = (first, 0);
    while !stop.load(Ordering::Relaxed) {
        warden = 1 - warden;
        let stay = Instant::now() + Duration::from_millis(1500);
        let Ok(mut stream) = TcpStream::connect(wardens[warden]).await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        // With HTTP/1.0 there are no chunks, which may end in the middle of a line.
        let request = format!(
            "GET /events HTTP/1.0\r\nhost: w\r\ncookie: token={API_TOKEN}\r\nlast-event-id: {last}\r\n\r\n"
        );
        if stream.write_all(request.as_bytes()).await.is_err() {
            continue;
        }
        let (mut text, mut buffer) = (String::new(), vec![0; 64 * 1024]);
        while Instant::now() < stay {
            match timeout(Duration::from_millis(100), stream.read(&mut buffer)).await {
                Ok(Ok(count)) if count > 0 => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
                Ok(_) => break,
                Err(_) => {}
            }
            // Whole lines only.
            let end = text.rfind('\n').map_or(0, |at| at + 1);
            for line in text[..end].lines() {
                if let Some(id) = line.strip_prefix("id:").and_then(|id| id.trim().parse().ok()) {
                    seen.lock().push(id);
                    last = id;
                }
            }
            text.drain(..end);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_warden_and_a_database_that_restarts_lose_nothing_and_store_nothing_twice() {
    let server = Server::start();
    let (mut one, two) = (Program::start(&server.text()), Program::start(&server.text()));
    let wardens = [one.at, two.at];
    for at in wardens {
        let start = Instant::now();
        while !send(at, 0, 1).await {
            assert!(start.elapsed() < Duration::from_secs(30), "{at} takes nothing");
            sleep(Duration::from_millis(100)).await;
        }
    }
    let first: u64 = server.sql("SELECT max(id) FROM evenkeel.entries").await.parse().unwrap();
    let (senders, clients) = (TaskSet::new(), TaskSet::new());
    let (stored, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let seen: Vec<Arc<Mutex<Vec<u64>>>> = (0..self::clients()).map(|_| Arc::default()).collect();
    let each = seconds() * 25;
    for n in 0..SENDERS {
        senders.spawn("sender", sender(wardens, n, each, stored.clone()));
    }
    for seen in &seen {
        clients.spawn("client", client(wardens, first, seen.clone(), stop.clone()));
    }
    sleep(Duration::from_secs(3)).await;
    one.kill();
    sleep(Duration::from_secs(2)).await;
    server.tell("restart");
    one.restart();
    assert!(senders.finish(Duration::from_secs(seconds() + 110)).await, "{stored:?} were taken");
    let sent = SENDERS as u64 * each;
    let count = "SELECT count(*) FROM evenkeel.entries WHERE line NOT LIKE '%\"warden\"%'";
    assert_eq!(server.sql(count).await, sent.to_string(), "every sent entry is stored exactly once");
    let gaps = "SELECT max(id) - min(id) + 1 - count(*) FROM evenkeel.entries";
    assert_eq!(server.sql(gaps).await, "0", "ids have no gaps");
    let last: u64 = server.sql("SELECT max(id) FROM evenkeel.entries").await.parse().unwrap();
    let expected: Vec<u64> = (first + 1..=last).collect();
    for seen in &seen {
        eventually("the client's last entry", || seen.lock().last() >= Some(&last)).await;
    }
    stop.store(true, Ordering::Relaxed);
    clients.finish(Duration::from_secs(10)).await;
    for seen in seen {
        let mut seen = seen.lock().clone();
        seen.retain(|id| *id <= last);
        let distinct: HashSet<_> = seen.iter().collect();
        let differs = seen.iter().zip(&expected).position(|(seen, expected)| seen != expected);
        let about = differs.map(|at| &seen[at.saturating_sub(3)..(at + 5).min(seen.len())]);
        let (count, of, distinct) = (seen.len(), expected.len(), distinct.len());
        assert!(
            seen == expected,
            "{count} of {of}, {distinct} distinct; first difference at {differs:?}: {about:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duty_is_held_by_one_warden_and_passes_on_when_it_ends() {
    let server = Server::start();
    let (one, two) = (server.keep(), server.keep());
    assert!(one.hold(Duty::Heartbeat).await.unwrap());
    assert!(!two.hold(Duty::Heartbeat).await.unwrap() && two.hold(Duty::Retention).await.unwrap());
    assert!(one.hold(Duty::Heartbeat).await.unwrap() && !one.hold(Duty::Retention).await.unwrap());
    drop(one);
    until_held(&*two, Duty::Heartbeat).await;
    server.tell("restart");
    let three = server.keep();
    until_held(&*three, Duty::Retention).await;
    assert!(!two.hold(Duty::Retention).await.unwrap(), "the lock ended with its session");
}

/// A warden that hangs keeps its connection, since its kernel answers for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warden_that_hangs_loses_its_duty() {
    let server = Server::start();
    let hung = Program::start(&server.text());
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 3 AND granted";
    let found = |is_it: bool| if is_it { Ok(()) } else { Err("not yet".to_owned()) };
    wait_for_async("the warden takes the duty", async || found(server.sql(held).await == "1")).await;
    let other = server.keep();
    assert!(!other.hold(Duty::Heartbeat).await.unwrap());
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &hung.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    signal("-STOP");
    let takes = async || found(other.hold(Duty::Heartbeat).await.unwrap());
    wait_for_async("the other one takes the duty", takes).await;
    signal("-CONT");
    // It connects again, and does not get it back.
    eventually("it answers again", || std::net::TcpStream::connect(hung.at).is_ok()).await;
    assert!(other.hold(Duty::Heartbeat).await.unwrap());
    assert_eq!(server.sql(held).await, "1", "it is held once");
}

async fn until_held(keep: &dyn Keep, duty: Duty) {
    let start = Instant::now();
    while !matches!(keep.hold(duty).await, Ok(true)) {
        assert!(start.elapsed() < Duration::from_secs(20), "{duty:?} is not passed on");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_goes_offline_creates_one_entry_and_both_wardens_show_it() {
    let server = Server::start();
    let (tasks, stop) = (TaskSet::new(), CancellationToken::new());
    let agents = [("a", "http://127.0.0.1:1".to_owned(), "t")];
    let mut collectors = Vec::new();
    for _ in 0..2 {
        let (collector, collecting) = new_collector(&["a"], keep(&server.text()));
        tasks.spawn("collector", collecting.run(stop.clone()));
        let heartbeat = Heartbeat::new(support::config(&agents, &stop), collector.clone()).unwrap();
        tasks.spawn("heartbeat", heartbeat.every(Duration::from_millis(100)).run(stop.clone()));
        collectors.push(collector);
    }
    let is_offline = |n: usize| collectors[n].machine_records()[0].online == Some(false);
    eventually("both to show it", || is_offline(0) && is_offline(1)).await;
    // Several rounds of both wardens.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.sql("SELECT count(*) FROM evenkeel.entries").await, "1");
    assert_eq!(support::lines(&collectors[0]), support::lines(&collectors[1]));
    assert_eq!(support::lines(&collectors[0])[0]["event"], "agent_offline");
    stop.cancel();
    tasks.finish(Duration::from_secs(10)).await;
}
