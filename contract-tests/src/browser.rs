//! A headless Chromium, driven through chromedriver: what a person sees and does.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{PREFIX, wait_for};

/// One window of a browser of its own, with an empty profile.
///
/// Whatever a test looks at, its browser must end sound: nothing was asked for but what the pages that the test opened
/// have at their own origin, and the console holds no fault (error, warning, violation of policy) that the test does
/// not [bear](Self::bear). This is looked at when it is dropped, so no test can forget it.
pub struct Browser {
    runtime: tokio::runtime::Runtime,
    client: Client,
    driver: Child,
    /// Whether the driver keeps what is asked for.
    records: bool,
    /// Origins of the pages that were opened.
    opened: RefCell<BTreeSet<String>>,
    asked: RefCell<Vec<String>>,
    borne: RefCell<Vec<&'static str>>,
    // Removed after the browser has ended.
    _profile: TempDir,
}

/// A command of chromedriver beyond the standard, below `/session/<id>/`.
#[derive(Debug)]
struct Beyond(&'static str, Value);

impl WebDriverCompatibleCommand for Beyond {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.1.to_string()))
    }
}

/// Starts chromedriver; the port that it listens on. It takes a free port of IPv4 and ends when the same one is taken
/// on IPv6, which another try settles.
#[track_caller]
fn start_driver() -> (Child, u16) {
    for _ in 0..5 {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is installed (Debian: chromium-driver; dist/test.sh brings it)");
        let stdout = BufReader::new(driver.stdout.take().expect("stdout is piped"));
        let port = stdout.lines().map_while(Result::ok).find_map(|line| {
            let port = line.split_once("successfully on port ")?.1;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        if let Some(port) = port {
            return (driver, port);
        }
        let _ = driver.kill();
        let _ = driver.wait();
    }
    panic!("chromedriver says no port");
}

/// A page shows a notice for some seconds, in which a browser on a busy machine may get no turn to be asked.
const RECORD_NOTICES: &str = "window.notices = [];
    document.addEventListener('DOMContentLoaded', () => {
        const shown = document.getElementById('toasts');
        const record = (changes) => window.notices.push(
            ...changes.flatMap((change) => [...change.addedNodes]).map((notice) => notice.textContent));
        if (shown) new MutationObserver(record).observe(shown, { childList: true });
    });";

impl Browser {
    /// Starts one, 1440 by 900, with the light theme as the system's preference.
    #[track_caller]
    pub fn start() -> Self {
        let browser = Self::with(true);
        browser.devtools("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": RECORD_NOTICES }));
        // What the browser's own first page has asked for does not count.
        browser.go("about:blank");
        browser.log("performance");
        browser
    }

    /// Starts one for measurements. A driver that keeps what is asked for copies each frame of a stream, and the page
    /// pays for that; here the page's own list tells what it has asked for.
    #[track_caller]
    pub fn measuring() -> Self {
        Self::with(false)
    }

    #[track_caller]
    fn with(records: bool) -> Self {
        let log = if records {
            json!({ "browser": "ALL", "performance": "ALL" })
        } else {
            json!({ "browser": "ALL" })
        };
        let profile = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}browser-"))
            .tempdir()
            .expect("a temporary folder can be made");
        let (mut driver, port) = start_driver();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let capabilities = json!({
            "goog:chromeOptions": { "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--disable-extensions", "--hide-scrollbars",
                "--enable-precise-memory-info", "--js-flags=--expose-gc", "--lang=en-GB",
                "--window-size=1440,900", format!("--user-data-dir={}", profile.path().display()),
            ]},
            "goog:loggingPrefs": log,
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("it is an object") };
        let client = runtime.block_on(async {
            ClientBuilder::new(HttpConnector::new())
                .capabilities(capabilities)
                .connect(&format!("http://127.0.0.1:{port}"))
                .await
        });
        let client = match client {
            Ok(client) => client,
            Err(error) => {
                let _ = driver.kill();
                panic!("no browser: {error}");
            }
        };
        let browser = Self {
            runtime,
            client,
            driver,
            records,
            opened: RefCell::default(),
            asked: RefCell::default(),
            // The engine makes and removes networks for other tests meanwhile, which ends a request in the middle.
            borne: RefCell::new(vec!["net::ERR_NETWORK_CHANGED"]),
            _profile: profile,
        };
        browser.prefers("light", false);
        browser
    }

    /// Opens an address and waits until it is loaded.
    #[track_caller]
    pub fn open(&self, url: &str) {
        let origin = url::Url::parse(url).expect("an address").origin().ascii_serialization();
        self.opened.borrow_mut().insert(origin);
        self.go(url);
    }

    #[track_caller]
    fn go(&self, url: &str) {
        self.runtime.block_on(self.client.goto(url)).expect("the page can be opened");
    }

    /// Loads the page again.
    #[track_caller]
    pub fn reload(&self) {
        self.runtime.block_on(self.client.refresh()).expect("the page can be loaded again");
    }

    /// Its address.
    #[track_caller]
    pub fn url(&self) -> String {
        self.runtime.block_on(self.client.current_url()).expect("the page has an address").to_string()
    }

    /// Runs a function's body in the page and gives what it returns. Content security policy does not apply.
    #[track_caller]
    pub fn run(&self, body: &str) -> Value {
        match self.runtime.block_on(self.client.execute(body, Vec::new())) {
            Ok(value) => value,
            Err(error) => panic!("{body}: {error}"),
        }
    }

    /// The same for a body that calls its last argument, `arguments[0]`, when it is done.
    #[track_caller]
    pub fn run_async(&self, body: &str) -> Value {
        match self.runtime.block_on(self.client.execute_async(body, Vec::new())) {
            Ok(value) => value,
            Err(error) => panic!("{body}: {error}"),
        }
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub fn value(&self, expression: &str) -> Value {
        self.run(&format!("return ({expression});"))
    }

    /// What is visible as text in the first element that fits.
    #[track_caller]
    pub fn text(&self, css: &str) -> String {
        let script = format!("document.querySelector({})?.innerText", json!(css));
        let begin = Instant::now();
        loop {
            let text = self.value(&script).as_str().unwrap_or_default().to_owned();
            // A row that the browser has not come to yet has no text (`content-visibility`).
            if !text.is_empty() || begin.elapsed() > Duration::from_secs(10) {
                return text;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Clicks as a person does: waits until the element is there, which must be visible then.
    #[track_caller]
    pub fn click(&self, css: &str) {
        let clicked = self
            .runtime
            .block_on(async { self.client.wait().for_element(Locator::Css(css)).await?.click().await });
        if let Err(error) = clicked {
            panic!("click {css}: {error}");
        }
    }

    /// Types into an element, and waits until it is there.
    #[track_caller]
    pub fn write(&self, css: &str, text: &str) {
        let written = self.runtime.block_on(async {
            self.client.wait().for_element(Locator::Css(css)).await?.send_keys(text).await
        });
        if let Err(error) = written {
            panic!("write to {css}: {error}");
        }
    }

    /// Presses keys, one after the other, wherever the focus is.
    #[track_caller]
    pub fn press(&self, keys: &[char]) {
        let actions = keys.iter().fold(KeyActions::new("keys".into()), |actions, key| {
            actions.then(KeyAction::Down { value: *key }).then(KeyAction::Up { value: *key })
        });
        self.runtime.block_on(self.client.perform_actions(actions)).expect("keys can be pressed");
    }

    /// Presses keys together.
    #[track_caller]
    pub fn press_together(&self, keys: &[char]) {
        let actions = KeyActions::new("keys".into());
        let down = keys.iter().fold(actions, |actions, key| actions.then(KeyAction::Down { value: *key }));
        let up = keys.iter().rev().fold(down, |actions, key| actions.then(KeyAction::Up { value: *key }));
        self.runtime.block_on(self.client.perform_actions(up)).expect("keys can be pressed");
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub fn wait(&self, what: &str, expression: &str) {
        wait_for(what, || match self.value(&format!("Boolean({expression})")) {
            Value::Bool(true) => Ok(()),
            _ => Err(format!("{expression} is false; the page says: {}", self.text("body"))),
        });
    }

    /// Waits until the page has given a notice with this text, whether or not it still shows it. A notice is waited for
    /// once.
    #[track_caller]
    pub fn wait_notice(&self, text: &str) {
        let text = json!(text);
        wait_for(&format!("the notice {text}"), || {
            let taken = "const at = window.notices.findIndex((notice) => notice.includes(text));
                if (at >= 0) window.notices.splice(at, 1);
                return at >= 0 ? '' : JSON.stringify(window.notices);";
            match self.run(&format!("const text = {text}; {taken}")).as_str() {
                Some("") => Ok(()),
                others => Err(format!("the page gave {others:?}")),
            }
        });
    }

    /// Sets the window's size in CSS pixels.
    #[track_caller]
    pub fn size(&self, width: u32, height: u32) {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 }),
        );
    }

    /// What the system prefers: `light` or `dark`, and whether less motion.
    #[track_caller]
    pub fn prefers(&self, scheme: &str, less_motion: bool) {
        let motion = if less_motion { "reduce" } else { "no-preference" };
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [
                { "name": "prefers-color-scheme", "value": scheme },
                { "name": "prefers-reduced-motion", "value": motion },
            ]}),
        );
    }

    /// A command of the browser's own protocol.
    #[track_caller]
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.beyond(Beyond("goog/cdp/execute", json!({ "cmd": command, "params": parameters })))
    }

    #[track_caller]
    fn beyond(&self, command: Beyond) -> Value {
        match self.runtime.block_on(self.client.issue_cmd(command)) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }

    /// Addresses of all requests so far, whoever made them and whatever became of them.
    #[track_caller]
    pub fn requests(&self) -> Vec<String> {
        self.try_requests().expect("the browser answers")
    }

    fn try_requests(&self) -> Result<Vec<String>, String> {
        if !self.records {
            let body = "return performance.getEntriesByType('resource').map((e) => e.name);";
            let listed = self.runtime.block_on(self.client.execute(body, Vec::new()));
            let listed = listed.map_err(|error| error.to_string())?;
            let listed = listed.as_array().into_iter().flatten();
            return Ok(listed.filter_map(|name| name.as_str().map(str::to_owned)).collect());
        }
        let log = self.try_log("performance")?;
        let sent = log.into_iter().filter_map(|entry| {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &message["message"];
            let sent = ["Network.requestWillBeSent", "Network.webSocketCreated"].map(Value::from);
            let url = message["params"]["request"]["url"].as_str().or(message["params"]["url"].as_str());
            url.filter(|_| sent.contains(&message["method"])).map(str::to_owned)
        });
        let mut asked = self.asked.borrow_mut();
        asked.extend(sent);
        Ok(asked.clone())
    }

    #[track_caller]
    fn log(&self, kind: &str) -> Vec<Value> {
        self.try_log(kind).expect("the browser answers")
    }

    fn try_log(&self, kind: &str) -> Result<Vec<Value>, String> {
        let log = self.runtime.block_on(self.client.issue_cmd(Beyond("se/log", json!({ "type": kind }))));
        Ok(log.map_err(|error| error.to_string())?.as_array().cloned().unwrap_or_default())
    }

    /// Lets the console hold faults with one of these words in them: the browser itself notes there what became of a
    /// request, also when the test wanted just that.
    pub fn bear(&self, words: &[&'static str]) {
        self.borne.borrow_mut().extend(words);
    }

    /// What is not sound, one line each.
    fn unsound(&self) -> Result<Vec<String>, String> {
        let opened = self.opened.borrow();
        let is_own = |url: &str| {
            let origin = url::Url::parse(url).map(|url| url.origin().ascii_serialization());
            url.starts_with("data:") || origin.is_ok_and(|origin| opened.contains(&origin))
        };
        let elsewhere = self.try_requests()?.into_iter().filter(|url| !is_own(url));
        let elsewhere = elsewhere.map(|url| format!("asked elsewhere: {url}"));
        let borne = self.borne.borrow();
        let faults = self.try_log("browser")?.into_iter().filter_map(|entry| {
            let counts = entry["level"] == "SEVERE" || entry["level"] == "WARNING";
            let text = entry["message"].as_str().unwrap_or_default().to_owned();
            (counts && !borne.iter().any(|words| text.contains(words))).then_some(text)
        });
        Ok(elsewhere.chain(faults).collect())
    }

    /// A picture of the window as PNG.
    #[track_caller]
    pub fn picture(&self) -> Vec<u8> {
        self.runtime.block_on(self.client.screenshot()).expect("a picture can be taken")
    }

    /// Serious and critical faults that axe-core finds, each with its rule and the elements. `axe` is its script.
    #[track_caller]
    pub fn accessibility_faults(&self, axe: &str) -> Vec<String> {
        // Half a megabyte, once per page.
        if self.value("typeof axe") == "undefined" {
            self.run(axe);
        }
        let found = self.run_async(
            "const done = arguments[0];
             axe.run(document, { resultTypes: ['violations'] }).then(
               (result) => done(result.violations
                 .filter((v) => v.impact === 'serious' || v.impact === 'critical')
                 .flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.html.slice(0, 200)} (${n.failureSummary})`))),
               (fault) => done([String(fault)]));",
        );
        let faults = found.as_array().cloned().unwrap_or_default();
        faults.iter().map(|fault| fault.as_str().unwrap_or_default().to_owned()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        let unsound = if failing { Ok(Vec::new()) } else { self.unsound() };
        let closed = self.runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(10), self.client.clone().close()).await
        });
        if let Ok(Err(error)) = &closed
            && !error.is_invalid_session_id()
        {
            eprintln!("the browser did not close: {error}");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        assert!(unsound == Ok(Vec::new()), "the page is not sound: {unsound:#?}");
    }
}
