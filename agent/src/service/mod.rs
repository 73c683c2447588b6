//! The decision core: one pure state machine per service. Inputs go in, events and the next action come out.
//!
//! No I/O, no `await`, no clock: the time is an argument. [`Service::act`] is level-triggered: it decides from the
//! current state, not from the event that woke it, so a lost or repeated event makes no difference.
//!
//! # Life of a service
//!
//! 1. **Start.** [`Service::new`] takes the configuration and the stored state. `decide/boot.rs` resumes a deployment at its stored
//!    step, and tells containers that went down with the machine from those that a person stopped. A reload of the
//!    configuration creates the value anew in the same way.
//! 2. **Check.** A poll cycle or a request makes a check due. The worker reads registry, engine and compose files, and returns
//!    an [`Observation`]. `decide/image.rs` compares each image and asks the gates; `decide/check.rs` decides on one [`Cause`]
//!    for a deployment, or on none. A digest that a gate holds is no cause; the check is repeated when the gate opens.
//! 3. **Deployment.** [`Service::act`] turns the cause into a plan that never changes, and a phase. A phase asks for one
//!    step, or for inspections; the result leads to the next phase. The phase is stored before its step runs.
//! 4. **Probation.** Inspections and probes show whether the new containers become and stay healthy. If so, the images count
//!    as proven. If not, they are blocked, and the deployment continues as a rollback, with a probation of its own.
//! 5. **Watch.** Between deployments, events and inspections feed the healer. If `watch` is configured, a new image that
//!    fails soon after its probation is replaced by the earlier one (`decide/late.rs`).
//! 6. **Wait.** While another service changes the project, this one changes nothing. [`Service::wake_at`] says when it has to
//!    decide again without an input.
//! 7. **End.** A service that is no longer configured finishes its deployment and returns its leases. At shutdown, the running
//!    containers are recorded for the next start.
//!
//! From outside, a service changes in two ways (`decide/draft.rs`). [`Service::decide`], [`Service::answer`] and
//! [`Service::act`] return a draft: the worker writes its [`Durable`] and its audit entries in one transaction, replaces the
//! old value by it, and only then performs the action. [`Service::notice`] makes something due and changes nothing that is
//! written. Only `durable` survives a restart: all other fields are read again from outside, or start empty.
//!
//! # Rooms
//!
//! Only [`decide`] and [`view`] know [`Service`]; everything below them is values. No files import each other in a circle.
//!
//! | | responsibility |
//! |---|---|
//! | `view/` | what is shown: the status record, `/why`. Nothing reads it |
//! | `decide/` | every decision, by what it is about |
//! | `mod.rs` | the service: an input is applied, the next action chosen |
//! | `gates/` | the conditions that hold an update, and the digests that they hold |
//! | `wording/` | sentences: audit entries, faults, reasons |
//! | `rollout/` | image rollouts: plan, phases, probation, on compose and in a swarm |
//! | `health/` | container health, and when a container is restarted |
//! | `upkeep/` | late watch, maintenance, alerts, start |
//! | `input.rs`, `action.rs` | what enters the core, and what it asks its worker to do |
//! | `observation.rs`, `known.rs` | what one check has read, and the last known state of the outside |
//! | `event.rs`, `outcome.rs` | what has happened, as typed values; what is counted of it |
//! | `state.rs`, `images.rs` | the durable state; what is remembered of each image |
//! | `checks.rs`, `progress.rs` | which check, step and inspection is due or running |
//! | `compare.rs` | whether an image is up to date |
//! | `scope.rs` | which compose services an update brings up |
//! | `siblings.rs` | the other services of the compose project |
//! | `boot.rs` | what is known of the machine's boots |
//! | `fleet.rs` | the fleet's decisions |

pub mod action;
pub mod boot;
mod checks;
mod compare;
pub mod decide;
mod event;
pub mod fleet;
pub mod gates;
pub mod health;
pub mod images;
pub mod input;
mod known;
pub mod observation;
pub mod outcome;
mod progress;
pub mod rollout;
pub mod scope;
mod siblings;
mod state;
pub mod upkeep;
pub mod view;
pub(crate) mod wording;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use action::Action;
use boot::{Boot, StartReason};
use checks::Checks;
use evenkeel_common::backoff;
use evenkeel_common::wire::AuditEntry;
use gates::permit::FleetSays;
use health::healer::Remedy;
use input::{Input, StepResult};
use jiff::Timestamp;
use known::Known;
pub use observation::FilesApplied;
use observation::Observation;
use outcome::Emitted;
use progress::{Inspections, Steps};
use rollout::plan::{Cause, GoBack};
use rollout::probe::Probing;
pub use rollout::snapshot::KeptSnapshot;
use rollout::step::Phase;
pub use state::{Durable, Totals};

use crate::config::ServiceConfig;
use crate::model::{Members, Project};

/// Time between two inspections of containers on probation.
const INSPECT_INTERVAL: Duration = Duration::from_millis(500);
/// Delay before a step is retried after the engine was unavailable.
const ENGINE_RETRY: Duration = Duration::from_secs(1);
/// First and longest delay before a rollback is retried. The total is long enough for an editor to finish writing a file, and
/// for an upgrade of the engine's binaries.
const ROLLBACK_RETRY: Duration = Duration::from_secs(2);
const LONGEST_ROLLBACK_RETRY: Duration = Duration::from_secs(32);
/// Maximum number of rollback attempts.
const ROLLBACK_ATTEMPTS: u32 = 5;

/// Returns the delay before a rollback is retried after this attempt, of which the first is 1.
fn rollback_pause(attempt: u32) -> Duration {
    backoff::after(attempt, ROLLBACK_RETRY, LONGEST_ROLLBACK_RETRY)
}

/// One service: its configuration, its state and its work in progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// The validated configuration. A reload creates a new service with the same durable state.
    config: Arc<ServiceConfig>,
    /// What survives a restart. It is written before the action that follows from it.
    durable: Durable,
    /// Boot IDs of the machine.
    boot: Boot,
    /// Incremented when an action begins or ends: results of earlier reads are then stale.
    generation: u64,
    /// The other services of its compose project, and which of them is changing it.
    project: siblings::SharedProject,
    /// What the last check, inspection and events have shown of the outside.
    known: Known,
    /// Which check is due or running, and whose requests it answers.
    checks: Checks,
    /// The inspection that is running, and when the next one is due.
    inspections: Inspections,
    /// The step of a deployment that is running, and when a failed one is retried.
    steps: Steps,
    /// The probes that are running on probation, and when the next ones are due.
    probing: Probing,
    /// Failing containers and their remedies; the restart histories are durable.
    healer: health::healer::Healer,
    /// Containers that are being restarted, by name.
    restarting: BTreeSet<String>,
    /// Since when containers are stuck during creation, and when the project was last forced up.
    starter: upkeep::start::Starter,
    /// Calls of the gate command, with their answers.
    gate_command: gates::command::GateCommand,
    /// The fleet's decisions.
    fleet: Arc<fleet::FleetView>,
    /// Permission requests to the wardens, and the leases that they have granted.
    permits: gates::permit::Permits,
    /// When newer tags are looked up, old images are removed, and the way back is checked.
    maintenance: upkeep::maintenance::Maintenance,
    /// The last measurement of the containers, and the times of the last alerts.
    gauges: upkeep::gauges::Gauges,
    /// The deployment that is to begin, as the last check decided.
    wanted: Option<Cause>,
    /// The earlier images that the next check goes back to.
    going_back: Option<GoBack>,
    /// A user acted after a failed rollback: the next check retries it.
    retry_rollback: bool,
    /// When this value was created.
    begun: Timestamp,
    /// When the last input was applied.
    last_input: Timestamp,
    /// Events, log lines and the end of a deployment that the worker takes with the next commit.
    emitted: Emitted,
}

impl Service {
    /// Creates a service from its durable state. Returns it with the audit entries of this start, such as a resumed
    /// deployment. `boot` identifies the machine's current boot; empty if unknown.
    pub fn new(
        config: Arc<ServiceConfig>,
        durable: Durable,
        boot: Boot,
        reason_to_start: StartReason,
        now: Timestamp,
    ) -> (Self, Vec<AuditEntry>) {
        let mut service = Self {
            config,
            durable,
            boot,
            generation: 0,
            project: siblings::SharedProject::default(),
            known: Known::default(),
            checks: Checks::default(),
            inspections: Inspections::default(),
            steps: Steps::default(),
            probing: Probing::default(),
            healer: health::healer::Healer::default(),
            restarting: BTreeSet::new(),
            starter: upkeep::start::Starter::default(),
            gate_command: gates::command::GateCommand::default(),
            fleet: Arc::default(),
            permits: gates::permit::Permits::default(),
            maintenance: upkeep::maintenance::Maintenance::default(),
            gauges: upkeep::gauges::Gauges::default(),
            wanted: None,
            going_back: None,
            retry_rollback: false,
            begun: now,
            last_input: now,
            emitted: Emitted::default(),
        };
        service.inspections.request_by(now);
        service.on_start(reason_to_start, now);
        service.follow_clock(now);
        service.resume(reason_to_start, now);
        service.forget_unchecked_fault();
        let entries = service.take_entries();
        (service, entries)
    }

    /// The configuration.
    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// A shared handle to the configuration.
    pub fn shared_config(&self) -> Arc<ServiceConfig> {
        self.config.clone()
    }

    /// The durable state.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The project of the deployment in progress, which may no longer be configured, or else the configured one.
    fn current_project(&self) -> Option<Project> {
        let deployed =
            self.durable.deployment.as_ref().and_then(|deployment| deployment.plan().project.clone());
        deployed.or_else(|| self.compose_project())
    }

    /// The configured project, as a person has started it.
    pub(super) fn compose_project(&self) -> Option<Project> {
        let project = self.config.project()?;
        // The files may have been moved since, or belong to another project.
        let is_of = |(name, file): &(String, PathBuf)| {
            *name == project.name && project.files.first().is_some_and(|first| first == file)
        };
        let origin = self.durable.origin.as_ref();
        let origin = origin.filter(|_| self.durable.origin_of.as_ref().is_none_or(is_of));
        Some(project.as_started(origin))
    }

    /// Name of [`Self::current_project`]: while this service changes it, no other service may.
    pub fn project_name(&self) -> Option<&str> {
        let deployed =
            self.durable.deployment.as_ref().and_then(|deployment| deployment.plan().project.as_ref());
        deployed.map(|project| &*project.name).or(self.config.compose_project.as_deref())
    }

    fn members(&self) -> Option<Members> {
        Members::of(self.project_name(), self.config.container_name.as_deref())
    }

    /// Whether a deployment is in progress. One whose outcome is decided and that only cleans up does not count.
    pub fn is_deploying(&self) -> bool {
        let deployment = self.durable.deployment.as_ref();
        deployment.is_some_and(|d| !(d.phase == Phase::Unpin || d.phase.is_aftermath()))
    }

    /// Whether this service is changing its compose project, so that no other service may.
    pub fn is_changing_project(&self) -> bool {
        self.durable.is_changing_containers() || !self.restarting.is_empty()
    }

    /// Whether its containers are healed now: not while they are being deployed.
    fn heals(&self) -> bool {
        !self.durable.is_changing_containers() && !self.permits.is_retired
    }

    /// Whether the service is no longer configured, and has nothing left to finish but to return its leases.
    pub fn is_retired(&self) -> bool {
        self.permits.is_retired && !self.durable.is_deploying()
    }

    /// Whether a check can be made now.
    pub fn may_check(&self) -> bool {
        !self.is_deploying() && self.wanted.is_none() && self.can_check()
    }

    fn check(&mut self, is_new: bool) {
        // Also while an update that was found waits for its turn: the next check asks the gate command again.
        self.gate_command.new_cycle |= is_new;
        if self.may_check() {
            self.checks.request();
        }
    }

    fn can_check(&self) -> bool {
        self.config.is_polled()
    }

    /// Requests a check, if this service is checked at all.
    fn request_check(&mut self) {
        if self.can_check() {
            self.checks.request();
        }
    }

    fn begin_step(&mut self) {
        self.steps.begin();
        self.generation += 1;
    }

    fn end_step(&mut self) {
        self.steps.end();
        self.generation += 1;
    }

    /// Applies an input; returns the resulting audit entries.
    fn apply(&mut self, input: Input, now: Timestamp) -> Vec<AuditEntry> {
        self.last_input = now;
        match input {
            Input::Checked { generation, is_manual, result } => {
                let is_pending = result.as_ref().is_ok_and(Observation::is_pending);
                let is_rest = self.checks.returned(is_pending);
                let result = result.map(|seen| self.with_events_in(seen, now));
                if generation == self.generation {
                    if !is_pending {
                        self.checks.answered(result.as_ref().err());
                    }
                    self.checked(is_manual, result, now);
                } else if !is_pending {
                    // An action began or ended while engine and registry were being read, so the result is stale: check again.
                    // If the first part of this check started an action that failed, wait for the next cycle as usual.
                    let waits = is_rest && self.durable.fault.is_some();
                    self.checks.returned_stale(is_manual, self.can_check() && !waits);
                }
            }
            Input::Inspected { generation, result } => {
                self.inspections.end();
                if generation == self.inspection_generation() {
                    self.inspected(result, now);
                } else {
                    self.inspections.request_by(now);
                }
            }
            Input::Stepped(result) => {
                self.end_step();
                let result = match result {
                    StepResult::Swarm(result) => {
                        self.stepped_in_swarm(result, now);
                        return self.take_entries();
                    }
                    StepResult::Started { up, named, containers } => {
                        StepResult::Started { up, named, containers: self.with_events(containers, now) }
                    }
                    StepResult::HandoverStepped { problems, containers } => {
                        let containers = self.with_events(containers, now);
                        StepResult::HandoverStepped { problems, containers }
                    }
                    StepResult::HookEnded(Ok(Some(containers))) => {
                        StepResult::HookEnded(Ok(Some(self.with_events(containers, now))))
                    }
                    other => other,
                };
                self.stepped(result, now);
            }
            Input::Probed { since, answers } => self.probed(since, answers, now),
            Input::SwarmInspected { generation, result } => {
                self.inspections.end();
                if generation == self.inspection_generation() {
                    self.swarm_inspected(result, now);
                } else {
                    self.inspections.request_by(now);
                }
            }
            Input::Event { at, id, what } => self.event(at, id, &what, now),
            Input::Restarted { name, result } => {
                self.restarting.remove(&name);
                self.generation += 1;
                self.inspections.request_by(now);
                self.restarted(&name, result, now);
            }
            Input::EngineBack { at, engine_since } => self.engine_back(at, engine_since, now),
            Input::EngineGap { at } => {
                let durable = &mut self.durable;
                self.healer.gaps.begin(&mut durable.stops, &mut durable.engine_stops, at);
                self.durable.forget_exits_before_gap(at);
                self.steps.disturb();
                self.healer.inspect_first();
                self.inspections.request_by(now);
            }
            Input::CommandAnswered { image, digest, answer } => {
                self.command_answered(&image, &digest, answer, now);
            }
            Input::Fleet(view) => self.fleet_changed(view, now),
            Input::FleetAnswered { image, ask, answer } => self.fleet_answered(&image, &ask, answer, now),
            Input::FleetReleased(ask) => self.fleet_released(&ask),
            Input::Measured(measurement) => self.measured(measurement, now),
            Input::Maintained(result) => self.maintained(result, now),
        }
        self.take_entries()
    }

    /// Returns the next action, if any, and marks it as begun. Nothing is changed while another service is changing
    /// the project.
    fn next(&mut self, now: Timestamp) -> Option<Action> {
        if let Some(release) = self.lease_to_return(now) {
            return Some(release);
        }
        let is_free = !self.project.is_busy();
        if let Some(deployment) = &self.durable.deployment {
            if self.steps.may_begin(now) && (is_free || deployment.phase.is_aftermath()) {
                let step = deployment.step(self.current_project().as_ref());
                self.steps.retry_at = None;
                if let Some(step) = step {
                    self.begin_step();
                    return Some(Action::Step(step));
                }
                return self.next_probe(now).or_else(|| self.next_inspection(now));
            }
            if !self.heals() {
                return None;
            }
            return match self.remedy_due(now).filter(|_| is_free) {
                Some((name, Remedy::Restart { id })) => Some(self.begin_restart(name, id, now)),
                _ => self.next_inspection(now),
            };
        }
        if is_free && let Some((name, remedy)) = self.remedy_due(now) {
            match remedy {
                Remedy::Restart { id } => return Some(self.begin_restart(name, id, now)),
                Remedy::Recreate { compose_service } => {
                    self.begin_recreate(&name, compose_service, now);
                    return self.next(now);
                }
            }
        }
        if is_free && self.restarting.is_empty() && self.wanted.is_some() {
            match self.fleet_says(now) {
                FleetSays::Ask(action) => return Some(*action),
                FleetSays::Pending => {}
                FleetSays::Go => {
                    let begins = self.wanted.take().is_some_and(|cause| self.begin(cause, now));
                    self.use_permits();
                    if begins {
                        return self.next(now);
                    }
                }
            }
        }
        self.next_check(now)
            .or_else(|| self.next_command_ask(now))
            .or_else(|| self.next_inspection(now))
            .or_else(|| self.next_maintenance(now))
    }

    /// Whether images are being pulled.
    pub fn is_pulling(&self) -> bool {
        self.steps.is_running()
            && self.durable.deployment.as_ref().is_some_and(|d| matches!(d.phase, Phase::Pull))
    }

    /// Whether a step is being executed.
    pub fn is_stepping(&self) -> bool {
        self.steps.is_running()
    }

    /// When to call [`Self::act`] again if no input arrives before.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let is_free = !self.project.is_busy();
        let inspect_at = self.inspections.next_at();
        // An overdue remedy that waits for its project needs no timer: the end of the sibling's work wakes it.
        let heal_at = self.next_remedy().map(|(at, ..)| at).filter(|at| is_free || *at > now);
        match &self.durable.deployment {
            None => [inspect_at, heal_at, self.checks.again_at, self.maintenance_at(now)]
                .into_iter()
                .flatten()
                .min(),
            Some(_) if self.heals() => [self.steps.retry_at, inspect_at, heal_at].into_iter().flatten().min(),
            Some(_) if self.steps.is_running() || !is_free => None,
            Some(_) => self.steps.retry_at.or_else(|| inspect_at.into_iter().chain(self.probe_at(now)).min()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
