//! Rollbacks and redeployments that were accepted, and what comes before they begin.

use super::*;

#[test]
fn what_was_accepted_begins_although_a_reload_changes_the_service_first() {
    let is_back = |cause: &Cause| matches!(cause, Cause::GoBack(_));
    for (is_rollback, waits) in [(true, false), (true, true), (false, false), (false, true)] {
        let what = format!("rollback: {is_rollback}, waits for another service: {waits}");
        let mut scenario = Scenario::of(config());
        scenario.updated_to(&[('1', '2'), ('2', '3')]);
        if waits {
            scenario.service.sibling_begins("api");
        }
        if is_rollback {
            assert_eq!(scenario.asked_back(None), ServiceReply::RollingBack(digest('2')));
        } else {
            scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
        }
        if waits {
            scenario.check(seen('3', '3'));
            assert_eq!(scenario.act(), None, "the project is not free");
        }
        scenario.reconfigures(ServiceConfig { heal_max_restarts: 1, ..config() });
        let checks = scenario.record().requested_checks.expect("one was requested");
        assert_eq!((checks.requested, checks.undecided), (1, true), "{what}");
        scenario.later(5).check(seen('3', '3'));
        let action = scenario.act();
        assert!(matches!(action, Some(Action::Step(_))), "{what}: {action:?}");
        let deployment = scenario.service.durable().deployment.as_ref().expect("it has begun");
        assert_eq!(is_back(&deployment.plan().cause), is_rollback, "{what}");
    }
}

#[test]
fn a_reload_begins_the_retry_of_a_failed_rollback_only_if_it_was_about_to_begin() {
    for is_polled in [true, false] {
        let config = ServiceConfig { auto_update: is_polled, ..config() };
        let mut scenario = Scenario::of(config.clone());
        scenario.service.durable.rollback_failed = true;
        scenario.service.on_global_trigger();
        scenario.service.check(true);
        scenario.reconfigures(ServiceConfig { heal_max_restarts: 1, ..config });
        assert!(scenario.service.retry_rollback);
        assert_eq!(scenario.service.checks.is_due(), is_polled);
    }
}

#[test]
fn what_was_accepted_and_can_not_begin_any_more_is_told() {
    let accepted = |is_rollback: bool| {
        let mut scenario = Scenario::of(config());
        scenario.updated_to(&[('1', '2')]);
        if is_rollback {
            scenario.asked_back(None);
        } else {
            scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
        }
        scenario
    };
    let other = ConfiguredImage { configured: API.into(), reference: Reference::parse(API).unwrap() };
    let without_image = ServiceConfig { images: vec![other], ..config() };
    let without_files = ServiceConfig { compose_files: Vec::new(), ..config() };
    let no_files = "no compose files configured";
    for (is_rollback, config, why) in [
        (true, &without_image, "the image is no longer configured"),
        (true, &without_files, no_files),
        (false, &without_files, no_files),
    ] {
        let mut scenario = accepted(is_rollback);
        scenario.reconfigures(config.clone());
        scenario.act();
        let told: Vec<_> = scenario.entries.iter().filter_map(|entry| entry.reason.as_deref()).collect();
        assert_eq!(told, [why]);
    }
    // The agent is stopped.
    for (is_rollback, kind) in [(true, Kind::ROLLBACK_FAILED), (false, Kind::FORCE_REDEPLOY_FAILED)] {
        let scenario = accepted(is_rollback);
        let told: Vec<_> =
            scenario.service.shut_down(scenario.now).entries.into_iter().map(|entry| entry.event).collect();
        assert_eq!(told, [kind]);
    }
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    assert!(scenario.service.shut_down(scenario.now).entries.is_empty(), "nothing was requested");
}
