//! Entries and times for tests.

use std::collections::BTreeMap;

use evenkeel_common::wire::{FleetEntry, Inventory, InventoryImage};
use jiff::{SignedDuration, Timestamp};

use super::inventory::{self, Reported};
use super::lease::{self, Holder, Leases};
use super::state::bytes;
use super::verdict::DigestRecord;

/// Returns the time this many seconds after the start of the test.
pub(crate) fn at(seconds: i64) -> Timestamp {
    let begin: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    begin + SignedDuration::from_secs(seconds)
}

/// Creates an entry of an agent about an image.
pub(crate) fn entry(agent: &str, event: &str, image: &str, digest: &str) -> FleetEntry {
    FleetEntry {
        timestamp: at(0),
        machine: agent.to_owned(),
        service: "web".to_owned(),
        event: event.to_owned(),
        message: "m".to_owned(),
        level: "info".to_owned(),
        old_digest: None,
        new_digest: Some(digest.to_owned()),
        container: None,
        reason: Some("it crashed".to_owned()),
        output: Some("exit code 1".to_owned()),
        seq: None,
        epoch: None,
        image: Some(image.to_owned()),
        also_failed: Vec::new(),
        outage_seconds: None,
        agent: agent.to_owned(),
    }
}

/// Creates the values of a store in which these agents have reported these images.
pub(crate) fn reported(agents: &[&str], images: &[&str]) -> BTreeMap<String, Vec<u8>> {
    reported_at(agents, images, at(0))
}

/// Like [`reported`], with the time at which the reports arrived.
pub(crate) fn reported_at(agents: &[&str], images: &[&str], then: Timestamp) -> BTreeMap<String, Vec<u8>> {
    let image = |image: &&str| -> InventoryImage {
        serde_json::from_str(&format!(r#"{{"service":"web","image":"{image}"}}"#)).unwrap()
    };
    let inventory = Inventory { ring: 0, images: images.iter().map(image).collect() };
    let report = Reported::new(None, inventory, then);
    agents.iter().map(|agent| (inventory::name(agent), bytes(&report))).collect()
}

/// Adds that an agent is trying a digest since `seconds`, with this probation.
pub(crate) fn try_digest(
    store: &mut BTreeMap<String, Vec<u8>>,
    (agent, repository, digest): (&str, &str, &str),
    seconds: i64,
    probation: u32,
) {
    let name = lease::name(repository);
    let before: Leases = store.get(&name).and_then(|value| super::state::parse(value)).unwrap_or_default();
    let known = store.get(&super::verdict::name(repository, digest));
    let known: DigestRecord = known.and_then(|value| super::state::parse(value)).unwrap_or_default();
    let record = DigestRecord { repository: repository.to_owned(), digest: digest.to_owned(), ..known };
    let holder = Holder { agent, service: "web", progress: None, probation, proof_after: probation };
    store.insert(name, bytes(&before.with(&holder, &record, at(seconds))));
}
