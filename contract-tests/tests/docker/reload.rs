//! SIGHUP while a deployment is under way: it goes on to its end, and the new configuration holds.

use contract_tests::{Agent, Image, World, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::Value;

/// Deploys a good image, reloads at a journal step with the service changed, and waits for the end.
fn deploys_on(world: &World, step: &str, change: impl FnOnce(&mut Value)) -> Agent {
    let mut agent = world.agent();
    // Its probation lasts longer than that of one without a health check.
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
    assert!(service.auto_heal, "the new configuration holds: {service:#?}");
    assert_eq!((service.updates_total, service.restarts_total), (1, 0), "{service:#?}");
    world.crash(&["web"]);
    agent.wait_entry(&Kind::RESTARTED, 1);
}

#[test]
fn a_deployment_on_probation_outlives_a_reload_that_changes_its_service() {
    goes_on_when_changed("reload-p", "probation");
}

#[test]
fn a_deployment_that_compose_is_busy_with_outlives_a_reload_that_changes_its_service() {
    goes_on_when_changed("reload-s", "start");
}

/// A bad image is on probation, and the file says something else by then.
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
fn assert_undone_by_web(world: &World, agent: &Agent) {
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.service, "web", "{entry:#?}");
    agent.wait_done(1);
    world.assert_runs("web", "v1");
    world.assert_tidy();
}

#[test]
fn a_bad_image_on_probation_is_undone_when_its_service_is_renamed_meanwhile() {
    let (world, _) = World::with_web("rename");
    let agent = reloaded_on_probation(&world, rename);
    assert_undone_by_web(&world, &agent);
    assert_eq!(agent.entries(&Kind::RESUMED), [], "nobody was interrupted");
    agent.wait_first_poll();
    let names: Vec<String> = agent.status().services.into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["shop"]);
}

#[test]
fn a_bad_image_on_probation_is_undone_when_its_service_is_renamed_and_the_agent_is_killed() {
    let (world, _) = World::with_web("orphan");
    let mut agent = reloaded_on_probation(&world, rename);
    agent.kill9(false);
    agent.restart();
    assert_undone_by_web(&world, &agent);
}

#[test]
fn a_bad_image_on_probation_is_undone_in_the_project_that_the_file_named_when_it_was_deployed() {
    let (world, _) = World::with_web("moved");
    let elsewhere = format!("{}-elsewhere", world.project.name);
    let agent = reloaded_on_probation(&world, |config| {
        config["services"][0]["compose_project"] = elsewhere.clone().into();
    });
    assert_undone_by_web(&world, &agent);
    let resumed = agent.wait_entry(&Kind::RESUMED, 1);
    assert!(resumed.reason.as_deref().is_some_and(|why| why.contains("configuration")), "{resumed:#?}");
    assert_eq!(world.engine.containers(&elsewhere).len(), 0);
}

#[test]
fn a_deployment_does_not_even_notice_a_reload_that_is_about_others() {
    let (world, _) = World::with_web("reload-o");
    let other = world.entry("other", &["web:latest"]).set("auto_update", false);
    let agent = deploys_on(&world, "probation", |config| {
        config["services"].as_array_mut().expect("services are a list").push(other.into());
    });
    assert_eq!(agent.entries(&Kind::RESUMED), []);
    assert_eq!(agent.steps(), ["hold", "pull", "start", "probation", "release", "done"]);
    wait_for("the new service to be shown", || {
        let names: Vec<String> = agent.status().services.into_iter().map(|one| one.name).collect();
        if names == ["web", "other"] { Ok(()) } else { Err(format!("{names:?}")) }
    });
}
