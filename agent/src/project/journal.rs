//! The durable state of one service: a decision and what is said of it are written in one transaction, or not at all.
//!
//! While the disk refuses writes, every try fails at once until a moment has passed: a service neither does nor says
//! what it could not write down.

use std::time::Duration;

use evenkeel_common::store::StoreError;
use evenkeel_common::wire::AuditEntry;
use tokio::time::Instant;

use crate::service::Durable;

use super::worker::{Commit, state_key};

/// Time between two tries to write the state down.
const RETRY: Duration = Duration::from_secs(2);

/// What of a service is durable.
pub(super) struct Journal {
    commit: Commit,
    /// The service began with another state than the one that was written last: the next write has its state, too.
    is_behind: bool,
    /// The last write failed: why, and when the next one is tried.
    failed: Option<(StoreError, Instant)>,
    /// Entries of the service's first state, which go with the first write.
    first_words: Vec<AuditEntry>,
}

impl Journal {
    /// Nothing is to be written yet.
    pub(super) fn new(commit: Commit) -> Self {
        Self { commit, is_behind: false, failed: None, first_words: Vec::new() }
    }

    /// A service that was left in the state `left` goes on in the state `first`, of which `entries` tell: both go with the
    /// next write.
    pub(super) fn begin(&mut self, left: &Durable, first: &Durable, entries: Vec<AuditEntry>) {
        self.is_behind |= left != first;
        self.first_words.extend(entries);
    }

    /// Whether something is still to be said of the first state.
    pub(super) fn has_first_words(&self) -> bool {
        !self.first_words.is_empty()
    }

    /// Writes the state that follows on `before` if it differs from what was written last, and entries if there are
    /// any.
    pub(super) async fn write(
        &mut self,
        name: &str,
        before: &Durable,
        durable: &Durable,
        entries: Vec<AuditEntry>,
    ) -> Result<(), StoreError> {
        let entries = [self.first_words.clone(), entries].concat();
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
        self.first_words.clear();
        self.is_behind = false;
        Ok(())
    }

    /// An error while the last write has failed and it is not yet time for the next one.
    pub(super) fn ready(&self) -> Result<(), StoreError> {
        let waits = self.failed.as_ref().filter(|(_, retry)| Instant::now() < *retry);
        waits.map_or(Ok(()), |(error, _)| Err(error.clone()))
    }

    /// How long it still waits for the next try.
    pub(super) fn waits(&self) -> Option<Duration> {
        let (_, retry) = self.failed.as_ref()?;
        Some(retry.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
    }

    /// Whether a write failed, and it is time for the next one.
    pub(super) fn may_retry(&self) -> bool {
        self.failed.is_some() && self.waits().is_none()
    }

    /// The next write is tried, where it is time for it.
    pub(super) fn retry(&mut self) {
        if self.may_retry() {
            self.failed = None;
        }
    }
}
