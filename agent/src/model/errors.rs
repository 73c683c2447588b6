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

/// Why the swarm did not do it. Texts are stable: the same fault gives the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwarmError {
    /// The engine gave no answer at all.
    #[error("container engine unavailable: {0}")]
    Away(String),
    /// The engine answers, but the managers can't: no leader, no quorum.
    #[error("the managers of the swarm do not answer: {0}")]
    NoLeader(String),
    /// The engine is a manager that can't use its swarm until somebody acts: it is locked, or its certificates have expired.
    #[error("the swarm can't be used: {0}")]
    Unusable(String),
    /// This engine is a worker, or in no swarm: only a manager can read and update services.
    #[error("this engine is no manager of a swarm, so that it can neither read nor update services: {0}")]
    NotManager(String),
    /// No service has this name.
    #[error("the swarm has no service \"{0}\"")]
    NoService(String),
    /// Somebody changed the service since it was read.
    #[error("the service was changed by somebody else meanwhile")]
    Conflict,
    /// The swarm, or the registry that it asked, refused.
    #[error("{0}")]
    Refused(String),
}

impl SwarmError {
    /// Whether it may be over in a moment, so that the same can be tried again.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Away(_) | Self::NoLeader(_) | Self::Unusable(_) | Self::NotManager(_))
    }
}
