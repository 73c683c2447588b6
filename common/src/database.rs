//! A redb file with a lock on its folder. A damaged file is moved aside. A disk error only fails the current call: the file
//! is closed and reopened by the next call.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use redb::{Database, StorageError};

use crate::clock::{Clock, SystemClock};
use crate::supervisor::panic_text;

/// The error of one call. The file remains usable afterwards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {doing} state in {}: {cause}", path.display())]
pub struct StoreError {
    /// `read` or `write`.
    pub doing: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub cause: String,
}

/// Options for opening a file.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Name of the file in its folder.
    pub file: &'static str,
    /// Size of the page cache in bytes; redb's default is 1 GiB.
    pub cache: usize,
    /// Whether to check the whole file when it is opened. This is slow for a large file. Without it, damage only fails the
    /// call that encounters it.
    pub check: bool,
}

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("it is in use by another process")]
    InUse,
    /// The content is corrupt.
    #[error("damaged: {0}")]
    Damaged(String),
    /// A disk or permission error.
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

/// A damaged file that was moved aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// How it was damaged.
    pub cause: String,
    /// Its new path.
    pub path: PathBuf,
}

/// An open database file.
pub struct DatabaseFile {
    path: PathBuf,
    options: Options,
    /// `None` after an error, until the next call reopens it.
    database: Mutex<Option<Database>>,
    /// Keeps other processes out, even while the database is closed after an error; `None` for a database in memory.
    _lock: Option<File>,
}

impl DatabaseFile {
    /// Creates a database in memory.
    pub fn in_memory(options: Options) -> Result<Self, redb::DatabaseError> {
        let backend = redb::backends::InMemoryBackend::new();
        let database = Database::builder().set_cache_size(options.cache).create_with_backend(backend)?;
        Ok(Self { path: "memory".into(), options, database: Mutex::new(Some(database)), _lock: None })
    }

    /// Opens the file in the folder `dir`, creating both if they do not exist. A damaged file is moved aside and replaced
    /// by a new one.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Option<SetAside>), OpenError> {
        let path = dir.join(options.file);
        let lock = lock_folder(dir)?;
        let (database, aside) = match open_database(&path, options, OpenMode::CreateIfMissing) {
            Err(OpenError::Damaged(cause)) => {
                let moved = move_aside(&path).map_err(|error| {
                    let text = format!("{} is damaged ({cause}) and cannot be moved: {error}", options.file);
                    OpenError::Io(io::Error::other(text))
                })?;
                let database = open_database(&path, options, OpenMode::CreateIfMissing)?;
                (database, Some(SetAside { cause, path: moved }))
            }
            other => (other?, None),
        };
        Ok((Self { path, options, database: Mutex::new(Some(database)), _lock: Some(lock) }, aside))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on the database; calls are serialized. Any error closes the database, since redb refuses to continue
    /// after one.
    pub fn run<R, E: Display>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Database) -> Result<R, E>,
    ) -> Result<R, StoreError> {
        let fail = |cause: String| StoreError { doing, path: self.path.clone(), cause };
        let mut slot = self.guard();
        let database = match slot.take() {
            Some(database) => database,
            None => open_database(&self.path, self.options, OpenMode::MustExist)
                .map_err(|error| fail(error.to_string()))?,
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

    fn guard(&self) -> MutexGuard<'_, Option<Database>> {
        self.database.lock()
    }
}

/// Creates the folder and locks it. The lock is held as long as the returned handle is open.
fn lock_folder(dir: &Path) -> Result<File, OpenError> {
    let open = || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        File::open(dir)
    };
    let folder = open().map_err(OpenError::Io)?;
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse),
        // The file system does not support locks; rely on the lock of the database.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(folder),
    }
}

fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let stamp = SystemClock.now().strftime("%Y%m%dT%H%M%S.%3fZ");
    let aside = path.with_added_extension(format!("damaged-{stamp}"));
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// How to treat a missing file.
#[derive(Clone, Copy, PartialEq)]
enum OpenMode {
    /// Create it: this is the first start.
    CreateIfMissing,
    /// Fail: the file existed a moment ago.
    MustExist,
}

fn open_database(path: &Path, options: Options, mode: OpenMode) -> Result<Database, OpenError> {
    let fresh = mode == OpenMode::CreateIfMissing && !path.try_exists()?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(fresh)
        .mode(0o600)
        // A symlink planted here could make root write to any file.
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(OpenError::Io(io::Error::other(format!("{} is not a regular file", options.file))));
    }
    if !fresh && metadata.len() == 0 {
        // redb would treat it as a new database, and the loss of the state would go unnoticed.
        return Err(OpenError::Damaged("the file is empty".to_owned()));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    // redb may panic on a damaged file.
    let database = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut database = Database::builder().set_cache_size(options.cache).create_file(file)?;
        if options.check && !fresh && !database.check_integrity()? {
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

/// Closes the database. This writes as well, and may panic on a disk that has just failed.
fn close(database: Database) {
    let closed = std::panic::catch_unwind(AssertUnwindSafe(|| drop(database)));
    if closed.is_err() {
        tracing::warn!(
            "cannot close the state file after an error; it will be repaired when it is next opened"
        );
    }
}
