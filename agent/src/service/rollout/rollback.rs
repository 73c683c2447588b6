//! The rollback: to the images that ran before, and what follows when that fails, too.

use jiff::Timestamp;

use crate::model::image::Reference;
use crate::service::event::{ContainerSummary, Event, FailedDeployment, RollbackProblem};
use crate::service::outcome::DeployOutcome;
use crate::service::{INSPECT_INTERVAL, ROLLBACK_ATTEMPTS, ROLLBACK_RETRY, Service, wording};

use super::probation::{Failure, Interference, Outcome};
use super::step::Phase;

impl Service {
    /// What the probation of the old containers says.
    pub(in crate::service) fn rollback_seen(&mut self, outcome: Outcome, now: Timestamp) {
        match outcome {
            Outcome::Wait { deadline } => self.inspect_at = Some((now + INSPECT_INTERVAL).min(deadline)),
            Outcome::Passed => self.rolled_back(None, now),
            // What fails is on none of the old images, or failed before the deployment, too.
            Outcome::Failed(failure) if self.is_no_worse(&failure) => {
                self.rolled_back(Some(failure.reason), now);
            }
            Outcome::Failed(failure) => self.stuck(failure, now),
            Outcome::Inconclusive(how) => self.rollback_interfered(&how, now),
        }
    }

    /// The old images run again.
    pub(super) fn rolled_back(&mut self, remaining: Option<String>, now: Timestamp) {
        let Some((failure, output)) = self.decided(now) else { return };
        self.end(DeployOutcome::RolledBack, false, now);
        let image_changes = self.durable.deployment.iter().flat_map(|d| &d.image_changes);
        let old = image_changes.filter_map(|m| Some((m.configured.clone(), m.old.clone()?)));
        self.durable.proven.extend(old.collect::<Vec<_>>());
        self.durable.unproven.clear();
        self.set_fault(self.remaining_fault(true), now);
        let also_recreated =
            self.durable.deployment.as_ref().map(|d| d.also_recreated.clone()).unwrap_or_default();
        let failed = self.failed_deployment(failure, output);
        self.emit(Event::RolledBack { failed, remaining, also_recreated }, now);
    }

    /// Somebody interfered with a rollback. Another image may also be what a tag named for a moment.
    fn rollback_interfered(&mut self, how: &Interference, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let stopped = deployment.expected_old().iter().all(|expected| {
            let of_service =
                || self.containers.iter().flatten().filter(|c| c.compose_service == expected.compose_service);
            of_service().next().is_none() || of_service().any(|c| c.image == expected.image)
        });
        if !stopped
            && deployment.attempt + 1 < ROLLBACK_ATTEMPTS
            && let Phase::VerifyRollback { failure, output, .. } = &deployment.phase
        {
            let (failure, output, attempt) = (failure.clone(), output.clone(), deployment.attempt + 1);
            deployment.enter(Phase::Rollback { failure, output }, now);
            deployment.attempt = attempt;
            self.retry_at = Some(now + ROLLBACK_RETRY);
        } else if stopped {
            self.rolled_back(Some(wording::interference(how)), now);
        } else {
            self.stuck(Failure::general(wording::interference(how)), now);
        }
    }

    /// Whether what fails after a rollback says nothing against the old images: it is on none of them, or was failing
    /// before.
    fn is_no_worse(&self, failure: &Failure) -> bool {
        let services = self.containers.iter().flatten().filter(|c| c.id == failure.container_id);
        let was_failing = |service: &str| {
            let before = self.durable.deployment.iter().flat_map(|d| &d.before);
            before.filter(|was| was.compose_service == service).any(|was| was.running && !was.well)
        };
        failure.bystander || services.map(|c| c.compose_service.as_str()).any(was_failing)
    }

    /// The old images failed their own probation.
    pub(super) fn stuck(&mut self, again: Failure, now: Timestamp) {
        let Some((failure, output)) = self.decided(now) else { return };
        self.fail_for_good(failure, output, RollbackProblem::NotProven(again), now);
    }

    /// A step of the rollback failed: it is tried again, up to the limit.
    pub(super) fn rollback_step_failed(&mut self, text: &str, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.attempt += 1;
        deployment.bring_up_alone();
        if deployment.attempt < ROLLBACK_ATTEMPTS {
            self.retry_at = Some(now + ROLLBACK_RETRY * 2_i32.saturating_pow(deployment.attempt - 1));
            return;
        }
        let Some((failure, output)) = self.decided(now) else { return };
        self.fail_for_good(failure, output, RollbackProblem::Step(text.to_owned()), now);
    }

    /// Takes failure and evidence out of the rollback, which is decided.
    pub(super) fn decided(&mut self, now: Timestamp) -> Option<(Failure, String)> {
        let deployment = self.durable.deployment.as_mut()?;
        let taken = match &deployment.phase {
            Phase::Rollback { failure, output } | Phase::VerifyRollback { failure, output, .. } => {
                Some((failure.clone(), output.clone()))
            }
            _ => None,
        };
        deployment.enter(Phase::Unpin, now);
        taken
    }

    /// There is no rollback: nothing more is done until somebody acts, or the registry has another digest.
    pub(super) fn fail_for_good(
        &mut self,
        failure: Failure,
        output: String,
        why: RollbackProblem,
        now: Timestamp,
    ) {
        if let Some(deployment) = &mut self.durable.deployment {
            // What runs now must not be taken for something to go back to.
            for m in deployment.image_changes.iter().filter(|m| m.changes()) {
                self.durable.unproven.extend(m.new_id.clone().map(|id| (m.configured.clone(), id)));
                self.durable.proven.extend(m.old.clone().map(|old| (m.configured.clone(), old)));
            }
            deployment.enter(Phase::Unpin, now);
        }
        self.end(DeployOutcome::Failed, false, now);
        self.durable.rollback_failed = true;
        self.set_fault(self.remaining_fault(true), now);
        let failed = self.failed_deployment(failure, output);
        let containers = self.containers.iter().flatten().map(ContainerSummary::of).collect();
        self.emit(Event::RollbackFailed { failed, why, containers }, now);
    }

    /// What is reported of a deployment that failed, with the digests of the image that is to blame.
    fn failed_deployment(&self, failure: Failure, output: String) -> FailedDeployment {
        let changed = || {
            let all = self.durable.deployment.iter().flat_map(|deployment| &deployment.image_changes);
            all.filter(|change| change.changes())
        };
        let blamed = Reference::parse(&failure.image).ok();
        let of = changed().find(|m| Some(&m.reference) == blamed.as_ref()).or_else(|| changed().next());
        let digests = of.map(|change| (change.old_digest.clone(), change.digest.clone()));
        FailedDeployment { images: self.names_of_changed(), digests, failure, output }
    }
}
