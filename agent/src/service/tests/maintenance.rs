//! Stories of what is done beside checks and deployments: newer tags, old images, the way back.

use std::collections::BTreeMap;

use evenkeel_common::wire::WayBackValue;

use super::*;
use crate::config::UpdateConfig;
use crate::model::tags::TagPattern;
use crate::service::maintenance::{
    DeployedImage, GoneFrom, MaintenanceResult, MaintenanceTask, OldDeployedImage, RollbackRisk,
    RunningImage, TagInUse,
};

impl Story {
    /// The next task beside checks and deployments.
    fn task(&mut self) -> Option<MaintenanceTask> {
        loop {
            match self.service.next(self.now)? {
                Action::Maintain(task) => return Some(task),
                Action::Inspect { .. } => self.service.inspecting = false,
                Action::Check { .. } => self.service.checking = false,
                other => panic!("expected reading only, got {other:?}"),
            }
        }
    }

    fn maintained(&mut self, result: MaintenanceResult) -> Vec<Kind> {
        self.input(Input::Maintained(result)).kinds()
    }

    /// A service that runs version 5.
    fn on_five(config: ServiceConfig) -> Self {
        let mut story = Self::of(config);
        let container = Container { image: version(5), ..running("web") };
        story.check(observed('5', &[local("sha256:v5", &['5'])], &[&container]));
        story
    }
}

fn version(n: u32) -> ImageId {
    ImageId(format!("sha256:v{n}").into())
}

fn reference() -> Reference {
    Reference::parse(IMAGE).unwrap()
}

fn old(n: u32, tags: &[Reference]) -> OldDeployedImage {
    OldDeployedImage { id: version(n), tags: tags.to_vec() }
}

fn newest(tag: Option<&str>) -> MaintenanceResult {
    MaintenanceResult::NewerTags(BTreeMap::from([(
        IMAGE.to_owned(),
        tag.map(str::to_owned).into_iter().collect(),
    )]))
}

fn found(risks: Vec<RollbackRisk>) -> MaintenanceResult {
    MaintenanceResult::WayBackChecked(Some(risks))
}

#[test]
fn newer_tags_are_looked_for_once_an_hour_and_each_is_told_once() {
    let pattern = TagPattern::parse("^1").unwrap();
    let update = UpdateConfig { tags: Some(pattern.clone()), ..UpdateConfig::default() };
    let mut story = Story::on_five(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    let repository = Reference::parse(IMAGE).unwrap().repository;
    let images = vec![TagInUse { configured: IMAGE.into(), repository, tag: "1".into(), is_shared: false }];
    assert_eq!(story.task(), Some(MaintenanceTask::FindNewerTags { pattern, images, anew: false }));
    assert_eq!(story.at(1).task(), None, "one task at a time");
    assert_eq!(story.maintained(newest(Some("2"))), [Kind::UPDATE_AVAILABLE]);
    let newer = |story: &Story| story.record().images.unwrap()[0].newer.clone();
    assert_eq!(newer(&story).as_deref(), Some("2"));
    assert_eq!(story.at(60).task(), None);
    let next = story.service.wake_at(story.now).unwrap();
    assert!(next <= story.now + SignedDuration::from_hours(1), "it wakes for the next look: {next}");
    assert!(story.at(3600).task().is_some());
    assert_eq!(story.maintained(newest(Some("2"))), []);
    assert_eq!(story.maintained(newest(Some("3"))), [Kind::UPDATE_AVAILABLE]);
    // The registry gave no answer: what is known stays.
    assert_eq!(story.maintained(MaintenanceResult::NewerTags(BTreeMap::new())), []);
    assert_eq!(newer(&story).as_deref(), Some("3"));
    assert_eq!(story.maintained(newest(None)), []);
    assert_eq!(newer(&story), None);
}

#[test]
fn a_push_has_newer_tags_looked_for_at_once_but_not_as_often_as_it_is_told() {
    let pattern = Some(TagPattern::parse("^1").unwrap());
    let update = Some(Arc::new(UpdateConfig { tags: pattern, ..UpdateConfig::default() }));
    let mut story = Story::on_five(ServiceConfig { update, ..config() });
    let looks = |story: &mut Story| match story.task() {
        Some(MaintenanceTask::FindNewerTags { anew, .. }) => {
            story.maintained(newest(None));
            Some(anew)
        }
        Some(MaintenanceTask::CheckWayBack { .. }) => {
            story.maintained(MaintenanceResult::WayBackChecked(None));
            None
        }
        None => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(looks(&mut story), Some(false));
    let now = story.at(60).now;
    story.service.tag_was_pushed(now);
    assert_eq!(looks(&mut story), Some(true), "what was read before does not count");
    for second in 61..65 {
        let now = story.at(second).now;
        story.service.tag_was_pushed(now);
        assert_eq!(looks(&mut story), None);
    }
    assert_eq!(story.service.maintenance_at(story.now), story.seconds(65), "it wakes for it");
    assert_eq!(looks(story.at(65)), Some(true));
    assert_eq!(looks(story.at(3600)), None);
    assert_eq!(looks(story.at(3665)), Some(false), "the hourly look goes on");
    // Where no newer tags are looked for, a push is nothing.
    let mut other = Story::on_five(config());
    other.service.tag_was_pushed(other.now);
    assert_eq!(other.task(), None);
}

#[test]
fn images_that_were_deployed_and_are_no_longer_needed_go_after_an_update() {
    let removable = |keep_images| {
        let mut story = Story::on_five(ServiceConfig { keep_images, ..config() });
        for n in 1..=5 {
            story.service.note_deployed(IMAGE, &version(n), n != 3, &reference());
        }
        story.service.remove_old_images_soon();
        let task = story.task();
        assert_eq!(story.task(), None, "once for each update");
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
fn neither_what_runs_nor_what_a_rollback_leads_to_is_removed_and_what_is_gone_is_forgotten() {
    let mut story = Story::on_five(ServiceConfig { keep_images: 1, ..config() });
    for n in [5, 1, 2, 3, 4] {
        story.service.note_deployed(IMAGE, &version(n), true, &reference());
    }
    let proven = super::super::action::OldImage { id: version(2), source: None };
    story.service.durable.proven.insert(IMAGE.into(), proven);
    story.service.remove_old_images_soon();
    let images = vec![old(1, &[reference()]), old(3, &[reference()])];
    assert_eq!(story.task(), Some(MaintenanceTask::RemoveImages { images }));
    assert_eq!(story.maintained(MaintenanceResult::ImagesRemoved(vec![version(1)])), []);
    story.service.remove_old_images_soon();
    // It was used elsewhere; the next update tries again.
    let images = vec![old(3, &[reference()])];
    assert_eq!(story.task(), Some(MaintenanceTask::RemoveImages { images }));
}

#[test]
fn an_old_image_goes_with_all_tags_that_it_was_deployed_under_and_no_others() {
    let mut story = Story::on_five(ServiceConfig { keep_images: 1, ..config() });
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
        story.service.note_deployed(IMAGE, &version(n), true, &reference);
    }
    story.service.remove_old_images_soon();
    let images = vec![old(1, &[tag("1.0.1"), tag("1.0.3")]), old(2, &[tag("1.0.2")]), old(4, &[])];
    assert_eq!(story.task(), Some(MaintenanceTask::RemoveImages { images }));
}

#[test]
fn what_an_earlier_version_noted_has_no_tags() {
    let noted: DeployedImage = serde_json::from_str(r#"{"id": "sha256:v1", "proven": true}"#).unwrap();
    assert_eq!(noted, DeployedImage { id: version(1), proven: true, tags: Vec::new() });
}

#[test]
fn the_way_back_is_checked_daily_and_every_change_is_told_once() {
    let mut story = Story::on_five(config());
    assert_eq!(story.at(60).task(), None);
    assert_eq!(story.record().way_back, None);
    let Some(MaintenanceTask::CheckWayBack { project, images }) = story.at(3600).task() else {
        panic!("it is checked within an hour");
    };
    assert_eq!(project.unwrap().name, "web");
    let source = Reference::parse(&format!("localhost:5000/web@{}", digest('5'))).unwrap();
    let expected =
        RunningImage { configured: IMAGE.into(), id: version(5), source: Some(source), size: images[0].size };
    assert_eq!(images, [expected]);
    assert_eq!(story.maintained(found(Vec::new())), []);
    assert_eq!(story.record().way_back, Some(WayBackValue::Ok));
    assert_eq!(story.at(80_000).task(), None);
    assert!(story.at(90_001).task().is_some());
    let gone = RollbackRisk::ImageGone { image: IMAGE.into(), registry: GoneFrom::Removed };
    assert_eq!(story.maintained(found(vec![gone.clone()])), [Kind::WAY_BACK]);
    assert_eq!(story.record().way_back, Some(WayBackValue::AtRisk));
    assert_eq!(
        story.record().way_back_reason.as_deref(),
        Some(
            "the image of localhost:5000/web:1 that runs is not on this machine, and its registry does not have it \
             any more"
        )
    );
    assert_eq!(story.maintained(found(vec![gone.clone()])), []);
    // The engine gave no answer: nothing is known, and nothing changes.
    assert_eq!(story.maintained(MaintenanceResult::WayBackChecked(None)), []);
    assert_eq!(story.record().way_back, Some(WayBackValue::AtRisk));
    let disk = RollbackRisk::Disk { free: 1, needed: 2 };
    assert_eq!(story.maintained(found(vec![gone, disk])), [Kind::WAY_BACK]);
    assert_eq!(story.maintained(found(Vec::new())), [Kind::WAY_BACK]);
    assert_eq!(story.record().way_back_reason, None);
}

#[test]
fn a_person_who_triggers_a_check_has_the_way_back_checked_too() {
    let mut story = Story::on_five(config());
    assert_eq!(story.task(), None);
    story.service.ask(ServiceRequest::Check, story.now);
    story.check(observed('5', &[local("sha256:v5", &['5'])], &[&running("web")]));
    assert!(matches!(story.task(), Some(MaintenanceTask::CheckWayBack { .. })));
}

#[test]
fn nothing_is_maintained_while_the_project_is_being_changed_or_nothing_is_known() {
    let mut story = Story::of(config());
    story.service.check_way_back_now(story.now);
    assert_eq!(story.task(), None, "no check has seen anything");
    story.check(observed('2', &[local("sha256:v1", &['1'])], &[&running("web")]));
    assert!(matches!(story.act(), Some(Action::Step(_))), "an update begins");
    assert_eq!(story.service.next_maintenance(story.now), None);
}
