//! Limits on what stalling clients can cost: the memory held for them is bounded, and other clients are still served.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::tests::{LARGE, TIMEOUT, TestServer, assert_error, body, header, read_until, rest, status};
use super::*;
use crate::testing::wait_for_async;

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    wait_for_async(what, async || if holds() { Ok(()) } else { Err("not yet".to_owned()) }).await;
}

async fn write(server: &TestServer, text: &[u8]) -> TcpStream {
    let mut stream = server.connect().await;
    stream.write_all(text).await.unwrap();
    stream
}

#[tokio::test]
async fn an_endpoint_that_ignores_bodies_answers_without_them_and_keeps_none() {
    let server = TestServer::start(Limits::default());
    let mut stalled = Vec::new();
    for _ in 0..100 {
        let head = "POST /ignores HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n";
        stalled.push(write(&server, [head.as_bytes(), &[b'x'; 10_000]].concat().as_slice()).await);
    }
    // No client sent a complete body, and every client gets a response.
    for mut stream in stalled {
        let answer = rest(&mut stream).await;
        assert_eq!((status(&answer), body(&answer)), (200, "\"ok\""));
        assert_eq!(header(&answer, "connection"), Some("close"));
    }
    assert_eq!(server.bodies.held(), 0);
    // A complete body keeps the connection open.
    let kept = "POST /ignores HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc\
        GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answers = rest(&mut write(&server, kept.as_bytes()).await).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    server.finish().await;
}

#[tokio::test]
async fn a_chunked_body_that_an_endpoint_ignores_is_limited_too() {
    let limits = Limits { body_bytes: 1000, body_time: Duration::from_millis(200), ..Limits::default() };
    let server = TestServer::start(limits);
    let post = |chunks: usize, end: &str| {
        let head = "POST /ignores HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = format!("64\r\n{}\r\n", "x".repeat(100));
        format!("{head}{}{end}", chunk.repeat(chunks))
    };
    let last = "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    // A body within the limit keeps the connection open.
    let answers = rest(&mut write(&server, post(10, &format!("0\r\n\r\n{last}")).as_bytes()).await).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    // Three times the limit without an end: rejected as soon as it exceeds the limit.
    let answer = rest(&mut write(&server, post(30, "").as_bytes()).await).await;
    assert_error(&answer, 413);
    assert_eq!(header(&answer, "connection"), Some("close"));
    assert_error(&rest(&mut write(&server, post(1, "").as_bytes()).await).await, 408);
    assert_error(&rest(&mut write(&server, post(1, "zz\r\n").as_bytes()).await).await, 400);
    assert_eq!(server.bodies.held(), 0);
    server.finish().await;
}

#[tokio::test]
async fn requests_rejected_by_their_head_do_not_have_their_body_read() {
    let server = TestServer::start(Limits::default());
    for (target, host, code) in [
        ("POST /status/a", "evil.test", 403),
        ("POST /none", "localhost", 404),
        ("PUT /status/a", "localhost", 405),
        ("POST /status/%", "localhost", 400),
    ] {
        let head = format!("{target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000\r\n\r\nabc");
        let answer = rest(&mut write(&server, head.as_bytes()).await).await;
        assert_error(&answer, code);
        assert_eq!(header(&answer, "connection"), Some("close"));
    }
    assert_eq!(server.bodies.held(), 0);
    server.finish().await;
}

#[tokio::test]
async fn stalled_bodies_hold_no_more_than_their_budget_and_others_may_retry() {
    // The budget of the test server is 4,000 bytes.
    let server = TestServer::start(Limits { body_bytes: 1000, ..Limits::default() });
    let start = "POST /status/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n";
    let part = [start.as_bytes(), &[b'x'; 999]].concat();
    let mut stalled = Vec::new();
    for _ in 0..4 {
        stalled.push(write(&server, &part).await);
    }
    eventually("four bodies", || server.bodies.held() > 3900).await;
    for _ in 0..50 {
        let refusal = rest(&mut write(&server, &part).await).await;
        assert!(matches!(status(&refusal), 429 | 503), "{refusal}");
        assert!(header(&refusal, "retry-after").is_some(), "{refusal}");
        assert!(server.bodies.held() <= 4000);
    }
    assert_eq!(status(&server.ask("GET", "/health").await), 200);
    for stream in &mut stalled {
        stream.write_all(b"x").await.unwrap();
        read_until(stream, "[\"a\",[],1000,\"127.0.0.1\"]").await;
    }
    eventually("free budget", || server.bodies.held() == 0).await;
    server.finish().await;
}

#[tokio::test]
async fn stalled_connections_make_room_for_new_requests() {
    let server = TestServer::start(Limits { connections: 20, connections_per_peer: 10, ..Limits::default() });
    let mut stalled = Vec::new();
    for number in 0..50 {
        let text = match number % 3 {
            0 => "",
            1 => "GET /status HT",
            _ => "POST /status/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc",
        };
        stalled.push(write(&server, text.as_bytes()).await);
        assert_eq!(status(&server.ask("GET", "/health").await), 200, "after {number}");
    }
    for stream in &mut stalled[..30] {
        assert_eq!(rest(stream).await, "", "closed by the server");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_new_connection_gets_503_while_all_others_are_busy() {
    let server = TestServer::start(Limits { connections: 2, ..Limits::default() });
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = write(&server, b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        read_until(&mut stream, "tick").await;
        streams.push(stream);
    }
    let refusal = server.send("").await;
    assert_error(&refusal, 503);
    assert!(header(&refusal, "retry-after").is_some());
    assert_eq!(header(&refusal, "x-content-type-options"), Some("nosniff"));
    drop(streams);
    wait_for_async("a free slot", async || match status(&server.ask("GET", "/status").await) {
        200 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    server.finish().await;
}

/// Responses of 4 MiB each to clients that read nothing; the budget holds three of them.
#[tokio::test]
async fn unread_responses_are_dropped_and_other_clients_are_served() {
    let server = TestServer::start(Limits { unsent_bytes: 3 * LARGE, ..Limits::default() });
    let mut readers = Vec::new();
    for _ in 0..40 {
        readers.push(write(&server, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").await);
        let served = server.ask("GET", "/large").await;
        assert_eq!(body(&served).len(), LARGE);
    }
    let mut whole = 0;
    for reader in &mut readers {
        whole += usize::from(body(&rest_within(reader).await).len() == LARGE);
    }
    // Of each closed connection only the socket buffers and the pieces in transit remain.
    assert!(whole <= 4, "{whole} answers were held");
    server.finish().await;
}

/// Reads the rest from a connection that stays open, up to a complete large response.
async fn rest_within(stream: &mut TcpStream) -> String {
    use tokio::io::AsyncReadExt;
    let mut bytes = vec![0; 64 * 1024];
    let mut text = String::new();
    while let Ok(Ok(count @ 1..)) = tokio::time::timeout(TIMEOUT, stream.read(&mut bytes)).await {
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        if body(&text).len() >= LARGE {
            break;
        }
    }
    text
}

#[tokio::test]
async fn a_stream_client_that_reads_nothing_is_disconnected() {
    let limits = Limits { write_time: Duration::from_millis(300), ..Limits::default() };
    let server = TestServer::start(limits);
    let _reader = write(&server, b"GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    eventually("the stream", || server.streams.taken() == 1).await;
    eventually("its end", || server.streams.taken() == 0).await;
    // The stream of a client that reads continues for much longer.
    let mut reader = write(&server, b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    for _ in 0..50 {
        read_until(&mut reader, "tick").await;
    }
    assert_eq!(server.streams.taken(), 1);
    server.finish().await;
}

#[tokio::test]
async fn a_response_has_a_time_limit_although_its_client_reads_on() {
    let server = TestServer::start(Limits { answer_time: Duration::from_millis(300), ..Limits::default() });
    let mut reader = write(&server, b"GET /huge HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    // The client keeps reading slowly, so that no write stalls.
    let mut took = 0;
    let mut buffer = [0; 64];
    while let Ok(count @ 1..) = tokio::io::AsyncReadExt::read(&mut reader, &mut buffer).await {
        took += count;
        tokio::time::sleep(Duration::from_millis(1)).await;
        if took > LARGE {
            break;
        }
    }
    assert!(took < LARGE, "the connection was not closed");
    server.finish().await;
}
