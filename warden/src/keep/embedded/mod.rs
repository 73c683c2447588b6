//! The embedded store: one redb file, for one warden. Without a folder it is in memory, and smaller.

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

/// Its pages are read again soon or never; what is read of a large history must not stay in memory.
const OPTIONS: Options = Options { file: "warden.redb", cache: 1024 * 1024, check: false };
/// What is kept in memory where there is no folder, in bytes.
const IN_MEMORY_BYTES: u64 = 16 * 1024 * 1024;

/// Another warden uses the folder.
#[derive(Debug, thiserror::Error)]
#[error("api.state_path: {} is in use by another warden; allowed: a folder of its own for each", .0.display())]
pub struct InUse(PathBuf);

/// The store.
pub struct Embedded {
    shared: Arc<Shared>,
    /// Nobody else writes, so nobody is ever woken.
    hints: watch::Sender<u64>,
    is_in_memory: bool,
}

struct Shared {
    folder: PathBuf,
    clock: Arc<dyn Clock>,
    /// `None` until it could be opened.
    file: Mutex<Option<DatabaseFile>>,
}

impl Embedded {
    /// Opens the store in `folder`, which is made when it is missing. A file of an earlier version is taken over, a
    /// damaged one is set aside. What cannot be opened now is tried again by every call; only that another warden has it
    /// is an error.
    pub fn open(folder: &Path, clock: Arc<dyn Clock>) -> Result<Self, InUse> {
        // The lock is on the folder itself, whatever the way to it.
        let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let shared = Shared { folder, clock, file: Mutex::new(None) };
        match shared.open() {
            Ok(file) => *shared.guard() = Some(file),
            Err(OpenError::InUse) => return Err(InUse(shared.folder)),
            Err(error) => tracing::error!(
                path = %shared.folder.display(), %error,
                "the store cannot be opened; it will be tried again, and agents keep their entries until then"
            ),
        }
        Ok(Self::of(shared, false))
    }

    /// A store in memory.
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

    /// Runs a piece of work on a thread that may block.
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
                "STATE LOST: {} was damaged ({}); it was moved to {} and the history begins afresh",
                file.path().display(),
                aside.cause,
                aside.path.display()
            );
        }
        self.prepare(&file).map_err(|error| OpenError::Io(std::io::Error::other(error.0)))?;
        Ok(file)
    }

    /// Makes the tables of a new file, and takes over what an earlier version has left.
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

/// What a piece of work on the tables may fail with.
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
