//! Stories of two services of a project that list the same image, of which one has gates.

use std::path::PathBuf;

use super::*;
use crate::config::UpdateConfig;
use crate::ports::GateAnswer;
use crate::service::input::Unsigned;
use crate::service::shared::hear_others;

const HOUR: i64 = 3600;

/// Two services, and what the worker of their project does for them.
struct Pair {
    free: Story,
    gated: Story,
}

impl Pair {
    fn of(update: UpdateConfig) -> Self {
        Self::both(None, update)
    }

    fn both(free: Option<UpdateConfig>, gated: UpdateConfig) -> Self {
        let free = ServiceConfig { name: "free".into(), update: free.map(Arc::new), ..config() };
        let gated = ServiceConfig { name: "gated".into(), update: Some(Arc::new(gated)), ..config() };
        let all: Arc<[Arc<ServiceConfig>]> = [Arc::new(free.clone()), Arc::new(gated.clone())].into();
        let (mut free, mut gated) = (Story::of(free), Story::of(gated));
        free.service.set_siblings(all.clone());
        gated.service.set_siblings(all);
        Self { free, gated }
    }

    fn at(&mut self, seconds: i64) -> &mut Self {
        self.free.at(seconds);
        self.gated.at(seconds);
        self
    }

    fn observation(of: &Story, other: &Story, unsigned: Option<Unsigned>) -> Observation {
        let mut seen = observed('2', &[local("sha256:one", &['1'])], &[&running("web")]);
        seen.unsigned.extend(unsigned.map(|why| (IMAGE.to_owned(), why)));
        hear_others(&mut seen, &[&other.service], of.now);
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

    /// A person asks the free one.
    fn ask_free(&mut self, request: ServiceRequest) {
        let asked = request == ServiceRequest::Check;
        self.free.service.ask(request, self.free.now);
        let result = Ok(Self::observation(&self.free, &self.gated, None));
        let generation = self.free.service.generation;
        self.free.input(Input::Checked { generation, asked, result });
    }

    fn free_waits_for(&self) -> Option<(String, String)> {
        self.free.record().waiting.map(|waiting| (waiting.gate, waiting.why))
    }
}

fn begins(story: &mut Story) -> bool {
    matches!(story.act(), Some(Action::Step(Step::PinImages { .. })))
}

fn old_enough() -> UpdateConfig {
    UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() }
}

#[test]
fn an_update_of_a_service_without_gates_waits_for_those_of_the_other() {
    let mut pair = Pair::of(old_enough());
    // The one with the gate has not even seen the digest.
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
    assert_eq!(pair.free.service.recheck_at, pair.free.seconds(HOUR), "it goes by itself");
    pair.at(HOUR).check_free();
    assert!(begins(&mut pair.free));
}

#[test]
fn each_waits_for_both_and_neither_for_ever() {
    let window = crate::model::window::Window::parse(["02:00-03:00"], jiff::tz::TimeZone::UTC).unwrap();
    let window = UpdateConfig { window: Some(window), ..UpdateConfig::default() };
    let mut pair = Pair::both(Some(window), old_enough());
    pair.at(0).check_free().check_gated(None).check_free();
    assert_eq!(pair.free_waits_for().unwrap().0, "window");
    pair.at(HOUR).check_gated(None);
    assert!(!begins(&mut pair.gated), "its own gate has lifted, the other's has not");
    assert_eq!(pair.gated.record().waiting.unwrap().gate, "project");
    pair.check_gated(None);
    assert_eq!(pair.gated.service.recheck_at, pair.gated.seconds(2 * HOUR));
    pair.at(2 * HOUR).check_gated(None).check_free();
    assert!(begins(&mut pair.gated) && begins(&mut pair.free));
}

#[test]
fn a_request_passes_of_the_others_gates_what_it_passes_of_its_own() {
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
    assert!(matches!(pair.gated.act(), Some(Action::AskCommand { .. })));
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
fn no_request_passes_a_signature_that_the_other_asks_for() {
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
    assert_eq!(images, [], "what runs stays");

    let key = vec![PathBuf::from("/etc/key.pub")];
    let mut pair = Pair::of(UpdateConfig { signed_by: key, ..UpdateConfig::default() });
    // Once it is signed both may go, whatever each has heard of the other.
    pair.at(0).check_free().check_gated(Some(Unsigned::Missing)).check_free();
    pair.at(60).check_gated(None).check_free();
    assert!(begins(&mut pair.free));
}

#[test]
fn a_service_that_is_not_updated_or_has_another_image_holds_nothing() {
    let mut pair = Pair::of(old_enough());
    let asleep = ServiceConfig { auto_update: false, ..pair.gated.service.config().clone() };
    pair.gated.service.config = Arc::new(asleep.clone());
    let all: Arc<[_]> = [pair.free.service.shared_config(), Arc::new(asleep)].into();
    pair.free.service.set_siblings(all);
    pair.at(0).check_free();
    assert!(begins(&mut pair.free));

    let mut pair = Pair::of(old_enough());
    let reference = Reference::parse("localhost:5000/web:2").unwrap();
    let images = vec![ConfiguredImage { configured: reference.to_string(), reference }];
    let other = ServiceConfig { images, ..pair.gated.service.config().clone() };
    pair.gated.service.config = Arc::new(other.clone());
    let all: Arc<[_]> = [pair.free.service.shared_config(), Arc::new(other)].into();
    pair.free.service.set_siblings(all);
    pair.at(0).check_free();
    assert!(begins(&mut pair.free));
}
