//! The collector task: commits in batches, follows the store, and removes outdated entries.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_common::sse;
use jiff::SignedDuration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Collector, Job, StoreState};
use crate::fleet::verdict::{Verdict, verdict};
use crate::keep::{Change, Duty, KeepError, MAX_PAGE, Outcome, Position, Query, Retention};

/// Maximum number of changes committed together.
const MAX_BATCH: usize = 4096;
/// Text of entries, in bytes, beyond which nothing more is added to a commit: a store behind a slow link must be able to
/// receive it before the call times out.
const MAX_BATCH_TEXT: usize = 4 * 1024 * 1024;
/// Minimum time between the starts of two commits: changes that arrive meanwhile are committed together. The first commit
/// is not delayed.
const COMMIT_INTERVAL: Duration = Duration::from_millis(10);
/// The store is read again after this time, regardless of hints (DECISIONS 8).
const REREAD_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit of the first read before requests are answered.
const PREPARATION: Duration = Duration::from_secs(5);
/// Time between two retention runs, and between two removals while more remains.
const RETENTION: Duration = Duration::from_mins(1);
const NEXT_REMOVAL: Duration = Duration::from_millis(200);

/// The number of changes of a job, and the channel for their outcome.
type Waiting = (usize, oneshot::Sender<Result<Vec<Outcome>, KeepError>>);

/// The task's state.
pub struct Task {
    collector: Arc<Collector>,
    jobs: mpsc::Receiver<Job>,
    retention: Retention,
    /// How far the store has been read; `None` before the first read.
    position: Option<Position>,
    /// Whether the store may have lost what the view shows, so that the next read replaces it.
    is_stale: bool,
    /// [`News::connection`](crate::keep::News::connection) of the last read that was checked.
    connection: u64,
    /// [`Keep::damage`](crate::keep::Keep::damage) when it was last checked.
    damage: Option<String>,
}

impl Task {
    pub(super) fn new(collector: Arc<Collector>, jobs: mpsc::Receiver<Job>, retention: Retention) -> Self {
        let damage = collector.keep.damage();
        Self { collector, jobs, retention, position: None, is_stale: false, connection: 0, damage }
    }

    /// Reads the store for the first time, so that the view is not empty when the first request arrives. A store that does
    /// not answer in time is read later, and is unavailable until then.
    pub async fn prepare(&mut self) {
        if timeout(PREPARATION, self.catch_up()).await.is_err() {
            tracing::warn!(
                "the store is being read for {} s now; it is away until then",
                PREPARATION.as_secs()
            );
        }
    }

    /// Runs until `stop` is cancelled, then stores the queued changes.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut hints = self.collector.keep.hints();
        let collector = self.collector.clone();
        self.catch_up().await;
        let mut paced = Instant::now();
        let (mut reread, mut retention) = (paced + REREAD_INTERVAL, paced + RETENTION);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = sleep_until(reread) => {
                    self.catch_up().await;
                    self.probe().await;
                }
                Ok(()) = hints.changed() => {
                    hints.mark_unchanged();
                    self.catch_up().await;
                }
                () = async { tokio::select! { () = sleep_until(retention) => {}, () = collector.removal.notified() => {} } } => {
                    retention = Instant::now() + if self.remove().await { NEXT_REMOVAL } else { RETENTION };
                    continue;
                }
                Some(job) = self.next_job(paced) => {
                    paced = Instant::now() + COMMIT_INTERVAL;
                    self.commit(job).await;
                }
            }
            reread = Instant::now() + REREAD_INTERVAL;
        }
        self.jobs.close();
        while let Ok(job) = self.jobs.try_recv() {
            self.commit(job).await;
        }
    }

    async fn next_job(&mut self, paced: Instant) -> Option<Job> {
        sleep_until(paced).await;
        self.jobs.recv().await
    }

    /// Commits this job and those queued behind it.
    async fn commit(&mut self, first: Job) {
        let (mut changes, waiting) = gather(first, &mut self.jobs);
        // A rollback may trip the fuse, in the same commit.
        let failed = changes.iter().any(|change| match change {
            Change::Entry(entry) => verdict(entry).is_some_and(|(_, _, verdict)| verdict == Verdict::Failed),
            _ => false,
        });
        changes.extend(self.collector.fleet.fuse().filter(|_| failed).map(Change::Fuse));
        let (keep, now) = (&self.collector.keep, self.collector.clock.now());
        let started = Instant::now();
        let committed = keep.commit(changes, now).await;
        self.note_write(&committed, started.elapsed());
        if committed.is_ok() {
            self.catch_up().await;
        }
        let mut rest = committed.as_deref().unwrap_or_default();
        for (count, done) in waiting {
            let answer = match &committed {
                Ok(_) => {
                    let (mine, others) = rest.split_at(count.min(rest.len()));
                    rest = others;
                    Ok(mine.to_vec())
                }
                Err(error) => Err(error.clone()),
            };
            // The requester may be gone; the entries are stored all the same.
            let _ = done.send(answer);
        }
    }

    /// Checks whether a store can be written that could not be, or that may not be.
    async fn probe(&self) {
        let is_doubted = self.collector.fleet.take_doubt();
        if !is_doubted && self.collector.store.borrow().write.is_none() {
            return;
        }
        let started = Instant::now();
        let committed = self.collector.keep.commit(Vec::new(), self.collector.clock.now()).await;
        self.note_write(&committed, started.elapsed());
    }

    /// Reads new entries, machines and values from the store into the view.
    async fn catch_up(&mut self) {
        self.check_damage();
        let read = self.try_catch_up().await;
        if read.is_ok() {
            *self.collector.read_at.lock() = Instant::now();
            if !self.collector.store.borrow().is_read {
                self.collector.expect_missing_reports();
                self.collector.note_loaded();
            }
        }
        let error = read.err().map(|error| error.0);
        self.note(|state| {
            state.is_read |= error.is_none();
            state.read = error;
        });
    }

    async fn try_catch_up(&mut self) -> Result<(), KeepError> {
        let keep = self.collector.keep.clone();
        let mut position = match self.position {
            Some(position) => position,
            None => self.load().await?,
        };
        let (mut was_behind, mut was_new) = (false, false);
        loop {
            let news = keep.news(position, MAX_PAGE).await?;
            let is_new = self.position.is_some() && self.connection != news.connection;
            if news.is_behind(position) || is_new && self.is_rewritten(position).await? {
                tracing::warn!(
                    "the store has lost what this warden has read from it; everything is read again"
                );
                self.begin_again();
                if std::mem::replace(&mut was_behind, true) {
                    return Err(KeepError("its sessions do not see the same state".to_owned()));
                }
                position = self.load().await?;
                continue;
            }
            if is_new && std::mem::replace(&mut was_new, true) {
                return Err(KeepError("its connections end at once".to_owned()));
            }
            self.connection = news.connection;
            if is_new {
                // Machines and values change without an entry, too, and their revisions may have been given again.
                position.revision = 0;
                (self.position, self.is_stale) = (Some(position), true);
                continue;
            }
            let is_first = self.position.is_none();
            position = news.position;
            self.position = Some(position);
            let is_all = news.entries.len() < MAX_PAGE;
            for entry in news.entries {
                self.collector.entries.append_as(entry.id, entry.line.into());
            }
            let is_stale = std::mem::take(&mut self.is_stale);
            if is_stale {
                self.collector.fleet.replace(news.values);
                if is_first {
                    self.collector.note_loaded();
                }
            } else {
                self.collector.fleet.apply(news.values);
            }
            let mut machines = self.collector.machines.lock();
            if is_stale {
                machines.clear();
            }
            news.machines.into_iter().for_each(|machine| machines.update(machine));
            if is_all {
                return Ok(());
            }
        }
    }

    /// Reports whether the store has another entry at this position than the one that was read.
    async fn is_rewritten(&self, position: Position) -> Result<bool, KeepError> {
        let Some(known) = self.collector.entries.get(position.entry) else { return Ok(false) };
        let before = Position { entry: position.entry.saturating_sub(1), ..position };
        let found = self.collector.keep.news(before, 1).await?.entries;
        Ok(found.first().is_some_and(|entry| entry.id == position.entry && *entry.line != *known))
    }

    /// Reads everything again if the store was damaged and replaced by what could be saved.
    fn check_damage(&mut self) {
        let damage = self.collector.keep.damage();
        if damage.is_some() && damage != self.damage {
            self.begin_again();
        }
        self.damage = damage;
    }

    /// Replaces the view by what is read next, and lets the agents report what the store may have lost.
    fn begin_again(&mut self) {
        (self.position, self.is_stale) = (None, true);
        *self.collector.begin.lock() = None;
        self.collector.entries.restart();
        let ids = self.collector.machines.lock().ids().to_vec();
        self.collector.expect_reports(ids);
    }

    /// Loads the last entries into the view.
    async fn load(&self) -> Result<Position, KeepError> {
        let query = Query { limit: sse::REPLAY, ..Query::default() };
        let last = self.collector.keep.history(&query).await?.entries;
        // A view that has already started keeps its start: its followers subscribed before the entries that are read now.
        self.collector
            .begin
            .lock()
            .get_or_insert_with(|| last.last().map_or(0, |first| first.id.saturating_sub(1)));
        for entry in last.iter().rev() {
            self.collector.entries.append_as(entry.id, entry.line.as_str().into());
        }
        Ok(Position { entry: last.first().map_or(0, |entry| entry.id), revision: 0 })
    }

    /// Removes some entries beyond the age or size limit, if this warden holds the duty. Returns whether there may be more.
    async fn remove(&mut self) -> bool {
        match self.try_remove().await {
            Ok(is_more) => is_more,
            Err(error) => {
                tracing::warn!(%error, "old entries were not removed");
                false
            }
        }
    }

    async fn try_remove(&self) -> Result<bool, KeepError> {
        let keep = &self.collector.keep;
        if !keep.hold(Duty::Retention).await? {
            return Ok(false);
        }
        let now = self.collector.retention_time().await?;
        let removed = keep.retain(self.retention, now).await?;
        self.collector.counters.removed.fetch_add(removed, Ordering::Relaxed);
        let age = SignedDuration::from_hours(24 * i64::from(self.retention.days));
        Ok(self.collector.forget_outdated(age, now).await? || removed > 0)
    }

    fn note_write<T>(&self, outcome: &Result<T, KeepError>, time: Duration) {
        let counters = &self.collector.counters;
        if outcome.is_ok() {
            counters.commits.fetch_add(1, Ordering::Relaxed);
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            counters.commit_micros.fetch_add(micros, Ordering::Relaxed);
        }
        let error = outcome.as_ref().err().map(|error| error.0.clone());
        self.note(|state| state.write = error);
    }

    /// Updates the state of the store. An outage is logged once for each reason.
    fn note(&self, change: impl FnOnce(&mut StoreState)) {
        let state = &self.collector.store;
        let before = state.borrow().clone();
        let mut now = before.clone();
        change(&mut now);
        if now.error().is_some() {
            self.collector.counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        if now == before {
            return;
        }
        match (before.error(), now.error()) {
            (was, Some(error)) if was != Some(error) => {
                tracing::error!(error, "the store is away; agents keep their entries until it is back");
            }
            (Some(_), None) if before.is_read => tracing::info!("the store is back"),
            _ => {}
        }
        if before.error().is_some() != now.error().is_some() {
            let is_away = now.error().is_some();
            self.collector.fleet.note_store(is_away, self.collector.clock.now());
        }
        state.send_replace(now);
    }
}

/// Collects the jobs to commit together: this one, and those queued behind it as far as the limits allow.
fn gather(first: Job, jobs: &mut mpsc::Receiver<Job>) -> (Vec<Change>, Vec<Waiting>) {
    let mut text = text_of(&first.changes);
    let mut changes = first.changes;
    let mut waiting = vec![(changes.len(), first.done)];
    while changes.len() < MAX_BATCH && text < MAX_BATCH_TEXT {
        let Ok(job) = jobs.try_recv() else { break };
        text += text_of(&job.changes);
        waiting.push((job.changes.len(), job.done));
        changes.extend(job.changes);
    }
    (changes, waiting)
}

/// Returns the size in bytes of the texts that can be long.
fn text_of(changes: &[Change]) -> usize {
    let long = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let sizes = changes.iter().map(|change| match change {
        Change::Entry(entry) => entry.message.len() + long(&entry.reason) + long(&entry.output),
        _ => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::FleetEntry;

    use super::*;

    fn job(entries: usize, output: usize) -> Job {
        let entry: FleetEntry = serde_json::from_value(serde_json::json!({
            "timestamp": "2026-01-02T03:04:05Z", "service": "web", "event": "updated", "level": "info",
            "message": "", "output": "x".repeat(output),
        }))
        .unwrap();
        let changes = vec![Change::Entry(Box::new(entry)); entries];
        Job { changes, done: oneshot::channel().0 }
    }

    #[test]
    fn a_commit_ends_at_its_count_or_at_its_text() {
        let most_at_once = MAX_BATCH_TEXT / (500 * 8192) + 1;
        for (entries, output, expected) in
            [(500, 0, MAX_BATCH / 500 + 1), (500, 8192, most_at_once), (1, 0, 100)]
        {
            let (sender, mut jobs) = mpsc::channel(100);
            for _ in 1..100 {
                sender.try_send(job(entries, output)).ok().unwrap();
            }
            let (changes, waiting) = gather(job(entries, output), &mut jobs);
            assert_eq!(waiting.len(), expected, "{entries} entries with {output} bytes each");
            assert_eq!(changes.len(), expected * entries);
            assert_eq!(jobs.len(), 100 - expected, "the others come with the next one");
        }
    }
}
