//! Tests that prune, kill and restart an engine of their own.

use contract_tests::{Image, PrivateEngine, Registry, World};

#[test]
fn a_private_engine_runs_projects_and_survives_its_own_death() {
    let registry = Registry::start_for_private_engine();
    let mut private = PrivateEngine::start(&registry);
    let mut world = World::with("private", &private.engine(), registry);
    world.push("web", &Image::good("v1"));
    world.service("web", "web", &["restart: always"]);
    world.project.up();
    for signal in ["TERM", "KILL"] {
        private.end(signal);
        private.run();
        world.project.up();
        world.assert_runs("web", "v1");
    }
}
