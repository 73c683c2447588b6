//! Real problems of a server: a read-only replica, a full disk, a different clock.

use std::sync::Arc;

use evenkeel_common::clock::TokioClock;
use evenkeel_warden::keep::{Duty, Query, Retention};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixListener};
use tokio::time::sleep;

use super::{Server, keep, keep_by};
use crate::support::{self, A, API_TOKEN, TestWarden, assert_refused, body, eventually, header, status};

const READ_ONLY: &str = "PostgreSQL is read-only (a replica, or default_transaction_read_only is on); store.url must name the primary";

async fn entries(warden: &TestWarden) -> Vec<u64> {
    let user = format!("authorization: Bearer {API_TOKEN}\r\n");
    let page: Value = serde_json::from_str(body(&warden.get("/history?limit=500", &user).await)).unwrap();
    let entries = page["entries"].as_array().unwrap_or_else(|| panic!("{page}")).iter();
    let mut found: Vec<u64> = entries.filter_map(|entry| entry["seq"].as_u64()).collect();
    found.sort_unstable();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_refused_until_it_is_promoted_to_primary() {
    let server = Server::start();
    let primary = TestWarden::with_store(server.keep());
    assert_eq!(status(&primary.post(A, &support::entry(1)).await), 200);
    primary.finish().await;
    let standby = server.standby();
    let warden = TestWarden::with_store(keep(&standby));
    let refusal = warden.post(A, &support::entry(2)).await;
    assert_refused(&refusal, 503);
    assert_eq!(header(&refusal, "retry-after"), Some("5"));
    let store = warden.collector.store_state();
    eventually("the reason", || store.borrow().error() == Some(READ_ONLY)).await;
    assert_eq!(status(&warden.get("/health", "").await), 200);
    assert_eq!(server.sql("SELECT count(*) FROM evenkeel.entries").await, "1");

    // It is promoted: the entries kept by the agent are stored, and none twice.
    server.tell("stop");
    let (client, connection) = tokio_postgres::connect(&standby, tokio_postgres::NoTls).await.unwrap();
    let tasks = evenkeel_common::supervisor::TaskSet::new();
    tasks.spawn("connection", async {
        let _ = connection.await;
    });
    client.simple_query("SELECT pg_promote()").await.unwrap();
    eventually("the store is back", || store.borrow().error().is_none()).await;
    for seq in [1, 2] {
        assert_eq!(status(&warden.post(A, &support::entry(seq)).await), 200);
    }
    assert_eq!(entries(&warden).await, [1, 2]);
    warden.finish().await;
}

/// The server has no socket of its own, so this one leads to its port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_through_a_unix_socket_and_by_its_address_alone() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let port = server.port;
    let socket = UnixListener::bind(folder.path().join(format!(".s.PGSQL.{port}"))).unwrap();
    let tasks = evenkeel_common::supervisor::TaskSet::new();
    let connections = tasks.clone();
    tasks.spawn("socket", async move {
        while let Ok((mut client, _)) = socket.accept().await {
            connections.spawn("connection", async move {
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let host = folder.path().to_str().unwrap().replace('/', "%2F");
    let address =
        format!("postgres:///postgres?user=evenkeel&password=secret&hostaddr=127.0.0.1&port={port}");
    for url in [format!("postgres://evenkeel:secret@{host}:{port}/postgres?sslmode=require"), address] {
        assert_eq!(keep(&url).usage().await.unwrap().entries, 0, "{url}");
    }
}

/// A large entry.
fn large(seq: u64) -> String {
    json!({"timestamp": "2026-01-02T03:04:05Z", "service": "web", "event": "updated", "message": "m", "level": "info",
        "epoch": "e", "seq": seq, "output": format!("{seq} ").repeat(4096)})
    .to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_no_entry() {
    if !rustix::process::getuid().is_root() {
        eprintln!(
            "only root can give a server its own disk: only the warden's handling of the error is tested"
        );
        return;
    }
    let server = Server::with(&["--disk", "120"]);
    let warden = TestWarden::with_store(server.keep());
    assert_eq!(status(&warden.post(A, &large(1)).await), 200);
    server.tell("fill");
    let mut stored = 1;
    let refusal = loop {
        let answer = warden.post(A, &large(stored + 1)).await;
        if status(&answer) != 200 {
            break answer;
        }
        stored += 1;
        assert!(stored < 2000, "the disk is never full");
    };
    assert_refused(&refusal, 503);
    assert_eq!(header(&refusal, "retry-after"), Some("5"));
    let store = warden.collector.store_state();
    eventually("the reason", || store.borrow().error() == Some("PostgreSQL's disk is full")).await;
    // Stored entries can be read, and nothing of the refused batch was stored.
    assert_eq!(entries(&warden).await, (1..=stored).collect::<Vec<_>>());
    server.tell("free");
    for seq in stored..stored + 5 {
        while status(&warden.post(A, &large(seq)).await) != 200 {
            sleep(std::time::Duration::from_millis(100)).await;
        }
    }
    assert_eq!(entries(&warden).await, (1..stored + 5).collect::<Vec<_>>());
    let found = server.keep().history(&Query::default()).await.unwrap().entries.len();
    assert!(found > 4, "{found}");
    warden.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_differs_from_the_servers_is_noticed() {
    let server = Server::start();
    for off in [-3600, 0, 120] {
        let clock = TokioClock::starting_at(Timestamp::now() + SignedDuration::from_secs(off));
        let keep = keep_by(&server.text(), Arc::new(clock));
        assert_eq!(keep.clock_ahead(), None);
        // Measured when connecting, and when claiming a duty.
        for duty in [None, Some(Duty::Heartbeat)] {
            match duty {
                None => drop(keep.usage().await.unwrap()),
                Some(duty) => drop(keep.hold(duty).await.unwrap()),
            }
            let ahead = keep.clock_ahead().unwrap().as_secs();
            assert!((off - 5..=off + 5).contains(&ahead), "{off} s: {ahead} s");
        }
    }
}

/// The tables of the first version know of no agents. What they hold is attributed by the retention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_entries_of_an_earlier_version_are_retained_per_agent() {
    const FIRST: &str = include_str!("../../../src/keep/postgres/schema.sql");
    let server = Server::start();
    server.sql(&format!("CREATE SCHEMA evenkeel; {FIRST}; UPDATE evenkeel.meta SET schema = 1")).await;
    // Two of a quiet agent, one of whose messages looks like the end of another entry, and 100 of a loud one.
    let line = |agent: &str, message: &str| {
        json!({"timestamp": "2026-01-02T03:04:05Z", "machine": "m", "service": "web", "event": "updated",
            "message": message, "level": "info"})
        .to_string()
        .replace('}', &format!(r#","agent":"{agent}"}}"#))
    };
    let quiet = [line("quiet", "first"), line("quiet", r#""agent":"loud""#)];
    let loud = std::iter::repeat_n(line("loud", "again"), 100);
    let begin = 1_000_000;
    for (id, line) in (begin..).zip(quiet.into_iter().chain(loud)) {
        let now = Timestamp::now().as_microsecond();
        server
            .sql(&format!(
                "INSERT INTO evenkeel.entries (id, arrived, at, size, machine, service, event, level, line) VALUES \
                 ({id}, {now}, 0, {}, 'm', 'web', 'updated', 'info', '{line}')",
                line.len()
            ))
            .await;
    }
    server
        .sql(
            "UPDATE evenkeel.meta SET next_id = 1000102, entries = 102, \
             bytes = (SELECT sum(size) FROM evenkeel.entries)",
        )
        .await;
    let keep = server.keep();
    let all = Retention { days: 90, bytes: 1 << 30 };
    assert_eq!(keep.retain(all, Timestamp::now()).await.unwrap(), 0);
    assert_eq!(server.sql("SELECT agents_from FROM evenkeel.meta").await, "0");
    let owners = "SELECT string_agg(agent || ' ' || count, ', ' ORDER BY agent) FROM \
                  (SELECT agent, count(*) FROM evenkeel.owners GROUP BY agent) AS counted";
    assert_eq!(server.sql(owners).await, "loud 100, quiet 2");
    let few = Retention { days: 90, bytes: 2000 };
    while keep.retain(few, Timestamp::now()).await.unwrap() > 0 {}
    assert!(keep.usage().await.unwrap().bytes <= 2000);
    assert_eq!(server.sql("SELECT count(*) FROM evenkeel.owners WHERE agent = 'quiet'").await, "2");
    let drift = "SELECT count(*) FROM evenkeel.agents AS known WHERE bytes <> \
                 (SELECT coalesce(sum(size), 0) FROM evenkeel.owners AS own WHERE own.agent = known.agent)";
    assert_eq!(server.sql(drift).await, "0");
}
