//! Counters: folds over events, so that nothing has to be inferred from states.

use std::time::Duration;

use jiff::Timestamp;

use super::Totals;
use super::event::{Event, GoBackEnd, GoBackResult};
use super::rollout::plan::Cause;

/// How a deployment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeployOutcome {
    /// Its images are proven.
    Succeeded,
    /// It was rolled back, and the previous images are proven again.
    RolledBack,
    /// It could not be executed, or the rollback failed.
    Failed,
    /// The containers on probation were stopped, removed or replaced from outside: nothing was proven.
    Inconclusive,
}

impl DeployOutcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::RolledBack, Self::Failed, Self::Inconclusive];

    /// The label value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::RolledBack => "rolled_back",
            Self::Failed => "failed",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// The end of a deployment, not including the clean-up that remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub outcome: DeployOutcome,
    /// When it had begun.
    pub begun: Timestamp,
    /// How long a changed service was interrupted by it, the longest; `None` if unknown, or if none was up before.
    pub outage: Option<Duration>,
}

impl Ended {
    /// Returns the end that an event reports.
    pub(super) fn of(event: &Event, outage: Option<Duration>) -> Option<Self> {
        match event {
            Event::DeployEnded { outcome, begun, .. } => {
                Some(Self { outcome: *outcome, begun: *begun, outage })
            }
            _ => None,
        }
    }
}

impl Totals {
    /// Counts an event (spec 2.1).
    pub(super) fn fold(&mut self, event: &Event) {
        match event {
            Event::DeployEnded { outcome: DeployOutcome::Succeeded, updated: true, .. } => self.updates += 1,
            // A container that could not be recreated counts as a failed restart.
            Event::DeployEnded { cause: Cause::RecreateContainer { .. }, .. } => {}
            Event::DeployEnded { outcome: DeployOutcome::Failed, .. } | Event::RestartFailed { .. } => {
                self.failures += 1;
            }
            Event::RolledBack { .. }
            | Event::GoBack(GoBackEnd { result: GoBackResult::Proven { .. }, .. })
            | Event::RollbackRetried => self.rollbacks += 1,
            Event::Restarting { .. } => self.restarts += 1,
            Event::RestartUnanswered => self.restarts = self.restarts.saturating_sub(1),
            _ => {}
        }
    }
}
