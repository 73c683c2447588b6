//! The state file: what survives a restart (spec 8).
//!
//! The file is a log of records. What has changed is appended, at a bounded rate however much changes; when the log has
//! grown too large it is rewritten as a whole, atomically. A line that is unusable costs itself only: the file is moved
//! aside, an error is logged, and the other lines are used.

mod format;
mod writer;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use evenkeel_common::clock::Clock;
use evenkeel_common::file;

use crate::fleet::SavedState;

pub use format::parse;
pub use writer::StateFile;

/// A larger file is not ours.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// Reads the state. Damage is no error: the second value says what was wrong.
pub fn load(path: &Path, clock: &dyn Clock) -> (SavedState, Option<String>) {
    let shown = path.display();
    let error = match read(path) {
        Ok((state, 0)) => return (state, None),
        Ok((state, damaged)) => {
            let aside = match file::move_aside(path, clock.now()) {
                Ok(aside) => format!("the file was moved to {}", aside.display()),
                Err(error) => format!("the file cannot be moved aside ({error})"),
            };
            let lines = if damaged == 1 { "1 line".to_owned() } else { format!("{damaged} lines") };
            let warning =
                format!("STATE DAMAGED: {lines} of {shown} cannot be used; the rest is, and {aside}");
            return (state, Some(warning));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (SavedState::default(), None),
        Err(error) => error,
    };
    let warning = match file::move_aside(path, clock.now()) {
        Ok(aside) => format!(
            "STATE LOST: {shown} cannot be used ({error}); it was moved to {} and the warden starts without it",
            aside.display()
        ),
        Err(moving) => format!(
            "STATE LOST: {shown} cannot be used ({error}) nor moved aside ({moving}); the warden starts without it"
        ),
    };
    (SavedState::default(), Some(warning))
}

fn read(path: &Path) -> io::Result<(SavedState, usize)> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    parse(&std::fs::read(path)?)
}

/// Locks the state for this process as long as the returned file lives, and creates its folder. That another warden holds
/// it is an error. Where no lock can be created the state cannot be written either, which the first write reports.
pub fn lock(path: &Path) -> Result<Option<File>, InUse> {
    if let Some(folder) = path.parent()
        && let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(folder)
    {
        tracing::warn!(folder = %folder.display(), %error, "cannot create the state's folder");
    }
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let beside = path.with_added_extension("lock");
    // Not the state file itself: each rewrite replaces it.
    match OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&beside) {
        Ok(file) => match file.try_lock() {
            Err(TryLockError::WouldBlock) => Err(InUse(path)),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(file)),
        },
        Err(error) => {
            tracing::warn!(path = %beside.display(), %error, "cannot lock the state against a second warden");
            Ok(None)
        }
    }
}

/// Another warden uses the state.
#[derive(Debug, thiserror::Error)]
#[error("api.state_path: {0} is in use by another warden; allowed: a file of its own for each")]
pub struct InUse(PathBuf);
