//! The images that were proven here, and the way back to them (DECISIONS 14).

use jiff::Timestamp;

use crate::config::ConfiguredImage;
use crate::model::image::{Digest, ImageId, Reference};
use crate::service::Service;
use crate::service::images::ProvenImage;
use crate::service::rollout::plan::{Earlier, ImageChange};

/// Why there is no way back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoWayBack {
    /// No other image was proven here.
    NoEarlier,
    /// The reason why the image that was named is none to go back to, in one sentence.
    Refused(String),
}

impl Service {
    /// Records the images of a deployment that has passed its probation. An image that ran, well, before the first one counts
    /// as proven by it.
    pub(in crate::service) fn note_history(
        &mut self,
        change: &ImageChange,
        id: &ImageId,
        version: Option<String>,
        now: Timestamp,
    ) {
        self.note_earlier(change, now);
        let proven = ProvenImage {
            digest: change.digest.clone(),
            id: id.clone(),
            reference: change.reference.clone(),
            proven_at: now,
            left_at: None,
            version,
        };
        self.durable.images.of(&change.configured).note_in_history(proven);
    }

    /// Records the image that ran, well, before the first deployment.
    pub(in crate::service) fn note_earlier(&mut self, change: &ImageChange, now: Timestamp) {
        let image = &change.configured;
        let was_well = self.durable.deployment.as_ref().is_some_and(|deployment| {
            let of_old = |was: &&crate::service::rollout::baseline::Baseline| {
                change.old.as_ref().is_some_and(|old| old.id == was.image)
            };
            deployment.plan().before.iter().filter(of_old).any(|was| was.well)
        });
        if let (Some(digest), Some(old), true) = (&change.old_digest, &change.old, was_well)
            && self.durable.images.get(image).in_history(digest).is_none()
            && !self.durable.images.get(image).is_rejected(&old.id)
        {
            let reference = change.from.clone().unwrap_or_else(|| change.reference.clone());
            let (digest, id) = (digest.clone(), old.id.clone());
            let first = ProvenImage { digest, id, reference, proven_at: now, left_at: None, version: None };
            self.durable.images.of(image).note_in_history(first);
        }
    }

    /// The images that were proven here, newest first, per configured image.
    pub fn history(&self) -> impl Iterator<Item = (&str, &ProvenImage)> {
        let images = self.config.images.iter().map(|image| image.configured.as_str());
        images.flat_map(|image| {
            self.durable.images.get(image).history.iter().rev().map(move |one| (image, one))
        })
    }

    /// Returns the images to go back to: the named one, or what was proven before the last change. All images that changed with
    /// it go back, too.
    pub fn earlier(&self, to: Option<&Digest>) -> Result<Vec<Earlier>, NoWayBack> {
        let images: Vec<&ConfiguredImage> = self.config.images.iter().collect();
        let chosen = match to {
            Some(digest) => self.named(&images, digest)?,
            None => self.before_the_last_change(&images),
        };
        self.with_images_of_variable(chosen)
    }

    /// Returns the images to go back to from these, which were updated together.
    pub(in crate::service) fn earlier_of(&self, updated: &[String]) -> Result<Vec<Earlier>, NoWayBack> {
        let images: Vec<&ConfiguredImage> =
            self.config.images.iter().filter(|image| updated.contains(&image.configured)).collect();
        self.with_images_of_variable(self.before_the_last_change(&images))
    }

    fn named(&self, images: &[&ConfiguredImage], digest: &Digest) -> Result<Vec<Earlier>, NoWayBack> {
        let found = |image: &&ConfiguredImage| {
            let memory = self.durable.images.get(&image.configured);
            Some(earlier(image, memory.in_history(digest)?))
        };
        let chosen: Vec<Earlier> = images.iter().filter_map(found).collect();
        if chosen.is_empty() {
            return Err(NoWayBack::Refused(format!(
                "{digest} was not proven here; GET /history/{} lists what was",
                self.config.name
            )));
        }
        let runs = |one: &Earlier| {
            let of_image = images.iter().find(|image| image.configured == one.configured);
            self.running_digest(&one.configured).as_ref() == Some(digest)
                || of_image.is_some_and(|image| self.runs_only(image, &one.id))
        };
        if chosen.iter().all(runs) {
            return Err(NoWayBack::Refused(format!("{digest} runs already")));
        }
        Ok(chosen)
    }

    /// Of each of these images that the last deployment of any of them has changed, the one that was proven before.
    fn before_the_last_change(&self, images: &[&ConfiguredImage]) -> Vec<Earlier> {
        let candidate = |image: &&ConfiguredImage| {
            let memory = self.durable.images.get(&image.configured);
            let history = &memory.history;
            let running = self.running_digest(&image.configured);
            // What came last is none of them if it was not proven, running or not.
            let last = history.last().filter(|_| memory.unproven.is_none());
            let shown = running.as_ref().or(last.map(|last| &last.digest));
            // One image may have been proven under several digests: to go from one to the other changes nothing.
            let ran_last = last.filter(|_| running.is_none());
            let is_same = |one: &ProvenImage| {
                self.runs_only(image, &one.id) || ran_last.is_some_and(|last| last.id == one.id)
            };
            let is_other = |one: &&ProvenImage| {
                shown != Some(&one.digest)
                    && !is_same(one)
                    && !memory.is_blocked(&one.digest)
                    && !memory.failed_before(&one.digest)
                    && memory.declined.as_ref() != Some(&one.digest)
            };
            let one = history.iter().rev().find(is_other)?;
            // What runs without having been proven came last. A job that has finished does not run.
            let is_idle = self.live_containers(image).next().is_none();
            let current = running.as_ref().or(last.map(|last| &last.digest).filter(|_| is_idle));
            let since = history.iter().find(|one| current == Some(&one.digest));
            Some((since.map_or(Timestamp::MAX, |one| one.proven_at), earlier(image, one)))
        };
        let all: Vec<(Timestamp, Earlier)> = images.iter().filter_map(candidate).collect();
        let last = all.iter().map(|(since, _)| *since).max();
        all.into_iter().filter(|(since, _)| Some(*since) == last).map(|(_, one)| one).collect()
    }

    /// Whether all live containers of an image run on this ID, and there are any.
    fn runs_only(&self, image: &ConfiguredImage, id: &ImageId) -> bool {
        let mut live = self.live_containers(image).peekable();
        live.peek().is_some() && live.all(|container| container.image == *id)
    }

    /// Adds the other images whose tag is the same variable: they have one tag, and go back together.
    fn with_images_of_variable(&self, mut chosen: Vec<Earlier>) -> Result<Vec<Earlier>, NoWayBack> {
        if chosen.is_empty() {
            return Err(NoWayBack::NoEarlier);
        }
        let of_variable = |name: &str| self.config.is_of_variable(name);
        let Some(tag) =
            chosen.iter().find(|one| of_variable(&one.configured)).map(|one| one.reference.tag.clone())
        else {
            return Ok(chosen);
        };
        for image in self.config.images.iter().filter(|image| of_variable(&image.configured)) {
            let has_tag = |reference: &Reference| reference.tag == tag;
            chosen.retain(|one| one.configured != image.configured || has_tag(&one.reference));
            if chosen.iter().any(|one| one.configured == image.configured) {
                continue;
            }
            let history = &self.durable.images.get(&image.configured).history;
            let one = history.iter().rev().find(|one| has_tag(&one.reference));
            let Some(one) = one else {
                let tag = tag.unwrap_or_default();
                let why = format!(
                    "{} goes back together with the others, and none of its images with the tag {tag} was proven here",
                    image.configured
                );
                return Err(NoWayBack::Refused(why));
            };
            chosen.push(earlier(image, one));
        }
        Ok(chosen)
    }

    /// Whether an image of the history runs, under whatever digest.
    pub fn runs_proven(&self, configured: &str, proven: &ProvenImage) -> bool {
        let image = self.config.images.iter().find(|image| image.configured == configured);
        self.running_digest(configured).as_ref() == Some(&proven.digest)
            || image.is_some_and(|image| self.live_containers(image).any(|c| c.image == proven.id))
    }

    /// The digest of a configured image that runs, if it is known.
    pub fn running_digest(&self, configured: &str) -> Option<Digest> {
        let state = self.image_states().into_iter().find(|state| state.image == configured);
        state.and_then(|state| state.running)
    }
}

fn earlier(image: &ConfiguredImage, proven: &ProvenImage) -> Earlier {
    Earlier {
        configured: image.configured.clone(),
        reference: proven.reference.clone(),
        digest: proven.digest.clone(),
        id: proven.id.clone(),
    }
}
