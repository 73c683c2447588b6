//! The agent removes images that it deployed and no longer needs, and no others.

use contract_tests::{Image, World, wait_for};
use evenkeel_common::wire::{Kind, WayBackValue};

#[test]
fn an_update_removes_deployed_images_except_the_last_proven_ones() {
    let (world, v1) = World::with_web("cleanup");
    let agent = world.agent_for([world.entry("web", &["web:latest"]).set("keep_images", 2)]);
    let here = |digest: &str| world.engine.image_id(&format!("{}/web@{digest}", world.host)).is_some();
    let mut digests = vec![v1.digest];
    for n in 2..=4 {
        digests.push(world.push("web", &Image::good(&format!("v{n}"))).digest);
        agent.trigger("web");
        let entry = agent.wait_entry(&Kind::UPDATED, n - 1);
        assert!(entry.message.contains(&format!("from v{} to v{n}", n - 1)), "{entry:?}");
        assert!(entry.output.contains(&format!("version: v{} → v{n}", n - 1)), "{entry:?}");
        agent.wait_done(n - 1);
    }
    wait_for("version 2 to be removed", || {
        if here(&digests[1]) { Err("it is present".to_owned()) } else { Ok(()) }
    });
    // The first image was present before the agent started. The third is one of the last two proven images.
    assert_eq!(digests.iter().map(|digest| here(digest)).collect::<Vec<_>>(), [true, false, true, true]);
    world.assert_runs("web", "v4");

    agent.check("web");
    wait_for("the rollback to be checked", || {
        let service = agent.service("web");
        if service.way_back == Some(WayBackValue::Ok) { Ok(()) } else { Err(format!("{service:#?}")) }
    });
}
