//! Says once that the state can't be written, and once that it can again.
//!
//! A write that fails is noted by the store. Whether writes succeed again is found out here: by a write as large as a
//! deployment's, after a time in which none has failed.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::store::{Failing, Store, StoreError};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;

use crate::project::worker::Record;

/// Time between two probes, and the time without a failure that it takes. Workers try again more often than that.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Key and size of what is written for a probe, and removed again. A full disk often has room for a little more.
const PROBE: &str = "probe";
const PROBE_SIZE: usize = 64 * 1024;

/// The task that tells of it.
pub struct StateHealth {
    /// Where a probe is written.
    pub store: Arc<dyn Store>,
    /// Where failures are noted, see [`evenkeel_common::store::MonitoredStore`].
    pub failing: watch::Sender<Option<Failing>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Audit.
    pub record: Record,
}

impl StateHealth {
    /// Watches until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        // Being told to stop is the only end.
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
            self.say(Kind::ERROR, Level::Critical, message, cause.clone());
            self.until_it_is_over().await;
            self.failing.send_replace(None);
            self.say(Kind::RECOVERED, Level::Info, "the state can be written again", cause);
        }
    }

    async fn until_it_is_over(&self) {
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

    fn say(&self, kind: Kind, level: Level, message: &str, reason: Option<String>) {
        let mut entry = AuditEntry::new(self.clock.now(), PROGRAM, kind, level, message);
        entry.reason = reason;
        (self.record)(entry);
    }
}
