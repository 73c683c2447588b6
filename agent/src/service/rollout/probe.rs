//! Probes of containers on probation: when they are tried, and what their answers say about an image (DECISIONS 15).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::probe::{Answer, Probe, Target};
use crate::model::{Container, State};
use crate::service::action::Action;
use crate::service::{Service, wording};

use super::probation::{Baseline, Context, Failure, Flaw, Probation, Role};

/// Failures in a row, after a success, with which an image fails.
const MAX_FAILURES: u32 = 3;

/// What the probe of one target has shown so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// Whether it has succeeded at least once.
    pub passed: bool,
    /// Failures in a row since then. Those before are a slow start.
    pub failures: u32,
    /// The last answer, in one line.
    pub answer: String,
}

/// The tries in progress, and the time of the next ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Probing {
    is_running: bool,
    pub(in crate::service) due_at: Option<Timestamp>,
}

impl Context<'_> {
    /// The probe of this probation. It does not judge an image that is put back.
    fn probe(&self) -> Option<&Probe> {
        self.plan.probe.as_ref().filter(|_| !self.rolling_back)
    }

    /// Returns what is asked now. Containers that do not run are judged without a probe.
    pub(super) fn targets(&self, containers: &[Container]) -> Vec<Target> {
        let Some(probe) = self.probe() else { return Vec::new() };
        if probe.from.is_some() {
            return vec![Target::own_address()];
        }
        let is_asked = |c: &&Container| {
            c.state == State::Running
                && match &probe.service {
                    Some(service) => c.compose_service == *service && !self.is_put_aside(c),
                    None => self.role(c) == Some(Role::Updated),
                }
        };
        containers.iter().filter(is_asked).map(|c| Target(c.id.clone())).collect()
    }

    /// Reports whether none of the containers that a probe names runs any more.
    fn has_lost_service(&self, containers: &[Container]) -> bool {
        let Some(service) = self.probe().and_then(|probe| probe.service.as_ref()) else { return false };
        let ran = |was: &Baseline| was.compose_service == *service && was.well;
        let runs = |c: &Container| c.compose_service == *service && c.state == State::Running;
        self.plan.before.iter().any(ran) && !containers.iter().any(runs)
    }

    /// Returns the failure of the first target with a flaw.
    fn blame(
        self,
        containers: &[Container],
        flaw: impl Fn(&Probe, &Target) -> Option<Flaw>,
    ) -> Option<Failure> {
        let probe = self.probe()?;
        let (target, flaw) =
            self.targets(containers).into_iter().find_map(|t| flaw(probe, &t).map(|flaw| (t, flaw)))?;
        let Some(container) = containers.iter().find(|c| target.container() == Some(&*c.id)) else {
            return Some(Failure::general(wording::flaw("", &flaw)));
        };
        let bystander = self.role(container) != Some(Role::Updated);
        let mut failure = Failure { bystander, ..Failure::of(container, &flaw) };
        if let Flaw::ProbeFailed { answer, .. } | Flaw::ProbeLost { answer, .. } = &flaw {
            failure.facts.push_str(&wording::last_answer(probe, answer));
        }
        Some(failure)
    }
}

impl Probation {
    /// Records an answer.
    fn note_answer(&mut self, target: Target, answer: Answer) {
        let probed = self.probed.entry(target).or_default();
        match answer {
            Ok(answer) => *probed = Probed { passed: true, failures: 0, answer },
            Err(answer) => {
                probed.failures = if probed.passed { probed.failures.saturating_add(1) } else { 0 };
                probed.answer = answer;
            }
        }
    }

    /// Returns a failure that ends the probation immediately: what has answered does not answer any more.
    pub(super) fn stopped_answering(
        &self,
        containers: &[Container],
        context: Context<'_>,
    ) -> Option<Failure> {
        let lost = |target: &Target| self.probed.get(target).filter(|seen| seen.failures >= MAX_FAILURES);
        context.blame(containers, |probe, target| {
            Some(Flaw::ProbeLost { probe: probe.to_string(), answer: lost(target)?.answer.clone() })
        })
    }

    /// Returns what fails the probation at its deadline: what has never answered.
    pub(super) fn never_answered(&self, containers: &[Container], context: Context<'_>) -> Option<Failure> {
        if context.has_lost_service(containers) {
            let service = context.probe().and_then(|probe| probe.service.as_deref()).unwrap_or_default();
            return Some(Failure::general(wording::probed_service_is_gone(service)));
        }
        let never = |target: &Target| self.probed.get(target).filter(|seen| !seen.passed);
        context.blame(containers, |probe, target| {
            Some(Flaw::ProbeFailed { probe: probe.to_string(), answer: never(target)?.answer.clone() })
        })
    }

    /// Reports whether something has not been asked at all, for example since the clock was set.
    pub(super) fn is_unasked(&self, containers: &[Container], context: Context<'_>) -> bool {
        context.targets(containers).iter().any(|target| !self.probed.contains_key(target))
    }

    /// The target that is furthest from passing, with what it has shown.
    pub(in crate::service) fn worst_probed(&self) -> Option<&Probed> {
        self.probed.values().min_by_key(|probed| (probed.passed, u32::MAX - probed.failures))
    }
}

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
        let targets = deployment.probe_targets(self.containers(), &self.durable.stops);
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
