//! The agent's streams, metrics and API description, and its latency while registry and engine hang.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use contract_tests::{Agent, Config, Reply, Service, WAIT_LIMIT, request, unique_name, wait_for};
use evenkeel_common::testing::wait_for_async;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout_at;

/// A registry and an engine that accept connections and never respond.
struct HangingServers {
    folder: TempDir,
    registry: TcpListener,
    _engine: UnixListener,
}

impl HangingServers {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix(&unique_name("silence")).tempdir().expect("a folder");
        // The kernel accepts connections up to the backlog, and no thread reads from them.
        let engine = UnixListener::bind(folder.path().join("engine.sock")).expect("a socket");
        let registry = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self { folder, registry, _engine: engine }
    }

    fn agent(&self, services: usize) -> Agent {
        let services = (0..services).map(|n| {
            Service::idle(&format!("web-{n}"), self.folder.path())
                .set("images", vec![format!("web-{n}:latest")])
                .set("auto_update", true)
        });
        let config = Config::of(services)
            .registry(&self.registry.local_addr().expect("it is bound").to_string())
            .set("docker_health.check_interval", 5)
            .set("docker_health.timeout", 2);
        let engine = format!("unix://{}", self.folder.path().join("engine.sock").display());
        Agent::start(self.folder.path(), config, &[("DOCKER_HOST", &engine)])
    }
}

#[test]
fn the_api_answers_at_once_while_registry_and_engine_hang() {
    let servers = HangingServers::new();
    let agent = servers.agent(20);
    for n in 0..20 {
        assert_eq!(agent.request("POST", &format!("/trigger/web-{n}")).status, 200);
    }
    let paths = ["/status", "/status/web-3", "/health", "/audit", "/metrics", "/blocked", "/openapi.json"];
    let mut times = Vec::new();
    for round in 0..100 {
        for path in paths {
            let began = Instant::now();
            let reply = agent.request("GET", path);
            times.push(began.elapsed());
            assert!(matches!(reply.status, 200 | 503), "{round} {path}: {}", reply.text());
        }
    }
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 1000];
    println!(
        "API while registry and engine hang, {} requests on new connections: median {:?}, p99 {:?}, longest {:?}",
        times.len(),
        at(500),
        at(990),
        at(1000)
    );
    // Neither of the two ever answers, and an answer that waited for one of them would exceed the time limit of the request.
}

// --- metrics ---------------------------------------------------------------------------------------------

/// Returns Prometheus' promtool, where dist/test.sh installs it or from the path.
fn promtool() -> PathBuf {
    let brought = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/promtool");
    if brought.is_file() { brought } else { PathBuf::from("promtool") }
}

#[test]
fn promtool_accepts_the_metrics() {
    let servers = HangingServers::new();
    let agent = servers.agent(2);
    let reply = agent.request("GET", "/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let child = Command::new(promtool())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("promtool can be run; to get it: . dist/scripts/lib.sh && bring_promtool");
    child.stdin.take().unwrap().write_all(&reply.body).unwrap();
    let output = child.wait_with_output().unwrap();
    let complaints =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && complaints.is_empty(),
        "{}: {complaints}\n{}",
        output.status,
        reply.text()
    );
}

#[test]
fn the_metrics_show_an_engine_that_does_not_respond() {
    let servers = HangingServers::new();
    let agent = servers.agent(1);
    wait_for("the metrics to show the silent engine", || {
        let text = agent.request("GET", "/metrics").text();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.rsplit_once(' ')?.1.parse::<f64>().ok()
        };
        let down = value("docker_daemon_healthy ") == Some(0.0)
            && value("docker_daemon_consecutive_failures ") >= Some(1.0)
            && value("docker_daemon_checks_total ") >= Some(1.0);
        if down { Ok(()) } else { Err(text) }
    });
}

/// It has no series of its own, so an alert about it ends.
#[test]
fn the_metrics_show_that_a_channel_is_off_because_of_an_error() {
    let agent = Agent::without_engine("off", |folder| {
        Config::of([Service::idle("web", folder)])
            .set("notifications.discord.webhook_url", "$EVENKEEL_NO_SUCH_HOOK")
    });
    wait_for("the metrics to show that the channel is off", || {
        let text = agent.request("GET", "/metrics").text();
        if text.contains("\nevenkeel_channels_off 1\n") { Ok(()) } else { Err(text) }
    });
}

// --- description -----------------------------------------------------------------------------------------

#[test]
fn the_openapi_document_matches_the_endpoints() {
    let servers = HangingServers::new();
    let agent = servers.agent(1);
    let document = agent.request("GET", "/openapi.json");
    assert_eq!(document.header("content-type"), Some("application/json"));
    let document = document.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut named = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            named.insert(format!("{method} {path}"));
            if path == "/ui/events" || path == "/ui/stream" {
                continue;
            }
            let unknown = path.replace("{name}", "nobody");
            let reply = agent.request(&method, &unknown);
            let answered = operations[method.to_lowercase()]["responses"].as_object().unwrap();
            assert!(answered.contains_key(&reply.status.to_string()), "{method} {path}: {}", reply.status);
            if path.contains('{') {
                assert_eq!(reply.json()["error"], "no service named \"nobody\" is configured");
            }
        }
    }
    // Spec 4.1 with the additions of DECISIONS.
    for endpoint in [
        "POST /trigger",
        "POST /trigger/{name}",
        "GET /blocked",
        "DELETE /blocked/{name}",
        "POST /unblock/{name}",
        "GET /not-found",
        "GET /errored",
        "GET /status",
        "GET /status/{name}",
        "GET /audit",
        "GET /health",
        "GET /metrics",
        "POST /redeploy/{name}",
        "GET /ui/events",
        "GET /ui/stream",
        "GET /openapi.json",
        "POST /registry/events",
    ] {
        assert!(named.contains(endpoint), "{endpoint} is not among {named:?}");
    }
}

#[test]
fn every_reference_in_the_openapi_document_resolves() {
    let servers = HangingServers::new();
    let document = servers.agent(0).request("GET", "/openapi.json").json();
    let mut open = vec![&document];
    while let Some(value) = open.pop() {
        if let Some(target) = value.get("$ref").and_then(Value::as_str) {
            let pointer = target.strip_prefix('#').expect("it stays in the document");
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        match value {
            Value::Object(map) => open.extend(map.values()),
            Value::Array(list) => open.extend(list),
            _ => {}
        }
    }
}

// --- registry events -------------------------------------------------------------------------------------

#[test]
fn registry_events_get_202_for_any_body_and_any_host() {
    let servers = HangingServers::new();
    let agent = servers.agent(1);
    let post = |headers: &[(&str, &str)], body: &[u8]| -> Reply {
        request(agent.address(), "POST", "/registry/events", headers, body).unwrap()
    };
    let large = vec![b'['; 1024 * 1024];
    for body in [&b""[..], b"{", b"null", b"{\"events\":[1,{}]}", &[0xff, 0x00], &large] {
        assert_eq!(post(&[], body).status, 202);
    }
    assert_eq!(post(&[("Host", "registry.internal:5000")], b"{}").status, 202);
    assert_eq!(post(&[("Origin", "http://evil.test")], b"{}").status, 403);
    assert_eq!(post(&[], &vec![b'['; 1024 * 1024 + 1]).status, 413);
    let triggers = agent.audit().into_iter().filter(|entry| entry.event.as_str() == "manual_trigger").count();
    assert_eq!(triggers, 0);
}

// --- streams ---------------------------------------------------------------------------------------------

/// A client of an event stream.
struct Client {
    stream: TcpStream,
    text: Vec<u8>,
}

impl Client {
    /// Opens a stream from 127.0.0.`host`, because the number of streams per client address is limited.
    async fn open(agent: &str, path: &str, host: u8, headers: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("the client can work");
        socket.set_recv_buffer_size(4096).expect("the client can work");
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0))).expect("the client can work");
        let mut stream =
            socket.connect(agent.parse().expect("the client can work")).await.expect("the client can work");
        let head = format!("GET {path} HTTP/1.1\r\nHost: {agent}\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await.expect("the client can work");
        Self { stream, text: Vec::new() }
    }

    /// Opens the stream again after the last complete entry.
    async fn resume(&mut self, agent: &str, path: &str, host: u8) {
        let whole = self.text.windows(2).rposition(|two| two == b"\n\n").map_or(0, |at| at + 2);
        self.text.truncate(whole);
        let last = self.ids().last().map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        self.stream = Self::open(agent, path, host, &last).await.stream;
    }

    /// Reads until the received text contains `wanted`. Returns `false` if the stream ends, or if neither `wanted` nor another
    /// entry arrives in time.
    async fn read_until(&mut self, wanted: &str) -> bool {
        let mut deadline = tokio::time::Instant::now() + WAIT_LIMIT;
        let mut from = 0;
        loop {
            if contains(&self.text[from..], wanted) {
                return true;
            }
            let before = self.text.len();
            from = before.saturating_sub(wanted.len());
            if !self.read(deadline).await {
                return false;
            }
            if contains(&self.text[before..], "id: ") {
                deadline = tokio::time::Instant::now() + WAIT_LIMIT;
            }
        }
    }

    /// Reads once. Returns `false` if the stream has ended or nothing arrives before the deadline.
    async fn read(&mut self, deadline: tokio::time::Instant) -> bool {
        let mut part = vec![0; 16 * 1024];
        match timeout_at(deadline, self.stream.read(&mut part)).await {
            Ok(Ok(length)) if length > 0 => {
                self.text.extend_from_slice(&part[..length]);
                true
            }
            _ => false,
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    /// Returns the IDs of the complete audit frames.
    fn ids(&self) -> Vec<u64> {
        let text = self.text();
        let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
        whole.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect()
    }

    /// Returns the status code of the response.
    async fn status(&mut self) -> String {
        assert!(self.read_until("\r\n").await, "{}", self.text());
        self.text().split(' ').nth(1).unwrap_or_default().to_owned()
    }
}

/// Uses the search of the standard library: an unoptimised one takes most of a minute for the data of 150 clients.
fn contains(text: &[u8], wanted: &str) -> bool {
    String::from_utf8_lossy(text).contains(wanted)
}

/// Creates the runtime of the clients, which must not outlive it.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("the client can work")
}

#[test]
fn a_stream_replays_resumes_and_ends_with_the_agent() {
    let servers = HangingServers::new();
    let mut agent = servers.agent(1);
    let address = agent.address().to_owned();
    make_entries(&mut agent, 60);
    let runtime = runtime();
    let (clients, began) = runtime.block_on(async {
        let mut first = Client::open(&address, "/ui/events", 1, "").await;
        assert!(first.read_until("id: ").await);
        wait_ids(&mut first, 50).await;
        let ids = first.ids();
        assert!(first.text().contains("text/event-stream") && first.text().contains("x-accel-buffering: no"));
        assert!(!first.text().contains("event: "), "unnamed frames");

        // Reconnect after the tenth of these entries.
        let headers = format!("Last-Event-ID: {}\r\n", ids[9]);
        let mut again = Client::open(&address, "/ui/stream", 2, &headers).await;
        wait_ids(&mut again, 40).await;
        assert_eq!(again.ids()[0], ids[10]);
        // Read to the end of the frame.
        assert!(again.read_until("event: status\n").await && again.read_until("]}\n").await);
        let text = again.text();
        let frame = text.split("event: status\ndata: ").nth(1).unwrap().lines().next().unwrap();
        let frame: Value = serde_json::from_str(frame).unwrap();
        assert_eq!(frame["services"][0]["name"], "web-0", "{frame}");
        assert_eq!(frame.as_object().unwrap().len(), 2, "{frame}");
        assert_eq!(text.matches("event: epoch\ndata: \"").count(), 1, "{text}");
        (vec![first, again], Instant::now())
    });
    let status = agent.terminate();
    assert!(status.success(), "{status}");
    println!("two streams open: stopped within {:?}", began.elapsed());
    for client in &clients {
        let ids = client.ids();
        assert!(ids.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ids:?}");
    }
}

/// Makes the agent write entries, one per reload of its configuration.
fn make_entries(agent: &mut Agent, count: usize) {
    let written = |agent: &Agent| {
        agent.log().iter().filter(|line| line.0.contains("event=\"config_reloaded\"")).count()
    };
    for n in 1..=count {
        agent.reload(|_| {});
        wait_for("the configuration to be reloaded", || {
            let written = written(agent);
            if written >= n { Ok(()) } else { Err(format!("{written} of {n} entries")) }
        });
    }
}

async fn wait_ids(client: &mut Client, count: usize) {
    let deadline = tokio::time::Instant::now() + WAIT_LIMIT;
    while client.ids().len() < count {
        let read = client.read(deadline).await;
        assert!(read, "{} of {count} entries: {}", client.ids().len(), client.text());
    }
}

#[test]
fn too_many_streams_from_one_address_are_rejected_until_one_closes() {
    let servers = HangingServers::new();
    let agent = servers.agent(1);
    let address = agent.address().to_owned();
    runtime().block_on(async {
        let mut clients = Vec::new();
        for n in 0..32 {
            let path = if n % 2 == 0 { "/ui/events" } else { "/ui/stream" };
            let mut client = Client::open(&address, path, 1, "").await;
            assert_eq!(client.status().await, "200", "{n}");
            clients.push(client);
        }
        assert_eq!(Client::open(&address, "/ui/events", 1, "").await.status().await, "429");
        assert_eq!(Client::open(&address, "/ui/events", 2, "").await.status().await, "200");
        clients.pop();
        wait_for_async("the slot of a disconnected client to become free", async || {
            match Client::open(&address, "/ui/stream", 1, "").await.status().await.as_str() {
                "200" => Ok(()),
                other => Err(other.to_owned()),
            }
        })
        .await;
    });
}

#[test]
fn of_200_clients_50_do_not_read_and_no_other_misses_an_entry() {
    const ENTRIES: usize = 200;
    let servers = HangingServers::new();
    let mut agent = servers.agent(30);
    let address = agent.address().to_owned();
    let memory = |agent: &Agent| {
        let text = agent.request("GET", "/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        line.unwrap().parse::<f64>().unwrap()
    };
    let runtime = runtime();
    let mut clients = runtime.block_on(async {
        let mut clients = Vec::new();
        for n in 0..200_u8 {
            let path = if n % 2 == 0 { "/ui/events" } else { "/ui/stream" };
            let host = 2 + n / 25;
            clients.push((Client::open(&address, path, host, "").await, (path, host)));
        }
        for (client, _) in &mut clients {
            assert!(client.read_until("200 OK").await, "{}", client.text());
        }
        clients
    });
    let before = memory(&agent);
    let stalled = clients.split_off(150);
    let last = "\"message\":\"manual check of all services\"";
    let readers = runtime.spawn(async move {
        let mut tasks = tokio::task::JoinSet::new();
        for (mut client, (path, host)) in clients {
            let address = address.clone();
            tasks.spawn(async move {
                let mut done = client.read_until(last).await;
                // As a browser does. With a window as small as that of these clients, the kernel can end a connection after 60
                // seconds in which it was never empty (TCP_USER_TIMEOUT), which takes a busy machine.
                for _ in 0..5 {
                    if done {
                        break;
                    }
                    client.resume(&address, path, host).await;
                    done = client.read_until(last).await;
                }
                (done, client)
            });
        }
        tasks.join_all().await
    });
    make_entries(&mut agent, ENTRIES);
    agent.request("POST", "/trigger");
    let readers = runtime.block_on(readers).unwrap();
    assert_eq!(readers.len(), 150);
    for (done, client) in &readers {
        let text = client.text();
        assert!(*done && !text.contains(": missed"), "{text}");
        let ids = client.ids();
        assert!(ids.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ids:?}");
        assert_eq!(text.matches("\"event\":\"config_reloaded\"").count(), ENTRIES);
    }
    let after = memory(&agent);
    println!(
        "200 clients, 50 of them not reading: memory {:.1} MiB before, {:.1} MiB after {ENTRIES} entries",
        before / 1_048_576.0,
        after / 1_048_576.0
    );
    assert!(after - before < 64.0 * 1_048_576.0, "{before} to {after}");
    drop(stalled);
}
