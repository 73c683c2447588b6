//! `evenkeel trigger NAME --wait`, as a pipeline uses it after a push.

use std::thread;

use contract_tests::{Agent, CommandOutput, Image, World, run_agent, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::json;

fn trigger(world: &World, agent: &Agent, arguments: &[&str]) -> CommandOutput {
    let api = format!("http://{}", agent.address());
    let command = [&["trigger", "web", "--api", &api][..], arguments].concat();
    run_agent(&world.engine, &world.folder().join("config.json"), &command)
}

#[test]
fn a_pipeline_learns_whether_its_image_was_proven() {
    let (world, v1) = World::with_web("ci");
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("health_grace", 5)]);
    let end = trigger(&world, &agent, &["--wait", "120"]);
    assert_eq!(end.code, Some(0), "{end:#?}");
    assert_eq!(end.stdout, format!("web: up to date: {}\n", v1.digest));

    let v2 = world.push("web", &Image::good("v2"));
    let end = trigger(&world, &agent, &["--wait", "120", "--digest", &v2.digest]);
    assert_eq!(end.code, Some(0), "{end:#?}");
    assert_eq!(end.stdout, format!("web: proven: {}\n", v2.digest));
    assert!(end.stderr.contains("on probation"), "{end:#?}");
    world.assert_runs("web", "v2");
    let end = trigger(&world, &agent, &["--wait", "120", "--digest", &v1.digest]);
    assert_eq!(end.code, Some(1), "another digest runs: {end:#?}");

    let bad = world.push("web", &Image::exits("v3", 0));
    let end = trigger(&world, &agent, &["--wait", "120", "--json"]);
    assert_eq!(end.code, Some(1), "{end:#?}");
    let answer = end.json();
    assert_eq!(answer["outcome"], "failed", "{answer}");
    assert!(answer["reason"].as_str().is_some_and(|why| why.contains("code 7")), "{answer}");
    world.assert_runs("web", "v2");
    let end = trigger(&world, &agent, &["--wait", "120"]);
    assert_eq!(end.code, Some(1), "a blocked digest: {end:#?}");
    assert!(end.stdout.contains(&bad.digest) && end.stdout.contains("blocked"), "{end:#?}");
}

#[test]
fn a_pipeline_learns_which_gate_holds_its_image_and_joins_a_deployment() {
    let (world, _) = World::with_web("ci-gates");
    let allowed = world.folder().join("allowed");
    let script =
        format!("sleep 1; test -e {} && exit 0; echo not before the backup; exit 75", allowed.display());
    let update = json!({ "gate": ["/bin/sh", "-c", script], "min_age": 86_400 });
    let entry = world.entry("web", &["web:latest"]).set("health_grace", 10).set("update", update);
    let agent = world.agent_for([entry]);
    let v2 = world.push("web", &Image::good("v2"));
    let end = trigger(&world, &agent, &["--wait", "120"]);
    assert_eq!(end.code, Some(75), "{end:#?}");
    assert!(end.stdout.contains("not before the backup") && end.stderr.contains("command"), "{end:#?}");
    std::fs::write(&allowed, "").expect("files of the test can be used");
    let end = trigger(&world, &agent, &["--wait", "120", "--no-pass"]);
    // The trigger before has opened it for this digest.
    assert_eq!(end.code, Some(0), "{end:#?}");
    world.assert_runs("web", "v2");

    world.push("web", &Image::good("v3"));
    let end = trigger(&world, &agent, &["--wait", "120", "--no-pass"]);
    assert_eq!(end.code, Some(75), "{end:#?}");
    assert!(end.stdout.contains("min_age"), "{end:#?}");
    world.assert_runs("web", "v2");
    thread::scope(|scope| {
        let first = scope.spawn(|| trigger(&world, &agent, &["--wait", "120"]));
        wait_for("the deployment", || {
            if agent.service("web").deploying { Ok(()) } else { Err("it has not begun".to_owned()) }
        });
        let end = trigger(&world, &agent, &["--wait", "1"]);
        assert_eq!(end.code, Some(124), "{end:#?}");
        let joined = trigger(&world, &agent, &["--wait", "120"]);
        assert_eq!(joined.code, Some(0), "{joined:#?}");
        let first = first.join().expect("it ends");
        assert_eq!(first.code, Some(0), "{first:#?}");
    });
    assert_eq!(agent.entries(&Kind::UPDATED).len(), 2);
    assert_ne!(v2.digest, agent.service("web").images.expect("it runs").remove(0).digest);
}
