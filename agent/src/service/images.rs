//! All that is remembered of each configured image: what failed, what was proven, what was announced.
//!
//! The memory of an image is one value, so that what belongs together changes together: a digest that is proven is no longer
//! blocked, not missing, and a rollback target.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId, Reference};

/// How many failed digests of an image are remembered, and how many that it has left.
const MAX_DIGESTS: usize = 50;
/// How many announced tags are remembered.
const MAX_TOLD: usize = 20;
/// How many proven images are remembered.
const MAX_PROVEN: usize = 20;
/// How many deployed images are remembered until they are removed.
const MAX_DEPLOYED: usize = 50;

/// Digests that failed under newer tags, by tag (`tag_variable`).
pub type FailedTags = BTreeMap<String, Digest>;

/// What is remembered of one image, as configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageMemory {
    /// The blocked digest (spec 2.6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Digest>,
    /// Digests that have failed here, oldest first: a tag that returns to one is blocked again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_digests: Vec<Digest>,
    /// Failed digests of tags that are newer than the one in force.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_tags: FailedTags,
    /// Digests that were proven here and left for others, oldest first: a registry that serves one again may be playing it
    /// back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_digests: Vec<Digest>,
    /// Digest that was pulled while no container used the image. It is deployed, and proven, once one does; until then the
    /// tag stays on the earlier image, so that nothing starts an unproven one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pulled: Option<Digest>,
    /// Remote digest that could not be resolved locally (spec 2.6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_found: Option<Digest>,
    /// Digest that was seen both locally and in the registry. With the containerd store this distinguishes pulled images from
    /// those built locally, even if the registry no longer has the digest (DECISIONS 9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Digest>,
    /// Compose service whose container was made from this image when one last ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compose_service: Option<String>,
    /// Digest that an operator has replaced with another one although the registry has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declined: Option<Digest>,
    /// Digest that the swarm service was rolled back from, as of the last check or of an own update. Each such rollback is
    /// judged once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_back_from: Option<Digest>,
    /// Tag that a person has replaced with an older one in the env file: it is not deployed, nor is an older one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declined_tag: Option<String>,
    /// Digest whose update has failed because the data could not be copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_copied: Option<NotCopied>,
    /// Records of the digests in the registry, if gates may hold them: one per tag that was queried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<Found>,
    /// Since when the image has lacked what its tag points to, whatever digests that were meanwhile; recorded together with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_since: Option<Timestamp>,
    /// The last proven image: the tag is reset to it if nothing runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proven: Option<OldImage>,
    /// An unproven image that runs or ran last: never a rollback target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unproven: Option<ImageId>,
    /// The digest that last passed its probation, and when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// Images that were proven here, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ProvenImage>,
    /// Images that were deployed, or pulled for later, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deployed: Vec<DeployedImage>,
    /// The newest of the newer tags that the registry last had: known after a restart until the registry answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_tag: Option<String>,
    /// The tag that was in use then, with which the newest one was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_of: Option<String>,
    /// Whether the registry has listed its tags before: a tag that is new since then is no older, whatever the fleet reports.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tags_listed: bool,
    /// The newer tag that was announced last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told_tag: Option<String>,
    /// Those that were announced before it, the latest last, as far as they are kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub told_before: Vec<String>,
    /// The tag of another numbering scheme that was announced last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told_tag_of_other_scheme: Option<String>,
}

/// The record of a digest that a tag points to in its registry. If the tag moves away and back, the record starts over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Repository and tag that the registry was queried for. Earlier versions did not record it; then it is the reference
    /// of the next query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// The digest that the tag points to.
    pub digest: Digest,
    /// When the registry first returned this digest to this agent. Never the image's `created` field, which is written by
    /// whoever builds the image.
    pub first_seen: Timestamp,
    /// A user has approved it.
    #[serde(default)]
    pub approved: bool,
    /// A manual trigger has found it, and its update has not begun since.
    #[serde(default)]
    pub triggered: bool,
    /// The waiting update was reported.
    #[serde(default)]
    pub announced: bool,
    /// When the registry last returned a different digest to this agent, or the time of the first query of a newer tag if the
    /// tags had been listed before: the tag did not point to this one before that, whatever the fleet reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Since when it has not been known whether it is signed, unless it was announced before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread_since: Option<Timestamp>,
}

impl Found {
    /// Applies the time at which the fleet first saw this digest, possibly earlier (DECISIONS 7). It counts only for periods
    /// in which this agent did not query the registry itself, so that a compromised warden cannot make a new digest old.
    pub(super) fn seen_by_fleet(&mut self, since: Timestamp) {
        let earliest = self.not_before.unwrap_or(Timestamp::MIN);
        self.first_seen = since.max(earliest).min(self.first_seen);
    }
}

/// An update that was not begun because the data could not be copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCopied {
    /// Its digest.
    pub digest: Digest,
    /// Why the data could not be copied.
    pub why: String,
    /// How often it was tried.
    pub tries: u32,
    /// When it is tried again, unless a person asks for it before.
    pub until: Timestamp,
}

/// The digest of an image that last passed its probation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The digest.
    pub digest: Digest,
    /// When it passed.
    pub at: Timestamp,
}

/// An image that was proven here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenImage {
    /// Its digest.
    pub digest: Digest,
    /// Its ID.
    pub id: ImageId,
    /// Repository and tag that it was deployed under.
    pub reference: Reference,
    /// When it was proven last.
    pub proven_at: Timestamp,
    /// When it was left for another one; `None` if it never was since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_at: Option<Timestamp>,
    /// Its version, according to its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// An image that was deployed here, or pulled for later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployedImage {
    /// Its ID.
    pub id: ImageId,
    /// Whether it passed its probation.
    pub proven: bool,
    /// Tags that it was deployed under.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Reference>,
}

impl ImageMemory {
    /// Blocks a digest that has failed, and remembers it for the case that the tag returns to it.
    pub(super) fn block(&mut self, digest: &Digest) {
        self.blocked = Some(digest.clone());
        remember(&mut self.failed_digests, digest);
    }

    /// Takes back that a digest has failed: any image would have.
    pub(super) fn acquit(&mut self, digest: &Digest) {
        self.blocked.take_if(|blocked| *blocked == *digest);
        self.failed_tags.retain(|_, failed| *failed != *digest);
        self.forget_failure(digest);
    }

    /// Whether a digest is blocked, under this tag or a newer one.
    pub fn is_blocked(&self, digest: &Digest) -> bool {
        self.blocked.as_ref() == Some(digest) || self.failed_tags.values().any(|failed| failed == digest)
    }

    /// Records that a newer tag is announced; `false` if it was before. The newest one may be withdrawn, and the lists of a
    /// registry's replicas differ.
    pub(super) fn announce(&mut self, tag: &str) -> bool {
        if self.told_tag.as_deref() == Some(tag) || self.told_before.iter().any(|told| told == tag) {
            return false;
        }
        self.told_before.extend(self.told_tag.replace(tag.to_owned()));
        let surplus = self.told_before.len().saturating_sub(MAX_TOLD);
        self.told_before.drain(..surplus);
        true
    }

    /// Whether anything is withheld that a user may release.
    pub(super) fn is_withheld(&self) -> bool {
        self.blocked.is_some()
            || !self.failed_tags.is_empty()
            || self.declined.is_some()
            || self.declined_tag.is_some()
    }

    /// Releases all that is withheld, at a user's request. Returns the digests that were, the blocked one first.
    pub(super) fn release(&mut self) -> Vec<Digest> {
        self.declined_tag = None;
        let mut released = self.take_blocked();
        let declined = self.declined.take().filter(|digest| !released.contains(digest));
        released.extend(declined);
        // A digest that stayed known as failed would be blocked again by the next check.
        for digest in &released {
            self.forget_failure(digest);
        }
        released
    }

    /// Forgets what is withheld of an image that is no longer configured, whose failures stay known. Returns the digests that
    /// were blocked.
    pub(super) fn forget_withheld(&mut self) -> Vec<Digest> {
        (self.not_found, self.unproven, self.pulled) = (None, None, None);
        (self.declined, self.declined_tag, self.rolled_back_from) = (None, None, None);
        self.take_blocked()
    }

    /// Takes the digests that are blocked, under this tag or a newer one: each once, and that of this tag first.
    fn take_blocked(&mut self) -> Vec<Digest> {
        let mut blocked: Vec<Digest> = self.blocked.take().into_iter().collect();
        for digest in std::mem::take(&mut self.failed_tags).into_values() {
            if !blocked.contains(&digest) {
                blocked.push(digest);
            }
        }
        blocked
    }

    /// Whether this digest has failed here before, at whatever time.
    pub(super) fn failed_before(&self, digest: &Digest) -> bool {
        self.failed_digests.contains(digest)
    }

    /// Forgets that a digest has failed: it was proven, or a user has released it.
    pub(super) fn forget_failure(&mut self, digest: &Digest) {
        self.failed_digests.retain(|known| known != digest);
    }

    /// Notes that the image has moved from one proven digest to another.
    pub(super) fn leave(&mut self, old: &Digest, new: &Digest) {
        self.left_digests.retain(|known| known != new);
        remember(&mut self.left_digests, old);
    }

    /// Whether this digest was proven here and left for another.
    pub(super) fn has_left(&self, digest: &Digest) -> bool {
        self.left_digests.contains(digest)
    }

    /// Records that a digest has passed its probation. Its time is that of the first proof in a row.
    pub(super) fn note_proof(&mut self, digest: &Digest, now: Timestamp) {
        if self.proof.as_ref().is_none_or(|known| known.digest != *digest) {
            self.proof = Some(Proof { digest: digest.clone(), at: now });
        }
    }

    /// Whether this image runs, or ran last, without having been proven.
    pub(super) fn is_unproven(&self, id: &ImageId) -> bool {
        self.unproven.as_ref() == Some(id)
    }

    /// Records an image that runs without having been proven, and what a rollback would restore instead.
    pub(super) fn note_unproven(&mut self, id: Option<&ImageId>, target: Option<&OldImage>) {
        if target.is_some_and(|target| self.is_rejected(&target.id)) {
            return;
        }
        if let Some(id) = id {
            self.unproven = Some(id.clone());
        }
        self.keep_target(target);
    }

    /// Keeps an earlier image as the rollback target, if there is one.
    pub(super) fn keep_target(&mut self, target: Option<&OldImage>) {
        if let Some(target) = target.filter(|target| !self.is_rejected(&target.id)) {
            self.proven = Some(target.clone());
        }
    }

    /// Whether this image was not proven, and another one is the rollback target in its place. Going back from it by hand
    /// changes neither, unless that one is proven again.
    pub(super) fn is_rejected(&self, id: &ImageId) -> bool {
        self.target_instead_of(Some(id)).is_some_and(|proven| proven.id != *id)
    }

    /// Returns the proven image that a rollback restores in place of `running`, which was not proven. `None` if nothing is
    /// known against `running`: it is the rollback target itself.
    pub(super) fn target_instead_of(&self, running: Option<&ImageId>) -> Option<&OldImage> {
        self.proven.as_ref().filter(|_| running.is_some_and(|id| self.is_unproven(id)))
    }

    /// Records that an image was proven: it moves to the end, as there is one entry per digest.
    pub(super) fn note_in_history(&mut self, proven: ProvenImage) {
        let history = &mut self.history;
        for left in history.iter_mut().filter(|one| one.left_at.is_none()) {
            left.left_at = Some(proven.proven_at);
        }
        history.retain(|one| one.digest != proven.digest);
        history.push(proven);
        let surplus = history.len().saturating_sub(MAX_PROVEN);
        history.drain(..surplus);
    }

    /// Returns the entry of a digest in the history.
    pub(super) fn in_history(&self, digest: &Digest) -> Option<&ProvenImage> {
        self.history.iter().find(|one| one.digest == *digest)
    }

    /// Whether an image was proven here under a digest that has not failed since.
    pub(super) fn was_proven(&self, id: &ImageId) -> bool {
        self.history.iter().any(|one| one.id == *id && !self.failed_before(&one.digest))
    }

    /// Records an image that was deployed under a reference.
    pub(super) fn note_deployed(&mut self, id: &ImageId, proven: bool, reference: &Reference) {
        let mut tags = self.take_deployed(id).map(|image| image.tags).unwrap_or_default();
        if reference.tag.is_some() && !reference.is_pinned() && !tags.contains(reference) {
            tags.push(reference.clone());
        }
        self.add_deployed(DeployedImage { id: id.clone(), proven, tags });
    }

    /// Records an image that was proven before those that are known.
    pub(super) fn note_deployed_earlier(&mut self, id: &ImageId, reference: &Reference) {
        self.note_deployed(id, true, reference);
        if let Some(image) = self.deployed.pop() {
            self.deployed.insert(0, image);
        }
    }

    /// Records an image that was pulled while nothing used it. It has no tag: the tag stays on the earlier image.
    pub(super) fn note_pulled(&mut self, id: &ImageId) {
        let before = self.take_deployed(id);
        let pulled = || DeployedImage { id: id.clone(), proven: false, tags: Vec::new() };
        self.add_deployed(before.unwrap_or_else(pulled));
    }

    /// The image that was pulled last, if it still waits for a container that uses it.
    pub(super) fn waiting_image(&self) -> Option<&ImageId> {
        let last = self.deployed.last().filter(|_| self.pulled.is_some())?;
        // A newer one that was deployed and has failed has a tag.
        last.tags.is_empty().then_some(&last.id)
    }

    fn take_deployed(&mut self, id: &ImageId) -> Option<DeployedImage> {
        let at = self.deployed.iter().position(|image| image.id == *id)?;
        Some(self.deployed.remove(at))
    }

    fn add_deployed(&mut self, image: DeployedImage) {
        self.deployed.push(image);
        let surplus = self.deployed.len().saturating_sub(MAX_DEPLOYED);
        self.deployed.drain(..surplus);
    }

    /// Returns the record of a digest whose update has failed because the data could not be copied.
    pub(super) fn not_copied(&self, digest: &Digest) -> Option<&NotCopied> {
        self.not_copied.as_ref().filter(|known| known.digest == *digest)
    }

    /// Forgets the records of the digests in the registry: nothing asks for them any longer.
    pub(super) fn forget_found(&mut self) {
        self.found.clear();
        self.behind_since = None;
    }

    /// Returns the record of what a reference points to in its registry.
    pub(super) fn found_as(&self, reference: &Reference) -> Option<&Found> {
        self.found.iter().find(|found| found.reference.as_ref() == Some(reference))
    }

    /// Returns the record of a digest under a reference.
    pub(super) fn found_digest(&self, reference: &Reference, digest: &Digest) -> Option<&Found> {
        let of_both = |found: &&Found| found.digest == *digest && found.reference.as_ref() == Some(reference);
        self.found.iter().find(of_both)
    }
}

/// Adds a digest as the newest one.
fn remember(digests: &mut Vec<Digest>, digest: &Digest) {
    digests.retain(|known| known != digest);
    digests.push(digest.clone());
    let surplus = digests.len().saturating_sub(MAX_DIGESTS);
    digests.drain(..surplus);
}

/// The memories of all images of a service, by image as configured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Images(FewMap<String, ImageMemory>);

impl Images {
    /// Returns the memory of an image; an empty one if nothing is known of it.
    pub fn get(&self, image: &str) -> &ImageMemory {
        static NOTHING: LazyLock<ImageMemory> = LazyLock::new(ImageMemory::default);
        self.0.get(image).unwrap_or(&NOTHING)
    }

    /// Returns the memory of an image, to be changed.
    pub fn of(&mut self, image: &str) -> &mut ImageMemory {
        self.0.entry(image)
    }

    /// Iterates over all memories in the order of their images.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ImageMemory)> {
        self.0.iter().map(|(image, memory)| (image.as_str(), memory))
    }

    /// Iterates over all memories, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut ImageMemory)> {
        self.0.iter_mut().map(|(image, memory)| (image.as_str(), memory))
    }

    /// The blocked digests with their images.
    pub fn blocked(&self) -> impl Iterator<Item = (&str, &Digest)> {
        self.iter().filter_map(|(image, memory)| Some((image, memory.blocked.as_ref()?)))
    }

    /// The digests that could not be resolved locally, with their images.
    pub fn not_found(&self) -> impl Iterator<Item = (&str, &Digest)> {
        self.iter().filter_map(|(image, memory)| Some((image, memory.not_found.as_ref()?)))
    }

    /// The digests that operators have replaced, with their images.
    pub fn declined(&self) -> impl Iterator<Item = (&str, &Digest)> {
        self.iter().filter_map(|(image, memory)| Some((image, memory.declined.as_ref()?)))
    }

    /// The digests that failed under newer tags, by tag, with their images.
    pub fn failed_tags(&self) -> impl Iterator<Item = (&str, &FailedTags)> {
        self.iter().map(|(image, memory)| (image, &memory.failed_tags)).filter(|(_, tags)| !tags.is_empty())
    }

    /// The records of the digests in the registry.
    pub fn found(&self) -> impl Iterator<Item = &Found> {
        self.iter().flat_map(|(_, memory)| &memory.found)
    }

    /// The same, to be changed.
    pub(super) fn found_mut(&mut self) -> impl Iterator<Item = &mut Found> {
        self.iter_mut().flat_map(|(_, memory)| &mut memory.found)
    }

    /// Reports whether an image runs, or ran last, without having been proven.
    pub(super) fn has_unproven(&self) -> bool {
        self.iter().any(|(_, memory)| memory.unproven.is_some())
    }

    /// Whether an image with this ID runs, or ran last, without having been proven.
    pub(super) fn is_unproven(&self, id: &ImageId) -> bool {
        self.iter().any(|(_, memory)| memory.is_unproven(id))
    }

    /// What was not proven is replaced or proven by now, except images for which `stays` holds.
    pub(super) fn forget_unproven(&mut self, stays: impl Fn(&str, &ImageId) -> bool) {
        for (image, memory) in self.iter_mut() {
            memory.unproven = memory.unproven.take().filter(|id| stays(image, id));
        }
    }
}

impl Serialize for Images {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let nothing = ImageMemory::default();
        to.collect_map(self.0.iter().filter(|(_, memory)| **memory != nothing))
    }
}

impl<'de> Deserialize<'de> for Images {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        FewMap::deserialize(from).map(Self)
    }
}

/// A local image, and where to pull it again if it is gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct OldImage {
    /// Its ID.
    pub id: ImageId,
    /// Where it can be pulled: the repository pinned to a digest. `None` for an image that was only built locally.
    pub source: Option<Reference>,
}
