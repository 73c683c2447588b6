//! Upgrade from earlier versions, which kept a service's latest entries in its state until they had reached the outbox. If
//! such a version was killed in between and then upgraded, those entries are recorded now.

use std::sync::Arc;

use evenkeel_common::queue::HISTORY;
use evenkeel_common::wire::AuditEntry;
use serde::Deserialize;

/// The part of a service's state that is no longer written.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Former {
    said: Vec<AuditEntry>,
}

/// Returns the entries in a service's state (`row`) that are not among the last ones of the outbox (`recorded`, oldest
/// first). Entries older than all recorded ones were recorded and have since been dropped.
pub fn unrecorded(row: &[u8], recorded: &[Arc<AuditEntry>]) -> Vec<AuditEntry> {
    let Former { mut said } = serde_json::from_slice(row).unwrap_or_default();
    let is_cut = recorded.len() >= HISTORY;
    let oldest = recorded.iter().map(|entry| entry.timestamp).min().filter(|_| is_cut);
    let same = |a: &AuditEntry, b: &AuditEntry| {
        (a.timestamp, &a.service, &a.event, &a.message) == (b.timestamp, &b.service, &b.event, &b.message)
    };
    said.retain(|entry| {
        let is_recorded = recorded.iter().any(|other| same(entry, other));
        !is_recorded && oldest.is_none_or(|oldest| entry.timestamp >= oldest)
    });
    said
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{Kind, Level};
    use jiff::Timestamp;

    use super::*;

    fn entry(second: i64) -> Arc<AuditEntry> {
        let at = Timestamp::from_second(second).unwrap();
        Arc::new(AuditEntry::new(at, "web", Kind::UPDATED, Level::Info, format!("{second}")))
    }

    /// The timestamps, in seconds, of the entries that are recorded now.
    fn unrecorded_seconds(said: &[i64], recorded: &[Arc<AuditEntry>]) -> Vec<i64> {
        let said: Vec<_> = said.iter().map(|second| (*entry(*second)).clone()).collect();
        let row = serde_json::json!({ "said": said, "rollback_failed": true }).to_string();
        unrecorded(row.as_bytes(), recorded).iter().map(|entry| entry.timestamp.as_second()).collect()
    }

    #[test]
    fn only_missing_entries_are_recorded() {
        assert_eq!(unrecorded_seconds(&[1, 2, 3, 4], &[entry(1), entry(3)]), [2, 4]);
        assert_eq!(unrecorded_seconds(&[1, 3], &[entry(1), entry(3)]), [] as [i64; 0]);
        assert_eq!(unrecorded_seconds(&[1, 2], &[]), [1, 2]);
        assert_eq!(unrecorded(b"{}", &[]), [], "a row of this version has none");
    }

    #[test]
    fn entries_older_than_the_recorded_ones_are_not_recorded_again() {
        let recorded: Vec<_> = (5..).take(HISTORY).map(entry).collect();
        assert_eq!(unrecorded_seconds(&[1, 9000], &recorded), [9000]);
    }
}
