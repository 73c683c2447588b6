//! The agent with a fake warden: it follows the warden's decisions, and continues without them if the warden is faulty or
//! unreachable.

use contract_tests::{Agent, Behaviour, FakeWarden, Image, World, wait_for};
use evenkeel_common::wire::{Kind, Level};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// A machine that runs version 1, its agent, and a fake warden.
struct Machine {
    agent: Agent,
    warden: FakeWarden,
    world: World,
}

impl Machine {
    fn new(about: &str, push: impl FnOnce(&mut Value)) -> Self {
        let (world, _) = World::with_web(about);
        let warden = FakeWarden::start();
        let mut settings = warden.push();
        push(&mut settings);
        let config = world.config([world.entry("web", &["web:latest"])]).set("push", settings);
        let agent = world.agent_with(config, &[]);
        Self { agent, warden, world }
    }

    /// Pushes a new version and triggers a check.
    fn offer(&self, version: &str) {
        self.world.push("web", &Image::good(version));
        self.agent.trigger("web");
    }

    fn wait_gate(&self, gate: &str) -> String {
        wait_for(&format!("the update to wait for {gate}"), || {
            let service = self.agent.service("web");
            match service.waiting.as_ref().filter(|waiting| waiting.gate == gate) {
                Some(waiting) => Ok(waiting.why.clone()),
                None => Err(format!("{service:#?}")),
            }
        })
    }

    /// Sets the warden's decisions, and waits until the agent has received them.
    fn decide(&self, decisions: Value) {
        let next = format!("GET /fleet?after={}&wait=50", decisions["revision"]);
        self.warden.decide(decisions);
        wait_for("the long poll after the decision", || match self.warden.received(&next).len() {
            0 => Err(format!("{:?}", self.warden.received("GET /fleet"))),
            _ => Ok(()),
        });
    }

    fn wait_link(&self) {
        wait_for("the warden to be reachable", || {
            let text = self.agent.request("GET", "/metrics").text();
            if text.contains("evenkeel_fleet_reachable 1") { Ok(()) } else { Err(text) }
        });
    }

    fn updated(&self, times: usize) {
        self.agent.wait_entry(&Kind::UPDATED, times);
    }
}

fn freeze(revision: u64, until: Timestamp, seconds_left: u64) -> Value {
    json!({ "revision": revision, "failed": [], "freezes": [{ "id": "7", "reason": "launch", "by": "operator",
        "since": Timestamp::now(), "until": until, "seconds_left": seconds_left }] })
}

fn in_an_hour() -> Timestamp {
    Timestamp::now() + SignedDuration::from_hours(1)
}

fn nothing(revision: u64) -> Value {
    json!({ "revision": revision, "freezes": [], "failed": [] })
}

#[test]
fn decisions_arrive_by_long_poll_and_a_lower_revision_is_accepted() {
    let machine = Machine::new("warden-poll", |_| {});
    machine.decide(freeze(5, in_an_hour(), 3600));
    let first = &machine.warden.received("GET /fleet")[0];
    assert_eq!(
        first.line, "GET /fleet?after=0&wait=0&verdicts=0",
        "the first request establishes that the warden is reachable"
    );
    machine.offer("v2");
    assert!(machine.wait_gate("freeze").contains("launch"));
    assert_eq!(machine.warden.received("POST /fleet/ask").len(), 0, "the lease is requested last");
    // The warden's store was restored to an earlier state: its lower revision is accepted.
    machine.warden.decide(nothing(3));
    machine.updated(1);
    let asked = &machine.warden.received("POST /fleet/ask")[0].body;
    assert_eq!((&asked["service"], &asked["ring"]), (&json!("web"), &json!(0)));
    wait_for("the inventory", || match machine.warden.received("POST /inventory").last() {
        Some(received) if received.body["images"][0]["available"].is_null() => Ok(()),
        other => Err(format!("{other:?}")),
    });
    machine.world.assert_runs("web", "v2");
}

#[test]
fn ring_0_continues_without_a_warden_but_waits_for_a_response_that_can_be_read() {
    let machine = Machine::new("warden-bad", |_| {});
    let bad = [
        Behaviour::Status(401),
        Behaviour::Status(500),
        Behaviour::Slow,
        Behaviour::Garbage,
        Behaviour::Huge,
    ];
    for (number, behaviour) in bad.into_iter().enumerate() {
        let is_there = matches!(behaviour, Behaviour::Garbage | Behaviour::Huge);
        // Each case begins while the warden answers.
        machine.warden.behave(Behaviour::Good);
        machine.decide(nothing(10 + number as u64));
        machine.warden.behave(behaviour);
        machine.offer(&format!("bad-{number}"));
        // The warden is there, and knows whether another agent is trying the digest.
        if is_there {
            let why = machine.wait_gate("ring");
            assert!(why.contains("cannot be read"), "{why}");
            machine.warden.behave(Behaviour::Good);
        }
        machine.updated(number + 1);
        machine.world.assert_runs("web", &format!("bad-{number}"));
        machine.agent.wait_done(number + 1);
    }
    // Earlier decisions stay in effect while responses are invalid.
    machine.warden.behave(Behaviour::Good);
    machine.decide(freeze(20, in_an_hour(), 3600));
    machine.warden.behave(Behaviour::Garbage);
    machine.offer("held");
    machine.wait_gate("freeze");
    assert_eq!(machine.agent.entries(&Kind::UPDATED).len(), bad.len());
}

#[test]
fn a_warden_without_fleet_support_receives_entries_and_holds_nothing() {
    let warden = FakeWarden::start();
    warden.behave(Behaviour::Status(404));
    let (world, _) = World::with_web("warden-old");
    let config = world.config([world.entry("web", &["web:latest"])]).set("push", warden.push());
    let agent = world.agent_with(config, &[]);
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    wait_for("the entry at the warden", || {
        let received = warden.received("POST /ingest");
        let all = received.iter().flat_map(|received| match &received.body {
            Value::Array(entries) => entries.clone(),
            entry => vec![entry.clone()],
        });
        if all.into_iter().any(|entry| entry["event"] == "updated") {
            Ok(())
        } else {
            Err(format!("{received:?}"))
        }
    });
    assert_eq!(warden.received("POST /fleet/ask").len() + warden.received("POST /inventory").len(), 0);
    assert_eq!(agent.entries(&Kind::FLEET_AWAY), []);
}

#[test]
fn the_second_warden_of_the_list_decides_while_the_first_is_down() {
    let dead = contract_tests::unused_port();
    let machine = Machine::new("warden-list", |push| {
        push["warden_url"] = json!([format!("http://127.0.0.1:{dead}"), push["warden_url"]]);
    });
    machine.decide(freeze(2, in_an_hour(), 3600));
    machine.offer("v2");
    machine.wait_gate("freeze");
    machine.warden.decide(nothing(3));
    machine.updated(1);
    assert!(!machine.warden.received("POST /fleet/ask").is_empty(), "leases are requested there, too");
    assert_eq!(machine.agent.entries(&Kind::FLEET_AWAY), []);
}

#[test]
fn a_clock_difference_to_the_warden_is_reported_and_remaining_seconds_count() {
    let machine = Machine::new("warden-clock", |_| {});
    machine.warden.set_clock(SignedDuration::from_mins(-15));
    // By the warden's clock the freeze ends in an hour. By this machine's clock it has already ended.
    let until = Timestamp::now() - SignedDuration::from_secs(1);
    machine.decide(freeze(2, until, 3600));
    machine.offer("v2");
    machine.wait_gate("freeze");
    let health = machine.agent.request("GET", "/health").json();
    let warnings = health["config_warnings"].to_string();
    assert!(
        warnings.contains("this machine's clock is") && warnings.contains("ahead of the warden's"),
        "{health}"
    );
    machine.warden.set_clock(SignedDuration::ZERO);
    machine.warden.decide(nothing(3));
    machine.updated(1);
}

#[test]
fn a_freeze_ends_on_time_without_a_warden() {
    let machine = Machine::new("warden-thaw", |_| {});
    let until = Timestamp::now() + SignedDuration::from_secs(30);
    machine.decide(freeze(2, until, 30));
    machine.offer("v2");
    machine.wait_gate("freeze");
    machine.warden.behave(Behaviour::Gone);
    machine.agent.wait_step("pull", 1);
    let seen = Timestamp::now();
    assert!(seen >= until, "begun before {seen}, frozen until {until}");
    machine.updated(1);
}

#[test]
fn without_a_warden_a_ring_waits_for_its_patience_and_reports_it_once() {
    let machine = Machine::new("warden-away", |push| {
        (push["ring"], push["patience"]) = (json!(1), json!(10));
    });
    machine.warden.behave(Behaviour::Gone);
    machine.offer("v2");
    let why = machine.wait_gate("ring");
    assert!(why.contains("this machine is in ring 1"), "{why}");
    let away = machine.agent.wait_entry(&Kind::FLEET_AWAY, 1);
    assert_eq!(away.level, Level::Warning);
    assert_eq!(machine.agent.entries(&Kind::UPDATED), [], "it waits for its patience from then on");
    machine.updated(1);
    machine.warden.behave(Behaviour::Good);
    let back = machine.agent.wait_entry(&Kind::FLEET_AWAY, 2);
    assert_eq!(back.level, Level::Info);
    assert_eq!(machine.agent.entries(&Kind::FLEET_AWAY).len(), 2, "once each");
}

#[test]
fn the_minimum_age_counts_from_when_the_fleet_first_saw_the_digest() {
    let (world, _) = World::with_web("warden-seen");
    let v2 = world.push("web", &Image::good("v2"));
    let warden = FakeWarden::start();
    let service = world.entry("web", &["web:latest"]).set("update", json!({ "min_age": 3600 }));
    let agent = world.agent_with(world.config([service]).set("push", warden.push()), &[]);
    wait_for("the update to wait for its age", || {
        let service = agent.service("web");
        let gate = service.waiting.as_ref().map(|waiting| waiting.gate.clone());
        if gate.as_deref() == Some("min_age") { Ok(()) } else { Err(format!("{service:#?}")) }
    });
    let seen = json!([{ "image": world.reference("web"), "digest": v2.digest, "seconds_ago": 7200 }]);
    warden.decide(json!({ "revision": 1, "freezes": [], "failed": [], "seen": seen }));
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn a_lease_that_arrives_too_late_is_released_immediately() {
    let machine = Machine::new("warden-lease", |_| {});
    machine.wait_link();
    machine.warden.decide_while_asked(freeze(2, in_an_hour(), 3600));
    machine.offer("v2");
    let release = wait_for("the lease to be released", || {
        let received = machine.warden.received("POST /fleet/release");
        received.first().cloned().ok_or_else(|| format!("{:?}", machine.warden.received("POST /fleet")))
    });
    assert_eq!(release.body, machine.warden.received("POST /fleet/ask")[0].body);
    machine.wait_gate("freeze");
    assert_eq!(machine.agent.entries(&Kind::UPDATED), []);
}

#[test]
fn a_removed_service_releases_a_lease_that_it_has_requested() {
    let mut machine = Machine::new("warden-removed", |_| {});
    machine.wait_link();
    // Delays the response.
    machine.warden.decide_while_asked(nothing(2));
    machine.offer("v2");
    wait_for("the lease to be requested", || match machine.warden.received("POST /fleet/ask").len() {
        0 => Err(format!("{:#?}", machine.agent.service("web"))),
        _ => Ok(()),
    });
    machine.agent.reload(|config| config["services"] = json!([]));
    let release = wait_for("the lease to be released", || {
        let received = machine.warden.received("POST /fleet/release");
        received.first().cloned().ok_or_else(|| format!("{:?}", machine.warden.received("POST /fleet")))
    });
    assert_eq!(release.body, machine.warden.received("POST /fleet/ask")[0].body);
    machine.agent.wait_entry(&Kind::CONFIG_RELOADED, 1);
    assert_eq!(machine.agent.entries(&Kind::UPDATED), []);
    machine.world.assert_runs("web", "v1");
}

#[test]
fn a_removed_service_keeps_the_lease_of_its_deployment() {
    let mut machine = Machine::new("warden-removed-late", |_| {});
    machine.wait_link();
    machine.world.push("web", &Image::healthy("v2"));
    machine.agent.trigger("web");
    machine.agent.wait_step("probation", 1);
    machine.agent.reload(|config| config["services"] = json!([]));
    machine.agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(
        machine.warden.received("POST /fleet/release").len(),
        0,
        "other machines wait for its verdict"
    );
    machine.world.assert_runs("web", "v2");
}
