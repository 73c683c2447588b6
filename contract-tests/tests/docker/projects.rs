//! Realistic projects: several files, variables, replicas, one-shots, profiles, volumes, shared networks. An update or a
//! rollback changes only its own service.

use contract_tests::{
    Agent, ContainerView, Image, LABEL, Project, Pushed, Service, World, kill_from_outside, on_engine_host,
    unused_port, wait_for,
};
use evenkeel_common::wire::Kind;
use serde_json::json;
use std::net::TcpListener;
use std::time::Duration;

/// Creates a project of a base file and an override file with a variable from an env file, with two replicas that depend on
/// a one-shot service.
fn shop(about: &str) -> (World, Agent, Pushed) {
    let mut world = World::new(about);
    let done = Image {
        command: ["/bin/sh", "-c", "echo migrated"].map(str::to_owned).to_vec(),
        ..Image::exits("v1", 0)
    };
    let v1 = world.push("web", &Image::good("v1"));
    world.push("migrate", &done);
    world.push("db", &Image::healthy("v1"));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "services:
  migrate: {{ image: '{host}/migrate:latest', labels: {{labels}}, network_mode: none }}
  db:
    image: '{host}/db:latest'
    labels: {{labels}}
    volumes: ['data:/data', '/scratch']
    stop_grace_period: 1s
  web:
    image: '{host}/web:${{WEB_TAG:?not from the env file}}'
    labels: {{labels}}
    stop_grace_period: 1s
    depends_on:
      migrate: {{ condition: service_completed_successfully }}
      db: {{ condition: service_healthy }}
  tool: {{ image: '{host}/db:latest', labels: {{labels}}, profiles: [debug] }}
volumes:
  data: {{ labels: {{labels}} }}
"
    ));
    let (more, env) = (world.folder().join("more.yml"), world.folder().join("shop.env"));
    let text = "services:
  web:
    deploy: { replicas: 2 }
    restart: unless-stopped
    volumes: ['/cache']
";
    std::fs::write(&more, text).expect("the file can be written");
    std::fs::write(&env, "WEB_TAG=latest\n").expect("the file can be written");
    let more_file = more.display().to_string();
    let up = ["-f", &more_file, "--env-file", &env.display().to_string(), "up", "-d"];
    let output = world.project.compose(&up);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let entry = world
        .entry("shop", &["web:latest", "migrate:latest", "db:latest"])
        .set("compose_files", json!([world.project.file, more]))
        .set("env_file", json!(env))
        .set("auto_heal", true);
    let agent = world.agent_for([entry]);
    (world, agent, v1)
}

fn of(views: &[ContainerView], service: &str) -> Vec<ContainerView> {
    views.iter().filter(|view| view.service == service).cloned().collect()
}

/// Writes a file in each container, which is lost with the container unless it is on a volume.
fn mark(world: &World, views: &[ContainerView], path: &str) {
    for view in views {
        world.engine.docker(&["exec", &view.name, "/bin/sh", "-c", &format!("echo kept > {path}")]);
    }
}

#[track_caller]
fn assert_marked(world: &World, views: &[ContainerView], path: &str) {
    for view in views {
        let found = world.engine.docker(&["exec", &view.name, "/bin/cat", path]);
        assert_eq!(found, "kept", "{path} of {}", view.name);
    }
}

/// The state that an update of `web` must preserve.
struct Untouched {
    db: ContainerView,
}

impl Untouched {
    fn before(world: &World) -> Self {
        let views = world.project.containers();
        mark(world, &of(&views, "web"), "/cache/mark");
        mark(world, &of(&views, "db"), "/data/mark");
        mark(world, &of(&views, "db"), "/scratch/mark");
        Self { db: of(&views, "db").remove(0) }
    }

    #[track_caller]
    fn assert(&self, world: &World, version: &str) {
        let views = world.project.containers();
        let web = of(&views, "web");
        assert_eq!(web.len(), 2, "{views:#?}");
        for view in &web {
            assert_eq!((view.version.as_str(), view.state.as_str()), (version, "running"), "{view:#?}");
        }
        assert_marked(world, &web, "/cache/mark");
        let db = of(&views, "db").remove(0);
        assert_eq!((&db.id, &db.started_at), (&self.db.id, &self.db.started_at));
        for path in ["/data/mark", "/scratch/mark"] {
            assert_marked(world, std::slice::from_ref(&db), path);
        }
        let migrate = of(&views, "migrate");
        assert!(migrate.len() == 1 && migrate[0].state == "exited", "{migrate:#?}");
        assert_eq!(of(&views, "tool"), [], "its profile is not enabled");
        world.assert_tidy();
    }
}

#[test]
fn a_complex_project_is_updated_and_keeps_everything_else() {
    let (world, agent, _) = shop("offers");
    let rest = Untouched::before(&world);
    let v2 = world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    rest.assert(&world, "v2");
    assert_eq!(agent.check("shop").event, Kind::CHECKED);
    for kind in [Kind::DIED, Kind::UNHEALTHY, Kind::RESTARTING, Kind::ROLLED_BACK] {
        assert_eq!(agent.entries(&kind), [], "a completed one-shot is not healed");
    }
}

#[test]
fn a_complex_project_is_rolled_back_completely() {
    let (world, agent, v1) = shop("whole");
    let rest = Untouched::before(&world);
    let v2 = world.push("web", &Image::unhealthy("v2"));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.old_digest.as_deref(), Some(&*v1.digest));
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    rest.assert(&world, "v1");
    assert_eq!(agent.check("shop").event, Kind::CHECKED);
    rest.assert(&world, "v1");
}

#[test]
fn a_job_that_has_finished_is_not_run_again_for_its_new_image() {
    let (world, agent, _) = shop("migration");
    let (rest, job) = (Untouched::before(&world), world.project.container("migrate"));
    let v2 = world.push("migrate", &Image::exits("v2", 0));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::PULLED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    rest.assert(&world, "v1");
    assert_eq!(world.project.container("migrate").id, job.id);
    assert!(agent.blocked().is_empty() && agent.entries(&Kind::UPDATED).is_empty());
}

#[test]
fn a_job_with_a_new_image_of_its_own_runs_again_with_the_update_of_the_service_that_waits_for_it() {
    let (world, agent, _) = shop("migrates");
    let (rest, job) = (Untouched::before(&world), world.project.container("migrate"));
    let migration = |version: &str| Image {
        command: ["/bin/sh", "-c", "echo migrated"].map(str::to_owned).to_vec(),
        ..Image::exits(version, 0)
    };
    world.push("migrate", &migration("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::PULLED, 1);
    agent.wait_done(1);
    assert_eq!(world.project.container("migrate").id, job.id, "nothing that waits for it has changed");
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 2);
    agent.wait_done(2);
    rest.assert(&world, "v2");
    assert_eq!(world.project.container("migrate").version, "v2");

    world.push("migrate", &migration("v3"));
    world.push("web", &Image::good("v3"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 4);
    agent.wait_done(3);
    rest.assert(&world, "v3");
    assert_eq!(world.project.container("migrate").version, "v3");
    assert!(agent.blocked().is_empty());
}

#[test]
fn containers_that_share_the_network_of_an_updated_one_follow_it() {
    followed_to_a_new_network(World::new("shared-net"), "", "network_mode: 'service:vpn'");
}

#[test]
fn containers_that_share_the_network_of_an_updated_one_by_its_name_follow_it() {
    let world = World::new("named-net");
    let name = format!("{}-vpn", world.project.name);
    let client = format!("network_mode: 'container:{name}'\n    depends_on: [vpn]");
    followed_to_a_new_network(world, &format!(", container_name: {name}"), &client);
}

/// Updates and rolls back a service whose network another one uses. `vpn` and `client`: their further keys.
fn followed_to_a_new_network(mut world: World, vpn: &str, client: &str) {
    world.push("vpn", &Image::good("v1"));
    world.push("client", &Image::good("v1"));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "services:
  vpn: {{ image: '{host}/vpn:latest', labels: {{labels}}, stop_grace_period: 1s{vpn} }}
  client:
    image: '{host}/client:latest'
    labels: {{labels}}
    stop_grace_period: 1s
    {client}
"
    ));
    world.project.up();
    let network = |service: &str| {
        let pid = world.pids(&[service]).remove(0);
        let link = on_engine_host("readlink").arg(format!("/proc/{pid}/ns/net")).output().expect("readlink");
        assert!(link.status.success(), "{service}: {link:?}");
        String::from_utf8(link.stdout).expect("a name")
    };
    assert_eq!(network("vpn"), network("client"));
    let agent = world.agent_for([world.entry("tunnel", &["vpn:latest"]).set("health_grace", 15)]);
    world.push("vpn", &Image::good("v2"));
    agent.trigger("tunnel");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("vpn", "v2");
    world.assert_runs("client", "v1");
    assert_eq!(network("vpn"), network("client"));

    world.push("vpn", &Image::fails_on_command("v3"));
    agent.trigger("tunnel");
    world.project.fail("vpn", "v3");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(2);
    world.assert_runs("vpn", "v2");
    world.assert_runs("client", "v1");
    wait_for("both to be in one network", || {
        if network("vpn") == network("client") { Ok(()) } else { Err("two networks".to_owned()) }
    });
    world.assert_tidy();
}

/// A project of one service that publishes a port.
fn publish(world: &mut World, port: u16) {
    let image = world.reference("web");
    world.project.write_text(&format!(
        "services:
  web: {{ image: '{image}', labels: {{labels}}, stop_grace_period: 1s, ports: ['127.0.0.1:{port}:80'] }}
"
    ));
}

#[test]
fn a_port_in_use_is_reported_and_the_project_starts_once_it_is_free() {
    let mut world = World::new("port");
    world.push("web", &Image::good("v1"));
    let port = unused_port();
    publish(&mut world, port);
    let taken = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    assert!(!world.project.compose(&["up", "-d"]).status.success());
    assert_eq!(world.project.container("web").state, "created");
    let entry = world.entry("web", &["web:latest"]).set("auto_start", true).set("heal_cooldown", 15);
    let agent = world.agent_with(world.config([entry]).set("registry.poll_interval", 10), &[]);
    wait_for("the port to be named", || match agent.errored().get("web") {
        Some(text) if text.contains(&port.to_string()) => Ok(()),
        other => Err(format!("{other:?}, {:#?}", agent.audit())),
    });
    wait_for("two more polls", || {
        let count = agent.status().poll_count;
        if count >= 5 { Ok(()) } else { Err(count.to_string()) }
    });
    assert_eq!(agent.entries(&Kind::ERROR).len(), 1, "reported once: {:#?}", agent.audit());

    drop(taken);
    wait_for("the container to run", || {
        let view = world.project.container("web");
        if view.state == "running" { Ok(()) } else { Err(format!("{view:#?}, {:#?}", agent.audit())) }
    });
    world.assert_runs("web", "v1");
    wait_for("the error to be cleared", || {
        if agent.errored().is_empty() { Ok(()) } else { Err(format!("{:?}", agent.errored())) }
    });
}

#[test]
fn a_port_that_is_taken_during_an_update_is_no_fault_of_its_image() {
    let mut world = World::new("port-taken");
    world.push("web", &Image::good("v1"));
    let port = unused_port();
    publish(&mut world, port);
    world.project.up();
    let agent = world.agent();
    world.push("web", &Image::good("v2"));
    // The port is free for some milliseconds only.
    let thief = std::thread::spawn(move || {
        loop {
            match TcpListener::bind(("127.0.0.1", port)) {
                Ok(taken) => break taken,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    agent.trigger("web");
    agent.wait_step("diagnose", 1);
    drop(thief.join().expect("the old container has left the port"));
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert!(entry.message.contains("could not be brought up by this machine"), "{entry:#?}");
    assert_eq!(entry.new_digest, None, "{entry:#?}");
    agent.wait_done(1);
    world.assert_runs("web", "v1");
    assert!(agent.blocked().is_empty(), "{:?}", agent.blocked());
    assert!(
        agent.errored()["web"].contains("is not blocked, and tried again later"),
        "{:?}",
        agent.errored()
    );

    // A person says that it is mended.
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(2);
    world.assert_runs("web", "v2");
    assert!(agent.errored().is_empty(), "{:?}", agent.errored());
    world.assert_tidy();
}

#[test]
fn an_override_file_that_is_not_configured_is_reported_and_never_dropped() {
    let (world, _) = World::with_web("override");
    let file = world.folder().join("compose.override.yml");
    std::fs::write(&file, "services: { web: { environment: { FROM: override } } }\n").unwrap();
    let output = world.project.compose(&["-f", &file.display().to_string(), "up", "-d"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let before = world.assert_runs("web", "v1");
    let has_it = || world.engine.docker(&["exec", &before.name, "/bin/sh", "-c", "echo $FROM"]) == "override";
    assert!(has_it());
    let mut agent = world.agent_for([world.entry("web", &["web:latest"]).set("auto_start", true)]);
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    let error = agent.wait_entry(&Kind::ERROR, 1);
    assert!(error.message.contains(&file.display().to_string()), "{error:#?}");
    agent.trigger("web");
    assert_eq!((world.assert_runs("web", "v1").id, has_it()), (before.id.clone(), true));

    kill_from_outside(&world.pids(&["web"]));
    wait_for("the container to be down", || {
        let state = world.project.container("web").state;
        if state == "exited" { Ok(()) } else { Err(state) }
    });
    wait_for("the unchanged container to be started", || {
        agent.trigger("web");
        let view = world.project.container("web");
        if view.state == "running" { Ok(()) } else { Err(format!("{view:#?}, {:#?}", agent.audit())) }
    });
    assert_eq!((world.assert_runs("web", "v1").id, has_it()), (before.id.clone(), true));

    agent.reload(|config| config["services"][0]["compose_files"] = json!([world.project.file, file]));
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert!(has_it());
    assert!(agent.errored().is_empty(), "{:?}", agent.errored());

    // A file that only adds services does not change the existing ones.
    let more = world.folder().join("more.yml");
    world.push("db", &Image::good("v1"));
    let db = json!({"image": world.reference("db"), "labels": {LABEL: world.project.name}, "network_mode": "none"});
    std::fs::write(&more, json!({"services": {"db": db}}).to_string()).unwrap();
    let files = [&file, &more].map(|file| file.display().to_string());
    let output = world.project.compose(&["-f", &files[0], "-f", &files[1], "up", "-d", "--force-recreate"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    world.push("web", &Image::good("v3"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 2);
    assert!(has_it());
}

#[test]
fn a_moved_project_is_updated_although_its_old_file_still_exists() {
    let (world, _) = World::with_web("moved");
    let old = world.folder().join("old.yml");
    std::fs::copy(&world.project.file, &old).unwrap();
    world.engine.docker(&[
        "compose",
        "-p",
        &world.project.name,
        "-f",
        &old.display().to_string(),
        "up",
        "-d",
    ]);
    let agent = world.agent_for([world.entry("web", &["web:latest"])]);
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn a_container_of_another_project_is_not_updated_by_its_name() {
    let mut world = World::new("outside");
    world.push("web", &Image::good("v1"));
    let folder = world.folder().join("old");
    std::fs::create_dir(&folder).expect("a folder can be created");
    let mut old = Project::new("outside-old", &folder, &world.engine);
    let name = format!("{}-web", old.name);
    let line = format!("container_name: {name}");
    old.service("web", &world.reference("web"), &[&line]);
    old.up();
    world.service("web", "web", &[&line]);
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("container_name", &*name)]);
    let error = agent.wait_entry(&Kind::ERROR, 1).message;
    assert!(error.contains(&name) && error.contains(&old.name), "{error}");
    world.push("web", &Image::good("v2"));
    agent.redeploy("web");
    agent.wait_entry(&Kind::FORCE_REDEPLOY_FAILED, 1);
    let kept = old.container("web");
    assert_eq!((kept.version.as_str(), kept.state.as_str()), ("v1", "running"));
    assert!(agent.blocked().is_empty(), "{:?}", agent.blocked());
}

#[test]
fn containers_outside_compose_are_healed_by_name_unless_stopped_manually() {
    let world = World::new("solo");
    world.push("web", &Image::good("v1"));
    let names = ["crashes", "stopped"].map(|what| format!("{}-{what}", world.project.name));
    // With the project's label, the harness removes them.
    let owner = format!("com.docker.compose.project={}", world.project.name);
    for name in &names {
        let image = world.reference("web");
        world.engine.docker(&["run", "-d", "--name", name, "--label", &owner, "--network", "none", &image]);
    }
    let [crashes, stopped] = &names;
    let entry = |name: &str| {
        Service::named(name).set("container_name", name).set("auto_heal", true).set("health_grace", 3)
    };
    let agent = world.agent_for([entry(crashes), entry(stopped)]);
    world.engine.docker(&["stop", "-t", "1", stopped]);
    // Crash this one last: once it has been restarted, the agent has also handled the other one.
    kill_from_outside(&[world.engine.docker(&["inspect", "-f", "{{.State.Pid}}", crashes])]);
    let restarted = agent.wait_entry(&Kind::RESTARTED, 1);
    assert_eq!((&restarted.service, restarted.container.as_ref()), (crashes, Some(crashes)));
    let state = |name: &str| world.engine.docker(&["inspect", "-f", "{{.State.Status}}", name]);
    assert_eq!((&*state(crashes), &*state(stopped)), ("running", "exited"));
    assert_eq!(agent.entries(&Kind::RESTARTING).len(), 1, "{:#?}", agent.audit());
}

#[test]
fn a_container_that_lags_behind_another_one_of_its_tag_is_updated_once() {
    let (mut world, _) = World::with_web("lagging");
    world.service("worker", "web", &[]);
    world.project.up();
    let v2 = world.push("web", &Image::good("v2"));
    for arguments in [&["pull", "web"][..], &["up", "-d", "web"][..]] {
        let output = world.project.compose(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let web = world.assert_runs("web", "v2");
    world.assert_runs("worker", "v1");
    let agent = world.agent();
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    world.assert_runs("worker", "v2");
    assert_eq!(world.assert_runs("web", "v2").id, web.id);
    agent.check("web");
    assert_eq!(agent.entries(&Kind::UPDATED).len(), 1, "{:#?}", agent.audit());
}
