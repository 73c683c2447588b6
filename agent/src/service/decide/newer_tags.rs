//! Which newer tag is deployed next, and which have failed.

use jiff::Timestamp;

use crate::model::image::Digest;
use crate::service::Service;
use crate::service::event::Event;
use crate::service::observation::{ImageView, Observation};
use crate::service::rollout::plan::ImageChange;
use crate::service::upkeep::maintenance::NotNewer;
use crate::service::upkeep::newer_tags::NewerTags;

impl Service {
    /// The newer tags for the next check.
    pub(in crate::service) fn newer_tags(&self) -> NewerTags {
        NewerTags {
            tags: self.tags_to_deploy(),
            failed: self
                .durable
                .images
                .failed_tags()
                .map(|(image, tags)| (image.to_owned(), tags.clone()))
                .collect(),
            is_stuck: self.durable.rollback_failed,
        }
    }

    /// Tags that may be written into the env file, newest first. Until the registry has answered after a start, it is the
    /// tag that was known before, so that a waiting period in progress does not start over.
    pub(in crate::service) fn tags_to_deploy(&self) -> Vec<String> {
        let Some(image) = self.config.images_of_variable().next() else { return Vec::new() };
        let mut tags = self.known_newer(&image.configured);
        if let Some(declined) = &self.durable.images.get(&image.configured).declined_tag {
            tags.retain(|tag| self.is_newer_tag(tag, declined));
        }
        // After a failed rollback only the newest tag is tried.
        if self.durable.rollback_failed {
            tags.truncate(1);
        }
        tags
    }

    /// Known tags that are newer than the one in use, newest first.
    fn known_newer(&self, image: &str) -> Vec<String> {
        if let Some(known) = self.maintenance.newer.get(image) {
            return known.clone();
        }
        let before = &self.durable.images.get(image).newest_tag;
        before.iter().filter(|_| !self.maintenance.has_tags).cloned().collect()
    }

    /// Whether this agent has seen the tags without the newer one that it queries now for the first time, as far as is known.
    pub(in crate::service) fn has_listed_without(&self, view: &ImageView) -> bool {
        let was_listed = || self.durable.images.get(&view.configured).tags_listed;
        *view.target() != view.reference
            && (self.maintenance.is_relisted || (!self.maintenance.has_tags && was_listed()))
    }

    /// Whether a tag is newer than another one by the pattern of the tag variable.
    pub(in crate::service) fn is_newer_tag(&self, tag: &str, than: &str) -> bool {
        self.config.tag_variable().is_some_and(|variable| variable.pattern.newest(than, [tag]).is_some())
    }

    /// Records the tag that a person has replaced with an older one in the env file, and drops a record that no longer
    /// applies. A tag that the agent has left itself has failed.
    pub(in crate::service) fn follow_declined_tag(
        &mut self,
        before: Option<&str>,
        after: &str,
        now: Timestamp,
    ) {
        let Some(first) = self.config.images_of_variable().next() else { return };
        let image = first.configured.clone();
        let memory = self.durable.images.get(&image);
        if memory.declined_tag.as_ref().is_some_and(|declined| !self.is_newer_tag(declined, after)) {
            self.durable.images.of(&image).declined_tag = None;
        }
        let memory = self.durable.images.get(&image);
        let is_left = |tag: &&str| self.is_newer_tag(tag, after) && !memory.failed_tags.contains_key(*tag);
        let Some(left) = before.filter(is_left).filter(|_| memory.declined_tag.is_none()) else { return };
        self.durable.images.of(&image).declined_tag = Some(left.to_owned());
        // The approval has brought it here once.
        for found in self.durable.images.found_mut() {
            let is_of_tag = found.reference.as_ref().is_some_and(|of| of.tag.as_deref() == Some(left));
            found.approved &= !is_of_tag;
        }
        self.emit(Event::NotNewerTag { image, tag: left.to_owned(), why: NotNewer::Declined }, now);
    }

    /// Records the failed tags of a deployment, for images that use the tag variable.
    pub(in crate::service) fn note_failed_tags(&mut self, changes: &[ImageChange]) {
        for change in changes.iter().filter(|change| self.config.is_of_variable(&change.configured)) {
            let Some(tag) = &change.reference.tag else { continue };
            let memory = self.durable.images.of(&change.configured);
            memory.failed_tags.insert(tag.clone(), change.digest.clone());
        }
    }

    /// Passes over a newer tag that has no image for this machine, like one that has failed. The next newest one is tried.
    pub(in crate::service) fn pass_over_tag(&mut self, change: &ImageChange, why: &str, now: Timestamp) {
        self.note_failed_tags(std::slice::from_ref(change));
        self.note_passed_over(change, why, now);
    }

    /// Drops failed tags that are no longer newer than the one in force, or that now point to a different digest.
    pub(in crate::service) fn follow_failed_tags(&mut self, observation: &Observation) {
        // Unknown if the env file can't be read.
        let in_force = observation.tag.as_ref().map(|in_force| in_force.setting.tag.clone());
        let mut images = std::mem::take(&mut self.durable.images);
        for (image, memory) in images.iter_mut().filter(|(_, memory)| !memory.failed_tags.is_empty()) {
            let view = observation.images.iter().find(|view| view.configured == image);
            let is_followed = view.is_some() && self.config.is_of_variable(image);
            let is_moved = |tag: &str, digest: &Digest| {
                let asked = view.filter(|view| view.target().tag.as_deref() == Some(tag));
                asked.and_then(|view| view.remote.as_ref()).is_some_and(|remote| remote != digest)
            };
            memory.failed_tags.retain(|tag, digest| {
                let is_newer = in_force.as_ref().is_none_or(|in_force| self.is_newer_tag(tag, in_force));
                is_followed && is_newer && !is_moved(tag, digest)
            });
        }
        self.durable.images = images;
    }

    /// The image is up to date under `tag`: blocks the digest of the newest failed tag that is newer than `tag`. Digests of
    /// older tags are not blocked: [`Self::lift_block`] would lift the block again, and report it with every check.
    pub(in crate::service) fn block_newest_failed(&mut self, image: &str, tag: Option<&str>) {
        let memory = self.durable.images.get(image);
        if memory.blocked.is_some() {
            return;
        }
        let is_newer = |failed: &str| tag.is_none_or(|tag| self.is_newer_tag(failed, tag));
        let failed = memory.failed_tags.iter().filter(|(tag, _)| is_newer(tag));
        let newest = failed.reduce(|a, b| if self.is_newer_tag(b.0, a.0) { b } else { a });
        if let Some(digest) = newest.map(|(_, digest)| digest.clone()) {
            self.durable.images.of(image).blocked = Some(digest);
        }
    }

    /// A digest other than the blocked one is available under `tag`: lifts the block and returns its digest. The block stays
    /// while a newer tag than this one points to the blocked digest.
    pub(in crate::service) fn lift_block(&mut self, image: &str, tag: Option<&str>) -> Option<Digest> {
        let memory = self.durable.images.get(image);
        let blocked = memory.blocked.as_ref()?;
        let mut of_digest = memory.failed_tags.iter().filter(|(_, digest)| *digest == blocked);
        if of_digest.any(|(failed, _)| tag.is_some_and(|tag| self.is_newer_tag(failed, tag))) {
            return None;
        }
        self.durable.images.of(image).blocked.take()
    }

    /// The registry has a digest that failed under a newer tag: blocks it, like every failed digest. A newer tag that points
    /// to a blocked digest also counts as failed, and the next one is tried.
    pub(in crate::service) fn note_blocked(&mut self, view: &ImageView) {
        let Some(remote) = &view.remote else { return };
        let memory = self.durable.images.get(&view.configured);
        if !memory.is_blocked(remote) {
            return;
        }
        let memory = self.durable.images.of(&view.configured);
        let newer = view.newer.as_ref().and_then(|newer| newer.tag.clone());
        if let Some(tag) = newer {
            memory.failed_tags.insert(tag, remote.clone());
        }
        memory.blocked.get_or_insert_with(|| remote.clone());
    }
}
