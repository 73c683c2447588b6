//! Tests that must pass on every engine, every image store and every compose version. `dist/test.sh --engines` runs them on
//! all available ones.

use contract_tests::{Agent, Image, Project, Service, Shape, World, wait_for};
use evenkeel_common::wire::{Kind, StatusValue};

/// Pulls the new image manually.
#[track_caller]
fn compose_pull(world: &World) {
    let output = world.project.compose(&["pull", "-q"]);
    assert!(output.status.success(), "compose pull: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_image_pulled_manually_before_the_check_is_deployed() {
    let (world, v1) = World::with_web("pulled");
    let agent = world.agent();
    let v2 = world.push("web", &Image::good("v2"));
    compose_pull(&world);
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.old_digest.as_deref(), Some(&*v1.digest));
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!((agent.entries(&Kind::NOT_FOUND).len(), agent.errored().len()), (0, 0));
    assert_eq!(agent.service("web").status, StatusValue::Ok);
    world.assert_tidy();
}

#[test]
fn an_agent_that_starts_after_a_manual_pull_deploys_the_image() {
    let (world, v1) = World::with_web("pulled-before");
    let v2 = world.push("web", &Image::good("v2"));
    compose_pull(&world);
    // The agent has never seen the tag on the old image.
    let agent = world.agent();
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    assert!(entry.old_digest.as_ref().is_none_or(|old| *old == v1.digest), "{entry:#?}");
    agent.wait_done(1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.entries(&Kind::NOT_FOUND), []);
    world.assert_tidy();
}

#[test]
fn a_bad_image_pulled_manually_before_the_check_is_rolled_back() {
    let (world, v1) = World::with_web("pulled-bad");
    let agent = world.agent();
    let v2 = world.push("web", &Image::unhealthy("v2"));
    compose_pull(&world);
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.old_digest.as_deref(), Some(&*v1.digest));
    agent.wait_done(1);
    let after = world.assert_runs("web", "v1");
    assert_eq!(world.engine.image_id(&world.reference("web")), Some(after.image), "the tag is restored");
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&v2.digest));
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    world.assert_runs("web", "v1");
    world.assert_tidy();
}

#[test]
fn an_index_with_attestations_is_deployed_once_and_not_again() {
    let mut world = World::new("attested");
    world.push_as("web", &Image::good("v1"), Shape::AttestedIndex);
    world.service("web", "web", &[]);
    world.project.up();
    let agent = world.agent();
    let first = world.assert_runs("web", "v1");
    let v2 = world.push_as("web", &Image::good("v2"), Shape::AttestedIndex);
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    let running = world.assert_runs("web", "v2");
    assert_ne!(running.id, first.id);
    for _ in 0..10 {
        assert_eq!(agent.check("web").event, Kind::CHECKED);
    }
    assert_eq!(agent.steps().len(), 6, "one deployment: {:?}", agent.steps());
    assert_eq!(world.assert_runs("web", "v2").id, running.id);
    assert_eq!(agent.service("web").status, StatusValue::Ok);
    world.assert_tidy();
}

/// Creates two projects on the same tag, and an agent for both.
fn shared_tag(about: &str) -> (World, Project, Agent) {
    let (world, _) = World::with_web_of(about, &Image::healthy("v1"), &[]);
    let folder = world.folder().join("second");
    std::fs::create_dir(&folder).expect("the folder can be created");
    let mut second = Project::new(&format!("{about}-two"), &folder, &world.engine);
    second.service("web", &world.reference("web"), &[]);
    second.up();
    let two = Service::of_project("two", &second, &["web:latest"]);
    let agent = world.agent_for([world.entry("one", &["web:latest"]), two]);
    (world, second, agent)
}

#[test]
fn two_projects_on_one_tag_are_both_updated_and_both_rolled_back() {
    let (world, second, agent) = shared_tag("onetag");
    world.push("web", &Image::healthy("v2"));
    agent.request("POST", "/trigger");
    agent.wait_entry(&Kind::UPDATED, 2);
    agent.wait_done(2);
    let good = world.assert_runs("web", "v2");
    assert_eq!(
        (second.container("web").version.as_str(), &second.container("web").image),
        ("v2", &good.image)
    );

    let bad = world.push("web", &Image::unhealthy("v3"));
    agent.request("POST", "/trigger");
    wait_for("both to run the previous image again, and the bad image to be blocked", || {
        let runs = [world.project.containers(), second.containers()].concat();
        let back = runs.len() == 2
            && runs.iter().all(|view| view.image == good.image && view.health == "healthy")
            && !agent.status().services.iter().any(|service| service.deploying);
        let blocked = agent.blocked();
        let known = ["one/web:latest", "two/web:latest"].map(|key| blocked.get(key) == Some(&bad.digest));
        if back && known == [true, true] {
            Ok(())
        } else {
            Err(format!("{runs:#?} {blocked:?} {:#?}", agent.audit()))
        }
    });
    assert_eq!(world.engine.image_id(&world.reference("web")), Some(good.image), "the tag is restored");
    for name in ["one", "two"] {
        assert_eq!(agent.check(name).event, Kind::CHECKED);
        assert_eq!(agent.service(name).status, StatusValue::Blocked);
    }
    assert_eq!(agent.entries(&Kind::ROLLBACK_FAILED), []);
    world.assert_tidy();
}

#[test]
fn an_image_that_was_only_built_locally_is_not_found_and_not_replaced() {
    let mut world = World::new("builtonly");
    let reference = world.reference("web");
    let theirs = world.push("web", &Image::good("theirs"));
    let owner = world.project.name.clone();
    world.engine.build(&reference, &Image::good("ours"), &owner);
    world.project.service("web", &reference, &[]);
    world.project.up();
    let agent = world.agent();
    for _ in 0..2 {
        assert_eq!(agent.check("web").event, Kind::CHECKED);
    }
    let service = agent.service("web");
    assert_eq!(
        (service.status, service.not_found.as_deref()),
        (StatusValue::NotFound, Some(&*theirs.digest)),
        "{service:#?}"
    );
    world.assert_runs("web", "ours");
    assert_eq!(agent.steps(), Vec::<String>::new());
}

#[test]
fn an_image_removed_by_force_breaks_neither_updates_nor_the_service() {
    let (world, _) = World::with_web("forced");
    let agent = world.agent();
    let before = world.project.container("web");
    // Most engines refuse because a container uses the image. Docker 28 with the containerd image store removes its tags and
    // content nevertheless.
    let removed = world.engine.cli(&["rmi", "-f", &before.image]).output().expect("docker can be run");
    eprintln!("docker rmi -f: {removed:?}");
    agent.check("web");
    assert_eq!(agent.errored().len(), 0, "{:?}", agent.errored());
    world.assert_runs("web", "v1");
    let v2 = world.push("web", &Image::good("v2"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    agent.wait_done(1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.errored().len(), 0, "{:?}", agent.errored());
    world.assert_tidy();
}

#[test]
fn a_database_that_an_updated_service_depends_on_keeps_its_container() {
    let mut world = World::new("beside");
    for name in ["web", "cache"] {
        world.push(name, &Image::good("v1"));
    }
    world.push("db", &Image::healthy("v1"));
    let host = world.host.clone();
    world.project.write_text(&format!(
        "services:
  db: {{ image: '{host}/db:latest', labels: {{labels}}, stop_grace_period: 1s }}
  cache: {{ image: '{host}/cache:latest', labels: {{labels}}, stop_grace_period: 1s }}
  web:
    image: '{host}/web:latest'
    labels: {{labels}}
    stop_grace_period: 1s
    depends_on:
      db: {{ condition: service_healthy }}
"
    ));
    world.project.up();
    let before = ["db", "cache"].map(|name| world.project.container(name));
    let agent = world.agent();
    for (version, kind) in [("v2", Kind::UPDATED), ("bad", Kind::ROLLED_BACK), ("v4", Kind::UPDATED)] {
        let nth = agent.entries(&kind).len() + 1;
        let deployments = agent.steps().iter().filter(|step| *step == "done").count() + 1;
        world.push("web", &if version == "bad" { Image::unhealthy("bad") } else { Image::good(version) });
        agent.trigger("web");
        agent.wait_entry(&kind, nth);
        agent.wait_done(deployments);
        let after = ["db", "cache"].map(|name| world.project.container(name));
        assert_eq!(before, after, "after {version}");
    }
    world.assert_runs("web", "v4");
    world.assert_tidy();
}
