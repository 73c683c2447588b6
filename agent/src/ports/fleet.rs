//! The fleet's wardens, as far as an update depends on them (DECISIONS 8).

use std::time::Duration;

use async_trait::async_trait;
use evenkeel_common::wire::{FleetAnswer, FleetAsk, FleetDecisions, Inventory};
use jiff::Timestamp;

/// Asks the wardens of the fleet. No answer can make an agent deploy anything.
#[async_trait]
pub trait Fleet: Send + Sync + 'static {
    /// The decisions in force; answered as soon as they are not what is `known`, or after `wait`.
    async fn decisions(&self, known: Known, wait: Duration) -> Result<Heard, FleetError>;

    /// Asks whether a deployment may begin. It may take a lease; asking again renews that.
    async fn ask(&self, ask: &FleetAsk) -> Result<FleetAnswer, FleetError>;

    /// Gives back a lease that was not used.
    async fn release(&self, ask: &FleetAsk) -> Result<(), FleetError>;

    /// Reports what runs on this machine.
    async fn report(&self, inventory: &Inventory) -> Result<(), FleetError>;
}

/// What was heard last of the decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Known {
    /// [`FleetDecisions::revision`]
    pub revision: u64,
    /// [`FleetDecisions::verdicts`]
    pub verdicts: u64,
}

/// What a warden has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The decisions in force.
    pub decisions: FleetDecisions,
    /// The time by the warden's clock (`Date`), where it says so.
    pub date: Option<Timestamp>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// None is configured, or the wardens there are know nothing of fleets (the predecessor's, older ones).
    #[error("the warden makes no decisions for a fleet")]
    NoFleet,
    /// No warden gave an answer that can be used; the first one's failure.
    #[error("{0}")]
    Away(String),
    /// A warden is there, and has no time for this request now.
    #[error("the warden has too much to do")]
    Busy,
}
