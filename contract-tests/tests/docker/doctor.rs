//! `doctor` on a real engine with a real registry: no findings for a healthy setup, and a finding for each injected fault.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use contract_tests::{
    CommandOutput, Config, Fault, Image, Proxy, Warden, World, run_agent, run_agent_at, unused_port,
};
use serde_json::{Value, json};

/// Creates a world with one healthy service.
fn healthy(about: &str) -> World {
    World::with_web_of(about, &Image::healthy("v1"), &[]).0
}

/// Returns a configuration without findings.
fn config(world: &World) -> Config {
    let service = world
        .entry("web", &["web:latest"])
        .set("health_grace", 120)
        .set("update", json!({ "order": "stop_first" }));
    world
        .config([service])
        .set("state", json!({ "path": world.folder().join("state") }))
        .set("audit", json!({ "path": world.folder().join("audit.jsonl") }))
        .set("api", json!({ "address": [format!("127.0.0.1:{}", unused_port())] }))
}

fn examine(world: &World, config: Config) -> CommandOutput {
    let path = world.folder().join("config.json");
    std::fs::write(&path, Value::from(config).to_string()).expect("a file can be written");
    run_agent(&world.engine, &path, &["doctor", "--json"])
}

/// Returns the findings as `severity area: what`, and asserts that each has a remedy.
#[track_caller]
fn findings(output: &CommandOutput) -> Vec<String> {
    let report = output.json();
    let found = report["findings"].as_array().expect("a list").clone();
    assert!(
        found.iter().all(|one| one["remedy"].as_str().is_some_and(|text| !text.is_empty())),
        "{report:#}"
    );
    let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    found
        .iter()
        .map(|one| format!("{} {}: {}", text(one, "severity"), text(one, "area"), text(one, "what")))
        .collect()
}

/// Asserts that a finding begins with `beginning`, and that the exit code matches the most severe finding.
#[track_caller]
fn assert_names(output: &CommandOutput, beginning: &str) {
    let found = findings(output);
    assert!(found.iter().any(|one| one.starts_with(beginning)), "{beginning}: {found:#?}");
    let worst = i32::from(found.iter().any(|one| one.starts_with("error")));
    assert_eq!(output.code, Some(worst), "{found:#?}");
}

#[test]
fn a_healthy_setup_has_no_finding_with_the_agent_running_and_without() {
    let world = healthy("doctor-well");
    let output = examine(&world, config(&world));
    assert_eq!((output.code, findings(&output)), (Some(0), vec![]), "{output:#?}");
    let agent = world.agent_with(config(&world), &[]);
    let output = run_agent(&world.engine, &world.folder().join("config.json"), &["doctor", "--json"]);
    assert_eq!((output.code, findings(&output)), (Some(0), vec![]), "{output:#?}");
    drop(agent);
}

#[test]
fn faults_of_registry_and_engine_are_found() {
    let world = healthy("doctor-away");
    let with = |key: &str, value: Value| examine(&world, config(&world).set(key, value));

    let absent = world.entry("web", &["absent:latest"]).set("health_grace", 120);
    let output = examine(&world, config(&world).set("services", json!([Value::from(absent)])));
    assert_names(&output, "error registry: ");
    assert_names(&output, "warning services: no container uses");

    let proxy = Proxy::start(&world.host);
    let through = |image: &str| format!("{}/{image}:latest", proxy.host);
    let service = world.entry("web", &[&through("web")]).set("health_grace", 120);
    let config_of = |service: &contract_tests::Service| {
        config(&world).set("services", json!([Value::from(service.clone())]))
    };
    proxy.set(Fault::Answer(401, vec![], "{}".to_owned()));
    assert_names(&examine(&world, config_of(&service)), "error registry: registry 127.0.0.1");
    proxy.set(Fault::Hang);
    let output = examine(&world, config_of(&service));
    assert!(
        findings(&output).iter().any(|one| one.starts_with("error registry: ") && one.contains("no answer")),
        "{output:#?}"
    );
    let gone = proxy.host.clone();
    drop(proxy);
    let output = examine(&world, config_of(&service));
    assert!(findings(&output).iter().any(|one| one.contains("connection refused")), "{gone}: {output:#?}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    assert_names(&with("api.address", json!([taken])), "error api: another program listens there");

    let path = world.folder().join("config.json");
    let nobody = format!("unix://{}", world.folder().join("no.sock").display());
    std::fs::write(&path, Value::from(config(&world)).to_string()).unwrap();
    let output = run_agent_at(&nobody, &path, &["doctor", "--json"]);
    assert_names(&output, "error engine: ");
    let report = output.json();
    assert_eq!(report["findings"][0]["area"], "engine", "{report:#}");
    assert!(
        report["areas"].as_array().unwrap().contains(&json!({"area": "services", "state": "skipped"})),
        "{report:#}"
    );
}

#[test]
fn faults_of_the_project_are_found() {
    let mut world = World::new("doctor-shop");
    world.push("web", &Image::good("v1"));
    world.push("slow", &Image::healthy("v1"));
    let built = world.reference("built");
    world.engine.build(&built, &Image::healthy("v1"), &world.project.name);
    world.service("web", "web", &[]);
    world.service("slow", "slow", &["volumes: ['./data:/data']"]);
    world.project.service("built", &built, &["pull_policy: never"]);
    world.project.up();
    let images = ["web:latest", "slow:latest", "built:latest"];
    let with = |change: &dyn Fn(contract_tests::Service) -> contract_tests::Service| {
        let service = change(world.entry("web", &images).set("health_grace", 1));
        examine(&world, config(&world).set("services", json!([Value::from(service)])))
    };
    let output = with(&|service| service);
    assert_names(&output, "warning services: it has no health check");
    assert_names(&output, "warning services: its health check may take");
    assert_names(&output, "error registry: ");
    if !world.engine.has_containerd_store() {
        assert_names(&output, "warning rollback: its image was not pulled from");
    }

    // An override file that compose uses implicitly.
    let beside = world.folder().join("compose.override.yml");
    std::fs::write(&beside, "services: {}\n").unwrap();
    assert_names(&with(&|service| service), "warning services: compose uses");
    std::fs::remove_file(&beside).unwrap();

    // The same file at another path, as in a container that mounts the folder elsewhere.
    let elsewhere = world.folder().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let copy: PathBuf = elsewhere.join("compose.yml");
    std::fs::copy(&world.project.file, &copy).unwrap();
    let output = with(&|service| service.set("compose_files", json!([copy])));
    assert_names(&output, "error services: its containers were created from other compose files");

    // An edit that nobody has applied.
    let text = std::fs::read_to_string(&world.project.file).unwrap();
    std::fs::write(&world.project.file, text.replace(":/data", ":/moved")).unwrap();
    let output = with(&|service| service);
    assert_names(&output, "error services: the compose files no longer define what runs: slow: volume");
    std::fs::write(&world.project.file, text).unwrap();

    std::fs::write(&copy, "services: { web: { ports: 3 } }\n").unwrap();
    let output = with(&|service| service.set("compose_files", json!([copy])));
    assert_names(&output, "error services: its compose files can't be used");

    let output = with(&|service| service.set("compose_project", "ektest-nothing-runs-here"));
    assert_names(&output, "warning services: none of its containers is running");
}

#[test]
fn faults_of_configuration_notifications_and_warden_are_found() {
    let world = healthy("doctor-file");
    let with = |key: &str, value: Value| examine(&world, config(&world).set(key, value));
    let hook = json!({ "webhook_url": "$EVENKEEL_NO_SUCH_VARIABLE" });
    assert_names(&with("notifications", json!({ "discord": hook })), "error notifications: ");
    assert_names(&with("servces", json!([])), "warning configuration: ");
    assert_names(&with("registry.poll_interval", json!(1)), "error configuration: ");
    assert_names(&with("audit.path", json!(world.folder())), "warning configuration: ");
    let nowhere = format!("http://127.0.0.1:{}", unused_port());
    let push = |url: &str, token: &str| json!({ "warden_url": url, "machine_id": "a", "token": token });
    assert_names(&with("push", push(&nowhere, "a-token-of-an-agent")), "warning warden: no answer");
    let warden = Warden::of_fleet(world.folder(), &["a"]);
    let url = warden.url();
    let refused = with("push", push(&url, "another-token-entirely"));
    assert_names(&refused, "error warden: it rejects this agent's token");
    assert_eq!(findings(&with("push", push(&url, &Warden::agent_token("a")))), Vec::<String>::new());

    // Any user who can write the file can make the agent run any command.
    let path = world.folder().join("config.json");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("the file is ours");
    let output = run_agent(&world.engine, &path, &["doctor", "--json"]);
    assert_names(&output, "warning configuration: ");
    assert!(output.stdout.contains("chmod go-w"), "{output:#?}");
    std::fs::write(&path, "{ \"services\": [ }").expect("a file can be written");
    assert_names(&run_agent(&world.engine, &path, &["doctor", "--json"]), "error configuration: ");
}
