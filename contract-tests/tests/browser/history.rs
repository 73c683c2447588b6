//! The warden's feed loads older entries from the store's history.

use contract_tests::{Browser, StubServer};
use serde_json::{Value, json};

use crate::scene::warden::entry;

const VISIBLE: &str = "[...document.querySelectorAll('#events > tr')].filter((r) => !r.hidden).length";

/// An entry of the history; lower ids are older.
fn past(id: u32, service: &str) -> Value {
    let mut past = entry(id, (1000 - id) * 60, "harbour", service, "updated", "info", &format!("entry {id}"));
    past["id"] = json!(id);
    past
}

/// Starts a stub warden whose stream starts with entry 1000 and whose history has older entries.
fn scene() -> StubServer {
    let stub = StubServer::warden();
    stub.skip_to(1000);
    stub.entry(&entry(1000, 0, "harbour", "shop", "restarted", "info", "shop-1 is healthy again"));
    let page = |ids: std::ops::RangeInclusive<u32>| -> Vec<Value> {
        ids.rev().map(|id| past(id, if id % 2 == 0 { "shop" } else { "mail" })).collect()
    };
    stub.answer(
        "GET /history?limit=100&before=1000",
        200,
        &json!({ "entries": page(900..=999), "next": 900 }),
    );
    stub.answer("GET /history?limit=100&before=900", 200, &json!({ "entries": page(870..=899) }));
    stub
}

#[test]
fn older_entries_are_loaded_to_the_end_of_the_history() {
    let stub = scene();
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the newest", &format!("{VISIBLE} === 1"));
    browser.click("#load-older");
    browser.wait("a page more", &format!("{VISIBLE} === 101"));
    // Scrolling to the end loads the rest.
    browser.run("window.scrollTo(0, document.body.scrollHeight);");
    browser.wait("all", &format!("{VISIBLE} === 131"));
    browser
        .wait("its end", "document.querySelector('#older').innerText.includes('There are no older entries')");
    assert_eq!(browser.value("document.querySelector('#load-older').hidden"), true);
    let order = "[...document.querySelectorAll('#events > tr')].map((r) => Number(/entry (\\d+)/.exec(r.textContent)?.[1] ?? 1000))";
    assert_eq!(browser.value(&format!("{order}.every((id, at) => id === 1000 - at)")), true);
    // New entries still appear at the top.
    stub.entry(&entry(1001, 0, "harbour", "shop", "unhealthy", "warning", "shop-1 is unhealthy"));
    browser
        .wait("the new one", "document.querySelector('#events > tr').textContent.includes('is unhealthy')");
}

#[test]
fn a_filter_searches_the_whole_history_and_leaves_no_gaps() {
    let stub = scene();
    let found = |ids: &[u32]| -> Vec<Value> { ids.iter().map(|id| past(*id, "mail")).collect() };
    stub.answer(
        "GET /history?limit=100&before=1000&service=mail&event=updated&q=entry",
        200,
        &json!({ "entries": found(&[500, 300]), "next": 200 }),
    );
    stub.answer(
        "GET /history?limit=100&before=200&service=mail&event=updated&q=entry",
        200,
        &json!({ "entries": [], "next": 100 }),
    );
    // Empty pages are skipped, but only a limited number of them.
    stub.answer(
        "GET /history?limit=100&before=100&service=mail&event=updated&q=entry",
        200,
        &json!({ "entries": [], "next": 90 }),
    );
    stub.answer(
        "GET /history?limit=100&before=90&service=mail&event=updated&q=entry",
        200,
        &json!({ "entries": [], "next": 90 }),
    );
    let browser = Browser::start();
    browser.open(&format!("{}?service=mail&kind=updated&text=entry", stub.url()));
    browser.wait("the found entries", &format!("{VISIBLE} === 2"));
    browser.click("#load-older");
    browser.wait(
        "the text for no match",
        "document.querySelector('#older').innerText.includes('there are older entries')",
    );
    // Without the filter, there are entries between those and the newest that are not loaded.
    browser.click("#clear");
    browser.wait("the newest alone", &format!("{VISIBLE} === 1"));
    browser.click("#load-older");
    browser.wait("a page of all", &format!("{VISIBLE} === 101"));
}

#[test]
fn the_history_is_searched_by_the_id_of_the_selected_machine() {
    let stub = scene();
    // The warden only finds the entries under both names when searching by the id.
    let mut renamed = entry(1001, 0, "harbour-1", "shop", "updated", "info", "entry 1001");
    renamed["agent"] = json!("harbour");
    stub.entry(&renamed);
    let path = "GET /history?limit=100&before=1000&machine=harbour";
    let mut offline = entry(900, 9000, "harbour", "warden", "agent_offline", "warning", "harbour is offline");
    offline["id"] = json!(900);
    stub.answer(path, 200, &json!({ "entries": [offline] }));
    let browser = Browser::start();
    browser.open(&format!("{}?machine=harbour", stub.url()));
    browser.wait("the warden's entry about it", &format!("{VISIBLE} === 3"));
    let asked = stub.received().into_iter().map(|(request, _)| request);
    let asked: Vec<_> = asked.filter(|request| request.contains("/history")).collect();
    assert!(
        !asked.is_empty() && asked.iter().all(|request| request.ends_with("machine=harbour")),
        "{asked:?}"
    );
}

#[test]
fn a_time_range_in_the_url_is_independent_of_the_time_zone() {
    let stub = scene();
    let browser = Browser::start();
    browser.open(&format!("{}?since=2026-01-02T03:04:00.000Z", stub.url()));
    let local = "document.querySelector('[name=since]').value";
    browser.wait("the field", &format!("new Date({local}).toISOString() === '2026-01-02T03:04:00.000Z'"));
    browser.wait(
        "the request",
        "performance.getEntriesByType('resource').some((e) => e.name.includes('/history'))",
    );
    let asked = stub.received();
    assert!(
        asked.iter().any(|(request, _)| request.contains("since=2026-01-02T03%3A04%3A00.000Z")),
        "{asked:?}"
    );
}

#[test]
fn a_banner_is_shown_while_the_store_is_unreachable() {
    let stub = scene();
    let away = json!({ "status": "ok", "store": "away", "error": "connection refused" });
    stub.answer("GET /health", 200, &away);
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the banner", "!document.querySelector('#store-away').hidden");
    let text = "document.querySelector('#store-away').innerText";
    assert_eq!(
        browser.value(text),
        "The warden's store is away. Agents keep their entries until it is back; the data shown may be outdated. \
         connection refused"
    );
    stub.answer("GET /health", 200, &json!({ "status": "ok" }));
    browser.run("document.dispatchEvent(new Event('visibilitychange'));");
    browser.wait("the banner to disappear", "document.querySelector('#store-away').hidden");
}

#[test]
fn an_unreachable_store_is_reported_and_can_be_retried_manually() {
    let stub = scene();
    stub.answer("GET /history?limit=100&before=1000", 503, &json!({ "error": "the store is away" }));
    let browser = Browser::start();
    browser.allow_console_errors(&["status of 503"]);
    browser.open(&stub.url());
    browser.wait("the newest", &format!("{VISIBLE} === 1"));
    browser.click("#load-older");
    browser.wait("the fault", "document.querySelector('#older').innerText.includes('the store is away')");
    stub.answer("GET /history?limit=100&before=1000", 200, &json!({ "entries": [past(999, "mail")] }));
    browser.click("#load-older");
    browser.wait("the rest", &format!("{VISIBLE} === 2"));
}
