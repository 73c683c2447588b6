//! The warden's dashboard in a real browser with a stub warden (spec 4.3).

use contract_tests::{Browser, StubServer};
use serde_json::{Value, json};

use crate::scene::ahead;
use crate::scene::warden::{DIGEST, busy_warden, entry};

/// Starts a stub warden with a fleet, and a browser that shows it.
fn scene() -> (StubServer, Browser) {
    let stub = busy_warden();
    let browser = Browser::start();
    browser.open(&format!("{}?token=secret", stub.url()));
    browser.wait("the cards", "document.querySelectorAll('#machines > li').length === 3");
    browser.wait("the entries", "document.querySelectorAll('#events > tr').length === 5");
    (stub, browser)
}

const VISIBLE: &str = "[...document.querySelectorAll('#events > tr')].filter((r) => !r.hidden).length";

#[test]
fn machines_fleet_and_feed_show_what_the_warden_knows() {
    let (stub, browser) = scene();
    assert!(stub.size() < 150 * 1024, "{} bytes", stub.size());
    assert_eq!(browser.url(), stub.url(), "the token is not in the URL");
    assert!(browser.text("#summary").contains("1 machine online · 1 offline · 1 unknown"));
    let card = browser.text("#machines > li:nth-child(2)");
    for part in [
        "lighthouse",
        "offline",
        "for 9 min",
        "connection refused",
        "3 entries missing",
        "1 critical",
        "does not answer",
    ] {
        assert!(card.contains(part), "{part:?} is not in {card}");
    }
    browser.wait("the fleet", "[...document.querySelectorAll('#fleet > tr')].every((r) => r.innerText)");
    let fleet = browser
        .value("[...document.querySelectorAll('#fleet > tr')].map((r) => r.innerText.replace(/\\s+/g, ' '))");
    let fleet: Vec<&str> = fleet.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert_eq!(fleet.len(), 4, "{fleet:?}");
    assert!(
        fleet.iter().any(|row| row.contains("shop lighthouse") && row.contains(&DIGEST[..19])),
        "{fleet:?}"
    );
    let feed = browser.text("#events > tr:nth-child(1)");
    assert!(feed.contains("queue-1 is healthy again") && feed.contains("harbour"), "{feed}");
}

#[test]
fn a_filtered_view_is_kept_in_the_url_and_can_be_shared() {
    let (stub, browser) = scene();
    browser.click("#machines > li:nth-child(2) .pick");
    browser.wait("its entries", &format!("{VISIBLE} === 3"));
    browser.run("const s = document.querySelector('[name=level]'); s.value = 'critical'; s.dispatchEvent(new Event('input'));");
    browser.wait("the critical one", &format!("{VISIBLE} === 1"));
    let shared = browser.url();
    assert!(shared.contains("machine=lighthouse") && shared.contains("level=critical"), "{shared}");
    let reader = Browser::start();
    reader.open(&shared);
    reader.wait(
        "the same view",
        &format!("{VISIBLE} === 1 && document.querySelector('[name=machine]').value === 'lighthouse'"),
    );
    reader.click("#clear");
    reader.wait("everything", &format!("{VISIBLE} === 5"));
    assert_eq!(reader.url(), stub.url());
    reader.write("#search", "code 1");
    reader.wait("the entry with the reason", &format!("{VISIBLE} === 1"));
}

#[test]
fn entries_arrive_live_and_a_reconnect_causes_neither_gaps_nor_duplicates() {
    let (stub, browser) = scene();
    stub.entry(&entry(813, 0, "harbour", "shop", "unhealthy", "warning", "shop-1 is unhealthy"));
    browser
        .wait("the new entry", "document.querySelector('#events').innerText.includes('shop-1 is unhealthy')");
    browser.allow_console_errors(&["net::ERR_"]);
    stub.set_offline(true);
    browser.wait("the loss", "document.body.dataset.link === 'reconnecting'");
    stub.entry(&entry(814, 0, "harbour", "shop", "healthy", "info", "meanwhile"));
    stub.set_offline(false);
    browser.wait("the missed entry", "document.querySelector('#events').innerText.includes('meanwhile')");
    assert_eq!(browser.value("document.querySelectorAll('#events > tr').length"), 7);
    browser.reload();
    browser.wait("all of them", "document.querySelectorAll('#events > tr').length === 7");
}

#[test]
fn hostile_text_is_not_interpreted() {
    let bomb = "<img src=x onerror=\"window.hit=1\">";
    let long = "x".repeat(10 * 1024);
    let stub = StubServer::warden();
    stub.answer(
        "GET /machines",
        200,
        &json!([{ "id": bomb, "online": false, "reason": long, "missing": 1,
        "counts_by_level": { bomb: 1 } }]),
    );
    let mut hostile = entry(1, 5, bomb, bomb, bomb, bomb, &format!("{bomb}{long}\u{202e}\u{1b}[31m"));
    hostile["output"] = json!(long);
    hostile["new_digest"] = json!(bomb);
    stub.entry(&hostile);
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the entry", "document.querySelectorAll('#events > tr').length === 1");
    browser.wait("the card", "document.querySelectorAll('#machines > li').length === 1");
    browser.run("document.querySelector('#events summary').click();");
    browser.wait("the box", "document.querySelector('#events .box')");
    for width in [1440, 390] {
        browser.size(width, 900);
        assert_eq!(browser.value("document.documentElement.scrollWidth <= innerWidth"), true, "{width}");
    }
    assert_eq!(browser.value("window.hit ?? null"), Value::Null);
    assert_eq!(browser.value("document.querySelectorAll('main img').length"), 0);
}

#[test]
fn an_agent_neither_speaks_for_another_one_nor_fills_the_list() {
    let (stub, browser) = scene();
    let mut claimed = entry(813, 0, "harbour", "cache", "healthy", "info", "all is well");
    claimed["machine"] = json!("lighthouse");
    stub.entry(&claimed);
    browser.wait("the entry", "document.querySelector('#events').innerText.includes('all is well')");
    assert!(browser.text("#events > tr:nth-child(1)").contains("lighthouse (harbour)"));
    assert!(browser.text("#machines > li:nth-child(2)").contains("does not answer"), "the card is its own");
    let rows = "[...document.querySelectorAll('#fleet > tr')].map((r) => r.innerText.replace(/\\s+/g, ' '))";
    let has = |start: &str, part: &str| {
        format!("{rows}.some((r) => r.startsWith({start:?}) && r.includes({part:?}))")
    };
    browser.wait("its row", &has("cache lighthouse (harbour) ", "healthy"));
    browser.wait("the other row", &has("cache lighthouse ", "exhausted"));
    for n in 0..200 {
        let service = format!("service-{n}");
        stub.entry(&entry(900 + n, 0, "harbour", &service, "healthy", "info", "it is healthy"));
    }
    // 200 of the one, and both of the other.
    browser.wait("the cut list", "document.querySelectorAll('#fleet > tr').length === 202");
    let note = browser.text("#fleet-note");
    assert!(note.contains("of harbour, only the 200 services"), "{note}");
}

#[test]
fn the_login_form_keeps_the_view_and_says_when_a_token_was_refused() {
    let stub = StubServer::login_refused();
    let browser = Browser::start();
    browser.open(&format!("{}?level=error&token=wrong", stub.url()));
    browser.wait("the refusal", "!document.querySelector('#refused').hidden");
    assert_eq!(browser.url(), format!("{}?level=error", stub.url()));
    assert_eq!(browser.value("document.activeElement.id"), "token");
    assert_eq!(browser.value("document.querySelector('form').getAttribute('action')"), "/login?level=error");
}

#[test]
fn a_stream_without_the_latest_entry_of_a_machine_is_reopened() {
    let (stub, browser) = scene();
    browser.wait("the stream", "document.body.dataset.link === 'live'");
    stub.stall_streams();
    // More entries than a new stream replays.
    for seq in 813..900 {
        let message = format!("queue-1 is unhealthy, number {seq}");
        stub.entry(&entry(seq, 0, "harbour", "queue", "unhealthy", "warning", &message));
    }
    stub.answer("GET /machines", 200, &json!([{ "id": "harbour", "online": true, "last_entry": ahead(6) }]));
    // Long enough for the entry to be overdue, but not for the page to consider the warden silent.
    browser.run("const now = Date.now; Date.now = () => now() + 25000;");
    browser.run("document.dispatchEvent(new Event('visibilitychange'));");
    browser.wait("all of them", "document.querySelectorAll('#events > tr').length === 5 + 87");
    assert_eq!(stub.streams(), 1);
}
