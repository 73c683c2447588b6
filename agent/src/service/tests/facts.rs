//! Scenarios in which the engine's flags outlive what they say: pauses, slow stops, cut connections, dead children.

use super::*;

const TERM: EventKind = EventKind::Kill { signal: Some(15) };

/// A restart of the agent in the same boot of the machine.
fn restart_agent(scenario: &mut Scenario) {
    let durable = scenario.service.durable().clone();
    let (config, boot) = (scenario.service.config.clone(), boot_of("one", "one"));
    scenario.service = Service::new(config, durable, boot, StartReason::Start, scenario.now).0;
}

/// The container of a deployment on probation, with a health check that has passed.
fn new_and_well() -> (Scenario, Container) {
    let mut scenario = on_probation();
    let mut new = with_health("a", HealthState::Healthy);
    (new.id, new.image, new.started_at) =
        ("id-new".into(), ImageId("sha256:two".into()), scenario.seconds(0));
    scenario.look(&[&new]);
    (scenario, new)
}

fn in_health(container: &Container, health: HealthState) -> Container {
    Container { health: Some(health), ..container.clone() }
}

fn ended(container: &Container, code: i64, at: Option<Timestamp>) -> Container {
    Container { state: State::Exited, health: None, exit_code: code, finished_at: at, ..container.clone() }
}

/// Asserts that somebody's interference has ended the deployment: nothing is blocked, rolled back or brought up.
fn assert_broken_off(scenario: &mut Scenario) {
    assert!(scenario.service.durable().images.blocked().next().is_none());
    let next = scenario.act();
    assert!(matches!(next, Some(Action::Step(Step::Unpin { .. }))), "{next:?} {:?}", scenario.entries);
    assert_eq!(scenario.kinds(), [Kind::ERROR]);
}

#[test]
fn a_container_that_was_paused_is_unhealthy_only_once_probes_have_failed() {
    let mut scenario = Scenario::of(config());
    assert_eq!(scenario.act(), None, "the first inspection");
    let paused = Container { state: State::Paused, ..running("a") };
    let unmeasured = with_health("a", HealthState::Unmeasured);
    scenario.look(&[&with_health("a", HealthState::Healthy)]).at(5).look(&[&paused]);
    scenario.at(6).look(&[&unmeasured]);
    assert_eq!((scenario.restarts().len(), scenario.record().healthy), (0, None));
    // The engine reports no event when the probes fail from now on.
    assert!(
        scenario.service.wake_at(scenario.now).is_some_and(|at| at <= scenario.now + Duration::from_secs(1))
    );
    assert_eq!(scenario.at(7).look(&[&with_health("a", HealthState::Unhealthy)]).restarts(), ["a"]);
}

#[test]
fn a_failed_probe_from_before_a_pause_does_not_count() {
    let mut scenario = Scenario::of(ServiceConfig { auto_heal: false, ..config() });
    let probed = |at| Container { probed_at: at, ..with_health("a", HealthState::Unhealthy) };
    let (before, after) = (probed(scenario.seconds(9)), probed(scenario.seconds(12)));
    scenario.at(10).event("id-a", EventKind::Unpause).look(&[&before]);
    assert_eq!(scenario.record().healthy, None);
    assert_eq!(scenario.at(13).look(&[&after]).record().healthy, Some(false));
}

#[test]
fn a_pause_does_not_reset_the_restart_limits() {
    let mut scenario = Scenario::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    assert_eq!(scenario.look(&[&sick]).restarts(), ["a"]);
    let again = Container { started_at: scenario.seconds(1), ..sick };
    scenario.at(2).look(&[&again]);
    let paused = Container { state: State::Paused, health: None, ..again.clone() };
    scenario.at(3).look(&[&paused]).at(4).look(&[&again]);
    assert_eq!(scenario.restarts(), [""; 0], "the cooldown goes on");
    assert_eq!(scenario.record().restart_failures, 1);
}

#[test]
fn a_pause_on_probation_starts_it_over_and_one_that_lasts_breaks_it_off() {
    let (mut scenario, new) = new_and_well();
    // A backup freezes the container for a moment, just before the end.
    scenario.at(9).look(&[&in_health(&new, HealthState::Unmeasured)]);
    scenario.at(12).look(&[&in_health(&new, HealthState::Unmeasured)]);
    assert_eq!(scenario.kinds(), []);
    scenario.at(14).look(&[&new]).at(19).look(&[&new]);
    assert_eq!(scenario.kinds(), [Kind::UPDATED]);

    let (mut scenario, new) = new_and_well();
    let paused = Container { state: State::Paused, health: None, ..new };
    scenario.at(5).look(&[&paused]).at(10).look(&[&paused]);
    assert_broken_off(&mut scenario);
}

#[test]
fn an_engine_that_runs_no_health_checks_says_nothing_about_an_image() {
    // Seconds: the start of the run, and the last probe that has ended.
    for (started, probed, is_measured) in
        [(0, None, false), (-5, Some(-2), false), (0, Some(3), true), (8, None, true)]
    {
        let mut scenario = on_probation();
        let new = Container {
            id: "id-new".into(),
            image: ImageId("sha256:two".into()),
            probed_at: probed.and_then(|at| scenario.seconds(at)),
            started_at: scenario.seconds(started),
            ..with_health("a", HealthState::Starting)
        };
        scenario.at(9).look(&[&new]);
        assert_eq!(scenario.kinds(), []);
        scenario.at(10).look(&[&new]);
        let is_blocked = scenario.service.durable().images.blocked().next().is_some();
        assert_eq!(is_blocked, is_measured, "{started} {probed:?}");
        if !is_measured {
            assert_broken_off(&mut scenario);
            let fault = scenario.record().errored.unwrap_or_default();
            assert!(fault.contains("the engine ran no health check of container a"), "{fault}");
        }
    }
}

/// Podman without systemd.
#[test]
fn where_no_health_check_is_run_a_restart_has_helped_if_the_container_runs_on() {
    let mut scenario = Scenario::of(config());
    let mut crashed = exited("a", 1);
    for second in [0, 1000, 2000, 3000] {
        scenario.at(second).look(&[&crashed]);
        assert_eq!(scenario.at(second + 2).look(&[&crashed]).restarts(), ["a"]);
        let again =
            Container { started_at: scenario.seconds(second + 3), ..with_health("a", HealthState::Starting) };
        scenario.at(second + 6).look(&[&again]);
        assert_eq!(scenario.kinds(), [Kind::DIED, Kind::RESTARTING]);
        scenario.at(second + 7).look(&[&again]);
        assert_eq!(scenario.kinds(), [Kind::RESTARTED], "{second}");
        crashed.started_at = again.started_at;
    }
    // It is slow, and has been probed.
    let mut scenario = Scenario::of(config());
    let crashed = exited("a", 1);
    scenario.look(&[&crashed]);
    assert_eq!(scenario.at(2).look(&[&crashed]).restarts(), ["a"]);
    let slow = Container {
        started_at: scenario.seconds(3),
        probed_at: scenario.seconds(5),
        ..with_health("a", HealthState::Starting)
    };
    scenario.at(7).look(&[&slow]);
    assert_eq!(scenario.kinds(), [Kind::DIED, Kind::RESTARTING, Kind::RESTART_FAILED]);
}

#[test]
fn where_no_health_check_is_run_a_container_is_healthy_again_once_it_has_run_on() {
    let mut scenario = Scenario::of(ServiceConfig { auto_heal: false, ..config() });
    let crashed = exited("a", 1);
    scenario.look(&[&crashed]).at(2).look(&[&crashed]);
    assert_eq!(scenario.kinds(), [Kind::DIED]);
    assert_eq!(scenario.act(), None, "it is inspected");
    let again = Container { started_at: scenario.seconds(100), ..with_health("a", HealthState::Starting) };
    for (second, next) in [(101, 104), (104, 110)] {
        scenario.at(second).look(&[&again]);
        assert_eq!(scenario.kinds(), []);
        assert_eq!(scenario.service.inspections.next_at(), scenario.seconds(next));
        assert_eq!(scenario.at(next).act(), None);
    }
    scenario.look(&[&again]);
    assert_eq!(scenario.kinds(), [Kind::HEALTHY]);
}

#[test]
fn a_result_of_a_health_check_that_is_reported_again_is_no_reason_to_inspect_the_project() {
    let mut scenario = Scenario::of(ServiceConfig { auto_heal: false, ..config() });
    let reports = |scenario: &mut Scenario, second: i64, health: HealthState| {
        scenario.at(second).event("id-a", EventKind::Health(health));
        scenario.service.inspections.next_at().is_some()
    };
    let is_seen = |scenario: &mut Scenario, health: HealthState| {
        scenario.now += SignedDuration::from_secs(1);
        assert_eq!(scenario.act(), None);
        scenario.look(&[&with_health("a", health)]);
    };
    let (well, sick) = (HealthState::Healthy, HealthState::Unhealthy);
    is_seen(&mut scenario, well);
    assert!(reports(&mut scenario, 10, well), "the first one that is heard of");
    is_seen(&mut scenario, well);
    for second in [20, 30, 40] {
        assert!(!reports(&mut scenario, second, well), "podman reports each probe");
    }
    // A change, although an inspection has shown it before.
    is_seen(&mut scenario, sick);
    assert!(reports(&mut scenario, 50, sick));
    is_seen(&mut scenario, sick);
    // The same result, but of another run.
    scenario.at(60).event("id-a", EventKind::Start);
    is_seen(&mut scenario, sick);
    assert!(reports(&mut scenario, 70, sick));
}

#[test]
fn a_stop_that_is_reported_only_after_the_probe_that_failed_for_it_stands() {
    for is_stopped in [true, false] {
        let mut scenario = Scenario::of(config());
        let sick = Container { probed_at: scenario.seconds(20), ..with_health("a", HealthState::Unhealthy) };
        scenario.at(10).look(&[&with_health("a", HealthState::Healthy)]).at(20).look(&[&sick]);
        assert_eq!((scenario.restarts().len(), scenario.kinds().len()), (0, 0));
        if is_stopped {
            scenario.event("id-a", TERM);
        }
        scenario.at(21).look(&[&sick]);
        assert_eq!(scenario.restarts().len(), usize::from(!is_stopped));
    }
}

#[test]
fn a_container_that_fails_its_health_check_while_it_is_stopped_is_left_alone() {
    let mut scenario = Scenario::of(config());
    let well = with_health("a", HealthState::Healthy);
    let sick = with_health("a", HealthState::Unhealthy);
    scenario.at(10).look(&[&well]).at(20).event("id-a", TERM);
    // `docker stop --time 600`: longer than the container's own timeout.
    for at in [21, 40, 300, 600] {
        assert_eq!(scenario.at(at).look(&[&sick]).restarts(), [""; 0], "{at} s");
    }
    assert_eq!(scenario.record().unhealthy_reason.as_deref(), Some("a is being stopped"));
    scenario.at(610).event("id-a", EventKind::Die { exit_code: 0 }).event("id-a", EventKind::Stop);
    let down = ended(&sick, 0, scenario.seconds(610));
    scenario.at(611).look(&[&down]).at(700);
    assert_eq!((scenario.restarts().len(), scenario.kinds().len()), (0, 0));
}

#[test]
fn a_stop_of_a_container_that_started_before_the_clock_was_set_back_is_left_alone() {
    let mut scenario = Scenario::of(config());
    let sick = Container { started_at: scenario.seconds(7200), ..with_health("a", HealthState::Unhealthy) };
    scenario.at(10).event("id-a", TERM);
    assert_eq!(scenario.at(11).look(&[&sick]).restarts(), [""; 0]);
    // Without a stop, it is healed.
    let mut scenario = Scenario::of(config());
    assert_eq!(scenario.at(11).look(&[&sick]).restarts(), ["a"]);
}

#[test]
fn a_container_that_survives_a_signal_is_healed_again() {
    // Signal, whether it passes a probe afterwards; seconds after which it is healed.
    for (signal, passes, healed_after) in [(3, false, 15), (15, true, 60), (15, false, 3_600), (1, false, 0)]
    {
        let mut scenario = Scenario::of(config());
        let (well, sick) = (with_health("a", HealthState::Healthy), with_health("a", HealthState::Unhealthy));
        scenario.at(10).look(&[&well]).event("id-a", EventKind::Kill { signal: Some(signal) });
        if passes {
            let well = Container { probed_at: scenario.seconds(40), ..well };
            scenario.at(40).look(&[&well]);
            assert_eq!(scenario.record().healthy, Some(true));
            assert_eq!(scenario.at(10 + healed_after).look(&[&sick]).restarts(), ["a"]);
            continue;
        }
        if healed_after > 0 {
            assert_eq!(scenario.at(9 + healed_after).look(&[&sick]).restarts(), [""; 0], "{signal}");
        }
        assert_eq!(scenario.at(11 + healed_after).look(&[&sick]).restarts(), ["a"], "{signal}");
    }
}

#[test]
fn a_slow_stop_on_probation_breaks_it_off() {
    let (mut scenario, new) = new_and_well();
    scenario.at(4).event("id-new", TERM);
    let sick = in_health(&new, HealthState::Unhealthy);
    scenario.at(5).look(&[&sick]).at(8).look(&[&sick]).at(10).look(&[&sick]);
    assert_broken_off(&mut scenario);
}

#[test]
fn the_stop_of_a_failed_restart_is_not_an_operators() {
    let mut scenario = Scenario::of(config());
    let sick = with_health("a", HealthState::Unhealthy);
    scenario.look(&[&sick]);
    assert!(matches!(scenario.act(), Some(Action::Restart { .. })));
    scenario.at(1).event("id-a", TERM).event("id-a", EventKind::Stop);
    let result = Err(EngineError::Refused("port is already allocated".into()));
    scenario.at(2).input(Input::Restarted { name: "a".into(), result });
    let down = ended(&sick, 143, scenario.seconds(1));
    scenario.at(3).look(&[&down]);
    assert_eq!(scenario.at(70).look(&[&down]).restarts(), ["a"], "it is tried again after the cooldown");
}

#[test]
fn the_stop_of_a_failed_restart_is_not_an_operators_when_it_is_replayed() {
    for is_agent_restarted in [true, false] {
        let mut scenario = Scenario::of(config());
        let sick = with_health("a", HealthState::Unhealthy);
        scenario.at(100).look(&[&sick]);
        assert!(matches!(scenario.act(), Some(Action::Restart { .. })));
        let result = Err(EngineError::Refused("port is already allocated".into()));
        scenario.at(102).input(Input::Restarted { name: "a".into(), result });
        let down = ended(&sick, 143, scenario.seconds(101));
        scenario.at(103).look(&[&down]).at(104);
        if is_agent_restarted {
            restart_agent(&mut scenario);
        } else {
            scenario.engine_gap();
        }
        scenario.at(105).reconnected();
        for what in [TERM, EventKind::Die { exit_code: 143 }, EventKind::Stop] {
            let at = scenario.start + SignedDuration::from_secs(101);
            scenario.input(Input::Event { at, id: "id-a".into(), what });
        }
        scenario.at(108).look(&[&down]).at(111).look(&[&down]);
        let restarts = scenario.at(170).look(&[&down]).restarts();
        assert_eq!(restarts, ["a"], "after the cooldown, agent restarted: {is_agent_restarted}");
    }
}

#[test]
fn a_stop_while_the_connection_was_cut_stands() {
    for is_replayed in [true, false] {
        let mut scenario = Scenario::of(config());
        scenario.at(99).look(&[&running("a")]);
        scenario.at(100).engine_gap();
        let down = ended(&running("a"), 143, scenario.seconds(103));
        // The API answers again before the event stream does.
        for at in [104, 108] {
            assert_eq!(scenario.at(at).look(&[&down]).restarts(), [""; 0], "{at} s");
        }
        scenario.at(110).reconnected();
        if is_replayed {
            for what in [TERM, EventKind::Die { exit_code: 143 }, EventKind::Stop] {
                let at = scenario.start + SignedDuration::from_secs(103);
                scenario.input(Input::Event { at, id: "id-a".into(), what });
            }
        }
        for at in [111, 120, 600] {
            assert_eq!(scenario.at(at).look(&[&down]).restarts(), [""; 0], "{at} s, replayed: {is_replayed}");
        }
        assert_eq!(scenario.kinds(), []);
    }
}

#[test]
fn a_stop_stands_whose_containers_start_is_replayed() {
    let mut scenario = Scenario::of(config());
    let well = Container { started_at: scenario.seconds(1), ..running("a") };
    scenario.at(10).look(&[&well]).at(20).event("id-a", TERM);
    let sick = Container { health: Some(HealthState::Unhealthy), ..well };
    scenario.at(40).look(&[&sick]);
    let start = Input::Event {
        at: scenario.start + SignedDuration::from_secs(1),
        id: "id-a".into(),
        what: EventKind::Start,
    };
    scenario.at(50).input(start).look(&[&sick]);
    assert_eq!(scenario.at(55).look(&[&sick]).restarts(), [""; 0]);
    // It was started again, and is as sick as before.
    let again = Container { started_at: scenario.seconds(60), ..sick };
    scenario.at(60).event("id-a", EventKind::Start).look(&[&again]);
    assert_eq!(scenario.at(65).look(&[&again]).restarts(), ["a"]);
}

#[test]
fn a_stop_just_before_the_connection_was_cut_stands() {
    let mut scenario = Scenario::of(config());
    scenario.at(99).look(&[&running("a")]).at(100).event("id-a", TERM).event("id-a", EventKind::Stop);
    scenario.at(101).engine_gap().at(103).reconnected();
    let down = ended(&running("a"), 0, scenario.seconds(100));
    assert_eq!(scenario.at(104).look(&[&down]).at(200).look(&[&down]).restarts(), [""; 0]);
}

#[test]
fn a_crash_while_the_connection_was_cut_is_healed() {
    let mut scenario = Scenario::of(config());
    scenario.at(99).look(&[&running("a")]).at(100).engine_gap();
    let down = ended(&running("a"), 1, scenario.seconds(103));
    scenario.at(110).reconnected().at(111).look(&[&down]);
    assert_eq!(scenario.at(114).look(&[&down]).restarts(), ["a"]);
}

#[test]
fn without_an_event_stream_the_healer_goes_on_after_a_while() {
    let mut scenario = Scenario::of(config());
    scenario.at(99).look(&[&running("a")]).at(100).engine_gap();
    let down = ended(&running("a"), 1, scenario.seconds(101));
    for at in [102, 117, 120] {
        assert_eq!(scenario.at(at).restarts(), [""; 0]);
        scenario.look(&[&down]);
    }
    assert_eq!(scenario.restarts(), ["a"]);
}

#[test]
fn a_stop_on_probation_stands_if_the_connection_was_cut_or_the_agent_restarted() {
    for is_agent_restarted in [true, false] {
        let (mut scenario, new) = new_and_well();
        scenario.at(2);
        if is_agent_restarted {
            restart_agent(&mut scenario);
        } else {
            scenario.engine_gap();
        }
        scenario.entries.clear();
        let down = ended(&new, 143, scenario.seconds(3));
        scenario.at(4).look(&[&down]).at(6).look(&[&down]);
        assert_eq!(scenario.act(), None, "whoever stopped it is not known yet");
        scenario.at(8).reconnected();
        for what in [TERM, EventKind::Die { exit_code: 143 }, EventKind::Stop] {
            let at = scenario.start + SignedDuration::from_secs(3);
            scenario.input(Input::Event { at, id: "id-new".into(), what });
        }
        scenario.at(9).look(&[&down]).at(18).look(&[&down]);
        assert_broken_off(&mut scenario);
    }
}

#[test]
fn a_stop_on_probation_stands_if_the_configuration_is_changed_or_the_engine_restarted() {
    for is_engine in [true, false] {
        let (mut scenario, mut new) = new_and_well();
        let slow = |timing| HealthTiming { start_period: Duration::from_mins(2), ..timing };
        new.health_timing = new.health_timing.map(slow);
        let down = ended(&new, 143, scenario.seconds(3));
        scenario.entries.clear();
        scenario.at(3).event("id-new", TERM).event("id-new", EventKind::Stop).at(4).look(&[&down]);
        if is_engine {
            scenario.at(30).engine_gap().at(40).engine_back();
        } else {
            scenario.at(30).reconfigures(config());
            assert_eq!(scenario.kinds(), [Kind::RESUMED]);
        }
        scenario.look(&[&down]).at(200).look(&[&down]);
        assert_broken_off(&mut scenario);
    }
}

#[test]
fn a_probation_goes_on_with_the_same_containers_if_only_the_connection_was_cut() {
    let (mut scenario, new) = new_and_well();
    scenario.at(5).engine_gap().at(7).look(&[&new]).reconnected();
    scenario.at(10).look(&[&new]);
    assert_eq!((scenario.act(), scenario.kinds().len()), (None, 0), "it starts over");
    scenario.at(17).look(&[&new]);
    assert_eq!(scenario.kinds(), [Kind::UPDATED]);
}

#[test]
fn a_child_that_ran_out_of_memory_does_not_fail_a_probation() {
    let (mut scenario, new) = new_and_well();
    let coping = Container { oom_killed: true, ..new.clone() };
    scenario.at(5).look(&[&coping]).at(10).look(&[&coping]);
    assert_eq!(scenario.kinds(), [Kind::UPDATED]);

    let (mut scenario, new) = new_and_well();
    let killed = Container { oom_killed: true, ..ended(&new, 137, scenario.seconds(5)) };
    scenario.at(5).look(&[&killed]);
    assert!(scenario.service.durable().images.blocked().next().is_some(), "at once");
}

#[test]
fn a_container_stuck_between_two_runs_is_restarted() {
    let mut scenario = Scenario::of(config());
    assert_eq!(scenario.act(), None, "the first inspection");
    let stuck = Container {
        state: State::Restarting,
        restart_policy: RestartPolicy::Always,
        restart_count: 1,
        finished_at: scenario.seconds(10),
        ..exited("a", 3)
    };
    let stuck = Container { state: State::Restarting, ..stuck };
    scenario.at(10).look(&[&stuck]);
    assert_eq!(scenario.service.wake_at(scenario.now), scenario.seconds(25), "no event will tell");
    assert_eq!(scenario.at(25).look(&[&stuck]).restarts(), [""; 0]);
    assert_eq!(scenario.at(27).look(&[&stuck]).restarts(), ["a"]);
}

#[test]
fn the_status_tells_jobs_that_are_done_from_services_that_are_not_running() {
    let daemon = Container { restart_policy: RestartPolicy::Always, ..exited("web", 0) };
    let created = Container { state: State::Created, ..running("db") };
    let served = Container { served: true, ..exited("db", 0) };
    // The check of an image that others serve with.
    let migrate = Container { health_timing: Some(HealthTiming::DEFAULT), ..exited("migrate", 0) };
    for (containers, expected) in [
        (vec![served, running("web")], Err("db exited with code 0")),
        (vec![migrate, running("web")], Ok(())),
        (vec![exited("job", 0)], Ok(())),
        (vec![exited("job", 0), running("web")], Ok(())),
        (vec![daemon], Err("none of its containers is running")),
        (vec![created.clone(), running("web")], Err("db was created, but never started")),
    ] {
        let mut scenario = Scenario::of(ServiceConfig { auto_heal: false, auto_update: false, ..config() });
        let all: Vec<&Container> = containers.iter().collect();
        scenario.look(&all);
        let record = scenario.record();
        assert_eq!(record.healthy, Some(expected.is_ok()), "{containers:?}");
        if let Err(why) = expected {
            assert!(
                record.unhealthy_reason.as_deref().is_some_and(|reason| reason.contains(why)),
                "{record:?}"
            );
        }
    }
}

#[test]
fn the_status_says_that_a_container_which_is_watched_by_its_name_does_not_exist() {
    let by_name = || ServiceConfig {
        container_name: Some("pihole".into()),
        compose_project: None,
        compose_files: Vec::new(),
        images: Vec::new(),
        auto_update: false,
        ..config()
    };
    let reason = |scenario: &Scenario| scenario.record().unhealthy_reason;
    let mut scenario = Scenario::of(by_name());
    assert_eq!(reason(&scenario), None, "not looked yet");
    assert_eq!(reason(scenario.look(&[&running("pihole")])), None);
    scenario.look(&[]);
    let record = scenario.record();
    assert_eq!(record.unhealthy_reason.as_deref(), Some("there is no container named pihole"));
    assert_eq!((record.status, record.healthy), (StatusValue::Unknown, None));
    assert_eq!(reason(Scenario::of(config()).look(&[])), None, "its record lists no containers");
    assert_eq!(reason(Scenario::of(ServiceConfig { silent: true, ..by_name() }).look(&[])), None);
}
