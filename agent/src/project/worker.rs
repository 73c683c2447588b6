//! One task per compose project. It owns the project's services, and only one of them may change the project at a time.
//!
//! A service that begins to change the project (a deployment, a restart) has the turn until it is done. The others are
//! notified at the beginning and at the end: they change nothing in between, and their earlier observations are stale
//! afterwards. Reads of several services run concurrently.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::supervisor::TaskSet;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::service::FilesApplied;
use crate::service::decide::shared::add_shared_candidates;
use crate::service::input::Notice;
use crate::service::observation::BlockedElsewhere;

use super::handle::ProjectKey;
use super::inbox;
use super::member::Event;
pub use super::member::Member;

/// Number of workers that decide and write concurrently. At start-up and in a poll cycle all workers have something to
/// decide. Without this limit, the drafts and rows of hundreds of services would determine the agent's peak memory.
const DECIDING: usize = 16;

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
            member.notice(Notice::Siblings(services.clone()), self.last_seen);
        }
    }

    /// Removes services that end, moves those that belong to another project, and applies pending configurations.
    async fn remove_departing(&mut self) {
        let now = self.now();
        let mut has_changed = false;
        let mut at = 0;
        while at < self.members.len() {
            has_changed |= self.members[at].try_reconfigure(now);
            self.members[at].wind_up(now).await;
            if self.members[at].is_leaving() {
                self.members[at].leave(now).await;
                self.members.remove(at);
                has_changed = true;
            } else if !self.members[at].belongs_to(&self.key) {
                let mut member = self.members.remove(at);
                member.notice(Notice::SiblingEnds, now);
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
                    member.notice(Notice::SiblingEnds, now);
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
                member.notice(Notice::SiblingBegins(turn), self.last_seen);
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

    /// Returns what the project's other services have blocked.
    fn blocked_by_others(&self, at: usize) -> Vec<BlockedElsewhere> {
        let mut blocked = Vec::new();
        for member in self.others(at) {
            let service = member.name();
            blocked.extend(member.service.blocked_references().map(|(reference, digest)| BlockedElsewhere {
                service: service.to_owned(),
                reference,
                digest,
            }));
        }
        blocked
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

/// The workers by project. Clones share them.
#[derive(Clone)]
pub struct Placement(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    tasks: TaskSet,
    stop: CancellationToken,
    workers: Mutex<HashMap<ProjectKey, inbox::Sender<Vec<Member>>>>,
    deciding: Semaphore,
}

impl Placement {
    /// Creates a placement without workers. Workers run in `tasks` until `stop`.
    pub fn new(clock: Arc<dyn Clock>, tasks: TaskSet, stop: CancellationToken) -> Self {
        let deciding = Semaphore::new(DECIDING);
        Self(Arc::new(Inner { clock, tasks, stop, workers: Mutex::default(), deciding }))
    }

    /// Passes services to the workers of their projects; services of one project are passed together.
    pub fn place(&self, members: Vec<Member>) {
        let mut by_project: HashMap<ProjectKey, Vec<Member>> = HashMap::new();
        for member in members {
            by_project.entry(member.project_key()).or_default().push(member);
        }
        for (key, members) in by_project {
            let mut workers = self.workers();
            let worker = workers.entry(key).or_insert_with_key(|key| {
                let (sender, arrivals) = inbox::channel();
                let worker = Worker::new(key.clone(), self.0.clock.clone(), arrivals, self.clone());
                self.0.tasks.spawn(key.to_string(), worker.run(self.0.stop.clone()));
                sender
            });
            // The worker runs as long as it is in the map, unless the agent is stopping.
            let _ = worker.send(members);
        }
    }

    /// Removes a worker without services; `false` if services are just arriving.
    pub(super) fn close(&self, key: &ProjectKey) -> bool {
        let mut workers = self.workers();
        let is_left = workers.get(key).is_none_or(inbox::Sender::is_empty);
        if is_left {
            workers.remove(key);
        }
        is_left
    }

    /// Waits for a permit to decide, see [`DECIDING`].
    pub(super) async fn may_decide(&self) -> SemaphorePermit<'_> {
        self.0.deciding.acquire().await.expect("the semaphore is never closed")
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<ProjectKey, inbox::Sender<Vec<Member>>>> {
        self.0.workers.lock()
    }
}
