//! Tests with signatures in all locations and formats that cosign writes.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::super::Credentials;
use super::testing::{Signer, bundle, simple, statement};
use super::*;
use crate::config::RegistryConfig;

const BUNDLE_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const IMAGE: &[u8] = br#"{"schemaVersion":2}"#;

/// A registry with one image, keys, and a client.
struct World {
    server: MockServer,
    client: RegistryClient,
    folder: tempfile::TempDir,
    signer: Signer,
    digest: Digest,
}

impl World {
    async fn new() -> Self {
        let server = MockServer::start().await;
        let home = server.uri();
        let home_host = server.address().to_string();
        let config = RegistryConfig { url: home, host: home_host, concurrency: 4, ..Default::default() };
        let credentials = Arc::new(Credentials::new(None, String::new().into()));
        let client = RegistryClient::new(&config, credentials).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let signer = Signer::ecdsa();
        std::fs::write(folder.path().join("cosign.pub"), signer.pem()).unwrap();
        Self { server, client, folder, signer, digest: Digest::of(IMAGE) }
    }

    async fn put(&self, what: &str, answer: ResponseTemplate) {
        let place = Mock::given(method("GET")).and(path(format!("/v2/web/{what}")));
        place.respond_with(answer).mount(&self.server).await;
    }

    async fn put_blob(&self, content: &[u8]) -> Digest {
        let digest = Digest::of(content);
        self.put(&format!("blobs/{digest}"), ResponseTemplate::new(200).set_body_bytes(content)).await;
        digest
    }

    /// Puts a manifest under a tag, or under its own digest.
    async fn put_manifest(&self, tag: Option<&str>, manifest: &Value) -> Digest {
        let content = manifest.to_string();
        let digest = Digest::of(content.as_bytes());
        let place = format!("manifests/{}", tag.unwrap_or(digest.as_str()));
        self.put(&place, ResponseTemplate::new(200).set_body_raw(content, MANIFEST_TYPE)).await;
        digest
    }

    fn tag(&self) -> String {
        self.digest.as_str().replace(':', "-")
    }

    /// A layer with a payload and a signature over it.
    async fn simple_layer(&self, payload: &[u8], signature: &str) -> Value {
        let digest = self.put_blob(payload).await;
        json!({"mediaType": SIMPLE_LAYER, "digest": digest, "size": payload.len(),
            "annotations": {SIGNATURE_ANNOTATION: signature}})
    }

    /// A layer with a valid signature.
    async fn valid_layer(&self) -> Value {
        let payload = simple(&self.digest);
        self.simple_layer(&payload, &self.signer.sign_base64(&payload)).await
    }

    async fn put_signature_tag(&self, layers: &[Value]) {
        self.put_manifest(Some(&format!("{}.sig", self.tag())), &with_layers(layers)).await;
    }

    async fn put_bundle(&self, text: &Value) -> Value {
        let text = text.to_string();
        let blob = self.put_blob(text.as_bytes()).await;
        let layer = json!({"mediaType": BUNDLE_TYPE, "digest": blob, "size": text.len()});
        let manifest = self.put_manifest(None, &with_layers(&[layer])).await;
        json!({"mediaType": MANIFEST_TYPE, "artifactType": BUNDLE_TYPE, "digest": manifest, "size": 1})
    }

    async fn put_referrers(&self, referrers: &[Value]) {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": referrers});
        let answer = ResponseTemplate::new(200).set_body_raw(index.to_string(), INDEX_TYPE);
        self.put(&format!("referrers/{}", self.digest), answer).await;
    }

    async fn verify(&self) -> Result<SignatureVerdict, SignatureError> {
        let repository = Repository { host: self.server.address().to_string(), path: "web".into() };
        let keys: [PathBuf; 1] = [self.folder.path().join("cosign.pub")];
        let signed_for = vec![Repository { host: "registry.example".into(), path: "web".into() }];
        self.client.verify(&repository, &self.digest, &Signers { keys: keys.to_vec(), signed_for }).await
    }

    async fn requests(&self) -> usize {
        self.server.received_requests().await.unwrap().len()
    }
}

fn with_layers(layers: &[Value]) -> Value {
    json!({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": {}, "layers": layers})
}

const VALID: Result<SignatureVerdict, SignatureError> = Ok(SignatureVerdict::Valid { integrated: None });

fn invalid(flaw: SignatureFlaw) -> SignatureVerdict {
    SignatureVerdict::Invalid(flaw)
}

#[tokio::test]
async fn an_image_without_signature_is_unsigned() {
    let world = World::new().await;
    assert_eq!(world.verify().await, Ok(SignatureVerdict::Missing));
    // A registry with an empty list of referrers.
    world.put_referrers(&[]).await;
    assert_eq!(world.verify().await, Ok(SignatureVerdict::Missing));
}

#[tokio::test]
async fn a_signature_under_its_tag_is_valid_and_cached() {
    let world = World::new().await;
    world.put_signature_tag(&[world.valid_layer().await]).await;
    assert_eq!(world.verify().await, VALID);
    let asked = world.requests().await;
    assert_eq!(world.verify().await, VALID);
    assert_eq!(world.requests().await, asked, "a valid verdict is cached");
}

#[tokio::test]
async fn the_time_of_the_transparency_log_is_read_from_both_formats() {
    let time = "2023-11-14T22:13:20Z".parse().ok();
    let valid = Ok(SignatureVerdict::Valid { integrated: time });
    let world = World::new().await;
    let mut layer = world.valid_layer().await;
    let entry =
        json!({"SignedEntryTimestamp": "AA==", "Payload": {"integratedTime": 1_700_000_000, "logIndex": 1}});
    layer["annotations"][REKOR_ANNOTATION] = entry.to_string().into();
    world.put_signature_tag(&[layer.clone()]).await;
    assert_eq!(world.verify().await, valid);
    assert_eq!(world.verify().await, valid, "it is cached with the verdict");
    for unusable in [
        "",
        "{}",
        r#"{"Payload": {"integratedTime": "x"}}"#,
        r#"{"Payload": {"integratedTime": 99999999999999}}"#,
    ] {
        let world = World::new().await;
        let mut layer = world.valid_layer().await;
        layer["annotations"][REKOR_ANNOTATION] = unusable.into();
        world.put_signature_tag(&[layer]).await;
        assert_eq!(world.verify().await, VALID, "{unusable}");
    }
    let world = World::new().await;
    let mut signed = bundle(&world.signer, &statement(&world.digest));
    signed["verificationMaterial"]["tlogEntries"] =
        json!([{"integratedTime": "1800000000"}, {"integratedTime": "1700000000"}, {}]);
    let referrer = world.put_bundle(&signed).await;
    world.put_referrers(&[referrer]).await;
    assert_eq!(world.verify().await, valid);
}

#[tokio::test]
async fn another_key_in_the_file_takes_effect_immediately() {
    let world = World::new().await;
    world.put_signature_tag(&[world.valid_layer().await]).await;
    assert_eq!(world.verify().await, VALID);
    std::fs::write(world.folder.path().join("cosign.pub"), Signer::ecdsa().pem()).unwrap();
    assert_eq!(world.verify().await, Ok(invalid(SignatureFlaw::OtherKey)));
    std::fs::write(world.folder.path().join("cosign.pub"), "").unwrap();
    assert!(matches!(world.verify().await, Err(SignatureError::Key(_))));
}

#[tokio::test]
async fn one_valid_signature_among_others_is_enough() {
    let world = World::new().await;
    let payload = simple(&world.digest);
    let stranger = world.simple_layer(&payload, &Signer::ecdsa().sign_base64(&payload)).await;
    let broken = world.simple_layer(b"{}", "%").await;
    let bare = json!({"mediaType": SIMPLE_LAYER, "digest": world.digest, "size": 1});
    world.put_signature_tag(&[broken, bare, stranger, world.valid_layer().await]).await;
    assert_eq!(world.verify().await, VALID);
}

#[tokio::test]
async fn the_reported_flaw_is_the_one_closest_to_a_valid_signature() {
    let world = World::new().await;
    let payload = simple(&Digest::of(b"other"));
    let moved = world.simple_layer(&payload, &world.signer.sign_base64(&payload)).await;
    let broken = world.simple_layer(b"{}", "%").await;
    world.put_signature_tag(&[moved, broken]).await;
    assert_eq!(world.verify().await, Ok(invalid(SignatureFlaw::OtherDigest)));
}

#[tokio::test]
async fn bundles_and_simple_signatures_among_the_referrers_are_valid() {
    for form in 0..3 {
        let world = World::new().await;
        let referrer = match form {
            0 => world.put_bundle(&bundle(&world.signer, &statement(&world.digest))).await,
            1 => {
                // A signature over the manifest itself.
                let image = ResponseTemplate::new(200).set_body_raw(IMAGE, MANIFEST_TYPE);
                world.put(&format!("manifests/{}", world.digest), image).await;
                let signature = world.signer.sign_base64(IMAGE);
                world.put_bundle(&json!({"messageSignature": {"signature": signature}})).await
            }
            _ => {
                let manifest = world.put_manifest(None, &with_layers(&[world.valid_layer().await])).await;
                json!({"mediaType": MANIFEST_TYPE, "artifactType": SIMPLE_ARTIFACT, "digest": manifest})
            }
        };
        let sbom = json!({"mediaType": MANIFEST_TYPE, "artifactType": "application/spdx+json",
            "digest": Digest::of(b"sbom"), "annotations": null});
        world.put_referrers(&[sbom, referrer]).await;
        assert_eq!(world.verify().await, VALID, "form {form}");
    }
}

#[tokio::test]
async fn referrers_are_found_under_their_tag_if_the_registry_has_no_list() {
    for answer in [404, 400, 405, 406, 200] {
        let world = World::new().await;
        let page = ResponseTemplate::new(answer).set_body_string("<html>not an index</html>");
        world.put(&format!("referrers/{}", world.digest), page).await;
        let referrer = world.put_bundle(&bundle(&world.signer, &statement(&world.digest))).await;
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [referrer]});
        world.put_manifest(Some(&world.tag()), &index).await;
        assert_eq!(world.verify().await, VALID, "status {answer}");
    }
}

/// go-containerregistry derives the type in the list from the configuration of the manifest, which is empty, and copies the
/// annotations.
#[tokio::test]
async fn a_bundle_under_the_tag_counts_with_the_type_that_cosign_writes_there() {
    let world = World::new().await;
    let mut referrer = world.put_bundle(&bundle(&world.signer, &statement(&world.digest))).await;
    referrer["artifactType"] = "application/vnd.oci.empty.v1+json".into();
    referrer["annotations"] = json!({
        "dev.sigstore.bundle.content": "dsse-envelope",
        "dev.sigstore.bundle.predicateType": "https://sigstore.dev/cosign/sign/v1",
        "org.opencontainers.image.created": "2026-01-01T00:00:00Z",
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [referrer]});
    world.put_manifest(Some(&world.tag()), &index).await;
    assert_eq!(world.verify().await, VALID);
}

#[tokio::test]
async fn a_failed_read_is_an_error_but_does_not_hide_a_valid_signature() {
    let world = World::new().await;
    world.put(&format!("referrers/{}", world.digest), ResponseTemplate::new(403)).await;
    let error = world.verify().await.unwrap_err().to_string();
    assert!(error.contains("403 forbidden for web"), "{error}");
    // The tag is read first and is sufficient.
    world.put_signature_tag(&[world.valid_layer().await]).await;
    assert_eq!(world.verify().await, VALID);

    let world = World::new().await;
    world.put(&format!("manifests/{}.sig", world.tag()), ResponseTemplate::new(403)).await;
    assert!(matches!(world.verify().await, Err(SignatureError::Registry(_))));
    let referrer = world.put_bundle(&bundle(&world.signer, &statement(&world.digest))).await;
    world.put_referrers(&[referrer]).await;
    assert_eq!(world.verify().await, VALID);
}

#[tokio::test]
async fn missing_invalid_or_oversized_content_is_malformed() {
    let large = vec![b' '; CONTENT_LIMIT + 1];
    for content in [None, Some(b"another content".to_vec()), Some(large)] {
        let world = World::new().await;
        let digest = match &content {
            Some(content) if content.len() > CONTENT_LIMIT => world.put_blob(content).await,
            _ => Digest::of(b"the expected content"),
        };
        if let Some(content) = content.filter(|content| content.len() < CONTENT_LIMIT) {
            let answer = ResponseTemplate::new(200).set_body_bytes(content);
            world.put(&format!("blobs/{digest}"), answer).await;
        }
        let layer = json!({"mediaType": SIMPLE_LAYER, "digest": digest, "size": 1,
            "annotations": {SIGNATURE_ANNOTATION: "AAAA"}});
        world.put_signature_tag(&[layer]).await;
        assert_eq!(world.verify().await, Ok(invalid(SignatureFlaw::Malformed)));
    }
}

#[tokio::test]
async fn a_manifest_without_layers_is_malformed_and_other_layers_are_skipped() {
    let world = World::new().await;
    let manifest = json!({"schemaVersion": 2, "manifests": []});
    world.put_manifest(Some(&format!("{}.sig", world.tag())), &manifest).await;
    assert_eq!(world.verify().await, Ok(invalid(SignatureFlaw::Malformed)));

    let world = World::new().await;
    let layer = json!({"mediaType": "application/vnd.in-toto+json", "digest": world.digest});
    world.put_signature_tag(&[layer]).await;
    assert_eq!(world.verify().await, Ok(SignatureVerdict::Missing));
}

#[tokio::test]
async fn no_more_than_a_hundred_reads_are_made_for_one_image() {
    let world = World::new().await;
    let layer = world.simple_layer(b"{}", "AAAA").await;
    world.put_signature_tag(&vec![layer; 500]).await;
    let error = world.verify().await.unwrap_err().to_string();
    assert!(error.contains("too many signatures"), "{error}");
    assert!(world.requests().await <= usize::try_from(MAX_READS).unwrap() + 1);
}

/// Samples created by other programs: the bundle by Sigstore's JavaScript library, the signatures of the payload (in the
/// format that cosign documents) by OpenSSL.
#[test]
fn samples_of_other_programs_are_valid() {
    let digest = Digest::of(IMAGE);
    let judge = |pem: &[u8], by: &dyn Fn(&Expected<'_>) -> Result<(), SignatureFlaw>| {
        let keys = key::PublicKey::all_in(pem).unwrap();
        let repository = Repository { host: "registry.example".into(), path: "web".into() };
        by(&Expected { keys: &keys, digest: &digest, repository: &repository, signed_for: &[] })
    };
    let bundle = Bundle::parse(include_bytes!("samples/bundle.json")).unwrap();
    assert_eq!(
        judge(include_bytes!("samples/bundle.pub"), &|expected| expected.bundle(&bundle).unwrap()),
        Ok(())
    );
    let payload = include_bytes!("samples/payload.json");
    let ecdsa = include_str!("samples/ecdsa.sig");
    assert_eq!(
        judge(include_bytes!("samples/ecdsa.pub"), &|expected| expected.simple(payload, ecdsa)),
        Ok(())
    );
    let ed25519 = include_str!("samples/ed25519.sig");
    assert_eq!(
        judge(include_bytes!("samples/ed25519.pub"), &|expected| expected.simple(payload, ed25519)),
        Ok(())
    );
    assert_eq!(
        judge(include_bytes!("samples/ed25519.pub"), &|expected| expected.simple(payload, ecdsa)),
        Err(SignatureFlaw::OtherKey)
    );
}
