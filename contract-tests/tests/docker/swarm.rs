//! Swarm services: updated, proven, rolled back and blocked like compose projects.

use std::time::Duration;

use contract_tests::{Agent, Image, Kill, Pushed, Swarm, run_agent, wait_for};
use evenkeel_common::wire::{Kind, RedeployReply, StatusValue};

/// Starts a swarm whose service `shop_web` runs `v1`, and an agent.
pub(crate) fn with_v1(options: &[&str]) -> (Swarm, Pushed, Agent) {
    let swarm = Swarm::start();
    let v1 = swarm.push(&Image::good("v1"));
    swarm.create(options);
    let agent = swarm.agent(swarm.entry());
    (swarm, v1, agent)
}

/// Like [`with_v1`], with an update to `v2` in progress.
pub(crate) fn with_v2_in_progress(options: &[&str]) -> (Swarm, [Pushed; 2], Agent) {
    let (swarm, v1, agent) = with_v1(options);
    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_step("converge", 1);
    (swarm, [v1, v2], agent)
}

/// Asserts that the digest is blocked and that further checks do not change the service.
#[track_caller]
fn assert_blocked(swarm: &Swarm, agent: &Agent, bad: &Pushed) {
    assert_eq!(agent.blocked().values().next(), Some(&bad.digest));
    let before = swarm.service();
    for _ in 0..2 {
        let entry = agent.check("web");
        assert_eq!(entry.message, "checked: the registry still has a blocked digest");
    }
    assert_eq!(swarm.service()["Spec"], before["Spec"]);
    assert_eq!(swarm.service()["Version"], before["Version"]);
}

#[test]
fn a_good_image_is_proven_and_bad_ones_are_rolled_back_and_blocked() {
    let (swarm, v1, agent) = with_v1(&["--replicas", "2", "--update-failure-action", "rollback"]);
    wait_for("the first status", || match agent.service("web").status {
        StatusValue::Ok => Ok(()),
        other => Err(format!("{other:?}: {:#?}", agent.service("web"))),
    });
    let service = agent.service("web");
    assert_eq!(service.images.as_ref().unwrap()[0].digest, v1.digest);
    let names: Vec<String> = service.containers.unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["shop_web.1", "shop_web.2"]);

    let v2 = swarm.push(&Image::healthy("v2"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.old_digest.as_deref(), Some(&*v1.digest));
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    // How long depends on how many tasks the swarm replaces at once.
    assert!(entry.outage_seconds.is_some(), "{entry:#?}");
    // The versions come from the registry, because the images are on other nodes.
    assert!(entry.message.contains("was updated from v1 to v2 and passed"), "{}", entry.message);
    assert_eq!(entry.output, "version: v1 → v2");
    swarm.assert_runs(&v2, 2);
    agent.wait_done(1);
    assert_eq!(agent.steps(), ["admit", "update", "converge", "done"]);

    let bad = [
        Image::unhealthy("bad1"),
        Image::exits("bad2", 0),
        Image::bad_entrypoint("bad3"),
        Image::without_command("bad4"),
    ];
    for (n, image) in bad.iter().enumerate() {
        let pushed = swarm.push(image);
        agent.trigger("web");
        let entry = agent.wait_entry(&Kind::ROLLED_BACK, n + 1);
        assert_eq!(entry.new_digest.as_deref(), Some(&*pushed.digest), "{entry:#?}");
        assert_eq!(entry.old_digest.as_deref(), Some(&*v2.digest), "{entry:#?}");
        assert!(entry.container.unwrap().starts_with("shop_web."));
        swarm.assert_runs(&v2, 2);
        if n == 0 {
            let probe = "last health check: the database is not there";
            assert!(entry.output.contains(probe), "{}", entry.output);
        }
        if n == 1 {
            assert!(entry.output.contains("cannot open the ledger"), "{}", entry.output);
            assert!(entry.output.contains("exit code 7"), "{}", entry.output);
        }
        assert_blocked(&swarm, &agent, &pushed);
    }
    let service = agent.service("web");
    assert_eq!((service.updates_total, service.rollbacks_total), (1, 4));

    // A new digest is deployed. A redeploy recreates the tasks with the running image.
    let v3 = swarm.push(&Image::good("v3"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 2);
    swarm.assert_runs(&v3, 2);
    assert_eq!(agent.blocked().len(), 0);
    let forced = swarm.service()["Spec"]["TaskTemplate"]["ForceUpdate"].as_u64();
    assert_eq!(
        agent.redeploy("web"),
        RedeployReply::Redeploying { service: "web".to_owned(), kept: Vec::new() }
    );
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    assert_eq!(swarm.service()["Spec"]["TaskTemplate"]["ForceUpdate"].as_u64(), forced.map(|n| n + 1));
    swarm.assert_runs(&v3, 2);
}

#[test]
fn with_every_failure_action_a_bad_image_is_rolled_back_and_blocked() {
    for action in ["pause", "continue", "rollback"] {
        let (replicas, parallelism) = if action == "pause" { ("5", "3") } else { ("3", "1") };
        let (swarm, v1, agent) = with_v1(&[
            "--replicas",
            replicas,
            "--update-failure-action",
            action,
            "--update-parallelism",
            parallelism,
            "--rollback-parallelism",
            "3",
        ]);
        let bad = swarm.push(&Image::exits("bad", 0));
        agent.trigger("web");
        let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
        assert_eq!(entry.new_digest.as_deref(), Some(&*bad.digest), "{action}: {entry:#?}");
        swarm.assert_runs(&v1, replicas.parse().unwrap());
        assert_blocked(&swarm, &agent, &bad);
    }
}

#[test]
fn a_global_service_is_updated_and_rolled_back() {
    let (swarm, _, agent) = with_v1(&["--mode", "global", "--update-failure-action", "pause"]);
    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 1);
    let bad = swarm.push(&Image::exits("bad", 0));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    swarm.assert_runs(&v2, 1);
    assert_blocked(&swarm, &agent, &bad);
}

#[test]
fn an_agent_that_is_killed_at_any_step_ends_the_update() {
    let (swarm, v1, mut agent) = with_v1(&["--replicas", "2", "--update-failure-action", "pause"]);
    let mut runs = v1;
    let steps = [
        ("admit", true),
        ("update", true),
        ("converge", true),
        ("update", false),
        ("converge", false),
        ("diagnose", false),
        ("rollback", false),
        ("verify_rollback", false),
    ];
    let (mut updated, mut rolled_back) = (0, 0);
    for (n, (step, good)) in steps.into_iter().enumerate() {
        let version = format!("v{}", n + 2);
        let image = if good { Image::good(&version) } else { Image::exits(&version, 0) };
        let pushed = swarm.push(&image);
        agent.kill_at(Kill {
            step: Some(step.to_owned()),
            after: Duration::from_millis(50),
            compose_too: false,
        });
        agent.trigger("web");
        agent.wait_end();
        agent.restart();
        if good {
            updated += 1;
            let entry = agent.wait_entry(&Kind::UPDATED, updated);
            assert_eq!(entry.new_digest.as_deref(), Some(&*pushed.digest), "{step}");
            runs = pushed;
        } else {
            rolled_back += 1;
            let entry = agent.wait_entry(&Kind::ROLLED_BACK, rolled_back);
            assert_eq!(entry.new_digest.as_deref(), Some(&*pushed.digest), "{step}");
            assert_eq!(agent.blocked().values().next(), Some(&pushed.digest), "{step}");
        }
        agent.wait_entry(&Kind::RESUMED, n + 1);
        swarm.assert_runs(&runs, 2);
    }
}

#[test]
fn manual_changes_during_an_update_are_respected_and_reported() {
    let (swarm, [v1, v2], agent) = with_v2_in_progress(&["--replicas", "2", "--update-delay", "20s"]);
    // A manual update to another image.
    let old = format!("{}@{}", swarm.image(), v1.digest);
    swarm.change(&["--image", &old, "--update-delay", "0s"]);
    agent.wait_step("done", 1);
    wait_for("the interference to be reported", || match agent.errored().get("web") {
        Some(text) if text.contains("by someone else") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(agent.blocked().len(), 0);
    assert!(swarm.spec_image().ends_with(&v1.digest));
    // A manual change of another property during an update is kept, and the update continues.
    swarm.wait_state("completed");
    agent.trigger("web");
    agent.wait_step("converge", 2);
    swarm.change(&["--env-add", "BY=somebody"]);
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 2);
    let env = swarm.service()["Spec"]["TaskTemplate"]["ContainerSpec"]["Env"].clone();
    assert_eq!(env, serde_json::json!(["BY=somebody"]));
}

#[test]
fn an_engine_that_is_not_a_manager_and_a_missing_service_are_reported() {
    let swarm = Swarm::engine_only();
    swarm.push(&Image::good("v1"));
    let agent = swarm.agent(swarm.entry());
    let errored = || agent.errored().get("web").cloned().unwrap_or_default();
    assert!(errored().contains("this engine is not a swarm manager"), "{}", errored());
    let examined = || {
        let file = swarm.folder().join("config.json");
        run_agent(&swarm.engine(), &file, &["doctor", "--json"]).json()["findings"].to_string()
    };
    assert!(examined().contains("this engine is not a swarm manager"), "{}", examined());
    swarm.engine().docker(&["swarm", "init", "--advertise-addr", "127.0.0.1"]);
    agent.trigger("web");
    wait_for("the missing service to be reported", || match errored() {
        text if text == "the swarm has no service \"shop_web\"" => Ok(()),
        text => Err(text),
    });
    swarm.create(&[]);
    agent.check("web");
    assert_eq!(errored(), "");
    assert!(!examined().contains("swarm"), "{}", examined());
}

#[test]
fn an_update_that_waits_for_a_node_blocks_nothing() {
    let (swarm, v1, agent) = with_v1(&["--replicas", "1", "--update-failure-action", "pause"]);
    // While the node is drained, the update waits. It continues when the node is active again.
    let v2 = swarm.push(&Image::good("v2"));
    let node = swarm.engine().docker(&["node", "ls", "--format", "{{.ID}}"]);
    swarm.engine().docker(&["node", "update", "--availability", "drain", &node]);
    agent.trigger("web");
    wait_for("the update to wait for a node", || match agent.errored().get("web") {
        Some(text) if text.contains("waits for a node") || text.contains("can run") => Ok(()),
        other => Err(format!("{other:?} {:?}", agent.steps())),
    });
    assert_eq!(agent.blocked().len(), 0);
    swarm.engine().docker(&["node", "update", "--availability", "active", &node]);
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 1);
    assert_ne!(v1.digest, v2.digest);
    assert_eq!(agent.errored().len(), 0);
}
