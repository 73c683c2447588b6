//! The shipped program as agent and warden: nothing is lost if both are killed, or if the warden's store is unavailable.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_common::testing::{WAIT_LIMIT, unused_port, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

const PEOPLE: &str = "0123456789abcdef-people";
const AGENT: &str = "0123456789abcdef-agent";

/// More than a test triggers in a second.
const SERVICES: usize = 40;

struct Fleet {
    folder: TempDir,
    warden_port: u16,
    agent_port: u16,
    running: Vec<Child>,
    /// Which service is triggered next.
    next: Cell<usize>,
}

impl Fleet {
    fn new() -> Self {
        Self::with_store(&json!({}))
    }

    fn with_store(store: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (warden_port, agent_port) = (unused_port(), unused_port());
        let path = |name: &str| folder.path().join(name);
        let warden = json!({
            "api": { "address": [format!("127.0.0.1:{warden_port}")], "token": PEOPLE, "state_path": path("warden") },
            "agents": [{ "id": "home", "url": format!("http://127.0.0.1:{agent_port}"), "token": AGENT }],
            "store": store,
        });
        fs::write(path("warden.json"), warden.to_string()).unwrap();
        fs::write(path("compose.yml"), "services: {}\n").unwrap();
        let agent = json!({
            "api": { "address": [format!("127.0.0.1:{agent_port}")] },
            "registry": { "url": "http://127.0.0.1:9", "poll_interval": 3600 },
            "audit": { "path": path("audit.jsonl") },
            "state": { "path": path("state") },
            "push": { "warden_url": format!("http://127.0.0.1:{warden_port}"), "token": AGENT, "machine_id": "home" },
            "services": (0..SERVICES).map(|n| json!({ "name": format!("web-{n}"), "images": ["web:1"],
                "auto_update": true, "compose_project": format!("evenkeel-none-{n}"),
                "compose_files": [path("compose.yml")] })).collect::<Vec<_>>(),
        });
        fs::write(path("agent.json"), agent.to_string()).unwrap();
        Self { folder, warden_port, agent_port, running: Vec::new(), next: Cell::default() }
    }

    fn start(&mut self, mode: &str) -> usize {
        let path = |name: &str| self.folder.path().join(name);
        let child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .args(["--mode", mode, "--config"])
            .arg(path(&format!("{mode}.json")))
            .env_clear()
            .env("DOCKER_HOST", format!("unix://{}", path("no-engine.sock").display()))
            .stdin(Stdio::null())
            .stderr(fs::File::options().create(true).append(true).open(path("log")).unwrap())
            .spawn()
            .unwrap();
        self.running.push(child);
        let port = if mode == "agent" { self.agent_port } else { self.warden_port };
        self.wait(&format!("{mode} is ready"), |_| {
            ask(port, "GET", "/health").is_some_and(|health| health["status"] != "starting")
        });
        self.running.len() - 1
    }

    fn kill(&mut self, which: usize) {
        self.running[which].kill().unwrap();
        self.running[which].wait().unwrap();
    }

    /// Makes the agent record an entry. Requests for one service within a second are joined.
    fn trigger(&self) {
        let next = self.next.get();
        self.next.set(next + 1);
        let path = format!("/trigger/web-{}", next % SERVICES);
        assert!(ask(self.agent_port, "POST", &path).is_some());
    }

    /// The entries in the agent's audit file.
    fn audited(&self) -> Vec<Value> {
        lines(&self.folder.path().join("audit.jsonl"))
    }

    /// The warden's record of the agent.
    fn machine(&self) -> Option<Value> {
        ask(self.warden_port, "GET", &format!("/machines?token={PEOPLE}"))?.as_array()?.first().cloned()
    }

    fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        wait_for(what, || {
            if condition(self) {
                return Ok(());
            }
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            Err(format!("{:?}\n{log}", self.machine()))
        });
    }

    /// Waits until the warden has as many entries as the agent's file, at least one, and none is missing.
    fn wait_complete(&self) {
        self.wait("the warden has everything", |fleet| {
            let Some(machine) = fleet.machine() else { return false };
            let counts = machine["counts_by_level"].as_object().cloned().unwrap_or_default();
            let counted: u64 = counts.values().filter_map(Value::as_u64).sum();
            machine["last_seq"].is_u64() && counted == fleet.audited().len() as u64 && machine["missing"] == 0
        });
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A dedicated PostgreSQL server, stopped on drop.
struct Database {
    child: Child,
    control: Option<(ChildStdin, BufReader<ChildStdout>)>,
    port: String,
}

impl Database {
    fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/postgres.sh");
        let mut child =
            Command::new(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect(script);
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut database = Self { child, control: Some((input, output)), port: String::new() };
        let line = database.read();
        let (port, _) = line.split_once(' ').expect("PostgreSQL did not start; see the requirements above");
        port.clone_into(&mut database.port);
        database
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.control.as_mut().unwrap().1.read_line(&mut line).unwrap();
        line
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.control.as_mut().unwrap().0, "{command}").unwrap();
        assert_eq!(self.read(), "ok\n", "{command}");
    }

    fn url(&self) -> String {
        format!("postgres://evenkeel:secret@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.control = None;
        let _ = self.child.wait();
    }
}

/// How long the store is unavailable, in seconds: `$EVENKEEL_TEST_SECONDS`.
fn seconds() -> u64 {
    std::env::var("EVENKEEL_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The JSON response of a daemon; `null` if the response is not JSON.
fn ask(port: u16, method: &str, path: &str) -> Option<Value> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    socket.read_to_string(&mut text).ok()?;
    let (_, body) = text.split_once("\r\n\r\n")?;
    Some(serde_json::from_str(body).unwrap_or_default())
}

#[test]
fn nothing_is_missing_at_the_warden_after_both_were_killed() {
    let mut fleet = Fleet::new();
    // The agent starts first, so its entries wait.
    let mut agent = fleet.start("agent");
    for _ in 0..10 {
        fleet.trigger();
    }
    let warden = fleet.start("warden");
    fleet.wait_complete();

    // The warden is killed; the agent continues and is then killed as well.
    fleet.kill(warden);
    for _ in 0..10 {
        fleet.trigger();
    }
    fleet.wait("the file has the entries", |fleet| {
        fleet.audited().iter().filter(|entry| entry["event"] == "manual_trigger").count() == 20
    });
    fleet.kill(agent);
    agent = fleet.start("agent");
    for _ in 0..5 {
        fleet.trigger();
    }
    fleet.start("warden");
    fleet.wait_complete();

    fleet.kill(agent);
}

/// dist/test.sh skips this module by its name if there is no PostgreSQL.
mod postgres {
    use super::*;

    #[test]
    fn while_the_wardens_store_is_away_the_agent_keeps_everything() {
        let mut database = Database::start();
        let mut fleet = Fleet::with_store(&json!({ "url": database.url() }));
        fleet.start("warden");
        fleet.start("agent");
        fleet.trigger();
        fleet.wait_complete();
        let before = fleet.machine().unwrap()["last_seq"].as_u64().unwrap();

        database.tell("stop");
        let start = Instant::now();
        let mut triggers = 0;
        while start.elapsed() < Duration::from_secs(seconds()) {
            fleet.trigger();
            triggers += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        fleet.wait("the warden says that its store is away", |fleet| {
            ask(fleet.warden_port, "GET", "/health").is_some_and(|health| health["store"] == "away")
        });
        // An entry of the last check may have arrived in between.
        let shown = fleet.machine().unwrap()["last_seq"].as_u64().unwrap();
        assert!((before..before + triggers).contains(&shown), "shown: {shown}, before: {before}");
        fleet.trigger();
        assert_eq!(fleet.machine().unwrap()["last_seq"], shown, "it shows the state from before the outage");
        triggers += 1;

        database.tell("start");
        fleet.wait_complete();
        let last = fleet.machine().unwrap()["last_seq"].as_u64().unwrap();
        assert!(last >= before + triggers, "{last} after {triggers} triggers, {before} before");
    }
}
