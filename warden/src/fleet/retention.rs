//! Retention of the fleet's state: removes verdicts on digests that are no longer in use, expired leases, and reports of
//! machines that are no longer configured. Bounded by age and by count.
//!
//! A value is first marked as gone, so that every warden notices, and removed a day later.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::FailedDigest;
use jiff::{SignedDuration, Timestamp};

use super::inventory::Reported;
use super::lease::Leases;
use super::repository;
use super::state::bytes;
use super::verdict::DigestRecord;

/// How long leases are kept. They expire after 90 s, but show when a machine was lost.
const LEASES: SignedDuration = SignedDuration::from_hours(24);
/// How long the report of a machine is kept that is no longer configured: it may come back.
const UNCONFIGURED: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Maximum numbers of kept reports from machines that are not configured, and of digests that no machine reports.
const MAX_UNCONFIGURED: usize = 1000;
const MAX_RECORDS: usize = 5000;
/// Maximum number of verdicts of one machine.
const MAX_VERDICTS_OF_AGENT: usize = 1000;
/// How long the mark of a removed value is kept.
const MARKS: SignedDuration = SignedDuration::from_hours(24);
/// Prefix of the mark of a removed value. No JSON value starts with it.
const MARK: &str = "gone ";

/// A value to remove, and its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outdated {
    /// Its name.
    pub name: String,
    /// The value is kept if its revision has changed since.
    pub revision: u64,
    /// The decision that is based on it, and ends with it.
    pub decision: Option<FailedDigest>,
    /// Whether it was marked long enough ago to be removed, rather than only marked now.
    pub is_marked: bool,
}

/// The values to check, by name.
pub(super) struct Kept<'a> {
    pub(super) revisions: &'a dyn Fn(&str) -> u64,
    pub(super) records: &'a BTreeMap<String, DigestRecord>,
    pub(super) leases: &'a BTreeMap<String, Leases>,
    /// By agent.
    pub(super) inventories: &'a BTreeMap<String, Reported>,
    /// When they were marked.
    pub(super) gone: &'a BTreeMap<String, Timestamp>,
}

/// Returns the mark of a value that is removed now.
pub fn mark(now: Timestamp) -> Vec<u8> {
    format!("{MARK}{now}").into_bytes()
}

/// Returns when a value was removed, if it was.
pub fn marked_at(value: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(value).ok()?.strip_prefix(MARK)?.parse().ok()
}

/// Returns the outdated values. `machines` are the configured agents; verdicts on digests that they run, may run or have
/// blocked are never outdated. `keep` is the retention time of verdicts and reports.
pub(super) fn outdated(
    kept: &Kept<'_>,
    machines: &[String],
    keep: SignedDuration,
    now: Timestamp,
) -> Vec<Outdated> {
    let is_old = |at: Timestamp, limit: SignedDuration| now.duration_since(at) > limit;
    let go =
        |name: String| Outdated { revision: (kept.revisions)(&name), name, decision: None, is_marked: false };
    let is_configured: BTreeSet<&str> = machines.iter().map(String::as_str).collect();
    let mut found = Vec::new();

    let mut unconfigured = Vec::new();
    for (agent, reported) in kept.inventories {
        let is_unconfigured = !is_configured.contains(agent.as_str());
        if is_old(reported.at, if is_unconfigured { UNCONFIGURED.min(keep) } else { keep }) {
            found.push(go(super::inventory::name(agent)));
        } else if is_unconfigured {
            unconfigured.push((reported.at, agent));
        }
    }
    unconfigured.sort_unstable();
    let excess = unconfigured.len().saturating_sub(MAX_UNCONFIGURED);
    found.extend(unconfigured[..excess].iter().map(|(_, agent)| go(super::inventory::name(agent))));

    for (name, leases) in kept.leases {
        if leases.is_outdated(LEASES, now) {
            found.push(go(name.clone()));
        }
    }

    let of_machines = machines.iter().filter_map(|machine| kept.inventories.get(machine));
    let in_use: BTreeSet<String> = of_machines.flat_map(digests).collect();
    let mut unused: Vec<(Option<Timestamp>, &String, &DigestRecord)> = kept
        .records
        .iter()
        .filter(|(name, _)| !in_use.contains(*name))
        .map(|(name, record)| (record.latest_at(), name, record))
        .collect();
    unused.sort_unstable_by_key(|(at, name, _)| (*at, *name));
    let excess = unused.len().saturating_sub(MAX_RECORDS);
    for (place, (at, name, record)) in unused.into_iter().enumerate() {
        if place < excess || at.is_none_or(|at| is_old(at, keep)) {
            found.push(Outdated { decision: record.withheld(), ..go(name.clone()) });
        }
    }

    let marked = kept.gone.iter().filter(|(_, at)| is_old(**at, MARKS));
    found.extend(marked.map(|(name, _)| Outdated { is_marked: true, ..go(name.clone()) }));
    found
}

/// A value to replace by a smaller one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduced {
    /// Its name.
    pub name: String,
    /// The value is kept if its revision has changed since.
    pub revision: u64,
    /// The new value.
    pub value: Vec<u8>,
    /// The repository, the digest and the new decision, if the verdicts on one were reduced.
    pub decision: Option<(String, String, Option<FailedDigest>)>,
}

/// Returns the verdicts and leases without those of machines that are not configured, and without the oldest verdicts of a
/// machine that has too many; those on digests that it reports stay longest.
pub(super) fn reduced(
    records: &BTreeMap<String, DigestRecord>,
    leases: &BTreeMap<String, Leases>,
    inventories: &BTreeMap<String, Reported>,
    is_configured: &dyn Fn(&str) -> bool,
    revision: &dyn Fn(&str) -> u64,
) -> Vec<Reduced> {
    let excess = excess(records, inventories);
    let mut found = Vec::new();
    for (name, record) in records {
        let is_kept = |agent: &str| is_configured(agent) && !excess.contains(&(agent, name.as_str()));
        let Some(next) = record.only_of(is_kept) else { continue };
        let decision = (record.repository.clone(), record.digest.clone(), next.withheld());
        let (name, revision) = (name.clone(), revision(name));
        found.push(Reduced { name, revision, value: bytes(&next), decision: Some(decision) });
    }
    for (name, leases) in leases {
        let Some(next) = leases.only_of(is_configured) else { continue };
        let (name, revision) = (name.clone(), revision(name));
        found.push(Reduced { name, revision, value: bytes(&next), decision: None });
    }
    found
}

/// Returns the verdicts beyond the limit: the agent, and the name of the value.
fn excess<'a>(
    records: &'a BTreeMap<String, DigestRecord>,
    inventories: &BTreeMap<String, Reported>,
) -> BTreeSet<(&'a str, &'a str)> {
    let mut of: BTreeMap<&str, Vec<(Timestamp, &str)>> = BTreeMap::new();
    for (name, record) in records {
        for (agent, latest) in &record.agents {
            of.entry(agent).or_default().push((latest.at, name));
        }
    }
    let mut excess = BTreeSet::new();
    for (agent, verdicts) in of.into_iter().filter(|(_, verdicts)| verdicts.len() > MAX_VERDICTS_OF_AGENT) {
        let in_use: BTreeSet<String> = inventories.get(agent).into_iter().flat_map(digests).collect();
        let mut sorted: Vec<_> =
            verdicts.into_iter().map(|(at, name)| (in_use.contains(name), at, name)).collect();
        sorted.sort_unstable();
        let count = sorted.len() - MAX_VERDICTS_OF_AGENT;
        excess.extend(sorted.into_iter().take(count).map(|(_, _, name)| (agent, name)));
    }
    excess
}

/// Returns the names of the values with the verdicts on digests that a machine runs, may run or has blocked.
pub(super) fn digests(reported: &Reported) -> impl Iterator<Item = String> + '_ {
    reported.inventory.images.iter().flat_map(|image| {
        let named = [&image.digest, &image.available, &image.blocked].into_iter().flatten();
        named.map(|digest| super::verdict::name(repository(&image.image), digest))
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::Inventory;

    use super::*;
    use crate::fleet::lease::{self, Holder};
    use crate::fleet::testing::{at, entry};
    use crate::fleet::verdict::{name, verdict};
    use crate::fleet::view::View;
    use crate::fleet::{inventory, state::bytes};

    const DAY: i64 = 86_400;
    const KEEP: SignedDuration = SignedDuration::from_hours(90 * 24);

    fn record(digest: &str, event: &str, seconds: i64) -> (String, Vec<u8>) {
        let mut record =
            DigestRecord { repository: "r/web".into(), digest: digest.into(), ..DigestRecord::default() };
        let entry = entry("a", event, "r/web", digest);
        record.record(&entry, verdict(&entry).unwrap().2, 1, (at(seconds), at(seconds)));
        (name("r/web", digest), bytes(&record))
    }

    fn report(agent: &str, digest: &str, seconds: i64) -> (String, Vec<u8>) {
        let image = format!(r#"{{"service":"web","image":"r/web:1","digest":"x","blocked":"{digest}"}}"#);
        let images = vec![serde_json::from_str(&image).unwrap()];
        (inventory::name(agent), bytes(&Reported::new(None, Inventory { ring: 0, images }, at(seconds))))
    }

    fn leases(repository: &str, seconds: i64) -> (String, Vec<u8>) {
        let record = DigestRecord { digest: "d".into(), ..DigestRecord::default() };
        let holder = Holder { agent: "a", service: "web", progress: None, probation: 0, proof_after: 0 };
        let leases = Leases::default().with(&holder, &record, at(seconds));
        (lease::name(repository), bytes(&leases))
    }

    fn view(values: impl IntoIterator<Item = (String, Vec<u8>)>) -> View {
        let mut view = View::default();
        for (revision, (name, value)) in (1..).zip(values) {
            view.apply(&name, revision, &value);
        }
        view
    }

    fn outdated(view: &View, seconds: i64) -> Vec<(String, bool)> {
        let found = view.outdated(&["a".to_owned()], KEEP, at(seconds));
        found.into_iter().map(|outdated| (outdated.name, outdated.is_marked)).collect()
    }

    #[test]
    fn old_values_are_removed_and_digests_that_a_machine_reports_stay() {
        let view = view([
            record("old", "updated", 0),
            record("blocked", "rolled_back", 0),
            record("young", "updated", DAY),
            report("a", "blocked", 80 * DAY),
            report("stranger", "old", 80 * DAY),
            report("gone", "old", 2 * DAY),
            leases("r/web", 0),
            leases("r/db", 90 * DAY),
        ]);
        let now = 90 * DAY + 1;
        let go = |name: &str| (name.to_owned(), false);
        assert_eq!(outdated(&view, DAY), []);
        assert_eq!(outdated(&view, 9 * DAY + 1), [go("inventory/gone"), go("leases/r/web")]);
        let expected = ["inventory/gone", "inventory/stranger", "leases/r/web", "verdicts/r/web@old"].map(go);
        assert_eq!(outdated(&view, now), expected, "the other machine is no longer configured");
    }

    #[test]
    fn a_decision_based_on_a_verdict_is_removed_with_it() {
        let view = view([record("bad", "rolled_back", 0)]);
        let found = view.outdated(&[], KEEP, at(91 * DAY));
        assert_eq!(found[0].decision.as_ref().map(|failed| failed.digest.as_str()), Some("bad"));
        assert_eq!(found[0].revision, 1);
    }

    #[test]
    fn the_oldest_values_beyond_the_limits_are_removed() {
        let number = |n: i64| format!("{n:05}");
        let of = |most: usize| i64::try_from(most).unwrap();
        let (records, unconfigured) = (of(MAX_RECORDS) + 2, of(MAX_UNCONFIGURED) + 1);
        let records = (0..records).map(|n| record(&number(n), "updated", n));
        let view = view(records.chain((0..unconfigured).map(|n| report(&number(n), "d", n))));
        let names: Vec<String> = outdated(&view, DAY).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["inventory/00000", "verdicts/r/web@00000", "verdicts/r/web@00001"]);
    }

    #[test]
    fn a_mark_stays_for_a_day_and_a_later_value_replaces_it() {
        let (name, value) = record("d", "rolled_back", 0);
        let mut view = view([(name.clone(), value.clone()), (name.clone(), mark(at(5)))]);
        assert_eq!(view.record("r/web", "d"), None);
        assert_eq!(outdated(&view, DAY), []);
        assert_eq!(outdated(&view, DAY + 6), [(name.clone(), true)]);
        view.apply(&name, 9, &value);
        assert!(view.record("r/web", "d").is_some());
        assert_eq!(outdated(&view, DAY + 6), []);
        // Earlier versions of the program do not parse a mark as a value.
        assert!(state_of(&mark(at(0))).is_none());
    }

    fn state_of(value: &[u8]) -> Option<DigestRecord> {
        crate::fleet::state::parse(value)
    }
}
