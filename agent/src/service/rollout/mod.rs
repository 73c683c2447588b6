//! The rollout of images: fetched, brought up, proven, and rolled back where they fail (DECISIONS 4).
//!
//! ```text
//! pin_images ─► pull ─► start ─► probation ───────────────────────────────────► unpin   updated
//!      │          │       │          └─► diagnose ─► rollback ─► verify_rollback ─► unpin   rolled_back / rollback_failed
//!      │          │       └─ every old container still runs ─► restore_tags ──► unpin   errored
//!      └──────────┴───────────────────────────────────────────────────────────► unpin   errored, nothing changed
//! ```
//!
//! Where a newer tag is deployed, `write_tag` comes before `start`, and `rollback` and `restore_tags` put its line back first.
//!
//! Each step can be taken again, so a restart of the agent takes the step that the journal names.
//!
//! | file | what it holds |
//! |---|---|
//! | `plan.rs` | what a rollout is about, which never changes, and what there is to plan |
//! | `deployment.rs` | a plan that is being carried out, and what was learned on the way |
//! | `step.rs` | what each step does, and what its end leads to |
//! | `probation.rs` | whether new containers are proven |
//! | `tag.rs` | the line of the env file that holds the tag |
//! | `rollback.rs` | going back to the images that ran before |

pub mod deployment;
pub mod plan;
pub mod probation;
mod rollback;
pub mod step;
pub mod tag;

use jiff::Timestamp;

use crate::model::Container;

use super::action::OldImage;
use super::event::{Event, Fault, FaultCause, Updated};
use super::outcome::DeployOutcome;
use super::wording::names;
use super::{ENGINE_RETRY, INSPECT_INTERVAL, Service, restart_state, wording};
use plan::{Cause, ImageChange};
use probation::{Failure, Interference, Outcome};
use step::{Failed, Phase};

impl Service {
    /// What the probation of the new containers says.
    pub(super) fn probation_seen(&mut self, outcome: Outcome, now: Timestamp) {
        match outcome {
            Outcome::Wait { deadline } => self.inspect_at = Some((now + INSPECT_INTERVAL).min(deadline)),
            Outcome::Passed => self.passed(now),
            Outcome::Failed(failure) => self.failed(failure, String::new(), now),
            Outcome::Inconclusive(how) => self.probation_interfered(&how, now),
        }
    }

    /// The engine went away. It may have stopped containers on probation, which is not their fault: the project is
    /// brought up again, and the probation begins again.
    pub(super) fn interrupted(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let again = match deployment.phase.clone() {
            Phase::Probation { .. } => Phase::Start,
            Phase::VerifyRollback { failed, .. } => Phase::Rollback(failed),
            _ => return,
        };
        if !deployment.interrupt() {
            deployment.enter_attempt(again, deployment.attempt, now);
            self.retry_at = Some(now + ENGINE_RETRY);
        }
    }

    /// Gives up before anything was changed: the tags are restored, the fault is shown, the next check tries again.
    pub(super) fn abandon(&mut self, text: String, output: String, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let cause = deployment.plan().cause.clone();
        let next = match deployment.phase {
            Phase::Start | Phase::WriteTag => Phase::RestoreTags,
            _ => Phase::Unpin,
        };
        deployment.enter(next, now);
        self.end(DeployOutcome::Failed, false, now);
        match cause {
            Cause::Redeploy => self.redeploy_failed(text, output, now),
            // The healer's business, which tries again as after a restart.
            Cause::RecreateContainer { container } => {
                let restart = self.durable.restart_states.entry(container.clone()).or_default();
                let failed =
                    restart_state::restart_failed(restart, &self.config, &container, (&text, true), now);
                self.emit(failed, now);
            }
            _ => self.raise_fault(Some(Fault { text, from_check: false }), output, now),
        }
    }

    /// The redeployment that a person asked for failed.
    pub(super) fn redeploy_failed(&mut self, why: String, output: String, now: Timestamp) {
        self.emit(Event::RedeployFailed { why, container: String::new(), output }, now);
    }

    /// The new images failed: block them, in the same write as the decision to go back.
    pub(super) fn failed(&mut self, failure: Failure, output: String, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let blocked = deployment.changes().map(|m| (m.configured.clone(), m.digest.clone()));
        self.durable.blocked.extend(blocked);
        let changes: Vec<ImageChange> = deployment.changes().cloned().collect();
        let all = deployment.plan().image_changes.iter();
        let brought = all.filter_map(|m| {
            Some((m.configured.clone(), m.reference.clone(), deployment.new_ids.get(&m.configured)?.clone()))
        });
        let brought: Vec<_> = brought.collect();
        deployment.enter(Phase::Diagnose(Failed { failure, output }), now);
        self.note_failed_tags(&changes);
        for (image, reference, id) in brought {
            if self.durable.proven.get(&image).is_none_or(|proven| proven.id != id) {
                self.note_deployed(&image, &id, false, &reference);
            }
        }
    }

    /// A recreated container starts with a clean restart history.
    fn forget_replaced(&mut self) {
        let Some(deployment) = &self.durable.deployment else { return };
        let containers = self.containers.as_deref().unwrap_or_default();
        let kept = |name: &str| {
            let mut of_name = containers.iter().filter(|container| container.name == name);
            of_name.any(|container| deployment.plan().before.iter().any(|was| was.id == container.id))
        };
        self.durable.restart_states.retain(|name, _| kept(name));
    }

    /// The new images are proven.
    pub(super) fn passed(&mut self, now: Timestamp) {
        self.forget_replaced();
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.enter(Phase::Unpin, now);
        let deployment = deployment.clone();
        let mut updated = false;
        for change in deployment.plan().image_changes.clone() {
            let new = deployment.new_ids.get(&change.configured);
            let used = self.containers.as_ref().is_none_or(|all| all.iter().any(|c| new == Some(&c.image)));
            let image = change.configured.clone();
            if let (Some(id), true) = (new.cloned(), used) {
                self.note_deployed(&image, &id, true, &change.reference);
                let source = Some(change.source(&change.digest));
                self.durable.proven.insert(image.clone(), OldImage { id, source });
                self.note_proof(&image, &change.digest, now);
            }
            self.durable.not_found.remove(&image);
            self.lift_block(&image, change.reference.tag.as_deref());
            self.durable.unproven.remove(&image);
            self.durable.published.insert(image, change.digest.clone());
            if change.old_digest.as_ref() == Some(&change.digest) {
                continue;
            }
            updated |= used;
            let is_same = change.old.as_ref().map(|old| &old.id) == new;
            let left_behind = self.left_behind_by(&change);
            let labels = deployment.labels.get(&change.configured).cloned().unwrap_or_default();
            let also_recreated = deployment.also_recreated.clone();
            let took = self.time_since_found(&change, deployment.begun, now);
            self.emit(
                Event::Updated(Updated { change, is_same, labels, used, took, also_recreated, left_behind }),
                now,
            );
        }
        match deployment.plan().cause {
            Cause::Redeploy => {
                let kept = deployment.plan().kept.clone();
                self.emit(Event::Redeployed { kept }, now);
            }
            Cause::RetryRollback => self.emit(Event::RollbackRetried, now),
            _ => {}
        }
        if updated {
            self.remove_old_images_soon();
        }
        self.end(DeployOutcome::Succeeded, updated, now);
        self.durable.rollback_failed = false;
        self.files_applied();
        self.set_fault(self.remaining_fault(true), now);
    }

    /// Compose has brought up what the plan says: where that was all of the project, no edit of the files is left.
    pub(super) fn files_applied(&mut self) {
        if self.durable.deployment.as_ref().is_some_and(|deployment| deployment.is_whole()) {
            self.durable.files_pending = false;
        }
    }

    /// Names of the containers on the old image that compose has not brought along.
    fn left_behind_by(&self, change: &ImageChange) -> Vec<String> {
        let is_left = |c: &&Container| self.durable.left_behind.contains(&c.id) && change.is_of_container(c);
        self.containers().iter().filter(is_left).map(|c| c.name.clone()).collect()
    }

    /// Somebody stopped, removed or replaced containers on probation. The image may be good or bad: it is proven when it
    /// is found running again.
    fn probation_interfered(&mut self, how: &Interference, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let images = names(deployment.changes());
        for change in &deployment.plan().image_changes {
            let name = || change.configured.clone();
            let new = deployment.new_ids.get(&change.configured);
            self.durable.unproven.extend(new.map(|id| (name(), id.clone())));
            self.durable.proven.extend(change.old.clone().map(|old| (name(), old)));
        }
        deployment.enter(Phase::Unpin, now);
        self.end(DeployOutcome::Inconclusive, false, now);
        let text = wording::fault(&FaultCause::ProbationInterrupted { images: &images, how });
        self.set_fault(Some(Fault { text, from_check: false }), now);
    }
}
