//! What the workers reach outside: the ports, the clock, and where entries and states are written.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::store::{Change, Store, StoreError};
use evenkeel_common::wire::{AuditEntry, DeployOutcome};
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::ports::fleet::Fleet;
use crate::ports::{Compose, Engine, EnvFiles, GateCommand, Probes, Registry, Signatures, Swarm, Tags};
use crate::service::boot::Boot;
use crate::service::fleet::FleetView;

use super::files::Offload;
use super::needed_images::NeededImages;
use super::published::Changed;
use super::snapshot::Data;

/// Records an audit entry.
pub type Record = Arc<dyn Fn(AuditEntry) + Send + Sync>;

/// Writes state changes and their audit entries in one transaction, then records the entries. If it fails, nothing is
/// changed and nothing recorded.
pub type Commit =
    Arc<dyn Fn(Vec<Change>, Vec<AuditEntry>) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

/// Receives the outcome, the duration and the outage of each deployment.
pub type Deployed = Arc<dyn Fn(DeployOutcome, Duration, Option<Duration>) + Send + Sync>;

/// External dependencies of the workers, shared by all of them.
#[derive(Clone)]
pub struct World {
    /// Container engine.
    pub engine: Arc<dyn Engine>,
    /// Image registries.
    pub registry: Arc<dyn Registry>,
    /// Signatures of images.
    pub signatures: Arc<dyn Signatures>,
    /// Tag lists of repositories.
    pub tags: Arc<dyn Tags>,
    /// The swarm that the engine is a manager of.
    pub swarm: Arc<dyn Swarm>,
    /// Compose.
    pub compose: Arc<dyn Compose>,
    /// Env files.
    pub env_files: Arc<dyn EnvFiles>,
    /// Gate commands.
    pub gate_command: Arc<dyn GateCommand>,
    /// Probes of containers on probation.
    pub probes: Arc<dyn Probes>,
    /// The data of services.
    pub data: Data,
    /// The images that services need.
    pub needed_images: NeededImages,
    /// The wardens.
    pub fleet: Arc<dyn Fleet>,
    /// View of the fleet.
    pub fleet_view: watch::Receiver<Arc<FleetView>>,
    /// Signals changes of published state.
    pub changed: Changed,
    /// Durable state, for reading.
    pub store: Arc<dyn Store>,
    /// Writes durable state.
    pub commit: Commit,
    /// Where work runs that blocks on the disk.
    pub offload: Offload,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Records audit entries without a state change.
    pub record: Record,
    /// Receives finished deployments.
    pub deployed: Deployed,
    /// Boot IDs of the machine.
    pub boot: Boot,
}

/// Returns the store key of a service's state.
pub fn state_key(service: &str) -> String {
    format!("service/{service}")
}
