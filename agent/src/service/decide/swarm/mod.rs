//! Updates of swarm services (DECISIONS 10): the swarm replaces the tasks; the agent verifies, records
//! and reports the result.
//!
//! ```text
//! admit ─► update ─► converge ──────────────────────────────────────────► updated
//!   │        │          └─► diagnose ─► rollback ─► verify_rollback ────► rolled_back / rollback_failed
//!   └────────┴──────────────────────────────────────────────────────────► errored, nothing changed
//! ```
//!
//! The service's own `update_config` decides how many tasks are replaced at once, how long each is monitored and what
//! happens when one fails. The agent only watches while the swarm is updating. If the swarm has already rolled back by
//! itself, `rollback` has nothing left to do. Every step can be repeated: it first reads the service, and is done if that
//! already names the image. An image that is neither the old nor the new one was set by someone else, and stays.
//!
//! | file | what it holds |
//! |---|---|
//! | `begin.rs` | whether there is an update to do, and to which image |
//! | `declined.rs` | manual rollbacks, which are respected |
//! | `view.rs` | the reported state of a service: health, progress, and why nothing is deployed |
//!
//! The values are in `rollout/swarm/`.

mod begin;
mod declined;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_common::backoff;
use evenkeel_common::wire::DeployOutcome;
use jiff::Timestamp;

use crate::model::SwarmError;
use crate::model::image::ImageId;
use crate::model::image_config::ConfigChange;
use crate::model::swarm::{SwarmService, is_same_image};
use crate::service::action::Action;
use crate::service::event::{ContainerSummary, Event, FailedDeployment, Fault, RollbackProblem, Updated};
use crate::service::rollout::plan::{Cause, ImageChange};
use crate::service::rollout::swarm::plan::{Postponed, SwarmPhase, SwarmPlan, SwarmResult, SwarmRollout};
use crate::service::rollout::swarm::watch::{Goal, SwarmFailed, Verdict, Watch};
use crate::service::wording::swarm as wording;
use crate::service::{ENGINE_RETRY, ROLLBACK_ATTEMPTS, Service, rollback_pause};

/// Time between two reads of a service during an update.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while idle.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// Initial backoff after an update that failed because of the nodes; it doubles each time, up to [`LONGEST_POSTPONE`].
const POSTPONE: Duration = Duration::from_mins(10);
const LONGEST_POSTPONE: Duration = Duration::from_hours(6);

impl Service {
    /// Returns the name of the swarm service: that of the update in progress, or else the configured one. `None` while a
    /// compose deployment that an earlier configuration started is in progress.
    pub(in crate::service) fn swarm_name(&self) -> Option<&str> {
        let deployed = self.durable.swarm.as_ref().map(|rollout| rollout.plan.service.as_str());
        let configured = self.config.swarm_service.as_deref();
        deployed.or(configured.filter(|_| self.durable.deployment.is_none()))
    }

    /// Returns the next step of the update in progress, or a read of its tasks.
    pub(in crate::service) fn next_in_swarm(&mut self, now: Timestamp) -> Option<Action> {
        if !self.steps.may_begin(now) {
            return None;
        }
        self.steps.retry_at = None;
        if let Some(step) = self.durable.swarm.as_deref().and_then(SwarmRollout::step) {
            self.begin_step();
            return Some(Action::Swarm(step));
        }
        self.next_inspection(now)
    }

    /// Handles the result of a step.
    pub(in crate::service) fn swarm_stepped(&mut self, result: SwarmResult, now: Timestamp) {
        let Some(rollout) = &mut self.durable.swarm else { return };
        let service = rollout.plan.service.clone();
        match (rollout.phase.clone(), result) {
            (_, SwarmResult::Transient(error)) => self.swarm_unavailable(&error, now),
            (SwarmPhase::Admit, SwarmResult::Admitted { labels }) => {
                rollout.labels = labels;
                rollout.enter(SwarmPhase::Update, now);
            }
            (SwarmPhase::Update, SwarmResult::Set) => {
                rollout.enter(SwarmPhase::Converge { watch: Watch::default() }, now);
                self.inspections.request_by(now);
                self.clear_check_fault(now);
            }
            (SwarmPhase::Admit | SwarmPhase::Update, SwarmResult::Failed(text)) => {
                self.abandon_in_swarm(text, now);
            }
            (SwarmPhase::Admit | SwarmPhase::Update, SwarmResult::Busy) => {
                self.abandon_in_swarm(wording::busy(&service), now);
            }
            (SwarmPhase::Admit | SwarmPhase::Update, SwarmResult::Foreign { image }) => {
                self.abandon_in_swarm(wording::foreign(&service, &image), now);
            }
            (SwarmPhase::Diagnose(mut failed), SwarmResult::Diagnosed { log, health }) => {
                if !health.is_empty() {
                    failed.failure.facts.push_str(&format!("last health check: {health}\n"));
                }
                self.swarm_diagnosed(failed, &log, now);
            }
            (SwarmPhase::Diagnose(failed), SwarmResult::Failed(text)) => {
                self.swarm_diagnosed(failed, &crate::service::wording::no_log(&text), now);
            }
            (SwarmPhase::Rollback(failed), SwarmResult::Set) => {
                rollout.enter(SwarmPhase::VerifyRollback { failed, watch: Watch::default() }, now);
                self.inspections.request_by(now);
            }
            (SwarmPhase::Rollback(failed), SwarmResult::Foreign { image }) => {
                let problem = RollbackProblem::Step(wording::foreign(&service, &image));
                self.swarm_failed_for_good(failed, problem, now);
            }
            (SwarmPhase::Rollback(failed), result) => {
                rollout.attempt += 1;
                if rollout.attempt < ROLLBACK_ATTEMPTS {
                    self.steps.retry_at = Some(now + rollback_pause(rollout.attempt));
                } else {
                    let text = match result {
                        SwarmResult::Failed(text) => text,
                        _ => wording::busy(&service),
                    };
                    self.swarm_failed_for_good(failed, RollbackProblem::Step(text), now);
                }
            }
            // These phases wait and take no step. All other combinations are results of another step.
            (SwarmPhase::Converge { .. } | SwarmPhase::VerifyRollback { .. }, _) => {}
            (_, other) => {
                self.abandon_in_swarm(format!("the step ended with an unexpected result: {other:?}"), now);
            }
        }
    }

    /// Retries a step or a read after the swarm gave no answer. Errors that an operator can fix are reported.
    fn swarm_unavailable(&mut self, error: &SwarmError, now: Timestamp) {
        self.steps.retry_at = Some(now + ENGINE_RETRY);
        let is_away = matches!(error, SwarmError::Unavailable(_));
        let rollout = self.durable.swarm.as_mut();
        if let Some(watch) = rollout.and_then(|rollout| rollout.phase.watch_mut()) {
            // Its containers may have ended with the engine.
            watch.engine_away |= is_away;
            watch.done_since = None;
        }
        if !is_away {
            self.set_fault(Some(Fault { text: error.to_string(), from_check: true }), now);
        }
    }

    /// Clears a fault that is not about a failed deployment.
    fn clear_check_fault(&mut self, now: Timestamp) {
        if self.fault.as_ref().is_some_and(|fault| fault.from_check) {
            self.set_fault(None, now);
        }
    }

    /// Handles the result of reading the service.
    pub(in crate::service) fn swarm_inspected(
        &mut self,
        result: Result<SwarmService, SwarmError>,
        now: Timestamp,
    ) {
        let at_work = self.durable.swarm.is_some();
        self.inspections.postpone(now + if at_work { LOOK_INTERVAL } else { IDLE_INTERVAL });
        let service = match result {
            Ok(service) => service,
            Err(error) => {
                if at_work && !error.is_transient() {
                    return self.swarm_interfered(error.to_string(), now);
                }
                if at_work {
                    self.swarm_unavailable(&error, now);
                }
                return;
            }
        };
        self.known.containers = Some(service.containers().into());
        let was_undeployable = self.undeployable().is_some();
        self.known.swarm = Some(Box::new(service.clone()));
        // An update may have been waiting for the service to have tasks.
        if was_undeployable && self.undeployable().is_none() {
            self.request_check();
        }
        let Some(rollout) = &mut self.durable.swarm else { return };
        rollout.outage.look_in_swarm(&service, now);
        let plan = rollout.plan.clone();
        match &mut rollout.phase {
            SwarmPhase::Converge { watch } => {
                let goal = Goal { image: &plan.to, known: &plan.known, grace: plan.grace };
                match watch.look(&service, goal, now) {
                    Verdict::Wait { trouble } => self.swarm_waits(trouble, now),
                    Verdict::Passed => self.swarm_passed(now),
                    Verdict::Failed(failed) => self.swarm_failed(&failed, now),
                    Verdict::Foreign => self.other_image_set(&plan, &service, now),
                }
            }
            SwarmPhase::VerifyRollback { failed, watch } => {
                let failed = failed.clone();
                let goal = Goal { image: &plan.back, known: &BTreeSet::new(), grace: plan.grace };
                match watch.look(&service, goal, now) {
                    Verdict::Wait { trouble } => self.swarm_waits(trouble, now),
                    Verdict::Passed => self.swarm_rolled_back(failed, now),
                    Verdict::Failed(again) => {
                        self.swarm_failed_for_good(failed, RollbackProblem::NotProven(again.failure), now);
                    }
                    Verdict::Foreign => {
                        let why = wording::foreign(&plan.service, &service.image);
                        self.swarm_failed_for_good(failed, RollbackProblem::Step(why), now);
                    }
                }
            }
            _ => {}
        }
    }

    /// Handles a specification that names an image other than the one that was set.
    fn other_image_set(&mut self, plan: &SwarmPlan, service: &SwarmService, now: Timestamp) {
        let is_back = [&plan.back, &plan.from].iter().any(|image| is_same_image(&service.image, image));
        if is_back && service.is_rolled_back_by_swarm() {
            // The swarm has rolled back by itself.
            let goal = Goal { image: &plan.to, known: &plan.known, grace: plan.grace };
            let watch = self.durable.swarm.as_ref().and_then(|rollout| rollout.phase.watch());
            let failed = watch.cloned().unwrap_or_default().blame(service, goal);
            self.swarm_failed(&failed, now);
            return;
        }
        self.decline(plan.change.clone());
        let sentence = if is_back { wording::manual_rollback } else { wording::foreign };
        self.swarm_interfered(sentence(&plan.service, &service.image), now);
    }

    /// Waits for the swarm. Tasks without a suitable node are not a failure: the swarm goes on once there is a node.
    fn swarm_waits(&mut self, trouble: Option<String>, now: Timestamp) {
        let Some(service) = self.swarm_name() else { return };
        match trouble {
            Some(why) => {
                let text = wording::unplaced(service, &why);
                self.set_fault(Some(Fault { text, from_check: true }), now);
            }
            None => self.clear_check_fault(now),
        }
    }

    fn swarm_passed(&mut self, now: Timestamp) {
        let Some(rollout) = self.durable.swarm.clone() else { return };
        let mut updated = false;
        if let Some(change) = rollout.plan.change.clone() {
            let memory = self.durable.images.of(&change.configured);
            memory.not_found = None;
            memory.published = Some(change.digest.clone());
            self.remember_proven(&change, ImageId::from(&change.digest), now);
            self.remember_in_use(&change);
            self.durable.postponed = None;
            updated = change.old_digest.as_ref() != Some(&change.digest);
            if updated {
                let took = self.time_since_found(&change, rollout.begun, now);
                self.emit(Event::Updated(updated_event(change, rollout.labels.clone(), took)), now);
            }
        }
        match rollout.plan.cause {
            Cause::Redeploy => self.emit(Event::Redeployed { kept: rollout.plan.kept }, now),
            Cause::RetryRollback => {
                self.durable.images.forget_unproven();
                self.emit(Event::RollbackRetried, now);
            }
            _ => {}
        }
        self.durable.rollback_failed = false;
        self.end_in_swarm(DeployOutcome::Succeeded, updated, now);
        self.set_fault(self.remaining_fault(true), now);
    }

    /// Handles failed tasks. The digest is blocked in the same write as the decision to roll back.
    fn swarm_failed(&mut self, failed: &SwarmFailed, now: Timestamp) {
        let Some(rollout) = &mut self.durable.swarm else { return };
        rollout.enter(SwarmPhase::Diagnose(failed.clone()), now);
        let change = rollout.plan.change.clone().filter(|_| rollout.plan.is_reversible());
        let Some(change) = change else { return };
        if failed.by_node {
            let tries = self.durable.postponed.as_ref().filter(|one| one.digest == change.digest);
            let tries = tries.map_or(0, |one| one.tries) + 1;
            let wait = backoff::after(tries, POSTPONE, LONGEST_POSTPONE);
            self.durable.postponed = Some(Postponed { digest: change.digest, until: now + wait, tries });
        } else {
            self.durable.images.of(&change.configured).block(&change.digest);
        }
    }

    /// Continues after the diagnosis: rolls back the service.
    fn swarm_diagnosed(&mut self, failed: SwarmFailed, log: &str, now: Timestamp) {
        let Some(rollout) = &mut self.durable.swarm else { return };
        let output = crate::service::wording::diagnostics(&failed.failure, &failed.output, log);
        let failed = SwarmFailed { output, ..failed };
        if rollout.plan.is_reversible() {
            rollout.enter(SwarmPhase::Rollback(failed), now);
            return;
        }
        // The same image as before: nothing to block, nothing to roll back to.
        let SwarmFailed { failure, output, .. } = failed;
        let event = if rollout.plan.cause == Cause::RetryRollback {
            Event::RollbackRetryFailed { failure, output }
        } else {
            let why = crate::service::wording::rejection(&failure.reason);
            Event::RedeployFailed { why, container: failure.container, output }
        };
        self.end_in_swarm(DeployOutcome::Failed, false, now);
        self.emit(event, now);
    }

    /// Ends the update after a successful rollback.
    fn swarm_rolled_back(&mut self, failed: SwarmFailed, now: Timestamp) {
        let Some(rollout) = self.durable.swarm.clone() else { return };
        if let Some(change) = &rollout.plan.change {
            self.durable.images.of(&change.configured).keep_target(change.old.as_ref());
        }
        self.durable.images.forget_unproven();
        if failed.by_node {
            self.end_in_swarm(DeployOutcome::Failed, false, now);
            let text = wording::by_nodes(
                rollout.plan.image(),
                &crate::service::wording::rejection(&failed.failure.reason),
            );
            return self.raise_fault(Some(Fault { text, from_check: false }), failed.output, now);
        }
        let failed = report(&rollout.plan, failed);
        let event = Event::RolledBack {
            failed,
            remaining: None,
            also_recreated: Vec::new(),
            is_uninterrupted: false,
            problems: Vec::new(),
            data: None,
        };
        self.emit(event, now);
        self.end_in_swarm(DeployOutcome::RolledBack, false, now);
        self.set_fault(self.remaining_fault(true), now);
    }

    /// Gives up on the rollback: nothing more is done until an operator acts or the registry has another digest.
    fn swarm_failed_for_good(&mut self, failed: SwarmFailed, why: RollbackProblem, now: Timestamp) {
        let Some(rollout) = self.durable.swarm.clone() else { return };
        if let Some(change) = &rollout.plan.change {
            let memory = self.durable.images.of(&change.configured);
            memory.note_unproven(Some(&ImageId::from(&change.digest)), change.old.as_ref());
            memory.block(&change.digest);
        }
        self.durable.rollback_failed = true;
        let containers = self.containers().iter().map(ContainerSummary::of).collect();
        self.emit(Event::RollbackFailed { failed: report(&rollout.plan, failed), why, containers }, now);
        self.end_in_swarm(DeployOutcome::Failed, false, now);
        self.set_fault(self.remaining_fault(true), now);
    }

    /// Gives up before anything was changed. The next check tries again.
    fn abandon_in_swarm(&mut self, text: String, now: Timestamp) {
        let Some(rollout) = &self.durable.swarm else { return };
        let is_redeploy = rollout.plan.cause == Cause::Redeploy;
        self.end_in_swarm(DeployOutcome::Failed, false, now);
        if is_redeploy {
            self.redeploy_failed(text, String::new(), now);
        } else {
            self.set_fault(Some(Fault { text, from_check: false }), now);
        }
    }

    /// Ends the update after external interference, which is respected and reported.
    fn swarm_interfered(&mut self, text: String, now: Timestamp) {
        self.end_in_swarm(DeployOutcome::Inconclusive, false, now);
        self.set_fault(Some(Fault { text, from_check: false }), now);
    }

    fn end_in_swarm(&mut self, outcome: DeployOutcome, updated: bool, now: Timestamp) {
        let Some(rollout) = &self.durable.swarm else { return };
        let (cause, begun) = (rollout.plan.cause.clone(), rollout.begun);
        self.emit(Event::DeployEnded { outcome, cause, begun, updated }, now);
        self.durable.swarm = None;
        self.generation += 1;
        self.inspections.request_by(now);
        // The running image has changed, so check again. A failed update waits for the next cycle.
        if matches!(outcome, DeployOutcome::Succeeded | DeployOutcome::RolledBack) {
            self.request_check();
        }
    }

    /// Resumes an update after a restart of the agent: the grace of its tasks starts over.
    pub(in crate::service) fn resume_in_swarm(
        &mut self,
        reason: crate::service::boot::StartReason,
        now: Timestamp,
    ) {
        let is_rebooted = !self.boot.before.is_empty() && self.boot.before != self.boot.now;
        let Some(rollout) = &mut self.durable.swarm else { return };
        if let Some(watch) = rollout.phase.watch_mut() {
            (watch.steady_since, watch.done_since) = (None, None);
            watch.engine_away |= is_rebooted;
        }
        let image_changes: Vec<ImageChange> = rollout.plan.change.clone().into_iter().collect();
        let step = rollout.phase.name();
        self.inspections.request_by(now);
        self.emit(Event::Resumed { image_changes, step, reason }, now);
    }
}

fn updated_event(change: ImageChange, labels: ConfigChange, took: Duration) -> Updated {
    Updated {
        change,
        is_same: false,
        labels,
        used: true,
        took,
        also_recreated: Vec::new(),
        left_behind: Vec::new(),
        stopped_first: BTreeMap::new(),
        problems: Vec::new(),
    }
}

/// Builds the report of a failed update.
fn report(plan: &SwarmPlan, failed: SwarmFailed) -> FailedDeployment {
    let digests = plan.change.as_ref().map(|change| (change.old_digest.clone(), change.digest.clone()));
    let SwarmFailed { failure, output, .. } = failed;
    let image = plan.change.as_ref().map(|change| change.reference.clone());
    FailedDeployment { images: plan.image().to_owned(), image, digests, others: Vec::new(), failure, output }
}
