//! Stories of deployments whose project is more than the one container that is updated, and of people who act meanwhile.

use super::*;
use crate::model::{ComposeError, UpMode};

const DB: &str = "localhost:5000/db:1";

/// A container on that version of an image, made in that round.
fn on(name: &str, image: &str, version: &str, round: u32) -> Container {
    Container {
        id: format!("{name}-{round}"),
        config_image: image.into(),
        image: ImageId(format!("sha256:{version}").into()),
        started_at: Some("2025-12-31T23:00:00Z".parse().unwrap()),
        ..running(name)
    }
}

fn v1() -> LocalImage {
    local("sha256:v1", &['1'])
}

fn v2() -> LocalImage {
    local("sha256:v2", &['2'])
}

impl Story {
    /// The registry has version 2: brought up with what compose leaves then.
    fn brings_up(&mut self, before: &[&Container], after: &[&Container]) -> &mut Self {
        self.check(observed('2', &[v1()], before));
        self.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        self.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        self.is_up(after)
    }

    /// The step that is due, and how it ends.
    fn takes_step(&mut self, result: StepResult) -> Step {
        let action = self.act();
        let Some(Action::Step(step)) = action else { panic!("no step is due, but {action:?}") };
        self.input(Input::Stepped(result));
        step
    }

    fn is_up(&mut self, after: &[&Container]) -> &mut Self {
        let containers = after.iter().map(|c| (*c).clone()).collect();
        self.takes_step(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        self
    }

    /// The way back from a failure, up to what compose leaves.
    fn goes_back(&mut self, after: &[&Container]) -> Step {
        self.takes_step(StepResult::Diagnosed { log: String::new() });
        let containers = after.iter().map(|c| (*c).clone()).collect();
        self.takes_step(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers })
    }

    fn last(&self) -> &AuditEntry {
        self.said.last().expect("something was said")
    }

    fn is_blocked(&self) -> bool {
        !self.service.durable().blocked.is_empty()
    }
}

#[test]
fn a_project_that_runs_on_other_names_of_the_image_is_a_fault_and_no_update() {
    let mut story = Story::of(config());
    let web = on("web", "127.0.0.1:5000/web:1", "v1", 1);
    story.check(observed('2', &[], &[&web]));
    assert_eq!(story.act(), None);
    let text = &story.last().message;
    assert!(text.contains(IMAGE) && text.contains("127.0.0.1:5000/web:1"), "{text}");
    // Nothing runs: the tag says what is there, as before the first start.
    story.said.clear();
    story.check(observed('2', &[], &[]));
    assert_eq!(story.kinds(), [Kind::RECOVERED]);
}

#[test]
fn a_container_that_compose_does_not_bring_along_holds_up_no_update_and_is_named() {
    let mut story = Story::of(config());
    let (orphan, old, new) =
        (on("orphan", IMAGE, "v1", 1), on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    story.brings_up(&[&orphan, &old], &[&orphan, &new]);
    story.at(11).look(&[&orphan, &new]);
    assert_eq!(story.last().event, Kind::UPDATED);
    assert!(story.last().reason.as_ref().is_some_and(|why| why.contains("orphan")), "{:?}", story.last());
    assert!(!story.is_blocked());
    story.takes_step(StepResult::Unpinned);
    // It stays on the old image, and that is no news.
    story.at(20).check(observed('2', &[v1(), v2()], &[&orphan, &new]));
    assert_eq!(story.act(), None);
    assert_eq!(story.status(), StatusValue::Ok);
}

#[test]
fn others_that_were_unwell_or_not_there_before_say_nothing_about_the_image() {
    let unwell =
        Container { health: Some(HealthState::Unhealthy), ..with_health("db", HealthState::Unhealthy) };
    let unwell = |round| Container { id: format!("db-{round}"), config_image: DB.into(), ..unwell.clone() };
    let newcomer = Container { config_image: DB.into(), id: "new".into(), ..exited("newcomer", 1) };
    let mut story = Story::of(config());
    let (old, new) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    story.brings_up(&[&old, &unwell(1)], &[&new, &unwell(2), &newcomer]);
    for at in [1, 5, 11] {
        story.at(at).look(&[&new, &unwell(2), &newcomer]);
    }
    assert_eq!(story.last().event, Kind::UPDATED, "{:?}", story.said);
}

#[test]
fn one_that_was_well_and_fails_with_the_new_image_leads_back_and_is_told_when_it_still_fails() {
    for still in [true, false] {
        let mut story = Story::of(config());
        let (old, new, back) =
            (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2), on("web", IMAGE, "v1", 3));
        let db = |round, health| Container {
            id: format!("db-{round}"),
            config_image: DB.into(),
            ..with_health("db", health)
        };
        let (well, ill) = (db(1, HealthState::Healthy), db(2, HealthState::Unhealthy));
        story.brings_up(&[&old, &well], &[&new, &ill]);
        story.at(200).look(&[&new, &ill]);
        let last = if still { db(3, HealthState::Unhealthy) } else { db(3, HealthState::Healthy) };
        story.goes_back(&[&back, &last]);
        story.at(400).look(&[&back, &last]);
        assert_eq!(story.last().event, Kind::ROLLED_BACK, "{:?}", story.said);
        let message = &story.last().message;
        assert!(message.contains("; rolled back to the images that ran before"), "{message}");
        assert_eq!(message.contains(", but container db is unhealthy"), still, "{message}");
        assert!(story.is_blocked() && !story.service.durable().rollback_failed);
    }
}

#[test]
fn what_was_as_unwell_before_is_back_when_it_is_as_unwell_again() {
    let mut story = Story::of(config());
    let ill = |version, round| Container {
        health_timing: with_health("web", HealthState::Unhealthy).health_timing,
        health: Some(HealthState::Unhealthy),
        ..on("web", IMAGE, version, round)
    };
    story.brings_up(&[&ill("v1", 1)], &[&ill("v2", 2)]);
    story.at(200).look(&[&ill("v2", 2)]);
    story.goes_back(&[&ill("v1", 3)]);
    story.at(400).look(&[&ill("v1", 3)]);
    assert_eq!(story.last().event, Kind::ROLLED_BACK);
}

#[test]
fn a_sibling_whose_tag_has_moved_is_held_where_it_is_also_on_the_way_back() {
    let mut story = Story::of(config());
    let (old, bad) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    let (db1, db2) = (on("db", DB, "db1", 1), on("db", DB, "db2", 2));
    story.check(observed('2', &[v1()], &[&old, &db1]));
    story.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    story.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let sibling_tags = |step: &Step| match step {
        Step::Start { displaced, .. } => displaced.clone(),
        step => panic!("{step:?}"),
    };
    let held_on = |image: &str| {
        let named = ImageId("sha256:elsewhere".into());
        vec![DisplacedTag {
            tag: Reference::parse(DB).unwrap(),
            runs: ImageId(format!("sha256:{image}").into()),
            named,
        }]
    };
    // In the journal before any tag is moved, so that a restart in between puts them back.
    let step = story.service.next(story.now);
    assert!(matches!(step, Some(Action::Step(Step::ReadTags { .. }))), "{step:?}");
    let displaced = held_on("db1");
    story.input(Input::Stepped(StepResult::TagsRead { displaced: displaced.clone() }));
    assert_eq!(story.service.durable().deployment.as_ref().unwrap().displaced, Some(displaced));
    let up =
        StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![bad.clone(), db1] };
    assert_eq!(sibling_tags(&story.takes_step(up)), held_on("db1"));
    // Meanwhile a person has brought it to another image.
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad };
    story.at(2).look(&[&crashed, &db2]).at(3).look(&[&crashed, &db2]);
    let back = on("web", IMAGE, "v1", 3);
    assert_eq!(sibling_tags(&story.goes_back(&[&back, &db2])), held_on("db2"));
    story.at(20).look(&[&back, &db2]);
    assert_eq!(story.last().event, Kind::ROLLED_BACK);
}

#[test]
fn a_restart_by_a_person_only_begins_the_probation_anew() {
    let mut story = Story::of(config());
    let (old, new) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    story.brings_up(&[&old], &[&new]).at(1).look(&[&new]).at(5);
    story.event("web-2", EventKind::Stop);
    let again = Container { started_at: story.seconds(6), ..new };
    story.at(6).look(&[&again]).at(11).look(&[&again]);
    assert_eq!(story.said, [], "the new run has not lasted long enough");
    story.at(16).look(&[&again]);
    assert_eq!(story.last().event, Kind::UPDATED);
}

#[test]
fn what_a_person_stops_removes_or_replaces_is_neither_blocked_nor_undone_and_judged_when_it_runs() {
    let new = on("web", IMAGE, "v2", 2);
    let stopped = Container { state: State::Exited, exit_code: 137, ..new.clone() };
    let paused = Container { state: State::Paused, ..new.clone() };
    let other = on("web", IMAGE, "v9", 3);
    let table: [(&str, &[&Container]); 4] = [
        ("stopped by someone", &[&stopped]),
        ("paused by someone", &[&paused]),
        ("removed by someone", &[]),
        ("container web was moved to another image", &[&other]),
    ];
    for (words, there) in table {
        let mut story = Story::of(config());
        story.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&new]).at(1).look(&[&new]).at(5);
        if words.starts_with("stopped") {
            story.event("web-2", EventKind::Stop);
        }
        story.look(there).at(11).look(there);
        assert_eq!(story.kinds(), [Kind::ERROR], "{words}");
        assert!(!story.is_blocked(), "{words}");
        let fault = story.service.snapshot(PullProgress::default()).status.errored.unwrap_or_default();
        assert!(fault.contains(words), "{fault}");
        story.takes_step(StepResult::Unpinned);
        // Found running again, it has to prove itself where it is.
        story.at(60).check(observed('2', &[v2()], &[&new]));
        story.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        story.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        story.is_up(&[&new]).at(71).look(&[&new]);
        let updated = story.said.iter().find(|said| said.event == Kind::UPDATED);
        let updated = updated.unwrap_or_else(|| panic!("{words}: {:?}", story.said));
        assert_eq!(updated.old_digest, Some(digest('1').to_string()));
    }
}

#[test]
fn after_a_way_back_that_failed_a_redeploy_or_a_trigger_leads_to_what_was_proven_and_never_to_the_bad_image()
{
    let bad = Container { state: State::Running, ..on("web", IMAGE, "v2", 2) };
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad.clone() };
    let home = on("web", IMAGE, "v1", 3);
    for (ask, kind) in
        [(ServiceRequest::Redeploy, Kind::FORCE_REDEPLOY), (ServiceRequest::Check, Kind::ROLLED_BACK)]
    {
        let mut story = Story::of(config());
        story.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&bad]);
        story.at(2).look(&[&crashed]).at(3).look(&[&crashed]);
        story.takes_step(StepResult::Diagnosed { log: String::new() });
        let mut waits = 3;
        let mut recreates = Vec::new();
        while story.service.durable().rollback_failed.eq(&false) {
            let error = ComposeError { cause: "env file x does not exist".into(), output: String::new() };
            let failed =
                StepResult::Started { up: Err(error), named: Vec::new(), containers: vec![bad.clone()] };
            let Step::Start { up_mode, .. } = story.takes_step(failed) else { panic!("not the way back") };
            recreates.push(up_mode);
            waits += 40;
            story.at(waits);
        }
        assert_eq!(recreates[..2], [UpMode::Changed, UpMode::Services(vec!["web".into()])]);
        assert_eq!(story.last().event, Kind::ROLLBACK_FAILED);
        assert!(story.last().output.contains("web: running"), "{}", story.last().output);
        story.takes_step(StepResult::Unpinned);

        story.service.ask(ask.clone(), story.now);
        let generation = story.service.generation;
        let result = Ok(observed('2', &[v2()], &[&bad]));
        story.input(Input::Checked { generation, asked: ask == ServiceRequest::Check, result });
        story.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        story.takes_step(StepResult::Pulled { ids: Vec::new(), labels: BTreeMap::new() });
        let up =
            StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![home.clone()] };
        let Step::Start { tags, .. } = story.takes_step(up) else { panic!("nothing is brought up") };
        let [(_, image)] = &tags[..] else { panic!("{tags:?}") };
        assert_eq!(image.id, ImageId("sha256:v1".into()));
        story.at(waits + 100).look(&[&home]);
        assert_eq!(story.last().event, kind, "{:?}", story.said);
        assert!(story.is_blocked() && !story.service.durable().rollback_failed);
    }
}

#[test]
fn an_image_that_only_lost_its_block_has_to_prove_itself() {
    let mut story = Story::of(config());
    let bad = on("web", IMAGE, "v2", 2);
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad.clone() };
    story.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&bad]);
    story.at(2).look(&[&crashed]).at(3).look(&[&crashed]);
    story.goes_back(&[&bad]);
    for at in (4..200).step_by(3) {
        story.at(at).look(&[&bad]);
        if let Some(Action::Step(Step::Start { .. })) = story.act() {
            let up = StepResult::Started {
                up: Ok(String::new()),
                named: Vec::new(),
                containers: vec![bad.clone()],
            };
            story.input(Input::Stepped(up));
        }
    }
    assert!(story.service.durable().rollback_failed, "{:?}", story.said);
    story.input(Input::Stepped(StepResult::Unpinned));
    story.service.ask(ServiceRequest::Unblock, story.now);
    story.check(observed('2', &[v2()], &[&bad]));
    assert!(matches!(story.act(), Some(Action::Step(Step::PinImages { .. }))), "it is taken for proven");
}

#[test]
fn a_block_of_another_service_of_the_project_counts() {
    let mut story = Story::of(config());
    let mut seen = observed('2', &[v1()], &[&on("web", IMAGE, "v1", 1)]);
    seen.blocked_elsewhere = vec![(Reference::parse(IMAGE).unwrap(), digest('2'))];
    story.check(seen);
    assert_eq!(story.act(), None);
}

#[test]
fn the_black_box_is_that_of_the_container_that_failed_and_not_of_one_that_waits_for_it() {
    let mut story = Story::of(config());
    let (api, web) = (on("api", DB, "db", 2), on("web", IMAGE, "v2", 2));
    let waits = Container { state: State::Created, ..api };
    let ill = Container { health: Some(HealthState::Unhealthy), ..web };
    story.check(observed('2', &[v1()], &[&on("web", IMAGE, "v1", 1), &on("api", DB, "db", 1)]));
    story.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    story.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let error = ComposeError { cause: "dependency failed to start".into(), output: String::new() };
    story.takes_step(StepResult::Started { up: Err(error), named: Vec::new(), containers: vec![waits, ill] });
    let evidence = story.act();
    assert_eq!(evidence, Some(Action::Step(Step::Diagnose { container: "web-2".into() })));
}

/// A project that was stopped, and that version 2 could not be brought up in: what compose left of it.
fn fails_to_start_what_was_stopped(left: &Container) -> Story {
    let mut story = Story::of(config());
    let stopped = Container { state: State::Exited, ..on("web", IMAGE, "v1", 1) };
    let mut seen = observed('2', &[v1()], &[&stopped]);
    seen.images[0].running.clear();
    story.check(seen);
    story.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    story.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let error = ComposeError { cause: "exec: no such file".into(), output: String::new() };
    let containers = vec![left.clone()];
    story.takes_step(StepResult::Started { up: Err(error), named: Vec::new(), containers });
    story
}

#[test]
fn an_image_that_a_stopped_project_can_not_be_started_on_is_blocked_and_the_one_before_is_started() {
    let half_made = Container {
        state: State::Created,
        error: "exec: no such file".into(),
        started_at: None,
        ..on("web", IMAGE, "v2", 2)
    };
    let mut story = fails_to_start_what_was_stopped(&half_made);
    assert!(story.is_blocked(), "{:?}", story.said);
    let back = on("web", IMAGE, "v1", 3);
    let Step::Start { tags, .. } = story.goes_back(&[&back]) else { panic!("nothing is brought up") };
    assert_eq!(tags[0].1.id, ImageId("sha256:v1".into()));
    story.at(20).look(&[&back]);
    assert_eq!(story.last().event, Kind::ROLLED_BACK, "{:?}", story.said);
    story.takes_step(StepResult::Unpinned);
    story.at(30).check(observed('2', &[v1()], &[&back]));
    assert_eq!(story.act(), None, "it is not tried again");
}

#[test]
fn a_stopped_project_that_compose_did_not_touch_stays_stopped_and_nothing_is_blocked() {
    let stopped = Container { state: State::Exited, ..on("web", IMAGE, "v1", 1) };
    let mut story = fails_to_start_what_was_stopped(&stopped);
    assert_eq!((story.kinds(), story.is_blocked()), (vec![Kind::ERROR], false));
    assert!(matches!(story.act(), Some(Action::Step(Step::RestoreTags { .. }))));
}

#[test]
fn what_a_failed_up_has_replaced_is_rolled_back_though_it_did_not_run_before_and_others_still_do() {
    let mut story = Story::of(config());
    let (db, old) = (on("db", DB, "v1", 1), Container { state: State::Exited, ..on("web", IMAGE, "v1", 1) });
    let half_made = Container { state: State::Created, started_at: None, ..on("web", IMAGE, "v2", 2) };
    story.check(observed('2', &[v1()], &[&db, &old]));
    story.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    story.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let up = Err(ComposeError { cause: "exec: no such file".into(), output: String::new() });
    let containers = vec![db.clone(), half_made];
    story.takes_step(StepResult::Started { up, named: vec!["web".into()], containers });
    assert!(story.is_blocked());
    assert!(matches!(story.goes_back(&[&db, &on("web", IMAGE, "v1", 3)]), Step::Start { .. }));
}
