//! Pushes to wardens of all ages: arrays, single entries, refusals, several addresses.

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
        machine_id: String::new(),
        ring: 0,
        patience: Duration::ZERO,
    })
    .unwrap()
}

fn entries(count: u64, output: usize) -> Vec<PushedEntry> {
    let entry = |seq| {
        let mut entry = AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::UPDATED, Level::Info, "m");
        entry.output = "x".repeat(output);
        let image = Some("registry.example/web:1".to_owned());
        PushedEntry { entry, seq: Some(seq), epoch: Some("e1".to_owned()), image, agent: None }
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
    requests.iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

#[tokio::test]
async fn several_entries_go_as_an_array_and_one_as_itself() {
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
async fn a_warden_that_knows_single_entries_only_gets_them_one_by_one() {
    for status in [400, 404, 415, 413] {
        let warden = answers(move |request| {
            ResponseTemplate::new(if request.body.starts_with(b"[") { status } else { 200 })
        })
        .await;
        let push = push(&[&warden]);
        assert_eq!(push.batch(), BATCH);
        assert_eq!(push.send(&entries(3, 0), &Redactor::default()).await.unwrap().settled, 1);
        // It is not asked again for each of them.
        assert_eq!(push.batch(), 1);
        assert_eq!(push.send(&entries(3, 0), &Redactor::default()).await.unwrap().settled, 1);
        assert_eq!(bodies(&warden).await.len(), 3, "{status}");
    }
}

#[tokio::test]
async fn entries_that_an_array_is_rid_of_are_named() {
    let reply = json!({"status": "accepted", "rejected": [
        {"index": 1, "error": "no event"}, {"index": 99, "error": "nonsense"},
    ]});
    let warden = answers(move |_| ResponseTemplate::new(200).set_body_json(reply.clone())).await;
    let sent = push(&[&warden]).send(&entries(3, 0), &Redactor::default()).await.unwrap();
    assert_eq!((sent.settled, sent.refused), (3, vec![(1, "no event".to_owned())]));
}

#[tokio::test]
async fn the_warden_that_answered_last_is_asked_first() {
    let first = answers(|_| ResponseTemplate::new(503)).await;
    let second = answers(|_| ResponseTemplate::new(200)).await;
    let push = push(&[&first, &second]);
    for _ in 0..3 {
        push.send(&entries(1, 0), &Redactor::default()).await.unwrap();
    }
    assert_eq!((bodies(&first).await.len(), bodies(&second).await.len()), (1, 3));
    // When it fails, the others are tried in their order.
    second.reset().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(503)).mount(&second).await;
    first.reset().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(200)).mount(&first).await;
    push.send(&entries(1, 0), &Redactor::default()).await.unwrap();
    push.send(&entries(1, 0), &Redactor::default()).await.unwrap();
    assert_eq!((bodies(&first).await.len(), bodies(&second).await.len()), (2, 1));
}

#[tokio::test]
async fn an_entry_that_is_refused_is_not_taken_elsewhere() {
    let (first, second) =
        (answers(|_| ResponseTemplate::new(400)).await, answers(|_| ResponseTemplate::new(200)).await);
    let refused = push(&[&first, &second]).send(&entries(1, 0), &Redactor::default()).await;
    assert!(matches!(refused, Err(DeliveryError::Permanent { .. })), "{refused:?}");
    assert_eq!(bodies(&second).await.len(), 0);
}
