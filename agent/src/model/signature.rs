//! Results of verifying an image's signatures with a set of keys.

/// Result of verifying an image's signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureVerdict {
    /// One of the keys signed exactly this digest.
    Valid,
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
