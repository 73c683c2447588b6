//! Pings the engine every `docker_health.check_interval`, asks it for a container, and records when its availability
//! changes (spec 1.8).

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
        let error = fault(limit, self.engine.ping(), self.engine.check_reads()).await;
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

/// Returns why the engine counts as unavailable. A refusal to list containers is an answer, which the services report.
async fn fault(
    limit: Duration,
    ping: impl Future<Output = Result<(), EngineError>>,
    read: impl Future<Output = Result<(), EngineError>>,
) -> Option<String> {
    let error = match tokio::time::timeout(limit, ping).await {
        Ok(Ok(())) => {
            let Err(EngineError::Unavailable(why)) = read.await else { return None };
            EngineError::Unavailable(format!("it answers a ping, but does not list its containers: {why}"))
        }
        Ok(Err(error)) => error,
        Err(_) => EngineError::Unavailable(format!("no answer within {} s", limit.as_secs())),
    };
    Some(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn an_engine_that_answers_only_pings_is_unavailable() {
        let late = || Err(EngineError::Unavailable("unix:///run/docker.sock: no answer within 10 s".into()));
        let refused = || Err(EngineError::Refused("list containers: forbidden".into()));
        for (ping, read, expected) in [
            (Ok(()), Ok(()), None),
            (Ok(()), refused(), None),
            (
                Ok(()),
                late(),
                Some("it answers a ping, but does not list its containers: unix:///run/docker.sock"),
            ),
            (late(), Ok(()), Some("unix:///run/docker.sock: no answer")),
            (refused(), Ok(()), Some("forbidden")),
        ] {
            let found = fault(Duration::from_secs(5), ready(ping), ready(read)).await;
            let is_expected = match (&found, expected) {
                (Some(found), Some(expected)) => found.contains(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{found:?}, {expected:?}");
        }
    }
}
