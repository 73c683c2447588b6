//! What is decided of each image of a service: how it compares with the registry, and whether its update is held. The check,
//! the plan, permits, announcements, `/why` and the status read this; none of them asks the gates by itself.

use evenkeel_common::wire::Gate;
use jiff::Timestamp;

use crate::model::image::{Digest, Reference};
use crate::model::{Container, Model};
use crate::service::compare::Comparison;
use crate::service::gates::candidate::Candidate;
use crate::service::gates::rules::Asker;
use crate::service::observation::{BlockedElsewhere, ImageView, Observation};
use crate::service::rollout::baseline::Baseline;
use crate::service::rollout::plan::Cause;
use crate::service::scope::{Part, Scope};
use crate::service::{Service, compare, gates};

/// What is decided of one image, as of an observation.
#[derive(Debug)]
pub(in crate::service) struct ImageDecision<'a> {
    /// What was seen of the image.
    pub(in crate::service) view: &'a ImageView,
    /// How it compares with the registry.
    pub(in crate::service) comparison: Comparison,
    /// The digest that an update would deploy, if it is subject to gates.
    pub(in crate::service) candidate: Option<Candidate>,
    /// The first gate that holds this digest.
    pub(in crate::service) gate: Option<Gate>,
    /// Whether the digest is not deployed: a gate holds it, nothing runs that could prove it, or another image of its tag
    /// variable lags.
    pub(in crate::service) is_held: bool,
    /// Whether its update failed recently, for a reason that is not the image's, and is not tried again yet.
    pub(in crate::service) is_postponed: bool,
}

impl ImageDecision<'_> {
    /// The digest and the first gate that holds it, if one does.
    pub(in crate::service) fn held(self) -> Option<(Candidate, Gate)> {
        self.candidate.zip(self.gate)
    }

    /// Whether an update of the image may begin.
    pub(in crate::service) fn is_free_update(&self) -> bool {
        self.free_digest().is_some() && !self.is_postponed
    }

    /// The digest of an update that nothing holds, postponed or not.
    fn free_digest(&self) -> Option<&Digest> {
        match &self.comparison {
            Comparison::Stale { remote } if !self.is_held => Some(remote),
            _ => None,
        }
    }

    fn is_pulled(&self) -> bool {
        matches!(self.comparison, Comparison::Pulled { .. })
    }

    /// Whether the image keeps the others of its tag variable, all of which are updated at once, from their newer tag.
    fn lags(&self) -> bool {
        self.view.newer.is_some()
            && match self.comparison {
                Comparison::UpToDate => false,
                Comparison::Stale { .. } => self.gate.is_some(),
                _ => true,
            }
    }
}

/// Of several held digests the one that is shown, with its gate: one that does not open by itself comes first, for which a
/// person may have to do something, and of these the one whose gate is the first.
pub(in crate::service) fn shown_hold<'a>(
    decisions: &'a [ImageDecision<'_>],
) -> Option<(&'a Candidate, &'a Gate)> {
    let held = decisions.iter().filter_map(|one| one.candidate.as_ref().zip(one.gate.as_ref()));
    held.min_by_key(|(_, gate)| (gate.lifts_at.is_some(), gates::place(&gate.gate)))
}

/// Whether all containers that run an image are paused.
fn is_paused(view: &ImageView, observation: &Observation) -> bool {
    let live = observation.containers.iter().filter(|c| c.is_live() && c.is_made_from(&view.from));
    let mut live = live.peekable();
    !view.running.is_empty() && live.peek().is_some() && live.all(|c| !c.is_active())
}

/// Whether an update brings up no container of an image, because none runs that is not paused.
fn is_down(view: &ImageView, observation: &Observation) -> bool {
    view.running.is_empty() || is_paused(view, observation)
}

impl Service {
    /// Decides on each image for a deployment with this cause.
    pub(in crate::service) fn decide_images<'a>(
        &self,
        observation: &'a Observation,
        cause: &Cause,
        now: Timestamp,
    ) -> Vec<ImageDecision<'a>> {
        let rules = self.rules(now);
        let rules = if *cause == Cause::Redeploy { rules.for_asker(Asker::Redeploy) } else { rules };
        let decide = |view: &'a ImageView| {
            let comparison = self.compared(view, observation);
            let candidate = self.candidate(view, &comparison, observation);
            let gate = candidate.as_ref().and_then(|candidate| rules.first_hold(candidate));
            // A newer tag is not written to the env file without proof, and there is none unless something runs, or is started.
            let lacks_proof = *cause == Cause::Update
                && view.newer.is_some()
                && is_down(view, observation)
                && !self.is_first_start(view, observation)
                && matches!(comparison, Comparison::Stale { .. });
            let is_held = gate.is_some() || lacks_proof;
            ImageDecision { view, comparison, candidate, is_held, is_postponed: false, gate }
        };
        let mut decisions: Vec<ImageDecision<'a>> = observation.images.iter().map(decide).collect();
        if self.config.auto_update {
            let lagging = decisions.iter().filter(|decision| decision.lags()).count();
            for decision in decisions.iter_mut().filter(|decision| decision.view.newer.is_some()) {
                decision.is_held |= lagging > usize::from(decision.lags());
            }
        }
        // Only a person deploys what is postponed; whatever else begins meanwhile leaves it as it is.
        if *cause != Cause::Redeploy {
            self.mark_postponed(&mut decisions, now);
        }
        if let (Cause::Update, Some(Ok(definition))) = (cause, &observation.definition)
            && decisions.iter().any(ImageDecision::is_pulled)
        {
            let before = self.before(cause, observation, now);
            let again = |decision: &mut ImageDecision<'a>| {
                let Comparison::Pulled { remote } = &decision.comparison else { return };
                let (view, comparison) = (decision.view, Comparison::Stale { remote: remote.clone() });
                let candidate = self.candidate(view, &comparison, observation);
                let gate = candidate.as_ref().and_then(|candidate| rules.first_hold(candidate));
                let is_held = gate.is_some();
                *decision = ImageDecision { view, comparison, candidate, is_held, is_postponed: false, gate };
            };
            // It has crashed since, or counts as crashed only now.
            let is_of = |was: &Baseline, view: &ImageView| {
                was.made_from().is_some_and(|r| r == view.from || r == view.reference)
            };
            for decision in &mut decisions {
                if before.iter().any(|was| was.live && is_of(was, decision.view)) {
                    again(decision);
                }
            }
            for at in jobs_of_updates(&decisions, &definition.model, &before) {
                again(&mut decisions[at]);
            }
            self.mark_postponed(&mut decisions, now);
        }
        decisions
    }

    /// Marks the updates that wait for their next attempt. Images that move to another tag of the tag variable wait together.
    fn mark_postponed(&self, decisions: &mut [ImageDecision<'_>], now: Timestamp) {
        if self.durable.postponed.is_empty() {
            return;
        }
        let waits = |digests: &[&Digest]| {
            self.durable.postponed.iter().any(|one| now < one.until && one.is_of(digests))
        };
        let moves =
            |view: &ImageView| *view.target() != view.from && self.config.is_of_variable(&view.configured);
        let moving = decisions.iter().filter(|decision| moves(decision.view));
        let moving: Vec<&Digest> = moving.filter_map(ImageDecision::free_digest).collect();
        let all_moving_wait = waits(&moving);
        for decision in decisions {
            let Some(digest) = decision.free_digest() else { continue };
            decision.is_postponed = if moves(decision.view) { all_moving_wait } else { waits(&[digest]) };
        }
    }

    /// Compares an image with the registry. A block by another service of the project also counts.
    pub(in crate::service) fn compared(&self, view: &ImageView, observation: &Observation) -> Comparison {
        let memory = self.durable.images.get(&view.configured);
        let is_declined = view.remote.is_some() && memory.declined == view.remote;
        if is_declined || observation.block_elsewhere(view).is_some() {
            return Comparison::Blocked;
        }
        let of_others = |c: &Container| c.manager.is_some() && c.is_made_from(&view.from);
        if observation.containers.iter().any(of_others) {
            return Comparison::Managed;
        }
        if observation.unanswered.contains_key(&view.configured) {
            // The registry may still have the blocked digest.
            return if memory.blocked.is_some() { Comparison::Blocked } else { Comparison::Unanswered };
        }
        match compare::compare(view, memory) {
            Comparison::Stale { .. } | Comparison::NotFound { .. }
                if observation.unsigned.contains_key(&view.configured) =>
            {
                Comparison::Unsigned
            }
            // Compose would pull what the tag names by then, whatever the gates have opened for.
            Comparison::NotFound { remote, .. }
                if self.opens_for_digests() && self.is_first_start(view, observation) =>
            {
                Comparison::Stale { remote }
            }
            Comparison::NotFound { remote, .. } if self.is_first_start(view, observation) => {
                Comparison::FirstStart { remote }
            }
            // What is paused can't be proven before it runs again.
            Comparison::Stale { remote }
                if is_paused(view, observation)
                    && view.current().iter().all(|image| image.digests.contains(&remote)) =>
            {
                Comparison::UpToDate
            }
            Comparison::Stale { remote }
                if is_down(view, observation)
                    && !self.starts_project(&observation.containers)
                    && memory.pulled.as_ref() == Some(&remote) =>
            {
                Comparison::Pulled { remote }
            }
            compared => compared,
        }
    }

    /// The first image, as of the last check, whose digest is not deployed because another service of the project has blocked
    /// it and this one has not, with that digest and the gate that says so.
    pub(in crate::service) fn held_by_block_elsewhere(&self) -> Option<(&str, &Digest, Gate)> {
        let seen = self.known.observation.as_deref().filter(|_| self.config.auto_update)?;
        seen.images.iter().find_map(|view| {
            let BlockedElsewhere { service, digest, .. } = seen.block_elsewhere(view)?;
            let local = view.current();
            let runs = !local.is_empty() && local.iter().all(|image| image.digests.contains(digest));
            if runs || self.durable.images.get(&view.configured).is_blocked(digest) {
                return None;
            }
            let gate = gates::blocked_elsewhere(&view.configured, digest, service);
            Some((view.configured.as_str(), digest, gate))
        })
    }

    /// The decisions on an update, as of the last check; none if no gate can hold one. The status asks for them often.
    pub(in crate::service) fn seen_decisions(&self, now: Timestamp) -> Vec<ImageDecision<'_>> {
        let seen = self.known.observation.as_deref().filter(|_| self.may_be_held());
        seen.map(|seen| self.decide_images(seen, &Cause::Update, now)).unwrap_or_default()
    }

    /// Whether a gate holds an update that has failed: it is not tried again before the gate opens.
    pub(in crate::service) fn holds_failed(&self, decisions: &[ImageDecision<'_>]) -> bool {
        let held = decisions.iter().filter(|decision| decision.gate.is_some());
        let mut candidates = held.filter_map(|decision| decision.candidate.as_ref());
        candidates.any(|held| self.durable.postponed.iter().any(|one| one.is_of(&[&held.digest])))
    }

    /// The digests that are subject to gates, as of the last check.
    pub(in crate::service) fn seen_candidates(&self, now: Timestamp) -> Vec<Candidate> {
        self.seen_decisions(now).into_iter().filter_map(|decision| decision.candidate).collect()
    }

    /// Those of them that a gate holds, each with the first gate that does, as of the last check.
    pub(in crate::service) fn held_candidates(&self, now: Timestamp) -> Vec<(Candidate, Gate)> {
        self.seen_decisions(now).into_iter().filter_map(ImageDecision::held).collect()
    }
}

/// The images that were only pulled, by their index, that jobs run on for which services of a free update wait: they are
/// updated with these.
fn jobs_of_updates(decisions: &[ImageDecision<'_>], model: &Model, before: &[Baseline]) -> Vec<usize> {
    let free: Vec<Reference> = decisions
        .iter()
        .filter(|decision| decision.is_free_update())
        .flat_map(|decision| [decision.view.from.clone(), decision.view.target().clone()])
        .collect();
    let is_job = |view: &ImageView| {
        let images = free.iter().chain([&view.from, &view.reference]).cloned().collect();
        let scope = Scope { images, before: before.to_vec(), part: Part::All };
        scope.brings_up(model, |image| *image == view.from || *image == view.reference)
    };
    let indices = decisions.iter().enumerate();
    indices.filter(|(_, decision)| decision.is_pulled() && is_job(decision.view)).map(|(at, _)| at).collect()
}
