//! Stories of a swarm service: what a person asks, and what is known of it when an update begins.

use super::*;
use crate::model::SwarmError;
use crate::model::swarm::{SwarmMode, SwarmService, Task, TaskState, UpdateState, UpdateStatus};
use crate::service::swarm::plan::{SwarmPlan, SwarmResult, SwarmStep};

fn in_swarm() -> ServiceConfig {
    ServiceConfig { swarm_service: Some("shop_web".into()), auto_heal: false, ..config() }
}

fn task(id: &str, image: &str, state: TaskState) -> Task {
    Task {
        id: id.into(),
        name: "shop_web.1".into(),
        node: "n1".into(),
        image: image.into(),
        is_wanted: state == TaskState::Running,
        state,
        since: None,
        error: String::new(),
        exit_code: None,
        local_container: None,
    }
}

/// One task that runs `image`.
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
    }
}

fn image(n: char) -> String {
    format!("{IMAGE}@{}", digest(n))
}

fn seen(remote: char, runs: char, swarm: SwarmService) -> Observation {
    let local = LocalImage { id: ImageId::from(&digest(runs)), ..local("", &[runs]) };
    Observation { swarm: Some(Box::new(swarm)), ..observed(remote, &[local], &[&running("a")]) }
}

impl Story {
    /// The step of its update that comes next.
    fn step(&mut self) -> Option<SwarmStep> {
        loop {
            match self.act() {
                Some(Action::LookAtSwarm { .. }) => self.service.inspecting = false,
                Some(Action::Swarm(step)) => return Some(step),
                None => return None,
                other => panic!("{other:?}"),
            }
        }
    }

    fn redeploy(&mut self, seen: Observation) -> Option<SwarmStep> {
        let (_, said) = self.service.ask(ServiceRequest::Redeploy, self.now);
        self.said.extend(said);
        self.check(seen).step()
    }

    fn plan(&self) -> &SwarmPlan {
        &self.service.durable.swarm.as_ref().expect("an update is under way").plan
    }

    fn looks(&mut self, result: Result<SwarmService, SwarmError>) -> &mut Self {
        let generation = self.service.inspection_generation();
        self.input(Input::SwarmSeen { generation, result })
    }
}

#[test]
fn a_redeploy_while_somebody_else_updates_the_service_is_answered() {
    let update =
        Some(UpdateStatus { state: UpdateState::Updating, message: String::new(), completed_at: None });
    let busy = || SwarmService { update: update.clone(), ..service(&image('1')) };
    let mut story = Story::of(in_swarm());
    assert_eq!(story.redeploy(seen('1', '1', busy())), None);
    assert_eq!(story.said.last().unwrap().event, Kind::FORCE_REDEPLOY_FAILED);
    assert!(format!("{:?}", story.said.last()).contains("try again when it has ended"));
    assert_eq!(story.record().errored, None, "an answer is all there is to say");
    // Nobody asks: it is looked at again soon.
    let mut story = Story::of(in_swarm());
    assert_eq!(story.check(seen('2', '1', busy())).step(), None);
    assert!(story.record().errored.unwrap().contains("the next check looks again"));
    assert_eq!(story.kinds().iter().filter(|kind| **kind == Kind::FORCE_REDEPLOY_FAILED).count(), 0);
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
        let mut story = Story::of(in_swarm());
        let set = story.redeploy(change(seen('1', '1', service(&image('1')))));
        let Some(SwarmStep::Set { from, to, force, .. }) = set else { panic!("{set:?}") };
        assert_eq!((from, to, force), (image('1'), image('1'), Some(5)));
    }
}

#[test]
fn a_redeploy_of_what_runs_keeps_the_spelling_of_the_specification_and_can_block_nothing() {
    let reference = Reference::parse("nginx:1.27").unwrap();
    let mut config = in_swarm();
    config.images[0] = ConfiguredImage { configured: "nginx:1.27".into(), reference: reference.clone() };
    for spelling in ["nginx:1.27", "docker.io/library/nginx:1.27"] {
        let runs = format!("{spelling}@{}", digest('1'));
        let mut seen = seen('1', '1', service(&runs));
        let view = &mut seen.images[0];
        (view.configured, view.reference, view.from) =
            ("nginx:1.27".into(), reference.clone(), reference.clone());
        let mut story = Story::of(config.clone());
        assert!(matches!(story.redeploy(seen), Some(SwarmStep::Admit { .. })), "{spelling}");
        let plan = story.plan();
        assert_eq!((&plan.to, &plan.back, plan.is_reversible()), (&runs, &runs, false), "{spelling}");
    }
}

/// A person lifts the block of an image that runs since its rollback failed.
#[test]
fn the_tasks_of_an_image_that_is_set_already_prove_it() {
    let mut story = Story::of(in_swarm());
    let durable = &mut story.service.durable;
    durable.unproven.insert(IMAGE.into(), ImageId::from(&digest('2')));
    let source = Reference::parse(&image('1')).ok();
    let proven = crate::service::action::OldImage { id: ImageId::from(&digest('1')), source };
    durable.proven.insert(IMAGE.into(), proven);
    assert!(story.check(seen('2', '2', service(&image('2')))).step().is_some());
    let plan = story.plan();
    assert_eq!((&plan.to, &plan.back, plan.known.len()), (&image('2'), &image('1'), 0));
    let labels = crate::model::image::LabelChange::default();
    story.input(Input::SwarmStepped(SwarmResult::Admitted { labels }));
    assert!(story.step().is_some());
    story.input(Input::SwarmStepped(SwarmResult::Set));
    story.looks(Ok(service(&image('2'))));
    story.at(10).looks(Ok(service(&image('2'))));
    assert!(story.service.durable.swarm.is_none(), "it is over");
    assert!(story.service.durable.unproven.is_empty());
    // Others are replaced, so that those before do not count.
    let mut story = Story::of(in_swarm());
    assert!(story.check(seen('2', '1', service(&image('1')))).step().is_some());
    assert_eq!(story.plan().known.len(), 1);
}

/// An update from 1 to 2, which the swarm has just begun.
fn converging() -> Story {
    let mut story = Story::of(in_swarm());
    assert!(story.check(seen('2', '1', service(&image('1')))).step().is_some());
    let labels = crate::model::image::LabelChange::default();
    story.input(Input::SwarmStepped(SwarmResult::Admitted { labels }));
    assert!(story.step().is_some());
    story.input(Input::SwarmStepped(SwarmResult::Set));
    story
}

#[test]
fn an_image_whose_task_was_stopped_with_its_node_is_rolled_back_and_not_blocked() {
    for (state, is_blocked) in [(TaskState::Shutdown, false), (TaskState::Failed, true)] {
        let mut story = converging();
        let message = "update paused due to failure or early termination of task new".to_owned();
        let update = Some(UpdateStatus { state: UpdateState::Paused, message, completed_at: None });
        let tasks = vec![task("new", &image('2'), state)];
        story.looks(Ok(SwarmService { update, tasks, ..service(&image('2')) }));
        assert!(matches!(story.step(), Some(SwarmStep::Diagnose { task, .. }) if task == "new"));
        let (log, health) = (String::new(), String::new());
        story.input(Input::SwarmStepped(SwarmResult::Diagnosed { log, health }));
        let back = story.step();
        assert!(
            matches!(&back, Some(SwarmStep::Set { to, back: true, .. }) if *to == image('1')),
            "{back:?}"
        );
        assert_eq!(!story.service.durable.blocked.is_empty(), is_blocked, "{state:?}");
        assert_eq!(story.service.durable.postponed.is_none(), is_blocked, "{state:?}");
    }
}

/// What is under way begins its wait anew, and a clock that is set changes none.
#[test]
fn an_outage_gives_the_tasks_their_time_again() {
    let mut story = converging();
    let done_since = |story: &Story| {
        let rollout = story.service.durable.swarm.as_ref().unwrap();
        rollout.phase.watch().unwrap().done_since
    };
    let update =
        Some(UpdateStatus { state: UpdateState::Completed, message: String::new(), completed_at: None });
    let tasks = vec![task("new", &image('2'), TaskState::Running)];
    let done = SwarmService { update, tasks, ..service(&image('2')) };
    story.looks(Ok(done.clone()));
    assert_eq!(done_since(&story), story.seconds(0));
    story.service.shift(SignedDuration::from_secs(60));
    assert_eq!(done_since(&story), story.seconds(60));
    for error in [SwarmError::Away("no".into()), SwarmError::Unusable("locked".into())] {
        story.at(5).looks(Err(error));
        assert_eq!(done_since(&story), None);
        story.at(6).looks(Ok(done.clone()));
        assert_eq!(done_since(&story), story.seconds(6));
    }
}

#[test]
fn a_compose_deployment_ends_as_one_when_its_service_becomes_a_swarm_service() {
    let story = on_probation();
    let durable = story.service.durable().clone();
    let config = ServiceConfig { compose_files: Vec::new(), compose_project: None, ..in_swarm() };
    let (service, _) =
        Service::new(Arc::new(config), durable, boot_of("one", "one"), StartReason::Reload, story.now);
    let mut story = Story { service, ..story };
    match story.at(2).act() {
        Some(Action::Step(Step::Start { .. })) => {
            let containers = vec![running("b")];
            let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers };
            story.input(Input::Stepped(up));
        }
        other => panic!("{other:?}"),
    }
    let look = story.service.next(story.now);
    let Some(Action::Inspect { members, .. }) = look else { panic!("{look:?}") };
    assert_eq!(members, Members::Project("web".into()));
}
