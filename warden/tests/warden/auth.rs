//! Authorization: tokens, sessions, the login form, throttling, pages of other sites.

use crate::support::{A, API_TOKEN, B, TestWarden, assert_refused, body, count, entry, header, post, status};

#[tokio::test]
async fn wrong_tokens_in_every_form_are_401_and_store_nothing() {
    let warden = TestWarden::start();
    let long = "x".repeat(10_000);
    for headers in [
        String::new(),
        "authorization: Bearer\r\n".to_owned(),
        "authorization: Bearer \r\n".to_owned(),
        "authorization: Bearer wrong\r\n".to_owned(),
        format!("authorization: Bearer {long}\r\n"),
        format!("authorization: Bearer {API_TOKEN}\r\n"),
        format!("authorization: {A}\r\n"),
        format!("authorization: Basic {A}\r\n"),
        format!("authorization: Bearer {A}x\r\n"),
        format!("authorization: Bearer {}\r\n", &A[1..]),
        format!("authorization: Bearer {}\r\n", A.to_uppercase()),
        format!("authorization: Bearer {A},{B}\r\n"),
        format!("authorization: Bearer \"{A}\"\r\n"),
        format!("authorization: Bearer {A}\r\nauthorization: Bearer {A}\r\n"),
        format!("cookie: token={A}\r\n"),
        format!("cookie: token={API_TOKEN}\r\n"),
    ] {
        assert_refused(&warden.send(&post(&format!("{headers}connection: close\r\n"), &entry(1))).await, 401);
    }
    let query = post("connection: close\r\n", &entry(1)).replace("/ingest", &format!("/ingest?token={A}"));
    assert_refused(&warden.send(&query).await, 401);

    for (path, headers) in [
        ("/events", String::new()),
        ("/events?token=", String::new()),
        ("/events?token=wrong", "accept: text/html\r\n".to_owned()),
        ("/events?token=wrong", format!("cookie: token={A}\r\n")),
        ("/events", format!("authorization: Bearer {A}\r\n")),
        ("/machines", "cookie: token=\r\n".to_owned()),
        ("/machines", format!("cookie: xtoken={API_TOKEN}\r\n")),
        ("/", String::new()),
        ("/", format!("authorization: Bearer {API_TOKEN}\r\n")),
        ("/metrics", format!("cookie: token={API_TOKEN}\r\n")),
        ("/metrics", format!("authorization: Bearer {A}\r\n")),
    ] {
        assert_refused(&warden.get(path, &headers).await, 401);
    }
    let metrics = format!("/metrics?token={API_TOKEN}");
    assert_refused(&warden.get(&metrics, "").await, 401);
    assert_eq!((count(&warden, 0), count(&warden, 1)), (0, 0));
    warden.finish().await;
}

#[tokio::test]
async fn users_authenticate_by_query_cookie_or_bearer_where_each_is_allowed() {
    let warden = TestWarden::start();
    let query = format!("?token={API_TOKEN}");
    let cookie = format!("cookie: a=b; token={API_TOKEN}\r\n");
    let bearer = format!("authorization: Bearer {API_TOKEN}\r\n");
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
        let answer = warden.get(&path, headers).await;
        assert_eq!(status(&answer), 200, "{path}: {answer}");
    }
    assert_eq!(body(&warden.get("/health", "").await), r#"{"status":"ok"}"#);
    warden.finish().await;
}

/// Each of them is checked before the body is read.
#[tokio::test]
async fn users_freeze_thaw_and_unblock_with_a_session_or_the_token_as_cookie_or_bearer() {
    let warden = TestWarden::start();
    let page = warden.get(&format!("/?token={API_TOKEN}"), "").await;
    let session = header(&page, "set-cookie").unwrap().split(';').next().unwrap();
    let ask = async |path: &str, headers: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: w\r\nconnection: close\r\n{headers}");
        status(&warden.send(&format!("{head}content-length: 2\r\n\r\n{{}}")).await)
    };
    // The other bodies lack fields.
    for (path, expected) in [("/freeze", 400), ("/thaw", 200), ("/unblock", 400)] {
        for headers in [
            format!("cookie: a=b; {session}\r\n"),
            format!("cookie: token={API_TOKEN}\r\n"),
            format!("authorization: Bearer {API_TOKEN}\r\n"),
            format!("authorization: Basic cHJveHk6\r\ncookie: {session}\r\n"),
        ] {
            assert_eq!(ask(path, &headers).await, expected, "{path} {headers}");
        }
        for headers in
            [String::new(), format!("authorization: Bearer {A}\r\n"), format!("cookie: {session}x\r\n")]
        {
            assert_eq!(ask(path, &headers).await, 401, "{path} {headers}");
        }
        assert_eq!(ask(&format!("{path}?token={API_TOKEN}"), "").await, 401, "{path}");
    }
    warden.finish().await;
}

#[tokio::test]
async fn the_page_sets_a_session_cookie_and_does_not_contain_the_token() {
    let warden = TestWarden::start();
    let page = warden.get(&format!("/?token={API_TOKEN}"), "accept: text/html\r\n").await;
    assert_eq!(status(&page), 200);
    let cookie = header(&page, "set-cookie").unwrap();
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Max-Age=604800"), "{cookie}");
    assert!(!page.contains(API_TOKEN), "the cookie is a session and not the token");
    let session = cookie.split(';').next().unwrap().to_owned();
    for (path, headers) in [("/", ""), ("/machines", ""), ("/", "accept: text/html\r\n")] {
        let answer = warden.get(path, &format!("cookie: {session}\r\n{headers}")).await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert_eq!(header(&answer, "set-cookie"), None, "it is renewed only after half of its lifetime");
    }
    assert_refused(&warden.get("/machines", &format!("cookie: {session}x\r\n")).await, 401);
    assert_refused(&warden.get("/metrics", &format!("cookie: {session}\r\n")).await, 401);
    let policy = header(&page, "content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(header(&page, "x-frame-options"), Some("DENY"));
    for proto in ["https", "HTTPS", "https, http"] {
        let secure =
            warden.get(&format!("/?token={API_TOKEN}"), &format!("x-forwarded-proto: {proto}\r\n")).await;
        assert!(header(&secure, "set-cookie").unwrap().contains("; SameSite=Strict; Secure"), "{proto}");
    }
    let form = warden.get("/?token=wrong", "accept: text/html,*/*\r\n").await;
    assert_eq!(status(&form), 401);
    assert_eq!(header(&form, "set-cookie"), None);
    assert!(body(&form).contains("type=\"password\"") && body(&form).contains("method=\"post\""), "{form}");
    warden.finish().await;
}

#[tokio::test]
async fn a_logout_deletes_the_cookie_and_cannot_be_caused_by_another_site() {
    let warden = TestWarden::start();
    let logout = async |method: &str, headers: &str| {
        let request = format!("{method} /logout HTTP/1.1\r\nhost: w\r\nconnection: close\r\n{headers}\r\n");
        warden.send(&request).await
    };
    let cookie = "token=; Path=/; HttpOnly; SameSite=Strict";
    // It ignores the body, and does not wait for it.
    let answer = logout("POST", "content-length: 1000000\r\n").await;
    assert_eq!((status(&answer), header(&answer, "connection")), (200, Some("close")));
    for (headers, expected) in [
        (format!("cookie: token={API_TOKEN}\r\norigin: http://w\r\n"), format!("{cookie}; Max-Age=0")),
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
    // A link or an image cannot log a user out.
    assert_refused(&logout("GET", "").await, 405);
    warden.finish().await;
}

fn login(headers: &str, fields: &str) -> String {
    let length = fields.len();
    format!(
        "POST /login?level=info&token=x HTTP/1.1\r\nhost: w\r\nconnection: close\r\naccept: text/html\r\ncontent-type: application/x-www-form-urlencoded\r\n{headers}content-length: {length}\r\n\r\n{fields}"
    )
}

#[tokio::test]
async fn a_login_by_form_creates_a_session_and_opens_the_requested_view() {
    let warden = TestWarden::start();
    let answer = warden.send(&login("origin: http://w\r\n", &format!("token={API_TOKEN}"))).await;
    assert_eq!((status(&answer), header(&answer, "location")), (303, Some("/?level=info")), "{answer}");
    let session = header(&answer, "set-cookie").unwrap().split(';').next().unwrap();
    assert!(!answer.contains(API_TOKEN));
    assert_eq!(status(&warden.get("/machines", &format!("cookie: {session}\r\n")).await), 200);
    let wrong = warden.send(&login("", "token=wrong")).await;
    assert_eq!(status(&wrong), 401);
    assert!(body(&wrong).contains("That token is not accepted."), "{wrong}");
    assert_eq!(header(&wrong, "set-cookie"), None);
    for fields in ["", "token=", "tokn=x"] {
        assert_eq!(status(&warden.send(&login("", fields)).await), 401, "{fields}");
    }
    assert_refused(
        &warden.send(&login("origin: http://evil.example\r\n", &format!("token={API_TOKEN}"))).await,
        403,
    );
    assert_refused(&warden.send(&login("", &format!("token={}", "x".repeat(5000)))).await, 413);
    warden.finish().await;
}

#[tokio::test]
async fn guesses_are_throttled_and_counted_while_agents_and_sessions_continue() {
    let warden = TestWarden::start();
    let page = warden.get(&format!("/?token={API_TOKEN}"), "").await;
    let session = header(&page, "set-cookie").unwrap().split(';').next().unwrap().to_owned();
    assert_eq!(status(&warden.post(A, &entry(1)).await), 200);
    let mut codes = Vec::new();
    for guess in 0..40 {
        codes.push(match guess % 4 {
            0 => status(&warden.get(&format!("/?token=guess-{guess}"), "").await),
            1 => status(&warden.get("/machines", &format!("cookie: token=guess-{guess}\r\n")).await),
            2 => status(&warden.send(&login("", &format!("token=guess-{guess}"))).await),
            _ => status(&warden.post(&format!("guess-{guess}"), &entry(1)).await),
        });
    }
    assert_eq!(codes[..10], [401; 10]);
    assert!(codes.iter().filter(|code| **code == 429).count() >= 20, "{codes:?}");
    let refusal = warden.get("/machines?token=another-guess", "").await;
    assert_refused(&refusal, 429);
    assert!(header(&refusal, "retry-after").is_some());
    // Behind a proxy in a container, all clients have one address: the right token is too long to be guessed.
    assert_eq!(status(&warden.get(&format!("/machines?token={API_TOKEN}"), "").await), 200);
    assert_eq!(status(&warden.send(&login("", &format!("token={API_TOKEN}"))).await), 303);
    let scrape = warden.get("/metrics", &format!("authorization: Bearer {API_TOKEN}\r\n")).await;
    assert_eq!(status(&scrape), 200);
    assert_eq!(status(&warden.get("/machines", &format!("cookie: {session}\r\n")).await), 200);
    assert_eq!(status(&warden.post(A, &entry(2)).await), 200, "it has authenticated from there before");
    assert_eq!(status(&warden.post(B, &entry(1)).await), 200, "its token is too long to be guessed");
    // Another client behind the same proxy is counted separately.
    let other = "x-forwarded-for: 192.0.2.1\r\n";
    let metrics = warden.get("/metrics", &format!("authorization: Bearer {API_TOKEN}\r\n{other}")).await;
    assert_eq!(status(&metrics), 200, "{metrics}");
    for part in [
        "refused_logins_total{reason=\"slowed\"}",
        "refused_logins_total{reason=\"wrong\"}",
        "refused_requests_total{reason=\"slowed\"}",
    ] {
        let line = metrics.lines().find(|line| line.contains(part)).unwrap();
        assert!(!line.ends_with(" 0"), "{line}");
    }
    warden.finish().await;
}

#[tokio::test]
async fn short_tokens_work_from_every_machine_and_guesses_are_throttled() {
    let warden = TestWarden::with_tokens("short", [("a", "brief"), ("b", B)]);
    let far = "x-forwarded-for: 192.0.2.1\r\n";
    let ingest = |token: &str, from: &str| {
        post(&format!("authorization: Bearer {token}\r\nconnection: close\r\n{from}"), &entry(1))
    };
    for from in ["", far] {
        assert_eq!(status(&warden.get("/machines?token=short", from).await), 200);
        assert_eq!(status(&warden.send(&ingest("brief", from)).await), 200);
    }
    assert_refused(&warden.get("/machines?token=wrong", far).await, 401);
    assert_refused(&warden.send(&ingest("wrong", far)).await, 401);
    let guesser = "x-forwarded-for: 192.0.2.2\r\n";
    for n in 0..10 {
        assert_refused(&warden.get(&format!("/machines?token=guess{n}"), guesser).await, 401);
    }
    // The right token is not checked either; otherwise each guess would reveal something.
    assert_refused(&warden.get("/machines?token=short", guesser).await, 429);
    assert_refused(&warden.send(&ingest("brief", guesser)).await, 429);
    warden.finish().await;
}

#[tokio::test]
async fn another_site_cannot_open_a_stream() {
    let warden = TestWarden::start();
    for path in ["/events", "/machines", "/metrics"] {
        let headers = format!("cookie: token={API_TOKEN}\r\nsec-fetch-site: cross-site\r\n");
        assert_refused(&warden.get(path, &headers).await, 403);
    }
    let link = "accept: text/html\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    assert_eq!(status(&warden.get("/", link).await), 401, "the form");
    warden.finish().await;
}

/// The page sends no referrer, so its form is sent with `Origin: null`; Sec-Fetch-Site shows that it is same-origin. Over
/// plain HTTP to another machine, browsers do not send that header, so the page's script sends the form, with its origin.
#[tokio::test]
async fn the_login_form_works_without_a_referrer_and_no_other_page_can_send_it() {
    let warden = TestWarden::start();
    let form = warden.get("/", "accept: text/html\r\n").await;
    assert_eq!(header(&form, "referrer-policy"), Some("no-referrer"));
    assert!(!body(&form).contains("name=\"referrer\""), "nothing weakens the header: {form}");

    let right = format!("token={API_TOKEN}");
    let own_form = "origin: null\r\nsec-fetch-site: same-origin\r\nsec-fetch-mode: navigate\r\n";
    let answer = warden.send(&login(own_form, &right)).await;
    assert_eq!((status(&answer), header(&answer, "location")), (303, Some("/?level=info")), "{answer}");
    assert!(header(&answer, "set-cookie").is_some());
    for headers in [
        "origin: null\r\n",
        "origin: null\r\nsec-fetch-site: none\r\n",
        "origin: null\r\nsec-fetch-site: same-site\r\n",
        "origin: null\r\nsec-fetch-site: cross-site\r\n",
        "origin: null\r\nsec-fetch-site: same-origin, cross-site\r\n",
        "origin: null\r\nsec-fetch-site: same-origin\r\nsec-fetch-site: cross-site\r\n",
        "origin: http://evil.example\r\nsec-fetch-site: none\r\n",
        "origin: http://w:8080\r\n",
    ] {
        let answer = warden.send(&login(headers, &right)).await;
        assert_refused(&answer, 403);
        assert_eq!(header(&answer, "set-cookie"), None, "{headers}");
    }
    // Behind a proxy that forwards the host without its port, or another host.
    for headers in [
        "origin: http://w:8080\r\nsec-fetch-site: same-origin\r\n",
        "origin: https://warden.example\r\nsec-fetch-site: same-origin\r\n",
        "origin: http://warden.example:8080\r\nx-evenkeel-page: 1\r\n",
    ] {
        assert_eq!(status(&warden.send(&login(headers, &right)).await), 303, "{headers}");
    }

    let by_script = |fields: &str| {
        login("origin: http://w\r\n", fields).replace("accept: text/html", "accept: application/json")
    };
    let answer = warden.send(&by_script(&right)).await;
    assert_eq!(status(&answer), 303, "{answer}");
    let refusal = warden.send(&by_script("token=wrong")).await;
    assert_refused(&refusal, 401);
    assert!(body(&refusal).contains("That token is not accepted."), "{refusal}");
    warden.finish().await;
}
