//! What an update leaves alone, whatever the version of compose: it recreates the services whose image changes and
//! what is restarted with them (DECISIONS 9).
//!
//! `EVENKEEL_OTHER_COMPOSE` is a folder in the shape of `~/.docker` with another compose as its plugin; `dist/test.sh`
//! brings one where it can be had.

use contract_tests::{Agent, ContainerView, Engine, Image, World, wait_for};
use evenkeel_common::wire::Kind;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// A web service with all kinds of neighbours; `edited` is one more line of the service of that name.
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

/// Brought up; then one service is scaled and one stopped by hand, the definition of one is edited and not applied,
/// and the tag of all neighbours is moved.
fn neighbours(about: &str) -> World {
    let mut world = World::new(about);
    world.push("web", &Image::good("v1"));
    world.push("rest", &Image::good("v1"));
    // One of them must be healthy before the others start.
    world.push("db", &Image::healthy("v1"));
    write_project(&mut world, "");
    let output = world.project.compose(&["up", "-d", "--scale", "many=2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    wait_for("all to be well", || {
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
        // A health check may be between two runs.
        view.health.clear();
    }
    views
}

const LEFT_ALONE: [&str; 4] = ["db", "stopped", "edited", "plain"];

/// That an update of `web` to a good image, and one to a bad one, leave alone what they have to.
fn updates_leave_neighbours_alone(world: &World, agent: &Agent) {
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
        assert_eq!(now.image, then.image, "{} stays on its image, whatever its tag names", now.service);
        assert_ne!(now.started_at, then.started_at, "{} is restarted with web", now.service);
    }

    world.push("web", &Image::unhealthy("v3"));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert!(!entry.message.contains("also recreated"), "{}", entry.message);
    agent.wait_done(2);
    assert_eq!(of(world, &LEFT_ALONE), before, "the way back leaves them alone, too");
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
    assert_eq!(state("many"), ["running", "running"], "as many as a person has made");
    assert_eq!(state("migrate"), ["exited"], "the migration ran on the image");
    let side = world.project.container("side");
    let mode = world.engine.get(&format!("/containers/{}/json", side.id));
    let web = world.project.container("web");
    assert_eq!(mode["HostConfig"]["NetworkMode"], format!("container:{}", web.id));
}

#[test]
fn an_update_and_its_undoing_leave_the_database_beside_them_alone() {
    let world = neighbours("beside");
    let agent = agent(&world, &[]);
    updates_leave_neighbours_alone(&world, &agent);
}

#[test]
fn they_leave_it_alone_with_another_compose_than_the_one_that_made_it() {
    let Ok(folder) = std::env::var("EVENKEEL_OTHER_COMPOSE") else {
        eprintln!("NOT RUN: EVENKEEL_OTHER_COMPOSE names no other compose");
        return;
    };
    let engine = Engine::of_this_machine();
    let other = engine.cli(&["compose", "version"]).env("DOCKER_CONFIG", &folder).output();
    let other = String::from_utf8(other.expect("docker can be run").stdout).expect("text");
    if other.trim() == engine.docker(&["compose", "version"]) {
        eprintln!("NOT RUN: EVENKEEL_OTHER_COMPOSE is the compose that is there anyway");
        return;
    }
    let world = neighbours("other");
    let agent = agent(&world, &[("DOCKER_CONFIG", &folder)]);
    updates_leave_neighbours_alone(&world, &agent);
}

/// Puts a program named `docker` before the real one; its value of `PATH`.
fn docker_that(folder: &Path, script: &str) -> String {
    let path = std::env::var("PATH").expect("there is a PATH");
    let real = std::env::split_paths(&path).map(|folder| folder.join("docker")).find(|file| file.is_file());
    let real = real.expect("docker is there");
    let bin = folder.join("bin");
    fs::create_dir(&bin).expect("a folder can be made");
    let text = format!("#!/bin/sh\nreal={}\ncd {}\n{script}\n", real.display(), folder.display());
    fs::write(bin.join("docker"), text).expect("a script can be written");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(bin.join("docker"), mode).expect("a script can be made runnable");
    format!("{}:{path}", bin.display())
}

#[test]
fn a_compose_that_recreates_whatever_it_is_given_is_not_given_the_database() {
    let world = neighbours("anew");
    // As compose 5.4 does with the containerd image store (docker/compose#14036).
    let path = docker_that(
        world.folder(),
        "case \"$*\" in *' up -d '*) exec $real \"$@\" --force-recreate;; *) exec $real \"$@\";; esac",
    );
    let agent = agent(&world, &[("PATH", &path)]);
    updates_leave_neighbours_alone(&world, &agent);
}

#[test]
fn what_compose_recreates_beyond_what_it_was_told_is_named_in_the_entry() {
    let world = neighbours("beyond");
    let path = docker_that(
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
    let told = format!("compose also recreated {}, which this did not need", plain.name);
    assert!(entry.message.contains(&told), "{}", entry.message);
    assert_ne!(world.project.container("plain").id, plain.id);
}

#[test]
fn a_compose_that_is_too_old_is_told_at_the_start_and_by_the_service_and_nothing_is_touched() {
    let (world, _) = World::with_web("old");
    let path = docker_that(
        world.folder(),
        "case \"$*\" in 'compose version'*) echo 'Docker Compose version v2.5.0';; *) exec $real \"$@\";; esac",
    );
    let agent = agent(&world, &[("PATH", &path)]);
    let health = agent.ask("GET", "/health").json();
    let warnings = health["config_warnings"].to_string();
    assert!(warnings.contains("compose 2.5.0 is too old: 2.20 or later is needed (install"), "{warnings}");
    let web = world.project.container("web");
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let errored = wait_for("the fault", || agent.errored().remove("shop").ok_or_else(String::new));
    assert!(errored.contains("compose 2.5.0 is too old: 2.20 or later is needed (install"), "{errored}");
    let now = world.project.container("web");
    assert_eq!((now.id, now.started_at), (web.id, web.started_at));
}
