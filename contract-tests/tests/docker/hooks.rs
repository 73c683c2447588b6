//! Hooks around a deployment, on a real engine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use contract_tests::{Image, World, wait_for};
use evenkeel_common::wire::{Kind, Level};
use serde_json::{Value, json};

/// Writes an executable script.
fn script(world: &World, name: &str, text: &str) -> PathBuf {
    let path = world.folder().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("files of the test can be used");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("files of the test can be used");
    path
}

fn hooks(world: &World) -> Value {
    let log = world.folder().join("hooks.log");
    let note = format!("echo \"$EK_EVENT $EK_SERVICE ${{EK_DIGEST}}\" >> {}", log.display());
    let allowed = world.folder().join("allowed");
    let before = format!("{note}\ntest -e {} || {{ echo the backup failed; exit 3; }}", allowed.display());
    json!({ "hooks": {
        "before": [script(world, "before", &before)],
        "after": [script(world, "after", &note)],
        "rolled_back": [script(world, "rolled-back", &format!("{note}\necho the restore failed >&2\nexit 4"))],
        "timeout": "1m",
    } })
}

#[test]
fn hooks_run_before_anything_is_stopped_and_after_the_outcome_is_recorded() {
    let (world, _) = World::with_web("hooks");
    let entry = world.entry("web", &["web:latest"]).set("update", hooks(&world)).set("health_grace", 5);
    let agent = world.agent_for([entry]);
    let log = || fs::read_to_string(world.folder().join("hooks.log")).unwrap_or_default();
    let before = world.project.container("web").id;

    let v2 = world.push("web", &Image::good("v2"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::ERROR, 1);
    assert!(entry.message.contains("the hook before failed, so nothing was deployed"), "{entry:#?}");
    assert!(entry.output.contains("the backup failed"), "{entry:#?}");
    assert_eq!(world.assert_runs("web", "v1").id, before, "nothing was touched");
    assert_eq!(log(), format!("before web {}\n", v2.digest));
    assert_eq!(agent.blocked().len(), 0);

    fs::write(world.folder().join("allowed"), "").expect("files of the test can be used");
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    wait_for("the hook after the update", || {
        if log().contains(&format!("updated web {}", v2.digest)) { Ok(()) } else { Err(log()) }
    });
    world.assert_runs("web", "v2");
    wait_for("the fault to be over", || {
        let faults = agent.errored();
        if faults.is_empty() { Ok(()) } else { Err(format!("{faults:?}")) }
    });

    let bad = world.push("web", &Image::exits("v3", 0));
    agent.trigger("web");
    agent.wait_entry(&Kind::ROLLED_BACK, 1);
    let entry = agent.wait_entry(&Kind::ERROR, 2);
    assert_eq!(entry.level, Level::Warning, "{entry:#?}");
    assert!(entry.message.contains("the hook rolled_back failed"), "{entry:#?}");
    assert_eq!(entry.output, "the restore failed");
    assert!(log().ends_with(&format!("rolled_back web {}\n", bad.digest)), "{}", log());
    world.assert_runs("web", "v2");
    world.assert_tidy();
}
