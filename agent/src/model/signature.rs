//! Results of verifying an image's signatures with a set of keys.

use std::path::PathBuf;

use jiff::Timestamp;

use super::image::Repository;

/// Whose signatures count for an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Signers {
    /// Files with the public keys.
    pub keys: Vec<PathBuf>,
    /// Repositories, other than that of the image, that a signature may name: those that it is a mirror or a copy of.
    pub signed_for: Vec<Repository>,
}

/// Result of verifying an image's signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureVerdict {
    /// One of the keys signed exactly this digest.
    Valid {
        /// When the transparency log took the signature in, if the registry says so. The key does not vouch for it: it can only
        /// make an image look too old, never open a gate.
        integrated: Option<Timestamp>,
    },
    /// The image has no signature.
    Missing,
    /// The image has signatures, but none is valid. If they fail for different reasons, this is the one closest to a valid
    /// signature.
    Invalid(SignatureFlaw),
}

/// Why a signature is invalid, ordered from furthest to closest to a valid one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignatureFlaw {
    /// The signature's format is unknown.
    Malformed,
    /// It was made by none of the keys.
    OtherKey,
    /// It was made by one of the keys, but for another image.
    OtherDigest,
    /// It was made by one of the keys for this image, but in another repository.
    OtherRepository,
}

/// Why an image's signatures could not be verified. Messages are stable: the same fault gives the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A key file can't be used.
    #[error("{0}")]
    Key(String),
    /// The registry did not report whether the image has signatures.
    #[error(transparent)]
    Registry(#[from] super::RegistryError),
}
