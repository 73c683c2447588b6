//! What a service looks like from outside (spec 2.1-2.5, 3.1).

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a service in one word: the first that applies, in this order.
// Spec 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatusValue {
    /// Max restart attempts reached; someone must act.
    Exhausted,
    /// The healer is attempting recovery.
    Degraded,
    /// A persistent fault.
    Errored,
    /// A digest is blocked after a rollback.
    Blocked,
    /// The local image was not found.
    NotFound,
    /// An image update is in progress.
    Deploying,
    /// Running and healthy.
    Ok,
    /// Unhealthy, with no recovery under way.
    Unhealthy,
    /// No health data yet.
    Unknown,
}

/// Status record of one service.
// Spec 2.1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
// The wire has that many flags; they are not ours to regroup.
#[allow(clippy::struct_excessive_bools)]
pub struct ServiceStatus {
    /// Configured name.
    pub name: String,
    /// The first value that applies, in the order of `StatusValue`.
    pub status: StatusValue,
    /// Blocked digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Last known remote digest of an image that is not found locally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_found: Option<String>,
    /// Text of the persistent fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errored: Option<String>,
    /// As configured.
    pub auto_update: bool,
    /// As configured.
    pub auto_start: bool,
    /// As configured.
    pub auto_heal: bool,
    /// What the containers' health says; absent until something was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,
    /// Why `healthy` is false, for example `stopped by hand` or `web-1 exited with code 1`; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_reason: Option<String>,
    /// A deployment runs, its probation included.
    pub deploying: bool,
    /// The healer is attempting recovery.
    pub degraded: bool,
    /// The healer gave up.
    pub exhausted: bool,
    /// Consecutive restarts that did not help.
    pub restart_failures: u32,
    /// New images that passed probation, ever.
    pub updates_total: u64,
    /// Deployments that were undone, ever.
    pub rollbacks_total: u64,
    /// Restarts by the healer, ever.
    pub restarts_total: u64,
    /// Deployments, rollbacks and restarts that failed, ever.
    pub failures_total: u64,
    /// What runs; absent until the first successful poll cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<ImageRecord>>,
    /// Containers; absent without compose project and for silent services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containers: Option<Vec<ContainerRecord>>,
    /// Whether the numbers below come from a measurement.
    pub has_stats: bool,
    /// Percent of one core, summed over the containers.
    pub cpu_percent: f64,
    /// Percent of the limit, or of the machine where there is none.
    pub memory_percent: f64,
    /// MiB.
    pub memory_usage_mb: f64,
    /// MiB.
    pub memory_limit_mb: f64,
    /// When the last check ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_check: Option<Timestamp>,
    /// When the next check is due; absent where nothing polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub next_check: Option<Timestamp>,
    /// An update that was found and is held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Id of the agent of the fleet on which the digest failed, or that is trying it; absent where it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// Whether a check runs right now.
    pub check_status: CheckStatus,
    /// Whether a rollback to what runs would be possible; absent before the first check of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_back: Option<WayBackValue>,
    /// What stands in the way of a rollback; absent where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_back_reason: Option<String>,
    /// The deployment that runs right now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy: Option<DeployProgress>,
}

/// An update that a gate holds back.
// DECISIONS 7.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// Image as configured.
    pub image: String,
    /// Digest that waits, `sha256:<hex>`.
    pub digest: String,
    /// Word of the first gate that holds it.
    pub gate: String,
    /// Why, in one sentence.
    pub why: String,
    /// When that gate lets it go by itself; absent where only an event or a person ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub lifts_at: Option<Timestamp>,
    /// The request by which a person passes the gate.
    pub clear: String,
    /// Id of the agent of the fleet on which the digest failed, or that is trying it; absent where it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// What was found there: the last log lines of that machine, at most 8 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// Whether a check runs right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// No check runs.
    Idle,
    /// The registry and the engine are being asked.
    Checking,
}

/// Whether a rollback would be possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WayBackValue {
    /// What it needs is there.
    Ok,
    /// Something that it needs is missing.
    AtRisk,
}

/// How far a deployment is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeployProgress {
    /// What it is doing.
    pub phase: DeployPhase,
    /// Image that it is about; several are joined with `, `.
    pub image: String,
    /// When this phase began.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// When this phase ends at the latest; absent where it has no end of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Timestamp>,
    /// Bytes that the engine has fetched so far.
    pub pulled_bytes: u64,
    /// Bytes that the engine knows it must fetch; 0 while unknown.
    pub total_bytes: u64,
}

/// Phases of a deployment as people see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeployPhase {
    /// The old images are held and the new ones fetched.
    Pulling,
    /// The project is being started with the new images.
    Starting,
    /// The new containers must prove themselves.
    Probation,
    /// The old images are put back and must prove themselves.
    RollingBack,
}

/// One image of a service.
// Spec 2.2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageRecord {
    /// Full image reference.
    pub image: String,
    /// Digest that runs, `sha256:<hex>`.
    pub digest: String,
    /// First 19 characters of the digest.
    pub short: String,
    /// Uncompressed local size in MiB.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size_mb: f64,
    /// The newest tag of those that `tags` looks for, where it is newer than the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer: Option<String>,
}

/// One container of a service.
// Spec 2.3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContainerRecord {
    /// Full container ID.
    pub id: String,
    /// Container name.
    pub name: String,
    /// For example `running`.
    pub state: String,
    /// In the runtime's words, for example `Up 3 minutes (healthy)`, as of the answer.
    pub status: String,
    /// When its main process was started last; absent when it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// Image reference as the container was made from it.
    pub image: String,
    /// What is mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountRecord>,
    /// Percent of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Percent of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<f64>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_usage_mb: Option<f64>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_mb: Option<f64>,
}

/// One mount of a container.
// Spec 2.4.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MountRecord {
    /// `volume`, `bind` or `tmpfs`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Volume name; empty for bind mounts.
    pub name: String,
    /// Host path.
    pub source: String,
    /// Container path.
    pub destination: String,
    /// Mounted read-only.
    pub read_only: bool,
}

/// Answer of `GET /status`.
// Spec 2.5.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// Whether the program has just started and has not loaded its services yet: `services` is empty then. Absent
    /// otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starting: bool,
    /// Whole seconds since the program started.
    pub uptime_seconds: u64,
    /// When the last poll cycle was complete; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_poll: Option<Timestamp>,
    /// Completed poll cycles, those of `POST /trigger` included.
    pub poll_count: u64,
    /// One record per configured service.
    pub services: Vec<ServiceStatus>,
}

/// A status frame of `GET /ui/stream`.
// DECISIONS 3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusFrame {
    /// Whole seconds since the program started.
    pub uptime_seconds: u64,
    /// One record per configured service.
    pub services: Vec<ServiceStatus>,
}

// serde hands the field over by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}
