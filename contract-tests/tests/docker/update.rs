//! A good image is deployed and proven, and nothing else is touched.

use std::time::Duration;

use contract_tests::{Image, OTHER_ARCHITECTURE, Shape, World, wait_for};
use evenkeel_common::wire::{Kind, Level, RedeployReply, StatusValue, TriggerReply};

#[test]
fn a_pushed_image_goes_live_and_is_proven() {
    let (world, v1) = World::with_web_of("good", &Image::healthy("v1"), &[]);
    let agent = world.agent();
    let service = agent.service("web");
    assert_eq!((service.status, service.healthy), (StatusValue::Ok, Some(true)), "{service:#?}");
    let images = service.images.unwrap();
    assert_eq!(images[0].image, world.reference("web"));
    assert_eq!((&images[0].digest, images[0].short.as_str()), (&v1.digest, &v1.digest[..19]));
    assert_eq!(service.containers.unwrap()[0].name, format!("{}-web-1", world.project.name));

    let v2 = world.push("web", &Image::healthy("v2"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.old_digest.as_deref(), Some(&*v1.digest));
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    assert_eq!((entry.service.as_str(), entry.level), ("web", Level::Info));
    // Compose stops the old container before it starts the new one, which then has to become healthy.
    assert!(entry.outage_seconds.is_some_and(|seconds| f64::from(seconds) > 0.0), "{entry:#?}");
    // The entry is written after probation, so the container is already healthy.
    assert_eq!(world.assert_runs("web", "v2").health, "healthy");
    agent.wait_done(1);
    assert_eq!(agent.steps(), ["pin_images", "pull", "start", "probation", "unpin", "done"]);
    world.assert_tidy();
    wait_for("the status to show the new image", || {
        let service = agent.service("web");
        let digest = service.images.as_ref().map(|images| images[0].digest.clone());
        let right = service.status == StatusValue::Ok && service.updates_total == 1 && !service.deploying;
        if right && digest.as_ref() == Some(&v2.digest) { Ok(()) } else { Err(format!("{service:#?}")) }
    });
    assert_eq!((agent.blocked().len(), agent.errored().len()), (0, 0));
}

#[test]
fn updated_is_written_only_after_probation_and_triggers_during_it_are_skipped() {
    let (world, _) = World::with_web("patience");
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("health_grace", 30)]);
    world.push("web", &Image::healthy("v2"));
    agent.trigger("web");
    agent.wait_step("probation", 1);
    wait_for("the new container to be healthy", || {
        let views = world.project.containers();
        let healthy = views.iter().any(|view| view.version == "v2" && view.health == "healthy");
        if healthy { Ok(()) } else { Err(format!("{views:#?}")) }
    });
    assert_eq!(agent.entries(&Kind::UPDATED), []);
    let service = agent.service("web");
    assert_eq!((service.status, service.deploying), (StatusValue::Deploying, true));
    let deploy = service.deploy.unwrap();
    assert!(deploy.deadline.unwrap() > deploy.since, "{deploy:?}");
    let busy = "deploy in progress".to_owned();
    assert_eq!(agent.trigger("web"), TriggerReply::Skipped { reason: busy.clone() });
    assert_eq!(agent.redeploy("web"), RedeployReply::Skipped { reason: busy });
    agent.wait_entry(&Kind::UPDATED, 1);
}

fn updates_to(about: &str, shape: Shape) {
    let (world, v1) = World::with_web(about);
    let agent = world.agent();
    let v2 = world.push_as("web", &Image::good("v2"), shape);
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(
        (entry.old_digest.as_deref(), entry.new_digest.as_deref()),
        (Some(&*v1.digest), Some(&*v2.digest))
    );
    world.assert_runs("web", "v2");
    agent.wait_done(1);
    // The deployed digest is the one that the registry reports for the tag, so it is not deployed again.
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.entries(&Kind::UPDATED).len(), 1);
}

#[test]
fn a_tag_with_an_oci_manifest_is_updated() {
    updates_to("oci", Shape::Oci);
}

#[test]
fn a_tag_with_an_oci_index_is_updated() {
    updates_to("index", Shape::OciIndex);
}

#[test]
fn a_tag_with_a_docker_list_is_updated() {
    updates_to("list", Shape::DockerList);
}

#[test]
fn an_image_is_pulled_for_the_platform_in_the_compose_file() {
    let mut world = World::new("platform");
    world.push_as("web", &Image::good("v1"), Shape::TwoPlatforms);
    let platform = format!("platform: linux/{OTHER_ARCHITECTURE}");
    // Another tag of the repository, used for this machine's platform.
    let owner = world.project.name.clone();
    world.registry.push("web", "native", &Image::good("native"), Shape::TwoPlatforms, &owner);
    let native = format!("{}/web:native", world.registry.host);
    world.project.service("native", &native, &[]);
    world.service("web", "web", &[&platform]);
    world.project.up();
    let agent = world.agent();
    let v2 = world.push_as("web", &Image::good("v2"), Shape::TwoPlatforms);
    // The digest is present locally, but for this machine's platform instead of the configured one.
    let pinned = format!("{}/web@{}", world.registry.host, v2.digest);
    world.engine.docker(&["pull", "-q", &pinned]);
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    world.assert_runs("web", "v2");
    if !world.engine.has_containerd_store() {
        let image = world.project.container("web").image;
        assert_eq!(world.engine.get(&format!("/images/{image}/json"))["Architecture"], OTHER_ARCHITECTURE);
    }
    agent.wait_done(1);
    assert_eq!((agent.blocked().len(), agent.check("web").event), (0, Kind::CHECKED));
    world.assert_tidy();
}

#[test]
fn a_new_digest_for_the_same_image_is_a_success() {
    let (world, v1) = World::with_web("samesame");
    let before = world.project.container("web");
    let agent = world.agent();
    let again = world.push_as("web", &Image::good("v1"), Shape::DockerList);
    assert_ne!(again.digest, v1.digest);
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*again.digest));
    agent.wait_done(1);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    let after = world.assert_runs("web", "v1");
    // With the containerd store, a new digest is a new image ID and its container is recreated. Otherwise nothing changes.
    if world.engine.has_containerd_store() {
        assert_ne!(before.id, after.id);
    } else {
        assert_eq!((before.id, before.started_at), (after.id, after.started_at));
    }
    world.assert_tidy();
}

#[test]
fn an_image_built_and_pushed_on_this_machine_goes_live() {
    let mut world = World::new("local");
    let reference = world.reference("web");
    let owner = world.project.name.clone();
    let build = |version: &str| {
        world.engine.build(&reference, &Image::good(version), &owner);
        world.engine.docker(&["push", "-q", &reference]);
    };
    build("v1");
    world.project.service("web", &reference, &[]);
    world.project.up();
    let agent = world.agent();
    // The local tag already refers to the new image, but the old one is running.
    build("v2");
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    agent.wait_done(1);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    world.assert_tidy();
}

#[test]
fn an_image_that_is_not_present_is_not_found_until_it_is_redeployed() {
    let mut world = World::new("first");
    let v1 = world.push("web", &Image::good("v1"));
    world.service("web", "web", &[]);
    let agent = world.agent();
    let service = agent.service("web");
    assert_eq!((service.status, service.not_found.as_deref()), (StatusValue::NotFound, Some(&*v1.digest)));
    let found = agent.map("/not-found");
    assert_eq!(found.get("web/web:latest"), Some(&v1.digest), "{found:?}");
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(world.project.containers(), []);

    assert_eq!(
        agent.redeploy("web"),
        RedeployReply::Redeploying { service: "web".to_owned(), kept: Vec::new() }
    );
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    world.assert_runs("web", "v1");
    agent.wait_done(1);
    assert_eq!(agent.map("/not-found").len(), 0);
    world.assert_tidy();
}

#[test]
fn a_failed_first_deployment_is_blocked_and_can_not_be_rolled_back() {
    let mut world = World::new("firstbad");
    let v1 = world.push("web", &Image::unhealthy("v1"));
    world.service("web", "web", &[]);
    let agent = world.agent();
    agent.redeploy("web");
    let entry = agent.wait_entry(&Kind::ROLLBACK_FAILED, 1);
    assert_eq!(entry.level, Level::Critical);
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&v1.digest));
    agent.wait_done(1);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    world.assert_tidy();

    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.blocked().len(), 0);
}

#[test]
fn a_pinned_reference_never_updates() {
    let mut world = World::new("pinned");
    let v1 = world.push("web", &Image::good("v1"));
    let pinned = format!("{}@{}", world.reference("web"), v1.digest);
    world.project.service("web", &pinned, &[]);
    world.project.up();
    let agent = world.agent_for([world.entry("web", &[&pinned])]);
    world.push("web", &Image::good("v2"));
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.service("web").status, StatusValue::Ok);
    world.assert_runs("web", "v1");
    assert_eq!(agent.steps(), Vec::<String>::new());
}

#[test]
fn another_image_of_the_project_is_not_updated_although_its_tag_has_moved() {
    let mut world = World::new("others");
    for name in ["web", "db"] {
        world.push(name, &Image::good("v1"));
        world.service(name, name, &[]);
    }
    world.project.up();
    let before = world.project.container("db");
    let agent = world.agent();
    world.push("db", &Image::good("v2"));
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    let after = world.assert_runs("db", "v1");
    assert_eq!((before.id, before.started_at), (after.id, after.started_at));
    assert_eq!(
        world.engine.image_id(&world.reference("db")),
        Some(after.image),
        "its tag has not moved here"
    );
}

#[test]
fn several_changed_images_of_a_project_are_one_deployment() {
    let mut world = World::new("several");
    for name in ["web", "db"] {
        world.push(name, &Image::good("v1"));
        world.service(name, name, &[]);
    }
    world.project.up();
    let agent = world.agent_for([world.entry("app", &["web:latest", "db:latest"])]);
    world.push("web", &Image::good("v2"));
    world.push("db", &Image::good("v2"));
    agent.trigger("app");
    agent.wait_entry(&Kind::UPDATED, 2);
    world.assert_runs("web", "v2");
    world.assert_runs("db", "v2");
    agent.wait_done(1);
    assert_eq!(agent.steps().iter().filter(|step| *step == "start").count(), 1);
    assert_eq!(agent.service("app").updates_total, 1);
}

#[test]
fn two_services_on_one_project_are_deployed_one_after_the_other() {
    let mut world = World::new("shared");
    for name in ["web", "db"] {
        world.push(name, &Image::good("v1"));
        world.service(name, name, &[]);
    }
    world.project.up();
    let agent = world.agent_for([world.entry("web", &["web:latest"]), world.entry("db", &["db:latest"])]);
    world.push("web", &Image::good("v2"));
    world.push("db", &Image::good("v2"));
    agent.request("POST", "/trigger");
    agent.wait_entry(&Kind::UPDATED, 2);
    world.assert_runs("web", "v2");
    world.assert_runs("db", "v2");
    agent.wait_done(2);
    // The steps of the two deployments do not overlap.
    let lines: Vec<String> =
        agent.log().into_iter().filter(|line| line.step().is_some()).map(|line| line.0).collect();
    let first_is_web = lines[0].contains("service=\"web\"") || lines[0].contains("service=web");
    let of_first = |line: &String| line.contains("web") == first_is_web;
    let switches = lines.windows(2).filter(|pair| of_first(&pair[0]) != of_first(&pair[1])).count();
    assert_eq!(switches, 1, "{lines:#?}");
    world.assert_tidy();
}

#[test]
fn a_slow_starter_gets_the_time_of_its_start_period() {
    let (world, _) = World::with_web("slow");
    let agent = world.agent();
    world.push("web", &Image::slow_starter("v2", 7, Duration::from_mins(1)));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(world.assert_runs("web", "v2").health, "healthy");
    assert_eq!(agent.entries(&Kind::ROLLED_BACK), []);
}

#[test]
fn a_redeploy_recreates_containers_and_never_deploys_a_blocked_digest() {
    let (world, _) = World::with_web("redeploy");
    let agent = world.agent();
    let before = world.project.container("web");
    agent.redeploy("web");
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    agent.wait_done(1);
    let after = world.assert_runs("web", "v1");
    assert_ne!(before.id, after.id);

    let bad = world.push("web", &Image::exits("v2", 0));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    agent.wait_done(2);
    agent.redeploy("web");
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 2);
    agent.wait_done(3);
    world.assert_runs("web", "v1");
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&bad.digest));
    world.assert_tidy();
}

#[test]
fn a_broken_compose_file_is_reported_and_changes_nothing() {
    let (world, _) = World::with_web("broken");
    let agent = world.agent();
    let before = world.project.container("web");
    let text = std::fs::read_to_string(&world.project.file).unwrap();
    std::fs::write(&world.project.file, "services: [this is\n").unwrap();
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::ERROR, 1);
    assert!(entry.message.contains("can't be compared with what runs"), "{entry:?}");
    assert_eq!(agent.service("web").status, StatusValue::Errored);
    assert!(agent.steps().is_empty(), "nothing is begun: {:?}", agent.steps());
    let after = world.assert_runs("web", "v1");
    assert_eq!(before.id, after.id);
    assert_eq!(world.engine.image_id(&world.reference("web")), Some(after.image), "the tag has not moved");
    assert_eq!(agent.blocked().len(), 0);
    world.assert_tidy();

    std::fs::write(&world.project.file, text).unwrap();
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_entry(&Kind::RECOVERED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.errored().len(), 0);
}

#[test]
fn an_agent_shuts_down_on_sigterm_and_writes_an_entry() {
    let (world, _) = World::with_web("stop");
    let mut agent = world.agent();
    let status = agent.terminate();
    assert!(status.success(), "{status:?}");
    let text = std::fs::read_to_string(world.folder().join("audit.jsonl")).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.contains("\"event\":\"shutdown\"") && last.contains("\"service\":\"evenkeel\""), "{last}");
}
