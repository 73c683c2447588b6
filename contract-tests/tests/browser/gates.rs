//! An update that is held back: the row says why, and a person approves what it shows.

use contract_tests::{Browser, Stage};
use serde_json::json;

use crate::scene::agent::{NEW, service, with};
use crate::scene::ahead;

#[test]
fn an_update_that_waits_says_why_and_is_approved_from_its_row() {
    let stage = Stage::agent();
    let waiting = |gate: &str, more: &serde_json::Value| {
        let waiting = json!({
            "image": "shop:latest", "digest": NEW, "gate": gate, "why": "nobody has approved it yet",
            "clear": "POST /approve/shop",
        });
        with(service("shop", "ok"), &json!({ "waiting": with(waiting, more) }))
    };
    let show = |record: serde_json::Value| {
        stage.status(&json!({ "uptime_seconds": 5, "services": [record] }));
    };
    show(waiting("approval", &json!({})));
    stage.answer(
        "POST /approve/shop",
        200,
        &json!({ "status": "approved", "service": "shop", "digest": NEW }),
    );
    stage.answer(
        "GET /why/shop",
        200,
        &json!({ "service": "shop", "answer": "nobody has approved it yet", "gates": [
            { "gate": "config", "holds": false, "why": "auto_update is on" },
            { "gate": "approval", "holds": true, "why": "nobody has approved it yet", "clear": "POST /approve/shop" },
        ] }),
    );
    let browser = Browser::start();
    browser.open(&stage.url());
    browser.wait("the row", "document.querySelector('#rows .is-waiting:not([hidden])') !== null");
    assert!(browser.text("#rows .is-waiting").contains("nobody has approved it yet."));
    browser.click("#rows .fold:nth-child(4)");
    browser.wait("the gates", "document.querySelectorAll('#rows .gates > li').length === 2");
    assert!(browser.text("#rows .gates").contains("POST /approve/shop"));
    let approve = "#rows .actions .button:nth-child(4)";
    browser.click(approve);
    assert!(browser.text("#dialog-text").contains(NEW));
    browser.click("#dialog-yes");
    browser.wait("the answer", "document.querySelector('#toasts').textContent.includes('is approved')");
    assert_eq!(stage.asked().iter().filter(|asked| *asked == "POST /approve/shop").count(), 1);

    // What time alone lifts has a countdown and nothing to approve.
    show(waiting("min_age", &json!({ "why": "it is too young", "lifts_at": ahead(3600) })));
    browser.wait(
        "the other gate",
        "document.querySelector('#rows .is-waiting').textContent.includes('it is too young')",
    );
    assert_eq!(browser.value(&format!("document.querySelector('{approve}').hidden")), true);
    assert!(browser.text("#rows .is-waiting").contains("lifts"));
    show(service("shop", "ok"));
    browser.wait("its end", "document.querySelector('#rows .is-waiting').hidden");
}

#[test]
fn a_newer_tag_a_way_back_at_risk_and_a_failure_elsewhere_are_on_the_row() {
    let stage = Stage::agent();
    let mut record = with(
        service("shop", "ok"),
        &json!({
            "way_back": "at_risk", "way_back_reason": "the image is neither on this machine nor in the registry",
            "blocked_by": "lighthouse",
            "waiting": { "image": "shop:latest", "digest": NEW, "gate": "immunity", "clear": "POST /unblock at the warden",
                "why": "the digest failed on lighthouse", "output": "shop-1 | no such column: price" },
        }),
    );
    record["images"][0]["newer"] = json!("1.28.3");
    stage.status(&json!({ "uptime_seconds": 5, "services": [record] }));
    let browser = Browser::start();
    browser.open(&stage.url());
    browser.wait("the row", "document.querySelector('#rows .is-waiting:not([hidden])') !== null");
    assert!(browser.text("#rows .is-waiting").contains("It failed on lighthouse"));
    browser.click("#rows .is-waiting summary");
    assert!(browser.text("#rows .is-waiting pre").contains("no such column: price"));
    let note = browser.text("#rows .note:not(.is-waiting)");
    assert!(note.contains("A rollback would fail now: the image is neither on this machine"), "{note}");
    assert_eq!(browser.text("#rows .fold:nth-child(2)"), "Images 1, newer tag");
    browser.click("#rows .fold:nth-child(2)");
    assert!(browser.text("#rows .images").contains("There is a newer tag: 1.28.3"));
    // What is over leaves nothing behind.
    stage.status(&json!({ "uptime_seconds": 6, "services": [service("shop", "ok")] }));
    browser.wait(
        "its end",
        "document.querySelector('#rows .is-waiting').hidden && document.querySelector('#rows .note').hidden",
    );
    assert_eq!(browser.text("#rows .fold:nth-child(2)"), "Images 1");
}

#[test]
fn a_redeployment_names_the_images_that_keep_what_they_run() {
    let stage = Stage::agent();
    stage.status(&json!({ "uptime_seconds": 5, "services": [service("shop", "ok")] }));
    let browser = Browser::start();
    browser.open(&stage.url());
    let redeploy = "#rows .actions .button:nth-child(2)";
    browser.wait("the button", &format!("document.querySelector('{redeploy}') !== null"));
    let kept = |image: &str, gate: &str| json!({ "image": image, "digest": NEW, "gate": gate, "why": "…" });
    stage.answer(
        "POST /redeploy/shop",
        200,
        &json!({
            "status": "redeploying", "service": "shop",
            "kept": [kept("shop:latest", "blocked"), kept("<b>db</b>:1", "signature")],
        }),
    );
    browser.click(redeploy);
    browser.click("#dialog-yes");
    browser.wait_notice(
        "The redeployment of shop has begun. shop:latest keeps what it runs (blocked). \
         <b>db</b>:1 keeps what it runs (signature).",
    );
    assert_eq!(stage.asked().iter().filter(|asked| *asked == "POST /redeploy/shop").count(), 1);
}
