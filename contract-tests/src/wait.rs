//! Waiting on a state.

use std::time::{Duration, Instant};

/// Asks `probe` again and again until it succeeds. Panics after `timeout` with what was seen last.
#[track_caller]
pub fn wait_for<T>(timeout: Duration, what: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        let seen = match probe() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        assert!(began.elapsed() < timeout, "waited {timeout:?} in vain for {what}; seen last: {seen}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
