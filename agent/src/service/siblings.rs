//! Coordination of the services of one compose project: while one of them changes the project, the others neither change
//! nor evaluate anything, and every container is healed by exactly one of them.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;

use crate::config::{ConfiguredImage, ServiceConfig};
use crate::model::Container;
use crate::model::image::{Digest, Reference};

use super::Service;
use super::rollout::plan::Cause;

/// The compose project from the perspective of one of its services.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SharedProject {
    /// All its services, including this one; empty if there is only one.
    services: Arc<[Arc<ServiceConfig>]>,
    /// The other service that is changing the project.
    busy_with: Option<String>,
    /// Incremented when another service begins to change the project: inspections begun before are stale.
    changes: u64,
}

impl SharedProject {
    /// The containers that the service `name` heals, or whose problems it reports if no service heals.
    pub(super) fn healed_by<'a>(&self, name: &str, containers: &'a [Container]) -> Cow<'a, [Container]> {
        if self.services.len() < 2 {
            return Cow::Borrowed(containers);
        }
        let is_own = |c: &&Container| self.healer_of(c).is_none_or(|healer| healer.name == name);
        Cow::Owned(containers.iter().filter(is_own).cloned().collect())
    }

    /// Whether another service is changing the project.
    pub(super) fn is_busy(&self) -> bool {
        self.busy_with.is_some()
    }

    /// The first service with `auto_heal` that has the container's image, or else the first with `auto_heal`.
    fn healer_of(&self, container: &Container) -> Option<&ServiceConfig> {
        let has_image =
            |s: &ServiceConfig| s.images.iter().any(|image| container.is_made_from(&image.reference));
        // `min_by_key` returns the first of several equal services.
        let healer = self.services.iter().min_by_key(|s| (!s.auto_heal, !has_image(s)));
        healer.map(|service| &**service)
    }
}

impl Service {
    /// Sets all services of the compose project, in the order in which they are considered as healers.
    pub fn set_siblings(&mut self, services: Arc<[Arc<ServiceConfig>]>) {
        self.project.services = services;
    }

    /// The other services of the project.
    pub(super) fn siblings(&self) -> impl Iterator<Item = &ServiceConfig> {
        let all = self.project.services.iter().map(|service| &**service);
        all.filter(|service| service.name != self.config.name)
    }

    /// Another service has begun to change the project.
    pub fn sibling_begins(&mut self, name: &str) {
        if self.project.busy_with.is_none() {
            self.project.changes += 1;
        }
        if self.project.busy_with.as_deref() != Some(name) {
            self.project.busy_with = Some(name.to_owned());
        }
    }

    /// The other service that a pending update of this one waits for.
    pub(super) fn waits_for(&self) -> Option<String> {
        self.project.busy_with.clone().filter(|_| self.wants_update())
    }

    /// The project is free again: earlier reads are stale, and planned actions must be decided again.
    pub fn sibling_ends(&mut self, now: Timestamp) {
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
    pub(super) fn reference_of<'a>(&'a self, image: &'a ConfiguredImage) -> &'a Reference {
        let mut views = self.known.observation.iter().flat_map(|seen| &seen.images);
        let view = views.find(|view| view.configured == image.configured);
        view.map_or(&image.reference, |view| &view.from)
    }

    /// The generation of inspections: a result from a different generation is stale.
    pub(super) fn inspection_generation(&self) -> u64 {
        self.generation + self.project.changes
    }
}
