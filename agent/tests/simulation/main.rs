//! Simulated runs of the agent in memory and in virtual time. Workers, decision core, outbox, poller and event reader are
//! the real ones; engine, registry, compose, store and clock are fakes in `world/`.
//!
//! | file | contents |
//! |---|---|
//! | `main.rs` | scripted deployments, killed before and after every single call |
//! | `random.rs` | random runs of two services in a project; every safety property is checked after every step |
//! | `transcripts.rs` | ten typical runs, recorded as transcripts |
//! | `swarm.rs` | updates of a swarm service, killed before and after every single call |
//! | `tags.rs` | newer tags that are written into an env file |
//! | `handover.rs` | handovers, killed before and after every single call |
//! | `disk.rs`, `images.rs`, `projects.rs`, `reload.rs`, `tasks.rs` | scripted runs, each about one subject |
//! | `run/` | a run: its steps, and how they are executed |
//! | `world/` | the simulated world, and the safety properties (`world/properties.rs`) |
//! | `configuration.rs` | the configuration of the services |

mod configuration;
mod disk;
mod handover;
mod images;
mod projects;
mod random;
mod reload;
mod run;
mod snapshot;
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
use evenkeel_agent::project::files::Offload;
use evenkeel_agent::project::handle::{Command, Handle};
use evenkeel_agent::project::needed_images::NeededImages;
use evenkeel_agent::project::published::Changed;
use evenkeel_agent::project::snapshot::{AtRest, Data};
use evenkeel_agent::project::worker::Member;
use evenkeel_agent::project::worker::Placement;
use evenkeel_agent::project::world::{World, state_key};
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

/// Runs the agent, polling every 10 s, for `for_time` or until the world kills it. Returns whether it survived.
async fn run_agent(
    fake: &FakeWorld,
    config: &Arc<ServiceConfig>,
    for_time: Duration,
    script: Script,
) -> bool {
    run_agent_with(fake, std::slice::from_ref(config), for_time, script).await
}

/// Like `run_agent`, for several services.
async fn run_agent_with(
    fake: &FakeWorld,
    configs: &[Arc<ServiceConfig>],
    for_time: Duration,
    script: Script,
) -> bool {
    let world = world(fake, Arc::new(fake.clone())).await;
    run_agent_in(world, fake, configs, for_time, script).await
}

/// Like `run_agent_with`, with the given ports.
async fn run_agent_in(
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
    let tasks = spawn_workers(&world, members);
    let scripts = handles.iter().map(|handle| run_script(handle, &world, script));
    let survived = tokio::select! {
        _ = futures_util::future::join_all(scripts) => unreachable!("polling never ends"),
        () = tasks.panicked() => panic!("a worker panicked"),
        () = fake.crash.notified() => false,
        () = tokio::time::sleep(for_time) => true,
    };
    tasks.finish(Duration::ZERO).await;
    survived
}

/// Returns the ports for one start of the agent, with its state in `store`.
async fn world(fake: &FakeWorld, store: Arc<dyn Store>) -> Arc<World> {
    let outbox = Outbox::open(store.clone(), fake.clock(), "evenkeel", &[]).await.expect("memory").outbox;
    world_with(fake, store, outbox)
}

/// Like `world`, with entries sent to `outbox`.
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
        env_files: Arc::new(fake.clone()),
        gate_command: Arc::new(fake.clone()),
        probes: Arc::new(fake.clone()),
        data: Data {
            folders: Arc::new(fake.clone()),
            volumes: Arc::new(fake.clone()),
            dumps: "/state/snapshots".into(),
            at_rest: AtRest::default(),
        },
        needed_images: NeededImages::default(),
        offload: Offload::Inline,
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
        deployed: Arc::new(|_, _, _| {}),
        boot: Boot { now: "one".into(), before: "one".into(), ..Boot::default() },
    })
}

/// Starts the workers of these services' projects.
fn spawn_workers(world: &Arc<World>, members: Vec<Member>) -> TaskSet {
    let tasks = TaskSet::new();
    Placement::new(world.clock.clone(), tasks.clone(), CancellationToken::new()).place(members);
    tasks
}

#[derive(Clone, Copy, PartialEq)]
enum Script {
    Poll,
    RedeployFirst,
    RollbackFirst,
    EngineGapAfter(Duration),
}

async fn run_script(handle: &Handle, world: &Arc<World>, script: Script) {
    let first = match script {
        Script::RedeployFirst => Some(ServiceRequest::Redeploy),
        Script::RollbackFirst => Some(ServiceRequest::Rollback { to: None, data: true }),
        Script::Poll | Script::EngineGapAfter(_) => None,
    };
    if let Some(request) = first {
        let (reply, answer) = oneshot::channel();
        assert!(handle.inbox.send(Command::Request(request, reply)).is_ok());
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

/// A setup, and how it must end.
struct Scenario {
    name: &'static str,
    images: &'static [(&'static str, &'static str)],
    /// Image text, name of the new image, its behaviour.
    pushed: &'static [(&'static str, &'static str, Behaviour)],
    good: bool,
    /// The old images were built locally and are not in the registry, and unused images are pruned all the time.
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
        name: "bad, while unused images are pruned and the old image is in no registry",
        images: ONE,
        pushed: &[(WEB, "v2", Behaviour::Crash)],
        good: false,
        hostile: true,
        script: Script::Poll,
    },
    Scenario {
        name: "good, requested by redeploy",
        images: ONE,
        pushed: &[(WEB, "v2", Behaviour::Good)],
        good: true,
        hostile: false,
        script: Script::RedeployFirst,
    },
    Scenario {
        name: "bad, requested by redeploy",
        images: ONE,
        pushed: &[(WEB, "v2", Behaviour::Unhealthy)],
        good: false,
        hostile: false,
        script: Script::RedeployFirst,
    },
    Scenario {
        name: "good, and the event stream disconnects during probation",
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
        fake.add_image(&reference, &old_name(service), Behaviour::Good, true);
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

/// Asserts that the recorded entries match the durable state.
/// Waits until a container of the compose service has passed its health check.
async fn until_healthy(fake: &FakeWorld, service: &str) {
    while !fake.is_healthy(service) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn assert_entries_match_state(fake: &FakeWorld, what: &str) {
    let totals = fake.durable(&state_key("shop")).await.totals;
    let entries = fake.entries();
    let recorded = |kind: Kind| entries.iter().filter(|entry| entry.event == kind).count() as u64;
    assert_eq!(recorded(Kind::ROLLED_BACK), totals.rollbacks, "{what}");
    assert_eq!(recorded(Kind::UPDATED) > 0, totals.updates > 0, "{what}");
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
            // A good image that was deployed with a bad one is deployed again without it.
            Some((_, name, behaviour)) if scenario.good || *behaviour == Behaviour::Good => {
                (id_of(name), None)
            }
            Some((_, name, _)) => (id_of(&old_name(service)), Some(digest_of(name))),
            None => (id_of(&old_name(service)), None),
        };
        assert_eq!(fake.running(service), [expected], "{what}: image of {service}");
        assert_eq!(durable.images.get(text).blocked.clone(), blocked, "{what}: block of {text}");
    }
    let recorded = |kind: Kind| fake.entries().iter().filter(|entry| entry.event == kind).count();
    let images = scenario.pushed.len();
    if scenario.good {
        assert_eq!(recorded(Kind::UPDATED), images, "{what}: each update is recorded once");
        assert_eq!(durable.totals.updates, 1, "{what}");
        assert_eq!(durable.totals.rollbacks, 0, "{what}");
    } else {
        let good = scenario.pushed.iter().filter(|(.., behaviour)| *behaviour == Behaviour::Good).count();
        assert_eq!(recorded(Kind::UPDATED), good, "{what}");
        assert_eq!(recorded(Kind::ROLLED_BACK), 1, "{what}");
        assert_eq!(recorded(Kind::ROLLBACK_FAILED), 0, "{what}");
        assert_eq!(durable.totals.rollbacks, 1, "{what}");
    }
}

const LONG: Duration = Duration::from_mins(2);

/// Returns the numbers from 1 upwards at which a scripted test kills the agent, or varies something else: every `sample`th of them,
/// from a first one that depends on `nr`. With `EVENKEEL_EVERY_CALL=1`, as in `dist/test.sh --all`, all of them, which takes
/// minutes of a processor.
fn every(sample: usize, nr: usize) -> impl Iterator<Item = usize> {
    let all = std::env::var_os("EVENKEEL_EVERY_CALL").is_some();
    let (first, step) = if all { (1, 1) } else { (1 + nr % sample, sample) };
    (first..).step_by(step)
}

#[tokio::test(start_paused = true)]
async fn polls_that_find_nothing_do_not_ask_compose() {
    let (fake, config) = set_up(&one("up to date", &[], true));
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.definition_reads(), 0);
    let (fake, config) = set_up(&SCENARIOS[0]);
    assert!(run_agent(&fake, &config, LONG, SCENARIOS[0].script).await);
    assert!(fake.definition_reads() > 0, "an update does");
}

#[tokio::test(start_paused = true)]
async fn every_deployment_ends_in_the_proven_new_or_the_exact_old_state() {
    for scenario in SCENARIOS {
        let (fake, config) = set_up(scenario);
        assert!(run_agent(&fake, &config, LONG, scenario.script).await);
        assert_ended_well(&fake, scenario, "undisturbed").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_at_any_call_ends_in_the_proven_new_or_the_exact_old_state() {
    let mut runs = 0;
    for (nr, scenario) in SCENARIOS.iter().enumerate() {
        for at in every(17, nr) {
            let (fake, config) = set_up(scenario);
            fake.crash_at(Some(at));
            if run_agent(&fake, &config, LONG, scenario.script).await {
                assert!(
                    at > 50,
                    "{}: only {at} calls, the crashes did not reach the deployment",
                    scenario.name
                );
                break;
            }
            fake.crash_at(None);
            assert_entries_match_state(&fake, &format!("{}, killed at call {at}", scenario.name)).await;
            // A redeploy request may be lost with the agent; polling finds the update instead.
            assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
            assert_ended_well(&fake, scenario, &format!("killed at call {at}")).await;
            runs += 1;
            if at > 400 {
                break;
            }
        }
    }
    println!("{runs} runs");
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_repeatedly_still_ends_well() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below).expect("small")
    };
    for round in every(4, 0).take_while(|round| *round < 150) {
        let scenario = &SCENARIOS[random(SCENARIOS.len() as u64)];
        let (fake, config) = set_up(scenario);
        let mut script = scenario.script;
        let mut history = format!("round {round}");
        for _ in 0..6 {
            let at = 1 + random(60);
            history.push_str(&format!(", killed at {at}"));
            fake.crash_at(Some(at));
            if run_agent(&fake, &config, LONG, script).await {
                break;
            }
            script = Script::Poll;
        }
        fake.crash_at(None);
        assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
        assert_ended_well(&fake, scenario, &history).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_outage_during_a_deployment_does_not_block_the_image() {
    for after in every(3, 0).map(|n| 3 + n as u64 * 97).take_while(|after| *after < 9000) {
        let scenario = &SCENARIOS[0];
        let (fake, config) = set_up(scenario);
        let engine = fake.clone();
        let outage = async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            engine.set_engine_down(true);
            engine.stop_all_containers();
            tokio::time::sleep(Duration::from_secs(7)).await;
            engine.set_engine_down(false);
        };
        let gap = Script::EngineGapAfter(Duration::from_millis(after));
        let (survived, ()) = tokio::join!(run_agent(&fake, &config, LONG, gap), outage);
        assert!(survived);
        // If the engine goes away before the deployment begins, the containers stay down: starting them is up to `auto_start`.
        let durable = fake.durable(&state_key("shop")).await;
        assert_eq!(durable.images.blocked().count(), 0, "away after {after} ms: a good image was blocked");
        assert_eq!(durable.totals.rollbacks, 0, "away after {after} ms");
        assert_eq!(fake.running("web"), [id_of("v2")], "away after {after} ms");
    }
}

/// After the loss of its state, the agent knows of no deployment and finds the holds only in the engine.
#[tokio::test(start_paused = true)]
async fn holds_of_a_lost_state_are_removed_by_the_next_deployment() {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == "unhealthy").expect("it exists");
    let (fake, config) = set_up(scenario);
    let started = async {
        while fake.running("web") != [id_of("v2")] {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        _ = run_agent(&fake, &config, LONG, Script::Poll) => panic!("the run was to end during the probation"),
        () = started => {}
    }
    assert_eq!(fake.leftovers().len(), 2, "{:?}", fake.leftovers());
    fake.lose_state().await;
    fake.push(&reference(WEB), "v3", Behaviour::Good);
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.running("web"), [id_of("v3")]);
    assert_eq!(fake.leftovers(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_poll_with_nothing_new_writes_nothing_and_starts_nothing() {
    let scenario = &SCENARIOS[0];
    let (fake, config) = set_up(scenario);
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    let (ups, recorded) = (fake.ups(), fake.entries().len());
    let before = fake.durable(&state_key("shop")).await;
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.ups(), ups);
    assert_eq!(fake.entries().len(), recorded);
    assert_eq!(fake.durable(&state_key("shop")).await, before);
}

/// Returns the same service, with a required signature.
fn signed_only(config: &ServiceConfig) -> Arc<ServiceConfig> {
    let update = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..UpdateConfig::default() };
    Arc::new(ServiceConfig { update: Some(Arc::new(update)), ..config.clone() })
}

#[tokio::test(start_paused = true)]
async fn polls_do_not_read_the_signatures_of_what_runs_unless_it_is_redeployed() {
    let (fake, config) = set_up(&one("up to date", &[], true));
    let config = signed_only(&config);
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.signature_reads(), 0);
    assert!(run_agent(&fake, &config, LONG, Script::RedeployFirst).await);
    assert!(fake.signature_reads() > 0, "a redeployment names what it leaves out");
    let (fake, config) = set_up(&SCENARIOS[0]);
    assert!(run_agent(&fake, &signed_only(&config), LONG, Script::Poll).await);
    assert!(fake.signature_reads() > 1, "an update that is signed later is found at the next check");
}

#[tokio::test(start_paused = true)]
async fn an_image_without_signature_is_neither_fetched_nor_started_until_it_is_signed() {
    let calls = every(4, 0).take_while(|at| *at < 60);
    for (at, script) in calls.flat_map(|at| [(at, Script::Poll), (at, Script::RedeployFirst)]) {
        let scenario = &SCENARIOS[0];
        let (fake, config) = set_up(scenario);
        let config = signed_only(&config);
        fake.demand_signatures();
        fake.crash_at(Some(at));
        let survived = run_agent(&fake, &config, LONG, script).await;
        fake.crash_at(None);
        let what = format!("killed at call {at}");
        assert!(survived || run_agent(&fake, &config, LONG, Script::Poll).await, "{what}");
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(fake.running("web"), [id_of(&old_name("web"))], "{what}");
        fake.sign("v2");
        assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(fake.running("web"), [id_of("v2")], "{what}");
    }
}
