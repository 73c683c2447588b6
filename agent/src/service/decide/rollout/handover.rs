//! The handover of a deployment: the new containers take over from the old ones, or give way to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_common::wire::{HandoverContainer, HandoverProgress};
use jiff::Timestamp;

use crate::model::{Container, HealthState, Obstacle, State, UpMode};
use crate::ports::DrainCall;
use crate::service::action::HandoverStep;
use crate::service::event::Note;
use crate::service::health::assess::{Condition, Inactive, StopTimes, Stops, Symptom, assess_alone};
use crate::service::input::StepResult;
use crate::service::observation::ImageView;
use crate::service::rollout::baseline::{Baseline, NO_STOPS};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::handover::{HandoverPlan, OldContainers};
use crate::service::rollout::plan::{Cause, Plan};
use crate::service::rollout::probation::{Failed, Failure, Flaw, Interference, Outcome, Probation, Reason};
use crate::service::rollout::step::Phase;
use crate::service::scope::Part;
use crate::service::{INSPECT_INTERVAL, ROLLBACK_ATTEMPTS, Service, rollback_pause, wording};

impl Service {
    /// Plans the handover of a deployment; `None` if no compose service was asked to hand over.
    pub(in crate::service) fn plan_handover(&self, plan: &Plan, up_mode: &UpMode) -> Option<HandoverPlan> {
        if !matches!(plan.cause, Cause::Update | Cause::GoBack(_)) || *up_mode != UpMode::Changed {
            return None;
        }
        plan.scope()?;
        let changed = plan.changed_services();
        let mut handover = HandoverPlan::default();
        for (service, obstacle) in self.asked_to_hand_over() {
            if !changed.contains(&service) {
                continue;
            }
            let running = plan.before.iter().filter(|was| was.running && was.compose_service == service);
            let (left, old): (Vec<&Baseline>, Vec<&Baseline>) =
                running.partition(|was| self.durable.left_behind.contains(&was.id));
            match obstacle {
                Some(obstacle) => _ = handover.obstacles.insert(service, obstacle),
                None if old.is_empty() => _ = handover.services.insert(service, left.len()),
                None => {
                    handover.left.extend(left.iter().map(|was| was.id.clone()));
                    handover.services.insert(service, old.len());
                }
            }
        }
        if handover == HandoverPlan::default() {
            return None;
        }
        let update = self.config.update.as_deref();
        handover.drain = update.map(|update| update.drain.clone()).unwrap_or_default();
        Some(handover)
    }

    /// Returns the compose services that the last check found to be asked to hand over, with what keeps them from it.
    pub(in crate::service) fn asked_to_hand_over(&self) -> BTreeMap<String, Option<Obstacle>> {
        let Some(observation) = &self.known.observation else { return BTreeMap::new() };
        let Some(Ok(definition)) = &observation.definition else { return BTreeMap::new() };
        let key = self.config.update.as_ref().and_then(|update| update.order);
        let containers = self.known.containers.as_deref().unwrap_or(&observation.containers);
        let mut asked =
            crate::model::handover::asked(&definition.model, containers, key, &definition.bound_files);
        if self.config.update.as_ref().is_some_and(|update| update.snapshot.is_some()) {
            // What writes to data that is copied is stopped first.
            for obstacle in asked.values_mut() {
                *obstacle = Some(Obstacle::Snapshot);
            }
        }
        let probe = self.config.update.as_ref().and_then(|update| update.probe.as_ref());
        crate::model::handover::hinder_by_probe(&mut asked, probe);
        asked
    }

    /// The same for the compose services whose running containers were created from an image.
    pub(in crate::service) fn orders_of(&self, view: &ImageView) -> BTreeMap<String, Option<Obstacle>> {
        let mut orders = self.asked_to_hand_over();
        if !orders.is_empty() {
            let is_of = |c: &Container| c.is_made_from(&view.from) || c.is_made_from(&view.reference);
            let uses = |service: &String| {
                self.containers().iter().any(|c| c.compose_service == *service && is_of(c))
            };
            orders.retain(|service, _| uses(service));
        }
        orders
    }

    /// The new containers are proven beside the old ones: these are relieved of their requests and stopped, unless the
    /// service would then have fewer containers than before.
    pub(in crate::service) fn proven_beside(&mut self, now: Timestamp) {
        let containers = self.known.containers.clone().unwrap_or_default();
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.note_new(&containers);
        match deployment.lacks_new(&containers) {
            Some(compose_service) if deployment.interrupt() => {
                self.handover_interfered(Interference::Removed { compose_service }, now);
            }
            Some(_) => deployment.enter(Phase::Spread, now),
            None if deployment.plan().drain().is_empty() => self.retire_old(now),
            None => {
                deployment.handover.old = OldContainers::Drained;
                deployment.handover.is_drained = true;
                deployment.enter(Phase::Drain, now);
            }
        }
    }

    /// The old containers are relieved of their requests: they are stopped, if the new ones still serve.
    fn drained(&mut self, now: Timestamp) {
        let containers = self.known.containers.clone().unwrap_or_default();
        let Some(deployment) = &mut self.durable.deployment else { return };
        let Some(compose_service) = deployment.lacks_new(&containers) else { return self.retire_old(now) };
        let is_down = |c: &&Container| deployment.handover.new.contains(&c.id) && !is_up(c);
        let mut down = containers.iter().filter(is_down);
        let failure = down.clone().find_map(|c| failure_of_proven(c, &self.durable.stops));
        // What the engine has stopped with itself says nothing about the image, and neither does one that is starting.
        let begins_again = match failure {
            Some(_) => deployment.interruptions > 0,
            None => down.clone().any(|c| matches!(c.state, State::Running | State::Unknown)),
        };
        let why = match down.find(|c| c.compose_service == compose_service) {
            Some(c) if c.state == State::Paused => Interference::Paused { container: c.name.clone() },
            Some(c) if c.state == State::Unknown => {
                Interference::Unknown { container: c.name.clone(), unprobed: false }
            }
            Some(c) => Interference::Stopped { container: c.name.clone() },
            None => Interference::Removed { compose_service },
        };
        if begins_again && !deployment.interrupt() {
            return deployment.enter(Phase::Spread, now);
        }
        match failure {
            Some(failure) => self.failed(Failed::new(failure, String::new()), now),
            None => self.handover_interfered(why, now),
        }
    }

    fn retire_old(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.handover.old = OldContainers::Retired;
        deployment.enter(Phase::Retire, now);
    }

    /// Acts on the outcome of an inspection while the new containers serve alone.
    pub(in crate::service) fn soak_seen(&mut self, outcome: Outcome, now: Timestamp) {
        match outcome {
            Outcome::Wait { deadline } => self.inspections.postpone((now + INSPECT_INTERVAL).min(deadline)),
            Outcome::Passed => self.settle(None, now),
            Outcome::Failed(failure) => self.failed(Failed::new(failure, String::new()), now),
            // Somebody has removed the new containers, but not the old ones, which are all that is left.
            Outcome::Inconclusive(how @ Interference::Removed { .. }) if self.has_old_containers() => {
                self.handover_interfered(how, now);
            }
            Outcome::Inconclusive(how) => self.settle(Some(how), now),
        }
    }

    fn settle(&mut self, interference: Option<Interference>, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.enter(Phase::Settle { interference }, now);
    }

    /// Somebody has changed the new containers while the old ones are there: these serve on, the new ones are removed, and the
    /// next check tries again. Old ones that were drained for good do not serve: the new ones that do stay.
    pub(in crate::service) fn handover_interfered(&mut self, why: Interference, now: Timestamp) {
        let has_old = self.has_old_containers();
        let Some(deployment) = &mut self.durable.deployment else { return };
        let handover = &deployment.handover;
        let mut new =
            self.known.containers.iter().flat_map(|all| all.iter()).filter(|c| handover.new.contains(&c.id));
        let old_serve = has_old && !(handover.is_drained && deployment.plan().drain().is_final());
        let new_are_left = if has_old { new.any(is_up) } else { new.next().is_some() };
        if new_are_left && !old_serve {
            return self.settle(Some(why), now);
        }
        deployment.enter(Phase::Abort { why }, now);
    }

    /// Handles the result of a step that only a handover has.
    pub(in crate::service) fn handed_over(&mut self, result: StepResult, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let failed = match result {
            StepResult::HandoverStepped { problems, containers } => {
                deployment.outage.look(&containers, now);
                self.known.containers = Some(containers.into());
                let told = &mut deployment.handover.problems;
                for problem in problems {
                    if !told.contains(&problem) {
                        told.push(problem);
                    }
                }
                false
            }
            other => {
                let failure = other.failure();
                self.emitted
                    .notes
                    .push(Note::StepRetried { step: deployment.phase.name(), failure: failure.clone() });
                deployment.attempt += 1;
                if deployment.attempt < ROLLBACK_ATTEMPTS {
                    let pause = rollback_pause(deployment.attempt);
                    self.steps.retry_at = Some(now + pause);
                    return;
                }
                deployment.handover.problems.push(failure);
                true
            }
        };
        if failed && matches!(deployment.phase, Phase::Settle { .. }) {
            self.leave_old();
        }
        let Some(deployment) = &mut self.durable.deployment else { return };
        match deployment.phase.clone() {
            Phase::Drain => self.drained(now),
            Phase::Retire => {
                let probation = Probation::new(now, deployment.expected_new(&[]));
                deployment.enter(Phase::Soak { probation }, now);
                self.inspections.request_by(now);
            }
            Phase::Settle { interference: None } => self.passed(now),
            Phase::Revive(why) => {
                if failed || !self.has_old_containers() {
                    self.old_are_gone();
                }
                if let Some(deployment) = &mut self.durable.deployment {
                    deployment.enter(Phase::Rollback(why), now);
                }
            }
            Phase::Withdraw { failed, remaining, is_verified } => {
                self.withdrawn(failed, remaining, is_verified, now);
            }
            // The old containers run again; now the new ones are removed.
            Phase::Abort { why } if deployment.handover.old != OldContainers::Serving => {
                deployment.handover.old = OldContainers::Serving;
                deployment.enter(Phase::Abort { why }, now);
            }
            Phase::Abort { why } if deployment.plan().is_whole_handover() => {
                self.abandon(self.interference_text(&why), String::new(), now);
            }
            Phase::Settle { interference: Some(why) } | Phase::Abort { why } => {
                self.probation_interfered(&why, now);
            }
            _ => {}
        }
    }

    /// Old containers that can't be removed stay as they are, and are no reason for another update.
    fn leave_old(&mut self) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let old = deployment.plan().old_ids();
        let known = self.known.containers.iter().flat_map(|all| all.iter());
        let left: Vec<&Container> = known.filter(|c| old.contains(&c.id)).collect();
        if left.is_empty() {
            return;
        }
        let names: Vec<&str> = left.iter().map(|c| c.name.as_str()).collect();
        deployment.handover.problems.push(wording::handover::left_in_place(&names));
        self.durable.left_behind.extend(left.iter().map(|c| c.id.clone()));
    }

    fn has_old_containers(&self) -> bool {
        let old = self.durable.deployment.iter().flat_map(|deployment| deployment.plan().old_ids());
        let old: BTreeSet<String> = old.collect();
        self.containers().iter().any(|c| old.contains(&c.id))
    }

    /// Notes what has become of old containers that the handover has not touched: someone has removed them, such as with
    /// `compose up`, or one has ended, and nothing starts it again.
    pub(in crate::service) fn note_lost_old(&mut self) {
        // Nothing is known before the first inspection after a start.
        let Some(containers) = self.known.containers.clone() else { return };
        let Some(deployment) = &mut self.durable.deployment else { return };
        if !deployment.plan().is_handover() || deployment.handover.old != OldContainers::Serving {
            return;
        }
        let old = deployment.plan().old_ids();
        let mut left = containers.iter().filter(|c| old.contains(&c.id)).peekable();
        if left.peek().is_none() {
            deployment.handover.old = OldContainers::Gone;
        } else if left.any(|c| has_ended(c, &self.durable.stops)) {
            deployment.handover.old = OldContainers::Retired;
        }
    }

    /// The old containers can't come back: compose brings up the old images as without a handover.
    fn old_are_gone(&mut self) {
        if let Some(deployment) = &mut self.durable.deployment {
            deployment.handover.old = OldContainers::Gone;
        }
    }

    /// The new containers of a failed image are gone. If the old ones were never touched, that was all.
    fn withdrawn(&mut self, failed: Failed, remaining: Option<Reason>, is_verified: bool, now: Timestamp) {
        let containers = self.known.containers.clone().unwrap_or_default();
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.handover.is_withdrawn = true;
        let is_all = deployment.handover.old == OldContainers::Serving
            && deployment.plan().is_whole_handover()
            && deployment.old_are_up(&containers);
        if is_verified || is_all {
            return self.rolled_back(failed, remaining, now);
        }
        self.note_lost_old();
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.handover.old != OldContainers::Serving {
            return deployment.enter(deployment.way_back(failed), now);
        }
        let probation = Probation::new(now, deployment.plan().expected_old());
        deployment.enter(Phase::VerifyRollback { failed, probation }, now);
        self.inspections.request_by(now);
    }
}

impl Deployment {
    /// The part of the compose services that compose is called for in the current phase.
    pub(in crate::service) fn part(&self) -> Part {
        match &self.plan().handover {
            Some(handover) if self.plan().is_handover() && self.handover.old != OldContainers::Gone => {
                if self.phase == Phase::Spread {
                    let is_left = |was: &&Baseline, service: &String| {
                        was.compose_service == *service && handover.left.contains(&was.id)
                    };
                    let left = |service: &String| {
                        self.plan().before.iter().filter(|was| is_left(was, service)).count()
                    };
                    let counts = handover.services.iter();
                    Part::Beside(counts.map(|(name, old)| (name.clone(), 2 * old + left(name))).collect())
                } else {
                    Part::StopFirst(handover.services.keys().cloned().collect())
                }
            }
            _ => Part::All,
        }
    }

    /// Returns the step of a phase that only a handover has.
    pub(in crate::service) fn handover_step(&self) -> Option<HandoverStep> {
        let (plan, new) = (self.plan(), self.handover.new.clone());
        let old = plan.old_ids();
        let drain = |leaving: &[String], staying: &[String]| {
            let question = self.question(&plan.service)?;
            let drain = plan.drain();
            Some(DrainCall { drain, question, leaving: leaving.to_vec(), staying: staying.to_vec() })
        };
        Some(match &self.phase {
            Phase::Drain => HandoverStep::Drain(drain(&old, &new)?),
            Phase::Retire => HandoverStep::Retire {
                // The engine may have been restarted since they were proven.
                start: if self.interruptions > 0 { new } else { Vec::new() },
                stop: old,
            },
            Phase::Settle { .. } => HandoverStep::Settle { remove: old },
            // Compose makes them anew: they do not run a second time, or what they were told may outlast a start.
            Phase::Revive(_)
                if self.handover.is_spent || (self.handover.is_drained && plan.drain().is_final()) =>
            {
                HandoverStep::Settle { remove: old }
            }
            Phase::Revive(_) => HandoverStep::Revive { start: old, undo: plan.drain() },
            Phase::Abort { .. } if self.handover.old != OldContainers::Serving => {
                HandoverStep::Revive { start: old, undo: plan.drain() }
            }
            Phase::Withdraw { .. } | Phase::Abort { .. } => {
                HandoverStep::Withdraw { call: drain(&new, &old)?, remove: new }
            }
            _ => return None,
        })
    }

    /// Records the new containers of the services that hand over.
    pub(in crate::service) fn note_new(&mut self, containers: &[Container]) {
        let plan = self.plan();
        let is_new = |c: &&Container| {
            plan.hands_over(&c.compose_service)
                && plan.before.iter().all(|was| was.id != c.id)
                && self.new_ids.values().any(|id| *id == c.image)
        };
        self.handover.new = containers.iter().filter(is_new).map(|c| c.id.clone()).collect();
    }

    /// Returns the compose service that would have fewer containers without the old ones than with them alone.
    pub(in crate::service) fn lacks_new(&self, containers: &[Container]) -> Option<String> {
        let plan = self.plan();
        let services: BTreeSet<&str> = plan.old_containers().map(|was| &*was.compose_service).collect();
        let lacks = |service: &&str| {
            let of_service = || containers.iter().filter(|c| c.compose_service == **service);
            let is_old = |c: &&Container| plan.old_containers().any(|was| was.id == c.id);
            let old = of_service().filter(is_old).filter(|c| c.state == State::Running).count();
            let new = of_service().filter(|c| self.handover.new.contains(&c.id)).filter(|c| is_up(c)).count();
            new < old
        };
        services.into_iter().find(lacks).map(str::to_owned)
    }

    /// Reports whether all old containers are as well as before, as far as one look can tell.
    pub(in crate::service) fn old_are_up(&self, containers: &[Container]) -> bool {
        let is_as_before = |was: &Baseline| {
            let now = containers.iter().find(|c| c.id == was.id);
            now.is_some_and(|c| c.state == State::Running && (is_up(c) || !was.well))
        };
        self.plan().old_containers().all(is_as_before)
    }

    /// Reports whether the old containers were started again and run, or are restarted by the engine, however they are.
    pub(in crate::service) fn old_run_again(&self, containers: &[Container]) -> bool {
        let runs = |was: &Baseline| {
            let now = containers.iter().find(|c| c.id == was.id);
            now.is_some_and(|c| matches!(c.state, State::Running | State::Restarting))
        };
        let was_touched = matches!(self.handover.old, OldContainers::Drained | OldContainers::Retired);
        was_touched && self.plan().old_containers().all(runs)
    }

    /// Reports whether a failure after the old containers were started again is that one of them does not keep running, as with
    /// an entrypoint that works only once. The engine counts its restarts from that start on.
    pub(in crate::service) fn is_spent_by(&self, failure: &Failure, containers: &[Container]) -> bool {
        let was_touched = matches!(self.handover.old, OldContainers::Drained | OldContainers::Retired);
        let keeps_running = |c: &Container| c.state == State::Running && c.restart_count == 0;
        let runs = containers.iter().any(|c| c.id == failure.container_id && keeps_running(c));
        was_touched
            && !self.handover.is_spent
            && !runs
            && self.plan().old_containers().any(|was| was.id == failure.container_id)
    }

    /// The phase in which the way back begins.
    pub(in crate::service) fn way_back(&self, failed: Failed) -> Phase {
        match self.handover.old {
            OldContainers::Drained | OldContainers::Retired => Phase::Revive(failed),
            OldContainers::Serving | OldContainers::Gone => Phase::Rollback(failed),
        }
    }

    /// Reports whether new containers stand beside the old ones that a rollback has to remove.
    pub(in crate::service) fn must_withdraw(&self) -> bool {
        self.plan().is_handover() && !self.handover.is_withdrawn && self.handover.old != OldContainers::Gone
    }

    /// The containers of both sides, for people; `None` if no service hands over.
    pub(in crate::service) fn handover_progress(&self, containers: &[Container]) -> Option<HandoverProgress> {
        let plan = self.plan();
        let side = |is_of: &dyn Fn(&Container) -> bool| {
            let of_side = containers.iter().filter(|c| plan.hands_over(&c.compose_service) && is_of(c));
            of_side.map(shown).collect()
        };
        plan.is_handover().then(|| HandoverProgress {
            old: side(&|c| plan.before.iter().any(|was| was.id == c.id)),
            new: side(&|c| self.handover.new.contains(&c.id)),
        })
    }

    /// Reports whether the old containers have served all the time.
    pub(in crate::service) fn is_uninterrupted(&self, now: Timestamp) -> bool {
        self.plan().is_whole_handover() && self.outage.longest(self.begun, now) == Some(Duration::ZERO)
    }
}

/// How a new container fails that was proven; `None` if it was stopped by someone, or may still come up.
fn failure_of_proven(container: &Container, stops: &StopTimes) -> Option<Failure> {
    let exit_code = container.exit_code;
    let flaw = match assess_alone(container, Stops { requested: stops, ..NO_STOPS }) {
        Condition::Failing(Symptom::Unhealthy { .. }) => Flaw::BecameUnhealthy,
        Condition::Failing(Symptom::OutOfMemory) => Flaw::OutOfMemory,
        Condition::Failing(Symptom::Exited { exit_code }) => Flaw::Exited { exit_code },
        Condition::Inactive(Inactive::Finished) => Flaw::EndedUnexpectedly,
        Condition::Restarting | Condition::Failing(_) => Flaw::EndState(container.state),
        Condition::Starting if container.restart_count > 0 => Flaw::Crashed { exit_code },
        _ => return None,
    };
    Some(Failure::of(container, &flaw))
}

/// Reports whether a container has ended, and not because someone stopped it.
fn has_ended(container: &Container, stops: &StopTimes) -> bool {
    let is_stopped = || {
        let condition = assess_alone(container, Stops { requested: stops, ..NO_STOPS });
        condition == Condition::Inactive(Inactive::Stopped)
    };
    matches!(container.state, State::Exited | State::Dead) && !is_stopped()
}

pub(in crate::service) fn shown(container: &Container) -> HandoverContainer {
    let health = container.health.map(|health| match health {
        HealthState::Starting => "starting",
        HealthState::Healthy => "healthy",
        HealthState::Unhealthy | HealthState::Unmeasured => "unhealthy",
    });
    HandoverContainer {
        name: container.name.clone(),
        state: container.state.as_str().to_owned(),
        health: health.map(str::to_owned),
    }
}

pub(in crate::service) fn is_up(container: &Container) -> bool {
    container.state == State::Running && matches!(container.health, None | Some(HealthState::Healthy))
}
