//! With any version of compose, an update recreates only the services whose image changes and those that are restarted
//! with them (DECISIONS 9).
//!
//! `EVENKEEL_OTHER_COMPOSE` is a folder with the layout of `~/.docker` and another version of compose as its plugin.
//! `dist/test.sh` provides one if available.

use contract_tests::{Agent, ContainerView, Engine, Image, World, wait_for};
use evenkeel_common::wire::Kind;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Writes a project with a web service and various neighbours. `edited` is another line of the service with that name.
fn write_project(world: &mut World, edited: &str) {
    let host = world.host.clone();
    world.project.write_text(&format!(
        "x-rest: &rest {{ image: '{host}/rest:latest', labels: {{labels}}, stop_grace_period: 1s }}
services:
  db: {{ image: '{host}/db:latest', labels: {{labels}}, stop_grace_period: 1s }}
  stopped: *rest
  edited:
    <<: *rest
{edited}
  migrate:
    image: '{host}/web:latest'
    labels: {{labels}}
    command: [/bin/sh, -c, 'echo migrated']
    depends_on: [db]
  web:
    image: '{host}/web:latest'
    labels: {{labels}}
    stop_grace_period: 1s
    depends_on:
      db: {{ condition: service_healthy, restart: true }}
      stopped: {{ condition: service_started }}
      migrate: {{ condition: service_completed_successfully }}
  many: {{ image: '{host}/web:latest', labels: {{labels}}, stop_grace_period: 1s }}
  side:
    <<: *rest
    network_mode: 'service:web'
  follower:
    <<: *rest
    depends_on: {{ web: {{ condition: service_started, restart: true }} }}
  plain:
    <<: *rest
    depends_on: [web]
"
    ));
}

/// Starts the project with one service scaled, stops one service manually, edits the definition of another one without
/// applying it, and moves the tags of all neighbours.
fn neighbours(about: &str) -> World {
    let mut world = World::new(about);
    world.push("web", &Image::good("v1"));
    world.push("rest", &Image::good("v1"));
    // It must be healthy before the others start.
    world.push("db", &Image::healthy("v1"));
    write_project(&mut world, "");
    let output = world.project.compose(&["up", "-d", "--scale", "many=2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    wait_for("all containers to run", || {
        let views = world.project.containers();
        let well = |view: &ContainerView| view.state == "running" && matches!(&*view.health, "" | "healthy");
        let settled = views.iter().all(|view| view.service == "migrate" || well(view));
        if settled && views.len() == 10 { Ok(()) } else { Err(format!("{views:#?}")) }
    });
    world.engine.docker(&["stop", &world.project.container("stopped").id]);
    write_project(&mut world, "    environment: { EDITED: 'yes' }");
    world.push("rest", &Image::good("v2"));
    world.push("db", &Image::healthy("v2"));
    for repository in ["rest", "db"] {
        world.engine.docker(&["pull", "-q", &world.reference(repository)]);
    }
    world
}

fn agent(world: &World, environment: &[(&str, &str)]) -> Agent {
    world.agent_with(world.config([world.entry("shop", &["web:latest"])]), environment)
}

fn of(world: &World, services: &[&str]) -> Vec<ContainerView> {
    let mut views = world.project.containers();
    views.retain(|view| services.contains(&view.service.as_str()));
    for view in &mut views {
        // The health status may change at any time.
        view.health.clear();
    }
    views
}

const LEFT_ALONE: [&str; 4] = ["db", "stopped", "edited", "plain"];

/// Asserts that updates of `web` to a good and to a bad image do not touch the services in `LEFT_ALONE`.
fn assert_updates_leave_neighbours_alone(world: &World, agent: &Agent) {
    let before = of(world, &LEFT_ALONE);
    assert_eq!(before.len(), LEFT_ALONE.len());
    let followers = of(world, &["follower", "side"]);

    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert!(!entry.message.contains("also recreated"), "{}", entry.message);
    agent.wait_done(1);
    assert_eq!(of(world, &LEFT_ALONE), before);
    assert_runs(world, "v2");
    for (now, then) in of(world, &["follower", "side"]).iter().zip(&followers) {
        assert_eq!((now.service.as_str(), now.state.as_str()), (then.service.as_str(), "running"));
        assert_eq!(now.image, then.image, "{} keeps its image although its tag has moved", now.service);
        assert_ne!(now.started_at, then.started_at, "{} is restarted with web", now.service);
    }

    world.push("web", &Image::unhealthy("v3"));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert!(!entry.message.contains("also recreated"), "{}", entry.message);
    agent.wait_done(2);
    assert_eq!(of(world, &LEFT_ALONE), before, "the rollback does not touch them, either");
    assert_runs(world, "v2");
}

#[track_caller]
fn assert_runs(world: &World, version: &str) {
    let views = of(world, &["web", "many", "migrate"]);
    assert!(views.iter().all(|view| view.version == version), "{views:#?}");
    let state = |service: &str| -> Vec<String> {
        views.iter().filter(|view| view.service == service).map(|view| view.state.clone()).collect()
    };
    assert_eq!(state("web"), ["running"]);
    assert_eq!(state("many"), ["running", "running"], "as many as scaled manually");
    assert_eq!(state("migrate"), ["exited"], "the migration ran on the image");
    let side = world.project.container("side");
    let mode = world.engine.get(&format!("/containers/{}/json", side.id));
    let web = world.project.container("web");
    assert_eq!(mode["HostConfig"]["NetworkMode"], format!("container:{}", web.id));
}

#[test]
fn an_update_and_its_rollback_do_not_touch_the_database_of_the_project() {
    let world = neighbours("beside");
    let agent = agent(&world, &[]);
    assert_updates_leave_neighbours_alone(&world, &agent);
}

#[test]
fn another_compose_version_than_the_creator_leaves_the_database_alone() {
    let Ok(folder) = std::env::var("EVENKEEL_OTHER_COMPOSE") else {
        eprintln!("NOT RUN: EVENKEEL_OTHER_COMPOSE is not set");
        return;
    };
    let engine = Engine::of_this_machine();
    let other = engine.cli(&["compose", "version"]).env("DOCKER_CONFIG", &folder).output();
    let other = String::from_utf8(other.expect("docker can be run").stdout).expect("text");
    if other.trim() == engine.docker(&["compose", "version"]) {
        eprintln!("NOT RUN: EVENKEEL_OTHER_COMPOSE has the same version as the installed compose");
        return;
    }
    let world = neighbours("other");
    let agent = agent(&world, &[("DOCKER_CONFIG", &folder)]);
    assert_updates_leave_neighbours_alone(&world, &agent);
}

/// Writes a wrapper script named `docker` and returns a `PATH` on which it precedes the real one.
fn docker_wrapper(folder: &Path, script: &str) -> String {
    let path = std::env::var("PATH").expect("there is a PATH");
    let real = std::env::split_paths(&path).map(|folder| folder.join("docker")).find(|file| file.is_file());
    let real = real.expect("docker is installed");
    let bin = folder.join("bin");
    fs::create_dir(&bin).expect("a folder can be created");
    let text = format!("#!/bin/sh\nreal={}\ncd {}\n{script}\n", real.display(), folder.display());
    fs::write(bin.join("docker"), text).expect("a script can be written");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(bin.join("docker"), mode).expect("a script can be made executable");
    format!("{}:{path}", bin.display())
}

#[test]
fn a_compose_that_recreates_everything_does_not_recreate_the_database() {
    let world = neighbours("anew");
    // Like compose 5.4 with the containerd image store (docker/compose#14036).
    let path = docker_wrapper(
        world.folder(),
        "case \"$*\" in *' up -d '*) exec $real \"$@\" --force-recreate;; *) exec $real \"$@\";; esac",
    );
    let agent = agent(&world, &[("PATH", &path)]);
    assert_updates_leave_neighbours_alone(&world, &agent);
}

#[test]
fn containers_that_compose_recreates_unnecessarily_are_named_in_the_entry() {
    let world = neighbours("beyond");
    let path = docker_wrapper(
        world.folder(),
        "case \"$*\" in
*' up -d '*)
    $real \"$@\" || exit
    exec $real compose -p \"$3\" -f \"$5\" up -d --pull never --no-deps --force-recreate plain ;;
*) exec $real \"$@\" ;;
esac",
    );
    let agent = agent(&world, &[("PATH", &path)]);
    let plain = world.project.container("plain");
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    let expected = format!("compose also recreated {}, which was not necessary", plain.name);
    assert!(entry.message.contains(&expected), "{}", entry.message);
    assert_ne!(world.project.container("plain").id, plain.id);
}

#[test]
fn a_compose_that_is_too_old_is_reported_at_startup_and_by_the_service_and_not_used() {
    let (world, _) = World::with_web("old");
    let path = docker_wrapper(
        world.folder(),
        "case \"$*\" in 'compose version'*) echo 'Docker Compose version v2.5.0';; *) exec $real \"$@\";; esac",
    );
    let agent = agent(&world, &[("PATH", &path)]);
    let health = agent.request("GET", "/health").json();
    let warnings = health["config_warnings"].to_string();
    assert!(warnings.contains("compose 2.5.0 is too old: 2.20 or later is needed (install"), "{warnings}");
    let web = world.project.container("web");
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let errored = wait_for("the error", || agent.errored().remove("shop").ok_or_else(String::new));
    assert!(errored.contains("compose 2.5.0 is too old: 2.20 or later is needed (install"), "{errored}");
    let now = world.project.container("web");
    assert_eq!((now.id, now.started_at), (web.id, web.started_at));
}
