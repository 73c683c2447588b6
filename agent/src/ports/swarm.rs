//! The swarm that the engine manages: the operations that service updates need.

use async_trait::async_trait;

use crate::model::swarm::SwarmService;
use crate::model::{Reference, SwarmError};

/// Reads and changes services. Every call has its own deadline.
#[async_trait]
pub trait Swarm: Send + Sync + 'static {
    /// Returns the service of this name with its tasks.
    async fn service(&self, name: &str) -> Result<SwarmService, SwarmError>;

    /// Checks that the registry serves `image` to the managers and that it suits the platforms of the nodes that run `service`.
    /// Read-only.
    async fn admits(&self, service: &SwarmService, image: &Reference) -> Result<(), SwarmError>;

    /// Sets the image of `service` and, with `force`, increments `ForceUpdate`. The rest of the specification is kept.
    /// The registry's credentials are sent along. Returns [`SwarmError::Conflict`] if the service has changed since it
    /// was read.
    async fn set_image(&self, service: &SwarmService, image: &str, force: bool) -> Result<(), SwarmError>;

    /// Rolls `service` back to its previous specification, using its own `rollback_config`. Fails like
    /// [`set_image`](Self::set_image) if the service has changed since it was read.
    async fn roll_back(&self, service: &SwarmService) -> Result<(), SwarmError>;

    /// Returns the last `lines` lines of a task's log, on any node, without control characters, at most 8 KiB.
    async fn task_log(&self, task: &str, lines: u32) -> Result<String, SwarmError>;

    /// Returns the output of the last health check of a container on the engine's own node; empty if it has none.
    async fn health_check(&self, container: &str) -> Result<String, SwarmError>;
}
