//! Every view of both pages, in both themes, on a desk, a tablet and a phone: nothing that axe-core calls serious or critical,
//! and nothing that must be scrolled sideways.

use std::panic::{AssertUnwindSafe, catch_unwind};

use contract_tests::{Browser, Stage};
use serde_json::json;

use crate::scene::agent::{NEW, busy_agent, service, with};
use crate::scene::warden::{busy_warden, fleet_warden};
use crate::scene::{ahead, axe};

/// A view: the program behind it, what is done on the page, and how it is known to be there.
struct View {
    name: &'static str,
    stage: fn() -> Stage,
    /// What follows the page's address.
    query: &'static str,
    /// What is done before the view is looked at; `ready` before it, so that there is something to do it to.
    deed: fn(&Stage, &Browser),
    ready: &'static str,
    seen: &'static str,
}

const fn nothing(_: &Stage, _: &Browser) {}

/// The clock goes on for longer than a program ever keeps silent.
fn pass_a_minute(stage: &Stage, browser: &Browser) {
    stage.away(true);
    browser.run("const now = Date.now; Date.now = () => now() + 60000;");
}

fn click_all(browser: &Browser, css: &str) {
    browser.run(&format!("for (const node of document.querySelectorAll({})) node.click();", json!(css)));
}

fn agent_without_engine() -> Stage {
    let stage = busy_agent();
    stage.answer(
        "GET /health",
        503,
        &json!({
            "status": "unavailable", "error": "cannot reach the engine at /var/run/docker.sock: no such file",
            "config_warnings": ["web: env_file /srv/web/.env does not exist"],
        }),
    );
    stage
}

fn agent_without_services() -> Stage {
    let stage = Stage::agent();
    stage.status(&json!({ "uptime_seconds": 1, "services": [] }));
    stage
}

/// Updates that gates hold back, a newer tag, and a way back that is at risk.
fn waiting_agent() -> Stage {
    let stage = Stage::agent();
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
    stage.status(&json!({ "uptime_seconds": 5, "services": [shop, young, withheld] }));
    stage
}

const WAITING: &str = "document.querySelectorAll('#rows .is-waiting:not([hidden])').length === 3";
const AGENT: &str = "document.querySelectorAll('#events > tr').length === 6";
const WARDEN: &str = "document.querySelectorAll('#machines > li').length === 3 && document.querySelectorAll('#events > tr').length === 5";
const MAP: &str = "document.querySelectorAll('#map-rows > tr').length === 2 && document.querySelectorAll('#events > tr').length === 5";
const STALE: &str = "document.querySelector('#link').innerText.startsWith('Stale since')";

const AGENT_VIEWS: &[View] = &[
    View { name: "agent", stage: busy_agent, query: "", deed: nothing, ready: AGENT, seen: AGENT },
    View {
        name: "agent, all sections open",
        stage: busy_agent,
        query: "",
        deed: |_, browser| click_all(browser, ".fold"),
        ready: AGENT,
        seen: "document.querySelectorAll('.things > li').length > 5",
    },
    View {
        name: "agent, black box of a failed deployment",
        stage: busy_agent,
        query: "",
        deed: |_, browser| click_all(browser, ".more > summary"),
        ready: AGENT,
        seen: "document.querySelector('.box pre')",
    },
    View {
        name: "agent, question",
        stage: busy_agent,
        query: "",
        deed: |_, browser| click_all(browser, "#rows > tr:first-child .actions .button:nth-child(2)"),
        ready: AGENT,
        seen: "document.querySelector('dialog').open",
    },
    View {
        name: "agent, answers of actions",
        stage: busy_agent,
        query: "",
        // Nothing is scripted for them: one refusal each.
        deed: |_, browser| {
            click_all(browser, "#check-all, #rows > tr:first-child .actions .button:first-child");
        },
        ready: AGENT,
        seen: "document.querySelectorAll('.toast').length === 2",
    },
    View {
        name: "agent, updates that wait",
        stage: waiting_agent,
        query: "",
        deed: |_, browser| click_all(browser, ".is-waiting summary"),
        ready: WAITING,
        seen: "document.querySelector('#rows .is-waiting pre')",
    },
    View {
        name: "agent without services",
        stage: agent_without_services,
        query: "",
        deed: nothing,
        ready: "document.body.dataset.ready",
        seen: "document.querySelector('#empty').innerText.includes('config.json')",
    },
    View {
        name: "agent, nothing matches",
        stage: busy_agent,
        query: "",
        deed: |_, browser| browser.write("#search", "nothing is called so"),
        ready: AGENT,
        seen: "document.querySelector('#empty').innerText.includes('No service matches')",
    },
    View {
        name: "agent without engine",
        stage: agent_without_engine,
        query: "",
        deed: nothing,
        ready: AGENT,
        seen: "document.querySelector('#notice').innerText.includes('docker.sock')",
    },
    View {
        name: "agent, reconnecting",
        stage: busy_agent,
        query: "",
        deed: |stage, _| stage.away(true),
        ready: "document.body.dataset.link === 'live'",
        seen: "document.body.dataset.link === 'reconnecting'",
    },
    View {
        name: "agent, stale",
        stage: busy_agent,
        query: "",
        deed: pass_a_minute,
        ready: "document.body.dataset.link === 'live'",
        seen: STALE,
    },
    View {
        name: "agent that has said nothing yet",
        stage: Stage::agent,
        query: "",
        deed: |stage, _| stage.away(true),
        ready: "document.body.dataset.link === 'live'",
        seen: "document.querySelector('#empty').innerText.includes('does not answer')",
    },
];

const WARDEN_VIEWS: &[View] = &[
    View {
        name: "warden, one machine offline",
        stage: busy_warden,
        query: "",
        deed: |_, browser| click_all(browser, ".more > summary"),
        ready: WARDEN,
        seen: "document.querySelector('.card.offline') && document.querySelector('.box')",
    },
    View {
        name: "warden, images and freezes",
        stage: fleet_warden,
        query: "",
        deed: |_, browser| click_all(browser, "#withheld summary"),
        ready: MAP,
        seen: "document.querySelector('.failed-box pre') && !document.querySelector('#freezes').hidden",
    },
    View {
        name: "warden, one image on one machine",
        stage: fleet_warden,
        query: "",
        deed: |_, browser| click_all(browser, "#map-rows > tr:nth-child(2) > td:nth-child(3)"),
        ready: MAP,
        seen: "document.querySelector('#cell').open && document.querySelector('#cell pre')",
    },
    View {
        name: "warden, freeze dialog with a fault",
        stage: fleet_warden,
        query: "",
        deed: |_, browser| click_all(browser, "#freeze, #freeze-yes"),
        ready: MAP,
        seen: "!document.querySelector('#freeze-fault').hidden",
    },
    View {
        name: "warden without machines",
        stage: Stage::warden,
        query: "",
        deed: nothing,
        ready: "document.body.dataset.ready",
        seen: "document.querySelector('#no-machines').innerText.includes('No machines are configured')",
    },
    View {
        name: "warden, one machine's entries",
        stage: busy_warden,
        query: "?machine=lighthouse",
        deed: nothing,
        ready: WARDEN,
        seen: "!document.querySelector('#clear').hidden",
    },
    View {
        name: "warden, nothing matches",
        stage: busy_warden,
        query: "?text=nothing%20says%20so",
        deed: nothing,
        ready: WARDEN,
        seen: "document.querySelector('#no-events').innerText.includes('No event matches')",
    },
    View {
        name: "warden, stale",
        stage: busy_warden,
        query: "",
        deed: pass_a_minute,
        ready: "document.body.dataset.link === 'live'",
        seen: STALE,
    },
    View {
        name: "login",
        stage: Stage::login,
        query: "",
        deed: nothing,
        ready: "document.activeElement.id === 'token'",
        seen: "document.querySelector('#refused').hidden",
    },
    View {
        name: "login, token refused",
        stage: Stage::login_refused,
        query: "?token=wrong",
        deed: nothing,
        ready: "document.activeElement.id === 'token'",
        seen: "!document.querySelector('#refused').hidden",
    },
];

/// What is wrong with the views, one line each.
fn faults_of(views: &[View]) -> Vec<String> {
    let axe = axe();
    let browser = Browser::start();
    // Some programs refuse or are away on purpose.
    browser.bear(&["net::ERR_", "status of 404", "status of 503"]);
    let mut faults = Vec::new();
    for View { name, stage, query, deed, ready, seen } in views {
        let stage = stage();
        browser.size(1440, 1000);
        browser.open(&format!("{}{query}", stage.url()));
        browser.wait(&format!("{name} to be ready"), ready);
        deed(&stage, &browser);
        browser.wait(name, seen);
        for scheme in ["light", "dark"] {
            browser.prefers(scheme, true);
            for width in [1440, 768, 390, 320] {
                browser.size(width, 900);
                let wide = browser.value("document.documentElement.scrollWidth");
                if wide.as_u64() > Some(width.into()) {
                    faults.push(format!("{name}, {scheme}, {width}: {wide} pixels wide"));
                }
                // Its rules know of colours and roles, which change between desk and phone at most.
                let axe = axe.as_ref().filter(|_| matches!(width, 1440 | 390));
                let found = axe.map(|axe| browser.accessibility_faults(axe)).unwrap_or_default();
                faults.extend(found.iter().map(|fault| format!("{name}, {scheme}, {width}: {fault}")));
            }
        }
        assert_eq!(browser.value(&format!("Boolean({seen})")), true, "{name} was looked at to the end");
    }
    faults
}

#[test]
fn every_view_of_the_agent_is_for_everyone_and_fits_every_width() {
    assert_eq!(faults_of(AGENT_VIEWS), [] as [String; 0]);
}

#[test]
fn every_view_of_the_warden_is_for_everyone_and_fits_every_width() {
    assert_eq!(faults_of(WARDEN_VIEWS), [] as [String; 0]);
}

#[test]
fn a_browser_that_saw_something_unsound_fails_its_test() {
    let stage = busy_agent();
    let other = busy_agent();
    for (name, deed, said) in [
        ("error", "console.error('a fault of the page');".to_owned(), "a fault of the page"),
        ("policy", format!("fetch('{}').catch(() => {{}});", other.url()), "Content Security Policy"),
        ("elsewhere", format!("location = '{}';", other.url()), "asked elsewhere"),
    ] {
        let failed = catch_unwind(AssertUnwindSafe(|| {
            let browser = Browser::start();
            browser.open(&stage.url());
            browser.wait("the page", AGENT);
            browser.run(&deed);
            browser.wait("the page, again", AGENT);
        }));
        let told = failed.expect_err(name);
        let told = told.downcast_ref::<String>().expect("a message");
        assert!(told.contains(said), "{name}: {told}");
    }
}
