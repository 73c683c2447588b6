//! Clocks: the system clock, and one that follows tokio's time so that tests can control it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A source of wall-clock time. Values are whole milliseconds, the precision used on the wire (DECISIONS 3).
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// The boot time of the machine, derived from the current time. A different value within the same boot means that
    /// the clock was set in between.
    fn at_boot(&self) -> Timestamp;
}

/// The system clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        whole_milliseconds(Timestamp::now())
    }

    // Uses the same source as `Instant`, so a clock change at run time shows up as a different boot time.
    fn at_boot(&self) -> Timestamp {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let since = SignedDuration::new(time.tv_sec, i32::try_from(time.tv_nsec).unwrap_or_default());
        whole_milliseconds(Timestamp::now().checked_sub(since).unwrap_or(Timestamp::MIN))
    }
}

/// A clock that starts at a given time and advances with tokio's clock, even if that is paused.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    base: Timestamp,
    start: tokio::time::Instant,
}

impl TokioClock {
    /// Creates a clock whose current time is `base`. Must be called inside the runtime whose time it follows.
    pub fn starting_at(base: Timestamp) -> Self {
        Self { base: whole_milliseconds(base), start: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        whole_milliseconds(self.base.checked_add(elapsed).unwrap_or(Timestamp::MAX))
    }

    fn at_boot(&self) -> Timestamp {
        self.base
    }
}

/// Measures how long something has run, including time in suspend (`CLOCK_BOOTTIME`). That clock cannot be set, while the
/// wall clock may jump by years when the network comes up.
#[derive(Debug, Clone, Copy)]
pub struct Uptime {
    started: Duration,
    since_boot: fn() -> Duration,
}

impl Uptime {
    /// Starts measuring now.
    pub fn starting_now() -> Self {
        Self::by(since_boot)
    }

    /// Starts measuring now, with a custom time source.
    pub fn by(since_boot: fn() -> Duration) -> Self {
        Self { started: since_boot(), since_boot }
    }

    /// Whole seconds since the start.
    pub fn seconds(&self) -> u64 {
        (self.since_boot)().saturating_sub(self.started).as_secs()
    }
}

fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither part is ever negative.
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

fn whole_milliseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).expect("milliseconds of a timestamp are in range")
}

#[cfg(test)]
mod tests {
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
    fn uptime_follows_the_time_since_boot_and_not_the_wall_clock() {
        static NOW: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(5000);
        let uptime = Uptime::by(|| Duration::from_millis(NOW.load(std::sync::atomic::Ordering::SeqCst)));
        assert_eq!(uptime.seconds(), 0);
        NOW.store(12_999, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(uptime.seconds(), 7);
        let boot: f64 =
            std::fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!((since_boot().as_secs_f64() - boot).abs() < 60.0, "{boot}");
        assert_eq!(Uptime::starting_now().seconds(), 0);
    }

    #[test]
    fn the_system_clock_shows_whole_milliseconds() {
        assert_eq!(SystemClock.now().subsec_nanosecond() % 1_000_000, 0);
    }

    #[test]
    fn the_boot_time_is_stable_while_the_clock_is_not_set() {
        let before = SystemClock.at_boot();
        std::thread::sleep(Duration::from_millis(20));
        let off = SystemClock.at_boot().duration_since(before).abs();
        assert!(off < SignedDuration::from_millis(20), "{off:?}");
        assert!(before < SystemClock.now());
    }
}
