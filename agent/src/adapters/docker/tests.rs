//! Tests against a mock engine with scripted responses: versions, failures, credentials.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wiremock::matchers::{method, path, query_param};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::connection::READ;
use super::transport::AT_ONCE;
use super::*;
use crate::model::{EventKind, NetworkOwner, NetworkOwnerState, State};
use crate::ports::snapshot::Volumes as _;
use crate::ports::survey::Survey as _;

/// Returns fixed credentials and records the requested hosts.
struct Login(Result<Option<DockerCredentials>, String>, Mutex<Vec<String>>);

#[async_trait]
impl PullCredentials for Login {
    async fn login(&self, repository: &Repository) -> Result<Option<DockerCredentials>, String> {
        self.1.lock().push(repository.host.clone());
        self.0.clone()
    }
}

pub(super) async fn server() -> MockServer {
    let server = MockServer::start().await;
    let version =
        ResponseTemplate::new(200).set_body_json(json!({"ApiVersion": "1.41", "MinAPIVersion": "1.12"}));
    Mock::given(method("GET")).and(path("/version")).respond_with(version).mount(&server).await;
    let pong = Mock::given(path(versioned("/_ping"))).respond_with(ResponseTemplate::new(200));
    pong.with_priority(9).mount(&server).await;
    server
}

fn engine_with(server: &MockServer, login: Result<Option<DockerCredentials>, String>) -> DockerEngine {
    let auth = Login(login, Mutex::default());
    DockerEngine::new(Endpoint::Tcp(server.address().to_string()), Arc::new(auth))
}

pub(super) fn engine(server: &MockServer) -> DockerEngine {
    engine_with(server, Ok(None))
}

pub(super) async fn answer(server: &MockServer, at: &str, status: u16, body: &str) {
    let response = ResponseTemplate::new(status).set_body_raw(body.to_owned(), "application/json");
    Mock::given(path(versioned(at))).respond_with(response).up_to_n_times(1).mount(server).await;
}

async fn asked(server: &MockServer, at: &str) -> Vec<Request> {
    let requests = server.received_requests().await.unwrap();
    requests.into_iter().filter(|request| request.url.path() == versioned(at)).collect()
}

/// Every path except `/version` has the version that [`server`] supports.
fn versioned(at: &str) -> String {
    if at == "/version" { at.to_owned() } else { format!("/v1.41{at}") }
}

#[tokio::test]
async fn the_version_is_negotiated_once_and_again_after_the_engine_was_replaced() {
    let server = server().await;
    for _ in 0..2 {
        answer(&server, "/_ping", 200, "OK").await;
    }
    let engine = engine(&server);
    engine.ping().await.unwrap();
    engine.ping().await.unwrap();
    assert_eq!(asked(&server, "/version").await.len(), 1);

    let too_old = r#"{"message":"client version 1.41 is too old. Minimum supported API version is 1.44, please upgrade"}"#;
    answer(&server, "/_ping", 400, too_old).await;
    answer(&server, "/_ping", 200, "OK").await;
    engine.ping().await.unwrap();
    assert_eq!(asked(&server, "/version").await.len(), 2);

    // Plain text, as very old versions send it; and no endless loop.
    for _ in 0..2 {
        answer(
            &server,
            "/_ping",
            400,
            "client version 1.54 is too new. Maximum supported API version is 1.41",
        )
        .await;
    }
    let error = engine.ping().await.unwrap_err();
    assert!(matches!(&error, EngineError::Refused(text) if text.contains("too new")), "{error:?}");
}

#[tokio::test]
async fn an_old_image_is_removed_with_its_tags_unless_it_is_used_or_has_another_name() {
    let id = ImageId("sha256:old".into());
    let tags = ["r.example/web:1.0.1", "nginx:1.0.2"].map(|tag| Reference::parse(tag).unwrap());
    for (named, users, expected) in [
        (vec!["r.example/web:1.0.1", "nginx:1.0.2"], "[]", true),
        (vec![], "[]", true),
        (vec!["r.example/web:1.0.1", "mine:1"], "[]", false),
        (vec!["r.example/web:1.0.3"], "[]", false),
        (vec!["r.example/web:1.0.1"], r#"[{"Id": "c"}]"#, false),
    ] {
        let server = server().await;
        answer(
            &server,
            "/images/sha256:old/json",
            200,
            &json!({"Id": &*id.0, "RepoTags": named}).to_string(),
        )
        .await;
        answer(&server, "/containers/json", 200, users).await;
        let deleted = [
            "/images/r.example/web:1.0.1",
            "/images/docker.io/library/nginx:1.0.2",
            "/images/r.example/web:1.0.3",
            "/images/mine:1",
            "/images/sha256:old",
        ];
        for at in deleted {
            answer(&server, at, 200, "[]").await;
        }
        assert_eq!(engine(&server).remove_image(&id, &tags).await.unwrap(), expected, "{named:?}");
        let mut gone = Vec::new();
        for at in deleted {
            gone.extend((!asked(&server, at).await.is_empty()).then_some(at));
        }
        let wanted = match (expected, named.len()) {
            (true, 2) => vec![deleted[0], deleted[1], deleted[4]],
            (true, _) => vec![deleted[4]],
            (false, _) => vec![],
        };
        assert_eq!(gone, wanted, "{named:?}");
    }
}

/// A connection with a negotiated version and a paused clock, which advances when all tasks are idle.
async fn connection(server: &MockServer) -> Connection {
    let connection = Connection::new(Endpoint::Tcp(server.address().to_string()));
    connection.client().await.unwrap();
    tokio::time::pause();
    connection
}

#[tokio::test]
async fn many_requests_are_sent_a_few_at_a_time_and_all_are_answered() {
    let connection = connection(&server().await).await;
    let (now, most) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
    let question = || {
        connection.read("ask", move |_| async move {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            // So long that the last one waits for its permit far longer than `PERMIT_WAIT`.
            tokio::time::sleep(Duration::from_millis(900)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        })
    };
    let answers = futures_util::future::join_all((0..AT_ONCE * 5).map(|_| question())).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(most.load(Ordering::Relaxed), AT_ONCE);
}

#[tokio::test]
async fn requests_that_hang_do_not_block_others() {
    let connection = connection(&server().await).await;
    let hang = || connection.read("hang", |_| std::future::pending::<Result<(), Error>>());
    let began = tokio::time::Instant::now();
    tokio::select! {
        answers = futures_util::future::join_all((0..AT_ONCE).map(|_| hang())) => unreachable!("{answers:?}"),
        answer = connection.read("ask", |_| std::future::ready(Ok(()))) => answer.unwrap(),
    }
    assert!(began.elapsed() < READ / 5, "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_engine_that_shuts_down_is_unavailable_and_the_version_is_negotiated_again() {
    let server = server().await;
    answer(&server, "/images/x/json", 503, r#"{"message":"shutting down"}"#).await;
    let engine = engine(&server);
    let error = engine.image("x").await.unwrap_err();
    let want = format!("tcp://{}: it answered 503: shutting down", server.address());
    assert_eq!(error, EngineError::Unavailable(want));
    answer(&server, "/images/x/json", 200, r#"{"Id":"sha256:aa","RepoDigests":null}"#).await;
    let image = engine.image("x").await.unwrap().unwrap();
    assert_eq!((image.repo_digests.len(), image.size), (0, 0));
    assert_eq!(asked(&server, "/version").await.len(), 2);
}

#[tokio::test]
async fn a_truncated_response_is_unavailable_and_not_a_missing_image() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
    let serve = async {
        for body in [r#"{"ApiVersion":"1.41"}"#, r#"{"Id":"sha2"#] {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = socket.read(&mut request).await;
            let length = if body.ends_with('}') { body.len() } else { 500 };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
            socket.write_all(head.as_bytes()).await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    let engine = DockerEngine::new(endpoint.clone(), Arc::new(Login(Ok(None), Mutex::default())));
    let error = tokio::select! {
        seen = engine.image("x") => seen.unwrap_err(),
        () = serve => unreachable!("it never ends"),
    };
    assert_eq!(error, EngineError::Unavailable(format!("{endpoint}: connection lost")));
}

/// As systemd does that holds the socket of an engine which is shutting down.
#[tokio::test]
async fn a_ping_is_sent_on_a_connection_of_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
    let answered = async |socket: &mut tokio::net::TcpStream| {
        let mut request = [0; 4096];
        let length = socket.read(&mut request).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n";
        socket.write_all(format!("{head}{{\"ApiVersion\":\"1.41\"}}").as_bytes()).await.unwrap();
        String::from_utf8_lossy(&request[..length]).lines().next().unwrap_or_default().to_owned()
    };
    let serve = async {
        let mut pooled = listener.accept().await.unwrap().0;
        let negotiated = answered(&mut pooled).await;
        let mut own = listener.accept().await.unwrap().0;
        (negotiated, answered(&mut own).await)
    };
    let connection = Connection::new(endpoint);
    let (pinged, served) = tokio::join!(connection.ping(PING), serve);
    pinged.unwrap();
    let expected = ("GET /version HTTP/1.1".to_owned(), "GET /v1.41/_ping HTTP/1.1".to_owned());
    assert_eq!(served, expected);
}

#[tokio::test]
async fn a_missing_image_is_none_and_other_failures_are_errors() {
    let server = server().await;
    answer(&server, "/images/x/json", 404, r#"{"message":"No such image: x:latest"}"#).await;
    answer(&server, "/images/x/json", 500, r#"{"message":"layer 3f2a1b9c8d7e is\u001b[31m broken"}"#).await;
    answer(&server, "/images/x/json", 200, "<html>").await;
    let engine = engine(&server);
    assert_eq!(engine.image("x").await.unwrap(), None);
    let error = engine.image("x").await.unwrap_err();
    assert_eq!(error, EngineError::Refused("inspect image x: layer <id> is broken".into()));
    let error = engine.image("x").await.unwrap_err();
    assert!(matches!(&error, EngineError::Refused(text) if text.contains("not understood")), "{error:?}");
}

#[tokio::test]
async fn names_cannot_change_the_request_path() {
    let server = server().await;
    let engine = engine(&server);
    for name in ["", "/x", "../x", "a/../b", "x?force=1", "x#", "x y", "a//b", "ä"] {
        let error = engine.image(name).await.unwrap_err();
        assert!(matches!(error, EngineError::NotFound(_)), "{name}: {error:?}");
        engine.log_tail(name, 1).await.unwrap_err();
        engine.remove_anchor(name).await.unwrap_err();
    }
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}

fn pinned() -> Reference {
    Reference::parse(&format!("ghcr.io/team/web:1@sha256:{}", "ab".repeat(32))).unwrap()
}

#[tokio::test]
async fn credentials_are_sent_in_the_encoding_that_the_engine_expects() {
    let server = server().await;
    answer(&server, "/images/create", 200, "{\"status\":\"Status: Image is up to date\"}\n").await;
    let login = DockerCredentials {
        username: Some("me".into()),
        // Puts + and / of plain base64 at every position of a triple.
        password: Some(">>>???~~~>?~ÿÿÿ".into()),
        ..DockerCredentials::default()
    };
    let engine = engine_with(&server, Ok(Some(login.clone())));
    engine.pull(&pinned(), None, &watch::channel(PullProgress::default()).0).await.unwrap();
    let request = &asked(&server, "/images/create").await[0];
    let header = request.headers.get("x-registry-auth").unwrap().to_str().unwrap();
    let plain = base64::engine::general_purpose::URL_SAFE.decode(header).unwrap();
    assert_eq!(serde_json::from_slice::<DockerCredentials>(&plain).unwrap(), login);
    let query: HashMap<_, _> = request.url.query_pairs().collect();
    assert_eq!(query["fromImage"], "ghcr.io/team/web");
    assert_eq!(query["tag"], format!("sha256:{}", "ab".repeat(32)));
}

#[tokio::test]
async fn unavailable_credentials_fail_the_pull_before_it_starts() {
    let server = server().await;
    let engine = engine_with(&server, Err("the helper did not answer".into()));
    let error = engine.pull(&pinned(), None, &watch::channel(PullProgress::default()).0).await.unwrap_err();
    let want = format!("pull {}: no credentials for ghcr.io: the helper did not answer", pinned());
    assert_eq!(error, EngineError::Refused(want));
    assert_eq!(asked(&server, "/images/create").await.len(), 0);
}

#[tokio::test]
async fn a_pull_that_fails_halfway_reports_the_engines_reason() {
    let server = server().await;
    let body = concat!(
        r#"{"status":"Downloading","id":"a","progressDetail":{"current":5,"total":9}}"#,
        "\n",
        r#"{"errorDetail":{"message":"read tcp 10.0.0.1:4242->10.0.0.2:443: reset"},"error":"x"}"#,
        "\n"
    );
    answer(&server, "/images/create", 200, body).await;
    let (progress, seen) = watch::channel(PullProgress::default());
    let error = engine(&server).pull(&pinned(), None, &progress).await.unwrap_err();
    let want = format!("pull {}: read tcp <address>: reset", pinned());
    assert_eq!(error, EngineError::Refused(want));
    assert_eq!(*seen.borrow(), PullProgress { bytes: 5, total: 9 });
}

#[tokio::test]
async fn a_pull_waits_while_a_few_others_run_and_takes_no_turn_once_it_is_given_up() {
    let server = server().await;
    answer(&server, "/images/create", 200, "{\"status\":\"Status: Image is up to date\"}\n").await;
    let (engine, reference) = (engine(&server), pinned());
    let progress = watch::channel(PullProgress::default()).0;
    let others = engine.pulls.acquire_many(u32::try_from(PULLS_AT_ONCE).unwrap()).await.unwrap();
    tokio::select! {
        biased;
        pulled = engine.pull(&reference, None, &progress) => panic!("it did not wait: {pulled:?}"),
        alive = engine.ping() => alive.unwrap(),
    }
    assert_eq!(asked(&server, "/images/create").await.len(), 0);
    drop(others);
    engine.pull(&reference, None, &progress).await.unwrap();
    assert_eq!(asked(&server, "/images/create").await.len(), 1);
    assert_eq!(engine.pulls.available_permits(), PULLS_AT_ONCE);
}

#[tokio::test]
async fn a_pull_that_has_downloaded_all_gives_its_turn_back_before_the_engine_has_unpacked_it() {
    let server = server().await;
    let body = concat!(
        r#"{"status":"Pulling fs layer","id":"a"}"#,
        "\n",
        r#"{"status":"Download complete","id":"a"}"#,
        "\n",
        r#"{"errorDetail":{"message":"no space left"},"error":"x"}"#,
        "\n"
    );
    answer(&server, "/images/create", 200, body).await;
    let engine = engine(&server);
    let mut turn = engine.pulls.acquire().await.ok();
    let progress = watch::channel(PullProgress::default()).0;
    engine.pull_once(&pinned(), None, &progress, &mut turn).await.unwrap_err();
    assert!(turn.is_none());
    assert_eq!(engine.pulls.available_permits(), PULLS_AT_ONCE);
}

#[tokio::test]
async fn removing_a_tag_never_forces_and_never_prunes() {
    let server = server().await;
    for status in [409, 404, 200] {
        let body = if status == 200 { "[]" } else { r#"{"message":"no"}"# };
        let response = ResponseTemplate::new(status).set_body_raw(body, "application/json");
        Mock::given(method("DELETE"))
            .and(path(versioned("/images/docker.io/library/x:1")))
            .and(query_param("noprune", "true"))
            .and(query_param("force", "false"))
            .respond_with(response)
            .up_to_n_times(1)
            .mount(&server)
            .await;
    }
    let engine = engine(&server);
    for _ in 0..3 {
        engine.untag(&Reference::parse("x:1").unwrap()).await.unwrap();
    }
    assert_eq!(asked(&server, "/images/docker.io/library/x:1").await.len(), 3);
}

#[tokio::test]
async fn a_container_that_disappears_between_list_and_inspection_is_left_out() {
    let server = server().await;
    let list =
        r#"[{"Id":"c1","Names":["/a"],"Labels":{},"Status":"Up"},{"Id":"c2","Names":["/b"],"Labels":null}]"#;
    answer(&server, "/containers/json", 200, list).await;
    answer(&server, "/containers/c1/json", 404, r#"{"message":"No such container: c1"}"#).await;
    let inspected = r#"{"Id":"c2","Name":"/b","Image":"sha256:aa","State":{"Status":"exited"},"Config":{}}"#;
    answer(&server, "/containers/c2/json", 200, inspected).await;
    let engine = engine(&server);
    let seen = engine.containers(&Members::Project("p".into())).await.unwrap();
    assert_eq!(seen.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["b"]);

    // One that cannot be inspected is not absent, but nothing is known of its health.
    answer(&server, "/containers/json", 200, list).await;
    answer(&server, "/containers/c1/json", 500, r#"{"message":"broken"}"#).await;
    answer(&server, "/containers/c2/json", 200, inspected).await;
    let seen = engine.containers(&Members::Project("p".into())).await.unwrap();
    let states: Vec<_> = seen.iter().map(|c| (c.name.as_str(), c.state)).collect();
    assert_eq!(states, [("a", State::Unknown), ("b", State::Exited)]);
    assert!(engine.unseen.lock().contains("c1"), "it is logged once");

    answer(&server, "/containers/json", 200, list).await;
    answer(&server, "/containers/c1/json", 404, r#"{"message":"No such container: c1"}"#).await;
    answer(&server, "/containers/c2/json", 200, inspected).await;
    engine.containers(&Members::Project("p".into())).await.unwrap();
    assert!(engine.unseen.lock().is_empty());
}

#[tokio::test]
async fn an_image_does_not_name_the_env_files_of_its_project() {
    let server = server().await;
    let label = "com.docker.compose.project.environment_file";
    let labels = json!({
        "com.docker.compose.project": "p", "com.docker.compose.container-number": "1", (label): "/x.env",
    });
    let of_image = |files: Value| Some(json!({"Config": {"Labels": files}}));
    let containers = [
        ("c1", "sha256:aa", of_image(json!({(label): "/x.env"}))),
        ("c2", "sha256:bb", of_image(json!({(label): "/other.env"}))),
        ("c3", "sha256:cc", of_image(json!(null))),
        ("c4", "sha256:dd", None),
    ];
    let listed: Vec<Value> = containers
        .iter()
        .map(|(id, image, _)| json!({"Id": id, "Names": [format!("/{id}")], "ImageID": image, "Labels": labels}))
        .collect();
    for (id, image, of_image) in &containers {
        let seen = json!({
            "Id": id, "Name": format!("/{id}"), "Image": image, "State": {"Status": "running"},
            "Config": {"Labels": labels},
        });
        for _ in 0..2 {
            answer(&server, "/containers/json", 200, &json!(listed).to_string()).await;
            answer(&server, &format!("/containers/{id}/json"), 200, &seen.to_string()).await;
        }
        if let Some(of_image) = of_image {
            answer(&server, &format!("/images/{image}/json"), 200, &of_image.to_string()).await;
        }
    }
    let engine = engine(&server);
    let x = PathBuf::from("/x.env");
    let expected = [vec![], vec![x.clone()], vec![x.clone()], vec![x]];
    for _ in 0..2 {
        let seen = engine.containers(&Members::Project("p".into())).await.unwrap();
        assert_eq!(seen.iter().map(|one| one.env_files_of_image.len()).collect::<Vec<_>>(), [1, 0, 0, 0]);
        assert_eq!(seen.into_iter().map(|one| one.origin.env_files).collect::<Vec<_>>(), expected);
    }
    let surveyed = engine.all_containers().await.unwrap();
    assert_eq!(surveyed.into_iter().map(|one| one.origin.env_files).collect::<Vec<_>>(), expected);
    assert_eq!(asked(&server, "/images/sha256:aa/json").await.len(), 1, "an image never changes");
}

#[tokio::test]
async fn a_request_that_hangs_for_one_container_only_is_refused() {
    let server = server().await;
    let connection = Connection::new(Endpoint::Tcp(server.address().to_string()));
    let hang = || connection.call_for_one("restart x", Duration::ZERO, |_| std::future::pending());
    let late: Result<(), _> = hang().await;
    assert_eq!(late, Err(EngineError::Refused("restart x: no answer within 0 s".into())));
    // The same within the library's own time limit.
    let limit = Duration::from_mins(1);
    let late = connection
        .call_for_one("restart x", limit, |_| std::future::ready(Err::<(), _>(Error::RequestTimeoutError)));
    assert!(matches!(late.await, Err(EngineError::Refused(_))));
    // Whether a request has had an effect whose connection was lost is unknown.
    let lost = connection.call_for_one("restart x", limit, |_| {
        let err = std::io::ErrorKind::ConnectionReset.into();
        std::future::ready(Err::<(), _>(Error::IOError { err }))
    });
    assert!(lost.await.unwrap_err().is_unavailable());
    // The whole engine hangs.
    answer(&server, "/_ping", 503, "").await;
    let late: Result<(), _> = hang().await;
    assert!(late.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn stats_that_hang_for_one_container_only_are_refused() {
    let server = server().await;
    let connection = Connection::new(Endpoint::Tcp(server.address().to_string()));
    let doing = "read the stats of x";
    // The second time, the version is known.
    for _ in 0..2 {
        let hang = connection.read_stats(doing, Duration::ZERO, |_| std::future::pending());
        let late: Result<(), _> = hang.await;
        assert_eq!(late, Err(EngineError::Refused(format!("{doing}: no answer within 0 s"))));
    }
    answer(&server, "/_ping", 503, "").await;
    let late: Result<(), _> = connection.read_stats(doing, Duration::ZERO, |_| std::future::pending()).await;
    assert!(late.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn an_engine_that_does_not_list_its_containers_is_unavailable_although_it_answers_pings() {
    let server = server().await;
    let engine = engine(&server);
    answer(&server, "/containers/json", 200, "[]").await;
    engine.check_reads().await.unwrap();
    answer(&server, "/containers/json", 503, "").await;
    engine.ping().await.unwrap();
    assert!(engine.check_reads().await.unwrap_err().is_unavailable());
    let lists = asked(&server, "/containers/json").await;
    assert_eq!(lists[0].url.query(), Some("limit=1"), "it is cheap");
}

#[tokio::test]
async fn a_project_without_containers_may_have_one_by_name() {
    let server = server().await;
    let of_project = r#"[{"Id":"c1","Names":["/p-web-1"],"Labels":{}}]"#;
    let named = r#"[{"Id":"c2","Names":["/web"],"Labels":{}}]"#;
    let inspected = |id: &str, name: &str| {
        format!(
            r#"{{"Id":"{id}","Name":"/{name}","Image":"sha256:aa","State":{{"Status":"exited"}},"Config":{{}}}}"#
        )
    };
    answer(&server, "/containers/json", 200, of_project).await;
    answer(&server, "/containers/c1/json", 200, &inspected("c1", "p-web-1")).await;
    answer(&server, "/containers/json", 200, "[]").await;
    answer(&server, "/containers/json", 200, named).await;
    answer(&server, "/containers/c2/json", 200, &inspected("c2", "web")).await;
    let engine = engine(&server);
    let members = Members::of(Some("p"), Some("web")).unwrap();
    for expected in ["p-web-1", "web"] {
        let seen = engine.containers(&members).await.unwrap();
        assert_eq!(seen.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), [expected]);
    }
    let lists = asked(&server, "/containers/json").await;
    let filters: Vec<_> = lists.iter().map(|request| request.url.query().unwrap_or_default()).collect();
    assert!(filters[0].contains("label") && filters[2].contains("name"), "{filters:?}");
}

#[tokio::test]
async fn a_container_that_podman_calls_stopped_has_exited() {
    let server = server().await;
    let list = r#"[{"Id":"c1","Names":["/loop-web-1"],"Labels":{},"State":"stopped",
        "Status":"Exited (7) Less than a second ago"}]"#;
    let inspected = r#"{"Id":"c1","Name":"/loop-web-1","Image":"sha256:aa","Config":{},"State":{
        "Status":"stopped","Running":false,"ExitCode":7,"FinishedAt":"2026-11-21T18:59:48.382075036Z",
        "Health":{"Status":"","FailingStreak":0,"Log":null}}}"#;
    let engine = engine(&server);
    answer(&server, "/containers/json", 200, list).await;
    answer(&server, "/containers/c1/json", 200, inspected).await;
    let seen = engine.containers(&Members::Project("loop".into())).await.unwrap();
    assert_eq!((seen[0].state, seen[0].exit_code), (State::Exited, 7));
}

#[tokio::test]
async fn a_container_whose_image_has_the_label_of_an_anchor_is_none() {
    let server = server().await;
    let list = r#"[{"Id":"c1","Names":["/loop-web-1"],"Labels":{"evenkeel.hold":"loop"}},
        {"Id":"c2","Names":["/evenkeel-hold-loop-aa"],"Labels":{"evenkeel.hold":"loop"}}]"#;
    let inspected = r#"{"Id":"c1","Name":"/loop-web-1","Image":"sha256:aa","State":{"Status":"exited"},
        "Config":{"Labels":{"evenkeel.hold":"loop"}}}"#;
    let engine = engine(&server);
    answer(&server, "/containers/json", 200, list).await;
    answer(&server, "/containers/c1/json", 200, inspected).await;
    let seen = engine.containers(&Members::Project("loop".into())).await.unwrap();
    assert_eq!(seen.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["loop-web-1"]);

    answer(&server, "/containers/json", 200, list).await;
    let all = engine.all_containers().await.unwrap();
    assert_eq!(all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["loop-web-1"]);

    answer(&server, "/containers/json", 200, list).await;
    assert_eq!(engine.anchors("loop").await.unwrap(), ["evenkeel-hold-loop-aa"]);
    answer(&server, "/containers/loop-web-1/json", 200, inspected).await;
    let error = engine.remove_anchor("loop-web-1").await.unwrap_err();
    assert_eq!(error, EngineError::Refused("remove container loop-web-1: Evenkeel did not create it".into()));
}

#[tokio::test]
async fn all_containers_of_the_host_are_listed_with_whether_they_run() {
    let server = server().await;
    let list = r#"[{"Id":"c1","Names":["/web"],"State":"running"},{"Id":"c2","Names":["/stopped"],"State":"exited"},
        {"Id":"c3","Names":["/podman"],"State":"stopped"},{"Id":"c4","Names":["/looping"],"State":"restarting"},
        {"Id":"c5","Names":["/held"],"State":"paused"},{"Id":"c6","Names":["/new"],"State":"created"}]"#;
    answer(&server, "/containers/json", 200, list).await;
    let all = engine(&server).all_containers().await.unwrap();
    let seen: Vec<(&str, bool)> = all.iter().map(|one| (one.name.as_str(), one.is_running)).collect();
    let expected = ["held", "looping", "new", "podman", "stopped", "web"].map(|name| (name, name == "web"));
    assert_eq!(seen, expected);
    let query = asked(&server, "/containers/json").await[0].url.query().unwrap_or_default().to_owned();
    assert!(query.contains("all=true") && !query.contains("running"), "{query}");
}

#[tokio::test]
async fn a_container_with_a_configured_name_is_found_whatever_labels_its_image_has() {
    let server = server().await;
    let list = r#"[{"Id":"c1","Names":["/web"],"Labels":{"com.docker.compose.oneoff":"True"}}]"#;
    let inspected =
        r#"{"Id":"c1","Name":"/web","Image":"sha256:aa","State":{"Status":"exited"},"Config":{}}"#;
    let engine = engine(&server);
    answer(&server, "/containers/json", 200, list).await;
    assert_eq!(engine.containers(&Members::Project("p".into())).await.unwrap(), []);
    answer(&server, "/containers/json", 200, list).await;
    answer(&server, "/containers/c1/json", 200, inspected).await;
    let seen = engine.containers(&Members::Name("web".into())).await.unwrap();
    assert_eq!(seen.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["web"]);
}

/// As podman 4.3.1 reports them, which filters by its own names.
#[tokio::test]
async fn podmans_die_and_remove_events_are_requested_and_parsed() {
    let server = server().await;
    let told = |word: &str, code: &str, nano: i64| {
        let name =
            json!({"name": "shop-web-1", "com.docker.compose.project": "shop", "containerExitCode": code});
        let actor = json!({"ID": "c1", "Attributes": name});
        json!({"status": word, "id": "c1", "Type": "container", "Action": word, "Actor": actor,
            "scope": "local", "time": 1_795_286_529, "timeNano": nano})
    };
    let body = format!("{}\n{}\n", told("die", "137", 1), told("remove", "0", 2));
    answer(&server, "/_ping", 200, "OK").await;
    answer(&server, "/events", 200, &body).await;
    let events = engine(&server).events(0, None).await.unwrap();
    let happened: Vec<_> = events.map(|event| event.what).collect().await;
    assert_eq!(happened, [EventKind::Die { exit_code: 137 }, EventKind::Destroy]);
    let asked = &asked(&server, "/events").await[0];
    let query: HashMap<_, _> = asked.url.query_pairs().collect();
    let filters: HashMap<String, Vec<String>> = serde_json::from_str(&query["filters"]).unwrap();
    for word in ["die", "died", "destroy", "remove"] {
        assert!(filters["event"].iter().any(|asked| asked == word), "{word}: {filters:?}");
    }
}

/// Podman writes one for each probe, and remembers all of them.
#[tokio::test]
async fn changes_of_health_are_requested_of_the_present_only() {
    let server = server().await;
    let engine = engine(&server);
    for until in [None, Some(5)] {
        answer(&server, "/events", 200, "").await;
        assert_eq!(engine.events(0, until).await.unwrap().count().await, 0);
        let asked = asked(&server, "/events").await;
        let query: HashMap<_, _> = asked.last().unwrap().url.query_pairs().collect();
        let filters: HashMap<String, Vec<String>> = serde_json::from_str(&query["filters"]).unwrap();
        let has = |word: &str| filters["event"].iter().any(|asked| asked == word);
        assert_eq!((has("health_status"), has("stop")), (until.is_none(), true), "{until:?}");
    }
}

#[tokio::test]
async fn a_restart_uses_the_containers_own_stop_timeout() {
    let server = server().await;
    let engine = engine(&server);
    for (set, asked_for) in [("25", "25"), ("0", "10"), ("null", "10")] {
        let inspected = r#"{"Id":"c1","Name":"/a","Image":"sha256:aa","State":{"Status":"running"},"Config":{"StopTimeout":SET}}"#;
        answer(&server, "/containers/c1/json", 200, &inspected.replace("SET", set)).await;
        answer(&server, "/containers/c1/restart", 204, "").await;
        engine.restart("c1").await.unwrap();
        let restarts = asked(&server, "/containers/c1/restart").await;
        let query: HashMap<_, _> = restarts.last().unwrap().url.query_pairs().collect();
        assert_eq!(query["t"], asked_for, "{set}");
    }
    answer(&server, "/containers/c1/json", 404, r#"{"message":"no such container"}"#).await;
    let error = engine.restart("c1").await.unwrap_err();
    assert_eq!(error, EngineError::NotFound("restart container c1: it is gone".into()));
}

#[tokio::test]
async fn only_a_repositorys_own_tags_are_listed_even_if_an_image_has_other_names() {
    let server = server().await;
    let image = |id: &str, tags: serde_json::Value| {
        json!({"Id": id, "ParentId": "", "RepoTags": tags, "RepoDigests": null, "Created": 1, "Size": 1,
            "SharedSize": -1, "Labels": null, "Containers": -1})
    };
    let listed = json!([
        image("sha256:aa", json!(["localhost:5000/web:1", "evenkeel.hold/shop:b", "evenkeel.hold/shop:a"])),
        image("sha256:bb", json!(["evenkeel.hold/shop2:c"])),
        image("sha256:cc", json!(null)),
    ]);
    answer(&server, "/images/json", 200, &listed.to_string()).await;
    let hold = Reference::parse("evenkeel.hold/shop:x").unwrap().repository;
    let tags = engine(&server).tags(&hold).await.unwrap();
    assert_eq!(
        tags.iter().map(Reference::tagged).collect::<Vec<_>>(),
        ["evenkeel.hold/shop:a", "evenkeel.hold/shop:b"]
    );
    let query: HashMap<_, _> =
        asked(&server, "/images/json").await[0].url.query_pairs().into_owned().collect();
    assert_eq!(query["filters"], r#"{"reference":["evenkeel.hold/shop:*"]}"#);
}

#[tokio::test]
async fn a_concurrently_created_anchor_is_attributed_to_another_agent() {
    let server = server().await;
    answer(&server, "/containers/hold-x/json", 404, r#"{"message":"No such container: hold-x"}"#).await;
    let conflict =
        r#"{"message":"Conflict. The container name \"/hold-x\" is already in use by container \"c9\"."}"#;
    answer(&server, "/containers/create", 409, conflict).await;
    let error = engine(&server).anchor("hold-x", &ImageId("sha256:aa".into()), "shop").await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("hold image sha256:aa: Conflict. The container name"), "{text}");
    assert!(text.contains("(another agent may be managing this project, or"), "{text}");
}

#[tokio::test]
async fn a_container_of_which_the_list_does_not_say_what_it_mounts_is_inspected() {
    let listed = json!([
        {"Id": "c1", "Names": ["/db"], "State": "running", "Mounts": null},
        {"Id": "c2", "Names": ["/job"], "State": "exited", "Mounts": null},
    ]);
    for (status, inspected, expected) in [
        (200, json!({"Id": "c1", "Mounts": [{"Source": "/nowhere/data", "RW": true}]}), Ok(vec!["db"])),
        (200, json!({"Id": "c1", "Mounts": []}), Ok(Vec::new())),
        (404, json!({"message": "No such container: c1"}), Ok(Vec::new())),
        (200, json!({"Id": "c1", "Mounts": null}), Err("the engine does not say what db mounts")),
    ] {
        let server = server().await;
        answer(&server, "/containers/json", 200, &listed.to_string()).await;
        answer(&server, "/containers/c1/json", status, &inspected.to_string()).await;
        answer(&server, "/volumes", 200, r#"{"Volumes":null}"#).await;
        let found = engine(&server).mounters(&[Path::new("/nowhere/data")], true).await;
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
                assert_eq!(names, expected, "{inspected}");
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, _) => panic!("{inspected}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn containers_that_have_ended_are_told_with_their_last_start() {
    let one = |id: &str, state: &str, source: &str| json!({"Id": id, "Names": [format!("/{id}")], "State": state, "Mounts": [{"Source": source, "RW": true}]});
    let listed = json!([
        one("c1", "exited", "/nowhere/data"),
        one("c2", "created", "/nowhere/data"),
        one("c3", "running", "/nowhere/data"),
        one("c4", "exited", "/nowhere/else"),
        one("c5", "exited", "/nowhere/data"),
    ]);
    let server = server().await;
    answer(&server, "/containers/json", 200, &listed.to_string()).await;
    answer(&server, "/volumes", 200, r#"{"Volumes":null}"#).await;
    let started = |at: &str| json!({"State": {"Status": "exited", "StartedAt": at}}).to_string();
    answer(&server, "/containers/c1/json", 200, &started("2026-03-01T04:00:00.5Z")).await;
    answer(&server, "/containers/c2/json", 200, &started("0001-01-01T00:00:00Z")).await;
    answer(&server, "/containers/c5/json", 500, r#"{"message":"broken"}"#).await;
    let ended = engine(&server).ended(&[Path::new("/nowhere/data")]).await.unwrap();
    let seen: Vec<_> = ended.iter().map(|one| (one.id.as_str(), one.started_at.to_string())).collect();
    assert_eq!(seen, [("c1", "2026-03-01T04:00:00.5Z".to_owned())]);
}

/// Docker does, and leaves the others without a network.
#[tokio::test]
async fn podman_does_not_remove_a_container_whose_network_others_share() {
    for (components, expected) in
        [(json!([{"Name": "Podman Engine", "Version": "5.4.2"}]), true), (json!([]), false)]
    {
        let server = server().await;
        let version = json!({"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Components": components});
        let version = ResponseTemplate::new(200).set_body_json(version);
        Mock::given(path("/version")).respond_with(version).with_priority(1).mount(&server).await;
        answer(&server, "/containers/json", 200, "[]").await;
        let vpn = Container::running("vpn", "vpn:1");
        let owner = NetworkOwner { id_or_name: vpn.id.clone(), resolved: Some(NetworkOwnerState::of(&vpn)) };
        let client = Container { network_of: Some(owner), ..Container::running("client", "client:1") };
        let needed = engine(&server).needed_containers(&[client, vpn.clone()]).await.unwrap();
        let expected = expected.then(|| (vpn.id.clone(), Need::ForOthers));
        let expected: BTreeMap<String, Need> = expected.into_iter().collect();
        assert_eq!(needed, expected, "{components}");
    }
}

#[tokio::test]
async fn a_container_that_is_down_lacks_a_network_if_the_engine_no_longer_has_that_id() {
    let (gone, there) = ("a".repeat(64), "b".repeat(64));
    let all = format!(r#"[{{"Id": "{there}", "Name": "shop_default"}}]"#);
    for (state, network, id, status, listed, lacks) in [
        ("exited", "shop_default", &*gone, 200, &*all, true),
        ("created", "shop_default", &*gone, 200, &*all, true),
        ("exited", "shop_default", &*there, 200, &*all, false),
        ("running", "shop_default", &*gone, 200, &*all, false),
        // Docker's own networks have another ID after each start of it, and that of a swarm may be on other nodes.
        ("exited", "bridge", &*gone, 200, &*all, false),
        ("exited", "overlay", "n0qpg7yv5nys8p2kd6uqlp1m2", 200, &*all, false),
        ("created", "shop_default", "", 200, &*all, false),
        // What can't be listed is not known to be gone.
        ("exited", "shop_default", &*gone, 200, "[]", false),
        ("exited", "shop_default", &*gone, 403, "{}", false),
    ] {
        let server = server().await;
        let networks = json!({"Networks": {network: {"NetworkID": id}}});
        let state_of = json!({"Status": state});
        let seen = json!({"Id": "c", "Name": "/web", "State": state_of, "NetworkSettings": networks});
        answer(&server, "/containers/json", 200, r#"[{"Id": "c", "Names": ["/web"]}]"#).await;
        answer(&server, "/containers/c/json", 200, &seen.to_string()).await;
        answer(&server, "/networks", status, listed).await;
        let found = engine(&server).containers(&Members::Project("shop".into())).await.unwrap();
        assert_eq!(!found[0].lost_networks.is_empty(), lacks, "{state} {network} {id} {listed}");
    }
}
