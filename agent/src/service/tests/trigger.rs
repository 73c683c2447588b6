//! Scenarios of a manual trigger: for which digest it passes gates, and for how long (DECISIONS 7).

use evenkeel_common::wire::{FleetAnswer, Permission};
use jiff::tz::TimeZone;

use super::*;
use crate::config::UpdateConfig;
use crate::model::window::Window;
use crate::ports::GateAnswer;
use crate::service::fleet::{FleetView, Link};
use crate::service::input::CheckFault;
use crate::service::tests::gates::{asked, found, old_enough, with};

impl Scenario {
    /// The warden is asked and answers "wait".
    fn fleet_defers(&mut self) {
        let Some(Action::AskFleet { image, ask }) = self.act() else { panic!("no question") };
        let why = "another machine is trying it".to_owned();
        let answer = FleetAnswer {
            answer: Permission::Wait,
            why,
            gate: Some("ring".into()),
            again: 30,
            agent: None,
            store: None,
        };
        self.input(Input::FleetAnswered { image, ask, answer: Ok(answer) });
        assert_eq!(self.held_by().as_deref(), Some("ring"));
    }
}

#[test]
fn a_flood_of_triggers_is_one_check_a_second_and_one_entry_for_each() {
    let mut scenario = Scenario::of(with(asked()));
    let (mut checks, mut asked, mut entries) = (0, 0, 0);
    for tenth in 0..120 {
        scenario.now = scenario.start + SignedDuration::from_millis(100 * tenth);
        let now = scenario.now;
        let (reply, told) = scenario.service.handle_request(ServiceRequest::Check, now);
        assert_eq!(reply, ServiceReply::Accepted);
        entries += told.iter().filter(|entry| entry.event == Kind::MANUAL_TRIGGER).count();
        while let Some(action) = scenario.service.next(now) {
            match action {
                Action::Check { is_manual, .. } => {
                    checks += 1;
                    let result = Ok(found('2'));
                    let generation = scenario.service.generation;
                    scenario.input(Input::Checked { generation, is_manual, result });
                }
                Action::RunGateCommand { .. } => {
                    asked += 1;
                    scenario.answers(GateAnswer::Wait { reason: String::new() });
                }
                Action::Inspect { .. } => scenario.service.inspections.end(),
                _ => break,
            }
        }
    }
    assert!((11..=13).contains(&checks), "{checks} checks");
    assert!((1..=13).contains(&asked), "{asked} questions");
    assert!(entries <= checks + 1, "{entries} entries of {checks} checks");
}

#[test]
fn a_manual_trigger_counts_as_approval_and_passes_min_age_and_window() {
    let closed = Window::parse(["12:00-13:00"], TimeZone::UTC).unwrap();
    let update = UpdateConfig { approve: true, window: Some(closed), ..old_enough() };
    let mut scenario = Scenario::of(with(update));
    scenario.at(0).poll(found('2'));
    assert!(!scenario.updates());
    scenario.at(10).trigger(found('2'));
    assert!(scenario.updates());
    assert!(scenario.service.durable().images.get(IMAGE).found[0].approved);
}

#[test]
fn a_trigger_passes_nothing_for_the_next_digest() {
    let mut scenario = Scenario::of(with(old_enough()));
    scenario.at(0).trigger(found('1'));
    assert!(!scenario.updates());
    scenario.at(10).poll(found('2'));
    assert!(!scenario.updates());
    assert_eq!(scenario.held_by().as_deref(), Some("min_age"));

    // The command defers the triggered digest; one that is pushed in the meantime is not approved.
    let mut scenario = Scenario::of(with(UpdateConfig { approve: true, gate: asked().gate, ..old_enough() }));
    scenario.at(0).trigger(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Wait { reason: String::new() });
    scenario.at(10).poll(found('3'));
    assert!(scenario.asks_command_about('3'));
    scenario.answers_about('3', GateAnswer::Go { reason: String::new() }).check(found('3'));
    assert!(!scenario.updates());
    assert_eq!(scenario.held_by().as_deref(), Some("approval"));
    // Neither is the first one when it returns.
    scenario.at(20).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Go { reason: String::new() }).check(found('2'));
    assert!(!scenario.updates());
    assert_eq!(scenario.held_by().as_deref(), Some("approval"));

    // The same if the warden defers it: with every check the update is wanted for a moment.
    let mut scenario = Scenario::of(with(old_enough()));
    scenario.input(Input::Fleet(Arc::new(FleetView { link: Link::Present, ..FleetView::default() })));
    scenario.at(0).trigger(found('2'));
    scenario.fleet_defers();
    scenario.at(60).poll(found('2'));
    scenario.fleet_defers();
    scenario.at(120).poll(found('3'));
    assert!(!scenario.updates());
    assert_eq!(scenario.held_by().as_deref(), Some("min_age"));
}

#[test]
fn a_trigger_holds_for_its_digest_until_it_is_deployed() {
    let update = UpdateConfig { approve: true, gate: asked().gate, ..old_enough() };
    let mut before = Scenario::of(with(update.clone()));
    before.at(0).trigger(found('2'));
    assert!(before.asks_command());
    before.answers(GateAnswer::Wait { reason: String::new() });
    // The agent is restarted.
    let mut scenario = Scenario::of(with(update.clone()));
    let durable = before.service.durable().clone();
    let start = StartReason::Start;
    (scenario.service, _) =
        Service::new(Arc::new(with(update)), durable, boot_of("one", "one"), start, scenario.now);
    scenario.at(600).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Go { reason: String::new() }).check(found('2'));
    assert!(scenario.updates());
    assert!(!scenario.service.durable().images.get(IMAGE).found[0].triggered, "it is deployed once");
}

#[test]
fn a_trigger_does_not_pass_the_command_but_waits_for_its_answer() {
    let mut scenario = Scenario::of(with(UpdateConfig { approve: true, ..asked() }));
    scenario.at(0).trigger(found('2'));
    assert!(scenario.asks_command());
    // A cycle in between does not cancel the request.
    scenario.at(5).poll(found('2'));
    assert!(!scenario.updates());
    scenario.answers(GateAnswer::Go { reason: String::new() });
    scenario.check(found('2'));
    assert!(scenario.updates());

    let mut scenario = Scenario::of(with(asked()));
    scenario.at(0).trigger(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Wait { reason: "a game is on".into() });
    scenario.at(10).trigger(found('2'));
    assert!(scenario.asks_command(), "a manual check counts as its own cycle");
    assert!(!scenario.updates());
}

#[test]
fn a_requested_check_that_compared_nothing_says_why_until_one_has() {
    let mut scenario = Scenario::of(config());
    let failed = |scenario: &Scenario| {
        let checks = scenario.record().requested_checks.expect("one was requested");
        (checks.ended, checks.failed)
    };
    let away = || Err(CheckFault::EngineAway("the engine does not answer".into()));
    scenario.service.handle_request(ServiceRequest::Check, scenario.now);
    let check = scenario.service.next_check(scenario.now);
    assert!(matches!(check, Some(Action::Check { is_manual: true, .. })), "{check:?}");
    let generation = scenario.service.generation;
    scenario.input(Input::Checked { generation, is_manual: true, result: away() });
    let why = Some("the engine does not answer".to_owned());
    assert_eq!(failed(&scenario), (1, why.clone()));
    // A cycle that can't look either changes nothing.
    scenario.at(300).service.check(true);
    let check = scenario.service.next_check(scenario.now);
    assert!(matches!(check, Some(Action::Check { is_manual: false, .. })), "{check:?}");
    scenario.input(Input::Checked { generation, is_manual: false, result: away() });
    assert_eq!(failed(&scenario), (1, why));
    scenario.at(600).poll(found('1'));
    assert_eq!(failed(&scenario), (1, None));
}
