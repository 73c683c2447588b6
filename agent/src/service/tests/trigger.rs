//! Stories of a person's trigger: for which digest it passes gates, and for how long (DECISIONS 7).

use evenkeel_common::wire::{FleetAnswer, Permission};
use jiff::tz::TimeZone;

use super::gates::{asked, found, old_enough, with};
use super::*;
use crate::config::UpdateConfig;
use crate::model::window::Window;
use crate::ports::GateAnswer;
use crate::service::fleet::{FleetView, Link};

impl Story {
    /// The warden is asked, and answers "wait".
    fn fleet_lets_wait(&mut self) {
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
fn a_persons_trigger_is_the_approval_and_passes_age_and_window() {
    let closed = Window::parse(["12:00-13:00"], TimeZone::UTC).unwrap();
    let update = UpdateConfig { approve: true, window: Some(closed), ..old_enough() };
    let mut story = Story::of(with(update));
    story.at(0).poll(found('2'));
    assert!(!story.updates());
    story.at(10).trigger(found('2'));
    assert!(story.updates());
    assert!(story.service.durable().found[0].approved);
}

#[test]
fn a_trigger_passes_nothing_for_the_next_digest() {
    let mut story = Story::of(with(old_enough()));
    story.at(0).trigger(found('1'));
    assert!(!story.updates());
    story.at(10).poll(found('2'));
    assert!(!story.updates());
    assert_eq!(story.held_by().as_deref(), Some("min_age"));

    // The command lets what was triggered wait; what is pushed meanwhile was approved by nobody.
    let mut story = Story::of(with(UpdateConfig { approve: true, gate: asked().gate, ..old_enough() }));
    story.at(0).trigger(found('2'));
    assert!(story.asks_command());
    story.answers(GateAnswer::Wait { reason: String::new() });
    story.at(10).poll(found('3'));
    assert!(story.asks_command_about('3'));
    story.answers_about('3', GateAnswer::Go { reason: String::new() }).check(found('3'));
    assert!(!story.updates());
    assert_eq!(story.held_by().as_deref(), Some("approval"));
    // Neither was the first one when it comes back.
    story.at(20).poll(found('2'));
    assert!(story.asks_command());
    story.answers(GateAnswer::Go { reason: String::new() }).check(found('2'));
    assert!(!story.updates());
    assert_eq!(story.held_by().as_deref(), Some("approval"));

    // The same where the warden lets it wait: with every look the update is wanted for a moment.
    let mut story = Story::of(with(old_enough()));
    story.input(Input::Fleet(Arc::new(FleetView { link: Link::Present, ..FleetView::default() })));
    story.at(0).trigger(found('2'));
    story.fleet_lets_wait();
    story.at(60).poll(found('2'));
    story.fleet_lets_wait();
    story.at(120).poll(found('3'));
    assert!(!story.updates());
    assert_eq!(story.held_by().as_deref(), Some("min_age"));
}

#[test]
fn a_trigger_is_for_its_digest_until_that_is_deployed_whatever_else_lets_it_wait() {
    let update = UpdateConfig { approve: true, gate: asked().gate, ..old_enough() };
    let mut before = Story::of(with(update.clone()));
    before.at(0).trigger(found('2'));
    assert!(before.asks_command());
    before.answers(GateAnswer::Wait { reason: String::new() });
    // The agent is started again.
    let mut story = Story::of(with(update.clone()));
    let durable = before.service.durable().clone();
    let start = StartReason::Start;
    (story.service, _) =
        Service::new(Arc::new(with(update)), durable, boot_of("one", "one"), start, story.now);
    story.at(600).poll(found('2'));
    assert!(story.asks_command());
    story.answers(GateAnswer::Go { reason: String::new() }).check(found('2'));
    assert!(story.updates());
    assert!(!story.service.durable().found[0].triggered, "it is deployed once");
}

#[test]
fn a_trigger_does_not_pass_the_command_but_waits_for_its_answer() {
    let mut story = Story::of(with(UpdateConfig { approve: true, ..asked() }));
    story.at(0).trigger(found('2'));
    assert!(story.asks_command());
    // A cycle in between changes nothing about what the person wants.
    story.at(5).poll(found('2'));
    assert!(!story.updates());
    story.answers(GateAnswer::Go { reason: String::new() });
    story.check(found('2'));
    assert!(story.updates());

    let mut story = Story::of(with(asked()));
    story.at(0).trigger(found('2'));
    assert!(story.asks_command());
    story.answers(GateAnswer::Wait { reason: "a game is on".into() });
    story.at(10).trigger(found('2'));
    assert!(story.asks_command(), "a person's check is a cycle of its own");
    assert!(!story.updates());
}
