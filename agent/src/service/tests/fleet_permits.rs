//! Scenarios of a question to the warden that was overtaken by a verdict, and of partly used leases.

use super::*;
use crate::service::event::{Event, FailedDeployment, RollbackFailed, RollbackProblem};
use crate::service::rollout::step::Phase;

#[test]
fn a_verdict_that_arrives_during_a_question_repeats_the_question() {
    let news = || Input::Fleet(Arc::new(FleetView { verdicts: 7, ..present() }));
    let mut waits = scenario(present());
    assert!(waits.asks_fleet());
    waits.at(1).input(news());
    assert!(!waits.asks_fleet(), "it is being asked");
    waits.fleet_answers(Ok(answer(Permission::Wait, 60)));
    assert!(waits.asks_fleet(), "the answer may be older than the verdict");
    waits.fleet_answers(Ok(answer(Permission::Wait, 60)));
    assert!(!waits.asks_fleet(), "this one is not");
    assert_eq!(waits.gate().as_deref(), Some("ring"));

    let mut goes = scenario(present());
    assert!(goes.asks_fleet());
    goes.at(1).input(news());
    assert!(goes.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
}

#[test]
fn a_busy_warden_holds_every_ring_for_some_seconds() {
    for ring in [0, 1] {
        let mut scenario = scenario(FleetView { ring, ..present() });
        assert!(scenario.asks_fleet());
        scenario.fleet_answers(Err(FleetError::Busy));
        assert!(!scenario.asks_fleet(), "ring {ring}");
        assert_eq!((scenario.gate().as_deref(), scenario.service.leases()), (Some("ring"), Vec::new()));
        assert_eq!(scenario.service.checks.again_at, Some(scenario.start + SignedDuration::from_secs(10)));
        scenario.at(10).check(found('2'));
        assert!(scenario.asks_fleet());
    }
}

#[test]
fn a_store_that_stays_away_holds_every_ring_for_its_patience() {
    for ring in [0, 1] {
        let mut waits = scenario(FleetView { ring, ..present() });
        assert!(waits.asks_fleet());
        let storeless = FleetAnswer { store: Some("away".into()), ..answer(Permission::Wait, 10) };
        waits.fleet_answers(Ok(storeless));
        assert_eq!(waits.gate().as_deref(), Some("ring"));
        let away = FleetView { ring, contact: 1, store_away: waits.seconds(30), ..present() };
        waits.at(30).input(Input::Fleet(Arc::new(away))).check(found('2'));
        assert!(!waits.asks_fleet(), "the answer is known");
        let waiting = waits.record().waiting.expect("it waits");
        assert_eq!((waiting.gate.as_str(), waiting.lifts_at), ("ring", waits.seconds(86_430)));
        assert!(waiting.why.contains("store is away"), "{}", waiting.why);
        waits.at(86_429).check(found('2'));
        assert!(!waits.begins(), "ring {ring}");
        waits.at(86_430).check(found('2'));
        assert!(waits.begins(), "ring {ring}");
    }
    let mut back = scenario(FleetView { store_away: Some(Timestamp::UNIX_EPOCH), ..present() });
    // The digest was first seen now, so that it waits for the full time.
    assert!(!back.begins());
    back.at(60).input(Input::Fleet(Arc::new(present()))).check(found('2'));
    assert!(back.asks_fleet());
}

#[test]
fn after_a_restart_the_warden_is_asked_although_its_store_was_away_for_longer_than_the_patience() {
    let (store_away, patience) = (Some(Timestamp::UNIX_EPOCH), Duration::ZERO);
    let stored = FleetView { patience, store_away, ..present() };
    assert!(scenario(stored.clone()).asks_fleet(), "its store may be back");
    assert!(scenario(FleetView { contact: 1, ..stored }).begins(), "it has said that it is not");
}

#[test]
fn only_an_answer_without_a_store_keeps_the_store_away() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let known = FleetView { revision: 5, store_away: Some(now), ..present() };
    let after = |store: Option<&str>, revision| {
        let store = store.map(str::to_owned);
        let decisions = FleetDecisions { revision, store, ..FleetDecisions::default() };
        known.with_decisions(decisions, None, now + SignedDuration::from_secs(60)).store_away
    };
    assert_eq!(
        [after(Some("away"), 4), after(Some("away"), 6), after(None, 6)],
        [Some(now), Some(now), None]
    );
}

const DB: &str = "localhost:5000/db:1";

/// A machine of a fleet with a service of two images that both have a new digest, and what a check of it finds.
fn two_images_in_a_fleet() -> (Scenario, Observation) {
    let (mut scenario, seen) = of_two_images();
    scenario.service.fleet = Arc::new(present());
    (scenario, seen)
}

/// The same, once the fleet has permitted both; their deployment has begun.
fn deploying_two_images() -> Scenario {
    let (mut scenario, seen) = two_images_in_a_fleet();
    scenario.at(0).check(seen);
    for _ in 0..2 {
        let Some(Action::AskFleet { image, ask }) = scenario.act() else { panic!("it asks for both") };
        scenario.input(Input::FleetAnswered { image, ask, answer: Ok(answer(Permission::Go, 30)) });
    }
    assert!(scenario.begins());
    assert_eq!(scenario.service.leases().len(), 2);
    scenario
}

#[test]
fn one_late_answer_does_not_split_an_update_two_images_in_a_fleet() {
    let (mut scenario, seen) = two_images_in_a_fleet();
    scenario.at(0).check(seen.clone());
    for answer in [Ok(answer(Permission::Go, 30)), unanswered()] {
        let Some(Action::AskFleet { image, ask }) = scenario.act() else { panic!("it asks for both") };
        scenario.input(Input::FleetAnswered { image, ask, answer });
    }
    while let Some(action) = scenario.act() {
        match action {
            Action::ReleaseFleet(ask) => scenario.input(Input::FleetReleased(ask)),
            other => panic!("neither image is deployed alone: {other:?}"),
        };
    }
    assert_eq!(scenario.service.checks.again_at, scenario.seconds(10));
    scenario.at(10).check(seen);
    for image_asked in [IMAGE, API] {
        let Some(Action::AskFleet { image, ask }) = scenario.act() else { panic!("it asks for both again") };
        assert_eq!(image, image_asked);
        scenario.input(Input::FleetAnswered { image, ask, answer: Ok(answer(Permission::Go, 30)) });
    }
    assert!(scenario.begins());
}

#[test]
fn the_warden_is_not_asked_about_an_image_while_its_pull_is_postponed() {
    let (mut scenario, seen) = two_images_in_a_fleet();
    for (at, expected) in
        [(0, vec![IMAGE, API]), (60, vec![IMAGE, API]), (120, vec![IMAGE, API]), (180, vec![API])]
    {
        scenario.at(at).check(seen.clone());
        let mut asked = Vec::new();
        while let Some(action) = scenario.act() {
            let input = match action {
                Action::AskFleet { image, ask } => {
                    asked.push(image.clone());
                    Input::FleetAnswered { image, ask, answer: Ok(answer(Permission::Go, 30)) }
                }
                Action::ReleaseFleet(ask) => Input::FleetReleased(ask),
                Action::Step(Step::PinImages { .. }) => {
                    Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() })
                }
                Action::Step(Step::Pull { images, .. }) if images.len() == 2 => {
                    let (image, why) = (IMAGE.to_owned(), "manifest unknown".to_owned());
                    Input::Stepped(StepResult::PullFailed {
                        image,
                        why,
                        lacks_platform: false,
                        pulled: Vec::new(),
                    })
                }
                Action::Step(Step::Pull { .. }) => break,
                Action::Step(Step::Unpin { .. }) => Input::Stepped(StepResult::Unpinned),
                other => panic!("{other:?}"),
            };
            scenario.input(input);
        }
        assert_eq!(asked, expected, "{at}");
    }
    let leases: Vec<String> = scenario.service.leases().into_iter().map(|ask| ask.image).collect();
    assert_eq!(leases, [API], "none is kept from another machine");
}

#[test]
fn all_images_of_a_failed_deployment_have_failed() {
    for (blamed, remote, other, other_remote) in [(IMAGE, '2', API, '6'), (API, '6', IMAGE, '2')] {
        let mut scenario = deploying_two_images();
        let failed = FailedDeployment {
            images: blamed.into(),
            image: Reference::parse(blamed).ok(),
            digests: Some((None, digest(remote))),
            others: vec![(Reference::parse(other).unwrap(), digest(other_remote))],
            failure: Failure::general(Reason::Words("exit code 1".into())),
            output: String::new(),
            by_node: false,
        };
        let end = |failed: FailedDeployment| {
            Event::RollbackFailed(RollbackFailed {
                failed,
                going_back_to: None,
                why: RollbackProblem::NoOldImage,
                containers: Vec::new(),
                data: None,
                left_stopped: Vec::new(),
            })
        };
        let by_node = FailedDeployment { by_node: true, ..failed.clone() };
        scenario.service.note_verdict(&end(by_node));
        assert!(scenario.service.permits.decided.is_empty(), "nodes that can't run it are no verdict on it");
        scenario.service.emit(end(failed), scenario.now);
        scenario.service.durable.deployment.as_mut().unwrap().enter(Phase::Unpin, scenario.now);
        let decided = scenario.service.permits.decided.iter().map(|ask| ask.image.as_str());
        assert_eq!(decided.collect::<Vec<_>>(), [IMAGE, API]);
        assert_eq!(scenario.service.leases(), [], "the verdicts end them");
        let entries = scenario.service.take_entries();
        let entry = entries.iter().find(|entry| entry.event == Kind::ROLLBACK_FAILED).unwrap();
        assert_eq!(entry.image.as_deref(), Some(blamed));
        let also: Vec<_> =
            entry.also_failed.iter().map(|also| (also.image.as_str(), also.digest.clone())).collect();
        assert_eq!(also, [(other, digest(other_remote).to_string())]);
    }
}

#[test]
fn two_proven_images_both_have_a_verdict() {
    let mut scenario = deploying_two_images();
    // It is unknown whether containers run on them.
    scenario.service.known.containers = None;
    scenario.service.passed(scenario.now);
    let decided = scenario.service.permits.decided.iter().map(|ask| ask.image.as_str());
    assert_eq!(decided.collect::<Vec<_>>(), [IMAGE, API]);
    assert_eq!(scenario.service.leases(), []);
}

#[test]
fn of_several_images_only_that_of_the_failed_container_is_blocked() {
    let cases: [(&str, bool, &[&str]); 4] = [
        (API, false, &[API]),
        (IMAGE, false, &[IMAGE]),
        ("", false, &[API, IMAGE]),
        (API, true, &[API, IMAGE]),
    ];
    for (image, bystander, blocked) in cases {
        let mut scenario = deploying_two_images();
        let failure = Failure {
            image: image.to_owned(),
            bystander,
            ..Failure::general(Reason::Words("it crashed".into()))
        };
        scenario.service.failed(Failed::new(failure.clone(), String::new()), scenario.now);
        assert_eq!(
            scenario.service.durable().images.blocked().map(|(image, _)| image).collect::<Vec<_>>(),
            blocked,
            "{image:?}"
        );
        scenario.service.rolled_back(Failed::new(failure, String::new()), None, scenario.now);
        let entries = scenario.service.take_entries();
        let entry = entries.iter().find(|entry| entry.event == Kind::ROLLED_BACK).unwrap();
        let also = entry.also_failed.iter().map(|also| also.image.as_str());
        let mut failed: Vec<&str> = entry.image.as_deref().into_iter().chain(also).collect();
        failed.sort_unstable();
        assert_eq!(failed, blocked, "the others learn of these: {image:?}");
    }
}

#[test]
fn an_unproven_image_that_is_not_part_of_a_rollback_stays_unproven_while_it_runs() {
    let third = || ImageId("sha256:third".into());
    for runs in [true, false] {
        let mut scenario = deploying_two_images();
        for (image, id) in [(IMAGE, ImageId("sha256:one".into())), (DB, third())] {
            scenario.service.durable.images.of(image).unproven = Some(id);
        }
        let db = Container { config_image: DB.into(), image: third(), ..running("db") };
        let containers = runs.then_some(db).into_iter().chain([running("web")]);
        scenario.service.known.containers = Some(containers.collect());
        let failure = Failure::general(Reason::Words("it crashed".into()));
        scenario.service.rolled_back(Failed::new(failure, String::new()), None, scenario.now);
        let unproven = |image| scenario.service.durable.images.get(image).unproven.clone();
        assert_eq!((unproven(IMAGE), unproven(DB)), (None, runs.then(third)), "{runs}");
    }
}
