//! Scenarios of updates of jobs, and of workers that live by their restart policy.

use super::*;

const DONE: EventKind = EventKind::Die { exit_code: 0 };

#[test]
fn a_worker_that_its_restart_policy_starts_again_is_updated_and_what_has_crashed_before_is_not() {
    for (policy, last) in
        [(RestartPolicy::Always, State::Running), (RestartPolicy::UnlessStopped, State::Restarting)]
    {
        let run = |version, round, restart_count| Container {
            restart_policy: policy,
            restart_count,
            ..on("web", IMAGE, version, round)
        };
        for (earlier, is_worker) in [(Some(0), true), (Some(1), false), (None, false)] {
            let mut scenario = Scenario::of(config());
            let old = Container { started_at: scenario.seconds(0), ..run("v1", 1, 9) };
            scenario.look(&[&old]);
            if let Some(exit_code) = earlier {
                scenario.event(&old.id, EventKind::Die { exit_code });
            }
            let mut new = run("v2", 2, 0);
            scenario.brings_up(&[&old], &[&new]);
            for second in [1, 4, 8] {
                scenario.at(second).look(&[&new]).event(&new.id, DONE);
                new.restart_count += 1;
                new.started_at = scenario.seconds(second + 1);
            }
            new.state = last;
            scenario.at(11).look(&[&new]);
            assert_eq!(scenario.is_blocked(), !is_worker, "{policy:?} {earlier:?}: {:?}", scenario.entries);
            let updated = scenario.entries.iter().any(|entry| entry.event == Kind::UPDATED);
            assert_eq!(updated, is_worker, "{policy:?} {earlier:?}");
        }
    }
}

#[test]
fn a_server_that_has_ended_with_code_0_before_is_no_worker() {
    // How long it ran until it ended, and how long it has been running since.
    for (ran, runs, is_worker) in
        [(5, 0, true), (5, 600, true), (5, 7200, false), (3600, 0, false), (3600, 600, false)]
    {
        let run = |version, round, started_at| Container {
            restart_policy: RestartPolicy::UnlessStopped,
            started_at,
            ..on("web", IMAGE, version, round)
        };
        let mut scenario = Scenario::of(config());
        let old = run("v1", 1, scenario.seconds(0));
        scenario.look(&[&old]).at(ran).event(&old.id, DONE);
        let old = Container { restart_count: 1, ..run("v1", 1, scenario.seconds(ran)) };
        scenario.look(&[&old]);
        let begun = ran + runs;
        let mut new = run("v2", 2, scenario.seconds(begun));
        scenario.at(begun).brings_up(&[&old], &[&new]);
        for second in [begun + 1, begun + 4, begun + 8] {
            scenario.at(second).look(&[&new]).event(&new.id, DONE);
            new.restart_count += 1;
            new.started_at = scenario.seconds(second + 1);
        }
        new.state = State::Restarting;
        scenario.at(begun + 11).look(&[&new]);
        assert_eq!(scenario.is_blocked(), !is_worker, "{ran} {runs}: {:?}", scenario.entries);
    }
}

#[test]
fn a_worker_that_fails_has_crashed() {
    let mut scenario = Scenario::of(config());
    let started_at = scenario.seconds(0);
    let run = |version, round| Container {
        restart_policy: RestartPolicy::Always,
        restart_count: 1,
        started_at,
        ..on("web", IMAGE, version, round)
    };
    scenario.look(&[&run("v1", 1)]).event("web-1", DONE);
    let mut new = run("v2", 2);
    scenario.brings_up(&[&run("v1", 1)], &[&new]).at(1).look(&[&new]);
    scenario.event("web-2", EventKind::Die { exit_code: 1 });
    new.restart_count = 2;
    scenario.at(2).look(&[&new]);
    assert!(scenario.is_blocked());
}

#[test]
fn a_job_that_runs_when_its_update_is_found_may_end_on_probation() {
    let killed = EventKind::Kill { signal: Some(15) };
    for policy in [RestartPolicy::No, RestartPolicy::OnFailure] {
        for (earlier, is_job) in [(vec![DONE], true), (vec![killed.clone(), DONE], false), (vec![], false)] {
            let mut scenario = Scenario::of(config());
            let started_at = scenario.seconds(0);
            let old = Container { restart_policy: policy, started_at, ..on("web", IMAGE, "v1", 1) };
            scenario.look(&[&old]).at(1);
            for event in &earlier {
                scenario.event(&old.id, event.clone());
            }
            let again = Container { started_at: scenario.seconds(2), ..old };
            scenario.at(3).look(&[&again]);
            let new = Container { restart_policy: policy, ..on("web", IMAGE, "v2", 2) };
            scenario.brings_up(&[&again], &[&new]).at(4).look(&[&new]);
            let done = Container { state: State::Exited, ..new };
            for second in [5, 6, 14] {
                scenario.at(second).look(&[&done]);
            }
            assert_eq!(scenario.is_blocked(), !is_job, "{policy:?} {earlier:?}: {:?}", scenario.entries);
            let updated = scenario.entries.iter().any(|entry| entry.event == Kind::UPDATED);
            assert_eq!(updated, is_job, "{policy:?} {earlier:?}");
        }
    }
}

#[test]
fn an_image_that_has_served_and_ends_with_code_0_has_failed_whatever_its_restart_policy() {
    let new = Container { restart_policy: RestartPolicy::Always, ..on("web", IMAGE, "v2", 2) };
    let ended = Container { state: State::Exited, served: true, ..new.clone() };
    let mut scenario = Scenario::of(config());
    scenario.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&new]).at(1).look(&[&new]);
    scenario.at(2).look(&[&ended]);
    assert!(!scenario.is_blocked(), "the event of a stop may be on its way");
    scenario.at(3).look(&[&ended]);
    assert!(scenario.is_blocked());
}
