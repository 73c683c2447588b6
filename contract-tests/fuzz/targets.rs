//! The targets of the fuzzers and of `tests/api/fuzz.rs`. Each takes arbitrary bytes and panics if an invariant is violated.

#![allow(dead_code, reason = "each fuzzer uses only one of them")]

use std::path::Path;

use evenkeel_agent::config::template::render_template;
use evenkeel_agent::http::published;
use evenkeel_agent::model::image::Reference;
use evenkeel_common::config::{Configuration, Findings, json};
use evenkeel_common::wire::{AuditEntry, FleetEntry, Kind, Level};
use evenkeel_warden::config::Config;
use evenkeel_warden::fleet::{Machine, entry};
use evenkeel_warden::keep::embedded::parse_state_file;
use evenkeel_warden::keep::{Change, Outcome, fold};
use jiff::Timestamp;

/// A fixed time.
const NOON: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Bodies of `POST /ingest`, one per line. An accepted entry is a single line of JSON with bounded length that survives a
/// round trip. A rejected one has an error of bounded length. A sequence number is recorded only once.
pub(crate) fn ingest(input: &[u8]) {
    let mut machine = Machine::new("box".to_owned());
    for body in input.split(|byte| *byte == b'\n') {
        let entry = match entry::parse(body, "box") {
            Ok(entry) => entry,
            Err(error) => {
                assert!(error.to_string().len() < 1024, "{error}");
                continue;
            }
        };
        assert_eq!(entry.agent, "box");
        let line = serde_json::to_string(&entry).expect("an entry can be written");
        // A control character takes six bytes.
        assert!(line.len() < 6 * 24 * 1024 && !line.contains('\n'), "{} bytes", line.len());
        assert_eq!(serde_json::from_str::<FleetEntry>(&line).expect("it can be read"), entry);
        machine.record_entry(&entry, NOON);
        if entry.seq.is_some() {
            assert!(!machine.record_entry(&entry, NOON), "sent again it is not stored again: {line}");
        }
    }
    assert_valid(&machine);
}

/// State files of an earlier version. Accepted machines are valid and continue to count.
pub(crate) fn warden_state(input: &[u8]) {
    let Ok((state, _)) = parse_state_file(input) else { return };
    let numbers = [0, 1, 2, u64::MAX - 1, u64::MAX].into_iter().cycle();
    for (machine, seq) in state.machines.into_iter().zip(numbers) {
        assert_valid(&machine);
        let id = machine.id().to_owned();
        let body = format!(
            r#"{{"timestamp":"2027-01-02T03:04:05Z","service":"web","event":"updated","message":"m","level":"info","seq":{seq}}}"#
        );
        let entry = Change::Entry(Box::new(entry::parse(body.as_bytes(), &id).expect("it is an entry")));
        let beat = |outcome| Change::Heartbeat { agent: id.clone(), outcome };
        let changes = vec![entry, beat(Err("no answer".to_owned())), beat(Ok(()))];
        let folded = fold(
            changes,
            [(id.clone(), machine)].into(),
            std::collections::BTreeMap::new(),
            state.next_id,
            NOON,
        );
        let stored = folded.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Stored(_))).count();
        assert!(
            stored >= 1 && stored == folded.entries.len(),
            "the machine went offline and came back online"
        );
        folded.machines.iter().for_each(assert_valid);
    }
    for entry in state.entries {
        let line = serde_json::to_string(&entry).expect("an entry can be written");
        assert_eq!(serde_json::from_str::<FleetEntry>(&line).expect("the store can read it"), entry);
    }
}

fn assert_valid(machine: &Machine) {
    let record = machine.record();
    serde_json::to_string(&record).expect("a record can be written");
    record.counts_by_level.total();
    let text = serde_json::to_string(machine).expect("a machine can be written");
    assert_eq!(serde_json::from_str::<Machine>(&text).expect("a restart can read it"), *machine);
}

/// Bodies of `POST /registry/events`.
pub(crate) fn registry_events(input: &[u8]) {
    let images = published(input);
    for (index, image) in images.iter().enumerate() {
        assert!(!image.tag.is_empty() && !images[..index].contains(image), "{image:?}");
    }
}

/// Image references. An accepted reference has one canonical form, which parses to the same reference.
pub(crate) fn image_reference(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for home in ["docker.io", "127.0.0.1:5000"] {
        match Reference::parse_in(&text, home) {
            Ok(reference) => {
                let written = reference.to_string();
                assert_eq!(Reference::parse(&written).as_ref(), Ok(&reference), "{text:?} as {written:?}");
                assert!(!written.contains(|c: char| c.is_whitespace() || c.is_control()), "{written:?}");
            }
            Err(error) => assert!(error.to_string().len() < 1024, "{error}"),
        }
    }
}

/// Webhook templates. Every template yields a body or an error of bounded length.
pub(crate) fn template(input: &[u8]) {
    let mut entry = AuditEntry::new(NOON, "web", Kind::ROLLED_BACK, Level::Warning, "it said \"hi\"\n<&\\>");
    entry.reason = Some("r".repeat(4000));
    match render_template(&String::from_utf8_lossy(input), &entry) {
        Ok(body) => assert!(body.len() <= 256 * 1024, "{} bytes", body.len()),
        Err(error) => assert!(error.len() < 1024, "{error}"),
    }
}

/// Configuration files. Every rejection has a message, and an accepted file is valid JSON.
pub(crate) fn configuration(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let path = Path::new("warden.json");
    let env = |name: &str| (name == "SET").then(|| "0123456789abcdef-from-the-environment".to_owned());
    match Config::parse(&text, path, &env) {
        Ok(_) => assert!(json::parse(&text, &mut Findings::default()).is_ok()),
        Err(faults) => assert!(!faults.to_string().is_empty()),
    }
}
