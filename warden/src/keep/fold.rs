//! Applies a batch of changes to pure values. Every store runs this function inside its transaction.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::FleetEntry;
use jiff::Timestamp;

use super::{Change, Outcome};
use crate::fleet::Machine;
use crate::fleet::state::{self, FleetState};

/// The changes to write.
#[derive(Debug, Default)]
pub struct Folded {
    /// Entries to store; the first one gets the next id.
    pub entries: Vec<FleetEntry>,
    /// Changed machines, in their new state.
    pub machines: Vec<Machine>,
    /// Changed values, in their new state, by name.
    pub values: Vec<(String, Vec<u8>)>,
    /// One for each change; ids start at the next id.
    pub outcomes: Vec<Outcome>,
}

/// The existing state that [`fold`] needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Agents whose machines may change.
    pub agents: BTreeSet<String>,
    /// Names of the values that may change. Most batches change none.
    pub values: BTreeSet<String>,
}

/// Returns the state that a batch needs.
pub fn needs(changes: &[Change]) -> Needs {
    let mut needs = Needs::default();
    for change in changes {
        match change {
            Change::Entry(entry) => {
                needs.agents.insert(entry.agent.clone());
                needs.values.extend(state::values_of_entry(entry));
            }
            Change::Heartbeat { agent, .. } => drop(needs.agents.insert(agent.clone())),
            Change::Decision(decision) => needs.values.extend(state::values_of_decision(decision)),
            Change::Fuse(_) => needs.values.extend(state::values_of_fuse()),
        }
    }
    needs
}

/// Applies the changes in order. `machines` and `values` are the existing ones among those that [`needs`] returned.
pub fn fold(
    changes: Vec<Change>,
    mut machines: BTreeMap<String, Machine>,
    values: BTreeMap<String, Vec<u8>>,
    next_id: u64,
    now: Timestamp,
) -> Folded {
    let mut folded = Folded::default();
    let mut fleet = FleetState::new(values);
    let mut changed = BTreeSet::new();
    for change in changes {
        let id = next_id + folded.entries.len() as u64;
        let entry = match change {
            Change::Entry(entry) => {
                let is_new = machine_of(&mut machines, &entry.agent).record_entry(&entry, now);
                // A duplicate is counted, too.
                changed.insert(entry.agent.clone());
                is_new.then(|| {
                    fleet.record(&entry, id, now);
                    *entry
                })
            }
            Change::Heartbeat { agent, outcome } => {
                let machine = machine_of(&mut machines, &agent);
                // A heartbeat without a transition is not written.
                if machine.online() == Some(outcome.is_ok()) {
                    None
                } else {
                    changed.insert(agent);
                    machine.record_heartbeat(outcome, now)
                }
            }
            Change::Decision(decision) => fleet.decide(decision, id, now),
            Change::Fuse(rule) => fleet.check_fuse(rule, id, now),
        };
        folded.outcomes.push(match entry {
            Some(entry) => {
                folded.entries.push(entry);
                Outcome::Stored(id)
            }
            None => Outcome::Unchanged,
        });
    }
    folded.machines = machines.into_iter().filter(|(id, _)| changed.contains(id)).map(|(_, m)| m).collect();
    folded.values = fleet.changed();
    folded
}

fn machine_of<'a>(machines: &'a mut BTreeMap<String, Machine>, agent: &str) -> &'a mut Machine {
    machines.entry(agent.to_owned()).or_insert_with(|| Machine::new(agent.to_owned()))
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
    fn ids_start_at_the_next_one_and_only_changed_machines_are_written() {
        let at = "2026-01-02T03:04:05Z".parse().unwrap();
        let beat = |agent: &str, outcome| Change::Heartbeat { agent: agent.to_owned(), outcome };
        let batch = vec![
            beat("a", Ok(())),
            Change::Entry(Box::new(FleetEntry { seq: Some(1), ..entry("updated", None) })),
            Change::Entry(Box::new(FleetEntry { seq: Some(1), ..entry("updated", None) })),
            beat("b", Err("gone".to_owned())),
            beat("b", Err("gone".to_owned())),
        ];
        let needs = needs(&batch);
        assert_eq!(needs.agents.into_iter().collect::<Vec<_>>(), ["a", "b"]);
        assert!(needs.values.is_empty(), "an entry without an image is no verdict");
        let folded = fold(
            batch,
            BTreeMap::from([("c".to_owned(), Machine::new("c".to_owned()))]),
            BTreeMap::new(),
            7,
            at,
        );
        let (none, stored) = (Outcome::Unchanged, Outcome::Stored);
        assert_eq!(folded.outcomes, [none, stored(7), none, stored(8), none]);
        let ids: Vec<_> = folded.machines.iter().map(Machine::id).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(folded.entries[1].event, "agent_offline");
    }
}
