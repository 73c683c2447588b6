//! Reads the outbox from the store when it is opened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::{CAPACITY, Cursor, DONE, ENTRIES, HISTORY, cursor_key};
use crate::store::{Change, Store, StoreError};
use crate::wire::AuditEntry;

/// Parses a number that is stored as text.
pub(super) fn number(row: &[u8]) -> Option<u64> {
    std::str::from_utf8(row).ok()?.parse().ok()
}

/// The stored entries.
pub(super) struct Read {
    /// The last entries without a gap.
    pub(super) history: VecDeque<Arc<AuditEntry>>,
    /// Number of the first entry.
    pub(super) first: Option<u64>,
    /// The number after the last entry.
    pub(super) end: u64,
}

pub(super) async fn read_entries(store: &dyn Store) -> Result<Read, StoreError> {
    let mut read = Read { history: VecDeque::new(), first: None, end: 0 };
    for (key, row) in store.scan(ENTRIES).await? {
        let Some(seq) = number(&key.as_bytes()[ENTRIES.len()..]) else { continue };
        read.first.get_or_insert(seq);
        if seq != read.end {
            read.history.clear();
        }
        read.end = seq + 1;
        match serde_json::from_slice(&row) {
            Ok(entry) => read.history.push_back(Arc::new(entry)),
            Err(error) => {
                tracing::error!(seq, %error, "an entry in the outbox is damaged");
                read.history.clear();
            }
        }
        if read.history.len() > HISTORY {
            read.history.pop_front();
        }
    }
    Ok(read)
}

/// Reads the cursors of these destinations and removes those of others. If the store has no sequence number, the stored
/// cursors are meaningless and ignored.
pub(super) async fn read_cursors(
    store: &dyn Store,
    names: &[String],
    next: u64,
    has_numbers: bool,
) -> Result<BTreeMap<String, Cursor>, StoreError> {
    let rows = store.scan(DONE).await?.into_iter();
    let known: BTreeMap<String, u64> =
        rows.filter_map(|(key, row)| Some((key[DONE.len()..].to_owned(), number(&row)?))).collect();
    let cursor = |name: &String| {
        let stored = known.get(name).copied().filter(|_| has_numbers);
        (name.clone(), Cursor { next: stored.unwrap_or(next).min(next), stored, open: false })
    };
    let cursors: BTreeMap<String, Cursor> = names.iter().map(cursor).collect();
    let unknown = known.keys().filter(|name| !cursors.contains_key(*name));
    let remove = |name: &String| {
        let waiting = known[name].min(next).abs_diff(next).min(CAPACITY);
        tracing::warn!(
            destination = name,
            waiting,
            "this destination is no longer configured; its waiting entries are dropped"
        );
        (cursor_key(name), None)
    };
    let changes: Vec<Change> = unknown.map(remove).collect();
    if !changes.is_empty() {
        store.put_all(changes).await?;
    }
    Ok(cursors)
}
