//! Evaluation of a check: up to date, blocked, not found, or a deployment.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::model::image::{ImageId, Reference};
use crate::model::snapshot::{Room, Source};
use crate::model::swarm::SwarmService;
use crate::model::{Container, Origin, State};
use crate::service::action::{Action, CheckAsked, FilesAsked};
use crate::service::compare::Comparison;
use crate::service::decide::image::ImageDecision;
use crate::service::event::{Event, Fault, FaultCause, Local, Unblock};
use crate::service::input::CheckFault;
use crate::service::observation::{ImageView, LocalImage, Observation};
use crate::service::rollout::plan::{Cause, GoBackReason};
use crate::service::state::StandingFault;
use crate::service::{Service, compare, gates, wording};

/// How long the data is not measured again while its update waits.
const MEASURE_AGAIN: SignedDuration = SignedDuration::from_hours(1);

/// How the images of a service compare with the registry's.
struct Compared {
    /// At least one has a different digest in the registry, and may be updated.
    stale: bool,
    /// All match the registry, as far as that can be determined.
    matching: bool,
    /// At least one was never here, and may be pulled by its digest when the project is started.
    pulls_first: bool,
}

/// What is on this machine of an image that can't be compared.
fn local(view: &ImageView, containers: &[Container]) -> Local {
    let is_pinned = |c: &Container| {
        Reference::parse(&c.config_image)
            .is_ok_and(|of| of.digest.is_some() && of.repository == view.reference.repository)
    };
    if !view.running.is_empty() || view.tagged.is_some() {
        Local::WithoutDigest
    } else if containers.iter().any(is_pinned) {
        Local::PinnedByCompose
    } else {
        Local::Absent
    }
}

impl Service {
    /// Returns the check that is due, if any, and marks it as running.
    pub(in crate::service) fn next_check(&mut self, now: Timestamp) -> Option<Action> {
        if self.checks.take_again(now) {
            // An update may begin now, and what the command has allowed may no longer be true.
            self.gate_command.new_cycle |= self.has_gate_lifted(now);
            self.request_check();
        }
        if self.wanted.is_some() {
            return None;
        }
        let is_manual = self.checks.start(now)?;
        if is_manual && self.checks.passes_gates() {
            for (_, memory) in self.durable.images.iter_mut() {
                memory.declined_tag = None;
            }
        }
        let is_asked_for = is_manual || self.checks.wants_redeploy();
        let project = self.compose_project().filter(|_| self.config.compose_watch);
        let crashed = self.crashed(self.containers(), now);
        let measured = self.measured_before(is_asked_for, now);
        Some(Action::Check {
            generation: self.generation,
            is_manual,
            asked: CheckAsked {
                images: self.config.auto_update || self.checks.wants_redeploy(),
                files: project.map(|project| FilesAsked {
                    project,
                    known: self.durable.files_hash.clone(),
                    own_variables: self.own_variables(),
                }),
                settled: self.settled_digests(),
                withheld: self
                    .durable
                    .images
                    .blocked()
                    .filter(|_| !is_asked_for)
                    .map(|(image, digest)| (image.to_owned(), digest.clone()))
                    .collect(),
                published: self
                    .durable
                    .images
                    .iter()
                    .filter_map(|(image, memory)| Some((image.to_owned(), memory.published.clone()?)))
                    .collect(),
                newer: self.newer_tags(),
                is_asked_for,
                // An image that runs without having been proven is deployed once more.
                compares_all: self.going_back.is_some() || self.durable.images.has_unproven(),
                crashed,
                earlier: self.going_back.as_ref().and_then(|back| back.data.clone()),
                measured,
            },
        })
    }

    /// The data that a check does not measure again: all of it is walked through for that, and an update may wait for days. If
    /// it begins, the data is measured once more before anything is stopped. Room that is missing may be there any time.
    fn measured_before(&mut self, is_asked_for: bool, now: Timestamp) -> Vec<(Source, Room)> {
        let is_recent = |at: Timestamp| {
            let age = now.duration_since(at);
            !age.is_negative() && age < MEASURE_AGAIN
        };
        let is_known = !is_asked_for && self.known.data_measured_at.is_some_and(is_recent);
        let rules = self.config.update.as_ref().and_then(|update| update.snapshot.as_ref());
        let seen = self.known.observation.as_ref().and_then(|seen| seen.snapshot.as_ref()?.as_ref().ok());
        if let (true, Some(rules), Some(seen)) = (is_known, rules, seen)
            && seen.earlier.is_none()
            && wording::snapshot::lacks_room(seen, rules, true).is_none()
        {
            let rooms = seen.rooms.iter().map(|(_, room)| *room);
            return seen.sources.iter().cloned().zip(rooms).collect();
        }
        self.known.data_measured_at = Some(now);
        Vec::new()
    }

    /// Evaluates the result of a check and decides what to do.
    pub(in crate::service) fn checked(
        &mut self,
        is_manual: bool,
        result: Result<Observation, CheckFault>,
        now: Timestamp,
    ) {
        let observation = match result {
            Ok(observation) => observation,
            Err(fault) => return self.check_failed(is_manual, fault, now),
        };

        // While a registry's answer is pending, decide now what does not depend on it. The rest of the check follows.
        let pending = observation.is_pending();
        let registry_fault = observation.registry_fault();
        if !pending {
            self.checks.last = Some(now);
        }
        let observation = self.without_left_behind(observation);
        self.follow_definition(&observation);
        self.follow_tag(&observation, now);
        // Neither a check that passes no gate nor a way back asks for the registry's digest.
        let is_asked_for = (is_manual && self.checks.passes_gates())
            || (self.checks.wants_redeploy() && self.going_back.is_none());
        self.detect_manual_changes(&observation, is_asked_for, now);
        self.note_found(&observation, now);
        self.follow_failed_tags(&observation);
        self.follow_postponed(&observation);
        self.forget_unconfigured(now);
        self.forget_permits(now);
        if is_manual {
            self.try_postponed(now);
        }
        if is_manual && self.checks.passes_gates() {
            self.note_trigger(&observation, now);
        }
        let Compared { stale, matching, pulls_first } = self.compare_images(&observation, now);
        let files = self.follow_files(&observation.files, observation.files_applied_elsewhere.as_ref());
        self.compare_with_shutdown(&observation.containers, now);
        let outside = self.outside_project(&observation.containers);
        // Unlisted override file: start only; recreate only on an explicit redeploy.
        let start_only = outside.is_some() || !observation.unlisted_files.is_empty();
        let start = self.start_wanted(&observation, matching && (start_only || !stale), now);
        let start = start.filter(|cause| !start_only || *cause != Cause::ForceUp { down: true });
        let is_update = |cause: &Cause| pulls_first && !start_only && *cause == Cause::Start;
        let start = start.map(|cause| if is_update(&cause) { Cause::Update } else { cause });
        // The images that it needs may only be pulled by an update.
        let start = start.filter(|cause| !pulls_first || *cause != Cause::Start);
        (self.known.containers, self.known.swarm_error) = (Some(observation.containers.clone()), None);
        self.known.swarm.clone_from(&observation.swarm);
        self.known.observation = Some(Arc::new(observation));
        self.release_pending_data();
        self.known.pulled.clear();
        self.inspections.request_by(now);

        let (drift, files_fault) = files.map_or_else(|text| (None, Some(text)), |drift| (drift, None));
        // The way back needs no registry.
        let asked = (!pending || self.going_back.is_some()) && self.checks.take_redeploy();
        let back = self.going_back.take_if(|_| asked);
        let redeploy = asked && back.is_none();
        let retry_rollback = !pending && outside.is_none() && std::mem::take(&mut self.retry_rollback);
        // Compose leaves out what must not be stopped; a swarm service is updated as a whole, or not at all.
        let needed = self.needed().filter(|_| self.known.swarm.is_some());
        let bars_redeploy = outside.as_ref().or(needed.as_ref()).or(registry_fault.as_ref());
        if let Some(text) = bars_redeploy.filter(|_| redeploy) {
            self.redeploy_failed(text.clone(), String::new(), now);
        }
        self.wanted = if let Some(back) = back {
            self.wants_back(back, now)
        } else if redeploy && bars_redeploy.is_none() {
            Some(Cause::Redeploy)
        } else if stale && self.config.auto_update && !start_only && self.needed().is_none() {
            Some(Cause::Update)
        } else if retry_rollback && self.durable.rollback_failed && self.is_on_unproven() {
            Some(Cause::RetryRollback)
        } else {
            drift.filter(|_| !start_only).or(start)
        };
        let bars_update = self.bars_update(outside, files_fault, stale);
        if bars_update.is_some() {
            self.wanted = self.wanted.take().filter(|cause| *cause != Cause::Update);
        }
        let undeployable = self.hold_undeployable(now);
        if pending {
            return;
        }
        self.follow_candidates(now);
        if let Some(why) = registry_fault.as_ref().filter(|_| is_manual && !redeploy) {
            self.emit(Event::TriggerFailed { why: why.clone() }, now);
        }
        let faults = bars_update.into_iter().chain(registry_fault).chain(self.command_fault());
        let faults: Vec<String> = faults.chain(self.paused_fault()).collect();
        self.conclude_check(is_manual, &faults, undeployable, now);
    }

    /// Why no update is deployed, whatever the registry has.
    fn bars_update(
        &self,
        outside: Option<String>,
        files_fault: Option<String>,
        stale: bool,
    ) -> Option<String> {
        let is_deploying = self.config.auto_update || self.config.compose_watch;
        let unreadable =
            self.known.observation.as_ref().and_then(|seen| seen.definition.as_ref()?.as_ref().err());
        let unreadable = unreadable.filter(|_| stale).map(|text| wording::unreadable_definition(text));
        outside
            .filter(|_| is_deploying)
            .or_else(|| self.needed().filter(|_| stale))
            .or(files_fault)
            .or(unreadable)
            .or_else(|| self.unlisted_files_fault())
            .or_else(|| self.unused())
    }

    /// Takes over where the project was started from, which compose service uses each image, and how the definition differs from
    /// what runs.
    fn follow_definition(&mut self, observation: &Observation) {
        for view in &observation.images {
            let mut live =
                observation.containers.iter().filter(|c| c.is_live() && c.is_made_from(&view.from));
            if let Some(user) = live.next().filter(|user| !user.compose_service.is_empty()) {
                self.durable.images.of(&view.configured).compose_service = Some(user.compose_service.clone());
            }
        }
        if let Some(origin) = Origin::of(&observation.containers, &self.config.compose_files) {
            self.durable.origin = Some(origin);
            let project = self.config.project();
            self.durable.origin_of =
                project.and_then(|project| Some((project.name, project.files.into_iter().next()?)));
        }
        if !observation.is_pending() || observation.definition.is_some() {
            let compared = observation.definition.as_ref().and_then(|compared| compared.as_ref().ok());
            self.known.differences =
                compared.map(|compared| compared.differences.clone()).unwrap_or_default();
            self.known.other_files =
                compared.map(|compared| compared.other_files.clone()).unwrap_or_default();
        }
    }

    /// Whether an update was found and is about to begin.
    pub(in crate::service) fn wants_update(&self) -> bool {
        self.wanted == Some(Cause::Update)
    }

    /// Handles a check that returned no observation.
    fn check_failed(&mut self, is_manual: bool, fault: CheckFault, now: Timestamp) {
        self.known.data_measured_at = None;
        let is_away = matches!(fault, CheckFault::EngineAway(_));
        let text = match fault {
            CheckFault::Failed(text) => {
                self.checks.last = Some(now);
                if self.can_check() {
                    self.set_fault(Some(Fault { text: text.clone(), from_check: true }), now);
                }
                text
            }
            // Nothing is known. The engine's health status reports this for all services at once.
            CheckFault::EngineAway(text) => text,
        };
        if self.checks.take_redeploy() {
            match self.going_back.take() {
                // The watch goes on, and asks again once the containers can be inspected.
                Some(back) if is_away && back.why != GoBackReason::ByHand => {}
                Some(back) => self.not_gone_back(back, text, String::new(), now),
                None => self.redeploy_failed(text, String::new(), now),
            }
        } else if is_manual {
            self.emit(Event::TriggerFailed { why: text }, now);
        }
    }

    /// Forgets what is withheld of images that are no longer configured: nothing compares them again.
    fn forget_unconfigured(&mut self, now: Timestamp) {
        let configured = &self.config.images;
        let is_gone = |image: &str| configured.iter().all(|known| known.configured != image);
        let mut blocked = Vec::new();
        for (image, memory) in self.durable.images.iter_mut().filter(|(image, _)| is_gone(image)) {
            let digests = memory.forget_withheld().into_iter();
            blocked.extend(digests.map(|digest| (image.to_owned(), digest)));
        }
        if blocked.is_empty() {
            return;
        }
        self.durable.rollback_failed &= self.rollback_stands();
        self.emit(Event::Unblocked(Unblock::NotConfigured { blocked }), now);
    }

    /// Compares each image with the registry; may clear `blocked` and `not_found`.
    fn compare_images(&mut self, observation: &Observation, now: Timestamp) -> Compared {
        self.block_returned(observation, now);
        let mut all = Compared { stale: false, matching: true, pulls_first: false };
        for decision in self.decide_images(observation, &Cause::Update, now) {
            let ImageDecision { view, comparison, is_held, is_postponed, .. } = decision;
            let image = view.configured.clone();
            match comparison {
                Comparison::Pinned | Comparison::Managed => {}
                Comparison::Blocked => {
                    if compare::is_comparable(view) {
                        self.durable.images.of(&image).not_found = None;
                    }
                    self.note_blocked(view);
                }
                Comparison::Unanswered | Comparison::Unsigned | Comparison::Pulled { .. } => {
                    all.matching &= self.ran_before(view, &observation.containers);
                }
                Comparison::UpToDate => {
                    let remote = view.remote.clone();
                    if let Some(remote) = &remote {
                        self.durable.images.of(&image).published = Some(remote.clone());
                        self.end_trigger(&image, remote);
                    }
                    self.durable.images.of(&image).not_found = None;
                    if let Some(blocked) = self.lift_block(&image, view.target().tag.as_deref()) {
                        self.durable.rollback_failed &= self.rollback_stands();
                        let image = image.clone();
                        self.emit(Event::Unblocked(Unblock::UpToDate { image, blocked, remote }), now);
                    }
                    self.end_unblocked_alarm(view);
                    self.block_newest_failed(&image, view.target().tag.as_deref());
                }
                Comparison::FirstStart { .. } => {
                    all.matching &= !is_held;
                    self.durable.images.of(&image).not_found = None;
                }
                Comparison::NotFound { remote, new } => {
                    all.matching = false;
                    if new {
                        self.durable.images.of(&image).not_found = Some(remote.clone());
                        let local = local(view, &observation.containers);
                        self.emit(Event::NotFound { image, remote, local }, now);
                    }
                }
                Comparison::Stale { remote } => {
                    // A held or postponed update does not count as available yet: the previous image may be started.
                    if is_held || is_postponed {
                        all.matching &= self.ran_before(view, &observation.containers);
                    } else if self.is_first_start(view, observation) {
                        all.pulls_first = true;
                        self.durable.images.of(&image).not_found = None;
                    } else {
                        all.stale = true;
                    }
                    if compare::is_comparable(view) {
                        self.durable.images.of(&image).not_found = None;
                    }
                    if let Some(blocked) = self.lift_block(&image, view.target().tag.as_deref()) {
                        self.durable.rollback_failed &= self.rollback_stands();
                        self.emit(Event::Unblocked(Unblock::NewDigest { image, blocked, remote }), now);
                    }
                }
            }
        }
        all
    }

    /// Blocks the digests that have failed here before, and that a tag points to again.
    fn block_returned(&mut self, observation: &Observation, now: Timestamp) {
        for view in &observation.images {
            let Comparison::Stale { remote: digest } = self.compared(view, observation) else { continue };
            let image = view.configured.clone();
            let memory = self.durable.images.of(&image);
            if !memory.failed_before(&digest) {
                continue;
            }
            memory.not_found = None;
            memory.block(&digest);
            let gate = gates::failed_before(&self.config.name, &image, &digest);
            let old = view.replaced_by(Some(&digest)).filter(|_| !view.running.is_empty());
            let old_digest = old.and_then(|old| compare::shown_digest(old, None));
            let differences = Vec::new();
            self.emit(Event::UpdateAvailable { image, digest, old_digest, gate, differences }, now);
        }
    }

    /// Concludes a complete check: sets or clears the persistent fault. `undeployable`: why an update that was found is not
    /// deployed.
    fn conclude_check(
        &mut self,
        is_manual: bool,
        faults: &[String],
        undeployable: Option<String>,
        now: Timestamp,
    ) {
        // Without further checks nothing would ever clear the fault. The redeploy that requested this check has failed for
        // the same reason, and that was reported.
        if !faults.is_empty() && self.can_check() {
            // A start that fails repeatedly is one fault, not two alternating ones.
            let fails =
                self.wanted.is_some() && self.durable.fault.as_ref().is_some_and(|fault| !fault.from_check);
            if !fails {
                self.set_fault(Some(Fault { text: faults.join("; "), from_check: true }), now);
            }
            return;
        }
        // A failed deployment does not resolve itself: no container that it created but did not start may be left.
        let has_unstarted = || self.containers().iter().any(|c| c.state == State::Created);
        // The gate command that failed before a restart of the agent has yet to be asked again.
        let of_command = wording::command_failed("");
        let is_unasked = |fault: &StandingFault| {
            fault.since < self.begun && fault.text.contains(&of_command) && self.gate_command.is_unanswered()
        };
        let is_resolved = |fault: &StandingFault| {
            if fault.from_check { !is_unasked(fault) } else { self.wanted.is_none() && !has_unstarted() }
        };
        if self.durable.fault.as_ref().is_none_or(is_resolved) {
            self.set_fault(self.waiting_fault(now), now);
        }
        if is_manual && self.wanted.is_none() && faults.is_empty() {
            let has_blocked = self.durable.images.blocked().next().is_some();
            let has_not_found = self.durable.images.not_found().next().is_some();
            let waits = undeployable.or_else(|| self.waits(now));
            self.emit(Event::Checked { has_blocked, has_not_found, waits }, now);
        }
    }

    /// Whether bringing up the project would start the same image as before: the tag points to the image of the existing
    /// containers, or else to the last proven one. True if no image is known to have run.
    fn ran_before(&self, view: &ImageView, containers: &[Container]) -> bool {
        let Some(tagged) = &view.tagged else { return false };
        let memory = self.durable.images.get(&view.configured);
        let known = |id: Option<&ImageId>| id.is_none_or(|id| *id == tagged.id);
        let mut made = containers.iter().filter(|c| c.is_made_from(&view.from)).peekable();
        let is_same = if made.peek().is_some() {
            made.all(|c| c.image == tagged.id)
        } else {
            known(memory.proven.as_ref().map(|proven| &proven.id))
        };
        is_same && !memory.is_unproven(&tagged.id)
    }

    /// The fault of the last check that a deployment has not resolved. Bringing up local images does not fix a
    /// configuration.
    pub(in crate::service) fn remaining_fault(&self, about_images: bool) -> Option<Fault> {
        let Some(seen) = self.known.observation.as_ref().filter(|seen| !seen.is_pending()) else {
            // The next check, or the rest of this one, tells whether it is resolved.
            let of_check = self.durable.fault.as_ref().filter(|fault| fault.from_check && self.can_check());
            return of_check.map(Fault::from);
        };
        let unlisted_files = self.unlisted_files_fault().filter(|_| !about_images);
        let texts: Vec<String> = unlisted_files.into_iter().chain(seen.registry_fault()).collect();
        let of_check = (!texts.is_empty()).then(|| Fault { text: texts.join("; "), from_check: true });
        of_check.or_else(|| self.postponed_fault())
    }

    /// Whether a failed image that could not be rolled back runs, or would be started because nothing runs, and the previous
    /// image is known.
    fn is_on_unproven(&self) -> bool {
        let Some(seen) = &self.known.observation else { return false };
        // The specification names the previous image again, which not all tasks run.
        let is_halfway = seen.swarm.as_deref().is_some_and(SwarmService::is_paused);
        let is_unproven = |view: &ImageView| {
            let memory = self.durable.images.get(&view.configured);
            let Some(proven) = &memory.proven else { return false };
            let may_run =
                |image: &LocalImage| memory.is_unproven(&image.id) || (is_halfway && image.id == proven.id);
            memory.unproven.is_some() && (view.running.is_empty() || view.running.iter().any(may_run))
        };
        seen.images.iter().any(is_unproven)
    }

    /// Removes the running images of containers that compose does not update.
    fn without_left_behind(&mut self, mut observation: Observation) -> Observation {
        let left = &mut self.durable.left_behind;
        left.retain(|id| observation.containers.iter().any(|c| c.id == *id));
        if left.is_empty() {
            return observation;
        }
        for view in &mut observation.images {
            let is_used = |c: &Container| !left.contains(&c.id) && c.is_made_from(&view.from);
            let used: Vec<&ImageId> =
                observation.containers.iter().filter(|c| is_used(c)).map(|c| &c.image).collect();
            view.running.retain(|image| used.contains(&&image.id));
        }
        observation
    }

    /// Returns a fault if the project runs, but no container was created from a configured image: to an engine, names that
    /// are spelled differently are different images.
    fn unused(&self) -> Option<String> {
        let compared = self.config.auto_update && self.config.can_deploy();
        let observation = self.known.observation.as_ref().filter(|_| compared)?;
        let wanted: Vec<&ImageView> = observation.images.iter().collect();
        let is_used = |c: &Container| wanted.iter().any(|view| c.is_made_from(&view.from));
        let all = &observation.containers;
        if wanted.is_empty() || all.iter().any(is_used) || !all.iter().any(Container::is_live) {
            return None;
        }
        let mut theirs: Vec<&str> = all.iter().map(|c| c.config_image.as_str()).collect();
        theirs.sort_unstable();
        theirs.dedup();
        if let Some(service) = &observation.swarm {
            return Some(wording::swarm::other_image(&service.name, &theirs, &wanted[0].configured));
        }
        let ours: Vec<Reference> = wanted.iter().map(|view| view.reference.clone()).collect();
        Some(wording::fault(&FaultCause::ImagesUnused { configured: &ours, used: &theirs }))
    }

    /// Returns a fault if a container is not of the compose project that would be brought up.
    pub(in crate::service) fn outside_project(&self, containers: &[Container]) -> Option<String> {
        let project = self.config.compose_project.as_deref().filter(|_| self.config.can_deploy())?;
        let outside = containers.iter().find(|c| self.config.is_outside_project(c))?;
        let (container, is_of) = (&*outside.name, &*outside.project);
        Some(wording::fault(&FaultCause::OutsideProject { container, is_of, project }))
    }

    /// Returns a fault if an update would replace a container that the agent needs.
    fn needed(&self) -> Option<String> {
        let seen = self.known.observation.as_ref()?;
        let (container, need) = seen.needed.as_ref()?;
        if let (Some(service), Some(view)) = (&seen.swarm, seen.images.first()) {
            return Some(wording::swarm::needed(&service.name, &view.configured, container, *need));
        }
        Some(wording::fault(&FaultCause::ContainerNeeded { container, need: *need }))
    }

    /// Returns a fault if the project was brought up with more files than are configured: compose adds an override file
    /// next to the first file by default, but not if files are named explicitly.
    pub(in crate::service) fn unlisted_files_fault(&self) -> Option<String> {
        let files = &self.known.observation.as_ref()?.unlisted_files;
        (!files.is_empty()).then(|| wording::fault(&FaultCause::FilesUnlisted { files }))
    }
}
