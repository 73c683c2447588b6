//! What the store has of the outbox when it is opened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::{CAPACITY, DONE, ENTRIES, HISTORY, Place, place_key};
use crate::store::{Change, Store, StoreError};
use crate::wire::AuditEntry;

/// The number that a row has as text.
pub(super) fn number(row: &[u8]) -> Option<u64> {
    std::str::from_utf8(row).ok()?.parse().ok()
}

/// The entries that the store has.
pub(super) struct Read {
    /// The last ones without a gap.
    pub(super) history: VecDeque<Arc<AuditEntry>>,
    /// Number of the first one.
    pub(super) first: Option<u64>,
    /// The number after the last one.
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

/// Where each of these destinations stands; the places of others are removed. A place means nothing without the numbers
/// that it is one of.
pub(super) async fn read_places(
    store: &dyn Store,
    names: &[String],
    next: u64,
    has_numbers: bool,
) -> Result<BTreeMap<String, Place>, StoreError> {
    let rows = store.scan(DONE).await?.into_iter();
    let known: BTreeMap<String, u64> =
        rows.filter_map(|(key, row)| Some((key[DONE.len()..].to_owned(), number(&row)?))).collect();
    let place = |name: &String| {
        let stored = known.get(name).copied().filter(|_| has_numbers);
        (name.clone(), Place { next: stored.unwrap_or(next).min(next), stored, open: false })
    };
    let places: BTreeMap<String, Place> = names.iter().map(place).collect();
    let forgotten = known.keys().filter(|name| !places.contains_key(*name));
    let forget = |name: &String| {
        let waited = known[name].min(next).abs_diff(next).min(CAPACITY);
        tracing::warn!(
            destination = name,
            waited,
            "this destination is configured no more; what waited for it is dropped"
        );
        (place_key(name), None)
    };
    let changes: Vec<Change> = forgotten.map(forget).collect();
    if !changes.is_empty() {
        store.put_all(changes).await?;
    }
    Ok(places)
}
