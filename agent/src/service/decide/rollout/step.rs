//! The transition after each step of a deployment.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_common::wire::DeployOutcome;
use jiff::Timestamp;

use crate::model::image::ImageId;
use crate::model::image_config::ConfigChange;
use crate::model::{ComposeError, Container, HookEvent, UpMode};
use crate::ports::HookError;
use crate::service::event::{Event, Fault, FaultCause, Note, RollbackProblem};
use crate::service::health::assess::{Condition, Inactive};
use crate::service::input::StepResult;
use crate::service::observation::LocalImage;
use crate::service::rollout::baseline::{Baseline, Expected};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::handover::OldContainers;
use crate::service::rollout::plan::{Cause, ImageChange};
use crate::service::rollout::probation::{Failed, Failure, Interference, Outcome, Probation, Reason};
use crate::service::rollout::step::Phase;
use crate::service::rollout::tag::{LineState, TagChange};
use crate::service::{ENGINE_RETRY, Service, wording};

impl Service {
    /// Handles the result of a step. Any unexpected result is a failure of the step, even the result of another one.
    pub(in crate::service) fn stepped(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if let StepResult::Started { containers, .. } = &result {
            deployment.outage.look(containers, now);
        }
        let phase = deployment.phase.clone();
        // Tags may have been moved by now, and compose may have run.
        let is_begun =
            !matches!(result, StepResult::TagsRead { .. } | StepResult::Looked { .. } | StepResult::Occupied);
        deployment.must_look &= phase != Phase::Start || !is_begun;
        // If the engine went away in the meantime, or something ended compose, the cause of the failure is unknown.
        let is_unexplained = match &result {
            StepResult::Started { up: Err(error), containers, .. } => {
                let is_disturbed = self.steps.is_disturbed || error.was_killed;
                is_disturbed || error.is_by_rival() && deployment.is_unfinished(containers)
            }
            _ => false,
        };
        let is_retried = is_unexplained && !deployment.interrupt();
        if is_retried || matches!(result, StepResult::EngineAway(_)) {
            self.steps.retry_at = Some(now + retry_pause(&result, deployment.interruptions));
            self.emitted.notes.push(Note::StepRetried { step: phase.name(), failure: result.failure() });
            return;
        }
        if deployment.restores_line() {
            return self.line_restored(result, now);
        }
        match phase {
            Phase::BeforeHook => self.prepared(result, now),
            Phase::LastHook { event } => {
                if let StepResult::HookEnded(Err(HookError { why, output })) = result {
                    self.emit(Event::HookFailed { event, why, output }, now);
                }
                self.concluded(now);
            }
            Phase::PinImages => match result {
                StepResult::ImagesPinned { missing } => self.images_pinned(&missing, now),
                other => self.abandon_and_wait(other.failure(), String::new(), now),
            },
            Phase::Pull => match result {
                StepResult::Pulled { ids, labels } => self.pulled(ids, labels, now),
                other => self.not_pulled(other, now),
            },
            Phase::WriteTag => self.tag_written(result, now),
            Phase::Start | Phase::Spread => self.start_stepped(result, now),
            Phase::Drain
            | Phase::Retire
            | Phase::Settle { .. }
            | Phase::Revive(_)
            | Phase::Withdraw { .. }
            | Phase::Abort { .. } => self.handed_over(result, now),
            Phase::Rollback(failed) => match result {
                StepResult::TagsRead { displaced } => deployment.displaced = Some(displaced),
                StepResult::Started { up, named, containers } => {
                    deployment.note_recreated(&named, &containers);
                    self.known.containers = Some(containers.into());
                    self.old_started(failed, up, now);
                }
                other => self.rollback_step_failed(failed, other.failure(), now),
            },
            Phase::Diagnose(failed) => match result {
                StepResult::Diagnosed { log } => self.diagnosed(failed, &log, now),
                other => self.diagnosed(failed, &wording::no_log(&other.failure()), now),
            },
            Phase::Quiesce
            | Phase::Copy
            | Phase::Restore(_)
            | Phase::Resume { .. }
            | Phase::Expire { .. } => self.snapshot_stepped(result, now),
            Phase::RestoreTags => deployment.enter(Phase::Unpin, now),
            Phase::Unpin if deployment.must_resume() => self.snapshot_stepped(result, now),
            Phase::Unpin => self.unpinned_with_data(now),
            // These phases wait and take no step.
            Phase::Probation { .. }
            | Phase::VerifyRollback { .. }
            | Phase::Soak { .. }
            | Phase::Converge { .. }
            | Phase::VerifyTasks { .. } => {}
            // Their steps have results of their own.
            Phase::Admit | Phase::Update => self.abandon(result.failure(), String::new(), now),
        }
    }

    /// Handles the end of the hook before the deployment.
    fn prepared(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        match result {
            StepResult::HookEnded(Ok(containers)) => {
                if let Some(containers) = containers {
                    deployment.note_prepared(&containers, now);
                    self.known.containers = Some(containers.into());
                }
                deployment.enter(Phase::PinImages, now);
            }
            StepResult::HookEnded(Err(HookError { why, output })) => {
                self.hook_before_failed(wording::hook_failed(HookEvent::Before, &why), output, now);
            }
            other => self.abandon(other.failure(), String::new(), now),
        }
    }

    /// Handles the result of writing the newer tag to the env file.
    fn tag_written(&mut self, result: StepResult, now: Timestamp) {
        let moving = self.moving_changes();
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.has_earlier_data() {
            return self.tag_written_to_earlier_data(result, now);
        }
        match result {
            StepResult::TagWritten => {
                deployment.note_line_written();
                deployment.begin_start(now);
            }
            StepResult::TagLineChanged => {
                let text = deployment.plan().tag.as_ref().map(wording::tag_taken).unwrap_or_default();
                self.abandon_for_now(&moving, text, String::new(), now);
            }
            other => {
                // It may have been written nevertheless.
                deployment.note_line_written();
                self.abandon_for_now(&moving, other.failure(), String::new(), now);
            }
        }
    }

    /// Handles the result of writing the tag once more after earlier data was put in place. It goes on even if that failed.
    fn tag_written_to_earlier_data(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.bring_up(None, now);
        let Some(tag) = deployment.plan().tag.clone() else { return };
        let why = match result {
            StepResult::TagWritten => return,
            StepResult::TagLineChanged => None,
            other => Some(other.failure()),
        };
        let tag = TagChange { old: tag.new.clone(), ..tag };
        self.emit(Event::TagLineNotRestored { tag, why }, now);
    }

    fn images_pinned(&mut self, missing: &[String], now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if missing.is_empty() || deployment.plan().cause == Cause::Redeploy {
            deployment.enter(Phase::Pull, now);
        } else {
            let text = wording::fault(&FaultCause::OldImagesGone { images: missing });
            self.abandon_and_wait(text, String::new(), now);
        }
    }

    fn pulled(
        &mut self,
        ids: Vec<(String, ImageId)>,
        labels: BTreeMap<String, ConfigChange>,
        now: Timestamp,
    ) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.new_ids = ids.into_iter().collect();
        deployment.labels = labels;
        self.known.pulled = fetched(deployment);
        let images = &self.durable.images;
        let is_unproven = deployment.new_ids.iter().any(|(image, id)| images.get(image).is_unproven(id));
        // The same content under another digest: nothing to recreate (DOMAIN finding 12).
        if deployment.plan().cause == Cause::Update && deployment.changes().next().is_none() && !is_unproven {
            let is_edited = self.durable.files_pending;
            self.passed(now);
            self.durable.files_pending = is_edited;
        } else {
            match deployment.tag() {
                Some(_) => deployment.enter(Phase::WriteTag, now),
                None => deployment.begin_start(now),
            }
        }
    }

    /// Handles the result of restoring the tag line. The running images do not depend on the line, so the deployment goes
    /// on even if that failed.
    fn line_restored(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.line = LineState::Settled;
        let Some(tag) = deployment.plan().tag.clone() else { return };
        let why = match result {
            StepResult::TagWritten => return,
            StepResult::TagLineChanged => None,
            other => Some(other.failure()),
        };
        self.emit(Event::TagLineNotRestored { tag, why }, now);
    }

    /// Handles the result of a step that brings up the project, or new containers beside the old ones.
    fn start_stepped(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        match result {
            StepResult::TagsRead { displaced } => deployment.note_displaced(displaced),
            StepResult::Looked { containers } => self.looked(containers, now),
            StepResult::Occupied => {
                self.abandon_and_wait(wording::fault(&FaultCause::Occupied), String::new(), now);
            }
            StepResult::Started { up, named, containers } => self.started(up, &named, &containers, now),
            other => self.abandon_and_wait(other.failure(), String::new(), now),
        }
    }

    /// Handles a look directly before compose runs which found that not all containers that are brought up are as they were.
    /// What somebody has done stands; what else has happened to them does not hinder the update, and the step is repeated.
    fn looked(&mut self, containers: Vec<Container>, now: Timestamp) {
        let containers = self.with_events(containers, now);
        let Some(deployment) = &self.durable.deployment else { return };
        let (scope, model) = (deployment.scope(), deployment.plan().definition.as_deref());
        let how = scope
            .iter()
            .flat_map(|scope| scope.ran(model))
            .find_map(|was| self.interference_with(was, &containers));
        self.known.containers = Some(containers.into());
        if let Some(how) = how {
            self.checks.request();
            self.abandon(wording::fault(&FaultCause::Outdated { how: &how }), String::new(), now);
        } else if let Some(deployment) = &mut self.durable.deployment {
            deployment.must_look = false;
        }
    }

    /// What somebody has done to a container that ran.
    fn interference_with(&self, was: &Baseline, containers: &[Container]) -> Option<Interference> {
        let removed = || Some(Interference::Removed { compose_service: was.compose_service.clone() });
        let Some(container) = containers.iter().find(|c| c.id == was.id) else { return removed() };
        let name = container.name.clone();
        match self.condition(container) {
            Condition::Inactive(Inactive::Removing) => removed(),
            Condition::Inactive(Inactive::Stopped | Inactive::Stopping) => {
                Some(Interference::Stopped { container: name })
            }
            Condition::Inactive(Inactive::Paused) => Some(Interference::Paused { container: name }),
            _ => None,
        }
    }

    /// Handles the end of a compose run that brings up the project, or new containers beside the old ones.
    fn started(
        &mut self,
        up: Result<String, ComposeError>,
        named: &[String],
        containers: &[Container],
        now: Timestamp,
    ) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        self.known.containers = Some(containers.into());
        if !deployment.plan().cause.is_about_images() {
            return self.compose_run_ended(up, containers, now);
        }
        let starts_beside = deployment.phase == Phase::Spread;
        if starts_beside {
            deployment.note_new(containers);
        }
        deployment.note_recreated(named, containers);
        let left_behind = deployment.left_behind(containers);
        let expected = deployment.expected_new(&left_behind);
        if let Err(error) = up {
            let cause = deployment.likely_cause(containers, &self.durable.stops);
            let is_to_blame = cause.is_some_and(|failure| !failure.bystander);
            if let Some(compose_service) = deployment.removed(containers).filter(|_| !is_to_blame) {
                deployment.snapshot.is_unused = false;
                let how = Interference::Removed { compose_service };
                return self.probation_seen(Outcome::Inconclusive(how), now);
            }
            // They were already up before the interruption, or somebody else has brought them up: the images are not why
            // compose fails this time.
            let is_up = (deployment.interruptions > 0 && Expected::all_run(&expected, containers))
                || (error.is_by_rival() && deployment.is_up(containers));
            if !is_up {
                return self.up_failed(error, containers, now);
            }
            let failure = error.cause;
            self.emitted.notes.push(Note::StepRetried { step: deployment.phase.name(), failure });
        }
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.displaced = None;
        deployment.up_mode = UpMode::Changed;
        deployment.snapshot.is_unused = false;
        self.durable.left_behind.extend(left_behind);
        if deployment.plan().is_handover() && !starts_beside {
            return deployment.enter_attempt(Phase::Spread, deployment.attempt, now);
        }
        if deployment.must_resume() {
            return deployment.enter(Phase::Resume { failed: None, is_early: false }, now);
        }
        self.begin_probation(now);
    }

    /// The new containers are up: their probation begins.
    pub(in crate::service) fn begin_probation(&mut self, now: Timestamp) {
        let containers = self.known.containers.clone().unwrap_or_default();
        let Some(deployment) = &mut self.durable.deployment else { return };
        let probation = Probation::new(now, deployment.expected_new(&deployment.left_behind(&containers)));
        deployment.enter_attempt(Phase::Probation { probation }, deployment.attempt, now);
        self.inspections.request_by(now);
    }

    /// Handles the end of the compose run that brings up the old images.
    fn old_started(&mut self, mut failed: Failed, up: Result<String, ComposeError>, now: Timestamp) {
        let containers = self.known.containers.clone().unwrap_or_default();
        if let Err(error) = up {
            self.acquit(&mut failed, &error, &containers, now);
            return self.rollback_step_failed(failed, error.cause, now);
        }
        let Some(deployment) = &mut self.durable.deployment else { return };
        if !deployment.bring_up_tied(&containers) {
            self.old_up(failed, now);
        }
    }

    /// The images that ran until the update can't be brought up either, and compose says the same of them: any image would have
    /// failed on this machine. The new ones are not blocked for that, and tried again. It says nothing if a container was started:
    /// the new image may have changed data that the old one needs as well. Nor does it if compose has not said why.
    fn acquit(
        &mut self,
        failed: &mut Failed,
        error: &ComposeError,
        containers: &[Container],
        now: Timestamp,
    ) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let words = wording::fault(&FaultCause::ComposeUp { cause: &error.cause });
        let is_same = failed.failure.by_compose && failed.failure.reason == Reason::Words(words);
        let has_run = failed.has_run || error.is_about_wait() || deployment.has_new_run(containers);
        let is_going_back = matches!(deployment.plan().cause, Cause::GoBack(_));
        let says_nothing = !is_same || error.is_unexplained() || has_run;
        if failed.by_node || says_nothing || is_going_back || deployment.is_for_tied() {
            return;
        }
        failed.by_node = true;
        deployment.phase = Phase::Rollback(failed.clone());
        let blamed: Vec<ImageChange> = deployment.blamed(&failed.failure).cloned().collect();
        for change in &blamed {
            self.durable.images.of(&change.configured).acquit(&change.digest);
        }
        self.not_run(blamed, &wording::rejection(&failed.failure.reason), now);
    }

    /// Compose has brought up what it can of the old containers.
    pub(in crate::service) fn old_up(&mut self, failed: Failed, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.leave_tied();
        if deployment.must_withdraw() && deployment.handover.old == OldContainers::Serving {
            return deployment.enter(Phase::Withdraw { failed, remaining: None, is_verified: false }, now);
        }
        if deployment.must_resume() {
            let resume = Phase::Resume { failed: Some(failed), is_early: false };
            return deployment.enter_attempt(resume, deployment.attempt, now);
        }
        self.verify_old(failed, now);
    }

    /// The old containers are up again: their probation begins.
    pub(in crate::service) fn verify_old(&mut self, failed: Failed, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let probation = Probation::new(now, deployment.plan().expected_old());
        deployment.enter_attempt(Phase::VerifyRollback { failed, probation }, deployment.attempt, now);
        self.inspections.request_by(now);
    }

    /// Handles a compose run that could not bring up the new images.
    fn up_failed(&mut self, error: ComposeError, containers: &[Container], now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let reason = wording::fault(&FaultCause::ComposeUp { cause: &error.cause });
        let is_stopped = |id: &str| deployment.snapshot.stopped.iter().any(|one| one.id == id);
        if deployment.plan().is_untouched(containers, is_stopped) && deployment.handover.new.is_empty() {
            return self.abandon_and_wait(reason, error.output, now);
        }
        deployment.snapshot.is_unused = false;
        let cause = deployment.likely_cause(containers, &self.durable.stops);
        let by_others =
            error.is_by_rival() || (error.is_about_dependency() && deployment.has_lost_another(containers));
        let has_run = deployment.has_new_run(containers);
        let by_machine = error.is_of_machine && !deployment.has_new_run_failed(containers);
        let by_node = (cause.is_none() && by_others) || by_machine;
        let cause = cause.unwrap_or_default();
        let failure = Failure { reason: Reason::Words(reason), by_compose: true, ..cause };
        self.failed(Failed { by_node, has_run, ..Failed::new(failure, error.output) }, now);
    }

    /// Continues after the diagnosis: rolls back to the old images, if there are any.
    pub(in crate::service) fn diagnosed(&mut self, failed: Failed, log: &str, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let output = wording::diagnostics(&failed.failure, &failed.output, log);
        if deployment.changes().next().is_none() {
            // The same images as before: nothing to block, nothing to roll back to.
            deployment.enter(Phase::Unpin, now);
            let cause = deployment.plan().cause.clone();
            let images = wording::subject(deployment.plan());
            let failure = failed.failure;
            let why = wording::rejection(&failure.reason);
            self.end(DeployOutcome::Failed, false, now);
            match cause {
                Cause::RetryRollback => self.emit(Event::RollbackRetryFailed { failure, output }, now),
                Cause::GoBack(back) => self.not_gone_back(back, why, output, now),
                // The image that runs was to be proven. Each check tries again until it is, and tells of it once.
                Cause::Update => {
                    let text = wording::still_unproven(&images, &why);
                    self.raise_fault(Some(Fault { text, from_check: false }), output, now);
                }
                _ => self.emit(Event::RedeployFailed { why, container: failure.container, output }, now),
            }
        } else if deployment.can_roll_back(&failed) {
            deployment.up_mode = UpMode::Changed;
            // Another service may have been moved to another image in the meantime.
            if let (Some(containers), None) = (&self.known.containers, &deployment.plan().swarm) {
                deployment.refresh_sibling_tags(containers);
            }
            self.note_lost_old();
            let Some(deployment) = &mut self.durable.deployment else { return };
            deployment.enter(deployment.way_back_with_data(Failed { output, ..failed }), now);
        } else if failed.by_node && deployment.plan().swarm.is_none() {
            // A first start. It is as if it had not been tried, but for what was made of the containers.
            let text = wording::by_machine(
                &wording::names(deployment.changes()),
                &wording::rejection(&failed.failure.reason),
            );
            self.left_unproven(text, now);
        } else {
            self.fail_for_good(Failed { output, ..failed }, RollbackProblem::NoOldImage, now);
        }
    }

    /// Runs the last hook, if there is one, or ends the deployment.
    pub(in crate::service) fn unpinned(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        match deployment.last_hook.take() {
            Some(event) => deployment.enter(Phase::LastHook { event }, now),
            None => self.concluded(now),
        }
    }

    /// Ends the deployment.
    pub(in crate::service) fn concluded(&mut self, now: Timestamp) {
        let Some(deployment) = self.durable.deployment.take() else { return };
        self.generation += 1;
        // What was to be waited for has ended.
        self.forget_unchecked_fault();
        self.inspections.request_by(now);
        // The running images have changed, so check again. A failed deployment waits for the next cycle.
        let about_images = deployment.plan().cause.is_about_images();
        if (self.can_check() || about_images) && self.durable.fault.is_none() {
            self.checks.request();
        }
    }
}

/// Returns the pulled images by configured name. Their sizes are read by the next check.
fn fetched(deployment: &Deployment) -> BTreeMap<String, LocalImage> {
    let image = |m: &ImageChange| {
        let id = deployment.new_ids.get(&m.configured)?.clone();
        Some((m.configured.clone(), LocalImage { id, digests: vec![m.digest.clone()], size: 0 }))
    };
    deployment.plan().image_changes.iter().filter_map(image).collect()
}

/// Returns the pause before a step is repeated. What a run lacked that was killed, such as memory, may be short for minutes; what
/// somebody else does to the same containers is done within a minute.
fn retry_pause(result: &StepResult, interruptions: u32) -> Duration {
    let most_doublings = match result {
        StepResult::Started { up: Err(error), .. } if error.was_killed => 6,
        StepResult::Started { up: Err(error), .. } if error.is_by_rival() => 3,
        _ => 0,
    };
    ENGINE_RETRY * (1_u32 << interruptions.saturating_sub(1).min(most_doublings))
}
