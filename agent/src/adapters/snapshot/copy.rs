//! A copy of a folder.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, SeekFrom};
use rustix::io::Errno;
use tokio::sync::watch;

use super::held::{Folder, Held};
use super::mounts::{check_no_mount_below, other_file_system};
use super::{SnapshotError, attributes, because, partial, remove, sync_parent};

/// How deep folders may be in each other: two files are open for each.
const MAX_DEPTH: usize = 200;
/// How much is copied between two reports.
const CHUNK: usize = 16 * 1024 * 1024;
const BUFFER: usize = 1024 * 1024;
/// The set-user-ID and set-group-ID bits of a mode.
const SET_IDS: u32 = 0o6000;
/// A file with as many blocks is large enough to be opened to see whether it is marked by itself.
const LARGE: u64 = 2048;
/// How much may be written that is not on the disk yet. Whatever else is to reach the same disk, such as the state of the agent,
/// waits for it.
const UNSYNCED: u64 = 128 * 1024 * 1024;

/// What a copy tells its caller, and the other way round.
pub(super) struct Report {
    /// The bytes copied so far.
    pub(super) progress: watch::Sender<u64>,
    /// Whether nobody waits for the copy any more.
    pub(super) is_abandoned: Arc<AtomicBool>,
}

impl Report {
    /// Of a copy that is made to the end, since it is a part of something that must not be left half done.
    pub(super) fn to_the_end() -> Self {
        Self { progress: watch::Sender::new(0), is_abandoned: Arc::default() }
    }

    fn check(&self) -> io::Result<()> {
        let is_abandoned = self.is_abandoned.load(Ordering::Relaxed);
        if is_abandoned { Err(io::Error::other("nobody waits for the copy any more")) } else { Ok(()) }
    }
}

/// Copies the folder with the data. The copy has its name once it is complete and on disk.
pub(super) fn complete(live: &Path, to: &Path, report: &Report) -> Result<(), SnapshotError> {
    check_no_mount_below(live)?;
    let source = Folder::live(live)?;
    let unfinished = partial(to);
    // What a run left that was killed.
    remove(&unfinished)?;
    if let Some(parent) = to.parent() {
        DirBuilder::new().mode(0o700).recursive(true).create(parent).map_err(because("create", parent))?;
    }
    DirBuilder::new().mode(0o700).create(&unfinished).map_err(because("create", &unfinished))?;
    let target = Folder::open(&unfinished)?;
    attributes::disinherit(&target.held).map_err(because("prepare", &unfinished))?;
    contents(&source, &target, report)?;
    fs::rename(&unfinished, to).map_err(because("name", to))?;
    sync_parent(to)
}

/// Copies the contents and the attributes of a folder into an empty one, and waits until they are on disk.
pub(super) fn contents(from: &Folder, to: &Folder, report: &Report) -> Result<(), SnapshotError> {
    let seen = from.held.metadata().map_err(because("read", &from.path))?;
    let mut copying = Copying::new(seen.dev(), to.held.path(), report);
    copying.folder(from, to, Path::new(""), 0)?;
    attributes::copy(&from.held, &seen, &to.held).map_err(because("give its attributes to", &to.path))?;
    rustix::fs::syncfs(&to.held).map_err(|error| because("sync", &to.path)(error.into()))
}

/// Gives a new folder the attributes of another one, as its copy would get them.
pub(super) fn attributes_alone(from: &Path, to: &Path) -> io::Result<()> {
    let (source, target) = (Folder::open_as(from, from)?, Folder::open_as(to, to)?);
    attributes::disinherit(&target.held)?;
    attributes::copy(&source.held, &source.held.metadata()?, &target.held)
}

/// Regular files that can share their blocks with a copy if one of them can.
#[derive(Debug, Default)]
pub(super) struct Alike {
    /// The bytes that they take up.
    pub(super) bytes: u64,
    /// The one that takes up the most, if any takes up room.
    pub(super) largest: Option<PathBuf>,
    /// The blocks of that one.
    pub(super) blocks: u64,
}

impl Alike {
    fn add(&mut self, found: &Metadata, path: PathBuf) {
        self.bytes = self.bytes.saturating_add(found.blocks().saturating_mul(512));
        if found.blocks() > self.blocks {
            (self.blocks, self.largest) = (found.blocks(), Some(path));
        }
    }
}

/// The size of a folder.
#[derive(Debug, Default)]
pub(super) struct Size {
    /// The bytes that its files and folders take up.
    pub(super) bytes: u64,
    /// How many files and folders there are, with itself; one with several names counts once.
    pub(super) entries: u64,
    /// Its regular files, and those of them that are marked as not to be copied on write.
    pub(super) alike: [Alike; 2],
    /// What has the set-user-ID or set-group-ID bit, if anything has.
    pub(super) sets_ids: Option<PathBuf>,
    /// A file that has capabilities of its own, if these are looked for and any has.
    pub(super) capable: Option<PathBuf>,
    /// The folder itself, and those in it that have an extended attribute which none before them has.
    pub(super) attributed: Vec<PathBuf>,
}

/// Measures a folder, which a service may be writing to. Refuses what a copy would refuse. `looks_closer`: whether the
/// capabilities of files are looked for.
pub(super) fn size(folder: &Path, looks_closer: bool) -> Result<Size, SnapshotError> {
    let mut seen = HashSet::new();
    let (mut names, mut attributed) = (BTreeSet::new(), Vec::new());
    let (mut alike, mut capable) = (<[Alike; 2]>::default(), None);
    let top = fs::symlink_metadata(folder).map_err(because("read", folder))?;
    let (mut bytes, mut entries_seen) = (top.blocks().saturating_mul(512), 1_u64);
    let device = top.dev();
    let mut sets_ids = (top.mode() & SET_IDS != 0).then(|| folder.to_owned());
    let mut left = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = left.pop() {
        if depth > MAX_DEPTH {
            return Err(too_deep(&folder));
        }
        let entries = match fs::read_dir(&folder) {
            // A service that runs may remove it in the meantime.
            Err(error) if depth > 0 && error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(because("read", &folder))?,
        };
        let known = names.len();
        names.extend(Held::of(&folder).and_then(|held| attributes::names(&held)).unwrap_or_default());
        if depth == 0 || names.len() > known {
            attributed.push(folder.clone());
        }
        let is_marked = attributes::is_never_shared(&folder);
        for entry in entries {
            let path = entry.map_err(because("read", &folder))?.path();
            let found = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found.map_err(because("read", &path))?,
            };
            if found.dev() != device {
                return Err(other_file_system(&path));
            }
            if sets_ids.is_none() && found.mode() & SET_IDS != 0 {
                sets_ids = Some(path.clone());
            }
            if looks_closer && capable.is_none() && found.is_file() && attributes::has_capabilities(&path) {
                capable = Some(path.clone());
            }
            if !found.is_dir() && found.nlink() > 1 && !seen.insert(found.ino()) {
                continue;
            }
            entries_seen += 1;
            bytes = bytes.saturating_add(found.blocks().saturating_mul(512));
            if found.is_dir() {
                left.push((path, depth + 1));
            } else if found.is_file() {
                let is_marked = is_marked || (found.blocks() >= LARGE && attributes::is_never_shared(&path));
                alike[usize::from(is_marked)].add(&found, path);
            }
        }
    }
    Ok(Size { bytes, entries: entries_seen, alike, sets_ids, capable, attributed })
}

fn too_deep(folder: &Path) -> SnapshotError {
    SnapshotError(format!("{} is too deep to be copied", folder.display()))
}

struct Copying<'a> {
    /// The file system.
    device: u64,
    /// The folder of the copy.
    root: PathBuf,
    /// The copies of files with several names, from the root.
    links: HashMap<u64, PathBuf>,
    /// Whether blocks can be shared, as far as tried.
    can_share: bool,
    /// Bytes copied so far.
    bytes: u64,
    /// Bytes written since the last sync, in all files.
    unsynced: u64,
    /// Lets the second file share the blocks of the first.
    clone: fn(&File, &File) -> rustix::io::Result<()>,
    range: Range,
    sync: fn(&File) -> rustix::io::Result<()>,
    report: &'a Report,
}

/// Copies bytes from one file to the same place in another, within the kernel. Returns how many.
type Range = fn(&File, &File, u64, usize) -> rustix::io::Result<usize>;

fn clone_file(source: &File, target: &File) -> rustix::io::Result<()> {
    rustix::fs::ioctl_ficlone(target, source)
}

fn copy_range(source: &File, target: &File, at: u64, wanted: usize) -> rustix::io::Result<usize> {
    let (mut from, mut to) = (at, at);
    rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), wanted)
}

/// Waits until everything on a file's file system is on the disk: the copy may consist of many small files.
fn sync_file_system(file: &File) -> rustix::io::Result<()> {
    rustix::fs::syncfs(file)
}

/// The same as [`copy_range`], where the kernel can't.
fn read_and_write(source: &File, target: &File, at: u64, wanted: usize) -> io::Result<usize> {
    let mut buffer = vec![0; wanted.min(BUFFER)];
    let read = source.read_at(&mut buffer, at)?;
    if read == 0 {
        return Err(shorter());
    }
    target.write_all_at(&buffer[..read], at)?;
    Ok(read)
}

/// The file that is copied ends before its size. The copy would end with zeros.
fn shorter() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than its size says")
}

impl<'a> Copying<'a> {
    fn new(device: u64, root: PathBuf, report: &'a Report) -> Self {
        Self {
            device,
            root,
            links: HashMap::new(),
            can_share: true,
            bytes: 0,
            unsynced: 0,
            clone: clone_file,
            range: copy_range,
            sync: sync_file_system,
            report,
        }
    }

    fn folder(&mut self, from: &Folder, to: &Folder, at: &Path, depth: usize) -> Result<(), SnapshotError> {
        if depth > MAX_DEPTH {
            return Err(too_deep(&from.path));
        }
        let entries = fs::read_dir(from.inside(OsStr::new(""))).map_err(because("read", &from.path))?;
        for entry in entries {
            let name = entry.map_err(because("read", &from.path))?.file_name();
            let shown = from.path.join(&name);
            self.report.check().map_err(because("copy", &shown))?;
            let source = Held::of(&from.inside(&name)).map_err(because("read", &shown))?;
            let seen = source.metadata().map_err(because("read", &shown))?;
            if seen.dev() != self.device {
                return Err(other_file_system(&shown));
            }
            let (kind, target) = (seen.file_type(), to.inside(&name));
            if kind.is_socket() {
                continue;
            }
            let (source, copied) = if kind.is_dir() {
                DirBuilder::new().mode(0o700).create(&target).map_err(because("copy", &shown))?;
                let source = Folder::of(source, &shown).map_err(because("open", &shown))?;
                let target = to.folder(&name)?;
                self.folder(&source, &target, &at.join(&name), depth + 1)?;
                (source.held, target.held)
            } else if let Some(first) = self.links.get(&seen.ino()).filter(|_| seen.nlink() > 1) {
                self.link(first, &target).map_err(because("link", &shown))?;
                continue;
            } else if kind.is_file() {
                let copied = self.file(&source, &seen, &target).map_err(because("copy", &shown))?;
                (source, copied)
            } else {
                let copied = special(&from.inside(&name), &seen, &target).map_err(because("copy", &shown))?;
                (source, copied)
            };
            if seen.nlink() > 1 && !kind.is_dir() {
                self.links.insert(seen.ino(), at.join(&name));
            }
            attributes::copy(&source, &seen, &copied).map_err(because("give its attributes to", &shown))?;
        }
        Ok(())
    }

    /// Gives the copy of a file, at this path from the root, one more name.
    fn link(&self, first: &Path, to: &Path) -> io::Result<()> {
        let (folder, name) = (first.parent().unwrap_or(first), first.file_name().unwrap_or_default());
        let folder = Held::below(&self.root, folder)?;
        fs::hard_link(folder.path().join(name), to)
    }

    fn file(&mut self, from: &Held, seen: &Metadata, to: &Path) -> io::Result<Held> {
        let source = from.to_read()?;
        let target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        if self.can_share {
            match (self.clone)(&source, &target) {
                Ok(()) => {
                    self.copied(seen.blocks().saturating_mul(512));
                    return Held::written(target);
                }
                // Not on this file system.
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::NOSYS) => self.can_share = false,
                // Not this file: it may be marked as not to be copied on write.
                Err(_) => {}
            }
        }
        self.data(&source, seen.len(), &target)?;
        Held::written(target)
    }

    /// Copies the data of a file, and leaves its holes out.
    fn data(&mut self, source: &File, length: u64, target: &File) -> io::Result<()> {
        target.set_len(length)?;
        let mut at = 0;
        while at < length {
            let begin = match rustix::fs::seek(source, SeekFrom::Data(at)) {
                Ok(begin) => begin,
                // The rest is a hole.
                Err(Errno::NXIO) if source.metadata()?.len() >= length => break,
                Err(Errno::NXIO) => return Err(shorter()),
                // The file system does not know its holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(error) => return Err(error.into()),
            };
            let end = rustix::fs::seek(source, SeekFrom::Hole(begin)).unwrap_or(length).min(length);
            at = end.max(begin + 1);
            self.segment(source, target, begin, end)?;
        }
        Ok(())
    }

    fn segment(&mut self, source: &File, target: &File, begin: u64, end: u64) -> io::Result<()> {
        let mut at = begin;
        while at < end {
            self.report.check()?;
            let wanted = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let copied = match (self.range)(source, target, at, wanted) {
                // Some kernels, and file systems of FUSE and the network, copy nothing although there is more.
                Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    read_and_write(source, target, at, wanted)?
                }
                Ok(copied) => copied,
                Err(error) => return Err(error.into()),
            };
            at += copied as u64;
            self.copied(copied as u64);
            self.unsynced += copied as u64;
            if self.unsynced >= UNSYNCED {
                (self.sync)(target)?;
                self.unsynced = 0;
            }
        }
        Ok(())
    }

    fn copied(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.report.progress.send_replace(self.bytes);
    }
}

/// Copies a symbolic link, a FIFO or a device.
fn special(from: &Path, seen: &Metadata, to: &Path) -> io::Result<Held> {
    let kind = seen.file_type();
    if kind.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from)?, to)?;
        return Held::of(to);
    }
    let node = if kind.is_fifo() {
        FileType::Fifo
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::CharacterDevice
    };
    rustix::fs::mknodat(CWD, to, node, Mode::from_raw_mode(0o600), seen.rdev())?;
    Held::of(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copying(report: &Report) -> Copying<'_> {
        Copying { can_share: false, ..Copying::new(0, PathBuf::new(), report) }
    }

    #[test]
    fn a_copy_that_the_kernel_ends_early_has_all_of_the_file() {
        let place = tempfile::tempdir().unwrap();
        let create = |name: &str| {
            let path = place.path().join(name);
            File::options().read(true).write(true).create_new(true).open(path).unwrap()
        };
        let (source, target, report) = (create("data"), create("copy"), Report::to_the_end());
        let data: Vec<u8> = (0..=u8::MAX).cycle().take(BUFFER + 7).collect();
        source.write_all_at(&data, 0).unwrap();
        let mut copying = copying(&report);
        copying.range =
            |source, target, at, _| if at == 0 { copy_range(source, target, 0, 3) } else { Ok(0) };
        let length = data.len() as u64;
        copying.data(&source, length, &target).unwrap();
        assert_eq!(fs::read(place.path().join("copy")).unwrap(), data);
        let error = copying.data(&source, length + 1, &target).unwrap_err().to_string();
        assert_eq!(error, "it is shorter than its size says");
        let error = copying.segment(&source, &target, length, length + 1).unwrap_err().to_string();
        assert_eq!(error, "it is shorter than its size says");
    }

    #[test]
    fn a_file_with_several_names_is_not_looked_for_behind_a_link() {
        let place = tempfile::tempdir().unwrap();
        let [root, outside] = ["root", "outside"].map(|name| place.path().join(name));
        for folder in [&root.join("inside"), &outside] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("file"), "x").unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let report = Report::to_the_end();
        let copying = Copying::new(0, root.clone(), &report);
        copying.link(Path::new("inside/file"), &root.join("one")).unwrap();
        let error = copying.link(Path::new("link/file"), &root.join("other")).unwrap_err().to_string();
        assert_eq!(error, "link in its path is a link by now, or no directory");
        assert_eq!(fs::metadata(outside.join("file")).unwrap().nlink(), 1);
    }

    /// Writes something else, so that a clone is told from a copy, and refuses a file of two bytes.
    fn clone_but_for_two_bytes(source: &File, target: &File, why: Errno) -> rustix::io::Result<()> {
        if source.metadata().expect("an open file").len() == 2 {
            return Err(why);
        }
        target.write_all_at(b"cloned", 0).expect("the target is written to");
        Ok(())
    }

    #[test]
    fn only_a_file_system_that_can_not_share_blocks_keeps_other_files_from_it() {
        let report = Report::to_the_end();
        let copies = |clone: fn(&File, &File) -> rustix::io::Result<()>| {
            let place = tempfile::tempdir().unwrap();
            let mut copying = Copying { can_share: true, clone, ..copying(&report) };
            ["1", "22", "333"].map(|content| {
                let (from, to) = (place.path().join(content), place.path().join(format!("{content} copy")));
                fs::write(&from, content).unwrap();
                let from = Held::of(&from).unwrap();
                copying.file(&from, &from.metadata().unwrap(), &to).unwrap();
                fs::read_to_string(to).unwrap()
            })
        };
        let of_one = |source: &File, target: &File| clone_but_for_two_bytes(source, target, Errno::INVAL);
        assert_eq!(copies(of_one), ["cloned", "22", "cloned"]);
        let of_all = |source: &File, target: &File| clone_but_for_two_bytes(source, target, Errno::OPNOTSUPP);
        assert_eq!(copies(of_all), ["cloned", "22", "333"]);
    }

    #[test]
    fn a_copy_never_leaves_much_that_is_not_on_the_disk_whatever_the_size_of_its_files() {
        let (source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let report = Report::to_the_end();
        let mut copying = copying(&report);
        copying.range = |_, _, _, wanted| Ok(wanted);
        // The length of the target counts the calls.
        copying.sync = |target| {
            target.set_len(target.metadata().unwrap().len() + 1).unwrap();
            Ok(())
        };
        let syncs = || target.metadata().unwrap().len();
        copying.segment(&source, &target, 0, 3 * UNSYNCED + 1).unwrap();
        assert_eq!(syncs(), 3);
        let small = UNSYNCED / 64;
        for _ in 0..64 {
            copying.segment(&source, &target, 0, small).unwrap();
        }
        assert_eq!(syncs(), 4);
    }
}
