//! Scenarios of what somebody does to the containers beside an update, and of updates beside others.

use super::*;
use crate::ports::Priority;

#[test]
fn what_somebody_has_done_to_the_containers_since_the_check_ends_an_update_before_compose_runs() {
    let web = on("web", IMAGE, "v1", 1);
    let tied = |round| Container { restarts_with: vec!["web".into()], ..on("side", DB, "db1", round) };
    let side = tied(1);
    let stopped = Container { state: State::Exited, exit_code: 143, ..side.clone() };
    let paused = Container { state: State::Paused, ..side.clone() };
    let crashed = Container { state: State::Exited, exit_code: 1, ..side.clone() };
    for (then, words) in [
        (Some(stopped), Some("was stopped by someone")),
        (Some(paused), Some("was paused by someone")),
        (Some(tied(2)), Some("was removed by someone")),
        (None, Some("was removed by someone")),
        (Some(crashed), None),
    ] {
        let mut scenario = Scenario::of(config());
        scenario.check(observed('2', &[v1()], &[&web, &side]));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        if words.is_some_and(|words| words.contains("stopped")) {
            scenario.event(&side.id, EventKind::Stop);
        }
        let containers: Vec<Container> = [web.clone()].into_iter().chain(then.clone()).collect();
        let step = scenario.takes_step(StepResult::Looked { containers });
        assert!(matches!(step, Step::Start(BringUp { must_look: true, .. })), "{step:?}");
        let next = scenario.act();
        if let Some(words) = words {
            // The tags are as somebody has left them.
            assert!(matches!(next, Some(Action::Step(Step::Unpin { .. }))), "{then:?}: {next:?}");
            assert!(scenario.last().message.contains(words), "{then:?}: {}", scenario.last().message);
        } else {
            let start = matches!(next, Some(Action::Step(Step::Start(BringUp { must_look: false, .. }))));
            assert!(start, "{then:?}: {next:?}");
        }
        assert!(!scenario.is_blocked(), "{then:?}");
    }
}

#[test]
fn an_update_is_postponed_while_another_compose_run_does_not_end() {
    let (web, mut begun) = (on("web", IMAGE, "v1", 1), Vec::new());
    let mut scenario = Scenario::of(config());
    for at in (0..2400).step_by(300) {
        scenario.at(at).check(observed('2', &[v1()], &[&web]));
        let Some(action) = scenario.act() else { continue };
        assert!(matches!(action, Action::Step(Step::PinImages { .. })), "{action:?}");
        scenario.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
        scenario.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        scenario.takes_step(StepResult::Occupied);
        let unpins = scenario.takes_step(StepResult::Unpinned);
        assert!(matches!(unpins, Step::Unpin { .. }), "the tags are left alone: {unpins:?}");
        begun.push(at);
    }
    assert_eq!(begun, [0, 300, 600, 1200]);
    assert!(!scenario.is_blocked());
    let fault = scenario.record().errored.unwrap_or_default();
    assert!(fault.contains("another compose run on the project"), "{fault}");
}

#[test]
fn what_somebody_does_to_a_container_that_an_update_leaves_alone_does_not_end_it() {
    let (web, db) = (on("web", IMAGE, "v1", 1), on("db", DB, "db1", 1));
    let mut scenario = Scenario::of(config());
    scenario.check(observed('2', &[v1()], &[&web, &db]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    // A backup stops it. The web container has crashed at the same time.
    scenario.event(&db.id, EventKind::Stop);
    let down = |exit_code, c: Container| Container { state: State::Exited, exit_code, ..c };
    scenario.takes_step(StepResult::Looked { containers: vec![down(1, web), down(143, db)] });
    let next = scenario.act();
    let start = matches!(next, Some(Action::Step(Step::Start(BringUp { must_look: false, .. }))));
    assert!(start, "{next:?}");
}

#[test]
fn a_deployment_that_is_taken_up_again_does_not_take_the_work_of_compose_for_that_of_somebody_else() {
    let mut scenario = Scenario::of(config());
    scenario.check(observed('2', &[v1()], &[&on("web", IMAGE, "v1", 1)]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let journaled = serde_json::to_value(scenario.service.durable()).unwrap();
    let durable = serde_json::from_value(journaled).unwrap();
    let boot = boot_of("one", "one");
    let (service, _) = Service::new(Arc::new(config()), durable, boot, StartReason::Start, scenario.now);
    scenario.service = service;
    scenario.reconnected();
    let step = scenario.act();
    assert!(matches!(step, Some(Action::Step(Step::Start(BringUp { must_look: false, .. })))), "{step:?}");
}

#[test]
fn a_paused_container_is_not_replaced_and_its_image_is_deployed_once_it_runs_again() {
    let (web, db) = (on("web", IMAGE, "v1", 1), on("db", DB, "db1", 1));
    let paused = Container { state: State::Paused, ..web.clone() };
    for (auto_start, before) in [(true, vec![&paused]), (false, vec![&db, &paused])] {
        let mut scenario = Scenario::of(ServiceConfig { auto_start, ..config() });
        scenario.check(observed('2', &[v1()], &before));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        let containers = before.iter().map(|c| (*c).clone()).collect();
        let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers };
        let step = scenario.takes_step(up);
        let Step::Start(BringUp { tags, up_mode, scope, .. }) = step else { panic!("{step:?}") };
        let up_mode = scope.map_or(up_mode, |scope| scope.services(None));
        assert!(up_mode.is_for_none() && tags.is_empty(), "{up_mode:?} {tags:?}");
        scenario.at(11).look(&before);
        assert_eq!(scenario.last().event, Kind::PULLED, "{:?}", scenario.entries);
        scenario.takes_step(StepResult::Unpinned);
        scenario.at(20).check(observed('2', &[v1()], &before));
        assert_eq!(scenario.act(), None, "once is enough");
        scenario.at(30).check(observed('2', &[v1()], &[&web]));
        let next = scenario.act();
        assert!(matches!(next, Some(Action::Step(Step::PinImages { .. }))), "{next:?}");
    }
}

#[test]
fn an_image_that_was_not_proven_is_not_taken_for_proven_while_it_is_paused() {
    let mut scenario = Scenario::of(config());
    scenario.service.durable.images.of(IMAGE).unproven = Some(ImageId("sha256:v2".into()));
    let web = on("web", IMAGE, "v2", 2);
    let paused = Container { state: State::Paused, ..web.clone() };
    scenario.check(observed('2', &[v2()], &[&paused]));
    assert_eq!(scenario.act(), None);
    scenario.at(10).check(observed('2', &[v2()], &[&web]));
    let next = scenario.act();
    assert!(matches!(next, Some(Action::Step(Step::PinImages { .. }))), "{next:?}");
}

#[test]
fn an_update_waits_for_its_turn_with_the_others_and_a_rollback_goes_ahead_of_them() {
    let mut scenario = Scenario::of(config());
    let (old, new) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    scenario.check(observed('2', &[v1()], &[&old]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![new.clone()] };
    let step = scenario.takes_step(up);
    assert!(matches!(step, Step::Start(BringUp { priority: Priority::Routine, .. })), "{step:?}");
    let crashed = Container { state: State::Exited, exit_code: 3, ..new };
    scenario.at(2).look(&[&crashed]).at(3).look(&[&crashed]);
    let step = scenario.rolls_back(&[&on("web", IMAGE, "v1", 3)]);
    assert!(matches!(step, Step::Start(BringUp { priority: Priority::Urgent, .. })), "{step:?}");
}

#[test]
fn an_update_of_a_container_that_keeps_crashing_goes_ahead_of_the_others() {
    let mut scenario = Scenario::of(config());
    let crashing = Container {
        state: State::Restarting,
        restart_policy: RestartPolicy::Always,
        ..on("side", IMAGE, "v1", 1)
    };
    scenario.check(observed('2', &[v1()], &[&crashing, &on("web", IMAGE, "v1", 1)]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let step = scenario.takes_step(StepResult::Failed("it is not run".into()));
    assert!(matches!(step, Step::Start(BringUp { priority: Priority::Urgent, .. })), "{step:?}");
}

/// An update that is about to bring up version 2 in the place of these containers.
fn about_to_start(before: &[&Container]) -> Scenario {
    let mut scenario = Scenario::of(config());
    scenario.check(observed('2', &[v1()], before));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    scenario
}

/// Compose fails for this reason, and leaves these containers.
fn fails(cause: &str, left: &[&Container]) -> StepResult {
    let containers = left.iter().map(|c| (*c).clone()).collect();
    StepResult::Started { up: Err(ComposeError::new(cause)), named: Vec::new(), containers }
}

#[test]
fn what_somebody_has_taken_down_while_compose_ran_stays_down_and_blocks_nothing() {
    let db = on("db", DB, "db1", 1);
    let about_to_go = Container { state: State::Removing, ..on("web", IMAGE, "v1", 1) };
    for cause in ["Error response from daemon: No such container: 12ab", "network shop_default not found"] {
        for left in [vec![], vec![&db], vec![&about_to_go]] {
            let mut scenario = about_to_start(&[&on("web", IMAGE, "v1", 1), &db]);
            scenario.takes_step(fails(cause, &left));
            let next = scenario.act();
            assert!(matches!(next, Some(Action::Step(Step::Unpin { .. }))), "{cause}: {next:?}");
            assert!(!scenario.is_blocked(), "{cause}");
            assert!(scenario.last().message.contains("was removed by someone"), "{:?}", scenario.last());
        }
    }
}

#[test]
fn an_image_that_has_failed_is_blocked_although_somebody_has_removed_another_container_of_it() {
    let mut scenario = about_to_start(&[&on("web", IMAGE, "v1", 1), &on("worker", IMAGE, "v1", 1)]);
    let crashed = Container { state: State::Exited, exit_code: 1, ..on("worker", IMAGE, "v2", 2) };
    scenario.takes_step(fails("dependency failed to start: container worker exited (1)", &[&crashed]));
    assert!(scenario.is_blocked());
    let next = scenario.act();
    assert!(matches!(next, Some(Action::Step(Step::Diagnose { .. }))), "{next:?}");
}

#[test]
fn new_containers_that_another_compose_run_has_brought_up_are_put_on_probation() {
    let new = on("web", IMAGE, "v2", 2);
    let mut scenario = about_to_start(&[&on("web", IMAGE, "v1", 1)]);
    let cause = "Error response from daemon: Conflict. The container name \"/web\" is already in use";
    scenario.takes_step(fails(cause, &[&new]));
    assert_eq!(scenario.act(), None);
    scenario.at(11).look(&[&new]);
    assert_eq!(scenario.last().event, Kind::UPDATED, "{:?}", scenario.entries);
}

#[test]
fn a_disturbed_run_that_has_left_a_part_of_the_containers_behind_is_repeated() {
    let (old, new) = (|n| on("web", IMAGE, "v1", n), |n| on("web", IMAGE, "v2", n));
    let half_made = Container { state: State::Created, started_at: None, ..new(5) };
    for left in [[&new(3), &old(2)], [&new(3), &half_made]] {
        let mut scenario = about_to_start(&[&old(1), &old(2)]);
        scenario.takes_step(fails("Error response from daemon: No such container: 12ab", &left));
        let step = scenario.at(10).act();
        assert!(matches!(step, Some(Action::Step(Step::Start(_)))), "{step:?}");
        scenario.input(Input::Stepped(fails("No such container: 12ab", &[&new(3), &new(4)])));
        assert_eq!(scenario.act(), None, "they are on probation");
    }
}

#[test]
fn a_compose_run_that_another_one_has_disturbed_is_repeated_and_no_fault_of_the_image() {
    let half_made = Container { state: State::Created, started_at: None, ..on("web", IMAGE, "v2", 2) };
    let mut scenario = about_to_start(&[&on("web", IMAGE, "v1", 1)]);
    let (mut ups, mut at) = (0, 0);
    let next = loop {
        let next = scenario.act();
        if !matches!(next, Some(Action::Step(Step::Start(_)))) {
            break next;
        }
        let cause = "Error response from daemon: container 12ab is marked for removal and cannot be started";
        scenario.input(Input::Stepped(fails(cause, &[&half_made])));
        ups += 1;
        assert!(ups < 20, "it is repeated for ever");
        at += 10;
        scenario.at(at);
    };
    assert!(matches!(next, Some(Action::Step(Step::Diagnose { .. }))), "{next:?}");
    assert!(ups > 5, "a person's run takes its time");
    assert!(!scenario.is_blocked());
}

#[test]
fn a_rollback_that_is_disturbed_is_soon_limited_to_the_services_that_are_rolled_back() {
    let bad = on("web", IMAGE, "v2", 2);
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad.clone() };
    let mut scenario = Scenario::of(config());
    scenario.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&bad]);
    scenario.at(2).look(&[&crashed]).at(3).look(&[&crashed]);
    scenario.takes_step(StepResult::Diagnosed { log: String::new() });
    scenario.takes_step(fails("Error response from daemon: No such container: vpn", &[&crashed]));
    let step = scenario.at(10).act();
    let Some(Action::Step(Step::Start(BringUp { up_mode, .. }))) = step else { panic!("{step:?}") };
    assert_eq!(up_mode, UpMode::Services(vec!["web".into()]));
}

#[test]
fn an_image_is_not_blocked_because_a_dependency_that_was_well_fails() {
    let (web, db) = (on("web", IMAGE, "v1", 1), on("db", DB, "db1", 1));
    let made = Container { state: State::Created, started_at: None, ..on("web", IMAGE, "v2", 2) };
    let sick = Container { health: Some(HealthState::Unhealthy), ..db.clone() };
    for (dependency, is_blocked) in [(&sick, false), (&db, true)] {
        let mut scenario = about_to_start(&[&web, &db]);
        let cause = "dependency failed to start: container shop-db-1 is unhealthy";
        scenario.takes_step(fails(cause, &[&made, dependency]));
        assert_eq!(scenario.is_blocked(), is_blocked);
        let next = scenario.act();
        assert!(matches!(next, Some(Action::Step(Step::Diagnose { .. }))), "{next:?}");
    }
}
