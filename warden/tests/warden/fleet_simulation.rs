//! Random fleets with one store: agents that are killed, wardens that are unreachable, a store that is unavailable; with and
//! without rings, with and without a limit on concurrent machines. The answers and the fold are real; only the store's tables
//! and the time are simulated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use async_trait::async_trait;
use evenkeel_common::clock::Clock;
use evenkeel_common::wire::{FleetEntry, Inventory, InventoryImage, Permission};
use evenkeel_warden::collector::{Collector, Task};
use evenkeel_warden::config::{FuseRule, Rules};
use evenkeel_warden::fleet::answer::Asking;
use evenkeel_warden::keep::{
    Change, Duty, Keep, KeepError, News, Outcome, Page, Position, Query, Retention, Stored, Usage, Versioned,
    fold, needs,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Number of fleets, unless `EVENKEEL_FLEETS` sets it.
const FLEETS: u64 = 200;
/// Duration of one step, in seconds.
const STEP: i64 = 5;
/// When all failures end, and when all deployments must have finished.
const QUIET: i64 = 1500;
const END: i64 = 6000;
/// Lifetime of a lease (DECISIONS 8).
const LEASE: i64 = 90;

#[derive(Default)]
struct SetClock(AtomicI64);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + self.0.load(Ordering::Relaxed)).unwrap()
    }

    fn at_boot(&self) -> Timestamp {
        Timestamp::from_second(1_790_000_000).unwrap()
    }
}

/// A store with its tables as maps.
#[derive(Default)]
struct Maps {
    values: Mutex<(u64, BTreeMap<String, Versioned>)>,
    is_away: AtomicBool,
}

impl Maps {
    fn check(&self) -> Result<(), KeepError> {
        if self.is_away.load(Ordering::Relaxed) { Err(KeepError("away".to_owned())) } else { Ok(()) }
    }
}

#[async_trait]
impl Keep for Maps {
    async fn commit(&self, changes: Vec<Change>, now: Timestamp) -> Result<Vec<Outcome>, KeepError> {
        self.check()?;
        let mut guard = self.values.lock();
        let (revision, values) = &mut *guard;
        let before = needs(&changes).values.into_iter();
        let before =
            before.filter_map(|name| Some((name.clone(), values.get(&name)?.value.clone()))).collect();
        *revision += 1;
        let folded = fold(changes, BTreeMap::new(), before, *revision, now);
        for (name, value) in folded.values {
            values.insert(name, Versioned { revision: *revision, value });
        }
        Ok(folded.outcomes)
    }

    async fn news(&self, after: Position, _: usize) -> Result<News, KeepError> {
        self.check()?;
        let guard = self.values.lock();
        let is_new = |(_, value): &(&String, &Versioned)| value.revision > after.revision;
        let values =
            guard.1.iter().filter(is_new).map(|(name, value)| (name.clone(), value.clone())).collect();
        let position = Position { revision: guard.0, ..after };
        Ok(News { values, position, ..News::default() })
    }

    async fn tail(&self, _: u64, _: usize) -> Result<Vec<Stored>, KeepError> {
        unreachable!("there are no followers")
    }

    async fn history(&self, _: &Query) -> Result<Page, KeepError> {
        self.check()?;
        Ok(Page::default())
    }

    async fn value(&self, name: &str) -> Result<Versioned, KeepError> {
        self.check()?;
        // Let other tasks run between two calls.
        tokio::task::yield_now().await;
        Ok(self.values.lock().1.get(name).cloned().unwrap_or_default())
    }

    async fn swap(&self, name: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, KeepError> {
        self.check()?;
        let mut guard = self.values.lock();
        let (revision, values) = &mut *guard;
        if values.get(name).map_or(0, |value| value.revision) != expected {
            return Ok(None);
        }
        *revision += 1;
        values.insert(name.to_owned(), Versioned { revision: *revision, value });
        Ok(Some(*revision))
    }

    async fn remove(&self, _: &str, _: u64) -> Result<bool, KeepError> {
        unreachable!("nothing is outdated")
    }

    async fn hold(&self, _: Duty) -> Result<bool, KeepError> {
        Ok(true)
    }

    async fn retain(&self, _: Retention, _: Timestamp) -> Result<u64, KeepError> {
        Ok(0)
    }

    async fn usage(&self) -> Result<Usage, KeepError> {
        Ok(Usage::default())
    }

    fn hints(&self) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }
}

/// A small deterministic random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// An agent's progress with one digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Wants,
    /// When it last renewed its lease, and when the deployment ends.
    Deploys {
        renewed: i64,
        ends: i64,
    },
    /// The verdict is not delivered yet; the lease is renewed until then.
    Tells {
        renewed: i64,
    },
    Done,
}

struct Agent {
    name: String,
    ring: u8,
    down_until: i64,
    /// Its last reported inventory.
    reported: Option<Inventory>,
    /// When its verdict on the good digest was stored.
    proven_at: Option<i64>,
    /// The bad digest, and the good one that follows it.
    works: [Work; 2],
}

const DIGESTS: [&str; 2] = ["sha256:bad", "sha256:good"];

struct World {
    seed: u64,
    clock: Arc<SetClock>,
    keep: Arc<Maps>,
    wardens: Vec<(Arc<Collector>, Task)>,
    rules: Rules,
    /// Until when each warden is unreachable.
    unreachable: Vec<i64>,
    agents: Vec<Agent>,
    random: Random,
    /// Machines that started to deploy the bad digest.
    hurt: Vec<String>,
    /// Whether a lease expired while its machine could not reach any warden. There are no guarantees then.
    is_excused: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1);
        let (clock, keep) = (Arc::new(SetClock::default()), Arc::new(Maps::default()));
        let has_rings = random.one_in(2);
        let agents: Vec<Agent> = (0..2 + random.below(7))
            .map(|n| Agent {
                name: format!("m{n}"),
                ring: if has_rings { u8::try_from(random.below(3)).unwrap() } else { 0 },
                down_until: 0,
                reported: None,
                proven_at: None,
                works: [Work::Wants; 2],
            })
            .collect();
        let max_at_once = random.one_in(3).then(|| 1 + u32::try_from(random.below(3)).unwrap());
        let rules = Rules { soak: 60, need: 1 + u32::try_from(random.below(2)).unwrap(), max_at_once };
        let retention = Retention { days: 1, bytes: 1 };
        let wardens: Vec<_> = (0..=random.below(3))
            .map(|_| {
                let ids: Vec<String> = agents.iter().map(|agent| agent.name.clone()).collect();
                let warden = Collector::new(keep.clone(), ids, retention, clock.clone());
                warden.0.set_rules(rules, FuseRule { rollbacks: 0, ..FuseRule::default() });
                warden
            })
            .collect();
        let unreachable = vec![0; wardens.len()];
        let hurt = Vec::new();
        Self { seed, clock, keep, wardens, rules, unreachable, agents, random, hurt, is_excused: false }
    }

    async fn run(&mut self) {
        let mut store_back = 0;
        for now in (0..END).step_by(usize::try_from(STEP).unwrap()) {
            self.clock.0.store(now, Ordering::Relaxed);
            let is_troubled = now < QUIET;
            if is_troubled && self.random.one_in(40) {
                store_back = now + 5 * i64::try_from(1 + self.random.below(10)).unwrap();
            }
            let is_away = is_troubled && now < store_back;
            if self.keep.is_away.swap(is_away, Ordering::Relaxed) != is_away {
                // The wardens notice it.
                for (_, task) in &mut self.wardens {
                    task.prepare().await;
                }
            }
            for until in &mut self.unreachable {
                if is_troubled && self.random.one_in(30) {
                    *until = now + 5 * i64::try_from(1 + self.random.below(20)).unwrap();
                }
            }
            self.step(now, is_troubled).await;
            if !is_troubled && self.agents.iter().all(|agent| agent.works[1] == Work::Done) {
                break;
            }
            assert!(
                self.hurt.len() <= 1 || self.is_excused,
                "fleet {}: {:?} were hurt by one digest at {now} s",
                self.seed,
                self.hurt
            );
        }
        for agent in &self.agents {
            assert_eq!(agent.works[1], Work::Done, "fleet {}: {} was held forever", self.seed, agent.name);
        }
    }

    /// All agents act at the same time; their requests are answered interleaved.
    async fn step(&mut self, now: i64, is_troubled: bool) {
        let mut asks = Vec::new();
        let works = self.agents.iter().flat_map(|agent| agent.works);
        self.is_excused |= works.into_iter().any(|work| match work {
            Work::Deploys { renewed, .. } | Work::Tells { renewed } => now - renewed >= LEASE,
            Work::Wants | Work::Done => false,
        });
        for index in 0..self.agents.len() {
            if is_troubled && self.random.one_in(60) {
                self.agents[index].down_until = now + 5 * i64::try_from(1 + self.random.below(12)).unwrap();
            }
            if self.agents[index].down_until > now && is_troubled {
                continue;
            }
            let reachable: Vec<usize> =
                (0..self.wardens.len()).filter(|n| !is_troubled || self.unreachable[*n] <= now).collect();
            let warden = (!reachable.is_empty())
                .then(|| reachable[usize::try_from(self.random.below(reachable.len() as u64)).unwrap()]);
            if let Some(warden) = warden {
                self.report(index, warden, now).await;
            }
            for digest in 0..2 {
                // The good digest is released later.
                if digest == 1 && now < QUIET / 2 {
                    continue;
                }
                if let Some(warden) = warden
                    && self.advance(index, digest, now).await
                {
                    asks.push((index, digest, warden));
                }
            }
        }
        let answers = asks.iter().map(|(index, digest, warden)| {
            let Agent { name: agent, ring, .. } = &self.agents[*index];
            let (agent, ring, collector) = (agent.clone(), *ring, self.wardens[*warden].0.clone());
            async move {
                let asking = Asking {
                    agent: &agent,
                    ring,
                    service: "web",
                    repository: "r/web",
                    image: "r/web:1",
                    digest: DIGESTS[*digest],
                    progress: None,
                };
                collector.ask(&asking).await.answer
            }
        });
        let answers = futures_util::future::join_all(answers).await;
        for ((index, digest, _), answer) in asks.into_iter().zip(answers) {
            self.take(index, digest, answer, now);
        }
    }

    /// Advances a deployment. Returns whether the agent asks a warden now.
    async fn advance(&mut self, index: usize, digest: usize, now: i64) -> bool {
        let agent = &mut self.agents[index];
        let work = agent.works[digest];
        let work = match work {
            Work::Deploys { renewed, ends } if ends <= now => Work::Tells { renewed },
            other => other,
        };
        agent.works[digest] = work;
        match work {
            Work::Wants => true,
            Work::Deploys { renewed, .. } => now - renewed >= 30,
            Work::Tells { renewed } => {
                let event = if digest == 0 { "rolled_back" } else { "updated" };
                let text = format!(
                    r#"{{"timestamp":"2026-01-02T03:04:05Z","service":"web","event":"{event}","message":"m","level":"info",
                        "image":"r/web:1","new_digest":"{}","agent":"{}"}}"#,
                    DIGESTS[digest], agent.name
                );
                let entry: FleetEntry = serde_json::from_str(&text).unwrap();
                let stored = self.keep.commit(vec![Change::Entry(Box::new(entry))], self.clock.now()).await;
                if stored.is_ok() {
                    agent.works[digest] = Work::Done;
                    agent.proven_at = agent.proven_at.or((digest == 1).then_some(now));
                }
                stored.is_err() && now - renewed >= 30
            }
            Work::Done => false,
        }
    }

    /// Reports the inventory to a warden if it has changed.
    async fn report(&mut self, index: usize, warden: usize, now: i64) {
        let agent = &mut self.agents[index];
        let offered = usize::from(now >= QUIET / 2);
        let some = |text: &str| Some(text.to_owned());
        let (is_hurt, is_updated) = (agent.works[0] == Work::Done, agent.works[1] == Work::Done);
        let mut image: InventoryImage =
            serde_json::from_str(r#"{"service":"web","image":"r/web:1","digest":"sha256:old"}"#).unwrap();
        if is_updated {
            image.digest = some(DIGESTS[1]);
        } else if offered == 0 && is_hurt {
            image.blocked = some(DIGESTS[0]);
        } else {
            image.available = some(DIGESTS[offered]);
        }
        let inventory = Inventory { ring: agent.ring, images: vec![image] };
        if agent.reported.as_ref() != Some(&inventory)
            && self.wardens[warden].0.report(&agent.name, inventory.clone()).await.is_ok()
        {
            agent.reported = Some(inventory);
            // Notify the other wardens.
            for (_, task) in &mut self.wardens {
                task.prepare().await;
            }
        }
    }

    /// Checks that a machine may start: by the rings and the limit, using the recorded times of the others.
    fn check_turn(&self, index: usize, digest: usize, now: i64) {
        let (seed, agent) = (self.seed, &self.agents[index]);
        // There are no guarantees about a machine that has not reported to any warden.
        let below: Vec<&Agent> =
            self.agents.iter().filter(|other| other.ring < agent.ring && other.reported.is_some()).collect();
        let need = below.len().min(usize::try_from(self.rules.need).unwrap());
        let soak = i64::from(self.rules.soak);
        let proven =
            below.iter().filter(|other| digest == 1 && other.proven_at.is_some_and(|at| at + soak <= now));
        let proven = proven.count();
        assert!(
            proven >= need,
            "fleet {seed}: {} of ring {} started {} at {now} s, when {proven} of {need} below had proven it",
            agent.name,
            agent.ring,
            DIGESTS[digest]
        );
        let deploys = |agent: &&Agent| {
            agent.works.iter().any(|w| matches!(w, Work::Deploys { .. } | Work::Tells { .. }))
        };
        let others = self.agents.iter().filter(|other| other.name != agent.name);
        let at_once = others.filter(deploys).count() + 1;
        let limit = self.rules.max_at_once.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
        assert!(at_once <= limit || self.is_excused, "fleet {seed}: {at_once} deploy at once at {now} s");
    }

    fn take(&mut self, index: usize, digest: usize, answer: Permission, now: i64) {
        let length = 5 * i64::try_from(2 + self.random.below(30)).unwrap();
        if self.agents[index].works[digest] == Work::Wants && answer == Permission::Go {
            self.check_turn(index, digest, now);
        }
        let agent = &mut self.agents[index];
        match (&mut agent.works[digest], answer) {
            (Work::Deploys { renewed, .. } | Work::Tells { renewed }, Permission::Go) => *renewed = now,
            (work @ Work::Wants, Permission::Go) => {
                *work = Work::Deploys { renewed: now, ends: now + length };
                if digest == 0 {
                    self.hurt.push(agent.name.clone());
                }
            }
            _ => {}
        }
    }
}

/// One warden whose clock and store are set by the test.
struct Single {
    clock: Arc<SetClock>,
    keep: Arc<Maps>,
    collector: Arc<Collector>,
    task: Task,
}

impl Single {
    async fn new() -> Self {
        let (clock, keep) = (Arc::new(SetClock::default()), Arc::new(Maps::default()));
        let (ids, retention) = (["a", "b", "c"].map(str::to_owned), Retention { days: 1, bytes: 1 });
        let (collector, mut task) = Collector::new(keep.clone(), ids, retention, clock.clone());
        task.prepare().await;
        Self { clock, keep, collector, task }
    }

    async fn set_store(&mut self, is_away: bool, now: i64) {
        self.clock.0.store(now, Ordering::Relaxed);
        self.keep.is_away.store(is_away, Ordering::Relaxed);
        self.task.prepare().await;
    }

    async fn ask(&self, agent: &str, digest: usize, now: i64) -> Permission {
        self.clock.0.store(now, Ordering::Relaxed);
        let asking = Asking {
            agent,
            ring: 0,
            service: "web",
            repository: "r/web",
            image: "r/web:1",
            digest: DIGESTS[digest],
            progress: None,
        };
        self.collector.ask(&asking).await.answer
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_could_not_be_renewed_while_the_store_was_away_is_kept_for_its_machine() {
    // Two outages, between which the machine does not get through; the first may be a long one.
    for (first, second) in [((20, 70), (75, 200)), ((0, 900), (905, 920))] {
        let mut warden = Single::new().await;
        assert_eq!(warden.ask("a", 0, 0).await, Permission::Go);
        for (since, until) in [first, second] {
            warden.set_store(true, since).await;
            assert_eq!(warden.ask("a", 0, since + 1).await, Permission::Wait, "it can't be renewed");
            warden.set_store(false, until).await;
        }
        let end = second.1;
        assert_eq!(
            warden.ask("b", 0, end + 5).await,
            Permission::Wait,
            "the first machine is still trying it, {first:?}"
        );
        assert_eq!(warden.ask("a", 0, end + 10).await, Permission::Go);
        assert_eq!(warden.ask("b", 0, end + 99).await, Permission::Wait, "it was renewed");
        assert_eq!(warden.ask("b", 0, end + 100).await, Permission::Go, "it was not renewed again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_renewed_between_two_outages_is_kept_as_well() {
    let mut warden = Single::new().await;
    assert_eq!(warden.ask("a", 0, 0).await, Permission::Go);
    warden.set_store(true, 0).await;
    warden.set_store(false, 900).await;
    assert_eq!(warden.ask("a", 0, 902).await, Permission::Go);
    warden.set_store(true, 905).await;
    warden.set_store(false, 1800).await;
    assert_eq!(warden.ask("b", 0, 1805).await, Permission::Wait);
    assert_eq!(warden.ask("a", 0, 1810).await, Permission::Go);
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_dead_machine_ends_although_the_store_fails_again_and_again() {
    let mut warden = Single::new().await;
    assert_eq!(warden.ask("a", 0, 0).await, Permission::Go);
    assert_eq!(warden.ask("c", 1, 5).await, Permission::Go);
    for since in (20..=720).step_by(100) {
        warden.set_store(true, since).await;
        warden.set_store(false, since + 70).await;
        // Another machine renews its lease of the same repository.
        assert_eq!(warden.ask("c", 1, since + 75).await, Permission::Go);
        let is_over = since == 720;
        let expected = if is_over { Permission::Go } else { Permission::Wait };
        assert_eq!(warden.ask("b", 0, since + 76).await, expected, "after the outage at {since} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_digest_fails_on_one_machine_and_no_update_is_held_forever() {
    let (mut hurt, mut excused, mut ringed, mut limited) = (0, 0, 0, 0);
    let fleets = std::env::var("EVENKEEL_FLEETS").ok();
    let fleets = fleets.map_or(FLEETS, |count| count.parse().expect("EVENKEEL_FLEETS is a number"));
    for seed in 0..fleets {
        let mut world = World::new(seed);
        world.run().await;
        hurt += world.hurt.len();
        excused += u64::from(world.is_excused);
        ringed += u64::from(world.agents.iter().any(|agent| agent.ring != world.agents[0].ring));
        limited += u64::from(world.rules.max_at_once.is_some());
    }
    assert!(hurt as u64 >= fleets * 9 / 10, "{hurt}: the bad digest was tried in nearly every fleet");
    assert!(excused < fleets / 2, "{excused} fleets prove nothing");
    assert!(ringed > fleets / 4 && limited > fleets / 4, "{ringed} have rings, {limited} a limit");
}
