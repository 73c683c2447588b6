//! The data of `web`: a volume that every new image migrates when it starts, and the copies of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use evenkeel_agent::model::snapshot::{
    Copied, Ended, FolderId, Free, Mounter, Place, Room, SnapshotError, Volume,
};
use evenkeel_agent::model::{EngineError, ImageId};
use evenkeel_agent::ports::snapshot::{Snapshots, Volumes};
use tokio::sync::watch;

use super::{FakeWorld, Inner, UpFault};

const NEWER: &str = "no container runs on data that a newer image has written, unless that image was proven";
const AT_REST: &str = "data is copied and put back only while nothing that mounts it runs";
const DELETED: &str = "only copies of data are deleted";
const MIXED: &str = "no container runs on data of which a part is older than the rest";
/// The volume's folder.
const LIVE: &str = "/engine/volumes/p_data/_data";
/// The folder of a second volume, which not every service has.
const MORE: &str = "/engine/volumes/p_more/_data";

fn is_live(folder: &Path) -> bool {
    [LIVE, MORE].iter().any(|live| folder == Path::new(live))
}

/// What the disk refuses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DiskFault {
    #[default]
    None,
    /// The second volume can't be put back.
    PutBack,
    /// Neither can that be undone with the first one.
    PutBackAndUndo,
}

/// A folder on the disk.
#[derive(Debug, Clone, Copy)]
struct Folder {
    inode: u64,
    /// The newest version of the images that have written to it.
    version: u32,
}

/// The folders, if a service has data.
#[derive(Debug, Default)]
pub(super) struct Data {
    folders: BTreeMap<PathBuf, Folder>,
    next_inode: u64,
    fault: DiskFault,
    measured: usize,
    /// Compose fails from the time on that data is put back.
    breaks_compose: bool,
}

impl Data {
    fn new_folder(&mut self, version: u32) -> Folder {
        self.next_inode += 1;
        Folder { inode: self.next_inode, version }
    }
}

impl FakeWorld {
    /// Gives `web` a volume.
    pub(crate) fn has_data(&self) {
        let mut inner = self.lock();
        let folder = inner.data.new_folder(1);
        inner.data.folders.insert(LIVE.into(), folder);
    }

    /// The images of the containers of a service that run now.
    pub(crate) fn up(&self, service: &str) -> Vec<ImageId> {
        let inner = self.lock();
        let running = inner.containers.iter().filter(|c| c.service == service && c.is_up());
        running.map(|c| c.image.clone()).collect()
    }

    /// Gives `web` a second volume, and the disk this fault.
    pub(crate) fn has_more_data(&self, fault: DiskFault) {
        let mut inner = self.lock();
        let folder = inner.data.new_folder(1);
        inner.data.folders.insert(MORE.into(), folder);
        inner.data.fault = fault;
    }
}

impl FakeWorld {
    /// Compose fails from the time on that data is put back.
    pub(crate) fn breaks_compose_with_restore(&self) {
        self.lock().data.breaks_compose = true;
    }

    /// How often the data was walked through to measure it.
    pub(crate) fn times_measured(&self) -> usize {
        self.lock().data.measured
    }

    /// The versions that have written to the volume, to its copies, and to what was set aside.
    pub(crate) fn data_versions(&self) -> [Vec<u32>; 3] {
        let inner = self.lock();
        let of = |is: fn(&Path) -> bool| {
            let folders = inner.data.folders.iter().filter(|(path, _)| is(path));
            folders.map(|(_, folder)| folder.version).collect()
        };
        let is_aside = |path: &Path| path.to_string_lossy().ends_with("-set-aside");
        [
            of(is_live),
            of(|path| !is_live(path) && !path.to_string_lossy().ends_with("-set-aside")),
            of(is_aside),
        ]
    }
}

impl Inner {
    fn version_of(&self, image: &ImageId) -> u32 {
        let name = self.truth.image_name(image);
        name.rsplit(" v").next().and_then(|version| version.parse().ok()).unwrap_or_default()
    }

    /// A container has started: its image migrates the data.
    pub(super) fn migrate(&mut self, at: usize) {
        let (service, image) = (self.containers[at].service.clone(), self.containers[at].image.clone());
        let Some(live) = self.data.folders.get(Path::new(LIVE)).filter(|_| service == "web") else { return };
        let (written, own) = (live.version, self.version_of(&image));
        if written > own {
            let newer = super::id_of(&format!("web v{written}"));
            let is_proven = self.truth.has_worked(&newer);
            let touched = |b: &super::properties::Baseline| b.touched.contains("web") || b.is_disturbed;
            let is_excused = self.truth.baselines.values().any(touched) || self.truth.has_lost_track();
            if !(is_proven || is_excused) {
                self.violated(format!("{NEWER}: web v{own} on data of v{written}"));
            }
        }
        let more = self.data.folders.get(Path::new(MORE)).map(|more| more.version);
        if more.is_some_and(|more| more != written) {
            self.violated(format!(
                "{MIXED}: web v{own} on data of v{written} and v{}",
                more.unwrap_or_default()
            ));
        }
        for (_, live) in self.data.folders.iter_mut().filter(|(path, _)| is_live(path)) {
            live.version = written.max(own);
        }
    }

    fn check_at_rest(&mut self, what: &str) {
        let runs = self.containers.iter().any(|c| c.service == "web" && c.is_up());
        if runs {
            self.violated(format!("{AT_REST}: {what}"));
        }
    }
}

#[async_trait]
impl Volumes for FakeWorld {
    async fn volume(&self, name: &str) -> Result<Option<Volume>, EngineError> {
        self.call(|inner, _| {
            let folder = PathBuf::from(if name == "p_more" { MORE } else { LIVE });
            let is_known = matches!(name, "p_data" | "p_more") && inner.data.folders.contains_key(&folder);
            let volume = Volume { driver: "local".into(), options: BTreeMap::new(), folder };
            Ok(is_known.then_some(volume))
        })
        .await
    }

    async fn bind_volume(&self, _: &str, _: &Path, _: BTreeMap<String, String>) -> Result<(), EngineError> {
        self.call(|_, _| Ok(())).await
    }

    async fn remove_volume(&self, _: &str) -> Result<(), EngineError> {
        self.call(|_, _| Ok(())).await
    }

    async fn mounters(&self, _: &[&Path], _: bool) -> Result<Vec<Mounter>, EngineError> {
        self.call(|inner, _| {
            let running = inner.containers.iter().filter(|c| c.service == "web" && c.is_up());
            let mounter = |c: &super::FakeContainer| Mounter {
                id: c.id.clone(),
                name: c.name(),
                service: ("shop".to_owned(), c.service.clone()),
                depends_on: Vec::new(),
                is_paused: c.is_paused,
                task_of: None,
            };
            Ok(running.map(mounter).collect())
        })
        .await
    }

    async fn ended(&self, _: &[&Path]) -> Result<Vec<Ended>, EngineError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Snapshots for FakeWorld {
    async fn resolve(&self, folder: &Path) -> Result<PathBuf, SnapshotError> {
        Ok(folder.to_owned())
    }

    async fn measure(&self, _: &Path, _: &Path) -> Result<Room, SnapshotError> {
        self.lock().data.measured += 1;
        Ok(Room { bytes: 4096, available: 1 << 30, is_shared: false, copies: 1, ..Room::default() })
    }

    async fn available(&self, _: &Path) -> Result<Free, SnapshotError> {
        Ok(Free { bytes: 1 << 30, entries: None })
    }

    async fn copy(&self, place: &Place, progress: &watch::Sender<u64>) -> Result<Copied, SnapshotError> {
        self.point().await;
        let copied = {
            let mut inner = self.lock();
            if !inner.data.folders.contains_key(&place.copy) {
                inner.check_at_rest("copied");
                let version = inner.data.folders.get(&place.live).map_or(0, |live| live.version);
                let folder = inner.data.new_folder(version);
                inner.trace("data", &format!("of v{version} is copied"));
                inner.data.folders.insert(place.copy.clone(), folder);
            }
            let inode = inner.data.folders.get(&place.copy).map_or(0, |copy| copy.inode);
            Copied { bytes: 4096, folder: FolderId { device: 1, inode } }
        };
        progress.send_replace(4096);
        self.point().await;
        Ok(copied)
    }

    async fn restore(&self, place: &Place, copied: &Copied) -> Result<(), SnapshotError> {
        self.point().await;
        {
            let mut inner = self.lock();
            let live = inner.data.folders.get(&place.live).copied();
            if live.is_none_or(|live| live.inode != copied.folder.inode) {
                inner.check_at_rest("put back");
                if inner.data.fault != DiskFault::None && place.live == Path::new(MORE) {
                    return Err(SnapshotError("the disk is full".to_owned()));
                }
                let Some(copy) = inner.data.folders.remove(&place.copy) else {
                    return Err(SnapshotError("the copy is gone".to_owned()));
                };
                inner.trace("data", &format!("of v{} is put back", copy.version));
                if inner.data.breaks_compose {
                    inner.faults.up = UpFault::AtOnce;
                }
                let left = inner.data.folders.insert(place.live.clone(), copy);
                if let Some(left) = left {
                    inner.data.folders.insert(place.aside.clone(), left);
                }
            }
        }
        self.point().await;
        Ok(())
    }

    async fn undo(&self, place: &Place, copied: &Copied) -> Result<(), SnapshotError> {
        self.point().await;
        {
            let mut inner = self.lock();
            let is_there = |folder: Option<&Folder>| folder.is_some_and(|it| it.inode == copied.folder.inode);
            if is_there(inner.data.folders.get(&place.live)) {
                inner.check_at_rest("put back again");
                if inner.data.fault == DiskFault::PutBackAndUndo {
                    return Err(SnapshotError("the disk is read-only".to_owned()));
                }
                let Some(left) = inner.data.folders.remove(&place.aside) else {
                    return Err(SnapshotError("what was set aside is gone".to_owned()));
                };
                inner.trace("data", &format!("of v{} is put back again", left.version));
                if let Some(earlier) = inner.data.folders.insert(place.live.clone(), left) {
                    inner.data.folders.insert(place.copy.clone(), earlier);
                }
            }
        }
        self.point().await;
        Ok(())
    }

    async fn identify(&self, folder: &Path) -> Result<FolderId, SnapshotError> {
        let found = self.lock().data.folders.get(folder).map(|found| found.inode);
        let gone = || SnapshotError(format!("there is no {}", folder.display()));
        Ok(FolderId { device: 1, inode: found.ok_or_else(gone)? })
    }

    async fn remove(&self, folder: &Path) -> Result<(), SnapshotError> {
        self.point().await;
        {
            let mut inner = self.lock();
            if is_live(folder) {
                inner.violated(format!("{DELETED}: {}", folder.display()));
            }
            inner.data.folders.remove(folder);
        }
        self.point().await;
        Ok(())
    }
}
