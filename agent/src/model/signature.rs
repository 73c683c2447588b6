//! What the signatures of an image come to, for a set of keys.

/// What was found where an image's signatures are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureVerdict {
    /// One of the keys signed exactly this digest.
    Valid,
    /// The image has no signature.
    Missing,
    /// It has signatures, and none of them counts. Where they fail for different reasons, this is the one closest to a
    /// valid signature.
    Invalid(SignatureFlaw),
}

/// Why a signature does not count; the further down, the closer it is to a valid one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignatureFlaw {
    /// It is not in a form that is known.
    Malformed,
    /// None of the keys made it.
    OtherKey,
    /// One of the keys made it, but for another image.
    OtherDigest,
}

/// Why nothing is known about an image's signatures. Texts are stable: the same fault gives the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A key file can't be used.
    #[error("{0}")]
    Key(String),
    /// The registry gave no answer that says whether there is one.
    #[error(transparent)]
    Registry(#[from] super::RegistryError),
}
