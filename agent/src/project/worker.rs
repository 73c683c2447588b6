//! One task per compose project. It owns the project's services, and only one of them may change the project at a time.
//!
//! A service that begins to change the project (a deployment, a restart) has the turn until it is done. The others are
//! notified at the beginning and at the end: they change nothing in between, and their earlier observations are stale
//! afterwards. Reads of several services run concurrently.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::store::{Change, Store, StoreError};
use evenkeel_common::wire::AuditEntry;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::ServiceConfig;
use crate::model::image::{Digest, Reference};
use crate::ports::fleet::Fleet;
use crate::ports::{Compose, Engine, EnvFiles, GateCommand, Probes, Registry, Signatures, Swarm, Tags};
use crate::service::FilesApplied;
use crate::service::boot::Boot;
use crate::service::fleet::FleetView;
use crate::service::input::{CheckFault, Input, ServiceReply, ServiceRequest};
use crate::service::shared::add_shared_candidates;
use evenkeel_common::wire::DeployOutcome;

use super::cycle::Cycle;
use super::files::Offload;
use super::inbox;
use super::member::Event;
pub use super::member::Member;
use super::placement::Placement;
use super::published::{self, Changed};
use super::snapshot::Data;

/// Records an audit entry.
pub type Record = Arc<dyn Fn(AuditEntry) + Send + Sync>;

/// Writes state changes and their audit entries in one transaction, then records the entries. If it fails, nothing is
/// changed and nothing recorded.
pub type Commit =
    Arc<dyn Fn(Vec<Change>, Vec<AuditEntry>) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

/// Receives the outcome, the duration and the outage of each deployment.
pub type Deployed = Arc<dyn Fn(DeployOutcome, Duration, Option<Duration>) + Send + Sync>;

/// External dependencies of the workers, shared by all of them.
#[derive(Clone)]
pub struct World {
    /// Container engine.
    pub engine: Arc<dyn Engine>,
    /// Image registries.
    pub registry: Arc<dyn Registry>,
    /// Signatures of images.
    pub signatures: Arc<dyn Signatures>,
    /// Tag lists of repositories.
    pub tags: Arc<dyn Tags>,
    /// The swarm that the engine is a manager of.
    pub swarm: Arc<dyn Swarm>,
    /// Compose.
    pub compose: Arc<dyn Compose>,
    /// Env files.
    pub env_files: Arc<dyn EnvFiles>,
    /// Gate commands.
    pub gate_command: Arc<dyn GateCommand>,
    /// Probes of containers on probation.
    pub probes: Arc<dyn Probes>,
    /// The data of services.
    pub data: Data,
    /// The wardens.
    pub fleet: Arc<dyn Fleet>,
    /// View of the fleet.
    pub fleet_view: watch::Receiver<Arc<FleetView>>,
    /// Signals changes of published state.
    pub changed: Changed,
    /// Durable state, for reading.
    pub store: Arc<dyn Store>,
    /// Writes durable state.
    pub commit: Commit,
    /// Where work runs that blocks on the disk.
    pub offload: Offload,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Records audit entries without a state change.
    pub record: Record,
    /// Receives finished deployments.
    pub deployed: Deployed,
    /// Boot IDs of the machine.
    pub boot: Boot,
}

/// A command to a service.
pub enum Command {
    /// A request by a user. An error means that its effect could not be made durable and nothing was changed.
    Request(ServiceRequest, oneshot::Sender<Result<ServiceReply, StoreError>>),
    /// Check as part of a cycle, and send the result. The sender is dropped if there is nothing to check.
    Check(Arc<Cycle>, oneshot::Sender<CheckEnd>),
    /// A tag was pushed that may be newer than the current one of an image.
    TagPushed,
    /// Inspect the containers.
    Inspect,
    /// An input for the decision core.
    Input(Box<Input>),
    /// Continue under this configuration as soon as no step is in progress, in another project if it has one. Acknowledged
    /// when done; the sender is dropped if the service has ended before.
    Reconfigure(Arc<ServiceConfig>, oneshot::Sender<()>),
    /// The service is no longer configured: end as soon as no deployment is in progress. Returns whether there is one.
    Retire(oneshot::Sender<bool>),
    /// Liveness check by the watchdog.
    Ping(oneshot::Sender<()>),
}

/// Result of a check: success, or why it failed.
pub type CheckEnd = Result<(), CheckFault>;

/// Handle to a service.
#[derive(Clone)]
pub struct Handle {
    /// The service's configuration.
    pub config: Arc<ServiceConfig>,
    /// Queue for commands.
    pub inbox: inbox::Sender<Command>,
    /// Published state.
    pub published: published::Receiver,
}

/// Returns the store key of a service's state.
pub fn state_key(service: &str) -> String {
    format!("service/{service}")
}

/// Identifies a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProjectKey {
    /// The worker of a compose project.
    Project(String),
    /// The worker of a service without a project.
    Service(String),
}

impl ProjectKey {
    pub(super) fn of(project: Option<&str>, service: &str) -> Self {
        project.map_or_else(|| Self::Service(service.to_owned()), |name| Self::Project(name.to_owned()))
    }
}

impl std::fmt::Display for ProjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Project(name) => write!(f, "project {name}"),
            Self::Service(name) => write!(f, "service {name}"),
        }
    }
}

/// The task of one compose project.
pub struct Worker {
    key: ProjectKey,
    clock: Arc<dyn Clock>,
    members: Vec<Member>,
    /// The service that currently may change the project.
    turn: Option<String>,
    /// Index of the service that is served first. It rotates, so that every service gets its turn.
    first: usize,
    /// Services that move to this worker.
    arrivals: inbox::Receiver<Vec<Member>>,
    placement: Placement,
    /// Last reading of the clock.
    last_seen: Timestamp,
}

impl Worker {
    pub(super) fn new(
        key: ProjectKey,
        clock: Arc<dyn Clock>,
        arrivals: inbox::Receiver<Vec<Member>>,
        placement: Placement,
    ) -> Self {
        let last_seen = clock.now();
        Self { key, clock, members: Vec::new(), turn: None, first: 0, arrivals, placement, last_seen }
    }

    /// Runs until `stop`, or until it has no service left. A step in progress may finish.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut is_stopping = false;
        let mut event = None;
        loop {
            // Boxed, so that it takes memory only while it runs: an idle task would reserve space for the whole future.
            Box::pin(self.decide(event.take())).await;
            if self.members.is_empty() && (is_stopping || self.placement.close(&self.key)) {
                return;
            }
            let wake = self.wake_in();
            let first = self.first;
            tokio::select! {
                // In order, so that simulated runs are reproducible. Nothing starves, because all due work is done above
                // after every event.
                biased;
                () = stop.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    self.members.iter_mut().for_each(Member::stop);
                }
                Some(arrivals) = self.arrivals.recv(), if !is_stopping => self.admit(arrivals),
                next = next_event(&mut self.members, first) => event = Some(next),
                () = sleep_for(wake), if wake.is_some() => {}
            }
        }
    }

    /// Handles an event of one of the services, and starts everything that is due.
    async fn decide(&mut self, event: Option<(usize, Event)>) {
        let placement = self.placement.clone();
        let _permit = placement.may_decide().await;
        if let Some((at, event)) = event {
            self.handle(at, event).await;
        }
        self.remove_departing().await;
        self.run_pending().await;
        self.publish();
    }

    /// Adds services. One with an unfinished deployment gets the turn before others can begin one.
    fn admit(&mut self, mut arrivals: Vec<Member>) {
        arrivals.iter_mut().for_each(Member::touch);
        self.members.reserve_exact(arrivals.len());
        self.members.append(&mut arrivals);
        self.now();
        self.update_siblings();
        self.pass_turn();
    }

    /// Updates the siblings of every service.
    fn update_siblings(&mut self) {
        let configured = self.members.iter().filter(|member| member.is_configured());
        let mut services: Vec<_> = configured.map(|member| member.service.shared_config()).collect();
        services.sort_by(|a, b| a.name.cmp(&b.name));
        let services: Arc<[_]> = services.into();
        for member in &mut self.members {
            member.service_mut().set_siblings(services.clone());
        }
    }

    /// Removes services that end, moves those that belong to another project, and applies pending configurations.
    async fn remove_departing(&mut self) {
        let now = self.now();
        let mut has_changed = false;
        let mut at = 0;
        while at < self.members.len() {
            has_changed |= self.members[at].try_reconfigure(now);
            if self.members[at].is_leaving() {
                self.members[at].leave(now).await;
                self.members.remove(at);
                has_changed = true;
            } else if !self.members[at].belongs_to(&self.key) {
                let mut member = self.members.remove(at);
                member.service_mut().sibling_ends(now);
                self.placement.place(vec![member]);
                has_changed = true;
            } else {
                at += 1;
            }
        }
        if has_changed {
            self.update_siblings();
            self.pass_turn();
        }
    }

    /// Lets every service start its due actions.
    async fn run_pending(&mut self) {
        let now = self.now();
        self.pass_turn();
        let mut is_settled = false;
        while !is_settled {
            is_settled = true;
            for offset in 0..self.members.len() {
                let at = (self.first + offset) % self.members.len();
                if self.members[at].is_due(now) {
                    self.members[at].run_pending(now).await;
                    is_settled &= !self.pass_turn();
                }
            }
        }
    }

    /// Takes the turn from a service that is done, and gives it to one that has begun. Returns whether it has changed.
    fn pass_turn(&mut self) -> bool {
        let mut has_changed = false;
        let at_work = |name: &String| {
            self.members.iter().any(|member| member.name() == name && member.service.is_changing_project())
        };
        if !self.turn.as_ref().is_some_and(at_work) {
            let now = self.last_seen;
            if self.turn.take().is_some() {
                self.first = self.first.wrapping_add(1);
                for member in &mut self.members {
                    member.service_mut().sibling_ends(now);
                    member.touch();
                }
                has_changed = true;
            }
            let next = self.members.iter().find(|member| member.service.is_changing_project());
            self.turn = next.map(|member| member.name().to_owned());
            has_changed |= self.turn.is_some();
        }
        if let Some(turn) = &self.turn {
            for member in self.members.iter_mut().filter(|member| member.name() != turn) {
                member.service_mut().sibling_begins(turn);
            }
        }
        has_changed
    }

    async fn handle(&mut self, at: usize, mut event: Event) {
        let now = self.now();
        if let Some(observation) = event.observation_mut() {
            observation.blocked_elsewhere = self.blocked_by_others(at);
            observation.files_applied_elsewhere = self.applied_by_others(at);
            let others: Vec<_> = self.others(at).map(|member| &*member.service).collect();
            add_shared_candidates(observation, &others, now);
        }
        let was_configured = self.members[at].is_configured();
        self.members[at].handle_event(event, now).await;
        if self.members[at].is_configured() != was_configured {
            self.update_siblings();
        }
    }

    /// Returns the references blocked by the project's other services.
    fn blocked_by_others(&self, at: usize) -> Vec<(Reference, Digest)> {
        self.others(at).flat_map(|member| member.service.blocked_references()).collect()
    }

    /// Returns the compose files that another service was the last to apply.
    fn applied_by_others(&self, at: usize) -> Option<FilesApplied> {
        let applied = self.others(at).filter_map(|member| member.service.durable().files_applied.clone());
        applied.max_by_key(|applied| applied.at)
    }

    /// Returns the other configured services.
    fn others(&self, at: usize) -> impl Iterator<Item = &Member> {
        let others = self.members.iter().enumerate().filter(move |(i, m)| *i != at && m.is_configured());
        others.map(|(_, member)| member)
    }

    fn publish(&mut self) {
        for member in &mut self.members {
            member.publish_if_stale();
        }
    }

    /// Returns the current time. If the clock was set since the last call, all deadlines are shifted.
    fn now(&mut self) -> Timestamp {
        let (wall, steady) = (self.clock.now(), Instant::now());
        self.last_seen = wall;
        self.members.iter_mut().for_each(|member| member.follow_clock(wall, steady));
        wall
    }

    fn wake_in(&mut self) -> Option<Duration> {
        let now = self.now();
        self.members.iter().filter_map(|member| member.wake_in(now)).min()
    }
}

/// Waits for the next event of any member, polling the one at `first` first.
async fn next_event(members: &mut [Member], first: usize) -> (usize, Event) {
    poll_fn(|context| {
        for offset in 0..members.len() {
            let at = (first + offset) % members.len();
            if let Poll::Ready(event) = members[at].poll_event(context) {
                return Poll::Ready((at, event));
            }
        }
        Poll::Pending
    })
    .await
}

async fn sleep_for(time: Option<Duration>) {
    tokio::time::sleep(time.unwrap_or_default()).await;
}
