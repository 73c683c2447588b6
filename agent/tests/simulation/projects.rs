//! Lives of several services in one compose project, and of services whose configuration changes while they deploy.

use std::collections::{BTreeSet, HashSet};

use evenkeel_agent::model::Members;
use tokio::time::{Instant, sleep};

use super::world::Act;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A service of the project `shop`.
fn named(name: &str, image: &str) -> ServiceConfig {
    ServiceConfig { name: name.into(), ..(*config(&[image])).clone() }
}

/// Two compose services whose images are `behaviour`.
fn two(behaviour: Behaviour) -> FakeWorld {
    let fake = new_world();
    for (service, text) in TWO {
        fake.compose_service(service, &reference(text));
        fake.have(&reference(text), &old_name(service), behaviour, true);
        fake.push(&reference(text), &old_name(service), behaviour);
    }
    fake.operator_up();
    fake
}

/// Services at work, and what a reload does with them.
struct Stand {
    fake: FakeWorld,
    world: Arc<World>,
    placement: Placement,
    tasks: TaskSet,
}

impl Stand {
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
        assert!(handle.inbox.send(Command::Check(cycle, done)).is_ok(), "the service is there");
    }

    async fn reconfigure(&self, handle: &Handle, config: ServiceConfig) {
        let (reply, answer) = oneshot::channel();
        assert!(handle.inbox.send(Command::Reconfigure(Arc::new(config), reply)).is_ok());
        answer.await.expect("it takes the configuration over");
    }

    /// Whether the service has a deployment to end first.
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
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < 2 * LONG, "{what}: not within {:?}", 2 * LONG);
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn end(self) {
        assert_eq!(self.fake.violations(), Vec::<String>::new());
        self.tasks.finish(Duration::ZERO).await;
    }
}

fn told(fake: &FakeWorld, kind: &Kind) -> Vec<String> {
    let of_kind = fake.entries().into_iter().filter(|entry| entry.event == *kind);
    of_kind.map(|entry| format!("{} {}", entry.service, entry.container.unwrap_or_default())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_container_is_healed_by_one_service_of_its_project_and_told_once() {
    let fake = two(Behaviour::Unhealthy);
    let heals = |name: &str, image: &str| Arc::new(ServiceConfig { auto_heal: true, ..named(name, image) });
    let configs = [heals("web", WEB), heals("api", API)];
    assert!(live_together(&fake, &configs, Duration::from_mins(4), Script::Poll).await);
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert_eq!(fake.restarts(), 2, "each once in its cooldown of five minutes");
    for kind in [Kind::UNHEALTHY, Kind::RESTARTING] {
        let told: BTreeSet<String> = told(&fake, &kind).into_iter().collect();
        assert_eq!(told, ["api p-api-1".to_owned(), "web p-web-1".to_owned()].into(), "{kind:?}");
    }
    assert_eq!(fake.entries().iter().filter(|entry| entry.event == Kind::RESTARTING).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_healed_or_deployed_by_one_service_while_another_deploys_wherever_the_agent_is_killed() {
    for at in (1..).step_by(5) {
        let fake = two(Behaviour::Good);
        fake.push(&reference(WEB), "v2", Behaviour::Flapping);
        fake.push(&reference(API), "api2", Behaviour::Good);
        let all = |name: &str, image: &str| {
            let auto = ServiceConfig { auto_heal: true, auto_start: true, ..named(name, image) };
            Arc::new(ServiceConfig { heal_cooldown: 5 * SECOND, ..auto })
        };
        let configs = [all("web", WEB), all("api", API)];
        fake.crash_at(Some(at));
        let lived = live_together(&fake, &configs, 2 * LONG, Script::Poll).await;
        fake.crash_at(None);
        if !lived {
            assert!(live_together(&fake, &configs, 2 * LONG, Script::Poll).await);
        }
        let what = format!("killed at call {at}");
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(fake.running("web"), [id_of("web v1")], "{what}");
        assert_eq!(fake.running("api"), [id_of("api2")], "{what}");
        assert_eq!(fake.durable(&state_key("web")).await.blocked.len(), 1, "{what}");
        assert_eq!(fake.restarts(), 0, "{what}: what a deployment does is no illness");
        if lived {
            assert!(at > 50, "the crashes did not reach the deployments");
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_changes_its_project_ends_its_deployment_first_and_moves_then() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    let stand = Stand::new(&fake).await;
    let web = stand.add(named("web", WEB)).await;
    // Whoever has the other project deploys there meanwhile.
    let other =
        stand.add(ServiceConfig { compose_project: Some("other".into()), ..named("other", API) }).await;
    stand.check(&web);
    stand.on_probation("web", "v2").await;
    let moved = ServiceConfig { compose_project: Some("other".into()), ..named("web", WEB) };
    stand.reconfigure(&web, moved).await;
    stand.until("it is taken up again", || told(&fake, &Kind::RESUMED).len() == 1).await;
    stand.until("the update ends", || told(&fake, &Kind::UPDATED).len() == 1).await;
    assert_eq!(fake.projects_brought_up(), BTreeSet::from(["shop".to_owned()]));
    sleep(5 * SECOND).await;
    fake.forget_asked();
    // It works in the other project now, and is still reached by the same door.
    stand.check(&web);
    sleep(5 * SECOND).await;
    assert_eq!(fake.asked(), HashSet::from([Members::Project("other".into())]));
    fake.push(&reference(WEB), "v3", Behaviour::Good);
    stand.check(&web);
    stand.on_probation("web", "v3").await;
    fake.push(&reference(API), "api2", Behaviour::Good);
    stand.check(&other);
    stand.until("both are updated", || told(&fake, &Kind::UPDATED).len() == 3).await;
    let both = BTreeSet::from(["shop".to_owned(), "other".to_owned()]);
    assert_eq!(fake.projects_brought_up(), both);
    stand.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_service_ends_its_deployment_while_those_that_stay_or_come_wait_for_it() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Unhealthy);
    let stand = Stand::new(&fake).await;
    let web = stand.add(named("web", WEB)).await;
    let api = stand.add(named("api", API)).await;
    stand.check(&web);
    stand.on_probation("web", "v2").await;
    assert!(stand.retire(&web).await, "it is deploying");
    // The same service under another name, and a sibling, both with an image to deploy.
    fake.push(&reference(API), "api2", Behaviour::Good);
    let renamed = stand.add(named("renamed", WEB)).await;
    stand.check(&api);
    stand.check(&renamed);
    stand.until("the removed service has gone", || web.inbox.is_closed()).await;
    assert_eq!(told(&fake, &Kind::ROLLED_BACK), ["web p-web-1"]);
    stand.until("the sibling is updated", || told(&fake, &Kind::UPDATED) == ["api "]).await;
    sleep(10 * SECOND).await;
    assert_eq!((fake.running("web"), fake.running("api")), (vec![id_of("web v1")], vec![id_of("api2")]));
    stand.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_service_that_has_nothing_to_end_goes_at_once_and_can_come_back() {
    let fake = two(Behaviour::Good);
    let stand = Stand::new(&fake).await;
    let web = stand.add(named("web", WEB)).await;
    stand.check(&web);
    sleep(5 * SECOND).await;
    assert!(!stand.retire(&web).await);
    stand.until("it has gone", || web.inbox.is_closed()).await;
    let web = stand.add(named("web", WEB)).await;
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    stand.check(&web);
    stand.until("it is updated", || told(&fake, &Kind::UPDATED) == ["web "]).await;
    stand.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_comes_back_while_it_ends_its_deployment_stays() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Good);
    let stand = Stand::new(&fake).await;
    let web = stand.add(named("web", WEB)).await;
    stand.check(&web);
    stand.on_probation("web", "v2").await;
    assert!(stand.retire(&web).await);
    stand.reconfigure(&web, named("web", WEB)).await;
    stand.until("it is updated", || told(&fake, &Kind::UPDATED) == ["web "]).await;
    sleep(10 * SECOND).await;
    assert!(!web.inbox.is_closed());
    stand.end().await;
}

/// Both name it: what one of them has blocked, the other does not deploy.
#[tokio::test(start_paused = true)]
async fn an_image_that_two_services_of_a_project_name_is_judged_once() {
    let fake = two(Behaviour::Good);
    fake.push(&reference(WEB), "v2", Behaviour::Unhealthy);
    let configs = [Arc::new(named("one", WEB)), Arc::new(named("two", WEB))];
    assert!(live_together(&fake, &configs, 2 * LONG, Script::Poll).await);
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert_eq!(told(&fake, &Kind::ROLLED_BACK).len(), 1, "{:?}", fake.entries());
    assert_eq!(fake.running("web"), [id_of("web v1")]);
}

/// What it wrote down is meant by the clock as it was; else an agent that starts again would move it once more.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_while_a_service_is_on_its_way_to_its_worker_moves_its_times_along() {
    let fake = two(Behaviour::Good);
    let stand = Stand::new(&fake).await;
    let handle = stand.add(named("web", WEB)).await;
    // No worker has run since.
    fake.act(Act::SetClock(7_200));
    stand.check(&handle);
    sleep(SECOND).await;
    let noted = fake.durable(&state_key("web")).await.clock.expect("it is written down");
    assert_eq!(noted.at, fake.clock().at_boot());
    stand.end().await;
}
