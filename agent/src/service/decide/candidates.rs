//! Digests that may be deployed: first seen, approved, announced, held (DECISIONS 7).

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_common::wire::Gate;
use jiff::{SignedDuration, Timestamp};

use crate::model::image::Digest;
use crate::service::compare::Comparison;
use crate::service::decide::image::{ImageDecision, shown_hold};
use crate::service::event::Event;
use crate::service::gates::candidate::{Candidate, DefinitionHold, PlayedBack, Unsigned};
use crate::service::gates::rules::{Asker, Rules};
use crate::service::images::{Found, ImageMemory};
use crate::service::input::ServiceReply;
use crate::service::observation::{ImageView, Observation};
use crate::service::rollout::plan::Cause;
use crate::service::{Service, compare, gates};

/// Maximum number of recorded digests of an image, including those of tags that are no longer queried.
const MAX_FOUND: usize = 100;
/// How long it is unknown whether a digest is signed before its update is announced as held: it may stay so.
const UNREAD: SignedDuration = SignedDuration::from_hours(1);

/// Notes whether the image lacks what its tag points to. A tag that moves on before the image is updated does not make it less
/// behind.
fn note_behind(view: &ImageView, memory: &mut ImageMemory, now: Timestamp) {
    let Some(remote) = &view.remote else { return };
    let local = view.current();
    let is_behind = local.is_empty() || local.iter().any(|image| !image.digests.contains(remote));
    let found = memory.found_digest(view.target(), remote).map(|found| found.first_seen);
    let since = memory.behind_since.or(found).map_or(now, |since| since.min(now));
    memory.behind_since = is_behind.then_some(since);
}

impl Service {
    pub(in crate::service) fn definition_hold(&self, image: &str) -> Option<Arc<DefinitionHold>> {
        let differences = self.known.differences.get(image)?.clone();
        let other_files = self.known.other_files.clone();
        Some(Arc::new(DefinitionHold { differences, project: self.compose_project()?, other_files }))
    }

    /// Returns the compose service that the probe names, if the compose files do not have it.
    fn probe_lacks(&self, observation: &Observation) -> Option<String> {
        let name = self.config.update.as_ref()?.probe.as_ref()?.service.as_ref()?;
        let definition = observation.definition.as_ref()?.as_ref().ok()?;
        definition.model.service(name).is_none().then(|| name.clone())
    }

    /// Whether this service has updates that a gate may hold.
    pub(in crate::service) fn may_be_held(&self) -> bool {
        self.config.auto_update && self.is_gated()
    }

    /// Whether any gate may hold updates of this service.
    pub(in crate::service) fn is_gated(&self) -> bool {
        self.has_gates() || !self.known.differences.is_empty()
    }

    /// Whether any gate other than that for edited compose files may hold them.
    pub(in crate::service) fn has_gates(&self) -> bool {
        self.config.update.is_some() || self.fleet.is_gating() || self.shares_gates()
    }

    /// Records new digests of the registry with the time of the first sighting, and drops those that are no longer there.
    pub(in crate::service) fn note_found(&mut self, observation: &Observation, now: Timestamp) {
        self.cap_first_seen(now);
        if !self.is_gated() {
            self.known.registry_answered_at.clear();
            self.durable.images.iter_mut().for_each(|(_, memory)| memory.forget_found());
            return;
        }
        let is_checked = |image: &str| observation.images.iter().any(|view| view.configured == image);
        for (_, memory) in self.durable.images.iter_mut().filter(|(image, _)| !is_checked(image)) {
            memory.forget_found();
        }
        let targets: BTreeSet<String> =
            observation.images.iter().map(|view| view.target().to_string()).collect();
        self.known.registry_answered_at.retain(|target, _| targets.contains(target));
        for view in &observation.images {
            let mut found = std::mem::take(&mut self.durable.images.of(&view.configured).found);
            self.note_found_of(view, &mut found, now);
            let is_unread = matches!(observation.unsigned.get(&view.configured), Some(Unsigned::Unknown(_)));
            for known in found.iter_mut().filter(|known| view.remote.as_ref() == Some(&known.digest)) {
                // It was told as one whose signatures can't be read. What it waits for now is told as well.
                let was_told = known.unread_since.is_some_and(|since| now.duration_since(since) >= UNREAD);
                known.announced &= is_unread || !was_told;
                // One that was announced before its signatures became unreadable is not told of again.
                let is_followed = is_unread && (known.unread_since.is_some() || !known.announced);
                let since = known.unread_since.map_or(now, |since| since.min(now));
                known.unread_since = is_followed.then_some(since);
            }
            let memory = self.durable.images.of(&view.configured);
            memory.found = found;
            note_behind(view, memory, now);
        }
        self.apply_fleet_sightings();
    }

    fn note_found_of(&mut self, view: &ImageView, found: &mut Vec<Found>, now: Timestamp) {
        let target = view.target();
        for known in found.iter_mut().filter(|known| known.reference.is_none()) {
            known.reference = Some(target.clone());
        }
        // After a restart of the agent, this is the only known time at which the tag pointed to another digest.
        let is_moved =
            |known: &&Found| !self.is_current(known, view) && known.reference.as_ref() == Some(target);
        let other_since = found.iter().rfind(is_moved).map(|known| known.first_seen);
        found.retain(|known| self.is_current(known, view));
        let Some(remote) = &view.remote else { return };
        let last_answer = self.known.registry_answered_at.insert(target.to_string(), now);
        if found.iter().all(|known| known.reference.as_ref() != Some(target)) {
            // Approval, trigger and announcement carry over from the same digest under another tag; `first_seen` is per tag.
            let is =
                |what: fn(&Found) -> bool| found.iter().filter(|known| known.digest == *remote).any(what);
            found.push(Found {
                reference: Some(target.clone()),
                digest: remote.clone(),
                first_seen: now,
                approved: is(|found| found.approved),
                triggered: is(|found| found.triggered),
                announced: is(|found| found.announced),
                not_before: other_since
                    .map(|since| last_answer.map_or(since, |at| at.max(since)))
                    .or_else(|| self.has_listed_without(view).then_some(now)),
                unread_since: None,
            });
        }
        while found.len() > MAX_FOUND
            && let Some(oldest) = found.iter().position(|known| known.reference.as_ref() != Some(target))
        {
            found.remove(oldest);
        }
    }

    /// Applies sightings of digests that the fleet reports.
    pub(in crate::service) fn apply_fleet_sightings(&mut self) {
        for found in self.durable.images.found_mut() {
            let reference = found.reference.as_ref();
            let since = reference.and_then(|reference| self.fleet.seen_since(reference, &found.digest));
            if let Some(since) = since {
                found.seen_by_fleet(since);
            }
        }
    }

    /// Caps `first_seen` at the current time: the clock may have been set while the agent was not running, or may be wrong
    /// until the machine has a network connection.
    pub(in crate::service) fn cap_first_seen(&mut self, now: Timestamp) {
        for known in self.durable.images.found_mut() {
            known.first_seen = known.first_seen.min(now);
        }
    }

    /// Whether the tag may still point to this digest. A digest of a tag that is currently not queried is kept as long as it
    /// may be deployed again.
    fn is_current(&self, known: &Found, view: &ImageView) -> bool {
        let Some(reference) = &known.reference else { return false };
        if reference == view.target() {
            return view.remote.as_ref().is_none_or(|remote| *remote == known.digest);
        }
        let (tag, in_force) = (reference.tag.as_deref(), view.reference.tag.as_deref());
        let (Some(tag), Some(in_force)) = (tag, in_force) else { return false };
        reference.repository == view.reference.repository
            && self.config.is_of_variable(&view.configured)
            && (tag == in_force || self.is_newer_tag(tag, in_force))
    }

    /// Digests that need not be confirmed again: those that were already decided on, and those that the last check has
    /// confirmed, whatever keeps them from being deployed.
    pub(in crate::service) fn settled_digests(&self) -> BTreeSet<(String, Digest)> {
        let of_image = |(image, memory): (&str, &ImageMemory)| {
            let found = memory.found.iter().map(|found| &found.digest);
            let ImageMemory { blocked, not_found, pulled, declined, failed_tags, .. } = memory;
            let settled = blocked.iter().chain(not_found).chain(pulled).chain(declined);
            let settled = settled.chain(failed_tags.values()).chain(found);
            settled.map(|digest| (image.to_owned(), digest.clone())).collect::<Vec<_>>()
        };
        let seen = self.known.observation.iter().flat_map(|seen| &seen.images);
        let confirmed = seen.filter_map(|view| Some((view.configured.clone(), view.remote.clone()?)));
        self.durable.images.iter().flat_map(of_image).chain(confirmed).collect()
    }

    /// The digest that an update would deploy if no gate held it; none if the service has no gates.
    pub(in crate::service) fn candidate(
        &self,
        view: &ImageView,
        comparison: &Comparison,
        observation: &Observation,
    ) -> Option<Candidate> {
        if !self.may_be_held() {
            return None;
        }
        let (remote, unsigned) = match comparison {
            Comparison::Stale { remote } | Comparison::FirstStart { remote }
                if self.is_lost_image(view, remote, observation) =>
            {
                return None;
            }
            Comparison::Stale { remote } | Comparison::FirstStart { remote } => (remote.clone(), None),
            Comparison::Unsigned => {
                (view.remote.clone()?, Some(observation.unsigned.get(&view.configured)?.clone()))
            }
            _ => return None,
        };
        let found = self.durable.images.get(&view.configured).found_digest(view.target(), &remote)?;
        let old = view.replaced_by(Some(&remote));
        Some(Candidate {
            image: view.configured.clone(),
            reference: view.target().clone(),
            old_digest: old.and_then(|old| compare::shown_digest(old, None)),
            first_seen: found.first_seen,
            approved: found.approved,
            unsigned,
            played_back: self.played_back(view, &remote, observation),
            triggered: found.triggered,
            command: self.command_answer(&view.configured, &remote).cloned(),
            others: observation.others.get(&view.configured).cloned().unwrap_or_default(),
            definition: self.definition_hold(&view.configured),
            orders: self.orders_of(view),
            configs: observation.configs_of(view),
            snapshot: self.snapshot_needed(view, observation),
            not_copied: self.durable.images.get(&view.configured).not_copied(&remote).cloned(),
            probe_lacks: self.probe_lacks(observation),
            fleet: self.fleet_hold(&view.configured, &remote),
            digest: remote,
        })
    }

    /// Whether the engine has lost the image that ran here last, and this is its digest: its start is no update. Whether it
    /// counts as signed is judged as ever.
    fn is_lost_image(&self, view: &ImageView, remote: &Digest, observation: &Observation) -> bool {
        let memory = self.durable.images.get(&view.configured);
        memory.published.as_ref() == Some(remote)
            && !memory.failed_before(remote)
            && self.is_first_start(view, observation)
            && self.played_back(view, remote, observation).is_none()
    }

    /// Why the signature of a digest is none for today.
    pub(in crate::service) fn played_back(
        &self,
        view: &ImageView,
        remote: &Digest,
        observation: &Observation,
    ) -> Option<PlayedBack> {
        if !self.requires_signature() {
            None
        } else if self.durable.images.get(&view.configured).has_left(remote) {
            Some(PlayedBack::Left)
        } else {
            observation.signed_earlier.contains(&view.configured).then_some(PlayedBack::SignedEarlier)
        }
    }

    fn requires_signature(&self) -> bool {
        self.config.update.as_ref().is_some_and(|update| !update.signed_by.is_empty())
    }

    /// The records of a digest, one per tag that points to it.
    fn found_mut<'a>(
        &'a mut self,
        image: &'a str,
        digest: &'a Digest,
    ) -> impl Iterator<Item = &'a mut Found> + 'a {
        let found = self.durable.images.of(image).found.iter_mut();
        found.filter(move |found| found.digest == *digest)
    }

    /// Marks a digest as announced; returns whether it was not announced before.
    fn announces(&mut self, image: &str, digest: &Digest) -> bool {
        let announce = |found: &mut Found| !std::mem::replace(&mut found.announced, true);
        self.found_mut(image, digest).map(announce).fold(false, |any, new| any | new)
    }

    /// The rules that the gates evaluate.
    pub(in crate::service) fn rules(&self, now: Timestamp) -> Rules<'_> {
        let Self { config, fleet, .. } = self;
        let (update, is_shared) = (config.update.as_deref(), self.shares_gates());
        Rules::of(&config.name, update, fleet, is_shared, Asker::Cycle, now)
    }

    /// Returns why an update waits that was found.
    pub(in crate::service) fn waits(&self, now: Timestamp) -> Option<String> {
        let elsewhere = self.held_by_block_elsewhere().map(|(_, _, gate)| gate.why);
        elsewhere.or_else(|| shown_hold(&self.seen_decisions(now)).map(|(_, gate)| gate.why.clone()))
    }

    /// Updates that are postponed wait no longer than until then: what they failed for may be mended.
    pub(in crate::service) fn try_postponed(&mut self, at: Timestamp) {
        for postponed in &mut self.durable.postponed {
            postponed.until = postponed.until.min(at);
        }
    }

    /// Applies a manual trigger to the digests that its check found, and to nothing that is pushed later. It stays in effect
    /// until the update begins, even if a gate that a trigger does not bypass delays that.
    pub(in crate::service) fn note_trigger(&mut self, observation: &Observation, now: Timestamp) {
        // With `ask_on`, only a person's approval says that the differences were read.
        let is_approval =
            self.config.update.as_ref().is_some_and(|update| update.approve && update.ask_on.is_empty());
        let decisions = self.decide_images(observation, &Cause::Update, now).into_iter();
        for candidate in decisions.filter_map(|decision| decision.candidate) {
            for found in self.found_mut(&candidate.image, &candidate.digest) {
                found.triggered = true;
                // An approval also opens the signature gate to an image of former times, which no trigger does.
                found.approved |= is_approval && candidate.played_back.is_none();
            }
        }
    }

    /// Clears the trigger for a digest: its update begins, or it already runs.
    pub(in crate::service) fn end_trigger(&mut self, image: &str, digest: &Digest) {
        self.found_mut(image, digest).for_each(|found| found.triggered = false);
    }

    /// Approves the waiting digest, or the one that is named.
    pub(in crate::service) fn approve(&mut self, named: Option<&Digest>, now: Timestamp) -> ServiceReply {
        let may_ask = |rules: &Rules<'_>| {
            rules.update.approve || !rules.update.ask_on.is_empty() || self.requires_signature()
        };
        let rules = self.rules(now);
        if !may_ask(&rules) {
            return ServiceReply::NothingWaiting;
        }
        let candidates = self.seen_candidates(now);
        let is_named = |candidate: &&Candidate| named.is_none_or(|digest| *digest == candidate.digest);
        let waits = |candidate: &&Candidate| rules.awaits_approval(candidate);
        let Some(chosen) = candidates.iter().filter(is_named).find(waits) else {
            // Approving twice is not an error.
            if let Some(again) = candidates.iter().filter(is_named).find(|candidate| candidate.approved) {
                return ServiceReply::Approved(again.digest.clone());
            }
            return match candidates.iter().find(waits) {
                Some(other) => ServiceReply::OtherWaiting(other.digest.clone()),
                None => ServiceReply::NothingWaiting,
            };
        };
        let (image, digest) = (chosen.image.clone(), chosen.digest.clone());
        self.found_mut(&image, &digest).for_each(|found| found.approved = true);
        // The update may begin now, and what the command has allowed may no longer be true.
        self.gate_command.new_cycle = true;
        self.checks.request();
        self.emit(Event::Approved { image, digest: digest.clone() }, now);
        ServiceReply::Approved(digest)
    }

    /// Updates the gates after a complete check: plans calls of the gate command, announces held updates and schedules the
    /// next check.
    pub(in crate::service) fn follow_candidates(&mut self, now: Timestamp) {
        let decisions = self.seen_decisions(now);
        let candidates: Vec<Candidate> =
            decisions.iter().filter_map(|decision| decision.candidate.clone()).collect();
        let held: Vec<(Candidate, Gate)> = decisions.into_iter().filter_map(ImageDecision::held).collect();
        self.plan_command_asks(&candidates, now);
        self.announce(held, now);
        self.recheck_when_lifted(now);
    }

    /// Schedules a check for the time at which the next gate opens.
    pub(in crate::service) fn recheck_when_lifted(&mut self, now: Timestamp) {
        let rules = self.rules(now);
        let candidates = self.seen_candidates(now);
        let lifts = candidates.iter().filter_map(|candidate| rules.lifts_at(candidate)).min();
        if let Some(at) = lifts {
            self.checks.request_by(at);
        }
    }

    /// Whether a gate after the gate command has opened by itself since the last check.
    pub(in crate::service) fn has_gate_lifted(&self, now: Timestamp) -> bool {
        let (rules, candidates) = (self.rules(now), self.seen_candidates(now));
        let since_check = |then| candidates.iter().any(|candidate| rules.has_lifted_since(candidate, then));
        self.checks.last.is_some_and(since_check)
    }

    /// Whether it has been unknown for long whether a digest is signed.
    fn is_long_unread(&self, candidate: &Candidate, now: Timestamp) -> bool {
        let Candidate { image, reference, digest, .. } = candidate;
        let found = self.durable.images.get(image).found_digest(reference, digest);
        let since = found.and_then(|found| found.unread_since);
        since.is_some_and(|since| now.duration_since(since) >= UNREAD)
    }

    /// Announces each waiting digest once, with the gate that holds it; deferred while the gate is undecided.
    pub(in crate::service) fn announce(&mut self, held: Vec<(Candidate, Gate)>, now: Timestamp) {
        for (candidate, gate) in held {
            let is_due = gates::is_decided(&gate, &candidate) || self.is_long_unread(&candidate, now);
            if !is_due || !self.announces(&candidate.image, &candidate.digest) {
                continue;
            }
            let differences = candidate.config_differences().to_vec();
            let Candidate { image, digest, old_digest, .. } = candidate;
            self.emit(Event::UpdateAvailable { image, digest, old_digest, gate, differences }, now);
        }
    }
}
