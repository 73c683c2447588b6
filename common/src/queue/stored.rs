//! Reads the outbox from the store when it is opened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::{CAPACITY, Cursor, DONE, ENTRIES, HISTORY, cursor_key, is_family, is_kept_by, start_of};
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
        let inherited = || start_of(name, names, known.iter().map(|(known, at)| (known.as_str(), *at)));
        let start = stored.or_else(|| inherited().filter(|_| has_numbers)).unwrap_or(next);
        (name.clone(), Cursor { next: start.min(next), stored, open: false })
    };
    let mut cursors: BTreeMap<String, Cursor> =
        names.iter().filter(|name| !name.ends_with('*')).map(cursor).collect();
    for (name, at) in &known {
        if has_numbers && !cursors.contains_key(name) && names.iter().any(|listed| is_kept_by(listed, name)) {
            cursors.insert(name.clone(), Cursor { next: (*at).min(next), stored: Some(*at), open: false });
        }
    }
    let unknown = known.keys().filter(|name| !names.iter().any(|listed| is_kept_by(listed, name)));
    let remove = |name: &String| {
        if names.iter().any(|listed| is_family(listed, name)) {
            return (cursor_key(name), None);
        }
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
