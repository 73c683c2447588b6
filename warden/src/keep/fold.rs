//! What a batch of changes does, by value: the one function that every store runs inside its transaction.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::{FleetEntry, Kind};
use jiff::Timestamp;

use super::{Change, Outcome, Verdict};
use crate::fleet::Machine;

/// What is to be written.
#[derive(Debug, Default)]
pub struct Folded {
    /// Entries to store; the first one gets the next id.
    pub entries: Vec<FleetEntry>,
    /// Machines as they are after the batch.
    pub machines: Vec<Machine>,
    /// One for each change; ids count from the next id.
    pub outcomes: Vec<Outcome>,
}

/// The agents that a batch is about: their machines are what [`fold`] needs.
pub(super) fn agents(changes: &[Change]) -> BTreeSet<String> {
    changes
        .iter()
        .map(|change| match change {
            Change::Entry(entry) => entry.agent.clone(),
            Change::Heartbeat { agent, .. } => agent.clone(),
        })
        .collect()
}

/// Applies the changes to the machines in order.
pub fn fold(
    changes: Vec<Change>,
    mut machines: BTreeMap<String, Machine>,
    next_id: u64,
    now: Timestamp,
) -> Folded {
    let mut folded = Folded::default();
    let mut changed = BTreeSet::new();
    for change in changes {
        let agent = match &change {
            Change::Entry(entry) => entry.agent.clone(),
            Change::Heartbeat { agent, .. } => agent.clone(),
        };
        let machine = machines.entry(agent.clone()).or_insert_with(|| Machine::new(agent.clone()));
        let entry = match change {
            Change::Entry(entry) => {
                // A duplicate is counted.
                changed.insert(agent);
                machine.record_entry(&entry, now).then_some(*entry)
            }
            // One that changes nothing is not worth a write.
            Change::Heartbeat { outcome, .. } if machine.online() == Some(outcome.is_ok()) => None,
            Change::Heartbeat { outcome, .. } => {
                changed.insert(agent);
                machine.record_heartbeat(outcome, now)
            }
        };
        folded.outcomes.push(match entry {
            Some(entry) => {
                folded.entries.push(entry);
                Outcome::Stored(next_id + folded.entries.len() as u64 - 1)
            }
            None => Outcome::Unchanged,
        });
    }
    folded.machines = machines.into_iter().filter(|(id, _)| changed.contains(id)).map(|(_, m)| m).collect();
    folded
}

/// What an entry says about a digest: the image and the digest it is about, and the verdict. Errors, stops and probations
/// that were broken off say nothing.
pub(super) fn verdict(entry: &FleetEntry) -> Option<(&str, &str, Verdict)> {
    let verdict = match entry.event.as_str() {
        kind if kind == Kind::UPDATED.as_str() => Verdict::Proven,
        kind if kind == Kind::ROLLED_BACK.as_str() || kind == Kind::ROLLBACK_FAILED.as_str() => {
            Verdict::Failed
        }
        _ => return None,
    };
    Some((super::repository(entry.image.as_deref()?), entry.new_digest.as_deref()?, verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(event: &str, image: Option<&str>) -> FleetEntry {
        let text =
            r#"{"timestamp":"2026-01-02T03:04:05Z","service":"web","event":"","message":"m","level":"info"}"#;
        FleetEntry {
            event: event.to_owned(),
            image: image.map(str::to_owned),
            new_digest: Some("sha256:b".to_owned()),
            agent: "a".to_owned(),
            ..serde_json::from_str(text).unwrap()
        }
    }

    #[test]
    fn only_the_end_of_a_deployment_is_a_verdict() {
        for (event, image, expected) in [
            ("updated", Some("r:5000/web:1"), Some(("r:5000/web", "sha256:b", Verdict::Proven))),
            ("rolled_back", Some("web"), Some(("web", "sha256:b", Verdict::Failed))),
            ("rollback_failed", Some("web"), Some(("web", "sha256:b", Verdict::Failed))),
            ("updated", None, None),
            ("error", Some("web"), None),
            ("resumed", Some("web"), None),
            ("force_redeploy", Some("web"), None),
        ] {
            assert_eq!(verdict(&entry(event, image)), expected, "{event} {image:?}");
        }
    }

    #[test]
    fn a_batch_counts_ids_from_the_next_one_and_touches_only_what_it_changes() {
        let at = "2026-01-02T03:04:05Z".parse().unwrap();
        let beat = |agent: &str, outcome| Change::Heartbeat { agent: agent.to_owned(), outcome };
        let batch = vec![
            beat("a", Ok(())),
            Change::Entry(Box::new(FleetEntry { seq: Some(1), ..entry("updated", None) })),
            Change::Entry(Box::new(FleetEntry { seq: Some(1), ..entry("updated", None) })),
            beat("b", Err("gone".to_owned())),
            beat("b", Err("gone".to_owned())),
        ];
        assert_eq!(agents(&batch).into_iter().collect::<Vec<_>>(), ["a", "b"]);
        let folded = fold(batch, BTreeMap::from([("c".to_owned(), Machine::new("c".to_owned()))]), 7, at);
        let (none, stored) = (Outcome::Unchanged, Outcome::Stored);
        assert_eq!(folded.outcomes, [none, stored(7), none, stored(8), none]);
        let ids: Vec<_> = folded.machines.iter().map(Machine::id).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(folded.entries[1].event, "agent_offline");
    }
}
