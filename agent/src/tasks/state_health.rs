//! Records once when the state can't be written, and once when it can again.
//!
//! The store reports failed writes. This task detects the recovery with a probe as large as a deployment's writes, after a
//! period without failures.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::store::{Failing, Store, StoreError, Writes};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;

use crate::project::world::Record;

/// Interval between probes, and required period without failures.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// For how long a worker that does not answer counts as alive while a write of the state is in progress.
const SLOW_WRITE: Duration = Duration::from_mins(10);
/// Interval between looks at the writes; well within the timeout of a watchdog.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Key and size of the probe record. The size matters because a full disk often has room for a small write.
const PROBE: &str = "probe";
const PROBE_SIZE: usize = 64 * 1024;

/// The state health task.
pub struct StateHealth {
    /// Store to probe.
    pub store: Arc<dyn Store>,
    /// Current write failure, set by [`evenkeel_common::store::MonitoredStore`].
    pub failing: watch::Sender<Option<Failing>>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Audit.
    pub record: Record,
}

impl StateHealth {
    /// Watches until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        // `watch` ends only by cancellation.
        let _ = stop.run_until_cancelled(self.watch()).await;
    }

    async fn watch(&self) {
        let mut failing = self.failing.subscribe();
        loop {
            let cause = match failing.wait_for(Option::is_some).await {
                Ok(failing) => failing.as_ref().map(|failing| failing.error.to_string()),
                Err(_) => return,
            };
            let message = "the state can't be written; nothing is deployed or healed until it can";
            self.emit(Kind::ERROR, Level::Critical, message, cause.clone());
            self.until_recovered().await;
            self.failing.send_replace(None);
            self.emit(Kind::RECOVERED, Level::Info, "the state can be written again", cause);
        }
    }

    async fn until_recovered(&self) {
        loop {
            tokio::time::sleep(PROBE_EVERY).await;
            let fails = |failing: &Failing| failing.at.elapsed() < PROBE_EVERY;
            if !self.failing.borrow().as_ref().is_some_and(fails) && self.probe().await.is_ok() {
                return;
            }
        }
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.store.put(PROBE, vec![0; PROBE_SIZE]).await?;
        self.store.put_all(vec![(PROBE.to_owned(), None)]).await
    }

    fn emit(&self, kind: Kind, level: Level, message: &str, reason: Option<String>) {
        let mut entry = AuditEntry::new(self.clock.now(), PROGRAM, kind, level, message);
        entry.reason = reason;
        (self.record)(entry);
    }
}

/// Waits until the workers have answered, or are known to wait for a slow disk: a restart would not make it faster, and the copy
/// that keeps it busy would begin again.
pub async fn responds(round_trip: impl Future<Output = ()>, writes: &Writes) {
    let mut round_trip = pin!(round_trip);
    while timeout(LOOK_EVERY, &mut round_trip).await.is_err() {
        if writes.waiting().is_some_and(|waited| waited < SLOW_WRITE) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use evenkeel_common::store::{Change, MonitoredStore};
    use tokio::time::sleep;

    use super::*;

    /// A disk that never ends a write.
    struct Hanging;

    #[async_trait]
    impl Store for Hanging {
        async fn put_all(&self, _: Vec<Change>) -> Result<(), StoreError> {
            std::future::pending().await
        }

        async fn get(&self, _: &str) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(None)
        }

        async fn scan(&self, _: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
            Ok(Vec::new())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_waits_for_a_slow_disk_counts_as_alive_for_ten_minutes() {
        let writes = Writes::default();
        let store = MonitoredStore::new(Arc::new(Hanging), watch::Sender::new(None), writes.clone());
        let is_alive = async || {
            timeout(Duration::from_mins(30), responds(std::future::pending(), &writes)).await.is_ok()
        };
        assert!(!is_alive().await, "nothing is written");
        let script = async {
            assert!(is_alive().await);
            sleep(SLOW_WRITE).await;
            assert!(!is_alive().await, "the disk hangs");
        };
        tokio::select! {
            written = store.put("key", Vec::new()) => panic!("it was written: {written:?}"),
            () = script => {}
        }
        assert_eq!(writes.waiting(), None, "the write was given up");
    }
}
