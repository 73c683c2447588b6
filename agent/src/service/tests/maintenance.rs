//! Scenarios of maintenance: newer tags, old images, the rollback check.

use std::collections::BTreeMap;

use evenkeel_common::wire::WayBackValue;

use super::*;
use crate::config::UpdateConfig;
use crate::model::tags::TagPattern;
use crate::service::images::DeployedImage;
use crate::service::upkeep::maintenance::{
    FoundTags, MaintenanceResult, MaintenanceTask, MissingReason, NotNewer, RemovableImage, RollbackRisk,
    RunningImage, TagInUse,
};

impl Scenario {
    /// Returns the next maintenance task.
    fn task(&mut self) -> Option<MaintenanceTask> {
        loop {
            match self.service.next(self.now)? {
                Action::Maintain(task) => return Some(task),
                Action::Inspect { .. } => self.service.inspections.end(),
                Action::Check { .. } => self.service.checks.drop_running(),
                other => panic!("expected reading only, got {other:?}"),
            }
        }
    }

    fn maintained(&mut self, result: MaintenanceResult) -> Vec<Kind> {
        self.input(Input::Maintained(result)).kinds()
    }

    /// Returns a service that runs version 5.
    fn on_five(config: ServiceConfig) -> Self {
        let mut scenario = Self::of(config);
        let container = Container { image: version(5), ..running("web") };
        scenario.check(observed('5', &[local("sha256:v5", &['5'])], &[&container]));
        scenario
    }
}

fn version(n: u32) -> ImageId {
    ImageId(format!("sha256:v{n}").into())
}

fn reference() -> Reference {
    Reference::parse(IMAGE).unwrap()
}

fn old(n: u32, tags: &[Reference]) -> RemovableImage {
    RemovableImage { id: version(n), tags: tags.to_vec() }
}

fn newest(tag: Option<&str>) -> MaintenanceResult {
    let newer = BTreeMap::from([(IMAGE.to_owned(), tag.map(str::to_owned).into_iter().collect())]);
    MaintenanceResult::NewerTags(FoundTags::from(newer))
}

fn found(risks: Vec<RollbackRisk>) -> MaintenanceResult {
    MaintenanceResult::WayBackChecked(Some(risks))
}

#[test]
fn newer_tags_are_looked_for_hourly_and_each_is_reported_once() {
    let pattern = TagPattern::parse("^1").unwrap();
    let update = UpdateConfig { tags: Some(pattern.clone()), ..UpdateConfig::default() };
    let mut scenario = Scenario::on_five(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    let repository = Reference::parse(IMAGE).unwrap().repository;
    let look = |known: Option<&str>| {
        let (known, repository) = (known.map(str::to_owned), repository.clone());
        let image =
            TagInUse { configured: IMAGE.into(), repository, tag: "1".into(), is_shared: false, known };
        MaintenanceTask::FindNewerTags { pattern: pattern.clone(), images: vec![image], refresh: false }
    };
    assert_eq!(scenario.task(), Some(look(None)));
    assert_eq!(scenario.at(1).task(), None, "one task at a time");
    assert_eq!(scenario.maintained(newest(Some("2"))), [Kind::UPDATE_AVAILABLE]);
    let newer = |scenario: &Scenario| scenario.record().images.unwrap()[0].newer.clone();
    assert_eq!(newer(&scenario).as_deref(), Some("2"));
    assert_eq!(scenario.at(60).task(), None);
    let next = scenario.service.wake_at(scenario.now).unwrap();
    assert!(next <= scenario.now + SignedDuration::from_hours(1), "it wakes up for the next look: {next}");
    assert_eq!(scenario.at(3600).task(), Some(look(Some("2"))), "it is not compared again");
    assert_eq!(scenario.maintained(newest(Some("2"))), []);
    assert_eq!(scenario.maintained(newest(Some("3"))), [Kind::UPDATE_AVAILABLE]);
    // The registry gave no answer: the known tags stay.
    assert_eq!(scenario.maintained(MaintenanceResult::NewerTags(FoundTags::default())), []);
    assert_eq!(newer(&scenario).as_deref(), Some("3"));
    assert_eq!(scenario.maintained(newest(None)), []);
    assert_eq!(newer(&scenario), None);
}

#[test]
fn each_tag_is_announced_once_whatever_was_announced_in_between() {
    let update = UpdateConfig { tags: TagPattern::parse(">=1").ok(), ..UpdateConfig::default() };
    let mut scenario = Scenario::on_five(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    // The lists of two replicas in turn; then one that is withdrawn, and what is published instead of it.
    for (tag, told) in [("3", 1), ("2", 1), ("3", 0), ("2", 0), ("99", 1), ("3", 0), ("4", 1), ("5", 1)] {
        assert_eq!(scenario.maintained(newest(Some(tag))), vec![Kind::UPDATE_AVAILABLE; told], "{tag}");
    }
}

#[test]
fn a_list_of_tags_that_is_refused_is_said_where_people_look_for_updates() {
    let pattern = Some(TagPattern::parse("^1").unwrap());
    let update = Some(Arc::new(UpdateConfig { tags: pattern, ..UpdateConfig::default() }));
    let mut scenario = Scenario::on_five(ServiceConfig { update, ..config() });
    let errors = BTreeMap::from([(IMAGE.to_owned(), "it answers 403".to_owned())]);
    scenario.maintained(MaintenanceResult::NewerTags(FoundTags { errors, ..FoundTags::default() }));
    assert!(scenario.warnings().iter().any(|text| text.contains("403")), "{:?}", scenario.warnings());
    scenario.maintained(newest(None));
    assert_eq!(scenario.warnings(), Vec::<String>::new());
    // A tag of another scheme is told once, and never offered.
    let found = || FoundTags {
        not_newer: BTreeMap::from([(IMAGE.to_owned(), ("2021.12.16".to_owned(), NotNewer::OtherScheme))]),
        ..FoundTags::default()
    };
    assert_eq!(scenario.maintained(MaintenanceResult::NewerTags(found())), [Kind::UPDATE_AVAILABLE]);
    assert_eq!(scenario.maintained(MaintenanceResult::NewerTags(found())), []);
}

#[test]
fn a_push_looks_for_newer_tags_at_once_but_rate_limited() {
    let pattern = Some(TagPattern::parse("^1").unwrap());
    let update = Some(Arc::new(UpdateConfig { tags: pattern, ..UpdateConfig::default() }));
    let mut scenario = Scenario::on_five(ServiceConfig { update, ..config() });
    let looks = |scenario: &mut Scenario| match scenario.task() {
        Some(MaintenanceTask::FindNewerTags { refresh, .. }) => {
            scenario.maintained(newest(None));
            Some(refresh)
        }
        Some(MaintenanceTask::CheckWayBack { .. }) => {
            scenario.maintained(MaintenanceResult::WayBackChecked(None));
            None
        }
        None => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(looks(&mut scenario), Some(false));
    let now = scenario.at(60).now;
    scenario.service.tag_was_pushed(now);
    assert_eq!(looks(&mut scenario), Some(true), "the cached list does not count");
    for second in 61..65 {
        let now = scenario.at(second).now;
        scenario.service.tag_was_pushed(now);
        assert_eq!(looks(&mut scenario), None);
    }
    assert_eq!(scenario.service.maintenance_at(scenario.now), scenario.seconds(65), "it wakes up for it");
    assert_eq!(looks(scenario.at(65)), Some(true));
    assert_eq!(looks(scenario.at(3600)), None);
    assert_eq!(looks(scenario.at(3665)), Some(false), "the hourly look continues");
    // A service that looks for no newer tags ignores a push.
    let mut other = Scenario::on_five(config());
    other.service.tag_was_pushed(other.now);
    assert_eq!(other.task(), None);
}

#[test]
fn deployed_images_that_are_no_longer_needed_are_removed_after_an_update() {
    let removable = |keep_images| {
        let mut scenario = Scenario::on_five(ServiceConfig { keep_images, ..config() });
        for n in 1..=5 {
            scenario.service.durable.images.of(IMAGE).note_deployed(&version(n), n != 3, &reference());
        }
        scenario.service.remove_old_images_soon();
        let task = scenario.task();
        assert_eq!(scenario.task(), None, "once for each update");
        match task {
            Some(MaintenanceTask::RemoveImages { images }) => {
                images.into_iter().map(|image| image.id).collect()
            }
            None => Vec::new(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(removable(3), [version(1), version(3)], "the one that failed does not count");
    assert_eq!(removable(1), [version(1), version(2), version(3), version(4)]);
    assert_eq!(removable(4), [version(3)]);
    assert_eq!(removable(0), [], "off");
}

#[test]
fn of_a_service_whose_cleanup_is_off_all_images_are_left_by_the_others() {
    for (keep_images, kept) in [(1, vec![version(5)]), (0, (1..=5).map(version).collect())] {
        let mut scenario = Scenario::on_five(ServiceConfig { keep_images, ..config() });
        for n in 1..=5 {
            scenario.service.durable.images.of(IMAGE).note_deployed(&version(n), n != 3, &reference());
        }
        let left: Vec<ImageId> = scenario.service.needed_images().into_iter().cloned().collect();
        assert_eq!(left, kept, "{keep_images}");
    }
}

#[test]
fn running_images_and_rollback_targets_are_not_removed_and_removed_images_are_dropped() {
    let mut scenario = Scenario::on_five(ServiceConfig { keep_images: 1, ..config() });
    for n in [5, 1, 2, 3, 4] {
        scenario.service.durable.images.of(IMAGE).note_deployed(&version(n), true, &reference());
    }
    let proven = crate::service::images::OldImage { id: version(2), source: None };
    scenario.service.durable.images.of(IMAGE).proven = Some(proven);
    scenario.service.remove_old_images_soon();
    let images = vec![old(1, &[reference()]), old(3, &[reference()])];
    assert_eq!(scenario.task(), Some(MaintenanceTask::RemoveImages { images }));
    assert_eq!(scenario.maintained(MaintenanceResult::ImagesRemoved(vec![version(1)])), []);
    scenario.service.remove_old_images_soon();
    // The other one was still in use; the next update tries again.
    let images = vec![old(3, &[reference()])];
    assert_eq!(scenario.task(), Some(MaintenanceTask::RemoveImages { images }));
}

#[test]
fn an_old_image_is_removed_with_exactly_the_tags_it_was_deployed_under() {
    let mut scenario = Scenario::on_five(ServiceConfig { keep_images: 1, ..config() });
    let tag = |tag: &str| reference().with_tag(tag);
    let pinned = Reference::parse(&format!("{}@{}", reference().tagged(), digest('4'))).unwrap();
    for (n, reference) in [
        (1, tag("1.0.1")),
        (2, tag("1.0.2")),
        (1, tag("1.0.3")),
        (1, tag("1.0.3")),
        (4, pinned),
        (5, tag("1.0.5")),
    ] {
        scenario.service.durable.images.of(IMAGE).note_deployed(&version(n), true, &reference);
    }
    scenario.service.remove_old_images_soon();
    let images = vec![old(1, &[tag("1.0.1"), tag("1.0.3")]), old(2, &[tag("1.0.2")]), old(4, &[])];
    assert_eq!(scenario.task(), Some(MaintenanceTask::RemoveImages { images }));
}

#[test]
fn an_image_that_was_pulled_for_an_update_that_was_given_up_is_removed_once_it_is_not_tried_again() {
    let seen = |remote| observed(remote, &[local("sha256:one", &['1'])], &[&running("a")]);
    let mut scenario = Scenario::of(config());
    scenario.check(seen('2'));
    let (why, pulled) = ("data would stay behind".to_owned(), vec![(IMAGE.to_owned(), version(2))]);
    for result in [
        StepResult::ImagesPinned { missing: Vec::new() },
        StepResult::PullFailed { image: IMAGE.into(), why, lacks_platform: false, pulled },
        StepResult::Unpinned,
    ] {
        assert!(matches!(scenario.act(), Some(Action::Step(_))));
        scenario.input(Input::Stepped(result));
    }
    scenario.service.remove_old_images_soon();
    assert_eq!(scenario.task(), None, "it is tried again");
    // The registry has the running image again.
    scenario.at(60).check(seen('1'));
    let images = vec![old(2, &[reference()])];
    assert_eq!(scenario.task(), Some(MaintenanceTask::RemoveImages { images }));
}

#[test]
fn images_recorded_by_earlier_versions_have_no_tags() {
    let noted: DeployedImage = serde_json::from_str(r#"{"id": "sha256:v1", "proven": true}"#).unwrap();
    assert_eq!(noted, DeployedImage { id: version(1), proven: true, tags: Vec::new() });
}

#[test]
fn the_rollback_is_checked_daily_and_every_change_is_reported_once() {
    let mut scenario = Scenario::on_five(config());
    assert_eq!(scenario.at(60).task(), None);
    assert_eq!(scenario.record().way_back, None);
    let Some(MaintenanceTask::CheckWayBack { project, images }) = scenario.at(3600).task() else {
        panic!("it is checked within an hour");
    };
    assert_eq!(project.unwrap().name, "web");
    let source = Reference::parse(&format!("localhost:5000/web@{}", digest('5'))).unwrap();
    let expected =
        RunningImage { configured: IMAGE.into(), id: version(5), source: Some(source), size: images[0].size };
    assert_eq!(images, [expected]);
    assert_eq!(scenario.maintained(found(Vec::new())), []);
    assert_eq!(scenario.record().way_back, Some(WayBackValue::Ok));
    assert_eq!(scenario.at(80_000).task(), None);
    assert!(scenario.at(90_001).task().is_some());
    let gone = RollbackRisk::ImageGone { image: IMAGE.into(), registry: MissingReason::Removed };
    assert_eq!(scenario.maintained(found(vec![gone.clone()])), [Kind::WAY_BACK]);
    assert_eq!(scenario.record().way_back, Some(WayBackValue::AtRisk));
    assert_eq!(
        scenario.record().way_back_reason.as_deref(),
        Some(
            "the running image of localhost:5000/web:1 is not on this machine, and its registry no longer \
             has it"
        )
    );
    assert_eq!(scenario.maintained(found(vec![gone.clone()])), []);
    // The engine gave no answer: nothing changes.
    assert_eq!(scenario.maintained(MaintenanceResult::WayBackChecked(None)), []);
    assert_eq!(scenario.record().way_back, Some(WayBackValue::AtRisk));
    let disk = RollbackRisk::Disk;
    assert_eq!(scenario.maintained(found(vec![gone, disk])), [Kind::WAY_BACK]);
    assert_eq!(scenario.maintained(found(Vec::new())), [Kind::WAY_BACK]);
    assert_eq!(scenario.record().way_back_reason, None);
}

#[test]
fn a_manual_check_also_checks_whether_a_rollback_would_succeed() {
    let mut scenario = Scenario::on_five(config());
    assert_eq!(scenario.task(), None);
    scenario.service.handle_request(ServiceRequest::Check, scenario.now);
    scenario.check(observed('5', &[local("sha256:v5", &['5'])], &[&running("web")]));
    assert!(matches!(scenario.task(), Some(MaintenanceTask::CheckWayBack { .. })));
}

#[test]
fn no_maintenance_runs_during_a_deployment_or_before_the_first_check() {
    let mut scenario = Scenario::of(config());
    scenario.service.check_way_back_now(scenario.now);
    assert_eq!(scenario.task(), None, "there was no check yet");
    scenario.check(observed('2', &[local("sha256:v1", &['1'])], &[&running("web")]));
    assert!(matches!(scenario.act(), Some(Action::Step(_))), "an update begins");
    assert_eq!(scenario.service.next_maintenance(scenario.now), None);
}
