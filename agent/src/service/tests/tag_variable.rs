//! Scenarios of a newer tag that is written to the env file and deployed (DECISIONS 7).

use evenkeel_common::wire::{FleetAnswer, Permission};
use jiff::tz::TimeZone;

use super::*;
use crate::config::UpdateConfig;
use crate::model::env_file::find_tag;
use crate::model::tags::TagPattern;
use crate::model::window::Window;
use crate::service::fleet::{FleetView, Link};
use crate::service::images::OldImage;
use crate::service::observation::{Definition, TagInForce, Unanswered};
use crate::service::upkeep::maintenance::MaintenanceResult;

pub(super) const TEXT: &str = "export WEB_TAG=\"1\" # ours\n";
const TWIN: &str = "localhost:5000/worker:1";

pub(super) fn tagged(tag: &str) -> Reference {
    Reference { tag: Some(tag.to_owned()), ..Reference::parse(IMAGE).unwrap() }
}

pub(super) fn with_variable(update: UpdateConfig) -> ServiceConfig {
    let update = UpdateConfig {
        tags: Some(TagPattern::parse(">=1").unwrap()),
        tag_variable: Some("WEB_TAG".into()),
        ..update
    };
    ServiceConfig { update: Some(Arc::new(update)), env_file: Some("/srv/web/.env".into()), ..config() }
}

/// Tag 1 runs; the registry has tag 2 with digest `remote`.
fn newer(remote: char) -> Observation {
    let mut seen = observed(remote, &[local("sha256:one", &['1'])], &[&running("web")]);
    seen.images[0].newer = Some(tagged("2"));
    let setting = find_tag(TEXT, "WEB_TAG").unwrap();
    seen.tag = Some(TagInForce { setting, file_hash: "hash".into() });
    seen
}

/// Tag 1 runs; someone has written tag 2 into the line.
fn written_by_hand() -> Observation {
    let mut seen = newer('2');
    (seen.images[0].reference, seen.images[0].newer) = (tagged("2"), None);
    seen.tag.as_mut().unwrap().setting = find_tag("WEB_TAG=2", "WEB_TAG").unwrap();
    seen
}

impl Scenario {
    /// Lets the steps up to the one that writes the tag succeed.
    pub(super) fn up_to_write(&mut self) -> Option<Action> {
        loop {
            let result = match self.act()? {
                Action::Step(Step::PinImages { .. }) => StepResult::ImagesPinned { missing: Vec::new() },
                Action::Step(Step::Pull { images, .. }) => {
                    let ids = images.into_iter().map(|(image, _)| (image, ImageId("sha256:two".into())));
                    StepResult::Pulled { ids: ids.collect(), labels: BTreeMap::new() }
                }
                other => return Some(other),
            };
            self.input(Input::Stepped(result));
        }
    }

    fn started(&mut self, containers: &[&Container]) -> &mut Self {
        let containers = containers.iter().map(|c| (*c).clone()).collect();
        self.input(Input::Stepped(StepResult::Started {
            up: Ok(String::new()),
            named: Vec::new(),
            containers,
        }))
    }
}

#[test]
fn the_line_is_written_after_the_pull_and_restored_before_compose_runs_for_a_rollback() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer('2'));
    let Some(Action::Step(Step::WriteTag { project, tag, line, back, images, .. })) = scenario.up_to_write()
    else {
        panic!("the line comes before compose");
    };
    assert_eq!((tag.as_str(), back, project.set["WEB_TAG"].as_str()), ("2", false, "2"));
    let line = line.expect("it has another tag");
    assert_eq!(
        (line.old.as_str(), line.new.as_str()),
        ("export WEB_TAG=\"1\" # ours", "export WEB_TAG=\"2\" # ours")
    );
    assert_eq!(images, [tagged("2")]);
    // The journal is sufficient to resume.
    let journal = serde_json::to_string(scenario.service.durable()).unwrap();
    let read: Durable = serde_json::from_str(&journal).unwrap();
    assert_eq!(&read, scenario.service.durable());

    scenario.input(Input::Stepped(StepResult::TagWritten));
    let Some(Action::Step(Step::Start(BringUp { project, tags, .. }))) = scenario.act() else {
        panic!("compose")
    };
    assert_eq!(project.set["WEB_TAG"], "2");
    assert_eq!(tags[0].0, tagged("2"));
    let sick = Container {
        id: "new".into(),
        config_image: tagged("2").to_string(),
        image: ImageId("sha256:two".into()),
        ..with_health("web", HealthState::Unhealthy)
    };
    scenario.started(&[&sick]).at(60).look(&[&sick]);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Diagnose { .. }))));
    scenario.input(Input::Stepped(StepResult::Diagnosed { log: String::new() }));
    let Some(Action::Step(Step::WriteTag { project, tag, back, .. })) = scenario.act() else {
        panic!("the line is restored first");
    };
    assert_eq!((tag.as_str(), back, project.set["WEB_TAG"].as_str()), ("1", true, "1"));
    scenario.input(Input::Stepped(StepResult::TagLineChanged));
    let Some(Action::Step(Step::Start(BringUp { project, tags, .. }))) = scenario.act() else {
        panic!("compose")
    };
    assert_eq!(project.set["WEB_TAG"], "1", "whatever the file says");
    assert_eq!(tags[0].0, tagged("1"));
    let told = scenario.entries.iter().find(|entry| entry.event == Kind::ERROR).expect("it is reported");
    assert_eq!(told.reason.as_deref(), Some("it was changed in the meantime"));
    assert_eq!(scenario.service.durable().images.get(IMAGE).blocked.as_ref(), Some(&digest('2')));
}

#[test]
fn the_containers_whose_data_must_not_stay_behind_are_found_by_the_old_tag() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    let model = serde_json::json!({"services": {"web": {"image": IMAGE}}});
    let model = Arc::new(serde_json::from_value(model).unwrap());
    let mut seen = newer('2');
    seen.definition = Some(Ok(Definition { model, ..Definition::default() }));
    scenario.check(seen);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    scenario.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    let Some(Action::Step(Step::Pull { keeps: Some(keeps), .. })) = scenario.act() else { panic!("no pull") };
    assert!(keeps.replaced[IMAGE].contains("id-web"), "{keeps:?}");
}

#[test]
fn the_fleet_is_asked_about_the_newer_tag() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    let present = FleetView { link: Link::Present, ..FleetView::default() };
    scenario.service.fleet = Arc::new(present);
    scenario.check(newer('2'));
    let Some(Action::AskFleet { image, ask }) = scenario.act() else { panic!("it is asked") };
    assert_eq!((image.as_str(), ask.digest.as_str()), (IMAGE, digest('2').as_str()));
    assert_eq!(ask.image, tagged("2").to_string());
    let state = scenario.service.image_states().remove(0);
    assert_eq!((state.available, state.available_as), (Some(digest('2')), Some(tagged("2"))));
    let why = String::new();
    let go = FleetAnswer { answer: Permission::Go, why, gate: None, again: 30, agent: None, store: None };
    scenario.input(Input::FleetAnswered { image, ask: ask.clone(), answer: Ok(go) });
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    assert_eq!(scenario.service.leases(), [ask], "it is the same lease");
}

#[test]
fn a_line_edited_by_someone_else_ends_the_update_before_anything_is_changed() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer('2')).up_to_write();
    scenario.input(Input::Stepped(StepResult::TagLineChanged));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::RestoreTags { .. }))));
    scenario.input(Input::Stepped(StepResult::TagsRestored));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    assert_eq!(scenario.kinds(), [Kind::ERROR]);
    assert_eq!(scenario.service.durable().images.blocked().count(), 0);
    // If it is unknown whether it was written, it is restored.
    scenario.at(60).check(newer('2')).up_to_write();
    scenario.input(Input::Stepped(StepResult::Failed("no space left on device".into())));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::WriteTag { back: true, .. }))));
    scenario.input(Input::Stepped(StepResult::TagWritten));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::RestoreTags { .. }))));
}

#[test]
fn a_line_that_cannot_be_written_is_tried_again_with_increasing_delays() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    let mut attempts = Vec::new();
    for minute in 0..60 {
        scenario.at(minute * 60).check(newer('2'));
        let mut step = scenario.up_to_write();
        let begun = matches!(step, Some(Action::Step(Step::WriteTag { .. })));
        while let Some(Action::Step(taken)) = step {
            let result = match taken {
                Step::WriteTag { back: false, .. } => StepResult::Failed("read-only file system".into()),
                Step::WriteTag { back: true, .. } => StepResult::TagWritten,
                Step::RestoreTags { .. } => StepResult::TagsRestored,
                Step::Unpin { .. } => StepResult::Unpinned,
                other => panic!("{other:?}"),
            };
            step = scenario.input(Input::Stepped(result)).act();
        }
        assert!(scenario.service.durable().deployment.is_none());
        assert_eq!(scenario.status(), StatusValue::Errored, "the fault stays");
        attempts.extend(begun.then_some(minute));
    }
    // Twice with the next check, then after 10, 20, and 40 minutes at least.
    assert_eq!(attempts[..3], [0, 1, 2]);
    assert!(attempts.len() <= 5 && attempts.len() > 3, "{attempts:?}");
    assert_eq!(scenario.kinds(), [Kind::ERROR], "it is told once");
}

#[test]
fn the_same_content_under_a_newer_name_is_no_update() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer('1'));
    assert_eq!(scenario.act(), None);
    assert_eq!(scenario.kinds(), []);
}

#[test]
fn a_tag_written_by_an_operator_is_deployed_without_touching_the_line() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(written_by_hand());
    let Some(Action::Step(Step::WriteTag { line, back, .. })) = scenario.up_to_write() else {
        panic!("the compose files are checked")
    };
    assert_eq!((line, back), (None, false));
    scenario.input(Input::Stepped(StepResult::TagWritten));
    let Some(Action::Step(Step::Start(BringUp { project, .. }))) = scenario.act() else { panic!("compose") };
    assert_eq!(project.set["WEB_TAG"], "2");
}

#[test]
fn a_tag_in_its_line_that_the_compose_files_do_not_use_is_a_fault() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(written_by_hand()).up_to_write();
    scenario.input(Input::Stepped(StepResult::Failed("the compose files do not use WEB_TAG".into())));
    let Some(Action::Step(Step::RestoreTags { .. })) = scenario.act() else {
        panic!("there is no line to restore")
    };
    scenario.input(Input::Stepped(StepResult::TagsRestored));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::ERROR], StatusValue::Errored));
}

#[test]
fn the_tag_in_force_is_shown_if_it_is_not_the_configured_one() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    let shown = |scenario: &Scenario| scenario.service.in_force();
    assert_eq!(shown(scenario.check(newer('1'))), BTreeMap::new());
    let mut seen = newer('1');
    (seen.images[0].from, seen.images[0].newer) = (tagged("2"), None);
    assert_eq!(shown(scenario.check(seen)), BTreeMap::from([(IMAGE.to_owned(), tagged("2"))]));
}

/// A second image of the variable.
fn with_twin() -> ServiceConfig {
    let mut config = with_variable(UpdateConfig::default());
    let reference = Reference::parse(TWIN).unwrap();
    config.images.push(ConfiguredImage { configured: TWIN.into(), reference });
    config
}

fn worker() -> Container {
    Container { config_image: TWIN.into(), image: ImageId("sha256:w".into()), ..running("worker") }
}

/// Tag 1 of both images runs; the registry has this newer tag, for the worker with digest `of_worker` if it answers.
fn with_worker(tag: &str, of_worker: Option<char>) -> Observation {
    let twin = Reference::parse(TWIN).unwrap();
    let mut seen = newer('2');
    seen.images[0].newer = Some(tagged(tag));
    seen.containers = [&*seen.containers, &[worker()]].concat().into();
    if of_worker.is_none() {
        seen.unanswered.insert(TWIN.into(), Unanswered::Failed("away".into()));
    }
    let (remote, running) = (of_worker.map(digest), vec![local("sha256:w", &['5'])]);
    let newer = Some(twin.with_tag(tag));
    seen.images.push(ImageView { newer, remote, running, ..ImageView::new(TWIN.into(), twin) });
    seen
}

#[test]
fn all_images_of_the_variable_move_together_or_not_at_all() {
    let config = with_twin();
    let both = |of_worker| with_worker("2", of_worker);
    let mut scenario = Scenario::of(config.clone());
    scenario.check(both(None));
    assert_eq!(scenario.act(), None, "one registry does not answer");
    scenario.at(60).check(both(Some('6')));
    let Some(Action::Step(Step::WriteTag { images, .. })) = scenario.up_to_write() else {
        panic!("both move")
    };
    assert_eq!(images.len(), 2);
    // Whichever of them has failed under the newer tag keeps the other from it, already at the check.
    for failed in [(IMAGE, '2'), (TWIN, '6')] {
        let mut scenario = Scenario::of(config.clone());
        let memory = scenario.service.durable.images.of(failed.0);
        memory.block(&digest(failed.1));
        memory.blocked = None;
        scenario.check(both(Some('6')));
        assert!(!scenario.service.wants_update(), "{failed:?}");
        assert_eq!(scenario.act(), None, "{failed:?}");
    }
    // An image with the same content gets the new tag, too.
    let mut scenario = Scenario::of(config);
    scenario.check(both(Some('5')));
    let Some(Action::Step(Step::WriteTag { images, .. })) = scenario.up_to_write() else {
        panic!("both move")
    };
    assert_eq!(images.len(), 2);
}

#[test]
fn while_one_image_waits_for_its_approval_that_is_shown_although_another_one_waits_for_the_window() {
    let window = Window::parse(["02:00-05:00"], TimeZone::UTC).ok();
    let update = UpdateConfig { approve: true, window, ..UpdateConfig::default() };
    let mut scenario = Scenario::of(ServiceConfig { update: with_variable(update).update, ..with_twin() });
    scenario.check(with_worker("2", Some('6')));
    for (image, gate, approved) in [(IMAGE, "approval", '2'), (TWIN, "approval", '6'), (IMAGE, "window", '2')]
    {
        let waiting = scenario.record().waiting.expect("it waits");
        assert_eq!((waiting.image.as_str(), waiting.gate.as_str()), (image, gate));
        assert_eq!(scenario.why().answer, waiting.why);
        assert_eq!(scenario.approve(None), ServiceReply::Approved(digest(approved)));
    }
}

#[test]
fn a_tag_under_which_one_image_has_failed_blocks_neither_the_others_nor_the_next_tag() {
    let (config, twin) = (with_twin(), Reference::parse(TWIN).unwrap());
    let mut scenario = Scenario::of(config);
    scenario.check(with_worker("2", Some('6')));
    let pulled = [(IMAGE, "sha256:two"), (TWIN, "sha256:w2")];
    let ids = pulled.map(|(image, id)| (image.to_owned(), ImageId(id.into()))).to_vec();
    for result in [
        StepResult::ImagesPinned { missing: Vec::new() },
        StepResult::Pulled { ids, labels: BTreeMap::new() },
        StepResult::TagWritten,
    ] {
        assert!(matches!(scenario.act(), Some(Action::Step(_))));
        scenario.input(Input::Stepped(result));
    }
    let of = |name: &str, image: &str, id: &str| Container {
        id: format!("new-{name}"),
        config_image: image.into(),
        image: ImageId(id.into()),
        ..running(name)
    };
    let web = of("web", &tagged("2").to_string(), "sha256:two");
    let sick = Container {
        health: Some(HealthState::Unhealthy),
        ..of("worker", &twin.with_tag("2").to_string(), "sha256:w2")
    };
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    scenario.started(&[&web, &sick]).at(60).look(&[&web, &sick]);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Diagnose { .. }))));
    let images = &scenario.service.durable().images;
    let blocked = [IMAGE, TWIN].map(|image| images.get(image).blocked.clone());
    assert_eq!(blocked, [None, Some(digest('6'))]);
    // The next tag mends the worker, and leaves the other image as it was.
    let started_at = scenario.seconds(61);
    let [web, worker] = &[running("web"), worker()].map(|old| Container { started_at, ..old });
    scenario.input(Input::Stepped(StepResult::Diagnosed { log: String::new() }));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::WriteTag { back: true, .. }))));
    scenario.input(Input::Stepped(StepResult::TagWritten));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    scenario.started(&[web, worker]).at(62).look(&[web, worker]).at(110).look(&[web, worker]);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    scenario.at(120).check(with_worker("3", Some('7')));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
}

#[test]
fn tags_known_before_a_restart_are_used_until_the_list_is_read_again() {
    let config = with_variable(UpdateConfig::default());
    let mut scenario = Scenario::of(config.clone());
    let found = |tag: &str| {
        let found = BTreeMap::from([(IMAGE.to_owned(), vec![tag.to_owned()])]);
        Input::Maintained(MaintenanceResult::NewerTags(found.into()))
    };
    scenario.check(newer('1')).input(found("3"));
    assert_eq!(scenario.service.tags_to_deploy(), ["3"]);
    assert!(scenario.service.checks.is_due(), "it is checked without waiting for a cycle");
    let restart = |scenario: &mut Scenario| {
        let (durable, boot) = (scenario.service.durable().clone(), boot_of("one", "one"));
        let config = Arc::new(config.clone());
        scenario.service = Service::new(config, durable, boot, StartReason::Start, scenario.now).0;
    };
    restart(&mut scenario);
    assert_eq!(scenario.service.tags_to_deploy(), ["3"]);
    let none = || {
        let none = BTreeMap::from([(IMAGE.to_owned(), Vec::new())]);
        Input::Maintained(MaintenanceResult::NewerTags(none.into()))
    };
    scenario.input(none());
    assert_eq!(scenario.service.tags_to_deploy(), [""; 0]);
    // A tag that was withdrawn does not come back with a restart, and is not reported again if the list flaps.
    restart(&mut scenario);
    assert_eq!(scenario.service.tags_to_deploy(), [""; 0]);
    scenario.entries.clear();
    scenario.input(found("3")).input(none()).input(found("3"));
    assert_eq!(scenario.kinds(), []);
    scenario.input(found("2"));
    restart(&mut scenario);
    assert_eq!(scenario.service.tags_to_deploy(), ["2"], "the newest one was withdrawn");
}

#[test]
fn after_a_failed_rollback_the_next_tag_would_roll_back_to_the_proven_one() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    let proven = OldImage { id: ImageId("sha256:one".into()), source: None };
    scenario.service.durable.images.of(IMAGE).proven = Some(proven.clone());
    scenario.service.durable.images.of(IMAGE).unproven = Some(ImageId("sha256:bad".into()));
    // The line was restored to tag 1, but compose failed: the bad image of tag 2 still runs.
    let bad = ImageId("sha256:bad".into());
    let runs = Container { config_image: tagged("2").to_string(), image: bad, ..running("web") };
    let mut seen = Observation { containers: [runs].into(), ..newer('3') };
    seen.images[0].newer = Some(tagged("3"));
    seen.images[0].from = tagged("2");
    seen.images[0].running = vec![local("sha256:bad", &['2'])];
    scenario.check(seen);
    assert!(matches!(scenario.up_to_write(), Some(Action::Step(Step::WriteTag { .. }))));
    let plan = scenario.service.durable().deployment.as_ref().expect("it is in progress").plan().clone();
    assert_eq!(plan.tag.map(|tag| (tag.old, tag.new)), Some(("1".into(), "3".into())));
    let change = &plan.image_changes[0];
    assert_eq!((change.from.clone(), change.old.clone()), (Some(tagged("1")), Some(proven)));
}
