//! The swarm that the engine is a manager of, as far as updates of its services need it.

use async_trait::async_trait;

use crate::model::swarm::SwarmService;
use crate::model::{Reference, SwarmError};

/// Reads and changes services. Every call has a deadline of its own.
#[async_trait]
pub trait Swarm: Send + Sync + 'static {
    /// The service of this name with its tasks.
    async fn service(&self, name: &str) -> Result<SwarmService, SwarmError>;

    /// Whether the registry serves `image` to the managers, and any node has its platform. Changes nothing.
    async fn admits(&self, image: &Reference) -> Result<(), SwarmError>;

    /// Sets the image of `service`, as it was read, and raises `ForceUpdate` where `force` is set; everything else of
    /// the specification stays. The registry's login goes along. [`SwarmError::Conflict`] where the service is another
    /// version by now.
    async fn set_image(&self, service: &SwarmService, image: &str, force: bool) -> Result<(), SwarmError>;

    /// Puts `service`, as it was read, back to its previous specification, by its own `rollback_config`.
    async fn roll_back(&self, service: &SwarmService) -> Result<(), SwarmError>;

    /// The last `lines` lines that a task wrote on any node, control characters taken out, at most 8 KiB.
    async fn task_log(&self, task: &str, lines: u32) -> Result<String, SwarmError>;

    /// Output of the last health check of a container on the engine's own node; empty where it has none.
    async fn health_check(&self, container: &str) -> Result<String, SwarmError>;
}
