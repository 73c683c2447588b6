//! Tasks around the workers, by a paused clock: what the service manager hears while a worker hangs, and how often
//! the services are polled when a registry pushes.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use async_trait::async_trait;
use evenkeel_agent::project::inbox;
use evenkeel_agent::project::services::EngineHealth;
use evenkeel_agent::project::services::PollState;
use evenkeel_agent::project::services::{Dependencies, Services};
use evenkeel_agent::service::Durable;
use evenkeel_agent::tasks::registry_events::{PublishedImage, RegistryEventSender, RegistryEvents};
use evenkeel_common::clock::Uptime;
use evenkeel_common::store::{Change, Store, StoreError};
use evenkeel_common::systemd::{ServiceManager, watchdog_loop};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

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
        assert!(free, "the disk outlives its waiters");
        self.inner.put_all(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(key).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.inner.scan(prefix).await
    }
}

/// A service with a project of its own.
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
    let dependencies = Dependencies { engine, services: Changed::default().subscribe(), state };
    Arc::new(Services::new(workers, polls, poll_state, dependencies, Uptime::starting_now()))
}

/// The service manager's end of the socket.
struct Ear(UnixDatagram);

impl Ear {
    fn new(name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).expect("a valid name");
        let socket = UnixDatagram::bind_addr(&address).expect("the name is free");
        socket.set_nonblocking(true).expect("a socket can do that");
        Self(socket)
    }

    /// What was said since the last time.
    fn heard(&self) -> Vec<String> {
        let mut buffer = [0; 500];
        std::iter::from_fn(|| self.0.recv(&mut buffer).ok().map(|n| buffer[..n].to_vec()))
            .map(|bytes| String::from_utf8(bytes).expect("text"))
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn no_sign_of_life_is_given_while_a_single_worker_hangs() {
    let name = format!("evenkeel-test-hang-{}", std::process::id());
    let ear = Ear::new(&name);
    let manager = Arc::new(ServiceManager::new(&|_| Some(format!("@{name}").into())));
    let fake = new_world();
    let disk = Arc::new(Disk { inner: fake.clone(), stuck: watch::Sender::new(false) });
    let on_disk = world(&fake, disk.clone()).await;
    let (hanging, door) = member("hanging", &on_disk);
    let (lively, other_door) = member("lively", &world(&fake, Arc::new(fake.clone())).await);
    let tasks = run(&on_disk, vec![hanging, lively]);
    let (stop, both) = (CancellationToken::new(), services(&[door.clone(), other_door]));
    let signs_of_life = watchdog_loop(manager, Some(MINUTE), || both.clone().round_trip(), stop.clone());
    let script = async {
        let signs = |heard: Vec<String>| heard.iter().filter(|text| *text == "WATCHDOG=1\n").count();
        // Not longer: the kernel keeps about ten messages that nobody has read.
        sleep(3 * MINUTE).await;
        let count = signs(ear.heard());
        assert!((6..=7).contains(&count), "a sign every half minute, but {count} in three");
        disk.stuck.send_replace(true);
        // What a person asks for is written down before it is answered.
        let (reply, answer) = oneshot::channel();
        assert!(door.inbox.send(Command::Request(ServiceRequest::Check, reply)).is_ok());
        // A round that was answered before the disk stuck may still say so.
        sleep(MINUTE).await;
        assert!(signs(ear.heard()) <= 1);
        sleep(10 * MINUTE).await;
        assert_eq!(ear.heard(), [""; 0], "one worker of two does not answer");
        disk.stuck.send_replace(false);
        assert!(answer.await.is_ok());
        sleep(MINUTE).await;
        assert!(signs(ear.heard()) >= 1);
        stop.cancel();
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(signs_of_life, script) } => {}
        () = tasks.panicked() => panic!("a worker panicked"),
    }
    // A sign that was due at the same time may come before it.
    assert_eq!(ear.heard().last().map(String::as_str), Some("STOPPING=1\nWATCHDOG=1\nSTATUS=stopping\n"));
}

fn published(tag: &str) -> PublishedImage {
    PublishedImage { repository: "web".into(), tag: tag.into() }
}

/// Tells of images, and looks at when the service that uses `web:latest` is polled.
struct Stand {
    pushes: RegistryEventSender,
    inbox: inbox::Receiver<Command>,
    began: Instant,
}

impl Stand {
    /// When the polls since the last time came, in tenths of a second since the beginning.
    async fn polled(&mut self, for_time: Duration) -> Vec<u128> {
        let end = Instant::now() + for_time;
        let mut at = Vec::new();
        while let Ok(Some(command)) = tokio::time::timeout_at(end, self.inbox.recv()).await {
            assert!(matches!(command, Command::Check(..)), "only checks are asked for");
            at.push(self.began.elapsed().as_millis() / 100);
        }
        at
    }
}

async fn with_push_poller(script: impl AsyncFnOnce(Stand)) {
    with_push_poller_of(configuration::config(&[WEB]), script).await;
}

async fn with_push_poller_of(config: Arc<ServiceConfig>, script: impl AsyncFnOnce(Stand)) {
    let fake = new_world();
    let world = world(&fake, Arc::new(fake.clone())).await;
    // It has no worker: the test has the inbox, and answers nothing.
    let (_member, handle) = member("shop", &world);
    let (sender, inbox) = inbox::channel();
    let door = Handle { config, inbox: sender, ..handle };
    let (poller, pushes) = RegistryEvents::new(services(&[door]), world.registry.clone());
    let stop = CancellationToken::new();
    tokio::select! {
        () = poller.run(stop.clone()) => unreachable!("nobody stops it"),
        () = script(Stand { pushes, inbox, began: Instant::now() }) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_is_followed_at_once_and_those_of_the_next_second_together_at_its_end() {
    with_push_poller(async |mut stand: Stand| {
        stand.pushes.tell(&published("latest"));
        assert_eq!(stand.polled(Duration::from_millis(200)).await, [0]);
        for _ in 0..50 {
            stand.pushes.tell(&published("latest"));
            assert_eq!(stand.polled(Duration::from_millis(10)).await, []);
        }
        // One for all of them, and those that follow it.
        assert_eq!(stand.polled(Duration::from_mins(1)).await, [10, 12, 22, 62, 312]);
        // It rested long enough: the next is followed at once again.
        stand.pushes.tell(&published("latest"));
        assert_eq!(stand.polled(Duration::from_mins(1)).await, [607, 609, 619, 659, 909]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pushes_without_end_make_one_poll_a_second() {
    with_push_poller(async |mut stand: Stand| {
        let mut at = Vec::new();
        for _ in 0..100 {
            stand.pushes.tell(&published("latest"));
            at.extend(stand.polled(Duration::from_millis(50)).await);
        }
        assert_eq!(at, [0, 10, 20, 30, 40]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_image_goes_live_though_its_registry_told_of_it_before_it_moved_the_tag() {
    for late in [100, 700, 3_000, 20_000].map(Duration::from_millis) {
        let fake = new_world();
        fake.have(&reference(WEB), "v1", Behaviour::Good, true);
        fake.push(&reference(WEB), "v1", Behaviour::Good);
        fake.compose_service("web", &reference(WEB));
        fake.operator_up();
        let world = world(&fake, Arc::new(fake.clone())).await;
        let (member, handle) = member("shop", &world);
        let tasks = run(&world, vec![member]);
        let shown = handle.published.clone();
        let (poller, pushes) = RegistryEvents::new(services(&[handle]), world.registry.clone());
        let stop = CancellationToken::new();
        let script = async {
            pushes.tell(&published("latest"));
            sleep(late).await;
            fake.push(&reference(WEB), "v2", Behaviour::Good);
            let deploys = shown.wait_for(|shown| shown.status.deploying);
            tokio::time::timeout(Duration::from_secs(30), deploys).await
        };
        tokio::select! {
            () = poller.run(stop.clone()) => unreachable!("nobody stops it"),
            () = tasks.panicked() => panic!("a worker panicked"),
            result = script => assert!(result.is_ok(), "not seen: {late:?} late"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_of_what_nobody_uses_polls_nobody() {
    with_push_poller(async |mut stand: Stand| {
        stand.pushes.tell(&published("v2"));
        stand.pushes.tell(&PublishedImage { repository: "other".into(), tag: "latest".into() });
        assert_eq!(stand.polled(Duration::from_secs(10)).await, []);
    })
    .await;
}

/// What a service that looks for newer tags of `web:1.27.0` is told until nothing comes for a minute.
async fn told(stand: &mut Stand) -> (usize, usize) {
    let (mut looks, mut checks) = (0, 0);
    while let Ok(Some(command)) = tokio::time::timeout(MINUTE, stand.inbox.recv()).await {
        match command {
            Command::TagPushed => looks += 1,
            Command::Check(..) => checks += 1,
            _ => panic!("a push asks for nothing else"),
        }
    }
    (looks, checks)
}

#[tokio::test(start_paused = true)]
async fn a_push_of_a_newer_tag_has_the_list_of_tags_read_whatever_it_is_called() {
    let mut service = configuration::service("shop", &["localhost:5000/web:1.27.0"]);
    service["update"] = serde_json::json!({"tags": "~1.27"});
    let config = configuration::read(&[service]).services.remove(0);
    with_push_poller_of(config, async |mut stand: Stand| {
        stand.pushes.tell(&published("1.27.1"));
        assert_eq!(told(&mut stand).await, (5, 5), "at once, and four times more");
        // Many names in one second are one piece of news.
        for n in 2..500 {
            stand.pushes.tell(&published(&format!("1.27.{n}")));
        }
        assert_eq!(told(&mut stand).await, (6, 6), "one at once, and one more for the rest of the second");
        for tag in ["1.28.0", "1.27.1-alpine", "1.26.9", "latest", "sha-1"] {
            stand.pushes.tell(&published(tag));
        }
        stand.pushes.tell(&PublishedImage { repository: "other".into(), tag: "1.27.9".into() });
        assert_eq!(told(&mut stand).await, (0, 0), "none of these would be deployed");
        stand.pushes.tell(&published("1.27.0"));
        assert_eq!(told(&mut stand).await, (0, 5), "the tag in use itself");
    })
    .await;
}
