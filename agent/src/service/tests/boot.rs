//! Scenarios of machines and agents that stop and start: which stopped containers are healed, and which stay stopped.

use super::*;

/// This boot of the machine, after the first one. The second one began at second 30.
fn boot_after_one(scenario: &Scenario, boot: &str) -> Boot {
    let known = boot_of(boot, "one");
    if boot == "one" { known } else { Boot { at: scenario.start + SignedDuration::from_secs(30), ..known } }
}

/// Stops the agent and starts it again, in this boot of the machine.
fn restart_agent(scenario: &mut Scenario, boot: &str) {
    scenario.service.on_shutdown();
    let written = serde_json::to_vec(scenario.service.durable()).unwrap();
    let durable = serde_json::from_slice(&written).unwrap();
    let boot = boot_after_one(scenario, boot);
    scenario.service =
        Service::new(scenario.service.config.clone(), durable, boot, StartReason::Start, scenario.now).0;
    scenario.reconnected();
}

#[test]
fn containers_ended_by_a_machine_shutdown_are_restarted_but_not_manually_stopped_ones() {
    let ended = |scenario: &Scenario, name: &str, code: i64, at: i64| Container {
        finished_at: scenario.seconds(at),
        ..exited(name, code)
    };
    for (boot, restarted) in [("two", &["crashed", "web"][..]), ("one", &["crashed"])] {
        let mut scenario = Scenario::of(config());
        let stopped = ended(&scenario, "stopped", 0, 5);
        scenario.at(10).look(&[&running("web"), &running("crashed"), &stopped]);
        restart_agent(&mut scenario, boot);
        scenario.event("id-crashed", EventKind::Die { exit_code: 137 });
        let (web, crashed) = (ended(&scenario, "web", 0, 20), ended(&scenario, "crashed", 137, 20));
        let there = [&web, &crashed, &stopped];
        assert_eq!(scenario.at(60).look(&there).restarts(), [""; 0]);
        let mut names = scenario.at(66).look(&there).restarts();
        names.sort();
        assert_eq!(names, restarted, "boot {boot}");
    }
}

#[test]
fn an_exit_that_looks_like_a_stop_while_the_agent_was_down_is_not_healed_in_the_same_boot() {
    let scenarios = [
        // Exit code, when (7200: by a clock that was set back later), whether it ran out of memory, boot, whether its exit
        // event is replayed; whether it is healed.
        (137, 20, false, "one", false, false),
        (143, 20, false, "one", false, false),
        (143, 7200, false, "one", false, false),
        (143, 7200, false, "one", true, true),
        (137, 20, false, "one", true, true),
        (137, 20, true, "one", false, true),
        (1, 20, false, "one", false, true),
        (143, 20, false, "two", false, true),
    ];
    for (code, ended_at, oom_killed, boot, is_replayed, healed) in scenarios {
        let mut scenario = Scenario::of(config());
        scenario.at(10).look(&[&running("a")]);
        // The agent is killed: it does not record the running containers at shutdown.
        let durable = scenario.service.durable().clone();
        scenario.at(60);
        scenario.service = Service::new(
            scenario.service.config.clone(),
            durable,
            boot_after_one(&scenario, boot),
            StartReason::Start,
            scenario.now,
        )
        .0;
        if boot == "one" {
            scenario.reconnected()
        } else {
            scenario.engine_back()
        };
        let ended = Container { finished_at: scenario.seconds(ended_at), oom_killed, ..exited("a", code) };
        assert_eq!(scenario.look(&[&ended]).restarts(), [""; 0]);
        if is_replayed {
            scenario.event("id-a", EventKind::Die { exit_code: code });
        }
        assert_eq!(scenario.at(61).look(&[&ended]).restarts(), [""; 0]);
        assert_eq!(
            scenario.at(63).look(&[&ended]).restarts().len(),
            usize::from(healed),
            "{code} {boot} {is_replayed}"
        );
        assert_eq!(scenario.kinds().is_empty(), !healed);
        // It is healed again from the next run on.
        let again = Container { started_at: scenario.seconds(70), ..running("a") };
        let crashed = Container { started_at: again.started_at, finished_at: scenario.seconds(200), ..ended };
        scenario.at(70).look(&[&again]).at(200).look(&[&again]).look(&[&crashed]);
        assert_eq!(scenario.at(203).look(&[&crashed]).restarts(), ["a"], "{code} {boot} {is_replayed}");
    }
}

#[test]
fn a_container_that_a_running_engine_did_not_start_again_while_the_agent_was_down_was_stopped_by_someone() {
    let (no, failures, always) = (RestartPolicy::No, RestartPolicy::OnFailure, RestartPolicy::Always);
    for (policy, code, error, engine_since, healed) in [
        (always, 1, "", 0, false),
        (RestartPolicy::UnlessStopped, 1, "", 0, false),
        (always, 2, "", 0, false),
        (always, 130, "", 0, false),
        // It may be out of attempts.
        (failures, 1, "", 0, true),
        (no, 130, "", 0, true),
        // The engine tried, and failed.
        (always, 127, "exec: no such file", 0, true),
        // It may not have been the engine's turn.
        (always, 1, "", 30, true),
    ] {
        let mut scenario = Scenario::of(config());
        let before = Container { restart_policy: policy, ..running("a") };
        scenario.at(10).look(&[&before]);
        let durable = scenario.service.durable().clone();
        let config = scenario.service.config.clone();
        scenario.at(60);
        let started = Service::new(config, durable, boot_of("one", "one"), StartReason::Start, scenario.now);
        scenario.service = started.0;
        let engine_since = scenario.seconds(engine_since);
        scenario.input(Input::EngineBack { at: scenario.now, engine_since });
        let ended = Container {
            finished_at: scenario.seconds(20),
            restart_policy: policy,
            error: error.into(),
            ..exited("a", code)
        };
        scenario.look(&[&ended]).at(63).look(&[&ended]);
        assert_eq!(
            scenario.restarts().len(),
            usize::from(healed),
            "{policy:?} {code} {error} {engine_since:?}"
        );
    }
}

#[test]
fn a_reload_knows_as_much_of_the_stops_before_the_start_as_was_known() {
    let cases = [(RestartPolicy::No, 137), (RestartPolicy::No, 143), (RestartPolicy::Always, 1)];
    for (policy, code) in cases {
        let mut scenario = Scenario::of(config());
        let before = Container { restart_policy: policy, ..running("a") };
        scenario.at(10).look(&[&before]).at(60);
        restart_agent(&mut scenario, "one");
        let finished_at = scenario.seconds(20);
        let ended = Container { finished_at, restart_policy: policy, ..exited("a", code) };
        scenario.look(&[&ended]).at(66).look(&[&ended]);
        scenario.reconfigures(ServiceConfig { heal_max_restarts: 1, ..config() });
        scenario.look(&[&ended]).at(80).look(&[&ended]);
        assert_eq!(scenario.restarts(), [""; 0], "{policy:?} {code}");
    }
}

#[test]
fn a_service_that_a_reload_adds_again_leaves_alone_what_may_have_been_stopped_meanwhile() {
    for (policy, code, healed) in
        [(RestartPolicy::No, 143, false), (RestartPolicy::Always, 1, false), (RestartPolicy::No, 1, true)]
    {
        let mut scenario = Scenario::of(config());
        let before = Container { restart_policy: policy, ..running("a") };
        scenario.at(10).look(&[&before]);
        let (durable, config) = (scenario.service.durable().clone(), scenario.service.shared_config());
        scenario.at(60);
        let added = Service::new(config, durable, boot_of("one", "one"), StartReason::Reload, scenario.now);
        scenario.service = added.0;
        scenario.reconnected();
        let finished_at = scenario.seconds(20);
        let ended = Container { finished_at, restart_policy: policy, ..exited("a", code) };
        scenario.look(&[&ended]).at(66).look(&[&ended]);
        assert_eq!(scenario.restarts().len(), usize::from(healed), "{policy:?} {code}");
    }
}

#[test]
fn a_container_whose_end_nobody_saw_is_started_after_a_power_cut_unless_it_had_been_stopped() {
    for is_stopped in [false, true] {
        let mut scenario = Scenario::of(config());
        scenario.at(10).look(&[&running("a")]);
        if is_stopped {
            scenario.event("id-a", EventKind::Stop);
        }
        // There was no time to record what ran.
        let durable = scenario.service.durable().clone();
        let (config, boot) = (scenario.service.config.clone(), boot_after_one(&scenario, "two"));
        scenario.at(60);
        scenario.service = Service::new(config, durable, boot, StartReason::Start, scenario.now).0;
        // Podman has no daemon that containers depend on.
        let engine_since = Some(Timestamp::UNIX_EPOCH);
        scenario.input(Input::EngineBack { at: scenario.now, engine_since });
        let ended = Container { restart_policy: RestartPolicy::Always, ..exited("a", -1) };
        assert_eq!(scenario.look(&[&ended]).restarts(), [""; 0]);
        let expected: &[&str] = if is_stopped { &[] } else { &["a"] };
        assert_eq!(scenario.at(66).look(&[&ended]).restarts(), expected, "stopped: {is_stopped}");
    }
}

/// It ran again in the second boot, before the agent did.
#[test]
fn what_was_stopped_after_a_reboot_while_the_agent_did_not_run_stays_stopped() {
    let (no, unless_stopped) = (RestartPolicy::No, RestartPolicy::UnlessStopped);
    for reason in [StartReason::Start, StartReason::Reload] {
        for is_clean in [true, false] {
            // When its last run began and ended; whether it is started.
            for (policy, code, began, ended, healed) in [
                (no, 143, 35, 100, false),
                (no, 137, 35, 100, false),
                (no, 0, 35, 100, false),
                (unless_stopped, 1, 35, 100, false),
                (no, 1, 35, 100, true),
                // The shutdown has ended it, and the engine may have noticed that only when it was started.
                (no, 143, 5, 20, true),
                (no, 143, 5, 40, true),
            ] {
                let mut scenario = Scenario::of(config());
                scenario.at(10).look(&[&running("a")]);
                if is_clean {
                    scenario.service.on_shutdown();
                }
                let (durable, config) =
                    (scenario.service.durable().clone(), scenario.service.shared_config());
                let boot = boot_after_one(&scenario, "two");
                scenario.at(500);
                scenario.service = Service::new(config, durable, boot, reason, scenario.now).0;
                scenario.reconnected();
                let (started_at, finished_at) = (scenario.seconds(began), scenario.seconds(ended));
                let down = Container { started_at, finished_at, restart_policy: policy, ..exited("a", code) };
                scenario.look(&[&down]).at(506).look(&[&down]);
                // A service that a reload adds was not there at the shutdown.
                let is_known = is_clean || reason == StartReason::Start || code == 1;
                let what = format!("{reason:?} {is_clean} {policy:?} {code} {began}-{ended}");
                assert_eq!(scenario.restarts().len(), usize::from(healed && is_known), "{what}");
            }
        }
    }
}

/// It was stopped before the agent was there.
#[test]
fn what_was_down_before_the_agent_was_stopped_was_not_ended_by_the_shutdown() {
    for code in [137, 143] {
        let mut scenario = Scenario::of(config());
        let down = Container { finished_at: scenario.seconds(-100), ..exited("a", code) };
        let web = running("web");
        let there = [&web, &down];
        scenario.at(10).look(&there).at(20).look(&there);
        assert_eq!(scenario.restarts(), [""; 0], "{code}");
        scenario.at(60);
        restart_agent(&mut scenario, "two");
        scenario.look(&there).at(66).look(&there);
        assert_eq!(scenario.restarts(), [""; 0], "{code}");
    }
}

#[test]
fn what_a_shutdown_has_ended_is_started_if_the_clock_is_set_only_after_the_start() {
    let mut scenario = Scenario::of(config());
    scenario.at(10).look(&[&running("web")]);
    scenario.service.on_shutdown();
    let (durable, config) = (scenario.service.durable().clone(), scenario.service.shared_config());
    // Without a battery, the machine's clock begins long ago. The boot is at second 30 by the right clock.
    let behind = SignedDuration::from_hours(24 * 365);
    let boot = boot_after_one(&scenario, "two");
    let boot = Boot { at: boot.at - behind, ..boot };
    let started_at = boot.at + SignedDuration::from_secs(5);
    scenario.service = Service::new(config, durable, boot, StartReason::Start, started_at).0;
    scenario.at(60).service.shift(behind);
    scenario.reconnected();
    let ended = Container { finished_at: scenario.seconds(20), ..exited("web", 0) };
    scenario.look(&[&ended]).at(66).look(&[&ended]);
    assert_eq!(scenario.restarts(), ["web"]);
}

/// The clock was set between the starts of engine and agent, so that the container seems to have been started before the boot.
#[test]
fn what_ended_after_the_agent_was_started_was_not_ended_by_the_shutdown_before() {
    let mut scenario = Scenario::of(config());
    scenario.at(10).look(&[&running("a")]);
    // The agent was killed.
    let (durable, config) = (scenario.service.durable().clone(), scenario.service.shared_config());
    let boot = boot_after_one(&scenario, "two");
    scenario.at(60);
    scenario.service = Service::new(config, durable, boot, StartReason::Start, scenario.now).0;
    scenario.reconnected();
    scenario.look(&[&running("a")]).at(500).engine_gap();
    let ended = Container { finished_at: scenario.seconds(510), ..exited("a", 143) };
    scenario.at(600).reconnected();
    scenario.look(&[&ended]).at(606).look(&[&ended]);
    assert_eq!(scenario.restarts(), [""; 0]);
}

#[test]
fn auto_start_starts_the_project_after_a_reboot() {
    for (boot, starts) in [("two", true), ("one", false)] {
        let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
        let one = local("sha256:one", &['a']);
        scenario.at(0).check(observed('a', std::slice::from_ref(&one), &[&running("web")]));
        restart_agent(&mut scenario, boot);
        let ended = Container { finished_at: scenario.seconds(20), ..exited("web", 0) };
        scenario.at(60).check(observed('a', std::slice::from_ref(&one), &[&ended]));
        let begun = matches!(scenario.act(), Some(Action::Step(Step::Start(_))));
        assert_eq!(begun, starts, "boot {boot}");
    }
}

#[test]
fn a_shutdown_soon_after_a_restart_does_not_fail_the_restart() {
    let mut scenario = Scenario::of(config());
    scenario.at(0).look(&[&running("web")]);
    let down = Container { finished_at: scenario.seconds(10), ..exited("web", 1) };
    scenario.at(10).look(&[&down]);
    assert_eq!(scenario.at(12).look(&[&down]).restarts(), ["web"]);
    let again = Container { started_at: scenario.seconds(13), ..running("web") };
    scenario.at(14).look(&[&again]);
    restart_agent(&mut scenario, "two");
    let ended =
        Container { started_at: scenario.seconds(13), finished_at: scenario.seconds(20), ..exited("web", 0) };
    scenario.at(60).look(&[&ended]);
    assert_eq!(scenario.at(66).look(&[&ended]).restarts(), ["web"]);
    let kinds = scenario.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED), "{kinds:?}");
}

#[test]
fn a_stop_replayed_only_after_an_agent_restart_still_counts() {
    for is_replayed in [true, false] {
        let mut scenario = Scenario::of(config());
        scenario.at(99).look(&[&running("a")]);
        scenario.at(100).event("id-a", EventKind::Stop);
        let stopped_at = scenario.now;
        // The event stream broke, and the agent was killed before it could reconnect.
        scenario.at(101).engine_gap();
        scenario.at(102).look(&[&exited("a", 0)]);
        scenario.at(130);
        restart_agent(&mut scenario, "one");
        assert_eq!(
            scenario.look(&[&exited("a", 0)]).restarts(),
            [""; 0],
            "its events have not been read yet"
        );
        if is_replayed {
            scenario.input(Input::Event { at: stopped_at, id: "id-a".into(), what: EventKind::Stop });
        }
        let expected: &[&str] = if is_replayed { &[] } else { &["a"] };
        assert_eq!(scenario.at(140).look(&[&exited("a", 0)]).restarts(), expected, "{is_replayed}");
    }
}
