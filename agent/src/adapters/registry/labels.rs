//! Reads an image's labels from its configuration, without pulling the image.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::timeout;

use super::fault::Fault;
use super::{Host, RegistryClient, subject};
use crate::model::RegistryError;
use crate::model::image::{Digest, ImageLabels, Reference, Repository};
use crate::ports::Urgency;

/// Maximum size of an image's configuration in bytes.
const CONFIG_LIMIT: usize = 1024 * 1024;
/// Timeout of all requests together, as an update waits for them.
const TIMEOUT: Duration = Duration::from_secs(5);

/// 1990-01-01T00:00:00Z.
const EARLIEST: i64 = 631_152_000;

/// An index or a manifest.
#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    manifests: Vec<Entry>,
    config: Option<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: Digest,
}

/// The image of one platform.
#[derive(Deserialize)]
struct Entry {
    digest: Digest,
    #[serde(default)]
    platform: Platform,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Platform {
    os: String,
}

#[derive(Deserialize)]
struct Image {
    created: Option<String>,
    #[serde(default)]
    config: Config,
}

#[derive(Default, Deserialize)]
struct Config {
    #[serde(rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

impl RegistryClient {
    pub(super) async fn labels_of(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<ImageLabels, RegistryError> {
        let config = self.config_of(repository, digest).await?;
        Ok(config.map(|blob| labels(&blob)).unwrap_or_default())
    }

    /// Returns when an image was created. Times before 1990 are those of reproducible builds.
    pub(super) async fn created_of(&self, repository: &Repository, digest: &Digest) -> Option<Timestamp> {
        let blob = self.config_of(repository, digest).await.ok()??;
        let image: Image = serde_json::from_slice(&blob).ok()?;
        let created: Timestamp = image.created?.parse().ok()?;
        (created.as_second() > EARLIEST).then_some(created)
    }

    async fn config_of(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<Vec<u8>>, RegistryError> {
        let host = self.host(&repository.host).await?;
        let pass = host.gate.pass(Urgency::Routine).await?;
        let read = timeout(TIMEOUT, Box::pin(self.read_config(&host, repository, digest))).await;
        let too_slow = || Fault::Repository(format!("{}: timed out reading the labels", subject(repository)));
        let outcome = read.unwrap_or_else(|_| Err(too_slow()));
        pass.settle(&outcome);
        Ok(outcome?)
    }

    async fn read_config(
        &self,
        host: &Host,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let mut digest = digest.clone();
        // An index, then the image of one platform, as all are built from the same sources. An index may also list
        // attestations, whose platform is unknown.
        for _ in 0..2 {
            let pinned =
                Reference { repository: repository.clone(), tag: None, digest: Some(digest.clone()) };
            let body = self.manifest(host, &pinned).await?.filter(|body| digest.is_of(body));
            let Some(manifest) = body.and_then(|body| serde_json::from_slice::<Manifest>(&body).ok()) else {
                break;
            };
            if let Some(config) = manifest.config {
                return self.blob(host, repository, &config.digest, CONFIG_LIMIT).await;
            }
            let is_image = |entry: &Entry| entry.platform.os != "unknown";
            let Some(entry) = manifest.manifests.into_iter().find(is_image) else { break };
            digest = entry.digest;
        }
        Ok(None)
    }
}

fn labels(config: &[u8]) -> ImageLabels {
    let image: Option<Image> = serde_json::from_slice(config).ok();
    let labels = image.and_then(|image| image.config.labels).unwrap_or_default();
    ImageLabels::read(|name| labels.get(name).map(String::as_str))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::super::{Credentials, RegistrySettings};
    use super::*;
    use crate::ports::Registry;

    async fn put(server: &MockServer, kind: &str, content: &Value) -> Digest {
        let body = content.to_string().into_bytes();
        let digest = Digest::of(&body);
        let answer = ResponseTemplate::new(200).set_body_bytes(body);
        let place = format!("/v2/web/{kind}/{digest}");
        Mock::given(method("GET")).and(path(place)).respond_with(answer).mount(server).await;
        digest
    }

    #[tokio::test]
    async fn labels_are_read_directly_and_through_an_index_and_are_empty_if_the_image_is_missing() {
        let server = MockServer::start().await;
        let labels = json!({ "org.opencontainers.image.version": "1.2", "other": "x" });
        let config = put(
            &server,
            "blobs",
            &json!({ "created": "2026-01-02T03:04:05.678Z", "config": { "Labels": labels } }),
        )
        .await;
        let manifest = json!({ "schemaVersion": 2, "config": { "digest": config } });
        let image = put(&server, "manifests", &manifest).await;
        let attestation = json!({ "digest": config, "platform": { "os": "unknown" } });
        let entry = json!({ "digest": image, "platform": { "os": "linux" } });
        let index = json!({ "schemaVersion": 2, "manifests": [attestation, entry] });
        let index = put(&server, "manifests", &index).await;
        let bare = put(
            &server,
            "blobs",
            &json!({ "created": "1970-01-01T00:00:00Z", "config": { "Labels": null } }),
        )
        .await;
        let bare =
            put(&server, "manifests", &json!({ "schemaVersion": 2, "config": { "digest": bare } })).await;

        let home_host = server.address().to_string();
        let settings = RegistrySettings {
            home: server.uri(),
            home_host: home_host.clone(),
            insecure: false,
            concurrency: 2,
        };
        let credentials = Credentials::new(None, String::new().into());
        let client = RegistryClient::new(settings, std::sync::Arc::new(credentials)).unwrap();
        let repository = Repository { host: home_host, path: "web".into() };
        for (digest, version) in
            [(&image, Some("1.2")), (&index, Some("1.2")), (&bare, None), (&Digest::of(b"gone"), None)]
        {
            let said = client.labels(&repository, digest).await;
            assert_eq!((said.version.as_deref(), said.source), (version, None), "{digest}");
            let created = client.created_of(&repository, digest).await.map(|at| at.to_string());
            assert_eq!(created.as_deref(), version.map(|_| "2026-01-02T03:04:05.678Z"), "{digest}");
        }
    }
}
