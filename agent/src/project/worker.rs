//! One task per compose project: it has the project's services, and lets one of them at a time change the project.
//!
//! A service that begins to change the project (a deployment, a restart) has the turn until it is done with it. The
//! others are told when that begins and when it ends: meanwhile they change nothing, and what they saw is stale
//! afterwards. Reads of several services run side by side.

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
use crate::ports::{Compose, Engine, GateCommand, Registry, Signatures, Swarm, Tags};
use crate::service::boot::Boot;
use crate::service::fleet::FleetView;
use crate::service::input::{CheckFault, Input, ServiceReply, ServiceRequest};
use crate::service::outcome::DeployOutcome;
use crate::service::shared::hear_others;

use super::cycle::Cycle;
use super::inbox;
use super::member::Event;
pub use super::member::Member;
use super::placement::Placement;
use super::published::{self, Changed};

/// Where entries go.
pub type Record = Arc<dyn Fn(AuditEntry) + Send + Sync>;

/// Makes a change of state durable in one transaction with the entries that tell of it; then these are recorded. Where
/// it fails, nothing is changed and nothing recorded.
pub type Commit =
    Arc<dyn Fn(Vec<Change>, Vec<AuditEntry>) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

/// Where it is told how a deployment ended and how long it took.
pub type Deployed = Arc<dyn Fn(DeployOutcome, Duration) + Send + Sync>;

/// Everything that a worker touches; there is one for all.
#[derive(Clone)]
pub struct World {
    /// Container engine.
    pub engine: Arc<dyn Engine>,
    /// Image registries.
    pub registry: Arc<dyn Registry>,
    /// Who signed images.
    pub signatures: Arc<dyn Signatures>,
    /// Tags of repositories.
    pub tags: Arc<dyn Tags>,
    /// The swarm that the engine is a manager of.
    pub swarm: Arc<dyn Swarm>,
    /// Compose.
    pub compose: Arc<dyn Compose>,
    /// Gate commands.
    pub gate_command: Arc<dyn GateCommand>,
    /// The wardens.
    pub fleet: Arc<dyn Fleet>,
    /// What is known of the fleet.
    pub fleet_view: watch::Receiver<Arc<FleetView>>,
    /// Whom to tell that a service shows something else.
    pub changed: Changed,
    /// Durable state, to be read.
    pub store: Arc<dyn Store>,
    /// How it is written.
    pub commit: Commit,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Audit of what no state goes with.
    pub record: Record,
    /// Whom to tell about deployments that ended.
    pub deployed: Deployed,
    /// Boots of the machine.
    pub boot: Boot,
}

/// What a service is told.
pub enum Command {
    /// A person asks. An error means that the answer could not be made durable, and that nothing was changed.
    Request(ServiceRequest, oneshot::Sender<Result<ServiceReply, StoreError>>),
    /// A cycle asks for a check; it is told how that ended. The sender is dropped when there is nothing to check.
    Check(Arc<Cycle>, oneshot::Sender<CheckEnd>),
    /// A tag was pushed that may be a newer one of an image.
    TagPushed,
    /// Look at the containers.
    Inspect,
    /// Something happened.
    Input(Box<Input>),
    /// The configuration has changed: go on with this one as soon as no step is under way, in another project where it
    /// names one. Answered then; the sender is dropped where the service has ended before that.
    Reconfigure(Arc<ServiceConfig>, oneshot::Sender<()>),
    /// The service is configured no more: end as soon as no deployment is under way. Answers whether one is.
    Retire(oneshot::Sender<bool>),
    /// Whoever watches over the program wants to know whether the worker still works.
    Ping(oneshot::Sender<()>),
}

/// How a check ended: the world was read, or why it could not be.
pub type CheckEnd = Result<(), CheckFault>;

/// The door to a service.
#[derive(Clone)]
pub struct Handle {
    /// The service's configuration.
    pub config: Arc<ServiceConfig>,
    /// Where commands go.
    pub inbox: inbox::Sender<Command>,
    /// What it shows.
    pub published: published::Receiver,
}

/// Key of a service's state in the store.
pub fn state_key(service: &str) -> String {
    format!("service/{service}")
}

/// What a worker is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProjectKey {
    /// A compose project.
    Project(String),
    /// A service that has none.
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
    /// The service that changes the project now.
    turn: Option<String>,
    /// Whom to ask first, so that each gets its turn.
    first: usize,
    /// Services that are moved here.
    arrivals: inbox::Receiver<Vec<Member>>,
    placement: Placement,
    /// What the clock showed when it was read last.
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

    /// Works until `stop`, or until it has no service left. A step under way gets its time.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut is_stopping = false;
        let mut came = None;
        loop {
            // On the heap only while it goes on: a task has room for the largest of what it waits for, and most of the time it
            // waits for what comes next.
            Box::pin(self.decide(came.take())).await;
            if self.members.is_empty() && (is_stopping || self.placement.close(&self.key)) {
                return;
            }
            let wake = self.wake_in();
            let next = self.first;
            tokio::select! {
                // In this order, so that a life that is simulated twice is the same. Nothing starves: whatever comes,
                // what is due is done above.
                biased;
                () = stop.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    self.members.iter_mut().for_each(Member::stop);
                }
                Some(arrivals) = self.arrivals.recv(), if !is_stopping => self.admit(arrivals),
                event = next_event(&mut self.members, next) => came = Some(event),
                () = sleep_for(wake), if wake.is_some() => {}
            }
        }
    }

    /// Takes in what happened to one of the services, and does all that is to be done now.
    async fn decide(&mut self, came: Option<(usize, Event)>) {
        let placement = self.placement.clone();
        let _one_of_few = placement.may_decide().await;
        if let Some((at, event)) = came {
            self.take(at, event).await;
        }
        self.see_off().await;
        self.act().await;
        self.publish();
    }

    /// Takes in services. One with a deployment under way comes before those that might begin one.
    fn admit(&mut self, mut arrivals: Vec<Member>) {
        arrivals.iter_mut().for_each(Member::touch);
        self.members.reserve_exact(arrivals.len());
        self.members.append(&mut arrivals);
        self.now();
        self.introduce();
        self.pass_turn();
    }

    /// Lets every service know who the others are.
    fn introduce(&mut self) {
        let configured = self.members.iter().filter(|member| member.is_configured());
        let mut services: Vec<_> = configured.map(|member| member.service.shared_config()).collect();
        services.sort_by(|a, b| a.name.cmp(&b.name));
        let services: Arc<[_]> = services.into();
        for member in &mut self.members {
            member.service_mut().set_siblings(services.clone());
        }
    }

    /// Lets go of services that end, that go to another project, or that go on under another configuration.
    async fn see_off(&mut self) {
        let now = self.now();
        let mut has_changed = false;
        let mut at = 0;
        while at < self.members.len() {
            has_changed |= self.members[at].changes(now);
            if self.members[at].is_leaving() {
                self.members[at].leave(now).await;
                self.members.remove(at);
                has_changed = true;
            } else if !self.members[at].is_at_home(&self.key) {
                let mut member = self.members.remove(at);
                member.service_mut().sibling_ends(now);
                self.placement.place(vec![member]);
                has_changed = true;
            } else {
                at += 1;
            }
        }
        if has_changed {
            self.introduce();
            self.pass_turn();
        }
    }

    /// Lets every service begin what it has to do now.
    async fn act(&mut self) {
        let now = self.now();
        self.pass_turn();
        let mut is_settled = false;
        while !is_settled {
            is_settled = true;
            for offset in 0..self.members.len() {
                let at = (self.first + offset) % self.members.len();
                if self.members[at].is_due(now) {
                    self.members[at].act(now).await;
                    is_settled &= !self.pass_turn();
                }
            }
        }
    }

    /// Takes the turn back from a service that is done with it, and gives it to one that has begun. Whether it has
    /// changed hands.
    fn pass_turn(&mut self) -> bool {
        let mut has_changed = false;
        let at_work = |name: &String| {
            self.members.iter().any(|member| member.name() == name && member.service.is_at_work())
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
            let next = self.members.iter().find(|member| member.service.is_at_work());
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

    async fn take(&mut self, at: usize, mut event: Event) {
        let now = self.now();
        if let Some(observation) = event.observation_mut() {
            observation.blocked_elsewhere = self.blocked_by_others(at);
            let others: Vec<_> = self.others(at).map(|member| &*member.service).collect();
            hear_others(observation, &others, now);
        }
        let was_configured = self.members[at].is_configured();
        self.members[at].take(event, now).await;
        if self.members[at].is_configured() != was_configured {
            self.introduce();
        }
    }

    /// What is blocked in the project by services other than this one.
    fn blocked_by_others(&self, at: usize) -> Vec<(Reference, Digest)> {
        self.others(at).flat_map(|member| member.service.blocked_references()).collect()
    }

    /// The services other than this one.
    fn others(&self, at: usize) -> impl Iterator<Item = &Member> {
        let others = self.members.iter().enumerate().filter(move |(i, m)| *i != at && m.is_configured());
        others.map(|(_, member)| member)
    }

    fn publish(&mut self) {
        for member in &mut self.members {
            member.publish_news();
        }
    }

    /// The time now. A clock that was set since the last time moves everything that is waited for.
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

/// The next thing that happens to one of the members, beginning with the one at `first`.
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
