//! `adopt` on existing projects: its output is a valid configuration with which the agent updates the project.

use std::path::Path;

use contract_tests::{Config, Image, LABEL, World, run_agent, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::{Value, json};

/// Writes a file next to the project's compose file and returns its path.
fn write(world: &World, name: &str, text: &str) -> String {
    let labels = format!("{{ {LABEL}: {} }}", world.project.name);
    let path = world.folder().join(name);
    std::fs::write(&path, text.replace("{labels}", &labels).replace("{host}", &world.host))
        .expect("a file can be written");
    path.display().to_string()
}

#[track_caller]
fn compose(world: &World, arguments: &[&str]) {
    let all = [&["compose", "-p", &world.project.name][..], arguments].concat();
    world.engine.docker(&all);
}

/// Runs `adopt` for the project and `--check` on its output. Returns the configuration and the remarks of `adopt`.
#[track_caller]
fn adopt(world: &World) -> (Value, String) {
    let none = world.folder().join("none.json");
    let output = run_agent(&world.engine, &none, &["adopt", &world.project.name]);
    assert_eq!(output.code, Some(0), "{output:#?}");
    let printed = world.folder().join("adopted.json");
    std::fs::write(&printed, &output.stdout).expect("a file can be written");
    let checked = run_agent(&world.engine, &printed, &["--check"]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    assert!(checked.stderr.contains("valid; warnings: 0; watching 1 service"), "{checked:#?}");
    (output.json(), output.stderr)
}

/// Asserts that an agent with the adopted configuration updates the service `updated` after a push to `repository`.
#[track_caller]
fn assert_updates(world: &World, mut printed: Value, repository: &str, updated: &str) {
    // The default would be a minute of probation.
    printed["services"][0]["health_grace"] = json!(3);
    // The default path is that of an installed agent, which other tests would share.
    printed["audit"] = json!({ "path": world.folder().join("audit.jsonl") });
    let agent = world.agent_with(Config::from(printed), &[]);
    world.push(repository, &Image::good("v2"));
    agent.trigger(&world.project.name);
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs(updated, "v2");
}

fn wait_running(world: &World, count: usize) {
    wait_for("all containers to run", || {
        let views = world.project.containers();
        let running = views.iter().filter(|view| view.state == "running").count();
        if running == count { Ok(()) } else { Err(format!("{views:#?}")) }
    });
}

#[test]
fn a_project_of_two_files_and_an_env_file_is_adopted_and_updated() {
    let world = World::new("adopt-files");
    world.push("web", &Image::good("v1"));
    let base =
        write(&world, "base.yml", "services: { web: { image: '{host}/web:${TAG}', network_mode: none } }\n");
    let more = write(&world, "more.yml", "services: { web: { labels: {labels}, stop_grace_period: 1s } }\n");
    let variables = write(&world, "prod.env", "TAG=latest\n");
    compose(&world, &["--env-file", &variables, "-f", &base, "-f", &more, "up", "-d"]);
    wait_running(&world, 1);
    let (printed, remarks) = adopt(&world);
    let service = &printed["services"][0];
    assert_eq!(service["name"], world.project.name.as_str(), "{remarks}");
    assert_eq!(service["images"], json!([world.reference("web")]));
    assert_eq!(service["compose_files"], json!([base, more]));
    assert_eq!(service["env_file"], json!(variables));
    // The output keeps the configured audit log, so it can replace the configuration file.
    let audit = json!({ "path": world.folder().join("audit.jsonl") });
    let before = write(&world, "before.json", &json!({ "audit": audit }).to_string());
    let output = run_agent(&world.engine, before.as_ref(), &["adopt", &world.project.name]);
    assert_eq!(output.json()["audit"], audit, "{output:#?}");
    assert_updates(&world, printed, "web", "web");
}

#[test]
fn a_service_that_was_built_locally_is_omitted_and_reported() {
    let mut world = World::new("adopt-built");
    world.push("web", &Image::good("v1"));
    world.service("web", "web", &[]);
    let built = world.reference("built");
    world.engine.build(&built, &Image::good("v1"), &world.project.name);
    world.project.service("built", &built, &["pull_policy: never"]);
    world.project.up();
    let (printed, remarks) = adopt(&world);
    assert_eq!(printed["services"][0]["images"], json!([world.reference("web")]));
    assert!(remarks.contains(&format!("built: {built} is not in its registry")), "{remarks}");
    assert_updates(&world, printed, "web", "web");
    world.assert_runs("built", "v1");
}

#[test]
fn a_stopped_container_with_the_label_of_another_updater_is_not_updated() {
    let mut world = World::new("adopt-stopped");
    world.push("web", &Image::good("v1"));
    world.push("db", &Image::good("v1"));
    world.service("web", "web", &[]);
    // The line continues the labels.
    world.service("db", "db", &["  com.centurylinklabs.watchtower.enable: 'false'"]);
    world.project.up();
    world.engine.docker(&["stop", &world.project.container("db").id]);
    let (printed, remarks) = adopt(&world);
    assert_eq!(printed["services"][0]["images"], json!([world.reference("web")]), "{remarks}");
    assert!(
        remarks.contains("db: left out: its label com.centurylinklabs.watchtower.enable=false"),
        "{remarks}"
    );
}

/// Creates a project with a service that has a profile.
fn with_profile(about: &str) -> (World, String) {
    let world = World::new(about);
    world.push("web", &Image::good("v1"));
    world.push("worker", &Image::good("v1"));
    let file = write(
        &world,
        "stack.yaml",
        "services:
  web: { image: '{host}/web:latest', network_mode: none, labels: {labels}, stop_grace_period: 1s }
  worker: { image: '{host}/worker:latest', network_mode: none, labels: {labels}, stop_grace_period: 1s, profiles: [jobs] }
",
    );
    (world, file)
}

#[test]
fn a_service_of_an_inactive_profile_is_adopted_and_updated() {
    let (world, file) = with_profile("adopt-off");
    compose(&world, &["--profile", "jobs", "-f", &file, "up", "-d"]);
    wait_running(&world, 2);
    let (printed, remarks) = adopt(&world);
    let images = json!([world.reference("web"), world.reference("worker")]);
    assert_eq!(printed["services"][0]["images"], images, "{remarks}");
    assert_updates(&world, printed, "worker", "worker");
    world.assert_runs("web", "v1");
}

#[test]
fn a_service_of_a_profile_enabled_by_the_env_file_is_adopted_and_updated() {
    let (world, file) = with_profile("adopt-on");
    let variables = write(&world, "stack.env", "COMPOSE_PROFILES=jobs\n");
    compose(&world, &["--env-file", &variables, "-f", &file, "up", "-d"]);
    wait_running(&world, 2);
    let (printed, remarks) = adopt(&world);
    assert_eq!(remarks, "");
    let images = json!([world.reference("web"), world.reference("worker")]);
    assert_eq!(printed["services"][0]["images"], images);
    assert_updates(&world, printed, "worker", "worker");
    world.assert_runs("web", "v1");
}

#[test]
fn a_project_that_does_not_run_is_not_adopted() {
    let engine = contract_tests::Engine::under_test();
    let output =
        run_agent(&engine, Path::new("/nonexistent/config.json"), &["adopt", "ektest-nothing-of-this-name"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{output:#?}");
    assert!(
        output.stderr.contains("no running container of project ektest-nothing-of-this-name can be managed"),
        "{output:#?}"
    );
}
