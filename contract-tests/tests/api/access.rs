//! Access control and error responses of the agent's API, without an engine.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use contract_tests::{Agent, Config, Reply, Service, request, wait_for};
use evenkeel_common::wire::AuditEntry;
use serde_json::json;

/// Starts an agent without an engine, with services that do not update.
fn agent() -> Agent {
    agent_with(|config| config)
}

fn agent_with(change: impl FnOnce(Config) -> Config) -> Agent {
    Agent::without_engine("api", |folder| {
        change(Config::of([
            Service::idle("idle", folder),
            Service::named("fileless").set("compose_project", "ektest-fileless"),
            Service::named("wrong").set("auto_update", true),
        ]))
    })
}

fn send(agent: &Agent, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    request(agent.address(), method, path, headers, &[]).expect("the agent answers")
}

#[track_caller]
fn assert_refused(reply: &Reply, status: u16) {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert!(
        reply.header("content-type").is_some_and(|kind| kind.starts_with("application/json")),
        "{reply:?}"
    );
    assert!(reply.json()["error"].as_str().is_some_and(|text| !text.is_empty()), "{}", reply.text());
}

#[test]
fn only_allowed_hosts_are_served() {
    let agent = agent_with(|config| config.set("api.allowed_hosts", json!(["boat.example"])));
    let port = agent.address().rsplit(':').next().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost", "[::1]", "192.0.2.7", "boat.example", "BOAT.example."] {
        for host in [host.to_owned(), format!("{host}:{port}")] {
            assert_eq!(send(&agent, "GET", "/status", &[("Host", &host)]).status, 200, "{host}");
        }
    }
    for host in
        ["evil.example", "boat.example.evil.example", "127.0.0.1.evil.example", "localhost.evil.example"]
    {
        for path in ["/status", "/audit", "/blocked", "/status/idle", "/errored", "/not-found"] {
            let reply = send(&agent, "GET", path, &[("Host", host)]);
            assert_refused(&reply, 403);
            assert!(
                reply.text().contains("api.allowed_hosts"),
                "the error names the key to set: {}",
                reply.text()
            );
        }
        assert_refused(&send(&agent, "POST", "/trigger", &[("Host", host)]), 403);
        assert_ne!(send(&agent, "GET", "/health", &[("Host", host)]).status, 403);
    }
}

#[test]
fn a_page_from_another_site_can_change_nothing() {
    let agent = agent();
    let own = format!("http://{}", agent.address());
    for (name, value) in [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", "http://127.0.0.1:1"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        for (method, path) in [
            ("POST", "/trigger"),
            ("POST", "/redeploy/idle"),
            ("POST", "/unblock/idle"),
            ("DELETE", "/blocked/idle"),
        ] {
            assert_refused(&send(&agent, method, path, &[(name, value)]), 403);
        }
    }
    for headers in
        [&[][..], &[("Origin", own.as_str())], &[("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")]]
    {
        assert_eq!(send(&agent, "POST", "/trigger", headers).status, 200, "{headers:?}");
    }
    let reply = send(&agent, "GET", "/status", &[("Origin", "http://evil.example")]);
    assert_eq!(reply.header("access-control-allow-origin"), None, "no CORS headers");
}

#[test]
fn errors_are_json_and_name_the_allowed_methods() {
    let agent = agent();
    for (method, path, status) in [
        ("GET", "/nothing", 404),
        ("GET", "/status/nobody", 404),
        ("GET", "/status/idle/", 404),
        ("GET", "/status/%2e%2e", 404),
        ("POST", "/trigger/nobody", 404),
        ("POST", "/redeploy/nobody", 404),
        ("POST", "/unblock/nobody", 404),
        ("DELETE", "/blocked/nobody", 404),
        ("POST", "/trigger/wrong", 404),
    ] {
        assert_refused(&send(&agent, method, path, &[]), status);
    }
    for (method, path, allowed) in [
        ("POST", "/status", "GET"),
        ("DELETE", "/status/idle", "GET"),
        ("GET", "/trigger", "POST"),
        ("GET", "/trigger/idle", "POST"),
        ("PUT", "/audit", "GET"),
        ("GET", "/redeploy/idle", "POST"),
        ("POST", "/blocked/idle", "DELETE"),
    ] {
        let reply = send(&agent, method, path, &[]);
        assert_refused(&reply, 405);
        let allow = reply.header("allow").unwrap_or_default();
        assert!(allow.split(',').any(|one| one.trim() == allowed), "{method} {path}: Allow: {allow}");
    }
}

#[test]
fn head_works_where_get_does() {
    let agent = agent();
    for path in ["/status", "/status/idle", "/blocked", "/not-found", "/errored", "/audit", "/health"] {
        let (get, head) = (send(&agent, "GET", path, &[]), send(&agent, "HEAD", path, &[]));
        assert_eq!(get.status, head.status, "{path}");
        assert_eq!(get.header("content-type"), head.header("content-type"), "{path}");
    }
    assert_eq!(send(&agent, "HEAD", "/status/nobody", &[]).status, 404);
    assert_eq!(send(&agent, "HEAD", "/trigger", &[]).status, 405);
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let agent = agent();
    let large = vec![b'x'; (1 << 20) + 1];
    assert_refused(&request(agent.address(), "POST", "/trigger", &[], &large).unwrap(), 413);
    let fits = vec![b'x'; 1 << 20];
    assert_eq!(request(agent.address(), "POST", "/trigger", &[], &fits).unwrap().status, 200);
}

#[test]
fn the_audit_returns_the_requested_number_of_entries_newest_first() {
    let agent = agent();
    for _ in 0..3 {
        agent.request("POST", "/trigger");
    }
    wait_for("three entries", || {
        let entries = agent.request("GET", "/audit").json();
        if entries.as_array().is_some_and(|all| all.len() >= 4) { Ok(()) } else { Err(entries.to_string()) }
    });
    let all = agent.request("GET", "/audit");
    let entries: Vec<AuditEntry> = serde_json::from_slice(&all.body).unwrap();
    assert!(entries.windows(2).all(|pair| pair[0].timestamp >= pair[1].timestamp), "{entries:#?}");
    for entry in all.json().as_array().unwrap() {
        assert!(entry["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{entry}");
    }
    let two = agent.request("GET", "/audit?limit=2").json();
    assert_eq!(two.as_array().unwrap().len(), 2);
    for limit in ["500", "501", "99999999999999999999999"] {
        assert_eq!(agent.request("GET", &format!("/audit?limit={limit}")).status, 200, "{limit}");
    }
    for limit in ["0", "-1", "x", "1.5", ""] {
        assert_refused(&agent.request("GET", &format!("/audit?limit={limit}")), 400);
    }
}

#[test]
fn the_audit_returns_entries_that_the_file_can_not_take() {
    // Nothing can be created there.
    let agent = agent_with(|config| config.set("audit.path", "/proc/none/audit.jsonl"));
    agent.request("POST", "/trigger");
    wait_for("the entry of the trigger", || {
        let reply = agent.request("GET", "/audit");
        if reply.text().contains("\"manual_trigger\"") { Ok(()) } else { Err(reply.text()) }
    });
}

#[test]
fn without_an_audit_file_the_audit_is_empty() {
    let agent = agent_with(|config| config.set("audit", json!({})));
    agent.request("POST", "/trigger");
    let reply = agent.request("GET", "/audit");
    assert_eq!((reply.status, reply.json()), (200, json!([])));
}

#[test]
fn without_an_engine_the_agent_runs_and_reports_it() {
    let agent = agent();
    wait_for("health to be 503", || {
        let reply = agent.request("GET", "/health");
        if reply.status == 503 { Ok(()) } else { Err(reply.text()) }
    });
    let health = agent.request("GET", "/health").json();
    assert_eq!(health["status"], "unavailable");
    assert!(health["error"].as_str().is_some_and(|text| !text.is_empty()), "{health}");
    let warnings = health["config_warnings"].to_string();
    assert!(warnings.contains("wrong: "), "the warnings contain the skipped service: {warnings}");
    let status = agent.status();
    let names: Vec<&str> = status.services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["idle", "fileless"]);
}

#[test]
fn requests_without_effect_report_the_reason() {
    let agent = agent();
    let skipped = |reason: &str| json!({ "status": "skipped", "reason": reason });
    assert_eq!(agent.request("POST", "/trigger").json(), json!({ "status": "triggered", "scope": "all" }));
    assert_eq!(agent.request("POST", "/trigger/idle").json(), skipped("auto_update is false"));
    assert_eq!(agent.request("POST", "/redeploy/fileless").json(), skipped("no compose files configured"));
    let not_blocked = json!({ "status": "not_blocked", "service": "idle" });
    assert_eq!(agent.request("POST", "/unblock/idle").json(), not_blocked);
    assert_eq!(agent.request("DELETE", "/blocked/idle").json(), not_blocked);
    for path in ["/blocked", "/not-found", "/errored"] {
        assert_eq!(agent.request("GET", path).json(), json!({}));
    }
}

#[test]
fn the_root_path_redirects_to_the_dashboard() {
    let agent = agent();
    for method in ["GET", "HEAD"] {
        let reply = send(&agent, method, "/", &[]);
        assert_eq!((reply.status, reply.header("location")), (302, Some("/ui")));
    }
    assert_refused(&send(&agent, "GET", "/", &[("Host", "evil.example")]), 403);
}

#[test]
fn below_a_base_path_links_lead_to_it_and_health_is_also_outside() {
    let agent = agent_with(|config| config.set("api.base_path", json!("/tools/agent/")));
    for (path, target) in [("/tools/agent", "/tools/agent/"), ("/tools/agent/", "/tools/agent/ui")] {
        let reply = send(&agent, "GET", path, &[]);
        assert_eq!(reply.header("location"), Some(target), "{reply:?}");
    }
    for path in ["ui", "status", "status/idle", "metrics", "openapi.json", "audit"] {
        assert_eq!(send(&agent, "GET", &format!("/tools/agent/{path}"), &[]).status, 200, "{path}");
        assert_refused(&send(&agent, "GET", &format!("/{path}"), &[]), 404);
    }
    for path in ["/health", "/tools/agent/health"] {
        assert_ne!(send(&agent, "GET", path, &[]).status, 404, "{path}");
    }
    let document = send(&agent, "GET", "/tools/agent/openapi.json", &[]).json();
    assert_eq!(document["servers"], json!([{ "url": "/tools/agent" }]));
    assert_eq!(send(&agent, "POST", "/tools/agent/trigger", &[]).status, 200);
    assert_refused(&send(&agent, "POST", "/trigger", &[]), 404);
}

#[test]
fn a_stream_continues_after_the_entry_that_the_query_names() {
    let agent = agent();
    agent.request("POST", "/trigger");
    wait_for("the first entries", || {
        let count = agent.audit().len();
        if count >= 3 { Ok(()) } else { Err(format!("{count} entries")) }
    });
    let entries = agent.audit();
    let all = events(&agent, "/ui/events", entries.len());
    let after = all[0].0;
    assert_eq!(events(&agent, &format!("/ui/events?after={after}"), entries.len() - 1), all[1..]);
    assert_eq!(events(&agent, "/ui/events?after=999999", entries.len()), all, "an unknown id");
    assert_eq!(events(&agent, "/ui/events?after=x", entries.len()), all);
}

/// Reads the first events of a stream: each with its id.
fn events(agent: &Agent, path: &str, count: usize) -> Vec<(u64, String)> {
    let mut stream = TcpStream::connect(agent.address()).expect("the agent listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", agent.address()).expect("it reads");
    let mut found = Vec::new();
    let mut id = None;
    for line in BufReader::new(stream).lines() {
        let line = line.expect("the stream goes on");
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.parse().ok();
        } else if let (Some(data), Some(id)) = (line.strip_prefix("data: "), id) {
            found.push((id, data.to_owned()));
        }
        if found.len() == count {
            break;
        }
    }
    found
}

#[test]
fn another_site_can_neither_cause_work_nor_open_streams() {
    let agent = agent();
    for site in ["cross-site", "same-site"] {
        for path in ["/ui/stream", "/ui/events", "/audit", "/status", "/metrics", "/openapi.json", "/ui"] {
            assert_refused(
                &send(&agent, "GET", path, &[("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "no-cors")]),
                403,
            );
        }
        let link = [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")];
        assert_eq!(send(&agent, "GET", "/ui", &link).status, 200, "a link may lead to the page");
    }
}

#[test]
fn oversized_headers_get_an_ordinary_error_response() {
    let agent = agent();
    for size in [20_000, 200_000] {
        let reply = send(&agent, "GET", "/status", &[("X-Large", &"x".repeat(size))]);
        assert_refused(&reply, 431);
        assert_eq!(reply.header("x-frame-options"), Some("DENY"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
}

/// Every trigger of a burst gets a response, but pending triggers are coalesced into one check.
#[test]
fn a_burst_of_triggers_is_coalesced_into_one_check_and_one_entry() {
    let agent = agent();
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(send(&agent, "POST", "/trigger", &[]).status, 200);
    }
    let most = usize::try_from(begun.elapsed().as_secs()).unwrap() + 2;
    wait_for("the check to end", || {
        let count = |kind: &str| agent.audit().iter().filter(|entry| entry.event.as_str() == kind).count();
        // There is no engine, so nothing can be checked.
        let (asked, ended) = (count("manual_trigger"), count("checked") + count("trigger_failed"));
        if asked > 0 && asked == ended { Ok(()) } else { Err(format!("{asked} asked, {ended} ended")) }
    });
    let asked = agent.audit().iter().filter(|entry| entry.event.as_str() == "manual_trigger").count();
    assert!(asked <= most, "{asked} entries for 100 triggers in {:?}", begun.elapsed());
}
