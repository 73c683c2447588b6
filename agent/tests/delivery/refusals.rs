//! One message never silences a channel, and one recipient no other (DECISIONS 5).

use std::path::Path;

use evenkeel_common::testing::wait_for;
use evenkeel_common::wire::Kind;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::receiver::{Answer, Receiver};
use crate::smtp_stub::{At, SmtpStub};
use crate::{Agent, file_entries};

fn mail_to(stub: &SmtpStub, to: &str) -> Value {
    json!({ "push": { "machine_id": "nas" }, "notifications": { "smtp": {
        "host": "127.0.0.1", "port": stub.port, "from": "e@a.example", "to": to, "tls": "none",
    } } })
}

/// Waits until the agent says that it has set an entry aside, and returns the reason.
fn set_aside(folder: &Path) -> String {
    let find = || {
        let entries = file_entries(folder);
        let found = entries.iter().find(|entry| entry.event == Kind::NOT_DELIVERED).cloned();
        found.ok_or_else(|| format!("{entries:?}"))
    };
    let mut reason = String::new();
    wait_for("an entry was set aside", || {
        find().map(|entry| reason = format!("{}: {}", entry.message, entry.reason.unwrap_or_default()))
    });
    reason
}

#[test]
fn a_recipient_that_is_refused_keeps_the_mail_from_no_other() {
    let stub = SmtpStub::start(|at| match at {
        At::Recipient("dead@b.example") => {
            Some("550 5.1.1 <dead@b.example>: Recipient address rejected: User unknown")
        }
        At::Recipient("full@b.example") => Some("452 4.2.2 Mailbox full"),
        At::Recipient("gone@b.example") => Some("552 5.2.2 mailbox full"),
        _ => None,
    });
    let folder = TempDir::new().unwrap();
    let to = "dead@b.example, full@b.example, Good <good@b.example>, gone@b.example, fine@b.example";
    let agent = Agent::start(folder.path(), mail_to(&stub, to));
    let subjects = |address: &str| -> Vec<String> {
        let mails = stub.received();
        let own = mails.iter().filter(|mail| mail.to == [address]);
        let subject =
            own.flat_map(|mail| mail.text.lines().filter_map(|line| line.strip_prefix("Subject: ")));
        subject.map(str::to_owned).collect()
    };
    for address in ["good@b.example", "fine@b.example"] {
        wait_for("the others get all mails", || {
            let subjects = subjects(address);
            if subjects.len() >= 2 { Ok(()) } else { Err(format!("{subjects:?}")) }
        });
        assert_eq!(subjects(address)[0], "[info] started: evenkeel on nas");
    }
    let mails = stub.received();
    assert!(mails.iter().all(|mail| mail.to.len() == 1 && mail.text.contains("dead@b.example")), "{mails:?}");
    assert!(mails.iter().all(|mail| !mail.greeting.is_empty() && !mail.greeting.contains('_')), "{mails:?}");
    agent.end(Signal::KILL);
}

#[test]
fn a_mail_that_is_taken_for_spam_is_set_aside_and_the_next_ones_arrive() {
    let spam = |text: &str| text.contains("Subject: [info] started:");
    let stub = SmtpStub::start(move |at| match at {
        At::Mail(text) if spam(text) => Some("554 5.7.1 Spam message rejected"),
        _ => None,
    });
    let folder = TempDir::new().unwrap();
    let agent = Agent::start(folder.path(), mail_to(&stub, "x@b.example"));
    let said = set_aside(folder.path());
    assert!(said.contains("smtp/x@b.example does not accept the entry started of evenkeel"), "{said}");
    assert!(said.contains("554 5.7.1") || said.contains("Spam message rejected"), "{said}");
    wait_for("the entry about it is mailed, too", || {
        let mails = stub.received();
        let has = |text: &str| mails.iter().any(|mail| mail.text.contains(text));
        if has("not_delivered: evenkeel") && has("daemon_down") { Ok(()) } else { Err(format!("{mails:?}")) }
    });
    agent.end(Signal::KILL);
}

#[test]
fn a_body_that_a_firewall_refuses_is_set_aside_on_every_channel() {
    for channel in ["discord", "webhook", "push"] {
        let receiver = Receiver::start();
        receiver.refuse("\"started", Answer::status(403, "blocked by the firewall"));
        receiver.refuse("] started", Answer::status(403, "blocked by the firewall"));
        let url = receiver.url();
        let config = match channel {
            "discord" => json!({ "notifications": { "discord": { "webhook_url": url } } }),
            "webhook" => {
                json!({ "notifications": { "webhooks": [{ "name": "x", "url": url, "method": "POST" }] } })
            }
            _ => json!({ "push": { "warden_url": url, "token": "token", "machine_id": "m1" } }),
        };
        let folder = TempDir::new().unwrap();
        let agent = Agent::start(folder.path(), config);
        let said = set_aside(folder.path());
        assert!(said.contains("the entry started of evenkeel") && said.contains("403"), "{channel}: {said}");
        wait_for("the other entries arrive", || {
            let received = receiver.received();
            let bodies = received.iter().filter(|received| received.was_accepted);
            let bodies: Vec<_> =
                bodies.map(|received| String::from_utf8_lossy(received.body()).into_owned()).collect();
            let has = |text: &str| bodies.iter().any(|body| body.contains(text));
            if has("daemon_down") && has("not_delivered") { Ok(()) } else { Err(format!("{bodies:?}")) }
        });
        agent.end(Signal::KILL);
    }
}
