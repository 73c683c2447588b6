//! Lives of the agent in a world in memory and in virtual time. Workers, decision core, outbox, poller and event reader
//! are the program's own; engine, registry, compose, store and clock are `world/`.
//!
//! | file | what it holds |
//! |---|---|
//! | `main.rs` | scripted deployments, killed before and after every single call |
//! | `random.rs` | random lives of two services in a project; every safety property is checked after every step |
//! | `transcripts.rs` | ten typical lives, as they are to be read |
//! | `swarm.rs` | updates of a swarm service, killed before and after every single call |
//! | `tags.rs` | newer tags that are written into an env file |
//! | `disk.rs`, `images.rs`, `projects.rs`, `tasks.rs` | scripted lives around one subject each |
//! | `life/` | a life: what can happen in it, and how it is lived |
//! | `world/` | the world, and the safety properties (`world/properties.rs`) |
//! | `configuration.rs` | the configuration of the services |

mod configuration;
mod disk;
mod images;
mod life;
mod projects;
mod random;
mod swarm;
mod tags;
mod tasks;
mod transcripts;
mod world;

use std::sync::Arc;
use std::time::Duration;

use configuration::config;
use evenkeel_agent::audit::Audit;
use evenkeel_agent::config::{ServiceConfig, UpdateConfig};
use evenkeel_agent::ports::Urgency;
use evenkeel_agent::project::cycle::Cycle;
use evenkeel_agent::project::placement::Placement;
use evenkeel_agent::project::published::Changed;
use evenkeel_agent::project::worker::{Command, Handle, Member, World, state_key};
use evenkeel_agent::service::boot::{Boot, StartReason};
use evenkeel_agent::service::input::{Input, ServiceRequest};
use evenkeel_common::clock::TokioClock;
use evenkeel_common::queue::Outbox;
use evenkeel_common::store::Store;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::Kind;
use futures_util::FutureExt;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use world::{Behaviour, FakeWorld, digest_of, id_of, reference};

const WEB: &str = "localhost:5000/web:latest";
const API: &str = "localhost:5000/api:latest";

fn new_world() -> FakeWorld {
    let clock = TokioClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
    FakeWorld::new(Arc::new(clock))
}

/// One incarnation of the agent: polls every 10 s until `until`, or until the world kills it. Whether it lived.
async fn live(fake: &FakeWorld, config: &Arc<ServiceConfig>, for_time: Duration, script: Script) -> bool {
    live_together(fake, std::slice::from_ref(config), for_time, script).await
}

/// The same for several services at once.
async fn live_together(
    fake: &FakeWorld,
    configs: &[Arc<ServiceConfig>],
    for_time: Duration,
    script: Script,
) -> bool {
    let world = world(fake, Arc::new(fake.clone())).await;
    live_in(world, fake, configs, for_time, script).await
}

/// The same in a world that is given.
async fn live_in(
    world: Arc<World>,
    fake: &FakeWorld,
    configs: &[Arc<ServiceConfig>],
    for_time: Duration,
    script: Script,
) -> bool {
    let (mut members, mut handles) = (Vec::new(), Vec::new());
    for config in configs {
        let durable = fake.durable(&state_key(&config.name)).await;
        let (member, handle) = Member::new(config.clone(), durable, world.clone(), StartReason::Start);
        members.push(member);
        handles.push(handle);
    }
    let tasks = run(&world, members);
    let scripts = handles.iter().map(|handle| polls(handle, &world, script));
    let lived = tokio::select! {
        _ = futures_util::future::join_all(scripts) => unreachable!("polling never ends"),
        () = tasks.panicked() => panic!("a worker panicked"),
        () = fake.crash.notified() => false,
        () = tokio::time::sleep(for_time) => true,
    };
    tasks.finish(Duration::ZERO).await;
    lived
}

/// The world as one incarnation of the agent has it, with a state in `store`.
async fn world(fake: &FakeWorld, store: Arc<dyn Store>) -> Arc<World> {
    let outbox = Outbox::open(store.clone(), fake.clock(), "evenkeel", &[]).await.expect("memory").outbox;
    world_with(fake, store, outbox)
}

/// The same, whose entries go to `outbox`.
fn world_with(fake: &FakeWorld, store: Arc<dyn Store>, outbox: Outbox) -> Arc<World> {
    let audit = Audit::new(outbox);
    let recorder = audit.clone();
    Arc::new(World {
        engine: Arc::new(fake.clone()),
        registry: Arc::new(fake.clone()),
        signatures: Arc::new(fake.clone()),
        tags: Arc::new(fake.clone()),
        swarm: Arc::new(fake.clone()),
        compose: Arc::new(fake.clone()),
        gate_command: Arc::new(fake.clone()),
        fleet: Arc::new(fake.clone()),
        fleet_view: watch::Sender::new(Arc::default()).subscribe(),
        changed: Changed::default(),
        store,
        commit: Arc::new(move |changes, entries| {
            let audit = audit.clone();
            async move { audit.commit(changes, entries).await }.boxed()
        }),
        clock: fake.clock(),
        record: Arc::new(move |entry| recorder.record(entry)),
        deployed: Arc::new(|_, _| {}),
        boot: Boot { now: "one".into(), before: "one".into(), ..Boot::default() },
    })
}

/// Lets these services work, each in its project's worker.
fn run(world: &Arc<World>, members: Vec<Member>) -> TaskSet {
    let tasks = TaskSet::new();
    Placement::new(world.clock.clone(), tasks.clone(), CancellationToken::new()).place(members);
    tasks
}

#[derive(Clone, Copy, PartialEq)]
enum Script {
    Poll,
    RedeployFirst,
    EngineGapAfter(Duration),
}

async fn polls(handle: &Handle, world: &Arc<World>, script: Script) {
    if script == Script::RedeployFirst {
        let (reply, answer) = oneshot::channel();
        assert!(handle.inbox.send(Command::Request(ServiceRequest::Redeploy, reply)).is_ok());
        let _ = answer.await;
    }
    let gap = async {
        if let Script::EngineGapAfter(time) = script {
            tokio::time::sleep(time).await;
            assert!(
                handle
                    .inbox
                    .send(Command::Input(Box::new(Input::EngineGap { at: world.clock.now() })))
                    .is_ok()
            );
        }
        std::future::pending::<()>().await;
    };
    let cycles = async {
        loop {
            let cycle = Cycle::new(world.registry.clone(), Urgency::Routine);
            let (done, _ended) = oneshot::channel();
            if handle.inbox.send(Command::Check(cycle, done)).is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    };
    tokio::join!(gap, cycles);
}

/// What one scenario sets up, and how it must end.
struct Scenario {
    name: &'static str,
    images: &'static [(&'static str, &'static str)],
    /// Image text, name of the new image, its behaviour.
    pushed: &'static [(&'static str, &'static str, Behaviour)],
    good: bool,
    /// The old images were built here and are in no registry any more, and a neighbour prunes all the time.
    hostile: bool,
    script: Script,
}

const ONE: &[(&str, &str)] = &[("web", WEB)];
const TWO: &[(&str, &str)] = &[("web", WEB), ("api", API)];

const fn one(
    name: &'static str,
    pushed: &'static [(&'static str, &'static str, Behaviour)],
    good: bool,
) -> Scenario {
    Scenario { name, images: ONE, pushed, good, hostile: false, script: Script::Poll }
}

const SCENARIOS: &[Scenario] = &[
    one("good", &[(WEB, "v2", Behaviour::Good)], true),
    one("unhealthy", &[(WEB, "v2", Behaviour::Unhealthy)], false),
    one("crash", &[(WEB, "v2", Behaviour::Crash)], false),
    one("crash loop", &[(WEB, "v2", Behaviour::CrashLoop)], false),
    one("flapping", &[(WEB, "v2", Behaviour::Flapping)], false),
    one("oom", &[(WEB, "v2", Behaviour::Oom)], false),
    one("bad entrypoint", &[(WEB, "v2", Behaviour::BadEntrypoint)], false),
    Scenario {
        name: "two good images",
        images: TWO,
        pushed: &[(WEB, "v2", Behaviour::Good), (API, "api2", Behaviour::Good)],
        good: true,
        hostile: false,
        script: Script::Poll,
    },
    Scenario {
        name: "one bad of two",
        images: TWO,
        pushed: &[(WEB, "v2", Behaviour::Good), (API, "api2", Behaviour::Unhealthy)],
        good: false,
        hostile: false,
        script: Script::Poll,
    },
    Scenario {
        name: "bad, while a neighbour prunes and the old image is nowhere else",
        images: ONE,
        pushed: &[(WEB, "v2", Behaviour::Crash)],
        good: false,
        hostile: true,
        script: Script::Poll,
    },
    Scenario {
        name: "good, asked for by redeploy",
        images: ONE,
        pushed: &[(WEB, "v2", Behaviour::Good)],
        good: true,
        hostile: false,
        script: Script::RedeployFirst,
    },
    Scenario {
        name: "bad, asked for by redeploy",
        images: ONE,
        pushed: &[(WEB, "v2", Behaviour::Unhealthy)],
        good: false,
        hostile: false,
        script: Script::RedeployFirst,
    },
    Scenario {
        name: "good, and the engine's stream breaks off during probation",
        images: ONE,
        pushed: &[(WEB, "v2", Behaviour::Good)],
        good: true,
        hostile: false,
        script: Script::EngineGapAfter(Duration::from_secs(4)),
    },
];

fn old_name(service: &str) -> String {
    format!("{service} v1")
}

fn set_up(scenario: &Scenario) -> (FakeWorld, Arc<ServiceConfig>) {
    let fake = new_world();
    for (service, text) in scenario.images {
        let reference = reference(text);
        fake.compose_service(service, &reference);
        fake.have(&reference, &old_name(service), Behaviour::Good, true);
        if !scenario.hostile {
            fake.push(&reference, &old_name(service), Behaviour::Good);
        }
    }
    fake.operator_up();
    for (text, name, behaviour) in scenario.pushed {
        fake.push(&reference(text), name, *behaviour);
    }
    if scenario.hostile {
        fake.prune_always();
    }
    let texts: Vec<&str> = scenario.images.iter().map(|(_, text)| *text).collect();
    (fake, config(&texts))
}

/// What is durable was told, and nothing else was, at every moment.
async fn assert_told_as_done(fake: &FakeWorld, what: &str) {
    let totals = fake.durable(&state_key("shop")).await.totals;
    let entries = fake.entries();
    let told = |kind: Kind| entries.iter().filter(|entry| entry.event == kind).count() as u64;
    assert_eq!(told(Kind::ROLLED_BACK), totals.rollbacks, "{what}");
    assert_eq!(told(Kind::UPDATED) > 0, totals.updates > 0, "{what}");
}

async fn assert_ended_well(fake: &FakeWorld, scenario: &Scenario, how: &str) {
    let what = format!("{}, {how}", scenario.name);
    assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
    let durable = fake.durable(&state_key("shop")).await;
    assert_eq!(durable.deployment, None, "{what}: a deployment was left unfinished");
    assert_eq!(fake.leftovers(), Vec::<String>::new(), "{what}: holds were left");
    for (service, text) in scenario.images {
        let new = scenario.pushed.iter().find(|(pushed, ..)| pushed == text);
        let (expected, blocked) = match new {
            Some((_, name, _)) if scenario.good => (id_of(name), None),
            Some((_, name, _)) => (id_of(&old_name(service)), Some(digest_of(name))),
            None => (id_of(&old_name(service)), None),
        };
        assert_eq!(fake.running(service), [expected], "{what}: image of {service}");
        assert_eq!(durable.blocked.get(*text).cloned(), blocked, "{what}: block of {text}");
    }
    let said = |kind: Kind| fake.entries().iter().filter(|entry| entry.event == kind).count();
    let images = scenario.pushed.len();
    if scenario.good {
        assert_eq!(said(Kind::UPDATED), images, "{what}: each update is told once");
        assert_eq!(durable.totals.updates, 1, "{what}");
        assert_eq!(durable.totals.rollbacks, 0, "{what}");
    } else {
        assert_eq!(said(Kind::UPDATED), 0, "{what}");
        assert_eq!(said(Kind::ROLLED_BACK), 1, "{what}");
        assert_eq!(said(Kind::ROLLBACK_FAILED), 0, "{what}");
        assert_eq!(durable.totals.rollbacks, 1, "{what}");
    }
}

const LONG: Duration = Duration::from_mins(2);

#[tokio::test(start_paused = true)]
async fn every_deployment_ends_in_the_proven_new_or_the_exact_old_state() {
    for scenario in SCENARIOS {
        let (fake, config) = set_up(scenario);
        assert!(live(&fake, &config, LONG, scenario.script).await);
        assert_ended_well(&fake, scenario, "undisturbed").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_at_any_call_ends_in_the_proven_new_or_the_exact_old_state() {
    let mut lives = 0;
    for scenario in SCENARIOS {
        for at in 1.. {
            let (fake, config) = set_up(scenario);
            fake.crash_at(Some(at));
            if live(&fake, &config, LONG, scenario.script).await {
                assert!(
                    at > 50,
                    "{}: only {at} calls, the crashes did not reach the deployment",
                    scenario.name
                );
                break;
            }
            fake.crash_at(None);
            assert_told_as_done(&fake, &format!("{}, killed at call {at}", scenario.name)).await;
            // A redeploy that died before it was accepted is polled for instead.
            assert!(live(&fake, &config, LONG, Script::Poll).await);
            assert_ended_well(&fake, scenario, &format!("killed at call {at}")).await;
            lives += 1;
            if at > 400 {
                break;
            }
        }
    }
    println!("{lives} lives");
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_again_and_again_still_ends_well() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below).expect("small")
    };
    for round in 0..150 {
        let scenario = &SCENARIOS[random(SCENARIOS.len() as u64)];
        let (fake, config) = set_up(scenario);
        let mut script = scenario.script;
        let mut story = format!("round {round}");
        for _ in 0..6 {
            let at = 1 + random(60);
            story.push_str(&format!(", killed at {at}"));
            fake.crash_at(Some(at));
            if live(&fake, &config, LONG, script).await {
                break;
            }
            script = Script::Poll;
        }
        fake.crash_at(None);
        assert!(live(&fake, &config, LONG, Script::Poll).await);
        assert_ended_well(&fake, scenario, &story).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_goes_away_in_the_middle_is_not_the_images_fault() {
    for after in (100..9000).step_by(97) {
        let scenario = &SCENARIOS[0];
        let (fake, config) = set_up(scenario);
        let engine = fake.clone();
        let outage = async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            engine.set_engine_down(true);
            engine.restart_containers_stopped();
            tokio::time::sleep(Duration::from_secs(7)).await;
            engine.set_engine_down(false);
        };
        let gap = Script::EngineGapAfter(Duration::from_millis(after));
        let (lived, ()) = tokio::join!(live(&fake, &config, LONG, gap), outage);
        assert!(lived);
        // An engine that dies before the deploy began leaves the containers down: that is auto_start's business.
        let durable = fake.durable(&state_key("shop")).await;
        assert_eq!(durable.blocked.len(), 0, "away after {after} ms: a good image was blocked");
        assert_eq!(durable.totals.rollbacks, 0, "away after {after} ms");
        assert_eq!(fake.running("web"), [id_of("v2")], "away after {after} ms");
    }
}

/// The new life knows of no deployment, so only the engine can tell what the last one held.
#[tokio::test(start_paused = true)]
async fn holds_that_a_lost_state_forgot_go_with_the_next_deployment() {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == "unhealthy").expect("it is there");
    let (fake, config) = set_up(scenario);
    let begun = async {
        while fake.running("web") != [id_of("v2")] {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        _ = live(&fake, &config, LONG, Script::Poll) => panic!("it was to end on probation"),
        () = begun => {}
    }
    assert_eq!(fake.leftovers().len(), 2, "{:?}", fake.leftovers());
    fake.lose_state().await;
    fake.push(&reference(WEB), "v3", Behaviour::Good);
    assert!(live(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.running("web"), [id_of("v3")]);
    assert_eq!(fake.leftovers(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_poll_with_nothing_new_writes_nothing_and_starts_nothing() {
    let scenario = &SCENARIOS[0];
    let (fake, config) = set_up(scenario);
    assert!(live(&fake, &config, LONG, Script::Poll).await);
    let (ups, said) = (fake.ups(), fake.entries().len());
    let before = fake.durable(&state_key("shop")).await;
    assert!(live(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.ups(), ups);
    assert_eq!(fake.entries().len(), said);
    assert_eq!(fake.durable(&state_key("shop")).await, before);
}

/// The same service, whose images must be signed.
fn signed_only(config: &ServiceConfig) -> Arc<ServiceConfig> {
    let update = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..UpdateConfig::default() };
    Arc::new(ServiceConfig { update: Some(Arc::new(update)), ..config.clone() })
}

#[tokio::test(start_paused = true)]
async fn an_image_without_signature_is_neither_fetched_nor_started_until_it_is_signed() {
    for (at, script) in (1..60).flat_map(|at| [(at, Script::Poll), (at, Script::RedeployFirst)]) {
        let scenario = &SCENARIOS[0];
        let (fake, config) = set_up(scenario);
        let config = signed_only(&config);
        fake.demand_signatures();
        fake.crash_at(Some(at));
        let lived = live(&fake, &config, LONG, script).await;
        fake.crash_at(None);
        let what = format!("killed at call {at}");
        assert!(lived || live(&fake, &config, LONG, Script::Poll).await, "{what}");
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(fake.running("web"), [id_of(&old_name("web"))], "{what}");
        fake.sign("v2");
        assert!(live(&fake, &config, LONG, Script::Poll).await);
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(fake.running("web"), [id_of("v2")], "{what}");
    }
}
