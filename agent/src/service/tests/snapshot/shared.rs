//! Scenarios with data that another service may put back.

use super::*;

fn taken() -> SnapshotStepped {
    SnapshotStepped::Waiting {
        why: "shop may put the data in /srv/a back until its new image is proven".into(),
    }
}

#[test]
fn the_probation_of_another_service_on_the_same_data_is_waited_for() {
    let mut scenario = with_data();
    scenario.check(update()).fetches();
    for _ in 0..10 {
        let step = scenario.step_of_snapshot_ends(taken());
        assert!(matches!(step, SnapshotStep::Quiesce { ref stop, .. } if stop.is_empty()), "{step:?}");
        assert_eq!(scenario.act(), None, "not at once");
        scenario.now += SignedDuration::from_mins(1);
    }
    assert!(matches!(scenario.runs(&[]), SnapshotStep::Quiesce { .. }));
    assert!(matches!(scenario.snapshot_step(), SnapshotStep::Copy { .. }));
    assert_eq!(scenario.told(&Kind::ERROR).len(), 0, "{:#?}", scenario.entries);
}

#[test]
fn another_service_that_proves_nothing_is_not_waited_for_with_a_deployment_in_progress() {
    let mut scenario = with_data();
    scenario.check(update()).fetches();
    scenario.step_of_snapshot_ends(taken());
    scenario.now += SignedDuration::from_hours(1);
    scenario.step_of_snapshot_ends(taken());
    scenario.step_ends(StepResult::TagsRestored).step_ends(StepResult::Unpinned);
    assert_eq!(scenario.service.durable().deployment, None);
    let entry = scenario.told(&Kind::ERROR).pop().expect("it is told");
    assert!(format!("{entry:?}").contains("shop may put the data in /srv/a back"), "{entry:?}");
}
