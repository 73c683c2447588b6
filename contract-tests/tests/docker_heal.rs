//! What falls over is restarted, what was stopped on purpose is not; what should run is started; changed compose
//! files are followed. On the real engine.

use std::time::Duration;

use contract_tests::{Agent, Image, PrivateEngine, Registry, World, wait_for};
use evenkeel_common::wire::{Kind, Level, StatusValue};
use serde_json::Value;

const LONG: Duration = Duration::from_mins(1);

/// An agent that heals and does not deploy.
fn healer(world: &World, more: &[(&str, Value)]) -> Agent {
    let mut entry = world.entry("web", &["web:latest"]);
    entry["auto_heal"] = true.into();
    entry["heal_cooldown"] = 3.into();
    for (key, value) in more {
        entry[*key] = value.clone();
    }
    world.agent_for(&[entry])
}

fn wait_running(world: &World, service: &str) {
    wait_for(LONG, &format!("{service} to run"), || {
        let view = world.project.container(service);
        if view.state == "running" { Ok(()) } else { Err(format!("{view:#?}")) }
    });
}

#[test]
fn a_crashed_container_is_restarted_and_one_that_was_stopped_is_not() {
    let mut world = World::new("heal");
    world.push("web", &Image::good("v1"));
    for service in ["web", "stopped", "killed"] {
        world.service(service, "web", &["stop_grace_period: 1s"]);
    }
    world.project.up();
    let agent = healer(&world, &[]);
    world.engine.docker(&["stop", "-t", "1", &world.project.container("stopped").name]);
    world.engine.docker(&["kill", &world.project.container("killed").name]);
    // Later than the two: when this one is well again, the others had their time.
    world.crash(&["web"]);
    let entry = agent.wait_entry(LONG, &Kind::RESTARTED, 1);
    assert_eq!(entry.container.as_deref(), Some(&*world.project.container("web").name));
    wait_running(&world, "web");
    assert_eq!(agent.entries(&Kind::RESTARTING).len(), 1, "{:#?}", agent.audit());
    assert_eq!(agent.entries(&Kind::DIED).len(), 1, "{:#?}", agent.audit());
    for service in ["stopped", "killed"] {
        assert_eq!(world.project.container(service).state, "exited", "{service}");
    }
    assert_eq!(agent.service("web").restarts_total, 1);
}

#[test]
fn a_container_that_no_restart_helps_is_given_up_once() {
    let mut world = World::new("cap");
    world.push("web", &Image::unhealthy("v1"));
    world.service("web", "web", &["stop_grace_period: 1s"]);
    assert!(world.project.compose(&["up", "-d"]).status.success());
    let agent = healer(&world, &[("heal_max_restarts", 2.into())]);
    let entry = agent.wait_entry(LONG, &Kind::EXHAUSTED, 1);
    assert_eq!(entry.level, Level::Critical);
    assert!(!entry.reason.unwrap_or_default().is_empty());
    // On a busy machine a probe may be cut off before it says why it fails, but not all of them.
    let told = agent.audit().into_iter().filter_map(|entry| entry.reason);
    assert!(
        told.into_iter().any(|reason| reason.contains("the database is not there")),
        "{:#?}",
        agent.audit()
    );
    let service = agent.service("web");
    assert_eq!((service.status, service.restart_failures), (StatusValue::Exhausted, 2), "{service:#?}");
    assert_eq!(agent.entries(&Kind::RESTARTING).len(), 2);
    // It survives a restart of the agent, and a person starts it over.
    let mut agent = agent;
    agent.kill9(false);
    agent.restart();
    agent.wait_first_poll();
    assert_eq!(agent.service("web").status, StatusValue::Exhausted);
    agent.trigger("web");
    agent.wait_entry(LONG, &Kind::RESTARTING, 3);
}

#[test]
fn without_auto_heal_it_is_said_and_left_alone() {
    let (world, _) = World::with_web("report");
    let agent = world.agent();
    world.crash(&["web"]);
    let entry = agent.wait_entry(LONG, &Kind::DIED, 1);
    assert!(entry.reason.unwrap_or_default().contains("137"));
    assert_eq!(agent.service("web").status, StatusValue::Unhealthy);
    world.engine.docker(&["start", &world.project.container("web").name]);
    agent.wait_entry(LONG, &Kind::HEALTHY, 1);
    assert_eq!(agent.entries(&Kind::RESTARTING), []);
}

#[test]
fn a_project_of_which_nothing_runs_is_started_at_the_next_check() {
    let (world, _) = World::with_web("start");
    let mut entry = world.entry("web", &["web:latest"]);
    entry["auto_start"] = true.into();
    let agent = world.agent_for(&[entry]);
    assert!(world.project.compose(&["down"]).status.success());
    // Somebody is at work on it just now: asked for until that is some seconds ago.
    wait_for(LONG, "the project to be started", || {
        agent.trigger("web");
        let started = agent.entries(&Kind::STARTED).into_iter().any(|entry| entry.service == "web");
        if started { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
    wait_running(&world, "web");
    world.assert_runs("web", "v1");
}

#[test]
fn changed_compose_files_are_applied_also_those_that_changed_while_the_agent_was_away() {
    let (world, _) = World::with_web("drift");
    let mut entry = world.entry("web", &["web:latest"]);
    entry["compose_watch"] = true.into();
    let mut agent = world.agent_for(&[entry]);
    let add = |line: &str| {
        let text = std::fs::read_to_string(&world.project.file).unwrap();
        std::fs::write(&world.project.file, text + line).unwrap();
    };
    let label = |name: &str| {
        let container = world.project.container("web").name;
        let format = format!("{{{{index .Config.Labels \"{name}\"}}}}");
        world.engine.docker(&["inspect", "-f", &format, &container])
    };
    add("      drift.one: here\n");
    agent.trigger("web");
    agent.wait_entry(LONG, &Kind::COMPOSE_DRIFT, 1);
    assert_eq!(label("drift.one").trim(), "here");

    agent.terminate();
    add("      drift.two: here\n");
    agent.restart();
    agent.wait_entry(LONG, &Kind::COMPOSE_DRIFT, 2);
    assert_eq!(label("drift.two").trim(), "here");

    add("    nonsense: [\n");
    agent.trigger("web");
    agent.wait_entry(LONG, &Kind::ERROR, 1);
    world.assert_runs("web", "v1");
    assert_eq!(agent.service("web").status, StatusValue::Errored);
}

#[test]
fn ten_containers_that_their_engine_took_down_are_all_back() {
    for signal in ["TERM", "KILL"] {
        let registry = Registry::start_for_private_engine();
        let mut private = PrivateEngine::start(&registry);
        let mut world = World::with("storm", &private.engine(), registry);
        world.push("web", &Image::good("v1"));
        for n in 0..10 {
            world.service(&format!("web{n}"), "web", &["stop_grace_period: 1s"]);
        }
        world.project.up();
        let agent = healer(&world, &[]);
        private.end(signal);
        private.run();
        wait_for(Duration::from_secs(90), "all ten to run", || {
            let views = world.project.containers();
            let running = views.iter().filter(|view| view.state == "running").count();
            if running == 10 { Ok(()) } else { Err(format!("{signal}: {views:#?} {:#?}", agent.audit())) }
        });
        assert!(agent.entries(&Kind::RESTARTING).len() <= 10, "{signal}: {:#?}", agent.audit());
        assert_eq!(agent.entries(&Kind::EXHAUSTED), [], "{signal}");
        drop(agent);
        drop(world);
    }
}

/// What a restart of the one that owns a network does to those that use it (FIELD: healing a provider leaves its
/// dependents dead).
#[test]
fn a_container_that_uses_the_network_of_one_that_crashed_is_connected_again() {
    let mut world = World::new("network");
    world.push("web", &Image::good("v1"));
    let image = world.reference("web");
    world.project.write_text(&format!(
        "services:
  vpn: {{ image: '{image}', labels: {{labels}}, stop_grace_period: 1s }}
  client: {{ image: '{image}', labels: {{labels}}, stop_grace_period: 1s, network_mode: 'service:vpn' }}
"
    ));
    world.project.up();
    // The network is there while both have the same interfaces.
    let links = |service: &str| {
        let pid = world.pids(&[service]).remove(0);
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).expect("it runs");
        let names = text.lines().skip(2).filter_map(|line| line.split(':').next());
        names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("eth")).collect::<Vec<_>>()
    };
    assert_eq!((links("vpn").len(), links("client").len()), (1, 1));
    let agent = healer(&world, &[]);
    world.crash(&["vpn"]);
    wait_for(LONG, "both to be restarted", || {
        let restarted = agent.entries(&Kind::RESTARTED);
        if restarted.len() == 2 { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
    assert_eq!((links("vpn").len(), links("client").len()), (1, 1));
    let client = world.project.container("client").name;
    let said = agent.wait_entry(LONG, &Kind::UNHEALTHY, 1);
    assert_eq!(said.container.as_deref(), Some(&*client));
    assert!(said.reason.as_ref().is_some_and(|why| why.contains("network of")), "{said:#?}");
}
