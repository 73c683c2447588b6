//! Runs with a disk that refuses writes, and with siblings in the project: an action that can't be journaled is neither
//! executed nor reported, and nothing is lost.

use evenkeel_agent::model::{EventKind, HealthState, Members};
use evenkeel_agent::service::input::ServiceReply;
use evenkeel_agent::tasks::state_health::StateHealth;
use evenkeel_common::store::{MonitoredStore, Writes};
use evenkeel_common::wire::Level;
use jiff::Timestamp;
use tokio::sync::watch;

use super::run::step::Step;
use super::run::{Flags, Simulation};
use super::world::{Act, StoreFault};
use super::*;

const DB: &str = "localhost:5000/db:latest";

/// A seeded pseudo-random number generator.
fn random(mut seed: u64) -> impl FnMut(u64) -> u64 + Send + 'static {
    move |below| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    }
}

#[tokio::test(start_paused = true)]
async fn random_write_failures_change_no_outcome_and_duplicate_no_entry() {
    for (nr, scenario) in SCENARIOS.iter().enumerate() {
        for seed in every(4, nr).map(|seed| seed as u64).take_while(|seed| *seed <= 8) {
            let (fake, config) = set_up(scenario);
            let mut random = random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            fake.refuse_writes(move || random(3) == 0);
            let script =
                if scenario.script == Script::RedeployFirst { Script::Poll } else { scenario.script };
            assert!(run_agent(&fake, &config, 3 * LONG, script).await);
            fake.refuse_writes(|| false);
            assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
            assert_ended_well(&fake, scenario, &format!("seed {seed}")).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn random_write_failures_between_kills_change_no_outcome() {
    for round in every(4, 0).map(|round| round as u64).take_while(|round| *round <= 120) {
        let mut dice = random(round.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let scenario = &SCENARIOS[usize::try_from(dice(SCENARIOS.len() as u64)).expect("small")];
        let (fake, config) = set_up(scenario);
        for _ in 0..4 {
            let mut writes = random(dice(u64::MAX).max(1));
            fake.refuse_writes(move || writes(4) == 0);
            fake.crash_at(Some(1 + usize::try_from(dice(70)).expect("small")));
            if run_agent(&fake, &config, LONG, Script::Poll).await {
                break;
            }
        }
        fake.crash_at(None);
        fake.refuse_writes(|| false);
        assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
        assert_ended_well(&fake, scenario, &format!("round {round}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_state_can_not_be_written_nothing_is_done_or_recorded() {
    let scenario = &SCENARIOS[0];
    let (fake, config) = set_up(scenario);
    fake.refuse_writes(|| true);
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!((fake.ups(), fake.entries()), (0, Vec::new()));
    assert_eq!(fake.leftovers(), Vec::<String>::new());
    fake.refuse_writes(|| false);
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_ended_well(&fake, scenario, "after a full disk").await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_whose_journal_write_failed_is_retried_without_waiting_for_the_cooldown() {
    for fails in 1..=8 {
        let fake = new_world();
        fake.compose_service("web", &reference(WEB));
        fake.add_image(&reference(WEB), "v1", Behaviour::Unhealthy, true);
        fake.push(&reference(WEB), "v1", Behaviour::Unhealthy);
        fake.operator_up();
        let config = Arc::new(ServiceConfig { auto_heal: true, ..(*config(&[WEB])).clone() });
        let mut write = 0;
        fake.refuse_writes(move || {
            write += 1;
            write == fails
        });
        assert!(run_agent(&fake, &config, Duration::from_mins(1), Script::Poll).await);
        assert_eq!(fake.restarts(), 1, "write {fails} failed");
        let recorded = fake.entries().iter().filter(|entry| entry.event == Kind::RESTARTING).count();
        assert_eq!(recorded, 1, "write {fails} failed");
        assert_eq!(fake.durable(&state_key("shop")).await.totals.restarts, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_has_stopped_stays_so_however_much_happens_while_the_disk_refuses_writes() {
    let noise =
        [EventKind::Start, EventKind::Health(HealthState::Healthy), EventKind::Kill { signal: Some(15) }];
    for what in noise {
        let fake = new_world();
        fake.compose_service("web", &reference(WEB));
        fake.add_image(&reference(WEB), "v1", Behaviour::Good, true);
        fake.push(&reference(WEB), "v1", Behaviour::Good);
        fake.operator_up();
        let config = Arc::new(ServiceConfig { auto_heal: true, ..(*config(&[WEB])).clone() });
        let world = world(&fake, Arc::new(fake.clone())).await;
        let durable = fake.durable(&state_key("shop")).await;
        let (member, handle) = Member::new(config, durable, world.clone(), StartReason::Start);
        let tasks = spawn_workers(&world, vec![member]);
        let send = |input: Input| assert!(handle.inbox.send(Command::Input(Box::new(input))).is_ok());
        let event = |id: &str, what: &EventKind| {
            send(Input::Event { at: fake.clock().now(), id: id.into(), what: what.clone() });
        };
        let script = async {
            let containers = world.engine.containers(&Members::Project("shop".into())).await;
            let id = containers.expect("the engine answers")[0].id.clone();
            let engine_since = Some(Timestamp::UNIX_EPOCH);
            send(Input::EngineBack { at: fake.clock().now(), engine_since });
            tokio::time::sleep(Duration::from_secs(30)).await;
            fake.refuse_writes(|| true);
            fake.act(Act::Stop("web"));
            event(&id, &EventKind::Kill { signal: Some(15) });
            event(&id, &EventKind::Die { exit_code: 143 });
            for _ in 0..300 {
                event("other", &what);
            }
            tokio::time::sleep(Duration::from_mins(1)).await;
            fake.refuse_writes(|| false);
            tokio::time::sleep(Duration::from_mins(2)).await;
            assert_eq!(fake.restarts(), 0, "{what:?}");
        };
        tokio::select! {
            () = tasks.panicked() => panic!("a worker panicked"),
            () = script => {}
        }
    }
}

/// A confirmed request must survive a restart; if it can't be written, it is refused.
#[tokio::test(start_paused = true)]
async fn a_request_that_can_not_be_written_is_refused_and_changes_nothing() {
    let (fake, config) = set_up(&SCENARIOS[1]);
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    let before = fake.durable(&state_key("shop")).await;
    assert_eq!(before.images.blocked().count(), 1);
    let world = world(&fake, Arc::new(fake.clone())).await;
    let (member, handle) = Member::new(config.clone(), before.clone(), world.clone(), StartReason::Start);
    let tasks = spawn_workers(&world, vec![member]);
    let ask = async || {
        let (reply, answer) = oneshot::channel();
        assert!(handle.inbox.send(Command::Request(ServiceRequest::Unblock, reply)).is_ok());
        answer.await.expect("an answer")
    };
    let script = async {
        fake.refuse_writes(|| true);
        let error = ask().await.expect_err("it can't be written");
        assert!(error.to_string().contains("No space left"), "{error}");
        assert_eq!(handle.published.get().service.durable().images.blocked().count(), 1, "still blocked");
        assert_eq!(fake.durable(&state_key("shop")).await, before);
        fake.refuse_writes(|| false);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(ask().await, Ok(ServiceReply::Unblocked));
    };
    tokio::select! {
        () = tasks.panicked() => panic!("a worker panicked"),
        () = script => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_and_its_recovery_are_each_recorded_once_even_if_some_writes_succeed() {
    let fake = new_world();
    let failing = watch::Sender::new(None);
    let monitored = MonitoredStore::new(Arc::new(fake.clone()), failing.clone(), Writes::default());
    let store: Arc<dyn Store> = Arc::new(monitored);
    let recorder = fake.clone();
    let health = StateHealth {
        store: store.clone(),
        failing: failing.clone(),
        clock: fake.clock(),
        record: Arc::new(move |entry| recorder.record(entry)),
    };
    let recorded = || fake.entries().into_iter().map(|entry| (entry.event, entry.level)).collect::<Vec<_>>();
    let script = async {
        let second = Duration::from_secs(1);
        tokio::time::sleep(10 * second).await;
        assert_eq!(recorded(), []);
        // Small writes may succeed between failed ones.
        let mut write = 0;
        fake.refuse_writes(move || {
            write += 1;
            write % 2 == 1
        });
        for _ in 0..40 {
            let _ = store.put("x", vec![1]).await;
            tokio::time::sleep(second).await;
        }
        assert_eq!(recorded(), [(Kind::ERROR, Level::Critical)]);
        assert!(failing.borrow().is_some());
        let reason = fake.entries()[0].reason.clone().unwrap_or_default();
        assert!(reason.contains("No space left"), "{reason}");
        fake.refuse_writes(|| false);
        tokio::time::sleep(15 * second).await;
        assert_eq!(recorded(), [(Kind::ERROR, Level::Critical), (Kind::RECOVERED, Level::Info)]);
        assert!(failing.borrow().is_none());
        assert_eq!(store.get("probe").await.expect("memory"), None, "the probe is removed");
    };
    let never = CancellationToken::new();
    tokio::select! {
        () = health.run(never.clone()) => unreachable!("it is never stopped"),
        () = script => {}
    }
}

/// Sets up a project with a second service whose tag was moved.
fn with_a_sibling(scenario: &Scenario) -> (FakeWorld, Arc<ServiceConfig>) {
    let (fake, config) = set_up(scenario);
    fake.compose_service("db", &reference(DB));
    fake.add_image(&reference(DB), "db v1", Behaviour::Good, true);
    fake.operator_up();
    fake.add_image(&reference(DB), "db v2", Behaviour::Good, true);
    (fake, config)
}

#[tokio::test(start_paused = true)]
async fn a_siblings_tag_that_was_moved_for_a_deployment_is_restored_wherever_the_agent_is_killed() {
    let some = SCENARIOS.iter().filter(|scenario| ["good", "unhealthy"].contains(&scenario.name));
    for (nr, scenario) in some.enumerate() {
        for at in every(9, nr).take_while(|at| *at < 400) {
            let (fake, config) = with_a_sibling(scenario);
            fake.crash_at(Some(at));
            let survived = run_agent(&fake, &config, LONG, scenario.script).await;
            fake.crash_at(None);
            if !survived {
                assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
            }
            let how = format!("{}, killed at call {at}", scenario.name);
            assert_ended_well(&fake, scenario, &how).await;
            assert_eq!(fake.named(&reference(DB)), Some(id_of("db v2")), "{how}: the sibling's tag");
            if survived {
                assert!(at > 50, "{how}: the crashes did not reach the deployment");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_services_of_one_project_are_updated_one_after_the_other_wherever_the_agent_is_killed() {
    for at in every(5, 0).map(|n| n * 3) {
        let fake = new_world();
        for (service, text) in TWO {
            fake.compose_service(service, &reference(text));
            fake.add_image(&reference(text), &old_name(service), Behaviour::Good, true);
            fake.push(&reference(text), &old_name(service), Behaviour::Good);
        }
        fake.operator_up();
        fake.push(&reference(WEB), "v2", Behaviour::Good);
        fake.push(&reference(API), "api2", Behaviour::Unhealthy);
        let configs =
            [config(&[WEB]), Arc::new(ServiceConfig { name: "api".into(), ..(*config(&[API])).clone() })];
        fake.crash_at(Some(at));
        let survived = run_agent_with(&fake, &configs, 2 * LONG, Script::Poll).await;
        fake.crash_at(None);
        if !survived {
            assert!(run_agent_with(&fake, &configs, 2 * LONG, Script::Poll).await);
        }
        let what = format!("killed at call {at}");
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(fake.running("web"), [id_of("v2")], "{what}");
        assert_eq!(fake.running("api"), [id_of("api v1")], "{what}");
        assert_eq!(fake.durable(&state_key("api")).await.images.blocked().count(), 1, "{what}");
        assert_eq!(fake.leftovers(), Vec::<String>::new(), "{what}");
        if survived {
            assert!(at > 50, "the crashes did not reach the deployments");
            break;
        }
    }
}

#[test]
fn an_operators_stop_while_the_connection_is_cut_stays_even_if_the_clock_was_set_back_before() {
    let flags = Flags { auto_update: false, auto_heal: true, auto_start: true, compose_watch: false };
    let steps = [
        (12_000, Act::SetClock(-30)),
        (21_000, Act::Cut(true)),
        (22_000, Act::Stop("api")),
        (45_000, Act::Cut(false)),
    ];
    let steps = steps.map(|(at, act)| (Duration::from_millis(at), Step::World(act)));
    let simulation = Simulation { flags: [flags; 2], steps: steps.to_vec(), ..Simulation::default() };
    let outcome = simulation.run();
    assert_eq!(outcome.violations, Vec::<String>::new(), "{}", outcome.transcript.join("\n"));
}

#[test]
fn an_engine_outage_while_the_disk_refuses_writes_is_recognized_by_its_time() {
    let flags = Flags { auto_update: false, auto_heal: true, auto_start: false, compose_watch: false };
    let steps = [
        (4_000, Act::Store(StoreFault::Refuses)),
        (5_000, Act::EngineStops),
        (8_000, Act::EngineStarts),
        (40_000, Act::Store(StoreFault::None)),
    ];
    let steps = steps.map(|(at, act)| (Duration::from_millis(at), Step::World(act)));
    let simulation = Simulation { flags: [flags; 2], steps: steps.to_vec(), ..Simulation::default() };
    let outcome = simulation.run();
    assert_eq!(outcome.violations, Vec::<String>::new(), "{}", outcome.transcript.join("\n"));
}
