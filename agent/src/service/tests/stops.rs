//! Stories of stops: whose they were, and what is not restarted for them.

use super::*;

#[test]
fn an_unwell_container_that_has_ended_may_have_been_stopped_by_a_person() {
    for is_stopped in [true, false] {
        let mut story = Story::of(config());
        story.look(&[&with_health("a", HealthState::Unhealthy)]);
        assert_eq!(story.restarts(), ["a"]);
        let mut again = with_health("a", HealthState::Unhealthy);
        again.started_at = story.seconds(1);
        story.at(2).look(&[&again]);
        assert_eq!(story.restarts(), [""; 0], "the cooldown is not over");
        let ended = Container { started_at: again.started_at, ..exited("a", 143) };
        story.at(100).look(&[&ended]);
        assert_eq!(story.restarts(), [""; 0], "the stop may be told yet");
        if is_stopped {
            story.event(&ended.id, EventKind::Stop);
        }
        story.at(103).look(&[&ended]);
        assert_eq!(story.restarts().len(), usize::from(!is_stopped));
    }
}

#[test]
fn a_stop_that_was_just_asked_for_keeps_back_a_restart_that_is_due() {
    let mut story = Story::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    story.look(&[&sick]);
    assert_eq!(story.restarts(), ["a"]);
    let again = Container { started_at: story.seconds(1), ..sick };
    story.at(2).look(&[&again]);
    assert_eq!(story.restarts(), [""; 0], "the cooldown is not over");
    story.at(300).event("id-a", EventKind::Stop);
    assert_eq!(story.restarts(), [""; 0], "not before it was inspected");
    assert!(story.service.wake_at(story.now).is_some_and(|at| at <= story.now + Duration::from_secs(1)));
    let stopped =
        Container { started_at: again.started_at, finished_at: story.seconds(300), ..exited("a", 143) };
    story.at(301).look(&[&stopped]).at(310).look(&[&stopped]);
    assert_eq!(story.restarts(), [""; 0]);
}

#[test]
fn a_request_during_a_restart_does_not_begin_another_at_once() {
    let mut story = Story::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    story.look(&[&sick]);
    assert!(matches!(story.act(), Some(Action::Restart { .. })));
    story.service.asked_with_all();
    story.input(Input::Restarted { name: "a".into(), result: Ok(()) });
    let again = Container { started_at: story.seconds(1), ..sick };
    story.at(2).look(&[&again]);
    assert_eq!(story.restarts(), [""; 0], "the cooldown counts from the restart that was under way");
    assert_eq!(story.at(300).look(&[&again]).restarts(), ["a"]);
}

#[test]
fn a_stop_before_the_present_run_is_not_taken_for_its_end_when_the_clock_is_set_back() {
    let mut story = Story::of(config());
    story.at(10).look(&[&running("a")]).event("id-a", EventKind::Stop);
    let again = Container { started_at: story.seconds(11), ..running("a") };
    story.at(12).look(&[&again]);
    story.service.shift(SignedDuration::from_secs(-8));
    // It crashes by a clock that shows less than when it was started.
    let crashed =
        Container { started_at: story.seconds(11), finished_at: story.seconds(7), ..exited("a", 1) };
    story.at(7).look(&[&crashed]);
    assert_eq!(story.at(10).look(&[&crashed]).restarts(), ["a"]);
}

#[test]
fn an_absence_of_the_engine_that_is_told_late_is_meant_for_its_time() {
    for by in [0, 7200, -7200] {
        let mut story = Story::of(config());
        story.at(99).look(&[&running("a")]).at(100).event("id-a", EventKind::Stop);
        let gap = Input::EngineGap { at: story.now + Duration::from_secs(1) };
        let back = Input::EngineBack { at: story.now + Duration::from_secs(9) };
        // The disk refused writes for a minute, and the clock was set.
        story.service.shift(SignedDuration::from_secs(by));
        story.at(160 + by).input(gap).input(back);
        let ended = Container {
            finished_at: story.start.checked_add(Duration::from_secs(100)).ok(),
            ..exited("a", 0)
        };
        story.look(&[&ended]);
        assert_eq!(story.at(170 + by).look(&[&ended]).restarts(), ["a"], "{by}");
    }
}

#[test]
fn a_stop_between_two_absences_of_the_engine_is_a_persons_when_it_is_told_again() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]);
    story.at(100).engine_gap().at(101).engine_back();
    let stopped = story.at(105).event("id-a", EventKind::Stop).now;
    story.at(108).engine_gap().at(109).engine_back();
    story.input(Input::Event { at: stopped, id: "id-a".into(), what: EventKind::Stop });
    assert_eq!(story.at(130).look(&[&exited("a", 0)]).restarts(), [""; 0]);
}
