//! Stories of a question to the warden that was overtaken, and of leases that are partly used.

use super::*;
use crate::service::event::{Event, FailedDeployment, RollbackProblem};
use crate::service::rollout::step::Phase;

#[test]
fn a_verdict_that_comes_while_the_warden_is_asked_has_it_asked_again() {
    let news = || Input::Fleet(Arc::new(FleetView { verdicts: 7, ..present() }));
    let mut waits = story(present());
    assert!(waits.asks_fleet());
    waits.at(1).input(news());
    assert!(!waits.asks_fleet(), "it is being asked");
    waits.fleet_answers(Ok(answer(Permission::Wait, 60)));
    assert!(waits.asks_fleet(), "the answer may be older than the verdict");
    waits.fleet_answers(Ok(answer(Permission::Wait, 60)));
    assert!(!waits.asks_fleet(), "this one is not");
    assert_eq!(waits.gate().as_deref(), Some("ring"));

    let mut goes = story(present());
    assert!(goes.asks_fleet());
    goes.at(1).input(news());
    assert!(goes.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
}

#[test]
fn a_warden_without_time_holds_every_ring_for_some_seconds() {
    for ring in [0, 1] {
        let mut story = story(FleetView { ring, ..present() });
        assert!(story.asks_fleet());
        story.fleet_answers(Err(FleetError::Busy));
        assert!(!story.asks_fleet(), "ring {ring}");
        assert_eq!((story.gate().as_deref(), story.service.leases()), (Some("ring"), Vec::new()));
        assert_eq!(story.service.recheck_at, Some(story.start + SignedDuration::from_secs(10)));
        story.at(10).check(found('2'));
        assert!(story.asks_fleet());
    }
}

const API: &str = "localhost:5000/api:1";

/// A service of two images whose new digests the fleet lets go; their deployment has begun.
fn deploying_two_images() -> Story {
    let reference = Reference::parse(API).unwrap();
    let mut images = config().images;
    images.push(ConfiguredImage { configured: API.into(), reference: reference.clone() });
    let mut story = Story::of(ServiceConfig { images, ..config() });
    story.service.set_fleet(Arc::new(present()));
    let (web, api) = (
        running("web"),
        Container { config_image: API.into(), image: ImageId("sha256:api".into()), ..running("api") },
    );
    let mut seen = observed('2', &[local("sha256:one", &['1'])], &[&web, &api]);
    let running = vec![local("sha256:api", &['5'])];
    seen.images.push(ImageView {
        remote: Some(digest('6')),
        tagged: running.first().cloned(),
        running,
        ..ImageView::new(API.into(), reference)
    });
    story.at(0).check(seen);
    for _ in 0..2 {
        let Some(Action::AskFleet { image, ask }) = story.act() else { panic!("it asks for both") };
        story.input(Input::FleetAnswered { image, ask, answer: Ok(answer(Permission::Go, 30)) });
    }
    assert!(story.begins());
    assert_eq!(story.service.leases().len(), 2);
    story
}

#[test]
fn of_two_images_the_one_that_is_not_to_blame_has_no_verdict_and_gives_its_lease_back() {
    for (blamed, remote, free) in [(IMAGE, '2', API), (API, '6', IMAGE)] {
        let mut story = deploying_two_images();
        let failed = FailedDeployment {
            images: blamed.into(),
            image: Reference::parse(blamed).ok(),
            digests: Some((None, digest(remote))),
            failure: Failure::general("exit code 1"),
            output: String::new(),
        };
        let (why, containers) = (RollbackProblem::NoOldImage, Vec::new());
        story.service.emit(Event::RollbackFailed { failed, why, containers }, story.now);
        story.service.durable.deployment.as_mut().unwrap().enter(Phase::Unpin, story.now);
        let decided = story.service.permits.decided.iter().map(|ask| ask.image.as_str());
        assert_eq!(decided.collect::<Vec<_>>(), [blamed]);
        let Some(Action::ReleaseFleet(ask)) = story.act() else { panic!("a lease is given back") };
        assert_eq!(ask.image, free);
        assert_eq!(story.service.leases(), []);
    }
}

#[test]
fn of_two_images_that_are_proven_both_have_a_verdict() {
    let mut story = deploying_two_images();
    // Nothing says that no container runs on them.
    story.service.containers = None;
    story.service.passed(story.now);
    let decided = story.service.permits.decided.iter().map(|ask| ask.image.as_str());
    assert_eq!(decided.collect::<Vec<_>>(), [IMAGE, API]);
    assert_eq!(story.service.leases(), []);
}
