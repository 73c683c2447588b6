//! Digests that the registry has and that do not run: since when they are known, and who approved them (DECISIONS 7). What
//! this comes to is in `gates.rs`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, Reference};
use crate::ports::GateAnswer;

use super::compare::{self, Comparison};
use super::event::Event;
use super::gates::{self, Asker, Rules};
use super::input::{ImageView, Observation, ServiceReply, Unsigned};
use super::permit::FleetHold;
use super::rollout::plan::Cause;
use super::shared::SharedCandidate;
use super::{Durable, Service};

/// Digests that are noted at most, those of tags that the registry was asked for earlier among them.
const MOST_FOUND: usize = 100;

/// What is known of the digest that a tag has in its registry. One that leaves the tag and comes back begins anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Image as configured.
    pub image: String,
    /// Its repository and the tag that the registry was asked for. Earlier versions did not note it; theirs is what is
    /// asked for next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// What the registry has under it.
    pub digest: Digest,
    /// When this agent saw the registry answer it first. Never the image's own `created`: whoever makes it writes that.
    pub first_seen: Timestamp,
    /// A person has approved it.
    #[serde(default)]
    pub approved: bool,
    /// A person's trigger has found it, and its update has not begun since.
    #[serde(default)]
    pub triggered: bool,
    /// It was told that it waits.
    #[serde(default)]
    pub announced: bool,
    /// When the registry last answered this agent with another digest: it was not behind the tag before that, whatever
    /// others say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
}

impl Found {
    /// The fleet has seen it, maybe earlier (DECISIONS 7). Its word counts only for the time in which this agent did not
    /// look itself, so that a stolen warden cannot make a new digest old.
    fn seen_by_fleet(&mut self, since: Timestamp) {
        let earliest = self.not_before.unwrap_or(Timestamp::MIN);
        self.first_seen = since.max(earliest).min(self.first_seen);
    }
}

/// A digest that may be deployed once every gate lets it go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Image as configured.
    pub image: String,
    /// Its normal form.
    pub reference: Reference,
    /// What the registry has.
    pub digest: Digest,
    /// What runs.
    pub old_digest: Option<Digest>,
    /// When this agent saw it first, or the fleet did.
    pub first_seen: Timestamp,
    /// A person has approved it.
    pub approved: bool,
    /// Why it does not count as signed, where it must be.
    pub unsigned: Option<Unsigned>,
    /// A person's trigger has found it.
    pub triggered: bool,
    /// The gate command's answer; `None` while there is none.
    pub command: Option<GateAnswer>,
    /// What the warden said, where it holds it back.
    pub fleet: Option<FleetHold>,
    /// What other services of the project make of it that list the same image.
    pub others: Vec<SharedCandidate>,
}

impl Service {
    /// Whether anything may hold its updates.
    pub(super) fn is_gated(&self) -> bool {
        self.config.update.is_some() || self.fleet.is_gating() || self.shares_gates()
    }

    /// Notes since when the registry has had its digests, and forgets those that it has no more.
    pub(super) fn note_found(&mut self, observation: &Observation, now: Timestamp) {
        self.cap_first_seen(now);
        let mut found = std::mem::take(&mut self.durable.found);
        if !self.is_gated() {
            self.looked.clear();
            return;
        }
        let view_of = |image: &str| observation.images.iter().find(|view| view.configured == image);
        for known in found.iter_mut().filter(|known| known.reference.is_none()) {
            known.reference = view_of(&known.image).map(|view| view.target().clone());
        }
        let mut others: BTreeMap<String, Timestamp> = BTreeMap::new();
        found.retain(|known| {
            let stays = view_of(&known.image).is_some_and(|view| self.is_current(known, view));
            if let Some(reference) = known.reference.as_ref().filter(|_| !stays) {
                // In a new life nothing else is known of when it was behind the tag.
                others.insert(reference.to_string(), known.first_seen);
            }
            stays
        });
        let targets: BTreeSet<String> =
            observation.images.iter().map(|view| view.target().to_string()).collect();
        self.looked.retain(|target, _| targets.contains(target));
        for view in &observation.images {
            let Some(remote) = &view.remote else { continue };
            let (image, target) = (&view.configured, view.target());
            let last_look = self.looked.insert(target.to_string(), now);
            if found.iter().any(|known| known.image == *image && known.reference.as_ref() == Some(target)) {
                continue;
            }
            // What was said of this digest under another tag stays said; since when it is known counts for each tag.
            let known = |known: &&Found| known.image == *image && known.digest == *remote;
            let is = |what: fn(&Found) -> bool| found.iter().filter(known).any(what);
            let (approved, announced) = (is(|found| found.approved), is(|found| found.announced));
            let triggered = is(|found| found.triggered);
            found.push(Found {
                image: image.clone(),
                reference: Some(target.clone()),
                digest: remote.clone(),
                first_seen: now,
                approved,
                triggered,
                announced,
                not_before: others
                    .get(&target.to_string())
                    .map(|since| last_look.map_or(*since, |look| look.max(*since))),
            });
        }
        let is_target = |known: &Found| {
            view_of(&known.image).is_some_and(|view| known.reference.as_ref() == Some(view.target()))
        };
        while found.len() > MOST_FOUND
            && let Some(oldest) = found.iter().position(|known| !is_target(known))
        {
            found.remove(oldest);
        }
        self.durable.found = found;
        self.take_fleets_word();
    }

    /// What the fleet has seen earlier.
    pub(super) fn take_fleets_word(&mut self) {
        for found in &mut self.durable.found {
            let reference = found.reference.as_ref();
            let since = reference.and_then(|reference| self.fleet.seen_since(reference, &found.digest));
            if let Some(since) = since {
                found.seen_by_fleet(since);
            }
        }
    }

    /// What was seen later than now counts from now: the clock was set while nobody looked, or stands anywhere as long as
    /// the machine has no network.
    pub(super) fn cap_first_seen(&mut self, now: Timestamp) {
        for known in &mut self.durable.found {
            known.first_seen = known.first_seen.min(now);
        }
    }

    /// Whether the registry may have a digest under its tag yet. One that it is not asked for now is known as long as it may
    /// be deployed again.
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

    /// Digests that were decided on before.
    pub(super) fn settled_digests(&self) -> BTreeSet<(String, Digest)> {
        let Durable { blocked, failed_tags, not_found, found, .. } = &self.durable;
        let named = |(image, digest): (&String, &Digest)| (image.clone(), digest.clone());
        let failed = failed_tags.iter().flat_map(|(image, tags)| tags.values().map(move |d| (image, d)));
        let found = found.iter().map(|found| (&found.image, &found.digest));
        blocked.iter().chain(not_found).chain(failed).chain(found).map(named).collect()
    }

    /// Digests that an update would bring if every gate let them go; none where the service has no gates.
    pub(super) fn candidates<'a>(
        &'a self,
        observation: &'a Observation,
    ) -> impl Iterator<Item = Candidate> + 'a {
        let is_gated = self.config.auto_update && self.is_gated();
        let views = observation.images.iter().filter(move |_| is_gated);
        views.filter_map(|view| self.candidate(view, observation))
    }

    fn candidate(&self, view: &ImageView, observation: &Observation) -> Option<Candidate> {
        let (remote, unsigned) = match self.compared(view, observation) {
            Comparison::Stale { remote } => (remote, None),
            Comparison::Unsigned => {
                (view.remote.clone()?, Some(observation.unsigned.get(&view.configured)?.clone()))
            }
            _ => return None,
        };
        let is_it = |found: &&Found| {
            found.image == view.configured
                && found.digest == remote
                && found.reference.as_ref() == Some(view.target())
        };
        let found = self.durable.found.iter().find(is_it)?;
        let old = view.running.first().or(view.tagged.as_ref());
        Some(Candidate {
            image: view.configured.clone(),
            reference: view.target().clone(),
            old_digest: old.and_then(|old| compare::shown_digest(old, None)),
            first_seen: found.first_seen,
            approved: found.approved,
            unsigned,
            triggered: found.triggered,
            command: self.command_answer(&view.configured, &remote).cloned(),
            others: observation.others.get(&view.configured).cloned().unwrap_or_default(),
            fleet: self.fleet_hold(&view.configured, &remote),
            digest: remote,
        })
    }

    /// What is known of a digest, under each tag that has it.
    fn found_mut<'a>(
        &'a mut self,
        image: &'a str,
        digest: &'a Digest,
    ) -> impl Iterator<Item = &'a mut Found> + 'a {
        let found = self.durable.found.iter_mut();
        found.filter(move |found| found.image == image && found.digest == *digest)
    }

    /// Notes that a digest is told of; whether it was not before.
    fn announces(&mut self, image: &str, digest: &Digest) -> bool {
        let announce = |found: &mut Found| !std::mem::replace(&mut found.announced, true);
        self.found_mut(image, digest).map(announce).fold(false, |any, new| any | new)
    }

    /// Whether a gate holds the digest that a deployment for this reason would bring.
    pub(super) fn is_held(
        &self,
        view: &ImageView,
        observation: &Observation,
        cause: &Cause,
        now: Timestamp,
    ) -> bool {
        let Some(rules) = self.rules(now) else { return false };
        let rules = if *cause == Cause::Redeploy { rules.asked_by(Asker::Redeploy) } else { rules };
        let holds = |view: &ImageView| {
            let candidate = self.candidate(view, observation);
            candidate.is_some_and(|candidate| rules.first_hold(&candidate).is_some())
        };
        // A variable moves all its images at once: each must be free to go.
        let lags = |other: &ImageView| match self.compared(other, observation) {
            Comparison::UpToDate => false,
            Comparison::Stale { .. } => holds(other),
            _ => true,
        };
        let others = observation.images.iter().filter(|other| other.configured != view.configured);
        holds(view) || (view.newer.is_some() && others.filter(|other| other.newer.is_some()).any(lags))
    }

    /// What the gates go by; `None` where the service has none.
    pub(super) fn rules(&self, now: Timestamp) -> Option<Rules<'_>> {
        let Self { config, fleet, .. } = self;
        let (update, is_shared) = (config.update.as_deref(), self.shares_gates());
        let rules = Rules::of(&config.name, update, fleet, is_shared, Asker::Cycle, now);
        rules.filter(|_| config.auto_update)
    }

    /// Digests as the last check saw them.
    pub(super) fn seen_candidates(&self) -> Vec<Candidate> {
        self.seen.iter().flat_map(|seen| self.candidates(seen)).collect()
    }

    /// Why the first digest that waits does so.
    pub(super) fn waits(&self, now: Timestamp) -> Option<String> {
        Some(self.rules(now)?.first_held(&self.seen_candidates())?.1.why)
    }

    /// A person's trigger is for what it found, and for nothing that is pushed later. It holds until the update begins,
    /// also where a gate that no trigger passes lets that wait.
    pub(super) fn note_trigger(&mut self, observation: &Observation, now: Timestamp) {
        if let Some(postponed) = &mut self.durable.postponed {
            postponed.until = postponed.until.min(now);
        }
        let is_approval = self.config.update.as_ref().is_some_and(|update| update.approve);
        let digests: Vec<(String, Digest)> =
            self.candidates(observation).map(|candidate| (candidate.image, candidate.digest)).collect();
        for (image, digest) in digests {
            for found in self.found_mut(&image, &digest) {
                found.triggered = true;
                found.approved |= is_approval;
            }
        }
    }

    /// The trigger for a digest is over: its update begins, or it runs.
    pub(super) fn end_trigger(&mut self, image: &str, digest: &Digest) {
        self.found_mut(image, digest).for_each(|found| found.triggered = false);
    }

    /// A person approves the digest that waits, or the one that is named.
    pub(super) fn approve(&mut self, named: Option<&Digest>, now: Timestamp) -> ServiceReply {
        let Some(rules) = self.rules(now).filter(|rules| rules.update.approve) else {
            return ServiceReply::NothingWaiting;
        };
        let candidates = self.seen_candidates();
        let is_named = |candidate: &&Candidate| named.is_none_or(|digest| *digest == candidate.digest);
        let waits = |candidate: &&Candidate| rules.awaits_approval(candidate);
        let Some(chosen) = candidates.iter().filter(is_named).find(waits) else {
            // Whoever approves twice has what was wanted.
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
        self.check_due = true;
        self.emit(Event::Approved { image, digest: digest.clone() }, now);
        ServiceReply::Approved(digest)
    }

    /// What follows for the gates from a check that saw everything: who is to be asked, what is to be told, and when to
    /// look again.
    pub(super) fn follow_candidates(&mut self, now: Timestamp) {
        let candidates = self.seen_candidates();
        self.plan_command_asks(&candidates, now);
        self.announce(&candidates, now);
        self.recheck_when_lifted(now);
    }

    /// Looks again when the next gate lets go what it holds.
    pub(super) fn recheck_when_lifted(&mut self, now: Timestamp) {
        let Some(rules) = self.rules(now) else { return };
        let lifts = self.seen_candidates().iter().filter_map(|candidate| rules.lifts_at(candidate)).min();
        self.recheck_at = self.recheck_at.into_iter().chain(lifts).min();
    }

    /// Tells of each digest once that it waits, and what for. Where that is not known yet, it is told later.
    pub(super) fn announce(&mut self, candidates: &[Candidate], now: Timestamp) {
        for candidate in candidates {
            let hold = self.rules(now).and_then(|rules| rules.first_hold(candidate));
            let Some(gate) = hold.filter(|gate| gates::is_decided(gate, candidate)) else { continue };
            if !self.announces(&candidate.image, &candidate.digest) {
                continue;
            }
            let (image, digest) = (candidate.image.clone(), candidate.digest.clone());
            let old_digest = candidate.old_digest.clone();
            self.emit(Event::UpdateAvailable { image, digest, old_digest, gate }, now);
        }
    }
}
