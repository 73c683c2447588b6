//! What time it is: the machine's clock, and one that follows tokio's time so that tests can set it.

use jiff::Timestamp;

/// Where times come from. Values are whole milliseconds, which is what the wire carries (DECISIONS 3).
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        whole_milliseconds(Timestamp::now())
    }
}

/// A clock that starts at a given time and advances with tokio's, also while that is paused.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    base: Timestamp,
    start: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that shows `base` now. Call it inside the runtime whose time it is to follow.
    pub fn starting_at(base: Timestamp) -> Self {
        Self { base: whole_milliseconds(base), start: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed =
            jiff::SignedDuration::try_from(self.start.elapsed()).unwrap_or(jiff::SignedDuration::MAX);
        whole_milliseconds(self.base.checked_add(elapsed).unwrap_or(Timestamp::MAX))
    }
}

fn whole_milliseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).expect("milliseconds of a timestamp are in range")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_tokio_clock_follows_paused_time() {
        let base: Timestamp = "2026-01-02T03:04:05.678912Z".parse().unwrap();
        let clock = TokioClock::starting_at(base);
        assert_eq!(clock.now().to_string(), "2026-01-02T03:04:05.678Z");
        tokio::time::sleep(Duration::from_millis(90_001)).await;
        assert_eq!(clock.now().to_string(), "2026-01-02T03:05:35.679Z");
    }

    #[test]
    fn the_system_clock_shows_whole_milliseconds() {
        assert_eq!(SystemClock.now().subsec_nanosecond() % 1_000_000, 0);
    }
}
