//! What holds an update back, on a real engine: a held digest is neither fetched nor started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use contract_tests::{Agent, Image, Pushed, Service, World, wait_for};
use evenkeel_common::wire::{Kind, Waiting};
use serde_json::{Value, json};

/// `web` with these gates, on version 1; the registry has version 2.
fn gated(about: &str, update: &Value) -> (World, Agent, Pushed) {
    let (world, _) = World::with_web(about);
    let web: Service = world.entry("web", &["web:latest"]).set("update", update.clone());
    let agent = world.agent_for([web]);
    let v2 = world.push("web", &Image::good("v2"));
    assert_eq!(agent.ask("POST", "/trigger").status, 200);
    (world, agent, v2)
}

/// What the update waits for, once that is known and accepted by `settled`.
fn waiting(agent: &Agent, gate: &str, settled: impl Fn(&Waiting) -> bool) -> Waiting {
    wait_for("the update to wait", || {
        let service = agent.service("web");
        match &service.waiting {
            Some(waiting) if waiting.gate == gate && settled(waiting) => Ok(waiting.clone()),
            _ => Err(format!("{service:#?}")),
        }
    })
}

/// It runs version 1, and nothing of version 2 was fetched.
fn is_untouched(world: &World, agent: &Agent, v2: &Pushed) {
    world.assert_runs("web", "v1");
    assert_eq!(agent.steps(), Vec::<String>::new());
    let reference = format!("{}@{}", world.reference("web").trim_end_matches(":latest"), v2.digest);
    assert_eq!(world.engine.image_id(&reference), None, "a held digest was fetched");
}

#[test]
fn an_update_waits_for_its_approval_and_goes_with_it() {
    let (world, agent, v2) = gated("approval", &json!({"approve": true}));
    let held = waiting(&agent, "approval", |_| true);
    assert_eq!((held.digest.as_str(), held.clear.as_str()), (&*v2.digest, "POST /approve/web"));
    is_untouched(&world, &agent, &v2);
    let told = agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    assert_eq!((told.new_digest.as_deref(), told.reason.as_deref()), (Some(&*v2.digest), Some("approval")));
    assert_eq!(agent.ask("POST", "/approve/none").status, 404);
    let reply = agent.ask("POST", "/approve/web");
    assert_eq!(reply.json(), json!({"status": "approved", "service": "web", "digest": v2.digest}));
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    agent.wait_done(1);
    // The check that follows the update forgets what was approved.
    wait_for("nothing to wait any more", || {
        let reply = agent.ask("POST", "/approve/web").json();
        if reply == json!({"status": "nothing_waiting"}) { Ok(()) } else { Err(reply.to_string()) }
    });
    assert_eq!(agent.entries(&Kind::UPDATE_AVAILABLE).len(), 1);
}

#[test]
fn a_minimum_age_is_waited_for_over_a_kill_and_a_trigger_passes_it() {
    let (world, mut agent, v2) = gated("age", &json!({"min_age": 3600}));
    let before = waiting(&agent, "min_age", |_| true);
    agent.kill9(false);
    agent.restart();
    let after = waiting(&agent, "min_age", |_| true);
    assert_eq!(after.lifts_at, before.lifts_at, "since when it waits is not forgotten");
    is_untouched(&world, &agent, &v2);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn a_minimum_age_that_has_passed_lets_the_update_begin_without_a_poll() {
    let (world, agent, _) = gated("short-age", &json!({"min_age": 5}));
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.entries(&Kind::UPDATE_AVAILABLE).len(), 1);
}

#[test]
fn a_closed_window_holds_an_update_until_it_is_configured_open() {
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
    assert_eq!(agent.ask("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn a_gate_command_holds_an_update_until_it_says_go() {
    let folder = tempfile::tempdir().unwrap();
    let (answer, program): (PathBuf, PathBuf) =
        (folder.path().join("answer"), folder.path().join("may-update"));
    fs::write(&answer, "75").unwrap();
    let script =
        format!("#!/bin/sh\necho \"$EK_SERVICE has players\"\nexit \"$(cat {})\"\n", answer.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (world, agent, v2) = gated("command", &json!({"gate": [program]}));
    let held = waiting(&agent, "command", |waiting| !waiting.why.contains("being asked"));
    assert_eq!(held.why, format!("{} lets it wait: web has players", program.display()));
    agent.trigger("web");
    is_untouched(&world, &agent, &v2);
    fs::write(&answer, "3").unwrap();
    assert_eq!(agent.ask("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::ERROR, 1);
    is_untouched(&world, &agent, &v2);
    fs::write(&answer, "0").unwrap();
    assert_eq!(agent.ask("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.entries(&Kind::RECOVERED).len(), 1);
}
