//! Runs with several services in one compose project, and with configuration changes during deployments.

use std::collections::{BTreeSet, HashSet};

use evenkeel_agent::model::Members;
use evenkeel_agent::ports::Engine as _;
use tokio::time::{Instant, sleep};

use super::run::step::Step;
use super::run::{Flags, Simulation};
use super::world::Act;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a service of the project `shop`.
fn named(name: &str, image: &str) -> ServiceConfig {
    ServiceConfig { name: name.into(), ..(*config(&[image])).clone() }
}

/// Sets up two compose services whose images have this behaviour.
fn two(behaviour: Behaviour) -> FakeWorld {
    let fake = two_down(behaviour);
    fake.operator_up();
    fake
}

/// The same, without containers.
fn two_down(behaviour: Behaviour) -> FakeWorld {
    let fake = new_world();
    for (service, text) in TWO {
        fake.compose_service(service, &reference(text));
        fake.add_image(&reference(text), &old_name(service), behaviour, true);
        fake.push(&reference(text), &old_name(service), behaviour);
    }
    fake
}

/// Running services, and the changes that a reload makes to them.
struct Fixture {
    fake: FakeWorld,
    world: Arc<World>,
    placement: Placement,
    tasks: TaskSet,
}

impl Fixture {
    async fn new(fake: &FakeWorld) -> Self {
        let (world, tasks) = (world(fake, Arc::new(fake.clone())).await, TaskSet::new());
        let placement = Placement::new(world.clock.clone(), tasks.clone(), CancellationToken::new());
        Self { fake: fake.clone(), world, placement, tasks }
    }

    async fn add(&self, config: ServiceConfig) -> Handle {
        let durable = self.fake.durable(&state_key(&config.name)).await;
        let (member, handle) =
            Member::new(Arc::new(config), durable, self.world.clone(), StartReason::Reload);
        self.placement.place(vec![member]);
        handle
    }

    fn check(&self, handle: &Handle) {
        let (done, _) = oneshot::channel();
        let cycle = Cycle::new(self.world.registry.clone(), Urgency::Routine);
        assert!(handle.inbox.send(Command::Check(cycle, done)).is_ok(), "the service is running");
    }

    async fn reconfigure(&self, handle: &Handle, config: ServiceConfig) {
        let (reply, answer) = oneshot::channel();
        assert!(handle.inbox.send(Command::Reconfigure(Arc::new(config), reply)).is_ok());
        answer.await.expect("it applies the configuration");
    }

    /// Retires the service. Returns whether it has a deployment to finish first.
    async fn retire(&self, handle: &Handle) -> bool {
        let (reply, answer) = oneshot::channel();
        assert!(handle.inbox.send(Command::Retire(reply)).is_ok());
        answer.await.expect("an answer")
    }

    /// Waits until the new image of the compose service is on probation.
    async fn on_probation(&self, service: &str, image: &str) {
        self.until(&format!("{image} is on probation"), || self.fake.running(service) == [id_of(image)])
            .await;
        sleep(SECOND).await;
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < 2 * LONG, "{what}: not within {:?}", 2 * LONG);
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn end(self) {
        assert_eq!(self.fake.violations(), Vec::<String>::new());
        self.tasks.finish(Duration::ZERO).await;
    }
}

fn recorded(fake: &FakeWorld, kind: &Kind) -> Vec<String> {
    let of_kind = fake.entries().into_iter().filter(|entry| entry.event == *kind);
    of_kind.map(|entry| format!("{} {}", entry.service, entry.container.unwrap_or_default())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_container_is_healed_by_one_service_of_its_project_and_recorded_once() {
    let fake = two(Behaviour::Unhealthy);
    let heals = |name: &str, image: &str| Arc::new(ServiceConfig { auto_heal: true, ..named(name, image) });
    let configs = [heals("web", WEB), heals("api", API)];
    assert!(run_agent_with(&fake, &configs, Duration::from_mins(4), Script::Poll).await);
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert_eq!(fake.restarts(), 2, "each once, within its cooldown of 5 minutes");
    for kind in [Kind::UNHEALTHY, Kind::RESTARTING] {
        let recorded: BTreeSet<String> = recorded(&fake, &kind).into_iter().collect();
        assert_eq!(recorded, ["api p-api-1".to_owned(), "web p-web-1".to_owned()].into(), "{kind:?}");
    }
    assert_eq!(fake.entries().iter().filter(|entry| entry.event == Kind::RESTARTING).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_healed_or_deployed_by_one_service_while_another_deploys_wherever_the_agent_is_killed() {
    for at in every(5, 0).map(|n| n * 5) {
        let fake = two(Behaviour::Good);
        fake.push(&reference(WEB), "v2", Behaviour::Flapping);
        fake.push(&reference(API), "api2", Behaviour::Good);
        let all = |name: &str, image: &str| {
            let auto = ServiceConfig { auto_heal: true, auto_start: true, ..named(name, image) };
            Arc::new(ServiceConfig { heal_cooldown: 5 * SECOND, ..auto })
        };
        let configs = [all("web", WEB), all("api", API)];
        fake.crash_at(Some(at));
        let survived = run_agent_with(&fake, &configs, 2 * LONG, Script::Poll).await;
        fake.crash_at(None);
        if !survived {
            assert!(run_agent_with(&fake, &configs, 2 * LONG, Script::Poll).await);
        }
        let what = format!("killed at call {at}");
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(fake.running("web"), [id_of("web v1")], "{what}");
        assert_eq!(fake.running("api"), [id_of("api2")], "{what}");
        assert_eq!(fake.durable(&state_key("web")).await.images.blocked().count(), 1, "{what}");
        assert_eq!(fake.restarts(), 0, "{what}: the effects of a deployment are not healed");
        if survived {
            assert!(at > 50, "the crashes did not reach the deployments");
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_moves_to_another_project_finishes_its_deployment_first() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    let fixture = Fixture::new(&fake).await;
    let web = fixture.add(named("web", WEB)).await;
    // A service of the other project, to deploy there later.
    let other =
        fixture.add(ServiceConfig { compose_project: Some("other".into()), ..named("other", API) }).await;
    fixture.check(&web);
    fixture.on_probation("web", "v2").await;
    let moved = ServiceConfig { compose_project: Some("other".into()), ..named("web", WEB) };
    fixture.reconfigure(&web, moved).await;
    fixture.until("the deployment is resumed", || recorded(&fake, &Kind::RESUMED).len() == 1).await;
    fixture.until("the update ends", || recorded(&fake, &Kind::UPDATED).len() == 1).await;
    assert_eq!(fake.projects_brought_up(), BTreeSet::from(["shop".to_owned()]));
    sleep(5 * SECOND).await;
    fake.forget_queries();
    // It belongs to the other project now, and its handle is still valid.
    fixture.check(&web);
    sleep(5 * SECOND).await;
    assert_eq!(fake.queries(), HashSet::from([Members::Project("other".into())]));
    fake.push(&reference(WEB), "v3", Behaviour::Good);
    fixture.check(&web);
    fixture.on_probation("web", "v3").await;
    fake.push(&reference(API), "api2", Behaviour::Good);
    fixture.check(&other);
    fixture.until("both are updated", || recorded(&fake, &Kind::UPDATED).len() == 3).await;
    let both = BTreeSet::from(["shop".to_owned(), "other".to_owned()]);
    assert_eq!(fake.projects_brought_up(), both);
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_a_service_of_another_project_goes_back_to_is_not_removed() {
    let fake = two(Behaviour::Good);
    let fixture = Fixture::new(&fake).await;
    let web = fixture.add(ServiceConfig { keep_images: 1, ..named("web", WEB) }).await;
    let other = ServiceConfig {
        compose_project: Some("other".into()),
        auto_update: false,
        keep_images: 3,
        ..named("other", WEB)
    };
    let proven = serde_json::json!({"id": id_of("v2"), "proven": true});
    let durable = serde_json::json!({"images": {(WEB): {"deployed": [proven]}}});
    let durable = serde_json::from_value(durable).expect("a state");
    let (member, _handle) = Member::new(Arc::new(other), durable, fixture.world.clone(), StartReason::Reload);
    fixture.placement.place(vec![member]);
    for (nr, version) in ["v2", "v3", "v4"].into_iter().enumerate() {
        fake.push(&reference(WEB), version, Behaviour::Good);
        fixture.check(&web);
        fixture.until(version, || recorded(&fake, &Kind::UPDATED).len() == nr + 1).await;
        sleep(60 * SECOND).await;
    }
    let engine = fixture.world.engine.clone();
    let kept = engine.image(&id_of("v2").0).await.expect("it answers");
    assert!(kept.is_some(), "the other service has proven it");
    let removed = engine.image(&id_of("v3").0).await.expect("it answers");
    assert!(removed.is_none(), "nobody needs it");
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_service_finishes_its_deployment_while_the_other_services_wait() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Unhealthy);
    let fixture = Fixture::new(&fake).await;
    let web = fixture.add(named("web", WEB)).await;
    let api = fixture.add(named("api", API)).await;
    fixture.check(&web);
    fixture.on_probation("web", "v2").await;
    assert!(fixture.retire(&web).await, "it is deploying");
    // The same service under another name, and a sibling, both with an image to deploy.
    fake.push(&reference(API), "api2", Behaviour::Good);
    let renamed = fixture.add(named("renamed", WEB)).await;
    fixture.check(&api);
    fixture.check(&renamed);
    fixture.until("the removed service has ended", || web.inbox.is_closed()).await;
    assert_eq!(recorded(&fake, &Kind::ROLLED_BACK), ["web p-web-1"]);
    fixture.until("the sibling is updated", || recorded(&fake, &Kind::UPDATED) == ["api "]).await;
    sleep(10 * SECOND).await;
    assert_eq!((fake.running("web"), fake.running("api")), (vec![id_of("web v1")], vec![id_of("api2")]));
    fixture.end().await;
}

#[test]
fn what_somebody_stops_during_the_deployment_of_a_removed_service_is_no_fault_of_its_image() {
    let flags = Flags { auto_update: true, ..Flags::default() };
    let steps = [
        (5_000, Step::World(Act::Push("web", Behaviour::Good))),
        (12_000, Step::Drop("web")),
        (14_000, Step::World(Act::Stop("web"))),
    ];
    let steps = steps.map(|(at, step)| (Duration::from_millis(at), step));
    let simulation = Simulation { flags: [flags; 2], steps: steps.to_vec(), ..Simulation::default() };
    let transcript = simulation.run().transcript;
    let says = |words: &str| transcript.iter().any(|line| line.contains(words));
    assert!(says("was stopped by someone"), "{}", transcript.join("\n"));
    assert!(!says("rolled_back"), "{}", transcript.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_removed_service_without_a_deployment_ends_at_once_and_can_be_added_again() {
    let fake = two(Behaviour::Good);
    let fixture = Fixture::new(&fake).await;
    let web = fixture.add(named("web", WEB)).await;
    fixture.check(&web);
    sleep(5 * SECOND).await;
    assert!(!fixture.retire(&web).await);
    fixture.until("it has ended", || web.inbox.is_closed()).await;
    let web = fixture.add(named("web", WEB)).await;
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    fixture.check(&web);
    fixture.until("it is updated", || recorded(&fake, &Kind::UPDATED) == ["web "]).await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_added_again_while_it_finishes_its_deployment_stays() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    let fixture = Fixture::new(&fake).await;
    let web = fixture.add(named("web", WEB)).await;
    fixture.check(&web);
    fixture.on_probation("web", "v2").await;
    assert!(fixture.retire(&web).await);
    fixture.reconfigure(&web, named("web", WEB)).await;
    fixture.until("it is updated", || recorded(&fake, &Kind::UPDATED) == ["web "]).await;
    sleep(10 * SECOND).await;
    assert!(!web.inbox.is_closed());
    fixture.end().await;
}

/// Both list it: an image that one of them has blocked is not deployed by the other.
#[tokio::test(start_paused = true)]
async fn an_image_that_two_services_of_a_project_list_is_judged_once() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Unhealthy);
    let configs = [Arc::new(named("one", WEB)), Arc::new(named("two", WEB))];
    assert!(run_agent_with(&fake, &configs, 2 * LONG, Script::Poll).await);
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert_eq!(recorded(&fake, &Kind::ROLLED_BACK).len(), 1, "{:?}", fake.entries());
    assert_eq!(fake.running("web"), [id_of("web v1")]);
}

/// The worker shifts the stored times and stores the new clock. Otherwise the next start would shift them again.
#[tokio::test(start_paused = true)]
async fn a_clock_change_before_a_service_reaches_its_worker_shifts_its_times() {
    let fake = two(Behaviour::Good);
    let fixture = Fixture::new(&fake).await;
    let handle = fixture.add(named("web", WEB)).await;
    // The worker has not run yet.
    fake.act(Act::SetClock(7_200));
    fixture.check(&handle);
    sleep(SECOND).await;
    let noted = fake.durable(&state_key("web")).await.clock.expect("it is stored");
    assert_eq!(noted.at, fake.clock().at_boot());
    fixture.end().await;
}

const NEXT: &str = "localhost:5000/web:next";

#[tokio::test(start_paused = true)]
async fn an_edit_of_the_image_that_nobody_has_applied_is_deployed_by_no_start_and_no_update() {
    let fake = two(Behaviour::Good);
    fake.add_image(&reference(NEXT), "next", Behaviour::Good, true);
    fake.edit_image("web", &reference(NEXT));
    fake.stop_all_containers();
    let config = Arc::new(ServiceConfig { auto_start: true, ..named("web", WEB) });
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(recorded(&fake, &Kind::STARTED).len(), 1, "{:?}", fake.entries());
    assert_eq!((fake.running("web"), fake.running("api")), (vec![id_of("web v1")], vec![id_of("api v1")]));

    fake.push(&reference(WEB), "v2", Behaviour::Good);
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.running("web"), [id_of("web v1")], "it is held: {:?}", fake.entries());
    assert_eq!(recorded(&fake, &Kind::UPDATED), [""; 0]);

    fake.edit_image("web", &reference(WEB));
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.running("web"), [id_of("v2")], "the edit was undone: {:?}", fake.entries());
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_docker_update_has_changed_does_not_keep_a_stuck_container_from_being_recreated() {
    let fake = two_down(Behaviour::Good);
    fake.image_turns(&old_name("web"), Behaviour::BadEntrypoint);
    fake.operator_up();
    assert!(fake.running("web").is_empty(), "it was only created");
    // A new container could be started.
    fake.image_turns(&old_name("web"), Behaviour::Good);
    fake.docker_update("web");
    let config = Arc::new(ServiceConfig { auto_start: true, ..named("web", WEB) });
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.running("web"), [id_of("web v1")], "{:?}", fake.entries());
}

#[tokio::test(start_paused = true)]
async fn files_that_compose_can_not_render_are_brought_up_by_no_start() {
    let fake = two(Behaviour::Good);
    fake.stop_all_containers();
    fake.act(Act::BreakFile);
    let config = Arc::new(ServiceConfig { auto_start: true, ..named("web", WEB) });
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.ups(), 0, "{:?}", fake.entries());
    assert!(format!("{:?}", fake.entries()).contains("did not find expected key"), "{:?}", fake.entries());
}

#[tokio::test(start_paused = true)]
async fn a_neighbour_whose_file_names_the_image_only_since_an_edit_is_not_brought_up_with_its_update() {
    let fake = two(Behaviour::Good);
    fake.edit_image("api", &reference(WEB));
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    assert!(run_agent(&fake, &Arc::new(named("web", WEB)), 2 * LONG, Script::Poll).await);
    assert_eq!((fake.running("web"), fake.running("api")), (vec![id_of("v2")], vec![id_of("api v1")]));
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_redeploy_recreates_all_but_the_container_that_the_agent_runs_in() {
    let fake = two(Behaviour::Good);
    fake.agent_runs_in("api");
    let (web, api) = (fake.containers_of("web"), fake.containers_of("api"));
    let config = Arc::new(named("web", WEB));
    assert!(run_agent(&fake, &config, 2 * LONG, Script::RedeployFirst).await);
    assert_eq!(fake.containers_of("api"), api, "{:?}", fake.entries());
    assert_ne!(fake.containers_of("web"), web, "{:?}", fake.entries());
    assert_eq!(recorded(&fake, &Kind::FORCE_REDEPLOY_FAILED), [""; 0], "{:?}", fake.entries());

    fake.agent_runs_in("web");
    let (web, ups) = (fake.containers_of("web"), fake.ups());
    assert!(run_agent(&fake, &config, 2 * LONG, Script::RedeployFirst).await);
    assert_eq!((fake.containers_of("web"), fake.ups()), (web, ups), "nothing else is left");
    assert_eq!(recorded(&fake, &Kind::FORCE_REDEPLOY_FAILED).len(), 1, "{:?}", fake.entries());
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn another_file_of_a_secret_is_applied_although_compose_leaves_its_containers_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("compose.yml");
    let fake = two_down(Behaviour::Good);
    fake.set_compose_file(&file, false);
    fake.edit_secret("/srv/one");
    fake.operator_up();
    let watching = ServiceConfig { compose_watch: true, compose_files: vec![file], ..named("web", WEB) };
    let config = Arc::new(watching);
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(fake.ups(), 0, "{:?}", fake.entries());
    let (web, api) = (fake.containers_of("web"), fake.containers_of("api"));

    fake.edit_secret("/srv/two");
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_eq!(recorded(&fake, &Kind::COMPOSE_DRIFT).len(), 1, "{:?}", fake.entries());
    assert_ne!(fake.containers_of("web"), web, "{:?}", fake.entries());
    assert_ne!(fake.containers_of("api"), api, "{:?}", fake.entries());

    fake.agent_runs_in("api");
    let (web, api) = (fake.containers_of("web"), fake.containers_of("api"));
    fake.edit_secret("/srv/three");
    assert!(run_agent(&fake, &config, LONG, Script::Poll).await);
    assert_ne!(fake.containers_of("web"), web, "{:?}", fake.entries());
    assert_eq!(fake.containers_of("api"), api, "{:?}", fake.entries());

    fake.push(&reference(WEB), "v2", Behaviour::Good);
    assert!(run_agent(&fake, &config, 2 * LONG, Script::Poll).await);
    assert_eq!(fake.running("web"), [id_of("v2")], "{:?}", fake.entries());
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_update_that_would_stop_the_container_that_the_agent_runs_in_is_not_begun() {
    let fake = two(Behaviour::Good);
    fake.agent_runs_in("web");
    let web = fake.containers_of("web");
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    assert!(run_agent(&fake, &Arc::new(named("web", WEB)), 2 * LONG, Script::Poll).await);
    assert_eq!((fake.containers_of("web"), fake.ups()), (web, 0));
    let entries = format!("{:?}", fake.entries());
    assert!(entries.contains("in which the agent runs"), "{entries}");
    assert_eq!(fake.violations(), Vec::<String>::new());
}

/// Runs the agent until the update of `web` waits for its turn. The worker ends with its handle.
async fn waits_for_its_turn(fake: &FakeWorld) -> (Fixture, Handle) {
    fake.give_turns(false);
    let fixture = Fixture::new(fake).await;
    let web = fixture.add(named("web", WEB)).await;
    fixture.check(&web);
    sleep(LONG).await;
    (fixture, web)
}

#[tokio::test(start_paused = true)]
async fn an_update_without_a_turn_looks_at_nothing_and_goes_on_once_it_has_one() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    let (fixture, _web) = waits_for_its_turn(&fake).await;
    let reads = fake.definition_reads();
    sleep(LONG).await;
    assert_eq!((fake.definition_reads(), fake.ups()), (reads, 0));
    fake.give_turns(true);
    fixture.until("it is proven", || !recorded(&fake, &Kind::UPDATED).is_empty()).await;
    assert_eq!(fake.running("web"), [id_of("v2")]);
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_siblings_tag_that_somebody_moves_while_an_update_waits_for_its_turn_stays_moved() {
    let fake = two(Behaviour::Good);
    fake.add_image(&reference(API), "api v2", Behaviour::Good, true);
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    let (fixture, _web) = waits_for_its_turn(&fake).await;
    fake.push(&reference(API), "api v3", Behaviour::Good);
    fake.act(Act::Pull("api"));
    fake.give_turns(true);
    fixture.until("it is proven", || !recorded(&fake, &Kind::UPDATED).is_empty()).await;
    assert_eq!(fake.running("web"), [id_of("v2")]);
    assert_eq!(fake.running("api"), [id_of("api v1")]);
    assert_eq!(fake.named(&reference(API)), Some(id_of("api v3")));
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_tied_service_whose_tag_was_moved_gets_no_other_image_although_the_record_of_its_own_is_gone() {
    for is_in_registry in [true, false] {
        let fake = two(Behaviour::Good);
        fake.tie("api", "web");
        fake.add_image(&reference(API), "api v2", Behaviour::Good, true);
        fake.lose_image(&old_name("api"), is_in_registry);
        fake.push(&reference(WEB), "v2", Behaviour::Good);
        assert!(run_agent(&fake, &Arc::new(named("web", WEB)), LONG, Script::Poll).await);
        assert_eq!(fake.running("api"), [id_of(&old_name("api"))], "{is_in_registry}");
        assert_eq!(fake.named(&reference(API)), Some(id_of("api v2")), "{is_in_registry}");
        let web = if is_in_registry { "v2".to_owned() } else { old_name("web") };
        assert_eq!(fake.running("web"), [id_of(&web)], "{is_in_registry}");
        let entries = format!("{:?}", fake.entries());
        assert_eq!(
            entries.contains("names another image than its service runs"),
            !is_in_registry,
            "{entries}"
        );
        assert_eq!(fake.ups() == 0, !is_in_registry);
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_tied_service_whose_tag_was_removed_stays_on_its_image_and_does_not_fail_the_update() {
    for is_tied in [true, false] {
        let fake = two(Behaviour::Good);
        if is_tied {
            fake.tie("api", "web");
        }
        fake.untag(&reference(API)).await.expect("the engine is up");
        fake.push(&reference(WEB), "v2", Behaviour::Good);
        assert!(run_agent(&fake, &Arc::new(named("web", WEB)), LONG, Script::Poll).await);
        assert_eq!(fake.running("web"), [id_of("v2")], "{is_tied}: {:?}", fake.entries());
        assert_eq!(fake.running("api"), [id_of(&old_name("api"))], "{is_tied}");
        let tagged = is_tied.then(|| id_of(&old_name("api")));
        assert_eq!(fake.named(&reference(API)), tagged, "only what compose needs is tagged");
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_tied_service_whose_image_is_gone_with_its_tag_keeps_the_update_from_beginning() {
    for is_in_registry in [true, false] {
        let fake = two(Behaviour::Good);
        fake.tie("api", "web");
        fake.lose_image(&old_name("api"), is_in_registry);
        fake.push(&reference(WEB), "v2", Behaviour::Good);
        assert!(run_agent(&fake, &Arc::new(named("web", WEB)), LONG, Script::Poll).await);
        assert_eq!(fake.running("api"), [id_of(&old_name("api"))], "{is_in_registry}");
        let web = if is_in_registry { "v2".to_owned() } else { old_name("web") };
        assert_eq!(fake.running("web"), [id_of(&web)], "{is_in_registry}");
        let entries = format!("{:?}", fake.entries());
        assert_eq!(entries.contains("is no longer here"), !is_in_registry, "{entries}");
        assert_eq!(fake.ups() == 0, !is_in_registry);
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
}
