//! The agent in the simulated world: the real tasks and workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_agent::config::active::ActiveConfig;
use evenkeel_agent::config::{Config, ServiceConfig};
use evenkeel_agent::project::handle::{Command, Handle};
use evenkeel_agent::project::published;
use evenkeel_agent::project::services::{
    Dependencies, EngineHealth, PollState, Services, Workers, with_leaving,
};
use evenkeel_agent::project::worker::Member;
use evenkeel_agent::project::worker::Placement;
use evenkeel_agent::project::world::{World, state_key};
use evenkeel_agent::service::boot::StartReason;
use evenkeel_agent::service::input::ServiceRequest;
use evenkeel_agent::service::view::status::{Published, StatusContext};
use evenkeel_agent::tasks::engine_health::EngineProbe;
use evenkeel_agent::tasks::events::Events;
use evenkeel_agent::tasks::poller::Poller;
use evenkeel_common::clock::Uptime;
use evenkeel_common::queue::Outbox;
use evenkeel_common::store::Store;
use evenkeel_common::supervisor::TaskSet;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::world::{AtEnd, FakeWorld};
use crate::world_with;

/// The destination of entries.
const DESTINATION: &str = "warden";

/// A running agent, from one start to its end.
pub(crate) struct Agent {
    fake: FakeWorld,
    world: Arc<World>,
    placement: Placement,
    workers: watch::Sender<Option<Workers>>,
    listeners: watch::Sender<Workers>,
    handles_by_name: BTreeMap<String, Handle>,
    /// What each service publishes, until it has ended.
    shown: Arc<Mutex<Vec<published::Receiver>>>,
    polls: mpsc::UnboundedSender<()>,
    tasks: TaskSet,
    stop: CancellationToken,
    deliver: CancellationToken,
    deliveries: TaskSet,
}

impl Agent {
    /// Starts the agent with the state in the store. `former` are services that are no longer configured and may have an
    /// unfinished deployment.
    pub(crate) async fn start(fake: &FakeWorld, config: &Config, former: &[Arc<ServiceConfig>]) -> Self {
        fake.reread().await;
        let store: Arc<dyn Store> = Arc::new(fake.clone());
        let names = [DESTINATION.to_owned()];
        let outbox =
            Outbox::open(store.clone(), fake.clock(), "evenkeel", &names).await.expect("memory").outbox;
        let (tasks, deliveries) = (TaskSet::new(), TaskSet::new());
        let (stop, deliver) = (CancellationToken::new(), CancellationToken::new());
        deliveries.spawn("outbox", outbox.clone().run(deliver.clone()));
        deliveries.spawn("warden", warden(fake.clone(), outbox.clone()));
        let world = world_with(fake, store, outbox);
        let placement = Placement::new(world.clock.clone(), tasks.clone(), stop.clone());
        let (polls, requests) = mpsc::unbounded_channel();
        let workers = watch::Sender::new(None);
        let mut agent = Self {
            fake: fake.clone(),
            world,
            placement,
            workers,
            listeners: watch::Sender::default(),
            handles_by_name: BTreeMap::new(),
            shown: Arc::default(),
            polls,
            tasks,
            stop,
            deliver,
            deliveries,
        };
        agent.spawn_status();
        agent.start_workers(config, former).await;
        agent.spawn_tasks(config, requests);
        agent
    }

    async fn start_workers(&mut self, config: &Config, former: &[Arc<ServiceConfig>]) {
        let mut members = Vec::new();
        for service in former {
            let durable = self.fake.durable(&state_key(&service.name)).await;
            if durable.deployment.is_some() && config.services.iter().all(|s| s.name != service.name) {
                let (member, handle) =
                    Member::new(service.clone(), durable, self.world.clone(), StartReason::Start);
                let (reply, _) = oneshot::channel();
                assert!(handle.inbox.send(Command::Retire(reply)).is_ok());
                self.handles_by_name.insert(service.name.clone(), handle);
                members.push(member);
            }
        }
        let mut handles = Vec::new();
        for service in &config.services {
            let (member, handle) = self.member(service.clone(), StartReason::Start).await;
            members.push(member);
            handles.push(handle);
        }
        self.placement.place(members);
        self.publish(handles.into());
    }

    fn publish(&self, configured: Workers) {
        self.listeners.send_replace(with_leaving(&configured, self.handles_by_name.values()));
        self.workers.send_replace(Some(configured));
    }

    async fn member(&mut self, config: Arc<ServiceConfig>, reason: StartReason) -> (Member, Handle) {
        let durable = self.fake.durable(&state_key(&config.name)).await;
        let (member, handle) = Member::new(config, durable, self.world.clone(), reason);
        self.handles_by_name.insert(handle.config.name.clone(), handle.clone());
        self.shown.lock().push(handle.published.clone());
        self.world.changed.send_replace(());
        (member, handle)
    }

    /// Checks what the services publish, in a fixed order so that a repeated run gives the same transcript.
    fn spawn_status(&self) {
        let (fake, shown, stop) = (self.fake.clone(), self.shown.clone(), self.stop.clone());
        let mut changes = self.world.changed.subscribe();
        self.tasks.spawn("status", async move {
            let mut checked: BTreeMap<String, Published> = BTreeMap::new();
            loop {
                let is_stopping = stop.is_cancelled();
                let is_over = {
                    let mut shown = shown.lock();
                    shown.retain(|one| {
                        let has_ended = one.has_ended();
                        let now = one.get();
                        let name = &now.service.config().name;
                        if checked.get(name).is_none_or(|before| !before.is_same(&now)) {
                            fake.check_status(&now.record(&context(&fake)));
                            checked.insert(name.clone(), now);
                        }
                        !has_ended
                    });
                    is_stopping && shown.is_empty()
                };
                if is_over {
                    return;
                }
                tokio::select! {
                    biased;
                    changed = changes.changed() => changed.expect("the world still exists"),
                    () = stop.cancelled(), if !is_stopping => {}
                }
            }
        });
    }

    fn spawn_tasks(&mut self, config: &Config, requests: mpsc::UnboundedReceiver<()>) {
        let active = ActiveConfig { config: Arc::new(config.clone()), warnings: Arc::default() };
        let (_, active) = watch::channel(active);
        let health = watch::Sender::new(EngineHealth::default());
        let poll_state = watch::Sender::new(PollState::default());
        let (_, state) = watch::channel(None);
        let services = Arc::new(Services::new(
            self.polls.clone(),
            Dependencies {
                workers: self.workers.subscribe(),
                poll_state: poll_state.subscribe(),
                engine: health.subscribe(),
                services: self.world.changed.subscribe(),
                state,
                active: None,
            },
            Uptime::starting_now(),
        ));
        let check_now = Arc::new(Notify::new());
        let World { engine, registry, clock, record, .. } = (*self.world).clone();
        let events = Events {
            engine: engine.clone(),
            listeners: self.listeners.subscribe(),
            health: health.subscribe(),
            check_now: check_now.clone(),
            clock: clock.clone(),
            last_nano: 0,
            ended_at: None,
            ran_since: None,
        };
        self.tasks.spawn("events", events.run(self.stop.clone()));
        let probe = EngineProbe {
            engine,
            active: active.clone(),
            clock: clock.clone(),
            record: record.clone(),
            state: health,
            check_now,
        };
        self.tasks.spawn("engine health", probe.run(self.stop.clone()));
        let cycled = Arc::new(|_| {});
        let poller =
            Poller { services, registry, active, clock, record, cycled, state: poll_state, requests };
        self.tasks.spawn("poller", poller.run(self.stop.clone()));
    }

    /// Applies another configuration, as a reload does.
    pub(crate) async fn reload(&mut self, config: &Config) {
        let before = self.workers();
        let is_wanted = |name: &str| config.services.iter().any(|service| service.name == name);
        self.publish(before.iter().filter(|handle| is_wanted(&handle.config.name)).cloned().collect());
        for handle in before.iter().filter(|handle| !is_wanted(&handle.config.name)) {
            let (reply, answer) = oneshot::channel();
            if handle.inbox.send(Command::Retire(reply)).is_ok() {
                let _ = answer.await;
            }
        }
        let (mut members, mut handles) = (Vec::new(), Vec::new());
        for service in &config.services {
            let same = before.iter().find(|handle| handle.config == *service);
            let kept = match same {
                Some(handle) => Some(handle.clone()),
                None => self.reconfigure(service).await,
            };
            if let Some(handle) = kept {
                handles.push(handle);
                continue;
            }
            let (member, handle) = self.member(service.clone(), StartReason::Reload).await;
            members.push(member);
            handles.push(handle);
        }
        self.placement.place(members);
        self.publish(handles.into());
    }

    fn workers(&self) -> Workers {
        self.workers.borrow().clone().unwrap_or_default()
    }

    async fn reconfigure(&mut self, service: &ServiceConfig) -> Option<Handle> {
        let handle = self.handles_by_name.get(&service.name)?.clone();
        let config = Arc::new(service.clone());
        let (reply, answer) = oneshot::channel();
        handle.inbox.send(Command::Reconfigure(config.clone(), reply)).ok()?;
        answer.await.ok()?;
        let handle = Handle { config, ..handle };
        self.handles_by_name.insert(service.name.clone(), handle.clone());
        Some(handle)
    }

    /// Sends an operator's request to a service and does not wait for the answer.
    pub(crate) fn ask(&self, service: &str, request: ServiceRequest) {
        if let Some(handle) = self.workers().iter().find(|handle| handle.config.name == service) {
            let (reply, _) = oneshot::channel();
            assert!(handle.inbox.send(Command::Request(request, reply)).is_ok());
        }
    }

    /// Notifies all services of a pushed tag.
    pub(crate) fn tag_was_pushed(&self) {
        let workers = self.workers();
        for handle in &*workers {
            // The worker may have ended meanwhile.
            let _ = handle.inbox.send(Command::TagPushed);
        }
    }

    /// An operator requests a check of all services.
    pub(crate) fn poll(&self) {
        assert!(self.polls.send(()).is_ok());
    }

    /// Returns the final state of all services.
    pub(crate) fn at_end(&self) -> Vec<AtEnd> {
        let at_end = |handle: &Handle| {
            let record = handle.published.get().record(&context(&self.fake));
            AtEnd { config: handle.config.clone(), record }
        };
        self.workers().iter().map(at_end).collect()
    }

    /// Returns when one of its tasks has panicked.
    pub(crate) async fn panicked(&self) {
        tokio::select! {
            () = self.tasks.panicked() => {}
            () = self.deliveries.panicked() => {}
        }
    }

    /// Stops it gracefully.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.finish(Duration::from_secs(25)).await;
        self.deliver.cancel();
        self.deliveries.finish(Duration::from_secs(5)).await;
    }

    /// Kills it.
    pub(crate) async fn kill(self) {
        self.tasks.finish(Duration::ZERO).await;
        self.deliveries.finish(Duration::ZERO).await;
    }
}

fn context(fake: &FakeWorld) -> StatusContext {
    StatusContext { now: fake.clock().now(), next_poll: None, engine_error: None, state_error: None }
}

/// A destination that accepts every entry after a short delay.
async fn warden(fake: FakeWorld, outbox: Outbox) {
    let mut destination = outbox.destination(DESTINATION).expect("it was named");
    loop {
        let item = destination.next().await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        fake.deliver(item.seq, &item.entry);
        destination.done(&item);
    }
}
