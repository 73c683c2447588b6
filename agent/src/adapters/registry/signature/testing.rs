//! Generates keys and signatures for tests, in cosign's formats.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::key::PublicKey;
use crate::model::image::Digest;

/// A private key.
pub(super) enum Signer {
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub(super) fn ecdsa() -> Self {
        let (kind, random) = (&ECDSA_P256_SHA256_ASN1_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self::Ecdsa(EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap())
    }

    pub(super) fn ed25519() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Ecdsa(pair) => pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    pub(super) fn sign_base64(&self, message: &[u8]) -> String {
        STANDARD.encode(self.sign(message))
    }

    /// The public key in cosign's format.
    pub(super) fn pem(&self) -> String {
        // The headers of RFC 5480 and RFC 8410 up to the key.
        let (header, key) = match self {
            Self::Ecdsa(pair) => {
                ("3059301306072a8648ce3d020106082a8648ce3d030107034200", pair.public_key().as_ref())
            }
            Self::Ed25519(pair) => ("302a300506032b6570032100", pair.public_key().as_ref()),
        };
        let mut der = hex::decode(header).unwrap();
        der.extend_from_slice(key);
        pem("PUBLIC KEY", &der)
    }

    pub(super) fn public_key(&self) -> PublicKey {
        PublicKey::all_in(self.pem().as_bytes()).unwrap().remove(0)
    }
}

pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A simple signing payload for `digest`.
pub(super) fn simple(digest: &Digest) -> Vec<u8> {
    simple_for("registry.example/web", digest)
}

/// The same for another repository.
pub(super) fn simple_for(reference: &str, digest: &Digest) -> Vec<u8> {
    json!({
        "critical": {
            "identity": {"docker-reference": reference},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": null,
    })
    .to_string()
    .into_bytes()
}

/// An in-toto statement of a signature for `digest`.
pub(super) fn statement(digest: &Digest) -> Value {
    let (algorithm, hex) = digest.as_str().split_once(':').unwrap();
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {algorithm: hex}}],
        "predicateType": "https://sigstore.dev/cosign/sign/v1",
        "predicate": {},
    })
}

/// A Sigstore bundle with the signed statement.
pub(super) fn bundle(signer: &Signer, statement: &Value) -> Value {
    let (kind, payload) = ("application/vnd.in-toto+json", statement.to_string());
    let message = format!("DSSEv1 {} {kind} {} {payload}", kind.len(), payload.len());
    json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "test"}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": STANDARD.encode(&payload),
            "payloadType": kind,
            "signatures": [{"sig": signer.sign_base64(message.as_bytes()), "keyid": ""}],
        },
    })
}
