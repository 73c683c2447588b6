//! Gates on a real engine: a held digest is neither pulled nor started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use contract_tests::{Agent, Image, Pushed, Service, World, request, wait_for};
use evenkeel_common::wire::{Kind, Waiting};
use serde_json::{Value, json};

/// Starts `web` with these gates on version 1, and pushes version 2.
fn gated(about: &str, update: &Value) -> (World, Agent, Pushed) {
    let (world, _) = World::with_web(about);
    let web: Service = world.entry("web", &["web:latest"]).set("update", update.clone());
    let agent = world.agent_for([web]);
    let v2 = world.push("web", &Image::good("v2"));
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    (world, agent, v2)
}

/// Waits until the update waits for `gate` and `settled` accepts its details.
fn waiting(agent: &Agent, gate: &str, settled: impl Fn(&Waiting) -> bool) -> Waiting {
    wait_for("the update to wait", || {
        let service = agent.service("web");
        match &service.waiting {
            Some(waiting) if waiting.gate == gate && settled(waiting) => Ok(waiting.clone()),
            _ => Err(format!("{service:#?}")),
        }
    })
}

/// Asserts that version 1 runs and version 2 has not been pulled.
fn is_untouched(world: &World, agent: &Agent, v2: &Pushed) {
    world.assert_runs("web", "v1");
    assert_eq!(agent.steps(), Vec::<String>::new());
    let reference = format!("{}@{}", world.reference("web").trim_end_matches(":latest"), v2.digest);
    assert_eq!(world.engine.image_id(&reference), None, "a held digest was pulled");
}

/// Asserts that invalid bodies get 400 and digests that do not wait get 409.
fn assert_approvals_are_refused(agent: &Agent) {
    let headers = [("Content-Type", "application/json")];
    let other = json!({ "digest": format!("sha256:{}", "0".repeat(64)) }).to_string();
    for (body, status) in [
        ("nonsense", 400),
        ("[]", 400),
        (r#"{"digest": 7}"#, 400),
        (r#"{"digest": "latest"}"#, 400),
        (r#"{"digest": "sha256:abc"}"#, 400),
        (other.as_str(), 409),
    ] {
        let reply = request(agent.address(), "POST", "/approve/web", &headers, body.as_bytes());
        let reply = reply.expect("the agent answers");
        assert_eq!(reply.status, status, "{body}: {}", reply.text());
        let error = reply.json()["error"].as_str().map(str::len);
        assert!(error.is_some_and(|length| length > 10), "{body}: {}", reply.text());
    }
}

#[test]
fn an_update_waits_for_its_approval_and_goes_with_it() {
    let (world, agent, v2) = gated("approval", &json!({"approve": true}));
    let held = waiting(&agent, "approval", |_| true);
    assert_eq!((held.digest.as_str(), held.clear.as_str()), (&*v2.digest, "POST /approve/web"));
    is_untouched(&world, &agent, &v2);
    let announced = agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    assert_eq!(
        (announced.new_digest.as_deref(), announced.reason.as_deref()),
        (Some(&*v2.digest), Some("approval"))
    );
    assert_eq!(agent.request("POST", "/approve/none").status, 404);
    assert_approvals_are_refused(&agent);
    is_untouched(&world, &agent, &v2);
    let reply = agent.request("POST", "/approve/web");
    assert_eq!(reply.json(), json!({"status": "approved", "service": "web", "digest": v2.digest}));
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    agent.wait_done(1);
    // The check after the update clears the approval.
    wait_for("no update to wait any longer", || {
        let reply = agent.request("POST", "/approve/web").json();
        if reply == json!({"status": "nothing_waiting"}) { Ok(()) } else { Err(reply.to_string()) }
    });
    assert_eq!(agent.entries(&Kind::UPDATE_AVAILABLE).len(), 1);
}

#[test]
fn an_image_that_declares_another_volume_waits_for_an_approval_and_is_not_pulled() {
    // Without it, the data would stay behind, and the update would end there.
    let named = ["volumes: ['/var/lib/db/data']"];
    let v1 = Image::good("v1").with_volume("/var/lib/db/data");
    let (world, _) = World::with_web_of("volumes", &v1, &named);
    let web = world.entry("web", &["web:latest"]).set("update", json!({"ask_on": ["volumes"]}));
    let agent = world.agent_for([web]);
    let v2 = world.push("web", &Image::good("v2").with_volume("/var/lib/db"));
    assert_eq!(agent.request("POST", "/trigger/web").status, 200);
    let held = waiting(&agent, "breaking", |_| true);
    let differs = "declares VOLUME /var/lib/db, the running image /var/lib/db/data: data may no longer be where the volume is mounted";
    assert!(held.why.contains(differs) && held.differences.contains(&differs.to_owned()), "{held:#?}");
    is_untouched(&world, &agent, &v2);
    let reply = agent.request("POST", "/approve/web");
    assert_eq!(reply.json(), json!({"status": "approved", "service": "web", "digest": v2.digest}));
    let updated = agent.wait_entry(&Kind::UPDATED, 1);
    assert!(
        updated.message.contains("declares VOLUME /var/lib/db, the previous image /var/lib/db/data"),
        "{updated:#?}"
    );
    world.assert_runs("web", "v2");
    agent.wait_done(1);

    // The same volume: nothing is asked.
    world.push("web", &Image::good("v3").with_volume("/var/lib/db"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 2);
    world.assert_runs("web", "v3");
}

#[test]
fn a_minimum_age_survives_a_kill_and_a_trigger_overrides_it() {
    let (world, mut agent, v2) = gated("age", &json!({"min_age": 3600}));
    let before = waiting(&agent, "min_age", |_| true);
    agent.kill9(false);
    agent.restart();
    let after = waiting(&agent, "min_age", |_| true);
    assert_eq!(after.lifts_at, before.lifts_at, "the start of the wait is kept");
    is_untouched(&world, &agent, &v2);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn an_update_starts_without_a_poll_once_its_minimum_age_has_passed() {
    let (world, agent, _) = gated("short-age", &json!({"min_age": 5}));
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.entries(&Kind::UPDATE_AVAILABLE).len(), 1);
}

#[test]
fn a_closed_window_holds_an_update_until_it_is_reconfigured() {
    // Open for one minute a week, half a week from now.
    let away = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(84);
    let minute = away.strftime("%a %H:%M-").to_string();
    let end = (away + jiff::SignedDuration::from_mins(1)).strftime("%H:%M").to_string();
    let (world, mut agent, v2) =
        gated("window", &json!({"window": format!("{minute}{end}"), "timezone": "UTC"}));
    let held = waiting(&agent, "window", |_| true);
    assert!(held.lifts_at.is_some_and(|at| at > jiff::Timestamp::now()), "{held:?}");
    is_untouched(&world, &agent, &v2);
    agent.reload(|config| config["services"][0]["update"] = json!({"window": "00:00-24:00"}));
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn a_gate_command_holds_an_update_until_it_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    let (answer, program): (PathBuf, PathBuf) =
        (folder.path().join("answer"), folder.path().join("may-update"));
    fs::write(&answer, "75").unwrap();
    let script =
        format!("#!/bin/sh\necho \"$EK_SERVICE has players\"\nexit \"$(cat {})\"\n", answer.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (world, agent, v2) = gated("command", &json!({"gate": [program]}));
    let held = waiting(&agent, "command", |waiting| !waiting.why.contains("has not answered yet"));
    assert_eq!(held.why, format!("{} holds it back: web has players", program.display()));
    agent.trigger("web");
    is_untouched(&world, &agent, &v2);
    fs::write(&answer, "3").unwrap();
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::ERROR, 1);
    is_untouched(&world, &agent, &v2);
    fs::write(&answer, "0").unwrap();
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.entries(&Kind::RECOVERED).len(), 1);
}

/// Writes a script with this text and mode.
fn script(folder: &std::path::Path, text: &str, mode: u32) -> PathBuf {
    let program = folder.join("may-update");
    fs::write(&program, text).expect("the program can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("it belongs to this user");
    program
}

#[test]
fn a_gate_command_that_can_not_be_run_holds_updates() {
    let folder = tempfile::tempdir().unwrap();
    let program = script(folder.path(), "#!/bin/sh\nexit 0\n", 0o644);
    let (world, agent, v2) = gated("not-executable", &json!({"gate": [program]}));
    let held = waiting(&agent, "command", |waiting| !waiting.why.contains("has not answered yet"));
    assert!(held.why.contains("can't be run: permission denied"), "{held:?}");
    agent.wait_entry(&Kind::ERROR, 1);
    is_untouched(&world, &agent, &v2);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn the_last_line_of_a_gate_command_that_floods_its_output_and_leaves_children_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let text = format!(
        "#!/bin/sh\nhead -c 30000000 /dev/zero | tr '\\0' x\nsleep 600 &\necho $! > {}\necho\necho enough\nexit 75\n",
        pid.display()
    );
    let program = script(folder.path(), &text, 0o755);
    let (world, agent, v2) = gated("flood", &json!({"gate": [program]}));
    let held = waiting(&agent, "command", |waiting| !waiting.why.contains("has not answered yet"));
    assert!(held.why.ends_with("holds it back: enough"), "{held:?}");
    is_untouched(&world, &agent, &v2);
    let child = PathBuf::from("/proc").join(fs::read_to_string(&pid).unwrap().trim());
    wait_for("the child of the command to exit", || match fs::read_to_string(child.join("stat")) {
        Ok(stat) if !stat.contains(") Z ") => Err(stat),
        _ => Ok(()),
    });
}

#[test]
fn a_gate_command_that_hangs_delays_no_other_service_and_one_that_is_writable_by_others_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let program = script(folder.path(), "#!/bin/sh\nsleep 600\n", 0o777);
    let (mut world, _) = World::with_web("hangs");
    world.push("api", &Image::good("a1"));
    world.service("api", "api", &[]);
    world.project.up();
    let web = world.entry("web", &["web:latest"]).set("update", json!({"gate": [program]}));
    let agent = world.agent_for([web, world.entry("api", &["api:latest"])]);
    let health = agent.request("GET", "/health").text();
    assert!(health.contains("is writable by users other than its owner (mode 0777)"), "{health}");
    world.push("web", &Image::good("v2"));
    world.push("api", &Image::good("a2"));
    agent.trigger("web");
    waiting(&agent, "command", |waiting| waiting.why.contains("has not answered yet"));
    agent.trigger("api");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("api", "a2");
    world.assert_runs("web", "v1");
    waiting(&agent, "command", |waiting| waiting.why.contains("has not answered yet"));
}
