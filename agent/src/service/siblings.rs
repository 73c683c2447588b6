//! Coordination of the services of one compose project: while one of them changes the project, the others neither change
//! nor evaluate anything, and every container is healed by exactly one of them.

use std::borrow::Cow;
use std::sync::Arc;

use crate::config::{ConfiguredImage, ServiceConfig};
use crate::model::Container;
use crate::model::image::Reference;

/// The compose project from the perspective of one of its services.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct SharedProject {
    /// All its services, including this one; empty if there is only one.
    pub(in crate::service) services: Arc<[Arc<ServiceConfig>]>,
    /// The other service that is changing the project.
    pub(in crate::service) busy_with: Option<String>,
    /// Incremented when another service begins to change the project: inspections begun before are stale.
    pub(in crate::service) changes: u64,
}

impl SharedProject {
    /// The containers that the service `name` heals, or whose problems it reports if no service heals.
    pub(in crate::service) fn healed_by<'a>(
        &self,
        name: &str,
        containers: &'a [Container],
    ) -> Cow<'a, [Container]> {
        if self.services.len() < 2 {
            return Cow::Borrowed(containers);
        }
        let is_own = |c: &&Container| self.healer_of(c).is_none_or(|healer| healer.name == name);
        Cow::Owned(containers.iter().filter(is_own).cloned().collect())
    }

    /// Whether another service is changing the project.
    pub(in crate::service) fn is_busy(&self) -> bool {
        self.busy_with.is_some()
    }

    /// The first service with `auto_heal` that has the container's image, or else the first with `auto_heal`. Of a container
    /// that is not of the project, only the services know that have its name.
    fn healer_of(&self, container: &Container) -> Option<&ServiceConfig> {
        let made_from = Reference::parse(&container.config_image).ok();
        // The tag of a variable is in the env file, whatever the configuration says.
        let has_repository = |image: &ConfiguredImage| {
            made_from.as_ref().is_some_and(|from| from.repository == image.reference.repository)
        };
        let has_image = |s: &ServiceConfig| {
            s.images.iter().any(|image| container.is_made_from(&image.reference))
                || s.images_of_variable().any(has_repository)
        };
        let is_outside = self.services.iter().any(|s| s.is_outside_project(container));
        let knows = |s: &ServiceConfig| !is_outside || s.container_name.as_ref() == Some(&container.name);
        let knowing = self.services.iter().filter(|s| knows(s));
        // `min_by_key` returns the first of several equal services.
        let healer = knowing.min_by_key(|s| (!s.auto_heal, !has_image(s)));
        healer.map(|service| &**service)
    }
}
