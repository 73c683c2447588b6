//! What runs on a machine, as it reports (DECISIONS 8, *skew map*).

use std::collections::BTreeMap;

use evenkeel_common::wire::{Inventory, InventoryImage};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::repository;

/// A report that says the same as the one before is stored again after this time only.
const REFRESH: SignedDuration = SignedDuration::from_mins(10);
/// What runs and is not said to be proven counts as proven when the machine reports it after this time still: it may be on
/// probation.
const UNPROVEN: SignedDuration = SignedDuration::from_hours(1);

/// The latest report of one machine: a value of the store, see [`name`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// When it came.
    pub at: Timestamp,
    /// What it says.
    pub inventory: Inventory,
    /// Since when a digest runs, by `repository@digest`.
    #[serde(default)]
    pub running: BTreeMap<String, Timestamp>,
    /// Since when the machine has known that a tag names a digest, by `reference@digest` and by the warden's clock.
    #[serde(default)]
    pub found: BTreeMap<String, Timestamp>,
}

/// Name of the value that holds an agent's report.
pub fn name(agent: &str) -> String {
    format!("{PREFIX}{agent}")
}

/// What these names begin with.
pub const PREFIX: &str = "inventory/";

impl Reported {
    /// The report that follows `before`.
    pub fn new(before: Option<&Self>, inventory: Inventory, now: Timestamp) -> Self {
        let mut running = BTreeMap::new();
        for image in &inventory.images {
            let Some(digest) = &image.digest else { continue };
            let key = format!("{}@{digest}", repository(&image.image));
            let known = before.and_then(|before| before.running.get(&key).copied());
            let since = known.unwrap_or(now).min(image.proven_at.unwrap_or(now)).min(now);
            running
                .entry(key)
                .and_modify(|other: &mut Timestamp| *other = since.min(*other))
                .or_insert(since);
        }
        let found = found(before, &inventory, now);
        Self { at: now, inventory, running, found }
    }

    /// Whether storing this after `before` would tell nothing new.
    pub fn repeats(&self, before: &Self) -> bool {
        self.inventory == before.inventory && self.at.duration_since(before.at).abs() < REFRESH
    }

    /// Its images of a repository.
    pub fn images_of<'a>(&'a self, of: &'a str) -> impl Iterator<Item = &'a InventoryImage> {
        self.inventory.images.iter().filter(move |image| repository(&image.image) == of)
    }

    /// The digests that a tag names as far as the machine knows, and since when.
    pub fn found_of<'a>(&'a self, image: &'a str) -> impl Iterator<Item = (&'a str, Timestamp)> {
        let digest = move |key: &'a str| key.strip_prefix(image)?.strip_prefix('@');
        self.found.range(format!("{image}@")..).map_while(move |(key, since)| Some((digest(key)?, *since)))
    }

    /// Since when the machine runs a digest that has proven itself there.
    pub fn proven_since(&self, of: &str, digest: &str) -> Option<Timestamp> {
        let since = *self.running.get(&format!("{of}@{digest}"))?;
        let runs = self.images_of(of).filter(|image| image.digest.as_deref() == Some(digest));
        if let Some(said) = runs.filter_map(|image| image.proven_at).min() {
            return Some(said.min(self.at));
        }
        // A machine that was cut off in the middle says nothing for it.
        since.checked_add(UNPROVEN).ok().filter(|proven| *proven <= self.at)
    }
}

/// What the tags name: what is available, or else what runs, where it was available or has come since the report before. A
/// digest that leaves the tag and comes back begins anew (DECISIONS 7).
fn found(before: Option<&Reported>, inventory: &Inventory, now: Timestamp) -> BTreeMap<String, Timestamp> {
    let mut found = BTreeMap::new();
    for image in &inventory.images {
        let available = image.available.as_ref().map(|digest| (named(image), digest));
        let runs = || image.digest.as_ref().map(|digest| (image.image.as_str(), digest));
        let Some((reference, digest)) = available.or_else(runs) else { continue };
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

/// The reference that names what is available.
pub fn named(image: &InventoryImage) -> &str {
    image.available_image.as_ref().unwrap_or(&image.image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::at;

    #[test]
    fn what_a_newer_tag_names_is_known_by_that_tag_before_and_after_the_update() {
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
    fn a_digest_is_known_since_a_machine_found_it_behind_its_tag_until_the_tag_names_another() {
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
        assert_eq!(found(&first), [], "since when the tag has named what runs is not known");
        let behind = report(Some(&first), "a", Some("b"), 10);
        assert_eq!(found(&behind), [("b".to_owned(), at(10))]);
        let updated = report(Some(&behind), "b", None, 20);
        assert_eq!(found(&updated), [("b".to_owned(), at(10))]);
        assert_eq!(updated.found_of("r:5000/web").count() + updated.found_of("r:5000/web:10").count(), 0);
        let moved = report(Some(&updated), "b", Some("c"), 30);
        assert_eq!(found(&moved), [("c".to_owned(), at(30))]);
        let back = report(Some(&moved), "b", Some("d"), 40);
        let again = report(Some(&back), "b", Some("c"), 50);
        assert_eq!(found(&again), [("c".to_owned(), at(50))], "it begins anew");
        assert_eq!(found(&report(Some(&first), "e", None, 60)), [("e".to_owned(), at(60))], "it came fast");
        // One that was kept by a warden of before.
        let old = r#"{"at":"2026-01-02T03:04:05Z","inventory":{"ring":0,"images":[]}}"#;
        assert_eq!(serde_json::from_str::<Reported>(old).unwrap().found.len(), 0);
    }
}
