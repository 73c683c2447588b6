//! The shipped program as a service: signals, reload, and service manager notifications (DECISIONS 2, DOMAIN 9).
//! No container engine is needed: the agent must start and stop without one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod disk;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use evenkeel_common::testing::{WAIT_LIMIT, unused_port, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const AGENT: &str = env!("CARGO_BIN_EXE_evenkeel");

/// A running agent with its own files.
struct Daemon {
    folder: TempDir,
    port: u16,
    child: Child,
}

impl Daemon {
    /// Starts the agent with these services and waits until they are loaded.
    fn start(services: &Value, environment: &[(&str, &str)]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), services, environment)
    }

    /// The same in an existing folder.
    fn start_in(folder: TempDir, services: &Value, environment: &[(&str, &str)]) -> Self {
        let mut daemon = Self::begin(folder, services, environment);
        daemon.wait_loaded();
        daemon
    }

    /// The same without waiting.
    fn begin(folder: TempDir, services: &Value, environment: &[(&str, &str)]) -> Self {
        Self::begin_as(Command::new(AGENT), folder, services, environment)
    }

    /// The same with a command that becomes the agent.
    fn begin_as(
        mut command: Command,
        folder: TempDir,
        services: &Value,
        environment: &[(&str, &str)],
    ) -> Self {
        let port = unused_port();
        let path = folder.path().join("config.json");
        fs::write(&path, config(&folder, port, services).to_string()).unwrap();
        let child = command
            .arg("--config")
            .arg(&path)
            .env_clear()
            .env("DOCKER_HOST", format!("unix://{}/no-engine.sock", folder.path().display()))
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { folder, port, child }
    }

    /// Its files, for another start after this one has ended.
    fn into_folder(mut self) -> TempDir {
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }

    fn wait_loaded(&mut self) {
        self.wait("it is loaded", |d| d.get("/health").is_some_and(|health| health["status"] != "starting"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, config: &str) {
        fs::write(self.path("config.json"), config).unwrap();
    }

    fn write_services(&self, services: &Value) {
        self.write(&config(&self.folder, self.port, services).to_string());
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Head and body of a response; `None` if the agent is not listening.
    fn ask(&self, method: &str, path: &str) -> Option<(String, String)> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        write!(socket, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        socket.read_to_string(&mut text).ok()?;
        text.split_once("\r\n\r\n").map(|(head, body)| (head.to_lowercase(), body.to_owned()))
    }

    /// The JSON response of a path; `None` if the agent is not listening.
    fn get(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&self.ask("GET", path)?.1).ok()
    }

    fn names(&self) -> Vec<String> {
        let status = self.get("/status").unwrap_or_default();
        let services = status["services"].as_array().cloned().unwrap_or_default();
        services.iter().map(|service| service["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The newest audit entry of a kind.
    fn entry(&self, kind: &str) -> Option<Value> {
        self.get("/audit")?.as_array()?.iter().find(|entry| entry["event"] == kind).cloned()
    }

    fn wait(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        wait_for(what, || {
            if condition(self) {
                return Ok(());
            }
            let exited = self.child.try_wait().unwrap();
            assert!(exited.is_none(), "the agent exited before: {what} ({exited:?})\n{}", self.log());
            Err(self.log())
        });
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    fn wait_for_end(&mut self) -> ExitStatus {
        let log = self.path("log");
        wait_for("its end", || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err(fs::read_to_string(&log).unwrap()),
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(folder: &TempDir, port: u16, services: &Value) -> Value {
    json!({
        "api": { "address": [format!("127.0.0.1:{port}")] },
        "audit": { "path": folder.path().join("audit.jsonl") },
        "state": { "path": folder.path().join("state") },
        "services": services,
    })
}

fn service(name: &str) -> Value {
    json!({ "name": name, "container_name": name })
}

#[test]
fn a_reload_adds_changes_and_removes_services() {
    let mut daemon = Daemon::start(&json!([service("a"), service("b"), service("c")]), &[]);
    assert_eq!(daemon.names(), ["a", "b", "c"]);
    let mut changed = service("b");
    changed["auto_heal"] = json!(true);
    daemon.write_services(&json!([service("d"), changed, service("a"), { "name": "bad name" }]));
    daemon.signal(Signal::HUP);
    daemon.wait("the file is in force", |d| d.entry("config_reloaded").is_some());

    assert_eq!(daemon.names(), ["d", "b", "a"]);
    assert_eq!(daemon.get("/status/b").unwrap()["auto_heal"], true);
    assert!(daemon.get("/status/c").unwrap()["error"].as_str().unwrap().contains("\"c\""));
    let entry = daemon.entry("config_reloaded").unwrap();
    // One of the services is left out.
    assert_eq!((&entry["service"], &entry["level"]), (&json!("evenkeel"), &json!("warning")));
    assert_eq!(
        entry["message"],
        "the configuration was reloaded: 1 services added, 1 changed, 1 removed, 1 untouched"
    );
    let reason = entry["reason"].as_str().unwrap();
    assert!(reason.starts_with("added: d; changed: b; removed: c; services[3] is not watched: "), "{reason}");
    let warnings = daemon.get("/health").unwrap()["config_warnings"].to_string();
    assert!(warnings.contains("bad name"), "{warnings}");

    daemon.write_services(&json!([]));
    daemon.signal(Signal::HUP);
    daemon.wait("all are gone", |d| d.names().is_empty());
    daemon.wait("so are the warnings", |d| d.get("/health").unwrap().get("config_warnings").is_none());
}

#[test]
fn a_reload_names_the_variables_of_the_unit_that_have_changed_since_the_start() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("agent.env"), "A=first\nB=1\n").unwrap();
    let mut daemon = Daemon::start_in(folder, &json!([]), &[("A", "first"), ("B", "1")]);
    fs::write(daemon.path("agent.env"), "A=second\nB=1\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait("the reload is recorded", |d| d.entry("config_reloaded").is_some());
    let entry = daemon.entry("config_reloaded").unwrap();
    let path = daemon.path("agent.env");
    let expected = format!("changed in {}, which needs a restart: $A", path.display());
    assert_eq!((&entry["level"], entry["reason"].as_str()), (&json!("warning"), Some(expected.as_str())));
    let warnings = daemon.get("/health").unwrap()["config_warnings"].to_string();
    assert!(warnings.contains(&expected), "{warnings}");

    fs::write(&path, "A=first\nB=1\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait("the warning is gone", |d| d.get("/health").unwrap().get("config_warnings").is_none());
}

#[test]
fn a_start_that_leaves_something_out_is_a_warning_that_says_what_and_why() {
    let mut daemon = Daemon::start(
        &json!([service("a"), { "name": "blog", "compose_files": ["/nonexistent/c.yml"] }]),
        &[],
    );
    daemon.wait("the start is recorded", |d| d.entry("started").is_some());
    let entry = daemon.entry("started").unwrap();
    assert_eq!((&entry["level"], &entry["message"]), (&json!("warning"), &json!("watching 1 service")));
    let reason = entry["reason"].as_str().unwrap();
    assert!(reason.starts_with("blog is not watched: compose_files[0]: \"/nonexistent/c.yml\""), "{reason}");

    let mut whole = Daemon::start(&json!([service("a")]), &[]);
    whole.wait("the start is recorded", |d| d.entry("started").is_some());
    let entry = whole.entry("started").unwrap();
    assert_eq!((&entry["level"], entry["reason"].as_str()), (&json!("info"), None));
}

/// Creates a compose in `folder` that blocks on the version query, which the agent sends while it loads, until there is a
/// file `go`. Returns the `PATH` to use.
fn blocking_compose(folder: &TempDir) -> String {
    let path = folder.path().display();
    let script = format!(
        "#!/bin/sh\nwhile [ ! -e {path}/go ]; do sleep 0.05; done\necho 'Docker Compose version v2.30.0'\n"
    );
    fs::write(folder.path().join("docker"), script).unwrap();
    fs::set_permissions(folder.path().join("docker"), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{path}:/usr/bin:/bin")
}

#[test]
fn the_api_responds_before_the_services_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let notify = folder.path().join("notify.sock");
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_nonblocking(true).unwrap();
    let mut buffer = [0; 500];
    let path = blocking_compose(&folder);
    let compose = folder.path().join("compose.yml");
    fs::write(&compose, "services: {}").unwrap();
    let service = |n| json!({ "name": format!("s{n}"), "compose_project": format!("p{n}"), "compose_files": [compose] });
    let services: Vec<Value> = (0..300).map(service).collect();
    let environment = [("PATH", &*path), ("NOTIFY_SOCKET", notify.to_str().unwrap())];
    let mut daemon = Daemon::begin(folder, &json!(services), &environment);
    daemon.wait("it answers", |d| d.get("/health").is_some());

    let (head, body) = daemon.ask("GET", "/health").unwrap();
    assert!(head.starts_with("http/1.1 503") && head.contains("retry-after: 1"), "{head}");
    assert_eq!(body, r#"{"status":"starting"}"#);
    for path in ["/", "/ui", "/metrics", "/openapi.json", "/audit"] {
        let (head, _) = daemon.ask("GET", path).unwrap();
        assert!(head.starts_with("http/1.1 200") || head.starts_with("http/1.1 302"), "{path}: {head}");
    }
    for request in [
        "GET /status",
        "GET /status/s1",
        "GET /why/s1",
        "GET /blocked",
        "GET /not-found",
        "GET /errored",
        "GET /ui/events",
        "GET /ui/stream",
        "POST /trigger/s1",
        "POST /redeploy/s1",
        "POST /unblock/s1",
    ] {
        let (method, path) = request.split_once(' ').unwrap();
        let (head, body) = daemon.ask(method, path).unwrap();
        assert!(head.starts_with("http/1.1 503") && head.contains("retry-after: 1"), "{request}: {head}");
        assert!(body.contains("the agent is starting"), "{request}: {body}");
    }
    assert!(manager.recv(&mut buffer).is_err(), "it is not ready");

    // Requests that do not need a service are kept until the services are loaded.
    assert!(daemon.ask("POST", "/trigger").unwrap().0.starts_with("http/1.1 200"));
    fs::write(daemon.path("go"), "").unwrap();
    daemon.wait_loaded();
    assert_eq!(daemon.names().len(), 300);
    assert!(daemon.get("/status").unwrap().get("starting").is_none());
    let length = manager.recv(&mut buffer).unwrap();
    assert_eq!(String::from_utf8_lossy(&buffer[..length]), "READY=1\nSTATUS=watching 300 services\n");
    daemon.wait("the trigger is handled", |d| d.entry("manual_trigger").is_some());
}

#[test]
fn an_agent_that_is_stopped_while_it_loads_ends_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let path = blocking_compose(&folder);
    let compose = folder.path().join("compose.yml");
    fs::write(&compose, "services: {}").unwrap();
    let service = json!({ "name": "a", "compose_project": "a", "compose_files": [compose] });
    let mut daemon = Daemon::begin(folder, &json!([service]), &[("PATH", &path)]);
    daemon.wait("it answers", |d| d.get("/health").is_some());
    let began = Instant::now();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end().code(), Some(0), "{}", daemon.log());
    assert!(began.elapsed() < Duration::from_secs(8), "it waited for compose: {:?}", began.elapsed());
    assert!(!daemon.log().contains("ready"), "{}", daemon.log());
}

#[test]
fn an_invalid_file_is_rejected_and_the_old_one_stays_active() {
    let mut daemon = Daemon::start(&json!([service("a")]), &[]);
    let files = [
        r#"{"services": [{"name": "a"}], "services": [{"name": "b"}]}"#,
        r#"{"runtime": "lxc", "docker_health": {"timeout": 0}, "services": []}"#,
        "{\"a\": ",
        r#"{"services": {"name": "a"}}"#,
    ];
    for (n, text) in files.iter().enumerate() {
        daemon.write(text);
        daemon.signal(Signal::HUP);
        daemon.wait("it is refused", |d| {
            let entries = d.get("/audit").unwrap();
            let refused = |entry: &&Value| entry["event"] == "config_rejected";
            entries.as_array().unwrap().iter().filter(refused).count() == n + 1
        });
        assert_eq!(daemon.names(), ["a"]);
    }
    let entries = daemon.get("/audit").unwrap();
    let reasons: Vec<&str> = entries
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["event"] == "config_rejected")
        .map(|entry| entry["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons[3], "services: is given more than once");
    assert!(reasons[2].contains("runtime: \"lxc\"") && reasons[2].contains("docker_health.timeout: 0"));
    assert!(reasons[1].contains("is not JSON"), "{reasons:?}");
    assert!(reasons[0].starts_with("services: an object; allowed: an array"), "{reasons:?}");
    let warnings = daemon.get("/health").unwrap()["config_warnings"].to_string();
    assert!(warnings.contains("is not active"), "{warnings}");

    daemon.write_services(&json!([service("a")]));
    daemon.signal(Signal::HUP);
    daemon.wait("the warnings are gone", |d| d.get("/health").unwrap().get("config_warnings").is_none());
}

/// `GET /health` needs no login.
#[test]
fn a_password_that_contains_a_dollar_sign_appears_neither_in_the_log_nor_in_health() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start_in(folder, &json!([]), &[]);
    let password = "pa$sw0rd-Rest";
    let mut file = config(&daemon.folder, daemon.port, &json!([service("web")]));
    file["push"] = json!({"warden_url": "http://127.0.0.1:1", "token": password});
    file["notifications"] = json!({
        "discord": {"webhook_url": format!("https://discord.com/api/webhooks/1/{password}")},
        "smtp": {"host": "127.0.0.1", "port": 1, "from": "a@example.com", "to": ["b@example.com"],
                 "username": "u", "password": password},
        "webhooks": [{"name": "x", "url": format!("http://127.0.0.1:1/{password}")}],
    });
    daemon.write(&file.to_string());
    daemon.signal(Signal::HUP);
    daemon.wait("the file is loaded", |d| d.names() == ["web"]);
    let health = daemon.get("/health").unwrap().to_string();
    let audit = daemon.get("/audit").unwrap().to_string();
    let undelivered = daemon.get("/status").unwrap()["undelivered"].to_string();
    let warnings = ["push.token", "notifications.discord", "notifications.smtp", "notifications.webhooks"];
    for warning in warnings {
        assert!(health.contains(warning), "{health}");
        assert!(undelivered.contains(warning), "{undelivered}");
    }
    for told in [&health, &audit, &undelivered, &daemon.log()] {
        assert!(!told.contains("sw0rd") && !told.contains("Rest"), "{told}");
    }
}

#[test]
fn changes_that_need_a_restart_are_reported_and_the_rest_is_applied() {
    let mut daemon = Daemon::start(&json!([service("a")]), &[]);
    let mut file = config(&daemon.folder, daemon.port, &json!([service("a"), service("b")]));
    file["api"]["address"] = json!(["127.0.0.1:1"]);
    file["registry"] = json!({ "url": "http://localhost:5999", "poll_interval": 10 });
    file["docker_health"] = json!({ "check_interval": 5, "timeout": 1 });
    daemon.write(&file.to_string());
    daemon.signal(Signal::HUP);
    daemon.wait("b is loaded", |d| d.names() == ["a", "b"]);
    daemon.wait("it is reported", |d| d.entry("config_reloaded").is_some());
    let entry = daemon.entry("config_reloaded").unwrap();
    assert_eq!(entry["level"], "warning");
    assert_eq!(entry["reason"], "added: b; needs a restart: api.address");
    let warnings = daemon.get("/health").unwrap()["config_warnings"].to_string();
    assert!(warnings.contains("api.address: changed in the file, which needs a restart"), "{warnings}");
    // A rejected file after that does not change the warning.
    daemon.write("{");
    daemon.signal(Signal::HUP);
    daemon.wait("it is refused", |d| d.entry("config_rejected").is_some());
    let warnings = daemon.get("/health").unwrap()["config_warnings"].to_string();
    assert!(warnings.contains("which needs a restart") && warnings.contains("not active"), "{warnings}");
}

#[test]
fn a_lost_state_is_reported_as_an_entry() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("state")).unwrap();
    fs::write(folder.path().join("state/state.redb"), "no database").unwrap();
    let mut daemon = Daemon::start_in(folder, &json!([service("a")]), &[]);
    daemon.wait("it is reported", |d| d.entry("error").is_some());
    let entry = daemon.entry("error").unwrap();
    assert_eq!((&entry["service"], &entry["level"]), (&json!("evenkeel"), &json!("error")));
    let message = entry["message"].as_str().unwrap();
    assert!(message.starts_with("state.path: STATE LOST: "), "{message}");
    assert_eq!(daemon.get("/health").unwrap()["config_warnings"], json!([message]));
}

#[test]
fn an_unusable_engine_address_is_reported_and_the_rest_runs() {
    let services = json!([service("web")]);
    for (environment, part) in [
        (vec![("DOCKER_HOST", ""), ("DOCKER_CONTEXT", "gone")], "docker context \"gone\""),
        (vec![("DOCKER_HOST", "tcp://127.0.0.1:2376"), ("DOCKER_TLS_VERIFY", "1")], "TLS"),
        (vec![("DOCKER_HOST", "ssh://me@host")], "ssh is not supported"),
    ] {
        let mut daemon = Daemon::start(&services, &environment);
        daemon.wait("the engine is checked", |d| {
            d.get("/health").is_some_and(|h| h["status"] == "unavailable")
        });
        let (head, body) = daemon.ask("GET", "/health").unwrap();
        assert!(head.starts_with("http/1.1 503"), "{head}");
        let health: Value = serde_json::from_str(&body).unwrap();
        assert!(health["error"].as_str().unwrap().contains(part), "{health}");
        assert!(health["config_warnings"].to_string().replace("\\\"", "\"").contains(part), "{health}");
        assert_eq!(daemon.names(), ["web"]);
    }
    // A broken Docker configuration alone is only a warning: it usually does not name an engine.
    let folder = tempfile::tempdir().unwrap();
    let docker = folder.path().join("docker");
    fs::create_dir(&docker).unwrap();
    fs::write(docker.join("config.json"), "{").unwrap();
    let environment = [("DOCKER_HOST", ""), ("DOCKER_CONFIG", docker.to_str().unwrap())];
    let daemon = Daemon::start(&services, &environment);
    let health = daemon.get("/health").unwrap();
    let warnings = health["config_warnings"].to_string();
    assert!(
        warnings.contains("docker/config.json: ") && warnings.contains("/docker.sock is used"),
        "{health}"
    );
}

#[test]
fn a_signal_stops_it_with_code_0_and_a_final_entry() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&json!([service("a")]), &[]);
        let begin = Instant::now();
        daemon.signal(signal);
        let status = daemon.wait_for_end();
        assert_eq!(status.code(), Some(0), "{}", daemon.log());
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        let audit = fs::read_to_string(daemon.path("audit.jsonl")).unwrap();
        assert!(audit.lines().last().unwrap().contains("\"event\":\"shutdown\""), "{audit}");
    }
}

#[test]
fn a_second_signal_stops_it_immediately() {
    let mut daemon = Daemon::start(&json!([service("a")]), &[]);
    // A client that never sends its body delays the graceful shutdown.
    let mut client = TcpStream::connect(("127.0.0.1", daemon.port)).unwrap();
    let head = "POST /registry/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    client.write_all(format!("{head}Content-Length: 9\r\n\r\n").as_bytes()).unwrap();
    sleep(Duration::from_millis(200));
    daemon.signal(Signal::TERM);
    daemon.wait("it is stopping", |d| d.log().contains("stopping"));
    sleep(Duration::from_millis(500));
    assert_eq!(daemon.child.try_wait().unwrap(), None, "the client delays it\n{}", daemon.log());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end().code(), Some(1));
    assert!(daemon.log().contains("a second SIGTERM"), "{}", daemon.log());
}

#[test]
fn the_service_manager_is_notified_throughout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    let receive = || {
        let mut buffer = [0; 500];
        let n = manager.recv(&mut buffer).expect("a message in time");
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    // The next message that is not a keep-alive.
    let receive_other = || loop {
        let message = receive();
        if message != "WATCHDOG=1\n" {
            return message;
        }
    };
    let environment = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "400000")];
    let mut daemon = Daemon::start(&json!([service("a"), service("b")]), &environment);
    assert_eq!(receive_other(), "READY=1\nSTATUS=watching 2 services\n");
    let begin = Instant::now();
    for _ in 0..5 {
        assert_eq!(receive(), "WATCHDOG=1\n");
    }
    assert!(begin.elapsed() < Duration::from_secs(15), "a keep-alive at half the watchdog timeout");

    daemon.write_services(&json!([service("a")]));
    daemon.signal(Signal::HUP);
    let reloading = receive_other();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(receive_other(), "READY=1\nSTATUS=watching 1 service\n");
    daemon.write("{");
    daemon.signal(Signal::HUP);
    assert!(receive_other().starts_with("RELOADING=1\n"));
    assert_eq!(
        receive_other(),
        "READY=1\nSTATUS=watching 1 service; the file has errors and is not active\n"
    );

    daemon.signal(Signal::TERM);
    assert_eq!(receive_other(), "STOPPING=1\nWATCHDOG=1\nSTATUS=stopping\n");
    assert_eq!(daemon.wait_for_end().code(), Some(0));
}

#[test]
fn the_command_line_queries_the_running_agent_with_meaningful_exit_codes() {
    let daemon = Daemon::start(&json!([service("a")]), &[]);
    let ask = |arguments: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .arg("--config")
            .arg(daemon.path("config.json"))
            .args(arguments)
            .env_clear()
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    // There is no engine.
    let (code, out, _) = ask(&["status"]);
    assert!(code == Some(1) && out.contains("NAME  STATUS"), "{code:?} {out}");
    let (code, out, _) = ask(&["status", "a", "--json"]);
    let record: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &record["name"]), (Some(1), &json!("a")));
    let (code, out, _) = ask(&["why", "a"]);
    assert!(code == Some(0) && out.contains("auto_update is false"), "{code:?} {out}");
    let (code, out, _) = ask(&["trigger", "a"]);
    assert_eq!((code, out.as_str()), (Some(1), "nothing was started: auto_update is false\n"));
    let (code, out, _) = ask(&["audit", "-n", "500"]);
    assert!(code == Some(0) && out.contains("watching 1 service"), "{code:?} {out}");
    // There is no engine.
    let (code, out, _) = ask(&["health"]);
    assert!(code == Some(1) && out.starts_with("unavailable\nengine: "), "{code:?} {out}");
    let (code, out, error) = ask(&["status", "nobody"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(error, "evenkeel: no service named \"nobody\" is configured\n");
    let (code, _, error) = ask(&["status", "--api", &format!("http://127.0.0.1:{}", unused_port())]);
    assert!(code == Some(69) && error.starts_with("evenkeel: no agent answers at "), "{code:?} {error}");
    assert_eq!(ask(&["status", "--api", "here"]).0, Some(2));
    assert_eq!(ask(&["audit", "-n", "0"]).0, Some(2));
}
