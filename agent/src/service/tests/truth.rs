//! The reported state is true: of running images, of registries that do not answer, of manual actions.

use super::*;
use crate::service::input::CheckFault;
use crate::service::observation::Unanswered;
use evenkeel_common::wire::DeployOutcome;

const DEAD: &str = "registry.example.com/db:1";

/// Adds a second image whose registry gives no digest.
fn with_unavailable_registry(mut seen: Observation, why: &Unanswered, tagged: &str) -> Observation {
    seen.images.push(ImageView {
        tagged: Some(local(tagged, &['7'])),
        ..ImageView::new(DEAD.into(), Reference::parse(DEAD).unwrap())
    });
    seen.unanswered.insert(DEAD.into(), why.clone());
    seen
}

fn two_images() -> ServiceConfig {
    let mut images = config().images;
    images.push(ConfiguredImage { configured: DEAD.into(), reference: Reference::parse(DEAD).unwrap() });
    ServiceConfig { images, ..config() }
}

fn failed() -> Unanswered {
    Unanswered::Failed("registry.example.com: connection refused".into())
}

#[test]
fn an_unavailable_registry_does_not_delay_the_update_of_the_other_image() {
    for why in [failed(), Unanswered::Pending] {
        let mut scenario = Scenario::of(two_images());
        let seen = observed('2', &[local("sha256:one", &['1'])], &[&running("a")]);
        scenario.check(with_unavailable_registry(seen, &why, "sha256:db"));
        let Some(Action::Step(Step::PinImages { images, .. })) = scenario.act() else {
            panic!("{why:?}: no update")
        };
        assert_eq!(images.iter().map(|image| &*image.id.0).collect::<Vec<_>>(), ["sha256:one"]);
        let image_changes = &scenario.service.durable().deployment.as_ref().unwrap().plan().image_changes;
        assert_eq!(image_changes.iter().map(|m| m.configured.as_str()).collect::<Vec<_>>(), [IMAGE]);
    }
}

#[test]
fn an_unavailable_registry_delays_neither_compose_watch_nor_a_start_of_the_previous_images() {
    for why in [failed(), Unanswered::Pending] {
        let watch = ServiceConfig { compose_watch: true, ..two_images() };
        let mut scenario = Scenario::of(watch);
        let seen = |hash: &str| {
            let seen = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
            Observation {
                files: Files::Hash(hash.into()),
                ..with_unavailable_registry(seen, &why, "sha256:db")
            }
        };
        scenario.check(seen("a"));
        assert_eq!(scenario.act(), None);
        scenario.at(10).check(seen("b"));
        assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))), "{why:?}");

        let start = ServiceConfig { auto_start: true, ..two_images() };
        let db = |image: &str| Container {
            config_image: DEAD.into(),
            image: ImageId(image.into()),
            ..exited("db", 143)
        };
        for (ran, starts) in [("sha256:db", true), ("sha256:older", false)] {
            let mut scenario = Scenario::of(start.clone());
            let seen = observed('1', &[local("sha256:one", &['1'])], &[&exited("a", 143), &db(ran)]);
            scenario.check(with_unavailable_registry(seen, &why, "sha256:db"));
            let action = scenario.act();
            assert_eq!(matches!(action, Some(Action::Step(Step::Start(_)))), starts, "{ran}: {action:?}");
        }
    }
}

#[test]
fn a_dead_registry_is_one_fault_that_a_start_does_not_clear() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..two_images() });
    let seen = |container: &Container| {
        let seen = observed('1', &[local("sha256:one", &['1'])], &[container]);
        with_unavailable_registry(seen, &failed(), "sha256:db")
    };
    scenario.check(seen(&running("a")));
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::ERROR], StatusValue::Errored));
    scenario.at(60).check(seen(&exited("a", 143)));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![running("a")] };
    scenario.input(Input::Stepped(up));
    scenario.act();
    scenario.input(Input::Stepped(StepResult::Unpinned));
    scenario.at(70).check(seen(&running("a")));
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::STARTED], StatusValue::Errored));
    scenario.at(80).check(observed('1', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert_eq!(scenario.kinds(), [Kind::RECOVERED]);
}

/// Stops the agent, and starts it again.
fn starts_again(scenario: &mut Scenario) {
    let written = serde_json::to_vec(scenario.service.durable()).unwrap();
    let durable = serde_json::from_slice(&written).unwrap();
    let (config, boot) = (scenario.service.shared_config(), boot_of("one", "one"));
    let (service, entries) = Service::new(config, durable, boot, StartReason::Start, scenario.now);
    scenario.service = service;
    scenario.entries.extend(entries);
    scenario.reconnected();
}

fn reloads(scenario: &mut Scenario) {
    scenario.reconfigures(ServiceConfig { heal_max_restarts: 1, ..two_images() });
}

#[test]
fn an_error_and_its_end_are_each_told_once_however_often_the_agent_is_restarted() {
    let good = || observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
    let bad = || with_unavailable_registry(good(), &failed(), "sha256:db");
    for restarts in [starts_again, reloads] {
        let mut scenario = Scenario::of(two_images());
        scenario.check(bad());
        assert_eq!(scenario.kinds(), [Kind::ERROR]);
        let since = scenario.record().since;
        restarts(scenario.at(60));
        assert_eq!((scenario.status(), scenario.record().since), (StatusValue::Errored, since));
        scenario.check(bad());
        assert_eq!(scenario.kinds(), []);
        restarts(scenario.at(120));
        scenario.check(good());
        assert_eq!((scenario.kinds(), scenario.record().errored), (vec![Kind::RECOVERED], None));
    }
    let mut scenario = Scenario::of(two_images());
    scenario.check(bad()).reconfigures(ServiceConfig { auto_update: false, ..two_images() });
    assert_eq!(scenario.record().errored, None, "no check would ever clear it");
}

#[test]
fn a_fault_is_reported_only_by_the_second_part_of_a_check() {
    let mut scenario = Scenario::of(two_images());
    let seen = |why: &Unanswered| {
        let seen = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
        with_unavailable_registry(seen, why, "sha256:db")
    };
    scenario.service.handle_request(ServiceRequest::Check, scenario.now);
    assert!(matches!(scenario.service.next(scenario.now), Some(Action::Check { is_manual: true, .. })));
    let generation = scenario.service.generation;
    let result = Ok(seen(&Unanswered::Pending));
    scenario.input(Input::Checked { generation, is_manual: true, result });
    assert_eq!(scenario.kinds(), []);
    assert_eq!(scenario.record().check_status, evenkeel_common::wire::CheckStatus::Checking);
    assert_eq!(scenario.record().last_check, None);
    scenario.input(Input::Checked { generation, is_manual: true, result: Ok(seen(&failed())) });
    assert_eq!(scenario.kinds(), [Kind::TRIGGER_FAILED, Kind::ERROR]);
    assert_eq!(scenario.record().check_status, evenkeel_common::wire::CheckStatus::Idle);
}

#[test]
fn the_shown_digest_is_the_running_one_after_an_update_and_after_a_rollback() {
    let shown = |scenario: &Scenario| scenario.record().images.unwrap()[0].digest.clone();
    let new = Container { id: "id-new".into(), image: ImageId("sha256:two".into()), ..running("a") };
    let mut scenario = on_probation();
    scenario.look(&[&new]).at(11).look(&[&new]);
    assert_eq!(scenario.record().updates_total, 1);
    assert_eq!(shown(&scenario), digest('2').to_string());
    let crashed = Container { state: State::Exited, exit_code: 1, ..new };
    let mut scenario = on_probation();
    scenario.at(1).look(&[&crashed]).at(2).look(&[&crashed]);
    scenario.act();
    scenario.input(Input::Stepped(StepResult::Diagnosed { log: String::new() }));
    scenario.act();
    let back = Container { id: "id-back".into(), ..running("a") };
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![back.clone()],
    }));
    scenario.look(&[&back]).at(20).look(&[&back]);
    assert_eq!(scenario.record().rollbacks_total, 1);
    assert_eq!(shown(&scenario), digest('1').to_string());
}

#[test]
fn the_shown_digest_follows_a_redeploy_even_if_the_service_is_not_polled() {
    let mut scenario = Scenario::of(ServiceConfig { auto_update: false, ..config() });
    assert_eq!(
        scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now).0,
        ServiceReply::Redeploying(Vec::new())
    );
    scenario.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    let new = Container { id: "id-new".into(), image: ImageId("sha256:two".into()), ..running("a") };
    for result in [
        StepResult::ImagesPinned { missing: Vec::new() },
        StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:two".into()))],
            labels: BTreeMap::new(),
        },
        StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![new.clone()] },
    ] {
        assert!(matches!(scenario.act(), Some(Action::Step(_))));
        scenario.input(Input::Stepped(result));
    }
    scenario.at(11).look(&[&new]);
    assert_eq!(scenario.record().updates_total, 1);
    assert_eq!(scenario.record().images.unwrap()[0].digest, digest('2').to_string());
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    let next = scenario.service.next(scenario.now);
    assert!(
        matches!(&next, Some(Action::Check { asked, .. }) if !asked.images),
        "sizes are read once more: {next:?}"
    );
}

#[test]
fn an_interrupted_probation_does_not_count_as_a_success() {
    let other = Container { id: "id-x".into(), image: ImageId("sha256:nine".into()), ..running("a") };
    let new = Container { id: "id-new".into(), image: ImageId("sha256:two".into()), ..running("a") };
    let crashed = Container { state: State::Exited, exit_code: 1, ..new.clone() };
    for (there, expected) in [
        (&new, Some(DeployOutcome::Succeeded)),
        (&other, Some(DeployOutcome::Inconclusive)),
        // Not decided yet: it has to be rolled back first.
        (&crashed, None),
    ] {
        let mut scenario = on_probation();
        scenario.look(&[there]).at(1).look(&[there]).at(11).look(&[there]);
        assert_eq!(scenario.service.take_ended().map(|ended| ended.outcome), expected, "{there:?}");
    }
}

#[test]
fn a_project_stopped_by_hand_reports_that() {
    let mut scenario = Scenario::of(ServiceConfig { auto_update: false, ..config() });
    let ended =
        |code| Container { finished_at: Some("2026-01-01T00:00:01Z".parse().unwrap()), ..exited("a", code) };
    let reason = |scenario: &Scenario| scenario.record().unhealthy_reason;
    scenario.look(&[&with_health("a", HealthState::Unhealthy)]);
    assert_eq!(reason(&scenario).as_deref(), Some("a is unhealthy"));
    scenario.look(&[&running("a")]);
    assert_eq!((scenario.record().healthy, reason(&scenario)), (Some(true), None));
    for code in [0, 143] {
        let mut scenario = Scenario::of(ServiceConfig { auto_update: false, ..config() });
        scenario.look(&[&running("a")]);
        scenario.event("id-a", EventKind::Kill { signal: Some(15) }).event("id-a", EventKind::Stop);
        scenario.at(2).look(&[&ended(code)]);
        assert_eq!(
            (scenario.status(), reason(&scenario).as_deref()),
            (StatusValue::Unhealthy, Some("stopped by hand"))
        );
    }
    scenario.at(2).look(&[&ended(3)]);
    assert_eq!(reason(&scenario).as_deref(), Some("a exited with code 3"), "it was not stopped by hand");
}

#[test]
fn images_are_absent_until_one_is_known() {
    let images = |scenario: &Scenario| scenario.record().images;
    let mut scenario = Scenario::of(config());
    assert_eq!(images(&scenario), None);
    let mut seen = observed('2', &[], &[]);
    seen.images[0].remote = None;
    seen.unanswered.insert(IMAGE.into(), failed());
    scenario.check(seen);
    assert_eq!(images(&scenario), None, "the registry did not answer, and there is no local image");
    scenario.check(observed('1', &[local("sha256:one", &['1'])], &[&running("web")]));
    assert_eq!(images(&scenario).map(|images| images.len()), Some(1));
}

#[test]
fn a_request_clears_exhausted_unless_it_is_skipped() {
    let exhausted = |config: ServiceConfig| {
        let mut scenario = Scenario::of(config);
        let restart = exhausted_restart_state();
        scenario.service.durable.restart_states.insert("a".into(), restart);
        scenario
    };
    let no_updates = ServiceConfig { auto_update: false, ..config() };
    let no_files = ServiceConfig { compose_files: Vec::new(), ..config() };
    let silent = ServiceConfig { silent: true, ..config() };
    for (config, request, why) in [
        (no_updates.clone(), ServiceRequest::Check, "auto_update is false"),
        (no_files, ServiceRequest::Redeploy, "no compose files configured"),
        (silent, ServiceRequest::Check, "silent is true"),
    ] {
        let mut scenario = exhausted(config);
        assert_eq!(scenario.status(), StatusValue::Exhausted);
        let (reply, entries) = scenario.service.handle_request(request, scenario.now);
        assert_eq!((reply, entries), (ServiceReply::Skipped(why), Vec::new()));
        assert_eq!(scenario.status(), StatusValue::Exhausted, "{why}: a skipped request changes nothing");
        assert!(!scenario.service.checks.is_due(), "{why}: nothing is checked");
    }
    let mut scenario = exhausted(no_updates);
    scenario.service.on_global_trigger();
    assert_ne!(scenario.status(), StatusValue::Exhausted);

    let mut one = exhausted(config());
    assert_eq!(one.service.handle_request(ServiceRequest::Check, one.now).0, ServiceReply::Accepted);
    let mut all = exhausted(config());
    all.service.on_global_trigger();
    assert_eq!(one.service.durable().restart_states, all.service.durable().restart_states);
    assert_ne!(all.status(), StatusValue::Exhausted);
}

fn exhausted_restart_state() -> crate::service::health::restart_state::RestartState {
    use crate::service::health::assess::Trouble;
    use crate::service::health::restart_state::{Problem, RestartState};
    let since = "2026-01-01T00:00:00Z".parse().unwrap();
    let what = Trouble::Words("it is down".into());
    let problem = Problem { what, ended: true, since, said: true, muted: false };
    RestartState { failures: 3, exhausted: true, problem: Some(problem), ..Default::default() }
}

#[test]
fn every_polled_service_has_a_next_check() {
    let next = "2026-01-01T00:05:00Z".parse().unwrap();
    let none = ServiceConfig { auto_update: false, ..config() };
    for (config, polled) in [
        (ServiceConfig { auto_update: true, ..none.clone() }, true),
        (ServiceConfig { auto_start: true, ..none.clone() }, true),
        (ServiceConfig { compose_watch: true, ..none.clone() }, true),
        (ServiceConfig { compose_watch: true, silent: true, ..none.clone() }, false),
        (none, false),
    ] {
        let scenario = Scenario::of(config);
        let around = StatusContext { next_poll: Some(next), ..undisturbed(scenario.now) };
        let record = scenario.service.record(PullProgress::default(), &around);
        assert_eq!(record.next_check.is_some(), polled, "{record:?}");
    }
}

#[test]
fn a_failed_redeploy_leaves_no_fault_that_no_check_would_clear() {
    let mut scenario = Scenario::of(ServiceConfig { auto_update: false, ..config() });
    let mut silent = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
    (silent.images[0].remote, silent.unanswered) = (None, [(IMAGE.to_owned(), failed())].into());
    let refused = CheckFault::Failed("container engine: readlink: invalid argument".into());
    for seen in [Ok(silent), Err(refused)] {
        assert_eq!(
            scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now).0,
            ServiceReply::Redeploying(Vec::new())
        );
        let generation = scenario.service.generation;
        scenario.input(Input::Checked { generation, is_manual: false, result: seen });
        assert_eq!(scenario.kinds(), [Kind::FORCE_REDEPLOY_FAILED], "reported once");
        assert_eq!((scenario.record().errored, scenario.act()), (None, None));
    }
}
