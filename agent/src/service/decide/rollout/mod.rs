//! Decisions of a rollout: what a deployment does next, from the results of its steps (DECISIONS 4). The values are in
//! `rollout/`. How a deployment begins and ends is the same on compose and in a swarm.
//!
//! | file | what it decides |
//! |---|---|
//! | `plan.rs`, `plan_swarm.rs` | the plan of a deployment, on compose and in a swarm |
//! | `step.rs` | the next phase after each step |
//! | `swarm.rs` | the same in a swarm, and what its tasks prove |
//! | `probe.rs` | when the containers on probation are probed |
//! | `handover.rs` | when the new containers take over from the old ones, or give way to them |
//! | `snapshot.rs` | which data is copied, put back and removed |
//! | `rollback.rs` | the rollback to the previous images |

mod handover;
mod plan;
mod plan_swarm;
mod probe;
mod rollback;
mod snapshot;
mod step;
mod swarm;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_common::backoff;
use evenkeel_common::wire::DeployOutcome;
use jiff::Timestamp;

use crate::model::image::{Digest, ImageId};
use crate::model::{Container, HookEvent, State};
use crate::service::compare::Comparison;
use crate::service::decide::rollout::snapshot::delay_after_copy;
use crate::service::event::{Event, Fault, FaultCause, Updated};
use crate::service::health::assess::Trouble;
use crate::service::health::restart_state;
use crate::service::input::StepResult;
use crate::service::observation::{FilesApplied, ImageView, Observation};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::handover::OldContainers;
use crate::service::rollout::plan::{Cause, ImageChange, Postponed};
use crate::service::rollout::probation::{Failed, Failure, Interference, Outcome, Reason};
use crate::service::rollout::step::Phase;
use crate::service::rollout::tag::LineState;
use crate::service::wording::names;
use crate::service::{Durable, ENGINE_RETRY, INSPECT_INTERVAL, Service, wording};

/// Initial backoff after an update that failed for a reason that is not its image's; it doubles each time, up to
/// [`LONGEST_POSTPONE`].
const POSTPONE: Duration = Duration::from_mins(10);
const LONGEST_POSTPONE: Duration = Duration::from_hours(6);

/// How often an update that was abandoned is repeated with the next check: most failures are a moment's.
const PROMPT_TRIES: u32 = 2;

/// How long an update waits that has failed this often before a container was changed.
fn delay_after(tries: u32) -> Duration {
    match tries.saturating_sub(PROMPT_TRIES) {
        0 => Duration::ZERO,
        delayed => backoff::after(delayed, POSTPONE, LONGEST_POSTPONE),
    }
}

impl Service {
    /// Acts on the outcome of a probation in this phase.
    pub(in crate::service) fn probation_judged(&mut self, phase: Phase, outcome: Outcome, now: Timestamp) {
        match phase {
            Phase::VerifyRollback { failed, .. } => self.rollback_seen(failed, outcome, now),
            Phase::Soak { .. } => self.soak_seen(outcome, now),
            _ => self.probation_seen(outcome, now),
        }
    }

    /// Acts on the outcome of an inspection during the probation of the new containers.
    fn probation_seen(&mut self, outcome: Outcome, now: Timestamp) {
        match outcome {
            Outcome::Wait { deadline } => self.inspections.postpone((now + INSPECT_INTERVAL).min(deadline)),
            Outcome::Passed if self.is_handing_over() => self.proven_beside(now),
            Outcome::Passed => self.passed(now),
            Outcome::Failed(failure) => self.failed(Failed::new(failure, String::new()), now),
            Outcome::Inconclusive(how) if self.is_handing_over() => self.handover_interfered(how, now),
            Outcome::Inconclusive(how) => self.probation_interfered(&how, now),
        }
    }

    fn is_handing_over(&self) -> bool {
        self.durable.deployment.as_ref().is_some_and(|deployment| deployment.plan().is_handover())
    }

    /// Handles a loss of the engine that the agent has seen. If a person has stopped a container on probation before, that
    /// ends the probation, as it does without the loss.
    pub(in crate::service) fn interrupted(&mut self, now: Timestamp) {
        let phase = self.durable.deployment.as_ref().map(|deployment| deployment.phase.clone());
        match (phase, self.stopped_on_probation()) {
            (Some(phase), Some(container)) => {
                let how = Interference::Stopped { container };
                self.probation_judged(phase, Outcome::Inconclusive(how), now);
            }
            _ => self.starts_over(now),
        }
    }

    /// Handles a restart of machine or engine. It may have stopped containers on probation, which says nothing about their
    /// images: the project is brought up again, and the probation starts over.
    pub(in crate::service) fn starts_over(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let again = match deployment.phase.clone() {
            Phase::Probation { .. } => Phase::Start,
            // The old containers may have been started, and the new ones stopped.
            Phase::Soak { .. } => Phase::Retire,
            Phase::VerifyRollback { failed, .. } => {
                // The handover may never have touched the old ones, which are down now as well.
                if deployment.plan().is_handover() && deployment.handover.old == OldContainers::Serving {
                    deployment.handover.old = OldContainers::Retired;
                }
                deployment.way_back(failed)
            }
            // What it has brought up may be down.
            Phase::Rollback(_) => return deployment.leave_tied(),
            // Tasks on this engine have ended with it.
            Phase::Converge { .. } | Phase::VerifyTasks { .. } => {
                if let Some(watch) = deployment.phase.watch_mut() {
                    watch.engine_away = true;
                }
                return;
            }
            // Their steps are repeated, and start the new ones.
            Phase::Drain | Phase::Retire => {
                deployment.interrupt();
                return;
            }
            _ => return,
        };
        if !deployment.interrupt() {
            deployment.enter_attempt(again, deployment.attempt, now);
            self.steps.retry_at = Some(now + ENGINE_RETRY);
        }
    }

    /// The name of a container on probation that a person has stopped, or its ID if it has not been inspected since the start.
    fn stopped_on_probation(&self) -> Option<String> {
        let Durable { deployment, stops, engine_stops, .. } = &self.durable;
        let id = deployment.as_ref()?.phase.probation()?.stopped(stops, engine_stops)?;
        let known = self.containers().iter().find(|container| container.id == id);
        Some(known.map_or_else(|| id.to_owned(), |container| container.name.clone()))
    }

    /// The events of a probation were missing for a while, but the engine has kept running: the probation starts over with
    /// the same containers, and with what the events that are read again tell.
    pub(in crate::service) fn probation_continues(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let may_start_over = deployment.phase.is_probation() && !deployment.interrupt();
        if let (Some(probation), true) = (deployment.phase.probation_mut(), may_start_over) {
            probation.start_over(now);
        }
    }

    /// Gives up before any container was changed: restores the tags and reports a fault. The next check tries again.
    pub(in crate::service) fn abandon(&mut self, text: String, output: String, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.has_earlier_data() {
            let failure = Failure { reason: Reason::Words(text), by_compose: true, ..Failure::default() };
            return self.failed(Failed::new(failure, output), now);
        }
        let cause = deployment.plan().cause.clone();
        let next = match deployment.phase {
            // Whoever has made the containers anew may have moved the tags before.
            Phase::Start if deployment.must_look && deployment.line != LineState::Written => Phase::Unpin,
            Phase::Start
            | Phase::WriteTag
            | Phase::Quiesce
            | Phase::Copy
            | Phase::Spread
            | Phase::Abort { .. } => Phase::RestoreTags,
            _ => Phase::Unpin,
        };
        deployment.enter(next, now);
        self.end(DeployOutcome::Failed, false, now);
        match cause {
            Cause::Redeploy => self.redeploy_failed(text, output, now),
            Cause::GoBack(back) => self.not_gone_back(back, text, output, now),
            // Left to the healer, which retries as after a failed restart.
            Cause::RecreateContainer { container } => {
                let restart = self.durable.restart_states.entry(container.clone()).or_default();
                let failed = restart_state::restart_failed(
                    restart,
                    &self.config,
                    &container,
                    (Trouble::Words(text.clone()), true),
                    now,
                );
                self.emit(failed, now);
            }
            _ => self.raise_fault(Some(Fault { text, from_check: false }), output, now),
        }
    }

    /// Gives up before any container was changed, on what the next check would find again.
    pub(in crate::service) fn abandon_and_wait(&mut self, why: String, output: String, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let all = deployment.plan().image_changes.clone();
        self.abandon_for_now(&all, why, output, now);
    }

    /// Gives up before any container was changed, because of these images. Their update is postponed: each attempt runs the
    /// hook `before`, may move as much data as the first, and is an outage if the data is copied. The others are tried without
    /// them.
    fn abandon_for_now(&mut self, blamed: &[ImageChange], why: String, output: String, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        if blamed.is_empty() || deployment.plan().cause != Cause::Update {
            return self.abandon(why, output, now);
        }
        let new_ids = deployment.new_ids.clone();
        // The service was not stopped again for what was copied for an earlier attempt.
        let is_taken = deployment.plan().snapshot.as_ref().is_some_and(|plan| plan.taken.is_some());
        let is_outage = deployment.snapshot.at.is_some() && !is_taken;
        if is_outage {
            // Each outage is told as such, even if the reason is that of the last one.
            self.durable.fault = None;
        }
        self.note_tried(&new_ids);
        let delay = if is_outage { delay_after_copy } else { delay_after };
        self.postpone(blamed, why.clone(), delay, now);
        let text = self.postponed_fault().map_or(why, |fault| fault.text);
        self.abandon(text, output, now);
    }

    /// Gives up because the hook `before` has failed. It is tried once a cycle, which delays nothing that fails after it. The
    /// failure is remembered nevertheless: if a gate holds the update by then, nothing has got better.
    pub(in crate::service) fn hook_before_failed(&mut self, why: String, output: String, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        if deployment.plan().cause != Cause::Update {
            return self.abandon(why, output, now);
        }
        let changes = deployment.plan().image_changes.clone();
        // What has failed of a part of these images is not got over.
        let of_each = changes.iter().map(|change| self.tries_of(std::slice::from_ref(change)));
        let tries = of_each.max().unwrap_or_default();
        self.note_failure(&changes, why.clone(), tries, now);
        let text = self.postponed_fault().map_or(why, |fault| fault.text);
        self.abandon(text, output, now);
    }

    /// Gives up on the image that could not be pulled, and on those that move to a newer tag with it. If it is not known which,
    /// it is all of them.
    fn not_pulled(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let writes_tag = deployment.plan().tag.as_ref().is_some_and(|tag| tag.line.is_some());
        let mut blamed = deployment.plan().image_changes.clone();
        let mut lacking = None;
        let mut new_ids = BTreeMap::new();
        let why = match result {
            StepResult::PullFailed { image, why, lacks_platform, pulled } => {
                new_ids.extend(pulled);
                blamed.retain(|change| change.configured == image);
                let lacks = |change: &&ImageChange| lacks_platform && writes_tag && self.moves(change);
                lacking = blamed.first().filter(lacks).map(|change| (change.clone(), why.clone()));
                if blamed.iter().any(|change| self.moves(change)) {
                    blamed = self.moving_changes();
                }
                let is_only = self.config.images.len() == 1;
                if is_only { why } else { wording::of_image(&image, &why) }
            }
            other => other.failure(),
        };
        self.note_tried(&new_ids);
        self.abandon_for_now(&blamed, why, String::new(), now);
        let is_lasting = |digest: &Digest| {
            self.durable.postponed.iter().any(|one| one.tries > PROMPT_TRIES && one.is_of(&[digest]))
        };
        if let Some((change, why)) = lacking.filter(|(change, _)| is_lasting(&change.digest)) {
            self.pass_over_tag(&change, &why, now);
        }
    }

    /// Whether an image moves to another tag of the tag variable.
    fn moves(&self, change: &ImageChange) -> bool {
        change.from.is_some() && self.config.is_of_variable(&change.configured)
    }

    /// The new images of the deployment that move to another tag of the tag variable: together or not at all.
    fn moving_changes(&self) -> Vec<ImageChange> {
        let changes = self.durable.deployment.iter().flat_map(|deployment| &deployment.plan().image_changes);
        changes.filter(|change| change.brings_other()).filter(|change| self.moves(change)).cloned().collect()
    }

    /// An update that failed for a reason that is not its image's is tried again, after a delay that depends on how often it
    /// was tried. Its images are not blocked.
    fn postpone(
        &mut self,
        changes: &[ImageChange],
        why: String,
        delay: impl Fn(u32) -> Duration,
        now: Timestamp,
    ) {
        let tries = self.tries_of(changes).saturating_add(1);
        self.note_failure(changes, why, tries, now + delay(tries));
    }

    /// How often the update of these images was tried, and has failed for a reason that is not theirs.
    fn tries_of(&self, changes: &[ImageChange]) -> u32 {
        let digests: Vec<&Digest> = changes.iter().map(|change| &change.digest).collect();
        self.durable.postponed.iter().find(|one| one.is_of(&digests)).map_or(0, |one| one.tries)
    }

    /// Remembers that the update of these images has failed, and is tried again.
    fn note_failure(&mut self, changes: &[ImageChange], why: String, tries: u32, until: Timestamp) {
        let digests: Vec<&Digest> = changes.iter().map(|change| &change.digest).collect();
        let Some((first, others)) = digests.split_first() else { return };
        let postponed = Postponed {
            digest: (*first).clone(),
            others: others.iter().map(|digest| (*digest).clone()).collect(),
            until,
            tries,
            why,
        };
        // In its place, so that the fault that names all of them stays the same.
        if let Some(known) = self.durable.postponed.iter_mut().find(|one| one.is_of(&digests)) {
            *known = postponed;
            return;
        }
        // What has failed of a part of these images was got over since.
        self.durable.postponed.retain(|one| !postponed.covers(one));
        self.durable.postponed.push(postponed);
        // At most one per image is in force; the oldest are of digests that are gone.
        if self.durable.postponed.len() > self.config.images.len() {
            self.durable.postponed.remove(0);
        }
    }

    /// The fault of the updates that are postponed.
    pub(in crate::service) fn postponed_fault(&self) -> Option<Fault> {
        let texts = self.durable.postponed.iter().map(|one| one.why.as_str());
        let mut texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
        let mut seen = BTreeSet::new();
        texts.retain(|text| seen.insert(*text));
        (!texts.is_empty()).then(|| Fault { text: texts.join("; "), from_check: false })
    }

    /// The same, while one of them does not begin: it is not time for its next attempt, or a gate holds it.
    pub(in crate::service) fn waiting_fault(&self, now: Timestamp) -> Option<Fault> {
        let may_begin = self.config.auto_update && self.can_check();
        let waits = || self.next_attempt(now).is_some() || self.holds_failed(&self.seen_decisions(now));
        self.postponed_fault().filter(|_| may_begin && waits())
    }

    /// When the next of the updates that are postponed is tried again.
    pub(in crate::service) fn next_attempt(&self, now: Timestamp) -> Option<Timestamp> {
        self.durable.postponed.iter().map(|one| one.until).filter(|until| now < *until).min()
    }

    /// Forgets the failures of digests that the registries no longer have under the tags that are followed, that run, or that
    /// are blocked: these are not tried again.
    pub(in crate::service) fn follow_postponed(&mut self, observation: &Observation) {
        if !observation.unanswered.is_empty() {
            return;
        }
        let is_open = |view: &&ImageView| {
            !matches!(self.compared(view, observation), Comparison::UpToDate | Comparison::Blocked)
        };
        let open = observation.images.iter().filter(is_open);
        let remotes: Vec<Digest> = open.filter_map(|view| view.remote.clone()).collect();
        let before = self.durable.postponed.len();
        self.durable.postponed.retain(|one| remotes.iter().any(|remote| one.is_of(&[remote])));
        if self.durable.postponed.len() < before {
            self.remove_old_images_soon();
        }
    }

    /// Reports that a manual redeployment failed.
    pub(in crate::service) fn redeploy_failed(&mut self, why: String, output: String, now: Timestamp) {
        self.emit(Event::RedeployFailed { why, container: String::new(), output }, now);
    }

    /// Blocks the failed images, in the same write as the decision to roll back. The other images of the deployment are
    /// rolled back with them, and tried again without them. If the machine or the swarm's nodes have failed, all are tried again.
    pub(in crate::service) fn failed(&mut self, failed: Failed, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let changes: Vec<ImageChange> = deployment.blamed(&failed.failure).cloned().collect();
        let (by_node, reason) = (failed.by_node, wording::rejection(&failed.failure.reason));
        let new_ids = deployment.new_ids.clone();
        let is_going_back = matches!(deployment.plan().cause, Cause::GoBack(_));
        deployment.enter(Phase::Diagnose(failed), now);
        if by_node && !is_going_back {
            self.note_tried(&new_ids);
            return self.not_run(changes, &reason, now);
        }
        // An image that was proven before, and that a person or a later failure called back, is not blocked.
        if !is_going_back {
            for change in &changes {
                self.durable.images.of(&change.configured).block(&change.digest);
            }
            self.note_failed_tags(&changes);
        }
        self.note_tried(&new_ids);
    }

    /// This machine or the nodes of the swarm could not run these images: their update is tried again, and that of the others
    /// without them.
    fn not_run(&mut self, blamed: Vec<ImageChange>, reason: &str, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let is_in_swarm = deployment.plan().swarm.is_some();
        let changes = if is_in_swarm {
            deployment.plan().image_changes.clone()
        } else if blamed.iter().any(|change| self.moves(change)) {
            self.moving_changes()
        } else {
            blamed
        };
        let is_tried = self.config.auto_update && !is_in_swarm;
        let why = if is_tried { wording::by_machine(&names(&changes), reason) } else { String::new() };
        self.postpone(&changes, why, |tries| backoff::after(tries, POSTPONE, LONGEST_POSTPONE), now);
    }

    /// Notes new images of a deployment that has not proven them, so that they are removed once nothing needs them.
    fn note_tried(&mut self, new_ids: &BTreeMap<String, ImageId>) {
        let Some(deployment) = &self.durable.deployment else { return };
        let is_going_back = matches!(deployment.plan().cause, Cause::GoBack(_));
        for change in &deployment.plan().image_changes {
            let Some(id) = new_ids.get(&change.configured) else { continue };
            let memory = self.durable.images.of(&change.configured);
            let mut known = change.old.iter().chain(&memory.proven);
            if known.any(|image| image.id == *id) {
                continue;
            }
            // What was proven before and is not blocked now stays one of the images that are kept, in its place.
            if !is_going_back && !memory.was_proven(id) {
                memory.note_deployed(id, false, &change.reference);
            } else if memory.deployed.iter().all(|known| known.id != *id || !known.proven) {
                memory.note_deployed_earlier(id, &change.reference);
            }
        }
    }

    /// Drops the restart history of recreated containers.
    fn forget_replaced(&mut self) {
        let Some(deployment) = &self.durable.deployment else { return };
        let containers = self.known.containers.as_deref().unwrap_or_default();
        let kept = |name: &str| {
            let mut of_name = containers.iter().filter(|container| container.name == name);
            of_name.any(|container| deployment.plan().before.iter().any(|was| was.id == container.id))
        };
        self.durable.restart_states.retain(|name, _| kept(name));
    }

    /// Ends the rollout after the new images have passed their probation.
    pub(in crate::service) fn passed(&mut self, now: Timestamp) {
        self.forget_replaced();
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.enter(Phase::Unpin, now);
        let deployment = deployment.clone();
        let mut updated = false;
        for change in deployment.plan().image_changes.clone() {
            let new = deployment.new_id(&change);
            let containers = self.known.containers.as_ref();
            let runs = |c: &Container| new.as_ref() == Some(&c.image) && c.state != State::Paused;
            let used = containers.is_none_or(|all| all.iter().any(runs));
            if let Some(id) = new {
                self.remember_image(&deployment, &change, &id, used, now);
            }
            let memory = self.durable.images.of(&change.configured);
            memory.not_found = None;
            memory.published = Some(change.digest.clone());
            if deployment.plan().is_used(&change) {
                self.remember_in_use(&change);
            } else {
                memory.pulled = Some(change.digest.clone());
            }
            if !change.brings_other() {
                continue;
            }
            if matches!(deployment.plan().cause, Cause::GoBack(_)) {
                continue;
            }
            updated |= used;
            let updated = self.updated_event(&deployment, change, used, now);
            self.emit(Event::Updated(updated), now);
        }
        let mut outcome = DeployOutcome::Succeeded;
        match &deployment.plan().cause {
            Cause::Redeploy => {
                let (kept, held_back) = (deployment.plan().kept.clone(), deployment.held_back.clone());
                self.emit(Event::Redeployed { kept, held_back }, now);
            }
            Cause::RetryRollback => {
                self.proven_run_again();
                self.emit(Event::RollbackRetried, now);
            }
            Cause::GoBack(back) => {
                self.gone_back(back, now);
                self.forget_pending_data();
                outcome = DeployOutcome::RolledBack;
                if let Some(deployment) = &mut self.durable.deployment {
                    deployment.run_last(HookEvent::RolledBack);
                }
            }
            _ => {}
        }
        if updated {
            self.forget_pending_data();
            self.begin_late_watch(&deployment.plan().image_changes, now);
            self.remove_old_images_soon();
            if let Some(deployment) = &mut self.durable.deployment {
                deployment.run_last(HookEvent::Updated);
            }
        }
        self.end(outcome, updated, now);
        self.durable.rollback_failed &= self.rollback_stands();
        let is_deployed = |one: &Postponed| {
            deployment.plan().image_changes.iter().any(|change| one.is_of(&[&change.digest]))
        };
        self.durable.postponed.retain(|one| !is_deployed(one));
        self.files_applied(now);
        self.set_fault(self.remaining_fault(true), now);
    }

    /// Remembers an image that has passed its probation, or was only pulled because nothing uses it.
    fn remember_image(
        &mut self,
        deployment: &Deployment,
        change: &ImageChange,
        id: &ImageId,
        used: bool,
        now: Timestamp,
    ) {
        let image = &change.configured;
        if used {
            self.remember_proven(change, id.clone(), now);
        }
        // The nodes of a swarm have its images, and nobody goes back to one by hand.
        if deployment.plan().swarm.is_some() {
            return;
        }
        if !used {
            self.durable.images.of(image).note_pulled(id);
            return self.remove_old_images_soon();
        }
        self.durable.images.of(image).note_deployed(id, true, &change.reference);
        let version = deployment.labels.get(image).and_then(|change| change.new.version.clone());
        self.note_history(change, id, version, now);
    }

    /// What is told of an image that has passed its probation.
    fn updated_event(
        &self,
        deployment: &Deployment,
        change: ImageChange,
        used: bool,
        now: Timestamp,
    ) -> Updated {
        let new = deployment.new_id(&change);
        let is_same = change.old.as_ref().map(|old| &old.id) == new.as_ref();
        let handover = deployment.plan().handover.as_ref().filter(|_| used && !is_same);
        Updated {
            is_same,
            labels: deployment.labels.get(&change.configured).cloned().unwrap_or_default(),
            used,
            took: self.time_since_found(&change, deployment.begun, now),
            also_recreated: deployment.also_recreated.clone(),
            left_behind: self.left_behind_by(deployment, &change),
            stopped_first: handover.map(|handover| handover.obstacles.clone()).unwrap_or_default(),
            problems: deployment.handover.problems.clone(),
            change,
        }
    }

    /// Notes the files as applied if compose has brought up the whole project, which applies every edit.
    pub(in crate::service) fn files_applied(&mut self, now: Timestamp) {
        if self.durable.deployment.as_ref().is_some_and(|deployment| deployment.applies_whole_project()) {
            self.durable.files_pending = false;
            let hash = self.durable.files_hash.clone();
            self.durable.files_applied = hash.map(|hash| FilesApplied { hash, at: now });
        }
    }

    /// Returns the names of the containers that compose has left on the old image. What a handover has left is told by itself.
    fn left_behind_by(&self, deployment: &Deployment, change: &ImageChange) -> Vec<String> {
        let is_left = |c: &&Container| {
            self.durable.left_behind.contains(&c.id)
                && change.is_of_container(c)
                && !deployment.plan().hands_over(&c.compose_service)
        };
        self.containers().iter().filter(is_left).map(|c| c.name.clone()).collect()
    }

    /// Ends a rollout whose containers on probation were stopped, paused, removed or replaced by someone. The image may
    /// be good or bad: it goes through another probation once it is found running.
    fn probation_interfered(&mut self, how: &Interference, now: Timestamp) {
        self.left_unproven(self.interference_text(how), now);
    }

    /// The words for what somebody has done to the containers on probation.
    pub(in crate::service) fn interference_text(&self, how: &Interference) -> String {
        let changes = self.durable.deployment.iter().flat_map(|deployment| deployment.changes());
        wording::fault(&FaultCause::ProbationInterrupted { images: &names(changes), how })
    }

    /// Ends a rollout of images that are neither proven nor rejected. Those that ran before as well are what they were.
    pub(in crate::service) fn left_unproven(&mut self, text: String, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        // A person may go back to what ran before, but not in a swarm.
        if deployment.plan().swarm.is_none() {
            let changes: Vec<ImageChange> = deployment.changes().cloned().collect();
            let new_ids = deployment.new_ids.clone();
            for change in &changes {
                self.note_earlier(change, now);
            }
            self.note_tried(&new_ids);
        }
        let Some(deployment) = &mut self.durable.deployment else { return };
        for change in deployment.changes() {
            let new = deployment.new_id(change);
            self.durable.images.of(&change.configured).note_unproven(new.as_ref(), change.old.as_ref());
        }
        deployment.enter(Phase::Unpin, now);
        self.end(DeployOutcome::Inconclusive, false, now);
        self.set_fault(Some(Fault { text, from_check: false }), now);
    }
}

impl StepResult {
    /// The error text of a step that did not end as expected.
    pub(super) fn failure(self) -> String {
        match self {
            Self::Failed(text) | Self::EngineAway(text) | Self::PullFailed { why: text, .. } => text,
            Self::Started { up: Err(error), .. } => error.to_string(),
            other => wording::unexpected_result(&other),
        }
    }
}
