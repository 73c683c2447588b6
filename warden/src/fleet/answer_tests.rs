//! Answers to agents: each rule alone, and their precedence.

use evenkeel_common::wire::{Inventory, InventoryImage};

use super::*;
use crate::fleet::state::FleetState;
use crate::fleet::testing::{at, entry};
use crate::fleet::verdict::verdict;

/// Verdicts on digest `d` of `web`: agent, event and time.
fn record(said: &[(&str, &str, i64)]) -> DigestRecord {
    let mut record =
        DigestRecord { repository: "web".to_owned(), digest: "d".to_owned(), ..DigestRecord::default() };
    for (number, (agent, event, when)) in said.iter().enumerate() {
        let entry = entry(agent, event, "web", "d");
        let (_, _, found) = verdict(&entry).unwrap();
        record.record(&entry, found, number as u64 + 1, (at(*when), at(*when)));
    }
    record
}

fn asking(agent: &str, ring: u8) -> Asking<'_> {
    Asking { agent, ring, service: "web", repository: "web", image: "web:1", digest: "d", progress: None }
}

fn reported(ring: u8, change: impl FnOnce(&mut InventoryImage)) -> Reported {
    let mut image: InventoryImage =
        serde_json::from_str(r#"{"service":"web","image":"web:1","digest":"old"}"#).unwrap();
    change(&mut image);
    Reported::new(None, Inventory { ring, images: vec![image] }, at(0))
}

/// The state for one request.
struct World {
    decisions: Decisions,
    record: DigestRecord,
    leases: Leases,
    machines: Vec<(&'static str, Reported)>,
    missing: Option<&'static str>,
    rules: Rules,
}

impl World {
    fn new(said: &[(&str, &str, i64)]) -> Self {
        Self {
            decisions: Decisions::default(),
            record: record(said),
            leases: Leases::default(),
            machines: Vec::new(),
            missing: None,
            rules: Rules::default(),
        }
    }

    /// Asks, and stores the leases as a warden does.
    fn ask(&mut self, agent: &str, ring: u8, now: i64) -> FleetAnswer {
        let machines: Vec<_> = self.machines.iter().map(|(id, reported)| (*id, reported)).collect();
        let facts = Facts {
            decisions: &self.decisions,
            record: &self.record,
            leases: &self.leases,
            machines: &machines,
            missing: self.missing,
            rules: self.rules,
        };
        let answered = answer(&asking(agent, ring), &facts, at(now));
        if let Some(leases) = answered.leases {
            self.leases = leases;
        }
        answered.reply
    }

    fn word(&mut self, agent: &str, ring: u8, now: i64) -> (Permission, Option<String>) {
        let reply = self.ask(agent, ring, now);
        (reply.answer, reply.gate)
    }
}

fn held(answer: Permission, gate: &str) -> (Permission, Option<String>) {
    (answer, Some(gate.to_owned()))
}

const GO: (Permission, Option<String>) = (Permission::Go, None);

#[test]
fn one_machine_tries_while_the_others_wait() {
    let mut world = World::new(&[]);
    let waits = || held(Permission::Wait, "ring");
    assert_eq!(world.word("a", 0, 0), GO);
    let reply = world.ask("b", 0, 0);
    assert_eq!((reply.answer, reply.agent.as_deref()), (Permission::Wait, Some("a")));
    let why = "a has been trying it first since 2026-01-02T03:04:05Z; it is not proven anywhere yet";
    assert_eq!(reply.why, why);
    assert_eq!(world.ask("b", 0, 30).why, why, "renewing keeps the start time");
    assert_eq!(world.word("a", 0, 60), GO, "asking again renews");
    assert_eq!(world.word("b", 0, 149), waits());
    assert_eq!(world.word("b", 0, 150), GO, "a lease that was not renewed has expired");
    assert_eq!(world.word("a", 0, 151), waits());
    world.leases = world.leases.without("b", "web", "d", at(151)).unwrap();
    assert!(world.leases.without("b", "web", "d", at(151)).is_none());
    assert_eq!(world.word("a", 0, 152), GO, "it was released");
    world.record = record(&[("a", "updated", 160)]);
    assert_eq!(world.word("b", 0, 161), GO);
    assert_eq!(world.word("c", 0, 161), GO, "it is proven");
}

#[test]
fn a_proof_counts_after_the_probation_of_the_others_whatever_the_machine_has_reported() {
    let with = |probation: Option<u32>| reported(0, |image| image.probation = probation);
    for (own, other, expected) in [
        (Some(0), Some(600), 600),
        (None, Some(600), 600),
        (Some(5), Some(5), 5),
        (Some(900), Some(5), 900),
        (Some(7200), Some(5), 7200),
        // No other machine has reported one.
        (Some(0), None, 60),
        // A false report doesn't keep the digest from ever being proven.
        (Some(5), Some(u32::MAX), 3600),
    ] {
        let mut world = World::new(&[]);
        world.machines = vec![("a", with(own)), ("b", with(other))];
        assert_eq!(world.word("a", 0, 0), GO);
        let counts_from = world.leases.proof("a", &world.record, at(1));
        assert_eq!(counts_from, Some(at(expected)), "{own:?}, {other:?}");
        assert_eq!(world.leases.tried[0].probation, own.unwrap_or(0), "its time is that of its own");
    }
    // One that has not reported for a day does not count.
    let mut world = World::new(&[]);
    let now = 86_400;
    let mut fresh = with(Some(0));
    fresh.at = at(now);
    world.machines = vec![("a", fresh), ("b", with(Some(600)))];
    assert_eq!(world.word("a", 0, now), GO);
    assert_eq!(world.leases.proof("a", &world.record, at(now)), Some(at(now + 60)));
}

#[test]
fn the_verdict_ends_the_lease() {
    let mut world = World::new(&[]);
    assert_eq!(world.word("a", 0, 0), GO);
    world.record = record(&[("a", "rolled_back", 1)]);
    assert_eq!(world.word("b", 0, 2), held(Permission::No, "immunity"));
    world.record.lift();
    assert_eq!(
        world.word("b", 0, 3),
        GO,
        "unblocked: one machine tries again, and the first one's lease is over"
    );
    assert_eq!(world.word("a", 0, 4), held(Permission::Wait, "ring"));
}

#[test]
fn a_failed_digest_is_withheld_except_from_machines_where_it_is_proven() {
    for (said, agent, expected) in [
        (&[("a", "rolled_back", 0)][..], "b", held(Permission::No, "immunity")),
        (&[("a", "rolled_back", 0), ("c", "updated", 0)], "b", GO),
        (&[("a", "rolled_back", 0), ("c", "rolled_back", 0), ("b", "updated", 0)], "b", GO),
        (
            &[("a", "rolled_back", 0), ("c", "rolled_back", 0), ("b", "updated", 0)],
            "e",
            held(Permission::No, "immunity"),
        ),
    ] {
        assert_eq!(World::new(said).word(agent, 0, 1), expected, "{said:?} {agent}");
    }
}

#[test]
fn a_freeze_holds_what_it_covers_and_leaves_a_lease() {
    let mut world = World::new(&[]);
    assert_eq!(world.word("a", 0, 0), GO);
    let mut state = FleetState::default();
    let freeze = super::super::decisions::Decision::Freeze {
        reason: "audit".to_owned(),
        until: at(1000),
        scope: evenkeel_common::wire::FreezeScope { machine: Some("a".to_owned()), image: None },
    };
    state.decide(freeze, 1, at(0));
    let value = state.changed().remove(0).1;
    world.decisions = serde_json::from_slice(&value).unwrap();
    assert_eq!(world.word("a", 0, 60), held(Permission::Wait, "freeze"));
    assert_eq!(
        world.word("b", 0, 100),
        held(Permission::Wait, "ring"),
        "a started deployment keeps its lease"
    );
    assert_eq!(world.word("b", 0, 150), GO, "the freeze does not cover this machine");
}

/// The warden's clock was ahead by a year.
#[test]
fn what_was_recorded_by_a_clock_that_was_ahead_holds_nothing() {
    let (hour, year) = (3600, 365 * 86_400);
    let mut world = World::new(&[]);
    let mut state = FleetState::default();
    let freeze = super::super::decisions::Decision::Freeze {
        reason: "audit".to_owned(),
        until: at(year + hour),
        scope: evenkeel_common::wire::FreezeScope::default(),
    };
    state.decide(freeze, 1, at(year));
    let value = state.changed().remove(0).1;
    world.decisions = serde_json::from_slice(&value).unwrap();
    assert_eq!(world.word("a", 0, year), held(Permission::Wait, "freeze"));
    assert_eq!(world.word("a", 0, 0), GO);

    let proven = |image: &mut InventoryImage| {
        (image.digest, image.proven_at) = (Some("d".to_owned()), Some(at(0)));
    };
    let mut world = World::new(&[("a", "updated", year)]);
    let finds = reports(1, &[("1", false, 0), ("1", true, 10)]);
    world.machines = vec![("a", reported(0, proven)), ("x", finds)];
    assert_eq!(world.word("x", 1, 10 + 1799), held(Permission::Wait, "ring"), "it soaks");
    assert_eq!(world.word("x", 1, 10 + 1800), GO);

    let mut off = reported(0, |_| {});
    off.at = at(year);
    let mut world = World { machines: vec![("off", off)], ..World::new(&[]) };
    assert_eq!(world.word("x", 1, hour), GO, "a machine is not waited for until then");
}

#[test]
fn a_higher_ring_waits_for_a_machine_whose_report_may_be_on_its_way() {
    let mut world = World { missing: Some("c"), ..World::new(&[]) };
    let reply = world.ask("b", 1, 0);
    assert_eq!((reply.answer, reply.gate.as_deref(), reply.again), (Permission::Wait, Some("ring"), 10));
    assert!(reply.why.contains("c has not reported") && reply.agent.as_deref() == Some("c"), "{}", reply.why);
    world.missing = None;
    assert_eq!(world.word("b", 1, 10), GO, "no lower ring has reported it");
    let mut lowest = World { missing: Some("c"), ..World::new(&[]) };
    assert_eq!(lowest.word("a", 0, 0), GO, "ring 0 never waits");
    let rules = Rules { need: 0, ..Rules::default() };
    let mut without_rings = World { missing: Some("c"), rules, ..World::new(&[]) };
    assert_eq!(without_rings.word("b", 1, 0), GO);
}

#[test]
fn a_ring_goes_when_the_rings_below_have_proven_it() {
    let day = 86_400;
    let old = |_: &mut InventoryImage| {};
    let behind = |image: &mut InventoryImage| {
        (image.available, image.behind_since) = (Some("d".to_owned()), Some(at(0)));
    };
    let blocks = |image: &mut InventoryImage| image.blocked = Some("d".to_owned());
    let runs = |image: &mut InventoryImage| image.digest = Some("d".to_owned());
    let proven = |image: &mut InventoryImage| {
        (image.digest, image.proven_at) = (Some("d".to_owned()), Some(at(0)));
    };
    let first = reported(0, runs);
    let stays = Reported::new(Some(&first), first.inventory.clone(), at(3600));
    let finds = || ("x", reported(1, behind));
    let wait = || held(Permission::Wait, "ring");
    let cases = [
        ("no lower ring", vec![("b", reported(1, old))], vec![], 1, 10, GO),
        ("not yet", vec![("a", reported(0, old))], vec![], 1, 10, wait()),
        ("soaking", vec![("a", reported(0, old))], vec![("a", "updated", 0)], 1, 1799, wait()),
        ("proven", vec![("a", reported(0, old))], vec![("a", "updated", 0)], 1, 1800, GO),
        ("ring 0 never waits", vec![("a", reported(0, old))], vec![], 0, 10, GO),
        (
            "failed below, proven elsewhere",
            vec![("a", reported(0, old))],
            vec![("a", "rolled_back", 0), ("c", "updated", 0)],
            1,
            5000,
            wait(),
        ),
        (
            "another tag below",
            vec![("a", reported(0, old)), ("x", reported(1, behind))],
            vec![],
            1,
            day - 1,
            wait(),
        ),
        ("silent below", vec![("a", reported(0, behind))], vec![], 1, day, GO),
        ("blocked below", vec![("a", reported(0, blocks))], vec![], 1, 10, GO),
        ("recreated below", vec![("a", reported(0, runs))], vec![], 1, 3600 + 1799, wait()),
        ("recreated below, and silent since", vec![("a", reported(0, runs))], vec![], 1, 3600 + 1800, wait()),
        ("recreated below, and stays", vec![("a", stays), finds()], vec![], 1, 3600 + 1800, GO),
        ("proven below by its own report", vec![("a", reported(0, proven)), finds()], vec![], 1, 1800, GO),
    ];
    for (name, machines, said, ring, now, expected) in cases {
        let mut world = World::new(&said);
        world.machines = machines;
        assert_eq!(world.word("x", ring, now), expected, "{name}");
    }
    // The machine below follows another tag: after a day it is no longer waited for.
    let mut world = World::new(&[]);
    let mut fresh = reported(0, old);
    fresh.at = at(day);
    world.machines = vec![("a", fresh), ("x", reported(1, behind))];
    assert_eq!(world.word("x", 1, day), GO);
}

#[test]
fn a_proof_that_a_machine_only_reports_counts_from_when_the_asking_one_has_found_the_digest() {
    let proven = |image: &mut InventoryImage| {
        (image.digest, image.proven_at) = (Some("d".to_owned()), Some(at(0)));
    };
    let finds = || Some(("x", reports(1, &[("1", false, 0), ("1", true, 5000)])));
    let wait = || held(Permission::Wait, "ring");
    for (asking, now, expected) in
        [(finds(), 5000 + 1799, wait()), (finds(), 5000 + 1800, GO), (None, 50_000, wait())]
    {
        let mut world = World::new(&[]);
        world.machines = [("a", reported(0, proven))].into_iter().chain(asking).collect();
        assert_eq!(world.word("x", 1, now), expected, "at {now}");
    }
}

/// A machine's reports: each with the tag that it follows, whether the digest is found behind it, and when.
fn reports(ring: u8, all: &[(&str, bool, i64)]) -> Reported {
    let mut latest: Option<Reported> = None;
    for (tag, is_found, when) in all {
        let image = InventoryImage {
            image: format!("web:{tag}"),
            available: is_found.then(|| "d".to_owned()),
            behind_since: is_found.then(|| at(-1_000_000)),
            ..serde_json::from_str(r#"{"service":"web","image":"","digest":"old"}"#).unwrap()
        };
        latest = Some(Reported::new(latest.as_ref(), Inventory { ring, images: vec![image] }, at(*when)));
    }
    latest.unwrap()
}

#[test]
fn a_lower_ring_is_waited_for_whatever_the_time_that_a_machine_reports() {
    let day = 86_400;
    let wait = || held(Permission::Wait, "ring");
    let below = || ("a", reports(0, &[("1", false, 0), ("1", false, 2 * day)]));
    let asks = |since| ("x", reports(1, &[("1", true, since), ("1", true, 2 * day)]));
    let cases = [
        ("its own clock is wrong", vec![below(), asks(2 * day)], wait()),
        (
            "another machine has it behind another tag",
            vec![below(), asks(2 * day), ("z", reports(1, &[("beta", true, 0), ("beta", true, 2 * day)]))],
            wait(),
        ),
        (
            "another machine alone claims to know it",
            vec![below(), asks(2 * day), ("z", reports(1, &[("1", true, 0), ("1", true, 2 * day)]))],
            wait(),
        ),
        (
            "it has had it behind another tag itself",
            vec![below(), ("x", reports(1, &[("beta", true, 0), ("1", true, 2 * day)]))],
            wait(),
        ),
        ("it has reported nothing", vec![below()], wait()),
        ("it has waited for a day", vec![below(), asks(day)], GO),
    ];
    for (name, machines, expected) in cases {
        let mut world = World::new(&[]);
        world.machines = machines;
        assert_eq!(world.word("x", 1, 2 * day), expected, "{name}");
    }
}

#[test]
fn no_more_machines_than_allowed_deploy_an_image_at_once() {
    let mut world = World::new(&[("z", "updated", 0)]);
    world.rules.max_at_once = Some(2);
    let words = ["a", "b", "c", "a"].map(|agent| world.word(agent, 0, 1));
    assert_eq!(words, [GO, GO, held(Permission::Wait, "ring"), GO]);
    world.record = record(&[("z", "updated", 0), ("a", "updated", 2)]);
    assert_eq!(world.word("c", 0, 3), GO, "the verdict of one makes room");
}

#[test]
fn a_machine_that_has_tried_many_digests_waits_if_others_wait_for_it() {
    let mut world = World::new(&[]);
    for n in 0..8 {
        let record = DigestRecord { digest: format!("e{n}"), ..record(&[]) };
        let holder = Holder { agent: "x", service: "web", progress: None, probation: 0, proof_after: 0 };
        let taken = world.leases.with(&holder, &record, at(0));
        world.leases = taken.without("x", "web", &record.digest, at(0)).unwrap();
    }
    world.machines = vec![("a", reported(0, |_| {}))];
    assert_eq!(world.word("x", 0, 1), held(Permission::Wait, "ring"));
    assert!(world.ask("x", 0, 1).why.contains("several other digests"));
    assert_eq!(world.word("a", 0, 1), GO, "another machine goes first");
    world.record = record(&[("a", "updated", 2)]);
    assert_eq!(world.word("x", 0, 3), GO, "a proven digest holds nobody back");
    world.rules.max_at_once = Some(9);
    assert_eq!(world.word("x", 0, 3), GO, "also if it takes a lease");
    world.rules.max_at_once = None;
    (world.machines, world.record, world.leases.held) = (Vec::new(), record(&[]), Vec::new());
    world.leases.tried.retain(|trial| trial.digest != "d");
    assert_eq!(world.word("x", 0, 4), GO, "nobody waits for it");
}

#[test]
fn an_agent_that_waits_for_a_ring_is_told_when_the_soak_is_over() {
    let mut world = World::new(&[]);
    world.machines = vec![("a", reported(0, |_| {}))];
    assert_eq!(world.ask("x", 1, 1).again, 60, "a verdict wakes it before that");
    world.record = record(&[("a", "updated", 10)]);
    for (soak, now, again) in [(4, 11, 4), (4, 13, 2), (1800, 11, 300)] {
        world.rules.soak = soak;
        assert_eq!(world.ask("x", 1, now).again, again, "{soak} s, at {now}");
    }
}

/// While an agent is left out of the list because of a fault, the reports of removed agents are among the others.
#[test]
fn a_machine_does_not_wait_for_one_that_no_longer_reports() {
    let mut world = World::new(&[]);
    world.machines = vec![("gone", reported(0, |_| {}))];
    // It has had the digest for its whole time, and has tried many others.
    let day = 86_400;
    for now in (day - 4000..day).step_by(50) {
        let holder = Holder { agent: "x", service: "web", progress: None, probation: 0, proof_after: 0 };
        world.leases = world.leases.with(&holder, &world.record, at(now));
    }
    for n in 0..8 {
        let record = DigestRecord { digest: format!("e{n}"), ..record(&[]) };
        let holder = Holder { agent: "x", service: "web", progress: None, probation: 0, proof_after: 0 };
        let taken = world.leases.with(&holder, &record, at(day - 1));
        world.leases = taken.without("x", "web", &record.digest, at(day - 1)).unwrap();
    }
    assert!(world.leases.has_spent("x", "d", at(day)));
    assert_eq!(world.word("x", 0, day - 1), held(Permission::Wait, "ring"), "it has reported within a day");
    assert_eq!(world.word("x", 0, day), GO);
    world.leases.tried.retain(|trial| trial.digest != "d");
    world.leases.held.clear();
    assert_eq!(world.word("x", 0, day - 1), held(Permission::Wait, "ring"));
    assert_eq!(world.word("x", 0, day), GO);
}
