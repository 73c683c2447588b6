//! Stories of a question to the warden that was overtaken, and of leases that are partly used.

use super::*;

#[test]
fn a_verdict_that_comes_while_the_warden_is_asked_has_it_asked_again() {
    let news = || Input::Fleet(Arc::new(FleetView { verdicts: 7, ..present() }));
    let mut waits = story(present());
    assert!(waits.asks_fleet());
    waits.at(1).input(news());
    assert!(!waits.asks_fleet(), "it is being asked");
    waits.fleet_answers(Ok(answer(Permission::Wait, 60)));
    assert!(waits.asks_fleet(), "the answer may be older than the verdict");
    waits.fleet_answers(Ok(answer(Permission::Wait, 60)));
    assert!(!waits.asks_fleet(), "this one is not");
    assert_eq!(waits.gate().as_deref(), Some("ring"));

    let mut goes = story(present());
    assert!(goes.asks_fleet());
    goes.at(1).input(news());
    assert!(goes.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
}

#[test]
fn a_warden_without_time_holds_every_ring_for_some_seconds() {
    for ring in [0, 1] {
        let mut story = story(FleetView { ring, ..present() });
        assert!(story.asks_fleet());
        story.fleet_answers(Err(FleetError::Busy));
        assert!(!story.asks_fleet(), "ring {ring}");
        assert_eq!((story.gate().as_deref(), story.service.leases()), (Some("ring"), Vec::new()));
        assert_eq!(story.service.recheck_at, Some(story.start + SignedDuration::from_secs(10)));
        story.at(10).check(found('2'));
        assert!(story.asks_fleet());
    }
}
