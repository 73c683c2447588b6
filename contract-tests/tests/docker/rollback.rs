//! A bad image is rolled back, diagnosed and blocked.

use contract_tests::{Agent, Image, Pushed, World, wait_for};
use evenkeel_common::wire::{AuditEntry, Kind, Level, StatusValue};

/// Pushes a bad `v2` after a good `v1`, and asserts that it is rolled back and blocked.
fn undone(about: &str, first: &Image, bad: &Image, more: &[&str]) -> (World, Agent, Pushed, AuditEntry) {
    let (world, v1) = World::with_web_of(about, first, more);
    let before = world.project.container("web");
    // Long, because the image must fail within it on a busy machine, too. It ends with the failure.
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("health_grace", 15)]);
    let v2 = world.push("web", bad);
    agent.trigger("web");
    if bad.waits_for_command() {
        world.project.fail("web", "v2");
    }
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!((entry.service.as_str(), entry.level), ("web", Level::Warning));
    assert_eq!(entry.old_digest.as_deref(), Some(&*v1.digest));
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    assert!(entry.outage_seconds.is_some_and(|seconds| f64::from(seconds) > 0.0), "{entry:#?}");
    assert!(entry.reason.as_ref().is_some_and(|reason| !reason.contains('\n')), "{entry:#?}");
    assert_eq!(agent.entries(&Kind::UPDATED), []);
    agent.wait_done(1);

    // Exactly the previous image runs again, and the tag refers to it, so that an operator's `up` keeps it.
    let after = world.assert_runs("web", "v1");
    assert_eq!(after.image, before.image);
    assert_eq!(world.engine.image_id(&world.reference("web")), Some(before.image));
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&v2.digest));
    world.assert_tidy();

    // The digest is blocked: further checks do not deploy it.
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    let service = agent.service("web");
    assert_eq!(service.status, StatusValue::Blocked);
    assert_eq!(service.blocked.as_deref(), Some(&*v2.digest));
    assert_eq!((service.updates_total, service.rollbacks_total), (0, 1));
    let same = world.assert_runs("web", "v1");
    assert_eq!(same.id, after.id);
    (world, agent, v2, entry)
}

fn has(entry: &AuditEntry, words: &[&str]) {
    let text = format!("{} {}", entry.reason.as_deref().unwrap_or_default(), entry.output).to_lowercase();
    for word in words {
        assert!(text.contains(word), "the diagnosis does not contain {word:?}: {entry:#?}");
    }
}

#[test]
fn an_unhealthy_image_is_rolled_back() {
    let (_world, agent, _, entry) = undone("unhealthy", &Image::healthy("v1"), &Image::unhealthy("v2"), &[]);
    has(&entry, &["unhealthy", "the database is not there"]);
    assert_eq!(
        agent.steps(),
        [
            "pin_images",
            "pull",
            "start",
            "probation",
            "diagnose",
            "rollback",
            "verify_rollback",
            "unpin",
            "done"
        ]
    );
}

#[test]
fn an_image_that_crashes_repeatedly_is_rolled_back() {
    let restart = ["restart: always"];
    let (_world, _agent, _, entry) = undone("loop", &Image::good("v1"), &Image::exits("v2", 0), &restart);
    has(&entry, &["code", "7", "cannot open the ledger"]);
}

#[test]
fn an_image_that_crashes_without_a_health_check_is_rolled_back() {
    let first = Image::good("v1");
    let (_world, _agent, _, entry) = undone("crash", &first, &Image::fails_on_command("v2"), &[]);
    has(&entry, &["7", "cannot open the ledger"]);
}

#[test]
fn an_image_that_crashes_once_within_the_grace_is_rolled_back() {
    // Compose and `up --wait` would call this healthy (DOMAIN 11.4).
    let first = Image::good("v1");
    let restart = ["restart: unless-stopped"];
    let (_world, _agent, _, entry) = undone("once", &first, &Image::exits("v2", 2), &restart);
    has(&entry, &["7"]);
}

#[test]
fn an_image_whose_health_flaps_within_the_grace_is_rolled_back() {
    let (_world, _agent, _, entry) = undone("flaps", &Image::healthy("v1"), &Image::flapping("v2"), &[]);
    has(&entry, &["unhealthy"]);
}

#[test]
fn an_image_that_turns_unhealthy_is_rolled_back() {
    let (_world, _agent, _, entry) =
        undone("turns", &Image::healthy("v1"), &Image::turning_unhealthy("v2"), &[]);
    has(&entry, &["unhealthy"]);
}

#[test]
fn an_image_that_runs_out_of_memory_is_rolled_back() {
    let limits = ["mem_limit: 24m", "memswap_limit: 24m"];
    let (_world, _agent, _, entry) =
        undone("oom", &Image::good("v1"), &Image::exhausts_memory("v2"), &limits);
    has(&entry, &["memory"]);
}

#[test]
fn an_image_that_cannot_be_started_is_rolled_back() {
    let (_world, _agent, _, entry) = undone("entry", &Image::good("v1"), &Image::bad_entrypoint("v2"), &[]);
    has(&entry, &["/no/such/program"]);
}

#[test]
fn a_locally_built_image_is_rolled_back_to_the_one_built_before() {
    let mut world = World::new("localbad");
    let reference = world.reference("web");
    let owner = world.project.name.clone();
    let build = |image: &Image| {
        world.engine.build(&reference, image, &owner);
        world.engine.docker(&["push", "-q", &reference]);
    };
    build(&Image::good("v1"));
    world.project.service("web", &reference, &[]);
    world.project.up();
    let agent = world.agent();
    build(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);
    let v2 = world.assert_runs("web", "v2");

    build(&Image::unhealthy("v3"));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(2);
    assert_eq!(world.assert_runs("web", "v2").image, v2.image);
    assert_eq!(world.engine.image_id(&reference), Some(v2.image), "the tag refers to the running image");
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    world.assert_runs("web", "v2");
    world.assert_tidy();
}

#[test]
fn one_bad_image_of_two_rolls_both_back_and_the_good_one_is_deployed_without_it() {
    let mut world = World::new("onebad");
    for name in ["web", "db"] {
        world.push(name, &Image::good("v1"));
        world.service(name, name, &[]);
    }
    world.project.up();
    let before = world.project.container("db");
    let agent = world.agent_for([world.entry("app", &["web:latest", "db:latest"])]);
    let web = world.push("web", &Image::good("v2"));
    let db = world.push("db", &Image::unhealthy("v2"));
    agent.trigger("app");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*db.digest), "the entry names the failed image");
    let updated = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(updated.new_digest.as_deref(), Some(&*web.digest));
    agent.wait_done(2);
    world.assert_runs("web", "v2");
    assert_eq!(world.assert_runs("db", "v1").image, before.image);
    let blocked = agent.blocked();
    assert_eq!(blocked.get("app/web:latest"), None);
    assert_eq!(blocked.get("app/db:latest"), Some(&db.digest));
    world.assert_tidy();
}

#[test]
fn a_service_with_a_blocked_image_is_kept_while_its_sibling_is_updated() {
    let mut world = World::new("sibling");
    for name in ["web", "db"] {
        world.push(name, &Image::good("v1"));
        world.service(name, name, &[]);
    }
    world.project.up();
    let agent = world.agent_for([world.entry("app", &["web:latest", "db:latest"])]);
    let bad = world.push("db", &Image::exits("v2", 0));
    agent.trigger("app");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(1);
    let kept = world.assert_runs("db", "v1");

    // A manual pull makes the local tag refer to the blocked image.
    world.engine.docker(&["pull", "-q", &world.reference("db")]);
    let good = world.push("web", &Image::good("v2"));
    agent.trigger("app");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*good.digest));
    agent.wait_done(2);
    world.assert_runs("web", "v2");
    assert_eq!(world.assert_runs("db", "v1").id, kept.id);
    assert_eq!(agent.blocked().get("app/db:latest"), Some(&bad.digest));
    assert_eq!(agent.blocked().len(), 1);
}

#[test]
fn blocks_and_totals_survive_a_restart_and_only_a_new_digest_lifts_the_block() {
    let first = Image::good("v1");
    let (world, mut agent, bad, _) = undone("remember", &first, &Image::exits("v2", 0), &[]);
    for kill in [false, true] {
        if kill {
            agent.kill9(true);
        } else {
            agent.terminate();
        }
        agent.restart();
        agent.wait_first_poll();
        assert_eq!(agent.blocked().get("web/web:latest"), Some(&bad.digest));
        assert_eq!(agent.service("web").rollbacks_total, 1);
        assert_eq!(agent.check("web").event, Kind::CHECKED);
        world.assert_runs("web", "v1");
    }
    // The same bad image again, from another push.
    assert_eq!(world.push("web", &Image::exits("v2", 0)).digest, bad.digest);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.entries(&Kind::ROLLED_BACK).len(), 1);

    world.push("web", &Image::good("v3"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v3");
    assert_eq!(agent.blocked().len(), 0);
    let service = agent.service("web");
    assert_eq!((service.updates_total, service.rollbacks_total), (1, 1));
    assert_eq!(agent.entries(&Kind::RESUMED), []);
}

#[test]
fn a_digest_that_failed_is_blocked_at_once_when_the_tag_returns_to_it_and_leaves_no_image() {
    let (first, second) = (Image::good("v1"), Image::exits("v2", 0));
    let (world, agent, bad, _) = undone("returns", &first, &second, &[]);
    let here = || world.engine.image_id(&format!("{}/web@{}", world.host, bad.digest));
    wait_for("the failed image to be removed", || here().map_or(Ok(()), Err));
    world.push("web", &first);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.blocked().len(), 0, "the tag has moved");
    assert_eq!(world.push("web", &second).digest, bad.digest);
    let before = world.project.container("web").id;
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&bad.digest));
    assert_eq!(world.assert_runs("web", "v1").id, before, "nothing was deployed");
    assert_eq!(agent.entries(&Kind::ROLLED_BACK).len(), 1);
    assert_eq!(here(), None, "it was not even pulled");
}

#[test]
fn a_removed_block_is_restored_when_the_same_image_fails_again() {
    let first = Image::good("v1");
    let (world, agent, bad, _) = undone("unblock", &first, &Image::exits("v2", 0), &[]);
    assert_eq!(agent.unblock("web"), "unblocked");
    assert_eq!(agent.unblock("web"), "not_blocked");
    assert_eq!(agent.blocked().len(), 0);
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 2);
    assert_eq!(agent.entries(&Kind::UNBLOCKED).len(), 1);
    agent.wait_done(2);
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&bad.digest));
    world.assert_runs("web", "v1");
    let lifted = agent.request("DELETE", "/blocked/web");
    assert_eq!(lifted.json(), serde_json::json!({ "status": "unblocked", "service": "web" }));
    assert_eq!(agent.request("POST", "/unblock/nobody").status, 404);
}

#[test]
fn what_uses_the_network_of_a_service_runs_again_after_a_rollback_that_its_health_held_up() {
    let mut world = World::new("provider");
    world.push("vpn", &Image::good("v1"));
    world.push("client", &Image::good("v1"));
    let (host, folder) = (world.host.clone(), world.folder().join("provider"));
    let provider = folder.join("up");
    std::fs::create_dir(&folder).expect("the folder can be created");
    std::fs::write(&provider, "").expect("the file can be written");
    world.project.write_text(&format!(
        "services:
  vpn:
    image: '{host}/vpn:latest'
    labels: {{labels}}
    stop_grace_period: 1s
    volumes: ['{}:/provider:ro']
    healthcheck: {{ test: [CMD, /bin/sh, -c, 'test -e /provider/up'], interval: 1s, timeout: 5s, retries: 2 }}
  client:
    image: '{host}/client:latest'
    labels: {{labels}}
    stop_grace_period: 1s
    network_mode: 'service:vpn'
    depends_on: {{ vpn: {{ condition: service_healthy }} }}
",
        folder.display()
    ));
    world.project.up();
    let agent = world.agent_for([world.entry("tunnel", &["vpn:latest"]).set("health_grace", 20)]);
    std::fs::remove_file(&provider).expect("the file can be removed");
    world.push("vpn", &Image::good("v2"));
    agent.trigger("tunnel");
    agent.wait_step("verify_rollback", 1);
    std::fs::write(&provider, "").expect("the file can be written");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(1);
    world.assert_runs("vpn", "v1");
    world.assert_runs("client", "v1");
    world.assert_tidy();
}

#[test]
fn an_image_that_no_longer_declares_the_volume_of_the_data_is_not_brought_up() {
    let v1 = Image::good("v1").with_volume("/var/lib/db/data");
    let (world, _) = World::with_web_of("undeclared", &v1, &[]);
    let before = world.project.container("web");
    let agent = world.agent();
    world.push("web", &Image::good("v2").with_volume("/var/lib/db"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::ERROR, 1);
    assert!(entry.message.contains("no longer declares the volume /var/lib/db/data"), "{entry:#?}");
    world.assert_tidy();
    assert_eq!(world.assert_runs("web", "v1").id, before.id);
    assert_eq!(agent.blocked().len(), 0);
}
