//! The warden's state of one agent: whether it is online, which entries have arrived and which are missing. Pure; time is an
//! argument.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_common::wire::{FleetEntry, Kind, Level, LevelCounts, MachineRecord};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::entry;
use super::sequence::{MAX_RANGES, SequenceSet};

/// An entry with an old sequence number whose timestamp is this much newer than all others is not a duplicate: its agent
/// has restarted its numbering.
const RESTART_MARGIN: SignedDuration = SignedDuration::from_secs(1);
/// How many named epochs are remembered. An agent starts a new epoch when its state is lost.
const EPOCHS: usize = 8;
/// How many ranges of numbers are kept of each epoch but the latest: a machine is written whole for each of its entries.
const EARLIER_RANGES: usize = 32;
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
    /// The latest entries of these epochs, by the epoch's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    latest: BTreeMap<String, Latest>,
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

/// The latest entries of a named epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Latest {
    /// The greatest timestamp of its entries, even if it is in the future: an agent whose clock is ahead sends its entries
    /// again with the same timestamps.
    newest: Timestamp,
    /// Sequence numbers of its last entries, with a digest of each.
    digests: VecDeque<(u64, u64)>,
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
        let has_restarted = if let Some(known) = digest_of(&self.digests, number) {
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
            remember(&mut self.digests, number, digest);
        }
        is_new
    }
}

impl Machine {
    /// The same for a named epoch. Its numbers repeat with other entries if the agent's state was restored from a backup, or
    /// the machine was cloned.
    fn is_new_in(&mut self, epoch: &str, number: u64, entry: &FleetEntry) -> bool {
        let digest = digest(entry);
        let known = self.epochs.iter().position(|(name, _)| name == epoch);
        let at = known.unwrap_or_else(|| self.begin_epoch(epoch, number, digest));
        let ranges = if at + 1 == self.epochs.len() { MAX_RANGES } else { EARLIER_RANGES };
        let sequence = &mut self.epochs[at].1;
        let Some(latest) = self.latest.get_mut(epoch) else {
            // Earlier versions do not store the latest entries, so the newest one may be any of the agent's.
            let newest = entry.timestamp.max(self.newest.unwrap_or(entry.timestamp));
            let digests = VecDeque::from([(number, digest)]);
            self.latest.insert(epoch.to_owned(), Latest { newest, digests });
            let is_new = sequence.insert(number);
            sequence.limit(ranges);
            return is_new;
        };
        if latest.digests.contains(&(number, digest)) {
            return false;
        }
        let is_newer = || entry.timestamp.duration_since(latest.newest) > RESTART_MARGIN;
        if digest_of(&latest.digests, number).is_some() || sequence.contains(number) && is_newer() {
            *sequence = SequenceSet::default();
            // Both machines of a clone may send their last entries again.
            latest.digests.retain(|(known, _)| *known <= number);
        }
        let is_new = sequence.insert(number);
        sequence.limit(ranges);
        if is_new {
            latest.newest = latest.newest.max(entry.timestamp);
            remember(&mut latest.digests, number, digest);
        }
        is_new
    }

    /// Adds an epoch, and returns its place. The oldest epoch is forgotten if there are too many.
    fn begin_epoch(&mut self, epoch: &str, number: u64, digest: u64) -> usize {
        let mut sequence = SequenceSet::default();
        // An agent that was upgraded to send epochs continues its numbering.
        let goes_on = self.sequence.last().is_some_and(|last| number > last) && !self.sequence.is_far(number);
        let is_repeat = self.digests.contains(&(number, digest));
        if self.epochs.is_empty() && (goes_on || is_repeat) {
            sequence = std::mem::take(&mut self.sequence);
            self.digests.clear();
        }
        if self.epochs.len() == EPOCHS
            && let Some((oldest, _)) = self.epochs.pop_front()
        {
            self.latest.remove(&oldest);
        }
        self.epochs.iter_mut().for_each(|(_, earlier)| earlier.limit(EARLIER_RANGES));
        self.epochs.push_back((epoch.to_owned(), sequence));
        self.epochs.len() - 1
    }
}

/// Returns the digest of the entry with this number, if it is among the last ones.
fn digest_of(digests: &VecDeque<(u64, u64)>, number: u64) -> Option<u64> {
    digests.iter().find(|(known, _)| *known == number).map(|(_, digest)| *digest)
}

/// Adds the digest of a new entry, and forgets the oldest one.
fn remember(digests: &mut VecDeque<(u64, u64)>, number: u64, digest: u64) {
    digests.push_back((number, digest));
    if digests.len() > DIGESTS {
        digests.pop_front();
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
