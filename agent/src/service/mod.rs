//! The decision core: one pure value per service. Inputs go in, events and the next action come out.
//!
//! No I/O, no `await`, no clock: time comes in as a value. [`Service::next`] decides by what is known, not by
//! the event that woke it, so that a lost or repeated event changes nothing.
//!
//! | file | what it decides |
//! |---|---|
//! | `assess.rs` | how a container is doing: the only judgement of "well" |
//! | `compare.rs` | whether an image is up to date |
//! | `candidate.rs` | what is known of a digest that may be deployed: first seen, approved, the command's answer |
//! | `check.rs` | what follows from a check: nothing, a block, something to do |
//! | `rollout/` | the rollout of images: plan, steps, probation, rollback |
//! | `compose_run.rs` | a `compose up` that is no rollout: start, changed files, force up, recreate |
//! | `scope.rs` | which compose services an update brings up |
//! | `shared.rs` | what the gates of other services of the project mean for an image that they list, too |
//! | `siblings.rs` | what the other services of the project mean for this one |
//! | `inspect.rs` | what follows from how the containers look |
//! | `heal.rs` | which container is unwell, and what helps it |
//! | `restart_state.rs` | when it is restarted, and when to give up |
//! | `kept.rs` | images that a redeployment leaves on what they run |
//! | `newer_tags.rs` | which newer tag is deployed next, and which have failed |
//! | `maintenance.rs` | newer tags, images that are no longer needed, whether a rollback would be possible |
//! | `request.rs` | what a person asks |
//! | `boot.rs` | what follows when the agent or the machine stops and starts |
//! | `start.rs` | whether a project is started or forced up, or follows its compose files |
//! | `alert.rs` | what the containers use, and when that is too much |
//! | `clock_shift.rs` | what a clock that is set does to waiting times |
//! | `state.rs` | what must outlive the agent |
//! | `event.rs` | what happened, as typed values |
//! | `wording.rs` | the sentences: audit entries, faults, reasons |
//! | `outcome.rs` | what is counted |
//! | `fleet.rs`, `permit.rs` | what is known of the fleet; what it is asked before an update |
//! | `gates.rs` | what keeps an update from going live now |
//! | `swarm/` | updates of swarm services, in place of `rollout/` |
//! | `running.rs` | what runs of each image, since when it is proven, what the registry has |
//! | `status.rs`, `runtime.rs` | how all this looks from outside |

pub mod action;
mod alert;
mod assess;
pub mod boot;
pub mod candidate;
mod check;
pub mod clock_shift;
mod compare;
mod compose_run;
mod event;
pub mod fleet;
mod gate_command;
pub mod gates;
pub mod heal;
pub mod input;
mod inspect;
mod kept;
pub mod maintenance;
pub mod newer_tags;
pub mod outcome;
mod permit;
mod request;
pub mod restart_state;
pub mod rollout;
pub mod running;
pub mod runtime;
pub mod scope;
pub mod shared;
mod siblings;
mod start;
mod state;
pub mod status;
pub mod swarm;
mod wording;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::wire::AuditEntry;
use jiff::{SignedDuration, Timestamp};

use crate::config::ServiceConfig;
use crate::model::swarm::SwarmService;
use crate::model::{Container, Members, Project};

use action::{Action, FilesAsked};
use boot::{Boot, StartReason};
use event::{Event, Fault, Note};
use heal::Remedy;
use input::{Input, LocalImage, Observation};
use outcome::Ended;
use permit::FleetSays;
use rollout::plan::Cause;
use rollout::step::Phase;
pub use state::{Durable, Totals};

/// Time between two inspections of containers on probation.
const INSPECT_INTERVAL: Duration = Duration::from_millis(500);
/// Wait before a step is taken again because the engine was away.
const ENGINE_RETRY: Duration = Duration::from_secs(1);
/// Wait before a rollback is tried again; it doubles with every attempt. Together they outlast an editor that writes a
/// file, and an upgrade of the engine's programs.
const ROLLBACK_RETRY: SignedDuration = SignedDuration::from_secs(2);
/// How often a rollback is tried.
const ROLLBACK_ATTEMPTS: u32 = 5;
/// How often a probation may begin again because the engine was away.
const MAX_INTERRUPTIONS: u32 = 10;

/// One service: what is configured, what is known, what is under way.
// Each flag is one open question of its own; none excludes another.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone)]
pub struct Service {
    config: Arc<ServiceConfig>,
    durable: Durable,
    /// Of the machine.
    boot: Boot,
    /// Raised when an action begins or ends: what was read before is stale then.
    generation: u64,
    /// The other services of its compose project.
    project: siblings::SharedProject,
    seen: Option<Arc<Observation>>,
    /// Images that were fetched since they were read last, by name as configured.
    fetched: BTreeMap<String, LocalImage>,
    /// The containers as they were read last.
    containers: Option<Arc<[Container]>>,
    /// The swarm service, where it is one.
    swarm: Option<Box<SwarmService>>,
    /// Exit code of each container's last run: an inspection forgets it when the next run begins.
    exits: BTreeMap<String, i64>,
    healer: heal::Healer,
    starter: start::Starter,
    /// Hash of the compose files as the last check read them.
    files_seen: Option<String>,
    /// Events that were not taken yet, with their times.
    events: Vec<(Timestamp, Event)>,
    /// Lines for the log that were not taken yet.
    notes: Vec<Note>,
    /// The deployment that this decision ended.
    ended: Option<Ended>,
    fault: Option<Fault>,
    wanted: Option<Cause>,
    check_asked: bool,
    check_due: bool,
    checking: bool,
    /// The first part of the check under way was decided on already.
    rest_follows: bool,
    redeploy_asked: bool,
    /// The check under way began before that was asked, and may not have asked the registry: the next one answers it.
    redeploy_waits: bool,
    /// A cycle, or a person, has asked for a check since the gate command was asked last.
    new_cycle: bool,
    /// Questions to the gate command.
    command_asks: Vec<gate_command::CommandAsk>,
    /// What is known of the fleet.
    fleet: Arc<fleet::FleetView>,
    /// Questions to the wardens.
    permits: permit::Permits,
    /// When the registry answered last for an image as configured, where gates may hold it.
    looked: BTreeMap<String, Timestamp>,
    /// A person acted after a rollback had failed: the next check tries it again.
    retry_rollback: bool,
    stepping: bool,
    /// Containers that are being restarted just now, by name.
    restarting: BTreeSet<String>,
    /// When somebody was last seen working on the containers.
    touched_at: Option<Timestamp>,
    /// When to check again although no cycle asks for it.
    recheck_at: Option<Timestamp>,
    /// The engine went away during the step: if that failed, it may not be the images' fault.
    gap: bool,
    inspecting: bool,
    inspect_at: Option<Timestamp>,
    retry_at: Option<Timestamp>,
    last_check: Option<Timestamp>,
    maintenance: maintenance::Maintenance,
    /// When this value was made.
    begun: Timestamp,
    /// When the last input came.
    last_input: Timestamp,
    gauges: alert::Gauges,
}

impl Service {
    /// A service as it was left, or a fresh one. Returns the entry of a resumed deployment. `boot` names the time
    /// since the machine was booted; empty where it can't be known.
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
            seen: None,
            fetched: BTreeMap::new(),
            containers: None,
            swarm: None,
            exits: BTreeMap::new(),
            healer: heal::Healer::default(),
            starter: start::Starter::default(),
            files_seen: None,
            events: Vec::new(),
            notes: Vec::new(),
            ended: None,
            fault: None,
            wanted: None,
            check_asked: false,
            check_due: false,
            checking: false,
            rest_follows: false,
            redeploy_asked: false,
            redeploy_waits: false,
            new_cycle: false,
            command_asks: Vec::new(),
            fleet: Arc::default(),
            permits: permit::Permits::default(),
            looked: BTreeMap::new(),
            retry_rollback: false,
            stepping: false,
            restarting: BTreeSet::new(),
            touched_at: None,
            recheck_at: None,
            gap: false,
            inspecting: false,
            inspect_at: Some(now),
            retry_at: None,
            last_check: None,
            maintenance: maintenance::Maintenance::default(),
            begun: now,
            last_input: now,
            gauges: alert::Gauges::default(),
        };
        service.on_start(reason_to_start, now);
        service.follow_clock(now);
        service.resume(reason_to_start, now);
        service.resume_in_swarm(reason_to_start, now);
        let entries = service.take_unsaid();
        (service, entries)
    }

    /// Its configuration.
    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// The same, to be kept elsewhere.
    pub fn shared_config(&self) -> Arc<ServiceConfig> {
        self.config.clone()
    }

    /// What must last.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// What it works on just now: the project of the deployment under way, which may be configured no more.
    fn project_at_work(&self) -> Option<Project> {
        let deployed =
            self.durable.deployment.as_ref().and_then(|deployment| deployment.plan().project.clone());
        deployed.or_else(|| self.config.project())
    }

    /// Name of the compose project that nobody else may work on meanwhile.
    pub fn project_name(&self) -> Option<&str> {
        let deployed =
            self.durable.deployment.as_ref().and_then(|deployment| deployment.plan().project.as_ref());
        deployed.map(|project| &*project.name).or(self.config.compose_project.as_deref())
    }

    fn members(&self) -> Option<Members> {
        Members::of(self.project_name(), self.config.container_name.as_deref())
    }

    /// Whether a deployment is under way. One that is decided and only tidies up does not count.
    pub fn is_deploying(&self) -> bool {
        self.durable.swarm.is_some()
            || self.durable.deployment.as_ref().is_some_and(|d| !matches!(d.phase, Phase::Unpin))
    }

    /// Whether it is changing its compose project, so that no other service may.
    pub fn is_at_work(&self) -> bool {
        self.durable.is_deploying() || !self.restarting.is_empty()
    }

    /// A check is due. Whether one will follow. `is_new`: it is that of a poll cycle, or a person asked for it; a
    /// registry's news of a push are none (DECISIONS 7: the gate command is asked once a cycle).
    pub fn check(&mut self, is_new: bool) -> bool {
        if self.is_deploying() || self.wanted.is_some() || !self.can_check() {
            return false;
        }
        self.check_due = true;
        self.new_cycle |= is_new;
        true
    }

    fn can_check(&self) -> bool {
        self.config.is_polled()
    }

    /// Inspect the containers soon.
    pub fn look(&mut self, now: Timestamp) {
        self.inspect_at = Some(self.inspect_at.map_or(now, |at| at.min(now)));
    }

    /// Takes an input in; returns the audit entries of what follows from it.
    pub fn apply(&mut self, input: Input, now: Timestamp) -> Vec<AuditEntry> {
        self.last_input = now;
        match input {
            Input::Checked { generation, asked, result } => {
                self.checking = result.as_ref().is_ok_and(Observation::is_pending);
                let is_rest = std::mem::replace(&mut self.rest_follows, self.checking);
                if generation == self.generation {
                    self.checked(asked, result, now);
                } else if !self.checking {
                    // An action began or ended while engine and registry were read: read them again. Where the first part of this
                    // check began an action that failed, that waits for the next cycle as ever.
                    let waits = is_rest && self.fault.is_some();
                    self.check_due = (self.can_check() && !waits) || self.redeploy_asked || asked;
                    self.check_asked |= asked;
                }
            }
            Input::Inspected { generation, result } => {
                self.inspecting = false;
                if generation == self.inspection_generation() {
                    self.inspected(result, now);
                } else {
                    self.inspect_at = Some(now);
                }
            }
            Input::Stepped(result) => {
                self.stepping = false;
                self.generation += 1;
                self.stepped(result, now);
            }
            Input::SwarmSeen { generation, result } => {
                self.inspecting = false;
                if generation == self.inspection_generation() {
                    self.swarm_seen(result, now);
                } else {
                    self.inspect_at = Some(now);
                }
            }
            Input::SwarmStepped(result) => {
                self.stepping = false;
                self.generation += 1;
                self.swarm_stepped(result, now);
            }
            Input::Event { at, id, what } => self.event(at, id, &what, now),
            Input::Restarted { name, result } => {
                self.restarting.remove(&name);
                self.generation += 1;
                self.inspect_at = Some(now);
                self.restarted(&name, result, now);
            }
            Input::EngineBack { at } => self.healer.engine_back(at),
            Input::EngineGap { at } => {
                let durable = &mut self.durable;
                self.healer.engine_gap(&mut durable.stops, &mut durable.engine_stops, at);
                self.gap = self.stepping;
                self.inspect_at = Some(now);
                self.interrupted(now);
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
        self.take_unsaid()
    }

    /// The next thing to do, if there is one; marks it as begun. Nothing is changed while another service of the
    /// project is at work.
    ///
    /// Decide on a clone: where the state that comes of it can't be written, dropping the clone is all it takes to
    /// leave everything as it was.
    pub fn next(&mut self, now: Timestamp) -> Option<Action> {
        if let Some(release) = self.lease_to_return(now) {
            return Some(release);
        }
        if self.durable.swarm.is_some() {
            return self.next_in_swarm(now);
        }
        let is_free = !self.project.is_busy();
        if let (Some(project), Some(deployment)) = (self.project_at_work(), &self.durable.deployment) {
            let waiting = self.retry_at.is_some_and(|at| at > now);
            if self.stepping || waiting || !is_free {
                return None;
            }
            self.retry_at = None;
            if let Some(step) = deployment.step(&project) {
                self.stepping = true;
                self.gap = false;
                self.generation += 1;
                return Some(Action::Step(step));
            }
            return self.next_inspection(now);
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
        if self.recheck_at.take_if(|at| *at <= now).is_some() {
            self.check_due |= self.can_check();
        }
        if self.check_due && !self.checking && self.wanted.is_none() {
            self.check_due = false;
            self.checking = true;
            self.redeploy_waits = false;
            let settled = self.settled_digests();
            let asked = std::mem::take(&mut self.check_asked);
            let files = self
                .config
                .project()
                .filter(|_| self.config.compose_watch)
                .map(|project| FilesAsked { project, known: self.durable.files_hash.clone() });
            let images = self.config.auto_update || self.redeploy_asked;
            let published = self.durable.published.clone();
            let newer = self.newer_tags();
            return Some(Action::Check {
                generation: self.generation,
                asked,
                images,
                files,
                settled,
                published,
                newer,
            });
        }
        if let Some(ask) = self.next_command_ask() {
            return Some(ask);
        }
        self.next_inspection(now).or_else(|| self.next_maintenance(now))
    }

    /// Whether images are being fetched right now.
    pub fn is_pulling(&self) -> bool {
        self.stepping && self.durable.deployment.as_ref().is_some_and(|d| matches!(d.phase, Phase::Pull))
    }

    /// Whether a step is being done right now.
    pub fn is_stepping(&self) -> bool {
        self.stepping
    }

    /// When it wants to be asked again without any new fact.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let is_free = !self.project.is_busy();
        let inspect_at = self.inspect_at.filter(|_| !self.inspecting);
        match &self.durable.deployment {
            None if self.durable.swarm.is_some() => {
                if self.stepping {
                    None
                } else {
                    self.retry_at.or(inspect_at)
                }
            }
            None => {
                let heal_at = self.next_remedy().map(|(at, ..)| at);
                // One that is due and has to wait for its project is woken by its being free.
                let heal_at = heal_at.filter(|at| is_free || *at > now);
                [inspect_at, heal_at, self.recheck_at, self.maintenance_at(now)].into_iter().flatten().min()
            }
            Some(_) if self.stepping || !is_free => None,
            Some(_) => self.retry_at.or(inspect_at),
        }
    }
}
