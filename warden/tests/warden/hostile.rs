//! Hostile and broken clients: floods, stalled and malformed bodies, slow connections.

use std::time::Duration;

use evenkeel_warden::fleet::entry as parser;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::support::{
    A, API_TOKEN, B, TestWarden, assert_refused, count, entry, eventually, header, post, status,
};

/// An agent with a valid token that opens requests and never completes them.
#[tokio::test]
async fn an_agent_that_floods_the_warden_is_throttled_and_does_not_starve_others() {
    let warden = TestWarden::start();
    let whole = post(&format!("authorization: Bearer {A}\r\nconnection: close\r\n"), &entry(1));
    let (first, last) = whole.split_at(whole.len() - 1);
    let mut flood = Vec::new();
    for _ in 0..16 {
        let mut client = warden.connect().await;
        client.write(first.as_bytes()).await;
        flood.push(client);
    }
    let start = Instant::now();
    while warden.requests.taken() < 16 {
        assert!(start.elapsed() < Duration::from_mins(1), "{} places are taken", warden.requests.taken());
        sleep(Duration::from_millis(10)).await;
    }
    let refusal = warden.post(A, &entry(1)).await;
    assert_refused(&refusal, 429);
    assert_eq!(header(&refusal, "retry-after"), Some("1"));
    assert_eq!(status(&warden.post(B, &entry(1)).await), 200, "each agent has its own limit");
    let metrics = warden.get("/metrics", &format!("authorization: Bearer {API_TOKEN}\r\n")).await;
    assert!(metrics.contains("refused_requests_total{reason=\"too_many\"} 1"), "{metrics}");
    assert_eq!(count(&warden, 0), 0);
    for mut client in flood {
        client.write(last.as_bytes()).await;
        assert_eq!(status(&client.rest().await), 200);
    }
    assert_eq!(status(&warden.post(A, &entry(2)).await), 200, "the permits are free again");
    assert_eq!(count(&warden, 0), 2);
    warden.finish().await;
}

/// Two thousand clients that send a large part of a body and then stall. This once took 3.1 GB.
#[tokio::test]
async fn two_thousand_stalled_bodies_are_not_kept_and_other_clients_are_served() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum.map(|most| most.min(8192)), ..limit })
        .unwrap();
    let warden = TestWarden::start();
    let part = "x".repeat(60_000);
    let mut stalled = Vec::new();
    for number in 0..2000 {
        let head = match number % 4 {
            0 => "POST /logout HTTP/1.1\r\nhost: w\r\n".to_owned(),
            1 => "POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer wrong\r\n".to_owned(),
            2 => format!("POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {B}\r\n"),
            _ => "POST /login HTTP/1.1\r\nhost: w\r\n".to_owned(),
        };
        let mut client = warden.connect().await;
        client.write(format!("{head}content-length: 1000000\r\n\r\n{part}").as_bytes()).await;
        stalled.push(client);
        assert!(warden.bodies.agents.held() <= 4 * 1024 * 1024);
        assert!(warden.bodies.logins.held() <= 16 * 4096);
    }
    assert_eq!(status(&warden.get("/health", "").await), 200);
    let page = warden
        .get(&format!("/?token={API_TOKEN}"), "accept: text/html\r\nx-forwarded-for: 192.0.2.1\r\n")
        .await;
    assert_eq!(status(&page), 200);
    assert_eq!(status(&warden.post(A, &entry(1)).await), 200);
    drop(stalled);
    warden.finish().await;
}

/// A stranger needs no token to send bodies to the login form, and behind a proxy everybody has the same address.
#[tokio::test]
async fn logins_that_stall_keep_no_user_from_freezing_and_no_other_client_from_logging_in() {
    let warden = TestWarden::start();
    let request = |path: &str, headers: &str, body: &str| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nhost: w\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        )
    };
    let whole = request("/login", "", &"x".repeat(4096));
    let mut stalled = Vec::new();
    for number in 1..=64 {
        let mut client = warden.connect().await;
        client.write(&whole.as_bytes()[..whole.len() - 1]).await;
        stalled.push(client);
        let held = 4095 * number.min(16);
        eventually("the body has arrived", || warden.bodies.logins.held() >= held).await;
    }
    let form = format!("token={API_TOKEN}");
    let from_elsewhere = request("/login", "x-forwarded-for: 192.0.2.9\r\n", &form);
    assert_eq!(status(&warden.send(&from_elsewhere).await), 303);
    let user = format!("authorization: Bearer {API_TOKEN}\r\n");
    assert_eq!(status(&warden.send(&request("/thaw", &user, "{}")).await), 200);
    assert_refused(&warden.send(&request("/login", "", &form)).await, 429);
    // Without a token, the body is not read.
    let mut stranger = warden.connect().await;
    stranger.write(b"POST /thaw HTTP/1.1\r\nhost: w\r\ncontent-length: 4096\r\n\r\n{").await;
    assert_refused(&stranger.rest().await, 401);
    drop(stalled);
    warden.finish().await;
}

#[tokio::test]
async fn malformed_and_oversized_bodies_are_refused_without_harm() {
    let warden = TestWarden::start();
    for wrong in ["", "null", "{}", "[]", "[1", "[{}", "{\"timestamp\":", "\u{0}", "{\"timestamp\":\"now\"}"]
    {
        assert_refused(&warden.post(A, wrong).await, 400);
    }
    let large = format!(r#"{{"x":"{}"}}"#, "a".repeat(1024 * 1024));
    assert_refused(&warden.post(A, &large).await, 413);
    // The body of an unauthorized client is not read completely, however long it claims to be.
    let mut stranger = warden.connect().await;
    stranger.write(b"POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer x\r\ncontent-length: 99999999999\r\n\r\nabc").await;
    assert_refused(&stranger.rest().await, 401);
    let mut waiting = warden.connect().await;
    waiting
        .write(b"POST /ingest HTTP/1.1\r\nhost: w\r\nexpect: 100-continue\r\ncontent-length: 100\r\n\r\n")
        .await;
    assert_refused(&waiting.rest().await, 401);
    let chunked = format!(
        "POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {A}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        entry(1).len(),
        entry(1)
    );
    assert_eq!(status(&warden.send(&chunked).await), 200);
    for wrong in ["GET", "PUT", "DELETE"] {
        let answer =
            warden.send(&format!("{wrong} /ingest HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n")).await;
        assert_eq!((status(&answer), header(&answer, "allow")), (405, Some("POST")));
    }
    assert_eq!(count(&warden, 0), 1);
    warden.finish().await;
}

/// What is refused costs as much as what is stored: neither the warden's time nor its log is free.
#[tokio::test]
async fn an_agent_that_sends_what_is_refused_is_throttled() {
    let warden = TestWarden::start();
    let batch = format!("[{}]", vec!["{}"; 500].join(","));
    for n in 0..19 {
        assert_eq!(status(&warden.post(A, &batch).await), 200, "{n}");
    }
    let mut refusals = 0;
    // 500 are left, and 20 more each second.
    let refusal = loop {
        let answer = warden.post(A, "no entry").await;
        if status(&answer) != 400 {
            break answer;
        }
        refusals += 1;
        assert!(refusals < 10_000, "malformed bodies are free");
    };
    assert_refused(&refusal, 429);
    assert!(header(&refusal, "retry-after").is_some(), "{refusal}");
    assert!(refusals >= 500, "{refusals}");
    assert_refused(&warden.post(A, &batch).await, 429);
    assert_eq!(status(&warden.post(B, &entry(1)).await), 200, "each agent has its own limit");
    let metrics = warden.get("/metrics", &format!("authorization: Bearer {API_TOKEN}\r\n")).await;
    // All that were rejected, and the two requests that got 429.
    let malformed = format!("refused_requests_total{{reason=\"malformed\"}} {}", 20 * 500 + refusals + 1);
    assert!(metrics.contains(&malformed), "{malformed}: {metrics}");
    warden.finish().await;
}

#[tokio::test]
async fn an_agent_that_asks_for_the_decisions_without_pause_is_throttled() {
    let warden = TestWarden::start();
    let ask = |token: &str| format!("authorization: Bearer {token}\r\n");
    let mut throttled = 0;
    for _ in 0..200 {
        let answer = warden.get("/fleet", &ask(A)).await;
        if status(&answer) == 429 {
            assert_refused(&answer, 429);
            assert!(header(&answer, "retry-after").is_some(), "{answer}");
            throttled += 1;
        } else {
            assert_eq!(status(&answer), 200, "{answer}");
        }
    }
    assert!(throttled > 0);
    assert_eq!(status(&warden.get("/fleet", &ask(B)).await), 200, "each agent has its own limit");
    warden.finish().await;
}

#[tokio::test]
async fn slow_clients_do_not_block_others() {
    let mut limits = evenkeel_warden::http::limits();
    limits.header_time = Duration::from_millis(300);
    limits.body_time = Duration::from_millis(300);
    let warden = TestWarden::with(limits);
    let mut heads = Vec::new();
    let mut bodies = Vec::new();
    for _ in 0..200 {
        let mut head = warden.connect().await;
        head.write(b"POST /ingest HTTP/1.1\r\nhost").await;
        heads.push(head);
        let mut body = warden.connect().await;
        body.write(format!("POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {B}\r\ncontent-length: 50\r\n\r\n{{").as_bytes()).await;
        bodies.push(body);
    }
    for seq in 1..=20 {
        assert_eq!(status(&warden.post(A, &entry(seq)).await), 200);
    }
    for mut head in heads {
        assert_eq!(head.rest().await, "", "a connection with a slow head is closed");
    }
    let mut cut = 0;
    for mut body in bodies {
        let answer = body.rest().await;
        // The warden waits for this many requests of one agent; the others are refused at once.
        let code = if status(&answer) == 408 { 408 } else { 429 };
        assert_refused(&answer, code);
        cut += usize::from(code == 408);
    }
    assert!(cut >= 16, "{cut}");
    warden.finish().await;
}

/// Randomly mutated and truncated bodies: each is stored or refused, and the warden keeps running.
#[tokio::test]
async fn no_body_crashes_the_warden() {
    let warden = TestWarden::start();
    let good = json!({
        "timestamp": "2026-01-02T03:04:05Z", "machine": "m", "service": "web", "event": "updated", "message": "é\u{1f600}",
        "level": "info", "old_digest": "sha256:a", "reason": "r", "output": "o", "seq": 7, "x": [{"y": 1.5e300}],
    })
    .to_string()
    .into_bytes();
    let mut seed = 7u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let pieces: [&[u8]; 14] = [
        b"\"",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b"\xff\xfe",
        b"-",
        b"1e999",
        b"null",
        b":",
        b",",
    ];
    let mut entries = 0;
    let mut batch = Vec::new();
    for _ in 0..200_000 {
        let mut text = good.clone();
        for _ in 0..=next(4) {
            let at = next(text.len());
            match next(4) {
                0 => text.truncate(at + 1),
                1 => text[at] = u8::try_from(next(256)).unwrap(),
                2 => {
                    text.splice(at..at, pieces[next(pieces.len())].iter().copied());
                }
                _ => {
                    text.remove(at);
                    if text.is_empty() {
                        text.push(b'x');
                    }
                }
            }
        }
        if let Ok(entry) = parser::parse(&text, "a") {
            assert_eq!(entry.agent, "a");
            batch.push(entry);
            entries += 1;
        }
        if batch.len() == 500 {
            warden.collector.store(std::mem::take(&mut batch)).await.unwrap();
        }
    }
    warden.collector.store(batch).await.unwrap();
    assert!(entries > 1000, "{entries}");
    assert_eq!(status(&warden.post(B, &entry(1)).await), 200);
    warden.finish().await;
}
