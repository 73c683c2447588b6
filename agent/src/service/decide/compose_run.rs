//! A plain `compose up` without a rollout: start, changed compose files, force up, a container to recreate. It is
//! journaled as a deployment, because it must be resumed if it is killed between removing the old container and creating
//! the new one. No image is put on probation.

use evenkeel_common::wire::DeployOutcome;
use jiff::Timestamp;

use crate::model::{ComposeError, Container, Reference, State, UpMode};
use crate::service::event::{Event, FaultCause};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::{Cause, Plan};
use crate::service::rollout::step::Phase;
use crate::service::{Service, wording};

impl Service {
    /// Begins to recreate one container with compose, without touching any other.
    pub(in crate::service) fn begin_recreate(&mut self, name: &str, compose_service: String, now: Timestamp) {
        self.begin_remedy(name, true, now);
        let cause = Cause::RecreateContainer { container: name.to_owned() };
        let plan = Plan {
            project: self.compose_project(),
            ..Plan::bare(cause, &self.config.name, self.config.health_grace)
        };
        let containers = self.staying(&plan.cause, self.containers());
        let up_mode = UpMode::ForceService(compose_service);
        self.durable.deployment = Some(Box::new(Deployment::new(plan, up_mode, &containers, now)));
    }

    /// The containers without those, if the deployment is not about images, that have ended on an image that was not proven or
    /// is blocked: nobody is to start them as they are.
    pub(in crate::service) fn staying(&self, cause: &Cause, containers: &[Container]) -> Vec<Container> {
        let elsewhere = self.known.observation.iter().flat_map(|seen| &seen.blocked_elsewhere);
        let elsewhere = elsewhere.map(|blocked| blocked.reference.clone());
        let own = self.blocked_references().map(|(reference, _)| reference);
        let blocked: Vec<Reference> = elsewhere.chain(own).collect();
        let is_left = |c: &Container| {
            !cause.is_about_images()
                && !c.is_live()
                && (self.durable.images.is_unproven(&c.image) || blocked.iter().any(|r| c.is_made_from(r)))
        };
        containers.iter().filter(|c| !is_left(c)).cloned().collect()
    }

    /// Handles the end of `compose up`.
    pub(in crate::service) fn compose_run_ended(
        &mut self,
        result: Result<String, ComposeError>,
        containers: &[Container],
        now: Timestamp,
    ) {
        if self.is_still_stuck(result.is_err(), containers) {
            self.durable.deployment.iter_mut().for_each(|deployment| deployment.take_down_first(now));
            return;
        }
        match result {
            Ok(_) => {
                if let Some(deployment) = &mut self.durable.deployment {
                    deployment.enter(Phase::Unpin, now);
                }
                self.end(DeployOutcome::Succeeded, false, now);
                self.brought_up(now);
            }
            Err(error) => {
                let text = wording::fault(&FaultCause::ComposeUp { cause: &error.cause });
                self.abandon(text, error.output, now);
            }
        }
    }

    /// Compose has brought the project up.
    fn brought_up(&mut self, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let remains = self.remaining_fault(deployment.plan().cause.is_about_images());
        let cause = deployment.plan().cause.clone();
        let was_edited = self.durable.files_pending;
        self.files_applied(now);
        if was_edited && !self.durable.files_pending {
            self.try_postponed(now);
        }
        self.durable.rollback_failed &= self.rollback_stands();
        self.emit(Event::BroughtUp { cause }, now);
        self.set_fault(remains, now);
    }

    /// Whether containers are still stuck after `compose up`, so that the project must be taken down first. Never if
    /// that would recreate it without an override file.
    fn is_still_stuck(&self, has_failed: bool, containers: &[Container]) -> bool {
        let is_without_down = |d: &Deployment| d.plan().cause == Cause::ForceUp { down: false };
        let is_stuck = |c: &Container| {
            matches!(c.state, State::Created | State::Restarting) && !c.is_held_back(containers)
        };
        // A run that the engine interrupted is retried unchanged.
        !self.steps.is_disturbed
            && self.durable.deployment.as_deref().is_some_and(is_without_down)
            && self.unlisted_files_fault().is_none()
            && (has_failed || containers.iter().any(is_stuck))
    }
}
