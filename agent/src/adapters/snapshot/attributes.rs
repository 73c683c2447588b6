//! Owners, modes, extended attributes and times.

use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, IFlags, OFlags, StatxAttributes, StatxFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;

use super::SnapshotError;

/// An attribute that a file system may refuse although a policy sets it anew anyway.
const SELINUX: &[u8] = b"security.selinux";

/// Gives a copy the attributes of the original. Times come last: everything else changes them.
pub(super) fn copy(from: &Path, seen: &Metadata, to: &Path) -> io::Result<()> {
    lchown(to, Some(seen.uid()), Some(seen.gid()))?;
    if !seen.is_symlink() {
        fs::set_permissions(to, Permissions::from_mode(seen.mode() & 0o7777))?;
    }
    // After the owner, whose change removes capabilities, and after the mode, which is part of an ACL.
    for name in names(from)? {
        let value = value(from, &name)?;
        match rustix::fs::lsetxattr(to, &*name, &value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) if name.as_slice() == SELINUX => {}
            set => set?,
        }
    }
    let time = |seconds: i64, nanoseconds: i64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(seen.atime(), seen.atime_nsec()),
        last_modification: time(seen.mtime(), seen.mtime_nsec()),
    };
    Ok(rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Removes what a folder has inherited from its parent, or hands down to what is created in it.
pub(super) fn disinherit(folder: &Path) -> io::Result<()> {
    for name in ["system.posix_acl_default", "system.posix_acl_access"] {
        match rustix::fs::lremovexattr(folder, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fs::set_permissions(folder, Permissions::from_mode(0o700))
}

/// Reports whether a file has capabilities of its own (capabilities(7)).
pub(super) fn has_capabilities(file: &Path) -> bool {
    value(file, b"security.capability").is_ok()
}

/// Reports whether a file, or what is created in a folder, is not copied on write (`chattr +C`).
pub(super) fn is_never_shared(path: &Path) -> bool {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
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
pub(super) fn names(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let list = read(|buffer| rustix::fs::llistxattr(path, buffer));
    let list = match list {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        list => list?,
    };
    Ok(list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

fn value(path: &Path, name: &[u8]) -> io::Result<Vec<u8>> {
    Ok(read(|buffer| rustix::fs::lgetxattr(path, name, buffer))?)
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
