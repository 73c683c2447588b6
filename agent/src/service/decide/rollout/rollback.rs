//! The rollback to the previous images, and the handling of a rollback that fails as well.

use evenkeel_common::wire::DeployOutcome;
use jiff::Timestamp;

use crate::config::ConfiguredImage;
use crate::model::HookEvent;
use crate::model::image::{ImageId, Reference};
use crate::service::decide::rollout::snapshot::with_engine_starts;
use crate::service::event::{
    ContainerSummary, Event, FailedDeployment, Fault, GoBackEnd, GoBackResult, RollbackFailed,
    RollbackProblem,
};
use crate::service::observation::ImageView;
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::{Cause, GoBackReason, ImageChange};
use crate::service::rollout::probation::{Failed, Failure, Interference, Outcome, Reason};
use crate::service::rollout::step::Phase;
use crate::service::state::{LeftStopped, WhyLeft};
use crate::service::{INSPECT_INTERVAL, ROLLBACK_ATTEMPTS, ROLLBACK_RETRY, Service, rollback_pause, wording};

impl Service {
    /// Acts on the outcome of an inspection during the probation of the old containers.
    pub(in crate::service) fn rollback_seen(&mut self, failed: Failed, outcome: Outcome, now: Timestamp) {
        match outcome {
            Outcome::Wait { deadline } => self.inspections.postpone((now + INSPECT_INTERVAL).min(deadline)),
            Outcome::Passed => self.rolled_back(failed, None, now),
            // The failing container is on none of the old images, or was already failing before the deployment.
            Outcome::Failed(again) if self.is_no_worse(&again) => {
                self.rolled_back(failed, Some(again.reason), now);
            }
            Outcome::Failed(again) => self.give_up(failed, RollbackProblem::NotProven(again), now),
            Outcome::Inconclusive(how) => self.rollback_interfered(failed, how, now),
        }
    }

    /// Ends the deployment after a successful rollback.
    pub(in crate::service) fn rolled_back(
        &mut self,
        failed: Failed,
        remaining: Option<Reason>,
        now: Timestamp,
    ) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.must_withdraw() {
            return deployment.enter(Phase::Withdraw { failed, remaining, is_verified: true }, now);
        }
        deployment.enter(Phase::Unpin, now);
        let back = match &deployment.plan().cause {
            Cause::GoBack(back) => Some(back.clone()),
            _ => None,
        };
        if back.is_none() {
            deployment.run_last(HookEvent::RolledBack);
        }
        for change in &deployment.plan().image_changes {
            self.durable.images.of(&change.configured).keep_target(change.old.as_ref());
        }
        let data = deployment.data_back();
        // An image that was rejected before, and that a person's way back from has failed, needs a person as before.
        let is_rejected_again = deployment.plan().image_changes.iter().any(|change| {
            let memory = self.durable.images.get(&change.configured);
            change.old.as_ref().is_some_and(|old| memory.is_rejected(&old.id))
        });
        self.proven_run_again();
        self.durable.rollback_failed &= is_rejected_again || self.rollback_stands();
        let Some(deployment) = &mut self.durable.deployment else { return };
        if let Some(back) = back {
            self.end(DeployOutcome::Failed, false, now);
            self.set_fault(self.remaining_fault(true), now);
            let Failed { failure, output, .. } = failed;
            let failure = Box::new(failure);
            let result = GoBackResult::Undone { failure, output, remaining, data };
            return self.emit(Event::GoBack(GoBackEnd { back, result }), now);
        }
        if failed.by_node && deployment.plan().swarm.is_some() {
            let text = wording::swarm::by_nodes(
                &wording::subject(deployment.plan()),
                &wording::rejection(&failed.failure.reason),
            );
            self.end(DeployOutcome::Failed, false, now);
            return self.raise_fault(Some(Fault { text, from_check: false }), failed.output, now);
        }
        let is_uninterrupted = deployment.is_uninterrupted(now);
        let problems = deployment.handover.problems.clone();
        let (failed, also_recreated) = (report(deployment, failed), deployment.also_recreated.clone());
        self.end(DeployOutcome::RolledBack, false, now);
        // Each failed image would otherwise stay until an update succeeds.
        self.remove_old_images_soon();
        self.set_fault(self.remaining_fault(true), now);
        let event = Event::RolledBack { failed, remaining, also_recreated, is_uninterrupted, problems, data };
        self.emit(event, now);
    }

    /// Notes that the images to which the deployment has gone back are proven. An unproven image of another service part stays
    /// unproven as long as it runs.
    pub(in crate::service) fn proven_run_again(&mut self) {
        let Some(deployment) = &self.durable.deployment else { return };
        let (changes, containers) = (&deployment.plan().image_changes, &self.known.containers);
        // One that was put back because a person's way back from it has failed is no more proven than before.
        let is_rejected = |change: &ImageChange| {
            let memory = self.durable.images.get(&change.configured);
            change.old.as_ref().is_some_and(|old| memory.is_rejected(&old.id))
        };
        let proven: Vec<&ImageChange> = changes.iter().filter(|change| !is_rejected(change)).collect();
        let is_changed = |image: &str| proven.iter().any(|change| change.configured == image);
        let runs = |id: &ImageId| containers.iter().flat_map(|all| all.iter()).any(|c| c.image == *id);
        self.durable.images.forget_unproven(|image, id| !is_changed(image) && runs(id));
    }

    /// An alarm that has blocked nothing, as that of a way back, ends once another image runs in place of the unproven one.
    pub(in crate::service) fn end_unblocked_alarm(&mut self, view: &ImageView) {
        let unproven = &self.durable.images.get(&view.configured).unproven;
        if unproven.is_some() && !view.running.is_empty() {
            self.durable.rollback_failed &= self.rollback_stands();
        }
    }

    /// Whether an image is left whose rollback has failed: it is blocked, was not proven, and runs or ran last. It is over once
    /// nothing but another image runs in its place.
    pub(in crate::service) fn rollback_stands(&self) -> bool {
        // What says nothing against an image has blocked none.
        let known = self.durable.failed_update.as_ref();
        let blames_none = known.is_some_and(|known| !known.rolled_back && known.digest.is_none());
        let stands = |image: &ConfiguredImage| {
            let memory = self.durable.images.get(&image.configured);
            let counts = blames_none || memory.blocked.is_some();
            let Some(id) = memory.unproven.as_ref().filter(|_| counts) else {
                return false;
            };
            let is_there = self.containers().iter().any(|c| c.image == *id);
            is_there || self.live_containers(image).next().is_none()
        };
        self.config.images.iter().any(stands)
    }

    /// Handles interference with a rollback. A container may also be on another image because its tag pointed there for a
    /// moment, so the rollback is retried.
    fn rollback_interfered(&mut self, failed: Failed, how: Interference, now: Timestamp) {
        let containers = self.known.containers.as_deref().unwrap_or_default();
        let Some(deployment) = &mut self.durable.deployment else { return };
        let stopped = deployment.plan().expected_old().iter().all(|expected| {
            let of_service = || containers.iter().filter(|c| c.compose_service == expected.compose_service);
            of_service().next().is_none() || of_service().any(|c| c.image == expected.image)
        });
        let attempt = deployment.attempt + 1;
        let how = Reason::Interfered { interference: how };
        if stopped {
            self.rolled_back(failed, Some(how), now);
        } else if attempt < ROLLBACK_ATTEMPTS {
            deployment.enter_attempt(deployment.way_back(failed), attempt, now);
            self.steps.retry_at = Some(now + ROLLBACK_RETRY);
        } else {
            self.give_up(failed, RollbackProblem::NotProven(Failure::general(how)), now);
        }
    }

    /// Reports whether a failure after the rollback says nothing against the old images: the container is on none of them,
    /// or was already failing before.
    fn is_no_worse(&self, failure: &Failure) -> bool {
        let services = self.containers().iter().filter(|c| c.id == failure.container_id);
        let was_failing = |service: &str| {
            let before = self.durable.deployment.iter().flat_map(|d| &d.plan().before);
            before
                .filter(|was| was.compose_service == service)
                .any(|was| (was.running || was.live) && !was.well)
        };
        failure.bystander || services.map(|c| c.compose_service.as_str()).any(was_failing)
    }

    /// Retries a failed rollback step, up to the limit.
    pub(in crate::service) fn rollback_step_failed(&mut self, failed: Failed, text: String, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.is_for_tied() {
            // The old images run, which is what counts.
            let problem = wording::not_brought_up(deployment.up_mode.services(), &text);
            if !deployment.handover.problems.contains(&problem) {
                deployment.handover.problems.push(problem);
            }
            return self.old_up(failed, now);
        }
        deployment.attempt += 1;
        deployment.narrow();
        if deployment.attempt < ROLLBACK_ATTEMPTS {
            self.steps.retry_at = Some(now + rollback_pause(deployment.attempt));
        } else {
            self.give_up(failed, RollbackProblem::Step(text), now);
        }
    }

    /// Gives up on the rollback, but not while new containers stand beside old ones that run again: what comes next would take
    /// both sides for what is wanted. The new ones are removed, and the old ones are judged once more without them. Old ones that
    /// do not run a second time are made anew once, as without a handover.
    fn give_up(&mut self, failed: Failed, why: RollbackProblem, now: Timestamp) {
        let containers = self.known.containers.clone().unwrap_or_default();
        let Some(deployment) = &mut self.durable.deployment else { return };
        if let RollbackProblem::NotProven(again) = &why
            && deployment.is_spent_by(again, &containers)
        {
            deployment.handover.is_spent = true;
            return deployment.enter(Phase::Revive(failed), now);
        }
        if deployment.must_withdraw() && deployment.old_run_again(&containers) {
            let withdraw = Phase::Withdraw { failed, remaining: None, is_verified: false };
            return deployment.enter(withdraw, now);
        }
        self.fail_for_good(failed, why, now);
    }

    /// Gives up on the rollback: nothing more is done until an operator acts or the registry has another digest.
    pub(in crate::service) fn fail_for_good(&mut self, failed: Failed, why: RollbackProblem, now: Timestamp) {
        let containers = self.known.containers.as_deref().unwrap_or_default();
        let Some(deployment) = &mut self.durable.deployment else { return };
        let rejected = deployment.leave_rejected_stopped(containers);
        let left = rejected.iter().map(|one| LeftStopped::entry(one, WhyLeft::EarlierData, now));
        self.durable.left_stopped.extend(left);
        let left_stopped = with_engine_starts(&rejected, containers);
        let data = deployment.data_back().filter(|_| deployment.snapshot.is_restored);
        let back = match &deployment.plan().cause {
            Cause::GoBack(back) => Some(back),
            _ => None,
        };
        let going_back_to = back.map(wording::go_back::targets);
        let is_late = back.is_some_and(|back| matches!(back.why, GoBackReason::Late { .. }));
        let is_blamed = back.is_none() && !failed.by_node;
        // The running image must not become a rollback target.
        for m in deployment.changes() {
            let memory = self.durable.images.of(&m.configured);
            if m.old.as_ref().is_some_and(|old| memory.is_rejected(&old.id)) {
                continue;
            }
            memory.note_unproven(deployment.new_id(m).as_ref(), m.old.as_ref());
            if is_blamed {
                // Those of images that did not fail, too: the service is not touched again.
                memory.blocked = Some(m.digest.clone());
            } else if let Some(left) = m.left().filter(|_| is_late) {
                memory.block(left);
            }
        }
        let failed = report(deployment, failed);
        deployment.enter(Phase::Unpin, now);
        self.end(DeployOutcome::Failed, false, now);
        self.durable.rollback_failed = true;
        self.durable.watch.clear();
        self.set_fault(self.remaining_fault(true), now);
        let containers = self.containers().iter().map(ContainerSummary::of).collect();
        let end = RollbackFailed { failed, going_back_to, why, containers, data, left_stopped };
        self.emit(Event::RollbackFailed(end), now);
    }
}

/// Builds the report of a failed deployment, with the digests of the images to blame. There are none if this machine or
/// nodes could not run the new image, or if it was proven before and was to run again: neither is a verdict for the fleet (DECISIONS 14).
fn report(deployment: &Deployment, failed: Failed) -> FailedDeployment {
    let Failed { failure, output, by_node, .. } = failed;
    let images = wording::names(deployment.changes());
    if by_node || matches!(deployment.plan().cause, Cause::GoBack(_)) {
        let (image, digests, others) = (None, None, Vec::new());
        return FailedDeployment { images, image, digests, others, failure, output, by_node };
    }
    let blamed = Reference::parse(&failure.image).ok();
    let of_blamed = deployment.changes().find(|m| blamed.as_ref().is_some_and(|blamed| m.is_of(blamed)));
    let of = of_blamed.or_else(|| deployment.changes().next());
    let digests = of.map(|change| (change.old_digest.clone(), change.digest.clone()));
    let image = of.map(|change| change.reference.clone());
    let is_other = |change: &&ImageChange| of.is_none_or(|of| of.configured != change.configured);
    let others = deployment.blamed(&failure).filter(is_other);
    let others = others.map(|change| (change.reference.clone(), change.digest.clone())).collect();
    FailedDeployment { images, image, digests, others, failure, output, by_node }
}
