//! Stories of containers that fall over, and of those that were stopped on purpose.

use super::*;

#[test]
fn a_crash_is_healed_after_it_settled() {
    let mut story = Story::of(config());
    story.look(&[&exited("a", 1)]);
    assert_eq!(story.restarts(), [""; 0], "the engine may still restart it by itself");
    assert_eq!(story.at(2).look(&[&exited("a", 1)]).restarts(), ["a"]);
    assert_eq!(story.kinds(), [Kind::DIED, Kind::RESTARTING]);
    assert_eq!(story.status(), StatusValue::Degraded);
    let mut again = running("a");
    again.started_at = story.seconds(3);
    story.at(4).look(&[&again]);
    assert_eq!(story.kinds(), [], "without a health check only time tells");
    story.at(14).look(&[&again]);
    assert_eq!(story.kinds(), [Kind::RESTARTED]);
    assert_eq!(story.status(), StatusValue::Ok);
}

#[test]
fn stops_that_somebody_asked_for_are_not_healed() {
    let kill = |signal| EventKind::Kill { signal: Some(signal) };
    let stories: &[(&str, &[EventKind], i64)] = &[
        ("docker stop", &[kill(15), EventKind::Die { exit_code: 143 }, EventKind::Stop], 143),
        (
            "docker stop that needs KILL",
            &[kill(15), kill(9), EventKind::Die { exit_code: 137 }, EventKind::Stop],
            137,
        ),
        ("docker kill", &[kill(9), EventKind::Die { exit_code: 137 }], 137),
        ("custom stop signal", &[kill(2), EventKind::Die { exit_code: 1 }, EventKind::Stop], 1),
        ("podman, which does not tell the signal", &[EventKind::Kill { signal: None }], 1),
    ];
    for (what, events, code) in stories {
        let mut story = Story::of(config());
        story.look(&[&running("a")]);
        for event in *events {
            story.event("id-a", event.clone());
        }
        for second in [1, 3, 10, 100, 1000] {
            assert_eq!(story.at(second).look(&[&exited("a", *code)]).restarts(), [""; 0], "{what}");
        }
        assert_eq!(story.kinds(), [], "{what}");
    }
}

#[test]
fn a_signal_that_is_no_stop_does_not_excuse_a_crash() {
    for signal in [1, 10, 18, 21, 28] {
        let mut story = Story::of(config());
        story.look(&[&running("a")]).event("id-a", EventKind::Kill { signal: Some(signal) });
        story.at(3).look(&[&exited("a", 3)]);
        assert_eq!(story.at(5).look(&[&exited("a", 3)]).restarts(), ["a"], "signal {signal}");
    }
}

#[test]
fn a_containers_own_stop_signal_is_a_stop() {
    let mut story = Story::of(config());
    let container = Container { stop_signal: 1, ..running("a") };
    story.look(&[&container]).event("id-a", EventKind::Kill { signal: Some(1) });
    for second in [3, 5, 100] {
        assert_eq!(story.at(second).look(&[&exited("a", 3)]).restarts(), [""; 0]);
    }
}

#[test]
fn a_stop_that_a_container_lived_through_does_not_excuse_its_crash_an_hour_later() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]).event("id-a", EventKind::Kill { signal: Some(15) });
    let ended = |at: Option<Timestamp>| Container { finished_at: at, ..exited("a", 137) };
    let crashed = ended(story.seconds(3600));
    story.at(3601).look(&[&crashed]);
    assert_eq!(story.at(3604).look(&[&crashed]).restarts(), ["a"]);
    // A stop that takes as long is told of at its end, too.
    let mut story = Story::of(config());
    story.look(&[&running("a")]).event("id-a", EventKind::Kill { signal: Some(15) });
    let stopped = ended(story.seconds(60));
    story.at(60).event("id-a", EventKind::Stop);
    for second in [61, 64, 100] {
        assert_eq!(story.at(second).look(&[&stopped]).restarts(), [""; 0]);
    }
}

#[test]
fn a_one_shot_that_is_done_is_left_alone() {
    let mut story = Story::of(config());
    story.look(&[&exited("job", 0)]);
    assert_eq!(story.at(60).look(&[&exited("job", 0)]).restarts(), [""; 0]);
    assert_eq!(story.kinds(), []);
}

#[test]
fn what_the_engine_stopped_when_it_went_away_is_started_again() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]);
    story.at(100).event("id-a", EventKind::Kill { signal: Some(15) }).event("id-a", EventKind::Stop);
    story.at(101).engine_gap();
    story.at(103).look(&[&exited("a", 0)]);
    assert_eq!(story.restarts(), [""; 0], "the engine restarts what it can by itself first");
    assert_eq!(story.at(110).look(&[&exited("a", 0)]).restarts(), ["a"]);
}

#[test]
fn what_an_engine_stops_when_it_comes_back_from_its_own_death_is_started_again() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]);
    story.at(100).engine_gap();
    let at = story.start + SignedDuration::from_secs(103);
    let what = EventKind::Kill { signal: Some(15) };
    story.at(105).engine_back().input(Input::Event { at, id: "id-a".into(), what });
    story.at(106).look(&[&exited("a", 0)]);
    assert_eq!(story.at(113).look(&[&exited("a", 0)]).restarts(), ["a"]);
    // A stop after that is somebody's again.
    let mut fresh = running("a");
    fresh.started_at = story.seconds(114);
    story.at(150).look(&[&fresh]).event("id-a", EventKind::Kill { signal: Some(15) });
    assert_eq!(
        story.at(300).look(&[&Container { started_at: fresh.started_at, ..exited("a", 143) }]).restarts(),
        [""; 0]
    );
}

#[test]
fn a_stop_before_the_stream_broke_off_is_still_a_stop_when_it_is_told_again() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]);
    story.at(100).event("id-a", EventKind::Kill { signal: Some(15) });
    story.at(101).engine_gap();
    // Told again with its own time, which is before the break.
    let at = story.start + SignedDuration::from_secs(100);
    let what = EventKind::Kill { signal: Some(15) };
    story.at(102).engine_back().input(Input::Event { at, id: "id-a".into(), what });
    assert_eq!(story.at(120).look(&[&exited("a", 143)]).restarts(), [""; 0]);
}

#[test]
fn a_run_that_a_busy_engine_began_late_has_helped_only_when_it_lasts() {
    let mut story = Story::of(config());
    story.look(&[&exited("a", 7)]);
    assert_eq!(story.at(3).look(&[&exited("a", 7)]).restarts(), ["a"]);
    story.kinds();
    // Its time is long over when it begins at last, and it has not shown anything yet.
    let grace = i64::try_from(story.service.config.health_grace.as_secs()).unwrap();
    let begun = 3 + 2 * grace;
    let again = Container { started_at: story.seconds(begun), ..running("a") };
    story.at(begun).look(&[&again]);
    assert_eq!(story.kinds(), []);
    story.at(begun + 1).look(&[&Container { started_at: again.started_at, ..exited("a", 7) }]);
    assert_eq!(story.kinds(), [Kind::RESTART_FAILED]);
}

#[test]
fn what_a_container_looks_like_in_the_middle_of_its_restart_proves_nothing() {
    let mut story = Story::of(config());
    let unhealthy = with_health("a", HealthState::Unhealthy);
    story.look(&[&unhealthy]);
    assert!(matches!(story.act(), Some(Action::Restart { .. })));
    story.event("id-a", EventKind::Kill { signal: Some(15) });
    for second in [1, 5, 60] {
        story.at(second).look(&[&exited("a", 137)]);
        assert_eq!(story.act(), None);
    }
    story.input(Input::Restarted { name: "a".into(), result: Ok(()) });
    let again = Container { started_at: story.seconds(60), ..unhealthy };
    story.at(61).look(&[&again]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
}

#[test]
fn a_clock_that_is_set_neither_shortens_nor_prolongs_a_cooldown() {
    for by in [3600, -3600] {
        let mut story = Story::of(config());
        story.look(&[&with_health("a", HealthState::Unhealthy)]);
        assert_eq!(story.restarts(), ["a"]);
        let fresh = Container { started_at: story.seconds(1), ..with_health("a", HealthState::Unhealthy) };
        story.at(8).look(&[&fresh]);
        story.service.shift(SignedDuration::from_secs(by));
        assert_eq!(story.at(by + 59).look(&[&fresh]).restarts(), [""; 0], "{by}");
        assert_eq!(story.at(by + 60).look(&[&fresh]).restarts(), ["a"], "{by}");
    }
}

#[test]
fn the_cooldown_is_kept_and_acted_on_when_it_ends() {
    let mut story = Story::of(config());
    story.look(&[&with_health("a", HealthState::Unhealthy)]);
    assert_eq!(story.restarts(), ["a"]);
    let mut fresh = with_health("a", HealthState::Unhealthy);
    fresh.started_at = story.seconds(1);
    story.at(8).look(&[&fresh]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
    assert_eq!(story.restarts(), [""; 0]);
    let wake = story.service.wake_at(story.now).unwrap();
    assert_eq!(Some(wake), story.seconds(60), "the end of the cooldown, not the next event");
    assert_eq!(story.at(60).restarts(), ["a"]);
}

#[test]
fn after_the_cap_it_gives_up_once_and_a_person_starts_it_over() {
    let mut story = Story::of(config());
    let mut time = 0;
    let mut sick = with_health("a", HealthState::Unhealthy);
    for _ in 0..3 {
        assert_eq!(story.at(time).look(&[&sick]).restarts(), ["a"]);
        sick.started_at = story.seconds(time + 1);
        story.at(time + 10).look(&[&sick]);
        time += 70;
    }
    for second in [time, time + 100, time + 1000] {
        assert_eq!(story.at(second).look(&[&sick]).restarts(), [""; 0]);
    }
    let kinds = story.kinds();
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::RESTARTING).count(), 3);
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::EXHAUSTED).count(), 1);
    assert_eq!(story.status(), StatusValue::Exhausted);
    assert_eq!(story.service.durable().totals.restarts, 3);

    let (_, said) = story.service.ask(ServiceRequest::Unblock, story.now);
    assert_eq!(said, []);
    assert_eq!(story.at(time + 1001).look(&[&sick]).restarts(), ["a"]);
}

#[test]
fn one_well_container_does_not_hide_an_unwell_one() {
    let mut story = Story::of(ServiceConfig { auto_heal: false, ..config() });
    let (well, sick) = (with_health("a", HealthState::Healthy), with_health("b", HealthState::Unhealthy));
    story.look(&[&well, &sick]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY]);
    assert_eq!(story.restarts(), [""; 0], "without auto_heal it is only said");
    assert_eq!(story.status(), StatusValue::Unhealthy);
    story.at(5).look(&[&well, &with_health("b", HealthState::Healthy)]);
    assert_eq!(story.kinds(), [Kind::HEALTHY]);
    assert_eq!(story.status(), StatusValue::Ok);
    story.at(8).look(&[&well, &sick]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY], "nothing was restarted that could have failed");
}

#[test]
fn many_containers_that_crash_at_once_are_each_restarted_once() {
    let mut story = Story::of(config());
    let crashed: Vec<Container> = (0..20).map(|n| exited(&format!("c{n:02}"), 1)).collect();
    let all: Vec<&Container> = crashed.iter().collect();
    story.look(&all);
    assert_eq!(story.at(3).look(&all).restarts().len(), 20);
    assert_eq!(story.at(4).look(&all).restarts().len(), 0);
    assert_eq!(story.service.durable().totals.restarts, 20);
}

#[test]
fn a_restart_that_the_engine_did_not_answer_is_no_restart() {
    let mut story = Story::of(config());
    story.look(&[&exited("a", 1)]).at(2).look(&[&exited("a", 1)]);
    let Some(Action::Restart { name, .. }) = story.act() else { panic!("a restart is due") };
    let away = EngineError::Unavailable("gone".into());
    story.input(Input::Restarted { name, result: Err(away) });
    assert_eq!(story.restarts(), [""; 0], "first it looks again");
    assert_eq!(story.at(4).look(&[&exited("a", 1)]).restarts(), ["a"]);
    assert_eq!(story.service.durable().totals.restarts, 1);
}

#[test]
fn a_container_that_never_started_is_seen_without_any_event() {
    let mut story = Story::of(config());
    let stuck = Container {
        state: State::Created,
        error: "exec: no such file".into(),
        started_at: None,
        ..running("a")
    };
    story.look(&[&stuck]);
    assert_eq!(story.at(3).look(&[&stuck]).restarts(), ["a"]);
}

#[test]
fn a_loop_under_its_own_restart_policy_is_joined_only_when_it_is_one() {
    let mut story = Story::of(config());
    let looping = |count| Container { restart_count: count, restarts_itself: true, ..running("a") };
    story.look(&[&looping(0)]).at(5).look(&[&looping(1)]);
    assert_eq!(story.restarts(), [""; 0], "one restart by the engine is the engine's business");
    story.at(8).look(&[&looping(3)]);
    assert_eq!(story.at(11).look(&[&looping(4)]).restarts(), ["a"]);
}

#[test]
fn a_healer_that_restarts_as_many_as_it_may_waits_until_one_is_done() {
    let mut story = Story::of(config());
    let down: Vec<Container> = (0..20).map(|n| exited(&format!("web{n:02}"), 1)).collect();
    let down: Vec<&Container> = down.iter().collect();
    story.at(0).look(&down).at(2).look(&down);
    let mut begun = Vec::new();
    while let Some(action) = story.act() {
        let Action::Restart { name, .. } = action else { panic!("expected restarts only, got {action:?}") };
        begun.push(name);
    }
    assert_eq!(begun.len(), 8);
    let wake = story.service.wake_at(story.now);
    assert!(wake.is_none_or(|at| at > story.now), "it would turn round and round: {wake:?}");
    story.input(Input::Restarted { name: begun.remove(0), result: Ok(()) }).look(&down);
    assert!(matches!(story.act(), Some(Action::Restart { .. })));
}

/// A container that is well for some seconds after each restart, and how the story of its next restart goes.
fn restarted_and_well(story: &mut Story, second: i64) -> Container {
    assert_eq!(story.at(second).restarts(), ["a"]);
    let well = Container { started_at: story.seconds(second + 1), ..with_health("a", HealthState::Healthy) };
    story.at(second + 2).look(&[&well]);
    well
}

#[test]
fn a_container_that_is_well_for_some_seconds_after_each_restart_is_given_up_in_the_end() {
    for cooldown in [1, 5, 3600] {
        let mut story = Story::of(ServiceConfig { heal_cooldown: Duration::from_secs(cooldown), ..config() });
        let cooldown = i64::try_from(cooldown).unwrap();
        let mut sick = with_health("a", HealthState::Unhealthy);
        let mut second = 0;
        let mut kinds = Vec::new();
        for round in 1..=3 {
            story.at(second).look(&[&sick]);
            kinds.extend(story.kinds());
            let well = restarted_and_well(&mut story, second);
            assert_eq!(story.kinds(), [Kind::RESTARTING, Kind::RESTARTED], "said at once, round {round}");
            assert_eq!(story.status(), StatusValue::Ok);
            assert_eq!(story.service.snapshot(PullProgress::default()).status.restart_failures, round - 1);
            sick.started_at = well.started_at;
            story.at(second + 30).look(&[&sick]);
            kinds.extend(story.kinds());
            second += cooldown.max(31);
        }
        assert_eq!(story.at(second + 10_000).look(&[&sick]).restarts(), [""; 0]);
        kinds.extend(story.kinds());
        let failed = [Kind::UNHEALTHY, Kind::RESTART_FAILED];
        let told = [&[Kind::UNHEALTHY][..], &failed, &failed, &failed, &[Kind::EXHAUSTED]].concat();
        assert_eq!(kinds, told, "cooldown {cooldown}");
        assert_eq!(story.status(), StatusValue::Exhausted);
        assert_eq!(story.service.durable().totals.failures, 3);
    }
}

#[test]
fn a_restart_that_helped_for_long_is_no_failure_when_it_falls_ill_again() {
    let mut story = Story::of(config());
    let mut second = 0;
    let mut sick = with_health("a", HealthState::Unhealthy);
    for _ in 0..10 {
        story.at(second).look(&[&sick]);
        let well = restarted_and_well(&mut story, second);
        let wake = story.service.wake_at(story.now).unwrap();
        // A cooldown, and what its health check takes to notice that it is unwell.
        assert_eq!(wake, story.now + Duration::from_mins(1) + well.health_timing.unwrap().budget());
        sick.started_at = well.started_at;
        story.now = wake;
        story.look(&[&well]);
        assert_eq!(story.service.durable().restart_states.len(), 0, "nothing is left to remember");
        second += 100;
    }
    let kinds = story.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED) && !kinds.contains(&Kind::EXHAUSTED), "{kinds:?}");
}

#[test]
fn a_restart_that_helped_late_is_one_failure_and_does_not_start_the_count_over() {
    let mut story = Story::of(config());
    let mut sick = with_health("a", HealthState::Unhealthy);
    for second in [0, 60] {
        assert_eq!(story.at(second).look(&[&sick]).restarts(), ["a"]);
        sick.started_at = story.seconds(second + 1);
        story.at(second + 10).look(&[&sick]);
        let well = Container { started_at: sick.started_at, ..with_health("a", HealthState::Healthy) };
        story.at(second + 20).look(&[&well]).at(second + 40).look(&[&sick]);
        let kinds = [Kind::RESTARTING, Kind::RESTART_FAILED, Kind::HEALTHY, Kind::UNHEALTHY];
        assert_eq!(story.kinds()[usize::from(second == 0)..], kinds);
    }
    assert_eq!(story.at(120).restarts(), ["a"]);
    sick.started_at = story.seconds(121);
    story.at(130).look(&[&sick]);
    assert_eq!(story.kinds(), [Kind::RESTARTING, Kind::RESTART_FAILED, Kind::EXHAUSTED]);
    // Well by itself: whoever mended it has the healer again.
    story
        .at(140)
        .look(&[&Container { started_at: sick.started_at, ..with_health("a", HealthState::Healthy) }]);
    assert_eq!((story.kinds(), story.status()), (vec![Kind::HEALTHY], StatusValue::Ok));
    assert_eq!(story.at(190).look(&[&sick]).restarts(), ["a"]);
}

#[test]
fn an_engine_that_goes_away_soon_after_a_restart_does_not_make_it_a_failure() {
    let mut story = Story::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    story.look(&[&sick]);
    let well = restarted_and_well(&mut story, 0);
    story.at(10).event("id-a", EventKind::Stop).engine_gap();
    let ended = Container { finished_at: story.seconds(10), started_at: well.started_at, ..exited("a", 0) };
    story.at(11).look(&[&ended]).at(61).look(&[&ended]);
    restarted_and_well(&mut story, 61);
    let kinds = story.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED), "{kinds:?}");
    assert_eq!(story.service.snapshot(PullProgress::default()).status.restart_failures, 0);
}

#[test]
fn what_a_container_looks_like_while_another_service_works_on_its_project_is_no_illness() {
    let mut story = Story::of(config());
    let (sick, down) = (with_health("a", HealthState::Unhealthy), exited("b", 1));
    story.service.sibling_begins("api");
    for second in [0, 10, 20] {
        story.at(second).look(&[&sick, &down]);
        assert_eq!(story.restarts(), [""; 0]);
    }
    assert_eq!(story.kinds(), []);
    assert_eq!(story.status(), StatusValue::Unhealthy, "it is shown all the same");
    story.at(30).sibling_ends();
    story.look(&[&sick, &down]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY], "the other one may still be about to be started");
}

/// Does the steps of the deployment of image `two` until its probation.
fn deploys(story: &mut Story, containers: &[&Container]) {
    let two = ImageId("sha256:two".into());
    while let Some(action) = story.act() {
        let Action::Step(step) = action else { panic!("expected steps only, got {action:?}") };
        story.input(Input::Stepped(match step {
            Step::PinImages { .. } => StepResult::ImagesPinned { missing: Vec::new() },
            Step::Pull { .. } => {
                StepResult::Pulled { ids: vec![(IMAGE.into(), two.clone())], labels: BTreeMap::new() }
            }
            Step::Start { .. } => StepResult::Started {
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
fn an_update_ends_the_treatment_of_the_containers_that_it_replaced_and_of_no_others() {
    let mut story = Story::of(config());
    let sick = ["web", "other"].map(|name| Container {
        config_image: if name == "web" { IMAGE.into() } else { "localhost:5000/other:1".into() },
        ..with_health(name, HealthState::Unhealthy)
    });
    assert_eq!(story.look(&[&sick[0], &sick[1]]).restarts(), ["other", "web"]);
    story.kinds();
    let one = local("sha256:one", &['1']);
    story.at(1).check(observed('2', std::slice::from_ref(&one), &[&sick[0], &sick[1]]));
    let new = Container {
        id: "id-of-the-new-one".into(),
        image: ImageId("sha256:two".into()),
        started_at: story.seconds(2),
        ..with_health("web", HealthState::Healthy)
    };
    deploys(&mut story, &[&new, &sick[1]]);
    story.at(2).look(&[&new, &sick[1]]).at(30).look(&[&new, &sick[1]]);
    deploys(&mut story, &[]);
    story.at(31).look(&[&new, &sick[1]]);
    assert_eq!(story.kinds(), [Kind::UPDATED, Kind::RESTART_FAILED], "not that a restart of web helped");
    let treated: Vec<&String> = story.service.durable().restart_states.keys().collect();
    assert_eq!(treated, ["other"]);
}
