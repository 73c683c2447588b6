//! Maintenance besides checks and deployments (DECISIONS 7): looking for newer tags, removing images that are no longer
//! needed, and checking whether a rollback would be possible (the "way back").
//!
//! Maintenance tasks never change a container, and do not run while the project is being changed. They are decided here
//! and executed by `project/maintain.rs`, one at a time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::Project;
use crate::model::image::{ImageId, Reference, Repository};
use crate::model::tags::TagPattern;

/// A maintenance task, to be executed outside the decision core.
#[derive(Debug, Clone, PartialEq)]
pub enum MaintenanceTask {
    /// List the tags of repositories.
    FindNewerTags {
        /// The tags to consider.
        pattern: TagPattern,
        /// The tags in use.
        images: Vec<TagInUse>,
        /// An image was pushed: cached tag lists are stale.
        refresh: bool,
    },
    /// Remove images that no container uses and that have no tags other than those they were deployed under.
    RemoveImages {
        /// The images to remove.
        images: Vec<RemovableImage>,
    },
    /// Check whether a rollback to the currently running images would be possible.
    CheckWayBack {
        /// The compose project; `None` for a swarm service, because each node pulls missing images itself.
        project: Option<Box<Project>>,
        /// The running images.
        images: Vec<RunningImage>,
    },
}

/// A configured image and its tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagInUse {
    /// As configured.
    pub configured: String,
    /// Its repository.
    pub repository: Repository,
    /// The tag.
    pub tag: String,
    /// Whether the tag comes from the tag variable: a newer tag must then exist for all images with this flag.
    pub is_shared: bool,
    /// The newest of the newer tags as of the last look-up, which has compared them.
    pub known: Option<String>,
}

/// An image that is no longer needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovableImage {
    /// Its ID.
    pub id: ImageId,
    /// The tags it was deployed under, which are removed with it.
    pub tags: Vec<Reference>,
}

/// A running image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningImage {
    /// As configured.
    pub configured: String,
    /// Its ID.
    pub id: ImageId,
    /// Where it can be pulled again; `None` for an image that was only built locally.
    pub source: Option<Reference>,
    /// Uncompressed size in bytes; 0 while unknown.
    pub size: u64,
}

/// Why a tag with greater numbers is not newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotNewer {
    /// It is of another numbering scheme.
    OtherScheme,
    /// Its image was created well before the one in use.
    Older,
    /// A person has replaced it with an older one in the env file.
    Declined,
}

/// The newer tags of a look-up, by image as configured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FoundTags {
    /// Tags that are newer than the one in use: newest first, at most [`MAX_NEWER`](crate::service::upkeep::newer_tags::MAX_NEWER). Images whose
    /// tags could not be read or compared are omitted.
    pub newer: BTreeMap<String, Vec<String>>,
    /// A tag that would be newer by its numbers, and is not taken for newer.
    pub not_newer: BTreeMap<String, (String, NotNewer)>,
    /// Why tags could not be listed or compared.
    pub errors: BTreeMap<String, String>,
}

impl From<BTreeMap<String, Vec<String>>> for FoundTags {
    fn from(newer: BTreeMap<String, Vec<String>>) -> Self {
        Self { newer, ..Self::default() }
    }
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq)]
pub enum MaintenanceResult {
    /// Newer tags were looked up.
    NewerTags(FoundTags),
    /// Images that no longer exist locally.
    ImagesRemoved(Vec<ImageId>),
    /// Obstacles to a rollback; `None` if the engine did not answer, so that nothing is known.
    WayBackChecked(Option<Vec<RollbackRisk>>),
}

/// Something that would keep a rollback from succeeding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RollbackRisk {
    /// The registry does not serve the image that the tasks of a swarm service run.
    NotServed {
        /// As configured.
        image: String,
        /// Why not.
        registry: MissingReason,
    },
    /// A running image exists neither locally nor in its registry.
    ImageGone {
        /// As configured.
        image: String,
        /// Why it can't be pulled.
        registry: MissingReason,
    },
    /// Compose does not accept the files.
    ComposeFiles {
        /// The error.
        why: String,
    },
    /// There is not enough disk space for another image.
    Disk,
}

/// Why an image can't be pulled from its registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingReason {
    /// It was never pushed to one.
    NeverPushed,
    /// The registry no longer has it.
    Removed,
    /// The registry did not answer.
    Unknown(String),
}

/// The result of the last check of the way back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayBack {
    /// Time of the check.
    pub checked_at: Timestamp,
    /// The obstacle, in one sentence; `None` if there is none.
    pub risk: Option<String>,
}

/// Due tasks and results.
// The flags are independent of each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Maintenance {
    pub(in crate::service) is_running: bool,
    pub(in crate::service) tags_at: Option<Timestamp>,
    /// When newer tags were last looked up.
    pub(in crate::service) last_tag_lookup: Option<Timestamp>,
    /// An image was pushed since.
    pub(in crate::service) is_pushed: bool,
    /// Users have requested the look-up that is due; whether their check passes the gates that a trigger passes.
    pub(in crate::service) asked: Option<bool>,
    /// The same of the look-up that is running.
    pub(in crate::service) answering: Option<bool>,
    pub(in crate::service) way_back_at: Option<Timestamp>,
    pub(in crate::service) removal_due: bool,
    /// Newer tags by image as configured, newest first.
    pub(in crate::service) newer: BTreeMap<String, Vec<String>>,
    /// The registry has answered since the start.
    pub(in crate::service) has_tags: bool,
    /// It had listed tags before its last answer, also before the start.
    pub(in crate::service) is_relisted: bool,
    /// Why tags could not be listed or compared, by image as configured.
    pub(in crate::service) tag_errors: BTreeMap<String, String>,
}

impl Maintenance {
    /// All deadlines, and the times that they are measured from.
    pub(in crate::service) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let tags = self.tags_at.iter_mut().chain(self.last_tag_lookup.iter_mut());
        tags.chain(self.way_back_at.iter_mut())
    }

    /// What a requested look-up finds from now on was not there to be passed through the gates.
    pub(in crate::service) fn pass_no_gate(&mut self) {
        let asked = self.asked.iter_mut().chain(self.answering.iter_mut());
        asked.for_each(|passes| *passes = false);
    }
}
