//! The sequence numbers of one agent that have arrived, and the gaps between them.

use serde::{Deserialize, Serialize};

/// Limit on the number of ranges; beyond it the oldest gap is forgotten.
pub(super) const MAX_RANGES: usize = 1024;
/// A jump this wide is not a gap but a new numbering: no queue holds that many entries (DECISIONS 5: 10,000).
const MAX_JUMP: u64 = 1_000_000;

/// A set of numbers as ascending ranges that neither touch nor overlap.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(super) struct SequenceSet {
    ranges: Vec<(u64, u64)>,
}

impl SequenceSet {
    /// Adds a number. Returns `false` if it was already present.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        // The first range that ends at the number or after it.
        let at = self.ranges.partition_point(|(_, end)| *end < number);
        if self.ranges.get(at).is_some_and(|(start, _)| *start <= number) {
            return false;
        }
        let joins_left = at > 0 && self.ranges[at - 1].1.checked_add(1) == Some(number);
        let joins_right = self.ranges.get(at).is_some_and(|(start, _)| start - 1 == number);
        match (joins_left, joins_right) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = number,
            (false, true) => self.ranges[at].0 = number,
            (false, false) => self.ranges.insert(at, (number, number)),
        }
        self.limit(MAX_RANGES);
        true
    }

    /// Forgets the oldest gaps if there are more ranges than this, which must not be 0.
    pub(super) fn limit(&mut self, ranges: usize) {
        let excess = self.ranges.len().saturating_sub(ranges);
        if excess > 0 {
            self.ranges[excess].0 = self.ranges[0].0;
            self.ranges.drain(..excess);
        }
    }

    /// Returns the number of ranges.
    #[cfg(test)]
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Reports whether a number is present.
    pub(super) fn contains(&self, number: u64) -> bool {
        let at = self.ranges.partition_point(|(_, end)| *end < number);
        self.ranges.get(at).is_some_and(|(start, _)| *start <= number)
    }

    /// Returns the greatest number.
    pub(super) fn last(&self) -> Option<u64> {
        self.ranges.last().map(|(_, end)| *end)
    }

    /// Returns how many numbers between the least and the greatest are missing.
    pub(super) fn missing(&self) -> u64 {
        self.ranges.windows(2).map(|pair| pair[1].0 - pair[0].1 - 1).sum()
    }

    /// Reports whether a number is so far from all others that it must belong to a new numbering.
    pub(super) fn is_far(&self, number: u64) -> bool {
        match (self.ranges.first(), self.last()) {
            (Some((first, _)), Some(last)) => {
                number.saturating_sub(last) > MAX_JUMP || first.saturating_sub(number) > MAX_JUMP
            }
            _ => false,
        }
    }
}

impl TryFrom<Vec<(u64, u64)>> for SequenceSet {
    type Error = &'static str;

    fn try_from(ranges: Vec<(u64, u64)>) -> Result<Self, Self::Error> {
        let is_sorted = ranges.iter().all(|(start, end)| start <= end)
            && ranges.windows(2).all(|pair| pair[1].0 > pair[0].1 && pair[1].0 - pair[0].1 > 1);
        if is_sorted && ranges.len() <= MAX_RANGES {
            Ok(Self { ranges })
        } else {
            Err("ranges that are not in order")
        }
    }
}

impl From<SequenceSet> for Vec<(u64, u64)> {
    fn from(seen: SequenceSet) -> Self {
        seen.ranges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn gaps_open_and_close() {
        let mut seen = SequenceSet::default();
        assert!(seen.insert(5));
        assert_eq!((seen.last(), seen.missing()), (Some(5), 0), "numbers before the first are not missing");
        assert!(seen.insert(9));
        assert_eq!(seen.missing(), 3);
        assert!(seen.insert(7) && seen.insert(6) && seen.insert(8));
        assert_eq!((seen.missing(), seen.ranges.as_slice()), (0, &[(5, 9)][..]));
        assert!(!seen.insert(5) && !seen.insert(7) && !seen.insert(9));
        assert!(seen.insert(0) && seen.insert(u64::MAX));
        assert!(!seen.insert(u64::MAX) && !seen.insert(0));
        assert_eq!(seen.missing(), 4 + (u64::MAX - 10));
    }

    /// Random insertions give the same results as with a plain set.
    #[test]
    fn it_agrees_with_a_plain_set() {
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for size in [1, 2, 8, 200] {
            let (mut seen, mut plain) = (SequenceSet::default(), BTreeSet::new());
            for _ in 0..2000 {
                let number = next(size) + 3;
                assert_eq!(seen.contains(number), plain.contains(&number));
                assert_eq!(seen.insert(number), plain.insert(number));
                let (first, last) = (*plain.first().unwrap(), *plain.last().unwrap());
                assert_eq!(seen.last(), Some(last));
                assert_eq!(seen.missing(), last - first + 1 - plain.len() as u64);
                let text = serde_json::to_string(&seen).unwrap();
                assert_eq!(serde_json::from_str::<SequenceSet>(&text).unwrap(), seen);
            }
        }
    }

    #[test]
    fn memory_for_gaps_is_bounded() {
        let mut seen = SequenceSet::default();
        for n in 0..10_000 {
            seen.insert(n * 2);
        }
        assert_eq!(seen.ranges.len(), MAX_RANGES);
        assert_eq!(seen.missing(), MAX_RANGES as u64 - 1);
        assert!(!seen.insert(1), "the oldest gap was dropped");
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for text in ["[[2,1]]", "[[1,2],[2,3]]", "[[1,2],[3,4]]", "[[5,6],[1,2]]", "[[1]]", "[[-1,2]]", "{}"]
        {
            assert!(serde_json::from_str::<SequenceSet>(text).is_err(), "{text}");
        }
    }
}
