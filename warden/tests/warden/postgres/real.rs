//! Real problems of a server: a read-only replica, a full disk, a different clock.

use std::sync::Arc;

use evenkeel_common::clock::TokioClock;
use evenkeel_warden::keep::{Duty, Query};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
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
