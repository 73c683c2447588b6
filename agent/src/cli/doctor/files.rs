//! Checks paths and permissions of the files that the agent reads and writes, and disk space.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode, OFlags};

use super::finding::{Finding, Severity, Words};
use crate::config::{Config, ServiceConfig, TagVariable};
use crate::model::env_file::find_tag;
use crate::model::text::describe_io_error;

pub(super) const AREA: &str = "files";
pub(super) const DISK: &str = "disk";

const MIB: u64 = 1 << 20;
/// Less free space than this is an error.
const CRITICAL: u64 = 200 * MIB;
/// Less free space than this is a warning.
const LOW: u64 = 1024 * MIB;

/// A path that the agent reads or writes, and why it can't, if so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) role: Role,
    pub(super) path: PathBuf,
    pub(super) fault: Option<String>,
}

/// The purpose of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A compose or env file, or a public key.
    Read,
    /// The env file that newer tags are written to.
    Tag,
    /// `state.path`
    State,
    /// The folder of `audit.path`
    Audit,
}

/// Checks access to every path of the configuration.
pub(super) fn look(config: &Config) -> Vec<Place> {
    let read = config.services.iter().filter(|service| !service.silent);
    let read = read
        .flat_map(|service| service.compose_files.iter().chain(&service.env_file).chain(keys(service)))
        .map(|path| Place { role: Role::Read, path: path.clone(), fault: unreadable(path) });
    let mut places: Vec<Place> = Vec::new();
    for place in read {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let variables = config.services.iter().filter(|service| !service.silent);
    places.extend(variables.filter_map(|service| service.tag_variable()).map(|variable| Place {
        role: Role::Tag,
        path: variable.file.to_owned(),
        fault: no_tag(&variable),
    }));
    let write = |role, path: &Path| Place { role, path: path.to_owned(), fault: unwritable(path) };
    places.push(write(Role::State, &config.state_path));
    if let Some(folder) = config.audit_path.as_deref().and_then(Path::parent) {
        places.push(write(Role::Audit, folder));
    }
    places
}

fn keys(service: &ServiceConfig) -> &[PathBuf] {
    service.update.as_ref().map_or(&[], |update| &update.signed_by)
}

/// Returns why a newer tag can't be written to an env file.
fn no_tag(variable: &TagVariable<'_>) -> Option<String> {
    // An unreadable file is reported by its own place.
    let text = unreadable(variable.file).is_none().then(|| std::fs::read_to_string(variable.file).ok())??;
    if let Err(why) = find_tag(&text, variable.name) {
        return Some(why);
    }
    let there = std::fs::canonicalize(variable.file).ok()?;
    unwritable(there.parent()?)
}

/// Returns why a file can't be read. Does not block.
fn unreadable(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map(File::from)
        .err()
        .map(|error| describe_io_error(&error.into()))
}

/// Returns why a file can't be created in a folder, or a missing folder can't be created.
fn unwritable(folder: &Path) -> Option<String> {
    let there = folder.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    if !there.is_dir() {
        return Some(format!("{} is not a folder", there.display()));
    }
    let error = rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!("{}: {}", there.display(), describe_io_error(&error.into())))
}

/// Returns the findings for the paths.
pub(super) fn check(places: &[Place]) -> Vec<Finding> {
    let faulty = places.iter().filter_map(|place| Some((place, place.fault.clone()?)));
    faulty
        .map(|(Place { role, path, .. }, fault)| {
            let shown = path.display();
            let (what, why, remedy) = match role {
                Role::Read => (
                    format!("it can't be read: {fault}"),
                    "its service can't be updated or started",
                    format!("allow the agent's user to read it: `sudo setfacl -m u:USER:r {shown}`, or run the agent as root"),
                ),
                Role::Tag => (
                    format!("no tag can be written there: {fault}"),
                    "newer tags are reported, but not deployed",
                    "set the variable of tag_variable to the current tag on its own line, and allow the agent's user to write the file and its folder".to_owned(),
                ),
                Role::State => (
                    format!("state can't be written: {fault}"),
                    "blocks, counters and unfinished deployments are lost when the agent exits",
                    format!("`sudo install -d -m 0750 {shown}`, or set state.path to a folder on a writable disk"),
                ),
                Role::Audit => (
                    format!("the audit file can't be written: {fault}"),
                    "actions are not recorded on this machine",
                    format!("`sudo install -d -m 0750 {shown}`, or set audit.path elsewhere"),
                ),
            };
            Words { what, why, remedy }.error(AREA, shown.to_string())
        })
        .collect()
}

/// Free space at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) path: PathBuf,
    /// Bytes available to an unprivileged user.
    pub(super) free: u64,
    /// Number of files that can still be created; `None` if the file system has no such limit.
    pub(super) inodes: Option<u64>,
    /// Bytes that one more image may need there; 0 if the path stores no images.
    pub(super) image: u64,
}

/// Returns the free space at a path, or at its nearest existing parent.
pub(super) fn room(path: &Path, image: u64) -> Option<Room> {
    let there = path.ancestors().find(|path| path.exists())?;
    let about = rustix::fs::statvfs(there).ok()?;
    Some(Room {
        path: there.to_owned(),
        free: about.f_bavail.saturating_mul(about.f_frsize),
        inodes: (about.f_files > 0).then_some(about.f_favail),
        image,
    })
}

/// Returns the findings for disk space.
pub(super) fn check_room(rooms: &[Room]) -> Vec<Finding> {
    rooms.iter().filter_map(too_little).collect()
}

fn too_little(room: &Room) -> Option<Finding> {
    let free = room.free / MIB;
    let needs = room.image.saturating_mul(2).max(LOW);
    let (severity, what) = match room {
        Room { free: bytes, .. } if *bytes < CRITICAL => (Severity::Error, format!("{free} MiB are free")),
        Room { inodes: Some(inodes @ 0..1000), .. } => {
            (Severity::Error, format!("only {inodes} more files can be created"))
        }
        Room { free: bytes, image, .. } if *bytes < needs && *image > 0 => {
            let image = image / MIB;
            (Severity::Warning, format!("{free} MiB are free, and the largest image has {image} MiB"))
        }
        Room { free: bytes, .. } if *bytes < LOW => (Severity::Warning, format!("{free} MiB are free")),
        _ => return None,
    };
    let (why, remedy) = if room.image > 0 {
        (
            "an update needs space for the new image in addition to the old one",
            "free up space: `docker image prune`, `docker builder prune`",
        )
    } else {
        (
            "state and audit entries can't be written when it is full",
            "free up space there: `du -xh --max-depth=2`",
        )
    };
    Some(Words { what, why, remedy }.of(severity, DISK, room.path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use evenkeel_common::config::Configuration as _;

    #[test]
    fn usable_paths_have_no_finding() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("compose.yml");
        std::fs::write(&file, "services: {}").unwrap();
        let tree = json!({
            "state": {"path": folder.path().join("new/state")}, "audit": {"path": folder.path().join("new/a.jsonl")},
            "services": [{"name": "web", "compose_files": [file], "compose_project": "web"}],
        });
        let config = Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap();
        let places = look(&config);
        assert_eq!(
            places.iter().map(|place| place.role).collect::<Vec<_>>(),
            [Role::Read, Role::State, Role::Audit]
        );
        assert_eq!(check(&places), []);
    }

    #[test]
    fn an_unusable_path_is_reported_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let tree =
            json!({"state": {"path": blocked.join("state")}, "audit": {"path": blocked.join("x/a.jsonl")}});
        let mut config = Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap();
        config.services.clear();
        let mut places = look(&config);
        assert!(unreadable(&folder.path().join("none")).is_some_and(|fault| fault == "does not exist"));
        places.push(Place {
            role: Role::Read,
            path: "/srv/c.yml".into(),
            fault: Some("permission denied".into()),
        });
        let found = check(&places);
        let expected = [
            ("state can't be written", "state.path"),
            ("audit file", "audit.path"),
            ("can't be read", "setfacl"),
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (finding, (what, remedy)) in found.iter().zip(expected) {
            assert_eq!(finding.severity, Severity::Error);
            assert!(finding.what.contains(what) && finding.remedy.contains(remedy), "{finding:#?}");
        }
    }

    #[test]
    fn keys_must_be_readable_and_the_tag_variable_must_be_set() {
        let folder = tempfile::tempdir().unwrap();
        let (file, env) = (folder.path().join("compose.yml"), folder.path().join("shop.env"));
        std::fs::write(&file, "services: {}").unwrap();
        let found = |text: &str, key: &Path| {
            std::fs::write(&env, text).unwrap();
            let tree = json!({
                "state": {"path": folder.path()},
                "services": [{
                    "name": "web", "images": ["web:1.27.0"], "auto_update": true, "env_file": env,
                    "compose_files": [file], "compose_project": "web",
                    "update": {"tags": "~1.27", "tag_variable": "WEB_TAG", "signed_by": key},
                }],
            });
            let config = Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap();
            check(&look(&config)).into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert_eq!(found("WEB_TAG=1.27.0\n", &file), Vec::<String>::new());
        assert_eq!(found("TAG=1.27.0\n", &file), ["no tag can be written there: WEB_TAG is not set"]);
        let missing = folder.path().join("cosign.pub");
        assert_eq!(found("WEB_TAG=1.27.0\n", &missing), ["it can't be read: does not exist"]);
    }

    #[test]
    fn free_space_is_compared_with_the_largest_image() {
        let room = |free: u64, inodes, image: u64| Room {
            path: "/d".into(),
            free: free * MIB,
            inodes,
            image: image * MIB,
        };
        for (room, expected) in [
            (room(5000, None, 0), None),
            (room(5000, Some(10_000), 2000), None),
            (room(5000, None, 3000), Some((Severity::Warning, "prune"))),
            (room(900, None, 0), Some((Severity::Warning, "du -xh"))),
            (room(100, None, 0), Some((Severity::Error, "du -xh"))),
            (room(100, None, 10), Some((Severity::Error, "prune"))),
            (room(5000, Some(10), 0), Some((Severity::Error, "du -xh"))),
        ] {
            let found = check_room(std::slice::from_ref(&room));
            let seen = found.first().map(|finding| finding.severity);
            assert_eq!(seen, expected.map(|(severity, _)| severity), "{room:?}");
            assert!(found.iter().all(|finding| finding.remedy.contains(expected.unwrap().1)), "{found:#?}");
        }
        assert!(
            super::room(Path::new("/nonexistent/folder"), 0).is_some_and(|room| room.path == Path::new("/"))
        );
    }
}
