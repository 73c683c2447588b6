//! Kills during an update of a swarm service: of the agent in each state of `UpdateStatus`, and of the leader.

use contract_tests::{Agent, Image, Node, Pushed, Swarm, wait_for};
use evenkeel_common::wire::Kind;

/// A state of `UpdateStatus` in which the agent is killed.
struct Case {
    state: &'static str,
    /// Options that are set before the update.
    options: &'static [&'static str],
    is_good: bool,
}

const CASES: [Case; 6] = [
    Case { state: "updating", options: &["--update-delay", "4s"], is_good: true },
    Case { state: "completed", options: &["--update-delay", "0s"], is_good: true },
    Case { state: "paused", options: &["--update-failure-action", "pause"], is_good: false },
    Case {
        state: "rollback_started",
        options: &[
            "--update-failure-action",
            "rollback",
            "--update-parallelism",
            "2",
            "--rollback-parallelism",
            "1",
            "--rollback-delay",
            "6s",
        ],
        is_good: false,
    },
    Case { state: "rollback_completed", options: &["--rollback-delay", "0s"], is_good: false },
    // The new image fails when the file that the old image needs is removed, so that the rollback fails, too.
    Case {
        state: "rollback_paused",
        options: &[
            "--rollback-failure-action",
            "pause",
            "--rollback-monitor",
            "30s",
            "--update-monitor",
            "60s",
        ],
        is_good: false,
    },
];

fn script(version: &str, script: &str) -> Image {
    Image { command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), ..Image::good(version) }
}

/// Runs if a file exists at its start.
fn needs_file(version: &str) -> Image {
    script(version, "test -e /flag/ok || exit 3; trap 'exit 0' TERM INT; sleep 86400 & wait")
}

/// The first task fails as soon as that file is removed. The other one keeps running: the swarm may recreate a failed task
/// from the old image before the rollback reaches it, and such a task does not count for the rollback.
fn fails_without(version: &str) -> Image {
    let text =
        "trap 'exit 0' TERM INT; while test -e /flag/ok || test $SLOT != 1; do sleep 0.2; done; exit 1";
    script(version, text)
}

#[test]
fn an_agent_that_is_killed_in_each_state_of_the_update_ends_in_the_proven_new_or_the_old_state() {
    let swarm = Swarm::start();
    let flag = swarm.folder().join("flag");
    std::fs::create_dir(&flag).unwrap();
    let (needed, mount) = (flag.join("ok"), format!("type=bind,src={},dst=/flag", flag.display()));
    std::fs::write(&needed, "").unwrap();
    let mut runs = swarm.push(&needs_file("v1"));
    swarm.create(&["--replicas", "2", "--mount", &mount, "--env", "SLOT={{.Task.Slot}}"]);
    let mut agent = swarm.agent(swarm.entry());
    let (mut updated, mut rolled_back) = (0, 0);
    for (n, case) in CASES.iter().enumerate() {
        let state = case.state;
        swarm.change(case.options);
        let version = format!("{state}-{n}");
        let image = match state {
            _ if case.is_good => needs_file(&version),
            "rollback_paused" => fails_without(&version),
            _ => Image::exits(&version, 1),
        };
        let pushed = swarm.push(&image);
        agent.trigger("web");
        agent.wait_step("converge", n + 1);
        // Suspend the agent, so that it sees the state only after its restart.
        agent.freeze(true);
        if state == "rollback_paused" {
            wait_for("both tasks to run the new image", || {
                let running = swarm.running();
                let is_new = running.iter().all(|image| image.ends_with(&pushed.digest));
                if is_new && running.len() == 2 { Ok(()) } else { Err(format!("{running:#?}")) }
            });
            std::fs::remove_file(&needed).unwrap();
        }
        match state {
            // If the swarm has already recreated all failed tasks from the old image, the rollback completes immediately.
            "rollback_started" => swarm.wait_any_state(&[state, "rollback_completed"]),
            _ => swarm.wait_state(state),
        }
        agent.kill9(false);
        std::fs::write(&needed, "").unwrap();
        agent.restart();
        if case.is_good {
            updated += 1;
            let entry = agent.wait_entry(&Kind::UPDATED, updated);
            assert_eq!(entry.new_digest.as_deref(), Some(&*pushed.digest), "{state}");
            runs = pushed;
        } else {
            rolled_back += 1;
            let entry = agent.wait_entry(&Kind::ROLLED_BACK, rolled_back);
            assert_eq!(entry.new_digest.as_deref(), Some(&*pushed.digest), "{state}");
            assert_eq!(agent.blocked().values().next(), Some(&pushed.digest), "{state}");
        }
        agent.wait_entry(&Kind::RESUMED, n + 1);
        agent.wait_done(n + 1);
        swarm.assert_runs(&runs, 2);
    }
}

/// Returns the index of the leader among these nodes, if it is one of them.
fn leader(of: &[Node]) -> Option<usize> {
    of.iter().position(|node| {
        let seen = node.engine().cli(&["node", "ls", "--format", "{{.Self}} {{.ManagerStatus}}"]).output();
        let seen = seen.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        seen.unwrap_or_default().lines().any(|line| line == "true Leader")
    })
}

#[track_caller]
fn wait_leader(of: &[Node]) -> usize {
    wait_for("another manager to lead", || leader(of).ok_or_else(|| "no leader".to_owned()))
}

#[track_caller]
fn assert_updated(swarm: &Swarm, agent: &Agent, nth: usize, pushed: &Pushed) {
    let entry = agent.wait_entry(&Kind::UPDATED, nth);
    assert_eq!(entry.new_digest.as_deref(), Some(&*pushed.digest));
    agent.wait_done(nth);
    swarm.assert_runs(pushed, 2);
    assert_eq!((agent.blocked().len(), agent.errored().len()), (0, 0));
    assert_eq!(agent.entries(&Kind::ROLLED_BACK), []);
}

#[test]
fn an_update_goes_on_when_the_leader_dies_in_the_middle_of_it() {
    let mut swarm = Swarm::start_for_others();
    swarm.push(&Image::good("v1"));
    let mut others = [swarm.join_as_manager(), swarm.join_as_manager()];
    let first = swarm.engine().docker(&["info", "--format", "{{.Swarm.NodeID}}"]);
    let (away, here) = (format!("node.id!={first}"), format!("node.id=={first}"));
    swarm.create(&["--replicas", "2", "--update-delay", "5s", "--constraint", &away]);
    wait_for("two tasks to run", || match swarm.running().len() {
        2 => Ok(()),
        other => Err(format!("{other} {:#?}", swarm.engine().get("/tasks"))),
    });
    let agent = swarm.agent(swarm.entry());

    // The agent's engine is the leader and is killed.
    let v2 = swarm.push(&Image::good("v2"));
    agent.trigger("web");
    agent.wait_step("converge", 1);
    swarm.set_running(false);
    wait_leader(&others);
    swarm.set_running(true);
    assert_updated(&swarm, &agent, 1, &v2);

    // Another manager, which runs none of the tasks, is the leader and is killed.
    swarm.change(&["--constraint-rm", &away, "--constraint-add", &here, "--update-delay", "0s"]);
    wait_for("the tasks to be on the agent's node", || {
        let tasks = swarm.engine().get("/tasks");
        let runs = |task: &&serde_json::Value| {
            task["Status"]["State"] == "running" && task["NodeID"] == first.as_str()
        };
        match tasks.as_array().map(|tasks| tasks.iter().filter(runs).count()) {
            Some(2) if swarm.service()["UpdateStatus"]["State"] == "completed" => Ok(()),
            _ => Err(format!("{tasks:#?}")),
        }
    });
    swarm.change(&["--update-delay", "5s"]);
    let v3 = swarm.push(&Image::good("v3"));
    agent.trigger("web");
    agent.wait_step("converge", 2);
    let leads = wait_leader(&others);
    others[leads].set_running(false);
    assert_updated(&swarm, &agent, 2, &v3);
    assert_ne!(leader(&others), Some(leads), "the killed leader does not lead");
}
