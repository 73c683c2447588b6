//! Paths and rights: what the agent reads, and where it writes; and whether there is room.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode, OFlags};

use super::finding::{Finding, Severity, Words};
use crate::config::{Config, ServiceConfig, TagVariable};
use crate::model::env_file::find_tag;
use crate::model::text::plainly;

pub(super) const AREA: &str = "files";
pub(super) const DISK: &str = "disk";

const MIB: u64 = 1 << 20;
/// With less than this nothing is certain.
const LITTLE: u64 = 200 * MIB;
/// With less than this it is time to make room.
const SCARCE: u64 = 1024 * MIB;

/// A file that the agent reads, or a place that it writes to, and what is in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) role: Role,
    pub(super) path: PathBuf,
    pub(super) fault: Option<String>,
}

/// What the path is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A compose or env file, or a public key.
    Read,
    /// The env file that a newer tag is written into.
    Tag,
    /// `state.path`
    State,
    /// The folder of `audit.path`
    Audit,
}

/// Looks at every path of the configuration.
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

/// Why no newer tag can be written into an env file.
fn no_tag(variable: &TagVariable<'_>) -> Option<String> {
    // That it can't be read is told as of any other file.
    let text = unreadable(variable.file).is_none().then(|| std::fs::read_to_string(variable.file).ok())??;
    if let Err(why) = find_tag(&text, variable.name) {
        return Some(why);
    }
    let there = std::fs::canonicalize(variable.file).ok()?;
    unwritable(there.parent()?)
}

/// Why a file can't be read. Nothing is waited for.
fn unreadable(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from).err().map(|error| plainly(&error.into()))
}

/// Why no file can be made in a folder, or the folder itself where it is missing.
fn unwritable(folder: &Path) -> Option<String> {
    let there = folder.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    if !there.is_dir() {
        return Some(format!("{} is no folder", there.display()));
    }
    let error = rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!("{}: {}", there.display(), plainly(&error.into())))
}

/// What is wrong with the paths.
pub(super) fn check(places: &[Place]) -> Vec<Finding> {
    let faulty = places.iter().filter_map(|place| Some((place, place.fault.clone()?)));
    faulty
        .map(|(Place { role, path, .. }, fault)| {
            let shown = path.display();
            let (what, why, remedy) = match role {
                Role::Read => (
                    format!("it can't be read: {fault}"),
                    "its service can't be updated or started",
                    format!("let the agent's user read it: `sudo setfacl -m u:USER:r {shown}`, or run it as root"),
                ),
                Role::Tag => (
                    format!("no tag can be written there: {fault}"),
                    "newer tags are told, and not deployed",
                    "set the variable of tag_variable to the tag in use on a line of its own, and let the agent's user write the file and its folder".to_owned(),
                ),
                Role::State => (
                    format!("state can't be written: {fault}"),
                    "blocks, counters and unfinished deployments are forgotten when the agent ends",
                    format!("`sudo install -d -m 0750 {shown}`, or set state.path to a folder on a disk that can be written"),
                ),
                Role::Audit => (
                    format!("the audit file can't be written: {fault}"),
                    "there is no record on this machine of what was done",
                    format!("`sudo install -d -m 0750 {shown}`, or set audit.path elsewhere"),
                ),
            };
            Words { what, why, remedy }.error(AREA, shown.to_string())
        })
        .collect()
}

/// Free space at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) path: PathBuf,
    /// Bytes that an ordinary user may still write.
    pub(super) free: u64,
    /// Files that may still be made; `None` where the file system knows no such limit.
    pub(super) inodes: Option<u64>,
    /// Bytes that one more image may take there; 0 where no images are kept.
    pub(super) image: u64,
}

/// The room at a path, or at what is there of it.
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

/// What is wrong with the room.
pub(super) fn check_room(rooms: &[Room]) -> Vec<Finding> {
    rooms.iter().filter_map(too_little).collect()
}

fn too_little(room: &Room) -> Option<Finding> {
    let free = room.free / MIB;
    let needs = room.image.saturating_mul(2).max(SCARCE);
    let (severity, what) = match room {
        Room { free: bytes, .. } if *bytes < LITTLE => (Severity::Error, format!("{free} MiB are free")),
        Room { inodes: Some(inodes @ 0..1000), .. } => {
            (Severity::Error, format!("only {inodes} more files can be made"))
        }
        Room { free: bytes, image, .. } if *bytes < needs && *image > 0 => {
            let image = image / MIB;
            (Severity::Warning, format!("{free} MiB are free, and the largest image has {image} MiB"))
        }
        Room { free: bytes, .. } if *bytes < SCARCE => (Severity::Warning, format!("{free} MiB are free")),
        _ => return None,
    };
    let (why, remedy) = if room.image > 0 {
        (
            "an update needs the new image beside the old one",
            "make room: `docker image prune`, `docker builder prune`",
        )
    } else {
        (
            "state and audit entries can't be written when it is full",
            "make room there: `du -xh --max-depth=2`",
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
    fn places_that_are_as_they_should_be_have_no_finding() {
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
    fn a_path_that_can_not_be_used_is_named_with_what_to_do() {
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
    fn keys_are_read_and_the_variable_of_a_tag_must_be_set() {
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
    fn room_is_judged_by_what_has_to_fit_in() {
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
