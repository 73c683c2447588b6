//! The durable state of one service. A decision and its audit entries are written in one transaction, or not at all.
//!
//! After a failed write, further attempts fail immediately until the retry delay has passed. A service neither performs nor
//! reports a decision that it could not write.

use std::time::Duration;

use evenkeel_common::store::StoreError;
use evenkeel_common::wire::AuditEntry;
use tokio::time::Instant;

use crate::service::Durable;

use super::world::{Commit, state_key};

/// Delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(2);

/// Writes the durable state of a service.
pub(super) struct Journal {
    commit: Commit,
    /// The state in memory differs from the last one written, so the next write must include it.
    is_behind: bool,
    /// Error of the last write if it failed, and when to retry.
    failed: Option<(StoreError, Instant)>,
    /// Entries about the initial state, which are written with the next write.
    initial_entries: Vec<AuditEntry>,
}

impl Journal {
    /// Creates a journal with nothing to write.
    pub(super) fn new(commit: Commit) -> Self {
        Self { commit, is_behind: false, failed: None, initial_entries: Vec::new() }
    }

    /// Notes that a service with the stored state `left` continues with the state `first`. The state and its `entries` are
    /// written with the next write.
    pub(super) fn begin(&mut self, left: &Durable, first: &Durable, entries: Vec<AuditEntry>) {
        self.is_behind |= left != first;
        self.initial_entries.extend(entries);
    }

    /// Reports whether entries about the initial state are still to be written.
    pub(super) fn has_initial_entries(&self) -> bool {
        !self.initial_entries.is_empty()
    }

    /// Writes the successor state of `before` if it differs from the last one written, and the entries if there are any.
    pub(super) async fn write(
        &mut self,
        name: &str,
        before: &Durable,
        durable: &Durable,
        entries: Vec<AuditEntry>,
    ) -> Result<(), StoreError> {
        let entries = [self.initial_entries.clone(), entries].concat();
        let is_same = !self.is_behind && durable == before;
        if is_same && entries.is_empty() {
            return Ok(());
        }
        self.ready()?;
        let row = || serde_json::to_vec(durable).expect("the state has only text keys and finite numbers");
        let changes = if is_same { Vec::new() } else { vec![(state_key(name), Some(row()))] };
        if let Err(error) = (self.commit)(changes, entries).await {
            tracing::error!(service = name, %error, "nothing is deployed or healed until the state can be written");
            self.failed = Some((error.clone(), Instant::now() + RETRY));
            return Err(error);
        }
        if durable.step() != before.step() {
            let step = durable.step().map_or("done", |(step, _)| step);
            tracing::info!(service = name, step, "journaled");
        }
        self.failed = None;
        self.initial_entries.clear();
        self.is_behind = false;
        Ok(())
    }

    /// Returns the error of the last write while it must not be retried yet.
    pub(super) fn ready(&self) -> Result<(), StoreError> {
        let waiting = self.failed.as_ref().filter(|(_, retry)| Instant::now() < *retry);
        waiting.map_or(Ok(()), |(error, _)| Err(error.clone()))
    }

    /// Returns the remaining time until the next attempt.
    pub(super) fn retry_in(&self) -> Option<Duration> {
        let (_, retry) = self.failed.as_ref()?;
        Some(retry.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
    }

    /// Reports whether a failed write may be retried now.
    pub(super) fn may_retry(&self) -> bool {
        self.failed.is_some() && self.retry_in().is_none()
    }

    /// Clears the failure if the write may be retried now.
    pub(super) fn retry(&mut self) {
        if self.may_retry() {
            self.failed = None;
        }
    }
}
