//! The mount table of a process, `/proc/PID/mountinfo`, and what it takes to say that a file system is mounted no longer.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// File systems without a disk or server of their own. An engine may have some that nobody else sees.
const IN_MEMORY: [&str; 4] = ["tmpfs", "ramfs", "squashfs", "overlay"];

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Device of the file system, as `8:1`.
    device: String,
    /// Which folder or file of the file system is mounted.
    root: PathBuf,
    /// Where.
    place: PathBuf,
    /// Kind of the file system.
    kind: String,
}

/// Reads a mount table. Lines in another form are left out.
pub(crate) fn read(table: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        Some(Mount {
            device: fields.next()?.to_owned(),
            root: unescaped(fields.next()?).into(),
            place: unescaped(fields.next()?).into(),
            kind: file_system.split(' ').next()?.to_owned(),
        })
    };
    table.lines().filter_map(mount).collect()
}

/// Blanks, newlines and backslashes are written as three octal digits there.
pub(crate) fn unescaped(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = byte.filter(|_| *first == b'\\') {
            bytes.push(byte);
            rest = &others[3..];
        } else {
            bytes.push(*first);
            rest = others;
        }
    }
    OsString::from_vec(bytes)
}

/// Device and path within its file system of what a path leads to.
fn located<'a>(mounts: &'a [Mount], path: &Path) -> Option<(&'a str, PathBuf)> {
    let over = mounts.iter().filter(|mount| path.starts_with(&mount.place));
    let over = over.max_by_key(|mount| mount.place.components().count())?;
    Some((over.device.as_str(), over.root.join(path.strip_prefix(&over.place).ok()?)))
}

/// The place where a file system was mounted, of which `root` was bound from `source`; `None` if that can't be told.
fn mount_point<'a>(source: &'a Path, root: &Path) -> Option<&'a Path> {
    let inner = root.strip_prefix("/").ok().filter(|inner| source.ends_with(inner))?;
    source.ancestors().nth(inner.components().count())
}

/// What is found where a container has a folder of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// A file system that does not work any more.
    Dead,
    /// A folder. If it is empty, it may be a mount point where nothing is mounted.
    Folder,
}

/// The mount tables that tell what has become of a folder that a container has mounted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tables<'a> {
    /// That of this process.
    pub(crate) own: &'a [Mount],
    /// That of the machine, which is its first process's.
    pub(crate) machine: &'a [Mount],
    /// That of the container's main process.
    pub(crate) container: &'a [Mount],
}

impl Tables<'_> {
    /// Reports whether the machine certainly has lost what the container has mounted at `destination`. At `source`, this is found.
    ///
    /// That this process finds nothing says little by itself: its service may hide the folder from it, it may run in a container,
    /// and the engine may have mounts of its own. So the file system must be mounted nowhere on the machine any more, or what does
    /// not work must be that of the container, and this process must look at the same place as the machine. A folder may also be
    /// that of a file system that was mounted anew.
    pub(crate) fn is_lost(&self, source: &Path, destination: &Path, found: Found) -> bool {
        let seen = located(self.own, source);
        if seen.is_none() || seen != located(self.machine, source) {
            return false;
        }
        let bound = self.container.iter().rfind(|mount| mount.place == destination);
        let Some(bound) = bound.filter(|mount| !IN_MEMORY.contains(&mount.kind.as_str())) else {
            return false;
        };
        let of_device = self.machine.iter().filter(|mount| mount.device == bound.device);
        let mut places = of_device
            .filter_map(|mount| Some(mount.place.join(bound.root.strip_prefix(&mount.root).ok()?)))
            .peekable();
        let is_mounted = places.peek().is_some();
        match found {
            Found::Nothing => !is_mounted,
            Found::Dead => !is_mounted || places.any(|place| place == source),
            Found::Folder => {
                let is_bare = |point: &Path| self.machine.iter().all(|mount| mount.place != point);
                !is_mounted && mount_point(source, &bound.root).is_some_and(is_bare)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "1 0 8:1 / / rw - ext4 x rw\n";

    #[test]
    fn a_folder_is_lost_only_if_its_file_system_is_mounted_nowhere_or_does_not_work_any_more() {
        let of_disk = "9 8 8:1 / / rw - ext4 x rw\n10 9 8:17 /my\\040db /data rw shared:1 - ext4 y rw\n";
        let of_root = "9 8 8:1 /mnt/usb/my\\040db /data rw - ext4 x rw\n";
        let with = |more: &str| format!("{ROOT}{more}\n");
        let disk = with("2 1 8:17 / /mnt/usb rw - ext4 y rw");
        let elsewhere = with("2 1 8:17 / /media/usb rw - ext4 y rw");
        let subvolume = with("2 1 8:17 /@ /home rw - btrfs y rw");
        let hidden = with("2 1 0:40 / /mnt rw - tmpfs hides rw");
        let another = with("2 1 8:33 / /mnt/usb rw - ext4 z rw");
        let of_subvolume = "9 8 8:1 / / rw - ext4 x rw\n10 9 8:17 /@/db /data rw - btrfs y rw\n";
        for (what, own, machine, container, lost) in [
            ("it was unmounted", ROOT, ROOT, of_disk, [true, true, true]),
            (
                "only another part of it is mounted",
                subvolume.as_str(),
                subvolume.as_str(),
                of_disk,
                [true, true, true],
            ),
            (
                "another one is mounted there",
                another.as_str(),
                another.as_str(),
                of_disk,
                [true, true, false],
            ),
            ("where it was mounted can't be told", ROOT, ROOT, of_subvolume, [true, true, false]),
            ("it is mounted", disk.as_str(), disk.as_str(), of_disk, [false, true, false]),
            ("it is mounted elsewhere", elsewhere.as_str(), elsewhere.as_str(), of_disk, [false; 3]),
            ("it was removed, or is the engine's own", ROOT, ROOT, of_root, [false, true, false]),
            ("this process is kept from seeing it", hidden.as_str(), ROOT, of_disk, [false; 3]),
            ("the machine's table can't be read", ROOT, "", of_disk, [false; 3]),
            ("the container's table can't be read", ROOT, ROOT, "", [false; 3]),
            ("it was in memory", ROOT, ROOT, "9 8 0:50 / /data rw - tmpfs t rw", [false; 3]),
        ] {
            let (own, machine, container) = (read(own), read(machine), read(container));
            let tables = Tables { own: &own, machine: &machine, container: &container };
            let is_lost = |found| tables.is_lost("/mnt/usb/my db".as_ref(), "/data".as_ref(), found);
            assert_eq!([Found::Nothing, Found::Dead, Found::Folder].map(is_lost), lost, "{what}");
            assert!(!tables.is_lost("/mnt/usb/my db".as_ref(), "/other".as_ref(), Found::Dead), "{what}");
        }
        assert_eq!(mount_point("/mnt/usb".as_ref(), "/".as_ref()), Some(Path::new("/mnt/usb")), "all of it");
    }
}
