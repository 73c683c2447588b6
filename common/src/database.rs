//! A redb file with a lock on its folder. A damaged file is moved aside. A disk error only fails the current call: the file
//! is closed and reopened by the next call, without the check of the whole file unless the error says that it is damaged.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use redb::{Database, StorageBackend, StorageError};

use crate::clock::{Clock, SystemClock};
use crate::file::move_aside;
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

/// The error of the work on a database.
pub trait Failure: Display {
    /// Returns the error of redb that it is or contains, if any.
    fn of_redb(&self) -> Option<&redb::Error>;
}

impl Failure for redb::Error {
    fn of_redb(&self) -> Option<&redb::Error> {
        Some(self)
    }
}

/// How a file without content is damaged: redb would treat it as a new database.
const EMPTY: &str = "the file is empty";

enum Slot {
    Open(Database),
    /// Closed after an error. The next call opens it with these options.
    Closed(Options),
}

/// An open database file.
pub struct DatabaseFile {
    path: PathBuf,
    options: Options,
    database: Mutex<Slot>,
    /// Keeps other processes out, even while the database is closed after an error; `None` for a database in memory.
    _lock: Option<File>,
}

impl DatabaseFile {
    /// Creates a database in memory.
    pub fn in_memory(options: Options) -> Result<Self, redb::DatabaseError> {
        let backend = redb::backends::InMemoryBackend::new();
        let database = Database::builder().set_cache_size(options.cache).create_with_backend(backend)?;
        Ok(Self { path: "memory".into(), options, database: Mutex::new(Slot::Open(database)), _lock: None })
    }

    /// Opens a copy in memory of a file that can't be written. Changes are not stored, and an error closes it for good.
    pub fn copied(path: &Path, options: Options) -> Result<Self, OpenError> {
        let bytes = fs::read(path)?;
        if bytes.is_empty() {
            return Err(OpenError::Damaged(EMPTY.to_owned()));
        }
        let backend = redb::backends::InMemoryBackend::new();
        let length = u64::try_from(bytes.len()).map_err(io::Error::other)?;
        StorageBackend::set_len(&backend, length)?;
        StorageBackend::write(&backend, 0, &bytes)?;
        let database = checked(options, options.check, |builder| builder.create_with_backend(backend));
        let database = database.map_err(|error| match error {
            // Memory has no errors of its own: what can't be read there is missing in the file.
            OpenError::Io(error) => OpenError::Damaged(error.to_string()),
            other => other,
        })?;
        Ok(Self { path: path.to_owned(), options, database: Mutex::new(Slot::Open(database)), _lock: None })
    }

    /// Opens the file in the folder `dir`, creating both if they do not exist. A damaged file is moved aside and replaced
    /// by a new one.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Option<SetAside>), OpenError> {
        let path = dir.join(options.file);
        let lock = lock_folder(dir)?;
        let (database, aside) = match open_database(&path, options, OpenMode::CreateIfMissing) {
            Err(OpenError::Damaged(cause)) => {
                let moved = move_aside(&path, SystemClock.now()).map_err(|error| {
                    let text = format!("{} is damaged ({cause}) and cannot be moved: {error}", options.file);
                    OpenError::Io(io::Error::other(text))
                })?;
                let database = open_database(&path, options, OpenMode::CreateIfMissing)?;
                (database, Some(SetAside { cause, path: moved }))
            }
            other => (other?, None),
        };
        Ok((Self { path, options, database: Mutex::new(Slot::Open(database)), _lock: Some(lock) }, aside))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on the database; calls are serialized. Any error closes the database, since redb refuses to continue
    /// after one.
    pub fn run<R, E: Failure>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Database) -> Result<R, E>,
    ) -> Result<R, StoreError> {
        let fail = |cause: String| StoreError { doing, path: self.path.clone(), cause };
        let mut slot = self.database.lock();
        let database = match std::mem::replace(&mut *slot, Slot::Closed(self.options)) {
            Slot::Open(database) => database,
            Slot::Closed(options) => match open_database(&self.path, options, OpenMode::MustExist) {
                Ok(database) => database,
                Err(error) => {
                    if !matches!(error, OpenError::Damaged(_)) {
                        *slot = Slot::Closed(options);
                    }
                    return Err(fail(error.to_string()));
                }
            },
        };
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| work(&database)));
        match outcome {
            Ok(Ok(value)) => {
                *slot = Slot::Open(database);
                Ok(value)
            }
            Ok(Err(error)) => {
                close(database);
                if is_of_disk(error.of_redb()) {
                    // It was checked when it was opened first. A full disk fails many calls, and each would check it again.
                    *slot = Slot::Closed(Options { check: false, ..self.options });
                }
                Err(fail(error.to_string()))
            }
            Err(panic) => {
                close(database);
                Err(fail(panic_text(panic.as_ref())))
            }
        }
    }
}

/// Reports whether the disk has failed, for example because it is full, and nothing says that the content is damaged.
fn is_of_disk(error: Option<&redb::Error>) -> bool {
    let is_damage =
        |error: &io::Error| matches!(OpenError::from(io::Error::from(error.kind())), OpenError::Damaged(_));
    matches!(error, Some(redb::Error::Io(error)) if !is_damage(error))
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
        return Err(OpenError::Damaged(EMPTY.to_owned()));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    let database = checked(options, options.check && !fresh, |builder| builder.create_file(file));
    // On a full disk: what was begun is no state, and would be taken for a damaged one.
    if fresh && database.is_err() {
        let _ = fs::remove_file(path);
    }
    let database = database?;
    if fresh && let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(database)
}

/// Opens a database and, if asked to, checks all of it. redb may panic on a damaged file.
fn checked(
    options: Options,
    check: bool,
    open: impl FnOnce(&redb::Builder) -> Result<Database, redb::DatabaseError>,
) -> Result<Database, OpenError> {
    let mut builder = Database::builder();
    builder.set_cache_size(options.cache);
    let opened = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut database = open(&builder)?;
        if check && !database.check_integrity()? {
            return Err(OpenError::Damaged("its integrity check failed".to_owned()));
        }
        Ok(database)
    }));
    opened.unwrap_or_else(|panic| Err(OpenError::Damaged(panic_text(panic.as_ref()))))
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

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options { file: "test.redb", cache: 64 * 1024, check: true };

    #[test]
    fn a_file_is_checked_again_after_damage_but_not_after_a_failure_of_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (file, aside) = DatabaseFile::open(folder.path(), OPTIONS).unwrap();
        assert_eq!(aside, None);
        let failed = |kind: ErrorKind| redb::Error::Io(kind.into());
        for (error, is_checked) in [
            (failed(ErrorKind::StorageFull), false),
            (failed(ErrorKind::ReadOnlyFilesystem), false),
            (failed(ErrorKind::UnexpectedEof), true),
            (failed(ErrorKind::InvalidData), true),
            (redb::Error::Corrupted("a page".to_owned()), true),
        ] {
            let what = error.to_string();
            file.run("write", |_| Err::<(), _>(error)).unwrap_err();
            assert!(
                matches!(&*file.database.lock(), Slot::Closed(options) if options.check == is_checked),
                "{what}"
            );
            file.run("read", |_| Ok::<_, redb::Error>(())).unwrap();
            assert!(matches!(&*file.database.lock(), Slot::Open(_)), "{what}");
        }
        file.run("write", |_| -> Result<(), redb::Error> { panic!("an assertion of redb") }).unwrap_err();
        assert!(matches!(&*file.database.lock(), Slot::Closed(Options { check: true, .. })));
    }

    #[test]
    fn a_file_that_can_not_be_opened_again_because_it_is_damaged_is_checked_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let (file, _) = DatabaseFile::open(folder.path(), OPTIONS).unwrap();
        let full = redb::Error::Io(ErrorKind::StorageFull.into());
        file.run("write", |_| Err::<(), _>(full)).unwrap_err();
        let good = fs::read(file.path()).unwrap();
        fs::write(file.path(), "").unwrap();
        file.run("read", |_| Ok::<_, redb::Error>(())).unwrap_err();
        assert!(matches!(&*file.database.lock(), Slot::Closed(Options { check: true, .. })));
        fs::write(file.path(), good).unwrap();
        file.run("read", |_| Ok::<_, redb::Error>(())).unwrap();
    }
}
