//! Stories of projects that are started, forced up, or brought along with their compose files.

use super::*;

#[test]
fn a_project_that_does_not_run_is_started_when_the_digests_match() {
    let mut story = Story::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    story.check(observed('1', &[local("sha256:one", &['1'])], &[&exited("a", 137)]));
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { down: false, .. }))));
    let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![running("a")] };
    story.input(Input::Stepped(up));
    assert_eq!(story.kinds(), [Kind::STARTED]);
}

/// What the files name beside the images of the service may never have been on this machine. Compose would fetch an image
/// that is withheld, too.
#[test]
fn compose_may_fetch_what_is_missing_unless_an_image_of_the_service_is_withheld() {
    let blocked = |story: &mut Story| {
        story.service.durable.blocked.insert(IMAGE.into(), digest('2'));
    };
    let nothing: fn(&mut Story) = |_| ();
    for (remote, before, expected) in [('1', nothing, PullPolicy::Missing), ('2', blocked, PullPolicy::Never)]
    {
        let mut story = Story::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
        before(&mut story);
        story.check(observed(remote, &[local("sha256:one", &['1'])], &[&exited("a", 137)]));
        let Some(Action::Step(Step::Start { pull, .. })) = story.act() else { panic!("not started") };
        assert_eq!(pull, expected, "{remote}");
    }
}

#[test]
fn a_finished_one_shot_is_not_started_again_at_every_check() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    story.check(observed('1', &[local("sha256:one", &['1'])], &[&exited("job", 0)]));
    assert_eq!(story.act(), None);
}

#[test]
fn what_is_stuck_is_forced_gently_first_and_hard_only_once_in_a_cooldown() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    let seen = || observed('1', &[local("sha256:one", &['1'])], &[&created]);
    let mut forced = Vec::new();
    for second in (0..130).step_by(10) {
        story.at(second).check(seen());
        while let Some(Action::Step(step)) = story.act() {
            let containers = vec![created.clone()];
            story.input(Input::Stepped(match step {
                Step::Start { down, .. } => {
                    forced.push((second, down));
                    StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers }
                }
                Step::Unpin { .. } => StepResult::Unpinned,
                other => panic!("{other:?}"),
            }));
        }
    }
    let expected = [(10, false), (10, true), (80, false), (80, true)];
    assert_eq!(forced, expected, "in the second cycle, and not again within the cooldown of a minute");
}

#[test]
fn what_is_stuck_is_forced_without_waiting_for_a_cycle_that_is_hours_away() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    let seen = || observed('1', &[local("sha256:one", &['1'])], &[&created]);
    story.check(seen());
    assert_eq!(story.act(), None);
    assert_eq!(story.service.wake_at(story.now), story.seconds(10));
    story.at(10);
    assert!(matches!(story.service.next(story.now), Some(Action::Check { .. })), "by itself");
    story.check(seen());
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { down: false, .. }))));
}

/// Its own restart policy makes events all the time; they are nobody's work.
#[test]
fn what_keeps_restarting_is_taken_down_and_up_whatever_events_its_policy_makes() {
    let mut story = Story::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    let looping = Container { state: State::Restarting, restarts_itself: true, ..running("a") };
    let seen = || observed('1', &[local("sha256:one", &['1'])], &[&looping]);
    for second in [0, 10] {
        story.at(second).event("id-a", EventKind::Start);
        story.event("id-a", EventKind::Die { exit_code: 1 }).check(seen());
        if second == 0 {
            assert_eq!(story.act(), None);
        }
    }
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { down: true, .. }))), "in the second cycle");
    let mut story = Story::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    story.check(seen()).at(9).event("id-a", EventKind::Other("create".into()));
    story.at(10).check(seen());
    assert_eq!(story.act(), None, "somebody is at work");
}

#[test]
fn a_start_that_failed_is_a_fault_until_what_it_left_runs() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    let seen = |container: &Container| observed('1', &[local("sha256:one", &['1'])], &[container]);
    for second in (0..60).step_by(10) {
        story.at(second).check(seen(&created));
        while let Some(Action::Step(step)) = story.act() {
            let error = crate::model::ComposeError { cause: "port is taken".into(), output: String::new() };
            story.input(Input::Stepped(match step {
                Step::Start { .. } => {
                    StepResult::Started { up: Err(error), named: Vec::new(), containers: Vec::new() }
                }
                Step::RestoreTags { .. } => StepResult::TagsRestored,
                Step::Unpin { .. } => StepResult::Unpinned,
                other => panic!("{other:?}"),
            }));
        }
    }
    assert_eq!((story.kinds(), story.status()), (vec![Kind::ERROR], StatusValue::Errored));
    story.at(70).check(seen(&running("a")));
    assert_eq!(story.kinds(), [Kind::RECOVERED]);
}

#[test]
fn changed_compose_files_are_deployed_once_and_again_when_that_failed() {
    let watching = ServiceConfig { compose_watch: true, auto_update: false, ..config() };
    let mut story = Story::of(watching);
    let seen = |hash: &str| Observation { files: Files::Hash(hash.into()), ..Observation::default() };
    story.check(seen("one"));
    assert_eq!(story.act(), None, "the first run only remembers");
    story.at(10).check(seen("two"));
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { .. }))));
    assert_eq!(story.service.durable().deployment.as_ref().unwrap().plan().cause, Cause::ComposeChanged);
    assert_eq!(story.service.durable().files_hash.as_deref(), Some("two"), "stored when it is journaled");
    let error = crate::model::ComposeError { cause: "port is taken".into(), output: String::new() };
    story.input(Input::Stepped(StepResult::Started {
        up: Err(error),
        named: Vec::new(),
        containers: Vec::new(),
    }));
    assert_eq!(story.status(), StatusValue::Errored);
    story.act();
    story.input(Input::Stepped(StepResult::TagsRestored));
    story.act();
    story.input(Input::Stepped(StepResult::Unpinned));
    assert_eq!(story.act(), None);

    story.at(20).check(seen("two"));
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { .. }))), "a failed deploy is owed");
    story.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: Vec::new(),
    }));
    story.act();
    story.input(Input::Stepped(StepResult::Unpinned));
    assert_eq!(story.kinds(), [Kind::ERROR, Kind::COMPOSE_DRIFT, Kind::RECOVERED]);
    story.at(30).check(seen("two"));
    assert_eq!(story.act(), None);
}

#[test]
fn files_that_cannot_be_used_wait_and_are_said_once() {
    let mut story = Story::of(ServiceConfig { compose_watch: true, auto_update: false, ..config() });
    let seen = |files: Files| Observation { files, ..Observation::default() };
    story.check(seen(Files::Hash("one".into())));
    for second in [10, 20, 30] {
        story.at(second).check(seen(Files::Unusable("compose file x: does not exist".into())));
        assert_eq!(story.act(), None);
    }
    story.at(40).check(seen(Files::Hash("one".into())));
    assert_eq!(story.act(), None);
    assert_eq!(story.kinds(), [Kind::ERROR, Kind::RECOVERED]);
}

#[test]
fn what_an_unnamed_file_sets_is_never_lost_on_the_side() {
    let mut story = Story::of(ServiceConfig { auto_start: true, compose_watch: true, ..config() });
    let old = [local("sha256:one", &['1'])];
    let left_out = |seen: Observation| Observation { left_out: vec!["/srv/shop/more.yml".into()], ..seen };
    for (second, seen) in [
        (0, observed('2', &old, &[&running("a")])),
        (20, Observation { files: Files::Hash("one".into()), ..observed('1', &old, &[&running("a")]) }),
        (30, Observation { files: Files::Hash("two".into()), ..observed('2', &old, &[&running("a")]) }),
    ] {
        story.at(second).check(left_out(seen));
        assert_eq!(story.act(), None, "at {second}");
    }
    assert!(story.said[0].message.contains("/srv/shop/more.yml"), "{:?}", story.said);
    assert_eq!((story.kinds(), story.status()), (vec![Kind::ERROR], StatusValue::Errored));

    assert_eq!(
        story.service.ask(ServiceRequest::Redeploy, story.now).0,
        ServiceReply::Redeploying(Vec::new())
    );
    story.check(left_out(observed('2', &old, &[&running("a")])));
    assert!(matches!(story.act(), Some(Action::Step(Step::PinImages { .. }))), "a person asked for it");

    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    story.check(left_out(observed('2', &old, &[&exited("a", 1)])));
    let Some(Action::Step(Step::Start { up_mode, down, .. })) = story.act() else { panic!("it is down") };
    assert_eq!((up_mode, down), (UpMode::StartOnly, false), "started as it is");
    story.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![running("a")],
    }));
    story.act();
    story.input(Input::Stepped(StepResult::Unpinned));
    story.at(10).check(left_out(observed('1', &old, &[&running("a")])));
    assert_eq!((story.kinds(), story.act()), (vec![Kind::ERROR, Kind::STARTED], None), "said once");
    for second in [20, 30, 40] {
        story.at(second).check(left_out(observed('1', &old, &[&exited("a", 1)])));
        story.act();
        let error = crate::model::ComposeError { cause: "port is taken".into(), output: String::new() };
        story.input(Input::Stepped(StepResult::Started {
            up: Err(error),
            named: Vec::new(),
            containers: vec![exited("a", 1)],
        }));
        story.act();
        story.input(Input::Stepped(StepResult::TagsRestored));
        story.act();
        story.input(Input::Stepped(StepResult::Unpinned));
    }
    assert_eq!(story.kinds(), [Kind::ERROR], "one fault, not two in turn");
}
