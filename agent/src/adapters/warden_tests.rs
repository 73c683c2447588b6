//! Tests of the client with wardens that answer, refuse, hang, or do not support fleets.

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::Permission;
use serde_json::json;
use wiremock::matchers::{header, method, path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;

fn wardens(urls: &[String]) -> Wardens {
    Wardens::new(&PushConfig {
        warden_urls: urls.to_vec(),
        token: Secret::new("token-1"),
        ring: 2,
        patience: Duration::ZERO,
    })
    .unwrap()
}

fn question() -> FleetAsk {
    FleetAsk {
        image: "r.example/web:1".into(),
        digest: "sha256:ab".into(),
        service: "web".into(),
        ring: 2,
        progress: None,
    }
}

fn go() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(json!({"answer": "go", "why": "fine", "again": 30, "later": 1}))
}

async fn warden(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST")).and(path("/base/fleet/ask")).respond_with(answer).mount(&server).await;
    server
}

async fn health(server: &MockServer, status: u16) {
    let answer = ResponseTemplate::new(status).set_body_json(json!({"status": "ok"}));
    Mock::given(method("GET")).and(path("/base/health")).respond_with(answer).mount(server).await;
}

fn base(server: &MockServer) -> String {
    format!("{}/base", server.uri())
}

#[tokio::test]
async fn a_decisions_request_carries_the_token_and_the_known_revisions() {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .and(path("/base/fleet"))
        .and(query_param("after", "7"))
        .and(query_param("wait", "50"))
        .and(query_param("verdicts", "5"))
        .and(header("authorization", "Bearer token-1"))
        .respond_with(
            ResponseTemplate::new(200)
                .set_body_json(json!({"revision": 8, "freezes": [], "failed": [], "new": true}))
                .insert_header("date", "Thu, 01 Jan 2026 00:02:00 GMT"),
        )
        .mount(&server)
        .await;
    let known = KnownRevisions { revision: 7, verdicts: 5 };
    let response = wardens(&[base(&server)]).decisions(known, Duration::from_secs(50)).await.unwrap();
    assert_eq!(response.decisions.revision, 8);
    assert_eq!(response.date, "2026-01-01T00:02:00Z".parse().ok());
}

#[tokio::test]
async fn the_next_warden_is_asked_after_an_unusable_answer() {
    let good = warden(go()).await;
    for bad in [
        ResponseTemplate::new(503),
        ResponseTemplate::new(401),
        ResponseTemplate::new(404),
        ResponseTemplate::new(200).set_body_string("{"),
        ResponseTemplate::new(200).set_body_string("x".repeat(5 * 1024 * 1024)),
        go().set_delay(Duration::from_secs(30)),
    ] {
        let bad = warden(bad).await;
        let wardens = wardens(&[base(&bad), base(&good)]);
        let begin = std::time::Instant::now();
        assert_eq!(wardens.ask(&question()).await.unwrap().answer, Permission::Go);
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        // The one that answered is asked first from then on.
        let before = bad.received_requests().await.unwrap().len();
        wardens.ask(&question()).await.unwrap();
        assert_eq!(bad.received_requests().await.unwrap().len(), before);
    }
}

#[tokio::test]
async fn an_overloaded_warden_is_busy_and_not_unavailable() {
    let down = warden(ResponseTemplate::new(500)).await;
    for busy in [ResponseTemplate::new(429), ResponseTemplate::new(503).insert_header("retry-after", "5")] {
        let busy = warden(busy).await;
        let asked = wardens(&[base(&busy), base(&down)]).ask(&question()).await;
        assert_eq!(asked, Err(FleetError::Busy));
    }
    let broken = warden(ResponseTemplate::new(503)).await;
    let asked = wardens(&[base(&broken)]).ask(&question()).await;
    assert!(matches!(asked, Err(FleetError::Unavailable(_))), "{asked:?}");
}

#[tokio::test]
async fn there_is_no_fleet_only_if_every_warden_says_so() {
    let (old, broken) = (warden(ResponseTemplate::new(404)).await, warden(ResponseTemplate::new(500)).await);
    health(&old, 200).await;
    assert_eq!(wardens(&[base(&old)]).ask(&question()).await, Err(FleetError::NoFleet));
    let both = wardens(&[base(&old), base(&broken)]).ask(&question()).await;
    assert!(matches!(both, Err(FleetError::Unavailable(_))), "{both:?}");
    assert_eq!(Wardens::default().ask(&question()).await, Err(FleetError::NoFleet));
}

#[tokio::test]
async fn a_proxy_without_its_warden_says_nothing_about_the_fleet() {
    for (missing, status) in [(404, 404), (405, 502), (404, 301)] {
        let proxy = warden(ResponseTemplate::new(missing)).await;
        health(&proxy, status).await;
        let asked = wardens(&[base(&proxy)]).ask(&question()).await;
        assert!(matches!(asked, Err(FleetError::Unavailable(_))), "{missing}, {status}: {asked:?}");
    }
}

/// An agent, or a warden that got an `api.base_path`: its `/health` is served outside, too.
#[tokio::test]
async fn an_evenkeel_that_does_not_have_the_path_is_not_a_warden_without_a_fleet() {
    let text = "no such path; the API is served below /warden (api.base_path)";
    for status in [404, 405] {
        let moved = warden(ResponseTemplate::new(status).set_body_json(json!({"error": text}))).await;
        health(&moved, 200).await;
        let asked = wardens(&[base(&moved)]).ask(&question()).await;
        let Err(FleetError::Unavailable(why)) = &asked else { panic!("{asked:?}") };
        assert!(why.contains(&format!("({status}: {text})")), "{why}");
    }
    for body in ["404 page not found\n", "", "{}", r#""gone""#] {
        let old = warden(ResponseTemplate::new(404).set_body_string(body)).await;
        health(&old, 200).await;
        assert_eq!(wardens(&[base(&old)]).ask(&question()).await, Err(FleetError::NoFleet), "{body}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_healthy_itself_is_not_a_warden_without_a_fleet() {
    for body in ["", "OK", "<html></html>", r#"{"healthy": true}"#] {
        let proxy = warden(ResponseTemplate::new(404)).await;
        let health = ResponseTemplate::new(200).set_body_string(body);
        Mock::given(path("/base/health")).respond_with(health).mount(&proxy).await;
        let asked = wardens(&[base(&proxy)]).ask(&question()).await;
        assert!(matches!(asked, Err(FleetError::Unavailable(_))), "{body}: {asked:?}");
    }
}

#[tokio::test]
async fn only_a_warden_refuses_a_token() {
    let why = async |server: &MockServer| match wardens(&[base(server)]).ask(&question()).await {
        Err(FleetError::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    };
    for status in [401, 403] {
        let refusing = warden(ResponseTemplate::new(status)).await;
        assert_eq!(
            why(&refusing).await,
            format!("the server that answers is not a warden (it answers {status})")
        );
        health(&refusing, 200).await;
        assert_eq!(why(&refusing).await, "the warden refuses this agent's token");
    }
}

#[tokio::test]
async fn a_refused_certificate_is_the_reason_why_no_warden_answers() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = evenkeel_common::testing::self_signed("localhost");
    let tasks = evenkeel_common::supervisor::TaskSet::new();
    tasks.spawn("warden", async move {
        while let Ok((stream, _)) = listener.accept().await {
            // The client ends the handshake.
            let _ = acceptor.accept(stream).await;
        }
    });
    let asked = wardens(&[format!("https://localhost:{port}")]).ask(&question()).await;
    let Err(FleetError::Unavailable(why)) = &asked else { panic!("{asked:?}") };
    assert!(
        why.starts_with("the warden's certificate is refused: it is not signed by an authority"),
        "{why}"
    );
}

/// A server that answers everything with 200 and this.
async fn always(body: serde_json::Value) -> MockServer {
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(200).set_body_json(body);
    Mock::given(wiremock::matchers::any()).respond_with(answer).mount(&server).await;
    server
}

#[tokio::test]
async fn json_of_another_server_is_no_answer_of_a_warden() {
    let known = KnownRevisions { revision: 7, verdicts: 0 };
    for body in [json!({}), json!({"message": "maintenance"}), json!({"revision": 0}), json!([])] {
        let wardens = wardens(&[base(&always(body.clone()).await)]);
        let away = |error: Option<FleetError>| matches!(error, Some(FleetError::Unavailable(_)));
        assert!(away(wardens.decisions(known, Duration::ZERO).await.err()), "{body}");
        assert!(away(wardens.ask(&question()).await.err()), "{body}");
        assert!(away(wardens.release(&question()).await.err()), "{body}");
        assert!(away(wardens.report(&Inventory::default()).await.err()), "{body}");
    }
}

#[tokio::test]
async fn an_earlier_revision_counts_only_from_a_server_that_shows_that_it_is_a_warden() {
    let nothing = json!({"revision": 3, "freezes": [], "failed": []});
    let known = KnownRevisions { revision: 7, verdicts: 0 };
    let decided = |wardens: Wardens| async move {
        wardens.decisions(known, Duration::ZERO).await.map(|response| response.decisions.revision)
    };
    let stranger = always(nothing.clone()).await;
    let asked = decided(wardens(&[base(&stranger)])).await;
    assert!(matches!(asked, Err(FleetError::Unavailable(_))), "{asked:?}");
    // The store of this one is a new one.
    let reset = MockServer::start().await;
    health(&reset, 200).await;
    let answer = ResponseTemplate::new(200).set_body_json(&nothing);
    Mock::given(path("/base/fleet")).respond_with(answer).mount(&reset).await;
    assert_eq!(decided(wardens(&[base(&reset)])).await, Ok(3));
    assert_eq!(decided(wardens(&[base(&stranger), base(&reset)])).await, Ok(3), "the next one is asked");
}
