//! The fleet's wardens: the calls that updates depend on (DECISIONS 8).

use std::time::Duration;

use async_trait::async_trait;
use evenkeel_common::wire::{FleetAnswer, FleetAsk, FleetDecisions, Inventory};
use jiff::Timestamp;

/// Client of the fleet's wardens. No response can make an agent deploy anything.
#[async_trait]
pub trait Fleet: Send + Sync + 'static {
    /// Returns the decisions in force as soon as they differ from `known`, or after `wait`.
    async fn decisions(&self, known: KnownRevisions, wait: Duration)
    -> Result<DecisionsResponse, FleetError>;

    /// Asks whether a deployment may start. This may acquire a lease; asking again renews it.
    async fn ask(&self, ask: &FleetAsk) -> Result<FleetAnswer, FleetError>;

    /// Releases an unused lease.
    async fn release(&self, ask: &FleetAsk) -> Result<(), FleetError>;

    /// Reports this host's inventory.
    async fn report(&self, inventory: &Inventory) -> Result<(), FleetError>;
}

/// The decisions that the agent already has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownRevisions {
    /// [`FleetDecisions::revision`]
    pub revision: u64,
    /// [`FleetDecisions::verdicts`]
    pub verdicts: u64,
}

/// A warden's decisions response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionsResponse {
    /// The decisions in force.
    pub decisions: FleetDecisions,
    /// The warden's clock (`Date` header), if sent.
    pub date: Option<Timestamp>,
}

/// Why no warden answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// No warden is configured, or none supports fleets (the predecessor).
    #[error("the warden makes no decisions for a fleet")]
    NoFleet,
    /// No warden gave a usable answer. Holds the first failure.
    #[error("{0}")]
    Unavailable(String),
    /// A warden responded, but its response cannot be read: what it has decided is unknown.
    #[error("the warden's response cannot be read ({0})")]
    Unreadable(String),
    /// A warden responded, but is too busy for this request.
    #[error("the warden is too busy")]
    Busy,
}
