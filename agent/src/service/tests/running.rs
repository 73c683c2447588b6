//! Stories of what runs of an image: since when it is proven, and what its registry has besides (DECISIONS 8).

use evenkeel_common::wire::Level;

use super::*;
use crate::config::UpdateConfig;
use crate::service::fleet::{FleetView, Link};
use crate::service::input::Unsigned;
use crate::service::running::{ImageState, Proof};

const GRACE: i64 = 60;

/// A container on that version.
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

impl Story {
    fn image(&self) -> ImageState {
        self.service.snapshot(PullProgress::default()).images.remove(0)
    }

    fn why(&self) -> String {
        let around = StatusContext { now: self.now, next_poll: None, engine_error: None, state_error: None };
        let snapshot = self.service.snapshot(PullProgress::default());
        crate::service::gates::why(&snapshot, self.service.config(), &around).answer
    }

    /// The update that was found is brought up, with what compose leaves then.
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

    /// It passes its probation, which began at this second.
    fn passes(&mut self, begun: i64, after: &Container) -> AuditEntry {
        self.at(begun + 1).look(&[after]).at(begun + GRACE).look(&[after]);
        assert!(matches!(self.act(), Some(Action::Step(Step::Unpin { .. }))), "{:?}", self.said);
        self.input(Input::Stepped(StepResult::Unpinned));
        let updated = self.said.iter().position(|entry| entry.event == Kind::UPDATED).expect("an update");
        self.said.remove(updated)
    }
}

#[test]
fn proof_is_of_the_digest_that_passed_its_probation_and_of_no_other_that_runs() {
    let mut story = Story::of(config());
    story.at(0).check(runs('2', "one", '1'));
    assert_eq!(
        (story.image().running, story.image().proven_at),
        (Some(digest('1')), None),
        "nobody has seen it"
    );
    let two = on("two");
    story.is_brought_up(&two.image, &two);
    assert_eq!((story.image().running, story.image().proven_at), (Some(digest('2')), None), "on probation");
    story.passes(0, &two);
    assert_eq!((story.image().running, story.image().proven_at), (Some(digest('2')), story.seconds(GRACE)));
    story.at(100).check(runs('2', "two", '2'));
    assert!(story.why().contains("runs, proven at 2026-01-01 00:01:00 UTC"), "{}", story.why());

    // The next one, up to its probation.
    story.at(200).check(runs('3', "two", '2'));
    let behind = story.image();
    assert_eq!((behind.proven_at, behind.available), (story.seconds(GRACE), Some(digest('3'))));
    story.is_brought_up(&on("three").image, &on("three"));
    assert_eq!((story.image().running, story.image().proven_at), (Some(digest('3')), None));
    assert_eq!(story.image().available, None);

    // A person has brought up another one.
    let mut story = Story::of(config());
    let proof = Proof { digest: digest('2'), at: story.start };
    story.service.durable.proofs.insert(IMAGE.into(), proof);
    story.at(0).check(runs('4', "four", '4'));
    assert_eq!((story.image().running, story.image().proven_at), (Some(digest('4')), None));
    assert!(!story.why().contains("proven"), "{}", story.why());
    story.look(&[&on("five")]);
    assert_eq!(story.image().running, None, "what it is is not known before the next check");
    story.check(runs('2', "two", '2'));
    assert_eq!(story.image().proven_at, story.seconds(0));
    story.service.durable.unproven.insert(IMAGE.into(), on("two").image);
    assert_eq!(story.image().proven_at, None, "it was put in doubt since");
}

#[test]
fn where_nothing_runs_there_is_no_digest_and_no_proof() {
    let mut story = Story::of(config());
    story.service.durable.proofs.insert(IMAGE.into(), Proof { digest: digest('2'), at: story.start });
    let mut seen = observed('2', &[], &[&exited("web", 0)]);
    seen.images[0].tagged = Some(local("sha256:two", &['2']));
    story.at(0).check(seen);
    let state = story.image();
    assert_eq!((state.running, state.proven_at, state.available), (None, None, None));
    assert!(story.record().images.is_some_and(|images| images.len() == 1), "the tag's, as ever");
}

#[test]
fn an_image_that_no_container_runs_on_is_told_as_a_warning_and_is_not_proven() {
    let mut story = Story::of(config());
    story.at(0).check(runs('2', "one", '1'));
    // Its service is no longer in the files: compose leaves the container alone.
    story.is_brought_up(&on("two").image, &on("one"));
    let updated = story.passes(0, &on("one"));
    assert_eq!(updated.level, Level::Warning);
    assert!(story.service.durable().proofs.is_empty());
    assert_eq!(story.image().proven_at, None);
}

#[test]
fn what_the_registry_has_is_told_also_where_it_is_blocked_or_not_signed() {
    type Change = fn(&mut Story, &mut Observation);
    let cases: [(&str, Change); 3] = [
        ("held", |_, _| {}),
        ("blocked", |story, _| drop(story.service.durable.blocked.insert(IMAGE.into(), digest('2')))),
        ("unsigned", |_, seen| drop(seen.unsigned.insert(IMAGE.into(), Unsigned::Missing))),
    ];
    for (name, change) in cases {
        let mut story = Story::of(config());
        let view = FleetView { link: Link::Present, ..FleetView::default() };
        story.service.set_fleet(Arc::new(view));
        let mut seen = runs('2', "one", '1');
        change(&mut story, &mut seen);
        story.at(5).check(seen.clone());
        let state = story.image();
        assert_eq!((state.available, state.behind_since), (Some(digest('2')), story.seconds(5)), "{name}");
        // While the registry is away it is what was known.
        seen.images[0].remote = None;
        story.at(10).check(seen);
        assert_eq!(story.image().behind_since, story.seconds(5), "{name}");
        story.at(15).check(runs('1', "one", '1'));
        assert_eq!((story.image().available, story.image().behind_since), (None, None), "{name}");
    }
}

#[test]
fn an_update_that_waited_counts_from_when_it_was_found() {
    let update = UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() };
    let mut story = Story::of(ServiceConfig { update: Some(Arc::new(update)), ..config() });
    story.at(0).check(runs('2', "one", '1'));
    assert_eq!(story.act(), None);
    story.at(3600).check(runs('2', "one", '1'));
    let two = on("two");
    story.is_brought_up(&two.image, &two);
    let message = story.passes(3600, &two).message;
    assert!(message.ends_with("3660 s after it was found"), "{message}");
}

#[test]
fn a_state_of_an_earlier_version_loads_and_proves_nothing() {
    let durable: Durable = serde_json::from_str(r#"{"proven_at":"2026-01-01T00:00:00Z"}"#).unwrap();
    assert_eq!(durable, Durable::default());
}
