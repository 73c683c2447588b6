//! The snapshot of a rollout: what writes to the data is stopped before the update, the data is copied at rest, and it goes
//! back with the images (DECISIONS 13).
//!
//! ```text
//! pull ─► quiesce ─► copy ─► start ─► resume ─► probation ──────────────────────► unpin ─► expire   updated
//!            │         │                            └─► diagnose ─► restore ─► rollback ─► resume ─► verify_rollback ─► unpin ─► expire
//!            └─────────┴─► restore_tags ─► unpin   errored, nothing changed
//! ```
//!
//! What the images may need, say a database whose image stays, is started before they are brought up: there is a `resume`
//! before `start` and `rollback`, too, if there is any.
//!
//! Every step names what it stops, starts and copies by values that are in the journal before it is taken. `unpin` starts
//! what is still stopped, whichever way led there.

use std::path::PathBuf;

use evenkeel_common::wire::{SnapshotKind, SnapshotPlace, SnapshotRecord};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, ImageId};
use crate::model::snapshot::{CopyMade, EarlierData, FolderId, KeptFolder, Mounter, Place, Source};

/// What is planned to be copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPlan {
    /// What tells the folders of this snapshot from those of others.
    pub id: String,
    /// The data.
    pub sources: Vec<Source>,
    /// How many snapshots are kept.
    pub keep: usize,
    /// Where the hook `before` leaves what it saves of the data (`EK_SNAPSHOT`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<PathBuf>,
    /// The earlier data that is put in place of the data of now instead of a copy of that: it is set aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<EarlierPlan>,
    /// The copies of an earlier attempt, which are used in place of new ones: what has run on the data since was not proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<CopiesTaken>,
}

/// Copies that an earlier attempt has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesTaken {
    /// The time that they are of.
    pub at: Timestamp,
    /// The copies.
    pub copies: Vec<CopyMade>,
}

impl SnapshotPlan {
    /// Where the copy of a source is, or its data once that was set aside.
    pub(in crate::service) fn kept_folder(&self, source: &Source, kind: KeptKind) -> KeptFolder {
        let place = self.place(source);
        let (folder, suffix) = match kind {
            KeptKind::Copy => (place.copy, ""),
            KeptKind::SetAside => (place.aside, "-set-aside"),
        };
        let volume = source.volume.as_ref();
        let volume = volume.map(|volume| format!("{volume}-evenkeel-{}{suffix}", self.id));
        KeptFolder { of: source.of.clone(), folder, volume }
    }

    /// The folder of a source, what is put in its place, and where its data goes.
    pub(in crate::service) fn place(&self, source: &Source) -> Place {
        let place = source.place(&self.id);
        let nth = self.sources.iter().position(|one| one == source);
        let earlier = nth.and_then(|nth| self.earlier.as_ref()?.folders.get(nth));
        Place { copy: earlier.map_or(place.copy, |(folder, _)| folder.clone()), ..place }
    }
}

/// Earlier data that a deployment puts back (DECISIONS 14).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierPlan {
    /// The time that it is of.
    pub at: Timestamp,
    /// Its folders, in the order of the sources.
    pub folders: Vec<(PathBuf, FolderId)>,
    /// Bytes of the data of now.
    pub bytes: u64,
}

/// Data that was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataBack {
    /// The time that it is of.
    pub at: Timestamp,
    /// Where the data is that was in its place.
    pub set_aside: Vec<KeptFolder>,
}

/// The state of the snapshot of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotState {
    /// The containers that are stopped, or about to be.
    pub stopped: Vec<Mounter>,
    /// How often running containers were found on the data since it was last at rest.
    pub rounds: u32,
    /// How many copies were made in vain, because something wrote to the data in the meantime.
    pub discarded: u32,
    /// How many copies were cut short, because the agent or the machine has ended, or a reload has broken them off.
    pub cut_short: u32,
    /// Since when the data has been at rest for the copy.
    pub at: Option<Timestamp>,
    /// The copies.
    pub copies: Vec<CopyMade>,
    /// Whether the copies were put back.
    pub is_restored: bool,
    /// Whether nothing was started on the data since it was copied.
    pub is_unused: bool,
}

impl SnapshotState {
    /// The state in which a deployment with this plan begins.
    pub(in crate::service) fn of(plan: Option<&SnapshotPlan>) -> Self {
        let taken = plan.and_then(|plan| plan.taken.clone());
        taken.map_or_else(Self::default, |CopiesTaken { at, copies }| Self {
            at: Some(at),
            copies,
            ..Self::default()
        })
    }
}

/// Why data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptKind {
    /// It is a copy from before an update.
    Copy,
    /// A copy was put back in its place.
    SetAside,
}

/// A snapshot that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSnapshot {
    /// What tells it from others.
    pub id: String,
    /// The time that its data is of, or for data that rejected images left: the time of the copy that was put back.
    pub at: Timestamp,
    /// Why it is kept.
    pub kind: KeptKind,
    /// The images of the update.
    pub image: String,
    /// The images, as configured, that had written the data when they were left. None if it is that of rejected images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<(String, Digest)>,
    /// Bytes of the data.
    pub bytes: u64,
    /// Its folders.
    pub folders: Vec<KeptFolder>,
    /// Where the hook `before` has left what it has saved of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<PathBuf>,
    /// It is no longer needed, and is to be removed.
    #[serde(default)]
    pub is_expired: bool,
    /// What a rollback to the images that have written it needs; `None` once others were proven on the data, or it was put
    /// back. Until then it is not removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingData>,
}

/// Data that was copied and not put back, while what has run on the data since was not proven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingData {
    /// The images, as configured, that had written it.
    pub old: Vec<(String, ImageId)>,
    /// The copies.
    pub copies: Vec<CopyMade>,
}

impl KeptSnapshot {
    /// Reports whether it is the data of this image.
    pub fn is_of(&self, image: &str, digest: &Digest) -> bool {
        self.left.iter().any(|(left, of)| left == image && of == digest)
    }

    /// All that it takes up on the disk.
    pub fn all_folders(&self) -> Vec<KeptFolder> {
        let dump = |folder: &PathBuf| KeptFolder { of: String::new(), folder: folder.clone(), volume: None };
        self.folders.iter().cloned().chain(self.dump.iter().map(dump)).collect()
    }

    /// What is needed to put it back.
    pub fn earlier(&self) -> EarlierData {
        EarlierData { id: self.id.clone(), at: self.at, folders: self.folders.clone() }
    }

    /// The plan of another attempt, for which the data is not copied again.
    pub(in crate::service) fn planned_again(&self, pending: &PendingData, keep: usize) -> SnapshotPlan {
        SnapshotPlan {
            id: self.id.clone(),
            sources: pending.copies.iter().map(|copy| copy.source.clone()).collect(),
            keep,
            dump: self.dump.clone(),
            earlier: None,
            taken: Some(CopiesTaken { at: self.at, copies: pending.copies.clone() }),
        }
    }

    /// What the status record shows of it.
    pub fn record(&self) -> SnapshotRecord {
        let place = |kept: &KeptFolder| SnapshotPlace {
            of: kept.of.clone(),
            path: kept.folder.display().to_string(),
            volume: kept.volume.clone(),
        };
        SnapshotRecord {
            id: self.id.clone(),
            at: self.at,
            of: self.folders.iter().map(|kept| kept.of.clone()).collect(),
            mib: self.bytes.div_ceil(1024 * 1024),
            image: self.image.clone(),
            kind: match self.kind {
                KeptKind::Copy => SnapshotKind::Copy,
                KeptKind::SetAside => SnapshotKind::SetAside,
            },
            places: self.folders.iter().map(place).collect(),
            dump: self.dump.as_ref().map(|folder| folder.display().to_string()),
        }
    }
}
