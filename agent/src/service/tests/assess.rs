//! One condition per container, whoever asks.

use super::super::assess::{Condition, Inactive, Stops, Symptom, assess};
use super::super::input::StopTimes;
use super::*;

fn at(text: &str) -> Timestamp {
    format!("2026-01-01T00:{text}Z").parse().unwrap()
}

fn ended(code: i64) -> Container {
    Container { started_at: Some(at("00:00")), finished_at: Some(at("01:00")), ..exited("a", code) }
}

#[test]
fn each_way_a_container_looks_is_one_condition() {
    use Condition::{Failing, Healthy, Restarting, Starting};
    let in_state = |state| Container { state, ..running("a") };
    let none = StopTimes::new();
    let told = StopTimes::from([("id-a".to_owned(), at("00:55"))]);
    let before = StopTimes::from([("id-a".to_owned(), "2025-12-31T23:59:00Z".parse().unwrap())]);
    let nobody = Stops { asked: &none, by_engine: &none };
    let unhealthy = Failing(Symptom::Unhealthy { output: String::new() });
    let not_started = Container { error: "no such file".into(), ..in_state(State::Created) };
    let at_the_end = StopTimes::from([("id-a".to_owned(), at("00:59"))]);
    // The clock was set back in the middle of the run.
    let set_back = |code| Container { started_at: Some(at("05:00")), ..ended(code) };
    let oom = Container { oom_killed: true, ..ended(137) };
    let inactive = Condition::Inactive;
    let table = [
        (running("a"), nobody, Healthy),
        (with_health("a", HealthState::Healthy), nobody, Healthy),
        (with_health("a", HealthState::Starting), nobody, Starting),
        (with_health("a", HealthState::Unhealthy), nobody, unhealthy),
        (in_state(State::Restarting), nobody, Restarting),
        (in_state(State::Paused), nobody, inactive(Inactive::Paused)),
        (in_state(State::Created), nobody, inactive(Inactive::Created)),
        (not_started, nobody, Failing(Symptom::NotStarted { error: "no such file".into() })),
        (in_state(State::Removing), nobody, inactive(Inactive::Removing)),
        (in_state(State::Unknown), nobody, inactive(Inactive::Unknown)),
        (in_state(State::Dead), nobody, Failing(Symptom::Dead)),
        (ended(0), nobody, inactive(Inactive::Finished)),
        (ended(1), nobody, Failing(Symptom::Exited { exit_code: 1 })),
        (oom, nobody, Failing(Symptom::OutOfMemory)),
        (ended(143), Stops { asked: &told, by_engine: &none }, inactive(Inactive::Stopped)),
        (ended(0), Stops { asked: &none, by_engine: &told }, Failing(Symptom::EngineStopped)),
        // That stop was of the run before.
        (ended(143), Stops { asked: &before, by_engine: &none }, Failing(Symptom::Exited { exit_code: 143 })),
        (set_back(143), Stops { asked: &at_the_end, by_engine: &none }, inactive(Inactive::Stopped)),
        (
            set_back(143),
            Stops { asked: &before, by_engine: &none },
            Failing(Symptom::Exited { exit_code: 143 }),
        ),
    ];
    for (container, stops, expected) in table {
        assert_eq!(assess(&container, stops, false, at("02:00")), expected, "{container:?}");
    }
    let looping = Container { restart_count: 4, exit_code: 3, ..running("a") };
    let expected = Failing(Symptom::CrashLoop { restarts: 4, exit_code: 3 });
    assert_eq!(assess(&looping, nobody, true, at("02:00")), expected);
}

#[test]
fn what_is_failing_for_the_healer_is_not_well_for_the_status() {
    let mut story = Story::of(ServiceConfig { auto_heal: false, ..config() });
    let looping = |count| Container { restart_count: count, restarts_itself: true, ..running("a") };
    story.look(&[&looping(0)]).at(5).look(&[&looping(3)]).at(8).look(&[&looping(4)]);
    assert_eq!(story.kinds(), [Kind::DIED]);
    assert_eq!(story.status(), StatusValue::Unhealthy);
    let why = story.record().unhealthy_reason;
    assert_eq!(why.as_deref(), Some("a keeps crashing: restarted 4 times, exit code 0"));
}
