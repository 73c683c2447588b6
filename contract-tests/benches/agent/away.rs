//! API latency while entries can't be delivered because the warden's store is unreachable or the warden hangs.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use contract_tests::BackgroundClient;
use serde_json::json;

use crate::live::{PATHS, add_latencies};
use crate::subject::Subject;
use crate::{Table, config, fakes, fleet, folder};

/// Duration of the outage.
const AWAY: Duration = Duration::from_mins(1);
/// Time between two triggers. Each trigger causes two entries.
const TRIGGERS: Duration = Duration::from_millis(100);

/// Starts a fake warden that rejects every request as if its store were unreachable, or never responds. Returns its URL.
fn warden(hangs: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 8192];
                while stream.read(&mut request).is_ok_and(|count| count > 0) {
                    if hangs {
                        continue;
                    }
                    let _ = stream.write_all(
                        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-type: application/json\r\n\
                          connection: close\r\ncontent-length: 24\r\n\r\n{\"error\":\"try it later\"}",
                    );
                    return;
                }
            });
        }
    });
    url
}

/// Measures the API's latency while new entries can't be delivered.
pub(crate) fn warden_away(table: &mut Table) {
    for (what, hangs) in [("the warden's store is away for 60 s", false), ("the warden hangs for 60 s", true)]
    {
        let (projects, folder) = (fleet(50, 1), folder());
        let (host, _) = fakes::registry();
        let socket = folder.path().join("engine.sock");
        fakes::engine(&socket, &host, &projects);
        let push = json!({ "warden_url": warden(hangs), "token": "0123456789abcdef", "machine_id": "bench" });
        let config = config(folder.path(), &host, 3600, &projects).set("push", push);
        let agent = Arc::new(Subject::start(folder.path(), &config, &format!("unix://{}", socket.display())));
        agent.wait_polls(1, Duration::from_millis(50));
        let over = Arc::new(AtomicBool::new(false));
        let (triggered, stop) = (agent.clone(), over.clone());
        let writer = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                triggered.post("/trigger/bench-7");
                std::thread::sleep(TRIGGERS);
            }
        });
        let client = BackgroundClient::start(agent.address(), PATHS);
        std::thread::sleep(AWAY);
        add_latencies(table, what, client);
        over.store(true, Ordering::Relaxed);
        writer.join().expect("triggers are accepted");
    }
}
