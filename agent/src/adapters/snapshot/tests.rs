use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;

use rustix::fs::{AtFlags, CWD, FileType, IFlags, Mode, Timespec, Timestamps, XattrFlags};

use super::*;

/// The tests copy what they have made themselves, in a container, too.
const FOLDERS: FolderSnapshots = FolderSnapshots { in_container: false };

/// What tells one entry from another: kind, mode, owner, time, size, content, attributes, and the names of the same file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    facts: (u32, u32, u32, i64, i64, u64, u64),
    content: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    names: Vec<PathBuf>,
}

fn manifest(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let (mut all, mut left) = (BTreeMap::new(), vec![PathBuf::new()]);
    let mut inodes: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    while let Some(at) = left.pop() {
        let path = root.join(&at);
        let seen = fs::symlink_metadata(&path).unwrap();
        if seen.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| at.join(entry.unwrap().file_name())));
        } else {
            inodes.entry(seen.ino()).or_default().push(at.clone());
        }
        let content = if seen.is_file() {
            fs::read(&path).unwrap()
        } else if seen.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let mut list = vec![0; 4096];
        let length = rustix::fs::llistxattr(&path, &mut list).unwrap();
        let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let attribute = |name: &[u8]| {
            let mut value = vec![0; 4096];
            let length = rustix::fs::lgetxattr(&path, name, &mut value).unwrap();
            (name.to_vec(), value[..length].to_vec())
        };
        let size = if seen.is_dir() { 0 } else { seen.len() };
        let facts = (seen.mode(), seen.uid(), seen.gid(), seen.mtime(), seen.mtime_nsec(), size, seen.rdev());
        let attributes = names.map(attribute).collect();
        all.insert(at, Entry { facts, content, attributes, names: vec![seen.ino().to_string().into()] });
    }
    for names in inodes.into_values() {
        let mut names = names;
        names.sort();
        for name in &names {
            all.get_mut(name).unwrap().names.clone_from(&names);
        }
    }
    all.values_mut()
        .filter(|entry| entry.facts.0 & 0o170_000 == 0o040_000)
        .for_each(|entry| entry.names.clear());
    all
}

fn write_sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(64 * 1024 * 1024).unwrap();
    file.write_all_at(b"first island", 5 * 1024 * 1024).unwrap();
    file.write_all_at(b"second island", 40 * 1024 * 1024).unwrap();
}

/// Owners, mounts and devices need root.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("NOT RUN: it needs root");
    }
    is_root
}

/// An ACL: version 2; `user::rwx, user:33:r-x, group::r-x, mask::r-x, other::---`.
fn acl() -> Vec<u8> {
    let acl = [(1_u16, 7_u16, u32::MAX), (2, 5, 33), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)];
    let entry = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2_u32.to_le_bytes().to_vec(), acl.into_iter().flat_map(entry).collect()].concat()
}

/// Makes a folder with everything that a copy may get wrong.
fn make(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    for nth in 0..100_u32 {
        let path = root.join(format!("a/{nth}"));
        fs::write(&path, format!("content {nth}").repeat(nth as usize)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400 + nth % 8)).unwrap();
        chown(&path, Some(1000 + nth), Some(2000)).unwrap();
    }
    write_sparse(&root.join("a/b/sparse"));
    fs::write(root.join("a/b/linked"), "linked").unwrap();
    fs::hard_link(root.join("a/b/linked"), root.join("a/also linked")).unwrap();
    symlink("/nowhere", root.join("a/dangling")).unwrap();
    symlink("b/linked", root.join("a/link")).unwrap();
    rustix::fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    fs::write(root.join("new\nline"), "").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"not \xff utf-8")), "x").unwrap();
    fs::write(root.join("setuid"), "x").unwrap();
    chown(root.join("setuid"), Some(33), Some(33)).unwrap();
    fs::set_permissions(root.join("setuid"), fs::Permissions::from_mode(0o6755)).unwrap();
    rustix::fs::lsetxattr(root.join("setuid"), "user.note", b"\0kept", XattrFlags::empty()).unwrap();
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        rustix::fs::lsetxattr(root.join("a"), name, &acl(), XattrFlags::empty()).unwrap();
    }
    fs::write(root.join("a/inherits"), "x").unwrap();
    fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o2750)).unwrap();
    let times = |path: &str, seconds: i64| {
        let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, root.join(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    };
    for (nth, path) in ["a/link", "a/1", "a/b", "a", ""].into_iter().enumerate() {
        times(path, 1_000_000_000 + i64::try_from(nth).unwrap());
    }
}

fn place(root: &Path) -> Place {
    let [live, copy, aside] = ["live", "copies/one", "copies/aside"].map(|name| root.join(name));
    Place { live, copy, aside }
}

/// The copy as recorded before the machine was restarted, which has given its device another number since.
fn elsewhere(copied: Copied) -> Copied {
    let FolderId { device, inode } = copied.folder;
    Copied { folder: FolderId { device: device + 1, inode }, ..copied }
}

async fn copy(place: &Place) -> Result<Copied, SnapshotError> {
    FOLDERS.copy(place, &watch::Sender::new(0)).await
}

#[tokio::test]
async fn a_copy_is_faithful() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    make(&place.live);
    // What a run has left that was killed.
    fs::create_dir_all(folder.path().join("copies/one.partial/a")).unwrap();
    let before = manifest(&place.live);
    let copied = copy(&place).await.unwrap();
    assert_eq!(manifest(&place.copy), before);
    assert_eq!(manifest(&place.live), before, "the original is not touched");
    assert!(copied.bytes < 8 * 1024 * 1024, "holes take no room: {}", copied.bytes);
    assert_eq!(copy(&place).await.unwrap(), copied, "it is there already");
    let room = FOLDERS.measure(&place.live, &place.aside).await.unwrap();
    assert_eq!(room.bytes, copied.bytes);
    assert!(room.available > 0);
}

#[tokio::test]
async fn a_copy_that_is_begun_anew_does_not_meet_the_one_whose_caller_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    for nth in 0..20 {
        let inside = place.live.join(nth.to_string());
        fs::create_dir_all(&inside).unwrap();
        for nth in 0..100_u8 {
            fs::write(inside.join(nth.to_string()), vec![nth; 4096]).unwrap();
        }
    }
    for _ in 0..5 {
        let (sent, mut progress) = watch::channel(0);
        // The reload of a configuration drops what is going on.
        tokio::select! {
            biased;
            begun = progress.changed() => begun.unwrap(),
            copied = FOLDERS.copy(&place, &sent) => {
                copied.unwrap();
            }
        }
        copy(&place).await.unwrap();
        assert_eq!(manifest(&place.copy), manifest(&place.live));
        assert!(!partial(&place.copy).exists());
        FOLDERS.remove(&place.copy).await.unwrap();
    }
}

#[tokio::test]
async fn a_copy_that_nobody_waits_for_ends() {
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    fs::create_dir(&place.live).unwrap();
    fs::write(place.live.join("file"), "x").unwrap();
    let report = Report { is_abandoned: Arc::new(AtomicBool::new(true)), ..Report::to_the_end() };
    let error = copy::complete(&place.live, &place.copy, &report).unwrap_err().to_string();
    assert!(error.contains("nobody waits for the copy any more"), "{error}");
    assert!(!place.copy.exists());
}

#[tokio::test]
async fn sockets_are_left_out_and_what_is_missing_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    let error = copy(&place).await.unwrap_err().to_string();
    assert!(error.contains(&place.live.display().to_string()), "{error}");
    assert!(FOLDERS.measure(&place.live, &place.copy).await.is_err());
    fs::create_dir(&place.live).unwrap();
    let _socket = UnixListener::bind(place.live.join("socket")).unwrap();
    fs::write(place.live.join("file"), "x").unwrap();
    copy(&place).await.unwrap();
    assert!(!place.copy.join("socket").exists() && place.copy.join("file").exists());
}

#[tokio::test]
async fn a_copy_is_put_back_however_often_that_is_tried() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    make(&place.live);
    let before = manifest(&place.live);
    let copied = copy(&place).await.unwrap();
    fs::remove_dir_all(place.live.join("a")).unwrap();
    fs::write(place.live.join("spoiled"), "x").unwrap();
    let spoiled = manifest(&place.live);
    // After a restart of the machine, the device may have another number.
    for copied in [copied, elsewhere(copied)] {
        FOLDERS.restore(&place, &copied).await.unwrap();
        assert_eq!(manifest(&place.live), before);
        assert_eq!(manifest(&place.aside), spoiled, "the evidence is kept");
        assert!(!place.copy.exists(), "the copy is used up");
    }
    // Killed between the exchange and the name of what is set aside.
    for copied in [copied, elsewhere(copied)] {
        fs::rename(&place.aside, &place.copy).unwrap();
        FOLDERS.restore(&place, &copied).await.unwrap();
        assert_eq!((manifest(&place.live), manifest(&place.aside)), (before.clone(), spoiled.clone()));
    }
    FOLDERS.remove(&place.aside).await.unwrap();
    FOLDERS.remove(&place.aside).await.unwrap();
    assert!(!place.aside.exists() && place.live.exists());
    let other = Copied { folder: FolderId { device: 0, inode: 0 }, ..copied };
    let error = FOLDERS.restore(&place, &other).await.unwrap_err().to_string();
    assert!(error.contains("is gone"), "{error}");
}

#[tokio::test]
async fn of_what_is_in_the_root_only_a_copy_is_removed() {
    let gone = ["/.data.evenkeel-test-20260101T000000Z", "/.data.evenkeel-test-20260101T000000Z-set-aside"];
    for copy in gone.map(Path::new) {
        FOLDERS.remove(copy).await.unwrap();
    }
    for other in
        ["/", "/etc-of-no-machine", "/.data-of-no-machine", "evenkeel-snapshots/one", ""].map(Path::new)
    {
        let error = FOLDERS.remove(other).await.unwrap_err().to_string();
        assert!(error.ends_with("is not removed: it is no copy"), "{error}");
    }
}

#[tokio::test]
async fn what_was_put_back_is_undone_however_far_it_had_come() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    make(&place.live);
    let earlier = manifest(&place.live);
    let copied = copy(&place).await.unwrap();
    fs::write(place.live.join("newer"), "x").unwrap();
    let of_now = manifest(&place.live);
    let rename = |from: &Path, to: &Path| fs::rename(from, to).unwrap();
    let kills: [&dyn Fn(); 3] = [
        &|| {},
        // Between the exchange and the name of what is set aside.
        &|| rename(&place.aside, &place.copy),
        // In the undoing, between the exchange and the name of the copy.
        &|| {
            rename(&place.live, &folder.path().join("other"));
            rename(&place.aside, &place.live);
            rename(&folder.path().join("other"), &place.aside);
        },
    ];
    let restarted = [copied, elsewhere(copied)];
    for (kill, copied) in kills.iter().flat_map(|kill| restarted.map(|copied| (kill, copied))) {
        FOLDERS.undo(&place, &copied).await.unwrap();
        assert_eq!(manifest(&place.live), of_now, "not begun");
        FOLDERS.restore(&place, &copied).await.unwrap();
        assert_eq!(manifest(&place.live), earlier);
        kill();
        for _ in 0..2 {
            FOLDERS.undo(&place, &copied).await.unwrap();
            assert_eq!(manifest(&place.live), of_now);
            assert_eq!(manifest(&place.copy), earlier);
            assert!(!place.aside.exists());
        }
    }
    // Somebody has removed the copy: nothing can have begun.
    FOLDERS.remove(&place.copy).await.unwrap();
    assert!(FOLDERS.restore(&place, &copied).await.is_err());
    FOLDERS.undo(&place, &copied).await.unwrap();
    assert_eq!(manifest(&place.live), of_now);
}

/// A bind mount that is removed with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn at(folder: &Path, what: &Path) -> Self {
        rustix::mount::mount_bind(what, folder).unwrap();
        Self(folder.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Makes data whose directory is a mount point of `below`.
fn mounted(folder: &Path) -> (Place, Mounted) {
    let place = place(folder);
    let below = folder.join("below");
    make(&below);
    fs::create_dir(&place.live).expect("a folder of its own");
    let mounted = Mounted::at(&place.live, &below);
    (place, mounted)
}

#[tokio::test]
async fn data_that_can_not_be_exchanged_is_copied_back() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (place, _mounted) = mounted(folder.path());
    let before = manifest(&place.live);
    let copied = copy(&place).await.unwrap();
    fs::remove_dir_all(place.live.join("a")).unwrap();
    // What is put back must not inherit it.
    rustix::fs::lsetxattr(&place.live, "system.posix_acl_default", &acl(), XattrFlags::empty()).unwrap();
    let spoiled = manifest(&place.live);
    for _ in 0..2 {
        FOLDERS.restore(&place, &copied).await.unwrap();
        assert_eq!(manifest(&place.live), before);
        assert_eq!(manifest(&place.aside), spoiled);
        // Killed in the middle.
        fs::remove_file(place.live.join("setuid")).unwrap();
    }
    for copied in [elsewhere(copied), copied] {
        FOLDERS.undo(&place, &copied).await.unwrap();
        assert_eq!(manifest(&place.live), spoiled);
        assert_eq!(manifest(&place.copy), before);
        assert!(!place.aside.exists(), "it is used up");
    }
    // Killed while what was set aside was being removed.
    fs::write(place.live.join("newer"), "x").unwrap();
    let newer = manifest(&place.live);
    fs::create_dir(partial(&place.aside)).unwrap();
    FOLDERS.undo(&place, &copied).await.unwrap();
    assert_eq!(manifest(&place.live), newer, "nothing is left to be undone");
    assert!(!partial(&place.aside).exists());
    // It can't be set aside.
    fs::create_dir(place.live.join("inside")).unwrap();
    let _inside = Mounted::at(&place.live.join("inside"), Path::new("/proc"));
    assert!(FOLDERS.restore(&place, &copied).await.is_err());
    assert!(!partial(&place.aside).exists(), "what there is of it takes up room");
    assert_eq!(manifest(&place.copy), before);
}

/// What can't be removed or renamed until the test ends.
struct Fixed(File);

impl Fixed {
    /// Needs a capability that containers lack, and a file system that knows it.
    fn set(path: &Path) -> Option<Self> {
        let file = File::open(path).unwrap();
        let flags = rustix::fs::ioctl_getflags(&file).unwrap_or(IFlags::empty());
        let is_set = rustix::fs::ioctl_setflags(&file, flags | IFlags::IMMUTABLE).is_ok();
        if !is_set {
            println!("NOT RUN: nothing can be made immutable here");
        }
        is_set.then_some(Self(file))
    }
}

impl Drop for Fixed {
    fn drop(&mut self) {
        let flags = rustix::fs::ioctl_getflags(&self.0).unwrap_or(IFlags::empty());
        let _ = rustix::fs::ioctl_setflags(&self.0, flags - IFlags::IMMUTABLE);
    }
}

#[tokio::test]
async fn data_that_can_not_be_put_back_is_refused_and_left_as_it_is() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (place, mounted) = mounted(folder.path());
    let below = folder.path().join("below");
    let copied = copy(&place).await.unwrap();
    fs::write(place.live.join("spoiled"), "x").unwrap();
    let spoiled = manifest(&place.live);
    let Some(fixed) = Fixed::set(&place.live.join("a/1")) else { return };
    let refused = FOLDERS.measure(&place.live, &place.aside).await.unwrap_err();
    assert!(refused.0.contains("live/a/1 can't be removed or renamed"), "{refused}");
    assert_eq!(FOLDERS.restore(&place, &copied).await.unwrap_err(), refused);
    assert!(!place.aside.exists(), "nothing has begun");
    FOLDERS.undo(&place, &copied).await.unwrap();
    assert_eq!(manifest(&place.live), spoiled);
    drop(mounted);
    assert_eq!(FOLDERS.measure(&below, &place.aside).await.unwrap().copies, 1, "it is exchanged");
    drop(fixed);
    let _fixed = Fixed::set(&below).unwrap();
    let refused = FOLDERS.measure(&below, &place.aside).await.unwrap_err();
    assert!(refused.0.contains("below can't be removed or renamed"), "{refused}");
}

#[tokio::test]
async fn what_is_put_back_is_seen_wherever_the_folder_is_mounted() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    let alias = folder.path().join("alias");
    fs::create_dir(&alias).unwrap();
    fs::create_dir(&place.live).unwrap();
    fs::write(place.live.join("file"), "x").unwrap();
    let _mounted = Mounted::at(&alias, &place.live);
    assert_eq!(FOLDERS.measure(&place.live, &place.copy).await.unwrap().copies, 2);
    let before = manifest(&place.live);
    let copied = copy(&place).await.unwrap();
    fs::write(place.live.join("spoiled"), "x").unwrap();
    let spoiled = manifest(&place.live);
    FOLDERS.restore(&place, &copied).await.unwrap();
    assert_eq!((manifest(&place.live), manifest(&alias)), (before.clone(), before));
    assert_eq!(manifest(&place.aside), spoiled);
    FOLDERS.undo(&place, &copied).await.unwrap();
    assert_eq!((manifest(&place.live), manifest(&alias)), (spoiled.clone(), spoiled));
}

#[tokio::test]
async fn what_can_not_be_exchanged_needs_room_for_two_copies() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    fs::create_dir_all(folder.path().join("below")).unwrap();
    fs::create_dir(&place.live).unwrap();
    let copies =
        |place: Place| async move { FOLDERS.measure(&place.live, &place.copy).await.unwrap().copies };
    assert_eq!(copies(place.clone()).await, 1);
    // A bind mount has the same device.
    let mounted = Mounted::at(&place.live, &folder.path().join("below"));
    assert_eq!(copies(place.clone()).await, 2);
    drop(mounted);
    let other = Place { copy: "/proc/copies/one".into(), ..place.clone() };
    assert!(FOLDERS.measure(&other.live, &other.copy).await.is_err(), "nothing can be written there");
}

#[tokio::test]
async fn what_a_copy_would_refuse_is_refused_when_it_is_measured() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    fs::create_dir_all(place.live.join("a/inside")).unwrap();
    let mounted = Mounted::at(&place.live.join("a/inside"), Path::new("/proc"));
    let measured = FOLDERS.measure(&place.live, &place.copy).await.unwrap_err();
    assert_eq!(measured, copy(&place).await.unwrap_err());
    assert!(measured.0.contains("a/inside is another file system"), "{measured}");
    drop(mounted);
    let mut deep = place.live.join("a");
    for _ in 0..250 {
        deep.push("d");
    }
    fs::create_dir_all(deep).unwrap();
    let measured = FOLDERS.measure(&place.live, &place.copy).await.unwrap_err();
    assert_eq!(measured, copy(&place).await.unwrap_err());
    assert!(measured.0.ends_with("is too deep to be copied"), "{measured}");
    // A folder that can't be filled to the end does not stay the agent's.
    let filled = folder.path().join("filled");
    fs::create_dir(&filled).unwrap();
    chown(&place.live, Some(1000), Some(2000)).unwrap();
    fs::set_permissions(&place.live, fs::Permissions::from_mode(0o750)).unwrap();
    assert!(exchange::fill(&place.live, &filled).unwrap_err().0.ends_with("is too deep to be copied"));
    let owner_and_mode = |folder: &Path| {
        let seen = fs::metadata(folder).unwrap();
        (seen.uid(), seen.gid(), seen.mode() & 0o7777)
    };
    assert_eq!(owner_and_mode(&filled), (1000, 2000, 0o750));
}

#[tokio::test]
async fn attributes_that_a_copy_can_not_have_are_refused_when_they_are_measured() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    let (copies, inside) = (folder.path().join("copies"), place.live.join("a/inside"));
    for created in [&copies, &inside] {
        fs::create_dir_all(created).unwrap();
    }
    // It knows no attributes.
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &copies, "ramfs", flags, None::<&std::ffi::CStr>).unwrap();
    let _mounted = Mounted(copies.clone());
    assert_eq!(FOLDERS.measure(&place.live, &place.copy).await.unwrap().copies, 2);
    for with_acl in [&inside, &place.live] {
        rustix::fs::lsetxattr(with_acl, "system.posix_acl_default", &acl(), XattrFlags::empty()).unwrap();
        let refused = FOLDERS.measure(&place.live, &place.copy).await.unwrap_err().to_string();
        let expected = format!("can't have the mode and attributes of {}: ", with_acl.display());
        assert!(refused.contains(&expected), "{refused}");
        assert_eq!(fs::read_dir(&copies).unwrap().count(), 0, "the probes are removed");
        let error = copy(&place).await.unwrap_err().to_string();
        assert_eq!(error.rsplit(": ").next(), refused.rsplit(": ").next(), "the copy would have failed");
        FOLDERS.remove(&place.copy).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_mounted_inside_the_data_is_neither_copied_nor_removed_with_it() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (place(&folder.path().join("one")), place(&folder.path().join("two")));
    let (photos, below) = (folder.path().join("photos"), folder.path().join("below"));
    for created in [&one.live.join("inside"), &two.live, &photos, &below.join("inside")] {
        fs::create_dir_all(created).unwrap();
    }
    fs::write(photos.join("photo"), "x").unwrap();
    let has_photo = || photos.join("photo").exists();
    let copied = copy(&one).await.unwrap();
    // A bind mount has the same device.
    let mut mounted = Mounted::at(&one.live.join("inside"), &photos);
    let other = Place { copy: folder.path().join("one/copies/other"), ..one.clone() };
    let measured = FOLDERS.measure(&other.live, &other.copy).await.unwrap_err();
    assert!(measured.0.ends_with("live/inside is another file system, which is not copied"), "{measured}");
    assert_eq!(copy(&other).await.unwrap_err(), measured);
    // It was mounted after the copy was made, and is renamed with the data.
    FOLDERS.restore(&one, &copied).await.unwrap();
    mounted.0 = one.aside.join("inside");
    let error = FOLDERS.remove(&one.aside).await.unwrap_err().to_string();
    assert!(error.contains("is not removed, because something is mounted on"), "{error}");
    assert!(has_photo());
    // The data can't be exchanged, and is set aside already.
    let _live = Mounted::at(&two.live, &below);
    let copied = copy(&two).await.unwrap();
    fs::create_dir(&two.aside).unwrap();
    let _inside = Mounted::at(&two.live.join("inside"), &photos);
    let error = FOLDERS.restore(&two, &copied).await.unwrap_err().to_string();
    assert!(error.contains("is not removed, because something is mounted on"), "{error}");
    assert!(has_photo());
}

#[tokio::test]
async fn a_folder_is_resolved_before_it_is_copied() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    let link = folder.path().join("link");
    fs::create_dir(&place.live).unwrap();
    symlink(&place.live, &link).unwrap();
    let resolved = FOLDERS.resolve(&link).await.unwrap();
    assert_eq!(resolved, place.live.canonicalize().unwrap());
    copy(&Place { live: resolved, ..place.clone() }).await.unwrap();
    for other in ["file", "gone"] {
        fs::write(folder.path().join("file"), "x").unwrap();
        let error = FOLDERS.resolve(&folder.path().join(other)).await.unwrap_err();
        assert!(error.0.ends_with("is no directory that the agent can see"), "{error}");
    }
}

#[test]
fn a_folder_that_is_being_filled_is_nobody_elses() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    chown(folder.path(), Some(1000), Some(1000)).unwrap();
    attributes::disinherit(&held::Held::of(folder.path()).unwrap()).unwrap();
    let seen = fs::metadata(folder.path()).unwrap();
    assert_eq!((seen.uid(), seen.mode() & 0o7777), (0, 0o700));
}

#[test]
fn what_takes_rights_of_its_own_is_found_when_it_is_measured() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let seen = |looks_closer: bool| {
        let size = copy::size(folder.path(), looks_closer).unwrap();
        (size.sets_ids, size.capable)
    };
    assert_eq!(seen(true), (None, None));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o2755)).unwrap();
    // Version 2, effective: CAP_NET_BIND_SERVICE.
    let capability = [0x0200_0001_u32, 1 << 10, 0, 0, 0].map(u32::to_le_bytes).concat();
    rustix::fs::lsetxattr(&file, "security.capability", &capability, XattrFlags::empty()).unwrap();
    assert_eq!(seen(false), (Some(file.clone()), None));
    assert_eq!(seen(true), (Some(file.clone()), Some(file.clone())));
    fs::remove_file(&file).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o2700)).unwrap();
    assert_eq!(seen(true), (Some(folder.path().to_owned()), None), "the folder itself");
}

#[test]
fn files_and_folders_are_counted_once_whatever_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let entries = || copy::size(folder.path(), false).unwrap().entries;
    assert_eq!(entries(), 1, "itself");
    fs::create_dir(folder.path().join("a")).unwrap();
    fs::write(folder.path().join("a/file"), "x").unwrap();
    fs::hard_link(folder.path().join("a/file"), folder.path().join("other name")).unwrap();
    symlink("nowhere", folder.path().join("link")).unwrap();
    assert_eq!(entries(), 4);
    let blocks = fs::symlink_metadata(folder.path().join("a")).unwrap().blocks();
    assert!(copy::size(&folder.path().join("a"), false).unwrap().bytes >= blocks * 512);
}

#[test]
fn blocks_are_tried_to_be_shared_with_the_largest_file() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("a/large");
    let largest = || {
        let [plain, marked] = copy::size(folder.path(), true).unwrap().alike;
        assert_eq!(marked.largest, None);
        plain.largest
    };
    assert_eq!(largest(), None);
    fs::create_dir(folder.path().join("a")).unwrap();
    write_sparse(&folder.path().join("holes take no room"));
    fs::write(&large, vec![1; 1 << 20]).unwrap();
    fs::write(folder.path().join("small"), vec![1; 1 << 10]).unwrap();
    assert_eq!(largest(), Some(large));
}
