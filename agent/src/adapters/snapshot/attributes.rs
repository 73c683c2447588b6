//! Owners, modes, extended attributes and times.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, IFlags, StatxAttributes, StatxFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::SnapshotError;
use super::held::Held;

/// An attribute that a file system may refuse although a policy sets it anew anyway.
const SELINUX: &[u8] = b"security.selinux";

/// Gives a copy the attributes of the original. Times come last: everything else changes them.
pub(super) fn copy(from: &Held, seen: &Metadata, to: &Held) -> io::Result<()> {
    if to.metadata()?.file_type() != seen.file_type() {
        return Err(io::Error::other("something else is in the place of the copy"));
    }
    let path = to.path();
    chown(&path, Some(seen.uid()), Some(seen.gid()))?;
    if !seen.is_symlink() {
        fs::set_permissions(&path, Permissions::from_mode(seen.mode() & 0o7777))?;
    }
    // After the owner, whose change removes capabilities, and after the mode, which is part of an ACL.
    for name in names(from)? {
        let value = value(from, &name)?;
        match rustix::fs::setxattr(&path, &*name, &value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) if name.as_slice() == SELINUX => {}
            set => set?,
        }
    }
    let time = |seconds: i64, nanoseconds: i64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(seen.atime(), seen.atime_nsec()),
        last_modification: time(seen.mtime(), seen.mtime_nsec()),
    };
    Ok(rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?)
}

/// Removes what a folder has inherited from its parent, or hands down to what is created in it, and keeps others out of it until
/// it has its attributes.
pub(super) fn disinherit(folder: &Held) -> io::Result<()> {
    let path = folder.path();
    // Its owner could give it another mode. A file system that knows no owners may refuse this.
    let _ = chown(&path, Some(rustix::process::geteuid().as_raw()), None);
    for name in ["system.posix_acl_default", "system.posix_acl_access"] {
        match rustix::fs::removexattr(&path, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fs::set_permissions(&path, Permissions::from_mode(0o700))
}

/// Reports whether a file has capabilities of its own (capabilities(7)).
pub(super) fn has_capabilities(file: &Path) -> bool {
    Held::of(file).and_then(|file| value(&file, b"security.capability")).is_ok()
}

/// Reports whether a file, or what is created in a folder, is not copied on write (`chattr +C`).
pub(super) fn is_never_shared(path: &Path) -> bool {
    let opened = Held::of(path).and_then(|held| held.to_read());
    let flags = opened.and_then(|file| Ok(rustix::fs::ioctl_getflags(&file)?));
    flags.is_ok_and(|flags| flags.contains(IFlags::NOCOW))
}

/// Refuses what can't be removed or renamed.
pub(super) fn check_movable(path: &Path) -> Result<(), SnapshotError> {
    if !is_fixed(path) {
        return Ok(());
    }
    Err(SnapshotError(format!(
        "{} can't be removed or renamed, so that the data could not be put back; clear its attributes with chattr -i -a",
        path.display()
    )))
}

/// Refuses a folder that can't be emptied: a part of what is in it would be removed before that is noticed.
pub(super) fn check_clearable(folder: &Path) -> Result<(), SnapshotError> {
    check_movable(folder)?;
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        // A service that runs may remove it in the meantime. What can't be read can't be copied either.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            check_movable(&path)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(path);
            }
        }
    }
    Ok(())
}

/// Reports whether nobody can remove or rename a file or folder (`chattr +i`), or what is in the folder (`chattr +a`).
fn is_fixed(path: &Path) -> bool {
    let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let seen = rustix::fs::statx(CWD, path, how, StatxFlags::empty());
    let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    seen.is_ok_and(|seen| seen.stx_attributes.intersects(fixed))
}

/// The names of the extended attributes of a file or folder.
pub(super) fn names(held: &Held) -> io::Result<Vec<Vec<u8>>> {
    let path = held.path();
    let list = read(|buffer| rustix::fs::listxattr(&path, buffer));
    let list = match list {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        list => list?,
    };
    Ok(list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

fn value(held: &Held, name: &[u8]) -> io::Result<Vec<u8>> {
    let path = held.path();
    Ok(read(|buffer| rustix::fs::getxattr(&path, name, buffer))?)
}

/// Calls with a buffer that is large enough.
fn read(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 1024];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1024 * 1024 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_was_put_in_the_place_of_a_copy_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to, outside] = ["from", "to", "outside"].map(|name| folder.path().join(name));
        for (path, mode) in [(&from, 0o666), (&outside, 0o600)] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, &to).unwrap();
        let (from, to) = (Held::of(&from).unwrap(), Held::of(&to).unwrap());
        let error = copy(&from, &from.metadata().unwrap(), &to).unwrap_err().to_string();
        assert_eq!(error, "something else is in the place of the copy");
        assert_eq!(fs::metadata(&outside).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn attributes_are_given_to_what_was_copied_whatever_has_its_name_by_now() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to, moved] = ["from", "to", "moved"].map(|name| folder.path().join(name));
        for (path, mode) in [(&from, 0o604), (&to, 0o600)] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let (original, copied) = (Held::of(&from).unwrap(), Held::of(&to).unwrap());
        fs::rename(&to, &moved).unwrap();
        fs::write(&to, "other").unwrap();
        fs::set_permissions(&to, Permissions::from_mode(0o600)).unwrap();
        copy(&original, &original.metadata().unwrap(), &copied).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&moved), mode(&to)), (0o604, 0o600));
    }
}
