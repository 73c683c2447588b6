//! Scenarios of a swarm service whose tasks are meant to end: a job, or one that is run like one.

use super::*;

#[test]
fn a_service_whose_tasks_end_by_themselves_is_never_updated() {
    let of = |tasks: &[(&str, TaskState, i64)], restarts: Restarts| {
        let task = |(id, state, second): &(&str, TaskState, i64)| Task {
            since: Timestamp::from_second(*second).ok(),
            ..task(id, &image('1'), *state)
        };
        let tasks = tasks.iter().map(task).collect();
        SwarmService { tasks, restarts, ..service(&image('1')) }
    };
    let (all, kept, never) = (Restarts::All, Restarts::NotDone, Restarts::Never);
    let (complete, failed) = (("a", TaskState::Complete, 5), ("a", TaskState::Failed, 5));
    let runs = ("b", TaskState::Running, 9);
    // A minute before the start of the scenario.
    let late = ("b", TaskState::Running, 1_767_225_540);
    // An hour and more before the start of the scenario.
    let ended = [("c", TaskState::Complete, 1_767_200_000), ("a", TaskState::Complete, 1_767_210_000)];
    let takes_long = of(&[ended[0], ended[1], ("b", TaskState::Running, 1_767_216_000)], kept);
    let of_other_image = |mut swarm: SwarmService| {
        let ended = swarm.tasks.iter_mut().filter(|task| task.state == TaskState::Complete);
        ended.for_each(|task| task.image = image('3'));
        swarm
    };
    for (swarm, is_updated) in [
        (of(&[complete], kept), false),
        (of(&[complete, ("b", TaskState::Pending, 9)], kept), false),
        // For an hour, or since before the other one ended.
        (of(&[complete, runs], kept), true),
        // Work that takes longer than an hour.
        (takes_long.clone(), false),
        // Two of another image that ended with 0.
        (of_other_image(takes_long), true),
        // Two ends say nothing about one that has been running for far longer than the time between them.
        (of(&[("c", TaskState::Complete, 1), complete, runs], kept), true),
        (of(&[complete, ("b", TaskState::Running, 4)], kept), true),
        (of(&[("c", TaskState::Failed, 1), complete, ("b", TaskState::Shutdown, 9)], kept), false),
        (of(&[("c", TaskState::Complete, 1), failed, runs], kept), true),
        // The last run has failed, and its fix is there.
        (of(&[("c", TaskState::Complete, 1), failed], kept), false),
        (of(&[failed, late], kept), true),
        (of(&[failed], never), false),
        // The first run, and one of several at a time.
        (of(&[("b", TaskState::Preparing, 9)], never), false),
        (of(&[late], never), false),
        (of(&[late, ("a", TaskState::Complete, late.2 + 9)], never), false),
        (of(&[late, ("a", TaskState::Complete, late.2 + 9)], kept), true),
        (of(&[runs], never), true),
        (of(&[complete, runs], never), true),
        (of(&[runs], kept), true),
        (of(&[complete, runs], all), true),
    ] {
        for mode in [SwarmMode::Replicated(1), SwarmMode::Global] {
            let swarm = SwarmService { mode, ..swarm.clone() };
            let what = format!("{swarm:?}");
            let mut scenario = Scenario::of(in_swarm());
            scenario.check(seen('2', '1', swarm));
            assert_eq!(scenario.step().is_some(), is_updated, "{what}");
            let told = scenario.warnings().join(" ");
            assert_eq!(told.contains("its tasks end by themselves"), !is_updated, "{told}");
        }
    }
}

/// Its policy is `any`, but with a delay of a day.
#[test]
fn a_service_that_is_run_at_intervals_is_not_updated_and_says_why() {
    let done = |id: &str| Task {
        since: Timestamp::from_second(5).ok(),
        ..task(id, &image('1'), TaskState::Complete)
    };
    let next = Task { should_run: true, ..task("next", &image('1'), TaskState::Preparing) };
    let swarm =
        SwarmService { restarts: Restarts::NotDone, tasks: vec![done("a"), next], ..service(&image('1')) };
    let mut scenario = Scenario::of(in_swarm());
    assert_eq!(scenario.check(seen('2', '1', swarm)).step(), None);
    let told = scenario.warnings().join(" ");
    assert!(told.contains("are not restarted, or only after a long delay"), "{told}");
}

/// `swarm-cronjob` scales a service up for its run.
#[test]
fn a_service_that_is_scaled_up_for_its_work_is_not_updated_in_the_middle_of_it() {
    let of = |replicas: u64, tasks: Vec<Task>| SwarmService {
        mode: SwarmMode::Replicated(replicas),
        tasks,
        restarts: Restarts::Never,
        ..service(&image('1'))
    };
    let mut scenario = Scenario::of(in_swarm());
    assert_eq!(scenario.check(seen('2', '1', of(0, Vec::new()))).step(), None);
    let run = Task { since: Some(scenario.now), ..task("run", &image('1'), TaskState::Running) };
    scenario.at(5).observes(Ok(of(1, vec![run.clone()])));
    assert!(!scenario.is_being_checked(), "there is nothing to deploy");
    assert_eq!(scenario.at(10).check(seen('2', '1', of(1, vec![run]))).step(), None);
}

/// The swarm takes the end of a task that it monitors for a failure of the update that has begun the run.
#[test]
fn a_job_that_has_done_its_work_is_neither_errored_nor_unhealthy() {
    let message = "update paused due to failure or early termination of task run".to_owned();
    let update = Some(UpdateStatus { state: UpdateState::Paused, message });
    let replicated = SwarmMode::Replicated(1);
    for (mode, restarts, state, is_job) in [
        (replicated, Restarts::NotDone, TaskState::Complete, true),
        (replicated, Restarts::Never, TaskState::Complete, true),
        (SwarmMode::Job, Restarts::All, TaskState::Complete, true),
        (replicated, Restarts::NotDone, TaskState::Failed, false),
        (replicated, Restarts::Never, TaskState::Failed, false),
        (SwarmMode::Job, Restarts::All, TaskState::Failed, false),
        (replicated, Restarts::All, TaskState::Complete, false),
    ] {
        let tasks = vec![task("run", &image('1'), state)];
        let swarm = SwarmService { mode, update: update.clone(), tasks, restarts, ..service(&image('1')) };
        let mut scenario = Scenario::of(in_swarm());
        assert_eq!(scenario.check(seen('1', '1', swarm)).step(), None);
        let record = scenario.record();
        assert_eq!(
            (record.errored.is_none(), record.healthy),
            (is_job, Some(is_job)),
            "{mode:?} {restarts:?}"
        );
        assert_eq!(record.status == StatusValue::Ok, is_job, "{mode:?} {restarts:?}: {:?}", record.status);
        assert_eq!(scenario.kinds().is_empty(), is_job, "{mode:?} {restarts:?}");
    }
}

#[test]
fn a_job_is_well_when_its_tasks_are_forgotten_and_unknown_while_no_node_takes_it() {
    for (tasks, status) in [
        (Vec::new(), StatusValue::Ok),
        (vec![task("run", &image('1'), TaskState::Running)], StatusValue::Ok),
        (vec![task("run", &image('1'), TaskState::Pending)], StatusValue::Unknown),
    ] {
        let swarm = SwarmService { mode: SwarmMode::Job, tasks, ..service(&image('1')) };
        let mut scenario = Scenario::of(in_swarm());
        let what = format!("{:?}", swarm.tasks);
        scenario.check(seen('1', '1', swarm));
        assert_eq!(scenario.record().status, status, "{what}");
    }
}

/// The managers keep a task that was replaced before it found a node, as they keep those that have ended.
#[test]
fn a_task_that_was_replaced_while_it_waited_for_a_node_is_not_the_next_run() {
    for (should_run, status) in [(false, StatusValue::Ok), (true, StatusValue::Unknown)] {
        let waits = Task { should_run, ..task("a", &image('1'), TaskState::Pending) };
        let tasks = vec![waits, task("run", &image('1'), TaskState::Complete)];
        let swarm = SwarmService { restarts: Restarts::NotDone, tasks, ..service(&image('1')) };
        let mut scenario = Scenario::of(in_swarm());
        scenario.check(seen('1', '1', swarm));
        assert_eq!(scenario.record().status, status, "{should_run}");
    }
}
