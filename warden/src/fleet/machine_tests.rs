//! Duplicates, missing entries, and heartbeats that create entries.

use evenkeel_common::wire::MachineRecord;

use super::*;

/// Several machines by id.
struct Machines(Vec<Machine>);

impl Machines {
    fn new<const N: usize>(ids: [String; N], known: &[Machine]) -> Self {
        let restore =
            |id: String| known.iter().find(|m| m.id == id).cloned().unwrap_or_else(|| Machine::new(id));
        Self(ids.into_iter().map(restore).collect())
    }

    fn all(&self) -> &[Machine] {
        &self.0
    }

    fn get_mut(&mut self, id: &str) -> &mut Machine {
        self.0.iter_mut().find(|machine| machine.id == id).unwrap()
    }

    fn record_entry(&mut self, entry: &FleetEntry, now: Timestamp) -> bool {
        self.get_mut(&entry.agent).record_entry(entry, now)
    }

    fn record_heartbeat(
        &mut self,
        id: &str,
        outcome: Result<(), String>,
        now: Timestamp,
    ) -> Option<FleetEntry> {
        let machine = self.get_mut(id);
        if machine.online() == Some(outcome.is_ok()) { None } else { machine.record_heartbeat(outcome, now) }
    }
}

fn records(machines: &Machines) -> Vec<MachineRecord> {
    machines.all().iter().map(Machine::record).collect()
}

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
fn a_resent_entry_counts_once() {
    let mut machines = two();
    assert!(machines.record_entry(&entry("a", Some(1), 1), at(1)));
    assert!(!machines.record_entry(&entry("a", Some(1), 1), at(2)));
    assert!(machines.record_entry(&entry("b", Some(1), 1), at(2)), "each agent counts for itself");
    let a = &records(&machines)[0];
    assert_eq!((a.counts_by_level.info, a.last_entry, a.last_seq), (1, Some(at(1)), Some(1)));
    assert_eq!(machines.all()[0].duplicates(), 1);
}

#[test]
fn entries_without_a_number_are_all_new() {
    let mut machines = two();
    for _ in 0..3 {
        assert!(machines.record_entry(&entry("a", None, 1), at(1)));
    }
    assert_eq!(records(&machines)[0].counts_by_level.total(), 3);
    assert_eq!(records(&machines)[0].last_seq, None);
}

#[test]
fn gaps_are_shown_and_closed_by_late_entries() {
    let mut machines = two();
    for seq in [10, 14] {
        machines.record_entry(&entry("a", Some(seq), 1), at(1));
    }
    assert_eq!(records(&machines)[0].missing, 3);
    for seq in [12, 11, 13] {
        assert!(machines.record_entry(&entry("a", Some(seq), 1), at(2)));
    }
    assert_eq!(records(&machines)[0].missing, 0);
}

#[test]
fn an_agent_that_restarts_its_numbering_loses_nothing() {
    let mut machines = two();
    for seq in 1..=100 {
        machines.record_entry(&entry("a", Some(seq), 100), at(100));
    }
    // Its state was wiped: it starts at 1 again, with newer entries.
    for seq in 1..=3 {
        assert!(machines.record_entry(&entry("a", Some(seq), 200 + i64::try_from(seq).unwrap()), at(210)));
    }
    assert!(!machines.record_entry(&entry("a", Some(2), 202), at(211)), "a duplicate is still detected");
    let record = &records(&machines)[0];
    assert_eq!((record.last_seq, record.missing, record.counts_by_level.info), (Some(3), 0, 103));
    // A number that is far off also starts a new numbering, and is not a gap of millions.
    assert!(machines.record_entry(&entry("a", Some(1 << 50), 220), at(220)));
    assert_eq!(records(&machines)[0].missing, 0);
    assert!(machines.record_entry(&entry("a", Some(1), 220), at(220)));
    assert_eq!(records(&machines)[0].last_seq, Some(1));
}

#[test]
fn an_entry_dated_in_the_future_does_not_hide_later_ones() {
    let mut machines = two();
    for seq in 1..=20 {
        machines.record_entry(&entry("a", Some(seq), 100), at(100));
    }
    // The agent's clock was set to the year 2033 for a moment.
    assert!(machines.record_entry(&entry("a", Some(21), 315_000_000), at(101)));
    assert!(
        !machines.record_entry(&entry("a", Some(21), 315_000_000), at(102)),
        "sent again, it is a duplicate"
    );
    assert!(machines.record_entry(&entry("a", Some(22), 103), at(103)));
    // Its state is wiped, and its clock is right again.
    for seq in 1..=3 {
        assert!(machines.record_entry(&entry("a", Some(seq), 200), at(200)), "{seq}");
    }
    assert_eq!(records(&machines)[0].last_seq, Some(3));
    // The same number with another message is another entry, even within the same second.
    let mut other = entry("a", Some(3), 200);
    other.message = "another".to_owned();
    assert!(machines.record_entry(&other, at(200)));
    assert!(!machines.record_entry(&other, at(200)));
}

#[test]
fn an_agent_whose_clock_is_ahead_is_stored_once() {
    let mut machines = two();
    for seq in 1..=20 {
        assert!(machines.record_entry(&entry("a", Some(seq), 3600), at(0)));
        assert!(!machines.record_entry(&entry("a", Some(seq), 3600), at(1)));
    }
}

#[test]
fn only_changes_of_a_heartbeat_are_entries() {
    let mut machines = two();
    let dead = || Err("connection refused".to_owned());
    assert_eq!(machines.record_heartbeat("a", Ok(()), at(0)), None, "as expected");
    assert_eq!(machines.record_heartbeat("a", Ok(()), at(30)), None);
    let offline = machines.record_heartbeat("a", dead(), at(60)).unwrap();
    assert_eq!(
        serde_json::to_string(&offline).unwrap(),
        r#"{"timestamp":"2023-11-14T22:14:20Z","machine":"a","service":"warden","event":"agent_offline","message":"a does not answer","level":"warning","reason":"connection refused","agent":"a"}"#
    );
    assert_eq!(machines.record_heartbeat("a", dead(), at(90)), None);
    let online = machines.record_heartbeat("a", Ok(()), at(120)).unwrap();
    assert_eq!((online.event.as_str(), online.level.as_str()), ("agent_online", "info"));
    assert_eq!(online.message, "a answers again after 1 min");
    assert_eq!(
        machines.record_heartbeat("b", dead(), at(0)).unwrap().event,
        "agent_offline",
        "offline from the start"
    );
    let records = records(&machines);
    assert_eq!((records[0].online, records[0].since), (Some(true), Some(at(120))));
    assert_eq!(records[1].reason.as_deref(), Some("connection refused"));
}

#[test]
fn state_survives_a_restart() {
    let mut machines = two();
    machines.record_entry(&entry("b", Some(5), 1), at(1));
    machines.record_heartbeat("b", Err("gone".into()), at(2));
    let text = serde_json::to_string(machines.all()).unwrap();
    let ids = ["c".to_owned(), "b".to_owned()];
    let mut next = Machines::new(ids, &serde_json::from_str::<Vec<Machine>>(&text).unwrap());
    assert_eq!(records(&next)[1], records(&machines)[1]);
    assert!(!next.record_entry(&entry("b", Some(5), 1), at(3)));
    assert_eq!(next.record_heartbeat("b", Err("gone".into()), at(3)), None, "it was offline before");
    assert_eq!(next.all()[0].id(), "c");
}

fn named(epoch: &str, seq: u64) -> FleetEntry {
    FleetEntry { epoch: Some(epoch.to_owned()), ..entry("a", Some(seq), 100) }
}

#[test]
fn each_epoch_is_counted_separately_whatever_the_clocks_say() {
    let mut machines = two();
    for seq in [1, 2, 5] {
        assert!(machines.record_entry(&named("first", seq), at(1)));
        assert!(!machines.record_entry(&named("first", seq), at(2)), "{seq}");
    }
    assert_eq!((records(&machines)[0].missing, records(&machines)[0].last_seq), (2, Some(5)));
    // Its state was lost: the same numbers, the same second, the same messages.
    for seq in [1, 2] {
        assert!(machines.record_entry(&named("second", seq), at(3)));
        assert!(!machines.record_entry(&named("second", seq), at(3)));
    }
    assert_eq!((records(&machines)[0].missing, records(&machines)[0].last_seq), (0, Some(2)));
    assert!(!machines.record_entry(&named("first", 5), at(4)), "the previous epoch is still known");
    assert!(machines.record_entry(&named("first", 3), at(4)));
}

#[test]
fn an_agent_upgraded_to_send_epochs_continues_its_numbering() {
    let mut machines = two();
    for seq in [10, 11, 13] {
        assert!(machines.record_entry(&entry("a", Some(seq), 100), at(1)));
    }
    let mut again = machines.all().to_vec();
    assert!(!again[0].record_entry(&named("e", 13), at(2)), "sent again after the upgrade");
    assert_eq!(again[0].missing(), 1);
    assert!(machines.record_entry(&named("e", 14), at(2)));
    assert_eq!(records(&machines)[0].missing, 1);
    assert!(machines.record_entry(&named("e", 12), at(3)));
    assert_eq!(records(&machines)[0].missing, 0);
}

#[test]
fn the_number_of_remembered_epochs_is_limited() {
    let mut machines = two();
    for n in 0..100 {
        assert!(machines.record_entry(&named(&format!("epoch-{n}"), 1), at(1)));
    }
    let machine = &machines.all()[0];
    assert_eq!((machine.epochs.len(), machine.latest.len()), (EPOCHS, EPOCHS));
}

#[test]
fn the_oldest_gaps_of_earlier_epochs_are_forgotten_so_that_a_machine_stays_small() {
    let mut machines = two();
    // In order, and once more when all are known.
    for numbers in [0..1000, 1000..1100] {
        for epoch in 0..EPOCHS {
            for number in numbers.clone() {
                assert!(machines.record_entry(&named(&format!("epoch-{epoch}"), number * 2 + 1), at(1)));
            }
        }
    }
    let machine = &machines.all()[0];
    let ranges: Vec<usize> = machine.epochs.iter().map(|(_, sequence)| sequence.ranges()).collect();
    assert_eq!(ranges, [[EARLIER_RANGES; EPOCHS - 1].as_slice(), &[MAX_RANGES]].concat());
    assert_eq!(machine.missing(), MAX_RANGES as u64 - 1);
    assert!(machines.record_entry(&named("epoch-0", 2198), at(2)), "a late entry in one of the latest gaps");
}

/// An entry of epoch `e` that was made at a second, which is also in its message.
fn made(seq: u64, second: i64) -> FleetEntry {
    let message = format!("made at {second}");
    FleetEntry { epoch: Some("e".to_owned()), message, ..entry("a", Some(seq), second) }
}

#[test]
fn an_agent_with_a_restored_state_loses_nothing() {
    let mut machines = two();
    for (seq, second) in (1..=100).zip(1..) {
        assert!(machines.record_entry(&made(seq, second), at(second)));
    }
    // Its state is that after the entry 50 again. What was waiting then is sent again, and then come other entries.
    for (seq, second) in (45..=50).zip(45..) {
        assert!(!machines.record_entry(&made(seq, second), at(300)), "{seq}");
    }
    for (seq, second) in (51..=110).zip(200..) {
        assert!(machines.record_entry(&made(seq, second), at(300)), "{seq}");
        assert!(!machines.record_entry(&made(seq, second), at(301)), "{seq}, sent again");
    }
    let record = &records(&machines)[0];
    assert_eq!((record.last_seq, record.missing, record.counts_by_level.info), (Some(110), 0, 160));
}

#[test]
fn two_machines_with_one_state_lose_nothing() {
    let mut machines = two();
    for seq in 1..=5 {
        assert!(machines.record_entry(&made(seq, 1), at(1)));
    }
    for seq in 6..=20 {
        let second = i64::try_from(seq).unwrap() * 10;
        // The clone's clock is behind.
        let both = [made(seq, second), made(seq, second - 5)];
        for entry in &both {
            assert!(machines.record_entry(entry, at(second)), "{seq}");
        }
        for entry in &both {
            assert!(!machines.record_entry(entry, at(second)), "{seq}, sent again");
        }
    }
    assert_eq!(records(&machines)[0].counts_by_level.info, 35);
}

#[test]
fn entries_sent_again_after_a_long_outage_are_duplicates_whatever_the_clock_of_their_agent_says() {
    for ahead in [0, 3600, 315_000_000] {
        let mut machines = two();
        let all: Vec<_> = (1..=200).zip(1..).map(|(seq, second)| made(seq, second + ahead)).collect();
        for entry in &all {
            assert!(machines.record_entry(entry, at(250)));
        }
        for entry in &all {
            assert!(!machines.record_entry(entry, at(90_000)), "{ahead}: {:?}", entry.seq);
        }
        assert_eq!(machines.all()[0].duplicates(), 200);
    }
}

#[test]
fn an_epoch_that_an_earlier_version_stored_continues() {
    let mut machines = two();
    for seq in 1..=20 {
        machines.record_entry(&made(seq, 100), at(100));
    }
    let mut stored = serde_json::to_value(&machines.all()[0]).unwrap();
    assert!(stored.as_object_mut().unwrap().remove("latest").is_some());
    let known: Machine = serde_json::from_value(stored).unwrap();
    let mut machines = Machines::new(["a".to_owned()], &[known]);
    for seq in [3, 20, 19] {
        assert!(!machines.record_entry(&made(seq, 100), at(101)), "{seq}");
    }
    assert!(machines.record_entry(&made(21, 102), at(102)));
    assert!(machines.record_entry(&made(21, 105), at(105)), "another entry with the same number");
}
