//! The other services of the compose project, and which of them is changing it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::config::{ConfiguredImage, ServiceConfig};
use crate::model::image::{Digest, Reference};
use crate::service::Service;
use crate::service::rollout::plan::Cause;

impl Service {
    /// The other services of the project.
    pub(in crate::service) fn siblings(&self) -> impl Iterator<Item = &ServiceConfig> {
        let all = self.project.services.iter().map(|service| &**service);
        all.filter(|service| service.name != self.config.name)
    }

    /// The variables of env files that the agent itself writes for this service or another one of the project. Several may share
    /// a file, and none takes that for an edit of its compose files.
    pub(in crate::service) fn own_variables(&self) -> BTreeSet<String> {
        let all = std::iter::once(&*self.config).chain(self.siblings());
        all.filter_map(|service| Some(service.tag_variable()?.name.to_owned())).collect()
    }

    /// Another service has begun to change the project.
    pub(in crate::service) fn sibling_begins(&mut self, name: &str) {
        if self.project.busy_with.is_none() {
            self.project.changes += 1;
        }
        if self.project.busy_with.as_deref() != Some(name) {
            self.project.busy_with = Some(name.to_owned());
        }
    }

    /// The other service that a deployment of this one waits for before it can begin.
    pub(in crate::service) fn waits_for(&self) -> Option<String> {
        self.project.busy_with.clone().filter(|_| self.wanted.is_some())
    }

    /// The project is free again: earlier reads are stale, and planned actions must be decided again.
    pub(in crate::service) fn sibling_ends(&mut self, now: Timestamp) {
        if self.project.busy_with.take().is_none() {
            return;
        }
        self.generation += 1;
        self.healer.inspect_first();
        self.inspections.request_by(now);
        if let Some(cause) = self.wanted.take() {
            self.checks.repeat(matches!(cause, Cause::Redeploy | Cause::GoBack(_)));
            self.retry_rollback |= cause == Cause::RetryRollback;
            if let Cause::GoBack(back) = cause {
                self.going_back = Some(back);
            }
        }
    }

    /// Blocked images, normalized, for the other services of the project: their `up` must not deploy them.
    pub fn blocked_references(&self) -> impl Iterator<Item = (Reference, Digest)> {
        let memories = &self.durable.images;
        let own = |image: &ConfiguredImage| {
            let digest = memories.get(&image.configured).blocked.clone()?;
            Some((self.reference_of(image).clone(), digest))
        };
        let newer = |image: &'_ ConfiguredImage| {
            let failed = memories.get(&image.configured).failed_tags.iter();
            let repository = image.reference.repository.clone();
            failed.map(move |(tag, digest)| {
                let repository = repository.clone();
                (Reference { repository, tag: Some(tag.clone()), digest: None }, digest.clone())
            })
        };
        let images = &self.config.images;
        images.iter().filter_map(own).chain(images.iter().flat_map(newer))
    }

    /// The reference that containers of an image were created from, as of the last check.
    pub(in crate::service) fn reference_of<'a>(&'a self, image: &'a ConfiguredImage) -> &'a Reference {
        let mut views = self.known.observation.iter().flat_map(|seen| &seen.images);
        let view = views.find(|view| view.configured == image.configured);
        view.map_or(&image.reference, |view| &view.from)
    }

    /// The generation of inspections: a result from a different generation is stale.
    pub(in crate::service) fn inspection_generation(&self) -> u64 {
        self.generation + self.project.changes
    }
}
