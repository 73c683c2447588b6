//! Scenarios of deployments in projects with more containers than the updated one, and of manual actions during them.

mod jobs;
mod machine;
mod meanwhile;
mod retry;

use super::*;
use crate::model::output::stable;
use crate::model::{ComposeError, UpMode};
use crate::service::action::IfGone;
use crate::service::observation::Definition;
use crate::service::upkeep::maintenance::MaintenanceTask;

const DB: &str = "localhost:5000/db:1";

/// Returns a container on that version of an image, created in that round.
fn on(name: &str, image: &str, version: &str, round: u32) -> Container {
    Container {
        id: format!("{name}-{round}"),
        config_image: image.into(),
        image: ImageId(format!("sha256:{version}").into()),
        started_at: Some("2025-12-31T23:00:00Z".parse().unwrap()),
        ..running(name)
    }
}

fn v1() -> LocalImage {
    local("sha256:v1", &['1'])
}

fn v2() -> LocalImage {
    local("sha256:v2", &['2'])
}

impl Scenario {
    /// The registry has version 2: brings it up; `after` are the containers that compose leaves.
    fn brings_up(&mut self, before: &[&Container], after: &[&Container]) -> &mut Self {
        self.check(observed('2', &[v1()], before));
        self.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        self.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        self.is_up(after)
    }

    /// Runs the next step with this result, and returns the step.
    fn takes_step(&mut self, result: StepResult) -> Step {
        let action = self.act();
        let Some(Action::Step(step)) = action else { panic!("no step is due, but {action:?}") };
        self.input(Input::Stepped(result));
        step
    }

    fn is_up(&mut self, after: &[&Container]) -> &mut Self {
        let containers = after.iter().map(|c| (*c).clone()).collect();
        self.takes_step(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        self
    }

    /// Rolls back after a failure; `after` are the containers that compose leaves.
    fn rolls_back(&mut self, after: &[&Container]) -> Step {
        self.takes_step(StepResult::Diagnosed { log: String::new() });
        let containers = after.iter().map(|c| (*c).clone()).collect();
        self.takes_step(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers })
    }

    fn last(&self) -> &AuditEntry {
        self.entries.last().expect("at least one entry")
    }

    fn is_blocked(&self) -> bool {
        self.service.durable().images.blocked().next().is_some()
    }
}

#[test]
fn a_project_that_runs_the_image_under_another_name_is_a_fault_and_not_updated() {
    let mut scenario = Scenario::of(config());
    let web = on("web", "127.0.0.1:5000/web:1", "v1", 1);
    scenario.check(observed('2', &[], &[&web]));
    assert_eq!(scenario.act(), None);
    let text = &scenario.last().message;
    assert!(text.contains(IMAGE) && text.contains("127.0.0.1:5000/web:1"), "{text}");
    // Nothing runs: the tag decides, as before the first start.
    scenario.entries.clear();
    scenario.check(observed('2', &[], &[]));
    assert_eq!(scenario.kinds(), [Kind::RECOVERED]);
}

#[test]
fn a_container_that_compose_leaves_behind_is_named_and_does_not_delay_the_update() {
    let mut scenario = Scenario::of(config());
    let (orphan, old, new) =
        (on("orphan", IMAGE, "v1", 1), on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    scenario.brings_up(&[&orphan, &old], &[&orphan, &new]);
    scenario.at(11).look(&[&orphan, &new]);
    assert_eq!(scenario.last().event, Kind::UPDATED);
    assert!(
        scenario.last().reason.as_ref().is_some_and(|why| why.contains("orphan")),
        "{:?}",
        scenario.last()
    );
    assert!(!scenario.is_blocked());
    scenario.takes_step(StepResult::Unpinned);
    // It stays on the old image, which is not reported again.
    scenario.at(20).check(observed('2', &[v1(), v2()], &[&orphan, &new]));
    assert_eq!(scenario.act(), None);
    assert_eq!(scenario.status(), StatusValue::Ok);
}

#[test]
fn a_container_that_keeps_crashing_and_that_compose_leaves_behind_is_not_updated_again_and_again() {
    let mut scenario = Scenario::of(config());
    let (old, new) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    let orphan = Container {
        state: State::Restarting,
        restart_policy: RestartPolicy::Always,
        ..on("orphan", IMAGE, "v1", 1)
    };
    scenario.brings_up(&[&orphan, &old], &[&orphan, &new]);
    scenario.at(11).look(&[&orphan, &new]);
    assert_eq!(scenario.last().event, Kind::UPDATED);
    scenario.takes_step(StepResult::Unpinned);
    scenario.at(12).check(observed('2', &[v1(), v2()], &[&orphan, &new]));
    assert_eq!(scenario.act(), None);
}

#[test]
fn new_or_previously_unhealthy_bystanders_say_nothing_about_the_image() {
    let unhealthy =
        Container { health: Some(HealthState::Unhealthy), ..with_health("db", HealthState::Unhealthy) };
    let unhealthy =
        |round| Container { id: format!("db-{round}"), config_image: DB.into(), ..unhealthy.clone() };
    let newcomer = Container { config_image: DB.into(), id: "new".into(), ..exited("newcomer", 1) };
    let mut scenario = Scenario::of(config());
    let (old, new) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    scenario.brings_up(&[&old, &unhealthy(1)], &[&new, &unhealthy(2), &newcomer]);
    for at in [1, 5, 11] {
        scenario.at(at).look(&[&new, &unhealthy(2), &newcomer]);
    }
    assert_eq!(scenario.last().event, Kind::UPDATED, "{:?}", scenario.entries);
}

#[test]
fn a_bystander_that_fails_with_the_new_image_causes_a_rollback_and_is_named_if_it_still_fails() {
    for still in [true, false] {
        let mut scenario = Scenario::of(config());
        let (old, new, back) =
            (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2), on("web", IMAGE, "v1", 3));
        let db = |round, health| Container {
            id: format!("db-{round}"),
            config_image: DB.into(),
            ..with_health("db", health)
        };
        let (well, unhealthy) = (db(1, HealthState::Healthy), db(2, HealthState::Unhealthy));
        scenario.brings_up(&[&old, &well], &[&new, &unhealthy]);
        scenario.at(200).look(&[&new, &unhealthy]);
        let last = if still { db(3, HealthState::Unhealthy) } else { db(3, HealthState::Healthy) };
        scenario.rolls_back(&[&back, &last]);
        scenario.at(400).look(&[&back, &last]);
        assert_eq!(scenario.last().event, Kind::ROLLED_BACK, "{:?}", scenario.entries);
        let message = &scenario.last().message;
        assert!(message.contains("; rolled back to the images that ran before"), "{message}");
        assert_eq!(message.contains(", but container db is unhealthy"), still, "{message}");
        assert!(scenario.is_blocked() && !scenario.service.durable().rollback_failed);
    }
}

#[test]
fn a_rollback_to_a_previously_unhealthy_container_succeeds_if_it_is_unhealthy_again() {
    let mut scenario = Scenario::of(config());
    let unhealthy = |version, round| Container {
        health_timing: with_health("web", HealthState::Unhealthy).health_timing,
        health: Some(HealthState::Unhealthy),
        ..on("web", IMAGE, version, round)
    };
    scenario.brings_up(&[&unhealthy("v1", 1)], &[&unhealthy("v2", 2)]);
    scenario.at(200).look(&[&unhealthy("v2", 2)]);
    scenario.rolls_back(&[&unhealthy("v1", 3)]);
    scenario.at(400).look(&[&unhealthy("v1", 3)]);
    assert_eq!(scenario.last().event, Kind::ROLLED_BACK);
}

/// The new image has crashed, and this container of the old one is on probation.
fn brought_back() -> (Scenario, Container) {
    let mut scenario = Scenario::of(config());
    let (old, new, back) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2), on("web", IMAGE, "v1", 3));
    scenario.brings_up(&[&old], &[&new]);
    let crashed = Container { state: State::Exited, exit_code: 3, ..new };
    scenario.at(2).look(&[&crashed]).at(3).look(&[&crashed]);
    scenario.rolls_back(&[&back]);
    (scenario, back)
}

#[test]
fn after_a_rollback_the_record_says_why_since_when_and_that_the_old_image_runs() {
    let (mut scenario, back) = brought_back();
    scenario.at(400).look(&[&back]);
    let record = scenario.record();
    let failed = record.failed_update.clone().unwrap();
    assert!(failed.reason.contains("exited with code 3") && failed.rolled_back, "{failed:#?}");
    assert_eq!(failed.digest, Some(digest('2').to_string()));
    assert_eq!((record.status, record.since), (StatusValue::Blocked, Some(failed.at)));
    // It survives a restart of the agent, and ends with the block.
    let written = serde_json::to_value(scenario.service.durable()).unwrap();
    let durable: Durable = serde_json::from_value(written).unwrap();
    assert_eq!(durable.failed_update.as_deref(), Some(&failed));
    scenario.service.durable.images.of(IMAGE).blocked = None;
    assert_eq!(scenario.record().failed_update, None);
}

#[test]
fn a_sibling_whose_tag_has_moved_keeps_its_image_even_during_a_rollback() {
    let mut scenario = Scenario::of(config());
    let (old, bad) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    let (db1, db2) = (on("db", DB, "db1", 1), on("db", DB, "db2", 2));
    scenario.check(observed('2', &[v1()], &[&old, &db1]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let sibling_tags = |step: &Step| match step {
        Step::Start(BringUp { displaced, if_gone, .. }) => (displaced.clone(), *if_gone),
        step => panic!("{step:?}"),
    };
    let held_on = |image: &str| {
        let named = Some(ImageId("sha256:elsewhere".into()));
        vec![DisplacedTag {
            tag: Reference::parse(DB).unwrap(),
            runs: ImageId(format!("sha256:{image}").into()),
            named,
        }]
    };
    // Journaled before any tag is moved, so that a restart in between restores them.
    let step = scenario.service.next(scenario.now);
    assert!(matches!(step, Some(Action::Step(Step::ReadTags { .. }))), "{step:?}");
    let displaced = held_on("db1");
    scenario.input(Input::Stepped(StepResult::TagsRead { displaced: displaced.clone() }));
    assert_eq!(scenario.service.durable().deployment.as_ref().unwrap().displaced, Some(displaced));
    let up =
        StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![bad.clone(), db1] };
    assert_eq!(sibling_tags(&scenario.takes_step(up)), (held_on("db1"), IfGone::Stop));
    // In the meantime an operator has moved it to another image.
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad };
    scenario.at(2).look(&[&crashed, &db2]).at(3).look(&[&crashed, &db2]);
    let back = on("web", IMAGE, "v1", 3);
    assert_eq!(sibling_tags(&scenario.rolls_back(&[&back, &db2])), (held_on("db2"), IfGone::GoOn));
    scenario.at(20).look(&[&back, &db2]);
    assert_eq!(scenario.last().event, Kind::ROLLED_BACK);
}

#[test]
fn a_container_that_can_not_be_inspected_says_nothing_about_its_image() {
    let unknown = |seen: &Container| Container {
        state: State::Unknown,
        started_at: None,
        health: None,
        health_timing: None,
        restart_count: 0,
        ..seen.clone()
    };
    let old = on("web", IMAGE, "v1", 1);
    let new = on("web", IMAGE, "v2", 2);
    // It answers again within the time: it was only late.
    let mut scenario = Scenario::of(config());
    scenario.brings_up(&[&old], &[&new]).at(1).look(&[&new]).at(9).look(&[&unknown(&new)]);
    scenario.at(11).look(&[&unknown(&new)]);
    assert_eq!(scenario.kinds(), [], "an unknown start is not another start");
    scenario.at(18).look(&[&new]);
    assert_eq!(scenario.kinds(), [Kind::UPDATED]);
    // It does not: neither proven nor rejected.
    let mut scenario = Scenario::of(config());
    scenario.brings_up(&[&old], &[&new]).at(1).look(&[&new]);
    scenario.at(9).look(&[&unknown(&new)]).at(19).look(&[&unknown(&new)]);
    assert_eq!(scenario.kinds(), [Kind::ERROR]);
    assert!(!scenario.is_blocked());
    let fault = scenario.record().errored.unwrap_or_default();
    assert!(fault.contains("the engine answers no inspection of container web"), "{fault}");
    // Its health check may need longer than the grace, also while it can't be inspected.
    let slow = Container { health: Some(HealthState::Starting), ..with_health("web", HealthState::Starting) };
    let timing =
        slow.health_timing.map(|timing| HealthTiming { start_period: Duration::from_mins(2), ..timing });
    let slow = Container { health: slow.health, health_timing: timing, ..new.clone() };
    let mut scenario = Scenario::of(config());
    scenario.brings_up(&[&old], &[&slow]).at(1).look(&[&slow]);
    scenario.at(9).look(&[&unknown(&slow)]).at(60).look(&[&unknown(&slow)]);
    assert_eq!(scenario.kinds(), []);
    scenario.at(100).look(&[&Container { health: Some(HealthState::Healthy), ..slow.clone() }]);
    scenario.at(130).look(&[&Container { health: Some(HealthState::Healthy), ..slow }]);
    assert_eq!(scenario.kinds(), [Kind::UPDATED]);
}

#[test]
fn a_manual_restart_restarts_the_probation() {
    let mut scenario = Scenario::of(config());
    let (old, new) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    scenario.brings_up(&[&old], &[&new]).at(1).look(&[&new]).at(5);
    scenario.event("web-2", EventKind::Stop);
    let again = Container { started_at: scenario.seconds(6), ..new };
    scenario.at(6).look(&[&again]).at(11).look(&[&again]);
    assert_eq!(scenario.entries, [], "the new run has not lasted long enough");
    scenario.at(16).look(&[&again]);
    assert_eq!(scenario.last().event, Kind::UPDATED);
}

#[test]
fn an_image_that_ends_with_code_0_is_rolled_back_at_once_unless_its_restart_policy_starts_it_again() {
    let new = on("web", IMAGE, "v2", 2);
    let ended =
        |restart_policy| Container { state: State::Exited, exit_code: 0, restart_policy, ..new.clone() };
    for (policy, is_over) in [
        (RestartPolicy::No, true),
        (RestartPolicy::OnFailure, true),
        (RestartPolicy::Always, false),
        (RestartPolicy::UnlessStopped, false),
    ] {
        let mut scenario = Scenario::of(config());
        scenario.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&new]).at(1).look(&[&new]);
        scenario.at(2).look(&[&ended(policy)]);
        assert!(!scenario.is_blocked(), "{policy:?}: the event of a stop may be on its way");
        scenario.at(3).look(&[&ended(policy)]);
        assert_eq!(scenario.is_blocked(), is_over, "{policy:?}");
    }
    // A person has stopped it.
    let mut scenario = Scenario::of(config());
    scenario.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&new]).at(1).look(&[&new]);
    scenario.at(2).look(&[&ended(RestartPolicy::No)]).event("web-2", EventKind::Stop);
    scenario.at(3).look(&[&ended(RestartPolicy::No)]);
    assert!(!scenario.is_blocked());
}

#[test]
fn a_changed_grace_applies_from_the_next_deployment_on() {
    let (old, new) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    for changed in [1, 3600] {
        let mut scenario = Scenario::of(config());
        scenario.brings_up(&[&old], &[&new]).at(1).look(&[&new]).at(5);
        scenario.reconfigures(ServiceConfig { health_grace: Duration::from_secs(changed), ..config() });
        assert_eq!(scenario.at(7).act(), None, "the probation goes on");
        scenario.at(9).look(&[&new]);
        assert_eq!(scenario.kinds(), [Kind::RESUMED], "10 s were configured when it began");
        scenario.at(11).look(&[&new]);
        assert_eq!(scenario.last().event, Kind::UPDATED, "{changed}");
    }
}

#[test]
fn a_reload_does_not_bring_up_again_what_is_on_probation_after_a_rollback() {
    let (mut scenario, back) = brought_back();
    scenario.at(5).look(&[&back]).event("web-3", EventKind::Stop);
    scenario.reconfigures(config());
    assert_eq!(scenario.act(), None, "somebody has stopped it");
    let stopped = Container { state: State::Exited, exit_code: 143, ..back };
    scenario.look(&[&stopped]).at(400).look(&[&stopped]);
    assert_eq!(scenario.last().event, Kind::ROLLED_BACK);
}

#[test]
fn external_interference_neither_blocks_nor_rolls_back_and_the_image_is_proven_later() {
    let new = on("web", IMAGE, "v2", 2);
    let stopped = Container { state: State::Exited, exit_code: 137, ..new.clone() };
    let paused = Container { state: State::Paused, ..new.clone() };
    let other = on("web", IMAGE, "v9", 3);
    let table: [(&str, &[&Container]); 4] = [
        ("stopped by someone", &[&stopped]),
        ("paused by someone", &[&paused]),
        ("removed by someone", &[]),
        ("container web was moved to another image", &[&other]),
    ];
    for (words, there) in table {
        let mut scenario = Scenario::of(config());
        scenario.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&new]).at(1).look(&[&new]).at(5);
        if words.starts_with("stopped") {
            scenario.event("web-2", EventKind::Stop);
        }
        scenario.look(there).at(11).look(there);
        assert_eq!(scenario.kinds(), [Kind::ERROR], "{words}");
        assert!(!scenario.is_blocked(), "{words}");
        let fault = scenario.record().errored.unwrap_or_default();
        assert!(fault.contains(words), "{fault}");
        scenario.takes_step(StepResult::Unpinned);
        // Found running again, it goes through its probation as it is.
        scenario.at(60).check(observed('2', &[v2()], &[&new]));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        scenario.is_up(&[&new]).at(71).look(&[&new]);
        let updated = scenario.entries.iter().find(|entry| entry.event == Kind::UPDATED);
        let updated = updated.unwrap_or_else(|| panic!("{words}: {:?}", scenario.entries));
        assert_eq!(updated.old_digest, Some(digest('1').to_string()));
    }
}

#[test]
fn an_unblocked_image_has_to_prove_itself() {
    let mut scenario = Scenario::of(config());
    let bad = on("web", IMAGE, "v2", 2);
    let crashed = Container { state: State::Exited, exit_code: 1, ..bad.clone() };
    scenario.brings_up(&[&on("web", IMAGE, "v1", 1)], &[&bad]);
    scenario.at(2).look(&[&crashed]).at(3).look(&[&crashed]);
    scenario.rolls_back(&[&bad]);
    for at in (4..200).step_by(3) {
        scenario.at(at).look(&[&bad]);
        if let Some(Action::Step(Step::Start(_))) = scenario.act() {
            let up = StepResult::Started {
                up: Ok(String::new()),
                named: Vec::new(),
                containers: vec![bad.clone()],
            };
            scenario.input(Input::Stepped(up));
        }
    }
    assert!(scenario.service.durable().rollback_failed, "{:?}", scenario.entries);
    scenario.input(Input::Stepped(StepResult::Unpinned));
    scenario.service.handle_request(ServiceRequest::Unblock, scenario.now);
    scenario.check(observed('2', &[v2()], &[&bad]));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))), "it is considered proven");
}

#[test]
fn a_first_image_that_has_failed_has_to_prove_itself_although_nothing_is_known_to_go_back_to() {
    let mut scenario = Scenario::of(config());
    scenario.service.durable.images.of(IMAGE).unproven = Some(ImageId("sha256:v2".into()));
    let web = on("web", IMAGE, "v2", 1);
    scenario.check(observed('2', &[v2()], &[&web]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    scenario.is_up(&[&web]);
    let crashed = Container { state: State::Exited, exit_code: 1, ..web };
    scenario.at(2).look(&[&crashed]).at(3).look(&[&crashed]);
    scenario.takes_step(StepResult::Diagnosed { log: String::new() });
    let memory = scenario.service.durable().images.get(IMAGE);
    assert!(memory.history.is_empty() && memory.proven.is_none(), "{memory:?}");
    assert!(memory.is_unproven(&ImageId("sha256:v2".into())));
    assert_eq!(scenario.kinds(), [Kind::ERROR]);
}

#[test]
fn a_block_of_another_service_of_the_project_counts() {
    let mut scenario = Scenario::of(config());
    let mut seen = observed('2', &[v1()], &[&on("web", IMAGE, "v1", 1)]);
    seen.blocked_elsewhere = vec![blocked_by("api")];
    scenario.check(seen);
    assert_eq!(scenario.act(), None);
}

#[test]
fn the_failed_container_is_diagnosed_and_not_one_that_waits_for_it() {
    let mut scenario = Scenario::of(config());
    let (api, web) = (on("api", DB, "db", 2), on("web", IMAGE, "v2", 2));
    let waits = Container { state: State::Created, ..api };
    let unhealthy = Container { health: Some(HealthState::Unhealthy), ..web };
    scenario.check(observed('2', &[v1()], &[&on("web", IMAGE, "v1", 1), &on("api", DB, "db", 1)]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let error = ComposeError::new("dependency failed to start");
    scenario.takes_step(StepResult::Started {
        up: Err(error),
        named: Vec::new(),
        containers: vec![waits, unhealthy],
    });
    let evidence = scenario.act();
    assert_eq!(evidence, Some(Action::Step(Step::Diagnose { container: "web-2".into() })));
}

/// A stopped project in which version 2 could not be brought up; `left` is the container that compose leaves.
fn fails_to_start_what_was_stopped(left: &Container) -> Scenario {
    let mut scenario = Scenario::of(config());
    let stopped = Container { state: State::Exited, ..on("web", IMAGE, "v1", 1) };
    let mut seen = observed('2', &[v1()], &[&stopped]);
    seen.images[0].running.clear();
    scenario.check(seen);
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let error = ComposeError::new("exec: no such file");
    let containers = vec![left.clone()];
    scenario.takes_step(StepResult::Started { up: Err(error), named: Vec::new(), containers });
    scenario
}

#[test]
fn an_image_that_fails_to_start_in_a_stopped_project_is_blocked_and_rolled_back() {
    let half_made = Container {
        state: State::Created,
        error: "exec: no such file".into(),
        started_at: None,
        ..on("web", IMAGE, "v2", 2)
    };
    let mut scenario = fails_to_start_what_was_stopped(&half_made);
    assert!(scenario.is_blocked(), "{:?}", scenario.entries);
    let back = on("web", IMAGE, "v1", 3);
    let Step::Start(BringUp { tags, .. }) = scenario.rolls_back(&[&back]) else {
        panic!("nothing is brought up")
    };
    assert_eq!(tags[0].1.id, ImageId("sha256:v1".into()));
    scenario.at(20).look(&[&back]);
    assert_eq!(scenario.last().event, Kind::ROLLED_BACK, "{:?}", scenario.entries);
    scenario.takes_step(StepResult::Unpinned);
    scenario.at(30).check(observed('2', &[v1()], &[&back]));
    // The failed image does not stay until an update succeeds.
    let mut removed = Vec::new();
    while let Some(action) = scenario.service.next(scenario.now) {
        match action {
            Action::Maintain(MaintenanceTask::RemoveImages { images }) => {
                removed.extend(images.into_iter().map(|image| image.id));
                break;
            }
            Action::Inspect { .. } => scenario.service.inspections.end(),
            Action::Check { .. } => scenario.service.checks.drop_running(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(removed, [ImageId("sha256:v2".into())]);
    assert_eq!(scenario.act(), None, "it is not tried again");
}

#[test]
fn a_stopped_project_that_compose_did_not_touch_stays_stopped_and_nothing_is_blocked() {
    let stopped = Container { state: State::Exited, ..on("web", IMAGE, "v1", 1) };
    let mut scenario = fails_to_start_what_was_stopped(&stopped);
    assert_eq!((scenario.kinds(), scenario.is_blocked()), (vec![Kind::ERROR], false));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::RestoreTags { .. }))));
}

/// What is seen of a project whose only container is down, with version 2 in the registry.
fn seen_down(container: &Container) -> Observation {
    let mut seen = observed('2', &[v1()], &[container]);
    seen.images[0].running.clear();
    let model = serde_json::json!({"services": {"web": {"image": IMAGE}}});
    let model = Arc::new(serde_json::from_value(model).unwrap());
    seen.definition = Some(Ok(Definition { model, ..Definition::default() }));
    seen
}

#[test]
fn a_new_image_for_a_service_that_has_crashed_is_deployed() {
    for (helps, is_pulled) in [(true, false), (false, false), (true, true)] {
        let mut scenario = Scenario::of(config());
        // It was found while the container did not count as crashed yet.
        scenario.service.durable.images.of(IMAGE).pulled = is_pulled.then(|| digest('2'));
        let crashed = |version, round| Container {
            restart_policy: RestartPolicy::OnFailure,
            state: State::Exited,
            exit_code: 1,
            ..on("web", IMAGE, version, round)
        };
        scenario.check(seen_down(&crashed("v1", 1)));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        let new = on("web", IMAGE, "v2", 2);
        let up =
            StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![new.clone()] };
        let step = scenario.takes_step(up);
        let Step::Start(BringUp { scope: Some(scope), .. }) = &step else { panic!("{step:?}") };
        assert_eq!(scope.services(None).services(), ["web"]);
        if helps {
            scenario.at(11).look(&[&new]);
            assert_eq!(scenario.last().event, Kind::UPDATED, "{:?}", scenario.entries);
            continue;
        }
        scenario.at(2).look(&[&crashed("v2", 2)]).at(3).look(&[&crashed("v2", 2)]);
        let back = crashed("v1", 3);
        scenario.rolls_back(&[&back]);
        scenario.at(20).look(&[&back]).at(22).look(&[&back]);
        assert_eq!(scenario.last().event, Kind::ROLLED_BACK, "{:?}", scenario.entries);
        assert!(!scenario.service.durable().rollback_failed, "it is as bad as before, and not worse");
    }
}

#[test]
fn a_new_image_does_not_start_a_failed_job_nor_what_has_ended_or_may_have_been_stopped() {
    let down = |policy, exit_code| Container {
        restart_policy: policy,
        state: State::Exited,
        exit_code,
        finished_at: Some("2025-12-31T23:30:00Z".parse().unwrap()),
        ..on("web", IMAGE, "v1", 1)
    };
    let stopped_unseen = [down(RestartPolicy::OnFailure, 143), down(RestartPolicy::Always, 1)];
    let ended = [down(RestartPolicy::No, 1), down(RestartPolicy::OnFailure, 0)];
    for container in stopped_unseen.into_iter().chain(ended) {
        let mut scenario = Scenario::of(config());
        let at = scenario.now;
        let engine_since = Some(at - SignedDuration::from_hours(2));
        scenario.service.healer.events_unseen_before(at);
        scenario.input(Input::EngineBack { at, engine_since }).check(seen_down(&container));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
            labels: BTreeMap::new(),
        });
        let containers = vec![container.clone()];
        let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers };
        let step = scenario.takes_step(up);
        let Step::Start(BringUp { up_mode, scope, .. }) = &step else { panic!("{step:?}") };
        assert_eq!((up_mode, scope), (&UpMode::Services(Vec::new()), &None), "{container:?}");
    }
}

#[test]
fn a_stopped_container_that_a_failed_up_replaced_is_rolled_back_while_others_run() {
    let mut scenario = Scenario::of(config());
    let (db, old) = (on("db", DB, "v1", 1), Container { state: State::Exited, ..on("web", IMAGE, "v1", 1) });
    let half_made = Container { state: State::Created, started_at: None, ..on("web", IMAGE, "v2", 2) };
    scenario.check(observed('2', &[v1()], &[&db, &old]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let up = Err(ComposeError::new("exec: no such file"));
    let containers = vec![db.clone(), half_made];
    scenario.takes_step(StepResult::Started { up, named: vec!["web".into()], containers });
    assert!(scenario.is_blocked());
    assert!(matches!(scenario.rolls_back(&[&db, &on("web", IMAGE, "v1", 3)]), Step::Start(_)));
}

#[test]
fn a_tag_that_returns_to_a_digest_that_failed_before_is_blocked_again_and_not_deployed() {
    let mut scenario = Scenario::of(config());
    let web = on("web", IMAGE, "v1", 1);
    scenario.service.durable.images.of(IMAGE).block(&digest('2'));
    scenario.check(observed('1', &[v1()], &[&web]));
    assert!(!scenario.is_blocked(), "the tag has moved");
    scenario.entries.clear();
    scenario.at(10).check(observed('2', &[v1()], &[&web]));
    assert!(!matches!(scenario.act(), Some(Action::Step(_))));
    assert_eq!(scenario.service.durable().images.get(IMAGE).blocked.as_ref(), Some(&digest('2')));
    assert!(scenario.last().message.contains("has failed here before"), "{}", scenario.last().message);
    assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE]);
    // Told once, and deployed again only if a person says so.
    scenario.at(20).check(observed('2', &[v1()], &[&web]));
    assert_eq!(scenario.kinds(), []);
    scenario.service.handle_request(ServiceRequest::Unblock, scenario.now);
    scenario.at(30).check(observed('2', &[v1()], &[&web]));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
}

#[test]
fn a_block_ends_when_the_configuration_no_longer_lists_its_image() {
    let mut scenario = Scenario::of(config());
    scenario.service.durable.images.of(DB).block(&digest('2'));
    scenario.service.durable.images.of(DB).not_found = Some(digest('3'));
    scenario.service.durable.rollback_failed = true;
    let web = on("web", IMAGE, "v1", 1);
    for _ in 0..2 {
        scenario.at(10).check(observed('1', &[v1()], &[&web]));
    }
    assert!(!scenario.is_blocked() && !scenario.service.durable().rollback_failed);
    assert_eq!(scenario.service.durable().images.not_found().next(), None);
    assert!(scenario.last().message.contains("no longer configured"), "{}", scenario.last().message);
    assert_eq!(scenario.kinds(), [Kind::UNBLOCKED], "once");
    assert!(
        scenario.service.durable().images.get(DB).failed_before(&digest('2')),
        "for the case that it returns"
    );
}

#[test]
fn the_tag_of_an_image_that_was_not_proven_stays_on_it_while_it_runs() {
    let mut scenario = Scenario::of(config());
    let (old, new) = (on("web", IMAGE, "v1", 1), on("web", IMAGE, "v2", 2));
    scenario.brings_up(&[&old], &[&new]);
    scenario.event(&new.id, EventKind::Stop);
    let stopped = Container { state: State::Exited, exit_code: 143, ..new.clone() };
    scenario.at(1).look(&[&stopped]).at(12).look(&[&stopped]);
    assert!(scenario.last().message.contains("interrupted"), "{:?}", scenario.entries);
    scenario.takes_step(StepResult::Unpinned);
    // A person starts it again, and the compose file is broken by now.
    let again = Container { started_at: scenario.seconds(20), ..new };
    scenario.at(21).look(&[&again]).check(observed('2', &[v2()], &[&again]));
    scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let error = ComposeError::new("did not find expected key");
    scenario.takes_step(StepResult::Started {
        up: Err(error),
        named: Vec::new(),
        containers: vec![again.clone()],
    });
    let Some(Action::Step(Step::RestoreTags { tags })) = scenario.act() else {
        panic!("no tags are restored")
    };
    assert_eq!(tags[0].1.id, again.image, "not the one before, which does not run");
}

#[test]
fn a_container_that_lags_behind_another_one_of_its_tag_is_updated() {
    let mut scenario = Scenario::of(config());
    let (web, worker) = (on("web", IMAGE, "v2", 2), on("worker", IMAGE, "v1", 1));
    scenario.check(observed('2', &[v2(), v1()], &[&web, &worker]));
    let pinned = scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    let Step::PinImages { images, .. } = pinned else { panic!("{pinned:?}") };
    assert_eq!(images[0].id, ImageId("sha256:v1".into()), "the way back is what is replaced");
    scenario.takes_step(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:v2".into()))],
        labels: BTreeMap::new(),
    });
    let new = on("worker", IMAGE, "v2", 2);
    scenario.is_up(&[&web, &new]).at(11).look(&[&web, &new]);
    assert_eq!(scenario.last().event, Kind::UPDATED);
    assert_eq!(scenario.last().old_digest, Some(digest('1').to_string()));
    scenario.takes_step(StepResult::Unpinned);
    scenario.at(20).check(observed('2', &[v2()], &[&web, &new]));
    assert_eq!(scenario.act(), None);
}

#[test]
fn a_blocked_image_that_one_container_runs_is_not_brought_to_the_others() {
    let mut scenario = Scenario::of(config());
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    let (web, worker) = (on("web", IMAGE, "v2", 2), on("worker", IMAGE, "v1", 1));
    scenario.check(observed('2', &[v2(), v1()], &[&web, &worker]));
    assert_eq!(scenario.act(), None);
    scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    scenario.check(observed('2', &[v2(), v1()], &[&web, &worker]));
    let pinned = scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
    let Step::PinImages { images, .. } = pinned else { panic!("{pinned:?}") };
    assert_eq!(images[0].id, ImageId("sha256:v1".into()), "the tag is kept on what is not blocked");
}

#[test]
fn a_download_that_fails_again_with_another_signature_and_address_is_one_entry() {
    let mut scenario = Scenario::of(config());
    for (at, address, signature) in
        [(0, "104.18.124.25", "1577462404-ru4"), (60, "104.18.125.25", "1577462464-Zk9")]
    {
        let why = stable(&format!(
            "Get \"https://cdn.example/data?verify={signature}%3D\": dial tcp {address}:443: i/o timeout"
        ));
        scenario.at(at).check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        scenario.takes_step(StepResult::PullFailed {
            image: IMAGE.into(),
            why,
            lacks_platform: false,
            pulled: Vec::new(),
        });
        scenario.takes_step(StepResult::Unpinned);
        assert_eq!(scenario.act(), None);
    }
    let errors: Vec<_> = scenario.entries.iter().filter(|entry| entry.event == Kind::ERROR).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(!errors[0].message.contains("verify"), "{errors:?}");
}
