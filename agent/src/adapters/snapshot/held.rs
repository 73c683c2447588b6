//! Files and folders that are held open. Others may write in the folder that is copied, or next to it, and put a link in place
//! of anything there: what is done to what is held does not meet the link.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{SnapshotError, because};

/// A file of any kind: a folder, a device, or a symbolic link itself.
pub(super) struct Held(File);

impl Held {
    /// Holds what has this path. A link in the last part of it is not followed.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        open(path, OFlags::PATH | OFlags::NOFOLLOW).map(Self)
    }

    /// Holds a file that was written to, and closes it: some file systems set its time once more then.
    pub(super) fn written(file: File) -> io::Result<Self> {
        open(&Self(file).path(), OFlags::PATH).map(Self)
    }

    /// Holds the folder with this path from `root` on. None of the names in the path may be that of a link.
    pub(super) fn below(root: &Path, path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut folder = rustix::fs::open(root, flags, Mode::empty())?;
        for part in path.components().filter(|part| *part != Component::RootDir) {
            let flags = flags | OFlags::NOFOLLOW;
            folder = match rustix::fs::openat(&folder, part.as_os_str(), flags, Mode::empty()) {
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let name = part.as_os_str().display();
                    return Err(io::Error::other(format!(
                        "{name} in its path is a link by now, or no directory"
                    )));
                }
                opened => opened?,
            };
        }
        Ok(Self(folder.into()))
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// The path of what is held. It is a link of the kernel, which calls have to follow. They follow no further, also if what is
    /// held is a link itself.
    pub(super) fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string())
    }

    /// Opens a file or folder for reading. Nothing else is opened: a FIFO would wait for somebody who writes, and a device may
    /// begin to do something.
    pub(super) fn to_read(&self) -> io::Result<File> {
        let seen = self.metadata()?;
        if seen.is_file() || seen.is_dir() {
            File::open(self.path())
        } else {
            Err(io::Error::other("it is neither a file nor a directory"))
        }
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Not with the standard library's `OpenOptions`: with musl, whose `O_ACCMODE` contains it, they drop `O_PATH`, so that a link
/// is refused, and a FIFO waits for somebody who writes.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let opened = retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()))?;
    Ok(opened.into())
}

/// An open folder.
pub(super) struct Folder {
    pub(super) held: Held,
    /// Its path, for errors.
    pub(super) path: PathBuf,
}

impl Folder {
    /// Opens a folder. A link in the last part of the path is not followed.
    pub(super) fn open(path: &Path) -> Result<Self, SnapshotError> {
        Self::open_as(path, path).map_err(because("open", path))
    }

    /// Opens the folder with the data, whose path was without links when it was resolved.
    pub(super) fn live(path: &Path) -> Result<Self, SnapshotError> {
        let opened = Held::below(Path::new("/"), path).and_then(|held| Self::of(held, path));
        opened.map_err(because("open", path))
    }

    /// Opens a held folder in place of holding it: only two files may be open for each of the folders that are in each other.
    pub(super) fn of(held: Held, shown: &Path) -> io::Result<Self> {
        let opened = held.to_read()?;
        drop(held);
        Ok(Self { held: Held(opened), path: shown.to_owned() })
    }

    pub(super) fn open_as(path: &Path, shown: &Path) -> io::Result<Self> {
        let held = Held(open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW)?);
        Ok(Self { held, path: shown.to_owned() })
    }

    /// The path of what has this name in it.
    pub(super) fn inside(&self, name: &OsStr) -> PathBuf {
        self.held.path().join(name)
    }

    /// Opens a folder in it.
    pub(super) fn folder(&self, name: &OsStr) -> Result<Self, SnapshotError> {
        let shown = self.path.join(name);
        Self::open_as(&self.inside(name), &shown).map_err(because("open", &shown))
    }
}
