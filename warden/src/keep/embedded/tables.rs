//! The tables, and all write operations. Each function is one transaction.

use std::collections::BTreeMap;

use evenkeel_common::wire::FleetEntry;
use jiff::Timestamp;
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::TableError;
use crate::fleet::Machine;
use crate::keep::query::Field;
use crate::keep::{Change, Folded, Outcome, fold, needs};

/// Counters, by name.
pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Arrival time in microseconds since 1970, and the line of JSON, by id.
pub(super) const ENTRIES: TableDefinition<u64, (i64, &str)> = TableDefinition::new("entries");
/// Ids, by field and value.
pub(super) const INDEX: TableDefinition<(u8, &str, u64), ()> = TableDefinition::new("index");
/// The revision of a machine's last change, and the machine as JSON, by agent.
pub(super) const MACHINES: TableDefinition<&str, (u64, &str)> = TableDefinition::new("machines");
/// Agents, by the revision of their last change.
pub(super) const CHANGED: TableDefinition<(u64, &str), ()> = TableDefinition::new("changed");
/// The revision of a value's last change, and the value, by name.
pub(super) const VALUES: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("values");

/// Names of values, by the revision of their last change.
pub(super) const CHANGED_VALUES: TableDefinition<(u64, &str), ()> = TableDefinition::new("changed_values");

/// Keys of [`META`].
pub(super) const SCHEMA: &str = "schema";
pub(super) const NEXT_ID: &str = "next_id";
pub(super) const REVISION: &str = "revision";
pub(super) const BYTES: &str = "bytes";
/// Id of the first entry from which on all entries are in the index of agents; 0 if all are.
pub(super) const AGENTS_FROM: &str = "agents_from";
/// Version of these tables.
const SCHEMA_VERSION: u64 = 1;

/// The tables that change with the entries.
pub(super) struct Tables<'t> {
    pub(super) meta: Table<'t, &'static str, u64>,
    pub(super) entries: Table<'t, u64, (i64, &'static str)>,
    pub(super) index: Table<'t, (u8, &'static str, u64), ()>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, TableError> {
        Ok(Self {
            meta: transaction.open_table(META)?,
            entries: transaction.open_table(ENTRIES)?,
            index: transaction.open_table(INDEX)?,
        })
    }

    /// Adds an entry with its line, and counts the text for its agent. The counters of all entries are the caller's.
    pub(super) fn insert(
        &mut self,
        id: u64,
        arrival: i64,
        entry: &FleetEntry,
        line: &str,
    ) -> Result<(), TableError> {
        self.entries.insert(id, (arrival, line))?;
        add_bytes(&mut self.meta, &entry.agent, line.len())?;
        for field in Field::ALL {
            if let Some(value) = field.of(entry) {
                self.index.insert((field as u8, value, id), ())?;
            }
        }
        Ok(())
    }
}

/// Begins a transaction with quick repair: after a crash, redb would otherwise read the whole file when opening it. The cost
/// is that each commit writes more and waits for the disk twice.
pub(super) fn begin_write(database: &Database) -> Result<WriteTransaction, TableError> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// Creates the tables. Returns whether the file was new.
pub(super) fn prepare(database: &Database, now: Timestamp) -> Result<bool, TableError> {
    let transaction = begin_write(database)?;
    let is_new = {
        let mut meta = transaction.open_table(META)?;
        let schema = meta.get(SCHEMA)?.map(|schema| schema.value());
        supported(schema.unwrap_or(0))?;
        if schema.is_none() {
            meta.insert(SCHEMA, SCHEMA_VERSION)?;
            // Greater than any id of a previous store, since fewer than one entry per microsecond arrives.
            let start = u64::try_from(now.as_microsecond()).unwrap_or(0);
            meta.insert(NEXT_ID, start.max(1))?;
            // The same holds for revisions: a running warden may know those of a store that was damaged.
            meta.insert(REVISION, start)?;
            meta.insert(BYTES, 0)?;
            meta.insert(AGENTS_FROM, 0)?;
        } else if meta.get(AGENTS_FROM)?.is_none() {
            let next = counter(&meta, NEXT_ID)?;
            meta.insert(AGENTS_FROM, next)?;
        }
        schema.is_none()
    };
    if is_new {
        transaction.open_table(ENTRIES)?;
        transaction.open_table(INDEX)?;
        transaction.open_table(MACHINES)?;
        transaction.open_table(CHANGED)?;
        transaction.open_table(VALUES)?;
    }
    index_values(&transaction)?;
    transaction.commit()?;
    Ok(is_new)
}

/// Rebuilds [`CHANGED_VALUES`]. Earlier versions write values without it, possibly after a downgrade.
fn index_values(transaction: &WriteTransaction) -> Result<(), TableError> {
    transaction.delete_table(CHANGED_VALUES)?;
    let mut changed = transaction.open_table(CHANGED_VALUES)?;
    for item in transaction.open_table(VALUES)?.iter()? {
        let (name, row) = item?;
        changed.insert((row.value().0, name.value()), ())?;
    }
    Ok(())
}

/// [`crate::keep::Keep::commit`]
pub(super) fn commit(
    database: &Database,
    changes: Vec<Change>,
    now: Timestamp,
) -> Result<Vec<Outcome>, TableError> {
    let is_probe = changes.is_empty();
    let transaction = begin_write(database)?;
    let needs = needs(&changes);
    let (machines, values, next_id) = {
        let table = transaction.open_table(MACHINES)?;
        let mut machines = BTreeMap::new();
        for agent in needs.agents {
            if let Some(row) = table.get(agent.as_str())? {
                let machine: Machine = serde_json::from_str(row.value().1)?;
                machines.insert(agent, machine);
            }
        }
        let table = transaction.open_table(VALUES)?;
        let mut values = BTreeMap::new();
        for name in needs.values {
            if let Some(row) = table.get(name.as_str())? {
                values.insert(name, row.value().1.to_vec());
            }
        }
        (machines, values, counter(&transaction.open_table(META)?, NEXT_ID)?)
    };
    let folded = fold(changes, machines, values, next_id, now);
    if folded.machines.is_empty() && folded.values.is_empty() && !is_probe {
        transaction.abort()?;
    } else {
        add(&transaction, &folded, now)?;
        transaction.commit()?;
    }
    Ok(folded.outcomes)
}

pub(super) fn add(transaction: &WriteTransaction, folded: &Folded, now: Timestamp) -> Result<(), TableError> {
    let Folded { entries, machines, values, .. } = folded;
    let mut tables = Tables::open(transaction)?;
    let (first, mut bytes) = (counter(&tables.meta, NEXT_ID)?, counter(&tables.meta, BYTES)?);
    for (id, entry) in (first..).zip(entries) {
        let line = serde_json::to_string(entry)?;
        bytes += line.len() as u64;
        tables.insert(id, now.as_microsecond(), entry, &line)?;
    }
    tables.meta.insert(NEXT_ID, first + entries.len() as u64)?;
    tables.meta.insert(BYTES, bytes)?;
    let revision = next_revision(&mut tables.meta)?;
    let mut table = transaction.open_table(MACHINES)?;
    let mut changed = transaction.open_table(CHANGED)?;
    for machine in machines {
        let (id, text) = (machine.id(), serde_json::to_string(machine)?);
        let before = table.insert(id, (revision, text.as_str()))?.map(|row| row.value().0);
        if let Some(before) = before {
            changed.remove((before, id))?;
        }
        changed.insert((revision, id), ())?;
    }
    for (name, value) in values {
        insert_value(transaction, name, revision, value)?;
    }
    Ok(())
}

fn insert_value(
    transaction: &WriteTransaction,
    name: &str,
    revision: u64,
    value: &[u8],
) -> Result<(), TableError> {
    let mut values = transaction.open_table(VALUES)?;
    let mut changed = transaction.open_table(CHANGED_VALUES)?;
    let before = values.insert(name, (revision, value))?.map(|row| row.value().0);
    if let Some(before) = before {
        changed.remove((before, name))?;
    }
    changed.insert((revision, name), ())?;
    Ok(())
}

/// [`crate::keep::Keep::swap`]
pub(super) fn swap(
    database: &Database,
    name: &str,
    expected: u64,
    value: &[u8],
) -> Result<Option<u64>, TableError> {
    let transaction = begin_write(database)?;
    let current = transaction.open_table(VALUES)?.get(name)?.map_or(0, |row| row.value().0);
    if current != expected {
        return Ok(None);
    }
    let revision = next_revision(&mut transaction.open_table(META)?)?;
    insert_value(&transaction, name, revision, value)?;
    transaction.commit()?;
    Ok(Some(revision))
}

/// [`crate::keep::Keep::remove`]
pub(super) fn remove(database: &Database, name: &str, expected: u64) -> Result<bool, TableError> {
    let transaction = begin_write(database)?;
    {
        let mut values = transaction.open_table(VALUES)?;
        if values.get(name)?.map_or(0, |row| row.value().0) != expected {
            return Ok(false);
        }
        values.remove(name)?;
        transaction.open_table(CHANGED_VALUES)?.remove((expected, name))?;
    }
    transaction.commit()?;
    Ok(true)
}

/// Checks whether this program supports the tables.
pub(super) fn check_version(database: &Database) -> Result<(), TableError> {
    let transaction = database.begin_read()?;
    let version = transaction.open_table(META)?.get(SCHEMA)?.map_or(0, |version| version.value());
    supported(version)
}

fn supported(version: u64) -> Result<(), TableError> {
    if version > SCHEMA_VERSION {
        return Err(TableError::Newer(format!(
            "its version is {version}, written by a newer evenkeel; this one supports up to {SCHEMA_VERSION}"
        )));
    }
    Ok(())
}

/// Reads what every later call needs, so that a damaged file is noticed when it is opened.
pub(super) fn verify(database: &Database) -> Result<(), TableError> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    for name in [NEXT_ID, REVISION, BYTES] {
        counter(&meta, name)?;
    }
    for item in transaction.open_table(MACHINES)?.iter()? {
        serde_json::from_str::<Machine>(item?.1.value().1)?;
    }
    for item in transaction.open_table(VALUES)?.iter()? {
        item?;
    }
    for item in transaction.open_table(CHANGED)?.iter()? {
        item?;
    }
    for item in transaction.open_table(ENTRIES)?.iter()?.rev().take(VERIFIED) {
        item?;
    }
    transaction.open_table(INDEX)?;
    Ok(())
}

/// How many entries are read to verify a file.
const VERIFIED: usize = 1000;

/// Reads a counter of [`META`]; [`prepare`] has created them all.
pub(super) fn counter(meta: &impl ReadableTable<&'static str, u64>, name: &str) -> Result<u64, TableError> {
    let found = meta.get(name)?.map(|count| count.value());
    found.ok_or_else(|| TableError::Content(format!("its counter {name} is missing")))
}

fn next_revision(meta: &mut Table<'_, &'static str, u64>) -> Result<u64, TableError> {
    let revision = counter(meta, REVISION)? + 1;
    meta.insert(REVISION, revision)?;
    Ok(revision)
}

pub(super) fn add_bytes(
    meta: &mut Table<'_, &'static str, u64>,
    agent: &str,
    size: usize,
) -> Result<(), TableError> {
    let name = format!("{BYTES_OF}{agent}");
    let before = meta.get(name.as_str())?.map_or(0, |bytes| bytes.value());
    meta.insert(name.as_str(), before + size as u64)?;
    Ok(())
}

/// Prefix of the counters of the text of each agent's entries, in bytes.
pub(super) const BYTES_OF: &str = "bytes/";

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use redb::Builder;

    use super::*;
    use crate::keep::Position;
    use crate::keep::embedded::read;

    fn create(path: &Path) -> Database {
        let database = Database::create(path).unwrap();
        assert!(prepare(&database, Timestamp::UNIX_EPOCH).unwrap());
        database
    }

    fn changed_values(database: &Database) -> Vec<(u64, String)> {
        let table = database.begin_read().unwrap().open_table(CHANGED_VALUES).unwrap();
        let keys = table.iter().unwrap().map(|item| item.unwrap().0);
        keys.map(|key| (key.value().0, key.value().1.to_owned())).collect()
    }

    #[test]
    fn a_file_that_was_not_closed_opens_without_repair() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("open"), folder.path().join("copy"));
        let database = create(&path);
        swap(&database, "a", 0, b"x").unwrap().unwrap();
        // The file as left by a killed warden.
        std::fs::copy(&path, &copy).unwrap();
        let is_repaired = Arc::new(AtomicBool::new(false));
        let noted = is_repaired.clone();
        let mut builder = Builder::new();
        builder.set_repair_callback(move |_| noted.store(true, Ordering::Relaxed));
        let database = builder.open(&copy).unwrap();
        assert!(!is_repaired.load(Ordering::Relaxed));
        assert_eq!(read::value(&database, "a").unwrap().value, b"x");
    }

    #[test]
    fn the_index_of_values_stays_consistent() {
        let folder = tempfile::tempdir().unwrap();
        let database = create(&folder.path().join("file"));
        let first = swap(&database, "a", 0, b"1").unwrap().unwrap();
        let other = swap(&database, "b", 0, b"1").unwrap().unwrap();
        let second = swap(&database, "a", first, b"2").unwrap().unwrap();
        assert_eq!(changed_values(&database), [(other, "b".to_owned()), (second, "a".to_owned())]);
        assert!(remove(&database, "b", other).unwrap());
        assert_eq!(changed_values(&database), [(second, "a".to_owned())]);
    }

    #[test]
    fn values_written_by_an_earlier_version_are_news_too() {
        let folder = tempfile::tempdir().unwrap();
        let database = create(&folder.path().join("file"));
        let first = swap(&database, "a", 0, b"1").unwrap().unwrap();
        // An earlier version writes values and their revisions, but not the index.
        let transaction = database.begin_write().unwrap();
        let revision = next_revision(&mut transaction.open_table(META).unwrap()).unwrap();
        transaction.open_table(VALUES).unwrap().insert("a", (revision, &b"2"[..])).unwrap();
        transaction.open_table(VALUES).unwrap().insert("b", (revision, &b"3"[..])).unwrap();
        transaction.commit().unwrap();

        assert!(!prepare(&database, Timestamp::UNIX_EPOCH).unwrap());
        let news = read::news(&database, Position { entry: 0, revision: first }, 10).unwrap();
        let values: Vec<_> = news.values.iter().map(|(name, value)| (name.as_str(), &*value.value)).collect();
        assert_eq!(values, [("a", &b"2"[..]), ("b", &b"3"[..])]);
    }
}
