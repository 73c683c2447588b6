//! Scenarios of several newer tags: since when each is known, and which is next after a failure.

use evenkeel_common::wire::{FailedUpdate, FleetDecisions, SeenDigest};

use super::*;
use crate::config::UpdateConfig;
use crate::model::env_file::find_tag;
use crate::service::fleet::{FleetView, Link};
use crate::service::images::Found;
use crate::service::observation::TagInForce;
use crate::service::tests::tag_variable::{TEXT, tagged, with_variable};
use crate::service::upkeep::maintenance::{FoundTags, MaintenanceResult, MaintenanceTask};

/// Tag 1 runs; the registry has `remote` under the newer tag.
fn newer(tag: &str, remote: char) -> Observation {
    let mut seen = observed(remote, &[local("sha256:one", &['1'])], &[&running("web")]);
    seen.images[0].newer = Some(tagged(tag));
    let setting = find_tag(TEXT, "WEB_TAG").unwrap();
    seen.tag = Some(TagInForce { setting, file_hash: "hash".into() });
    seen
}

fn gated() -> Scenario {
    let min_age = Some(Duration::from_hours(1));
    Scenario::of(with_variable(UpdateConfig { min_age, approve: true, ..UpdateConfig::default() }))
}

impl Scenario {
    fn lists(&mut self, tags: &[&str]) -> &mut Self {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let found = BTreeMap::from([(IMAGE.to_owned(), tags)]);
        self.input(Input::Maintained(MaintenanceResult::NewerTags(found.into())))
    }

    fn first_seen(&self, tag: &str) -> Option<Timestamp> {
        let found = self.service.durable().images.found();
        let mut of_tag = found.filter(|found| found.reference.as_ref() == Some(&tagged(tag)));
        of_tag.next().map(|found| found.first_seen)
    }

    /// Lets the deployed tag fail its probation: its digest is blocked, and the previous image runs again.
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
        assert!(matches!(self.act(), Some(Action::Step(Step::Start(_)))));
        self.input(Input::Stepped(started(&sick)));
        self.now += SignedDuration::from_secs(60);
        self.look(&[&sick]);
        let mut old = running("web");
        for _ in 0..20 {
            let result = match self.act() {
                Some(Action::Step(Step::Diagnose { .. })) => StepResult::Diagnosed { log: String::new() },
                Some(Action::Step(Step::WriteTag { .. })) => StepResult::TagWritten,
                Some(Action::Step(Step::Start(_))) => {
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

    /// Lets the pull of the newer tag fail with the next checks, as often as it is tried at once.
    fn fails_to_pull(&mut self, tag: &str, remote: char, lacks_platform: bool) {
        for minute in 0..3 {
            self.at(minute * 60).check(newer(tag, remote));
            while let Some(action) = self.act() {
                let result = match action {
                    Action::Step(Step::PinImages { .. }) => StepResult::ImagesPinned { missing: Vec::new() },
                    Action::Step(Step::Pull { .. }) => {
                        let (image, why) = (IMAGE.to_owned(), "the engine's words".to_owned());
                        StepResult::PullFailed { image, why, lacks_platform, pulled: Vec::new() }
                    }
                    Action::Step(Step::Unpin { .. }) => StepResult::Unpinned,
                    other => panic!("{other:?}"),
                };
                self.input(Input::Stepped(result));
            }
        }
    }

    /// Lets the deployed tag pass its probation.
    fn tag_passes(&mut self) -> Container {
        let Some(Action::Step(Step::WriteTag { tag, .. })) = self.up_to_write() else { panic!("the line") };
        let new = Container {
            id: "new".into(),
            config_image: tagged(&tag).to_string(),
            image: ImageId("sha256:two".into()),
            ..running("web")
        };
        self.input(Input::Stepped(StepResult::TagWritten));
        assert!(matches!(self.act(), Some(Action::Step(Step::Start(_)))));
        let (up, containers) = (Ok(String::new()), vec![new.clone()]);
        self.input(Input::Stepped(StepResult::Started { up, named: Vec::new(), containers }));
        self.look(&[&new]);
        self.now += SignedDuration::from_secs(60);
        self.look(&[&new]);
        assert!(matches!(self.act(), Some(Action::Step(Step::Unpin { .. }))));
        self.input(Input::Stepped(StepResult::Unpinned));
        new
    }

    fn tags_to_check(&mut self) -> Vec<String> {
        self.service.newer_tags().tags
    }
}

#[test]
fn first_seen_is_tracked_for_each_tag() {
    let mut scenario = gated();
    scenario.at(0).check(newer("2", '2'));
    scenario.at(100).check(newer("3", '3'));
    // The newest tag was withdrawn: the wait of the other goes on.
    scenario.at(200).check(newer("2", '2'));
    assert_eq!(
        (scenario.first_seen("2"), scenario.first_seen("3")),
        (scenario.seconds(0), scenario.seconds(100))
    );
    assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE; 2], "each is reported once");
    // The same content under a newer tag waits separately, but is not reported again.
    assert_eq!(
        scenario.service.handle_request(ServiceRequest::Approve(None), scenario.now).0,
        ServiceReply::Approved(digest('2'))
    );
    scenario.entries.clear();
    scenario.at(300).check(newer("4", '2'));
    assert_eq!(scenario.first_seen("4"), scenario.seconds(300));
    assert_eq!(scenario.record().waiting.unwrap().gate, "min_age");
    assert_eq!(scenario.kinds(), []);
    // A digest that leaves its tag is dropped, under that tag alone.
    scenario.at(400).check(newer("4", '5'));
    assert_eq!(
        (scenario.first_seen("2"), scenario.first_seen("4")),
        (scenario.seconds(0), scenario.seconds(400))
    );
    assert_eq!(scenario.record().waiting.unwrap().gate, "approval");
}

#[test]
fn a_newer_tag_is_no_older_than_this_agents_last_look_at_the_tags_without_it() {
    let scenario = || {
        let min_age = Some(Duration::from_hours(1));
        let mut scenario = Scenario::of(with_variable(UpdateConfig { min_age, ..UpdateConfig::default() }));
        let (image, digest) = (tagged("2").to_string(), digest('2').to_string());
        let seen = vec![SeenDigest { image, digest, seconds_ago: 1_000_000 }];
        let view = FleetView {
            link: Link::Present,
            warden: "https://warden.example".to_owned(),
            patience: Duration::from_hours(24),
            ..FleetView::default()
        };
        let decisions = FleetDecisions { seen, ..FleetDecisions::default() };
        scenario.service.fleet = Arc::new(view.with_decisions(decisions, None, scenario.start));
        scenario
    };
    let lifts_at = |scenario: &Scenario| scenario.record().waiting.and_then(|waiting| waiting.lifts_at);
    let mut known = scenario();
    known.at(0).check(newer("1", '1')).lists(&[]);
    // The agent may also be restarted before the tag appears.
    let kept = serde_json::to_string(known.service.durable()).unwrap();
    let mut again = scenario();
    again.service.durable = serde_json::from_str(&kept).unwrap();
    again.at(90).check(newer("1", '1'));
    for scenario in [&mut known, &mut again] {
        scenario.at(100).lists(&["2"]).check(newer("2", '2'));
        assert_eq!(lifts_at(scenario), scenario.seconds(3700));
    }
    // An agent that has never listed the tags before relies on the fleet.
    let mut new = scenario();
    new.at(0).check(newer("1", '1')).at(100).lists(&["2"]).check(newer("2", '2'));
    assert_eq!((lifts_at(&new), new.first_seen("2")), (None, new.seconds(-1_000_000)));
}

#[test]
fn older_tags_are_dropped_and_the_number_of_others_is_bounded() {
    let mut scenario = gated();
    scenario.at(0).check(newer("2", '2')).at(1).check(newer("3", '3'));
    let mut seen = newer("3", '3');
    (seen.images[0].reference, seen.images[0].from) = (tagged("3"), tagged("3"));
    seen.images[0].newer = None;
    seen.tag.as_mut().unwrap().setting = find_tag("WEB_TAG=3", "WEB_TAG").unwrap();
    scenario.at(2).check(seen);
    assert_eq!((scenario.first_seen("2"), scenario.first_seen("3")), (None, scenario.seconds(1)));
    for n in 4..400 {
        scenario.at(n).check(newer(&n.to_string(), '4'));
    }
    assert_eq!(scenario.service.durable().images.found().count(), 100);
    assert_eq!(scenario.first_seen("399"), scenario.seconds(399));
}

#[test]
fn digests_recorded_by_earlier_versions_belong_to_the_current_tag() {
    let written = serde_json::json!({"found": [{
        "image": IMAGE, "digest": digest('2'), "first_seen": "2026-01-01T00:00:00Z", "approved": true,
    }]});
    let mut durable: Durable = serde_json::from_value(written).unwrap();
    let mut scenario = gated();
    std::mem::swap(&mut scenario.service.durable, &mut durable);
    scenario.at(60).check(newer("2", '2'));
    assert_eq!(scenario.first_seen("2"), scenario.seconds(0));
    assert_eq!(scenario.record().waiting.unwrap().gate, "min_age", "it is approved");
    let again = serde_json::to_value(scenario.service.durable()).unwrap();
    let found: Vec<Found> = serde_json::from_value(again["images"][IMAGE]["found"].clone()).unwrap();
    assert_eq!(found, scenario.service.durable().images.get(IMAGE).found);
    // A digest that the registry no longer has starts over, as usual.
    let mut scenario = gated();
    scenario.service.durable = serde_json::from_value(serde_json::json!({"found": [{
        "image": IMAGE, "digest": digest('9'), "first_seen": "2026-01-01T00:00:00Z",
    }]}))
    .unwrap();
    scenario.at(60).check(newer("2", '2'));
    assert_eq!(scenario.service.durable().images.found().count(), 1);
    assert_eq!(scenario.first_seen("2"), scenario.seconds(60));
}

#[test]
fn while_the_newest_tag_is_blocked_the_next_one_is_deployed_and_the_block_stays() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["4", "3", "2"]);
    assert_eq!(scenario.tags_to_check(), ["4", "3", "2"]);
    scenario.check(newer("4", '4')).fails();
    assert!(scenario.kinds().contains(&Kind::ROLLED_BACK));
    let failed = scenario.service.newer_tags().failed;
    assert_eq!(failed[IMAGE], BTreeMap::from([("4".to_owned(), digest('4'))]));
    // The registry still has the same digest under it, so the check asks for the next one.
    scenario.check(newer("3", '3'));
    assert_eq!(scenario.kinds(), [], "there is no new digest under the tag that failed");
    assert_eq!(scenario.service.durable().images.get(IMAGE).blocked.as_ref(), Some(&digest('4')));
    scenario.fails();
    assert_eq!(scenario.service.durable().images.get(IMAGE).blocked.as_ref(), Some(&digest('3')));
    // Neither is deployed again, whichever tag is checked.
    for (tag, of) in [("4", '4'), ("3", '3'), ("3", '4')] {
        scenario.check(newer(tag, of));
        assert_eq!(scenario.act(), None, "{tag}");
        assert_eq!(scenario.status(), StatusValue::Blocked);
    }
    // Another digest under the tag that failed lifts its block.
    scenario.entries.clear();
    scenario.check(newer("4", '5'));
    assert_eq!(scenario.kinds(), [Kind::UNBLOCKED]);
    assert!(matches!(scenario.up_to_write(), Some(Action::Step(Step::WriteTag { .. }))));
}

#[test]
fn a_newer_tag_without_an_image_for_this_machine_is_passed_over_and_shown() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["3", "2"]);
    scenario.fails_to_pull("3", '3', true);
    let failed = scenario.service.newer_tags().failed;
    assert_eq!(failed[IMAGE], BTreeMap::from([("3".to_owned(), digest('3'))]));
    assert_eq!(scenario.record().errored.as_deref(), Some("the engine's words"));
    let runs = scenario.at(180).check(newer("2", '2')).tag_passes();
    let kinds = scenario.kinds();
    assert!(kinds.contains(&Kind::UPDATED) && !kinds.contains(&Kind::ROLLED_BACK), "{kinds:?}");
    // The failure of the newer one is no error of the service, but still shown.
    let mut seen = Observation { containers: [runs].into(), ..runs_on("2", '2') };
    seen.images[0].running = vec![local("sha256:two", &['2'])];
    scenario.at(300).check(seen.clone());
    assert_eq!((scenario.status(), scenario.record().errored), (StatusValue::Blocked, None));
    let shown = scenario.record().failed_update.expect("the reason is shown");
    assert_eq!((shown.digest, shown.rolled_back), (Some(digest('3').to_string()), true));
    assert_eq!(shown.reason, "tag 3 has no image for the platform of this machine: the engine's words");
    // It is tried again once its tag is pushed anew.
    (seen.images[0].newer, seen.images[0].remote) = (Some(tagged("3")), Some(digest('4')));
    scenario.at(360).check(seen);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
}

#[test]
fn a_newer_tag_that_is_passed_over_does_not_hide_a_failed_rollback() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["3", "2"]);
    let failed = FailedUpdate {
        at: scenario.now,
        image: IMAGE.into(),
        digest: Some(digest('2').to_string()),
        reason: "exit code 1".into(),
        container: None,
        output: String::new(),
        rolled_back: false,
        by_hand: false,
    };
    scenario.service.durable.rollback_failed = true;
    scenario.service.durable.failed_update = Some(Box::new(failed.clone()));
    scenario.fails_to_pull("3", '3', true);
    assert!(scenario.service.newer_tags().failed[IMAGE].contains_key("3"), "it is passed over");
    assert_eq!(scenario.record().failed_update, Some(failed));
}

#[test]
fn a_newer_tag_that_cannot_be_pulled_for_now_is_tried_again() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["3", "2"]);
    scenario.fails_to_pull("3", '3', false);
    assert_eq!(scenario.service.newer_tags().failed, BTreeMap::new());
    assert_eq!(scenario.service.durable().failed_update, None);
}

#[test]
fn a_block_of_a_newer_tag_survives_the_agent_and_can_be_lifted() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["3", "2"]);
    scenario.check(newer("3", '3')).fails();
    let written = serde_json::to_value(scenario.service.durable()).unwrap();
    let read: Durable = serde_json::from_value(written).unwrap();
    assert!(
        read.images.get(IMAGE).is_blocked(&digest('3')) && !read.images.get(IMAGE).is_blocked(&digest('2'))
    );
    let blocked: Vec<_> = scenario.service.blocked_references().collect();
    assert!(blocked.contains(&(tagged("3"), digest('3'))), "siblings respect it: {blocked:?}");
    assert_eq!(
        scenario.service.handle_request(ServiceRequest::Unblock, scenario.now).0,
        ServiceReply::Unblocked
    );
    assert_eq!(
        scenario.service.handle_request(ServiceRequest::Unblock, scenario.now).0,
        ServiceReply::NotBlocked
    );
    scenario.check(newer("3", '3'));
    assert!(matches!(scenario.up_to_write(), Some(Action::Step(Step::WriteTag { .. }))));
}

#[test]
fn an_unblock_releases_every_tag_that_has_failed() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["10", "9"]);
    scenario.check(newer("10", '4')).fails();
    scenario.check(newer("9", '3')).fails();
    let (reply, entries) = scenario.service.handle_request(ServiceRequest::Unblock, scenario.now);
    assert_eq!(reply, ServiceReply::Unblocked);
    let told = entries.iter().find(|entry| entry.event == Kind::UNBLOCKED).expect("it is told");
    for released in [digest('4'), digest('3')] {
        assert!(told.message.contains(&released.to_string()), "{}", told.message);
    }
    scenario.check(newer("10", '4'));
    let next = scenario.up_to_write();
    assert!(matches!(&next, Some(Action::Step(Step::WriteTag { tag, .. })) if tag == "10"), "{next:?}");
}

#[test]
fn after_a_failed_rollback_only_newer_tags_are_tried() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["3", "2"]);
    scenario.service.durable.rollback_failed = true;
    assert_eq!(scenario.tags_to_check(), ["3"]);
}

#[test]
fn while_all_newer_tags_are_blocked_another_digest_under_the_one_in_force_is_deployed() {
    let in_force = |remote| {
        let mut seen = newer("1", remote);
        seen.images[0].newer = None;
        seen
    };
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["2"]);
    scenario.check(newer("2", '2')).fails();
    scenario.entries.clear();
    let blocked = |scenario: &Scenario| scenario.service.durable().images.get(IMAGE).blocked.clone();
    // The block under the tag in force is lifted; the one of the newer tag is not.
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('4'));
    scenario.check(in_force('1'));
    assert_eq!((scenario.kinds(), blocked(&scenario)), (vec![Kind::UNBLOCKED], Some(digest('2'))));
    scenario.check(in_force('3'));
    assert_eq!((scenario.kinds(), blocked(&scenario)), (vec![], Some(digest('2'))));
    let Some(Action::Step(Step::Start(_))) = scenario.up_to_write() else { panic!("no line is written") };
}

/// Their age was compared with that of the tag that was in use.
#[test]
fn newer_tags_are_compared_again_with_another_tag_in_force() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(runs_on("1", '1')).lists(&["3"]);
    let known = |scenario: &mut Scenario| {
        let task = scenario.service.tags_in_use();
        let Some(MaintenanceTask::FindNewerTags { images, .. }) = task else { panic!("{task:?}") };
        images[0].known.clone()
    };
    assert_eq!(known(&mut scenario).as_deref(), Some("3"));
    scenario.check(runs_on("1", '1'));
    assert_eq!(known(&mut scenario).as_deref(), Some("3"));
    // Also if the agent did not run when the tag was set.
    scenario.service.known.observation = None;
    scenario.check(runs_on("2", '2'));
    assert_eq!(known(&mut scenario), None);
}

#[test]
fn a_newer_tag_with_a_blocked_digest_is_skipped_for_the_next_one() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["3", "2"]);
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('3'));
    scenario.check(newer("3", '3'));
    assert_eq!(scenario.act(), None);
    let failed = scenario.service.newer_tags().failed;
    assert_eq!(failed[IMAGE], BTreeMap::from([("3".to_owned(), digest('3'))]));
}

/// Tag 2 was approved and runs, until someone sets the line to tag 1 again.
fn left_by_hand() -> Scenario {
    let mut scenario = Scenario::of(with_variable(UpdateConfig { approve: true, ..UpdateConfig::default() }));
    scenario.check(runs_on("2", '2'));
    let (reference, first_seen) = (Some(tagged("2")), scenario.now);
    scenario.service.durable.images.of(IMAGE).found = vec![Found {
        reference,
        digest: digest('2'),
        first_seen,
        approved: true,
        triggered: false,
        announced: true,
        not_before: None,
        unread_since: None,
    }];
    scenario.check(runs_on("1", '1'));
    scenario
}

/// A tag is in force and runs.
fn runs_on(tag: &str, remote: char) -> Observation {
    let mut seen = observed(remote, &[local("sha256:one", &[remote])], &[&running("web")]);
    (seen.images[0].reference, seen.images[0].from) = (tagged(tag), tagged(tag));
    let setting = find_tag(&format!("WEB_TAG={tag}"), "WEB_TAG").unwrap();
    seen.tag = Some(TagInForce { setting, file_hash: "hash".into() });
    seen
}

#[test]
fn a_tag_that_a_person_has_replaced_with_an_older_one_is_held_until_there_is_a_newer_one() {
    let mut scenario = left_by_hand();
    let told: Vec<_> = scenario.entries.iter().filter(|one| one.event == Kind::UPDATE_AVAILABLE).collect();
    let [told] = &told[..] else { panic!("one entry says so: {told:?}") };
    assert!(told.message.contains("older one in the env file"), "{told:?}");
    scenario.lists(&["2"]);
    assert_eq!(scenario.tags_to_check(), [""; 0]);
    assert!(scenario.service.durable().images.found().all(|found| !found.approved), "it is asked again");
    // It survives the agent, and is left out of the journal while there is none.
    let written = serde_json::to_value(scenario.service.durable()).unwrap();
    assert_eq!(written["images"][IMAGE]["declined_tag"], "2");
    scenario.entries.clear();
    scenario.check(runs_on("1", '1')).lists(&["3", "2"]);
    assert_eq!(scenario.tags_to_check(), ["3"]);
    assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE], "tag 3, once");
}

#[test]
fn a_replaced_tag_is_released_by_an_unblock_a_trigger_or_the_line() {
    let held = |scenario: &mut Scenario| scenario.lists(&["2"]).tags_to_check().is_empty();
    let mut scenario = left_by_hand();
    assert!(held(&mut scenario));
    let unblocked = scenario.service.handle_request(ServiceRequest::Unblock, scenario.now).0;
    assert_eq!((unblocked, held(&mut scenario)), (ServiceReply::Unblocked, false));
    let mut scenario = left_by_hand();
    scenario.service.handle_request(ServiceRequest::Check, scenario.now);
    let check = scenario.service.next_check(scenario.now);
    assert!(matches!(check, Some(Action::Check { is_manual: true, .. })));
    assert!(!held(&mut scenario));
    let mut scenario = left_by_hand();
    scenario.check(runs_on("2", '2')).check(runs_on("2", '2'));
    assert_eq!(scenario.service.durable().images.get(IMAGE).declined_tag, None);
    // A tag that the agent has left itself is blocked, and an older one may follow.
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(runs_on("3", '3'));
    scenario.service.durable.images.of(IMAGE).failed_tags.insert("3".into(), digest('3'));
    scenario.check(runs_on("1", '1')).lists(&["3", "2"]);
    assert_eq!(scenario.tags_to_check(), ["3", "2"]);
}

/// A service with gates whose tag 1 runs, and a minute later a person's check of it has ended, and found nothing.
fn asked_for(ask: &ServiceRequest) -> Scenario {
    let mut scenario = gated();
    scenario.check(runs_on("1", '1'));
    assert!(scenario.looks_for_tags());
    scenario.lists(&[]).at(60);
    assert!(!scenario.looks_for_tags(), "an hour has not passed");
    assert_eq!(scenario.service.handle_request(ask.clone(), scenario.now).0, ServiceReply::Accepted);
    scenario.is_checked_by_hand(runs_on("1", '1'));
    scenario
}

impl Scenario {
    fn looks_for_tags(&mut self) -> bool {
        let task = self.service.next_maintenance(self.now);
        matches!(task, Some(Action::Maintain(MaintenanceTask::FindNewerTags { .. })))
    }

    /// The check begins, and ends.
    fn is_checked_by_hand(&mut self, seen: Observation) {
        let check = self.service.next_check(self.now);
        assert!(matches!(check, Some(Action::Check { is_manual: true, .. })), "{check:?}");
        let generation = self.service.generation;
        self.input(Input::Checked { generation, is_manual: true, result: Ok(seen) });
    }

    /// The requests that have been made, those that have ended, and whether anything is still to come.
    fn requests(&self) -> (u64, u64, bool) {
        let checks = self.record().requested_checks.expect("one was requested");
        (checks.requested, checks.ended, checks.undecided)
    }
}

#[test]
fn a_trigger_finds_a_tag_that_was_pushed_just_now_and_passes_the_gates_for_it() {
    for (ask, begins) in [(ServiceRequest::Check, true), (ServiceRequest::CheckGated, false)] {
        let mut scenario = asked_for(&ask);
        assert_eq!(scenario.requests(), (1, 1, true), "the tags are not known yet");
        assert!(scenario.looks_for_tags());
        assert_eq!(scenario.requests(), (1, 1, true));
        scenario.lists(&["2"]);
        assert_eq!(scenario.requests(), (1, 1, true), "the tag is to be checked");
        scenario.is_checked_by_hand(newer("2", '2'));
        assert_eq!(scenario.service.wants_update(), begins, "{ask:?}");
        assert_eq!(scenario.requests(), (1, 1, begins), "{ask:?}");
    }
}

#[test]
fn a_list_of_tags_that_brings_nothing_ends_the_wait_for_it() {
    let errors = BTreeMap::from([(IMAGE.to_owned(), "it answers 403".to_owned())]);
    let none = BTreeMap::from([(IMAGE.to_owned(), Vec::new())]);
    for found in [FoundTags { errors, ..FoundTags::default() }, none.into()] {
        let mut scenario = asked_for(&ServiceRequest::Check);
        assert!(scenario.looks_for_tags());
        let is_unknown = !found.errors.is_empty();
        scenario.input(Input::Maintained(MaintenanceResult::NewerTags(found)));
        assert_eq!(scenario.requests(), (1, 1, false));
        let checks = scenario.record().requested_checks.expect("one was requested");
        assert_eq!(checks.tags_unknown.is_some(), is_unknown, "{checks:?}");
    }
}

#[test]
fn a_trigger_does_not_hold_for_a_tag_that_appears_during_a_deployment() {
    let mut scenario = gated();
    scenario.check(newer("2", '2'));
    assert!(scenario.looks_for_tags());
    scenario.lists(&["2"]);
    scenario.service.handle_request(ServiceRequest::Check, scenario.now);
    scenario.is_checked_by_hand(newer("2", '2'));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))), "it passes the gates");
    assert_eq!(scenario.service.maintenance.asked, Some(false));
}

/// The same content under a newer tag is no update, and lifts the block of older tags once.
#[test]
fn a_block_of_a_tag_older_than_the_running_one_is_lifted_once_and_not_deployed() {
    let mut scenario = Scenario::of(with_variable(UpdateConfig::default()));
    scenario.check(newer("1", '1')).lists(&["2"]);
    scenario.check(newer("2", '2')).fails();
    scenario.entries.clear();
    for _ in 0..3 {
        scenario.check(newer("3", '1'));
    }
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::UNBLOCKED], StatusValue::Ok));
    // The newest tag is withdrawn: the failed one is not tried again.
    scenario.check(newer("2", '2'));
    assert_eq!((scenario.act(), scenario.status()), (None, StatusValue::Blocked));
}
