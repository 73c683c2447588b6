//! Every view of both pages, in both themes, on a desktop, a tablet and a phone: axe-core reports nothing serious or critical,
//! and there is no horizontal scrolling.

use std::panic::{AssertUnwindSafe, catch_unwind};

use contract_tests::{Browser, Rules, StubServer};
use serde_json::json;

use crate::scene::agent::{NEW, busy_agent, service, with};
use crate::scene::warden::{busy_warden, fleet_warden};
use crate::scene::{ahead, axe};

/// A view: its stub server, the action that opens it, and the conditions before and after the action.
struct View {
    name: &'static str,
    stub: fn() -> StubServer,
    /// Query string of the page's address.
    query: &'static str,
    /// The action that opens the view; it runs once `ready` holds.
    action: fn(&StubServer, &Browser),
    ready: &'static str,
    shown: &'static str,
}

const fn nothing(_: &StubServer, _: &Browser) {}

/// Advances the clock beyond the longest silence of a healthy program.
fn pass_a_minute(stub: &StubServer, browser: &Browser) {
    stub.set_offline(true);
    browser.run("const now = Date.now; Date.now = () => now() + 60000;");
}

fn click_all(browser: &Browser, css: &str) {
    browser.run(&format!("for (const node of document.querySelectorAll({})) node.click();", json!(css)));
}

fn agent_without_engine() -> StubServer {
    let stub = busy_agent();
    stub.answer(
        "GET /health",
        503,
        &json!({
            "status": "unavailable", "error": "cannot reach the engine at /var/run/docker.sock: no such file",
            "config_warnings": ["web: env_file /srv/web/.env does not exist"],
        }),
    );
    stub
}

fn agent_without_services() -> StubServer {
    let stub = StubServer::agent();
    stub.status(&json!({ "uptime_seconds": 1, "services": [] }));
    stub
}

/// Updates held by gates, a newer tag, and a rollback that is at risk.
fn waiting_agent() -> StubServer {
    let stub = StubServer::agent();
    let waits = |gate: &str, more: &serde_json::Value| {
        let waiting = json!({ "image": "shop:latest", "digest": NEW, "gate": gate, "clear": "POST /approve/shop",
            "why": "nobody has approved registry.example/team/a-long-name-of-an-image/shop:latest at this digest yet" });
        with(waiting, more)
    };
    let mut shop = with(
        service("shop", "ok"),
        &json!({ "waiting": waits("approval", &json!({})), "way_back": "at_risk",
            "way_back_reason": "the image is neither on this machine nor in the registry" }),
    );
    shop["images"][0]["newer"] = json!("1.28.3");
    let young = with(
        service("api", "ok"),
        &json!({ "waiting": waits("min_age", &json!({ "lifts_at": ahead(3600) })) }),
    );
    let failed =
        json!({ "output": "shop-1 | no such column: price", "clear": "POST /unblock at the warden" });
    let withheld = with(
        service("mail", "ok"),
        &json!({ "waiting": waits("immunity", &failed), "blocked_by": "lighthouse" }),
    );
    stub.status(&json!({ "uptime_seconds": 5, "services": [shop, young, withheld] }));
    stub
}

const WAITING: &str = "document.querySelectorAll('#rows .is-waiting:not([hidden])').length === 3";
const AGENT: &str = "document.querySelectorAll('#events > tr').length === 6";
const WARDEN: &str = "document.querySelectorAll('#machines > li').length === 3 && document.querySelectorAll('#events > tr').length === 5";
const MAP: &str = "document.querySelectorAll('#map-rows > tr').length === 2 && document.querySelectorAll('#events > tr').length === 5";
const STALE: &str = "document.querySelector('#link').innerText.startsWith('Stale since')";

const AGENT_VIEWS: &[View] = &[
    View { name: "agent", stub: busy_agent, query: "", action: nothing, ready: AGENT, shown: AGENT },
    View {
        name: "agent, all sections open",
        stub: busy_agent,
        query: "",
        action: |_, browser| click_all(browser, ".fold"),
        ready: AGENT,
        shown: "document.querySelectorAll('.things > li').length > 5",
    },
    View {
        name: "agent, black box of a failed deployment",
        stub: busy_agent,
        query: "",
        action: |_, browser| click_all(browser, ".more > summary"),
        ready: AGENT,
        shown: "document.querySelector('.box pre')",
    },
    View {
        name: "agent, confirmation dialog",
        stub: busy_agent,
        query: "",
        action: |_, browser| click_all(browser, "#rows > tr:first-child .actions .button:nth-child(2)"),
        ready: AGENT,
        shown: "document.querySelector('dialog').open",
    },
    View {
        name: "agent, results of actions",
        stub: busy_agent,
        query: "",
        // The stub has no responses to these requests, so each shows an error.
        action: |_, browser| {
            click_all(browser, "#check-all, #rows > tr:first-child .actions .button:first-child");
        },
        ready: AGENT,
        shown: "document.querySelectorAll('.toast').length === 2",
    },
    View {
        name: "agent, updates that wait",
        stub: waiting_agent,
        query: "",
        action: |_, browser| click_all(browser, ".is-waiting summary"),
        ready: WAITING,
        shown: "document.querySelector('#rows .is-waiting pre')",
    },
    View {
        name: "agent without services",
        stub: agent_without_services,
        query: "",
        action: nothing,
        ready: "document.body.dataset.ready",
        shown: "document.querySelector('#empty').innerText.includes('config.json')",
    },
    View {
        name: "agent, nothing matches",
        stub: busy_agent,
        query: "",
        action: |_, browser| browser.write("#search", "nothing is called so"),
        ready: AGENT,
        shown: "document.querySelector('#empty').innerText.includes('No service matches')",
    },
    View {
        name: "agent without engine",
        stub: agent_without_engine,
        query: "",
        action: nothing,
        ready: AGENT,
        shown: "document.querySelector('#notice').innerText.includes('docker.sock')",
    },
    View {
        name: "agent, reconnecting",
        stub: busy_agent,
        query: "",
        action: |stub, _| stub.set_offline(true),
        ready: "document.body.dataset.link === 'live'",
        shown: "document.body.dataset.link === 'reconnecting'",
    },
    View {
        name: "agent, stale",
        stub: busy_agent,
        query: "",
        action: pass_a_minute,
        ready: "document.body.dataset.link === 'live'",
        shown: STALE,
    },
    View {
        name: "agent without a status",
        stub: StubServer::agent,
        query: "",
        action: |stub, _| stub.set_offline(true),
        ready: "document.body.dataset.link === 'live'",
        shown: "document.querySelector('#empty').innerText.includes('does not answer')",
    },
];

const WARDEN_VIEWS: &[View] = &[
    View {
        name: "warden, one machine offline",
        stub: busy_warden,
        query: "",
        action: |_, browser| click_all(browser, ".more > summary"),
        ready: WARDEN,
        shown: "document.querySelector('.card.offline') && document.querySelector('.box')",
    },
    View {
        name: "warden, images and freezes",
        stub: fleet_warden,
        query: "",
        action: |_, browser| click_all(browser, "#withheld summary"),
        ready: MAP,
        shown: "document.querySelector('.failed-box pre') && !document.querySelector('#freezes').hidden",
    },
    View {
        name: "warden, one image on one machine",
        stub: fleet_warden,
        query: "",
        action: |_, browser| click_all(browser, "#map-rows > tr:nth-child(2) > td:nth-child(3)"),
        ready: MAP,
        shown: "document.querySelector('#cell').open && document.querySelector('#cell pre')",
    },
    View {
        name: "warden, freeze dialog with a fault",
        stub: fleet_warden,
        query: "",
        action: |_, browser| click_all(browser, "#freeze, #freeze-yes"),
        ready: MAP,
        shown: "!document.querySelector('#freeze-fault').hidden",
    },
    View {
        name: "warden without machines",
        stub: StubServer::warden,
        query: "",
        action: nothing,
        ready: "document.body.dataset.ready",
        shown: "document.querySelector('#no-machines').innerText.includes('No machines are configured')",
    },
    View {
        name: "warden, one machine's entries",
        stub: busy_warden,
        query: "?machine=lighthouse",
        action: nothing,
        ready: WARDEN,
        shown: "!document.querySelector('#clear').hidden",
    },
    View {
        name: "warden, nothing matches",
        stub: busy_warden,
        query: "?text=nothing%20says%20so",
        action: nothing,
        ready: WARDEN,
        shown: "document.querySelector('#no-events').innerText.includes('No event matches')",
    },
    View {
        name: "warden, stale",
        stub: busy_warden,
        query: "",
        action: pass_a_minute,
        ready: "document.body.dataset.link === 'live'",
        shown: STALE,
    },
    View {
        name: "login",
        stub: StubServer::login,
        query: "",
        action: nothing,
        ready: "document.activeElement.id === 'token'",
        shown: "document.querySelector('#refused').hidden",
    },
    View {
        name: "login, token refused",
        stub: StubServer::login_refused,
        query: "?token=wrong",
        action: nothing,
        ready: "document.activeElement.id === 'token'",
        shown: "!document.querySelector('#refused').hidden",
    },
];

/// Returns the problems of the views, one per line.
fn faults_of(views: &[View]) -> Vec<String> {
    let axe = axe();
    let browser = Browser::start();
    // Some programs refuse requests or are down on purpose.
    browser.allow_console_errors(&["net::ERR_", "status of 404", "status of 503"]);
    let mut faults = Vec::new();
    for View { name, stub, query, action, ready, shown } in views {
        let stub = stub();
        browser.size(1440, 1000);
        browser.open(&format!("{}{query}", stub.url()));
        browser.wait(&format!("{name} to be ready"), ready);
        action(&stub, &browser);
        browser.wait(name, shown);
        for scheme in ["light", "dark"] {
            browser.prefers(scheme, true);
            for width in [1440, 768, 390, 320] {
                browser.size(width, 900);
                let wide = browser.value("document.documentElement.scrollWidth");
                if wide.as_u64() > Some(width.into()) {
                    faults.push(format!("{name}, {scheme}, {width}: {wide} pixels wide"));
                }
                // The rules check colours and roles, which can only differ between desktop and phone, and roles only there.
                let axe = axe.as_ref().filter(|_| matches!(width, 1440 | 390));
                let rules = if scheme == "light" { Rules::All } else { Rules::Colours };
                let found = axe.map(|axe| browser.accessibility_faults(axe, rules)).unwrap_or_default();
                faults.extend(found.iter().map(|fault| format!("{name}, {scheme}, {width}: {fault}")));
            }
        }
        assert_eq!(browser.value(&format!("Boolean({shown})")), true, "{name} was visible until the end");
    }
    faults
}

#[test]
fn every_view_of_the_agent_is_accessible_and_fits_every_width() {
    assert_eq!(faults_of(AGENT_VIEWS), [] as [String; 0]);
}

#[test]
fn every_view_of_the_warden_is_accessible_and_fits_every_width() {
    assert_eq!(faults_of(WARDEN_VIEWS), [] as [String; 0]);
}

#[test]
fn a_browser_with_violations_fails_its_test() {
    let stub = busy_agent();
    let other = busy_agent();
    for (name, action, expected) in [
        ("error", "console.error('a fault of the page');".to_owned(), "a fault of the page"),
        ("policy", format!("fetch('{}').catch(() => {{}});", other.url()), "Content Security Policy"),
        ("elsewhere", format!("location = '{}';", other.url()), "request to another origin"),
    ] {
        let failed = catch_unwind(AssertUnwindSafe(|| {
            let browser = Browser::start();
            browser.open(&stub.url());
            browser.wait("the page", AGENT);
            browser.run(&action);
            browser.wait("the page, again", AGENT);
        }));
        let message = failed.expect_err(name);
        let message = message.downcast_ref::<String>().expect("a message");
        assert!(message.contains(expected), "{name}: {message}");
    }
}
