//! Scenarios of the scope that compose is limited to, and of containers that it recreates beyond that.

use super::*;
use crate::service::scope::Scope;

const DB: &str = "localhost:5000/db:1";

/// Returns a container of a compose service on a version of its image, created in that round.
fn created(service: &str, image: &str, version: &str, round: u32) -> Container {
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

impl Scenario {
    /// Advances to the next `up`, which ends with `result`. Returns the scope of that `up`.
    fn brought_up(&mut self, result: StepResult) -> Option<Scope> {
        loop {
            match self.act() {
                Some(Action::Step(Step::Start(BringUp { scope, .. }))) => {
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
fn an_update_and_its_rollback_are_limited_to_the_changed_image() {
    let mut scenario = Scenario::of(config());
    let (old, bad, back) =
        (created("web", IMAGE, "v1", 1), created("web", IMAGE, "v2", 2), created("web", IMAGE, "v1", 3));
    let db = created("db", DB, "db", 1);
    scenario.check(observed('2', &[local("sha256:v1", &['1'])], &[&old, &db]));
    let there = scenario.brought_up(up(&["web"], &[&bad, &db])).expect("it has a scope");
    assert_eq!(there.images, [Reference::parse(IMAGE).unwrap()]);
    let before: Vec<&str> = there.before.iter().map(|was| was.id.as_str()).collect();
    assert_eq!(before, ["web-1", "db-1"]);
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad };
    scenario.at(2).look(&[&crashed, &db]).at(3).look(&[&crashed, &db]);
    assert_eq!(
        scenario.brought_up(up(&["web"], &[&back, &db])),
        Some(there),
        "the rollback has the same scope"
    );
    scenario.at(60).look(&[&back, &db]);
    let last = scenario.entries.last().unwrap();
    assert_eq!(last.event, Kind::ROLLED_BACK);
    assert!(!last.message.contains("also recreated"), "{}", last.message);
}

#[test]
fn the_run_before_a_handover_waits_for_what_the_new_containers_depend_on() {
    use crate::service::observation::Definition;
    use crate::service::scope::Part;
    let files = serde_json::json!({"services": {
        "migrate": {"image": IMAGE},
        "web": {
            "image": IMAGE,
            "deploy": {"update_config": {"order": "start-first"}},
            "depends_on": {"migrate": {"condition": "service_completed_successfully"}},
        },
    }});
    let model = Arc::new(serde_json::from_value(files).unwrap());
    let old = created("web", IMAGE, "v1", 1);
    let job = |version, round| Container {
        state: State::Exited,
        exit_code: 0,
        ..created("migrate", IMAGE, version, round)
    };
    let mut seen = observed('2', &[local("sha256:v1", &['1'])], &[&old, &job("v1", 1)]);
    seen.definition = Some(Ok(Definition { model, ..Definition::default() }));
    let mut scenario = Scenario::of(config());
    scenario.check(seen);
    let results = [StepResult::ImagesPinned { missing: Vec::new() }, pulled()];
    for result in results {
        assert!(matches!(scenario.act(), Some(Action::Step(_))));
        scenario.input(Input::Stepped(result));
    }
    let runs = [
        (Part::StopFirst(["web".to_owned()].into()), vec!["web".to_owned()], "migrate"),
        (Part::Beside([("web".to_owned(), 2)].into()), Vec::new(), "web"),
    ];
    for (part, expected, named) in runs {
        let Some(Action::Step(Step::Start(BringUp { scope: Some(scope), next, .. }))) = scenario.act() else {
            panic!("no `up` is due")
        };
        assert_eq!((scope.part, next), (part, expected));
        scenario.input(Input::Stepped(up(&[named], &[&old, &job("v2", 2)])));
    }
}

#[test]
fn a_container_that_is_not_of_the_project_is_not_updated_and_no_image_is_blocked_for_it() {
    for (project, text) in [("", "no compose project"), ("old", "compose project old"), ("web", "")] {
        let by_name = ServiceConfig { container_name: Some("pihole".into()), ..config() };
        let mut scenario = Scenario::of(by_name);
        let seen = Container { project: project.into(), ..running("pihole") };
        let v1 = [local("sha256:one", &['1'])];
        scenario.check(observed('2', &v1, &[&seen]));
        let begun = scenario.act();
        if text.is_empty() {
            assert!(matches!(begun, Some(Action::Step(Step::PinImages { .. }))), "{begun:?}");
            continue;
        }
        assert_eq!(begun, None, "{project}");
        let errored = scenario.record().errored.expect("it is a fault");
        assert!(errored.contains(text) && errored.contains("docker compose -p web … up -d"), "{errored}");
        assert!(scenario.kinds().contains(&Kind::ERROR), "{project}");

        scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
        scenario.check(observed('2', &v1, &[&seen]));
        assert_eq!(scenario.act(), None, "{project}");
        assert!(scenario.kinds().contains(&Kind::FORCE_REDEPLOY_FAILED), "{project}");
    }
}

#[test]
fn the_whole_project_is_brought_up_if_none_of_it_runs_and_on_a_redeploy() {
    let v1 = [local("sha256:v1", &['1'])];
    let mut scenario = Scenario::of(config());
    let mut seen = observed('2', &[], &[&exited("web", 137), &exited("db", 137)]);
    seen.images[0].tagged = v1.first().cloned();
    scenario.check(seen);
    assert_eq!(scenario.brought_up(up(&[], &[&created("web", IMAGE, "v2", 2)])), None);

    let looping = Container { state: State::Restarting, ..created("web", IMAGE, "v1", 1) };
    let mut scenario = Scenario::of(config());
    scenario.check(observed('2', &v1, &[&looping, &exited("db", 137)]));
    assert!(
        scenario.brought_up(up(&["web"], &[&created("web", IMAGE, "v2", 2)])).is_some(),
        "it is not stopped"
    );

    let mut scenario = Scenario::of(config());
    scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    scenario.check(observed('2', &v1, &[&created("web", IMAGE, "v1", 1)]));
    let bad = Container { state: State::Exited, exit_code: 1, ..created("web", IMAGE, "v2", 2) };
    assert_eq!(scenario.brought_up(up(&[], &[&bad])), None);
    scenario.at(2).look(&[&bad]).at(3).look(&[&bad]);
    assert_eq!(
        scenario.brought_up(up(&[], &[&created("web", IMAGE, "v1", 3)])),
        None,
        "all of it was recreated"
    );
}

#[test]
fn containers_that_compose_recreates_needlessly_are_named_in_the_entry() {
    let v1 = [local("sha256:v1", &['1'])];
    let web = |version, round| created("web", IMAGE, version, round);
    let (db, side) = (|round| created("db", DB, "db", round), |round| created("side", DB, "db", round));
    let mut scenario = Scenario::of(config());
    scenario.check(observed('2', &v1, &[&web("v1", 1), &db(1), &side(1)]));
    scenario.brought_up(up(&["side", "web"], &[&web("v2", 2), &db(2), &side(2)]));
    scenario.at(60).look(&[&web("v2", 2), &db(2), &side(2)]);
    let last = scenario.entries.last().unwrap();
    assert_eq!(last.event, Kind::UPDATED);
    assert!(
        last.message.ends_with("; compose also recreated db, which was not necessary"),
        "{}",
        last.message
    );

    let mut scenario = Scenario::of(config());
    let bad = Container { state: State::Exited, exit_code: 1, ..web("v2", 2) };
    scenario.check(observed('2', &v1, &[&web("v1", 1), &db(1)]));
    scenario.brought_up(up(&["web"], &[&bad, &db(1)]));
    scenario.at(2).look(&[&bad, &db(1)]).at(3).look(&[&bad, &db(1)]);
    scenario.brought_up(up(&["web"], &[&web("v1", 3), &db(2)]));
    scenario.at(60).look(&[&web("v1", 3), &db(2)]);
    let last = scenario.entries.last().unwrap();
    assert_eq!(last.event, Kind::ROLLED_BACK);
    assert!(
        last.message.ends_with("; compose also recreated db, which was not necessary"),
        "{}",
        last.message
    );
}

#[test]
fn an_edit_of_the_files_that_an_update_does_not_apply_is_applied_after_it() {
    let mut scenario = Scenario::of(ServiceConfig { compose_watch: true, ..config() });
    let seen = |remote, version: &str, digests: &[char], hash: &str, web: &Container| Observation {
        files: Files::Hash(hash.into()),
        ..observed(
            remote,
            &[local(&format!("sha256:{version}"), digests)],
            &[web, &created("db", DB, "db", 1)],
        )
    };
    let (old, new) = (created("web", IMAGE, "v1", 1), created("web", IMAGE, "v2", 2));
    scenario.check(seen('1', "v1", &['1'], "one", &old));
    scenario.check(seen('2', "v1", &['1'], "two", &old));
    scenario.brought_up(up(&["web"], &[&new, &created("db", DB, "db", 1)]));
    scenario.at(60).look(&[&new, &created("db", DB, "db", 1)]);
    assert!(scenario.kinds().contains(&Kind::UPDATED));
    scenario.act();
    scenario.input(Input::Stepped(StepResult::Unpinned));
    scenario.at(70).check(seen('2', "v2", &['2'], "two", &new));
    assert_eq!(scenario.brought_up(up(&[], &[&new])), None, "the whole project, since its files changed");
    assert_eq!(scenario.kinds(), [Kind::COMPOSE_DRIFT]);
}

#[test]
fn a_container_on_the_network_of_another_is_restarted_with_its_service() {
    use crate::model::{NetworkOwner, NetworkOwnerState};
    let mut scenario = Scenario::of(config());
    let web = created("web", IMAGE, "v1", 1);
    let owner = NetworkOwner { id_or_name: "web".into(), resolved: Some(NetworkOwnerState::of(&web)) };
    let side = Container {
        network_of: Some(owner),
        restarts_with: vec!["db".into()],
        ..created("side", DB, "db", 1)
    };
    scenario.check(observed('2', &[local("sha256:v1", &['1'])], &[&web, &side]));
    let scope = scenario.brought_up(up(&["web"], &[&web, &side])).expect("it has a scope");
    assert_eq!(scope.before[1].restarts_with, ["db", "web"]);
}
