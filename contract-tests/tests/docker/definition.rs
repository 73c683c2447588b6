//! An update changes the image and nothing else (DECISIONS 4a).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use contract_tests::{Agent, Image, World, wait_for};
use evenkeel_common::wire::{Kind, StatusValue};
use serde_json::Value;

/// Runs `docker compose` for the project with these arguments, as a person does.
#[track_caller]
fn by_hand(world: &World, arguments: &[&str]) {
    let output = world.engine.cli(&["compose", "-p", &world.project.name]).args(arguments).output();
    let output = output.expect("docker can be run");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn inspect(world: &World, service: &str) -> Value {
    world.engine.get(&format!("/containers/{}/json", world.project.container(service).id))
}

fn environment(world: &World, service: &str) -> Vec<String> {
    let seen = inspect(world, service);
    let all = seen["Config"]["Env"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn agent(world: &World) -> Agent {
    world.agent_for([world.entry("shop", &["web:latest"])])
}

/// The same with another compose file than that of the world.
fn agent_with_file(world: &World, file: &str) -> Agent {
    let entry = world.entry("shop", &["web:latest"]).set("compose_files", serde_json::json!([file]));
    world.agent_for([entry])
}

/// Waits until the service waits for a gate, and returns why.
#[track_caller]
fn waits_for(agent: &Agent, service: &str, gate: &str) -> String {
    wait_for("the update to wait", || match agent.service(service).waiting {
        Some(waiting) if waiting.gate == gate => Ok(waiting.why),
        other => Err(format!("{other:?}")),
    })
}

fn write(world: &World, name: &str, text: &str) -> String {
    let path = world.folder().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder can be created");
    fs::write(&path, text).expect("a file can be written");
    path.display().to_string()
}

/// A project with one service, whose definition ends with these lines.
fn project(about: &str, more: &str) -> World {
    let world = World::new(about);
    world.push("web", &Image::good("v1"));
    edit(&world, more);
    world
}

fn edit(world: &World, more: &str) {
    let (host, name) = (&world.host, &world.project.name);
    let label = contract_tests::LABEL;
    let text = format!(
        "services:\n  web:\n    image: '{host}/web:latest'\n    labels: {{ {label}: {name} }}\n    network_mode: none\n    \
         stop_grace_period: 1s\n{more}"
    );
    fs::write(&world.project.file, text).expect("the compose file can be written");
}

fn file(world: &World) -> String {
    world.project.file.display().to_string()
}

#[test]
fn a_project_started_with_an_env_file_keeps_its_variables_and_its_data() {
    let world = project(
        "env-file",
        "    environment: { SECRET: '${SECRET}' }\n    volumes: ['${DATA:-/tmp}:/data']\n",
    );
    let data = write(&world, "prod/data/keep", "");
    let data = Path::new(&data).parent().expect("a folder").display().to_string();
    let variables = write(&world, "prod.env", &format!("SECRET=abc$$1\nDATA={data}\n"));
    by_hand(&world, &["--env-file", &variables, "-f", &file(&world), "up", "-d"]);
    let before = (environment(&world, "web"), inspect(&world, "web")["Mounts"].clone());
    let agent = agent(&world);

    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!((environment(&world, "web"), inspect(&world, "web")["Mounts"].clone()), before);
    agent.wait_done(1);

    world.push("web", &Image::unhealthy("v3"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    world.assert_runs("web", "v2");
    assert_eq!((environment(&world, "web"), inspect(&world, "web")["Mounts"].clone()), before);
    agent.wait_done(2);
    let after = world.project.container("web").id;
    by_hand(&world, &["--env-file", &variables, "-f", &file(&world), "up", "-d"]);
    assert_eq!(world.project.container("web").id, after, "a person's `up` recreates nothing");
}

#[test]
fn a_variable_of_the_persons_shell_holds_the_update() {
    let world = project("shell", "    environment: { SECRET: '${SECRET:-}' }\n");
    let output = world
        .engine
        .cli(&["compose", "-p", &world.project.name, "-f", &file(&world), "up", "-d"])
        .env("SECRET", "of the shell")
        .output()
        .expect("docker can be run");
    assert!(output.status.success(), "{output:?}");
    let before = world.project.container("web");
    let agent = agent(&world);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let why = waits_for(&agent, "shop", "definition");
    assert!(why.contains("web: environment SECRET") && !why.contains("of the shell"), "{why}");
    assert_eq!(world.project.container("web").id, before.id);
}

#[test]
fn a_folder_below_the_home_directory_of_the_person_holds_the_update() {
    let world = project("home", "    volumes: ['~/data:/data']\n");
    // Where `docker` may have its plugins, whatever the home directory is.
    let settings = std::env::var("DOCKER_CONFIG")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.docker")))
        .unwrap_or_default();
    let home = |name: &str| {
        write(&world, &format!("{name}/data/keep"), "");
        world.folder().join(name).display().to_string()
    };
    let (ann, other) = (home("ann"), home("other"));
    let output = world
        .engine
        .cli(&["compose", "-p", &world.project.name, "-f", &file(&world), "up", "-d"])
        .envs([("HOME", &ann), ("DOCKER_CONFIG", &settings)])
        .output()
        .expect("docker can be run");
    assert!(output.status.success(), "{output:?}");
    let before = world.project.container("web").id;
    let config = world.config([world.entry("shop", &["web:latest"])]);
    let agent = world.agent_with(config, &[("HOME", &other), ("DOCKER_CONFIG", &settings)]);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let why = waits_for(&agent, "shop", "definition");
    assert!(why.contains("web: volume /data") && why.contains("write the path out"), "{why}");
    assert!(!why.contains("POST /redeploy"), "{why}");
    assert_eq!(world.project.container("web").id, before);
}

#[test]
fn relative_paths_are_those_of_the_project_directory() {
    let world = project("directory", "");
    let folder = world.folder().join("app");
    let file = write(&world, "app/deploy/compose.yml", "");
    fs::create_dir(folder.join("data")).expect("a folder can be created");
    edit(&world, "    volumes: ['./data:/data']\n");
    fs::copy(&world.project.file, &file).expect("the file can be copied");
    by_hand(&world, &["--project-directory", &folder.display().to_string(), "-f", &file, "up", "-d"]);
    let before = inspect(&world, "web")["Mounts"].clone();
    let agent = agent_with_file(&world, &file);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(inspect(&world, "web")["Mounts"], before);
    assert!(!folder.join("deploy/data").exists());
}

/// Starts the project of a service whose definition ends with these lines, and moves its folder while it runs. Returns the
/// compose file.
fn moved(about: &str, more: &str) -> (World, String) {
    let world = project(about, more);
    let before = write(&world, "before/compose.yml", "");
    write(&world, "before/web.env", "MODE=one\n");
    write(&world, "before/data/keep", "");
    fs::copy(&world.project.file, &before).expect("the file can be copied");
    by_hand(&world, &["-f", &before, "up", "-d"]);
    let (before, now) = (world.folder().join("before"), world.folder().join("now"));
    fs::rename(before, &now).expect("the folder can be moved");
    (world, now.join("compose.yml").display().to_string())
}

#[test]
fn a_project_that_was_moved_while_it_ran_is_held_for_its_data() {
    let (world, file) = moved("moved", "    volumes: ['./data:/data']\n");
    let before = world.project.container("web").id;
    let agent = agent_with_file(&world, &file);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let why = waits_for(&agent, "shop", "definition");
    assert!(why.contains("web: volume /data") && !why.contains("/before"), "{why}");
    assert_eq!(world.project.container("web").id, before);
    assert!(!world.folder().join("before").exists(), "no empty data");
}

#[test]
fn a_project_that_was_moved_while_it_ran_is_updated_with_its_env_files() {
    let (world, file) = moved("moved-env", "    env_file: [web.env]\n");
    let agent = agent_with_file(&world, &file);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert!(environment(&world, "web").contains(&"MODE=one".to_owned()));
}

#[test]
fn an_edit_that_was_not_applied_holds_the_update_until_it_is_applied_or_undone() {
    let world = project("edited", "    environment: { MODE: 'one' }\n");
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    let before = world.project.container("web");
    let agent = agent(&world);
    edit(&world, "    environment: { MODE: 'two' }\n    entrypoint: [/absent]\n");
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let why = waits_for(&agent, "shop", "definition");
    assert!(why.contains("web: ") && why.contains("environment MODE") && why.contains("entrypoint"), "{why}");
    agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    agent.trigger("shop");
    agent.wait_entry(&Kind::CHECKED, 2);
    assert_eq!(agent.entries(&Kind::UPDATE_AVAILABLE).len(), 1, "told once");
    assert_eq!(world.project.container("web").id, before.id);
    assert_eq!(agent.service("shop").status, StatusValue::Ok);

    edit(&world, "    environment: { MODE: 'one' }\n");
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert!(environment(&world, "web").contains(&"MODE=one".to_owned()));
}

#[test]
fn an_edit_during_a_deployment_reaches_neither_the_new_image_nor_the_rollback() {
    let world = project("meanwhile", "    environment: { MODE: 'one' }\n");
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    let agent = world.agent_for([world.entry("shop", &["web:latest"]).set("health_grace", 20)]);
    world.push("web", &Image::fails_on_command("v2"));
    agent.trigger("shop");
    agent.wait_step("probation", 1);
    edit(&world, "    environment: { MODE: 'two' }\n    entrypoint: [/absent]\n");
    world.project.fail("web", "v2");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(1);
    world.assert_runs("web", "v1");
    assert!(environment(&world, "web").contains(&"MODE=one".to_owned()));
    edit(&world, "    environment: { MODE: 'one' }\n");
    let after = world.project.container("web").id;
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    assert_eq!(
        world.project.container("web").id,
        after,
        "once the edit is undone, a person's `up` recreates nothing"
    );
}

#[test]
fn edits_of_included_and_extended_files_are_applied_with_compose_watch() {
    let world = World::new("include");
    world.push("web", &Image::good("v1"));
    let (host, name, label) = (&world.host, &world.project.name, contract_tests::LABEL);
    let base = |mode: &str| {
        format!("services:\n  base:\n    image: '{host}/web:latest'\n    environment: {{ MODE: '{mode}' }}\n")
    };
    let included = |mode: &str| {
        format!(
            "services:\n  side:\n    image: '{host}/web:latest'\n    labels: {{ {label}: {name} }}\n    \
             stop_grace_period: 1s\n    network_mode: none\n    environment: {{ MODE: '{mode}' }}\n"
        )
    };
    write(&world, "parts/base.yml", &base("one"));
    write(&world, "parts/side.yml", &included("one"));
    let text = format!(
        "include: [parts/side.yml]\nservices:\n  web:\n    extends: {{ file: parts/base.yml, service: base }}\n    \
         labels: {{ {label}: {name} }}\n    stop_grace_period: 1s\n    network_mode: none\n"
    );
    fs::write(&world.project.file, text).expect("the compose file can be written");
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    let agent = world.agent_for([world.entry("shop", &["web:latest"]).set("compose_watch", true)]);
    for (n, (part, text, service)) in
        [("parts/base.yml", base("two"), "web"), ("parts/side.yml", included("two"), "side")]
            .into_iter()
            .enumerate()
    {
        write(&world, part, &text);
        agent.trigger("shop");
        agent.wait_entry(&Kind::COMPOSE_DRIFT, n + 1);
        assert!(environment(&world, service).contains(&"MODE=two".to_owned()), "{part}");
    }
}

#[test]
fn an_env_file_that_disappears_leaves_no_variable_empty_until_a_redeploy_does_without_it() {
    let world = project("vanished", "    environment: { SECRET: '${SECRET:-}' }\n");
    let variables = write(&world, ".env", "SECRET=abc\n");
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    let before = world.project.container("web").id;
    let agent = world.agent_for([world.entry("shop", &["web:latest"]).set("compose_watch", true)]);
    fs::remove_file(&variables).expect("the file can be removed");
    agent.trigger("shop");
    wait_for("the file to be missed", || match agent.errored().get("shop") {
        Some(text) if text.contains(&variables) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    write(&world, ".env", "SECRET=abc\n");
    agent.trigger("shop");
    agent.wait_entry(&Kind::RECOVERED, 1);
    assert_eq!(world.project.container("web").id, before);
    assert_eq!(agent.entries(&Kind::COMPOSE_DRIFT), []);

    fs::remove_file(&variables).expect("the file can be removed");
    agent.redeploy("shop");
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    agent.wait_done(1);
    assert!(environment(&world, "web").contains(&"SECRET=".to_owned()));
    assert_eq!(agent.check("shop").event, Kind::CHECKED);
    assert_eq!((agent.errored().is_empty(), agent.entries(&Kind::COMPOSE_DRIFT)), (true, Vec::new()));
}

#[test]
fn a_project_that_was_taken_down_is_not_started_without_the_env_file_that_it_had() {
    let world = project("down-env", "    environment: { SECRET: '${SECRET:-}' }\n");
    let variables = write(&world, ".env", "SECRET=abc\n");
    by_hand(&world, &["--env-file", &variables, "-f", &file(&world), "up", "-d"]);
    let agent = world.agent_for([world.entry("shop", &["web:latest"]).set("auto_start", true)]);
    agent.check("shop");
    by_hand(&world, &["-f", &file(&world), "down"]);
    fs::remove_file(&variables).expect("the file can be removed");
    // The agent does not start a project that was changed within the last seconds, so trigger until it tries to.
    wait_for("the file to be missed", || {
        agent.trigger("shop");
        match agent.errored().get("shop") {
            Some(text) if text.contains(&variables) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert!(world.project.containers().is_empty());
    write(&world, ".env", "SECRET=abc\n");
    wait_for("the project to be started", || {
        agent.trigger("shop");
        let started = agent.entries(&Kind::STARTED).into_iter().any(|entry| entry.service == "shop");
        if started { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
    assert!(environment(&world, "web").contains(&"SECRET=abc".to_owned()));
}

#[test]
fn an_image_that_the_compose_file_pins_to_a_digest_is_named_as_such() {
    let world = World::new("pinned");
    let digest = world.push("web", &Image::good("v1")).digest;
    let (host, name, label) = (&world.host, &world.project.name, contract_tests::LABEL);
    let text = format!(
        "services:\n  web:\n    image: '{host}/web:latest@{digest}'\n    labels: {{ {label}: {name} }}\n    \
         stop_grace_period: 1s\n    network_mode: none\n"
    );
    fs::write(&world.project.file, text).expect("the compose file can be written");
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    let before = world.project.container("web").id;
    let agent = agent(&world);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::NOT_FOUND, 1);
    let why = entry.reason.unwrap_or_default();
    assert!(why.contains("pin this image to a digest") && !why.contains("a redeploy fetches it"), "{why}");
    assert_eq!(world.project.container("web").id, before);
}

#[test]
fn a_stopped_service_and_a_finished_job_on_the_same_image_keep_their_state() {
    let mut world = World::new("states");
    world.push("web", &Image::good("v1"));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "x-web: &web {{ image: '{host}/web:latest', labels: {{labels}}, stop_grace_period: 1s, network_mode: none }}
services:
  web: *web
  stopped: *web
  job: {{ <<: *web, command: ['true'] }}
  tool: {{ <<: *web, profiles: [tools] }}
"
    ));
    by_hand(&world, &["-f", &file(&world), "--profile", "tools", "up", "-d"]);
    world.engine.docker(&["stop", &world.project.container("stopped").id]);
    let before = |service: &str| {
        let view = world.project.container(service);
        (view.id, view.started_at)
    };
    let kept: Vec<_> = ["stopped", "job"].map(before).into();
    let agent = agent(&world);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    // Its profile is off in the agent's surroundings, but it runs.
    world.assert_runs("tool", "v2");
    assert_eq!(Vec::from(["stopped", "job"].map(before)), kept);
}

#[test]
fn services_of_a_profile_that_is_off_do_not_hold_the_update() {
    for (about, web, other) in [
        ("exclusive", "container_name: '{name}-web'", "container_name: '{name}-web'"),
        ("no-env-file", "env_file: [web.env]", "env_file: [absent.env]"),
    ] {
        let mut world = World::new(about);
        world.push("web", &Image::good("v1"));
        write(&world, "web.env", "MODE=one\n");
        let (host, name) = (world.host.clone(), world.project.name.clone());
        let text = format!(
            "x-web: &web {{ image: '{host}/web:latest', labels: {{labels}}, stop_grace_period: 1s }}
services:
  web: {{ <<: *web, profiles: [small], {web} }}
  other: {{ <<: *web, profiles: [large], {other} }}
"
        );
        world.project.write_text(&text.replace("{name}", &name));
        by_hand(&world, &["-f", &file(&world), "--profile", "small", "up", "-d"]);
        let before = environment(&world, "web");
        let agent = agent(&world);
        world.push("web", &Image::good("v2"));
        agent.trigger("shop");
        agent.wait_entry(&Kind::UPDATED, 1);
        world.assert_runs("web", "v2");
        assert_eq!(environment(&world, "web"), before, "{about}");
    }
}

/// Without `--profile`, compose rejects the files.
#[test]
fn a_service_that_needs_one_of_a_profile_is_brought_up_with_the_profile_that_a_person_has_named() {
    let mut world = World::new("needs-profile");
    world.push("web", &Image::good("v1"));
    let host = world.host.clone();
    let text = |mode: &str| {
        format!(
            "x-web: &web {{ image: '{host}/web:latest', labels: {{labels}}, stop_grace_period: 1s, network_mode: none }}
services:
  web: {{ <<: *web, depends_on: [db], environment: {{ MODE: {mode} }} }}
  db: {{ <<: *web, profiles: [local] }}
  other: {{ <<: *web, profiles: [local] }}
"
        )
    };
    world.project.write_text(&text("one"));
    by_hand(&world, &["-f", &file(&world), "--profile", "local", "up", "-d", "web"]);
    let agent = world.agent_for([world.entry("shop", &["web:latest"]).set("compose_watch", true)]);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    world.assert_runs("db", "v2");
    agent.wait_done(1);

    agent.redeploy("shop");
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    agent.wait_done(2);
    world.project.write_text(&text("two"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::COMPOSE_DRIFT, 1);
    assert!(environment(&world, "web").contains(&"MODE=two".to_owned()));
    let services: Vec<String> = world.project.containers().into_iter().map(|view| view.service).collect();
    assert!(!services.contains(&"other".to_owned()), "nobody has started it: {services:?}");
}

#[test]
fn the_image_of_a_stopped_project_is_pulled_and_deployed_once_it_runs() {
    let world = project("off", "");
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    by_hand(&world, &["-f", &file(&world), "stop"]);
    let agent = agent(&world);
    let v2 = world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let entry = agent.wait_entry(&Kind::PULLED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    let stopped = world.project.container("web");
    assert_eq!(stopped.state, "exited");
    assert!(agent.entries(&Kind::UPDATED).is_empty());
    assert_eq!(world.engine.image_id(&world.reference("web")), Some(stopped.image), "the tag has not moved");
    agent.trigger("shop");
    agent.wait_entry(&Kind::CHECKED, 1);
    assert_eq!(agent.entries(&Kind::PULLED).len(), 1);

    by_hand(&world, &["-f", &file(&world), "start"]);
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn a_new_image_is_deployed_to_a_service_that_has_crashed_but_not_to_a_job_that_has_failed() {
    let mut world = World::new("crashed");
    world.push("web", &Image::exits("v1", 0));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "x-web: &web {{ image: '{host}/web:latest', labels: {{labels}}, stop_grace_period: 1s, network_mode: none }}
services:
  web: {{ <<: *web, restart: 'on-failure:1' }}
  job: *web
"
    ));
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    wait_for("both to have failed", || {
        let views = world.project.containers();
        let are_down = views.iter().all(|view| view.state == "exited");
        if are_down { Ok(()) } else { Err(format!("{views:#?}")) }
    });
    let job = world.project.container("job");
    let agent = agent(&world);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    let now = world.project.container("job");
    assert_eq!((now.id, now.started_at), (job.id, job.started_at));
}

#[test]
fn volumes_secrets_and_configs_that_stay_where_they_are_hold_no_update() {
    let mut world = World::new("mounted");
    world.push("web", &Image::good("v1"));
    let key = write(&world, "files/key", "secret");
    write(&world, "files/app", "text");
    let files = Path::new(&key).parent().expect("a folder").display().to_string();
    write(&world, ".env", &format!("DIR={files}/\n"));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "services:
  web:
    image: '{host}/web:latest'
    labels: {{labels}}
    stop_grace_period: 1s
    network_mode: none
    volumes: ['data:/data', '/cache', 'bound:/bound']
    secrets: [key]
    configs: [app]
volumes:
  data: {{ labels: {{labels}} }}
  bound:
    labels: {{labels}}
    driver_opts: {{ type: none, o: bind, device: '{files}' }}
secrets:
  key: {{ file: '${{DIR}}/key' }}
configs:
  app: {{ file: '${{DIR}}../files/app' }}
"
    ));
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    let mounts = |world: &World| -> BTreeMap<String, String> {
        let seen = inspect(world, "web");
        let all = seen["Mounts"].as_array().cloned().unwrap_or_default();
        all.iter().map(|mount| (mount["Destination"].to_string(), mount["Source"].to_string())).collect()
    };
    let before = mounts(&world);
    assert_eq!(before.len(), 5, "{before:?}");
    let agent = agent(&world);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(mounts(&world), before);
}

#[test]
fn a_persons_up_after_an_update_recreates_nothing_although_the_service_has_a_dependency() {
    let mut world = World::new("dependency");
    world.push("web", &Image::good("v1"));
    world.push("db", &Image::healthy("v1"));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "services:
  db: {{ image: '{host}/db:latest', labels: {{labels}}, stop_grace_period: 1s }}
  web:
    image: '{host}/web:latest'
    labels: {{labels}}
    stop_grace_period: 1s
    depends_on: {{ db: {{ condition: service_healthy }} }}
"
    ));
    world.project.up();
    let db = world.project.container("db").id;
    let agent = agent(&world);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    let web = world.assert_runs("web", "v2").id;
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    assert_eq!(world.project.container("web").id, web);
    assert_eq!(world.project.container("db").id, db);
}

#[test]
fn a_network_that_compose_would_make_anew_holds_the_update() {
    let Ok(folder) = std::env::var("EVENKEEL_OTHER_COMPOSE") else {
        eprintln!("NOT RUN: EVENKEEL_OTHER_COMPOSE is not set");
        return;
    };
    let mut world = World::new("network");
    world.push("web", &Image::good("v1"));
    let host = world.host.clone();
    let text = |label: &str| {
        format!(
            "services:
  web: {{ image: '{host}/web:latest', labels: {{labels}}, stop_grace_period: 1s, networks: [inner] }}
  other: {{ image: '{host}/web:latest', labels: {{labels}}, stop_grace_period: 1s, networks: [inner] }}
"
        ) + &format!("x-end: &net {{ example: '{label}' }}\n")
    };
    let write = |world: &mut World, label: &str| {
        let text = text(label);
        world.project.write_text(&text);
        let mut file = fs::read_to_string(&world.project.file).expect("the file");
        let labels = format!("{{ {}: {}, example: '{label}' }}", contract_tests::LABEL, world.project.name);
        file.push_str(&format!("  inner:\n    labels: {labels}\n"));
        fs::write(&world.project.file, file).expect("the file can be written");
    };
    write(&mut world, "one");
    let up = |world: &World| {
        let output = world
            .engine
            .cli(&["compose", "-p", &world.project.name, "-f", &file(world), "up", "-d"])
            .env("DOCKER_CONFIG", &folder)
            .output()
            .expect("docker can be run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    up(&world);
    let before = world.project.container("web").id;
    write(&mut world, "two");
    let agent =
        world.agent_with(world.config([world.entry("shop", &["web:latest"])]), &[("DOCKER_CONFIG", &folder)]);
    world.push("web", &Image::good("v2"));
    agent.trigger("shop");
    let why = waits_for(&agent, "shop", "definition");
    assert!(why.contains("network inner (labels)"), "{why}");
    assert_eq!(world.project.container("web").id, before);
    write(&mut world, "one");
    agent.trigger("shop");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn stuck_containers_are_recreated_and_their_healthy_neighbours_keep_their_data() {
    let mut world = World::new("stuck");
    world.push("web", &Image::good("v1"));
    world.push("loop", &Image::exits("v1", 0));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "services:
  web: {{ image: '{host}/web:latest', labels: {{labels}}, stop_grace_period: 1s, volumes: ['/data'] }}
  loop: {{ image: '{host}/loop:latest', labels: {{labels}}, stop_grace_period: 1s, volumes: ['/data'], restart: always }}
"
    ));
    by_hand(&world, &["-f", &file(&world), "up", "-d"]);
    let volume = |service: &str| inspect(&world, service)["Mounts"][0]["Name"].clone();
    let (web, data) = (world.project.container("web"), volume("loop"));
    let entry = world.entry("shop", &["web:latest", "loop:latest"]).set("auto_start", true);
    let agent = world.agent_with(world.config([entry]).set("registry.poll_interval", 10), &[]);
    agent.wait_entry(&Kind::STARTED, 2);
    assert_eq!(world.project.container("web").id, web.id);
    assert_eq!(world.project.container("web").started_at, web.started_at);
    assert_eq!(volume("loop"), data, "anonymous volumes are carried over");
}
