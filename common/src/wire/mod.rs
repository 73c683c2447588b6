//! The contract: every JSON shape that leaves or enters a daemon, and nothing but shapes.

mod audit;
mod fleet;
mod health;
mod reply;
mod status;

pub use audit::{AuditEntry, Kind, Level};
pub use fleet::{FleetEntry, IngestReply, LevelCounts, MachineRecord};
pub use health::Health;
pub use reply::{ErrorBody, RedeployReply, TriggerReply, UnblockReply};
pub use status::{
    CheckStatus, ContainerRecord, DeployPhase, DeployProgress, ImageRecord, MountRecord, ServiceStatus,
    StatusReport, StatusValue,
};
