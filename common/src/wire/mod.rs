//! The wire contract: the types of all JSON that a daemon sends or receives, without any logic.

mod audit;
mod decisions;
mod fleet;
mod health;
mod object;
mod registry_event;
mod reply;
mod status;
mod why;

pub use audit::{AuditEntry, ImageDigest, Kind, Level, Tenths};
pub use decisions::{
    CellVerdict, FailedDigest, FleetAnswer, FleetAsk, FleetCell, FleetDecisions, FleetImage, FleetImages,
    FleetUnblockReply, FleetUnblockRequest, Freeze, FreezeReply, FreezeRequest, FreezeScope, Inventory,
    InventoryImage, InventoryReply, Permission, ReleaseReply, SeenDigest, ThawReply, ThawRequest,
};
pub use fleet::{
    FleetEntry, HistoryEntry, HistoryPage, IngestReply, LevelCounts, MachineRecord, RejectedEntry,
};
pub use health::Health;
pub use registry_event::{EventsReply, RegistryEvent, RegistryEvents, RegistryTarget};
pub use reply::{
    ApproveReply, ApproveRequest, ErrorBody, KeptImage, LogoutReply, PlannedImage, ProvenRecord,
    RedeployReply, RollbackPlan, RollbackReply, RollbackRequest, TriggerReply, UnblockReply,
};
pub use status::{
    CheckStatus, ContainerRecord, DeployOutcome, DeployPhase, DeployProgress, FailedUpdate,
    HandoverContainer, HandoverProgress, ImageRecord, LastDeployment, LeftOutService, MountRecord,
    ProbeProgress, RequestedChecks, ServiceStatus, SnapshotKind, SnapshotPlace, SnapshotRecord, StatusFrame,
    StatusReport, StatusValue, Waiting, WayBackValue,
};
pub use why::{Gate, WhyReport};
