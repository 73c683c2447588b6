//! Helpers for the tests of all packages: waiting for a condition, unused ports, TLS servers, samples. Behind the feature `testing`, which
//! no program enables.

use std::net::TcpListener;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

use crate::wire::{CheckStatus, ServiceStatus, StatusValue};

/// Time limit for a condition that a test waits for. It is generous: on a busy machine every process is slow, and a limit that
/// such a machine exceeds says nothing about the program.
pub const WAIT_LIMIT: Duration = Duration::from_mins(2);

/// The first and the longest pause between two probes.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));

/// Calls `probe` until it succeeds. Panics after [`WAIT_LIMIT`] with the last error.
#[track_caller]
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    let (mut pause, longest) = PAUSES;
    loop {
        let seen = match probe() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        assert!(
            start.elapsed() < WAIT_LIMIT,
            "timed out after {WAIT_LIMIT:?} waiting for {what}; last seen: {seen}"
        );
        std::thread::sleep(pause);
        pause = longest.min(pause * 2);
    }
}

/// The async version of [`wait_for`].
pub async fn wait_for_async<T>(what: &str, mut probe: impl AsyncFnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    let (mut pause, longest) = PAUSES;
    loop {
        let seen = match probe().await {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        assert!(
            start.elapsed() < WAIT_LIMIT,
            "timed out after {WAIT_LIMIT:?} waiting for {what}; last seen: {seen}"
        );
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
}

/// Returns an unused port on 127.0.0.1, for a program that is about to listen on it, or again after a restart.
///
/// The port is below the ephemeral range (`ip_local_port_range`) that Linux uses for binds to port 0 and outgoing
/// connections, and that engines use for published ports, so none of these takes it in the meantime. Tests that run in
/// parallel are separate processes, and each starts its search at a different port.
///
/// # Panics
///
/// If all ports of the range are taken.
#[must_use]
pub fn unused_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    const PER_PROCESS: u32 = 8;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let start = (process::id() % COUNT) * PER_PROCESS;
    (0..COUNT)
        .map(|_| FIRST + (start + TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("one port of thousands is free")
}

/// Accepts TLS connections with a new self-signed certificate for this name.
///
/// # Panics
///
/// If it is not a valid name.
#[must_use]
pub fn self_signed(name: &str) -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a valid name");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("the key is that of the certificate");
    TlsAcceptor::from(Arc::new(config))
}

/// The status of a service with everything unknown and disabled.
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
        snapshots: Vec::new(),
        last_deployment: None,
        since: None,
        failed_update: None,
        requested_checks: None,
    }
}
