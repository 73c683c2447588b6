//! The task: commits in batches, follows the store, and removes what is too old.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use evenkeel_common::sse;
use jiff::SignedDuration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Collector, Job, StoreState};
use crate::fleet::verdict::{Verdict, verdict};
use crate::keep::{Change, Duty, KeepError, MAX_PAGE, Outcome, Position, Query, Retention};

/// Changes that are committed together at most.
const MAX_BATCH: usize = 4096;
/// Text of entries after which nothing more is added to a commit, in bytes: a store at the end of a slow link has to take it
/// before its call runs out of time.
const MAX_BATCH_TEXT: usize = 4 * 1024 * 1024;
/// Time between the starts of two commits: what comes meanwhile goes together. The first one waits for nothing.
const PACE: Duration = Duration::from_millis(10);
/// The store is read again after this time, whatever hints have come (DECISIONS 8).
const REREAD: Duration = Duration::from_secs(5);
/// Time that the first reading may take before requests are answered.
const PREPARATION: Duration = Duration::from_secs(5);
/// Time between two looks at what is too old, and between two removals while there is more.
const RETENTION: Duration = Duration::from_mins(1);
const NEXT_REMOVAL: Duration = Duration::from_millis(200);

/// Who waits for the outcome of so many changes.
type Waiting = (usize, oneshot::Sender<Result<Vec<Outcome>, KeepError>>);

/// The task's state.
pub struct Task {
    collector: Arc<Collector>,
    jobs: mpsc::Receiver<Job>,
    retention: Retention,
    /// How far the store has been read; `None` before the first time.
    position: Option<Position>,
}

impl Task {
    pub(super) fn new(collector: Arc<Collector>, jobs: mpsc::Receiver<Job>, retention: Retention) -> Self {
        Self { collector, jobs, retention, position: None }
    }

    /// Reads the store for the first time, so that nobody sees a view that is empty for no reason. A store that does not
    /// answer soon is read later.
    pub async fn prepare(&mut self) {
        let _ = timeout(PREPARATION, self.catch_up()).await;
    }

    /// Works until `stop` is cancelled; what has come by then is stored.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut hints = self.collector.keep.hints();
        self.catch_up().await;
        let mut paced = Instant::now();
        let (mut reread, mut retention) = (paced + REREAD, paced + RETENTION);
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
                () = sleep_until(retention) => {
                    retention = Instant::now() + if self.remove().await { NEXT_REMOVAL } else { RETENTION };
                    continue;
                }
                Some(job) = self.next_job(paced) => {
                    paced = Instant::now() + PACE;
                    self.commit(job).await;
                }
            }
            reread = Instant::now() + REREAD;
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

    /// Commits this job and those that wait behind it.
    async fn commit(&mut self, first: Job) {
        let (mut changes, waiting) = gather(first, &mut self.jobs);
        // What was rolled back may trip the fuse, in the same commit.
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
            // Whoever asked may have gone; the entries are stored all the same.
            let _ = done.send(answer);
        }
    }

    /// Finds out whether a store that could not be written can be.
    async fn probe(&self) {
        if self.collector.store.borrow().write.is_none() {
            return;
        }
        let started = Instant::now();
        let committed = self.collector.keep.commit(Vec::new(), self.collector.clock.now()).await;
        self.note_write(&committed, started.elapsed());
    }

    /// Reads what is new in the store into the view.
    async fn catch_up(&mut self) {
        let read = self.try_catch_up().await;
        if read.is_ok() {
            *self.collector.read_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        let error = read.err().map(|error| error.0);
        self.note(|state| state.read = error);
    }

    async fn try_catch_up(&mut self) -> Result<(), KeepError> {
        let keep = self.collector.keep.clone();
        let mut position = match self.position {
            Some(position) => position,
            None => self.load().await?,
        };
        loop {
            let news = keep.news(position, MAX_PAGE).await?;
            position = news.position;
            self.position = Some(position);
            let is_all = news.entries.len() < MAX_PAGE;
            for entry in news.entries {
                self.collector.entries.append_as(entry.id, entry.line.into());
            }
            self.collector.fleet.apply(news.values);
            let mut machines = self.collector.lock();
            news.machines.into_iter().for_each(|machine| machines.update(machine));
            if is_all {
                return Ok(());
            }
        }
    }

    /// Begins the view with the last entries.
    async fn load(&self) -> Result<Position, KeepError> {
        let query = Query { limit: sse::REPLAY, ..Query::default() };
        let last = self.collector.keep.history(&query).await?.entries;
        // One that was begun before goes on: who follows it has come before the entries that are read now.
        self.collector.begin.get_or_init(|| last.last().map_or(0, |first| first.id.saturating_sub(1)));
        for entry in last.iter().rev() {
            self.collector.entries.append_as(entry.id, entry.line.as_str().into());
        }
        Ok(Position { entry: last.first().map_or(0, |entry| entry.id), revision: 0 })
    }

    /// Removes some of what is too old or too much, where that is this warden's duty; whether there may be more.
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
        let removed = keep.retain(self.retention, self.collector.clock.now()).await?;
        self.collector.counters.removed.fetch_add(removed, Ordering::Relaxed);
        let age = SignedDuration::from_hours(24 * i64::from(self.retention.days));
        Ok(self.collector.forget_outdated(age).await? || removed > 0)
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

    /// Notes how the store is. That it is away is logged once for each reason.
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
            (Some(_), None) => tracing::info!("the store is back"),
            _ => {}
        }
        state.send_replace(now);
    }
}

/// What is committed together: this job, and those that wait behind it as far as there is room.
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

/// Bytes of the texts that can be long.
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
