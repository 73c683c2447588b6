//! Stories of what other programs and broken connections do again and again: it ends all the same.

use super::*;
use crate::model::ComposeError;

/// A failed `compose up` after which these containers are there.
fn failed(containers: Vec<Container>) -> StepResult {
    let error = ComposeError { cause: "dependency failed to start".into(), output: String::new() };
    StepResult::Started { up: Err(error), named: Vec::new(), containers }
}

fn of_image_two(name: &str) -> Container {
    Container { image: ImageId("sha256:two".into()), ..running(name) }
}

#[test]
fn another_healer_does_not_keep_a_probation_going() {
    let mut story = on_probation();
    for at in (0..600).step_by(5) {
        let begun = story.seconds(at);
        let fresh = Container { started_at: begun, ..with_health("b", HealthState::Starting) };
        story.at(at).look(&[&fresh]);
        if story.service.durable().blocked.contains_key(IMAGE) {
            assert!(at > 10, "the restarts that a person may make are allowed for");
            return;
        }
        let sick = Container { health: Some(HealthState::Unhealthy), ..fresh };
        story.at(at + 4).look(&[&sick]).event(&sick.id, EventKind::Stop);
    }
    panic!("it is on probation for ever");
}

#[test]
fn a_failing_up_is_not_repeated_for_ever_where_the_event_stream_breaks_each_time() {
    let mut story = pulled();
    let crashed = Container { state: State::Exited, exit_code: 1, ..of_image_two("b") };
    let mut ups = 0;
    while !story.service.durable().blocked.contains_key(IMAGE) {
        assert!(matches!(story.act(), Some(Action::Step(Step::Start { .. }))), "{:?}", story.said);
        story.engine_gap().input(Input::Stepped(failed(vec![crashed.clone()])));
        ups += 1;
        assert!(ups < 20, "it is brought up for ever");
        story.at(ups * 100);
    }
    assert!(ups > 5, "a stream that breaks now and then is allowed for");
}

#[test]
fn what_runs_already_is_not_blocked_where_compose_fails_after_an_interruption() {
    let mut story = on_probation();
    let new = Container { compose_service: "a".into(), ..of_image_two("b") };
    story.look(&[&new]).engine_gap().at(5);
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { .. }))));
    story.input(Input::Stepped(failed(vec![new.clone()])));
    assert!(story.service.durable().blocked.is_empty());
    story.look(&[&new]).at(100).look(&[&new]);
    assert_eq!(story.kinds().last(), Some(&Kind::UPDATED));
}

#[test]
fn a_redeploy_is_not_answered_by_a_check_that_began_before_it() {
    let mut story = Story::of(config());
    story.service.check(true);
    assert!(matches!(story.service.next(story.now), Some(Action::Check { .. })));
    story.service.ask(ServiceRequest::Redeploy, story.now);
    let same = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
    story.check(same.clone());
    assert!(story.service.redeploy_asked, "the next check is to answer it");
    assert!(matches!(story.service.next(story.now), Some(Action::Check { images: true, .. })));
    story.check(same);
    assert!(matches!(story.act(), Some(Action::Step(Step::PinImages { .. }))));
}

#[test]
fn an_old_event_told_again_does_not_put_off_a_start() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    let (now, hour) = (story.now, SignedDuration::from_hours(1));
    let mut seen = observed('1', &[], &[&exited("a", 1)]);
    seen.images[0].tagged = Some(local("sha256:one", &['1']));
    story.input(Input::Event { at: now - hour, id: "a".into(), what: EventKind::Destroy });
    story.check(seen.clone());
    assert_eq!(story.service.wanted, Some(Cause::Start));

    // One of just now does, until it is calm again.
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    story.event("a", EventKind::Destroy);
    story.check(seen);
    assert_eq!(story.service.wanted, None);
    assert!(story.service.recheck_at.is_some_and(|at| at <= now + SignedDuration::from_mins(1)));
}

#[test]
fn an_image_whose_rollback_failed_is_not_restarted() {
    let mut story = Story::of(config());
    story.service.durable.rollback_failed = true;
    story.service.durable.unproven.insert(IMAGE.into(), ImageId("sha256:two".into()));
    let bad = Container { state: State::Exited, exit_code: 1, ..of_image_two("b") };
    let other = Container { image: ImageId("sha256:one".into()), ..exited("c", 1) };
    for at in [0, 30, 60, 120] {
        story.at(at).look(&[&bad, &other]);
        assert!(story.restarts().iter().all(|name| name == "c"));
    }
    assert!(story.kinds().contains(&Kind::RESTARTING), "the other one is healed");
}

/// Nobody attempts anything: a person has to, and must not be told that the healer is at work.
#[test]
fn an_image_whose_rollback_failed_is_shown_as_blocked_and_not_as_being_healed() {
    let mut story = Story::of(config());
    story.service.durable.rollback_failed = true;
    story.service.durable.unproven.insert(IMAGE.into(), ImageId("sha256:two".into()));
    story.service.durable.blocked.insert(IMAGE.into(), digest('2'));
    let bad = Container { state: State::Exited, exit_code: 1, ..of_image_two("b") };
    story.look(&[&bad]).at(30).look(&[&bad]);
    assert_eq!((story.kinds(), story.status()), (vec![Kind::DIED], StatusValue::Blocked));
    let other = Container { image: ImageId("sha256:one".into()), ..exited("c", 1) };
    story.look(&[&bad, &other]).at(60).look(&[&bad, &other]);
    assert_eq!(story.status(), StatusValue::Degraded, "the other one is healed");
}

#[test]
fn an_edit_of_the_files_is_not_forgotten_where_a_redeploy_fails() {
    let mut story = Story::of(ServiceConfig { compose_watch: true, ..config() });
    story.service.durable.files_hash = Some("old".into());
    story.service.files_seen = Some("new".into());
    story.service.seen = Some(Arc::new(observed('1', &[local("sha256:one", &['1'])], &[&running("a")])));
    assert!(story.service.begin(Cause::Redeploy, story.now));
    assert!(story.service.durable.files_pending);
    story.service.abandon("port is taken".into(), String::new(), story.now);
    assert!(story.service.durable.files_pending, "compose_watch applies it");
}
