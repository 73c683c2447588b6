//! Stories of what compose is told to keep to, and of what it recreates beyond that.

use super::*;
use crate::service::scope::Scope;

const DB: &str = "localhost:5000/db:1";

/// A container of a compose service in a version of its image, made in that round.
fn made(service: &str, image: &str, version: &str, round: u32) -> Container {
    Container {
        id: format!("{service}-{round}"),
        config_image: image.into(),
        image: ImageId(format!("sha256:{version}").into()),
        ..running(service)
    }
}

fn pulled() -> StepResult {
    StepResult::Pulled { ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))], labels: BTreeMap::new() }
}

fn up(named: &[&str], containers: &[&Container]) -> StepResult {
    StepResult::Started {
        up: Ok(String::new()),
        named: named.iter().map(|name| (*name).to_owned()).collect(),
        containers: containers.iter().map(|c| (*c).clone()).collect(),
    }
}

impl Story {
    /// Goes on to the next `up`, ends it like this, and says what compose was to keep to.
    fn brought_up(&mut self, result: StepResult) -> Option<Scope> {
        loop {
            match self.act() {
                Some(Action::Step(Step::Start { scope, .. })) => {
                    self.input(Input::Stepped(result));
                    return scope;
                }
                Some(Action::Step(Step::PinImages { .. })) => {
                    self.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }))
                }
                Some(Action::Step(Step::Pull { .. })) => self.input(Input::Stepped(pulled())),
                Some(Action::Step(Step::Diagnose { .. })) => {
                    self.input(Input::Stepped(StepResult::Diagnosed { log: String::new() }))
                }
                other => panic!("no `up` is due, but {other:?}"),
            };
        }
    }
}

#[test]
fn an_update_and_its_undoing_keep_to_the_image_that_changes() {
    let mut story = Story::of(config());
    let (old, bad, back) =
        (made("web", IMAGE, "v1", 1), made("web", IMAGE, "v2", 2), made("web", IMAGE, "v1", 3));
    let db = made("db", DB, "db", 1);
    story.check(observed('2', &[local("sha256:v1", &['1'])], &[&old, &db]));
    let there = story.brought_up(up(&["web"], &[&bad, &db])).expect("it keeps to something");
    assert_eq!(there.images, [Reference::parse(IMAGE).unwrap()]);
    let before: Vec<&str> = there.before.iter().map(|was| was.id.as_str()).collect();
    assert_eq!(before, ["web-1", "db-1"]);
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad };
    story.at(2).look(&[&crashed, &db]).at(3).look(&[&crashed, &db]);
    assert_eq!(story.brought_up(up(&["web"], &[&back, &db])), Some(there), "on the way back it is the same");
    story.at(60).look(&[&back, &db]);
    let last = story.said.last().unwrap();
    assert_eq!(last.event, Kind::ROLLED_BACK);
    assert!(!last.message.contains("also recreated"), "{}", last.message);
}

#[test]
fn the_whole_project_is_brought_up_where_nothing_of_it_runs_and_where_a_person_redeploys() {
    let v1 = [local("sha256:v1", &['1'])];
    let mut story = Story::of(config());
    let mut seen = observed('2', &[], &[&exited("web", 137), &exited("db", 137)]);
    seen.images[0].tagged = v1.first().cloned();
    story.check(seen);
    assert_eq!(story.brought_up(up(&[], &[&made("web", IMAGE, "v2", 2)])), None);

    let looping = Container { state: State::Restarting, ..made("web", IMAGE, "v1", 1) };
    let mut story = Story::of(config());
    story.check(observed('2', &v1, &[&looping, &exited("db", 137)]));
    assert!(story.brought_up(up(&["web"], &[&made("web", IMAGE, "v2", 2)])).is_some(), "it is not stopped");

    let mut story = Story::of(config());
    story.service.ask(ServiceRequest::Redeploy, story.now);
    story.check(observed('2', &v1, &[&made("web", IMAGE, "v1", 1)]));
    let bad = Container { state: State::Exited, exit_code: 1, ..made("web", IMAGE, "v2", 2) };
    assert_eq!(story.brought_up(up(&[], &[&bad])), None);
    story.at(2).look(&[&bad]).at(3).look(&[&bad]);
    assert_eq!(story.brought_up(up(&[], &[&made("web", IMAGE, "v1", 3)])), None, "all of it was recreated");
}

#[test]
fn what_compose_recreates_beyond_is_named_in_the_entry() {
    let v1 = [local("sha256:v1", &['1'])];
    let web = |version, round| made("web", IMAGE, version, round);
    let (db, side) = (|round| made("db", DB, "db", round), |round| made("side", DB, "db", round));
    let mut story = Story::of(config());
    story.check(observed('2', &v1, &[&web("v1", 1), &db(1), &side(1)]));
    story.brought_up(up(&["side", "web"], &[&web("v2", 2), &db(2), &side(2)]));
    story.at(60).look(&[&web("v2", 2), &db(2), &side(2)]);
    let last = story.said.last().unwrap();
    assert_eq!(last.event, Kind::UPDATED);
    assert!(
        last.message.ends_with("; compose also recreated db, which this did not need"),
        "{}",
        last.message
    );

    let mut story = Story::of(config());
    let bad = Container { state: State::Exited, exit_code: 1, ..web("v2", 2) };
    story.check(observed('2', &v1, &[&web("v1", 1), &db(1)]));
    story.brought_up(up(&["web"], &[&bad, &db(1)]));
    story.at(2).look(&[&bad, &db(1)]).at(3).look(&[&bad, &db(1)]);
    story.brought_up(up(&["web"], &[&web("v1", 3), &db(2)]));
    story.at(60).look(&[&web("v1", 3), &db(2)]);
    let last = story.said.last().unwrap();
    assert_eq!(last.event, Kind::ROLLED_BACK);
    assert!(
        last.message.ends_with("; compose also recreated db, which this did not need"),
        "{}",
        last.message
    );
}

#[test]
fn an_edit_of_the_files_that_an_update_leaves_alone_is_applied_after_it() {
    let mut story = Story::of(ServiceConfig { compose_watch: true, ..config() });
    let seen = |remote, version: &str, digests: &[char], hash: &str, web: &Container| Observation {
        files: Files::Hash(hash.into()),
        ..observed(remote, &[local(&format!("sha256:{version}"), digests)], &[web, &made("db", DB, "db", 1)])
    };
    let (old, new) = (made("web", IMAGE, "v1", 1), made("web", IMAGE, "v2", 2));
    story.check(seen('1', "v1", &['1'], "one", &old));
    story.check(seen('2', "v1", &['1'], "two", &old));
    story.brought_up(up(&["web"], &[&new, &made("db", DB, "db", 1)]));
    story.at(60).look(&[&new, &made("db", DB, "db", 1)]);
    assert!(story.kinds().contains(&Kind::UPDATED));
    story.act();
    story.input(Input::Stepped(StepResult::Unpinned));
    story.at(70).check(seen('2', "v2", &['2'], "two", &new));
    assert_eq!(story.brought_up(up(&[], &[&new])), None, "the whole project, since its files changed");
    assert_eq!(story.kinds(), [Kind::COMPOSE_DRIFT]);
}

#[test]
fn what_uses_the_network_of_a_container_by_its_name_is_tied_to_its_service() {
    use crate::model::{CurrentOwner, NetworkOwner};
    let mut story = Story::of(config());
    let web = made("web", IMAGE, "v1", 1);
    let owner = NetworkOwner { given: "web".into(), found: Some(CurrentOwner::of(&web)) };
    let side =
        Container { network_of: Some(owner), restarts_with: vec!["db".into()], ..made("side", DB, "db", 1) };
    story.check(observed('2', &[local("sha256:v1", &['1'])], &[&web, &side]));
    let scope = story.brought_up(up(&["web"], &[&web, &side])).expect("it keeps to something");
    assert_eq!(scope.before[1].restarts_with, ["db", "web"]);
}
