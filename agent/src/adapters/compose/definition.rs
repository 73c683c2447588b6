//! Definitions that compose reads in place of the files: written for the run, readable for this user only, since they
//! contain the values of variables.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::model::definition::RECORDED_SUFFIX;
use crate::model::text::describe_io_error;
use crate::model::{Model, Project};

/// A project as compose is called for it.
pub(super) struct Described<'a> {
    project: Cow<'a, Project>,
    /// A file that only this call reads.
    temporary: Option<PathBuf>,
}

impl Described<'_> {
    pub(super) fn project(&self) -> &Project {
        &self.project
    }

    /// Removes what is random in the name of the file, so that the same fault has the same text.
    pub(super) fn steady(&self, text: String) -> String {
        let Some(file) = &self.temporary else { return text };
        let file = file.to_string_lossy();
        let Some((steady, _)) = file.rsplit_once('.') else { return text };
        text.replace(&*file, steady)
    }
}

impl Drop for Described<'_> {
    fn drop(&mut self) {
        if let Some(file) = &self.temporary {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Returns the project with its recorded definition as the only file, and leaves out the default env file if it is gone.
/// `is_read_only`: no container is created from it.
pub(super) async fn written<'a>(
    folder: &Path,
    project: &'a Project,
    is_read_only: bool,
) -> Result<Described<'a>, String> {
    let (mut described, mut temporary) = (Cow::Borrowed(project), None);
    if let Some(model) = &project.definition {
        let path = place(folder, &project.name, model, is_read_only).await?;
        temporary = is_read_only.then(|| path.clone());
        let changed = described.to_mut();
        changed.files = vec![path];
        if changed.folder.is_none() {
            changed.folder = project.files.first().and_then(|file| file.parent()).map(Path::to_owned);
        }
    }
    // Compose records `.env` although nobody asked for it; it may have been removed since.
    if let Some(default) = project.default_env_file()
        && project.env_files.contains(&default)
        && !tokio::fs::try_exists(&default).await.unwrap_or(true)
    {
        described.to_mut().env_files.retain(|file| *file != default);
    }
    Ok(Described { project: described, temporary })
}

fn unique(path: PathBuf) -> PathBuf {
    let mut path = path.into_os_string();
    path.push(format!(".{:016x}", fastrand::u64(..)));
    path.into()
}

/// Writes the definition of a project in `folder`, or else in a folder of this process: an agent whose state can't be
/// written still compares and updates.
async fn place(folder: &Path, project: &str, model: &Model, is_read_only: bool) -> Result<PathBuf, String> {
    // Containers name the file in their labels, so it is always the same one.
    let path = folder.join(format!("{project}{RECORDED_SUFFIX}"));
    let failed =
        |error: io::Error| format!("can't write the recorded definition: {}", describe_io_error(&error));
    let text = serde_json::to_vec(model).map_err(|error| failed(error.into()))?;
    let placed = tokio::task::spawn_blocking(move || place_in(&path, spare_folder, &text, is_read_only));
    placed.await.map_err(|error| failed(io::Error::other(error)))?
}

pub(super) fn place_in(
    path: &Path,
    spare: impl FnOnce() -> io::Result<PathBuf>,
    text: &[u8],
    is_read_only: bool,
) -> Result<PathBuf, String> {
    let own = |path: PathBuf| if is_read_only { unique(path) } else { path };
    let first = own(path.to_owned());
    let Err(error) = write(&first, text) else { return Ok(first) };
    if let (Ok(spare), Some(name)) = (spare(), path.file_name()) {
        let second = own(spare.join(name));
        if write(&second, text).is_ok() {
            return Ok(second);
        }
    }
    // Without what is random in the name: the same fault has the same text.
    Err(format!("can't write the recorded definition {}: {}", path.display(), describe_io_error(&error)))
}

/// What others than the owner may do, in a file's mode.
const OF_OTHERS: u32 = 0o077;

/// Returns the folder of this process in the temporary folder. Another user may have made one of this name before.
fn spare_folder() -> io::Result<PathBuf> {
    let folder = process_folder();
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let about = fs::symlink_metadata(&folder)?;
    let is_own = about.is_dir() && about.uid() == rustix::process::geteuid().as_raw();
    if is_own && about.mode() & OF_OTHERS == 0 {
        return Ok(folder);
    }
    Err(io::Error::other(format!("{} is accessible to other users", folder.display())))
}

/// The folder of this process in the temporary folder.
pub(super) fn process_folder() -> PathBuf {
    std::env::temp_dir().join(format!("evenkeel-{}", std::process::id()))
}

/// Removes what calls have left in `folder` that were killed.
pub(super) fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.contains(RECORDED_SUFFIX) && !name.ends_with(RECORDED_SUFFIX) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let draft = unique(path.to_owned());
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(text).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}
