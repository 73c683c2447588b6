//! Both pages by keyboard alone: real key presses, and after each of them a focus that can be seen.

use contract_tests::{Browser, Stage, Warden};
use serde_json::{Value, json};

use crate::scene::agent::{busy_agent, busy_machine};
use crate::scene::ago;
use crate::scene::warden::fleet_warden;

const SHIFT: char = '\u{e008}';
const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const ESCAPE: char = '\u{e00c}';
const SPACE: char = ' ';
const DOWN: char = '\u{e015}';

const IS_OPEN: &str = "document.querySelector('dialog').open";

/// What is wrong with how the focus shows: no ring, a ring that can't be told from what is around it, or something that
/// lies upon it.
const UNSEEN: &str = "(() => {
    const at = document.activeElement;
    if (at === document.body) return 'nothing has the focus';
    const style = getComputedStyle(at);
    if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 2) return 'no ring';
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => parts(colour).slice(0, 3)
      .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
      .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    let ground = at.parentElement;
    while (ground && (parts(getComputedStyle(ground).backgroundColor)[3] ?? 1) < 1) ground = ground.parentElement;
    const [a, b] = [style.outlineColor, getComputedStyle(ground ?? document.body).backgroundColor].map(light);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 3) return `a ring with a contrast of ${contrast.toFixed(1)}`;
    const box = at.getBoundingClientRect();
    const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    if (!top || !(at.contains(top) || top.contains(at))) return `behind ${top?.outerHTML.slice(0, 80) ?? 'the edge'}`;
    return '';
  })()";

/// The focused element, for messages.
const FOCUSED: &str = "document.activeElement.outerHTML.slice(0, 160)";

#[track_caller]
fn assert_focus_is_seen(browser: &Browser) {
    assert_eq!(browser.value(UNSEEN), "", "{}", browser.value(FOCUSED));
}

#[track_caller]
fn assert_focus(browser: &Browser, css: &str) {
    let has = browser.value(&format!("document.activeElement === document.querySelector({})", json!(css)));
    assert_eq!(has, true, "{css} has the focus, not {}", browser.value(FOCUSED));
    assert_focus_is_seen(browser);
}

/// Presses Tab until an element has the focus, which is seen at each stop.
#[track_caller]
fn tab_to(browser: &Browser, css: &str) {
    walk_to(browser, css, &[TAB]);
}

/// The same backwards.
#[track_caller]
fn back_to(browser: &Browser, css: &str) {
    walk_to(browser, css, &[SHIFT, TAB]);
}

#[track_caller]
fn walk_to(browser: &Browser, css: &str, keys: &[char]) {
    for _ in 0..120 {
        browser.press_together(keys);
        if browser.value("document.activeElement === document.body") == true {
            continue;
        }
        assert_focus_is_seen(browser);
        if browser.value(&format!("document.activeElement.matches({})", json!(css))) == true {
            return;
        }
    }
    panic!("Tab does not lead to {css}; the focus is at {}", browser.value(FOCUSED));
}

fn type_in(browser: &Browser, text: &str) {
    browser.press(&text.chars().collect::<Vec<char>>());
}

/// A part of the row of a service.
fn part(name: &str, css: &str) -> String {
    let names: Vec<Value> = busy_machine()["services"].as_array().expect("a list").clone();
    let nth = names.iter().position(|one| one["name"] == name).expect("a service of the scene") + 1;
    format!("#rows > tr:nth-child({nth}) {css}")
}

/// The status of all services, with one of them changed.
fn changed(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut report = busy_machine();
    let services = report["services"].as_array_mut().expect("a list");
    change(services.iter_mut().find(|one| one["name"] == name).expect("a service of the scene"));
    report
}

const VISIBLE: &str = "[...document.querySelectorAll('#rows > tr')].filter((r) => !r.hidden).map((r) => r.querySelector('strong').textContent)";

#[test]
fn a_service_is_found_looked_into_and_acted_on_by_keyboard_alone() {
    let stage = busy_agent();
    stage.answer("POST /redeploy/shop", 200, &json!({ "status": "redeploying", "service": "shop" }));
    stage.answer("POST /unblock/api", 200, &json!({ "status": "unblocked", "service": "api" }));
    let browser = Browser::start();
    browser.open(&stage.url());
    browser.wait("all rows", "document.querySelectorAll('#rows > tr').length === 9");

    find(&browser);
    ask(&stage, &browser);
    act_on_another(&stage, &browser);

    // The theme, and what it keeps.
    tab_to(&browser, "#theme");
    browser.press(&[SPACE]);
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "dark");
    assert_focus(&browser, "#theme");
    assert_eq!(browser.value("document.querySelectorAll('.fold[aria-expanded=true]').length"), 3);
}

/// In, past the header, to what is looked for, and its sections.
fn find(browser: &Browser) {
    browser.press(&[TAB]);
    assert_focus(browser, ".skip");
    browser.press(&[ENTER, TAB]);
    assert_focus(browser, "#search");
    type_in(browser, "shop-w");
    browser.wait("the one row", &format!("JSON.stringify({VISIBLE}) === '[\"shop\"]'"));
    browser.press(&[ESCAPE]);
    browser.wait("all rows", &format!("{VISIBLE}.length === 9"));
    tab_to(browser, "[data-filter=ok]");
    browser.press(&[SPACE]);
    browser.wait("the one row", &format!("JSON.stringify({VISIBLE}) === '[\"shop\"]'"));
    assert_focus(browser, "[data-filter=ok]");

    // Its sections.
    for (nth, key) in [(1, ENTER), (2, SPACE), (3, ENTER)] {
        tab_to(browser, &part("shop", &format!(".fold:nth-child({nth})")));
        browser.press(&[key]);
        let open = format!(
            "document.querySelector({}).getAttribute('aria-expanded') === 'true'",
            json!(part("shop", &format!(".fold:nth-child({nth})")))
        );
        browser.wait("the section", &open);
    }
    tab_to(browser, &part("shop", ".images .copy"));
    browser.press(&[ENTER]);
    browser.wait_notice("digest is in the clipboard");
    assert_focus(browser, &part("shop", ".images .copy"));
}

/// A question, answered with no while the service changes under it; and one answered with yes.
fn ask(stage: &Stage, browser: &Browser) {
    let redeploy = part("shop", ".actions .button:nth-child(2)");
    tab_to(browser, &redeploy);
    browser.press(&[ENTER]);
    browser.wait("the question", IS_OPEN);
    assert_focus(browser, "#dialog-no");
    for _ in 0..4 {
        browser.press(&[TAB]);
        let outside = browser.value("document.activeElement.closest('dialog, body').tagName === 'BODY' && document.activeElement !== document.body");
        assert_eq!(outside, false, "Tab does not leave the question: {}", browser.value(FOCUSED));
    }
    stage.status(&changed("shop", |shop| shop["updates_total"] = json!(42)));
    browser.wait(
        "the change",
        &format!("document.querySelector({}).textContent === '42'", json!(part("shop", ".tally dd"))),
    );
    browser.press(&[ESCAPE]);
    browser.wait("no question", &format!("!{IS_OPEN}"));
    assert_focus(browser, &redeploy);
    assert!(stage.asked().iter().all(|asked| !asked.starts_with("POST")), "{:?}", stage.asked());

    // And with yes.
    browser.press(&[ENTER]);
    browser.wait("the question", IS_OPEN);
    tab_to(browser, "#dialog-yes");
    browser.press(&[ENTER]);
    browser.wait_notice("The redeployment of shop has begun.");
    assert_focus(browser, &redeploy);
    assert_eq!(stage.asked().iter().filter(|asked| *asked == "POST /redeploy/shop").count(), 1);
    // It is not "ok" meanwhile, as the filter wants it; it stays under the reader's hands all the same.
    for status in ["deploying", "ok"] {
        stage.status(&changed("shop", |shop| shop["status"] = json!(status)));
        let word = json!(part("shop", ".state .badge"));
        browser.wait(status, &format!("document.querySelector({word}).innerText.endsWith('{status}')"));
        assert_focus(browser, &redeploy);
    }
}

/// Another service, by search; the filter is in the way, and can be cleared.
fn act_on_another(stage: &Stage, browser: &Browser) {
    browser.press(&['/']);
    assert_focus(browser, "#search");
    type_in(browser, "api");
    browser.wait("the empty state", "!document.querySelector('#empty').hidden");
    tab_to(browser, "#clear");
    browser.press(&[ENTER]);
    browser.wait("all rows", &format!("{VISIBLE}.length === 9"));
    assert_focus(browser, "#search");

    // Its button goes away with its reason, be it while the question is asked or after the action.
    let trigger = part("api", ".actions .button:nth-child(1)");
    let unblock = part("api", ".actions .button:nth-child(3)");
    let gone = format!("document.querySelector({}).hidden", json!(unblock));
    let unblocked = changed("api", |api| {
        api["status"] = json!("ok");
        api["blocked"] = Value::Null;
    });
    tab_to(browser, &unblock);
    browser.press(&[ENTER]);
    browser.wait("the question", IS_OPEN);
    stage.status(&unblocked);
    browser.wait("no button", &gone);
    browser.press(&[ESCAPE]);
    browser.wait("no question", &format!("!{IS_OPEN}"));
    assert_focus(browser, &trigger);
    stage.status(&busy_machine());
    browser.wait("the button", &format!("!{gone}"));
    browser.press(&[TAB, TAB, ENTER]);
    browser.wait("the question", IS_OPEN);
    tab_to(browser, "#dialog-yes");
    browser.press(&[ENTER]);
    browser.wait_notice("api is not blocked any more");
    assert_focus(browser, &unblock);
    stage.status(&unblocked);
    browser.wait("no button", &gone);
    assert_focus(browser, &trigger);
}

fn ingest(warden: &Warden, seq: u32, service: &str, level: &str, message: &str) {
    let entry = json!({ "timestamp": ago(0), "service": service, "event": "restarted", "level": level,
        "message": message, "seq": seq });
    warden.ingest("home", &entry);
}

#[test]
fn a_person_logs_in_filters_shares_and_logs_out_by_keyboard_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let warden = Warden::start(folder.path(), &[("attic", "127.0.0.1:9"), ("home", "127.0.0.1:9")]);
    ingest(&warden, 1, "shop", "info", "shop-1 is healthy again");
    ingest(&warden, 2, "mail", "warning", "mail-1 is unhealthy");
    let events = "[...document.querySelectorAll('#events > tr')].filter((r) => !r.hidden).length";
    let home = "document.querySelector('[name=machine]').value === 'home'";
    let browser = Browser::start();
    browser.bear(&["status of 401"]);
    browser.open(&warden.url());
    browser.wait("the form", "document.activeElement.id === 'token'");
    assert_focus(&browser, "#token");
    type_in(&browser, "wrong");
    browser.press(&[ENTER]);
    browser.wait("the refusal", "document.querySelector('#refused')?.innerText.includes('not accepted')");
    type_in(&browser, Warden::TOKEN);
    browser.press(&[ENTER]);
    browser.wait("the machines", "document.querySelectorAll('#machines > li').length === 2");
    // The heartbeat's own words are two more.
    browser.wait("the entries", &format!("{events} === 4"));

    browser.press(&[TAB]);
    assert_focus(&browser, ".skip");
    browser.press(&[ENTER]);
    tab_to(&browser, "#machines > li:nth-child(2) .pick");
    browser.press(&[ENTER]);
    browser.wait("its entries", &format!("{home} && {events} === 3"));
    assert_focus(&browser, "#machines > li:nth-child(2) .pick");
    tab_to(&browser, "[name=level]");
    browser.press(&[DOWN, DOWN]);
    browser.wait("warnings", "document.querySelector('[name=level]').value === 'warning'");
    ingest(&warden, 3, "wiki", "warning", "wiki-1 is unhealthy");
    browser.wait("the new one", "document.querySelector('#events').innerText.includes('wiki-1')");
    assert_focus(&browser, "[name=level]");
    browser.press(&['/']);
    assert_focus(&browser, "#search");
    type_in(&browser, "wiki-1");
    browser.wait("the one", &format!("{events} === 1"));
    assert_eq!(browser.url(), format!("{}?machine=home&level=warning&text=wiki-1", warden.url()));
    tab_to(&browser, "#share");
    browser.press(&[SPACE]);
    browser.wait_notice("The link opens this view");
    assert_focus(&browser, "#share");
    browser.press(&['/']);
    tab_to(&browser, "#clear");
    browser.press(&[ENTER]);
    browser.wait("all", &format!("{events} === 5"));
    assert_focus(&browser, "#search");
    assert_eq!(browser.url(), warden.url());

    // Not around the corner: a browser without a window gives the next page no focus after that.
    back_to(&browser, "#theme");
    browser.press(&[ENTER]);
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "dark");
    assert_focus(&browser, "#theme");

    // Out, and the browser has forgotten the token.
    tab_to(&browser, "#logout");
    browser.press(&[ENTER]);
    browser.wait("the form", "document.activeElement.id === 'token'");
    assert_eq!(browser.url(), warden.url());
    assert_focus(&browser, "#token");
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "dark", "the theme stays");
    browser.reload();
    browser.wait("the form, still", "document.activeElement.id === 'token'");
}

/// Everything that can be seen and used.
const CONTROLS: &str = "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex=\"0\"]')]
    .filter((e) => e.checkVisibility({ visibilityProperty: true }))";

/// Whether Tab has led to what it led to before. A field of time takes several steps, one for each of its parts.
const IS_ROUND: &str = "(() => {
    const at = document.activeElement;
    if (at === window.last) return false;
    window.last = at;
    return met.size === met.add(at).size;
  })()";

/// Walks through a page by Tab in both themes, once wide, once as narrow as a page that is zoomed in.
#[track_caller]
fn walk(browser: &Browser) {
    for (scheme, width) in [("light", 1440), ("dark", 390)] {
        browser.prefers(scheme, false);
        browser.size(width, 900);
        browser.run("document.activeElement.blur(); window.scrollTo(0, 0); window.met = new Set(); window.last = null;");
        // From the first to the last, and around the corner.
        for _ in 0..400 {
            browser.press(&[TAB]);
            if browser.value("document.activeElement === document.body") == true {
                continue;
            }
            assert_focus_is_seen(browser);
            if browser.value(IS_ROUND) == true {
                break;
            }
        }
        let missed = browser
            .value(&format!("{CONTROLS}.filter((e) => !met.has(e)).map((e) => e.outerHTML.slice(0, 100))"));
        assert_eq!(missed, json!([]), "{scheme}");
    }
}

#[test]
fn tab_leads_to_every_control_and_shows_where_it_is_in_both_themes() {
    for (stage, ready) in [
        (busy_agent(), "document.querySelectorAll('#events > tr').length === 6"),
        (
            fleet_warden(),
            "document.querySelectorAll('#map-rows > tr').length === 2 && document.querySelectorAll('#events > tr').length === 5",
        ),
        (Stage::login(), "document.activeElement.id === 'token'"),
    ] {
        let browser = Browser::start();
        // The login form looks whether there is a session, which the stage has no answer for.
        browser.bear(&["/machines - Failed to load resource"]);
        browser.open(&stage.url());
        browser.wait("the page", ready);
        browser.run("for (const node of document.querySelectorAll('#rows > tr:nth-child(2) .fold, .more > summary')) node.click();");
        walk(&browser);
    }
}
