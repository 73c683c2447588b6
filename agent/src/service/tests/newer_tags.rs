//! Stories of several newer tags: since when each is known, and which is next when one has failed.

use super::tag_variable::{TEXT, tagged, with_variable};
use super::*;
use crate::config::UpdateConfig;
use crate::model::env_file::find_tag;
use crate::service::candidate::Found;
use crate::service::input::TagInForce;
use crate::service::maintenance::MaintenanceResult;

/// Tag 1 runs; the registry has this digest under the newer tag.
fn newer(tag: &str, remote: char) -> Observation {
    let mut seen = observed(remote, &[local("sha256:one", &['1'])], &[&running("web")]);
    seen.images[0].newer = Some(tagged(tag));
    let setting = find_tag(TEXT, "WEB_TAG").unwrap();
    seen.tag = Some(TagInForce { setting, file_hash: "hash".into() });
    seen
}

fn gated() -> Story {
    let min_age = Some(Duration::from_hours(1));
    Story::of(with_variable(UpdateConfig { min_age, approve: true, ..UpdateConfig::default() }))
}

impl Story {
    fn lists(&mut self, tags: &[&str]) -> &mut Self {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let found = BTreeMap::from([(IMAGE.to_owned(), tags)]);
        self.input(Input::Maintained(MaintenanceResult::NewerTags(found)))
    }

    fn first_seen(&self, tag: &str) -> Option<Timestamp> {
        let found = self.service.durable().found.iter();
        let mut of_tag = found.filter(|found| found.reference.as_ref() == Some(&tagged(tag)));
        of_tag.next().map(|found| found.first_seen)
    }

    /// The tag that is deployed fails its probation; its digest is blocked, and what ran before runs again.
    fn fails(&mut self) -> &mut Self {
        let Some(Action::Step(Step::WriteTag { tag, .. })) = self.up_to_write() else { panic!("the line") };
        let started = |c: &Container| StepResult::Started {
            up: Ok(String::new()),
            named: Vec::new(),
            containers: vec![c.clone()],
        };
        let sick = Container {
            id: "new".into(),
            config_image: tagged(&tag).to_string(),
            image: ImageId("sha256:two".into()),
            ..with_health("web", HealthState::Unhealthy)
        };
        self.input(Input::Stepped(StepResult::TagWritten));
        assert!(matches!(self.act(), Some(Action::Step(Step::Start { .. }))));
        self.input(Input::Stepped(started(&sick)));
        self.now += SignedDuration::from_secs(60);
        self.look(&[&sick]);
        let mut old = running("web");
        for _ in 0..20 {
            let result = match self.act() {
                Some(Action::Step(Step::Diagnose { .. })) => StepResult::Diagnosed { log: String::new() },
                Some(Action::Step(Step::WriteTag { .. })) => StepResult::TagWritten,
                Some(Action::Step(Step::Start { .. })) => {
                    old.started_at = Some(self.now);
                    started(&old)
                }
                Some(Action::Step(Step::Unpin { .. })) => StepResult::Unpinned,
                None if self.service.durable().deployment.is_none() => return self,
                None => {
                    self.now += SignedDuration::from_secs(30);
                    self.look(&[&old]);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            self.input(Input::Stepped(result));
        }
        panic!("it does not end: {:#?}", self.service.durable().deployment);
    }

    fn tags_asked(&mut self) -> Vec<String> {
        self.service.newer_tags().tags
    }
}

#[test]
fn since_when_a_digest_is_known_counts_for_each_tag() {
    let mut story = gated();
    story.at(0).check(newer("2", '2'));
    story.at(100).check(newer("3", '3'));
    // The newest one was taken back: the wait of the other goes on.
    story.at(200).check(newer("2", '2'));
    assert_eq!((story.first_seen("2"), story.first_seen("3")), (story.seconds(0), story.seconds(100)));
    assert_eq!(story.kinds(), [Kind::UPDATE_AVAILABLE; 2], "each is told once");
    // The same content under a newer name waits by itself; what was said of the content stays said.
    assert_eq!(
        story.service.ask(ServiceRequest::Approve(None), story.now).0,
        ServiceReply::Approved(digest('2'))
    );
    story.said.clear();
    story.at(300).check(newer("4", '2'));
    assert_eq!(story.first_seen("4"), story.seconds(300));
    assert_eq!(story.record().waiting.unwrap().gate, "min_age");
    assert_eq!(story.kinds(), []);
    // What leaves its tag is forgotten, under that tag alone.
    story.at(400).check(newer("4", '5'));
    assert_eq!((story.first_seen("2"), story.first_seen("4")), (story.seconds(0), story.seconds(400)));
    assert_eq!(story.record().waiting.unwrap().gate, "approval");
}

#[test]
fn tags_that_are_passed_are_forgotten_and_the_number_of_others_is_bounded() {
    let mut story = gated();
    story.at(0).check(newer("2", '2')).at(1).check(newer("3", '3'));
    let mut seen = newer("3", '3');
    (seen.images[0].reference, seen.images[0].from) = (tagged("3"), tagged("3"));
    seen.images[0].newer = None;
    seen.tag.as_mut().unwrap().setting = find_tag("WEB_TAG=3", "WEB_TAG").unwrap();
    story.at(2).check(seen);
    assert_eq!((story.first_seen("2"), story.first_seen("3")), (None, story.seconds(1)));
    for n in 4..400 {
        story.at(n).check(newer(&n.to_string(), '4'));
    }
    assert_eq!(story.service.durable().found.len(), 100);
    assert_eq!(story.first_seen("399"), story.seconds(399));
}

#[test]
fn what_an_earlier_version_noted_is_taken_for_what_the_registry_is_asked_for() {
    let written = serde_json::json!({"found": [{
        "image": IMAGE, "digest": digest('2'), "first_seen": "2026-01-01T00:00:00Z", "approved": true,
    }]});
    let mut durable: Durable = serde_json::from_value(written).unwrap();
    let mut story = gated();
    std::mem::swap(&mut story.service.durable, &mut durable);
    story.at(60).check(newer("2", '2'));
    assert_eq!(story.first_seen("2"), story.seconds(0));
    assert_eq!(story.record().waiting.unwrap().gate, "min_age", "it is approved");
    let again = serde_json::to_value(story.service.durable()).unwrap();
    let found: Vec<Found> = serde_json::from_value(again["found"].clone()).unwrap();
    assert_eq!(found, story.service.durable().found);
    // What the registry has no more begins anew, as ever.
    let mut story = gated();
    story.service.durable = serde_json::from_value(serde_json::json!({"found": [{
        "image": IMAGE, "digest": digest('9'), "first_seen": "2026-01-01T00:00:00Z",
    }]}))
    .unwrap();
    story.at(60).check(newer("2", '2'));
    assert_eq!(story.service.durable().found.len(), 1);
    assert_eq!(story.first_seen("2"), story.seconds(60));
}

#[test]
fn while_the_newest_tag_is_blocked_the_next_one_is_deployed_and_the_block_stays() {
    let mut story = Story::of(with_variable(UpdateConfig::default()));
    story.check(newer("1", '1')).lists(&["4", "3", "2"]);
    assert_eq!(story.tags_asked(), ["4", "3", "2"]);
    story.check(newer("4", '4')).fails();
    assert!(story.kinds().contains(&Kind::ROLLED_BACK));
    let failed = story.service.newer_tags().failed;
    assert_eq!(failed[IMAGE], BTreeMap::from([("4".to_owned(), digest('4'))]));
    // The registry has the same under it still, so the check asks for the next one.
    story.check(newer("3", '3'));
    assert_eq!(story.kinds(), [], "it is no new digest under the tag that failed");
    assert_eq!(story.service.durable().blocked.get(IMAGE), Some(&digest('4')));
    story.fails();
    assert_eq!(story.service.durable().blocked.get(IMAGE), Some(&digest('3')));
    // Neither is deployed again, whichever is asked for.
    for (tag, of) in [("4", '4'), ("3", '3'), ("3", '4')] {
        story.check(newer(tag, of));
        assert_eq!(story.act(), None, "{tag}");
        assert_eq!(story.status(), StatusValue::Blocked);
    }
    // Another digest under the tag that failed lifts its block.
    story.said.clear();
    story.check(newer("4", '5'));
    assert_eq!(story.kinds(), [Kind::UNBLOCKED]);
    assert!(matches!(story.up_to_write(), Some(Action::Step(Step::WriteTag { .. }))));
}

#[test]
fn what_failed_under_a_newer_tag_outlives_the_agent_and_a_person_unblocks_it() {
    let mut story = Story::of(with_variable(UpdateConfig::default()));
    story.check(newer("1", '1')).lists(&["3", "2"]);
    story.check(newer("3", '3')).fails();
    let written = serde_json::to_value(story.service.durable()).unwrap();
    let read: Durable = serde_json::from_value(written).unwrap();
    assert!(read.is_blocked(IMAGE, &digest('3')) && !read.is_blocked(IMAGE, &digest('2')));
    let blocked: Vec<_> = story.service.blocked_references().collect();
    assert!(blocked.contains(&(tagged("3"), digest('3'))), "siblings respect it: {blocked:?}");
    assert_eq!(story.service.ask(ServiceRequest::Unblock, story.now).0, ServiceReply::Unblocked);
    assert_eq!(story.service.ask(ServiceRequest::Unblock, story.now).0, ServiceReply::NotBlocked);
    story.check(newer("3", '3'));
    assert!(matches!(story.up_to_write(), Some(Action::Step(Step::WriteTag { .. }))));
}

#[test]
fn after_a_rollback_that_failed_only_what_is_newer_still_is_tried() {
    let mut story = Story::of(with_variable(UpdateConfig::default()));
    story.check(newer("1", '1')).lists(&["3", "2"]);
    story.service.durable.rollback_failed = true;
    assert_eq!(story.tags_asked(), ["3"]);
}

#[test]
fn while_all_newer_tags_are_blocked_another_digest_under_the_one_in_force_is_deployed() {
    let in_force = |remote| {
        let mut seen = newer("1", remote);
        seen.images[0].newer = None;
        seen
    };
    let mut story = Story::of(with_variable(UpdateConfig::default()));
    story.check(newer("1", '1')).lists(&["2"]);
    story.check(newer("2", '2')).fails();
    story.said.clear();
    let blocked = |story: &Story| story.service.durable().blocked.get(IMAGE).cloned();
    // One that failed under the tag in force is over; the one of the newer tag is not.
    story.service.durable.blocked.insert(IMAGE.to_owned(), digest('4'));
    story.check(in_force('1'));
    assert_eq!((story.kinds(), blocked(&story)), (vec![Kind::UNBLOCKED], Some(digest('2'))));
    story.check(in_force('3'));
    assert_eq!((story.kinds(), blocked(&story)), (vec![], Some(digest('2'))));
    let Some(Action::Step(Step::Start { .. })) = story.up_to_write() else { panic!("no line is written") };
}

#[test]
fn a_newer_tag_that_names_a_blocked_digest_makes_way_for_the_next_one() {
    let mut story = Story::of(with_variable(UpdateConfig::default()));
    story.check(newer("1", '1')).lists(&["3", "2"]);
    story.service.durable.blocked.insert(IMAGE.to_owned(), digest('3'));
    story.check(newer("3", '3'));
    assert_eq!(story.act(), None);
    let failed = story.service.newer_tags().failed;
    assert_eq!(failed[IMAGE], BTreeMap::from([("3".to_owned(), digest('3'))]));
}

/// Equal content under a newer name is no update, and ends the block of the tags before it once.
#[test]
fn what_failed_under_an_older_tag_than_the_one_that_names_what_runs_is_unblocked_once_and_not_deployed() {
    let mut story = Story::of(with_variable(UpdateConfig::default()));
    story.check(newer("1", '1')).lists(&["2"]);
    story.check(newer("2", '2')).fails();
    story.said.clear();
    for _ in 0..3 {
        story.check(newer("3", '1'));
    }
    assert_eq!((story.kinds(), story.status()), (vec![Kind::UNBLOCKED], StatusValue::Ok));
    // The newest is taken back: what failed is not tried again.
    story.check(newer("2", '2'));
    assert_eq!((story.act(), story.status()), (None, StatusValue::Blocked));
}
