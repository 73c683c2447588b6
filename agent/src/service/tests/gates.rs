//! Scenarios of held updates: reports, manual requests that pass gates, and the passing of time (DECISIONS 7).

use evenkeel_common::wire::Permission;
use jiff::tz::TimeZone;

use super::*;
use crate::config::UpdateConfig;
use crate::model::image_config::{Aspect, ConfigDifference};
use crate::model::window::Window;
use crate::ports::GateAnswer;
use crate::service::fleet::{FleetView, Link};
use crate::service::gates::candidate::Unsigned;
use crate::service::tests::fleet::{answer, failed, freeze_from, present, unanswered};

pub(super) const MIN_AGE: i64 = 3600;

pub(super) fn with(update: UpdateConfig) -> ServiceConfig {
    ServiceConfig { update: Some(Arc::new(update)), ..config() }
}

pub(super) fn old_enough() -> UpdateConfig {
    UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() }
}

pub(super) fn approved() -> UpdateConfig {
    UpdateConfig { approve: true, ..UpdateConfig::default() }
}

pub(super) fn asked() -> UpdateConfig {
    UpdateConfig { gate: vec!["/bin/may-update".into()], ..UpdateConfig::default() }
}

/// The registry has `remote`, and `1` runs.
pub(super) fn found(remote: char) -> Observation {
    let web = running("web");
    observed(remote, &[local("sha256:one", &['1'])], &[&web])
}

impl Scenario {
    /// A check of a poll cycle.
    pub(super) fn poll(&mut self, observation: Observation) -> &mut Self {
        self.service.check(true);
        self.check(observation)
    }

    /// A manual check.
    pub(super) fn trigger(&mut self, observation: Observation) -> &mut Self {
        let (reply, entries) = self.service.handle_request(ServiceRequest::Check, self.now);
        assert_eq!(reply, ServiceReply::Accepted);
        self.entries.extend(entries);
        let generation = self.service.generation;
        self.input(Input::Checked { generation, is_manual: true, result: Ok(observation) })
    }

    /// Returns whether an update begins now.
    pub(super) fn updates(&mut self) -> bool {
        match self.act() {
            None => false,
            Some(Action::Step(Step::PinImages { .. })) => true,
            Some(other) => panic!("expected an update or nothing, got {other:?}"),
        }
    }

    pub(super) fn asks_command(&mut self) -> bool {
        self.asks_command_about('2')
    }

    pub(super) fn asks_command_about(&mut self, remote: char) -> bool {
        match self.act() {
            None => false,
            Some(Action::RunGateCommand { argv, image, question }) => {
                assert_eq!((argv.as_slice(), image.as_str()), (&["/bin/may-update".to_owned()][..], IMAGE));
                assert_eq!((question.digest, question.old_digest), (digest(remote), Some(digest('1'))));
                true
            }
            Some(other) => panic!("expected a question or nothing, got {other:?}"),
        }
    }

    pub(super) fn answers(&mut self, answer: GateAnswer) -> &mut Self {
        self.answers_about('2', answer)
    }

    pub(super) fn answers_about(&mut self, remote: char, answer: GateAnswer) -> &mut Self {
        self.input(Input::CommandAnswered { image: IMAGE.into(), digest: digest(remote), answer })
    }

    pub(super) fn held_by(&self) -> Option<String> {
        self.record().waiting.map(|waiting| waiting.gate)
    }

    pub(super) fn approve(&mut self, named: Option<char>) -> ServiceReply {
        let (reply, entries) =
            self.service.handle_request(ServiceRequest::Approve(named.map(digest)), self.now);
        self.entries.extend(entries);
        reply
    }
}

#[test]
fn a_digest_that_is_too_young_waits_is_reported_once_and_is_deployed_by_itself() {
    let mut scenario = Scenario::of(with(old_enough()));
    scenario.at(0).poll(found('2'));
    assert!(!scenario.updates());
    assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE]);
    let waiting = scenario.record().waiting.unwrap();
    assert_eq!((waiting.gate.as_str(), waiting.digest), ("min_age", digest('2').to_string()));
    assert_eq!((waiting.lifts_at, waiting.clear.as_str()), (scenario.seconds(MIN_AGE), "POST /trigger/web"));
    scenario.at(1800).poll(found('2'));
    assert!(!scenario.updates());
    assert_eq!(scenario.kinds(), []);
    // It checks again when the gate lifts, without a poll cycle.
    assert_eq!(scenario.service.checks.again_at, scenario.seconds(MIN_AGE));
    scenario.at(MIN_AGE);
    assert!(!scenario.updates(), "it is checked once more first");
    scenario.check(found('2'));
    assert!(scenario.updates());
    assert_eq!(scenario.held_by(), None);
}

#[test]
fn a_faulty_gate_holds_updates_until_it_is_corrected_and_a_trigger_does_not_pass_it() {
    let fault = Some("update.min_age: \"x\"".to_owned());
    let mut scenario = Scenario::of(with(UpdateConfig { fault, ..UpdateConfig::default() }));
    scenario.at(0).poll(found('2'));
    assert!(!scenario.updates());
    assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE]);
    assert_eq!(scenario.held_by().as_deref(), Some("config"));
    let why = scenario.why();
    let gates: Vec<_> = why.gates.iter().filter(|gate| gate.gate == "config").collect();
    assert!(gates.len() == 1 && gates[0].holds && gates[0].why.contains("update.min_age"), "{why:#?}");
    assert_eq!(why.answer, gates[0].why);
    scenario.trigger(found('2'));
    assert!(!scenario.updates(), "a trigger does not know which gate was meant");
    let mut corrected = Scenario::of(with(UpdateConfig::default()));
    corrected.at(60).poll(found('2'));
    assert!(corrected.updates());
}

#[test]
fn a_digest_that_leaves_the_tag_and_returns_starts_over() {
    let mut scenario = Scenario::of(with(UpdateConfig { approve: true, ..old_enough() }));
    scenario.at(0).poll(found('2'));
    assert_eq!(scenario.approve(None), ServiceReply::Approved(digest('2')));
    scenario.at(100).poll(found('3'));
    assert_eq!(scenario.held_by().as_deref(), Some("approval"));
    scenario.at(200).poll(found('2'));
    assert_eq!(scenario.held_by().as_deref(), Some("approval"), "an approval ends with the digest");
    scenario.approve(None);
    scenario.at(MIN_AGE + 100).poll(found('2'));
    assert_eq!(scenario.record().waiting.unwrap().lifts_at, scenario.seconds(MIN_AGE + 200));
    assert!(!scenario.updates());
}

#[test]
fn an_agent_restart_keeps_the_wait_the_approval_and_the_report() {
    let update = UpdateConfig { approve: true, ..old_enough() };
    let mut before = Scenario::of(with(update.clone()));
    before.at(0).poll(found('2'));
    before.approve(None);
    let written = serde_json::to_value(before.service.durable()).unwrap();
    let durable: Durable = serde_json::from_value(written).unwrap();
    for reason in [StartReason::Start, StartReason::Reload] {
        let mut scenario = Scenario::of(with(update.clone()));
        let boot = boot_of("one", "one");
        let config = Arc::new(with(update.clone()));
        (scenario.service, _) = Service::new(config, durable.clone(), boot, reason, scenario.now);
        scenario.at(1000).poll(found('2'));
        assert_eq!(scenario.held_by().as_deref(), Some("min_age"));
        assert_eq!(scenario.kinds(), []);
        scenario.at(MIN_AGE).poll(found('2'));
        assert!(scenario.updates());
    }
}

#[test]
fn a_gate_removed_from_the_configuration_no_longer_holds() {
    let mut scenario = Scenario::of(with(old_enough()));
    scenario.at(0).poll(found('2'));
    let durable = scenario.service.durable().clone();
    let boot = boot_of("one", "one");
    (scenario.service, _) =
        Service::new(Arc::new(config()), durable, boot, StartReason::Reload, scenario.now);
    scenario.at(10).poll(found('2'));
    assert!(scenario.updates());
}

#[test]
fn the_gate_command_runs_once_per_cycle_and_its_answer_holds_until_the_next() {
    let mut scenario = Scenario::of(with(asked()));
    scenario.at(0).poll(found('2'));
    assert_eq!(scenario.record().waiting.unwrap().why, "/bin/may-update has not answered yet");
    assert!(scenario.asks_command());
    assert!(!scenario.asks_command());
    assert_eq!(scenario.kinds(), [], "the reason is not known yet");
    // A registry reports a push in between.
    scenario.at(1).service.check(false);
    scenario.check(found('2'));
    // The command hangs: the next cycle does not run it again.
    scenario.at(300).poll(found('2'));
    assert!(!scenario.asks_command());
    scenario.answers(GateAnswer::Wait { reason: "a game is on".into() });
    assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE]);
    let waiting = scenario.record().waiting.unwrap();
    assert_eq!(waiting.why, "/bin/may-update holds it back: a game is on");
    assert_eq!(waiting.clear, "POST /redeploy/web");
    scenario.service.check(false);
    scenario.check(found('2'));
    assert!(!scenario.asks_command(), "a push does not count as a cycle");
    scenario.at(600).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Go { reason: String::new() });
    assert!(!scenario.updates(), "it is checked once more first");
    scenario.check(found('2'));
    assert!(scenario.updates());
}

#[test]
fn a_gate_command_without_an_answer_is_a_single_fault_until_it_answers() {
    let failed = GateAnswer::Failed {
        fault: "/bin/may-update exited with status 1".into(),
        reason: "at 12:00".into(),
    };
    let mut scenario = Scenario::of(with(asked()));
    scenario.at(0).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(failed.clone());
    assert_eq!(scenario.status(), StatusValue::Errored);
    assert_eq!(scenario.kinds(), [Kind::ERROR, Kind::UPDATE_AVAILABLE]);
    scenario.at(300).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(failed);
    assert_eq!(scenario.kinds(), []);
    scenario.at(600).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Wait { reason: String::new() });
    assert_eq!(scenario.kinds(), [Kind::RECOVERED]);
    assert_eq!(scenario.held_by().as_deref(), Some("command"));
}

#[test]
fn the_fault_of_a_gate_command_stays_until_the_command_has_answered_after_a_reload() {
    let failed = || GateAnswer::Failed { fault: "it exited with status 1".into(), reason: String::new() };
    for again in [failed(), GateAnswer::Wait { reason: String::new() }] {
        let mut scenario = Scenario::of(with(asked()));
        scenario.at(0).poll(found('2'));
        assert!(scenario.asks_command());
        scenario.answers(failed()).kinds();
        scenario.at(60).reconfigures(with(asked())).poll(found('2'));
        assert!(scenario.asks_command());
        assert_eq!((scenario.kinds(), scenario.status()), (Vec::new(), StatusValue::Errored));
        scenario.answers(again.clone());
        assert_eq!(scenario.kinds(), []);
        scenario.at(360).poll(found('2'));
        let expected = if again == failed() { vec![] } else { vec![Kind::RECOVERED] };
        assert_eq!(scenario.kinds(), expected);
    }
}

#[test]
fn the_end_of_another_fault_does_not_wait_for_the_gate_command_after_a_reload() {
    let mut scenario = Scenario::of(with(asked()));
    let mut away = found('2');
    away.images[0].remote = None;
    let why = crate::service::observation::Unanswered::Failed("the registry is away".into());
    away.unanswered.insert(IMAGE.into(), why);
    scenario.at(0).poll(away);
    assert_eq!(scenario.kinds(), [Kind::ERROR]);
    scenario.at(60).reconfigures(with(asked())).poll(found('2'));
    assert!(scenario.kinds().contains(&Kind::RECOVERED));
    assert!(scenario.asks_command());
}

#[test]
fn an_approval_is_for_the_digest_that_was_looked_at() {
    let mut scenario = Scenario::of(with(approved()));
    assert_eq!(scenario.approve(None), ServiceReply::NothingWaiting);
    scenario.at(0).poll(found('2'));
    assert_eq!(scenario.approve(Some('3')), ServiceReply::OtherWaiting(digest('2')));
    assert!(!scenario.updates());
    assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE]);
    assert_eq!(scenario.approve(Some('2')), ServiceReply::Approved(digest('2')));
    assert_eq!(
        scenario.approve(Some('2')),
        ServiceReply::Approved(digest('2')),
        "approving twice changes nothing"
    );
    assert_eq!(scenario.kinds(), [Kind::APPROVED]);
    // Another digest was pushed before the update began.
    scenario.at(10).poll(found('3'));
    assert!(!scenario.updates());
    assert_eq!(scenario.held_by().as_deref(), Some("approval"));
    scenario.approve(None);
    scenario.check(found('3'));
    assert!(scenario.updates());
    assert_eq!(Scenario::of(config()).approve(None), ServiceReply::NothingWaiting);
}

#[test]
fn a_window_that_opens_between_two_cycles_lets_the_update_begin() {
    let window = Window::parse(["02:00-03:00"], TimeZone::UTC).unwrap();
    let mut scenario = Scenario::of(with(UpdateConfig { window: Some(window), ..UpdateConfig::default() }));
    scenario.at(0).poll(found('2'));
    assert!(!scenario.updates());
    assert_eq!(scenario.record().waiting.unwrap().lifts_at, scenario.seconds(7200));
    assert_eq!(scenario.service.checks.again_at, scenario.seconds(7200));
    // The project was busy until the window had closed again.
    scenario.at(7200).check(found('2')).at(10_800);
    assert!(!scenario.updates());
    scenario.at(86_400 + 7200).poll(found('2'));
    assert!(scenario.updates());
}

#[test]
fn the_previous_image_is_started_while_its_update_waits() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..with(approved()) });
    let down = exited("web", 255);
    let view = |remote| {
        let mut seen = observed(remote, &[], &[&down]);
        seen.images[0].tagged = Some(local("sha256:one", &['1']));
        seen
    };
    scenario.at(0).poll(view('2'));
    match scenario.act() {
        Some(Action::Step(Step::Start(BringUp { tags, .. }))) => {
            assert!(tags.iter().all(|(_, image)| image.id == ImageId("sha256:one".into())), "{tags:?}");
        }
        other => panic!("expected a start, got {other:?}"),
    }
}

#[test]
fn a_manual_redeploy_passes_these_gates() {
    let mut scenario = Scenario::of(with(UpdateConfig { approve: true, gate: asked().gate, ..old_enough() }));
    scenario.at(0).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Wait { reason: String::new() });
    scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    scenario.poll(found('2'));
    assert!(scenario.updates());
}

#[test]
fn a_held_image_stays_while_the_other_is_updated() {
    let other = "localhost:5000/api:1";
    let reference = Reference::parse(other).unwrap();
    let mut images = config().images;
    images.push(ConfiguredImage { configured: other.into(), reference: reference.clone() });
    let mut scenario = Scenario::of(ServiceConfig { images, ..with(old_enough()) });
    let web = running("web");
    let api = Container { config_image: other.into(), image: ImageId("sha256:api".into()), ..running("api") };
    let seen = |remote_web, remote_api| {
        let mut seen = observed(remote_web, &[local("sha256:one", &['1'])], &[&web, &api]);
        let running = vec![local("sha256:api", &['5'])];
        seen.images.push(ImageView {
            remote: Some(digest(remote_api)),
            tagged: running.first().cloned(),
            running,
            ..ImageView::new(other.into(), reference.clone())
        });
        seen
    };
    scenario.at(0).poll(seen('2', '5'));
    scenario.at(MIN_AGE).poll(seen('2', '6'));
    assert!(scenario.updates());
    let deployment = serde_json::to_value(&scenario.service.durable().deployment).unwrap();
    let changes = deployment["image_changes"].as_array().unwrap();
    assert_eq!((changes.len(), changes[0]["configured"].as_str()), (1, Some(IMAGE)), "{deployment:#}");
    let kept: Vec<(Reference, serde_json::Value)> =
        serde_json::from_value(deployment["kept_tags"].clone()).unwrap();
    assert_eq!(kept[0].0, reference);
}

#[test]
fn a_signed_digest_that_was_replaced_here_waits_for_an_approval_when_it_is_served_again() {
    let signed = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..UpdateConfig::default() };
    let mut scenario = Scenario::of(with(signed));
    scenario.service.durable.images.of(IMAGE).leave(&digest('2'), &digest('1'));
    for request in ["poll", "trigger"] {
        scenario.at(if request == "poll" { 0 } else { 60 });
        if request == "poll" {
            scenario.poll(found('2'))
        } else {
            scenario.trigger(found('2'))
        };
        assert!(!scenario.updates(), "{request}");
        let waiting = scenario.record().waiting.expect("it waits");
        assert_eq!((waiting.gate.as_str(), waiting.clear.as_str()), ("signature", "POST /approve/web"));
        assert!(waiting.why.contains("ran here before"), "{}", waiting.why);
    }
    // Another one is not held.
    assert!(scenario.at(120).poll(found('3')).updates());
    let mut scenario = Scenario::of(with(UpdateConfig {
        signed_by: vec!["/etc/cosign.pub".into()],
        ..UpdateConfig::default()
    }));
    scenario.service.durable.images.of(IMAGE).leave(&digest('2'), &digest('1'));
    scenario.poll(found('2'));
    let now = scenario.now;
    scenario.service.approve(None, now);
    assert!(scenario.at(1).poll(found('2')).updates());
}

#[test]
fn an_image_whose_signatures_can_not_be_read_is_reported_after_an_hour_of_that() {
    let signed = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..UpdateConfig::default() };
    let mut scenario = Scenario::of(with(signed));
    let seconds = [(0, 0), (3599, 0), (3600, 1), (7200, 0)];
    for (remote, begin) in [('2', 0), ('3', 10_000)] {
        for (second, told) in seconds {
            let mut seen = found(remote);
            let why = Unsigned::Unknown("registry localhost:5000: 403 forbidden for web".into());
            seen.unsigned.insert(IMAGE.into(), why);
            scenario.at(begin + second).poll(seen);
            assert!(!scenario.updates());
            assert_eq!(scenario.held_by().as_deref(), Some("signature"));
            assert_eq!(scenario.kinds(), vec![Kind::UPDATE_AVAILABLE; told], "{remote} at {second}");
        }
    }
}

#[test]
fn what_an_update_waits_for_is_reported_when_its_signatures_are_read_after_an_hour() {
    let signed = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..approved() };
    let mut scenario = Scenario::of(with(signed));
    for (second, is_read, reason) in [
        (0, false, None),
        (3600, false, Some("signature")),
        (3660, true, Some("approval")),
        (3720, true, None),
    ] {
        let mut seen = found('2');
        if !is_read {
            let why = Unsigned::Unknown("registry localhost:5000: 403 forbidden for web".into());
            seen.unsigned.insert(IMAGE.into(), why);
        }
        scenario.at(second).poll(seen);
        assert!(!scenario.updates());
        let told = std::mem::take(&mut scenario.entries);
        assert!(told.iter().all(|entry| entry.event == Kind::UPDATE_AVAILABLE), "{told:#?}");
        let reasons: Vec<&str> = told.iter().filter_map(|entry| entry.reason.as_deref()).collect();
        assert_eq!(reasons, reason.into_iter().collect::<Vec<&str>>(), "at {second}");
    }
}

#[test]
fn an_update_that_was_announced_is_not_announced_again_after_its_signatures_were_unreadable() {
    let signed = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..UpdateConfig::default() };
    let mut scenario = Scenario::of(with(signed));
    let unknown = || Unsigned::Unknown("registry localhost:5000: 403 forbidden for web".into());
    for (second, why, told) in [
        (0, Unsigned::Missing, 1),
        (60, unknown(), 0),
        (3660, unknown(), 0),
        (7260, unknown(), 0),
        (7320, Unsigned::Missing, 0),
    ] {
        let mut seen = found('2');
        seen.unsigned.insert(IMAGE.into(), why);
        scenario.at(second).poll(seen);
        assert!(!scenario.updates());
        let entries = std::mem::take(&mut scenario.entries);
        assert_eq!(entries.len(), told, "at {second}: {entries:#?}");
    }
}

#[test]
fn a_trigger_approves_no_image_of_former_times() {
    let update = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..approved() };
    let mut scenario = Scenario::of(with(update));
    scenario.service.durable.images.of(IMAGE).leave(&digest('2'), &digest('1'));
    scenario.at(0).trigger(found('2'));
    assert!(!scenario.updates());
    let waiting = scenario.record().waiting.expect("it waits");
    assert_eq!((waiting.gate.as_str(), waiting.clear.as_str()), ("signature", "POST /approve/web"));
    assert_eq!(scenario.approve(None), ServiceReply::Approved(digest('2')));
    assert!(scenario.at(10).poll(found('2')).updates());
    // Of another one it is the approval.
    let update = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..approved() };
    let mut scenario = Scenario::of(with(update));
    assert!(scenario.at(0).trigger(found('2')).updates());
}

#[test]
fn the_gate_command_is_asked_again_when_a_later_gate_has_opened() {
    let update = UpdateConfig { min_age: old_enough().min_age, ..asked() };
    let mut scenario = Scenario::of(with(update));
    scenario.at(0).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Go { reason: String::new() });
    scenario.check(found('2'));
    assert_eq!(scenario.held_by().as_deref(), Some("min_age"));
    assert!(!scenario.asks_command());
    scenario.at(MIN_AGE);
    assert!(!scenario.updates(), "it is checked once more first");
    scenario.check(found('2'));
    assert!(scenario.asks_command(), "its answer is an hour old");
    scenario.answers(GateAnswer::Wait { reason: String::new() });
    assert!(!scenario.updates());
    assert_eq!(scenario.held_by().as_deref(), Some("command"));
}

#[test]
fn the_gate_command_is_asked_again_when_the_update_is_approved() {
    let mut scenario = Scenario::of(with(UpdateConfig { approve: true, ..asked() }));
    scenario.at(0).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Go { reason: String::new() });
    scenario.check(found('2'));
    assert!(!scenario.asks_command());
    assert_eq!(scenario.held_by().as_deref(), Some("approval"));
    assert_eq!(scenario.at(200).approve(None), ServiceReply::Approved(digest('2')));
    scenario.check(found('2'));
    assert!(scenario.asks_command(), "its answer is older than the approval");
    scenario.answers(GateAnswer::Wait { reason: String::new() });
    assert!(!scenario.updates());
    assert_eq!(scenario.held_by().as_deref(), Some("command"));
}

/// A service of a fleet with an update that the gate command has allowed in the cycle of second 0.
fn allowed() -> Scenario {
    let mut scenario = Scenario::of(with(asked()));
    scenario.service.fleet = Arc::new(present());
    scenario.at(0).poll(found('2'));
    assert!(scenario.asks_command());
    scenario.answers(GateAnswer::Go { reason: String::new() });
    scenario.check(found('2'));
    scenario
}

#[test]
fn what_the_gate_command_has_allowed_does_not_outlive_its_cycle_while_the_update_waits_for_something_else() {
    let mut ring = allowed();
    assert!(ring.asks_fleet());
    ring.fleet_answers(Ok(answer(Permission::Wait, 600)));
    assert!(!ring.updates());
    ring.at(300).poll(found('2'));
    assert!(!ring.asks_command(), "the ring comes first");
    assert_eq!(ring.held_by().as_deref(), Some("ring"));
    ring.at(600).check(found('2'));

    let mut frozen = allowed();
    let freezes = vec![freeze_from(frozen.start, 6000)];
    frozen.input(Input::Fleet(Arc::new(FleetView { freezes, ..present() })));
    assert!(!frozen.updates());
    frozen.at(300).poll(found('2'));
    assert!(!frozen.asks_command(), "the freeze comes first");
    frozen.at(600).input(Input::Fleet(Arc::new(present()))).check(found('2'));

    let mut behind_sibling = allowed();
    behind_sibling.service.sibling_begins("api");
    assert!(!behind_sibling.updates());
    behind_sibling.at(300).service.check(true);
    behind_sibling.at(600).sibling_ends();
    behind_sibling.check(found('2'));

    for mut scenario in [ring, frozen, behind_sibling] {
        assert!(scenario.asks_command(), "its answer is of an earlier cycle");
        assert_eq!(scenario.held_by().as_deref(), Some("command"));
        scenario.answers(GateAnswer::Go { reason: String::new() });
        scenario.check(found('2'));
        assert!(scenario.asks_fleet());
        scenario.fleet_answers(Ok(answer(Permission::Go, 30)));
        assert!(scenario.updates(), "the answer is of this cycle");
    }
}

#[test]
fn a_check_may_be_requested_that_passes_no_gate_and_says_when_it_has_ended() {
    let mut scenario = Scenario::of(with(old_enough()));
    for (number, second, ask) in [(1, 10, ServiceRequest::CheckGated), (2, 20, ServiceRequest::Check)] {
        scenario.at(second);
        let (reply, _) = scenario.service.handle_request(ask.clone(), scenario.now);
        assert_eq!(reply, ServiceReply::Accepted);
        let checks = scenario.record().requested_checks.expect("one was requested");
        assert_eq!((checks.requested, checks.ended), (number, number - 1));
        assert!(checks.undecided);
        // The check begins, and ends.
        scenario.act();
        let generation = scenario.service.generation;
        scenario.input(Input::Checked { generation, is_manual: true, result: Ok(found('2')) });
        let checks = scenario.record().requested_checks.expect("one was requested");
        assert_eq!(checks.ended, number);
        assert_eq!(scenario.updates(), ask == ServiceRequest::Check, "{ask:?}");
    }
}

#[test]
fn a_digest_that_was_signed_before_the_running_one_waits_for_an_approval() {
    let signed = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..UpdateConfig::default() };
    let mut scenario = Scenario::of(with(signed));
    let mut earlier = found('2');
    earlier.signed_earlier.insert(IMAGE.into());
    assert!(!scenario.poll(earlier.clone()).updates());
    let waiting = scenario.record().waiting.expect("it waits");
    assert_eq!((waiting.gate.as_str(), waiting.clear.as_str()), ("signature", "POST /approve/web"));
    assert!(waiting.why.contains("signed before the image that runs"), "{}", waiting.why);
    let now = scenario.now;
    scenario.service.approve(None, now);
    assert!(scenario.at(1).poll(earlier).updates());
    // Where no signature is required, its time means nothing.
    let mut scenario = Scenario::of(with(UpdateConfig::default()));
    let mut earlier = found('2');
    earlier.signed_earlier.insert(IMAGE.into());
    assert!(scenario.poll(earlier).updates());
}

/// A gate, and a change that makes it hold.
type Hold = (&'static str, fn(&mut UpdateConfig, &mut FleetView, &mut Observation));

/// In the order of `DIGEST_GATES`.
const HOLDS: [Hold; 9] = [
    ("freeze", |_, fleet, _| fleet.freezes.push(freeze_from("2026-01-01T00:00:00Z".parse().unwrap(), 600))),
    ("immunity", |_, fleet, _| fleet.failed.push(failed())),
    ("ring", |_, fleet, _| fleet.ring = 1),
    ("signature", |update, _, seen| {
        update.signed_by = vec!["/key".into()];
        seen.unsigned.insert(IMAGE.into(), Unsigned::Missing);
    }),
    ("command", |update, _, _| update.gate = asked().gate),
    ("approval", |update, _, _| update.approve = true),
    ("breaking", |update, _, seen| {
        update.ask_on = Aspect::ALL.into();
        let (after, before) = ("runs as user 999".to_owned(), "as root".to_owned());
        seen.configs.insert(IMAGE.into(), Ok(vec![ConfigDifference { aspect: Aspect::User, after, before }]));
    }),
    ("min_age", |update, _, _| update.min_age = old_enough().min_age),
    ("window", |update, _, _| update.window = Window::parse(["12:00-13:00"], TimeZone::UTC).ok()),
];

/// The gates that a manual trigger passes.
const PASSED: [&str; 3] = ["approval", "min_age", "window"];

#[test]
fn of_any_two_holding_gates_the_first_in_the_table_is_shown_and_both_must_open() {
    for (first, (word, hold)) in HOLDS.iter().enumerate() {
        for (other, also) in &HOLDS[first..] {
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            let link = Link::Away { since: start };
            let mut fleet = FleetView { link, patience: Duration::from_hours(1), ..FleetView::default() };
            let (mut update, mut seen) = (UpdateConfig::default(), found('2'));
            for hold in [hold, also] {
                hold(&mut update, &mut fleet, &mut seen);
            }
            let config = with(update);
            let mut scenario = Scenario::of(config.clone());
            scenario.service.fleet = Arc::new(fleet);
            scenario.at(0).poll(seen.clone());
            // The command is asked only if the gates before it are open.
            let asks = *word == "command";
            assert_eq!(scenario.asks_command(), asks, "{word} with {other}");
            if asks {
                scenario.answers(GateAnswer::Wait { reason: String::new() });
            }
            assert!(!scenario.updates(), "{word} with {other}");
            let waiting = scenario.record().waiting.unwrap();
            assert_eq!(waiting.gate, *word, "{word} with {other}");
            let report = scenario.why();
            let holding: Vec<&str> =
                report.gates.iter().filter(|gate| gate.holds).map(|gate| gate.gate.as_str()).collect();
            let both = HOLDS.iter().map(|(gate, _)| *gate).filter(|gate| gate == word || gate == other);
            assert_eq!(holding, both.chain(["schedule"]).collect::<Vec<_>>());
            assert_eq!(waiting.why, report.answer, "{word} with {other}");
            let told: Vec<&AuditEntry> =
                scenario.entries.iter().filter(|entry| entry.event == Kind::UPDATE_AVAILABLE).collect();
            let [told] = &told[..] else { panic!("{word} with {other}: {told:#?}") };
            assert_eq!(told.reason.as_deref(), Some(*word), "with {other}");
            assert!(told.message.contains(&waiting.why), "{word} with {other}: {}", told.message);

            // A manual trigger passes exactly the gates in `PASSED`.
            scenario.at(10).trigger(seen);
            if asks {
                assert!(scenario.asks_command());
                scenario.answers(GateAnswer::Wait { reason: String::new() });
            }
            let passes = PASSED.contains(word) && PASSED.contains(other);
            if passes {
                assert!(scenario.asks_fleet());
                scenario.fleet_answers(unanswered());
            }
            assert_eq!(scenario.updates(), passes, "{word} with {other}");
        }
    }
}

#[test]
fn a_retried_rollback_does_not_deploy_a_held_image() {
    let other = "localhost:5000/api:1";
    let reference = Reference::parse(other).unwrap();
    let mut images = config().images;
    images.push(ConfiguredImage { configured: other.into(), reference: reference.clone() });
    let mut scenario = Scenario::of(ServiceConfig { images, ..with(asked()) });
    let old = crate::service::images::OldImage { id: ImageId("sha256:one".into()), source: None };
    let durable = &mut scenario.service.durable;
    durable.rollback_failed = true;
    durable.images.of(IMAGE).blocked = Some(digest('2'));
    durable.images.of(IMAGE).unproven = Some(ImageId("sha256:two".into()));
    durable.images.of(IMAGE).proven = Some(old);
    let mut seen = observed('2', &[local("sha256:two", &['2'])], &[&running("web")]);
    let mut view = ImageView::new(other.into(), reference);
    view.remote = Some(digest('4'));
    view.running = vec![local("sha256:three", &['3'])];
    view.tagged = Some(local("sha256:three", &['3']));
    seen.images.push(view);
    scenario.trigger(seen);
    assert!(scenario.updates(), "the previous image is restored");
    scenario.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    let Some(Action::Step(Step::Pull { images, .. })) = scenario.act() else { panic!("no pull") };
    assert_eq!(images, []);
}

#[test]
fn a_held_update_of_another_image_does_not_end_a_failed_rollback() {
    let (two, seen) = of_two_images();
    let images = two.service.config().images.clone();
    let mut scenario = Scenario::of(ServiceConfig { images, ..with(approved()) });
    let durable = &mut scenario.service.durable;
    durable.rollback_failed = true;
    durable.images.of(IMAGE).blocked = Some(digest('3'));
    durable.images.of(IMAGE).unproven = Some(ImageId("sha256:three".into()));
    durable.images.of(API).blocked = Some(digest('6'));
    durable.images.of(API).unproven = Some(seen.containers[1].image.clone());
    let (web, api) = (seen.containers[0].clone(), seen.containers[1].clone());
    assert!(!scenario.poll(seen).updates(), "nobody has approved it");
    assert!(scenario.kinds().contains(&Kind::UNBLOCKED), "of the image that has a new digest");
    assert!(scenario.service.durable().rollback_failed);
    let crashed = Container { state: State::Exited, exit_code: 1, ..api };
    for at in [30, 60, 120] {
        scenario.at(at).look(&[&web, &crashed]);
        assert_eq!(scenario.restarts(), Vec::<String>::new());
    }
}

#[test]
fn a_skipped_key_file_gives_a_warning() {
    let fault = "key file /etc/old.pub can't be read: does not exist".to_owned();
    let mut scenario = Scenario::of(with(UpdateConfig {
        signed_by: vec!["/etc/old.pub".into(), "/etc/new.pub".into()],
        ..UpdateConfig::default()
    }));
    scenario.poll(Observation { key_faults: vec![fault], ..found('1') });
    assert_eq!(
        scenario.warnings(),
        ["update.signed_by: key file /etc/old.pub can't be read: does not exist, and is skipped"]
    );
}
