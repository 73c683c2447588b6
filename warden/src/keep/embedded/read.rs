//! Read-only operations on the tables.

use jiff::Timestamp;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata};

use super::TableError;
use super::tables::{
    BYTES, CHANGED, CHANGED_VALUES, ENTRIES, INDEX, MACHINES, META, NEXT_ID, REVISION, VALUES, counter,
};
use crate::keep::query::Collect;
use crate::keep::{News, Page, Position, Query, Stored, Usage, Versioned};

/// [`crate::keep::Keep::news`]
pub(super) fn news(database: &Database, after: Position, limit: usize) -> Result<News, TableError> {
    let transaction = database.begin_read()?;
    let entries = entries_after(&transaction, after.entry, limit)?;
    let meta = transaction.open_table(META)?;
    let last = counter(&meta, NEXT_ID)?.saturating_sub(1);
    let position = Position {
        entry: entries.last().map_or(after.entry.min(last), |entry| entry.id),
        revision: counter(&meta, REVISION)?,
    };
    let (mut machines, mut values) = (Vec::new(), Vec::new());
    if position.revision > after.revision {
        let table = transaction.open_table(MACHINES)?;
        for item in transaction.open_table(CHANGED)?.range((after.revision + 1, "")..)? {
            let key = item?.0;
            if let Some(row) = table.get(key.value().1)? {
                machines.push(serde_json::from_str(row.value().1)?);
            }
        }
        let table = transaction.open_table(VALUES)?;
        for item in transaction.open_table(CHANGED_VALUES)?.range((after.revision + 1, "")..)? {
            let key = item?.0;
            let name = key.value().1;
            if let Some(row) = table.get(name)? {
                let (revision, value) = row.value();
                values.push((name.to_owned(), Versioned { revision, value: value.to_vec() }));
            }
        }
    }
    Ok(News { entries, machines, values, position, connection: 0 })
}

/// [`crate::keep::Keep::tail`]
pub(super) fn tail(database: &Database, after: u64, limit: usize) -> Result<Vec<Stored>, TableError> {
    entries_after(&database.begin_read()?, after, limit)
}

fn entries_after(transaction: &ReadTransaction, after: u64, limit: usize) -> Result<Vec<Stored>, TableError> {
    let table = transaction.open_table(ENTRIES)?;
    let mut found = Vec::new();
    for item in table.range(after.saturating_add(1)..)?.take(limit) {
        let (id, row) = item?;
        found.push(Stored { id: id.value(), line: row.value().1.to_owned() });
    }
    Ok(found)
}

/// [`crate::keep::Keep::history`]
pub(super) fn history(database: &Database, query: &Query) -> Result<Page, TableError> {
    let transaction = database.begin_read()?;
    let table = transaction.open_table(ENTRIES)?;
    let mut page = Collect::new(query);
    if let Some((field, value)) = query.index() {
        let index = transaction.open_table(INDEX)?;
        for item in index.range((field as u8, value, 0)..(field as u8, value, query.before))?.rev() {
            let id = item?.0.value().2;
            if !page.takes(id) {
                break;
            }
            if let Some(row) = table.get(id)? {
                page.look(id, row.value().1);
            }
        }
    } else {
        for item in table.range(..query.before)?.rev() {
            let (id, row) = item?;
            if !page.takes(id.value()) {
                break;
            }
            page.look(id.value(), row.value().1);
        }
    }
    Ok(page.finish())
}

/// [`crate::keep::Keep::value`]
pub(super) fn value(database: &Database, name: &str) -> Result<Versioned, TableError> {
    let table = database.begin_read()?.open_table(VALUES)?;
    let row = table.get(name)?;
    Ok(row
        .map(|row| Versioned { revision: row.value().0, value: row.value().1.to_vec() })
        .unwrap_or_default())
}

/// [`crate::keep::Keep::usage`]
pub(super) fn usage(database: &Database) -> Result<Usage, TableError> {
    let transaction = database.begin_read()?;
    let table = transaction.open_table(ENTRIES)?;
    let oldest = table.first()?.and_then(|(_, row)| Timestamp::from_microsecond(row.value().0).ok());
    let bytes = counter(&transaction.open_table(META)?, BYTES)?;
    Ok(Usage { entries: table.len()?, bytes, oldest })
}
