//! The status of services as reported by the API (spec 2.1-2.5, 3.1).

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Tenths;

/// The status of a service: the first value that applies, in this order.
// Spec 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatusValue {
    /// The maximum number of restart attempts was reached; manual action is required.
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
    /// Unhealthy, with no recovery in progress.
    Unhealthy,
    /// No health data yet.
    Unknown,
}

/// Status record of one service.
// Spec 2.1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
// The wire format defines these flags.
#[allow(clippy::struct_excessive_bools)]
pub struct ServiceStatus {
    /// Configured name.
    pub name: String,
    /// The first value that applies, in the order of `StatusValue`.
    pub status: StatusValue,
    /// Blocked digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Last known remote digest of an image that was not found locally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_found: Option<String>,
    /// Message of the persistent fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errored: Option<String>,
    /// `auto_update` as configured.
    pub auto_update: bool,
    /// `auto_start` as configured.
    pub auto_start: bool,
    /// `auto_heal` as configured.
    pub auto_heal: bool,
    /// Health of the containers; absent until it has been observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,
    /// Why `healthy` is false, for example `stopped by hand` or `web-1 exited with code 1`; without `healthy`, that there is no
    /// container of the name in `container_name`, or why the swarm service can't be read; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_reason: Option<String>,
    /// A deployment is in progress, including its probation.
    pub deploying: bool,
    /// The healer is attempting recovery.
    pub degraded: bool,
    /// The healer gave up.
    pub exhausted: bool,
    /// Consecutive restarts that did not help.
    pub restart_failures: u32,
    /// Total number of new images that passed probation.
    pub updates_total: u64,
    /// Total number of deployments that were rolled back.
    pub rollbacks_total: u64,
    /// Total number of restarts by the healer.
    pub restarts_total: u64,
    /// Total number of failed deployments, rollbacks and restarts.
    pub failures_total: u64,
    /// Running images; absent until the first successful poll cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<ImageRecord>>,
    /// Containers; absent without a compose project and for silent services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containers: Option<Vec<ContainerRecord>>,
    /// Whether the numbers below come from a measurement.
    pub has_stats: bool,
    /// CPU usage in percent of one core, summed over the containers.
    pub cpu_percent: f64,
    /// Memory usage in percent of the limit, or of the machine's memory if there is none.
    pub memory_percent: f64,
    /// Memory usage in MiB.
    pub memory_usage_mb: f64,
    /// Memory limit in MiB.
    pub memory_limit_mb: f64,
    /// When the last check ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_check: Option<Timestamp>,
    /// When the next check is due; absent if the service is not polled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub next_check: Option<Timestamp>,
    /// An available update that is held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Id of the agent on which the digest failed, or that is trying it; absent if neither is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// Whether a check is in progress.
    pub check_status: CheckStatus,
    /// Whether a rollback to the running images would be possible; absent until this has been checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_back: Option<WayBackValue>,
    /// What prevents a rollback; absent if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_back_reason: Option<String>,
    /// The deployment in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy: Option<DeployProgress>,
    /// Copies of the data that are kept, newest first; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotRecord>,
    /// The last deployment that ended; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_deployment: Option<LastDeployment>,
    /// Since when the service has been in this status; absent if it is `ok`, or if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// The update that the block or the failed rollback comes from; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_update: Option<FailedUpdate>,
    /// Checks that were requested by name since the program started; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_checks: Option<RequestedChecks>,
}

/// How far the checks are that were requested for this service by a trigger, a redeployment or a rollback.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestedChecks {
    /// Number of requests.
    pub requested: u64,
    /// Number of requests whose check has ended.
    pub ended: u64,
    /// Whether something is still to come of what was found: another check, the answer of a gate command or of a warden, or
    /// a deployment.
    pub undecided: bool,
    /// Why the last check that was requested has compared nothing: the engine did not answer, for example. Absent once a check
    /// has, requested or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Why it is not known whether there is a newer tag to deploy: the tags could not be listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags_unknown: Option<String>,
}

/// An update that failed on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedUpdate {
    /// When it was rolled back, or the rollback failed.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// Images as configured; several are joined with `, `.
    pub image: String,
    /// The failed digest, `sha256:<hex>`; absent if several images changed and none is known to be the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Why, in one sentence.
    pub reason: String,
    /// The container that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Facts about the container and its last log lines, at most 2 KiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Whether the images that ran before were restored and passed their own probation.
    pub rolled_back: bool,
    /// It did not fail: a person went back to an earlier image. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
}

/// A configured service that is not watched because its configuration has a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOutService {
    /// Its name; its place in the file, such as `services[2]`, if it has no usable name.
    pub name: String,
    /// The faults.
    pub reason: String,
}

/// An update that a gate holds back.
// DECISIONS 7.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// Image as configured.
    pub image: String,
    /// Waiting digest, `sha256:<hex>`.
    pub digest: String,
    /// Name of the first gate that holds it.
    pub gate: String,
    /// Why, in one sentence.
    pub why: String,
    /// When that gate opens by itself; absent if it only opens on an event or a manual action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub lifts_at: Option<Timestamp>,
    /// The request with which an operator opens the gate.
    pub clear: String,
    /// Id of the agent on which the digest failed, or that is trying it; absent if neither is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// The last log lines of the failure on that machine, at most 8 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// How the configuration of the new image differs from that of the running one, and what that may mean; absent if nothing
    /// differs, or if it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
}

/// Whether a check is in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// No check is in progress.
    Idle,
    /// The registry and the engine are being queried.
    Checking,
}

/// Whether a rollback would be possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WayBackValue {
    /// Everything that it needs is available.
    Ok,
    /// Something that it needs is missing.
    AtRisk,
}

/// Progress of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeployProgress {
    /// Current phase.
    pub phase: DeployPhase,
    /// Image being deployed; several are joined with `, `.
    pub image: String,
    /// When this phase started.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Deadline of this phase; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Timestamp>,
    /// Bytes that the engine has pulled so far.
    pub pulled_bytes: u64,
    /// Total bytes to pull, as far as the engine knows; 0 while unknown.
    pub total_bytes: u64,
    /// What the probe has shown so far; absent without a probe, and in other phases than `probation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeProgress>,
    /// The old and the new containers, if these start beside those (`update.order`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<HandoverProgress>,
    /// `before` while that hook runs, which comes first of all; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
}

/// What the probe of an image on probation has shown so far; of several containers that of the one that is furthest from
/// passing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeProgress {
    /// What is asked: method and URL without the containers' address, for example `GET http://:8080/health`.
    pub probe: String,
    /// Whether it has succeeded.
    pub passed: bool,
    /// The last answer; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// Phases of a deployment as shown to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeployPhase {
    /// The old images are being pinned and the new ones pulled.
    Pulling,
    /// The project is being started with the new images.
    Starting,
    /// The new containers are on probation.
    Probation,
    /// The old images are being restored, followed by their own probation.
    RollingBack,
    /// New containers are being started beside the old ones; their probation follows.
    Spreading,
    /// The old containers are being relieved of their requests.
    Draining,
    /// The old containers are being stopped. They are kept.
    Retiring,
    /// The new containers serve alone, and are on probation once more.
    Soaking,
    /// The old containers are being removed.
    Settling,
    /// What writes to the data is being stopped, so that it can be copied.
    Quiescing,
    /// The data is being copied. `pulled_bytes` and `total_bytes` are those of the copy.
    Copying,
    /// The copies of the data are being put back; the old images follow.
    Restoring,
}

/// A copy of a service's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotRecord {
    /// What tells it from others.
    pub id: String,
    /// The time that its data is of; of data that rejected images left, the time of the copy that was put back.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// What was copied, as configured.
    pub of: Vec<String>,
    /// Size of the data in MiB.
    pub mib: u64,
    /// The images of the update; several are joined with `, `.
    pub image: String,
    /// Why it is kept.
    pub kind: SnapshotKind,
    /// Where it is.
    pub places: Vec<SnapshotPlace>,
    /// The folder in which the hook `before` has left what it has saved of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<String>,
}

/// Why a copy of data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// It was made before an update.
    Copy,
    /// A copy was put back in its place: it is what the rejected image has left.
    SetAside,
}

/// Where a copy of data is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotPlace {
    /// What was copied, as configured.
    pub of: String,
    /// The folder on the machine.
    pub path: String,
    /// The volume that stands for the folder; absent for the copy of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// How a deployment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeployOutcome {
    /// Its images are proven.
    Succeeded,
    /// It was rolled back, and the previous images are proven again.
    RolledBack,
    /// It could not be executed, or the rollback failed.
    Failed,
    /// The containers on probation were stopped, removed or replaced from outside: nothing was proven.
    Inconclusive,
}

impl DeployOutcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::RolledBack, Self::Failed, Self::Inconclusive];

    /// As on the wire, and as the label value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::RolledBack => "rolled_back",
            Self::Failed => "failed",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// A deployment that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastDeployment {
    /// When it ended.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// How it ended.
    pub outcome: DeployOutcome,
    /// How long a changed service was interrupted by it, the longest; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage_seconds: Option<Tenths>,
}

/// The containers of a handover. Both sides serve until the old one is drained.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandoverProgress {
    /// The containers that ran before.
    pub old: Vec<HandoverContainer>,
    /// Those of the new images.
    pub new: Vec<HandoverContainer>,
}

/// A container of one side of a handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandoverContainer {
    /// Its name.
    pub name: String,
    /// As in `docker ps`: `running`, `exited` and so on.
    pub state: String,
    /// As in `docker ps`: `healthy`, `unhealthy` or `starting`; absent without a health check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
}

/// One image of a service.
// Spec 2.2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageRecord {
    /// Full image reference.
    pub image: String,
    /// Running digest, `sha256:<hex>`.
    pub digest: String,
    /// First 19 characters of the digest.
    pub short: String,
    /// Uncompressed local size in MiB.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size_mb: f64,
    /// The newest tag that matches `tags`, if it is newer than the configured one.
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
    /// State, for example `running`.
    pub state: String,
    /// Status text of the runtime, for example `Up 3 minutes (healthy)`, as of this response.
    pub status: String,
    /// When its main process was last started; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// Image reference from which the container was created.
    pub image: String,
    /// Mounts of the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountRecord>,
    /// CPU usage in percent of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Memory usage in percent of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<f64>,
    /// Memory usage in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_usage_mb: Option<f64>,
    /// Memory limit in MiB.
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

/// Response of `GET /status`.
// Spec 2.5.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// Whether the program has just started and has not loaded its services yet; `services` is empty then. Absent
    /// otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starting: bool,
    /// Whole seconds since the program started.
    pub uptime_seconds: u64,
    /// When the last poll cycle completed; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_poll: Option<Timestamp>,
    /// Completed poll cycles, including those of `POST /trigger`.
    pub poll_count: u64,
    /// Why the container engine is unavailable; absent while it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_error: Option<String>,
    /// Services that are not watched because their configuration has a fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutService>,
    /// Notification channels (and the push) that are off because of a fault, and those through which nothing has been delivered
    /// for ten minutes, with since when, each with the reason; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undelivered: Vec<String>,
    /// One record per watched service.
    pub services: Vec<ServiceStatus>,
}

/// A status frame of `GET /ui/stream`.
// DECISIONS 3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusFrame {
    /// Whole seconds since the program started.
    pub uptime_seconds: u64,
    /// Services that are not watched because their configuration has a fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutService>,
    /// One record per watched service.
    pub services: Vec<ServiceStatus>,
}

// serde passes the field by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}
