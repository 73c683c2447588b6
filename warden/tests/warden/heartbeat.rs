//! Heartbeats to good, dead, slow and hostile agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::MachineRecord;
use evenkeel_warden::collector::Collector;
use evenkeel_warden::heartbeat::{Heartbeat, MAX_CONCURRENT};
use evenkeel_warden::keep::Retention;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::{self, SetClock, eventually, in_memory, lines, new_collector};

fn state_of<'a>(records: &'a [MachineRecord], id: &str) -> &'a MachineRecord {
    records.iter().find(|record| record.id == id).unwrap()
}

/// A server that answers every connection with these bytes, and then sends `tail` forever.
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
async fn every_agent_is_probed_independently_of_the_others() {
    let (good, sick, proxied, moved) = (
        MockServer::start().await,
        MockServer::start().await,
        MockServer::start().await,
        MockServer::start().await,
    );
    let answer =
        |template: ResponseTemplate| Mock::given(method("GET")).and(path("/health")).respond_with(template);
    let ok = serde_json::json!({"status": "ok"});
    answer(ResponseTemplate::new(200).set_body_json(ok)).mount(&good).await;
    let unavailable = serde_json::json!({"status": "unavailable", "error": "engine"});
    answer(ResponseTemplate::new(503).set_body_json(unavailable)).mount(&sick).await;
    let no_backend = ResponseTemplate::new(503).set_body_string("<html>no backend</html>");
    answer(no_backend).mount(&proxied).await;
    let away = format!("{}/health", good.uri());
    answer(ResponseTemplate::new(302).insert_header("location", away.as_str())).mount(&moved).await;
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
    let (collector, collecting) = new_collector(&ids, in_memory());
    let stop = CancellationToken::new();
    tasks.spawn("collector", collecting.run(stop.clone()));
    let agents: Vec<_> = all.iter().map(|(id, url)| (*id, url.clone(), "t")).collect();
    let heartbeat = Heartbeat::new(support::config(&agents, &stop), collector.clone()).unwrap();
    let heartbeat = heartbeat.every(Duration::from_millis(200));
    tasks.spawn("heartbeat", heartbeat.run(stop.clone()));
    eventually("the good agent", || state_of(&collector.machine_records(), "good").online == Some(true))
        .await;
    eventually("all", || collector.machine_records().iter().all(|record| record.online.is_some())).await;
    let records = collector.machine_records();
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

    // Only transitions create entries: one for each offline agent, none for the others.
    let kinds: Vec<_> =
        lines(&collector).iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["agent_offline"; 7]);
    good.reset().await;
    eventually("good to be offline", || state_of(&collector.machine_records(), "good").online == Some(false))
        .await;
    let back = Mock::given(method("GET")).respond_with(ResponseTemplate::new(204));
    back.mount(&good).await;
    eventually("good to be online", || state_of(&collector.machine_records(), "good").online == Some(true))
        .await;
    let last = lines(&collector).pop().unwrap();
    assert_eq!((last["event"].as_str(), last["agent"].as_str()), (Some("agent_online"), Some("good")));
    assert_eq!((last["service"].as_str(), last["level"].as_str()), (Some("warden"), Some("info")));
    stop.cancel();
    tasks.finish(Duration::ZERO).await;
}

/// A server on the loopback address that answers probes, its address, and how many it has answered.
async fn local_agent() -> (MockServer, u16) {
    let server = MockServer::start().await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(204)).mount(&server).await;
    let port = server.address().port();
    (server, port)
}

/// A heartbeat of two agents whose names nobody knows, and of a third one.
struct Beating {
    collector: Arc<Collector>,
    tasks: TaskSet,
    stop: CancellationToken,
}

impl Beating {
    const AGENTS: [&str; 3] = ["one", "two", "third"];

    fn start(third: String, pause: Duration) -> Self {
        let (collector, collecting) = new_collector(&Self::AGENTS, in_memory());
        let (tasks, stop) = (TaskSet::new(), CancellationToken::new());
        tasks.spawn("collector", collecting.run(stop.clone()));
        let unknown = |name: &str| format!("http://{name}.invalid:9090");
        let agents = [("one", unknown("one"), "t"), ("two", unknown("two"), "u"), ("third", third, "v")];
        let heartbeat = Heartbeat::new(support::config(&agents, &stop), collector.clone()).unwrap();
        tasks.spawn("heartbeat", heartbeat.every(pause).run(stop.clone()));
        Self { collector, tasks, stop }
    }

    fn online(&self) -> [Option<bool>; 3] {
        Self::AGENTS.map(|id| state_of(&self.collector.machine_records(), id).online)
    }

    async fn are_offline(&self) {
        eventually("the others are offline", || self.online() == [Some(false), Some(false), Some(true)])
            .await;
    }

    async fn stop(self) {
        self.stop.cancel();
        self.tasks.finish(Duration::ZERO).await;
    }
}

/// The warden's machine has lost its network or its resolver. An agent on the same machine still answers.
#[tokio::test]
async fn agents_whose_names_cannot_be_looked_up_are_not_offline_at_once_without_a_network() {
    let (server, port) = local_agent().await;
    let beating = Beating::start(format!("http://127.0.0.1:{port}"), Duration::from_secs(2));
    loop {
        let seen = beating.online();
        if server.received_requests().await.unwrap().len() >= 3 {
            break;
        }
        assert_eq!(seen[..2], [None, None], "before the third round");
        sleep(Duration::from_millis(20)).await;
    }
    beating.are_offline().await;
    beating.stop().await;
}

#[tokio::test]
async fn an_agent_whose_name_cannot_be_looked_up_is_offline_at_once_if_others_answer() {
    let (_server, port) = local_agent().await;
    // It leads to this machine, but not by a loopback address. There is no second round.
    let beating = Beating::start(format!("http://0.0.0.0:{port}"), Duration::from_hours(1));
    beating.are_offline().await;
    let reason = state_of(&beating.collector.machine_records(), "one").reason.clone().unwrap();
    assert!(reason.starts_with("cannot connect: "), "{reason}");
    beating.stop().await;
}

/// More agents than can be probed at once: each is probed in turn, and none is offline because it had to wait.
#[tokio::test]
async fn more_agents_than_can_be_probed_at_once_are_all_probed() {
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
                sleep(Duration::from_secs(1)).await;
                open.fetch_sub(1, Ordering::SeqCst);
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .await;
            });
        }
    });
    let ids: Vec<String> = (0..1500).map(|n| format!("agent-{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let (collector, collecting) = new_collector(&ids, in_memory());
    let stop = CancellationToken::new();
    tasks.spawn("collector", collecting.run(stop.clone()));
    let agents: Vec<_> = ids.iter().map(|id| (*id, url.clone(), "t")).collect();
    // With such a short interval, the probes start faster than they are answered.
    let heartbeat = Heartbeat::new(support::config(&agents, &stop), collector.clone()).unwrap();
    tasks.spawn("heartbeat", heartbeat.every(Duration::from_secs(1)).run(stop.clone()));
    eventually("all", || collector.machine_records().iter().all(|record| record.online.is_some())).await;
    assert!(collector.machine_records().iter().all(|record| record.online == Some(true)));
    assert_eq!(lines(&collector), Vec::<serde_json::Value>::new(), "no agent was reported as offline");
    assert!(most.load(Ordering::SeqCst) <= MAX_CONCURRENT, "{most:?}");
    stop.cancel();
    tasks.finish(Duration::ZERO).await;
}

/// An agent without a URL is offline if it has not polled for two minutes, counted from when it was configured.
#[tokio::test(start_paused = true)]
async fn a_newly_configured_agent_without_a_url_gets_time_to_poll() {
    let (collector, collecting) = new_collector(&["old", "new"], in_memory());
    let (tasks, stop) = (TaskSet::new(), CancellationToken::new());
    tasks.spawn("collector", collecting.run(stop.clone()));
    let config = |ids: &[&'static str]| {
        let agents: Vec<_> = ids.iter().map(|id| (*id, String::new(), "t")).collect();
        support::config(&agents, &stop).borrow().clone()
    };
    let active = watch::Sender::new(config(&["old"]));
    let heartbeat = Heartbeat::new(active.subscribe(), collector.clone()).unwrap();
    tasks.spawn("heartbeat", heartbeat.run(stop.clone()));
    let online = |id: &str| state_of(&collector.machine_records(), id).online;
    sleep(Duration::from_secs(100)).await;
    assert_eq!(online("old"), None);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(online("old"), Some(false));
    let records = collector.machine_records();
    assert_eq!(state_of(&records, "old").reason.as_deref(), Some("it has not polled for 120 s"));

    active.send_replace(config(&["old", "new"]));
    sleep(Duration::from_secs(100)).await;
    assert_eq!(online("new"), None, "it was configured 100 s ago");
    sleep(Duration::from_secs(100)).await;
    assert_eq!(online("new"), Some(false));
    stop.cancel();
    tasks.finish(Duration::ZERO).await;
}

/// The clock was set forward, or the machine with the warden was suspended: the polls seem older than they are.
#[tokio::test(start_paused = true)]
async fn a_leap_of_the_clock_makes_no_agent_offline() {
    let clock = Arc::new(SetClock::default());
    let retention = Retention { days: 90, bytes: 64 * 1024 * 1024 };
    let (collector, collecting) = Collector::new(in_memory(), ["polls".to_owned()], retention, clock.clone());
    let (tasks, stop) = (TaskSet::new(), CancellationToken::new());
    tasks.spawn("collector", collecting.run(stop.clone()));
    let agents = [("polls", String::new(), "t")];
    let heartbeat = Heartbeat::new(support::config(&agents, &stop), collector.clone()).unwrap();
    tasks.spawn("heartbeat", heartbeat.run(stop.clone()));
    let online = || state_of(&collector.machine_records(), "polls").online;
    for n in 0..20 {
        clock.set_seconds(n * 10);
        collector.record_poll("polls").await;
        sleep(Duration::from_secs(10)).await;
    }
    clock.set_seconds(200 + 600);
    sleep(Duration::from_secs(35)).await;
    assert_eq!(online(), Some(true));
    assert_eq!(lines(&collector), Vec::<serde_json::Value>::new());
    sleep(Duration::from_secs(150)).await;
    assert_eq!(online(), Some(false), "it has had the time for another poll");
    stop.cancel();
    tasks.finish(Duration::ZERO).await;
}

/// A warden's clock was ahead by a year while it received a poll, which all wardens know now.
#[tokio::test(start_paused = true)]
async fn a_poll_in_the_future_keeps_no_agent_online() {
    let clock = Arc::new(SetClock::default());
    let retention = Retention { days: 90, bytes: 64 * 1024 * 1024 };
    let ids = ["silent", "polls"].map(str::to_owned);
    let (collector, collecting) = Collector::new(in_memory(), ids, retention, clock.clone());
    let (tasks, stop) = (TaskSet::new(), CancellationToken::new());
    tasks.spawn("collector", collecting.run(stop.clone()));
    clock.set_hours(24 * 365);
    for agent in ["silent", "polls"] {
        collector.record_poll(agent).await;
    }
    collector.share_polls().await.unwrap();
    collector.record_poll("silent").await;
    clock.set_hours(0);
    collector.record_poll("polls").await;
    assert_eq!(collector.last_poll("silent"), None);
    let agents = [("silent", String::new(), "t"), ("polls", String::new(), "u")];
    let heartbeat = Heartbeat::new(support::config(&agents, &stop), collector.clone()).unwrap();
    tasks.spawn("heartbeat", heartbeat.run(stop.clone()));
    sleep(Duration::from_secs(200)).await;
    let records = collector.machine_records();
    assert_eq!(state_of(&records, "silent").online, Some(false));
    assert_eq!(state_of(&records, "polls").online, Some(true));
    let shared = String::from_utf8(collector.keep().value("polls").await.unwrap().value).unwrap();
    assert!(!shared.contains("silent") && shared.contains("polls"), "{shared}");
    stop.cancel();
    tasks.finish(Duration::ZERO).await;
}

/// The wardens' clocks differ by more than the time after which an agent without polls is offline.
#[tokio::test]
async fn a_poll_that_a_warden_whose_clock_is_ahead_received_counts() {
    let clocks = [Arc::new(SetClock::default()), Arc::new(SetClock::default())];
    let (keep, retention) = (in_memory(), Retention { days: 90, bytes: 64 * 1024 * 1024 });
    let warden =
        |clock: &Arc<SetClock>| Collector::new(keep.clone(), ["a".to_owned()], retention, clock.clone());
    let [(ahead, _), (other, mut task)] = [warden(&clocks[0]), warden(&clocks[1])];
    for (seconds, counts) in [(3599, true), (3600, false)] {
        clocks[0].set_seconds(seconds);
        ahead.record_poll("a").await;
        ahead.share_polls().await.unwrap();
        task.prepare().await;
        assert_eq!(other.last_poll("a").is_some(), counts, "{seconds}");
    }
}
