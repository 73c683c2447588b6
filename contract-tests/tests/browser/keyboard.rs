//! Both pages operated by keyboard alone: real key presses, and a visible focus after each of them.

use contract_tests::{Browser, StubServer, Warden, wait_for};
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

/// Checks that the focus is visible: there is a ring, it has enough contrast, and nothing covers it.
const FOCUS_FAULT: &str = "(() => {
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

/// Waits until the focus is visible: a page that was just loaded has an active element before the browser gives it the focus.
#[track_caller]
fn assert_focus_is_seen(browser: &Browser) {
    wait_for("a visible focus", || match browser.value(FOCUS_FAULT).as_str() {
        Some("") => Ok(()),
        fault => Err(format!("{fault:?} at {}", browser.value(FOCUSED))),
    });
}

fn has_focus(css: &str) -> String {
    format!("document.activeElement === document.querySelector({})", json!(css))
}

#[track_caller]
fn assert_focus(browser: &Browser, css: &str) {
    let has = browser.value(&has_focus(css));
    assert_eq!(has, true, "{css} has the focus, not {}", browser.value(FOCUSED));
    assert_focus_is_seen(browser);
}

/// Leaves the dialog. The browser tells the page a moment after it has closed it, and only then can the page move the focus.
#[track_caller]
fn leave_dialog(browser: &Browser, next: &str) {
    browser.press(&[ESCAPE]);
    browser.wait("the dialog to close", &format!("!{IS_OPEN}"));
    browser.wait("the focus", &has_focus(next));
    assert_focus_is_seen(browser);
}

/// Presses Tab until an element has the focus, and checks at each stop that the focus is visible.
#[track_caller]
fn tab_to(browser: &Browser, css: &str) {
    walk_to(browser, css, &[TAB]);
}

/// Like [`tab_to`], backwards.
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

/// Returns the selector of a part of a service's row.
fn part(name: &str, css: &str) -> String {
    let names: Vec<Value> = busy_machine()["services"].as_array().expect("a list").clone();
    let nth = names.iter().position(|one| one["name"] == name).expect("a service of the scene") + 1;
    format!("#rows > tr:nth-child({nth}) {css}")
}

/// Returns the status of all services with a change to one of them.
fn changed(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut report = busy_machine();
    let services = report["services"].as_array_mut().expect("a list");
    change(services.iter_mut().find(|one| one["name"] == name).expect("a service of the scene"));
    report
}

const VISIBLE: &str = "[...document.querySelectorAll('#rows > tr')].filter((r) => !r.hidden).map((r) => r.querySelector('strong').textContent)";

#[test]
fn a_service_is_found_inspected_and_acted_on_by_keyboard_alone() {
    let stub = busy_agent();
    stub.answer("POST /redeploy/shop", 200, &json!({ "status": "redeploying", "service": "shop" }));
    stub.answer("POST /unblock/api", 200, &json!({ "status": "unblocked", "service": "api" }));
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("all rows", "document.querySelectorAll('#rows > tr').length === 9");

    find(&browser);
    use_dialog(&stub, &browser);
    act_on_another(&stub, &browser);

    // Changing the theme keeps the focus and the open sections.
    tab_to(&browser, "#theme");
    browser.press(&[SPACE]);
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "dark");
    assert_focus(&browser, "#theme");
    assert_eq!(browser.value("document.querySelectorAll('.fold[aria-expanded=true]').length"), 3);
}

/// From the top past the header to the search, and to the sections of a service.
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

    // Open the sections of the service.
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

/// A dialog cancelled while the service changes, and one confirmed.
fn use_dialog(stub: &StubServer, browser: &Browser) {
    let redeploy = part("shop", ".actions .button:nth-child(2)");
    tab_to(browser, &redeploy);
    browser.press(&[ENTER]);
    browser.wait("the dialog", IS_OPEN);
    assert_focus(browser, "#dialog-no");
    for _ in 0..4 {
        browser.press(&[TAB]);
        let outside = browser.value("document.activeElement.closest('dialog, body').tagName === 'BODY' && document.activeElement !== document.body");
        assert_eq!(outside, false, "Tab does not leave the dialog: {}", browser.value(FOCUSED));
    }
    stub.status(&changed("shop", |shop| shop["updates_total"] = json!(42)));
    browser.wait(
        "the change",
        &format!("document.querySelector({}).textContent === '42'", json!(part("shop", ".tally dd"))),
    );
    leave_dialog(browser, &redeploy);
    assert!(stub.requests().iter().all(|asked| !asked.starts_with("POST")), "{:?}", stub.requests());

    // Confirm the dialog.
    browser.press(&[ENTER]);
    browser.wait("the dialog", IS_OPEN);
    tab_to(browser, "#dialog-yes");
    browser.press(&[ENTER]);
    browser.wait_notice("The redeployment of shop has started.");
    assert_focus(browser, &redeploy);
    assert_eq!(stub.requests().iter().filter(|asked| *asked == "POST /redeploy/shop").count(), 1);
    // It no longer matches the filter "ok", but its row stays visible while it is in use.
    for status in ["deploying", "ok"] {
        stub.status(&changed("shop", |shop| shop["status"] = json!(status)));
        let word = json!(part("shop", ".state .badge"));
        browser.wait(status, &format!("document.querySelector({word}).innerText.endsWith('{status}')"));
        assert_focus(browser, &redeploy);
    }
}

/// Another service, by search: the filter hides it, and can be cleared.
fn act_on_another(stub: &StubServer, browser: &Browser) {
    browser.press(&['/']);
    assert_focus(browser, "#search");
    type_in(browser, "api");
    browser.wait("the empty state", "!document.querySelector('#empty').hidden");
    tab_to(browser, "#clear");
    browser.press(&[ENTER]);
    browser.wait("all rows", &format!("{VISIBLE}.length === 9"));
    assert_focus(browser, "#search");

    // Its button disappears with the block, during the dialog as well as after the action.
    let trigger = part("api", ".actions .button:nth-child(1)");
    let unblock = part("api", ".actions .button:nth-child(3)");
    let gone = format!("document.querySelector({}).hidden", json!(unblock));
    let unblocked = changed("api", |api| {
        api["status"] = json!("ok");
        api["blocked"] = Value::Null;
    });
    tab_to(browser, &unblock);
    browser.press(&[ENTER]);
    browser.wait("the dialog", IS_OPEN);
    stub.status(&unblocked);
    browser.wait("no button", &gone);
    leave_dialog(browser, &trigger);
    stub.status(&busy_machine());
    browser.wait("the button", &format!("!{gone}"));
    browser.press(&[TAB, TAB, ENTER]);
    browser.wait("the dialog", IS_OPEN);
    tab_to(browser, "#dialog-yes");
    browser.press(&[ENTER]);
    browser.wait_notice("api is no longer blocked");
    assert_focus(browser, &unblock);
    stub.status(&unblocked);
    browser.wait("no button", &gone);
    assert_focus(browser, &trigger);
}

fn ingest(warden: &Warden, seq: u32, service: &str, level: &str, message: &str) {
    let entry = json!({ "timestamp": ago(0), "service": service, "event": "restarted", "level": level,
        "message": message, "seq": seq });
    warden.ingest("home", &entry);
}

#[test]
fn login_filters_sharing_and_logout_work_by_keyboard_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let warden = Warden::start(folder.path(), &[("attic", "127.0.0.1:9"), ("home", "127.0.0.1:9")]);
    ingest(&warden, 1, "shop", "info", "shop-1 is healthy again");
    ingest(&warden, 2, "mail", "warning", "mail-1 is unhealthy");
    let events = "[...document.querySelectorAll('#events > tr')].filter((r) => !r.hidden).length";
    let home = "document.querySelector('[name=machine]').value === 'home'";
    let browser = Browser::start();
    browser.allow_console_errors(&["status of 401"]);
    browser.open(&warden.url());
    browser.wait("the form", "document.activeElement.id === 'token'");
    assert_focus(&browser, "#token");
    type_in(&browser, "wrong");
    browser.press(&[ENTER]);
    browser.wait("the refusal", "document.querySelector('#refused')?.innerText.includes('not accepted')");
    type_in(&browser, Warden::TOKEN);
    browser.press(&[ENTER]);
    browser.wait("the machines", "document.querySelectorAll('#machines > li').length === 2");
    // The warden's two heartbeat entries are included.
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

    // Do not wrap around the end: a headless browser would give the next page no focus.
    back_to(&browser, "#theme");
    browser.press(&[ENTER]);
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "dark");
    assert_focus(&browser, "#theme");

    // Logged out: the browser no longer has the session.
    tab_to(&browser, "#logout");
    browser.press(&[ENTER]);
    browser.wait("the form", "document.activeElement.id === 'token'");
    assert_eq!(browser.url(), warden.url());
    assert_focus(&browser, "#token");
    assert_eq!(browser.value("document.documentElement.dataset.theme"), "dark", "the theme stays");
    browser.reload();
    browser.wait("the form, still", "document.activeElement.id === 'token'");
}

/// All visible interactive elements.
const CONTROLS: &str = "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex=\"0\"]')]
    .filter((e) => e.checkVisibility({ visibilityProperty: true }))";

/// Reports whether Tab has returned to an element visited before. A time field takes several steps, one for each part.
const IS_ROUND: &str = "(() => {
    const at = document.activeElement;
    if (at === window.last) return false;
    window.last = at;
    return met.size === met.add(at).size;
  })()";

/// Tabs through a page in both themes, once wide, and once as narrow as a zoomed-in page.
#[track_caller]
fn walk(browser: &Browser) {
    for (scheme, width) in [("light", 1440), ("dark", 390)] {
        browser.prefers(scheme, false);
        browser.size(width, 900);
        browser.run("document.activeElement.blur(); window.scrollTo(0, 0); window.met = new Set(); window.last = null;");
        // From the first to the last, and back to the first.
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
    for (stub, ready) in [
        (busy_agent(), "document.querySelectorAll('#events > tr').length === 6"),
        (
            fleet_warden(),
            "document.querySelectorAll('#map-rows > tr').length === 2 && document.querySelectorAll('#events > tr').length === 5",
        ),
        (StubServer::login(), "document.activeElement.id === 'token'"),
    ] {
        let browser = Browser::start();
        // The login form checks for a session, for which the stub has no response.
        browser.allow_console_errors(&["/machines - Failed to load resource"]);
        browser.open(&stub.url());
        browser.wait("the page", ready);
        browser.run("for (const node of document.querySelectorAll('#rows > tr:nth-child(2) .fold, .more > summary')) node.click();");
        walk(&browser);
    }
}
