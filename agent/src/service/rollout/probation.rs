//! Probation: decides when a new container is proven and when it has failed (DECISIONS 4, DOMAIN 7).
//!
//! A pure function of the inspected containers, called at every inspection. The result of compose plays no part in it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{ImageId, Reference};
use crate::model::probe::Target;
use crate::model::swarm::TaskState;
use crate::model::{Container, HealthState, State};
use crate::service::health::assess::{
    Condition, Inactive, StopTimes, Stops, Symptom, assess_alone, is_unprobed,
};
use crate::service::rollout::baseline::{Baseline, Expected, NO_STOPS};
use crate::service::rollout::plan::Plan;

/// Findings of the inspections of a container on probation so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)] // independent findings
pub struct Seen {
    /// Start of the run that is on probation.
    pub started_at: Option<Timestamp>,
    /// Whether its health check has passed at least once.
    pub was_healthy: bool,
    /// Whether the last inspection found it paused.
    #[serde(default)]
    pub paused: bool,
    /// Whether the last inspection found it without a result of its health check since a pause.
    #[serde(default)]
    pub unmeasured: bool,
    /// Whether the previous inspection already found it exited. It counts as failed only at the second one, so that the
    /// event of a requested stop has time to arrive.
    pub ended: bool,
    /// The longest time that its health check may take to pass, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Duration>,
    /// Since when the engine does not say what it does; `None` while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_since: Option<Timestamp>,
}

/// The probation of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probation {
    /// When it began.
    pub since: Timestamp,
    /// Containers that must exist in the end.
    pub expected: Vec<Expected>,
    /// Findings by container ID.
    pub seen: BTreeMap<String, Seen>,
    /// How often it started over because someone restarted a container.
    #[serde(default)]
    pub restarts: u32,
    /// Findings of the probe.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub probed: BTreeMap<Target, Probed>,
}

/// External restarts after which a probation no longer starts over: another healer may restart an unhealthy container
/// forever.
const MAX_RESTARTS: u32 = 3;

/// Outcome of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The probation continues.
    Wait {
        /// When the probation ends at the latest.
        deadline: Timestamp,
    },
    /// All containers are proven.
    Passed,
    /// The probation failed.
    Failed(Failure),
    /// Something that says nothing about the image: external interference, or an engine that does not answer.
    Inconclusive(Interference),
}

/// What keeps containers from being judged: external interference, or an engine that does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interference {
    /// A container was stopped.
    Stopped {
        /// Its name.
        container: String,
    },
    /// A container was paused.
    Paused {
        /// Its name.
        container: String,
    },
    /// A container was moved to another image.
    Replaced {
        /// Its name.
        container: String,
        /// Image reference that it was created from.
        image: String,
    },
    /// The container of a compose service was removed.
    Removed {
        /// The compose service.
        compose_service: String,
    },
    /// The engine did not say what a container does.
    Unknown {
        /// Its name.
        container: String,
        /// Whether only its health is not known, because the engine ran no health check.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unprobed: bool,
    },
    /// As an earlier version recorded it: the whole sentence.
    #[serde(untagged)]
    Words(String),
}

/// Why a container fails its probation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Flaw {
    OutOfMemory,
    /// Its restart policy has restarted it more than once.
    CrashLoop {
        restarts: u64,
        exit_code: i64,
    },
    /// It had been healthy before.
    BecameUnhealthy,
    Exited {
        exit_code: i64,
    },
    Unhealthy,
    /// Its health check had no result by the end of the probation.
    NotHealthyInTime,
    /// Its restart policy has restarted it once, and it has no health check.
    Crashed {
        exit_code: i64,
    },
    StartedAgain,
    /// It exited with code 0, but kept running before the deployment.
    EndedUnexpectedly,
    NotStarted,
    EndState(State),
    /// Compose left it on its previous image.
    NotUpdated,
    /// The probe has never succeeded.
    ProbeFailed {
        probe: String,
        answer: String,
    },
    /// The probe had succeeded, and fails since.
    ProbeLost {
        probe: String,
        answer: String,
    },
}

/// Why new containers are rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reason {
    /// A container failed its probation.
    Flaw {
        /// Its name; empty if it is the answer of an address that fails.
        container: String,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// In the end no container of the compose service ran that the probe asks.
    ProbedServiceGone {
        /// The compose service.
        probed_service: String,
    },
    /// A task of a swarm service failed.
    Task {
        /// Its name.
        task: String,
        /// The node that it was on.
        node: String,
        /// How it failed.
        fault: TaskFault,
    },
    /// The swarm has ended the update, in its words.
    Swarm {
        /// What it reports.
        swarm_message: String,
    },
    /// Somebody has interfered.
    Interfered {
        /// What was done.
        interference: Interference,
    },
    /// In the words of compose or the engine. Earlier versions recorded everything in words.
    Words(String),
}

impl Default for Reason {
    fn default() -> Self {
        Self::Words(String::new())
    }
}

/// How a task of a swarm service failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskFault {
    /// In the words of its node.
    Error(String),
    /// It exited with code 0.
    Complete,
    /// The managers stopped it during the update.
    Stopped,
    /// It is in this state, and nothing says why.
    State(TaskState),
}

/// Why a probation failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What is wrong.
    pub reason: Reason,
    /// Full ID of the failed container; empty if it was not a single one.
    pub container_id: String,
    /// Its name.
    pub container: String,
    /// Image reference that it was created from.
    pub image: String,
    /// Exit code, OOM flag, restart count, last health-check output; one per line.
    pub facts: String,
    /// Whether that container is on none of the deployed images.
    #[serde(default)]
    pub bystander: bool,
    /// Whether compose failed, so there was no probation.
    #[serde(default)]
    pub by_compose: bool,
}

impl Failure {
    /// A failure that is not caused by a single container.
    pub(in crate::service) fn general(reason: Reason) -> Self {
        Self { reason, ..Self::default() }
    }

    /// The facts about a container, without a reason.
    fn about(container: &Container) -> Self {
        Self {
            container_id: container.id.clone(),
            container: container.name.clone(),
            image: container.config_image.clone(),
            facts: facts(container),
            ..Self::default()
        }
    }

    /// A failure of one container.
    pub(in crate::service) fn of(container: &Container, flaw: &Flaw) -> Self {
        let (container_name, flaw) = (container.name.clone(), flaw.clone());
        Self { reason: Reason::Flaw { container: container_name, flaw }, ..Self::about(container) }
    }
}

/// Why new images are rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// What failed.
    pub failure: Failure,
    /// Evidence: compose's output, then facts and log lines.
    pub output: String,
    /// ID of the swarm task whose log has the details; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task: String,
    /// Whether this machine or the nodes of the swarm are to blame and not the image, which is not blocked then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_node: bool,
    /// Whether compose has failed after a new container was started: then the image may be why, whatever compose says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_run: bool,
}

impl Failed {
    /// A failure for which the images are to blame.
    pub(in crate::service) fn new(failure: Failure, output: String) -> Self {
        Self { failure, output, task: String::new(), by_node: false, has_run: false }
    }
}

/// Inputs of a probation besides the containers.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The plan of the deployment.
    pub plan: &'a Plan,
    /// IDs of its new images by configured name.
    pub new_ids: &'a BTreeMap<String, ImageId>,
    /// When containers were told to stop.
    pub stops: &'a StopTimes,
    /// Whether this is a rollback. Containers that were never replaced are then on probation too, unless they were
    /// failing before.
    pub rolling_back: bool,
}

/// Why a container is on probation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::service) enum Role {
    /// Its image is deployed.
    Updated,
    /// It was recreated along with the others, and was well before.
    Bystander,
}

impl Context<'_> {
    /// Returns why a container is on probation; `None` if it is not. One that was failing before, or is new, says nothing
    /// about the images of other containers.
    pub(in crate::service) fn role(&self, container: &Container) -> Option<Role> {
        let reference = Reference::parse(&container.config_image).ok();
        let of = self.plan.image_changes.iter().find(|m| reference.as_ref().is_some_and(|r| m.is_of(r)));
        let role =
            if of.is_some() || self.plan.image_changes.is_empty() { Role::Updated } else { Role::Bystander };
        match self.plan.before.iter().find(|was| was.id == container.id) {
            Some(was) if self.rolling_back => was.well.then_some(role),
            // Stopped on purpose once the new ones serve, also if it runs the same image, which was not proven.
            Some(_) if self.is_put_aside(container) => None,
            // It already ran on the new image, which was not proven.
            Some(_) => of
                .is_some_and(|m| self.new_ids.get(&m.configured) == Some(&container.image))
                .then_some(Role::Updated),
            // It is removed once the old containers serve.
            None if self.rolling_back && self.is_withdrawn(container) => None,
            None if role == Role::Updated => Some(role),
            None => {
                let before = |was: &Baseline| was.compose_service == container.compose_service && was.well;
                self.plan.before.iter().any(before).then_some(role)
            }
        }
    }

    /// Reports whether this is an old container that the new ones take over from.
    pub(in crate::service) fn is_put_aside(&self, container: &Container) -> bool {
        !self.rolling_back
            && self.plan.hands_over(&container.compose_service)
            && self.plan.before.iter().any(|was| was.id == container.id)
    }

    /// Reports whether this is a new container beside the old ones.
    fn is_withdrawn(&self, container: &Container) -> bool {
        self.plan.hands_over(&container.compose_service)
            && self.new_ids.values().any(|id| *id == container.image)
    }

    /// Assesses a container on its own. A lost network is left to the healer, and a stop by the engine makes the probation
    /// start over: neither says anything about an image.
    pub(in crate::service) fn condition(&self, container: &Container) -> Condition {
        assess_alone(container, Stops { requested: self.stops, ..NO_STOPS })
    }

    pub(in crate::service) fn is_stop_requested(&self, container: &Container, since: Timestamp) -> bool {
        self.stops.get(&container.id).is_some_and(|at| *at >= since)
    }
}

impl Probation {
    pub(in crate::service) fn new(since: Timestamp, expected: Vec<Expected>) -> Self {
        Self { since, expected, seen: BTreeMap::new(), restarts: 0, probed: BTreeMap::new() }
    }

    /// The ID of a container that was told to stop in the run that is on probation, and not by the engine.
    pub(in crate::service) fn stopped(&self, stops: &StopTimes, by_engine: &StopTimes) -> Option<&str> {
        let is_stopped = |id: &String, seen: &Seen| {
            let since = seen.started_at.map_or(self.since, |run| run.max(self.since));
            stops.get(id).is_some_and(|at| *at >= since && by_engine.get(id) != Some(at))
        };
        self.seen.iter().find(|&(id, seen)| is_stopped(id, seen)).map(|(id, _)| id.as_str())
    }

    /// Starts over, because nothing is known of the containers for a while.
    pub(in crate::service) fn start_over(&mut self, now: Timestamp) {
        self.since = now;
        self.seen.values_mut().for_each(|seen| (seen.ended, seen.unknown_since) = (false, None));
        self.probed.clear();
    }

    /// Evaluates one inspection and returns its outcome.
    pub fn look(&mut self, containers: &[Container], context: Context<'_>, now: Timestamp) -> Outcome {
        let mut judged: Vec<(Role, &Container)> =
            containers.iter().filter_map(|c| Some((context.role(c)?, c))).collect();
        // A failure of an updated container is reported first.
        judged.sort_by_key(|(role, _)| *role);
        if !self.seen.is_empty() && judged.iter().any(|(_, c)| !self.seen.contains_key(&c.id)) {
            // Someone made a container anew, which may be the one that is to answer at the address.
            self.probed.remove(&Target::own_address());
        }
        // Those that are only probed are not judged, but someone may restart them, too.
        for container in context.probed(containers).filter(|c| context.role(c).is_none()) {
            if self.follow_run(container, context, now) && container.state == State::Running {
                let seen = self.seen.entry(container.id.clone()).or_default();
                seen.started_at = seen.started_at.or(container.started_at);
            }
        }
        for (role, container) in &judged {
            if !self.follow_run(container, context, now) {
                continue;
            }
            let seen = self.seen.entry(container.id.clone()).or_default();
            seen.budget = container.health_timing.map(|timing| timing.budget());
            if is_resumed(container, seen, context) && self.restarts < MAX_RESTARTS {
                // It may not have been probed for a while: it has to prove itself from now on.
                self.restarts += 1;
                self.since = now;
            }
            if let Some(flaw) = crash(container, seen, context) {
                return blame(*role, container, &flaw);
            }
        }
        let deadline = self.deadline(containers, context);
        let missing: Vec<Missing> =
            self.expected.iter().filter_map(|expected| missing(expected, containers, context)).collect();
        let replaced =
            |missing: &&Missing| matches!(missing, Missing::Interfered(Interference::Replaced { .. }));
        if let Some(Missing::Interfered(how)) = missing.iter().find(replaced) {
            return Outcome::Inconclusive(how.clone());
        }
        if let Some(failure) = self.stopped_answering(containers, context) {
            return Outcome::Failed(failure);
        }
        if now < deadline {
            return Outcome::Wait { deadline };
        }
        if let Some(outcome) = self.at_deadline(&judged, context, now) {
            return outcome;
        }
        let hindrance = context.hindrance(containers, self.since);
        let hindering = hindrance.as_ref().map(|(container, _)| *container);
        let watched = judged.iter().map(|(_, container)| *container).chain(hindering);
        if let Some(outcome) = self.unknown(watched, context, now) {
            return outcome;
        }
        if let Some((_, how)) = hindrance {
            return Outcome::Inconclusive(how);
        }
        if let Some(outcome) = self.never_answered(containers, context) {
            return outcome;
        }
        match missing.into_iter().next() {
            None => self.unasked(containers, context, now).unwrap_or(Outcome::Passed),
            Some(Missing::Interfered(how)) => Outcome::Inconclusive(how),
            Some(Missing::NotUpdated { container }) => {
                Outcome::Failed(Failure::general(Reason::Flaw { container, flaw: Flaw::NotUpdated }))
            }
        }
    }

    /// Follows the runs of a container: one that someone has restarted must pass a full probation. Returns whether the engine
    /// says what the container does.
    fn follow_run(&mut self, container: &Container, context: Context<'_>, now: Timestamp) -> bool {
        let seen = self.seen.entry(container.id.clone()).or_default();
        if container.state == State::Unknown {
            seen.unknown_since.get_or_insert(now);
            return false;
        }
        seen.unknown_since = None;
        if let (Some(run), State::Running) = (seen.started_at, container.state)
            && container.started_at != Some(run)
            && context.is_stop_requested(container, run)
        {
            *seen = Seen::default();
            self.probed.remove(&Target(container.id.clone()));
            self.probed.remove(&Target::own_address());
            if self.restarts < MAX_RESTARTS {
                self.restarts += 1;
                self.since = now;
            }
        }
        true
    }

    /// Returns the outcome at its end if a container is not proven, or can't be judged.
    fn at_deadline(
        &mut self,
        judged: &[(Role, &Container)],
        context: Context<'_>,
        now: Timestamp,
    ) -> Option<Outcome> {
        let mut unprobed = None;
        for (role, container) in judged.iter().filter(|(_, container)| container.state != State::Unknown) {
            let name = || container.name.clone();
            match context.condition(container) {
                Condition::Inactive(Inactive::Stopped | Inactive::Stopping) => {
                    return Some(Outcome::Inconclusive(Interference::Stopped { container: name() }));
                }
                Condition::Inactive(Inactive::Paused) | Condition::Unmeasured => {
                    return Some(Outcome::Inconclusive(Interference::Paused { container: name() }));
                }
                _ => {}
            }
            if let Some(how) = self.unprobed(container, now) {
                unprobed.get_or_insert(how);
                continue;
            }
            let seen = self.seen.entry(container.id.clone()).or_default();
            if let Some(flaw) = unproven(container, seen, context) {
                return Some(blame(*role, container, &flaw));
            }
        }
        unprobed.map(Outcome::Inconclusive)
    }

    /// Returns the outcome at its end if a container can't be inspected: the engine has another grace to say what it does.
    fn unknown<'c>(
        &self,
        watched: impl Iterator<Item = &'c Container>,
        context: Context<'_>,
        now: Timestamp,
    ) -> Option<Outcome> {
        let unknown = watched.filter(|c| c.state == State::Unknown);
        let since = |c: &&Container| self.seen.get(&c.id).and_then(|seen| seen.unknown_since).unwrap_or(now);
        let container = unknown.max_by_key(since)?;
        let deadline = since(&container) + context.plan.grace;
        Some(if now < deadline {
            Outcome::Wait { deadline }
        } else {
            Outcome::Inconclusive(Interference::Unknown {
                container: container.name.clone(),
                unprobed: false,
            })
        })
    }

    /// Returns what to say of a container of which the engine runs no health check.
    fn unprobed(&self, container: &Container, now: Timestamp) -> Option<Interference> {
        let since = container.started_at.map_or(self.since, |start| start.max(self.since));
        is_unprobed(container, since, now)
            .then(|| Interference::Unknown { container: container.name.clone(), unprobed: true })
    }

    /// Returns when it ends: after the grace, or after the longest time that a health check of a container on probation
    /// may take to pass, whichever is later.
    pub fn deadline(&self, containers: &[Container], context: Context<'_>) -> Timestamp {
        let judged = containers.iter().filter(|c| context.role(c).is_some());
        let budgets = judged.filter_map(|c| match c.health_timing {
            Some(timing) => Some(timing.budget()),
            None if c.state == State::Unknown => self.seen.get(&c.id)?.budget,
            None => None,
        });
        self.since + budgets.fold(context.plan.grace, Duration::max)
    }
}

fn blame(role: Role, container: &Container, flaw: &Flaw) -> Outcome {
    Outcome::Failed(Failure { bystander: role == Role::Bystander, ..Failure::of(container, flaw) })
}

/// Why no container of a compose service is on its expected image.
enum Missing {
    /// External interference.
    Interfered(Interference),
    /// Compose left the container unchanged.
    NotUpdated { container: String },
}

fn missing(expected: &Expected, containers: &[Container], context: Context<'_>) -> Option<Missing> {
    let service = &expected.compose_service;
    // The old containers of a handover are no answer to what has become of the new ones.
    let of_service = containers.iter().filter(|c| c.compose_service == *service);
    let of_service: Vec<&Container> = of_service.filter(|c| !context.is_put_aside(c)).collect();
    if of_service.iter().any(|c| c.image == expected.image) {
        return None;
    }
    let fresh = of_service.iter().find(|c| context.plan.before.iter().all(|was| was.id != c.id));
    Some(match (fresh, of_service.first()) {
        (Some(other), _) => Missing::Interfered(Interference::Replaced {
            container: other.name.clone(),
            image: other.config_image.clone(),
        }),
        (None, None) => Missing::Interfered(Interference::Removed { compose_service: service.clone() }),
        (None, Some(old)) => Missing::NotUpdated { container: old.name.clone() },
    })
}

/// Returns the container that most likely keeps compose from bringing up a project.
pub(in crate::service) fn likely_cause(containers: &[Container], context: Context<'_>) -> Option<Failure> {
    let rank = |container: &Container| {
        let failed = match context.condition(container) {
            Condition::Failing(_) | Condition::Restarting => true,
            Condition::Healthy | Condition::Starting | Condition::Unmeasured => container.restart_count > 0,
            Condition::Inactive(_) => false,
        };
        let fresh = context.plan.before.iter().all(|was| was.id != container.id);
        (failed && fresh).then(|| (context.role(container).is_none(), context.role(container)))
    };
    let (_, container) =
        containers.iter().filter_map(|c| Some((rank(c)?, c))).min_by_key(|(rank, _)| *rank)?;
    let bystander = context.role(container) != Some(Role::Updated);
    Some(Failure { bystander, ..Failure::about(container) })
}

/// Reports whether a container was paused, and runs on since this inspection.
fn is_resumed(container: &Container, seen: &mut Seen, context: Context<'_>) -> bool {
    let condition = context.condition(container);
    let was_paused = std::mem::replace(&mut seen.paused, condition == Condition::Inactive(Inactive::Paused));
    let is_unmeasured = condition == Condition::Unmeasured;
    let was_unmeasured = std::mem::replace(&mut seen.unmeasured, is_unmeasured);
    if was_paused {
        return container.state == State::Running;
    }
    // A short pause is not seen itself, only its effect on the health check.
    is_unmeasured && !was_unmeasured
}

/// Returns a flaw that ends the probation immediately.
fn crash(container: &Container, seen: &mut Seen, context: Context<'_>) -> Option<Flaw> {
    let exit_code = container.exit_code;
    let has_ended = matches!(container.state, State::Exited | State::Restarting);
    let is_stopped = matches!(context.condition(container), Condition::Inactive(_));
    // While it runs, the flag may be that of a child that the main process copes with, or of an earlier run.
    if container.oom_killed && has_ended && exit_code != 0 && !is_stopped {
        return Some(Flaw::OutOfMemory);
    }
    let restarts = restarts(container, context);
    let is_done = is_done(container, context);
    if restarts >= 2 && !is_done {
        return Some(Flaw::CrashLoop { restarts, exit_code });
    }
    match context.condition(container) {
        condition @ (Condition::Healthy
        | Condition::Starting
        | Condition::Failing(Symptom::Unhealthy { .. })) => {
            seen.ended = false;
            seen.started_at = seen.started_at.or(container.started_at);
            seen.was_healthy |= container.health == Some(HealthState::Healthy);
            // It was healthy once, so this is not a slow start.
            let is_unhealthy = matches!(condition, Condition::Failing(_));
            (is_unhealthy && seen.was_healthy).then_some(Flaw::BecameUnhealthy)
        }
        Condition::Failing(Symptom::Exited { .. } | Symptom::OutOfMemory | Symptom::Dead) if !is_done => {
            std::mem::replace(&mut seen.ended, true).then_some(Flaw::Exited { exit_code })
        }
        // Other restart policies start it again.
        Condition::Inactive(Inactive::Finished)
            if !container.restart_policy.is_endless() && ran_before(container, context) =>
        {
            std::mem::replace(&mut seen.ended, true).then_some(Flaw::EndedUnexpectedly)
        }
        _ => None,
    }
}

/// Reports whether the last run of a container has ended with code 0, as one of its compose service did before: it has done its
/// work, and is no crash, whether it is started again or not.
fn is_done(container: &Container, context: Context<'_>) -> bool {
    container.exit_code == 0 && context.plan.jobs.contains(&container.compose_service)
}

/// Reports whether the compose service of a container kept running before the deployment. A one-shot had ended, or ran at that
/// moment.
fn ran_before(container: &Container, context: Context<'_>) -> bool {
    let mut before = context.plan.before.iter();
    !is_done(container, context)
        && before.any(|was| was.compose_service == container.compose_service && was.running)
}

/// Returns a flaw that fails the probation at its deadline.
fn unproven(container: &Container, seen: &Seen, context: Context<'_>) -> Option<Flaw> {
    let exit_code = container.exit_code;
    let is_done = is_done(container, context);
    match context.condition(container) {
        Condition::Healthy if container.health_timing.is_none() && is_done => None,
        Condition::Restarting | Condition::Failing(Symptom::Exited { .. }) if is_done => None,
        Condition::Healthy if container.health_timing.is_none() => {
            let is_other_run = seen.started_at.is_some() && seen.started_at != container.started_at;
            if restarts(container, context) > 0 {
                Some(Flaw::Crashed { exit_code })
            } else {
                is_other_run.then_some(Flaw::StartedAgain)
            }
        }
        Condition::Healthy if container.health.is_some() => None,
        Condition::Healthy | Condition::Starting | Condition::Unmeasured => Some(Flaw::NotHealthyInTime),
        Condition::Failing(Symptom::Unhealthy { .. }) => Some(Flaw::Unhealthy),
        Condition::Inactive(Inactive::Finished) => {
            // One that kept running before and ends now has proven nothing.
            ran_before(container, context).then_some(Flaw::EndedUnexpectedly)
        }
        Condition::Failing(Symptom::NotStarted { .. }) => Some(Flaw::NotStarted),
        Condition::Restarting | Condition::Inactive(_) | Condition::Failing(_) => {
            Some(Flaw::EndState(container.state))
        }
    }
}

/// Returns the number of restarts by its restart policy since the deployment began.
fn restarts(container: &Container, context: Context<'_>) -> u64 {
    let earlier =
        context.plan.before.iter().find(|was| was.id == container.id).map_or(0, |was| was.restart_count);
    container.restart_count.saturating_sub(earlier)
}

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

/// Facts about a failed container, one per line.
fn facts(container: &Container) -> String {
    let mut facts = format!(
        "state: {}\nexit code: {}\nOOM-killed: {}\nrestart count: {}\n",
        container.state.as_str(),
        container.exit_code,
        if container.oom_killed { "yes" } else { "no" },
        container.restart_count
    );
    if !container.error.is_empty() {
        facts.push_str(&format!("engine: {}\n", container.error));
    }
    if !container.health_output.is_empty() {
        facts.push_str(&format!("last health check: {}\n", container.health_output));
    }
    facts
}
