//! When the gate command is called, and its answers (DECISIONS 7).

use jiff::Timestamp;

use crate::model::image::Digest;
use crate::ports::{GateAnswer, GateQuestion};
use crate::service::action::Action;
use crate::service::event::Fault;
use crate::service::gates::candidate::Candidate;
use crate::service::gates::command::{AskState, CommandAsk};
use crate::service::gates::rules::{Asker, Rules};
use crate::service::{Service, wording};

impl Service {
    /// The gate command's answer for a digest.
    pub(in crate::service) fn command_answer(&self, image: &str, digest: &Digest) -> Option<&GateAnswer> {
        let ask = self.gate_command.asks.iter().find(|ask| ask.image == image && ask.digest == *digest);
        ask.and_then(CommandAsk::answer)
    }

    /// Plans calls of the gate command: once per cycle for each digest that no earlier gate holds. An answer counts for its
    /// cycle only: if an earlier gate holds the digest in the next one, it is forgotten, and asked for again when that opens.
    pub(in crate::service) fn plan_command_asks(&mut self, candidates: &[Candidate], now: Timestamp) {
        let again = std::mem::take(&mut self.gate_command.new_cycle);
        let (config, fleet) = (self.config.clone(), self.fleet.clone());
        let Some(update) = config.update.as_deref().filter(|update| !update.gate.is_empty()) else {
            self.gate_command.asks.clear();
            return;
        };
        let is_shared = self.shares_gates();
        let rules = Rules::of(&config.name, Some(update), &fleet, is_shared, Asker::Cycle, now);
        let counts = |ask: &CommandAsk| {
            let mut of_ask = candidates.iter().filter(|c| c.image == ask.image && c.digest == ask.digest);
            of_ask.any(|candidate| !again || rules.may_ask_command(candidate))
        };
        self.gate_command.asks.retain(|ask| ask.state == AskState::Asking || counts(ask));
        for candidate in candidates.iter().filter(|candidate| rules.may_ask_command(candidate)) {
            let (image, digest) = (candidate.image.clone(), candidate.digest.clone());
            match self.gate_command.asks.iter_mut().find(|ask| ask.image == image && ask.digest == digest) {
                Some(ask) if again && ask.state != AskState::Asking => ask.state = AskState::Due,
                Some(_) => {}
                None => {
                    self.gate_command.asks.push(CommandAsk {
                        image,
                        digest,
                        state: AskState::Due,
                        answer: None,
                    });
                }
            }
        }
    }

    /// Returns the next call of the gate command, if one is due, and marks it as running.
    pub(in crate::service) fn next_command_ask(&mut self, now: Timestamp) -> Option<Action> {
        let at = self.gate_command.asks.iter().position(|ask| ask.state == AskState::Due)?;
        // Before the first check nothing is known of the digest, and the call stays due.
        self.known.observation.as_ref()?;
        let ask = &self.gate_command.asks[at];
        let mut candidates = self.seen_candidates(now).into_iter();
        let candidate = candidates.find(|c| c.image == ask.image && c.digest == ask.digest);
        let (Some(candidate), Some(update)) = (candidate, &self.config.update) else {
            self.gate_command.asks.remove(at);
            return None;
        };
        let action = Action::RunGateCommand {
            argv: update.gate.clone(),
            question: GateQuestion {
                service: self.config.name.clone(),
                image: candidate.reference,
                digest: candidate.digest.clone(),
                old_digest: candidate.old_digest,
            },
            image: candidate.image,
        };
        self.gate_command.asks[at].state = AskState::Asking;
        Some(action)
    }

    /// Whether a call is due or running.
    pub(in crate::service) fn awaits_command(&self) -> bool {
        self.gate_command.asks.iter().any(|ask| ask.state != AskState::Answered)
    }

    /// Handles an answer of the gate command.
    pub(in crate::service) fn command_answered(
        &mut self,
        image: &str,
        digest: &Digest,
        answer: GateAnswer,
        now: Timestamp,
    ) {
        let before = self.command_fault();
        let is_asked = |ask: &&mut CommandAsk| ask.image == image && ask.digest == *digest;
        let Some(ask) = self.gate_command.asks.iter_mut().find(is_asked) else { return };
        let goes = matches!(answer, GateAnswer::Go { .. });
        (ask.state, ask.answer) = (AskState::Answered, Some(answer));
        if goes && self.can_check() {
            // The check compares again, and the update begins if no other gate holds it.
            self.checks.request();
        }
        if let Some(text) = self.command_fault() {
            if self.durable.fault.as_ref().is_none_or(|fault| fault.from_check) {
                self.set_fault(Some(Fault { text, from_check: true }), now);
            }
        } else if before.is_some()
            && self.durable.fault.as_ref().is_some_and(|f| Some(&f.text) == before.as_ref())
        {
            self.set_fault(None, now);
        }
        self.announce(self.held_candidates(now), now);
    }

    /// The fault of the gate command if its last call failed.
    pub(in crate::service) fn command_fault(&self) -> Option<String> {
        self.gate_command.asks.iter().find_map(|ask| match &ask.answer {
            Some(GateAnswer::Failed { fault, .. }) => Some(wording::command_failed(fault)),
            _ => None,
        })
    }
}
