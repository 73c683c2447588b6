//! The embedded store: one redb file, for one warden. Without a folder, it is in memory and smaller.
//!
//! A damaged file is replaced by a new one with everything that can still be read (`recover.rs`), whenever the damage is
//! noticed: when the file is opened, or by a later call.

mod import;
mod read;
mod recover;
mod retain;
mod salvage;
mod tables;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use evenkeel_common::clock::Clock;
use evenkeel_common::database::{DatabaseFile, Failure, OpenError, Options, StoreError};
use jiff::Timestamp;
use parking_lot::Mutex;
use redb::Database;
use tokio::sync::watch;

use super::{
    Change, Duty, Keep, KeepError, News, Outcome, Page, Position, Query, Retention, Stored, Usage, Versioned,
};

use recover::Damage;

pub use import::{SavedState, parse as parse_state_file};

/// Cached pages are read again soon or never, so reading a large history must not fill the memory.
const OPTIONS: Options = Options { file: "warden.redb", cache: 1024 * 1024, check: false };
/// Size limit of a store in memory, in bytes.
const IN_MEMORY_BYTES: u64 = 16 * 1024 * 1024;

/// The folder is in use by another warden.
#[derive(Debug, thiserror::Error)]
#[error("api.state_path: {} is in use by another warden; allowed: a separate folder for each", .0.display())]
pub struct InUse(PathBuf);

/// The embedded store.
pub struct Embedded {
    shared: Arc<Shared>,
    /// Never changes, because there is no other writer.
    hints: watch::Sender<u64>,
    is_in_memory: bool,
}

struct Shared {
    folder: PathBuf,
    clock: Arc<dyn Clock>,
    /// `None` until the file has been opened.
    file: Mutex<Option<DatabaseFile>>,
    /// How many calls in a row have found damage that opening the file does not find.
    strikes: AtomicU32,
    /// What was set aside because it was damaged.
    damage: Mutex<Option<Damage>>,
}

impl Embedded {
    /// Opens the store in `folder`, which is created if it is missing. A state file of an earlier version is imported, a
    /// damaged store is moved aside. If the store cannot be opened now, every call tries again; it is only an error if
    /// another warden uses it.
    pub fn open(folder: &Path, clock: Arc<dyn Clock>) -> Result<Self, InUse> {
        // The lock is on the folder itself, whatever path leads to it.
        let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let shared = Shared::new(folder, clock);
        match shared.open() {
            Ok(file) => *shared.file.lock() = Some(file),
            Err(OpenError::InUse) => return Err(InUse(shared.folder)),
            Err(error) => tracing::error!(
                path = %shared.folder.display(), %error,
                "cannot open the store; this will be retried, and agents keep their entries until then"
            ),
        }
        Ok(Self::of(shared, false))
    }

    /// Creates a store in memory.
    pub fn in_memory(clock: Arc<dyn Clock>) -> Result<Self, KeepError> {
        let file = DatabaseFile::in_memory(OPTIONS).map_err(|error| KeepError(error.to_string()))?;
        let shared = Shared::new(PathBuf::new(), clock);
        shared.prepare(&file)?;
        *shared.file.lock() = Some(file);
        Ok(Self::of(shared, true))
    }

    fn of(shared: Shared, is_in_memory: bool) -> Self {
        Self { shared: Arc::new(shared), hints: watch::Sender::new(0), is_in_memory }
    }

    /// Runs blocking work on a separate thread.
    async fn run<R: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Database) -> Result<R, TableError> + Send + 'static,
    ) -> Result<R, KeepError> {
        let shared = self.shared.clone();
        let done = tokio::task::spawn_blocking(move || shared.run(doing, work)).await;
        done.unwrap_or_else(|error| Err(KeepError(error.to_string())))
    }
}

impl Shared {
    fn new(folder: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self { folder, clock, file: Mutex::new(None), strikes: AtomicU32::new(0), damage: Mutex::new(None) }
    }

    fn run<R>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Database) -> Result<R, TableError>,
    ) -> Result<R, KeepError> {
        let mut slot = self.file.lock();
        let file = match slot.take() {
            Some(file) => file,
            None => self.open().map_err(|error| {
                KeepError(format!("cannot open the store in {}: {error}", self.folder.display()))
            })?,
        };
        let file = slot.insert(file);
        // A panic of the work leaves the value that was set before it.
        let ended = Cell::new(Ended::BeforeWork);
        let done = file.run(doing, |database| {
            ended.set(Ended::ByPanic);
            let done = work(database);
            ended.set(match &done {
                Err(error) if error.is_damage() => Ended::Damaged,
                _ => Ended::Properly,
            });
            done
        });
        let ended = ended.get();
        if done.is_ok() {
            self.strikes.store(0, Ordering::Relaxed);
        } else if ended != Ended::Properly && self.folder != Path::new("") {
            // The next call opens the file again, checks it, and replaces it if it is damaged.
            *slot = None;
            if ended == Ended::Damaged {
                self.strikes.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(done?)
    }
}

/// How a call to the file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The file could not be opened again.
    BeforeWork,
    /// redb may panic on a damaged file.
    ByPanic,
    /// The content is damaged.
    Damaged,
    /// Successfully, or with an error that is not about the content.
    Properly,
}

/// Why work on the tables failed.
#[derive(Debug, thiserror::Error)]
enum TableError {
    /// A newer version of the program has written the tables.
    #[error("{0}")]
    Newer(String),
    #[error(transparent)]
    Database(#[from] redb::Error),
    #[error("{0}")]
    Content(String),
}

macro_rules! from_redb {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for TableError {
            fn from(error: redb::$error) -> Self {
                Self::Database(error.into())
            }
        })*
    };
}

from_redb!(StorageError, TableError, TransactionError, CommitError);

impl TableError {
    /// Reports whether the content of the file is at fault, rather than the disk or the memory.
    fn is_damage(&self) -> bool {
        match self {
            Self::Newer(_) => false,
            Self::Content(_) => true,
            Self::Database(error) => matches!(
                error,
                redb::Error::Corrupted(_)
                    | redb::Error::TableTypeMismatch { .. }
                    | redb::Error::TableIsMultimap(_)
                    | redb::Error::TableIsNotMultimap(_)
                    | redb::Error::TypeDefinitionChanged { .. }
                    | redb::Error::TableDoesNotExist(_)
            ),
        }
    }
}

impl Failure for TableError {
    fn of_redb(&self) -> Option<&redb::Error> {
        match self {
            Self::Database(error) => Some(error),
            Self::Newer(_) | Self::Content(_) => None,
        }
    }
}

impl From<serde_json::Error> for TableError {
    fn from(error: serde_json::Error) -> Self {
        Self::Content(error.to_string())
    }
}

impl From<StoreError> for KeepError {
    fn from(error: StoreError) -> Self {
        Self(error.to_string())
    }
}

#[async_trait]
impl Keep for Embedded {
    /// Only one warden can open a folder. What is in memory is empty after a restart.
    fn is_shared(&self) -> bool {
        self.is_in_memory
    }

    async fn commit(&self, changes: Vec<Change>, now: Timestamp) -> Result<Vec<Outcome>, KeepError> {
        self.run("write", move |database| tables::commit(database, changes, now)).await
    }

    async fn news(&self, after: Position, limit: usize) -> Result<News, KeepError> {
        self.run("read", move |database| read::news(database, after, limit)).await
    }

    async fn tail(&self, after: u64, limit: usize) -> Result<Vec<Stored>, KeepError> {
        self.run("read", move |database| read::tail(database, after, limit)).await
    }

    async fn history(&self, query: &Query) -> Result<Page, KeepError> {
        let query = query.clone();
        self.run("read", move |database| read::history(database, &query)).await
    }

    async fn value(&self, name: &str) -> Result<Versioned, KeepError> {
        let name = name.to_owned();
        self.run("read", move |database| read::value(database, &name)).await
    }

    async fn swap(&self, name: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, KeepError> {
        let name = name.to_owned();
        self.run("write", move |database| tables::swap(database, &name, expected, &value)).await
    }

    async fn remove(&self, name: &str, expected: u64) -> Result<bool, KeepError> {
        let name = name.to_owned();
        self.run("write", move |database| tables::remove(database, &name, expected)).await
    }

    async fn hold(&self, _: Duty) -> Result<bool, KeepError> {
        Ok(true)
    }

    async fn retain(&self, mut limits: Retention, now: Timestamp) -> Result<u64, KeepError> {
        if self.is_in_memory {
            limits.bytes = limits.bytes.min(IN_MEMORY_BYTES);
        }
        self.run("write", move |database| retain::retain(database, limits, now)).await
    }

    async fn usage(&self) -> Result<Usage, KeepError> {
        self.run("read", read::usage).await
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.hints.subscribe()
    }

    fn damage(&self) -> Option<String> {
        self.shared.damage_in_words()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_learns_whether_the_disk_has_failed() {
        let failed = redb::StorageError::Io(std::io::ErrorKind::StorageFull.into());
        assert!(matches!(TableError::from(failed).of_redb(), Some(redb::Error::Io(_))));
        assert!(TableError::Content("its ids are not in order".to_owned()).of_redb().is_none());
    }
}
