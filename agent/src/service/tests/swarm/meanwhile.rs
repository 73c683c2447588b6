//! Scenarios of a swarm service that somebody else sets to another image in the middle of a deployment.

use super::*;

/// `docker stack deploy` sets the tag alone if it can't ask the registry.
#[test]
fn a_specification_without_a_digest_declines_nothing_and_the_next_digest_is_deployed() {
    let mut scenario = converging();
    scenario.observes(Ok(service(IMAGE)));
    assert!(scenario.service.durable.deployment.is_none(), "it is over");
    let told = scenario.kinds();
    assert!(told.contains(&Kind::NOT_FOUND) && told.contains(&Kind::ERROR), "{told:?}");
    assert_eq!(scenario.at(20).check(seen_without_digest('2')).step(), None);
    assert_eq!(scenario.service.durable.images.declined().next(), None);
    assert_eq!(scenario.record().not_found, Some(digest('2').to_string()));
    assert!(!scenario.kinds().contains(&Kind::NOT_FOUND), "it was told");
    assert!(matches!(scenario.at(40).check(seen_without_digest('3')).step(), Some(SwarmStep::Admit { .. })));
    assert_eq!((&scenario.plan().to, &scenario.plan().back), (&image('3'), &image('2')));
}

/// It named no digest before either.
#[test]
fn the_tag_alone_declines_the_new_digest_only_if_the_service_was_rolled_back_to_it() {
    for is_rolled_back in [true, false] {
        let mut scenario = Scenario::of(in_swarm());
        assert_eq!(scenario.check(seen_without_digest('1')).step(), None);
        assert!(scenario.at(20).check(seen_without_digest('2')).step().is_some());
        let labels = crate::model::image_config::ConfigChange::default();
        scenario.input(stepped(SwarmResult::Admitted { labels }));
        assert!(scenario.step().is_some());
        scenario.input(stepped(SwarmResult::Set));
        let message = "manually requested rollback".to_owned();
        let rollback = UpdateStatus { state: UpdateState::RollbackStarted, message };
        let (update, previous_image) = (Some(rollback).filter(|_| is_rolled_back), Some(image('2')));
        scenario.observes(Ok(SwarmService { previous_image, update, ..service(IMAGE) }));
        assert!(scenario.service.durable.deployment.is_none(), "it is over");
        let declined: Vec<_> = scenario.service.durable.images.declined().collect();
        let (new, before) = (digest('2'), digest('1'));
        let expected = if is_rolled_back { vec![(IMAGE, &new)] } else { Vec::new() };
        assert_eq!(declined, expected, "{is_rolled_back}");
        let not_found = if is_rolled_back { before } else { new.clone() };
        assert_eq!(scenario.record().not_found, Some(not_found.to_string()), "{is_rolled_back}");
        let told = scenario.record().errored.expect("it says why");
        assert_eq!(told.contains("was rolled back to"), is_rolled_back, "{told}");
    }
}

#[test]
fn a_specification_with_another_digest_or_the_one_before_declines_the_new_one() {
    for n in ['1', '3'] {
        let mut scenario = converging();
        scenario.observes(Ok(service(&image(n))));
        let declined: Vec<_> = scenario.service.durable.images.declined().collect();
        assert_eq!(declined, [(IMAGE, &digest('2'))], "{n}");
        assert_eq!(scenario.record().not_found, None, "{n}");
    }
}

/// An update from 1 to 2 that has failed, and whose rollback is about to be set.
fn rolling_back() -> Scenario {
    let mut scenario = Scenario::of(in_swarm());
    assert!(scenario.check(seen('2', '1', service(&image('1')))).step().is_some());
    scenario.fails_in_swarm('2');
    assert!(matches!(scenario.step(), Some(SwarmStep::Set(SetImage { back: true, .. }))));
    scenario
}

#[test]
fn whoever_sets_a_third_image_during_a_rollback_causes_no_alarm() {
    for is_set in [true, false] {
        let mut scenario = rolling_back();
        if is_set {
            scenario.input(stepped(SwarmResult::Set));
            scenario.observes(Ok(service(&image('3'))));
        } else {
            scenario.input(stepped(SwarmResult::Foreign { image: image('3') }));
        }
        let durable = &scenario.service.durable;
        assert!(durable.deployment.is_none() && !durable.rollback_failed, "{is_set}");
        assert_eq!(scenario.record().blocked, Some(digest('2').to_string()), "{is_set}");
        let told = scenario.entries.iter().find(|entry| entry.event == Kind::ROLLED_BACK);
        let told = &told.expect("its failure is told").message;
        assert!(told.contains(&format!("was set to {} by someone else", image('3'))), "{told}");
        assert!(!scenario.kinds().contains(&Kind::ROLLBACK_FAILED), "{is_set}");
    }
}

/// The nodes pull what the tag names, which is the image that failed.
#[test]
fn a_rollback_has_failed_if_the_tag_alone_is_set() {
    for is_set in [true, false] {
        let mut scenario = rolling_back();
        if is_set {
            scenario.input(stepped(SwarmResult::Set));
            scenario.observes(Ok(service(IMAGE)));
        } else {
            scenario.input(stepped(SwarmResult::Foreign { image: IMAGE.into() }));
        }
        assert!(scenario.service.durable.rollback_failed, "{is_set}");
        let told = scenario.kinds();
        assert!(told.contains(&Kind::ROLLBACK_FAILED) && !told.contains(&Kind::ROLLED_BACK), "{told:?}");
    }
}

#[test]
fn a_rollback_has_failed_if_the_image_that_failed_is_set_again() {
    let update = Some(UpdateStatus { state: UpdateState::RollbackStarted, message: "as it is told".into() });
    for (update, words) in [(update, "by itself (as it is told)"), (None, "by someone else")] {
        let mut scenario = rolling_back();
        scenario.input(stepped(SwarmResult::Set));
        scenario.observes(Ok(SwarmService { update, ..service(&image('2')) }));
        assert!(scenario.service.durable.rollback_failed, "{words}");
        let told = scenario.entries.iter().find(|entry| entry.event == Kind::ROLLBACK_FAILED);
        let told = format!("{:?}", told.expect("a person has to act"));
        assert!(told.contains(words), "{told}");
    }
}
