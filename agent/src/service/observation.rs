//! What one check has read of engine, registry and compose files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::env_file::TagSetting;
use crate::model::image::{Digest, ImageId, Reference};
use crate::model::swarm::SwarmService;
use crate::model::{Container, Difference, Model, Need};
use crate::service::gates::candidate::{ConfigsCompared, SharedCandidate, SnapshotSeen, Unsigned};

/// The state of registry and engine as of one check.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observation {
    /// One view per configured image, in the configuration's order.
    pub images: Vec<ImageView>,
    /// All containers of the service.
    pub containers: Arc<[Container]>,
    /// Whether one of them is stopped for the snapshot of another service, which starts it again.
    pub is_at_rest: bool,
    /// The swarm service, if this is one.
    pub swarm: Option<Box<SwarmService>>,
    /// Blocked images of other services in the same project: a deployment of this service must not move their tags.
    pub blocked_elsewhere: Vec<BlockedElsewhere>,
    /// The compose files that another service of the project was the last to apply: one edit needs only one run of compose.
    pub files_applied_elsewhere: Option<FilesApplied>,
    /// The digests as seen by other services of the project, by image as configured.
    pub others: BTreeMap<String, Vec<SharedCandidate>>,
    /// The compose files.
    pub files: Files,
    /// Compose files that containers were created with and that are not configured, if bringing up the project without
    /// them would change these containers.
    pub unlisted_files: Vec<PathBuf>,
    /// A running container of an image that is out of date, by name, that neither compose nor a swarm may stop.
    pub needed: Option<(String, Need)>,
    /// How compose's definition of what an update would bring up compares with what runs; `None` if there is no update to
    /// compare for.
    pub definition: Option<Result<Definition, String>>,
    /// Images, as configured, for which the registry returned no digest; their view has none.
    pub unanswered: BTreeMap<String, Unanswered>,
    /// Images, as configured, that must be signed (`signed_by`), and whose digest in the registry is not known to be.
    pub unsigned: BTreeMap<String, Unsigned>,
    /// Images, as configured, that must be signed, and whose digest in the registry was signed before the one that runs.
    pub signed_earlier: BTreeSet<String>,
    /// Per image as configured: how the configuration of its digest in the registry differs from that of the running image.
    /// Only for images that an update would replace, and only if the service has gates.
    pub configs: BTreeMap<String, ConfigsCompared>,
    /// Errors of unusable `signed_by` files.
    pub key_faults: Vec<String>,
    /// The tag that the env file sets (`tag_variable`); `None` if not configured or not readable.
    pub tag: Option<TagInForce>,
    /// The data that an update copies first (`snapshot`), or why it can't; `None` if there is no update to copy it for.
    pub snapshot: Option<Result<SnapshotSeen, String>>,
}

impl Observation {
    /// Whether another observation of the same check follows with the missing answers.
    pub fn is_pending(&self) -> bool {
        self.unanswered.values().any(|why| *why == Unanswered::Pending)
    }

    /// The block of another service of the project that applies to what the registry has of an image.
    pub fn block_elsewhere(&self, view: &ImageView) -> Option<&BlockedElsewhere> {
        self.blocked_elsewhere.iter().find(|blocked| {
            (blocked.reference == *view.target() || blocked.reference == view.reference)
                && Some(&blocked.digest) == view.remote.as_ref()
        })
    }

    /// The error texts of the registries, without duplicates.
    pub fn registry_fault(&self) -> Option<String> {
        let texts: BTreeSet<&str> = self
            .unanswered
            .values()
            .filter_map(|why| match why {
                Unanswered::Failed(text) => Some(text.as_str()),
                Unanswered::Pending => None,
            })
            .collect();
        (!texts.is_empty()).then(|| texts.into_iter().collect::<Vec<_>>().join("; "))
    }

    /// How the configuration of an image in the registry differs from that of what it replaces: a first start replaces
    /// nothing. `None` if they have not been compared.
    pub fn configs_of(&self, view: &ImageView) -> Option<ConfigsCompared> {
        if view.current().is_empty() {
            Some(Ok(Vec::new()))
        } else {
            self.configs.get(&view.configured).cloned()
        }
    }
}

/// A digest that another service of the project has blocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedElsewhere {
    /// The name of that service.
    pub service: String,
    /// Repository and tag.
    pub reference: Reference,
    /// The digest.
    pub digest: Digest,
}

/// The tag that a line of the env file sets, as of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagInForce {
    /// Where it is set, and to which tag.
    pub setting: TagSetting,
    /// SHA-256 of the whole file in hex.
    pub file_hash: String,
}

/// Why the registry's digest of an image is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// There is no answer yet: the rest of the check follows.
    Pending,
    /// The registry returned none; the error text is stable.
    Failed(String),
}

/// The definition of what an update would bring up, as of one check (DECISIONS 4a).
#[derive(Default, Debug, Clone, PartialEq)]
pub struct Definition {
    /// The resolved model.
    pub model: Arc<Model>,
    /// Per image as configured: how the compose services that its update would bring up differ from what runs.
    pub differences: BTreeMap<String, Vec<Difference>>,
    /// The host paths of bind mounts that are no directories.
    pub bound_files: BTreeSet<String>,
    /// The compose files that the containers were made from, if they are there and others than the configured ones.
    pub other_files: Vec<PathBuf>,
}

/// The compose files as of one check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Files {
    /// Not read.
    #[default]
    Unread,
    /// Hash of the files. If it differs from the known one, compose accepts them.
    Hash(String),
    /// The hash of the files, which are those of the known hash: that was computed by an earlier version.
    Unchanged(String),
    /// The files are being written: the next check reads them again.
    Unsettled,
    /// They can't be read, or compose does not accept them.
    Unusable(String),
    /// The hash of files of which one was there before and can't be read now. Compose accepts them, and may leave variables
    /// empty: they are applied only by a redeploy.
    Missing {
        /// The hash.
        hash: String,
        /// The file that is missing.
        path: PathBuf,
    },
}

/// One configured image, remote and local.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageView {
    /// As configured.
    pub configured: String,
    /// The reference in the compose files: the configured one, normalized, with the tag from the env file if that sets a
    /// different one.
    pub reference: Reference,
    /// The same with a newer tag, if there is one that may be deployed. The registry was queried for that.
    pub newer: Option<Reference>,
    /// The reference that the containers were created from: `reference`, unless the env file has changed since.
    pub from: Reference,
    /// The digest in the registry; `None` for a pinned reference, which never updates, and if the registry was not queried
    /// or did not answer.
    pub remote: Option<Digest>,
    /// The images of the running containers of this reference, without duplicates.
    pub running: Vec<LocalImage>,
    /// The local image that the tag points to.
    pub tagged: Option<LocalImage>,
}

impl ImageView {
    /// Creates a view without any information yet.
    pub fn new(configured: String, reference: Reference) -> Self {
        let from = reference.clone();
        Self { configured, reference, newer: None, from, remote: None, running: Vec::new(), tagged: None }
    }

    /// Lets equal digests and IDs share their text, also with the known `digest` and `ids`: they make up most of the memory
    /// of a view.
    pub fn intern_digests(&mut self, digest: Option<&Digest>, ids: &[ImageId]) {
        fn share<T: Clone + PartialEq>(known: &mut Vec<T>, value: &mut T) {
            match known.iter().find(|one| *one == value) {
                Some(same) => value.clone_from(same),
                None => known.push(value.clone()),
            }
        }
        let mut digests: Vec<Digest> = digest.cloned().into_iter().collect();
        let mut ids = ids.to_vec();
        self.remote.iter_mut().for_each(|digest| share(&mut digests, digest));
        for image in self.running.iter_mut().chain(&mut self.tagged) {
            share(&mut ids, &mut image.id);
            image.digests.iter_mut().for_each(|digest| share(&mut digests, digest));
        }
    }

    /// The running images, or the tagged image if none runs.
    pub fn current(&self) -> &[LocalImage] {
        if self.running.is_empty() { self.tagged.as_slice() } else { &self.running }
    }

    /// The image that a deployment of this digest replaces: of several that run, the first that does not have it. If none
    /// runs, it is the one that the tag names.
    pub fn replaced_by(&self, digest: Option<&Digest>) -> Option<&LocalImage> {
        let lacks = |image: &&LocalImage| digest.is_some_and(|digest| !image.digests.contains(digest));
        let current = self.current();
        current.iter().find(lacks).or(current.first())
    }

    /// The reference that the registry is queried for.
    pub fn target(&self) -> &Reference {
        self.newer.as_ref().unwrap_or(&self.reference)
    }
}

/// A local image in relation to one repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalImage {
    /// Its ID.
    pub id: ImageId,
    /// Its digests in exactly the repository of the reference. With the containerd store this includes its ID, if the
    /// registry has it, even if the engine no longer has a record of the image (DECISIONS 9).
    pub digests: Vec<Digest>,
    /// Uncompressed size in bytes.
    pub size: u64,
}

/// Compose files that were applied to the whole project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesApplied {
    /// Their hash.
    pub hash: String,
    /// When.
    pub at: Timestamp,
}
