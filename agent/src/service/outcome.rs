//! How a deployment ended, told at the moment of the decision: what is counted is never guessed from states.

use jiff::Timestamp;

use super::Service;

/// How a deployment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeployOutcome {
    /// What it brought is proven.
    Succeeded,
    /// It was undone, and what ran before is proven again.
    RolledBack,
    /// It could not be made, or the rollback failed.
    Failed,
    /// Somebody stopped, removed or replaced the containers on probation: nothing was proven either way.
    Inconclusive,
}

impl DeployOutcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::RolledBack, Self::Failed, Self::Inconclusive];

    /// Its word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::RolledBack => "rolled_back",
            Self::Failed => "failed",
            Self::Inconclusive => "broken_off",
        }
    }
}

/// The end of a deployment. What is left to tidy up then does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub outcome: DeployOutcome,
    /// When it had begun.
    pub begun: Timestamp,
}

impl Service {
    /// Notes how the deployment under way ended.
    pub(super) fn end(&mut self, outcome: DeployOutcome) {
        self.ended =
            self.durable.deployment.as_ref().map(|deployment| Ended { outcome, begun: deployment.begun });
    }
}
