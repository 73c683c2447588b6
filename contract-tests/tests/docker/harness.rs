//! Tests of the harness itself.

use std::time::Duration;

use contract_tests::{Engine, Fault, Image, Proxy, Registry, Shape, World, request, wait_for};

#[test]
fn the_engine_runs_images_with_every_kind_of_manifest() {
    let mut world = World::new("shapes");
    let shapes = [Shape::Docker, Shape::Oci, Shape::OciIndex, Shape::DockerList];
    for (nr, shape) in shapes.into_iter().enumerate() {
        let repository = format!("shape{nr}");
        let pushed = world.push_as(&repository, &Image::healthy("v1"), shape);
        let path = format!("/v2/{repository}/manifests/{}", pushed.digest);
        let reply = request(&world.host, "GET", &path, &[("Accept", "*/*")], &[]).unwrap();
        assert_ne!(reply.status, 500, "{}", reply.text());
        world.service(&repository, &repository, &[]);
    }
    world.project.up();
    for nr in 0..shapes.len() {
        let view = world.assert_runs(&format!("shape{nr}"), "v1");
        assert_eq!(view.health, "healthy");
    }
}

#[test]
fn containers_behave_as_their_images_specify() {
    let mut world = World::new("promises");
    let start_period = Duration::from_secs(10);
    let images = [
        ("bad", Image::unhealthy("v1"), "unhealthy"),
        ("exits", Image::exits("v1", 0), "exited"),
        ("flaps", Image::flapping("v1"), "healthy"),
        ("turns", Image::turning_unhealthy("v1"), "unhealthy"),
        ("slow", Image::slow_starter("v1", 5, start_period), "healthy"),
        ("stubborn", Image::ignores_term("v1"), "healthy"),
        ("hungry", Image::exhausts_memory("v1"), "exited"),
    ];
    for (name, image, _) in &images {
        world.push(name, image);
        world.service(name, name, &["mem_limit: 24m", "memswap_limit: 24m", "stop_grace_period: 1s"]);
    }
    assert!(world.project.compose(&["up", "-d"]).status.success());
    wait_for("every container to behave as specified", || {
        let views = world.project.containers();
        let kept = images.iter().all(|(name, _, end)| {
            views.iter().any(|view| view.service == *name && (view.health == *end || view.state == *end))
        });
        if kept { Ok(()) } else { Err(format!("{views:#?}")) }
    });
}

#[test]
fn a_dropped_world_leaves_nothing_behind() {
    let engine = Engine::under_test();
    let (world, _) = World::with_web("gone");
    let name = world.project.name.clone();
    engine.build(&world.reference("built"), &Image::good("v9"), &name);
    assert_eq!(engine.tags(&name).len(), 2);
    drop(world);
    assert_eq!(engine.containers(&name), []);
    assert_eq!(engine.tags(&name), Vec::<String>::new());
}

#[test]
fn a_proxy_forwards_or_misbehaves_as_configured() {
    let registry = Registry::start();
    let pushed = registry.push("web", "latest", &Image::good("v1"), Shape::Docker, "proxy");
    let proxy = Proxy::start(&registry.host);
    let accept = [("Accept", "application/vnd.docker.distribution.manifest.v2+json")];
    let fetch = |method| request(&proxy.host, method, "/v2/web/manifests/latest", &accept, &[]).unwrap();
    for method in ["HEAD", "GET"] {
        let reply = fetch(method);
        assert_eq!(reply.header("docker-content-digest"), Some(&*pushed.digest), "{reply:?}");
    }
    proxy.set(Fault::NoDigest);
    assert_eq!(fetch("HEAD").header("docker-content-digest"), None);
    proxy.set(Fault::WrongDigest("sha256:00".to_owned()));
    assert_eq!(fetch("HEAD").header("docker-content-digest"), Some("sha256:00"));
    proxy.set(Fault::Answer(429, vec![("Retry-After", "3".to_owned())], "slow down".to_owned()));
    let reply = fetch("GET");
    assert_eq!((reply.status, reply.header("retry-after"), &*reply.text()), (429, Some("3"), "slow down"));
    assert_eq!(proxy.manifest_requests(), 5);
}
