//! Digests that the registry has and that do not run: since when they are known, who approved them, and what the gate
//! command says of them (DECISIONS 7). What this comes to is in `gates.rs`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, Reference};
use crate::ports::{GateAnswer, GateQuestion};

use super::action::Action;
use super::compare::{self, Comparison};
use super::event::{Event, Fault};
use super::gates::{self, Asker, Rules};
use super::input::{ImageView, Observation, ServiceReply};
use super::rollout::plan::Cause;
use super::{Service, wording};

/// What is known of the digest that a tag has in its registry. One that leaves the tag and comes back begins anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Image as configured.
    pub image: String,
    /// What the registry has.
    pub digest: Digest,
    /// When this agent saw the registry answer it first. Never the image's own `created`: whoever makes it writes that.
    pub first_seen: Timestamp,
    /// A person has approved it.
    #[serde(default)]
    pub approved: bool,
    /// It was told that it waits.
    #[serde(default)]
    pub announced: bool,
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
    /// When this agent saw it first.
    pub first_seen: Timestamp,
    /// A person has approved it.
    pub approved: bool,
    /// The gate command's answer; `None` while there is none.
    pub command: Option<GateAnswer>,
}

/// A question to the gate command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandAsk {
    image: String,
    digest: Digest,
    state: AskState,
    /// What it said last.
    answer: Option<GateAnswer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AskState {
    /// It is to be asked.
    Due,
    /// It is being asked.
    Asking,
    /// It has answered.
    Answered,
}

impl CommandAsk {
    /// What counts now. While it is asked once more, an earlier "go" does not count any more.
    fn answer(&self) -> Option<&GateAnswer> {
        let is_asked = self.state != AskState::Answered;
        self.answer.as_ref().filter(|answer| !(is_asked && matches!(answer, GateAnswer::Go { .. })))
    }
}

impl Service {
    /// Notes since when the registry has had its digests, and forgets those that it has no more.
    pub(super) fn note_found(&mut self, observation: &Observation, now: Timestamp) {
        let found = &mut self.durable.found;
        if self.config.update.is_none() {
            found.clear();
            return;
        }
        let is_current = |known: &Found| {
            let view = observation.images.iter().find(|view| view.configured == known.image);
            view.is_some_and(|view| view.remote.as_ref().is_none_or(|remote| *remote == known.digest))
        };
        found.retain(is_current);
        for view in &observation.images {
            let Some(remote) = &view.remote else { continue };
            if found.iter().all(|known| known.image != view.configured) {
                let (image, digest) = (view.configured.clone(), remote.clone());
                found.push(Found { image, digest, first_seen: now, approved: false, announced: false });
            }
        }
    }

    /// Digests that an update would bring if every gate let them go; none where the service has no gates.
    pub(super) fn candidates<'a>(
        &'a self,
        observation: &'a Observation,
    ) -> impl Iterator<Item = Candidate> + 'a {
        let is_gated = self.config.auto_update && self.config.update.is_some();
        let views = observation.images.iter().filter(move |_| is_gated);
        views.filter_map(|view| self.candidate(view, observation))
    }

    fn candidate(&self, view: &ImageView, observation: &Observation) -> Option<Candidate> {
        let Comparison::Stale { remote } = self.compared(view, observation) else { return None };
        let found = self.durable.found.iter().find(|f| f.image == view.configured && f.digest == remote)?;
        let ask = self.command_asks.iter().find(|ask| ask.image == view.configured && ask.digest == remote);
        let old = view.running.first().or(view.tagged.as_ref());
        Some(Candidate {
            image: view.configured.clone(),
            reference: view.reference.clone(),
            old_digest: old.and_then(|old| compare::shown_digest(old, None)),
            first_seen: found.first_seen,
            approved: found.approved,
            command: ask.and_then(|ask| ask.answer().cloned()),
            digest: remote,
        })
    }

    /// Whether a gate holds the digest that a deployment for this reason would bring.
    pub(super) fn is_held(
        &self,
        view: &ImageView,
        observation: &Observation,
        cause: &Cause,
        now: Timestamp,
    ) -> bool {
        let asker = match cause {
            Cause::Redeploy => Asker::Redeploy,
            // It goes back to what was proven.
            Cause::RetryRollback => return false,
            _ => self.asker(),
        };
        let Some(rules) = self.rules(now) else { return false };
        let candidate = self.candidate(view, observation);
        candidate.is_some_and(|candidate| rules.first_hold(&candidate, asker).is_some())
    }

    /// What the gates go by; `None` where the service has none.
    pub(super) fn rules(&self, now: Timestamp) -> Option<Rules<'_>> {
        let update = self.config.update.as_deref().filter(|_| self.config.auto_update)?;
        Some(Rules { service: &self.config.name, update, now })
    }

    /// Digests as the last check saw them.
    fn seen_candidates(&self) -> Vec<Candidate> {
        self.seen.iter().flat_map(|seen| self.candidates(seen)).collect()
    }

    /// Why the first digest that waits does so.
    pub(super) fn waits(&self, now: Timestamp) -> Option<String> {
        let rules = self.rules(now)?;
        self.seen_candidates()
            .iter()
            .find_map(|candidate| Some(rules.first_hold(candidate, self.asker())?.why))
    }

    /// Who wants the update that would begin now.
    fn asker(&self) -> Asker {
        if self.trigger_passes { Asker::Trigger } else { Asker::Cycle }
    }

    /// A person's trigger is the approval of what it found.
    pub(super) fn approve_found(&mut self, observation: &Observation) {
        if !self.config.update.as_ref().is_some_and(|update| update.approve) {
            return;
        }
        let images: Vec<String> = self.candidates(observation).map(|candidate| candidate.image).collect();
        for found in &mut self.durable.found {
            found.approved |= images.contains(&found.image);
        }
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
        for found in self.durable.found.iter_mut().filter(|found| found.image == image) {
            found.approved = true;
        }
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
        if let Some(rules) = self.rules(now) {
            let lifts = candidates.iter().filter_map(|candidate| rules.lifts_at(candidate)).min();
            self.recheck_at = self.recheck_at.into_iter().chain(lifts).min();
        }
    }

    /// The gate command is asked once a cycle for each digest that the gates before it let go.
    fn plan_command_asks(&mut self, candidates: &[Candidate], now: Timestamp) {
        let again = std::mem::take(&mut self.new_cycle);
        let config = self.config.clone();
        let Some(update) = config.update.as_deref().filter(|update| !update.gate.is_empty()) else {
            self.command_asks.clear();
            return;
        };
        let rules = Rules { service: &config.name, update, now };
        let candidate_of =
            |ask: &CommandAsk| candidates.iter().any(|c| c.image == ask.image && c.digest == ask.digest);
        self.command_asks.retain(|ask| ask.state == AskState::Asking || candidate_of(ask));
        for candidate in candidates.iter().filter(|candidate| rules.may_ask_command(candidate)) {
            let (image, digest) = (candidate.image.clone(), candidate.digest.clone());
            match self.command_asks.iter_mut().find(|ask| ask.image == image && ask.digest == digest) {
                Some(ask) if again && ask.state != AskState::Asking => ask.state = AskState::Due,
                Some(_) => {}
                None => {
                    self.command_asks.push(CommandAsk { image, digest, state: AskState::Due, answer: None });
                }
            }
        }
    }

    /// The next question to the gate command, if there is one; marks it as asked.
    pub(super) fn next_command_ask(&mut self) -> Option<Action> {
        let at = self.command_asks.iter().position(|ask| ask.state == AskState::Due)?;
        let seen = self.seen.as_ref()?;
        let ask = &self.command_asks[at];
        let candidate = self.candidates(seen).find(|c| c.image == ask.image && c.digest == ask.digest);
        let (Some(candidate), Some(update)) = (candidate, &self.config.update) else {
            self.command_asks.remove(at);
            return None;
        };
        let action = Action::AskCommand {
            argv: update.gate.clone(),
            question: GateQuestion {
                service: self.config.name.clone(),
                image: candidate.reference,
                digest: candidate.digest.clone(),
                old_digest: candidate.old_digest,
            },
            image: candidate.image,
        };
        self.command_asks[at].state = AskState::Asking;
        Some(action)
    }

    /// Whether the gate command's answer is awaited.
    pub(super) fn awaits_command(&self) -> bool {
        self.command_asks.iter().any(|ask| ask.state != AskState::Answered)
    }

    /// The gate command has answered.
    pub(super) fn command_answered(
        &mut self,
        image: &str,
        digest: &Digest,
        answer: GateAnswer,
        now: Timestamp,
    ) {
        let before = self.command_fault();
        let is_asked = |ask: &&mut CommandAsk| ask.image == image && ask.digest == *digest;
        let Some(ask) = self.command_asks.iter_mut().find(is_asked) else { return };
        let goes = matches!(answer, GateAnswer::Go { .. });
        (ask.state, ask.answer) = (AskState::Answered, Some(answer));
        if goes && self.can_check() {
            // It is compared once more, and begins if the other gates let it go.
            self.check_due = true;
        }
        if let Some(text) = self.command_fault() {
            if self.fault.as_ref().is_none_or(|fault| fault.from_check) {
                self.set_fault(Some(Fault { text, from_check: true }), now);
            }
        } else if before.is_some() && self.fault.as_ref().is_some_and(|f| Some(&f.text) == before.as_ref()) {
            self.set_fault(None, now);
        }
        self.announce(&self.seen_candidates(), now);
    }

    /// What is wrong with the gate command, where its last answer was none.
    pub(super) fn command_fault(&self) -> Option<String> {
        self.command_asks.iter().find_map(|ask| match &ask.answer {
            Some(GateAnswer::Failed { fault, .. }) => Some(wording::command_failed(fault)),
            _ => None,
        })
    }

    /// Tells of each digest once that it waits, and what for. What the gate command is asked about is told when it has
    /// answered.
    fn announce(&mut self, candidates: &[Candidate], now: Timestamp) {
        for candidate in candidates {
            let hold = self.rules(now).and_then(|rules| rules.first_hold(candidate, self.asker()));
            let Some(gate) = hold else { continue };
            let is_asked = gates::is_command(&gate) && candidate.command.is_none();
            let found = self.durable.found.iter_mut().find(|found| found.image == candidate.image);
            let Some(found) = found.filter(|found| !found.announced && !is_asked) else { continue };
            found.announced = true;
            let (image, digest) = (candidate.image.clone(), candidate.digest.clone());
            let old_digest = candidate.old_digest.clone();
            self.emit(Event::UpdateAvailable { image, digest, old_digest, gate }, now);
        }
    }
}
