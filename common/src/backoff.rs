//! Exponential backoff: pauses that double with each failure, up to a longest one.

use std::time::Duration;

/// Pauses between attempts.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Begins with `first`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Counts a failure, and returns the pause before the next attempt.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        after(self.failures, self.first, self.longest)
    }

    /// Begins anew after a success.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// Returns the pause after this many consecutive failures.
pub fn after(failures: u32, first: Duration, longest: Duration) -> Duration {
    let doublings = failures.saturating_sub(1);
    1_u32
        .checked_shl(doublings)
        .and_then(|times| first.checked_mul(times))
        .map_or(longest, |pause| pause.min(longest))
}

/// Shortens a pause by up to a quarter, so that many agents do not return at the same instant.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 - fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(5));
        let mut backoff = Backoff::new(first, longest);
        let pauses: Vec<u64> = (0..5).map(|_| backoff.failed().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        backoff.succeeded();
        assert_eq!(backoff.failed(), first);
        for failures in [32, 33, 64, u32::MAX] {
            assert_eq!(after(failures, first, longest), longest, "{failures}");
        }
        assert_eq!(after(0, first, longest), first, "as after one");
        let pauses: Vec<_> = (0..200).map(|_| jittered(Duration::from_secs(40))).collect();
        assert!(pauses.iter().all(|pause| (30.0..=40.0).contains(&pause.as_secs_f64())), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "they are spread");
    }
}
