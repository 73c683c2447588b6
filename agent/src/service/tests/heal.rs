//! Scenarios of containers that crash, and of those that were stopped on purpose.

use super::*;

#[test]
fn a_crashed_container_is_restarted_after_it_settles() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&exited("a", 1)]);
    assert_eq!(scenario.restarts(), [""; 0], "the engine may still restart it by itself");
    assert_eq!(scenario.at(2).look(&[&exited("a", 1)]).restarts(), ["a"]);
    assert_eq!(scenario.kinds(), [Kind::DIED, Kind::RESTARTING]);
    assert_eq!(scenario.status(), StatusValue::Degraded);
    let mut again = running("a");
    again.started_at = scenario.seconds(3);
    scenario.at(4).look(&[&again]);
    assert_eq!(scenario.kinds(), [], "without a health check it has to keep running for a while");
    scenario.at(14).look(&[&again]);
    assert_eq!(scenario.kinds(), [Kind::RESTARTED]);
    assert_eq!(scenario.status(), StatusValue::Ok);
}

#[test]
fn requested_stops_are_not_healed() {
    let kill = |signal| EventKind::Kill { signal: Some(signal) };
    let scenarios: &[(&str, &[EventKind], i64)] = &[
        ("docker stop", &[kill(15), EventKind::Die { exit_code: 143 }, EventKind::Stop], 143),
        (
            "docker stop that needs KILL",
            &[kill(15), kill(9), EventKind::Die { exit_code: 137 }, EventKind::Stop],
            137,
        ),
        ("docker kill", &[kill(9), EventKind::Die { exit_code: 137 }], 137),
        ("custom stop signal", &[kill(2), EventKind::Die { exit_code: 1 }, EventKind::Stop], 1),
        ("podman, which does not report the signal", &[EventKind::Kill { signal: None }], 1),
    ];
    for (what, events, code) in scenarios {
        let mut scenario = Scenario::of(config());
        scenario.look(&[&running("a")]);
        for event in *events {
            scenario.event("id-a", event.clone());
        }
        for second in [1, 3, 10, 100, 1000] {
            assert_eq!(scenario.at(second).look(&[&exited("a", *code)]).restarts(), [""; 0], "{what}");
        }
        assert_eq!(scenario.kinds(), [], "{what}");
    }
}

#[test]
fn a_signal_that_is_no_stop_does_not_excuse_a_crash() {
    for signal in [1, 10, 18, 21, 28] {
        let mut scenario = Scenario::of(config());
        scenario.look(&[&running("a")]).event("id-a", EventKind::Kill { signal: Some(signal) });
        scenario.at(3).look(&[&exited("a", 3)]);
        assert_eq!(scenario.at(5).look(&[&exited("a", 3)]).restarts(), ["a"], "signal {signal}");
    }
}

#[test]
fn a_containers_own_stop_signal_is_a_stop() {
    let mut scenario = Scenario::of(config());
    let container = Container { stop_signal: 1, ..running("a") };
    scenario.look(&[&container]).event("id-a", EventKind::Kill { signal: Some(1) });
    for second in [3, 5, 100] {
        assert_eq!(scenario.at(second).look(&[&exited("a", 3)]).restarts(), [""; 0]);
    }
}

#[test]
fn a_stop_signal_that_a_container_survived_does_not_excuse_a_crash_an_hour_later() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&running("a")]).event("id-a", EventKind::Kill { signal: Some(15) });
    let ended = |at: Option<Timestamp>| Container { finished_at: at, ..exited("a", 137) };
    let crashed = ended(scenario.seconds(3600));
    scenario.at(3601).look(&[&crashed]);
    assert_eq!(scenario.at(3604).look(&[&crashed]).restarts(), ["a"]);
    // A stop that takes this long is also reported at its end.
    let mut scenario = Scenario::of(config());
    scenario.look(&[&running("a")]).event("id-a", EventKind::Kill { signal: Some(15) });
    let stopped = ended(scenario.seconds(60));
    scenario.at(60).event("id-a", EventKind::Stop);
    for second in [61, 64, 100] {
        assert_eq!(scenario.at(second).look(&[&stopped]).restarts(), [""; 0]);
    }
}

#[test]
fn a_finished_one_shot_is_not_healed() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&exited("job", 0)]);
    assert_eq!(scenario.at(60).look(&[&exited("job", 0)]).restarts(), [""; 0]);
    assert_eq!(scenario.kinds(), []);
}

#[test]
fn a_container_that_has_served_is_healed_also_if_it_ends_with_code_0() {
    let ended = Container { served: true, restart_policy: RestartPolicy::OnFailure, ..exited("vpn", 0) };
    // It ends once more, after it has served, or before that.
    for served in [true, false] {
        let mut scenario = Scenario::of(config());
        scenario.look(&[&ended]);
        assert_eq!(scenario.at(2).look(&[&ended]).restarts(), ["vpn"]);
        assert_eq!(scenario.kinds(), [Kind::DIED, Kind::RESTARTING]);
        let again = Container { started_at: scenario.seconds(3), served, ..ended.clone() };
        scenario.at(4).look(&[&again]);
        assert_eq!(scenario.kinds(), [Kind::RESTART_FAILED], "{served}");
    }
    // A person has stopped it.
    let mut scenario = Scenario::of(config());
    scenario.look(&[&running("vpn")]).event("id-vpn", EventKind::Kill { signal: Some(15) });
    for second in [1, 3, 100] {
        assert_eq!(scenario.at(second).look(&[&ended]).restarts(), [""; 0]);
    }
    // Or may have, before the agent was started.
    let mut scenario = Scenario::of(config());
    scenario.service.healer.events_unseen_before(scenario.now);
    let ended = Container { finished_at: Some("2025-12-31T23:30:00Z".parse().unwrap()), ..ended };
    for second in [1, 3, 100] {
        assert_eq!(scenario.at(second).look(&[&ended]).restarts(), [""; 0]);
    }
    assert_eq!(scenario.kinds(), []);
}

#[test]
fn a_server_whose_last_probes_have_all_failed_is_no_finished_job_if_it_ends_with_code_0() {
    for (first, is_server) in [(HealthState::Healthy, true), (HealthState::Starting, false)] {
        let mut scenario = Scenario::of(config());
        let sick = with_health("vpn", HealthState::Unhealthy);
        scenario.look(&[&with_health("vpn", first)]);
        assert_eq!(scenario.at(10).look(&[&sick]).restarts(), ["vpn"]);
        let again = Container { started_at: scenario.seconds(11), ..sick };
        scenario.at(20).look(&[&again]);
        assert_eq!(scenario.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
        // The engine remembers only the probes that have failed.
        let ended = Container { state: State::Exited, health: None, ..again };
        scenario.at(30).event("id-vpn", EventKind::Die { exit_code: 0 }).look(&[&ended]);
        scenario.at(32).look(&[&ended]);
        assert_eq!(scenario.restarts(), [""; 0], "the cooldown is not over");
        assert_eq!(scenario.kinds() == [Kind::DIED], is_server);
        assert_eq!(scenario.at(70).restarts().len(), usize::from(is_server));
    }
}

#[test]
fn containers_stopped_by_the_engine_at_its_shutdown_are_restarted() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&running("a")]);
    scenario.at(100).event("id-a", EventKind::Kill { signal: Some(15) }).event("id-a", EventKind::Stop);
    scenario.at(101).engine_gap().at(102).engine_back();
    scenario.at(103).look(&[&exited("a", 0)]);
    assert_eq!(scenario.restarts(), [""; 0], "the engine restarts its containers first");
    assert_eq!(scenario.at(110).look(&[&exited("a", 0)]).restarts(), ["a"]);
}

#[test]
fn containers_stopped_by_an_engine_that_recovers_from_a_crash_are_restarted() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&running("a")]);
    scenario.at(100).engine_gap();
    let at = scenario.start + SignedDuration::from_secs(103);
    let what = EventKind::Kill { signal: Some(15) };
    scenario.at(105).engine_back().input(Input::Event { at, id: "id-a".into(), what });
    scenario.at(106).look(&[&exited("a", 0)]);
    assert_eq!(scenario.at(113).look(&[&exited("a", 0)]).restarts(), ["a"]);
    // A later stop counts as requested again.
    let mut fresh = running("a");
    fresh.started_at = scenario.seconds(114);
    scenario.at(150).look(&[&fresh]).event("id-a", EventKind::Kill { signal: Some(15) });
    assert_eq!(
        scenario.at(300).look(&[&Container { started_at: fresh.started_at, ..exited("a", 143) }]).restarts(),
        [""; 0]
    );
}

#[test]
fn a_stop_from_before_the_stream_broke_still_counts_when_it_is_replayed() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&running("a")]);
    scenario.at(100).event("id-a", EventKind::Kill { signal: Some(15) });
    scenario.at(101).engine_gap();
    // Replayed with its original time, which is before the break.
    let at = scenario.start + SignedDuration::from_secs(100);
    let what = EventKind::Kill { signal: Some(15) };
    scenario.at(102).engine_back().input(Input::Event { at, id: "id-a".into(), what });
    assert_eq!(scenario.at(120).look(&[&exited("a", 143)]).restarts(), [""; 0]);
}

#[test]
fn a_run_that_a_busy_engine_started_late_helps_only_if_it_lasts() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&exited("a", 7)]);
    assert_eq!(scenario.at(3).look(&[&exited("a", 7)]).restarts(), ["a"]);
    scenario.kinds();
    // Its grace is long over when the run begins at last, and it has proven nothing yet.
    let grace = i64::try_from(scenario.service.config.health_grace.as_secs()).unwrap();
    let begun = 3 + 2 * grace;
    let again = Container { started_at: scenario.seconds(begun), ..running("a") };
    scenario.at(begun).look(&[&again]);
    assert_eq!(scenario.kinds(), []);
    scenario.at(begun + 1).look(&[&Container { started_at: again.started_at, ..exited("a", 7) }]);
    assert_eq!(scenario.kinds(), [Kind::RESTART_FAILED]);
}

#[test]
fn the_state_of_a_container_during_its_restart_proves_nothing() {
    let mut scenario = Scenario::of(config());
    let unhealthy = with_health("a", HealthState::Unhealthy);
    scenario.look(&[&unhealthy]);
    assert!(matches!(scenario.act(), Some(Action::Restart { .. })));
    scenario.event("id-a", EventKind::Kill { signal: Some(15) });
    for second in [1, 5, 60] {
        scenario.at(second).look(&[&exited("a", 137)]);
        assert_eq!(scenario.act(), None);
    }
    scenario.input(Input::Restarted { name: "a".into(), result: Ok(()) });
    let again = Container { started_at: scenario.seconds(60), ..unhealthy };
    scenario.at(61).look(&[&again]);
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
}

#[test]
fn a_clock_change_neither_shortens_nor_extends_a_cooldown() {
    for by in [3600, -3600] {
        let mut scenario = Scenario::of(config());
        scenario.look(&[&with_health("a", HealthState::Unhealthy)]);
        assert_eq!(scenario.restarts(), ["a"]);
        let fresh = Container { started_at: scenario.seconds(1), ..with_health("a", HealthState::Unhealthy) };
        scenario.at(8).look(&[&fresh]);
        scenario.service.shift(SignedDuration::from_secs(by));
        assert_eq!(scenario.at(by + 59).look(&[&fresh]).restarts(), [""; 0], "{by}");
        assert_eq!(scenario.at(by + 60).look(&[&fresh]).restarts(), ["a"], "{by}");
    }
}

#[test]
fn a_container_that_can_not_be_inspected_is_not_healthy_again() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&with_health("a", HealthState::Unhealthy)]);
    assert_eq!(scenario.restarts(), ["a"]);
    scenario.kinds();
    let unknown = Container { state: State::Unknown, started_at: None, ..running("a") };
    for second in [1, 20, 200] {
        assert_eq!(scenario.at(second).look(&[&unknown]).restarts(), [""; 0]);
    }
    assert_eq!((scenario.kinds(), scenario.status()), (vec![], StatusValue::Degraded));
}

#[test]
fn a_container_that_could_not_be_inspected_is_inspected_again_without_an_event() {
    let mut scenario = Scenario::of(config());
    assert_eq!(scenario.act(), None);
    let unknown = Container { state: State::Unknown, started_at: None, ..running("a") };
    scenario.look(&[&unknown]);
    assert_eq!(scenario.service.wake_at(scenario.now), scenario.seconds(15));
    assert_eq!(scenario.at(15).act(), None);
    assert_eq!(scenario.look(&[&with_health("a", HealthState::Unhealthy)]).restarts(), ["a"]);
}

#[test]
fn a_container_that_can_never_be_inspected_is_inspected_less_and_less_often() {
    let mut scenario = Scenario::of(config());
    let unknown = Container { state: State::Unknown, started_at: None, ..running("a") };
    let mut second = 0;
    for pause in [15, 15, 30, 60, 120, 240, 300, 300] {
        assert_eq!(scenario.at(second).act(), None);
        scenario.look(&[&unknown]);
        second += pause;
        assert_eq!(scenario.service.wake_at(scenario.now), scenario.seconds(second));
    }
    // It could be inspected in between.
    assert_eq!(scenario.at(second).act(), None);
    scenario.look(&[&running("a")]).look(&[&unknown]);
    assert_eq!(scenario.service.wake_at(scenario.now), scenario.seconds(second + 15));
}

#[test]
fn an_inspection_without_an_answer_is_repeated_unless_the_event_stream_is_awaited() {
    let mut scenario = Scenario::of(config());
    for is_in_gap in [false, true] {
        scenario.at(100);
        if is_in_gap {
            scenario.engine_gap();
        }
        assert_eq!(scenario.act(), None);
        let generation = scenario.service.inspection_generation();
        let late = EngineError::Unavailable("no answer within 10 s".into());
        scenario.input(Input::Inspected { generation, result: Err(late) });
        let wake = scenario.service.wake_at(scenario.now);
        assert_eq!(wake == scenario.seconds(115), !is_in_gap, "{wake:?}");
    }
}

#[test]
fn a_restart_that_hangs_for_one_container_counts_as_failed() {
    let mut scenario = Scenario::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    for second in [0, 60, 120] {
        scenario.at(second).look(&[&sick]);
        let Some(Action::Restart { name, .. }) = scenario.act() else {
            panic!("a restart is due at {second}")
        };
        let hangs = EngineError::Refused("restart container a: no answer within 150 s".into());
        scenario.input(Input::Restarted { name, result: Err(hangs) });
        assert_eq!(scenario.look(&[&sick]).restarts(), [""; 0], "not within the cooldown");
    }
    assert_eq!(scenario.at(1000).look(&[&sick]).restarts(), [""; 0]);
    assert_eq!(scenario.status(), StatusValue::Exhausted);
}

#[test]
fn the_cooldown_is_respected_and_the_restart_follows_when_it_ends() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&with_health("a", HealthState::Unhealthy)]);
    assert_eq!(scenario.restarts(), ["a"]);
    let mut fresh = with_health("a", HealthState::Unhealthy);
    fresh.started_at = scenario.seconds(1);
    scenario.at(8).look(&[&fresh]);
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
    assert_eq!(scenario.restarts(), [""; 0]);
    let wake = scenario.service.wake_at(scenario.now).unwrap();
    assert_eq!(Some(wake), scenario.seconds(60), "the end of the cooldown, not the next event");
    assert_eq!(scenario.at(60).restarts(), ["a"]);
}

#[test]
fn the_healer_gives_up_once_at_the_limit_and_a_request_resets_it() {
    let mut scenario = Scenario::of(config());
    let mut time = 0;
    let mut sick = with_health("a", HealthState::Unhealthy);
    for _ in 0..3 {
        assert_eq!(scenario.at(time).look(&[&sick]).restarts(), ["a"]);
        sick.started_at = scenario.seconds(time + 1);
        scenario.at(time + 10).look(&[&sick]);
        time += 70;
    }
    for second in [time, time + 100, time + 1000] {
        assert_eq!(scenario.at(second).look(&[&sick]).restarts(), [""; 0]);
    }
    let kinds = scenario.kinds();
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::RESTARTING).count(), 3);
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::EXHAUSTED).count(), 1);
    assert_eq!(scenario.status(), StatusValue::Exhausted);
    assert_eq!(scenario.service.durable().totals.restarts, 3);

    let (_, entries) = scenario.service.handle_request(ServiceRequest::Unblock, scenario.now);
    assert_eq!(entries, []);
    assert_eq!(scenario.at(time + 1001).look(&[&sick]).restarts(), ["a"]);
}

#[test]
fn a_healthy_container_does_not_hide_an_unhealthy_one() {
    let mut scenario = Scenario::of(ServiceConfig { auto_heal: false, ..config() });
    let (well, sick) = (with_health("a", HealthState::Healthy), with_health("b", HealthState::Unhealthy));
    scenario.look(&[&well, &sick]);
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY]);
    assert_eq!(scenario.restarts(), [""; 0], "without auto_heal it is only reported");
    assert_eq!(scenario.status(), StatusValue::Unhealthy);
    scenario.at(5).look(&[&well, &with_health("b", HealthState::Healthy)]);
    assert_eq!(scenario.kinds(), [Kind::HEALTHY]);
    assert_eq!(scenario.status(), StatusValue::Ok);
    scenario.at(8).look(&[&well, &sick]);
    assert_eq!((scenario.kinds(), scenario.status()), (Vec::new(), StatusValue::Unhealthy));
    scenario.at(65).look(&[&well, &sick]);
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY], "it lasts; there was no restart that could have failed");
}

#[test]
fn a_health_check_that_flaps_is_told_once_per_cooldown() {
    let cooldown = Duration::from_mins(5);
    let mut scenario = Scenario::of(ServiceConfig { auto_heal: false, heal_cooldown: cooldown, ..config() });
    for second in (0..600).step_by(6) {
        scenario.at(second).look(&[&with_health("a", HealthState::Unhealthy)]);
        assert_eq!(scenario.status(), StatusValue::Unhealthy);
        scenario.at(second + 3).look(&[&with_health("a", HealthState::Healthy)]);
        assert_eq!(scenario.status(), StatusValue::Ok);
    }
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY, Kind::HEALTHY, Kind::UNHEALTHY, Kind::HEALTHY]);
    // A crash is told at once.
    scenario.at(600).look(&[&exited("a", 1)]);
    scenario.at(602).look(&[&exited("a", 1)]);
    assert_eq!(scenario.kinds(), [Kind::DIED]);
}

#[test]
fn many_containers_that_crash_at_once_are_each_restarted_once() {
    let mut scenario = Scenario::of(config());
    let crashed: Vec<Container> = (0..20).map(|n| exited(&format!("c{n:02}"), 1)).collect();
    let all: Vec<&Container> = crashed.iter().collect();
    scenario.look(&all);
    assert_eq!(scenario.at(3).look(&all).restarts().len(), 20);
    assert_eq!(scenario.at(4).look(&all).restarts().len(), 0);
    assert_eq!(scenario.service.durable().totals.restarts, 20);
}

#[test]
fn a_restart_without_an_answer_from_the_engine_does_not_count() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&exited("a", 1)]).at(2).look(&[&exited("a", 1)]);
    let Some(Action::Restart { name, .. }) = scenario.act() else { panic!("a restart is due") };
    let away = EngineError::Unavailable("gone".into());
    scenario.input(Input::Restarted { name, result: Err(away) });
    assert_eq!(scenario.restarts(), [""; 0], "it is inspected first");
    assert_eq!(scenario.service.wake_at(scenario.now), scenario.seconds(3), "and not at once");
    assert_eq!(scenario.at(4).look(&[&exited("a", 1)]).restarts(), ["a"]);
    assert_eq!(scenario.service.durable().totals.restarts, 1);
}

#[test]
fn a_container_that_never_started_is_seen_without_any_event() {
    let mut scenario = Scenario::of(config());
    let stuck = Container {
        state: State::Created,
        error: "exec: no such file".into(),
        started_at: None,
        ..running("a")
    };
    scenario.look(&[&stuck]);
    assert_eq!(scenario.at(3).look(&[&stuck]).restarts(), ["a"]);
}

#[test]
fn the_healer_restarts_a_container_with_a_restart_policy_only_in_a_crash_loop() {
    let mut scenario = Scenario::of(config());
    let looping = |count| Container {
        restart_count: count,
        restart_policy: RestartPolicy::Always,
        exit_code: 1,
        ..running("a")
    };
    scenario.look(&[&looping(0)]).at(5).look(&[&looping(1)]);
    assert_eq!(scenario.restarts(), [""; 0], "one restart is left to the engine");
    scenario.at(8).look(&[&looping(3)]);
    assert_eq!(scenario.at(11).look(&[&looping(4)]).restarts(), ["a"]);
}

/// Looks at the container at the start of each run, and in the middle of it. Returns when it was restarted by the healer.
fn loops(scenario: &mut Scenario, seconds: i64, exit_code: i64, until: i64) -> Vec<i64> {
    let (mut restarted, mut count) = (Vec::new(), 0);
    for begun in (0..until).step_by(usize::try_from(seconds).unwrap()) {
        let run = Container {
            started_at: scenario.seconds(begun),
            restart_count: count,
            restart_policy: RestartPolicy::Always,
            ..running("a")
        };
        for second in [begun, begun + 3, begun + seconds - 1] {
            scenario.at(second).look(&[&run]);
            if !scenario.restarts().is_empty() {
                restarted.push(second);
                break;
            }
        }
        count = if restarted.last().is_some_and(|at| *at >= begun) { 0 } else { count + 1 };
        scenario.at(begun + seconds).event("id-a", EventKind::Die { exit_code });
    }
    restarted
}

#[test]
fn a_container_that_crashes_after_each_run_is_in_a_loop_however_short_the_back_off_of_the_engine() {
    for seconds in [12, 25, 40] {
        let mut scenario = Scenario::of(config());
        let restarted = loops(&mut scenario, seconds, 1, 40 * seconds);
        assert_eq!(restarted.len(), 3, "{seconds}: {restarted:?}");
        let kinds = scenario.kinds();
        let exhausted = kinds.iter().filter(|kind| **kind == Kind::EXHAUSTED).count();
        assert_eq!((exhausted, scenario.status()), (1, StatusValue::Exhausted), "{seconds}: {kinds:?}");
        assert!(!kinds.contains(&Kind::HEALTHY), "{seconds}: {kinds:?}");
    }
    // A run that is long enough proves the restart, so there is no end.
    let mut scenario = Scenario::of(config());
    assert!(loops(&mut scenario, 90, 1, 3000).len() > 3);
    assert!(scenario.kinds().contains(&Kind::DIED));
    // It finishes its work, or crashes rarely.
    for (seconds, exit_code) in [(12, 0), (35, 0), (90, 0), (400, 1)] {
        let mut scenario = Scenario::of(config());
        assert_eq!(loops(&mut scenario, seconds, exit_code, 20 * seconds), [0; 0], "{seconds}");
        assert_eq!(scenario.kinds(), []);
    }
}

#[test]
fn a_slow_crash_loop_is_over_once_a_run_has_lasted() {
    let mut scenario = Scenario::of(ServiceConfig { auto_heal: false, ..config() });
    loops(&mut scenario, 25, 1, 125);
    assert_eq!(scenario.kinds(), [Kind::DIED]);
    let run = |scenario: &Scenario| Container {
        started_at: scenario.seconds(125),
        restart_count: 5,
        restart_policy: RestartPolicy::Always,
        ..running("a")
    };
    let run = run(&scenario);
    scenario.at(160).look(&[&run]);
    assert_eq!(scenario.kinds(), []);
    scenario.at(330).look(&[&run]);
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::HEALTHY], StatusValue::Ok));
}

#[test]
fn the_healer_at_its_restart_limit_waits_for_a_restart_to_finish() {
    let mut scenario = Scenario::of(config());
    let down: Vec<Container> = (0..20).map(|n| exited(&format!("web{n:02}"), 1)).collect();
    let down: Vec<&Container> = down.iter().collect();
    scenario.at(0).look(&down).at(2).look(&down);
    let mut begun = Vec::new();
    while let Some(action) = scenario.act() {
        let Action::Restart { name, .. } = action else { panic!("expected restarts only, got {action:?}") };
        begun.push(name);
    }
    assert_eq!(begun.len(), 8);
    let wake = scenario.service.wake_at(scenario.now);
    assert!(wake.is_none_or(|at| at > scenario.now), "it would spin: {wake:?}");
    scenario.input(Input::Restarted { name: begun.remove(0), result: Ok(()) }).look(&down);
    assert!(matches!(scenario.act(), Some(Action::Restart { .. })));
}

/// Lets the healer restart the container, which is healthy for a few seconds afterwards.
fn restarted_and_well(scenario: &mut Scenario, second: i64) -> Container {
    assert_eq!(scenario.at(second).restarts(), ["a"]);
    let well =
        Container { started_at: scenario.seconds(second + 1), ..with_health("a", HealthState::Healthy) };
    scenario.at(second + 2).look(&[&well]);
    well
}

#[test]
fn a_container_that_recovers_only_briefly_after_each_restart_is_given_up_eventually() {
    for cooldown in [1, 5, 3600] {
        let mut scenario =
            Scenario::of(ServiceConfig { heal_cooldown: Duration::from_secs(cooldown), ..config() });
        let cooldown = i64::try_from(cooldown).unwrap();
        let mut sick = with_health("a", HealthState::Unhealthy);
        let mut second = 0;
        let mut kinds = Vec::new();
        for round in 1..=3 {
            scenario.at(second).look(&[&sick]);
            kinds.extend(scenario.kinds());
            let well = restarted_and_well(&mut scenario, second);
            assert_eq!(
                scenario.kinds(),
                [Kind::RESTARTING, Kind::RESTARTED],
                "reported at once, round {round}"
            );
            assert_eq!(scenario.status(), StatusValue::Ok);
            assert_eq!(scenario.record().restart_failures, round - 1);
            sick.started_at = well.started_at;
            scenario.at(second + 30).look(&[&sick]);
            kinds.extend(scenario.kinds());
            second += cooldown.max(31);
        }
        assert_eq!(scenario.at(second + 10_000).look(&[&sick]).restarts(), [""; 0]);
        kinds.extend(scenario.kinds());
        let failed = [Kind::UNHEALTHY, Kind::RESTART_FAILED];
        let told = [&[Kind::UNHEALTHY][..], &failed, &failed, &failed, &[Kind::EXHAUSTED]].concat();
        assert_eq!(kinds, told, "cooldown {cooldown}");
        assert_eq!(scenario.status(), StatusValue::Exhausted);
        assert_eq!(scenario.service.durable().totals.failures, 3);
    }
}

#[test]
fn a_restart_that_helped_for_long_is_no_failure_when_the_container_fails_again() {
    let mut scenario = Scenario::of(config());
    let mut second = 0;
    let mut sick = with_health("a", HealthState::Unhealthy);
    for _ in 0..10 {
        scenario.at(second).look(&[&sick]);
        let well = restarted_and_well(&mut scenario, second);
        let wake = scenario.service.wake_at(scenario.now).unwrap();
        // A cooldown, plus the time that its health check takes to fail.
        assert_eq!(wake, scenario.now + Duration::from_mins(1) + well.health_timing.unwrap().budget());
        sick.started_at = well.started_at;
        scenario.now = wake;
        scenario.look(&[&well]);
        assert_eq!(scenario.service.durable().restart_states.len(), 0, "no restart state is left");
        second += 100;
    }
    let kinds = scenario.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED) && !kinds.contains(&Kind::EXHAUSTED), "{kinds:?}");
}

#[test]
fn a_restart_that_helped_late_counts_as_a_failure_and_does_not_reset_the_count() {
    let mut scenario = Scenario::of(config());
    let mut sick = with_health("a", HealthState::Unhealthy);
    for second in [0, 60] {
        assert_eq!(scenario.at(second).look(&[&sick]).restarts(), ["a"]);
        sick.started_at = scenario.seconds(second + 1);
        scenario.at(second + 10).look(&[&sick]);
        let well = Container { started_at: sick.started_at, ..with_health("a", HealthState::Healthy) };
        scenario.at(second + 20).look(&[&well]).at(second + 40).look(&[&sick]);
        let kinds = [Kind::RESTARTING, Kind::RESTART_FAILED, Kind::HEALTHY];
        assert_eq!(scenario.kinds()[usize::from(second == 0)..], kinds);
    }
    assert_eq!(scenario.at(120).restarts(), ["a"]);
    sick.started_at = scenario.seconds(121);
    scenario.at(130).look(&[&sick]);
    assert_eq!(scenario.kinds(), [Kind::RESTARTING, Kind::RESTART_FAILED, Kind::EXHAUSTED]);
    // Healthy without a restart by the agent: it is healed again once that has lasted.
    let well = Container { started_at: sick.started_at, ..with_health("a", HealthState::Healthy) };
    scenario.at(140).look(&[&well]);
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::HEALTHY], StatusValue::Ok));
    let proven = scenario.service.wake_at(scenario.now).unwrap();
    assert_eq!(proven, scenario.now + Duration::from_mins(1) + well.health_timing.unwrap().budget());
    scenario.now = proven;
    assert_eq!(scenario.look(&[&well]).look(&[&sick]).restarts(), ["a"]);
}

#[test]
fn a_health_check_that_flaps_does_not_end_the_limit_of_restarts() {
    let mut scenario = Scenario::of(config());
    let mut sick = with_health("a", HealthState::Unhealthy);
    for second in [0, 70, 140] {
        assert_eq!(scenario.at(second).look(&[&sick]).restarts(), ["a"]);
        sick.started_at = scenario.seconds(second + 1);
        scenario.at(second + 10).look(&[&sick]);
    }
    assert_eq!(scenario.status(), StatusValue::Exhausted);
    assert_eq!(scenario.kinds().iter().filter(|kind| **kind == Kind::EXHAUSTED).count(), 1);
    let well = Container { started_at: sick.started_at, ..with_health("a", HealthState::Healthy) };
    for second in (200..2000).step_by(40) {
        scenario.at(second).look(&[&well]);
        assert_eq!((scenario.restarts(), scenario.status()), (Vec::new(), StatusValue::Ok), "{second}");
        scenario.at(second + 20).look(&[&sick]);
        let status = scenario.status();
        assert_eq!((scenario.restarts(), status), (Vec::new(), StatusValue::Exhausted), "{second}");
    }
    let kinds = scenario.kinds();
    assert!(!kinds.contains(&Kind::EXHAUSTED) && !kinds.contains(&Kind::RESTART_FAILED), "{kinds:?}");
}

#[test]
fn an_engine_outage_soon_after_a_restart_does_not_fail_the_restart() {
    let mut scenario = Scenario::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    scenario.look(&[&sick]);
    let well = restarted_and_well(&mut scenario, 0);
    scenario.at(10).event("id-a", EventKind::Stop).engine_gap();
    let ended =
        Container { finished_at: scenario.seconds(10), started_at: well.started_at, ..exited("a", 0) };
    scenario.at(11).engine_back().look(&[&ended]).at(61).look(&[&ended]);
    restarted_and_well(&mut scenario, 61);
    let kinds = scenario.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED), "{kinds:?}");
    assert_eq!(scenario.record().restart_failures, 0);
}

#[test]
fn unhealthy_containers_are_not_reported_while_another_service_changes_the_project() {
    let mut scenario = Scenario::of(config());
    let (sick, down) = (with_health("a", HealthState::Unhealthy), exited("b", 1));
    scenario.service.sibling_begins("api");
    for second in [0, 10, 20] {
        scenario.at(second).look(&[&sick, &down]);
        assert_eq!(scenario.restarts(), [""; 0]);
    }
    assert_eq!(scenario.kinds(), []);
    assert_eq!(scenario.status(), StatusValue::Unhealthy, "it is shown nevertheless");
    scenario.at(30).sibling_ends();
    scenario.look(&[&sick, &down]);
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY], "the other one may still be starting");
}

/// Runs the steps of a deployment of image `two` up to its probation.
fn deploys(scenario: &mut Scenario, containers: &[&Container]) {
    let two = ImageId("sha256:two".into());
    while let Some(action) = scenario.act() {
        let Action::Step(step) = action else { panic!("expected steps only, got {action:?}") };
        scenario.input(Input::Stepped(match step {
            Step::PinImages { .. } => StepResult::ImagesPinned { missing: Vec::new() },
            Step::Pull { .. } => {
                StepResult::Pulled { ids: vec![(IMAGE.into(), two.clone())], labels: BTreeMap::new() }
            }
            Step::Start(_) => StepResult::Started {
                up: Ok(String::new()),
                named: Vec::new(),
                containers: containers.iter().map(|c| (*c).clone()).collect(),
            },
            Step::Unpin { .. } => StepResult::Unpinned,
            other => panic!("{other:?}"),
        }));
    }
}

#[test]
fn an_update_clears_the_restart_state_of_exactly_the_replaced_containers() {
    let mut scenario = Scenario::of(config());
    let sick = ["web", "other"].map(|name| Container {
        config_image: if name == "web" { IMAGE.into() } else { "localhost:5000/other:1".into() },
        ..with_health(name, HealthState::Unhealthy)
    });
    assert_eq!(scenario.look(&[&sick[0], &sick[1]]).restarts(), ["other", "web"]);
    scenario.kinds();
    let one = local("sha256:one", &['1']);
    scenario.at(1).check(observed('2', std::slice::from_ref(&one), &[&sick[0], &sick[1]]));
    let new = Container {
        id: "id-of-the-new-one".into(),
        image: ImageId("sha256:two".into()),
        started_at: scenario.seconds(2),
        ..with_health("web", HealthState::Healthy)
    };
    deploys(&mut scenario, &[&new, &sick[1]]);
    scenario.at(2).look(&[&new, &sick[1]]).at(30).look(&[&new, &sick[1]]);
    deploys(&mut scenario, &[]);
    scenario.at(31).look(&[&new, &sick[1]]);
    assert_eq!(scenario.kinds(), [Kind::UPDATED, Kind::RESTART_FAILED], "not that a restart of web helped");
    let treated: Vec<&String> = scenario.service.durable().restart_states.keys().collect();
    assert_eq!(treated, ["other"]);
}
