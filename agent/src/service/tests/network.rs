//! Stories of containers that use the network of another one.

use super::*;
use crate::model::{ComposeError, CurrentOwner, NetworkOwner, UpMode};
use crate::service::action::Step;

/// An ID as compose gives it to the engine.
const OLD_ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// `vpn` was started at that second.
fn vpn_of(story: &Story, second: i64) -> Container {
    Container { started_at: story.seconds(second), ..running("vpn") }
}

/// `container`, which uses the network of that one.
fn with_network_of(owner: &Container, container: &Container) -> Container {
    let owner = NetworkOwner { given: owner.id.clone(), found: Some(CurrentOwner::of(owner)) };
    Container { network_of: Some(owner), ..container.clone() }
}

/// `container`, which uses the network of one that is not there.
fn with_network_of_none(given: &str, container: &Container) -> Container {
    Container { network_of: Some(NetworkOwner { given: given.into(), found: None }), ..container.clone() }
}

#[test]
fn what_uses_the_network_of_a_container_that_was_started_anew_is_restarted_after_it() {
    let mut story = Story::of(config());
    let client = Container { started_at: story.seconds(1), ..with_health("client", HealthState::Healthy) };
    let (before, after) = (vpn_of(&story, 0), vpn_of(&story, 20));
    assert_eq!(story.at(2).look(&[&before, &with_network_of(&before, &client)]).restarts(), [""; 0]);
    // Somebody may be restarting both, one after the other. It makes no difference whose container it is.
    let client = with_network_of(&after, &client);
    assert_eq!(story.at(21).look(&[&client]).restarts(), [""; 0]);
    assert_eq!(story.at(31).look(&[&client]).restarts(), ["client"]);
    let why = story.said.iter().find_map(|said| said.reason.clone()).expect("a reason");
    assert!(why.contains("network of vpn"), "{why}");
    let again = Container { started_at: story.seconds(32), ..client };
    story.at(33).look(&[&after, &again]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTARTED]);
    assert_eq!(story.at(60).look(&[&after, &again]).restarts(), [""; 0]);
}

#[test]
fn a_network_that_is_lost_again_soon_after_a_restart_that_helped_does_not_make_it_a_failure() {
    let mut story = Story::of(config());
    let client = |story: &Story, second: i64| Container {
        started_at: story.seconds(second),
        ..with_health("client", HealthState::Healthy)
    };
    for began in [0, 60, 120, 180, 240] {
        let vpn = vpn_of(&story, began + 1);
        let old = with_network_of(&vpn, &client(&story, began));
        story.at(began + 2).look(&[&old]);
        assert_eq!(story.at(began + 13).look(&[&old]).restarts(), ["client"], "{began}");
        let again = with_network_of(&vpn, &client(&story, began + 14));
        story.at(began + 15).look(&[&again]);
        assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTARTED]);
        story.at(began + 60);
    }
    assert_eq!(story.service.snapshot(PullProgress::default()).status.restart_failures, 0);
}

#[test]
fn a_provider_that_keeps_falling_uses_up_no_patience_with_those_that_use_its_network() {
    let mut story = Story::of(config());
    for round in 0..6 {
        let began = round * 100;
        let vpn = vpn_of(&story, began + 1);
        let old = Container { started_at: story.seconds(began), ..running("client") };
        let old = with_network_of(&vpn, &old);
        story.at(began + 2).look(&[&vpn, &old]);
        assert_eq!(story.at(began + 12).look(&[&vpn, &old]).restarts(), ["client"], "round {round}");
        // It falls again before the restart is proven.
        let vpn = vpn_of(&story, began + 14);
        let new = Container { started_at: story.seconds(began + 13), ..running("client") };
        story.at(began + 15).look(&[&vpn, &with_network_of(&vpn, &new)]);
    }
    let kinds = story.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED) && !kinds.contains(&Kind::EXHAUSTED), "{kinds:?}");
}

#[test]
fn a_provider_that_is_down_is_no_reason_to_restart_what_still_runs() {
    let mut story = Story::of(config());
    let down = Container { state: State::Exited, ..vpn_of(&story, 5) };
    let client = Container { started_at: story.seconds(1), ..running("client") };
    let client = with_network_of(&down, &client);
    story.at(10).look(&[&client]);
    assert_eq!(story.at(60).look(&[&client]).restarts(), [""; 0]);
    assert_eq!(story.kinds(), []);
}

#[test]
fn what_can_not_be_started_before_its_provider_waits_for_it_and_loses_no_patience() {
    let mut story = Story::of(config());
    let dead = Container { state: State::Exited, exit_code: 1, ..running("client") };
    let vpn = Container { state: State::Exited, ..vpn_of(&story, 5) };
    let waits = with_network_of(&vpn, &dead);
    for at in [10, 60, 1000, 5000] {
        assert_eq!(story.at(at).look(&[&waits]).restarts(), [""; 0]);
    }
    assert_eq!(story.kinds(), [Kind::DIED]);
    let vpn = vpn_of(&story, 5001);
    assert_eq!(story.at(5002).look(&[&with_network_of(&vpn, &dead)]).restarts(), ["client"]);
}

#[test]
fn what_uses_the_network_of_a_container_that_was_replaced_is_made_anew_by_compose() {
    let mut story = Story::of(config());
    let client = Container {
        started_at: story.seconds(0),
        name: "shop-client-1".into(),
        ..with_health("client", HealthState::Healthy)
    };
    let orphan = with_network_of_none(OLD_ID, &client);
    assert_eq!(story.at(10).look(&[&orphan]).act(), None, "whoever replaced it may be at it");
    let Some(Action::Step(Step::Start { up_mode, down: false, tags, .. })) =
        story.at(20).look(&[&orphan]).act()
    else {
        panic!("it is not made anew: {:?}", story.said)
    };
    assert_eq!((up_mode, tags), (UpMode::ForceService("client".into()), Vec::new()));
    assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING]);
    let vpn = vpn_of(&story, 5);
    let anew = Container { id: "anew".into(), started_at: story.seconds(21), ..client };
    let anew = with_network_of(&vpn, &anew);
    story.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![anew.clone()],
    }));
    assert!(matches!(story.act(), Some(Action::Step(Step::Unpin { .. }))));
    story.input(Input::Stepped(StepResult::Unpinned)).at(22).look(&[&anew]);
    assert_eq!(story.kinds(), [Kind::RESTARTED]);
    assert_eq!(story.at(600).look(&[&anew]).act(), None);
    assert_eq!(story.kinds(), []);
}

#[test]
fn one_that_can_not_be_made_anew_waits_until_its_provider_is_back() {
    let mut story = Story::of(config());
    let client = Container { started_at: story.seconds(0), ..running("client") };
    let orphan = with_network_of_none(OLD_ID, &client);
    story.at(10).look(&[&orphan]);
    assert!(matches!(story.at(20).look(&[&orphan]).act(), Some(Action::Step(Step::Start { .. }))));
    // The provider itself is not there: compose leaves a container that could not be started, and the name.
    let half = Container {
        state: State::Created,
        started_at: None,
        error: "No such container: vpn".into(),
        ..with_network_of_none("vpn", &client)
    };
    let error = ComposeError { cause: "No such container: vpn".into(), output: String::new() };
    story.input(Input::Stepped(StepResult::Started {
        up: Err(error),
        named: Vec::new(),
        containers: vec![half.clone()],
    }));
    assert!(matches!(story.act(), Some(Action::Step(Step::RestoreTags { .. }))));
    story.input(Input::Stepped(StepResult::TagsRestored)).act();
    story.input(Input::Stepped(StepResult::Unpinned));
    for at in [100, 1000, 5000, 50_000] {
        assert_eq!(story.at(at).look(&[&half]).restarts(), [""; 0]);
    }
    assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
    assert_eq!(story.status(), StatusValue::Degraded);
    let vpn = vpn_of(&story, 50_001);
    assert_eq!(story.at(50_002).look(&[&with_network_of(&vpn, &half)]).restarts(), ["client"]);
}

#[test]
fn a_container_without_compose_files_that_lost_its_provider_is_told_of_and_left_running() {
    let mut config = config();
    config.compose_files.clear();
    let mut story = Story::of(config);
    let orphan = with_network_of_none(OLD_ID, &running("client"));
    for at in [1, 20, 5000] {
        assert_eq!(story.at(at).look(&[&orphan]).act(), None);
    }
    assert_eq!(story.kinds(), [Kind::UNHEALTHY]);
}

#[test]
fn a_clock_that_was_set_back_makes_nobody_look_cut_off() {
    let mut story = Story::of(config());
    let vpn = vpn_of(&story, 3600);
    let client = Container { started_at: story.seconds(40), ..running("client") };
    let client = with_network_of(&vpn, &client);
    story.at(45).look(&[&vpn, &client]);
    assert_eq!(story.at(600).look(&[&vpn, &client]).restarts(), [""; 0]);
}
