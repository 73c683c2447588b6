//! The fleet's decisions over real connections, and two wardens on one store.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::{FleetEntry, FreezeScope, Permission};
use evenkeel_warden::collector::Collector;
use evenkeel_warden::fleet::answer::Asking;
use evenkeel_warden::fleet::decisions::Decision;
use evenkeel_warden::keep;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::{
    A, API_TOKEN, B, SetClock, TestWarden, assert_refused, body, eventually, header, in_memory,
    new_collector, status,
};

const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

async fn post(warden: &TestWarden, path: &str, headers: &str, sent: &Value) -> String {
    let text = sent.to_string();
    let length = text.len();
    warden
        .send(&format!(
            "POST {path} HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{text}"
        ))
        .await
}

fn parsed(answer: &str) -> Value {
    assert_eq!(status(answer), 200, "{answer}");
    serde_json::from_str(body(answer)).unwrap()
}

async fn ask(warden: &TestWarden, token: &str) -> Value {
    // Until it has read its store, a warden lets nobody go.
    let store = warden.collector.store_state();
    eventually("the store is read", || store.borrow().error().is_none()).await;
    let sent = json!({"image": "r:5000/web:1", "digest": DIGEST, "service": "web"});
    parsed(&post(warden, "/fleet/ask", &bearer(token), &sent).await)
}

/// An agent reports that it runs these images: only for these do its verdicts count.
async fn report(warden: &TestWarden, token: &str, images: &[&str]) {
    let images: Vec<Value> = images.iter().map(|image| json!({"service": "web", "image": image})).collect();
    parsed(&post(warden, "/inventory", &bearer(token), &json!({"images": images})).await);
}

fn verdict(event: &str, seq: u64) -> String {
    json!({"timestamp": "2026-01-02T03:04:05Z", "service": "web", "event": event, "message": "m", "level": "info",
        "image": "r:5000/web:1", "new_digest": DIGEST, "reason": "exit code 1", "output": "the last line", "seq": seq,
        "epoch": "e"})
    .to_string()
}

fn in_an_hour() -> String {
    (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1)).to_string()
}

#[tokio::test]
async fn a_freeze_ends_a_long_poll() {
    let warden = TestWarden::start();
    report(&warden, A, &["r:5000/web:1"]).await;
    let first = parsed(&warden.get("/fleet?after=7&wait=60", &bearer(A)).await);
    assert_eq!(first["revision"], 0, "another revision is answered at once");
    let headers = bearer(A);
    let polling = async {
        let answer = parsed(&warden.get("/fleet?after=0&wait=60", &headers).await);
        (answer, Instant::now())
    };
    let freezing = async {
        sleep(Duration::from_millis(300)).await;
        let sent = json!({"reason": "audit", "until": in_an_hour(), "scope": {"machine": "a"}});
        let started = Instant::now();
        (parsed(&post(&warden, "/freeze", &bearer(API_TOKEN), &sent).await), started)
    };
    let ((woken, at), (frozen, started)) = tokio::join!(polling, freezing);
    // Not at the end of the poll.
    assert!(at - started < Duration::from_secs(50), "{:?}", at - started);
    assert_eq!(woken["revision"], frozen["revision"]);
    assert_eq!(
        (&woken["freezes"][0]["id"], &woken["freezes"][0]["reason"]),
        (&frozen["id"], &json!("audit"))
    );
    assert!(woken["freezes"][0]["seconds_left"].as_u64().unwrap() > 3500, "{woken}");
    let other = parsed(&warden.get("/fleet", &bearer(B)).await);
    assert_eq!(other["freezes"], json!([]), "it does not cover this one");
    assert_eq!(ask(&warden, A).await["gate"], "freeze");
    let thawed = parsed(&post(&warden, "/thaw", &bearer(API_TOKEN), &json!({"id": frozen["id"]})).await);
    assert_eq!(thawed["status"], "thawed");
    assert_eq!(ask(&warden, A).await["answer"], "go");
    let events: Vec<_> = crate::support::lines(&warden.collector)
        .iter()
        .map(|line| (line["event"].as_str().unwrap().to_owned(), line["service"].clone()))
        .collect();
    assert_eq!(events, [("frozen".to_owned(), json!("warden")), ("thawed".to_owned(), json!("warden"))]);
    warden.finish().await;
}

#[tokio::test]
async fn the_end_of_a_freeze_is_in_the_history_of_its_machine_and_image() {
    let warden = TestWarden::start();
    let user = bearer(API_TOKEN);
    let freeze = async |scope: Value| {
        let sent = json!({"reason": "audit", "until": in_an_hour(), "scope": scope});
        parsed(&post(&warden, "/freeze", &user, &sent).await)["id"].clone()
    };
    let history = async |query: &str| -> Vec<String> {
        let page = parsed(&warden.get(&format!("/history?{query}"), &user).await);
        let entries = page["entries"].as_array().unwrap().iter().rev();
        entries.map(|entry| entry["event"].as_str().unwrap().to_owned()).collect()
    };
    let one = freeze(json!({"machine": "a", "image": "registry.example/web"})).await;
    parsed(&post(&warden, "/thaw", &user, &json!({"id": one})).await);
    assert_eq!(history("machine=a").await, ["frozen", "thawed"]);
    assert_eq!(history("image=registry.example/web").await, ["frozen", "thawed"]);
    // All at once: each machine's history has its own end.
    freeze(json!({"machine": "a"})).await;
    freeze(json!({"machine": "b"})).await;
    freeze(json!({})).await;
    assert_eq!(parsed(&post(&warden, "/thaw", &user, &json!({})).await)["status"], "thawed");
    assert_eq!(history("machine=a").await, ["frozen", "thawed", "frozen", "thawed"]);
    assert_eq!(history("machine=b").await, ["frozen", "thawed"]);
    assert_eq!(history("machine=warden").await, ["frozen", "thawed"]);
    assert_eq!(parsed(&post(&warden, "/thaw", &user, &json!({})).await)["status"], "nothing_frozen");
    warden.finish().await;
}

#[tokio::test]
async fn a_digest_that_fails_on_one_machine_is_withheld_from_the_others() {
    let warden = TestWarden::start();
    report(&warden, A, &["r:5000/web:1"]).await;
    assert_eq!(ask(&warden, A).await["answer"], "go");
    let waits = ask(&warden, B).await;
    assert_eq!((&waits["answer"], &waits["agent"]), (&json!("wait"), &json!("a")));
    let told: Value = parsed(&warden.post(A, &verdict("rolled_back", 1)).await);
    let refused = ask(&warden, B).await;
    assert_eq!(
        (&refused["answer"], &refused["gate"], &refused["agent"]),
        (&json!("no"), &json!("immunity"), &json!("a"))
    );
    let decisions = parsed(&warden.get("/fleet", &bearer(B)).await);
    assert_eq!(decisions["revision"], told["fleet"]);
    // The logs of its containers are nothing for other agents.
    assert_eq!(decisions["failed"][0].get("output"), None);
    let unblock = json!({"image": "r:5000/web", "digest": DIGEST});
    for expected in ["unblocked", "not_blocked"] {
        let lifted = parsed(&post(&warden, "/unblock", &bearer(API_TOKEN), &unblock).await);
        assert_eq!(lifted["status"], expected);
    }
    assert_eq!(ask(&warden, B).await["answer"], "go");
    assert_eq!(ask(&warden, A).await["answer"], "wait");
    let sent = json!({"image": "r:5000/web:1", "digest": DIGEST, "service": "web"});
    for expected in ["released", "not_held"] {
        assert_eq!(parsed(&post(&warden, "/fleet/release", &bearer(B), &sent).await)["status"], expected);
    }
    assert_eq!(ask(&warden, A).await["answer"], "go");
    warden.finish().await;
}

#[tokio::test]
async fn a_withheld_digest_is_shown_while_a_machine_is_offered_it_or_has_blocked_it() {
    let warden = TestWarden::start();
    let found = async |token: &str, digest: &str, key: &str| {
        let image = json!({"service": "web", "image": "r:5000/web:1", "digest": digest, key: DIGEST});
        parsed(&post(&warden, "/inventory", &bearer(token), &json!({ "images": [image] })).await);
    };
    let fixed = async |token: &str| {
        let image = json!({"service": "web", "image": "r:5000/web:1", "digest": "sha256:fixed"});
        parsed(&post(&warden, "/inventory", &bearer(token), &json!({ "images": [image] })).await);
    };
    let shown = async || {
        let map = parsed(&warden.get("/fleet/images", &bearer(API_TOKEN)).await);
        let count = map["failed"].as_array().unwrap().len();
        let metrics = warden.get("/metrics", &bearer(API_TOKEN)).await;
        let line = format!("evenkeel_warden_withheld_digests {count}");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
        count
    };
    found(A, "sha256:old", "available").await;
    found(B, "sha256:old", "available").await;
    parsed(&warden.post(A, &verdict("rolled_back", 1)).await);
    assert_eq!(shown().await, 1);
    found(A, "sha256:old", "blocked").await;
    fixed(B).await;
    assert_eq!(shown().await, 1, "one machine has blocked it");
    fixed(A).await;
    assert_eq!(shown().await, 0, "all machines run the image that mends it");
    let decisions = parsed(&warden.get("/fleet", &bearer(B)).await);
    assert_eq!(decisions["failed"][0]["digest"], DIGEST, "it stays withheld");
    assert_eq!(ask(&warden, B).await["gate"], "immunity");
    found(B, "sha256:fixed", "available").await;
    assert_eq!(shown().await, 1, "the registry offers it again");
    warden.finish().await;
}

#[tokio::test]
async fn a_verdict_wakes_the_agents_that_found_its_digest_and_no_others() {
    let warden = TestWarden::start();
    let found = json!({"images": [{"service": "web", "image": "r:5000/web:1", "digest": "sha256:old",
        "available": DIGEST}]});
    parsed(&post(&warden, "/inventory", &bearer(B), &found).await);
    report(&warden, A, &["r:5000/web:1"]).await;
    assert_eq!(ask(&warden, A).await["answer"], "go");
    let (a, b) = (bearer(A), bearer(B));
    let polls = async |path: &str, headers: &str| parsed(&warden.get(path, headers).await);
    let first = polls("/fleet", &b).await;
    assert_eq!((&first["revision"], &first["verdicts"]), (&json!(0), &Value::Null));
    let verdicts = async |number| {
        sleep(Duration::from_millis(300)).await;
        parsed(&warden.post(A, &verdict("updated", number)).await)
    };
    let started = Instant::now();
    let (woken, proven) = tokio::join!(polls("/fleet?after=0&wait=60&verdicts=0", &b), verdicts(1));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(proven["fleet"], 0, "a verdict is not a decision");
    let known = woken["verdicts"].as_u64().filter(|known| *known > 0).unwrap();
    // Known verdicts, verdicts on other digests, and polls of earlier agents without `verdicts` do not wake an agent.
    let (path, started) = (format!("/fleet?after=0&wait=1&verdicts={known}"), Instant::now());
    let still = polls(&path, &b).await;
    assert_eq!(still["verdicts"], known);
    let (other, _) = tokio::join!(polls("/fleet?after=0&wait=1&verdicts=0", &a), verdicts(2));
    assert_eq!(other["verdicts"], Value::Null);
    polls("/fleet?after=0&wait=1", &b).await;
    assert!(started.elapsed() >= Duration::from_secs(3), "{:?}", started.elapsed());
    // The digest is deployed: its verdicts no longer matter.
    let runs = json!({"images": [{"service": "web", "image": "r:5000/web:1", "digest": DIGEST}]});
    parsed(&post(&warden, "/inventory", &bearer(B), &runs).await);
    assert_eq!(polls(&path, &b).await["verdicts"], Value::Null);
    warden.finish().await;
}

#[tokio::test]
async fn three_rollbacks_of_different_images_freeze_the_fleet_once() {
    let warden = TestWarden::start();
    report(&warden, A, &["r/a", "r/b", "r/c", "r/d"]).await;
    for (seq, image) in [(1, "r/a"), (2, "r/b"), (3, "r/c"), (4, "r/d")] {
        let mut entry: Value = serde_json::from_str(&verdict("rolled_back", seq)).unwrap();
        entry["image"] = json!(image);
        entry["timestamp"] = json!(jiff::Timestamp::now().to_string());
        parsed(&warden.post(A, &entry.to_string()).await);
    }
    let decisions = parsed(&warden.get("/fleet", &bearer(B)).await);
    assert_eq!(decisions["freezes"].as_array().unwrap().len(), 1);
    assert_eq!(decisions["freezes"][0]["by"], "fuse");
    warden.finish().await;
}

#[tokio::test]
async fn the_map_shows_what_machines_report() {
    let warden = TestWarden::start();
    let report = json!({"ring": 1, "images": [{"service": "web", "image": "r:5000/web:1", "digest": "sha256:old",
        "available": DIGEST, "behind_since": "2026-01-01T00:00:00Z", "why": "=1+1, \"x\""}]});
    assert_eq!(parsed(&post(&warden, "/inventory", &bearer(A), &report).await)["status"], "accepted");
    ask(&warden, A).await;
    let images = parsed(&warden.get("/fleet/images", &bearer(API_TOKEN)).await);
    assert_eq!(images["machines"], json!(["a", "b"]));
    let cell = &images["images"][0]["cells"][0];
    assert_eq!(
        (&images["images"][0]["repository"], &cell["ring"], &cell["verdict"]),
        (&json!("r:5000/web"), &json!(1), &json!("trying"))
    );
    for (path, headers) in [("/fleet/images?format=csv", ""), ("/fleet/images", "accept: text/csv\r\n")] {
        let csv = warden.get(path, &format!("{}{headers}", bearer(API_TOKEN))).await;
        assert_eq!(header(&csv, "content-type"), Some("text/csv; charset=utf-8"));
        let row = body(&csv).lines().nth(1).unwrap().to_owned();
        assert!(
            row.starts_with("\"r:5000/web\",\"a\",\"1\",") && row.contains(",\"'=1+1, \"\"x\"\"\","),
            "{row}"
        );
    }
    let metrics = warden.get("/metrics", &bearer(API_TOKEN)).await;
    for line in [
        "evenkeel_warden_behind_machines{image=\"r:5000/web\"} 1",
        "evenkeel_warden_leases 1",
        "evenkeel_warden_freezes 0",
        "evenkeel_warden_fuse_freezes 0",
        "evenkeel_warden_answers_total{answer=\"go\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    warden.finish().await;
}

#[tokio::test]
async fn a_long_reason_is_truncated_and_its_report_is_accepted() {
    let warden = TestWarden::start();
    let why = format!("x{}", "ä".repeat(600));
    let image = json!({"service": "web", "image": "r:5000/web:1", "gate": "command", "why": why});
    parsed(&post(&warden, "/inventory", &bearer(A), &json!({ "images": [image] })).await);
    let map = parsed(&warden.get("/fleet/images", &bearer(API_TOKEN)).await);
    let kept = map["images"][0]["cells"][0]["why"].as_str().unwrap();
    assert!(kept.len() == 1023 && why.starts_with(kept), "{} bytes", kept.len());
    warden.finish().await;
}

#[tokio::test]
async fn agents_learn_since_when_the_fleet_has_seen_a_tags_digest() {
    let warden = TestWarden::start();
    let report = |digest: &str, available: &str| {
        json!({"images": [{"service": "web", "image": "r:5000/web:1", "digest": digest, "available": available,
            "behind_since": "2001-01-01T00:00:00Z"}]})
    };
    let seen = async |token: &str| parsed(&warden.get("/fleet", &bearer(token)).await)["seen"].clone();
    assert_eq!(seen(B).await, Value::Null, "it has not reported its images");
    parsed(&post(&warden, "/inventory", &bearer(A), &report("sha256:old", DIGEST)).await);
    assert_eq!(seen(B).await, Value::Null, "only an agent's own images are included");
    let other = json!({"images": [{"service": "web", "image": "r:5000/web:1"}]});
    parsed(&post(&warden, "/inventory", &bearer(B), &other).await);
    let told = seen(B).await;
    assert_eq!((&told[0]["image"], &told[0]["digest"]), (&json!("r:5000/web:1"), &json!(DIGEST)), "{told}");
    // By the warden's clock: times reported by agents do not count.
    assert!(told[0]["seconds_ago"].as_u64().unwrap() < 3600, "{told}");
    assert_eq!(told.as_array().unwrap().len(), 1);
    parsed(&post(&warden, "/inventory", &bearer(A), &report("sha256:old", "sha256:new")).await);
    assert_eq!(seen(B).await[0]["digest"], "sha256:new", "the tag refers to another digest");
    let newer = json!({"images": [{"service": "web", "image": "r:5000/web:1", "digest": "sha256:old",
        "available": DIGEST, "available_image": "r:5000/web:2"}]});
    parsed(&post(&warden, "/inventory", &bearer(A), &newer).await);
    assert_eq!(seen(B).await, Value::Null, "it has found no newer tag");
    let told = seen(A).await;
    assert_eq!((&told[0]["image"], &told[0]["digest"]), (&json!("r:5000/web:2"), &json!(DIGEST)), "{told}");
    warden.finish().await;
}

#[tokio::test]
async fn a_digest_that_failed_only_here_is_not_withheld_here_and_others_wait_for_the_verdict() {
    let warden = TestWarden::start();
    for token in [A, B] {
        report(&warden, token, &["r:5000/web:1"]).await;
    }
    parsed(&warden.post(A, &verdict("rolled_back", 1)).await);
    let failed = async |token: &str| parsed(&warden.get("/fleet", &bearer(token)).await)["failed"].clone();
    assert_eq!(failed(A).await, json!([]), "its own block applies there");
    assert_eq!(failed(B).await[0]["agents"], json!(["a"]));
    // Its operator has unblocked the digest there, and it tries again; the digest is still withheld from the others.
    assert_eq!(ask(&warden, A).await["answer"], "go");
    assert_eq!(ask(&warden, B).await["gate"], "immunity");
    parsed(&warden.post(B, &verdict("rolled_back", 1)).await);
    assert_eq!(failed(A).await[0]["agents"], json!(["b"]), "now another machine failed, too");
    warden.finish().await;
}

#[tokio::test]
async fn a_freeze_of_an_image_must_be_able_to_match_a_machine() {
    let warden = TestWarden::start();
    let reported = json!({"images": [
        {"service": "web", "image": "localhost:5000/web:1"}, {"service": "own", "image": "own:1"}]});
    assert_eq!(parsed(&post(&warden, "/inventory", &bearer(A), &reported).await)["status"], "accepted");
    let freeze = async |image: &str| {
        let sent = json!({"reason": "x", "until": in_an_hour(), "scope": {"image": image}});
        post(&warden, "/freeze", &bearer(API_TOKEN), &sent).await
    };
    for image in ["web", "web:1", "team/web", "localhost:5000"] {
        let answer = freeze(image).await;
        assert_refused(&answer, 400);
        assert!(answer.contains("scope.image: names no registry"), "{image}: {answer}");
    }
    assert!(freeze("web").await.contains("such as localhost:5000/web"));
    for image in ["localhost:5000/web", "ghcr.io/a/b:1", "own"] {
        assert_eq!(parsed(&freeze(image).await)["status"], "frozen", "{image}");
    }
    warden.finish().await;
}

#[tokio::test]
async fn invalid_requests_are_refused_with_the_allowed_values() {
    let warden = TestWarden::start();
    let user = bearer(API_TOKEN);
    let freeze =
        |reason: &str, until: &str, scope: Value| json!({"reason": reason, "until": until, "scope": scope});
    let good = in_an_hour();
    for (path, sent, what) in [
        ("/freeze", freeze("", &good, json!({})), "reason: has 0 characters"),
        ("/freeze", freeze("a\nb", &good, json!({})), "allowed: one line of 1 to 500"),
        (
            "/freeze",
            freeze("x", "2020-01-01T00:00:00Z", json!({})),
            "until: 2020-01-01T00:00:00Z; allowed: after",
        ),
        ("/freeze", freeze("x", "2999-01-01T00:00:00Z", json!({})), "and not after"),
        (
            "/freeze",
            freeze("x", &good, json!({"machine": "z"})),
            "scope.machine: \"z\" is not an agent; allowed: a, b",
        ),
        (
            "/freeze",
            freeze("x", &good, json!({"image": "web:1"})),
            "scope.image: names no registry; allowed: a repository with its host, such as registry.example/team/web",
        ),
        ("/freeze", json!({"reason": "x"}), "missing field `until`"),
        ("/unblock", json!({"image": "web", "digest": "d"}), "digest: is not a digest"),
    ] {
        let answer = post(&warden, path, &user, &sent).await;
        assert_refused(&answer, 400);
        assert!(answer.contains(&what.replace('"', "\\\"")), "{what} is not in {answer}");
    }
    for path in ["/freeze", "/thaw", "/unblock"] {
        assert_refused(&post(&warden, path, &bearer(A), &json!({})).await, 401);
        let other = format!("{user}origin: http://evil.example\r\n");
        assert_refused(&post(&warden, path, &other, &json!({})).await, 403);
    }
    for path in ["/fleet/ask", "/fleet/release", "/inventory"] {
        assert_refused(&post(&warden, path, &user, &json!({})).await, 401);
        assert_refused(&post(&warden, path, &bearer(A), &json!("x")).await, 400);
    }
    // serde would accept an array as the fields of an object in their order.
    for (path, headers) in [("/inventory", bearer(A)), ("/freeze", user.clone()), ("/thaw", user.clone())] {
        for array in [json!([1]), json!([1, []]), json!([])] {
            let answer = post(&warden, path, &headers, &array).await;
            assert_refused(&answer, 400);
            assert!(body(&answer).contains("not an object"), "{answer}");
        }
    }
    let inside = json!({"images": [["web", "r:5000/web:1"]]});
    let scope = freeze("x", &good, json!(["a", "r:5000/web"]));
    for (path, headers, sent) in [("/inventory", bearer(A), inside), ("/freeze", user.clone(), scope)] {
        let answer = post(&warden, path, &headers, &sent).await;
        assert_refused(&answer, 400);
        assert!(body(&answer).contains("invalid type: sequence, expected an object"), "{answer}");
    }
    let entry = json!([["2026-01-01T00:00:00Z", "web", "updated", "a message", "info"]]);
    let answer = parsed(&post(&warden, "/ingest", &bearer(A), &entry).await);
    assert_eq!(answer["rejected"][0]["index"], 0, "{answer}");
    assert!(answer["rejected"][0]["error"].as_str().unwrap().contains("not an object"), "{answer}");
    assert_refused(&warden.get("/fleet", &user).await, 401);
    assert_refused(&warden.get("/fleet?wait=x", &bearer(A)).await, 400);
    assert_refused(&warden.get("/fleet/images", &bearer(A)).await, 401);
    assert_refused(&warden.get("/fleet/images?format=xml", &user).await, 400);
    let ring = json!({"ring": 10, "images": []});
    assert_refused(&post(&warden, "/inventory", &bearer(A), &ring).await, 400);
    assert_eq!(parsed(&post(&warden, "/thaw", &user, &json!({})).await)["status"], "nothing_frozen");
    warden.finish().await;
}

#[tokio::test]
async fn long_polls_of_one_agent_are_limited_and_do_not_block_others() {
    let warden = TestWarden::start();
    report(&warden, A, &["r:5000/web:1"]).await;
    let poll = format!("GET /fleet?after=0&wait=60 HTTP/1.1\r\nhost: w\r\n{}\r\n", bearer(A));
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = warden.connect().await;
        client.write(poll.as_bytes()).await;
        clients.push(client);
    }
    let mut answer = String::new();
    for _ in 0..200 {
        answer = warden.get("/fleet?after=1", &bearer(A)).await;
        if status(&answer) == 429 {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_refused(&answer, 429);
    assert_eq!(status(&warden.get("/fleet", &bearer(B)).await), 200);
    assert_eq!(status(&warden.post(A, &crate::support::entry(1)).await), 200);
    let stopped = Instant::now();
    warden.finish().await;
    assert!(stopped.elapsed() < Duration::from_secs(10), "polls end with the warden");
}

/// Twenty machines repeatedly ask two wardens for the same digest at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_wardens_grant_a_lease_to_only_one_machine() {
    let keep = in_memory();
    let stop = CancellationToken::new();
    let tasks = TaskSet::new();
    let mut wardens = Vec::new();
    for _ in 0..2 {
        let (collector, mut task) = new_collector(&["a", "b"], keep.clone());
        task.prepare().await;
        tasks.spawn("collector", task.run(stop.clone()));
        wardens.push(collector);
    }
    for round in 0..10 {
        let digest = format!("sha256:{round}");
        let asked = (0..20).map(|n| {
            let (collector, digest) = (Arc::clone(&wardens[n % 2]), digest.clone());
            async move {
                let agent = format!("agent-{n}");
                let asking = Asking {
                    agent: &agent,
                    ring: 0,
                    service: "web",
                    repository: "r/web",
                    image: "r/web:1",
                    digest: &digest,
                    progress: None,
                };
                (agent.clone(), collector.ask(&asking).await)
            }
        });
        let answers = futures_util::future::join_all(asked).await;
        let word = |answer: &evenkeel_common::wire::FleetAnswer| {
            serde_json::to_value(answer).unwrap()["answer"].clone()
        };
        let allowed: Vec<_> = answers.iter().filter(|(_, answer)| word(answer) == "go").collect();
        assert_eq!(allowed.len(), 1, "{answers:?}");
    }
    stop.cancel();
    assert!(tasks.finish(Duration::from_secs(10)).await);
}

/// An agent was added to the files of two wardens. Only one of them has been reloaded; the other one removes what is outdated.
#[tokio::test]
async fn an_agent_that_only_another_warden_lists_is_not_forgotten_until_it_is_removed() {
    let keep = in_memory();
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    let mut wardens = Vec::new();
    for ids in [&["a", "y"][..], &["a"][..]] {
        let (collector, mut task) = new_collector(ids, keep.clone());
        task.prepare().await;
        tasks.spawn("collector", task.run(stop.clone()));
        wardens.push(collector);
    }
    let (reloaded, other) = (&wardens[0], &wardens[1]);
    let reported = json!({"images": [{"service": "web", "image": "r:5000/web:1"}]});
    reloaded.report("y", serde_json::from_value(reported).unwrap()).await.unwrap();
    let failed: FleetEntry = serde_json::from_str(&verdict("rolled_back", 1)).unwrap();
    reloaded.store(vec![FleetEntry { agent: "y".to_owned(), ..failed }]).await.unwrap();
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let scope = FreezeScope { machine: Some("y".to_owned()), image: None };
    reloaded.decide(Decision::Freeze { reason: "audit".to_owned(), until, scope }).await.unwrap();
    let known = || (other.decisions_for("a").failed.len(), other.decisions_for("y").freezes.len());
    eventually("the other warden", || known() == (1, 1)).await;

    let keep_for = jiff::SignedDuration::from_hours(24);
    other.forget_outdated(keep_for, other.now()).await.unwrap();
    assert_eq!(known(), (1, 1));
    let asking = Asking {
        agent: "a",
        ring: 1,
        service: "web",
        repository: "r:5000/web",
        image: "r:5000/web:1",
        digest: "sha256:next",
        progress: None,
    };
    let answer = other.ask(&asking).await;
    assert_eq!((answer.gate.as_deref(), answer.agent.as_deref()), (Some("ring"), Some("y")));

    for ids in [&["a", "y"][..], &["a"][..]] {
        other.set_agents(ids.iter().map(|id| (*id).to_owned()), true);
    }
    other.forget_outdated(keep_for, other.now()).await.unwrap();
    eventually("the removal", || known() == (0, 0)).await;
    assert_eq!(other.ask(&asking).await.answer, Permission::Go);
    stop.cancel();
    assert!(tasks.finish(Duration::from_secs(10)).await);
}

/// A store that takes long to read, for example after a restart of a large fleet.
#[tokio::test]
async fn a_warden_that_has_not_read_its_store_lifts_no_freeze_and_lets_nobody_go() {
    let keep = in_memory();
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
    let (collector, task) = new_collector(&["a"], keep.clone());
    tasks.spawn("collector", task.run(stop.clone()));
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let freeze = Decision::Freeze { reason: "audit".to_owned(), until, scope: FreezeScope::default() };
    collector.decide(freeze).await.unwrap();
    stop.cancel();
    assert!(tasks.finish(Duration::from_secs(10)).await);

    let (collector, mut task) = new_collector(&["a"], keep);
    let asking = Asking {
        agent: "a",
        ring: 1,
        service: "web",
        image: "r/web:1",
        repository: "r/web",
        digest: DIGEST,
        progress: None,
    };
    let decisions = collector.decisions_for("a");
    assert_eq!((decisions.store.as_deref(), decisions.freezes.len()), (Some("away"), 0));
    let answer = collector.ask(&asking).await;
    assert_eq!((answer.answer, answer.store.as_deref()), (Permission::Wait, Some("away")));
    task.prepare().await;
    let decisions = collector.decisions_for("a");
    assert_eq!((decisions.store, decisions.freezes.len()), (None, 1));
    let answer = collector.ask(&asking).await;
    assert_eq!((answer.answer, answer.gate.as_deref()), (Permission::Wait, Some("freeze")));
}

/// Only removing an agent removes its verdicts, not a fault in its entry.
#[tokio::test]
async fn an_agent_that_is_left_out_because_of_a_fault_keeps_its_verdicts() {
    let warden = TestWarden::start();
    report(&warden, A, &["r:5000/web:1"]).await;
    assert_eq!(ask(&warden, A).await["answer"], "go");
    parsed(&warden.post(A, &verdict("rolled_back", 1)).await);
    assert_eq!(ask(&warden, B).await["answer"], "no");
    let outdated = async || {
        let keep_for = jiff::SignedDuration::from_hours(24);
        while warden.collector.forget_outdated(keep_for, warden.collector.now()).await.unwrap() {}
    };
    let b = json!({"id": "b", "token": B});
    let faulty = [
        json!({"id": "a", "token": ""}),
        json!({"id": "a ", "token": A}),
        json!({"id": "b", "token": A}),
        json!({"id": 5}),
    ];
    for a in faulty {
        warden.reload(&json!([b, a]));
        outdated().await;
        assert_eq!(ask(&warden, B).await["answer"], "no", "{a}");
        assert_eq!(parsed(&warden.get("/fleet", &bearer(B)).await)["failed"][0]["agents"], json!(["a"]));
    }
    // An agent in a list that is not read has not been removed either.
    for other in ["agents", "Agents"] {
        let a = json!([{"id": "a", "token": A}]);
        warden.reload_text(&format!(
            r#"{{"api": {{"token": "{API_TOKEN}"}}, "{other}": {a}, "agents": {}}}"#,
            json!([b])
        ));
        outdated().await;
        assert_eq!(ask(&warden, B).await["answer"], "no", "{other}");
    }
    warden.reload(&json!([b]));
    outdated().await;
    assert_eq!(ask(&warden, B).await["answer"], "go");
    warden.finish().await;
}

/// The tokens of two agents are swapped, so their machines get each other's id. Neither reports again by itself: an agent
/// does so after a failed poll.
#[tokio::test]
async fn a_machine_that_gets_another_id_is_asked_for_its_report() {
    let warden = TestWarden::start();
    report(&warden, A, &["r:5000/web:1"]).await;
    report(&warden, B, &["r:5000/db:1"]).await;
    let poll = async |token: &str, wait: u8| {
        let path = format!("/fleet?after={}&wait={wait}", warden.collector.fleet_revision());
        warden.get(&path, &bearer(token)).await
    };
    let mut waiting = warden.connect().await;
    let headers = format!("host: w\r\nconnection: close\r\n{}", bearer(A));
    waiting.write(format!("GET /fleet?after=0&wait=60 HTTP/1.1\r\n{headers}\r\n").as_bytes()).await;
    warden.reload(&json!([{"id": "b", "token": A}, {"id": "a", "token": B}]));
    let ended = waiting.rest().await;
    assert_refused(&ended, 503);
    assert_eq!(header(&ended, "retry-after"), Some("1"));
    for token in [A, B] {
        assert_refused(&poll(token, 50).await, 503);
    }
    // The first poll of another series, which the report follows.
    assert_eq!(status(&poll(A, 0).await), 200);
    report(&warden, A, &["r:5000/web:1"]).await;
    report(&warden, B, &["r:5000/db:1"]).await;
    for token in [A, B] {
        assert_eq!(status(&poll(token, 1).await), 200);
    }
    parsed(&warden.post(A, &verdict("rolled_back", 1)).await);
    let failed = parsed(&warden.get("/fleet", &bearer(B)).await)["failed"].clone();
    assert_eq!(failed[0]["agents"], json!(["b"]), "its verdict counts");
    // Other reloads change nothing. A token that two agents share belongs to the first of them.
    let c = "c".repeat(20);
    for third in [&json!({"id": "c", "token": c}), &json!({"id": "c", "token": A})] {
        for _ in 0..2 {
            warden.reload(&json!([{"id": "b", "token": A}, {"id": "a", "token": B}, third]));
        }
        assert_eq!(status(&poll(A, 1).await), 200, "{third}");
    }
    warden.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_leaps_is_believed_after_an_hour() {
    let clock = Arc::new(SetClock::default());
    let retention = keep::Retention { days: 30, bytes: 1 << 30 };
    let (collector, _task) = Collector::new(in_memory(), ["a".to_owned()], retention, clock.clone());
    let time = async || collector.retention_time().await.unwrap();
    clock.set_hours(0);
    let first = time().await;
    assert_eq!(first, collector.now());
    clock.set_hours(23);
    let second = time().await;
    assert_eq!(second, collector.now(), "the warden was off for a day");
    clock.set_hours(24 * 365);
    assert_eq!(time().await, second);
    clock.set_hours(24);
    let third = time().await;
    assert_eq!(third, collector.now(), "it is right again");
    clock.set_hours(24 * 40);
    for _ in 0..2 {
        assert_eq!(time().await, third);
        tokio::time::advance(Duration::from_secs(1799)).await;
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(time().await, collector.now(), "the warden was off for a month");
    assert_eq!(time().await, collector.now());
}

#[tokio::test]
async fn an_agent_without_a_url_is_online_while_it_polls() {
    let warden = TestWarden::with_unreachable_agents();
    assert_eq!(warden.collector.machine_records()[0].online, None);
    parsed(&warden.get("/fleet", &bearer(A)).await);
    eventually("the poll", || warden.collector.machine_records()[0].online == Some(true)).await;
    assert_eq!(warden.collector.machine_records()[1].online, None);
    assert!(warden.collector.last_poll("a").is_some());
    warden.collector.share_polls().await.unwrap();
    assert!(warden.collector.last_poll("a").is_some(), "it is shared with other wardens now");
    warden.finish().await;
}
