//! SIGKILL under load, with the embedded store: no acknowledged entry is lost.

use std::thread;

use evenkeel_common::testing::wait_for;
use serde_json::{Value, json};

use crate::{PEOPLE, Warden, post};

/// Number of agents that send concurrently, each of them its entries in sequence.
const SENDERS: usize = 6;

/// Number of kills: `$EVENKEEL_TEST_KILLS`.
fn kills() -> u64 {
    std::env::var("EVENKEEL_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

fn token(sender: usize) -> String {
    format!("0123456789abcdef-sender-{sender}")
}

/// Sends entries until one is not acknowledged. Returns the last acknowledged one.
fn send(port: u16, sender: usize, mut last: u64) -> u64 {
    while post(port, &token(sender), last + 1).is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
        last += 1;
    }
    last
}

fn last_of(machine: &Value) -> u64 {
    machine["last_seq"].as_u64().unwrap_or(0)
}

/// Agents keep unacknowledged entries, so nothing is lost as long as the acknowledged ones are stored.
#[test]
fn kills_under_load_lose_no_acknowledged_entry() {
    let agent = |n| json!({"id": format!("sender-{n}"), "token": token(n)});
    let mut warden = Warden::of(&(0..SENDERS).map(agent).collect());
    let (mut last, mut acknowledged) = ([0; SENDERS], 0);
    for _ in 0..kills() {
        let port = warden.port;
        let taken: Vec<u64> = thread::scope(|scope| {
            let senders: Vec<_> =
                last.iter().enumerate().map(|(n, last)| scope.spawn(move || send(port, n, *last))).collect();
            wait_for("entries of all senders are acknowledged", || {
                let machines = warden.machines();
                let all = machines.as_array().unwrap().iter().zip(last);
                if all.clone().all(|(machine, last)| last_of(machine) > last + 5) {
                    Ok(())
                } else {
                    Err(machines.to_string())
                }
            });
            warden.signal("-KILL");
            senders.into_iter().map(|sender| sender.join().unwrap()).collect()
        });
        warden.restart();
        let machines = warden.machines();
        for (n, taken) in taken.into_iter().enumerate() {
            let (machine, stored) = (&machines[n], last_of(&machines[n]));
            assert_eq!(machine["missing"].as_u64(), Some(0), "{taken} were acknowledged: {machine}");
            // One entry may have been stored without a response.
            assert!((taken..=taken + 1).contains(&stored), "{taken} were acknowledged: {machine}");
            acknowledged += taken - last[n];
            last[n] = stored;
        }
    }
    println!("{acknowledged} acknowledged entries over {} kills", kills());
    assert!(acknowledged >= kills() * 5, "{acknowledged}");
    // Not only counted, but readable as well.
    let history = warden.ask(&format!(
        "GET /history?limit=1&machine=sender-0&token={PEOPLE} HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n"
    ));
    assert!(history.contains(&format!("entry {}\"", last[0])), "{history}");
}
