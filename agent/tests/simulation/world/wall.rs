//! The machine's clock: it runs with virtual time, and operators may set it. Times that the engine reports are those of
//! this clock; the world itself uses virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use evenkeel_common::clock::Clock;
use jiff::{SignedDuration, Timestamp};

use super::{FakeWorld, Inner};

/// The machine's clock.
pub(super) struct Wall {
    steady: Arc<dyn Clock>,
    /// Milliseconds.
    ahead_by: AtomicI64,
}

impl Wall {
    pub(super) fn of(steady: Arc<dyn Clock>) -> Self {
        Self { steady, ahead_by: AtomicI64::default() }
    }
}

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        self.steady.now() + SignedDuration::from_millis(self.ahead_by.load(Ordering::SeqCst))
    }

    fn at_boot(&self) -> Timestamp {
        self.steady.at_boot() + SignedDuration::from_millis(self.ahead_by.load(Ordering::SeqCst))
    }
}

impl FakeWorld {
    /// Moves the machine's clock by this many seconds.
    pub(super) fn set_clock(&self, by: i64) {
        let mut inner = self.lock();
        let before = self.wall.ahead_by.fetch_add(by * 1000, Ordering::SeqCst);
        let now = inner.now;
        inner.clock_set.push((now, SignedDuration::from_millis(before) + SignedDuration::from_secs(by)));
    }
}

impl Inner {
    /// Returns the time that the machine's clock showed at that moment.
    pub(super) fn wall(&self, at: Timestamp) -> Timestamp {
        let set = self.clock_set.iter().rev().find(|(since, _)| *since <= at);
        set.map_or(at, |(_, ahead_by)| at + *ahead_by)
    }

    /// Reports whether the difference of two times results from the clock having been set.
    pub(super) fn is_shifted(&self, before: Timestamp, after: Timestamp) -> bool {
        let all: Vec<SignedDuration> =
            [SignedDuration::ZERO].into_iter().chain(self.clock_set.iter().map(|(_, by)| *by)).collect();
        let by = after.duration_since(before);
        let is_it = |(one, other): (SignedDuration, SignedDuration)| {
            (other - one - by).abs() < SignedDuration::from_millis(50)
        };
        all.iter().flat_map(|one| all.iter().map(|other| (*one, *other))).any(is_it)
    }
}
