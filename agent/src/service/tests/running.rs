//! Scenarios of the running digest of an image: since when it is proven, and what its registry offers (DECISIONS 8).

use evenkeel_common::wire::Level;

use super::*;
use crate::config::UpdateConfig;
use crate::service::decide::running::ImageState;
use crate::service::fleet::{FleetView, Link};
use crate::service::gates::candidate::Unsigned;
use crate::service::images::{OldImage, Proof};
use crate::service::observation::Definition;
use crate::service::upkeep::maintenance::{MaintenanceResult, MaintenanceTask};

const GRACE: i64 = 60;

/// Returns a container on that version.
fn on(version: &str) -> Container {
    Container {
        id: format!("id-{version}"),
        image: ImageId(format!("sha256:{version}").into()),
        ..running("web")
    }
}

fn runs(remote: char, version: &str, digests: char) -> Observation {
    observed(remote, &[local(&format!("sha256:{version}"), &[digests])], &[&on(version)])
}

impl Scenario {
    fn image(&self) -> ImageState {
        self.service.image_states().remove(0)
    }

    fn answer(&self) -> String {
        self.why().answer
    }

    /// Brings up the found update; `after` is the container that compose leaves.
    fn is_brought_up(&mut self, id: &ImageId, after: &Container) {
        for result in [
            StepResult::ImagesPinned { missing: Vec::new() },
            StepResult::Pulled { ids: vec![(IMAGE.into(), id.clone())], labels: BTreeMap::new() },
            StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers: vec![after.clone()] },
        ] {
            let action = self.act();
            assert!(matches!(action, Some(Action::Step(_))), "{action:?}");
            self.input(Input::Stepped(result));
        }
    }

    /// Lets it pass its probation, which began at this second.
    fn passes(&mut self, begun: i64, after: &Container) -> AuditEntry {
        self.at(begun + 1).look(&[after]).at(begun + GRACE).look(&[after]);
        assert!(matches!(self.act(), Some(Action::Step(Step::Unpin { .. }))), "{:?}", self.entries);
        self.input(Input::Stepped(StepResult::Unpinned));
        let updated = self
            .entries
            .iter()
            .position(|entry| [Kind::UPDATED, Kind::PULLED].contains(&entry.event))
            .expect("an update");
        self.entries.remove(updated)
    }
}

#[test]
fn only_the_digest_that_passed_its_probation_is_proven() {
    let mut scenario = Scenario::of(config());
    scenario.at(0).check(runs('2', "one", '1'));
    assert_eq!(
        (scenario.image().running, scenario.image().proven_at),
        (Some(digest('1')), None),
        "it was never on probation"
    );
    let two = on("two");
    scenario.is_brought_up(&two.image, &two);
    assert_eq!(
        (scenario.image().running, scenario.image().proven_at),
        (Some(digest('2')), None),
        "on probation"
    );
    scenario.passes(0, &two);
    assert_eq!(
        (scenario.image().running, scenario.image().proven_at),
        (Some(digest('2')), scenario.seconds(GRACE))
    );
    scenario.at(100).check(runs('2', "two", '2'));
    assert!(scenario.answer().contains("runs, proven at 2026-01-01 00:01:00 UTC"), "{}", scenario.answer());

    // The next one, up to its probation.
    scenario.at(200).check(runs('3', "two", '2'));
    let behind = scenario.image();
    assert_eq!((behind.proven_at, behind.available), (scenario.seconds(GRACE), Some(digest('3'))));
    scenario.is_brought_up(&on("three").image, &on("three"));
    assert_eq!((scenario.image().running, scenario.image().proven_at), (Some(digest('3')), None));
    assert_eq!(scenario.image().available, None);

    // An operator has brought up another one.
    let mut scenario = Scenario::of(config());
    let proof = Proof { digest: digest('2'), at: scenario.start };
    scenario.service.durable.images.of(IMAGE).proof = Some(proof);
    scenario.at(0).check(runs('4', "four", '4'));
    assert_eq!((scenario.image().running, scenario.image().proven_at), (Some(digest('4')), None));
    assert!(!scenario.answer().contains("proven"), "{}", scenario.answer());
    scenario.look(&[&on("five")]);
    assert_eq!(scenario.image().running, None, "its digest is unknown until the next check");
    scenario.check(runs('2', "two", '2'));
    assert_eq!(scenario.image().proven_at, scenario.seconds(0));
    scenario.service.durable.images.of(IMAGE).unproven = Some(on("two").image);
    assert_eq!(scenario.image().proven_at, None, "it has become unproven since");
}

#[test]
fn without_running_containers_there_is_no_digest_and_no_proof() {
    let mut scenario = Scenario::of(config());
    scenario.service.durable.images.of(IMAGE).proof = Some(Proof { digest: digest('2'), at: scenario.start });
    let mut seen = observed('2', &[], &[&exited("web", 0)]);
    seen.images[0].tagged = Some(local("sha256:two", &['2']));
    scenario.at(0).check(seen);
    let state = scenario.image();
    assert_eq!((state.running, state.proven_at, state.available), (None, None, None));
    assert!(scenario.record().images.is_some_and(|images| images.len() == 1), "the tag's, as usual");
}

#[test]
fn an_image_that_no_container_uses_is_pulled_and_not_proven() {
    let mut scenario = Scenario::of(config());
    scenario.at(0).check(runs('2', "one", '1'));
    // Its service is no longer in the files: compose leaves the container alone.
    scenario.is_brought_up(&on("two").image, &on("one"));
    let pulled = scenario.passes(0, &on("one"));
    assert_eq!((pulled.event, pulled.level), (Kind::PULLED, Level::Info));
    assert_eq!(scenario.service.durable().totals.updates, 0);
    assert!(scenario.service.durable().images.get(IMAGE).proof.is_none());
    assert_eq!(scenario.image().proven_at, None);
}

#[test]
fn an_image_that_was_only_pulled_is_removed_once_a_newer_one_is_pulled() {
    let stopped = Container { state: State::Exited, ..on("one") };
    let mut scenario = Scenario::of(config());
    for (begun, remote, version, expected) in
        [(0, '2', "two", None), (100, '3', "three", Some("two")), (200, '4', "four", Some("three"))]
    {
        let mut seen = observed(remote, &[local("sha256:one", &['1'])], &[&stopped]);
        seen.images[0].running.clear();
        scenario.at(begun).check(seen);
        scenario.is_brought_up(&on(version).image, &stopped);
        assert_eq!(scenario.passes(begun, &stopped).event, Kind::PULLED);
        let removed: Vec<ImageId> = match scenario.service.next_maintenance(scenario.now) {
            Some(Action::Maintain(MaintenanceTask::RemoveImages { images })) => {
                images.into_iter().map(|image| image.id).collect()
            }
            None => Vec::new(),
            other => panic!("{other:?}"),
        };
        let expected: Vec<ImageId> = expected.into_iter().map(|version| on(version).image).collect();
        assert_eq!(removed, expected, "{version} waits, and what runs is kept");
        scenario.input(Input::Maintained(MaintenanceResult::ImagesRemoved(removed)));
    }
}

#[test]
fn an_image_that_was_only_pulled_or_was_declined_is_not_confirmed_again_after_a_restart() {
    let mut scenario = Scenario::of(config());
    let memory = scenario.service.durable.images.of(IMAGE);
    (memory.pulled, memory.declined) = (Some(digest('2')), Some(digest('3')));
    let settled = scenario.service.settled_digests();
    assert!(['2', '3'].iter().all(|nr| settled.contains(&(IMAGE.to_owned(), digest(*nr)))), "{settled:?}");
}

#[test]
fn a_digest_that_the_last_check_has_confirmed_is_not_confirmed_again() {
    let mut scenario = Scenario::of(config());
    let mut seen = runs('2', "one", '1');
    // Files that are not configured keep the update back.
    seen.unlisted_files = vec!["compose.override.yaml".into()];
    scenario.check(seen);
    assert_eq!(scenario.act(), None);
    scenario.service.check(true);
    let check = scenario.service.next(scenario.now);
    let Some(Action::Check { asked, .. }) = check else { panic!("{check:?}") };
    assert!(asked.settled.contains(&(IMAGE.to_owned(), digest('2'))));
    // A digest that was not confirmed is not in an observation.
    let mut pending = runs('2', "one", '1');
    pending.images[0].remote = None;
    scenario.check(pending);
    assert!(scenario.service.settled_digests().is_empty());
}

#[test]
fn the_available_digest_is_reported_even_if_blocked_or_unsigned() {
    type Change = fn(&mut Scenario, &mut Observation);
    let cases: [(&str, Change); 3] = [
        ("held", |_, _| {}),
        ("blocked", |scenario, _| scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'))),
        ("unsigned", |_, seen| drop(seen.unsigned.insert(IMAGE.into(), Unsigned::Missing))),
    ];
    for (name, change) in cases {
        let mut scenario = Scenario::of(config());
        let view = FleetView { link: Link::Present, ..FleetView::default() };
        scenario.service.fleet = Arc::new(view);
        let mut seen = runs('2', "one", '1');
        change(&mut scenario, &mut seen);
        scenario.at(5).check(seen.clone());
        let state = scenario.image();
        assert_eq!((state.available, state.behind_since), (Some(digest('2')), scenario.seconds(5)), "{name}");
        // While the registry is unavailable the known state is kept.
        seen.images[0].remote = None;
        scenario.at(10).check(seen);
        assert_eq!(scenario.image().behind_since, scenario.seconds(5), "{name}");
        scenario.at(15).check(runs('1', "one", '1'));
        assert_eq!((scenario.image().available, scenario.image().behind_since), (None, None), "{name}");
    }
}

#[test]
fn an_image_stays_behind_while_its_tag_moves_on() {
    let mut scenario = Scenario::of(config());
    scenario.service.fleet = Arc::new(FleetView { link: Link::Present, ..FleetView::default() });
    for (at, remote, expected) in [(5, '2', 5), (500, '3', 5), (900, '4', 5)] {
        scenario.at(at).check(runs(remote, "one", '1'));
        let state = scenario.image();
        let since = scenario.seconds(expected);
        assert_eq!((state.available, state.behind_since), (Some(digest(remote)), since), "{at}");
    }
    scenario.at(1000).check(runs('4', "four", '4'));
    assert_eq!(scenario.image().behind_since, None);
    scenario.at(1100).check(runs('5', "four", '4'));
    assert_eq!(scenario.image().behind_since, scenario.seconds(1100));
}

#[test]
fn an_update_that_waited_counts_from_when_it_was_found() {
    let update = UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() };
    let mut scenario = Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    scenario.at(0).check(runs('2', "one", '1'));
    assert_eq!(scenario.act(), None);
    scenario.at(3600).check(runs('2', "one", '1'));
    let two = on("two");
    scenario.is_brought_up(&two.image, &two);
    let message = scenario.passes(3600, &two).message;
    assert!(message.ends_with("3660 s after it was found"), "{message}");
}

#[test]
fn a_state_of_an_earlier_version_loads_and_proves_nothing() {
    let durable: Durable = serde_json::from_str(r#"{"proven_at":"2026-01-01T00:00:00Z"}"#).unwrap();
    assert_eq!(durable, Durable::default());
}

/// The image of a job that `web` waits for.
const JOB: &str = "localhost:5000/migrate:1";

fn with_job() -> ServiceConfig {
    let reference = Reference::parse(JOB).expect("a reference");
    let images = [config().images, vec![ConfiguredImage { configured: JOB.into(), reference }]].concat();
    ServiceConfig { images, ..config() }
}

/// Returns the job, finished, on that version of its image.
fn job(version: &str) -> Container {
    Container {
        id: format!("id-job-{version}"),
        config_image: JOB.into(),
        image: ImageId(format!("sha256:job-{version}").into()),
        ..exited("migrate", 0)
    }
}

/// What is seen while both run version 1, with these digests in the registry.
fn seen_with_job(web: char, migrate: char) -> Observation {
    let mut seen = observed(web, &[local("sha256:one", &['1'])], &[&on("one"), &job("one")]);
    seen.images.push(ImageView {
        remote: Some(digest(migrate)),
        tagged: Some(local("sha256:job-one", &['1'])),
        ..ImageView::new(JOB.into(), Reference::parse(JOB).expect("a reference"))
    });
    let model = serde_json::json!({"services": {
        "web": {"image": IMAGE, "depends_on": {"migrate": {"condition": "service_completed_successfully"}}},
        "migrate": {"image": JOB},
    }});
    let model = Arc::new(serde_json::from_value(model).expect("a model"));
    seen.definition = Some(Ok(Definition { model, ..Definition::default() }));
    seen
}

impl Scenario {
    /// Pulls version 2 of what is updated and brings it up. Returns the tags that the `up` sets, as text, and its services.
    fn brings_up_with_job(&mut self, after: &[&Container]) -> (Vec<(String, String)>, Vec<String>) {
        loop {
            let result = match self.act() {
                Some(Action::Step(Step::PinImages { .. })) => {
                    StepResult::ImagesPinned { missing: Vec::new() }
                }
                Some(Action::Step(Step::Pull { images, .. })) => {
                    let id =
                        |configured: &str| if configured == JOB { "sha256:job-two" } else { "sha256:two" };
                    let ids = images.into_iter().map(|(name, _)| {
                        let id = ImageId(id(&name).into());
                        (name, id)
                    });
                    StepResult::Pulled { ids: ids.collect(), labels: BTreeMap::new() }
                }
                Some(Action::Step(Step::Diagnose { .. })) => StepResult::Diagnosed { log: String::new() },
                Some(Action::Step(Step::Start(BringUp { tags, scope, definition, .. }))) => {
                    let containers = after.iter().map(|c| (*c).clone()).collect();
                    let up = Ok(String::new());
                    self.input(Input::Stepped(StepResult::Started { up, named: Vec::new(), containers }));
                    let text = |(tag, image): (Reference, OldImage)| (tag.to_string(), image.id.to_string());
                    let scope = scope.expect("it is limited to what changes");
                    let names = scope.services(definition.as_deref()).services().to_vec();
                    return (tags.into_iter().map(text).collect(), names);
                }
                other => panic!("no `up` is due, but {other:?}"),
            };
            self.input(Input::Stepped(result));
        }
    }
}

/// Returns the tags of both images on these versions.
fn tags_on(web: &str, migrate: &str) -> Vec<(String, String)> {
    let tag = |image: &str, id: &str| {
        (Reference::parse(image).expect("a reference").to_string(), format!("sha256:{id}"))
    };
    vec![tag(IMAGE, web), tag(JOB, migrate)]
}

#[test]
fn a_job_with_a_new_image_of_its_own_runs_again_before_the_new_image_that_waits_for_it() {
    let mut scenario = Scenario::of(with_job());
    scenario.at(0).check(seen_with_job('2', '2'));
    let (tags, names) = scenario.brings_up_with_job(&[&on("two"), &job("two")]);
    assert_eq!((tags, names), (tags_on("two", "job-two"), vec!["migrate".to_owned(), "web".to_owned()]));
    scenario.at(1).look(&[&on("two"), &job("two")]).at(GRACE).look(&[&on("two"), &job("two")]);
    assert_eq!(scenario.kinds(), [Kind::UPDATED, Kind::UPDATED]);
    assert_eq!(scenario.service.durable().images.get(JOB).pulled, None);
}

#[test]
fn a_job_whose_new_image_was_found_earlier_is_deployed_with_the_service_that_waits_for_it() {
    let mut scenario = Scenario::of(with_job());
    scenario.at(0).check(seen_with_job('1', '2'));
    let (tags, names) = scenario.brings_up_with_job(&[&on("one"), &job("one")]);
    assert_eq!((tags, names), (Vec::new(), Vec::new()), "alone, it is only pulled");
    scenario.at(1).look(&[&on("one"), &job("one")]).at(GRACE).look(&[&on("one"), &job("one")]);
    assert_eq!(scenario.kinds(), [Kind::PULLED]);
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Unpin { .. }))));
    scenario.input(Input::Stepped(StepResult::Unpinned));
    scenario.at(100).check(seen_with_job('1', '2'));
    assert_eq!(scenario.act(), None);

    scenario.at(200).check(seen_with_job('2', '2'));
    let (tags, names) = scenario.brings_up_with_job(&[&on("two"), &job("two")]);
    assert_eq!((tags, names), (tags_on("two", "job-two"), vec!["migrate".to_owned(), "web".to_owned()]));
}

#[test]
fn the_image_of_a_job_goes_back_with_the_image_that_failed_and_is_not_blocked_for_it() {
    let mut scenario = Scenario::of(with_job());
    scenario.at(0).check(seen_with_job('2', '2'));
    scenario.brings_up_with_job(&[&on("two"), &job("two")]);
    let crashed = Container { state: State::Exited, exit_code: 1, ..on("two") };
    scenario.at(1).look(&[&crashed, &job("two")]).at(2).look(&[&crashed, &job("two")]);
    let back = Container { id: "id-back".into(), ..on("one") };
    let (tags, _) = scenario.brings_up_with_job(&[&back, &job("one")]);
    assert_eq!(tags, tags_on("one", "job-one"));
    let blocked: Vec<&str> = scenario.service.durable().images.blocked().map(|(image, _)| image).collect();
    assert_eq!(blocked, [IMAGE]);
}
