//! The status of a service as exposed to users: a view of its state, never stored (spec 2.1-2.3, 3.1).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_common::wire::{
    CheckStatus, ContainerRecord, DeployPhase, DeployProgress, ImageRecord, ServiceStatus, SnapshotRecord,
    StatusValue, Waiting, WayBackValue,
};
use jiff::Timestamp;

use crate::config::ConfiguredImage;
use crate::model::image::Reference;
use crate::model::{Container, HookEvent, NetworkOwner, State};
use crate::ports::PullProgress;
use crate::service::decide::image::shown_hold;
use crate::service::event::NoRemedy;
use crate::service::health::assess::{Condition, Inactive, is_cut_off};
use crate::service::health::restart_state::RestartState;
use crate::service::observation::{ImageView, Observation};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::snapshot::KeptSnapshot;
use crate::service::rollout::step::Phase;
use crate::service::upkeep::maintenance::WayBack;
use crate::service::view::runtime;
use crate::service::{Service, compare, gates, wording};

/// A published service. Its record is computed on demand, so that an idle service is in memory only once.
#[derive(Debug, Clone)]
pub struct Published {
    /// The service at the time of publication.
    pub service: Arc<Service>,
    /// Progress of the pull in progress.
    pub pulled: PullProgress,
}

impl Published {
    /// Publishes a service without a pull in progress.
    pub fn new(service: Arc<Service>) -> Self {
        Self { service, pulled: PullProgress::default() }
    }

    /// Returns the record to answer with.
    pub fn record(&self, context: &StatusContext) -> ServiceStatus {
        self.service.record(self.pulled, context)
    }

    /// Whether nothing has changed between the two.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.service, &other.service) && self.pulled == other.pulled
    }
}

/// The inputs of a record besides its service, at the time of the answer.
#[derive(Debug, Clone)]
pub struct StatusContext {
    /// Time of the answer.
    pub now: Timestamp,
    /// Start of the next poll cycle.
    pub next_poll: Option<Timestamp>,
    /// Why the container engine is considered unavailable.
    pub engine_error: Option<String>,
    /// Why the state can't be written.
    pub state_error: Option<String>,
}

impl Service {
    /// Returns the record to answer with (spec 2.1). This is the only place where a status is computed. `pulled`: progress of
    /// the pull in progress.
    pub fn record(&self, pulled: PullProgress, context: &StatusContext) -> ServiceStatus {
        let mut record = self.facts(pulled, context);
        correct(&mut record, context);
        record.status = value(&record);
        record.since = self.since(&record);
        record
    }

    /// The record as far as it follows from the service alone.
    fn facts(&self, pulled: PullProgress, context: &StatusContext) -> ServiceStatus {
        let config = self.config();
        let durable = self.durable();
        let show_containers =
            (config.compose_project.is_some() || config.swarm_service.is_some()) && !config.silent;
        let total = self.usage();
        let containers = self.known.containers.as_deref().filter(|_| show_containers);
        let health = if config.swarm_service.is_some() { self.swarm_health() } else { self.health() };
        let waiting = self.waiting(context.now);
        ServiceStatus {
            name: config.name.clone(),
            status: StatusValue::Unknown,
            blocked: durable.images.blocked().next().map(|(_, digest)| digest.to_string()),
            not_found: durable.images.not_found().next().map(|(_, digest)| digest.to_string()),
            errored: self.durable.fault.as_ref().map(|fault| fault.text.clone()),
            auto_update: config.auto_update,
            auto_start: config.auto_start,
            auto_heal: config.auto_heal,
            healthy: health.as_ref().map(Result::is_ok),
            unhealthy_reason: health.and_then(Result::err).or_else(|| self.lacks_containers()),
            deploying: self.is_deploying(),
            degraded: self.is_healing(),
            exhausted: durable.restart_states.values().any(RestartState::is_given_up),
            restart_failures: durable
                .restart_states
                .values()
                .map(|restart| restart.failures)
                .max()
                .unwrap_or(0),
            updates_total: durable.totals.updates,
            rollbacks_total: durable.totals.rollbacks,
            restarts_total: durable.totals.restarts,
            failures_total: durable.totals.failures,
            images: self.images(),
            containers: containers.map(|all| all.iter().map(|c| self.container_record(c, context)).collect()),
            has_stats: total.is_some(),
            cpu_percent: total.map(|total| round(total.cpu_percent)).unwrap_or_default(),
            memory_percent: total.map(|total| round(total.memory_percent())).unwrap_or_default(),
            memory_usage_mb: total.map(|total| mebibytes(total.memory)).unwrap_or_default(),
            memory_limit_mb: total.map(|total| mebibytes(total.memory_limit)).unwrap_or_default(),
            last_check: self.checks.last,
            next_check: context.next_poll.filter(|_| config.is_polled()),
            blocked_by: waiting.as_ref().and_then(|waiting| waiting.blocked_by.clone()),
            waiting,
            check_status: if self.checks.is_running() { CheckStatus::Checking } else { CheckStatus::Idle },
            way_back: durable.way_back.as_ref().map(rollback_readiness),
            way_back_reason: durable.way_back.as_ref().and_then(|way_back| way_back.risk.clone()),
            deploy: self.deploy_progress(pulled),
            snapshots: self.snapshots(),
            last_deployment: durable.last_deployment.clone(),
            since: None,
            failed_update: self.failed_update().cloned(),
            requested_checks: self.requested_checks(),
        }
    }

    /// Since when the service has been in the status of its record.
    fn since(&self, record: &ServiceStatus) -> Option<Timestamp> {
        match record.status {
            StatusValue::Exhausted | StatusValue::Degraded | StatusValue::Unhealthy => self.problem_since(),
            StatusValue::Errored => self.durable.fault.as_ref().map(|fault| fault.since),
            StatusValue::Blocked => {
                let (image, digest) = self.durable().images.blocked().next()?;
                self.failed_update_of(image, digest).map(|failed| failed.at)
            }
            StatusValue::Deploying => record.deploy.as_ref().map(|progress| progress.since),
            StatusValue::NotFound | StatusValue::Ok | StatusValue::Unknown => None,
        }
    }

    /// The waiting digest that is shown, with the gate that holds it.
    fn waiting(&self, now: Timestamp) -> Option<Waiting> {
        // An update in progress does not wait.
        if self.is_deploying() {
            return None;
        }
        let name = &self.config().name;
        if let Some((image, digest)) = self.durable().images.declined().next() {
            return Some(gates::waiting(image, digest, gates::declined(name, image, digest), &[]));
        }
        if let Some((image, digest, gate)) = self.held_by_block_elsewhere() {
            return Some(gates::waiting(image, digest, gate, &[]));
        }
        let decisions = self.seen_decisions(now);
        let (candidate, gate) = shown_hold(&decisions)?;
        let differences = candidate.config_differences();
        Some(gates::waiting(&candidate.image, &candidate.digest, gate.clone(), differences))
    }

    /// Since when a container has been failing or down.
    fn problem_since(&self) -> Option<Timestamp> {
        let restart_states = self.durable().restart_states.values();
        let known = restart_states.filter_map(|restart| Some(restart.problem.as_ref()?.since)).min();
        let ended =
            || self.containers().iter().filter(|c| !is_running(c)).filter_map(|c| c.finished_at).max();
        known.or_else(ended)
    }

    /// The reference that containers were created from, per image as configured, if it is not the configured one: the env
    /// file may set a different tag (`tag_variable`).
    pub fn in_force(&self) -> BTreeMap<String, Reference> {
        let images = self.config().images.iter();
        let other = images.filter(|image| *self.reference_of(image) != image.reference);
        other.map(|image| (image.configured.clone(), self.reference_of(image).clone())).collect()
    }

    /// Warnings for the operator that are not part of the status.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let undeployable = self.undeployable().filter(|_| self.config().auto_update);
        let keys = self
            .known
            .observation
            .iter()
            .flat_map(|seen| &seen.key_faults)
            .map(|fault| wording::unusable_key(fault));
        let others = self.managed_elsewhere().into_iter().chain(self.made_from_elsewhere());
        others.chain(self.retagged()).chain(undeployable).chain(keys).chain(self.unlisted_tags())
    }

    /// Why the tags of images could not be listed.
    pub(in crate::service) fn unlisted_tags(&self) -> impl Iterator<Item = String> {
        self.maintenance.tag_errors.iter().map(|(image, why)| wording::tags_unknown(image, why))
    }

    /// Errors of the registries in the last check.
    pub(in crate::service) fn registry_error(&self) -> Option<String> {
        self.known.observation.as_deref().and_then(Observation::registry_fault)
    }

    /// Warnings about containers that another tool manages (DECISIONS 9).
    fn managed_elsewhere(&self) -> Vec<String> {
        let config = self.config();
        if config.silent || !(config.auto_update || config.auto_heal || config.auto_start) {
            return Vec::new();
        }
        let warning = |c: &Container| {
            let manager = c.manager.as_ref()?;
            Some(wording::managed(&c.name, manager))
        };
        self.containers().iter().filter_map(warning).collect()
    }

    /// Warning about containers that were not created from any configured compose file: the files are different ones, or an
    /// agent in a container sees them at a different path than the engine's machine, so relative paths resolve differently.
    fn made_from_elsewhere(&self) -> Option<String> {
        let configured = &self.config().compose_files;
        let is_ours = |c: &Container| c.compose_files.iter().any(|file| configured.contains(file));
        let of_compose = || self.containers().iter().filter(|c| !c.compose_files.is_empty());
        if configured.is_empty() || of_compose().any(is_ours) {
            return None;
        }
        let files: BTreeSet<String> =
            of_compose().flat_map(|c| &c.compose_files).map(|file| file.display().to_string()).collect();
        let files: Vec<String> = files.into_iter().collect();
        (!files.is_empty()).then(|| wording::made_from_elsewhere(&files.join(", ")))
    }

    /// Warnings about configured images that no container uses, while one runs that was created from another tag, or from another
    /// image for the same compose service: the compose file names that by now, and the configuration does not.
    fn retagged(&self) -> Vec<String> {
        let compared = self.config().auto_update && self.config().can_deploy();
        let seen = self.known.observation.as_deref().filter(|seen| compared && seen.swarm.is_none());
        let Some(seen) = seen else { return Vec::new() };
        let is_of =
            |c: &Container, view: &ImageView| c.is_made_from(&view.from) || c.is_made_from(&view.reference);
        let warning = |view: &ImageView| {
            if view.reference.is_pinned() || seen.containers.iter().any(|c| is_of(c, view)) {
                return None;
            }
            let repository = &view.reference.repository;
            let user = self.durable().images.get(&view.configured).compose_service.as_ref();
            let is_listed = |c: &Container| {
                let mut of_others = self.siblings().flat_map(|other| &other.images);
                seen.images.iter().any(|configured| is_of(c, configured))
                    || of_others.any(|image| c.is_made_from(&image.reference))
            };
            let is_other = |c: &&Container| {
                c.is_live()
                    && Reference::parse(&c.config_image)
                        .is_ok_and(|of| of.repository == *repository || user == Some(&c.compose_service))
                    && !is_listed(c)
            };
            let other = seen.containers.iter().find(is_other)?;
            Some(wording::retagged(&view.configured, &other.name, &other.config_image))
        };
        seen.images.iter().filter_map(warning).collect()
    }

    /// Why nothing is known of the containers: the swarm service can't be read, or there is no container of the name that is
    /// watched.
    fn lacks_containers(&self) -> Option<String> {
        if let Some(error) = &self.known.swarm_error {
            return Some(error.clone());
        }
        let config = self.config();
        let is_by_name = config.compose_project.is_none() && !config.silent;
        let name = config.container_name.as_deref().filter(|_| is_by_name)?;
        self.known.containers.as_ref().is_some_and(|all| all.is_empty()).then(|| wording::no_container(name))
    }

    /// Whether all containers are healthy, or which are not. A healthy container never hides a failing one.
    fn health(&self) -> Option<Result<(), String>> {
        let containers = self.known.containers.as_deref().filter(|all| !all.is_empty())?;
        let all: Vec<(&Container, Condition)> = containers.iter().map(|c| (c, self.condition(c))).collect();
        let is = |condition: Condition| all.iter().any(|(_, of)| *of == condition);
        let has_ended =
            |of: &Condition| matches!(of, Condition::Inactive(Inactive::Stopped | Inactive::Finished));
        if is(Condition::Inactive(Inactive::Stopped)) && all.iter().all(|(_, of)| has_ended(of)) {
            return Some(Err(wording::STOPPED_BY_HAND.to_owned()));
        }
        let reason = |(container, of): &(&Container, Condition)| {
            let reason = wording::unhealthy_reason(container, of)?;
            let is_cut_off = matches!(of, Condition::Failing(_)) && is_cut_off(container, &self.config);
            Some(wording::with_remedy(reason, is_cut_off.then_some(NoRemedy::CutOff)))
        };
        let is_gone = |service: &str| containers.iter().all(|c| c.compose_service != service);
        let removed = self.durable().down.iter().filter(|(service, _)| is_gone(service));
        let removed = removed.map(|(service, name)| wording::removed_while_down(name, service));
        let unhealthy: Vec<String> = all.iter().filter_map(reason).chain(removed).collect();
        if !unhealthy.is_empty() {
            return Some(Err(unhealthy.join(", ")));
        }
        if is(Condition::Inactive(Inactive::Unknown)) {
            return None;
        }
        // Jobs that are done are well. Something that is meant to run is not, even if it has ended without an error.
        let is_done = |(c, of): &(&Container, Condition)| {
            *of == Condition::Inactive(Inactive::Finished) && c.is_one_shot()
        };
        if all.iter().all(is_done) {
            return Some(Ok(()));
        }
        if !containers.iter().any(|c| c.state == State::Running) {
            return Some(Err(wording::NOTHING_RUNS.to_owned()));
        }
        if is(Condition::Starting) || is(Condition::Unmeasured) { None } else { Some(Ok(())) }
    }

    fn container_record(&self, container: &Container, context: &StatusContext) -> ContainerRecord {
        let used = self.usage_of(container).filter(|_| is_running(container));
        ContainerRecord {
            id: container.id.clone(),
            name: container.name.clone(),
            state: container.state.as_str().to_owned(),
            status: if context.engine_error.is_some() {
                runtime::last_seen(container.state)
            } else {
                runtime::text(container, context.now)
            },
            started_at: container.started_at,
            image: container.config_image.clone(),
            mounts: container.mounts.clone(),
            cpu_percent: used.map(|used| round(used.cpu_percent)),
            memory_percent: used.map(|used| round(used.memory_percent())),
            memory_usage_mb: used.map(|used| mebibytes(used.memory)),
            memory_limit_mb: used.map(|used| mebibytes(used.memory_limit)),
        }
    }

    /// The containers with live processes, including paused ones.
    pub(in crate::service) fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers().iter().filter(|container| is_running(container))
    }

    /// The containers whose network is used by containers of this service.
    pub fn network_owners(&self) -> impl Iterator<Item = &NetworkOwner> {
        self.containers().iter().filter_map(|container| container.network_of.as_ref())
    }

    /// The running images as of the last inspection; also images that were only pulled.
    fn images(&self) -> Option<Vec<ImageRecord>> {
        if self.known.observation.is_none() && self.known.pulled.is_empty() {
            return None;
        }
        let record = |image: &ConfiguredImage| {
            let (view, known) = (self.view_of(image), self.known_images(image));
            let runs = self.live_containers(image).next();
            let local = runs.and_then(|c| known.iter().find(|local| local.id == c.image)).or(known.first())?;
            let remote = view.and_then(|view| view.remote.as_ref()).or(image.reference.digest.as_ref());
            let digest = compare::shown_digest(local, remote)?;
            Some(ImageRecord {
                image: self.reference_of(image).to_string(),
                digest: digest.to_string(),
                short: digest.short().to_owned(),
                size_mb: mebibytes(local.size),
                newer: self.newer_tag(&image.configured).cloned(),
            })
        };
        let configured = &self.config().images;
        // The result is kept for as long as nothing changes, so allocate no more than needed.
        let mut records = Vec::with_capacity(configured.len());
        records.extend(configured.iter().filter_map(record));
        // `None` as long as neither a registry nor the engine has returned anything for an image (spec 2.1).
        (!records.is_empty()).then_some(records)
    }

    fn deploy_progress(&self, pulled: PullProgress) -> Option<DeployProgress> {
        let deployment = self.durable.deployment.as_ref().filter(|_| self.is_deploying());
        deployment.map(|deployment| self.progress(deployment, pulled))
    }

    fn bytes_to_copy(&self) -> u64 {
        let seen = self.known.observation.as_ref().and_then(|seen| seen.snapshot.as_ref()?.as_ref().ok());
        seen.map_or(0, |seen| seen.rooms.iter().map(|(_, room)| room.bytes).sum())
    }

    /// The snapshots that are kept, newest first.
    fn snapshots(&self) -> Vec<SnapshotRecord> {
        let kept = self.durable.snapshots.iter().filter(|kept| !kept.is_expired);
        kept.rev().map(KeptSnapshot::record).collect()
    }

    fn progress(&self, deployment: &Deployment, pulled: PullProgress) -> DeployProgress {
        let phase = match &deployment.phase {
            Phase::BeforeHook | Phase::PinImages | Phase::Pull => DeployPhase::Pulling,
            // The swarm is still replacing tasks.
            Phase::Converge { watch } if watch.steady_since.is_none() => DeployPhase::Starting,
            Phase::WriteTag
            | Phase::Start
            | Phase::Resume { failed: None, .. }
            | Phase::Admit
            | Phase::Update => DeployPhase::Starting,
            Phase::Converge { .. }
            | Phase::Probation { .. }
            | Phase::Unpin
            | Phase::Expire { .. }
            | Phase::LastHook { .. } => DeployPhase::Probation,
            Phase::Spread => DeployPhase::Spreading,
            Phase::Drain => DeployPhase::Draining,
            Phase::Retire => DeployPhase::Retiring,
            Phase::Soak { .. } => DeployPhase::Soaking,
            Phase::Settle { .. } => DeployPhase::Settling,
            Phase::Quiesce => DeployPhase::Quiescing,
            Phase::Copy => DeployPhase::Copying,
            Phase::Restore(_) => DeployPhase::Restoring,
            Phase::RestoreTags
            | Phase::Diagnose(_)
            | Phase::Rollback(_)
            | Phase::VerifyRollback { .. }
            | Phase::VerifyTasks { .. }
            | Phase::Revive(_)
            | Phase::Withdraw { .. }
            | Phase::Resume { .. }
            | Phase::Abort { .. } => DeployPhase::RollingBack,
        };
        let containers = self.containers();
        let pulled = match deployment.phase {
            Phase::Pull => pulled,
            Phase::Copy => PullProgress { total: self.bytes_to_copy(), ..pulled },
            _ => PullProgress::default(),
        };
        DeployProgress {
            phase,
            image: wording::subject(deployment.plan()),
            since: deployment.since,
            deadline: deployment.deadline(containers, &self.durable().stops),
            pulled_bytes: pulled.bytes,
            total_bytes: pulled.total,
            probe: deployment.probe_progress(),
            handover: deployment.handover_progress(containers),
            hook: (deployment.phase == Phase::BeforeHook).then(|| HookEvent::Before.key().to_owned()),
        }
    }
}

/// Corrects a record by what is known of the agent's surroundings.
fn correct(record: &mut ServiceStatus, context: &StatusContext) {
    if let Some(error) = &context.state_error {
        record.errored = Some(error.clone());
        // Without a journal no deployment is possible, and no rollback either. The check of the way back can't record this
        // risk, because its result could not be written.
        if record.way_back.is_some() {
            record.way_back = Some(WayBackValue::AtRisk);
            record.way_back_reason.get_or_insert_with(|| error.clone());
        }
    }
    // The last known health may be outdated (spec 3.1: `ok` means running and healthy).
    if context.engine_error.is_some() {
        (record.healthy, record.unhealthy_reason) = (None, None);
    }
}

fn rollback_readiness(checked: &WayBack) -> WayBackValue {
    if checked.risk.is_some() { WayBackValue::AtRisk } else { WayBackValue::Ok }
}

/// The first row of spec 3.1 that applies.
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

fn is_running(container: &Container) -> bool {
    matches!(container.state, State::Running | State::Paused)
}

/// Rounds to two decimals.
fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Bytes as MiB, rounded to two decimals (DECISIONS 3).
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    (bytes as f64 / 1_048_576.0 * 100.0).round() / 100.0
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
