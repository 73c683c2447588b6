//! Durable key/value state in one file, or in memory. Everything that must outlive the process is stored here.
//!
//! The file is a [`DatabaseFile`]: a disk error only fails the current call, and a file that is damaged at start-up is moved
//! aside.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use redb::{ReadableDatabase, TableDefinition};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::database::{DatabaseFile, OpenError, Options};

/// One file, one table; keys carry their own prefixes.
const TABLE: TableDefinition<&str, &[u8]> = TableDefinition::new("state");
/// The state is small, so a small cache and a full check are enough.
const OPTIONS: Options = Options { file: "state.redb", cache: 128 * 1024, check: true };

pub use crate::database::StoreError;

/// A key and its new value; `None` removes it.
pub type Change = (String, Option<Vec<u8>>);

/// Durable key/value state.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Applies all changes atomically, and returns once they would survive a power failure.
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError>;

    /// Returns the value of a key.
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns all keys that begin with `prefix` and their values, sorted.
    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// Sets one key.
    async fn put(&self, key: &str, value: Vec<u8>) -> Result<(), StoreError> {
        self.put_all(vec![(key.to_owned(), Some(value))]).await
    }
}

/// Why the state was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// Another process is using the same state.
    #[error("the state in {} is in use by another process; two processes must not share it", .0.display())]
    InUse(PathBuf),
    /// There is a state, but it can't be read. It may contain blocked digests, so it must not be taken for an empty one.
    #[error(transparent)]
    Unreadable(StoreError),
}

/// An open store.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// A warning for the operator: the state is only in memory, or it was lost and starts empty.
    pub warning: Option<String>,
}

/// Opens the state in the folder `dir`, creating the folder if necessary. If the folder is not usable, the state is kept in
/// memory only, with the content of a file that can be read but not written; a damaged file is moved aside.
pub fn open(dir: &Path) -> Result<Opened, Unopened> {
    let (file, aside) = match DatabaseFile::open(dir, OPTIONS) {
        Ok(opened) => opened,
        Err(OpenError::InUse) => return Err(Unopened::InUse(dir.join(OPTIONS.file))),
        Err(error) => return in_memory(dir, &error).map_err(Unopened::Unreadable),
    };
    let warning = aside.map(|aside| {
        format!(
            "STATE LOST: {} was damaged ({}) and has been moved to {}; the state starts empty: blocked digests, \
             counters and unfinished deployments are lost",
            file.path().display(),
            aside.cause,
            aside.path.display()
        )
    });
    let store = OnDisk { file: Arc::new(FileStore(file)), lock: tokio::sync::Mutex::new(()) };
    Ok(Opened { store: Arc::new(store), warning })
}

/// Opens the state in memory, because the file can't be opened. What the file contains stays in force.
fn in_memory(dir: &Path, error: &OpenError) -> Result<Opened, StoreError> {
    let folder = dir.display();
    let (rows, warning) = match stored(&dir.join(OPTIONS.file))? {
        Stored::Nothing => {
            let lost = "blocks, counters and unfinished deployments are lost when the program exits";
            (
                Vec::new(),
                format!("state cannot be stored in {folder}: {error}; it is in memory only, so {lost}"),
            )
        }
        Stored::Rows(rows) => {
            let text = "what was stored before is in force, but changes are in memory only and are lost when the \
                        program exits";
            (rows, format!("state cannot be stored in {folder}: {error}; {text}"))
        }
        Stored::Damaged(cause) => {
            let lost = "blocked digests, counters and unfinished deployments are lost";
            let text = format!(
                "STATE LOST: {} in {folder} is damaged ({cause}) and cannot be replaced: {error}; the state starts \
                 empty and is in memory only: {lost}",
                OPTIONS.file
            );
            (Vec::new(), text)
        }
    };
    let store = MemoryStore(Arc::new(Mutex::new(rows.into_iter().collect())));
    Ok(Opened { store: Arc::new(store), warning: Some(warning) })
}

/// The content of a file that can't be opened for writing.
enum Stored {
    /// There is no file.
    Nothing,
    Rows(Vec<(String, Vec<u8>)>),
    Damaged(String),
}

fn stored(path: &Path) -> Result<Stored, StoreError> {
    let fail = |cause: String| StoreError { doing: "read", path: path.to_owned(), cause };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        // Neither a symlink nor a folder is a state of this program.
        Ok(_) => return Ok(Stored::Nothing),
        Err(error) if is_absence(error.kind(), path) => return Ok(Stored::Nothing),
        Err(error) => return Err(fail(error.to_string())),
    }
    match DatabaseFile::copied(path, OPTIONS) {
        Ok(file) => Ok(match FileStore(file).read("", |_| true) {
            Ok(rows) => Stored::Rows(rows),
            Err(error) => Stored::Damaged(error.cause),
        }),
        Err(OpenError::Damaged(cause)) => Ok(Stored::Damaged(cause)),
        Err(error) => Err(fail(error.to_string())),
    }
}

/// Reports whether this error means that there is no such file: a path that never worked. A folder that is there may contain
/// it, even if it can't be searched.
fn is_absence(error: ErrorKind, path: &Path) -> bool {
    match error {
        ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidFilename => true,
        ErrorKind::PermissionDenied => !path.parent().is_some_and(Path::is_dir),
        _ => false,
    }
}

/// Reports whether another process has the state in the folder `dir` open.
pub fn is_in_use(dir: &Path) -> bool {
    File::open(dir).is_ok_and(|folder| matches!(folder.try_lock(), Err(TryLockError::WouldBlock)))
}

struct FileStore(DatabaseFile);

impl FileStore {
    fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.0.run("write", |database| -> Result<_, redb::Error> {
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
        self.0.run("read", |database| -> Result<_, redb::Error> {
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

/// The async wrapper of [`FileStore`]. Calls run on the blocking thread pool, one at a time: the file allows only one
/// anyway, and this way waiting calls do not occupy a thread.
struct OnDisk {
    file: Arc<FileStore>,
    lock: tokio::sync::Mutex<()>,
}

impl OnDisk {
    async fn run<R: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&FileStore) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let file = self.file.clone();
        let _guard = self.lock.lock().await;
        tokio::task::spawn_blocking(move || work(&file)).await.unwrap_or_else(|error| {
            Err(StoreError { doing, path: self.file.0.path().to_owned(), cause: error.to_string() })
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

/// The last failed write, kept until writes are known to succeed again.
#[derive(Debug, Clone)]
pub struct Failing {
    /// The error.
    pub error: StoreError,
    /// The time of the failure.
    pub at: Instant,
}

/// The writes in progress of a store.
#[derive(Debug, Clone, Default)]
pub struct Writes(Arc<Mutex<InProgress>>);

#[derive(Debug, Default)]
struct InProgress {
    count: usize,
    /// Since when none has ended although there is one.
    since: Option<Instant>,
}

impl Writes {
    /// Returns for how long no write has ended although one is in progress; `None` if none is.
    pub fn waiting(&self) -> Option<Duration> {
        self.0.lock().since.map(|since| since.elapsed())
    }

    fn begin(&self) -> Write<'_> {
        let mut writes = self.0.lock();
        writes.count += 1;
        writes.since.get_or_insert_with(Instant::now);
        Write(self)
    }
}

/// A write in progress, until it is dropped.
struct Write<'a>(&'a Writes);

impl Drop for Write<'_> {
    fn drop(&mut self) {
        let mut writes = self.0.0.lock();
        writes.count -= 1;
        writes.since = (writes.count > 0).then(Instant::now);
    }
}

/// A store that records failed writes. It does not detect recovery: on a full disk, a small write may succeed between two
/// large ones that fail.
pub struct MonitoredStore {
    inner: Arc<dyn Store>,
    failing: watch::Sender<Option<Failing>>,
    writes: Writes,
}

impl MonitoredStore {
    /// Wraps `inner` and records its failures in `failing`, whose receivers are notified when the error changes, and the writes in
    /// progress in `writes`.
    pub fn new(inner: Arc<dyn Store>, failing: watch::Sender<Option<Failing>>, writes: Writes) -> Self {
        Self { inner, failing, writes }
    }
}

#[async_trait]
impl Store for MonitoredStore {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let in_progress = self.writes.begin();
        let written = self.inner.put_all(changes).await;
        drop(in_progress);
        if let Err(error) = &written {
            self.failing.send_if_modified(|failing| {
                let is_new = failing.as_ref().is_none_or(|last| last.error != *error);
                *failing = Some(Failing { error: error.clone(), at: Instant::now() });
                is_new
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

/// State in memory. Clones share their content, so a clone can stand for the state that the next run finds.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut content = self.0.lock();
        for (key, value) in changes {
            match value {
                Some(value) => content.insert(key, value),
                None => content.remove(&key),
            };
        }
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.lock().get(key).cloned())
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let content = self.0.lock();
        let from = content.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(from.map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
