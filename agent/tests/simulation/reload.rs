//! Services that are left out at the start, and what they need appears later, in virtual time.

use std::fs;

use evenkeel_agent::audit::Deliveries;
use evenkeel_agent::config::active::ActiveConfig;
use evenkeel_agent::config::{Config, ConfigSource};
use evenkeel_agent::tasks::reload::{Reloader, ServiceDeps};
use evenkeel_common::systemd::ServiceManager;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

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
    let deps = ServiceDeps {
        source,
        replace_registry: Box::new(|_| Ok(())),
        withhold: Box::new(|_| {}),
        manager: Arc::new(ServiceManager::new(&|_| None)),
        deliveries: Deliveries::new(outbox.clone(), fake.clock(), stop.clone()),
        workers: workers.clone(),
        active: watch::Sender::new(ActiveConfig { config, warnings: Arc::default() }),
    };
    let mut world = world_with(&fake, store, outbox);
    let recorder = fake.clone();
    Arc::get_mut(&mut world).expect("it is not shared yet").record =
        Arc::new(move |entry| recorder.record(entry));
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
