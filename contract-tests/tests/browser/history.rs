//! The warden's feed goes back as far as its store does.

use contract_tests::{Browser, Stage};
use serde_json::{Value, json};

use crate::scene::warden::entry;

const VISIBLE: &str = "[...document.querySelectorAll('#events > tr')].filter((r) => !r.hidden).length";

/// An entry of the history, the older the smaller its id.
fn past(id: u32, service: &str) -> Value {
    let mut past = entry(id, (1000 - id) * 60, "harbour", service, "updated", "info", &format!("entry {id}"));
    past["id"] = json!(id);
    past
}

/// A warden whose stream begins with entry 1000 and that keeps more.
fn scene() -> Stage {
    let stage = Stage::warden();
    stage.skip_to(1000);
    stage.entry(&entry(1000, 0, "harbour", "shop", "restarted", "info", "shop-1 is healthy again"));
    let page = |ids: std::ops::RangeInclusive<u32>| -> Vec<Value> {
        ids.rev().map(|id| past(id, if id % 2 == 0 { "shop" } else { "mail" })).collect()
    };
    stage.answer(
        "GET /history?limit=100&before=1000",
        200,
        &json!({ "entries": page(900..=999), "next": 900 }),
    );
    stage.answer("GET /history?limit=100&before=900", 200, &json!({ "entries": page(870..=899) }));
    stage
}

#[test]
fn older_entries_are_loaded_until_the_history_is_over() {
    let stage = scene();
    let browser = Browser::start();
    browser.open(&stage.url());
    browser.wait("the newest", &format!("{VISIBLE} === 1"));
    browser.click("#load-older");
    browser.wait("a page more", &format!("{VISIBLE} === 101"));
    // Whoever comes to the end gets the rest.
    browser.run("window.scrollTo(0, document.body.scrollHeight);");
    browser.wait("all", &format!("{VISIBLE} === 131"));
    browser.wait("its end", "document.querySelector('#older').innerText.includes('all that is kept')");
    assert_eq!(browser.value("document.querySelector('#load-older').hidden"), true);
    let order = "[...document.querySelectorAll('#events > tr')].map((r) => Number(/entry (\\d+)/.exec(r.textContent)?.[1] ?? 1000))";
    assert_eq!(browser.value(&format!("{order}.every((id, at) => id === 1000 - at)")), true);
    // What comes then goes on top, as ever.
    stage.entry(&entry(1001, 0, "harbour", "shop", "unhealthy", "warning", "shop-1 is unhealthy"));
    browser
        .wait("the new one", "document.querySelector('#events > tr').textContent.includes('is unhealthy')");
}

#[test]
fn a_filter_searches_the_whole_history_and_shows_nothing_with_gaps() {
    let stage = scene();
    let found = |ids: &[u32]| -> Vec<Value> { ids.iter().map(|id| past(*id, "mail")).collect() };
    stage.answer(
        "GET /history?limit=100&before=1000&service=mail&event=updated&q=entry",
        200,
        &json!({ "entries": found(&[500, 300]), "next": 200 }),
    );
    stage.answer(
        "GET /history?limit=100&before=200&service=mail&event=updated&q=entry",
        200,
        &json!({ "entries": [], "next": 100 }),
    );
    // Pages that find nothing are gone through, but not without end.
    stage.answer(
        "GET /history?limit=100&before=100&service=mail&event=updated&q=entry",
        200,
        &json!({ "entries": [], "next": 90 }),
    );
    stage.answer(
        "GET /history?limit=100&before=90&service=mail&event=updated&q=entry",
        200,
        &json!({ "entries": [], "next": 90 }),
    );
    let browser = Browser::start();
    browser.open(&format!("{}?service=mail&kind=updated&text=entry", stage.url()));
    browser.wait("what is found", &format!("{VISIBLE} === 2"));
    browser.click("#load-older");
    browser.wait(
        "the words for nothing",
        "document.querySelector('#older').innerText.includes('there are older ones')",
    );
    // Without the filter there are entries between those and the newest, which are not loaded.
    browser.click("#clear");
    browser.wait("the newest alone", &format!("{VISIBLE} === 1"));
    browser.click("#load-older");
    browser.wait("a page of all", &format!("{VISIBLE} === 101"));
}

#[test]
fn a_machine_is_searched_by_the_id_that_was_chosen() {
    let stage = scene();
    // The warden finds entries under both names only by the id.
    let mut renamed = entry(1001, 0, "harbour-1", "shop", "updated", "info", "entry 1001");
    renamed["agent"] = json!("harbour");
    stage.entry(&renamed);
    let path = "GET /history?limit=100&before=1000&machine=harbour";
    let mut offline = entry(900, 9000, "harbour", "warden", "agent_offline", "warning", "harbour is offline");
    offline["id"] = json!(900);
    stage.answer(path, 200, &json!({ "entries": [offline] }));
    let browser = Browser::start();
    browser.open(&format!("{}?machine=harbour", stage.url()));
    browser.wait("what the warden says of it", &format!("{VISIBLE} === 3"));
    let asked = stage.received().into_iter().map(|(request, _)| request);
    let asked: Vec<_> = asked.filter(|request| request.contains("/history")).collect();
    assert!(
        !asked.is_empty() && asked.iter().all(|request| request.ends_with("machine=harbour")),
        "{asked:?}"
    );
}

#[test]
fn a_span_of_time_is_the_same_for_every_reader() {
    let stage = scene();
    let browser = Browser::start();
    browser.open(&format!("{}?since=2026-01-02T03:04:00.000Z", stage.url()));
    let local = "document.querySelector('[name=since]').value";
    browser.wait("the field", &format!("new Date({local}).toISOString() === '2026-01-02T03:04:00.000Z'"));
    browser.wait(
        "the question",
        "performance.getEntriesByType('resource').some((e) => e.name.includes('/history'))",
    );
    let asked = stage.received();
    assert!(
        asked.iter().any(|(request, _)| request.contains("since=2026-01-02T03%3A04%3A00.000Z")),
        "{asked:?}"
    );
}

#[test]
fn the_page_says_while_the_store_is_away() {
    let stage = scene();
    let away = json!({ "status": "ok", "store": "away", "error": "connection refused" });
    stage.answer("GET /health", 200, &away);
    let browser = Browser::start();
    browser.open(&stage.url());
    browser.wait("the banner", "!document.querySelector('#store-away').hidden");
    let text = "document.querySelector('#store-away').innerText";
    assert_eq!(
        browser.value(text),
        "The warden's store is away. Agents keep their entries until it is back; what is shown may be old. \
         connection refused"
    );
    stage.answer("GET /health", 200, &json!({ "status": "ok" }));
    browser.run("document.dispatchEvent(new Event('visibilitychange'));");
    browser.wait("its end", "document.querySelector('#store-away').hidden");
}

#[test]
fn a_store_that_is_away_says_so_and_is_asked_again_by_hand() {
    let stage = scene();
    stage.answer("GET /history?limit=100&before=1000", 503, &json!({ "error": "the store is away" }));
    let browser = Browser::start();
    browser.bear(&["status of 503"]);
    browser.open(&stage.url());
    browser.wait("the newest", &format!("{VISIBLE} === 1"));
    browser.click("#load-older");
    browser.wait("the fault", "document.querySelector('#older').innerText.includes('the store is away')");
    stage.answer("GET /history?limit=100&before=1000", 200, &json!({ "entries": [past(999, "mail")] }));
    browser.click("#load-older");
    browser.wait("the rest", &format!("{VISIBLE} === 2"));
}
