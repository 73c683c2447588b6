//! An update of a swarm service changes only the image in its specification.

use contract_tests::{Image, Swarm};
use evenkeel_common::wire::Kind;
use serde_json::{Value, json};

use crate::swarm::with_v1;

/// Returns the specification without the image and its platforms.
fn rest(swarm: &Swarm) -> Value {
    let mut spec = swarm.service()["Spec"].clone();
    spec["TaskTemplate"]["ContainerSpec"]["Image"] = Value::Null;
    spec["TaskTemplate"]["Placement"]["Platforms"] = Value::Null;
    spec
}

#[test]
fn an_update_and_a_rollback_keep_all_of_the_specification_but_the_image() {
    let swarm = Swarm::start();
    let v1 = swarm.push(&Image::good("v1"));
    let file = swarm.folder().join("greeting");
    std::fs::write(&file, "hello").unwrap();
    let file = file.display().to_string();
    swarm.engine().docker(&["config", "create", "greeting", &file]);
    swarm.engine().docker(&["secret", "create", "word", &file]);
    let node = swarm.engine().docker(&["node", "ls", "--format", "{{.ID}}"]);
    swarm.engine().docker(&["node", "update", "--label-add", "rack=a", &node]);
    let options = [
        "--replicas 2 --config source=greeting,target=/greeting,mode=0440 --secret source=word,target=word",
        "--label team=shop --container-label role=web --env A=1 --hostname web-{{.Task.Slot}} --user 0:0",
        "--workdir /tmp --mount type=tmpfs,dst=/cache --stop-grace-period 7s --stop-signal INT --read-only",
        "--cap-add NET_ADMIN --cap-drop MKNOD --ulimit nofile=512:1024 --host db:10.0.0.7 --dns 10.0.0.8",
        "--dns-search example.com --health-cmd true --health-interval 2s --limit-memory 64M --reserve-memory 8M",
        "--restart-condition any --restart-max-attempts 0 --restart-window 5s --log-driver json-file",
        "--log-opt max-size=1m --constraint node.role==manager --placement-pref spread=node.labels.rack",
        "--update-failure-action rollback --update-parallelism 2 --update-order start-first",
        "--update-max-failure-ratio 0.1 --rollback-parallelism 0 --rollback-order start-first",
    ];
    let options: Vec<&str> = options.iter().flat_map(|line| line.split(' ')).collect();
    swarm.create(&options);
    let agent = swarm.agent(swarm.entry());
    let before = rest(&swarm);
    for part in ["Secrets", "Configs", "Ulimits", "CapabilityAdd", "DNSConfig", "Hosts", "Healthcheck"] {
        let there = &before["TaskTemplate"]["ContainerSpec"][part];
        assert!(!there.is_null(), "the engine does not support {part}, so it is not tested: {before:#}");
    }

    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 2);
    assert_eq!(rest(&swarm), before);
    assert_ne!(v1.digest, v2.digest);

    // One rollback by the swarm, one by the agent.
    for (n, action) in [(1, "rollback"), (2, "pause")] {
        // A swarm whose specification changes while it is at work may lose a failure.
        swarm.wait_any_state(&["completed", "rollback_completed", "paused", "rollback_paused"]);
        swarm.change(&["--update-failure-action", action]);
        let before = rest(&swarm);
        swarm.push(&Image::exits(&format!("bad{n}"), 0));
        agent.trigger("web");
        agent.wait_entry(&Kind::ROLLED_BACK, n);
        swarm.assert_runs(&v2, 2);
        assert_eq!(rest(&swarm), before, "{action}");
    }
}

/// After a change during the update, the swarm's previous specification has the new image.
#[test]
fn a_label_changed_during_an_update_is_kept_and_does_not_prevent_the_rollback() {
    for action in ["pause", "rollback"] {
        let (swarm, v1, agent) =
            with_v1(&["--replicas", "2", "--update-failure-action", action, "--update-delay", "2s"]);
        let bad = swarm.push(&Image::exits("bad", 1));
        agent.trigger("web");
        agent.wait_step("converge", 1);
        swarm.change(&["--label-add", "by=somebody"]);
        let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
        assert_eq!(entry.new_digest.as_deref(), Some(&*bad.digest), "{action}");
        assert_eq!(agent.blocked().values().next(), Some(&bad.digest), "{action}");
        swarm.assert_runs(&v1, 2);
        // A rollback by the swarm restores the specification without the label.
        if action == "pause" {
            assert_eq!(swarm.service()["Spec"]["Labels"], json!({ "by": "somebody" }));
        }
    }
}
