//! Measures how much this machine's clock differs from the database's. Leases and freezes end by the clocks of the wardens,
//! so these must agree (DECISIONS 8); each is compared with the database's clock, which all wardens share.

use std::sync::Arc;

use evenkeel_common::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// A difference of at least this much is logged.
const TOO_MUCH: SignedDuration = SignedDuration::from_secs(10);

/// The measured clock difference.
pub(super) struct Skew {
    clock: Arc<dyn Clock>,
    ahead: Mutex<Option<SignedDuration>>,
}

impl Skew {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, ahead: Mutex::default() }
    }

    /// Returns the time by this machine's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns how far this machine's clock is ahead; negative if it is behind. `None` before the first measurement.
    pub(super) fn ahead(&self) -> Option<SignedDuration> {
        *self.ahead.lock()
    }

    /// Records the database's time, in seconds since 1970, which was requested at `asked`.
    pub(super) fn note(&self, asked: Timestamp, database: f64) {
        let Some(now) = ahead(asked, database, self.now()) else { return };
        let known = self.ahead.lock().replace(now);
        let was_too_much = known.is_some_and(is_too_much);
        if is_too_much(now) && !was_too_much {
            let (by, side) = (now.abs().as_secs(), if now.is_positive() { "ahead of" } else { "behind" });
            tracing::warn!(
                "this machine's clock is {by} s {side} the database's; the clocks of all wardens must agree, or leases and freezes end at the wrong time"
            );
        } else if was_too_much && !is_too_much(now) {
            tracing::info!("this machine's clock agrees with the database's again");
        }
    }
}

fn is_too_much(ahead: SignedDuration) -> bool {
    ahead.abs() >= TOO_MUCH
}

/// Returns the smallest difference that explains the answer, which was created at some time between `asked` and `answered`.
fn ahead(asked: Timestamp, database: f64, answered: Timestamp) -> Option<SignedDuration> {
    let since = SignedDuration::try_from_secs_f64(database).ok()?;
    let database = Timestamp::UNIX_EPOCH.checked_add(since).ok()?;
    let (least, most) = (asked.duration_since(database), answered.duration_since(database));
    Some(if least.is_positive() { least } else { most.min(SignedDuration::ZERO) })
}

#[cfg(test)]
mod tests {
    use evenkeel_common::clock::TokioClock;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn the_round_trip_time_does_not_count_as_a_difference() {
        for (database, expected) in [(100.0, 0), (104.5, 0), (109.0, 0), (70.0, 30), (139.0, -30)] {
            let expected = SignedDuration::from_secs(expected);
            assert_eq!(ahead(at(100), database, at(109)), Some(expected), "{database}");
        }
        for nonsense in [f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(ahead(at(100), nonsense, at(109)), None);
        }
    }

    #[tokio::test]
    async fn the_last_measurement_counts() {
        let skew = Skew::new(Arc::new(TokioClock::starting_at(at(100))));
        assert_eq!(skew.ahead(), None);
        for (database, ahead) in [(70.0, 30), (100.0, 0), (400.0, -299)] {
            skew.note(at(100), database);
            let seconds = skew.ahead().unwrap().as_secs();
            assert!((ahead - 1..=ahead + 1).contains(&seconds), "{database}: {seconds}");
        }
    }
}
