//! The steps of a rollout: what each does, and what its end leads to.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{ImageId, LabelChange};
use crate::model::{ComposeError, Container, State, UpMode};
use crate::service::event::{Event, FaultCause, Note, RollbackProblem};
use crate::service::input::{LocalImage, StepResult};
use crate::service::outcome::DeployOutcome;
use crate::service::{ENGINE_RETRY, Service, wording};

use super::deployment::Deployment;
use super::plan::{Cause, ImageChange};
use super::probation::{Expected, Failure, Probation};
use super::tag::LineState;

/// Why new images are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// What failed.
    pub failure: Failure,
    /// Evidence: compose's output, then facts and log lines.
    pub output: String,
}

/// Where a deployment stands, with all that this step alone needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum Phase {
    /// Old images are being pinned, so that no prune removes them.
    #[serde(alias = "hold")]
    PinImages,
    /// New images are being fetched.
    Pull,
    /// The newer tag is being written into the env file.
    WriteTag,
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
    Diagnose(Failed),
    /// The old images are being put back.
    #[serde(alias = "undo")]
    Rollback(Failed),
    /// The old containers must prove themselves.
    #[serde(alias = "proof")]
    VerifyRollback {
        /// Why.
        #[serde(flatten)]
        failed: Failed,
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
            Phase::WriteTag => "write_tag",
            Phase::Start => "start",
            Phase::Probation { .. } => "probation",
            Phase::RestoreTags => "restore_tags",
            Phase::Diagnose(_) => "diagnose",
            Phase::Rollback(_) => "rollback",
            Phase::VerifyRollback { .. } => "verify_rollback",
            Phase::Unpin => "unpin",
        }
    }

    /// The probation under way, if this phase is one.
    pub(super) fn probation(&self) -> Option<&Probation> {
        match self {
            Phase::Probation { probation } | Phase::VerifyRollback { probation, .. } => Some(probation),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(in crate::service) fn probation_mut(&mut self) -> Option<&mut Probation> {
        match self {
            Phase::Probation { probation } | Phase::VerifyRollback { probation, .. } => Some(probation),
            _ => None,
        }
    }
}

impl Service {
    /// A step ended. Whatever ends it otherwise than well is its failure, also a result that is another step's.
    pub(in crate::service) fn stepped(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let phase = deployment.phase.clone();
        // Why compose failed is not known where the engine's events broke off meanwhile.
        let is_cut_off = self.gap && matches!(result, StepResult::Started { up: Err(_), .. });
        let is_tried_again = is_cut_off && !deployment.interrupt();
        if is_tried_again || matches!(result, StepResult::EngineAway(_)) {
            self.notes.push(Note::StepRetried { step: phase.name(), failure: result.failure() });
            self.retry_at = Some(now + ENGINE_RETRY);
            return;
        }
        if deployment.puts_line_back() {
            return self.line_put_back(result, now);
        }
        match phase {
            Phase::PinImages => match result {
                StepResult::ImagesPinned { missing } => self.images_pinned(&missing, now),
                other => self.abandon(other.failure(), String::new(), now),
            },
            Phase::Pull => match result {
                StepResult::Pulled { ids, labels } => self.pulled(ids, labels, now),
                other => self.abandon(other.failure(), String::new(), now),
            },
            Phase::WriteTag => match result {
                StepResult::TagWritten => {
                    deployment.line = LineState::Written;
                    deployment.enter(Phase::Start, now);
                }
                StepResult::TagTaken => {
                    let text = deployment.plan().tag.as_ref().map(wording::tag_taken).unwrap_or_default();
                    self.abandon(text, String::new(), now);
                }
                other => {
                    // It may have been written all the same.
                    deployment.line = LineState::Written;
                    self.abandon(other.failure(), String::new(), now);
                }
            },
            Phase::Start => match result {
                StepResult::TagsRead { displaced } => deployment.displaced = Some(displaced),
                StepResult::Started { up, named, containers } => self.started(up, &named, &containers, now),
                other => self.abandon(other.failure(), String::new(), now),
            },
            Phase::Rollback(failed) => match result {
                StepResult::TagsRead { displaced } => deployment.displaced = Some(displaced),
                StepResult::Started { up, named, containers } => {
                    deployment.note_recreated(&named, &containers);
                    self.containers = Some(containers.into());
                    self.old_started(failed, up, now);
                }
                other => self.rollback_step_failed(failed, other.failure(), now),
            },
            Phase::Diagnose(failed) => match result {
                StepResult::Diagnosed { log } => self.diagnosed(failed, &log, now),
                other => self.diagnosed(failed, &wording::no_log(&other.failure()), now),
            },
            Phase::RestoreTags => deployment.enter(Phase::Unpin, now),
            Phase::Unpin => self.unpinned(now),
            // They wait, and take no step.
            Phase::Probation { .. } | Phase::VerifyRollback { .. } => {}
        }
    }

    fn images_pinned(&mut self, missing: &[String], now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if missing.is_empty() || deployment.plan().cause == Cause::Redeploy {
            deployment.enter(Phase::Pull, now);
        } else {
            let text = wording::fault(&FaultCause::OldImagesGone { images: missing });
            self.abandon(text, String::new(), now);
        }
    }

    fn pulled(&mut self, ids: Vec<(String, ImageId)>, labels: BTreeMap<String, LabelChange>, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.new_ids = ids.into_iter().collect();
        deployment.labels = labels;
        self.fetched = fetched(deployment);
        // The same content under another digest: nothing to recreate (DOMAIN finding 12).
        if deployment.plan().cause == Cause::Update && deployment.changes().next().is_none() {
            let is_edited = self.durable.files_pending;
            self.passed(now);
            self.durable.files_pending = is_edited;
        } else {
            let writes = deployment.tag().is_some_and(|tag| tag.line.is_some());
            deployment.enter(if writes { Phase::WriteTag } else { Phase::Start }, now);
        }
    }

    /// The line with the tag was put back, or could not be. What runs does not depend on it, so that the deployment goes
    /// on all the same.
    fn line_put_back(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.line = LineState::Settled;
        let Some(tag) = deployment.plan().tag.clone() else { return };
        let why = match result {
            StepResult::TagWritten => return,
            StepResult::TagTaken => None,
            other => Some(other.failure()),
        };
        self.emit(Event::TagLineLeft { tag, why }, now);
    }

    /// Compose ended, which was to bring up what is new.
    fn started(
        &mut self,
        up: Result<String, ComposeError>,
        named: &[String],
        containers: &[Container],
        now: Timestamp,
    ) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        self.containers = Some(containers.into());
        if !deployment.plan().cause.is_about_images() {
            return self.compose_run_ended(up, containers, now);
        }
        deployment.note_recreated(named, containers);
        let left_behind = deployment.left_behind(containers);
        let expected = deployment.expected_new(&left_behind);
        if let Err(error) = up {
            // Brought up before the interruption: what keeps compose from doing it again is no fault of the images.
            if deployment.interruptions == 0 || !are_running(&expected, containers) {
                return self.up_failed(error, containers, now);
            }
            let failure = error.cause;
            self.notes.push(Note::StepRetried { step: "start", failure });
        }
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.displaced = None;
        deployment.up_mode = UpMode::Changed;
        let probation = Probation::new(now, expected);
        deployment.enter_attempt(Phase::Probation { probation }, deployment.attempt, now);
        self.durable.left_behind.extend(left_behind);
        self.inspect_at = Some(now);
    }

    /// Compose ended, which was to bring back what ran before.
    fn old_started(&mut self, failed: Failed, up: Result<String, ComposeError>, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if let Err(error) = up {
            return self.rollback_step_failed(failed, error.cause, now);
        }
        let probation = Probation::new(now, deployment.plan().expected_old());
        deployment.enter_attempt(Phase::VerifyRollback { failed, probation }, deployment.attempt, now);
        self.inspect_at = Some(now);
    }

    /// Compose could not bring up the new images.
    fn up_failed(&mut self, error: ComposeError, containers: &[Container], now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let reason = wording::fault(&FaultCause::ComposeUp { cause: &error.cause });
        if deployment.plan().is_untouched(containers) {
            return self.abandon(reason, error.output, now);
        }
        let cause = deployment.likely_cause(containers, self.config.health_grace, &self.durable.stops);
        let cause = cause.unwrap_or_default();
        self.failed(Failure { reason, by_compose: true, ..cause }, error.output, now);
    }

    /// The evidence was gathered: the old images are put back, if there are any.
    fn diagnosed(&mut self, failed: Failed, log: &str, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let Failed { failure, output } = failed;
        let output = wording::black_box(&failure, &output, log);
        if deployment.changes().next().is_none() {
            // The same images as before: nothing to block, nothing to roll back to.
            deployment.enter(Phase::Unpin, now);
            let event = if deployment.plan().cause == Cause::RetryRollback {
                Event::RollbackRetryFailed { failure, output }
            } else {
                let Failure { reason: why, container, .. } = failure;
                Event::RedeployFailed { why, container, output }
            };
            self.end(DeployOutcome::Failed, false, now);
            self.emit(event, now);
        } else if deployment.can_roll_back() {
            deployment.up_mode = UpMode::Changed;
            // By now somebody may have brought another service to another image.
            if let Some(containers) = &self.containers {
                deployment.refresh_sibling_tags(containers);
            }
            deployment.enter(Phase::Rollback(Failed { failure, output }), now);
        } else {
            self.fail_for_good(Failed { failure, output }, RollbackProblem::NoOldImage, now);
        }
    }

    /// The deployment is over.
    fn unpinned(&mut self, now: Timestamp) {
        let Some(deployment) = self.durable.deployment.take() else { return };
        self.inspect_at = Some(now);
        // What runs has changed; but a deploy that could not be made waits for the next cycle.
        let about_images = deployment.plan().cause.is_about_images();
        self.check_due |= (self.can_check() || about_images) && self.fault.is_none();
    }
}

/// Whether all that is expected runs on its image.
fn are_running(expected: &[Expected], containers: &[Container]) -> bool {
    let runs = |expected: &Expected| {
        containers.iter().any(|c| {
            c.compose_service == expected.compose_service
                && c.image == expected.image
                && c.state == State::Running
        })
    };
    !expected.is_empty() && expected.iter().all(runs)
}

/// The images that were fetched, by their names as configured. Their sizes are read by the next check.
fn fetched(deployment: &Deployment) -> BTreeMap<String, LocalImage> {
    let image = |m: &ImageChange| {
        let id = deployment.new_ids.get(&m.configured)?.clone();
        Some((m.configured.clone(), LocalImage { id, digests: vec![m.digest.clone()], size: 0 }))
    };
    deployment.plan().image_changes.iter().filter_map(image).collect()
}
