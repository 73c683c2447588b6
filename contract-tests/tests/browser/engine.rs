//! The agent's dashboard with the real agent on the real engine: actions, and a crash of the agent.

use std::time::Duration;

use contract_tests::{Agent, Browser, Image, Kill, Pushed, Swarm, World, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::{Value, json};

const TRIGGER: &str = "#rows .actions .button:nth-child(1)";
const REDEPLOY: &str = "#rows .actions .button:nth-child(2)";
const UNBLOCK: &str = "#rows .actions .button:nth-child(3)";
const CAN_UNBLOCK: &str = "!document.querySelector('#rows .actions .button:nth-child(3)').hidden";
const IS_OPEN: &str = "document.querySelector('dialog').open";

/// Waits until the row's badge ends with this word.
#[track_caller]
fn wait_badge(browser: &Browser, word: &str) {
    let sees = format!("document.querySelector('#rows .badge')?.innerText.endsWith({})", json!(word));
    browser.wait(&format!("status {word}"), &sees);
}

/// Waits until the list contains this many events of a kind.
#[track_caller]
fn wait_events(browser: &Browser, kind: &str, count: usize) {
    let sees = format!(
        "[...document.querySelectorAll('#events > tr > td:nth-child(3)')].filter((c) => c.textContent === {}).length === {count}",
        json!(kind)
    );
    browser.wait(&format!("{count} events {kind}"), &sees);
}

#[test]
fn every_button_has_its_effect_on_the_engine() {
    let (world, _) = World::with_web_of("clicks", &Image::good("v1"), &[]);
    let agent = world.agent();
    let browser = Browser::start();
    let origin = format!("http://{}", agent.address());
    browser.open(&format!("{origin}/ui"));
    wait_badge(&browser, "ok");
    assert_eq!(browser.value(CAN_UNBLOCK), false);
    browser.run("window.sameLoad = true;");

    triggered(&world, &agent, &browser);
    redeployed(&world, &agent, &browser);
    let bad = blocked(&world, &agent, &browser);
    unblocked(&world, &agent, &browser, &bad);

    assert_eq!(
        browser.value("window.sameLoad && !document.querySelector('[aria-busy], [aria-disabled]')"),
        true
    );
    let asked = browser.requests();
    for path in ["/ui", "/ui/stream", "/health", "/trigger", "/trigger/web", "/redeploy/web", "/unblock/web"]
    {
        assert!(asked.contains(&format!("{origin}{path}")), "{path} is not in {asked:?}");
    }
}

/// Trigger: a new image is deployed, and the page follows the deployment without a reload.
fn triggered(world: &World, agent: &Agent, browser: &Browser) {
    let v2 = world.push("web", &Image::good("v2"));
    browser.click(TRIGGER);
    browser.wait_notice("A check of web has started.");
    browser.wait("the deployment's progress",
        "!document.querySelector('#rows .deploy').hidden && document.querySelector('#rows .deploy').innerText",
    );
    wait_events(browser, "updated", 1);
    wait_badge(browser, "ok");
    agent.wait_done(1);
    world.assert_runs("web", "v2");
    browser.wait("the count", "document.querySelector('#rows .tally dd').textContent === '1'");
    browser.click("#rows .fold:nth-child(2)");
    browser.wait(
        "the new digest",
        &format!("document.querySelector('#rows .images code[title=\"{}\"]')", v2.digest),
    );
}

/// Redeploy: asks first. Cancelling changes nothing, confirming replaces the container.
fn redeployed(world: &World, agent: &Agent, browser: &Browser) {
    let before = world.assert_runs("web", "v2");
    browser.click(REDEPLOY);
    browser.wait("the dialog", IS_OPEN);
    assert!(browser.text("dialog").contains("Redeploy web?"));
    browser.click("#dialog-no");
    browser.wait("the dialog to close", &format!("!{IS_OPEN}"));
    assert_eq!(agent.entries(&Kind::FORCE_REDEPLOY), []);
    assert_eq!(world.assert_runs("web", "v2").id, before.id);
    browser.click(REDEPLOY);
    browser.click("#dialog-yes");
    browser.wait_notice("The redeployment of web has started.");
    wait_events(browser, "force redeploy", 1);
    wait_badge(browser, "ok");
    let after = world.assert_runs("web", "v2");
    assert_ne!(after.id, before.id, "the container was replaced");
}

/// Check all finds a bad image: it is rolled back and blocked, and only now can be unblocked.
fn blocked(world: &World, agent: &Agent, browser: &Browser) -> Pushed {
    assert_eq!(browser.value(CAN_UNBLOCK), false);
    let v3 = world.push("web", &Image::exits("v3", 0));
    browser.click("#check-all");
    browser.wait_notice("A check of all services has started.");
    wait_events(browser, "rolled back", 1);
    wait_badge(browser, "blocked");
    browser.wait("the reason", "document.querySelector('#rows .note').innerText.includes('code 7')");
    assert!(browser.text("#rows .note").contains(&v3.digest));
    assert_eq!(browser.value(CAN_UNBLOCK), true);
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&v3.digest));
    world.assert_runs("web", "v2");
    v3
}

/// Unblock: the block is removed, and the next check tries that digest again.
fn unblocked(world: &World, agent: &Agent, browser: &Browser, bad: &Pushed) {
    // The automatic check after a deployment must have finished; otherwise it would be the next check.
    agent.wait_done(3);
    let ended = agent.entries(&Kind::ROLLED_BACK)[0].timestamp;
    wait_for("the check after the deployment", || {
        let service = agent.service("web");
        if service.last_check > Some(ended) { Ok(()) } else { Err(format!("{service:#?}")) }
    });
    browser.click(UNBLOCK);
    browser.click("#dialog-yes");
    browser.wait_notice("web is no longer blocked.");
    browser.wait("no button", &format!("!({CAN_UNBLOCK})"));
    wait_badge(browser, "ok");
    assert_eq!(agent.blocked().len(), 0);
    browser.click(TRIGGER);
    wait_events(browser, "rolled back", 2);
    wait_badge(browser, "blocked");
    browser.wait("the button again", CAN_UNBLOCK);
    assert_eq!(agent.blocked().get("web/web:latest"), Some(&bad.digest));
    world.assert_runs("web", "v2");
}

/// The page's list of events, newest first, to compare with the agent's own.
const LISTED: &str = "[...document.querySelectorAll('#events > tr')].map((r) => [r.querySelector('time').getAttribute('datetime'),
    r.children[1].textContent, r.children[2].textContent])";

#[test]
fn a_page_survives_a_killed_agent_and_misses_no_entry_of_its_deployment() {
    let (world, _) = World::with_web_of("reborn", &Image::good("v1"), &[]);
    let mut agent = world.agent();
    let browser = Browser::start();
    // Requests fail while the agent is down.
    browser.allow_console_errors(&["net::ERR_"]);
    browser.open(&format!("http://{}/ui", agent.address()));
    wait_badge(&browser, "ok");
    browser.wait("live", "document.body.dataset.link === 'live'");
    browser.run("window.sameLoad = true;");
    browser.click("#rows .fold:nth-child(1)");

    world.push("web", &Image::good("v2"));
    let step = Some("probation".to_owned());
    agent.kill_at(Kill { step, after: Duration::ZERO, compose_too: true });
    browser.click(TRIGGER);
    agent.wait_end();
    browser.wait("the loss", "document.body.dataset.link === 'reconnecting'");
    assert!(browser.text("#link").contains("Reconnecting"));
    browser.click(TRIGGER);
    browser.wait_notice("No connection. Is the program running?");

    // Advance the clock beyond the longest silence of a healthy program.
    browser.run(
        "const now = Date.now; Date.now = () => now() + 60000; window.back = () => { Date.now = now; };",
    );
    browser
        .wait("the connection state", "document.querySelector('#link').innerText.startsWith('Stale since')");
    browser.run("window.back();");

    agent.restart_in_place();
    browser.wait("live again", "document.body.dataset.link === 'live'");
    wait_events(&browser, "resumed", 1);
    wait_events(&browser, "updated", 1);
    wait_badge(&browser, "ok");
    world.assert_runs("web", "v2");
    browser.wait("the container", "document.querySelector('.containers .untrusted')?.innerText");
    assert_eq!(browser.value("window.sameLoad"), true);

    // Neither gaps nor duplicates: the page lists the entries of the file.
    wait_for("the page to list what the agent has written", || {
        let written: Vec<Value> = agent
            .audit()
            .into_iter()
            .rev()
            .map(|entry| {
                let kind = entry.event.to_string().replace('_', " ");
                json!([entry.timestamp.to_string(), entry.service, kind])
            })
            .collect();
        let listed = browser.value(LISTED);
        if listed == Value::Array(written.clone()) {
            Ok(())
        } else {
            Err(format!("{listed:#?}, but {written:#?}"))
        }
    });
}

#[test]
fn the_page_shows_the_tasks_of_a_swarm_service_and_follows_its_update() {
    let swarm = Swarm::start();
    swarm.push(&Image::good("v1"));
    swarm.create(&["--replicas", "2"]);
    let agent = swarm.agent(swarm.entry());
    let browser = Browser::start();
    browser.open(&format!("http://{}/ui", agent.address()));
    wait_badge(&browser, "ok");
    browser.click("#rows .fold:nth-child(1)");
    for task in ["shop_web.1", "shop_web.2"] {
        browser.wait(task, &format!("document.querySelector('#rows').innerText.includes({})", json!(task)));
    }
    let v2 = swarm.push(&Image::good("v2"));
    browser.click(TRIGGER);
    browser.wait_notice("A check of web has started.");
    browser.wait("the update's progress", "!document.querySelector('#rows .deploy').hidden");
    wait_events(&browser, "updated", 1);
    wait_badge(&browser, "ok");
    swarm.assert_runs(&v2, 2);
}
