//! The values of the store that a batch of changes reads and writes, and how entries and operators' decisions change them.

use std::collections::BTreeMap;

use evenkeel_common::wire::{FleetEntry, Freeze, FreezeScope, Kind, Level};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::decisions::{self, BY_FUSE, DECISIONS, Decision, Decisions, FUSE, Fuse, FuseRule, OPERATOR};
use super::verdict::{self, DigestRecord, Verdict, verdict};
use super::{entry, repository};

/// Returns the names of the values that an entry affects.
pub fn values_of_entry(entry: &FleetEntry) -> Vec<String> {
    let Some((repository, digest, _)) = verdict(entry) else { return Vec::new() };
    vec![verdict::name(repository, digest), DECISIONS.to_owned(), FUSE.to_owned()]
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
}

impl FleetState {
    /// Starts with the values of the store, by name.
    pub fn new(before: BTreeMap<String, Vec<u8>>) -> Self {
        Self { before, ..Self::default() }
    }

    /// Applies a new entry with this id.
    pub fn record(&mut self, entry: &FleetEntry, id: u64, now: Timestamp) {
        let Some((repository, digest, verdict)) = verdict(entry) else { return };
        let record = self.digest(repository, digest);
        record.record(entry, verdict, id, now);
        let failed = record.withheld();
        self.decisions().set_failed(repository, digest, failed);
        if verdict == Verdict::Failed {
            self.fuse().record(repository, entry.timestamp, now);
        }
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
        let (reason, until) = self.fuse().trip(rule, now)?;
        self.decisions().freeze(decisions::freeze_of(id, BY_FUSE, reason, until, now), now)
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
    use crate::fleet::testing::{at, entry};

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

    #[test]
    fn a_good_update_changes_no_decision() {
        let mut store = BTreeMap::new();
        let good = |agent| entry(agent, "updated", "web", "d");
        let ((), count) = apply(&mut store, |state| state.record(&good("a"), 1, at(1)));
        assert_eq!((count, store.contains_key(DECISIONS)), (1, false));
        apply(&mut store, |state| state.record(&entry("b", "rolled_back", "web", "d"), 2, at(2)));
        assert!(decisions(&store).failed.is_empty());
        apply(&mut store, |state| state.record(&entry("c", "rolled_back", "web", "d"), 3, at(3)));
        assert_eq!(decisions(&store).failed[0].agents, ["b", "c"]);
        let ((), count) = apply(&mut store, |state| state.record(&good("d"), 4, at(4)));
        assert_eq!((count, decisions(&store).failed.len()), (2, 0));
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
        let mut store = BTreeMap::new();
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
            let mut store = BTreeMap::new();
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
            }
        }
    }

    #[test]
    fn the_fuse_trips_even_if_the_maximum_number_of_freezes_is_in_force() {
        let mut store = BTreeMap::new();
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
