//! Scenarios with images whose configuration differs from that of the running one (DECISIONS 15).

use super::*;
use crate::config::UpdateConfig;
use crate::model::image_config::{Aspect, ConfigChange, ConfigDifference};
use crate::service::gates::candidate::ConfigsCompared;

const MOVED: &str =
    "declares VOLUME /data, the running image /var/lib: data may no longer be where the volume is mounted";

fn asks_on(aspects: &[Aspect]) -> UpdateConfig {
    UpdateConfig { ask_on: aspects.iter().copied().collect(), ..UpdateConfig::default() }
}

fn scenario(update: UpdateConfig) -> Scenario {
    Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() })
}

#[allow(clippy::unnecessary_wraps)] // the type of what a check has compared
fn moved() -> ConfigsCompared {
    let (after, before) = ("declares VOLUME /data".to_owned(), "/var/lib".to_owned());
    Ok(vec![ConfigDifference { aspect: Aspect::Volumes, after, before }])
}

/// A new digest, compared like this with the running image.
fn found(compared: Option<ConfigsCompared>) -> Observation {
    let mut seen = observed('2', &[local("sha256:one", &['1'])], &[&running("a")]);
    seen.configs.extend(compared.map(|compared| (IMAGE.to_owned(), compared)));
    seen
}

impl Scenario {
    fn begins_update(&mut self) -> bool {
        match self.act() {
            None => false,
            Some(Action::Step(Step::PinImages { .. })) => true,
            other => panic!("{other:?}"),
        }
    }

    /// The check that a person's trigger has requested.
    fn triggered(&mut self, seen: Observation) -> &mut Self {
        self.asked_to(ServiceRequest::Check);
        let generation = self.service.generation;
        self.input(Input::Checked { generation, is_manual: true, result: Ok(seen) })
    }

    fn asked_to(&mut self, request: ServiceRequest) -> ServiceReply {
        let (reply, entries) = self.service.handle_request(request, self.now);
        self.entries.extend(entries);
        reply
    }
}

#[test]
fn a_difference_that_is_asked_about_waits_for_an_approval_and_is_told() {
    let mut scenario = scenario(asks_on(&[Aspect::Volumes, Aspect::User]));
    scenario.check(found(Some(moved())));
    assert!(!scenario.begins_update());
    let waiting = scenario.record().waiting.expect("it waits");
    assert_eq!((waiting.gate.as_str(), waiting.clear.as_str()), ("breaking", "POST /approve/web"));
    assert!(waiting.why.contains(MOVED), "{waiting:?}");
    assert_eq!(waiting.differences, [MOVED]);
    let [told] = &scenario.entries[..] else { panic!("{:#?}", scenario.entries) };
    assert_eq!(told.event, Kind::UPDATE_AVAILABLE);
    assert_eq!(told.message.matches(MOVED).count(), 1, "{}", told.message);
    // A person's trigger says nothing about the difference.
    scenario.triggered(found(Some(moved())));
    assert!(!scenario.begins_update());
    assert_eq!(scenario.asked_to(ServiceRequest::Approve(None)), ServiceReply::Approved(digest('2')));
    scenario.check(found(Some(moved())));
    assert!(scenario.begins_update());
}

#[test]
fn while_nothing_runs_the_previous_image_is_started_and_a_difference_waits() {
    let down = exited("a", 255);
    let seen = |compared: Option<ConfigsCompared>| {
        let mut seen = observed('2', &[], &[&down]);
        seen.images[0].tagged = Some(local("sha256:one", &['1']));
        seen.configs.extend(compared.map(|compared| (IMAGE.to_owned(), compared)));
        seen
    };
    let starting = || {
        let update = Some(Arc::new(asks_on(&[Aspect::Volumes])));
        Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, update, ..config() })
    };
    for (compared, part) in [(Some(moved()), MOVED), (None, "has not been compared")] {
        let mut scenario = starting();
        scenario.check(seen(compared.clone()));
        let waiting = scenario.record().waiting.expect("it waits");
        assert!(waiting.gate == "breaking" && waiting.why.contains(part), "{waiting:?}");
        match scenario.act() {
            Some(Action::Step(Step::Start(BringUp { tags, .. }))) => {
                assert!(tags.iter().all(|(_, image)| image.id == ImageId("sha256:one".into())), "{tags:?}");
            }
            other => panic!("expected a start of the previous image, got {other:?}"),
        }
        let mut approved = starting();
        approved.check(seen(compared.clone()));
        approved.asked_to(ServiceRequest::Approve(None));
        approved.check(seen(compared));
        assert!(approved.begins_update());
    }
    let mut same = starting();
    same.check(seen(Some(Ok(Vec::new()))));
    assert!(same.begins_update());
    // Nothing was ever here that could differ.
    let mut first = starting();
    first.check(observed('2', &[], &[]));
    assert!(first.record().waiting.is_none(), "{:?}", first.record().waiting);
}

#[test]
fn a_redeploy_is_an_answer() {
    let mut scenario = scenario(asks_on(&Aspect::ALL));
    scenario.check(found(Some(moved())));
    assert!(!scenario.begins_update());
    assert_eq!(scenario.asked_to(ServiceRequest::Redeploy), ServiceReply::Redeploying(Vec::new()));
    scenario.check(found(Some(moved())));
    assert!(scenario.begins_update());
}

#[test]
fn other_differences_and_equal_images_do_not_wait() {
    for compared in [moved(), Ok(Vec::new())] {
        let mut scenario = scenario(asks_on(&[Aspect::Major, Aspect::Ports]));
        scenario.check(found(Some(compared)));
        assert!(scenario.begins_update());
    }
}

#[test]
fn what_can_not_be_compared_waits_for_a_person() {
    for (compared, part) in [
        (
            Some(Err("the configuration of the running image is not known".to_owned())),
            "of the running image is not known",
        ),
        (None, "has not been compared"),
    ] {
        let mut scenario = scenario(asks_on(&[Aspect::Major]));
        scenario.check(found(compared.clone()));
        assert!(!scenario.begins_update());
        let waiting = scenario.record().waiting.expect("it waits");
        assert!(waiting.why.contains(part), "{waiting:?}");
        assert_eq!(scenario.record().errored, None);
        scenario.asked_to(ServiceRequest::Approve(None));
        scenario.check(found(compared));
        assert!(scenario.begins_update());
    }
}

#[test]
fn one_approval_is_enough_for_approve_and_ask_on_and_a_trigger_for_approve_alone() {
    let both = || UpdateConfig { approve: true, ..asks_on(&[Aspect::Volumes]) };
    let mut differs = scenario(both());
    differs.check(found(Some(moved())));
    assert_eq!(differs.record().waiting.expect("it waits").gate, "approval");
    differs.triggered(found(Some(moved())));
    assert_eq!(
        differs.record().waiting.expect("it waits").gate,
        "breaking",
        "the trigger passes the other one"
    );
    differs.asked_to(ServiceRequest::Approve(None));
    differs.check(found(Some(moved())));
    assert!(differs.begins_update());

    let mut approved = scenario(both());
    approved.check(found(Some(moved())));
    approved.asked_to(ServiceRequest::Approve(None));
    approved.check(found(Some(moved())));
    assert!(approved.begins_update(), "one approval");

    let mut same = scenario(both());
    same.check(found(Some(Ok(Vec::new()))));
    same.triggered(found(Some(Ok(Vec::new()))));
    assert!(same.begins_update());
}

#[test]
fn an_approval_is_of_one_digest() {
    let mut scenario = scenario(asks_on(&[Aspect::Volumes]));
    scenario.check(found(Some(moved())));
    scenario.asked_to(ServiceRequest::Approve(None));
    // The tag moves on before the check that follows.
    let mut next = observed('3', &[local("sha256:one", &['1'])], &[&running("a")]);
    next.configs.insert(IMAGE.to_owned(), moved());
    scenario.check(next);
    assert!(!scenario.begins_update());
    assert_eq!(scenario.record().waiting.expect("it waits").digest, digest('3').to_string());
}

#[test]
fn differences_are_named_without_ask_on_too() {
    let old_enough = UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() };
    let mut held = scenario(old_enough);
    held.check(found(Some(moved())));
    assert!(!held.begins_update());
    let [told] = &held.entries[..] else { panic!("{:#?}", held.entries) };
    assert_eq!((told.event.clone(), told.reason.as_deref()), (Kind::UPDATE_AVAILABLE, Some("min_age")));
    assert!(told.message.ends_with(&format!("; the new image {MOVED}")), "{}", told.message);
    let why = held.why();
    let gate = why.gates.iter().find(|gate| gate.gate == "breaking").expect("it has a row");
    assert!(!gate.holds && gate.why.contains(MOVED), "{gate:?}");

    let mut updated = Scenario::of(config());
    updated.check(found(None));
    assert!(updated.begins_update());
    updated.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    assert!(matches!(updated.act(), Some(Action::Step(Step::Pull { .. }))));
    let change = ConfigChange { differences: moved().unwrap(), ..ConfigChange::default() };
    updated.input(Input::Stepped(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:two".into()))],
        labels: [(IMAGE.to_owned(), change)].into(),
    }));
    assert!(matches!(updated.act(), Some(Action::Step(_))));
    let new = Container { id: "new".into(), image: ImageId("sha256:two".into()), ..running("a") };
    updated.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![new.clone()],
    }));
    updated.look(&[&new]).at(60).look(&[&new]);
    let told = updated
        .entries
        .iter()
        .find(|entry| entry.event == Kind::UPDATED)
        .unwrap_or_else(|| panic!("{:#?}", updated.entries));
    let past = MOVED.replace("running", "previous");
    assert!(told.message.ends_with(&format!("; the new image {past}")), "{}", told.message);
}
