//! A registry in a container, and pushes to it without the engine.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testcontainers::core::{IntoContainerPort, Mount};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, ContainerRequest, GenericImage, ImageExt, ReuseDirective};

use crate::image::{OTHER_ARCHITECTURE, architecture, digest, layer, to_bytes};
use crate::{Engine, Image, LABEL, PREFIX, Proxy, Shape, request, unique_name, unused_port, wait_for};

const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A registry for one test.
pub struct Registry {
    /// `127.0.0.1:port`
    pub host: String,
    /// Value of the `Authorization` header, if it requires one.
    authorization: Option<String>,
    /// The address that belongs to this test alone, if its container is shared with other tests.
    namespace: Option<Proxy>,
    container: Container<GenericImage>,
}

/// Result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// New digest of the tag.
    pub digest: String,
    /// Label `evenkeel.version` of its containers.
    pub version: String,
}

impl Registry {
    /// Returns an empty registry without authentication: a namespace of the container that all tests of a run share
    /// (`$EVENKEEL_TEST_SHARED_REGISTRY`), or a container of its own if the run has none. Its port is
    /// `$EVENKEEL_TEST_REGISTRY_PORT` if that is set: podman must be configured beforehand with the address of a registry
    /// without TLS. Tests that need the container itself use another constructor.
    pub fn start() -> Self {
        let port = std::env::var("EVENKEEL_TEST_REGISTRY_PORT").ok();
        match (port, std::env::var("EVENKEEL_TEST_SHARED_REGISTRY")) {
            (None, Ok(run)) => Self::share(&run),
            (port, _) => {
                Self::run(None, port.map(|port| port.parse().expect("EVENKEEL_TEST_REGISTRY_PORT is a port")))
            }
        }
    }

    /// Uses the container that belongs to this run of the tests, and starts it if this is the first test of the run.
    /// `dist/test.sh` removes it. The repositories of a test are in a namespace of their own; a proxy adds it to each
    /// request, so that tests name repositories as if the registry were theirs.
    fn share(run: &str) -> Self {
        let name = format!("{PREFIX}registry-{run}");
        let lock = File::create(std::env::temp_dir().join(format!("{name}.lock")))
            .and_then(|file| file.lock().map(|()| file))
            .expect("the temporary folder has room for a lock");
        let request = image(5000).with_container_name(name).with_reuse(ReuseDirective::Always);
        let mut registry = Self::of(request, 5000, None);
        drop(lock);
        let namespace = Proxy::with_namespace(&registry.host, &unique_name("test"));
        registry.host.clone_from(&namespace.host);
        registry.namespace = Some(namespace);
        registry
    }

    /// Starts a registry that sends notifications of all its events to `url`. It runs in the host network, so that
    /// loopback addresses refer to this machine.
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
        let registry = Self { host, authorization: None, namespace: None, container };
        registry.wait_ready();
        registry
    }

    /// Starts a registry with the same address on this machine and inside its container, so that an engine in the
    /// container's network namespace reaches it under the same name as the agent.
    pub fn start_for_private_engine() -> Self {
        Self::run(None, Some(unused_port()))
    }

    /// Starts a pull-through mirror of a [`Registry::start_for_private_engine`]. Inside its container it has the same
    /// address, so that an engine in the container's network namespace pulls images under the same names.
    pub fn start_mirror(of: &Self) -> Self {
        let port: u16 = of.host.rsplit(':').next().and_then(|port| port.parse().ok()).expect("host:port");
        let container = GenericImage::new("registry", "2")
            .with_label(LABEL, "registry")
            .with_env_var("REGISTRY_HTTP_ADDR", format!(":{port}"))
            .with_env_var("REGISTRY_PROXY_REMOTEURL", format!("http://{}:{port}", of.address()))
            .start()
            .expect("a registry:2 container starts because another one has started");
        let mut mirror = Self { host: String::new(), authorization: None, namespace: None, container };
        mirror.host = format!("{}:{port}", mirror.address());
        mirror.wait_ready();
        mirror
    }

    /// Like [`Self::start_for_private_engine`], with the login in the file `htpasswd`.
    pub fn start_with_login_for_private_engine(htpasswd: &Path, authorization: &str) -> Self {
        Self::run(Some((htpasswd, authorization)), Some(unused_port()))
    }

    /// Starts a registry that requires the login in the file `htpasswd`.
    pub fn start_with_login(htpasswd: &Path, authorization: &str) -> Self {
        Self::run(Some((htpasswd, authorization)), None)
    }

    fn run(login: Option<(&Path, &str)>, fixed_port: Option<u16>) -> Self {
        let inner_port = fixed_port.unwrap_or(5000);
        let mut request = image(inner_port);
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
        Self::of(request, inner_port, login.map(|(_, authorization)| authorization.to_owned()))
    }

    fn of(request: ContainerRequest<GenericImage>, inner_port: u16, authorization: Option<String>) -> Self {
        let container = request.start().expect(
            "a registry:2 container starts; if there is no engine or image, run dist/scripts/bring-up.sh",
        );
        let port = container.get_host_port_ipv4(inner_port).expect("the registry's port is published");
        let host = format!("127.0.0.1:{port}");
        let registry = Self { host, authorization, namespace: None, container };
        registry.wait_ready();
        registry
    }

    fn wait_ready(&self) {
        wait_for("the registry to respond", || match request_v2(self, "GET", "/v2/", &[], &[]) {
            Ok(reply) if reply.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// Returns the ID of its container.
    pub(crate) fn container(&self) -> &str {
        self.container.id()
    }

    /// Returns its address in the container network of the machine.
    pub(crate) fn address(&self) -> String {
        let seen = Engine::of_this_machine().get(&format!("/containers/{}/json", self.container()));
        seen["NetworkSettings"]["IPAddress"].as_str().expect("its container has an address").to_owned()
    }

    /// Pushes `image` as `repository:tag`. `owner` is the test's project.
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
                // The layer is not compressed. The engine detects that from the content, not from the media type.
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

    /// Deletes the configuration of a pushed image: its manifest is still served, but the image can't be pulled.
    pub fn delete_config(&self, repository: &str, image: &Image, owner: &str) {
        let name = digest(&image.config(owner));
        let path = format!("/v2/{repository}/blobs/{name}");
        let reply = request_v2(self, "DELETE", &path, &[], &[]).expect("the registry answers");
        assert_eq!(reply.status, 202, "DELETE {path}: {}", reply.text());
    }

    /// Deletes a manifest by its digest, and with it the tags that refer to it.
    pub fn delete_manifest(&self, repository: &str, digest: &str) {
        let path = format!("/v2/{repository}/manifests/{digest}");
        let reply = request_v2(self, "DELETE", &path, &[], &[]).expect("the registry answers");
        assert_eq!(reply.status, 202, "DELETE {path}: {}", reply.text());
    }

    /// Pushes a cosign signature of the digest `signed`: `signature`, in base64, over `payload`.
    pub fn push_signature(&self, repository: &str, signed: &str, payload: &[u8], signature: &str) {
        self.push_signature_with(repository, signed, payload, &json!({ SIGNATURE: signature }));
    }

    /// The same with the time at which the transparency log took the signature in, in seconds.
    pub fn push_signature_of(
        &self,
        repository: &str,
        signed: &str,
        payload: &[u8],
        signature: &str,
        integrated: i64,
    ) {
        let entry = json!({ "SignedEntryTimestamp": "", "Payload": { "integratedTime": integrated } });
        let annotations = json!({ SIGNATURE: signature, "dev.sigstore.cosign/bundle": entry.to_string() });
        self.push_signature_with(repository, signed, payload, &annotations);
    }

    fn push_signature_with(&self, repository: &str, signed: &str, payload: &[u8], annotations: &Value) {
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
                "annotations": annotations,
            }],
        }));
        let tag = format!("{}.sig", signed.replace(':', "-"));
        self.put_manifest(repository, &tag, OCI_MANIFEST, &manifest);
    }

    /// Pushes an index with one manifest for this machine, and more entries.
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

    /// Pushes a builder's attestation for the manifest `about` and returns its index entry.
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
        let existing = request_v2(self, "HEAD", &format!("/v2/{repository}/blobs/{name}"), &[], &[])
            .expect("the registry answers");
        if existing.status == 200 {
            return;
        }
        let begun = request_v2(self, "POST", &format!("/v2/{repository}/blobs/uploads/"), &[], &[])
            .expect("the registry answers");
        assert_eq!(begun.status, 202, "POST of an upload: {}", begun.text());
        // An absolute address, which in a shared registry is not that of the proxy.
        let location = begun.header("location").expect("an upload has a location");
        let location = location.strip_prefix("http://").unwrap_or(location);
        let (host, path) = location.split_at(location.find('/').unwrap_or_default());
        let host = if host.is_empty() { self.host.as_str() } else { host };
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sign}digest={name}");
        let kind = [("Content-Type", "application/octet-stream")];
        let done = request_at(host, self, "PUT", &path, &kind, blob).expect("the registry answers");
        assert_eq!(done.status, 201, "PUT {path}: {}", done.text());
    }
}

/// Returns what all registries that are published on this machine have in common.
fn image(inner_port: u16) -> ContainerRequest<GenericImage> {
    GenericImage::new("registry", "2")
        .with_exposed_port(inner_port.tcp())
        .with_env_var("REGISTRY_STORAGE_DELETE_ENABLED", "true")
        .with_label(LABEL, "registry")
        .with_startup_timeout(Duration::from_mins(1))
}

/// Returns the index entry of a manifest.
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
    request_at(&registry.host, registry, method, path, headers, body)
}

fn request_at(
    host: &str,
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
    request(host, method, path, &headers, body)
}
