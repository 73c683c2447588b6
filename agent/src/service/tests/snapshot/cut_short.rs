//! Scenarios of an agent that ends while data is copied.

use super::*;

/// Starts it again with what it has written down.
fn start_again(scenario: &mut Scenario) {
    let written = serde_json::to_vec(scenario.service.durable()).unwrap();
    let durable = serde_json::from_slice(&written).unwrap();
    let (config, boot) = (scenario.service.config.clone(), boot_of("one", "one"));
    let (service, entries) = Service::new(config, durable, boot, StartReason::Start, scenario.now);
    scenario.service = service;
    scenario.entries.extend(entries);
    scenario.reconnected();
}

#[test]
fn a_copy_that_ends_with_the_agent_each_time_is_given_up_and_the_service_is_started() {
    let mut scenario = with_data();
    scenario.check(update()).fetches().runs(&[mounter("1", "web-1")]);
    scenario.runs(&[]);
    for nr in 1..=3 {
        let step = scenario.snapshot_step();
        assert!(matches!(step, SnapshotStep::Copy { .. }), "{nr}: {step:?}");
        assert!(scenario.told(&Kind::ERROR).is_empty(), "{nr}: it is tried again");
        scenario.now += SignedDuration::from_mins(10);
        start_again(&mut scenario);
    }
    let error = scenario.told(&Kind::ERROR).pop().expect("it is told");
    assert!(error.message.contains("nothing was deployed: each copy was cut short"), "{error:?}");
    scenario.step_ends(StepResult::TagsRestored);
    let SnapshotStep::Resume { start, .. } = scenario.snapshot_step() else { panic!("it stays stopped") };
    assert_eq!(start, [mounter("1", "web-1")]);
    let not_copied = scenario.service.durable().images.get(IMAGE).not_copied.clone().expect("it waits");
    assert_eq!((not_copied.digest, not_copied.tries), (digest('2'), 1));
}

#[test]
fn a_copy_that_is_made_after_the_agent_was_started_again_is_used() {
    let mut scenario = with_data();
    scenario.check(update()).fetches().runs(&[]);
    for _ in 0..2 {
        scenario.snapshot_step();
        start_again(&mut scenario);
    }
    let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
    let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied });
    scenario.step_of_snapshot_ends(SnapshotStepped::Copied(copies.to_vec()));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    assert!(scenario.told(&Kind::ERROR).is_empty(), "{:#?}", scenario.entries);
}

#[test]
fn what_the_engine_has_started_again_with_the_machine_does_not_count_as_another_copy_that_was_cut_short() {
    let mut scenario = with_data();
    scenario.check(update()).fetches().runs(&[mounter("1", "web-1")]);
    scenario.runs(&[]);
    for nr in 1..=2 {
        assert!(matches!(scenario.snapshot_step(), SnapshotStep::Copy { .. }));
        start_again(&mut scenario);
        let step = scenario.runs(&[mounter("1", "web-1")]);
        assert!(matches!(step, SnapshotStep::Copy { .. }), "{nr}: {step:?}");
        let step = scenario.runs(&[]);
        assert!(matches!(step, SnapshotStep::Quiesce { .. }), "{nr}: {step:?}");
    }
    assert!(matches!(scenario.snapshot_step(), SnapshotStep::Copy { .. }));
    assert!(scenario.told(&Kind::ERROR).is_empty(), "{:#?}", scenario.entries);
    start_again(&mut scenario);
    let error = scenario.told(&Kind::ERROR).pop().expect("the third time");
    assert!(error.message.contains("each copy was cut short"), "{error:?}");
}
