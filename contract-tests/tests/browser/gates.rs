//! An update that is held by a gate: the row says why, and an operator approves it.

use contract_tests::{Browser, StubServer};
use serde_json::json;

use crate::scene::agent::{NEW, service, with};
use crate::scene::{ago, ahead};

#[test]
fn a_waiting_update_shows_its_reason_and_can_be_approved() {
    let stub = StubServer::agent();
    let waiting = |gate: &str, more: &serde_json::Value| {
        let waiting = json!({
            "image": "shop:latest", "digest": NEW, "gate": gate, "why": "nobody has approved it yet",
            "clear": "POST /approve/shop",
        });
        with(service("shop", "ok"), &json!({ "waiting": with(waiting, more) }))
    };
    let show = |record: serde_json::Value| {
        stub.status(&json!({ "uptime_seconds": 5, "services": [record] }));
    };
    show(waiting("approval", &json!({})));
    stub.answer(
        "POST /approve/shop",
        200,
        &json!({ "status": "approved", "service": "shop", "digest": NEW }),
    );
    stub.answer(
        "GET /why/shop",
        200,
        &json!({ "service": "shop", "answer": "nobody has approved it yet", "gates": [
            { "gate": "config", "holds": false, "why": "auto_update is on" },
            { "gate": "approval", "holds": true, "why": "nobody has approved it yet", "clear": "POST /approve/shop" },
        ] }),
    );
    let browser = Browser::start();
    browser.open(&stub.url());
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
    assert_eq!(stub.requests().iter().filter(|asked| *asked == "POST /approve/shop").count(), 1);

    // Differences of the new image are named, but not twice.
    let differs = "declares VOLUME /data, the running image none";
    let why = format!("the new image {differs}");
    show(waiting(
        "breaking",
        &json!({ "why": why, "differences": [differs, "runs as user 999, the running image as root"] }),
    ));
    let list =
        "[...document.querySelectorAll('#rows .is-waiting .differences li')].map((line) => line.textContent)";
    browser.wait("the differences", &format!("{list}.length === 1"));
    assert_eq!(browser.value(list), json!(["The new image runs as user 999, the running image as root."]));
    assert_eq!(browser.value(&format!("document.querySelector('{approve}').hidden")), false);

    // A gate that only lifts with time has a countdown and no approval.
    show(waiting(
        "min_age",
        &json!({ "why": "it is too young", "lifts_at": ahead(3600), "clear": "POST /trigger/shop" }),
    ));
    browser.wait(
        "the other gate",
        "document.querySelector('#rows .is-waiting').textContent.includes('it is too young')",
    );
    assert_eq!(browser.value(&format!("document.querySelector('{approve}').hidden")), true);
    assert!(browser.text("#rows .is-waiting").contains("lifts"));
    // A trigger passes it, and so asks first.
    browser.click("#rows .actions .button:nth-child(1)");
    browser.wait("the dialog", "document.querySelector('dialog').open");
    assert!(browser.text("#dialog-text").contains("gate min_age"));
    browser.click("#dialog-no");
    browser.wait("the dialog to close", "!document.querySelector('dialog').open");
    assert!(!stub.requests().contains(&"POST /trigger/shop".to_owned()));
    show(service("shop", "ok"));
    browser.wait("the note to disappear", "document.querySelector('#rows .is-waiting').hidden");
}

#[test]
fn a_trigger_asks_also_if_it_does_not_pass_the_gate_that_is_shown() {
    let stub = StubServer::agent();
    let waiting = json!({ "image": "shop:latest", "digest": NEW, "gate": "command", "why": "a game is on", "clear": "wait" });
    let record = with(service("shop", "ok"), &json!({ "waiting": waiting }));
    stub.status(&json!({ "uptime_seconds": 5, "services": [record] }));
    stub.answer("POST /trigger/shop", 200, &json!({ "status": "triggered", "scope": "shop" }));
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the row", "document.querySelector('#rows .is-waiting:not([hidden])') !== null");
    let asked = || {
        let mut asked: Vec<String> = stub.received().into_iter().map(|(request, _)| request).collect();
        asked.retain(|request| request.starts_with("POST /trigger/"));
        asked
    };
    let trigger = "#rows .actions .button:nth-child(1)";
    let is_open = "document.querySelector('dialog').open";
    browser.click(trigger);
    browser.wait("the dialog", is_open);
    let text = browser.text("#dialog-text");
    assert!(text.contains("stays held back (gate command), which a trigger does not pass"), "{text}");
    assert!(text.contains("it is the approval"), "{text}");
    browser.click("#dialog-no");
    browser.wait("the dialog to close", &format!("!{is_open}"));
    assert_eq!(asked(), Vec::<String>::new());
    // The command is asked again, and nothing is approved.
    browser.click(trigger);
    browser.click("#dialog-other");
    browser.wait_notice("A check of shop has started.");
    assert_eq!(asked(), ["POST /trigger/shop?pass=false"]);
    browser.click(trigger);
    browser.click("#dialog-yes");
    browser.wait_notice("A check of shop has started.");
    assert_eq!(asked(), ["POST /trigger/shop?pass=false", "POST /trigger/shop"]);
    // The dialogs of other buttons offer no other deed.
    browser.click("#rows .actions .button:nth-child(2)");
    browser.wait("the dialog", is_open);
    assert_eq!(browser.value("document.querySelector('#dialog-other').hidden"), true);
}

#[test]
fn an_update_that_another_service_of_the_project_holds_is_approved_there() {
    let stub = StubServer::agent();
    let waiting = json!({
        "image": "shop:latest", "digest": NEW, "gate": "project", "clear": "POST /approve/shop-api",
        "why": "shop-api holds it: nobody has approved it yet",
    });
    let record = with(service("shop", "ok"), &json!({ "waiting": waiting }));
    stub.status(&json!({ "uptime_seconds": 5, "services": [record] }));
    let approved = json!({ "status": "approved", "service": "shop-api", "digest": NEW });
    stub.answer("POST /approve/shop-api", 200, &approved);
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the row", "document.querySelector('#rows .is-waiting:not([hidden])') !== null");
    browser.click("#rows .actions .button:nth-child(4)");
    assert_eq!(browser.text("#dialog-title"), "Approve the update of shop-api?");
    browser.click("#dialog-yes");
    browser.wait_notice("The update of shop-api is approved.");
    let mut asked = stub.requests();
    asked.retain(|request| request.starts_with("POST /approve/"));
    assert_eq!(asked, ["POST /approve/shop-api"]);
}

#[test]
fn the_row_shows_a_newer_tag_a_rollback_at_risk_and_a_failure_elsewhere() {
    let stub = StubServer::agent();
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
    stub.status(&json!({ "uptime_seconds": 5, "services": [record] }));
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the row", "document.querySelector('#rows .is-waiting:not([hidden])') !== null");
    assert!(browser.text("#rows .is-waiting").contains("It failed on lighthouse"));
    browser.click("#rows .is-waiting summary");
    assert!(browser.text("#rows .is-waiting pre").contains("no such column: price"));
    let note = browser.text("#rows .note:not(.is-waiting)");
    assert!(note.contains("A rollback would fail now: the image is neither on this machine"), "{note}");
    assert_eq!(browser.text("#rows .fold:nth-child(2)"), "Images 1, newer tag");
    browser.click("#rows .fold:nth-child(2)");
    assert!(browser.text("#rows .images").contains("There is a newer tag: 1.28.3"));
    // Once it is over, nothing is left on the row.
    stub.status(&json!({ "uptime_seconds": 6, "services": [service("shop", "ok")] }));
    browser.wait(
        "the notes to disappear",
        "document.querySelector('#rows .is-waiting').hidden && document.querySelector('#rows .note').hidden",
    );
    assert_eq!(browser.text("#rows .fold:nth-child(2)"), "Images 1");
}

#[test]
fn a_service_that_is_down_and_a_rollback_that_failed_are_told() {
    let stub = StubServer::agent();
    let show = |status: &str, more: &serde_json::Value| {
        stub.status(&json!({ "uptime_seconds": 5, "services": [with(service("shop", status), more)] }));
    };
    let failed = |rolled_back: bool, by_hand: bool| {
        json!({ "at": ago(60), "image": "shop:latest", "reason": "container shop-1 exited with code 3",
            "rolled_back": rolled_back, "by_hand": by_hand })
    };
    let blocked = |healthy: bool, failed: serde_json::Value| json!({ "blocked": NEW, "healthy": healthy, "failed_update": failed, "unhealthy_reason": "shop-1 is unhealthy" });
    show("blocked", &blocked(false, failed(false, false)));
    let browser = Browser::start();
    browser.open(&stub.url());
    let note = "document.querySelector('#rows .note:not(.is-waiting)')?.textContent";
    let wait = |part: &str| browser.wait(part, &format!("{note}?.includes({})", json!(part)));
    wait("The rollback failed, and nothing more is tried: container shop-1 exited with code 3");
    wait("The service is down. shop-1 is unhealthy.");
    show("blocked", &blocked(true, failed(true, false)));
    wait("Blocked after a rollback: container shop-1 exited with code 3");
    assert!(!browser.text("#rows .note:not(.is-waiting)").contains("down"));
    show("blocked", &blocked(true, failed(true, true)));
    wait("Blocked: an earlier image was put back by hand.");
    let mut other = failed(true, true);
    other["digest"] = json!(NEW.replace('b', "c"));
    show("blocked", &blocked(true, other));
    wait("Blocked: it failed here before.");
    for (status, more) in
        [("errored", json!({ "errored": "401" })), ("not_found", json!({ "not_found": NEW }))]
    {
        show(status, &with(more, &json!({ "healthy": false, "unhealthy_reason": "shop-1 is unhealthy" })));
        wait("The service is down. shop-1 is unhealthy.");
        show("ok", &json!({}));
        browser
            .wait("the note to disappear", "document.querySelector('#rows .note:not(.is-waiting)').hidden");
    }
}

#[test]
fn a_redeployment_names_the_images_that_are_not_updated() {
    let stub = StubServer::agent();
    stub.status(&json!({ "uptime_seconds": 5, "services": [service("shop", "ok")] }));
    let browser = Browser::start();
    browser.open(&stub.url());
    let redeploy = "#rows .actions .button:nth-child(2)";
    browser.wait("the button", &format!("document.querySelector('{redeploy}') !== null"));
    let kept = |image: &str, gate: &str| json!({ "image": image, "digest": NEW, "gate": gate, "why": "…" });
    stub.answer(
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
        "The redeployment of shop has started. shop:latest keeps what it runs (blocked). \
         <b>db</b>:1 keeps what it runs (signature).",
    );
    assert_eq!(stub.requests().iter().filter(|asked| *asked == "POST /redeploy/shop").count(), 1);
}

#[test]
fn the_question_before_a_redeployment_says_whether_it_deploys_what_is_held_back() {
    let stub = StubServer::agent();
    stub.status(&json!({ "uptime_seconds": 5, "services": [] }));
    let browser = Browser::start();
    browser.open(&stub.url());
    let question = |gate: &str| {
        let why = format!("held by {gate}");
        let waiting =
            json!({ "image": "shop:latest", "digest": NEW, "gate": gate, "why": why, "clear": "…" });
        let record = with(service("shop", "ok"), &json!({ "waiting": waiting }));
        stub.status(&json!({ "uptime_seconds": 5, "services": [record] }));
        let shown = format!("document.querySelector('#rows .is-waiting')?.textContent.includes('{why}')");
        browser.wait("the gate", &shown);
        browser.click("#rows .actions .button:nth-child(2)");
        browser.wait("the dialog", "document.querySelector('dialog').open");
        let text = browser.text("#dialog-text");
        browser.click("#dialog-no");
        browser.wait("the dialog to close", "!document.querySelector('dialog').open");
        text
    };
    let text = question("approval");
    assert!(text.contains("all containers of the project are recreated"), "{text}");
    assert!(text.contains("deploys the update that is held back (gate approval)"), "{text}");
    let text = question("blocked");
    assert!(text.contains("The update of shop:latest stays held back (gate blocked)"), "{text}");
    assert!(text.contains("others that are held back may be deployed"), "{text}");
}

#[test]
fn a_service_that_the_configuration_leaves_out_has_a_row_with_the_reason() {
    let stub = StubServer::agent();
    let left_out = json!([{ "name": "blog", "reason": "compose_files[0]: \"/x\" does not exist" }]);
    stub.status(&json!({ "uptime_seconds": 5, "left_out": left_out, "services": [service("shop", "ok")] }));
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("both rows", "document.querySelectorAll('#rows > tr').length === 2");
    assert!(browser.text("#rows > tr:nth-child(2) .badge").ends_with("not watched"));
    assert!(browser.text("#rows > tr:nth-child(2) .note").contains("\"/x\" does not exist"));
    assert!(browser.text("#summary").contains("1 need"), "{}", browser.text("#summary"));
    let shown = |nth: usize| {
        let buttons = format!("document.querySelectorAll('#rows > tr:nth-child({nth}) .actions .button')");
        browser.value(&format!("[...{buttons}].filter((button) => !button.hidden).length"))
    };
    assert_eq!((shown(1), shown(2)), (json!(2), json!(0)), "the agent refuses each request for it");
    stub.status(&json!({ "uptime_seconds": 6, "services": [service("shop", "ok"), service("blog", "ok")] }));
    browser.wait(
        "the corrected row",
        "document.querySelectorAll('#rows > tr .badge')[1].textContent.endsWith('ok')",
    );
}

#[test]
fn the_history_lists_what_was_proven_and_an_operator_goes_back() {
    let stub = StubServer::agent();
    let mut shop = service("shop", "ok");
    shop["snapshots"] = json!([
        {"id": "one", "at": ago(60), "of": ["db_<i>data</i>"], "mib": 312, "image": "shop:latest", "kind": "copy",
         "places": [{"of": "db_<i>data</i>", "path": "/copies/one", "volume": "shop_db_data-one"}]},
        {"id": "two", "at": ago(7200), "of": ["/srv/up"], "mib": 1, "image": "shop:latest", "kind": "set_aside",
         "places": [{"of": "/srv/up", "path": "/srv/.up-two"}], "dump": "/state/two"},
    ]);
    stub.status(&json!({ "uptime_seconds": 5, "services": [shop] }));
    let proven = |digest: &str, version: &str, left: bool| {
        let mut record = json!({
            "image": "shop:latest", "digest": digest, "id": "sha256:id", "proven_at": ago(3600), "on_disk": left,
            "version": version, "runs": !left,
        });
        if left {
            record["left_at"] = json!(ago(60));
            record["snapshot"] = json!("one");
        }
        record
    };
    let old = NEW.replace('b', "c");
    let replaced = with(proven(&NEW.replace('b', "d"), "1.8", false), &json!({ "runs": false }));
    let list = json!([proven(NEW, "2.0", false), proven(&old, "<b>1.9</b>", true), replaced]);
    stub.answer("GET /history/shop", 200, &list);
    let reply = json!({ "status": "rolling_back", "service": "shop", "to": old });
    stub.answer("POST /rollback/shop", 200, &reply);
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the row", "document.querySelector('#rows .fold:nth-child(5)') !== null");
    browser.click("#rows .fold:nth-child(5)");
    browser.wait("the images", "document.querySelectorAll('#rows .history > li').length === 3");
    let text = browser.text("#rows .history");
    assert!(text.contains("<b>1.9</b>") && text.contains("not on this machine's disk"), "{text}");
    let hidden = "[...document.querySelectorAll('#rows .history .button')].map((button) => button.hidden)";
    let expected = json!([true, true, false, false, false, true]);
    assert_eq!(browser.value(hidden), expected, "what runs is no way back");
    let kept = browser.text("#rows .snapshots");
    for part in
        ["db_<i>data</i>", "312 MiB", "copied before the update to shop:latest", "/srv/.up-two, /state/two"]
    {
        assert!(kept.contains(part), "{part}: {kept}");
    }
    browser.click("#rows .history > li:nth-child(2) .button");
    let text = browser.text("#dialog-text");
    assert!(text.contains(&old) && text.contains("The data stays as it is; there is a snapshot"), "{text}");
    browser.click("#dialog-no");
    browser.click("#rows .history > li:nth-child(2) .button:nth-of-type(2)");
    let text = browser.text("#dialog-text");
    assert!(text.contains("312 MiB: db_<i>data</i>) again. The data of now is set aside and kept"), "{text}");
    browser.click("#dialog-yes");
    browser.wait("the answer", "document.querySelector('#toasts').textContent.includes('goes back')");
    assert_eq!(stub.requests().iter().filter(|asked| *asked == "POST /rollback/shop").count(), 1);
}

#[test]
fn the_history_offers_the_data_of_a_snapshot_that_was_made_while_it_was_asked_for() {
    let stub = StubServer::agent();
    stub.status(&json!({ "uptime_seconds": 5, "services": [service("shop", "ok")] }));
    let left = json!({
        "image": "shop:latest", "digest": NEW, "id": "sha256:id", "proven_at": ago(3600), "left_at": ago(60),
        "on_disk": true, "runs": false, "snapshot": "one",
    });
    stub.answer("GET /history/shop", 200, &json!([left]));
    let browser = Browser::start();
    browser.open(&stub.url());
    browser.wait("the row", "document.querySelector('#rows .fold:nth-child(5)') !== null");
    browser.run(
        "const [real, held] = [window.fetch, new Promise((done) => { window.answer = done; })];
         window.fetch = async (...request) => { if (String(request[0]).includes('/history/')) await held; return real(...request); };",
    );
    browser.click("#rows .fold:nth-child(5)");
    let mut shop = service("shop", "ok");
    shop["snapshots"] = json!([
        {"id": "one", "at": ago(60), "of": ["db_data"], "mib": 312, "image": "shop:latest", "kind": "copy",
         "places": [{"of": "db_data", "path": "/copies/one", "volume": "shop_db_data-one"}]},
    ]);
    stub.status(&json!({ "uptime_seconds": 6, "services": [shop] }));
    browser.wait("the snapshot", "document.querySelectorAll('#rows .snapshots > li').length === 1");
    browser.run("window.answer();");
    browser.wait(
        "the way back with the data",
        "document.querySelectorAll('#rows .history > li .button')[1]?.hidden === false",
    );
}
