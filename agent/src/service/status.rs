//! How a service looks from outside: a view over its facts, never stored (spec 2.1-2.3, 3.1).

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::{
    CheckStatus, ContainerRecord, DeployPhase, DeployProgress, ImageRecord, ServiceStatus, StatusValue,
};

use crate::image::{Digest, Reference};
use crate::ports::{Container, HealthState, Lender, Pulled, State};

use super::deploy::{Deployment, Phase};
use super::judge::Rules;
use super::patient::Patient;
use super::{Service, compare};

/// What a service shows at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Its status record, without what only the poller knows.
    pub status: ServiceStatus,
    /// Blocked digest per image as configured.
    pub blocked: BTreeMap<String, Digest>,
    /// The same in normal form, for the other services of the project.
    pub blocked_references: Vec<(Reference, Digest)>,
    /// Not-found digest per image as configured.
    pub not_found: BTreeMap<String, Digest>,
    /// Full IDs of the containers that can be measured.
    pub running: Vec<String>,
    /// Containers, by ID or name, whose network containers of this service use.
    pub lenders: BTreeSet<String>,
}

impl Service {
    /// What it shows now. `pulled`: how far a pull under way is.
    pub fn snapshot(&self, pulled: Pulled) -> Snapshot {
        let config = self.config();
        let durable = self.durable();
        let show_containers = config.compose_project.is_some() && !config.silent;
        let total = self.usage();
        let status = ServiceStatus {
            name: config.name.clone(),
            status: StatusValue::Unknown,
            blocked: durable.blocked.values().next().map(ToString::to_string),
            not_found: durable.not_found.values().next().map(ToString::to_string),
            errored: self.fault.as_ref().map(|fault| fault.text.clone()),
            auto_update: config.auto_update,
            auto_start: config.auto_start,
            auto_heal: config.auto_heal,
            healthy: self.containers.as_deref().and_then(healthy),
            deploying: self.is_deploying(),
            degraded: config.auto_heal && durable.patients.values().any(Patient::is_in_treatment),
            exhausted: durable.patients.values().any(|patient| patient.exhausted),
            restart_failures: durable.patients.values().map(|patient| patient.failures).max().unwrap_or(0),
            updates_total: durable.totals.updates,
            rollbacks_total: durable.totals.rollbacks,
            restarts_total: durable.totals.restarts,
            failures_total: durable.totals.failures,
            images: self.images(),
            containers: self
                .containers
                .as_ref()
                .filter(|_| show_containers)
                .map(|containers| containers.iter().map(|c| self.container_record(c)).collect()),
            has_stats: total.is_some(),
            cpu_percent: total.map(|total| round(total.cpu_percent)).unwrap_or_default(),
            memory_percent: total.map(|total| round(total.memory_percent())).unwrap_or_default(),
            memory_usage_mb: total.map(|total| mebibytes(total.memory)).unwrap_or_default(),
            memory_limit_mb: total.map(|total| mebibytes(total.memory_limit)).unwrap_or_default(),
            last_check: self.last_check,
            next_check: None,
            check_status: if self.checking { CheckStatus::Checking } else { CheckStatus::Idle },
            deploy: durable
                .deployment
                .as_ref()
                .filter(|_| self.is_deploying())
                .map(|deployment| self.progress(deployment, pulled)),
        };
        let status = ServiceStatus { status: value(&status), ..status };
        Snapshot {
            status,
            blocked: durable.blocked.clone(),
            blocked_references: config
                .images
                .iter()
                .filter_map(|image| {
                    Some((image.reference.clone(), durable.blocked.get(&image.text)?.clone()))
                })
                .collect(),
            not_found: durable.not_found.clone(),
            running: self.running().map(|container| container.id.clone()).collect(),
            lenders: self.lenders().map(|lender| lender.given.clone()).collect(),
        }
    }

    fn container_record(&self, container: &Container) -> ContainerRecord {
        let used = self.usage_of(&container.id).filter(|_| is_running(container));
        ContainerRecord {
            id: container.id.clone(),
            name: container.name.clone(),
            state: container.state.as_str().to_owned(),
            status: container.status.clone(),
            image: container.config_image.clone(),
            mounts: container.mounts.clone(),
            cpu_percent: used.map(|used| round(used.cpu_percent)),
            memory_percent: used.map(|used| round(used.memory_percent())),
            memory_usage_mb: used.map(|used| mebibytes(used.memory)),
            memory_limit_mb: used.map(|used| mebibytes(used.memory_limit)),
        }
    }

    /// Its containers whose processes are there, frozen ones too.
    pub(super) fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().flatten().filter(|container| is_running(container))
    }

    fn lenders(&self) -> impl Iterator<Item = &Lender> {
        self.containers.iter().flatten().filter_map(|container| container.network_of.as_ref())
    }

    fn images(&self) -> Option<Vec<ImageRecord>> {
        let seen = self.seen.as_ref()?;
        let record = |view: &super::fact::ImageView| {
            let local = view.running.first().or(view.tagged.as_ref())?;
            let pinned = view.reference.digest.as_ref();
            let digest = compare::shown_digest(local, view.remote.as_ref().or(pinned))?;
            Some(ImageRecord {
                image: view.reference.to_string(),
                digest: digest.to_string(),
                short: digest.short().to_owned(),
                size_mb: mebibytes(local.size),
            })
        };
        Some(seen.images.iter().filter_map(record).collect())
    }

    fn progress(&self, deployment: &Deployment, pulled: Pulled) -> DeployProgress {
        let phase = match &deployment.phase {
            Phase::Hold | Phase::Pull => DeployPhase::Pulling,
            Phase::Start => DeployPhase::Starting,
            Phase::Probation { .. } | Phase::Release => DeployPhase::Probation,
            Phase::TagsBack | Phase::Evidence { .. } | Phase::Undo { .. } | Phase::Proof { .. } => {
                DeployPhase::RollingBack
            }
        };
        let way_back = matches!(deployment.phase, Phase::Proof { .. });
        let deadline = match &deployment.phase {
            Phase::Probation { trial } | Phase::Proof { trial, .. } => {
                let rules = Rules {
                    moves: &deployment.moves,
                    grace: self.config().health_grace,
                    before: &deployment.before,
                    stops: &self.durable().stops,
                    way_back,
                };
                Some(trial.deadline(self.containers.as_deref().unwrap_or_default(), rules))
            }
            _ => None,
        };
        let pulled = if matches!(deployment.phase, Phase::Pull) { pulled } else { Pulled::default() };
        DeployProgress {
            phase,
            image: super::say::names(&deployment.moves),
            since: deployment.since,
            deadline,
            pulled_bytes: pulled.bytes,
            total_bytes: pulled.total,
        }
    }
}

/// The first row of spec 3.1 that holds.
fn value(status: &ServiceStatus) -> StatusValue {
    let rows = [
        (status.exhausted, StatusValue::Exhausted),
        (status.degraded, StatusValue::Degraded),
        (status.errored.is_some(), StatusValue::Errored),
        (status.blocked.is_some(), StatusValue::Blocked),
        (status.not_found.is_some(), StatusValue::NotFound),
        (status.deploying, StatusValue::Deploying),
        (status.healthy == Some(true), StatusValue::Ok),
        (status.healthy == Some(false), StatusValue::Unhealthy),
    ];
    rows.into_iter().find(|(holds, _)| *holds).map_or(StatusValue::Unknown, |(_, value)| value)
}

/// What the containers' health says together: one that is unwell is not hidden by one that is well.
fn healthy(containers: &[Container]) -> Option<bool> {
    let unwell = |c: &Container| match c.state {
        State::Running => c.health == Some(HealthState::Unhealthy),
        State::Created => !c.error.is_empty(),
        State::Exited => c.exit_code != 0,
        State::Restarting | State::Dead | State::Paused => true,
        State::Removing => false,
    };
    if containers.is_empty() {
        return None;
    }
    if containers.iter().any(unwell) {
        return Some(false);
    }
    let mut running = containers.iter().filter(|c| c.state == State::Running).peekable();
    if running.peek().is_none() {
        return Some(false);
    }
    if running.any(|c| c.health == Some(HealthState::Starting)) { None } else { Some(true) }
}

fn is_running(container: &Container) -> bool {
    matches!(container.state, State::Running | State::Paused)
}

/// Two decimals are enough.
fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Bytes as MiB, rounded to two decimals (DECISIONS 3).
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    (bytes as f64 / 1_048_576.0 * 100.0).round() / 100.0
}
