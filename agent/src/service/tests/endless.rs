//! Scenarios of endless external restarts and broken connections, in which the agent still comes to an end.

use super::*;
use crate::config::UpdateConfig;
use crate::model::ComposeError;
use crate::ports::Priority;
use crate::service::observation::Unanswered;
use crate::service::rollout::plan::Postponed;

/// A failed `compose up` that leaves these containers.
fn failed(containers: Vec<Container>) -> StepResult {
    let error = ComposeError::new("dependency failed to start");
    StepResult::Started { up: Err(error), named: Vec::new(), containers }
}

/// A container of the compose service that ran before.
fn of_image_two(name: &str) -> Container {
    Container { compose_service: "a".into(), image: ImageId("sha256:two".into()), ..running(name) }
}

#[test]
fn another_healer_does_not_keep_a_probation_going() {
    let mut scenario = on_probation();
    for at in (0..600).step_by(5) {
        let begun = scenario.seconds(at);
        let fresh = Container { started_at: begun, ..with_health("b", HealthState::Starting) };
        scenario.at(at).look(&[&fresh]);
        if scenario.service.durable().images.get(IMAGE).blocked.is_some() {
            assert!(at > 10, "some manual restarts are tolerated");
            return;
        }
        let sick = Container { health: Some(HealthState::Unhealthy), ..fresh };
        scenario.at(at + 4).look(&[&sick]).event(&sick.id, EventKind::Stop);
    }
    panic!("the probation never ends");
}

#[test]
fn a_failing_compose_up_is_not_retried_forever_when_the_event_stream_keeps_breaking() {
    let mut scenario = pulled();
    let crashed = Container { state: State::Exited, exit_code: 1, ..of_image_two("b") };
    let mut ups = 0;
    while scenario.service.durable().images.get(IMAGE).blocked.is_none() {
        assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))), "{:?}", scenario.entries);
        scenario.engine_gap().input(Input::Stepped(failed(vec![crashed.clone()])));
        ups += 1;
        assert!(ups < 20, "compose up is retried forever");
        scenario.at(ups * 100);
    }
    assert!(ups > 5, "a stream that breaks now and then is tolerated");
}

/// A `compose up` that was killed and leaves a container that has failed.
fn killed() -> StepResult {
    let error = ComposeError { was_killed: true, ..ComposeError::new("`up` was ended from outside") };
    let left = Container { state: State::Exited, exit_code: 1, ..of_image_two("b") };
    StepResult::Started { up: Err(error), named: Vec::new(), containers: vec![left] }
}

#[test]
fn a_compose_up_that_was_killed_is_repeated_and_does_not_count_against_the_image() {
    let mut scenario = pulled();
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    scenario.input(Input::Stepped(killed()));
    assert!(scenario.service.durable().images.blocked().next().is_none(), "{:?}", scenario.entries);
    scenario.at(100);
    let Some(Action::Step(Step::Start(BringUp { priority, .. }))) = scenario.act() else {
        panic!("it is not repeated: {:?}", scenario.entries)
    };
    assert_eq!(priority, Priority::Urgent, "what it has removed is down");
}

#[test]
fn a_compose_up_that_is_killed_each_time_is_not_repeated_forever() {
    let mut scenario = pulled();
    let mut ups = 0;
    while scenario.service.durable().images.get(IMAGE).blocked.is_none() {
        assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))), "{:?}", scenario.entries);
        scenario.input(Input::Stepped(killed()));
        ups += 1;
        assert!(ups < 20, "compose up is retried forever");
        scenario.at(ups * 100);
    }
    assert!(ups > 5, "a run that is killed now and then is tolerated");
}

#[test]
fn a_compose_up_that_is_killed_each_time_is_repeated_after_ever_longer_pauses() {
    let mut scenario = pulled();
    let mut at = 0;
    for pause in [1, 2, 4, 8, 16, 32, 64, 64, 64, 64] {
        let step = scenario.act();
        assert!(matches!(step, Some(Action::Step(Step::Start(_)))), "{at}: {step:?}");
        scenario.input(Input::Stepped(killed()));
        at += pause;
        assert_eq!(scenario.at(at - 1).act(), None, "{at}");
        scenario.at(at);
    }
    assert!(scenario.service.durable().images.get(IMAGE).blocked.is_none(), "{:?}", scenario.entries);
}

#[test]
fn a_running_image_is_not_blocked_if_compose_fails_after_an_interruption() {
    let mut scenario = on_probation();
    let new = of_image_two("b");
    scenario.look(&[&new]).engine_gap().engine_back().at(5);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    scenario.input(Input::Stepped(failed(vec![new.clone()])));
    assert!(scenario.service.durable().images.blocked().next().is_none());
    scenario.look(&[&new]).at(100).look(&[&new]);
    assert_eq!(scenario.kinds().last(), Some(&Kind::UPDATED));
}

impl Scenario {
    /// Checks, and lets every pull fail that begins, whatever its image. Returns how many did.
    fn pulls(&mut self, seen: &Observation) -> usize {
        self.check(seen.clone());
        let mut pulls = 0;
        while let Some(action) = self.act() {
            let result = match action {
                Action::Step(Step::PinImages { .. }) => StepResult::ImagesPinned { missing: Vec::new() },
                Action::Step(Step::Pull { .. }) => {
                    pulls += 1;
                    StepResult::Failed("no space left on device".into())
                }
                Action::Step(Step::Unpin { .. }) => StepResult::Unpinned,
                other => panic!("{other:?}"),
            };
            self.input(Input::Stepped(result));
        }
        pulls
    }

    /// A person triggers the service.
    fn pulls_when_triggered(&mut self, seen: &Observation) -> usize {
        self.pulls_when_asked(ServiceRequest::Check, seen)
    }

    /// A person asks for a check.
    fn pulls_when_asked(&mut self, ask: ServiceRequest, seen: &Observation) -> usize {
        self.service.handle_request(ask, self.now);
        let check = self.service.next(self.now);
        assert!(matches!(check, Some(Action::Check { is_manual: true, .. })), "{check:?}");
        let generation = self.service.generation;
        self.input(Input::Checked { generation, is_manual: true, result: Ok(seen.clone()) });
        self.pulls(seen)
    }
}

#[test]
fn a_pull_that_fails_is_repeated_less_and_less_often() {
    let mut scenario = Scenario::of(config());
    let seen = |remote| observed(remote, &[local("sha256:one", &['1'])], &[&running("a")]);
    let pulls: usize = (0..7200).step_by(60).map(|at| scenario.at(at).pulls(&seen('2'))).sum();
    assert_eq!(pulls, 6, "three times in a row, and then after 10, 20 and 40 minutes more");
    assert_eq!(scenario.kinds(), [Kind::ERROR], "the same failure is one entry");
    assert_eq!(scenario.record().errored.as_deref(), Some("no space left on device"));
    assert!(
        scenario.why().answer.contains("next attempt is at 2026-01-01 02:32"),
        "{}",
        scenario.why().answer
    );
    // What a person asks for or what has changed is tried at once.
    assert_eq!(scenario.pulls_when_triggered(&seen('2')), 1);
    assert_eq!(scenario.at(7210).pulls(&seen('2')), 0);
    assert_eq!(scenario.pulls(&seen('3')), 1);
    // The registry has the running image again.
    assert_eq!(scenario.at(7220).pulls(&seen('1')), 0);
    assert_eq!(scenario.record().errored, None);
}

#[test]
fn an_update_that_has_failed_is_not_recovered_because_the_trigger_for_it_is_spent() {
    let update = UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() };
    let mut scenario = Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    let seen = observed('2', &[local("sha256:one", &['1'])], &[&running("a")]);
    assert_eq!(scenario.pulls(&seen), 0);
    assert_eq!(scenario.pulls_when_triggered(&seen), 1);
    assert!(scenario.kinds().contains(&Kind::ERROR));
    assert_eq!(scenario.at(60).pulls(&seen), 0);
    assert_eq!(scenario.held_by().as_deref(), Some("min_age"));
    assert_eq!(scenario.record().errored.as_deref(), Some("no space left on device"));
    assert_eq!(scenario.at(3600).pulls(&seen), 1, "it is tried again once the gate has opened");
    assert_eq!(scenario.kinds(), [], "the same failure is told once");
    // The registry has the running image again.
    let seen = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
    assert_eq!(scenario.at(3660).pulls(&seen), 0);
    assert_eq!(scenario.kinds(), [Kind::RECOVERED]);
}

#[test]
fn an_edit_of_the_files_that_is_applied_ends_the_wait_of_a_postponed_update() {
    let one = [local("sha256:one", &['1'])];
    let seen = observed('2', &one, &[&running("a")]);
    let waiting = || {
        let mut scenario = Scenario::of(ServiceConfig { compose_watch: true, ..config() });
        scenario.service.durable.files_hash = Some("old".into());
        for at in [0, 60, 120] {
            assert_eq!(scenario.at(at).pulls(&seen), 1);
        }
        assert_eq!(scenario.at(180).pulls(&seen), 0);
        scenario
    };
    // By this service.
    let mut scenario = waiting();
    scenario.service.known.files_hash = Some("new".into());
    assert!(scenario.service.begin(Cause::ComposeChanged, scenario.now));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![running("a")],
    }));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    assert_eq!(scenario.at(190).pulls(&seen), 1);
    assert_eq!(scenario.at(200).pulls(&seen), 0, "it waits again");
    // By another service of the project.
    let mut scenario = waiting();
    let applied = FilesApplied { hash: "new".into(), at: scenario.now };
    let files_applied_elsewhere = Some(applied);
    let edited = Observation { files: Files::Hash("new".into()), files_applied_elsewhere, ..seen.clone() };
    assert_eq!(scenario.at(190).pulls(&edited) + scenario.at(200).pulls(&edited), 1);
}

#[test]
fn a_project_is_started_and_follows_its_files_while_its_update_is_postponed() {
    let of_before = [local("sha256:one", &['1'])];
    let up = observed('2', &of_before, &[&running("a")]);
    let mut down = observed('2', &[], &[&exited("a", 137)]);
    down.images[0].tagged = of_before.first().cloned();
    let edited = Observation { files: Files::Hash("new".into()), ..up.clone() };
    for (then, cause) in [(down, Cause::Start), (edited, Cause::ComposeChanged)] {
        let (auto_start, compose_watch) = (true, true);
        let mut scenario =
            Scenario::of(ServiceConfig { auto_start, compose_watch, auto_heal: false, ..config() });
        scenario.service.durable.files_hash = Some("old".into());
        for at in [0, 60, 120] {
            assert_eq!(scenario.at(at).pulls(&up), 1, "{cause:?} {at}");
        }
        scenario.at(180).check(then);
        let step = scenario.act();
        assert!(matches!(step, Some(Action::Step(Step::Start(_)))), "{cause:?}: {step:?}");
        let deployment = scenario.service.durable().deployment.as_ref().expect("it has begun");
        assert_eq!(deployment.plan().cause, cause);
        let up = Ok(String::new());
        let containers = vec![running("a")];
        scenario.input(Input::Stepped(StepResult::Started { up, named: Vec::new(), containers }));
        let told = scenario.kinds();
        assert_eq!(told.iter().filter(|kind| **kind == Kind::ERROR).count(), 1, "{cause:?}: {told:?}");
        assert!(!told.contains(&Kind::RECOVERED), "{cause:?}: {told:?}");
        assert_eq!(scenario.record().errored.as_deref(), Some("no space left on device"), "it waits");
    }
}

#[test]
fn a_check_that_passes_no_gate_tries_a_failed_update_at_once() {
    let mut scenario = Scenario::of(config());
    let seen = observed('2', &[local("sha256:one", &['1'])], &[&running("a")]);
    for at in [0, 60, 120] {
        assert_eq!(scenario.at(at).pulls(&seen), 1, "{at}");
    }
    assert_eq!(scenario.at(180).pulls(&seen), 0);
    assert_eq!(scenario.pulls_when_asked(ServiceRequest::CheckGated, &seen), 1);
}

impl Scenario {
    /// Checks, and lets every pull fail that includes one of these images. Returns the images of every pull.
    fn pulls_without(&mut self, failing: &[&str], seen: &Observation) -> Vec<Vec<String>> {
        self.check(seen.clone());
        let mut pulls = Vec::new();
        while let Some(action) = self.act() {
            let result = match action {
                Action::Step(Step::PinImages { .. }) => StepResult::ImagesPinned { missing: Vec::new() },
                Action::Step(Step::Pull { images, .. }) => {
                    let names: Vec<String> = images.into_iter().map(|(image, _)| image).collect();
                    let failed = names.iter().find(|name| failing.contains(&name.as_str())).cloned();
                    let new = |name: &String| (name.clone(), ImageId("sha256:new".into()));
                    let pulled =
                        StepResult::Pulled { ids: names.iter().map(new).collect(), labels: BTreeMap::new() };
                    pulls.push(names);
                    failed.map_or(pulled, |image| StepResult::PullFailed {
                        image,
                        why: "no matching manifest for linux/arm/v7".into(),
                        lacks_platform: true,
                        pulled: Vec::new(),
                    })
                }
                Action::Step(Step::Unpin { .. }) => StepResult::Unpinned,
                Action::Step(Step::Start(_)) => break,
                other => panic!("{other:?}"),
            };
            self.input(Input::Stepped(result));
        }
        pulls
    }
}

#[test]
fn an_image_that_cannot_be_pulled_delays_no_other_image_of_its_service() {
    let (mut scenario, mut seen) = of_two_images();
    for at in [0, 60, 120] {
        assert_eq!(scenario.at(at).pulls_without(&[IMAGE], &seen), [[IMAGE, API]], "{at}");
    }
    assert_eq!(scenario.at(180).pulls_without(&[IMAGE], &seen), [[API]]);
    let plan = scenario.service.durable().deployment.as_ref().expect("the other one is deployed").plan();
    let kept: Vec<String> = plan.kept_tags.iter().map(|(tag, _)| tag.to_string()).collect();
    assert_eq!(kept, [IMAGE], "the running image keeps its tag");
    let web = running("web");
    let api = Container {
        id: "new".into(),
        config_image: API.into(),
        image: ImageId("sha256:new".into()),
        ..running("api")
    };
    let containers = vec![web.clone(), api.clone()];
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers,
    }));
    scenario.look(&[&web, &api]).at(200).look(&[&web, &api]);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    assert_eq!(scenario.kinds(), [Kind::ERROR, Kind::UPDATED], "the failure is told once, and stays");
    let why = format!("{IMAGE}: no matching manifest for linux/arm/v7");
    assert_eq!(scenario.record().errored, Some(why.clone()));

    seen.containers = [web, api].into();
    seen.images[1].running = vec![local("sha256:new", &['6'])];
    assert_eq!(scenario.at(240).pulls_without(&[IMAGE], &seen), Vec::<Vec<String>>::new());
    assert_eq!((scenario.kinds(), scenario.record().errored), (Vec::new(), Some(why)));
    // Another digest is tried at once, and the one that failed when its time has come.
    seen.images[1].remote = Some(digest('7'));
    assert_eq!(scenario.at(300).pulls_without(&[IMAGE, API], &seen), [[API]]);
    seen.images[1].remote = Some(digest('6'));
    assert_eq!(scenario.at(900).pulls_without(&[IMAGE], &seen), [[IMAGE]]);
}

#[test]
fn only_as_many_failed_updates_are_remembered_as_there_are_images() {
    let (mut scenario, mut seen) = of_two_images();
    seen.images[1].remote = None;
    seen.unanswered.insert(API.into(), Unanswered::Failed("the registry is away".into()));
    for remote in ['2', '3', '4', '5', '6'] {
        seen.images[0].remote = Some(digest(remote));
        assert_eq!(scenario.pulls(&seen), 1, "{remote}");
    }
    let postponed = scenario.service.durable().postponed.iter().map(|one| one.digest.clone());
    assert_eq!(postponed.collect::<Vec<_>>(), [digest('5'), digest('6')]);
}

#[test]
fn updates_that_wait_for_different_reasons_are_one_error() {
    let (mut scenario, seen) = of_two_images();
    for at in [0, 60, 120] {
        assert_eq!(scenario.at(at).pulls_without(&[IMAGE], &seen), [[IMAGE, API]], "{at}");
    }
    for at in [180, 240, 300] {
        assert_eq!(scenario.at(at).pulls_without(&[IMAGE], &seen), [[API]], "{at}");
        scenario.input(Input::Stepped(failed(seen.containers.to_vec())));
        assert!(matches!(scenario.act(), Some(Action::Step(Step::RestoreTags { .. }))), "{at}");
        scenario.input(Input::Stepped(StepResult::TagsRestored));
        assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))), "{at}");
        scenario.input(Input::Stepped(StepResult::Unpinned));
    }
    assert_eq!(scenario.at(360).pulls_without(&[IMAGE], &seen), Vec::<Vec<String>>::new());
    assert_eq!(scenario.kinds(), [Kind::ERROR, Kind::ERROR], "one as each began to fail");
    let errored = scenario.record().errored.expect("it says why they wait");
    assert!(errored.contains("no matching manifest") && errored.contains("compose up failed"), "{errored}");
}

#[test]
fn a_failed_pull_is_over_once_its_image_runs_or_is_blocked() {
    let (mut scenario, mut seen) = of_two_images();
    assert_eq!(scenario.pulls_without(&[IMAGE], &seen), [[IMAGE, API]]);
    assert_eq!(scenario.service.durable().postponed.len(), 1);
    let mut blocks = Scenario { service: scenario.service.clone(), entries: Vec::new(), ..scenario };
    blocks.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    blocks.at(60).check(seen.clone());
    assert_eq!(blocks.service.durable().postponed, []);

    // A person has pulled it and brought it up.
    let web = Container { image: ImageId("sha256:two".into()), ..running("web") };
    seen.images[0].running = vec![local("sha256:two", &['2'])];
    seen.images[0].tagged = seen.images[0].running.first().cloned();
    seen.containers = [web.clone(), seen.containers[1].clone()].into();
    assert_eq!(scenario.at(60).pulls_without(&[], &seen), [[API]]);
    let api =
        Container { id: "new".into(), image: ImageId("sha256:new".into()), ..seen.containers[1].clone() };
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![web.clone(), api.clone()],
    }));
    scenario.look(&[&web, &api]).at(80).look(&[&web, &api]);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    assert!(scenario.kinds().contains(&Kind::UPDATED));
    assert_eq!(scenario.record().errored, None);
    assert_eq!(scenario.service.durable().postponed, []);
}

#[test]
fn a_failure_that_is_known_of_no_single_image_postpones_all_of_them() {
    let (mut scenario, seen) = of_two_images();
    assert_eq!((0..7200).step_by(60).map(|at| scenario.at(at).pulls(&seen)).sum::<usize>(), 6);
    assert_eq!(scenario.kinds(), [Kind::ERROR]);
}

#[test]
fn each_reason_for_which_updates_wait_is_named_once() {
    let mut scenario = Scenario::of(config());
    let of = |why: &str| Postponed {
        digest: digest('1'),
        others: Vec::new(),
        until: Timestamp::MAX,
        tries: 1,
        why: why.into(),
    };
    scenario.service.durable.postponed = ["disk full", "no such image", "disk full"].map(of).to_vec();
    let fault = scenario.service.postponed_fault().expect("they wait");
    assert_eq!(fault.text, "disk full; no such image");
}

#[test]
fn an_update_of_several_images_is_another_one_if_any_of_them_is_new() {
    let postponed = Postponed {
        digest: digest('1'),
        others: vec![digest('2')],
        until: Timestamp::MAX,
        tries: 1,
        why: String::new(),
    };
    let (one, two, three) = (digest('1'), digest('2'), digest('3'));
    assert!(postponed.is_of(&[&one, &two]) && postponed.is_of(&[&two]));
    assert!(!postponed.is_of(&[&one, &three]) && !postponed.is_of(&[]));
}

#[test]
fn a_redeploy_is_not_answered_by_a_check_that_began_before_it() {
    let mut scenario = Scenario::of(config());
    scenario.service.check(true);
    assert!(matches!(scenario.service.next(scenario.now), Some(Action::Check { .. })));
    scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    let same = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
    scenario.check(same.clone());
    assert!(scenario.service.checks.wants_redeploy(), "left to the next check");
    assert!(matches!(scenario.service.next(scenario.now), Some(Action::Check { asked, .. }) if asked.images));
    scenario.check(same);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
}

#[test]
fn a_replayed_old_event_does_not_defer_a_start() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    let (now, hour) = (scenario.now, SignedDuration::from_hours(1));
    let mut seen = observed('1', &[], &[&exited("a", 1)]);
    seen.images[0].tagged = Some(local("sha256:one", &['1']));
    scenario.input(Input::Event { at: now - hour, id: "a".into(), what: EventKind::Destroy });
    scenario.check(seen.clone());
    assert_eq!(scenario.service.wanted, Some(Cause::Start));

    // A recent one does, until nothing more happens.
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    scenario.event("a", EventKind::Destroy);
    scenario.check(seen);
    assert_eq!(scenario.service.wanted, None);
    assert!(scenario.service.checks.again_at.is_some_and(|at| at <= now + SignedDuration::from_mins(1)));
}

#[test]
fn an_image_whose_rollback_failed_is_not_restarted() {
    let mut scenario = Scenario::of(config());
    scenario.service.durable.rollback_failed = true;
    scenario.service.durable.images.of(IMAGE).unproven = Some(ImageId("sha256:two".into()));
    let bad = Container { state: State::Exited, exit_code: 1, ..of_image_two("b") };
    let other = Container { image: ImageId("sha256:one".into()), ..exited("c", 1) };
    for at in [0, 30, 60, 120] {
        scenario.at(at).look(&[&bad, &other]);
        assert!(scenario.restarts().iter().all(|name| name == "c"));
    }
    assert!(scenario.kinds().contains(&Kind::RESTARTING), "the other one is healed");
}

/// The agent does nothing more here: the operator has to act, and must not be told that the healer is working on it.
#[test]
fn an_image_whose_rollback_failed_is_shown_as_blocked_and_not_as_being_healed() {
    let mut scenario = Scenario::of(config());
    scenario.service.durable.rollback_failed = true;
    scenario.service.durable.images.of(IMAGE).unproven = Some(ImageId("sha256:two".into()));
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    let bad = Container { state: State::Exited, exit_code: 1, ..of_image_two("b") };
    scenario.look(&[&bad]).at(30).look(&[&bad]);
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::DIED], StatusValue::Blocked));
    let other = Container { image: ImageId("sha256:one".into()), ..exited("c", 1) };
    scenario.look(&[&bad, &other]).at(60).look(&[&bad, &other]);
    assert_eq!(scenario.status(), StatusValue::Degraded, "the other one is healed");
}

#[test]
fn an_edit_of_the_files_is_not_lost_if_a_redeploy_fails() {
    let mut scenario = Scenario::of(ServiceConfig { compose_watch: true, ..config() });
    scenario.service.durable.files_hash = Some("old".into());
    scenario.service.known.files_hash = Some("new".into());
    scenario.service.known.observation =
        Some(Arc::new(observed('1', &[local("sha256:one", &['1'])], &[&running("a")])));
    assert!(scenario.service.begin(Cause::Redeploy, scenario.now));
    assert!(scenario.service.durable.files_pending);
    scenario.service.abandon("port is taken".into(), String::new(), scenario.now);
    assert!(scenario.service.durable.files_pending, "compose_watch applies it");
}
