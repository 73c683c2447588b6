//! Verdicts on services in every state.

use super::*;
use crate::model::swarm::{Restarts, SwarmMode, UpdateStatus};

const OLD: &str =
    "localhost:5000/web:1@sha256:1111111111111111111111111111111111111111111111111111111111111111";
const NEW: &str =
    "localhost:5000/web:1@sha256:2222222222222222222222222222222222222222222222222222222222222222";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn task(id: &str, image: &str, state: TaskState) -> Task {
    Task {
        id: id.into(),
        name: "web.1".into(),
        node: "n1".into(),
        image: image.into(),
        should_run: matches!(state, TaskState::Pending | TaskState::Preparing | TaskState::Running),
        state,
        since: None,
        error: String::new(),
        exit_code: None,
        local_container: None,
    }
}

fn service(state: Option<UpdateState>, tasks: Vec<Task>) -> SwarmService {
    let update = state.map(|state| UpdateStatus { state, message: "update paused".into() });
    SwarmService {
        id: "s".into(),
        name: "web".into(),
        version: 1,
        image: NEW.into(),
        previous_image: Some(OLD.into()),
        force_update: 0,
        mode: SwarmMode::Replicated(2),
        update,
        tasks,
        nodes_down: BTreeSet::new(),
        nodes_paused: BTreeSet::new(),
        restarts: Restarts::All,
        is_constrained: false,
    }
}

/// Looks at the services one second apart, with a grace of 2 s. Returns the last verdict.
fn look(services: &[SwarmService]) -> Verdict {
    let known = BTreeSet::from(["before".to_owned()]);
    let goal = Goal { image: NEW, known: &known, grace: Duration::from_secs(2) };
    let mut watch = Watch::default();
    let verdicts = services.iter().zip(0..).map(|(service, second)| watch.look(service, goal, at(second)));
    verdicts.last().unwrap()
}

fn both(state: Option<UpdateState>) -> SwarmService {
    service(state, vec![task("a", NEW, TaskState::Running), task("b", NEW, TaskState::Running)])
}

fn failed_for(verdict: Verdict) -> Failed {
    match verdict {
        Verdict::Failed(failed) => *failed,
        other => panic!("expected a failure, got {other:?}"),
    }
}

#[test]
fn passes_only_after_all_tasks_have_run_for_the_grace_after_completion() {
    let done = || both(Some(UpdateState::Completed));
    assert_eq!(look(&[done(), done()]), Verdict::Wait { trouble: None });
    assert_eq!(look(&[done(), done(), done()]), Verdict::Passed);
    let at_work = both(Some(UpdateState::Updating));
    assert_eq!(look(&[at_work, done(), done()]), Verdict::Wait { trouble: None });
    // Tasks from before do not count, nor do too few, nor any on the old image.
    let replaced = |id, image| {
        service(
            Some(UpdateState::Completed),
            vec![task("a", NEW, TaskState::Running), task(id, image, TaskState::Running)],
        )
    };
    for odd in [replaced("before", NEW), replaced("b", OLD)] {
        assert_eq!(look(&[odd.clone(), odd.clone(), odd.clone(), odd]), Verdict::Wait { trouble: None });
    }
}

#[test]
fn completed_is_not_trusted_while_tasks_keep_failing() {
    let crashing = |ids: &[&str]| {
        let tasks = ids.iter().map(|id| task(id, NEW, TaskState::Failed)).collect();
        service(Some(UpdateState::Completed), tasks)
    };
    assert_eq!(look(&[crashing(&["a"]), crashing(&["a"])]), Verdict::Wait { trouble: None });
    let failed = failed_for(look(&[crashing(&["a"]), crashing(&["a", "b"])]));
    assert_eq!((failed.task.as_str(), failed.by_node), ("b", false));
}

/// The swarm says that it is updating for ever, and restarts tasks that fail.
#[test]
fn an_update_with_nothing_left_to_replace_is_not_followed_for_ever() {
    let goal = Goal { image: NEW, known: &BTreeSet::new(), grace: Duration::from_secs(2) };
    let crashing = |other: &str| {
        let tasks = vec![
            task("b", other, TaskState::Running),
            task("first", NEW, TaskState::Failed),
            task("second", NEW, TaskState::Failed),
            task("third", NEW, TaskState::Preparing),
        ];
        service(Some(UpdateState::Updating), tasks)
    };
    let mut watch = Watch::default();
    // As long as a task is left, the delay between two of them decides.
    for second in (0..4000).step_by(100) {
        let verdict = watch.look(&crashing(OLD), goal, at(second));
        assert!(matches!(verdict, Verdict::Wait { .. }), "{second}: {verdict:?}");
    }
    for second in (4000..4300).step_by(100) {
        let verdict = watch.look(&crashing(NEW), goal, at(second));
        assert!(matches!(verdict, Verdict::Wait { .. }), "{second}: {verdict:?}");
    }
    // A task that runs again may be what the swarm watches.
    let mut runs = crashing(NEW);
    runs.tasks.retain(|task| task.state != TaskState::Preparing);
    assert_eq!(watch.look(&runs, goal, at(4300)), Verdict::Wait { trouble: None });
    assert!(!failed_for(watch.look(&crashing(NEW), goal, at(4301))).by_node);
}

#[test]
fn a_paused_update_has_failed_and_a_node_that_cannot_pull_the_image_is_to_blame() {
    let mut rejected = task("a", NEW, TaskState::Rejected);
    rejected.error = "No such image: web".into();
    let paused = |tasks| service(Some(UpdateState::Paused), tasks);
    assert!(failed_for(look(&[paused(vec![rejected.clone()])])).by_node);
    // A task that failed by itself takes precedence.
    let failed = failed_for(look(&[paused(vec![task("b", NEW, TaskState::Failed), rejected])]));
    assert_eq!((failed.task.as_str(), failed.by_node), ("b", false));
    let failed = failed_for(look(&[paused(Vec::new())]));
    assert_eq!(
        (&failed.failure.reason, failed.by_node),
        (&Reason::Swarm { swarm_message: "update paused".into() }, false)
    );
}

#[test]
fn tasks_without_a_suitable_node_do_not_fail_the_update() {
    let mut pending = task("a", NEW, TaskState::Pending);
    pending.error = "no suitable node (1 node not available for new tasks)".into();
    let trouble = "web.1 waits for a node: no suitable node (1 node not available for new tasks)";
    let waits = service(Some(UpdateState::Updating), vec![pending]);
    assert_eq!(look(&[waits]), Verdict::Wait { trouble: Some(trouble.to_owned()) });
}

/// Its node does not answer, or its image takes for ever to pull.
#[test]
fn a_task_that_stays_in_one_state_is_told_of_in_words_that_do_not_change() {
    let with = |update, state| {
        service(Some(update), vec![task("a", NEW, TaskState::Running), task("b", NEW, state)])
    };
    let (preparing, pending) = (TaskState::Preparing, TaskState::Pending);
    let (updating, completed) = (UpdateState::Updating, UpdateState::Completed);
    let told =
        |state: &str| Some(format!("web.1 is {state} on node n1, and has not changed for more than 5 min"));
    let goal = Goal { image: NEW, known: &BTreeSet::new(), grace: Duration::from_secs(2) };
    let mut watch = Watch::default();
    for (seen, second, trouble) in [
        (with(updating, preparing), 0, None),
        (with(updating, preparing), 299, None),
        (with(updating, preparing), 300, told("preparing")),
        (with(updating, preparing), 3000, told("preparing")),
        // It gets on.
        (with(updating, pending), 3001, None),
        (with(updating, pending), 3301, told("pending")),
        // The swarm waits between two tasks.
        (with(updating, TaskState::Running), 3302, None),
        (with(updating, TaskState::Running), 9000, None),
        // One is replaced after completion.
        (with(completed, preparing), 9001, None),
        (with(completed, preparing), 9301, told("preparing")),
    ] {
        assert_eq!(watch.look(&seen, goal, at(second)), Verdict::Wait { trouble }, "{second}");
    }
    // A longer grace gives more time.
    let goal = Goal { grace: Duration::from_secs(200), ..goal };
    let mut watch = Watch::default();
    let hangs = with(updating, preparing);
    watch.look(&hangs, goal, at(0));
    assert_eq!(watch.look(&hangs, goal, at(599)), Verdict::Wait { trouble: None });
    assert_ne!(watch.look(&hangs, goal, at(600)), Verdict::Wait { trouble: None });
}

/// The swarm leaves the tasks of a global service on a paused node as they are.
#[test]
fn a_task_that_the_swarm_does_not_replace_is_told_of_once_the_update_is_over() {
    let with = |update, paused: &[&str]| SwarmService {
        mode: SwarmMode::Global,
        nodes_paused: paused.iter().map(|node| (*node).to_owned()).collect(),
        ..service(update, vec![task("a", NEW, TaskState::Running), task("old", OLD, TaskState::Running)])
    };
    let told =
        |why: &str| Some(format!("the swarm has not replaced web.1 on node n1 for more than 5 min: {why}"));
    let is_paused =
        "that node is paused; to let the swarm go on, run `docker node update --availability active n1`";
    let unknown = "`docker service ps web` and `docker node ls` may show why";
    let goal = Goal { image: NEW, known: &BTreeSet::new(), grace: Duration::from_secs(2) };
    let (updating, completed) = (Some(UpdateState::Updating), Some(UpdateState::Completed));
    let table: [(Option<UpdateState>, &[&str], Option<String>); 4] = [
        (completed, &["n1"], told(is_paused)),
        (None, &["n1"], told(is_paused)),
        (completed, &["n2"], told(unknown)),
        // It waits between two tasks.
        (updating, &["n1"], None),
    ];
    for (update, paused, trouble) in table {
        let mut watch = Watch::default();
        let seen = with(update, paused);
        for second in [0, 299] {
            assert_eq!(watch.look(&seen, goal, at(second)), Verdict::Wait { trouble: None }, "{update:?}");
        }
        assert_eq!(watch.look(&seen, goal, at(300)), Verdict::Wait { trouble }, "{update:?} {paused:?}");
    }
}

/// Its containers exit with its engine, and the swarm counts them as failed.
#[test]
fn failures_on_a_node_that_was_down_do_not_blame_the_image() {
    let failed = task("a", NEW, TaskState::Failed);
    let at_work = SwarmService {
        nodes_down: BTreeSet::from(["n1".to_owned()]),
        ..service(Some(UpdateState::Updating), Vec::new())
    };
    let paused = |tasks| service(Some(UpdateState::Paused), tasks);
    assert!(failed_for(look(&[at_work.clone(), paused(vec![failed.clone()])])).by_node);
    assert!(!failed_for(look(&[paused(vec![failed.clone()])])).by_node);
    let elsewhere = Task { node: "n2".into(), ..task("b", NEW, TaskState::Failed) };
    let found = failed_for(look(&[at_work.clone(), paused(vec![failed.clone(), elsewhere])]));
    assert_eq!((found.task.as_str(), found.by_node), ("b", false));
    // After completion such a task is replaced like any other.
    let done = |tasks| service(Some(UpdateState::Completed), tasks);
    let after = [at_work, done(Vec::new()), done(vec![failed])];
    assert_eq!(look(&after), Verdict::Wait { trouble: None });
    // The same for the agent's own engine.
    let local = Task { local_container: Some("c".into()), ..task("a", NEW, TaskState::Failed) };
    let goal = Goal { image: NEW, known: &BTreeSet::new(), grace: Duration::ZERO };
    let mut watch = Watch { engine_away: true, ..Watch::default() };
    assert!(failed_for(watch.look(&paused(vec![local]), goal, at(0))).by_node);
}

/// The swarm's updater also counts tasks that the swarm itself stopped while monitoring them.
#[test]
fn a_task_that_the_swarm_stopped_itself_does_not_blame_the_image() {
    let paused = |tasks| {
        let mut paused = service(Some(UpdateState::Paused), tasks);
        let message = "update paused due to failure or early termination of task drained";
        paused.update.as_mut().unwrap().message = message.to_owned();
        paused
    };
    let stopped = |id: &str| Task { since: Some(at(1)), ..task(id, NEW, TaskState::Shutdown) };
    let failed = failed_for(look(&[paused(vec![stopped("other"), stopped("drained")])]));
    assert_eq!((failed.task.as_str(), failed.by_node), ("drained", true));
    assert_eq!(
        failed.failure.reason,
        Reason::Task { task: "web.1".into(), node: "n1".into(), fault: TaskFault::Stopped }
    );
    // Neither another task, nor one that ended with an error, nor one on another image.
    let with_error = Task { error: "task: non-zero exit (1)".into(), ..stopped("drained") };
    let old = Task { image: OLD.into(), ..stopped("drained") };
    for tasks in [vec![stopped("other")], vec![with_error], vec![old]] {
        assert!(!failed_for(look(&[paused(tasks.clone())])).by_node, "{tasks:?}");
    }
    // A task that failed by itself takes precedence.
    let failed = failed_for(look(&[paused(vec![stopped("drained"), task("b", NEW, TaskState::Failed)])]));
    assert_eq!((failed.task.as_str(), failed.by_node), ("b", false));
}

#[test]
fn a_rejected_task_that_the_swarm_has_dropped_is_remembered() {
    let at_work = service(Some(UpdateState::Updating), vec![task("gone", NEW, TaskState::Rejected)]);
    let mut paused = service(Some(UpdateState::Paused), Vec::new());
    paused.update.as_mut().unwrap().message = "update paused due to failure of task gone".to_owned();
    assert!(failed_for(look(&[at_work, paused.clone()])).by_node);
    let at_work = service(Some(UpdateState::Updating), vec![task("gone", NEW, TaskState::Failed)]);
    assert!(!failed_for(look(&[at_work, paused])).by_node);
}

#[test]
fn an_image_without_a_command_is_to_blame_itself() {
    for (error, by_node) in [("No command specified", false), ("invalid mount config", true)] {
        let rejected = Task { error: error.into(), ..task("a", NEW, TaskState::Rejected) };
        let paused = service(Some(UpdateState::Paused), vec![rejected]);
        assert_eq!(failed_for(look(&[paused])).by_node, by_node, "{error}");
    }
}

/// A task whose container could not be started has failed, whatever the reason.
#[test]
fn a_node_that_cannot_give_a_container_what_it_needs_is_to_blame_itself() {
    for (error, by_node) in [
        (
            "starting container failed: driver failed programming external connectivity on endpoint web.1: Bind for \
             0.0.0.0:80 failed: port is already allocated",
            true,
        ),
        ("starting container failed: Address already in use", true),
        (
            "starting container failed: error while mounting volume '/data': failed to mount local volume",
            true,
        ),
        ("starting container failed: OCI runtime create failed: exec: \"/run\": permission denied", false),
        ("starting container failed: OCI runtime create failed: exec: \"no space left on device\"", false),
        ("task: non-zero exit (1)", false),
    ] {
        let failed = Task { error: error.into(), ..task("a", NEW, TaskState::Failed) };
        let paused = service(Some(UpdateState::Paused), vec![failed]);
        assert_eq!(failed_for(look(&[paused])).by_node, by_node, "{error}");
    }
}

/// Failures that `max-failure-ratio` or `continue` tolerate do not count as new because of a look just before the update.
#[test]
fn failures_that_the_swarm_tolerates_are_not_counted_after_an_early_look() {
    let tasks = || {
        vec![
            task("a", NEW, TaskState::Running),
            task("b", NEW, TaskState::Failed),
            task("c", NEW, TaskState::Running),
        ]
    };
    let none = service(None, vec![task("before", NEW, TaskState::Running)]);
    let at_work = service(Some(UpdateState::Updating), tasks());
    let done = || service(Some(UpdateState::Completed), tasks());
    assert_eq!(look(&[none.clone(), at_work, done(), done(), done()]), Verdict::Passed);
    // There was no look while it was updating.
    assert_eq!(look(&[none, done(), done(), done()]), Verdict::Passed);
    // Completed before, and updating again because something else was changed.
    let again = service(Some(UpdateState::Updating), tasks());
    assert_eq!(look(&[both(None), again, done(), done(), done()]), Verdict::Passed);
}

/// Looks at the first service at second 0 and at the others at `second`.
fn look_late(watch: &mut Watch, services: &[SwarmService], second: i64) -> Verdict {
    let goal = Goal { image: NEW, known: &BTreeSet::new(), grace: Duration::from_secs(2) };
    let mut verdict = watch.look(&services[0], goal, at(0));
    for service in &services[1..] {
        verdict = watch.look(service, goal, at(second));
    }
    verdict
}

fn done(tasks: Vec<Task>) -> SwarmService {
    service(Some(UpdateState::Completed), tasks)
}

#[test]
fn an_update_that_does_not_converge_after_an_outage_is_given_up_but_not_blocked() {
    let local = |id: &str, state| Task { local_container: Some(id.into()), ..task(id, NEW, state) };
    let crashing = [
        done(Vec::new()),
        done(vec![
            local("a", TaskState::Failed),
            local("b", TaskState::Failed),
            local("c", TaskState::Preparing),
        ]),
    ];
    let away = || Watch { engine_away: true, ..Watch::default() };
    assert_eq!(look_late(&mut away(), &crashing, 299), Verdict::Wait { trouble: None });
    let failed = failed_for(look_late(&mut away(), &crashing, 300));
    assert!(failed.by_node && ["a", "b"].contains(&failed.task.as_str()), "{failed:?}");
    // A task that failed with its node, and whose replacement takes a long time to pull.
    let fetched = done(vec![local("a", TaskState::Failed), local("c", TaskState::Preparing)]);
    let waits = look_late(&mut away(), &[done(Vec::new()), fetched], 3000);
    assert_eq!(waits, Verdict::Wait { trouble: None });
    // A longer grace gives more time.
    let goal = Goal { image: NEW, known: &BTreeSet::new(), grace: Duration::from_secs(200) };
    let mut watch = away();
    watch.look(&crashing[0], goal, at(0));
    assert_eq!(watch.look(&crashing[1], goal, at(599)), Verdict::Wait { trouble: None });
    assert!(matches!(watch.look(&crashing[1], goal, at(600)), Verdict::Failed(_)));
}

/// `failure_action: continue`, and a restart policy that gives up.
#[test]
fn a_service_whose_tasks_are_no_longer_restarted_is_given_up_and_blocked() {
    let dead = done(vec![task("a", NEW, TaskState::Failed), task("b", NEW, TaskState::Running)]);
    let both = [dead.clone(), dead];
    assert_eq!(look_late(&mut Watch::default(), &both, 299), Verdict::Wait { trouble: None });
    let failed = failed_for(look_late(&mut Watch::default(), &both, 300));
    assert_eq!((failed.task.as_str(), failed.by_node), ("a", false));
    // A node that went down in the meantime restarts the wait.
    let mut down = both[0].clone();
    down.nodes_down.insert("n2".into());
    let mut watch = Watch::default();
    assert_eq!(look_late(&mut watch, &[both[0].clone(), down], 300), Verdict::Wait { trouble: None });
    assert_eq!(watch.done_since, Some(at(300)));
}

#[test]
fn tasks_that_start_late_get_their_grace() {
    let running = done(vec![
        Task { local_container: Some("a".into()), ..task("a", NEW, TaskState::Failed) },
        Task { local_container: Some("b".into()), ..task("b", NEW, TaskState::Failed) },
        task("c", NEW, TaskState::Running),
        task("d", NEW, TaskState::Running),
    ]);
    let mut watch = Watch { engine_away: true, ..Watch::default() };
    let late = look_late(&mut watch, &[done(Vec::new()), running], 400);
    assert_eq!(late, Verdict::Wait { trouble: None });
}

#[test]
fn a_watch_of_an_older_version_is_read() {
    let row = r#"{"steady_since": null, "steady": [], "excused": null}"#;
    assert_eq!(serde_json::from_str::<Watch>(row).unwrap(), Watch::default());
}

#[test]
fn an_image_is_the_same_in_both_spellings_of_docker_hub() {
    let digest = "sha256:2222222222222222222222222222222222222222222222222222222222222222";
    let (short, long) = (format!("nginx:1@{digest}"), format!("docker.io/library/nginx:1@{digest}"));
    let tasks = vec![task("a", &short, TaskState::Running), task("b", &long, TaskState::Running)];
    let running = SwarmService { image: short, ..done(tasks) };
    let goal = Goal { image: &long, known: &BTreeSet::new(), grace: Duration::ZERO };
    assert_eq!(Watch::default().look(&running, goal, at(0)), Verdict::Passed);
}

/// The service is scaled to 0 in the middle of an update.
#[test]
fn without_tasks_an_update_neither_passes_nor_fails() {
    let service = service(Some(UpdateState::Completed), Vec::new());
    let none = SwarmService { mode: SwarmMode::Replicated(0), ..service };
    let trouble = Some("it has no tasks (scaled to 0, or no node is suitable)".to_owned());
    assert_eq!(look(&[none.clone(), none.clone(), none.clone(), none]), Verdict::Wait { trouble });
}

#[test]
fn another_image_is_foreign() {
    let other = SwarmService { image: OLD.into(), ..both(Some(UpdateState::Completed)) };
    assert_eq!(look(&[other]), Verdict::Foreign);
}
