//! Snapshots: copies of a service's data that are put back together with its image (DECISIONS 13).

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::compose::Model;

/// `update.snapshot`: what is copied before an update, and how many copies are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRules {
    /// Volumes as the compose files name them, and absolute directories.
    pub of: Vec<String>,
    /// How many copies of proven updates are kept, and how much data that was set aside, counted apart.
    pub keep: usize,
    /// How many bytes may be copied at most; a copy that shares its blocks with the data has none.
    pub max_bytes: u64,
}

/// A folder whose data is copied, and where the copies go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The folder with the data.
    pub live: PathBuf,
    /// Its copy.
    pub copy: PathBuf,
    /// Where the data goes that the copy is put in place of.
    pub aside: PathBuf,
}

/// Identity of a folder, which it keeps when it is renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderId {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// A finished copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Bytes of the data, as far as they take up room.
    pub bytes: u64,
    /// Identity of the copy.
    pub folder: FolderId,
}

/// What is free on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// How many files and folders can be created; `None` if their number has no limit of its own.
    pub entries: Option<u64>,
}

/// What a copy would need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes of the data, as far as they take up room.
    pub bytes: u64,
    /// Free bytes where the copy goes.
    pub available: u64,
    /// Whether the copy shares its blocks with the data (reflink), and so needs no room and next to no time.
    pub is_shared: bool,
    /// Bytes that are written anew nevertheless: a file may be marked as not to be copied on write.
    pub unshared: u64,
    /// How many files and folders are created.
    pub entries: u64,
    /// How many can be created where the copy goes; `None` if their number has no limit of its own.
    pub free_entries: Option<u64>,
    /// How many copies are there at most: two if the copy can't take the place of the data by its name, so that the data is
    /// set aside by copying it as well.
    pub copies: u64,
}

impl Room {
    /// Bytes that a copy writes anew.
    pub fn written(&self) -> u64 {
        if self.is_shared { self.unshared } else { self.bytes }
    }

    /// Bytes that the copies need.
    pub fn needed(&self) -> u64 {
        self.written().saturating_mul(self.copies)
    }
}

/// Why a folder can't be copied or put back, in words, with the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SnapshotError(pub String);

/// A volume of the engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its driver.
    pub driver: String,
    /// `driver_opts`: the type, its options, and the device.
    pub options: BTreeMap<String, String>,
    /// Its folder on the engine's machine.
    pub folder: PathBuf,
}

impl Volume {
    /// The folder with its data, and whether that is the engine's own. The reason if it can't be copied.
    pub fn data(&self) -> Result<(PathBuf, bool), String> {
        if self.driver != "local" {
            return Err(format!(
                "its driver is {}; only volumes of the driver local can be copied",
                self.driver
            ));
        }
        if self.options.is_empty() {
            return Ok((self.folder.clone(), true));
        }
        let option = |key: &str| self.options.get(key).map_or("", String::as_str);
        let is_bound = option("o").split(',').any(|word| matches!(word, "bind" | "rbind"));
        let device = Path::new(option("device"));
        if is_bound && device.is_absolute() {
            return Ok((device.to_owned(), false));
        }
        Err("it has driver_opts; only a volume that binds a directory of this machine can be copied"
            .to_owned())
    }
}

/// Data that a snapshot is taken of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// As configured.
    pub of: String,
    /// The engine's name of the volume whose folder it is; `None` for a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The folder.
    pub folder: PathBuf,
}

/// Where a folder of snapshots is that belongs to the volumes of an engine.
const BESIDE_VOLUMES: &str = "evenkeel-snapshots";

impl Source {
    /// Where the copies of this data go. They are on the same file system, so that they may share their blocks with it, and
    /// outside the folders that the engine prunes.
    pub fn place(&self, id: &str) -> Place {
        let live = self.folder.clone();
        // .../volumes/NAME/_data, unless a link leads out of the engine's folders
        let is_engines = |volume: &&String| self.folder.ends_with(Path::new(volume).join("_data"));
        let volume = self.volume.as_ref().filter(is_engines);
        let name = |kind: &str| {
            if let (Some(volume), Some(engine)) = (volume, self.folder.ancestors().nth(3)) {
                return engine.join(BESIDE_VOLUMES).join(format!("{volume}-{id}{kind}"));
            }
            let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
            self.folder.with_file_name(format!(".{name}.evenkeel-{id}{kind}"))
        };
        Place { live, copy: name(""), aside: name("-set-aside") }
    }

    /// The folder in which the copies go.
    pub fn target(&self) -> PathBuf {
        self.place("new").copy
    }
}

/// A configured source, looked up in the compose files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// A volume, by the engine's name.
    Volume(String),
    /// A directory of this machine.
    Directory(PathBuf),
}

/// Looks a configured source up in the compose files.
pub fn named(of: &str, model: &Model) -> Result<Named, String> {
    if of.starts_with('/') {
        return Ok(Named::Directory(PathBuf::from(of)));
    }
    let Some(volume) = model.volume(of) else {
        return Err(format!("the compose files define no volume {of}"));
    };
    let name = volume.get("name").and_then(serde_json::Value::as_str);
    Ok(Named::Volume(name.unwrap_or(of).to_owned()))
}

/// Reports whether a configured directory can be copied: absolute, without `..`, and not the root.
pub fn is_directory_name(text: &str) -> bool {
    let path = Path::new(text);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.components().all(plain) && path.parent().is_some()
}

/// A folder that is kept, with the volume that stands for it in the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFolder {
    /// As configured.
    pub of: String,
    /// The folder.
    pub folder: PathBuf,
    /// The volume through which `docker` commands reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// A snapshot that is to be put back in place of the data of now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierData {
    /// What tells the snapshot from others.
    pub id: String,
    /// The time that its data is of.
    pub at: Timestamp,
    /// Its folders.
    pub folders: Vec<KeptFolder>,
}

/// What of a folder was copied, and where it was put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyMade {
    /// The data.
    pub source: Source,
    /// The copy.
    pub copied: Copied,
}

/// A container that mounts data, and runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounter {
    /// Its full ID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its compose project and service; empty outside compose.
    #[serde(default)]
    pub service: (String, String),
    /// The compose services of its project that it depends on.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// Whether it is paused: nothing can stop it and leave it paused afterwards.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_paused: bool,
    /// The swarm service that it is a task of: the swarm starts another one in place of each that is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_of: Option<String>,
}

/// A container that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its full ID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was started last.
    pub started_at: Timestamp,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Reports whether one of two folders contains the other, or they are the same.
pub fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Sorts containers into groups that are stopped one after the other: those that depend on others come first. Containers
/// that depend on each other are in one group.
pub fn stop_order(all: &[Mounter]) -> Vec<Vec<&Mounter>> {
    let mut left: Vec<&Mounter> = all.iter().collect();
    let mut groups = Vec::new();
    while !left.is_empty() {
        let needed = |one: &Mounter| {
            left.iter().any(|other| {
                other.id != one.id
                    && other.service.0 == one.service.0
                    && other.depends_on.contains(&one.service.1)
            })
        };
        let (later, mut first): (Vec<_>, Vec<_>) = left.iter().copied().partition(|one| needed(one));
        left = later;
        if first.is_empty() {
            std::mem::swap(&mut first, &mut left);
        }
        groups.push(first);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_lie_beside_the_data_and_outside_what_the_engine_prunes() {
        let volume = Source {
            of: "db".into(),
            volume: Some("web_db".into()),
            folder: "/var/lib/docker/volumes/web_db/_data".into(),
        };
        let place = volume.place("7");
        assert_eq!(place.copy, Path::new("/var/lib/docker/evenkeel-snapshots/web_db-7"));
        assert_eq!(place.aside, Path::new("/var/lib/docker/evenkeel-snapshots/web_db-7-set-aside"));
        let linked = Source { folder: "/mnt/disk/db".into(), ..volume.clone() };
        assert_eq!(linked.place("7").copy, Path::new("/mnt/disk/.db.evenkeel-7"));
        let moved = Source { folder: "/mnt/disk/volumes/web_db/_data".into(), ..volume };
        assert_eq!(moved.place("7").copy, Path::new("/mnt/disk/evenkeel-snapshots/web_db-7"));
        let directory = Source { of: "/srv/up".into(), volume: None, folder: "/srv/up".into() };
        assert_eq!(directory.place("7").copy, Path::new("/srv/.up.evenkeel-7"));
    }

    #[test]
    fn dependents_are_stopped_first() {
        let one = |service: &str, depends_on: &[&str]| Mounter {
            id: service.into(),
            name: service.into(),
            service: ("p".into(), service.into()),
            depends_on: depends_on.iter().map(|name| (*name).to_owned()).collect(),
            is_paused: false,
            task_of: None,
        };
        let names = |all: &[Mounter]| {
            let group = |group: Vec<&Mounter>| group.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
            stop_order(all).into_iter().map(group).collect::<Vec<_>>()
        };
        let chain = [one("db", &[]), one("web", &["db", "api"]), one("api", &["db"])];
        assert_eq!(names(&chain), [["web"], ["api"], ["db"]]);
        let circle = [one("a", &["b"]), one("b", &["a"])];
        assert_eq!(names(&circle), [["a", "b"]]);
    }

    #[test]
    fn a_directory_in_the_root_can_be_copied_and_the_root_can_not() {
        for (text, expected) in [
            ("/data", true),
            ("/srv/data/", true),
            ("/", false),
            ("//", false),
            ("data", false),
            ("/srv/../data", false),
        ] {
            assert_eq!(is_directory_name(text), expected, "{text}");
        }
        let root = Source { of: "/data".into(), volume: None, folder: "/data".into() };
        assert_eq!(root.place("7").copy, Path::new("/.data.evenkeel-7"));
    }

    #[test]
    fn only_local_data_can_be_copied() {
        let of = |driver: &str, options: &[(&str, &str)]| {
            let options =
                options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Volume { driver: driver.into(), options, folder: "/v/_data".into() }.data()
        };
        assert_eq!(of("local", &[]), Ok(("/v/_data".into(), true)));
        let bound = [("type", "none"), ("o", "rw,bind"), ("device", "/srv/data")];
        assert_eq!(of("local", &bound), Ok(("/srv/data".into(), false)));
        assert!(of("local", &[("type", "nfs"), ("o", "addr=10.0.0.1"), ("device", ":/export")]).is_err());
        assert!(of("rexray", &[]).is_err());
    }
}
