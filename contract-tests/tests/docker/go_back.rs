//! Going back to earlier images, by hand and late, on a real engine.

use contract_tests::{Image, World, request, run_agent, wait_for};
use evenkeel_common::wire::{Kind, Level, ProvenRecord};
use serde_json::json;

#[test]
fn a_person_goes_back_and_the_next_poll_does_not_bring_back_what_was_left() {
    let (world, v1) = World::with_web("back");
    let entry = world.entry("web", &["web:latest"]).set("health_grace", 3);
    let agent = world.agent_for([entry]);
    assert_eq!(agent.request("POST", "/rollback/web").json()["reason"], "no earlier image");
    let v2 = world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);
    let history: Vec<ProvenRecord> =
        serde_json::from_value(agent.request("GET", "/history/web").json()).expect("a list of images");
    let listed: Vec<(&str, bool, bool)> =
        history.iter().map(|one| (one.digest.as_str(), one.left_at.is_some(), one.on_disk)).collect();
    assert_eq!(listed, [(&*v2.digest, false, true), (&*v1.digest, true, true)]);

    for (to, part) in
        [(format!("sha256:{}", "0".repeat(64)), "was not proven here"), (v2.digest.clone(), "runs already")]
    {
        let body = json!({ "to": to }).to_string();
        let headers = [("Content-Type", "application/json")];
        let reply = request(agent.address(), "POST", "/rollback/web", &headers, body.as_bytes());
        let reply = reply.expect("the agent answers");
        assert_eq!(reply.status, 409, "{}", reply.text());
        assert!(reply.text().contains(part), "{}", reply.text());
    }
    let reply = agent.request("POST", "/rollback/web").json();
    assert_eq!(reply, json!({ "status": "rolling_back", "service": "web", "to": v1.digest }));
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(
        (entry.level, entry.reason.as_deref()),
        (Level::Info, Some("rolled back by hand")),
        "{entry:#?}"
    );
    world.assert_runs("web", "v1");
    agent.wait_done(2);
    agent.trigger("web");
    world.assert_runs("web", "v1");
    assert_eq!(agent.blocked().len(), 1, "{:?}", agent.blocked());

    // Unblocked, it may come again.
    assert_eq!(agent.request("POST", "/unblock/web").status, 200);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 2);
    world.assert_runs("web", "v2");
    world.assert_tidy();
}

#[test]
fn an_image_that_left_the_disk_is_pulled_by_its_digest() {
    let (world, v1) = World::with_web("back-pull");
    let entry = world.entry("web", &["web:latest"]).set("health_grace", 3).set("keep_images", 1);
    let agent = world.agent_for([entry]);
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);
    let old = format!("{}@{}", world.reference("web").trim_end_matches(":latest"), v1.digest);
    world.engine.docker(&["rmi", "-f", &old]);
    wait_for("the image to be gone", || match world.engine.image_id(&old) {
        None => Ok(()),
        Some(id) => Err(id),
    });
    let api = format!("http://{}", agent.address());
    let run = |arguments: &[&str]| {
        let command = [arguments, &["--api", &api]].concat();
        run_agent(&world.engine, &world.folder().join("config.json"), &command)
    };
    let refused = run(&["rollback", "web"]);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert!(refused.stderr.contains("--yes"), "{refused:#?}");
    world.assert_runs("web", "v2");
    let end = run(&["rollback", "web", "--yes", "--wait", "120"]);
    assert_eq!(end.code, Some(0), "{end:#?}");
    assert!(end.stdout.contains(&format!("web: rolling back to {}", v1.digest)), "{end:#?}");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    world.assert_runs("web", "v1");
    let list = run(&["history", "web"]);
    let mut lines = list.stdout.lines();
    let [first, digest] = [(); 2].map(|()| lines.next().unwrap_or_default());
    assert!(first.contains("runs") && digest.contains(&v1.digest), "{list:#?}");
    world.assert_tidy();
}

mod nightly {
    use super::*;

    #[test]
    fn a_watched_image_that_crashes_after_its_probation_is_rolled_back() {
        let (world, _) = World::with_web_of("back-late", &Image::good("v1"), &["restart: always"]);
        let entry = world.entry("web", &["web:latest"]).set("health_grace", 2);
        let agent = world.agent_for([entry.set("update", json!({ "watch": 600 }))]);
        let bad = world.push("web", &Image::exits("v2", 5));
        agent.trigger("web");
        agent.wait_entry(&Kind::UPDATED, 1);
        let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
        assert_eq!(entry.level, Level::Warning, "{entry:#?}");
        assert_eq!(entry.new_digest.as_deref(), Some(&*bad.digest), "{entry:#?}");
        assert!(entry.reason.as_deref().is_some_and(|why| why.contains("crashed 3 times")), "{entry:#?}");
        world.assert_runs("web", "v1");
        assert_eq!(agent.blocked().len(), 1, "{:?}", agent.blocked());
        world.assert_tidy();
    }
}
