//! Durable key/value state in one file, and the same in memory: what must outlive the process goes through here.
//!
//! The file is a redb database behind one lock. A fault of the disk is an error of that one call: the database is
//! closed then and opened again by the next call. A file that is damaged when the program starts is kept aside.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use redb::{Database, ReadableDatabase, StorageError, TableDefinition};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::{Clock, SystemClock};
use crate::supervisor::panic_text;

/// One file, one table; keys carry their own prefixes.
const TABLE: TableDefinition<&str, &[u8]> = TableDefinition::new("state");
const FILE: &str = "state.redb";
/// The state is small; redb's default is 1 GiB.
const CACHE: usize = 4 * 1024 * 1024;

/// A key and its new value; `None` removes it.
pub type Change = (String, Option<Vec<u8>>);

/// Durable key/value state.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Makes all changes or none, and returns when they would survive a power cut.
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError>;

    /// The value of a key.
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// All keys that begin with `prefix`, with their values, in order.
    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// Sets one key.
    async fn put(&self, key: &str, value: Vec<u8>) -> Result<(), StoreError> {
        self.put_all(vec![(key.to_owned(), Some(value))]).await
    }
}

/// What the store could not do. The store can be used again afterwards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {doing} state in {}: {cause}", path.display())]
pub struct StoreError {
    /// `read` or `write`.
    pub doing: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub cause: String,
}

/// Another process uses the same state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the state in {} is used by another process; two must not run on the same state", .0.display())]
pub struct StateInUse(pub PathBuf);

/// An opened store.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// What a person should know about it: that it is only in memory, or that it had to start afresh.
    pub warning: Option<String>,
}

/// Opens the state in the folder `dir`, which is made when it is missing. Where nothing can be kept there the state
/// is in memory only; a damaged file is moved aside. Only a second process on the same state is an error.
pub fn open(dir: &Path) -> Result<Opened, StateInUse> {
    let path = dir.join(FILE);
    let in_memory = |cause: &str| Opened {
        store: Arc::new(MemoryStore::new()),
        warning: Some(format!(
            "state cannot be kept in {}: {cause}; it is in memory only, so blocks, counters and unfinished \
             deployments are forgotten when the program ends",
            dir.display()
        )),
    };
    let lock = match lock_folder(dir) {
        Ok(lock) => lock,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(StateInUse(path)),
        Err(error) => return Ok(in_memory(&error.to_string())),
    };
    let mut warning = None;
    let database = match open_database(&path, Freshness::AsFound) {
        Err(OpenError::Damaged(cause)) => {
            let aside = match move_aside(&path) {
                Ok(aside) => aside,
                Err(error) => {
                    return Ok(in_memory(&format!(
                        "{FILE} is damaged ({cause}) and cannot be moved: {error}"
                    )));
                }
            };
            warning = Some(format!(
                "STATE LOST: {} was damaged ({cause}); it was moved to {} and the state starts afresh: blocked \
                 digests, counters and unfinished deployments are forgotten",
                path.display(),
                aside.display()
            ));
            open_database(&path, Freshness::AsFound)
        }
        other => other,
    };
    match database {
        Ok(database) => {
            let file = FileStore { path, database: Mutex::new(Some(database)), _lock: lock };
            let store = OnDisk { file: Arc::new(file), turn: tokio::sync::Mutex::new(()) };
            Ok(Opened { store: Arc::new(store), warning })
        }
        Err(OpenError::InUse) => Err(StateInUse(path)),
        Err(error) => Ok(in_memory(&error.to_string())),
    }
}

/// Whether another process has the state in the folder `dir` open.
pub fn is_in_use(dir: &Path) -> bool {
    File::open(dir).is_ok_and(|folder| matches!(folder.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Makes the folder and takes its lock, which the open folder holds. `WouldBlock` means that another has it.
fn lock_folder(dir: &Path) -> io::Result<File> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let folder = File::open(dir)?;
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
        // A file system that knows no locks: the database's own lock has to do.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(folder),
    }
}

fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let stamp = SystemClock.now().strftime("%Y%m%dT%H%M%S.%3fZ");
    let aside = path.with_file_name(format!("{FILE}.damaged-{stamp}"));
    fs::rename(path, &aside)?;
    Ok(aside)
}

#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("it is used by another process")]
    InUse,
    #[error("damaged: {0}")]
    Damaged(String),
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => Self::Damaged(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

impl From<redb::DatabaseError> for OpenError {
    fn from(error: redb::DatabaseError) -> Self {
        match error {
            redb::DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            redb::DatabaseError::Storage(StorageError::Io(error)) => error.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// Whether a missing file is an empty state.
#[derive(Clone, Copy, PartialEq)]
enum Freshness {
    /// It is: the first start.
    AsFound,
    /// It is not: there was one a moment ago.
    MustExist,
}

fn open_database(path: &Path, freshness: Freshness) -> Result<Database, OpenError> {
    let fresh = freshness == Freshness::AsFound && !path.try_exists()?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(fresh)
        .mode(0o600)
        // Whoever can put a link here would choose which file root writes.
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(OpenError::Io(io::Error::other(format!("{FILE} is not a regular file"))));
    }
    if !fresh && metadata.len() == 0 {
        // redb would take this for a new database, and a lost state would pass unnoticed.
        return Err(OpenError::Damaged("the file is empty".to_owned()));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    // redb may panic on a damaged file.
    let database = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut database = Database::builder().set_cache_size(CACHE).create_file(file)?;
        if !fresh && !database.check_integrity()? {
            return Err(OpenError::Damaged("its integrity check failed".to_owned()));
        }
        Ok(database)
    }))
    .unwrap_or_else(|panic| Err(OpenError::Damaged(panic_text(panic.as_ref()))))?;
    if fresh && let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(database)
}

struct FileStore {
    path: PathBuf,
    /// `None` after a fault, until the next call opens it again.
    database: Mutex<Option<Database>>,
    /// Keeps other processes out, also while the database is closed after a fault.
    _lock: File,
}

impl FileStore {
    fn guard(&self) -> MutexGuard<'_, Option<Database>> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one piece of work on the database; any fault closes it, since redb refuses to go on after one.
    fn run<R>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Database) -> Result<R, redb::Error>,
    ) -> Result<R, StoreError> {
        let fail = |cause: String| StoreError { doing, path: self.path.clone(), cause };
        let mut slot = self.guard();
        let database = match slot.take() {
            Some(database) => database,
            None => {
                open_database(&self.path, Freshness::MustExist).map_err(|error| fail(error.to_string()))?
            }
        };
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| work(&database)));
        match outcome {
            Ok(Ok(value)) => {
                *slot = Some(database);
                Ok(value)
            }
            Ok(Err(error)) => {
                close(database);
                Err(fail(error.to_string()))
            }
            Err(panic) => {
                close(database);
                Err(fail(panic_text(panic.as_ref())))
            }
        }
    }

    fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.run("write", |database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(TABLE)?;
                for (key, value) in changes {
                    match value {
                        Some(value) => table.insert(key.as_str(), value.as_slice())?,
                        None => table.remove(key.as_str())?,
                    };
                }
            }
            Ok(transaction.commit()?)
        })
    }

    fn read(&self, from: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.run("read", |database| {
            let table = match database.begin_read()?.open_table(TABLE) {
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                other => other?,
            };
            let mut found = Vec::new();
            for item in table.range(from..)? {
                let (key, value) = item?;
                if !wanted(key.value()) {
                    break;
                }
                found.push((key.value().to_owned(), value.value().to_vec()));
            }
            Ok(found)
        })
    }
}

/// Closing writes too and may panic on a disk that has just failed.
fn close(database: Database) {
    let closed = std::panic::catch_unwind(AssertUnwindSafe(|| drop(database)));
    if closed.is_err() {
        tracing::warn!("closing the state after a fault failed; it is repaired when it is opened again");
    }
}

/// The async face of [`FileStore`]: every call works on a thread that may block, one at a time, as the file lets in only
/// one anyway: who waits for a turn needs no thread.
struct OnDisk {
    file: Arc<FileStore>,
    turn: tokio::sync::Mutex<()>,
}

impl OnDisk {
    async fn run<R: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&FileStore) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let file = self.file.clone();
        let _turn = self.turn.lock().await;
        tokio::task::spawn_blocking(move || work(&file)).await.unwrap_or_else(|error| {
            Err(StoreError { doing, path: self.file.path.clone(), cause: error.to_string() })
        })
    }
}

#[async_trait]
impl Store for OnDisk {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.run("write", move |file| file.write(&changes)).await
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let key = key.to_owned();
        let found = self.run("read", move |file| file.read(&key, |found| found == key)).await?;
        Ok(found.into_iter().next().map(|(_, value)| value))
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let prefix = prefix.to_owned();
        self.run("read", move |file| file.read(&prefix, |found| found.starts_with(&prefix))).await
    }
}

/// The last write that failed, as long as it is not proven that writes succeed again.
#[derive(Debug, Clone)]
pub struct Failing {
    /// Why.
    pub error: StoreError,
    /// When.
    pub at: Instant,
}

/// A store that notes when its writes fail. That they succeed again is for somebody else to find out: on a full disk a
/// small write may succeed between two large ones that don't.
pub struct MonitoredStore {
    inner: Arc<dyn Store>,
    failing: watch::Sender<Option<Failing>>,
}

impl MonitoredStore {
    /// The same store; its failures are noted in `failing`, whose receivers are told when the error becomes another.
    pub fn new(inner: Arc<dyn Store>, failing: watch::Sender<Option<Failing>>) -> Self {
        Self { inner, failing }
    }
}

#[async_trait]
impl Store for MonitoredStore {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let written = self.inner.put_all(changes).await;
        if let Err(error) = &written {
            self.failing.send_if_modified(|failing| {
                let is_news = failing.as_ref().is_none_or(|last| last.error != *error);
                *failing = Some(Failing { error: error.clone(), at: Instant::now() });
                is_news
            });
        }
        written
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(key).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.inner.scan(prefix).await
    }
}

/// State in memory. Clones share their content, so that one can stand for the state that a next life finds.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl MemoryStore {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn content(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut content = self.content();
        for (key, value) in changes {
            match value {
                Some(value) => content.insert(key, value),
                None => content.remove(&key),
            };
        }
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.content().get(key).cloned())
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let content = self.content();
        let from = content.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(from.map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
