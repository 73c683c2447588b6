//! Restarts of crashed and unhealthy containers, start of stopped projects, and changed compose files on a real engine.
//! Containers stopped by an operator stay stopped.

use std::time::Duration;

use contract_tests::{Agent, Image, Kill, PrivateEngine, Project, Registry, World, wait_for};
use evenkeel_common::wire::{Kind, Level, StatusValue};
use serde_json::Value;

/// Starts an agent with healing enabled.
fn healer(world: &World, more: &[(&str, Value)]) -> Agent {
    let entry = world.entry("web", &["web:latest"]).healing(3);
    world.agent_for([more.iter().fold(entry, |entry, (key, value)| entry.set(key, value.clone()))])
}

fn wait_running(world: &World, service: &str) {
    wait_for(&format!("{service} to run"), || {
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
    // Crash this one last: once it has been restarted, the agent has also handled the other two.
    world.crash(&["web"]);
    let entry = agent.wait_entry(&Kind::RESTARTED, 1);
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
fn a_container_that_keeps_failing_is_exhausted_once() {
    let mut world = World::new("cap");
    world.push("web", &Image::unhealthy("v1"));
    world.service("web", "web", &["stop_grace_period: 1s"]);
    assert!(world.project.compose(&["up", "-d"]).status.success());
    let agent = healer(&world, &[("heal_max_restarts", 2.into())]);
    let entry = agent.wait_entry(&Kind::EXHAUSTED, 1);
    assert_eq!(entry.level, Level::Critical);
    assert!(!entry.reason.unwrap_or_default().is_empty());
    // On a busy machine a probe may time out before it prints its message, but not all of them do.
    let reasons = agent.audit().into_iter().filter_map(|entry| entry.reason);
    assert!(
        reasons.into_iter().any(|reason| reason.contains("the database is not there")),
        "{:#?}",
        agent.audit()
    );
    let service = agent.service("web");
    assert_eq!((service.status, service.restart_failures), (StatusValue::Exhausted, 2), "{service:#?}");
    assert_eq!(agent.entries(&Kind::RESTARTING).len(), 2);
    // The state survives a restart of the agent, and a manual trigger resets it.
    let mut agent = agent;
    agent.kill9(false);
    agent.restart();
    agent.wait_first_poll();
    assert_eq!(agent.service("web").status, StatusValue::Exhausted);
    agent.trigger("web");
    agent.wait_entry(&Kind::RESTARTING, 3);
}

#[test]
fn a_container_that_relapses_soon_after_each_restart_is_exhausted() {
    let mut world = World::new("relapse");
    world.push("web", &Image::relapsing("v1"));
    world.service("web", "web", &["stop_grace_period: 1s"]);
    world.project.up();
    let agent = healer(&world, &[("heal_max_restarts", 2.into())]);
    agent.wait_entry(&Kind::EXHAUSTED, 1);
    for kind in [Kind::RESTARTING, Kind::RESTARTED, Kind::RESTART_FAILED] {
        assert_eq!(agent.entries(&kind).len(), 2, "{kind}: {:#?}", agent.audit());
    }
    assert_eq!(agent.service("web").status, StatusValue::Exhausted);
}

#[test]
fn the_probation_of_one_service_does_not_make_another_one_unhealthy() {
    let mut world = World::new("siblings");
    for service in ["web", "api"] {
        world.push(service, &Image::good("v1"));
        world.service(service, service, &["stop_grace_period: 1s"]);
    }
    world.project.up();
    let entries = ["web", "api"]
        .map(|service| world.entry(service, &[&format!("{service}:latest")]).set("auto_heal", true));
    let agent = world.agent_for(entries);
    world.push("web", &Image::unhealthy("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    // A crash after the probation is detected again, by either service.
    world.crash(&["web"]);
    agent.wait_entry(&Kind::RESTARTED, 1);
    assert_eq!(agent.entries(&Kind::UNHEALTHY), []);
}

#[test]
fn without_auto_heal_a_crash_is_only_reported() {
    let (world, _) = World::with_web_of("report", &Image::healthy("v1"), &[]);
    let agent = world.agent();
    world.crash(&["web"]);
    let entry = agent.wait_entry(&Kind::DIED, 1);
    assert!(entry.reason.unwrap_or_default().contains("137"));
    assert_eq!(agent.service("web").status, StatusValue::Unhealthy);
    world.engine.docker(&["start", &world.project.container("web").name]);
    agent.wait_entry(&Kind::HEALTHY, 1);
    assert_eq!(agent.entries(&Kind::RESTARTING), []);
}

#[test]
fn a_project_without_running_containers_is_started_at_the_next_check() {
    let (world, _) = World::with_web("start");
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("auto_start", true)]);
    assert!(world.project.compose(&["down"]).status.success());
    wait_started(&agent);
    wait_running(&world, "web");
    world.assert_runs("web", "v1");
}

/// Triggers until the project was started: the agent does not start one that was changed within the last seconds.
fn wait_started(agent: &Agent) {
    wait_for("the project to be started", || {
        agent.trigger("web");
        let started = agent.entries(&Kind::STARTED).into_iter().any(|entry| entry.service == "web");
        if started { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
}

#[test]
fn a_stopped_project_whose_network_was_removed_is_started_with_a_new_one() {
    let mut world = World::new("prune");
    world.push("web", &Image::good("v1"));
    let image = world.reference("web");
    world.project.write_text(&format!(
        "services:\n  web: {{ image: '{image}', labels: {{labels}}, stop_grace_period: 1s }}\n"
    ));
    world.project.up();
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("auto_start", true)]);
    assert!(world.project.compose(&["stop"]).status.success());
    world.engine.docker(&["network", "rm", &format!("{}_default", world.project.name)]);
    wait_started(&agent);
    wait_running(&world, "web");
    world.assert_runs("web", "v1");
    assert_eq!(agent.entries(&Kind::ERROR), [], "it was not tried with the old one");
    world.assert_tidy();
}

#[test]
fn a_missing_image_that_is_only_in_the_compose_file_is_pulled() {
    let (mut world, _) = World::with_web("start-missing");
    world.push("side", &Image::good("s1"));
    world.service("side", "side", &[]);
    let agent = world.agent_for([world.entry("web", &["web:latest"])]);
    agent.redeploy("web");
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    world.assert_runs("side", "s1");
    world.assert_runs("web", "v1");
}

#[test]
fn changed_compose_files_are_applied_even_if_the_agent_was_down() {
    let (world, _) = World::with_web("drift");
    let mut agent = world.agent_for([world.entry("web", &["web:latest"]).set("compose_watch", true)]);
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
    agent.wait_entry(&Kind::COMPOSE_DRIFT, 1);
    assert_eq!(label("drift.one").trim(), "here");

    agent.terminate();
    add("      drift.two: here\n");
    agent.restart();
    agent.wait_entry(&Kind::COMPOSE_DRIFT, 2);
    assert_eq!(label("drift.two").trim(), "here");

    add("    nonsense: [\n");
    agent.trigger("web");
    agent.wait_entry(&Kind::ERROR, 1);
    world.assert_runs("web", "v1");
    assert_eq!(agent.service("web").status, StatusValue::Errored);
}

#[test]
fn ten_containers_stopped_by_their_engine_are_all_restarted() {
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
        wait_for("all ten to run", || {
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

// Containers that share the network of another container lose it when that one is restarted (FIELD: healing a provider
// leaves its dependents dead).

/// Returns the number of networks of this service's container, or 0 if it does not run.
fn links(world: &World, service: &str) -> usize {
    let views = world.project.containers();
    let Some(view) = views.iter().find(|view| view.service == service) else { return 0 };
    // The container may have been removed since.
    let asked =
        world.engine.cli(&["inspect", "-f", "{{.State.Pid}}", &view.id]).output().expect("docker runs");
    let pid = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split(':').next());
    names.filter(|name| name.trim().starts_with("eth")).count()
}

#[test]
fn a_container_that_uses_the_network_of_a_crashed_one_is_reconnected() {
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
    assert_eq!((links(&world, "vpn"), links(&world, "client")), (1, 1));
    let agent = healer(&world, &[]);
    world.crash(&["vpn"]);
    wait_for("both to be restarted", || {
        let restarted = agent.entries(&Kind::RESTARTED);
        if restarted.len() == 2 { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
    assert_eq!((links(&world, "vpn"), links(&world, "client")), (1, 1));
    let client = world.project.container("client").name;
    let entry = agent.wait_entry(&Kind::UNHEALTHY, 1);
    assert_eq!(entry.container.as_deref(), Some(&*client));
    assert!(entry.reason.as_ref().is_some_and(|why| why.contains("network of")), "{entry:#?}");
}

/// Creates a client that shares the network of a container in another project, and that project.
fn with_foreign_network(about: &str) -> (World, Project) {
    let mut world = World::new(about);
    world.push("web", &Image::good("v1"));
    let image = world.reference("web");
    let folder = world.folder().join("vpn");
    std::fs::create_dir(&folder).expect("the folder can be created");
    let mut vpn = Project::new(&format!("{about}vpn"), &folder, &world.engine);
    let name = format!("{}-vpn", vpn.name);
    vpn.write_text(&format!(
        "services:\n  vpn: {{ image: '{image}', container_name: {name}, labels: {{labels}}, stop_grace_period: 1s }}\n"
    ));
    vpn.up();
    world.project.write_text(&format!(
        "services:\n  client: {{ image: '{image}', labels: {{labels}}, stop_grace_period: 1s, network_mode: 'container:{name}' }}\n"
    ));
    world.project.up();
    assert_eq!(links(&world, "client"), 1);
    (world, vpn)
}

fn wait_connected(world: &World, agent: &Agent) {
    wait_for("the client to be connected", || match links(world, "client") {
        1 => Ok(()),
        n => Err(format!("{n} networks; {:#?} {:#?}", world.project.containers(), agent.audit())),
    });
}

#[test]
fn a_container_that_uses_the_network_of_another_project_is_recreated_with_it() {
    let (world, vpn) = with_foreign_network("foreign");
    let agent = healer(&world, &[]);
    let before = world.project.container("client");
    vpn.compose(&["up", "-d", "--force-recreate"]);
    wait_connected(&world, &agent);
    let client = world.project.container("client");
    assert_ne!(client.id, before.id);
    assert_eq!((&client.image, &client.name), (&before.image, &before.name));
    let entry = agent.wait_entry(&Kind::RESTARTED, 1);
    assert_eq!(entry.container.as_ref(), Some(&client.name));

    // Without the other container there is no network to connect to, and the client must not be exhausted.
    vpn.compose(&["down"]);
    agent.wait_entry(&Kind::RESTART_FAILED, 1);
    vpn.up();
    wait_connected(&world, &agent);
    agent.wait_entry(&Kind::RESTARTED, 2);
    assert_eq!(agent.entries(&Kind::RESTART_FAILED).len(), 1, "{:#?}", agent.audit());
    assert_eq!(agent.entries(&Kind::EXHAUSTED), []);
    assert!(agent.errored().is_empty(), "{:?}", agent.errored());
    world.assert_tidy();
}

#[test]
fn an_agent_killed_while_recreating_a_container_does_so_after_its_restart() {
    for (after, compose_too) in [(0, false), (150, true), (400, true)] {
        let (world, vpn) = with_foreign_network("foreignkill");
        let mut agent = healer(&world, &[]);
        agent.kill_at(Kill { step: Some("start".into()), after: Duration::from_millis(after), compose_too });
        vpn.compose(&["up", "-d", "--force-recreate"]);
        agent.wait_end();
        agent.restart();
        wait_connected(&world, &agent);
        agent.wait_done(1);
        wait_connected(&world, &agent);
        world.assert_tidy();
    }
}
