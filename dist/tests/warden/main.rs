//! The shipped program as a warden: modes and exit codes, signals and restarts, and the `warden-config` wizard on a pipe and
//! on a terminal.

#![allow(clippy::unwrap_used)]

mod kills;
mod terminal;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use evenkeel_common::testing::{WAIT_LIMIT, unused_port, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

const PEOPLE: &str = "0123456789abcdef-people";
const AGENT: &str = "0123456789abcdef-agent";

fn evenkeel(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is built");
    // The program may exit before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("messages are text")
}

/// A warden as a process.
struct Warden {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Warden {
    fn start() -> Self {
        Self::of(&json!([{"id": "a", "url": "http://127.0.0.1:1", "token": "$AGENT"}]))
    }

    fn of(agents: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = unused_port();
        let config = json!({
            "api": {"address": [format!("127.0.0.1:{port}")], "token": "$PEOPLE", "state_path": folder.path().join("state/s")},
            "agents": agents,
        });
        fs::write(folder.path().join("warden.json"), config.to_string()).unwrap();
        let child = Self::spawn(folder.path());
        let warden = Self { child, port, folder };
        warden.wait();
        warden
    }

    fn spawn(folder: &Path) -> Child {
        Self::command(folder).spawn().expect("the program is built")
    }

    fn command(folder: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command
            .args(["--mode", "warden", "--config"])
            .arg(folder.join("warden.json"))
            .env_clear()
            .envs([("PEOPLE", PEOPLE), ("AGENT", AGENT)])
            .stderr(fs::File::create(folder.join("log")).unwrap());
        command
    }

    fn wait(&self) {
        self.eventually("the warden listens", |warden| {
            TcpStream::connect(("127.0.0.1", warden.port)).map(drop).map_err(|error| error.to_string())
        });
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn signal(&mut self, signal: &str) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let log = self.folder.path().join("log");
        wait_for("its end", || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status.code()),
            None => Err(fs::read_to_string(&log).unwrap()),
        })
    }

    fn send_hup(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }

    fn eventually(&self, what: &str, holds: impl Fn(&Self) -> Result<(), String>) {
        wait_for(what, || holds(self).map_err(|seen| format!("{seen}\n{}", self.log())));
    }

    /// Writes a configuration with these agents and this `api.token`, and waits until it is accepted or rejected.
    fn reload(&self, api_token: &str, agents: &Value) {
        let path = self.folder.path().join("warden.json");
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        config["api"]["token"] = json!(api_token);
        config["agents"] = agents.clone();
        let reloads = || {
            let log = self.log();
            log.matches("the configuration was reloaded").count()
                + log.matches("the new configuration is invalid").count()
        };
        let before = reloads();
        fs::write(&path, config.to_string()).unwrap();
        self.send_hup();
        self.eventually("the file is read", |_| {
            let count = reloads();
            if count > before { Ok(()) } else { Err(format!("{count} times")) }
        });
    }

    fn restart(&mut self) {
        self.child = Self::spawn(self.folder.path());
        self.wait();
    }

    fn stream(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn ask(&self, request: &str) -> String {
        let mut answer = String::new();
        self.stream(request).read_to_string(&mut answer).unwrap();
        answer
    }

    fn post(&self, token: &str, seq: u64) -> String {
        post(self.port, token, seq).expect("an answer")
    }

    fn machine(&self) -> Value {
        self.machines()[0].clone()
    }

    fn machines(&self) -> Value {
        let answer = self.ask(&format!(
            "GET /machines HTTP/1.1\r\nhost: w\r\nconnection: close\r\ncookie: token={PEOPLE}\r\n\r\n"
        ));
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one entry; `None` if there is no response.
fn post(port: u16, token: &str, seq: u64) -> Option<String> {
    let body = json!({
        "timestamp": "2026-01-02T03:04:05Z", "service": "web", "event": "updated", "message": format!("entry {seq}"),
        "level": "info", "seq": seq,
    })
    .to_string();
    let length = body.len();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(WAIT_LIMIT)).ok()?;
    stream.write_all(format!("POST /ingest HTTP/1.1\r\nhost: w\r\nconnection: close\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    (!answer.is_empty()).then_some(answer)
}

fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains(wanted) {
        let count = stream.read(&mut buffer).unwrap_or_else(|error| panic!("{wanted:?}: {error}; {seen}"));
        assert!(count > 0, "ended before {wanted:?}: {seen}");
        seen += &String::from_utf8_lossy(&buffer[..count]);
    }
    seen
}

#[test]
fn a_warden_keeps_its_data_across_sigterm_and_sigkill() {
    let mut warden = Warden::start();
    for seq in [1, 2, 4] {
        assert!(warden.post(AGENT, seq).starts_with("HTTP/1.1 200"), "{}", warden.log());
    }
    assert!(warden.post("wrong", 3).starts_with("HTTP/1.1 401"));
    let mut stream = warden.stream(&format!("GET /events?token={PEOPLE} HTTP/1.1\r\nhost: w\r\n\r\n"));
    let replay = read_until(&mut stream, "entry 4");
    let id = replay.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    let start = Instant::now();
    assert_eq!(warden.signal("-TERM"), Some(0), "{}", warden.log());
    assert!(start.elapsed() < Duration::from_secs(30), "an open stream does not delay the shutdown");
    assert_eq!(stream.read_to_string(&mut String::new()).ok(), Some(end_length()));

    warden.restart();
    let machine = warden.machine();
    assert_eq!((&machine["missing"], &machine["last_seq"]), (&json!(1), &json!(4)), "{machine}");
    warden.post(AGENT, 4);
    warden.post(AGENT, 3);
    // The browser reconnects with its last event id: no gaps or duplicates across the restart.
    let mut stream = warden
        .stream(&format!("GET /events?token={PEOPLE} HTTP/1.1\r\nhost: w\r\nlast-event-id: {id}\r\n\r\n"));
    let more = read_until(&mut stream, "entry 3");
    assert!(!more.contains("entry 4"), "{more}");
    assert_eq!(warden.machine()["missing"], 0);

    // Acknowledged entries survive SIGKILL.
    warden.signal("-KILL");
    warden.restart();
    assert_eq!(warden.machine()["counts_by_level"]["info"], 4);
    assert!(!warden.log().contains(PEOPLE) && !warden.log().contains(AGENT));

    // A damaged file is moved aside and reported.
    assert_eq!(warden.signal("-INT"), Some(0));
    fs::write(warden.folder.path().join("state/s/warden.redb"), "no database").unwrap();
    warden.restart();
    assert_eq!(warden.machine()["counts_by_level"]["info"], 0);
    assert!(warden.log().contains("STATE DAMAGED"), "{}", warden.log());
    let kept = fs::read_dir(warden.folder.path().join("state/s"))
        .unwrap()
        .filter_map(|file| file.ok()?.file_name().into_string().ok());
    assert_eq!(kept.filter(|name| name.starts_with("warden.redb.damaged-")).count(), 1);
}

#[test]
fn a_reload_replaces_agents_and_tokens_and_keeps_entries_and_streams() {
    const OTHER: &str = "0123456789abcdef-other";
    let warden = Warden::start();
    let agent = |id: &str, token: &str| json!({"id": id, "url": "http://127.0.0.1:1", "token": token});
    let code = |answer: String| answer.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(code(warden.post(AGENT, 1)), "200");
    let follow = format!("GET /events?token={PEOPLE} HTTP/1.1\r\nhost: w\r\n\r\n");
    let mut stream = warden.stream(&follow);
    read_until(&mut stream, "entry 1");

    warden.reload("$PEOPLE", &json!([agent("b", OTHER), agent("a", "$AGENT")]));
    assert_eq!(code(warden.post(OTHER, 2)), "200", "a new agent");
    read_until(&mut stream, "\"agent\":\"b\"}");
    assert_eq!(code(warden.post(AGENT, 3)), "200");
    read_until(&mut stream, "entry 3");
    warden.eventually("the new agent gets a heartbeat", |warden| {
        let machine = warden.machine();
        if machine["id"] == "b" && machine["online"] == false { Ok(()) } else { Err(machine.to_string()) }
    });

    warden.reload("$PEOPLE", &json!([agent("a", OTHER)]));
    let machine = warden.machine();
    assert_eq!((&machine["last_seq"], &machine["missing"]), (&json!(3), &json!(1)), "a is still known");
    assert_eq!(code(warden.post(AGENT, 4)), "401", "a removed token");
    assert_eq!(code(warden.post(OTHER, 5)), "200");
    read_until(&mut stream, "entry 5");

    // An invalid file changes nothing.
    warden.reload("$NOPE", &json!([agent("a", AGENT)]));
    assert!(warden.log().contains("api.token: the environment variable NOPE is not set"), "{}", warden.log());
    assert_eq!(code(warden.post(OTHER, 6)), "200");
    read_until(&mut stream, "entry 6");

    // Clients with a removed token are disconnected; others stay connected.
    warden.reload("0123456789abcdef-new-people", &json!([agent("a", OTHER)]));
    // The last chunk of the chunked coding; the connection may stay open.
    read_until(&mut stream, "0\r\n\r\n");
    assert!(warden.ask(&follow.replace("host", "connection: close\r\nhost")).starts_with("HTTP/1.1 401"));
    let follow = follow.replace(PEOPLE, "0123456789abcdef-new-people");
    read_until(&mut warden.stream(&follow), "entry 6");
    assert!(!warden.log().contains(OTHER) && !warden.log().contains(AGENT), "{}", warden.log());
}

#[test]
fn a_second_warden_on_the_same_state_is_rejected() {
    let mut warden = Warden::start();
    warden.post(AGENT, 1);
    let second = tempfile::tempdir().unwrap();
    let mut config: Value =
        serde_json::from_str(&fs::read_to_string(warden.folder.path().join("warden.json")).unwrap()).unwrap();
    let port = unused_port();
    config["api"]["address"] = json!([format!("127.0.0.1:{port}")]);
    // The same folder under another name.
    let link = second.path().join("link");
    std::os::unix::fs::symlink(warden.folder.path().join("state/s"), &link).unwrap();
    config["api"]["state_path"] = json!(link);
    fs::write(second.path().join("warden.json"), config.to_string()).unwrap();
    let status = Warden::command(second.path()).status().unwrap();
    let said = fs::read_to_string(second.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("state/s is in use by another warden"), "{said}");
    assert!(warden.post(AGENT, 2).starts_with("HTTP/1.1 200"), "the first one keeps running");
    // The lock is released with the process, even after SIGKILL.
    warden.signal("-KILL");
    warden.restart();
}

#[test]
fn the_service_manager_is_notified_by_the_warden() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let (messages, received) = std::sync::mpsc::channel();
    // Read all the time: while the socket's queue is full, messages are lost.
    std::thread::spawn(move || {
        let mut buffer = [0; 500];
        while let Ok(count) = manager.recv(&mut buffer) {
            if messages.send(String::from_utf8_lossy(&buffer[..count]).into_owned()).is_err() {
                break;
            }
        }
    });
    let receive = || received.recv_timeout(Duration::from_mins(1)).expect("a message in time");
    let receive_other = || loop {
        let message = receive();
        if message != "WATCHDOG=1\n" {
            return message;
        }
    };
    let mut warden = Warden::start();
    warden.signal("-TERM");
    let mut command = Warden::command(warden.folder.path());
    warden.child = command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000").spawn().unwrap();
    assert_eq!(receive_other(), "READY=1\nSTATUS=listening to 1 agent\n");
    for _ in 0..3 {
        assert_eq!(receive(), "WATCHDOG=1\n");
    }
    warden.reload("$PEOPLE", &json!([]));
    assert!(receive_other().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(receive_other(), "READY=1\nSTATUS=listening to 0 agents\n");
    warden.reload("$NOPE", &json!([]));
    assert!(receive_other().starts_with("RELOADING=1"));
    assert_eq!(
        receive_other(),
        "READY=1\nSTATUS=listening to 0 agents; the file has errors and is not active\n"
    );
    assert_eq!(warden.signal("-TERM"), Some(0));
    assert_eq!(receive_other(), "STOPPING=1\nWATCHDOG=1\nSTATUS=stopping\n");
}

/// Number of bytes at the end of a properly terminated stream.
fn end_length() -> usize {
    // The last chunk of the chunked coding.
    "0\r\n\r\n".len()
}

#[test]
fn an_offline_agent_is_reported() {
    let warden = Warden::start();
    let mut stream = warden.stream(&format!("GET /events?token={PEOPLE} HTTP/1.1\r\nhost: w\r\n\r\n"));
    let seen = read_until(&mut stream, "agent_offline");
    assert!(seen.contains(r#""machine":"a","service":"warden","event":"agent_offline""#), "{seen}");
    assert_eq!(warden.machine()["online"], false);
}

#[test]
fn configuration_errors_exit_with_78_and_a_port_in_use_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.json");
    let shown = path.to_str().unwrap();
    let write = |tree: Value| fs::write(&path, tree.to_string()).unwrap();
    write(
        json!({"api": {"token": "$NOT_SET", "port": "0"}, "agents": [{"id": "a", "url": "x", "token": ""}]}),
    );
    for arguments in
        [&["--mode", "warden", "--config", shown][..], &["--mode", "warden", "--check", "--config", shown]]
    {
        let output = evenkeel(arguments, "");
        assert_eq!(output.status.code(), Some(78));
        assert_eq!(
            text(output.stderr),
            format!(
                "{shown}: api.port: \"0\"; allowed: a port from 1 to 65535\n\
                 {shown}: api.token: the environment variable NOT_SET is not set\n\
                 {shown}: warning: agents[0].token: is empty; allowed: a string that is not empty (the agent is left out)\n\
                 {shown}: warning: agents[0].url: is not a base URL; allowed: http://host:port or https://host:port, optionally with a path, without a query (the agent is not probed)\n"
            )
        );
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    write(json!({"api": {"token": PEOPLE, "address": [address]}}));
    let good = evenkeel(&["--mode", "warden", "--check", "--config", shown], "");
    assert_eq!(good.status.code(), Some(0));
    assert!(text(good.stderr).ends_with("valid; warnings: 1; agents: 0\n"));
    let output = evenkeel(&["--mode", "warden", "--config", shown], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(output.stderr).contains(&format!("cannot listen on {address}")));
    let default = evenkeel(&["--mode", "warden", "--check"], "");
    assert!(text(default.stderr).starts_with("/etc/evenkeel/warden.json: "), "each mode has its own file");
}

#[test]
fn a_check_reads_the_variables_of_the_unit_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("warden.json");
    let shown = path.to_str().unwrap();
    let variables = folder.path().join("warden.env");
    let config = json!({
        "api": {"token": "$WARDEN_TOKEN", "state_path": folder.path()},
        "agents": [{"id": "a", "token": AGENT}],
    });
    fs::write(&path, config.to_string()).unwrap();
    let check = || {
        let output = evenkeel(&["--mode", "warden", "--check", "--config", shown], "");
        (output.status.code(), text(output.stderr))
    };
    let missing = format!("{shown}: api.token: the environment variable WARDEN_TOKEN is not set\n");
    for comments in ["", "#WARDEN_TOKEN=\n"] {
        fs::write(&variables, comments).unwrap();
        assert_eq!(check(), (Some(78), missing.clone()), "{comments:?}");
    }
    fs::write(&variables, format!("# its token\nWARDEN_TOKEN=\"{PEOPLE}\"\n")).unwrap();
    let note = format!("note: variables that are not set here are read from {}", variables.display());
    let (code, said) = check();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&note) && said.ends_with("valid; warnings: 0; agents: 1\n"), "{said}");
    // The warden itself gets its variables from the unit.
    let output = evenkeel(&["--mode", "warden", "--config", shown], "");
    assert_eq!((output.status.code(), text(output.stderr)), (Some(78), missing.clone()));
    fs::remove_file(&variables).unwrap();
    fs::create_dir(&variables).unwrap();
    let unusable = format!("evenkeel-warden: {} is not used: is a directory", variables.display());
    let (code, said) = check();
    assert!(code == Some(78) && said.starts_with(&unusable) && said.ends_with(&missing), "{said}");
}

#[test]
fn the_wizard_works_on_a_pipe_and_its_file_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/warden.json");
    let shown = path.to_str().unwrap();
    let state = folder.path().join("state/s.json");
    let answers = format!(
        "127.0.0.1:1\n1\nhttp://warden.example\n{}\ny\nweb-1\n10.0.0.5:9090\n1\nn\n7\n",
        state.display()
    );
    for cut in [0, 20, answers.len() - 3] {
        let output = evenkeel(&["warden-config", "--config", shown], &answers[..cut]);
        assert_eq!(output.status.code(), Some(1));
        assert!(!path.exists(), "cut at {cut}");
    }
    let output = evenkeel(&["warden-config", "--config", shown], &answers);
    let said = text(output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let check = evenkeel(&["--mode", "warden", "--check", "--config", shown], "");
    assert_eq!(text(check.stderr), format!("{shown}: valid; warnings: 0; agents: 1\n"));
    // The block to paste is valid for the agent.
    let block = said.split_once("configuration. The token is not shown again.\n\n").unwrap().1;
    let block = block.split_once("\n  }\n").unwrap().0;
    let agent = folder.path().join("agent.json");
    fs::write(&agent, format!("{{\n{block}\n  }}\n}}")).unwrap();
    let check = evenkeel(&["--check", "--config", agent.to_str().unwrap()], "");
    assert!(text(check.stderr).contains("valid; warnings: 0; watching nothing"));
    let token =
        serde_json::from_str::<Value>(&fs::read_to_string(&agent).unwrap()).unwrap()["push"]["token"].clone();
    let file: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(file["agents"][0]["token"], token);
}
