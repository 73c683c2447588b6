//! Runs with a swarm service: updates with every outcome, with the agent killed before and after every call.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_agent::config::{ServiceConfig, UpdateConfig};
use evenkeel_agent::model::image::{Digest, Reference, Repository};
use evenkeel_agent::model::{SignatureError, SignatureVerdict, Signers};
use evenkeel_agent::ports::Signatures;
use evenkeel_agent::project::worker::Member;
use evenkeel_agent::project::world::{World, state_key};
use evenkeel_agent::service::boot::StartReason;
use evenkeel_agent::service::{Durable, Service};
use evenkeel_common::wire::Kind;
use jiff::SignedDuration;
use serde_json::json;

use crate::configuration::read;
use crate::world::swarm::{FailureAction, FakeSwarm, Fate, MAX_RUN};
use crate::world::{Behaviour, FakeWorld, digest_of, reference};
use crate::{Script, WEB, every, new_world, run_agent_in, run_script, spawn_workers, world};

/// How a run must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// With the new image, which is proven.
    Updated,
    /// With the old specification; the new digest is blocked.
    RolledBack,
    /// With the old specification; nothing is blocked, since the nodes failed and not the image.
    ByNodes,
}

/// A disturbance during the update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    None,
    /// The swarm has no leader for 10 s, from this second on.
    NoLeader(i64),
    /// Another client changes the service before each of the agent's first changes.
    Others(u32),
    /// The leader changes in the middle of each of the agent's first changes, so that they are applied without an answer.
    Unanswered(u32),
}

struct Scenario {
    name: &'static str,
    fate: Fate,
    /// That of the old image.
    fate_of_old: Fate,
    action: FailureAction,
    script: Script,
    disturbance: Disturbance,
    end: End,
}

const fn one(name: &'static str, fate: Fate, action: FailureAction, end: End) -> Scenario {
    Scenario {
        name,
        fate,
        fate_of_old: Fate::Runs,
        action,
        script: Script::Poll,
        disturbance: Disturbance::None,
        end,
    }
}

/// Fails while the swarm monitors the update.
const SOON: Fate = Fate::Ends(1000);
/// Fails after the swarm has completed the update.
const LATE: Fate = Fate::Ends(11_000);

const SCENARIOS: [Scenario; 15] = [
    one("good", Fate::Runs, FailureAction::Pause, End::Updated),
    one("fails, pause", SOON, FailureAction::Pause, End::RolledBack),
    one("fails, rollback", SOON, FailureAction::Rollback, End::RolledBack),
    one("fails, continue", SOON, FailureAction::Continue, End::RolledBack),
    one("fails on probation, pause", LATE, FailureAction::Pause, End::RolledBack),
    one("fails on probation, rollback", LATE, FailureAction::Rollback, End::RolledBack),
    one("can't be pulled, pause", Fate::NotFetched, FailureAction::Pause, End::ByNodes),
    one("can't be pulled, rollback", Fate::NotFetched, FailureAction::Rollback, End::ByNodes),
    Scenario {
        script: Script::RedeployFirst,
        ..one("good, requested by redeploy", Fate::Runs, FailureAction::Rollback, End::Updated)
    },
    Scenario {
        disturbance: Disturbance::NoLeader(4),
        ..one("good, no leader for a while", Fate::Runs, FailureAction::Rollback, End::Updated)
    },
    Scenario {
        disturbance: Disturbance::NoLeader(2),
        ..one("fails while there is no leader", SOON, FailureAction::Rollback, End::RolledBack)
    },
    Scenario {
        disturbance: Disturbance::Others(3),
        ..one("fails, and other clients change the service", SOON, FailureAction::Pause, End::RolledBack)
    },
    Scenario {
        disturbance: Disturbance::Unanswered(2),
        ..one(
            "fails, and its changes are applied without an answer",
            SOON,
            FailureAction::Pause,
            End::RolledBack,
        )
    },
    Scenario {
        fate_of_old: Fate::FirstEnds(1000),
        ..one(
            "fails, and so does one task of the rollback, pause",
            SOON,
            FailureAction::Pause,
            End::RolledBack,
        )
    },
    Scenario {
        fate_of_old: Fate::FirstEnds(1000),
        ..one("fails, and so does one task of the rollback", SOON, FailureAction::Rollback, End::RolledBack)
    },
];

fn at(name: &str) -> String {
    Reference { digest: Some(digest_of(name)), ..reference(WEB) }.to_string()
}

fn config() -> Arc<ServiceConfig> {
    let service = json!({
        "name": "shop", "swarm_service": "shop_web", "images": [WEB], "auto_update": true, "health_grace": 10,
    });
    read(&[service]).services.remove(0)
}

struct Fixture {
    fake: FakeWorld,
    swarm: FakeSwarm,
    config: Arc<ServiceConfig>,
}

impl Fixture {
    fn new(scenario: &Scenario) -> Self {
        let fake = new_world();
        let old = Reference { digest: Some(digest_of("v1")), ..reference(WEB) };
        let swarm = FakeSwarm::new(&fake, &state_key("shop"), &old, scenario.action);
        swarm.fate(digest_of("v2"), scenario.fate);
        swarm.fate(digest_of("v1"), scenario.fate_of_old);
        fake.push(&reference(WEB), "v2", Behaviour::Good);
        if let Disturbance::Others(times) = scenario.disturbance {
            swarm.interfere(times);
        }
        if let Disturbance::Unanswered(times) = scenario.disturbance {
            swarm.lose_answers(times);
        }
        Self { fake, swarm, config: config() }
    }

    /// Runs the agent. Returns whether it survived.
    async fn run_agent(&self, script: Script, disturbance: Disturbance) -> bool {
        let swarm = Arc::new(self.swarm.clone());
        let world = world(&self.fake, Arc::new(self.fake.clone())).await;
        let world = Arc::new(World { swarm, ..World::clone(&world) });
        let disturb = async {
            if let Disturbance::NoLeader(after) = disturbance {
                tokio::time::sleep(Duration::from_secs(after.unsigned_abs())).await;
                self.swarm.lose_leader(SignedDuration::from_secs(10));
            }
        };
        let configs = [self.config.clone()];
        let (survived, ()) =
            tokio::join!(run_agent_in(world, &self.fake, &configs, MAX_RUN, script), disturb);
        survived
    }

    async fn assert_ended_well(&self, scenario: &Scenario, how: &str) {
        let what = format!("{}, {how}", scenario.name);
        let durable = self.fake.durable(&state_key("shop")).await;
        assert!(
            durable.deployment.is_none(),
            "{what}: an update was left unfinished: {:?}",
            durable.deployment
        );
        assert_eq!(self.swarm.violations(), Vec::<String>::new(), "{what}");
        let (old, new) = (at("v1"), at("v2"));
        let sets = self.swarm.sets();
        assert!(sets.iter().all(|set| *set == old || *set == new), "{what}: {sets:?}");
        let runs = if scenario.end == End::Updated { new } else { old };
        let tasks = vec![runs.clone(), runs.clone()];
        assert_eq!(self.swarm.runs(), (runs, tasks, 7), "{what}: {:#?}", self.fake.entries());
        let blocked: Vec<_> = durable.images.blocked().map(|(_, digest)| digest.clone()).collect();
        let expected = if scenario.end == End::RolledBack { vec![digest_of("v2")] } else { Vec::new() };
        assert_eq!(blocked, expected, "{what}");
        let entries = self.fake.entries();
        let recorded = |kind: Kind| entries.iter().filter(|entry| entry.event == kind).count();
        let (updated, rolled_back) = (scenario.end == End::Updated, scenario.end == End::RolledBack);
        let all = (recorded(Kind::UPDATED), recorded(Kind::ROLLED_BACK), recorded(Kind::ROLLBACK_FAILED));
        assert_eq!(all, (usize::from(updated), usize::from(rolled_back), 0), "{what}: {entries:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_update_of_a_swarm_service_ends_in_the_proven_new_or_the_exact_old_state() {
    for scenario in &SCENARIOS {
        let fixture = Fixture::new(scenario);
        assert!(fixture.run_agent(scenario.script, scenario.disturbance).await);
        fixture.assert_ended_well(scenario, "undisturbed").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_at_any_call_to_a_swarm_ends_in_the_proven_new_or_the_exact_old_state() {
    for (nr, scenario) in SCENARIOS.iter().enumerate() {
        for call in every(17, nr).take_while(|call| *call <= 400) {
            let fixture = Fixture::new(scenario);
            fixture.fake.crash_at(Some(call));
            if fixture.run_agent(scenario.script, scenario.disturbance).await {
                assert!(call > 50, "{}: only {call} calls", scenario.name);
                break;
            }
            fixture.fake.crash_at(None);
            assert!(fixture.run_agent(Script::Poll, Disturbance::None).await);
            fixture.assert_ended_well(scenario, &format!("killed at call {call}")).await;
        }
    }
}

/// The swarm continues while the agent is away, and may be in any state when it is back.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_away_for_any_time_ends_in_the_proven_new_or_the_exact_old_state() {
    for (nr, scenario) in SCENARIOS.iter().enumerate() {
        for away in every(4, nr).map(|n| (n as u64 - 1) * 700).take_while(|away| *away < 20_000) {
            let fixture = Fixture::new(scenario);
            // By this call the agent has set the update.
            fixture.fake.crash_at(Some(26));
            assert!(!fixture.run_agent(scenario.script, scenario.disturbance).await, "{}", scenario.name);
            fixture.fake.crash_at(None);
            tokio::time::sleep(Duration::from_millis(away)).await;
            assert!(fixture.run_agent(Script::Poll, Disturbance::None).await);
            fixture.assert_ended_well(scenario, &format!("away for {away} ms")).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_that_an_operator_rolls_back_is_neither_blocked_nor_set_again() {
    for after in (500..12_000).step_by(500) {
        let scenario = &SCENARIOS[0];
        let fixture = Fixture::new(scenario);
        let operator = async {
            while fixture.swarm.runs().0 != at("v2") {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            tokio::time::sleep(Duration::from_millis(after)).await;
            fixture.swarm.roll_back_by_hand();
        };
        let (survived, ()) = tokio::join!(fixture.run_agent(Script::Poll, Disturbance::None), operator);
        assert!(survived);
        let what = format!("after {after} ms");
        assert_eq!(fixture.swarm.runs(), (at("v1"), vec![at("v1"), at("v1")], 7), "{what}");
        assert_eq!(fixture.swarm.sets(), [at("v2")], "{what}: it is set once");
        let durable = fixture.fake.durable(&state_key("shop")).await;
        assert_eq!((durable.deployment.is_none(), durable.images.blocked().count()), (true, 0), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_swarm_service_that_the_agent_runs_in_is_not_updated_by_it() {
    for script in [Script::Poll, Script::RedeployFirst] {
        let fixture = Fixture::new(&SCENARIOS[0]);
        fixture.fake.agent_runs_in("shop_web.2");
        assert!(fixture.run_agent(script, Disturbance::None).await);
        assert_eq!(fixture.swarm.sets(), Vec::<String>::new());
        let entries = fixture.fake.entries();
        let told = entries.iter().find(|entry| entry.event == Kind::ERROR).expect("it says why");
        assert!(
            told.message.starts_with("the swarm would stop shop_web.2, in which the agent runs"),
            "{told:?}"
        );
    }
}

/// None of its key files is a key.
struct NoKeys;

#[async_trait]
impl Signatures for NoKeys {
    async fn verify(
        &self,
        _: &Repository,
        _: &Digest,
        _: &Signers,
    ) -> Result<SignatureVerdict, SignatureError> {
        Ok(SignatureVerdict::Missing)
    }

    async fn key_errors(&self, keys: &[PathBuf]) -> Vec<String> {
        keys.iter().map(|key| format!("{} is no key", key.display())).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_unusable_key_of_a_swarm_service_gives_a_warning() {
    let fixture = Fixture::new(&SCENARIOS[0]);
    let world = world(&fixture.fake, Arc::new(fixture.fake.clone())).await;
    let swarm = Arc::new(fixture.swarm.clone());
    let world = Arc::new(World { swarm, signatures: Arc::new(NoKeys), ..World::clone(&world) });
    let update = UpdateConfig { signed_by: vec!["/etc/old.pub".into()], ..UpdateConfig::default() };
    let config = ServiceConfig { update: Some(Arc::new(update)), ..ServiceConfig::clone(&fixture.config) };
    let (member, handle) =
        Member::new(Arc::new(config), Durable::default(), world.clone(), StartReason::Start);
    let tasks = spawn_workers(&world, vec![member]);
    let shown = handle.published.clone();
    let warned = async {
        let is_warned = |service: &Service| service.warnings().next().is_some();
        shown.wait_for(is_warned).await.expect("the worker is running");
        shown.get().service.warnings().collect::<Vec<_>>()
    };
    tokio::select! {
        () = run_script(&handle, &world, Script::Poll) => unreachable!("polling never ends"),
        () = tasks.panicked() => panic!("a worker panicked"),
        warned = tokio::time::timeout(MAX_RUN, warned) => {
            assert_eq!(warned.unwrap(), ["update.signed_by: /etc/old.pub is no key, and is skipped"]);
        }
    }
}
