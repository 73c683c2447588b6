//! Scenarios of rollbacks that have failed, and are tried again.

use evenkeel_common::wire::FailedUpdate;

use super::*;
use crate::model::snapshot::Mounter;
use crate::service::state::{LeftStopped, WhyLeft};

#[test]
fn after_a_failed_rollback_a_redeploy_or_a_trigger_restores_the_proven_image() {
    let bad = Container { state: State::Running, ..on("web", IMAGE, "v2", 2) };
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad.clone() };
    let restored = on("web", IMAGE, "v1", 3);
    let db = on("db", DB, "db1", 1);
    let asked =
        [(ServiceRequest::Redeploy, Kind::FORCE_REDEPLOY), (ServiceRequest::Check, Kind::ROLLED_BACK)];
    let all = asked.iter().flat_map(|(ask, kind)| [(ask, kind, &bad), (ask, kind, &crashed)]);
    for (ask, kind, left) in all {
        let mut scenario = Scenario::of(config());
        scenario.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&bad]);
        scenario.at(2).look(&[&crashed]).at(3).look(&[&crashed]);
        scenario.takes_step(StepResult::Diagnosed { log: String::new() });
        let mut waits = 3;
        let mut recreates = Vec::new();
        while scenario.service.durable().rollback_failed.eq(&false) {
            let error = ComposeError::new("env file x does not exist");
            let failed =
                StepResult::Started { up: Err(error), named: Vec::new(), containers: vec![bad.clone()] };
            let Step::Start(BringUp { up_mode, .. }) = scenario.takes_step(failed) else {
                panic!("not the rollback")
            };
            recreates.push(up_mode);
            waits += 40;
            scenario.at(waits);
        }
        assert_eq!(recreates[..2], [UpMode::Changed, UpMode::Services(vec!["web".into()])]);
        assert_eq!(scenario.last().event, Kind::ROLLBACK_FAILED);
        assert!(scenario.last().output.contains("web: running"), "{}", scenario.last().output);
        scenario.takes_step(StepResult::Unpinned);

        scenario.service.handle_request(ask.clone(), scenario.now);
        let generation = scenario.service.generation;
        let result = Ok(observed('2', &[v2()], &[left, &db]));
        scenario.input(Input::Checked { generation, is_manual: *ask == ServiceRequest::Check, result });
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(StepResult::Pulled { ids: Vec::new(), labels: BTreeMap::new() });
        let up = StepResult::Started {
            up: Ok(String::new()),
            named: Vec::new(),
            containers: vec![restored.clone(), db.clone()],
        };
        let Step::Start(BringUp { tags, scope, .. }) = scenario.takes_step(up) else {
            panic!("nothing is brought up")
        };
        let named = scope.map(|scope| scope.services(None).services().to_vec());
        assert_eq!(named, (*ask == ServiceRequest::Check).then(|| vec!["web".to_owned()]));
        let [(_, image)] = &tags[..] else { panic!("{tags:?}") };
        assert_eq!(image.id, ImageId("sha256:v1".into()));
        scenario.at(waits + 100).look(&[&restored, &db]);
        assert_eq!(scenario.last().event, *kind, "{:?}", scenario.entries);
        assert!(scenario.is_blocked() && !scenario.service.durable().rollback_failed);
    }
}

#[test]
fn a_failed_rollback_whose_retry_would_bring_nothing_up_stays_failed() {
    let mut scenario = Scenario::of(config());
    let db = on("db", DB, "db1", 1);
    let done = Container { state: State::Exited, exit_code: 0, ..on("web", IMAGE, "v2", 2) };
    let memory = scenario.service.durable.images.of(IMAGE);
    memory.proven = Some(crate::service::images::OldImage { id: v1().id, source: None });
    (memory.unproven, memory.blocked) = (Some(v2().id), Some(digest('2')));
    scenario.service.durable.rollback_failed = true;
    scenario.service.handle_request(ServiceRequest::Check, scenario.now);
    let generation = scenario.service.generation;
    let result = Ok(observed('2', &[v2()], &[&done, &db]));
    scenario.input(Input::Checked { generation, is_manual: true, result });
    assert_eq!(scenario.act(), None);
    let told = scenario.last();
    assert_eq!(told.event, Kind::ROLLBACK_FAILED, "{:?}", scenario.entries);
    assert!(!told.message.contains("again"), "{}", told.message);
    assert!(
        told.reason.as_deref().is_some_and(|why| why.starts_with("it was not tried, since ")),
        "{told:?}"
    );
    assert!(scenario.service.durable().rollback_failed);
}

#[test]
fn a_retry_of_a_rollback_brings_up_what_has_crashed_and_nothing_that_runs_or_was_stopped() {
    let db = on("db", DB, "db1", 1);
    let crashed = Container { state: State::Exited, exit_code: 1, ..on("web", IMAGE, "v2", 2) };
    let beside = Container { id: "web-3".into(), ..on("web", IMAGE, "v2", 2) };
    for (what, containers, is_told_to_stop, left, expected) in [
        ("it has crashed", vec![&crashed, &db], false, None, true),
        ("it is a leftover beside one that runs", vec![&crashed, &beside, &db], false, None, false),
        ("a person has stopped it", vec![&crashed, &db], true, None, false),
        ("the agent has stopped it", vec![&crashed, &db], true, Some(WhyLeft::EarlierData), true),
        ("no image may run on its data", vec![&crashed, &db], true, Some(WhyLeft::MixedData), false),
    ] {
        let mut scenario = Scenario::of(config());
        let durable = &mut scenario.service.durable;
        durable.images.of(IMAGE).unproven = Some(v2().id);
        if is_told_to_stop {
            durable.stops.insert(crashed.id.clone(), scenario.now);
        }
        if let Some(why) = left {
            let container = Mounter {
                id: crashed.id.clone(),
                name: crashed.name.clone(),
                service: (String::new(), String::new()),
                depends_on: Vec::new(),
                is_paused: false,
                task_of: None,
            };
            durable.left_stopped.extend([LeftStopped::entry(&container, why, scenario.now)]);
        }
        let seen = observed('2', &[v2()], &containers);
        let before = scenario.service.before(&Cause::RetryRollback, &seen, scenario.now);
        let is_brought_up = before.iter().any(|was| was.id == crashed.id && was.live);
        assert_eq!(is_brought_up, expected, "{what}");
    }
}

/// What is known of an update of `API` that has failed.
fn failed_api(scenario: &Scenario, rolled_back: bool) -> FailedUpdate {
    FailedUpdate {
        at: scenario.now,
        image: API.into(),
        digest: Some(digest('6').to_string()),
        reason: "exit code 1".into(),
        container: None,
        output: String::new(),
        rolled_back,
        by_hand: false,
    }
}

/// Two images, of which the digest of `API` has failed and the other one is brought up: the containers of both.
fn brings_up_web(rolled_back: bool) -> (Scenario, Observation, [Container; 2]) {
    let (mut scenario, mut seen) = of_two_images();
    let (web, api) = (on("web", IMAGE, "one", 1), seen.containers[1].clone());
    seen.containers = [web, api.clone()].into();
    let failed = failed_api(&scenario, rolled_back);
    let durable = &mut scenario.service.durable;
    durable.failed_update = Some(Box::new(failed));
    durable.rollback_failed = !rolled_back;
    durable.images.of(API).blocked = Some(digest('6'));
    durable.images.of(API).unproven = Some(api.image.clone()).filter(|_| !rolled_back);
    scenario.check(seen.clone());
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    let ids = vec![(IMAGE.into(), ImageId("sha256:v2".into()))];
    scenario.takes_step(StepResult::Pulled { ids, labels: BTreeMap::new() });
    let new = on("web", IMAGE, "v2", 2);
    scenario.is_up(&[&new, &api]);
    (scenario, seen, [new, api])
}

#[test]
fn the_outcome_for_another_image_neither_ends_a_failed_rollback_nor_replaces_its_record() {
    for works in [true, false] {
        let (mut scenario, mut seen, [new, api]) = brings_up_web(false);
        let failed = failed_api(&scenario, false);
        let expected = if works {
            scenario.at(11).look(&[&new, &api]);
            Kind::UPDATED
        } else {
            let crashed = Container { state: State::Exited, exit_code: 1, ..new };
            scenario.at(2).look(&[&crashed, &api]).at(3).look(&[&crashed, &api]);
            let back = on("web", IMAGE, "one", 3);
            scenario.rolls_back(&[&back, &api]);
            scenario.at(400).look(&[&back, &api]);
            Kind::ROLLED_BACK
        };
        assert_eq!(scenario.last().event, expected, "{:?}", scenario.entries);
        assert!(scenario.service.durable().rollback_failed, "{expected:?}");
        assert_eq!(scenario.record().failed_update, Some(failed), "{expected:?}");
        // A new digest of its own image ends it.
        scenario.takes_step(StepResult::Unpinned);
        seen.images[1].remote = Some(digest('7'));
        scenario.at(500).check(seen);
        assert!(!scenario.service.durable().rollback_failed, "{expected:?}");
    }
}

#[test]
fn a_good_update_of_another_image_does_not_take_away_the_reason_of_a_block() {
    let (mut scenario, _, [new, api]) = brings_up_web(true);
    let failed = failed_api(&scenario, true);
    scenario.at(11).look(&[&new, &api]);
    assert_eq!(scenario.last().event, Kind::UPDATED, "{:?}", scenario.entries);
    scenario.takes_step(StepResult::Unpinned);
    let record = scenario.record();
    assert_eq!((record.status, record.since), (StatusValue::Blocked, Some(failed.at)));
    assert_eq!(record.failed_update, Some(failed));
    let answer = scenario.why().answer;
    assert!(answer.starts_with(API) && answer.contains("exit code 1"), "{answer}");
}
