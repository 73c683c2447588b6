//! How a deployment goes on from step to step, and how it ends (the map is in `deploy.rs`).

use std::collections::BTreeMap;

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;

use crate::model::image::{ImageId, Reference};
use crate::model::{Container, EngineError, State, UpMode};

use super::action::OldImage;
use super::deploy::{Cause, Deployment, ImageChange, Phase};
use super::input::{LocalImage, StepResult};
use super::outcome::DeployOutcome;
use super::probation::{self, Context, Failure, Outcome, Probation};
use super::wording::{names, some};
use super::{
    ENGINE_RETRY, Fault, INSPECT_INTERVAL, MAX_INTERRUPTIONS, ROLLBACK_ATTEMPTS, ROLLBACK_RETRY, Service,
    heal, restart_state,
};

impl Service {
    pub(super) fn inspected(
        &mut self,
        result: Result<Vec<Container>, EngineError>,
        now: Timestamp,
        entries: &mut Vec<AuditEntry>,
    ) {
        let containers = match result {
            Ok(containers) => self.with_exit_codes(containers),
            Err(error) => {
                if self.durable.deployment.is_some() {
                    if error.is_unavailable() {
                        self.interrupted(now);
                    }
                    self.inspect_at = Some(now + ENGINE_RETRY);
                } else if !self.durable.restart_states.is_empty() || !error.is_unavailable() {
                    self.inspect_at = Some(now + ENGINE_RETRY);
                }
                return;
            }
        };
        self.compare_with_shutdown(&containers, now);
        let grace = self.config.health_grace;
        if let Some(deployment) = &mut self.durable.deployment {
            let rolling_back = matches!(deployment.phase, Phase::VerifyRollback { .. });
            let before = std::mem::take(&mut deployment.before);
            let image_changes = std::mem::take(&mut deployment.image_changes);
            let outcome = deployment.phase.probation_mut().map(|probation| {
                let context = Context {
                    grace,
                    before: &before,
                    stops: &self.durable.stops,
                    image_changes: &image_changes,
                    rolling_back,
                };
                probation.look(&containers, context, now)
            });
            (deployment.before, deployment.image_changes) = (before, image_changes);
            // Entries tell of what was seen here.
            self.containers = Some(containers.clone());
            match outcome {
                None => {}
                Some(Outcome::Inconclusive(how)) if rolling_back => {
                    self.rollback_interfered(&how, now, entries);
                }
                Some(Outcome::Inconclusive(how)) => self.probation_interfered(&how, now, entries),
                // It ails with the old images, too, be it as before or for another reason.
                Some(Outcome::Failed(failure)) if rolling_back && self.is_no_worse(&failure) => {
                    self.rolled_back(Some(&failure.reason), now, entries);
                }
                Some(Outcome::Wait { deadline }) => {
                    self.inspect_at = Some((now + INSPECT_INTERVAL).min(deadline));
                }
                Some(Outcome::Passed) if rolling_back => self.rolled_back(None, now, entries),
                Some(Outcome::Passed) => self.passed(now, entries),
                Some(Outcome::Failed(failure)) if rolling_back => self.stuck(&failure, now, entries),
                Some(Outcome::Failed(failure)) => self.failed(failure, String::new(), now),
            }
        }
        // While another service works on the project, how the containers are is its business.
        if self.durable.deployment.is_none() && !self.project.is_busy {
            self.heal(&containers, now, entries);
        }
        self.containers = Some(containers);
    }

    /// The engine broke off. On probation the containers may have been stopped by it, which is not theirs to
    /// answer for: the project is brought up again and judged from the beginning.
    pub(super) fn interrupted(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let attempt = deployment.attempt + 1;
        let again = match &deployment.phase {
            Phase::Probation { .. } => Phase::Start,
            Phase::VerifyRollback { failure, output, .. } => {
                Phase::Rollback { failure: failure.clone(), output: output.clone() }
            }
            _ => return,
        };
        if attempt > MAX_INTERRUPTIONS {
            return;
        }
        deployment.enter(again, now);
        deployment.attempt = attempt;
        self.retry_at = Some(now + ENGINE_RETRY);
    }

    pub(super) fn stepped(&mut self, result: StepResult, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        if let StepResult::Started { up, containers, .. } = &result
            && self.is_still_stuck(up, containers)
        {
            self.containers = Some(containers.clone());
            return self.force_harder(now);
        }
        let Some(deployment) = &mut self.durable.deployment else { return };
        match (&mut deployment.phase, result) {
            (Phase::Start | Phase::Rollback { .. }, StepResult::Started { up: Err(error), .. })
                if self.gap =>
            {
                tracing::warn!(
                    service = self.config.name,
                    "compose was cut off by the engine: {error}; trying again"
                );
                self.retry_at = Some(now + ENGINE_RETRY);
            }
            (_, StepResult::EngineAway(text)) => {
                tracing::warn!(
                    service = self.config.name,
                    step = deployment.phase.name(),
                    "{text}; trying again"
                );
                self.retry_at = Some(now + ENGINE_RETRY);
            }
            (Phase::PinImages, StepResult::ImagesPinned { missing }) => {
                if missing.is_empty() || deployment.cause == Cause::Redeploy {
                    deployment.enter(Phase::Pull, now);
                } else {
                    let text = format!(
                        "there would be no way back: the image that {} runs on is gone from this machine and can't be fetched again; a redeploy goes ahead all the same",
                        missing.join(", ")
                    );
                    self.abandon(text, String::new(), now, entries);
                }
            }
            (Phase::Pull, StepResult::PullProgress { ids }) => {
                self.fetched = fetched(&deployment.image_changes, &ids);
                for m in &mut deployment.image_changes {
                    m.new_id = ids.iter().find(|(text, _)| *text == m.configured).map(|(_, id)| id.clone());
                }
                // The same content under another digest: nothing to recreate (DOMAIN finding 12).
                if deployment.cause == Cause::Update && !deployment.changes() {
                    self.passed(now, entries);
                } else {
                    deployment.enter(Phase::Start, now);
                }
            }
            (Phase::Start | Phase::Rollback { .. }, StepResult::TagsRead { displaced }) => {
                deployment.displaced = Some(displaced);
            }
            (Phase::Start, StepResult::Started { up: Ok(_), containers, .. })
                if !deployment.cause.is_about_images() =>
            {
                deployment.enter(Phase::Unpin, now);
                self.end(DeployOutcome::Succeeded);
                self.containers = Some(containers);
                self.brought_up(now, entries);
            }
            (Phase::Start, StepResult::Started { up: Ok(_), containers, named }) => {
                deployment.note_recreated(&named, &containers);
                deployment.displaced = None;
                deployment.up_mode = UpMode::Changed;
                let left_behind = deployment.left_behind(&containers);
                let probation = Probation::new(now, deployment.expected_new(&left_behind));
                self.durable.left_behind.extend(left_behind);
                let attempt = deployment.attempt;
                deployment.enter(Phase::Probation { probation }, now);
                deployment.attempt = attempt;
                self.containers = Some(containers);
                self.inspect_at = Some(now);
            }
            (Phase::Start, StepResult::Started { up: Err(error), containers, named }) => {
                deployment.note_recreated(&named, &containers);
                if !deployment.cause.is_about_images() || deployment.is_untouched(&containers) {
                    self.abandon(format!("compose up failed: {}", error.cause), error.output, now, entries);
                } else {
                    let context = Context {
                        grace: self.config.health_grace,
                        before: &deployment.before,
                        stops: &self.durable.stops,
                        image_changes: &deployment.image_changes,
                        rolling_back: false,
                    };
                    let failure = Failure {
                        reason: format!("compose up failed: {}", error.cause),
                        by_compose: true,
                        ..probation::likely_cause(&containers, context).unwrap_or_default()
                    };
                    self.failed(failure, error.output, now);
                }
                self.containers = Some(containers);
            }
            (Phase::RestoreTags, StepResult::TagsRestored | StepResult::Failed(_)) => {
                deployment.enter(Phase::Unpin, now);
            }
            (Phase::Diagnose { failure, output }, StepResult::Diagnosed { log }) => {
                let output = black_box(failure, output, &log);
                let failure = failure.clone();
                if !deployment.changes() {
                    // The same images as before: nothing to block, nowhere to go back to.
                    deployment.enter(Phase::Unpin, now);
                    let cause = deployment.cause.clone();
                    self.end(DeployOutcome::Failed);
                    self.durable.totals.failures += 1;
                    let mut entry = if cause == Cause::RetryRollback {
                        let message = "the way back failed again; someone must look at it";
                        let mut entry = self.entry(now, Kind::ROLLBACK_FAILED, Level::Critical, message);
                        entry.reason = Some(failure.reason.clone());
                        entry
                    } else {
                        self.failed_redeploy(now, &failure.reason)
                    };
                    entry.output = output;
                    entry.container = some(&failure.container);
                    entries.push(entry);
                } else if deployment.can_roll_back() {
                    deployment.up_mode = UpMode::Changed;
                    // By now somebody may have brought another service to another image.
                    if let Some(containers) = &self.containers {
                        deployment.refresh_sibling_tags(containers);
                    }
                    deployment.enter(Phase::Rollback { failure, output }, now);
                } else {
                    let why = format!("{}; there is no earlier image to go back to", failure.reason);
                    self.fail_for_good(&failure, &output, &why, now, entries);
                }
            }
            (Phase::Rollback { failure, output }, StepResult::Started { up, containers, named }) => {
                let (failure, output) = (failure.clone(), output.clone());
                deployment.note_recreated(&named, &containers);
                match up {
                    Ok(_) => {
                        let probation = Probation::new(now, deployment.expected_old());
                        let attempt = deployment.attempt;
                        deployment.enter(Phase::VerifyRollback { failure, output, probation }, now);
                        deployment.attempt = attempt;
                        self.inspect_at = Some(now);
                    }
                    Err(error) => self.rollback_step_failed(&error.cause, now, entries),
                }
                self.containers = Some(containers);
            }
            (Phase::Rollback { .. }, StepResult::Failed(text)) => {
                self.rollback_step_failed(&text, now, entries);
            }
            (Phase::Unpin, StepResult::Unpinned | StepResult::Failed(_)) => {
                let about_images = deployment.cause.is_about_images();
                self.durable.deployment = None;
                self.inspect_at = Some(now);
                // What runs has changed; but a deploy that could not be made waits for the next cycle.
                self.check_due |= (self.can_check() || about_images) && self.fault.is_none();
            }
            (Phase::PinImages | Phase::Pull | Phase::Start, StepResult::Failed(text)) => {
                self.abandon(text, String::new(), now, entries);
            }
            (Phase::Diagnose { .. }, StepResult::Failed(text)) => {
                self.stepped(StepResult::Diagnosed { log: format!("({text})") }, now, entries);
            }
            (phase, result) => {
                tracing::error!(
                    service = self.config.name,
                    step = phase.name(),
                    ?result,
                    "unexpected end of a step"
                );
            }
        }
    }

    /// Compose brought the project up, and no image was changed.
    fn brought_up(&mut self, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some(deployment) = &self.durable.deployment else { return };
        let remains = self.remaining_fault(deployment.cause.is_about_images());
        let (kind, message, reason) = match deployment.cause {
            Cause::ComposeChanged => {
                self.durable.files_pending = false;
                (Kind::COMPOSE_DRIFT, "the compose files changed and were applied", "compose_watch is on")
            }
            Cause::ForceUp { down } => {
                let message = if down {
                    "the project was forced with compose down and up"
                } else {
                    "the project was forced with compose up"
                };
                (Kind::STARTED, message, "containers were stuck half-made, and auto_start is on")
            }
            // Whether it helped is said when the container is well again.
            Cause::RecreateContainer { .. } => return self.set_fault(remains, now, entries),
            Cause::Start | Cause::Update | Cause::Redeploy | Cause::RetryRollback => {
                (Kind::STARTED, "the project was started", "none of its containers ran, and auto_start is on")
            }
        };
        let mut entry = self.entry(now, kind, Level::Info, message);
        entry.reason = Some(reason.to_owned());
        entries.push(entry);
        self.set_fault(remains, now, entries);
    }

    /// What ran again by now still ended somehow before.
    fn with_exit_codes(&self, mut containers: Vec<Container>) -> Vec<Container> {
        let again = |c: &&mut Container| c.restart_count > 0 && c.exit_code == 0 && c.state != State::Exited;
        for container in containers.iter_mut().filter(again) {
            container.exit_code = self.exits.get(&container.id).copied().unwrap_or_default();
        }
        containers
    }

    /// What a look says about the containers' health, and what follows from it.
    fn heal(&mut self, containers: &[Container], now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let own = self.project.healed_by(&self.config.name, containers);
        let durable = &mut self.durable;
        durable.stops.retain(|id, _| containers.iter().any(|c| c.id == *id));
        durable.engine_stops.retain(|id, _| containers.iter().any(|c| c.id == *id));
        let stops = heal::Stops { asked: &durable.stops, by_engine: &durable.engine_stops };
        let ends = heal::Ends { told: &self.exits, stops };
        let restart_states = &mut durable.restart_states;
        let found = self.healer.look(restart_states, &own, ends, &self.restarting, &self.config, now);
        durable.totals.failures += found.failures;
        entries.extend(found.entries);
        if let Some(at) = found.inspect_at {
            self.inspect_at = Some(self.inspect_at.map_or(at, |old| old.min(at)));
        }
    }

    /// Gives up before anything was changed: the tags go back, the fault is shown, the next check tries again.
    pub(super) fn abandon(
        &mut self,
        text: String,
        output: String,
        now: Timestamp,
        entries: &mut Vec<AuditEntry>,
    ) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let cause = deployment.cause.clone();
        let next = if matches!(deployment.phase, Phase::Start) { Phase::RestoreTags } else { Phase::Unpin };
        deployment.enter(next, now);
        self.end(DeployOutcome::Failed);
        self.durable.totals.failures += 1;
        let before = entries.len();
        match cause {
            Cause::Redeploy => entries.push(self.failed_redeploy(now, &text)),
            // The healer's business, which tries again as after a restart.
            Cause::RecreateContainer { container } => {
                let restart = self.durable.restart_states.entry(container.clone()).or_default();
                entries.push(restart_state::refused(restart, &self.config, &container, &text, now));
            }
            _ => self.set_fault(Some(Fault { text, from_check: false }), now, entries),
        }
        if let Some(entry) = entries.get_mut(before) {
            entry.output = output;
        }
    }

    /// The new images failed: block them, in the same write as the decision to go back.
    pub(super) fn failed(&mut self, failure: Failure, output: String, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.changes() {
            for m in deployment.image_changes.iter().filter(|m| m.changes()) {
                self.durable.blocked.insert(m.configured.clone(), m.digest.clone());
            }
        }
        deployment.enter(Phase::Diagnose { failure, output }, now);
    }

    /// Whoever was made anew is somebody else: what was done for the container before it has not helped this one.
    fn forget_replaced(&mut self) {
        let Some(deployment) = &self.durable.deployment else { return };
        let containers = self.containers.as_deref().unwrap_or_default();
        let kept = |name: &str| {
            let mut of_name = containers.iter().filter(|container| container.name == name);
            of_name.any(|container| deployment.before.iter().any(|was| was.id == container.id))
        };
        self.durable.restart_states.retain(|name, _| kept(name));
    }

    /// The new images are proven.
    pub(super) fn passed(&mut self, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        self.forget_replaced();
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.enter(Phase::Unpin, now);
        let image_changes = deployment.image_changes.clone();
        let cause = deployment.cause.clone();
        let took = now.duration_since(deployment.begun).as_secs();
        let also = deployment.and_recreated();
        self.end(DeployOutcome::Succeeded);
        let mut updated = false;
        for m in &image_changes {
            let runs = |c: &Container| m.new_id.as_ref() == Some(&c.image);
            let used = self.containers.as_ref().is_none_or(|all| all.iter().any(runs));
            if let (Some(id), true) = (m.new_id.clone(), used) {
                let source = Some(m.source(&m.digest));
                self.durable.proven.insert(m.configured.clone(), OldImage { id, source });
            }
            self.durable.not_found.remove(&m.configured);
            self.durable.blocked.remove(&m.configured);
            self.durable.unproven.remove(&m.configured);
            self.durable.published.insert(m.configured.clone(), m.digest.clone());
            if m.old_digest.as_ref() == Some(&m.digest) {
                continue;
            }
            updated |= used;
            let same = m.old.as_ref().map(|old| &old.id) == m.new_id.as_ref();
            let message = if !used {
                format!("{} is pulled and tagged, but no container of the project runs on it", m.configured)
            } else if same {
                format!("{} has a new digest for the same image; nothing had to be recreated", m.configured)
            } else {
                format!(
                    "{} is updated and passed its probation, {took} s after it was found{also}",
                    m.configured
                )
            };
            let level = if used { Level::Info } else { Level::Warning };
            let mut entry = self.entry(now, Kind::UPDATED, level, message);
            entry.reason = self.left_behind_by(m);
            entry.old_digest = m.old_digest.as_ref().map(ToString::to_string);
            entry.new_digest = Some(m.digest.to_string());
            entries.push(entry);
        }
        if cause == Cause::Redeploy {
            let message = "the project was pulled and recreated, and passed its probation";
            entries.push(self.entry(now, Kind::FORCE_REDEPLOY, Level::Info, message));
        }
        if cause == Cause::RetryRollback {
            self.durable.totals.rollbacks += 1;
            let message =
                "the way back was made after all; the images that were proven last are back and well";
            entries.push(self.entry(now, Kind::ROLLED_BACK, Level::Warning, message));
        }
        self.durable.totals.updates += u64::from(updated);
        self.durable.rollback_failed = false;
        self.set_fault(self.remaining_fault(true), now, entries);
    }

    /// What is to be said of containers on the old image that compose has not brought along.
    fn left_behind_by(&self, m: &ImageChange) -> Option<String> {
        let is_left =
            |c: &&Container| self.durable.left_behind.contains(&c.id) && c.is_made_from(&m.reference);
        let names: Vec<&str> =
            self.containers.iter().flatten().filter(is_left).map(|c| c.name.as_str()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "compose does not bring along {}: its service is not in the compose files any more, or in a profile that is off",
                names.join(", ")
            )
        })
    }

    /// The way back led home.
    pub(super) fn rolled_back(&mut self, but: Option<&str>, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some((failure, output)) = self.decided(now) else { return };
        self.end(DeployOutcome::RolledBack);
        self.durable.totals.rollbacks += 1;
        let image_changes = self.durable.deployment.iter().flat_map(|d| &d.image_changes);
        let old = image_changes.filter_map(|m| Some((m.configured.clone(), m.old.clone()?)));
        self.durable.proven.extend(old.collect::<Vec<_>>());
        self.durable.unproven.clear();
        self.set_fault(self.remaining_fault(true), now, entries);
        let back = match but {
            None => "the images that ran before are back and well".to_owned(),
            Some(but) => format!("the images that ran before are back, but {but}"),
        };
        let also = self.durable.deployment.as_ref().map(Deployment::and_recreated).unwrap_or_default();
        let message = format!("{}; {back}{also}", self.what_failed(&failure));
        let entry = self.ending(Kind::ROLLED_BACK, Level::Warning, message, &failure, output, now);
        entries.push(entry);
    }

    /// On probation somebody stopped the containers, took them away, or brought them to another image. The image
    /// may be good or bad: it is judged when it is found running again.
    fn probation_interfered(&mut self, how: &str, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let images = self.names_of_changed();
        let Some(deployment) = &mut self.durable.deployment else { return };
        let moved =
            deployment.image_changes.iter().filter_map(|m| Some((m.configured.clone(), m.new_id.clone()?)));
        self.durable.unproven.extend(moved);
        let old =
            deployment.image_changes.iter().filter_map(|m| Some((m.configured.clone(), m.old.clone()?)));
        self.durable.proven.extend(old);
        deployment.enter(Phase::Unpin, now);
        self.end(DeployOutcome::Inconclusive);
        let text = format!("the probation of {images} was broken off: {how}");
        self.set_fault(Some(Fault { text, from_check: false }), now, entries);
    }

    /// The same on the way back, where another image may also be what a tag named for a moment.
    fn rollback_interfered(&mut self, how: &str, now: Timestamp, entries: &mut Vec<AuditEntry>) {
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
            self.rolled_back(Some(how), now, entries);
        } else {
            self.stuck(&Failure::general(how), now, entries);
        }
    }

    /// Whether what fails on the way back says nothing against the old images: it is on none of them, or was as
    /// unwell before.
    fn is_no_worse(&self, failure: &Failure) -> bool {
        let services = self.containers.iter().flatten().filter(|c| c.id == failure.container_id);
        let was_ill = |service: &str| {
            let before = self.durable.deployment.iter().flat_map(|d| &d.before);
            before.filter(|was| was.compose_service == service).any(|was| was.running && !was.well)
        };
        failure.bystander || services.map(|c| c.compose_service.as_str()).any(was_ill)
    }

    /// What a failure is called before its end is told.
    fn what_failed(&self, failure: &Failure) -> String {
        let images = self.names_of_changed();
        if failure.by_compose {
            format!("{images} could not be brought up")
        } else {
            format!("{images} failed its probation")
        }
    }

    /// The way back failed its own probation.
    pub(super) fn stuck(&mut self, again: &Failure, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some((failure, mut output)) = self.decided(now) else { return };
        output.push_str(&format!("\n--- after going back ---\n{}\n{}", again.reason, again.facts));
        let why = format!("{}; after going back {}", failure.reason, again.reason);
        self.fail_for_good(&failure, &output, &why, now, entries);
    }

    pub(super) fn rollback_step_failed(&mut self, text: &str, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.attempt += 1;
        deployment.bring_up_alone();
        if deployment.attempt < ROLLBACK_ATTEMPTS {
            self.retry_at = Some(now + ROLLBACK_RETRY * 2_i32.saturating_pow(deployment.attempt - 1));
            return;
        }
        let Some((failure, output)) = self.decided(now) else { return };
        let why = format!("{}; going back failed: {text}", failure.reason);
        self.fail_for_good(&failure, &output, &why, now, entries);
    }

    /// Takes failure and black box out of the phase and goes on to the release.
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

    pub(super) fn fail_for_good(
        &mut self,
        failure: &Failure,
        output: &str,
        why: &str,
        now: Timestamp,
        entries: &mut Vec<AuditEntry>,
    ) {
        let mut back = "there is no way back";
        if let Some(deployment) = &mut self.durable.deployment {
            if deployment.can_roll_back() {
                back = "the way back failed too";
            }
            // What runs now must not be taken for something to go back to.
            for m in deployment.image_changes.iter().filter(|m| m.changes()) {
                self.durable.unproven.extend(m.new_id.clone().map(|id| (m.configured.clone(), id)));
                self.durable.proven.extend(m.old.clone().map(|old| (m.configured.clone(), old)));
            }
            deployment.enter(Phase::Unpin, now);
        }
        self.end(DeployOutcome::Failed);
        self.durable.totals.failures += 1;
        self.durable.rollback_failed = true;
        self.set_fault(self.remaining_fault(true), now, entries);
        let message = format!("{}, and {back}; someone must look at it", self.what_failed(failure));
        let output = format!("{output}\n--- what is there now ---\n{}", self.what_is_there());
        let mut entry = self.ending(Kind::ROLLBACK_FAILED, Level::Critical, message, failure, output, now);
        entry.reason = Some(why.to_owned());
        entries.push(entry);
    }

    /// The containers as they were seen last, one a line.
    fn what_is_there(&self) -> String {
        let line = |c: &Container| format!("{}: {}, {}\n", c.name, c.state.as_str(), c.config_image);
        self.containers.iter().flatten().map(line).collect()
    }

    /// The entry that ends a failed deployment, with the digests of the image that is to blame.
    pub(super) fn ending(
        &self,
        kind: Kind,
        level: Level,
        message: String,
        failure: &Failure,
        output: String,
        now: Timestamp,
    ) -> AuditEntry {
        let mut entry = self.entry(now, kind, level, message);
        if let Some(deployment) = &self.durable.deployment {
            let blamed = Reference::parse(&failure.image).ok();
            let changed = || deployment.image_changes.iter().filter(|m| m.changes());
            let of = changed().find(|m| Some(&m.reference) == blamed.as_ref()).or_else(|| changed().next());
            if let Some(m) = of {
                entry.old_digest = m.old_digest.as_ref().map(ToString::to_string);
                entry.new_digest = Some(m.digest.to_string());
            }
        }
        entry.container = some(&failure.container);
        entry.reason = Some(failure.reason.clone());
        entry.output = output;
        entry
    }

    pub(super) fn names_of_changed(&self) -> String {
        let changed =
            |d: &Deployment| d.image_changes.iter().filter(|m| m.changes()).cloned().collect::<Vec<_>>();
        self.durable.deployment.as_ref().map(|d| names(&changed(d))).unwrap_or_default()
    }

    pub(super) fn failed_redeploy(&self, now: Timestamp, why: &str) -> AuditEntry {
        let message = "the redeployment that was asked for failed";
        let mut entry = self.entry(now, Kind::FORCE_REDEPLOY_FAILED, Level::Error, message);
        entry.reason = Some(why.to_owned());
        entry
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

/// What a person needs to see of a container that failed, at most 8 KiB (the end counts).
fn black_box(failure: &Failure, compose: &str, log: &str) -> String {
    let mut text = failure.facts.clone();
    for (title, part) in [("compose", compose), ("last log lines", log)] {
        if !part.trim().is_empty() {
            text.push_str(&format!("--- {title} ---\n{}\n", part.trim_end()));
        }
    }
    crate::model::text::tail(&text, 8 * 1024).to_owned()
}
