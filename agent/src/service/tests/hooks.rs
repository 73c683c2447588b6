//! Scenarios with hooks (DECISIONS 15).

use evenkeel_common::wire::Level;

use super::*;
use crate::config::UpdateConfig;
use crate::model::window::Window;
use crate::model::{ComposeError, HookEvent, Hooks};
use crate::ports::HookError;
use crate::service::rollout::plan::Postponed;
use crate::service::wording;

const OLD: &str = "sha256:v1";
const NEW: &str = "sha256:v2";

fn with_hooks() -> Scenario {
    let argv = |name: &str| vec![format!("/hooks/{name}")];
    let hooks = Hooks {
        before: argv("before"),
        after: argv("after"),
        rolled_back: argv("rolled-back"),
        timeout: Duration::from_mins(10),
    };
    let update = UpdateConfig { hooks: Some(hooks), ..UpdateConfig::default() };
    Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() })
}

impl Scenario {
    /// Expects a hook for this event, which ends like this.
    fn hook(&mut self, event: HookEvent, result: Result<(), &str>) -> &mut Self {
        let action = self.act();
        let Some(Action::Step(Step::RunHook { call, .. })) = action else {
            panic!("no hook, but {action:?}")
        };
        assert_eq!(call.event, event);
        assert_eq!((call.question.service.as_str(), &call.question.digest), ("web", &digest('2')));
        assert_eq!(call.timeout, Duration::from_mins(10));
        let result = result.map_err(|why| HookError { why: why.to_owned(), output: "last words".to_owned() });
        self.input(Input::Stepped(StepResult::HookEnded(result.map(|()| None))))
    }

    fn finds_an_update(&mut self) -> &mut Self {
        self.check(observed('2', &[local(OLD, &['1'])], &[&old_container()]))
    }

    fn comes_up(&mut self, on: &Container) -> &mut Self {
        self.takes(StepResult::ImagesPinned { missing: Vec::new() });
        let ids = vec![(IMAGE.into(), ImageId(NEW.into()))];
        self.takes(StepResult::Pulled { ids, labels: BTreeMap::new() });
        let containers = vec![on.clone()];
        self.takes(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        self
    }

    fn takes(&mut self, result: StepResult) {
        let action = self.act();
        assert!(matches!(action, Some(Action::Step(_))), "no step is due, but {action:?}");
        self.input(Input::Stepped(result));
    }
}

fn new_container() -> Container {
    Container { id: "web-2".into(), image: ImageId(NEW.into()), ..running("web-1") }
}

fn old_container() -> Container {
    Container { image: ImageId(OLD.into()), ..running("web-1") }
}

#[test]
fn a_hook_runs_before_anything_is_done_and_another_one_after_the_proof() {
    let mut scenario = with_hooks();
    scenario.finds_an_update().hook(HookEvent::Before, Ok(()));
    let new = new_container();
    scenario.comes_up(&new);
    scenario.look(&[&new]).at(120).look(&[&new]);
    scenario.takes(StepResult::Unpinned);
    assert!(scenario.kinds().contains(&Kind::UPDATED), "the entry comes first");
    assert!(!scenario.record().deploying, "the deployment is over");
    scenario.hook(HookEvent::Updated, Err("/hooks/after exited with status 1"));
    let entry = scenario.entries.iter().find(|entry| entry.event == Kind::ERROR).expect("it is told");
    assert_eq!((entry.level, entry.output.as_str()), (Level::Warning, "last words"));
    assert!(entry.message.contains("the hook after failed"), "{entry:?}");
    assert_eq!(scenario.service.durable().deployment, None);
    assert_eq!(scenario.record().errored, None, "it is no fault of the service");
}

#[test]
fn a_gate_that_a_trigger_has_passed_holds_nothing_once_the_image_is_proven() {
    let update = UpdateConfig { min_age: Some(Duration::from_hours(24)), ..UpdateConfig::default() };
    let mut scenario = Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    let (old, new) = (old_container(), new_container());
    scenario.finds_an_update();
    assert_eq!(scenario.record().waiting.map(|waiting| waiting.gate).as_deref(), Some("min_age"));
    scenario.trigger(observed('2', &[local(OLD, &['1'])], &[&old]));
    scenario.comes_up(&new);
    scenario.look(&[&new]).at(120).look(&[&new]);
    scenario.takes(StepResult::Unpinned);
    let record = scenario.record();
    assert!(!record.deploying && record.updates_total == 1, "{record:?}");
    assert_eq!((record.waiting, record.status), (None, StatusValue::Ok), "before the next check");
}

#[test]
fn nothing_is_begun_if_the_hook_before_fails_and_it_is_tried_once_a_cycle() {
    let mut scenario = with_hooks();
    for cycle in 0..2 {
        scenario
            .at(cycle * 300)
            .finds_an_update()
            .hook(HookEvent::Before, Err("/hooks/before exited with status 3"));
        scenario.takes(StepResult::Unpinned);
        let errored = scenario.record().errored.expect("it is told");
        assert!(errored.contains("the hook before failed, so nothing was deployed"), "{errored}");
        assert_eq!(scenario.act(), None, "not before the next cycle");
        assert!(scenario.service.durable().images.blocked().next().is_none());
    }
    let entries: Vec<_> = scenario.entries.iter().filter(|entry| entry.event == Kind::ERROR).collect();
    assert_eq!(entries.len(), 1, "the same fault is told once: {entries:#?}");
    assert_eq!(entries[0].output, "last words");
}

#[test]
fn a_hook_before_that_has_failed_is_not_recovered_because_the_window_has_closed() {
    const DAY: i64 = 24 * 3600;
    let hooks = with_hooks().service.shared_config();
    let window = Window::parse(["00:00-03:00"], jiff::tz::TimeZone::UTC).ok();
    let update = hooks.update.as_ref().map(|update| Arc::new(UpdateConfig { window, ..(**update).clone() }));
    let mut scenario = Scenario::of(ServiceConfig { update, ..(*hooks).clone() });
    for cycle in 0..5 {
        scenario.at(cycle * 300).finds_an_update().hook(HookEvent::Before, Err("no space left"));
        scenario.takes(StepResult::Unpinned);
    }
    assert_eq!(scenario.kinds(), [Kind::ERROR]);
    for hour in [4, 5] {
        assert_eq!(scenario.at(hour * 3600).finds_an_update().act(), None);
        assert_eq!(scenario.record().waiting.map(|waiting| waiting.gate).as_deref(), Some("window"));
        let errored = scenario.record().errored.expect("nothing has got better");
        assert!(errored.contains("the hook before failed"), "{errored}");
        assert!(!scenario.kinds().contains(&Kind::RECOVERED), "{hour}");
        let why = scenario.why().answer;
        assert!(why.contains("no space left; the next attempt waits for a gate"), "{why}");
    }
    scenario.at(DAY + 60).finds_an_update().hook(HookEvent::Before, Ok(()));
    // How often the hook has failed delays nothing.
    scenario.takes(StepResult::ImagesPinned { missing: vec![IMAGE.into()] });
    scenario.takes(StepResult::Unpinned);
    scenario.at(DAY + 360).finds_an_update().hook(HookEvent::Before, Ok(()));
    let new = new_container();
    scenario.comes_up(&new);
    scenario.look(&[&new]).at(DAY + 480).look(&[&new]);
    let told = scenario.kinds();
    assert!(told.contains(&Kind::UPDATED) && told.contains(&Kind::RECOVERED), "{told:?}");
    assert_eq!(scenario.service.durable().postponed, []);
}

#[test]
fn a_hook_before_that_fails_for_more_images_keeps_how_often_one_of_them_has_failed_otherwise() {
    let hooks = with_hooks().service.shared_config();
    let reference = Reference::parse(API).unwrap();
    let api = ConfiguredImage { configured: API.into(), reference: reference.clone() };
    let images = [hooks.images.clone(), vec![api]].concat();
    let mut scenario = Scenario::of(ServiceConfig { images, ..(*hooks).clone() });
    let failed = Postponed {
        digest: digest('2'),
        others: Vec::new(),
        until: scenario.now,
        tries: 3,
        why: "port is already allocated".to_owned(),
    };
    scenario.service.durable.postponed.push(failed);
    let running_api = Container {
        id: "api-1".into(),
        config_image: API.into(),
        image: ImageId("sha256:api1".into()),
        ..running("api")
    };
    let mut seen = observed('2', &[local(OLD, &['1'])], &[&old_container(), &running_api]);
    let (remote, running) = (Some(digest('6')), vec![local("sha256:api1", &['5'])]);
    seen.images.push(ImageView { remote, running, ..ImageView::new(API.into(), reference) });
    scenario.check(seen).hook(HookEvent::Before, Err("no space left"));
    let postponed = scenario.service.durable().postponed.iter();
    let postponed: Vec<_> = postponed.map(|one| (one.others.len(), one.tries)).collect();
    assert_eq!(postponed, [(1, 3)]);
}

#[test]
fn the_hook_before_does_not_run_at_every_poll_for_an_update_that_is_not_brought_up() {
    for is_old_gone in [false, true] {
        let mut scenario = with_hooks();
        let mut ran = Vec::new();
        for at in (0..7200).step_by(300) {
            let Some(action) = scenario.at(at).finds_an_update().act() else { continue };
            assert!(matches!(action, Action::Step(Step::RunHook { .. })), "{action:?}");
            scenario.input(Input::Stepped(StepResult::HookEnded(Ok(None))));
            if is_old_gone {
                scenario.takes(StepResult::ImagesPinned { missing: vec![IMAGE.into()] });
            } else {
                let up = Err(ComposeError::new("network shop not found"));
                let containers = vec![old_container()];
                scenario.takes(StepResult::ImagesPinned { missing: Vec::new() });
                let ids = vec![(IMAGE.into(), ImageId(NEW.into()))];
                scenario.takes(StepResult::Pulled { ids, labels: BTreeMap::new() });
                scenario.takes(StepResult::Started { up, named: Vec::new(), containers });
                scenario.takes(StepResult::TagsRestored);
            }
            scenario.takes(StepResult::Unpinned);
            ran.push(at);
        }
        assert_eq!(ran, [0, 300, 600, 1200, 2400, 4800], "three times, and then less and less often");
        let told = scenario.entries.iter().filter(|entry| entry.event == Kind::ERROR).count();
        assert_eq!(told, 1, "the same fault is told once");
    }
}

#[test]
fn a_redeployment_runs_hooks_for_an_image_that_changes_and_no_other() {
    let mut scenario = with_hooks();
    scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    let action = scenario.check(observed('1', &[local(OLD, &['1'])], &[&old_container()])).act();
    assert!(matches!(action, Some(Action::Step(Step::PinImages { .. }))), "{action:?}");

    let (two, mut seen) = of_two_images();
    seen.images[0].remote = Some(digest('1'));
    let (hooks, config) = (with_hooks().service.shared_config(), two.service.shared_config());
    let config = ServiceConfig { update: hooks.update.clone(), ..(*config).clone() };
    let mut scenario = Scenario::of(config);
    scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    let Some(Action::Step(Step::RunHook { call, .. })) = scenario.check(seen).act() else {
        panic!("no hook")
    };
    assert_eq!(call.question.image, Reference::parse(API).unwrap());
    assert_eq!((call.question.digest, call.question.old_digest), (digest('6'), Some(digest('5'))));
}

#[test]
fn an_image_is_not_blocked_if_the_hook_has_made_the_containers_anew_and_compose_has_changed_none() {
    let mut scenario = with_hooks();
    let renewed = Container { id: "web-9".into(), ..old_container() };
    let action = scenario.finds_an_update().act();
    assert!(matches!(action, Some(Action::Step(Step::RunHook { look_at: Some(_), .. }))), "{action:?}");
    scenario.input(Input::Stepped(StepResult::HookEnded(Ok(Some(vec![renewed.clone()])))));
    scenario.takes(StepResult::ImagesPinned { missing: Vec::new() });
    let ids = vec![(IMAGE.into(), ImageId(NEW.into()))];
    scenario.takes(StepResult::Pulled { ids, labels: BTreeMap::new() });
    let up = Err(ComposeError::new("network shop not found"));
    scenario.takes(StepResult::Started { up, named: Vec::new(), containers: vec![renewed] });
    scenario.takes(StepResult::TagsRestored);
    scenario.takes(StepResult::Unpinned);
    assert!(scenario.service.durable().images.blocked().next().is_none());
    let errored = scenario.record().errored.expect("it is told");
    assert!(errored.contains("network shop not found"), "{errored}");
}

#[test]
fn a_rollback_has_a_hook_of_its_own_and_one_that_fails_for_good_has_none() {
    for is_well in [true, false] {
        let mut scenario = with_hooks();
        scenario.finds_an_update().hook(HookEvent::Before, Ok(()));
        let (new, old) = (new_container(), Container { id: "web-3".into(), ..old_container() });
        scenario.comes_up(&new);
        let crashed = Container { state: State::Exited, exit_code: 1, ..new };
        scenario.look(&[&crashed]).at(5).look(&[&crashed]);
        scenario.takes(StepResult::Diagnosed { log: String::new() });
        let containers = vec![old.clone()];
        scenario.takes(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers });
        let seen = if is_well { old } else { Container { state: State::Exited, exit_code: 1, ..old } };
        scenario.at(10).look(&[&seen]).at(15).look(&[&seen]).at(200).look(&[&seen]);
        scenario.takes(StepResult::Unpinned);
        if is_well {
            assert!(scenario.kinds().contains(&Kind::ROLLED_BACK), "the entry comes first");
            scenario.hook(HookEvent::RolledBack, Ok(()));
        } else {
            assert!(scenario.kinds().contains(&Kind::ROLLBACK_FAILED));
        }
        assert_eq!(scenario.service.durable().deployment, None);
    }
}

#[test]
fn while_the_hook_before_runs_it_is_named_with_the_time_that_it_may_take() {
    let mut scenario = with_hooks();
    scenario.finds_an_update();
    assert!(matches!(scenario.act(), Some(Action::Step(Step::RunHook { .. }))));
    let why = scenario.at(60).why().answer;
    assert!(why.contains("the hook before is running") && !why.contains("being pulled"), "{why}");
    let deploy = scenario.record().deploy.expect("it has begun");
    assert_eq!((deploy.hook.as_deref(), deploy.deadline), (Some("before"), scenario.seconds(600)));
    assert_eq!(wording::phase(&deploy), "running the hook before");
    // After a restart of the agent, it runs once more and has all of its time.
    let (config, durable) = (scenario.service.shared_config(), scenario.service.durable().clone());
    let boot = boot_of("one", "one");
    (scenario.service, _) = Service::new(config, durable, boot, StartReason::Start, scenario.now);
    let deploy = scenario.record().deploy.expect("it goes on");
    assert_eq!((deploy.hook.as_deref(), deploy.deadline), (Some("before"), scenario.seconds(660)));
    scenario.reconnected();
    scenario.hook(HookEvent::Before, Ok(()));
    let deploy = scenario.record().deploy.expect("it goes on");
    assert_eq!((deploy.hook, deploy.deadline), (None, None));
    assert!(scenario.why().answer.contains("is being pulled"));
}

#[test]
fn a_hook_that_was_interrupted_by_a_kill_runs_again() {
    let mut scenario = with_hooks();
    scenario.finds_an_update();
    assert!(matches!(scenario.act(), Some(Action::Step(Step::RunHook { .. }))));
    let journal = serde_json::to_string(scenario.service.durable()).unwrap();
    assert!(journal.contains("\"before_hook\""), "{journal}");
    let durable: Durable = serde_json::from_str(&journal).unwrap();
    assert_eq!(durable.deployment, scenario.service.durable().deployment);
    let config = scenario.service.shared_config();
    let (service, entries) =
        Service::new(config, durable, boot_of("one", "one"), StartReason::Start, scenario.now);
    (scenario.service, scenario.entries) = (service, entries);
    scenario.reconnected();
    scenario.hook(HookEvent::Before, Ok(()));
    scenario.takes(StepResult::ImagesPinned { missing: Vec::new() });
}

/// A deployment whose image is proven, and watched, while its hook `after` runs. Returns the new container, too.
fn in_the_hook_after() -> (Scenario, Container) {
    let hooks = with_hooks().service.shared_config();
    let update = hooks
        .update
        .as_ref()
        .map(|update| Arc::new(UpdateConfig { watch: Duration::from_mins(30), ..(**update).clone() }));
    let mut scenario = Scenario::of(ServiceConfig { update, ..(*hooks).clone() });
    scenario.finds_an_update().hook(HookEvent::Before, Ok(()));
    let new = new_container();
    scenario.comes_up(&new);
    scenario.look(&[&new]).at(120).look(&[&new]);
    scenario.takes(StepResult::Unpinned);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::RunHook { .. }))));
    (scenario, new)
}

#[test]
fn containers_are_healed_and_watched_while_the_hook_after_runs() {
    let (mut scenario, new) = in_the_hook_after();
    assert!(!scenario.service.is_changing_project(), "the other services of the project go on");

    let crashes = |scenario: &mut Scenario| {
        scenario.event("web-2", EventKind::Die { exit_code: 1 });
    };
    let crashed = Container { state: State::Exited, exit_code: 1, ..new.clone() };
    crashes(scenario.at(200));
    scenario.look(&[&crashed]).at(202).look(&[&crashed]);
    assert_eq!(scenario.restarts(), ["web-1"]);
    let again = Container { started_at: scenario.seconds(203), ..new };
    scenario.at(204).look(&[&again]).at(220).look(&[&again]);
    crashes(scenario.at(300));
    crashes(scenario.at(400));
    assert_eq!(scenario.act(), None, "the hook still runs");

    scenario.at(460).input(Input::Stepped(StepResult::HookEnded(Ok(None)))).look(&[&again]);
    scenario.check(observed('2', &[local(NEW, &['2'])], &[&again]));
    assert!(matches!(scenario.service.wanted, Some(Cause::GoBack(_))), "{:?}", scenario.service.wanted);
}

#[test]
fn a_container_that_is_made_anew_only_after_the_hook_keeps_no_other_one_from_being_restarted() {
    let (mut scenario, new) = in_the_hook_after();
    let app = Container { lost_networks: vec!["old".into()], ..exited("app", 1) };
    scenario.at(200).look(&[&new, &app]).at(202).look(&[&new, &app]);
    assert_eq!(scenario.act(), None, "that would be a deployment");
    let crashed = Container { state: State::Exited, exit_code: 1, ..new };
    scenario.at(205).look(&[&crashed, &app]).at(207).look(&[&crashed, &app]);
    assert_eq!(scenario.restarts(), ["web-1"]);
    scenario.input(Input::Stepped(StepResult::HookEnded(Ok(None))));
    let action = scenario.look(&[&crashed, &app]).act();
    assert!(matches!(action, Some(Action::Step(_))), "it is made anew: {action:?}");
}
