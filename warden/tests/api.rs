//! The warden's endpoints over real connections: who gets in, what is stored, what hostile clients can do.

mod stage;

use std::time::Duration;

use serde_json::{Value, json};
use stage::{AGENTS, PEOPLE, Stage, body, entry, header, post, status};
use tokio::time::{Instant, sleep};

const A: &str = AGENTS[0].1;
const B: &str = AGENTS[1].1;

fn assert_refused(answer: &str, code: u16) {
    assert_eq!(status(answer), code, "{answer}");
    let error: Value = serde_json::from_str(body(answer)).expect("errors are JSON");
    assert!(error["error"].is_string(), "{answer}");
    if code == 401 {
        assert_eq!(header(answer, "www-authenticate"), Some("Bearer"), "{answer}");
    }
}

fn count(stage: &Stage, place: usize) -> u64 {
    stage.ring.records()[place].counts_by_level.total()
}

#[tokio::test]
async fn an_entry_is_accepted_kept_and_streamed() {
    let stage = Stage::start();
    let answer = stage.post(A, &entry(1)).await;
    assert_eq!((status(&answer), body(&answer)), (200, r#"{"status":"accepted"}"#));
    let mut stream = stage.connect().await;
    stream.write(format!("GET /events?token={PEOPLE} HTTP/1.1\r\nhost: w\r\n\r\n").as_bytes()).await;
    let first = stream.until("entry 1").await;
    assert_eq!(header(&first, "content-type"), Some("text/event-stream"));
    assert_eq!(header(&first, "x-accel-buffering"), Some("no"));
    assert!(!first.contains("event: "), "frames are unnamed");
    stage.post(B, &entry(1)).await;
    let second = stream.until("\"b\"}\n\n").await;
    assert!(second.contains(
        r#"data: {"timestamp":"2026-01-02T03:04:05Z","machine":"b","service":"web","event":"updated","message":"entry 1","level":"info","seq":1,"agent":"b"}"#
    ), "{second}");
    // The stream ends with the program, at once.
    stage.stop.cancel();
    stream.rest().await;
    stage.finish().await;
}

/// An agent with a valid token that opens requests and never ends them.
#[tokio::test]
async fn an_agent_that_floods_the_warden_is_told_to_come_back_and_starves_nobody() {
    let stage = Stage::start();
    let whole = post(&format!("authorization: Bearer {A}\r\nconnection: close\r\n"), &entry(1));
    let (first, last) = whole.split_at(whole.len() - 1);
    let mut flood = Vec::new();
    for _ in 0..16 {
        let mut client = stage.connect().await;
        client.write(first.as_bytes()).await;
        flood.push(client);
    }
    let start = Instant::now();
    while stage.requests.taken() < 16 {
        assert!(start.elapsed() < Duration::from_mins(1), "{} places are taken", stage.requests.taken());
        sleep(Duration::from_millis(10)).await;
    }
    let refusal = stage.post(A, &entry(1)).await;
    assert_refused(&refusal, 429);
    assert_eq!(header(&refusal, "retry-after"), Some("1"));
    assert_eq!(status(&stage.post(B, &entry(1)).await), 200, "another agent's place is its own");
    let metrics = stage.get("/metrics", &format!("authorization: Bearer {PEOPLE}\r\n")).await;
    assert!(metrics.contains("refused_requests_total{reason=\"too_many\"} 1"), "{metrics}");
    assert_eq!(count(&stage, 0), 0);
    for mut client in flood {
        client.write(last.as_bytes()).await;
        assert_eq!(status(&client.rest().await), 200);
    }
    assert_eq!(status(&stage.post(A, &entry(2)).await), 200, "the places are free again");
    assert_eq!(count(&stage, 0), 2);
    stage.finish().await;
}

/// The forms that the agent's own tests pin, and that of the predecessor's agent (DECISIONS 3).
#[tokio::test]
async fn entries_of_a_mixed_fleet_are_kept_field_by_field() {
    let stage = Stage::start();
    for (token, id, sent) in [
        (A, "a", include_str!("../../common/tests/golden/pushed.json")),
        (B, "b", include_str!("../../common/tests/golden/pushed_by_predecessor.json")),
    ] {
        assert_eq!(status(&stage.post(token, sent).await), 200);
        let mut expected: Value = serde_json::from_str(sent).expect("a golden file");
        expected.as_object_mut().expect("an object").remove("something_else");
        expected["agent"] = json!(id);
        let (lines, ..) = stage.ring.state();
        let kept: Value = serde_json::from_str(lines.last().expect("an entry")).expect("JSON");
        assert_eq!(kept, expected);
    }
    stage.finish().await;
}

#[tokio::test]
async fn wrong_tokens_in_every_form_are_401_and_store_nothing() {
    let stage = Stage::start();
    let long = "x".repeat(10_000);
    for headers in [
        String::new(),
        "authorization: Bearer\r\n".to_owned(),
        "authorization: Bearer \r\n".to_owned(),
        "authorization: Bearer wrong\r\n".to_owned(),
        format!("authorization: Bearer {long}\r\n"),
        format!("authorization: Bearer {PEOPLE}\r\n"),
        format!("authorization: {A}\r\n"),
        format!("authorization: Basic {A}\r\n"),
        format!("authorization: Bearer {A}x\r\n"),
        format!("authorization: Bearer {}\r\n", &A[1..]),
        format!("authorization: Bearer {}\r\n", A.to_uppercase()),
        format!("authorization: Bearer {A},{B}\r\n"),
        format!("authorization: Bearer \"{A}\"\r\n"),
        format!("authorization: Bearer {A}\r\nauthorization: Bearer {A}\r\n"),
        format!("cookie: token={A}\r\n"),
        format!("cookie: token={PEOPLE}\r\n"),
        "authorization: Bearer \u{e9}\r\n".to_owned(),
    ] {
        assert_refused(&stage.send(&post(&format!("{headers}connection: close\r\n"), &entry(1))).await, 401);
    }
    let query = post("connection: close\r\n", &entry(1)).replace("/ingest", &format!("/ingest?token={A}"));
    assert_refused(&stage.send(&query).await, 401);

    for (path, headers) in [
        ("/events", String::new()),
        ("/events?token=", String::new()),
        ("/events?token=wrong", "accept: text/html\r\n".to_owned()),
        ("/events?token=wrong", format!("cookie: token={A}\r\n")),
        ("/events", format!("authorization: Bearer {A}\r\n")),
        ("/machines", "cookie: token=\r\n".to_owned()),
        ("/machines", format!("cookie: xtoken={PEOPLE}\r\n")),
        ("/", String::new()),
        ("/", format!("authorization: Bearer {PEOPLE}\r\n")),
        ("/metrics", format!("cookie: token={PEOPLE}\r\n")),
        ("/metrics", format!("authorization: Bearer {A}\r\n")),
    ] {
        assert_refused(&stage.get(path, &headers).await, 401);
    }
    let metrics = format!("/metrics?token={PEOPLE}");
    assert_refused(&stage.get(&metrics, "").await, 401);
    assert_eq!((count(&stage, 0), count(&stage, 1)), (0, 0));
    stage.finish().await;
}

#[tokio::test]
async fn a_person_gets_in_by_query_cookie_or_bearer_where_each_is_allowed() {
    let stage = Stage::start();
    let query = format!("?token={PEOPLE}");
    let cookie = format!("cookie: a=b; token={PEOPLE}\r\n");
    let bearer = format!("authorization: Bearer {PEOPLE}\r\n");
    for (path, headers) in [
        (format!("/machines{query}"), ""),
        ("/machines".to_owned(), cookie.as_str()),
        ("/machines".to_owned(), &bearer),
        (format!("/{query}"), ""),
        ("/".to_owned(), &cookie),
        ("/?token=wrong".to_owned(), &cookie),
        ("/metrics".to_owned(), &bearer),
        ("/health".to_owned(), ""),
    ] {
        let answer = stage.get(&path, headers).await;
        assert_eq!(status(&answer), 200, "{path}: {answer}");
    }
    assert_eq!(body(&stage.get("/health", "").await), r#"{"status":"ok"}"#);
    stage.finish().await;
}

#[tokio::test]
async fn the_page_sets_its_cookie_and_holds_no_token() {
    let stage = Stage::start();
    let page = stage.get(&format!("/?token={PEOPLE}"), "accept: text/html\r\n").await;
    assert_eq!(status(&page), 200);
    let cookie = header(&page, "set-cookie").unwrap();
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Max-Age=604800"), "{cookie}");
    assert!(!page.contains(PEOPLE), "the cookie is a session and not the token");
    let session = cookie.split(';').next().unwrap().to_owned();
    for (path, headers) in [("/", ""), ("/machines", ""), ("/", "accept: text/html\r\n")] {
        let answer = stage.get(path, &format!("cookie: {session}\r\n{headers}")).await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert_eq!(header(&answer, "set-cookie"), None, "it is renewed only when half of it is over");
    }
    assert_refused(&stage.get("/machines", &format!("cookie: {session}x\r\n")).await, 401);
    assert_refused(&stage.get("/metrics", &format!("cookie: {session}\r\n")).await, 401);
    let policy = header(&page, "content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(header(&page, "x-frame-options"), Some("DENY"));
    for proto in ["https", "HTTPS", "https, http"] {
        let secure =
            stage.get(&format!("/?token={PEOPLE}"), &format!("x-forwarded-proto: {proto}\r\n")).await;
        assert!(header(&secure, "set-cookie").unwrap().contains("; SameSite=Strict; Secure"), "{proto}");
    }
    let form = stage.get("/?token=wrong", "accept: text/html,*/*\r\n").await;
    assert_eq!(status(&form), 401);
    assert_eq!(header(&form, "set-cookie"), None);
    assert!(body(&form).contains("type=\"password\"") && body(&form).contains("method=\"post\""), "{form}");
    stage.finish().await;
}

#[tokio::test]
async fn a_logout_takes_the_cookie_back_and_no_other_site_can_cause_it() {
    let stage = Stage::start();
    let logout = async |method: &str, headers: &str| {
        let request = format!("{method} /logout HTTP/1.1\r\nhost: w\r\nconnection: close\r\n{headers}\r\n");
        stage.send(&request).await
    };
    let cookie = "token=; Path=/; HttpOnly; SameSite=Strict";
    // It has no use for a body, and waits for none.
    let answer = logout("POST", "content-length: 1000000\r\n").await;
    assert_eq!((status(&answer), header(&answer, "connection")), (200, Some("close")));
    for (headers, expected) in [
        (format!("cookie: token={PEOPLE}\r\norigin: http://w\r\n"), format!("{cookie}; Max-Age=0")),
        ("x-forwarded-proto: https\r\n".to_owned(), format!("{cookie}; Secure; Max-Age=0")),
    ] {
        let answer = logout("POST", &format!("{headers}content-length: 0\r\n")).await;
        assert_eq!((status(&answer), body(&answer)), (200, r#"{"status":"logged_out"}"#));
        assert_eq!(header(&answer, "set-cookie"), Some(expected.as_str()));
    }
    for headers in ["origin: http://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        let answer = logout("POST", &format!("{headers}content-length: 0\r\n")).await;
        assert_refused(&answer, 403);
        assert_eq!(header(&answer, "set-cookie"), None);
    }
    // Nobody is logged out by a link or a picture.
    assert_refused(&logout("GET", "").await, 405);
    stage.finish().await;
}

fn login(headers: &str, fields: &str) -> String {
    let length = fields.len();
    format!(
        "POST /login?level=info&token=x HTTP/1.1\r\nhost: w\r\nconnection: close\r\naccept: text/html\r\ncontent-type: application/x-www-form-urlencoded\r\n{headers}content-length: {length}\r\n\r\n{fields}"
    )
}

#[tokio::test]
async fn a_login_by_form_gives_a_session_and_leads_to_the_view_that_was_asked_for() {
    let stage = Stage::start();
    let answer = stage.send(&login("origin: http://w\r\n", &format!("token={PEOPLE}"))).await;
    assert_eq!((status(&answer), header(&answer, "location")), (303, Some("/?level=info")), "{answer}");
    let session = header(&answer, "set-cookie").unwrap().split(';').next().unwrap();
    assert!(!answer.contains(PEOPLE));
    assert_eq!(status(&stage.get("/machines", &format!("cookie: {session}\r\n")).await), 200);
    let wrong = stage.send(&login("", "token=wrong")).await;
    assert_eq!(status(&wrong), 401);
    assert!(body(&wrong).contains("That token is not accepted."), "{wrong}");
    assert_eq!(header(&wrong, "set-cookie"), None);
    for fields in ["", "token=", "tokn=x"] {
        assert_eq!(status(&stage.send(&login("", fields)).await), 401, "{fields}");
    }
    assert_refused(
        &stage.send(&login("origin: http://evil.example\r\n", &format!("token={PEOPLE}"))).await,
        403,
    );
    assert_refused(&stage.send(&login("", &format!("token={}", "x".repeat(5000)))).await, 413);
    stage.finish().await;
}

#[tokio::test]
async fn whoever_guesses_is_slowed_and_counted_while_agents_and_sessions_go_on() {
    let stage = Stage::start();
    let page = stage.get(&format!("/?token={PEOPLE}"), "").await;
    let session = header(&page, "set-cookie").unwrap().split(';').next().unwrap().to_owned();
    assert_eq!(status(&stage.post(A, &entry(1)).await), 200);
    let mut codes = Vec::new();
    for guess in 0..40 {
        codes.push(match guess % 4 {
            0 => status(&stage.get(&format!("/?token=guess-{guess}"), "").await),
            1 => status(&stage.get("/machines", &format!("cookie: token=guess-{guess}\r\n")).await),
            2 => status(&stage.send(&login("", &format!("token=guess-{guess}"))).await),
            _ => status(&stage.post(&format!("guess-{guess}"), &entry(1)).await),
        });
    }
    assert_eq!(codes[..10], [401; 10]);
    assert!(codes.iter().filter(|code| **code == 429).count() >= 20, "{codes:?}");
    // The right token is not looked at either, or each guess would tell.
    let refusal = stage.get(&format!("/machines?token={PEOPLE}"), "").await;
    assert_refused(&refusal, 429);
    assert!(header(&refusal, "retry-after").is_some());
    assert_eq!(status(&stage.get("/machines", &format!("cookie: {session}\r\n")).await), 200);
    assert_eq!(status(&stage.post(A, &entry(2)).await), 200, "it was right from there before");
    assert_refused(&stage.post(B, &entry(1)).await, 429);
    // Another client of the same proxy has an account of its own.
    let other = "x-forwarded-for: 192.0.2.1\r\n";
    let metrics = stage.get("/metrics", &format!("authorization: Bearer {PEOPLE}\r\n{other}")).await;
    assert_eq!(status(&metrics), 200, "{metrics}");
    for part in [
        "refused_logins_total{reason=\"slowed\"}",
        "refused_logins_total{reason=\"wrong\"}",
        "refused_requests_total{reason=\"slowed\"}",
    ] {
        let line = metrics.lines().find(|line| line.contains(part)).unwrap();
        assert!(!line.ends_with(" 0"), "{line}");
    }
    stage.finish().await;
}

#[tokio::test]
async fn short_tokens_count_from_this_machine_only() {
    let stage = Stage::with_tokens("short", [("a", "brief"), ("b", B)]);
    let far = "x-forwarded-for: 192.0.2.1\r\n";
    assert_eq!(status(&stage.get("/machines?token=short", "").await), 200);
    for token in ["short", "wrong"] {
        let refusal = stage.get(&format!("/machines?token={token}"), far).await;
        assert_refused(&refusal, 403);
        assert!(
            body(&refusal).contains("fewer than 16 characters") && body(&refusal).contains("api.token"),
            "{refusal}"
        );
    }
    let ingest = |token: &str, from: &str| {
        post(&format!("authorization: Bearer {token}\r\nconnection: close\r\n{from}"), &entry(1))
    };
    assert_eq!(status(&stage.send(&ingest("brief", "")).await), 200);
    let refusal = stage.send(&ingest("brief", far)).await;
    assert_refused(&refusal, 401);
    assert!(body(&refusal).contains("fewer than 16 characters"), "{refusal}");
    assert_eq!(status(&stage.send(&ingest(B, far)).await), 200);
    stage.finish().await;
}

/// What took 3.1 GB: two thousand clients that send a large part of a body and then nothing.
#[tokio::test]
async fn two_thousand_stalled_bodies_are_not_kept_and_people_and_agents_are_served() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum.map(|most| most.min(8192)), ..limit })
        .unwrap();
    let stage = Stage::start();
    let part = "x".repeat(60_000);
    let mut stalled = Vec::new();
    for number in 0..2000 {
        let head = match number % 4 {
            0 => "POST /logout HTTP/1.1\r\nhost: w\r\n".to_owned(),
            1 => "POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer wrong\r\n".to_owned(),
            2 => format!("POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {B}\r\n"),
            _ => "POST /login HTTP/1.1\r\nhost: w\r\n".to_owned(),
        };
        let mut client = stage.connect().await;
        client.write(format!("{head}content-length: 1000000\r\n\r\n{part}").as_bytes()).await;
        stalled.push(client);
        assert!(stage.bodies.0.held() <= 4 * 1024 * 1024 && stage.bodies.1.held() <= 64 * 4096);
    }
    assert_eq!(status(&stage.get("/health", "").await), 200);
    let page =
        stage.get(&format!("/?token={PEOPLE}"), "accept: text/html\r\nx-forwarded-for: 192.0.2.1\r\n").await;
    assert_eq!(status(&page), 200);
    assert_eq!(status(&stage.post(A, &entry(1)).await), 200);
    drop(stalled);
    stage.finish().await;
}

#[tokio::test]
async fn another_site_can_open_no_stream() {
    let stage = Stage::start();
    for path in ["/events", "/machines", "/metrics"] {
        let headers = format!("cookie: token={PEOPLE}\r\nsec-fetch-site: cross-site\r\n");
        assert_refused(&stage.get(path, &headers).await, 403);
    }
    let link = "accept: text/html\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    assert_eq!(status(&stage.get("/", link).await), 401, "the form");
    stage.finish().await;
}

#[tokio::test]
async fn the_replay_is_the_last_50_and_a_known_id_continues() {
    let stage = Stage::start();
    for seq in 1..=60 {
        stage.post(A, &entry(seq)).await;
    }
    let listen = async |headers: String| {
        let mut stream = stage.connect().await;
        stream
            .write(
                format!("GET /events HTTP/1.1\r\nhost: w\r\ncookie: token={PEOPLE}\r\n{headers}\r\n")
                    .as_bytes(),
            )
            .await;
        stream
    };
    let replay = listen(String::new()).await.until("entry 60").await;
    assert!(replay.contains("entry 11\"") && !replay.contains("entry 10\""), "{replay}");
    let ids: Vec<u64> = replay.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    assert!(ids.len() == 50 && ids.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ids:?}");
    let first = ids[0] - 5;
    let more = listen(format!("last-event-id: {first}\r\n")).await.until("entry 60").await;
    assert!(more.contains("entry 7\"") && !more.contains("entry 6\""), "{more}");
    let unknown = listen("last-event-id: 5\r\n".to_owned()).await.until("entry 60").await;
    assert_eq!(unknown.matches("data: ").count(), 50);
    stage.finish().await;
}

#[tokio::test]
async fn repeats_are_stored_once_and_gaps_are_shown_until_they_close() {
    let stage = Stage::start();
    for seq in [1, 2, 2, 1, 6, 6] {
        let answer = stage.post(A, &entry(seq)).await;
        assert_eq!(body(&answer), r#"{"status":"accepted"}"#, "a repeat is accepted too");
    }
    let machines = |answer: String| serde_json::from_str::<Value>(body(&answer)).unwrap();
    let ask = || stage.get("/machines", "cookie: token=0123456789abcdef-people\r\n");
    let seen = machines(ask().await);
    assert_eq!((&seen[0]["missing"], &seen[0]["last_seq"]), (&json!(3), &json!(6)));
    assert_eq!(
        seen[0]["counts_by_level"],
        json!({"info": 3, "warning": 0, "error": 0, "critical": 0, "other": 0})
    );
    assert_eq!(
        seen[1],
        json!({"id": "b", "missing": 0, "counts_by_level": {"info": 0, "warning": 0, "error": 0, "critical": 0, "other": 0}})
    );
    for seq in [4, 5, 3] {
        stage.post(A, &entry(seq)).await;
    }
    assert_eq!(machines(ask().await)[0]["missing"], 0);
    let metrics = stage.get("/metrics", &format!("authorization: Bearer {PEOPLE}\r\n")).await;
    for line in [
        r#"evenkeel_warden_entries_total{agent="a",level="info"} 6"#,
        r#"evenkeel_warden_repeated_entries_total{agent="a"} 3"#,
        r#"evenkeel_warden_missing_entries{agent="a"} 0"#,
        r#"evenkeel_warden_refused_requests_total{reason="unauthorised"} 0"#,
        "evenkeel_warden_streams 0",
        "process_start_time_seconds",
    ] {
        assert!(metrics.contains(line), "{line} is not in: {metrics}");
    }
    stage.finish().await;
}

#[tokio::test]
async fn malformed_and_oversized_bodies_are_refused_and_harm_nobody() {
    let stage = Stage::start();
    for wrong in ["", "null", "{}", "[1]", "{\"timestamp\":", "\u{0}", "{\"timestamp\":\"now\"}"] {
        assert_refused(&stage.post(A, wrong).await, 400);
    }
    let large = format!(r#"{{"x":"{}"}}"#, "a".repeat(1024 * 1024));
    assert_refused(&stage.post(A, &large).await, 413);
    // A stranger's body is not read to its end, however long he says it is.
    let mut stranger = stage.connect().await;
    stranger.write(b"POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer x\r\ncontent-length: 99999999999\r\n\r\nabc").await;
    assert_refused(&stranger.rest().await, 401);
    let mut waiting = stage.connect().await;
    waiting
        .write(b"POST /ingest HTTP/1.1\r\nhost: w\r\nexpect: 100-continue\r\ncontent-length: 100\r\n\r\n")
        .await;
    assert_refused(&waiting.rest().await, 401);
    let chunked = format!(
        "POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {A}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        entry(1).len(),
        entry(1)
    );
    assert_eq!(status(&stage.send(&chunked).await), 200);
    for wrong in ["GET", "PUT", "DELETE"] {
        let answer =
            stage.send(&format!("{wrong} /ingest HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n")).await;
        assert_eq!((status(&answer), header(&answer, "allow")), (405, Some("POST")));
    }
    assert_eq!(count(&stage, 0), 1);
    stage.finish().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let stage = Stage::start();
    let mut client = stage.connect().await;
    let mut requests = String::new();
    for seq in 1..=20 {
        requests += &post(&format!("authorization: Bearer {A}\r\n"), &entry(seq));
        requests += &post("authorization: Bearer wrong\r\n", &entry(seq));
    }
    requests += "GET /health HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n";
    client.write(requests.as_bytes()).await;
    let answers = client.rest().await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 21, "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 401").count(), 20);
    assert_eq!(count(&stage, 0), 20);
    assert_eq!(stage.ring.records()[0].missing, 0);
    stage.finish().await;
}

#[tokio::test]
async fn slow_clients_hold_nobody_up() {
    let mut limits = evenkeel_warden::http::limits();
    limits.header_time = Duration::from_millis(300);
    limits.body_time = Duration::from_millis(300);
    let stage = Stage::with(limits, evenkeel_warden::state_file::State::default());
    let mut heads = Vec::new();
    let mut bodies = Vec::new();
    for _ in 0..200 {
        let mut head = stage.connect().await;
        head.write(b"POST /ingest HTTP/1.1\r\nhost").await;
        heads.push(head);
        let mut body = stage.connect().await;
        body.write(format!("POST /ingest HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {B}\r\ncontent-length: 50\r\n\r\n{{").as_bytes()).await;
        bodies.push(body);
    }
    for seq in 1..=20 {
        assert_eq!(status(&stage.post(A, &entry(seq)).await), 200);
    }
    for mut head in heads {
        assert_eq!(head.rest().await, "", "a slow head is cut");
    }
    let mut cut = 0;
    for mut body in bodies {
        let answer = body.rest().await;
        // So many of one agent are waited for; the others are sent away at once.
        let code = if status(&answer) == 408 { 408 } else { 429 };
        assert_refused(&answer, code);
        cut += usize::from(code == 408);
    }
    assert!(cut >= 16, "{cut}");
    stage.finish().await;
}

/// Bodies that are changed at random, and pieces of them: each is stored or refused, and the warden goes on.
#[tokio::test]
async fn no_body_brings_the_warden_down() {
    let stage = Stage::start();
    let good = json!({
        "timestamp": "2026-01-02T03:04:05Z", "machine": "m", "service": "web", "event": "updated", "message": "é\u{1f600}",
        "level": "info", "old_digest": "sha256:a", "reason": "r", "output": "o", "seq": 7, "x": [{"y": 1.5e300}],
    })
    .to_string()
    .into_bytes();
    let mut seed = 7u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let pieces: [&[u8]; 14] = [
        b"\"",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b"\xff\xfe",
        b"-",
        b"1e999",
        b"null",
        b":",
        b",",
    ];
    let mut entries = 0;
    for _ in 0..200_000 {
        let mut text = good.clone();
        for _ in 0..=next(4) {
            let at = next(text.len());
            match next(4) {
                0 => text.truncate(at + 1),
                1 => text[at] = u8::try_from(next(256)).unwrap(),
                2 => {
                    text.splice(at..at, pieces[next(pieces.len())].iter().copied());
                }
                _ => {
                    text.remove(at);
                    if text.is_empty() {
                        text.push(b'x');
                    }
                }
            }
        }
        if let Ok(entry) = evenkeel_warden::entry::parse(&text, "a") {
            assert_eq!(entry.agent, "a");
            stage.ring.take(&entry);
            entries += 1;
        }
    }
    assert!(entries > 1000, "{entries}");
    assert_eq!(status(&stage.post(B, &entry(1)).await), 200);
    stage.finish().await;
}
