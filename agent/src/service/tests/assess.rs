//! Every container has one condition, the same for all consumers.

use super::*;
use crate::service::health::assess::StopTimes;
use crate::service::health::assess::{Condition, Inactive, Stops, Symptom, assess};

fn at(text: &str) -> Timestamp {
    format!("2026-01-01T00:{text}Z").parse().unwrap()
}

fn ended(code: i64) -> Container {
    Container { started_at: Some(at("00:00")), finished_at: Some(at("01:00")), ..exited("a", code) }
}

#[test]
fn each_container_state_maps_to_one_condition() {
    use Condition::{Failing, Healthy, Restarting, Starting};
    let in_state = |state| Container { state, ..running("a") };
    let none = StopTimes::new();
    let told = StopTimes::from([("id-a".to_owned(), at("00:55"))]);
    let before = StopTimes::from([("id-a".to_owned(), "2025-12-31T23:59:00Z".parse().unwrap())]);
    let no_stops = Stops { requested: &none, by_engine: &none, told: &none };
    let unhealthy = Failing(Symptom::Unhealthy { output: String::new() });
    let not_started = Container { error: "no such file".into(), ..in_state(State::Created) };
    let at_the_end = StopTimes::from([("id-a".to_owned(), at("00:59"))]);
    // The clock was set back in the middle of the run.
    let set_back = |code| Container { started_at: Some(at("05:00")), ..ended(code) };
    let oom = Container { oom_killed: true, ..ended(137) };
    let inactive = Condition::Inactive;
    let table = vec![
        (running("a"), no_stops, Healthy),
        (with_health("a", HealthState::Unmeasured), no_stops, Condition::Unmeasured),
        (
            Container { is_stopping: true, ..with_health("a", HealthState::Unhealthy) },
            no_stops,
            inactive(Inactive::Stopping),
        ),
        // A child of a job was killed, and the job coped with it.
        (Container { oom_killed: true, ..ended(0) }, no_stops, inactive(Inactive::Finished)),
        (Container { oom_killed: true, ..running("a") }, no_stops, Healthy),
        (
            Container { state: State::Restarting, ..ended(2) },
            no_stops,
            Failing(Symptom::StuckRestarting { exit_code: 2 }),
        ),
        (with_health("a", HealthState::Healthy), no_stops, Healthy),
        (with_health("a", HealthState::Starting), no_stops, Starting),
        (with_health("a", HealthState::Unhealthy), no_stops, unhealthy),
        (in_state(State::Restarting), no_stops, Restarting),
        (in_state(State::Paused), no_stops, inactive(Inactive::Paused)),
        (in_state(State::Created), no_stops, inactive(Inactive::Created)),
        (not_started, no_stops, Failing(Symptom::NotStarted { error: "no such file".into() })),
        (in_state(State::Removing), no_stops, inactive(Inactive::Removing)),
        (in_state(State::Unknown), no_stops, inactive(Inactive::Unknown)),
        (in_state(State::Dead), no_stops, Failing(Symptom::Dead)),
        (ended(0), no_stops, inactive(Inactive::Finished)),
        (Container { served: true, ..ended(0) }, no_stops, Failing(Symptom::Exited { exit_code: 0 })),
        (
            Container { served: true, oom_killed: true, ..ended(0) },
            no_stops,
            Failing(Symptom::Exited { exit_code: 0 }),
        ),
        (ended(1), no_stops, Failing(Symptom::Exited { exit_code: 1 })),
        (oom, no_stops, Failing(Symptom::OutOfMemory)),
        (ended(143), Stops { requested: &told, by_engine: &none, told: &none }, inactive(Inactive::Stopped)),
        (
            ended(0),
            Stops { requested: &none, by_engine: &told, told: &none },
            Failing(Symptom::EngineStopped),
        ),
        // That stop ended the previous run.
        (
            ended(143),
            Stops { requested: &before, by_engine: &none, told: &none },
            Failing(Symptom::Exited { exit_code: 143 }),
        ),
        (
            set_back(143),
            Stops { requested: &at_the_end, by_engine: &none, told: &none },
            inactive(Inactive::Stopped),
        ),
        (
            set_back(143),
            Stops { requested: &before, by_engine: &none, told: &none },
            Failing(Symptom::Exited { exit_code: 143 }),
        ),
    ];
    for (container, stops, expected) in table {
        assert_eq!(assess(&container, stops, false, at("02:00")), expected, "{container:?}");
    }
    let looping = Container { restart_count: 4, exit_code: 3, ..running("a") };
    let expected = Failing(Symptom::CrashLoop { restarts: 4, exit_code: 3 });
    assert_eq!(assess(&looping, no_stops, true, at("02:00")), expected);
}

#[test]
fn the_status_agrees_with_the_healer_about_failing_containers() {
    let mut scenario = Scenario::of(ServiceConfig { auto_heal: false, ..config() });
    let looping = |count| Container {
        restart_count: count,
        restart_policy: RestartPolicy::Always,
        exit_code: 1,
        ..running("a")
    };
    scenario.look(&[&looping(0)]).at(5).look(&[&looping(3)]).at(8).look(&[&looping(4)]);
    assert_eq!(scenario.kinds(), [Kind::DIED]);
    assert_eq!(scenario.status(), StatusValue::Unhealthy);
    let why = scenario.record().unhealthy_reason;
    assert_eq!(why.as_deref(), Some("a keeps crashing: restarted 4 times, exit code 1"));
}
