//! The hash over a project's compose files (spec 1.6).

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};

use crate::text::plainly;

/// Largest compose file that is read.
const LARGEST: u64 = 16 * 1024 * 1024;

/// SHA-256 over all files in order, each with its length before it, so that text which moves from one file to the
/// next changes the hash. The error names the file.
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

/// Those of `files` that are there, and are no other names of the `known` ones. Relative ones are nobody's: what they
/// are relative to is not known.
pub(super) async fn others(mut files: BTreeSet<PathBuf>, known: &[PathBuf]) -> Vec<PathBuf> {
    files.retain(|file| file.is_absolute() && !known.contains(file));
    if files.is_empty() {
        return Vec::new();
    }
    let known = known.to_vec();
    let looked = tokio::task::spawn_blocking(move || {
        let known: Vec<_> = known.iter().filter_map(|file| file.canonicalize().ok()).collect();
        let is_other = |file: &PathBuf| file.canonicalize().is_ok_and(|real| !known.contains(&real));
        files.into_iter().filter(is_other).collect()
    });
    looked.await.unwrap_or_default()
}

/// Reads a regular file. Neither a link nor a pipe in its place is followed or waited for.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let fault = |what: String| format!("compose file {}: {what}", path.display());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| fault(words(&error.into())))?;
    let file = std::fs::File::from(file);
    let about = file.metadata().map_err(|error| fault(words(&error)))?;
    if !about.is_file() {
        return Err(fault("is not a regular file".to_owned()));
    }
    let mut content = Vec::new();
    let read = file.take(LARGEST + 1).read_to_end(&mut content).map_err(|error| fault(words(&error)))?;
    if read as u64 > LARGEST {
        return Err(fault(format!("is larger than {} MiB", LARGEST / 1024 / 1024)));
    }
    Ok(content)
}

fn words(error: &std::io::Error) -> String {
    match error.kind() {
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            "is a symbolic link".to_owned()
        }
        _ => plainly(error),
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
    async fn other_files_are_those_that_exist_and_are_no_other_name_of_a_known_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("real")).unwrap();
        std::os::unix::fs::symlink(path("real"), path("alias")).unwrap();
        for name in ["real/a.yml", "real/b.yml"] {
            std::fs::write(path(name), "").unwrap();
        }
        let made_with = ["real/a.yml", "alias/a.yml", "alias/b.yml", "gone.yml"]
            .map(path)
            .into_iter()
            .chain(["b.yml".into()]);
        assert_eq!(others(made_with.collect(), &[path("real/a.yml")]).await, [path("alias/b.yml")]);
    }

    #[tokio::test]
    async fn links_pipes_and_missing_files_are_faults_and_nothing_hangs() {
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
