//! A scripted registry, a client of it, and a Docker configuration with helpers.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_agent::adapters::registry::{Credentials, RegistryClient};
use evenkeel_agent::config::RegistryConfig;
use evenkeel_agent::model::image::{Digest, Reference};
use evenkeel_agent::ports::{Registry, Urgency};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

pub(crate) const ALL_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
pub(crate) const MANIFEST: &str = r#"{"schemaVersion":2,"manifests":[]}"#;

pub(crate) fn manifest_digest() -> Digest {
    Digest::of(MANIFEST.as_bytes())
}

pub(crate) fn other_digest() -> Digest {
    Digest::of(b"another manifest")
}

pub(crate) fn anonymous() -> Arc<Credentials> {
    Arc::new(Credentials::new(None, OsString::new()))
}

/// Returns host and port of an address.
pub(crate) fn authority(address: &str) -> String {
    address.split_once("://").map_or(address, |(_, rest)| rest).trim_end_matches('/').to_owned()
}

pub(crate) fn client_of(home: &str, credentials: Arc<Credentials>) -> RegistryClient {
    let config =
        RegistryConfig { url: home.to_owned(), host: authority(home), concurrency: 4, ..Default::default() };
    RegistryClient::new(&config, credentials).expect("the settings are good")
}

pub(crate) fn reference(home: &str, image: &str) -> Reference {
    Reference::parse_in(image, &authority(home)).expect("the reference is good")
}

/// A scripted registry and a client of it.
pub(crate) struct World {
    pub(crate) server: MockServer,
    pub(crate) client: RegistryClient,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(anonymous()).await
    }

    pub(crate) async fn with(credentials: Arc<Credentials>) -> Self {
        let server = MockServer::start().await;
        let client = client_of(&server.uri(), credentials);
        Self { server, client }
    }

    pub(crate) async fn on(&self, verb: &str, answer: impl Respond + 'static) -> &Self {
        Mock::given(method(verb))
            .and(path("/v2/web/manifests/1"))
            .respond_with(answer)
            .mount(&self.server)
            .await;
        self
    }

    pub(crate) async fn on_digest(&self, verb: &str, digest: &Digest, answer: impl Respond + 'static) {
        let manifest = Mock::given(method(verb)).and(path(format!("/v2/web/manifests/{digest}")));
        manifest.respond_with(answer).mount(&self.server).await;
    }

    /// Reports whether the registry has this digest.
    pub(crate) async fn has(&self, digest: &Digest) -> Result<bool, String> {
        let answer = self.client.has(&self.web().repository, digest).await;
        answer.map_err(|error| error.to_string())
    }

    pub(crate) fn web(&self) -> Reference {
        reference(&self.server.uri(), "web:1")
    }

    pub(crate) async fn digest(&self) -> Result<Digest, String> {
        self.client.digest(&self.web(), Urgency::Routine).await.map_err(|error| error.to_string())
    }

    pub(crate) async fn digest_for_operator(&self) -> Result<Digest, String> {
        self.client.digest(&self.web(), Urgency::Manual).await.map_err(|error| error.to_string())
    }

    /// Returns the error, with `HOST` in place of this registry's address.
    pub(crate) async fn fault(&self) -> String {
        let error = self.digest().await.expect_err("there is a fault");
        error.replace(&authority(&self.server.uri()), "HOST")
    }

    pub(crate) async fn requests(&self) -> Vec<Request> {
        self.server.received_requests().await.expect("requests are recorded")
    }

    /// `HEAD GET …`
    pub(crate) async fn verbs(&self) -> String {
        let requests = self.requests().await;
        requests.iter().map(|request| request.method.to_string()).collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn ok(digest: &Digest) -> ResponseTemplate {
    ResponseTemplate::new(200).insert_header("Docker-Content-Digest", digest.as_str())
}

pub(crate) fn manifest() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(MANIFEST, ALL_TYPES[0])
}

pub(crate) fn status(code: u16) -> ResponseTemplate {
    ResponseTemplate::new(code)
}

pub(crate) fn errors(code: u16, name: &str, message: &str) -> ResponseTemplate {
    let body = serde_json::json!({"errors": [{"code": name, "message": message, "detail": {"id": 7}}]});
    status(code).set_body_json(body)
}

pub(crate) fn challenge(text: &str) -> ResponseTemplate {
    status(401).insert_header("WWW-Authenticate", text)
}

/// Returns its answers one after the other, and then repeats the last one.
pub(crate) struct Script(Vec<ResponseTemplate>, AtomicUsize);

pub(crate) fn script(answers: impl IntoIterator<Item = ResponseTemplate>) -> Script {
    Script(answers.into_iter().collect(), AtomicUsize::new(0))
}

impl Respond for Script {
    fn respond(&self, _: &Request) -> ResponseTemplate {
        let at = self.1.fetch_add(1, Ordering::SeqCst);
        self.0[at.min(self.0.len() - 1)].clone()
    }
}

/// A Docker configuration folder that also contains credential helpers.
pub(crate) struct Docker(pub(crate) tempfile::TempDir);

impl Docker {
    pub(crate) fn new(config: &serde_json::Value) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
        Self(folder)
    }

    pub(crate) fn login(host: &str, name_and_password: &str) -> Self {
        use base64::Engine as _;
        let auth = base64::engine::general_purpose::STANDARD.encode(name_and_password);
        Self::new(&serde_json::json!({"auths": {host: {"auth": auth}}}))
    }

    pub(crate) fn helper(self, name: &str, script: &str) -> Self {
        let file = self.0.path().join(format!("docker-credential-{name}"));
        let mut handle = std::fs::File::create(&file).expect("created");
        handle.write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).expect("written");
        handle.set_permissions(PermissionsExt::from_mode(0o755)).expect("executable");
        self
    }

    pub(crate) fn credentials(&self) -> Arc<Credentials> {
        let mut folders = vec![self.0.path().to_owned()];
        folders.extend(["/usr/bin", "/bin"].map(PathBuf::from));
        let search = std::env::join_paths(folders).expect("no colons in the paths");
        Arc::new(Credentials::new(Some(self.0.path().to_owned()), search))
    }
}
