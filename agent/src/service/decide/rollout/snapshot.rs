//! The snapshot of a deployment: planned, taken, put back, expired.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_common::backoff;
use jiff::{SignedDuration, Timestamp};

use crate::model::image::{ImageId, Reference};
use crate::model::snapshot::{Copied, CopyMade, FolderId, KeptFolder, Mounter, Source};
use crate::model::{Container, RestartPolicy};
use crate::service::action::SnapshotStep;
use crate::service::event::{Event, Fault, Note, RollbackProblem};
use crate::service::gates::candidate::SnapshotSeen;
use crate::service::images::{Images, NotCopied, OldImage};
use crate::service::input::{NotStarted, SnapshotStepped, StepResult};
use crate::service::observation::{ImageView, Observation};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::{Cause, ImageChange};
use crate::service::rollout::probation::{Failed, Failure, Reason};
use crate::service::rollout::snapshot::{
    DataBack, EarlierPlan, KeptKind, KeptSnapshot, PendingData, SnapshotPlan,
};
use crate::service::rollout::step::Phase;
use crate::service::state::{LeftStopped, WhyLeft};
use crate::service::{ROLLBACK_ATTEMPTS, Service, rollback_pause, wording};

/// How often a copy is tried: the service is down, and what has failed, say for lack of room, may have taken minutes.
const COPY_ATTEMPTS: u32 = 2;
/// How many copies may be made in vain because something has started that mounts the data, and how many may be cut short. What
/// a restart of the machine has started again makes the next copy one in vain, and is not counted twice.
const MAX_DISCARDED: u32 = 3;
/// How long images wait whose data was copied, or was to be, and that were not brought up: the first time and at most.
const COPY_AGAIN: Duration = Duration::from_hours(1);
const LONGEST_COPY_AGAIN: Duration = Duration::from_hours(24);

/// How often it is tried whether another service still may put back the data, and for how long. Nothing is stopped meanwhile.
const WAIT_FOR_DATA: Duration = Duration::from_secs(30);
const LONGEST_WAIT_FOR_DATA: SignedDuration = SignedDuration::from_mins(10);

/// How long an update waits that has failed this often, and for which the service was down.
pub(super) fn delay_after_copy(tries: u32) -> Duration {
    backoff::after(tries, COPY_AGAIN, LONGEST_COPY_AGAIN)
}

/// The names of containers that stay stopped, and whether the engine may start each at its own next start: with some restart
/// policies it also starts what was stopped, but not with `unless-stopped`.
pub(super) fn with_engine_starts(stopped: &[Mounter], containers: &[Container]) -> Vec<(String, bool)> {
    let starts = |c: &Container| matches!(c.restart_policy, RestartPolicy::Always | RestartPolicy::OnFailure);
    let is_started = |one: &Mounter| containers.iter().any(|c| c.id == one.id && starts(c));
    stopped.iter().map(|one| (one.name.clone(), is_started(one))).collect()
}

impl Service {
    /// Plans the snapshot of a deployment of other images; the reason if the data can't be copied.
    pub(in crate::service) fn plan_snapshot(
        &self,
        cause: &Cause,
        changes: &[ImageChange],
        now: Timestamp,
    ) -> Result<Option<SnapshotPlan>, String> {
        let earlier = match cause {
            Cause::GoBack(back) => back.data.as_ref(),
            _ => None,
        };
        let rules = self.config.update.as_ref().and_then(|update| update.snapshot.as_ref());
        let Some(rules) = rules.filter(|_| cause.is_about_images() && *cause != Cause::RetryRollback) else {
            return match earlier {
                None => Ok(None),
                Some(_) => Err("update.snapshot is not configured".to_owned()),
            };
        };
        // What an unproven image has written since is not the data of the one that a rollback would restore.
        let restores = |(image, id): &(String, ImageId)| {
            let mut of_image = changes.iter().filter(|change| change.configured == *image);
            of_image.any(|change| change.old.as_ref().is_some_and(|old| old.id == *id))
        };
        let mut pending = self.data_pending().filter(|(_, pending)| pending.old.iter().any(restores));
        if let (Some((kept, pending)), false) = (pending.next(), matches!(cause, Cause::GoBack(_))) {
            return Ok(Some(kept.planned_again(pending, rules.keep)));
        }
        let seen = self.known.observation.as_ref().and_then(|seen| seen.snapshot.clone());
        let seen = match seen {
            Some(seen) => seen?,
            // The check has found no other image.
            None if *cause == Cause::Redeploy => return Ok(None),
            None => return Err("the data was not looked at yet".to_owned()),
        };
        let spares = !matches!(cause, Cause::GoBack(_));
        if let Some(why) = wording::snapshot::lacks_room(&seen, rules, spares) {
            return Err(why);
        }
        let id = format!("{}-{}", self.config.name, now.strftime("%Y%m%dT%H%M%SZ"));
        let id: String = id
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
            .collect();
        let hooks = self.config.update.as_ref().and_then(|update| update.hooks.as_ref());
        let saves = !matches!(cause, Cause::GoBack(_)) && hooks.is_some_and(|hooks| !hooks.before.is_empty());
        let dump = saves.then(|| seen.dumps.join(&id));
        let earlier = match (earlier, &seen.earlier) {
            (None, _) => None,
            (Some(wanted), Some((found, identities))) if wanted == found => {
                let folder = |(source, identity): (&Source, &FolderId)| {
                    let kept = found.folders.iter().find(|kept| kept.of == source.of)?;
                    Some((kept.folder.clone(), *identity))
                };
                let folders = seen.sources.iter().zip(identities).filter_map(folder).collect();
                let bytes = seen.rooms.iter().map(|(_, room)| room.bytes).sum();
                Some(EarlierPlan { at: found.at, folders, bytes })
            }
            (Some(_), _) => return Err("the earlier data was not looked at".to_owned()),
        };
        Ok(Some(SnapshotPlan { id, sources: seen.sources, keep: rules.keep, dump, earlier, taken: None }))
    }

    /// What an update of an image copies. What was copied for an earlier attempt needs no room.
    pub(in crate::service) fn snapshot_needed(
        &self,
        view: &ImageView,
        observation: &Observation,
    ) -> Option<Result<SnapshotSeen, String>> {
        let is_restored = |(image, id): &(String, ImageId)| {
            *image == view.configured && self.is_left_in(Some(view), image, id)
        };
        let mut pending = self.durable.snapshots.iter().filter_map(|kept| kept.pending.as_ref());
        let is_taken = pending.any(|pending| pending.old.iter().any(is_restored));
        let mut snapshot = observation.snapshot.clone();
        if let (Some(Ok(seen)), true) = (&mut snapshot, is_taken) {
            seen.rooms.clear();
        }
        snapshot
    }

    /// Handles the result of a step that only a deployment with a snapshot has.
    pub(in crate::service) fn snapshot_stepped(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let phase = deployment.phase.clone();
        match (phase, result) {
            (Phase::Quiesce, StepResult::Snapshot(SnapshotStepped::Running(running))) => {
                if running.is_empty() {
                    deployment.snapshot.at = Some(now);
                    deployment.snapshot.copies = deployment.earlier_data();
                    return deployment.enter(Phase::Copy, now);
                }
                self.stop_more(&running, now);
            }
            (Phase::Quiesce, StepResult::Snapshot(SnapshotStepped::Waiting { why })) => {
                self.waits_for_data(why, now);
            }
            // Somebody has started one in the meantime: the copy is that of no moment. Before earlier data is put in place,
            // nothing was copied.
            (
                Phase::Copy,
                StepResult::Snapshot(SnapshotStepped::Running(running) | SnapshotStepped::Disturbed(running)),
            ) => {
                deployment.snapshot.discarded += u32::from(!deployment.has_earlier_data());
                deployment.enter(Phase::Quiesce, now);
                self.stop_more(&running, now);
            }
            (Phase::Copy, StepResult::Snapshot(SnapshotStepped::Copied(copies))) => {
                deployment.snapshot.copies = copies;
                deployment.snapshot.is_unused = true;
                self.data_in_place(now);
            }
            // The earlier data is in place.
            (Phase::Copy, StepResult::Snapshot(SnapshotStepped::Done)) => {
                deployment.resume_left_stopped(&self.durable.left_stopped);
                self.data_in_place(now);
            }
            (Phase::Restore(_), StepResult::Snapshot(SnapshotStepped::Running(running))) => {
                self.stop_more(&running, now);
            }
            // What they have written is overwritten when the copies are put back by their contents once more.
            (Phase::Restore(_), StepResult::Snapshot(SnapshotStepped::Disturbed(running))) => {
                deployment.snapshot.is_restored = true;
                self.stop_more(&running, now);
            }
            (Phase::Restore(failed), StepResult::Snapshot(SnapshotStepped::Done)) => {
                deployment.snapshot.is_restored = true;
                deployment.leave_stopped_again(&mut self.durable.left_stopped, now);
                deployment.bring_up(Some(failed), now);
            }
            (phase, StepResult::Snapshot(SnapshotStepped::Resumed { containers, not_started })) => {
                deployment.outage.look(&containers, now);
                self.known.containers = Some(containers.into());
                if let Phase::Resume { failed, is_early: true } = phase {
                    return self.resumed_early(failed, &not_started, now);
                }
                self.not_started_again(not_started, now);
                self.resumed(phase, now);
            }
            (phase, StepResult::Snapshot(SnapshotStepped::Mixed { why })) => {
                self.data_mixed(phase, &why, now);
            }
            (phase @ Phase::Expire { .. }, StepResult::Snapshot(SnapshotStepped::Expired { left, why })) => {
                let is_left = |kept: &KeptSnapshot| kept.all_folders().iter().any(|one| left.contains(one));
                self.durable.snapshots.retain(|kept| !kept.is_expired || is_left(kept));
                if left.is_empty() {
                    return self.unpinned(now);
                }
                self.snapshot_step_failed(phase, &why, now);
            }
            (phase, other) => self.snapshot_step_failed(phase, &other.failure(), now),
        }
    }

    /// Another service may put back the data. Its probation is waited for, but not what it waits for itself.
    fn waits_for_data(&mut self, why: String, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        if now.duration_since(deployment.since) >= LONGEST_WAIT_FOR_DATA {
            return self.abandon_and_wait(why, String::new(), now);
        }
        self.emitted.notes.push(Note::StepRetried { step: deployment.phase.name(), failure: why });
        self.steps.retry_at = Some(now + WAIT_FOR_DATA);
    }

    /// The data is at rest, and as the new images are to find it.
    fn data_in_place(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.snapshot.rounds = 0;
        for change in &deployment.plan().image_changes {
            self.durable.images.of(&change.configured).not_copied = None;
        }
        // The env file may be a part of the data, and have the tag of its time.
        if deployment.has_earlier_data() && deployment.tag().is_some_and(|tag| tag.line.is_some()) {
            return deployment.enter(Phase::WriteTag, now);
        }
        deployment.bring_up(None, now);
    }

    /// Adds to the containers that are stopped. They are in the journal before that. One that was stopped and runs again,
    /// perhaps with a new ID, is started by somebody who insists: that is tried so often, and a copy is made anew so often.
    fn stop_more(&mut self, running: &[Mounter], now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let state = &mut deployment.snapshot;
        state.rounds += 1;
        for one in running {
            let is_same = |known: &&mut Mounter| known.id == one.id || known.name == one.name;
            match state.stopped.iter_mut().find(is_same) {
                Some(known) => *known = one.clone(),
                None => state.stopped.push(one.clone()),
            }
        }
        let is_copied_in_vain = state.discarded >= MAX_DISCARDED && deployment.phase == Phase::Quiesce;
        if is_copied_in_vain || (deployment.snapshot.rounds > 1 && deployment.interrupt()) {
            let names: Vec<&str> = running.iter().map(|one| one.name.as_str()).collect();
            let why = wording::snapshot::not_staying_stopped(&names);
            let phase = deployment.phase.clone();
            deployment.attempt = ROLLBACK_ATTEMPTS;
            self.snapshot_step_failed(phase, &why, now);
        }
    }

    /// Tells of containers that were stopped for the snapshot and don't run again.
    fn not_started_again(&mut self, containers: Vec<NotStarted>, now: Timestamp) {
        if !containers.is_empty() {
            self.emit(Event::NotStartedAgain { containers }, now);
        }
    }

    /// A part of the folders has the data of before, and that can't be undone. No image may run on it, so what was stopped
    /// stays stopped.
    fn data_mixed(&mut self, phase: Phase, why: &str, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let is_last = deployment.attempt + 1 >= ROLLBACK_ATTEMPTS;
        let why = if is_last && matches!(phase, Phase::Restore(_)) {
            let stopped = std::mem::take(&mut deployment.snapshot.stopped);
            let left = stopped.iter().map(|one| LeftStopped::entry(one, WhyLeft::MixedData, now));
            self.durable.left_stopped.extend(left);
            let containers = self.known.containers.as_deref().unwrap_or_default();
            wording::snapshot::left_stopped(why, &with_engine_starts(&stopped, containers))
        } else {
            why.to_owned()
        };
        self.snapshot_step_failed(phase, &why, now);
    }

    /// What the images may need runs again. What could not be started is tried once more with the rest, and told of then.
    fn resumed_early(&mut self, failed: Option<Failed>, not_started: &[NotStarted], now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let started = deployment.not_made_anew();
        let is_left = |one: &Mounter| not_started.iter().any(|left| left.name == one.name);
        deployment.snapshot.stopped.retain(|one| !started.contains(one) || is_left(one));
        deployment.snapshot.rounds = 0;
        deployment.enter(deployment.up(failed), now);
    }

    /// What was stopped runs again.
    fn resumed(&mut self, phase: Phase, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.snapshot.stopped.clear();
        deployment.snapshot.rounds = 0;
        match phase {
            Phase::Resume { failed: None, .. } => self.begin_probation(now),
            Phase::Resume { failed: Some(failed), .. } => self.verify_old(failed, now),
            // Still to be unpinned.
            _ => deployment.attempt = 0,
        }
    }

    /// Retries a step that failed. What can't be copied is not deployed; what can't be put back needs a person.
    fn snapshot_step_failed(&mut self, phase: Phase, why: &str, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.attempt += 1;
        let attempts = if phase == Phase::Copy { COPY_ATTEMPTS } else { ROLLBACK_ATTEMPTS };
        if deployment.attempt < attempts {
            self.emitted.notes.push(Note::StepRetried { step: phase.name(), failure: why.to_owned() });
            let pause = rollback_pause(deployment.attempt);
            self.steps.retry_at = Some(now + pause);
            return;
        }
        match phase {
            Phase::Restore(failed) if deployment.snapshot.is_restored => {
                let why = wording::snapshot::disturbed(why);
                self.fail_for_good(failed, RollbackProblem::Step(why), now);
            }
            Phase::Restore(failed) => {
                // The data of before is in the copy, or where it was set aside for earlier data.
                let kind = if deployment.has_earlier_data() { KeptKind::SetAside } else { KeptKind::Copy };
                let why = wording::snapshot::not_restored(why, &deployment.kept_folders(kind));
                // A person may go back to them together with their data.
                for change in deployment.plan().image_changes.clone() {
                    self.note_earlier(&change, now);
                }
                self.fail_for_good(failed, RollbackProblem::Step(why), now);
            }
            Phase::Expire { .. } => {
                self.emit(Event::CopiesNotRemoved { why: why.to_owned() }, now);
                self.unpinned(now);
            }
            // The images can be brought up nevertheless, and the rest is started after that.
            Phase::Resume { failed, is_early: true } => deployment.enter(deployment.up(failed), now),
            phase @ (Phase::Resume { .. } | Phase::Unpin) => {
                let stopped = deployment.snapshot.stopped.iter();
                let not_started =
                    stopped.map(|one| NotStarted { name: one.name.clone(), why: why.to_owned() });
                let not_started = not_started.collect();
                self.not_started_again(not_started, now);
                self.resumed(phase, now);
            }
            _ => self.copy_failed(why, now),
        }
    }

    /// The agent or the machine has ended while the data was copied, or a reload has broken the copy off. The service is down for
    /// it, and the copy may be the reason: a disk may reset the machine, so that it is not begun anew for ever.
    pub(in crate::service) fn copy_cut_short(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.phase != Phase::Copy || deployment.has_earlier_data() {
            return;
        }
        deployment.snapshot.cut_short += 1;
        if deployment.snapshot.cut_short >= MAX_DISCARDED {
            self.copy_failed(wording::snapshot::CUT_SHORT, now);
        }
    }

    /// Gives up on the copy. The service was down for it, so the same images have to wait before that is done again.
    fn copy_failed(&mut self, why: &str, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let cause = deployment.plan().cause.clone();
        let changes = deployment.changes().map(|change| (change.configured.clone(), change.digest.clone()));
        let changes: Vec<_> = changes.collect();
        let text = wording::snapshot::not_copied(why);
        self.abandon(text.clone(), String::new(), now);
        if matches!(cause, Cause::GoBack(_)) {
            return;
        }
        for (image, digest) in changes {
            let memory = self.durable.images.of(&image);
            let tries = memory.not_copied.as_ref().filter(|known| known.digest == digest);
            let tries = tries.map_or(0, |known| known.tries).saturating_add(1);
            let until = now + delay_after_copy(tries);
            memory.not_copied = Some(NotCopied { digest, why: why.to_owned(), tries, until });
        }
        // From now on they wait, and say why: the next failure is an outage of its own, and told as such.
        if self.may_be_held() && self.durable.fault.as_ref().is_some_and(|fault| fault.text == text) {
            self.durable.fault = None;
        }
    }

    /// Unpinned; removes the copies that are no longer kept, if there are any.
    pub(in crate::service) fn unpinned_with_data(&mut self, now: Timestamp) {
        let remove = self.expire_snapshots();
        match &mut self.durable.deployment {
            Some(deployment) if !remove.is_empty() => deployment.enter(Phase::Expire { remove }, now),
            _ => self.unpinned(now),
        }
    }

    /// Records what is kept of the deployment that ends, and returns the folders that are removed.
    fn expire_snapshots(&mut self) -> Vec<KeptFolder> {
        let Some(deployment) = &mut self.durable.deployment else { return Vec::new() };
        let Some(plan) = deployment.plan().snapshot.clone() else { return Vec::new() };
        // Without either, there is nothing that could be kept, and nothing that what is kept has to give way to.
        let has_copies = deployment.snapshot.at.is_some() && !plan.sources.is_empty();
        if has_copies || plan.dump.is_some() {
            // That of an earlier attempt, if there is one.
            let is_before = |kept: &KeptSnapshot| plan.taken.is_some() && kept.id == plan.id;
            let before = self.durable.snapshots.iter().position(is_before);
            let before = before.map(|nth| self.durable.snapshots.remove(nth));
            let changes = &deployment.plan().image_changes;
            let image = wording::names(changes);
            let left = changes.iter().filter_map(|m| Some((m.configured.clone(), m.old_digest.clone()?)));
            let left: Vec<_> = before.as_ref().map_or_else(|| left.collect(), |before| before.left.clone());
            let copied = deployment.snapshot.copies.iter().map(|copy| copy.copied.bytes).sum();
            let of_kind = |kind: KeptKind, is_expired: bool| KeptSnapshot {
                id: plan.id.clone(),
                at: deployment.snapshot.at.unwrap_or(deployment.begun),
                kind,
                image: image.clone(),
                left: left.clone(),
                dump: plan.dump.clone(),
                bytes: plan.earlier.as_ref().map_or(copied, |earlier| earlier.bytes),
                folders: plan.sources.iter().map(|source| plan.kept_folder(source, kind)).collect(),
                is_expired,
                pending: None,
            };
            let is_restored = deployment.snapshot.is_restored;
            // A copy that was put back is used up; one of data that nobody has changed since is of no use, and neither is what
            // there is of one that failed.
            let is_unused = deployment.snapshot.is_unused || deployment.snapshot.at.is_none();
            let is_incomplete = deployment.snapshot.copies.len() < plan.sources.len();
            let is_used_up = is_restored || is_unused || is_incomplete;
            let new = match plan.earlier {
                // Of what was put back again, copies may be left.
                Some(_) => vec![of_kind(KeptKind::SetAside, is_used_up)],
                None if is_restored => {
                    let used_up = KeptSnapshot { dump: None, ..of_kind(KeptKind::Copy, true) };
                    let rejected = KeptSnapshot { left: Vec::new(), ..of_kind(KeptKind::SetAside, false) };
                    vec![used_up, rejected]
                }
                None => {
                    let pending = deployment.pending_data(&self.durable.images).filter(|_| !is_used_up);
                    let pending = pending.map(|new| before.and_then(|before| before.pending).unwrap_or(new));
                    vec![KeptSnapshot { pending, ..of_kind(KeptKind::Copy, is_used_up) }]
                }
            };
            deployment.snapshot.copies.clear();
            self.durable.snapshots.extend(new);
        }
        for kind in [KeptKind::Copy, KeptKind::SetAside] {
            let is_of_kind =
                |kept: &&mut KeptSnapshot| kept.kind == kind && !kept.is_expired && kept.pending.is_none();
            // The newest is the last. The clock may have been ahead when one before it was made.
            let of_kind = self.durable.snapshots.iter_mut().rev().filter(is_of_kind);
            of_kind.skip(plan.keep).for_each(|kept| kept.is_expired = true);
        }
        let expired = self.durable.snapshots.iter().filter(|kept| kept.is_expired);
        expired.flat_map(KeptSnapshot::all_folders).collect()
    }
}

impl Service {
    /// The data that the images have written which a rollback would restore, if it was not put back, and what has run on the
    /// data since was not proven.
    fn data_pending(&self) -> impl Iterator<Item = (&KeptSnapshot, &PendingData)> {
        let kept = self.durable.snapshots.iter().filter(|kept| !kept.is_expired);
        let pending = kept.filter_map(|kept| Some((kept, kept.pending.as_ref()?)));
        pending.filter(move |(_, pending)| {
            pending.old.iter().any(|(image, id)| self.is_left_for_unproven(image, id))
        })
    }

    /// Reports whether an image would be restored in place of an unproven one that runs, or ran last.
    fn is_left_for_unproven(&self, image: &str, id: &ImageId) -> bool {
        let seen = self.known.observation.iter().flat_map(|seen| &seen.images);
        let mut views = seen.filter(|view| view.configured == image);
        self.is_left_in(views.next(), image, id)
    }

    /// The same as of what was seen of the image.
    fn is_left_in(&self, view: Option<&ImageView>, image: &str, id: &ImageId) -> bool {
        let memory = self.durable.images.get(image);
        let runs_another = view.is_some_and(|view| {
            !view.running.is_empty() && !view.running.iter().any(|one| memory.is_unproven(&one.id))
        });
        memory.unproven.is_some() && memory.proven.as_ref().is_some_and(|old| old.id == *id) && !runs_another
    }

    /// Lets go of data that was copied once something else was proven on the data, or somebody has started another image on
    /// it: from then on it is a snapshot like every other.
    pub(in crate::service) fn release_pending_data(&mut self) {
        let mut snapshots = std::mem::take(&mut self.durable.snapshots);
        let is_pending = |pending: &PendingData| {
            pending.old.iter().any(|(image, id)| self.is_left_for_unproven(image, id))
        };
        for kept in &mut snapshots {
            kept.pending = kept.pending.take().filter(is_pending);
        }
        self.durable.snapshots = snapshots;
    }

    /// Images are proven on the data: no earlier copy is that of what a rollback would restore, of whichever image.
    pub(in crate::service) fn forget_pending_data(&mut self) {
        for kept in &mut self.durable.snapshots {
            kept.pending = None;
        }
    }

    /// Why an earlier image, whose tag is kept, would run on data that another one may have changed, or an unproven image that
    /// stays on data that is put back with others; `None` if neither would.
    pub(in crate::service) fn lacks_its_data(
        &self,
        cause: &Cause,
        changes: &[ImageChange],
        kept_tags: &[(Reference, OldImage)],
    ) -> Option<String> {
        if matches!(cause, Cause::GoBack(_)) {
            return None;
        }
        let is_restored = |(_, id): &(String, ImageId)| kept_tags.iter().any(|(_, old)| old.id == *id);
        let is_changed = |(image, _): &(String, ImageId)| changes.iter().any(|m| m.configured == *image);
        let stays = |one: &(String, ImageId)| !is_changed(one) && self.is_left_for_unproven(&one.0, &one.1);
        let mut pending = self.data_pending().filter(|(_, pending)| {
            let old = &pending.old;
            old.iter().any(is_restored) || (old.iter().any(is_changed) && old.iter().any(stays))
        });
        let (kept, _) = pending.next()?;
        Some(wording::snapshot::without_its_data(&self.config.name, kept))
    }

    /// Nothing is brought up, since an earlier image would run on data that is not its own.
    pub(in crate::service) fn not_begun_without_data(
        &mut self,
        cause: &Cause,
        why: String,
        now: Timestamp,
    ) -> bool {
        match cause {
            Cause::Redeploy => self.redeploy_failed(why, String::new(), now),
            Cause::RetryRollback => {
                let failure = Failure::general(Reason::Words(why));
                self.emit(Event::RollbackRetryFailed { failure, output: String::new() }, now);
            }
            _ => self.set_fault(Some(Fault { text: why, from_check: false }), now),
        }
        false
    }
}

impl Deployment {
    /// What a rollback needs of the copies if the images of this deployment were not proven.
    fn pending_data(&self, images: &Images) -> Option<PendingData> {
        let is_unproven = self.changes().any(|change| images.get(&change.configured).unproven.is_some());
        if !is_unproven || self.snapshot.copies.is_empty() {
            return None;
        }
        let old = self.changes().filter_map(|m| Some((m.configured.clone(), m.old.as_ref()?.id.clone())));
        Some(PendingData { old: old.collect(), copies: self.snapshot.copies.clone() })
    }

    /// Returns the step of a phase that only a deployment with a snapshot has.
    pub(in crate::service) fn snapshot_step(&self) -> Option<SnapshotStep> {
        let plan = self.plan().snapshot.as_ref()?;
        let state = &self.snapshot;
        let places = || plan.sources.iter().map(|source| (source.clone(), plan.place(source)));
        let copies = || state.copies.iter().map(|copy| (copy.clone(), plan.place(&copy.source)));
        let restore = || SnapshotStep::Restore {
            stop: state.stopped.clone(),
            copies: copies().collect(),
            labels: self.snapshot_labels("set-aside"),
            id: plan.id.clone(),
        };
        Some(match &self.phase {
            Phase::Quiesce => SnapshotStep::Quiesce {
                service: self.plan().service.clone(),
                stop: state.stopped.clone(),
                of: plan.sources.clone(),
                measures: state.stopped.is_empty() && !matches!(self.plan().cause, Cause::GoBack(_)),
            },
            Phase::Copy if plan.earlier.is_some() => restore(),
            Phase::Copy => SnapshotStep::Copy {
                places: places().collect(),
                labels: self.snapshot_labels("copy"),
                id: plan.id.clone(),
            },
            Phase::Restore(_) if plan.earlier.is_some() => {
                SnapshotStep::UndoRestore { stop: state.stopped.clone(), copies: copies().collect() }
            }
            Phase::Restore(_) => restore(),
            Phase::Resume { is_early: true, .. } => {
                SnapshotStep::Resume { start: self.not_made_anew(), project: self.project_name() }
            }
            Phase::Resume { .. } | Phase::Unpin if self.must_resume() => {
                SnapshotStep::Resume { start: state.stopped.clone(), project: self.project_name() }
            }
            Phase::Expire { remove } => SnapshotStep::Expire { remove: remove.clone() },
            _ => return None,
        })
    }

    /// Reports whether earlier data is in place of that of now, or about to be.
    pub(in crate::service) fn has_earlier_data(&self) -> bool {
        let is_earlier = self.plan().snapshot.as_ref().is_some_and(|plan| plan.earlier.is_some());
        is_earlier && !self.snapshot.copies.is_empty() && !self.snapshot.is_restored
    }

    /// The earlier data that is put in place of that of now, if there is any to be put there.
    pub(in crate::service) fn earlier_data(&self) -> Vec<CopyMade> {
        let Some(plan) = &self.plan().snapshot else { return Vec::new() };
        let folders = plan.earlier.iter().flat_map(|earlier| &earlier.folders);
        let made = |(source, (_, folder)): (&Source, &(PathBuf, FolderId))| CopyMade {
            source: source.clone(),
            copied: Copied { bytes: 0, folder: *folder },
        };
        plan.sources.iter().zip(folders).map(made).collect()
    }

    /// The labels of the volumes that stand for the copies, but that with the name of the volume copied.
    fn snapshot_labels(&self, kind: &str) -> Vec<(String, String)> {
        let at = self.snapshot.at.unwrap_or(self.begun).to_string();
        [("service", self.plan().service.as_str()), ("at", at.as_str()), ("kind", kind)]
            .map(|(key, value)| (format!("evenkeel.snapshot.{key}"), value.to_owned()))
            .to_vec()
    }

    /// The phase in which the new images are brought up: what writes to the data is stopped first.
    pub(in crate::service) fn begin_start(&mut self, now: Timestamp) {
        let is_planned = self.plan().snapshot.as_ref().is_some_and(|plan| plan.taken.is_none());
        let is_copied = is_planned && self.changes().next().is_some();
        self.enter(if is_copied { Phase::Quiesce } else { Phase::Start }, now);
    }

    fn project_name(&self) -> String {
        self.plan().project.as_ref().map(|project| project.name.clone()).unwrap_or_default()
    }

    /// What was stopped for the snapshot, but for containers that the deployment makes anew, and those that depend on them. The
    /// images may need it, for example their database.
    fn not_made_anew(&self) -> Vec<Mounter> {
        let (project, mut later) = (self.project_name(), self.plan().services_on_changes());
        loop {
            let is_first = |one: &&Mounter| {
                let (of, service) = &one.service;
                let needs_later = one.depends_on.iter().any(|other| later.contains(other));
                *of != project || !(later.contains(service) || needs_later)
            };
            let (first, rest): (Vec<_>, Vec<_>) = self.snapshot.stopped.iter().partition(is_first);
            let more: Vec<String> = rest.iter().map(|one| one.service.1.clone()).collect();
            if more.iter().all(|service| later.contains(service)) {
                return first.into_iter().cloned().collect();
            }
            later.extend(more);
        }
    }

    /// The data was put back, but not the images that it belongs to: leaves stopped what would run another one on it. Returns
    /// that.
    pub(in crate::service) fn leave_rejected_stopped(&mut self, containers: &[Container]) -> Vec<Mounter> {
        if !self.snapshot.is_restored {
            return Vec::new();
        }
        let (project, changed, old) =
            (self.project_name(), self.plan().services_on_changes(), self.plan().expected_old());
        let runs_old = |one: &Mounter| {
            let is_old = |c: &Container| {
                old.iter().any(|was| was.compose_service == c.compose_service && was.image == c.image)
            };
            containers.iter().any(|c| c.id == one.id && is_old(c))
        };
        let is_rejected = |one: &Mounter| {
            let (of, service) = &one.service;
            *of == project && changed.contains(service) && !runs_old(one)
        };
        let stopped = std::mem::take(&mut self.snapshot.stopped);
        let (rejected, others): (Vec<_>, Vec<_>) = stopped.into_iter().partition(is_rejected);
        self.snapshot.stopped = others;
        rejected
    }

    /// The earlier data is in place as a whole: what was left stopped on data of two times is started with the rest.
    fn resume_left_stopped(&mut self, left: &BTreeMap<String, LeftStopped>) {
        for LeftStopped { container, .. } in left.values().filter(|left| left.why == WhyLeft::MixedData) {
            if !self.snapshot.stopped.iter().any(|one| one.id == container.id) {
                self.snapshot.stopped.push(container.clone());
            }
        }
    }

    /// If earlier data is no longer in place, the data of two times is back: what was left stopped on that stays stopped.
    fn leave_stopped_again(&mut self, left: &mut BTreeMap<String, LeftStopped>, now: Timestamp) {
        if self.plan().snapshot.as_ref().is_none_or(|plan| plan.earlier.is_none()) {
            return;
        }
        self.snapshot.stopped.retain(|one| match left.get_mut(&one.id) {
            Some(left) if left.why == WhyLeft::MixedData => {
                left.at = now;
                false
            }
            _ => true,
        });
    }

    /// The phase in which the new images are brought up, or the old ones again.
    fn up(&self, failed: Option<Failed>) -> Phase {
        failed.map_or(Phase::Start, |failed| self.way_back(failed))
    }

    /// Brings up the new images, or the old ones again, but first what they may need.
    pub(in crate::service) fn bring_up(&mut self, failed: Option<Failed>, now: Timestamp) {
        let is_needed = !self.not_made_anew().is_empty();
        let next = if is_needed { Phase::Resume { failed, is_early: true } } else { self.up(failed) };
        self.enter(next, now);
    }

    /// Reports whether containers wait to be started that were stopped for the snapshot.
    pub(in crate::service) fn must_resume(&self) -> bool {
        !self.snapshot.stopped.is_empty()
    }

    /// The phase that puts the data back before the old images are brought up, if it was copied.
    pub(in crate::service) fn way_back_with_data(&self, failed: Failed) -> Phase {
        if self.snapshot.copies.is_empty() || self.snapshot.is_restored {
            self.way_back(failed)
        } else {
            Phase::Restore(failed)
        }
    }

    /// What of the data was put back, for people; `None` if nothing was.
    pub(in crate::service) fn data_back(&self) -> Option<DataBack> {
        let (set_aside, at) = (self.kept_folders(KeptKind::SetAside), self.snapshot.at.unwrap_or(self.begun));
        let earlier = self.plan().snapshot.as_ref().and_then(|plan| plan.earlier.as_ref());
        match (earlier, self.snapshot.is_restored) {
            _ if set_aside.is_empty() => None,
            (None, false) => None,
            (None, true) => Some(DataBack { at, set_aside }),
            (Some(earlier), false) => Some(DataBack { at: earlier.at, set_aside }),
            // As if nothing had happened.
            (Some(_), true) => Some(DataBack { at, set_aside: Vec::new() }),
        }
    }

    /// The folders of the copies, or of the data that was set aside.
    pub(in crate::service) fn kept_folders(&self, kind: KeptKind) -> Vec<KeptFolder> {
        let Some(plan) = &self.plan().snapshot else { return Vec::new() };
        self.snapshot.copies.iter().map(|copy| plan.kept_folder(&copy.source, kind)).collect()
    }
}
