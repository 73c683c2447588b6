//! What a crash kept from being recorded everywhere: decided and durable with the service's state, but killed before
//! it reached the outbox or the audit file. Each gets it once, whoever has it already.

use evenkeel_common::wire::AuditEntry;

use crate::service::unsaid;

/// The last entries that a destination has.
#[derive(Debug, Clone)]
pub struct Tail {
    entries: Vec<AuditEntry>,
    /// There were more before them.
    is_cut: bool,
}

impl Tail {
    /// The last entries, at most `limit` of which were asked for, in any order.
    pub fn new(entries: Vec<AuditEntry>, limit: usize) -> Self {
        Self { is_cut: entries.len() >= limit, entries }
    }

    /// Those of `said` that are not here. What is older than everything here was here once.
    fn lacks(&self, said: &[AuditEntry]) -> Vec<AuditEntry> {
        let oldest = self.entries.iter().map(|entry| entry.timestamp).min().filter(|_| self.is_cut);
        let mut missing = unsaid(said, &self.entries);
        missing.retain(|entry| oldest.is_none_or(|oldest| entry.timestamp >= oldest));
        missing
    }
}

/// Who lacks an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// The streams, the push and the channels.
    Outbox,
    /// The audit file.
    File,
    /// All of them.
    Both,
}

/// The entries of `said` that are missing somewhere; a destination that is `None` lacks nothing.
pub fn missing(said: &[AuditEntry], outbox: Option<&Tail>, file: Option<&Tail>) -> Vec<(AuditEntry, Lack)> {
    let lacks = |tail: Option<&Tail>| tail.map(|tail| tail.lacks(said)).unwrap_or_default();
    let (outbox, file) = (lacks(outbox), lacks(file));
    let judge = |entry: &AuditEntry| match (outbox.contains(entry), file.contains(entry)) {
        (true, true) => Some(Lack::Both),
        (true, false) => Some(Lack::Outbox),
        (false, true) => Some(Lack::File),
        (false, false) => None,
    };
    said.iter().filter_map(|entry| Some((entry.clone(), judge(entry)?))).collect()
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
    fn each_destination_gets_what_it_lacks() {
        let said: Vec<_> = (1..=4).map(entry).collect();
        let outbox = Tail::new(vec![entry(1), entry(2)], 500);
        let file = Tail::new(vec![entry(1), entry(3)], 500);
        let found = missing(&said, Some(&outbox), Some(&file));
        assert_eq!(found, [(entry(2), Lack::File), (entry(3), Lack::Outbox), (entry(4), Lack::Both)]);
        assert_eq!(missing(&said, None, None), []);
    }

    #[test]
    fn what_is_older_than_a_cut_tail_is_not_brought_again() {
        let said = [entry(1), entry(9)];
        let tail = Tail::new(vec![entry(5), entry(6)], 2);
        assert_eq!(missing(&said, Some(&tail), None), [(entry(9), Lack::Outbox)]);
    }
}
