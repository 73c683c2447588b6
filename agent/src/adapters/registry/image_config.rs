//! Reads an image's configuration, without pulling the image. What was read of a digest never changes, so it is kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::answer::or_null;
use super::fault::Fault;
use super::{Host, RegistryClient, subject};
use crate::model::image::{Digest, Repository};
use crate::model::image_config::ImageConfig;
use crate::model::{Platform, RegistryError};

/// Maximum size of an image's configuration in bytes.
const CONFIG_LIMIT: usize = 1024 * 1024;
/// Timeout of all requests together, as an update waits for them.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How many configurations are kept.
const MAX_KEPT: usize = 256;

/// 1990-01-01T00:00:00Z.
const EARLIEST: i64 = 631_152_000;

/// A digest in a repository, and the platform of the image that is wanted of an index.
type Key = (Repository, Digest, Option<Platform>);

/// The configurations that were read.
#[derive(Debug, Default)]
pub(super) struct Configs(Mutex<HashMap<Key, Arc<OnceCell<ImageBlob>>>>);

impl Configs {
    fn entry(&self, key: Key) -> Arc<OnceCell<ImageBlob>> {
        let mut kept = self.0.lock();
        if kept.len() >= MAX_KEPT && !kept.contains_key(&key) {
            // Any of them: emptying it would read all again in each cycle of a machine with more images.
            let other = kept.keys().next().cloned();
            if let Some(other) = other {
                kept.remove(&other);
            }
        }
        kept.entry(key).or_default().clone()
    }
}

/// What is read of an image's configuration.
#[derive(Debug, Clone)]
pub(super) struct ImageBlob {
    pub(super) config: ImageConfig,
    /// When the image was created. Times before 1990 are those of reproducible builds, and count as unknown.
    pub(super) created: Option<Timestamp>,
}

/// An index or a manifest.
#[derive(Deserialize)]
struct Manifest {
    #[serde(default, deserialize_with = "or_null")]
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
    #[serde(default, deserialize_with = "or_null")]
    platform: EntryPlatform,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EntryPlatform {
    os: String,
    architecture: String,
    variant: String,
}

impl EntryPlatform {
    fn read(&self) -> Option<Platform> {
        Platform::new(&self.os, &self.architecture, &self.variant)
    }
}

impl RegistryClient {
    /// Returns the configuration of an image; of an index, that of the image for this platform, or else of the first one.
    /// `None` if the registry has none that can be read.
    pub(super) async fn image_config(
        &self,
        repository: &Repository,
        digest: &Digest,
        platform: Option<&Platform>,
    ) -> Result<Option<ImageBlob>, RegistryError> {
        let entry = self.configs.entry((repository.clone(), digest.clone(), platform.cloned()));
        // Concurrent calls for the same digest wait for this result.
        let read = entry.get_or_try_init(async || match self.config_of(repository, digest, platform).await {
            Ok(blob) => blob.and_then(|blob| parse(&blob)).ok_or(None),
            Err(error) => Err(Some(error)),
        });
        match read.await {
            Ok(image) => Ok(Some(image.clone())),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    async fn config_of(
        &self,
        repository: &Repository,
        digest: &Digest,
        platform: Option<&Platform>,
    ) -> Result<Option<Vec<u8>>, RegistryError> {
        let too_slow = || {
            Fault::Unfinished(format!("{}: timed out reading the image's configuration", subject(repository)))
        };
        let read = |host: Arc<Host>| async move {
            let read = Box::pin(self.read_config(&host, repository, digest, platform));
            let read = timeout(TIMEOUT, read).await.unwrap_or_else(|_| Err(too_slow()))?;
            if read.is_none() && host.is_mirror() {
                return Err(Fault::Image(format!("{}: its mirror does not have it", subject(repository))));
            }
            Ok(read)
        };
        self.ask_with_mirrors(repository, read).await
    }

    async fn read_config(
        &self,
        host: &Host,
        repository: &Repository,
        digest: &Digest,
        platform: Option<&Platform>,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let mut digest = digest.clone();
        // An index, then the image of one platform. An index may also list attestations, whose platform is unknown.
        for _ in 0..2 {
            let body =
                self.manifest(host, &repository.pinned(&digest)).await?.filter(|body| digest.is_of(body));
            let Some(manifest) = body.and_then(|body| serde_json::from_slice::<Manifest>(&body).ok()) else {
                break;
            };
            if let Some(config) = manifest.config {
                return self.blob(host, repository, &config.digest, CONFIG_LIMIT).await;
            }
            let images: Vec<Entry> =
                manifest.manifests.into_iter().filter(|entry| entry.platform.os != "unknown").collect();
            let suits = |entry: &&Entry| match (platform, entry.platform.read()) {
                (Some(wanted), Some(of_entry)) => of_entry.satisfies(wanted),
                _ => false,
            };
            let Some(entry) = images.iter().find(suits).or(images.first()) else { break };
            digest = entry.digest.clone();
        }
        Ok(None)
    }
}

fn parse(blob: &[u8]) -> Option<ImageBlob> {
    let image: Value = serde_json::from_slice(blob).ok()?;
    let created =
        image.get("created").and_then(Value::as_str).and_then(|text| text.parse::<Timestamp>().ok());
    Some(ImageBlob {
        config: image.get("config").map(ImageConfig::read).unwrap_or_default(),
        created: created.filter(|created| created.as_second() > EARLIEST),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::super::Credentials;
    use super::*;
    use crate::config::RegistryConfig;
    use crate::ports::Registry;

    async fn put(server: &MockServer, kind: &str, content: &Value) -> Digest {
        let body = content.to_string().into_bytes();
        let digest = Digest::of(&body);
        let answer = ResponseTemplate::new(200).set_body_bytes(body);
        let place = format!("/v2/web/{kind}/{digest}");
        Mock::given(method("GET")).and(path(place)).respond_with(answer).mount(server).await;
        digest
    }

    fn client_of(server: &MockServer) -> (RegistryClient, Repository) {
        let home_host = server.address().to_string();
        let config = RegistryConfig {
            url: server.uri(),
            host: home_host.clone(),
            concurrency: 2,
            ..Default::default()
        };
        let credentials = Credentials::new(None, String::new().into());
        let client = RegistryClient::new(&config, std::sync::Arc::new(credentials)).unwrap();
        let repository = Repository { host: home_host, path: "web".into() };
        (client, repository)
    }

    #[tokio::test]
    async fn a_configuration_is_read_once_directly_and_through_an_index() {
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

        let (client, repository) = client_of(&server);
        for (digest, version) in
            [(&image, Some("1.2")), (&index, Some("1.2")), (&bare, None), (&Digest::of(b"gone"), None)]
        {
            let said = client.config(&repository, digest, None).await.expect("it answers");
            let labels = said.map(|config| config.labels).unwrap_or_default();
            assert_eq!((labels.version.as_deref(), labels.source), (version, None), "{digest}");
            let read = client.image_config(&repository, digest, None).await.expect("it answers");
            let created = read.and_then(|image| image.created).map(|at| at.to_string());
            assert_eq!(created.as_deref(), version.map(|_| "2026-01-02T03:04:05.678Z"), "{digest}");
        }
    }

    #[test]
    fn a_full_cache_loses_one_configuration_for_another() {
        let configs = Configs::default();
        let entry = |n: usize| {
            let repository = Repository { host: "r.example".into(), path: "web".into() };
            configs.entry((repository, Digest::of(n.to_string().as_bytes()), None))
        };
        for n in 0..MAX_KEPT + 10 {
            let kept = entry(n);
            assert!(Arc::ptr_eq(&kept, &entry(n)), "it is kept");
            assert_eq!(configs.0.lock().len(), MAX_KEPT.min(n + 1));
        }
    }

    #[tokio::test]
    async fn of_an_index_the_image_for_the_platform_is_read_and_only_once() {
        let server = MockServer::start().await;
        let mut entries = vec![json!({ "digest": Digest::of(b"x"), "platform": { "os": "unknown" } })];
        let odd = json!({ "digest": Digest::of(b"y"), "platform": null });
        for (architecture, user) in [("arm64", "1000"), ("amd64", "999")] {
            let config = put(&server, "blobs", &json!({ "config": { "User": user } })).await;
            let manifest = json!({ "schemaVersion": 2, "config": { "digest": config } });
            let image = put(&server, "manifests", &manifest).await;
            let platform = json!({ "os": "linux", "architecture": architecture });
            entries.push(json!({ "digest": image, "platform": platform }));
        }
        entries.push(odd);
        let index = put(&server, "manifests", &json!({ "schemaVersion": 2, "manifests": entries })).await;
        let (client, repository) = client_of(&server);
        for (platform, user) in [(Some("linux/amd64"), "999"), (Some("linux/s390x"), "1000"), (None, "1000")]
        {
            let platform = platform.and_then(Platform::parse);
            for _ in 0..3 {
                let read = client.config(&repository, &index, platform.as_ref()).await.expect("it answers");
                assert_eq!(read.expect("it has one").user, user, "{platform:?}");
            }
        }
        let requests = server.received_requests().await.expect("they are recorded");
        let reads = |what: &str| requests.iter().filter(|request| request.url.path().contains(what)).count();
        assert_eq!((reads("blobs"), reads(index.as_str())), (3, 3), "once per platform");
    }
}
