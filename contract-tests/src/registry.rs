//! A registry in a container, and pushing to it without the engine's knowledge.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testcontainers::core::{IntoContainerPort, Mount};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, GenericImage, ImageExt};

use crate::image::{OTHER_ARCHITECTURE, architecture, digest, layer, to_bytes};
use crate::{Engine, Image, LABEL, Shape, request, unused_port, wait_for};

const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A registry of this test's own.
pub struct Registry {
    /// `127.0.0.1:port`
    pub host: String,
    /// Value of the `Authorization` header, where it wants one.
    authorization: Option<String>,
    container: Container<GenericImage>,
}

/// What a push made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Digest that the tag now has.
    pub digest: String,
    /// Label by which its containers are told apart.
    pub version: String,
}

impl Registry {
    /// Starts a registry that lets everyone in. Its port is `$EVENKEEL_TEST_REGISTRY_PORT` where that is set: podman
    /// must be told beforehand which registry has no TLS.
    pub fn start() -> Self {
        let port = std::env::var("EVENKEEL_TEST_REGISTRY_PORT").ok();
        Self::run(None, port.map(|port| port.parse().expect("EVENKEEL_TEST_REGISTRY_PORT is a port")))
    }

    /// Starts a registry that tells `url` about everything that happens in it. It lives in the machine's own
    /// network, so that an address of this machine means the same to it.
    pub fn start_with_notifications(url: &str) -> Self {
        let host = format!("127.0.0.1:{}", unused_port());
        let endpoints =
            json!([{ "name": "agent", "url": url, "timeout": "5s", "threshold": 3, "backoff": "1s" }]);
        let container = GenericImage::new("registry", "2")
            .with_label(LABEL, "registry")
            .with_network("host")
            .with_env_var("REGISTRY_HTTP_ADDR", &host)
            .with_env_var("REGISTRY_NOTIFICATIONS_ENDPOINTS", endpoints.to_string())
            .start()
            .expect(
                "a registry:2 container starts; if there is no engine or image, run dist/scripts/bring-up.sh",
            );
        let registry = Self { host, authorization: None, container };
        registry.wait_ready();
        registry
    }

    /// Starts a registry that has the same address on this machine and inside its container, so that an
    /// engine that lives in the container's network finds it under the same name as the agent does.
    pub fn start_for_private_engine() -> Self {
        Self::run(None, Some(unused_port()))
    }

    /// A copy of a [`Registry::start_for_private_engine`] that fetches what it is asked for. Inside its container it has the
    /// same address, so that an engine in the container's network finds the images under the names that they have.
    pub fn start_mirror(of: &Self) -> Self {
        let port: u16 = of.host.rsplit(':').next().and_then(|port| port.parse().ok()).expect("host:port");
        let container = GenericImage::new("registry", "2")
            .with_label(LABEL, "registry")
            .with_env_var("REGISTRY_HTTP_ADDR", format!(":{port}"))
            .with_env_var("REGISTRY_PROXY_REMOTEURL", format!("http://{}:{port}", of.address()))
            .start()
            .expect("a registry:2 container starts where another one does");
        let mut mirror = Self { host: String::new(), authorization: None, container };
        mirror.host = format!("{}:{port}", mirror.address());
        mirror.wait_ready();
        mirror
    }

    /// The same with the login in `htpasswd` (a file in a folder of its own).
    pub fn start_with_login_for_private_engine(htpasswd: &Path, authorization: &str) -> Self {
        Self::run(Some((htpasswd, authorization)), Some(unused_port()))
    }

    /// Starts a registry that wants the login in `htpasswd` (a file in a folder of its own).
    pub fn start_with_login(htpasswd: &Path, authorization: &str) -> Self {
        Self::run(Some((htpasswd, authorization)), None)
    }

    fn run(login: Option<(&Path, &str)>, fixed_port: Option<u16>) -> Self {
        let inner_port = fixed_port.unwrap_or(5000);
        let mut request = GenericImage::new("registry", "2")
            .with_exposed_port(inner_port.tcp())
            .with_env_var("REGISTRY_STORAGE_DELETE_ENABLED", "true")
            .with_label(LABEL, "registry")
            .with_startup_timeout(Duration::from_mins(1));
        if let Some(port) = fixed_port {
            request = request
                .with_env_var("REGISTRY_HTTP_ADDR", format!(":{port}"))
                .with_mapped_port(port, port.tcp());
        }
        if let Some((htpasswd, _)) = login {
            request = request
                .with_mount(Mount::bind_mount(htpasswd.display().to_string(), "/htpasswd"))
                .with_env_var("REGISTRY_AUTH", "htpasswd")
                .with_env_var("REGISTRY_AUTH_HTPASSWD_REALM", "test")
                .with_env_var("REGISTRY_AUTH_HTPASSWD_PATH", "/htpasswd");
        }
        let container = request.start().expect(
            "a registry:2 container starts; if there is no engine or image, run dist/scripts/bring-up.sh",
        );
        let port = container.get_host_port_ipv4(inner_port).expect("the registry's port is published");
        let registry = Self {
            host: format!("127.0.0.1:{port}"),
            authorization: login.map(|(_, authorization)| authorization.to_owned()),
            container,
        };
        registry.wait_ready();
        registry
    }

    fn wait_ready(&self) {
        wait_for("the registry to answer", || match request_v2(self, "GET", "/v2/", &[], &[]) {
            Ok(reply) if reply.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// ID of its container.
    pub(crate) fn container(&self) -> &str {
        self.container.id()
    }

    /// Its address in the network of the machine's containers.
    pub(crate) fn address(&self) -> String {
        let seen = Engine::of_this_machine().get(&format!("/containers/{}/json", self.container()));
        seen["NetworkSettings"]["IPAddress"].as_str().expect("its container has an address").to_owned()
    }

    /// Puts `image` under `repository:tag`. `owner` is the test's project.
    pub fn push(&self, repository: &str, tag: &str, image: &Image, shape: Shape, owner: &str) -> Pushed {
        let config = image.config(owner);
        self.upload(repository, layer());
        self.upload(repository, &config);
        let oci = !matches!(shape, Shape::Docker | Shape::DockerList);
        let (kind, config_kind, layer_kind) = if oci {
            (
                OCI_MANIFEST,
                "application/vnd.oci.image.config.v1+json",
                "application/vnd.oci.image.layer.v1.tar",
            )
        } else {
            (
                DOCKER_MANIFEST,
                "application/vnd.docker.container.image.v1+json",
                // The engine looks at the bytes, not at this word, to see whether they are compressed.
                "application/vnd.docker.image.rootfs.diff.tar.gzip",
            )
        };
        let manifest_of = |config: &[u8]| {
            to_bytes(&json!({
                "schemaVersion": 2,
                "mediaType": kind,
                "config": { "mediaType": config_kind, "size": config.len(), "digest": digest(config) },
                "layers": [{ "mediaType": layer_kind, "size": layer().len(), "digest": digest(layer()) }],
            }))
        };
        let manifest = manifest_of(&config);
        let digest = match shape {
            Shape::Docker | Shape::Oci => self.put_manifest(repository, tag, kind, &manifest),
            Shape::OciIndex => self.put_list(repository, tag, OCI_INDEX, (kind, &manifest), &[]),
            Shape::ForeignIndex => {
                let child = self.put_manifest(repository, &digest(&manifest), kind, &manifest);
                let entry = entry(kind, manifest.len(), &child, "s390x");
                self.put_index(repository, tag, OCI_INDEX, &[entry])
            }
            Shape::TwoPlatforms => {
                let config = image.config_for(OTHER_ARCHITECTURE, owner);
                self.upload(repository, &config);
                let other = manifest_of(&config);
                let child = self.put_manifest(repository, &digest(&other), kind, &other);
                let more = [entry(kind, other.len(), &child, OTHER_ARCHITECTURE)];
                self.put_list(repository, tag, OCI_INDEX, (kind, &manifest), &more)
            }
            Shape::DockerList => self.put_list(repository, tag, DOCKER_LIST, (kind, &manifest), &[]),
            Shape::AttestedIndex => {
                let attestation = self.attest(repository, &digest(&manifest));
                self.put_list(repository, tag, OCI_INDEX, (kind, &manifest), &[attestation])
            }
        };
        Pushed { digest, version: image.version.clone() }
    }

    /// Loses the configuration of an image that was pushed: its manifest is still served, but nobody can fetch it.
    pub fn lose(&self, repository: &str, image: &Image, owner: &str) {
        let name = digest(&image.config(owner));
        let path = format!("/v2/{repository}/blobs/{name}");
        let reply = request_v2(self, "DELETE", &path, &[], &[]).expect("the registry answers");
        assert_eq!(reply.status, 202, "DELETE {path}: {}", reply.text());
    }

    /// Forgets a manifest by its digest, and with it the tags that name it.
    pub fn forget(&self, repository: &str, digest: &str) {
        let path = format!("/v2/{repository}/manifests/{digest}");
        let reply = request_v2(self, "DELETE", &path, &[], &[]).expect("the registry answers");
        assert_eq!(reply.status, 202, "DELETE {path}: {}", reply.text());
    }

    /// Puts a cosign signature under the tag of `signed`, a digest: `signature` over `payload`, in base64.
    pub fn push_signature(&self, repository: &str, signed: &str, payload: &[u8], signature: &str) {
        let config = to_bytes(&json!({}));
        self.upload(repository, payload);
        self.upload(repository, &config);
        let manifest = to_bytes(&json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "size": config.len(),
                "digest": digest(&config),
            },
            "layers": [{
                "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
                "size": payload.len(),
                "digest": digest(payload),
                "annotations": { "dev.cosignproject.cosign/signature": signature },
            }],
        }));
        let tag = format!("{}.sig", signed.replace(':', "-"));
        self.put_manifest(repository, &tag, OCI_MANIFEST, &manifest);
    }

    /// A list with one manifest for this machine, and more entries.
    fn put_list(
        &self,
        repository: &str,
        tag: &str,
        kind: &str,
        (child_kind, child): (&str, &[u8]),
        more: &[Value],
    ) -> String {
        let child_digest = self.put_manifest(repository, &digest(child), child_kind, child);
        let mut manifests = vec![entry(child_kind, child.len(), &child_digest, architecture())];
        manifests.extend_from_slice(more);
        self.put_index(repository, tag, kind, &manifests)
    }

    fn put_index(&self, repository: &str, tag: &str, kind: &str, manifests: &[Value]) -> String {
        let list: Value = json!({ "schemaVersion": 2, "mediaType": kind, "manifests": manifests });
        self.put_manifest(repository, tag, kind, &to_bytes(&list))
    }

    /// Puts what a builder attests about a manifest; the entry for it in an index.
    fn attest(&self, repository: &str, about: &str) -> Value {
        let statement = to_bytes(&json!({
            "_type": "https://in-toto.io/Statement/v0.1",
            "predicateType": "https://slsa.dev/provenance/v0.2",
            "subject": [{ "name": repository, "digest": { "sha256": about.trim_start_matches("sha256:") } }],
            "predicate": { "builder": { "id": "contract-tests" } },
        }));
        let config = to_bytes(&json!({
            "architecture": "unknown",
            "os": "unknown",
            "config": {},
            "rootfs": { "type": "layers", "diff_ids": [digest(&statement)] },
        }));
        self.upload(repository, &statement);
        self.upload(repository, &config);
        let manifest = to_bytes(&json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "size": config.len(),
                "digest": digest(&config),
            },
            "layers": [{
                "mediaType": "application/vnd.in-toto+json",
                "size": statement.len(),
                "digest": digest(&statement),
                "annotations": { "in-toto.io/predicate-type": "https://slsa.dev/provenance/v0.2" },
            }],
        }));
        json!({
            "mediaType": OCI_MANIFEST,
            "size": manifest.len(),
            "digest": self.put_manifest(repository, &digest(&manifest), OCI_MANIFEST, &manifest),
            "platform": { "architecture": "unknown", "os": "unknown" },
            "annotations": {
                "vnd.docker.reference.type": "attestation-manifest",
                "vnd.docker.reference.digest": about,
            },
        })
    }

    fn put_manifest(&self, repository: &str, tag: &str, kind: &str, manifest: &[u8]) -> String {
        let path = format!("/v2/{repository}/manifests/{tag}");
        let reply = request_v2(self, "PUT", &path, &[("Content-Type", kind)], manifest)
            .expect("the registry answers");
        assert_eq!(reply.status, 201, "PUT {path}: {}", reply.text());
        digest(manifest)
    }

    fn upload(&self, repository: &str, blob: &[u8]) {
        let name = digest(blob);
        let there = request_v2(self, "HEAD", &format!("/v2/{repository}/blobs/{name}"), &[], &[])
            .expect("the registry answers");
        if there.status == 200 {
            return;
        }
        let begun = request_v2(self, "POST", &format!("/v2/{repository}/blobs/uploads/"), &[], &[])
            .expect("the registry answers");
        assert_eq!(begun.status, 202, "an upload can begin: {}", begun.text());
        let location = begun.header("location").expect("an upload has a location");
        let path = location.strip_prefix(&format!("http://{}", self.host)).unwrap_or(location);
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sign}digest={name}");
        let done = request_v2(self, "PUT", &path, &[("Content-Type", "application/octet-stream")], blob)
            .expect("the registry answers");
        assert_eq!(done.status, 201, "PUT {path}: {}", done.text());
    }
}

/// The entry of a manifest in an index.
fn entry(kind: &str, size: usize, digest: &str, architecture: &str) -> Value {
    json!({
        "mediaType": kind,
        "size": size,
        "digest": digest,
        "platform": { "architecture": architecture, "os": "linux" },
    })
}

fn request_v2(
    registry: &Registry,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<crate::Reply> {
    let mut headers = headers.to_vec();
    if let Some(authorization) = &registry.authorization {
        headers.push(("Authorization", authorization));
    }
    request(&registry.host, method, path, &headers, body)
}
