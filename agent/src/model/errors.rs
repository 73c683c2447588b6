//! What the world outside could not do, as the decision core needs to tell it apart.

/// What the engine could not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No answer at all: not running, connection broken, or too slow. Says nothing about the world.
    #[error("container engine unavailable: {0}")]
    Unavailable(String),
    /// The thing that was named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The engine answered and refused.
    #[error("{0}")]
    Refused(String),
}

impl EngineError {
    /// Whether the engine gave no answer, so that nothing is known.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, EngineError::Unavailable(_))
    }
}

/// Why a registry gave no digest. Texts are stable: the same fault gives the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RegistryError(pub String);

/// Why compose did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct ComposeError {
    /// One stable line: compose's last line, or what kept it from running.
    pub cause: String,
    /// What compose printed (the last 8 KiB).
    pub output: String,
}
