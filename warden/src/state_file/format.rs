//! The format: one record a line, each with a checksum. Later records replace earlier ones about the same thing.

use std::collections::{BTreeMap, HashMap};
use std::io;

use evenkeel_common::wire::FleetEntry;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::fleet::{Changes, Machine, PERSISTED_ENTRIES, SavedState};

/// Version of the first format, one JSON object, which can still be read.
const OLD_VERSION: u32 = 1;
/// Version of this format.
const VERSION: u32 = 2;
/// Digits of a line's checksum.
const CHECKSUM_DIGITS: usize = 16;
/// Limit on ids. They grow by one microsecond at most, which lasts for ten thousand years.
const MAX_ID: u64 = 1 << 60;

/// One line as it is read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Version(u32),
    Entry(u64, Box<FleetEntry>),
    Machine(Box<Machine>),
    /// Id of the next entry.
    Next(u64),
    /// The program stopped here.
    Stopped(u64),
}

/// One line as it is written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum RecordRef<'a> {
    Version(u32),
    Entry(u64, &'a RawValue),
    Machine(&'a Machine),
    Next(u64),
    Stopped(u64),
}

/// Parses a file: the state, and how many lines are unusable. A last line that a crash cut short is not one of these.
pub fn parse(content: &[u8]) -> io::Result<(SavedState, usize)> {
    if content.first() == Some(&b'{') {
        return Ok((parse_old(content)?, 0));
    }
    let mut parser = Parser::default();
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        let Some(line) = line.strip_suffix(b"\n") else { break };
        parser.is_complete = false;
        match parse_line(line) {
            Some(record) => parser.apply(record)?,
            None => parser.damaged += 1,
        }
    }
    parser.finish()
}

fn parse_old(content: &[u8]) -> io::Result<SavedState> {
    let state: SavedState = serde_json::from_slice(content)?;
    if state.version != OLD_VERSION {
        return Err(io::Error::other(format!("its version is {}, not {OLD_VERSION}", state.version)));
    }
    if state.next_id > MAX_ID {
        return Err(io::Error::other(format!("its next id {} is out of range", state.next_id)));
    }
    Ok(state)
}

#[derive(Default)]
struct Parser {
    has_version: bool,
    is_complete: bool,
    next_id: u64,
    entries: BTreeMap<u64, FleetEntry>,
    machines: Vec<Machine>,
    /// Positions in `machines` by id.
    index: HashMap<String, usize>,
    damaged: usize,
}

impl Parser {
    fn apply(&mut self, record: Record) -> io::Result<()> {
        match record {
            Record::Version(VERSION) => self.has_version = true,
            Record::Version(version) => {
                return Err(io::Error::other(format!("its version is {version}, not {VERSION}")));
            }
            Record::Entry(id, entry) if id < MAX_ID => {
                self.next_id = self.next_id.max(id + 1);
                self.entries.insert(id, *entry);
                if self.entries.len() > PERSISTED_ENTRIES {
                    self.entries.pop_first();
                }
            }
            Record::Machine(machine) => {
                if let Some(position) = self.index.get(machine.id()) {
                    self.machines[*position] = *machine;
                } else {
                    self.index.insert(machine.id().to_owned(), self.machines.len());
                    self.machines.push(*machine);
                }
            }
            Record::Next(id) if id <= MAX_ID => self.next_id = self.next_id.max(id),
            Record::Stopped(id) if id <= MAX_ID => {
                self.next_id = self.next_id.max(id);
                self.is_complete = self.damaged == 0;
            }
            Record::Entry(..) | Record::Next(_) | Record::Stopped(_) => self.damaged += 1,
        }
        Ok(())
    }

    fn finish(self) -> io::Result<(SavedState, usize)> {
        if !self.has_version && self.entries.is_empty() && self.machines.is_empty() {
            return Err(io::Error::other("no line of it is one of a warden's state"));
        }
        let state = SavedState {
            version: VERSION,
            is_complete: self.is_complete,
            next_id: self.next_id,
            entries: self.entries.into_values().collect(),
            machines: self.machines,
        };
        Ok((state, self.damaged))
    }
}

/// The record of a line whose checksum matches.
fn parse_line(line: &[u8]) -> Option<Record> {
    let (sum, rest) = line.split_at_checked(CHECKSUM_DIGITS)?;
    let text = rest.strip_prefix(b" ")?;
    if sum != checksum(text).as_bytes() {
        return None;
    }
    serde_json::from_slice(text).ok()
}

fn checksum(text: &[u8]) -> String {
    hex::encode(&Sha256::digest(text)[..CHECKSUM_DIGITS / 2])
}

/// The first line of a file.
pub(super) fn header() -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    write_line(&mut out, &RecordRef::Version(VERSION))?;
    Ok(out)
}

/// The lines for `changes`; the last one says whether the program stops here.
pub(super) fn lines(changes: &Changes, is_last: bool) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    for machine in &changes.machines {
        write_line(&mut out, &RecordRef::Machine(machine))?;
    }
    for (id, entry) in &changes.entries {
        write_line(&mut out, &RecordRef::Entry(*id, serde_json::from_str(entry)?))?;
    }
    let next = changes.next_id;
    write_line(&mut out, &if is_last { RecordRef::Stopped(next) } else { RecordRef::Next(next) })?;
    Ok(out)
}

fn write_line(out: &mut Vec<u8>, record: &RecordRef<'_>) -> io::Result<()> {
    let text = serde_json::to_vec(record)?;
    out.extend_from_slice(checksum(&text).as_bytes());
    out.push(b' ');
    out.extend_from_slice(&text);
    out.push(b'\n');
    Ok(())
}
