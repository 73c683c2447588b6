//! Scenarios of containers that stay stopped after the data was put back, since the old image could not be brought up.

use super::*;
use crate::service::observation::Definition;
use crate::service::rollout::probation::{Failed, Failure};
use crate::service::state::WhyLeft;

impl Scenario {
    /// The data was put back, and the old image can't be brought up. Returns the container that stays stopped.
    fn leaves_stopped(&mut self) -> Container {
        let new = of_project("web-2", &old_container().compose_service, &[]);
        self.fails_with_data();
        self.event("web-2", EventKind::Stop);
        self.runs(&[new]);
        self.step_of_snapshot_ends(SnapshotStepped::Done);
        for _ in 0..5 {
            self.step_ends(StepResult::Failed("compose could not be started".into()));
            self.now += SignedDuration::from_mins(10);
        }
        assert_eq!(self.told(&Kind::ROLLBACK_FAILED).len(), 1, "a person has to act");
        self.step_ends(StepResult::Unpinned);
        let all = SnapshotStepped::Expired { left: Vec::new(), why: String::new() };
        assert!(matches!(self.step_of_snapshot_ends(all), SnapshotStep::Expire { .. }));
        assert_eq!(self.service.durable().deployment, None);
        let down = Container { state: State::Exited, exit_code: 137, ..new_container() };
        self.look(&[&down]);
        down
    }

    /// The container is left stopped for this reason instead.
    fn is_left_on(&mut self, why: WhyLeft, down: &Container) {
        self.service.durable.left_stopped.get_mut(&down.id).expect("it is left stopped").why = why;
    }
}

#[test]
fn what_is_left_stopped_counts_as_failed_and_the_next_image_is_brought_up_in_its_place() {
    let mut scenario = with_data();
    let down = scenario.leaves_stopped();
    assert!(scenario.service.is_wanted(&down), "no person has stopped it");
    let durable = serde_json::to_string(scenario.service.durable()).unwrap();
    assert_eq!(serde_json::from_str::<Durable>(&durable).unwrap(), *scenario.service.durable());

    let mut seen =
        Observation { snapshot: update().snapshot, ..observed('3', &[local(NEW, &['2'])], &[&down]) };
    seen.images[0].running.clear();
    let model = serde_json::json!({"services": {"web-1": {"image": IMAGE}}});
    let model = Arc::new(serde_json::from_value(model).unwrap());
    seen.definition = Some(Ok(Definition { model, ..Definition::default() }));
    scenario.check(seen);
    scenario.step_ends(StepResult::ImagesPinned { missing: Vec::new() });
    let ids = vec![(IMAGE.into(), ImageId("sha256:v3".into()))];
    scenario.step_ends(StepResult::Pulled { ids, labels: BTreeMap::new() });
    scenario.runs(&[]);
    let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
    let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied });
    scenario.step_of_snapshot_ends(SnapshotStepped::Copied(copies.to_vec()));
    let Some(Action::Step(Step::Start(BringUp { scope: Some(scope), .. }))) = scenario.act() else {
        panic!("it is only pulled")
    };
    assert_eq!(scope.services(None).services(), ["web-1"]);
}

#[test]
fn what_is_left_stopped_is_forgotten_once_it_runs_or_is_gone() {
    let new = new_container();
    for seen in [vec![], vec![&new]] {
        let mut scenario = with_data();
        scenario.leaves_stopped();
        assert_eq!(scenario.service.durable().left_stopped.len(), 1);
        scenario.look(&seen);
        assert_eq!(scenario.service.durable().left_stopped.len(), 0, "{seen:?}");
    }
}

#[test]
fn what_a_person_has_started_and_stopped_since_is_no_longer_left_stopped_by_the_agent() {
    let mut scenario = with_data();
    let down = scenario.leaves_stopped();
    scenario.look(&[&down]);
    assert!(scenario.service.is_wanted(&down));
    let started_at = Some(scenario.now);
    scenario.now += SignedDuration::from_secs(60);
    scenario.event(&down.id, EventKind::Stop);
    let stopped = Container { started_at, finished_at: Some(scenario.now), ..down };
    scenario.look(&[&stopped]);
    assert_eq!(scenario.service.durable().left_stopped.len(), 0);
    assert!(!scenario.service.is_wanted(&stopped), "a person has stopped it");
}

#[test]
fn no_update_starts_what_is_left_stopped_on_data_of_two_times() {
    let mut scenario = with_data();
    let down = scenario.leaves_stopped();
    let containers = [down.clone()];
    assert_eq!(scenario.service.crashed(&containers, scenario.now).len(), 1);
    scenario.is_left_on(WhyLeft::MixedData, &down);
    assert!(scenario.service.crashed(&containers, scenario.now).is_empty());
    assert!(scenario.service.is_wanted(&down), "a person may go back");
}

#[test]
fn who_goes_back_with_the_data_starts_what_is_left_stopped_on_data_of_two_times_before_the_image() {
    let mut scenario = with_data();
    scenario.fails_with_data();
    for id in ["web-2", "db"] {
        scenario.event(id, EventKind::Stop);
    }
    let service = old_container().compose_service;
    scenario.runs(&[of_project("web-2", &service, &["db"]), of_project("db", "db", &[])]);
    for _ in 0..5 {
        scenario.step_of_snapshot_ends(SnapshotStepped::Mixed { why: "can't put back /srv/b".into() });
        scenario.now += SignedDuration::from_mins(10);
    }
    scenario.step_ends(StepResult::Unpinned);
    let down = |c: Container| Container { state: State::Exited, exit_code: 137, ..c };
    let db = Container { id: "db".into(), config_image: "localhost:5000/db:1".into(), ..running("db") };
    let (web, db) = (down(new_container()), down(db));
    scenario.look(&[&web, &db]);
    assert_eq!(scenario.service.durable().left_stopped.len(), 2);

    let reply = scenario.person_asks(ServiceRequest::Rollback { to: None, data: true });
    assert_eq!(reply, ServiceReply::RollingBack(digest('1')));
    let mut seen =
        Observation { snapshot: update().snapshot, ..observed('2', &[local(NEW, &['2'])], &[&web, &db]) };
    seen.images[0].running.clear();
    let identity = FolderId { device: 1, inode: 1 };
    let Some(Ok(data)) = &mut seen.snapshot else { unreachable!() };
    data.earlier = Some((scenario.service.durable().snapshots[0].earlier(), vec![identity, identity]));
    scenario.check(seen).step_ends(StepResult::ImagesPinned { missing: Vec::new() });
    let ids = vec![(IMAGE.into(), ImageId(OLD.into()))];
    scenario.step_ends(StepResult::Pulled { ids, labels: BTreeMap::new() });
    let step = scenario.runs(&[]);
    assert!(matches!(step, SnapshotStep::Quiesce { .. }), "{step:?}");
    let step = scenario.step_of_snapshot_ends(SnapshotStepped::Done);
    assert!(matches!(step, SnapshotStep::Restore { .. }), "{step:?}");
    let resumed = SnapshotStepped::Resumed { containers: vec![web, db], not_started: Vec::new() };
    let step = scenario.step_of_snapshot_ends(resumed);
    let SnapshotStep::Resume { start, .. } = step else { panic!("nothing is started, but {step:?}") };
    assert_eq!(start, [of_project("db", "db", &[])], "compose makes the other one anew");

    // The earlier image fails as well, and what it has replaced goes back.
    let failed = Failed::new(Failure::default(), String::new());
    let deployment = scenario.service.durable.deployment.as_mut().expect("it is in progress");
    deployment.phase = Phase::Restore(failed);
    let step = scenario.runs(&start);
    assert!(matches!(step, SnapshotStep::UndoRestore { .. }), "{step:?}");
    scenario.now += SignedDuration::from_mins(1);
    scenario.step_of_snapshot_ends(SnapshotStepped::Done);
    let durable = scenario.service.durable();
    let deployment = durable.deployment.as_ref().expect("it is in progress");
    assert_eq!(deployment.snapshot.stopped, [], "no image may run on data of two times");
    assert_eq!(durable.left_stopped["db"].at, scenario.now, "the agent has started it in between");
}

#[test]
fn auto_start_does_not_start_a_project_on_data_of_two_times() {
    let mut scenario = with_data_of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    let down = scenario.leaves_stopped();
    // Another digest is in the registry.
    scenario.service.durable.rollback_failed = false;
    let seen = observed('3', &[local(NEW, &['2'])], &[&down]);
    for (why, starts) in [(WhyLeft::EarlierData, true), (WhyLeft::MixedData, false)] {
        scenario.is_left_on(why, &down);
        assert_eq!(scenario.service.starts_project(&seen.containers), starts, "{why:?}");
        let wanted = scenario.service.start_wanted(&seen, true, scenario.now);
        assert_eq!(wanted, starts.then_some(Cause::Start), "{why:?}");
    }
}

#[test]
fn what_the_engine_may_start_by_itself_is_told() {
    for is_mixed in [false, true] {
        let mut scenario = with_data();
        scenario.fails_with_data();
        let service = old_container().compose_service;
        scenario.runs(&[of_project("web-2", &service, &[]), of_project("web-3", &service, &[])]);
        let always = Container { restart_policy: RestartPolicy::Always, ..new_container() };
        let unless_stopped =
            Container { id: "web-3".into(), restart_policy: RestartPolicy::UnlessStopped, ..new_container() };
        scenario.service.known.containers = Some(vec![always, unless_stopped].into());
        if !is_mixed {
            scenario.step_of_snapshot_ends(SnapshotStepped::Done);
        }
        for _ in 0..5 {
            let mixed = SnapshotStepped::Mixed { why: "can't put back /srv/b".into() };
            let failed = StepResult::Failed("compose could not be started".into());
            scenario.step_ends(if is_mixed { StepResult::Snapshot(mixed) } else { failed });
            scenario.now += SignedDuration::from_mins(10);
        }
        let entry = scenario.told(&Kind::ROLLBACK_FAILED).pop().expect("a person has to act");
        let reason = entry.reason.clone().unwrap_or_default();
        let told =
            "the next start of the engine may start these by their restart policy, so act before that: web-2";
        assert!(reason.contains(told), "{reason}");
        assert!(reason.contains("web-2, web-3"), "both stay stopped: {reason}");
        assert!(!reason.contains(&format!("{told}, web-3")), "the engine leaves that one stopped: {reason}");
    }
}
