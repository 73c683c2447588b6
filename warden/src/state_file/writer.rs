//! The task that keeps the file up to date: appends what has changed, and rewrites the file when it has grown too large.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::file;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::format;
use crate::fleet::{Changes, Fleet};

/// Changes within this time are written together; SIGKILL loses no more than these.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);
/// Limit on the write rate; after a large write the next one comes later.
const BYTES_PER_SECOND: u64 = 1024 * 1024;
/// The file is rewritten when it has twice the size it was rewritten with, and at least this one.
const MIN_REWRITE_BYTES: u64 = 4 * 1024 * 1024;

/// The task's state.
pub struct StateFile {
    path: PathBuf,
    fleet: Arc<Fleet>,
    changes: watch::Receiver<u64>,
    /// `None` before the first write and after a failed one: the next write is of everything.
    log: Option<Log>,
    /// Id of the first entry that is not in the file.
    next_id: u64,
    written: watch::Sender<u64>,
}

/// The open file.
struct Log {
    file: File,
    /// Size when it was rewritten.
    base: u64,
    /// Size now.
    length: u64,
}

impl StateFile {
    /// Keeps the changes of `fleet` from now on in the file at `path`.
    pub fn new(path: PathBuf, fleet: Arc<Fleet>) -> Self {
        let changes = fleet.subscribe_to_changes();
        Self { path, fleet, changes, log: None, next_id: 0, written: watch::Sender::new(0) }
    }

    /// How many bytes have been written.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// Writes after every change until `stop` is cancelled, and then once more.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.changes.clone();
        let mut failing = false;
        while !stop.is_cancelled() {
            tokio::select! {
                end = changes.changed() => if end.is_err() { break },
                () = stop.cancelled() => break,
            }
            changes.mark_unchanged();
            let before = *self.written.borrow();
            failing = self.write(false, failing).await;
            if failing {
                // The change has yet to be written.
                changes.mark_changed();
            }
            let bytes = *self.written.borrow() - before;
            let pause = WRITE_INTERVAL.max(Duration::from_millis(bytes * 1000 / BYTES_PER_SECOND));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => break,
            }
        }
        self.write(true, failing).await;
    }

    /// Writes what has changed; whether that failed. A failure that persists is logged once.
    async fn write(&mut self, is_last: bool, was_failing: bool) -> bool {
        let error = self.try_write(is_last).await.err();
        let path = self.path.display();
        match (&error, was_failing) {
            (Some(error), false) => tracing::error!(%path, %error, "cannot write the state file; will retry"),
            (None, true) => tracing::info!(%path, "the state file is written again"),
            _ => {}
        }
        error.is_some()
    }

    async fn try_write(&mut self, is_last: bool) -> io::Result<()> {
        let log = self.log.take().filter(|log| log.length < MIN_REWRITE_BYTES.max(2 * log.base));
        let changes = if log.is_some() {
            self.fleet.take_changes(self.next_id)
        } else {
            let changes = self.fleet.take_changes(0);
            // After taking the changes: what changes in between is then written twice rather than never.
            Changes { machines: self.fleet.machines(), ..changes }
        };
        let (path, next_id) = (self.path.clone(), changes.next_id);
        let work = move || match log {
            Some(log) => log.append(&format::lines(&changes, is_last)?),
            None => Log::create(&path, &changes, is_last),
        };
        let (log, bytes) = tokio::task::spawn_blocking(work).await.map_err(io::Error::other)??;
        self.written.send_modify(|written| *written += bytes);
        (self.log, self.next_id) = (Some(log), next_id);
        Ok(())
    }
}

impl Log {
    /// Appends lines; the log after that, and how many bytes were written.
    fn append(mut self, lines: &[u8]) -> io::Result<(Self, u64)> {
        if self.file.metadata()?.nlink() == 0 {
            return Err(io::Error::other("the file was deleted"));
        }
        self.file.write_all(lines)?;
        self.file.sync_data()?;
        self.length += lines.len() as u64;
        Ok((self, lines.len() as u64))
    }

    /// Rewrites the file.
    fn create(path: &Path, changes: &Changes, is_last: bool) -> io::Result<(Self, u64)> {
        let content = [format::header()?, format::lines(changes, is_last)?].concat();
        file::write_atomically(path, &content)?;
        let file = OpenOptions::new().append(true).open(path)?;
        let length = content.len() as u64;
        Ok((Self { file, base: length, length }, length))
    }
}
