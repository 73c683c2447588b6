//! What the warden does by itself: heartbeats to good, dead and hostile agents, and the state file over its lives.

#![allow(clippy::unwrap_used)]

mod stage;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::SystemClock;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::testing::wait_for_async;
use evenkeel_common::wire::MachineRecord;
use evenkeel_warden::entry;
use evenkeel_warden::heartbeat::Heartbeat;
use evenkeel_warden::ring::Ring;
use evenkeel_warden::state_file::{self, State, StateFile};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for_async(what, async || if holds() { Ok(()) } else { Err("nothing of it".to_owned()) }).await;
}

fn ring(ids: &[&str], state: State) -> Arc<Ring> {
    Arc::new(Ring::new(ids.iter().map(|id| (*id).to_owned()), state, Arc::new(SystemClock)))
}

fn lines(ring: &Ring) -> Vec<serde_json::Value> {
    ring.state().0.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn state_of<'a>(records: &'a [MachineRecord], id: &str) -> &'a MachineRecord {
    records.iter().find(|record| record.id == id).unwrap()
}

/// A server that answers every connection with these bytes, and then with `tail` for ever.
async fn hostile(tasks: &TaskSet, head: &'static [u8], tail: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections = tasks.clone();
    tasks.spawn("hostile", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn("connection", async move {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(head).await;
                while !tail.is_empty() && stream.write_all(tail).await.is_ok() {}
                std::future::pending::<()>().await;
            });
        }
    });
    url
}

#[tokio::test]
async fn every_agent_is_judged_by_itself_whatever_the_others_do() {
    let (good, sick, proxied, moved) = (
        MockServer::start().await,
        MockServer::start().await,
        MockServer::start().await,
        MockServer::start().await,
    );
    let answer = |server: &'static str, template: ResponseTemplate| {
        (server, Mock::given(method("GET")).and(path("/health")).respond_with(template))
    };
    let ok = answer("good", ResponseTemplate::new(200).set_body_json(serde_json::json!({"status": "ok"}))).1;
    ok.mount(&good).await;
    let unavailable = serde_json::json!({"status": "unavailable", "error": "engine"});
    answer("sick", ResponseTemplate::new(503).set_body_json(unavailable)).1.mount(&sick).await;
    answer("proxied", ResponseTemplate::new(503).set_body_string("<html>no backend</html>"))
        .1
        .mount(&proxied)
        .await;
    let away =
        ResponseTemplate::new(302).insert_header("location", format!("{}/health", good.uri()).as_str());
    answer("moved", away).1.mount(&moved).await;
    let tasks = TaskSet::new();
    let endless_body =
        hostile(&tasks, b"HTTP/1.1 503 x\r\n\r\n{\"status\":\"", b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa").await;
    let endless_head = hostile(&tasks, b"HTTP/1.1 200 OK\r\n", b"x: aaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n").await;
    let silent = hostile(&tasks, b"", b"").await;
    let garbage = hostile(&tasks, b"\x16\x03\x01nonsense\r\n\r\n", b"").await;
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://secret:word@{}", listener.local_addr().unwrap())
    };
    let all = [
        ("good", good.uri()),
        ("sick", sick.uri()),
        ("proxied", proxied.uri()),
        ("moved", moved.uri()),
        ("endless-body", endless_body),
        ("endless-head", endless_head),
        ("silent", silent),
        ("garbage", garbage),
        ("gone", gone),
    ];
    let ids: Vec<&str> = all.iter().map(|(id, _)| *id).collect();
    let ring = ring(&ids, State::default());
    let stop = CancellationToken::new();
    let agents: Vec<_> = all.iter().map(|(id, url)| (*id, url.clone(), "t")).collect();
    let heartbeat = Heartbeat::new(stage::live(&agents, &stop), ring.clone()).unwrap();
    let heartbeat = heartbeat.every(Duration::from_millis(200));
    let started = Instant::now();
    tasks.spawn("heartbeat", heartbeat.run(stop.clone()));
    eventually("the good agent", || state_of(&ring.records(), "good").online == Some(true)).await;
    assert!(started.elapsed() < Duration::from_secs(4), "nobody waits for the hostile ones");
    eventually("all", || ring.records().iter().all(|record| record.online.is_some())).await;
    let records = ring.records();
    for record in &records {
        let expected = matches!(record.id.as_str(), "good" | "sick");
        assert_eq!(record.online, Some(expected), "{record:?}");
        assert_eq!(record.reason.is_none(), expected, "{record:?}");
    }
    assert_eq!(state_of(&records, "moved").reason.as_deref(), Some("GET /health answers 302 Found"));
    assert_eq!(
        state_of(&records, "proxied").reason.as_deref(),
        Some("GET /health answers 503 Service Unavailable")
    );
    assert_eq!(state_of(&records, "silent").reason.as_deref(), Some("no answer within 5 s"));
    let refused = state_of(&records, "gone").reason.clone().unwrap();
    assert!(refused.starts_with("cannot connect: ") && !refused.contains("secret"), "{refused}");

    // Only changes are entries: one for each that is offline, none for those that are not.
    let kinds: Vec<_> = lines(&ring).iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["agent_offline"; 7]);
    good.reset().await;
    eventually("good to be away", || state_of(&ring.records(), "good").online == Some(false)).await;
    let back = Mock::given(method("GET")).respond_with(ResponseTemplate::new(204));
    back.mount(&good).await;
    eventually("good to be back", || state_of(&ring.records(), "good").online == Some(true)).await;
    let last = lines(&ring).pop().unwrap();
    assert_eq!((last["event"].as_str(), last["agent"].as_str()), (Some("agent_online"), Some("good")));
    assert_eq!((last["service"].as_str(), last["level"].as_str()), (Some("warden"), Some("info")));
    stop.cancel();
    tasks.finish(Duration::ZERO).await;
}

struct Life {
    ring: Arc<Ring>,
    stop: CancellationToken,
    tasks: TaskSet,
}

impl Life {
    fn begin(path: &Path) -> (Self, Option<String>) {
        let (state, warning) = state_file::load(path, &SystemClock);
        let ring = ring(&["a", "b"], state);
        let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
        let file = StateFile::new(path.to_owned(), ring.clone());
        tasks.spawn("state file", file.run(stop.clone()));
        (Self { ring, stop, tasks }, warning)
    }

    fn take(&self, place: usize, seq: u64) -> bool {
        self.ring.take(&entry::parse(stage::entry(seq).as_bytes(), ["a", "b"][place]).unwrap())
    }

    async fn end(self) {
        self.stop.cancel();
        assert!(self.tasks.finish(Duration::from_secs(5)).await);
    }

    async fn crash(self) {
        self.tasks.finish(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn the_next_life_goes_on_where_this_one_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (life, warning) = Life::begin(&path);
    assert_eq!(warning, None);
    for seq in 1..=250 {
        assert!(life.take(0, seq));
    }
    life.ring.heard("b", Err("gone".to_owned()));
    let (lines, next_id, machines) = life.ring.state();
    life.end().await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let (life, warning) = Life::begin(&path);
    assert_eq!(warning, None);
    assert_eq!(life.ring.state(), (lines.clone(), next_id, machines));
    assert_eq!(lines.len(), 200);
    assert!(!life.take(0, 250), "a repeat is known over a restart");
    assert!(life.take(0, 251));
    life.ring.heard("b", Err("gone".to_owned()));
    assert_eq!(life.ring.state().1, next_id + 1, "still offline is no change");
    life.end().await;
}

#[tokio::test]
async fn a_crash_loses_no_more_than_the_last_second_and_no_id_is_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (life, _) = Life::begin(&path);
    for seq in 1..=10 {
        life.take(0, seq);
    }
    let kept = || fs::read_to_string(&path).is_ok_and(|text| text.contains("entry 10"));
    eventually("the last entry in the file", kept).await;
    let next_id = life.ring.state().1;
    life.crash().await;
    let (life, warning) = Life::begin(&path);
    assert_eq!(warning, None);
    assert_eq!(life.ring.records()[0].last_seq, Some(10));
    assert!(!life.take(0, 10));
    let (lines, next, _) = life.ring.state();
    assert_eq!(lines.len(), 10);
    assert!(next > next_id + 10, "{next} {next_id}");
    life.crash().await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_costs_only_the_memory_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/state.json");
    let (life, warning) = Life::begin(&path);
    assert_eq!(warning, None);
    assert!(life.take(0, 1));
    sleep(Duration::from_millis(100)).await;
    // The disk is back: what waited is written.
    fs::create_dir(folder.path().join("none")).unwrap();
    eventually("the file", || path.exists()).await;
    life.end().await;
}

/// Cut off or changed anywhere, a state file costs the lines that it hits and no more; it never brings the warden down.
#[tokio::test]
async fn a_damaged_line_costs_itself_and_the_rest_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (life, _) = Life::begin(&path);
    for seq in [1, 2, 5, 9] {
        life.take(0, seq);
    }
    life.ring.heard("b", Err("gone".to_owned()));
    life.end().await;
    let good = fs::read(&path).unwrap();
    let lines = good.split(|byte| *byte == b'\n').count() - 1;
    assert_eq!(lines, 1 + 2 + 5 + 1, "version, machines, entries, end");
    let mut noted = 0;
    for at in 0..good.len() {
        // A crash in the middle of a line: what was whole before it is taken.
        fs::write(&path, &good[..at]).unwrap();
        let whole = good[..at].split(|byte| *byte == b'\n').count() - 1;
        let (state, warning) = state_file::load(&path, &SystemClock);
        assert_eq!(warning.is_none(), whole > 0, "{at}: {warning:?}");
        assert_eq!(state.entries.len(), whole.saturating_sub(3).min(5));
        assert!(!state.is_complete);
        for byte in [b'0', b'"', b'}', b'-', 0xff] {
            let mut text = good.clone();
            text[at] = byte;
            fs::write(&path, &text).unwrap();
            let (state, warning) = state_file::load(&path, &SystemClock);
            assert!(state.entries.len() >= 3, "a lost line break costs the two lines beside it");
            let entries = state.entries.len();
            let ring = ring(&["a", "b"], state);
            ring.take(&entry::parse(stage::entry(10).as_bytes(), "a").unwrap());
            // Without its own end the last line is one that a crash cut off.
            if text != good && at + 1 < good.len() {
                let warning = warning.expect("a changed byte is found, whichever it is");
                assert!(
                    warning.starts_with("STATE DAMAGED: ") && warning.contains("was moved to"),
                    "{warning}"
                );
                assert!(!path.exists());
                noted += usize::from(entries == 5);
            }
        }
    }
    assert!(noted > 0);
    for (content, why) in
        [(&b"\x00\x01\n"[..], "no line"), (b"{\"version\":3}", "missing field"), (b"", "no line")]
    {
        fs::write(&path, content).unwrap();
        let (_, warning) = state_file::load(&path, &SystemClock);
        let warning = warning.unwrap();
        assert!(warning.starts_with("STATE LOST: ") && warning.contains(why), "{warning}");
    }
    fs::create_dir(folder.path().join("folder")).unwrap();
    let (_, warning) = state_file::load(&folder.path().join("folder"), &SystemClock);
    assert!(warning.unwrap().contains("it is not a regular file"));
}

#[tokio::test]
async fn the_state_of_the_version_before_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let old = r#"{"version":1,"is_complete":true,"next_id":8,"entries":[{"timestamp":"2026-01-02T03:04:05Z","machine":"a","service":"web","event":"updated","message":"old","level":"info","seq":7,"agent":"a"}],"machines":[{"id":"a","online":true,"since":null,"reason":null,"last_entry":null,"seen":[[7,7]],"youngest":"2026-01-02T03:04:05Z","counts":{"info":1,"warning":0,"error":0,"critical":0,"other":0},"repeats":0}]}"#;
    fs::write(&path, old).unwrap();
    let (life, warning) = Life::begin(&path);
    assert_eq!(warning, None);
    assert_eq!((life.ring.records()[0].last_seq, life.ring.state().1), (Some(7), 8));
    life.take(0, 8);
    life.end().await;
    let (life, warning) = Life::begin(&path);
    assert_eq!((warning, life.ring.records()[0].last_seq), (None, Some(8)));
    life.end().await;
}

/// Ten thousand agents, one of which sends: what is written is what it changed.
#[tokio::test]
async fn one_agent_makes_the_warden_write_what_it_changed_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<String> = (0..10_000).map(|n| format!("agent-{n}")).collect();
    let ring = Arc::new(Ring::new(ids.clone(), State::default(), Arc::new(SystemClock)));
    let file = StateFile::new(folder.path().join("state.json"), ring.clone());
    let (stop, tasks, written) = (CancellationToken::new(), TaskSet::new(), file.written());
    let take = |seq: u64| {
        let body = stage::entry(seq).replace("entry ", &"x".repeat(4000));
        assert!(ring.take(&entry::parse(body.as_bytes(), "agent-7").unwrap()));
    };
    tasks.spawn("state file", file.run(stop.clone()));
    for seq in 1..=200 {
        take(seq * 2);
    }
    eventually("the first write", || *written.borrow() > 1_000_000).await;
    for seq in 300..305 {
        let before = *written.borrow();
        take(seq * 2);
        eventually("a write", || *written.borrow() > before).await;
        let more = *written.borrow() - before;
        assert!(more < 16 * 1024, "{more} bytes for one entry");
    }
    stop.cancel();
    assert!(tasks.finish(Duration::from_secs(5)).await);
}

/// More agents than are asked at once: each is asked in its turn, and none is offline for having waited.
#[tokio::test]
async fn more_agents_than_can_be_asked_at_once_are_all_judged_by_their_own_answers() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let (tasks, now, most) = (TaskSet::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections = tasks.clone();
    let (open, peak) = (now.clone(), most.clone());
    tasks.spawn("agents", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (open, peak) = (open.clone(), peak.clone());
            peak.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            connections.spawn("connection", async move {
                let _ = stream.read(&mut [0; 1024]).await;
                sleep(Duration::from_millis(100)).await;
                open.fetch_sub(1, Ordering::SeqCst);
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .await;
            });
        }
    });
    let ids: Vec<String> = (0..1500).map(|n| format!("agent-{n}")).collect();
    let ring = Arc::new(Ring::new(ids.clone(), State::default(), Arc::new(SystemClock)));
    let stop = CancellationToken::new();
    let agents: Vec<_> = ids.iter().map(|id| (id.as_str(), url.clone(), "t")).collect();
    let heartbeat = Heartbeat::new(stage::live(&agents, &stop), ring.clone()).unwrap();
    tasks.spawn("heartbeat", heartbeat.run(stop.clone()));
    eventually("all", || ring.records().iter().all(|record| record.online.is_some())).await;
    assert!(ring.records().iter().all(|record| record.online == Some(true)));
    assert_eq!(lines(&ring), Vec::<serde_json::Value>::new(), "nobody was said to be offline");
    assert!(most.load(Ordering::SeqCst) <= evenkeel_warden::heartbeat::AT_ONCE, "{most:?}");
    stop.cancel();
    tasks.finish(Duration::ZERO).await;
}
