//! The agent's dashboard as served by the real program without an engine: the page, its responses, and a stream that is cut,
//! hangs, or is refused.

use std::io::{Read, Write};
use std::net::TcpStream;

use contract_tests::{Agent, Browser, Config, Service, request};
use serde_json::json;

fn agent() -> Agent {
    Agent::without_engine("real", |folder| {
        Config::of([
            Service::idle("idle", folder).set("auto_update", true).set("images", json!(["web:1"])),
            Service::named("broken").set("auto_update", true),
        ])
        .registry("127.0.0.1:9")
    })
}

/// Opens the agent's page in a browser.
fn page_of(agent: &Agent) -> Browser {
    let browser = Browser::start();
    // The status of /health without an engine.
    browser.allow_console_errors(&["status of 503"]);
    browser.open(&format!("http://{}/ui", agent.address()));
    browser
}

#[test]
fn the_real_agent_serves_a_live_page_that_says_what_is_wrong() {
    let agent = agent();
    let page = request(agent.address(), "GET", "/ui", &[("Accept-Encoding", "gzip")], &[]).unwrap();
    let header = |name: &str| page.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    assert_eq!((page.status, header("content-encoding")), (200, Some("gzip")));
    assert_eq!(header("x-frame-options"), Some("DENY"));
    assert_eq!(header("cache-control"), Some("no-cache"));
    let known = [("Accept-Encoding", "gzip"), ("If-None-Match", header("etag").expect("an ETag"))];
    assert_eq!(request(agent.address(), "GET", "/ui", &known, &[]).unwrap().status, 304);

    let browser = page_of(&agent);
    // One of them is left out.
    browser.wait("the rows", "document.querySelectorAll('#rows > tr').length === 2");
    browser.wait("the stream", "document.body.dataset.link === 'live'");
    browser.wait("the warning", "document.querySelector('#notice').innerText.includes('broken')");
    browser.wait(
        "the first entry",
        "document.querySelector('#events').innerText.includes('watching 1 service')",
    );
    browser.click("#rows .actions .button:nth-child(1)");
    browser.wait_notice("A check of");
}

#[test]
fn a_stream_that_hangs_is_shown_as_stale_and_resumes() {
    let agent = agent();
    let browser = page_of(&agent);
    browser.wait("live", "document.body.dataset.link === 'live'");
    // The connections stay open, but no more data arrives.
    agent.freeze(true);
    browser.run(
        "const now = Date.now; Date.now = () => now() + 60000; window.back = () => { Date.now = now; };",
    );
    browser
        .wait("the connection state", "document.querySelector('#link').innerText.startsWith('Stale since')");
    browser.run("window.back();");
    agent.freeze(false);
    browser.wait("live again", "document.body.dataset.link === 'live'");
    assert_eq!(browser.value("document.querySelectorAll('#rows > tr').length"), 2);
}

#[test]
fn without_a_stream_the_page_polls_and_shows_that() {
    let agent = agent();
    // The address has reached its limit of streams (DECISIONS 6).
    let taken: Vec<TcpStream> = (0..32)
        .map(|_| {
            let mut stream = TcpStream::connect(agent.address()).expect("the agent listens");
            write!(stream, "GET /ui/events HTTP/1.1\r\nHost: {}\r\n\r\n", agent.address()).unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).expect("it answers");
            assert_eq!(&first, b"HTTP/1.1 200");
            stream
        })
        .collect();
    let browser = page_of(&agent);
    browser.allow_console_errors(&["status of 429"]);
    // One of them is left out.
    browser.wait("the rows", "document.querySelectorAll('#rows > tr').length === 2");
    browser
        .wait("the connection state", "document.querySelector('#link').innerText.includes('No live stream')");
    // The page shows nothing else until it is live, however often it retries.
    browser.run("window.said = new Set(); new MutationObserver(() => said.add(document.body.dataset.link)).observe(document.body, { attributes: true });");
    browser
        .wait("some more responses", "performance.getEntriesByName(`${location.origin}/status`).length >= 3");
    drop(taken);
    browser.wait("live", "document.body.dataset.link === 'live'");
    assert_eq!(browser.value("[...said].filter((word) => !['polling', 'live'].includes(word))"), json!([]));
}
