//! Ports for programs that a test starts.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

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
#[allow(unreachable_pub, reason = "tests of other packages take this file as a module of their own")]
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
