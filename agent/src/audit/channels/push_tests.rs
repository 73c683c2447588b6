//! Pushes to wardens of all versions: arrays, single entries, rejections, several addresses.

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::*;

fn push(wardens: &[&MockServer]) -> Push {
    Push::new(&PushConfig {
        warden_urls: wardens.iter().map(|warden| warden.uri()).collect(),
        token: Secret::new("token-1"),
        ring: 0,
        patience: Duration::ZERO,
    })
    .unwrap()
}

fn entries(count: u64, output: usize) -> Vec<AuditEntry> {
    let entry = |seq| {
        let mut entry = AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::UPDATED, Level::Info, "m");
        entry.output = "x".repeat(output);
        entry.image = Some("registry.example/web:1".to_owned());
        entry.epoch = Some("e1".to_owned());
        AuditEntry { seq: Some(seq), ..entry }
    };
    (0..count).map(entry).collect()
}

async fn answers(answer: impl Fn(&Request) -> ResponseTemplate + Send + Sync + 'static) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

async fn bodies(server: &MockServer) -> Vec<Value> {
    let requests = server.received_requests().await.unwrap();
    let entries = requests.iter().filter(|request| request.url.path() == "/ingest");
    entries.map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

#[tokio::test]
async fn several_entries_are_sent_as_an_array_and_one_as_an_object() {
    let warden = answers(|_| ResponseTemplate::new(200).set_body_json(json!({"status": "accepted"}))).await;
    let push = push(&[&warden]);
    assert_eq!(push.send(&entries(3, 0), &Redactor::default()).await.unwrap().settled, 3);
    assert_eq!(push.send(&entries(1, 0), &Redactor::default()).await.unwrap().settled, 1);
    let bodies = bodies(&warden).await;
    assert_eq!(bodies[0].as_array().unwrap().len(), 3);
    assert_eq!(bodies[0][2]["seq"], 2);
    assert_eq!((&bodies[1]["epoch"], &bodies[1]["image"]), (&json!("e1"), &json!("registry.example/web:1")));
}

#[tokio::test]
async fn an_array_stays_under_the_wardens_limit() {
    let warden = answers(|_| ResponseTemplate::new(200)).await;
    let sent = push(&[&warden]).send(&entries(500, 8192), &Redactor::default()).await.unwrap();
    assert!((10..500).contains(&sent.settled), "{sent:?}");
    let request = &warden.received_requests().await.unwrap()[0];
    assert!(request.body.len() < 1024 * 1024, "{}", request.body.len());
}

#[tokio::test]
async fn a_warden_without_array_support_gets_entries_one_by_one() {
    for status in [400, 404, 415, 413] {
        let warden = answers(move |request| {
            ResponseTemplate::new(if request.body.starts_with(b"[") { status } else { 200 })
        })
        .await;
        let push = push(&[&warden]);
        assert_eq!(push.batch(), BATCH);
        assert_eq!(push.send(&entries(3, 0), &Redactor::default()).await.unwrap().settled, 1);
        // Array support is not probed again for each entry.
        assert_eq!(push.batch(), 1);
        assert_eq!(push.send(&entries(3, 0), &Redactor::default()).await.unwrap().settled, 1);
        assert_eq!(bodies(&warden).await.len(), 3, "{status}");
    }
}

#[tokio::test]
async fn rejected_entries_of_an_array_are_reported() {
    let reply = json!({"status": "accepted", "rejected": [
        {"index": 1, "error": "no event\nof token-1"}, {"index": 99, "error": "nonsense"},
        {"index": 1, "error": "said again, and again"},
    ]});
    let warden = answers(move |_| ResponseTemplate::new(200).set_body_json(reply.clone())).await;
    let mut redactor = Redactor::default();
    redactor.hide(&Secret::new("token-1"));
    let sent = push(&[&warden]).send(&entries(3, 0), &redactor).await.unwrap();
    assert_eq!((sent.settled, sent.refused), (3, vec![(1, "no event of (redacted)".to_owned())]));
}

#[tokio::test]
async fn the_warden_that_last_accepted_entries_is_tried_first() {
    let first = answers(|_| ResponseTemplate::new(503)).await;
    let second = answers(|_| ResponseTemplate::new(200)).await;
    let push = push(&[&first, &second]);
    for _ in 0..3 {
        push.send(&entries(1, 0), &Redactor::default()).await.unwrap();
    }
    assert_eq!((bodies(&first).await.len(), bodies(&second).await.len()), (1, 3));
    // When it fails, the others are tried in order.
    second.reset().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(503)).mount(&second).await;
    first.reset().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(200)).mount(&first).await;
    push.send(&entries(1, 0), &Redactor::default()).await.unwrap();
    push.send(&entries(1, 0), &Redactor::default()).await.unwrap();
    assert_eq!((bodies(&first).await.len(), bodies(&second).await.len()), (2, 1));
}

#[tokio::test]
async fn a_rejected_entry_is_not_sent_to_another_warden() {
    let refuse = |request: &Request| match request.url.path() {
        // Its store is unavailable, but it is a warden.
        "/health" => ResponseTemplate::new(503).set_body_json(json!({"status": "unavailable"})),
        _ => ResponseTemplate::new(400),
    };
    let (first, second) = (answers(refuse).await, answers(|_| ResponseTemplate::new(200)).await);
    let refused = push(&[&first, &second]).send(&entries(1, 0), &Redactor::default()).await;
    assert!(matches!(refused, Err(DeliveryError::Permanent { .. })), "{refused:?}");
    assert_eq!(bodies(&second).await.len(), 0);
}

#[tokio::test]
async fn only_a_warden_can_reject_an_entry_permanently() {
    let health = |status, body: &str| {
        let body = body.to_owned();
        move |request: &Request| match request.url.path() {
            "/health" => ResponseTemplate::new(status).set_body_string(body.clone()),
            _ => ResponseTemplate::new(400),
        }
    };
    for (status, body) in
        [(400, "plain HTTP to an HTTPS port"), (400, r#"{"status": 400}"#), (200, "ok"), (200, "[]")]
    {
        let server = answers(health(status, body)).await;
        let push = push(&[&server]);
        for count in [1, 3] {
            let failed = push.send(&entries(count, 0), &Redactor::default()).await;
            assert!(matches!(failed, Err(DeliveryError::Refused { .. })), "{body}: {failed:?}");
        }
        // Nor does it disable arrays.
        assert_eq!(push.batch(), BATCH);
    }
}

#[tokio::test]
async fn a_long_pause_asked_for_by_one_warden_does_not_delay_the_others() {
    let patient = answers(|_| ResponseTemplate::new(503).insert_header("retry-after", "3600")).await;
    let usual = answers(|_| ResponseTemplate::new(503)).await;
    let soon = answers(|_| ResponseTemplate::new(503).insert_header("retry-after", "5")).await;
    for (wardens, expected) in [
        (&[&patient, &usual][..], None),
        (&[&patient, &soon], Some(Duration::from_secs(5))),
        (&[&patient], Some(Duration::from_hours(1))),
    ] {
        let failed = push(wardens).send(&entries(1, 0), &Redactor::default()).await;
        assert!(
            matches!(failed, Err(DeliveryError::Transient { after, .. }) if after == expected),
            "{failed:?}"
        );
    }
}

#[tokio::test]
async fn a_warden_that_hangs_does_not_block_the_others() {
    let slow = answers(|_| ResponseTemplate::new(200).set_delay(Duration::from_mins(1))).await;
    let quick = answers(|_| ResponseTemplate::new(200)).await;
    let answers = push(&[&slow, &quick]).ask(Duration::from_secs(1)).await;
    assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
}
