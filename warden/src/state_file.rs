//! What the next life needs to know: the last entries, and which ones came from whom.
//!
//! The file is a list of lines, each with a checksum: a record is added when something has changed, and counts instead
//! of the ones before it about the same thing. When there are many more lines than needed the file is written anew, whole
//! or not at all. What is written is bounded per second, however much changes; what waits meanwhile is written together.
//! A line that cannot be used costs itself only: a copy of the file is kept, it is said loudly, and the rest is taken.

use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::file;
use evenkeel_common::wire::FleetEntry;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::machines::Machine;
use crate::ring::{Changes, KEPT, Ring};

/// Form of the file of before, one JSON object, which is still read.
const OLD_VERSION: u32 = 1;
/// What the first line says.
const VERSION: u32 = 2;
/// Changes of so short a time are written together. SIGKILL loses no more than these.
const PAUSE: Duration = Duration::from_millis(500);
/// So much is written a second; after more the pause is longer.
const BYTES_A_SECOND: u64 = 1024 * 1024;
/// The file is written anew when it is twice as large as it was then, and larger than this.
const WORTH_IT: u64 = 4 * 1024 * 1024;
/// A file that is larger is not ours.
const MAX_BYTES: u64 = 256 * 1024 * 1024;
/// Bytes of a line's checksum, in hex.
const CHECKSUM: usize = 16;

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

/// One line as it is read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Version(u32),
    Entry(u64, Box<FleetEntry>),
    Machine(Box<Machine>),
    /// Id that the next entry gets.
    Next(u64),
    /// The program stopped here.
    Stopped(u64),
}

/// The same as it is written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Version(u32),
    Entry(u64, &'a RawValue),
    Machine(&'a Machine),
    Next(u64),
    Stopped(u64),
}

impl State {
    /// The state in the content of a file, and how many of its lines cannot be used. A last line that a crash cut off is
    /// none of these.
    pub fn parse(content: &[u8]) -> io::Result<(Self, usize)> {
        if content.first() == Some(&b'{') {
            return Ok((Self::parse_old(content)?, 0));
        }
        let mut state = Self { version: VERSION, ..Self::default() };
        let (mut entries, mut machines) = (BTreeMap::new(), Vec::<Machine>::new());
        let mut places: HashMap<String, usize> = HashMap::new();
        let (mut damaged, mut knows_version) = (0, false);
        for line in content.split_inclusive(|byte| *byte == b'\n') {
            let Some(line) = line.strip_suffix(b"\n") else { break };
            state.is_complete = false;
            let Some(record) = checked(line) else {
                damaged += 1;
                continue;
            };
            match record {
                Record::Version(VERSION) => knows_version = true,
                Record::Version(version) => {
                    return Err(io::Error::other(format!("its version is {version}, not {VERSION}")));
                }
                Record::Entry(id, entry) if id < MAX_ID => {
                    state.next_id = state.next_id.max(id + 1);
                    entries.insert(id, *entry);
                    if entries.len() > KEPT {
                        entries.pop_first();
                    }
                }
                Record::Machine(machine) => {
                    if let Some(place) = places.get(machine.id()) {
                        machines[*place] = *machine;
                    } else {
                        places.insert(machine.id().to_owned(), machines.len());
                        machines.push(*machine);
                    }
                }
                Record::Next(id) if id <= MAX_ID => state.next_id = state.next_id.max(id),
                Record::Stopped(id) if id <= MAX_ID => {
                    state.next_id = state.next_id.max(id);
                    state.is_complete = damaged == 0;
                }
                Record::Entry(..) | Record::Next(_) | Record::Stopped(_) => damaged += 1,
            }
        }
        if !knows_version && entries.is_empty() && machines.is_empty() {
            return Err(io::Error::other("no line of it is one of a warden's state"));
        }
        state.entries = entries.into_values().collect();
        state.machines = machines;
        Ok((state, damaged))
    }

    fn parse_old(content: &[u8]) -> io::Result<Self> {
        let state: Self = serde_json::from_slice(content)?;
        if state.version != OLD_VERSION {
            return Err(io::Error::other(format!("its version is {}, not {OLD_VERSION}", state.version)));
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

/// The record of a line whose checksum is right.
fn checked(line: &[u8]) -> Option<Record> {
    let (sum, rest) = line.split_at_checked(CHECKSUM)?;
    let text = rest.strip_prefix(b" ")?;
    if sum != checksum(text).as_bytes() {
        return None;
    }
    serde_json::from_slice(text).ok()
}

fn checksum(text: &[u8]) -> String {
    hex::encode(&Sha256::digest(text)[..CHECKSUM / 2])
}

/// Adds a line.
fn write_line(out: &mut Vec<u8>, line: &Line<'_>) -> io::Result<()> {
    let text = serde_json::to_vec(line)?;
    out.extend_from_slice(checksum(&text).as_bytes());
    out.push(b' ');
    out.extend_from_slice(&text);
    out.push(b'\n');
    Ok(())
}

/// The lines of what has changed; with `is_last` the program stops here.
fn lines(changes: &Changes, is_last: bool) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    for machine in &changes.machines {
        write_line(&mut out, &Line::Machine(machine))?;
    }
    for (id, entry) in &changes.entries {
        write_line(&mut out, &Line::Entry(*id, serde_json::from_str(entry)?))?;
    }
    let next = changes.next_id;
    write_line(&mut out, &if is_last { Line::Stopped(next) } else { Line::Next(next) })?;
    Ok(out)
}

/// Reads the state; what was wrong with it, if anything was.
pub fn load(path: &Path, clock: &dyn Clock) -> (State, Option<String>) {
    let shown = path.display();
    let damage = match read(path) {
        Ok((state, 0)) => return (state, None),
        Ok((state, damaged)) => {
            let kept = match file::move_aside(path, clock.now()) {
                Ok(aside) => format!("the file was moved to {}", aside.display()),
                Err(error) => format!("the file cannot be moved aside ({error})"),
            };
            let lines = if damaged == 1 { "1 line".to_owned() } else { format!("{damaged} lines") };
            let warning =
                format!("STATE DAMAGED: {lines} of {shown} cannot be used; the rest is taken, and {kept}");
            return (state, Some(warning));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (State::default(), None),
        Err(error) => error,
    };
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

fn read(path: &Path) -> io::Result<(State, usize)> {
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
    log: Option<Log>,
    /// Id of the first entry that is not in the file.
    from: u64,
    written: watch::Sender<u64>,
}

/// The file that lines are added to.
struct Log {
    file: File,
    /// Bytes when it was written anew, and now.
    base: u64,
    length: u64,
}

impl StateFile {
    /// Keeps what changes in `ring` from now on in the file at `path`.
    pub fn new(path: PathBuf, ring: Arc<Ring>) -> Self {
        let changes = ring.changes();
        Self { path, ring, changes, log: None, from: 0, written: watch::Sender::new(0) }
    }

    /// How many bytes were written so far.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// Writes after every change until `stop` is cancelled, and then once more.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.changes.clone();
        let mut failing = false;
        while !stop.is_cancelled() {
            tokio::select! {
                end = changes.changed() => if end.is_err() { break },
                () = stop.cancelled() => break,
            }
            changes.mark_unchanged();
            let before = *self.written.borrow();
            failing = self.write(false, failing).await;
            if failing {
                // The change is still to be written.
                changes.mark_changed();
            }
            let bytes = *self.written.borrow() - before;
            let pause = PAUSE.max(Duration::from_millis(bytes * 1000 / BYTES_A_SECOND));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => break,
            }
        }
        self.write(true, failing).await;
    }

    /// Writes what has changed; whether that failed. A disk that stays full is told once.
    async fn write(&mut self, is_last: bool, failing: bool) -> bool {
        let error = self.try_write(is_last).await.err();
        let path = self.path.display();
        match (&error, failing) {
            (Some(error), false) => tracing::error!(%path, %error, "the state cannot be written; trying on"),
            (None, true) => tracing::info!(%path, "the state is written again"),
            _ => {}
        }
        error.is_some()
    }

    async fn try_write(&mut self, is_last: bool) -> io::Result<()> {
        // Taken out: where anything fails the next write is of the whole.
        let log = self.log.take().filter(|log| log.length < WORTH_IT.max(2 * log.base));
        let changes = match &log {
            Some(_) => self.ring.take_changes(self.from),
            None => self.whole(),
        };
        let (path, next_id) = (self.path.clone(), changes.next_id);
        let work = move || match log {
            Some(log) => log.add(&lines(&changes, is_last)?),
            None => Log::create(&path, &changes, is_last),
        };
        let (log, bytes) = tokio::task::spawn_blocking(work).await.map_err(io::Error::other)??;
        self.written.send_modify(|written| *written += bytes);
        (self.log, self.from) = (Some(log), next_id);
        Ok(())
    }

    /// All there is.
    fn whole(&self) -> Changes {
        let changes = self.ring.take_changes(0);
        Changes { machines: self.ring.machines_now(), ..changes }
    }
}

impl Log {
    /// The log after these lines, and how many bytes they were.
    fn add(mut self, lines: &[u8]) -> io::Result<(Self, u64)> {
        if self.file.metadata()?.nlink() == 0 {
            return Err(io::Error::other("somebody removed the file"));
        }
        self.file.write_all(lines)?;
        self.file.sync_data()?;
        self.length += lines.len() as u64;
        Ok((self, lines.len() as u64))
    }

    /// Writes the file anew.
    fn create(path: &Path, changes: &Changes, is_last: bool) -> io::Result<(Self, u64)> {
        let mut content = Vec::new();
        write_line(&mut content, &Line::Version(VERSION))?;
        content.extend_from_slice(&lines(changes, is_last)?);
        file::write_atomically(path, &content)?;
        let file = OpenOptions::new().append(true).open(path)?;
        let length = content.len() as u64;
        Ok((Self { file, base: length, length }, length))
    }
}
