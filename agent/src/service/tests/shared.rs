//! Scenarios of two services of a project that list the same image, one of them with gates.

use std::path::PathBuf;

use super::*;
use crate::config::UpdateConfig;
use crate::ports::GateAnswer;
use crate::service::decide::shared::add_shared_candidates;
use crate::service::gates::candidate::Unsigned;

const HOUR: i64 = 3600;

/// Two services, with the exchange that the worker of their project does for them.
struct Pair {
    free: Scenario,
    gated: Scenario,
}

impl Pair {
    fn of(update: UpdateConfig) -> Self {
        Self::both(None, update)
    }

    fn both(free: Option<UpdateConfig>, gated: UpdateConfig) -> Self {
        let free = ServiceConfig { name: "free".into(), update: free.map(Arc::new), ..config() };
        let gated = ServiceConfig { name: "gated".into(), update: Some(Arc::new(gated)), ..config() };
        let all: Arc<[Arc<ServiceConfig>]> = [Arc::new(free.clone()), Arc::new(gated.clone())].into();
        let (mut free, mut gated) = (Scenario::of(free), Scenario::of(gated));
        free.service.project.services = all.clone();
        gated.service.project.services = all;
        Self { free, gated }
    }

    fn at(&mut self, seconds: i64) -> &mut Self {
        self.free.at(seconds);
        self.gated.at(seconds);
        self
    }

    fn observation(of: &Scenario, other: &Scenario, unsigned: Option<Unsigned>) -> Observation {
        let mut seen = observed('2', &[local("sha256:one", &['1'])], &[&running("web")]);
        seen.unsigned.extend(unsigned.map(|why| (IMAGE.to_owned(), why)));
        add_shared_candidates(&mut seen, &[&other.service], of.now);
        seen
    }

    fn check_free(&mut self) -> &mut Self {
        let seen = Self::observation(&self.free, &self.gated, None);
        self.free.service.check(true);
        self.free.check(seen);
        self
    }

    fn check_gated(&mut self, unsigned: Option<Unsigned>) -> &mut Self {
        let seen = Self::observation(&self.gated, &self.free, unsigned);
        self.gated.service.check(true);
        self.gated.check(seen);
        self
    }

    /// Sends a manual request to the free one.
    fn ask_free(&mut self, request: ServiceRequest) {
        let is_manual = request == ServiceRequest::Check;
        self.free.service.handle_request(request, self.free.now);
        let result = Ok(Self::observation(&self.free, &self.gated, None));
        let generation = self.free.service.generation;
        self.free.input(Input::Checked { generation, is_manual, result });
    }

    fn free_waits_for(&self) -> Option<(String, String)> {
        self.free.record().waiting.map(|waiting| (waiting.gate, waiting.why))
    }
}

fn begins(scenario: &mut Scenario) -> bool {
    matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. })))
}

fn old_enough() -> UpdateConfig {
    UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() }
}

#[test]
fn an_update_of_a_service_without_gates_waits_for_the_gates_of_the_other() {
    let mut pair = Pair::of(old_enough());
    // The gated service has not seen the digest yet.
    pair.at(0).check_free();
    assert!(!begins(&mut pair.free));
    pair.check_gated(None);
    pair.at(60).check_free();
    assert!(!begins(&mut pair.free));
    let (gate, why) = pair.free_waits_for().unwrap();
    assert_eq!(gate, "project");
    assert!(why.contains("gated") && why.contains("min_age"), "{why}");
    let waiting = pair.free.record().waiting.unwrap();
    assert_eq!((waiting.lifts_at, waiting.clear.as_str()), (pair.free.seconds(HOUR), "POST /trigger/gated"));
    assert_eq!(pair.free.kinds(), [Kind::UPDATE_AVAILABLE]);
    assert_eq!(pair.free.service.checks.again_at, pair.free.seconds(HOUR), "it is checked again by then");
    pair.at(HOUR).check_free();
    assert!(begins(&mut pair.free));
}

#[test]
fn each_service_waits_for_both_gates_but_not_forever() {
    let window = crate::model::window::Window::parse(["02:00-03:00"], jiff::tz::TimeZone::UTC).unwrap();
    let window = UpdateConfig { window: Some(window), ..UpdateConfig::default() };
    let mut pair = Pair::both(Some(window), old_enough());
    pair.at(0).check_free().check_gated(None).check_free();
    assert_eq!(pair.free_waits_for().unwrap().0, "window");
    pair.at(HOUR).check_gated(None);
    assert!(!begins(&mut pair.gated), "its own gate has lifted, the other's has not");
    assert_eq!(pair.gated.record().waiting.unwrap().gate, "project");
    pair.check_gated(None);
    assert_eq!(pair.gated.service.checks.again_at, pair.gated.seconds(2 * HOUR));
    pair.at(2 * HOUR).check_gated(None).check_free();
    assert!(begins(&mut pair.gated) && begins(&mut pair.free));
}

#[test]
fn a_request_passes_the_same_gates_of_the_other_service_as_of_its_own() {
    for update in [old_enough(), UpdateConfig { approve: true, ..UpdateConfig::default() }] {
        let mut pair = Pair::of(update);
        pair.at(0).check_gated(None).check_free();
        pair.ask_free(ServiceRequest::Check);
        assert!(begins(&mut pair.free));
    }
    let command = UpdateConfig { gate: vec!["/bin/may-update".into()], ..UpdateConfig::default() };
    let mut pair = Pair::of(command);
    pair.at(0).check_gated(None).check_free();
    pair.ask_free(ServiceRequest::Check);
    assert!(!begins(&mut pair.free), "a trigger does not pass a command");
    assert!(matches!(pair.gated.act(), Some(Action::RunGateCommand { .. })));
    let answer = GateAnswer::Go { reason: String::new() };
    let (image, digest) = (IMAGE.to_owned(), digest('2'));
    pair.gated.input(Input::CommandAnswered { image, digest, answer });
    pair.check_free();
    assert!(begins(&mut pair.free));
    let mut pair = Pair::of(old_enough());
    pair.at(0).check_gated(None).check_free();
    pair.ask_free(ServiceRequest::Redeploy);
    assert!(begins(&mut pair.free));
}

#[test]
fn no_request_passes_a_signature_that_the_other_service_requires() {
    let key = vec![PathBuf::from("/etc/key.pub")];
    let mut pair = Pair::of(UpdateConfig { signed_by: key, ..UpdateConfig::default() });
    pair.at(0).check_free();
    assert!(!begins(&mut pair.free), "it is not known yet whether it is signed");
    pair.check_gated(Some(Unsigned::Missing)).check_free();
    let (gate, why) = pair.free_waits_for().unwrap();
    assert!(gate == "signature" && why.contains("gated") && why.contains("is not signed"), "{gate}: {why}");
    pair.ask_free(ServiceRequest::Check);
    assert!(!begins(&mut pair.free));
    pair.ask_free(ServiceRequest::Redeploy);
    match pair.free.act() {
        Some(Action::Step(Step::PinImages { .. })) => {}
        other => panic!("{other:?}"),
    }
    pair.free.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    let Some(Action::Step(Step::Pull { images, .. })) = pair.free.act() else { panic!("no pull") };
    assert_eq!(images, [], "the running image stays");

    let key = vec![PathBuf::from("/etc/key.pub")];
    let mut pair = Pair::of(UpdateConfig { signed_by: key, ..UpdateConfig::default() });
    // Once it is signed both may update, whatever each last learned from the other.
    pair.at(0).check_free().check_gated(Some(Unsigned::Missing)).check_free();
    pair.at(60).check_gated(None).check_free();
    assert!(begins(&mut pair.free));
}

#[test]
fn an_unsigned_digest_is_reported_only_by_the_service_that_requires_a_signature() {
    let key = vec![PathBuf::from("/etc/key.pub")];
    let mut pair = Pair::of(UpdateConfig { signed_by: key, ..UpdateConfig::default() });
    for (second, told) in [(0, 1), (HOUR, 0), (2 * HOUR, 0)] {
        pair.at(second).check_gated(Some(Unsigned::Missing)).check_free();
        assert_eq!(pair.free_waits_for().expect("it waits").0, "signature");
        assert_eq!(pair.gated.kinds(), vec![Kind::UPDATE_AVAILABLE; told], "at {second}");
        assert_eq!(pair.free.kinds(), [], "at {second}");
    }
}

#[test]
fn an_image_of_former_times_waits_until_the_service_that_requires_a_signature_has_an_approval() {
    let key = vec![PathBuf::from("/etc/key.pub")];
    let mut pair = Pair::of(UpdateConfig { signed_by: key, ..UpdateConfig::default() });
    pair.gated.service.durable.images.of(IMAGE).leave(&digest('2'), &digest('1'));
    pair.at(0).check_gated(None).check_free();
    let waiting = pair.free.record().waiting.expect("it waits");
    assert_eq!((waiting.gate.as_str(), waiting.clear.as_str()), ("signature", "POST /approve/gated"));
    assert!(waiting.why.contains("gated") && waiting.why.contains("ran here before"), "{}", waiting.why);
    pair.ask_free(ServiceRequest::Check);
    assert!(!begins(&mut pair.free));
    let now = pair.gated.now;
    pair.gated.service.approve(None, now);
    pair.at(60).check_free();
    assert!(begins(&mut pair.free));
}

#[test]
fn a_service_that_is_not_updated_or_has_another_image_holds_nothing() {
    let mut pair = Pair::of(old_enough());
    let asleep = ServiceConfig { auto_update: false, ..pair.gated.service.config().clone() };
    pair.gated.service.config = Arc::new(asleep.clone());
    let all: Arc<[_]> = [pair.free.service.shared_config(), Arc::new(asleep)].into();
    pair.free.service.project.services = all;
    pair.at(0).check_free();
    assert!(begins(&mut pair.free));

    let mut pair = Pair::of(old_enough());
    let reference = Reference::parse("localhost:5000/web:2").unwrap();
    let images = vec![ConfiguredImage { configured: reference.to_string(), reference }];
    let other = ServiceConfig { images, ..pair.gated.service.config().clone() };
    pair.gated.service.config = Arc::new(other.clone());
    let all: Arc<[_]> = [pair.free.service.shared_config(), Arc::new(other)].into();
    pair.free.service.project.services = all;
    pair.at(0).check_free();
    assert!(begins(&mut pair.free));
}

#[test]
fn after_a_trigger_the_answer_is_the_gate_that_still_holds_and_not_one_that_was_passed() {
    let command = UpdateConfig { gate: vec!["/bin/may-update".into()], ..UpdateConfig::default() };
    let mut pair = Pair::both(Some(old_enough()), command);
    pair.at(0).check_gated(None).check_free();
    assert_eq!(pair.free_waits_for().unwrap().0, "min_age");
    pair.ask_free(ServiceRequest::Check);
    assert!(!begins(&mut pair.free));
    let (gate, why) = pair.free_waits_for().unwrap();
    assert_eq!(gate, "project");
    let report = pair.free.why();
    assert_eq!(report.answer, why);
    let min_age = report.gates.iter().find(|gate| gate.gate == "min_age").expect("it is listed");
    assert_eq!((min_age.holds, min_age.why.as_str()), (false, "a request has passed it"));
}

#[test]
fn a_digest_that_the_other_service_has_blocked_is_told_with_the_request_that_releases_it() {
    let mut pair = Pair::of(UpdateConfig::default());
    pair.gated.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    let seen = Pair::observation(&pair.free, &pair.gated, None);
    pair.free.trigger(Observation { blocked_elsewhere: vec![blocked_by("gated")], ..seen });
    assert!(!begins(&mut pair.free));
    let record = pair.free.record();
    assert_eq!(record.blocked, None, "it counts where it has failed");
    let waiting = record.waiting.expect("it waits");
    assert_eq!((waiting.gate.as_str(), waiting.clear.as_str()), ("blocked", "POST /unblock/gated"));
    assert!(waiting.why.contains("failed for gated"), "{}", waiting.why);
    assert_eq!(pair.free.why().answer, waiting.why);
    let told = pair.free.entries.iter().find(|entry| entry.event == Kind::CHECKED).expect("it is told");
    assert!(told.message.contains(&waiting.why), "{}", told.message);
    // What runs is not withheld.
    let mut runs = Pair::observation(&pair.free, &pair.gated, None);
    runs.images[0].running = vec![local("sha256:one", &['2'])];
    pair.free.check(Observation { blocked_elsewhere: vec![blocked_by("gated")], ..runs });
    assert_eq!(pair.free.record().waiting, None);
}
