//! One service in the worker of its project: what it is told, what it decides, and what of that is under way outside.
//!
//! The order is the point. A decision is made on a draft; the draft's state and the entries that tell of it are written
//! in one transaction (`journal.rs`); only then the draft replaces the service, and its action begins. A write that
//! fails changes nothing and loses nothing: the draft is dropped, and what was to be decided on waits. A service that
//! is killed anywhere begins again from what was made durable.

mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_common::store::StoreError;
use evenkeel_common::wire::AuditEntry;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, FuturesUnordered};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::config::ServiceConfig;
use crate::ports::PullProgress;
use crate::service::boot::{Boot, StartReason};
use crate::service::clock_shift::is_jump;
use crate::service::fleet::FleetView;
use crate::service::input::{CheckFault, Input, Observation};
use crate::service::outcome::Ended;
use crate::service::status::Published;
use crate::service::{Durable, Service};

use super::cycle::Cycle;
use super::inbox;
use super::journal::Journal;
use super::observe::{check_end, fleet_views};
use super::published;
use super::worker::{CheckEnd, Command, Handle, ProjectKey, World};

/// Time that a step under way gets when the service has to end or changes; what is longer is left to the journal.
const STOP_GRACE: Duration = Duration::from_secs(20);
/// Events that wait while the state can't be written; beyond that the oldest are lost, as in a gap of the stream.
const MAX_HELD: usize = 256;
/// How often a pull's progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// What ended outside.
enum Done {
    Input(Box<Input>),
    /// A part of a check, and how it goes on.
    Part(Box<Input>, BoxFuture<'static, Done>),
}

/// Something that a member must take in.
pub(super) struct Event(Woken);

enum Woken {
    Done(Done),
    /// `None`: nobody is left who could tell it anything.
    Command(Option<Command>),
    Fleet(Arc<FleetView>),
}

impl Event {
    /// What a check has seen, if this is the end of one.
    pub(super) fn observation_mut(&mut self) -> Option<&mut Observation> {
        match &mut self.0 {
            Woken::Done(Done::Input(input) | Done::Part(input, _)) => match input.as_mut() {
                Input::Checked { result: Ok(observation), .. } => Some(observation),
                _ => None,
            },
            Woken::Command(_) | Woken::Fleet(_) => None,
        }
    }
}

/// What becomes of a service.
enum Lifecycle {
    /// It stays as it is.
    Active,
    /// It is configured no more, and goes when no deployment is under way and its leases are given back.
    Retiring,
    /// It goes on under another configuration as soon as no step is under way, at the latest at this time.
    Changing(Arc<ServiceConfig>, oneshot::Sender<()>, Instant),
    /// The program stops: it goes as soon as no step is under way, at the latest at this time.
    Stopping(Instant),
    /// Nobody can reach it any more.
    Over,
}

/// One service in its project's worker.
pub struct Member {
    /// Shared with what is shown of it until it changes.
    pub(super) service: Arc<Service>,
    /// There is something new to be acted on.
    is_touched: bool,
    /// There may be something new to be shown.
    is_stale: bool,
    world: Arc<World>,
    inbox: inbox::Receiver<Command>,
    shown: published::Sender,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    /// How far the pull under way is, if there is one.
    pulled: Option<watch::Receiver<PullProgress>>,
    lifecycle: Lifecycle,
    cycle: Option<Arc<Cycle>>,
    waiting: Vec<oneshot::Sender<CheckEnd>>,
    journal: Journal,
    /// What is known of the fleet, whenever that changes.
    fleet: stream::Fuse<BoxStream<'static, Arc<FleetView>>>,
    /// Facts that could not be decided on yet, because what follows from them could not be written, and when each came.
    held: VecDeque<(Timestamp, Input)>,
    /// What the clock showed when it was read last, and when that was. Each service has its own: while it is on its way to a
    /// worker nobody else reads the clock for it.
    last_seen: (Timestamp, Instant),
}

/// The machine's boot, as the clock has it now.
fn boot(world: &World) -> Boot {
    Boot { at: world.clock.at_boot(), ..world.boot.clone() }
}

impl Member {
    /// A service as it was left (`durable`), and the door to it.
    pub fn new(
        config: Arc<ServiceConfig>,
        durable: Durable,
        world: Arc<World>,
        reason_to_start: StartReason,
    ) -> (Self, Handle) {
        let mut journal = Journal::new(world.commit.clone());
        let (boot, now) = (boot(&world), world.clock.now());
        let left = durable.clone();
        let (mut service, entries) = Service::new(config.clone(), durable, boot, reason_to_start, now);
        let mut known = world.fleet_view.clone();
        service.set_fleet(known.borrow_and_update().clone());
        journal.begin(&left, service.durable(), entries);
        let (sender, inbox) = inbox::channel();
        let service = Arc::new(service);
        let (shown, published) = published::channel(Published::new(service.clone()), world.changed.clone());
        let member = Self {
            service,
            is_touched: true,
            is_stale: true,
            world,
            inbox,
            shown,
            running: FuturesUnordered::new(),
            pulled: None,
            lifecycle: Lifecycle::Active,
            cycle: None,
            waiting: Vec::new(),
            journal,
            fleet: fleet_views(known).fuse(),
            held: VecDeque::new(),
            last_seen: (now, Instant::now()),
        };
        (member, Handle { config, inbox: sender, published })
    }

    pub(super) fn name(&self) -> &str {
        &self.service.config().name
    }

    /// The service, to be changed in memory only.
    pub(super) fn service_mut(&mut self) -> &mut Service {
        Arc::make_mut(&mut self.service)
    }

    /// A copy to decide on. On the heap: a task's future has room for all values that it ever holds at once.
    fn draft(&self) -> Box<Service> {
        Box::new(Service::clone(&self.service))
    }

    /// The project that it has to work on: that of a deployment under way, or the configured one.
    pub(super) fn home(&self) -> ProjectKey {
        ProjectKey::of(self.service.project_name(), self.name())
    }

    /// Whether `key` is the project that it has to work on.
    pub(super) fn is_at_home(&self, key: &ProjectKey) -> bool {
        match (key, self.service.project_name()) {
            (ProjectKey::Project(name), Some(project)) => name == project,
            (ProjectKey::Service(name), None) => name == self.name(),
            _ => false,
        }
    }

    /// Whether it is one of the services as they are configured.
    pub(super) fn is_configured(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Active | Lifecycle::Changing(..))
    }

    /// Whether it has to go now.
    pub(super) fn is_leaving(&self) -> bool {
        match &self.lifecycle {
            Lifecycle::Active | Lifecycle::Changing(..) => false,
            Lifecycle::Retiring => self.is_retired() && !self.service.has_leases(),
            Lifecycle::Stopping(at) => self.may_be_interrupted(*at),
            Lifecycle::Over => true,
        }
    }

    /// Whether it is configured no more, and nothing that it has begun is left to be ended.
    fn is_retired(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Retiring) && !self.service.durable().is_deploying()
    }

    fn may_be_interrupted(&self, at: Instant) -> bool {
        !self.service.is_stepping() || Instant::now() >= at
    }

    /// The program stops. Whoever still asks is told at once that nobody answers any more.
    pub(super) fn stop(&mut self) {
        self.lifecycle = Lifecycle::Stopping(Instant::now() + STOP_GRACE);
        self.inbox.close();
    }

    /// Writes down how it was.
    pub(super) async fn leave(&mut self, now: Timestamp) {
        if self.service.is_stepping() {
            tracing::warn!("a step of the deployment is still under way; the next start takes it up");
        }
        let mut draft = self.draft();
        draft.on_shutdown();
        if let Err(error) = self.commit(draft, Vec::new(), now).await {
            tracing::error!(service = self.name(), %error, "the last state could not be written");
        }
        // Its verdict may be new.
        self.publish();
    }

    /// Takes over another configuration if it is time for that; whether it has. What was under way is left as it would
    /// be at the end of the program, and taken up again.
    pub(super) fn changes(&mut self, now: Timestamp) -> bool {
        if !matches!(&self.lifecycle, Lifecycle::Changing(_, _, at) if self.may_be_interrupted(*at)) {
            return false;
        }
        let Lifecycle::Changing(config, reply, _) = std::mem::replace(&mut self.lifecycle, Lifecycle::Active)
        else {
            return false;
        };
        self.running.clear();
        // The actions are over with the value that began them; what happened in the world has happened.
        self.held.retain(|(_, input)| !input.ends_an_action());
        self.waiting.clear();
        self.cycle = None;
        let durable = self.service.durable().clone();
        let (mut service, entries) =
            Service::new(config, durable.clone(), boot(&self.world), StartReason::Reload, now);
        service.set_fleet(self.world.fleet_view.borrow().clone());
        service.inherit_leases(&self.service);
        self.journal.begin(&durable, service.durable(), entries);
        self.service = Arc::new(service);
        self.touch();
        self.publish();
        // Whoever does not wait for it sees it in the snapshot.
        let _ = reply.send(());
        true
    }

    /// Waits for something that it must take in.
    pub(super) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Poll::Ready(Some(done)) = self.running.poll_next_unpin(context) {
            return Poll::Ready(Event(Woken::Done(done)));
        }
        // One that retires has nobody any more who could tell it something.
        let is_deaf = matches!(self.lifecycle, Lifecycle::Retiring) && self.inbox.is_terminated();
        if is_deaf || matches!(self.lifecycle, Lifecycle::Stopping(_)) {
            return Poll::Pending;
        }
        if let Poll::Ready(Some(view)) = self.fleet.poll_next_unpin(context) {
            return Poll::Ready(Event(Woken::Fleet(view)));
        }
        self.inbox.poll_recv(context).map(|command| Event(Woken::Command(command)))
    }

    /// Takes in what has happened.
    pub(super) async fn take(&mut self, event: Event, now: Timestamp) {
        self.touch();
        match event.0 {
            Woken::Done(done) => self.done(done, now).await,
            Woken::Fleet(view) => self.take_in(Box::new(Input::Fleet(view)), now).await,
            Woken::Command(Some(command)) => self.command(command, now).await,
            Woken::Command(None) if matches!(self.lifecycle, Lifecycle::Retiring) => {}
            Woken::Command(None) => self.lifecycle = Lifecycle::Over,
        }
    }

    /// Whether it has something to decide or to begin now.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        if !matches!(self.lifecycle, Lifecycle::Active | Lifecycle::Retiring) {
            return false;
        }
        let is_awake = || self.service.wake_at(now).is_some_and(|at| at <= now);
        self.is_touched || self.journal.may_retry() || (!self.is_retired() && is_awake())
    }

    /// Begins everything that is to be done now.
    pub(super) async fn act(&mut self, now: Timestamp) {
        (self.is_touched, self.is_stale) = (false, true);
        self.journal.retry();
        if self.catch_up(now).await.is_err() {
            return;
        }
        loop {
            let mut draft = self.draft();
            let action = if self.is_retired() { draft.lease_to_return(now) } else { draft.next(now) };
            if self.commit(draft, Vec::new(), now).await.is_err() {
                return;
            }
            let Some(action) = action else { return };
            let work = self.work(action);
            self.running.push(work);
        }
    }

    async fn command(&mut self, command: Command, now: Timestamp) {
        match command {
            Command::Request(ask, reply) => {
                let mut draft = self.draft();
                let (answer, entries) = draft.ask(ask, now);
                let answer = self.commit(draft, entries, now).await.map(|()| answer);
                self.publish();
                // A client that has gone away does not need its answer.
                let _ = reply.send(answer);
            }
            Command::Check(cycle, done) => {
                if cycle.is_by_person() {
                    let mut draft = self.draft();
                    draft.asked_with_all();
                    // Where it can't be written now, the record says why, and nothing could be done about it anyway.
                    let _ = self.commit(draft, Vec::new(), now).await;
                }
                if self.service_mut().check(cycle.is_new()) {
                    self.cycle = Some(cycle);
                    self.waiting.push(done);
                } else {
                    self.service_mut().look(now);
                }
            }
            Command::TagPushed => self.service_mut().tag_was_pushed(now),
            Command::Inspect => self.service_mut().look(now),
            Command::Input(input) => self.take_in(input, now).await,
            Command::Reconfigure(config, reply) => {
                self.lifecycle = Lifecycle::Changing(config, reply, Instant::now() + STOP_GRACE);
            }
            Command::Retire(reply) => {
                self.lifecycle = Lifecycle::Retiring;
                self.service_mut().retire();
                // Whoever does not wait for the answer learns of the end.
                let _ = reply.send(self.service.durable().is_deploying());
            }
            Command::Ping(reply) => {
                let _ = reply.send(());
            }
        }
    }

    async fn done(&mut self, done: Done, now: Timestamp) {
        match done {
            Done::Part(input, rest) => {
                self.running.push(rest);
                self.take_in(input, now).await;
            }
            Done::Input(input) => {
                let checked = match input.as_ref() {
                    Input::Checked { result, .. } => Some(check_end(result)),
                    _ => None,
                };
                if let Some(Err(CheckFault::Failed(text) | CheckFault::EngineAway(text))) = &checked {
                    tracing::debug!(service = self.name(), "check failed: {text}");
                }
                self.take_in(input, now).await;
                if let Some(end) = checked {
                    self.publish();
                    for waiting in self.waiting.drain(..) {
                        // A cycle that has ended needs no answer.
                        let _ = waiting.send(end.clone());
                    }
                }
            }
        }
    }

    /// Decides on a fact; one that can't be decided on now waits for its turn.
    async fn take_in(&mut self, input: Box<Input>, now: Timestamp) {
        if self.held.is_empty() {
            let mut draft = self.draft();
            let entries = draft.apply(input.as_ref().clone(), now);
            if self.commit(draft, entries, now).await.is_ok() {
                return;
            }
        }
        self.held.push_back((now, input.held()));
        if self.held.len() > MAX_HELD
            && let Some(oldest) = self.held.iter().position(|(_, input)| !input.ends_an_action())
        {
            self.held.remove(oldest);
        }
    }

    /// Writes what could not be written before, and decides on what had to wait for that.
    async fn catch_up(&mut self, now: Timestamp) -> Result<(), StoreError> {
        if self.held.is_empty() && !self.journal.has_first_words() {
            return Ok(());
        }
        self.commit(self.draft(), Vec::new(), now).await?;
        while let Some((came, input)) = self.held.front().cloned() {
            self.journal.ready()?;
            let mut draft = self.draft();
            // A hint tells of the world at its time: stops before a gap are told from later ones by that. What follows
            // on the end of an action begins only now.
            let at = if input.ends_an_action() { now } else { came };
            let entries = draft.apply(input, at);
            self.commit(draft, entries, now).await?;
            self.held.pop_front();
        }
        Ok(())
    }

    /// Makes a decision durable together with what is said of it, then makes it the service's state.
    async fn commit(
        &mut self,
        mut draft: Box<Service>,
        entries: Vec<AuditEntry>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let entries = [draft.take_unsaid(), entries].concat();
        let (ended, notes) = (draft.take_ended(), draft.take_notes());
        self.journal.write(&draft.config().name, self.service.durable(), draft.durable(), entries).await?;
        self.service = Arc::from(draft);
        for note in notes {
            tracing::warn!(service = self.service.config().name, "{note}");
        }
        if let Some(Ended { outcome, begun }) = ended {
            let took = now.duration_since(begun);
            (self.world.deployed)(outcome, Duration::try_from(took).unwrap_or_default());
        }
        Ok(())
    }

    /// What the clock shows at this moment: where it was set since it was read last, all that is waited for moves with it.
    pub(super) fn follow_clock(&mut self, wall: Timestamp, steady: Instant) {
        let passed = SignedDuration::try_from(steady - self.last_seen.1).unwrap_or(SignedDuration::MAX);
        let jump = wall.duration_since(self.last_seen.0).saturating_sub(passed);
        self.last_seen = (wall, steady);
        if is_jump(&jump) {
            tracing::warn!(service = self.name(), seconds = jump.as_secs(), "the clock was set");
            self.shift(jump);
        }
    }

    /// The clock was set by `by`.
    fn shift(&mut self, by: SignedDuration) {
        let before = self.service.clone();
        self.service_mut().shift(by);
        // What is waited for is written anew: whoever is killed now begins again by the clock as it is.
        self.journal.begin(before.durable(), self.service.durable(), Vec::new());
        for (came, _) in &mut self.held {
            *came = came.checked_add(by).unwrap_or(*came);
        }
        self.touch();
    }

    /// It is to be asked again what it has to do.
    pub(super) fn touch(&mut self) {
        (self.is_touched, self.is_stale) = (true, true);
    }

    /// Shows how it is now, if that may have changed.
    pub(super) fn publish_news(&mut self) {
        if std::mem::take(&mut self.is_stale) || self.service.is_pulling() {
            self.publish();
        }
    }

    /// Shows how it is now.
    fn publish(&self) {
        let pulled = self.pulled.as_ref().map(|pulled| *pulled.borrow()).unwrap_or_default();
        self.shown.send(Published { service: self.service.clone(), pulled });
    }

    /// When it has to be asked again although nothing happens.
    pub(super) fn wake_in(&self, now: Timestamp) -> Option<Duration> {
        if let Lifecycle::Stopping(at) | Lifecycle::Changing(_, _, at) = &self.lifecycle {
            return Some(at.saturating_duration_since(Instant::now()));
        }
        if let Some(wait) = self.journal.waits() {
            return Some(wait);
        }
        if self.is_retired() {
            return None;
        }
        let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
        let due = self.service.wake_at(now).map(until);
        if self.service.is_pulling() { Some(due.unwrap_or(PROGRESS_EVERY).min(PROGRESS_EVERY)) } else { due }
    }
}
