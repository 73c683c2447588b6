//! Pings the engine every `docker_health.check_interval` and records when its availability changes (spec 1.8).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;
use crate::config::active;
use crate::model::EngineError;
use crate::ports::Engine;
use crate::project::services::EngineHealth;

use crate::project::world::Record;

/// The engine health task.
pub struct EngineProbe {
    /// Container engine.
    pub engine: Arc<dyn Engine>,
    /// Active configuration: check interval and timeout.
    pub active: active::Watch,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Audit.
    pub record: Record,
    /// Published engine health.
    pub state: watch::Sender<EngineHealth>,
    /// Requests an immediate check because the engine's availability may have changed.
    pub check_now: Arc<Notify>,
}

impl EngineProbe {
    /// Checks the engine until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let timing = self.active.borrow_and_update().config.docker_health.clone();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.check(timing.timeout) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                // New timing applies immediately: check now.
                Ok(()) = self.active.changed() => {}
                () = self.check_now.notified() => {}
                () = tokio::time::sleep(timing.check_interval) => {}
            }
        }
    }

    async fn check(&self, limit: Duration) {
        let answer = tokio::time::timeout(limit, self.engine.ping()).await;
        let error = match answer {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => {
                let text = format!("no answer within {} s", limit.as_secs());
                Some(EngineError::Unavailable(text).to_string())
            }
        };
        let was_down = self.state.borrow().error.is_some();
        self.state.send_modify(|state| {
            state.checks += 1;
            state.consecutive_failures = if error.is_some() { state.consecutive_failures + 1 } else { 0 };
            state.error.clone_from(&error);
        });
        let entry = match (was_down, error) {
            (false, Some(error)) => {
                let message =
                    "the container engine does not answer; nothing can be checked or healed until it does";
                let mut entry =
                    AuditEntry::new(self.clock.now(), PROGRAM, Kind::DAEMON_DOWN, Level::Critical, message);
                entry.reason = Some(error);
                entry
            }
            (true, None) => {
                let message = "the container engine answers again";
                AuditEntry::new(self.clock.now(), PROGRAM, Kind::DAEMON_UP, Level::Info, message)
            }
            _ => return,
        };
        (self.record)(entry);
    }
}
