//! The endpoints over real connections: what is stored, streamed and counted.

use serde_json::{Value, json};

use crate::support::{A, API_TOKEN, B, TestWarden, body, count, entry, header, post, status};

#[tokio::test]
async fn an_entry_is_accepted_kept_and_streamed() {
    let warden = TestWarden::start();
    let answer = warden.post(A, &entry(1)).await;
    assert_eq!((status(&answer), body(&answer)), (200, r#"{"status":"accepted","fleet":0}"#));
    let mut stream = warden.connect().await;
    stream.write(format!("GET /events?token={API_TOKEN} HTTP/1.1\r\nhost: w\r\n\r\n").as_bytes()).await;
    let first = stream.until("entry 1").await;
    assert_eq!(header(&first, "content-type"), Some("text/event-stream"));
    assert_eq!(header(&first, "x-accel-buffering"), Some("no"));
    assert!(!first.contains("event: "), "frames are unnamed");
    warden.post(B, &entry(1)).await;
    let second = stream.until("\"b\"}\n\n").await;
    assert!(second.contains(
        r#"data: {"timestamp":"2026-01-02T03:04:05Z","machine":"b","service":"web","event":"updated","message":"entry 1","level":"info","seq":1,"agent":"b"}"#
    ), "{second}");
    // The stream ends with the program, at once.
    warden.stop.cancel();
    stream.rest().await;
    warden.finish().await;
}

/// The formats pinned by the agent's own tests, and the format of the predecessor's agent (DECISIONS 3).
#[tokio::test]
async fn entries_of_a_mixed_fleet_are_kept_field_by_field() {
    let warden = TestWarden::start();
    for (token, id, sent) in [
        (A, "a", include_str!("../../../common/tests/golden/pushed.json")),
        (B, "b", include_str!("../../../common/tests/golden/pushed_by_predecessor.json")),
        (A, "a", include_str!("../../../common/tests/golden/pushed_with_epoch.json")),
    ] {
        assert_eq!(status(&warden.post(token, sent).await), 200);
        let mut expected: Value = serde_json::from_str(sent).expect("a golden file");
        expected.as_object_mut().expect("an object").remove("something_else");
        expected["agent"] = json!(id);
        let lines = warden.collector.recent(usize::MAX);
        let kept: Value = serde_json::from_str(lines.last().expect("an entry")).expect("JSON");
        assert_eq!(kept, expected);
    }
    warden.finish().await;
}

#[tokio::test]
async fn the_replay_is_the_last_50_and_a_known_id_continues() {
    let warden = TestWarden::start();
    for seq in 1..=60 {
        warden.post(A, &entry(seq)).await;
    }
    let listen = async |headers: String| {
        let mut stream = warden.connect().await;
        stream
            .write(
                format!("GET /events HTTP/1.1\r\nhost: w\r\ncookie: token={API_TOKEN}\r\n{headers}\r\n")
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
    warden.finish().await;
}

#[tokio::test]
async fn duplicates_are_stored_once_and_gaps_are_shown_until_they_close() {
    let warden = TestWarden::start();
    for seq in [1, 2, 2, 1, 6, 6] {
        let answer = warden.post(A, &entry(seq)).await;
        assert_eq!(body(&answer), r#"{"status":"accepted","fleet":0}"#, "a duplicate is accepted, too");
    }
    let machines = |answer: String| serde_json::from_str::<Value>(body(&answer)).unwrap();
    let ask = || warden.get("/machines", "cookie: token=0123456789abcdef-people\r\n");
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
        warden.post(A, &entry(seq)).await;
    }
    assert_eq!(machines(ask().await)[0]["missing"], 0);
    let metrics = warden.get("/metrics", &format!("authorization: Bearer {API_TOKEN}\r\n")).await;
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
    warden.finish().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let warden = TestWarden::start();
    let mut client = warden.connect().await;
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
    assert_eq!(count(&warden, 0), 20);
    assert_eq!(warden.collector.machine_records()[0].missing, 0);
    warden.finish().await;
}

#[tokio::test]
async fn an_array_is_stored_and_its_invalid_entries_are_reported() {
    let warden = TestWarden::start();
    let batch = |entries: &[String]| format!("[{}]", entries.join(","));
    let many: Vec<String> = (1..=500).map(entry).collect();
    assert_eq!(body(&warden.post(A, &batch(&many)).await), r#"{"status":"accepted","fleet":0}"#);
    let mixed = [entry(501), "{}".to_owned(), "7".to_owned(), entry(502), entry(1)];
    let answer = warden.post(A, &format!("  {}", batch(&mixed))).await;
    let reply: Value = serde_json::from_str(body(&answer)).unwrap();
    assert_eq!((status(&answer), &reply["status"]), (200, &json!("accepted")));
    let rejected: Vec<_> =
        reply["rejected"].as_array().unwrap().iter().map(|one| one["index"].clone()).collect();
    assert_eq!(rejected, [1, 2]);
    assert_eq!(warden.collector.machine_records()[0].counts_by_level.info, 502);
    for (wrong, why) in
        [("[]", "the array is empty"), ("[1,", "EOF"), (&batch(&vec![entry(1); 501]), "allowed: up to 500")]
    {
        let answer = warden.post(A, wrong).await;
        assert_eq!(status(&answer), 400);
        assert!(answer.contains(why), "{answer}");
    }
    warden.finish().await;
}

#[tokio::test]
async fn authorized_users_search_the_history_page_by_page() {
    let warden = TestWarden::start();
    for seq in 1..=30 {
        warden.post(if seq % 3 == 0 { B } else { A }, &entry(seq)).await;
    }
    let user = format!("authorization: Bearer {API_TOKEN}\r\n");
    let ask = async |query: &str| {
        let answer = warden.get(&format!("/history{query}"), &user).await;
        assert_eq!(status(&answer), 200, "{answer}");
        serde_json::from_str::<Value>(body(&answer)).unwrap()
    };
    let messages = |page: &Value| {
        let entries = page["entries"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = ask("?machine=b&limit=4").await;
    assert_eq!(messages(&first), ["entry 30", "entry 27", "entry 24", "entry 21"]);
    let next = first["next"].as_u64().unwrap();
    let rest = ask(&format!("?machine=b&before={next}&limit=9999")).await;
    assert_eq!((messages(&rest).len(), &rest["next"]), (6, &Value::Null));
    assert_eq!(messages(&ask("?q=ENTRY%207").await), ["entry 7"]);
    assert_eq!(messages(&ask("?level=critical").await), Vec::<String>::new());
    // An agent may use another machine name. Its id also finds those entries, and the warden's entries about it.
    for seq in [31, 32] {
        let mut named: Value = serde_json::from_str(&entry(seq)).unwrap();
        named["machine"] = "rack-9".into();
        warden.post(B, &named.to_string()).await;
    }
    let named = ask("?machine=b&limit=3").await;
    assert_eq!(messages(&named), ["entry 32", "entry 31", "entry 30"]);
    let next = named["next"].as_u64().unwrap();
    assert_eq!(messages(&ask(&format!("?machine=b&before={next}&limit=1")).await), ["entry 27"]);
    assert_eq!(messages(&ask("?machine=rack-9").await), ["entry 32", "entry 31"]);
    // Another agent's token does not speak for it: neither by its id nor by the name that it uses.
    for (seq, name) in [(41, "b"), (42, "rack-9")] {
        let mut claimed: Value = serde_json::from_str(&entry(seq)).unwrap();
        claimed["machine"] = name.into();
        assert_eq!(status(&warden.post(A, &claimed.to_string()).await), 200);
    }
    assert_eq!(messages(&ask("?machine=a&limit=2").await), ["entry 42", "entry 41"]);
    assert_eq!(messages(&ask("?machine=b&limit=3").await), messages(&named));
    assert_eq!(messages(&ask("?machine=rack-9&limit=1").await), ["entry 42"], "the name may be its own");
    for (wrong, why) in
        [("limit=0", "limit is not"), ("before=x", "before is not"), ("since=yesterday", "since is not")]
    {
        let answer = warden.get(&format!("/history?{wrong}"), &user).await;
        assert_eq!(status(&answer), 400);
        assert!(answer.contains(why), "{answer}");
    }
    assert_eq!(status(&warden.get("/history", "").await), 401);
    assert_eq!(status(&warden.get("/history", &format!("authorization: Bearer {A}\r\n")).await), 401);
    warden.finish().await;
}

/// Eight slow readers, and more entries than are kept in memory: each reader gets every entry, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_is_served_from_the_store_and_misses_nothing() {
    // No agent may send more at once than it can have queued.
    const COUNT: u64 = 16_000;
    let warden = TestWarden::start();
    assert_eq!(status(&warden.post(A, &entry(1)).await), 200);
    // HTTP/1.0 has no chunked encoding, whose chunk sizes would appear between the lines of the frames.
    let follow = format!("GET /events HTTP/1.0\r\nhost: w\r\ncookie: token={API_TOKEN}\r\n\r\n");
    let mut readers = Vec::new();
    for _ in 0..8 {
        let mut reader = warden.connect().await;
        reader.write(follow.as_bytes()).await;
        reader.until("entry 1\"").await;
        readers.push((reader, Vec::new()));
    }
    for first in (2..=COUNT).step_by(500) {
        let batch: Vec<String> = (first..(first + 500).min(COUNT + 1)).map(entry).collect();
        let token = if (first / 500).is_multiple_of(2) { A } else { B };
        assert_eq!(status(&warden.post(token, &format!("[{}]", batch.join(","))).await), 200);
        // Slow, but not stalled: a reader that reads nothing for 30 s is disconnected, and on a slow disk this loop may take
        // that long.
        for (reader, bytes) in &mut readers {
            reader.take(bytes).await;
        }
    }
    // All at once, for the same reason.
    let last = format!("entry {COUNT}\"");
    let rest = readers.into_iter().map(|(mut reader, bytes)| {
        let last = &last;
        async move { reader.until_after(bytes, last).await }
    });
    for seen in futures_util::future::join_all(rest).await {
        let ids: Vec<u64> = seen.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
        let gap = ids.windows(2).find(|pair| pair[1] != pair[0] + 1);
        assert_eq!(gap, None, "each once, ascending");
        let first = seen.find("entry ").map(|at| seen[at..].chars().take(12).collect::<String>());
        assert_eq!(ids.len() as u64, COUNT - 1, "{first:?}");
        assert!(!seen.contains("missed"));
    }
    warden.finish().await;
}
