//! The durable state of one service. A decision and its audit entries are written in one transaction, or not at all.
//!
//! After a failed write, further attempts fail immediately until the retry delay has passed. A service neither performs nor
//! reports a decision that it could not write.

use std::time::Duration;

use evenkeel_common::backoff::Backoff;
use evenkeel_common::store::StoreError;
use evenkeel_common::wire::AuditEntry;
use tokio::time::Instant;

use crate::service::Durable;

use super::world::{Commit, state_key};

/// The first and the longest pause before a failed write is retried. A disk that was freed is noticed after the longest.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Writes the durable state of a service.
pub(super) struct Journal {
    commit: Commit,
    /// The state in memory differs from the last one written, so the next write must include it.
    is_behind: bool,
    /// Error of the last write if it failed, and when to retry.
    failed: Option<(StoreError, Instant)>,
    backoff: Backoff,
    /// The last error in the log, until a write succeeds.
    logged: Option<StoreError>,
    /// Entries about the initial state, which are written with the next write.
    initial_entries: Vec<AuditEntry>,
}

impl Journal {
    /// Creates a journal with nothing to write.
    pub(super) fn new(commit: Commit) -> Self {
        Self {
            commit,
            is_behind: false,
            failed: None,
            backoff: Backoff::new(FIRST_RETRY, LAST_RETRY),
            logged: None,
            initial_entries: Vec::new(),
        }
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
            // The same failure may last for days.
            if self.logged.as_ref() != Some(&error) {
                tracing::error!(service = name, %error, "nothing is deployed or healed until the state can be written");
                self.logged = Some(error.clone());
            }
            self.failed = Some((error.clone(), Instant::now() + self.backoff.failed()));
            return Err(error);
        }
        if self.logged.take().is_some() {
            tracing::info!(service = name, "the state can be written again");
        }
        if durable.step() != before.step() {
            let step = durable.step().map_or("done", |(step, _)| step);
            tracing::info!(service = name, step, "journaled");
        }
        self.failed = None;
        self.backoff.succeeded();
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use parking_lot::Mutex;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    use super::*;

    /// Counts the lines of the log.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl Lines {
        /// Returns the number of lines since the last call.
        fn take(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_lasts_is_logged_once_and_its_write_is_retried_at_least_every_half_minute() {
        let lines = Lines::default();
        let _guard = tracing::subscriber::set_default(lines.clone());
        let failure = Arc::new(Mutex::new(Some("No space left on device")));
        let of_disk = failure.clone();
        let mut journal = Journal::new(Arc::new(move |_, _| {
            let cause = *of_disk.lock();
            let error = |cause: &str| StoreError { doing: "write", path: "/s".into(), cause: cause.into() };
            async move { cause.map_or(Ok(()), |cause| Err(error(cause))) }.boxed()
        }));
        let state = Durable::default();
        journal.is_behind = true;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            journal.retry();
            assert!(journal.write("web", &state, &state, Vec::new()).await.is_err());
            let pause = journal.retry_in().expect("it waits");
            pauses.push(pause.as_secs());
            tokio::time::advance(pause).await;
        }
        assert_eq!((pauses, lines.take()), (vec![2, 4, 8, 16, 30, 30, 30], 1));

        *failure.lock() = Some("Input/output error");
        journal.retry();
        assert!(journal.write("web", &state, &state, Vec::new()).await.is_err());
        assert_eq!(lines.take(), 1, "another failure");

        *failure.lock() = None;
        tokio::time::advance(LAST_RETRY).await;
        journal.retry();
        assert_eq!(journal.write("web", &state, &state, Vec::new()).await, Ok(()));
        assert_eq!(lines.take(), 1, "it works again");
        journal.is_behind = true;
        assert_eq!(journal.write("web", &state, &state, Vec::new()).await, Ok(()));
        assert_eq!(lines.take(), 0);

        *failure.lock() = Some("No space left on device");
        journal.is_behind = true;
        assert!(journal.write("web", &state, &state, Vec::new()).await.is_err());
        assert_eq!((journal.retry_in(), lines.take()), (Some(FIRST_RETRY), 1), "it begins anew");
    }
}
