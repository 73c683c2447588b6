//! Copies of a service's data on this machine (DECISIONS 13).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::model::EngineError;
pub use crate::model::snapshot::{
    Copied, Ended, FolderId, Free, Mounter, Place, Room, SnapshotError, Volume,
};

/// Copies folders and puts the copies back. No process writes to a folder meanwhile: whoever calls this has stopped the
/// containers that mount it. Every call can be repeated after it was killed in the middle.
#[async_trait]
pub trait Snapshots: Send + Sync + 'static {
    /// Returns the folder that a path leads to, which is what is measured and copied: links are not followed there.
    async fn resolve(&self, folder: &Path) -> Result<PathBuf, SnapshotError>;

    /// Measures a folder, for a copy next to `copy`. Refuses what could not be copied.
    async fn measure(&self, live: &Path, copy: &Path) -> Result<Room, SnapshotError>;

    /// Returns what is free where a copy goes. Unlike [`Self::measure`], this walks through nothing.
    async fn available(&self, copy: &Path) -> Result<Free, SnapshotError>;

    /// Copies a folder and waits until the copy is on disk. Reports the bytes that were copied so far. One that is there
    /// already is complete: a copy gets its name last.
    async fn copy(&self, place: &Place, progress: &watch::Sender<u64>) -> Result<Copied, SnapshotError>;

    /// Puts the copy in place of the folder, whose data is set aside. One that is in place already is left there.
    async fn restore(&self, place: &Place, copied: &Copied) -> Result<(), SnapshotError>;

    /// Undoes [`Self::restore`] or a part of it: the data that was set aside is in the folder again, and the copy where it was.
    async fn undo(&self, place: &Place, copied: &Copied) -> Result<(), SnapshotError>;

    /// Returns the identity of a folder.
    async fn identify(&self, folder: &Path) -> Result<FolderId, SnapshotError>;

    /// Removes a copy, or data that was set aside. One that is gone is no error.
    async fn remove(&self, folder: &Path) -> Result<(), SnapshotError>;
}

/// What snapshots need of the engine. Every call has its own deadline.
#[async_trait]
pub trait Volumes: Send + Sync + 'static {
    /// Returns a volume, or `None` if it does not exist.
    async fn volume(&self, name: &str) -> Result<Option<Volume>, EngineError>;

    /// Ensures that a volume of this name exists that stands for a folder of this machine.
    async fn bind_volume(
        &self,
        name: &str,
        folder: &Path,
        labels: BTreeMap<String, String>,
    ) -> Result<(), EngineError>;

    /// Removes a volume, but not the folder that it stands for. A missing one is no error.
    async fn remove_volume(&self, name: &str) -> Result<(), EngineError>;

    /// Returns the running containers, whoever's they are, that mount one of these folders, a part of it, or a folder that
    /// contains it; not that of the agent itself. With `writable`, only those that can write to it.
    async fn mounters(&self, folders: &[&Path], writable: bool) -> Result<Vec<Mounter>, EngineError>;

    /// Returns the containers that were started at some time and have ended, of those that can write to one of these folders.
    /// One that can't be inspected is left out.
    async fn ended(&self, folders: &[&Path]) -> Result<Vec<Ended>, EngineError>;
}
