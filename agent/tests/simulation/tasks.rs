//! Tasks around the workers, in virtual time: what the service manager receives while a worker hangs, how often services
//! are polled after registry events, and from when the engine's events are read.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use async_trait::async_trait;
use evenkeel_agent::project::inbox;
use evenkeel_agent::project::services::EngineHealth;
use evenkeel_agent::project::services::PollState;
use evenkeel_agent::project::services::{Dependencies, Services, Workers};
use evenkeel_agent::service::{Durable, Service};
use evenkeel_agent::tasks::events::Events;
use evenkeel_agent::tasks::registry_events::{PublishedImage, RegistryEventSender, RegistryEvents};
use evenkeel_common::clock::Uptime;
use evenkeel_common::store::{Change, Store, StoreError};
use evenkeel_common::systemd::{ServiceManager, watchdog_loop};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep};

use super::world::Act;
use super::*;

const MINUTE: Duration = Duration::from_mins(1);

/// A disk that can stop answering.
struct Disk {
    inner: FakeWorld,
    stuck: watch::Sender<bool>,
}

#[async_trait]
impl Store for Disk {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let free = self.stuck.subscribe().wait_for(|stuck| !stuck).await.is_ok();
        assert!(free, "the disk outlives its pending writes");
        self.inner.put_all(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(key).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.inner.scan(prefix).await
    }
}

/// A service with its own project.
fn member(name: &str, world: &Arc<World>) -> (Member, Handle) {
    let compose_project = Some(name.to_owned());
    let config = ServiceConfig { name: name.into(), compose_project, ..(*config(&[WEB])).clone() };
    Member::new(Arc::new(config), Durable::default(), world.clone(), StartReason::Start)
}

fn services(handles: &[Handle]) -> Arc<Services> {
    let (polls, _) = mpsc::unbounded_channel();
    let (_, poll_state) = watch::channel(PollState::default());
    let (_, workers) = watch::channel(Some(handles.into()));
    let (_, engine) = watch::channel(EngineHealth::default());
    let (_, state) = watch::channel(None);
    let services = Changed::default().subscribe();
    let dependencies = Dependencies { workers, poll_state, engine, services, state, active: None };
    Arc::new(Services::new(polls, dependencies, Uptime::starting_now()))
}

/// The service manager's end of the socket.
struct NotifySocket(UnixDatagram);

impl NotifySocket {
    fn new(name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).expect("a valid name");
        let socket = UnixDatagram::bind_addr(&address).expect("the name is free");
        socket.set_nonblocking(true).expect("a socket can do that");
        Self(socket)
    }

    /// Returns the messages since the last call.
    fn received(&self) -> Vec<String> {
        let mut buffer = [0; 500];
        std::iter::from_fn(|| self.0.recv(&mut buffer).ok().map(|n| buffer[..n].to_vec()))
            .map(|bytes| String::from_utf8(bytes).expect("text"))
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn no_heartbeat_is_sent_to_the_service_manager_while_one_worker_hangs() {
    let name = format!("evenkeel-test-hang-{}", std::process::id());
    let socket = NotifySocket::new(&name);
    let manager = Arc::new(ServiceManager::new(&|_| Some(format!("@{name}").into())));
    let fake = new_world();
    let disk = Arc::new(Disk { inner: fake.clone(), stuck: watch::Sender::new(false) });
    let on_disk = world(&fake, disk.clone()).await;
    let (hanging, handle) = member("hanging", &on_disk);
    let (lively, other_handle) = member("lively", &world(&fake, Arc::new(fake.clone())).await);
    let tasks = spawn_workers(&on_disk, vec![hanging, lively]);
    let (stop, both) = (CancellationToken::new(), services(&[handle.clone(), other_handle]));
    let heartbeat_loop = watchdog_loop(manager, Some(MINUTE), || both.clone().round_trip(), stop.clone());
    let script = async {
        let heartbeats =
            |received: Vec<String>| received.iter().filter(|text| *text == "WATCHDOG=1\n").count();
        // Not longer: the kernel queues only about ten unread messages.
        sleep(3 * MINUTE).await;
        let count = heartbeats(socket.received());
        assert!((6..=7).contains(&count), "a heartbeat every half minute, but {count} in three minutes");
        disk.stuck.send_replace(true);
        // A request is written to the store before it is answered.
        let (reply, answer) = oneshot::channel();
        assert!(handle.inbox.send(Command::Request(ServiceRequest::Check, reply)).is_ok());
        // A round trip that ended before the disk hung may still send one heartbeat.
        sleep(MINUTE).await;
        assert!(heartbeats(socket.received()) <= 1);
        sleep(10 * MINUTE).await;
        assert_eq!(socket.received(), [""; 0], "one worker of two does not answer");
        disk.stuck.send_replace(false);
        assert!(answer.await.is_ok());
        sleep(MINUTE).await;
        assert!(heartbeats(socket.received()) >= 1);
        stop.cancel();
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(heartbeat_loop, script) } => {}
        () = tasks.panicked() => panic!("a worker panicked"),
    }
    // A heartbeat that was due at the same time may precede it.
    assert_eq!(
        socket.received().last().map(String::as_str),
        Some("STOPPING=1\nWATCHDOG=1\nSTATUS=stopping\n")
    );
}

/// Podman's events may go back for years, and contain the result of each health check.
#[tokio::test(start_paused = true)]
async fn past_events_are_read_from_a_day_ago_and_the_stream_begins_a_minute_ago() {
    let fake = new_world();
    fake.compose_service("web", &reference(WEB));
    fake.add_image(&reference(WEB), "v1", Behaviour::Good, true);
    fake.push(&reference(WEB), "v1", Behaviour::Good);
    fake.operator_up();
    sleep(10 * MINUTE).await;
    let (_workers, listeners) = watch::channel(Workers::default());
    let (_health, health) = watch::channel(EngineHealth::default());
    let events = Events {
        engine: Arc::new(fake.clone()),
        listeners,
        health,
        check_now: Arc::new(Notify::new()),
        clock: fake.clock(),
        last_nano: 0,
        ended_at: None,
        ran_since: None,
    };
    let script = async {
        sleep(MINUTE).await;
        fake.act(Act::StreamBreaks);
        sleep(MINUTE).await;
    };
    tokio::select! {
        () = events.run(CancellationToken::new()) => unreachable!("it is never stopped"),
        () = script => {}
    }
    let reads = fake.event_reads();
    let [(of_past, Some(until)), (of_stream, None), (again, Some(_)), (_, None)] = reads[..] else {
        panic!("{reads:?}")
    };
    let seconds_before = |at: i64| (until - at) / 1_000_000_000;
    assert_eq!((seconds_before(of_past), seconds_before(of_stream)), (86_460, 60));
    assert!(seconds_before(again) <= 660, "those that were read are known: {reads:?}");
}

fn published(tag: &str) -> PublishedImage {
    PublishedImage { repository: "web".into(), tag: tag.into() }
}

/// Sends registry events, and records when the service that uses `web:latest` is polled.
struct Fixture {
    pushes: RegistryEventSender,
    inbox: inbox::Receiver<Command>,
    began: Instant,
}

impl Fixture {
    /// Returns the times of the polls since the last call, in tenths of a second since the beginning.
    async fn polls(&mut self, for_time: Duration) -> Vec<u128> {
        let end = Instant::now() + for_time;
        let mut at = Vec::new();
        while let Ok(Some(command)) = tokio::time::timeout_at(end, self.inbox.recv()).await {
            assert!(matches!(command, Command::Check(..)), "only checks are requested");
            at.push(self.began.elapsed().as_millis() / 100);
        }
        at
    }
}

async fn with_push_poller(script: impl AsyncFnOnce(Fixture)) {
    with_push_poller_of(configuration::config(&[WEB]), script).await;
}

async fn with_push_poller_of(config: Arc<ServiceConfig>, script: impl AsyncFnOnce(Fixture)) {
    let fake = new_world();
    let world = world(&fake, Arc::new(fake.clone())).await;
    // It has no worker: the test owns the inbox and does not answer.
    let (_member, handle) = member("shop", &world);
    let (sender, inbox) = inbox::channel();
    let handle = Handle { config, inbox: sender, ..handle };
    let (poller, pushes) = RegistryEvents::new(services(&[handle]), world.registry.clone());
    let stop = CancellationToken::new();
    tokio::select! {
        () = poller.run(stop.clone()) => unreachable!("it is never stopped"),
        () = script(Fixture { pushes, inbox, began: Instant::now() }) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_push_is_polled_for_at_once_and_those_of_the_next_second_together_at_its_end() {
    with_push_poller(async |mut fixture: Fixture| {
        fixture.pushes.send(&published("latest"));
        assert_eq!(fixture.polls(Duration::from_millis(200)).await, [0]);
        for _ in 0..50 {
            fixture.pushes.send(&published("latest"));
            assert_eq!(fixture.polls(Duration::from_millis(10)).await, []);
        }
        // One poll for all of them, and its repetitions.
        assert_eq!(fixture.polls(Duration::from_mins(1)).await, [10, 12, 22, 62, 312]);
        // After a pause, the next push is polled for at once again.
        fixture.pushes.send(&published("latest"));
        assert_eq!(fixture.polls(Duration::from_mins(1)).await, [607, 609, 619, 659, 909]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn continuous_pushes_cause_one_poll_per_second() {
    with_push_poller(async |mut fixture: Fixture| {
        let mut at = Vec::new();
        for _ in 0..100 {
            fixture.pushes.send(&published("latest"));
            at.extend(fixture.polls(Duration::from_millis(50)).await);
        }
        assert_eq!(at, [0, 10, 20, 30, 40]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_image_is_deployed_even_if_its_registry_sends_the_event_before_it_moves_the_tag() {
    for late in [100, 700, 3_000, 20_000].map(Duration::from_millis) {
        let fake = new_world();
        fake.add_image(&reference(WEB), "v1", Behaviour::Good, true);
        fake.push(&reference(WEB), "v1", Behaviour::Good);
        fake.compose_service("web", &reference(WEB));
        fake.operator_up();
        let world = world(&fake, Arc::new(fake.clone())).await;
        let (member, handle) = member("shop", &world);
        let tasks = spawn_workers(&world, vec![member]);
        let shown = handle.published.clone();
        let (poller, pushes) = RegistryEvents::new(services(&[handle]), world.registry.clone());
        let stop = CancellationToken::new();
        let script = async {
            pushes.send(&published("latest"));
            sleep(late).await;
            fake.push(&reference(WEB), "v2", Behaviour::Good);
            let deploys = shown.wait_for(Service::is_deploying);
            tokio::time::timeout(Duration::from_secs(30), deploys).await
        };
        tokio::select! {
            () = poller.run(stop.clone()) => unreachable!("it is never stopped"),
            () = tasks.panicked() => panic!("a worker panicked"),
            result = script => assert!(result.is_ok(), "not found: {late:?} late"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_of_an_unused_image_polls_no_service() {
    with_push_poller(async |mut fixture: Fixture| {
        fixture.pushes.send(&published("v2"));
        fixture.pushes.send(&PublishedImage { repository: "other".into(), tag: "latest".into() });
        assert_eq!(fixture.polls(Duration::from_secs(10)).await, []);
    })
    .await;
}

/// Counts the commands that a service looking for newer tags of `web:1.27.0` receives, until none arrives for a minute.
async fn commands(fixture: &mut Fixture) -> (usize, usize) {
    let (mut tag_pushes, mut checks) = (0, 0);
    while let Ok(Some(command)) = tokio::time::timeout(MINUTE, fixture.inbox.recv()).await {
        match command {
            Command::TagPushed => tag_pushes += 1,
            Command::Check(..) => checks += 1,
            _ => panic!("a push causes no other command"),
        }
    }
    (tag_pushes, checks)
}

#[tokio::test(start_paused = true)]
async fn a_push_of_any_matching_newer_tag_refreshes_the_list_of_tags() {
    let mut service = configuration::service("shop", &["localhost:5000/web:1.27.0"]);
    service["update"] = serde_json::json!({"tags": "~1.27"});
    let config = configuration::read(&[service]).services.remove(0);
    with_push_poller_of(config, async |mut fixture: Fixture| {
        fixture.pushes.send(&published("1.27.1"));
        assert_eq!(commands(&mut fixture).await, (5, 5), "at once, and four times more");
        // Many tags in one second are handled together.
        for n in 2..500 {
            fixture.pushes.send(&published(&format!("1.27.{n}")));
        }
        assert_eq!(
            commands(&mut fixture).await,
            (6, 6),
            "one at once, and one more for the rest of the second"
        );
        for tag in ["1.28.0", "1.27.1-alpine", "1.26.9", "latest", "sha-1"] {
            fixture.pushes.send(&published(tag));
        }
        fixture.pushes.send(&PublishedImage { repository: "other".into(), tag: "1.27.9".into() });
        assert_eq!(commands(&mut fixture).await, (0, 0), "none of these would be deployed");
        fixture.pushes.send(&published("1.27.0"));
        assert_eq!(commands(&mut fixture).await, (0, 5), "the tag in use itself");
    })
    .await;
}
