//! The embedded store across restarts, with the state of an earlier version, on a failing disk, and next to another store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use evenkeel_common::clock::SystemClock;
use evenkeel_common::wire::FleetEntry;
use evenkeel_warden::fleet::Machine;
use evenkeel_warden::keep::embedded::Embedded;
use evenkeel_warden::keep::{Keep, Outcome, Position, Stored};
use serde_json::Value;

use crate::support::{self, A, TestWarden, assert_refused, body, eventually, header, status};

const OLD: &str = r#"{"version":1,"is_complete":true,"next_id":8,"entries":[{"timestamp":"2026-01-02T03:04:05Z","machine":"a","service":"web","event":"updated","message":"old","level":"info","seq":7,"agent":"a"}],"machines":[{"id":"a","online":true,"since":null,"reason":null,"last_entry":null,"seen":[[7,7]],"youngest":"2026-01-02T03:04:05Z","counts":{"info":1,"warning":0,"error":0,"critical":0,"other":0},"repeats":0}]}"#;

fn open(folder: &Path) -> Embedded {
    Embedded::open(folder, Arc::new(SystemClock)).unwrap()
}

async fn content(keep: &dyn Keep) -> (Vec<Stored>, Vec<Machine>) {
    (keep.tail(0, 100).await.unwrap(), keep.news(Position::default(), 100).await.unwrap().machines)
}

fn entry(seq: u64) -> FleetEntry {
    evenkeel_warden::fleet::entry::parse(support::entry(seq).as_bytes(), "a").unwrap()
}

async fn put(keep: &dyn Keep, seq: u64) -> Outcome {
    let change = evenkeel_warden::keep::Change::Entry(Box::new(entry(seq)));
    keep.commit(vec![change], "2026-01-02T03:04:05Z".parse().unwrap()).await.unwrap()[0]
}

#[tokio::test]
async fn the_file_of_an_earlier_version_is_imported_once_with_its_ids() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    fs::write(&path, OLD).unwrap();
    let keep = open(&path);
    let (entries, machines) = content(&keep).await;
    assert_eq!((entries.len(), entries[0].id), (1, 7), "a browser continues where it was");
    assert_eq!(
        (machines[0].id(), machines[0].online(), machines[0].record().last_seq),
        ("a", Some(true), Some(7))
    );
    assert_eq!(put(&keep, 8).await, Outcome::Stored(8));
    drop(keep);
    assert!(path.join("warden-state.json.taken-over").is_file(), "it is kept");
    assert_eq!(content(&open(&path)).await.0.len(), 2, "and not imported again");
}

#[tokio::test]
async fn an_interrupted_import_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    fs::write(folder.path().join("state.before"), OLD).unwrap();
    assert_eq!(content(&open(&path)).await.0.len(), 1);
    let beside = folder.path().join("other");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("warden-state.json"), OLD).unwrap();
    assert_eq!(content(&open(&beside)).await.0.len(), 1, "the configuration refers to its folder now");
    let outer = folder.path().join("outer");
    let inner = outer.join("warden-state.json");
    put(&open(&inner), 1).await;
    assert_eq!(content(&open(&outer)).await.0, []);
    assert_eq!(content(&open(&inner)).await.0.len(), 1, "the store in a folder with that name stays");
}

#[tokio::test]
async fn an_empty_file_and_the_buffer_of_another_program_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    let buffer = format!("[{},{}]", support::entry(1), support::entry(2));
    for (name, old, count) in [("empty", "", 0), ("none", "[]", 0), ("buffer", &*buffer, 2)] {
        let path = folder.path().join(name);
        fs::write(&path, old).unwrap();
        let keep = open(&path);
        assert_eq!(content(&keep).await.0.len(), count, "{name}");
        assert!(matches!(put(&keep, 9).await, Outcome::Stored(_)), "{name}");
        assert!(path.join("warden-state.json.taken-over").is_file(), "{name}");
    }
}

#[tokio::test]
async fn a_file_that_is_not_a_state_stays_and_the_store_is_away_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"api": {"token": "t", "state_path": "/etc/evenkeel/warden.json"}, "agents": []}"#;
    for (name, foreign) in [
        ("config", config),
        ("hostname", "rack-1\n"),
        ("later", r#"{"version":3}"#),
        ("cut", r#"{"version":"1","#),
        ("numbers", "[1, 2]"),
        ("objects", r#"[{"name": "web"}]"#),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, foreign).unwrap();
        let keep = open(&path);
        for _ in 0..2 {
            let error = keep.tail(0, 1).await.unwrap_err().to_string();
            let shown = path.display().to_string();
            assert!(error.contains(&format!("{shown} already exists and was left unchanged (")), "{error}");
            assert!(error.contains("allowed for api.state_path: a folder"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), foreign);
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(put(&keep, 1).await, Outcome::Stored(_)), "{name}");
    }
    // Neither is another file with the name that a crash would leave behind.
    let path = folder.path().join("state");
    let before = folder.path().join("state.before");
    fs::write(&before, "mine").unwrap();
    open(&path).tail(0, 1).await.unwrap();
    assert_eq!(fs::read_to_string(&before).unwrap(), "mine");
    let taken = folder.path().join("taken");
    fs::write(&taken, OLD).unwrap();
    fs::write(folder.path().join("taken.before"), "mine").unwrap();
    let error = open(&taken).tail(0, 1).await.unwrap_err().to_string();
    assert!(error.contains("taken.before already exists"), "{error}");
    assert_eq!(fs::read_to_string(&taken).unwrap(), OLD);
}

#[tokio::test]
async fn a_torn_json_state_is_set_aside_in_part_and_everything_is_stored_again() {
    let folder = tempfile::tempdir().unwrap();
    let buffer = format!("[{},{}]", support::entry(1), support::entry(2));
    let two = buffer.find("entry 2").unwrap();
    let machines = OLD.find("machines").unwrap();
    for (name, torn, count) in
        [("head", &OLD[..20], 0), ("old", &OLD[..machines], 1), ("buffer", &buffer[..two], 1)]
    {
        let path = folder.path().join(name);
        fs::write(&path, torn).unwrap();
        let keep = open(&path);
        assert_eq!(content(&keep).await.0.len(), count, "{name}");
        assert!(
            matches!(put(&keep, 9).await, Outcome::Stored(id) if id > 1 << 50),
            "{name}: ids are not reused"
        );
        let names = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
        let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        let aside = format!("{name}.damaged-");
        assert!(names.iter().any(|name| name.starts_with(&aside)), "{name}: {names:?}");
    }
}

#[tokio::test]
async fn an_unusable_state_file_in_the_folder_is_moved_aside() {
    let folder = tempfile::tempdir().unwrap();
    for (name, old) in [("b", "{\"version\":1,"), ("c", "nonsense\n"), ("d", "{\"version\":3}")] {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("warden-state.json"), old).unwrap();
        let keep = open(&path);
        assert_eq!(content(&keep).await, (Vec::new(), Vec::new()));
        assert!(matches!(put(&keep, 1).await, Outcome::Stored(id) if id > 1 << 50), "ids are not reused");
        let names: Vec<_> = fs::read_dir(&path).unwrap().map(|file| file.unwrap().file_name()).collect();
        let is_aside =
            |name: &std::ffi::OsString| name.to_string_lossy().starts_with("warden-state.json.damaged-");
        assert!(names.iter().any(is_aside), "{name}: {names:?}");
    }
}

#[tokio::test]
async fn a_damaged_database_is_moved_aside_and_a_later_version_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("warden.redb");
    put(&open(folder.path()), 1).await;
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(&file, b"x".repeat(10_000)).unwrap();
    let keep = open(folder.path());
    assert_eq!(content(&keep).await.0, []);
    put(&keep, 1).await;
    drop(keep);
    let is_aside = |name: &str| name.starts_with("warden.redb.damaged-");
    let names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().any(|name| is_aside(name)), "{names:?}");

    let database = redb::Database::open(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    let table = redb::TableDefinition::<&str, u64>::new("meta");
    transaction.open_table(table).unwrap().insert("schema", 99).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = open(folder.path()).tail(0, 1).await.unwrap_err().to_string();
    assert!(
        error.contains("its version is 99, written by a newer evenkeel; this one supports up to 1"),
        "{error}"
    );
}

#[tokio::test]
async fn a_new_store_continues_the_revisions_of_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let revision = async || {
        let keep = open(folder.path());
        keep.swap("x", 0, b"1".to_vec()).await.unwrap().unwrap()
    };
    let before = revision().await;
    fs::remove_file(folder.path().join("warden.redb")).unwrap();
    let after = revision().await;
    assert!(before < after && after < 1 << 53, "{before} {after}: a browser can hold it");
}

#[tokio::test]
async fn a_second_store_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keep = open(folder.path());
    let Err(refused) = Embedded::open(folder.path(), Arc::new(SystemClock)) else {
        panic!("two stores have it")
    };
    assert!(refused.to_string().starts_with("api.state_path: /"), "{refused}");
    drop(keep);
    open(folder.path());
}

/// Something other than a folder is at the folder's path for a while.
#[tokio::test]
async fn while_the_store_is_away_agents_are_asked_to_retry_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("blocked");
    fs::write(&blocked, "").unwrap();
    fs::write(folder.path().join("blocked.before"), "").unwrap();
    let path = blocked.join("state");
    let warden = TestWarden::with_store(Arc::new(open(&path)));
    let refusal = warden.post(A, &support::entry(1)).await;
    assert_refused(&refusal, 503);
    assert_eq!(header(&refusal, "retry-after"), Some("5"));
    let health = warden.get("/health", "").await;
    assert_eq!((status(&health), body(&health)), (200, r#"{"status":"ok","store":"away"}"#));
    let user = format!("authorization: Bearer {}\r\n", support::API_TOKEN);
    assert_refused(&warden.get("/history", &user).await, 503);
    assert_eq!(status(&warden.get("/machines", &user).await), 200);
    let metrics = warden.get("/metrics", &user).await;
    assert!(metrics.contains("evenkeel_warden_store_up 0"), "{metrics}");
    assert!(metrics.contains("refused_requests_total{reason=\"store_away\"} 1"), "{metrics}");

    fs::remove_file(&blocked).unwrap();
    assert_eq!(status(&warden.post(A, &support::entry(1)).await), 200);
    let store = warden.collector.store_state();
    eventually("the store is back", || store.borrow().error().is_none()).await;
    assert_eq!(body(&warden.get("/health", "").await), r#"{"status":"ok"}"#);
    let page: Value = serde_json::from_str(body(&warden.get("/history", &user).await)).unwrap();
    assert_eq!(page["entries"].as_array().unwrap().len(), 1);
    warden.finish().await;
}
