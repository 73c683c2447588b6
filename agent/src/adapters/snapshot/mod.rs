//! Copies of folders on this machine, as faithful as `cp -a`: owners, modes, times, extended attributes with ACLs, hard
//! links, holes. Blocks are shared where the file system can (reflink).

mod attributes;
mod copy;
mod exchange;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::ports::snapshot::{Copied, FolderId, Place, Room, SnapshotError, Snapshots};

/// Copies folders with the rights of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct FolderSnapshots;

#[async_trait]
impl Snapshots for FolderSnapshots {
    async fn measure(&self, live: &Path, copy: &Path) -> Result<Room, SnapshotError> {
        let (live, copy) = (live.to_owned(), copy.to_owned());
        in_thread(move || measure(&live, &copy)).await
    }

    async fn copy(&self, place: &Place, progress: &watch::Sender<u64>) -> Result<Copied, SnapshotError> {
        let (place, progress) = (place.clone(), progress.clone());
        in_thread(move || {
            if !place.copy.exists() {
                copy::complete(&place.live, &place.copy, &progress)?;
            }
            let bytes = copy::size(&place.copy)?;
            Ok(Copied { bytes, folder: identity(&place.copy)? })
        })
        .await
    }

    async fn restore(&self, place: &Place, copied: &Copied) -> Result<(), SnapshotError> {
        let (place, folder) = (place.clone(), copied.folder);
        in_thread(move || exchange::restore(&place, folder)).await
    }

    async fn undo(&self, place: &Place, copied: &Copied) -> Result<(), SnapshotError> {
        let (place, folder) = (place.clone(), copied.folder);
        in_thread(move || exchange::undo(&place, folder)).await
    }

    async fn identify(&self, folder: &Path) -> Result<FolderId, SnapshotError> {
        let folder = folder.to_owned();
        in_thread(move || identity(&folder)).await
    }

    async fn remove(&self, folder: &Path) -> Result<(), SnapshotError> {
        let folder = folder.to_owned();
        in_thread(move || {
            if !folder.is_absolute() || folder.components().count() < 3 {
                return Err(SnapshotError(format!("{} is not removed: it is no copy", folder.display())));
            }
            remove(&partial(&folder))?;
            remove(&folder)
        })
        .await
    }
}

async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SnapshotError> + Send + 'static,
) -> Result<T, SnapshotError> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(SnapshotError(format!("interrupted: {error}"))))
}

/// Says what could not be done with a path.
fn because(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let what = format!("can't {doing} {}", path.display());
    move |error| SnapshotError(format!("{what}: {error}"))
}

/// The name of a copy that is not complete.
fn partial(copy: &Path) -> PathBuf {
    let mut name = copy.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    copy.with_file_name(name)
}

fn identity(folder: &Path) -> Result<FolderId, SnapshotError> {
    let found = fs::symlink_metadata(folder).map_err(because("read", folder))?;
    Ok(FolderId { device: found.dev(), inode: found.ino() })
}

/// Removes a folder with its contents. Symbolic links are not followed.
fn remove(folder: &Path) -> Result<(), SnapshotError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(because("remove", folder)(error)),
        _ => Ok(()),
    }
}

fn sync_parent(path: &Path) -> Result<(), SnapshotError> {
    let parent = path.parent().unwrap_or(path);
    File::open(parent).and_then(|folder| folder.sync_all()).map_err(because("sync", parent))
}

/// The nearest folder on the way to a path that exists.
fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"))
}

/// What copies of other users' files take, by bit number (capabilities(7)).
const CAPABILITIES: [(u32, &str); 3] = [(0, "CAP_CHOWN"), (1, "CAP_DAC_OVERRIDE"), (3, "CAP_FOWNER")];

/// The capabilities that this process lacks for faithful copies.
fn lacking(status: &str) -> Vec<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default();
    let lacks = |(bit, _): &&(u32, &str)| effective & (1 << bit) == 0;
    CAPABILITIES.iter().filter(lacks).map(|(_, name)| *name).collect()
}

fn measure(live: &Path, copy: &Path) -> Result<Room, SnapshotError> {
    let lacking = lacking(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    if !lacking.is_empty() {
        let what =
            format!("the agent may not copy the files of other users: it lacks {}", lacking.join(", "));
        return Err(SnapshotError(what));
    }
    if !live.is_dir() {
        return Err(SnapshotError(format!("{} is no directory that the agent can see", live.display())));
    }
    let target = nearest(copy);
    let free = rustix::fs::statvfs(target).map_err(|error| because("measure", target)(error.into()))?;
    let available = free.f_bavail.saturating_mul(free.f_frsize);
    Ok(Room { bytes: copy::size(live)?, available, is_shared: shares_blocks(live, target)? })
}

/// Tries whether a file next to the data can be copied by sharing its blocks. A copy has to be written, too.
fn shares_blocks(live: &Path, target: &Path) -> Result<bool, SnapshotError> {
    let name = |end: &str| format!(".evenkeel-probe-{}-{end}", std::process::id());
    let written = Probe(target.join(name("b")));
    let to = File::create(&written.0).map_err(because("write in", target))?;
    let Some(beside) = live.parent() else { return Ok(false) };
    let device = |folder: &Path| fs::metadata(folder).map(|found| found.dev()).ok();
    if device(beside) != device(live) {
        return Ok(false);
    }
    let original = Probe(beside.join(name("a")));
    let shared = fs::write(&original.0, "evenkeel")
        .and_then(|()| File::open(&original.0))
        .and_then(|from| Ok(rustix::fs::ioctl_ficlone(to, from)?));
    Ok(shared.is_ok())
}

/// A file that is removed when it is no longer needed.
struct Probe(PathBuf);

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
