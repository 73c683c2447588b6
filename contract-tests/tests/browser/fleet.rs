//! The warden's map of images and machines, freezes, and withheld digests (DECISIONS 8).

use contract_tests::{Browser, StubServer, wait_for};
use serde_json::{Value, json};

use crate::scene::ago;
use crate::scene::warden::{BAD, DIGEST, entry, fleet_warden, images};

const RIGHT: char = '\u{e014}';
const DOWN: char = '\u{e015}';
const ENTER: char = '\u{e007}';
const ESCAPE: char = '\u{e00c}';

/// Starts a stub warden with a fleet, and a browser that shows its map.
fn scene() -> (StubServer, Browser) {
    let stub = fleet_warden();
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the map", "document.querySelectorAll('#map-rows > tr').length === 2");
    (stub, browser)
}

fn cell(row: u32, column: u32) -> String {
    format!("#map-rows > tr:nth-child({row}) > td:nth-child({})", column + 1)
}

/// Returns the body of the last request to `path`.
fn sent(stub: &StubServer, path: &str) -> Value {
    let mut found = Value::Null;
    wait_for(&format!("a POST to {path}"), || {
        let received = stub.received();
        let last = received.iter().rev().find(|(request, _)| *request == format!("POST {path}"));
        let (_, body) = last.ok_or_else(|| format!("{received:?}"))?;
        found = serde_json::from_str(body).expect("JSON");
        Ok(())
    });
    found
}

#[test]
fn the_map_says_which_machine_runs_what_and_why_one_is_behind() {
    let (_stub, browser) = scene();
    let text = |row, column| browser.text(&cell(row, column)).replace('\n', " ");
    let short = &DIGEST[7..19];
    // Two services use that image there; the waiting one comes first.
    let waiting = text(1, 1);
    assert!(waiting.contains(short) && waiting.contains("+1"), "{waiting}");
    assert!(waiting.contains("behind 2 h · approval"), "{waiting}");
    assert_eq!(browser.value(&format!("document.querySelector('{}').innerText", cell(1, 2))), "");
    // The digest that this machine would get next failed on another machine.
    assert!(text(2, 1).contains("withheld"), "{}", text(2, 1));
    assert!(text(2, 2).contains("failed here"), "{}", text(2, 2));
    assert!(browser.text("#map-note").contains("No inventory from quay"));
    assert_eq!(browser.value("document.querySelector('#csv').pathname"), "/fleet/images");

    browser.click("[data-view=waiting]");
    browser.wait(
        "one row",
        "[...document.querySelectorAll('#map-rows > tr')].filter((r) => !r.hidden).length === 1",
    );
    assert!(browser.text("#map-rows > tr:not([hidden]) > th").contains("registry.example/db"));
    // The map is more accurate than the entries, so their table is hidden.
    browser.wait("no row of entries", "document.querySelector('#fleet-section').hidden");
}

#[test]
fn tab_leads_into_the_map_even_if_a_filter_hides_the_current_row() {
    let (_stub, browser) = scene();
    browser.click(&cell(1, 1));
    browser.press(&[ESCAPE]);
    browser.click("[data-view=failed]");
    browser.wait("the first row hidden", "document.querySelector('#map-rows > tr').hidden");
    let ways_in =
        "[...document.querySelectorAll('#map [tabindex=\"0\"]')].map((cell) => cell.offsetParent !== null)";
    assert_eq!(browser.value(ways_in), json!([true]), "one way in, and it can be seen");
}

#[test]
fn a_cell_opens_by_keyboard_and_shows_the_diagnosis_and_the_button_to_unblock() {
    let (stub, browser) = scene();
    stub.answer("POST /unblock", 200, &json!({ "status": "unblocked", "revision": 8 }));
    browser.run("document.querySelector('#map td[tabindex=\"0\"]').focus();");
    browser.press(&[DOWN, RIGHT]);
    let has_focus =
        |row, column| browser.value(&format!("document.activeElement.matches('{}')", cell(row, column)));
    assert_eq!(has_focus(2, 2), true);
    browser.press(&[ENTER]);
    browser.wait("the cell", "document.querySelector('#cell').open");
    let text = browser.text("#cell");
    for part in [
        "registry.example/shop on lighthouse",
        "failed here",
        BAD,
        "exited with code 1",
        "no such column: price",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    browser.press(&[ESCAPE]);
    browser.wait("the cell to close", "!document.querySelector('#cell').open");
    assert_eq!(has_focus(2, 2), true, "the focus is back");

    // Updates are approved at the agent.
    browser.click(&cell(1, 1));
    let text = browser.text("#cell");
    assert!(
        text.contains("at the agent on harbour") && text.contains("evenkeel approve db-replica"),
        "{text}"
    );
    browser.click("#cell-close");

    browser.click("#withheld summary");
    browser.click("#withheld .failed-box .button");
    browser.wait("the dialog", "document.querySelector('#dialog').open");
    let mut after = images();
    after["failed"] = json!([]);
    stub.answer("GET /fleet/images", 200, &after);
    browser.click("#dialog-yes");
    assert_eq!(sent(&stub, "/unblock"), json!({ "image": "registry.example/shop", "digest": BAD }));
    browser.wait("no digest withheld", "document.querySelector('#withheld').hidden");
    browser.wait(
        "the cell of the other",
        &format!("document.querySelector('{}').innerText.includes('behind')", cell(2, 1)),
    );
}

#[test]
fn a_freeze_is_created_shown_and_ended() {
    let (stub, browser) = scene();
    let banner = browser.text("#freezes");
    for part in ["on quay", "trade fair", "by operator", "10 min ago", "until", "in 1 h"] {
        assert!(banner.contains(part), "{part:?} is not in {banner}");
    }
    browser.click("#freeze");
    browser.wait("the form", "document.activeElement.name === 'reason'");
    browser.press(&[ENTER]);
    browser.wait("the error", "document.querySelector('#freeze-fault').innerText.includes('Give a reason')");
    browser.write("#freeze-form [name=reason]", "inventory day");
    browser.run("const f = document.querySelector('#freeze-form'); f.elements.duration.value = '3600'; f.elements.image.value = 'registry.example/db';");
    stub.answer("POST /freeze", 400, &json!({ "error": "until is more than 30 days ahead" }));
    browser.allow_console_errors(&["status of 400"]);
    browser.press(&[ENTER]);
    browser.wait("the refusal", "document.querySelector('#freeze-fault').innerText.includes('30 days')");
    stub.answer(
        "POST /freeze",
        200,
        &json!({ "status": "frozen", "id": "f2", "until": ago(0), "revision": 8 }),
    );
    let mut after = images();
    after["freezes"][0]["id"] = json!("f2");
    after["freezes"][0]["reason"] = json!("inventory day");
    after["freezes"][0]["by"] = json!("fuse");
    after["freezes"][0]["agents"] = json!(["harbour", "quay"]);
    after["failed"][0]["more_agents"] = json!(2);
    after["left_out"] = json!(7);
    stub.answer("GET /fleet/images", 200, &after);
    browser.press(&[ENTER]);
    browser.wait("the banner", "document.querySelector('#freezes').innerText.includes('inventory day')");
    // The machines behind each decision.
    let banner = browser.text("#freezes");
    assert!(banner.contains("by the fuse, after too many rollbacks on harbour, quay,"), "{banner}");
    let withheld = browser.text("#withheld");
    assert!(withheld.contains("failed on lighthouse and 2 other machines"), "{withheld}");
    assert!(browser.text("#map-note").contains("7 images that are up to date are not listed"));
    let body = sent(&stub, "/freeze");
    assert_eq!(
        (&body["reason"], &body["scope"]),
        (&json!("inventory day"), &json!({ "image": "registry.example/db" }))
    );
    let until: jiff::Timestamp = body["until"].as_str().and_then(|text| text.parse().ok()).expect("a time");
    let ahead = until.duration_since(ago(0).parse().expect("a time")).as_secs();
    assert!((3500..=3700).contains(&ahead), "{ahead}");

    stub.answer("POST /thaw", 200, &json!({ "status": "thawed", "revision": 9 }));
    after["freezes"] = json!([]);
    stub.answer("GET /fleet/images", 200, &after);
    browser.click("#freezes .button");
    browser.click("#dialog-yes");
    browser.wait("no banner", "document.querySelector('#freezes').hidden");
    assert_eq!(sent(&stub, "/thaw"), json!({ "id": "f2" }));
}

#[test]
fn hostile_inventories_and_reasons_are_not_interpreted() {
    let bomb = "<img src=x onerror=\"window.hit=1\">\u{202e}";
    let mut fleet = images();
    let long = "x".repeat(3000);
    fleet["machines"] = json!([bomb]);
    fleet["freezes"][0]["reason"] = json!(format!("{bomb}{long}"));
    fleet["freezes"][0]["scope"] = json!({ "machine": bomb, "image": bomb });
    fleet["failed"][0]["agents"] = json!([bomb, long]);
    fleet["failed"][0]["repository"] = json!(bomb);
    fleet["images"] = json!([{ "repository": bomb, "cells": [{ "machine": bomb, "ring": 0, "reported": "never",
        "service": bomb, "image": bomb, "digest": bomb, "available": long, "gate": bomb, "why": long, "behind_since": "?" }] }]);
    let stub = StubServer::warden();
    stub.answer("GET /fleet/images", 200, &fleet);
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the map", "document.querySelectorAll('#map-rows > tr').length === 1");
    browser.click("#withheld summary");
    browser.wait("why it is withheld", "document.querySelector('#withheld .failed-box')");
    browser.click(&cell(1, 1));
    browser.wait("the cell", "document.querySelector('#cell').open");
    for width in [1440, 320] {
        browser.size(width, 900);
        assert_eq!(browser.value("document.documentElement.scrollWidth <= innerWidth"), true, "{width}");
    }
    assert_eq!(browser.value("window.hit ?? null"), Value::Null);
    assert_eq!(browser.value("document.querySelectorAll('main img, dialog img').length"), 0);
}

/// The answer of a warden with 50 machines that run this many images each.
fn large(images: usize) -> Value {
    let machines: Vec<String> = (0..50).map(|n| format!("machine-{n:02}")).collect();
    let image = |n: usize| {
        let repository = format!("registry.example/team/app-{n:02}");
        let cells: Vec<Value> = machines
            .iter()
            .enumerate()
            .map(|(at, machine)| {
                let mut cell = json!({ "machine": machine, "ring": at % 3, "reported": ago(60), "service": format!("app-{n}"),
                    "image": format!("{repository}:1"), "digest": DIGEST, "proven_at": ago(86_400), "verdict": "proven" });
                if (at + n).is_multiple_of(7) {
                    cell["available"] = json!(BAD);
                    cell["behind_since"] = json!(ago(4000));
                    cell["gate"] = json!("window");
                }
                cell
            })
            .collect();
        json!({ "repository": repository, "cells": cells })
    };
    let images: Vec<Value> = (0..images).map(image).collect();
    json!({ "revision": 1, "machines": machines, "freezes": [], "failed": [], "images": images })
}

/// CPU time of the page's main thread so far, in milliseconds. Other work on the machine does not count.
fn cpu_time(browser: &Browser) -> f64 {
    let answer = browser.devtools("Performance.getMetrics", &json!({}));
    let metrics = answer["metrics"].as_array().expect("a list");
    let tasks = metrics.iter().find(|metric| metric["name"] == "TaskDuration");
    tasks.and_then(|metric| metric["value"].as_f64()).expect("a number") * 1000.0
}

fn wait_all_cells(browser: &Browser, images: usize) {
    let all = format!("document.querySelectorAll('#map-rows td').length === {}", 50 * images);
    browser.wait("all cells", &all);
}

/// Number of rows whose cells are created at once.
const FIRST_ROWS: usize = 12;

/// CPU time until a map of 50 machines with this many images is shown, in milliseconds; the best of three pages.
fn cpu_time_for(images: usize) -> f64 {
    let times = (0..3).map(|_| {
        let stub = StubServer::warden();
        let browser = Browser::measuring();
        browser.open(&stub.url());
        browser.wait(
            "the page",
            "!document.querySelector('#freeze').hidden && document.body.dataset.link === 'live'",
        );
        browser.devtools("Performance.enable", &json!({ "timeDomain": "threadTicks" }));
        stub.answer("GET /fleet/images", 200, &large(images));
        let before = cpu_time(&browser);
        // The page reloads the map on a freeze.
        stub.entry(&entry(1, 0, "warden", "warden", "frozen", "warning", "updates are frozen"));
        let cells = browser.run_async(
            "const done = arguments[0];
             const look = () => {
               const cells = document.querySelectorAll('#map-rows td').length;
               if (cells) requestAnimationFrame(() => requestAnimationFrame(() => done(cells)));
               else setTimeout(look, 20);
             };
             look();",
        );
        let work = cpu_time(&browser) - before;
        assert!(cells.as_u64() >= Some(50 * images.min(FIRST_ROWS) as u64), "{cells}");
        wait_all_cells(&browser, images);
        work
    });
    times.fold(f64::INFINITY, f64::min)
}

#[test]
fn a_row_outside_the_screen_has_cells_once_it_gets_the_focus() {
    let stub = StubServer::warden();
    stub.answer("GET /fleet/images", 200, &large(40));
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the map", "document.querySelectorAll('#map-rows > tr').length === 40");
    browser.run("document.querySelector('#map td[tabindex=\"0\"]').focus();");
    browser.press(&[DOWN; 20]);
    let focus = format!("document.activeElement.matches('{}')", cell(21, 1));
    assert_eq!(browser.value(&focus), true);
    wait_all_cells(&browser, 40);
    assert_eq!(browser.value(&focus), true, "the focus does not move");
}

/// The absolute time for 2,000 cells is measured by the benchmarks.
#[test]
fn the_work_for_a_map_grows_no_faster_than_its_cells() {
    let (few, many) = (cpu_time_for(4), cpu_time_for(40));
    println!("50 machines: {few:.0} ms for 4 images, {many:.0} ms for 40");
    assert!(many < 6.0 * few, "200 cells take {few} ms, 2,000 take {many} ms");
}
