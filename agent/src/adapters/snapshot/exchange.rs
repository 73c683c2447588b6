//! Puts a copy in place of the folder that it was made of.

use std::fs;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use tokio::sync::watch;

use super::{FolderId, Place, SnapshotError, because, copy, identity, remove, sync_parent};

/// Puts the copy in place of the folder, whose data is set aside. What was done before the process was killed is seen by the
/// identity of the folders.
pub(super) fn restore(place: &Place, copied: FolderId) -> Result<(), SnapshotError> {
    let Place { live, copy, aside } = place;
    if identity(live)? != copied {
        if !copy.is_dir() {
            return Err(SnapshotError(format!("the copy {} is gone", copy.display())));
        }
        if !exchange(copy, live)? {
            return by_contents(place);
        }
    }
    if copy.exists() && !aside.exists() {
        fs::rename(copy, aside).map_err(because("name", aside))?;
    }
    sync_parent(aside)
}

/// Puts the data that was set aside in the folder again, and the copy where it was. Where the data is tells how far either
/// way has come.
pub(super) fn undo(place: &Place, copied: FolderId) -> Result<(), SnapshotError> {
    let Place { live, copy, aside } = place;
    // The data is set aside under its name, still has the name of the copy, or was never touched.
    let has_begun = aside.exists() || (copy.exists() && identity(copy)? != copied);
    if !has_begun {
        return Ok(());
    }
    let left = if aside.exists() { aside } else { copy };
    if identity(left)? != copied && !exchange(left, live)? {
        clear(live)?;
        return copy::contents(left, live, &watch::Sender::new(0));
    }
    if !copy.exists() {
        fs::rename(left, copy).map_err(because("name", copy))?;
    }
    sync_parent(copy)
}

/// Exchanges two folders; `false` if that can't be done with these: a mount point, two file systems, or one that can't
/// exchange.
fn exchange(one: &Path, live: &Path) -> Result<bool, SnapshotError> {
    match rustix::fs::renameat_with(CWD, one, CWD, live, RenameFlags::EXCHANGE) {
        Ok(()) => sync_parent(live).map(|()| true),
        Err(Errno::XDEV | Errno::BUSY | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(because("put back", live)(error.into())),
    }
}

/// Copies the data that is there aside, and the copy into the folder. Each is complete before the next begins, and is simply
/// done anew after it was killed.
fn by_contents(place: &Place) -> Result<(), SnapshotError> {
    let Place { live, copy, aside } = place;
    let progress = watch::Sender::new(0);
    if !aside.exists() {
        copy::complete(live, aside, &progress)?;
    }
    clear(live)?;
    copy::contents(copy, live, &progress)
}

/// Removes what is in a folder.
fn clear(folder: &Path) -> Result<(), SnapshotError> {
    for entry in fs::read_dir(folder).map_err(because("read", folder))? {
        let entry = entry.map_err(because("read", folder))?;
        let path = entry.path();
        if entry.file_type().map_err(because("read", &path))?.is_dir() {
            remove(&path)?;
        } else {
            fs::remove_file(&path).map_err(because("remove", &path))?;
        }
    }
    Ok(())
}
