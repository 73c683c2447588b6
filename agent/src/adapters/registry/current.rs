//! The registry client in use: it is exchanged when `registry.url` changes while the program runs (DECISIONS 2).

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;

use crate::model::RegistryError;
use crate::model::image::{Digest, Reference, Repository};
use crate::ports::{Registry, Urgency};

/// Passes every question on to the client that is in use at that moment.
pub struct CurrentRegistry(RwLock<Arc<dyn Registry>>);

impl CurrentRegistry {
    /// Begins with this client.
    pub fn new(client: Arc<dyn Registry>) -> Self {
        Self(RwLock::new(client))
    }

    /// Uses another from now on; questions under way are answered by the one that they were put to.
    pub fn replace(&self, client: Arc<dyn Registry>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = client;
    }

    fn client(&self) -> Arc<dyn Registry> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Registry for CurrentRegistry {
    async fn digest(&self, reference: &Reference, urgency: Urgency) -> Result<Digest, RegistryError> {
        self.client().digest(reference, urgency).await
    }

    async fn confirm(&self, reference: &Reference) -> Result<Digest, RegistryError> {
        self.client().confirm(reference).await
    }

    async fn has(&self, repository: &Repository, digest: &Digest) -> Result<bool, RegistryError> {
        self.client().has(repository, digest).await
    }
}
