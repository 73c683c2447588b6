//! Public keys in PEM format: ECDSA P-256 and Ed25519, as generated and imported by cosign.

use std::path::{Path, PathBuf};

use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::io::AsyncReadExt as _;

use crate::model::SignatureError;
use crate::model::text::describe_io_error;

/// Prefix of a P-256 key's `SubjectPublicKeyInfo` (RFC 5480) up to the point, without the marker of an uncompressed point.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Prefix of an Ed25519 key's `SubjectPublicKeyInfo` (RFC 8410) up to the key.
const ED25519_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// Maximum size of a key file in bytes. A key has about 200.
const FILE_LIMIT: u64 = 64 * 1024;

/// A key that verifies signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublicKey {
    algorithm: Algorithm,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    EcdsaP256,
    Ed25519,
}

/// The keys of all files and the content of these files, which identifies the set of keys.
#[derive(Default)]
pub(super) struct KeySet {
    pub(super) keys: Vec<PublicKey>,
    pub(super) content: Vec<u8>,
    /// Errors of unusable files.
    pub(super) faults: Vec<String>,
}

impl PublicKey {
    /// Parses all keys of a PEM text. Other sections are skipped.
    pub(super) fn all_in(pem: &[u8]) -> Result<Vec<Self>, &'static str> {
        let mut keys = Vec::new();
        for section in SubjectPublicKeyInfoDer::pem_slice_iter(pem) {
            let spki = section.map_err(|_| "is not valid PEM")?;
            keys.push(Self::from_spki(&spki).ok_or("has a key that is neither ECDSA P-256 nor Ed25519")?);
        }
        if keys.is_empty() { Err("has no public key in PEM form (BEGIN PUBLIC KEY)") } else { Ok(keys) }
    }

    fn from_spki(spki: &[u8]) -> Option<Self> {
        let (algorithm, bytes) = if let Some(point) = spki.strip_prefix(&P256_PREFIX) {
            (Algorithm::EcdsaP256, point)
        } else {
            (Algorithm::Ed25519, spki.strip_prefix(&ED25519_PREFIX)?)
        };
        let length = match algorithm {
            Algorithm::EcdsaP256 => 65,
            Algorithm::Ed25519 => 32,
        };
        (bytes.len() == length).then(|| Self { algorithm, bytes: bytes.to_vec() })
    }

    /// Verifies `signature` over `message`.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn VerificationAlgorithm = match self.algorithm {
            Algorithm::EcdsaP256 => &ECDSA_P256_SHA256_ASN1,
            Algorithm::Ed25519 => &ED25519,
        };
        UnparsedPublicKey::new(algorithm, &self.bytes).verify(message, signature).is_ok()
    }
}

impl KeySet {
    /// Reads the keys of all files. Any of them is sufficient (`signed_by`), so an unusable file does not affect the others.
    pub(super) async fn read(files: &[PathBuf]) -> Self {
        let mut set = Self::default();
        for file in files {
            let read = match read(file).await {
                Ok(content) => PublicKey::all_in(&content).map(|keys| (keys, content)).map_err(str::to_owned),
                Err(why) => Err(why),
            };
            match read {
                Ok((keys, content)) => {
                    set.keys.extend(keys);
                    set.content.extend(content);
                }
                Err(why) => set.faults.push(format!("key file {} {why}", file.display())),
            }
        }
        set
    }

    /// Returns the set, or an error if it has no keys.
    pub(super) fn usable(self) -> Result<Self, SignatureError> {
        if self.keys.is_empty() { Err(SignatureError::Key(self.faults.join("; "))) } else { Ok(self) }
    }
}

/// Reads a small regular file. The error is the end of a sentence about the file.
async fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("can't be read: {}", describe_io_error(&error));
    // Opening a FIFO would block until a writer opens it.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file =
        tokio::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).await.map_err(failed)?;
    let meta = file.metadata().await.map_err(failed)?;
    if !meta.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if meta.len() > FILE_LIMIT {
        return Err(format!("is larger than {FILE_LIMIT} bytes"));
    }
    let mut content = Vec::new();
    file.take(FILE_LIMIT).read_to_end(&mut content).await.map_err(failed)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Signer, pem};
    use super::*;

    #[test]
    fn a_key_accepts_only_signatures_of_its_private_key() {
        for signer in [Signer::ecdsa(), Signer::ed25519()] {
            let [key] = &PublicKey::all_in(signer.pem().as_bytes()).unwrap()[..] else { panic!("one key") };
            let mut signature = signer.sign(b"message");
            assert!(key.verifies(b"message", &signature), "{key:?}");
            assert!(!key.verifies(b"messagf", &signature));
            assert!(!key.verifies(b"message", &[]));
            *signature.last_mut().unwrap() ^= 1;
            assert!(!key.verifies(b"message", &signature));
        }
    }

    #[test]
    fn a_file_may_hold_several_keys_and_other_text() {
        let (one, other) = (Signer::ecdsa(), Signer::ed25519());
        let text = format!("# our keys\n{}\n{}", one.pem(), other.pem());
        assert_eq!(PublicKey::all_in(text.as_bytes()).unwrap().len(), 2);
    }

    #[test]
    fn unusable_keys_are_described() {
        let mut longer = P256_PREFIX.to_vec();
        longer.extend([4; 66]);
        for (text, why) in [
            (String::new(), "no public key"),
            ("-----BEGIN PUBLIC KEY-----\n%%%\n-----END PUBLIC KEY-----\n".to_owned(), "not valid PEM"),
            (pem("CERTIFICATE", b"x"), "no public key"),
            (pem("ENCRYPTED SIGSTORE PRIVATE KEY", b"x"), "no public key"),
            (pem("PUBLIC KEY", b"x"), "neither ECDSA P-256 nor Ed25519"),
            (pem("PUBLIC KEY", &longer), "neither ECDSA P-256 nor Ed25519"),
        ] {
            let fault = PublicKey::all_in(text.as_bytes()).unwrap_err();
            assert!(fault.contains(why), "{text}: {fault}");
        }
    }

    #[tokio::test]
    async fn an_unreadable_key_file_is_named_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (good, large) = (at("good.pub"), at("large.pub"));
        std::fs::write(&good, Signer::ecdsa().pem()).unwrap();
        std::fs::write(&large, vec![b'#'; 70_000]).unwrap();
        let fifo_mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, fifo_mode, 0).unwrap();
        std::fs::write(at("rsa.pub"), pem("PUBLIC KEY", b"x")).unwrap();
        assert_eq!(KeySet::read(std::slice::from_ref(&good)).await.usable().unwrap().keys.len(), 1);
        for (name, why) in [
            ("none", "can't be read"),
            ("fifo", "not a regular file"),
            ("large.pub", "larger than"),
            ("rsa.pub", "neither ECDSA P-256 nor Ed25519"),
            ("", "not a regular file"),
        ] {
            let set = KeySet::read(&[at(name), good.clone()]).await.usable().unwrap();
            assert_eq!((set.keys.len(), set.faults.len()), (1, 1), "{name}: the other key counts");
            let Err(SignatureError::Key(fault)) = KeySet::read(&[at(name)]).await.usable() else {
                panic!("{name}: it is no key");
            };
            assert_eq!(set.faults.first(), Some(&fault));
            assert!(fault.starts_with("key file /") && fault.contains(why), "{fault}");
        }
    }
}
