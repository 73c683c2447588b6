//! The registry client in use: it is exchanged when `registry.url` changes while the program runs (DECISIONS 2).

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;

use super::RegistryClient;
use crate::model::image::{Digest, ImageLabels, Reference, Repository};
use crate::model::{RegistryError, SignatureError, SignatureVerdict};
use crate::ports::{Registry, Signatures, Tags, Urgency};

/// Passes every question on to the client that is in use at that moment.
pub struct CurrentRegistry(RwLock<Arc<RegistryClient>>);

impl CurrentRegistry {
    /// Begins with this client.
    pub fn new(client: Arc<RegistryClient>) -> Self {
        Self(RwLock::new(client))
    }

    /// Uses another from now on; questions under way are answered by the one that they were put to.
    pub fn replace(&self, client: Arc<RegistryClient>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = client;
    }

    fn client(&self) -> Arc<RegistryClient> {
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

    async fn labels(&self, repository: &Repository, digest: &Digest) -> ImageLabels {
        self.client().labels(repository, digest).await
    }
}

#[async_trait]
impl Signatures for CurrentRegistry {
    async fn verify(
        &self,
        repository: &Repository,
        digest: &Digest,
        keys: &[PathBuf],
    ) -> Result<SignatureVerdict, SignatureError> {
        self.client().verify(repository, digest, keys).await
    }

    async fn unusable_keys(&self, keys: &[PathBuf]) -> Vec<String> {
        self.client().unusable_keys(keys).await
    }
}

#[async_trait]
impl Tags for CurrentRegistry {
    async fn tags(&self, repository: &Repository, anew: bool) -> Result<Arc<[String]>, RegistryError> {
        self.client().tags(repository, anew).await
    }
}
