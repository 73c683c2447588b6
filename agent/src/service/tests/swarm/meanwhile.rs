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
