//! Counters: folds over events, so that nothing has to be inferred from states.

use std::time::Duration;

use evenkeel_common::wire::{DeployOutcome, LastDeployment};
use jiff::Timestamp;

use crate::service::event::{Event, GoBackEnd, GoBackResult, Note};
use crate::service::rollout::plan::Cause;
use crate::service::state::Totals;

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

    /// What the status record shows of it.
    pub(super) fn record(&self, at: Timestamp) -> LastDeployment {
        LastDeployment { at, outcome: self.outcome, outage_seconds: self.outage.map(Into::into) }
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

/// What the decisions have emitted and nobody has collected yet.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Emitted {
    /// Events with their times, and the outage that the deployment in progress had caused by then.
    pub(in crate::service) events: Vec<(Timestamp, Event, Option<Duration>)>,
    /// Log lines.
    pub(in crate::service) notes: Vec<Note>,
    /// The deployment that ended.
    pub(in crate::service) ended: Option<Ended>,
}
