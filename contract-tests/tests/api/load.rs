//! Hundreds of stalled clients: the agent limits what it holds for them and still serves other clients.
//!
//! The tests only print the agent's memory (`--no-capture`), for `dist/docs/benchmarks.md`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use contract_tests::{Agent, Config, wait_for};
use evenkeel_common::wire::{AuditEntry, Kind, Level};

/// Limit of connections from one address.
const CONNECTIONS: usize = 640;
/// Limit of the total size of responses that clients have not read, in bytes.
const UNSENT: usize = 32 * 1024 * 1024;

fn agent() -> Agent {
    Agent::without_engine("load", |folder| {
        write_audit(&folder.join("audit.jsonl"));
        Config::of([])
    })
}

/// Writes 600 entries with evidence of the maximum length.
fn write_audit(path: &Path) {
    let mut text = String::new();
    for number in 0..600 {
        let at = "2026-01-02T03:04:05Z".parse().expect("a time");
        let mut entry = AuditEntry::new(at, "web", Kind::UPDATED, Level::Info, format!("entry {number}"));
        entry.output = "x".repeat(8 * 1024);
        text += &serde_json::to_string(&entry).expect("an entry is JSON");
        text.push('\n');
    }
    std::fs::write(path, text).expect("the audit file can be written");
}

fn open(agent: &Agent, text: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(agent.address()).expect("the agent listens");
    let _ = stream.write_all(text);
    stream
}

/// Reports whether the agent keeps the connection open, and discards received data.
fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[track_caller]
fn assert_still_serves(agent: &Agent) {
    // The agent has no engine, so it is not healthy.
    assert_eq!(agent.request("GET", "/health").status, 503);
    assert_eq!(agent.request("GET", "/status").status, 200);
    assert_eq!(agent.request("GET", "/ui").status, 200);
    let audit = agent.request("GET", "/audit?limit=500");
    assert_eq!(audit.json().as_array().map(Vec::len), Some(500));
}

#[test]
fn stalled_requests_are_dropped_and_starve_no_other_client() {
    let agent = agent();
    let before = agent.resident();
    let part = "x".repeat(100_000);
    let mut stalled = Vec::new();
    for number in 0..900 {
        let text = match number % 5 {
            0 => String::new(),
            1 => "GET /status HTT".to_owned(),
            2 => {
                format!("POST /trigger HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{part}")
            }
            3 => {
                format!("POST /registry/events HTTP/1.1\r\nHost: r\r\nContent-Length: 1000000\r\n\r\n{part}")
            }
            _ => format!("POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{part}"),
        };
        stalled.push(open(&agent, text.as_bytes()));
        if number % 100 == 99 {
            assert_still_serves(&agent);
        }
    }
    println!("900 stalled requests: {} KiB more", (agent.resident().saturating_sub(before)) >> 10);
    wait_for("the oldest of them to be disconnected", || {
        let open = stalled.iter_mut().map(is_open).filter(|open| *open).count();
        if open <= CONNECTIONS { Ok(()) } else { Err(format!("{open} are open")) }
    });
    assert_still_serves(&agent);
}

#[test]
fn slow_readers_stay_within_the_budget_and_starve_no_other_client() {
    let agent = agent();
    let size = agent.request("GET", "/audit?limit=500").body.len();
    assert!(size > 4_000_000, "{size}");
    let before = agent.resident();
    let mut readers = Vec::new();
    for number in 0..640 {
        readers.push(open(&agent, b"GET /audit?limit=500 HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        if number % 100 == 99 {
            assert_still_serves(&agent);
        }
    }
    assert_still_serves(&agent);
    println!("640 readers of {size} bytes: {} KiB more", (agent.resident().saturating_sub(before)) >> 10);
    // Responses that the agent still holds arrive completely. Of the others, only data in the socket buffers arrives.
    let mut whole = 0;
    for reader in &mut readers {
        reader.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        let (mut length, mut buffer) = (0, vec![0; 256 * 1024]);
        while length < size
            && let Ok(count @ 1..) = reader.read(&mut buffer)
        {
            length += count;
        }
        whole += usize::from(length >= size);
    }
    // Two more responses may be generated while others are read.
    assert!(whole <= UNSENT / size + 2, "{whole} answers of {size} bytes were held");
}
