//! Each gate on its own, and the order of all gates.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use evenkeel_common::wire::FailedUpdate;
use jiff::Timestamp;

use super::*;
use crate::config::ServiceConfig;
use crate::model::image::Digest;
use crate::service::boot::{Boot, StartReason};
use crate::service::observation::{Observation, Unanswered};
use crate::service::rollout::plan::Cause;
use crate::service::state::StandingFault;
use crate::service::tests::{config, undisturbed};
use crate::service::{Durable, Service};

/// The change that a test case makes to a service that is up to date.
type Change = fn(&mut Service, &mut StatusContext);

fn report(change: Change) -> WhyReport {
    let (mut service, _) = Service::new(
        Arc::new(config()),
        Durable::default(),
        Boot::default(),
        StartReason::Start,
        Timestamp::UNIX_EPOCH,
    );
    service.checks.last = Some(Timestamp::UNIX_EPOCH);
    let mut context = StatusContext {
        next_poll: Some(Timestamp::from_second(90).unwrap()),
        ..undisturbed(Timestamp::from_second(60).unwrap())
    };
    change(&mut service, &mut context);
    why(&service, &context)
}

fn standing(text: &str) -> StandingFault {
    StandingFault { text: text.into(), from_check: false, since: Timestamp::UNIX_EPOCH }
}

#[test]
fn each_gate_alone_holds_and_gives_the_answer() {
    let cases: [(&str, &str, Change); 7] = [
        ("config", "auto_update is false", |service, _| {
            service.config = Arc::new(ServiceConfig { auto_update: false, ..config() });
        }),
        ("engine", "connection refused", |_, context| {
            context.engine_error = Some("connection refused".to_owned());
        }),
        ("registry", "no route", |service, _| {
            let unanswered = [("web".to_owned(), Unanswered::Failed("no route".into()))].into();
            service.known.observation = Some(Arc::new(Observation { unanswered, ..Observation::default() }));
        }),
        ("deploying", "another service of the project, api, is being changed", |service, _| {
            service.wanted = Some(Cause::Update);
            service.sibling_begins("api");
        }),
        ("blocked", "failed here", |service, _| {
            service.durable.images.of("web").blocked = Some(Digest::of(b"bad"));
        }),
        ("not_found", "has no registry digest", |service, _| {
            service.durable.images.of("web").not_found = Some(Digest::of(b"new"));
        }),
        ("fault", "compose up failed", |service, _| {
            service.durable.fault = Some(standing("compose up failed"));
        }),
    ];
    for (word, part, change) in cases {
        let report = report(change);
        assert!(report.answer.contains(part), "{word}: {report:#?}");
        let holding: Vec<&str> =
            report.gates.iter().filter(|gate| gate.holds).map(|gate| gate.gate.as_str()).collect();
        assert_eq!(holding, [word, SCHEDULE]);
    }
}

#[test]
fn every_gate_has_a_row_in_the_order_of_the_contract() {
    let report = report(|_, _| {});
    let words: Vec<&str> = report.gates.iter().map(|gate| gate.gate.as_str()).collect();
    let before = ["config", "engine", "registry", "deploying", "blocked", "not_found", "fault"];
    let of_fleet = ["definition", "freeze", "immunity", "ring"];
    let of_service =
        ["signature", "command", "approval", "breaking", "snapshot", "min_age", "window", "order", "project"];
    assert_eq!(words, [&before[..], &of_fleet, &of_service, &[SCHEDULE]].concat());
}

#[test]
fn a_service_about_to_be_updated_is_not_reported_as_up_to_date() {
    let report = report(|service, _| service.wanted = Some(Cause::Update));
    assert_eq!(report.answer, "an update was found, and begins now");
}

#[test]
fn the_manual_lists_all_gates_in_their_order() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/docs/command-line.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("\n## Gates\n").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: Vec<&str> = rows.filter_map(|row| row.split_once('`')).map(|(word, _)| word).collect();
    let report = report(|_, _| {});
    let gates: Vec<&str> = report.gates.iter().map(|gate| gate.gate.as_str()).collect();
    assert_eq!(listed, gates);
}

#[test]
fn an_up_to_date_service_waits_for_the_next_check() {
    let report = report(|_, _| {});
    assert_eq!(
        report.answer,
        "up to date as of the check at 1970-01-01 00:00:00 UTC; the next check is at 1970-01-01 00:01:30 UTC"
    );
    let schedule = report.gates.last().unwrap();
    assert_eq!(schedule.lifts_at, Timestamp::from_second(90).ok());
    assert_eq!(schedule.clear.as_deref(), Some("POST /trigger/web?pass=false"));
}

#[test]
fn a_block_is_not_explained_with_the_failure_of_another_image() {
    let report = report(|service, _| {
        let failed = Digest::of(b"failed later");
        service.durable.images.of("db").blocked = Some(Digest::of(b"failed earlier"));
        service.durable.images.of("web").blocked = Some(failed.clone());
        service.durable.failed_update = Some(Box::new(FailedUpdate {
            at: Timestamp::UNIX_EPOCH,
            image: "web".to_owned(),
            digest: Some(failed.to_string()),
            reason: "exited with code 3".to_owned(),
            container: None,
            output: "the log of web".to_owned(),
            rolled_back: true,
            by_hand: false,
        }));
    });
    let gate = report.gates.iter().find(|gate| gate.gate == "blocked").unwrap();
    assert!(gate.why.starts_with("db: ") && !gate.why.contains("exited with code 3"), "{}", gate.why);
    assert_eq!(gate.output, None);
}

#[test]
fn a_fault_is_checked_again_without_the_approval_of_an_update_that_waits() {
    let report = report(|service, _| {
        service.durable.fault = Some(standing("broken"));
    });
    let fault = report.gates.iter().find(|gate| gate.gate == "fault").unwrap();
    assert_eq!(fault.clear.as_deref(), Some("fix it, then POST /trigger/web?pass=false"));
}

#[test]
fn the_first_gate_that_holds_gives_the_answer_and_each_gate_is_listed_once() {
    let report = report(|service, context| {
        context.engine_error = Some("away".to_owned());
        service.durable.fault = Some(standing("broken"));
    });
    assert!(report.answer.contains("away"), "{report:#?}");
    let words: BTreeSet<&str> = report.gates.iter().map(|gate| gate.gate.as_str()).collect();
    assert_eq!(words.len(), report.gates.len());
}
