//! The payloads that cosign signs, and their verification for a digest.
//!
//! | format | signed content | reference to the image |
//! |---|---|---|
//! | simple signing | the content of the layer | `critical.image.docker-manifest-digest` |
//! | Sigstore bundle, DSSE | type and payload of the envelope | `subject[].digest.sha256` of the in-toto statement |
//! | Sigstore bundle, message signature | the image's manifest itself | by its content |

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::key::PublicKey;
use crate::model::image::{Digest, Reference, Repository};
use crate::model::signature::SignatureFlaw;

/// The type in a simple signing payload of cosign.
const SIMPLE_TYPE: &str = "cosign container image signature";
/// Payload type of a signature's envelope.
const STATEMENT_TYPE: &str = "application/vnd.in-toto+json";
/// Predicate type of a signature's statement. Other types attest something about an image (its contents, its build, scan
/// results), which does not approve running it.
const SIGNATURE_PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";

/// What a signature is verified against.
#[derive(Clone, Copy)]
pub(super) struct Expected<'a> {
    /// The repository of the image.
    pub(super) repository: &'a Repository,
    /// Other repositories that a signature may name.
    pub(super) signed_for: &'a [Repository],
    /// The accepted keys.
    pub(super) keys: &'a [PublicKey],
    /// The digest that must be signed.
    pub(super) digest: &'a Digest,
}

impl Expected<'_> {
    fn signed(&self, message: &[u8], signature: &str) -> Result<(), SignatureFlaw> {
        let signature = STANDARD.decode(signature.trim()).map_err(|_| SignatureFlaw::Malformed)?;
        let is_by_one = self.keys.iter().any(|key| key.verifies(message, &signature));
        if is_by_one { Ok(()) } else { Err(SignatureFlaw::OtherKey) }
    }

    /// Verifies a simple signing payload with its base64 signature.
    pub(super) fn simple(&self, payload: &[u8], signature: &str) -> Result<(), SignatureFlaw> {
        self.signed(payload, signature)?;
        let Simple { critical } = parse(payload)?;
        if critical.kind != SIMPLE_TYPE {
            return Err(SignatureFlaw::Malformed);
        }
        if critical.image.digest != self.digest.as_str() {
            return Err(SignatureFlaw::OtherDigest);
        }
        if self.is_for(&critical.identity.reference) { Ok(()) } else { Err(SignatureFlaw::OtherRepository) }
    }

    /// Reports whether a payload that names this repository counts: a signature that was made for a debug image is none for the
    /// service.
    fn is_for(&self, reference: &str) -> bool {
        let Ok(named) = Reference::parse(reference) else { return false };
        let named = named.repository;
        let is_it =
            |wanted: &Repository| wanted.path == named.path && wanted.host.eq_ignore_ascii_case(&named.host);
        is_it(self.repository) || self.signed_for.iter().any(is_it)
    }

    /// Verifies a Sigstore bundle with an envelope. Returns `None` if it has a signature over the manifest itself.
    pub(super) fn bundle(&self, bundle: &Bundle) -> Option<Result<(), SignatureFlaw>> {
        match (&bundle.envelope, &bundle.message) {
            (Some(envelope), _) => Some(self.envelope(envelope)),
            (None, Some(_)) => None,
            (None, None) => Some(Err(SignatureFlaw::Malformed)),
        }
    }

    fn envelope(&self, envelope: &Envelope) -> Result<(), SignatureFlaw> {
        let payload = STANDARD.decode(&envelope.payload).map_err(|_| SignatureFlaw::Malformed)?;
        let message = pre_authentication_encoding(&envelope.payload_type, &payload);
        let signed = envelope.signatures.iter().map(|signature| self.signed(&message, &signature.sig));
        best(signed).unwrap_or(Err(SignatureFlaw::Malformed))?;
        let statement: Statement = parse(&payload)?;
        let is_signature = envelope.payload_type == STATEMENT_TYPE
            && statement.kind.starts_with("https://in-toto.io/Statement/v")
            && statement.predicate_type == SIGNATURE_PREDICATE;
        if !is_signature {
            return Err(SignatureFlaw::Malformed);
        }
        let names_it = |subject: &Subject| {
            let (algorithm, hex) = self.digest.as_str().split_once(':').unwrap_or_default();
            subject.digest.get(algorithm).is_some_and(|named| named == hex)
        };
        let named: Vec<&Subject> = statement.subject.iter().filter(|subject| names_it(subject)).collect();
        if named.is_empty() {
            return Err(SignatureFlaw::OtherDigest);
        }
        // Cosign leaves the name out, which then binds the signature to the digest alone.
        let is_for = |subject: &&Subject| subject.name.is_empty() || self.is_for(&subject.name);
        if named.iter().any(is_for) { Ok(()) } else { Err(SignatureFlaw::OtherRepository) }
    }

    /// Verifies a bundle's signature over the image's manifest.
    pub(super) fn message(&self, bundle: &Bundle, manifest: &[u8]) -> Result<(), SignatureFlaw> {
        if !self.digest.is_of(manifest) {
            return Err(SignatureFlaw::OtherDigest);
        }
        let message = bundle.message.as_ref().ok_or(SignatureFlaw::Malformed)?;
        self.signed(manifest, &message.signature)
    }
}

/// Returns the result closest to a valid signature, or `None` without results.
pub(super) fn best(
    all: impl IntoIterator<Item = Result<(), SignatureFlaw>>,
) -> Option<Result<(), SignatureFlaw>> {
    all.into_iter().reduce(|one, other| match (one, other) {
        (Err(one), Err(other)) => Err(one.max(other)),
        _ => Ok(()),
    })
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, SignatureFlaw> {
    serde_json::from_slice(text).map_err(|_| SignatureFlaw::Malformed)
}

/// Returns the bytes that an envelope's signature covers (DSSE specification, version 1).
fn pre_authentication_encoding(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut message = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

#[derive(Deserialize)]
struct Simple {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    identity: Identity,
    image: SignedImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Identity {
    #[serde(rename = "docker-reference")]
    reference: String,
}

#[derive(Deserialize)]
struct SignedImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

/// Reads when Rekor took a signature in, from cosign's annotation with its log entry. `None` unless it is well-formed.
pub(super) fn integrated_of_annotation(text: &str) -> Option<Timestamp> {
    let RekorBundle { payload } = serde_json::from_str(text).ok()?;
    Timestamp::from_second(payload.time).ok()
}

#[derive(Deserialize)]
struct RekorBundle {
    #[serde(rename = "Payload")]
    payload: RekorPayload,
}

#[derive(Deserialize)]
struct RekorPayload {
    #[serde(rename = "integratedTime")]
    time: i64,
}

/// A Sigstore bundle with a key-based signature. Certificates are ignored, as only the key counts.
#[derive(Deserialize)]
pub(super) struct Bundle {
    #[serde(rename = "verificationMaterial", default)]
    material: Value,
    #[serde(rename = "dsseEnvelope")]
    envelope: Option<Envelope>,
    #[serde(rename = "messageSignature")]
    message: Option<MessageSignature>,
}

impl Bundle {
    pub(super) fn parse(text: &[u8]) -> Result<Self, SignatureFlaw> {
        parse(text)
    }

    /// When the transparency log took the signature in: the earliest of its entries.
    pub(super) fn integrated(&self) -> Option<Timestamp> {
        // 64-bit numbers are strings in the JSON form of protocol buffers.
        let seconds = |entry: &Value| match &entry["integratedTime"] {
            Value::String(text) => text.parse().ok(),
            other => other.as_i64(),
        };
        let entries = self.material["tlogEntries"].as_array()?;
        entries.iter().filter_map(seconds).min().and_then(|time| Timestamp::from_second(time).ok())
    }
}

#[derive(Deserialize)]
struct Envelope {
    payload: String,
    #[serde(rename = "payloadType")]
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

#[derive(Deserialize)]
struct MessageSignature {
    signature: String,
}

#[derive(Deserialize)]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    subject: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    #[serde(default)]
    name: String,
    digest: std::collections::BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{Signer, bundle, simple, simple_for, statement};
    use super::*;

    const MANIFEST: &[u8] = br#"{"schemaVersion":2}"#;

    struct Case {
        signer: Signer,
        keys: Vec<PublicKey>,
        digest: Digest,
        repository: Repository,
    }

    fn case(signer: Signer) -> Case {
        let keys = vec![signer.public_key()];
        let repository = Repository { host: "registry.example".into(), path: "web".into() };
        Case { signer, keys, digest: Digest::of(MANIFEST), repository }
    }

    impl Case {
        fn expected(&self) -> Expected<'_> {
            Expected { keys: &self.keys, digest: &self.digest, repository: &self.repository, signed_for: &[] }
        }

        fn simple(&self, payload: &[u8]) -> Result<(), SignatureFlaw> {
            self.expected().simple(payload, &self.signer.sign_base64(payload))
        }

        fn bundle(&self, text: &Value) -> Result<(), SignatureFlaw> {
            let bundle = Bundle::parse(text.to_string().as_bytes())?;
            self.expected().bundle(&bundle).unwrap_or_else(|| self.expected().message(&bundle, MANIFEST))
        }
    }

    #[test]
    fn a_signature_counts_for_the_repository_that_it_names() {
        let mut case = case(Signer::ecdsa());
        let payload = simple(&case.digest);
        let signature = case.signer.sign_base64(&payload);
        assert_eq!(case.expected().simple(&payload, &signature), Ok(()));
        let bundle_of = |case: &Case, name: &str| {
            let mut statement = statement(&case.digest);
            statement["subject"][0]["name"] = name.into();
            Bundle::parse(bundle(&case.signer, &statement).to_string().as_bytes()).unwrap()
        };
        let named = bundle_of(&case, "registry.example/debugtools");
        assert_eq!(case.expected().bundle(&named), Some(Err(SignatureFlaw::OtherRepository)));
        assert_eq!(case.expected().bundle(&bundle_of(&case, "registry.example/web")), Some(Ok(())));
        case.repository.path = "debugtools".into();
        assert_eq!(case.expected().simple(&payload, &signature), Err(SignatureFlaw::OtherRepository));
        let copied = [Repository { host: "registry.example".into(), path: "web".into() }];
        let expected = Expected { signed_for: &copied, ..case.expected() };
        assert_eq!(expected.simple(&payload, &signature), Ok(()));
        // Docker Hub has two names.
        let hub = simple_for("index.docker.io/library/nginx", &case.digest);
        case.repository = Reference::parse("nginx").unwrap().repository;
        let signature = case.signer.sign_base64(&hub);
        assert_eq!(case.expected().simple(&hub, &signature), Ok(()));
    }

    #[test]
    fn a_signature_in_any_format_is_valid_for_its_digest() {
        for case in [case(Signer::ecdsa()), case(Signer::ed25519())] {
            assert_eq!(case.simple(&simple(&case.digest)), Ok(()));
            assert_eq!(case.bundle(&bundle(&case.signer, &statement(&case.digest))), Ok(()));
            let message = json!({"messageSignature": {"signature": case.signer.sign_base64(MANIFEST)}});
            assert_eq!(case.bundle(&message), Ok(()));
        }
    }

    #[test]
    fn a_signature_of_another_image_is_distinguished_from_one_by_another_key() {
        let case = case(Signer::ecdsa());
        let (other, stranger) = (Digest::of(b"other"), Signer::ecdsa());
        assert_eq!(case.simple(&simple(&other)), Err(SignatureFlaw::OtherDigest));
        assert_eq!(case.bundle(&bundle(&case.signer, &statement(&other))), Err(SignatureFlaw::OtherDigest));
        let payload = simple(&case.digest);
        assert_eq!(
            case.expected().simple(&payload, &stranger.sign_base64(&payload)),
            Err(SignatureFlaw::OtherKey)
        );
        assert_eq!(case.bundle(&bundle(&stranger, &statement(&case.digest))), Err(SignatureFlaw::OtherKey));
        let message = json!({"messageSignature": {"signature": case.signer.sign_base64(b"other")}});
        assert_eq!(case.bundle(&message), Err(SignatureFlaw::OtherKey));
        let good = json!({"messageSignature": {"signature": case.signer.sign_base64(MANIFEST)}});
        let good = Bundle::parse(good.to_string().as_bytes()).unwrap();
        assert_eq!(case.expected().message(&good, b"other"), Err(SignatureFlaw::OtherDigest));
    }

    #[test]
    fn any_of_several_keys_and_any_of_several_signatures_is_enough() {
        let mut case = case(Signer::ecdsa());
        case.keys = vec![Signer::ed25519().public_key(), case.signer.public_key()];
        assert_eq!(case.simple(&simple(&case.digest)), Ok(()));
        let mut text = bundle(&case.signer, &statement(&case.digest));
        let signatures = text["dsseEnvelope"]["signatures"].as_array_mut().unwrap();
        signatures.insert(0, json!({"sig": "AAAA", "keyid": ""}));
        signatures.insert(0, json!({"sig": "%"}));
        assert_eq!(case.bundle(&text), Ok(()));
    }

    #[test]
    fn signed_content_that_is_not_an_image_signature_is_malformed() {
        let case = case(Signer::ecdsa());
        let mut payload: Value = serde_json::from_slice(&simple(&case.digest)).unwrap();
        payload["critical"]["type"] = json!("atomic container signature");
        for payload in [payload.to_string(), "{}".into(), "null".into(), String::new(), "[[[[".into()] {
            assert_eq!(case.simple(payload.as_bytes()), Err(SignatureFlaw::Malformed), "{payload}");
        }
        // An attestation with the same key, for example of a scan with any result.
        let mut attestation = statement(&case.digest);
        attestation["predicateType"] = json!("https://cosign.sigstore.dev/attestation/vuln/v1");
        assert_eq!(case.bundle(&bundle(&case.signer, &attestation)), Err(SignatureFlaw::Malformed));
        let mut unsigned = bundle(&case.signer, &statement(&case.digest));
        unsigned["dsseEnvelope"]["signatures"] = json!([]);
        for text in
            [unsigned, json!({}), json!([]), json!({"dsseEnvelope": {}}), json!({"messageSignature": 1})]
        {
            assert_eq!(case.bundle(&text), Err(SignatureFlaw::Malformed), "{text}");
        }
    }

    #[test]
    fn the_signature_covers_the_type_of_an_envelope() {
        let case = case(Signer::ecdsa());
        let mut text = bundle(&case.signer, &statement(&case.digest));
        text["dsseEnvelope"]["payloadType"] = json!("text/plain");
        assert_eq!(case.bundle(&text), Err(SignatureFlaw::OtherKey));
        assert_eq!(pre_authentication_encoding("http://x/y", b"hello"), b"DSSEv1 10 http://x/y 5 hello");
    }

    #[test]
    fn a_sha512_digest_is_compared_by_its_own_algorithm() {
        let mut case = case(Signer::ecdsa());
        case.digest = Digest::parse(&format!("sha512:{}", "a".repeat(128))).unwrap();
        assert_eq!(case.bundle(&bundle(&case.signer, &statement(&case.digest))), Ok(()));
        let shorter = statement(&Digest::of(MANIFEST));
        assert_eq!(case.bundle(&bundle(&case.signer, &shorter)), Err(SignatureFlaw::OtherDigest));
    }
}
