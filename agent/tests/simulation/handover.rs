//! Handovers: new containers beside the old ones, which are stopped only for a proven image.

use evenkeel_agent::model::Drain;
use evenkeel_common::wire::AuditEntry;

use super::run::step::Step;
use super::run::{Flags, Simulation};
use super::world::Act;
use super::*;

/// A handover of one service; `drain` tells containers in advance.
async fn handover(behaviour: Behaviour, drain: bool) -> (FakeWorld, Arc<ServiceConfig>) {
    let fake = new_world();
    let web = reference(WEB);
    fake.compose_service("web", &web);
    fake.starts_first("web");
    fake.add_image(&web, &old_name("web"), Behaviour::Good, true);
    fake.push(&web, &old_name("web"), Behaviour::Good);
    fake.operator_up();
    until_healthy(&fake, "web").await;
    fake.push(&web, "v2", behaviour);
    let words = |text: &str| if drain { vec![text.to_owned()] } else { Vec::new() };
    let drain = Drain {
        exec: words("drain"),
        command: words("/bin/true"),
        undo: words("undrain"),
        wait: Duration::from_secs(u64::from(drain)),
        timeout: Duration::from_secs(30),
    };
    let update = UpdateConfig { drain, ..UpdateConfig::default() };
    let config = ServiceConfig { update: Some(Arc::new(update)), ..(*config(&[WEB])).clone() };
    (fake, Arc::new(config))
}

fn recorded(fake: &FakeWorld, kind: &Kind) -> Vec<AuditEntry> {
    fake.entries().into_iter().filter(|entry| entry.event == *kind).collect()
}

/// Every kind of image, with whether it ends proven. One that crashes late has served by then.
const KINDS: [(Behaviour, bool); 8] = [
    (Behaviour::Good, true),
    (Behaviour::Unchecked, true),
    (Behaviour::Unhealthy, false),
    (Behaviour::Crash, false),
    (Behaviour::CrashLoop, false),
    (Behaviour::Flapping, false),
    (Behaviour::Oom, false),
    (Behaviour::BadEntrypoint, false),
];

async fn assert_ended(
    fake: &FakeWorld,
    old: &[(String, bool, Option<jiff::Timestamp>)],
    is_good: bool,
    what: &str,
) {
    let what = format!("{what}\n{}", fake.transcript().join("\n"));
    assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
    let durable = fake.durable(&state_key("shop")).await;
    assert_eq!(durable.deployment, None, "{what}: a deployment was left unfinished");
    assert_eq!(fake.leftovers(), Vec::<String>::new(), "{what}: holds were left");
    let now = fake.containers_of("web");
    if is_good {
        assert_eq!(fake.running("web"), [id_of("v2")], "{what}");
        assert!(now.iter().all(|(id, is_up, _)| *is_up && old.iter().all(|(was, ..)| was != id)), "{what}");
        assert_eq!(recorded(fake, &Kind::UPDATED).len(), 1, "{what}");
    } else {
        assert_eq!(now, old, "{what}: the same containers, which were never stopped");
        assert_eq!(fake.named(&reference(WEB)), Some(id_of(&old_name("web"))), "{what}: the tag");
        assert_eq!(recorded(fake, &Kind::ROLLED_BACK).len(), 1, "{what}");
        assert_eq!(durable.images.blocked().count(), 1, "{what}");
    }
    let kind = if is_good { Kind::UPDATED } else { Kind::ROLLED_BACK };
    for entry in recorded(fake, &kind) {
        let outage = entry.outage_seconds.map(f64::from);
        assert!(outage.is_none_or(|seconds| seconds == 0.0), "{what}: {outage:?} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_image_takes_over_and_a_bad_one_never_touches_what_runs() {
    for (behaviour, is_good) in KINDS {
        for drain in [false, true] {
            let (fake, config) = handover(behaviour, drain).await;
            let old = fake.containers_of("web");
            assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
            let what = format!("an image that {}, drain {drain}", behaviour.describe());
            assert_ended(&fake, &old, is_good, &what).await;
            let kind = if is_good { Kind::UPDATED } else { Kind::ROLLED_BACK };
            let outage = recorded(&fake, &kind).first().and_then(|entry| entry.outage_seconds).map(f64::from);
            assert_eq!(outage, Some(0.0), "{what}\n{}", fake.transcript().join("\n"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_at_any_call_of_a_handover_keeps_the_service_up() {
    let mut runs = 0;
    for (nr, (behaviour, is_good)) in KINDS.into_iter().enumerate() {
        for at in every(23, nr) {
            let (fake, config) = handover(behaviour, nr % 2 == 0).await;
            let old = fake.containers_of("web");
            fake.crash_at(Some(at));
            if run_agent(&fake, &config, LONG, Script::Poll).await {
                assert!(at > 50, "only {at} calls, the crashes did not reach the handover");
                break;
            }
            fake.crash_at(None);
            assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
            let what = format!("an image that {}, killed at call {at}", behaviour.describe());
            assert_ended(&fake, &old, is_good, &what).await;
            runs += 1;
        }
    }
    println!("{runs} runs");
}

#[tokio::test(start_paused = true)]
async fn an_old_container_that_can_not_be_stopped_is_left_and_is_no_reason_for_another_update() {
    let (fake, config) = handover(Behaviour::Good, false).await;
    let old = fake.containers_of("web");
    fake.refuse_stop(&old[0].0);
    for (version, updates) in [("v2", 1), ("v3", 2)] {
        fake.push(&reference(WEB), version, Behaviour::Good);
        // Each of its steps is tried five times, and many checks follow.
        assert!(run_agent(&fake, &config, Duration::from_mins(10), Script::Poll).await);
        let transcript = fake.transcript().join("\n");
        assert_eq!(fake.violations(), Vec::<String>::new(), "{transcript}");
        assert_eq!(fake.running("web"), [id_of(&old_name("web")), id_of(version)], "{transcript}");
        let told = recorded(&fake, &Kind::UPDATED);
        assert_eq!(told.len(), updates, "{transcript}");
        let reason = told[0].reason.as_deref().unwrap_or_default();
        assert!(reason.contains("left on the old image: p-web-1;"), "{reason}");
        let left = fake.durable(&state_key("shop")).await.left_behind;
        assert_eq!(left.into_iter().collect::<Vec<String>>(), [old[0].0.clone()]);
    }
}

/// What a person or the engine does at this time of a handover, in seconds, and what the transcript must then contain if it is
/// done to the old container, and to the new one.
type Interference = (&'static [(u64, Act)], &'static [&'static str], &'static [&'static str]);

const UPDATED: &[&str] = &[": updated"];
const NOTHING_STARTED: &[&str] = &["web was removed by someone", "so nothing was started"];

/// The probation of the new container beside the old one lasts from 6 to 14 s, and then it serves alone until 22 s.
const INTERFERENCE: &[Interference] = &[
    (&[(8, Act::Stop("web"))], UPDATED, &["p-web-2 was stopped by someone", ": updated"]),
    (&[(8, Act::Remove("web"))], UPDATED, &["web was removed by someone", ": updated"]),
    (&[(8, Act::Restart("web"))], UPDATED, UPDATED),
    (&[(8, Act::Pause("web")), (10, Act::Unpause("web"))], UPDATED, UPDATED),
    (&[(8, Act::Up)], UPDATED, UPDATED),
    (&[(8, Act::Down)], NOTHING_STARTED, NOTHING_STARTED),
    (&[(8, Act::EngineStops), (10, Act::EngineStarts)], UPDATED, UPDATED),
    (&[(8, Act::StreamBreaks)], UPDATED, UPDATED),
    (&[(8, Act::Cut(true)), (12, Act::Cut(false))], UPDATED, UPDATED),
    (&[(8, Act::Edit("web"))], UPDATED, UPDATED),
    (&[(8, Act::Prune)], UPDATED, UPDATED),
    (&[(17, Act::Stop("web"))], UPDATED, &["p-web-2 was stopped by someone", "removes p-web-1"]),
    (&[(17, Act::Remove("web"))], UPDATED, &["web was removed by someone", "starts p-web-1", ": updated"]),
    (&[(17, Act::Restart("web"))], UPDATED, UPDATED),
    (&[(17, Act::Up)], UPDATED, UPDATED),
    (&[(17, Act::Down)], &["web was removed by someone"], &["web was removed by someone"]),
    (&[(17, Act::EngineStops), (19, Act::EngineStarts)], UPDATED, UPDATED),
    (&[(17, Act::Cut(true)), (21, Act::Cut(false))], UPDATED, UPDATED),
    (&[(17, Act::Crash("web"))], &["starts p-web-1", ": rolled_back"], &["starts p-web-1", ": rolled_back"]),
    (&[(17, Act::Prune)], UPDATED, UPDATED),
];

/// Runs a handover in which this is done, and returns its transcript.
fn interfered(behaviour: Behaviour, acts: &[(u64, Act)], setup: &Simulation) -> String {
    let more: Vec<(u64, Step)> = acts.iter().map(|(at, act)| (*at, Step::World(*act))).collect();
    with_steps(behaviour, &more, setup)
}

fn with_steps(behaviour: Behaviour, more: &[(u64, Step)], setup: &Simulation) -> String {
    let mut steps = vec![(5_000, Step::World(Act::Push("web", behaviour))), (5_001, Step::Poll)];
    steps.extend(more.iter().map(|(at, step)| (at * 1_000, step.clone())));
    let steps = steps.into_iter().map(|(at, step)| (Duration::from_millis(at), step)).collect();
    let flags = [Flags { auto_update: true, ..Flags::default() }, Flags::default()];
    let simulation = Simulation { flags, starts_first: true, drains: true, steps, ..setup.clone() };
    let outcome = simulation.run();
    let transcript = outcome.transcript.join("\n");
    assert_eq!(outcome.violations, Vec::<String>::new(), "{behaviour:?} {more:?}, {transcript}");
    transcript
}

#[test]
fn a_person_who_acts_in_the_middle_is_respected() {
    for (acts, of_old, of_new) in INTERFERENCE {
        // With a third service, an operator's hand falls on the new container.
        for (has_third, expected) in [(false, of_old), (true, of_new)] {
            let setup = Simulation { has_third, ..Simulation::default() };
            let transcript = interfered(Behaviour::Good, acts, &setup);
            for text in *expected {
                assert!(transcript.contains(text), "{acts:?} {text}: {transcript}");
            }
        }
    }
}

#[test]
fn old_containers_that_are_gone_or_have_ended_by_the_time_a_bad_image_fails_come_back() {
    for (act, expected) in [
        (Act::Up, ["web runs web v1", ": rolled_back"]),
        (Act::Crash("web"), ["starts p-web-1", ": rolled_back"]),
    ] {
        let transcript = interfered(Behaviour::Unhealthy, &[(8, act)], &Simulation::default());
        let (_, after) = transcript.split_once(&act.describe()).expect("it was done");
        for text in expected {
            assert!(after.contains(text), "{act:?} {text}: {transcript}");
        }
    }
}

#[test]
fn old_containers_that_were_drained_for_good_are_made_anew_after_a_bad_image() {
    let act = Act::Crash("web");
    let setup = Simulation { drains_for_good: true, ..Simulation::default() };
    let transcript = interfered(Behaviour::Good, &[(17, act)], &setup);
    let (_, after) = transcript.split_once(&act.describe()).expect("it was done");
    for text in ["removes p-web-1", "web runs web v1", ": rolled_back"] {
        assert!(after.contains(text), "{text}: {transcript}");
    }
}

/// It serves alone from 15 s, would have done so until 23 s, and ends at about 18 s.
#[test]
fn the_old_containers_are_started_as_soon_as_a_new_one_that_serves_alone_has_ended_with_code_0() {
    let transcript = interfered(Behaviour::Quits, &[], &Simulation::default());
    assert!(transcript.contains(": rolled_back"), "{transcript}");
    let line = transcript.lines().find(|line| line.contains("starts p-web-1")).expect("it comes back");
    let at = line.split_whitespace().next().and_then(|at| at.parse::<f64>().ok());
    assert!(at.is_some_and(|at| at < 21.0), "{transcript}");
}

/// Such as when a database goes away while the new container serves alone, and comes back.
#[test]
fn only_the_old_containers_are_left_if_neither_side_is_well() {
    let steps = [
        (17, Step::World(Act::Sicken("web"))),
        (21, Step::World(Act::Sicken("web"))),
        (60, Step::World(Act::Restart("web"))),
        (70, Step::Ask("web", ServiceRequest::Check)),
    ];
    // A container that is left beside another is a violation.
    let transcript = with_steps(Behaviour::Good, &steps, &Simulation::default());
    let (before, after) = transcript.split_once(": rollback_failed").expect("neither was well");
    assert!(before.contains("removes p-web-2"), "{transcript}");
    assert!(!after.contains("web runs"), "{transcript}");
}

#[test]
fn new_containers_are_not_removed_once_they_are_all_that_is_left() {
    let acts = [(8, Act::Up), (10, Act::Stop("web"))];
    let transcript = interfered(Behaviour::Good, &acts, &Simulation::default());
    assert!(transcript.contains("p-web-2 was stopped by someone"), "{transcript}");
    assert!(!transcript.contains("removes p-web-2"), "{transcript}");
}

/// The same while the old containers drain, from 14 to 24 s.
const WHILE_DRAINING: &[Interference] = &[
    (&[(17, Act::Crash("web"))], UPDATED, UPDATED),
    (&[(17, Act::Stop("web"))], UPDATED, &["p-web-2 was stopped by someone", ": updated"]),
    (&[(17, Act::Remove("web"))], UPDATED, &["web was removed by someone", ": updated"]),
    (&[(17, Act::Restart("web"))], UPDATED, UPDATED),
    (&[(23, Act::Restart("web"))], UPDATED, UPDATED),
    (&[(17, Act::EngineStops), (19, Act::EngineStarts)], UPDATED, UPDATED),
    (&[(23, Act::EngineStops), (26, Act::EngineStarts)], UPDATED, UPDATED),
];

#[test]
fn old_containers_are_not_stopped_while_the_new_ones_do_not_serve() {
    for (acts, of_old, of_new) in WHILE_DRAINING {
        for (has_third, expected) in [(false, of_old), (true, of_new)] {
            for restarts_itself in [false, true] {
                let setup =
                    Simulation { has_third, restarts_itself, drain_wait: Some(10), ..Simulation::default() };
                let transcript = interfered(Behaviour::Good, acts, &setup);
                assert!(!transcript.contains(": rolled_back"), "{acts:?}: {transcript}");
                for text in *expected {
                    assert!(transcript.contains(text), "{acts:?} {text}: {transcript}");
                }
            }
        }
    }
    // It crashes at 31 s.
    let setup = Simulation { drain_wait: Some(20), ..Simulation::default() };
    let transcript = interfered(Behaviour::LateCrash, &[], &setup);
    assert!(transcript.contains(": rolled_back") && !transcript.contains("stops p-web-1"), "{transcript}");
}
