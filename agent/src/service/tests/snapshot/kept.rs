//! Scenarios of which copies are kept.

use super::*;

const YEAR: SignedDuration = SignedDuration::from_hours(365 * 24);

#[test]
fn the_copy_of_the_last_update_is_kept_although_the_clock_was_ahead_at_the_one_before() {
    let rules = SnapshotRules { of: vec!["/srv/a".into(), "/srv/b".into()], keep: 1, max_bytes: 1 << 30 };
    let snapshot = UpdateConfig { snapshot: Some(rules), ..UpdateConfig::default() };
    let mut scenario = Scenario::of(ServiceConfig { update: Some(Arc::new(snapshot)), ..config() });
    scenario.now += YEAR;
    scenario.service = scenario.service.shifted(YEAR);
    scenario.check(update()).fetches().is_proven_with_data(&new_container());
    scenario.now -= YEAR;
    scenario.service = scenario.service.shifted(-YEAR);
    scenario.now += SignedDuration::from_mins(5);

    let third = "sha256:v3";
    let seen = observed('3', &[local(NEW, &['2'])], &[&new_container()]);
    scenario.check(Observation { snapshot: update().snapshot, ..seen });
    scenario.step_ends(StepResult::ImagesPinned { missing: Vec::new() });
    let ids = vec![(IMAGE.into(), ImageId(third.into()))];
    scenario.step_ends(StepResult::Pulled { ids, labels: BTreeMap::new() });
    let on_third = Container { id: "web-3".into(), image: ImageId(third.into()), ..running("web-1") };
    scenario.is_proven_with_data(&on_third);
    let of_last = |kept: &&KeptSnapshot| kept.left.iter().any(|(_, left)| *left == digest('2'));
    let (expired, kept): (Vec<_>, Vec<_>) =
        scenario.service.durable().snapshots.iter().partition(|kept| kept.is_expired);
    assert_eq!(kept.iter().copied().filter(of_last).count(), 1, "{kept:?}");
    assert_eq!((kept.len(), expired.len()), (1, 1), "{expired:?}");
    let way_back = scenario.service.data_of(&[(IMAGE, &digest('2'))]);
    assert_eq!(way_back, kept.first().copied());
}
