//! The warden's state of one agent: whether it is online, which entries have arrived and which are missing. Pure; time is an
//! argument.

use std::collections::VecDeque;

use evenkeel_common::wire::{FleetEntry, Kind, Level, LevelCounts, MachineRecord};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::entry;
use super::sequence::SequenceSet;

/// An entry with an old sequence number whose timestamp is this much newer than all others is not a duplicate: its agent
/// has restarted its numbering.
const RESTART_MARGIN: SignedDuration = SignedDuration::from_secs(1);
/// How many named epochs are remembered. An agent starts a new epoch when its state is lost.
const EPOCHS: usize = 8;
/// How many of the last entries have their digest kept.
const DIGESTS: usize = 8;

/// One agent. Some fields keep their old names in the store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    id: String,
    online: Option<bool>,
    since: Option<Timestamp>,
    reason: Option<String>,
    last_entry: Option<Timestamp>,
    #[serde(rename = "seen")]
    sequence: SequenceSet,
    /// The numbers that have arrived in each named epoch, the latest last. `sequence` and `digests` are for entries without
    /// an epoch.
    #[serde(default)]
    epochs: VecDeque<(String, SequenceSet)>,
    /// Timestamp of its newest entry. A timestamp in the future counts as the arrival time; otherwise no later one would be
    /// newer.
    #[serde(rename = "youngest")]
    newest: Option<Timestamp>,
    /// Sequence numbers of its last entries, with a digest of each.
    #[serde(default, rename = "recent")]
    digests: VecDeque<(u64, u64)>,
    counts: LevelCounts,
    /// The machine name in its entries, if it differs from its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(rename = "repeats")]
    duplicates: u64,
}

impl Machine {
    /// Creates an agent without any state.
    pub fn new(id: String) -> Self {
        Self { id, ..Self::default() }
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the machine name in its latest entry, if it differs from its id.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Reports whether its last heartbeat was answered; `None` before the first.
    pub fn online(&self) -> Option<bool> {
        self.online
    }

    /// Returns the number of duplicates that have arrived.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns the number of entries of each level that have arrived.
    pub fn counts(&self) -> LevelCounts {
        self.counts
    }

    /// Returns how many sequence numbers were skipped and have not arrived since.
    pub fn missing(&self) -> u64 {
        self.current().missing()
    }

    /// Returns the machine as `GET /machines` shows it.
    pub fn record(&self) -> MachineRecord {
        MachineRecord {
            id: self.id.clone(),
            online: self.online,
            since: self.since,
            reason: self.reason.clone(),
            last_entry: self.last_entry,
            last_seq: self.current().last(),
            missing: self.missing(),
            counts_by_level: self.counts,
        }
    }

    /// Returns the numbering currently in use.
    fn current(&self) -> &SequenceSet {
        self.epochs.back().map_or(&self.sequence, |(_, sequence)| sequence)
    }

    /// Counts an entry. Returns `false` for a duplicate.
    pub fn record_entry(&mut self, entry: &FleetEntry, now: Timestamp) -> bool {
        if !self.is_new(entry) {
            self.duplicates = self.duplicates.saturating_add(1);
            return false;
        }
        self.newest = self.newest.max(Some(entry.timestamp.min(now)));
        self.last_entry = Some(now);
        self.name = (entry.machine != self.id).then(|| entry.machine.clone());
        self.counts.add(&entry.level);
        true
    }

    /// Records the outcome of a heartbeat. Returns the entry for a transition (spec 3.3). A first success is expected and
    /// creates no entry; a first failure does.
    pub fn record_heartbeat(&mut self, outcome: Result<(), String>, now: Timestamp) -> Option<FleetEntry> {
        let was_online = self.online.replace(outcome.is_ok());
        let since = self.since.replace(now);
        self.reason = outcome.err();
        if self.reason.is_some() {
            let message = format!("{} does not answer", self.id);
            return Some(self.transition(&Kind::AGENT_OFFLINE, Level::Warning, message, now));
        }
        was_online?;
        let downtime = since.map(|since| entry::format_duration(now.duration_since(since)));
        let downtime = downtime.map(|downtime| format!(" after {downtime}")).unwrap_or_default();
        let message = format!("{} answers again{downtime}", self.id);
        Some(self.transition(&Kind::AGENT_ONLINE, Level::Info, message, now))
    }

    fn transition(&self, kind: &Kind, level: Level, message: String, now: Timestamp) -> FleetEntry {
        FleetEntry {
            machine: self.id.clone(),
            reason: self.reason.clone(),
            agent: self.id.clone(),
            ..entry::of_warden(kind, level, message, now)
        }
    }

    /// Reports whether an entry has not arrived before. The same sequence number with the same content is a duplicate. With
    /// other content, the agent has restarted its numbering, whatever the clocks say. For older numbers, only the timestamp
    /// can distinguish the two cases.
    fn is_new(&mut self, entry: &FleetEntry) -> bool {
        let Some(number) = entry.seq else { return true };
        if let Some(epoch) = &entry.epoch {
            return self.is_new_in(epoch, number, entry);
        }
        let digest = digest(entry);
        let known = self.digests.iter().find(|(recent, _)| *recent == number).map(|(_, digest)| *digest);
        let has_restarted = if let Some(known) = known {
            known != digest
        } else {
            let is_old = self.sequence.last().is_some_and(|last| number <= last);
            let is_newer = |newest| entry.timestamp.duration_since(newest) > RESTART_MARGIN;
            self.sequence.is_far(number) || is_old && self.newest.is_some_and(is_newer)
        };
        if has_restarted {
            self.sequence = SequenceSet::default();
            self.digests.clear();
        }
        let is_new = self.sequence.insert(number);
        if is_new {
            self.digests.push_back((number, digest));
            if self.digests.len() > DIGESTS {
                self.digests.pop_front();
            }
        }
        is_new
    }
}

impl Machine {
    /// The same for a named epoch: each number is new once.
    fn is_new_in(&mut self, epoch: &str, number: u64, entry: &FleetEntry) -> bool {
        if let Some((_, sequence)) = self.epochs.iter_mut().find(|(name, _)| name == epoch) {
            return sequence.insert(number);
        }
        let mut sequence = SequenceSet::default();
        // An agent that was upgraded to send epochs continues its numbering.
        let goes_on = self.sequence.last().is_some_and(|last| number > last) && !self.sequence.is_far(number);
        let is_repeat = || self.digests.contains(&(number, digest(entry)));
        if self.epochs.is_empty() && (goes_on || is_repeat()) {
            sequence = std::mem::take(&mut self.sequence);
            self.digests.clear();
        }
        let is_new = sequence.insert(number);
        self.epochs.push_back((epoch.to_owned(), sequence));
        if self.epochs.len() > EPOCHS {
            self.epochs.pop_front();
        }
        is_new
    }
}

/// Hashes the content of an entry, to distinguish entries with the same sequence number.
fn digest(entry: &FleetEntry) -> u64 {
    let mut hash = Sha256::new();
    for part in [&entry.timestamp.to_string(), &entry.service, &entry.event, &entry.message] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
