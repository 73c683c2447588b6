//! What a crash kept from being recorded: decided and durable with the service's state, but killed before it reached
//! the outbox.

use evenkeel_common::wire::AuditEntry;

use crate::service::unsaid;

/// The entries of `said` that are not among the last ones of the outbox (`recorded`, oldest first, at most `limit` of
/// them were kept). What is older than all of these was there once.
pub fn missing(said: &[AuditEntry], recorded: &[AuditEntry], limit: usize) -> Vec<AuditEntry> {
    let is_cut = recorded.len() >= limit;
    let oldest = recorded.iter().map(|entry| entry.timestamp).min().filter(|_| is_cut);
    let mut missing = unsaid(said, recorded);
    missing.retain(|entry| oldest.is_none_or(|oldest| entry.timestamp >= oldest));
    missing
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{Kind, Level};
    use jiff::Timestamp;

    use super::*;

    fn entry(second: i64) -> AuditEntry {
        let at = Timestamp::from_second(second).unwrap();
        AuditEntry::new(at, "web", Kind::UPDATED, Level::Info, format!("{second}"))
    }

    #[test]
    fn only_what_is_missing_is_recorded_again() {
        let said: Vec<_> = (1..=4).map(entry).collect();
        assert_eq!(missing(&said, &[entry(1), entry(3)], 500), [entry(2), entry(4)]);
        assert_eq!(missing(&said, &said, 500), []);
        assert_eq!(missing(&said, &[], 500), said);
    }

    #[test]
    fn what_is_older_than_everything_that_was_kept_is_not_brought_again() {
        assert_eq!(missing(&[entry(1), entry(9)], &[entry(5), entry(6)], 2), [entry(9)]);
    }
}
