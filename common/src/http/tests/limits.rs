//! Limits on the size and duration of requests.

use super::*;

#[tokio::test]
async fn malformed_requests_get_a_response_and_do_no_harm() {
    let server = TestServer::start(Limits::default());
    for odd in [
        "OPTIONS * HTTP/1.1\r\nHost: localhost",
        "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80",
        "GET status HTTP/1.1\r\nHost: localhost",
        "\u{16}\u{3}\u{1}",
        "GET /\u{0} HTTP/1.1\r\nHost: localhost",
        "PRI * HTTP/2.0\r\n\r\nSM",
    ] {
        let answer = server.send(&format!("{odd}\r\nConnection: close\r\n\r\n")).await;
        assert!((400..500).contains(&status(&answer)), "{odd:?}: {answer}");
    }
    assert_eq!(status(&server.ask("GET", "/status").await), 200);
    server.finish().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413_however_it_is_sent() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    let server = TestServer::start(limits);
    let post = |more: &str, body: &str| {
        format!("POST /status/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n\r\n{body}")
    };
    let fitting = server.send(&post("Content-Length: 1000", &"x".repeat(1000))).await;
    assert_eq!(body(&fitting), r#"["a",[],1000,"127.0.0.1"]"#);
    let chunks = |count: usize| {
        "64\r\n".to_owned() + &vec!["x".repeat(100); count].join("\r\n64\r\n") + "\r\n0\r\n\r\n"
    };
    let chunked = server.send(&post("Transfer-Encoding: chunked", &chunks(10))).await;
    assert_eq!(body(&chunked), r#"["a",[],1000,"127.0.0.1"]"#);
    assert_error(&server.send(&post("Content-Length: 1001", &"x".repeat(1001))).await, 413);
    assert_error(&server.send(&post("Content-Length: 3000000", &"x".repeat(3_000_000))).await, 413);
    assert_error(&server.send(&post("Transfer-Encoding: chunked", &chunks(11))).await, 413);
    assert_error(&server.send(&post("Content-Length: 5000\r\nExpect: 100-continue", "")).await, 413);
    let get = format!(
        "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1001\r\n\r\n{}",
        "x".repeat(1001)
    );
    assert_error(&server.send(&get).await, 413);
    server.finish().await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_408_and_a_broken_one_400() {
    let limits = Limits { body_time: Duration::from_millis(200), ..Limits::default() };
    let server = TestServer::start(limits);
    let head = "POST /status/a HTTP/1.1\r\nHost: localhost\r\n";
    assert_error(&server.send(&format!("{head}Content-Length: 10\r\n\r\nabc")).await, 408);
    let broken = server.send(&format!("{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n")).await;
    assert_eq!(status(&broken), 400);
    server.finish().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let server = TestServer::start(Limits::default());
    let large = |size| {
        format!(
            "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: {}\r\n\r\n",
            "x".repeat(size)
        )
    };
    assert_eq!(status(&server.send(&large(15_000)).await), 200);
    let many = format!("GET /status HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(200));
    for refused in [large(17_000), large(1_000_000), many] {
        let answer = server.send(&refused).await;
        assert_error(&answer, 431);
        assert_eq!(header(&answer, "x-frame-options"), Some("DENY"), "{answer}");
        assert_eq!(header(&answer, "cache-control"), Some("no-store"), "{answer}");
    }
    let target = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(70_000));
    let answer = server.send(&target).await;
    assert_error(&answer, status(&answer));
    server.finish().await;
}

#[tokio::test]
async fn a_slow_head_times_out_while_an_idle_connection_may_wait_longer() {
    let limits =
        Limits { header_time: Duration::from_millis(300), idle: Duration::from_secs(6), ..Limits::default() };
    let server = TestServer::start(limits);
    for first in ["", "GET /status HT"] {
        let start = Instant::now();
        assert_eq!(server.send(first).await, "");
        assert!(
            start.elapsed() >= Duration::from_millis(290) && start.elapsed() < Duration::from_millis(5500)
        );
    }
    // Sending byte by byte does not extend the limit.
    let mut trickle = server.connect().await;
    let start = Instant::now();
    while trickle.write_all(b"G").await.is_ok() && start.elapsed() < TIMEOUT {
        sleep(Duration::from_millis(50)).await;
    }
    assert!(start.elapsed() < Duration::from_millis(5500));
    let request = "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut kept = server.connect().await;
    for _ in 0..2 {
        kept.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut kept, "\"ok\"").await;
        sleep(Duration::from_millis(700)).await;
    }
    // A head that begins after an idle period has the same time limit.
    let start = Instant::now();
    kept.write_all(b"GET /sta").await.unwrap();
    rest(&mut kept).await;
    assert!(start.elapsed() < Duration::from_millis(5500));
    let mut idle = server.connect().await;
    idle.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut idle, "\"ok\"").await;
    let start = Instant::now();
    rest(&mut idle).await;
    assert!(start.elapsed() >= Duration::from_millis(5900));
    // A response may take longer than a head.
    assert_eq!(body(&server.ask("GET", "/slow").await), "\"slow\"");
    server.finish().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = TestServer::start(Limits::default());
    let get = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n");
    let text = get("/status/a", "")
        + &get("/slow", "")
        + &get("/none", "")
        + &get("/status/b", "Connection: close\r\n");
    let answers = server.send(&text).await;
    let at = |text: &str| answers.find(text).unwrap_or_else(|| panic!("no {text} in {answers}"));
    assert!(at("[\"a\"") < at("\"slow\"") && at("\"slow\"") < at("404") && at("404") < at("[\"b\""));
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 4);
    server.finish().await;
}
