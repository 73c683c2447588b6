//! Challenges, tokens, and the sources of credentials.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use evenkeel_agent::adapters::registry::{Credentials, Login};
use wiremock::matchers::{header, header_exists, method, path, query_param};
use wiremock::{Mock, MockServer, Respond, ResponseTemplate};

use crate::world::{Docker, World, anonymous, authority, challenge, client_of, manifest_digest, ok, status};

/// Sets up a registry that requires a bearer token, and its token service with an address that is hard to parse.
async fn bearer_world(world: &World, tokens: impl Respond + 'static) {
    let realm = format!("{}/token?a=1,2", world.server.uri());
    let header_value = format!(
        r#"Basic realm="x, \"y\"", bEARer realm="{realm}",service="dom, svc",scope="repository:web:pull",error="invalid_token""#
    );
    Mock::given(path("/token")).respond_with(tokens).mount(&world.server).await;
    Mock::given(method("HEAD"))
        .and(header("authorization", "Bearer good"))
        .respond_with(ok(&manifest_digest()))
        .with_priority(1)
        .mount(&world.server)
        .await;
    world.on("HEAD", challenge(&header_value)).await;
}

fn token(text: &str, expires_in: u64) -> ResponseTemplate {
    status(200).set_body_json(serde_json::json!({"access_token": text, "expires_in": expires_in}))
}

#[tokio::test]
async fn a_token_is_fetched_anonymously_and_used_until_it_expires() {
    let world = World::new().await;
    bearer_world(&world, token("good", 300)).await;
    for _ in 0..3 {
        assert_eq!(world.digest().await, Ok(manifest_digest()));
    }
    assert_eq!(world.verbs().await, "HEAD GET HEAD HEAD HEAD", "one HEAD each once the token is cached");
    let ask = &world.requests().await[1];
    let query: HashMap<_, _> = ask.url.query_pairs().collect();
    assert_eq!(query["a"], "1,2");
    assert_eq!(query["service"], "dom, svc");
    assert_eq!(query["scope"], "repository:web:pull");
    assert!(ask.headers.get("authorization").is_none());
}

#[tokio::test]
async fn an_expired_token_is_replaced_before_it_is_used() {
    let world = World::new().await;
    bearer_world(&world, token("good", 5)).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    assert_eq!(world.verbs().await, "HEAD GET HEAD GET HEAD");
}

#[tokio::test]
async fn a_refused_token_is_replaced_once() {
    let world = World::new().await;
    bearer_world(&world, token("good", 300)).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    // The registry no longer accepts the token, nor any other.
    world.server.reset().await;
    let realm = format!("{}/token?a=1,2", world.server.uri());
    let header_value = format!(r#"Bearer realm="{realm}",service="dom, svc",scope="repository:web:pull""#);
    Mock::given(path("/token")).respond_with(token("bad", 300)).mount(&world.server).await;
    world.on("HEAD", challenge(&header_value)).await;
    let text = "registry HOST: 401 unauthorized for web (no credentials in the Docker configuration)";
    assert_eq!(world.fault().await, text);
    assert_eq!(world.verbs().await, "HEAD GET HEAD");
}

#[tokio::test]
async fn credentials_go_to_the_token_service_and_not_to_the_registry() {
    let server = MockServer::start().await;
    let docker = Docker::login(&authority(&server.uri()), "ann:s3cret");
    let world = World { client: client_of(&server.uri(), docker.credentials()), server };
    bearer_world(&world, token("good", 300)).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    let requests = world.requests().await;
    assert_eq!(requests[1].headers["authorization"], "Basic YW5uOnMzY3JldA==");
    assert!(!requests[1].url.as_str().contains("s3cret"));
    assert_eq!(requests[2].headers["authorization"], "Bearer good");
}

#[tokio::test]
async fn basic_credentials_are_sent_after_a_challenge_and_preemptively_from_then_on() {
    let server = MockServer::start().await;
    let docker = Docker::login(&authority(&server.uri()), "ann:s3cret");
    let world = World { client: client_of(&server.uri(), docker.credentials()), server };
    Mock::given(header("authorization", "Basic YW5uOnMzY3JldA=="))
        .respond_with(ok(&manifest_digest()))
        .with_priority(1)
        .mount(&world.server)
        .await;
    world.on("HEAD", challenge(r#"Basic realm="Dom \"Quoted\", realm""#)).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    assert_eq!(world.verbs().await, "HEAD HEAD HEAD");
}

#[tokio::test]
async fn the_password_is_read_again_after_a_403() {
    let server = MockServer::start().await;
    let docker = Docker::login(&authority(&server.uri()), "ann:old");
    let world = World { client: client_of(&server.uri(), docker.credentials()), server };
    let accepts = async |password: &str| {
        world.server.reset().await;
        let login = header("authorization", format!("Basic {password}"));
        let accepted = Mock::given(login).respond_with(ok(&manifest_digest())).with_priority(1);
        accepted.mount(&world.server).await;
        let other = Mock::given(header_exists("authorization")).respond_with(status(403)).with_priority(2);
        other.mount(&world.server).await;
        world.on("HEAD", challenge("Basic realm=x")).await;
    };
    accepts("YW5uOm9sZA==").await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    accepts("YW5uOm5ldw==").await;
    assert_eq!(world.fault().await, "registry HOST: 403 forbidden for web", "there is no other password yet");
    let auths = serde_json::json!({ authority(&world.server.uri()): { "auth": "YW5uOm5ldw==" } });
    std::fs::write(docker.0.path().join("config.json"), serde_json::json!({ "auths": auths }).to_string())
        .unwrap();
    // Credentials are read at most once a minute.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    assert_eq!(world.digest().await, Ok(manifest_digest()));
}

#[tokio::test]
async fn a_token_service_that_has_moved_is_found() {
    let world = World::new().await;
    bearer_world(&world, token("good", 5)).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    world.server.reset().await;
    let realm = format!("{}/moved", world.server.uri());
    Mock::given(path("/moved")).respond_with(token("good", 300)).mount(&world.server).await;
    let login = header("authorization", "Bearer good");
    Mock::given(login).respond_with(ok(&manifest_digest())).with_priority(1).mount(&world.server).await;
    world.on("HEAD", challenge(&format!(r#"Bearer realm="{realm}",service="s""#))).await;
    assert!(world.digest().await.is_err(), "the old address is used first");
    assert_eq!(world.digest_for_operator().await, Ok(manifest_digest()));
}

#[tokio::test]
async fn refused_logins_say_whether_there_were_credentials() {
    let world = World::new().await;
    world.on("HEAD", challenge("Basic realm=x")).await;
    let none = "registry HOST: 401 unauthorized for web (no credentials in the Docker configuration)";
    assert_eq!(world.fault().await, none);

    let server = MockServer::start().await;
    let docker = Docker::login(&authority(&server.uri()), "ann:wr0ng");
    let world = World { client: client_of(&server.uri(), docker.credentials()), server };
    world.on("HEAD", challenge("Basic realm=x")).await;
    let refused =
        "registry HOST: 401 unauthorized for web (the credentials in the Docker configuration were refused)";
    assert_eq!(world.fault().await, refused);

    let world = World::new().await;
    world.on("HEAD", challenge("Negotiate")).await;
    assert_eq!(
        world.fault().await,
        "registry HOST: 401 unauthorized for web (it asks for neither a Basic nor a Bearer login)"
    );
}

#[tokio::test]
async fn token_services_that_answer_nonsense_give_a_clear_error() {
    let nothing = "registry HOST: its token service 127.0.0.1 gave no usable token";
    let cases = [
        (status(200).set_body_string("<html>"), nothing),
        (status(200).set_body_bytes(vec![b'1'; 1024 * 1024]), nothing),
        (token("", 1), nothing),
        (token("a\r\nX-Evil: 1", 1), nothing),
        (status(404), "registry HOST: its token service 127.0.0.1: 404 not found for web"),
        (status(503), "registry HOST: its token service 127.0.0.1: 503 service unavailable for web"),
        (status(403), "registry HOST: 401 unauthorized for web (no credentials in the Docker configuration)"),
    ];
    for (answer, text) in cases {
        let world = World::new().await;
        bearer_world(&world, answer).await;
        assert_eq!(world.fault().await, text);
    }
}

#[tokio::test]
async fn an_identity_token_is_exchanged_for_an_access_token() {
    let server = MockServer::start().await;
    let docker = Docker::new(&serde_json::json!({
        "auths": {authority(&server.uri()): {"auth": "", "identitytoken": "r3fresh&more"}}
    }));
    let world = World { client: client_of(&server.uri(), docker.credentials()), server };
    bearer_world(&world, token("good", 300)).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    let ask = &world.requests().await[1];
    assert_eq!(ask.method.to_string(), "POST");
    let form = String::from_utf8_lossy(&ask.body).into_owned();
    assert!(form.contains("grant_type=refresh_token"), "{form}");
    assert!(form.contains("refresh_token=r3fresh%26more"), "{form}");
    assert!(!ask.url.as_str().contains("r3fresh"));
}

#[tokio::test]
async fn a_token_query_reaches_the_service_in_full() {
    let world = World::new().await;
    let realm = format!("{}/token?a=1,2", world.server.uri());
    Mock::given(path("/token"))
        .and(query_param("a", "1,2"))
        .and(query_param("service", "dom, svc"))
        .and(query_param("scope", "repository:web:pull"))
        .respond_with(token("good", 300))
        .expect(1)
        .mount(&world.server)
        .await;
    Mock::given(header("authorization", "Bearer good"))
        .respond_with(ok(&manifest_digest()))
        .with_priority(1)
        .mount(&world.server)
        .await;
    // No scope in the challenge: the client adds it.
    world.on("HEAD", challenge(&format!(r#"Bearer service="dom, svc",realm="{realm}""#))).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
}

#[tokio::test]
async fn logins_are_found_in_the_docker_configuration() {
    let docker = Docker::login("https://index.docker.io/v1/", "hub:p:w");
    let hub = docker.credentials().for_name("docker.io").await;
    assert_eq!(hub, Ok(Some(Login::UsernamePassword { username: "hub".into(), password: "p:w".into() })));
    assert_eq!(docker.credentials().for_name("ghcr.io").await, Ok(None));
    assert_eq!(anonymous().for_name("ghcr.io").await, Ok(None));
    assert_eq!(
        Credentials::new(Some("/nowhere".into()), OsString::new()).for_name("ghcr.io").await,
        Ok(None)
    );
    assert!(!format!("{hub:?}").contains("p:w"), "{hub:?}");
}

#[tokio::test]
async fn a_login_is_found_by_the_host_of_its_key() {
    for (key, host) in [
        ("registry.example/team/app", "registry.example"),
        ("registry.example/", "registry.example"),
        ("https://registry.example/v1/", "registry.example"),
        ("http://registry.example:5000", "registry.example:5000"),
        ("10.0.0.5:5000/v2/", "10.0.0.5:5000"),
    ] {
        let docker = Docker::login(key, "ann:pw");
        let credentials = docker.credentials();
        let ann = Login::UsernamePassword { username: "ann".into(), password: "pw".into() };
        assert_eq!(credentials.for_name(host).await, Ok(Some(ann)), "{key}");
        assert_eq!(credentials.for_name("other.example").await, Ok(None));
    }
    // bob:pw, and what some tools write for none.
    let docker = Docker::new(&serde_json::json!({"auths": {
        "registry.example": {"auth": "Ym9iOnB3", "identitytoken": "", "username": "", "password": ""},
        "registry.example/": {"auth": "YW5uOnB3"},
    }}));
    let bob = Login::UsernamePassword { username: "bob".into(), password: "pw".into() };
    assert_eq!(docker.credentials().for_name("registry.example").await, Ok(Some(bob.clone())));
    let docker = Docker::new(&serde_json::json!({"auths": {
        "app.example/team": {"auth": "YW5uOnB3"},
        "https://app.example/v1/": {"auth": "Ym9iOnB3"},
    }}));
    assert_eq!(docker.credentials().for_name("app.example").await, Ok(Some(bob)));
}

#[tokio::test]
async fn a_broken_configuration_is_an_error_and_not_an_anonymous_request() {
    let docker = Docker::login("ghcr.io", "no colon here");
    let error = docker.credentials().for_name("ghcr.io").await.expect_err("not name:password").to_string();
    assert!(error.contains("config.json") && error.contains("ghcr.io"), "{error}");
    std::fs::write(docker.0.path().join("config.json"), "{\"auths\": {").expect("written");
    let error = docker.credentials().for_name("ghcr.io").await.expect_err("not JSON").to_string();
    assert!(error.contains("not a Docker configuration"), "{error}");
}

#[tokio::test]
async fn helpers_are_asked_for_their_hosts_and_the_store_for_all_others() {
    let docker = Docker::new(&serde_json::json!({
        "auths": {"ghcr.io": {}},
        "credsStore": "store",
        "credHelpers": {"ecr.example": "ecr", "https://index.docker.io/v1/": "ecr"}
    }))
    .helper(
        "ecr",
        r#"read host; echo "{\"ServerURL\":\"$host\",\"Username\":\"$1 $host\",\"Secret\":\"s3cret\"}""#,
    )
    .helper("store", r#"echo '{"Username":"<token>","Secret":"t0ken"}'"#);
    let credentials = docker.credentials();
    let named = |name: &str| {
        Ok(Some(Login::UsernamePassword { username: name.to_owned(), password: "s3cret".to_owned() }))
    };
    assert_eq!(credentials.for_name("ecr.example").await, named("get ecr.example"));
    assert_eq!(credentials.for_name("docker.io").await, named("get https://index.docker.io/v1/"));
    assert_eq!(credentials.for_name("ghcr.io").await, Ok(Some(Login::IdentityToken("t0ken".into()))));
}

#[tokio::test]
async fn a_helper_wins_over_the_login_in_the_file_as_in_docker() {
    let auth = || serde_json::json!({"auth": "YW5uOm9sZA=="});
    let docker = Docker::new(&serde_json::json!({
        "auths": {"a.example": auth(), "none.example": auth(), "broken.example": auth(), "file.example": auth()},
        "credsStore": "store",
        "credHelpers": {"none.example": "none", "broken.example": "broken", "file.example": ""}
    }))
    .helper("store", r#"echo '{"Username":"ann","Secret":"new"}'"#)
    .helper("none", "echo 'credentials not found in native keychain'; exit 1")
    .helper("broken", "exit 1");
    let credentials = docker.credentials();
    let ann = |password: &str| {
        Ok(Some(Login::UsernamePassword { username: "ann".to_owned(), password: password.to_owned() }))
    };
    assert_eq!(credentials.for_name("a.example").await, ann("new"));
    assert_eq!(credentials.for_name("none.example").await, Ok(None));
    assert_eq!(credentials.for_name("broken.example").await, ann("old"));
    assert_eq!(credentials.for_name("file.example").await, ann("old"), "an empty helper means the file");
}

#[tokio::test]
async fn a_helper_that_fails_is_named_and_its_secrets_are_not() {
    let config = serde_json::json!({"credHelpers": {
        "absent.example": "absent", "fails.example": "fails", "leaks.example": "leaks",
        "empty.example": "empty", "junk.example": "junk", "path.example": "x/../y"
    }});
    let docker = Docker::new(&config)
        .helper("fails", "echo 'no key\u{1b}[1mchain'; exit 1")
        .helper("leaks", r#"echo '{"Secret":"s3cret"}'; exit 2"#)
        .helper("empty", "echo 'credentials not found in native keychain'; exit 1")
        .helper("junk", "echo s3cret");
    let credentials = docker.credentials();
    let error = async |host: &str| credentials.for_name(host).await.expect_err("it fails").to_string();
    assert_eq!(
        error("absent.example").await,
        "credential helper docker-credential-absent for absent.example: not found in PATH"
    );
    assert_eq!(
        error("fails.example").await,
        "credential helper docker-credential-fails for fails.example: no keychain"
    );
    assert_eq!(
        error("leaks.example").await,
        "credential helper docker-credential-leaks for leaks.example: it failed"
    );
    assert_eq!(
        error("junk.example").await,
        "credential helper docker-credential-junk for junk.example: its output is not a login in JSON"
    );
    assert!(error("path.example").await.contains("not a helper's name"));
    assert_eq!(credentials.for_name("empty.example").await, Ok(None));
}

#[tokio::test]
async fn concurrent_requests_share_one_run_of_a_helper() {
    let docker = Docker::new(&serde_json::json!({"credsStore": "slow"}))
        .helper("slow", r#"echo x >> "$0.runs"; sleep 0.2; echo '{"Username":"a","Secret":"b"}'"#);
    let credentials = docker.credentials();
    let (first, second) = tokio::join!(credentials.for_name("a.example"), credentials.for_name("a.example"));
    assert!(first.is_ok_and(|login| login.is_some()) && second.is_ok_and(|login| login.is_some()));
    let runs = std::fs::read_to_string(docker.0.path().join("docker-credential-slow.runs")).expect("it ran");
    assert_eq!(runs.lines().count(), 1);
}

#[tokio::test]
async fn a_helper_is_killed_with_its_children_when_its_request_is_dropped() {
    let docker = Docker::new(&serde_json::json!({"credsStore": "hangs"}))
        .helper("hangs", r#"sleep 60 & echo $! > "$0.pid"; wait"#);
    let credentials = docker.credentials();
    let pid_file = docker.0.path().join("docker-credential-hangs.pid");
    tokio::select! {
        _ = credentials.for_name("a.example") => panic!("the helper never responds"),
        () = exists(&pid_file) => {}
    }
    let pid = std::fs::read_to_string(&pid_file).expect("written");
    let gone = async || {
        loop {
            // A killed process that has not been reaped yet is a zombie.
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), gone()).await.expect("the helper's child is killed");
}

async fn exists(file: &Path) {
    while !std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n')) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
