//! What a copy of a folder would take, and what stands in its way.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags};

use super::copy::Alike;
use super::held::Held;
use super::mounts::{
    are_in_one_mount, check_no_mount_below, is_mounted_elsewhere, mount_points, mounts, without_volumes,
};
use super::{Free, Room, SnapshotError, attributes, because, copy, nearest};

/// What copies of other users' files take, by bit number (capabilities(7)).
const CAPABILITIES: [(u32, &str); 3] = [(0, "CAP_CHOWN"), (1, "CAP_DAC_OVERRIDE"), (3, "CAP_FOWNER")];
/// What copies of files and folders take that have the set-user-ID or set-group-ID bit.
const FOR_SET_IDS: [(u32, &str); 1] = [(4, "CAP_FSETID")];
/// What copies of files take that have capabilities of their own.
const FOR_CAPABLE: [(u32, &str); 1] = [(31, "CAP_SETFCAP")];

/// Those of these capabilities that a process lacks.
fn lacking(status: &str, needed: &[(u32, &'static str)]) -> Vec<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default();
    let lacks = |bit: u32| effective & (1 << bit) == 0;
    needed.iter().filter(|(bit, _)| lacks(*bit)).map(|(_, name)| *name).collect()
}

fn own_status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

fn check_rights() -> Result<(), SnapshotError> {
    let lacking = lacking(&own_status(), &CAPABILITIES);
    if lacking.is_empty() {
        return Ok(());
    }
    let what = format!("the agent may not copy the files of other users: it lacks {}", lacking.join(", "));
    Err(SnapshotError(what))
}

/// The folder itself, wherever links lead: a copy follows none.
pub(super) fn resolved(folder: &Path) -> Result<PathBuf, SnapshotError> {
    check_rights()?;
    match folder.canonicalize() {
        Ok(found) if found.is_dir() => Ok(found),
        _ => Err(unseen(folder)),
    }
}

fn unseen(folder: &Path) -> SnapshotError {
    SnapshotError(format!("{} is no directory that the agent can see", folder.display()))
}

/// Measures a folder, for a copy. `in_container`: whether the agent runs in a container.
pub(super) fn room(live: &Path, copy: &Path, in_container: bool) -> Result<Room, SnapshotError> {
    check_rights()?;
    if !live.is_dir() {
        return Err(unseen(live));
    }
    check_no_mount_below(live)?;
    let target = nearest(copy);
    let free = available(copy, in_container)?;
    let lacks_setfcap = !lacking(&own_status(), &FOR_CAPABLE).is_empty();
    let size = copy::size(live, lacks_setfcap)?;
    if let Some(file) = &size.capable {
        let file = file.display();
        return Err(SnapshotError(format!(
            "{file} has capabilities, which the agent may not give to a copy: it lacks CAP_SETFCAP"
        )));
    }
    check_owner(live, target)?;
    if let Some(path) = &size.sets_ids {
        check_may_set_ids(path, &own_status())?;
        check_set_ids(path, target)?;
    }
    for folder in &size.attributed {
        check_attributes(folder, target)?;
    }
    let unshared = unshared(&size.alike, |largest| shares_blocks(live, largest, target))?;
    let mounts = mounts();
    // What a container mounts is no longer mounted once it is stopped, except in the agent's own view.
    let staying = if in_container { mounts.clone() } else { without_volumes(&mounts) };
    let takes_place = device(target) == device(live)
        && are_in_one_mount(&mounts, live, target)
        && !is_mounted_elsewhere(&staying, live)
        && can_exchange(target);
    if takes_place {
        attributes::check_movable(live)?;
    } else {
        attributes::check_clearable(live)?;
    }
    Ok(Room {
        bytes: size.bytes,
        available: free.bytes,
        is_shared: unshared.is_some(),
        unshared: unshared.unwrap_or_default(),
        entries: size.entries,
        free_entries: free.entries,
        copies: if takes_place { 1 } else { 2 },
    })
}

/// How many bytes of regular files are written anew by a copy that shares the blocks of the others; `None` if none are shared.
/// `shares` tries it with a file.
fn unshared(
    all: &[Alike],
    shares: impl Fn(Option<&Path>) -> Result<bool, SnapshotError>,
) -> Result<Option<u64>, SnapshotError> {
    let (mut unshared, mut are_shared, mut is_tried) = (0_u64, false, false);
    for alike in all.iter().filter(|alike| alike.largest.is_some()) {
        is_tried = true;
        if shares(alike.largest.as_deref())? {
            are_shared = true;
        } else {
            unshared = unshared.saturating_add(alike.bytes);
        }
    }
    if !is_tried {
        are_shared = shares(None)?;
    }
    Ok(are_shared.then_some(unshared))
}

/// What is free where a copy goes.
pub(super) fn available(copy: &Path, in_container: bool) -> Result<Free, SnapshotError> {
    let target = nearest(copy);
    if in_container {
        check_mounted(&mounts(), target)?;
    }
    let seen = rustix::fs::statvfs(target).map_err(|error| because("measure", target)(error.into()))?;
    Ok(Free {
        bytes: seen.f_bavail.saturating_mul(seen.f_frsize),
        entries: (seen.f_files > 0).then_some(seen.f_favail),
    })
}

/// Tries whether the file system can exchange two names, which those of the network and older ZFS can't.
fn can_exchange(folder: &Path) -> bool {
    // Several services may be measured at once, for copies in the same folder.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let probes = ["c", "d"].map(|end| Probe(folder.join(probe_name(end))));
    let is_there = probes.iter().all(|probe| probe.create().is_ok());
    let [one, other] = &probes;
    is_there
        && rustix::fs::renameat_with(CWD, one.0.as_path(), CWD, other.0.as_path(), RenameFlags::EXCHANGE)
            .is_ok()
}

/// Without the capability, the kernel drops the set-group-ID bit of what belongs to a group that is not the agent's own.
fn check_may_set_ids(path: &Path, status: &str) -> Result<(), SnapshotError> {
    if lacking(status, &FOR_SET_IDS).is_empty() {
        return Ok(());
    }
    let path = path.display();
    Err(SnapshotError(format!(
        "{path} has the set-user-ID or set-group-ID bit, which the agent may not give to a copy: it lacks CAP_FSETID"
    )))
}

/// Tries whether a copy can have the set-group-ID bit, which the limits of the process may forbid, and which some file systems
/// drop.
fn check_set_ids(path: &Path, target: &Path) -> Result<(), SnapshotError> {
    let set = |file: &File| {
        file.set_permissions(Permissions::from_mode(0o2600))?;
        Ok(file.metadata()?.mode() & 0o7777 == 0o2600)
    };
    let Some(why) = not_kept(&target.join(probe_name("e")), set) else { return Ok(()) };
    Err(SnapshotError(format!(
        "{} has the set-user-ID or set-group-ID bit, which a copy in {} can't have: {why} (a systemd unit needs \
         RestrictSUIDSGID=no)",
        path.display(),
        target.display()
    )))
}

/// Tries whether a copy can have the owner of the data, which a server of NFS may refuse whatever the process may do.
fn check_owner(live: &Path, target: &Path) -> Result<(), SnapshotError> {
    let seen = fs::metadata(live).map_err(because("read", live))?;
    let owner = (seen.uid(), seen.gid());
    let set = |file: &File| {
        fchown(file, Some(owner.0), Some(owner.1))?;
        let found = file.metadata()?;
        Ok((found.uid(), found.gid()) == owner)
    };
    let Some(why) = not_kept(&target.join(probe_name("f")), set) else { return Ok(()) };
    Err(SnapshotError(format!(
        "a copy in {} can't have the owner of {}: {why} (an export of NFS needs no_root_squash)",
        target.display(),
        live.display()
    )))
}

/// Tries whether a copy can have the mode and the extended attributes of a folder: a file system may know no ACLs, or those of
/// another kind, and some refuse a mode whatever the process may do.
fn check_attributes(folder: &Path, target: &Path) -> Result<(), SnapshotError> {
    // As for an exchange.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let probe = Probe(target.join(probe_name("g")));
    match probe.create_folder().and_then(|()| copy::attributes_alone(folder, &probe.0)) {
        // A service that runs may remove it in the meantime.
        Err(error) if folder.is_dir() => Err(SnapshotError(format!(
            "a copy in {} can't have the mode and attributes of {}: {error}",
            target.display(),
            folder.display()
        ))),
        _ => Ok(()),
    }
}

/// Tries to give a file something. Returns why it does not have that then.
fn not_kept(probe: &Path, set: impl FnOnce(&File) -> io::Result<bool>) -> Option<String> {
    // As for an exchange.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let probe = Probe(probe.to_owned());
    match probe.create().and_then(|file| set(&file)) {
        Ok(true) => None,
        Ok(false) => Some("it is not kept there".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

fn device(folder: &Path) -> Option<u64> {
    fs::metadata(folder).map(|found| found.dev()).ok()
}

/// Refuses a folder that is in the file system of the agent's own container.
fn check_mounted(mounts: &str, folder: &Path) -> Result<(), SnapshotError> {
    if mount_points(mounts).any(|place| place != "/" && folder.starts_with(Path::new(&place))) {
        return Ok(());
    }
    Err(SnapshotError(format!(
        "{} is not mounted into the agent's container, so a copy there would be lost with the container; mount it at the same \
         path",
        folder.display()
    )))
}

/// Tries whether data can be copied by sharing its blocks, with its largest file: those of a database may be marked as
/// not to be copied on write, which a fresh file beside them is not. A copy has to be written, too.
fn shares_blocks(live: &Path, largest: Option<&Path>, target: &Path) -> Result<bool, SnapshotError> {
    let written = Probe(target.join(probe_name("b")));
    let to = written.create().map_err(because("write in", target))?;
    let shares =
        |from: &Path| Ok::<_, io::Error>(rustix::fs::ioctl_ficlone(&to, Held::of(from)?.to_read()?)?);
    if let Some(largest) = largest {
        return Ok(shares(largest).is_ok());
    }
    let Some(beside) = live.parent() else { return Ok(false) };
    if device(beside) != device(live) {
        return Ok(false);
    }
    let original = Probe(beside.join(probe_name("a")));
    let filled = original.create().and_then(|mut file| file.write_all(b"evenkeel"));
    Ok(filled.and_then(|()| shares(&original.0)).is_ok())
}

fn probe_name(end: &str) -> String {
    format!(".evenkeel-probe-{}-{end}", std::process::id())
}

/// A file, or an empty folder, that is removed when it is no longer needed.
struct Probe(PathBuf);

impl Probe {
    /// Creates a file anew. Others may write in its folder, and may have put a link in its place.
    fn create(&self) -> io::Result<File> {
        self.remove();
        File::options().write(true).create_new(true).mode(0o600).open(&self.0)
    }

    /// The same with a folder.
    fn create_folder(&self) -> io::Result<()> {
        self.remove();
        DirBuilder::new().mode(0o700).create(&self.0)
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.0).or_else(|_| fs::remove_dir(&self.0));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_may_not_do_is_named() {
        let with = |bits: &str| lacking(&format!("Name:\tx\nCapEff:\t{bits}\nSeccomp:\t2\n"), &CAPABILITIES);
        let all = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"];
        assert_eq!(with("000001ffffffffff"), [""; 0]);
        assert_eq!(with("0000000000000000"), all);
        assert_eq!(with("0000000000000019"), ["CAP_DAC_OVERRIDE"]);
        assert_eq!(with("000000000000000b"), [""; 0], "no data may have a bit that takes CAP_FSETID");
        assert_eq!(lacking("", &CAPABILITIES), all);
        assert_eq!(lacking("CapEff:\t000001ff7fffffff\n", &FOR_CAPABLE), ["CAP_SETFCAP"]);
        assert_eq!(lacking("CapEff:\t0000000080000000\n", &FOR_CAPABLE), [""; 0]);
        let may_set_ids =
            |bits: &str| check_may_set_ids(Path::new("/srv/data"), &format!("CapEff:\t{bits}\n"));
        assert_eq!(may_set_ids("0000000000000010"), Ok(()));
        let SnapshotError(error) = may_set_ids("000000000000000b").unwrap_err();
        assert!(
            error.starts_with("/srv/data has the set-user-ID") && error.ends_with("lacks CAP_FSETID"),
            "{error}"
        );
    }

    #[test]
    fn the_free_room_is_that_of_the_file_system_that_a_copy_goes_to() {
        let folder = tempfile::tempdir().unwrap();
        assert!(available(&folder.path().join("copies/one"), false).unwrap().bytes > 0);
        let none = Free { bytes: 0, entries: None };
        assert_eq!(available(Path::new("/proc/copies/one"), false), Ok(none));
    }

    #[test]
    fn a_link_in_the_place_of_the_probe_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (live, secret) = (folder.path().join("data"), folder.path().join("secret"));
        fs::create_dir(&live).unwrap();
        fs::write(&secret, "kept").unwrap();
        for end in ["a", "b", "c", "d", "e", "f", "g"] {
            std::os::unix::fs::symlink(&secret, folder.path().join(probe_name(end))).unwrap();
        }
        shares_blocks(&live, None, folder.path()).unwrap();
        can_exchange(folder.path());
        check_set_ids(&live, folder.path()).unwrap();
        check_owner(&live, folder.path()).unwrap();
        check_attributes(&live, folder.path()).unwrap();
        assert_eq!(fs::read_to_string(&secret).unwrap(), "kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the probes are removed");
    }

    #[test]
    fn room_is_needed_for_the_part_of_the_data_that_can_not_share_its_blocks() {
        let alike = |bytes: u64, name: &str| Alike {
            bytes,
            largest: (bytes > 0).then(|| name.into()),
            ..Alike::default()
        };
        let seen = |plain: u64, marked: u64, refused: &[&str]| {
            let shares = |largest: Option<&Path>| {
                let name = largest.map_or("probe", |largest| largest.to_str().unwrap());
                Ok(!refused.contains(&name))
            };
            unshared(&[alike(plain, "plain"), alike(marked, "marked")], shares).unwrap()
        };
        assert_eq!(seen(2 << 40, 5 << 30, &["marked"]), Some(5 << 30));
        assert_eq!(seen(2 << 40, 5 << 30, &[]), Some(0), "the copy goes to a folder that is marked, too");
        assert_eq!(seen(2 << 40, 0, &["marked"]), Some(0));
        assert_eq!(seen(0, 5 << 30, &["marked"]), None);
        assert_eq!(seen(1, 1, &["plain", "marked"]), None);
        assert_eq!((seen(0, 0, &[]), seen(0, 0, &["probe"])), (Some(0), None));
    }

    #[test]
    fn a_file_system_is_asked_whether_it_exchanges_names() {
        let folder = tempfile::tempdir().unwrap();
        assert!(can_exchange(folder.path()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the probes are removed");
        assert!(!can_exchange(Path::new("/proc")));
    }

    #[test]
    fn a_place_that_does_not_keep_the_set_group_id_bit_is_refused() {
        let SnapshotError(error) = check_set_ids(Path::new("/srv/data"), Path::new("/proc")).unwrap_err();
        assert!(error.starts_with("/srv/data has the set-user-ID or set-group-ID bit"), "{error}");
    }

    #[test]
    fn a_place_that_refuses_the_owner_of_the_data_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let SnapshotError(error) = check_owner(folder.path(), Path::new("/proc")).unwrap_err();
        assert!(error.starts_with("a copy in /proc can't have the owner of"), "{error}");
        // As an NFS server with `root_squash` does.
        let squashed = |_: &File| Err(io::Error::from(rustix::io::Errno::PERM));
        let probe = folder.path().join("probe");
        let why = not_kept(&probe, squashed).unwrap();
        assert!(why.starts_with("Operation not permitted"), "{why}");
        assert_eq!(not_kept(&probe, |_| Ok(false)).as_deref(), Some("it is not kept there"));
        assert_eq!(not_kept(&probe, |_| Ok(true)), None);
        assert!(!probe.exists());
    }

    #[test]
    fn a_copy_is_not_made_in_the_file_system_of_the_agents_own_container() {
        let mounts = "1 2 0:50 / / rw - overlay overlay rw\n3 1 8:1 /opt/web/up /opt/web/up rw - ext4 x rw\n4 1 8:1 /srv /srv rw - ext4 x rw";
        for (folder, expected) in [
            ("/srv", true),
            ("/srv/data", true),
            ("/opt/web/up", true),
            ("/opt/web", false),
            ("/srv2", false),
        ] {
            assert_eq!(check_mounted(mounts, Path::new(folder)).is_ok(), expected, "{folder}");
        }
        let SnapshotError(error) = check_mounted(mounts, Path::new("/opt/web")).unwrap_err();
        assert!(error.starts_with("/opt/web is not mounted into the agent's container"), "{error}");
    }
}
