//! Several tabs of one browser share one stream, and a hidden tab has none (DECISIONS 6).

use contract_tests::{Agent, Browser, Config, Service, Tab, Warden, request, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scene::ago;

const TABS: usize = 8;

const LIVE: &str = "document.body.dataset.link === 'live'";

/// Returns the number of streams that the program counts.
fn streams(address: &str, metric: &str, headers: &[(&str, &str)]) -> Option<u32> {
    let text = request(address, "GET", "/metrics", headers, &[]).ok()?.text();
    let line = text.lines().find_map(|line| line.strip_prefix(metric))?;
    line.trim().parse().ok()
}

/// Opens a page in several tabs, and waits until each is live.
fn open_tabs(browser: &Browser, url: &str) -> Vec<Tab> {
    browser.open(url);
    browser.wait("the page to be live", LIVE);
    let mut tabs = vec![browser.tab()];
    for nth in 1..TABS {
        tabs.push(browser.open_tab(url));
        browser.wait(&format!("tab {nth} to be live"), LIVE);
    }
    tabs
}

/// Waits until every tab is live and lists exactly these messages, each once, among its newest.
fn wait_listed(browser: &Browser, tabs: &[Tab], messages: &[String]) {
    for (nth, tab) in tabs.iter().enumerate() {
        browser.switch_to(tab);
        wait_for(&format!("the entries in tab {nth}"), || {
            let listed = browser.value(
                "[...document.querySelectorAll('#events > tr')].map((r) => r.querySelector('.wide .clamp').textContent)",
            );
            let mut listed: Vec<Value> = listed.as_array().cloned().unwrap_or_default();
            listed.retain(|message| messages.iter().any(|one| message == one));
            listed.reverse();
            let is_live = browser.value(LIVE) == true;
            if is_live && listed == messages { Ok(()) } else { Err(format!("live: {is_live}; {listed:#?}")) }
        });
    }
}

fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix(&format!("{}tabs-", contract_tests::PREFIX))
        .tempdir()
        .expect("a temporary folder can be created")
}

/// A warden with a page, and the messages that were sent to it.
struct Scene {
    warden: Warden,
    sent: Vec<String>,
    _folder: TempDir,
}

impl Scene {
    fn start() -> Self {
        let folder = folder();
        Self { warden: Warden::of_fleet(folder.path(), &["home"]), sent: Vec::new(), _folder: folder }
    }

    fn url(&self) -> String {
        format!("{}?token={}", self.warden.url(), Warden::TOKEN)
    }

    fn send(&mut self) {
        let seq = self.sent.len() + 1;
        let message = format!("entry number {seq}");
        let entry = json!({ "timestamp": ago(0), "service": "shop", "event": "restarted", "level": "info",
            "message": message, "seq": seq });
        self.warden.ingest("home", &entry);
        self.sent.push(message);
    }

    #[track_caller]
    fn wait_streams(&self, expected: u32) {
        let token = format!("Bearer {}", Warden::TOKEN);
        wait_for(&format!("{expected} streams"), || {
            let headers = [("Authorization", token.as_str())];
            match streams(self.warden.address(), "evenkeel_warden_streams", &headers) {
                Some(count) if count == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}

#[test]
fn eight_tabs_stay_live_with_one_stream_and_their_buttons_work() {
    let agent = Agent::without_engine("tabs", |folder| {
        Config::of([Service::idle("idle", folder).set("auto_update", true).set("images", json!(["web:1"]))])
            .registry("127.0.0.1:9")
    });
    let browser = Browser::start();
    // The status of /health without an engine.
    browser.allow_console_errors(&["status of 503"]);
    let tabs = open_tabs(&browser, &format!("http://{}/ui", agent.address()));
    let wait_one = || {
        wait_for("one stream", || match streams(agent.address(), "evenkeel_stream_clients", &[]) {
            Some(1) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    };
    wait_one();
    for (nth, tab) in tabs.iter().enumerate() {
        browser.switch_to(tab);
        browser.wait("the row", "document.querySelectorAll('#rows > tr').length === 1");
        browser.click("#rows .actions .button:nth-child(1)");
        browser.wait_notice("A check of");
        assert_eq!(browser.value(LIVE), true, "tab {nth}");
    }
    // Each tab shows what each other tab causes.
    browser.click("#check-all");
    browser.wait_notice("A check of all services has started.");
    for tab in &tabs {
        browser.switch_to(tab);
        browser.wait("the entry", "document.querySelector('#events').innerText.includes('manual trigger')");
    }
    wait_one();
}

#[test]
fn the_tabs_of_a_warden_lose_and_repeat_nothing_when_the_one_with_the_stream_goes() {
    let mut scene = Scene::start();
    let browser = Browser::start();
    let mut tabs = open_tabs(&browser, &scene.url());
    scene.wait_streams(1);
    scene.send();
    wait_listed(&browser, &tabs, &scene.sent);
    // The tab that was shown last has the stream. It is closed, hidden, and killed without a word to the others.
    browser.switch_to(&tabs.pop().expect("a tab"));
    browser.close_tab();
    scene.send();
    wait_listed(&browser, &tabs, &scene.sent);
    scene.wait_streams(1);

    browser.set_hidden(true);
    scene.send();
    let (hidden, visible) = (tabs.len() - 1, &tabs[..tabs.len() - 1]);
    wait_listed(&browser, visible, &scene.sent);
    scene.wait_streams(1);
    browser.switch_to(&tabs[hidden]);
    assert_eq!(browser.value("document.querySelectorAll('#events > tr').length"), scene.sent.len() - 1);
    browser.set_hidden(false);
    wait_listed(&browser, &tabs, &scene.sent);
    scene.wait_streams(1);

    browser.switch_to(&tabs.pop().expect("a tab"));
    browser.crash_tab();
    scene.send();
    wait_listed(&browser, &tabs, &scene.sent);
    scene.wait_streams(1);
}

#[test]
fn a_hidden_tab_releases_its_stream_and_catches_up_when_it_is_shown() {
    let mut scene = Scene::start();
    let browser = Browser::start();
    browser.open(&scene.url());
    browser.wait("live", LIVE);
    scene.send();
    let tab = [browser.tab()];
    wait_listed(&browser, &tab, &scene.sent);
    browser.set_hidden(true);
    scene.wait_streams(0);
    // More than a new stream replays.
    for _ in 0..60 {
        scene.send();
    }
    browser.set_hidden(false);
    wait_listed(&browser, &tab, &scene.sent);
    scene.wait_streams(1);
}

#[test]
fn tabs_share_a_stream_over_plain_http_and_after_a_restart_of_the_program() {
    let mut scene = Scene::start();
    let browser = Browser::start();
    browser.allow_console_errors(&["net::ERR_"]);
    let url = scene.url().replace("127.0.0.1", Browser::NAME);
    let tabs = open_tabs(&browser, &url);
    assert_eq!(browser.value("isSecureContext"), false);
    scene.send();
    wait_listed(&browser, &tabs, &scene.sent);
    scene.warden.kill9();
    for tab in &tabs {
        browser.switch_to(tab);
        browser.wait("the loss", "document.body.dataset.link === 'reconnecting'");
    }
    scene.warden.restart();
    scene.send();
    wait_listed(&browser, &tabs, &scene.sent);
    scene.wait_streams(1);
}
