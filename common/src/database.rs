//! A redb file of our own: its folder is locked, a damaged file is set aside, and a fault of the disk is an error of
//! that one call. The file is closed then, and opened again by the next call.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{Database, StorageError};

use crate::clock::{Clock, SystemClock};
use crate::supervisor::panic_text;

/// An error of one call. The file can be used again afterwards.
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

/// How a file is opened.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Name of the file in its folder.
    pub file: &'static str,
    /// Memory for its pages, in bytes; redb's own default is 1 GiB.
    pub cache: usize,
    /// Whether the whole file is read and checked when it is opened. That takes long where the file is large; damage that
    /// is found later is an error of the call that finds it.
    pub check: bool,
}

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds it.
    #[error("it is used by another process")]
    InUse,
    /// Its content makes no sense.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The disk, or its rights.
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

/// A damaged file that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// What was wrong with it.
    pub cause: String,
    /// Where it is now.
    pub path: PathBuf,
}

/// An opened file.
pub struct DatabaseFile {
    path: PathBuf,
    options: Options,
    /// `None` after a fault, until the next call opens it again.
    database: Mutex<Option<Database>>,
    /// Keeps other processes out, also while the database is closed after a fault; `None` in memory.
    _lock: Option<File>,
}

impl DatabaseFile {
    /// A database in memory, which is gone with the process.
    pub fn in_memory(options: Options) -> Result<Self, redb::DatabaseError> {
        let backend = redb::backends::InMemoryBackend::new();
        let database = Database::builder().set_cache_size(options.cache).create_with_backend(backend)?;
        Ok(Self { path: "memory".into(), options, database: Mutex::new(Some(database)), _lock: None })
    }

    /// Opens the file in the folder `dir`; both are made when they are missing. A damaged file is moved aside, and a new
    /// one takes its place.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Option<SetAside>), OpenError> {
        let path = dir.join(options.file);
        let lock = lock_folder(dir)?;
        let (database, aside) = match open_database(&path, options, Freshness::AsFound) {
            Err(OpenError::Damaged(cause)) => {
                let moved = move_aside(&path).map_err(|error| {
                    let text = format!("{} is damaged ({cause}) and cannot be moved: {error}", options.file);
                    OpenError::Io(io::Error::other(text))
                })?;
                let database = open_database(&path, options, Freshness::AsFound)?;
                (database, Some(SetAside { cause, path: moved }))
            }
            other => (other?, None),
        };
        Ok((Self { path, options, database: Mutex::new(Some(database)), _lock: Some(lock) }, aside))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs one piece of work on the database, one at a time; any fault closes it, since redb refuses to go on after
    /// one.
    pub fn run<R, E: Display>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Database) -> Result<R, E>,
    ) -> Result<R, StoreError> {
        let fail = |cause: String| StoreError { doing, path: self.path.clone(), cause };
        let mut slot = self.guard();
        let database = match slot.take() {
            Some(database) => database,
            None => open_database(&self.path, self.options, Freshness::MustExist)
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
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the folder and takes its lock, which the open folder holds.
fn lock_folder(dir: &Path) -> Result<File, OpenError> {
    let open = || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        File::open(dir)
    };
    let folder = open().map_err(OpenError::Io)?;
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse),
        // A file system that knows no locks: the database's own lock has to do.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(folder),
    }
}

fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let stamp = SystemClock.now().strftime("%Y%m%dT%H%M%S.%3fZ");
    let aside = path.with_added_extension(format!("damaged-{stamp}"));
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// Whether a missing file is an empty state.
#[derive(Clone, Copy, PartialEq)]
enum Freshness {
    /// It is: the first start.
    AsFound,
    /// It is not: there was one a moment ago.
    MustExist,
}

fn open_database(path: &Path, options: Options, freshness: Freshness) -> Result<Database, OpenError> {
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
        return Err(OpenError::Io(io::Error::other(format!("{} is not a regular file", options.file))));
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

/// Closing writes too and may panic on a disk that has just failed.
fn close(database: Database) {
    let closed = std::panic::catch_unwind(AssertUnwindSafe(|| drop(database)));
    if closed.is_err() {
        tracing::warn!("closing the state after a fault failed; it is repaired when it is opened again");
    }
}
