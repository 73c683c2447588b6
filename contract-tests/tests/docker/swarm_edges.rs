//! Edge cases of swarm services: manual rollbacks, logins, platforms, images without a digest.

use base64::Engine as _;
use contract_tests::{Image, Registry, Shape, Swarm, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::json;

use crate::swarm::{with_v1, with_v2_in_progress};
use crate::swarm_gates::cycle;

fn roll_back(swarm: &Swarm) {
    swarm.engine().docker(&["service", "rollback", "--detach", "--quiet", "shop_web"]);
    swarm.wait_state("rollback_completed");
}

#[test]
fn a_manual_rollback_is_kept_until_a_new_digest_or_a_manual_trigger() {
    let (swarm, v1, mut agent) = with_v1(&["--replicas", "2"]);
    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);

    roll_back(&swarm);
    let held = cycle(&agent, "blocked");
    assert_eq!((held.digest.as_str(), held.clear.as_str()), (&*v2.digest, "POST /trigger/web"));
    let announced = agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    assert_eq!(announced.new_digest.as_deref(), Some(&*v2.digest));
    let why = agent.request("GET", "/why/web").json();
    assert!(
        why["answer"].as_str().unwrap().contains("was replaced here by something other than Evenkeel"),
        "{why}"
    );
    agent.terminate();
    agent.restart();
    agent.wait_first_poll();
    cycle(&agent, "blocked");
    swarm.assert_runs(&v1, 2);
    assert_eq!((agent.blocked().len(), agent.errored().len()), (0, 0));
    assert_eq!(agent.entries(&Kind::UPDATE_AVAILABLE).len(), 1, "it is reported once");

    // A manual trigger overrides it.
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 2);
    swarm.assert_runs(&v2, 2);
    agent.wait_done(2);
    roll_back(&swarm);
    cycle(&agent, "blocked");
    assert_eq!(agent.request("POST", "/unblock/web").json()["status"], "unblocked");
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::UPDATED, 3);
    agent.wait_done(3);

    // A new digest is deployed.
    roll_back(&swarm);
    cycle(&agent, "blocked");
    let v3 = swarm.push(&Image::good("v3"));
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::UPDATED, 4);
    swarm.assert_runs(&v3, 2);
}

#[test]
fn a_manual_rollback_is_kept_although_no_check_has_seen_the_newer_image() {
    let (swarm, v1, mut agent) = with_v1(&["--replicas", "2"]);
    agent.terminate();
    let v2 = swarm.push(&Image::good("v2"));
    let image = format!("{}@{}", swarm.image(), v2.digest);
    swarm.change(&["--image", &image]);
    swarm.wait_state("completed");
    roll_back(&swarm);
    agent.restart();
    agent.wait_first_poll();
    let held = cycle(&agent, "blocked");
    assert_eq!((held.digest.as_str(), held.clear.as_str()), (&*v2.digest, "POST /trigger/web"));
    assert_eq!(agent.entries(&Kind::UPDATE_AVAILABLE).len(), 1, "it is reported once");
    swarm.assert_runs(&v1, 2);
    assert_eq!(agent.unblock("web"), "unblocked");
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 2);
}

#[test]
fn a_manual_rollback_during_an_update_is_kept() {
    let (swarm, [v1, v2], agent) = with_v2_in_progress(&["--replicas", "2", "--update-delay", "15s"]);
    roll_back(&swarm);
    agent.wait_done(1);
    let errored = agent.errored().get("web").cloned().unwrap_or_default();
    assert!(errored.contains("the swarm service shop_web was rolled back"), "{errored}");
    let held = cycle(&agent, "blocked");
    assert_eq!(held.digest, v2.digest);
    swarm.assert_runs(&v1, 2);
    assert_eq!(agent.entries(&Kind::ROLLED_BACK), []);
    agent.redeploy("web");
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    swarm.assert_runs(&v2, 2);
}

#[test]
fn a_removed_service_completes_its_update_even_after_a_restart() {
    let (swarm, v1, mut agent) = with_v1(&["--replicas", "1", "--update-failure-action", "pause"]);
    swarm.push(&Image::exits("bad", 1));
    agent.trigger("web");
    agent.wait_step("converge", 1);
    agent.reload(|config| config["services"] = json!([]));
    agent.kill9(false);
    agent.restart();
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.service, "web");
    swarm.assert_runs(&v1, 1);
    agent.wait_done(1);
}

#[test]
fn the_login_is_passed_to_nodes_without_one() {
    let folder = tempfile::Builder::new().prefix("ektest-swarm-login-").tempdir().unwrap();
    let htpasswd = folder.path().join("htpasswd");
    // Password: secret
    let hash = "$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a";
    std::fs::write(&htpasswd, format!("tester:{hash}\n")).unwrap();
    let auth = base64::engine::general_purpose::STANDARD.encode("tester:secret");
    let registry = Registry::start_with_login_for_private_engine(&htpasswd, &format!("Basic {auth}"));
    let docker = folder.path().join("docker");
    std::fs::create_dir(&docker).unwrap();
    let config = json!({ "auths": { registry.host.clone(): { "auth": auth } } });
    std::fs::write(docker.join("config.json"), config.to_string()).unwrap();
    let docker = docker.display().to_string();

    let swarm = Swarm::start_with(registry);
    swarm.push(&Image::good("v1"));
    swarm.create_with(&["--config", &docker], &["--with-registry-auth"]);
    let agent = swarm.agent_with(swarm.entry(), &[("DOCKER_CONFIG", &docker)]);
    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 1);
    let bad = swarm.push(&Image::exits("bad", 0));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(agent.blocked().values().next(), Some(&bad.digest));
    swarm.assert_runs(&v2, 1);
    assert!(agent.log().iter().all(|line| !line.0.contains("secret") && !line.0.contains(&auth)));
}

#[test]
fn an_image_for_other_platforms_is_not_deployed_and_one_that_can_not_be_pulled_is_not_blocked() {
    let (swarm, v1, agent) = with_v1(&["--replicas", "1", "--update-failure-action", "pause"]);
    swarm.push_as(&Image::good("s390x"), Shape::ForeignIndex);
    let before = swarm.service();
    agent.trigger("web");
    wait_for("the platform to be reported", || match agent.errored().get("web") {
        Some(text) if text.contains("the nodes of the swarm are") && text.contains("linux/s390x") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(swarm.service()["Version"], before["Version"]);
    agent.wait_done(1);

    let lost = Image::good("lost");
    swarm.push_as(&lost, Shape::OciIndex);
    swarm.delete_config(&lost);
    agent.trigger("web");
    agent.wait_done(2);
    let errored = agent.errored().get("web").cloned().unwrap_or_default();
    assert!(errored.contains("was rolled back, but is not blocked"), "{errored}");
    assert_eq!(agent.blocked().len(), 0);
    swarm.assert_runs(&v1, 1);

    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 1);
    assert_eq!(agent.errored().len(), 0);
}

#[test]
fn tasks_are_replaced_one_by_one_and_shown_in_metrics_and_status() {
    let (swarm, _, agent) = with_v1(&["--replicas", "5", "--update-parallelism", "1"]);
    wait_for("five tasks to run", || match swarm.running().len() {
        5 => Ok(()),
        other => Err(other.to_string()),
    });
    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    let mut fewest = 5;
    wait_for("the update", || {
        fewest = fewest.min(swarm.running().len());
        let updated = agent.entries(&Kind::UPDATED);
        if updated.is_empty() { Err(format!("{:?}", agent.steps())) } else { Ok(()) }
    });
    assert!(fewest >= 4, "{fewest} tasks ran");
    swarm.assert_runs(&v2, 5);
    wait_for("the tasks to be measured", || {
        let service = agent.service("web");
        let containers = service.containers.clone().unwrap_or_default();
        let measured = containers.iter().filter(|one| one.memory_usage_mb.is_some()).count();
        if (containers.len(), measured) == (5, 5) { Ok(()) } else { Err(format!("{service:#?}")) }
    });
    let metrics = agent.request("GET", "/metrics").text();
    for line in [
        "evenkeel_service_containers{service=\"web\"} 5",
        "evenkeel_service_updates_total{service=\"web\"} 1",
        "evenkeel_service_healthy{service=\"web\"} 1",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}: {metrics}");
    }
}

#[test]
fn a_swarm_service_without_a_digest_or_with_another_image_is_reported() {
    let swarm = Swarm::start();
    let v1 = swarm.push(&Image::good("v1"));
    swarm.create(&["--no-resolve-image"]);
    assert_eq!(swarm.spec_image(), swarm.image(), "the specification has no digest");
    let mut agent = swarm.agent(swarm.entry());
    let entry = agent.wait_entry(&Kind::NOT_FOUND, 1);
    assert!(entry.message.contains("names no digest of web:latest"), "{}", entry.message);
    agent.redeploy("web");
    let entry = agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    assert_eq!(entry.message, "the tasks of shop_web were recreated, and passed their probation");
    swarm.assert_runs(&v1, 1);
    agent.wait_done(1);

    swarm.registry.push("web", "other", &Image::good("other"), Shape::Docker, "swarm");
    agent.reload(|config| config["services"][0]["images"] = json!(["web:other"]));
    let expected = format!("the swarm service shop_web runs {}, not the configured web:other", swarm.image());
    wait_for("the other image to be reported", || match agent.errored().get("web") {
        Some(text) if *text == expected => Ok(()),
        other => Err(format!("{other:?}, and not {expected}")),
    });
    swarm.assert_runs(&v1, 1);
}

#[test]
fn a_failed_digest_is_deployed_again_after_an_unblock() {
    let (swarm, v1, agent) = with_v1(&["--replicas", "1", "--update-failure-action", "pause"]);
    let bad = swarm.push(&Image::exits("bad", 0));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(1);
    assert_eq!(agent.blocked().values().next(), Some(&bad.digest));
    assert_eq!(agent.unblock("web"), "unblocked");
    assert_eq!(agent.blocked().len(), 0);
    agent.wait_entry(&Kind::UNBLOCKED, 1);
    // A poll cycle deploys it again, and it fails again.
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 2);
    assert_eq!(entry.new_digest.as_deref(), Some(&*bad.digest));
    assert_eq!(agent.blocked().values().next(), Some(&bad.digest));
    swarm.assert_runs(&v1, 1);
    assert_eq!(agent.unblock("web"), "unblocked");
    assert_eq!(agent.unblock("web"), "not_blocked");
}
