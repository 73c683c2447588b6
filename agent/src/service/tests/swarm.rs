//! Scenarios of a swarm service: manual requests, and the plan and course of an update.

mod halfway;
mod jobs;
mod left;
mod meanwhile;
mod unreadable;

use serde_json::json;

use super::*;
use crate::config::UpdateConfig;
use crate::model::swarm::{Restarts, SwarmMode, SwarmService, Task, TaskState, UpdateState, UpdateStatus};
use crate::model::{Need, SwarmError};
use crate::service::ROLLBACK_ATTEMPTS;
use crate::service::action::{SetImage, SwarmStep};
use crate::service::input::SwarmResult;
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::SwarmPlan;
use crate::service::rollout::step::Phase;

fn in_swarm() -> ServiceConfig {
    ServiceConfig { swarm_service: Some("shop_web".into()), auto_heal: false, ..config() }
}

fn task(id: &str, image: &str, state: TaskState) -> Task {
    Task {
        id: id.into(),
        name: "shop_web.1".into(),
        node: "n1".into(),
        image: image.into(),
        should_run: state == TaskState::Running,
        state,
        since: None,
        error: String::new(),
        exit_code: None,
        local_container: None,
    }
}

/// A service with one task that runs `image`.
fn service(image: &str) -> SwarmService {
    SwarmService {
        id: "s".into(),
        name: "shop_web".into(),
        version: 1,
        image: image.into(),
        previous_image: None,
        force_update: 4,
        mode: SwarmMode::Replicated(1),
        update: None,
        tasks: vec![task("old", image, TaskState::Running)],
        nodes_down: std::collections::BTreeSet::new(),
        nodes_paused: std::collections::BTreeSet::new(),
        restarts: Restarts::All,
        is_constrained: false,
    }
}

fn image(n: char) -> String {
    format!("{IMAGE}@{}", digest(n))
}

fn seen(remote: char, runs: char, swarm: SwarmService) -> Observation {
    let local = LocalImage { id: ImageId::from(&digest(runs)), ..local("", &[runs]) };
    Observation { swarm: Some(Box::new(swarm)), ..observed(remote, &[local], &[&running("a")]) }
}

impl Scenario {
    /// Returns the next step of its update.
    fn step(&mut self) -> Option<SwarmStep> {
        loop {
            match self.act() {
                Some(Action::InspectSwarm { .. }) => self.service.inspections.end(),
                Some(Action::Step(Step::Swarm(step))) => return Some(step),
                None => return None,
                other => panic!("{other:?}"),
            }
        }
    }

    fn redeploy(&mut self, seen: Observation) -> Option<SwarmStep> {
        let (_, entries) = self.service.handle_request(ServiceRequest::Redeploy, self.now);
        self.entries.extend(entries);
        self.check(seen).step()
    }

    fn deployment(&self) -> &Deployment {
        self.service.durable.deployment.as_ref().expect("an update is in progress")
    }

    fn plan(&self) -> &SwarmPlan {
        self.deployment().plan().swarm.as_ref().expect("it is in a swarm")
    }

    fn observes(&mut self, result: Result<SwarmService, SwarmError>) -> &mut Self {
        let generation = self.service.inspection_generation();
        self.input(Input::SwarmInspected { generation, result })
    }
}

fn stepped(result: SwarmResult) -> Input {
    Input::Stepped(StepResult::Swarm(result))
}

#[test]
fn a_redeploy_during_an_external_update_is_rejected() {
    let update = Some(UpdateStatus { state: UpdateState::Updating, message: String::new() });
    let busy = || SwarmService { update: update.clone(), ..service(&image('1')) };
    let mut scenario = Scenario::of(in_swarm());
    assert_eq!(scenario.redeploy(seen('1', '1', busy())), None);
    assert_eq!(scenario.entries.last().unwrap().event, Kind::FORCE_REDEPLOY_FAILED);
    assert!(format!("{:?}", scenario.entries.last()).contains("try again when it has finished"));
    assert_eq!(scenario.record().errored, None, "the answer is the only report");
    // Without a request it is checked again soon.
    let mut scenario = Scenario::of(in_swarm());
    assert_eq!(scenario.check(seen('2', '1', busy())).step(), None);
    assert!(scenario.record().errored.unwrap().contains("the next check tries again"));
    assert_eq!(scenario.kinds().iter().filter(|kind| **kind == Kind::FORCE_REDEPLOY_FAILED).count(), 0);
}

#[test]
fn a_redeploy_recreates_the_tasks_of_an_image_that_is_pinned_or_not_configured() {
    let pinned = |mut seen: Observation| {
        seen.images[0].reference = Reference::parse(&image('1')).unwrap();
        seen.images[0].remote = None;
        seen
    };
    let without = |seen: Observation| Observation { images: Vec::new(), ..seen };
    for change in [&pinned as &dyn Fn(Observation) -> Observation, &without] {
        let mut scenario = Scenario::of(in_swarm());
        let set = scenario.redeploy(change(seen('1', '1', service(&image('1')))));
        let Some(SwarmStep::Set(SetImage { from, to, force, .. })) = set else { panic!("{set:?}") };
        assert_eq!((from, to, force), (image('1'), image('1'), Some(5)));
    }
}

#[test]
fn a_redeploy_of_the_running_image_keeps_its_spelling_and_blocks_nothing() {
    let reference = Reference::parse("nginx:1.27").unwrap();
    let mut config = in_swarm();
    config.images[0] = ConfiguredImage { configured: "nginx:1.27".into(), reference: reference.clone() };
    for spelling in ["nginx:1.27", "docker.io/library/nginx:1.27"] {
        let runs = format!("{spelling}@{}", digest('1'));
        let mut seen = seen('1', '1', service(&runs));
        let view = &mut seen.images[0];
        (view.configured, view.reference, view.from) =
            ("nginx:1.27".into(), reference.clone(), reference.clone());
        let mut scenario = Scenario::of(config.clone());
        assert!(matches!(scenario.redeploy(seen), Some(SwarmStep::Admit { .. })), "{spelling}");
        let plan = scenario.plan();
        assert_eq!((&plan.to, &plan.back), (&runs, &runs), "{spelling}");
        assert_eq!(scenario.deployment().changes().next(), None, "{spelling}: there is nothing to block");
    }
}

/// `docker stack deploy` compares the texts.
#[test]
fn an_update_keeps_the_spelling_of_the_specification_in_both_directions() {
    let reference = Reference::parse("nginx:1.27").unwrap();
    let mut config = in_swarm();
    config.images[0] = ConfiguredImage { configured: "nginx:1.27".into(), reference: reference.clone() };
    for spelling in ["nginx:1.27", "docker.io/library/nginx:1.27", "index.docker.io/library/nginx:1.27"] {
        let of = |n: char| format!("{spelling}@{}", digest(n));
        let mut seen = seen('3', '2', SwarmService { image: of('2'), ..half_done() });
        let swarm = seen.swarm.as_mut().expect("it is in a swarm");
        swarm.tasks = vec![task("old", &of('1'), TaskState::Running)];
        seen.containers = [Container { config_image: "nginx:1.27".into(), ..running("a") }].into();
        let view = &mut seen.images[0];
        (view.configured, view.reference, view.from) =
            ("nginx:1.27".into(), reference.clone(), reference.clone());
        let mut scenario = Scenario::of(config.clone());
        assert!(scenario.check(seen).step().is_some(), "{spelling}");
        let plan = scenario.plan();
        assert_eq!((&plan.from, &plan.to, &plan.back), (&of('2'), &of('3'), &of('1')));
    }
}

#[test]
fn an_update_of_a_service_that_names_neither_tag_nor_digest_sets_both() {
    let reference = Reference::parse("nginx").unwrap();
    let mut config = in_swarm();
    config.images[0] = ConfiguredImage { configured: "nginx".into(), reference: reference.clone() };
    let seen = |remote: char| {
        let mut seen = seen_without_digest(remote);
        seen.swarm = Some(Box::new(service("nginx")));
        seen.containers = [Container { config_image: "nginx".into(), ..running("a") }].into();
        let view = &mut seen.images[0];
        (view.configured, view.reference, view.from) = ("nginx".into(), reference.clone(), reference.clone());
        seen
    };
    let mut scenario = Scenario::of(config);
    assert_eq!(scenario.check(seen('1')).step(), None);
    assert!(scenario.at(20).check(seen('2')).step().is_some());
    let (plan, of) = (scenario.plan(), |n: char| format!("docker.io/library/nginx:latest@{}", digest(n)));
    assert_eq!((&plan.to, &plan.back), (&of('2'), &of('1')));
}

/// An operator lifts the block of an image that still runs because its rollback failed.
#[test]
fn existing_tasks_prove_an_image_that_is_already_set() {
    let mut scenario = Scenario::of(in_swarm());
    let durable = &mut scenario.service.durable;
    durable.images.of(IMAGE).unproven = Some(ImageId::from(&digest('2')));
    let source = Reference::parse(&image('1')).ok();
    let proven = crate::service::images::OldImage { id: ImageId::from(&digest('1')), source };
    durable.images.of(IMAGE).proven = Some(proven);
    assert!(scenario.check(seen('2', '2', service(&image('2')))).step().is_some());
    let plan = scenario.plan();
    assert_eq!((&plan.to, &plan.back, plan.known.len()), (&image('2'), &image('1'), 0));
    let labels = crate::model::image_config::ConfigChange::default();
    scenario.input(stepped(SwarmResult::Admitted { labels }));
    assert!(scenario.step().is_some());
    scenario.input(stepped(SwarmResult::Set));
    scenario.observes(Ok(service(&image('2'))));
    scenario.at(10).observes(Ok(service(&image('2'))));
    assert!(scenario.service.durable.deployment.is_none(), "it is over");
    assert!(scenario.service.durable.images.get(IMAGE).unproven.is_none());
    // Other tasks are replaced, so the previous ones do not count.
    let mut scenario = Scenario::of(in_swarm());
    assert!(scenario.check(seen('2', '1', service(&image('1')))).step().is_some());
    assert_eq!(scenario.plan().known.len(), 1);
}

/// An update from 1 to 2, which the swarm has just begun.
fn converging() -> Scenario {
    converging_with(in_swarm())
}

fn converging_with(config: ServiceConfig) -> Scenario {
    let mut scenario = Scenario::of(config);
    assert!(scenario.check(seen('2', '1', service(&image('1')))).step().is_some());
    let labels = crate::model::image_config::ConfigChange::default();
    scenario.input(stepped(SwarmResult::Admitted { labels }));
    assert!(scenario.step().is_some());
    scenario.input(stepped(SwarmResult::Set));
    scenario
}

/// The service after the swarm has replaced its task by one on 2.
fn replaced() -> SwarmService {
    let update = Some(UpdateStatus { state: UpdateState::Completed, message: String::new() });
    let tasks = vec![task("new", &image('2'), TaskState::Running)];
    SwarmService { update, tasks, ..service(&image('2')) }
}

#[test]
fn a_signed_digest_that_a_swarm_service_has_left_waits_for_an_approval_when_it_is_served_again() {
    let update = UpdateConfig { signed_by: vec!["/etc/cosign.pub".into()], ..UpdateConfig::default() };
    let mut scenario = converging_with(ServiceConfig { update: Some(Arc::new(update)), ..in_swarm() });
    scenario.observes(Ok(replaced()));
    scenario.at(10).observes(Ok(replaced()));
    assert_eq!(scenario.entries.last().unwrap().event, Kind::UPDATED);
    assert_eq!(scenario.at(20).check(seen('1', '2', replaced())).step(), None);
    let waiting = scenario.record().waiting.expect("it waits");
    assert_eq!((waiting.gate.as_str(), waiting.clear.as_str()), ("signature", "POST /approve/web"));
    assert!(scenario.at(30).check(seen('3', '2', replaced())).step().is_some(), "another one is not held");
}

#[test]
fn an_image_whose_task_stopped_with_its_node_is_rolled_back_but_not_blocked() {
    for (state, is_blocked) in [(TaskState::Shutdown, false), (TaskState::Failed, true)] {
        let mut scenario = converging();
        let message = "update paused due to failure or early termination of task new".to_owned();
        let update = Some(UpdateStatus { state: UpdateState::Paused, message });
        let tasks = vec![task("new", &image('2'), state)];
        scenario.observes(Ok(SwarmService { update, tasks, ..service(&image('2')) }));
        assert!(matches!(scenario.step(), Some(SwarmStep::Diagnose { task, .. }) if task == "new"));
        let (log, health) = (String::new(), String::new());
        scenario.input(stepped(SwarmResult::Diagnosed { log, health }));
        let back = scenario.step();
        assert!(
            matches!(&back, Some(SwarmStep::Set(SetImage { to, back: true, .. })) if *to == image('1')),
            "{back:?}"
        );
        assert_eq!(scenario.service.durable.images.blocked().next().is_some(), is_blocked, "{state:?}");
        assert_eq!(scenario.service.durable.postponed.is_empty(), is_blocked, "{state:?}");
    }
}

/// An update from 1 to 2 that has failed, and whose rollback the swarm has paused each time.
fn rollback_given_up() -> Scenario {
    let mut scenario = converging();
    let paused = |state: UpdateState, n: char| {
        let update = Some(UpdateStatus { state, message: String::new() });
        let tasks = vec![task("failed", &image(n), TaskState::Failed)];
        SwarmService { update, tasks, ..service(&image(n)) }
    };
    scenario.observes(Ok(paused(UpdateState::Paused, '2')));
    assert!(matches!(scenario.step(), Some(SwarmStep::Diagnose { .. })));
    let (log, health) = (String::new(), String::new());
    scenario.input(stepped(SwarmResult::Diagnosed { log, health }));
    for attempt in 0..ROLLBACK_ATTEMPTS {
        let back = scenario.at(10 * i64::from(attempt)).step();
        assert!(
            matches!(&back, Some(SwarmStep::Set(SetImage { to, back: true, .. })) if *to == image('1')),
            "{attempt}: {back:?}"
        );
        scenario.input(stepped(SwarmResult::Set));
        scenario.observes(Ok(paused(UpdateState::RollbackPaused, '1')));
    }
    assert!(scenario.service.durable.deployment.is_none(), "it is over");
    scenario
}

#[test]
fn a_rollback_that_the_swarm_pauses_is_started_again_four_times() {
    let mut scenario = rollback_given_up();
    let failed = scenario.kinds().into_iter().filter(|kind| *kind == Kind::ROLLBACK_FAILED);
    assert_eq!(failed.count(), 1);
}

#[test]
fn an_image_that_the_nodes_could_not_run_is_not_blamed_although_its_rollback_fails() {
    let mut scenario = converging();
    let message = "update paused due to failure or early termination of task new".to_owned();
    let update = Some(UpdateStatus { state: UpdateState::Paused, message });
    let tasks = vec![task("new", &image('2'), TaskState::Shutdown)];
    scenario.observes(Ok(SwarmService { update, tasks, ..service(&image('2')) }));
    assert!(matches!(scenario.step(), Some(SwarmStep::Diagnose { .. })));
    let (log, health) = (String::new(), String::new());
    scenario.input(stepped(SwarmResult::Diagnosed { log, health }));
    for attempt in 0..ROLLBACK_ATTEMPTS {
        let back = scenario.at(10 * i64::from(attempt)).step();
        assert!(matches!(&back, Some(SwarmStep::Set(SetImage { back: true, .. }))), "{attempt}: {back:?}");
        scenario.input(stepped(SwarmResult::Set));
        let state = UpdateState::RollbackPaused;
        let update = Some(UpdateStatus { state, message: String::new() });
        let tasks = vec![task("failed", &image('1'), TaskState::Failed)];
        scenario.observes(Ok(SwarmService { update, tasks, ..service(&image('1')) }));
    }
    assert!(scenario.service.durable.deployment.is_none(), "it is over");
    let told = scenario.entries.iter().find(|entry| entry.event == Kind::ROLLBACK_FAILED);
    let told = told.expect("a person has to act");
    assert_eq!((told.image.as_deref(), told.new_digest.as_deref()), (None, None), "it is no verdict");
    assert!(told.message.contains("could not be run by the nodes of the swarm, and"), "{}", told.message);
    assert!(scenario.service.durable.images.blocked().next().is_none());
    scenario.at(60).check(seen('2', '1', service(&image('1'))));
    assert!(scenario.service.durable.rollback_failed, "it still needs a person");
    assert_eq!(scenario.step(), None, "it is not tried again at once");
}

/// A service whose update from 1 to 2 somebody else began, and the swarm has paused.
fn half_done() -> SwarmService {
    let message = "update paused due to failure or early termination of task new".to_owned();
    let update = Some(UpdateStatus { state: UpdateState::Paused, message });
    let tasks =
        vec![task("old", &image('1'), TaskState::Running), task("new", &image('2'), TaskState::Failed)];
    SwarmService { update, tasks, previous_image: Some(image('1')), ..service(&image('2')) }
}

#[test]
fn an_update_that_the_swarm_has_paused_is_told_until_it_goes_on() {
    let mut scenario = Scenario::of(in_swarm());
    for second in [0, 20] {
        assert_eq!(scenario.at(second).check(seen('2', '2', half_done())).step(), None);
    }
    assert_eq!(scenario.kinds(), [Kind::ERROR], "it is told once");
    let told = scenario.record().errored.expect("it is an error");
    assert!(told.contains("update paused due to failure or early termination of task new"), "{told}");
    assert!(told.ends_with("or go back with `docker service rollback shop_web`"), "{told}");
    assert_eq!(scenario.at(40).check(seen('2', '2', replaced())).step(), None);
    assert_eq!(scenario.kinds(), [Kind::RECOVERED]);
}

#[test]
fn an_update_goes_back_to_the_image_that_all_tasks_of_a_paused_one_still_run() {
    let mut scenario = Scenario::of(in_swarm());
    assert!(matches!(scenario.check(seen('3', '2', half_done())).step(), Some(SwarmStep::Admit { .. })));
    let plan = scenario.plan();
    assert_eq!((&plan.from, &plan.to, &plan.back), (&image('2'), &image('3'), &image('1')));
    let change = scenario.deployment().changes().next().expect("it changes the image");
    assert_eq!(change.old_digest, Some(digest('1')));
    // Some tasks run the newer one: nothing says that it is the worse.
    let mut mixed = half_done();
    mixed.tasks.push(task("other", &image('2'), TaskState::Running));
    for swarm in [mixed, SwarmService { update: None, ..half_done() }] {
        let mut scenario = Scenario::of(in_swarm());
        assert!(scenario.check(seen('3', '2', swarm)).step().is_some());
        assert_eq!(scenario.plan().back, image('2'));
    }
}

/// What a check sees of a service whose specification names no digest.
fn seen_without_digest(remote: char) -> Observation {
    let swarm = Some(Box::new(service(IMAGE)));
    Observation { swarm, ..observed(remote, &[local("", &[])], &[&running("a")]) }
}

impl Scenario {
    /// The image that is about to be deployed fails, and is diagnosed.
    fn fails_in_swarm(&mut self, new: char) {
        let labels = crate::model::image_config::ConfigChange::default();
        self.input(stepped(SwarmResult::Admitted { labels }));
        assert!(matches!(self.step(), Some(SwarmStep::Set(SetImage { back: false, .. }))));
        self.input(stepped(SwarmResult::Set));
        let update = Some(UpdateStatus { state: UpdateState::Paused, message: String::new() });
        let tasks = vec![task("new", &image(new), TaskState::Failed)];
        self.observes(Ok(SwarmService { update, tasks, ..service(&image(new)) }));
        assert!(matches!(self.step(), Some(SwarmStep::Diagnose { .. })));
        let (log, health) = (String::new(), String::new());
        self.input(stepped(SwarmResult::Diagnosed { log, health }));
    }
}

#[test]
fn a_service_without_a_digest_goes_back_to_the_digest_that_its_tag_had_and_not_to_the_tag() {
    let mut scenario = Scenario::of(in_swarm());
    assert_eq!(scenario.check(seen_without_digest('1')).step(), None);
    assert_eq!(scenario.kinds(), [Kind::NOT_FOUND]);
    assert!(matches!(scenario.at(20).check(seen_without_digest('2')).step(), Some(SwarmStep::Admit { .. })));
    let plan = scenario.plan();
    assert_eq!((&*plan.from, &plan.to, &plan.back), (IMAGE, &image('2'), &image('1')));
    scenario.fails_in_swarm('2');
    let back = scenario.step();
    assert!(
        matches!(&back, Some(SwarmStep::Set(SetImage { to, back: true, .. })) if *to == image('1')),
        "the tag alone would bring the image that failed: {back:?}"
    );
    scenario.input(stepped(SwarmResult::Set));
    scenario.observes(Ok(service(&image('1'))));
    scenario.at(40).observes(Ok(service(&image('1'))));
    let entry = scenario.entries.iter().find(|entry| entry.event == Kind::ROLLED_BACK).expect("it is told");
    assert_eq!(entry.old_digest, Some(digest('1').to_string()), "{entry:?}");
    scenario.at(60).check(seen('2', '1', service(&image('1'))));
    let record = scenario.record();
    assert_eq!((record.not_found, record.blocked), (None, Some(digest('2').to_string())));
}

#[test]
fn a_redeploy_of_a_service_without_a_digest_that_fails_has_no_image_to_go_back_to() {
    let mut scenario = Scenario::of(in_swarm());
    assert_eq!(scenario.check(seen_without_digest('1')).step(), None);
    assert!(matches!(scenario.redeploy(seen_without_digest('1')), Some(SwarmStep::Admit { .. })));
    scenario.fails_in_swarm('1');
    assert_eq!(scenario.step(), None, "the tag would bring the image that failed");
    assert!(scenario.service.durable.deployment.is_none());
    let told = scenario.entries.iter().find(|entry| entry.event == Kind::ROLLBACK_FAILED);
    let told = told.expect("a person has to act");
    assert!(told.message.contains("there is no earlier image"), "{told:?}");
}

/// An update that is paused because a task on this engine has failed.
fn failed_here() -> SwarmService {
    let update = Some(UpdateStatus { state: UpdateState::Paused, message: String::new() });
    let failed = Task { local_container: Some("c".into()), ..task("new", &image('2'), TaskState::Failed) };
    SwarmService { update, tasks: vec![failed], ..service(&image('2')) }
}

/// A restart of the engine ends the tasks on it. One answer that is late ends none, nor does a stream that is refused for good.
#[test]
fn only_a_restart_of_the_engine_excuses_the_image_of_a_task_that_failed_on_it() {
    for (is_gap, is_back) in [(false, false), (true, true), (true, false)] {
        let mut scenario = converging();
        scenario.at(1).observes(Err(SwarmError::Unavailable("it answered 503".into())));
        if is_gap {
            scenario.engine_gap();
            scenario.at(3).observes(Ok(failed_here()));
            let phase = &scenario.deployment().phase;
            assert!(matches!(phase, Phase::Converge { .. }), "it is not known yet: {phase:?}");
        }
        if is_back {
            scenario.at(4).engine_back();
        }
        scenario.at(60).observes(Ok(failed_here()));
        let phase = &scenario.deployment().phase;
        assert!(matches!(phase, Phase::Diagnose(_)), "{phase:?}");
        let durable = &scenario.service.durable;
        assert_eq!(durable.images.blocked().next().is_some(), !is_back, "{is_gap} {is_back}");
        assert_eq!(durable.postponed.is_empty(), !is_back, "{is_gap} {is_back}");
    }
}

#[test]
fn an_agent_that_starts_while_its_engine_is_away_learns_first_whether_the_engine_was_restarted() {
    for is_restart in [true, false] {
        let mut scenario = converging();
        let (config, durable) = (scenario.service.config.clone(), scenario.service.durable().clone());
        scenario.at(5);
        scenario.service =
            Service::new(config, durable, boot_of("one", "one"), StartReason::Start, scenario.now).0;
        scenario.observes(Err(SwarmError::Unavailable("connection refused".into())));
        scenario.at(7).observes(Ok(failed_here()));
        let phase = &scenario.deployment().phase;
        assert!(matches!(phase, Phase::Converge { .. }), "it is not known yet: {phase:?}");
        scenario.at(8);
        if is_restart {
            scenario.engine_back();
        } else {
            scenario.reconnected();
        }
        scenario.at(9).observes(Ok(failed_here()));
        let phase = &scenario.deployment().phase;
        assert!(matches!(phase, Phase::Diagnose(_)), "{phase:?}");
        let durable = &scenario.service.durable;
        assert_eq!(durable.images.blocked().next().is_some(), !is_restart);
        assert_eq!(durable.postponed.is_empty(), !is_restart);
    }
}

#[test]
fn a_read_that_the_managers_refuse_is_repeated_and_only_a_removed_service_ends_its_update() {
    let mut scenario = converging();
    scenario.at(1).observes(Err(SwarmError::Refused("rpc error: something new".into())));
    assert!(scenario.record().errored.expect("it is an error").contains("something new"));
    scenario.at(2).observes(Ok(replaced()));
    scenario.at(12).observes(Ok(replaced()));
    assert!(scenario.service.durable.deployment.is_none());
    assert!(scenario.kinds().contains(&Kind::UPDATED));
    let mut scenario = converging();
    scenario.at(1).observes(Err(SwarmError::NoService("shop_web".into())));
    assert!(scenario.service.durable.deployment.is_none());
    assert!(scenario.record().errored.expect("it is an error").contains("no service"));
}

/// An update in progress restarts its wait, and a clock change does not affect it.
#[test]
fn an_outage_resets_the_time_the_tasks_have() {
    let mut scenario = converging();
    let done_since = |scenario: &Scenario| scenario.deployment().phase.watch().unwrap().done_since;
    let done = replaced();
    scenario.observes(Ok(done.clone()));
    assert_eq!(done_since(&scenario), scenario.seconds(0));
    scenario.service.shift(SignedDuration::from_secs(60));
    assert_eq!(done_since(&scenario), scenario.seconds(60));
    let unchanged_since = scenario.deployment().phase.watch().unwrap().unchanged_since;
    assert_eq!(unchanged_since, scenario.seconds(60));
    for error in [SwarmError::Unavailable("no".into()), SwarmError::Unusable("locked".into())] {
        scenario.at(5).observes(Err(error));
        assert_eq!(done_since(&scenario), None);
        scenario.at(6).observes(Ok(done.clone()));
        assert_eq!(done_since(&scenario), scenario.seconds(6));
    }
}

#[test]
fn a_compose_deployment_finishes_after_its_service_became_a_swarm_service() {
    let scenario = on_probation();
    let durable = scenario.service.durable().clone();
    let config = ServiceConfig { compose_files: Vec::new(), compose_project: None, ..in_swarm() };
    let (service, _) =
        Service::new(Arc::new(config), durable, boot_of("one", "one"), StartReason::Reload, scenario.now);
    let mut scenario = Scenario { service, ..scenario };
    let look = scenario.service.next(scenario.now);
    let Some(Action::Inspect { members, .. }) = look else { panic!("{look:?}") };
    assert_eq!(members, Members::Project("web".into()));
}

/// The row of an update from 1 to 2 in this phase, as versions wrote it that stored such updates apart from deployments.
fn earlier_row(phase: &serde_json::Value) -> Durable {
    let at = "2026-01-01T00:00:00Z";
    let old = json!({"id": digest('1'), "source": image('1')});
    let change = json!({
        "configured": IMAGE, "reference": IMAGE, "old_digest": digest('1'), "old": old, "digest": digest('2'),
    });
    let plan = json!({
        "cause": "update", "service": "shop_web", "change": change, "from": image('1'), "to": image('2'),
        "back": image('1'), "force": null, "known": ["old"], "grace": {"secs": 10, "nanos": 0},
    });
    let outage = json!({"shop_web": {"old": [{"from": at}]}});
    let rollout = json!({
        "plan": plan, "phase": phase, "begun": at, "since": at, "attempt": 2, "outage": outage,
        "labels": {"old": {}, "new": {"version": "2.0"}},
    });
    serde_json::from_value(json!({"deployment": null, "swarm": rollout})).unwrap()
}

#[test]
fn an_update_of_an_earlier_version_is_read_and_continued_at_its_step() {
    let failure = json!({"reason": "it ended", "container_id": "", "container": "shop_web.1", "image": IMAGE, "facts": ""});
    let failed = json!({"failure": failure, "output": "last words", "task": "new", "by_node": true});
    let watch =
        json!({"steady_since": null, "steady": [], "excused": null, "lost": ["n2"], "rejected": ["new"]});
    let with = |step: &str, more: &serde_json::Value| {
        let mut phase = json!({"step": step});
        phase.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        phase
    };
    let steps = [
        (with("admit", &json!({})), "admit", "Some(Admit"),
        (with("update", &json!({})), "update", "Some(Set"),
        (with("converge", &json!({"watch": watch})), "converge", "None"),
        (with("diagnose", &failed), "diagnose", "Some(Diagnose { task: \"new\""),
        (with("rollback", &failed), "rollback", "Some(Set"),
        (with("verify_rollback", &json!({"failed": failed, "watch": watch})), "verify_rollback", "None"),
    ];
    for (phase, name, step) in steps {
        let durable = earlier_row(&phase);
        assert_eq!(durable.step(), Some((name, 2)), "{phase}");
        let again = serde_json::to_value(&durable).unwrap();
        assert_eq!(serde_json::from_value::<Durable>(again).unwrap(), durable, "{phase}");
        let now = Scenario::of(in_swarm()).now;
        let boot = boot_of("one", "one");
        let (service, entries) = Service::new(Arc::new(in_swarm()), durable, boot, StartReason::Start, now);
        assert_eq!(entries[0].event, Kind::RESUMED, "{phase}");
        let mut scenario = Scenario { service, ..Scenario::of(in_swarm()) };
        let next = format!("{:?}", scenario.step());
        assert!(next.starts_with(step), "{phase}: {next}");
        let deployment = scenario.deployment();
        assert_eq!(deployment.labels[IMAGE].new.version.as_deref(), Some("2.0"), "{phase}");
        let plan = scenario.plan();
        assert_eq!((&plan.from, &plan.to, &plan.back), (&image('1'), &image('2'), &image('1')), "{phase}");
        assert_eq!((plan.service.as_str(), plan.known.len()), ("shop_web", 1), "{phase}");
        if let Phase::VerifyTasks { failed, watch } = &deployment.phase {
            assert_eq!((failed.by_node, failed.task.as_str(), watch.rejected.len()), (true, "new", 1));
        }
    }
}

#[test]
fn a_service_that_the_agent_needs_is_not_updated_by_it() {
    let mut scenario = Scenario::of(in_swarm());
    let needed = Some(("shop_web.1".to_owned(), Need::ForEngine));
    let seen = Observation { needed, ..seen('2', '1', service(&image('1'))) };
    assert_eq!(scenario.check(seen).step(), None);
    let told = scenario.record().errored.expect("it says why");
    assert!(told.contains("the swarm would stop shop_web.1, through which the agent reaches"), "{told}");
    assert!(told.ends_with("`docker service update --image localhost:5000/web:1 shop_web`"), "{told}");
}

#[test]
fn a_redeploy_does_not_replace_the_image_of_a_service_that_the_agent_needs() {
    for auto_update in [true, false] {
        let mut scenario = Scenario::of(ServiceConfig { auto_update, ..in_swarm() });
        let needed = Some(("shop_web.1".to_owned(), Need::ToRun));
        let stale = Observation { needed, ..seen('2', '1', service(&image('1'))) };
        assert_eq!(scenario.redeploy(stale), None, "{auto_update}");
        let failed = |entry: &&AuditEntry| entry.event == Kind::FORCE_REDEPLOY_FAILED;
        let told = format!("{:?}", scenario.entries.iter().find(failed).expect("it is answered"));
        assert!(told.contains("the swarm would stop shop_web.1, in which the agent runs"), "{told}");
        // Its image stays.
        assert!(scenario.at(20).redeploy(seen('1', '1', service(&image('1')))).is_some(), "{auto_update}");
    }
}

impl Scenario {
    fn is_being_checked(&mut self) -> bool {
        matches!(self.act(), Some(Action::Check { .. }))
    }
}

fn unproven_without_alternative() -> Scenario {
    let mut scenario = Scenario::of(in_swarm());
    scenario.service.durable.images.of(IMAGE).unproven = Some(ImageId::from(&digest('2')));
    scenario
}

#[test]
fn a_running_image_that_fails_again_and_has_no_alternative_waits_for_the_next_cycle_and_is_told_once() {
    let update = Some(UpdateStatus { state: UpdateState::Paused, message: "paused".into() });
    let paused = || SwarmService { update: update.clone(), ..service(&image('2')) };
    let mut scenario = unproven_without_alternative();
    for second in [0, 20] {
        assert!(scenario.at(second).check(seen('2', '2', service(&image('2')))).step().is_some());
        assert_eq!(scenario.deployment().changes().next(), None);
        let labels = crate::model::image_config::ConfigChange::default();
        scenario.input(stepped(SwarmResult::Admitted { labels }));
        assert!(scenario.step().is_some());
        scenario.input(stepped(SwarmResult::Set));
        scenario.at(second + 1).observes(Ok(paused()));
        assert!(matches!(scenario.step(), Some(SwarmStep::Diagnose { .. })));
        let (log, health) = (String::new(), String::new());
        scenario.input(stepped(SwarmResult::Diagnosed { log, health }));
        assert!(scenario.service.durable.deployment.is_none());
        assert!(!scenario.is_being_checked(), "the next cycle tries again");
    }
    let told: Vec<Kind> = scenario.kinds();
    assert_eq!(told, [Kind::ERROR], "{:?}", scenario.entries);
    assert!(scenario.record().errored.unwrap().contains("is not proven, and failed again"));
    assert!(scenario.service.durable.images.blocked().next().is_none());
}

#[test]
fn a_running_image_that_the_nodes_cannot_run_again_is_postponed() {
    let mut scenario = unproven_without_alternative();
    assert!(scenario.check(seen('2', '2', service(&image('2')))).step().is_some());
    let labels = crate::model::image_config::ConfigChange::default();
    scenario.input(stepped(SwarmResult::Admitted { labels }));
    assert!(scenario.step().is_some());
    scenario.input(stepped(SwarmResult::Set));
    let rejected = Task { error: "no such image".into(), ..task("a", &image('2'), TaskState::Rejected) };
    let update = Some(UpdateStatus { state: UpdateState::Paused, message: String::new() });
    let tasks = vec![rejected];
    scenario.observes(Ok(SwarmService { update, tasks, ..service(&image('2')) }));
    let postponed = scenario.service.durable.postponed.iter().map(|one| one.digest.clone());
    assert_eq!(postponed.collect::<Vec<_>>(), [digest('2')]);
}

#[test]
fn a_redeploy_that_somebody_breaks_off_leaves_a_proven_image_proven() {
    let mut scenario = Scenario::of(in_swarm());
    let proven = crate::service::images::OldImage {
        id: ImageId::from(&digest('1')),
        source: Reference::parse(&image('1')).ok(),
    };
    scenario.service.durable.images.of(IMAGE).proven = Some(proven);
    assert!(matches!(scenario.redeploy(seen('1', '1', service(&image('1')))), Some(SwarmStep::Admit { .. })));
    let labels = crate::model::image_config::ConfigChange::default();
    scenario.input(stepped(SwarmResult::Admitted { labels }));
    assert!(scenario.step().is_some());
    scenario.input(stepped(SwarmResult::Set));
    scenario.at(1).observes(Ok(service(&image('3'))));
    assert!(scenario.service.durable.deployment.is_none());
    assert!(scenario.service.durable.images.get(IMAGE).unproven.is_none());
}

#[test]
fn a_service_that_is_not_polled_tells_once_what_its_redeploy_waits_for() {
    let mut scenario = Scenario::of(ServiceConfig { auto_update: false, ..in_swarm() });
    assert!(matches!(scenario.redeploy(seen('2', '1', service(&image('1')))), Some(SwarmStep::Admit { .. })));
    let labels = crate::model::image_config::ConfigChange::default();
    scenario.input(stepped(SwarmResult::Admitted { labels }));
    assert!(scenario.step().is_some());
    scenario.input(stepped(SwarmResult::Set));
    let mut pending = task("new", &image('2'), TaskState::Pending);
    (pending.should_run, pending.error) = (true, "no suitable node".into());
    let waits = SwarmService { tasks: vec![pending], ..service(&image('2')) };
    for second in 1..10 {
        scenario.at(second).observes(Ok(waits.clone()));
    }
    assert_eq!(scenario.kinds().iter().filter(|told| **told == Kind::ERROR).count(), 1);
    scenario.at(20).observes(Ok(replaced()));
    scenario.at(30).observes(Ok(replaced()));
    assert!(scenario.service.durable.deployment.is_none());
    let told = scenario.kinds();
    assert!(told.contains(&Kind::RECOVERED) && told.contains(&Kind::UPDATED), "{told:?}");
    assert!(!told.contains(&Kind::ERROR), "{told:?}");
    assert_eq!(scenario.record().errored, None);
}
