//! Scenarios of a swarm service that can't be read while nothing is deployed.

use super::*;

/// A service that is not polled: only the inspections tell.
fn watched() -> Scenario {
    let mut scenario = Scenario::of(ServiceConfig { auto_update: false, ..in_swarm() });
    scenario.observes(Ok(service(&image('1'))));
    assert_eq!(scenario.record().healthy, Some(true));
    scenario
}

#[test]
fn a_watched_service_that_can_no_longer_be_read_is_not_healthy_and_says_why() {
    for (error, containers, words) in [
        (SwarmError::NoService("shop_web".into()), Some(0), "the swarm has no service \"shop_web\""),
        (SwarmError::NotManager("it is a worker".into()), None, "this engine is not a swarm manager"),
        (SwarmError::NoLeader("too few are online".into()), None, "the managers of the swarm do not answer"),
        (SwarmError::Unusable("it is locked".into()), None, "the swarm can't be used: it is locked"),
        (SwarmError::Refused("permission denied".into()), None, "permission denied"),
    ] {
        let mut scenario = watched();
        for second in [10, 20] {
            scenario.at(second).observes(Err(error.clone()));
            let record = scenario.record();
            assert_eq!((record.status, record.healthy), (StatusValue::Unknown, None), "{words}");
            assert_eq!(record.containers.map(|all| all.len()), containers, "{words}");
            let why = record.unhealthy_reason.expect("it says why");
            assert!(why.starts_with(words), "{why}");
        }
        scenario.at(30).observes(Ok(service(&image('1'))));
        let record = scenario.record();
        assert_eq!((record.status, record.unhealthy_reason), (StatusValue::Ok, None), "{words}");
        assert!(scenario.kinds().is_empty(), "{words}");
    }
}

#[test]
fn an_engine_that_does_not_answer_says_nothing_about_a_watched_service() {
    let mut scenario = watched();
    scenario.at(10).observes(Err(SwarmError::Unavailable("connection refused".into())));
    let record = scenario.record();
    assert_eq!((record.healthy, record.unhealthy_reason), (Some(true), None));
    assert_eq!(record.containers.map(|all| all.len()), Some(1));
}

#[test]
fn a_service_of_which_nothing_was_ever_read_says_why() {
    let mut scenario = Scenario::of(ServiceConfig { auto_update: false, ..in_swarm() });
    scenario.observes(Err(SwarmError::NotManager("it is in no swarm".into())));
    let why = scenario.record().unhealthy_reason.expect("it says why");
    assert!(why.ends_with("it is in no swarm"), "{why}");
}
