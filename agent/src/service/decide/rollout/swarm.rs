//! Decisions of a rollout in a swarm (DECISIONS 10): the swarm replaces the tasks; the agent verifies, records and reports
//! the result.
//!
//! ```text
//! admit ─► update ─► converge ──────────────────────────────────────────► updated
//!   │        │          └─► diagnose ─► rollback ─► verify_rollback ────► rolled_back / rollback_failed
//!   └────────┴──────────────────────────────────────────────────────────► errored, nothing changed
//! ```
//!
//! The service's own `update_config` decides how many tasks are replaced at once, how long each is monitored and what
//! happens when one fails. The agent only watches while the swarm is updating. The nodes pull the images, so none is pinned:
//! once the outcome is decided, the deployment has ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::swarm::{SwarmService, UpdateStatus, is_same_image};
use crate::model::{Reference, SwarmError};
use crate::service::event::{Event, Fault, Local, RollbackProblem};
use crate::service::health::gap::Sight;
use crate::service::input::{StepResult, SwarmResult};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::SwarmPlan;
use crate::service::rollout::probation::{Failed, Reason};
use crate::service::rollout::step::Phase;
use crate::service::rollout::target::watch::{Goal, Verdict, Watch};
use crate::service::{ENGINE_RETRY, ROLLBACK_ATTEMPTS, ROLLBACK_RETRY, Service, wording};

/// Time between two reads of a service during an update.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while idle.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

impl Service {
    /// Returns the name of the swarm service: that of the update in progress, or else the configured one. `None` while a
    /// compose deployment that an earlier configuration started is in progress.
    pub(in crate::service) fn swarm_name(&self) -> Option<&str> {
        match &self.durable.deployment {
            Some(deployment) => deployment.plan().swarm.as_ref().map(|swarm| &*swarm.service),
            None => self.config.swarm_service.as_deref(),
        }
    }

    /// Handles the result of a step.
    pub(in crate::service) fn stepped_in_swarm(&mut self, result: SwarmResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let Some(service) = deployment.plan().swarm.as_ref().map(|swarm| swarm.service.clone()) else {
            return;
        };
        match (deployment.phase.clone(), result) {
            (_, SwarmResult::Transient(error)) => self.swarm_unavailable(&error, now),
            (Phase::Admit, SwarmResult::Admitted { labels }) => {
                let image = deployment.plan().image_changes.first().map(|change| change.configured.clone());
                deployment.labels = image.map(|image| (image, labels)).into_iter().collect();
                deployment.enter(Phase::Update, now);
            }
            (Phase::Update, SwarmResult::Set) => {
                deployment.enter(Phase::Converge { watch: Watch::default() }, now);
                self.inspections.request_by(now);
                self.clear_check_fault(now);
            }
            (Phase::Diagnose(mut failed), SwarmResult::Diagnosed { log, health }) => {
                if !health.is_empty() {
                    failed.failure.facts.push_str(&format!("last health check: {health}\n"));
                }
                self.diagnosed(failed, &log, now);
            }
            (Phase::Diagnose(failed), result) => {
                self.diagnosed(failed, &wording::no_log(&failure(result, &service)), now);
            }
            (Phase::Rollback(failed), SwarmResult::Set) => {
                let verify = Phase::VerifyTasks { failed, watch: Watch::default() };
                deployment.enter_attempt(verify, deployment.attempt, now);
                self.inspections.request_by(now);
            }
            (Phase::Rollback(failed), SwarmResult::Foreign { image }) => {
                let why = wording::swarm::foreign(&service, &image);
                self.rollback_overtaken(failed, &image, why, now);
            }
            (Phase::Rollback(failed), result) => {
                self.rollback_step_failed(failed, failure(result, &service), now);
            }
            // These phases wait and take no step.
            (Phase::Converge { .. } | Phase::VerifyTasks { .. }, _) => {}
            (_, result) => self.abandon(failure(result, &service), String::new(), now),
        }
        self.conclude_in_swarm(now);
    }

    /// Ends a deployment whose outcome is decided: in a swarm, nothing is left to do then.
    fn conclude_in_swarm(&mut self, now: Timestamp) {
        let is_decided =
            |deployment: &Deployment| deployment.plan().swarm.is_some() && deployment.phase == Phase::Unpin;
        if self.durable.deployment.as_deref().is_some_and(is_decided) {
            self.concluded(now);
        }
    }

    /// Retries a step or a read after the swarm gave no answer. Errors that an operator can fix are reported.
    fn swarm_unavailable(&mut self, error: &SwarmError, now: Timestamp) {
        self.steps.retry_at = Some(now + ENGINE_RETRY);
        let deployment = self.durable.deployment.as_mut();
        if let Some(watch) = deployment.and_then(|deployment| deployment.phase.watch_mut()) {
            watch.done_since = None;
        }
        if matches!(error, SwarmError::Unavailable(_)) {
            self.healer.gaps.note_away();
        } else {
            self.set_fault(Some(Fault { text: error.to_string(), from_check: true }), now);
        }
    }

    /// Clears a fault that is not about a failed deployment.
    fn clear_check_fault(&mut self, now: Timestamp) {
        if self.durable.fault.as_ref().is_some_and(|fault| fault.from_check) {
            self.set_fault(None, now);
        }
    }

    /// Handles the result of reading the service.
    pub(in crate::service) fn swarm_inspected(
        &mut self,
        result: Result<SwarmService, SwarmError>,
        now: Timestamp,
    ) {
        let at_work = self.durable.deployment.is_some();
        self.inspections.postpone(now + if at_work { LOOK_INTERVAL } else { IDLE_INTERVAL });
        match result {
            Ok(service) if at_work && self.awaits_engine_events(&service, now) => {}
            Ok(service) => self.swarm_seen(&service, now),
            Err(error @ SwarmError::NoService(_)) if at_work => self.left_unproven(error.to_string(), now),
            Err(error) if at_work => self.swarm_unavailable(&error, now),
            // The engine's health says so for all services at once.
            Err(SwarmError::Unavailable(_)) => {}
            Err(error) => self.swarm_unreadable(&error),
        }
        self.conclude_in_swarm(now);
    }

    /// Forgets what is known of a service that can't be read while nothing is deployed: no check has to follow that would tell.
    fn swarm_unreadable(&mut self, error: &SwarmError) {
        self.known.swarm = None;
        self.known.containers = matches!(error, SwarmError::NoService(_)).then(Arc::default);
        self.known.swarm_error = Some(error.to_string());
    }

    /// Reports whether it is not known yet if the engine was restarted, and has ended the tasks that it ran.
    fn awaits_engine_events(&mut self, service: &SwarmService, now: Timestamp) -> bool {
        if !self.healer.gaps.is_lost() {
            return false;
        }
        let sight = self.healer.gaps.sight(now);
        if sight == Sight::GivenUp {
            let local = service.running().filter(|task| task.local_container.is_some());
            let runs_since = local.filter_map(|task| task.since).min();
            // Without a witness nothing says that it was restarted, and a failure is that of the image.
            self.engine_back(now, runs_since.or(Some(Timestamp::UNIX_EPOCH)), now);
        }
        sight == Sight::Waiting
    }

    fn swarm_seen(&mut self, service: &SwarmService, now: Timestamp) {
        self.known.containers = Some(service.containers().into());
        let was_undeployable = self.undeployable().is_some();
        self.known.swarm = Some(Box::new(service.clone()));
        self.known.swarm_error = None;
        // An update may have been waiting for the service to have tasks.
        if was_undeployable && self.undeployable().is_none() {
            self.request_check();
        }
        let Some(deployment) = &mut self.durable.deployment else { return };
        let Some(swarm) = deployment.plan().swarm.clone() else { return };
        let grace = deployment.plan().grace;
        deployment.outage.look_in_swarm(service, now);
        match &mut deployment.phase {
            Phase::Converge { watch } => {
                match watch.look(service, Goal { image: &swarm.to, known: &swarm.known, grace }, now) {
                    Verdict::Wait { trouble } => self.swarm_waits(trouble, now),
                    Verdict::Passed => self.passed(now),
                    Verdict::Failed(failed) => {
                        self.note_left();
                        self.failed(*failed, now);
                    }
                    Verdict::Foreign => self.other_image_set(&swarm, service, now),
                }
            }
            Phase::VerifyTasks { failed, watch } => {
                let failed = failed.clone();
                // Those of the old image that had failed before say nothing about the way back; one that still runs proves it.
                let over =
                    service.tasks.iter().filter(|task| task.is_failed() && swarm.known.contains(&task.id));
                let over: BTreeSet<String> = over.map(|task| task.id.clone()).collect();
                match watch.look(service, Goal { image: &swarm.back, known: &over, grace }, now) {
                    Verdict::Wait { trouble } => self.swarm_waits(trouble, now),
                    Verdict::Passed => self.rolled_back(failed, None, now),
                    // The swarm goes on with a rollback that it has paused only if the image is set once more.
                    Verdict::Failed(_)
                        if service.is_paused() && deployment.attempt + 1 < ROLLBACK_ATTEMPTS =>
                    {
                        deployment.enter_attempt(Phase::Rollback(failed), deployment.attempt + 1, now);
                        self.steps.retry_at = Some(now + ROLLBACK_RETRY);
                    }
                    Verdict::Failed(again) => {
                        self.fail_for_good(failed, RollbackProblem::NotProven(again.failure), now);
                    }
                    Verdict::Foreign => {
                        let why = match &service.update {
                            Some(update) if service.is_rolled_back_by_swarm() => {
                                wording::swarm::returned(&service.name, &service.image, &update.message)
                            }
                            _ => wording::swarm::foreign(&swarm.service, &service.image),
                        };
                        self.rollback_overtaken(failed, &service.image, why, now);
                    }
                }
            }
            _ => {}
        }
    }

    /// Notes that the outcome of this update says all about its digest: a rollback that the next check finds is not another
    /// decision of a person.
    fn note_left(&mut self) {
        let Some(deployment) = &self.durable.deployment else { return };
        for change in deployment.plan().image_changes.clone() {
            self.durable.images.of(&change.configured).rolled_back_from = Some(change.digest);
        }
    }

    /// Handles a specification that names an image other than the one that was set.
    fn other_image_set(&mut self, swarm: &SwarmPlan, service: &SwarmService, now: Timestamp) {
        self.note_left();
        let Some(deployment) = &self.durable.deployment else { return };
        let is_back = [&swarm.back, &swarm.from].iter().any(|image| is_same_image(&service.image, image));
        if is_back && service.is_rolled_back_by_swarm() {
            // The swarm has rolled back by itself.
            let goal = Goal { image: &swarm.to, known: &swarm.known, grace: deployment.plan().grace };
            let watch = deployment.phase.watch().cloned().unwrap_or_default();
            return self.failed(watch.blame(service, goal), now);
        }
        // Without a digest, and unless it was rolled back to, it says nothing against the new one: as far as is known, it is what
        // the tag names.
        let is_rollback = service.update.as_ref().is_some_and(UpdateStatus::is_rollback);
        let is_declined = is_rollback || service.digest().is_some();
        let is_back = is_back && is_declined;
        for change in deployment.plan().image_changes.clone() {
            let (image, remote) = (change.configured, change.digest);
            let memory = self.durable.images.of(&image);
            if is_declined {
                memory.declined = Some(remote);
            } else {
                memory.not_found = Some(remote.clone());
                self.emit(Event::NotFound { image, remote, local: Local::WithoutDigest }, now);
            }
        }
        self.left_unproven(wording::swarm::other_image_set(&swarm.service, &service.image, is_back), now);
    }

    /// Ends a rollback, in the course of which the specification was set to another image. With one of the update's it has
    /// failed, as with their tag alone: as far as is known, the nodes pull the one that failed for it. Any other one is somebody's
    /// decision, which takes the place of the old image.
    fn rollback_overtaken(&mut self, failed: Failed, image: &str, why: String, now: Timestamp) {
        let deployment = self.durable.deployment.as_ref();
        let Some(swarm) = deployment.and_then(|deployment| deployment.plan().swarm.as_ref()) else { return };
        let is_same = |own: &str| is_same_image(image, own);
        let is_tag = |named: Reference| {
            named.digest.is_none()
                && Reference::parse(&swarm.to).is_ok_and(|to| to.tagged() == named.tagged())
        };
        if is_same(&swarm.from) || is_same(&swarm.to) || Reference::parse(image).is_ok_and(is_tag) {
            self.fail_for_good(failed, RollbackProblem::Step(why), now);
        } else {
            self.rolled_back(failed, Some(Reason::Words(why)), now);
        }
    }

    /// Waits for the swarm. Tasks without a suitable node are not a failure: the swarm goes on once there is a node.
    fn swarm_waits(&mut self, trouble: Option<String>, now: Timestamp) {
        let Some(service) = self.swarm_name() else { return };
        match trouble {
            Some(why) => {
                let text = wording::swarm::unplaced(service, &why);
                self.set_fault(Some(Fault { text, from_check: true }), now);
            }
            None => self.clear_check_fault(now),
        }
    }

    /// Resumes an update after a restart of the agent: the grace of its tasks starts over.
    pub(in crate::service) fn watch_again(&mut self, now: Timestamp) {
        let is_rebooted = !self.boot.before.is_empty() && self.boot.before != self.boot.now;
        let Some(deployment) = &mut self.durable.deployment else { return };
        if let Some(watch) = deployment.phase.watch_mut() {
            (watch.steady_since, watch.done_since) = (None, None);
            watch.engine_away |= is_rebooted;
        }
        self.inspections.request_by(now);
    }
}

/// The error text of a step that did not end as expected.
fn failure(result: SwarmResult, service: &str) -> String {
    match result {
        SwarmResult::Failed(text) => text,
        SwarmResult::Busy => wording::swarm::busy(service),
        SwarmResult::Foreign { image } => wording::swarm::foreign(service, &image),
        other => wording::unexpected_result(&StepResult::Swarm(other)),
    }
}
