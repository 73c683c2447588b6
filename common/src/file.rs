//! Atomic file writes: after a crash or power failure, and for concurrent readers, a file has either the old content or the
//! new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Writes `content` to `path` with mode 0600. If `path` is a symlink, its target is replaced.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
    let temporary = folder.join(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let written = write_new(&temporary, content).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
        return written;
    }
    // The rename is durable once the folder is synced.
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    // A killed process may have left one behind.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // The umask may have removed permission bits.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(content)?;
    file.sync_all()
}

/// Moves an unusable file aside for inspection and returns its new path.
pub fn move_aside(path: &Path, stamp: jiff::Timestamp) -> io::Result<PathBuf> {
    let stamp = stamp.strftime("%Y%m%dT%H%M%S.%3fZ");
    let aside = path.with_added_extension(format!("damaged-{stamp}"));
    fs::rename(path, &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_atomically_and_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.json");
        write_atomically(&path, b"one").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_symlink_is_kept_and_its_target_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "one").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write_atomically(&link, b"two").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"two");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::write(folder.path().join("d/inner"), "").unwrap();
        assert!(write_atomically(&folder.path().join("d"), b"x").is_err());
        assert!(write_atomically(&folder.path().join("none/f"), b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_kept_under_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.json");
        fs::write(&path, "x").unwrap();
        let aside = move_aside(&path, "2026-01-02T03:04:05.678Z".parse().unwrap()).unwrap();
        assert_eq!(aside.file_name().unwrap(), "f.json.damaged-20260102T030405.678Z");
        assert!(aside.exists() && !path.exists());
    }
}
