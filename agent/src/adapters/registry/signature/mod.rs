//! Verifies key-based cosign signatures of images (DECISIONS 7).
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | where signatures are stored: the tag `sha256-<hex>.sig`, and the referrers of the digest |
//! | [`payload`] | signed payloads and their verification |
//! | [`key`] | public keys |
//!
//! No content is trusted unless one of the keys has signed it. A registry that omits a signature, or adds others, can only
//! delay an update.

mod key;
mod payload;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::timeout;

use self::key::KeySet;
use self::payload::{Bundle, Expected, best, integrated_of_annotation};
use super::answer::or_null;
use super::content::{Listing, Page};
use super::fault::Fault;
use super::{Host, RegistryClient, subject};
use crate::model::image::{Digest, Reference, Repository};
use crate::model::signature::{SignatureError, SignatureFlaw, SignatureVerdict, Signers};
use crate::ports::{Signatures, Urgency};

/// Type of a layer with a simple signing payload. The signature is in an annotation.
const SIMPLE_LAYER: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
/// The entry of the transparency log, if the signature was put into one.
const REKOR_ANNOTATION: &str = "dev.sigstore.cosign/bundle";
/// Type of a referrer with layers of that type.
const SIMPLE_ARTIFACT: &str = "application/vnd.dev.cosign.artifact.sig.v1+json";
/// Common prefix of the types of all Sigstore bundle versions: `….v0.3+json`, `…+json;version=0.2`.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";
/// Type of the empty configuration of a bundle's manifest. For a registry without the referrers API, cosign's library writes it
/// into the list as the type of the bundle (kyverno#16664).
const EMPTY_CONFIG: &str = "application/vnd.oci.empty.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// Maximum size of a payload or a bundle in bytes. Cosign's have a few kilobytes.
const CONTENT_LIMIT: usize = 512 * 1024;
/// Maximum number of manifests and blobs read for one image.
const MAX_READS: u32 = 100;
/// Maximum number of pages of referrers.
const MAX_PAGES: usize = 10;
/// Timeout of all reads for one image.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of cached verdicts.
const MAX_CACHED: usize = 4096;

/// Images with a valid signature, with the digest of the keys and of the other repositories, and when it was made. A valid
/// signature stays valid.
pub(super) type Remembered = Mutex<HashMap<(Repository, Digest, Digest), Option<Timestamp>>>;

#[async_trait]
impl Signatures for RegistryClient {
    async fn verify(
        &self,
        repository: &Repository,
        digest: &Digest,
        signers: &Signers,
    ) -> Result<SignatureVerdict, SignatureError> {
        // Read each time, so that a changed file takes effect immediately.
        let KeySet { keys, mut content, .. } = KeySet::read(&signers.keys).await.usable()?;
        for repository in &signers.signed_for {
            content.extend_from_slice(format!("\n{repository}").as_bytes());
        }
        let image = (repository.clone(), digest.clone(), Digest::of(&content));
        if let Some(&integrated) = self.signed.lock().get(&image) {
            return Ok(SignatureVerdict::Valid { integrated });
        }
        let host = self.host(&repository.host).await?;
        let too_slow =
            || Fault::Unfinished(format!("{}: timed out reading the signatures", subject(repository)));
        let search = || async {
            let search = Search {
                client: self,
                host: &host,
                repository,
                expected: Expected { keys: &keys, digest, repository, signed_for: &signers.signed_for },
                reads_left: MAX_READS,
                flaws: Vec::new(),
            };
            timeout(TIMEOUT, search.run()).await.unwrap_or_else(|_| Err(too_slow()))
        };
        let sent = host.gate.send(Urgency::Routine, search).await;
        let outcome = sent.map_err(|refusal| SignatureError::Registry(refusal.error))?;
        let verdict = outcome.map_err(|fault| SignatureError::Registry(fault.into()))?;
        if let SignatureVerdict::Valid { integrated } = verdict {
            let mut signed = self.signed.lock();
            if signed.len() >= MAX_CACHED {
                signed.clear();
            }
            signed.insert(image, integrated);
        }
        Ok(verdict)
    }

    async fn key_errors(&self, keys: &[PathBuf]) -> Vec<String> {
        KeySet::read(keys).await.faults
    }
}

/// The search for a valid signature of one image.
struct Search<'a> {
    client: &'a RegistryClient,
    host: &'a Host,
    repository: &'a Repository,
    expected: Expected<'a>,
    reads_left: u32,
    /// Why the signatures found so far are not valid.
    flaws: Vec<SignatureFlaw>,
}

/// Result of a search step. A valid signature ends the search.
enum Found {
    Valid(Option<Timestamp>),
    Nothing,
}

impl Search<'_> {
    async fn run(mut self) -> Result<SignatureVerdict, Fault> {
        // If one location cannot be read, the other may still have a valid signature.
        let tagged = self.tagged().await;
        if let Ok(Found::Valid(integrated)) = tagged {
            return Ok(SignatureVerdict::Valid { integrated });
        }
        let referring = self.referring().await;
        if let Ok(Found::Valid(integrated)) = referring {
            return Ok(SignatureVerdict::Valid { integrated });
        }
        // An unread location may have a valid signature, so the image must not be reported as unsigned.
        tagged?;
        referring?;
        let worst = best(self.flaws.into_iter().map(Err));
        Ok(match worst {
            Some(Err(flaw)) => SignatureVerdict::Invalid(flaw),
            _ => SignatureVerdict::Missing,
        })
    }

    /// Searches the signatures under the tag derived from the digest.
    async fn tagged(&mut self) -> Result<Found, Fault> {
        let tag = format!("{}.sig", self.digest_tag());
        match self.manifest(self.tag(tag)).await? {
            Some(manifest) => self.layers(&manifest).await,
            None => Ok(Found::Nothing),
        }
    }

    /// Searches the signatures whose subject is the image. For registries without the referrers API, clients maintain the
    /// list under a tag.
    async fn referring(&mut self) -> Result<Found, Fault> {
        let mut next = Some(self.host.url(self.repository, &format!("referrers/{}", self.expected.digest))?);
        let mut referrers = Vec::new();
        for _ in 0..MAX_PAGES {
            let Some(url) = next else { break };
            let page = self.client.page(self.host, self.repository, url, INDEX_TYPE).await?;
            // Some registries return an HTML page for unknown paths.
            let Listing::Page(Page { body, next: following }) = page else { return self.fallback().await };
            let Ok(index) = serde_json::from_slice::<Index>(&body) else { return self.fallback().await };
            referrers.extend(index.manifests);
            next = following;
        }
        self.referrers(referrers).await
    }

    async fn fallback(&mut self) -> Result<Found, Fault> {
        let Some(index) = self.manifest(self.tag(self.digest_tag())).await? else {
            return Ok(Found::Nothing);
        };
        match serde_json::from_slice::<Index>(&index) {
            Ok(index) => self.referrers(index.manifests).await,
            Err(_) => Ok(Found::Nothing),
        }
    }

    async fn referrers(&mut self, referrers: Vec<Descriptor>) -> Result<Found, Fault> {
        for referrer in referrers.iter().filter(|referrer| referrer.may_hold_signatures()) {
            let Some(manifest) = self.manifest(self.repository.pinned(&referrer.digest)).await? else {
                continue;
            };
            if let found @ Found::Valid(_) = self.layers(&manifest).await? {
                return Ok(found);
            }
        }
        Ok(Found::Nothing)
    }

    /// Checks the signatures in the layers of a manifest.
    async fn layers(&mut self, manifest: &[u8]) -> Result<Found, Fault> {
        let Ok(Manifest { layers }) = serde_json::from_slice(manifest) else {
            self.flaws.push(SignatureFlaw::Malformed);
            return Ok(Found::Nothing);
        };
        for layer in layers {
            let judged = if layer.kind == SIMPLE_LAYER {
                self.simple(&layer).await?
            } else if layer.kind.starts_with(BUNDLE) {
                self.bundle(&layer).await?
            } else {
                continue;
            };
            match judged {
                Ok(integrated) => return Ok(Found::Valid(integrated)),
                Err(flaw) => self.flaws.push(flaw),
            }
        }
        Ok(Found::Nothing)
    }

    async fn simple(
        &mut self,
        layer: &Descriptor,
    ) -> Result<Result<Option<Timestamp>, SignatureFlaw>, Fault> {
        let Some(signature) = layer.annotations.get(SIGNATURE_ANNOTATION) else {
            return Ok(Err(SignatureFlaw::Malformed));
        };
        let payload = self.blob(&layer.digest).await?;
        Ok(payload
            .ok_or(SignatureFlaw::Malformed)
            .and_then(|payload| self.expected.simple(&payload, signature))
            .map(|()| {
                layer.annotations.get(REKOR_ANNOTATION).and_then(|text| integrated_of_annotation(text))
            }))
    }

    async fn bundle(
        &mut self,
        layer: &Descriptor,
    ) -> Result<Result<Option<Timestamp>, SignatureFlaw>, Fault> {
        let Some(text) = self.blob(&layer.digest).await? else { return Ok(Err(SignatureFlaw::Malformed)) };
        let bundle = match Bundle::parse(&text) {
            Ok(bundle) => bundle,
            Err(flaw) => return Ok(Err(flaw)),
        };
        if let Some(judged) = self.expected.bundle(&bundle) {
            return Ok(judged.map(|()| bundle.integrated()));
        }
        let manifest = self.manifest(self.repository.pinned(self.expected.digest)).await?;
        Ok(manifest
            .ok_or(SignatureFlaw::Malformed)
            .and_then(|manifest| self.expected.message(&bundle, &manifest))
            .map(|()| bundle.integrated()))
    }

    /// `sha256-<hex>`
    fn digest_tag(&self) -> String {
        // Tags are 128 characters at most (OCI distribution specification), whatever the algorithm.
        self.expected.digest.as_str().replacen(':', "-", 1).chars().take(128).collect()
    }

    fn tag(&self, tag: String) -> Reference {
        Reference { repository: self.repository.clone(), tag: Some(tag), digest: None }
    }

    async fn manifest(&mut self, reference: Reference) -> Result<Option<Vec<u8>>, Fault> {
        self.count()?;
        self.client.manifest(self.host, &reference).await
    }

    async fn blob(&mut self, digest: &Digest) -> Result<Option<Vec<u8>>, Fault> {
        self.count()?;
        self.client.blob(self.host, self.repository, digest, CONTENT_LIMIT).await
    }

    /// Counts a read against the limit.
    fn count(&mut self) -> Result<(), Fault> {
        self.reads_left = self.reads_left.checked_sub(1).ok_or_else(|| {
            let repository = &self.repository.path;
            Fault::Image(format!(
                "{}: too many signatures of one image in {repository}",
                subject(self.repository)
            ))
        })?;
        Ok(())
    }
}

#[derive(Deserialize)]
struct Index {
    #[serde(deserialize_with = "or_null")]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(deserialize_with = "or_null")]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: Digest,
    #[serde(rename = "mediaType", default)]
    kind: String,
    #[serde(rename = "artifactType")]
    artifact_kind: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// Reports whether this may be a signature. A referrer without an artifact type may be one.
    fn may_hold_signatures(&self) -> bool {
        self.artifact_kind
            .as_ref()
            .is_none_or(|kind| kind == SIMPLE_ARTIFACT || kind == EMPTY_CONFIG || kind.starts_with(BUNDLE))
    }
}
