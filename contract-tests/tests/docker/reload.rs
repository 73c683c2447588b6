//! SIGHUP during a deployment: the deployment completes, and the new configuration takes effect.

use contract_tests::{Agent, Image, World, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::Value;

/// Deploys a good image, reloads with a changed configuration at a journal step, and waits for the end of the deployment.
fn deploys_on(world: &World, step: &str, change: impl FnOnce(&mut Value)) -> Agent {
    let mut agent = world.agent();
    // The health check makes its probation longer.
    let v2 = world.push("web", &Image::healthy("v2"));
    agent.trigger("web");
    agent.wait_step(step, 1);
    agent.reload(change);
    agent.wait_entry(&Kind::CONFIG_RELOADED, 1);
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    world.assert_runs("web", "v2");
    world.assert_tidy();
    for kind in [Kind::ROLLED_BACK, Kind::ROLLBACK_FAILED, Kind::ERROR, Kind::CONFIG_REJECTED] {
        assert_eq!(agent.entries(&kind), [], "{kind}");
    }
    assert_eq!(agent.entries(&Kind::UPDATED).len(), 1);
    agent
}

fn goes_on_when_changed(about: &str, step: &str) {
    let (world, _) = World::with_web(about);
    let agent = deploys_on(&world, step, |config| config["services"][0]["auto_heal"] = true.into());
    assert_eq!(agent.entries(&Kind::RESUMED).len(), 1, "{:#?}", agent.audit());
    let service = agent.service("web");
    assert!(service.auto_heal, "the new configuration is in effect: {service:#?}");
    assert_eq!((service.updates_total, service.restarts_total), (1, 0), "{service:#?}");
    world.crash(&["web"]);
    agent.wait_entry(&Kind::RESTARTED, 1);
}

#[test]
fn a_deployment_on_probation_survives_a_reload_that_changes_its_service() {
    goes_on_when_changed("reload-p", "probation");
}

#[test]
fn a_deployment_in_compose_survives_a_reload_that_changes_its_service() {
    goes_on_when_changed("reload-s", "start");
}

/// Deploys a bad image and reloads with a changed configuration during its probation.
fn reloaded_on_probation(world: &World, change: impl FnOnce(&mut Value)) -> Agent {
    let mut agent = world.agent();
    world.push("web", &Image::unhealthy("v2"));
    agent.trigger("web");
    agent.wait_step("probation", 1);
    agent.reload(change);
    agent.wait_entry(&Kind::CONFIG_RELOADED, 1);
    agent
}

fn rename(config: &mut Value) {
    config["services"][0]["name"] = "shop".into();
}

#[track_caller]
fn assert_rolled_back_by_web(world: &World, agent: &Agent) {
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.service, "web", "{entry:#?}");
    agent.wait_done(1);
    world.assert_runs("web", "v1");
    world.assert_tidy();
}

#[test]
fn a_bad_image_is_rolled_back_when_its_service_is_renamed_during_probation() {
    let (world, _) = World::with_web("rename");
    let agent = reloaded_on_probation(&world, rename);
    assert_rolled_back_by_web(&world, &agent);
    assert_eq!(agent.entries(&Kind::RESUMED), [], "the deployment was not interrupted");
    // The configured name follows once the deployment has ended.
    wait_for("the service to have its new name", || {
        let names: Vec<String> = agent.status().services.into_iter().map(|one| one.name).collect();
        if names == ["shop"] { Ok(()) } else { Err(format!("{names:?}")) }
    });
}

#[test]
fn a_bad_image_is_rolled_back_when_its_service_is_renamed_and_the_agent_is_killed() {
    let (world, _) = World::with_web("orphan");
    let mut agent = reloaded_on_probation(&world, rename);
    agent.kill9(false);
    agent.restart();
    assert_rolled_back_by_web(&world, &agent);
}

#[test]
fn a_bad_image_is_rolled_back_in_the_project_configured_at_its_deployment() {
    let (world, _) = World::with_web("moved");
    let elsewhere = format!("{}-elsewhere", world.project.name);
    let agent = reloaded_on_probation(&world, |config| {
        config["services"][0]["compose_project"] = elsewhere.clone().into();
    });
    assert_rolled_back_by_web(&world, &agent);
    let resumed = agent.wait_entry(&Kind::RESUMED, 1);
    assert!(resumed.reason.as_deref().is_some_and(|why| why.contains("configuration")), "{resumed:#?}");
    assert_eq!(world.engine.containers(&elsewhere).len(), 0);
}

#[test]
fn a_deployment_is_not_affected_by_a_reload_that_changes_other_services() {
    let (world, _) = World::with_web("reload-o");
    let other = world.entry("other", &["web:latest"]).set("auto_update", false);
    let agent = deploys_on(&world, "probation", |config| {
        config["services"].as_array_mut().expect("services are a list").push(other.into());
    });
    assert_eq!(agent.entries(&Kind::RESUMED), []);
    assert_eq!(agent.steps(), ["pin_images", "pull", "start", "probation", "unpin", "done"]);
    wait_for("the new service to be shown", || {
        let names: Vec<String> = agent.status().services.into_iter().map(|one| one.name).collect();
        if names == ["web", "other"] { Ok(()) } else { Err(format!("{names:?}")) }
    });
}
