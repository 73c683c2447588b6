//! The files of the audit file: how they are opened, and the names of the rotated ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// Opening a FIFO without a peer would block forever, and a symbolic link may lead to a file that another user chose.
pub(super) const OPEN_FLAGS: i32 =
    rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOFOLLOW).bits().cast_signed();

/// Replaces the error for a link that is not followed, which the system reports as "too many levels".
pub(super) fn name_link(error: io::Error) -> io::Error {
    let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    if is_link { io::Error::other("it is a symbolic link, which is not followed") } else { error }
}

/// Lists the rotated files of an audit path, newest first. Only names that a rotation creates count.
pub(super) fn archives(path: &Path) -> io::Result<Vec<PathBuf>> {
    let prefix = format!("{}.", base(path));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let stamp = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".jsonl"));
        if stamp.is_some_and(is_stamp) {
            found.push(name);
        }
    }
    found.sort_unstable_by(|one, two| two.cmp(one));
    Ok(found.into_iter().map(|name| folder.join(name)).collect())
}

/// Parses the time in the name of an archive of `path`.
pub(super) fn stamp_of(path: &Path, archive: &Path) -> Option<Timestamp> {
    let name = archive.file_name()?.to_str()?;
    let stamp = name.strip_prefix(&base(path))?.strip_prefix('.')?.strip_suffix(".jsonl")?;
    // The basic format of RFC 9557, which the parser accepts.
    stamp.parse().ok()
}

/// The audit path's file name without `.jsonl`.
pub(super) fn base(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".jsonl").unwrap_or(&name).to_owned()
}

fn is_stamp(text: &str) -> bool {
    let shape = "00000000T000000.000Z";
    text.len() == shape.len()
        && text
            .bytes()
            .zip(shape.bytes())
            .all(|(byte, shape)| if shape == b'0' { byte.is_ascii_digit() } else { byte == shape })
}
