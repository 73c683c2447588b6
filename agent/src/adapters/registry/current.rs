//! The registry client in use. A reload that changes `registry.url` replaces it (DECISIONS 2).

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::RwLock;

use super::RegistryClient;
use crate::model::image::{Digest, Reference, Repository};
use crate::model::image_config::ImageConfig;
use crate::model::{Platform, RegistryError, SignatureError, SignatureVerdict, Signers};
use crate::ports::{Registry, Signatures, Tags, Urgency};

/// Forwards every call to the client currently in use.
pub struct CurrentRegistry(RwLock<Arc<RegistryClient>>);

impl CurrentRegistry {
    /// Creates it with an initial client.
    pub fn new(client: Arc<RegistryClient>) -> Self {
        Self(RwLock::new(client))
    }

    /// Replaces the client. Calls in progress finish with the previous one.
    pub fn replace(&self, client: Arc<RegistryClient>) {
        *self.0.write() = client;
    }

    fn client(&self) -> Arc<RegistryClient> {
        self.0.read().clone()
    }
}

#[async_trait]
impl Registry for CurrentRegistry {
    async fn digest(&self, reference: &Reference, urgency: Urgency) -> Result<Digest, RegistryError> {
        self.client().digest(reference, urgency).await
    }

    async fn digest_from_content(&self, reference: &Reference) -> Result<Digest, RegistryError> {
        self.client().digest_from_content(reference).await
    }

    async fn has(&self, repository: &Repository, digest: &Digest) -> Result<bool, RegistryError> {
        self.client().has(repository, digest).await
    }

    async fn config(
        &self,
        repository: &Repository,
        digest: &Digest,
        platform: Option<&Platform>,
    ) -> Result<Option<ImageConfig>, RegistryError> {
        self.client().config(repository, digest, platform).await
    }

    async fn created(&self, reference: &Reference) -> Result<Option<Timestamp>, RegistryError> {
        self.client().created(reference).await
    }

    fn is_gone(&self, reference: &Reference) -> bool {
        self.client().is_gone(reference)
    }
}

#[async_trait]
impl Signatures for CurrentRegistry {
    async fn verify(
        &self,
        repository: &Repository,
        digest: &Digest,
        signers: &Signers,
    ) -> Result<SignatureVerdict, SignatureError> {
        self.client().verify(repository, digest, signers).await
    }

    async fn key_errors(&self, keys: &[PathBuf]) -> Vec<String> {
        self.client().key_errors(keys).await
    }
}

#[async_trait]
impl Tags for CurrentRegistry {
    async fn tags(&self, repository: &Repository, refresh: bool) -> Result<Arc<[String]>, RegistryError> {
        self.client().tags(repository, refresh).await
    }
}
