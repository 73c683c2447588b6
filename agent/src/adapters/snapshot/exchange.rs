//! Puts a copy in place of the folder that it was made of.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::held::{Folder, Held};
use super::{
    FolderId, Place, Report, SnapshotError, attributes, because, copy, identity, mounts, nearest, partial,
    remove, sync_parent,
};

/// Puts the copy in place of the folder, whose data is set aside. What was done before the process was killed is seen by the
/// identity of the folders.
pub(super) fn restore(place: &Place, copied: FolderId) -> Result<(), SnapshotError> {
    let Place { live, copy, aside } = place;
    if !is_copy(live, place, copied)? {
        if !fs::symlink_metadata(copy).is_ok_and(|found| found.is_dir()) {
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
    let has_begun = aside.exists() || (copy.exists() && !is_copy(copy, place, copied)?);
    if !has_begun {
        // What a run left that was killed.
        return remove(&partial(aside));
    }
    let left = if aside.exists() { aside } else { copy };
    if !is_copy(left, place, copied)? && !exchange(left, live)? {
        fill(left, live)?;
        // The data is in the folder again. A later run must not take a part of what was set aside for all of it.
        let used_up = partial(left);
        remove(&used_up)?;
        fs::rename(left, &used_up).map_err(because("name", &used_up))?;
        sync_parent(&used_up)?;
        return remove(&used_up);
    }
    if !copy.exists() {
        fs::rename(left, copy).map_err(because("name", copy))?;
    }
    sync_parent(copy)
}

/// Reports whether a folder is the copy, whatever its name is by now. The number of a device may be another one after a
/// restart of the machine, so it is that of the folder in which the copies are.
fn is_copy(folder: &Path, place: &Place, copied: FolderId) -> Result<bool, SnapshotError> {
    let device = identity(nearest(place.copy.parent().unwrap_or(&place.copy)))?.device;
    Ok(identity(folder)? == FolderId { device, ..copied })
}

/// Exchanges two folders; `false` if that can't be done with these: a mount point, what is mounted elsewhere as well, two file
/// systems, or one that can't exchange.
fn exchange(one: &Path, live: &Path) -> Result<bool, SnapshotError> {
    if mounts::is_mounted_elsewhere(&mounts::mounts(), live) {
        return Ok(false);
    }
    let (parent, name) = (live.parent().unwrap_or(live), live.file_name().unwrap_or_default());
    let parent = Held::below(Path::new("/"), parent).map_err(because("put back", live))?;
    match rustix::fs::renameat_with(CWD, one, &parent, name, RenameFlags::EXCHANGE) {
        Ok(()) => sync_parent(live).map(|()| true),
        Err(Errno::XDEV | Errno::BUSY | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(because("put back", live)(error.into())),
    }
}

/// Copies the data that is there aside, and the copy into the folder. Each is complete before the next begins, and is simply
/// done anew after it was killed.
fn by_contents(place: &Place) -> Result<(), SnapshotError> {
    let Place { live, copy, aside } = place;
    // Once it is set aside, undoing empties the folder as well.
    check_clearable(live)?;
    if !aside.exists() {
        copy::complete(live, aside, &Report::to_the_end()).inspect_err(|_| {
            // It takes up the room that the service needs. The next run would remove it, too.
            let _ = remove(&partial(aside));
        })?;
    }
    fill(copy, live)
}

/// Copies a folder into the one with the data, in place of what is in it.
pub(super) fn fill(from: &Path, live: &Path) -> Result<(), SnapshotError> {
    let source = Folder::open(from)?;
    let folder = clear(live)?;
    copy::contents(&source, &folder, &Report::to_the_end()).inspect_err(|_| {
        // It is not the agent's, even with a part of the data only.
        let seen = source.held.metadata();
        let _ = seen.and_then(|seen| attributes::copy(&source.held, &seen, &folder.held));
    })
}

fn check_clearable(folder: &Path) -> Result<(), SnapshotError> {
    mounts::check_removable(folder)?;
    attributes::check_clearable(folder)
}

/// Removes what is in the folder with the data, and what is copied into it would inherit.
fn clear(live: &Path) -> Result<Folder, SnapshotError> {
    check_clearable(live)?;
    let folder = Folder::live(live)?;
    for entry in fs::read_dir(folder.inside(OsStr::new(""))).map_err(because("read", live))? {
        let entry = entry.map_err(because("read", live))?;
        let shown = live.join(entry.file_name());
        if entry.file_type().map_err(because("read", &shown))?.is_dir() {
            mounts::check_removable(&shown)?;
            fs::remove_dir_all(entry.path()).map_err(because("remove", &shown))?;
        } else {
            fs::remove_file(entry.path()).map_err(because("remove", &shown))?;
        }
    }
    attributes::disinherit(&folder.held).map_err(because("prepare", live))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_a_link_in_the_path_of_the_data_leads_to_is_neither_emptied_nor_exchanged() {
        let place = tempfile::tempdir().unwrap();
        let [outside, copied, link, real] =
            ["outside", "copied", "link", "real"].map(|n| place.path().join(n));
        for folder in [&outside.join("data"), &copied, &real] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("file"), "x").unwrap();
        }
        symlink(&outside, &link).unwrap();
        for live in [&link, &link.join("data")] {
            let SnapshotError(error) = clear(live).err().unwrap();
            assert!(error.ends_with(": link in its path is a link by now, or no directory"), "{error}");
        }
        assert!(exchange(&copied, &link.join("data")).is_err());
        assert!(outside.join("data/file").exists() && copied.join("file").exists());
        clear(&real).unwrap();
        assert_eq!(fs::read_dir(&real).unwrap().count(), 0);
    }
}
