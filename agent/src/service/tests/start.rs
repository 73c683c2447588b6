//! Scenarios of projects that are started, forced up, or follow their compose files.

use super::*;
use crate::config::UpdateConfig;
use crate::model::{Awaited, Origin};
use crate::ports::Priority;
use crate::service::action::Expects;
use crate::service::gates::candidate::Unsigned;
use crate::service::observation::Unanswered;

#[test]
fn auto_start_pulls_and_starts_what_the_machine_has_never_run() {
    let stopped = exited("db", 0);
    let other = Container { config_image: "db:1".into(), ..running("db") };
    // Containers, whether the image is tagged here, auto_update; whether the project is brought up.
    for (containers, is_here, auto_update, starts) in [
        (vec![], false, true, true),
        (vec![], false, false, true),
        // Built here, and not what the registry has.
        (vec![], true, true, false),
        // It was here, and has been removed since.
        (vec![&stopped], false, true, false),
        // Something runs: nothing is recovered.
        (vec![&other], false, true, false),
    ] {
        let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_update, ..config() });
        let mut seen = observed('1', &[], &containers);
        seen.images[0].tagged = is_here.then(|| local("sha256:built", &[]));
        scenario.check(seen.clone());
        let pulls = matches!(
            scenario.act(),
            Some(Action::Step(Step::Start(BringUp { pull: PullPolicy::Missing, .. })))
        );
        assert_eq!(pulls, starts, "{seen:?}");
        assert_eq!(scenario.record().not_found.is_some(), !starts, "{seen:?}");
        assert_eq!(scenario.kinds().contains(&Kind::NOT_FOUND), !starts, "{seen:?}");
    }
}

#[test]
fn auto_start_expects_the_volumes_of_a_project_that_ran_here_before() {
    for (ran, expected) in [(false, Expects::Nothing), (true, Expects::Volumes)] {
        let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
        scenario.service.durable.origin = ran.then(Origin::default);
        // The engine has lost containers and images.
        scenario.check(observed('1', &[], &[]));
        let step = scenario.act();
        let Some(Action::Step(Step::Start(BringUp { expects, .. }))) = step else { panic!("{step:?}") };
        assert_eq!(expects, expected);
    }
}

#[test]
fn a_gate_holds_the_first_start_too() {
    let update = crate::config::UpdateConfig { approve: true, ..Default::default() };
    let update = Some(Arc::new(update));
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, update, ..config() });
    scenario.check(observed('1', &[], &[]));
    assert_eq!(scenario.act(), None);
    assert!(scenario.record().waiting.is_some(), "it says what it waits for");
    scenario.service.handle_request(ServiceRequest::Approve(None), scenario.now);
    scenario.check(observed('1', &[], &[]));
    starts_with_digest(&mut scenario);
}

#[test]
fn a_gate_does_not_hold_the_start_of_the_digest_that_ran_here_before_the_engine_lost_its_images() {
    let update = Arc::new(UpdateConfig { approve: true, ..Default::default() });
    for (ran, starts) in [('1', true), ('2', false)] {
        let update = Some(update.clone());
        let mut scenario = Scenario::of(ServiceConfig { auto_start: true, update, ..config() });
        scenario.service.durable.images.of(IMAGE).published = Some(digest(ran));
        scenario.check(observed('1', &[], &[]));
        assert_eq!(scenario.record().waiting.is_none(), starts, "{ran}");
        if starts {
            starts_with_digest(&mut scenario);
        } else {
            assert_eq!(scenario.act(), None);
        }
    }
}

/// Exactly digest 1 is pulled before the whole project is brought up. Compose may still pull the images of others.
fn starts_with_digest(scenario: &mut Scenario) {
    let step = scenario.act();
    assert!(matches!(step, Some(Action::Step(Step::PinImages { .. }))), "{step:?}");
    scenario.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    let Some(Action::Step(Step::Pull { images, .. })) = scenario.act() else { panic!("no pull") };
    let digests: Vec<_> = images.into_iter().map(|(_, source)| source.digest).collect();
    assert_eq!(digests, [Some(digest('1'))]);
    scenario.input(Input::Stepped(StepResult::Pulled {
        ids: vec![(IMAGE.into(), ImageId("sha256:one".into()))],
        labels: BTreeMap::new(),
    }));
    let Some(Action::Step(Step::Start(up))) = scenario.act() else { panic!("not started") };
    assert_eq!((up.pull, up.up_mode), (PullPolicy::Missing, UpMode::Changed));
    let tags: Vec<_> = up.tags.into_iter().map(|(tag, image)| (tag, image.id)).collect();
    assert_eq!(tags, [(Reference::parse(IMAGE).unwrap(), ImageId("sha256:one".into()))]);
}

#[test]
fn a_first_start_pulls_the_digest_that_was_verified_and_not_what_its_tag_names_by_then() {
    let signed =
        || crate::config::UpdateConfig { signed_by: vec!["/etc/key.pub".into()], ..Default::default() };
    let gated = |name: &str| ServiceConfig {
        name: name.into(),
        auto_start: true,
        update: Some(Arc::new(signed())),
        ..config()
    };
    let mut own = Scenario::of(gated("web"));
    own.check(observed('1', &[], &[]));
    starts_with_digest(&mut own);
    assert_eq!(own.record().not_found, None);

    // Another service of the project requires the signature.
    let mut other = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    other.service.project.services = [Arc::new(gated("other"))].into();
    other.check(observed('1', &[], &[]));
    starts_with_digest(&mut other);
}

#[test]
fn a_first_start_with_gates_waits_until_all_images_may_be_started() {
    let update = crate::config::UpdateConfig { signed_by: vec!["/etc/key.pub".into()], ..Default::default() };
    let reference = Reference::parse(API).unwrap();
    let mut images = config().images;
    images.push(ConfiguredImage { configured: API.into(), reference: reference.clone() });
    let config = ServiceConfig { auto_start: true, images, update: Some(Arc::new(update)), ..config() };
    let mut scenario = Scenario::of(config);
    let mut seen = observed('1', &[], &[]);
    let mut api = ImageView::new(API.into(), reference);
    api.remote = Some(digest('5'));
    seen.images.push(api);
    seen.unsigned.insert(API.into(), crate::service::gates::candidate::Unsigned::Missing);
    scenario.check(seen.clone());
    assert_eq!(scenario.act(), None);
    seen.unsigned.clear();
    scenario.check(seen);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    scenario.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    let Some(Action::Step(Step::Pull { images, .. })) = scenario.act() else { panic!("no pull") };
    assert_eq!(images.len(), 2);
}

#[test]
fn a_project_that_is_stopped_for_the_snapshot_of_another_service_is_not_started() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    let seen = observed('1', &[local("sha256:one", &['1'])], &[&exited("a", 137)]);
    scenario.check(Observation { is_at_rest: true, ..seen.clone() });
    assert_eq!(scenario.act(), None);
    scenario.check(seen);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))), "nobody else starts it");
}

#[test]
fn a_project_whose_files_were_moved_is_not_started_in_the_directory_it_had_before() {
    let auto = || ServiceConfig { auto_start: true, auto_heal: false, ..config() };
    let one = [local("sha256:one", &['1'])];
    // The compose file after a reload, and the project directory.
    for (file, folder) in [("/srv/web.yml", Some("/opt/web")), ("/srv/shop/web.yml", None)] {
        let mut scenario = Scenario::of(auto());
        let origin = Origin { folder: Some("/opt/web".into()), env_files: Vec::new() };
        scenario.check(observed('1', &one, &[&Container { origin, ..running("a") }]));
        scenario.reconfigures(ServiceConfig { compose_files: vec![file.into()], ..auto() });
        scenario.check(observed('1', &one, &[&exited("a", 137)]));
        let step = scenario.act();
        let Some(Action::Step(Step::Start(BringUp { project, .. }))) = step else { panic!("{step:?}") };
        assert_eq!(project.folder, folder.map(std::path::PathBuf::from), "{file}");
    }
}

#[test]
fn a_project_that_does_not_run_is_started_when_the_digests_match() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    scenario.check(observed('1', &[local("sha256:one", &['1'])], &[&exited("a", 137)]));
    let step = scenario.act();
    let is_urgent = |up: &BringUp| !up.down && up.priority == Priority::Urgent;
    assert!(matches!(&step, Some(Action::Step(Step::Start(up))) if is_urgent(up)), "{step:?}");
    let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![running("a")] };
    scenario.input(Input::Stepped(up));
    assert_eq!(scenario.kinds(), [Kind::STARTED]);
}

#[test]
fn what_is_started_again_runs_the_image_of_before_whatever_its_tag_names_by_now() {
    for is_unproven in [false, true] {
        let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
        let one = ImageId("sha256:one".into());
        scenario.service.durable.images.of(IMAGE).unproven = is_unproven.then(|| one.clone());
        let mut seen = observed('2', &[], &[&exited("a", 137)]);
        seen.images[0].tagged = Some(local("sha256:two", &['2']));
        scenario.check(seen);
        let Some(Action::Step(Step::Start(BringUp { displaced, .. }))) = scenario.act() else {
            panic!("it is not started")
        };
        let kept: Vec<(Reference, ImageId)> =
            displaced.into_iter().map(|displaced| (displaced.tag, displaced.runs)).collect();
        let expected = if is_unproven { vec![] } else { vec![(Reference::parse(IMAGE).unwrap(), one)] };
        assert_eq!(kept, expected);
    }
}

#[test]
fn a_project_that_the_healer_has_given_up_is_not_started_until_someone_acts() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, heal_max_restarts: 1, ..config() });
    let seen = |down: &Container| observed('1', &[local("sha256:one", &['1'])], &[down]);
    let down = exited("a", 7);
    scenario.look(&[&down]);
    assert_eq!(scenario.at(2).look(&[&down]).restarts(), ["a"]);
    let again = Container { started_at: scenario.seconds(3), finished_at: scenario.seconds(4), ..down };
    scenario.at(3).check(seen(&again));
    assert_eq!(scenario.act(), None, "the healer watches its restart");
    scenario.at(5).look(&[&again]);
    assert_eq!(scenario.status(), StatusValue::Exhausted);
    for second in [10, 100, 1000] {
        scenario.at(second).look(&[&again]).check(seen(&again));
        assert_eq!(scenario.act(), None, "{second}");
    }
    scenario.service.handle_request(ServiceRequest::Unblock, scenario.now);
    scenario.check(seen(&again));
    assert!(scenario.act().is_some());
}

#[test]
fn a_project_whose_container_waits_for_the_healer_is_not_started_within_the_cooldown() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    let seen = |down: &Container| observed('1', &[local("sha256:one", &['1'])], &[down]);
    let down = exited("a", 7);
    scenario.look(&[&down]);
    assert_eq!(scenario.at(2).look(&[&down]).restarts(), ["a"]);
    let again = Container { started_at: scenario.seconds(3), finished_at: scenario.seconds(4), ..down };
    scenario.at(5).look(&[&again]).at(10).check(seen(&again));
    assert_eq!(scenario.act(), None);
    // Without the healer, nobody else starts it.
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    scenario.look(&[&again]).at(10).check(seen(&again));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
}

/// Other images in the compose files may never have been present locally. Compose would pull one that is withheld as well, but
/// only if its tag names none here.
#[test]
fn compose_may_pull_missing_images_unless_it_would_pull_one_that_is_withheld() {
    type SetUp = fn(&mut Scenario, &mut Observation);
    let nothing: SetUp = |_, _| ();
    let blocked: SetUp = |scenario, _| scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    let elsewhere: SetUp = |_, seen| seen.blocked_elsewhere = vec![blocked_by("api")];
    let unanswered: SetUp = |_, seen| {
        seen.images[0].remote = None;
        seen.unanswered.insert(IMAGE.into(), Unanswered::Failed("the registry is away".into()));
    };
    let unsigned: SetUp = |_, seen| {
        seen.unsigned.insert(IMAGE.into(), Unsigned::Missing);
    };
    let failed: SetUp =
        |scenario, _| scenario.service.durable.images.of(IMAGE).failed_digests.push(digest('2'));
    let v1 = [local("sha256:one", &['1'])];
    let web = running("web");
    let other = Container { config_image: "db:1".into(), ..running("db") };
    // The digest in the registry, the image that runs here, whether the tag names it.
    for (remote, set_up, runs, is_tagged, expected) in [
        ('1', nothing, true, true, true),
        ('2', blocked, true, true, true),
        ('2', blocked, true, false, true), // it is tagged again
        ('2', blocked, false, false, false),
        ('1', elsewhere, true, true, true),
        ('1', elsewhere, false, false, false),
        ('2', unsigned, true, true, true),
        ('2', unsigned, false, false, false),
        ('2', unanswered, true, true, false), // it may be pruned, and the registry may answer by then
        // A person has edited the files: they name another tag than the one that runs.
        ('2', nothing, false, false, true),
        ('2', failed, false, false, false),
    ] {
        let mut scenario = Scenario::of(config());
        let images = if runs { v1.as_slice() } else { &[] };
        let mut seen = observed(remote, images, &[if runs { &web } else { &other }]);
        seen.images[0].tagged = images.first().filter(|_| is_tagged).cloned();
        set_up(&mut scenario, &mut seen);
        let about = format!("{seen:?}");
        scenario.check(seen);
        assert!(scenario.service.begin(Cause::ComposeChanged, scenario.now), "{about}");
        let deployment = scenario.service.durable().deployment.as_ref().unwrap();
        assert_eq!(deployment.plan().pull_missing, expected, "{about}");
    }
}

#[test]
fn an_image_that_was_never_here_is_not_pulled_for_an_edit_if_a_gate_opens_for_one_digest() {
    let update = UpdateConfig { approve: true, ..UpdateConfig::default() };
    let mut scenario = Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    let other = Container { config_image: "db:1".into(), ..running("db") };
    scenario.check(observed('2', &[], &[&other]));
    assert!(scenario.service.begin(Cause::ComposeChanged, scenario.now));
    assert!(!scenario.service.durable().deployment.as_ref().unwrap().plan().pull_missing);
}

#[test]
fn a_finished_one_shot_is_not_started_again_at_every_check() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    scenario.check(observed('1', &[local("sha256:one", &['1'])], &[&exited("job", 0)]));
    assert_eq!(scenario.act(), None);
}

#[test]
fn stuck_containers_are_brought_up_first_and_taken_down_once_per_cooldown() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    let seen = || observed('1', &[local("sha256:one", &['1'])], &[&created]);
    let mut forced = Vec::new();
    for second in (0..130).step_by(10) {
        scenario.at(second).check(seen());
        while let Some(Action::Step(step)) = scenario.act() {
            let containers = vec![created.clone()];
            scenario.input(Input::Stepped(match step {
                Step::Start(BringUp { down, .. }) => {
                    forced.push((second, down));
                    StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers }
                }
                Step::Unpin { .. } => StepResult::Unpinned,
                other => panic!("{other:?}"),
            }));
        }
    }
    let expected = [(10, false), (10, true), (80, false), (80, true)];
    assert_eq!(forced, expected, "in the second cycle, and not again within the cooldown of a minute");
}

#[test]
fn what_compose_holds_back_until_others_are_ready_is_not_forced_up() {
    let web = |awaited| Container {
        state: State::Created,
        started_at: None,
        waits_for: vec![("other".into(), awaited)],
        ..running("web")
    };
    let behind_others = Container {
        state: State::Created,
        started_at: None,
        waits_for: vec![("db".into(), Awaited::Healthy)],
        ..running("other")
    };
    for (awaited, other, is_held_back) in [
        (Awaited::Completed, running("other"), true),
        (Awaited::Completed, exited("other", 0), false),
        (Awaited::Healthy, with_health("other", HealthState::Starting), true),
        (Awaited::Healthy, with_health("other", HealthState::Healthy), false),
        (Awaited::Healthy, with_health("other", HealthState::Unhealthy), false),
        (Awaited::Healthy, running("other"), false),
        (Awaited::Healthy, exited("other", 1), false),
        (Awaited::Healthy, behind_others, true),
    ] {
        let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
        let web = web(awaited);
        let db = with_health("db", HealthState::Starting);
        let seen = || observed('1', &[local("sha256:one", &['1'])], &[&web, &other, &db]);
        let mut is_forced = |second: i64| {
            scenario.at(second).check(seen());
            matches!(scenario.act(), Some(Action::Step(Step::Start(_))))
        };
        assert!(!is_forced(0));
        assert_eq!(is_forced(20), !is_held_back, "{awaited:?} {other:?}");
        if is_held_back {
            assert!(!is_forced(3590) && !is_forced(3600), "it counts as stuck from now on");
            assert!(is_forced(3620), "{awaited:?} {other:?}");
        }
    }
}

#[test]
fn stuck_containers_are_forced_up_without_waiting_for_the_next_cycle() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    let seen = || observed('1', &[local("sha256:one", &['1'])], &[&created]);
    scenario.check(seen());
    assert_eq!(scenario.act(), None);
    assert_eq!(scenario.service.wake_at(scenario.now), scenario.seconds(10));
    scenario.at(10);
    assert!(matches!(scenario.service.next(scenario.now), Some(Action::Check { .. })), "by itself");
    scenario.check(seen());
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(BringUp { down: false, .. })))));
}

#[test]
fn only_the_stuck_services_are_forced_up_and_no_service_that_a_person_has_stopped() {
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    for (unlisted_files, expected) in [
        (Vec::new(), UpMode::Services(vec!["a".into()])),
        (vec!["/srv/shop/more.yml".into()], UpMode::StartServices(vec!["a".into()])),
    ] {
        let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
        let containers = [&created, &exited("worker", 143), &running("web")];
        let seen = observed('1', &[local("sha256:one", &['1'])], &containers);
        let seen = Observation { unlisted_files, ..seen };
        for second in [0, 10] {
            scenario.at(second).check(seen.clone());
        }
        let Some(Action::Step(Step::Start(BringUp { up_mode, .. }))) = scenario.act() else {
            panic!("it is stuck")
        };
        assert_eq!(up_mode, expected);
    }
}

/// Its own restart policy causes events all the time; they do not mean that someone is working on it.
#[test]
fn a_restarting_container_is_taken_down_despite_the_events_of_its_restart_policy() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    let looping =
        Container { state: State::Restarting, restart_policy: RestartPolicy::Always, ..running("a") };
    let seen = || observed('1', &[local("sha256:one", &['1'])], &[&looping]);
    for second in [0, 10] {
        scenario.at(second).event("id-a", EventKind::Start);
        scenario.event("id-a", EventKind::Die { exit_code: 1 }).check(seen());
        if second == 0 {
            assert_eq!(scenario.act(), None);
        }
    }
    assert!(
        matches!(scenario.act(), Some(Action::Step(Step::Start(BringUp { down: true, .. })))),
        "in the second cycle"
    );
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    scenario.check(seen()).at(9).event("id-a", EventKind::Other("create".into()));
    scenario.at(10).check(seen());
    assert_eq!(scenario.act(), None, "someone is working on it");
}

#[test]
fn a_failed_start_is_a_fault_until_its_containers_run() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    let seen = |container: &Container| observed('1', &[local("sha256:one", &['1'])], &[container]);
    for second in (0..60).step_by(10) {
        scenario.at(second).check(seen(&created));
        while let Some(Action::Step(step)) = scenario.act() {
            let error = crate::model::ComposeError::new("port is taken");
            scenario.input(Input::Stepped(match step {
                Step::Start(_) => {
                    StepResult::Started { up: Err(error), named: Vec::new(), containers: Vec::new() }
                }
                Step::RestoreTags { .. } => StepResult::TagsRestored,
                Step::Unpin { .. } => StepResult::Unpinned,
                other => panic!("{other:?}"),
            }));
        }
    }
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::ERROR], StatusValue::Errored));
    scenario.at(70).check(seen(&running("a")));
    assert_eq!(scenario.kinds(), [Kind::RECOVERED]);
}

#[test]
fn an_edit_that_another_service_of_the_project_was_the_last_to_apply_is_not_applied_again() {
    let start = Scenario::of(config()).start;
    let applied = |hash: &str, ago: i64| {
        Some(FilesApplied { hash: hash.into(), at: start - SignedDuration::from_secs(ago) })
    };
    // What this service has applied, what another one has applied, and whether the files "two" are applied now.
    for (own, elsewhere, is_applied) in [
        (None, None, true),
        (None, applied("two", 1), false),
        (None, applied("one", 1), true),
        (applied("one", 5), applied("two", 1), false),
        // They were edited and put back: the other one has not seen the edit between.
        (applied("one", 1), applied("two", 5), true),
    ] {
        let watching = ServiceConfig { compose_watch: true, auto_update: false, ..config() };
        let durable =
            Durable { files_hash: Some("one".into()), files_applied: own.clone(), ..Durable::default() };
        let mut scenario = Scenario::of(config());
        scenario.service =
            Service::new(Arc::new(watching), durable, boot_of("one", ""), StartReason::Start, start).0;
        scenario.reconnected();
        scenario.at(10).check(Observation {
            files: Files::Hash("two".into()),
            files_applied_elsewhere: elsewhere.clone(),
            ..Observation::default()
        });
        let begun = scenario.act();
        assert_eq!(begun.is_some(), is_applied, "{own:?} {elsewhere:?}: {begun:?}");
        assert_eq!(scenario.service.durable().files_hash.as_deref(), Some("two"));
        assert_eq!(scenario.service.durable().files_pending, is_applied);
    }
}

#[test]
fn changed_compose_files_are_deployed_once_and_retried_after_a_failure() {
    let watching = ServiceConfig { compose_watch: true, auto_update: false, ..config() };
    let mut scenario = Scenario::of(watching);
    let seen = |hash: &str| Observation { files: Files::Hash(hash.into()), ..Observation::default() };
    scenario.check(seen("one"));
    assert_eq!(scenario.act(), None, "the first check only records the hash");
    scenario.at(10).check(seen("two"));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
    assert_eq!(scenario.service.durable().deployment.as_ref().unwrap().plan().cause, Cause::ComposeChanged);
    assert_eq!(scenario.service.durable().files_hash.as_deref(), Some("two"), "stored when it is journaled");
    let error = crate::model::ComposeError::new("port is taken");
    scenario.input(Input::Stepped(StepResult::Started {
        up: Err(error),
        named: Vec::new(),
        containers: Vec::new(),
    }));
    assert_eq!(scenario.status(), StatusValue::Errored);
    scenario.act();
    scenario.input(Input::Stepped(StepResult::TagsRestored));
    scenario.act();
    scenario.input(Input::Stepped(StepResult::Unpinned));
    assert_eq!(scenario.act(), None);

    scenario.at(20).check(seen("two"));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))), "a failed deploy stays pending");
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: Vec::new(),
    }));
    scenario.act();
    scenario.input(Input::Stepped(StepResult::Unpinned));
    assert_eq!(scenario.kinds(), [Kind::ERROR, Kind::COMPOSE_DRIFT, Kind::RECOVERED]);
    let applied = scenario.service.durable().files_applied.clone();
    assert_eq!(
        applied,
        Some(FilesApplied { hash: "two".into(), at: scenario.now }),
        "only once it has succeeded"
    );
    scenario.at(30).check(seen("two"));
    assert_eq!(scenario.act(), None);
}

#[test]
fn unusable_files_are_not_deployed_and_reported_once() {
    let mut scenario = Scenario::of(ServiceConfig { compose_watch: true, auto_update: false, ..config() });
    let seen = |files: Files| Observation { files, ..Observation::default() };
    scenario.check(seen(Files::Hash("one".into())));
    for second in [10, 20, 30] {
        scenario.at(second).check(seen(Files::Unusable("compose file x: does not exist".into())));
        assert_eq!(scenario.act(), None);
    }
    scenario.at(40).check(seen(Files::Hash("one".into())));
    assert_eq!(scenario.act(), None);
    assert_eq!(scenario.kinds(), [Kind::ERROR, Kind::RECOVERED]);
}

#[test]
fn files_of_which_one_has_disappeared_are_applied_only_by_a_redeploy() {
    let watching = ServiceConfig { compose_watch: true, ..config() };
    let seen = |files: Files| {
        let seen = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
        Observation { files, ..seen }
    };
    let gone = || Files::Missing { hash: "two".into(), path: "/srv/.env".into() };
    let mut scenario = Scenario::of(watching.clone());
    scenario.check(seen(Files::Hash("one".into())));
    for second in [10, 20] {
        scenario.at(second).check(seen(gone()));
        assert_eq!((scenario.act(), scenario.status()), (None, StatusValue::Errored));
    }
    assert_eq!(scenario.entries.len(), 1, "told once: {:?}", scenario.entries);
    assert!(scenario.entries[0].message.contains("/srv/.env"), "{:?}", scenario.entries);
    assert_eq!(scenario.service.durable().files_hash.as_deref(), Some("one"));
    scenario.at(30).check(seen(Files::Hash("one".into())));
    assert_eq!((scenario.kinds(), scenario.act()), (vec![Kind::ERROR, Kind::RECOVERED], None), "it is back");

    scenario.at(40).check(seen(gone()));
    scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    scenario.at(50).check(seen(gone()));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))), "it was requested");
    assert_eq!(scenario.service.durable().files_hash.as_deref(), Some("two"));

    // Another service of the project was redeployed.
    let mut other = Scenario::of(watching);
    other.check(seen(Files::Hash("one".into())));
    let applied = FilesApplied { hash: "two".into(), at: other.now };
    other.at(10).check(Observation { files_applied_elsewhere: Some(applied), ..seen(gone()) });
    assert_eq!((other.act(), other.kinds()), (None, Vec::new()));
    assert_eq!(other.service.durable().files_hash.as_deref(), Some("two"));
}

#[test]
fn settings_of_an_unlisted_compose_file_are_never_lost_by_accident() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, compose_watch: true, ..config() });
    let old = [local("sha256:one", &['1'])];
    let unlisted_files =
        |seen: Observation| Observation { unlisted_files: vec!["/srv/shop/more.yml".into()], ..seen };
    for (second, seen) in [
        (0, observed('2', &old, &[&running("a")])),
        (20, Observation { files: Files::Hash("one".into()), ..observed('1', &old, &[&running("a")]) }),
        (30, Observation { files: Files::Hash("two".into()), ..observed('2', &old, &[&running("a")]) }),
    ] {
        scenario.at(second).check(unlisted_files(seen));
        assert_eq!(scenario.act(), None, "at {second}");
    }
    assert!(scenario.entries[0].message.contains("/srv/shop/more.yml"), "{:?}", scenario.entries);
    assert_eq!((scenario.kinds(), scenario.status()), (vec![Kind::ERROR], StatusValue::Errored));

    assert_eq!(
        scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now).0,
        ServiceReply::Redeploying(Vec::new())
    );
    scenario.check(unlisted_files(observed('2', &old, &[&running("a")])));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))), "it was requested");

    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    scenario.check(unlisted_files(observed('2', &old, &[&exited("a", 1)])));
    let Some(Action::Step(Step::Start(BringUp { up_mode, down, .. }))) = scenario.act() else {
        panic!("it is down")
    };
    assert_eq!((up_mode, down), (UpMode::StartOnly, false), "started as it is");
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![running("a")],
    }));
    scenario.act();
    scenario.input(Input::Stepped(StepResult::Unpinned));
    scenario.at(10).check(unlisted_files(observed('1', &old, &[&running("a")])));
    assert_eq!((scenario.kinds(), scenario.act()), (vec![Kind::ERROR, Kind::STARTED], None), "reported once");
    for second in [20, 30, 40] {
        scenario.at(second).check(unlisted_files(observed('1', &old, &[&exited("a", 1)])));
        scenario.act();
        let error = crate::model::ComposeError::new("port is taken");
        scenario.input(Input::Stepped(StepResult::Started {
            up: Err(error),
            named: Vec::new(),
            containers: vec![exited("a", 1)],
        }));
        scenario.act();
        scenario.input(Input::Stepped(StepResult::TagsRestored));
        scenario.act();
        scenario.input(Input::Stepped(StepResult::Unpinned));
    }
    assert_eq!(scenario.kinds(), [Kind::ERROR], "one fault, not two alternating ones");
}
