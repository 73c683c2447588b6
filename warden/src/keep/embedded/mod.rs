//! The embedded store: one redb file, for one warden. Without a folder, it is in memory and smaller.

mod import;
mod read;
mod tables;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use evenkeel_common::clock::Clock;
use evenkeel_common::database::{DatabaseFile, OpenError, Options, StoreError};
use jiff::Timestamp;
use redb::Database;
use tokio::sync::watch;

use super::{
    Change, Duty, Keep, KeepError, News, Outcome, Page, Position, Query, Retention, Stored, Usage, Versioned,
};

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
}

impl Embedded {
    /// Opens the store in `folder`, which is created if it is missing. A state file of an earlier version is imported, a
    /// damaged store is moved aside. If the store cannot be opened now, every call tries again; it is only an error if
    /// another warden uses it.
    pub fn open(folder: &Path, clock: Arc<dyn Clock>) -> Result<Self, InUse> {
        // The lock is on the folder itself, whatever path leads to it.
        let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let shared = Shared { folder, clock, file: Mutex::new(None) };
        match shared.open() {
            Ok(file) => *shared.guard() = Some(file),
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
        let shared = Shared { folder: PathBuf::new(), clock, file: Mutex::new(None) };
        shared.prepare(&file)?;
        *shared.guard() = Some(file);
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
    fn guard(&self) -> std::sync::MutexGuard<'_, Option<DatabaseFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run<R>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Database) -> Result<R, TableError>,
    ) -> Result<R, KeepError> {
        let mut slot = self.guard();
        let file = match slot.take() {
            Some(file) => file,
            None => self.open().map_err(|error| {
                KeepError(format!("cannot open the store in {}: {error}", self.folder.display()))
            })?,
        };
        Ok(slot.insert(file).run(doing, work)?)
    }

    fn open(&self) -> Result<DatabaseFile, OpenError> {
        import::make_room(&self.folder).map_err(OpenError::Io)?;
        let (file, aside) = DatabaseFile::open(&self.folder, OPTIONS)?;
        if let Some(aside) = aside {
            tracing::error!(
                "STATE LOST: {} was damaged ({}); it was moved to {} and the history starts empty",
                file.path().display(),
                aside.cause,
                aside.path.display()
            );
        }
        self.prepare(&file).map_err(|error| OpenError::Io(std::io::Error::other(error.0)))?;
        Ok(file)
    }

    /// Creates the tables of a new file, and imports the state of an earlier version.
    fn prepare(&self, file: &DatabaseFile) -> Result<(), KeepError> {
        let now = self.clock.now();
        if file.run("write", |database| tables::prepare(database, now))?
            && let Some(saved) = import::load(&self.folder, now)
        {
            file.run("write", |database| tables::import(database, &saved, now))?;
        }
        if self.folder != Path::new("") {
            import::set_aside(&self.folder);
        }
        Ok(())
    }
}

/// Why work on the tables failed.
#[derive(Debug, thiserror::Error)]
enum TableError {
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
        self.run("write", move |database| tables::retain(database, limits, now)).await
    }

    async fn usage(&self) -> Result<Usage, KeepError> {
        self.run("read", read::usage).await
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.hints.subscribe()
    }
}
