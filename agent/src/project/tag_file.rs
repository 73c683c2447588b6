//! The line of the env file that sets a tag (`tag_variable`): read by a check, written by a deployment.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use crate::model::env_file::{TagSetting, find_tag};
use crate::model::text::describe_io_error;
use crate::service::input::TagInForce;
use crate::service::rollout::tag::LineChange;

/// Maximum size of an env file.
const LARGEST: u64 = 1024 * 1024;

/// Result of writing a tag.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The line has the wanted tag.
    Done,
    /// The line was changed by someone else: it is neither the old nor the new one.
    Conflict,
}

/// Reads the tag that `variable` is set to. Error messages are stable and contain no values.
pub(super) async fn read(path: PathBuf, variable: String) -> Result<TagInForce, String> {
    blocking(move || {
        let (text, setting) = find(&path, &variable)?;
        Ok(TagInForce { setting, file_hash: hash(&text) })
    })
    .await
}

/// Writes `tag` into the line, or restores the old line. The operation is idempotent.
pub(super) async fn write(
    line: LineChange,
    variable: String,
    tag: String,
    back: bool,
) -> Result<Written, String> {
    blocking(move || {
        let (text, setting) = find(&line.path, &variable)?;
        let (from, to) = if back { (&line.new, &line.old) } else { (&line.old, &line.new) };
        if setting.line == *to {
            return Ok(Written::Done);
        }
        if setting.line != *from {
            return Ok(Written::Conflict);
        }
        let text = setting.with(&text, &tag);
        replace(&line.path, text.as_bytes())
            .map_err(|error| fault(&line.path, &format!("can't be written: {}", describe_io_error(&error))))?;
        if back && hash(&text) != line.file_hash {
            tracing::info!(env_file = %line.path.display(), "other lines were changed meanwhile and are kept");
        }
        Ok(Written::Done)
    })
    .await
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

fn hash(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

fn find(path: &Path, variable: &str) -> Result<(String, TagSetting), String> {
    let text = content(path)?;
    let setting = find_tag(&text, variable).map_err(|why| fault(path, &why))?;
    Ok((text, setting))
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

    use super::*;

    const BEFORE: &str = "# tags\r\nexport WEB_TAG='1.27.0' # ours\r\nPASSWORD=x";

    struct Stage {
        folder: tempfile::TempDir,
        path: PathBuf,
        line: LineChange,
    }

    impl Stage {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("shop.env");
            fs::write(&path, BEFORE).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            let TagInForce { setting, file_hash } = read(path.clone(), "WEB_TAG".into()).await.unwrap();
            let new = setting.line_with("1.27.4");
            let line = LineChange { path: path.clone(), old: setting.line, new, file_hash };
            Self { folder, path, line }
        }

        async fn write(&self, back: bool) -> Result<Written, String> {
            let tag = if back { "1.27.0" } else { "1.27.4" };
            write(self.line.clone(), "WEB_TAG".into(), tag.into(), back).await
        }

        fn text(&self) -> String {
            fs::read_to_string(&self.path).unwrap()
        }
    }

    #[tokio::test]
    async fn the_tag_is_written_and_put_back_byte_for_byte_with_mode_and_owner() {
        let stage = Stage::new().await;
        // Leftovers of a killed attempt.
        fs::write(stage.folder.path().join(".shop.env.evenkeel-tmp"), "half").unwrap();
        for _ in 0..2 {
            assert_eq!(stage.write(false).await, Ok(Written::Done));
            assert_eq!(stage.text(), BEFORE.replace("1.27.0", "1.27.4"));
        }
        assert_eq!(fs::metadata(&stage.path).unwrap().mode() & 0o7777, 0o640);
        for _ in 0..2 {
            assert_eq!(stage.write(true).await, Ok(Written::Done));
            assert_eq!(stage.text(), BEFORE);
        }
        assert_eq!(fs::metadata(&stage.path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(stage.folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[tokio::test]
    async fn the_owner_is_kept_if_the_agent_may_change_it() {
        let stage = Stage::new().await;
        if std::os::unix::fs::chown(&stage.path, Some(1234), Some(5678)).is_err() {
            // Only root may.
            return;
        }
        assert_eq!(stage.write(false).await, Ok(Written::Done));
        let about = fs::metadata(&stage.path).unwrap();
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o7777), (1234, 5678, 0o640));
    }

    #[tokio::test]
    async fn a_manually_changed_line_is_left_alone_and_other_lines_are_kept() {
        let stage = Stage::new().await;
        let other = BEFORE.replace("PASSWORD=x", "PASSWORD=y\nMORE=1\n");
        fs::write(&stage.path, &other).unwrap();
        assert_eq!(stage.write(false).await, Ok(Written::Done));
        assert_eq!(stage.text(), other.replace("1.27.0", "1.27.4"));
        for edit in ["1.27.2", "1.27.4' # mine", "1.27.4'#"] {
            let edited = BEFORE.replace("1.27.0", edit);
            fs::write(&stage.path, &edited).unwrap();
            for back in [false, true] {
                let written = stage.write(back).await;
                assert!(!matches!(written, Ok(Written::Done)), "{edit}: {written:?}");
                assert_eq!(stage.text(), edited);
            }
        }
    }

    #[tokio::test]
    async fn a_link_stays_a_link() {
        let stage = Stage::new().await;
        let link = stage.folder.path().join("link.env");
        std::os::unix::fs::symlink(&stage.path, &link).unwrap();
        let line = LineChange { path: link.clone(), ..stage.line.clone() };
        let done = write(line, "WEB_TAG".into(), "1.27.4".into(), false).await;
        assert_eq!(done, Ok(Written::Done));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(stage.text().contains("1.27.4"));
    }

    #[tokio::test]
    async fn a_failed_write_is_reported_and_changes_nothing() {
        let stage = Stage::new().await;
        // A folder has the name of the temporary file.
        fs::create_dir(stage.folder.path().join(".shop.env.evenkeel-tmp")).unwrap();
        let error = stage.write(false).await.unwrap_err();
        assert!(error.contains("shop.env: can't be written: "), "{error}");
        assert_eq!(stage.text(), BEFORE);
        let error = read(stage.folder.path().join("none"), "T".into()).await.unwrap_err();
        assert!(error.ends_with("none: does not exist"), "{error}");
    }
}
