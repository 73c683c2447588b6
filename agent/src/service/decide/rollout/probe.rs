//! When the containers on probation are probed.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::probe::{Answer, Target};
use crate::service::Service;
use crate::service::action::Action;

impl Service {
    /// Returns the tries that are due, if any.
    pub(in crate::service) fn next_probe(&mut self, now: Timestamp) -> Option<Action> {
        let due = self.probe_at(now)?;
        if self.probing.is_running || due > now {
            return None;
        }
        let deployment = self.durable.deployment.as_ref()?;
        let probation = deployment.phase.probation_of_new()?;
        let probe = deployment.plan().probe.clone()?;
        let interval = SignedDuration::try_from(probe.interval).unwrap_or(SignedDuration::MAX);
        self.probing.due_at = Some(now.checked_add(interval).unwrap_or(Timestamp::MAX));
        let targets = deployment.probe_targets(self.containers(), &self.durable.stops, probation.since);
        if targets.is_empty() {
            return None;
        }
        self.probing.is_running = true;
        Some(Action::Probe { since: probation.since, probe, targets })
    }

    /// When the next tries are due; `None` if there is nothing to try, or tries are in progress.
    pub(in crate::service) fn probe_at(&self, now: Timestamp) -> Option<Timestamp> {
        let deployment = self.durable.deployment.as_ref()?;
        let is_due = deployment.plan().probe.is_some() && deployment.phase.probation_of_new().is_some();
        (is_due && !self.probing.is_running).then(|| self.probing.due_at.unwrap_or(now))
    }

    /// Handles the answers of one try. Those of an earlier probation say nothing.
    pub(in crate::service) fn probed(
        &mut self,
        since: Timestamp,
        answers: BTreeMap<Target, Answer>,
        now: Timestamp,
    ) {
        self.probing.is_running = false;
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.phase.probation_of_new().is_none() {
            return;
        }
        let Some(probation) = deployment.phase.probation_mut() else { return };
        if probation.since != since {
            self.probing.due_at = None;
            return;
        }
        for (target, answer) in answers {
            probation.note_answer(target, answer);
        }
        self.inspections.request_by(now);
    }
}
