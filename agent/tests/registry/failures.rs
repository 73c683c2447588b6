//! Redirects, backoff, hanging and broken registries, certificates.

use std::time::Duration;

use evenkeel_agent::adapters::registry::RegistryClient;
use evenkeel_agent::config::RegistryConfig;
use evenkeel_agent::model::image::Digest;
use evenkeel_agent::ports::{Registry, Urgency};
use evenkeel_common::testing::self_signed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer};

use crate::world::{
    ALL_TYPES, Docker, World, anonymous, authority, challenge, client_of, manifest_digest, ok, reference,
    script, status,
};

/// A registry that redirects a request with its login to `/moved` of another server.
async fn redirecting_to(elsewhere: &MockServer) -> (World, Docker) {
    let server = MockServer::start().await;
    let docker = Docker::login(&authority(&server.uri()), "ann:s3cret");
    let world = World { client: client_of(&server.uri(), docker.credentials()), server };
    let to = status(307).insert_header("Location", format!("{}/moved", elsewhere.uri()));
    Mock::given(header("authorization", "Basic YW5uOnMzY3JldA=="))
        .respond_with(to)
        .with_priority(1)
        .mount(&world.server)
        .await;
    world.on("HEAD", challenge("Basic realm=x")).await;
    (world, docker)
}

#[tokio::test]
async fn credentials_are_not_sent_to_another_host_after_a_redirect() {
    let elsewhere = MockServer::start().await;
    Mock::given(path("/moved")).respond_with(ok(&manifest_digest())).mount(&elsewhere).await;
    let (world, _docker) = redirecting_to(&elsewhere).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
    let seen = elsewhere.received_requests().await.expect("recorded");
    assert_eq!(seen.len(), 1);
    assert!(seen[0].headers.get("authorization").is_none());
    assert!(seen[0].headers["accept"].to_str().is_ok_and(|accept| accept.contains(ALL_TYPES[0])));
}

#[tokio::test]
async fn a_redirect_within_the_registry_is_followed_and_a_loop_ends() {
    let world = World::new().await;
    Mock::given(path("/there")).respond_with(ok(&manifest_digest())).mount(&world.server).await;
    world.on("HEAD", status(301).insert_header("Location", "/there")).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));

    let world = World::new().await;
    world.on("HEAD", status(302).insert_header("Location", "/v2/web/manifests/1")).await;
    assert_eq!(world.fault().await, "registry HOST: more than 5 redirects");

    let world = World::new().await;
    world.on("HEAD", status(302).insert_header("Location", "file:///etc/passwd")).await;
    assert_eq!(world.fault().await, "registry HOST: 302 found without a usable Location");
}

#[tokio::test]
async fn credentials_are_not_sent_to_another_host_that_asks_for_them() {
    let elsewhere = MockServer::start().await;
    Mock::given(path("/moved")).respond_with(challenge("Basic realm=x")).mount(&elsewhere).await;
    let server = MockServer::start().await;
    let docker = Docker::login(&authority(&server.uri()), "ann:s3cret");
    let world = World { client: client_of(&server.uri(), docker.credentials()), server };
    world.on("HEAD", status(307).insert_header("Location", format!("{}/moved", elsewhere.uri()))).await;
    assert_eq!(
        world.fault().await,
        "registry HOST: it redirects web to another server, which requires a login"
    );
}

#[tokio::test]
async fn a_registry_may_redirect_to_another_one_that_gives_tokens_without_a_login() {
    let elsewhere = MockServer::start().await;
    let token = status(200).set_body_json(serde_json::json!({"token": "anyone"}));
    Mock::given(path("/token")).respond_with(token).mount(&elsewhere).await;
    Mock::given(header("authorization", "Bearer anyone"))
        .respond_with(ok(&manifest_digest()))
        .with_priority(1)
        .mount(&elsewhere)
        .await;
    let asks = challenge(&format!("Bearer realm=\"{}/token\",service=\"other\"", elsewhere.uri()));
    Mock::given(path("/moved")).respond_with(asks).mount(&elsewhere).await;
    let (world, _docker) = redirecting_to(&elsewhere).await;
    for _ in 0..2 {
        assert_eq!(world.digest().await, Ok(manifest_digest()));
    }
    let authorizations = |requests: Vec<wiremock::Request>| {
        let of = |request: &wiremock::Request| {
            Some(request.headers.get("authorization")?.to_str().ok()?.to_owned())
        };
        requests.iter().filter_map(of).collect::<Vec<_>>()
    };
    let seen = elsewhere.received_requests().await.expect("recorded");
    assert!(seen.iter().all(|request| !request.url.as_str().contains("ann")));
    assert_eq!(authorizations(seen), ["Bearer anyone"; 2], "it gets no login");
    assert_eq!(
        authorizations(world.requests().await),
        ["Basic YW5uOnMzY3JldA=="; 2],
        "and its token stays there"
    );
    assert_eq!(world.verbs().await, "HEAD HEAD HEAD", "the registry's own login is kept");
}

async fn poll_many(world: &World, images: usize) -> Vec<Result<Digest, String>> {
    poll(&world.client, &world.server.uri(), images).await
}

async fn poll(client: &RegistryClient, home: &str, images: usize) -> Vec<Result<Digest, String>> {
    let references: Vec<_> = (0..images).map(|n| reference(home, &format!("web{n}:1"))).collect();
    let polls = references.iter().map(|reference| client.digest(reference, Urgency::Routine));
    let answers = futures_util::future::join_all(polls).await;
    answers.into_iter().map(|answer| answer.map_err(|error| error.to_string())).collect()
}

/// Lets the client's clock jump ahead.
async fn pass_time(duration: Duration) {
    tokio::time::pause();
    tokio::time::advance(duration).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_429_stops_requests_for_all_images_and_one_probe_follows_after_its_time() {
    let world = World::new().await;
    Mock::given(method("HEAD"))
        .respond_with(status(429).insert_header("Retry-After", "600"))
        .mount(&world.server)
        .await;
    let answers = poll_many(&world, 60).await;
    let text = format!("registry {}: 429 too many requests", authority(&world.server.uri()));
    assert!(answers.iter().all(|answer| *answer == Err(text.clone())), "{answers:?}");
    let first = world.requests().await.len();
    assert!(first <= 4, "{first} requests");
    assert_eq!(poll_many(&world, 60).await, answers);
    assert!(world.digest_for_operator().await.is_err());
    assert_eq!(world.requests().await.len(), first, "no requests before the time is over");
    pass_time(Duration::from_secs(661)).await;
    assert_eq!(poll_many(&world, 60).await, answers);
    assert_eq!(world.requests().await.len(), first + 1, "one probe per window");

    world.server.reset().await;
    Mock::given(method("HEAD")).respond_with(ok(&manifest_digest())).mount(&world.server).await;
    pass_time(Duration::from_secs(661)).await;
    let answers = poll_many(&world, 60).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(world.requests().await.len(), 60);
}

#[tokio::test]
async fn a_retry_after_date_is_honored_like_seconds() {
    let world = World::new().await;
    let limited = status(429)
        .insert_header("Date", "Thu, 01 Jan 2026 00:00:00 GMT")
        .insert_header("Retry-After", "Thu, 01 Jan 2026 00:10:00 GMT");
    world.on("HEAD", script([limited, ok(&manifest_digest())])).await;
    assert!(world.digest().await.is_err());
    assert!(world.digest_for_operator().await.is_err());
    assert_eq!(world.requests().await.len(), 1);
    pass_time(Duration::from_secs(599)).await;
    assert!(world.digest().await.is_err());
    pass_time(Duration::from_secs(62)).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
}

#[tokio::test]
async fn a_rate_limit_of_less_than_a_second_fails_no_image() {
    let world = World::new().await;
    Mock::given(method("HEAD")).respond_with(ok(&manifest_digest())).mount(&world.server).await;
    assert!(poll_many(&world, 20).await.iter().all(Result::is_ok));
    world.server.reset().await;
    let mut heads = vec![ok(&manifest_digest()); 4];
    heads.extend([status(429).insert_header("Retry-After", "0.7ms"), ok(&manifest_digest())]);
    Mock::given(method("HEAD")).respond_with(script(heads)).mount(&world.server).await;
    let answers = poll_many(&world, 20).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(world.requests().await.len(), 21, "the refused request was sent again");
}

#[tokio::test]
async fn while_a_registry_is_down_every_cycle_gives_an_image_the_same_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let client = client_of(&format!("http://{address}"), anonymous());
    let good = format!("HTTP/1.1 200 OK\r\nDocker-Content-Digest: {}\r\n\r\n", manifest_digest());
    tokio::select! {
        () = raw_server(listener, |_| good.clone().into_bytes()) => {}
        known = poll(&client, &address, 20) => assert!(known.iter().all(Result::is_ok), "{known:?}"),
    }
    // Nobody listens any more.
    let down = Err(format!("registry {address}: connection refused"));
    for _ in 0..3 {
        assert_eq!(poll(&client, &address, 20).await, vec![down.clone(); 20]);
    }
}

#[tokio::test]
async fn while_a_registry_asks_for_a_long_wait_every_cycle_gives_an_image_the_same_answer() {
    let world = World::new().await;
    Mock::given(method("HEAD")).respond_with(ok(&manifest_digest())).mount(&world.server).await;
    assert!(poll_many(&world, 20).await.iter().all(Result::is_ok));
    world.server.reset().await;
    let away = status(503).insert_header("Retry-After", "600");
    Mock::given(method("HEAD")).respond_with(away).mount(&world.server).await;
    let first = poll_many(&world, 20).await;
    let asked = world.requests().await.len();
    assert!(asked <= 4, "{asked} requests");
    assert_eq!(first.iter().filter(|answer| answer.is_err()).count(), asked, "the others were not asked");
    for _ in 0..3 {
        assert_eq!(poll_many(&world, 20).await, first);
    }
    assert_eq!(world.requests().await.len(), asked);
}

#[tokio::test]
async fn a_broken_registry_gets_no_requests_for_a_while_except_for_manual_checks() {
    let world = World::new().await;
    world.on("HEAD", script([status(503), status(500), ok(&manifest_digest())])).await;
    assert_eq!(world.fault().await, "registry HOST: 503 service unavailable for web");
    assert_eq!(world.fault().await, "registry HOST: 503 service unavailable for web");
    assert_eq!(world.requests().await.len(), 1);
    let error = world.digest_for_operator().await.expect_err("still broken");
    assert!(error.ends_with("500 internal server error for web"), "{error}");
    assert_eq!(world.digest_for_operator().await, Ok(manifest_digest()));
    assert_eq!(world.digest().await, Ok(manifest_digest()), "a success ends the backoff for all");
}

#[tokio::test]
async fn an_error_of_one_repository_backs_off_no_other_and_is_shown_for_no_other() {
    for refusal in [500, 502, 503, 504, 401, 403, 418] {
        let world = World::new().await;
        Mock::given(path("/v2/web7/manifests/1"))
            .respond_with(status(refusal))
            .with_priority(1)
            .mount(&world.server)
            .await;
        Mock::given(method("HEAD")).respond_with(ok(&manifest_digest())).mount(&world.server).await;
        for _ in 0..3 {
            let answers = poll_many(&world, 41).await;
            for (n, answer) in answers.iter().enumerate() {
                match answer {
                    Err(error) => assert!(n == 7 && error.contains(" for web7"), "{refusal}: {n}: {error}"),
                    Ok(_) => assert_ne!(n, 7, "{refusal}"),
                }
            }
        }
        let asked: Vec<String> =
            world.requests().await.iter().map(|request| request.url.path().to_owned()).collect();
        let count = |path: &str| asked.iter().filter(|asked| *asked == path).count();
        assert_eq!(count("/v2/web7/manifests/1"), 1, "{refusal}: it backs off");
        assert_eq!(asked.len(), 1 + 3 * 40, "{refusal}: all others are asked each time");
    }
}

#[tokio::test]
async fn an_image_that_is_not_asked_during_a_backoff_keeps_its_last_answer() {
    let world = World::new().await;
    Mock::given(method("HEAD")).respond_with(ok(&manifest_digest())).mount(&world.server).await;
    assert!(poll_many(&world, 2).await.iter().all(Result::is_ok));
    world.server.reset().await;
    let limited = status(429).insert_header("Retry-After", "600");
    Mock::given(method("HEAD")).respond_with(limited).mount(&world.server).await;
    assert!(poll_many(&world, 1).await[0].is_err());
    let answers = poll_many(&world, 3).await;
    assert!(answers[0].is_err(), "it was asked, and got this answer");
    assert_eq!(answers[1], Ok(manifest_digest()), "it was not asked");
    assert!(answers[2].is_err(), "nothing is known about it");
    assert_eq!(world.requests().await.len(), 1);
    let second = reference(&world.server.uri(), "web1:1");
    assert!(world.client.digest(&second, Urgency::Manual).await.is_err(), "a user gets the truth");
}

#[tokio::test]
async fn the_same_failure_has_the_same_text_whatever_the_registry_says_about_it() {
    let world = World::new().await;
    world.on("HEAD", status(404)).await;
    for id in ["7f3c9a12-0000-4000-8000-0123456789ab", "1b2c3d4e-0000-4000-8000-ba9876543210"] {
        let text = format!("no such tag (request id: {id}, at 2026-01-01T10:11:12.{}Z)", id.len());
        let body = format!(r#"{{"errors":[{{"code":"MANIFEST_UNKNOWN","message":"{text}"}}]}}"#);
        Mock::given(method("GET"))
            .respond_with(status(404).set_body_string(body))
            .up_to_n_times(1)
            .mount(&world.server)
            .await;
        assert_eq!(world.fault().await, "image HOST/web:1: tag not found in the registry");
    }
}

#[tokio::test]
async fn the_error_for_an_unreachable_registry_names_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let client = client_of(&format!("http://{address}"), anonymous());
    let error =
        client.digest(&reference(&address, "web:1"), Urgency::Routine).await.expect_err("not listening");
    assert_eq!(error.to_string(), format!("registry {address}: connection refused"));
}

#[tokio::test]
async fn a_hanging_registry_delays_no_other() {
    let hung = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = hung.local_addr().expect("bound").to_string();
    let world = World::new().await;
    world.on("HEAD", ok(&manifest_digest())).await;
    let images: Vec<_> = (0..20).map(|n| reference(&address, &format!("web{n}:1"))).collect();
    let stuck = images.iter().map(|image| world.client.digest(image, Urgency::Routine));
    tokio::select! {
        _ = futures_util::future::join_all(stuck) => panic!("the hanging registry responds"),
        answer = world.digest() => assert_eq!(answer, Ok(manifest_digest())),
    }
}

#[tokio::test]
async fn while_one_repository_hangs_the_others_are_asked_and_get_their_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let client = client_of(&format!("http://{address}"), anonymous());
    let good = format!(
        "HTTP/1.1 200 OK\r\nDocker-Content-Digest: {}\r\nConnection: close\r\n\r\n",
        manifest_digest()
    );
    let arrived = Notify::new();
    let serve = async {
        let mut hung = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.expect("accepted");
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.expect("a request");
            if String::from_utf8_lossy(&request[..length]).contains("/hangs/") {
                hung.push(stream);
                arrived.notify_one();
                continue;
            }
            let _ = stream.write_all(good.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    };
    let (hangs, web) = (reference(&address, "hangs:1"), reference(&address, "web:1"));
    let ask = async {
        for cycle in 0..3 {
            let hung = client.digest(&hangs, Urgency::Routine);
            tokio::pin!(hung);
            // It was the only one at first, so that the registry seems to hang. Then it lets the others go first.
            if cycle > 0 {
                tokio::select! {
                    biased;
                    answer = &mut hung => panic!("{cycle}: {answer:?}"),
                    answer = client.digest(&web, Urgency::Routine) => assert_eq!(answer, Ok(manifest_digest())),
                }
                pass_time(Duration::from_secs(2)).await;
            }
            tokio::select! {
                biased;
                answer = &mut hung => panic!("{cycle}: {answer:?}"),
                () = arrived.notified() => {}
            }
            pass_time(Duration::from_secs(15)).await;
            let error = hung.await.expect_err("it hangs").to_string();
            assert!(error.ends_with("no answer in time"), "{cycle}: {error}");
            pass_time(Duration::from_mins(1)).await;
        }
    };
    tokio::select! {
        () = serve => {}
        () = ask => {}
    }
}

/// Queries a registry that sends one of `answers` per request, then hangs. Returns the client's error.
async fn fault_of_a_hanging_registry(scheme: &str, answers: &[&str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let client = client_of(&format!("{scheme}://{address}"), anonymous());
    let image = reference(&address, "web:1");
    let serve = async {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        for answer in answers {
            let _ = stream.read(&mut [0; 4096]).await.expect("a request");
            stream.write_all(answer.as_bytes()).await.expect("sent");
        }
        std::future::pending().await
    };
    tokio::select! {
        never = serve => never,
        answer = client.digest(&image, Urgency::Routine) => {
            answer.expect_err("it hangs").to_string().replace(&address, "HOST")
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_hanging_registry_times_out_at_every_stage() {
    let fault = fault_of_a_hanging_registry("https", &[]).await;
    assert_eq!(fault, "registry HOST: no connection in time");
    let fault = fault_of_a_hanging_registry("http", &["HTTP/1.1 200 OK\r\n"]).await;
    assert_eq!(fault, "registry HOST: no answer in time");
    let no_head = "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n";
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{";
    let fault = fault_of_a_hanging_registry("http", &[no_head, half]).await;
    assert_eq!(fault, "image HOST/web:1: no answer in time");
}

#[tokio::test]
async fn no_more_requests_than_configured_are_in_flight_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let client = client_of(&format!("http://{address}"), anonymous());
    let images: Vec<_> = (0..20).map(|n| reference(&address, &format!("web{n}:1"))).collect();
    let polls = images.iter().map(|image| client.digest(image, Urgency::Routine));
    let mut connections = Vec::new();
    let accept = async {
        while let Ok(Ok((stream, _))) =
            tokio::time::timeout(Duration::from_millis(500), listener.accept()).await
        {
            connections.push(stream);
        }
    };
    tokio::select! {
        _ = futures_util::future::join_all(polls) => panic!("there are no responses"),
        () = accept => {}
    }
    assert_eq!(connections.len(), 4);
}

/// Sends `answer(n)` on the nth connection, then closes it.
async fn raw_server(listener: TcpListener, answer: impl Fn(usize) -> Vec<u8>) {
    let mut number = 0;
    loop {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(&answer(number)).await;
        let _ = stream.shutdown().await;
        number += 1;
    }
}

#[tokio::test]
async fn a_connection_that_closes_without_a_response_is_retried_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let client = client_of(&format!("http://{address}"), anonymous());
    let good = format!("HTTP/1.1 200 OK\r\nDocker-Content-Digest: {}\r\n\r\n", manifest_digest());
    let server = raw_server(listener, move |n| if n == 0 { Vec::new() } else { good.clone().into_bytes() });
    let image = reference(&address, "web:1");
    tokio::select! {
        () = server => {}
        answer = client.digest(&image, Urgency::Routine) => {
            assert_eq!(answer, Ok(manifest_digest()));
        }
    }
}

#[tokio::test]
async fn a_response_that_is_not_http_gives_a_clear_error() {
    for junk in ["", "SSH-2.0-OpenSSH_9\r\n", "HTTP/1.1 200 OK\r\nDocker-Content-Digest: \u{0}\r\n\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let client = client_of(&format!("http://{address}"), anonymous());
        let image = reference(&address, "web:1");
        tokio::select! {
            () = raw_server(listener, |_| junk.as_bytes().to_vec()) => {}
            answer = client.digest(&image, Urgency::Routine) => {
                let error = answer.expect_err("junk").to_string();
                assert!(error.starts_with(&format!("registry {address}: ")), "{error}");
                assert!(!error.contains("http://"), "{error}");
            }
        }
    }
}

/// A registry with a self-signed certificate.
async fn tls_registry() -> (String, impl Future<Output = ()>) {
    let acceptor = self_signed("localhost");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("localhost:{}", listener.local_addr().expect("bound").port());
    let serve = async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accepted");
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let answer = format!(
                "HTTP/1.1 200 OK\r\nDocker-Content-Digest: {}\r\nConnection: close\r\n\r\n",
                manifest_digest()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    };
    (address, serve)
}

#[tokio::test]
async fn an_unknown_certificate_is_accepted_only_if_configured() {
    let (address, serve) = tls_registry().await;
    let ask = async {
        for insecure in [false, true] {
            let config = RegistryConfig {
                url: format!("https://{address}"),
                host: address.clone(),
                insecure,
                concurrency: 8,
                ..Default::default()
            };
            let client = RegistryClient::new(&config, anonymous()).expect("good settings");
            let answer = client.digest(&reference(&address, "web:1"), Urgency::Routine).await;
            match answer {
                Ok(digest) => assert!(insecure && digest == manifest_digest()),
                Err(error) => {
                    assert!(!insecure, "{error}");
                    let text =
                        format!("registry {address}: its TLS certificate is not signed by a known authority");
                    assert_eq!(error.to_string(), text);
                }
            }
        }
    };
    tokio::select! {
        () = serve => {}
        () = ask => {}
    }
}
