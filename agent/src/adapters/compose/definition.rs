//! Definitions that compose reads in place of the files: written for the run, readable for this user only, since they
//! contain the values of variables.

use std::borrow::Cow;
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
        // Containers name the file in their labels, so it is always the same one.
        let path = folder.join(format!("{}{RECORDED_SUFFIX}", project.name));
        let path = if is_read_only { unique(path) } else { path };
        temporary = is_read_only.then(|| path.clone());
        write(&path, model).await.map_err(|error| {
            format!("can't write the recorded definition {}: {}", path.display(), describe_io_error(&error))
        })?;
        let changed = described.to_mut();
        changed.files = vec![path];
        if changed.folder.is_none() {
            changed.folder = project.files.first().and_then(|file| file.parent()).map(Path::to_owned);
        }
    }
    // Compose records `.env` although nobody asked for it; it may have been removed since.
    let default = project.folder.as_ref().map(|folder| folder.join(".env"));
    if let Some(default) = default
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

async fn write(path: &Path, model: &Model) -> std::io::Result<()> {
    let text = serde_json::to_vec(model)?;
    let path = path.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        use std::io::Write as _;
        use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let draft = unique(path.clone());
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(&text)?;
        drop(file);
        std::fs::rename(&draft, &path)
    });
    written.await.map_err(std::io::Error::other)?
}
