//! What is shown and told follows what is: images that run, registries that are silent, people who act.

use super::super::input::{CheckFault, Unanswered};
use super::super::outcome::DeployOutcome;
use super::*;

const DEAD: &str = "registry.example.com/db:1";

/// The same where a second image belongs to a registry that gives no digest.
fn beside_a_silent_registry(mut seen: Observation, why: &Unanswered, tagged: &str) -> Observation {
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
fn a_registry_that_is_dead_or_hangs_holds_up_neither_the_other_image_nor_its_update() {
    for why in [failed(), Unanswered::Pending] {
        let mut story = Story::of(two_images());
        let seen = observed('2', &[local("sha256:one", &['1'])], &[&running("a")]);
        story.check(beside_a_silent_registry(seen, &why, "sha256:db"));
        let Some(Action::Step(Step::PinImages { images, .. })) = story.act() else {
            panic!("{why:?}: no update")
        };
        assert_eq!(images.iter().map(|image| &*image.id.0).collect::<Vec<_>>(), ["sha256:one"]);
        let image_changes = &story.service.durable().deployment.as_ref().unwrap().plan().image_changes;
        assert_eq!(image_changes.iter().map(|m| m.configured.as_str()).collect::<Vec<_>>(), [IMAGE]);
    }
}

#[test]
fn a_registry_that_is_dead_or_hangs_holds_up_neither_compose_watch_nor_a_start_of_what_ran_before() {
    for why in [failed(), Unanswered::Pending] {
        let watch = ServiceConfig { compose_watch: true, ..two_images() };
        let mut story = Story::of(watch);
        let seen = |hash: &str| {
            let seen = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
            Observation {
                files: Files::Hash(hash.into()),
                ..beside_a_silent_registry(seen, &why, "sha256:db")
            }
        };
        story.check(seen("a"));
        assert_eq!(story.act(), None);
        story.at(10).check(seen("b"));
        assert!(matches!(story.act(), Some(Action::Step(Step::Start { .. }))), "{why:?}");

        let start = ServiceConfig { auto_start: true, ..two_images() };
        let db = |image: &str| Container {
            config_image: DEAD.into(),
            image: ImageId(image.into()),
            ..exited("db", 143)
        };
        for (ran, starts) in [("sha256:db", true), ("sha256:older", false)] {
            let mut story = Story::of(start.clone());
            let seen = observed('1', &[local("sha256:one", &['1'])], &[&exited("a", 143), &db(ran)]);
            story.check(beside_a_silent_registry(seen, &why, "sha256:db"));
            let action = story.act();
            assert_eq!(matches!(action, Some(Action::Step(Step::Start { .. }))), starts, "{ran}: {action:?}");
        }
    }
}

#[test]
fn a_dead_registry_is_one_fault_that_a_start_does_not_clear() {
    let mut story = Story::of(ServiceConfig { auto_start: true, auto_heal: false, ..two_images() });
    let seen = |container: &Container| {
        let seen = observed('1', &[local("sha256:one", &['1'])], &[container]);
        beside_a_silent_registry(seen, &failed(), "sha256:db")
    };
    story.check(seen(&running("a")));
    assert_eq!((story.kinds(), story.status()), (vec![Kind::ERROR], StatusValue::Errored));
    story.at(60).check(seen(&exited("a", 143)));
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { .. }))));
    let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![running("a")] };
    story.input(Input::Stepped(up));
    story.act();
    story.input(Input::Stepped(StepResult::Unpinned));
    story.at(70).check(seen(&running("a")));
    assert_eq!((story.kinds(), story.status()), (vec![Kind::STARTED], StatusValue::Errored));
    story.at(80).check(observed('1', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert_eq!(story.kinds(), [Kind::RECOVERED]);
}

#[test]
fn the_first_part_of_a_check_tells_no_fault_and_the_rest_does() {
    let mut story = Story::of(two_images());
    let seen = |why: &Unanswered| {
        let seen = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
        beside_a_silent_registry(seen, why, "sha256:db")
    };
    story.service.ask(ServiceRequest::Check, story.now);
    assert!(matches!(story.service.next(story.now), Some(Action::Check { asked: true, .. })));
    let generation = story.service.generation;
    let result = Ok(seen(&Unanswered::Pending));
    story.input(Input::Checked { generation, asked: true, result });
    assert_eq!(story.kinds(), []);
    assert_eq!(story.record().check_status, evenkeel_common::wire::CheckStatus::Checking);
    assert_eq!(story.record().last_check, None);
    story.input(Input::Checked { generation, asked: true, result: Ok(seen(&failed())) });
    assert_eq!(story.kinds(), [Kind::TRIGGER_FAILED, Kind::ERROR]);
    assert_eq!(story.record().check_status, evenkeel_common::wire::CheckStatus::Idle);
}

#[test]
fn the_digest_that_is_shown_is_the_one_that_runs_when_the_update_is_counted_and_when_it_is_undone() {
    let shown = |story: &Story| story.record().images.unwrap()[0].digest.clone();
    let new = Container { id: "id-new".into(), image: ImageId("sha256:two".into()), ..running("a") };
    let mut story = on_probation();
    story.look(&[&new]).at(11).look(&[&new]);
    assert_eq!(story.record().updates_total, 1);
    assert_eq!(shown(&story), digest('2').to_string());
    let crashed = Container { state: State::Exited, exit_code: 1, ..new };
    let mut story = on_probation();
    story.at(1).look(&[&crashed]).at(2).look(&[&crashed]);
    story.act();
    story.input(Input::Stepped(StepResult::Diagnosed { log: String::new() }));
    story.act();
    let back = Container { id: "id-back".into(), ..running("a") };
    story.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![back.clone()],
    }));
    story.look(&[&back]).at(20).look(&[&back]);
    assert_eq!(story.record().rollbacks_total, 1);
    assert_eq!(shown(&story), digest('1').to_string());
}

#[test]
fn the_digest_follows_a_redeploy_also_where_nothing_else_is_checked() {
    let mut story = Story::of(ServiceConfig { auto_update: false, ..config() });
    assert_eq!(
        story.service.ask(ServiceRequest::Redeploy, story.now).0,
        ServiceReply::Redeploying(Vec::new())
    );
    story.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    let new = Container { id: "id-new".into(), image: ImageId("sha256:two".into()), ..running("a") };
    for result in [
        StepResult::ImagesPinned { missing: Vec::new() },
        StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:two".into()))],
            labels: BTreeMap::new(),
        },
        StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![new.clone()] },
    ] {
        assert!(matches!(story.act(), Some(Action::Step(_))));
        story.input(Input::Stepped(result));
    }
    story.at(11).look(&[&new]);
    assert_eq!(story.record().updates_total, 1);
    assert_eq!(story.record().images.unwrap()[0].digest, digest('2').to_string());
    assert!(matches!(story.act(), Some(Action::Step(Step::Unpin { .. }))));
    story.input(Input::Stepped(StepResult::Unpinned));
    let next = story.service.next(story.now);
    assert!(matches!(next, Some(Action::Check { images: false, .. })), "sizes are read once more: {next:?}");
}

#[test]
fn a_probation_that_somebody_broke_off_is_no_success() {
    let other = Container { id: "id-x".into(), image: ImageId("sha256:nine".into()), ..running("a") };
    let new = Container { id: "id-new".into(), image: ImageId("sha256:two".into()), ..running("a") };
    let crashed = Container { state: State::Exited, exit_code: 1, ..new.clone() };
    for (there, expected) in [
        (&new, Some(DeployOutcome::Succeeded)),
        (&other, Some(DeployOutcome::Inconclusive)),
        // Not decided: it is to be undone first.
        (&crashed, None),
    ] {
        let mut story = on_probation();
        story.look(&[there]).at(1).look(&[there]).at(11).look(&[there]);
        assert_eq!(story.service.take_ended().map(|ended| ended.outcome), expected, "{there:?}");
    }
}

#[test]
fn a_project_that_a_person_stopped_says_that() {
    let mut story = Story::of(ServiceConfig { auto_update: false, ..config() });
    let ended =
        |code| Container { finished_at: Some("2026-01-01T00:00:01Z".parse().unwrap()), ..exited("a", code) };
    let reason = |story: &Story| story.record().unhealthy_reason;
    story.look(&[&with_health("a", HealthState::Unhealthy)]);
    assert_eq!(reason(&story).as_deref(), Some("a is unhealthy"));
    story.look(&[&running("a")]);
    assert_eq!((story.record().healthy, reason(&story)), (Some(true), None));
    for code in [0, 143] {
        let mut story = Story::of(ServiceConfig { auto_update: false, ..config() });
        story.look(&[&running("a")]);
        story.event("id-a", EventKind::Kill { signal: Some(15) }).event("id-a", EventKind::Stop);
        story.at(2).look(&[&ended(code)]);
        assert_eq!(
            (story.status(), reason(&story).as_deref()),
            (StatusValue::Unhealthy, Some("stopped by hand"))
        );
    }
    story.at(2).look(&[&ended(3)]);
    assert_eq!(reason(&story).as_deref(), Some("a exited with code 3"), "nobody stopped it");
}

#[test]
fn images_are_left_out_until_something_is_known_of_one() {
    let images = |story: &Story| story.record().images;
    let mut story = Story::of(config());
    assert_eq!(images(&story), None);
    let mut seen = observed('2', &[], &[]);
    seen.images[0].remote = None;
    seen.unanswered.insert(IMAGE.into(), failed());
    story.check(seen);
    assert_eq!(images(&story), None, "the registry did not answer, and nothing is here");
    story.check(observed('1', &[local("sha256:one", &['1'])], &[&running("web")]));
    assert_eq!(images(&story).map(|images| images.len()), Some(1));
}

#[test]
fn any_request_by_a_person_ends_exhausted_one_that_is_skipped_too_and_so_does_one_for_all() {
    let exhausted = |config: ServiceConfig| {
        let mut story = Story::of(config);
        let restart = patient_that_is_exhausted();
        story.service.durable.restart_states.insert("a".into(), restart);
        story
    };
    let no_updates = ServiceConfig { auto_update: false, ..config() };
    let no_files = ServiceConfig { compose_files: Vec::new(), ..config() };
    let silent = ServiceConfig { silent: true, ..config() };
    for (config, request, why) in [
        (no_updates.clone(), ServiceRequest::Check, "auto_update is false"),
        (no_files, ServiceRequest::Redeploy, "no compose files configured"),
        (silent, ServiceRequest::Check, "silent is true"),
    ] {
        let mut story = exhausted(config);
        assert_eq!(story.status(), StatusValue::Exhausted);
        let (reply, said) = story.service.ask(request, story.now);
        assert_eq!((reply, said), (ServiceReply::Skipped(why), Vec::new()));
        assert_ne!(story.status(), StatusValue::Exhausted, "{why}");
        assert!(!story.service.check_due, "{why}: nothing is checked");
    }
    let mut story = exhausted(no_updates);
    story.service.asked_with_all();
    assert_ne!(story.status(), StatusValue::Exhausted);

    let mut one = exhausted(config());
    assert_eq!(one.service.ask(ServiceRequest::Check, one.now).0, ServiceReply::Accepted);
    let mut all = exhausted(config());
    all.service.asked_with_all();
    assert_eq!(one.service.durable().restart_states, all.service.durable().restart_states);
    assert_ne!(all.status(), StatusValue::Exhausted);
}

fn patient_that_is_exhausted() -> super::super::restart_state::RestartState {
    super::super::restart_state::RestartState { failures: 3, exhausted: true, ..Default::default() }
}

#[test]
fn what_is_polled_has_a_next_check_whatever_it_is_polled_for() {
    let next = "2026-01-01T00:05:00Z".parse().unwrap();
    let none = ServiceConfig { auto_update: false, ..config() };
    for (config, polled) in [
        (ServiceConfig { auto_update: true, ..none.clone() }, true),
        (ServiceConfig { auto_start: true, ..none.clone() }, true),
        (ServiceConfig { compose_watch: true, ..none.clone() }, true),
        (ServiceConfig { compose_watch: true, silent: true, ..none.clone() }, false),
        (none, false),
    ] {
        let story = Story::of(config);
        let around =
            StatusContext { now: story.now, next_poll: Some(next), engine_error: None, state_error: None };
        let record = story.service.snapshot(PullProgress::default()).record(&around);
        assert_eq!(record.next_check.is_some(), polled, "{record:?}");
    }
}

#[test]
fn a_redeploy_that_fails_leaves_no_fault_where_no_check_would_find_it_over() {
    let mut story = Story::of(ServiceConfig { auto_update: false, ..config() });
    let mut silent = observed('1', &[local("sha256:one", &['1'])], &[&running("a")]);
    (silent.images[0].remote, silent.unanswered) = (None, [(IMAGE.to_owned(), failed())].into());
    let refused = CheckFault::Failed("container engine: readlink: invalid argument".into());
    for seen in [Ok(silent), Err(refused)] {
        assert_eq!(
            story.service.ask(ServiceRequest::Redeploy, story.now).0,
            ServiceReply::Redeploying(Vec::new())
        );
        let generation = story.service.generation;
        story.input(Input::Checked { generation, asked: false, result: seen });
        assert_eq!(story.kinds(), [Kind::FORCE_REDEPLOY_FAILED], "it is told once");
        assert_eq!((story.record().errored, story.act()), (None, None));
    }
}
