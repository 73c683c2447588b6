//! Tags that are newer than the one in force and may be written into the env file (`tag_variable`, DECISIONS 7): which of
//! them is next, and which have failed.
//!
//! The newest one whose digest has not failed here is deployed. One that failed is asked for with every check: when the
//! registry has another digest under it, it is tried again.

use std::collections::BTreeMap;

use crate::model::image::Digest;

use super::Service;
use super::input::{ImageView, Observation};
use super::rollout::plan::ImageChange;

/// Newer tags that are known of each image: as many may fail one after the other.
pub const MOST_NEWER: usize = 5;

/// Digests that failed under newer tags: by image as configured, then by tag.
pub type FailedTags = BTreeMap<String, BTreeMap<String, Digest>>;

/// What a check has to know of newer tags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewerTags {
    /// Those of the images whose tag is written into the env file, the newest first.
    pub tags: Vec<String>,
    /// Those that failed.
    pub failed: FailedTags,
    /// The last rollback failed.
    pub is_stuck: bool,
}

impl Service {
    /// What the next check has to know of newer tags.
    pub(super) fn newer_tags(&self) -> NewerTags {
        NewerTags {
            tags: self.tags_to_deploy(),
            failed: self.durable.failed_tags.clone(),
            is_stuck: self.durable.rollback_failed,
        }
    }

    /// Tags that may be written into the env file, the newest first. Until the registry was asked after a start it is the
    /// one that was known before, so that a wait that has begun does not begin anew.
    pub(super) fn tags_to_deploy(&self) -> Vec<String> {
        let Some(image) = self.config.images_of_variable().next() else { return Vec::new() };
        let mut tags = self.known_newer(&image.configured);
        // After a rollback that failed nothing is tried but what is newer still.
        if self.durable.rollback_failed {
            tags.truncate(1);
        }
        tags
    }

    /// Newer than the one in use, the newest first.
    fn known_newer(&self, image: &str) -> Vec<String> {
        if let Some(known) = self.maintenance.newer.get(image) {
            return known.clone();
        }
        let told = self.durable.told_tags.get(image).filter(|_| !self.maintenance.has_looked);
        told.cloned().into_iter().collect()
    }

    /// Whether a tag of the variable is newer than another one.
    pub(super) fn is_newer_tag(&self, tag: &str, than: &str) -> bool {
        self.config.tag_variable().is_some_and(|variable| variable.pattern.newest(than, [tag]).is_some())
    }

    /// New images failed: of those that are deployed by their tag it is noted which one that was.
    pub(super) fn note_failed_tags(&mut self, changes: &[ImageChange]) {
        for change in changes.iter().filter(|change| self.config.is_of_variable(&change.configured)) {
            let Some(tag) = &change.reference.tag else { continue };
            let failed = self.durable.failed_tags.entry(change.configured.clone()).or_default();
            failed.insert(tag.clone(), change.digest.clone());
        }
    }

    /// Forgets failed tags that are not newer than the one in force any more, or name another digest by now.
    pub(super) fn follow_failed_tags(&mut self, observation: &Observation) {
        if self.durable.failed_tags.is_empty() {
            return;
        }
        // Where the env file can't be read, nothing is known.
        let in_force = observation.tag.as_ref().map(|in_force| in_force.setting.tag.clone());
        let mut failed = std::mem::take(&mut self.durable.failed_tags);
        failed.retain(|image, tags| {
            let view = observation.images.iter().find(|view| view.configured == *image);
            let is_moved = |tag: &str, digest: &Digest| {
                let asked = view.filter(|view| view.target().tag.as_deref() == Some(tag));
                asked.and_then(|view| view.remote.as_ref()).is_some_and(|remote| remote != digest)
            };
            tags.retain(|tag, digest| {
                let is_newer = in_force.as_ref().is_none_or(|in_force| self.is_newer_tag(tag, in_force));
                is_newer && !is_moved(tag, digest)
            });
            view.is_some() && self.config.is_of_variable(image) && !tags.is_empty()
        });
        self.durable.failed_tags = failed;
    }

    /// The image is up to date under `tag`: of the tags newer than that which failed the newest is what is blocked. What
    /// failed under an older one is not: [`Self::lift_block`] would lift it again, and say so with every check.
    pub(super) fn block_newest_failed(&mut self, image: &str, tag: Option<&str>) {
        if self.durable.blocked.contains_key(image) {
            return;
        }
        let is_newer = |failed: &str| tag.is_none_or(|tag| self.is_newer_tag(failed, tag));
        let failed = self.durable.failed_tags.get(image).into_iter().flatten();
        let failed = failed.filter(|(tag, _)| is_newer(tag));
        let newest = failed.reduce(|a, b| if self.is_newer_tag(b.0, a.0) { b } else { a });
        if let Some((_, digest)) = newest {
            self.durable.blocked.insert(image.to_owned(), digest.clone());
        }
    }

    /// Something else than the blocked digest of an image is at hand under `tag`: its block is over, and returned. It stays
    /// while a newer tag than this one has it.
    pub(super) fn lift_block(&mut self, image: &str, tag: Option<&str>) -> Option<Digest> {
        let blocked = self.durable.blocked.get(image)?;
        let failed = self.durable.failed_tags.get(image).into_iter().flatten();
        let mut of_digest = failed.filter(|(_, digest)| *digest == blocked);
        if of_digest.any(|(failed, _)| tag.is_some_and(|tag| self.is_newer_tag(failed, tag))) {
            return None;
        }
        self.durable.blocked.remove(image)
    }

    /// A digest that failed under a newer tag is what the registry has: it is blocked, as every digest that failed. A newer
    /// tag that names a blocked digest has failed, too, and the next one is tried.
    pub(super) fn note_blocked(&mut self, view: &ImageView) {
        let Some(remote) = &view.remote else { return };
        let image = &view.configured;
        let newer = view.newer.as_ref().and_then(|newer| newer.tag.clone());
        if let Some(tag) = newer.filter(|_| self.durable.is_blocked(image, remote)) {
            self.durable.failed_tags.entry(image.clone()).or_default().insert(tag, remote.clone());
        }
        if !self.durable.blocked.contains_key(image) && self.durable.is_blocked(image, remote) {
            self.durable.blocked.insert(image.clone(), remote.clone());
        }
    }
}
