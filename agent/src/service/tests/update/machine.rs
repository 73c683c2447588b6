//! Scenarios of updates that fail for want of what the machine has to give.

use super::*;

#[test]
fn what_the_machine_could_not_give_a_container_is_no_fault_of_its_image() {
    let update = |scenario: &mut Scenario, left: Container| {
        scenario.check(observed('2', &[v1()], &[&on("web", IMAGE, "v1", 1)]));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(pulled(&[(IMAGE, "v2")]));
        scenario.takes_step(lacks_port(&[&left]));
    };
    let mut scenario = Scenario::of(config());
    update(&mut scenario, half_made("web", "v2"));
    let old = Container { started_at: scenario.seconds(1), ..on("web", IMAGE, "v1", 3) };
    assert!(matches!(scenario.rolls_back(&[&old]), Step::Start(_)));
    scenario.at(2).look(&[&old]).at(100).look(&[&old]);
    scenario.takes_step(StepResult::Unpinned);
    let [waits, told] = &scenario.entries[..] else { panic!("{:?}", scenario.entries) };
    assert!(
        told.message.contains("could not be brought up by this machine; rolled back"),
        "{}",
        told.message
    );
    assert_eq!((told.image.as_deref(), told.new_digest.as_deref()), (None, None), "it is no verdict");
    assert!(
        waits.message.contains("tried again later: ") && waits.message.contains("port"),
        "{}",
        waits.message
    );
    assert!(!scenario.is_blocked());
    // It waits, and then comes in.
    scenario.at(200).check(observed('2', &[v1()], &[&old]));
    assert!(!matches!(scenario.act(), Some(Action::Step(_))));
    scenario.at(900).check(observed('2', &[v1()], &[&old]));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    // One that was started, and has failed, has itself to blame.
    let mut scenario = Scenario::of(config());
    let crashed = Container { state: State::Exited, exit_code: 1, ..on("web", IMAGE, "v2", 2) };
    update(&mut scenario, crashed);
    assert!(scenario.is_blocked());
}

#[test]
fn an_image_is_not_blocked_for_what_keeps_the_earlier_one_from_starting_as_well() {
    let fails = |cause: &str, left: Container| {
        let up = Err(ComposeError::new(cause));
        StepResult::Started { up, named: Vec::new(), containers: vec![left] }
    };
    let rolls_back = |cause: &str, left: Container| {
        let mut scenario = Scenario::of(config());
        scenario.check(observed('2', &[v1()], &[&on("web", IMAGE, "v1", 1)]));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(pulled(&[(IMAGE, "v2")]));
        scenario.takes_step(fails(cause, left));
        assert!(scenario.is_blocked(), "it is not known yet");
        scenario.takes_step(StepResult::Diagnosed { log: String::new() });
        scenario
    };
    let (new, old) = (half_made("web", "v2"), half_made("web", "v1"));
    // At last the old image comes up.
    let mut scenario = rolls_back("permission denied", new.clone());
    scenario.takes_step(fails("permission denied", old.clone()));
    assert!(!scenario.is_blocked());
    let back = Container { started_at: scenario.seconds(50), ..on("web", IMAGE, "v1", 3) };
    scenario.at(50).is_up(&[&back]).at(51).look(&[&back]).at(200).look(&[&back]);
    let told = scenario.entries.iter().rfind(|entry| entry.event == Kind::ROLLED_BACK).expect("it is told");
    assert!(told.message.contains("could not be brought up by this machine"), "{}", told.message);
    assert!(told.new_digest.is_none() && !scenario.is_blocked());
    assert_eq!(scenario.service.durable().postponed.len(), 1, "it is tried again");
    // Or it never does.
    let mut scenario = rolls_back("permission denied", new.clone());
    let mut waits = 0;
    while !scenario.service.durable().rollback_failed {
        scenario.takes_step(fails("permission denied", old.clone()));
        waits += 40;
        scenario.at(waits);
    }
    let told = scenario.entries.iter().rfind(|entry| entry.event == Kind::ROLLBACK_FAILED);
    assert_eq!(told.map(|entry| &entry.new_digest), Some(&None), "it is no verdict");
    assert!(!scenario.is_blocked());
    // The old image fails otherwise, on data of the new one, for an unknown cause, or the new one has run.
    let runs = on("web", IMAGE, "v2", 2);
    let crashed = Container { state: State::Exited, exit_code: 1, ..runs.clone() };
    for (cause, left, then) in [
        ("permission denied", new.clone(), "no space left on device"),
        (
            "container db is unhealthy: dependency failed to start",
            new.clone(),
            "container db is unhealthy: dependency failed to start",
        ),
        ("`up` failed without output (exit status: 1)", new, "`up` failed without output (exit status: 1)"),
        ("permission denied", crashed, "permission denied"),
        ("web hook exited with status 1", runs, "web hook exited with status 1"),
    ] {
        let mut scenario = rolls_back(cause, left);
        scenario.takes_step(fails(then, old.clone()));
        assert!(scenario.is_blocked(), "{cause}");
    }
}

/// Compose can't bring up what it was to, for want of a port. `left` are the containers that it leaves.
fn lacks_port(left: &[&Container]) -> StepResult {
    let error = ComposeError { is_of_machine: true, ..ComposeError::new("port is already allocated") };
    let containers = left.iter().map(|c| (*c).clone()).collect();
    StepResult::Started { up: Err(error), named: Vec::new(), containers }
}

/// A container that was made, and could not be started.
fn half_made(name: &str, version: &str) -> Container {
    let error = "port is already allocated".into();
    Container { state: State::Created, started_at: None, error, ..on(name, IMAGE, version, 2) }
}

fn pulled(images: &[(&str, &str)]) -> StepResult {
    let id = |(image, id): &(&str, &str)| ((*image).to_owned(), ImageId(format!("sha256:{id}").into()));
    StepResult::Pulled { ids: images.iter().map(id).collect(), labels: BTreeMap::new() }
}

#[test]
fn only_the_image_that_lacks_something_waits_and_the_others_are_tried_without_it() {
    let mut config = config();
    let reference = Reference::parse(DB).unwrap();
    config.images.push(ConfiguredImage { configured: DB.into(), reference: reference.clone() });
    let mut scenario = Scenario::of(config);
    let (web, db) = (on("web", IMAGE, "v1", 1), on("db", DB, "db1", 1));
    let mut seen = observed('2', &[v1()], &[&web, &db]);
    let (remote, running) = (Some(digest('6')), vec![local("sha256:db1", &['5'])]);
    seen.images.push(ImageView { remote, running, ..ImageView::new(DB.into(), reference) });
    scenario.check(seen);
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(pulled(&[(IMAGE, "v2"), (DB, "db2")]));
    scenario.takes_step(lacks_port(&[&half_made("web", "v2"), &on("db", DB, "db2", 2)]));
    let postponed = &scenario.service.durable().postponed;
    let waiting: Vec<_> = postponed.iter().map(|one| (one.digest.clone(), one.others.len())).collect();
    assert_eq!(waiting, [(digest('2'), 0)]);
    assert!(!scenario.is_blocked());
}

#[test]
fn a_first_start_that_lacks_something_of_the_machine_is_no_rollback_that_has_failed() {
    let update = crate::config::UpdateConfig { approve: true, ..Default::default() };
    let update = Some(Arc::new(update));
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, update, ..config() });
    scenario.check(observed('2', &[], &[]));
    scenario.service.handle_request(ServiceRequest::Approve(None), scenario.now);
    scenario.check(observed('2', &[], &[]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(pulled(&[(IMAGE, "v2")]));
    let made = half_made("web", "v2");
    scenario.takes_step(lacks_port(&[&made]));
    scenario.takes_step(StepResult::Diagnosed { log: String::new() });
    scenario.takes_step(StepResult::Unpinned);
    let durable = scenario.service.durable();
    assert!(!durable.rollback_failed && !scenario.is_blocked(), "{:?}", scenario.entries);
    assert!(scenario.last().message.contains("could not be brought up by this machine"));
    let seen = || {
        let mut seen = observed('2', &[v2()], &[&made]);
        seen.images[0].tagged = Some(v2());
        seen
    };
    scenario.at(300).check(seen());
    assert!(!matches!(scenario.act(), Some(Action::Step(_))), "it waits");
    scenario.at(700).check(seen()).at(760).check(seen());
    let action = scenario.act();
    assert!(
        matches!(action, Some(Action::Step(_))),
        "it is tried again: {action:?} {:?}",
        scenario.service.durable().postponed
    );
}
