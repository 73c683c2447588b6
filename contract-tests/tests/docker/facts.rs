//! What the engine's flags are worth, on a real engine: pauses, backups, slow stops, cut connections.

use std::process::Child;
use std::time::Duration;

use contract_tests::{Agent, CuttableEngine, Health, Image, World, wait_for};
use evenkeel_common::wire::Kind;

/// Returns what the engine says of a container's health, and how many probes have failed in a row.
fn health(world: &World, service: &str) -> String {
    let format = "{{.State.Health.Status}} {{.State.Health.FailingStreak}}";
    world.engine.docker(&["inspect", "-f", format, &world.project.container(service).id])
}

fn wait_health(world: &World, service: &str, expected: &str) {
    wait_for(&format!("{service} to be {expected}"), || {
        let seen = health(world, service);
        if seen.starts_with(expected) { Ok(()) } else { Err(seen) }
    });
}

/// Pauses a container and lets it go on, until the engine calls it unhealthy for that: a probe of its own may have told
/// the engine better before anybody looks.
fn pause_until_called_unhealthy(world: &World, service: &str) {
    let id = world.project.container(service).id;
    wait_for(&format!("{service} to be called unhealthy after a pause"), || {
        world.engine.docker(&["pause", &id]);
        world.engine.docker(&["unpause", &id]);
        called_unhealthy(world, service)
    });
}

/// Backs a container up until the engine calls it unhealthy for that, like [`pause_until_called_unhealthy`].
fn back_up_until_called_unhealthy(world: &World, service: &str) {
    let id = world.project.container(service).id;
    wait_for(&format!("{service} to be called unhealthy after a backup"), || {
        let image = world.engine.docker(&["commit", &id]);
        let seen = called_unhealthy(world, service);
        world.engine.docker(&["rmi", &image]);
        seen
    });
}

/// Whether the engine calls a container unhealthy of which no probe has failed.
fn called_unhealthy(world: &World, service: &str) -> Result<(), String> {
    let seen = health(world, service);
    if seen == "unhealthy 0" { Ok(()) } else { Err(seen) }
}

/// Lets another container crash several times, and waits until each crash is healed: whatever the agent makes of events
/// before that is done by then.
fn heal_others(world: &World, agent: &Agent) {
    let before = agent.entries(&Kind::RESTARTED).len();
    for nth in 1..=2 {
        world.crash(&["other"]);
        agent.wait_entry(&Kind::RESTARTED, before + nth);
    }
}

/// Asserts that the healer has restarted no container but that of `other`.
fn assert_only_others_restarted(world: &World, agent: &Agent) {
    let other = format!("{}-other-1", world.project.name);
    let restarted = agent.entries(&Kind::RESTARTING);
    let wrong: Vec<_> = restarted.iter().filter(|entry| entry.container.as_ref() != Some(&other)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Healthy after its first probe; the next one follows after a while.
fn probed_seldom(version: &str) -> Image {
    Image::good(version)
        .with_health(Health { interval: Duration::from_secs(8), ..Health::every_second("true", 3) })
}

/// Finishes its work after SIGTERM, until `/tmp/end` exists, and fails its health check meanwhile.
fn draining(version: &str) -> Image {
    let script = "trap 'touch /tmp/drain' TERM; while [ ! -e /tmp/end ]; do sleep 1 & wait $!; done; exit 3";
    let mut image = Image::good(version).with_health(Health::every_second("test ! -e /tmp/drain", 1));
    image.command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    image
}

/// Begins to stop a container, and waits until it fails its health check.
fn begin_stop(world: &World, service: &str) -> Child {
    let id = world.project.container(service).id;
    let stop = world.engine.cli(&["stop", "-t", "600", &id]).spawn().expect("docker can be run");
    wait_health(world, service, "unhealthy");
    stop
}

fn end_stop(world: &World, service: &str, mut stop: Child) {
    let id = world.project.container(service).id;
    world.engine.docker(&["exec", &id, "touch", "/tmp/end"]);
    assert!(stop.wait().expect("docker was started").success());
}

#[test]
fn a_container_that_was_paused_or_backed_up_is_not_restarted() {
    let mut world = World::new("paused");
    world.push("web", &probed_seldom("v1"));
    world.push("other", &Image::good("v1"));
    for service in ["paused", "backup"] {
        world.service(service, "web", &[]);
    }
    world.service("other", "other", &[]);
    world.project.up();
    let agent = world.agent_for([world
        .entry("web", &["web:latest", "other:latest"])
        .healing(1)
        .set("heal_max_restarts", 100)]);
    let before = ["paused", "backup"].map(|service| world.project.container(service));
    for _ in 0..2 {
        for service in ["paused", "backup"] {
            wait_health(&world, service, "healthy");
        }
        pause_until_called_unhealthy(&world, "paused");
        back_up_until_called_unhealthy(&world, "backup");
        heal_others(&world, &agent);
    }
    assert_only_others_restarted(&world, &agent);
    for was in before {
        assert_eq!(world.project.container(&was.service).started_at, was.started_at);
    }
}

#[test]
fn a_backup_during_probation_does_not_fail_a_good_image() {
    let (world, _) = World::with_web("backup");
    let agent = world.agent();
    let v2 = world.push("web", &probed_seldom("v2"));
    agent.trigger("web");
    agent.wait_step("probation", 1);
    wait_health(&world, "web", "healthy");
    back_up_until_called_unhealthy(&world, "web");
    let updated = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(updated.new_digest.as_deref(), Some(&*v2.digest));
    world.assert_runs("web", "v2");
    assert!(agent.blocked().is_empty());
}

#[test]
fn a_stop_of_a_container_that_drains_stands() {
    let mut world = World::new("drain");
    world.push("web", &draining("v1"));
    world.push("other", &Image::good("v1"));
    world.service("web", "web", &[]);
    world.service("other", "other", &[]);
    world.project.up();
    let agent = world.agent_for([world
        .entry("web", &["web:latest", "other:latest"])
        .healing(1)
        .set("heal_max_restarts", 100)]);
    let before = world.project.container("web");
    let stop = begin_stop(&world, "web");
    heal_others(&world, &agent);
    assert_eq!(world.project.container("web").started_at, before.started_at);
    end_stop(&world, "web", stop);
    heal_others(&world, &agent);
    assert_eq!(world.project.container("web").state, "exited");
    assert_only_others_restarted(&world, &agent);
}

#[test]
fn a_slow_stop_during_probation_breaks_it_off_and_blocks_nothing() {
    let (world, _) = World::with_web("drainnew");
    let agent = world.agent();
    world.push("web", &draining("v2"));
    agent.trigger("web");
    agent.wait_step("probation", 1);
    wait_health(&world, "web", "healthy");
    let stop = begin_stop(&world, "web");
    let entry = agent.wait_entry(&Kind::ERROR, 1);
    assert!(entry.message.contains("stopped by someone"), "{entry:#?}");
    end_stop(&world, "web", stop);
    assert!(agent.blocked().is_empty());
    assert_eq!(agent.entries(&Kind::ROLLED_BACK), []);
    assert_eq!(world.project.container("web").state, "exited");
}

#[test]
fn a_stop_while_the_connection_to_the_engine_was_cut_stands() {
    let mut world = World::new("cut");
    world.push("web", &Image::good("v1"));
    let mut on_term = Image::good("v1");
    on_term.command =
        ["/bin/sh", "-c", "trap 'exit 143' TERM; sleep 86400 & wait"].map(str::to_owned).to_vec();
    world.push("term", &on_term);
    for (service, image) in [("zero", "web"), ("term", "term"), ("early", "web"), ("other", "web")] {
        world.service(service, image, &[]);
    }
    world.project.up();
    let socket = world.folder().join("cut.sock");
    let relay = CuttableEngine::start(&socket, &world.engine);
    let entry = world.entry("web", &["web:latest", "term:latest"]).healing(1).set("heal_max_restarts", 100);
    let host = format!("unix://{}", socket.display());
    let agent = world.agent_with(world.config([entry]), &[("DOCKER_HOST", &host)]);
    world.engine.docker(&["stop", &world.project.container("early").id]);
    relay.cut(true);
    for service in ["zero", "term"] {
        world.engine.docker(&["stop", &world.project.container(service).id]);
    }
    world.crash(&["other"]);
    relay.cut(false);
    agent.wait_entry(&Kind::RESTARTED, 1);
    heal_others(&world, &agent);
    for service in ["early", "zero", "term"] {
        assert_eq!(world.project.container(service).state, "exited", "{service}");
    }
    assert_only_others_restarted(&world, &agent);
}
