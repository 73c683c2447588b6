//! The gate command: for which digests it runs, and how its answers are used (DECISIONS 7).

use crate::model::image::Digest;
use crate::ports::GateAnswer;

/// A call of the gate command for one digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct CommandAsk {
    pub(in crate::service) image: String,
    pub(in crate::service) digest: Digest,
    pub(in crate::service) state: AskState,
    /// Its last answer.
    pub(in crate::service) answer: Option<GateAnswer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum AskState {
    /// To be run.
    Due,
    /// Running.
    Asking,
    /// It has answered.
    Answered,
}

impl CommandAsk {
    /// The answer in effect. While the command is due or running again, an earlier "go" no longer counts.
    pub(in crate::service) fn answer(&self) -> Option<&GateAnswer> {
        let is_asked = self.state != AskState::Answered;
        self.answer.as_ref().filter(|answer| !(is_asked && matches!(answer, GateAnswer::Go { .. })))
    }
}

/// The calls of the gate command.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct GateCommand {
    pub(in crate::service) asks: Vec<CommandAsk>,
    /// A poll cycle or a user has requested a check since the last calls were planned.
    pub(in crate::service) new_cycle: bool,
}

impl GateCommand {
    /// Whether it was not yet answered for a digest since the start of the agent.
    pub(in crate::service) fn is_unanswered(&self) -> bool {
        self.asks.iter().any(|ask| ask.answer.is_none())
    }
}
