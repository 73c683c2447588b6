//! What time it is: the machine's clock, and one that follows tokio's time so that tests can set it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Where times come from. Values are whole milliseconds, which is what the wire carries (DECISIONS 3).
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// What it showed when the machine was booted, by what it shows now: another value in the same boot says that it was
    /// set meanwhile.
    fn at_boot(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        whole_milliseconds(Timestamp::now())
    }

    // By the source of `Instant`, which is what tells a clock that is set while the program runs.
    fn at_boot(&self) -> Timestamp {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let since = SignedDuration::new(time.tv_sec, i32::try_from(time.tv_nsec).unwrap_or_default());
        whole_milliseconds(Timestamp::now().checked_sub(since).unwrap_or(Timestamp::MIN))
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
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        whole_milliseconds(self.base.checked_add(elapsed).unwrap_or(Timestamp::MAX))
    }

    fn at_boot(&self) -> Timestamp {
        self.base
    }
}

/// How long something has run. It follows the time since boot, suspension included (`CLOCK_BOOTTIME`): nobody can set that,
/// while the clock on the wall may jump by years when the network comes.
#[derive(Debug, Clone, Copy)]
pub struct Uptime {
    began: Duration,
    since_boot: fn() -> Duration,
}

impl Uptime {
    /// Begins now.
    pub fn starting_now() -> Self {
        Self::by(since_boot)
    }

    /// Begins now, by another source of time.
    pub fn by(since_boot: fn() -> Duration) -> Self {
        Self { began: since_boot(), since_boot }
    }

    /// Whole seconds since it began.
    pub fn seconds(&self) -> u64 {
        (self.since_boot)().saturating_sub(self.began).as_secs()
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
    fn uptime_follows_the_time_since_boot_and_not_the_clock_on_the_wall() {
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
    fn what_the_clock_showed_at_boot_stays_the_same_while_nobody_sets_it() {
        let before = SystemClock.at_boot();
        std::thread::sleep(Duration::from_millis(20));
        let off = SystemClock.at_boot().duration_since(before).abs();
        assert!(off < SignedDuration::from_millis(20), "{off:?}");
        assert!(before < SystemClock.now());
    }
}
