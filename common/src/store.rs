//! Durable key/value state in one file, and the same in memory: what must outlive the process goes through here.
//!
//! The file is a [`DatabaseFile`]: a fault of the disk is an error of that one call, and a file that is damaged when the
//! program starts is set aside.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use redb::{ReadableDatabase, TableDefinition};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::database::{DatabaseFile, OpenError, Options};

/// One file, one table; keys carry their own prefixes.
const TABLE: TableDefinition<&str, &[u8]> = TableDefinition::new("state");
/// The state is small.
const OPTIONS: Options = Options { file: "state.redb", cache: 128 * 1024, check: true };

pub use crate::database::StoreError;

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
    let (file, aside) = match DatabaseFile::open(dir, OPTIONS) {
        Ok(opened) => opened,
        Err(OpenError::InUse) => return Err(StateInUse(dir.join(OPTIONS.file))),
        Err(error) => {
            let warning = format!(
                "state cannot be kept in {}: {error}; it is in memory only, so blocks, counters and unfinished \
                 deployments are forgotten when the program ends",
                dir.display()
            );
            return Ok(Opened { store: Arc::new(MemoryStore::new()), warning: Some(warning) });
        }
    };
    let warning = aside.map(|aside| {
        format!(
            "STATE LOST: {} was damaged ({}); it was moved to {} and the state starts afresh: blocked digests, \
             counters and unfinished deployments are forgotten",
            file.path().display(),
            aside.cause,
            aside.path.display()
        )
    });
    let store = OnDisk { file: Arc::new(FileStore(file)), turn: tokio::sync::Mutex::new(()) };
    Ok(Opened { store: Arc::new(store), warning })
}

/// Whether another process has the state in the folder `dir` open.
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
