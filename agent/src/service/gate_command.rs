//! The gate command: which digests it is asked about, and what its answers come to (DECISIONS 7).

use jiff::Timestamp;

use crate::model::image::Digest;
use crate::ports::{GateAnswer, GateQuestion};

use super::action::Action;
use super::candidate::Candidate;
use super::event::Fault;
use super::gates::{Asker, Rules};
use super::{Service, wording};

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
    /// What the gate command says of a digest.
    pub(super) fn command_answer(&self, image: &str, digest: &Digest) -> Option<&GateAnswer> {
        let ask = self.command_asks.iter().find(|ask| ask.image == image && ask.digest == *digest);
        ask.and_then(CommandAsk::answer)
    }

    /// The gate command is asked once a cycle for each digest that the gates before it let go.
    pub(super) fn plan_command_asks(&mut self, candidates: &[Candidate], now: Timestamp) {
        let again = std::mem::take(&mut self.new_cycle);
        let (config, fleet) = (self.config.clone(), self.fleet.clone());
        let Some(update) = config.update.as_deref().filter(|update| !update.gate.is_empty()) else {
            self.command_asks.clear();
            return;
        };
        let is_shared = self.shares_gates();
        let Some(rules) = Rules::of(&config.name, Some(update), &fleet, is_shared, Asker::Cycle, now) else {
            return;
        };
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
}
