//! Bursts on a real engine: twenty simultaneous crashes, ten thousand events.

use std::collections::BTreeMap;

use contract_tests::{Agent, BackgroundClient, DuplicatingEngine, Image, Service, World};
use evenkeel_common::wire::{AuditEntry, Kind, StatusValue};
use jiff::SignedDuration;

const STORM: usize = 20;
const EVENTS: usize = 10_000;
/// Number of repetitions of each event in the flood.
const REPEATS: usize = 100;
const PATHS: &[&str] = &["/status", "/health", "/audit?limit=50", "/status/web"];

/// Creates a world with `count` services of one image. Returns it with the services' names.
fn world_of(about: &str, count: usize, image: &Image) -> (World, Vec<String>) {
    let mut world = World::new(about);
    world.push("web", image);
    let services: Vec<String> = (0..count).map(|n| format!("web{n:02}")).collect();
    for service in &services {
        world.service(service, "web", &["stop_grace_period: 1s"]);
    }
    (world, services)
}

/// Returns the agent's configuration of the project as service `web`, with healing.
fn entry(world: &World, cooldown: u32, max_restarts: u32) -> Service {
    world.entry("web", &["web:latest"]).healing(cooldown).set("heal_max_restarts", max_restarts)
}

fn healer(world: &World, cooldown: u32, max_restarts: u32) -> Agent {
    world.agent_for([entry(world, cooldown, max_restarts)])
}

/// Returns the entries of one kind by container, oldest first.
fn by_container(agent: &Agent, kind: &Kind) -> BTreeMap<String, Vec<AuditEntry>> {
    let mut all = BTreeMap::<String, Vec<AuditEntry>>::new();
    for entry in agent.entries(kind) {
        all.entry(entry.container.clone().unwrap_or_default()).or_default().push(entry);
    }
    all
}

/// Asserts that each of these containers has `count` entries of this kind, and no other container has any.
#[track_caller]
fn assert_each(agent: &Agent, kind: &Kind, containers: &[String], count: usize) {
    let counts: BTreeMap<String, usize> =
        by_container(agent, kind).into_iter().map(|(name, all)| (name, all.len())).collect();
    let wanted: BTreeMap<String, usize> = containers.iter().map(|name| (name.clone(), count)).collect();
    assert_eq!(counts, wanted, "{kind}");
}

/// Asserts that no container was restarted twice within the cooldown.
#[track_caller]
fn assert_cooled(agent: &Agent, cooldown: i64) {
    for (name, restarts) in by_container(agent, &Kind::RESTARTING) {
        for pair in restarts.windows(2) {
            let pause = pair[1].timestamp.duration_since(pair[0].timestamp);
            assert!(pause >= SignedDuration::from_secs(cooldown), "{name} after {pause:?}: {restarts:#?}");
        }
    }
}

fn names(world: &World, services: &[String]) -> Vec<String> {
    services.iter().map(|service| world.project.container(service).name).collect()
}

#[test]
fn twenty_simultaneous_crashes_cause_one_restart_each_per_cooldown() {
    let (world, services) = world_of("storm", STORM, &Image::good("v1"));
    world.project.up();
    let agent = healer(&world, 20, 3);
    let containers = names(&world, &services);
    let client = BackgroundClient::start(agent.address(), PATHS);
    let all: Vec<&str> = services.iter().map(String::as_str).collect();
    for round in 1..=2 {
        world.crash(&all);
        agent.wait_entry(&Kind::RESTARTED, STORM * round);
        for kind in [Kind::DIED, Kind::RESTARTING, Kind::RESTARTED] {
            assert_each(&agent, &kind, &containers, round);
        }
    }
    assert_cooled(&agent, 20);
    client.assert_answered(&[200]);
    // The first restart counts as failed because the container has crashed again soon after it.
    assert_each(&agent, &Kind::RESTART_FAILED, &containers, 1);
    assert_eq!(agent.entries(&Kind::EXHAUSTED), []);
    for view in world.project.containers() {
        assert_eq!(view.state, "running", "{view:#?}");
    }
    let service = agent.service("web");
    assert_eq!((service.restarts_total, service.restart_failures), (2 * STORM as u64, 1), "{service:#?}");
    assert!(matches!(service.status, StatusValue::Ok | StatusValue::Unknown), "{service:#?}");
}

#[test]
fn twenty_containers_that_keep_failing_are_each_exhausted_once() {
    let (mut world, services) = world_of("hopeless", STORM, &Image::exits("v1", 0));
    world.push("good", &Image::good("good"));
    world.service("good", "good", &["stop_grace_period: 1s"]);
    let up = world.project.compose(&["up", "-d"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let agent = healer(&world, 3, 2);
    let client = BackgroundClient::start(agent.address(), PATHS);
    let containers = names(&world, &services);
    agent.wait_entry(&Kind::EXHAUSTED, STORM);
    // Its restart and the verification take longer than a cooldown, so the agent has had time for the others.
    world.crash(&["good"]);
    agent.wait_entry(&Kind::RESTARTED, 1);
    client.assert_answered(&[200]);
    assert_each(&agent, &Kind::EXHAUSTED, &containers, 1);
    assert_each(&agent, &Kind::RESTART_FAILED, &containers, 2);
    let restarts: Vec<AuditEntry> = agent.entries(&Kind::RESTARTING);
    assert_eq!(restarts.len(), 2 * STORM + 1, "{restarts:#?}");
    assert_cooled(&agent, 3);
    let service = agent.service("web");
    assert_eq!((service.status, service.exhausted), (StatusValue::Exhausted, true), "{service:#?}");
}

#[test]
fn ten_thousand_events_hide_no_crash_or_stop_and_do_not_grow_memory() {
    let (world, services) = world_of("flood", 5, &Image::good("v1"));
    world.project.up();
    let socket = world.folder().join("loud.sock");
    // Without the repetitions, this would take minutes on a busy machine.
    let relay = DuplicatingEngine::start(&socket, &world.engine, REPEATS);
    let config = world.config([entry(&world, 3, 3)]);
    let agent = world.agent_with(config, &[("DOCKER_HOST", &format!("unix://{}", socket.display()))]);
    let before = world.project.containers();
    let view = |service: &str| world.project.container(service);
    let (memory, sent) = (agent.resident(), relay.sent());
    let client = BackgroundClient::start(agent.address(), PATHS);
    let noise = |count: usize| {
        for n in 0..count {
            // The engine reports every signal. This one has no effect on the container.
            let id = &before[3 + n % 2].id;
            let code = world.engine.post(&format!("/containers/{id}/kill?signal=WINCH"));
            assert_eq!(code.expect("the engine answers"), 204);
        }
    };
    let quiet = EVENTS / REPEATS / 4;
    noise(quiet);
    world.engine.docker(&["stop", "-t", "1", &before[1].id]);
    noise(quiet);
    world.crash(&[&services[0]]);
    noise(2 * quiet);
    agent.wait_entry(&Kind::RESTARTED, 1);
    // The event stream still works after the flood.
    world.crash(&[&services[2]]);
    agent.wait_entry(&Kind::RESTARTED, 2);
    let grown = agent.resident().saturating_sub(memory);
    client.assert_answered(&[200]);
    let sent = relay.sent() - sent;
    println!("{sent} events; memory {} KiB, and {} KiB more afterwards", memory >> 10, grown >> 10);
    assert!(sent >= EVENTS, "{sent}");
    assert!(grown < 16 << 20, "memory grew from {memory} by {grown} bytes");
    let healed = [before[0].name.clone(), before[2].name.clone()];
    for kind in [Kind::DIED, Kind::RESTARTING, Kind::RESTARTED] {
        assert_each(&agent, &kind, &healed, 1);
    }
    let stopped = view(&services[1]);
    assert_eq!((&*stopped.state, &stopped.started_at), ("exited", &before[1].started_at), "{stopped:#?}");
    for n in [3, 4] {
        assert_eq!(view(&services[n]), before[n], "the container was not touched");
    }
}
