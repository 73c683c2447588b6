//! Finds out whether users other than root and the user of this process can change or replace a file. Files that root runs,
//! reads or writes must not be under the control of other users.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use crate::config::quote;
use crate::hanging::hangs;

const WRITABLE_BY_ALL: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;
/// The number of links that the kernel follows.
const MAX_LINKS: usize = 40;

/// Returns why other users can change or replace the file at the absolute `path`, one message per weakness. Empty if they
/// cannot. The file itself need not exist.
///
/// - The file is weak if it is writable by everyone, or by its group, unless that is the owner's own: where every user has a
///   group of that kind, the usual umask lets it write.
/// - A folder on the path is weak if it is world-writable. In a folder with the sticky bit (`/tmp`) only the owner of an
///   entry can replace it: entries of root and of this user are safe, entries of other users are not, and an entry that
///   does not exist yet can be created by anyone.
/// - Symlinks are followed, and the path to their target is checked as well.
/// - The *owner* of a folder on the path is not checked: users who keep compose files in their home are trusted with them.
/// - Of a path that hangs nothing is known.
pub fn weaknesses(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    if hangs(path) {
        return found;
    }
    let mut rest: VecDeque<OsString> = names(path).collect();
    let (mut folder, mut links) = (PathBuf::from("/"), 0);
    // Metadata of `folder`, if it is already known from the previous component.
    let mut folder_metadata = None;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            folder.pop();
            folder_metadata = None;
            continue;
        }
        let entry = folder.join(&name);
        let metadata = fs::symlink_metadata(&entry);
        folder_metadata = folder_metadata.or_else(|| fs::metadata(&folder).ok());
        if let Some(folder_metadata) = &folder_metadata
            && let Some(weakness) = weak_folder(&folder, folder_metadata, &entry, metadata.as_ref().ok())
            && !found.contains(&weakness)
        {
            found.push(weakness);
        }
        let Ok(metadata) = metadata else { return found };
        if metadata.is_symlink() {
            links += 1;
            let Ok(target) = fs::read_link(&entry) else { return found };
            if links > MAX_LINKS {
                return found;
            }
            if target.is_absolute() {
                folder = PathBuf::from("/");
                folder_metadata = None;
            }
            let ahead: Vec<_> = names(&target).collect();
            for name in ahead.into_iter().rev() {
                rest.push_front(name);
            }
            continue;
        }
        if rest.is_empty() && metadata.is_file() && is_writable_by_others(&metadata) {
            found.push(format!(
                "{} is writable by users other than its owner (mode {})",
                display(&entry),
                mode(&metadata)
            ));
        }
        (folder, folder_metadata) = (entry, Some(metadata));
    }
    // If the path is a folder, others could put files into it.
    if let Ok(metadata) = fs::symlink_metadata(&folder)
        && metadata.is_dir()
        && metadata.mode() & WRITABLE_BY_ALL != 0
    {
        found.push(format!("the folder {} is world-writable (mode {})", display(&folder), mode(&metadata)));
    }
    found
}

fn is_writable_by_others(metadata: &Metadata) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let is_own_group =
        || is_own_group(metadata.uid(), metadata.gid(), &read("/etc/passwd"), &read("/etc/group"));
    metadata.mode() & WRITABLE_BY_ALL != 0 || metadata.mode() & WRITABLE_BY_GROUP != 0 && !is_own_group()
}

/// Reports whether a group is a user's own: it has the same number, as `useradd` gives it, and nobody else is in it. `passwd`,
/// `groups`: the files in `/etc`. Of a user or a group that they do not list, it is not known who is in it.
fn is_own_group(user: u32, group: u32, passwd: &str, groups: &str) -> bool {
    let number = |field: Option<&str>| field.and_then(|text| text.parse::<u32>().ok());
    let accounts = || passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let account = accounts().find(|of| number(of.get(2).copied()) == Some(user));
    let Some(name) = account.map(|of| of[0].to_owned()) else { return false };
    let is_primary_of_another = accounts()
        .any(|of| number(of.get(3).copied()) == Some(group) && number(of.get(2).copied()) != Some(user));
    let mut entries = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let Some(entry) = entries.find(|of| number(of.get(2).copied()) == Some(group)) else { return false };
    let members = entry.get(3).copied().unwrap_or_default();
    let mut members = members.split(',').map(str::trim).filter(|member| !member.is_empty());
    user == group && !is_primary_of_another && members.all(|member| member == name)
}

/// Returns why any user can replace `entry` in `folder`.
fn weak_folder(
    folder: &Path,
    metadata: &Metadata,
    entry: &Path,
    entry_metadata: Option<&Metadata>,
) -> Option<String> {
    if metadata.mode() & WRITABLE_BY_ALL == 0 {
        return None;
    }
    let place = format!("the folder {} is world-writable (mode {})", display(folder), mode(metadata));
    if metadata.mode() & STICKY == 0 {
        return Some(place);
    }
    let ours =
        |metadata: &Metadata| metadata.uid() == 0 || metadata.uid() == rustix::process::geteuid().as_raw();
    match entry_metadata {
        Some(entry) if ours(entry) && ours(metadata) => None,
        Some(owned) => Some(format!("{place} and {} in it belongs to user {}", display(entry), owned.uid())),
        None => Some(format!("{place} and {} does not exist yet", display(entry))),
    }
}

fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

fn display(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

fn mode(metadata: &Metadata) -> String {
    format!("{:04o}", metadata.permissions().mode() & 0o7777)
}

/// Reports whether root without capabilities can't read a file: not as its owner, not as its group, and not as others.
pub fn is_private(path: &Path) -> bool {
    is_closed(path, 0o4)
}

/// Reports whether root without capabilities can't connect to a socket, for example because it lies in a folder that only another
/// user may enter.
pub fn is_private_socket(path: &Path) -> bool {
    is_closed(path, 0o2)
}

/// Reports whether root without capabilities lacks this permission for a file, or may not enter a folder on the way.
fn is_closed(path: &Path, bit: u32) -> bool {
    let may = |path: &Path, bit: u32| {
        path.metadata().is_ok_and(|about| {
            let mode = about.mode();
            let owner = about.uid() == 0 && mode & (bit << 6) != 0;
            let group = about.gid() == 0 && mode & (bit << 3) != 0;
            owner || group || mode & bit != 0
        })
    };
    path.exists() && !(may(path, bit) && path.ancestors().skip(1).all(|folder| may(folder, 0o1)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder that only its owner can write to, regardless of the umask.
    fn safe_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        chmod(folder.path(), 0o755);
        folder
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn file(path: &Path, mode: u32) {
        fs::write(path, "").unwrap();
        chmod(path, mode);
    }

    #[test]
    fn a_socket_is_private_if_root_may_not_write_to_it() {
        let folder = safe_folder();
        let path = folder.path().join("engine.sock");
        file(&path, 0o444);
        assert!(is_private_socket(&path));
        assert!(!is_private_socket(Path::new("/dev/null")));
        assert!(!is_private_socket(&folder.path().join("none")));
    }

    #[test]
    fn a_group_is_a_users_own_if_nobody_else_is_in_it() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n";
        let group = "root:x:0:\nann:x:1000:\nbob:x:1001:ann\nstaff:x:50:\n";
        for (user, of, is_own) in [
            (0, 0, true),
            (1000, 1000, true),
            // Ann may write, too.
            (1001, 1001, false),
            (1000, 50, false),
            // Of a machine whose users are not listed here, as in a container.
            (1234, 1234, false),
        ] {
            assert_eq!(is_own_group(user, of, passwd, group), is_own, "{user}:{of}");
        }
        let shared = passwd.replace("bob:x:1001:1001", "bob:x:1001:1000");
        assert!(!is_own_group(1000, 1000, &shared, group), "it is bob's primary group");
        assert!(is_own_group(1000, 1000, passwd, "ann:x:1000:ann\n"), "its user may be listed");
        assert!(!is_own_group(1000, 1000, "", group) && !is_own_group(1000, 1000, passwd, "broken\n:::"));
    }

    #[test]
    #[ignore = "needs root"]
    fn a_file_that_another_group_can_write_to_is_weak() {
        let folder = safe_folder();
        let path = folder.path().join("f");
        file(&path, 0o664);
        assert_eq!(weaknesses(&path), Vec::<String>::new(), "root's own group");
        std::os::unix::fs::chown(&path, None, Some(65534)).unwrap();
        let expected = format!("{path:?} is writable by users other than its owner (mode 0664)");
        assert_eq!(weaknesses(&path), [expected]);
    }

    #[test]
    fn a_file_is_weak_if_others_can_write_to_it() {
        let folder = safe_folder();
        let path = folder.path().join("f");
        for (mode, weak) in [(0o600, false), (0o644, false), (0o646, true), (0o666, true)] {
            file(&path, mode);
            let expected = format!("{path:?} is writable by users other than its owner (mode {mode:04o})");
            assert_eq!(weaknesses(&path), if weak { vec![expected] } else { vec![] }, "{mode:o}");
        }
    }

    #[test]
    fn any_world_writable_folder_on_the_path_is_weak() {
        let folder = safe_folder();
        let inner = folder.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        for path in [&folder.path().join("a"), &inner] {
            chmod(path, 0o755);
        }
        let path = inner.join("f");
        file(&path, 0o644);
        assert_eq!(weaknesses(&path), Vec::<String>::new());
        chmod(&folder.path().join("a"), 0o777);
        let expected = format!("the folder {:?} is world-writable (mode 0777)", folder.path().join("a"));
        assert_eq!(weaknesses(&path), std::slice::from_ref(&expected));
        assert_eq!(weaknesses(&inner.join("none")), [expected], "even for a file that does not exist yet");
        chmod(&inner, 0o777);
        assert_eq!(weaknesses(&inner).len(), 2, "a folder at the end is checked as well");
    }

    #[test]
    fn the_sticky_bit_protects_existing_entries_of_ours() {
        let folder = safe_folder();
        chmod(folder.path(), 0o1777);
        let path = folder.path().join("f");
        let text = weaknesses(&path);
        assert!(text.len() == 1 && text[0].ends_with("does not exist yet"), "{text:?}");
        file(&path, 0o644);
        assert_eq!(weaknesses(&path), Vec::<String>::new());
        assert_eq!(weaknesses(Path::new("/tmp")).len(), 1, "weak as a folder to put files into");
    }

    #[test]
    #[ignore = "needs root"]
    fn the_sticky_bit_does_not_protect_entries_of_another_user() {
        let folder = safe_folder();
        chmod(folder.path(), 0o1777);
        let path = folder.path().join("f");
        file(&path, 0o644);
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let text = weaknesses(&path);
        assert!(text.len() == 1 && text[0].ends_with("in it belongs to user 65534"), "{text:?}");
    }

    #[test]
    fn the_path_behind_a_symlink_is_checked_too() {
        let (near, far) = (safe_folder(), safe_folder());
        let open = far.path().join("open");
        fs::create_dir(&open).unwrap();
        chmod(&open, 0o777);
        file(&open.join("f"), 0o644);
        for target in [open.clone(), Path::new("../").join(open.strip_prefix("/tmp").unwrap_or(&open))] {
            let link = near.path().join("link");
            let _ = fs::remove_file(&link);
            symlink(&target, &link).unwrap();
            let expected = format!("the folder {open:?} is world-writable (mode 0777)");
            assert_eq!(weaknesses(&link.join("f")), [expected], "{target:?}");
        }
        symlink("loop", near.path().join("loop")).unwrap();
        assert_eq!(weaknesses(&near.path().join("loop/f")), Vec::<String>::new());
    }
}
