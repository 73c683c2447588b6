//! What is mounted where this process can see it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::SnapshotError;
use crate::model::mount_table::unescaped;

/// `/proc/self/mountinfo`.
pub(super) fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Reports whether two folders are in the same mount, according to `/proc/self/mountinfo`. Otherwise they can't be exchanged,
/// although a bind mount has the device of its surroundings.
pub(super) fn are_in_one_mount(mounts: &str, one: &Path, other: &Path) -> bool {
    let mount_of = |folder: &Path| {
        let over = mount_points(mounts).map(PathBuf::from).filter(|place| folder.starts_with(place));
        over.max_by_key(|place| place.components().count())
    };
    mount_of(one) == mount_of(other)
}

/// Returns the lines of `/proc/self/mountinfo` without the volumes that engines mount while containers use them.
pub(super) fn without_volumes(mounts: &str) -> String {
    let is_volume = |line: &str| {
        let mut place = line.split(' ').nth(4).unwrap_or_default().rsplit('/');
        place.next() == Some("_data") && place.nth(1) == Some("volumes")
    };
    mounts.lines().filter(|line| !is_volume(line)).collect::<Vec<_>>().join("\n")
}

/// Reports whether a folder, or one inside of it, is mounted at another place as well, according to `/proc/self/mountinfo`. If
/// the folder is exchanged, that mount goes on to show what was in its place.
pub(super) fn is_mounted_elsewhere(mounts: &str, folder: &Path) -> bool {
    let fields = |line: &str| {
        let mut fields = line.split(' ').skip(2).map(str::to_owned);
        let (device, root, place) = (fields.next()?, fields.next()?, fields.next()?);
        Some((device, PathBuf::from(unescaped(&root)), PathBuf::from(unescaped(&place))))
    };
    let all: Vec<_> = mounts.lines().filter_map(fields).collect();
    let over = all.iter().enumerate().filter(|(_, (.., place))| folder.starts_with(place));
    let Some((own, (device, root, place))) = over.max_by_key(|(_, (.., place))| place.components().count())
    else {
        return false;
    };
    let inside = root.join(folder.strip_prefix(place).unwrap_or(folder));
    all.iter().enumerate().any(|(nth, (of, root, _))| nth != own && of == device && root.starts_with(&inside))
}

/// A place below a folder at which something is mounted. A bind mount has the device of its surroundings, and is renamed with
/// the folder.
fn mount_below(mounts: &str, folder: &Path) -> Option<PathBuf> {
    mount_points(mounts).map(PathBuf::from).find(|place| place != folder && place.starts_with(folder))
}

/// Refuses to copy a folder below which something is mounted.
pub(super) fn check_no_mount_below(folder: &Path) -> Result<(), SnapshotError> {
    mount_below(&mounts(), folder).map_or(Ok(()), |place| Err(other_file_system(&place)))
}

/// Refuses to remove what is in a folder below which something is mounted: what is mounted would be removed as well.
pub(super) fn check_removable(folder: &Path) -> Result<(), SnapshotError> {
    let Some(place) = mount_below(&mounts(), folder) else { return Ok(()) };
    let (folder, place) = (folder.display(), place.display());
    Err(SnapshotError(format!(
        "{folder} is not removed, because something is mounted on {place}; unmount that first"
    )))
}

pub(super) fn other_file_system(path: &Path) -> SnapshotError {
    SnapshotError(format!("{} is another file system, which is not copied", path.display()))
}

/// The places at which something is mounted.
pub(super) fn mount_points(mounts: &str) -> impl Iterator<Item = OsString> {
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root, and two places whose names are written in octal digits.
    const MOUNTS: &str =
        "1 2 8:1 / / rw - ext4 x rw\n3 1 8:1 /b /srv/my\\040data rw - ext4 x rw\n4 1 8:1 /c /srv/ä\\134 rw";

    #[test]
    fn folders_in_two_mounts_of_one_file_system_can_not_be_exchanged() {
        for (one, other, expected) in [
            ("/srv/db", "/srv", true),
            ("/srv/my data", "/srv", false),
            ("/srv/my data/db", "/srv/my data", true),
            ("/srv/my data/db", "/srv/my database", false),
            ("/srv/ä\\/db", "/srv/my data", false),
        ] {
            assert_eq!(are_in_one_mount(MOUNTS, Path::new(one), Path::new(other)), expected, "{one} {other}");
        }
        // An agent in a container, to which the engine's volumes and its folder are mounted.
        let nested = "1 2 0:50 / / rw - overlay o rw\n4 3 8:1 /v /var/lib/docker/volumes rw - ext4 x rw\n3 1 8:1 /d /var/lib/docker rw - ext4 x rw";
        let live = Path::new("/var/lib/docker/volumes/p_db/_data");
        assert!(!are_in_one_mount(nested, live, Path::new("/var/lib/docker/evenkeel-snapshots")));
        assert!(are_in_one_mount(nested, live, Path::new("/var/lib/docker/volumes")));
    }

    #[test]
    fn a_folder_that_is_mounted_elsewhere_is_found_whatever_is_mounted_of_it() {
        let mounts = "1 2 8:1 / / rw - ext4 x rw\n3 1 8:1 /srv/my\\040data/db /home/ftp rw - ext4 x rw\n\
                      4 1 8:2 /srv/other /mnt rw - ext4 y rw\n5 1 8:3 / /big rw - ext4 z rw\n6 1 8:3 /db /db rw - ext4 z rw";
        for (folder, expected) in [
            ("/srv/my data/db", true),
            ("/srv/my data", true),
            ("/srv/my data/db/inside", false),
            ("/srv/my data/other", false),
            ("/srv/other", false),
            ("/big/db", true),
            ("/big/db2", false),
        ] {
            assert_eq!(is_mounted_elsewhere(mounts, Path::new(folder)), expected, "{folder}");
        }
        let volume =
            "1 2 8:1 / / rw - ext4 x rw\n2 1 8:1 /srv/db /var/lib/docker/volumes/db/_data rw - ext4 x rw\n";
        assert!(is_mounted_elsewhere(volume, Path::new("/srv/db")));
        assert!(!is_mounted_elsewhere(&without_volumes(volume), Path::new("/srv/db")));
    }

    #[test]
    fn a_mount_below_a_folder_is_found_whatever_its_name_is() {
        for (folder, expected) in [
            ("/srv", Some("/srv/my data")),
            ("/srv/my data", None),
            ("/srv/my", None),
            ("/srv/ä\\", None),
            ("/opt", None),
        ] {
            let found = mount_below(MOUNTS, Path::new(folder));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{folder}");
        }
    }
}
