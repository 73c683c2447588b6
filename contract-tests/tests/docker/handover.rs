//! A handover: the new container starts beside the old one, which serves until the new one is proven, and is not touched by
//! a bad image.

use std::time::Duration;

use contract_tests::{Agent, ContainerView, Health, Image, World, wait_for};
use evenkeel_common::wire::{DeployOutcome, DeployPhase, Kind, StatusValue};
use serde_json::json;

const START_FIRST: &str = "deploy: { update_config: { order: start-first } }";

/// The full IDs of the containers of `web`, with what they run and since when.
fn containers(world: &World) -> Vec<(String, String, String, String)> {
    let views = world.project.containers().into_iter().filter(|view| view.service == "web");
    views.map(|view| (view.id, view.version, view.state, view.started_at)).collect()
}

/// A person's plain `compose up -d` changes nothing.
#[track_caller]
fn assert_settled(world: &World) {
    let before = containers(world);
    let output = world.project.compose(&["up", "-d"]);
    assert!(output.status.success(), "compose up: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(containers(world), before, "a plain `compose up -d` changes nothing");
}

#[test]
fn a_good_image_takes_over_without_an_interruption() {
    let (world, _) = World::with_web_of("handover", &Image::healthy("v1"), &[START_FIRST]);
    let old = world.project.container("web");
    let agent = world.agent();
    world.push("web", &Image::healthy("v2"));
    agent.trigger("web");
    agent.wait_step("probation", 1);
    let beside = wait_for("both containers to be shown", || {
        let service = agent.service("web");
        let sides = service.deploy.as_ref().and_then(|deploy| deploy.handover.clone());
        match sides.filter(|sides| sides.old.len() == 1 && sides.new.len() == 1) {
            Some(sides) => Ok(sides),
            None => Err(format!("{service:#?}")),
        }
    });
    assert_eq!(beside.old[0].name, old.name);
    assert_eq!(beside.new[0].name, format!("{}-web-2", world.project.name));
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.outage_seconds.map(f64::from), Some(0.0), "{entry:#?}");
    agent.wait_done(1);
    let last = agent.service("web").last_deployment.expect("one has ended");
    assert_eq!((last.outcome, last.outage_seconds), (DeployOutcome::Succeeded, entry.outage_seconds));
    let steps =
        ["pin_images", "pull", "start", "spread", "probation", "retire", "soak", "settle", "unpin", "done"];
    assert_eq!(agent.steps(), steps);
    let new = world.assert_runs("web", "v2");
    assert_eq!(new.name, format!("{}-web-2", world.project.name));
    assert_settled(&world);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    world.assert_tidy();
    // The next one goes the other way.
    world.push("web", &Image::healthy("v3"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 2);
    agent.wait_done(2);
    world.assert_runs("web", "v3");
    assert_settled(&world);
}

#[test]
fn a_bad_image_never_touches_what_runs() {
    let (world, v1) = World::with_web_of("handover-bad", &Image::healthy("v1"), &[START_FIRST]);
    let before = containers(&world);
    let agent = world.agent();
    for (nth, image) in
        [Image::unhealthy("v2"), Image::exits("v3", 0), Image::bad_entrypoint("v4")].iter().enumerate()
    {
        let bad = world.push("web", image);
        agent.trigger("web");
        let entry = agent.wait_entry(&Kind::ROLLED_BACK, nth + 1);
        assert_eq!(entry.outage_seconds.map(f64::from), Some(0.0), "{entry:#?}");
        assert!(entry.message.contains("the service was not interrupted"), "{}", entry.message);
        assert_eq!(entry.old_digest.as_deref(), Some(&*v1.digest));
        agent.wait_done(nth + 1);
        assert_eq!(containers(&world), before, "the same container since the same time, and no other");
        assert_eq!(agent.blocked().get("web/web:latest"), Some(&bad.digest));
        assert_settled(&world);
    }
    assert_eq!(agent.service("web").status, StatusValue::Blocked);
    world.assert_tidy();
}

#[test]
fn an_image_that_fails_alone_gives_way_to_the_old_container() {
    let (world, _) = World::with_web_of("handover-late", &Image::good("v1"), &[START_FIRST]);
    let old = world.project.container("web");
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("health_grace", 15)]);
    world.push("web", &Image::fails_on_command("v2"));
    agent.trigger("web");
    agent.wait_step("soak", 1);
    world.project.fail("web", "v2");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(1);
    let steps = agent.steps();
    let since = steps.iter().position(|step| step == "soak").expect("it was waited for");
    let undo = ["soak", "diagnose", "revive", "rollback", "verify_rollback", "withdraw", "unpin", "done"];
    assert_eq!(steps[since..], undo);
    let now = world.assert_runs("web", "v1");
    assert_eq!(now.id, old.id, "the kept container serves again");
    assert!(entry.outage_seconds.is_some_and(|seconds| f64::from(seconds) > 0.0), "{entry:#?}");
    assert!(entry.output.contains("cannot open the ledger"), "{}", entry.output);
    assert_settled(&world);
    world.assert_tidy();
}

/// Kills the agent at each of these steps, one after the other, in one deployment.
#[track_caller]
fn killed_at(agent: &mut Agent, steps: &[&str]) {
    let hit = agent.kill_at_each("web", steps, Duration::from_millis(20));
    assert!(2 * hit.len() > steps.len(), "most steps are hit: {hit:?} of {steps:?}");
}

#[test]
fn a_good_handover_survives_a_kill_at_each_of_its_steps() {
    let (world, _) = World::with_web_of("handover-kill", &Image::good("v1"), &[START_FIRST]);
    let drain = json!({"drain": {"exec": ["touch", "/tmp/drain"], "wait": 1}});
    let mut agent = world.agent_for([world.entry("web", &["web:latest"]).set("update", drain)]);
    world.push("web", &Image::good("v2"));
    killed_at(&mut agent, &["spread", "probation", "drain", "retire", "soak", "settle"]);
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert!(entry.outage_seconds.is_none_or(|seconds| f64::from(seconds) == 0.0), "{entry:#?}");
    wait_for("the deployment to complete", || {
        if agent.service("web").deploying { Err("deploying".to_owned()) } else { Ok(()) }
    });
    world.assert_runs("web", "v2");
    assert_settled(&world);
    world.assert_tidy();
    assert_eq!(agent.entries(&Kind::UPDATED).len(), 1);
    assert_eq!(agent.entries(&Kind::ROLLED_BACK), []);
}

#[test]
fn a_bad_handover_survives_a_kill_at_each_of_its_steps() {
    let (world, _) = World::with_web_of("handover-kill-bad", &Image::good("v1"), &[START_FIRST]);
    let before = containers(&world);
    let mut agent = world.agent_for([world.entry("web", &["web:latest"]).set("health_grace", 15)]);
    world.push("web", &Image::exits("v2", 1));
    killed_at(&mut agent, &["spread", "probation", "diagnose", "rollback", "withdraw"]);
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    wait_for("the deployment to complete", || {
        if agent.service("web").deploying { Err("deploying".to_owned()) } else { Ok(()) }
    });
    assert_eq!(containers(&world), before, "the same container since the same time, and no other");
    assert_settled(&world);
    world.assert_tidy();
    assert_eq!(agent.entries(&Kind::UPDATED), []);
}

#[test]
fn the_old_container_is_drained_before_it_is_stopped() {
    let check = Health { command: "! test -f /tmp/drain".to_owned(), ..Health::every_second("true", 2) };
    let (world, _) =
        World::with_web_of("handover-drain", &Image::good("v1").with_health(check.clone()), &[START_FIRST]);
    let seen = world.folder().join("seen");
    let script = world.folder().join("drain.sh");
    let text = format!("#!/bin/sh\necho \"$EK_SERVICE $EK_OLD $EK_NEW\" >> {}\n", seen.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let drain = json!({"drain": {"exec": ["touch", "/tmp/drain"], "command": [script], "wait": 5}});
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("update", drain)]);
    let old = world.project.container("web");
    world.push("web", &Image::good("v2").with_health(check));
    agent.trigger("web");
    wait_for("the old container to be drained", || {
        let phase = agent.service("web").deploy.map(|deploy| deploy.phase);
        let views = world.project.containers();
        let is_drained = |view: &ContainerView| {
            (view.id.as_str(), view.state.as_str(), view.health.as_str())
                == (&*old.id, "running", "unhealthy")
        };
        let holds = phase == Some(DeployPhase::Draining) && views.iter().any(is_drained);
        if holds { Ok(()) } else { Err(format!("{phase:?} {views:#?}")) }
    });
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.outage_seconds.map(f64::from), Some(0.0), "a drained container is no outage");
    let new = world.assert_runs("web", "v2");
    assert_eq!(std::fs::read_to_string(&seen).unwrap(), format!("web {} {}\n", old.id, new.id));
}

/// The same image, which would crash on half a migration, runs both.
#[test]
fn a_new_container_is_started_only_after_the_job_that_it_depends_on() {
    let mut world = World::new("handover-job");
    world.push("web", &Image::good("v1"));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "services:
  migrate:
    image: '{host}/web:latest'
    labels: {{labels}}
    command: [/bin/sh, -c, 'sleep 20']
  web:
    image: '{host}/web:latest'
    labels: {{labels}}
    stop_grace_period: 1s
    {START_FIRST}
    depends_on:
      migrate: {{ condition: service_completed_successfully }}
"
    ));
    // The job does not keep running.
    let output = world.project.compose(&["up", "-d"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let old = world.project.container("web");
    let agent = world.agent();
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);
    let new = world.project.containers();
    let new = new.iter().find(|view| view.service == "web").expect("it runs");
    assert_ne!(new.id, old.id);
    let ended = world.engine.docker(&["inspect", "--format", "{{.State.FinishedAt}}", &job_of(&world)]);
    assert!(*ended <= *new.started_at, "{ended} {}", new.started_at);
}

/// The ID of the container of `migrate`.
fn job_of(world: &World) -> String {
    let views = world.project.containers();
    views.iter().find(|view| view.service == "migrate").expect("it was run").id.clone()
}

#[test]
fn a_service_that_cannot_run_twice_is_stopped_first_and_the_line_is_named() {
    let lines = [START_FIRST, "container_name: handover-only-once"];
    let (world, _) = World::with_web_of("handover-name", &Image::good("v1"), &lines);
    let agent = world.agent();
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    let reason = entry.reason.unwrap_or_default();
    assert!(reason.contains("web has container_name: handover-only-once"), "{reason}");
    agent.wait_done(1);
    assert_eq!(agent.steps(), ["pin_images", "pull", "start", "probation", "unpin", "done"]);
    world.assert_runs("web", "v2");
}
