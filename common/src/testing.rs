//! What the tests of all packages share: waiting on a state, ports for the programs that they start, samples. Behind the
//! feature `testing`, which no program has.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::wire::{CheckStatus, ServiceStatus, StatusValue};

/// Time limit for what a test waits for in the end. Far more than it takes: on a machine with other work every process
/// waits for its turn, and a limit that a slow machine reaches says nothing about the program.
pub const LONG: Duration = Duration::from_mins(2);

/// The first and the longest pause between two looks at a state.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));

/// Asks `probe` again and again until it succeeds. Panics after [`LONG`] with what it saw last.
#[track_caller]
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    let (mut pause, longest) = PAUSES;
    loop {
        let seen = match probe() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        assert!(began.elapsed() < LONG, "waited {LONG:?} in vain for {what}; seen last: {seen}");
        std::thread::sleep(pause);
        pause = longest.min(pause * 2);
    }
}

/// The same in a task.
pub async fn wait_for_async<T>(what: &str, mut probe: impl AsyncFnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    let (mut pause, longest) = PAUSES;
    loop {
        let seen = match probe().await {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        assert!(began.elapsed() < LONG, "waited {LONG:?} in vain for {what}; seen last: {seen}");
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
}

/// A port of 127.0.0.1 at which nobody listens, for a program that begins to listen there in a moment, or again
/// after a restart.
///
/// It lies below the range from which Linux serves those who bind port 0 or connect (`ip_local_port_range`), as
/// engines do for published ports: none of them takes it in between. Tests that run side by side are processes,
/// and each looks from a place of its own.
///
/// # Panics
///
/// When all ports of the range are taken.
#[must_use]
pub fn unused_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    const PER_PROCESS: u32 = 8;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let place = (process::id() % COUNT) * PER_PROCESS;
    (0..COUNT)
        .map(|_| FIRST + (place + TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("one port of thousands is free")
}

/// The status of a service of which nothing is known yet and nothing is turned on.
pub fn service_status(name: &str) -> ServiceStatus {
    ServiceStatus {
        name: name.to_owned(),
        status: StatusValue::Unknown,
        blocked: None,
        not_found: None,
        errored: None,
        auto_update: false,
        auto_start: false,
        auto_heal: false,
        healthy: None,
        unhealthy_reason: None,
        deploying: false,
        degraded: false,
        exhausted: false,
        restart_failures: 0,
        updates_total: 0,
        rollbacks_total: 0,
        restarts_total: 0,
        failures_total: 0,
        images: None,
        containers: None,
        has_stats: false,
        cpu_percent: 0.0,
        memory_percent: 0.0,
        memory_usage_mb: 0.0,
        memory_limit_mb: 0.0,
        last_check: None,
        next_check: None,
        waiting: None,
        blocked_by: None,
        check_status: CheckStatus::Idle,
        way_back: None,
        way_back_reason: None,
        deploy: None,
    }
}
