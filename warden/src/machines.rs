//! What the warden knows of each agent: whether it is there, what came from it, what is missing. Pure; time comes in
//! as a value.

use std::collections::{BTreeSet, HashMap, VecDeque};

use evenkeel_common::wire::{FleetEntry, Kind, Level, LevelCounts, MachineRecord};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::PROGRAM;
use crate::entry;
use crate::seen::Seen;

/// An entry with an old number that is so much younger than all before it was not sent again: its agent counts anew.
const YOUNGER: SignedDuration = SignedDuration::from_secs(1);

/// How many of the last entries of an agent are remembered by what they say.
const RECENT: usize = 8;

/// All agents, in the order of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machines {
    all: Vec<Machine>,
    /// By id.
    places: HashMap<String, usize>,
    /// Of whom something has changed since it was last asked.
    changed: BTreeSet<usize>,
}

/// One agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    id: String,
    online: Option<bool>,
    since: Option<Timestamp>,
    reason: Option<String>,
    last_entry: Option<Timestamp>,
    seen: Seen,
    /// Time of its youngest entry; one that is dated in the future counts as of its arrival, or no later one would be
    /// younger.
    youngest: Option<Timestamp>,
    /// Numbers of its last entries, and a digest of each.
    #[serde(default)]
    recent: VecDeque<(u64, u64)>,
    counts: LevelCounts,
    repeats: u64,
}

impl Machine {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether its last heartbeat was answered.
    pub fn online(&self) -> Option<bool> {
        self.online
    }

    /// How many entries came more than once.
    pub fn repeats(&self) -> u64 {
        self.repeats
    }

    /// How many entries of each level came.
    pub fn counts(&self) -> LevelCounts {
        self.counts
    }

    /// How many entries were skipped and have not come.
    pub fn missing(&self) -> u64 {
        self.seen.missing()
    }

    /// Whether an entry did not come before. The same number with the same words is a repeat, and with others the agent
    /// counts anew, whatever the clocks say; of an older number only the times tell.
    fn is_new(&mut self, entry: &FleetEntry) -> bool {
        let Some(number) = entry.seq else { return true };
        let digest = digest(entry);
        let known = self.recent.iter().find(|(recent, _)| *recent == number).map(|(_, digest)| *digest);
        let counts_anew = match known {
            Some(known) => known != digest,
            None => {
                self.seen.is_far(number)
                    || self.seen.last().is_some_and(|last| number <= last)
                        && self
                            .youngest
                            .is_some_and(|youngest| entry.timestamp.duration_since(youngest) > YOUNGER)
            }
        };
        if counts_anew {
            self.seen = Seen::default();
            self.recent.clear();
        }
        let is_new = self.seen.insert(number);
        if is_new {
            self.recent.push_back((number, digest));
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
        }
        is_new
    }
}

/// What tells two entries with one number apart.
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

impl Machines {
    /// Agents of these ids, with what an earlier life knew of them. Agents that are no longer configured are
    /// forgotten.
    pub fn new(ids: impl IntoIterator<Item = String>, known: &[Machine]) -> Self {
        let by_id: HashMap<&str, &Machine> =
            known.iter().map(|machine| (machine.id.as_str(), machine)).collect();
        let remember = |id: String| {
            let known = by_id.get(id.as_str()).map(|machine| (*machine).clone());
            known.unwrap_or_else(|| Machine { id, ..Machine::default() })
        };
        let machines: Vec<Machine> = ids.into_iter().map(remember).collect();
        let places =
            machines.iter().enumerate().map(|(place, machine)| (machine.id.clone(), place)).collect();
        let changed = (0..machines.len()).collect();
        Self { all: machines, places, changed }
    }

    /// Those of whom something has changed since the last call.
    pub fn take_changed(&mut self) -> Vec<Machine> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().filter_map(|place| self.all.get(place).cloned()).collect()
    }

    /// All, in the order of the configuration.
    pub fn all(&self) -> &[Machine] {
        &self.all
    }

    /// The one of this id.
    pub fn of(&self, id: &str) -> Option<&Machine> {
        self.all.get(*self.places.get(id)?)
    }

    /// The one of this id, to be changed.
    fn of_mut(&mut self, id: &str) -> Option<&mut Machine> {
        let place = *self.places.get(id)?;
        self.changed.insert(place);
        self.all.get_mut(place)
    }

    /// Counts an entry of its agent; `false` when it came before and must not be stored again, or its agent is no
    /// longer configured.
    pub fn arrived(&mut self, entry: &FleetEntry, now: Timestamp) -> bool {
        let Some(machine) = self.of_mut(&entry.agent) else { return false };
        if !machine.is_new(entry) {
            machine.repeats = machine.repeats.saturating_add(1);
            return false;
        }
        machine.youngest = machine.youngest.max(Some(entry.timestamp.min(now)));
        machine.last_entry = Some(now);
        machine.counts.add(&entry.level);
        true
    }

    /// Notes a heartbeat; the entry to store when it changes what is known (spec 3.3). The first success of an agent
    /// is as expected and says nothing, the first failure does.
    pub fn heard(&mut self, id: &str, outcome: Result<(), String>, now: Timestamp) -> Option<FleetEntry> {
        let was = self.of(id)?.online;
        if was == Some(outcome.is_ok()) {
            return None;
        }
        let machine = self.of_mut(id)?;
        machine.online = Some(outcome.is_ok());
        let before = machine.since.replace(now);
        machine.reason = outcome.err();
        let (event, level, message) = match (&machine.reason, before) {
            (Some(_), _) => (Kind::AGENT_OFFLINE, Level::Warning, format!("{} does not answer", machine.id)),
            (None, _) if was.is_none() => return None,
            (None, before) => {
                let away = before.map(|before| entry::in_words(now.duration_since(before)));
                let away = away.map(|away| format!(" after {away}")).unwrap_or_default();
                (Kind::AGENT_ONLINE, Level::Info, format!("{} answers again{away}", machine.id))
            }
        };
        Some(FleetEntry {
            timestamp: now,
            machine: machine.id.clone(),
            service: PROGRAM.to_owned(),
            event: event.as_str().to_owned(),
            message,
            level: level.as_str().to_owned(),
            old_digest: None,
            new_digest: None,
            container: None,
            reason: machine.reason.clone(),
            output: None,
            seq: None,
            agent: machine.id.clone(),
        })
    }

    /// `GET /machines`
    pub fn records(&self) -> Vec<MachineRecord> {
        let record = |machine: &Machine| MachineRecord {
            id: machine.id.clone(),
            online: machine.online,
            since: machine.since,
            reason: machine.reason.clone(),
            last_entry: machine.last_entry,
            last_seq: machine.seen.last(),
            missing: machine.missing(),
            counts_by_level: machine.counts,
        };
        self.all.iter().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn entry(agent: &str, seq: Option<u64>, second: i64) -> FleetEntry {
        let text = format!(
            r#"{{"timestamp":"{}","service":"web","event":"updated","message":"m","level":"info"}}"#,
            at(second)
        );
        FleetEntry { seq, agent: agent.to_owned(), ..serde_json::from_str(&text).unwrap() }
    }

    fn two() -> Machines {
        Machines::new(["a".to_owned(), "b".to_owned()], &[])
    }

    #[test]
    fn an_entry_that_is_sent_again_counts_once() {
        let mut machines = two();
        assert!(machines.arrived(&entry("a", Some(1), 1), at(1)));
        assert!(!machines.arrived(&entry("a", Some(1), 1), at(2)));
        assert!(machines.arrived(&entry("b", Some(1), 1), at(2)), "each agent counts for itself");
        let a = &machines.records()[0];
        assert_eq!((a.counts_by_level.info, a.last_entry, a.last_seq), (1, Some(at(1)), Some(1)));
        assert_eq!(machines.all()[0].repeats(), 1);
    }

    #[test]
    fn entries_without_a_number_are_all_new() {
        let mut machines = two();
        for _ in 0..3 {
            assert!(machines.arrived(&entry("a", None, 1), at(1)));
        }
        assert_eq!(machines.records()[0].counts_by_level.total(), 3);
        assert_eq!(machines.records()[0].last_seq, None);
    }

    #[test]
    fn gaps_are_shown_and_closed_by_late_entries() {
        let mut machines = two();
        for seq in [10, 14] {
            machines.arrived(&entry("a", Some(seq), 1), at(1));
        }
        assert_eq!(machines.records()[0].missing, 3);
        for seq in [12, 11, 13] {
            assert!(machines.arrived(&entry("a", Some(seq), 1), at(2)));
        }
        assert_eq!(machines.records()[0].missing, 0);
    }

    #[test]
    fn an_agent_that_counts_anew_loses_nothing() {
        let mut machines = two();
        for seq in 1..=100 {
            machines.arrived(&entry("a", Some(seq), 100), at(100));
        }
        // Its state was wiped: it begins at 1 again, with younger entries.
        for seq in 1..=3 {
            assert!(machines.arrived(&entry("a", Some(seq), 200 + i64::try_from(seq).unwrap()), at(210)));
        }
        assert!(!machines.arrived(&entry("a", Some(2), 202), at(211)), "and a repeat is still one");
        let record = &machines.records()[0];
        assert_eq!((record.last_seq, record.missing, record.counts_by_level.info), (Some(3), 0, 103));
        // A number that is far off is another count too, not a gap of millions.
        assert!(machines.arrived(&entry("a", Some(1 << 50), 220), at(220)));
        assert_eq!(machines.records()[0].missing, 0);
        assert!(machines.arrived(&entry("a", Some(1), 220), at(220)));
        assert_eq!(machines.records()[0].last_seq, Some(1));
    }

    #[test]
    fn an_entry_that_is_dated_in_the_future_makes_no_later_one_vanish() {
        let mut machines = two();
        for seq in 1..=20 {
            machines.arrived(&entry("a", Some(seq), 100), at(100));
        }
        // A clock that stood in the year 2033 for a moment.
        assert!(machines.arrived(&entry("a", Some(21), 315_000_000), at(101)));
        assert!(!machines.arrived(&entry("a", Some(21), 315_000_000), at(102)), "sent again it is a repeat");
        assert!(machines.arrived(&entry("a", Some(22), 103), at(103)));
        // Its state is wiped, and its clock is right again.
        for seq in 1..=3 {
            assert!(machines.arrived(&entry("a", Some(seq), 200), at(200)), "{seq}");
        }
        assert_eq!(machines.records()[0].last_seq, Some(3));
        // The same number with other words is another entry even within the same second.
        let mut other = entry("a", Some(3), 200);
        other.message = "another".to_owned();
        assert!(machines.arrived(&other, at(200)));
        assert!(!machines.arrived(&other, at(200)));
    }

    #[test]
    fn an_agent_whose_clock_is_ahead_is_stored_once() {
        let mut machines = two();
        for seq in 1..=20 {
            assert!(machines.arrived(&entry("a", Some(seq), 3600), at(0)));
            assert!(!machines.arrived(&entry("a", Some(seq), 3600), at(1)));
        }
    }

    #[test]
    fn only_changes_of_a_heartbeat_are_entries() {
        let mut machines = two();
        let dead = || Err("connection refused".to_owned());
        assert_eq!(machines.heard("a", Ok(()), at(0)), None, "as expected");
        assert_eq!(machines.heard("a", Ok(()), at(30)), None);
        let offline = machines.heard("a", dead(), at(60)).unwrap();
        assert_eq!(
            serde_json::to_string(&offline).unwrap(),
            r#"{"timestamp":"2023-11-14T22:14:20Z","machine":"a","service":"warden","event":"agent_offline","message":"a does not answer","level":"warning","reason":"connection refused","agent":"a"}"#
        );
        assert_eq!(machines.heard("a", dead(), at(90)), None);
        let online = machines.heard("a", Ok(()), at(120)).unwrap();
        assert_eq!((online.event.as_str(), online.level.as_str()), ("agent_online", "info"));
        assert_eq!(online.message, "a answers again after 1 min");
        assert_eq!(machines.heard("b", dead(), at(0)).unwrap().event, "agent_offline", "dead from the start");
        assert_eq!(machines.heard("z", Ok(()), at(0)), None);
        let records = machines.records();
        assert_eq!((records[0].online, records[0].since), (Some(true), Some(at(120))));
        assert_eq!(records[1].reason.as_deref(), Some("connection refused"));
    }

    #[test]
    fn the_next_life_knows_what_this_one_knew() {
        let mut machines = two();
        machines.arrived(&entry("b", Some(5), 1), at(1));
        machines.heard("b", Err("gone".into()), at(2));
        let text = serde_json::to_string(machines.all()).unwrap();
        let ids = ["c".to_owned(), "b".to_owned()];
        let mut next = Machines::new(ids, &serde_json::from_str::<Vec<Machine>>(&text).unwrap());
        assert_eq!(next.records()[1], machines.records()[1]);
        assert!(!next.arrived(&entry("b", Some(5), 1), at(3)));
        assert_eq!(next.heard("b", Err("gone".into()), at(3)), None, "it was offline before");
        assert_eq!(next.all()[0].id(), "c");
    }
}
