//! The env files of this machine that set tags.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use async_trait::async_trait;
use rustix::fs::{Mode, OFlags};

use crate::model::text::describe_io_error;
use crate::ports::EnvFiles;

/// Maximum size of an env file.
const LARGEST: u64 = 1024 * 1024;

/// Accesses the files on threads for blocking work.
#[derive(Debug, Clone, Copy)]
pub struct LocalEnvFiles;

#[async_trait]
impl EnvFiles for LocalEnvFiles {
    async fn read(&self, path: &Path) -> Result<String, String> {
        let path = path.to_owned();
        blocking(move || content(&path)).await
    }

    async fn replace(&self, path: &Path, text: String) -> Result<(), String> {
        let path = path.to_owned();
        blocking(move || {
            replace(&path, text.as_bytes())
                .map_err(|error| fault(&path, &format!("can't be written: {}", describe_io_error(&error))))
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err("the env file can't be read".to_owned()))
}

fn fault(path: &Path, what: &str) -> String {
    format!("env_file {}: {what}", path.display())
}

fn content(path: &Path) -> Result<String, String> {
    let failed = |error: &io::Error| fault(path, &describe_io_error(error));
    // NONBLOCK, because opening a pipe would block until there is a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(&error.into()))?;
    let file = std::fs::File::from(file);
    if !file.metadata().map_err(|error| failed(&error))?.is_file() {
        return Err(fault(path, "is not a regular file"));
    }
    let mut text = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut text).map_err(|error| failed(&error))?;
    if text.len() as u64 > LARGEST {
        return Err(fault(path, "is larger than 1 MiB"));
    }
    String::from_utf8(text).map_err(|_| fault(path, "is not UTF-8 text"))
}

/// Replaces the content atomically and keeps mode and owner. If `path` is a symbolic link, its target is replaced.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let folder = path.parent().ok_or_else(|| io::Error::other("it has no folder"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Always the same name, so that the next attempt replaces the leftovers of a killed one.
    let temporary = folder.join(format!(".{name}.evenkeel-tmp"));
    let written =
        write_temporary(&path, &temporary, content).and_then(|()| std::fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
        return written;
    }
    // The rename is durable once the folder is synced.
    std::fs::File::open(folder)?.sync_all()
}

fn write_temporary(path: &Path, temporary: &Path, content: &[u8]) -> io::Result<()> {
    let before = std::fs::metadata(path)?;
    match std::fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    let about = file.metadata()?;
    if (about.uid(), about.gid()) != (before.uid(), before.gid()) {
        std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid()))?;
    }
    // After the owner, because changing the owner clears mode bits.
    file.set_permissions(std::fs::Permissions::from_mode(before.mode() & 0o7777))?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn env_file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.env");
        fs::write(&path, "TAG=1").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        (folder, path)
    }

    async fn replace(path: &Path) -> Result<(), String> {
        LocalEnvFiles.replace(path, "TAG=2".to_owned()).await
    }

    #[tokio::test]
    async fn a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it() {
        let (folder, path) = env_file();
        // Leftovers of a killed attempt.
        fs::write(folder.path().join(".shop.env.evenkeel-tmp"), "half").unwrap();
        assert_eq!(LocalEnvFiles.read(&path).await.as_deref(), Ok("TAG=1"));
        assert_eq!(replace(&path).await, Ok(()));
        assert_eq!(LocalEnvFiles.read(&path).await.as_deref(), Ok("TAG=2"));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn the_owner_is_kept_if_the_agent_may_change_it() {
        let (_folder, path) = env_file();
        if std::os::unix::fs::chown(&path, Some(1234), Some(5678)).is_err() {
            // Only root may.
            return;
        }
        assert_eq!(replace(&path).await, Ok(()));
        let about = fs::metadata(&path).unwrap();
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o7777), (1234, 5678, 0o640));
    }

    #[tokio::test]
    async fn a_link_stays_a_link() {
        let (folder, path) = env_file();
        let link = folder.path().join("link.env");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(replace(&link).await, Ok(()));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "TAG=2");
    }

    #[tokio::test]
    async fn a_failed_write_is_reported_and_changes_nothing() {
        let (folder, path) = env_file();
        // A folder has the name of the temporary file.
        fs::create_dir(folder.path().join(".shop.env.evenkeel-tmp")).unwrap();
        let error = replace(&path).await.unwrap_err();
        assert!(error.contains("shop.env: can't be written: "), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "TAG=1");
        let error = LocalEnvFiles.read(&folder.path().join("none")).await.unwrap_err();
        assert!(error.ends_with("none: does not exist"), "{error}");
    }
}
