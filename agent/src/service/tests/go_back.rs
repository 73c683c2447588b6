//! Scenarios of going back to earlier images: by hand, and late (DECISIONS 14).

mod accepted;
mod both_ways;
mod watch;

use evenkeel_common::wire::Level;

use super::*;
use crate::config::UpdateConfig;
use crate::model::Difference;
use crate::model::snapshot::{KeptFolder, SnapshotRules};
use crate::service::event::{Event, GoBackEnd, GoBackResult};
use crate::service::input::CheckFault;
use crate::service::observation::{Definition, Unanswered};
use crate::service::rollout::plan::{Cause, Earlier, GoBack, GoBackReason, ImageChange, LateFailure};
use crate::service::rollout::snapshot::{KeptKind, KeptSnapshot};

fn id(n: char) -> ImageId {
    ImageId(format!("sha256:image-{n}").into())
}

/// The container of the service on an image.
fn on(n: char) -> Container {
    Container { id: format!("web-{n}"), image: id(n), ..running("web") }
}

/// What is seen with `remote` in the registry and `runs` on the machine.
pub(super) fn seen(remote: char, runs: char) -> Observation {
    let image = LocalImage { id: id(runs), digests: vec![digest(runs)], size: 1 };
    observed(remote, &[image], &[&on(runs)])
}

fn watched() -> ServiceConfig {
    let update = UpdateConfig { watch: Duration::from_mins(10), ..UpdateConfig::default() };
    ServiceConfig { update: Some(Arc::new(update)), ..config() }
}

impl Scenario {
    fn performs_step(&mut self, result: StepResult) -> Step {
        let action = self.act();
        let Some(Action::Step(step)) = action else { panic!("no step is due, but {action:?}") };
        self.input(Input::Stepped(result));
        step
    }

    /// Deploys `to`, whose containers come up at the current second, until its probation is over 20 seconds later.
    fn deploys(&mut self, to: char) -> &mut Self {
        self.comes_up_on(to);
        self.later(20).look(&[&on(to)]);
        self.performs_step(StepResult::Unpinned);
        self
    }

    fn comes_up_on(&mut self, to: char) -> &mut Self {
        self.performs_step(StepResult::ImagesPinned { missing: Vec::new() });
        self.performs_step(StepResult::Pulled { ids: vec![(IMAGE.into(), id(to))], labels: BTreeMap::new() });
        self.performs_step(StepResult::Started {
            up: Ok(String::new()),
            named: Vec::new(),
            containers: vec![on(to)],
        });
        self.look(&[&on(to)])
    }

    fn later(&mut self, seconds: i64) -> &mut Self {
        self.now += SignedDuration::from_secs(seconds);
        self
    }

    /// Updates to each of these images.
    pub(super) fn updated_to(&mut self, all: &[(char, char)]) -> &mut Self {
        for (from, to) in all {
            self.later(60).check(seen(*to, *from)).deploys(*to);
        }
        self.entries.clear();
        self
    }

    pub(super) fn asked_back(&mut self, to: Option<char>) -> ServiceReply {
        let request = ServiceRequest::Rollback { to: to.map(digest), data: false };
        let (reply, entries) = self.service.handle_request(request, self.now);
        self.entries.extend(entries);
        reply
    }

    fn history_shown(&self) -> Vec<(char, bool)> {
        let nth = |digest: &Digest| digest.as_str().chars().last().unwrap();
        self.service.history().map(|(_, one)| (nth(&one.digest), one.left_at.is_some())).collect()
    }

    fn blocked_digest(&self) -> Option<&Digest> {
        self.service.durable().images.get(IMAGE).blocked.as_ref()
    }
}

#[test]
fn what_ran_before_the_first_deployment_counts_as_proven_and_each_digest_is_listed_once() {
    let mut scenario = Scenario::of(config());
    assert_eq!(scenario.history_shown(), []);
    scenario.updated_to(&[('1', '2'), ('2', '3')]);
    assert_eq!(scenario.history_shown(), [('3', false), ('2', true), ('1', true)]);
    scenario.updated_to(&[('3', '2')]);
    assert_eq!(scenario.history_shown(), [('2', false), ('3', true), ('1', true)]);
}

#[test]
fn a_rollback_by_hand_counts_as_a_requested_check_so_that_it_can_be_followed() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    assert_eq!(scenario.record().requested_checks, None);
    scenario.asked_back(None);
    let checks = scenario.record().requested_checks.expect("one was requested");
    assert_eq!((checks.requested, checks.ended, checks.undecided), (1, 0, true));
    // The check begins, and ends.
    scenario.act();
    scenario.later(5).check(seen('2', '2'));
    let checks = scenario.record().requested_checks.expect("one was requested");
    assert_eq!((checks.requested, checks.ended, checks.undecided), (1, 1, true));
}

#[test]
fn a_person_goes_back_to_what_was_proven_before_and_what_is_left_is_blocked() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    assert_eq!(scenario.asked_back(None), ServiceReply::RollingBack(digest('1')));
    // The registry need not answer.
    let mut away = seen('2', '2');
    away.images[0].remote = None;
    away.unanswered.insert(IMAGE.into(), Unanswered::Failed("the registry is away".into()));
    scenario.later(5).check(away);
    let Some(Action::Step(Step::PinImages { images, .. })) = scenario.act() else { panic!("nothing begins") };
    assert_eq!(images.iter().map(|image| image.id.clone()).collect::<Vec<_>>(), [id('2')]);
    scenario.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    let Some(Action::Step(Step::Pull { images, local, .. })) = scenario.act() else { panic!("no pull") };
    assert_eq!(images[0].1.digest, Some(digest('1')));
    assert_eq!(local.get(IMAGE), Some(&id('1')), "what is on the disk is not pulled");
    scenario.input(Input::Stepped(StepResult::Pulled {
        ids: vec![(IMAGE.into(), id('1'))],
        labels: BTreeMap::new(),
    }));
    scenario.performs_step(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![on('1')],
    });
    assert_eq!(scenario.blocked_digest(), None, "not before it is proven");
    scenario.look(&[&on('1')]).later(20).look(&[&on('1')]);
    scenario.performs_step(StepResult::Unpinned);
    let entry = scenario.entries.iter().find(|entry| entry.event == Kind::ROLLED_BACK).expect("it is told");
    assert_eq!((entry.level, entry.reason.as_deref()), (Level::Info, Some("rolled back by hand")));
    let digests = [entry.old_digest.as_deref(), entry.new_digest.as_deref()];
    assert_eq!(digests, [Some(digest('1').as_str()), Some(digest('2').as_str())]);
    assert_eq!(entry.image, None, "it is no verdict for the fleet");
    assert_eq!(scenario.blocked_digest(), Some(&digest('2')));
    assert_eq!(scenario.history_shown(), [('1', false), ('2', true)]);
    let record = scenario.record();
    let left = record.failed_update.expect("the reason is shown");
    assert_eq!((left.reason.as_str(), left.by_hand), ("rolled back by hand", true));
    assert_eq!(record.rollbacks_total, 1);
    // The next poll does not bring it back.
    scenario.later(60).check(seen('2', '1'));
    assert_eq!(scenario.act(), None);
    let answer = scenario.why().answer;
    assert!(answer.contains("was left by hand at ") && !answer.contains("failed"), "{answer}");
    // One that is newer is deployed.
    scenario.check(seen('3', '1'));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
}

#[test]
fn a_finished_job_goes_back_with_the_service_that_was_updated_with_it() {
    let job = "localhost:5000/migrate:1";
    let of_job = ConfiguredImage { configured: job.into(), reference: Reference::parse(job).unwrap() };
    let images = [config().images, vec![of_job]].concat();
    let mut scenario = Scenario::of(ServiceConfig { images, ..config() });
    scenario.updated_to(&[('1', '2'), ('2', '3')]);
    let history = scenario.service.durable().images.get(IMAGE).history.clone();
    scenario.service.durable.images.of(job).history = history;
    let back = scenario.service.earlier(None).unwrap();
    assert_eq!(back.iter().map(|one| one.configured.as_str()).collect::<Vec<_>>(), [IMAGE, job]);
}

/// Image 2 was proven, and a person has put image 1 back: `docker tag`, and then `docker compose up`.
fn put_back() -> Scenario {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.later(60).check(seen('2', '1'));
    scenario
}

#[test]
fn what_a_person_has_left_stays_declined_after_a_check_that_passes_no_gate() {
    for (ask, is_declined) in [(ServiceRequest::CheckGated, true), (ServiceRequest::Check, false)] {
        let mut scenario = put_back();
        let (reply, _) = scenario.service.handle_request(ask.clone(), scenario.now);
        assert_eq!(reply, ServiceReply::Accepted);
        // The check begins, and ends.
        scenario.act();
        let generation = scenario.service.generation;
        scenario.input(Input::Checked { generation, is_manual: true, result: Ok(seen('2', '1')) });
        let declined = scenario.service.durable().images.get(IMAGE).declined.clone();
        assert_eq!(declined.is_some(), is_declined, "{ask:?}");
        assert_eq!(scenario.act().is_none(), is_declined, "{ask:?}");
    }
}

#[test]
fn what_a_person_has_left_is_no_way_back_and_stays_declined_after_one() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2'), ('2', '3')]);
    // Image 2 was put back by hand.
    scenario.later(60).check(seen('3', '2'));
    assert_eq!(scenario.act(), None);
    assert_eq!(scenario.asked_back(None), ServiceReply::RollingBack(digest('1')));
    scenario.later(5).check(seen('3', '2')).deploys('1');
    assert_eq!(scenario.blocked_digest(), Some(&digest('2')));
    scenario.later(60).check(seen('3', '1'));
    assert_eq!(scenario.act(), None, "the next poll does not bring image 3 back");
    assert_eq!(scenario.service.durable().images.get(IMAGE).declined, Some(digest('3')));
}

#[test]
fn a_digest_that_has_failed_is_not_said_to_have_been_left_by_hand() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.asked_back(None);
    scenario.later(5).check(seen('2', '2')).deploys('1');
    scenario.later(60).check(seen('2', '1'));
    let answer = scenario.why().answer;
    assert!(answer.contains("was left by hand at "), "{answer}");
    assert!(!scenario.service.blocks_a_failure(IMAGE), "it says nothing to the fleet");
    // The tag is set back to one that failed before the person went back.
    scenario.service.durable.images.of(IMAGE).block(&digest('3'));
    let answer = scenario.why().answer;
    assert!(answer.contains(&format!("{} failed here and is blocked", digest('3'))), "{answer}");
    assert!(scenario.service.blocks_a_failure(IMAGE));
}

#[test]
fn an_image_that_a_person_has_put_back_stays_until_the_registry_has_another_digest() {
    let mut scenario = put_back();
    assert_eq!(scenario.act(), None, "it is not undone");
    scenario.later(60).check(seen('2', '1'));
    assert_eq!(scenario.act(), None);
    assert_eq!(scenario.kinds(), [Kind::UPDATE_AVAILABLE], "it is told once");
    let waiting = scenario.record().waiting.expect("it says what it waits for");
    assert!(waiting.why.contains("was replaced here by something other than Evenkeel"), "{waiting:?}");
    let proven = scenario.service.durable().images.get(IMAGE).proven.clone();
    assert_eq!(proven.map(|image| image.id), Some(id('1')), "nothing sets the tag back");
    scenario.later(60).check(seen('3', '1'));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));

    let mut scenario = put_back();
    scenario.service.handle_request(ServiceRequest::Unblock, scenario.now);
    scenario.later(60).check(seen('2', '1'));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))), "a person asks for it");
}

#[test]
fn the_image_that_was_proven_last_does_not_run_if_a_person_has_put_another_one_back() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    let runs = |scenario: &Scenario| -> Vec<(Digest, bool)> {
        let all = scenario.service.history();
        all.map(|(image, one)| (one.digest.clone(), scenario.service.runs_proven(image, one))).collect()
    };
    assert_eq!(runs(&scenario), [(digest('2'), true), (digest('1'), false)]);
    assert_eq!(runs(&put_back()), [(digest('2'), false), (digest('1'), true)]);
}

#[test]
fn an_image_that_was_put_back_is_started_again_although_its_probation_was_interrupted() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.service.durable.images.of(IMAGE).unproven = Some(id('1'));
    scenario.later(60).check(seen('2', '1'));
    let memory = scenario.service.durable().images.get(IMAGE);
    assert_eq!(memory.declined, Some(digest('2')));
    assert_eq!(memory.proven.as_ref().map(|image| &image.id), Some(&id('1')));
    assert_eq!(scenario.act(), None);
}

#[test]
fn an_image_that_was_only_pulled_is_deployed_once_the_earlier_one_that_was_put_back_runs_again() {
    let mut scenario = put_back();
    // The registry had it while the service was down.
    let memory = scenario.service.durable.images.of(IMAGE);
    (memory.pulled, memory.published) = (Some(digest('3')), Some(digest('3')));
    scenario.later(60).check(seen('3', '1'));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))), "it never ran");

    let mut scenario = put_back();
    let memory = scenario.service.durable.images.of(IMAGE);
    (memory.pulled, memory.published) = (Some(digest('3')), Some(digest('3')));
    scenario.later(60).check(seen('3', '3')).later(60).check(seen('3', '1'));
    assert_eq!(scenario.act(), None, "a person had started it, and has put the earlier one back");
}

#[test]
fn an_older_image_that_was_only_started_again_or_is_unknown_here_is_updated() {
    let mut started = seen('2', '1');
    started.images[0].tagged = Some(LocalImage { id: id('2'), digests: vec![digest('2')], size: 1 });
    for older in [started, seen('2', '9')] {
        let mut scenario = Scenario::of(config());
        scenario.updated_to(&[('1', '2')]);
        scenario.later(60).check(older);
        assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    }
}

#[test]
fn a_named_image_is_gone_back_to_and_others_are_refused() {
    let mut scenario = Scenario::of(config());
    assert_eq!(scenario.asked_back(None), ServiceReply::Skipped("no earlier image"));
    scenario.updated_to(&[('1', '2'), ('2', '3')]);
    for (to, part) in [('9', "was not proven here"), ('3', "runs already")] {
        match scenario.asked_back(Some(to)) {
            ServiceReply::Refused(why) => assert!(why.contains(part), "{why}"),
            other => panic!("{to}: {other:?}"),
        }
    }
    assert_eq!(scenario.asked_back(Some('1')), ServiceReply::RollingBack(digest('1')));
    scenario.check(seen('3', '3'));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    assert_eq!(scenario.asked_back(None), ServiceReply::Skipped("deploy in progress"));
}

#[test]
fn a_blocked_image_is_no_way_back_unless_it_is_named() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2'), ('2', '3')]);
    scenario.service.durable.images.of(IMAGE).block(&digest('2'));
    assert_eq!(scenario.asked_back(None), ServiceReply::RollingBack(digest('1')));
}

/// An update to image 2, which has digest 3 as well since then.
fn under_two_digests(config: ServiceConfig) -> Scenario {
    let mut scenario = Scenario::of(config);
    scenario.updated_to(&[('1', '2')]);
    scenario.later(60).check(seen('3', '2'));
    scenario.performs_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario
        .performs_step(StepResult::Pulled { ids: vec![(IMAGE.into(), id('2'))], labels: BTreeMap::new() });
    scenario.performs_step(StepResult::Unpinned);
    scenario.entries.clear();
    scenario
}

#[test]
fn a_person_goes_back_to_another_image_and_not_to_another_digest_of_the_same_one() {
    let mut scenario = under_two_digests(config());
    assert_eq!(scenario.history_shown(), [('3', false), ('2', true), ('1', true)]);
    match scenario.asked_back(Some('2')) {
        ServiceReply::Refused(why) => assert!(why.contains("runs already"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(scenario.asked_back(None), ServiceReply::RollingBack(digest('1')));
    // It has crashed meanwhile.
    let mut scenario = under_two_digests(config());
    scenario.look(&[&Container { state: State::Exited, exit_code: 1, ..on('2') }]);
    assert_eq!(scenario.asked_back(None), ServiceReply::RollingBack(digest('1')));
}

#[test]
fn a_way_back_to_the_same_image_that_fails_is_told_as_one() {
    let mut scenario = under_two_digests(config());
    let down = Container { state: State::Exited, exit_code: 1, ..on('2') };
    scenario.look(&[&down]);
    assert_eq!(scenario.asked_back(Some('2')), ServiceReply::RollingBack(digest('2')));
    let mut seen = seen('3', '2');
    seen.containers = vec![down.clone()].into();
    seen.images[0].running.clear();
    scenario.check(seen).comes_up_on('2');
    scenario.look(&[&down]).later(1).look(&[&down]);
    scenario.performs_step(StepResult::Diagnosed { log: String::new() });
    let told: Vec<_> = scenario.entries.iter().map(|entry| entry.event.clone()).collect();
    assert!(told.contains(&Kind::ROLLBACK_FAILED), "{told:?}");
    assert!(!told.contains(&Kind::FORCE_REDEPLOY_FAILED), "{told:?}");
}

#[test]
fn earlier_images_that_fail_are_undone_and_nothing_is_blocked() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.asked_back(None);
    scenario.check(seen('2', '2')).comes_up_on('1');
    let exit = Container { state: State::Exited, exit_code: 1, ..on('1') };
    scenario.look(&[&exit]).later(1).look(&[&exit]);
    scenario.performs_step(StepResult::Diagnosed { log: "no such column".into() });
    scenario.performs_step(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![on('2')],
    });
    scenario.look(&[&on('2')]).later(20).look(&[&on('2')]);
    scenario.performs_step(StepResult::Unpinned);
    let entry =
        scenario.entries.iter().find(|entry| entry.event == Kind::ROLLBACK_FAILED).expect("it is told");
    assert_eq!(entry.level, Level::Warning);
    assert!(entry.reason.as_deref().is_some_and(|why| why.contains("exited with code 1")), "{entry:#?}");
    assert_eq!(scenario.blocked_digest(), None);
    assert_eq!(scenario.history_shown(), [('2', false), ('1', true)]);
    assert!(!scenario.service.durable().rollback_failed, "what ran before runs again");
    scenario.later(60).check(seen('2', '2'));
    assert_eq!(scenario.act(), None);
}

#[test]
fn an_update_leaves_no_data_behind_in_a_volume_and_a_way_back_is_not_refused_for_it() {
    let defined = |seen: Observation| {
        let model = serde_json::json!({"services": {"web": {"image": IMAGE}}});
        let model = Arc::new(serde_json::from_value(model).unwrap());
        Observation { definition: Some(Ok(Definition { model, ..Definition::default() })), ..seen }
    };
    let pulls = |scenario: &mut Scenario| {
        scenario.performs_step(StepResult::ImagesPinned { missing: Vec::new() });
        let Some(Action::Step(Step::Pull { keeps, .. })) = scenario.act() else { panic!("no pull") };
        keeps
    };
    let mut scenario = Scenario::of(config());
    scenario.check(defined(seen('2', '1')));
    let keeps = pulls(&mut scenario).expect("it is an update");
    assert!(keeps.project == "web" && keeps.replaced[IMAGE].contains("web-1"), "{keeps:?}");
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.asked_back(None);
    scenario.check(defined(seen('2', '2')));
    assert_eq!(pulls(&mut scenario), None);
}

#[test]
fn nothing_but_the_image_goes_back() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.asked_back(None);
    let mut edited = seen('2', '2');
    let difference = Difference {
        service: "web".into(),
        what: vec!["entrypoint".into()],
        unset: Vec::new(),
        connected: Vec::new(),
    };
    edited.definition = Some(Ok(Definition {
        model: Arc::default(),
        differences: [(IMAGE.to_owned(), vec![difference])].into(),
        ..Definition::default()
    }));
    scenario.check(edited);
    assert_eq!(scenario.act(), None);
    let [entry] = &scenario.entries[..] else { panic!("{:#?}", scenario.entries) };
    assert_eq!((entry.event.clone(), entry.level), (Kind::ROLLBACK_FAILED, Level::Warning));
    assert!(entry.reason.as_deref().is_some_and(|why| why.contains("entrypoint")), "{entry:#?}");
}

#[test]
fn a_container_that_has_exited_goes_back_too() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.asked_back(None);
    let down = Container { state: State::Exited, exit_code: 1, ..on('2') };
    let tied = Container {
        id: "side-1".into(),
        config_image: API.into(),
        image: ImageId("sha256:api".into()),
        restarts_with: vec!["web".to_owned()],
        ..running("side")
    };
    let mut seen = seen('2', '2');
    seen.containers = vec![down, tied].into();
    seen.images[0].running.clear();
    scenario.check(seen);
    scenario.performs_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario
        .performs_step(StepResult::Pulled { ids: vec![(IMAGE.into(), id('1'))], labels: BTreeMap::new() });
    let Some(Action::Step(Step::Start(BringUp { up_mode, scope, .. }))) = scenario.act() else {
        panic!("no start")
    };
    assert_eq!(up_mode, UpMode::Changed);
    let scope = scope.expect("compose is limited to it and what is restarted with it");
    assert_eq!(scope.services(None).services(), ["side", "web"]);
}

#[test]
fn what_a_person_has_stopped_is_not_started() {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.event("web-2", EventKind::Stop);
    scenario.asked_back(None);
    let mut seen = seen('2', '2');
    seen.containers =
        vec![exited("web", 143)].into_iter().map(|c| Container { id: "web-2".into(), ..c }).collect();
    seen.images[0].running.clear();
    scenario.check(seen);
    assert_eq!(scenario.act(), None);
    let entry =
        scenario.entries.iter().find(|entry| entry.event == Kind::ROLLBACK_FAILED).expect("it is told");
    assert!(entry.reason.as_deref().is_some_and(|why| why.contains("are stopped")), "{entry:#?}");
}

#[test]
fn what_is_beside_the_files_keeps_no_failing_image_but_a_person_is_told_of_it() {
    let with = |what: &str| {
        let difference = Difference {
            service: "web".into(),
            what: vec![what.to_owned()],
            unset: Vec::new(),
            connected: Vec::new(),
        };
        let definition = Definition {
            model: Arc::default(),
            differences: [(IMAGE.to_owned(), vec![difference])].into(),
            ..Definition::default()
        };
        Observation { definition: Some(Ok(definition)), ..seen('2', '2') }
    };
    let proxies = "environment HTTP_PROXY (set by docker's proxies)";
    for (what, goes_back) in [("memory limit (changed since)", true), (proxies, true), ("entrypoint", false)]
    {
        let mut scenario = on_watch();
        for _ in 0..3 {
            scenario.later(30).crashes();
        }
        scenario.later(30).looks();
        scenario.check(with(what));
        assert_eq!(matches!(scenario.service.wanted, Some(Cause::GoBack(_))), goes_back, "{what}");
    }
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2')]);
    scenario.asked_back(None);
    scenario.check(with("memory limit (changed since)"));
    assert_eq!(scenario.kinds(), [Kind::ROLLBACK_FAILED]);
}

/// An update whose containers are watched.
fn on_watch() -> Scenario {
    let mut scenario = Scenario::of(watched());
    scenario.updated_to(&[('1', '2')]);
    assert_eq!(scenario.service.durable().watch.len(), 1);
    scenario
}

impl Scenario {
    fn crashes(&mut self) -> &mut Self {
        self.event("web-2", EventKind::Die { exit_code: 1 })
    }

    /// The inspection that follows.
    fn looks(&mut self) -> &mut Self {
        self.look(&[&on('2')])
    }

    fn goes_back(&mut self) -> Option<LateFailure> {
        self.check(seen('2', '2'));
        match self.service.wanted.clone() {
            Some(Cause::GoBack(back)) => match back.why {
                GoBackReason::Late { reason } => Some(reason),
                GoBackReason::ByHand => None,
            },
            _ => None,
        }
    }
}

#[test]
fn three_crashes_within_ten_minutes_of_a_watched_update_roll_it_back() {
    let mut scenario = on_watch();
    for _ in 0..2 {
        scenario.later(30).crashes();
    }
    scenario.later(30).looks();
    assert_eq!(scenario.goes_back(), None, "twice is not enough");
    scenario.crashes().looks();
    assert_eq!(scenario.goes_back(), None, "the engine may be going away");
    scenario.later(30).looks();
    assert_eq!(scenario.goes_back(), Some(LateFailure::Crashes { crashes: 3, minutes: 10 }));
    scenario.deploys('1');
    let entry = scenario.entries.iter().find(|entry| entry.event == Kind::ROLLED_BACK).expect("it is told");
    assert_eq!(entry.level, Level::Warning);
    assert_eq!(entry.new_digest.as_deref(), Some(digest('2').as_str()));
    assert_eq!(entry.image.as_deref(), Some(IMAGE), "it is a verdict for the fleet");
    assert_eq!(scenario.blocked_digest(), Some(&digest('2')));
    assert_eq!(scenario.service.durable().watch, []);
}

fn change(image: &str, old: char, to: char) -> ImageChange {
    ImageChange {
        configured: image.into(),
        reference: Reference::parse(image).expect("a reference"),
        from: None,
        old_digest: Some(digest(old)),
        old: None,
        digest: digest(to),
    }
}

/// The end of a way back that has changed these images.
fn gone_back(changes: Vec<ImageChange>, why: GoBackReason) -> Event {
    let earlier = |change: &ImageChange| Earlier {
        configured: change.configured.clone(),
        reference: change.reference.clone(),
        digest: change.digest.clone(),
        id: id('1'),
    };
    let back = GoBack { to: changes.iter().map(earlier).collect(), data: None, why };
    Event::GoBack(GoBackEnd { back, result: GoBackResult::Proven { changes, data: None } })
}

#[test]
fn of_several_images_that_were_left_by_hand_the_one_that_is_shown_as_blocked_is_explained() {
    let mut scenario = Scenario::of(config());
    for (image, left) in [(IMAGE, '2'), (API, '6')] {
        scenario.service.durable.images.of(image).blocked = Some(digest(left));
    }
    let changes = vec![change(IMAGE, '2', '1'), change(API, '6', '4')];
    scenario.service.emit(gone_back(changes, GoBackReason::ByHand), scenario.now);
    let record = scenario.record();
    assert_eq!(record.blocked, Some(digest('6').to_string()));
    assert_eq!(record.failed_update.expect("the reason is shown").digest, record.blocked);
}

#[test]
fn a_late_rollback_of_several_images_is_a_verdict_on_each_that_has_changed() {
    let (same, api) = ("localhost:5000/same:1", "localhost:5000/api:1");
    let changes = vec![change(same, '5', '5'), change(IMAGE, '2', '1'), change(api, '6', '4')];
    let late = GoBackReason::Late { reason: LateFailure::Crashes { crashes: 3, minutes: 10 } };
    let cases: [(GoBackReason, &[(&str, char)]); 2] =
        [(late, &[(IMAGE, '2'), (api, '6')]), (GoBackReason::ByHand, &[])];
    for (why, expected) in cases {
        let mut scenario = Scenario::of(config());
        scenario.service.emit(gone_back(changes.clone(), why), scenario.now);
        let entries = scenario.service.take_entries();
        let [entry] = &entries[..] else { panic!("{entries:#?}") };
        assert_eq!(entry.new_digest.as_deref(), Some(digest('2').as_str()));
        let first = entry.image.clone().zip(entry.new_digest.clone());
        let also = entry.also_failed.iter().map(|one| (one.image.clone(), one.digest.clone()));
        let told: Vec<(String, String)> = first.into_iter().chain(also).collect();
        let expected = expected.iter().map(|(image, n)| ((*image).to_owned(), digest(*n).to_string()));
        assert_eq!(told, expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_late_rollback_is_not_given_up_because_the_engine_does_not_answer_one_check() {
    let mut scenario = on_watch();
    for _ in 0..3 {
        scenario.later(30).crashes();
    }
    scenario.later(30).looks();
    let generation = scenario.service.generation;
    let result = Err(CheckFault::EngineAway("the engine does not answer".into()));
    scenario.input(Input::Checked { generation, is_manual: false, result });
    assert!(!scenario.kinds().contains(&Kind::ROLLBACK_FAILED));
    scenario.later(5).looks();
    assert_eq!(scenario.goes_back(), Some(LateFailure::Crashes { crashes: 3, minutes: 10 }));
}

#[test]
fn the_late_watch_goes_on_after_an_update_that_has_failed() {
    let mut scenario = on_watch();
    scenario.later(30).check(seen('3', '2'));
    scenario.performs_step(StepResult::ImagesPinned { missing: Vec::new() });
    scenario.performs_step(StepResult::Failed("the registry answered 500".into()));
    scenario.performs_step(StepResult::Unpinned);
    for _ in 0..3 {
        scenario.later(30).crashes();
    }
    scenario.later(30).looks();
    assert_eq!(scenario.goes_back(), Some(LateFailure::Crashes { crashes: 3, minutes: 10 }));

    let mut scenario = on_watch();
    scenario.later(30).check(seen('3', '2')).comes_up_on('3');
    let exit = Container { state: State::Exited, exit_code: 1, ..on('3') };
    scenario.event("web-3", EventKind::Die { exit_code: 1 }).look(&[&exit]).later(1).look(&[&exit]);
    scenario.performs_step(StepResult::Diagnosed { log: String::new() });
    scenario.performs_step(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers: vec![on('2')],
    });
    scenario.look(&[&on('2')]).later(20).look(&[&on('2')]);
    scenario.performs_step(StepResult::Unpinned);
    let watch = scenario.service.durable().watch.first().expect("what was watched runs again");
    assert!(watch.exits.is_empty(), "those of the image that failed do not count: {watch:?}");
}

#[test]
fn a_watched_update_whose_data_may_have_been_migrated_is_left_to_a_person() {
    let rules = SnapshotRules { of: vec!["/srv/a".into()], keep: 2, max_bytes: 1 << 30 };
    let watch = Duration::from_mins(10);
    let update = UpdateConfig { watch, snapshot: Some(rules), ..UpdateConfig::default() };
    let with_snapshot = ServiceConfig { update: Some(Arc::new(update)), ..config() };
    for has_data in [true, false] {
        let mut scenario = on_watch();
        scenario.service.config = Arc::new(with_snapshot.clone());
        if has_data {
            scenario.service.durable.snapshots.push(data_of('1'));
        }
        for _ in 0..3 {
            scenario.later(30).crashes();
        }
        scenario.later(30).looks();
        assert_eq!(scenario.goes_back(), None, "the old image may not understand the data");
        assert_eq!(scenario.service.durable().watch, [], "it is told once");
        let told: Vec<_> = scenario.entries.iter().filter(|one| one.event == Kind::ROLLBACK_FAILED).collect();
        let [entry] = &told[..] else { panic!("{:#?}", scenario.entries) };
        assert_eq!(entry.level, Level::Critical);
        let verdict = (entry.image.as_deref(), entry.new_digest.as_deref());
        assert_eq!(verdict, (Some(IMAGE), Some(digest('2').as_str())), "it is a verdict for the fleet");
        assert!(entry.message.contains("crashed 3 times within 10 minutes"), "{entry:#?}");
        let reason = entry.reason.clone().unwrap_or_default();
        assert!(reason.contains("`evenkeel rollback web`"), "{reason}");
        assert_eq!(reason.contains("`evenkeel rollback web --data`"), has_data, "{reason}");
        assert_eq!(scenario.blocked_digest(), None);
    }
}

/// A snapshot of the data that an image had when it was left.
fn data_of(n: char) -> KeptSnapshot {
    KeptSnapshot {
        id: "web-7".into(),
        at: Timestamp::UNIX_EPOCH,
        kind: KeptKind::Copy,
        image: IMAGE.into(),
        left: vec![(IMAGE.into(), digest(n))],
        bytes: 1,
        folders: vec![KeptFolder {
            of: "/srv/a".into(),
            folder: "/srv/.a.evenkeel-web-7".into(),
            volume: None,
        }],
        dump: None,
        is_expired: false,
        pending: None,
    }
}

#[test]
fn stops_the_engine_and_long_intervals_are_no_crashes() {
    let mut stopped = on_watch();
    for _ in 0..3 {
        stopped.later(10).event("web-2", EventKind::Kill { signal: Some(15) });
        stopped.event("web-2", EventKind::Die { exit_code: 143 });
    }
    stopped.later(60).looks();
    assert_eq!(stopped.goes_back(), None, "a person stops it");

    let mut engine = on_watch();
    engine.later(10).crashes().later(1).crashes().later(1).crashes();
    engine.later(2).engine_gap().later(60).engine_back().looks();
    assert_eq!(engine.goes_back(), None, "the engine went away");

    let mut slow = on_watch();
    for _ in 0..3 {
        slow.later(290).crashes();
    }
    slow.later(60).looks();
    assert_eq!(slow.goes_back(), None, "the watch is over by then");
    slow.later(600).looks();
    assert_eq!(slow.service.durable().watch, []);

    let mut unwatched = Scenario::of(config());
    unwatched.updated_to(&[('1', '2')]);
    for _ in 0..5 {
        unwatched.later(5).crashes();
    }
    unwatched.later(60).looks();
    assert_eq!(unwatched.goes_back(), None, "it is off by default");
}

#[test]
fn a_container_that_finishes_its_work_again_and_again_has_not_crashed() {
    let mut scenario = on_watch();
    scenario.look(&[&Container { restart_policy: RestartPolicy::Always, ..on('2') }]);
    for _ in 0..3 {
        scenario.later(30).event("web-2", EventKind::Die { exit_code: 0 });
    }
    scenario.later(60).looks();
    assert_eq!(scenario.goes_back(), None);
}

#[test]
fn a_watched_update_on_which_the_healer_gives_up_is_rolled_back() {
    let mut scenario = on_watch();
    let given_up =
        crate::service::health::restart_state::RestartState { exhausted: true, ..Default::default() };
    scenario.service.durable.restart_states.insert("web".into(), given_up);
    scenario.later(30).look(&[&Container { state: State::Exited, exit_code: 1, ..on('2') }]);
    assert_eq!(scenario.goes_back(), Some(LateFailure::RestartsExhausted { container: "web".into() }));
}
