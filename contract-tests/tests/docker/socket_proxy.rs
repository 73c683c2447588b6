//! An agent behind a proxy that lets through only the calls of the manual's page on security.

use std::path::Path;

use contract_tests::{FilteredEngine, Health, Image, World, run_agent_at};
use evenkeel_common::wire::Kind;
use serde_json::{Value, json};

/// The calls that the manual lists for these features.
fn listed(features: &[&str]) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/docs/security.md");
    let page = std::fs::read_to_string(page).expect("the manual can be read");
    let is_wanted = |line: &&str| features.iter().any(|name| line.starts_with(&format!("| {name} ")));
    let calls =
        page.lines().filter(is_wanted).flat_map(|line| line.split('`').filter(|text| text.contains(" /")));
    calls.map(str::to_owned).collect()
}

#[test]
fn the_listed_calls_are_enough_and_doctor_names_those_that_are_refused() {
    let health = Health::every_second("true", 2);
    let (world, _) = World::with_web_of("filtered", &Image::good("v1").with_health(health.clone()), &[]);
    let socket = world.folder().join("filtered.sock");
    let features = ["watching", "deploying", "compose", "auto_heal", "update.order and update.drain"];
    let filter = FilteredEngine::start(&socket, &world.engine, listed(&features));
    let drain = json!({ "order": "start_first", "drain": { "exec": ["/bin/true"], "wait": 1 } });
    let config = |update: &Value| {
        let entry = world.entry("web", &["web:latest"]).healing(1).set("health_grace", 3);
        world.config([entry.set("update", update.clone())])
    };
    let host = format!("unix://{}", socket.display());
    {
        let agent = world.agent_with(config(&drain), &[("DOCKER_HOST", &host)]);
        world.push("web", &Image::good("v2").with_health(health));
        agent.trigger("web");
        agent.wait_entry(&Kind::UPDATED, 1);
        agent.wait_done(1);
        world.push("web", &Image::unhealthy("v3"));
        agent.trigger("web");
        agent.wait_entry(&Kind::ROLLED_BACK, 1);
        agent.wait_done(2);
        world.crash(&["web"]);
        agent.wait_entry(&Kind::RESTARTED, 1);
        world.assert_runs("web", "v2");
    }
    {
        let agent = world.agent_with(config(&json!({ "order": "stop_first" })), &[("DOCKER_HOST", &host)]);
        world.push("web", &Image::good("v4"));
        agent.trigger("web");
        agent.wait_entry(&Kind::UPDATED, 2);
        agent.wait_done(1);
    }
    let mut refused = filter.refused();
    refused.sort();
    refused.dedup();
    assert_eq!(refused, Vec::<String>::new());

    let path = world.folder().join("preflight.json");
    std::fs::write(&path, Value::from(config(&drain)).to_string()).expect("a file can be written");
    let preflight = |host: &str| {
        let output = run_agent_at(host, &path, &["doctor", "--json", "--preflight"]).json();
        let of_area = |one: &&Value| one["area"] == "engine API";
        let findings = output["findings"].as_array().cloned().unwrap_or_default();
        let subjects =
            findings.iter().filter(of_area).map(|one| one["subject"].as_str().unwrap_or_default().to_owned());
        subjects.collect::<Vec<_>>()
    };
    assert_eq!(preflight(&host), Vec::<String>::new());
    assert_eq!(preflight(&world.engine.host()), Vec::<String>::new(), "the engine itself refuses none");
    let narrow = world.folder().join("narrow.sock");
    FilteredEngine::start(&narrow, &world.engine, listed(&["watching", "deploying", "compose"]));
    let refused = preflight(&format!("unix://{}", narrow.display()));
    assert_eq!(
        refused,
        [
            "GET /exec/{id}/json",
            "POST /containers/{id}/exec",
            "POST /containers/{id}/restart",
            "POST /exec/{id}/start"
        ]
    );
    let tried = ["ps", "-aq", "--filter", "name=evenkeel-preflight"];
    assert_eq!(world.engine.docker(&tried), "", "nothing was made");
    world.assert_tidy();
}
