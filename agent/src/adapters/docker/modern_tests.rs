//! Tests against a mock engine that is strict about versions, like Docker 29, and against responses with missing fields.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use wiremock::matchers::{any, method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use super::{DockerEngine, Endpoint, PullCredentials};
use crate::model::image::{ImageId, Reference, Repository};
use crate::model::{EngineError, Members, State};
use crate::ports::{Engine as _, PullProgress};

struct NoLogin;

#[async_trait::async_trait]
impl PullCredentials for NoLogin {
    async fn login(&self, _: &Repository) -> Result<Option<bollard::auth::DockerCredentials>, String> {
        Ok(None)
    }
}

/// Accepts versions from 1.`min` to 1.`max`, and unversioned `/version` and `/_ping`.
struct Strict {
    min: AtomicU32,
    max: AtomicU32,
    /// Whether a proxy in front of it forbids `/version`.
    hides_version: bool,
    answers: HashMap<&'static str, (u16, String)>,
}

impl Strict {
    fn new(min: u32, max: u32) -> Self {
        let answers = [
            ("/_ping", (200, "OK".to_owned())),
            ("/images/x/json", (200, json!({"Id": "sha256:aa"}).to_string())),
            ("/images/create", (200, "{\"status\":\"Status: Image is up to date\"}\n".to_owned())),
            ("/images/json", (200, "null".to_owned())),
            ("/containers/json", (200, json!([{"Id": "c1", "Names": ["/a"]}]).to_string())),
            ("/containers/c1/json", (200, json!({"Id": "c1", "State": {"Status": "running"}}).to_string())),
            ("/containers/c1/restart", (204, String::new())),
            ("/containers/hold/json", (404, json!({"message": "No such container"}).to_string())),
            ("/containers/create", (201, "{}".to_owned())),
            (
                "/events",
                (
                    200,
                    json!({"Type": "container", "Action": "oom", "Actor": {"ID": "c1"}}).to_string() + "\n",
                ),
            ),
            ("/info", (200, json!({"MemTotal": 5}).to_string())),
        ];
        Self { min: min.into(), max: max.into(), hides_version: false, answers: HashMap::from(answers) }
    }

    fn set_versions(&self, min: u32, max: u32) {
        self.min.store(min, Ordering::Relaxed);
        self.max.store(max, Ordering::Relaxed);
    }
}

/// The responder of a [`Strict`] engine, which the test can change.
struct Answering(Arc<Strict>);

impl Respond for Answering {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let refuse = |status: u16, message: String| {
            ResponseTemplate::new(status).set_body_json(json!({ "message": message }))
        };
        let (min, max) = (self.0.min.load(Ordering::Relaxed), self.0.max.load(Ordering::Relaxed));
        let path = request.url.path();
        match path {
            "/version" if self.0.hides_version => return refuse(403, "Forbidden".to_owned()),
            "/version" => {
                let told = json!({"ApiVersion": format!("1.{max}"), "MinAPIVersion": format!("1.{min}")});
                return ResponseTemplate::new(200).set_body_json(told);
            }
            "/_ping" => return ResponseTemplate::new(200).insert_header("Api-Version", format!("1.{max}")),
            _ => {}
        }
        let versioned = path.strip_prefix("/v1.").and_then(|rest| rest.find('/').map(|at| rest.split_at(at)));
        let Some((version, rest)) = versioned else {
            return refuse(400, format!("{path}: a version of the API must be named"));
        };
        match version.parse::<u32>() {
            Ok(minor) if minor < min => refuse(
                400,
                format!(
                    "client version 1.{minor} is too old. Minimum supported API version is 1.{min}, please upgrade your client to a newer version"
                ),
            ),
            Ok(minor) if minor > max => refuse(
                400,
                format!("client version 1.{minor} is too new. Maximum supported API version is 1.{max}"),
            ),
            _ => match self.0.answers.get(rest) {
                Some((status, body)) => {
                    ResponseTemplate::new(*status).set_body_raw(body.clone(), "application/json")
                }
                None => refuse(404, format!("no {rest} here")),
            },
        }
    }
}

async fn serve(strict: Strict) -> (MockServer, Arc<Strict>, DockerEngine) {
    let strict = Arc::new(strict);
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(Answering(strict.clone())).mount(&server).await;
    let endpoint = Endpoint::Tcp(server.address().to_string());
    (server, strict, DockerEngine::new(endpoint, Arc::new(NoLogin)))
}

/// Makes one call of each kind.
async fn use_all(engine: &DockerEngine) {
    engine.ping().await.unwrap();
    assert_eq!(engine.image("x").await.unwrap().unwrap().id, ImageId("sha256:aa".into()));
    let seen = engine.containers(&Members::Project("p".into())).await.unwrap();
    assert_eq!((seen.len(), seen[0].state), (1, State::Running));
    engine
        .pull(&Reference::parse("x:1").unwrap(), None, &watch::channel(PullProgress::default()).0)
        .await
        .unwrap();
    engine.restart("c1").await.unwrap();
    engine.anchor("hold", &ImageId("sha256:aa".into()), "p").await.unwrap();
    assert_eq!(engine.tags(&Reference::parse("x:1").unwrap().repository).await.unwrap(), []);
    assert_eq!(engine.events(0, None).await.unwrap().count().await, 1);
    assert_eq!(engine.machine_memory().await.unwrap(), 5);
}

async fn versions(server: &MockServer) -> Vec<String> {
    let requests = server.received_requests().await.unwrap();
    let mut seen: Vec<String> = requests
        .iter()
        .map(|request| request.url.path())
        .filter(|path| !matches!(*path, "/version" | "/_ping"))
        .map(|path| path.split('/').nth(1).unwrap_or_default().to_owned())
        .collect();
    seen.dedup();
    seen
}

#[tokio::test]
async fn every_request_uses_the_negotiated_version() {
    for (min, max, want) in [(44, 52, "v1.51"), (24, 45, "v1.45"), (12, 41, "v1.41"), (55, 60, "v1.55")] {
        let (server, _, engine) = serve(Strict::new(min, max)).await;
        use_all(&engine).await;
        assert_eq!(versions(&server).await, [want]);
        let requests = server.received_requests().await.unwrap();
        let first = requests.iter().filter(|request| request.url.path() == "/version").count();
        assert_eq!((first, requests[0].url.path()), (1, "/version"));
    }
}

#[tokio::test]
async fn the_version_is_taken_from_ping_if_a_proxy_forbids_the_version_request() {
    let (server, _, engine) = serve(Strict { hides_version: true, ..Strict::new(24, 47) }).await;
    use_all(&engine).await;
    assert_eq!(versions(&server).await, ["v1.47"]);
}

#[tokio::test]
async fn the_version_is_negotiated_again_after_the_engine_was_replaced() {
    let (server, strict, engine) = serve(Strict::new(12, 41)).await;
    use_all(&engine).await;
    strict.set_versions(44, 52);
    use_all(&engine).await;
    strict.set_versions(24, 45);
    use_all(&engine).await;
    // Each change is rejected once and then negotiated again.
    assert_eq!(versions(&server).await, ["v1.41", "v1.51", "v1.45"]);
    // Each kind of call detects it by itself, including streams.
    for version in [41, 44, 41, 44] {
        strict.set_versions(version, version);
        assert_eq!(engine.events(0, None).await.unwrap().count().await, 1);
        strict.set_versions(50, 50);
        engine
            .pull(&Reference::parse("x:1").unwrap(), None, &watch::channel(PullProgress::default()).0)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_version_that_the_engine_reports_and_rejects_is_an_error_and_no_endless_loop() {
    let mut strict = Strict::new(24, 45);
    strict
        .answers
        .insert("/images/x/json", (400, json!({"message": "client version 1.45 is too old"}).to_string()));
    let (server, _, engine) = serve(strict).await;
    let error = engine.image("x").await.unwrap_err();
    assert_eq!(error, EngineError::Refused("inspect image x: client version 1.45 is too old".into()));
    assert_eq!(server.received_requests().await.unwrap().len(), 4);
}

/// A TCP proxy in front of the server that counts connections.
async fn counted(server: &MockServer) -> (Endpoint, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
    let (count, target) = (Arc::new(AtomicUsize::new(0)), *server.address());
    let counter = count.clone();
    // Ends with the test's runtime.
    #[allow(clippy::disallowed_methods)]
    tokio::spawn(async move {
        let mut open = tokio::task::JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            open.spawn(async move {
                let mut server = TcpStream::connect(target).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    (endpoint, count)
}

#[tokio::test]
async fn connections_are_reused() {
    let (server, _, _) = serve(Strict::new(44, 52)).await;
    let (endpoint, connections) = counted(&server).await;
    let engine = DockerEngine::new(endpoint, Arc::new(NoLogin));
    for _ in 0..20 {
        engine.image("x").await.unwrap();
        engine.restart("c1").await.unwrap();
        engine.stats("gone").await.unwrap();
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    engine.ping().await.unwrap();
    assert_eq!(
        connections.load(Ordering::Relaxed),
        2,
        "ping opens a new one: an engine that shuts down still answers on existing ones"
    );
    futures_util::future::join_all((0..100).map(|_| engine.image("x"))).await;
    let most = super::transport::AT_ONCE;
    assert!(connections.load(Ordering::Relaxed) <= most + 1, "{connections:?}");
}

#[tokio::test]
async fn a_container_that_cannot_be_inspected_does_not_hide_the_others() {
    let listed = json!([
        {"Id": "c1", "Names": ["/a"], "State": "running", "Labels": {"com.docker.compose.service": "a"}},
        {"Id": "c2", "Names": ["/b"], "State": "running"},
        {"Names": ["/no-id"]}, null, 5,
    ]);
    let odd: [(u16, Value); 6] = [
        (500, json!({"message": "content digest sha256:aa: not found"})),
        (200, json!({})),
        (200, json!([])),
        (200, json!(null)),
        (200, json!({"Id": 5, "State": "running", "Config": [], "Mounts": {}})),
        (200, json!("text")),
    ];
    for (status, body) in odd {
        let mut strict = Strict::new(44, 52);
        strict.answers.insert("/containers/json", (200, listed.to_string()));
        strict.answers.insert("/containers/c1/json", (status, body.to_string()));
        let good = json!({"Id": "c2", "Name": "/b", "State": {"Status": "exited", "ExitCode": 3}});
        strict.answers.insert("/containers/c2/json", (200, good.to_string()));
        let (_server, _, engine) = serve(strict).await;
        let seen = engine.containers(&Members::Project("p".into())).await.unwrap();
        let seen: Vec<_> = seen.iter().map(|c| (c.name.as_str(), c.state, c.exit_code)).collect();
        assert_eq!(seen, [("a", State::Unknown, 0), ("b", State::Exited, 3)], "{body}");
    }
}

#[tokio::test]
async fn responses_without_fields_that_newer_engines_dropped_are_parsed() {
    let mut strict = Strict::new(44, 52);
    let image =
        json!({"Id": "sha256:aa", "RootFS": {}, "Architecture": "", "Config": null, "RepoDigests": null});
    strict.answers.insert("/images/x/json", (200, image.to_string()));
    let listed = json!([null, {"RepoTags": null}, {"RepoTags": ["localhost:5000/x:1", 5]}]);
    strict.answers.insert("/images/json", (200, listed.to_string()));
    strict.answers.insert("/containers/create", (201, json!({"Warnings": null}).to_string()));
    let lines = [
        json!({"Action": "die", "Actor": {"ID": "c1", "Attributes": {"exitCode": "7"}}, "timeNano": 5})
            .to_string(),
        "{\"cut off".to_owned(),
        json!([]).to_string(),
        json!({"Type": "frobnicator", "Action": "die", "Actor": {"ID": "c1"}}).to_string(),
        json!({"Action": "start", "Actor": {"ID": "c2", "Attributes": {"name": null}}}).to_string(),
    ];
    strict.answers.insert("/events", (200, lines.join("\n") + "\n"));
    let (_server, _, engine) = serve(strict).await;
    let image = engine.image("x").await.unwrap().unwrap();
    assert_eq!((image.repo_digests.len(), image.is_complete), (0, false));
    let tag = Reference::parse("localhost:5000/x:1").unwrap();
    assert_eq!(engine.tags(&tag.repository).await.unwrap(), [tag]);
    engine.anchor("hold", &ImageId("sha256:aa".into()), "p").await.unwrap();
    let events: Vec<_> = engine.events(0, None).await.unwrap().map(|event| event.id).collect().await;
    assert_eq!(events, ["c1", "c2"]);
}

#[tokio::test]
async fn moving_a_tag_is_retried_after_a_concurrent_move() {
    let race = "failed to create an image localhost:5000/x:1 with target sha256:aa: already exists";
    for (refusals, tries) in [(0, 1), (2, 3), (100, super::TAG_TRIES)] {
        let server = MockServer::start().await;
        let refused = ResponseTemplate::new(409).set_body_json(json!({ "message": race }));
        let told = ResponseTemplate::new(200).set_body_json(json!({"ApiVersion": "1.45"}));
        Mock::given(path("/version")).respond_with(told).mount(&server).await;
        if refusals > 0 {
            let tag = Mock::given(path("/v1.45/images/sha256:aa/tag")).respond_with(refused);
            tag.up_to_n_times(refusals).mount(&server).await;
        }
        Mock::given(path("/v1.45/images/sha256:aa/tag"))
            .respond_with(ResponseTemplate::new(201))
            .mount(&server)
            .await;
        let engine = DockerEngine::new(Endpoint::Tcp(server.address().to_string()), Arc::new(NoLogin));
        let done =
            engine.tag(&ImageId("sha256:aa".into()), &Reference::parse("localhost:5000/x:1").unwrap()).await;
        assert_eq!(done.is_ok(), refusals < 100, "{done:?}");
        let asked = server.received_requests().await.unwrap().len();
        assert_eq!(asked, usize::try_from(tries).unwrap() + 1);
    }
}

#[tokio::test]
async fn a_digest_that_the_engine_has_for_another_platform_is_pulled_again_after_its_name_is_gone() {
    for refusal in ["Cannot overwrite digest sha256:aa", "cannot overwrite digest sha256:aa"] {
        let server = MockServer::start().await;
        let told = ResponseTemplate::new(200).set_body_json(json!({"ApiVersion": "1.45"}));
        Mock::given(path("/version")).respond_with(told).mount(&server).await;
        let pong = ResponseTemplate::new(200).set_body_string("OK");
        Mock::given(path("/v1.45/_ping")).respond_with(pong).mount(&server).await;
        let line = json!({"errorDetail": {"message": refusal}, "error": refusal}).to_string();
        let create = || Mock::given(path("/v1.45/images/create"));
        let refused = ResponseTemplate::new(200).set_body_string(line);
        create().respond_with(refused).up_to_n_times(1).with_priority(1).mount(&server).await;
        let pulled = ResponseTemplate::new(200).set_body_string("{\"status\": \"Pull complete\"}");
        create().respond_with(pulled).with_priority(2).mount(&server).await;
        let removed = ResponseTemplate::new(200).set_body_json(json!([]));
        Mock::given(method("DELETE")).respond_with(removed).expect(1).mount(&server).await;
        let engine = DockerEngine::new(Endpoint::Tcp(server.address().to_string()), Arc::new(NoLogin));
        let digest = format!("localhost:5000/x@sha256:{}", "a".repeat(64));
        let (progress, _) = watch::channel(PullProgress::default());
        let done = engine.pull(&Reference::parse(&digest).unwrap(), None, &progress).await;
        assert_eq!(done, Ok(()), "{refusal}");
        let asked = server.received_requests().await.unwrap();
        let asked = asked.iter().filter(|request| request.url.path().ends_with("/images/create")).count();
        assert_eq!(asked, 2, "{refusal}");
    }
}

/// When a container has ended, asked for each response.
type Ended = Box<dyn Fn() -> jiff::Timestamp + Send + Sync>;

#[tokio::test]
async fn a_container_killed_just_now_is_inspected_until_the_engine_can_have_learned_of_an_oom_kill() {
    let state = |ended: jiff::Timestamp, is_oom: bool| {
        let state = json!({"Status": "exited", "ExitCode": 137, "OOMKilled": is_oom, "FinishedAt": ended});
        ResponseTemplate::new(200).set_body_json(json!({"Id": "c1", "State": state}))
    };
    let now = jiff::Timestamp::now;
    let (long_ago, first_seen) = (now() - std::time::Duration::from_mins(1), std::sync::OnceLock::new());
    // The end of each response is that of its own time, however slow the machine is: only then is the number of tries fixed.
    let scenarios: [(Ended, u64, bool, _); 3] = [
        (Box::new(now), 3, true, 4..=4),
        (Box::new(move || long_ago), 3, false, 1..=1),
        (Box::new(move || *first_seen.get_or_init(now)), 1000, false, 1..=1000),
    ];
    for (ended, told, want, inspections) in scenarios {
        let (server, _, engine) = serve(Strict::new(24, 47)).await;
        let inspection = || Mock::given(path("/v1.47/containers/c1/json"));
        let ended = Arc::new(ended);
        let (early, late) = (ended.clone(), ended);
        inspection()
            .respond_with(move |_: &Request| state(early(), false))
            .up_to_n_times(told)
            .with_priority(1)
            .mount(&server)
            .await;
        let oom_killed = move |_: &Request| state(late(), true);
        inspection().respond_with(oom_killed).with_priority(2).mount(&server).await;
        let seen = engine.containers(&Members::Project("p".into())).await.unwrap();
        assert_eq!(seen[0].oom_killed, want);
        let requests = server.received_requests().await.unwrap();
        let made = requests.iter().filter(|request| request.url.path().ends_with("c1/json")).count();
        assert!(inspections.contains(&made), "{made} inspections, expected {inspections:?}");
    }
}
