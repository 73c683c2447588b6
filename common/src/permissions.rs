//! Who besides root and the user of this process can change or replace a file: what root runs, reads or writes must not
//! be anybody's.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use crate::config::quote;

const WRITABLE_BY_ALL: u32 = 0o002;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// Why others can change the file at `path` (absolute) or put another in its place: one reason a weak place, in words.
/// Empty where nobody can. The file itself need not exist.
///
/// - The file counts as weak when its group or everybody may write it.
/// - A folder on the way counts as weak when everybody may write it. In one with the sticky bit (`/tmp`) only the owner
///   of an entry can replace it: there an entry of root's or of this user's is safe, one of somebody else's is not, and
///   one that does not exist yet can be made by anybody.
/// - Links are followed, and the way to what they lead to is looked at as well.
/// - Who *owns* a folder on the way is not judged: a person who keeps compose files at home is trusted with them.
pub fn weaknesses(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest: VecDeque<OsString> = names(path).collect();
    let (mut folder, mut links) = (PathBuf::from("/"), 0);
    // What is known of `folder`: it was looked at when the way led into it.
    let mut about_folder = None;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            folder.pop();
            about_folder = None;
            continue;
        }
        let entry = folder.join(&name);
        let about = fs::symlink_metadata(&entry);
        about_folder = about_folder.or_else(|| fs::metadata(&folder).ok());
        if let Some(about_folder) = &about_folder
            && let Some(weakness) = weak_folder(&folder, about_folder, &entry, about.as_ref().ok())
            && !found.contains(&weakness)
        {
            found.push(weakness);
        }
        let Ok(about) = about else { return found };
        if about.is_symlink() {
            links += 1;
            let Ok(target) = fs::read_link(&entry) else { return found };
            if links > MOST_LINKS {
                return found;
            }
            if target.is_absolute() {
                folder = PathBuf::from("/");
                about_folder = None;
            }
            let ahead: Vec<_> = names(&target).collect();
            for name in ahead.into_iter().rev() {
                rest.push_front(name);
            }
            continue;
        }
        if rest.is_empty() && about.is_file() && about.mode() & WRITABLE_BY_OTHERS != 0 {
            found.push(format!(
                "{} can be changed by others than its owner (mode {})",
                shown(&entry),
                mode(&about)
            ));
        }
        (folder, about_folder) = (entry, Some(about));
    }
    // A path that ends with a folder is one that others could put files into.
    if let Ok(about) = fs::symlink_metadata(&folder)
        && about.is_dir()
        && about.mode() & WRITABLE_BY_ALL != 0
    {
        found.push(format!(
            "the folder {} can be changed by anybody (mode {})",
            shown(&folder),
            mode(&about)
        ));
    }
    found
}

/// Why `entry` of `folder` can be replaced by anybody.
fn weak_folder(
    folder: &Path,
    about: &Metadata,
    entry: &Path,
    about_entry: Option<&Metadata>,
) -> Option<String> {
    if about.mode() & WRITABLE_BY_ALL == 0 {
        return None;
    }
    let place = format!("the folder {} can be changed by anybody (mode {})", shown(folder), mode(about));
    if about.mode() & STICKY == 0 {
        return Some(place);
    }
    let ours = |about: &Metadata| about.uid() == 0 || about.uid() == rustix::process::geteuid().as_raw();
    match about_entry {
        Some(entry) if ours(entry) && ours(about) => None,
        Some(owned) => Some(format!("{place} and {} in it belongs to user {}", shown(entry), owned.uid())),
        None => Some(format!("{place} and {} is not in it yet", shown(entry))),
    }
}

fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

fn shown(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

fn mode(about: &Metadata) -> String {
    format!("{:04o}", about.permissions().mode() & 0o7777)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder that nobody else can write to, whatever the mask is.
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
    fn a_file_is_weak_when_its_group_or_everybody_may_write_it() {
        let folder = safe_folder();
        let path = folder.path().join("f");
        for (mode, weak) in [(0o600, false), (0o644, false), (0o664, true), (0o646, true), (0o666, true)] {
            file(&path, mode);
            let expected = format!("{path:?} can be changed by others than its owner (mode {mode:04o})");
            assert_eq!(weaknesses(&path), if weak { vec![expected] } else { vec![] }, "{mode:o}");
        }
    }

    #[test]
    fn any_folder_on_the_way_that_everybody_may_write_is_weak() {
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
        let expected =
            format!("the folder {:?} can be changed by anybody (mode 0777)", folder.path().join("a"));
        assert_eq!(weaknesses(&path), std::slice::from_ref(&expected));
        assert_eq!(weaknesses(&inner.join("none")), [expected], "also for a file that does not exist yet");
        chmod(&inner, 0o777);
        assert_eq!(weaknesses(&inner).len(), 2, "a folder at the end is judged as well");
    }

    #[test]
    fn the_sticky_bit_protects_what_is_there_and_is_ours() {
        let folder = safe_folder();
        chmod(folder.path(), 0o1777);
        let path = folder.path().join("f");
        let text = weaknesses(&path);
        assert!(text.len() == 1 && text[0].ends_with("is not in it yet"), "{text:?}");
        file(&path, 0o644);
        assert_eq!(weaknesses(&path), Vec::<String>::new());
        assert_eq!(weaknesses(Path::new("/tmp")).len(), 1, "as a folder to put files into it is weak");
    }

    #[test]
    #[ignore = "needs root"]
    fn the_sticky_bit_does_not_protect_what_belongs_to_another_user() {
        let folder = safe_folder();
        chmod(folder.path(), 0o1777);
        let path = folder.path().join("f");
        file(&path, 0o644);
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let text = weaknesses(&path);
        assert!(text.len() == 1 && text[0].ends_with("in it belongs to user 65534"), "{text:?}");
    }

    #[test]
    fn the_way_behind_a_link_counts_too() {
        let (near, far) = (safe_folder(), safe_folder());
        let open = far.path().join("open");
        fs::create_dir(&open).unwrap();
        chmod(&open, 0o777);
        file(&open.join("f"), 0o644);
        for target in [open.clone(), Path::new("../").join(open.strip_prefix("/tmp").unwrap_or(&open))] {
            let link = near.path().join("link");
            let _ = fs::remove_file(&link);
            symlink(&target, &link).unwrap();
            let expected = format!("the folder {open:?} can be changed by anybody (mode 0777)");
            assert_eq!(weaknesses(&link.join("f")), [expected], "{target:?}");
        }
        symlink("loop", near.path().join("loop")).unwrap();
        assert_eq!(weaknesses(&near.path().join("loop/f")), Vec::<String>::new());
    }
}
