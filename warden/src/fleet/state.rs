//! The values of the store that a batch of changes reads and writes, and how entries and operators' decisions change them.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::{FleetEntry, Freeze, FreezeScope, Kind, Level};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::decisions::{self, DECISIONS, Decision, Decisions, FUSE, Fuse, FuseRule, OPERATOR};
use super::lease::{self, Leases};
use super::verdict::{self, Claim, DigestRecord, Verdict, claims};
use super::{entry, inventory, repository};

/// Returns the names of the values that an entry affects.
pub fn values_of_entry(entry: &FleetEntry) -> Vec<String> {
    let mut names = Vec::new();
    for Claim { repository, digest, verdict } in claims(entry) {
        names.push(verdict::name(repository, digest));
        if verdict == Verdict::Proven {
            names.push(lease::name(repository));
        }
    }
    if !names.is_empty() {
        names.extend([DECISIONS.to_owned(), FUSE.to_owned(), inventory::name(&entry.agent)]);
    }
    names
}

/// Returns the names of the values that a decision affects.
pub fn values_of_decision(decision: &Decision) -> Vec<String> {
    let mut names = vec![DECISIONS.to_owned()];
    if let Decision::Unblock { repository, digest } = decision {
        names.push(verdict::name(repository, digest));
    }
    names
}

/// Returns the names of the values that the fuse affects.
pub fn values_of_fuse() -> Vec<String> {
    vec![DECISIONS.to_owned(), FUSE.to_owned()]
}

/// The values while a batch is applied.
#[derive(Debug, Default)]
pub struct FleetState {
    before: BTreeMap<String, Vec<u8>>,
    decisions: Option<Decisions>,
    fuse: Option<Fuse>,
    records: BTreeMap<String, DigestRecord>,
    /// The repositories that an agent has reported, by agent.
    reported: BTreeMap<String, BTreeSet<String>>,
}

/// What matters here of an agent's report; see [`inventory::Reported`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct Report {
    inventory: ReportedImages,
    past: BTreeMap<String, Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReportedImages {
    images: Vec<ReportedImage>,
}

#[derive(Deserialize)]
struct ReportedImage {
    image: String,
}

impl FleetState {
    /// Starts with the values of the store, by name.
    pub fn new(before: BTreeMap<String, Vec<u8>>) -> Self {
        Self { before, ..Self::default() }
    }

    /// Applies a new entry with this id. What an agent claims counts only for the repositories that it has reported, and as
    /// proof only if it was seen trying the digest (DECISIONS 8).
    pub fn record(&mut self, entry: &FleetEntry, id: u64, now: Timestamp) {
        let mut rolled_back = None;
        for Claim { repository, digest, verdict } in claims(entry) {
            if !self.has_reported(&entry.agent, repository) {
                continue;
            }
            let from = match verdict {
                Verdict::Failed => Some(now),
                Verdict::Proven => self.proof(&entry.agent, repository, digest, now),
            };
            let Some(from) = from else { continue };
            let record = self.digest(repository, digest);
            record.record(entry, verdict, id, (from, now));
            let failed = record.withheld();
            self.decisions().set_failed(repository, digest, failed);
            if verdict == Verdict::Failed {
                rolled_back.get_or_insert(repository);
            }
        }
        // One deployment is one rollback, whatever the number of its images.
        if let Some(repository) = rolled_back {
            self.fuse().record(repository, &entry.agent, entry.timestamp, now);
        }
    }

    /// Returns since when a digest counts as proven by an agent that says so now; `None` if it does not count. Where it is
    /// proven already, and not withheld, agents deploy it without a lease.
    fn proof(&mut self, agent: &str, repository: &str, digest: &str, now: Timestamp) -> Option<Timestamp> {
        let leases: Leases = parsed(&self.before, &lease::name(repository));
        let record = self.digest(repository, digest);
        let is_known = || record.is_proven(now) && record.withheld_from(agent).is_none();
        leases.proof(agent, record, now).or_else(|| is_known().then_some(now))
    }

    fn has_reported(&mut self, agent: &str, repository: &str) -> bool {
        let before = &self.before;
        let reported = self.reported.entry(agent.to_owned()).or_insert_with(|| {
            let report: Report = parsed(before, &inventory::name(agent));
            let images =
                report.inventory.images.iter().map(|image| self::repository(&image.image).to_owned());
            images.chain(report.past.into_keys()).collect()
        });
        reported.contains(repository)
    }

    /// Applies an operator's decision. `id` is the id of the returned entry. Returns `None` if nothing changes.
    pub fn decide(&mut self, decision: Decision, id: u64, now: Timestamp) -> Option<FleetEntry> {
        match decision {
            Decision::Freeze { reason, until, scope } => {
                let freeze = decisions::freeze_of(id, OPERATOR, reason, until, now);
                self.decisions().freeze(Freeze { scope, ..freeze }, now)
            }
            Decision::Thaw { id } => self.decisions().thaw(id.as_deref(), now),
            Decision::Unblock { repository, digest } => self.unblock(&repository, &digest, now),
        }
    }

    fn unblock(&mut self, image: &str, digest: &str, now: Timestamp) -> Option<FleetEntry> {
        let repository = repository(image);
        if !self.digest(repository, digest).lift() {
            return None;
        }
        self.decisions().set_failed(repository, digest, None);
        let message = format!("{repository}@{digest} may be tried again");
        let mut entry = entry::of_warden(&Kind::UNBLOCKED, Level::Info, message, now);
        (entry.image, entry.new_digest) = (Some(repository.to_owned()), Some(digest.to_owned()));
        Some(entry)
    }

    /// Freezes the whole fleet if the fuse trips, unless it is already frozen.
    pub fn check_fuse(&mut self, rule: FuseRule, id: u64, now: Timestamp) -> Option<FleetEntry> {
        if self.decisions().freezes_at(now).any(|freeze| freeze.scope == FreezeScope::default()) {
            return None;
        }
        let freeze = self.fuse().trip(rule, id, now)?;
        self.decisions().freeze(freeze, now)
    }

    /// Returns the values that have changed, by name.
    pub fn changed(self) -> Vec<(String, Vec<u8>)> {
        let records = self.records.iter().map(|(name, record)| (name.clone(), bytes(record)));
        let decisions = self.decisions.iter().map(|value| (DECISIONS.to_owned(), bytes(value)));
        let fuse = self.fuse.iter().map(|value| (FUSE.to_owned(), bytes(value)));
        let is_new = |name: &String, value: &[u8], empty: &[u8]| {
            self.before.get(name).map_or(value != empty, |before| before != value)
        };
        let empty = [bytes(&Decisions::default()), bytes(&Fuse::default())];
        records
            .filter(|(name, value)| is_new(name, value, b""))
            .chain(decisions.filter(|(name, value)| is_new(name, value, &empty[0])))
            .chain(fuse.filter(|(name, value)| is_new(name, value, &empty[1])))
            .collect()
    }

    fn decisions(&mut self) -> &mut Decisions {
        self.decisions.get_or_insert_with(|| parsed(&self.before, DECISIONS))
    }

    fn fuse(&mut self) -> &mut Fuse {
        self.fuse.get_or_insert_with(|| parsed(&self.before, FUSE))
    }

    fn digest(&mut self, repository: &str, digest: &str) -> &mut DigestRecord {
        let name = verdict::name(repository, digest);
        let before = &self.before;
        self.records.entry(name).or_insert_with_key(|name| DigestRecord {
            repository: repository.to_owned(),
            digest: digest.to_owned(),
            ..parsed(before, name)
        })
    }
}

fn parsed<T: DeserializeOwned + Default>(values: &BTreeMap<String, Vec<u8>>, name: &str) -> T {
    values.get(name).and_then(|value| parse(value)).unwrap_or_default()
}

/// Parses a value of the store; `None` if there is none or if it cannot be parsed.
pub fn parse<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

/// Serializes a value for the store.
pub fn bytes(value: &impl Serialize) -> Vec<u8> {
    // Serialization only fails for maps with keys that are not strings, and these types have none.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::decisions::BY_FUSE;
    use crate::fleet::testing::{at, entry, reported, try_digest};

    /// Applies changes to a store in memory, as a real store does.
    fn apply<R>(
        store: &mut BTreeMap<String, Vec<u8>>,
        work: impl FnOnce(&mut FleetState) -> R,
    ) -> (R, usize) {
        let mut state = FleetState::new(store.clone());
        let done = work(&mut state);
        let changed = state.changed();
        let count = changed.len();
        store.extend(changed);
        (done, count)
    }

    fn decisions(store: &BTreeMap<String, Vec<u8>>) -> Decisions {
        parsed(store, DECISIONS)
    }

    fn freeze(until: i64, scope: FreezeScope) -> Decision {
        Decision::Freeze { reason: "audit".to_owned(), until: at(until), scope }
    }

    fn failed(store: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
        decisions(store).failed.first().map(|failed| failed.agents.clone()).unwrap_or_default()
    }

    #[test]
    fn a_good_update_changes_no_decision() {
        let mut store = reported(&["a", "b", "c", "d"], &["web"]);
        let good = |agent| entry(agent, "updated", "web", "d");
        try_digest(&mut store, ("a", "web", "d"), 0, 0);
        let ((), count) = apply(&mut store, |state| state.record(&good("a"), 1, at(1)));
        assert_eq!((count, store.contains_key(DECISIONS)), (1, false));
        apply(&mut store, |state| state.record(&entry("b", "rolled_back", "web", "d"), 2, at(2)));
        assert!(decisions(&store).failed.is_empty());
        apply(&mut store, |state| state.record(&entry("c", "rolled_back", "web", "d"), 3, at(3)));
        assert_eq!(failed(&store), ["b", "c"]);
        try_digest(&mut store, ("d", "web", "d"), 3, 0);
        let ((), count) = apply(&mut store, |state| state.record(&good("d"), 4, at(4)));
        assert_eq!((count, decisions(&store).failed.len()), (2, 0));
    }

    #[test]
    fn a_verdict_counts_only_for_a_repository_that_the_agent_has_reported() {
        for (agents, images, expected) in [
            (&["a"][..], &["r/web:1"][..], 1),
            (&["a"], &["r/other:1"], 0),
            (&["b"], &["r/web:1"], 0),
            (&["a"], &["r/web/more:1"], 0),
        ] {
            let mut store = reported(agents, images);
            let bad = entry("a", "rolled_back", "r/web:2", "d");
            let ((), count) = apply(&mut store, |state| state.record(&bad, 1, at(1)));
            assert_eq!(decisions(&store).failed.len(), expected, "{agents:?} {images:?}");
            assert_eq!(count > 0, expected > 0, "nothing is written otherwise");
        }
        // A repository that it no longer reports is remembered for a day.
        let mut store = reported(&["a"], &["r/web:1"]);
        let name = inventory::name("a");
        let before: inventory::Reported = parse(&store[&name]).unwrap();
        for (seconds, expected) in [(3600, 1), (90_000, 0)] {
            let next = inventory::Reported::new(
                Some(&before),
                evenkeel_common::wire::Inventory::default(),
                at(seconds),
            );
            store.insert(name.clone(), bytes(&next));
            let mut store = store.clone();
            let bad = entry("a", "rolled_back", "r/web:2", "d");
            apply(&mut store, |state| state.record(&bad, 1, at(seconds)));
            assert_eq!(decisions(&store).failed.len(), expected, "after {seconds} s");
        }
    }

    #[test]
    fn only_an_agent_that_was_seen_trying_a_digest_has_proven_it() {
        let proven = |store: &BTreeMap<String, Vec<u8>>, now| {
            let record: DigestRecord = parsed(store, &verdict::name("web", "d"));
            record.is_proven(at(now))
        };
        let good = |agent| entry(agent, "updated", "web", "d");
        let mut store = reported(&["a", "b", "c"], &["web"]);
        apply(&mut store, |state| state.record(&good("a"), 1, at(10)));
        assert!(!proven(&store, 10), "it never tried");
        try_digest(&mut store, ("a", "web", "d"), 10, 60);
        apply(&mut store, |state| state.record(&good("b"), 2, at(20)));
        assert!(!proven(&store, 20), "another one tries");
        apply(&mut store, |state| state.record(&good("a"), 3, at(20)));
        assert!(!proven(&store, 69) && proven(&store, 70), "the probation takes 60 s");
        // The next ones need no lease, so their verdict counts without one.
        apply(&mut store, |state| state.record(&good("b"), 4, at(80)));
        let bad = |agent| entry(agent, "rolled_back", "web", "d");
        for (id, agent) in [(5, "a"), (6, "b")] {
            apply(&mut store, |state| state.record(&bad(agent), id, at(90)));
        }
        assert_eq!(failed(&store), ["a", "b"]);
        // Nobody may deploy it now: such a claim does not lift the block.
        for id in 7..9 {
            apply(&mut store, |state| state.record(&good("c"), id, at(100)));
        }
        assert_eq!(failed(&store), ["a", "b"]);
        // The lease of before the failure proves nothing, either.
        apply(&mut store, |state| state.record(&good("a"), 9, at(110)));
        assert_eq!(failed(&store), ["a", "b"]);
    }

    #[test]
    fn every_failed_image_of_a_deployment_has_its_own_verdict() {
        let mut store = reported(&["a"], &["r/web:1", "r/db:1"]);
        let other = |image: &str| evenkeel_common::wire::ImageDigest {
            image: image.to_owned(),
            digest: "e".to_owned(),
        };
        let bad = FleetEntry {
            also_failed: vec![other("r/db:1"), other("r/strange:1")],
            ..entry("a", "rolled_back", "r/web:1", "d")
        };
        apply(&mut store, |state| state.record(&bad, 1, at(1)));
        let mut failed: Vec<_> =
            decisions(&store).failed.into_iter().map(|failed| (failed.repository, failed.digest)).collect();
        failed.sort();
        let pair = |repository: &str, digest: &str| (repository.to_owned(), digest.to_owned());
        assert_eq!(failed, [pair("r/db", "e"), pair("r/web", "d")]);
        // Further images of a good update are not verdicts.
        let good = FleetEntry { event: "updated".to_owned(), ..bad };
        assert_eq!(claims(&good).count(), 1);
    }

    #[test]
    fn one_agent_does_not_displace_the_failures_of_others_from_the_list() {
        let mut store = reported(&["a"], &["r/web:1"]);
        store.extend(reported(&["b"], &["r/db:1"]));
        apply(&mut store, |state| state.record(&entry("b", "rolled_back", "r/db:1", "real"), 1, at(1)));
        for n in 0..500 {
            let bad = entry("a", "rolled_back", "r/web:1", &format!("d{n}"));
            apply(&mut store, |state| state.record(&bad, n + 2, at(2)));
        }
        let found = decisions(&store);
        assert!(found.failed.iter().any(|failed| failed.digest == "real"));
        let latest = found.failed.iter().any(|failed| failed.digest == "d499");
        assert_eq!((found.failed.len(), found.left_out, latest), (33, 468, true));
        assert!(store[DECISIONS].len() < 64 * 1024, "{} bytes", store[DECISIONS].len());
    }

    #[test]
    fn a_freeze_ends_at_its_time_or_with_a_thaw() {
        let mut store = BTreeMap::new();
        let one = FreezeScope { machine: Some("a".to_owned()), image: Some("web:1".to_owned()) };
        let (told, _) = apply(&mut store, |state| state.decide(freeze(100, one.clone()), 7, at(0)));
        let told = told.unwrap();
        assert_eq!(
            (told.event.as_str(), told.machine.as_str(), told.service.as_str()),
            ("frozen", "a", "warden")
        );
        apply(&mut store, |state| state.decide(freeze(50, FreezeScope::default()), 8, at(0)));
        let in_force = |now| {
            decisions(&store)
                .at(1, at(now))
                .freezes
                .iter()
                .map(|freeze| freeze.id.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (in_force(49), in_force(50), in_force(100)),
            (vec!["7".to_owned(), "8".to_owned()], vec!["7".to_owned()], vec![])
        );
        assert!(covers(&one, "a", "web") && !covers(&one, "b", "web") && !covers(&one, "a", "webs"));
        for (id, expected, left) in
            [(Some("9"), None, 2), (Some("7"), Some("thawed"), 1), (None, Some("thawed"), 0), (None, None, 0)]
        {
            let thaw = Decision::Thaw { id: id.map(str::to_owned) };
            let (told, _) = apply(&mut store, |state| state.decide(thaw, 9, at(1)));
            assert_eq!(
                (told.map(|told| told.event).as_deref(), decisions(&store).freezes.len()),
                (expected, left),
                "{id:?}"
            );
        }
    }

    use crate::fleet::decisions::covers;

    #[test]
    fn an_unblock_releases_a_withheld_digest_until_it_fails_again() {
        let mut store = reported(&["a"], &["r/web:1"]);
        let bad = entry("a", "rolled_back", "r/web:1", "d");
        let unblock = || Decision::Unblock { repository: "r/web".to_owned(), digest: "d".to_owned() };
        assert!(apply(&mut store, |state| state.decide(unblock(), 1, at(0))).0.is_none(), "nothing to lift");
        apply(&mut store, |state| state.record(&bad, 2, at(1)));
        assert_eq!(decisions(&store).failed.len(), 1);
        assert!(apply(&mut store, |state| state.decide(unblock(), 3, at(2))).0.is_some());
        assert_eq!(decisions(&store).failed, []);
        apply(&mut store, |state| state.record(&bad, 4, at(3)));
        assert_eq!(decisions(&store).failed.len(), 1);
    }

    type Case<'a> = (&'a [(&'a str, i64)], FuseRule, bool);

    #[test]
    fn the_fuse_trips_once_after_rollbacks_of_distinct_images() {
        let rule = FuseRule { rollbacks: 3, within: 100, freeze: 1000 };
        let fail = |image: &str, when: i64| FleetEntry {
            timestamp: at(when),
            ..entry("a", "rolled_back", image, "d")
        };
        let cases: [Case<'_>; 6] = [
            (&[("a", 0), ("b", 1), ("c", 2)], rule, true),
            (&[("a", 0), ("b", 1), ("b", 2), ("b:2", 3)], rule, false),
            (&[("a", 0), ("b", 1)], rule, false),
            (&[("a", -101), ("b", 1), ("c", 2)], rule, false),
            (&[("a", 0), ("b", 1), ("c", 2)], FuseRule { rollbacks: 0, ..rule }, false),
            (&[("a", 5000), ("b", 1), ("c", 2)], rule, true),
        ];
        for (failures, rule, expected) in cases {
            let mut store = reported(&["a"], &["a", "b", "c"]);
            for (image, when) in failures {
                apply(&mut store, |state| state.record(&fail(image, *when), 1, at(3)));
            }
            let (told, _) = apply(&mut store, |state| state.check_fuse(rule, 9, at(3)));
            assert_eq!(told.is_some(), expected, "{failures:?}");
            let (again, _) = apply(&mut store, |state| state.check_fuse(rule, 10, at(3)));
            assert!(again.is_none(), "once");
            let freezes = decisions(&store).at(1, at(3)).freezes;
            assert_eq!(freezes.len(), usize::from(expected));
            if let Some(freeze) = freezes.first() {
                assert_eq!(
                    (freeze.by.as_str(), freeze.until, freeze.scope.is_all()),
                    ("fuse", at(1003), true)
                );
                assert_eq!(freeze.agents, ["a"]);
                let whose = "3 images were rolled back within 1 min 40 s: on a (a, b, c)";
                assert_eq!(freeze.reason, whose);
            }
        }
    }

    #[test]
    fn a_deployment_of_several_images_counts_as_one_rollback() {
        let rule = FuseRule { rollbacks: 2, within: 100, freeze: 1000 };
        let other = |image: &str| evenkeel_common::wire::ImageDigest {
            image: image.to_owned(),
            digest: "d".to_owned(),
        };
        let bad =
            FleetEntry { also_failed: vec![other("b"), other("c")], ..entry("a", "rolled_back", "a", "d") };
        let mut store = reported(&["a"], &["a", "b", "c", "other"]);
        apply(&mut store, |state| state.record(&bad, 1, at(1)));
        assert_eq!(decisions(&store).failed.len(), 3);
        let (told, _) = apply(&mut store, |state| state.check_fuse(rule, 9, at(3)));
        assert!(told.is_none());
        apply(&mut store, |state| state.record(&entry("a", "rolled_back", "other", "d"), 2, at(2)));
        let (told, _) = apply(&mut store, |state| state.check_fuse(rule, 9, at(3)));
        assert!(told.is_some());
    }

    #[test]
    fn the_failures_of_an_agent_trip_the_fuse_once_a_day() {
        let rule = FuseRule { rollbacks: 3, within: 3600, freeze: 600 };
        let images = ["i0", "i1", "i2", "i3", "i4", "i5"];
        let mut store = reported(&["a", "b", "c"], &images);
        let mut id = 0;
        let mut trips = |store: &mut BTreeMap<String, Vec<u8>>, agents: &[&str], seconds: i64| {
            for (agent, image) in agents.iter().zip(images) {
                id += 1;
                let bad = entry(agent, "rolled_back", image, &format!("d{id}"));
                let bad = FleetEntry { timestamp: at(seconds), ..bad };
                apply(store, |state| state.record(&bad, id, at(seconds)));
            }
            apply(store, |state| state.check_fuse(rule, 1000 + id, at(seconds))).0
        };
        let told = trips(&mut store, &["a"; 3], 0).unwrap();
        assert!(told.reason.unwrap().contains("on a (i0, i1, i2)"));
        for hour in 1..24 {
            assert!(trips(&mut store, &["a"; 6], hour * 3600).is_none(), "hour {hour}");
        }
        // Neither does it help other failures to trip it.
        assert!(trips(&mut store, &["b", "b", "a"], 84_000).is_none());
        assert!(trips(&mut store, &["b", "b", "c"], 84_100).is_some(), "others still do");
        assert!(trips(&mut store, &["a"; 3], 86_400 + 1).is_some(), "a day later");
    }

    #[test]
    fn the_fuse_trips_even_if_the_maximum_number_of_freezes_is_in_force() {
        let mut store = reported(&["a"], &["web"]);
        let one = FreezeScope { machine: Some("a".to_owned()), image: None };
        let most = u64::try_from(decisions::MAX_FREEZES).unwrap();
        for id in 0..=most {
            let (told, _) = apply(&mut store, |state| state.decide(freeze(100, one.clone()), id, at(0)));
            assert_eq!(told.is_some(), id < most, "{id}");
        }
        let rule = FuseRule { rollbacks: 1, within: 100, freeze: 1000 };
        apply(&mut store, |state| state.record(&entry("a", "rolled_back", "web", "d"), 1, at(1)));
        assert!(apply(&mut store, |state| state.check_fuse(rule, 9, at(1))).0.is_some());
        assert!(decisions(&store).freezes_at(at(1)).any(|freeze| freeze.by == BY_FUSE));
    }
}
