//! Probes of new containers, on a real engine.

use contract_tests::{Image, World};
use evenkeel_common::wire::Kind;
use serde_json::{Value, json};

/// A project whose containers have a network, so that they can be asked.
fn probed(name: &str, probe: &Value, grace: u32) -> (World, contract_tests::Agent) {
    let mut world = World::new(name);
    world.push("web", &Image::answers("v1", 0));
    world.project.write_text(&format!(
        "services:
  web: {{ image: '{}', labels: {{labels}}, stop_grace_period: 1s }}
",
        world.reference("web")
    ));
    world.project.up();
    let entry = world.entry("web", &["web:latest"]).set("health_grace", grace);
    let agent = world.agent_for([entry.set("update", json!({ "probe": probe }))]);
    (world, agent)
}

#[test]
fn an_image_that_never_listens_is_rolled_back_and_one_that_starts_slowly_is_proven() {
    let (world, agent) = probed("probe", &json!({"http": ":8080/", "interval": 1}), 12);
    let mute = world.push("web", &Image::good("v2"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(mute.digest.as_str()));
    let reason = entry.reason.as_deref().unwrap_or_default();
    assert!(
        reason.contains("did not answer its probe") && reason.contains("Connection refused"),
        "{entry:#?}"
    );
    assert!(entry.output.contains("last probe: GET http://:8080/: Connection refused"), "{entry:#?}");
    world.assert_runs("web", "v1");
    agent.wait_done(1);

    world.push("web", &Image::answers("v3", 4));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v3");
    world.assert_tidy();
}

#[test]
fn a_status_outside_the_range_and_a_closed_port_are_told_as_they_are() {
    let (world, agent) = probed("probe-status", &json!({"http": ":8080/health", "interval": 1}), 5);
    world.push("web", &Image::answers("v2", 0));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert!(entry.reason.as_deref().unwrap_or_default().contains("status 404 Not Found"), "{entry:#?}");
    world.assert_runs("web", "v1");
    world.assert_tidy();
}
