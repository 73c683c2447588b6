//! Tests of the server over real sockets.

mod base_path;
mod limits;

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use warp::Reply;

use super::*;
use crate::supervisor::TaskSet;

pub(super) const TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Clone)]
struct State {
    streams: Limiter,
    stop: CancellationToken,
}

async fn echo(_: State, request: Request) -> Response {
    let mut query: Vec<_> = request.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    query.sort();
    let peer = request.arrival.peer.ip().to_string();
    json(StatusCode::OK, &(request.param("name"), query, request.body.len(), peer))
}

async fn plain(_: State, _: Request) -> Response {
    json(StatusCode::OK, "ok")
}

async fn slow(_: State, _: Request) -> Response {
    sleep(Duration::from_millis(400)).await;
    json(StatusCode::OK, "slow")
}

async fn broken(_: State, _: Request) -> Response {
    panic!("a bug")
}

/// A stream that never ends by itself and ignores the shutdown.
async fn endless(state: State, request: Request) -> Response {
    let permit = match state.streams.admit(request.arrival.peer.ip()) {
        Ok(permit) => permit,
        Err(refusal) => return refusal,
    };
    let ticks = stream::unfold(permit, |permit| async move {
        sleep(Duration::from_millis(20)).await;
        Some((Ok::<_, std::io::Error>(Bytes::from_static(b"tick\n")), permit))
    });
    warp::reply::stream(ticks).into_response()
}

/// A stream that sends as much as the client reads.
async fn flood(state: State, request: Request) -> Response {
    let permit = match state.streams.admit(request.arrival.peer.ip()) {
        Ok(permit) => permit,
        Err(refusal) => return refusal,
    };
    let parts = stream::unfold(permit, |permit| async move {
        Some((Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 8192])), permit))
    });
    warp::reply::stream(parts).into_response()
}

/// A well-behaved stream: it ends on shutdown.
async fn polite(state: State, _: Request) -> Response {
    let ticks = stream::repeat(()).then(|()| async {
        sleep(Duration::from_millis(20)).await;
        Ok::<_, std::io::Error>(Bytes::from_static(b"tick\n"))
    });
    warp::reply::stream(ticks.take_until(state.stop.cancelled_owned())).into_response()
}

/// More than the buffers of a connection can hold.
async fn huge(_: State, _: Request) -> Response {
    Response::new(vec![b'x'; 4 * LARGE].into())
}

pub(super) const LARGE: usize = 4 * 1024 * 1024;

async fn large(_: State, _: Request) -> Response {
    Response::new(vec![b'x'; LARGE].into())
}

async fn page(_: State, _: Request) -> Response {
    let mut page = warp::reply::html("<p>").into_response();
    page.headers_mut().insert("content-security-policy", "default-src 'self'".parse().unwrap());
    page
}

pub(super) struct TestServer {
    pub(super) at: SocketAddr,
    stop: CancellationToken,
    pub(super) streams: Limiter,
    pub(super) bodies: Bodies,
    tasks: TaskSet,
}

impl TestServer {
    pub(super) fn start(limits: Limits) -> Self {
        Self::below("", limits)
    }

    pub(super) fn below(base: &str, limits: Limits) -> Self {
        let stop = CancellationToken::new();
        let streams = Limiter::new(3, 2);
        let bodies = Bodies::new(limits.body_bytes, 4000, 4000);
        let filter = Routes::new(State { streams: streams.clone(), stop: stop.clone() })
            .route(Method::GET, "/", plain)
            .route(Method::GET, "/status", plain)
            .route(Method::GET, "/status/{name}", echo)
            .route_with_body(
                Method::POST,
                "/status/{name}",
                &bodies,
                |_, _, arrival| Ok(Admitted::as_peer(arrival)),
                echo,
            )
            .route(Method::POST, "/ignores", plain)
            .route(Method::DELETE, "/blocked/{name}", echo)
            .route(Method::GET, "/health", plain)
            .route(Method::GET, "/slow", slow)
            .route(Method::GET, "/broken", broken)
            .route(Method::GET, "/endless", endless)
            .route(Method::GET, "/polite", polite)
            .route(Method::GET, "/page", page)
            .route(Method::GET, "/large", large)
            .route(Method::GET, "/huge", huge)
            .route(Method::GET, "/flood", flood)
            .below(BasePath::parse(base).unwrap())
            .into_filter(Guard::new(&[]).pages(&["/", "/page"]), limits);
        let listeners: Vec<TcpListener> = bind(&["127.0.0.1:0".to_owned()]).unwrap();
        let at = listeners[0].local_addr().unwrap();
        let tasks = TaskSet::new();
        tasks.spawn("server", serve(listeners, filter, limits, stop.clone()));
        Self { at, stop, streams, bodies, tasks }
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.at).await.unwrap()
    }

    /// Sends text on a new connection and reads until the server closes it.
    pub(super) async fn send(&self, text: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        rest(&mut stream).await
    }

    /// Sends one request with a valid Host.
    pub(super) async fn ask(&self, method: &str, path: &str) -> String {
        self.send(&format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await
    }

    pub(super) async fn finish(self) -> Duration {
        let start = Instant::now();
        self.stop.cancel();
        assert!(self.tasks.finish(TIMEOUT).await, "the server did not stop");
        start.elapsed()
    }
}

pub(super) async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // A reset after the response counts as the end of the connection.
    assert!(read.is_ok(), "the connection was not closed; got so far: {text}");
    text
}

/// Reads until `wanted` has arrived.
pub(super) async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains(wanted) {
        let count = timeout(TIMEOUT, stream.read(&mut buffer)).await.expect("in time").unwrap();
        assert!(count > 0, "closed after: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    text
}

pub(super) fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

pub(super) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}

pub(super) fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split_once("\r\n\r\n")?.0;
    head.lines()
        .find_map(|line| line.split_once(": ").filter(|(found, _)| *found == name).map(|(_, value)| value))
}

/// Asserts the format of error responses.
pub(super) fn assert_error(answer: &str, expected: u16) {
    assert_eq!(status(answer), expected, "{answer}");
    assert_eq!(header(answer, "content-type"), Some("application/json"), "{answer}");
    let error: crate::wire::ErrorBody = serde_json::from_str(body(answer)).unwrap();
    assert!(!error.error.is_empty());
}

#[tokio::test]
async fn unknown_paths_are_404_and_other_methods_405_with_allow() {
    let server = TestServer::start(Limits::default());
    for path in ["/none", "/status/", "/status/a/b", "//status", "/health/", "/Status", "/status/a/"] {
        assert_error(&server.ask("GET", path).await, 404);
        assert_error(&server.ask("POST", path).await, 404);
    }
    for (method, path, allow) in [
        ("POST", "/status", "GET, HEAD"),
        ("OPTIONS", "/status", "GET, HEAD"),
        ("DELETE", "/status/web", "GET, HEAD, POST"),
        ("GET", "/blocked/web", "DELETE"),
        ("HEAD", "/blocked/web", "DELETE"),
        ("BREW", "/health", "GET, HEAD"),
    ] {
        let answer = server.ask(method, path).await;
        assert_eq!(status(&answer), 405, "{method} {path}");
        assert_eq!(header(&answer, "allow"), Some(allow), "{answer}");
        if method != "HEAD" {
            assert_error(&answer, 405);
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn head_answers_like_get_without_the_body() {
    let server = TestServer::start(Limits::default());
    let (get, head) = (server.ask("GET", "/status").await, server.ask("HEAD", "/status").await);
    assert_eq!(body(&get), "\"ok\"");
    assert_eq!((status(&head), body(&head)), (200, ""));
    assert_eq!(header(&head, "content-length"), header(&get, "content-length"));
    assert_eq!(header(&head, "content-type"), Some("application/json"));
    assert_eq!(status(&server.ask("HEAD", "/endless").await), 200);
    assert_eq!(server.streams.taken(), 0, "no stream is kept open for HEAD");
    server.finish().await;
}

#[tokio::test]
async fn names_and_queries_are_decoded_and_bad_encoding_is_400() {
    let server = TestServer::start(Limits::default());
    let echoed = async |path: &str| body(&server.ask("GET", path).await).to_owned();
    assert_eq!(echoed("/status/a%2Fb%20c").await, r#"["a/b c",[],0,"127.0.0.1"]"#);
    assert_eq!(
        echoed("/st%61tus/%C3%A4?limit=5&x=a+b%26&limit=6&e").await,
        r#"["ä",["e=","limit=5","x=a b&"],0,"127.0.0.1"]"#
    );
    for path in
        ["/status/%", "/status/%4", "/status/%zz", "/status/%ff", "/status/a?limit=%", "/status/a?limit=%ff"]
    {
        assert_error(&server.ask("GET", path).await, 400);
    }
    server.finish().await;
}

#[tokio::test]
async fn every_response_has_the_security_headers_and_a_page_keeps_its_policy() {
    let server = TestServer::start(Limits::default());
    let answers = [
        server.ask("GET", "/status").await,
        server.ask("GET", "/none").await,
        server.ask("PUT", "/status").await,
        server.ask("GET", "/broken").await,
        server.ask("HEAD", "/endless").await,
        server.send("GET /status HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n").await,
        server.ask("GET", "/page").await,
    ];
    for answer in &answers {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(header(answer, name), Some(value), "{answer}");
        }
        assert!(!answer.contains("access-control-"), "{answer}");
    }
    let (page, others) = answers.split_last().unwrap();
    assert!(
        others.iter().all(|answer| header(answer, "content-security-policy") == Some("default-src 'none'"))
    );
    assert_eq!(header(page, "content-security-policy"), Some("default-src 'self'"));
    server.finish().await;
}

#[tokio::test]
async fn the_host_of_the_request_target_takes_precedence() {
    let server = TestServer::start(Limits::default());
    let host = async |head: &str| {
        let answer = server.send(&format!("{head}\r\nConnection: close\r\n\r\n")).await;
        if status(&answer) >= 400 && !body(&answer).is_empty() {
            assert_error(&answer, status(&answer));
        }
        status(&answer)
    };
    assert_eq!(host("GET /status HTTP/1.1\r\nHost: 127.0.0.1:1").await, 200);
    assert_eq!(host("GET /status HTTP/1.1\r\nHost: evil.test").await, 403);
    assert_eq!(host("GET /health HTTP/1.1\r\nHost: evil.test").await, 200);
    assert_eq!(host("GET /status HTTP/1.1\r\nAccept: */*").await, 403);
    assert_eq!(host("GET /status HTTP/1.0\r\nAccept: */*").await, 200);
    assert_eq!(host("GET http://evil.test/status HTTP/1.1\r\nHost: localhost").await, 403);
    assert_eq!(host("GET http://localhost/status HTTP/1.1\r\nHost: evil.test").await, 200);
    assert_eq!(host("GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil.test").await, 400);
    assert_eq!(host("POST /status/a HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.test").await, 403);
    assert_eq!(host("POST /status/a HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost").await, 200);
    let refusal = server.send("GET /status HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n").await;
    assert!(body(&refusal).contains("api.allowed_hosts"), "{refusal}");
    server.finish().await;
}

#[tokio::test]
async fn a_panic_in_a_handler_is_500_and_the_connection_stays_open() {
    let server = TestServer::start(Limits::default());
    let text = "GET /broken HTTP/1.1\r\nHost: localhost\r\n\r\nGET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answers = server.send(text).await;
    assert_eq!(status(&answers), 500);
    assert!(answers.contains(r#"{"error":"internal error"}"#) && answers.ends_with("\"ok\""), "{answers}");
    server.finish().await;
}

#[tokio::test]
async fn streams_are_limited_and_their_permits_released_when_clients_disconnect() {
    let server = TestServer::start(Limits::default());
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        read_until(&mut stream, "tick").await;
        open.push(stream);
    }
    let refusal = server.ask("GET", "/endless").await;
    assert_error(&refusal, 429);
    assert!(header(&refusal, "retry-after").is_some());
    drop(open);
    let start = Instant::now();
    while server.streams.taken() > 0 {
        assert!(start.elapsed() < TIMEOUT, "still {} permits in use", server.streams.taken());
        sleep(Duration::from_millis(10)).await;
    }
    server.finish().await;
}

#[tokio::test]
async fn shutdown_lets_requests_finish_and_waits_for_nothing_else() {
    let server = TestServer::start(Limits { drain: Duration::from_mins(1), ..Limits::default() });
    let (mut half, mut idle, mut busy, mut polite) =
        (server.connect().await, server.connect().await, server.connect().await, server.connect().await);
    half.write_all(b"GET /status HT").await.unwrap();
    idle.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut idle, "\"ok\"").await;
    polite.write_all(b"GET /polite HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut polite, "tick").await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    sleep(Duration::from_millis(100)).await;
    let at = server.at;
    let took = server.finish().await;
    assert!(rest(&mut busy).await.ends_with("\"slow\""));
    assert!(rest(&mut polite).await.ends_with("0\r\n\r\n"), "the stream is terminated properly");
    rest(&mut idle).await;
    assert_eq!(rest(&mut half).await, "");
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert!(TcpStream::connect(at).await.is_err(), "no longer listening");
}

#[tokio::test]
async fn a_stream_that_ignores_the_shutdown_is_closed_after_the_drain_time() {
    let server = TestServer::start(Limits { drain: Duration::from_millis(300), ..Limits::default() });
    let mut stream = server.connect().await;
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut stream, "tick").await;
    let streams = server.streams.clone();
    let took = server.finish().await;
    assert!(took >= Duration::from_millis(290) && took < Duration::from_mins(1), "{took:?}");
    assert_eq!(streams.taken(), 0);
    rest(&mut stream).await;
}

#[tokio::test]
#[ignore = "exhausts the open files of the whole process, so it must run alone"]
async fn the_server_survives_running_out_of_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let server = TestServer::start(Limits::default());
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(60), ..before }).unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect(server.at).await {
        held.push(stream);
    }
    assert!(held.len() > 10);
    // Closing these frees descriptors for a few clients before the server accepts again.
    sleep(Duration::from_millis(500)).await;
    drop(held);
    assert_eq!(status(&server.ask("GET", "/status").await), 200);
    setrlimit(Resource::Nofile, before).unwrap();
    server.finish().await;
}
