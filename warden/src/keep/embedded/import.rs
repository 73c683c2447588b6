//! Imports the JSON state file of an earlier version, once (DECISIONS 8).
//!
//! That file was at the path of the store's folder, or inside it. It is a log of records, one per line, each with a checksum;
//! the first version was one JSON object. An invalid line does not affect the others.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use evenkeel_common::file;
use evenkeel_common::wire::FleetEntry;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::fleet::{Machine, entry};

/// Name of the file.
const FILE: &str = "warden-state.json";
/// A larger file is not a state file.
const MAX_BYTES: u64 = 256 * 1024 * 1024;
/// How many entries earlier versions kept.
const MAX_ENTRIES: usize = 200;

/// Version of the first format, one JSON object, which is still supported.
const OLD_VERSION: u32 = 1;
/// Version of the log format.
const VERSION: u32 = 2;
/// Digits of a line's checksum.
const CHECKSUM_DIGITS: usize = 16;
/// Limit on ids. They grow by at most one per microsecond, so this lasts for ten thousand years.
const MAX_ID: u64 = 1 << 60;

/// One line of the log.
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

/// The state that an earlier version kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct SavedState {
    /// Version of the file's format.
    pub version: u32,
    /// Whether it was saved on shutdown, so that nothing was stored after it.
    pub is_complete: bool,
    /// Id of the next entry.
    pub next_id: u64,
    /// The last entries, oldest first.
    pub entries: Vec<FleetEntry>,
    /// State of each agent.
    pub machines: Vec<Machine>,
}

/// Creates the folder of the store. A state file of an earlier version in its place is moved into the folder for the import.
/// Any other file is left alone: the path may be mistyped.
pub(super) fn make_room(folder: &Path) -> io::Result<()> {
    let (before, inside) = (folder.with_added_extension("before"), folder.join(FILE));
    if folder.exists() && !folder.is_dir() {
        read(folder).map_err(|why| in_the_way(folder, &why))?;
        if before.exists() {
            return Err(in_the_way(&before, &"the file to import would be moved there"));
        }
        fs::rename(folder, &before)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // A crash may have left it there between the two steps.
    if !inside.exists() && read(&before).is_ok() {
        fs::rename(&before, inside)?;
    }
    Ok(())
}

fn in_the_way(path: &Path, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!(
        "{} already exists and was left unchanged ({why}); allowed for api.state_path: a folder, a path that does not \
         exist, or the state file of an earlier version",
        path.display()
    ))
}

/// Reads the state to import. A file that cannot be used is moved aside and reported in the log.
pub(super) fn load(folder: &Path, now: Timestamp) -> Option<SavedState> {
    let path = folder.join(FILE);
    // A folder with this name is another store: in earlier configurations, `api.state_path` was this path.
    if path.is_dir() {
        return None;
    }
    let error = match read(&path) {
        Ok((state, 0)) => {
            tracing::info!(path = %path.display(), entries = state.entries.len(), "importing the state of an earlier version");
            return Some(state);
        }
        Ok((state, damaged)) => {
            let moved = move_aside(&path, now);
            tracing::error!(
                "STATE DAMAGED: {} of {} cannot be used; the rest is imported, and {moved}",
                if damaged == 1 { "a part".to_owned() } else { format!("{damaged} lines") },
                path.display(),
            );
            return Some(state);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => error,
    };
    let moved = move_aside(&path, now);
    tracing::error!(
        "STATE LOST: {} cannot be used ({error}); {moved}, and the warden starts without it",
        path.display()
    );
    None
}

fn move_aside(path: &Path, now: Timestamp) -> String {
    match file::move_aside(path, now) {
        Ok(aside) => format!("the file was moved to {}", aside.display()),
        Err(error) => format!("the file cannot be moved aside ({error})"),
    }
}

/// Renames the file once its content is in the store, so that it is not imported again.
pub(super) fn set_aside(folder: &Path) {
    let path = folder.join(FILE);
    if path.is_dir() {
        return;
    }
    match fs::rename(&path, path.with_added_extension("taken-over")) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot move the imported state of an earlier version aside");
        }
        _ => {}
    }
}

fn read(path: &Path) -> io::Result<(SavedState, usize)> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    parse(&fs::read(path)?)
}

/// Parses a file. Returns the state, and the number of invalid lines. A last line that was truncated by a crash does not
/// count.
pub fn parse(content: &[u8]) -> io::Result<(SavedState, usize)> {
    match content.first() {
        // An empty file: nothing was ever written.
        None => return Ok((SavedState::default(), 0)),
        Some(b'{') => return parse_old(content).map(|state| (state, 0)).or_else(|why| salvage(content, why)),
        Some(b'[') => {
            return parse_buffer(content).map(|state| (state, 0)).or_else(|why| salvage(content, why));
        }
        Some(_) => {}
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

/// Parses the ring buffer of spec 2.10: an array of entries, as other programs may have saved it.
fn parse_buffer(content: &[u8]) -> io::Result<SavedState> {
    let elements: Vec<&RawValue> = serde_json::from_slice(content)?;
    let entries = elements.into_iter().map(|element| {
        let mut entry = entry::parse(element.get().as_bytes(), "").map_err(io::Error::other)?;
        entry.agent.clone_from(&entry.machine);
        Ok(entry)
    });
    Ok(SavedState { entries: entries.collect::<io::Result<_>>()?, ..SavedState::default() })
}

/// Reads the entries of a JSON file that was torn by a crash, up to the tear. Such a file begins like a state file; any other
/// file may be somebody else's.
fn salvage(content: &[u8], why: io::Error) -> io::Result<(SavedState, usize)> {
    let is_object = content.first() == Some(&b'{');
    // A file that is JSON as a whole is not torn.
    let is_torn = serde_json::from_slice::<serde::de::IgnoredAny>(content).is_err();
    if !is_torn || !(if is_object { begins_like_old(content) } else { begins_like_buffer(content) }) {
        return Err(why);
    }
    let list = if is_object {
        find(content, b"\"entries\"").and_then(|at| find_byte(content, at, b'['))
    } else {
        Some(0)
    };
    let mut rest = list.map_or(&[][..], |at| &content[at + 1..]);
    let mut entries = Vec::new();
    while let Some(Ok(element)) = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>().next() {
        let text = element.get();
        let entry = if is_object {
            serde_json::from_str::<FleetEntry>(text).ok()
        } else {
            entry::parse(text.as_bytes(), "")
                .ok()
                .map(|entry| FleetEntry { agent: entry.machine.clone(), ..entry })
        };
        let Some(entry) = entry else { break };
        entries.push(entry);
        let Some(next) = find(rest, text.as_bytes()).and_then(|at| find_byte(rest, at + text.len(), b','))
        else {
            break;
        };
        rest = &rest[next + 1..];
    }
    Ok((SavedState { entries, ..SavedState::default() }, 1))
}

fn begins_like_old(content: &[u8]) -> bool {
    let begin: Vec<u8> =
        content.iter().filter(|byte| !byte.is_ascii_whitespace()).take(12).copied().collect();
    begin == b"{\"version\":1"
}

fn begins_like_buffer(content: &[u8]) -> bool {
    let begin = &content[..content.len().min(4096)];
    let second = begin.iter().skip(1).find(|byte| !byte.is_ascii_whitespace());
    second == Some(&b'{')
        && [&b"\"timestamp\""[..], b"\"service\"", b"\"event\""].iter().all(|key| find(begin, key).is_some())
}

fn find(content: &[u8], part: &[u8]) -> Option<usize> {
    content.windows(part.len()).position(|window| window == part)
}

fn find_byte(content: &[u8], from: usize, byte: u8) -> Option<usize> {
    content.get(from..)?.iter().position(|found| *found == byte).map(|at| from + at)
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
                if self.entries.len() > MAX_ENTRIES {
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
            return Err(io::Error::other("it contains no line of a warden's state"));
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

/// Parses a line; `None` if its checksum does not match.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(second: u8) -> String {
        format!(
            "{{\"timestamp\":\"2026-01-01T00:00:0{second}Z\",\"machine\":\"a\",\"service\":\"web\",\"event\":\"checked\",\"message\":\"x\",\"level\":\"info\",\"agent\":\"a\"}}"
        )
    }

    #[test]
    fn a_json_file_of_an_earlier_version_that_was_torn_is_read_up_to_the_tear() {
        let old = format!(
            "{{\"version\":1,\"is_complete\":false,\"next_id\":2,\"entries\":[{},{}],\"machines\":[]}}",
            entry(1),
            entry(2)
        );
        let buffer = format!("[{}, {}]", entry(1), entry(2));
        assert_eq!(parse(old.as_bytes()).unwrap().0.entries.len(), 2);
        for whole in [&old, &buffer] {
            let begin = whole.find("\"level\"").unwrap();
            for at in begin..whole.len() - 1 {
                let (state, damaged) = parse(&whole.as_bytes()[..at]).unwrap();
                let expected = whole[..at].matches("\"agent\":\"a\"}").count();
                assert_eq!((state.entries.len(), damaged), (expected, 1), "{}", &whole[..at]);
            }
            // A power cut may leave zeros at the end.
            let zeros = [&whole.as_bytes()[..whole.len() - 40], &[0; 40]].concat();
            assert_eq!(parse(&zeros).unwrap().0.entries.len(), 1);
        }
    }

    #[test]
    fn another_file_is_not_taken_for_one() {
        for text in [
            "{\"version\":\"3\",\"services\":{",
            "{\"name\":\"x\"",
            "{\"version\":7,\"entries\":[]}",
            "{\"version\":1}x",
            "[{\"a\":1",
            "[1,2",
            "[]x",
        ] {
            let torn = parse(text.as_bytes());
            assert_eq!(torn.is_ok(), text.starts_with("{\"version\":1}"), "{text}: {torn:?}");
        }
    }
}
