//! A headless Chromium, driven through chromedriver: what a person sees and does.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{PREFIX, wait_for};

/// How long the page may take to show what it was told.
const SOON: Duration = Duration::from_secs(20);

/// One window of a browser of its own, with an empty profile.
pub struct Browser {
    runtime: tokio::runtime::Runtime,
    client: Client,
    driver: Child,
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

impl Browser {
    /// Starts one, 1440 by 900, with the light theme as the system's preference.
    #[track_caller]
    pub fn start() -> Self {
        Self::with_log(&json!({ "browser": "ALL" }))
    }

    /// Starts one that keeps what it asks for, for [`Self::requests`].
    #[track_caller]
    pub fn recording() -> Self {
        let browser = Self::with_log(&json!({ "browser": "ALL", "performance": "ALL" }));
        // What the browser's own first page has asked for does not count.
        browser.open("about:blank");
        browser.log("performance");
        browser
    }

    #[track_caller]
    fn with_log(log: &Value) -> Self {
        let profile = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}browser-"))
            .tempdir()
            .expect("a temporary folder can be made");
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
        let Some(port) = port else {
            let _ = driver.kill();
            panic!("chromedriver says no port");
        };
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
        let browser = Self { runtime, client, driver, _profile: profile };
        browser.prefers("light", false);
        browser
    }

    /// Opens an address and waits until it is loaded.
    #[track_caller]
    pub fn open(&self, url: &str) {
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
        let css = json!(css);
        let text = self.value(&format!("document.querySelector({css})?.innerText"));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks as a person does: the element must be there and visible.
    #[track_caller]
    pub fn click(&self, css: &str) {
        let clicked =
            self.runtime.block_on(async { self.client.find(Locator::Css(css)).await?.click().await });
        if let Err(error) = clicked {
            panic!("click {css}: {error}");
        }
    }

    /// Types into an element.
    #[track_caller]
    pub fn write(&self, css: &str, text: &str) {
        let written =
            self.runtime.block_on(async { self.client.find(Locator::Css(css)).await?.send_keys(text).await });
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

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub fn wait(&self, what: &str, expression: &str) {
        self.wait_up_to(SOON, what, expression);
    }

    /// The same with a time limit.
    #[track_caller]
    pub fn wait_up_to(&self, timeout: Duration, what: &str, expression: &str) {
        wait_for(timeout, what, || match self.value(&format!("Boolean({expression})")) {
            Value::Bool(true) => Ok(()),
            _ => Err(format!("{expression} is false; the page says: {}", self.text("body"))),
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

    /// Addresses of all requests since it was asked last, whoever made them and whatever became of them; in a
    /// browser that is [`Self::recording`].
    #[track_caller]
    pub fn requests(&self) -> Vec<String> {
        let messages = self.log("performance").into_iter().filter_map(|entry| {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &message["message"];
            let sent = ["Network.requestWillBeSent", "Network.webSocketCreated"].map(Value::from);
            let url = message["params"]["request"]["url"].as_str().or(message["params"]["url"].as_str());
            url.filter(|_| sent.contains(&message["method"])).map(str::to_owned)
        });
        messages.collect()
    }

    #[track_caller]
    fn log(&self, kind: &str) -> Vec<Value> {
        let log = self.beyond(Beyond("se/log", json!({ "type": kind })));
        log.as_array().cloned().unwrap_or_default()
    }

    /// What the console got since it was asked last, faults only: errors, warnings, violations of policy.
    #[track_caller]
    pub fn faults(&self) -> Vec<String> {
        let entries = self.log("browser");
        let faults = entries.iter().filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        faults.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// A picture of the window as PNG.
    #[track_caller]
    pub fn picture(&self) -> Vec<u8> {
        self.runtime.block_on(self.client.screenshot()).expect("a picture can be taken")
    }

    /// Serious and critical faults that axe-core finds, each with its rule and the elements. `axe` is its script.
    #[track_caller]
    pub fn accessibility_faults(&self, axe: &str) -> Vec<String> {
        self.run(axe);
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
    }
}
