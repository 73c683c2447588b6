//! The last known state of the outside: what was read from the engine, the registries and the compose files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::swarm::SwarmService;
use crate::model::{Container, Difference, HealthState};
use crate::service::health::assess::StopTimes;
use crate::service::observation::{LocalImage, Observation};

/// The last known state of the outside. It is not durable: the first check and inspection after a start fill it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Known {
    /// The result of the last check.
    pub(super) observation: Option<Arc<Observation>>,
    /// When the data that it has seen was measured, if an update copies any.
    pub(super) data_measured_at: Option<Timestamp>,
    /// Images that were pulled since the last check, by name as configured.
    pub(super) pulled: BTreeMap<String, LocalImage>,
    /// The containers as of the last inspection or check.
    pub(super) containers: Option<Arc<[Container]>>,
    /// The swarm service, if this is one.
    pub(super) swarm: Option<Box<SwarmService>>,
    /// Why it can't be read, as of the last inspection.
    pub(super) swarm_error: Option<String>,
    /// Exit code of each container's last run, by ID: the engine no longer reports it once the next run begins.
    pub(super) exit_codes: BTreeMap<String, i64>,
    /// IDs of the containers whose health check has passed: the engine remembers only the last few probes.
    pub(super) served: BTreeSet<String>,
    /// When a container was last told to end by a signal that is not part of a stop, or that it has survived, by ID.
    pub(super) signals: StopTimes,
    /// When a container was last told to stop and has not been started since, by ID, by the agent's clock: it is shifted when
    /// the clock is set.
    pub(super) told_to_stop: BTreeMap<String, Timestamp>,
    /// When a container was last unpaused, by ID: its health check has no result until the next probe.
    pub(super) resumed: BTreeMap<String, Timestamp>,
    /// The result of the last health check that an event has reported, by ID, unless another event came after it.
    pub(super) reported_health: BTreeMap<String, HealthState>,
    /// How the definition of what an update would bring up differs from what runs, per image as configured.
    pub(super) differences: BTreeMap<String, Vec<Difference>>,
    /// The compose files that the containers were made from in place of the configured ones, as of that comparison.
    pub(super) other_files: Vec<PathBuf>,
    /// Hash of the compose files as of the last check.
    pub(super) files_hash: Option<String>,
    /// Time of the last event that suggests that the containers are being changed from outside.
    pub(super) external_change_at: Option<Timestamp>,
    /// Time of the registry's last answer per image reference, if gates may hold it.
    pub(super) registry_answered_at: BTreeMap<String, Timestamp>,
}
