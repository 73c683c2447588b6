//! The images of a machine, as it reports them (DECISIONS 8, *skew map*).

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::{Inventory, InventoryImage};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::repository;

/// A report that equals the previous one is stored again only after this time.
const REFRESH: SignedDuration = SignedDuration::from_mins(10);
/// How long a repository that is no longer reported counts as reported, and how many of these are remembered: a verdict may
/// arrive after the image was removed from the configuration.
const PAST: SignedDuration = SignedDuration::from_hours(24);
const MAX_PAST: usize = 64;
/// A running digest that is not reported as proven may be on probation. It counts as proven if the machine still reports it
/// after this time.
const UNPROVEN: SignedDuration = SignedDuration::from_hours(1);

/// A machine that has not reported for this long is not waited for, and is not part of the figures: it may be switched off.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);

/// Reports whether a report that arrived then still says something about its machine. How old one from the future is, is not
/// known: a warden's clock was wrong.
pub fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).abs() < MAX_AGE
}

/// The latest report of one machine: a value of the store, see [`name`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// When it arrived.
    pub at: Timestamp,
    /// The reported images.
    pub inventory: Inventory,
    /// Since when a digest has been running, by `repository@digest`.
    #[serde(default)]
    pub running: BTreeMap<String, Timestamp>,
    /// When the machine first found that a tag refers to a digest, by `reference@digest` and by the warden's clock.
    #[serde(default)]
    pub found: BTreeMap<String, Timestamp>,
    /// Since when a running digest has been reported as proven, by `repository@digest`.
    #[serde(default)]
    pub proven: BTreeMap<String, Timestamp>,
    /// When a repository that is no longer reported was last reported.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub past: BTreeMap<String, Timestamp>,
}

/// Returns the name of the value that holds an agent's report.
pub fn name(agent: &str) -> String {
    format!("{PREFIX}{agent}")
}

/// Prefix of these names.
pub const PREFIX: &str = "inventory/";

impl Reported {
    /// Creates the report that follows `before`.
    pub fn new(before: Option<&Self>, inventory: Inventory, now: Timestamp) -> Self {
        let (mut running, mut proven) = (BTreeMap::new(), BTreeMap::new());
        for image in &inventory.images {
            let Some(digest) = &image.digest else { continue };
            let key = format!("{}@{digest}", repository(&image.image));
            // The times that an agent reports do not count: they would let it skip a soak.
            let known = |of: fn(&Self) -> &BTreeMap<String, Timestamp>| {
                before.and_then(|before| of(before).get(&key).copied()).unwrap_or(now).min(now)
            };
            let (since, proven_since) = (known(|before| &before.running), known(|before| &before.proven));
            if image.proven_at.is_some() {
                proven.insert(key.clone(), proven_since);
            }
            running.insert(key, since);
        }
        let (found, past) = (found(before, &inventory, now), past(before, &inventory, now));
        Self { at: now, inventory, running, found, proven, past }
    }

    /// Reports whether storing this after `before` would add nothing new.
    pub fn repeats(&self, before: &Self) -> bool {
        self.inventory == before.inventory && self.at.duration_since(before.at).abs() < REFRESH
    }

    /// Returns the repositories of its images, some of them repeatedly.
    pub fn repositories(&self) -> impl Iterator<Item = &str> {
        self.inventory.images.iter().map(|image| repository(&image.image))
    }

    /// Returns its images of a repository.
    pub fn images_of<'a>(&'a self, of: &'a str) -> impl Iterator<Item = &'a InventoryImage> {
        self.inventory.images.iter().filter(move |image| repository(&image.image) == of)
    }

    /// Returns the digests that a tag refers to as far as the machine has found, and since when.
    pub fn found_of<'a>(&'a self, image: &'a str) -> impl Iterator<Item = (&'a str, Timestamp)> {
        let digest = move |key: &'a str| key.strip_prefix(image)?.strip_prefix('@');
        self.found.range(format!("{image}@")..).map_while(move |(key, since)| Some((digest(key)?, *since)))
    }

    /// Returns since when the machine has found that a tag refers to a digest, by the warden's clock.
    pub fn found_since(&self, image: &str, digest: &str) -> Option<Timestamp> {
        self.found.get(&format!("{image}@{digest}")).copied()
    }

    /// Returns the probation that the machine has reported for an image of a service, in seconds; 0 if it has not.
    pub fn probation_of(&self, of: &str, service: &str) -> u32 {
        let mut images = self.images_of(of).filter(|image| image.service == service);
        images.find_map(|image| image.probation).unwrap_or(0)
    }

    /// Reports whether the machine has blocked a digest because it failed there.
    pub fn has_failed(&self, of: &str, digest: &str) -> bool {
        self.images_of(of).any(|image| image.has_failed && image.blocked.as_deref() == Some(digest))
    }

    /// Returns since when the machine has been running a digest, by the warden's clock.
    pub fn running_since(&self, of: &str, digest: &str) -> Option<Timestamp> {
        self.running.get(&format!("{of}@{digest}")).copied()
    }

    /// Returns since when a running digest has been proven on the machine, by the warden's clock.
    pub fn proven_since(&self, of: &str, digest: &str) -> Option<Timestamp> {
        let key = format!("{of}@{digest}");
        let since = *self.running.get(&key)?;
        if let Some(reported) = self.proven.get(&key) {
            return Some(*reported);
        }
        // The time of the report counts, not the current time: the machine may have been disconnected during probation.
        since.checked_add(UNPROVEN).ok().filter(|proven| *proven <= self.at)
    }
}

/// Returns the digests that the tags refer to: the available one, or else the running one if it was available before or is
/// new since the previous report. For a digest that leaves the tag and returns, the time starts again (DECISIONS 7).
fn found(before: Option<&Reported>, inventory: &Inventory, now: Timestamp) -> BTreeMap<String, Timestamp> {
    let mut found = BTreeMap::new();
    for image in &inventory.images {
        let available = image.available.as_ref().map(|digest| (named(image), digest));
        let runs = || image.digest.as_ref().map(|digest| (image.image.as_str(), digest));
        let Some((reference, digest)) = available.or_else(runs) else {
            // Nothing runs: what was found before stays known.
            let known = before.into_iter().flat_map(|before| before.found_of(named(image)));
            found.extend(known.map(|(digest, since)| (format!("{}@{digest}", named(image)), since.min(now))));
            continue;
        };
        let key = format!("{reference}@{digest}");
        let running = format!("{}@{digest}", repository(&image.image));
        let known = before.and_then(|before| before.found.get(&key).copied());
        let is_new = image.available.is_some() || before.is_some_and(|b| !b.running.contains_key(&running));
        if let Some(since) = known.or_else(|| is_new.then_some(now)) {
            found.insert(key, since.min(now));
        }
    }
    found
}

/// Returns the repositories that are no longer reported, and when they were last.
fn past(before: Option<&Reported>, inventory: &Inventory, now: Timestamp) -> BTreeMap<String, Timestamp> {
    let Some(before) = before else { return BTreeMap::new() };
    let reported: BTreeSet<&str> = inventory.images.iter().map(|image| repository(&image.image)).collect();
    let latest = before.inventory.images.iter().map(|image| (repository(&image.image).to_owned(), before.at));
    let mut past: BTreeMap<String, Timestamp> = before.past.clone();
    past.extend(latest);
    past.retain(|name, at| now.duration_since(*at).abs() < PAST && !reported.contains(name.as_str()));
    let mut times: Vec<Timestamp> = past.values().copied().collect();
    times.sort_unstable_by(|one, other| other.cmp(one));
    if let Some(oldest) = times.get(MAX_PAST - 1) {
        past.retain(|_, at| *at >= *oldest);
    }
    past.into_iter().take(MAX_PAST).collect()
}

/// Returns the reference of the available image.
pub fn named(image: &InventoryImage) -> &str {
    image.available_image.as_ref().unwrap_or(&image.image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::at;

    #[test]
    fn the_digest_of_a_newer_tag_is_found_under_that_tag_before_and_after_the_update() {
        let report = |before: Option<&Reported>, tag: &str, runs: &str, available: Option<&str>, seconds| {
            let image = InventoryImage {
                image: format!("r:5000/web:{tag}"),
                available: available.map(str::to_owned),
                available_image: available.map(|_| "r:5000/web:2".to_owned()),
                digest: Some(runs.to_owned()),
                ..serde_json::from_str(r#"{"service":"web","image":""}"#).unwrap()
            };
            Reported::new(before, Inventory { ring: 0, images: vec![image] }, at(seconds))
        };
        let behind = report(None, "1", "a", Some("b"), 10);
        assert_eq!(behind.found_of("r:5000/web:1").count(), 0);
        assert_eq!(behind.found_of("r:5000/web:2").collect::<Vec<_>>(), [("b", at(10))]);
        let updated = report(Some(&behind), "2", "b", None, 20);
        assert_eq!(updated.found_of("r:5000/web:2").collect::<Vec<_>>(), [("b", at(10))]);
    }

    #[test]
    fn a_digest_is_found_from_its_first_report_until_the_tag_refers_to_another() {
        let report = |before: Option<&Reported>, runs: &str, available: Option<&str>, seconds| {
            let image = InventoryImage {
                available: available.map(str::to_owned),
                digest: Some(runs.to_owned()),
                ..serde_json::from_str(r#"{"service":"web","image":"r:5000/web:1"}"#).unwrap()
            };
            Reported::new(before, Inventory { ring: 0, images: vec![image] }, at(seconds))
        };
        let found = |reported: &Reported| -> Vec<(String, Timestamp)> {
            reported.found_of("r:5000/web:1").map(|(digest, at)| (digest.to_owned(), at)).collect()
        };
        let first = report(None, "a", None, 0);
        assert_eq!(found(&first), [], "it is unknown since when the tag refers to the running digest");
        let behind = report(Some(&first), "a", Some("b"), 10);
        assert_eq!(found(&behind), [("b".to_owned(), at(10))]);
        let updated = report(Some(&behind), "b", None, 20);
        assert_eq!(found(&updated), [("b".to_owned(), at(10))]);
        assert_eq!(updated.found_of("r:5000/web").count() + updated.found_of("r:5000/web:10").count(), 0);
        let moved = report(Some(&updated), "b", Some("c"), 30);
        assert_eq!(found(&moved), [("c".to_owned(), at(30))]);
        let back = report(Some(&moved), "b", Some("d"), 40);
        let again = report(Some(&back), "b", Some("c"), 50);
        assert_eq!(found(&again), [("c".to_owned(), at(50))], "the time starts again");
        assert_eq!(
            found(&report(Some(&first), "e", None, 60)),
            [("e".to_owned(), at(60))],
            "it was updated between two reports"
        );
        // A report stored by an earlier version.
        let old = r#"{"at":"2026-01-02T03:04:05Z","inventory":{"ring":0,"images":[]}}"#;
        assert_eq!(serde_json::from_str::<Reported>(old).unwrap().found.len(), 0);
    }
}
