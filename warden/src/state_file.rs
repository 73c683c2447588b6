//! What the next life needs to know, in one JSON file: the last entries, and which ones came from whom.
//!
//! It is written within a second of a change and when the program stops, whole or not at all. A file that cannot be
//! read is moved aside, said loudly, and the warden begins afresh.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::file;
use evenkeel_common::wire::FleetEntry;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::machines::Machine;
use crate::ring::Ring;

/// Form of the file.
const VERSION: u32 = 1;
/// Changes of so short a time are written together. SIGKILL loses no more than these.
const PAUSE: Duration = Duration::from_millis(500);
/// A file that is larger is not ours: 200 entries have less.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Ids count microseconds at most; these are enough for the next ten thousand years.
const MAX_ID: u64 = 1 << 60;

/// What an earlier life left.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct State {
    version: u32,
    /// Whether it was written when the program stopped, so that nothing came after it.
    pub is_complete: bool,
    /// Id that the next entry of the streams gets.
    pub next_id: u64,
    /// The last entries, oldest first.
    pub entries: Vec<FleetEntry>,
    /// What was known of each agent.
    pub machines: Vec<Machine>,
}

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    is_complete: bool,
    next_id: u64,
    entries: Vec<&'a RawValue>,
    machines: Vec<Machine>,
}

impl State {
    /// The state in the content of a file.
    pub fn parse(content: &[u8]) -> io::Result<Self> {
        let state: Self = serde_json::from_slice(content)?;
        if state.version != VERSION {
            return Err(io::Error::other(format!("its version is {}, not {VERSION}", state.version)));
        }
        if state.next_id > MAX_ID {
            return Err(io::Error::other(format!(
                "its next id is {}, and no life gets there",
                state.next_id
            )));
        }
        Ok(state)
    }
}

/// Reads the state; what was wrong with it, if anything was.
pub fn load(path: &Path, clock: &dyn Clock) -> (State, Option<String>) {
    let damage = match read(path) {
        Ok(state) => return (state, None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (State::default(), None),
        Err(error) => error,
    };
    let shown = path.display();
    let warning = match file::move_aside(path, clock.now()) {
        Ok(aside) => format!(
            "STATE LOST: {shown} cannot be used ({damage}); it was moved to {} and the warden begins afresh",
            aside.display()
        ),
        Err(error) => format!(
            "STATE LOST: {shown} cannot be used ({damage}) nor moved aside ({error}); the warden begins afresh"
        ),
    };
    (State::default(), Some(warning))
}

/// Takes the state for this process, for as long as what is returned lives, and makes its folder if there is none. A
/// second warden on it is an error. Where no lock can be made no state can be written either; that is told when it is
/// tried.
pub fn lock(path: &Path) -> Result<Option<File>, InUse> {
    if let Some(folder) = path.parent()
        && let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(folder)
    {
        tracing::warn!(folder = %folder.display(), %error, "the state's folder cannot be made");
    }
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let beside = path.with_added_extension("lock");
    // Not the state file itself: each write puts another in its place.
    match OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&beside) {
        Ok(file) => match file.try_lock() {
            Err(TryLockError::WouldBlock) => Err(InUse(path)),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(file)),
        },
        Err(error) => {
            tracing::warn!(path = %beside.display(), %error, "the state cannot be locked against a second warden");
            Ok(None)
        }
    }
}

/// Another warden has the state.
#[derive(Debug, thiserror::Error)]
#[error("api.state_path: {0} is in use by another warden; allowed: a file of its own for each")]
pub struct InUse(PathBuf);

fn read(path: &Path) -> io::Result<State> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    State::parse(&std::fs::read(path)?)
}

/// Keeps the file up to date.
pub struct StateFile {
    path: PathBuf,
    ring: Arc<Ring>,
    changes: watch::Receiver<u64>,
}

impl StateFile {
    /// Keeps what changes in `ring` from now on in the file at `path`.
    pub fn new(path: PathBuf, ring: Arc<Ring>) -> Self {
        let changes = ring.changes();
        Self { path, ring, changes }
    }

    /// Writes after every change until `stop` is cancelled, and then once more.
    pub async fn run(self, stop: CancellationToken) {
        let mut changes = self.changes.clone();
        let mut failing = false;
        while !stop.is_cancelled() {
            tokio::select! {
                end = changes.changed() => if end.is_err() { break },
                () = stop.cancelled() => break,
            }
            changes.mark_unchanged();
            failing = self.write(false, failing).await;
            if failing {
                // The change is still to be written.
                changes.mark_changed();
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = stop.cancelled() => break,
            }
        }
        self.write(true, failing).await;
    }

    /// Writes what is now; whether that failed. A disk that stays full is told once.
    async fn write(&self, is_complete: bool, failing: bool) -> bool {
        let (lines, next_id, machines) = self.ring.state();
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || {
            let entries = lines.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
            let state = Written { version: VERSION, is_complete, next_id, entries, machines };
            file::write_atomically(&path, &serde_json::to_vec(&state)?)
        });
        let error = match written.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let path = self.path.display();
        match (&error, failing) {
            (Some(error), false) => tracing::error!(%path, error, "the state cannot be written; trying on"),
            (None, true) => tracing::info!(%path, "the state is written again"),
            _ => {}
        }
        error.is_some()
    }
}
