//! Opening the file, and replacing a damaged one: what can be read is kept, the rest is set aside for inspection.
//!
//! Damage must never end in a loop. So a file is checked when it is opened; whatever goes wrong with its content, it is
//! opened once more from the start; and a file that kills the program while it is opened is not opened again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use evenkeel_common::database::{DatabaseFile, OpenError, Options};
use evenkeel_common::file;

use super::{OPTIONS, Shared, TableError, import, salvage, tables};
use crate::keep::KeepError;

/// A file up to this size, in bytes, is checked completely when it is opened; that takes less than a second. Damage in a larger
/// one is noticed by the call that encounters it.
const MAX_CHECKED: u64 = 64 * 1024 * 1024;
/// After this many attempts to open the file that ended the program, it is not opened again.
const MAX_ATTEMPTS: u32 = 3;
/// After this many calls in a row that found damage, the file is replaced even if it can be opened.
const MAX_STRIKES: u32 = 3;
/// Part of the name of a file that was set aside.
const ASIDE: &str = ".damaged-";

/// What was set aside because it was damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    /// Its path. The damage is reported until the file is gone.
    path: PathBuf,
    /// What happened, in one sentence.
    text: String,
}

impl Shared {
    /// Opens the file. A damaged one is replaced.
    pub(super) fn open(&self) -> Result<DatabaseFile, OpenError> {
        self.find_damage();
        let now = self.clock.now();
        if let Some((aside, count)) = import::make_room(&self.folder, now).map_err(OpenError::Io)? {
            self.note_damage(aside, "the state of an earlier version was incomplete", count);
        }
        let path = self.folder.join(OPTIONS.file);
        let marker = Marker::begin(&path);
        if marker.attempts > MAX_ATTEMPTS {
            let cause = "the program ended several times while opening it";
            return self.replace(&path, cause, marker);
        }
        if self.strikes.swap(0, Ordering::Relaxed) >= MAX_STRIKES {
            return self.replace(&path, "its content is damaged", marker);
        }
        let (file, aside) = DatabaseFile::open(&self.folder, options(&path))?;
        if let Some(aside) = aside {
            self.prepare(&file).map_err(io_error)?;
            self.restore(&file, &aside.path, &aside.cause, marker.attempts <= 1)?;
            marker.end();
            return Ok(file);
        }
        match self.prepare(&file).and_then(|()| Ok(file.run("read", tables::verify)?)) {
            Ok(()) => {
                marker.end();
                Ok(file)
            }
            Err(_) if is_newer(&file) || file_error(&file) => {
                let error =
                    self.prepare(&file).err().unwrap_or_else(|| KeepError("it cannot be read".to_owned()));
                marker.end();
                Err(io_error(error))
            }
            Err(error) => {
                drop(file);
                self.replace(&path, &error.0, marker)
            }
        }
    }

    /// Sets the file aside, and creates a new one with what can be read.
    fn replace(&self, path: &Path, cause: &str, marker: Marker) -> Result<DatabaseFile, OpenError> {
        let aside = match file::move_aside(path, self.clock.now()) {
            Ok(aside) => Some(aside),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(OpenError::Io(error)),
        };
        let (file, _) = DatabaseFile::open(&self.folder, OPTIONS)?;
        self.prepare(&file).map_err(io_error)?;
        if let Some(aside) = aside {
            self.restore(&file, &aside, cause, marker.attempts <= 1)?;
        }
        marker.end();
        Ok(file)
    }

    /// Adds what can be read of a file that was set aside. `with_tables`: whether its tables are read, or only its bytes,
    /// because reading the tables may have ended the program before.
    fn restore(
        &self,
        file: &DatabaseFile,
        aside: &Path,
        cause: &str,
        with_tables: bool,
    ) -> Result<(), OpenError> {
        let restored = salvage::restore(aside, file, with_tables, self.clock.now());
        let count = restored.map_err(|error| OpenError::Io(std::io::Error::other(error.to_string())))?;
        self.note_damage(aside.to_owned(), cause, count);
        Ok(())
    }

    fn note_damage(&self, path: PathBuf, cause: &str, entries: usize) {
        let cause: String = cause.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
        let text = format!(
            "the store was damaged ({cause}); {entries} entries were kept, and the damaged file was moved to {}",
            path.display()
        );
        tracing::error!("STATE DAMAGED: {text}");
        *self.damage.lock() = Some(Damage { path, text });
    }

    /// Finds a file that was set aside by an earlier run.
    fn find_damage(&self) {
        let mut damage = self.damage.lock();
        if damage.is_some() {
            return;
        }
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        let paths = files.filter_map(|file| Some(file.ok()?.path()));
        let is_aside = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().contains(ASIDE)) && path.is_file()
        };
        // The names end with the time.
        let latest = paths.filter(is_aside).max_by_key(|path| {
            let name = path.to_string_lossy().into_owned();
            name.rsplit(ASIDE).next().map(str::to_owned)
        });
        *damage = latest.map(|path| {
            let text = format!("the store was damaged; the damaged file is {}", path.display());
            Damage { path, text }
        });
    }

    /// Returns what was set aside and is still there.
    pub(super) fn damage_in_words(&self) -> Option<String> {
        let mut damage = self.damage.lock();
        if damage.as_ref().is_some_and(|damage| !damage.path.exists()) {
            *damage = None;
        }
        damage.as_ref().map(|damage| damage.text.clone())
    }

    /// Creates the tables of a new file, and imports the state of an earlier version.
    pub(super) fn prepare(&self, file: &DatabaseFile) -> Result<(), KeepError> {
        let now = self.clock.now();
        if file.run("write", |database| tables::prepare(database, now))? {
            let (saved, damaged) = import::load(&self.folder, now);
            if let Some((aside, count)) = damaged {
                self.note_damage(aside, "lines of the state of an earlier version", count);
            }
            if let Some(saved) = saved {
                file.run("write", |database| import::store(database, &saved, now))?;
            }
        }
        if self.folder != Path::new("") {
            import::set_aside(&self.folder);
        }
        Ok(())
    }
}

fn options(path: &Path) -> Options {
    let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
    Options { check: size <= MAX_CHECKED, ..OPTIONS }
}

fn io_error(error: KeepError) -> OpenError {
    OpenError::Io(std::io::Error::other(error.0))
}

/// Reports whether a newer version of the program has written the tables.
fn is_newer(file: &DatabaseFile) -> bool {
    let mut is_newer = false;
    let _ = file.run("read", |database| {
        let checked = tables::check_version(database);
        is_newer = matches!(checked, Err(TableError::Newer(_)));
        checked
    });
    is_newer
}

/// Reports whether the disk, rather than the content, fails a call.
fn file_error(file: &DatabaseFile) -> bool {
    let (mut is_damage, mut is_entered, mut is_done) = (false, false, false);
    let read = file.run("read", |database| {
        is_entered = true;
        let read = tables::verify(database);
        is_damage = read.as_ref().is_err_and(TableError::is_damage);
        is_done = true;
        read
    });
    // A panic, or a file that can't be opened again, is damage as well.
    read.is_err() && is_entered && is_done && !is_damage
}

/// Counts the attempts to open a file, so that one that ends the program does so only a few times.
struct Marker {
    path: PathBuf,
    attempts: u32,
}

impl Marker {
    fn begin(file: &Path) -> Self {
        let path = file.with_added_extension("opening");
        let before = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let attempts = u32::saturating_add(before, 1);
        if file.exists() {
            // Without it, the file is opened all the same.
            let _ = file::write_atomically(&path, attempts.to_string().as_bytes());
        }
        Self { path, attempts }
    }

    fn end(self) {
        let _ = fs::remove_file(&self.path);
    }
}
