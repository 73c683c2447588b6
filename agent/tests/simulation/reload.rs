//! Services that are left out at the start, and what they need appears later; and a state that can't be read at first. In
//! virtual time.

use std::fs;
use std::path::PathBuf;

use async_trait::async_trait;
use evenkeel_agent::audit::Deliveries;
use evenkeel_agent::config::active::ActiveConfig;
use evenkeel_agent::config::{Config, ConfigSource};
use evenkeel_agent::project::services::Workers;
use evenkeel_agent::service::Durable;
use evenkeel_agent::tasks::reload::{Reloader, ServiceDeps};
use evenkeel_common::store::{Change, StoreError};
use evenkeel_common::systemd::ServiceManager;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::world::Act;
use super::*;

const MINUTE: Duration = Duration::from_mins(1);

fn deps(
    source: ConfigSource,
    config: Arc<Config>,
    deliveries: Deliveries,
    workers: &watch::Sender<Option<Workers>>,
) -> ServiceDeps {
    ServiceDeps {
        source,
        replace_registry: Box::new(|_| Ok(())),
        withhold: Box::new(|_| {}),
        manager: Arc::new(ServiceManager::new(&|_| None)),
        deliveries,
        workers: workers.clone(),
        listeners: watch::Sender::default(),
        active: watch::Sender::new(ActiveConfig { config, warnings: Arc::default() }),
    }
}

/// The world with this store, whose entries are recorded.
fn recording_world(fake: &FakeWorld, store: Arc<dyn Store>, outbox: Outbox) -> Arc<World> {
    let mut world = world_with(fake, store, outbox);
    let recorder = fake.clone();
    Arc::get_mut(&mut world).expect("it is not shared yet").record =
        Arc::new(move |entry| recorder.record(entry));
    world
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_left_out_is_watched_once_its_files_exist_but_an_edit_waits_for_its_reload() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, compose) = (folder.path().join("config.json"), folder.path().join("compose.yml"));
    let service = |name: &str| json!({"name": name, "container_name": name, "compose_files": [compose]});
    let text = json!({"services": [service("web")]}).to_string();
    fs::write(&file, &text).expect("the configuration is written");
    let source = ConfigSource::new(file.clone(), |_| None);
    let config = Arc::new(source.load::<Config>().expect("it has no fatal fault"));
    assert_eq!(config.left_out.len(), 1);

    let fake = new_world();
    let store: Arc<dyn Store> = Arc::new(fake.clone());
    let outbox = Outbox::open(store.clone(), fake.clock(), "evenkeel", &[]).await.expect("memory").outbox;
    let (stop, workers) = (CancellationToken::new(), watch::Sender::new(None));
    let deliveries = Deliveries::new(outbox.clone(), fake.clock(), stop.clone());
    let deps = deps(source, config, deliveries, &workers);
    let world = recording_world(&fake, store, outbox);
    let mut reloader = Reloader::new(deps, world, stop.clone());
    reloader.load(None, Vec::new()).await;
    let hangups = signal(SignalKind::hangup()).expect("signals can be received");
    let watched = || {
        let workers = workers.borrow();
        workers.iter().flat_map(|all| all.iter()).map(|one| one.config.name.clone()).collect::<Vec<_>>()
    };
    let reloads = || fake.entries().iter().filter(|entry| entry.event == Kind::CONFIG_RELOADED).count();
    let script = async {
        sleep(10 * MINUTE).await;
        assert_eq!((watched(), reloads()), (Vec::new(), 0), "nothing has changed");
        fs::write(&compose, "services: {}").expect("the compose file is written");
        let edited = json!({"services": [service("web"), service("new")]}).to_string();
        fs::write(&file, edited).expect("the configuration is edited");
        sleep(10 * MINUTE).await;
        assert_eq!((watched(), reloads()), (Vec::new(), 0), "nobody asked for a reload");
        fs::write(&file, &text).expect("the edit is undone");
        sleep(2 * MINUTE).await;
        assert_eq!((watched(), reloads()), (vec!["web".to_owned()], 1));
        sleep(10 * MINUTE).await;
        assert_eq!((watched(), reloads()), (vec!["web".to_owned()], 1), "it is done");
        stop.cancel();
    };
    tokio::join!(reloader.run(hangups), script);
}

/// A disk that can fail to read the rows of services.
struct Unreadable {
    inner: FakeWorld,
    fails: watch::Sender<bool>,
}

#[async_trait]
impl Store for Unreadable {
    async fn put_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.inner.put_all(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        if *self.fails.borrow() {
            let cause = "Input/output error (os error 5)".to_owned();
            return Err(StoreError { doing: "read", path: "state.redb".into(), cause });
        }
        self.inner.get(key).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.inner.scan(prefix).await
    }
}

/// A configuration that is about to be loaded.
struct Loading {
    reloader: Reloader,
    workers: watch::Sender<Option<Workers>>,
    stop: CancellationToken,
}

async fn loading(file: PathBuf, fake: &FakeWorld, store: Arc<dyn Store>) -> Loading {
    let source = ConfigSource::new(file, |_| None);
    let config = Arc::new(source.load::<Config>().expect("it has no fatal fault"));
    let outbox = Outbox::open(Arc::new(fake.clone()), fake.clock(), "evenkeel", &[]).await.expect("memory");
    let outbox = outbox.outbox;
    let (stop, workers) = (CancellationToken::new(), watch::Sender::new(None));
    let deliveries = Deliveries::new(outbox.clone(), fake.clock(), stop.clone());
    let deps = deps(source, config, deliveries, &workers);
    let reloader = Reloader::new(deps, recording_world(fake, store, outbox), stop.clone());
    Loading { reloader, workers, stop }
}

#[tokio::test(start_paused = true)]
async fn a_state_that_can_not_be_read_is_waited_for_and_not_replaced_by_an_empty_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.json");
    let text = json!({"services": [{"name": "web", "container_name": "web"}]}).to_string();
    fs::write(&file, text).expect("the configuration is written");

    let fake = new_world();
    let mut durable = Durable::default();
    durable.totals.rollbacks = 7;
    let row = serde_json::to_vec(&durable).expect("it is plain data");
    fake.put(&state_key("web"), row).await.expect("memory");
    let disk = Arc::new(Unreadable { inner: fake.clone(), fails: watch::Sender::new(true) });
    let store: Arc<dyn Store> = disk.clone();
    let Loading { mut reloader, workers, stop } = loading(file, &fake, store).await;
    let script = async {
        sleep(10 * MINUTE).await;
        assert!(workers.borrow().is_none(), "nothing is watched");
        let entries = fake.entries();
        let texts: Vec<&str> = entries.iter().map(|entry| entry.message.as_str()).collect();
        assert!(texts.len() == 1 && texts[0].contains("web: its state can't be read"), "{texts:?}");
        disk.fails.send_replace(false);
    };
    tokio::join!(reloader.load(None, Vec::new()), script);
    let handle = workers.borrow().as_ref().expect("the services are loaded")[0].clone();
    assert_eq!(handle.published.get().service.durable().totals.rollbacks, 7);
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_waits_for_its_state_in_a_reload_can_be_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, compose) = (folder.path().join("config.json"), folder.path().join("compose.yml"));
    let service = json!({"name": "web", "container_name": "web", "compose_files": [compose]});
    fs::write(&file, json!({"services": [service]}).to_string()).expect("the configuration is written");

    let fake = new_world();
    let store = Arc::new(Unreadable { inner: fake.clone(), fails: watch::Sender::new(true) });
    let Loading { mut reloader, stop, .. } = loading(file, &fake, store).await;
    reloader.load(None, Vec::new()).await;
    let hangups = signal(SignalKind::hangup()).expect("signals can be received");
    let script = async {
        fs::write(&compose, "services: {}").expect("the compose file is written");
        sleep(10 * MINUTE).await;
        let entries = fake.entries();
        let waiting = entries.iter().filter(|entry| entry.message.contains("its state can't be read"));
        assert_eq!(waiting.count(), 1);
        stop.cancel();
    };
    let (end, ()) = tokio::join!(timeout(60 * MINUTE, reloader.run(hangups)), script);
    assert!(end.is_ok(), "the reload goes on after the stop");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_watched_again_leaves_alone_what_somebody_has_stopped_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, compose) = (folder.path().join("config.json"), folder.path().join("compose.yml"));
    let service = json!({
        "name": "web",
        "images": [WEB],
        "compose_files": [compose],
        "compose_project": "shop",
        "auto_update": false,
        "auto_heal": true,
    });
    fs::write(&file, json!({"services": [service]}).to_string()).expect("the configuration is written");

    let fake = new_world();
    fake.compose_service("web", &reference(WEB));
    fake.add_image(&reference(WEB), "v1", Behaviour::Good, true);
    fake.operator_up();
    sleep(MINUTE).await;
    fake.act(Act::Stop("web"));
    let mut durable = Durable::default();
    durable.totals.rollbacks = 7;
    let row = serde_json::to_vec(&durable).expect("it is plain data");
    fake.put(&state_key("web"), row).await.expect("memory");
    let store: Arc<dyn Store> = Arc::new(fake.clone());
    let Loading { mut reloader, workers, stop } = loading(file, &fake, store).await;
    reloader.load(None, Vec::new()).await;
    let hangups = signal(SignalKind::hangup()).expect("signals can be received");
    let script = async {
        fs::write(&compose, "services: {}").expect("the compose file is written");
        sleep(10 * MINUTE).await;
        assert_eq!(workers.borrow().iter().flat_map(|all| all.iter()).count(), 1, "it is watched");
        assert_eq!(fake.restarts(), 0);
        stop.cancel();
    };
    tokio::join!(reloader.run(hangups), script);
}
