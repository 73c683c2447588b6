//! Probes of containers on probation: when they are tried, and what their answers say about an image (DECISIONS 15).

use std::time::Duration;

use jiff::Timestamp;

use crate::model::probe::{Answer, Probe, Target};
use crate::model::{Container, State};
use crate::service::health::assess::{Condition, Inactive};
use crate::service::rollout::baseline::Baseline;
use crate::service::rollout::probation::{
    Context, Failure, Flaw, Interference, Outcome, Probation, Probed, Reason, Role,
};

/// Failures in a row, after a success, with which an image fails.
const MAX_FAILURES: u32 = 3;

/// How long an engine has at least, after the end of a probation, to say where a container is.
const SLOW_ENGINE: Duration = Duration::from_mins(1);

/// The tries in progress, and the time of the next ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct Probing {
    pub(in crate::service) is_running: bool,
    pub(in crate::service) due_at: Option<Timestamp>,
}

impl Context<'_> {
    /// The probe of this probation. It does not judge an image that is put back.
    pub(in crate::service) fn probe(&self) -> Option<&Probe> {
        self.plan.probe.as_ref().filter(|_| !self.rolling_back)
    }

    /// The containers that a probe is about, whether each is asked itself or an address stands for them.
    pub(in crate::service) fn probed<'c>(
        &self,
        containers: &'c [Container],
    ) -> impl Iterator<Item = &'c Container> {
        let probe = self.probe();
        containers.iter().filter(move |c| match probe.map(|probe| &probe.service) {
            Some(Some(service)) => c.compose_service == *service && !self.is_put_aside(c),
            Some(None) => self.role(c) == Some(Role::Updated),
            None => false,
        })
    }

    /// Returns what is asked now, in a probation that began at `since`. Containers that do not run are judged without a probe. An
    /// address is not asked while somebody stops or pauses what is to answer there.
    pub(in crate::service) fn targets(&self, containers: &[Container], since: Timestamp) -> Vec<Target> {
        let Some(probe) = self.probe() else { return Vec::new() };
        if probe.from.is_some() {
            let is_up = self.probed(containers).next().is_some();
            let is_asked = is_up && self.hindrance(containers, since).is_none();
            return if is_asked { vec![Target::own_address()] } else { Vec::new() };
        }
        let asked = self.probed(containers).filter(|c| self.may_answer(c, since));
        asked.map(|c| Target(c.id.clone())).collect()
    }

    /// Whether a container runs, and nobody is stopping it. Without a health check nothing tells how long that may take.
    fn may_answer(&self, container: &Container, since: Timestamp) -> bool {
        let since = container.started_at.map_or(since, |run| run.max(since));
        let is_told = container.health.is_none() && self.is_stop_requested(container, since);
        container.state == State::Running && !container.is_stopping && !is_told
    }

    /// Returns what keeps a probe from saying anything about the images: somebody has stopped or paused a container that it is
    /// about, or the engine does not say what that does. Of a named service, one container that may answer is enough, and those
    /// that were down before the deployment are not missed.
    pub(in crate::service) fn hindrance<'c>(
        &self,
        containers: &'c [Container],
        since: Timestamp,
    ) -> Option<(&'c Container, Interference)> {
        let is_named = self.probe()?.service.is_some();
        if is_named && self.probed(containers).any(|c| self.may_answer(c, since)) {
            return None;
        }
        let was_down = |c: &Container| self.plan.before.iter().any(|was| was.id == c.id && !was.running);
        let mut missed = self.probed(containers).filter(|c| !(is_named && was_down(c)));
        missed.find_map(|c| Some((c, self.interference(c, since)?)))
    }

    fn interference(&self, container: &Container, since: Timestamp) -> Option<Interference> {
        let (is_running, name) = (container.state == State::Running, container.name.clone());
        match self.condition(container) {
            _ if is_running && self.may_answer(container, since) => None,
            _ if is_running => Some(Interference::Stopped { container: name }),
            Condition::Inactive(Inactive::Stopped) => Some(Interference::Stopped { container: name }),
            Condition::Inactive(Inactive::Paused) => Some(Interference::Paused { container: name }),
            Condition::Inactive(Inactive::Unknown) => {
                Some(Interference::Unknown { container: name, unprobed: false })
            }
            _ => None,
        }
    }

    /// Returns the service that a probe names, if none of its containers runs any more.
    fn lost_service(&self, containers: &[Container]) -> Option<&str> {
        let service = self.probe()?.service.as_deref()?;
        let ran = |was: &Baseline| was.compose_service == service && was.well;
        let runs = |c: &Container| c.compose_service == service && c.state == State::Running;
        let is_lost = self.plan.before.iter().any(ran) && !containers.iter().any(runs);
        is_lost.then_some(service)
    }

    /// Returns the failure of the first target with a flaw.
    fn blame(
        self,
        containers: &[Container],
        since: Timestamp,
        flaw: impl Fn(&Probe, &Target) -> Option<Flaw>,
    ) -> Option<Failure> {
        let probe = self.probe()?;
        let mut targets = self.targets(containers, since).into_iter();
        let (target, flaw) = targets.find_map(|t| flaw(probe, &t).map(|flaw| (t, flaw)))?;
        let Some(container) = containers.iter().find(|c| target.container() == Some(&*c.id)) else {
            return Some(Failure::general(Reason::Flaw { container: String::new(), flaw }));
        };
        let bystander = self.role(container) != Some(Role::Updated);
        let mut failure = Failure { bystander, ..Failure::of(container, &flaw) };
        if let Flaw::ProbeFailed { answer, .. } | Flaw::ProbeLost { answer, .. } = &flaw {
            failure.facts.push_str(&format!("last probe: {probe}: {answer}\n"));
        }
        Some(failure)
    }
}

impl Probation {
    /// Records an answer.
    pub(in crate::service) fn note_answer(&mut self, target: Target, answer: Answer) {
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
    pub(in crate::service) fn stopped_answering(
        &self,
        containers: &[Container],
        context: Context<'_>,
    ) -> Option<Failure> {
        let lost = |target: &Target| self.probed.get(target).filter(|seen| seen.failures >= MAX_FAILURES);
        context.blame(containers, self.since, |probe, target| {
            Some(Flaw::ProbeLost { probe: probe.to_string(), answer: lost(target)?.answer.clone() })
        })
    }

    /// Returns the outcome at its end if what is probed has never answered, or is gone.
    pub(in crate::service) fn never_answered(
        &self,
        containers: &[Container],
        context: Context<'_>,
    ) -> Option<Outcome> {
        if let Some(service) = context.lost_service(containers).map(str::to_owned) {
            return Some(if context.probed(containers).next().is_some() {
                Outcome::Failed(Failure::general(Reason::ProbedServiceGone { probed_service: service }))
            } else {
                Outcome::Inconclusive(Interference::Removed { compose_service: service })
            });
        }
        let never = |target: &Target| self.probed.get(target).filter(|seen| !seen.passed);
        let failure = context.blame(containers, self.since, |probe, target| {
            Some(Flaw::ProbeFailed { probe: probe.to_string(), answer: never(target)?.answer.clone() })
        });
        failure.map(Outcome::Failed)
    }

    /// Returns the outcome at its end if something has not been asked at all, for example because the engine does not say where
    /// a container is: it has some more time for that.
    pub(in crate::service) fn unasked(
        &self,
        containers: &[Container],
        context: Context<'_>,
        now: Timestamp,
    ) -> Option<Outcome> {
        let probe = context.probe()?;
        let is_unasked = |target: &Target| !self.probed.contains_key(target);
        let target = context.targets(containers, self.since).into_iter().find(is_unasked)?;
        let of_one_try = context.plan.grace.saturating_add(probe.interval).saturating_add(probe.timeout);
        let pause = of_one_try.saturating_mul(2).max(SLOW_ENGINE);
        let end = self.deadline(containers, context).checked_add(pause).unwrap_or(Timestamp::MAX);
        if now < end {
            return Some(Outcome::Wait { deadline: end });
        }
        let container = containers.iter().find(|c| target.container() == Some(&*c.id));
        let container = container.map(unanswered_for).unwrap_or_default();
        Some(Outcome::Inconclusive(Interference::Unknown { container, unprobed: false }))
    }

    /// The target that is furthest from passing, with what it has shown.
    pub(in crate::service) fn worst_probed(&self) -> Option<&Probed> {
        self.probed.values().min_by_key(|probed| (probed.passed, u32::MAX - probed.failures))
    }
}

/// The name of the container without whose inspection nobody knows where this one is: the one whose network it uses, if that
/// can't be inspected.
fn unanswered_for(container: &Container) -> String {
    let owner = container.network_of.as_ref().and_then(|owner| owner.resolved.as_ref());
    let hangs = owner.filter(|owner| owner.state == State::Unknown);
    hangs.map_or(&container.name, |owner| &owner.name).clone()
}
