//! The warden's dashboard as served by the real program: login, and a restart while the page is open.

use contract_tests::{Agent, Browser, Config, Service, Warden, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scene::ago;

const IS_IN: &str = "document.querySelectorAll('#machines > li').length === 1";

fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix(&format!("{}warden-", contract_tests::PREFIX))
        .tempdir()
        .expect("a temporary folder can be created")
}

fn ingest(warden: &Warden, seq: u32, message: &str) {
    let entry = json!({ "timestamp": ago(0), "service": "shop", "event": "restarted", "level": "info",
        "message": message, "seq": seq });
    warden.ingest("home", &entry);
}

#[test]
fn login_works_by_form_by_url_and_by_cookie_and_rejects_a_wrong_token() {
    let folder = folder();
    let warden = Warden::start(folder.path(), &[("home", "127.0.0.1:9")]);
    ingest(&warden, 1, "the first entry");
    let browser = Browser::start();
    // The page responds with 401 and the form.
    browser.allow_console_errors(&["status of 401"]);

    // The form: a wrong token is refused and removed from the address; the right one opens the requested view.
    browser.open(&format!("{}?level=info", warden.url()));
    browser.wait("the form", "document.activeElement.id === 'token'");
    assert_eq!(browser.value("document.querySelector('#refused').hidden"), true);
    browser.write("#token", "wrong");
    browser.click("form .button");
    browser.wait("the refusal", "document.querySelector('#refused')?.innerText.includes('not accepted')");
    assert_eq!(browser.url(), format!("{}?level=info", warden.url()));
    browser.write("#token", Warden::TOKEN);
    browser.press(&['\u{e007}']);
    browser.wait("the dashboard", IS_IN);
    browser.wait("the entry", "document.querySelector('#events').innerText.includes('the first entry')");
    assert_eq!(browser.url(), format!("{}?level=info", warden.url()));
    assert_eq!(browser.value("document.querySelector('[name=level]').value"), "info");
    browser.wait("live", "document.body.dataset.link === 'live'");
    ingest(&warden, 2, "a live entry");
    browser.wait("the live entry", "document.querySelector('#events').innerText.includes('a live entry')");
    assert_eq!(browser.value("document.cookie"), "", "no script can read the token");
    let kept = browser.value("document.documentElement.outerHTML + JSON.stringify(localStorage)");
    assert!(!kept.as_str().unwrap().contains("0123456789abcdef"), "the token is not in the page");

    // The cookie: the page opens without a token.
    browser.open(&warden.url());
    browser.wait("the dashboard", IS_IN);

    // A link from another site does not send the cookie, but the session is found all the same.
    browser.open(&format!("data:text/html,<a href='{}?level=info'>open the dashboard</a>", warden.url()));
    browser.click("a");
    browser.wait("the dashboard", IS_IN);
    assert_eq!(browser.url(), format!("{}?level=info", warden.url()));

    // A token in the address, for a browser without a session.
    let other = Browser::start();
    other.allow_console_errors(&["status of 401"]);
    other.open(&warden.url());
    other.wait("the form", "document.querySelector('#token')");
    other.open(&format!("{}?token=wrong", warden.url()));
    other.wait("the refusal", "!document.querySelector('#refused').hidden");
    other.open(&format!("{}?token={}", warden.url(), Warden::TOKEN.replace(' ', "%20")));
    other.wait("the dashboard", IS_IN);
    assert_eq!(other.url(), warden.url(), "the token is not in the URL");
    other.reload();
    other.wait("the dashboard", IS_IN);
}

/// The messages listed by the page, newest first.
const LISTED: &str =
    "[...document.querySelectorAll('#events > tr')].map((r) => r.querySelector('.wide .clamp').textContent)";

#[test]
fn a_page_survives_a_warden_restart_and_misses_no_entry_of_an_agent() {
    let folder = folder();
    let mut warden = Warden::start(folder.path(), &[("home", "127.0.0.1:9")]);
    let agent = Agent::without_engine("login", |folder| {
        let shop = Service::idle("shop", folder).set("images", json!(["shop:1"])).set("auto_update", true);
        Config::of([shop]).registry("127.0.0.1:9").set("push", warden.push("home"))
    });
    let browser = Browser::start();
    // Requests fail while the warden is down.
    browser.allow_console_errors(&["net::ERR_"]);
    browser.open(&format!("{}?token={}", warden.url(), Warden::TOKEN));
    browser.wait("the dashboard", IS_IN);
    browser.wait("the agent's start", "document.querySelector('#events').innerText.includes('watching')");
    browser.run("window.sameLoad = true;");

    warden.kill9();
    browser.wait("the loss", "document.body.dataset.link === 'reconnecting'");
    agent.trigger("shop");
    agent.wait_entry(&Kind::MANUAL_TRIGGER, 1);
    browser.run(
        "const now = Date.now; Date.now = () => now() + 60000; window.back = () => { Date.now = now; };",
    );
    browser
        .wait("the connection state", "document.querySelector('#link').innerText.startsWith('Stale since')");
    browser.run("window.back();");
    warden.restart();
    agent.trigger("shop");
    agent.wait_entry(&Kind::MANUAL_TRIGGER, 2);
    browser.wait("live again", "document.body.dataset.link === 'live'");
    wait_for("the page to list all that the agent has written, each once", || {
        let written: Vec<Value> =
            agent.audit().into_iter().rev().map(|entry| Value::from(entry.message)).collect();
        let mut listed = browser.value(LISTED).as_array().cloned().unwrap_or_default();
        // The warden's own entries are about its heartbeat.
        listed.retain(|message| written.contains(message) || !message.to_string().contains("home"));
        if listed == written { Ok(()) } else { Err(format!("{listed:#?}, but {written:#?}")) }
    });
    assert_eq!(browser.value("window.sameLoad"), true);
}
