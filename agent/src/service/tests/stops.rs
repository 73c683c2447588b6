//! Scenarios of stops: who caused them, and which containers are therefore not restarted.

use super::*;

#[test]
fn an_unhealthy_container_that_exited_may_have_been_stopped_manually() {
    for is_stopped in [true, false] {
        let mut scenario = Scenario::of(config());
        scenario.look(&[&with_health("a", HealthState::Unhealthy)]);
        assert_eq!(scenario.restarts(), ["a"]);
        let mut again = with_health("a", HealthState::Unhealthy);
        again.started_at = scenario.seconds(1);
        scenario.at(2).look(&[&again]);
        assert_eq!(scenario.restarts(), [""; 0], "the cooldown is not over");
        let ended = Container { started_at: again.started_at, ..exited("a", 143) };
        scenario.at(100).look(&[&ended]);
        assert_eq!(scenario.restarts(), [""; 0], "the event of the stop may still arrive");
        if is_stopped {
            scenario.event(&ended.id, EventKind::Stop);
        }
        scenario.at(103).look(&[&ended]);
        assert_eq!(scenario.restarts().len(), usize::from(!is_stopped));
    }
}

#[test]
fn a_recent_stop_request_defers_a_due_restart() {
    let mut scenario = Scenario::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    scenario.look(&[&sick]);
    assert_eq!(scenario.restarts(), ["a"]);
    let again = Container { started_at: scenario.seconds(1), ..sick };
    scenario.at(2).look(&[&again]);
    assert_eq!(scenario.restarts(), [""; 0], "the cooldown is not over");
    scenario.at(300).event("id-a", EventKind::Stop);
    assert_eq!(scenario.restarts(), [""; 0], "not before it was inspected");
    assert!(
        scenario.service.wake_at(scenario.now).is_some_and(|at| at <= scenario.now + Duration::from_secs(1))
    );
    let stopped =
        Container { started_at: again.started_at, finished_at: scenario.seconds(300), ..exited("a", 143) };
    scenario.at(301).look(&[&stopped]).at(310).look(&[&stopped]);
    assert_eq!(scenario.restarts(), [""; 0]);
}

#[test]
fn a_request_during_a_restart_does_not_begin_another_at_once() {
    let mut scenario = Scenario::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    scenario.look(&[&sick]);
    assert!(matches!(scenario.act(), Some(Action::Restart { .. })));
    scenario.service.on_global_trigger();
    scenario.input(Input::Restarted { name: "a".into(), result: Ok(()) });
    let again = Container { started_at: scenario.seconds(1), ..sick };
    scenario.at(2).look(&[&again]);
    assert_eq!(scenario.restarts(), [""; 0], "the cooldown counts from the restart in progress");
    assert_eq!(scenario.at(300).look(&[&again]).restarts(), ["a"]);
}

#[test]
fn a_stop_before_the_current_run_does_not_explain_its_end_after_the_clock_is_set_back() {
    let mut scenario = Scenario::of(config());
    scenario.at(10).look(&[&running("a")]).event("id-a", EventKind::Stop);
    let again = Container { started_at: scenario.seconds(11), ..running("a") };
    scenario.at(12).look(&[&again]);
    scenario.service.shift(SignedDuration::from_secs(-8));
    // By the clock it crashes before its start.
    let crashed =
        Container { started_at: scenario.seconds(11), finished_at: scenario.seconds(7), ..exited("a", 1) };
    scenario.at(7).look(&[&crashed]);
    assert_eq!(scenario.at(10).look(&[&crashed]).restarts(), ["a"]);
}

#[test]
fn a_program_that_ends_by_a_stop_longer_than_its_timeout_stays_down_although_nothing_more_was_seen() {
    // Its exit code, and whether it is restarted. A signal is no reason to crash much later.
    for (code, is_restarted) in [(143, false), (1, true), (137, true)] {
        for set_by in [0, -259_200] {
            let mut scenario = Scenario::of(config());
            scenario.at(10).look(&[&running("a")]).event("id-a", EventKind::Kill { signal: Some(15) });
            scenario.service.shift(SignedDuration::from_secs(set_by));
            let down = Container { finished_at: scenario.seconds(50 + set_by), ..exited("a", code) };
            scenario.at(51 + set_by).look(&[&down]).at(60 + set_by).look(&[&down]);
            assert_eq!(scenario.restarts().len(), usize::from(is_restarted), "{code}, set by {set_by}");
        }
    }
}

#[test]
fn a_stop_after_the_clock_was_set_is_no_part_of_a_restart_before() {
    for by in [30, -30] {
        let mut scenario = Scenario::of(config());
        let sick = with_health("a", HealthState::Unhealthy);
        scenario.at(100).look(&[&sick]);
        assert_eq!(scenario.restarts(), ["a"]);
        let again = Container { started_at: scenario.seconds(100), ..sick };
        scenario.at(102).look(&[&again]);
        scenario.service.shift(SignedDuration::from_secs(by));
        scenario
            .at(104 + by)
            .event("id-a", EventKind::Kill { signal: Some(15) })
            .event("id-a", EventKind::Stop);
        let end = scenario.seconds(104 + by);
        let stopped = Container { started_at: again.started_at, finished_at: end, ..exited("a", 143) };
        scenario.at(105 + by).look(&[&stopped]).at(300 + by).look(&[&stopped]);
        assert_eq!(scenario.restarts(), [""; 0], "{by}");
    }
}

#[test]
fn an_engine_outage_reported_late_applies_to_its_own_time() {
    for by in [0, 7200, -7200] {
        let mut scenario = Scenario::of(config());
        scenario.at(99).look(&[&running("a")]).at(100).event("id-a", EventKind::Stop);
        let gap = Input::EngineGap { at: scenario.now + Duration::from_secs(1) };
        let back = Input::EngineBack { at: scenario.now + Duration::from_secs(9), engine_since: None };
        // The disk refused writes for a minute, and the clock was set.
        scenario.service.shift(SignedDuration::from_secs(by));
        scenario.at(160 + by).input(gap).input(back);
        let ended = Container {
            finished_at: scenario.start.checked_add(Duration::from_secs(100)).ok(),
            ..exited("a", 0)
        };
        scenario.look(&[&ended]);
        assert_eq!(scenario.at(170 + by).look(&[&ended]).restarts(), ["a"], "{by}");
    }
}

#[test]
fn a_replayed_stop_between_two_engine_outages_counts_as_manual() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&running("a")]);
    scenario.at(100).engine_gap().at(101).engine_back();
    let stopped = scenario.at(105).event("id-a", EventKind::Stop).now;
    scenario.at(108).engine_gap().at(109).engine_back();
    scenario.input(Input::Event { at: stopped, id: "id-a".into(), what: EventKind::Stop });
    assert_eq!(scenario.at(130).look(&[&exited("a", 0)]).restarts(), [""; 0]);
}

#[test]
fn an_engine_that_was_started_before_the_clock_was_set_back_has_kept_running() {
    // (the engine's start after now, whether a stop in the gap was the engine's own)
    for (since, is_restarted) in [(600, false), (-1, true), (-3600, false)] {
        let mut scenario = Scenario::of(config());
        scenario.at(900).look(&[&running("a")]).at(1000).engine_gap();
        scenario.at(1003);
        let at = scenario.now;
        let engine_since = Some(at + SignedDuration::from_secs(since));
        scenario.input(Input::EngineBack { at, engine_since });
        let stop =
            Input::Event { at: at - SignedDuration::from_secs(2), id: "id-a".into(), what: EventKind::Stop };
        scenario.input(stop);
        let ended = Container { finished_at: scenario.seconds(1001), ..exited("a", 143) };
        scenario.look(&[&ended]).at(1100).look(&[&ended]);
        assert_eq!(scenario.restarts().len(), usize::from(is_restarted), "since {since}");
    }
}

#[test]
fn a_container_that_crashes_and_is_removed_at_once_is_reported() {
    // What happened before it ended, its exit code, and whether it has crashed.
    let told = |signal: i32| EventKind::Kill { signal: Some(signal) };
    for (before, exit_code, has_crashed) in [
        (None, 1, true),
        (None, 139, true),
        (Some(told(10)), 1, true),
        (Some(told(15)), 1, false),
        (Some(EventKind::Stop), 3, false),
        (None, 0, false),
        (None, 143, false),
    ] {
        let mut scenario = Scenario::of(config());
        scenario.at(10).look(&[&running("a")]).at(20);
        if let Some(before) = before.clone() {
            scenario.event("id-a", before);
        }
        scenario.event("id-a", EventKind::Die { exit_code }).event("id-a", EventKind::Destroy);
        // Events are replayed after a gap.
        scenario.event("id-a", EventKind::Destroy).look(&[]);
        let entry = scenario.entries.first().cloned();
        let expected = if has_crashed { vec![Kind::DIED] } else { Vec::new() };
        assert_eq!(scenario.kinds(), expected, "{before:?}, exit code {exit_code}");
        if let Some(entry) = entry {
            assert_eq!(entry.container.as_deref(), Some("a"));
            let reason = entry.reason.expect("a reason");
            assert!(reason.contains(&format!("code {exit_code}")) && reason.contains("--rm"), "{reason}");
        }
    }
}

#[test]
fn the_removal_of_a_container_that_was_known_to_be_down_is_no_crash() {
    let mut scenario = Scenario::of(config());
    scenario.at(10).look(&[&running("a")]).at(20).event("id-a", EventKind::Die { exit_code: 1 });
    scenario.look(&[&exited("a", 1)]).at(30).look(&[&exited("a", 1)]);
    assert_eq!(scenario.kinds(), [Kind::DIED]);
    scenario.at(500).event("id-a", EventKind::Destroy).look(&[]);
    assert_eq!(scenario.kinds(), []);
}

#[test]
fn a_service_whose_container_was_removed_while_it_was_down_stays_unhealthy_until_it_has_another_or_a_person_acts()
 {
    let (web, db) = (running("web"), exited("db", 1));
    let pruned = || {
        let mut scenario = Scenario::of(ServiceConfig { heal_max_restarts: 0, ..config() });
        scenario.at(10).event("id-db", EventKind::Die { exit_code: 1 });
        scenario.look(&[&web, &db]).at(20).look(&[&web, &db]);
        assert_eq!(scenario.status(), StatusValue::Exhausted);
        scenario.at(500).event("id-db", EventKind::Destroy).look(&[&web]);
        let record = scenario.record();
        assert_eq!((record.status, record.exhausted), (StatusValue::Unhealthy, false));
        let reason = "db was down when it was removed: bring up compose service db, or unblock the service if it is not \
                      wanted any more";
        assert_eq!(record.unhealthy_reason.as_deref(), Some(reason));
        scenario
    };
    let mut again = pruned();
    assert_eq!(again.at(600).look(&[&web, &running("db")]).status(), StatusValue::Ok);
    assert_eq!(again.at(601).look(&[&web]).status(), StatusValue::Ok, "one that runs may be removed");
    let mut taken_down = pruned();
    assert_eq!(taken_down.at(600).look(&[]).look(&[&web]).status(), StatusValue::Ok);
    let mut triggered = pruned();
    triggered.service.handle_request(ServiceRequest::Unblock, triggered.now);
    assert_eq!(triggered.look(&[&web]).status(), StatusValue::Ok);
}

#[test]
fn a_container_that_was_stopped_or_runs_again_may_be_removed() {
    let web = running("web");
    let mut scenario = Scenario::of(config());
    scenario.at(10).look(&[&web, &running("db")]).event("id-db", EventKind::Stop);
    scenario.event("id-db", EventKind::Die { exit_code: 1 }).look(&[&web, &exited("db", 1)]).at(20);
    scenario.look(&[&web, &exited("db", 1)]).look(&[&web]);
    assert_eq!(scenario.status(), StatusValue::Ok);
    // It has crashed, and runs again; whether it goes on is not known yet.
    let api = exited("api", 1);
    scenario.at(30).event("id-api", EventKind::Die { exit_code: 1 });
    scenario.look(&[&web, &api]).at(40).look(&[&web, &api]);
    assert_eq!(scenario.status(), StatusValue::Degraded);
    let started_at = scenario.seconds(41);
    scenario.at(42).look(&[&web, &Container { started_at, ..running("api") }]).look(&[&web]);
    assert_eq!(scenario.status(), StatusValue::Ok);
}
