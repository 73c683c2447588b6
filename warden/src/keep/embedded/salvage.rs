//! Reads what can be read of a damaged file: first its tables, as far as they go, and then the JSON that is in its bytes.
//!
//! Damaged tables can lead anywhere, so they are read in ascending order of their keys only, and each one ends with its first
//! fault. The values are stored as plain JSON, which is found whatever else is damaged; but not their keys, so these entries
//! get new ids, in the order of their times.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::panic::AssertUnwindSafe;
use std::path::Path;

use evenkeel_common::database::{DatabaseFile, StoreError};
use evenkeel_common::wire::FleetEntry;
use jiff::Timestamp;
use redb::{Database, ReadableDatabase, ReadableTable};
use serde::de::DeserializeOwned;

use super::tables::{ENTRIES, MACHINES, VALUES};
use super::{OPTIONS, TableError, retain};
use crate::fleet::Machine;
use crate::fleet::decisions::{DECISIONS, Decisions};
use crate::fleet::state::bytes;
use crate::fleet::verdict::{self, DigestRecord};

/// How much of the file is searched at once, and the longest JSON that is found, in bytes.
const CHUNK: usize = 4 * 1024 * 1024;
const MAX_JSON: usize = 1024 * 1024;
/// How many entries are written at once.
const BATCH: usize = 1000;
/// Maximum number of entries that are found in the bytes: each takes 24 bytes of memory.
const MAX_FOUND: usize = 4_000_000;

/// What was found so far.
#[derive(Default)]
struct Found {
    /// Hashes of the lines that have been restored or found.
    lines: HashSet<u64>,
    /// Lowest id of the restored entries.
    first: Option<u64>,
    /// By id.
    machines: BTreeMap<String, Machine>,
    /// By name.
    values: BTreeMap<String, Vec<u8>>,
    count: usize,
}

/// Adds what can be read of the file `aside` to a new store. Returns the number of entries.
pub(super) fn restore(
    aside: &Path,
    into: &DatabaseFile,
    with_tables: bool,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let mut found = Found::default();
    let is_whole = with_tables && from_tables(aside, into, &mut found)?;
    if !is_whole {
        from_bytes(aside, into, &mut found, now)?;
    }
    let machines: Vec<Machine> = found.machines.into_values().collect();
    let values: Vec<(String, Vec<u8>)> = found.values.into_iter().collect();
    into.run("write", |database| retain::restore(database, &[], &machines, &values))?;
    Ok(found.count)
}

/// Parses the entries and machines that are in some bytes, such as those of an incomplete state file.
pub(super) fn parse(content: &[u8]) -> (Vec<FleetEntry>, Vec<Machine>) {
    let (mut entries, mut machines) = (Vec::new(), BTreeMap::new());
    search(content, true, |_, json| match json {
        Json::Entry(entry, _) => entries.push(*entry),
        Json::Machine(machine) => keep_latest(&mut machines, *machine),
        Json::Decisions(_) | Json::Record(_) => {}
    });
    (entries, machines.into_values().collect())
}

/// Restores what the tables of a file give. Returns whether all of them could be read.
fn from_tables(aside: &Path, into: &DatabaseFile, found: &mut Found) -> Result<bool, StoreError> {
    let opened = std::panic::catch_unwind(AssertUnwindSafe(|| {
        Database::builder().set_cache_size(OPTIONS.cache).open(aside)
    }));
    let Ok(Ok(database)) = opened else { return Ok(false) };
    let mut is_whole = true;
    let mut after = 0;
    loop {
        let mut batch = Vec::new();
        let read = guarded(|| read_entries(&database, after, &mut batch));
        let last = batch.last().map(|(id, ..)| *id);
        for (_, _, line) in &batch {
            found.lines.insert(hash(line));
        }
        batch.retain(|(_, _, line)| serde_json::from_str::<FleetEntry>(line).is_ok());
        found.count += batch.len();
        found.first = found.first.or(batch.first().map(|(id, ..)| *id));
        into.run("write", |database| retain::restore(database, &batch, &[], &[]))?;
        is_whole &= read;
        match last {
            Some(last) if read => after = last,
            _ => break,
        }
    }
    is_whole &= guarded(|| {
        let transaction = database.begin_read()?;
        let mut before = String::new();
        for item in transaction.open_table(MACHINES)?.iter()? {
            let (key, row) = item?;
            ascends(&mut before, key.value())?;
            let machine: Machine = serde_json::from_str(row.value().1)?;
            keep_latest(&mut found.machines, machine);
        }
        Ok(())
    });
    is_whole &= guarded(|| {
        let transaction = database.begin_read()?;
        let mut before = String::new();
        for item in transaction.open_table(VALUES)?.iter()? {
            let (key, row) = item?;
            ascends(&mut before, key.value())?;
            found.values.insert(key.value().to_owned(), row.value().1.to_vec());
        }
        Ok(())
    });
    // Closing it writes as well, and may fail in any way.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(database)));
    Ok(is_whole)
}

/// Reads the next entries. What was read before a fault is kept.
fn read_entries(
    database: &Database,
    after: u64,
    batch: &mut Vec<(u64, i64, String)>,
) -> Result<(), TableError> {
    let transaction = database.begin_read()?;
    let mut last = after;
    for item in transaction.open_table(ENTRIES)?.range(after + 1..)?.take(BATCH) {
        let (id, row) = item?;
        if id.value() <= last {
            return Err(TableError::Content("its ids are not in order".to_owned()));
        }
        last = id.value();
        batch.push((id.value(), row.value().0, row.value().1.to_owned()));
    }
    Ok(())
}

fn ascends(before: &mut String, key: &str) -> Result<(), TableError> {
    if !before.is_empty() && key <= before.as_str() {
        return Err(TableError::Content("its keys are not in order".to_owned()));
    }
    key.clone_into(before);
    Ok(())
}

/// Runs work on damaged tables. Returns whether it succeeded.
fn guarded(work: impl FnOnce() -> Result<(), TableError>) -> bool {
    matches!(std::panic::catch_unwind(AssertUnwindSafe(work)), Ok(Ok(())))
}

/// Restores what is in the bytes of a file, and was not in its tables.
fn from_bytes(
    aside: &Path,
    into: &DatabaseFile,
    found: &mut Found,
    now: Timestamp,
) -> Result<(), StoreError> {
    let fail =
        |error: io::Error| StoreError { doing: "read", path: aside.to_owned(), cause: error.to_string() };
    let mut places: Vec<(i64, u64, u32)> = Vec::new();
    let known: HashSet<String> = found.values.keys().cloned().collect();
    each_chunk(aside, |offset, chunk, is_last| {
        search(chunk, is_last, |at, json| match json {
            Json::Entry(entry, line) => {
                if places.len() < MAX_FOUND && found.lines.insert(hash(line)) {
                    let length = u32::try_from(line.len()).unwrap_or(0);
                    places.push((arrival(entry.timestamp, now), offset + at as u64, length));
                }
            }
            Json::Machine(machine) => keep_latest(&mut found.machines, *machine),
            Json::Record(record) => {
                let name = verdict::name(&record.repository, &record.digest);
                let before = found.values.get(&name).and_then(|value| serde_json::from_slice(value).ok());
                if !known.contains(&name)
                    && before.is_none_or(|before: DigestRecord| before.latest_at() < record.latest_at())
                {
                    found.values.insert(name, bytes(&*record));
                }
            }
            Json::Decisions(decisions) => {
                let at = |decisions: &Decisions| {
                    let freezes = decisions.freezes.iter().map(|freeze| freeze.since);
                    freezes.chain(decisions.failed.iter().map(|failed| failed.since)).max()
                };
                let before = found.values.get(DECISIONS).and_then(|value| serde_json::from_slice(value).ok());
                if !known.contains(DECISIONS) && before.is_none_or(|before| at(&before) < at(&decisions)) {
                    found.values.insert(DECISIONS.to_owned(), bytes(&*decisions));
                }
            }
        });
    })
    .map_err(fail)?;
    places.sort_unstable();
    found.count += places.len();
    let first = found.first.unwrap_or_else(|| u64::try_from(now.as_microsecond()).unwrap_or(1));
    let mut id = first.saturating_sub(places.len() as u64).max(1);
    let mut file = File::open(aside).map_err(fail)?;
    for places in places.chunks(BATCH) {
        let mut batch = Vec::new();
        for (arrival, offset, length) in places {
            let mut line = vec![0; *length as usize];
            file.seek(SeekFrom::Start(*offset)).map_err(fail)?;
            file.read_exact(&mut line).map_err(fail)?;
            if let Ok(line) = String::from_utf8(line) {
                batch.push((id, *arrival, line));
            }
            id += 1;
        }
        into.run("write", |database| retain::restore(database, &batch, &[], &[]))?;
    }
    Ok(())
}

/// Reads a file in parts that overlap, so that no JSON is cut. The last part is marked.
fn each_chunk(path: &Path, mut each: impl FnMut(u64, &[u8], bool)) -> io::Result<()> {
    let mut file = BufReader::new(File::open(path)?);
    let (mut buffer, mut offset) = (Vec::new(), 0);
    loop {
        let read = file.by_ref().take(CHUNK as u64).read_to_end(&mut buffer)?;
        let is_last = read < CHUNK;
        each(offset, &buffer, is_last);
        if is_last {
            return Ok(());
        }
        let kept = MAX_JSON.min(buffer.len());
        offset += (buffer.len() - kept) as u64;
        buffer.drain(..buffer.len() - kept);
    }
}

/// A value that was found.
enum Json<'a> {
    Entry(Box<FleetEntry>, &'a str),
    Machine(Box<Machine>),
    Record(Box<DigestRecord>),
    Decisions(Box<Decisions>),
}

/// Finds the JSON in some bytes, with its position. What begins in the last [`MAX_JSON`] bytes is left to the next part,
/// which begins with them.
fn search<'a>(content: &'a [u8], is_last: bool, mut each: impl FnMut(usize, Json<'a>)) {
    let end = if is_last { content.len() } else { content.len().saturating_sub(MAX_JSON) };
    let mut at = 0;
    while let Some(next) = content.get(at..end).and_then(|rest| rest.iter().position(|byte| *byte == b'{')) {
        at += next;
        let rest = &content[at..];
        let rest = &rest[..rest.len().min(MAX_JSON)];
        let found = if rest.starts_with(br#"{"timestamp":""#) {
            value(rest).map(|(entry, length)| {
                let line = std::str::from_utf8(&rest[..length]).unwrap_or_default();
                (Json::Entry(Box::new(entry), line), length)
            })
        } else if rest.starts_with(br#"{"id":""#) {
            value(rest).map(|(machine, length)| (Json::Machine(Box::new(machine)), length))
        } else if rest.starts_with(br#"{"repository":""#) {
            // A listed failure begins in the same way; its agents are not an object.
            value(rest).map(|(record, length)| (Json::Record(Box::new(record)), length))
        } else if rest.starts_with(br#"{"freezes":["#) {
            value(rest).map(|(decisions, length)| (Json::Decisions(Box::new(decisions)), length))
        } else {
            None
        };
        match found {
            Some((json, length)) => {
                each(at, json);
                at += length;
            }
            None => at += 1,
        }
    }
}

/// Parses the value at the beginning of some bytes. Returns its length as well.
fn value<T: DeserializeOwned>(content: &[u8]) -> Option<(T, usize)> {
    let mut stream = serde_json::Deserializer::from_slice(content).into_iter();
    let value = stream.next()?.ok()?;
    Some((value, stream.byte_offset()))
}

fn keep_latest(machines: &mut BTreeMap<String, Machine>, machine: Machine) {
    let at = |machine: &Machine| machine.record().last_entry;
    if machines.get(machine.id()).is_none_or(|known| at(known) <= at(&machine)) {
        machines.insert(machine.id().to_owned(), machine);
    }
}

fn hash(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

/// The time of a restored entry.
pub(super) fn arrival(timestamp: Timestamp, now: Timestamp) -> i64 {
    timestamp.min(now).as_microsecond()
}
