//! The steps of a rollout: what each does, and what its end leads to.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::ImageId;
use crate::model::{ComposeError, Container, Project, UpMode};
use crate::service::action::Step;
use crate::service::event::{Event, FaultCause, RollbackProblem};
use crate::service::input::{LocalImage, StepResult};
use crate::service::outcome::DeployOutcome;
use crate::service::{ENGINE_RETRY, Service, wording};

use super::plan::{Cause, Deployment, ImageChange};
use super::probation::{self, Context, Failure, Probation};

/// Where a deployment stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum Phase {
    /// Old images are being pinned, so that no prune removes them.
    #[serde(alias = "hold")]
    PinImages,
    /// New images are being fetched.
    Pull,
    /// The project is being brought to the new images.
    Start,
    /// The new containers must prove themselves.
    Probation {
        /// What was seen so far.
        #[serde(alias = "trial")]
        probation: Probation,
    },
    /// Compose failed before it touched anything: the tags go back, no container does.
    #[serde(alias = "tags_back")]
    RestoreTags,
    /// It failed. The digests are blocked; what the container wrote last is being read.
    #[serde(alias = "evidence")]
    Diagnose {
        /// Why.
        failure: Failure,
        /// What compose printed.
        output: String,
    },
    /// The old images are being put back.
    #[serde(alias = "undo")]
    Rollback {
        /// Why.
        failure: Failure,
        /// Evidence: compose's output, facts, log lines.
        output: String,
    },
    /// The old containers must prove themselves.
    #[serde(alias = "proof")]
    VerifyRollback {
        /// Why.
        failure: Failure,
        /// Evidence.
        output: String,
        /// What was seen so far.
        #[serde(alias = "trial")]
        probation: Probation,
    },
    /// The outcome is decided; the pins are removed.
    #[serde(alias = "release")]
    Unpin,
}

impl Phase {
    /// Name of the step in the journal and in the log.
    pub fn name(&self) -> &'static str {
        match self {
            Phase::PinImages => "pin_images",
            Phase::Pull => "pull",
            Phase::Start => "start",
            Phase::Probation { .. } => "probation",
            Phase::RestoreTags => "restore_tags",
            Phase::Diagnose { .. } => "diagnose",
            Phase::Rollback { .. } => "rollback",
            Phase::VerifyRollback { .. } => "verify_rollback",
            Phase::Unpin => "unpin",
        }
    }

    /// The probation under way, if this phase is one.
    pub(in crate::service) fn probation_mut(&mut self) -> Option<&mut Probation> {
        match self {
            Phase::Probation { probation } | Phase::VerifyRollback { probation, .. } => Some(probation),
            _ => None,
        }
    }
}

impl Deployment {
    /// Goes on to another step.
    pub(in crate::service) fn enter(&mut self, phase: Phase, now: Timestamp) {
        self.phase = phase;
        self.since = now;
        self.attempt = 0;
    }

    /// The step that this phase consists of; `None` where it consists of waiting.
    pub(in crate::service) fn step(&self, project: &Project) -> Option<Step> {
        let displaced = self.displaced.clone().unwrap_or_default();
        Some(match &self.phase {
            Phase::Start | Phase::Rollback { .. }
                if self.displaced.is_none() && !self.sibling_tags.is_empty() =>
            {
                Step::ReadTags { sibling_tags: self.sibling_tags.clone() }
            }
            Phase::PinImages => Step::PinImages { project: project.name.clone(), images: self.old_images() },
            Phase::Pull => Step::Pull {
                images: self
                    .image_changes
                    .iter()
                    .map(|m| (m.configured.clone(), m.source(&m.digest)))
                    .collect(),
            },
            Phase::Start => Step::Start {
                tags: self
                    .image_changes
                    .iter()
                    .filter_map(ImageChange::target)
                    .chain(self.kept_tags.iter().cloned())
                    .collect(),
                displaced,
                project: project.clone(),
                down: self.cause == Cause::ForceUp { down: true },
                up_mode: self.up_mode.clone(),
                scope: self.scope(),
            },
            Phase::Rollback { .. } => Step::Start {
                tags: self.old_tags(),
                displaced,
                project: project.clone(),
                down: false,
                up_mode: self.up_mode.clone(),
                scope: self.scope(),
            },
            Phase::RestoreTags => Step::RestoreTags { tags: self.old_tags() },
            Phase::Diagnose { failure, .. } => Step::Diagnose { container: failure.container_id.clone() },
            Phase::Unpin => Step::Unpin {
                project: project.name.clone(),
                displaced,
                onto: self.image_changes.iter().find_map(|m| m.new_id.clone()),
            },
            Phase::Probation { .. } | Phase::VerifyRollback { .. } => return None,
        })
    }
}

/// How compose ended, and what it left.
struct Up {
    result: Result<String, ComposeError>,
    /// The compose services that it was told to keep to; none where it had the whole project.
    named: Vec<String>,
    containers: Vec<Container>,
}

impl Service {
    /// A step ended. A result that does not belong to the step under way is ignored.
    pub(in crate::service) fn stepped(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        match (deployment.phase.clone(), result) {
            (phase, StepResult::EngineAway(text)) => {
                tracing::warn!(service = self.config.name, step = phase.name(), "{text}; trying again");
                self.retry_at = Some(now + ENGINE_RETRY);
            }
            (Phase::PinImages, StepResult::ImagesPinned { missing }) => self.images_pinned(&missing, now),
            (Phase::Pull, StepResult::Pulled { ids }) => self.pulled(&ids, now),
            (Phase::Start | Phase::Rollback { .. }, StepResult::TagsRead { displaced }) => {
                deployment.displaced = Some(displaced);
            }
            (Phase::Start | Phase::Rollback { .. }, StepResult::Started { up: Err(error), .. })
                if self.gap =>
            {
                tracing::warn!(
                    service = self.config.name,
                    "compose was cut off by the engine: {error}; trying again"
                );
                self.retry_at = Some(now + ENGINE_RETRY);
            }
            (
                phase @ (Phase::Start | Phase::Rollback { .. }),
                StepResult::Started { up, named, containers },
            ) => {
                self.compose_ended(phase, Up { result: up, named, containers }, now);
            }
            (Phase::RestoreTags, StepResult::TagsRestored | StepResult::Failed(_)) => {
                deployment.enter(Phase::Unpin, now);
            }
            (Phase::Diagnose { failure, output }, StepResult::Diagnosed { log }) => {
                self.diagnosed(failure, &output, &log, now);
            }
            (Phase::Diagnose { failure, output }, StepResult::Failed(text)) => {
                self.diagnosed(failure, &output, &wording::no_log(&text), now);
            }
            (Phase::Rollback { .. }, StepResult::Failed(text)) => self.rollback_step_failed(&text, now),
            (Phase::Unpin, StepResult::Unpinned | StepResult::Failed(_)) => self.unpinned(now),
            (Phase::PinImages | Phase::Pull | Phase::Start, StepResult::Failed(text)) => {
                self.abandon(text, String::new(), now);
            }
            (phase, result) => {
                let step = phase.name();
                tracing::error!(
                    service = self.config.name,
                    step,
                    ?result,
                    "this result belongs to no step under way"
                );
            }
        }
    }

    fn images_pinned(&mut self, missing: &[String], now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if missing.is_empty() || deployment.cause == Cause::Redeploy {
            deployment.enter(Phase::Pull, now);
        } else {
            let text = wording::fault(&FaultCause::OldImagesGone { images: missing });
            self.abandon(text, String::new(), now);
        }
    }

    fn pulled(&mut self, ids: &[(String, ImageId)], now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        self.fetched = fetched(&deployment.image_changes, ids);
        for change in &mut deployment.image_changes {
            change.new_id =
                ids.iter().find(|(image, _)| *image == change.configured).map(|(_, id)| id.clone());
        }
        // The same content under another digest: nothing to recreate (DOMAIN finding 12).
        if deployment.cause == Cause::Update && !deployment.changes() {
            self.passed(now);
        } else {
            deployment.enter(Phase::Start, now);
        }
    }

    fn compose_ended(&mut self, phase: Phase, up: Up, now: Timestamp) {
        let Up { result, named, containers } = up;
        let Some(deployment) = &mut self.durable.deployment else { return };
        self.containers = Some(containers.clone());
        if !deployment.cause.is_about_images() {
            return self.compose_run_ended(result, &containers, now);
        }
        deployment.note_recreated(&named, &containers);
        match (phase, result) {
            (Phase::Rollback { failure, output }, Ok(_)) => {
                let probation = Probation::new(now, deployment.expected_old());
                let attempt = deployment.attempt;
                deployment.enter(Phase::VerifyRollback { failure, output, probation }, now);
                deployment.attempt = attempt;
                self.inspect_at = Some(now);
            }
            (Phase::Rollback { .. }, Err(error)) => self.rollback_step_failed(&error.cause, now),
            (_, Ok(_)) => {
                deployment.displaced = None;
                deployment.up_mode = UpMode::Changed;
                let left_behind = deployment.left_behind(&containers);
                let probation = Probation::new(now, deployment.expected_new(&left_behind));
                self.durable.left_behind.extend(left_behind);
                let attempt = deployment.attempt;
                deployment.enter(Phase::Probation { probation }, now);
                deployment.attempt = attempt;
                self.inspect_at = Some(now);
            }
            (_, Err(error)) => self.up_failed(error, &containers, now),
        }
    }

    /// Compose could not bring up the new images.
    fn up_failed(&mut self, error: ComposeError, containers: &[Container], now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let reason = wording::fault(&FaultCause::ComposeUp { cause: &error.cause });
        if deployment.is_untouched(containers) {
            return self.abandon(reason, error.output, now);
        }
        let context = Context {
            grace: self.config.health_grace,
            before: &deployment.before,
            stops: &self.durable.stops,
            image_changes: &deployment.image_changes,
            rolling_back: false,
        };
        let cause = probation::likely_cause(containers, context).unwrap_or_default();
        self.failed(Failure { reason, by_compose: true, ..cause }, error.output, now);
    }

    /// The evidence was gathered: the old images are put back, if there are any.
    fn diagnosed(&mut self, failure: Failure, compose: &str, log: &str, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let output = wording::evidence(&failure, compose, log);
        if !deployment.changes() {
            // The same images as before: nothing to block, nothing to roll back to.
            deployment.enter(Phase::Unpin, now);
            let retries_rollback = deployment.cause == Cause::RetryRollback;
            self.end(DeployOutcome::Failed, false, now);
            let event = if retries_rollback {
                Event::RollbackRetryFailed { failure, output }
            } else {
                let Failure { reason: why, container, .. } = failure;
                Event::RedeployFailed { why, container, output }
            };
            self.emit(event, now);
        } else if deployment.can_roll_back() {
            deployment.up_mode = UpMode::Changed;
            // By now somebody may have brought another service to another image.
            if let Some(containers) = &self.containers {
                deployment.refresh_sibling_tags(containers);
            }
            deployment.enter(Phase::Rollback { failure, output }, now);
        } else {
            self.fail_for_good(failure, output, RollbackProblem::NoOldImage, now);
        }
    }

    /// The deployment is over.
    fn unpinned(&mut self, now: Timestamp) {
        let Some(deployment) = self.durable.deployment.take() else { return };
        self.inspect_at = Some(now);
        // What runs has changed; but a deploy that could not be made waits for the next cycle.
        let about_images = deployment.cause.is_about_images();
        self.check_due |= (self.can_check() || about_images) && self.fault.is_none();
    }
}

/// The images that were fetched, by their names as configured. Their sizes are read by the next check.
fn fetched(image_changes: &[ImageChange], ids: &[(String, ImageId)]) -> BTreeMap<String, LocalImage> {
    let image = |m: &ImageChange| {
        let (_, id) = ids.iter().find(|(text, _)| *text == m.configured)?;
        Some((m.configured.clone(), LocalImage { id: id.clone(), digests: vec![m.digest.clone()], size: 0 }))
    };
    image_changes.iter().filter_map(image).collect()
}
