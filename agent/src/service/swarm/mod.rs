//! Updates of swarm services (DECISIONS 10): the swarm replaces the tasks, and the agent proves, remembers and tells.
//!
//! ```text
//! admit ─► update ─► converge ──────────────────────────────────────────► updated
//!   │        │          └─► diagnose ─► rollback ─► verify_rollback ────► rolled_back / rollback_failed
//!   └────────┴──────────────────────────────────────────────────────────► errored, nothing changed
//! ```
//!
//! How many tasks are replaced at once, how long each is watched and what follows when one fails is the service's own
//! `update_config`. The agent only watches while the swarm is at work. Where that has rolled back by itself, `rollback`
//! finds nothing left to do. Each step can be taken again: it first reads the service, and where that names the image
//! already, the step is done. An image that is neither the old nor the new one is somebody else's, and stays.
//!
//! | file | what it holds |
//! |---|---|
//! | `begin.rs` | whether there is an update to do, and which |
//! | `declined.rs` | what people have rolled back, which is respected |
//! | `plan.rs` | what an update is about, its phases and steps |
//! | `view.rs` | what is shown of a service: health, progress, and why nothing is deployed |
//! | `watch.rs` | whether all tasks run the image, and have for the grace |

mod begin;
mod declined;
pub mod plan;
mod view;
pub mod watch;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::model::SwarmError;
use crate::model::image::{ImageId, LabelChange};
use crate::model::swarm::{SwarmService, is_same_image};

use super::action::{Action, OldImage};
use super::event::{ContainerSummary, Event, FailedDeployment, Fault, RollbackProblem, Updated};
use super::outcome::DeployOutcome;
use super::rollout::plan::{Cause, ImageChange};
use super::wording::swarm as wording;
use super::{ENGINE_RETRY, ROLLBACK_ATTEMPTS, ROLLBACK_RETRY, Service};
use plan::{Postponed, SwarmFailed, SwarmPhase, SwarmPlan, SwarmResult, SwarmRollout};
use watch::{Goal, Verdict, Watch};

/// Time between two looks at a service during an update.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while nothing is under way.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// First wait after an update that failed because of the nodes; it doubles each time, up to the longest.
const POSTPONE: SignedDuration = SignedDuration::from_mins(10);
const LONGEST_POSTPONE: SignedDuration = SignedDuration::from_hours(6);

impl Service {
    /// Name of the swarm service that it is about: that of an update under way, or the configured one, unless a
    /// deployment of a compose project is under way that was begun by an earlier configuration.
    pub(super) fn swarm_name(&self) -> Option<&str> {
        let deployed = self.durable.swarm.as_ref().map(|rollout| rollout.plan.service.as_str());
        let configured = self.config.swarm_service.as_deref();
        deployed.or(configured.filter(|_| self.durable.deployment.is_none()))
    }

    /// The next step of the update under way, or a look at its tasks.
    pub(super) fn next_in_swarm(&mut self, now: Timestamp) -> Option<Action> {
        let waiting = self.retry_at.is_some_and(|at| at > now);
        if self.stepping || waiting {
            return None;
        }
        self.retry_at = None;
        if let Some(step) = self.durable.swarm.as_deref().and_then(SwarmRollout::step) {
            self.stepping = true;
            self.generation += 1;
            return Some(Action::Swarm(step));
        }
        self.next_inspection(now)
    }

    /// A step ended.
    pub(super) fn swarm_stepped(&mut self, result: SwarmResult, now: Timestamp) {
        let Some(rollout) = &mut self.durable.swarm else { return };
        let service = rollout.plan.service.clone();
        match (rollout.phase.clone(), result) {
            (_, SwarmResult::Passing(error)) => self.swarm_away(&error, now),
            (SwarmPhase::Admit, SwarmResult::Admitted { labels }) => {
                rollout.labels = labels;
                rollout.enter(SwarmPhase::Update, now);
            }
            (SwarmPhase::Update, SwarmResult::Set) => {
                rollout.enter(SwarmPhase::Converge { watch: Watch::default() }, now);
                self.inspect_at = Some(now);
                self.over_if_passing(now);
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
                self.swarm_diagnosed(failed, &super::wording::no_log(&text), now);
            }
            (SwarmPhase::Rollback(failed), SwarmResult::Set) => {
                rollout.enter(SwarmPhase::VerifyRollback { failed, watch: Watch::default() }, now);
                self.inspect_at = Some(now);
            }
            (SwarmPhase::Rollback(failed), SwarmResult::Foreign { image }) => {
                let problem = RollbackProblem::Step(wording::foreign(&service, &image));
                self.swarm_failed_for_good(failed, problem, now);
            }
            (SwarmPhase::Rollback(failed), result) => {
                rollout.attempt += 1;
                if rollout.attempt < ROLLBACK_ATTEMPTS {
                    self.retry_at = Some(now + ROLLBACK_RETRY * 2_i32.saturating_pow(rollout.attempt - 1));
                } else {
                    let text = match result {
                        SwarmResult::Failed(text) => text,
                        _ => wording::busy(&service),
                    };
                    self.swarm_failed_for_good(failed, RollbackProblem::Step(text), now);
                }
            }
            // They wait, and take no step; and no other step has these results.
            (SwarmPhase::Converge { .. } | SwarmPhase::VerifyRollback { .. }, _) => {}
            (_, other) => {
                self.abandon_in_swarm(format!("the step ended as another one does: {other:?}"), now);
            }
        }
    }

    /// Nobody answered: the step, or the look, is taken again. What people can mend is shown.
    fn swarm_away(&mut self, error: &SwarmError, now: Timestamp) {
        self.retry_at = Some(now + ENGINE_RETRY);
        let is_away = matches!(error, SwarmError::Away(_));
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

    /// What stood in the way is over.
    fn over_if_passing(&mut self, now: Timestamp) {
        if self.fault.as_ref().is_some_and(|fault| fault.from_check) {
            self.set_fault(None, now);
        }
    }

    /// The service was read, or could not be.
    pub(super) fn swarm_seen(&mut self, result: Result<SwarmService, SwarmError>, now: Timestamp) {
        let at_work = self.durable.swarm.is_some();
        self.inspect_at = Some(now + if at_work { LOOK_INTERVAL } else { IDLE_INTERVAL });
        let service = match result {
            Ok(service) => service,
            Err(error) => {
                if at_work && !error.is_passing() {
                    return self.swarm_interfered(error.to_string(), now);
                }
                if at_work {
                    self.swarm_away(&error, now);
                }
                return;
            }
        };
        self.containers = Some(service.containers().into());
        let was_undeployable = self.undeployable().is_some();
        self.swarm = Some(Box::new(service.clone()));
        // An update may have waited for its tasks.
        self.check_due |= was_undeployable && self.undeployable().is_none() && self.can_check();
        let Some(rollout) = &mut self.durable.swarm else { return };
        let plan = rollout.plan.clone();
        match &mut rollout.phase {
            SwarmPhase::Converge { watch } => {
                let goal = Goal { image: &plan.to, known: &plan.known, grace: plan.grace };
                match watch.look(&service, goal, now) {
                    Verdict::Wait { trouble } => self.swarm_waits(trouble, now),
                    Verdict::Passed => self.swarm_passed(now),
                    Verdict::Failed(failed) => self.swarm_failed(&failed, now),
                    Verdict::Foreign => self.set_otherwise(&plan, &service, now),
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

    /// The specification names another image than the one that was set.
    fn set_otherwise(&mut self, plan: &SwarmPlan, service: &SwarmService, now: Timestamp) {
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
        let told = if is_back { wording::manual_rollback } else { wording::foreign };
        self.swarm_interfered(told(&plan.service, &service.image), now);
    }

    /// The swarm is not done. Tasks that no node takes are nobody's failure: it goes on when there is a node.
    fn swarm_waits(&mut self, trouble: Option<String>, now: Timestamp) {
        let Some(service) = self.swarm_name() else { return };
        match trouble {
            Some(why) => {
                let text = wording::unplaced(service, &why);
                self.set_fault(Some(Fault { text, from_check: true }), now);
            }
            None => self.over_if_passing(now),
        }
    }

    fn swarm_passed(&mut self, now: Timestamp) {
        let Some(rollout) = self.durable.swarm.clone() else { return };
        let mut updated = false;
        if let Some(change) = rollout.plan.change.clone() {
            let (image, digest) = (change.configured.clone(), change.digest.clone());
            let proven = OldImage { id: ImageId::from(&digest), source: Some(change.source(&digest)) };
            let durable = &mut self.durable;
            durable.proven.insert(image.clone(), proven);
            durable.not_found.remove(&image);
            durable.blocked.remove(&image);
            durable.unproven.remove(&image);
            durable.postponed = None;
            updated = change.old_digest.as_ref() != Some(&digest);
            durable.published.insert(image.clone(), digest.clone());
            self.note_proof(&image, &digest, now);
            if updated {
                let took = self.time_since_found(&change, rollout.begun, now);
                self.emit(Event::Updated(updated_event(change, rollout.labels.clone(), took)), now);
            }
        }
        match rollout.plan.cause {
            Cause::Redeploy => self.emit(Event::Redeployed { kept: rollout.plan.kept }, now),
            Cause::RetryRollback => {
                self.durable.unproven.clear();
                self.emit(Event::RollbackRetried, now);
            }
            _ => {}
        }
        self.durable.rollback_failed = false;
        self.end_in_swarm(DeployOutcome::Succeeded, updated, now);
        self.set_fault(self.remaining_fault(true), now);
    }

    /// New tasks failed: the digest is blocked in the same write as the decision to go back.
    fn swarm_failed(&mut self, failed: &SwarmFailed, now: Timestamp) {
        let Some(rollout) = &mut self.durable.swarm else { return };
        rollout.enter(SwarmPhase::Diagnose(failed.clone()), now);
        let change = rollout.plan.change.clone().filter(|_| rollout.plan.is_reversible());
        let Some(change) = change else { return };
        if failed.by_node {
            let tries = self.durable.postponed.as_ref().filter(|one| one.digest == change.digest);
            let tries = tries.map_or(0, |one| one.tries) + 1;
            let wait = POSTPONE.saturating_mul(2_i32.saturating_pow(tries - 1)).min(LONGEST_POSTPONE);
            self.durable.postponed = Some(Postponed { digest: change.digest, until: now + wait, tries });
        } else {
            self.durable.blocked.insert(change.configured, change.digest);
        }
    }

    /// The evidence was gathered: the service goes back.
    fn swarm_diagnosed(&mut self, failed: SwarmFailed, log: &str, now: Timestamp) {
        let Some(rollout) = &mut self.durable.swarm else { return };
        let output = super::wording::black_box(&failed.failure, &failed.output, log);
        let failed = SwarmFailed { output, ..failed };
        if rollout.plan.is_reversible() {
            rollout.enter(SwarmPhase::Rollback(failed), now);
            return;
        }
        // The same image as before: nothing to block, nothing to go back to.
        let SwarmFailed { failure, output, .. } = failed;
        let event = if rollout.plan.cause == Cause::RetryRollback {
            Event::RollbackRetryFailed { failure, output }
        } else {
            Event::RedeployFailed { why: failure.reason, container: failure.container, output }
        };
        self.end_in_swarm(DeployOutcome::Failed, false, now);
        self.emit(event, now);
    }

    /// The old image runs again.
    fn swarm_rolled_back(&mut self, failed: SwarmFailed, now: Timestamp) {
        let Some(rollout) = self.durable.swarm.clone() else { return };
        if let Some(change) = &rollout.plan.change {
            self.durable.proven.extend(change.old.clone().map(|old| (change.configured.clone(), old)));
        }
        self.durable.unproven.clear();
        if failed.by_node {
            self.end_in_swarm(DeployOutcome::Failed, false, now);
            let text = wording::by_nodes(rollout.plan.image(), &failed.failure.reason);
            return self.raise_fault(Some(Fault { text, from_check: false }), failed.output, now);
        }
        let failed = report(&rollout.plan, failed);
        self.emit(Event::RolledBack { failed, remaining: None, also_recreated: Vec::new() }, now);
        self.end_in_swarm(DeployOutcome::RolledBack, false, now);
        self.set_fault(self.remaining_fault(true), now);
    }

    /// There is no way back: nothing more is done until somebody acts, or the registry has another digest.
    fn swarm_failed_for_good(&mut self, failed: SwarmFailed, why: RollbackProblem, now: Timestamp) {
        let Some(rollout) = self.durable.swarm.clone() else { return };
        if let Some(change) = &rollout.plan.change {
            let name = || change.configured.clone();
            self.durable.unproven.insert(name(), ImageId::from(&change.digest));
            self.durable.proven.extend(change.old.clone().map(|old| (name(), old)));
            self.durable.blocked.insert(name(), change.digest.clone());
        }
        self.durable.rollback_failed = true;
        let containers = self.containers().iter().map(ContainerSummary::of).collect();
        self.emit(Event::RollbackFailed { failed: report(&rollout.plan, failed), why, containers }, now);
        self.end_in_swarm(DeployOutcome::Failed, false, now);
        self.set_fault(self.remaining_fault(true), now);
    }

    /// Nothing was changed: the next check tries again.
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

    /// Somebody interfered after the update had begun: that is respected and told.
    fn swarm_interfered(&mut self, text: String, now: Timestamp) {
        self.end_in_swarm(DeployOutcome::Inconclusive, false, now);
        self.set_fault(Some(Fault { text, from_check: false }), now);
    }

    fn end_in_swarm(&mut self, outcome: DeployOutcome, updated: bool, now: Timestamp) {
        let Some(rollout) = self.durable.swarm.take() else { return };
        let SwarmRollout { plan, begun, .. } = *rollout;
        self.emit(Event::DeployEnded { outcome, cause: plan.cause, begun, updated }, now);
        self.generation += 1;
        self.inspect_at = Some(now);
        // What runs has changed; but what could not be deployed waits for the next cycle.
        self.check_due |=
            self.can_check() && matches!(outcome, DeployOutcome::Succeeded | DeployOutcome::RolledBack);
    }

    /// The agent starts again in the middle of an update: the tasks prove themselves from now on.
    pub(super) fn resume_in_swarm(&mut self, reason: super::boot::StartReason, now: Timestamp) {
        let is_rebooted = !self.boot.before.is_empty() && self.boot.before != self.boot.now;
        let Some(rollout) = &mut self.durable.swarm else { return };
        if let Some(watch) = rollout.phase.watch_mut() {
            (watch.steady_since, watch.done_since) = (None, None);
            watch.engine_away |= is_rebooted;
        }
        let image_changes: Vec<ImageChange> = rollout.plan.change.clone().into_iter().collect();
        let step = rollout.phase.name();
        self.inspect_at = Some(now);
        self.emit(Event::Resumed { image_changes, step, reason }, now);
    }
}

fn updated_event(change: ImageChange, labels: LabelChange, took: Duration) -> Updated {
    Updated {
        change,
        is_same: false,
        labels,
        used: true,
        took,
        also_recreated: Vec::new(),
        left_behind: Vec::new(),
    }
}

/// What is reported of an update that failed.
fn report(plan: &SwarmPlan, failed: SwarmFailed) -> FailedDeployment {
    let digests = plan.change.as_ref().map(|change| (change.old_digest.clone(), change.digest.clone()));
    let SwarmFailed { failure, output, .. } = failed;
    let image = plan.change.as_ref().map(|change| change.reference.clone());
    FailedDeployment { images: plan.image().to_owned(), image, digests, failure, output }
}
