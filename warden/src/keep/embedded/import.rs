//! Imports the JSON state file of an earlier version, once (DECISIONS 8).
//!
//! That file was at the path of the store's folder, or inside it. It is a log of records, one per line, each with a checksum;
//! the first version was one JSON object. An invalid line does not affect the others.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use evenkeel_common::file;
use evenkeel_common::wire::FleetEntry;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use redb::Database;

use super::tables::{META, NEXT_ID, add, begin_write};
use super::{TableError, salvage};
use crate::fleet::{Machine, entry};
use crate::keep::Folded;

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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// A damaged file that was set aside, and how many entries of it were kept.
pub(super) type Damaged = (PathBuf, usize);

/// Creates the folder of the store. A state file of an earlier version in its place is moved into the folder for the import;
/// of one that is incomplete, what can be read is, and the file is set aside. Any other file is left alone: the path may be
/// mistyped.
pub(super) fn make_room(folder: &Path, now: Timestamp) -> io::Result<Option<Damaged>> {
    let (before, inside) = (folder.with_added_extension("before"), folder.join(FILE));
    let mut damaged = None;
    if folder.exists() && !folder.is_dir() {
        match read(folder) {
            Err(why) => {
                let rest = torn(folder).ok_or_else(|| in_the_way(folder, &why))?;
                damaged = Some(set_aside_torn(folder, &before, &rest, now)?);
            }
            Ok(_) if before.exists() => {
                return Err(in_the_way(&before, &"the file to import would be moved there"));
            }
            Ok(_) => fs::rename(folder, &before)?,
        }
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // A crash may have left it there between the two steps.
    if !inside.exists() && read(&before).is_ok() {
        fs::rename(&before, inside)?;
    }
    Ok(damaged)
}

/// Writes what can be read of an incomplete file to the place of the file to import, and sets the file aside.
fn set_aside_torn(file: &Path, before: &Path, rest: &SavedState, now: Timestamp) -> io::Result<Damaged> {
    let count = rest.entries.len();
    if !before.exists() {
        file::write_atomically(before, &serde_json::to_vec(rest)?)?;
    }
    Ok((file::move_aside(file, now)?, count))
}

/// Returns what can be read of a file that ends early, or was overwritten in part. `None` if it is not a warden's.
fn torn(path: &Path) -> Option<SavedState> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return None;
    }
    let content = fs::read(path).ok()?;
    let (mut entries, machines) = salvage::parse(&content);
    let begins = |text: &str| content.starts_with(text.as_bytes());
    let is_empty = content.iter().all(|byte| *byte == 0);
    if !begins(r#"{"version":1,"#) && !is_empty && entries.is_empty() {
        return None;
    }
    entries.sort_by_key(|entry| entry.timestamp);
    for entry in entries.iter_mut().filter(|entry| entry.agent.is_empty()) {
        entry.agent.clone_from(&entry.machine);
    }
    Some(SavedState { version: OLD_VERSION, entries, machines, ..SavedState::default() })
}

fn in_the_way(path: &Path, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!(
        "{} already exists and was left unchanged ({why}); allowed for api.state_path: a folder, a path that does not \
         exist, or the state file of an earlier version",
        path.display()
    ))
}

/// Reads the state to import. A file that cannot be used completely is moved aside, and returned as well.
pub(super) fn load(folder: &Path, now: Timestamp) -> (Option<SavedState>, Option<Damaged>) {
    let path = folder.join(FILE);
    // A folder with this name is another store: in earlier configurations, `api.state_path` was this path.
    if path.is_dir() {
        return (None, None);
    }
    let state = match read(&path) {
        Ok((state, 0)) => {
            tracing::info!(path = %path.display(), entries = state.entries.len(), "importing the state of an earlier version");
            return (Some(state), None);
        }
        Ok((state, _)) => state,
        Err(error) if error.kind() == ErrorKind::NotFound => return (None, None),
        Err(_) => torn(&path).unwrap_or_default(),
    };
    match file::move_aside(&path, now) {
        Ok(aside) => {
            let count = state.entries.len();
            (Some(state), Some((aside, count)))
        }
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "cannot move the damaged state of an earlier version aside");
            (Some(state), None)
        }
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
        Some(b'{') => return Ok((parse_old(content)?, 0)),
        Some(b'[') => return Ok((parse_buffer(content)?, 0)),
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

/// Adds the saved state to the tables.
pub(super) fn store(database: &Database, saved: &SavedState, now: Timestamp) -> Result<(), TableError> {
    let transaction = begin_write(database)?;
    {
        let mut meta = transaction.open_table(META)?;
        if saved.is_complete && saved.next_id > saved.entries.len() as u64 {
            // Keeps the entries' ids, so that browsers can continue their streams.
            meta.insert(NEXT_ID, saved.next_id - saved.entries.len() as u64)?;
        }
    }
    let saved =
        Folded { entries: saved.entries.clone(), machines: saved.machines.clone(), ..Folded::default() };
    add(&transaction, &saved, now)?;
    transaction.commit()?;
    Ok(())
}
