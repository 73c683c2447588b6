//! The output of `status`, `why` and `doctor` on a pseudo-terminal with 80 and 40 columns, without colours, and in a pipe.
//! The agent is scripted, so that every character is known.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fleet;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use evenkeel_common::testing::WAIT_LIMIT;
use expectrl::{Eof, Expect as _, Session};
use serde_json::{Value, json};

/// A scripted API.
struct Api(String);

impl Api {
    /// Serves requests until the end of the test.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A stream stays open while other requests are served.
                std::thread::spawn(|| answer(stream.unwrap()));
            }
        });
        Self(format!("http://{address}"))
    }

    /// Answers the request `GET /x` with what `reply` returns for it, one after the other.
    fn scripted(mut reply: impl FnMut(&str) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(request) = read_request(&mut stream) else { continue };
                let Reply { head, body } = reply(&request);
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
            }
        });
        Self(format!("http://{address}"))
    }
}

/// A response: its status line after the version, with the headers, and its body.
struct Reply {
    head: &'static str,
    body: String,
}

impl Reply {
    fn ok(body: &Value) -> Self {
        Self { head: "200 OK\r\nContent-Type: application/json", body: body.to_string() }
    }

    /// What an agent answers while it loads its services.
    fn starting() -> Self {
        let body = json!({"error": "the agent is starting"}).to_string();
        Self { head: "503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json", body }
    }
}

/// Reads a request with its body; returns its method and path.
fn read_request(stream: &mut TcpStream) -> Option<String> {
    let (mut text, mut part) = (String::new(), [0; 4096]);
    let length = |head: &str| {
        let head = head.to_ascii_lowercase();
        let line = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        line.map_or(0, |text| text.parse().unwrap())
    };
    loop {
        match stream.read(&mut part) {
            Ok(n) if n > 0 => text.push_str(std::str::from_utf8(&part[..n]).unwrap()),
            _ => return None,
        }
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && body.len() >= length(head)
        {
            return Some(text.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
        }
    }
}

/// The exit code of a command, its output, and what it said on stderr.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).env_clear().output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn answer(mut stream: TcpStream) {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(n) if n > 0 => head.extend_from_slice(&part[..n]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let is_page = head.starts_with("GET /ui/stream ");
    if is_page || head.starts_with("GET /ui/events ") || head.starts_with("GET /night/ui/events ") {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        if is_page {
            let _ = write!(stream, "event:status\ndata:{}\n\n", status());
        }
        // `/audit` returns the second and the third one; the last two are new.
        for (id, message) in ["oldest", "older", "old", "first", "second"].iter().enumerate() {
            let _ = write!(stream, "event:audit\ndata:{}\nid:{id}\n\n", entry(id, message));
        }
        // Keep it open until the client disconnects.
        let _ = stream.read(&mut part);
        return;
    }
    let body = match head.split_whitespace().nth(1).unwrap() {
        "/night/status" => night(),
        "/night/status/shop" => night()["services"][0].clone(),
        "/night/health" => json!({"status": "ok"}),
        "/night/audit?limit=2" => json!([]),
        "/status" => status(),
        "/why/web" => why(),
        "/audit?limit=500" => json!([entry(2, "old"), entry(1, "older")]),
        path => panic!("{path}"),
    };
    let body = body.to_string();
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
}

fn entry(second: usize, message: &str) -> Value {
    json!({
        "timestamp": format!("2026-01-01T00:00:0{second}Z"), "service": "db", "event": "checked", "message": message,
        "level": "info",
    })
}

fn service(name: &str, status: &str, more: &Value) -> Value {
    let mut record = json!({
        "name": name, "status": status, "auto_update": true, "auto_start": false, "auto_heal": false,
        "deploying": status == "deploying", "degraded": false, "exhausted": false, "restart_failures": 0,
        "updates_total": 0, "rollbacks_total": 0, "restarts_total": 0, "failures_total": 0, "has_stats": false,
        "cpu_percent": 0.0, "memory_percent": 0.0, "memory_usage_mb": 0.0, "memory_limit_mb": 0.0,
        "check_status": "idle",
        "images": [{"image": "web:1", "digest": format!("sha256:{}", "a".repeat(64)), "short": "sha256:aaaaaaaaaaaa"}],
    });
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    record
}

/// What someone sees who is woken at night: three services with the status `blocked`, and one that is not watched.
fn night() -> Value {
    let failed = |rolled_back: bool| {
        json!({
            "at": "2026-01-01T03:00:00Z", "image": "web:1", "reason": "container shop-web-1 exited with code 3",
            "container": "shop-web-1", "output": "state: exited\n--- last log lines ---\npanic: cannot open /data",
            "rolled_back": rolled_back,
        })
    };
    let blocked = |name: &str, more: Value| {
        let containers = json!([{
            "id": "x", "name": "shop-web-1", "state": "running", "status": "Up 2 hours (healthy)", "image": "web:1",
        }]);
        let mut all = json!({
            "blocked": format!("sha256:{}", "b".repeat(64)), "since": "2026-01-01T03:00:00Z", "containers": containers,
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        service(name, "blocked", &all)
    };
    let probation = json!({
        "phase": "probation", "image": "web:2", "since": "2026-01-01T03:00:00Z", "pulled_bytes": 0, "total_bytes": 0,
    });
    json!({
        "uptime_seconds": 1, "poll_count": 1,
        "left_out": [{"name": "blog", "reason": "compose_files[0]: \"/x\" does not exist"}],
        "services": [
            blocked("shop", json!({"healthy": true, "failed_update": failed(true)})),
            blocked("pay", json!({"healthy": false, "unhealthy_reason": "shop-web-1 is unhealthy", "failed_update": failed(false)})),
            blocked("new", json!({"healthy": true, "failed_update": failed(true), "deploy": probation})),
            service("heal", "exhausted", &json!({"auto_update": false, "auto_heal": true, "exhausted": true})),
        ],
    })
}

fn status() -> Value {
    let pull = json!({"deploy": {
        "phase": "pulling", "image": "web:1", "since": "2026-01-01T00:00:00Z", "pulled_bytes": 1, "total_bytes": 4,
    }});
    let fault = json!({"errored": "registry localhost:5000: connection refused"});
    json!({"uptime_seconds": 1, "poll_count": 1, "services": [
        service("web", "deploying", &pull),
        service("db", "ok", &json!({})),
        service("api", "errored", &fault),
    ]})
}

fn why() -> Value {
    let gate = |gate: &str, holds: bool, why: &str, clear: Value| json!({"gate": gate, "holds": holds, "why": why, "clear": clear});
    json!({"service": "web", "answer": "the digest is blocked", "gates": [
        gate("registry", false, "the registry answers", Value::Null),
        gate("blocked", true, "sha256:aaaaaaaaaaaa failed here", json!("POST /unblock/web")),
    ]})
}

/// The output of a command on a terminal with this many columns, and its exit code.
fn at_terminal(columns: u16, variables: &[(&str, &str)], arguments: &[&str]) -> (String, i32) {
    let mut command = Command::new("sh");
    // The library sets the terminal size after the process has started, so the shell waits for that first.
    command.args(["-c", &format!("read go && stty cols {columns} rows 50 && exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_evenkeel")).args(arguments);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("TERM", "xterm-256color");
    command.envs(variables.iter().copied());
    let mut session = Session::spawn(command).unwrap();
    session.set_expect_timeout(Some(WAIT_LIMIT));
    session.send("\n").unwrap();
    let found = session.expect(Eof).unwrap();
    let shown = String::from_utf8_lossy(found.as_bytes()).replace("\r\n", "\n");
    // The input is echoed.
    let shown = shown.trim_start_matches('\n').to_owned();
    let expectrl::process::unix::WaitStatus::Exited(_, code) = session.get_process().wait().unwrap() else {
        panic!("killed: {shown}")
    };
    (shown, code)
}

/// The output of a command in a pipe, and its exit code.
fn in_pipe(arguments: &[&str]) -> (String, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
}

/// Replaces colour codes by names, so that the snapshots are readable.
fn in_words(shown: &str) -> String {
    let names = [("31", "red"), ("33", "yellow"), ("32", "green"), ("2", "faint")];
    let text = names.iter().fold(shown.to_owned(), |text, (code, name)| {
        text.replace(&format!("\x1b[{code}m"), &format!("<{name}>"))
    });
    text.replace("\x1b[0m", "</>")
}

#[track_caller]
fn assert_shown((shown, code): (String, i32), expected: &str, expected_code: i32) {
    let shown = in_words(&shown);
    assert!(shown == expected, "shown:\n{shown}\nexpected:\n{expected}");
    assert_eq!(code, expected_code);
}

#[test]
fn status_is_coloured_and_wrapped_to_the_terminal_and_explains_what_is_wrong() {
    let api = Api::start();
    let arguments = ["status", "--api", &api.0];
    let plain = "NAME  STATUS   DIGEST               CHECKED  REMARK
web   pulling  sha256:aaaaaaaaaaaa  never    pulling [#####---------------] 25 %
                                             web:1
db    ok       sha256:aaaaaaaaaaaa  never
api   errored  sha256:aaaaaaaaaaaa  never    registry localhost:5000: connection
                                             refused

api: errored
  what  registry localhost:5000: connection refused
  runs  web:1 sha256:aaaaaaaaaaaa
  do    fix the cause; to check again now: evenkeel trigger api --no-pass
";
    let coloured = plain
        .replace("NAME  STATUS   DIGEST               CHECKED  REMARK", "<faint>NAME</>  <faint>STATUS</>   <faint>DIGEST</>               <faint>CHECKED</>  <faint>REMARK</>")
        .replace("sha256:aaaaaaaaaaaa  never", "<faint>sha256:aaaaaaaaaaaa</>  <faint>never</>")
        .replace("web   pulling", "web   <yellow>pulling</>")
        .replace("db    ok", "db    <green>ok</>")
        .replace("api   errored", "api   <red>errored</>")
        .replace("api: errored", "<red>api: errored</>");
    assert_shown(at_terminal(80, &[], &arguments), &coloured, 1);
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        assert_shown(at_terminal(80, &[variable], &arguments), plain, 1);
    }
    let (piped, code) = in_pipe(&arguments);
    assert!(piped.contains("never    registry localhost:5000: connection refused\n") && code == 1, "{piped}");
    let (narrow, _) = at_terminal(40, &[("NO_COLOR", "1")], &arguments);
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    assert!(narrow.starts_with("NAME  STATUS   REMARK\n") && narrow.contains("api   errored"), "{narrow}");
}

#[test]
fn status_tells_at_80_columns_what_happened_since_when_why_what_runs_and_what_to_type() {
    let api = Api::start();
    let (shown, code) =
        at_terminal(80, &[("NO_COLOR", "1")], &["status", "--api", &format!("{}/night", api.0)]);
    assert_eq!(code, 1);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    for line in [
        "shop  rolled back      sha256:aaaaaaaaaaaa  never    web:1 failed; the previous",
        "pay   rollback failed  sha256:aaaaaaaaaaaa  never    web:1 failed, and so did",
        "new   on probation     sha256:aaaaaaaaaaaa  never    probation",
        "blog  not watched      -                    never    compose_files[0]: \"/x\" does",
        "  why   container shop-web-1 exited with code 3",
        "  log   panic: cannot open /data",
        "  runs  web:1 sha256:aaaaaaaaaaaa; shop-web-1: Up 2 hours (healthy)",
        "        or try this one again: evenkeel unblock shop",
        "  do    look: docker logs --tail 50 shop-web-1",
        "        then restore the last proven image: evenkeel trigger pay --no-pass",
        "        fix the cause, then: evenkeel unblock heal",
        "not watched: blog",
    ] {
        assert!(shown.lines().any(|shown| shown.starts_with(line)), "{line:?} is not in:\n{shown}");
    }
    assert!(
        shown.contains("shop: rolled back, for ") && shown.contains("(since 2026-01-01 03:00:00 UTC)"),
        "{shown}"
    );
    let (one, _) =
        at_terminal(80, &[("NO_COLOR", "1")], &["status", "shop", "--api", &format!("{}/night", api.0)]);
    assert!(one.lines().all(|line| line.chars().count() <= 80 || line.contains("sha256:")), "{one}");
    assert!(one.contains("  log   panic: cannot open /data\n"), "{one}");
}

#[test]
fn audit_without_a_file_shows_the_entries_in_memory_and_says_how_to_keep_more() {
    let api = Api::start();
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["audit", "-n", "2", "--api", &format!("{}/night", api.0)])
        .env_clear()
        .output()
        .unwrap();
    let (out, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && out.lines().count() == 2, "{out}{said}");
    assert!(out.ends_with("second\n") && said.contains("/var/log/evenkeel/audit.jsonl"), "{out}{said}");
}

#[test]
fn audit_with_a_file_that_has_no_entries_names_it_and_does_not_ask_to_configure_it() {
    let api = Api::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let address = api.0.trim_start_matches("http://");
    let config = json!({
        "api": {"address": [address], "base_path": "/night"},
        "audit": {"path": "/nonexistent/audit.jsonl"},
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let (code, out, said) = run(&["audit", "-n", "2", "--config", file.to_str().unwrap()]);
    assert!(code == 0 && out.ends_with("second\n"), "{out}{said}");
    assert!(said.contains("/nonexistent/audit.jsonl has no entries yet, or can't be written"), "{said}");
    assert!(said.contains("evenkeel doctor") && !said.contains("to keep more, set"), "{said}");
}

/// Each request is refused once, as by an agent that is started at that moment.
fn starting_between_requests(mut reply: impl FnMut(&str) -> Value + Send + 'static) -> Api {
    let mut refused = false;
    Api::scripted(move |request| {
        refused = !refused;
        if refused { Reply::starting() } else { Reply::ok(&reply(request)) }
    })
}

#[test]
fn the_status_of_one_service_is_bad_news_while_the_engine_does_not_answer() {
    let unavailable = |error: Option<&str>| match error {
        Some(error) => Reply {
            head: "503 Service Unavailable\r\nContent-Type: application/json",
            body: json!({"status": "unavailable", "error": error}).to_string(),
        },
        None => Reply::ok(&json!({"status": "ok"})),
    };
    for (error, expected) in [(Some("connection refused"), 1), (None, 0)] {
        let container =
            json!({"id": "x", "name": "web-1", "state": "running", "status": "Unknown", "image": "web:1"});
        let api = Api::scripted(move |request| match request {
            "GET /status/web" => Reply::ok(&service("web", "unknown", &json!({"containers": [container]}))),
            "GET /health" => unavailable(error),
            other => panic!("{other}"),
        });
        let (code, out, said) = run(&["status", "web", "--api", &api.0]);
        assert_eq!((code, said.as_str()), (expected, ""), "{out}");
        let told = "the container engine does not answer: connection refused";
        assert_eq!(out.contains(told), error.is_some(), "{out}");
        let (code, out, _) = run(&["status", "web", "--json", "--api", &api.0]);
        assert_eq!(code, expected, "{out}");
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["name"], "web");
    }
}

#[test]
fn trigger_with_wait_waits_for_an_agent_that_is_starting() {
    let mut requested = 0;
    let api = starting_between_requests(move |request| match request {
        "GET /status/web" => {
            let checks = json!({"requested": requested, "ended": requested, "undecided": false});
            service("web", "ok", &json!({"requested_checks": checks}))
        }
        "POST /trigger/web" => {
            requested += 1;
            json!({"status": "triggered", "scope": "web"})
        }
        other => panic!("{other}"),
    });
    let (code, out, said) = run(&["trigger", "web", "--wait", "60", "--api", &api.0]);
    assert_eq!((code, said.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("web: up to date: "), "{out}");
}

#[test]
fn rollback_with_wait_waits_for_an_agent_that_is_starting() {
    let mut rollbacks = 0;
    let api = starting_between_requests(move |request| match request {
        "GET /status/web" => service("web", "ok", &json!({"rollbacks_total": rollbacks})),
        "POST /rollback/web" => {
            rollbacks += 1;
            json!({"status": "rolling_back", "service": "web", "to": "sha256:aa"})
        }
        other => panic!("{other}"),
    });
    let (code, out, said) = run(&["rollback", "web", "--yes", "--wait", "60", "--api", &api.0]);
    assert_eq!((code, out.as_str(), said.as_str()), (0, "web: rolling back to sha256:aa\n", ""));
}

#[test]
fn rollback_with_wait_says_that_an_agent_which_was_restarted_has_forgotten_it() {
    let (mut is_asked, mut looks) = (false, 0);
    let api = Api::scripted(move |request| match request {
        "GET /status/web" => {
            looks += u32::from(is_asked);
            let checks = json!({"requested": 1, "ended": 0, "undecided": true});
            let more = if looks == 1 { json!({"requested_checks": checks}) } else { json!({}) };
            Reply::ok(&service("web", "ok", &more))
        }
        "POST /rollback/web" => {
            is_asked = true;
            Reply::ok(&json!({"status": "rolling_back", "service": "web", "to": "sha256:aa"}))
        }
        other => panic!("{other}"),
    });
    let (code, _, said) = run(&["rollback", "web", "--yes", "--wait", "600", "--api", &api.0]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("restarted") && said.contains("ask again"), "{said}");
}

#[test]
fn without_wait_an_agent_that_is_starting_is_named_and_the_exit_code_is_1() {
    for arguments in [&["status"][..], &["trigger", "web"], &["rollback", "web", "--yes"], &["audit"]] {
        let api = Api::scripted(|_| Reply::starting());
        let (code, _, said) = run(&[arguments, &["--api", &api.0]].concat());
        assert_eq!((code, said.as_str()), (1, "evenkeel: the agent is starting\n"), "{arguments:?}");
    }
}

/// The default port of the agent is also that of Prometheus and Cockpit.
#[test]
fn another_program_on_the_port_is_no_agent_for_any_subcommand() {
    let replies: [fn() -> Reply; 3] = [
        || Reply { head: "302 Found\r\nLocation: /graph", body: "<a href=\"/graph\">Found</a>.".to_owned() },
        || Reply { head: "404 Not Found", body: "404 page not found\n".to_owned() },
        || Reply { head: "200 OK\r\nContent-Type: text/html", body: "<!doctype html>".to_owned() },
    ];
    for (reply, shown) in replies.into_iter().zip(["302 Found", "404 Not Found", "not JSON"]) {
        let api = Api::scripted(move |_| reply());
        for arguments in [
            &["status"][..],
            &["status", "web"],
            &["why", "web"],
            &["trigger"],
            &["trigger", "web", "--wait"],
            &["redeploy", "web"],
            &["unblock", "web"],
            &["rollback", "web", "--yes"],
            &["rollback", "web", "--yes", "--wait"],
            &["history", "web"],
            &["approve", "web"],
            &["audit"],
            &["audit", "--follow"],
            &["health"],
        ] {
            let (code, out, said) = run(&[arguments, &["--api", &api.0]].concat());
            assert_eq!((code, out.as_str()), (69, ""), "{arguments:?}, {shown}: {said}");
            assert!(said.starts_with("evenkeel: no agent answers at http://127.0.0.1:"), "{said}");
            let what = format!(
                "what answers is not an Evenkeel agent ({}",
                if shown == "not JSON" { "an answer that is not JSON" } else { shown }
            );
            assert!(said.contains(&what), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn a_broken_configuration_file_does_not_disable_the_command_line() {
    let api = Api::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let address = api.0.trim_start_matches("http://");
    std::fs::write(&file, json!({"runtime": "lxc", "api": {"address": [address]}}).to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["why", "web", "--config", file.to_str().unwrap()])
        .env_clear()
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("warning: ") && said.contains("runtime"), "{said}");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("web: the digest is blocked"));
}

#[test]
fn why_shows_which_gate_holds_and_how_to_open_it() {
    let api = Api::start();
    let arguments = ["why", "web", "--api", &api.0];
    assert_shown(
        at_terminal(80, &[], &arguments),
        "web: the digest is blocked

<faint>GATE</>      <faint>STATE</>  <faint>WHY</>
registry  <green>open</>   the registry answers
blocked   <yellow>holds</>  sha256:aaaaaaaaaaaa failed here; to end it: evenkeel unblock
                 web
",
        0,
    );
    assert_shown(
        at_terminal(40, &[("NO_COLOR", "1")], &arguments),
        "web: the digest is blocked

GATE      STATE  WHY
registry  open   the registry answers
blocked   holds  sha256:aaaaaaaaaaaa
                 failed here; to end it:
                 evenkeel unblock web
",
        0,
    );
    assert!(in_pipe(&arguments).0.ends_with("to end it: evenkeel unblock web\n"));
}

#[test]
fn audit_follow_shows_deployments_on_a_line_below() {
    let api = Api::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["audit", "--follow", "--api", &api.0]);
    command.env_clear().env("TERM", "xterm").env("NO_COLOR", "1");
    let mut session = Session::spawn(command).unwrap();
    session.set_expect_timeout(Some(WAIT_LIMIT));
    let bar = "web: pulling [#####---------------]  25 % web:1";
    let entry = |second: u8, message: &str| {
        format!("2026-01-01 00:00:0{second}Z  db             checked          {message}\r\n")
    };
    for wanted in [
        format!("{}{}{bar}", entry(1, "older"), entry(2, "old")),
        format!("\r\x1b[K{}{bar}", entry(3, "first")),
        format!("\r\x1b[K{}{bar}", entry(4, "second")),
        // It is redrawn without new entries.
        format!("\r\x1b[K{bar}"),
    ] {
        session.expect(&*wanted).unwrap_or_else(|error| panic!("{wanted:?}: {error}"));
    }
    session.get_process_mut().exit(true).unwrap();
}

#[test]
fn audit_follow_starts_with_the_requested_number_of_entries_and_continues_with_new_ones() {
    let api = Api::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["audit", "-f", "-n", "1", "--api", &api.0]).env_clear().stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let messages: Vec<String> =
        lines.take(3).map(|line| line.unwrap().split_whitespace().next_back().unwrap().to_owned()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(messages, ["old", "first", "second"]);
}

const DOCTOR: [&str; 3] = ["doctor", "--config", "/nonexistent/config.json"];

#[test]
fn doctor_wraps_its_output_without_truncating() {
    assert_shown(
        at_terminal(80, &[], &DOCTOR),
        "<faint>AREA</>           <faint>STATE</>
configuration  <red>error</>

<red>error: configuration: /nonexistent/config.json</>
  what  there is no such file
  why   the agent does not start with it, and nothing else can be checked
  do    create it; `evenkeel adopt` prints a configuration for this machine

1 error, 0 warnings
",
        1,
    );
    let narrow = "AREA           STATE
configuration  error

error: configuration: /nonexistent/conf…
  what  there is no such file
  why   the agent does not start with
        it, and nothing else can be
        checked
  do    create it; `evenkeel adopt`
        prints a configuration for this
        machine

1 error, 0 warnings
";
    assert_shown(at_terminal(40, &[("NO_COLOR", "1")], &DOCTOR), narrow, 1);
    let (piped, code) = in_pipe(&DOCTOR);
    assert_eq!(code, 1);
    assert!(
        piped.contains("\nerror: configuration: /nonexistent/config.json\n  what  there is no such file\n"),
        "{piped}"
    );
}

#[test]
fn doctor_prints_json_for_scripts() {
    let (piped, code) = in_pipe(&[&DOCTOR[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&piped).unwrap();
    assert_eq!(code, 1);
    assert_eq!(report["areas"], json!([{"area": "configuration", "state": "error"}]));
    let finding = &report["findings"][0];
    assert_eq!((&finding["severity"], &finding["area"]), (&json!("error"), &json!("configuration")));
    assert!(finding["remedy"].as_str().unwrap().contains("evenkeel adopt"), "{report:#}");
}
