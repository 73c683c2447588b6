//! Stories of containers that use the network of another one.

use super::*;

/// `vpn` was started at that second, and `client` uses its network.
fn vpn_of(story: &Story, second: i64) -> Container {
    Container { started_at: story.seconds(second), ..running("vpn") }
}

#[test]
fn what_uses_the_network_of_a_container_that_was_started_anew_is_restarted_after_it() {
    let mut story = Story::of(config());
    for (provider, start) in [("id-vpn", 0), ("vpn", 100)] {
        let client = Container {
            network_of: Some(provider.into()),
            started_at: story.seconds(start + 1),
            ..with_health("client", HealthState::Healthy)
        };
        let (before, after) = (vpn_of(&story, start), vpn_of(&story, start + 20));
        assert_eq!(story.at(start + 2).look(&[&before, &client]).restarts(), [""; 0]);
        // Somebody may be restarting both, one after the other.
        assert_eq!(story.at(start + 21).look(&[&after, &client]).restarts(), [""; 0]);
        assert_eq!(story.at(start + 31).look(&[&after, &client]).restarts(), ["client"]);
        assert!(
            story
                .said
                .iter()
                .any(|said| said.reason.as_ref().is_some_and(|why| why.contains("network of vpn")))
        );
        let again = Container { started_at: story.seconds(start + 32), ..client };
        story.at(start + 33).look(&[&after, &again]);
        assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTARTED]);
        assert_eq!(story.at(start + 60).look(&[&after, &again]).restarts(), [""; 0]);
    }
}

#[test]
fn a_provider_that_keeps_falling_uses_up_no_patience_with_those_that_use_its_network() {
    let mut story = Story::of(config());
    let client = Container { network_of: Some("vpn".into()), ..running("client") };
    for round in 0..6 {
        let began = round * 100;
        let old = Container { started_at: story.seconds(began), ..client.clone() };
        let vpn = vpn_of(&story, began + 1);
        story.at(began + 2).look(&[&vpn, &old]);
        assert_eq!(story.at(began + 12).look(&[&vpn, &old]).restarts(), ["client"], "round {round}");
        // It falls again before the restart is proven.
        let new = Container { started_at: story.seconds(began + 13), ..client.clone() };
        let vpn = vpn_of(&story, began + 14);
        story.at(began + 15).look(&[&vpn, &new]);
    }
    let kinds = story.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED) && !kinds.contains(&Kind::EXHAUSTED), "{kinds:?}");
}

#[test]
fn a_provider_that_is_down_or_unknown_is_no_reason_to_restart_those_that_use_its_network() {
    let mut story = Story::of(config());
    let client =
        Container { network_of: Some("vpn".into()), started_at: story.seconds(1), ..running("client") };
    let down = Container { state: State::Exited, ..vpn_of(&story, 5) };
    story.at(10).look(&[&down, &client]);
    assert_eq!(story.at(60).look(&[&down, &client]).restarts(), [""; 0]);
    assert_eq!(story.at(70).look(&[&client]).restarts(), [""; 0]);
}

#[test]
fn a_clock_that_was_set_back_makes_nobody_look_cut_off() {
    let mut story = Story::of(config());
    let client =
        Container { network_of: Some("vpn".into()), started_at: story.seconds(40), ..running("client") };
    let vpn = vpn_of(&story, 3600);
    story.at(45).look(&[&vpn, &client]);
    assert_eq!(story.at(600).look(&[&vpn, &client]).restarts(), [""; 0]);
}
