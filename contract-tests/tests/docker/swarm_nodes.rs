//! Swarms with several nodes: a worker, a node that is down, a drained node.

use contract_tests::{Agent, Image, Swarm, wait_for};
use evenkeel_common::wire::Kind;

#[test]
fn a_worker_is_reported_and_an_update_waits_while_the_quorum_is_lost() {
    let swarm = Swarm::start_for_others();
    swarm.push(&Image::good("v1"));
    let first = swarm.engine().docker(&["info", "--format", "{{.Swarm.NodeID}}"]);
    swarm.create(&["--replicas", "2", "--update-delay", "10s", "--constraint", &format!("node.id=={first}")]);
    let mut other = swarm.join();

    // A worker can't manage services. After its promotion it can.
    let folder = tempfile::Builder::new().prefix("ektest-swarm-node-").tempdir().unwrap();
    let agent = swarm.agent_on(&other, folder.path());
    let errored = |agent: &Agent| agent.errored().get("web").cloned().unwrap_or_default();
    assert!(errored(&agent).contains("it is a worker"), "{}", errored(&agent));
    swarm.engine().docker(&["node", "promote", &other.id()]);
    wait_for("the node to be a manager", || {
        agent.check("web");
        match errored(&agent) {
            text if text.is_empty() => Ok(()),
            text => Err(text),
        }
    });
    drop(agent);

    // One of two managers is not a quorum.
    let agent = swarm.agent(swarm.entry());
    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_step("converge", 1);
    other.set_running(false);
    wait_for("the lost quorum to be reported", || match errored(&agent) {
        text if text.contains("leader") => Ok(()),
        text => Err(text),
    });
    other.set_running(true);
    agent.wait_entry(&Kind::UPDATED, 1);
    swarm.assert_runs(&v2, 2);
    assert_eq!(agent.blocked().len(), 0);
    assert_eq!(errored(&agent), "");
}

/// A swarm counts a task that it stops itself within the monitoring period as failed.
#[test]
fn a_node_drained_during_an_update_blocks_nothing() {
    for action in ["pause", "rollback"] {
        let swarm = Swarm::start_for_others();
        let v1 = swarm.push(&Image::good("v1"));
        let other = swarm.join();
        let watched =
            ["--update-monitor", "30s", "--update-parallelism", "2", "--update-failure-action", action];
        swarm.create(&[&["--replicas", "2"], &watched[..]].concat());
        wait_for("both tasks to run", || match swarm.running().len() {
            2 => Ok(()),
            number => Err(number.to_string()),
        });
        let agent = swarm.agent(swarm.entry());
        let v2 = swarm.push(&Image::good("v2"));
        agent.trigger("web");
        agent.wait_step("converge", 1);
        let id = other.id();
        wait_for("the new image to run on the other node", || {
            let tasks = swarm.engine().get("/tasks");
            let is_there = |task: &serde_json::Value| {
                let image = task["Spec"]["ContainerSpec"]["Image"].as_str().unwrap_or_default();
                task["NodeID"] == id.as_str()
                    && task["Status"]["State"] == "running"
                    && image.ends_with(&v2.digest)
            };
            if tasks.as_array().is_some_and(|tasks| tasks.iter().any(is_there)) {
                Ok(())
            } else {
                Err(format!("{tasks:#?}"))
            }
        });
        swarm.engine().docker(&["node", "update", "--availability", "drain", &id]);
        agent.wait_done(1);
        let errored = agent.errored().get("web").cloned().unwrap_or_default();
        assert!(errored.contains("was rolled back, but is not blocked"), "{action}: {errored}");
        assert_eq!(agent.blocked().len(), 0, "{action}");
        swarm.assert_runs(&v1, 2);
        // A manual trigger deploys it again.
        agent.trigger("web");
        agent.wait_entry(&Kind::UPDATED, 1);
        swarm.assert_runs(&v2, 2);
    }
}
