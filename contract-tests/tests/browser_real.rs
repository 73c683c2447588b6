//! The agent's dashboard as the real program serves it, without an engine: what the page says then, and on the wire.

mod browser;

use browser::assert_is_sound;
use contract_tests::{Agent, Browser, request};
use serde_json::json;

#[test]
fn the_real_agent_serves_a_live_page_that_says_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let config = json!({
        "registry": { "url": "http://127.0.0.1:9" },
        "services": [
            { "name": "standalone", "container_name": "standalone", "auto_heal": true },
            { "name": "broken", "auto_update": true },
        ],
    });
    let socket = format!("unix://{}", folder.path().join("no-engine.sock").display());
    let agent = Agent::start(folder.path(), config, &[("DOCKER_HOST", &socket)]);

    let page = request(agent.address(), "GET", "/ui", &[("Accept-Encoding", "gzip")], &[]).unwrap();
    let header = |name: &str| page.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    assert_eq!((page.status, header("content-encoding")), (200, Some("gzip")));
    assert_eq!(header("x-frame-options"), Some("DENY"));
    assert_eq!(header("cache-control"), Some("no-cache"));
    let known = [("Accept-Encoding", "gzip"), ("If-None-Match", header("etag").expect("an ETag"))];
    assert_eq!(request(agent.address(), "GET", "/ui", &known, &[]).unwrap().status, 304);

    let browser = Browser::start();
    browser.open(&format!("http://{}/ui", agent.address()));
    browser.wait("the row", "document.querySelectorAll('#rows > tr').length === 1");
    browser.wait("the stream", "document.body.dataset.link === 'live'");
    browser.wait("the warning", "document.querySelector('#notice').innerText.includes('broken')");
    browser.wait(
        "the first entry",
        "document.querySelector('#events').innerText.includes('watching 1 service')",
    );
    browser.click("#rows .actions .button:nth-child(1)");
    browser
        .wait("the answer", "document.querySelector('#toasts').innerText.includes('auto_update is false')");
    let faults = browser.faults();
    // The browser itself notes the 503 of /health: the engine is not there.
    assert!(faults.iter().all(|fault| fault.contains("/health") && fault.contains("503")), "{faults:?}");
    assert_is_sound(&browser);
}
