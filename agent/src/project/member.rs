//! One service in the worker of its project: its commands, its decisions, and its actions in progress.
//!
//! The order matters. A decision is made on a draft. The draft's state and its audit entries are written in one transaction
//! (`journal.rs`). Only then does the draft replace the service, and its action starts. A failed write changes nothing and
//! loses nothing: the draft is dropped, and the input is deferred. A service that is killed at any point resumes from its
//! durable state.

mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_common::store::StoreError;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, FuturesUnordered};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::config::ServiceConfig;
use crate::ports::PullProgress;
use crate::service::boot::{Boot, StartReason};
use crate::service::decide::clock_shift::is_jump;
use crate::service::decide::draft::Draft;
use crate::service::fleet::FleetView;
use crate::service::input::{CheckFault, Input, Notice};
use crate::service::observation::Observation;
use crate::service::outcome::Ended;
use crate::service::view::status::Published;
use crate::service::{Durable, Service};

use super::cycle::Cycle;
use super::handle::{CheckEnd, Command, Handle, ProjectKey};
use super::inbox;
use super::journal::Journal;
use super::observe::{check_end, fleet_views};
use super::published;
use super::world::World;

/// Time that a step in progress gets when the service ends or is reconfigured. A longer step is resumed from the journal.
const STOP_GRACE: Duration = Duration::from_secs(20);
/// Maximum number of deferred events while the state can't be written.
const MAX_DEFERRED: usize = 256;
/// Interval at which the progress of a pull is published.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// A finished external operation.
enum Done {
    Input(Box<Input>),
    /// The first part of a check, and the future of the rest.
    Part(Box<Input>, BoxFuture<'static, Done>),
}

/// An event for a member to handle.
pub(super) struct Event(EventKind);

enum EventKind {
    Done(Done),
    /// `None`: all handles have been dropped.
    Command(Option<Command>),
    Fleet(Arc<FleetView>),
}

impl Event {
    /// Returns the observation if this is the result of a check.
    pub(super) fn observation_mut(&mut self) -> Option<&mut Observation> {
        match &mut self.0 {
            EventKind::Done(Done::Input(input) | Done::Part(input, _)) => match input.as_mut() {
                Input::Checked { result: Ok(observation), .. } => Some(observation),
                _ => None,
            },
            EventKind::Command(_) | EventKind::Fleet(_) => None,
        }
    }
}

/// Lifecycle of a service.
enum Lifecycle {
    /// It is configured.
    Active,
    /// It is no longer configured, and ends when no deployment is in progress and its leases are released.
    Retiring,
    /// It gets a new configuration as soon as no step is in progress, at the latest at the given time.
    Changing(Arc<ServiceConfig>, oneshot::Sender<()>, Instant),
    /// The agent is stopping: it ends as soon as no step is in progress, at the latest at the given time.
    Stopping(Instant),
    /// All handles have been dropped.
    Closed,
}

/// One service in its project's worker.
pub struct Member {
    /// Shared with its published state until it changes.
    pub(super) service: Arc<Service>,
    /// The service may have something to do.
    is_touched: bool,
    /// The published state may be outdated.
    is_stale: bool,
    world: Arc<World>,
    inbox: inbox::Receiver<Command>,
    shown: published::Sender,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Progress of the last pull, if there was one.
    pulled: Option<watch::Receiver<PullProgress>>,
    lifecycle: Lifecycle,
    cycle: Option<Arc<Cycle>>,
    waiting: Vec<oneshot::Sender<CheckEnd>>,
    journal: Journal,
    /// Changes of the fleet view.
    fleet: stream::Fuse<BoxStream<'static, Arc<FleetView>>>,
    /// Inputs that are deferred because their outcome could not be written, with their times of arrival.
    deferred: VecDeque<(Timestamp, Input)>,
    /// Too many were deferred, so that it is not known who has stopped what has ended meanwhile.
    has_lost_stops: bool,
    /// Last reading of the wall clock and of the monotonic clock. It is stored per service, because no worker reads the
    /// clock for a service that is moving between workers.
    last_seen: (Timestamp, Instant),
}

/// Returns the machine's boot, with the boot time by the current clock.
fn boot(world: &World) -> Boot {
    Boot { at: world.clock.at_boot(), ..world.boot.clone() }
}

impl Member {
    /// Restores a service from its durable state, and returns it with its handle.
    pub fn new(
        config: Arc<ServiceConfig>,
        durable: Durable,
        world: Arc<World>,
        reason_to_start: StartReason,
    ) -> (Self, Handle) {
        let mut journal = Journal::new(world.commit.clone());
        let (boot, now) = (boot(&world), world.clock.now());
        let left = durable.clone();
        let (service, entries) = Service::new(config.clone(), durable, boot, reason_to_start, now);
        let mut known = world.fleet_view.clone();
        let service = service.with_fleet(known.borrow_and_update().clone());
        journal.begin(&left, service.durable(), entries);
        world.data.at_rest.take_again(&config.name, service.durable());
        let (sender, inbox) = inbox::channel();
        let service = Arc::new(service);
        let (shown, published) = published::channel(Published::new(service.clone()), world.changed.clone());
        world.needed_images.add(&config.name, published.clone());
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
            deferred: VecDeque::new(),
            has_lost_stops: false,
            last_seen: (now, Instant::now()),
        };
        (member, Handle { config, inbox: sender, published })
    }

    pub(super) fn name(&self) -> &str {
        &self.service.config().name
    }

    /// Tells the service something that makes nothing durable different.
    pub(super) fn notice(&mut self, notice: Notice<'_>, now: Timestamp) {
        Arc::make_mut(&mut self.service).notice(notice, now);
    }

    /// Returns the key of its project: that of a deployment in progress, or the configured one.
    pub(super) fn project_key(&self) -> ProjectKey {
        ProjectKey::of(self.service.project_name(), self.name())
    }

    /// Reports whether `key` is its [`project_key`](Self::project_key), without an allocation.
    pub(super) fn belongs_to(&self, key: &ProjectKey) -> bool {
        match (key, self.service.project_name()) {
            (ProjectKey::Project(name), Some(project)) => name == project,
            (ProjectKey::Service(name), None) => name == self.name(),
            _ => false,
        }
    }

    /// Reports whether it is a configured service.
    pub(super) fn is_configured(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Active | Lifecycle::Changing(..))
    }

    /// Reports whether it has to be removed now.
    pub(super) fn is_leaving(&self) -> bool {
        match &self.lifecycle {
            Lifecycle::Active | Lifecycle::Changing(..) => false,
            Lifecycle::Retiring => self.service.is_retired() && !self.service.has_leases(),
            Lifecycle::Stopping(at) => self.may_be_interrupted(*at) && !self.may_wind_up(*at),
            Lifecycle::Closed => true,
        }
    }

    fn may_be_interrupted(&self, at: Instant) -> bool {
        !self.service.is_stepping() || Instant::now() >= at
    }

    fn may_wind_up(&self, end: Instant) -> bool {
        self.service.winds_up() && Instant::now() < end
    }

    /// Begins the shutdown. Further requests fail immediately.
    pub(super) fn stop(&mut self) {
        self.lifecycle = Lifecycle::Stopping(Instant::now() + STOP_GRACE);
        self.inbox.close();
    }

    /// Writes the final state.
    pub(super) async fn leave(&mut self, now: Timestamp) {
        let durable = self.service.durable();
        if let Some((step, _)) = durable.step().filter(|_| durable.is_changing_containers()) {
            let service = self.name();
            tracing::warn!(service, step, "a deployment is in progress; it is resumed at the next start");
        }
        if let Err(error) = self.commit(self.service.shut_down(now), now).await {
            tracing::error!(service = self.name(), %error, "the final state could not be written");
        }
        self.world.data.at_rest.release(self.name());
        // The final state may contain a new verdict.
        self.publish();
    }

    /// While the agent is stopping: takes the next step after which nothing stays stopped, if one is due. Nothing else that is
    /// running is of use any more.
    pub(super) async fn wind_up(&mut self, now: Timestamp) {
        let may_wind_up = matches!(&self.lifecycle, Lifecycle::Stopping(end) if self.may_wind_up(*end));
        // The end of a step may not have been written yet.
        let is_due = self.service.winds_up_at(now).is_some_and(|at| at <= now) || !self.deferred.is_empty();
        if !(may_wind_up && is_due) {
            return;
        }
        self.journal.retry();
        if self.catch_up(now).await.is_err() {
            return;
        }
        let (draft, action) = self.service.act_at_stop(now);
        if self.commit(draft, now).await.is_err() {
            return;
        }
        self.touch();
        if let Some(action) = action {
            self.running.clear();
            let work = self.work(action);
            self.running.push(work);
        }
    }

    /// Applies a pending configuration if it is time for that, and returns whether it has. Operations in progress are
    /// interrupted and resumed, as at a restart of the agent.
    pub(super) fn try_reconfigure(&mut self, now: Timestamp) -> bool {
        if !matches!(&self.lifecycle, Lifecycle::Changing(_, _, at) if self.may_be_interrupted(*at)) {
            return false;
        }
        let Lifecycle::Changing(config, reply, _) = std::mem::replace(&mut self.lifecycle, Lifecycle::Active)
        else {
            return false;
        };
        self.running.clear();
        // The actions end with the service that started them; only external events stay relevant.
        self.deferred.retain(|(_, input)| !input.ends_an_action());
        self.waiting.clear();
        self.cycle = None;
        let durable = self.service.durable().clone();
        let (service, entries) =
            Service::new(config, durable.clone(), boot(&self.world), StartReason::Reload, now);
        let fleet = self.world.fleet_view.borrow().clone();
        let service = service.with_fleet(fleet).continuing(&self.service);
        self.journal.begin(&durable, service.durable(), entries);
        self.service = Arc::new(service);
        self.touch();
        self.publish();
        // The receiver may have stopped waiting; the snapshot shows the change as well.
        let _ = reply.send(());
        true
    }

    /// Polls for the next event.
    pub(super) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Poll::Ready(Some(done)) = self.running.poll_next_unpin(context) {
            return Poll::Ready(Event(EventKind::Done(done)));
        }
        // A retiring service stays after its handles have been dropped.
        let has_no_handles = matches!(self.lifecycle, Lifecycle::Retiring) && self.inbox.is_terminated();
        if has_no_handles || matches!(self.lifecycle, Lifecycle::Stopping(_)) {
            return Poll::Pending;
        }
        if let Poll::Ready(Some(view)) = self.fleet.poll_next_unpin(context) {
            return Poll::Ready(Event(EventKind::Fleet(view)));
        }
        self.inbox.poll_recv(context).map(|command| Event(EventKind::Command(command)))
    }

    /// Handles an event.
    pub(super) async fn handle_event(&mut self, event: Event, now: Timestamp) {
        self.touch();
        match event.0 {
            EventKind::Done(done) => self.handle_done(done, now).await,
            EventKind::Fleet(view) => self.handle_input(Box::new(Input::Fleet(view)), now).await,
            EventKind::Command(Some(command)) => self.handle_command(command, now).await,
            EventKind::Command(None) if matches!(self.lifecycle, Lifecycle::Retiring) => {}
            EventKind::Command(None) => self.lifecycle = Lifecycle::Closed,
        }
    }

    /// Reports whether it has something to decide or to start now.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        if !matches!(self.lifecycle, Lifecycle::Active | Lifecycle::Retiring) {
            return false;
        }
        let is_awake = || self.service.wake_at(now).is_some_and(|at| at <= now);
        self.is_touched || self.journal.may_retry() || (!self.service.is_retired() && is_awake())
    }

    /// Starts all due actions.
    pub(super) async fn run_pending(&mut self, now: Timestamp) {
        (self.is_touched, self.is_stale) = (false, true);
        self.journal.retry();
        if self.catch_up(now).await.is_err() {
            return;
        }
        loop {
            let (draft, action) = self.service.act(now);
            if self.commit(draft, now).await.is_err() {
                return;
            }
            let Some(action) = action else { return };
            let work = self.work(action);
            self.running.push(work);
        }
    }

    async fn handle_command(&mut self, command: Command, now: Timestamp) {
        match command {
            Command::Request(ask, reply) => {
                let (draft, answer) = self.service.answer(ask, now);
                let answer = self.commit(draft, now).await.map(|()| answer);
                self.publish();
                // The client may have disconnected.
                let _ = reply.send(answer);
            }
            Command::Check(cycle, done) => {
                if cycle.is_manual() {
                    // A failed write is shown in the service's record; nothing more can be done about it here.
                    let _ = self.commit(self.service.triggered_with_all(), now).await;
                }
                if self.service.may_check() {
                    self.notice(Notice::Check { is_new: cycle.is_new() }, now);
                    self.cycle = Some(cycle);
                    self.waiting.push(done);
                } else {
                    self.notice(Notice::Inspect, now);
                }
            }
            Command::TagPushed => self.notice(Notice::TagPushed, now),
            Command::Inspect => self.notice(Notice::Inspect, now),
            Command::Input(input) => self.handle_input(input, now).await,
            Command::Reconfigure(config, reply) => {
                self.lifecycle = Lifecycle::Changing(config, reply, Instant::now() + STOP_GRACE);
            }
            Command::Retire(reply) => {
                self.lifecycle = Lifecycle::Retiring;
                self.notice(Notice::Retired, now);
                // The receiver may not wait for the reply.
                let _ = reply.send(self.service.durable().is_deploying());
            }
            Command::Ping(reply) => {
                let _ = reply.send(());
            }
        }
    }

    async fn handle_done(&mut self, done: Done, now: Timestamp) {
        match done {
            Done::Part(input, rest) => {
                self.running.push(rest);
                self.handle_input(input, now).await;
            }
            Done::Input(input) => {
                let checked = match input.as_ref() {
                    Input::Checked { result, .. } => Some(check_end(result)),
                    _ => None,
                };
                if let Some(Err(CheckFault::Failed(text) | CheckFault::EngineAway(text))) = &checked {
                    tracing::debug!(service = self.name(), "check failed: {text}");
                }
                self.handle_input(input, now).await;
                if let Some(end) = checked {
                    self.publish();
                    for waiting in self.waiting.drain(..) {
                        // The cycle may have ended.
                        let _ = waiting.send(end.clone());
                    }
                }
            }
        }
    }

    /// Decides on an input, or defers it if the decision can't be written now.
    async fn handle_input(&mut self, input: Box<Input>, now: Timestamp) {
        if self.deferred.is_empty() {
            let draft = self.service.decide(input.as_ref().clone(), now);
            if self.commit(draft, now).await.is_ok() {
                return;
            }
        }
        if input.is_hint() {
            return self.notice(Notice::Inspect, now);
        }
        self.deferred.push_back((now, input.deferred()));
        if self.deferred.len() > MAX_DEFERRED {
            self.forget_deferred();
        }
    }

    /// Makes room among the deferred inputs. What tells who has stopped a container goes last, so that what a person has stopped
    /// stays so.
    fn forget_deferred(&mut self) {
        let oldest = |is_of: fn(&Input) -> bool| {
            let mut inputs = self.deferred.iter().map(|(_, input)| input);
            inputs.position(|input| !input.ends_an_action() && is_of(input))
        };
        let other = oldest(|input| !input.tells_who_stops());
        let Some(at) = other.or_else(|| oldest(|_| true)) else { return };
        self.has_lost_stops |= other.is_none();
        self.deferred.remove(at);
    }

    /// Writes pending entries, and decides on deferred inputs.
    async fn catch_up(&mut self, now: Timestamp) -> Result<(), StoreError> {
        if self.deferred.is_empty() && !self.journal.has_initial_entries() {
            return Ok(());
        }
        self.commit(self.service.unchanged(), now).await?;
        while let Some((received_at, input)) = self.deferred.front().cloned() {
            self.journal.ready()?;
            // An external event keeps its time of arrival, which distinguishes stops before a gap from later ones. The
            // result of an action takes effect only now.
            let at = if input.ends_an_action() { now } else { received_at };
            self.commit(self.service.decide(input, at), now).await?;
            self.deferred.pop_front();
        }
        if std::mem::take(&mut self.has_lost_stops) {
            self.notice(Notice::StopsLost, now);
        }
        Ok(())
    }

    /// Writes a decision and its audit entries, then makes the draft the service's state.
    async fn commit(&mut self, draft: Draft, now: Timestamp) -> Result<(), StoreError> {
        let Draft { service, entries, notes, ended } = draft;
        self.journal
            .write(&service.config().name, self.service.durable(), service.durable(), entries)
            .await?;
        // A service that has not changed stays published as it is.
        if *service != *self.service {
            self.service = Arc::from(service);
            self.world.data.at_rest.release_unused(self.name(), self.service.durable());
        }
        for note in notes {
            tracing::warn!(service = self.service.config().name, "{note}");
        }
        if let Some(Ended { outcome, begun, outage }) = ended {
            let took = now.duration_since(begun);
            (self.world.deployed)(outcome, Duration::try_from(took).unwrap_or_default(), outage);
        }
        Ok(())
    }

    /// Notes the current time. If the wall clock was set since the last reading, all deadlines are shifted with it.
    pub(super) fn follow_clock(&mut self, wall: Timestamp, steady: Instant) {
        let passed = SignedDuration::try_from(steady - self.last_seen.1).unwrap_or(SignedDuration::MAX);
        let jump = wall.duration_since(self.last_seen.0).saturating_sub(passed);
        self.last_seen = (wall, steady);
        if is_jump(&jump) {
            tracing::warn!(service = self.name(), seconds = jump.as_secs(), "the clock was set");
            self.shift(jump);
        }
    }

    /// Shifts all deadlines by `by`.
    fn shift(&mut self, by: SignedDuration) {
        let shifted = self.service.shifted(by);
        // The shifted deadlines are written, so that an agent killed now resumes with the current clock.
        self.journal.begin(self.service.durable(), shifted.durable(), Vec::new());
        self.service = Arc::new(shifted);
        for (received_at, _) in &mut self.deferred {
            *received_at = received_at.checked_add(by).unwrap_or(*received_at);
        }
        self.touch();
    }

    /// Marks the service to be checked for due actions.
    pub(super) fn touch(&mut self) {
        (self.is_touched, self.is_stale) = (true, true);
    }

    /// Publishes its state if that may have changed.
    pub(super) fn publish_if_stale(&mut self) {
        if std::mem::take(&mut self.is_stale) || self.service.is_pulling() {
            self.publish();
        }
    }

    /// Publishes its state.
    fn publish(&self) {
        let pulled = self.pulled.as_ref().map(|pulled| *pulled.borrow()).unwrap_or_default();
        self.shown.send(Published { service: self.service.clone(), pulled });
    }

    /// Returns the time until it has to be woken without an event.
    pub(super) fn wake_in(&self, now: Timestamp) -> Option<Duration> {
        let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
        let retry_in = self.journal.retry_in();
        match &self.lifecycle {
            Lifecycle::Changing(_, _, at) => return Some(at.saturating_duration_since(Instant::now())),
            Lifecycle::Stopping(at) => {
                let end = at.saturating_duration_since(Instant::now());
                // What is due now could not begin.
                let next = self.service.winds_up_at(now).filter(|at| *at > now).map(until);
                return Some(retry_in.or(next).map_or(end, |next| next.min(end)));
            }
            Lifecycle::Active | Lifecycle::Retiring | Lifecycle::Closed => {}
        }
        if retry_in.is_some() {
            return retry_in;
        }
        if self.service.is_retired() {
            return None;
        }
        let due = self.service.wake_at(now).map(until);
        if self.service.is_pulling() { Some(due.unwrap_or(PROGRESS_EVERY).min(PROGRESS_EVERY)) } else { due }
    }
}
