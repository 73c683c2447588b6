//! Deployments on a private engine that is pruned, stopped or killed during the deployment.

use contract_tests::{
    Agent, BackgroundClient, Image, PrivateEngine, Registry, World, kill_from_outside, wait_for,
};
use evenkeel_common::wire::Kind;

/// Creates a world with a running service `web` on a private engine. The world must be dropped first.
fn start(about: &str, first: &Image) -> (PrivateEngine, World) {
    let registry = Registry::start_for_private_engine();
    let private = PrivateEngine::start(&registry);
    let mut world = World::with(about, &private.engine(), registry);
    world.push("web", first);
    world.service("web", "web", &["restart: always"]);
    world.project.up();
    (private, world)
}

#[test]
fn a_private_engine_runs_projects_and_can_be_restarted_after_a_kill() {
    let (mut private, world) = start("private", &Image::good("v1"));
    for signal in ["TERM", "KILL"] {
        private.end(signal);
        private.run();
        world.project.up();
        world.assert_runs("web", "v1");
    }
}

#[test]
fn a_rollback_works_after_a_prune_of_all_images_during_probation() {
    let (_private, world) = start("prune", &Image::good("v1"));
    let before = world.project.container("web");
    let agent = world.agent();
    let bad = world.push("web", &Image::unhealthy("v2"));
    agent.trigger("web");
    agent.wait_step("probation", 1);
    world.engine.docker(&["image", "prune", "-af"]);
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(1);
    assert_eq!(world.assert_runs("web", "v1").image, before.image);
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&bad.digest));
    world.assert_tidy();
}

#[test]
fn a_previous_image_that_was_removed_is_pulled_again_by_digest() {
    let (_private, world) = start("gone", &Image::good("v1"));
    let before = world.project.container("web");
    let agent = world.agent();
    world.push("web", &Image::unhealthy("v2"));
    agent.trigger("web");
    agent.wait_step("probation", 1);
    // Removes stopped containers and all unused images.
    world.engine.docker(&["system", "prune", "-af"]);
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(1);
    assert_eq!(world.assert_runs("web", "v1").image, before.image);
    world.assert_tidy();
}

/// Restarts the engine at a journal step of a deployment.
fn engine_restarts(about: &str, image: &Image, step: &str, signal: &str) -> (PrivateEngine, World, Agent) {
    let (mut private, world) = start(about, &Image::healthy("v1"));
    let agent = world.agent();
    world.push("web", image);
    agent.trigger("web");
    agent.wait_step(step, 1);
    private.end(signal);
    wait_for("the API to respond without an engine", || match agent.try_request("GET", "/status/web") {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    });
    private.run();
    (private, world, agent)
}

fn ends_updated(world: &World, agent: &Agent) {
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);
    assert_eq!(world.assert_runs("web", "v2").health, "healthy");
    assert_eq!((agent.entries(&Kind::ROLLED_BACK).len(), agent.blocked().len()), (0, 0));
    world.assert_tidy();
}

#[test]
fn an_engine_stop_during_probation_does_not_fail_the_image() {
    let (_private, world, agent) = engine_restarts("restart-p", &Image::healthy("v2"), "probation", "TERM");
    ends_updated(&world, &agent);
}

#[test]
fn an_engine_kill_during_probation_does_not_fail_the_image() {
    let (_private, world, agent) = engine_restarts("die-p", &Image::healthy("v2"), "probation", "KILL");
    ends_updated(&world, &agent);
}

#[test]
fn an_engine_stop_while_compose_runs_does_not_fail_the_image() {
    let (_private, world, agent) = engine_restarts("restart-s", &Image::healthy("v2"), "start", "TERM");
    ends_updated(&world, &agent);
}

#[test]
fn an_engine_stop_during_a_rollback_does_not_prevent_it() {
    let (_private, world, agent) = engine_restarts("restart-u", &Image::unhealthy("v2"), "rollback", "TERM");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(1);
    assert_eq!(world.assert_runs("web", "v1").health, "healthy");
    assert_eq!(agent.blocked().len(), 1);
    world.assert_tidy();
}

#[test]
fn an_engine_that_hangs_is_reported_once_and_crashes_meanwhile_are_healed_once() {
    let registry = Registry::start_for_private_engine();
    let private = PrivateEngine::start(&registry);
    let mut world = World::with("hang", &private.engine(), registry);
    world.push("web", &Image::good("v1"));
    for service in ["web", "late"] {
        world.service(service, "web", &["stop_grace_period: 1s"]);
    }
    world.project.up();
    let config = world
        .config([world.entry("web", &["web:latest"]).healing(3)])
        .set("docker_health.check_interval", 5)
        .set("docker_health.timeout", 1);
    let agent = world.agent_with(config, &[]);
    let pids = world.pids(&["web"]);
    let client =
        BackgroundClient::start(agent.address(), &["/status", "/audit?limit=20", "/status/web", "/blocked"]);

    private.hang();
    agent.wait_entry(&Kind::DAEMON_DOWN, 1);
    assert_eq!(agent.request("GET", "/health").status, 503);
    kill_from_outside(&pids);
    // Trigger a check while the engine does not respond, and wait for more failures.
    agent.trigger("web");
    wait_for("three checks of the engine to fail", || {
        let metrics = agent.request("GET", "/metrics").text();
        let line = metrics.lines().find(|line| line.starts_with("docker_daemon_consecutive_failures "));
        let failures = line.and_then(|line| line.split(' ').nth(1)?.parse::<f64>().ok());
        if failures >= Some(3.0) { Ok(()) } else { Err(format!("{line:?}")) }
    });
    assert_eq!((agent.entries(&Kind::DIED), agent.entries(&Kind::RESTARTING)), (vec![], vec![]));

    private.resume();
    agent.wait_entry(&Kind::DAEMON_UP, 1);
    assert_eq!(agent.request("GET", "/health").status, 200);
    agent.wait_entry(&Kind::RESTARTED, 1);
    let count = |kind: &Kind| agent.entries(kind).len();
    assert_eq!(count(&Kind::RESTARTING), 1, "{:#?}", agent.audit());
    // The next poll is an hour away, so this crash is detected only by an event.
    world.crash(&["late"]);
    agent.wait_entry(&Kind::RESTARTED, 2);
    client.assert_answered(&[200]);
    let counts = [Kind::DAEMON_DOWN, Kind::DAEMON_UP, Kind::DIED, Kind::RESTARTING, Kind::RESTART_FAILED];
    assert_eq!(counts.map(|kind| count(&kind)), [1, 1, 2, 2, 0], "{:#?}", agent.audit());
    for view in world.project.containers() {
        assert_eq!(view.state, "running", "{view:#?}");
    }
}
