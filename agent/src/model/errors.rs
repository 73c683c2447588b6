//! Errors of external systems, as far as the decision core distinguishes them.

/// An error of the container engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No response at all: not running, connection broken, or timed out. Nothing is known about the result.
    #[error("container engine unavailable: {0}")]
    Unavailable(String),
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The engine refused the request.
    #[error("{0}")]
    Refused(String),
}

impl EngineError {
    /// Reports whether the engine did not respond, so that the result is unknown.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, EngineError::Unavailable(_))
    }
}

/// An answer of the engine about one object.
pub trait IfFound<T> {
    /// Returns `None` if the object does not exist.
    fn found(self) -> Result<Option<T>, EngineError>;
}

impl<T> IfFound<T> for Result<T, EngineError> {
    fn found(self) -> Result<Option<T>, EngineError> {
        match self {
            Ok(answer) => Ok(Some(answer)),
            Err(EngineError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Why a registry returned no digest. Messages are stable: the same fault gives the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RegistryError(pub String);

/// How a registry's answer ends that it does not have an image.
pub const NOT_IN_REGISTRY: &str = "not found in the registry";

/// Reports whether the text of a [`RegistryError`] says that the registry does not have the image. Something else that was not
/// found, such as a credential helper, says nothing about the image.
pub fn is_not_in_registry(text: &str) -> bool {
    text.starts_with("image ") && text.ends_with(NOT_IN_REGISTRY)
}

/// What engines say, in lower case, of a container that compose has seen, and that another client has removed or is about to
/// remove, or of a name that another client has taken meanwhile.
const SIGNS_OF_RIVALS: [&str; 4] =
    ["no such container", "is marked for removal", "removal of container", "conflict. the container name"];

/// Why a compose command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct ComposeError {
    /// One stable line: compose's last line of output, or the reason why it could not run.
    pub cause: String,
    /// Output of compose (the last 8 KiB).
    pub output: String,
    /// Compose was ended from outside, or got no memory or threads: this says nothing about what it was to start.
    pub was_killed: bool,
    /// The machine could not give a container what it needs, such as room or a port: any image would have failed.
    pub is_of_machine: bool,
}

impl ComposeError {
    /// An error without output.
    pub fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), output: String::new(), was_killed: false, is_of_machine: false }
    }

    /// Reports whether somebody else, for example another compose run, works on the same containers.
    pub fn is_by_rival(&self) -> bool {
        self.says(&SIGNS_OF_RIVALS)
    }

    /// Reports whether a container did not become what another one waits for.
    pub fn is_about_dependency(&self) -> bool {
        self.says(&["dependency failed to start"])
    }

    /// Reports whether a container that was started did not become what compose waits for, or compose took too long.
    pub fn is_about_wait(&self) -> bool {
        self.is_about_dependency()
            || self.says(&["didn't complete successfully", "timed out after", "not ready after"])
            || self.cause.starts_with("dependency ")
    }

    /// Reports whether the cause is only that compose has failed, and not why: other faults have the same.
    pub fn is_unexplained(&self) -> bool {
        let is_of_caller = is_of_compose_caller(&self.cause) || self.cause.starts_with("exit code: ");
        is_of_caller || self.cause.contains("failed without output")
    }

    fn says(&self, signs: &[&str]) -> bool {
        let text = format!("{}\n{}", self.cause, self.output).to_ascii_lowercase();
        signs.iter().any(|sign| text.contains(sign))
    }
}

/// Reports whether a line is what `podman compose` says last of all if the compose that it calls has failed, whatever the cause.
pub fn is_of_compose_caller(line: &str) -> bool {
    line.starts_with("Error: executing ") && line.contains(": exit status ")
}

/// An error of the swarm. Messages are stable: the same fault gives the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwarmError {
    /// The engine did not respond.
    #[error("container engine unavailable: {0}")]
    Unavailable(String),
    /// The engine responds, but the managers can't: no leader, no quorum.
    #[error("the managers of the swarm do not answer: {0}")]
    NoLeader(String),
    /// The engine is a manager, but its swarm needs an operator: it is locked, or its certificates have expired.
    #[error("the swarm can't be used: {0}")]
    Unusable(String),
    /// This engine is a worker, or in no swarm: only a manager can read and update services.
    #[error("this engine is not a swarm manager, so it can neither read nor update services: {0}")]
    NotManager(String),
    /// No service has this name.
    #[error("the swarm has no service \"{0}\"")]
    NoService(String),
    /// The service has changed since it was read.
    #[error("the service was changed by another client")]
    Conflict,
    /// The swarm, or the registry that it queried, refused the request.
    #[error("{0}")]
    Refused(String),
}

impl SwarmError {
    /// Reports whether the error may be temporary, so that the request can be retried.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::NoLeader(_) | Self::Unusable(_) | Self::NotManager(_))
    }
}
