//! The hash over a project's compose files (spec 1.6).

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};

use crate::model::text::describe_io_error;

/// Maximum size of a compose file.
const LARGEST: u64 = 16 * 1024 * 1024;

/// Computes the SHA-256 over all files in order. Each file is prefixed with its length, so that text moved from one file to
/// the next changes the hash. The error names the file.
pub(super) async fn hash(files: &[PathBuf]) -> Result<String, String> {
    let files = files.to_vec();
    let hashed = tokio::task::spawn_blocking(move || {
        let mut hasher = Sha256::new();
        for path in &files {
            let content = read(path)?;
            hasher.update(u64::try_from(content.len()).unwrap_or(u64::MAX).to_be_bytes());
            hasher.update(&content);
        }
        Ok(hex::encode(hasher.finalize()))
    });
    hashed.await.unwrap_or_else(|_| Err("the compose files can't be read".to_owned()))
}

/// A set of files that a project was started with and that contains more than the configured files.
#[derive(Debug, PartialEq)]
pub(super) struct Superset {
    /// The configured files, under their configured names, and the other files that still exist.
    pub files: Vec<PathBuf>,
    /// The files that are not configured.
    pub extra: Vec<PathBuf>,
}

/// Returns the sets of files that contain more than the configured ones. A set without any configured file belongs to
/// another project, or to this one before it moved. Relative paths are ignored, because their base directory is unknown.
pub(super) async fn supersets(mut sets: BTreeSet<Vec<PathBuf>>, configured: &[PathBuf]) -> Vec<Superset> {
    sets.retain(|set| set.iter().any(|file| !configured.contains(file)));
    if sets.is_empty() {
        return Vec::new();
    }
    let configured: Vec<PathBuf> = configured.to_vec();
    let inspected = tokio::task::spawn_blocking(move || {
        let known: Vec<_> = configured.iter().map(|file| (identity(file), file)).collect();
        // Returns the configured name of a file, even if the file is missing.
        let named = |file: &PathBuf| {
            let id = identity(file);
            let is_it = |(known, name): &&(_, &PathBuf)| *name == file || (id.is_some() && *known == id);
            known.iter().find(is_it).map(|(_, name)| (*name).clone())
        };
        let superset = |set: Vec<PathBuf>| {
            let (mut files, mut extra) = (Vec::new(), Vec::new());
            for file in set {
                if let Some(name) = named(&file) {
                    files.push(name);
                } else if file.is_absolute() && identity(&file).is_some() {
                    files.push(file.clone());
                    extra.push(file);
                }
            }
            (!extra.is_empty() && extra.len() < files.len()).then_some(Superset { files, extra })
        };
        sets.into_iter().filter_map(superset).collect()
    });
    inspected.await.unwrap_or_default()
}

/// Returns device and inode of a regular file, which are the same for all paths to it.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let about = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some((about.dev(), about.ino()))
}

/// Reads a regular file. Symbolic links are not followed, and opening a pipe does not block.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let fault = |what: String| format!("compose file {}: {what}", path.display());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| fault(describe(&error.into())))?;
    let file = std::fs::File::from(file);
    let about = file.metadata().map_err(|error| fault(describe(&error)))?;
    if !about.is_file() {
        return Err(fault("is not a regular file".to_owned()));
    }
    let mut content = Vec::new();
    let read = file.take(LARGEST + 1).read_to_end(&mut content).map_err(|error| fault(describe(&error)))?;
    if read as u64 > LARGEST {
        return Err(fault(format!("is larger than {} MiB", LARGEST / 1024 / 1024)));
    }
    Ok(content)
}

fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            "is a symbolic link".to_owned()
        }
        _ => describe_io_error(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn text_that_moves_between_files_changes_the_hash() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "bc").unwrap();
        let before = hash(&[a.clone(), b.clone()]).await.unwrap();
        std::fs::write(&a, "ab").unwrap();
        std::fs::write(&b, "c").unwrap();
        assert_ne!(hash(&[a, b]).await.unwrap(), before);
    }

    #[tokio::test]
    async fn a_superset_has_configured_files_and_others_under_any_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("real")).unwrap();
        std::os::unix::fs::symlink(path("real"), path("alias")).unwrap();
        for name in ["real/a.yml", "real/b.yml"] {
            std::fs::write(path(name), "").unwrap();
        }
        let of = |sets: &[&[&str]]| {
            let set = |names: &&[&str]| names.iter().map(|name| path(name)).collect();
            let sets: BTreeSet<Vec<PathBuf>> = sets.iter().map(set).collect();
            let configured = [path("real/a.yml")];
            async move { supersets(sets, &configured).await }
        };
        let same: [&[&str]; 5] =
            [&[], &["real/a.yml"], &["alias/a.yml"], &["real/a.yml", "gone.yml"], &["real/a.yml", "real"]];
        assert_eq!(of(&same).await, []);
        assert_eq!(of(&[&["real/b.yml"]]).await, [], "it has moved");
        let expected = || Superset {
            files: vec![path("real/a.yml"), path("real/b.yml")],
            extra: vec![path("real/b.yml")],
        };
        assert_eq!(of(&[&["alias/a.yml", "real/b.yml", "gone.yml"]]).await, [expected()]);
        let relative = BTreeSet::from([vec![path("real/a.yml"), "b.yml".into()]]);
        assert_eq!(supersets(relative, &[path("real/a.yml")]).await, []);
        // The file is missing while an editor rewrites it.
        std::fs::remove_file(path("real/a.yml")).unwrap();
        assert_eq!(of(&[&["real/a.yml", "real/b.yml"]]).await, [expected()]);
    }

    #[tokio::test]
    async fn links_pipes_and_missing_files_are_errors_and_nothing_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert!(hash(&[path("none")]).await.unwrap_err().contains("does not exist"));
        std::fs::write(path("file"), "x").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        assert!(hash(&[path("link")]).await.unwrap_err().contains("symbolic link"));
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert!(hash(&[path("pipe")]).await.unwrap_err().contains("regular file"));
        assert!(hash(&[dir.path().to_path_buf()]).await.unwrap_err().contains("regular file"));
    }
}
