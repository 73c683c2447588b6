//! The agent is stopped while what writes to the data is stopped for the copy.

use super::*;

/// A service whose data is copied, for which two containers were stopped.
fn in_the_copy() -> Scenario {
    let mut scenario = with_data();
    scenario.check(update()).fetches().runs(&[mounter("web-1", "web-1"), mounter("9", "backup")]);
    scenario.runs(&[]);
    assert!(matches!(scenario.snapshot_step(), SnapshotStep::Copy { .. }));
    scenario
}

/// A service whose data is being copied.
pub(crate) fn copying() -> Service {
    in_the_copy().service
}

impl Scenario {
    fn step_at_stop(&mut self) -> Option<Step> {
        let action = self.service.wind_up(self.now);
        self.entries.extend(self.service.take_entries());
        match action {
            Some(Action::Step(step)) => Some(step),
            None => None,
            other => panic!("no step, but {other:?}"),
        }
    }
}

#[test]
fn what_was_stopped_for_a_copy_runs_again_when_the_agent_is_stopped() {
    let mut scenario = in_the_copy();
    assert!(matches!(scenario.step_at_stop(), Some(Step::RestoreTags { .. })), "the copy is not waited for");
    let entry = scenario.told(&Kind::ERROR).pop().expect("it is told");
    assert!(entry.message.contains("the agent was stopped before the data was copied"), "{entry:?}");
    assert_eq!(scenario.step_at_stop(), None, "one after the other");
    assert!(scenario.service.winds_up(), "it is waited for");

    scenario.input(Input::Stepped(StepResult::TagsRestored));
    let Some(Step::Snapshot(SnapshotStep::Resume { start, .. })) = scenario.step_at_stop() else {
        panic!("they stay stopped")
    };
    assert_eq!(start, [mounter("web-1", "web-1"), mounter("9", "backup")]);
    // The engine does not answer for a moment.
    scenario.input(Input::Stepped(StepResult::EngineAway("connection refused".into())));
    let again = scenario.service.winds_up_at(scenario.now).expect("it is tried again");
    assert!(again > scenario.now);
    assert_eq!(scenario.step_at_stop(), None);
    scenario.now = again;
    assert!(matches!(scenario.step_at_stop(), Some(Step::Snapshot(SnapshotStep::Resume { .. }))));
    let resumed = SnapshotStepped::Resumed { containers: vec![old_container()], not_started: Vec::new() };
    scenario.input(Input::Stepped(StepResult::Snapshot(resumed)));

    assert!(matches!(scenario.step_at_stop(), Some(Step::Unpin { .. })));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    let expired = scenario.step_at_stop();
    assert!(matches!(expired, Some(Step::Snapshot(SnapshotStep::Expire { .. }))), "{expired:?}");
    let all = SnapshotStepped::Expired { left: Vec::new(), why: String::new() };
    scenario.input(Input::Stepped(StepResult::Snapshot(all)));
    assert_eq!(scenario.service.durable().deployment, None);
    assert!(!scenario.service.winds_up());

    // After the next start, the update is found again, and each outage is told.
    scenario.check(update()).fetches().runs(&[mounter("web-1", "web-1")]);
    scenario.runs(&[]);
    assert!(matches!(scenario.snapshot_step(), SnapshotStep::Copy { .. }));
    assert!(matches!(scenario.step_at_stop(), Some(Step::RestoreTags { .. })));
    assert_eq!(scenario.told(&Kind::ERROR).len(), 2, "{:#?}", scenario.entries);
}

#[test]
fn an_agent_that_stops_waits_for_containers_that_are_being_stopped() {
    let mut scenario = with_data();
    scenario.check(update()).fetches();
    assert!(matches!(scenario.snapshot_step(), SnapshotStep::Quiesce { .. }));
    assert!(!scenario.service.winds_up(), "nothing is stopped yet");
    let running = SnapshotStepped::Running(vec![mounter("web-1", "web-1")]);
    scenario.input(Input::Stepped(StepResult::Snapshot(running)));
    assert!(matches!(scenario.snapshot_step(), SnapshotStep::Quiesce { .. }));
    assert!(scenario.service.winds_up());
    assert_eq!(scenario.step_at_stop(), None, "one could be stopped after it was started");
    scenario.input(Input::Stepped(StepResult::Snapshot(SnapshotStepped::Running(Vec::new()))));
    assert!(matches!(scenario.step_at_stop(), Some(Step::RestoreTags { .. })));
}

#[test]
fn a_deployment_that_has_begun_to_bring_up_images_goes_on_after_the_next_start() {
    let mut scenario = in_the_copy();
    let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
    let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied });
    scenario.input(Input::Stepped(StepResult::Snapshot(SnapshotStepped::Copied(copies.to_vec()))));
    assert!(!scenario.service.winds_up());
    assert_eq!(scenario.step_at_stop(), None);
    assert!(scenario.told(&Kind::ERROR).is_empty());
    // Without anything that was stopped, a copy goes on as well.
    let mut scenario = with_data();
    scenario.check(update()).fetches().runs(&[]);
    assert!(matches!(scenario.snapshot_step(), SnapshotStep::Copy { .. }));
    assert!(!scenario.service.winds_up());
}
