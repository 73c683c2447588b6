//! The audit file: JSON Lines, rotated, and caught up after a full disk (SPEC 2.7, DECISIONS 5).

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::backoff::Backoff;
use evenkeel_common::clock::Clock;
use evenkeel_common::queue::{Destination, Item};
use evenkeel_common::wire::AuditEntry;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::archives::{OPEN_FLAGS, archives, base, name_link, stamp_of};
use super::read::read_latest;

/// Maximum number of entries per write.
const BATCH: usize = 500;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_mins(1);

/// Size limits of the current file, and the number of archives to keep.
#[derive(Debug, Clone, Copy)]
struct Limits {
    lines: u64,
    bytes: u64,
    archives: usize,
}

const LIMITS: Limits = Limits { lines: 10_000, bytes: 100 * 1024 * 1024, archives: 5 };

/// The task that writes entries to the audit file.
pub struct FileSink {
    writer: Writer,
    destination: Destination,
    clock: Arc<dyn Clock>,
}

impl FileSink {
    /// Destination name in the outbox.
    pub const NAME: &str = "file";

    /// Creates a sink for the file at `path`. The file and its folder are created when the first entry arrives.
    pub fn new(path: PathBuf, destination: Destination, clock: Arc<dyn Clock>) -> Self {
        Self::with_limits(path, destination, clock, LIMITS)
    }

    fn with_limits(path: PathBuf, destination: Destination, clock: Arc<dyn Clock>, limits: Limits) -> Self {
        let writer = Writer { path, limits, counted: None, rotation_failed: false };
        Self { writer, destination, clock }
    }

    /// Writes entries until `stop` is cancelled and the queue is empty. Entries that cannot be written stay queued and
    /// are retried. After `stop` there is one more attempt; entries that remain are written after the next start.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut failing = false;
        let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
        // An earlier process may have been killed after writing some entries and before removing them from the queue.
        let mut written: Vec<AuditEntry> = Vec::new();
        if !self.destination.is_empty() {
            written = read_latest(self.writer.path.clone(), BATCH).await.unwrap_or_default();
        }
        loop {
            tokio::select! {
                biased;
                items = self.destination.next_batch(BATCH) => {
                    let last_chance = stop.is_cancelled();
                    let path = self.writer.path.display().to_string();
                    match self.write(&items, &written).await {
                        Ok(()) => {
                            if self.destination.is_empty() {
                                written = Vec::new();
                            }
                            if failing {
                                tracing::info!(path, "the audit file can be written again and has caught up");
                            }
                            failing = false;
                            backoff.succeeded();
                        }
                        Err(error) if last_chance => {
                            tracing::error!(path, %error, "audit entries stay queued for the audit file until the next start");
                            return;
                        }
                        Err(error) => {
                            if !failing {
                                tracing::warn!(path, %error, "cannot write the audit file; entries stay queued until it is writable");
                            }
                            failing = true;
                            tokio::select! {
                                () = tokio::time::sleep(backoff.failed()) => {}
                                () = stop.cancelled() => {}
                            }
                        }
                    }
                }
                () = stop.cancelled(), if self.destination.is_empty() => {
                    // The latest entries may not be durable yet.
                    if self.destination.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    /// Writes the entries that are not in `written`, and removes from the queue those that have reached the disk.
    async fn write(&mut self, items: &[Item], written: &[AuditEntry]) -> io::Result<()> {
        let missing: Vec<&Item> = items.iter().filter(|item| !written.contains(&item.entry)).collect();
        let entries: Vec<_> = missing.iter().map(|item| item.entry.clone()).collect();
        let (mut writer, now) = (self.writer.clone(), self.clock.now());
        let work = tokio::task::spawn_blocking(move || {
            let (count, outcome) = writer.append(&entries, now);
            (writer, count, outcome)
        });
        let (count, outcome) = match work.await {
            Ok((writer, count, outcome)) => {
                self.writer = writer;
                (count, outcome)
            }
            Err(error) => (0, Err(io::Error::other(error))),
        };
        match (&outcome, count.checked_sub(1)) {
            (Ok(()), _) => self.destination.done(&items[items.len() - 1]),
            (Err(_), Some(last)) => self.destination.done(missing[last]),
            (Err(_), None) => {}
        }
        outcome
    }
}

/// Writes to the file and tracks its size. It opens the file for each batch, so that a file that was moved away is
/// recreated.
#[derive(Debug, Clone)]
struct Writer {
    path: PathBuf,
    limits: Limits,
    counted: Option<Counted>,
    rotation_failed: bool,
}

/// A cached line count, valid while the inode and length of the file are unchanged.
#[derive(Debug, Clone, Copy)]
struct Counted {
    inode: u64,
    length: u64,
    lines: u64,
}

impl Writer {
    /// Writes entries in order, rotating as often as necessary. Returns the number of entries that have reached the disk.
    fn append(&mut self, entries: &[Arc<AuditEntry>], now: Timestamp) -> (usize, io::Result<()>) {
        let mut written = 0;
        while written < entries.len() {
            match self.append_some(&entries[written..], now) {
                Ok(count) => written += count,
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }

    /// Writes as many entries as fit into the current file, at least one.
    fn append_some(&mut self, entries: &[Arc<AuditEntry>], now: Timestamp) -> io::Result<usize> {
        let mut lines = Vec::new();
        for entry in entries {
            let mut line = serde_json::to_vec(&**entry)?;
            line.push(b'\n');
            lines.push(line);
        }
        let (mut file, mut state) = self.open()?;
        let full = |state: &Counted| {
            state.lines >= self.limits.lines || state.length + lines[0].len() as u64 > self.limits.bytes
        };
        if state.length > 0 && full(&state) {
            match rotate(&self.path, now, self.limits.archives) {
                Ok(()) => {
                    self.rotation_failed = false;
                    (file, state) = self.open()?;
                }
                // Renaming failed: an oversized file is better than lost entries.
                Err(error) => {
                    if !self.rotation_failed {
                        tracing::warn!(path = %self.path.display(), %error, "cannot rotate the audit file");
                    }
                    self.rotation_failed = true;
                }
            }
        }
        // An earlier writer was killed in the middle of a line. End that line, so that no other one is damaged.
        let mut buffer = if ends_within_a_line(&file, state.length)? { vec![b'\n'] } else { Vec::new() };
        let mut count = 0;
        for line in &lines {
            let (bytes, total) = (state.length + (buffer.len() + line.len()) as u64, state.lines + count);
            let over = total >= self.limits.lines || bytes > self.limits.bytes;
            if count > 0 && over {
                break;
            }
            buffer.extend_from_slice(line);
            count += 1;
        }
        if let Err(error) = file.write_all(&buffer).and_then(|()| file.sync_data()) {
            // Remove the partial write of a full disk; the retry would duplicate it.
            let _ = file.set_len(state.length);
            self.counted = None;
            return Err(error);
        }
        let length = state.length + buffer.len() as u64;
        self.counted = Some(Counted { length, lines: state.lines + count, ..state });
        Ok(usize::try_from(count).expect("it is at most the length of a slice"))
    }

    fn open(&self) -> io::Result<(File, Counted)> {
        let open = || {
            OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .custom_flags(OPEN_FLAGS)
                .open(&self.path)
                .map_err(name_link)
        };
        let file = match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let folder = self.path.parent().ok_or(error)?;
                DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
                open()?
            }
            other => other?,
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        let (inode, length) = (metadata.ino(), metadata.len());
        let counted = match self.counted {
            Some(known) if known.inode == inode && known.length == length => known,
            _ => Counted { inode, length, lines: count_lines(&file)? },
        };
        Ok((file, counted))
    }
}

fn ends_within_a_line(file: &File, length: u64) -> io::Result<bool> {
    let Some(last) = length.checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte != *b"\n")
}

fn count_lines(file: &File) -> io::Result<u64> {
    let mut reader = BufReader::with_capacity(64 * 1024, file);
    let mut lines = 0;
    loop {
        let block = reader.fill_buf()?;
        if block.is_empty() {
            return Ok(lines);
        }
        lines += block.split(|&byte| byte == b'\n').count() as u64 - 1;
        let length = block.len();
        reader.consume(length);
    }
}

/// Renames the file to its archive name and removes the oldest archives.
fn rotate(path: &Path, now: Timestamp, keep: usize) -> io::Result<()> {
    let name = |stamp: &str| path.with_file_name(format!("{}.{stamp}.jsonl", base(path)));
    // Archives are read and removed in the order of their names. If the clock was in the future, later names continue
    // from there.
    let mut time = match archives(path)?.first().and_then(|newest| stamp_of(path, newest)) {
        Some(newest) if newest >= now => newest.checked_add(MILLISECOND).map_err(io::Error::other)?,
        _ => now,
    };
    let target = loop {
        let target = name(&time.strftime(STAMP).to_string());
        if !target.try_exists()? {
            break target;
        }
        // Two rotations within one millisecond.
        time = time.checked_add(MILLISECOND).map_err(io::Error::other)?;
    };
    fs::rename(path, target)?;
    for old in archives(path)?.into_iter().skip(keep) {
        fs::remove_file(old)?;
    }
    Ok(())
}

const MILLISECOND: jiff::SignedDuration = jiff::SignedDuration::from_millis(1);

/// UTC; the text sorts in chronological order.
const STAMP: &str = "%Y%m%dT%H%M%S.%3fZ";

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
