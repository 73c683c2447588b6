//! The images that the services of this agent need. All of them are in one engine, and services of several projects may use the
//! same image: none removes what another one goes back to.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::image::ImageId;

use super::published;

/// The published states of all services, by name. Clones share them.
#[derive(Clone, Default)]
pub struct NeededImages(Arc<Mutex<BTreeMap<String, published::Receiver>>>);

impl NeededImages {
    /// Adds a service. At the start of the agent, none removes images before all are added.
    pub(super) fn add(&self, service: &str, published: published::Receiver) {
        let mut services = self.0.lock();
        services.retain(|_, published| !published.has_ended());
        services.insert(service.to_owned(), published);
    }

    /// Returns the name of another service that needs an image.
    pub(super) fn other_user(&self, service: &str, image: &ImageId) -> Option<String> {
        let services = self.0.lock();
        let needs = |published: &published::Receiver| {
            !published.has_ended() && published.get().service.needed_images().contains(image)
        };
        let mut others = services.iter().filter(|(name, _)| *name != service);
        others.find(|(_, published)| needs(published)).map(|(name, _)| name.clone())
    }
}
