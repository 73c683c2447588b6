//! Gates of swarm services: the specification does not change while an update is held.

use contract_tests::{Agent, Image, Swarm, request, wait_for};
use evenkeel_common::wire::{Kind, Waiting, WayBackValue};
use serde_json::{Value, json};

use crate::signed::{key, pem, sign_for};
use crate::swarm::with_v1;

/// Runs a poll cycle, and waits until the update waits for `gate` after it.
#[track_caller]
pub(crate) fn cycle(agent: &Agent, gate: &str) -> Waiting {
    let last = agent.service("web").last_check;
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    wait_for("the update to wait", || {
        let service = agent.service("web");
        match &service.waiting {
            Some(waiting) if waiting.gate == gate && service.last_check != last => Ok(waiting.clone()),
            _ => Err(format!("{service:#?}")),
        }
    })
}

/// Starts a swarm whose service runs `v1`, and an agent with these gates.
fn gated(update: &Value) -> (Swarm, Agent) {
    let swarm = Swarm::start();
    swarm.push(&Image::good("v1"));
    swarm.create(&[]);
    let agent = swarm.agent(swarm.entry().set("update", update.clone()));
    (swarm, agent)
}

#[test]
fn a_gate_holds_an_update_found_by_a_push_event() {
    let (swarm, agent) = gated(&json!({ "approve": true }));
    let before = swarm.service();
    let v2 = swarm.push(&Image::good("v2"));
    let event = json!({ "events": [{ "action": "push", "target": {
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "repository": "web", "tag": "latest", "digest": v2.digest,
    } }] });
    let kind = [("Content-Type", "application/vnd.docker.distribution.events.v1+json")];
    let reply =
        request(agent.address(), "POST", "/registry/events", &kind, event.to_string().as_bytes()).unwrap();
    assert_eq!(reply.status, 202);
    let announced = agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    assert_eq!(
        (announced.new_digest.as_deref(), announced.reason.as_deref()),
        (Some(&*v2.digest), Some("approval"))
    );
    assert_eq!(swarm.service()["Version"], before["Version"]);
    assert_eq!(agent.request("POST", "/approve/web").json()["status"], "approved");
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 1);
    assert_eq!(agent.entries(&Kind::MANUAL_TRIGGER), [], "there was no manual trigger");
}

#[test]
fn an_update_held_by_age_window_or_signature_does_not_change_the_service() {
    let (swarm, mut agent) = gated(&json!({ "min_age": 3600 }));
    let before = swarm.service()["Version"].clone();
    let v2 = swarm.push(&Image::good("v2"));
    let held = cycle(&agent, "min_age");
    assert_eq!((held.digest.as_str(), held.clear.as_str()), (&*v2.digest, "POST /trigger/web"));
    assert_eq!(swarm.service()["Version"], before);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);

    // Open for one minute a week, half a week from now.
    let away = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(84);
    let minute = away.strftime("%a %H:%M-").to_string();
    let end = (away + jiff::SignedDuration::from_mins(1)).strftime("%H:%M").to_string();
    let window = json!({ "window": format!("{minute}{end}"), "timezone": "UTC" });
    agent.reload(|config| config["services"][0]["update"] = window);
    let before = swarm.service()["Version"].clone();
    let v3 = swarm.push(&Image::good("v3"));
    assert_eq!(cycle(&agent, "window").digest, v3.digest);
    assert_eq!(swarm.service()["Version"], before);
    agent.reload(|config| config["services"][0]["update"] = json!({ "window": "00:00-24:00" }));
    assert_eq!(agent.request("POST", "/trigger").status, 200);
    agent.wait_entry(&Kind::UPDATED, 2);
    agent.wait_done(2);

    let ours = key();
    let file = swarm.folder().join("cosign.pub");
    std::fs::write(&file, pem(&ours)).unwrap();
    agent.reload(|config| config["services"][0]["update"] = json!({ "signed_by": file }));
    wait_for("signatures to be required", || {
        let why = agent.request("GET", "/why/web").json();
        let gates = why["gates"].as_array().expect("it has gates");
        let is_it = |gate: &Value| gate["gate"] == "signature" && gate["why"] != "not configured";
        if gates.iter().any(is_it) { Ok(()) } else { Err(why.to_string()) }
    });
    let before = swarm.service()["Version"].clone();
    let v4 = swarm.push(&Image::good("v4"));
    assert_eq!(cycle(&agent, "signature").digest, v4.digest);
    // A manual trigger does not override this gate.
    assert!(agent.check("web").message.contains("is not signed"));
    assert_eq!(swarm.service()["Version"], before);
    sign_for(&swarm.registry, &swarm.image(), &v4.digest, &v4.digest, &ours);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 3);
    swarm.assert_runs(&v4, 1);
}

#[test]
fn a_service_that_is_scaled_to_0_is_updated_when_it_is_scaled_up() {
    let (swarm, v1, agent) = with_v1(&["--replicas", "2", "--update-failure-action", "pause"]);
    let scale = |replicas: &str| swarm.change(&["--replicas", replicas]);
    scale("0");
    let v2 = swarm.push(&Image::good("v2"));
    let reason = "the swarm service shop_web is scaled to 0";
    let checked = agent.check("web").message;
    assert!(checked.contains("an update waits") && checked.contains(reason), "{checked}");
    let why = agent.request("GET", "/why/web").json();
    assert!(why["answer"].as_str().unwrap().contains(reason), "{why}");
    assert!(agent.request("GET", "/health").text().contains(reason));
    agent.redeploy("web");
    let refused = agent.wait_entry(&Kind::FORCE_REDEPLOY_FAILED, 1);
    assert!(format!("{refused:?}").contains(reason), "{refused:?}");
    assert!(swarm.spec_image().ends_with(&v1.digest));
    let service = agent.service("web");
    assert_eq!((service.healthy, service.errored), (None, None));
    // Scaling up starts the update without a trigger.
    scale("1");
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 1);
    agent.wait_done(1);

    // An update whose service is scaled to 0 is not proven until there are tasks again.
    let v3 = swarm.push(&Image::good("v3"));
    agent.trigger("web");
    agent.wait_step("converge", 2);
    scale("0");
    wait_for("the update to wait for tasks", || match agent.errored().get("web") {
        Some(text) if text.contains("it has no tasks") => Ok(()),
        other => Err(format!("{other:?} {:?}", agent.steps())),
    });
    assert_eq!(agent.entries(&Kind::UPDATED).len(), 1);
    scale("2");
    agent.wait_entry(&Kind::UPDATED, 2);
    swarm.assert_runs(&v3, 2);
    assert_eq!((agent.blocked().len(), agent.errored().len()), (0, 0));
}

#[test]
fn a_rollback_is_at_risk_when_the_registry_no_longer_has_the_running_image() {
    let (swarm, v1, agent) = with_v1(&[]);
    let way_back = |expected: WayBackValue| {
        assert_eq!(agent.request("POST", "/trigger/web").status, 200);
        wait_for("the rollback to be checked", || {
            let service = agent.service("web");
            if service.way_back == Some(expected) { Ok(service) } else { Err(format!("{service:#?}")) }
        })
    };
    way_back(WayBackValue::Ok);
    swarm.registry.delete_manifest("web", &v1.digest);
    let risk = way_back(WayBackValue::AtRisk).way_back_reason.unwrap_or_default();
    let expected =
        "nodes without the running image of web:latest can't pull it: its registry no longer has it";
    assert_eq!(risk, expected);
}
