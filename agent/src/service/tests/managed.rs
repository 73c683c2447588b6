//! Stories of containers that systemd or podman keeps (DECISIONS 9).

use std::path::PathBuf;

use super::*;
use crate::model::Manager;

fn managed(container: Container) -> Container {
    Container { manager: Some(Manager::Unit("web.service".into())), ..container }
}

#[test]
fn a_container_of_a_systemd_unit_is_not_updated() {
    for manager in [Manager::Unit("web.service".into()), Manager::AutoUpdate] {
        let mut story = Story::of(config());
        let container = Container { manager: Some(manager), ..running("a") };
        story.check(observed('2', &[local("sha256:one", &['1'])], &[&container]));
        assert_eq!(story.act(), None);
        assert_eq!(story.kinds(), []);
        // The same without an owner is.
        story.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
        assert!(matches!(story.act(), Some(Action::Step(Step::PinImages { .. }))));
    }
}

#[test]
fn a_container_of_a_systemd_unit_is_neither_healed_nor_started() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    let crashed = managed(exited("a", 1));
    for second in [0, 3, 10, 100] {
        story.at(second).look(&[&crashed]);
        story.check(observed('1', &[local("sha256:one", &['1'])], &[&crashed]));
        assert_eq!(story.act(), None);
    }
    assert_eq!(story.kinds(), []);
}

#[test]
fn a_container_that_a_unit_takes_over_is_healed_no_more() {
    let mut story = Story::of(config());
    story.look(&[&exited("a", 1)]);
    assert_eq!(story.at(2).look(&[&managed(exited("a", 1))]).restarts(), [""; 0]);
    assert_eq!(story.at(100).look(&[&managed(exited("a", 1))]).restarts(), [""; 0]);
    assert_ne!(story.status(), StatusValue::Degraded);
}

#[test]
fn the_others_of_a_project_with_a_unit_are_healed() {
    let mut story = Story::of(config());
    let both = [&managed(exited("a", 1)), &exited("b", 1)];
    story.look(&both);
    assert_eq!(story.at(2).look(&both).restarts(), ["b"]);
}

#[test]
fn who_keeps_a_container_is_told_in_a_warning() {
    let mut story = Story::of(config());
    story.look(&[&managed(running("a")), &running("b")]);
    let warnings = story.service.snapshot(PullProgress::default()).warnings;
    assert_eq!(
        warnings,
        ["container a is managed by systemd (web.service): it is neither updated nor healed here"]
    );
    story.look(&[&running("a")]);
    assert_eq!(story.service.snapshot(PullProgress::default()).warnings, [""; 0]);
}

#[test]
fn a_container_of_which_nothing_is_known_is_neither_started_nor_healed_nor_called_well() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    let unknown = Container { state: State::Unknown, started_at: None, ..running("a") };
    for second in [0, 3, 10, 100] {
        story.at(second).look(&[&unknown]);
        story.check(observed('1', &[local("sha256:one", &['1'])], &[&unknown]));
        assert_eq!(story.act(), None);
    }
    assert_eq!((story.kinds(), story.status()), (vec![], StatusValue::Unknown));
}

#[test]
fn a_service_that_was_frozen_as_not_found_goes_on_once_its_image_is_known() {
    let mut story = Story::of(config());
    let built = local("sha256:one", &[]);
    story.check(observed('2', &[built], &[&running("a")]));
    assert_eq!((story.act(), story.kinds()), (None, vec![Kind::NOT_FOUND]));
    story.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert_eq!(story.service.durable().not_found.len(), 0);
    let action = story.act();
    let Some(Action::Step(Step::PinImages { images, .. })) = action else { panic!("{action:?}") };
    assert_eq!(images[0].source.as_ref().and_then(|source| source.digest.clone()), Some(digest('1')));
}

#[test]
fn a_digest_that_was_seen_here_and_in_the_registry_is_remembered() {
    let mut story = Story::of(config());
    story.check(observed('1', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert_eq!(story.service.durable().published.get(IMAGE), Some(&digest('1')));
    story.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert_eq!(story.service.durable().published.get(IMAGE), Some(&digest('1')));
}

/// An agent in a container that sees the files at another path than the engine's machine.
#[test]
fn containers_of_other_compose_files_than_the_configured_ones_give_a_warning() {
    let made_from = |files: &[&str]| Container {
        compose_files: files.iter().map(PathBuf::from).collect(),
        ..running("a")
    };
    for (files, warns) in [
        (&["/home/ann/web.yml"][..], true),
        (&["/srv/web.yml"], false),
        (&["/home/ann/web.yml", "/srv/web.yml"], false),
        (&[], false),
    ] {
        let mut story = Story::of(config());
        story.look(&[&made_from(files)]);
        let warnings = story.service.snapshot(PullProgress::default()).warnings;
        assert_eq!(warnings.len(), usize::from(warns), "{files:?}: {warnings:?}");
        assert!(warnings.iter().all(|text| text.contains("made from /home/ann/web.yml, not")));
    }
}
