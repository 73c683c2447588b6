//! What is remembered of an image that was proven, and the state of each image for the fleet and `/why`: the running digest,
//! when it was proven, and the digest in the registry.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::config::ConfiguredImage;
use crate::model::Container;
use crate::model::image::{Digest, ImageId, Reference};
use crate::service::images::OldImage;
use crate::service::observation::{ImageView, LocalImage};
use crate::service::rollout::plan::ImageChange;
use crate::service::{Service, compare};

/// The state of one configured image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageState {
    /// As configured.
    pub image: String,
    /// The digest of its live containers; `None` if there are none, or if it is unknown.
    pub running: Option<Digest>,
    /// When that digest passed its probation here; `None` while a deployment is in progress.
    pub proven_at: Option<Timestamp>,
    /// The digest in the registry, if it does not run. Includes digests that are blocked, held or not signed.
    pub available: Option<Digest>,
    /// The reference of that digest: with a newer tag, if there is one that may be deployed.
    pub available_as: Option<Reference>,
    /// Since when the image has lacked that digest, or one that its tag pointed to before.
    pub behind_since: Option<Timestamp>,
}

impl Service {
    /// Records that a digest of an image passed its probation and runs. What the last check saw of the image is no longer so:
    /// no gate holds what runs.
    fn note_proof(&mut self, image: &str, id: ImageId, digest: &Digest, now: Timestamp) {
        let seen = self.known.observation.as_mut().map(Arc::make_mut);
        let mut views = seen.into_iter().flat_map(|seen| &mut seen.images);
        if let Some(view) = views.find(|view| view.configured == image) {
            // The size of a new image is read by the next check; the same image may have come under another digest.
            let size = view.running.iter().find(|known| known.id == id).map_or(0, |known| known.size);
            view.running = vec![LocalImage { id, digests: vec![digest.clone()], size }];
        }
        self.durable.images.of(image).note_proof(digest, now);
    }

    /// Remembers that an image has passed its probation and runs, under compose or in a swarm.
    pub(in crate::service) fn remember_proven(&mut self, change: &ImageChange, id: ImageId, now: Timestamp) {
        let memory = self.durable.images.of(&change.configured);
        memory.proven = Some(OldImage { id: id.clone(), source: Some(change.source(&change.digest)) });
        if let Some(old) = change.old_digest.as_ref().filter(|old| **old != change.digest) {
            memory.leave(old, &change.digest);
        }
        self.note_proof(&change.configured, id, &change.digest, now);
    }

    /// Remembers that what the registry has of an image is in use: whatever was known against it no longer counts.
    pub(in crate::service) fn remember_in_use(&mut self, change: &ImageChange) {
        let memory = self.durable.images.of(&change.configured);
        (memory.pulled, memory.unproven, memory.behind_since) = (None, None, None);
        memory.forget_failure(&change.digest);
        self.lift_block(&change.configured, change.reference.tag.as_deref());
    }

    /// The state of each configured image.
    pub fn image_states(&self) -> Vec<ImageState> {
        self.config.images.iter().map(|image| self.image_state(image)).collect()
    }

    fn image_state(&self, image: &ConfiguredImage) -> ImageState {
        let known = self.known_images(image);
        let id_of = |c: &Container| known.iter().find(|local| local.id == c.image);
        let live: Vec<Option<&LocalImage>> = self.live_containers(image).map(id_of).collect();
        let published = self.published(image);
        let remote = published.as_ref().map(|(digest, _)| digest);
        let runs = live.iter().copied().flatten().next();
        let running =
            runs.and_then(|local| compare::shown_digest(local, remote.or(image.reference.digest.as_ref())));
        let lacks = |digest: &Digest| {
            if live.is_empty() {
                // An image that was pulled and is not used yet counts as present.
                return known.iter().all(|local| !local.digests.contains(digest));
            }
            live.iter().flatten().any(|local| !local.digests.contains(digest))
        };
        let (available, since) = published.filter(|(digest, _)| lacks(digest)).unzip();
        ImageState {
            image: image.configured.clone(),
            proven_at: self.proof_of(image, &live).filter(|_| running.is_some()),
            running,
            available_as: self
                .view_of(image)
                .filter(|_| available.is_some())
                .map(|view| view.target().clone()),
            available,
            behind_since: since.flatten(),
        }
    }

    /// Time since the new digest was first seen under its tag. Without gates this is not recorded; then it is the time since
    /// the deployment began, because the check that found the digest also began the deployment.
    pub(in crate::service) fn time_since_found(
        &self,
        change: &ImageChange,
        begun: Timestamp,
        now: Timestamp,
    ) -> Duration {
        let memory = self.durable.images.get(&change.configured);
        let found = memory.found_digest(&change.reference, &change.digest);
        let found = found.map(|found| found.first_seen.min(begun));
        Duration::try_from(now.duration_since(found.unwrap_or(begun))).unwrap_or_default()
    }

    /// When the digest that these containers run passed its probation.
    fn proof_of(&self, image: &ConfiguredImage, live: &[Option<&LocalImage>]) -> Option<Timestamp> {
        let memory = self.durable.images.get(&image.configured);
        let proof = memory.proof.as_ref().filter(|_| !self.is_deploying())?;
        let is_proven =
            |local: &LocalImage| local.digests.contains(&proof.digest) && !memory.is_unproven(&local.id);
        live.iter().all(|local| local.is_some_and(is_proven)).then_some(proof.at)
    }

    /// The digest that the tag points to in the registry, as far as known, and since when the image has lacked it, if it does.
    fn published(&self, image: &ConfiguredImage) -> Option<(Digest, Option<Timestamp>)> {
        let view = self.view_of(image).filter(|_| self.can_check())?;
        let memory = self.durable.images.get(&image.configured);
        let found = memory.found_as(view.target());
        let digest = view.remote.as_ref().or(found.map(|found| &found.digest))?;
        // The fleet may have seen this digest before.
        let first_seen = found.filter(|found| found.digest == *digest).map(|found| found.first_seen);
        let since = first_seen.into_iter().chain(memory.behind_since).min();
        Some((digest.clone(), since))
    }

    /// The view of an image as of the last check.
    pub(in crate::service) fn view_of(&self, image: &ConfiguredImage) -> Option<&ImageView> {
        let views = self.known.observation.iter().flat_map(|seen| &seen.images);
        views.into_iter().find(|view| view.configured == image.configured)
    }

    /// The known local images of a configured image: those of the last check, and the one pulled since.
    pub(in crate::service) fn known_images(&self, image: &ConfiguredImage) -> Vec<LocalImage> {
        let seen = self.view_of(image).into_iter().flat_map(|view| view.running.iter().chain(&view.tagged));
        seen.chain(self.known.pulled.get(&image.configured)).cloned().collect()
    }

    /// The live containers of an image, except those that compose does not update.
    pub(in crate::service) fn live_containers<'a>(
        &'a self,
        image: &'a ConfiguredImage,
    ) -> impl Iterator<Item = &'a Container> {
        // A deployment in progress may have changed its tag.
        let mut changes = self.durable.deployment.iter().flat_map(|d| &d.plan().image_changes);
        let change = changes.find(|change| change.configured == image.configured);
        let is_of = move |c: &Container| {
            c.is_made_from(self.reference_of(image)) || change.is_some_and(|change| change.is_of_container(c))
        };
        let left_behind = &self.durable.left_behind;
        self.containers().iter().filter(move |c| c.is_live() && is_of(c) && !left_behind.contains(&c.id))
    }
}
