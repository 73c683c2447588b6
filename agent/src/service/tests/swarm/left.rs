//! Scenarios of a swarm service that was rolled back.

use super::*;

/// A service on 1 that was on 2 before.
fn left(state: UpdateState, previous: Option<char>, failed: &[char]) -> SwarmService {
    let update = Some(UpdateStatus { state, message: "as it is told".into() });
    let mut swarm = SwarmService { update, previous_image: previous.map(image), ..service(&image('1')) };
    swarm.tasks.extend(failed.iter().map(|n| task("failed", &image(*n), TaskState::Failed)));
    swarm
}

#[test]
fn a_rollback_of_an_update_that_no_check_has_seen_is_kept_and_told_once() {
    for swarm in [
        left(UpdateState::RollbackCompleted, Some('2'), &[]),
        left(UpdateState::RollbackStarted, Some('2'), &[]),
        left(UpdateState::RollbackCompleted, None, &['2']),
    ] {
        let mut scenario = Scenario::of(in_swarm());
        for second in [0, 20] {
            assert_eq!(scenario.at(second).check(seen('2', '1', swarm.clone())).step(), None, "{swarm:?}");
            let declined: Vec<_> = scenario.service.durable.images.declined().collect();
            assert_eq!(declined, [(IMAGE, &digest('2'))], "{swarm:?}");
        }
        assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE], "{swarm:?}");
        assert_eq!(scenario.record().waiting.expect("it waits").clear, "POST /trigger/web");
        // A person takes it back, and it is not declined once more.
        scenario.service.handle_request(ServiceRequest::Unblock, scenario.now);
        let over = left(UpdateState::RollbackCompleted, Some('2'), &[]);
        assert!(scenario.at(40).check(seen('2', '1', over)).step().is_some(), "{swarm:?}");
    }
}

/// The agent has gone from 2 to 1, for example, because the registry had 1 then.
#[test]
fn an_update_that_was_not_rolled_back_declines_no_digest() {
    for swarm in [
        left(UpdateState::Completed, Some('2'), &[]),
        left(UpdateState::Completed, Some('1'), &[]),
        left(UpdateState::RollbackCompleted, Some('1'), &[]),
        left(UpdateState::RollbackCompleted, Some('3'), &['2']),
        left(UpdateState::RollbackCompleted, None, &['1', '3']),
    ] {
        let mut scenario = Scenario::of(in_swarm());
        assert!(scenario.check(seen('2', '1', swarm.clone())).step().is_some(), "{swarm:?}");
    }
}

/// The service after the agent has rolled it back.
fn back() -> SwarmService {
    left(UpdateState::RollbackCompleted, Some('2'), &['2'])
}

/// The agent has updated the service from 1 to 2, which failed, and has gone back.
fn gone_back() -> Scenario {
    let mut scenario = Scenario::of(in_swarm());
    assert!(scenario.check(seen('2', '1', service(&image('1')))).step().is_some());
    scenario.fails_in_swarm('2');
    assert!(matches!(scenario.step(), Some(SwarmStep::Set(SetImage { back: true, .. }))));
    scenario.input(stepped(SwarmResult::Set));
    scenario.observes(Ok(back()));
    scenario.at(40).observes(Ok(back()));
    assert!(scenario.service.durable.deployment.is_none(), "it is over");
    scenario
}

/// A swarm keeps the tasks of weeks.
#[test]
fn tasks_that_failed_before_the_update_say_nothing_about_its_rollback() {
    let before = || ["x", "y"].map(|id| task(id, &image('1'), TaskState::Failed));
    let swarm = |mode, state, tasks: &[Task]| SwarmService {
        mode,
        update: Some(UpdateStatus { state, message: String::new() }),
        tasks: tasks.iter().cloned().chain(before()).collect(),
        nodes_paused: std::collections::BTreeSet::from(["n2".to_owned()]),
        ..service(&image('1'))
    };
    let new = |state| Task { should_run: true, ..task("z", &image('1'), state) };
    // The swarm leaves it as it is.
    let left = Task {
        name: "shop_web.n2".into(),
        node: "n2".into(),
        ..task("left", &image('2'), TaskState::Running)
    };
    let (one, all) = (SwarmMode::Replicated(1), SwarmMode::Global);
    let (started, completed) = (UpdateState::RollbackStarted, UpdateState::RollbackCompleted);
    for slow in [
        swarm(one, started, &[new(TaskState::Preparing)]),
        swarm(all, completed, &[new(TaskState::Running), left]),
    ] {
        let mut scenario = Scenario::of(in_swarm());
        let mut earlier = service(&image('1'));
        earlier.tasks.extend(before());
        assert!(scenario.check(seen('2', '1', earlier)).step().is_some());
        scenario.fails_in_swarm('2');
        assert!(matches!(scenario.step(), Some(SwarmStep::Set(SetImage { back: true, .. }))));
        scenario.input(stepped(SwarmResult::Set));
        for second in [10, 310, 610] {
            scenario.at(second).observes(Ok(slow.clone()));
            assert!(scenario.service.durable.deployment.is_some(), "{second}: {:?}", scenario.entries);
        }
        assert!(scenario.record().errored.is_some(), "it is told what the swarm waits for");
        for second in [620, 640] {
            scenario.at(second).observes(Ok(swarm(slow.mode, completed, &[new(TaskState::Running)])));
        }
        let told = scenario.kinds();
        assert!(told.contains(&Kind::ROLLED_BACK) && !told.contains(&Kind::ROLLBACK_FAILED), "{told:?}");
    }
}

#[test]
fn the_rollback_of_an_update_by_the_agent_is_not_a_persons() {
    for is_unblocked_first in [true, false] {
        let mut scenario = gone_back();
        if !is_unblocked_first {
            assert_eq!(scenario.at(50).check(seen('2', '1', back())).step(), None);
            assert_eq!(scenario.status(), StatusValue::Blocked);
        }
        scenario.service.handle_request(ServiceRequest::Unblock, scenario.now);
        assert!(scenario.at(60).check(seen('2', '1', back())).step().is_some(), "{is_unblocked_first}");
    }
}

#[test]
fn a_digest_that_the_agent_has_rolled_back_is_not_a_persons_when_the_registry_has_it_again() {
    let mut scenario = gone_back();
    assert_eq!(scenario.at(50).check(seen('1', '1', back())).step(), None);
    assert_eq!(scenario.service.durable.images.blocked().next(), None, "the tag has moved");
    scenario.entries.clear();
    for second in [60, 70] {
        assert_eq!(scenario.at(second).check(seen('2', '1', back())).step(), None);
        assert_eq!(scenario.service.durable.images.declined().next(), None);
        assert_eq!(scenario.status(), StatusValue::Blocked);
    }
    let told: Vec<&str> = scenario.entries.iter().map(|entry| entry.message.as_str()).collect();
    assert!(matches!(told.as_slice(), [once] if once.contains("has failed here before")), "{told:?}");
}

#[test]
fn a_rollback_by_a_person_is_kept_although_its_image_was_not_configured_for_a_while() {
    let swarm = left(UpdateState::RollbackCompleted, Some('2'), &[]);
    let mut scenario = Scenario::of(in_swarm());
    assert_eq!(scenario.check(seen('2', '1', swarm.clone())).step(), None);
    scenario.service.durable.images.of(IMAGE).forget_withheld();
    assert_eq!(scenario.at(20).check(seen('2', '1', swarm)).step(), None);
    let declined: Vec<_> = scenario.service.durable.images.declined().collect();
    assert_eq!(declined, [(IMAGE, &digest('2'))]);
}

#[test]
fn a_rollback_that_the_swarm_has_paused_is_told_as_one_that_only_goes_on() {
    let mut scenario = Scenario::of(in_swarm());
    let paused = left(UpdateState::RollbackPaused, None, &[]);
    assert_eq!(scenario.check(seen('1', '1', paused)).step(), None);
    let told = scenario.record().errored.expect("it is an error");
    assert!(told.contains("has paused a rollback of the swarm service shop_web (as it is told)"), "{told}");
    assert!(told.ends_with("continue with `docker service update --force shop_web`"), "{told}");
}
