//! A headless Chromium, driven through chromedriver, that sees and acts like a user.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::{WebDriverCompatibleCommand, WindowHandle};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{PREFIX, wait_for};

/// Which rules of axe-core are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// All of them.
    All,
    /// Those that depend on colours: another theme changes nothing else.
    Colours,
}

/// One window of a private browser with an empty profile.
///
/// On drop it asserts for every test that the pages sent requests only to their own origins, and that the console contains
/// no error, warning or policy violation that the test has not [allowed](Self::allow_console_errors).
pub struct Browser {
    runtime: tokio::runtime::Runtime,
    client: Client,
    driver: Child,
    /// Whether the driver records requests.
    records: bool,
    /// Origins of the pages that the test opened.
    opened: RefCell<BTreeSet<String>>,
    requested: RefCell<Vec<String>>,
    allowed_errors: RefCell<Vec<&'static str>>,
    // Removed after the browser has exited.
    _profile: TempDir,
}

/// A non-standard command of chromedriver, below `/session/<id>/`.
#[derive(Debug)]
struct VendorCommand(&'static str, Value);

impl WebDriverCompatibleCommand for VendorCommand {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.1.to_string()))
    }
}

/// Starts chromedriver and returns its port. It chooses a free IPv4 port and exits if the same port is in use on IPv6;
/// then it is started again.
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
    panic!("chromedriver reports no port");
}

/// Returns what starts the headless shell, a build of Chromium without the parts that have no place in a page. It renders and
/// runs pages like the browser, and starts with a seventh of the work. `None` if it is not installed, or with
/// `EVENKEEL_WHOLE_BROWSER`, as in `dist/test.sh --all`: then chromedriver starts the browser.
fn headless_shell() -> Option<&'static str> {
    let is_installed = Path::new("/usr/lib/chromium/chromium-headless-shell").is_file();
    let is_wanted = std::env::var_os("EVENKEEL_WHOLE_BROWSER").is_none();
    (is_installed && is_wanted).then_some(concat!(env!("CARGO_MANIFEST_DIR"), "/headless-shell"))
}

/// Records the notices of a page. A notice is visible for a few seconds only, and on a busy machine a test may miss it.
const RECORD_NOTICES: &str = "window.notices = [];
    document.addEventListener('DOMContentLoaded', () => {
        const shown = document.getElementById('toasts');
        const record = (changes) => window.notices.push(
            ...changes.flatMap((change) => [...change.addedNodes]).map((notice) => notice.textContent));
        if (shown) new MutationObserver(record).observe(shown, { childList: true });
    });";

/// A tab of the window.
#[derive(Debug, Clone)]
pub struct Tab(WindowHandle);

impl Browser {
    /// A name that the browser resolves to this machine. Unlike `localhost`, it is a name like any other to the browser:
    /// over plain HTTP it is no secure context.
    pub const NAME: &str = "boat.test";

    /// Starts a browser with a window of 1440 by 900 and the light colour scheme.
    #[track_caller]
    pub fn start() -> Self {
        let browser = Self::with(true);
        browser.devtools("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": RECORD_NOTICES }));
        // Discard the requests of the browser's initial page.
        browser.go("about:blank");
        browser.log("performance");
        browser
    }

    /// Starts a browser for measurements. Its driver does not record requests, because that copies each frame of a stream
    /// and slows the page down. The list of requests comes from the page's performance entries instead.
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
            .expect("a temporary folder can be created");
        let (mut driver, port) = start_driver();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be created");
        let mut capabilities = json!({
            "goog:chromeOptions": { "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--disable-extensions", "--hide-scrollbars",
                "--enable-precise-memory-info", "--js-flags=--expose-gc", "--lang=en-GB",
                "--window-size=1440,900", format!("--host-resolver-rules=MAP {} 127.0.0.1", Self::NAME), format!("--user-data-dir={}", profile.path().display()),
            ]},
            "goog:loggingPrefs": log,
            "acceptInsecureCerts": true,
        });
        if let Some(program) = headless_shell() {
            capabilities["goog:chromeOptions"]["binary"] = json!(program);
        }
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
            requested: RefCell::default(),
            // The engine creates and removes networks for other tests at the same time, which can abort requests.
            allowed_errors: RefCell::new(vec!["net::ERR_NETWORK_CHANGED"]),
            _profile: profile,
        };
        browser.prefers("light", false);
        browser
    }

    /// Opens a URL and waits until it is loaded.
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

    /// Returns the current tab, to which all other methods refer.
    #[track_caller]
    pub fn tab(&self) -> Tab {
        Tab(self.runtime.block_on(self.client.window()).expect("a tab is open"))
    }

    /// Opens a URL in a new tab, which becomes the current one.
    #[track_caller]
    pub fn open_tab(&self, url: &str) -> Tab {
        let opened = self.runtime.block_on(self.client.new_window(true)).expect("a tab can be opened");
        let tab = Tab(opened.handle);
        self.switch_to(&tab);
        self.devtools("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": RECORD_NOTICES }));
        self.open(url);
        tab
    }

    /// Makes a tab the current one.
    #[track_caller]
    pub fn switch_to(&self, tab: &Tab) {
        self.runtime.block_on(self.client.switch_to_window(tab.0.clone())).expect("the tab is open");
    }

    /// Closes the current tab. Another one has to be made the current one.
    #[track_caller]
    pub fn close_tab(&self) {
        self.runtime.block_on(self.client.close_window()).expect("the tab can be closed");
    }

    /// Kills the process of the current tab, so that its page can do nothing more. Another one has to be made the current one.
    pub fn crash_tab(&self) {
        let crash = VendorCommand("goog/cdp/execute", json!({ "cmd": "Page.crash", "params": {} }));
        // There is nobody left to answer.
        let _ = self.runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(5), self.client.issue_cmd(crash)).await
        });
    }

    /// Tells the current page that its tab is hidden or shown. The tabs of a headless browser are all visible.
    #[track_caller]
    pub fn set_hidden(&self, hidden: bool) {
        let state = if hidden { "hidden" } else { "visible" };
        self.run(&format!(
            "Object.defineProperty(document, 'hidden', {{ configurable: true, get: () => {hidden} }});
             Object.defineProperty(document, 'visibilityState', {{ configurable: true, get: () => '{state}' }});
             document.dispatchEvent(new Event('visibilitychange'));"
        ));
    }

    /// Reloads the page.
    #[track_caller]
    pub fn reload(&self) {
        self.runtime.block_on(self.client.refresh()).expect("the page can be reloaded");
    }

    /// Returns the URL of the page.
    #[track_caller]
    pub fn url(&self) -> String {
        self.runtime.block_on(self.client.current_url()).expect("the page has an address").to_string()
    }

    /// Runs a function body in the page and returns its result. The content security policy does not apply.
    #[track_caller]
    pub fn run(&self, body: &str) -> Value {
        match self.runtime.block_on(self.client.execute(body, Vec::new())) {
            Ok(value) => value,
            Err(error) => panic!("{body}: {error}"),
        }
    }

    /// Like [`Self::run`], for a body that calls its last argument, `arguments[0]`, with the result.
    #[track_caller]
    pub fn run_async(&self, body: &str) -> Value {
        match self.runtime.block_on(self.client.execute_async(body, Vec::new())) {
            Ok(value) => value,
            Err(error) => panic!("{body}: {error}"),
        }
    }

    /// Evaluates an expression in the page.
    #[track_caller]
    pub fn value(&self, expression: &str) -> Value {
        self.run(&format!("return ({expression});"))
    }

    /// Returns the visible text of the first element that matches.
    #[track_caller]
    pub fn text(&self, css: &str) -> String {
        let script = format!("document.querySelector({})?.innerText", json!(css));
        let begin = Instant::now();
        loop {
            let text = self.value(&script).as_str().unwrap_or_default().to_owned();
            // A row that the browser has not rendered yet has no text (`content-visibility`).
            if !text.is_empty() || begin.elapsed() > Duration::from_secs(10) {
                return text;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the element exists and clicks on it as a user would. It must be visible.
    #[track_caller]
    pub fn click(&self, css: &str) {
        // The driver does not scroll to an element that only the bar at the top of the page covers.
        let scroll = format!(
            "document.querySelector({})?.scrollIntoView({{block: 'nearest', behavior: 'instant'}})",
            json!(css)
        );
        let clicked = self.runtime.block_on(async {
            let element = self.client.wait().for_element(Locator::Css(css)).await?;
            self.client.execute(&scroll, Vec::new()).await?;
            element.click().await
        });
        if let Err(error) = clicked {
            panic!("click {css}: {error}");
        }
    }

    /// Waits until the element exists and types into it.
    #[track_caller]
    pub fn write(&self, css: &str, text: &str) {
        let written = self.runtime.block_on(async {
            self.client.wait().for_element(Locator::Css(css)).await?.send_keys(text).await
        });
        if let Err(error) = written {
            panic!("write to {css}: {error}");
        }
    }

    /// Presses keys, one after the other, in the focused element.
    #[track_caller]
    pub fn press(&self, keys: &[char]) {
        let actions = keys.iter().fold(KeyActions::new("keys".into()), |actions, key| {
            actions.then(KeyAction::Down { value: *key }).then(KeyAction::Up { value: *key })
        });
        self.runtime.block_on(self.client.perform_actions(actions)).expect("keys can be pressed");
    }

    /// Presses keys at the same time.
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

    /// Waits until the page has shown a notice with this text, even if it is no longer visible. Each notice matches only
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
                others => Err(format!("the page showed {others:?}")),
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

    /// Sets the preferences of the system: colour scheme (`light` or `dark`) and reduced motion.
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

    /// Sends a command of Chrome's debugging protocol.
    #[track_caller]
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.vendor_command(VendorCommand(
            "goog/cdp/execute",
            json!({ "cmd": command, "params": parameters }),
        ))
    }

    #[track_caller]
    fn vendor_command(&self, command: VendorCommand) -> Value {
        match self.runtime.block_on(self.client.issue_cmd(command)) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the URLs of all requests so far, including failed requests.
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
        let mut requested = self.requested.borrow_mut();
        requested.extend(sent);
        Ok(requested.clone())
    }

    #[track_caller]
    fn log(&self, kind: &str) -> Vec<Value> {
        self.try_log(kind).expect("the browser answers")
    }

    fn try_log(&self, kind: &str) -> Result<Vec<Value>, String> {
        let log =
            self.runtime.block_on(self.client.issue_cmd(VendorCommand("se/log", json!({ "type": kind }))));
        Ok(log.map_err(|error| error.to_string())?.as_array().cloned().unwrap_or_default())
    }

    /// Allows console errors that contain one of these texts. The browser logs failed requests to the console, even those
    /// that the test provokes.
    pub fn allow_console_errors(&self, words: &[&'static str]) {
        self.allowed_errors.borrow_mut().extend(words);
    }

    /// Returns requests to other origins and console errors that are not allowed, one per line.
    fn violations(&self) -> Result<Vec<String>, String> {
        let opened = self.opened.borrow();
        let is_own = |url: &str| {
            let origin = url::Url::parse(url).map(|url| url.origin().ascii_serialization());
            url.starts_with("data:") || origin.is_ok_and(|origin| opened.contains(&origin))
        };
        let foreign = self.try_requests()?.into_iter().filter(|url| !is_own(url));
        let foreign = foreign.map(|url| format!("request to another origin: {url}"));
        let allowed_errors = self.allowed_errors.borrow();
        let faults = self.try_log("browser")?.into_iter().filter_map(|entry| {
            let counts = entry["level"] == "SEVERE" || entry["level"] == "WARNING";
            let text = entry["message"].as_str().unwrap_or_default().to_owned();
            (counts && !allowed_errors.iter().any(|words| text.contains(words))).then_some(text)
        });
        Ok(foreign.chain(faults).collect())
    }

    /// Returns a screenshot of the window as PNG.
    #[track_caller]
    pub fn screenshot(&self) -> Vec<u8> {
        self.runtime.block_on(self.client.screenshot()).expect("a screenshot can be taken")
    }

    /// Returns the serious and critical violations of these rules that axe-core finds, each with its rule and element. `axe`
    /// is its script.
    #[track_caller]
    pub fn accessibility_faults(&self, axe: &str, rules: Rules) -> Vec<String> {
        // The script is half a megabyte: load it only once per page.
        if self.value("typeof axe") == "undefined" {
            self.run(axe);
        }
        let mut options = json!({ "resultTypes": ["violations"] });
        if rules == Rules::Colours {
            options["runOnly"] = json!(["color-contrast", "link-in-text-block"]);
        }
        let found = self.run_async(&format!(
            "const done = arguments[0];
             axe.run(document, {options}).then(
               (result) => done(result.violations
                 .filter((v) => v.impact === 'serious' || v.impact === 'critical')
                 .flatMap((v) => v.nodes.map((n) => `${{v.id}}: ${{n.html.slice(0, 200)}} (${{n.failureSummary}})`))),
               (fault) => done([String(fault)]));"
        ));
        let faults = found.as_array().cloned().unwrap_or_default();
        faults.iter().map(|fault| fault.as_str().unwrap_or_default().to_owned()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        let violations = if failing { Ok(Vec::new()) } else { self.violations() };
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
        assert!(violations == Ok(Vec::new()), "the page has violations: {violations:#?}");
    }
}
