//! Copies of folders on this machine, as faithful as `cp -a`: owners, modes, times, extended attributes with ACLs, hard
//! links, holes. Blocks are shared where the file system can (reflink).

mod attributes;
mod copy;
mod exchange;
mod held;
mod measure;
mod mounts;
#[cfg(test)]
mod tests;
mod turn;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use rustix::fs::OFlags;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use self::copy::Report;
use self::turn::Turn;
use crate::config::in_container;
use crate::ports::snapshot::{Copied, FolderId, Free, Place, Room, SnapshotError, Snapshots};

/// Copies folders with the rights of this process.
#[derive(Debug, Clone, Copy)]
pub struct FolderSnapshots {
    in_container: bool,
}

impl FolderSnapshots {
    /// Copies what this process sees, which in a container is what is mounted there.
    pub fn here() -> Self {
        Self { in_container: in_container() }
    }
}

#[async_trait]
impl Snapshots for FolderSnapshots {
    async fn measure(&self, live: &Path, copy: &Path) -> Result<Room, SnapshotError> {
        let (live, copy, in_container) = (live.to_owned(), copy.to_owned(), self.in_container);
        in_thread(move || measure::room(&live, &copy, in_container)).await
    }

    async fn available(&self, copy: &Path) -> Result<Free, SnapshotError> {
        let (copy, in_container) = (copy.to_owned(), self.in_container);
        in_thread(move || measure::available(&copy, in_container)).await
    }

    async fn resolve(&self, folder: &Path) -> Result<PathBuf, SnapshotError> {
        let folder = folder.to_owned();
        in_thread(move || measure::resolved(&folder)).await
    }

    async fn copy(&self, place: &Place, progress: &watch::Sender<u64>) -> Result<Copied, SnapshotError> {
        let caller = Caller::default();
        let report = Report { progress: progress.clone(), is_abandoned: caller.0.clone() };
        let place = place.clone();
        in_thread(move || {
            let _turn = Turn::at(&place);
            if !place.copy.exists() {
                copy::complete(&place.live, &place.copy, &report)?;
            }
            let bytes = copy::size(&place.copy, false)?.bytes;
            Ok(Copied { bytes, folder: identity(&place.copy)? })
        })
        .await
    }

    async fn restore(&self, place: &Place, copied: &Copied) -> Result<(), SnapshotError> {
        let (place, folder) = (place.clone(), copied.folder);
        in_thread(move || {
            let _turn = Turn::at(&place);
            exchange::restore(&place, folder)
        })
        .await
    }

    async fn undo(&self, place: &Place, copied: &Copied) -> Result<(), SnapshotError> {
        let (place, folder) = (place.clone(), copied.folder);
        in_thread(move || {
            let _turn = Turn::at(&place);
            exchange::undo(&place, folder)
        })
        .await
    }

    async fn identify(&self, folder: &Path) -> Result<FolderId, SnapshotError> {
        let folder = folder.to_owned();
        in_thread(move || identity(&folder)).await
    }

    async fn remove(&self, folder: &Path) -> Result<(), SnapshotError> {
        let folder = folder.to_owned();
        in_thread(move || {
            if !may_be_copy(&folder) {
                return Err(SnapshotError(format!("{} is not removed: it is no copy", folder.display())));
            }
            let _turn = Turn::on(&[&folder]);
            remove(&partial(&folder))?;
            remove(&folder)
        })
        .await
    }
}

/// Whoever waits for a copy. If it is dropped, the thread ends soon.
#[derive(Default)]
struct Caller(Arc<AtomicBool>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
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

/// Reports whether a folder may be one that the agent has made. The data may lie in the root, and its copies beside it, among
/// the folders of the system.
fn may_be_copy(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    match folder.parent() {
        Some(parent) if folder.is_absolute() => parent.parent().is_some() || name.contains(".evenkeel-"),
        _ => false,
    }
}

/// Removes a folder with its contents. Symbolic links are not followed.
fn remove(folder: &Path) -> Result<(), SnapshotError> {
    mounts::check_removable(folder)?;
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(because("remove", folder)(error)),
        _ => Ok(()),
    }
}

fn sync_parent(path: &Path) -> Result<(), SnapshotError> {
    let parent = path.parent().unwrap_or(path);
    let flags = OFlags::DIRECTORY.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(parent);
    opened.and_then(|folder| folder.sync_all()).map_err(because("sync", parent))
}

/// The nearest folder on the way to a path that exists.
fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"))
}
