//! Records once when the state can't be written, and once when it can again.
//!
//! The store reports failed writes. This task detects the recovery with a probe as large as a deployment's writes, after a
//! period without failures.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::store::{Failing, Store, StoreError};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;

use crate::project::world::Record;

/// Interval between probes, and required period without failures.
const PROBE_EVERY: Duration = Duration::from_secs(5);
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
