//! Scenarios of containers that use the network of another one.

use super::*;
use crate::model::{ComposeError, NetworkOwner, NetworkOwnerState, UpMode};
use crate::service::action::Step;

/// A container ID as compose passes it to the engine.
const OLD_ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Returns `vpn`, started at that second.
fn vpn_of(scenario: &Scenario, second: i64) -> Container {
    Container { started_at: scenario.seconds(second), ..running("vpn") }
}

/// Returns `container` using the network of `owner`.
fn with_network_of(owner: &Container, container: &Container) -> Container {
    let owner = NetworkOwner { id_or_name: owner.id.clone(), resolved: Some(NetworkOwnerState::of(owner)) };
    Container { network_of: Some(owner), ..container.clone() }
}

/// Returns `container` using the network of a container that does not exist.
fn with_network_of_none(given: &str, container: &Container) -> Container {
    Container {
        network_of: Some(NetworkOwner { id_or_name: given.into(), resolved: None }),
        ..container.clone()
    }
}

#[test]
fn a_container_whose_network_owner_was_restarted_is_restarted_after_it() {
    let mut scenario = Scenario::of(config());
    let client = Container { started_at: scenario.seconds(1), ..with_health("client", HealthState::Healthy) };
    let (before, after) = (vpn_of(&scenario, 0), vpn_of(&scenario, 20));
    assert_eq!(scenario.at(2).look(&[&before, &with_network_of(&before, &client)]).restarts(), [""; 0]);
    // Someone may be restarting both, one after the other. It makes no difference who owns the container.
    let client = with_network_of(&after, &client);
    assert_eq!(scenario.at(21).look(&[&client]).restarts(), [""; 0]);
    assert_eq!(scenario.at(31).look(&[&client]).restarts(), ["client"]);
    let why = scenario.entries.iter().find_map(|entry| entry.reason.clone()).expect("a reason");
    assert!(why.contains("network of vpn"), "{why}");
    let again = Container { started_at: scenario.seconds(32), ..client };
    scenario.at(33).look(&[&after, &again]);
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTARTED]);
    assert_eq!(scenario.at(60).look(&[&after, &again]).restarts(), [""; 0]);
}

#[test]
fn losing_the_network_again_soon_after_a_restart_does_not_count_as_a_failure() {
    let mut scenario = Scenario::of(config());
    let client = |scenario: &Scenario, second: i64| Container {
        started_at: scenario.seconds(second),
        ..with_health("client", HealthState::Healthy)
    };
    for began in [0, 60, 120, 180, 240] {
        let vpn = vpn_of(&scenario, began + 1);
        let old = with_network_of(&vpn, &client(&scenario, began));
        scenario.at(began + 2).look(&[&old]);
        assert_eq!(scenario.at(began + 13).look(&[&old]).restarts(), ["client"], "{began}");
        let again = with_network_of(&vpn, &client(&scenario, began + 14));
        scenario.at(began + 15).look(&[&again]);
        assert_eq!(scenario.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTARTED]);
        scenario.at(began + 60);
    }
    assert_eq!(scenario.record().restart_failures, 0);
}

#[test]
fn a_crashing_network_owner_does_not_exhaust_the_containers_that_use_its_network() {
    let mut scenario = Scenario::of(config());
    for round in 0..6 {
        let began = round * 100;
        let vpn = vpn_of(&scenario, began + 1);
        let old = Container { started_at: scenario.seconds(began), ..running("client") };
        let old = with_network_of(&vpn, &old);
        scenario.at(began + 2).look(&[&vpn, &old]);
        assert_eq!(scenario.at(began + 12).look(&[&vpn, &old]).restarts(), ["client"], "round {round}");
        // It crashes again before the restart is proven.
        let vpn = vpn_of(&scenario, began + 14);
        let new = Container { started_at: scenario.seconds(began + 13), ..running("client") };
        scenario.at(began + 15).look(&[&vpn, &with_network_of(&vpn, &new)]);
    }
    let kinds = scenario.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED) && !kinds.contains(&Kind::EXHAUSTED), "{kinds:?}");
}

#[test]
fn a_stopped_network_owner_does_not_restart_running_containers() {
    let mut scenario = Scenario::of(config());
    let down = Container { state: State::Exited, ..vpn_of(&scenario, 5) };
    let client = Container { started_at: scenario.seconds(1), ..running("client") };
    let client = with_network_of(&down, &client);
    scenario.at(10).look(&[&client]);
    assert_eq!(scenario.at(60).look(&[&client]).restarts(), [""; 0]);
    assert_eq!(scenario.kinds(), []);
}

#[test]
fn a_container_that_needs_its_network_owner_waits_without_using_up_restarts() {
    let mut scenario = Scenario::of(config());
    let dead = Container { state: State::Exited, exit_code: 1, ..running("client") };
    let vpn = Container { state: State::Exited, ..vpn_of(&scenario, 5) };
    let waits = with_network_of(&vpn, &dead);
    for at in [10, 60, 1000, 5000] {
        assert_eq!(scenario.at(at).look(&[&waits]).restarts(), [""; 0]);
    }
    assert_eq!(scenario.kinds(), [Kind::DIED]);
    let vpn = vpn_of(&scenario, 5001);
    assert_eq!(scenario.at(5002).look(&[&with_network_of(&vpn, &dead)]).restarts(), ["client"]);
}

#[test]
fn a_container_whose_network_owner_was_replaced_is_recreated_by_compose() {
    let mut scenario = Scenario::of(config());
    let client = Container {
        started_at: scenario.seconds(0),
        name: "shop-client-1".into(),
        ..with_health("client", HealthState::Healthy)
    };
    let orphan = with_network_of_none(OLD_ID, &client);
    assert_eq!(scenario.at(10).look(&[&orphan]).act(), None, "someone may still be replacing it");
    let Some(Action::Step(Step::Start(BringUp { up_mode, down: false, tags, .. }))) =
        scenario.at(20).look(&[&orphan]).act()
    else {
        panic!("it is not recreated: {:?}", scenario.entries)
    };
    assert_eq!((up_mode, tags), (UpMode::ForceService("client".into()), Vec::new()));
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING]);
    let vpn = vpn_of(&scenario, 5);
    let recreated = Container { id: "recreated".into(), started_at: scenario.seconds(21), ..client };
    let recreated = with_network_of(&vpn, &recreated);
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![recreated.clone()],
    }));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned)).at(22).look(&[&recreated]);
    assert_eq!(scenario.kinds(), [Kind::RESTARTED]);
    assert_eq!(scenario.at(600).look(&[&recreated]).act(), None);
    assert_eq!(scenario.kinds(), []);
}

#[test]
fn a_container_whose_network_was_removed_while_it_was_down_is_recreated_if_compose_can_do_so() {
    let down = Container { lost_networks: vec!["old".into()], ..exited("web", 1) };
    let mut scenario = Scenario::of(config());
    scenario.look(&[&down]);
    let action = scenario.at(2).look(&[&down]).act();
    let Some(Action::Step(Step::Start(BringUp { up_mode, .. }))) = action else {
        panic!("it is not recreated: {action:?}, {:?}", scenario.entries)
    };
    assert_eq!(up_mode, UpMode::ForceService("web".into()));
    assert_eq!(scenario.kinds(), [Kind::DIED, Kind::RESTARTING]);
    let mut scenario = Scenario::of(ServiceConfig { compose_files: Vec::new(), ..config() });
    scenario.look(&[&down]);
    assert_eq!(scenario.at(2).look(&[&down]).restarts(), ["web"], "the engine says what is wrong");
}

#[test]
fn a_failed_rollback_stands_while_another_container_is_recreated() {
    let mut scenario = Scenario::of(config());
    let bad = Container { image: ImageId("sha256:two".into()), ..running("web") };
    let memory = scenario.service.durable.images.of(IMAGE);
    (memory.blocked, memory.unproven) = (Some(digest('2')), Some(bad.image.clone()));
    scenario.service.durable.rollback_failed = true;
    let client = Container {
        started_at: scenario.seconds(0),
        config_image: "localhost:5000/client:1".into(),
        image: ImageId("sha256:client".into()),
        ..with_health("client", HealthState::Healthy)
    };
    let orphan = with_network_of_none(OLD_ID, &client);
    assert_eq!(scenario.at(10).look(&[&bad, &orphan]).act(), None, "someone may still be replacing it");
    let Some(Action::Step(Step::Start(BringUp { up_mode, .. }))) =
        scenario.at(20).look(&[&bad, &orphan]).act()
    else {
        panic!("it is not recreated: {:?}", scenario.entries)
    };
    assert_eq!(up_mode, UpMode::ForceService("client".into()));
    let recreated = Container { id: "recreated".into(), started_at: scenario.seconds(21), ..client };
    let recreated = with_network_of(&vpn_of(&scenario, 5), &recreated);
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![bad, recreated],
    }));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    assert!(scenario.service.durable().rollback_failed, "{:?}", scenario.entries);
}

#[test]
fn a_container_that_cannot_be_recreated_waits_for_its_network_owner() {
    let mut scenario = Scenario::of(config());
    let client = Container { started_at: scenario.seconds(0), ..running("client") };
    let orphan = with_network_of_none(OLD_ID, &client);
    scenario.at(10).look(&[&orphan]);
    assert!(matches!(scenario.at(20).look(&[&orphan]).act(), Some(Action::Step(Step::Start(_)))));
    // The network owner itself is missing: compose leaves a container
    // that could not be started, and that names its owner.
    let half = Container {
        state: State::Created,
        started_at: None,
        error: "No such container: vpn".into(),
        ..with_network_of_none("vpn", &client)
    };
    let error = ComposeError::new("No such container: vpn");
    scenario.input(Input::Stepped(StepResult::Started {
        up: Err(error),
        named: Vec::new(),
        containers: vec![half.clone()],
    }));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::RestoreTags { .. }))));
    scenario.input(Input::Stepped(StepResult::TagsRestored)).act();
    scenario.input(Input::Stepped(StepResult::Unpinned));
    for at in [100, 1000, 5000, 50_000] {
        assert_eq!(scenario.at(at).look(&[&half]).restarts(), [""; 0]);
    }
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
    assert_eq!(scenario.status(), StatusValue::Degraded);
    let vpn = vpn_of(&scenario, 50_001);
    assert_eq!(scenario.at(50_002).look(&[&with_network_of(&vpn, &half)]).restarts(), ["client"]);
}

#[test]
fn without_compose_files_a_container_that_lost_its_network_is_only_reported() {
    let mut config = config();
    config.compose_files.clear();
    let mut scenario = Scenario::of(config);
    let orphan = with_network_of_none(OLD_ID, &running("client"));
    for at in [1, 20, 5000] {
        assert_eq!(scenario.at(at).look(&[&orphan]).act(), None);
    }
    let entry = scenario.entries.last().and_then(|entry| entry.reason.clone()).expect("a reason");
    let record = scenario.record();
    for reason in [entry, record.unhealthy_reason.expect("it is not healthy")] {
        assert!(reason.ends_with("; recreate it: a restart does not help"), "{reason}");
    }
    assert_eq!((record.status, record.degraded), (StatusValue::Unhealthy, false));
    assert_eq!(scenario.kinds(), [Kind::UNHEALTHY]);
}

#[test]
fn compose_does_not_recreate_a_container_of_another_project() {
    let mut scenario = Scenario::of(ServiceConfig { container_name: Some("client".into()), ..config() });
    let orphan = with_network_of_none(OLD_ID, &running("client"));
    for at in [1, 20, 5000] {
        assert_eq!(scenario.at(at).look(&[&orphan]).act(), None);
    }
    assert_eq!(scenario.status(), StatusValue::Unhealthy);
    let own = Container { project: "web".into(), ..orphan };
    let begun = scenario.at(5100).look(&[&own]).act();
    assert!(matches!(begun, Some(Action::Step(Step::Start(_)))), "{begun:?}");
}

#[test]
fn a_clock_set_back_does_not_make_a_container_look_disconnected() {
    let mut scenario = Scenario::of(config());
    let vpn = vpn_of(&scenario, 3600);
    let client = Container { started_at: scenario.seconds(40), ..running("client") };
    let client = with_network_of(&vpn, &client);
    scenario.at(45).look(&[&vpn, &client]);
    assert_eq!(scenario.at(600).look(&[&vpn, &client]).restarts(), [""; 0]);
}

/// Has compose run with this outcome, and returns what it was limited to. `named`: what it has brought up.
fn runs_compose(
    scenario: &mut Scenario,
    up: Result<String, ComposeError>,
    named: &[&str],
    after: &[&Container],
) -> Vec<String> {
    let Some(Action::Step(Step::Start(BringUp { up_mode, scope, .. }))) = scenario.act() else {
        panic!("no `up` is due: {:?}", scenario.entries)
    };
    let named = named.iter().map(|name| (*name).to_owned()).collect();
    let containers = after.iter().map(|c| (*c).clone()).collect();
    scenario.input(Input::Stepped(StepResult::Started { up, named, containers }));
    scope.map_or(up_mode, |scope| scope.services(None)).services().to_vec()
}

#[test]
fn what_uses_the_network_of_a_service_comes_up_again_after_a_rollback_of_that_alone() {
    // What compose leaves of the client, and whether that can be brought up then.
    for (left, is_brought_up) in [(State::Created, true), (State::Exited, true), (State::Created, false)] {
        let vpn = |version: &str, round: u32| Container {
            id: format!("vpn-{round}"),
            image: ImageId(format!("sha256:{version}").into()),
            ..running("vpn")
        };
        let client = |owner: &Container, round: u32| {
            let client = Container {
                id: format!("client-{round}"),
                config_image: "localhost:5000/client:1".into(),
                ..running("client")
            };
            with_network_of(owner, &client)
        };
        let (old, back) = (vpn("one", 1), vpn("one", 3));
        let bad = Container { health: Some(HealthState::Unhealthy), ..vpn("two", 2) };
        let rounds = if left == State::Created { 2 } else { 1 };
        let down = Container { state: left, ..client(&bad, rounds) };
        let unhealthy = || {
            let cause = "dependency failed to start: container vpn is unhealthy".to_owned();
            Err(ComposeError::new(cause))
        };
        let mut scenario = Scenario::of(config());
        let one = [local("sha256:one", &['1'])];
        scenario.check(observed('2', &one, &[&old, &client(&old, 1)]));
        pull(&mut scenario);
        let both = ["client", "vpn"];
        assert_eq!(runs_compose(&mut scenario, unhealthy(), &both, &[&bad, &down]), both);
        assert!(matches!(scenario.act(), Some(Action::Step(Step::Diagnose { .. }))));
        scenario.input(Input::Stepped(StepResult::Diagnosed { log: String::new() }));

        assert_eq!(runs_compose(&mut scenario, unhealthy(), &both, &[&back, &down]), both);
        scenario.at(60);
        assert_eq!(runs_compose(&mut scenario, Ok(String::new()), &["vpn"], &[&back, &down]), ["vpn"]);
        let after = if is_brought_up { client(&back, rounds) } else { down.clone() };
        let outcome = if is_brought_up { Ok(String::new()) } else { unhealthy() };
        assert_eq!(runs_compose(&mut scenario, outcome, &["client"], &[&back, &after]), ["client"]);
        let deployment = scenario.service.durable().deployment.as_ref().unwrap();
        assert_eq!(
            deployment.up_mode.services(),
            ["vpn"],
            "what it depends on comes first if it is repeated"
        );

        scenario.at(61).look(&[&back, &after]).at(120).look(&[&back, &after]);
        let entry = scenario.entries.last().unwrap();
        assert_eq!(entry.event, Kind::ROLLED_BACK, "{:?}", scenario.entries);
        assert!(!entry.message.contains("also recreated"), "{entry:?}");
        let is_told = entry.reason.as_ref().is_some_and(|why| why.contains("client could not be brought up"));
        assert_eq!((is_told, entry.message.contains("but ")), (!is_brought_up, !is_brought_up), "{entry:?}");
    }
}
