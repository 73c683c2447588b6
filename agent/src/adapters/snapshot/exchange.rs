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
        match rustix::fs::renameat_with(CWD, copy, CWD, live, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // A mount point, another file system, or one that can't exchange.
            Err(Errno::XDEV | Errno::BUSY | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return by_contents(place);
            }
            Err(error) => return Err(because("put back", live)(error.into())),
        }
        sync_parent(live)?;
    }
    if copy.exists() && !aside.exists() {
        fs::rename(copy, aside).map_err(because("name", aside))?;
    }
    sync_parent(aside)
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
